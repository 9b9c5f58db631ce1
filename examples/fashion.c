// fashion.c - ten kinds of clothing: a convolutional network that is worth its ten epochs
//
// Shows:   batch norm, dropout, pixels centred, a learning rate that falls along half a cosine.
// Data:    the four files of Fashion-MNIST under MNIST's usual names in data/fashion, plain or .gz.
// Build:   cc -O2 examples/fashion.c -o fashion -lm -pthread
// Run:     ./fashion      (--help lists every flag; --epochs 2 for a first look)
// Output:  about 27 s an epoch; ./fashion prints as the other programs do
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 28, 28, 1], pixels in 0..1
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 32, 3, .no_bias = 1)));
    x = dt_maxpool2d(x, 2);                            // [batch, 13, 13, 32]
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 64, 3, .no_bias = 1)));
    x = dt_maxpool2d(x, 2);                            // [batch, 5, 5, 64]
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 128)), 0.4);
    return dt_dense(x, 10, .name = "logits");          // [batch, 10]
}

int main(int argc, char **argv) {
    return dt_main(argc, argv,
        .net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM,
        .learning_rate = 2e-3, .schedule = DT_COSINE_DECAY,
        .train = dt_mnist("data/fashion", DT_TRAIN), .test = dt_mnist("data/fashion", DT_TEST),
        .mean = {0.286}, .deviation = {0.353},         // of the training images
        .replicas = 2, .batch = 128, .epochs = 10, .save = "fashion.safetensors");
}
