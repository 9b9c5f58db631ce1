// fashion.c - ten kinds of clothing: a convolutional network that is worth its ten epochs
//
// Shows:   a block of layers as a function, batch norm, dropout, pixels brought to mean 0 and deviation 1,
//          a learning rate that falls along half a cosine.
// Data:    the four files of Fashion-MNIST under MNIST's usual names in data/fashion, plain or .gz.
// Build:   cc -O2 examples/fashion.c -o fashion -lm -pthread
// Run:     ./fashion      (--help lists every flag; --epochs 2 for a first look)
// Output:  104,426 parameters, strategy mirrored, 2 replicas on avx512, batch 128, 60,000 samples
//          epoch 1/10  loss 0.4862  accuracy 0.8292  test loss 0.3423  test accuracy 0.8743  5,500 samples/s  11.4 s
//          …
//          epoch 10/10  loss 0.1299  accuracy 0.9545  test loss 0.2059  test accuracy 0.9277  4,640 samples/s  13.6 s
//          saved fashion.safetensors
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"

// One floor: convolution, batch norm, relu, and half the height and width.
static dt_tensor *floor_of(dt_tensor *x, int filters) {
    x = dt_conv2d(x, filters, 3, .padding = DT_SAME, .no_bias = 1);  // batchnorm has a bias of its own
    return dt_maxpool2d(dt_relu(dt_batchnorm(x)), 2);
}

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 28, 28, 1]
    (void)user;
    for (int filters = 32; filters <= 128; filters *= 2) x = floor_of(x, filters);  // 14x14, 7x7, 3x3
    return dt_dense(dt_dropout(dt_flatten(x), 0.4), 10, .name = "logits");
}

int main(int argc, char **argv) {
    return dt_main(argc, argv,
        .net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM,
        .learning_rate = 2e-3, .schedule = DT_COSINE_DECAY,
        .train = dt_mnist("data/fashion", DT_TRAIN), .test = dt_mnist("data/fashion", DT_TEST),
        .mean = {0.286}, .deviation = {0.353},         // of the training images, as (x - mean) / deviation
        .replicas = 2, .batch = 128, .epochs = 10, .save = "fashion.safetensors");
}
