// kernels.c - matrix products and convolutions in GFLOP/s, beside the CPU's peak and OpenBLAS
//
// Build:   cc -O2 bench/kernels.c -o kernels -lm -pthread
//          cc -O2 -DWITH_OPENBLAS bench/kernels.c -o kernels -lm -pthread -lopenblas
// Run:     ./kernels                 one thread; DTRAIN_ISA=avx2 (sse2, vector, plain) asks for lesser instructions
//          ./kernels --threads 2     products only: two threads have half of the rows or columns each
//          ./kernels --only conv --rounds 9 --seconds 0.02
//          ./kernels --only conv --direct 1   without Winograd's way, whose GFLOP/s count what a direct convolution would do
// Prints Markdown. Every figure is the median over the rounds; in each round the peak, ours and OpenBLAS follow
// each other, so that a share or a ratio compares neighbours on a noisy machine.
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef WITH_OPENBLAS
#include <cblas.h>
void openblas_set_num_threads(int n);
char *openblas_get_corename(void);
#endif

enum { MOST_ROUNDS = 99 };
static int rounds = 5, threads = 1, direct;
static double seconds = 0.03;
static const char *only = "";

// ---- measuring

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// GFLOP/s of a call of so many operations, which is repeated until it has taken long enough.
static double rate(void (*call)(void *), void *user, double operations) {
    long n = 0, batch = 1;
    double begin = now(), took;
    do {
        for (long i = 0; i < batch; i++) call(user);
        n += batch;
        took = now() - begin;
        if (took < seconds / 20) batch *= 2;
    } while (took < seconds);
    return operations * (double)n / took * 1e-9;
}

static int by_value(const void *a, const void *b) {
    const double *x = (const double *)a, *y = (const double *)b;
    return (*x > *y) - (*x < *y);
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// The peak: independent multiply-adds in registers, of the instruction set in use; fused where it has that.
typedef float v4 __attribute__((vector_size(16)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define START(i) V c##i = {(float)i};
#define STEP(i) c##i = c##i * a + b;
#define ADD(i) sum += c##i;
#define PEAK(name, target, type)                                              \
    target static void name(void *user) {                                     \
        typedef type V;                                                       \
        V a = {1e-9f}, b = {1e-9f}, sum = {0};                                \
        CHAINS(START)                                                         \
        for (int i = 0; i < 4000; i++) { CHAINS(STEP) __asm__ volatile("" : REGISTER(a), REGISTER(b)); } \
        CHAINS(ADD)                                                           \
        float first;                                                          \
        memcpy(&first, &sum, sizeof first);                                   \
        *(volatile float *)user = first;                                      \
    }
#if DT__X86
#define REGISTER(v) "+x"(v)
PEAK(peak_avx512, __attribute__((target("avx512f"))), v16)
PEAK(peak_avx2, __attribute__((target("avx2,fma"))), v8)
#elif defined(__aarch64__)
#define REGISTER(v) "+w"(v)
#else
#define REGISTER(v) "+m"(v)  // slower than it could be: the shares come out too large
#endif
PEAK(peak_vector, , v4)
PEAK(peak_plain, , float)
static double peak(void) {
    float out;
#if DT__X86
    if (!strcmp(dt__cpu()->name, "avx512")) return rate(peak_avx512, &out, 4000.0 * 12 * 16 * 2);
    if (!strcmp(dt__cpu()->name, "avx2")) return rate(peak_avx2, &out, 4000.0 * 12 * 8 * 2);
#endif
    if (!strcmp(dt__cpu()->name, "plain")) return rate(peak_plain, &out, 4000.0 * 12 * 2);
    return rate(peak_vector, &out, 4000.0 * 12 * 4 * 2);  // sse2, neon, vector
}

// ---- matrix products

typedef struct { const char *name; int m, n, k, at, bt; } product_shape;  // at, bt: A, B lie transposed
static const product_shape product_shapes[] = {
    {"64^3", 64, 64, 64, 0, 0}, {"128^3", 128, 128, 128, 0, 0}, {"256^3", 256, 256, 256, 0, 0}, {"512^3", 512, 512, 512, 0, 0},
    {"1024^3", 1024, 1024, 1024, 0, 0}, {"2048^3", 2048, 2048, 2048, 0, 0},
    {"MLP forward NN", 128, 512, 784, 0, 0}, {"MLP forward NT", 128, 512, 784, 0, 1}, {"MLP dW TN", 784, 512, 128, 1, 0}, {"MLP dX NT", 128, 784, 512, 0, 1},
    {"MLP out NN", 128, 10, 512, 0, 0}, {"MLP out dW TN", 512, 10, 128, 1, 0}, {"MLP out dX NT", 128, 512, 10, 0, 1},
    {"batch 32", 32, 512, 784, 0, 0}, {"batch 8", 8, 512, 784, 0, 0}, {"batch 1 NN", 1, 512, 784, 0, 0}, {"batch 1 NT", 1, 512, 784, 0, 1},
    {"NHWC 16384x32x27", 16384, 32, 27, 0, 0}, {"NHWC 4096x64x288", 4096, 64, 288, 0, 0}, {"NHWC 16384x16x144", 16384, 16, 144, 0, 0},
    {"NHWC 1024x64x576", 1024, 64, 576, 0, 0}, {"NCHW 32x1024x27", 32, 1024, 27, 0, 0}, {"NCHW 64x256x288", 64, 256, 288, 0, 0},
    {"conv dW TN", 288, 64, 4096, 1, 0}, {"conv dcol NT", 4096, 288, 64, 0, 1}};

typedef struct { const product_shape *s; float *a, *b, *c, *scratch[2]; } product;

// The part of one of two threads, or all of it.
typedef struct { product *p; int part; } share;
static void own_share(const share *h) {
    const product_shape *s = h->p->s;
    ptrdiff_t m = s->m, n = s->n, i = 0, j = 0, ai = s->at ? 1 : s->k, ak = s->at ? s->m : 1, bk = s->bt ? 1 : s->n, bj = s->bt ? s->k : 1;
    if (threads == 2 && m >= n) { i = h->part ? m / 2 : 0; m = h->part ? m - m / 2 : m / 2; }
    else if (threads == 2) { j = h->part ? n / 2 / 32 * 32 : 0; n = h->part ? n - n / 2 / 32 * 32 : n / 2 / 32 * 32; }
    dt__gemm(m, n, s->k, h->p->a + i * ai, ai, ak, h->p->b + j * bj, bk, bj, h->p->c + i * s->n + j, s->n, 0, NULL, h->p->scratch[h->part]);
}
// The second thread waits for its share as a replica at a barrier does: spinning.
static share *volatile given;
static int volatile stop;
static void *second(void *none) {
    (void)none;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        share *h = __atomic_load_n(&given, __ATOMIC_ACQUIRE);
        if (!h) continue;
        own_share(h);
        __atomic_store_n(&given, NULL, __ATOMIC_RELEASE);
    }
    return NULL;
}
static void own_product(void *user) {
    share one = {(product *)user, 0}, two = {(product *)user, 1};
    if (threads == 2) __atomic_store_n(&given, &two, __ATOMIC_RELEASE);
    own_share(&one);
    while (threads == 2 && __atomic_load_n(&given, __ATOMIC_ACQUIRE)) {}
}
#ifdef WITH_OPENBLAS
static void blas_product(void *user) {
    const product *p = (const product *)user;
    const product_shape *s = p->s;
    cblas_sgemm(CblasRowMajor, s->at ? CblasTrans : CblasNoTrans, s->bt ? CblasTrans : CblasNoTrans, s->m, s->n, s->k, 1, p->a, s->at ? s->m : s->k, p->b, s->bt ? s->k : s->n, 0, p->c, s->n);
}
#endif

static float *numbers(size_t n) {
    float *p = (float *)malloc((n + 4096) * sizeof *p);
    if (!p) { fprintf(stderr, "out of memory\n"); exit(1); }
    for (size_t i = 0; i < n + 4096; i++) p[i] = (float)((i * 2654435761u >> 8) % 2048) / 1024 - 1;
    return p;
}

static void measure_products(void) {
    double logs = 0;
    int measured = 0;
    printf("| product (m x n x k) | GFLOP/s | of peak | OpenBLAS | ratio |\n| --- | ---: | ---: | ---: | ---: |\n");
    for (size_t k = 0; k < sizeof product_shapes / sizeof *product_shapes; k++) {
        const product_shape *s = &product_shapes[k];
        double ours[MOST_ROUNDS], share_of[MOST_ROUNDS], theirs[MOST_ROUNDS], ratio[MOST_ROUNDS], operations = 2.0 * s->m * s->n * s->k;
        if (!strstr(s->name, only) && !strstr("product", only)) continue;
        product p = {s, numbers((size_t)s->m * s->k), numbers((size_t)s->k * s->n), numbers((size_t)s->m * s->n), {NULL, NULL}};
        for (int t = 0; t < 2; t++) p.scratch[t] = numbers((size_t)dt__gemm_scratch(s->m, s->n, s->k));
        for (int r = 0; r < rounds; r++) {
            double top = peak() * threads;
            ours[r] = rate(own_product, &p, operations);
            share_of[r] = ours[r] / top;
            theirs[r] = NAN;
#ifdef WITH_OPENBLAS
            theirs[r] = rate(blas_product, &p, operations);
#endif
            ratio[r] = ours[r] / theirs[r];
        }
        logs += log(median(ratio, rounds));
        measured++;
        printf("| %s (%dx%dx%d) | %.1f | %.0f %% | ", s->name, s->m, s->n, s->k, median(ours, rounds), 100 * median(share_of, rounds));
        if (theirs[0] > 0) printf("%.1f | %.2f |\n", median(theirs, rounds), median(ratio, rounds));
        else printf("none | |\n");
        fflush(stdout);
        free(p.a), free(p.b), free(p.c), free(p.scratch[0]), free(p.scratch[1]);
    }
    if (measured && logs == logs) printf("\ngeometric mean of the ratios: %.3f\n\n", exp(logs / measured));
}

// ---- convolutions: the three passes of a layer within a model

typedef struct { const char *name; int side, c, f, kernel, stride, padding; } conv_shape;
static const conv_shape conv_shapes[] = {
    {"3->16, 32x32", 32, 3, 16, 3, 1, 1}, {"16->16, 32x32", 32, 16, 16, 3, 1, 1}, {"16->32 stride 2, 32x32", 32, 16, 32, 3, 2, 1}, {"32->32, 16x16", 16, 32, 32, 3, 1, 1},
    {"32->64 stride 2, 16x16", 16, 32, 64, 3, 2, 1}, {"64->64, 8x8", 8, 64, 64, 3, 1, 1},
    {"1->32, 28x28, no padding", 28, 1, 32, 3, 1, 0}, {"32->64, 13x13, no padding", 13, 32, 64, 3, 1, 0}, {"3->32, 32x32, no padding", 32, 3, 32, 3, 1, 0}};
enum { IMAGES = 32 };

static dt_tensor *conv_net(dt_tensor *x, void *user) {  // the scale in front asks for a gradient of the input
    const conv_shape *s = (const conv_shape *)user;
    return dt_conv2d(dt_conv2d(x, s->c, 1, .name = "before"), s->f, s->kernel, .stride = s->stride, .padding = s->padding, .no_bias = 1, .direct = direct, .name = "it");
}

typedef struct { dt_model *m; dt_tensor *t; int pass; } conv_pass;
static void own_conv(void *user) {
    const conv_pass *p = (const conv_pass *)user;
    dt__replica *r = &p->m->replica[0];
    dt_tensor *t = p->t;
    memset(r->written, 0, (size_t)r->graph->n);
    r->written[t->number] = 1;
    memset(r->variable_written, 0, (size_t)r->graph->n_variables);
    if (p->pass == 0) dt__conv_forward(r, t);
    else if (p->pass == 1) dt__conv_backward_data(r, t);
    else dt__conv_backward_weights(r, t);
}

static void measure_convolutions(void) {
    static const char *const pass_name[] = {"forward", "backward data", "backward weights"};
    printf("| 3x3 convolution, 32 images | %s: GFLOP/s, of peak | %s | %s |\n| --- | ---: | ---: | ---: |\n", pass_name[0], pass_name[1], pass_name[2]);
    for (size_t k = 0; k < sizeof conv_shapes / sizeof *conv_shapes; k++) {
        conv_shape s = conv_shapes[k];
        dt_error err = {0};
        dt_model *m;
        float *x;
        conv_pass p;
        if (!strstr(s.name, only) && !strstr("conv", only)) continue;
        m = dt_model_create(&(dt_options){.net = conv_net, .user = &s, .input = {s.side, s.side, s.c}, .batch = IMAGES, .replicas = 1, .loss = DT_VALUE, .no_fusion = 1}, &err);
        x = numbers((size_t)IMAGES * s.side * s.side * s.c);
        dt_step(m, x, NULL, IMAGES, &err);
        if (err.code) { fprintf(stderr, "%s: %s\n", s.name, err.text); exit(1); }
        p.m = m;
        p.t = m->graph.output;
        m->replica[0].rows = m->replica[0].run_rows = IMAGES;
        printf("| %s ", s.name);
        for (p.pass = 0; p.pass < 3; p.pass++) {
            double ours[MOST_ROUNDS], share_of[MOST_ROUNDS];
            double operations = 2.0 * IMAGES * p.t->dim[1] * p.t->dim[2] * s.f * s.c * s.kernel * s.kernel;
            for (int r = 0; r < rounds; r++) {
                double top = peak();
                ours[r] = rate(own_conv, &p, operations);
                share_of[r] = ours[r] / top;
            }
            printf("| %.1f, %.0f %% ", median(ours, rounds), 100 * median(share_of, rounds));
        }
        printf("|\n");
        fflush(stdout);
        dt_model_free(m);
        free(x);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    pthread_t other;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--rounds")) rounds = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads")) threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--only")) only = argv[i + 1];
        else if (!strcmp(argv[i], "--direct")) direct = atoi(argv[i + 1]);
        else argc = 0;
    }
    if (argc % 2 == 0 || rounds < 1 || rounds > MOST_ROUNDS || threads < 1 || threads > 2 || !(seconds > 0)) {
        fprintf(stderr, "usage: kernels [--rounds 1..%d] [--threads 1|2] [--seconds S] [--only TEXT] [--direct 1]\n", MOST_ROUNDS);
        return 64;
    }
    printf("instructions %s, %d thread%s, median of %d rounds", dt__cpu()->name, threads, threads > 1 ? "s" : "", rounds);
#ifdef WITH_OPENBLAS
    openblas_set_num_threads(threads);
    printf(", OpenBLAS for %s", openblas_get_corename());
#endif
    printf("\n\n");
    if (threads == 2 && pthread_create(&other, NULL, second, NULL)) return 1;
    measure_products();
    if (threads == 1) measure_convolutions();
    stop = 1;
    if (threads == 2) pthread_join(other, NULL);
    return 0;
}
