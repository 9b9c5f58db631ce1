// two_models.c - a teacher and a student that train side by side (distillation, Hinton et al. 2015)
//
// A hundred digits have labels, the other 1,338 of the training part have none. A convolutional network
// learns from the hundred; in the same loop it says what it sees in all the others, and its probabilities
// are the labels of a student with a thirtieth of its parameters. A second student with the same seed and
// as many steps gets the hundred true labels alone.
//
// Shows:   several models at once, dt_predict between steps, soft labels (DT_ONE_HOT), a comparison
//          over five folds with fixed seeds: every image is tested once.
// Data:    the digits of digits.h.
// Build:   cc -O2 examples/two_models.c -o two_models -lm -pthread
// Run:     ./two_models
// Output:  wrong of    teacher  student with teacher  student alone
//               360         59                    50             71
//               360         59                    58             89
//               359         67                    65             84
//               359         63                    54             76
//               359         67                    63             77
//              1797        315                   290            397
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "digits.h"
#include <stdio.h>
#include <string.h>

enum { LABELLED = 100, BATCH = 50, STEPS = 800, FOLDS = 5 };
typedef float digit[DIGITS_PIXELS];
typedef struct { int n; digit x[DIGITS]; int32_t y[DIGITS]; } part;

static dt_tensor *teacher_net(dt_tensor *x, void *user) {      // 38,282 parameters
    (void)user;
    x = dt_relu(dt_conv2d(x, 16, 3, .padding = DT_SAME));
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3, .padding = DT_SAME)), 2);
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 64)), 0.5);
    return dt_softmax(dt_dense(x, 10));                        // probabilities, for the student
}

static dt_tensor *student_net(dt_tensor *x, void *user) {      // 1,210 parameters
    (void)user;
    return dt_softmax(dt_dense(dt_relu(dt_dense(dt_flatten(x), 16)), 10));
}

static dt_model *create(dt_tensor *(*net)(dt_tensor *, void *), dt_type label_type, int seed, dt_error *err) {
    return dt_model_create(&(dt_options){.net = net, .input = {8, 8, 1}, .batch = BATCH, .replicas = 1,
                                         .loss = DT_CROSS_ENTROPY, .label_type = label_type, .seed = (uint64_t)seed,
                                         .optimizer = DT_ADAM, .learning_rate = 3e-3}, err);
}

// Batch number `step` of the first n images, which come in a new order every time they are through.
static void gather(const part *p, int n, int step, digit *x, int32_t *y) {
    for (int i = 0; i < BATCH; i++) {
        long at = (long)step * BATCH + i, pick = dt_shuffle(at % n, n, 1, at / n);
        memcpy(x[i], p->x[pick], sizeof x[i]);
        y[i] = p->y[pick];
    }
}

static int wrong(dt_model *m, const part *p, dt_error *err) {
    static float out[DIGITS][10];
    int count = 0;
    if (dt_predict(m, p->x, p->n, out[0], err)) return 0;
    for (int i = 0; i < p->n; i++) {
        int best = 0;
        for (int k = 1; k < 10; k++)
            if (out[i][k] > out[i][best]) best = k;
        count += best != p->y[i];
    }
    return count;
}

int main(void) {
    static unsigned char images[DIGITS][DIGITS_PIXELS], labels[DIGITS];
    static part train, test;
    static digit x[BATCH];
    int32_t y[BATCH];
    float soft[BATCH][10];
    int sum[3] = {0};
    dt_error err = DT_DEFAULTS;
    digits_decode(images[0], labels);
    printf("wrong of    teacher  student with teacher  student alone\n");
    for (int fold = 0; fold < FOLDS && !err.code; fold++) {
        train.n = test.n = 0;
        for (int i = 0; i < DIGITS; i++) {
            part *p = i % FOLDS == fold ? &test : &train;
            for (int k = 0; k < DIGITS_PIXELS; k++) p->x[p->n][k] = (float)images[i][k] / 255;
            p->y[p->n++] = labels[i];
        }
        dt_model *teacher = create(teacher_net, DT_INT32, fold, &err);
        dt_model *student = create(student_net, DT_ONE_HOT, fold, &err);
        dt_model *alone = create(student_net, DT_INT32, fold, &err);
        for (int step = 0; step < STEPS && !err.code; step++) {
            gather(&train, LABELLED, step, x, y);
            dt_step(teacher, x, y, BATCH, &err);
            dt_step(alone, x, y, BATCH, &err);
            gather(&train, train.n, step, x, y);               // these y stay unread
            dt_predict(teacher, x, BATCH, soft[0], &err);
            dt_step(student, x, soft, BATCH, &err);
        }
        int count[3] = {wrong(teacher, &test, &err), wrong(student, &test, &err), wrong(alone, &test, &err)};
        printf("%8d %10d %21d %14d\n", test.n, count[0], count[1], count[2]);
        for (int i = 0; i < 3; i++) sum[i] += count[i];
        dt_model_free(teacher);
        dt_model_free(student);
        dt_model_free(alone);
    }
    if (err.code) fprintf(stderr, "two_models: %s\n", err.text);
    else printf("%8d %10d %21d %14d\n", DIGITS, sum[0], sum[1], sum[2]);
    return err.code != 0;
}
