// xor.c - the smallest complete program: an own loop that learns exclusive or
//
// Shows:   dt_model_create, dt_step, dt_predict, dt_model_free, and where errors end up.
// Build:   cc -O2 examples/xor.c -o xor -lm -pthread
// Output:  0 xor 0 = 0.000
//          0 xor 1 = 1.000
//          1 xor 0 = 1.000
//          1 xor 1 = 0.000
//          loss 0.0003
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <stdio.h>

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    return dt_sigmoid(dt_dense(dt_tanh(dt_dense(x, 8)), 1));
}

int main(void) {
    static const float x[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}}, y[4] = {0, 1, 1, 0};
    float loss = 0, p[4] = {0};
    dt_error err = DT_DEFAULTS;
    dt_model *m = dt_model_create(&(dt_options){.net = net, .input = {2}, .batch = 4, .replicas = 1,
                                                .loss = DT_BINARY_CROSS_ENTROPY,
                                                .optimizer = DT_ADAM, .learning_rate = 0.05}, &err);
    for (int step = 0; step < 500; step++) loss = dt_step(m, x, y, 4, &err);
    dt_predict(m, x, 4, p, &err);
    dt_model_free(m);
    if (err.code) {  // the first error of all these calls
        fprintf(stderr, "xor: %s\n", err.text);
        return 1;
    }

    for (int i = 0; i < 4; i++) printf("%g xor %g = %.3f\n", x[i][0], x[i][1], p[i]);
    printf("loss %.4f\n", loss);
    return 0;
}
