// digits.c - a convolutional network on real handwritten digits, with no download
//
// Shows:   data from arrays, a held-out fifth (dt_fold), dt_main with every flag, weights saved.
// Data:    1,797 images of 8x8 pixels in digits.h.
// Build:   cc -O2 examples/digits.c -o digits -lm -pthread
// Run:     ./digits      (--help lists every flag; --replicas 1 uses one core)
// Output:  151,306 parameters, strategy mirrored, 2 replicas on avx512, batch 64, 1,438 samples
//          epoch 1/25  loss 2.1438  accuracy 0.2344  test loss 1.2727  test accuracy 0.8357  25,947 samples/s  0.1 s
//          …
//          epoch 25/25  loss 0.0861  accuracy 0.9757  test loss 0.0265  test accuracy 0.9916  32,539 samples/s  0.0 s
//          saved digits.safetensors
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "digits.h"

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 8, 8, 1], pixels in 0..1
    (void)user;
    x = dt_relu(dt_conv2d(x, 32, 3, .padding = DT_SAME));
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3, .padding = DT_SAME)), 2);
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 128)), 0.5);
    return dt_dense(x, 10, .name = "logits");          // [batch, 10]
}

int main(int argc, char **argv) {
    static unsigned char images[DIGITS * DIGITS_PIXELS], labels[DIGITS];
    digits_decode(images, labels);
    dt_source all = dt_arrays(images, DT_UINT8, labels, DT_UINT8, DIGITS);
    return dt_main(argc, argv,
        .net = net, .input = {8, 8, 1}, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM,
        .learning_rate = 3e-3, .schedule = DT_COSINE_DECAY,
        .train = dt_fold(all, 5, 4, DT_TRAIN),         // every image but index % 5 == 4 …
        .test = dt_fold(all, 5, 4, DT_TEST),           // … and these
        .crop = 1,                                     // move training images by a pixel, by chance
        .batch = 64, .epochs = 25, .save = "digits.safetensors");
}
