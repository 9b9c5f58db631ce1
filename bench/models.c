// models.c - how fast four well-known models train, on synthetic data in memory
//
// Build:   cc -O2 bench/models.c -o models -lm -pthread
// Run:     ./models --model mnist_cnn --batch 128 --replicas 2 --seconds 5
//          under mpirun, srun, … or with DTRAIN_RANK, DTRAIN_WORLD and DTRAIN_CHIEF: the processes train together
// The first process prints one line of JSON. --batch is per replica; --strategy and --wire are as in every program; --steps 0
// means "as many as fill --seconds".
// Models, data and optimizers are those of the PyTorch program that it is compared with, and the
// fields have its names: threads is the cores of one replica (here always 1), import_s is 0. to_first_step_s begins
// when the data is in memory. plan_mb is what the values, gradients and scratch of one replica take, plan_bound_mb
// what no plan of the same order could go below.
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { POOL = 4096, CLASSES = 10, WARMUP = 10, MOST_STEPS = 1000000 };

static dt_tensor *mnist_mlp(dt_tensor *x, void *user) {
    (void)user;
    x = dt_dropout(dt_relu(dt_dense(x, 512)), 0.2);
    x = dt_dropout(dt_relu(dt_dense(x, 512)), 0.2);
    return dt_dense(x, CLASSES);
}

static dt_tensor *mnist_cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3)), 2);
    return dt_dense(dt_relu(dt_dense(dt_flatten(x), 128)), CLASSES);
}

static dt_tensor *cifar_cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
    return dt_dense(dt_relu(dt_dense(dt_flatten(x), 64)), CLASSES);
}

static dt_tensor *conv_norm(dt_tensor *x, int filters, int stride) {
    return dt_batchnorm(dt_conv2d(x, filters, 3, .stride = stride, .padding = 1, .no_bias = 1));
}

static dt_tensor *resnet20(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(conv_norm(x, 16, 1));
    for (int i = 0; i < 9; i++) {
        int filters = 16 << i / 3, extra = filters - dt_dim(x, 3), stride = extra ? 2 : 1;
        dt_tensor *y = conv_norm(dt_relu(conv_norm(x, filters, stride)), filters, 1);
        if (extra) {
            x = dt_slice(dt_slice(x, 1, 0, 0, .step = 2), 2, 0, 0, .step = 2);
            x = dt_pad(x, 3, extra / 2, extra - extra / 2);
        }
        x = dt_relu(dt_add(x, y));
    }
    return dt_dense(dt_global_avgpool(x), CLASSES);
}

static const struct {
    const char *name;
    dt_tensor *(*net)(dt_tensor *x, void *user);
    int input[3];
    dt_optimizer optimizer;
    double learning_rate, momentum, weight_decay;
} bench_table[] = {
    {"mnist_mlp", mnist_mlp, {784, 0, 0},  DT_ADAM,     1e-3, 0,   0},
    {"mnist_cnn", mnist_cnn, {28, 28, 1},  DT_ADAM,     1e-3, 0,   0},
    {"cifar_cnn", cifar_cnn, {32, 32, 3},  DT_ADAM,     1e-3, 0,   0},
    {"resnet20",  resnet20,  {32, 32, 3},  DT_MOMENTUM, 0.1,  0.9, 1e-4},
};
enum { MODELS = sizeof bench_table / sizeof bench_table[0] };

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float uniform(uint64_t *state) {  // 0 .. 1; Knuth's MMIX generator, upper bits
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 16777216.0f;
}

// Random pictures, labelled by a random linear teacher: there is something to learn.
static int make_data(float *x, int32_t *y, int size) {
    uint64_t state = 1;
    float *teacher = (float *)malloc(sizeof *teacher * (size_t)size * CLASSES);
    if (!teacher) return 0;
    for (int i = 0; i < size * CLASSES; i++)  // a sum of uniforms is close enough to a normal
        teacher[i] = uniform(&state) + uniform(&state) + uniform(&state) + uniform(&state) - 2;
    for (long n = 0; n < POOL; n++) {
        float *sample = x + n * size, best = 0;
        for (int i = 0; i < size; i++) sample[i] = uniform(&state);
        for (int c = 0; c < CLASSES; c++) {
            float score = 0;
            for (int i = 0; i < size; i++) score += (sample[i] - 0.5f) * teacher[c * size + i];
            if (c == 0 || score > best) { best = score; y[n] = c; }
        }
    }
    free(teacher);
    return 1;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double peak_rss_mb(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    return (double)usage.ru_maxrss / 1048576;
#else
    return (double)usage.ru_maxrss / 1024;
#endif
}

static int bench(int which, int batch, int replicas, int no_fusion, const char *strategy, const char *wire, long steps, double seconds) {
    double start, first_done, took, cpu, *step_s = NULL;
    size_t plan, bound;
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = bench_table[which].net;
    o.loss = DT_CROSS_ENTROPY;
    o.optimizer = bench_table[which].optimizer;
    o.learning_rate = bench_table[which].learning_rate;
    o.momentum = bench_table[which].momentum;
    o.weight_decay = bench_table[which].weight_decay;
    o.replicas = replicas;
    o.replica_batch = batch;
    o.seed = 1;
    o.no_fusion = no_fusion;
    dt_option_set(&o, "strategy", strategy, &err);
    dt_option_set(&o, "wire", wire, &err);
    memcpy(o.input, bench_table[which].input, sizeof bench_table[which].input);
    int size = o.input[0] * (o.input[1] ? o.input[1] * o.input[2] : 1);
    float *x = (float *)malloc(sizeof *x * (size_t)size * POOL), first, last = 0, wanted;
    int32_t *y = (int32_t *)malloc(sizeof *y * POOL);
    dt_comm *comm = dt_comm_open(NULL, &err);
    dt_model *m = NULL;
    long at = 0, n = (long)batch * replicas;
    if (dt_comm_size(comm) > 1) o.comm = comm;
    if (!err.code && (!x || !y || !make_data(x, y, size))) snprintf(err.text, sizeof err.text, "out of memory");
    if (err.text[0]) goto done;
    start = now(CLOCK_MONOTONIC);
    m = dt_model_create(&o, &err);
    if (!m) goto done;
    dt_model_plan_bytes(m, &plan, &bound);

    first = dt_step(m, x, y, (int)n, &err);
    first_done = now(CLOCK_MONOTONIC);
    for (int i = 1; i < WARMUP; i++) dt_step(m, x, y, (int)n, &err);
    if (!steps) {
        steps = (long)(seconds * 1.05 / (now(CLOCK_MONOTONIC) - first_done) * (WARMUP - 1)) + 1;
        if (steps < 10) steps = 10;
        if (steps > MOST_STEPS) steps = MOST_STEPS;
    }
    wanted = (float)steps;
    if (o.comm && dt_broadcast(comm, &wanted, 1, 0, &err)) goto done;
    steps = (long)wanted;  // all processes take as many
    step_s = (double *)malloc(sizeof *step_s * (size_t)steps);
    if (!step_s) {
        snprintf(err.text, sizeof err.text, "out of memory");
        goto done;
    }

    cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    took = now(CLOCK_MONOTONIC);
    for (long i = 0; i < steps && !err.code; i++) {
        double begin = now(CLOCK_MONOTONIC);
        if (at + n > POOL) at = 0;
        last = dt_step(m, x + at * size, y + at, (int)n, &err);
        at += n;
        step_s[i] = now(CLOCK_MONOTONIC) - begin;
    }
    took = now(CLOCK_MONOTONIC) - took;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    if (err.code) goto done;
    if (dt_comm_rank(comm)) goto done;
    qsort(step_s, (size_t)steps, sizeof *step_s, by_size);
    printf("{\"peer\": \"dtrain\", \"model\": \"%s\", \"batch\": %d, \"threads\": 1, \"replicas\": %d, \"processes\": %d, \"strategy\": \"%s\", "
           "\"samples_per_s\": %.1f, \"step_ms_median\": %.4f, \"peak_rss_mb\": %.0f, "
           "\"loss_first\": %.4f, \"loss_last\": %.4f, \"steps\": %ld, "
           "\"step_ms_min\": %.4f, \"step_ms_p90\": %.4f, \"cpu_ms_step\": %.4f, "
           "\"import_s\": 0, \"to_first_step_s\": %.3f, \"params\": %lu, "
           "\"plan_mb\": %.2f, \"plan_bound_mb\": %.2f, \"version\": \"%s\"}\n",
           bench_table[which].name, batch, replicas, dt_comm_size(comm), strategy,
           (double)n * dt_comm_size(comm) * (double)steps / took, 1e3 * step_s[steps / 2], peak_rss_mb(),
           (double)first, (double)last, steps,
           1e3 * step_s[0], 1e3 * step_s[(long)(0.9 * (double)steps)], 1e3 * cpu / (double)steps,
           first_done - start, (unsigned long)dt_model_report(m).parameters,
           (double)plan / 1e6, (double)bound / 1e6, dt_version());
done:
    if (err.text[0]) fprintf(stderr, "models: %s: %s\n", bench_table[which].name, err.text);
    dt_model_free(m);
    dt_comm_close(comm);
    free(step_s);
    free(x);
    free(y);
    return err.text[0] != 0;
}

static int usage(void) {
    fprintf(stderr, "models: --model mnist_mlp|mnist_cnn|cifar_cnn|resnet20 [--batch 128] "
                    "[--replicas 1] [--steps 0] [--seconds 5] [--no-fusion 1] [--strategy default] [--wire f32]; batch * replicas is at most %d\n", POOL);
    return 64;
}

int main(int argc, char **argv) {
    int which = MODELS, batch = 128, replicas = 1, no_fusion = 0;
    long steps = 0;
    double seconds = 5;
    const char *strategy = "default", *wire = "f32";
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--model") == 0)
            for (which = 0; which < MODELS && strcmp(value, bench_table[which].name) != 0;) which++;
        else if (strcmp(argv[i], "--batch") == 0) batch = atoi(value);
        else if (strcmp(argv[i], "--replicas") == 0) replicas = atoi(value);
        else if (strcmp(argv[i], "--strategy") == 0) strategy = value;
        else if (strcmp(argv[i], "--wire") == 0) wire = value;
        else if (strcmp(argv[i], "--no-fusion") == 0) no_fusion = atoi(value);
        else if (strcmp(argv[i], "--steps") == 0) steps = atol(value);
        else if (strcmp(argv[i], "--seconds") == 0) seconds = atof(value);
        else return usage();
    }
    if (which == MODELS || batch < 1 || replicas < 1 || batch > POOL / replicas || steps < 0
        || steps > MOST_STEPS || !(seconds > 0)) return usage();
    return bench(which, batch, replicas, no_fusion, strategy, wire, steps, seconds);
}
