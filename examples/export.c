// export.c - a trained net as one C file, for firmware
//
// Shows:   export_c.h: the digits' net as C99 that needs no header but math.h and stdint.h, no malloc, and of libc expf only; once
//          with floats, once with weights as bytes, and what the bytes cost on images that it has not seen.
// Data:    1,797 images of 8x8 pixels in digits.h.
// Build:   cc -O2 examples/export.c -o export -lm -pthread
// Run:     ./export, then compile net.c or net_int8.c into anything that calls net_predict(pixels, answers)
// Output:  accuracy 97.8 %
//          net.c: 34856 bytes of constants, 5120 of memory
//          net_int8.c: 9120 bytes of constants, 5120 of memory; answers differ by up to 0.016, 100.0 % keep the largest
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "digits.h"
#include "export_c.h"

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 8, 8, 1], pixels in 0..1
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_batchnorm(dt_conv2d(x, 16, 3, .padding = DT_SAME))), 2);
    x = dt_relu(dt_dense(dt_flatten(x), 32));
    return dt_softmax(dt_dense(x, 10));
}

int main(void) {
    static unsigned char images[DIGITS * DIGITS_PIXELS], labels[DIGITS];
    static float seen_last[359 * DIGITS_PIXELS];
    dt_error err = DT_DEFAULTS;
    dt_export_options floats = DT_DEFAULTS, bytes = {.int8 = 1, .x = seen_last, .n = 359};
    digits_decode(images, labels);
    dt_source all = dt_arrays(images, DT_UINT8, labels, DT_UINT8, DIGITS);
    dt_model *m = dt_model_create(&(dt_options){
        .net = net, .input = {8, 8, 1}, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM, .epochs = 10,
        .train = dt_fold(all, 5, 4, DT_TRAIN), .test = dt_fold(all, 5, 4, DT_TEST)}, &err);
    dt_train(m, NULL, &err);
    printf("accuracy %.1f %%\n", 100 * dt_model_report(m).eval_accuracy);
    for (int i = 4, k = 0; i < DIGITS; i += 5)         // every fifth image was held out
        for (int p = 0; p < DIGITS_PIXELS; p++) seen_last[k++] = (float)images[i * DIGITS_PIXELS + p] / 255;
    dt_export_c(m, "net.c", &floats, &err);
    dt_export_c(m, "net_int8.c", &bytes, &err);
    dt_model_free(m);
    if (err.code) return fprintf(stderr, "export: %s\n", err.text), 1;
    printf("net.c: %zu bytes of constants, %zu of memory\n", floats.weight_bytes, floats.work_bytes);
    printf("net_int8.c: %zu bytes of constants, %zu of memory; answers differ by up to %.3f, %.1f %% keep the largest\n",
           bytes.weight_bytes, bytes.work_bytes, bytes.difference, 100 * bytes.agreement);
    return 0;
}
