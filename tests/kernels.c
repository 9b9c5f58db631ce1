/* kernels - matrix products and vector loops of every instruction set this machine has, against sums in
 * double precision and the C library; then against each other.
 *
 * Each instruction set runs in a process of its own, because the choice is made once. Operands end right before
 * (or begin right behind) a page that cannot be touched, so that one float read or written too far is a crash.
 */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "test.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const isa_name[] = { "avx512", "avx2", "sse2", "neon", "vector", "plain" };
enum { ISAS = sizeof isa_name / sizeof isa_name[0] };

static uint32_t random_state = 1;
static double uniform(void) {  /* -1 .. 1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / 8388608.0 - 1.0;
}

/* ---- guarded memory ----------------------------------------------------------------------------------- */

enum { AREAS = 8, AREA = 1 << 22 };
static unsigned char *area_begin[AREAS], *area_end[AREAS];
static int at_begin;  /* operands begin behind a guard page; otherwise they end before one */

static int areas_begin(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int i;
    for (i = 0; i < AREAS; i++) {
        unsigned char *p = (unsigned char *)mmap(NULL, AREA + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
        if (p == (unsigned char *)MAP_FAILED || mprotect(p, page, PROT_NONE) || mprotect(p + page + AREA, page, PROT_NONE)) return -1;
        area_begin[i] = p + page;
        area_end[i] = p + page + AREA;
    }
    return 0;
}

static float *guarded(int area, ptrdiff_t floats) {
    if (floats * 4 > AREA) { printf("an operand of %ld floats is too large for its area\n", (long)floats); exit(1); }
    return (float *)(void *)(at_begin ? area_begin[area] : area_end[area] - floats * 4);
}

/* n floats in an area: a copy of from, or sentinels where it is NULL */
#define SENTINEL -12345.678f
static float *place(int area, const float *from, ptrdiff_t n) {
    float *p = guarded(area, n);
    ptrdiff_t i;
    if (from && n) memcpy(p, from, (size_t)n * sizeof *p);
    for (i = 0; !from && i < n; i++) p[i] = SENTINEL;
    return p;
}

/* ---- one process per instruction set, and what each of them got ---------------------------------------- */

enum { MAX_GOT = 300000 };
typedef struct {
    int ran;
    int n;
    float value[MAX_GOT], tolerance[MAX_GOT];
} results;
static results *got_by;  /* [ISAS], shared with the children */
static results *mine;    /* NULL: nothing is noted */

static void note(double value, double tolerance) {
    if (!mine || mine->n >= MAX_GOT) return;
    mine->value[mine->n] = (float)value;
    mine->tolerance[mine->n++] = (float)tolerance;
}

/* |got - want| <= tolerance; NaN and infinities must be the same */
static int near(double got, double want, double tolerance) {
    if (want != want) return got != got;
    if (fabs(want) > FLT_MAX) return got == want;
    return fabs(got - want) <= tolerance;
}

#define NEAR(got, want, tolerance_, ...) \
    do { \
        double near_got = (got), near_want = (want), near_tolerance = (tolerance_); \
        note(near_got, near_tolerance); \
        if (check_failed < 10 && !near(near_got, near_want, near_tolerance)) { \
            check_failed++; \
            printf("  %s:%d: %.9g, expected %.9g (tolerance %.3g): ", __FILE__, __LINE__, near_got, near_want, near_tolerance); \
            printf(__VA_ARGS__); \
            printf("\n"); \
        } \
    } while (0)

static int isa;             /* the one to test */
static void (*body)(void);  /* and the test */

static int supported(const char *name) {
    setenv("DTRAIN_ISA", name, 1);
    return !strcmp(dt__kernels_choose()->name, name);
}

static void in_a_child(void) {
    int status = 0;
    pid_t pid;
    setenv("DTRAIN_ISA", isa_name[isa], 1);
    fflush(stdout);
    pid = fork();
    if (pid < 0) SKIP("no fork");
    if (pid == 0) {
        mine = &got_by[isa];
        mine->n = 0;
        mine->ran = 1;
        CHECK_MSG(!strcmp(dt__cpu()->name, isa_name[isa]), "%s was chosen for %s", dt__cpu()->name, isa_name[isa]);
        body();
        if (mine->n >= MAX_GOT) { check_failed++; printf("  more than %d results: enlarge MAX_GOT\n", MAX_GOT); }
        fflush(stdout);
        _exit(check_failed ? 1 : 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status)) CHECK_MSG(0, "ended by signal %d: a read or write out of bounds?", WTERMSIG(status));
    else CHECK_MSG(WEXITSTATUS(status) == 0, "ended with %d", WEXITSTATUS(status));
}

/* All that ran agree within the tolerance that each has against the truth. */
static void agree(void) {
    int first = -1, k, i, others = 0;
    for (k = 0; k < ISAS; k++) {
        if (!got_by[k].ran) continue;
        if (first < 0) { first = k; continue; }
        others++;
        CHECK_MSG(got_by[k].n == got_by[first].n, "%s has %d results, %s %d", isa_name[k], got_by[k].n, isa_name[first], got_by[first].n);
        for (i = 0; i < got_by[k].n && i < got_by[first].n && check_failed < 10; i++)
            CHECK_MSG(near(got_by[k].value[i], got_by[first].value[i], got_by[first].tolerance[i]), "result %d: %s has %.9g, %s %.9g (tolerance %g)", i, isa_name[k], (double)got_by[k].value[i],
                      isa_name[first], (double)got_by[first].value[i], (double)got_by[first].tolerance[i]);
    }
    if (!others) SKIP("only one instruction set ran");
}

/* ---- matrix products ------------------------------------------------------------------------------------- */

static const struct { int m, n, k; } shape[] = {
    { 1, 1, 1 }, { 1, 1, 0 }, { 3, 5, 0 }, { 33, 65, 0 }, { 1, 7, 0 }, { 0, 5, 3 }, { 5, 0, 3 }, { 1, 2, 3 }, { 2, 1, 3 }, { 2, 3, 1 }, { 3, 2, 5 }, { 5, 6, 7 }, { 6, 7, 8 }, { 7, 8, 9 }, { 8, 9, 10 }, { 9, 10, 16 }, { 10, 16, 17 }, { 16, 17, 31 }, { 17, 31, 32 }, { 31, 32, 33 },
    { 32, 33, 64 }, { 4, 8, 4 }, { 8, 32, 8 }, { 6, 16, 6 }, { 8, 16, 5 }, { 4, 31, 6 }, { 12, 48, 3 }, { 13, 49, 3 }, { 1, 64, 65 }, { 1, 65, 127 }, { 1, 300, 33 }, { 1, 10, 2100 }, { 64, 1, 33 }, { 65, 2, 128 }, { 127, 3, 64 }, { 300, 1, 7 }, { 2100, 1, 3 }, { 1, 2100, 3 },
    { 5, 300, 9 }, { 9, 257, 10 }, { 7, 128, 17 }, { 65, 33, 16 }, { 64, 64, 64 }, { 65, 65, 65 }, { 33, 127, 31 }, { 128, 17, 33 }, { 257, 5, 17 }, { 17, 5, 257 }, { 5, 17, 300 }, { 33, 9, 256 }, { 9, 33, 513 }, { 3, 10, 2100 }, { 10, 3, 2100 }, { 33, 33, 300 }, { 193, 33, 9 },
    { 200, 17, 5 }, { 300, 65, 3 }, { 3, 2100, 5 }, { 66, 2100, 2 }, { 2100, 7, 2 }, { 2100, 33, 2 }, { 100, 130, 40 }, { 70, 129, 257 }, { 200, 150, 10 } };

/* The same sums in double, and the sums of magnitudes, made once by the parent. */
static float *shape_a[COUNT(shape)][2], *shape_b[COUNT(shape)][2];
static double *shape_want[COUNT(shape)][2], *shape_size[COUNT(shape)][2];

static float operand(int real) {  /* whole numbers make exact products: then every bit must be right */
    double u = uniform();
    return real ? (float)u : (float)floor(u * 9);
}

static void prepare_products(void) {
    int s, real;
    ptrdiff_t i, j, p;
    for (s = 0; s < COUNT(shape); s++)
        for (real = 0; real < 2; real++) {
            ptrdiff_t m = shape[s].m, n = shape[s].n, k = shape[s].k;
            float *a = (float *)malloc((size_t)(m * k + 1) * 4), *b = (float *)malloc((size_t)(k * n + 1) * 4);
            double *want = (double *)calloc((size_t)(m * n + 1), 8), *size = (double *)calloc((size_t)(m * n + 1), 8);
            if (!a || !b || !want || !size) { printf("out of memory\n"); exit(1); }
            for (i = 0; i < m * k; i++) a[i] = operand(real);
            for (i = 0; i < k * n; i++) b[i] = operand(real);
            for (i = 0; i < m; i++)
                for (p = 0; p < k; p++)
                    for (j = 0; j < n; j++) { double v = (double)a[i * k + p] * (double)b[p * n + j]; want[i * n + j] += v; size[i * n + j] += fabs(v); }
            shape_a[s][real] = a; shape_b[s][real] = b; shape_want[s][real] = want; shape_size[s][real] = size;
        }
}

/* lines [rows][columns], or transposed, each line (or column) with gap floats behind it but for the last */
static float *place_matrix(int area, const float *from, ptrdiff_t rows, ptrdiff_t columns, int transposed, ptrdiff_t gap, ptrdiff_t *step, ptrdiff_t *inner) {
    ptrdiff_t lines = transposed ? columns : rows, length = transposed ? rows : columns, line = length + gap, i, j;
    float *p = guarded(area, lines && length ? (lines - 1) * line + length : 0);
    for (i = 0; i < lines; i++) {
        for (j = 0; j < length; j++) p[i * line + j] = transposed ? from[j * columns + i] : from[i * columns + j];
        for (j = 0; length && i + 1 < lines && j < gap; j++) p[i * line + length + j] = (float)NAN;  /* must not enter */
    }
    *step = transposed ? 1 : line;
    *inner = transposed ? line : 1;
    return p;
}

/* One call: the products, bias and relu in the same pass wherever C is made of tiles, no other byte of C, and no more
 * scratch than dt__gemm_scratch says. The bound holds each of
 * k roundings of half a unit in partial sums of at most sum |a b|; roundings that do not all point one way make it
 * sqrt(k), with a factor 4 for luck. */
static void product(int s, int real, int ta, int tb, int add, int relu, int biased, ptrdiff_t gap_a, ptrdiff_t gap_b, ptrdiff_t gap_c, int noted) {
    ptrdiff_t m = shape[s].m, n = shape[s].n, k = shape[s].k, ai, ak, bk, bj, ci = n + gap_c, i, j;
    ptrdiff_t c_floats = m && n ? (m - 1) * ci + n : 0, scratch_floats = dt__gemm_scratch(m, n, k);
    float *a = place_matrix(0, shape_a[s][real], m, k, ta, gap_a, &ai, &ak);
    float *b = place_matrix(1, shape_b[s][real], k, n, tb, gap_b, &bk, &bj);
    float *c = place(2, NULL, c_floats), *scratch = guarded(3, scratch_floats), *bias = guarded(4, n);
    int left;
    const double *want = shape_want[s][real], *size = shape_size[s][real];
    for (i = 0; i < scratch_floats; i++) scratch[i] = (float)NAN;
    if (add) for (i = 0; i < m; i++) for (j = 0; j < n; j++) c[i * ci + j] = (float)((i * 3 + j) % 7 - 3);
    for (j = 0; j < n; j++) bias[j] = (float)(j % 5 - 2);
    left = dt__gemm(m, n, k, a, ai, ak, b, bk, bj, c, ci, add * DT__ADDS | relu * DT__RECTIFIES, biased ? bias : NULL, scratch);
#ifndef DTRAIN_BLAS
    CHECK_MSG(left == 0 || m == 1 || (n > 1 && ta), "[%ld %ld %ld]: bias and relu are left to the caller", (long)m, (long)n, (long)k);
#endif
    if (relu || biased) noted = 0;  /* which products leave them depends on the width of panels */
    if (left) biased = relu = 0;
    for (i = 0; i < m; i++) {
        for (j = 0; j < n; j++) {
            double start = add ? (double)((i * 3 + j) % 7 - 3) : 0, e = want[i * n + j] + start + (biased ? (double)bias[j] : 0);
            double bound = real ? (4 + 4 * sqrt((double)k)) * 6e-8 * (size[i * n + j] + fabs(start) + 2 * biased) : 0;
            if (relu && e < 0) e = 0;
            if (noted && (i * n + j) % 5 == 0) note(c[i * ci + j], bound);
            if (!near(c[i * ci + j], e, bound) && check_failed++ < 10)
                printf("  [%ld %ld %ld] %s numbers, A%s B%s, add %d, relu %d, bias %d, gaps %ld %ld %ld: C(%ld, %ld) = %.9g, expected %.9g (bound %.3g)\n", (long)m, (long)n, (long)k, real ? "real" : "whole", ta ? " transposed" : "",
                       tb ? " transposed" : "", add, relu, biased, (long)gap_a, (long)gap_b, (long)gap_c, (long)i, (long)j, (double)c[i * ci + j], e, bound);
        }
        for (j = n; n && i + 1 < m && j < ci; j++) CHECK_MSG(c[i * ci + j] == SENTINEL, "[%d %d %d]: writes between the rows of C", (int)m, (int)n, (int)k);
    }
    if (k == 0 && !add && !biased) for (i = 0; i < c_floats; i++) if (i % ci < n && c[i] != 0) { CHECK(!"an empty sum is 0"); break; }
}

static void test_products(void) {
    int s, way;
    for (s = 0; s < COUNT(shape); s++) {
        double work = (double)shape[s].m * shape[s].n * shape[s].k;
        for (way = 0; way < 16; way++) {  /* both transpositions, add or not, gaps or not */
            int gap = way >> 3 & 1, add = way >> 2 & 1, ta = way >> 1 & 1, tb = way & 1;
            if (work > 1e5 && gap != (ta ^ add)) continue;
            if (work > 1e6 && add != (ta ^ tb)) continue;
            at_begin = (way + s) % 5 == 0;
            product(s, 0, ta, tb, add, (way ^ s) & 1, (way >> 1 ^ s) & 1, gap * 3, gap * 5, gap * 2, 0);
            if (work <= 1e5) product(s, 0, ta, tb, add, ~(way ^ s) & 1, (way ^ s) & 1, gap, 0, gap, 0);
            if (work <= 1e5 ? way % 3 == 0 : add != (ta ^ tb)) product(s, 1, ta, tb, add, (way >> 2 ^ s) & 1, (way ^ s) & 1, gap, gap, gap * 7, (s + way) % 4 == 0);
        }
    }
}

/* NaN and infinity reach what they touch and nothing else. */
static void test_products_not_finite(void) {
    static const int sizes[] = { 1, 3, 5, 9, 17, 33 };
    int s, i, j, ta, tb;
    at_begin = 0;
    for (s = 0; s < COUNT(sizes); s++)
        for (ta = 0; ta < 2; ta++)
            for (tb = 0; tb < 2; tb++) {
                ptrdiff_t n = sizes[s];
                float *a = guarded(0, n * n), *b = guarded(1, n * n), *c = place(2, NULL, n * n), *scratch = guarded(3, dt__gemm_scratch(n, n, n));
                for (i = 0; i < n * n; i++) { a[i] = 1; b[i] = 1; }
                a[n * n - 1] = (float)NAN;  /* the last row of A, whichever way it lies */
                b[0] = (float)INFINITY;     /* the first column of B */
                dt__gemm(n, n, n, a, ta ? 1 : n, ta ? n : 1, b, tb ? 1 : n, tb ? n : 1, c, n, DT__RECTIFIES, NULL, scratch);
                for (i = 0; i < n; i++)
                    for (j = 0; j < n; j++) NEAR(c[i * n + j], i == n - 1 ? NAN : j == 0 ? INFINITY : (double)n, 0, "size %d, (%d, %d)", (int)n, i, j);
            }
}

/* The loops under the products: tiles cover all rows, the last alone may be partial, and few rows are in vain. */
static void test_cuts(void) {
    const dt__kernels *k = dt__cpu();
    ptrdiff_t m, i, columns = k->columns;
    for (m = 0; m < 500; m++) {
        dt__cut rows = dt__cut_rows(m), panels = dt__cut_columns(m);
        ptrdiff_t covered = 0, last = 0;
        for (i = 0; i < 3; i++) {
            CHECK_MSG(rows.n[i] >= 0 && (rows.size[i] == k->tile[i].rows) && (rows.n[i] == 0 || rows.size[i] > 0), "%d rows: %d tiles", (int)m, (int)rows.n[i]);
            covered += rows.n[i] * rows.size[i];
            if (rows.n[i]) last = rows.size[i];
        }
        CHECK_MSG(covered >= m && (m == 0 || covered - last < m), "%d rows: tiles for %d", (int)m, (int)covered);
        /* as good as any number of the large and the small ones */
        for (i = 0; i * k->tile[0].rows < m + k->tile[0].rows; i++) {
            ptrdiff_t rest = m - i * k->tile[0].rows, small = k->tile[1].rows;
            if (rest > 0 && !small) continue;
            CHECK_MSG(covered <= i * k->tile[0].rows + (rest > 0 ? (rest + small - 1) / small * small : 0), "%d rows: tiles for %d", (int)m, (int)covered);
        }
        covered = panels.n[0] * columns + panels.n[1] * (columns / 2);
        CHECK_MSG(panels.n[1] <= 1 && panels.n[2] == 0 && covered >= m && covered - columns / 2 < m, "%d columns: panels for %d", (int)m, (int)covered);
    }
}

/* ---- vector loops: helpers --------------------------------------------------------------------------------- */

enum { MAX_N = 1100 };
static const int large_n[] = { 127, 128, 129, 1000, 1027 };

/* n = 0 .. 70, then the large ones; both ends of the operands */
#define EACH_N(n) for (index_n = 0; next_n(&n, index_n); index_n++)
static int index_n;
static int next_n(ptrdiff_t *n, int i) {
    at_begin = i % 4 == 3;
    if (i <= 70) *n = i;
    else if (i - 71 < COUNT(large_n)) *n = large_n[i - 71];
    else return 0;
    return 1;
}

/* operand numbers that are the same in every process */
static const float *numbers(int which, double scale) {
    static float x[8][4 * MAX_N];
    int i;
    random_state = (uint32_t)which * 7919u + 17u;
    for (i = 0; i < 4 * MAX_N; i++) x[which][i] = (float)(uniform() * scale);
    return x[which];
}

#define ULP 6e-8  /* half a unit in the last place of a float near 1, rounded up */

/* ---- activations --------------------------------------------------------------------------------------------- */

static const char *const kind_name[] = { "relu", "leaky relu", "gelu", "gelu tanh", "silu", "tanh", "sigmoid" };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double activation(int kind, double x, double slope) {
    switch (kind) {
    case DT__RELU: return x != x ? x : x > 0 ? x : 0;
    case DT__LEAKY_RELU: return x > 0 ? x : x != x ? x : x * slope;
    case DT__GELU: return x == -INFINITY ? 0 : 0.5 * x * erfc(-x * 0.70710678118654752);
    case DT__GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case DT__SILU: return x * sigmoid(x);
    case DT__TANH: return tanh(x);
    default: return sigmoid(x);
    }
}
static double derivative(int kind, double x, double slope) {
    double t, u;
    switch (kind) {
    case DT__RELU: return x > 0;
    case DT__LEAKY_RELU: return x > 0 ? 1 : slope;
    case DT__GELU: return 0.5 * erfc(-x * 0.70710678118654752) + x * exp(-0.5 * x * x) * 0.39894228040143268;
    case DT__GELU_TANH:
        u = 0.79788456080286536 * (x + 0.044715 * x * x * x);
        t = tanh(u);
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286536 * (1 + 3 * 0.044715 * x * x);
    case DT__SILU: t = sigmoid(x); return t * (1 + x * (1 - t));
    case DT__TANH: t = tanh(x); return 1 - t * t;
    default: t = sigmoid(x); return t * (1 - t);
    }
}

/* relative to max(|x|, 1): a gelu is x times a probability that is good to 1e-7 */
static const double kind_tolerance[] = { 0, ULP, 3e-7, 4e-7, 4e-7, 4e-7, 3e-7 };

static void test_activate(void) {
    static const double scale[] = { 1, 6, 100 };
    ptrdiff_t n, i;
    int kind;
    EACH_N(n) {
        double spread = scale[index_n % 3];
        const float *x = numbers(0, spread), *dy = numbers(1, 1), *before = numbers(2, 1);
        for (kind = 0; kind < COUNT(kind_name); kind++) {
            float *px = place(0, x, n), *y = place(1, NULL, n), *pdy = place(2, dy, n), *dx;
            int add;
            dt__cpu()->activate(kind, n, px, y, 0.125f);
            for (i = 0; i < n; i++) NEAR(y[i], activation(kind, x[i], 0.125), kind_tolerance[kind] * fmax(1, fabs(x[i])) + 1.2e-38, "%s(%g), n = %d", kind_name[kind], (double)x[i], (int)n);
            for (add = 0; add < 2; add++) {
                dx = place(3, add ? before : NULL, n);
                dt__cpu()->activate_back(kind, n, px, y, pdy, dx, add, 0.125f);
                for (i = 0; i < n; i++)
                    NEAR(dx[i], dy[i] * derivative(kind, x[i], 0.125) + (add ? before[i] : 0), 3 * kind_tolerance[kind] * fmax(1, fabs(x[i])) + 2 * ULP * (add ? fabs(before[i]) + fabs(dy[i]) : 0) + 1.2e-38,
                         "derivative of %s at %g, n = %d", kind_name[kind], (double)x[i], (int)n);
            }
            /* where it stands */
            dt__cpu()->activate(kind, n, px, px, 0.125f);
            CHECK_MSG(n == 0 || !memcmp(px, y, (size_t)n * 4), "%s in place, n = %d", kind_name[kind], (int)n);
        }
        if (check_failed >= 10) return;
    }
}

static void test_activate_special(void) {
    static const float special[] = { 0.0f, -0.0f, NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN, -FLT_MIN, 1e-40f, -1e-40f, 1e-8f, -1e-8f, 1e4f, -1e4f, 88, -88, 89, -89, 104, -104, 7.9f, -7.9f, 8, -8, 9, -9 };
    int kind, i;
    at_begin = 0;
    for (kind = 0; kind < COUNT(kind_name); kind++)
        for (i = 0; i < COUNT(special); i++) {
            double x = special[i], want = activation(kind, x, 0.125);
            float *px = place(0, &special[i], 1), *y = place(1, NULL, 1);
            if ((kind == DT__SILU || kind == DT__GELU) && x == -INFINITY) continue;  /* -inf * 0 */
            if (kind == DT__GELU_TANH && (fabs(x) > FLT_MAX || x == -FLT_MAX)) continue;
            dt__cpu()->activate(kind, 1, px, y, 0.125f);
            if (fabs(x) >= 1e4 && kind != DT__RELU && kind != DT__LEAKY_RELU && want == 0) NEAR(y[0], want, 1e-38 * fabs(x) * 2, "%s(%g)", kind_name[kind], x);
            else NEAR(y[0], want, kind_tolerance[kind] * fmin(fmax(1, fabs(x)), FLT_MAX) + 1.2e-38, "%s(%g)", kind_name[kind], x);
        }
    for (i = 0; i < 20; i++) {  /* NaN stays wherever it lies; relu makes -0 and negatives +0 */
        float x[20], *px, *y;
        int k;
        for (kind = 0; kind < COUNT(kind_name); kind++) {
            for (k = 0; k < 20; k++) x[k] = k == i ? (float)NAN : -1.0f;
            px = place(0, x, 20);
            y = place(1, NULL, 20);
            dt__cpu()->activate(kind, 20, px, y, 0.125f);
            for (k = 0; k < 20; k++) CHECK_MSG((y[k] != y[k]) == (k == i), "%s of NaN at %d, entry %d", kind_name[kind], i, k);
        }
    }
    {
        static const float x[9] = { -0.0f, -1, -FLT_MAX, -INFINITY, -1e-40f, 0, 1, -0.0f, -0.0f };
        float *px = place(0, x, 9), *y = place(1, NULL, 9), one = 1, *dy, *dx;
        dt__cpu()->activate(DT__RELU, 9, px, y, 0);
        for (i = 0; i < 9; i++) CHECK_MSG(y[i] == (i == 6 ? 1.0f : 0.0f) && dt__float_bits(y[i]) >> 31 == 0, "relu(%g) = %g", (double)x[i], (double)y[i]);
        dy = place(2, &one, 1);
        dx = place(3, NULL, 1);
        y = place(1, x, 1);
        dt__cpu()->activate_back(DT__RELU, 1, y, y, dy, dx, 0, 0);
        CHECK(dx[0] == 0);  /* no slope at the corner */
    }
}

/* ---- arithmetic of rows ---------------------------------------------------------------------------------------- */

static void test_copy(void) {
    static const float factor[] = { 0, 1, -1, 0.3f, 1e-3f };
    ptrdiff_t n, i;
    int p, add;
    EACH_N(n) {
        const float *x = numbers(0, 2), *y = numbers(1, 2);
        for (p = 0; p < COUNT(factor); p++)
            for (add = 0; add < 2; add++) {
                double a = factor[p];
                float *px = place(0, x, n), *py = place(1, y, n);
                for (i = 0; !add && i < n; i++) py[i] = (float)NAN;  /* not read then */
                dt__copy(n, factor[p], px, py, add);
                for (i = 0; i < n; i++) NEAR(py[i], a * x[i] + (add ? y[i] : 0), 2 * ULP * (fabs(a * x[i]) + add * fabs(y[i])), "%g x + %d y, n = %d, entry %d", a, add, (int)n, (int)i);
            }
    }
}

static void test_multiply(void) {
    ptrdiff_t n, i;
    int add;
    EACH_N(n)
        for (add = 0; add < 2; add++) {
            const float *a = numbers(0, 2), *b = numbers(1, 2), *y = numbers(2, 2);
            float *pa = place(0, a, n), *pb = place(1, b, n), *py = place(2, add ? y : NULL, n);
            dt__cpu()->multiply(n, pa, pb, py, add);
            for (i = 0; i < n; i++) NEAR(py[i], (double)a[i] * b[i] + (add ? y[i] : 0), 2 * ULP * (fabs((double)a[i] * b[i]) + (add ? fabs(y[i]) : 0)), "n = %d, entry %d", (int)n, (int)i);
        }
}

static void test_sums(void) {
    ptrdiff_t n, i;
    EACH_N(n) {
        const float *a = numbers(0, 1), *b = numbers(1, 1);
        float *pa = place(0, a, n), *pb = place(1, b, n);
        double dot = 0, sum = 0, dot_size = 0, sum_size = 0;
        for (i = 0; i < n; i++) { dot += (double)a[i] * b[i]; dot_size += fabs((double)a[i] * b[i]); sum += a[i]; sum_size += fabs(a[i]); }
        NEAR(dt__cpu()->dot(n, pa, pb), dot, (4 + 4 * sqrt((double)n)) * ULP * dot_size, "dot, n = %d", (int)n);
        NEAR(dt__row_sum(n, pa), sum, (4 + 4 * sqrt((double)n)) * ULP * sum_size, "sum, n = %d", (int)n);
        for (i = 0; i < n; i++) pa[i] = (float)(i % 13 + 1), pb[i] = (float)(i % 7 - 3);
        for (i = 0, dot = sum = 0; i < n; i++) { dot += (double)(i % 13 + 1) * (double)(i % 7 - 3); sum += (double)(i % 13 + 1); }
        NEAR(dt__cpu()->dot(n, pa, pb), dot, 0, "dot of whole numbers, n = %d", (int)n);
        NEAR(dt__row_sum(n, pa), sum, 0, "sum of whole numbers, n = %d", (int)n);
    }
}

static void test_from_bytes(void) {
    ptrdiff_t n, i;
    EACH_N(n) {
        unsigned char *x = at_begin ? area_begin[0] : area_end[0] - n;  /* bytes of every alignment */
        float *y = place(1, NULL, n);
        for (i = 0; i < n; i++) x[i] = (unsigned char)(i * 37 + 255);
        dt__cpu()->from_bytes(n, x, 1.0f / 255, y);
        for (i = 0; i < n; i++) NEAR(y[i], x[i] * (double)(1.0f / 255), ULP, "byte %d, n = %d", x[i], (int)n);
        dt__cpu()->from_bytes(n, x, 1, y);
        for (i = 0; i < n; i++) NEAR(y[i], x[i], 0, "byte %d, n = %d", x[i], (int)n);
    }
}

static void test_gemv(void) {
    static const int depth[] = { 0, 1, 2, 7, 8, 9, 16, 17, 33, 64, 300 };
    static float big[120000];
    ptrdiff_t n, i, p;
    int d, add, way;
    random_state = 5;
    for (i = 0; i < COUNT(big); i++) big[i] = (float)uniform();
    EACH_N(n)
        for (d = 0; d < COUNT(depth); d++) {
            ptrdiff_t k = depth[d];
            if (n * k > COUNT(big) || (index_n > 20 && (d + index_n) % 3)) continue;
            for (way = 0; way < 4; way++) {  /* rows of B contiguous, with a of any stride; or columns; add or not */
                int columns = way & 1;
                ptrdiff_t ak = columns ? 1 : 1 + way / 2 * 2, bk = columns ? 1 : n, bj = columns ? k : 1;
                float *a = guarded(0, k ? (k - 1) * ak + 1 : 0), *b = place(1, big, n * k), *c;
                const float *from = numbers(0, 1), *before = numbers(1, 1);
                for (p = 0; p < k; p++) a[p * ak] = from[p];
                add = way >> 1 & 1;
                c = place(2, add ? before : NULL, n);
                dt__cpu()->gemv(n, k, a, ak, b, bk, bj, c, add);
                for (i = 0; i < n; i++) {
                    double want = add ? before[i] : 0, size = fabs(want);
                    for (p = 0; p < k; p++) { double v = (double)from[p] * b[p * bk + i * bj]; want += v; size += fabs(v); }
                    if (n <= 40) NEAR(c[i], want, (4 + 4 * sqrt((double)k)) * ULP * size, "way %d, n = %d, k = %d, entry %d", way, (int)n, (int)k, (int)i);
                    else CHECK_MSG(near(c[i], want, (4 + 4 * sqrt((double)k)) * ULP * size), "way %d, n = %d, k = %d, entry %d", way, (int)n, (int)k, (int)i);
                }
            }
            if (check_failed >= 10) return;
        }
}

static void test_pack(void) {  /* the source ends where a page without rights begins, or begins behind one */
    static const int width[] = { 1, 2, 4, 6, 8, 16, 32 }, depth[] = { 0, 1, 3, 4, 5, 8, 17 };
    static float big[64 * 64];
    ptrdiff_t i, k, n;
    int w, d, way;
    for (i = 0; i < COUNT(big); i++) big[i] = (float)(i + 1);
    for (w = 0; w < COUNT(width); w++)
        for (d = 0; d < COUNT(depth); d++)
            for (n = 0; n <= width[w] + 1; n++)
                for (way = 0; way < 3; way++) {  /* lines in the rows of the memory, in its columns, or with steps both ways */
                    ptrdiff_t lines = n < width[w] ? n : width[w], step = way == 0 ? 1 : way == 1 ? depth[d] : 2 * depth[d] + 1, along = way == 0 ? n : way == 1 ? 1 : 2;
                    ptrdiff_t size = lines && depth[d] ? (lines - 1) * step + (depth[d] - 1) * along + 1 : 0;
                    float *p = place(0, big, size), *out = place(1, NULL, (ptrdiff_t)width[w] * depth[d]);
                    dt__cpu()->pack(p, step, along, n, width[w], depth[d], out);
                    for (k = 0; k < depth[d]; k++)
                        for (i = 0; i < lines; i++) {  /* behind them, any numbers */
                            float want = big[i * step + k * along];
                            CHECK_MSG(out[k * width[w] + i] == want, "way %d, %d of width %d, depth %d: [%d][%d] is %g, not %g", way, (int)n, width[w], depth[d], (int)k, (int)i, (double)out[k * width[w] + i], (double)want);
                        }
                    if (check_failed >= 10) return;
                }
}

/* ---- 16 bits a value --------------------------------------------------------------------------------------------- */

/* What a pattern of binary16 or bfloat16 is worth, from its definition. */
static double worth(dt_wire wire, uint32_t bits) {
    int half = wire == DT_F16, places = half ? 10 : 7, bias = half ? 15 : 127, e = (int)(bits & 0x7fff) >> places;
    double m = ldexp(bits & ((1u << places) - 1), -places), v = e ? ldexp(1 + m, e - bias) : ldexp(m, 1 - bias);
    if (e == 2 * bias + 1) v = m > 0 ? (double)NAN : (double)INFINITY;
    return bits & 0x8000 ? -v : v;
}

/* n patterns of n values, which travel as pairs. */
static void narrowed(dt_wire wire, ptrdiff_t n, const float *x, uint32_t *bits) {
    ptrdiff_t words = (n + 1) / 2, i;
    float *px = place(0, x, n), *word = place(1, NULL, words);
    dt__cpu()->narrow(wire, n, px, word);
    for (i = 0; i < n; i++) bits[i] = i < words ? dt__float_bits(word[i]) >> 16 : dt__float_bits(word[i - words]) & 0xffff;
}

/* Every number there is, every middle between two and its neighbours. */
static void test_narrow(void) {
    int kind, i;
    at_begin = 0;
    for (kind = 0; kind < 2; kind++) {
        dt_wire wire = kind ? DT_F16 : DT_BF16;
        uint32_t infinite = kind ? 0x7c00 : 0x7f80, b, bits[16], wrong = 0;
        for (b = 0; b < infinite; b++) {
            double v = worth(wire, b), next = b + 1 < infinite ? worth(wire, b + 1) : kind ? 65536.0 : (double)INFINITY;
            float middle = (float)((v + next) / 2), x[16];
            int tie = (double)middle == (v + next) / 2 && middle <= FLT_MAX;  /* not between bfloat16's smallest */
            for (i = 0; i < 16; i++) {
                float at = i % 4 == 0 || !tie ? (float)v : i % 4 == 1 ? middle : nextafterf(middle, i % 4 == 2 ? 0.0f : (float)INFINITY);
                x[i] = i & 4 ? -at : at;
            }
            narrowed(wire, 16, x, bits);
            for (i = 0; i < 16; i++) wrong += bits[i] != ((tie ? b + (i % 4 == 1 ? b % 2 : i % 4 == 3) : b) | (i & 4 ? 0x8000u : 0));
        }
        CHECK_MSG(!wrong, "%u values of kind %d are rounded wrongly", (unsigned)wrong, kind);
        for (i = 0; i < 17; i++) {  /* wherever they lie */
            const float special[] = { (float)INFINITY, -(float)INFINITY, FLT_MAX, -FLT_MAX, 1e-45f, -0.0f };
            const uint32_t want[] = { infinite, infinite | 0x8000, infinite, infinite | 0x8000, 0, 0x8000 };
            uint32_t got[17];
            float x[17] = { 0 };
            int k;
            for (k = 0; k < COUNT(special); k++) {
                x[i] = special[k];
                narrowed(wire, 17, x, got);
                CHECK_MSG(got[i] == want[k] && got[(i + 1) % 17] == 0, "kind %d: %g at %d becomes %x", kind, (double)special[k], i, (unsigned)got[i]);
            }
            for (k = 0; k < 4; k++) {
                x[i] = dt__float_from((uint32_t[]){ 0x7fc00000, 0xffc00000, 0x7fffffff, 0x7fc12345 }[k]);
                narrowed(wire, 17, x, got);
                CHECK_MSG(isnan(worth(wire, got[i])) && got[(i + 1) % 17] == 0, "kind %d: a NaN at %d becomes %x", kind, i, (unsigned)got[i]);
            }
        }
    }
}

/* All patterns; and arrays of every length. */
static void test_widen(void) {
    static float word[32768], x[65536];
    ptrdiff_t n, i;
    int kind;
    for (kind = 0; kind < 2; kind++) {
        dt_wire wire = kind ? DT_F16 : DT_BF16;
        uint32_t b, wrong = 0;
        for (b = 0; b < 32768; b++) {
            uint32_t both = b << 16 | b | 0x8000;
            memcpy(&word[b], &both, 4);
        }
        dt__cpu()->widen(wire, 65536, word, x);
        for (b = 0; b < 65536; b++) {
            double v = worth(wire, b);
            wrong += v != v ? x[b] == x[b] : (double)x[b] != v || !signbit(x[b]) != !signbit(v);
        }
        CHECK_MSG(!wrong, "%u patterns of kind %d are read wrongly", (unsigned)wrong, kind);
        EACH_N(n) {
            const float *from = numbers(0, 2);
            float *px = place(0, from, n), *packed = place(1, NULL, (n + 1) / 2), *back = place(2, NULL, n);
            dt__cpu()->narrow(wire, n, px, packed);
            dt__cpu()->widen(wire, n, packed, back);
            for (i = 0; i < n; i++) NEAR(back[i], from[i], fabs(from[i]) / (kind ? 2048 : 256) + 1e-7, "kind %d, n = %d, entry %d", kind, (int)n, (int)i);
        }
    }
}

/* ---- columns ------------------------------------------------------------------------------------------------------- */

static const int row_count[] = { 0, 1, 2, 3, 7 };
static double least(double v, int relu) { return relu && v < 0 ? 0 : v; }

static void test_columns(void) {
    ptrdiff_t n, i, r;
    int k, add, relu;
    EACH_N(n)
        for (k = 0; k < COUNT(row_count); k++) {
            ptrdiff_t rows = row_count[k];
            const float *x, *dy, *a = numbers(2, 1), *b = numbers(3, 1), *c = numbers(4, 1), *before;
            float *px, *pdy, *pa = place(2, a, n), *pb = place(3, b, n), *pc = place(4, c, n), *y, *s1, *s2;
            if (rows * n > 4 * MAX_N || (index_n > 30 && (k + index_n) % 4)) continue;
            x = numbers(0, 2);
            dy = numbers(1, 2);
            before = numbers(5, 1);
            px = place(0, x, rows * n);
            pdy = place(1, dy, rows * n);
            for (relu = 0; relu < 4; relu++) {
                y = place(5, before, rows * n);
                dt__cpu()->columns_affine(rows, n, y, NULL, NULL, NULL, relu / 2 ? pa : NULL, relu % 2, y, 0);
                for (i = 0; i < rows * n; i++)
                    NEAR(y[i], least((double)before[i] + (relu / 2 ? a[i % n] : 0), relu % 2), 2 * ULP * 2, "finish, %d rows of %d, entry %d", (int)rows, (int)n, (int)i);
                y = place(5, before, rows * n);
                dt__cpu()->linear(rows * n, 2, px, -3, relu / 2 ? pdy : NULL, 0.5f, relu % 2, y);
                for (i = 0; i < rows * n; i++)
                    NEAR(y[i], least(2.0 * x[i] + 0.5 - (relu / 2 ? 3.0 * dy[i] : 0), relu % 2), 4 * ULP * 10, "linear, %d values, entry %d", (int)(rows * n), (int)i);
            }
            for (relu = 0; relu < 2; relu++) {
                y = place(5, NULL, rows * n);
                dt__cpu()->columns_affine(rows, n, px, pa, NULL, NULL, pb, relu, y, 0);
                for (i = 0; i < rows * n; i++) NEAR(y[i], least((double)x[i] * a[i % n] + b[i % n], relu), 2 * ULP * 4, "columns_affine, %d rows of %d, entry %d", (int)rows, (int)n, (int)i);
            }
            for (add = 0; add < 2; add++) {
                y = place(5, add ? before : NULL, rows * n);
                dt__cpu()->columns_affine(rows, n, pdy, pa, px, pb, pc, 0, y, add);
                for (i = 0; i < rows * n; i++)
                    NEAR(y[i], (double)dy[i] * a[i % n] + (double)x[i] * b[i % n] + c[i % n] + (add ? before[i] : 0), 4 * ULP * 6, "columns_affine of two, %d rows of %d, entry %d", (int)rows, (int)n, (int)i);
                s1 = place(6, add ? before : NULL, n);
                dt__cpu()->column_moments(rows, n, NULL, NULL, px, s1, NULL, add);
                for (i = 0; i < n; i++) {
                    double want = add ? before[i] : 0;
                    for (r = 0; r < rows; r++) want += x[r * n + i];
                    NEAR(s1[i], want, 4 * ULP * 2 * (double)(rows + 1), "column sums, %d rows of %d, column %d", (int)rows, (int)n, (int)i);
                }
                s1 = place(6, add ? before : NULL, n);
                s2 = place(7, add ? before : NULL, n);
                dt__cpu()->column_moments(rows, n, px, pa, add ? pdy : NULL, s1, s2, add);
                for (i = 0; i < n; i++) {
                    double m1 = add ? before[i] : 0, m2 = m1;
                    for (r = 0; r < rows; r++) { double v = (double)x[r * n + i] - a[i], g = add ? dy[r * n + i] : v; m1 += g; m2 += g * v; }
                    NEAR(s1[i], m1, 4 * ULP * 3 * (double)(rows + 1), "column_moments, %d rows of %d, column %d", (int)rows, (int)n, (int)i);
                    NEAR(s2[i], m2, 4 * ULP * 9 * (double)(rows + 1), "column_moments, %d rows of %d, column %d", (int)rows, (int)n, (int)i);
                }
            }
            if (check_failed >= 10) return;
        }
}

/* Many rows: sums by blocks stay near the truth where one float would drift away. */
static void test_columns_of_many_rows(void) {
    static const int rows[] = { 255, 256, 257, 511, 513, 20000 };
    static const int columns[] = { 1, 3, 4, 8, 9, 17 };
    int k, c;
    ptrdiff_t i;
    at_begin = 0;
    for (k = 0; k < COUNT(rows); k++)
        for (c = 0; c < COUNT(columns); c++) {
            ptrdiff_t n = columns[c], m = rows[k];
            float *x = guarded(0, m * n), *shift = guarded(1, n), *s1 = place(2, NULL, n), *s2 = place(3, NULL, n);
            double want[32] = { 0 }, first[32] = { 0 }, second[32] = { 0 };
            random_state = 99;
            for (i = 0; i < n; i++) shift[i] = 1;
            for (i = 0; i < m * n; i++) {
                x[i] = (float)(1 + uniform());
                want[i % n] += x[i];
                first[i % n] += x[i] - 1.0;
                second[i % n] += (x[i] - 1.0) * (x[i] - 1.0);
            }
            dt__cpu()->column_moments(m, n, NULL, NULL, x, s1, NULL, 0);
            for (i = 0; i < n; i++) NEAR(s1[i], want[i], 2e-6 * want[i], "column sums, %d rows of %d", (int)m, (int)n);
            dt__cpu()->column_moments(m, n, x, shift, NULL, s1, s2, 0);
            for (i = 0; i < n; i++) {
                NEAR(s1[i], first[i], 2e-6 * (double)m, "column_moments, %d rows of %d", (int)m, (int)n);
                NEAR(s2[i], second[i], 2e-6 * (double)m, "column_moments, %d rows of %d", (int)m, (int)n);
            }
        }
}

/* ---- max pools ------------------------------------------------------------------------------------------------------- */

static const struct { int n_in, c, rows, size, stride, pad; } pool_case[] = {
    { 1, 1, 1, 1, 1, 0 }, { 4, 1, 2, 2, 2, 0 }, { 4, 3, 2, 2, 2, 0 }, { 5, 4, 2, 2, 2, 0 }, { 7, 7, 3, 3, 1, 1 }, { 8, 8, 3, 3, 2, 1 }, { 9, 9, 2, 3, 2, 1 }, { 6, 16, 1, 2, 1, 0 }, { 6, 17, 2, 2, 2, 0 }, { 3, 33, 3, 3, 3, 0 }, { 3, 65, 3, 3, 1, 1 }, { 13, 5, 2, 5, 1, 2 } };

static void test_maximum(void) {
    int k, special, end, fresh, relu;
    for (k = 0; k < COUNT(pool_case) * 2; k++)
        for (special = 0; special < 4; special++) {  /* random, whole numbers with ties, NaN here and there, all -inf */
            const int p = k / 2;
            ptrdiff_t n_in = pool_case[p].n_in, c = pool_case[p].c, rows = pool_case[p].rows, size = pool_case[p].size, stride = pool_case[p].stride, pad = pool_case[p].pad;
            ptrdiff_t n_out = (n_in + 2 * pad - size) / stride + 1, i, o, ch, ky, kx, count = rows * n_in * c;
            dt__pool_row w = { n_out, n_in, c, rows, size, stride, pad, 0 };
            float *x, *y, *dy, *dx, *which;
            double want[4 * MAX_N];
            end = k % 2;
            at_begin = end;
            x = guarded(0, count);
            dy = guarded(2, n_out * c);
            dx = guarded(3, count);
            random_state = (uint32_t)(p * 4 + special);
            fresh = special % 2 && stride >= size;  /* nothing is read there, as no two windows share a place */
            for (i = 0; i < count; i++) {
                double u = uniform();
                x[i] = special == 3 ? (float)-INFINITY : special == 0 ? (float)u : (float)floor(u * 2);
                if (special == 2 && u > 0.8) x[i] = (float)NAN;
                dx[i] = fresh ? (float)NAN : (float)(i % 3);
                want[i] = fresh ? 0 : (double)(i % 3);
            }
            for (i = 0; i < n_out * c; i++) dy[i] = (float)(i % 11 + 1);
            for (relu = 1; relu >= 0; relu--) {
                w.relu = relu;
                y = place(1, NULL, n_out * c);
                which = place(4, NULL, n_out * c);
                dt__cpu()->maximum(&w, x, y, special == 0 && relu ? NULL : (int32_t *)(void *)which);
                for (o = 0; o < n_out; o++)
                    for (ch = 0; ch < c; ch++) {
                        ptrdiff_t best = -1, at;
                        int nan = 0;
                        for (ky = 0; ky < rows; ky++)
                            for (kx = o * stride - pad; kx < o * stride - pad + size; kx++) {
                                at = (ky * n_in + kx) * c + ch;
                                if (kx < 0 || kx >= n_in) continue;
                                if (x[at] != x[at]) { nan = 1; best = at; }
                                else if (best < 0 || (!nan && x[at] > x[best])) best = at;
                            }
                        NEAR(y[o * c + ch], nan ? NAN : least(x[best], relu), 0, "case %d.%d, window %d, channel %d", p, special, (int)o, (int)ch);
                        if (!relu) want[best] += dy[o * c + ch];
                    }
            }
            dt__cpu()->maximum_back(&w, (const int32_t *)(const void *)which, dy, dx, !fresh);
            for (i = 0; i < count; i++) {
                if (fresh && i / c % n_in >= n_out * stride) continue;  /* beyond the last window */
                NEAR(dx[i], want[i], 0, "gradient, case %d.%d, entry %d", p, special, (int)i);
            }
        }
}

/* ---- rows of a layer ---------------------------------------------------------------------------------------------------- */

static void test_softmax(void) {
    static const double scale[] = { 1, 10, 60, 1e-3 };
    static const double offset[] = { 0, 1000, -1e4, 3e38 };
    ptrdiff_t n, i;
    EACH_N(n) {
        double spread = scale[index_n % 4], shift = offset[index_n / 4 % 3], top = -DBL_MAX, sum = 0, total = 0, log_sum;
        float largest;
        const float *from = numbers(0, spread);
        float *x, *y;
        if (n == 0) continue;
        x = guarded(0, n);
        y = place(1, NULL, n);
        for (i = 0; i < n; i++) x[i] = from[i] + (float)shift;
        for (i = 0; i < n; i++) if (x[i] > top) top = x[i];
        for (i = 0; i < n; i++) sum += exp(x[i] - top);
        log_sum = dt__cpu()->softmax(n, x, y, &largest);
        CHECK((double)largest == top);
        NEAR(log_sum, log(sum), 4e-7 + 2 * ULP * fabs(log(sum)), "log of the sum, n = %d", (int)n);
        for (i = 0; i < n; i++) {
            double want = exp(x[i] - top) / sum;
            NEAR(y[i], want, (1e-6 + 2 * ULP * fabs(x[i] - top)) * want + 1.3e-38, "softmax, n = %d, entry %d", (int)n, (int)i);
            total += y[i];
        }
        CHECK_MSG(fabs(total - 1) < 1e-6, "the row of %d sums to %.9g", (int)n, total);
        {
            float *z = place(2, x, n);
            CHECK(dt__cpu()->softmax(n, z, z, &largest) == (float)log_sum && !memcmp(z, y, (size_t)n * 4));
        }
    }
    {  /* extremes: a huge gap, entries masked by -infinity, and NaN that is seen */
        static const float huge_gap[4] = { 1e30f, -1e30f, 0, 1e30f }, masked[3] = { 1, -INFINITY, 1 }, with_nan[3] = { 1, NAN, 2 };
        float *y = place(1, NULL, 4), *x = place(0, huge_gap, 4);
        float largest;
        at_begin = 0;
        dt__cpu()->softmax(4, x, y, &largest);
        NEAR(y[0], 0.5, 1e-6, "huge gap"); NEAR(y[1], 0, 1e-37, "huge gap"); NEAR(y[3], 0.5, 1e-6, "huge gap");
        x = place(0, masked, 3);
        dt__cpu()->softmax(3, x, y, &largest);
        NEAR(y[0], 0.5, 1e-6, "masked"); NEAR(y[1], 0, 1e-37, "masked"); NEAR(y[2], 0.5, 1e-6, "masked");
        x = place(0, with_nan, 3);
        CHECK(dt__cpu()->softmax(3, x, y, &largest) != 0 && y[1] != y[1]);
    }
}

static void test_layernorm(void) {
    ptrdiff_t n, i;
    int with;
    EACH_N(n)
        for (with = 0; with < 16; with++) {  /* bias, add, and which gradients are wanted */
            const float *x = numbers(0, 2), *w = numbers(1, 1), *b = numbers(2, 1), *dy = numbers(3, 1), *dx0 = numbers(4, 1), *dw0 = numbers(5, 1), *db0 = numbers(6, 1);
            double mean = 0, variance = 0, inv, m1 = 0, m2 = 0, tolerance = 3e-6;
            float *px, *pw, *pb, *py, *pdy, *pdx, *pdw, *pdb, stat[2];
            int add = with & 1, has_bias = with >> 1 & 1, has_dx = with >> 2 & 1, has_dw = with >> 3 & 1;
            if (n == 0 || (index_n > 20 && (with * 7 + index_n) % 5)) continue;
            px = place(0, x, n); pw = place(1, w, n); pb = place(2, b, n); py = place(3, NULL, n); pdy = place(4, dy, n);
            pdx = place(5, add ? dx0 : NULL, n); pdw = place(6, dw0, n); pdb = place(7, db0, n);
            for (i = 0; i < n; i++) mean += x[i];
            mean /= (double)n;
            for (i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
            inv = 1 / sqrt(variance / (double)n + (double)1e-5f);
            dt__cpu()->layernorm(n, px, pw, has_bias ? pb : NULL, 1e-5f, py, stat);
            if (n == 1) tolerance = 2e-4;  /* x - mean is all rounding, times 316 */
            else tolerance *= fmax(1, inv);
            NEAR(stat[0], mean, 1e-6, "mean, n = %d", (int)n);
            NEAR(stat[1], inv, 4e-6 * inv * fmax(1, inv), "inverse deviation, n = %d", (int)n);
            for (i = 0; i < n; i++) NEAR(py[i], (x[i] - mean) * inv * w[i] + (has_bias ? b[i] : 0), tolerance, "layernorm, n = %d, entry %d", (int)n, (int)i);
            dt__cpu()->layernorm_back(n, px, pw, stat, pdy, has_dx ? pdx : NULL, add, has_dw ? pdw : NULL, has_bias ? pdb : NULL);
            for (i = 0; i < n; i++) { m1 += (double)dy[i] * w[i]; m2 += (double)dy[i] * w[i] * (x[i] - mean) * inv; }
            m1 /= (double)n; m2 /= (double)n;
            for (i = 0; i < n; i++) {
                double hat = (x[i] - mean) * inv;
                NEAR(pdw[i], dw0[i] + (has_dw ? dy[i] * hat : 0), tolerance, "dweight, n = %d, entry %d", (int)n, (int)i);
                NEAR(pdb[i], db0[i] + (has_bias ? (double)dy[i] : 0), 2e-7, "dbias, n = %d, entry %d", (int)n, (int)i);
                if (has_dx) NEAR(pdx[i], (add ? dx0[i] : 0) + inv * (dy[i] * (double)w[i] - m1 - hat * m2), tolerance * fmax(1, inv), "dx, n = %d, entry %d", (int)n, (int)i);
                else CHECK(pdx[i] == (add ? dx0[i] : SENTINEL));
            }
            if (check_failed >= 10) return;
        }
}

/* ---- dropout --------------------------------------------------------------------------------------------------------------- */

static void test_dropout(void) {
    enum { N = 20000 };
    static const double rate[] = { 0, 0.1, 0.5, 0.9 };
    static float ones[N], kept[N];
    ptrdiff_t n, i;
    int k;
    for (i = 0; i < N; i++) ones[i] = 1;
    at_begin = 0;
    for (k = 0; k < COUNT(rate); k++) {
        uint32_t threshold = (uint32_t)(rate[k] * 4294967296.0);
        uint64_t key;
        double pairs = 0, differ = 0;
        for (key = 0; key < 4; key++) {  /* so many are kept, each with the scale exactly */
            float *x = place(0, ones, N), *y = place(1, NULL, N);
            double count = 0;
            dt__cpu()->dropout(N, dt__mix(key), threshold, 1.25f, x, y, 0);
            for (i = 0; i < N; i++) {
                if (y[i] != 0 && y[i] != 1.25f) { CHECK_MSG(0, "1 becomes %g", (double)y[i]); break; }
                count += y[i] != 0;
                if (i) pairs += y[i] != 0 && y[i - 1] != 0;
                if (key) differ += (y[i] != 0) != (kept[i] != 0);
                if (i < 3000) note(y[i], 0);
            }
            memcpy(kept, y, sizeof kept);
            CHECK_MSG(fabs(count / N - (1 - rate[k])) <= 4.5 * sqrt(rate[k] * (1 - rate[k]) / N), "rate %g: %g kept", rate[k], count / N);
        }
        {  /* neighbours are independent, and so are keys */
            double both = (1 - rate[k]) * (1 - rate[k]), other = 2 * rate[k] * (1 - rate[k]);
            CHECK_MSG(fabs(pairs / (4.0 * N - 4) - both) < 0.01, "rate %g: %g of the neighbours are both kept", rate[k], pairs / (4.0 * N));
            CHECK_MSG(fabs(differ / (3.0 * N) - other) < 0.01, "rate %g: keys differ in %g", rate[k], differ / (3.0 * N));
        }
    }
    /* The mask is a function of key and index: not of n, of x, of where it lies, or of add. */
    {
        float *all = place(0, ones, N), *y = place(1, NULL, N);
        dt__cpu()->dropout(N, UINT64_C(0x123456789abcdef0), 0x60000000u, 2, all, y, 0);
        memcpy(kept, y, sizeof kept);
    }
    EACH_N(n) {
        const float *x = numbers(0, 3), *before = numbers(1, 1);
        float *px = place(0, x, n), *py = place(1, NULL, n);
        dt__cpu()->dropout(n, UINT64_C(0x123456789abcdef0), 0x60000000u, 2, px, py, 0);
        for (i = 0; i < n; i++) NEAR(py[i], kept[i] * (double)x[i], 0, "n = %d, entry %d", (int)n, (int)i);
        py = place(1, before, n);
        dt__cpu()->dropout(n, UINT64_C(0x123456789abcdef0), 0x60000000u, 2, px, py, 1);
        for (i = 0; i < n; i++) NEAR(py[i], kept[i] * (double)x[i] + before[i], 4 * ULP * 7, "added, n = %d, entry %d", (int)n, (int)i);
    }
    {  /* both halves of the key count; dropped NaN is gone */
        float *x = place(0, ones, 1000), *y;
        int low = 0, high = 0;
        y = place(1, NULL, 1000);
        dt__cpu()->dropout(1000, UINT64_C(0x123456789abcdef1), 0x60000000u, 2, x, y, 0);
        for (i = 0; i < 1000; i++) low += y[i] != kept[i];
        dt__cpu()->dropout(1000, UINT64_C(0x123456799abcdef0), 0x60000000u, 2, x, y, 0);
        for (i = 0; i < 1000; i++) high += y[i] != kept[i];
        CHECK_MSG(low > 100, "another low word changes %d of 1000", low);
        CHECK_MSG(high > 0, "another high word changes nothing");
        for (i = 0; i < 1000; i++) x[i] = (float)NAN;
        dt__cpu()->dropout(1000, UINT64_C(0x123456789abcdef0), 0x60000000u, 2, x, y, 0);
        for (i = 0; i < 1000; i++) CHECK(kept[i] != 0 ? y[i] != y[i] : y[i] == 0);
    }
}

/* ---- update rules ----------------------------------------------------------------------------------------------------------- */

static void test_sgd(void) {
    ptrdiff_t n, i;
    int with, step;
    EACH_N(n)
        for (with = 0; with < 4; with++) {  /* none, momentum, Nesterov, decay only */
            const float *w0 = numbers(0, 1), *g = numbers(1, 1);
            float *w = place(0, w0, n), *pg = place(1, g, n), *v = with == 1 || with == 2 ? place(2, NULL, n) : NULL;
            double dw[MAX_N], dv[MAX_N] = { 0 };
            double scale = 0.5, rate = 0.1f, momentum = v ? (double)0.9f : 0, decay = with == 3 ? (double)0.01f : 0;
            for (i = 0; i < n; i++) { dw[i] = w0[i]; if (v) v[i] = 0; }
            for (step = 0; step < 3; step++) {
                dt__cpu()->sgd(n, w, pg, v, NULL, (float)scale, (float)rate, (float)momentum, (float)decay, with == 2, 0, 0);
                for (i = 0; i < n; i++) {
                    double d = g[i] * scale + decay * dw[i];
                    dv[i] = momentum * dv[i] + d;
                    dw[i] -= rate * (!v ? d : with == 2 ? d + momentum * dv[i] : dv[i]);
                }
            }
            for (i = 0; i < n; i++) {
                NEAR(w[i], dw[i], 4e-7, "sgd %d, n = %d, entry %d", with, (int)n, (int)i);
                if (v) NEAR(v[i], dv[i], 4e-7, "momentum %d, n = %d, entry %d", with, (int)n, (int)i);
                CHECK(pg[i] == g[i]);
            }
            if (check_failed >= 10) return;
        }
}

static void test_adam(void) {
    ptrdiff_t n, i;
    int with, step;
    EACH_N(n)
        for (with = 0; with < 3; with++) {  /* none, decay within the gradient, decay of its own */
            const float *w0 = numbers(0, 1), *g = numbers(1, with == 1 ? 1e-4 : 1);
            float *w = place(0, w0, n), *pg = place(1, g, n), *m = place(2, NULL, n), *v = place(3, NULL, n);
            double dw[MAX_N], dm[MAX_N] = { 0 }, dv[MAX_N] = { 0 }, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8f, rate = 0.01, own = with == 2 ? 0.1 : 0;
            dt__adam_numbers a;
            a.scale = 0.5f; a.beta2 = 0.999f; a.rest1 = 0.1f; a.rest2 = 0.001f; a.epsilon = 1e-8f; a.decay = with == 1 ? 1e-3f : 0;
            a.shrink = (float)(1 - rate * own);
            for (i = 0; i < n; i++) { dw[i] = w0[i]; m[i] = v[i] = 0; }
            for (step = 1; step <= 4; step++) {
                a.rate = (float)(rate / (1 - pow(beta1, step)));
                a.root2 = (float)(1 / sqrt(1 - pow(beta2, step)));
                dt__cpu()->adam(n, w, pg, m, v, &a);
                for (i = 0; i < n; i++) {
                    double d = g[i] * 0.5 + a.decay * dw[i];
                    dm[i] = beta1 * dm[i] + (1 - beta1) * d;
                    dv[i] = beta2 * dv[i] + (1 - beta2) * d * d;
                    dw[i] = dw[i] * (double)a.shrink - rate * (dm[i] / (1 - pow(beta1, step))) / (sqrt(dv[i] / (1 - pow(beta2, step))) + epsilon);
                }
            }
            for (i = 0; i < n; i++) {
                NEAR(w[i], dw[i], 1e-6, "adam %d, n = %d, entry %d", with, (int)n, (int)i);
                NEAR(m[i], dm[i], 1e-6 * fabs(dm[i]) + 1e-9, "first moment %d, n = %d, entry %d", with, (int)n, (int)i);
                /* 1 - 0.999f has 16 bits of its own: exact, but beta2 * v rounds in v's last place */
                NEAR(v[i], dv[i], 1e-6 * fabs(dv[i]) + 1e-12, "second moment %d, n = %d, entry %d", with, (int)n, (int)i);
            }
            if (check_failed >= 10) return;
        }
    {  /* no gradient at all: nothing moves, and no 0 / 0 */
        static const float one[3] = { 1, -1, 0 }, zero[3] = { 0, 0, 0 };
        float *w, *g, *m, *v;
        dt__adam_numbers a = { 1, 0.01f, 0.999f, 0.1f, 0.001f, 1e-8f, 0, 1, 1 };
        at_begin = 0;
        w = place(0, one, 3); g = place(1, zero, 3); m = place(2, zero, 3); v = place(3, zero, 3);
        dt__cpu()->adam(3, w, g, m, v, &a);
        CHECK(!memcmp(w, one, sizeof one));
    }
}

/* Replicas and servers cut the variables at any place: a value's bits must not depend on where its slice begins. */
static void test_updates_by_parts(void) {
    enum { N = 103 };
    const dt__kernels *k = dt__cpu();
    dt__adam_numbers a = { 0.5f, 0.013f, 0.999f, 0.1f, 0.001f, 1e-8f, 1e-3f, 0.999f, 1.7f };
    float whole[3][N], part[3][N];
    ptrdiff_t cut, i;
    int kind;
    if (FLT_EVAL_METHOD != 0) return;  /* x87 rounds where the compiler spills a register */
    at_begin = 0;
    for (kind = 0; kind < 3; kind++)
        for (cut = 0; cut <= N; cut++) {
            const float *g = numbers(3, 1);
            for (i = 0; i < 3; i++) { memcpy(whole[i], numbers((int)i, 1), sizeof whole[i]); memcpy(part[i], whole[i], sizeof part[i]); }
            for (i = 0; i < N; i++) whole[2][i] = part[2][i] = fabsf(whole[2][i]);
            for (i = 0; i < 3; i++) {  /* all at once; up to the cut; from it on */
                float (*at)[N] = i ? part : whole;
                ptrdiff_t from = i == 2 ? cut : 0, n = (i == 1 ? cut : N) - from;
                if (kind == 0) k->adam(n, at[0] + from, g + from, at[1] + from, at[2] + from, &a);
                if (kind == 1) k->sgd(n, at[0] + from, g + from, at[1] + from, at[2] + from, 0.5f, 0.01f, 0.9f, 1e-3f, 0, 0.99f, 1e-8f);
                if (kind == 2) k->sgd(n, at[0] + from, g + from, at[1] + from, NULL, 0.5f, 0.01f, 0.9f, 1e-3f, 1, 0, 0);
            }
            CHECK_MSG(!memcmp(whole, part, sizeof whole), "update %d, cut at %d", kind, (int)cut);
        }
}

static void test_rmsprop(void) {
    ptrdiff_t n, i;
    int with, step;
    EACH_N(n)
        for (with = 0; with < 3; with++) {  /* none, momentum, decay */
            const float *w0 = numbers(0, 1), *g = numbers(1, 1);
            float *w = place(0, w0, n), *pg = place(1, g, n), *s = place(2, NULL, n), *v = with == 1 ? place(3, NULL, n) : NULL;
            double dw[MAX_N], ds[MAX_N] = { 0 }, dv[MAX_N] = { 0 }, alpha = 0.99f, epsilon = 1e-3f, momentum = v ? (double)0.9f : 0, decay = with == 2 ? (double)0.01f : 0, rate = 0.01f;
            for (i = 0; i < n; i++) { dw[i] = w0[i]; s[i] = 0; if (v) v[i] = 0; }
            for (step = 0; step < 3; step++) {
                dt__cpu()->sgd(n, w, pg, v, s, 0.5f, 0.01f, (float)momentum, (float)decay, 0, 0.99f, 1e-3f);
                for (i = 0; i < n; i++) {
                    double d = g[i] * 0.5 + decay * dw[i];
                    ds[i] = alpha * ds[i] + (1 - alpha) * d * d;
                    dv[i] = momentum * dv[i] + d / (sqrt(ds[i]) + epsilon);
                    dw[i] -= rate * dv[i];
                }
            }
            for (i = 0; i < n; i++) {
                NEAR(w[i], dw[i], 1e-6, "rmsprop %d, n = %d, entry %d", with, (int)n, (int)i);
                NEAR(s[i], ds[i], 1e-6 * fabs(ds[i]) + 1e-12, "mean square %d, n = %d, entry %d", with, (int)n, (int)i);
                if (v) NEAR(v[i], dv[i], 1e-5 * (1 + fabs(dv[i])), "momentum %d, n = %d, entry %d", with, (int)n, (int)i);
            }
            if (check_failed >= 10) return;
        }
}

/* Moments whose gradients stay 0 end at 0, not in numbers that are too small to be normal. */
static void test_fading_moments(void) {
    static const float small[3] = { 1.1e-38f, -1.1e-38f, 1e-45f };
    dt__adam_numbers numbers = { 1, 0.001f, 0.999f, 0.1f, 0.001f, 1e-8f, 0, 1, 1 };
    float zero[3] = { 0 }, *w, *g, *m, *v;
    int i;
    at_begin = 0;
    for (i = 0; i < 3; i++) {
        w = place(0, zero, 3);
        g = place(1, zero, 3);
        m = place(2, small, 3);
        v = place(3, small, 3);
        if (i == 0) dt__cpu()->adam(3, w, g, m, v, &numbers);
        else if (i == 1) dt__cpu()->sgd(3, w, g, m, NULL, 1, 0.1f, 0.9f, 0, 0, 0, 0);
        else dt__cpu()->sgd(3, w, g, v, m, 1, 0.1f, 0.9f, 0, 0, 0.9f, 1e-8f);
        CHECK_MSG(m[0] == 0 && m[1] == 0 && m[2] == 0, "rule %d: %g, %g, %g", i, (double)m[0], (double)m[1], (double)m[2]);
    }
}

/* The root that the update rules take, over the whole range: as good as the C library's to an ulp or so. Through rmsprop,
 * which takes it with alpha = 0: the step is g / (|g| + epsilon). */
static void test_root(void) {
    float *w, *g, *s, x, zero = 0;
    at_begin = 0;
    for (x = 2e-19f; x < 1e19f; x *= 1.37f) {
        w = place(0, &zero, 1);
        g = place(1, &x, 1);
        s = place(2, &zero, 1);
        dt__cpu()->sgd(1, w, g, NULL, s, 1, 1, 0, 0, 0, 0, 0);
        NEAR(w[0], -1, 4e-7, "sqrt of the square of %g", (double)x);
    }
    for (x = 1e22f; x < 1e38f; x *= 1e5f) {  /* the square is infinite, and its root, too: a step of 0 */
        float half = 0.5f, *v;
        dt__adam_numbers a = {1, 0.1f, 0.999f, 0.1f, 1e-3f, 1e-8f, 0, 1, 1};
        w = place(0, &half, 1);
        g = place(1, &x, 1);
        s = place(2, &zero, 1);
        dt__cpu()->sgd(1, w, g, NULL, s, 1, 1, 0, 0, 0, 0, 0);
        CHECK_MSG(w[0] == 0.5f, "RMSprop, %g: %g", (double)x, (double)w[0]);
        v = place(3, &zero, 1);
        s = place(2, &zero, 1);
        dt__cpu()->adam(1, w, g, s, v, &a);
        CHECK_MSG(w[0] == 0.5f, "Adam, %g: %g", (double)x, (double)w[0]);
    }
}

/* e^x over its whole range, seen through sigmoid and softmax of two. */
static void test_exp(void) {
    double x;
    at_begin = 0;
    for (x = 0; x < 120; x += 0.0371) {
        float pair[2], *p, *y, largest;
        double want = exp(-(double)(float)x), sum = 1 + want;
        pair[0] = 0;
        pair[1] = (float)-x;
        p = place(0, pair, 2);
        y = place(1, NULL, 2);
        dt__cpu()->softmax(2, p, y, &largest);
        NEAR(y[1], want / sum, 4e-7 * want / sum + 1.2e-38, "exp(%g)", -x);
        p = place(0, pair + 1, 1);
        y = place(1, NULL, 1);
        dt__cpu()->activate(DT__SIGMOID, 1, p, y, 0);
        NEAR(y[0], want / sum, 4e-7 * want / sum + 1.2e-38 + (x > 87 ? 1e-38 : 0), "sigmoid(%g)", -x);
    }
}

/* ---- Winograd's transforms ------------------------------------------------------------------------------------------------------ */

/* Values [n][n][c] of a square by themselves; what lies outside of the part that exists is never touched. */
static dt__square square_of(int n, int c) {
    dt__square s = { 0, 0, 0, 0, 0, 0 };
    s.row = (ptrdiff_t)n * c;
    s.column = c;
    s.bottom = s.right = n;
    return s;
}
static int exists(const dt__square *s, int i, int j) { return i >= s->top && i < s->bottom && j >= s->left && j < s->right; }

/* One tile there and back: a convolution, and the gradient of its weights, each against nine products a value. */
static void test_winograd(void) {
    static const int part[][8] = { { 0, 6, 0, 6, 0, 4, 0, 4 }, { 1, 6, 2, 6, 0, 4, 0, 3 }, { 0, 5, 0, 3, 0, 1, 0, 4 }, { 1, 2, 1, 2, 0, 3, 0, 1 } };
    int c, k, l, i, j, u, v, add;
    for (c = 16; c <= 48; c += 16)
        for (k = 0; k < COUNT(part); k++)
            for (add = 0; add < 2; add++) {
                dt__square in = square_of(6, c), out = square_of(4, c), places = square_of(6, c), w3 = square_of(3, c);
                float *x, *y, *w, *dy, *px, *pw, *py, before[16 * 48] = { 0 };
                at_begin = k % 2;
                random_state = (uint32_t)(c + k);
                in.top = part[k][0]; in.bottom = part[k][1]; in.left = part[k][2]; in.right = part[k][3];
                out.top = part[k][4]; out.bottom = part[k][5]; out.left = part[k][6]; out.right = part[k][7];
                x = guarded(0, 36 * c);
                y = guarded(1, 16 * c);
                w = guarded(2, 9 * c);
                dy = guarded(3, 16 * c);
                px = place(4, NULL, 36 * c);
                pw = place(5, NULL, 36 * c);
                py = place(6, NULL, 36 * c);
                for (i = 0; i < 36 * c; i++) x[i] = exists(&in, i / c / 6, i / c % 6) ? (float)uniform() : NAN;
                for (i = 0; i < 9 * c; i++) w[i] = (float)uniform();
                for (i = 0; i < 16 * c; i++) { dy[i] = exists(&out, i / c / 4, i / c % 4) ? (float)uniform() : NAN; before[i] = y[i] = (float)i; }
                dt__cpu()->winograd(DT__WINOGRAD_IMAGE, c, x, &in, px, &places, 0);
                dt__cpu()->winograd(DT__WINOGRAD_WEIGHTS, c, w, &w3, pw, &places, 0);
                for (i = 0; i < 36 * c; i++) py[i] = px[i] * pw[i];
                dt__cpu()->winograd(DT__WINOGRAD_OUTPUT, c, py, &places, y, &out, add);
                for (i = 0; i < 4; i++)
                    for (j = 0; j < 4; j++)
                        for (l = 0; l < c; l++) {
                            double want = add || !exists(&out, i, j) ? before[(i * 4 + j) * c + l] : 0;
                            for (u = 0; u < 3; u++)
                                for (v = 0; v < 3; v++)
                                    if (exists(&out, i, j) && exists(&in, i + u, j + v)) want += (double)x[((i + u) * 6 + j + v) * c + l] * w[(u * 3 + v) * c + l];
                            NEAR(y[(i * 4 + j) * c + l], want, exists(&out, i, j) ? 2e-5 + 1e-6 * fabs(want) : 0, "part %d, output %d,%d, channel %d of %d", k, i, j, l, c);
                        }
                dt__cpu()->winograd(DT__WINOGRAD_DY, c, dy, &out, pw, &places, 0);
                for (i = 0; i < 36 * c; i++) py[i] = px[i] * pw[i];
                for (i = 0; i < 9 * c; i++) w[i] = before[i];
                dt__cpu()->winograd(DT__WINOGRAD_DW, c, py, &places, w, &w3, add);
                for (u = 0; u < 3; u++)
                    for (v = 0; v < 3; v++)
                        for (l = 0; l < c; l++) {
                            double want = add ? before[(u * 3 + v) * c + l] : 0;
                            for (i = 0; i < 4; i++)
                                for (j = 0; j < 4; j++)
                                    if (exists(&out, i, j) && exists(&in, i + u, j + v)) want += (double)x[((i + u) * 6 + j + v) * c + l] * dy[(i * 4 + j) * c + l];
                            NEAR(w[(u * 3 + v) * c + l], want, 2e-5 + 1e-6 * fabs(want), "part %d, weight %d,%d, channel %d of %d", k, u, v, l, c);
                        }
            }
}

/* ---- all of them, for each ------------------------------------------------------------------------------------------------------ */

#define DT__TESTED(name) #name,
static const char *const loop_name[] = { DT__VECTOR_LOOPS(DT__TESTED) };

/* A loop that is new here must get a test: the list of those that have one. */
static void test_every_loop_has_a_test(void) {
    static const char tested[] = " activate activate_back multiply maximum maximum_back dot linear column_moments columns_affine softmax layernorm layernorm_back dropout sgd from_bytes pack gemv narrow widen ";
    int i;
    for (i = 0; i < COUNT(loop_name); i++) {
        char word[64];
        snprintf(word, sizeof word, " %s ", loop_name[i]);
        CHECK_MSG(strstr(tested, word) != NULL, "%s", loop_name[i]);
    }
}

static const struct { const char *name; void (*test)(void); } test_of[] = {
    { "products", test_products }, { "products_not_finite", test_products_not_finite }, { "cuts", test_cuts }, { "activate", test_activate }, { "activate_special", test_activate_special }, { "copy", test_copy }, { "multiply", test_multiply },
    { "sums", test_sums }, { "from_bytes", test_from_bytes }, { "pack", test_pack }, { "gemv", test_gemv }, { "columns", test_columns }, { "columns_of_many_rows", test_columns_of_many_rows }, { "maximum", test_maximum }, { "softmax", test_softmax },
    { "layernorm", test_layernorm }, { "dropout", test_dropout }, { "sgd", test_sgd }, { "adam", test_adam }, { "updates_by_parts", test_updates_by_parts },
    { "rmsprop", test_rmsprop }, { "root", test_root }, { "fading_moments", test_fading_moments }, { "exp", test_exp }, { "narrow", test_narrow }, { "widen", test_widen }, { "winograd", test_winograd } };

static void not_here(void) { SKIP("not an instruction set of this machine"); }
static void nothing(void) { }

int main(void) {
    int has[ISAS], t, any = 0;
    char name[64];
    got_by = (results *)mmap(NULL, sizeof(results) * ISAS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANON, -1, 0);
    if (got_by == (results *)MAP_FAILED || areas_begin()) { printf("no memory\n"); return 1; }
    prepare_products();
    for (isa = 0; isa < ISAS; isa++) {
        snprintf(name, sizeof name, "test_%s", isa_name[isa]);
        has[isa] = supported(isa_name[isa]);
        any |= has[isa];
        test_run(name, has[isa] ? nothing : not_here);
    }
    if (!any) { printf("DTRAIN_ISA is not heard\n"); return 1; }
    RUN(test_every_loop_has_a_test);
    for (t = 0; t < COUNT(test_of); t++) {
        body = test_of[t].test;
        for (isa = 0; isa < ISAS; isa++) {
            got_by[isa].ran = 0;
            snprintf(name, sizeof name, "test_%s_%s", test_of[t].name, isa_name[isa]);
            if (has[isa]) test_run(name, in_a_child);
        }
        snprintf(name, sizeof name, "test_%s_agree", test_of[t].name);
        test_run(name, agree);
    }
    return finish();
}
