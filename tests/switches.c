/* switches.c - a small model in a static arena, whatever has been switched off. `make switches` builds
 * this file once for each DTRAIN_ switch; `make test` builds it without any. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/cifar10.h"
#include "../examples/csv.h"
#include "../examples/images.h"
#include "../examples/npy.h"
#include "test.h"

static unsigned char arena[2][512 * 1024];

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_tanh(dt_dense(x, 8)), 1);
}

static dt_options options(int which, dt_strategy strategy, int replicas) {
    dt_options o = DT_DEFAULTS;
    o.net = net;
    o.input[0] = 3;
    o.loss = DT_MSE;
    o.optimizer = DT_ADAM;
    o.learning_rate = 0.01;
    o.batch = 32;
    o.strategy = strategy;
    o.replicas = replicas;
    o.memory = arena[which];
    o.memory_size = sizeof arena[which];
    return o;
}

/* y = x0 x1 - x2 on 32 points; the last batch of four is a short one. */
static void fill(float *x, float *y) {
    unsigned state = 1;
    for (int i = 0; i < 32; i++) {
        for (int k = 0; k < 3; k++) {
            state = state * 1664525u + 1013904223u;
            x[3 * i + k] = (float)(state >> 8) / 8388608.0f - 1;
        }
        y[i] = x[3 * i] * x[3 * i + 1] - x[3 * i + 2];
    }
}

static float train(dt_model *m, int steps, dt_error *err) {
    float x[32 * 3], y[32], loss = 0;
    fill(x, y);
    for (int i = 0; i < steps; i++) {
        loss = dt_step(m, x, y, i % 4 == 3 ? 29 : 32, err);
        if (err->code) break;
    }
    return loss;
}

static void test_learns_in_an_arena(void) {
    dt_options o = options(0, DT_ONE, 1);
    dt_error err = DT_DEFAULTS;
    float first, last, x[32 * 3], y[32], p[32];
    size_t bytes = dt_model_bytes(&o, &err);
    dt_model *m;
    CHECK_OK(err);
    CHECK_MSG(bytes > 0 && bytes <= sizeof arena[0], "%lu bytes", (unsigned long)bytes);
    o.memory_size = bytes;
    m = dt_model_create(&o, &err);
    CHECK_OK(err);
    if (!m) return;
    first = train(m, 1, &err);
    last = train(m, 201, &err);
    CHECK_OK(err);
    CHECK_MSG(last < first / 4, "%g, and %g after 200 steps", (double)first, (double)last);
    fill(x, y);
    CHECK(dt_predict(m, x, 32, p, &err) == 0);
    CHECK_NEAR(p[0], y[0], 0.5);
    CHECK(dt_model_step(m) == 202);
    dt_model_free(m);
}

static void test_arena_one_byte_short(void) {
    dt_options o = options(0, DT_ONE, 1);
    dt_error err = DT_DEFAULTS;
    dt_model *m;
    o.memory_size = dt_model_bytes(&o, &err) - 1;
    CHECK_OK(err);
    m = dt_model_create(&o, &err);
    CHECK(m == NULL);
    CHECK_ERROR(err, DT_ERR_MEMORY, "needs");
    dt_model_free(m);
}

static void test_replicas_agree(void) {
    static const struct { dt_strategy strategy; int replicas; } replica_case[] = {{DT_MIRRORED, 3}, {DT_CENTRAL, 3}, {DT_MIRRORED, 2}};
    for (int i = 0; i < COUNT(replica_case); i++) {
        dt_options one = options(0, DT_ONE, 1), many = options(1, replica_case[i].strategy, replica_case[i].replicas);
        dt_error err = DT_DEFAULTS;
        dt_model *a = dt_model_create(&one, &err), *b = dt_model_create(&many, &err);
        CHECK_OK(err);
        if (a && b) CHECK_NEAR(train(b, 100, &err) / train(a, 100, &err), 1, 1e-5);
        CHECK_OK(err);
        if (b) CHECK(dt_model_report(b).replicas == replica_case[i].replicas);
        dt_model_free(a);
        dt_model_free(b);
    }
}

#if defined(DTRAIN_NO_STDIO) || defined(DTRAIN_NO_MALLOC)
static void test_no_files(void) {
    dt_source source = dt_mnist("data/mnist", DT_TRAIN), table = dt_csv("table.csv"), images = dt_images("images"), arrays = dt_npy("x.npy", NULL), cifar = dt_cifar10("cifar", DT_TRAIN);
    dt_options o = options(0, DT_ONE, 1);
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    CHECK(dt_dataset_open(&source, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
    err = none;
    CHECK(dt_dataset_open(&table, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
    err = none;
    CHECK(dt_dataset_open(&images, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
    err = none;
    CHECK(dt_dataset_open(&arrays, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
    err = none;
    CHECK(dt_dataset_open(&cifar, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
    err = none;
    CHECK(dt_save(m, "never.safetensors", &err) == DT_ERR_DISABLED);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
    err = none;
    CHECK(dt_load(m, "never.safetensors", NULL, &err) == DT_ERR_DISABLED);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
    dt_model_free(m);
}
#endif

/* weights travel through callbacks into flash, and from there into another model, in every build */
static struct { unsigned char bytes[2048]; size_t n; } flash;
static int flash_write(void *user, const void *data, size_t n) {
    (void)user;
    if (n > sizeof flash.bytes - flash.n) return 1;
    memcpy(flash.bytes + flash.n, data, n);
    flash.n += n;
    return 0;
}

static void test_weights_in_flash(void) {
    static unsigned char table[8 * 1024];
    dt_options one = options(0, DT_ONE, 1), other = options(1, DT_ONE, 1);
    dt_load_options load = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    dt_model *a, *b;
    other.seed = 5;
    a = dt_model_create(&one, &err), b = dt_model_create(&other, &err);
    CHECK_OK(err);
    if (a && b) CHECK(dt_parameters_crc32c(a) != dt_parameters_crc32c(b));
    flash.n = 0;
    CHECK(dt_save_to(a, flash_write, NULL, &err) == 0);
    load.data = flash.bytes, load.size = flash.n;
    load.scratch = table, load.scratch_size = sizeof table;
    CHECK(dt_load_opt(b, &load, &err) == 0);
    CHECK_OK(err);
    CHECK(load.loaded == 4 && dt_parameters_crc32c(a) == dt_parameters_crc32c(b));
    dt_model_free(a);
    dt_model_free(b);
}

#ifdef DTRAIN_NO_MALLOC
static void test_no_malloc(void) {
    dt_options o = options(0, DT_ONE, 1);
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    dt_comm *comm[2] = {NULL, NULL};
    o.memory = NULL;
    o.memory_size = 0;
    CHECK(dt_model_create(&o, &err) == NULL);
    CHECK_MSG(err.code && strstr(err.text, ".memory"), "%s", err.text);
    err = none;
    CHECK(dt_comm_group(2, comm, &err) == DT_ERR_DISABLED);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_");
}
#elif defined(DTRAIN_NO_THREADS)
static void test_no_groups(void) {
    dt_error err = DT_DEFAULTS;
    dt_comm *comm[2] = {NULL, NULL};
    CHECK(dt_comm_group(2, comm, &err) == DT_ERR_DISABLED);
    CHECK_ERROR(err, DT_ERR_DISABLED, "DTRAIN_NO_THREADS");
}
#endif

int main(void) {
    RUN(test_learns_in_an_arena);
    RUN(test_arena_one_byte_short);
    RUN(test_replicas_agree);
    RUN(test_weights_in_flash);
#if defined(DTRAIN_NO_STDIO) || defined(DTRAIN_NO_MALLOC)
    RUN(test_no_files);
#endif
#ifdef DTRAIN_NO_MALLOC
    RUN(test_no_malloc);
#elif defined(DTRAIN_NO_THREADS)
    RUN(test_no_groups);
#endif
    return finish();
}
