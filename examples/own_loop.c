// own_loop.c - your own training loop, down to the four parts of a step
//
// Shows:   batches gathered by hand in the order of dt_shuffle; dt_step, and its parts dt_forward,
//          dt_backward, dt_reduce and dt_update with the gradient's length limited in between;
//          a learning rate of your own rule; evaluation by dt_predict.
// Data:    the digits of digits.h: every fifth is held out.
// Build:   cc -O2 examples/own_loop.c -o own_loop -lm -pthread
// Run:     ./own_loop
// Output:  epoch  1  rate 0.00300  loss 2.0514  308 of 359 right
//          epoch  2  rate 0.00300  loss 0.4862  338 of 359 right
//          …
//          epoch  5  rate 0.00150  loss 0.0892  349 of 359 right
//          …
//          epoch 12  rate 0.00038  loss 0.0128  353 of 359 right
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "digits.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 64, EPOCHS = 12, TEST = DIGITS / 5, TRAIN = DIGITS - TEST };
typedef float digit[DIGITS_PIXELS];

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 8, 8, 1]
    (void)user;
    x = dt_relu(dt_conv2d(x, 32, 3, .padding = DT_SAME));
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3, .padding = DT_SAME)), 2);
    return dt_dense(dt_flatten(x), 10, .name = "logits");
}

// The same as dt_step, with a look at the gradient on its way: the mean over the batch is made no
// longer than `limit`. (.clip_norm does this for you.) Returns the loss.
static float careful_step(dt_model *m, digit *x, int32_t *y, int n, double limit, dt_error *err) {
    dt_batch batch = {.x = {x}, .y = {y}, .n = n};
    float loss = dt_forward(m, &batch, err);           // every replica its rows
    dt_backward(m, err);
    dt_reduce(m, err);                                 // sum over the replicas
    size_t size = 0;
    float *gradient = dt_gradients(m, &size);
    double square = 0;
    for (size_t i = 0; i < size; i++) square += (double)gradient[i] * gradient[i];
    double length = sqrt(square) / n;
    for (size_t i = 0; i < size && length > limit; i++) gradient[i] *= (float)(limit / length);
    dt_update(m, err);                                 // divide by the samples seen, apply, clear
    return loss;
}

static int count_right(dt_model *m, digit *x, int32_t *y, dt_error *err) {
    static float logits[TEST][10];
    int right = 0;
    if (dt_predict(m, x, TEST, logits[0], err)) return 0;
    for (int i = 0; i < TEST; i++) {
        int best = 0;
        for (int k = 1; k < 10; k++)
            if (logits[i][k] > logits[i][best]) best = k;
        right += best == y[i];
    }
    return right;
}

int main(void) {
    static unsigned char images[DIGITS][DIGITS_PIXELS], labels[DIGITS];
    static digit train_x[TRAIN], test_x[TEST], x[BATCH];
    static int32_t train_y[TRAIN], test_y[TEST], y[BATCH];
    digits_decode(images[0], labels);
    for (int i = 0, a = 0, b = 0; i < DIGITS; i++) {
        int held_out = i % 5 == 4;
        float *to = held_out ? test_x[b] : train_x[a];
        for (int k = 0; k < DIGITS_PIXELS; k++) to[k] = (float)images[i][k] / 255;
        if (held_out) test_y[b++] = labels[i];
        else train_y[a++] = labels[i];
    }

    dt_error err = DT_DEFAULTS;
    dt_model *m = dt_model_create(&(dt_options){.net = net, .input = {8, 8, 1}, .batch = BATCH, .replicas = 2,
                                                .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM, .seed = 1}, &err);
    double rate = 3e-3, best = INFINITY;
    for (int epoch = 1; epoch <= EPOCHS && !err.code; epoch++) {
        double sum = 0;
        for (int from = 0; from < TRAIN; from += BATCH) {
            int n = TRAIN - from < BATCH ? TRAIN - from : BATCH;  // the last batch is short
            for (int i = 0; i < n; i++) {
                long pick = dt_shuffle(from + i, TRAIN, 1, epoch);
                memcpy(x[i], train_x[pick], sizeof x[i]);
                y[i] = train_y[pick];
            }
            if (epoch == 1) {                          // warm up: small steps first, then larger ones
                dt_set_learning_rate(m, rate * (from + n) / TRAIN);
                sum += n * dt_step(m, x, y, n, &err);
            } else {
                dt_set_learning_rate(m, rate);
                sum += n * careful_step(m, x, y, n, 0.5, &err);
            }
        }
        printf("epoch %2d  rate %.5f  loss %.4f  %d of %d right\n", epoch, rate, sum / TRAIN,
               count_right(m, test_x, test_y, &err), TEST);
        if (sum > 0.8 * best) rate /= 2;               // our rule: a fifth less, or half the step
        if (sum < best) best = sum;
    }
    dt_model_free(m);
    if (err.code) fprintf(stderr, "own_loop: %s\n", err.text);  // the first error of all these calls
    return err.code != 0;
}
