// train_kann.c - the models of bench/models.c in KANN, a small C library: train_kann --model mnist_cnn --threads 2
//
// Get:     git clone https://github.com/attractivechaos/kann
// Build:   K="-march=native -DHAVE_PTHREAD -I kann bench/peers/train_kann.c kann/kann.c kann/kautodiff.c -lm -pthread"
//          cc -O3 $K -o kann_sse                                        its own loops, in SSE by hand
//          cc -O3 -DHAVE_CBLAS $K -lopenblas -o kann_blas               matrix products by OpenBLAS
//          cc -Ofast -U__SSE__ -DHAVE_CBLAS $K -lopenblas -o kann_fast  and its plain loops, in the compiler's AVX
// Compare: bench/compare.py --ours models --kann kann_sse --kann kann_blas --kann kann_fast
// Prints the line of JSON that the other peers print. Where KANN differs, it has less to do: its optimizer is RMSprop
// (one moment of the gradient, Adam has two), and its convolutions have no bias. It has no batch norm, so that
// resnet20 ends with status 2. Several threads share a batch (kann_mt), each with one thread of BLAS.
#include "kann.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { POOL = 4096, CLASSES = 10, WARMUP = 10, MOST_STEPS = 1000000 };
#ifdef HAVE_CBLAS
void openblas_set_num_threads(int n);
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static kad_node_t *input(int channels, int side) {  // pictures lie by channels: NCHW
    kad_node_t *t = channels ? kad_feed(4, 1, channels, side, side) : kad_feed(2, 1, side);
    t->ext_flag |= KANN_F_IN;
    return t;
}
static kad_node_t *conv_pool(kad_node_t *t, int filters) {
    t = kad_relu(kann_layer_conv2d(t, filters, 3, 3, 1, 1, 0, 0));
    for (int axis = 2; axis < 4; axis++)            // KANN would pad an odd side, the other peers drop its end
        if (t->d[axis] % 2) t = kad_slice(t, axis, 0, t->d[axis] - 1);
    return kad_max2d(t, 2, 2, 2, 2, 0, 0);
}
static kad_node_t *dense(kad_node_t *t, int width) { return kad_relu(kann_layer_dense(t, width)); }

static kad_node_t *mnist_mlp(void) {
    return kann_layer_dropout(dense(kann_layer_dropout(dense(input(0, 784), 512), 0.2f), 512), 0.2f);
}
static kad_node_t *mnist_cnn(void) { return dense(conv_pool(conv_pool(input(1, 28), 32), 64), 128); }
static kad_node_t *cifar_cnn(void) { return dense(conv_pool(input(3, 32), 32), 64); }

static float uniform(uint64_t *state) {  // 0 .. 1; Knuth's MMIX generator, upper bits
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 16777216.0f;
}

// Random pictures, labelled by a random linear teacher; y is one-hot.
static void make_data(float *x, float *y, int size) {
    uint64_t state = 1;
    float *teacher = (float *)malloc(sizeof *teacher * (size_t)size * CLASSES);
    if (!teacher) { fprintf(stderr, "train_kann: out of memory\n"); exit(1); }
    for (int i = 0; i < size * CLASSES; i++)
        teacher[i] = uniform(&state) + uniform(&state) + uniform(&state) + uniform(&state) - 2;
    for (long n = 0; n < POOL; n++) {
        float *sample = x + n * size, best = 0;
        int label = 0;
        for (int i = 0; i < size; i++) sample[i] = uniform(&state);
        for (int c = 0; c < CLASSES; c++) {
            float score = 0;
            for (int i = 0; i < size; i++) score += (sample[i] - 0.5f) * teacher[c * size + i];
            if (c == 0 || score > best) { best = score; label = c; }
        }
        y[n * CLASSES + label] = 1;
    }
    free(teacher);
}

typedef struct {
    kann_t *net;
    float *x, *y, *moment;
    int batch, size, at;
} training;

static float step(training *t) {  // the feeds point into the pool: no copy of the batch
    if (t->at + t->batch > POOL) t->at = 0;
    float *x = t->x + (size_t)t->at * (size_t)t->size, *y = t->y + (size_t)t->at * CLASSES;
    kann_feed_bind(t->net, KANN_F_IN, 0, &x);
    kann_feed_bind(t->net, KANN_F_TRUTH, 0, &y);
    float loss = kann_cost(t->net, 0, 1);
    kann_RMSprop(kann_size_var(t->net), 0.001f, NULL, 0.9f, t->net->g, t->net->x, t->moment);
    t->at += t->batch;
    return loss;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int bench(const char *model, kad_node_t *top, int batch, int threads, double seconds, double start) {
    struct rusage usage;
    training t = {kann_new(kann_layer_cost(top, CLASSES, KANN_C_CEM), 0), NULL, NULL, NULL, batch, 0, 0};
    t.size = kann_dim_in(t.net);
    t.x = (float *)malloc(sizeof *t.x * POOL * (size_t)t.size);
    t.y = (float *)calloc(POOL * CLASSES, sizeof *t.y);
    t.moment = (float *)calloc((size_t)kann_size_var(t.net), sizeof *t.moment);
    double *step_s = (double *)malloc(sizeof *step_s * MOST_STEPS);  // pages that no step reaches cost nothing
    if (!t.x || !t.y || !t.moment || !step_s) return fprintf(stderr, "train_kann: out of memory\n"), 1;
    make_data(t.x, t.y, t.size);
    if (threads > 1) kann_mt(t.net, threads, batch);
    kann_set_batch_size(t.net, batch);
    kann_switch(t.net, 1);

    float first = step(&t), last = 0;
    double first_done = now(), begin, took = 0;
    long steps = 0;
    for (int i = 1; i < WARMUP; i++) step(&t);
    for (begin = now(); steps < MOST_STEPS && took < seconds; steps++) {
        double before = took;
        last = step(&t);
        took = now() - begin;
        step_s[steps] = took - before;
    }
    qsort(step_s, (size_t)steps, sizeof *step_s, by_size);
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    usage.ru_maxrss /= 1024;
#endif
    printf("{\"peer\": \"KANN\", \"model\": \"%s\", \"batch\": %d, \"threads\": %d, \"replicas\": 1, "
           "\"samples_per_s\": %.1f, \"step_ms_median\": %.4f, \"peak_rss_mb\": %ld, "
           "\"loss_first\": %.4f, \"loss_last\": %.4f, \"steps\": %ld, "
           "\"to_first_step_s\": %.3f, \"params\": %d, \"version\": \"%s\"}\n",
           model, batch, threads, batch * (double)steps / took, 1e3 * step_s[steps / 2], usage.ru_maxrss / 1024,
           (double)first, (double)last, steps, first_done - start, kann_size_var(t.net), KANN_VERSION);
    kann_mt(t.net, 0, 0);
    kann_delete(t.net);
    free(t.x), free(t.y), free(t.moment), free(step_s);
    return 0;
}

static int usage(void) {
    fprintf(stderr, "train_kann: --model mnist_mlp|mnist_cnn|cifar_cnn [--batch 1..%d] [--threads 1] [--seconds 5]\n", POOL);
    return 64;
}

int main(int argc, char **argv) {
    double start = now(), seconds = 5;
    const char *model = "";
    int batch = 128, threads = 1;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--model")) model = value;
        else if (!strcmp(argv[i], "--batch")) batch = atoi(value);
        else if (!strcmp(argv[i], "--threads")) threads = atoi(value);
        else if (!strcmp(argv[i], "--seconds")) seconds = atof(value);
        else return usage();
    }
    if (batch < 1 || batch > POOL || threads < 1 || threads > batch || !(seconds > 0)) return usage();
#ifdef HAVE_CBLAS
    openblas_set_num_threads(1);
#endif
    kann_srand(1);
    if (!strcmp(model, "resnet20")) return fprintf(stderr, "train_kann: resnet20: KANN has no batch norm\n"), 2;
    kad_node_t *(*net)(void) = !strcmp(model, "mnist_mlp") ? mnist_mlp : !strcmp(model, "mnist_cnn") ? mnist_cnn
                             : !strcmp(model, "cifar_cnn") ? cifar_cnn : NULL;
    return net ? bench(model, net(), batch, threads, seconds, start) : usage();
}
