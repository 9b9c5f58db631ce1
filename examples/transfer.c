// transfer.c - what a network learned from digits helps it with clothes, of which it gets 500 pictures
//
// Shows:   dt_save; dt_load of the layers that match a glob; .freeze; a new head on an old body; and a
//          fair comparison: the same 500 pictures, head, steps and seeds for each way of training.
// Data:    MNIST in data/mnist and Fashion-MNIST in data/fashion, four files each, plain or .gz.
// Build:   cc -O2 examples/transfer.c -o transfer -lm -pthread
// Run:     ./transfer
// Output:  one epoch of digits: 98.16 % right
//          500 pictures of clothes, 3 seeds: percent of the 10,000 test pictures right
//          everything new                77.32  77.32  78.02    mean 77.55, 1.0 s each
//          random body, frozen           72.84  73.28  74.11    mean 73.41, 0.4 s each
//          body from digits, frozen      78.96  79.15  79.47    mean 79.19, 0.4 s each
//          body from digits, trained on  79.19  79.40  79.35    mean 79.31, 0.8 s each
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <stdio.h>
#include <string.h>

#define WEIGHTS "transfer.safetensors"
#define FEW 500                // pictures of clothes to learn from, of 60,000
enum { SEEDS = 3 };

// A body that sees strokes and edges, and a head that knows what to make of them.
static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 28, 28, 1], pixels in 0..1
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3, .name = "body.conv1")), 2);
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3, .name = "body.conv2")), 2);
    x = dt_relu(dt_dense(dt_flatten(x), 128, .name = "head.hidden"));
    return dt_dense(x, 10, .name = "head.logits");
}

static int is_there(const char *folder, const char *set) {
    dt_error err = DT_DEFAULTS;
    dt_source s = dt_mnist(folder, DT_TEST);
    dt_dataset *d = dt_dataset_open(&s, &err);
    if (!d) fprintf(stderr, "transfer: %s\nIn %s it looks for %s: examples/data.sh data %s fetches it.\n", err.text,
                    folder, strcmp(set, "mnist") ? "Fashion-MNIST (Debian: dataset-fashion-mnist)" : "MNIST", set);
    dt_dataset_close(d);
    return d != NULL;
}

// Learn the digits, and save. Returns the accuracy on the test images.
static double pre_train(dt_error *err) {
    dt_options o = {.net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM, .batch = 128, .epochs = 1,
                    .train = dt_mnist("data/mnist", DT_TRAIN), .test = dt_mnist("data/mnist", DT_TEST)};
    dt_model *m = dt_model_create(&o, err);
    dt_train(m, NULL, err);
    dt_save(m, WEIGHTS, err);
    double accuracy = dt_model_report(m).eval_accuracy;
    dt_model_free(m);
    return accuracy;
}

// Learn clothes: with a body from the digits' file if load is set, and one that stays as it is if freeze is.
static double few_clothes(int load, int freeze, uint64_t seed, double *seconds, dt_error *err) {
    dt_source all = dt_mnist("data/fashion", DT_TRAIN), test = dt_mnist("data/fashion", DT_TEST);
    dt_options o = {.net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM, .batch = 50, .epochs = 25,
                    .schedule = DT_COSINE_DECAY, .seed = seed, .freeze = freeze ? "body.*" : NULL,
                    .train = dt_fold(all, 60000 / FEW, 0, DT_TEST)};  // every 120th picture
    dt_metrics metrics = DT_DEFAULTS;
    dt_model *m = dt_model_create(&o, err);
    if (load) dt_load(m, WEIGHTS, "body.*", err);
    dt_train(m, NULL, err);
    dt_evaluate(m, &test, &metrics, err);
    *seconds += dt_model_report(m).seconds;
    dt_model_free(m);
    return metrics.accuracy;
}

int main(void) {
    static const struct { const char *name; int load, freeze; } way[] = {
        {"everything new", 0, 0},
        {"random body, frozen", 0, 1},
        {"body from digits, frozen", 1, 1},
        {"body from digits, trained on", 1, 0},
    };
    dt_error err = DT_DEFAULTS;
    if (!is_there("data/mnist", "mnist") || !is_there("data/fashion", "fashion")) return 1;
    printf("one epoch of digits: %.2f %% right\n", 100 * pre_train(&err));
    printf("%d pictures of clothes, %d seeds: percent of the 10,000 test pictures right\n", FEW, SEEDS);
    for (int i = 0; i < (int)(sizeof way / sizeof way[0]) && !err.code; i++) {
        double seconds = 0, sum = 0;
        printf("%-29s", way[i].name);
        for (int seed = 0; seed < SEEDS; seed++) {
            double accuracy = few_clothes(way[i].load, way[i].freeze, (uint64_t)seed, &seconds, &err);
            printf("%6.2f ", 100 * accuracy);
            fflush(stdout);
            sum += accuracy;
        }
        printf("   mean %.2f, %.1f s each\n", 100 * sum / SEEDS, seconds / SEEDS);
    }
    if (err.code) fprintf(stderr, "transfer: %s\n", err.text);
    return err.code != 0;
}
