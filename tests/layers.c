/* layers - every operation and option: values against plain loops in double precision, gradients
 * against differences of the loss along random directions.
 */
#define DTRAIN_IMPLEMENTATION
#define DT_STRIP_FLOATS 20000  /* several strips, and in them several blocks of Winograd's tiles, in small images too */
#define DT_WINOGRAD_FLOATS 1
#include "../dtrain.h"
#include "test.h"

/* ---- numbers that are the same everywhere ---------------------------------------------------- */

static uint32_t random_state;
static double uniform(void) {  /* -1 .. 1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / 8388608.0 - 1.0;
}

static void *need(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) { printf("no memory for the test\n"); exit(1); }
    return p;
}

enum {
    OFF_CORNER = 1,    /* no input closer to 0 than 0.1: the corner of relu */
    DISTINCT = 2,      /* no two inputs closer than 0.03: the corner of the maximum */
    TOKENS = 4,        /* the input is whole numbers 0..9 */
    PER_REPLICA = 8,   /* the result depends on how the rows are split */
    TWO_INPUTS = 16,   /* the net has a further input of 5 values */
    LOSSES = 32        /* the net has its own losses; else the test puts a random gradient on the output */
};

typedef struct {
    const char *name;
    dt_tensor *(*net)(dt_tensor *x, void *user);
    int input[DT_MAX_RANK - 1];
    unsigned flags;
    int n;              /* samples, 0 -> 5 */
    const void *user;   /* for net */
} op_case;

/* ---- a model with its batch ------------------------------------------------------------------- */

enum { MAX_BLOCKS = 24 };

typedef struct {       /* something that a gradient belongs to: the input or a parameter */
    const char *name;  /* NULL: the input */
    size_t n;
    float *value;
    double *gradient;
} block;

typedef struct {
    const op_case *c;
    dt_model *m;
    int n;
    size_t n_x, n_y;         /* values of the whole batch */
    float *x, *meta, *y;
    int *tokens;
    double *pull;            /* the gradient put on the output */
    block b[MAX_BLOCKS];
    char names[MAX_BLOCKS][DT_MAX_NAME + 16];
    int n_blocks, replicas;
    size_t output_size;      /* of one sample */
} problem;

static size_t product(const int *shape) {
    size_t n = 1;
    for (int i = 0; i < DT_MAX_RANK - 1 && shape[i]; i++) n *= (size_t)shape[i];
    return n;
}

static dt_tensor *measured_net(dt_tensor *x, void *user) {
    problem *p = (problem *)user;
    dt_tensor *t = p->c->net(x, (void *)(uintptr_t)p->c->user);
    p->output_size = 1;
    for (int i = 1; i < dt_rank(t); i++) p->output_size *= (size_t)dt_dim(t, i);
    return t;
}

static void fill_input(float *x, size_t n, unsigned flags) {
    for (size_t i = 0; i < n; i++) {
        double v = uniform();
        if (flags & OFF_CORNER) v = v < 0 ? v * 0.9 - 0.1 : v * 0.9 + 0.1;
        if (flags & DISTINCT) v = ((double)i - (double)n / 2) * 0.03;
        x[i] = (float)v;
    }
    if (flags & DISTINCT)
        for (size_t i = n; i > 1; i--) {
            size_t j = (size_t)((uniform() + 1) / 2 * (double)i);
            float v = x[i - 1];
            x[i - 1] = x[j];
            x[j] = v;
        }
}

static int model_open(problem *p) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = measured_net;
    o.user = p;
    memcpy(o.input, p->c->input, sizeof o.input);
    o.input_type = p->c->flags & TOKENS ? DT_INT32 : DT_FLOAT32;
    o.input_gradient = !(p->c->flags & TOKENS);
    o.optimizer = DT_SGD;
    o.learning_rate = 1;
    o.batch = p->n + (p->replicas > 1 ? 2 : 0);  /* several replicas also run a partial batch */
    o.replicas = p->replicas;
    o.seed = 7;
    p->m = dt_model_create(&o, &err);
    CHECK_MSG(p->m != NULL, "%s, %d replicas: %s", p->c->name, p->replicas, err.text);
    return p->m != NULL;
}

static int problem_open(problem *p, const op_case *c, int replicas) {
    dt_error err = DT_DEFAULTS;
    memset(p, 0, sizeof *p);
    p->c = c;
    p->n = c->n ? c->n : 5;
    p->replicas = replicas;
    if (!model_open(p)) return 0;

    random_state = 12345;
    p->n_x = (size_t)p->n * product(c->input);
    p->n_y = (size_t)p->n * p->output_size;
    p->x = (float *)need(p->n_x, sizeof(float));
    p->tokens = (int *)need(p->n_x, sizeof(int));
    p->meta = (float *)need((size_t)p->n * 5, sizeof(float));
    p->y = (float *)need(p->n_y, sizeof(float));
    p->pull = (double *)need(p->n_y, sizeof(double));
    fill_input(p->x, p->n_x, c->flags);
    for (size_t i = 0; i < p->n_x; i++) p->tokens[i] = (int)((uniform() + 1) * 5);
    for (int i = 0; i < p->n * 5; i++) p->meta[i] = (float)uniform();
    for (size_t i = 0; i < p->n_y; i++) p->pull[i] = (float)uniform();

    if (!(c->flags & TOKENS)) {
        p->b[0].n = p->n_x;
        p->b[0].value = p->x;
        p->n_blocks = 1;
    }
    dt_parameter q;
    for (int i = 0; dt_parameter_at(p->m, i, &q, NULL) == 0 && p->n_blocks < MAX_BLOCKS; i++) {
        if (!q.trainable) continue;
        block *b = &p->b[p->n_blocks];
        b->name = p->names[p->n_blocks++];
        snprintf(p->names[b - p->b], sizeof p->names[0], "%s", q.name);
        b->n = q.size;
        b->value = (float *)need(q.size, sizeof(float));
        CHECK_OK((dt_parameter_read(p->m, q.name, b->value, q.size, &err), err));
        /* Biases and weights of norms start at 0 and 1: move them, so that nothing hides there. */
        for (size_t k = 0; k < q.size; k++) b->value[k] += (float)(0.2 * uniform());
        CHECK_OK((dt_parameter_write(p->m, q.name, b->value, q.size, &err), err));
    }
    CHECK(p->n_blocks < MAX_BLOCKS);
    for (int i = 0; i < p->n_blocks; i++) p->b[i].gradient = (double *)need(p->b[i].n, sizeof(double));
    return 1;
}

static void problem_close(problem *p) {
    dt_model_free(p->m);
    for (int i = 0; i < p->n_blocks; i++) {
        free(p->b[i].gradient);
        if (p->b[i].name) free(p->b[i].value);
    }
    free(p->x); free(p->tokens); free(p->meta); free(p->y); free(p->pull);
    memset(p, 0, sizeof *p);
}

/* The loss of the batch, mean over the samples, summed here in double. */
static double problem_loss(problem *p) {
    dt_error err = DT_DEFAULTS;
    dt_batch batch = DT_DEFAULTS;
    batch.x[0] = p->c->flags & TOKENS ? (const void *)p->tokens : (const void *)p->x;
    if (p->c->flags & TWO_INPUTS) batch.x[1] = p->meta;
    batch.n = p->n;
    double sum = dt_forward(p->m, &batch, &err);
    if (!(p->c->flags & LOSSES)) {
        dt_output_read(p->m, NULL, p->y, &err);
        sum = 0;
        for (size_t i = 0; i < p->n_y; i++) sum += p->pull[i] * p->y[i];
        sum /= p->n;
    }
    CHECK_MSG(err.code == 0, "%s: %s", p->c->name, err.text);
    return sum;
}

/* Gradients of all blocks: of the parameters by one step of SGD at rate 1, which subtracts them. Then the
 * model is made anew, so that all that follows is step 0 again, with the same masks of dropout. */
static void problem_gradients(problem *p) {
    dt_error err = DT_DEFAULTS;
    float *g = (float *)need(p->n_y > p->n_x ? p->n_y : p->n_x, sizeof(float));
    dt_clear(p->m, &err);
    problem_loss(p);
    for (size_t i = 0; i < p->n_y; i++) g[i] = (float)p->pull[i];
    if (p->c->flags & LOSSES) dt_backward(p->m, &err);
    else dt_backward_from(p->m, g, &err);
    if (!(p->c->flags & TOKENS)) {
        dt_input_gradient_read(p->m, g, &err);
        for (size_t i = 0; i < p->n_x; i++) p->b[0].gradient[i] = g[i] / (double)p->n;
    }
    dt_reduce(p->m, &err);
    size_t n_flat = 0;
    float *flat = dt_gradients(p->m, &n_flat);
    double flat_square = 0, square = 0;
    size_t n_parameters = 0;
    for (size_t i = 0; flat && i < n_flat; i++) flat_square += (double)flat[i] * flat[i];
    dt_update(p->m, &err);
    CHECK_MSG(err.code == 0, "%s: %s", p->c->name, err.text);
    free(g);
    for (int i = 0; i < p->n_blocks; i++) {
        block *b = &p->b[i];
        if (!b->name) continue;
        float *after = (float *)need(b->n, sizeof(float));
        CHECK_OK((dt_parameter_read(p->m, b->name, after, b->n, &err), err));
        for (size_t k = 0; k < b->n; k++) {
            b->gradient[k] = (double)b->value[k] - after[k];
            square += b->gradient[k] * b->gradient[k];
        }
        n_parameters += b->n;
        free(after);
    }
    const int flat_length_fits = flat != NULL && n_flat >= n_parameters;
    dt_model_free(p->m);
    if (!model_open(p)) exit(1);
    for (int i = 0; i < p->n_blocks; i++)
        if (p->b[i].name) CHECK_OK((dt_parameter_write(p->m, p->b[i].name, p->b[i].value, p->b[i].n, &err), err));
    /* dt_gradients holds the same values in another order, not yet divided by the samples. */
    if (!n_parameters || p->c->flags & LOSSES) return;
    CHECK_MSG(flat_length_fits, "%s: %d gradients of %d parameters", p->c->name, (int)n_flat, (int)n_parameters);
    CHECK_MSG(fabs(sqrt(flat_square) / p->n - sqrt(square)) <= 1e-4 * sqrt(square) + 1e-5, "%s: dt_gradients has norm %g, n = %d, and the update %g",
              p->c->name, sqrt(flat_square), p->n, sqrt(square));
}

/* ---- the gradient check ----------------------------------------------------------------------- */

static void move(problem *p, int first, int last, double *const *direction, double h) {
    for (int i = first; i <= last; i++) {
        block *b = &p->b[i];
        float *moved = (float *)need(b->n, sizeof(float));
        for (size_t k = 0; k < b->n; k++) moved[k] = (float)(b->value[k] + h * direction[i][k]);
        if (b->name) dt_parameter_write(p->m, b->name, moved, b->n, NULL);
        else p->x = moved;
        if (b->name) free(moved);
    }
}

static void move_back(problem *p, int first, int last) {
    for (int i = first; i <= last; i++) {
        block *b = &p->b[i];
        if (b->name) dt_parameter_write(p->m, b->name, b->value, b->n, NULL);
        else { free(p->x); p->x = b->value; }
    }
}

/* The slope of the loss along a direction through blocks first..last. */
static double slope(problem *p, int first, int last, double *const *direction, double h) {
    move(p, first, last, direction, h);
    double above = problem_loss(p);
    move_back(p, first, last);
    move(p, first, last, direction, -h);
    double below = problem_loss(p);
    move_back(p, first, last);
    return (above - below) / (2 * h);
}

static void check_slopes(problem *p, int first, int last, int replicas) {
    double *direction[MAX_BLOCKS];
    for (int along_gradient = 0; along_gradient < 2; along_gradient++) {
        double length = 0, norm = 0, expected = 0, measured;
        size_t size = 0;
        for (int i = first; i <= last; i++) {
            direction[i] = (double *)need(p->b[i].n, sizeof(double));
            for (size_t k = 0; k < p->b[i].n; k++) {
                direction[i][k] = along_gradient ? p->b[i].gradient[k] : uniform();
                length += direction[i][k] * direction[i][k];
                norm += p->b[i].gradient[k] * p->b[i].gradient[k];
                size++;
            }
        }
        length = sqrt(length);
        norm = sqrt(norm);
        for (int i = first; i <= last; i++)
            for (size_t k = 0; k < p->b[i].n; k++) {
                direction[i][k] /= length > 0 ? length : 1;
                expected += direction[i][k] * p->b[i].gradient[k];
            }
        /* A random direction sees about |g| / sqrt(size) of the gradient: be as much stricter. */
        double sharper = along_gradient || size < 64 ? 1 : 8 / sqrt((double)size), tolerance = 1e-3 * sharper * norm + 2e-5;
        measured = slope(p, first, last, direction, 1e-2);
        if (!(fabs(measured - expected) <= tolerance))  /* a curved loss: Richardson's step removes the error of order h^2 */
            measured = (4 * slope(p, first, last, direction, 5e-3) - measured) / 3;
        CHECK_MSG(fabs(measured - expected) <= tolerance,
                  "%s, %d replicas: %s%s: slope %.7g, gradient says %.7g (|g| = %.4g)", p->c->name, replicas,
                  first != last ? "all together" : p->b[first].name ? p->b[first].name : "input",
                  along_gradient ? " along the gradient" : "", measured, expected, norm);
        for (int i = first; i <= last; i++) free(direction[i]);
    }
}

static void check_same(const op_case *c, const char *what, const double *a, const double *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    CHECK_MSG(sqrt(difference) <= 1e-5 * sqrt(norm) + 1e-6, "%s: %s with 3 replicas differs from 1 by %g of %g",
              c->name, what, sqrt(difference), sqrt(norm));
}

/* Slopes with 1 and 3 replicas, and both the same. */
static void check_gradients(const op_case *c) {
    problem one, three;
    const int before = check_failed;
    if (!problem_open(&one, c, 1)) return;
    problem_gradients(&one);
    for (int i = 0; i < one.n_blocks; i++) check_slopes(&one, i, i, 1);
    if (one.n_blocks > 1) check_slopes(&one, 0, one.n_blocks - 1, 1);
    double loss = problem_loss(&one);
    if (check_failed == before && problem_open(&three, c, 3)) {
        CHECK(three.n_blocks == one.n_blocks && three.n_x == one.n_x && three.n_y == one.n_y);
        problem_gradients(&three);
        if (c->flags & PER_REPLICA) {
            check_slopes(&three, 0, three.n_blocks - 1, 3);
        } else {
            double loss_of_three = problem_loss(&three);
            CHECK_MSG(fabs(loss - loss_of_three) <= 1e-5 * fabs(loss) + 1e-6, "%s: %.8g with 3 replicas, %.8g with 1", c->name, loss_of_three, loss);
            for (int i = 0; i < one.n_blocks; i++)
                check_same(c, one.b[i].name ? one.b[i].name : "the input's gradient", three.b[i].gradient, one.b[i].gradient, one.b[i].n);
        }
        problem_close(&three);
    }
    problem_close(&one);
}

static void check_all_gradients(const op_case *c, int n) {
    for (int i = 0; i < n; i++) check_gradients(&c[i]);
}

/* The output of a case for a given batch, and its parameters, with one replica. Free with problem_close. */
static int forward_of(problem *p, const op_case *c, const float *x) {
    if (!problem_open(p, c, 1)) return 0;
    if (x) memcpy(p->x, x, p->n_x * sizeof(float));
    problem_loss(p);
    return 1;
}

static const float *parameter_of(const problem *p, const char *name) {
    for (int i = 0; i < p->n_blocks; i++)
        if (p->b[i].name && !strcmp(p->b[i].name, name)) return p->b[i].value;
    CHECK_MSG(0, "%s has no parameter %s", p->c->name, name);
    return NULL;
}

static void check_values(const char *name, const float *y, const double *expected, size_t n, double tolerance) {
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        double scale = fabs(expected[i]) > 1 ? fabs(expected[i]) : 1;
        if (!(fabs(y[i] - expected[i]) <= tolerance * scale) && !wrong++) first = i;
    }
    CHECK_MSG(!wrong, "%s: %d of %d values, first y[%d] = %.8g, expected %.8g", name, (int)wrong, (int)n, (int)first,
              wrong ? y[first] : 0, wrong ? expected[first] : 0);
}

#define NET(name, ...) static dt_tensor *name(dt_tensor *x, void *user) { (void)user; return __VA_ARGS__; }

/* ---- dense ------------------------------------------------------------------------------------ */

NET(net_dense, dt_dense(x, 7, .name = "d"))
NET(net_dense_plain, dt_dense(x, 7, .no_bias = 1, .name = "d"))
NET(net_dense_one, dt_dense(x, 1, .name = "d"))
NET(net_dense_wide, dt_dense(x, 65, .name = "d"))
NET(net_dense_deep, dt_dense(dt_tanh(dt_dense(x, 33, .init = DT_HE_NORMAL)), 5))
static dt_tensor *net_dense_shared(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dense(x, 6, .name = "d");
    return dt_dense(dt_tanh(a), 6, .share = a);
}
static dt_tensor *net_dense_shared_three(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dense(x, 6, .no_bias = 1, .name = "d");
    dt_tensor *b = dt_dense(dt_tanh(a), 6, .no_bias = 1, .share = a);
    return dt_add(dt_dense(dt_tanh(b), 6, .no_bias = 1, .share = b), a);
}

static const op_case dense_case[] = {
    { "dense",              net_dense,              { 9 },       0, 0, NULL },
    { "dense no_bias",      net_dense_plain,        { 9 },       0, 0, NULL },
    { "dense to 1",         net_dense_one,          { 9 },       0, 0, NULL },
    { "dense from 1",       net_dense,              { 1 },       0, 0, NULL },
    { "dense 67 to 65",     net_dense_wide,         { 67 },      0, 13, NULL },
    { "dense 3-D",          net_dense,              { 4, 9 },    0, 0, NULL },
    { "dense 4-D no_bias",  net_dense_plain,        { 3, 2, 9 }, 0, 0, NULL },
    { "dense one sample",   net_dense,              { 9 },       0, 1, NULL },
    { "dense deep",         net_dense_deep,         { 17 },      0, 0, NULL },
    { "dense shared",       net_dense_shared,       { 6 },       0, 0, NULL },
    { "dense shared twice", net_dense_shared_three, { 6 },       0, 0, NULL },
};

static void test_dense_gradients(void) { check_all_gradients(dense_case, COUNT(dense_case)); }

static void test_dense_values(void) {
    for (int i = 0; i < COUNT(dense_case); i++) {
        const op_case *c = &dense_case[i];
        problem p;
        if (strstr(c->name, "deep") || strstr(c->name, "shared") || !forward_of(&p, c, NULL)) continue;
        const int no_bias = strstr(c->name, "no_bias") != NULL;
        const float *w = parameter_of(&p, "d.weight"), *b = no_bias ? NULL : parameter_of(&p, "d.bias");
        const size_t n_in = p.b[1].n / (strstr(c->name, "to 1") ? 1 : strstr(c->name, "67") ? 65 : 7);
        const size_t n_out = p.b[1].n / n_in, rows = p.n_x / n_in;
        double *expected = (double *)need(rows * n_out, sizeof(double));
        CHECK_MSG(p.n_y == rows * n_out, "%s: %d outputs", c->name, (int)p.n_y);
        for (size_t r = 0; r < rows; r++)
            for (size_t k = 0; k < n_out; k++) {
                double sum = b ? b[k] : 0;
                for (size_t j = 0; j < n_in; j++) sum += (double)p.x[r * n_in + j] * w[k * n_in + j];
                expected[r * n_out + k] = sum;
            }
        check_values(c->name, p.y, expected, rows * n_out, 2e-6);
        free(expected);
        problem_close(&p);
    }
}

/* ---- conv2d ----------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int h, w, c, n;
    dt_conv2d_options o;
} conv_case;

#define CONV(...) { .x = NULL, __VA_ARGS__ }
static const conv_case conv_cases[] = {
    { "1x1",                    5, 4, 3, 3,  CONV(10, 1) },
    { "1x1 no_bias",            5, 4, 16, 3, CONV(16, 1, .no_bias = 1) },
    { "1x1 stride 2",           5, 4, 16, 3, CONV(10, 1, .stride = 2) },
    { "3x3",                    6, 5, 3, 3,  CONV(10, 3) },
    { "3x3 from 1 to 1",        6, 5, 1, 3,  CONV(1, 3) },
    { "3x3 same",               6, 5, 3, 3,  CONV(16, 3, .padding = DT_SAME) },
    { "3x3 padding 1",          6, 5, 16, 3, CONV(10, 3, .padding = 1) },
    { "3x3 padding 2",          4, 5, 3, 3,  CONV(4, 3, .padding = 2) },
    { "3x3 stride 2",           7, 8, 3, 3,  CONV(16, 3, .stride = 2) },
    { "3x3 stride 2 same",      7, 8, 3, 3,  CONV(16, 3, .stride = 2, .padding = DT_SAME) },
    { "3x3 stride 2 same even", 8, 6, 3, 3,  CONV(16, 3, .stride = 2, .padding = DT_SAME) },
    { "3x3 stride 3 padding 1", 8, 7, 3, 3,  CONV(10, 3, .stride = 3, .padding = 1) },
    { "1x1 stride 3 same",      7, 7, 3, 3,  CONV(4, 1, .stride = 3, .padding = DT_SAME) },
    { "2x2 same",               5, 4, 3, 3,  CONV(4, 2, .padding = DT_SAME) },
    { "4x4 stride 2 same",      7, 6, 3, 3,  CONV(4, 4, .stride = 2, .padding = DT_SAME) },
    { "5x5",                    7, 6, 33, 2, CONV(40, 5) },
    { "5x5 same",               4, 3, 3, 3,  CONV(10, 5, .padding = DT_SAME) },
    { "5x5 stride 3",           9, 8, 3, 3,  CONV(16, 5, .stride = 3, .padding = 1) },
    { "5x3",                    7, 6, 3, 3,  CONV(10, 5, .kernel_w = 3) },
    { "1x5 same",               4, 7, 3, 3,  CONV(10, 1, .kernel_w = 5, .padding = DT_SAME) },
    { "3x1 stride 2 padding 1", 7, 6, 3, 3,  CONV(10, 3, .kernel_w = 1, .stride = 2, .padding = 1) },
    { "dilation 2",             8, 7, 3, 3,  CONV(10, 3, .dilation = 2) },
    { "dilation 2 same",        5, 6, 16, 3, CONV(10, 3, .dilation = 2, .padding = DT_SAME) },
    { "dilation 3 stride 2",    9, 9, 3, 2,  CONV(4, 3, .dilation = 3, .stride = 2, .padding = 2) },
    { "groups 2",               6, 5, 16, 3, CONV(10, 3, .groups = 2) },
    { "groups 3 stride 2",      6, 7, 33, 2, CONV(12, 3, .groups = 3, .stride = 2, .padding = 1) },
    { "groups 2 1x1",           4, 4, 16, 3, CONV(40, 1, .groups = 2, .no_bias = 1) },
    { "depthwise",              6, 5, 16, 3, CONV(16, 3, .groups = 16, .padding = DT_SAME) },
    { "depthwise 33",           6, 5, 33, 3, CONV(33, 3, .groups = 33, .stride = 2) },
    { "depthwise times 2",      6, 5, 3, 3,  CONV(6, 3, .groups = 3, .padding = 1) },
    { "depthwise dilation 2",   7, 7, 5, 3,  CONV(5, 3, .groups = 5, .dilation = 2, .padding = DT_SAME) },
    { "whole image",            4, 3, 16, 3, CONV(10, 4, .kernel_w = 3) },
    { "one pixel same",         1, 1, 3, 3,  CONV(4, 3, .padding = DT_SAME) },
    { "one row",                1, 9, 3, 3,  CONV(4, 1, .kernel_w = 3) },
    { "17 to 33",               5, 5, 17, 2, CONV(33, 3, .padding = 1) },
    { "wide rows",              3, 40, 2, 2, CONV(5, 3, .padding = DT_SAME) },
};

/* Those that go Winograd's way: tiles that fit, that hang over, zeros on all sides and on none, batches of several blocks. */
static const conv_case winograd_cases[] = {
    { "winograd 8x8 same",      8, 8, 16, 5,   CONV(16, 3, .padding = DT_SAME) },
    { "winograd 16 to 48",      8, 8, 16, 4,   CONV(48, 3, .padding = 1, .no_bias = 1) },
    { "winograd 64 to 32",      4, 4, 64, 17,  CONV(32, 3, .padding = 1) },
    { "winograd hangs over",    7, 11, 32, 3,  CONV(16, 3, .padding = 1) },
    { "winograd no padding",    13, 10, 16, 4, CONV(32, 3) },
    { "winograd padding 2",     10, 14, 16, 3, CONV(16, 3, .padding = 2) },
    { "winograd one image",     12, 12, 16, 1, CONV(16, 3, .padding = 1) },
};

static dt_tensor *net_conv(dt_tensor *x, void *user) {
    dt_conv2d_options o = *(const dt_conv2d_options *)user;
    o.x = x;
    o.name = "c";
    return dt_conv2d_opt(o);
}

static int or_one(int v) { return v ? v : 1; }

/* Output size and zeros before, of one axis. */
static int conv_axis(int in, int kernel, int stride, int dilation, int padding, int *before) {
    const int span = dilation * (kernel - 1) + 1;
    if (padding != DT_SAME) {
        *before = padding;
        return (in + 2 * padding - span) / stride + 1;
    }
    const int out = (in + stride - 1) / stride, total = (out - 1) * stride + span - in;
    *before = total > 0 ? total / 2 : 0;
    return out;
}

static double *conv_reference(const conv_case *c, const problem *p) {
    const dt_conv2d_options *o = &c->o;
    const float *weight = parameter_of(p, "c.weight"), *bias = o->no_bias ? NULL : parameter_of(p, "c.bias");
    const int kh = o->kernel, kw = o->kernel_w ? o->kernel_w : kh, stride = or_one(o->stride), dilation = or_one(o->dilation);
    const int groups = or_one(o->groups), group_in = c->c / groups, group_out = o->filters / groups;
    int top, left;
    const int h = conv_axis(c->h, kh, stride, dilation, o->padding, &top), w = conv_axis(c->w, kw, stride, dilation, o->padding, &left);
    double *y = (double *)need((size_t)(c->n * h * w * o->filters), sizeof(double));
    CHECK_MSG(p->output_size == (size_t)(h * w * o->filters), "%s: %d outputs, expected %dx%dx%d", c->name, (int)p->output_size, h, w, o->filters);
    for (int s = 0; s < c->n; s++)
        for (int i = 0; i < h; i++)
            for (int j = 0; j < w; j++)
                for (int f = 0; f < o->filters; f++) {
                    double sum = bias ? bias[f] : 0;
                    for (int u = 0; u < kh; u++)
                        for (int v = 0; v < kw; v++) {
                            const int row = i * stride + u * dilation - top, column = j * stride + v * dilation - left;
                            if (row < 0 || row >= c->h || column < 0 || column >= c->w) continue;
                            for (int k = 0; k < group_in; k++)
                                sum += (double)p->x[((s * c->h + row) * c->w + column) * c->c + f / group_out * group_in + k]
                                     * weight[((f * group_in + k) * kh + u) * kw + v];
                        }
                    y[((s * h + i) * w + j) * o->filters + f] = sum;
                }
    return y;
}

static void check_conv(const conv_case *c, int gradients) {
    op_case op = { NULL, net_conv, { c->h, c->w, c->c }, 0, c->n, NULL };
    problem p;
    op.name = c->name;
    op.user = &c->o;
    const int before = check_failed;
    if (!forward_of(&p, &op, NULL)) return;
    double *expected = conv_reference(c, &p);
    if (check_failed == before) check_values(c->name, p.y, expected, p.n_y, strstr(c->name, "winograd") ? 4e-5 : 1e-5);
    free(expected);
    problem_close(&p);
    if (gradients) check_gradients(&op);
}

static void test_conv2d(void) {
    for (int i = 0; i < COUNT(conv_cases); i++) check_conv(&conv_cases[i], 1);
}

/* Against the truth, and its gradients against those of the direct way, which the differences above have proved. */
static void check_winograd(const conv_case *c) {
    op_case op = { NULL, net_conv, { c->h, c->w, c->c }, 0, c->n, NULL }, same = op;
    conv_case direct = *c;
    problem p[2];
    check_conv(c, 0);
    direct.o.direct = 1;
    op.name = same.name = c->name;
    op.user = &c->o;
    same.user = &direct.o;
    if (!forward_of(&p[0], &op, NULL)) return;
    if (!forward_of(&p[1], &same, NULL)) { problem_close(&p[0]); return; }
    float *dx[2], most = 0;
    for (int i = 0; i < 2; i++) {
        dt_error err = DT_DEFAULTS;
        float *dy = (float *)need(p[i].n_y, sizeof *dy);
        dx[i] = (float *)need(p[i].n_x, sizeof **dx);
        for (size_t k = 0; k < p[i].n_y; k++) dy[k] = (float)p[i].pull[k];
        for (int k = 0; k < p[i].m->graph.n; k++) {
            const dt_tensor *t = p[i].m->graph.node[k];
            if (t->op == &dt__conv2d) CHECK_MSG(dt__conv_of(t).winograd == !i, "%s: not its way", c->name);
        }
        CHECK_OK((dt_backward_from(p[i].m, dy, &err), err));
        CHECK_OK((dt_input_gradient_read(p[i].m, dx[i], &err), err));
        CHECK_OK((dt_reduce(p[i].m, &err), err));
        free(dy);
    }
    for (int what = 0; what < 2; what++) {
        size_t n = p[0].n_x;
        const float *a = what ? dt_gradients(p[0].m, &n) : dx[0], *b = what ? dt_gradients(p[1].m, &n) : dx[1];
        float difference = 0;
        for (size_t k = 0; k < n; k++) { most = fmaxf(most, fabsf(b[k])); difference = fmaxf(difference, fabsf(a[k] - b[k])); }
        CHECK_MSG(difference <= 1e-5f * most && most > 0 && n > 0, "%s: gradient of the %s differs by %g of %g", c->name, what ? "weights" : "input", (double)difference, (double)most);
    }
    for (int i = 0; i < 2; i++) free(dx[i]);
    for (int i = 0; i < 2; i++) problem_close(&p[i]);
}
static void test_winograd(void) {
    for (int i = 0; i < COUNT(winograd_cases); i++) check_winograd(&winograd_cases[i]);
    check_conv(&winograd_cases[1], 1);
    check_conv(&winograd_cases[3], 1);
}

/* Every pattern of the fusion, and segments in several strips: the same training as layer by layer. Not that relu
 * goes behind the pool when somebody wants to see it. */
static dt_tensor *net_fusion(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 16, 3, .padding = 1)), 2);
    dt_tensor *y = dt_relu(dt_batchnorm(dt_conv2d(x, 16, 3, .padding = 1)));
    x = dt_relu(dt_add(x, dt_conv2d(y, 16, 3, .padding = 1)));
    x = dt_maxpool2d(dt_output(dt_relu(dt_conv2d(x, 10, 3, .padding = 1, .stride = 2)), "seen"), 2);
    return dt_dense(dt_relu(dt_dense(dt_flatten(x), 20)), 5);
}
static void test_fusion(void) {
    enum { N = 12, SIZE = 16 * 16 * 3, STEPS = 5 };
    static float x[N * SIZE], seen[2][N * 4 * 4 * 10];
    float loss[2][STEPS], *w[2] = { NULL, NULL };
    int y[N], fused = 0, pools = 0, strips = 0;
    size_t n = 0;
    random_state = 3;
    for (int i = 0; i < N * SIZE; i++) x[i] = (float)uniform();
    for (int i = 0; i < N; i++) y[i] = i % 5;
    for (int way = 0; way < 2; way++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = net_fusion;
        o.input[0] = o.input[1] = 16;
        o.input[2] = 3;
        o.batch = N;
        o.replicas = 1;
        o.loss = DT_CROSS_ENTROPY;
        o.optimizer = DT_MOMENTUM;
        o.learning_rate = 0.05;
        o.no_fusion = way;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        for (int i = 0; i < m->graph.n; i++) {
            const dt_tensor *t = m->graph.node[i];
            if (way) CHECK(!t->fused && !t->relu);
            fused += t->fused;
            pools += t->op == &dt__maxpool2d && t->in[0]->op == &dt__conv2d;
        }
        for (int i = 0; i < m->graph.n_segments; i++) {
            if (way) CHECK(m->graph.segment[i].strip >= N);
            strips += m->graph.segment[i].strip < N;
        }
        for (int i = 0; i < STEPS; i++) loss[way][i] = dt_step(m, x, y, i == 2 ? N - 1 : N, &err);
        dt_step(m, x, y, N, &err);
        CHECK_OK((dt_output_read(m, "seen", seen[way], &err), err));
        n = (size_t)m->graph.n_floats;
        w[way] = (float *)need(n, sizeof(float));
        memcpy(w[way], m->replica[0].variables, n * sizeof(float));
        dt_model_free(m);
    }
    CHECK_MSG(fused == 5 && pools == 1 && strips >= 4, "%d relus joined, %d pools went first, %d segments in strips", fused, pools, strips);
    for (int i = 0; i < STEPS; i++) CHECK_MSG(fabsf(loss[0][i] - loss[1][i]) <= 1e-4f, "step %d: loss %g, layer by layer %g", i, (double)loss[0][i], (double)loss[1][i]);
    CHECK_MSG(fabsf(loss[0][STEPS - 1] - loss[0][0]) > 0.01f, "nothing is learned");
    for (size_t i = 0; i < n && check_failed < 5; i++) CHECK_NEAR(w[0][i], w[1][i], 2e-4);
    for (int i = 0; i < COUNT(seen[0]) && check_failed < 5; i++) { CHECK(seen[0][i] >= 0); CHECK_NEAR(seen[0][i], seen[1][i], 1e-3); }
    free(w[0]);
    free(w[1]);
}

/* Where only the last strip's gradient overflows, the layer is named in which it does: not the one before, whose weights
 * still hold what the failing run has left. */
static dt_tensor *net_overflow(dt_tensor *x, void *user) {
    (void)user;
    x = dt_conv2d(x, 16, 3, .padding = 1, .init = DT_CONSTANT, .name = "before");
    return dt_dense(dt_flatten(dt_scale(dt_scale(x, 1e25, 0), 1e25, 0)), 3);
}
static void test_overflow_in_the_last_strip(void) {
    enum { N = 12, SIZE = 16 * 16 * 16 };
    static float x[N * SIZE], weight[N];
    int32_t y[N] = { 0 };
    char index[40];
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    dt_batch b = DT_DEFAULTS;
    o.net = net_overflow;
    o.input[0] = o.input[1] = o.input[2] = 16;
    o.batch = N;
    o.replicas = 1;
    o.loss = DT_CROSS_ENTROPY;
    random_state = 8;
    for (int i = 0; i < N * SIZE; i++) x[i] = (float)uniform();
    weight[N - 1] = 1;
    b.x[0] = x;
    b.y[0] = y;
    b.weight = weight;
    b.n = N;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    if (!m) return;
    dt_step_batch(m, &b, &err);
    snprintf(index, sizeof index, "at index %d)", (N - 1) * SIZE);
    CHECK_MSG(err.code == DT_ERR_NUMERIC && strstr(err.text, "the gradient of layer \"before\"") && strstr(err.text, index), "\"%s\", expected %s", err.text, index);
    dt_model_free(m);
}

/* All combinations of the usual sizes; gradients of every fourth. */
static void test_conv2d_sweep(void) {
    static const int kernels[] = { 1, 3, 5 }, paddings[] = { 0, 1, DT_SAME }, channels[] = { 1, 3, 16, 33 }, filters[] = { 1, 10, 16, 40 };
    int number = 0;
    for (int k = 0; k < 3; k++)
        for (int stride = 1; stride <= 3; stride++)
            for (int q = 0; q < 3; q++)
                for (int c = 0; c < 4; c++)
                    for (int f = 0; f < 4; f++, number++) {
                        char name[80];
                        conv_case cc = { NULL, 6, 5, 0, 2, { .x = NULL } };
                        snprintf(name, sizeof name, "kernel %d stride %d padding %d, %d to %d", kernels[k], stride, paddings[q], channels[c], filters[f]);
                        cc.name = name;
                        cc.c = channels[c];
                        cc.o.filters = filters[f];
                        cc.o.kernel = kernels[k];
                        cc.o.stride = stride;
                        cc.o.padding = paddings[q];
                        check_conv(&cc, number % 4 == (number / 16) % 4);
                        if (check_failed > 20) return;
                    }
}

static dt_tensor *net_conv_shared(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_conv2d(x, 3, 3, .padding = DT_SAME);
    return dt_conv2d(dt_tanh(a), 3, 3, .padding = DT_SAME, .share = a);
}
NET(net_conv_chain, dt_dense(dt_flatten(dt_tanh(dt_conv2d(dt_tanh(dt_conv2d(x, 8, 3)), 4, 3, .stride = 2))), 3))
static const op_case conv_more_case[] = {
    { "conv2d shared", net_conv_shared, { 5, 4, 3 }, 0, 3, NULL },
    { "conv2d chain",  net_conv_chain,  { 9, 8, 2 }, 0, 3, NULL },
};
static void test_conv2d_combined(void) { check_all_gradients(conv_more_case, COUNT(conv_more_case)); }

/* ---- pooling ---------------------------------------------------------------------------------- */

static const struct pool_case { const char *name; int h, w, c; dt_pool2d_options o; } pool_cases[] = {
    { "2",                    6, 4, 3,  { .size = 2 } },
    { "2 with a rest",        7, 5, 3,  { .size = 2 } },
    { "3",                    6, 6, 17, { .size = 3 } },
    { "3 stride 2",           7, 7, 3,  { .size = 3, .stride = 2 } },
    { "3 stride 1",           5, 6, 3,  { .size = 3, .stride = 1 } },
    { "2 stride 3",           8, 7, 3,  { .size = 2, .stride = 3 } },
    { "3 stride 2 padding 1", 6, 7, 16, { .size = 3, .stride = 2, .padding = 1 } },
    { "2 padding 1",          5, 4, 3,  { .size = 2, .padding = 1 } },
    { "3 stride 1 padding 1", 1, 1, 3,  { .size = 3, .stride = 1, .padding = 1 } },
    { "5 stride 2 padding 2", 6, 5, 2,  { .size = 5, .stride = 2, .padding = 2 } },
    { "whole image",          4, 4, 33, { .size = 4 } },
    { "1",                    3, 3, 2,  { .size = 1 } },
};

static dt_tensor *net_maxpool(dt_tensor *x, void *user) {
    dt_pool2d_options o = *(const dt_pool2d_options *)user;
    o.x = x;
    return dt_maxpool2d_opt(o);
}
static dt_tensor *net_avgpool(dt_tensor *x, void *user) {
    dt_pool2d_options o = *(const dt_pool2d_options *)user;
    o.x = x;
    return dt_avgpool2d_opt(o);
}

static double *pool_reference(const struct pool_case *c, const problem *p, int maximum) {
    const int size = c->o.size, stride = c->o.stride ? c->o.stride : size, padding = c->o.padding;
    const int h = (c->h + 2 * padding - size) / stride + 1, w = (c->w + 2 * padding - size) / stride + 1;
    double *y = (double *)need((size_t)(p->n * h * w * c->c), sizeof(double));
    CHECK_MSG(p->output_size == (size_t)(h * w * c->c), "%s: %d outputs, expected %dx%dx%d", c->name, (int)p->output_size, h, w, c->c);
    for (int s = 0; s < p->n; s++)
        for (int i = 0; i < h; i++)
            for (int j = 0; j < w; j++)
                for (int k = 0; k < c->c; k++) {
                    double best = -1e30, sum = 0;
                    int count = 0;
                    for (int row = i * stride - padding; row < i * stride - padding + size; row++)
                        for (int column = j * stride - padding; column < j * stride - padding + size; column++) {
                            if (row < 0 || row >= c->h || column < 0 || column >= c->w) continue;
                            const double v = p->x[((s * c->h + row) * c->w + column) * c->c + k];
                            best = v > best ? v : best;
                            sum += v;
                            count++;
                        }
                    y[((s * h + i) * w + j) * c->c + k] = maximum ? best : sum / count;
                }
    return y;
}

static void check_pool(const struct pool_case *c, int maximum) {
    char name[80];
    op_case op = { name, maximum ? net_maxpool : net_avgpool, { c->h, c->w, c->c }, maximum ? DISTINCT : 0, 3, &c->o };
    problem p;
    snprintf(name, sizeof name, "%s %s", maximum ? "maxpool" : "avgpool", c->name);
    const int before = check_failed;
    if (!forward_of(&p, &op, NULL)) return;
    if (maximum) for (size_t i = 0; i < p.n_x; i++) p.x[i] -= 20;  /* all below zero: padding must not win */
    problem_loss(&p);
    double *expected = pool_reference(c, &p, maximum);
    if (check_failed == before) check_values(name, p.y, expected, p.n_y, 1e-6);
    free(expected);
    problem_close(&p);
    check_gradients(&op);
}

static void test_maxpool(void) { for (int i = 0; i < COUNT(pool_cases); i++) check_pool(&pool_cases[i], 1); }
static void test_avgpool(void) { for (int i = 0; i < COUNT(pool_cases); i++) check_pool(&pool_cases[i], 0); }

NET(net_global_avgpool, dt_global_avgpool(x))
static void test_global_avgpool(void) {
    static const op_case c = { "global_avgpool", net_global_avgpool, { 5, 3, 18 }, 0, 0, NULL };
    problem p;
    if (!forward_of(&p, &c, NULL)) return;
    double expected[5 * 18] = { 0 };
    CHECK(p.output_size == 18);
    for (int s = 0; s < 5; s++)
        for (int i = 0; i < 15; i++)
            for (int k = 0; k < 18; k++) expected[s * 18 + k] += p.x[(s * 15 + i) * 18 + k] / 15.0;
    check_values(c.name, p.y, expected, 5 * 18, 1e-6);
    problem_close(&p);
    check_gradients(&c);
}

/* ---- norms ------------------------------------------------------------------------------------ */

NET(net_batchnorm, dt_batchnorm(x, .name = "n"))
NET(net_batchnorm_epsilon, dt_batchnorm(x, .name = "n", .epsilon = 0.3))
NET(net_batchnorm_sync, dt_batchnorm(x, .name = "n", .sync = 1))
static dt_tensor *net_batchnorm_chain(dt_tensor *x, void *user) {
    (void)user;
    x = dt_tanh(dt_batchnorm(dt_dense(x, 6, .no_bias = 1), .sync = 1));
    return dt_dense(x, 3);
}
NET(net_batchnorm_conv, dt_tanh(dt_batchnorm(dt_conv2d(x, 5, 3), .sync = 1)))
NET(net_layernorm, dt_layernorm(x, .name = "n"))
NET(net_layernorm_plain, dt_layernorm(x, .name = "n", .no_bias = 1, .epsilon = 0.2))
static dt_tensor *net_layernorm_shared(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_layernorm(x);
    return dt_layernorm(dt_tanh(a), .share = a);
}
static dt_tensor *net_batchnorm_shared(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_batchnorm(x, .sync = 1);
    return dt_batchnorm(dt_tanh(a), .sync = 1, .share = a);
}

static const op_case norm_case[] = {
    { "batchnorm 2-D",        net_batchnorm,         { 6 },        PER_REPLICA, 12, NULL },
    { "batchnorm 4-D",        net_batchnorm,         { 3, 4, 5 },  PER_REPLICA, 7, NULL },
    { "batchnorm epsilon",    net_batchnorm_epsilon, { 6 },        PER_REPLICA, 12, NULL },
    { "batchnorm sync 2-D",   net_batchnorm_sync,    { 6 },        0, 12, NULL },
    { "batchnorm sync 4-D",   net_batchnorm_sync,    { 3, 4, 17 }, 0, 5, NULL },
    { "batchnorm sync chain", net_batchnorm_chain,   { 5 },        0, 12, NULL },
    { "batchnorm sync conv",  net_batchnorm_conv,    { 5, 5, 2 },  0, 5, NULL },
    { "batchnorm shared",     net_batchnorm_shared,  { 6 },        0, 12, NULL },
    { "layernorm 2-D",        net_layernorm,         { 6 },        0, 0, NULL },
    { "layernorm 2-D wide",   net_layernorm,         { 67 },       0, 0, NULL },
    { "layernorm 3-D",        net_layernorm,         { 3, 16 },    0, 0, NULL },
    { "layernorm no_bias",    net_layernorm_plain,   { 3, 6 },     0, 0, NULL },
    { "layernorm shared",     net_layernorm_shared,  { 6 },        0, 0, NULL },
};
static void test_norm_gradients(void) { check_all_gradients(norm_case, COUNT(norm_case)); }

/* Mean and biased variance of channel k of rows of c values. */
static void moments(const float *x, size_t rows, int c, int k, double *mean, double *variance) {
    *mean = *variance = 0;
    for (size_t r = 0; r < rows; r++) *mean += x[r * (size_t)c + (size_t)k] / (double)rows;
    for (size_t r = 0; r < rows; r++) *variance += pow(x[r * (size_t)c + (size_t)k] - *mean, 2) / (double)rows;
}

static void test_layernorm_values(void) {
    for (int i = 0; i < COUNT(norm_case); i++) {
        const op_case *c = &norm_case[i];
        problem p;
        if (strncmp(c->name, "layernorm", 9) || strstr(c->name, "shared") || !forward_of(&p, c, NULL)) continue;
        const int no_bias = strstr(c->name, "no_bias") != NULL;
        const float *w = parameter_of(&p, "n.weight"), *b = no_bias ? NULL : parameter_of(&p, "n.bias");
        const size_t d = p.b[1].n;
        double *expected = (double *)need(p.n_x, sizeof(double));
        for (size_t r = 0; r < p.n_x / d; r++) {
            double mean = 0, variance = 0;
            for (size_t k = 0; k < d; k++) mean += p.x[r * d + k] / (double)d;
            for (size_t k = 0; k < d; k++) variance += pow(p.x[r * d + k] - mean, 2) / (double)d;
            for (size_t k = 0; k < d; k++)
                expected[r * d + k] = (p.x[r * d + k] - mean) / sqrt(variance + (no_bias ? 0.2 : 1e-5)) * w[k] + (b ? b[k] : 0);
        }
        check_values(c->name, p.y, expected, p.n_y, 1e-5);
        free(expected);
        problem_close(&p);
    }
}

static void test_batchnorm_training_values(void) {
    for (int i = 0; i < COUNT(norm_case); i++) {
        const op_case *c = &norm_case[i];
        problem p;
        if (c->net != net_batchnorm && c->net != net_batchnorm_epsilon && c->net != net_batchnorm_sync) continue;
        if (!forward_of(&p, c, NULL)) continue;
        const float *w = parameter_of(&p, "n.weight"), *b = parameter_of(&p, "n.bias");
        const int channels = (int)p.b[1].n;
        const size_t rows = p.n_x / (size_t)channels;
        double *expected = (double *)need(p.n_x, sizeof(double));
        for (int k = 0; k < channels; k++) {
            double mean, variance;
            moments(p.x, rows, channels, k, &mean, &variance);
            for (size_t r = 0; r < rows; r++) {
                const size_t at = r * (size_t)channels + (size_t)k;
                expected[at] = (p.x[at] - mean) / sqrt(variance + (c->net == net_batchnorm_epsilon ? 0.3 : 1e-5)) * w[k] + b[k];
            }
        }
        check_values(c->name, p.y, expected, p.n_y, 1e-5);
        free(expected);
        problem_close(&p);
    }
}

/* With large, nearly equal values the variance must not drown in rounding. */
static void test_batchnorm_far_from_zero(void) {
    static const op_case c = { "batchnorm at 1000", net_batchnorm, { 2 }, 0, 64, NULL };
    problem p;
    float x[128];
    random_state = 5;
    for (int i = 0; i < 128; i++) x[i] = (float)(1000 + 0.5 * uniform());
    if (!forward_of(&p, &c, x)) return;
    const float *w = parameter_of(&p, "n.weight"), *b = parameter_of(&p, "n.bias");
    double expected[128];
    for (int k = 0; k < 2; k++) {
        double mean, variance;
        moments(x, 64, 2, k, &mean, &variance);
        for (int r = 0; r < 64; r++) expected[r * 2 + k] = (x[r * 2 + k] - mean) / sqrt(variance + 1e-5) * w[k] + b[k];
    }
    check_values(c.name, p.y, expected, 128, 2e-3);
    problem_close(&p);
}

NET(net_batchnorm_momentum, dt_batchnorm(x, .name = "n", .momentum = 0.25))
NET(net_batchnorm_momentum_sync, dt_batchnorm(x, .name = "n", .momentum = 0.25, .sync = 1))

/* Running statistics follow the global batch, whether or not the normalisation does; inference uses them. */
static void test_batchnorm_running_statistics(void) {
    static const struct { dt_tensor *(*net)(dt_tensor *, void *); double momentum; int replicas; } row[] = {
        { net_batchnorm, 0.1, 1 },  { net_batchnorm, 0.1, 3 },  { net_batchnorm_momentum, 0.25, 2 },
        { net_batchnorm_momentum_sync, 0.25, 1 },  { net_batchnorm_momentum_sync, 0.25, 3 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        enum { N = 10, C = 3, POSITIONS = 4 };
        dt_error err = DT_DEFAULTS;
        float x[N * POSITIONS * C], y[N * POSITIONS * C], running_mean[C], running_var[C], weight[C], bias[C];
        double expected_mean[C] = { 0 }, expected_var[C] = { 1, 1, 1 };
        dt_options o = DT_DEFAULTS;
        o.net = row[i].net;
        o.input[0] = 2;
        o.input[1] = 2;
        o.input[2] = C;
        o.batch = N;
        o.replicas = row[i].replicas;
        o.loss = DT_MSE;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) continue;
        random_state = 3;
        for (int step = 0; step < 3; step++) {
            for (int k = 0; k < N * POSITIONS * C; k++) {
                x[k] = (float)(uniform() * (k % C + 1) + step);
                y[k] = (float)uniform();
            }
            dt_step(m, x, y, N, &err);
            for (int k = 0; k < C; k++) {
                double mean, variance;
                moments(x, N * POSITIONS, C, k, &mean, &variance);
                expected_mean[k] += row[i].momentum * (mean - expected_mean[k]);
                expected_var[k] += row[i].momentum * (variance * N * POSITIONS / (N * POSITIONS - 1) - expected_var[k]);
            }
        }
        dt_parameter_read(m, "n.running_mean", running_mean, C, &err);
        dt_parameter_read(m, "n.running_var", running_var, C, &err);
        dt_parameter_read(m, "n.weight", weight, C, &err);
        dt_parameter_read(m, "n.bias", bias, C, &err);
        for (int k = 0; k < C; k++) {
            CHECK_NEAR(running_mean[k], expected_mean[k], 1e-5);
            CHECK_NEAR(running_var[k], expected_var[k], 1e-5);
        }
        double expected[N * POSITIONS * C];
        dt_predict(m, x, N, y, &err);
        for (int k = 0; k < N * POSITIONS * C; k++)
            expected[k] = (x[k] - running_mean[k % C]) / sqrt(running_var[k % C] + 1e-5) * weight[k % C] + bias[k % C];
        check_values("batchnorm inference", y, expected, N * POSITIONS * C, 1e-5);

        /* statistics that were written are used, on every replica */
        const float mean[C] = { 0.5f, -1, 2 }, variance[C] = { 0.25f, 4, 9 };
        dt_parameter_write(m, "n.running_mean", mean, C, &err);
        dt_parameter_write(m, "n.running_var", variance, C, &err);
        dt_predict(m, x, N, y, &err);
        for (int k = 0; k < N * POSITIONS * C; k++)
            expected[k] = (x[k] - mean[k % C]) / sqrt(variance[k % C] + 1e-5) * weight[k % C] + bias[k % C];
        check_values("batchnorm written statistics", y, expected, N * POSITIONS * C, 1e-5);
        CHECK_OK(err);
        dt_model_free(m);
    }
}

/* A frozen batch norm stays as it is: it normalises with its statistics in training too, and keeps them. */
NET(net_batchnorm_frozen, dt_batchnorm(dt_dense(x, 3, .name = "d"), .name = "n", .frozen = 1))
static void test_batchnorm_frozen(void) {
    for (int replicas = 1; replicas <= 2; replicas++) {
        enum { N = 6, C = 3 };
        static const char *names[] = { "n.weight", "n.bias", "n.running_mean", "n.running_var" };
        const float mean[C] = { 0.5f, -1, 2 }, variance[C] = { 0.25f, 4, 9 };
        float x[N * 2], y[N * C], trained[N * C], predicted[N * C], before[4][C], after[C], w[6], w_after[6];
        dt_error err = DT_DEFAULTS;
        dt_batch batch = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = net_batchnorm_frozen;
        o.input[0] = 2;
        o.batch = N;
        o.loss = DT_MSE;
        o.replicas = replicas;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        random_state = 8;
        for (int k = 0; k < N * 2; k++) x[k] = (float)uniform();
        for (int k = 0; k < N * C; k++) y[k] = (float)uniform();
        dt_parameter_write(m, "n.running_mean", mean, C, &err);
        dt_parameter_write(m, "n.running_var", variance, C, &err);
        for (int i = 0; i < 4; i++) dt_parameter_read(m, names[i], before[i], C, &err);
        dt_parameter_read(m, "d.weight", w, 6, &err);
        batch.x[0] = x;
        batch.y[0] = y;
        batch.n = N;
        dt_forward(m, &batch, &err);
        dt_output_read(m, NULL, trained, &err);
        dt_predict(m, x, N, predicted, &err);
        for (int k = 0; k < N * C; k++) CHECK_NEAR(trained[k], predicted[k], 1e-6);
        for (int step = 0; step < 3; step++) dt_step(m, x, y, N, &err);
        for (int i = 0; i < 4; i++) {
            dt_parameter_read(m, names[i], after, C, &err);
            CHECK_MSG(!memcmp(before[i], after, sizeof after), "%s has changed", names[i]);
        }
        dt_parameter_read(m, "d.weight", w_after, 6, &err);
        CHECK_MSG(memcmp(w, w_after, sizeof w), "the layer in front is still trained");
        CHECK_OK(err);
        dt_model_free(m);
    }
}

/* ---- dropout ---------------------------------------------------------------------------------- */

NET(net_dropout, dt_dropout(x, 0.3))
NET(net_dropout_none, dt_dropout(x, 0))
NET(net_dropout_chain, dt_dense(dt_dropout(dt_tanh(dt_dense(x, 20)), 0.5), 3))
static dt_tensor *net_dropout_two(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_output(dt_dropout(x, 0.5), "a"), *b = dt_output(dt_dropout(x, 0.5), "b");
    return dt_add(a, b);
}

static void test_dropout_gradients(void) {
    static const op_case dropout_case[] = {
        { "dropout",       net_dropout,       { 40 },   0, 0, NULL },
        { "dropout 3-D",   net_dropout,       { 4, 9 }, 0, 0, NULL },
        { "dropout 0",     net_dropout_none,  { 40 },   0, 0, NULL },
        { "dropout chain", net_dropout_chain, { 9 },    0, 0, NULL },
        { "dropout two",   net_dropout_two,   { 9 },    0, 0, NULL },
    };
    check_all_gradients(dropout_case, COUNT(dropout_case));
}

static dt_model *dropout_model(dt_tensor *(*net)(dt_tensor *, void *), int replicas, uint64_t seed) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = net;
    o.input[0] = 256;
    o.batch = 64;
    o.replicas = replicas;
    o.seed = seed;
    o.loss = DT_MSE;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    return m;
}

static void test_dropout_mask(void) {
    enum { N = 64 * 256 };
    static float x[N], first[N], again[N], next[N], three[N], other[N];
    dt_error err = DT_DEFAULTS;
    for (int i = 0; i < N; i++) x[i] = 1;
    dt_batch batch = DT_DEFAULTS;
    batch.x[0] = x;
    batch.n = 64;
    dt_model *m = dropout_model(net_dropout, 1, 1), *m3 = dropout_model(net_dropout, 3, 1), *seeded = dropout_model(net_dropout, 1, 2);
    if (m && m3 && seeded) {
        int kept = 0, same_rows = 0;
        dt_forward(m, &batch, &err);
        dt_output_read(m, NULL, first, &err);
        dt_forward(m, &batch, &err);
        dt_output_read(m, NULL, again, &err);
        CHECK_MSG(!memcmp(first, again, sizeof first), "the mask is one per step");
        for (int i = 0; i < N; i++) {
            kept += first[i] != 0;
            if (first[i] != 0 && fabs(first[i] - 1 / 0.7) > 1e-6) { CHECK_NEAR(first[i], 1 / 0.7, 1e-6); break; }
        }
        CHECK_NEAR(kept / (double)N, 0.7, 0.015);  /* four deviations of a coin thrown 16384 times */
        for (int r = 1; r < 64; r++) same_rows += !memcmp(first, first + 256 * r, 256 * sizeof(float));
        CHECK(same_rows == 0);
        for (int c = 0; c < 256; c++) {  /* no column is lost in all samples */
            int in_column = 0;
            for (int r = 0; r < 64; r++) in_column += first[r * 256 + c] != 0;
            if (in_column < 20 || in_column > 63) { CHECK_MSG(0, "column %d is kept %d times of 64", c, in_column); break; }
        }
        dt_forward(m3, &batch, &err);
        dt_output_read(m3, NULL, three, &err);
        CHECK_MSG(!memcmp(first, three, sizeof first), "the mask does not depend on the replicas");
        dt_forward(seeded, &batch, &err);
        dt_output_read(seeded, NULL, other, &err);
        CHECK_MSG(memcmp(first, other, sizeof first), "another seed, another mask");
        dt_step(m, x, x, 64, &err);
        dt_forward(m, &batch, &err);
        dt_output_read(m, NULL, next, &err);
        CHECK_MSG(memcmp(first, next, sizeof first), "another step, another mask");
        int both = 0;
        for (int i = 0; i < N; i++) both += first[i] != 0 && next[i] != 0;
        CHECK_NEAR(both / (double)N, 0.49, 0.02);  /* masks of two steps are independent */
        dt_predict(m, x, 64, next, &err);
        CHECK_MSG(!memcmp(x, next, sizeof next), "nothing happens in inference");
        CHECK_OK(err);
    }
    dt_model_free(m);
    dt_model_free(m3);
    dt_model_free(seeded);
    m = dropout_model(net_dropout_two, 1, 1);
    if (m) {
        int both = 0;
        dt_forward(m, &batch, &err);
        dt_output_read(m, "a", first, &err);
        dt_output_read(m, "b", again, &err);
        for (int i = 0; i < N; i++) both += first[i] != 0 && again[i] != 0;
        CHECK_NEAR(both / (double)N, 0.25, 0.02);  /* masks of two layers are independent */
        CHECK_OK(err);
    }
    dt_model_free(m);
}

/* ---- activations ------------------------------------------------------------------------------ */

NET(net_relu, dt_relu(x))
NET(net_leaky_relu, dt_leaky_relu(x, 0.1))
NET(net_gelu, dt_gelu(x))
NET(net_gelu_tanh, dt_gelu_tanh(x))
NET(net_silu, dt_silu(x))
NET(net_tanh, dt_tanh(x))
NET(net_sigmoid, dt_sigmoid(x))
NET(net_softmax, dt_softmax(x))

static double ref_relu(double x) { return x > 0 ? x : 0; }
static double ref_leaky_relu(double x) { return x > 0 ? x : 0.1 * x; }
static double ref_gelu(double x) { return x * 0.5 * (1 + erf(x / sqrt(2.0))); }
static double ref_gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))); }
static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_silu(double x) { return x * ref_sigmoid(x); }

static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); double (*reference)(double); unsigned flags; } activation_case[] = {
    { "relu",       net_relu,       ref_relu,       OFF_CORNER },
    { "leaky_relu", net_leaky_relu, ref_leaky_relu, OFF_CORNER },
    { "gelu",       net_gelu,       ref_gelu,       0 },
    { "gelu_tanh",  net_gelu_tanh,  ref_gelu_tanh,  0 },
    { "silu",       net_silu,       ref_silu,       0 },
    { "tanh",       net_tanh,       tanh,           0 },
    { "sigmoid",    net_sigmoid,    ref_sigmoid,    0 },
};

static void test_activation_gradients(void) {
    for (int i = 0; i < COUNT(activation_case); i++) {
        const op_case flat = { activation_case[i].name, activation_case[i].net, { 37 }, activation_case[i].flags, 0, NULL };
        const op_case image = { activation_case[i].name, activation_case[i].net, { 3, 3, 2 }, activation_case[i].flags, 0, NULL };
        check_gradients(&flat);
        check_gradients(&image);
    }
}

static void test_activation_values(void) {
    enum { N = 4096 };
    static float x[N];
    for (int i = 0; i < N; i++) x[i] = (float)((i - N / 2) * (24.0 / N));  /* -12 .. 12, zero among them */
    static const float special[] = { 0, -0.0f, 1e-30f, -1e-30f, 1e-4f, -1e-4f, 50, -50, 90, -90, 200, -200, 1e4f, -1e4f };
    memcpy(x, special, sizeof special);
    for (int i = 0; i < COUNT(activation_case); i++) {
        const op_case c = { activation_case[i].name, activation_case[i].net, { N }, 0, 1, NULL };
        problem p;
        if (!forward_of(&p, &c, x)) continue;
        double *expected = (double *)need(N, sizeof(double));
        for (int k = 0; k < N; k++) expected[k] = activation_case[i].reference(x[k]);
        check_values(c.name, p.y, expected, N, 1e-6);
        /* in inference the same (activations may take another path there) */
        dt_error err = DT_DEFAULTS;
        CHECK(dt_predict(p.m, x, 1, p.y, &err) == 0);
        check_values(c.name, p.y, expected, N, 1e-6);
        free(expected);
        problem_close(&p);
    }
}

static void test_softmax(void) {
    static const op_case row[] = {
        { "softmax",     net_softmax, { 7 },    0, 0, NULL },
        { "softmax of 2", net_softmax, { 2 },   0, 0, NULL },
        { "softmax 3-D", net_softmax, { 4, 19 }, 0, 0, NULL },
    };
    check_all_gradients(row, COUNT(row));
    static const float shift[] = { 0, 100, -100, 10000 };  /* large values do not overflow */
    for (int i = 0; i < COUNT(row); i++)
        for (int s = 0; s < COUNT(shift); s++) {
            problem p;
            float x[5 * 4 * 19];
            random_state = 77;
            for (int k = 0; k < COUNT(x); k++) x[k] = (float)(5 * uniform()) + shift[s];
            if (!forward_of(&p, &row[i], x)) continue;
            const size_t d = (size_t)(row[i].input[1] ? row[i].input[1] : row[i].input[0]);
            double *expected = (double *)need(p.n_x, sizeof(double));
            for (size_t r = 0; r < p.n_x / d; r++) {
                double sum = 0;
                for (size_t k = 0; k < d; k++) sum += exp((double)x[r * d + k] - shift[s]);
                for (size_t k = 0; k < d; k++) expected[r * d + k] = exp((double)x[r * d + k] - shift[s]) / sum;
            }
            check_values(row[i].name, p.y, expected, p.n_y, 1e-6);
            free(expected);
            problem_close(&p);
        }
}

/* ---- arithmetic, and moving values about ------------------------------------------------------- */

static dt_tensor *net_two(dt_tensor *x, dt_tensor *(*op)(dt_tensor *, dt_tensor *)) {
    return op(dt_dense(x, 6, .name = "a"), dt_tanh(dt_dense(x, 6, .name = "b")));
}
NET(net_add, net_two(x, dt_add))
NET(net_sub, net_two(x, dt_sub))
NET(net_mul, net_two(x, dt_mul))
NET(net_add_same, dt_add(x, x))
NET(net_sub_same, dt_sub(x, x))
NET(net_mul_same, dt_mul(x, x))
NET(net_mul_dense_same, dt_mul(dt_dense(x, 4, .name = "a"), dt_dense(x, 4, .name = "b")))
NET(net_scale, dt_scale(x, -2.5, 0.75))
NET(net_scale_zero, dt_add(dt_scale(x, 0, 3), x))
NET(net_residual, dt_add(x, dt_dense(dt_tanh(dt_dense(x, 9)), 6)))
static dt_tensor *net_residual_deep(dt_tensor *x, void *user) {
    (void)user;
    for (int i = 0; i < 4; i++) x = dt_add(x, dt_tanh(dt_dense(x, 6)));
    return x;
}
static dt_tensor *net_diamond(dt_tensor *x, void *user) {  /* one tensor used four times */
    (void)user;
    dt_tensor *h = dt_tanh(dt_dense(x, 5));
    return dt_add(dt_mul(h, h), dt_sub(dt_dense(h, 5), dt_mul(h, dt_sigmoid(h))));
}
static dt_tensor *net_unused(dt_tensor *x, void *user) {  /* a branch that leads nowhere */
    (void)user;
    dt_dense(dt_tanh(x), 50, .name = "unused");
    return dt_dense(x, 3, .name = "used");
}
NET(net_flatten, dt_dense(dt_flatten(x), 5))
NET(net_flatten_conv, dt_dense(dt_flatten(dt_tanh(dt_conv2d(x, 4, 2))), 5))
NET(net_flatten_norm, dt_dense(dt_layernorm(dt_flatten(x)), 5))
NET(net_flatten_dropout, dt_dense(dt_dropout(dt_gelu(dt_flatten(x)), 0.25), 5))
NET(net_flatten_only, dt_flatten(x))
NET(net_reshape, dt_dense(dt_reshape(x, { 6, 4 }), 5))
NET(net_reshape_rest, dt_dense(dt_reshape(x, { -1, 4 }), 5))
NET(net_reshape_up, dt_conv2d(dt_reshape(dt_dense(x, 24), { 3, -1, 2 }), 3, 2))
NET(net_reshape_flat, dt_reshape(x, { -1 }))

static const op_case arithmetic_case[] = {
    { "add",                net_add,             { 5 },       0, 0, NULL },
    { "sub",                net_sub,             { 5 },       0, 0, NULL },
    { "mul",                net_mul,             { 5 },       0, 0, NULL },
    { "add twice the same", net_add_same,        { 5 },       0, 0, NULL },
    { "sub twice the same", net_sub_same,        { 5 },       0, 0, NULL },
    { "mul twice the same", net_mul_same,        { 3, 2, 4 }, 0, 0, NULL },
    { "mul of two denses",  net_mul_dense_same,  { 5 },       0, 0, NULL },
    { "scale",              net_scale,           { 5 },       0, 0, NULL },
    { "scale by 0",         net_scale_zero,      { 5 },       0, 0, NULL },
    { "residual",           net_residual,        { 6 },       0, 0, NULL },
    { "residual deep",      net_residual_deep,   { 6 },       0, 0, NULL },
    { "one tensor, 4 uses", net_diamond,         { 6 },       0, 0, NULL },
    { "unused branch",      net_unused,          { 6 },       0, 0, NULL },
    { "flatten",            net_flatten,         { 2, 3, 4 }, 0, 0, NULL },
    { "flatten of conv2d",  net_flatten_conv,    { 4, 3, 2 }, 0, 0, NULL },
    { "flatten, layernorm", net_flatten_norm,    { 2, 3, 4 }, 0, 0, NULL },
    { "flatten, dropout",   net_flatten_dropout, { 2, 3, 4 }, 0, 0, NULL },
    { "flatten alone",      net_flatten_only,    { 2, 3, 4 }, 0, 0, NULL },
    { "reshape",            net_reshape,         { 2, 3, 4 }, 0, 0, NULL },
    { "reshape -1",         net_reshape_rest,    { 2, 3, 4 }, 0, 0, NULL },
    { "reshape -1 up",      net_reshape_up,      { 7 },       0, 0, NULL },
    { "reshape {-1}",       net_reshape_flat,    { 2, 3, 4 }, 0, 0, NULL },
};
static void test_arithmetic_gradients(void) { check_all_gradients(arithmetic_case, COUNT(arithmetic_case)); }

static void test_arithmetic_values(void) {
    static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); double factor, offset, square; } row[] = {
        { "add same", net_add_same, 2, 0, 0 },          { "sub same", net_sub_same, 0, 0, 0 },  { "mul same", net_mul_same, 0, 0, 1 },
        { "scale",    net_scale,    -2.5, 0.75, 0 },    { "flatten",  net_flatten_only, 1, 0, 0 },  { "reshape", net_reshape_flat, 1, 0, 0 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        const op_case c = { row[i].name, row[i].net, { 2, 3, 5 }, 0, 0, NULL };
        problem p;
        if (!forward_of(&p, &c, NULL)) continue;
        double expected[5 * 30];
        for (int k = 0; k < 5 * 30; k++) expected[k] = row[i].factor * p.x[k] + row[i].offset + row[i].square * p.x[k] * p.x[k];
        check_values(c.name, p.y, expected, 5 * 30, 1e-6);
        problem_close(&p);
    }
}

/* A dense layer behind the flatten of an image has its weight in channels-first order, as PyTorch has it. */
NET(net_flatten_named, dt_dense(dt_flatten(x), 2, .name = "d"))
static void test_flatten_file_order(void) {
    static const op_case c = { "flatten in files", net_flatten_named, { 2, 3, 4 }, 0, 0, NULL };
    problem p;
    if (!forward_of(&p, &c, NULL)) return;
    const float *w = parameter_of(&p, "d.weight"), *b = parameter_of(&p, "d.bias");
    double expected[5 * 2];
    for (int s = 0; s < 5; s++)
        for (int u = 0; u < 2; u++) {
            double sum = b[u];
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 3; j++)
                    for (int k = 0; k < 4; k++)
                        sum += (double)p.x[((s * 2 + i) * 3 + j) * 4 + k] * w[u * 24 + (k * 2 + i) * 3 + j];
            expected[s * 2 + u] = sum;
        }
    check_values(c.name, p.y, expected, 5 * 2, 1e-5);
    problem_close(&p);
}

/* ---- concat, slice, pad ------------------------------------------------------------------------ */

typedef struct { int axis, a, b, step; } cut;  /* concat: axis; slice: begin, end; pad: before, after */

static dt_tensor *net_concat(dt_tensor *x, void *user) { return dt_concat(dt_tanh(x), dt_scale(x, 2, 0), ((const cut *)user)->axis); }
static dt_tensor *net_concat_uneven(dt_tensor *x, void *user) { (void)user; return dt_concat(dt_dense(x, 3), dt_dense(dt_concat(x, x, 1), 5), -1); }
static dt_tensor *net_slice(dt_tensor *x, void *user) {
    const cut *c = (const cut *)user;
    return dt_slice(x, c->axis, c->a, c->b, .step = c->step);
}
static dt_tensor *net_pad(dt_tensor *x, void *user) {
    const cut *c = (const cut *)user;
    return dt_pad(x, c->axis, c->a, c->b);
}
static dt_tensor *net_slice_twice(dt_tensor *x, void *user) {  /* overlapping parts of one tensor */
    (void)user;
    dt_tensor *h = dt_tanh(dt_dense(x, 8));
    return dt_add(dt_slice(h, 1, 0, 5), dt_slice(h, 1, 3, 8));
}

static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); int input[DT_MAX_RANK - 1]; cut c; } cut_case[] = {
    { "concat 1 of 2",          net_concat, { 4 },       { 1, 0, 0, 0 } },
    { "concat 1 of 4",          net_concat, { 3, 2, 4 }, { 1, 0, 0, 0 } },
    { "concat 2 of 4",          net_concat, { 3, 2, 4 }, { 2, 0, 0, 0 } },
    { "concat 3 of 4",          net_concat, { 3, 2, 4 }, { 3, 0, 0, 0 } },
    { "concat -1 of 4",         net_concat, { 3, 2, 4 }, { -1, 0, 0, 0 } },
    { "concat -2 of 3",         net_concat, { 3, 5 },    { -2, 0, 0, 0 } },
    { "slice 1, 2..5",          net_slice,  { 7 },       { 1, 2, 5, 0 } },
    { "slice 1, 0..0 = all",    net_slice,  { 7 },       { 1, 0, 0, 0 } },
    { "slice 1, 1..-1",         net_slice,  { 7 },       { 1, 1, -1, 0 } },
    { "slice 1, 1..-2 step 2",  net_slice,  { 8 },       { 1, 1, -2, 2 } },
    { "slice 2, 0..end step 3", net_slice,  { 3, 7, 2 }, { 2, 0, 0, 3 } },
    { "slice 3, 1..3",          net_slice,  { 3, 2, 4 }, { 3, 1, 3, 0 } },
    { "slice -1, 2..0",         net_slice,  { 3, 2, 4 }, { -1, 2, 0, 0 } },
    { "slice 1, 2..3",          net_slice,  { 3, 2, 4 }, { 1, 2, 3, 1 } },
    { "pad 1",                  net_pad,    { 4 },       { 1, 2, 1, 0 } },
    { "pad 1 of 4",             net_pad,    { 3, 2, 4 }, { 1, 1, 0, 0 } },
    { "pad 2 of 4",             net_pad,    { 3, 2, 4 }, { 2, 0, 2, 0 } },
    { "pad -1 of 4",            net_pad,    { 3, 2, 4 }, { -1, 1, 1, 0 } },
    { "pad by 0",               net_pad,    { 3, 2 },    { 1, 0, 0, 0 } },
};

/* The reference sees the tensor as [outer, axis, inner], the samples among the outer ones. */
static void check_cut(int i) {
    const int *input = cut_case[i].input;
    const cut *c = &cut_case[i].c;
    const op_case op = { cut_case[i].name, cut_case[i].net, { input[0], input[1], input[2] }, 0, 0, c };
    problem p;
    if (!forward_of(&p, &op, NULL)) return;
    int rank = 1, outer = p.n, inner = 1, out;
    while (input[rank - 1]) rank++;
    const int axis = c->axis < 0 ? rank + c->axis : c->axis, size = input[axis - 1];
    for (int k = 0; k < axis - 1; k++) outer *= input[k];
    for (int k = axis; k < rank - 1; k++) inner *= input[k];
    const int end = c->b > 0 ? c->b : size + c->b, step = or_one(c->step);
    if (op.net == net_concat) out = 2 * size;
    else if (op.net == net_pad) out = size + c->a + c->b;
    else out = (end - c->a + step - 1) / step;
    CHECK_MSG(p.n_y == (size_t)(outer * out * inner), "%s: %d values, expected %d", op.name, (int)p.n_y, outer * out * inner);
    if (p.n_y == (size_t)(outer * out * inner)) {
        double *expected = (double *)need(p.n_y, sizeof(double));
        for (int o = 0; o < outer; o++)
            for (int k = 0; k < out; k++)
                for (int j = 0; j < inner; j++) {
                    double v;
                    if (op.net == net_concat) v = k < size ? tanh(p.x[(o * size + k) * inner + j]) : 2 * p.x[(o * size + k - size) * inner + j];
                    else if (op.net == net_pad) v = k < c->a || k >= c->a + size ? 0 : p.x[(o * size + k - c->a) * inner + j];
                    else v = p.x[(o * size + c->a + k * step) * inner + j];
                    expected[(o * out + k) * inner + j] = v;
                }
        check_values(op.name, p.y, expected, p.n_y, 1e-6);
        free(expected);
    }
    problem_close(&p);
    check_gradients(&op);
}

static void test_concat_slice_pad(void) {
    for (int i = 0; i < COUNT(cut_case); i++) check_cut(i);
    static const op_case more[] = {
        { "concat uneven", net_concat_uneven, { 4 }, 0, 0, NULL },
        { "slice twice",   net_slice_twice,   { 4 }, 0, 0, NULL },
    };
    check_all_gradients(more, COUNT(more));
}

/* ---- embedding --------------------------------------------------------------------------------- */

NET(net_embedding, dt_embedding(x, 10, 7, .name = "e"))
NET(net_embedding_chain, dt_dense(dt_flatten(dt_tanh(dt_embedding(x, 10, 4))), 3))
static dt_tensor *net_embedding_shared(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_embedding(x, 10, 4);
    return dt_mul(a, dt_tanh(dt_embedding(x, 10, 4, .share = a)));
}
static const op_case embedding_case[] = {
    { "embedding",        net_embedding,        { 6 },    TOKENS, 0, NULL },
    { "embedding of one", net_embedding,        { 1 },    TOKENS, 0, NULL },
    { "embedding 2-D",    net_embedding,        { 2, 3 }, TOKENS, 0, NULL },
    { "embedding chain",  net_embedding_chain,  { 6 },    TOKENS, 0, NULL },
    { "embedding shared", net_embedding_shared, { 6 },    TOKENS, 0, NULL },
};

static void test_embedding(void) {
    check_all_gradients(embedding_case, COUNT(embedding_case));
    for (int i = 0; i < COUNT(embedding_case); i++) {
        problem p;
        if (embedding_case[i].net != net_embedding || !forward_of(&p, &embedding_case[i], NULL)) continue;
        const float *w = parameter_of(&p, "e.weight");
        double *expected = (double *)need(p.n_x * 7, sizeof(double));
        CHECK(p.n_y == p.n_x * 7);
        for (size_t k = 0; k < p.n_x; k++)
            for (int j = 0; j < 7; j++) expected[k * 7 + (size_t)j] = w[p.tokens[k] * 7 + j];
        check_values(embedding_case[i].name, p.y, expected, p.n_y, 0);
        free(expected);
        problem_close(&p);
    }
}

static void test_embedding_refuses_unknown_tokens(void) {
    static const int bad[] = { 10, -1, 2147483647 };
    for (int i = 0; i < COUNT(bad); i++) {
        problem p;
        dt_error err = DT_DEFAULTS;
        char value[16];
        if (!problem_open(&p, &embedding_case[0], 1)) return;
        p.tokens[8] = bad[i];
        dt_batch batch = DT_DEFAULTS;
        batch.x[0] = p.tokens;
        batch.n = p.n;
        CHECK(isnan(dt_forward(p.m, &batch, &err)));
        snprintf(value, sizeof value, "%d", bad[i]);
        CHECK_ERROR(err, DT_ERR_ARGUMENT, value);
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "0..9");
        err.code = 0;
        CHECK(dt_predict(p.m, p.tokens, p.n, p.y, &err) == DT_ERR_ARGUMENT);
        problem_close(&p);
    }
}

/* ---- custom operations, several inputs and outputs ---------------------------------------------- */

/* y = x0 * w + x1^2, with w per column */
static int blend_forward(const dt_custom_call *call) {
    const int width = *(const int *)call->user;
    for (int i = 0; i < call->n * width; i++) call->y[i] = call->x[0][i] * call->weight[i % width] + call->x[1][i] * call->x[1][i];
    return call->n_inputs == 2 ? 0 : -1;
}
static int blend_backward(const dt_custom_call *call) {
    const int width = *(const int *)call->user;
    for (int i = 0; i < call->n * width; i++) {
        if (call->dx[0]) call->dx[0][i] += call->dy[i] * call->weight[i % width];
        if (call->dx[1]) call->dx[1][i] += call->dy[i] * 2 * call->x[1][i];
        if (call->dweight) call->dweight[i % width] += call->dy[i] * call->x[0][i];
    }
    return 0;
}
/* y = the sum of the exponentials of a row: another shape, and backward reads y */
static int sumexp_forward(const dt_custom_call *call) {
    const int width = *(const int *)call->user;
    for (int i = 0; i < call->n; i++) {
        call->y[i] = 0;
        for (int k = 0; k < width; k++) call->y[i] += expf(call->x[0][i * width + k]);
        call->y[i] = logf(call->y[i]);
    }
    return 0;
}
static int sumexp_backward(const dt_custom_call *call) {
    const int width = *(const int *)call->user;
    for (int i = 0; call->dx[0] && i < call->n * width; i++) call->dx[0][i] += call->dy[i / width] * expf(call->x[0][i] - call->y[i / width]);
    return 0;
}
static int failing(const dt_custom_call *call) { return call->training ? -7 : 0; }

static int width_4 = 4;
static dt_tensor *net_custom(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *b = dt_tanh(dt_dense(x, 4));
    return dt_custom(x, { 4 }, blend_forward, blend_backward, &width_4, .more = { b }, .weight = { 4 }, .init = DT_NORMAL, .init_value = 0.5, .name = "blend");
}
NET(net_custom_same, dt_custom(x, { 0 }, blend_forward, blend_backward, &width_4, .more = { x }, .weight = { 4 }))
NET(net_custom_shape, dt_custom(dt_dense(x, 4), { 1 }, sumexp_forward, sumexp_backward, &width_4))
NET(net_custom_end, dt_dense(dt_custom(x, { 4 }, blend_forward, blend_backward, &width_4, .more = { dt_scale(x, 0.5, 1) }, .weight = { 4 }), 3))
NET(net_custom_failing, dt_custom(x, { 0 }, failing, failing, NULL, .name = "broken"))
NET(net_custom_half, dt_add(x, dt_custom(dt_dense(x, 4, .name = "before"), { 4 }, blend_forward, NULL, &width_4, .more = { x }, .weight = { 4 }, .name = "c")))

static dt_tensor *net_inputs(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *meta = dt_input(x, "meta", { 5 });
    return dt_dense(dt_tanh(dt_concat(dt_dense(x, 4), dt_dense(meta, 3), 1)), 2);
}
static dt_tensor *net_losses(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *h = dt_tanh(dt_dense(x, 6)), *a = dt_dense(h, 3), *b = dt_dense(h, 2);
    dt_loss(dt_mul(a, a), DT_VALUE, .name = "a", .weight = 0.3);
    dt_loss(dt_mul(b, dt_sigmoid(b)), DT_VALUE, .name = "b");
    return h;
}
static dt_tensor *net_loss_inside(dt_tensor *x, void *user) {  /* dt_loss returns its tensor */
    (void)user;
    dt_tensor *a = dt_loss(dt_mul(x, x), DT_VALUE, .name = "a", .weight = 2);
    return dt_loss(dt_tanh(dt_dense(a, 3)), DT_VALUE, .name = "b");
}

static const op_case graph_case[] = {
    { "custom with a weight and two inputs", net_custom,       { 4 },    0, 0, NULL },
    { "custom of the same tensor twice",     net_custom_same,  { 4 },    0, 0, NULL },
    { "custom of another shape",             net_custom_shape, { 5 },    0, 0, NULL },
    { "custom before dense",                 net_custom_end,   { 4 },    0, 0, NULL },
    { "two inputs",                          net_inputs,       { 6 },    TWO_INPUTS, 0, NULL },
    { "two losses",                          net_losses,       { 6 },    LOSSES, 0, NULL },
    { "a loss inside",                       net_loss_inside,  { 6 },    LOSSES, 0, NULL },
};
static void test_custom_inputs_losses(void) { check_all_gradients(graph_case, COUNT(graph_case)); }

static void test_custom_failure_is_reported(void) {
    dt_error err = DT_DEFAULTS;
    float x[4] = { 1, 2, 3, 4 }, y[4];
    dt_batch batch = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = net_custom_failing;
    o.input[0] = 4;
    o.batch = 1;
    batch.x[0] = x;
    batch.n = 1;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    if (!m) return;
    CHECK(isnan(dt_forward(m, &batch, &err)));
    CHECK_ERROR(err, DT_ERR_CALLBACK, "broken");
    err.code = 0;
    CHECK_MSG(dt_predict(m, x, 1, y, &err) == 0, "%s", err.text);  /* it fails in training only */
    dt_model_free(m);
}

/* Without a backward callback nothing flows, neither into the inputs nor into the weight. */
static void test_custom_without_backward(void) {
    static const op_case c = { "custom without backward", net_custom_half, { 4 }, 0, 0, NULL };
    problem p;
    if (!problem_open(&p, &c, 1)) return;
    problem_gradients(&p);
    for (int i = 0; i < p.n_blocks; i++)
        for (size_t k = 0; k < p.b[i].n; k++)
            CHECK_NEAR(p.b[i].gradient[k], p.b[i].name ? 0 : p.pull[k] / p.n, 1e-6);
    problem_close(&p);
}

static dt_tensor *net_outputs(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *h = dt_output(dt_tanh(x), "code");
    dt_output(dt_scale(h, 3, 0), "aside");  /* an output that the result does not need */
    return dt_scale(h, 2, 1);
}
static void test_outputs(void) {
    static const op_case c = { "outputs", net_outputs, { 3, 2 }, 0, 0, NULL };
    for (int replicas = 1; replicas <= 3; replicas += 2) {
        problem p;
        dt_error err = DT_DEFAULTS;
        float y[30];
        if (!problem_open(&p, &c, replicas)) return;
        problem_loss(&p);
        CHECK(dt_output_read(p.m, "code", y, &err) == 0);
        for (int i = 0; i < 30; i++) CHECK_NEAR(y[i], tanh(p.x[i]), 1e-6);
        CHECK(dt_output_read(p.m, "aside", y, &err) == 0);
        for (int i = 0; i < 30; i++) CHECK_NEAR(y[i], 3 * tanh(p.x[i]), 1e-6);
        CHECK(dt_output_read(p.m, NULL, y, &err) == 0);
        for (int i = 0; i < 30; i++) CHECK_NEAR(y[i], 2 * tanh(p.x[i]) + 1, 1e-6);
        /* they are still there after the backward pass */
        CHECK(dt_backward_from(p.m, y, &err) == 0 && dt_output_read(p.m, "code", y, &err) == 0);
        for (int i = 0; i < 30; i++) CHECK_NEAR(y[i], tanh(p.x[i]), 1e-6);
        CHECK_OK(err);
        CHECK(dt_output_read(p.m, "nowhere", y, &err) != 0);
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "nowhere");
        problem_close(&p);
    }
}

/* Further inputs come in the order of their names, each in its own type. */
static dt_tensor *net_typed_inputs(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *words = dt_flatten(dt_embedding(dt_input(x, "words", { 2 }, .type = DT_INT32), 10, 3, .name = "e"));
    dt_tensor *bytes = dt_input(x, "bytes", { 4 }, .type = DT_UINT8);
    return dt_concat(dt_concat(x, words, 1), bytes, 1);
}
static void test_inputs_of_other_types(void) {
    enum { N = 5 };
    for (int replicas = 1; replicas <= 3; replicas++) {
        dt_error err = DT_DEFAULTS;
        dt_batch batch = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        float x[N * 2], y[N * 12], e[30];
        int words[N * 2];
        unsigned char bytes[N * 4];
        o.net = net_typed_inputs;
        o.input[0] = 2;
        o.batch = N;
        o.replicas = replicas;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        for (int i = 0; i < N * 2; i++) { x[i] = (float)i; words[i] = i * 7 % 10; }
        for (int i = 0; i < N * 4; i++) bytes[i] = (unsigned char)(i * 13);
        batch.x[0] = x;
        batch.x[1] = bytes;
        batch.x[2] = words;
        batch.n = N;
        dt_forward(m, &batch, &err);
        dt_output_read(m, NULL, y, &err);
        dt_parameter_read(m, "e.weight", e, 30, &err);
        CHECK_OK(err);
        for (int s = 0; s < N; s++)
            for (int k = 0; k < 12; k++)
                CHECK_NEAR(y[s * 12 + k], k < 2 ? x[s * 2 + k] : k < 8 ? e[words[s * 2 + (k - 2) / 3] * 3 + (k - 2) % 3] : bytes[s * 4 + k - 8] / 255.0, 1e-6);
        batch.x[2] = NULL;
        CHECK(isnan(dt_forward(m, &batch, &err)));
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "words");
        dt_model_free(m);
    }
}

/* ---- random graphs: what the memory plan must survive --------------------------------------------- */

/* Ten operations on tensors chosen at random among all earlier ones, so that values live long, die at once,
 * are used several times and in both places of an operation. */
static uint32_t dice_state;
static int dice(int sides) {
    dice_state = dice_state * 1664525u + 1013904223u;
    return (int)((dice_state >> 16) % (uint32_t)sides);
}
static int last_dim(const dt_tensor *t) { return dt_dim(t, dt_rank(t) - 1); }

/* b with the width (or channels) of a */
static dt_tensor *fitted(dt_tensor *a, dt_tensor *b) { return last_dim(a) == last_dim(b) ? b : dt_dense(b, last_dim(a), .no_bias = dice(2)); }

static dt_tensor *net_random(dt_tensor *x, void *user) {
    dt_tensor *t[11];
    const int image = dt_rank(x) == 4;
    dice_state = *(const uint32_t *)user * 2654435761u + 17;
    t[0] = x;
    for (int i = 1; i < COUNT(t); i++) {
        dt_tensor *a = t[dice(3) ? i - 1 : dice(i)], *b = t[dice(i)];
        const int width = last_dim(a), axis = dt_rank(a) - 1;
        switch (dice(16)) {
        case 0:  t[i] = dt_dense(a, 2 + dice(8)); break;
        case 1:  t[i] = image ? dt_conv2d(a, 2 + dice(5), 3, .padding = DT_SAME) : dt_dense(dt_tanh(a), width); break;
        case 2:  t[i] = dt_tanh(a); break;
        case 3:  t[i] = dt_sigmoid(a); break;
        case 4:  t[i] = dt_gelu(a); break;
        case 5:  t[i] = dt_scale(a, 0.8, -0.1); break;
        case 6:  t[i] = dt_layernorm(a, .epsilon = 0.2); break;
        case 7:  t[i] = dt_add(a, fitted(a, b)); break;
        case 8:  t[i] = dt_mul(dt_tanh(a), fitted(a, b)); break;
        case 9:  t[i] = dt_sub(fitted(a, b), a); break;
        case 10: t[i] = width < 12 ? dt_concat(a, b, axis) : dt_silu(a); break;
        case 11: t[i] = width > 3 ? dt_slice(a, axis, dice(2), 0, .step = 1 + dice(2)) : dt_add(a, a); break;
        case 12: t[i] = image ? dt_avgpool2d(a, 3, .stride = 1, .padding = 1) : dt_pad(a, 1, dice(2), 1); break;
        case 13: t[i] = dt_dropout(a, 0.3); break;
        case 14: t[i] = dt_batchnorm(a, .epsilon = 0.2, .sync = 1); break;
        default: t[i] = dt_softmax(dt_scale(a, 2, 0)); break;
        }
    }
    x = dt_concat(t[COUNT(t) - 1], t[dice(COUNT(t))], dt_rank(x) - 1);
    return image ? dt_dense(dt_flatten(x), 4) : x;
}

static void test_random_graphs(void) {
    for (uint32_t seed = 1; seed <= 120; seed++) {
        char name[32];
        snprintf(name, sizeof name, "random graph %u", (unsigned)seed);
        const op_case flat = { name, net_random, { 6 }, 0, 6, &seed }, image = { name, net_random, { 3, 4, 2 }, 0, 4, &seed };
        const op_case *c = seed % 3 ? &flat : &image;
        check_gradients(c);

        /* a model for inference alone lays its memory out tighter, and says the same */
        problem p;
        dt_error err = DT_DEFAULTS;
        if (!problem_open(&p, c, 1)) return;
        float *y = (float *)need(p.n_y, sizeof(float));
        dt_options o = DT_DEFAULTS;
        o.net = measured_net;
        o.user = &p;
        memcpy(o.input, c->input, sizeof o.input);
        o.inference = 1;
        o.batch = 4;
        o.replicas = 1;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s: %s", name, err.text);
        for (int i = 1; m && i < p.n_blocks; i++) dt_parameter_write(m, p.b[i].name, p.b[i].value, p.b[i].n, &err);
        if (m) dt_predict(m, p.x, p.n, y, &err);
        dt_predict(p.m, p.x, p.n, p.y, &err);
        CHECK_MSG(!err.code, "%s: %s", name, err.text);
        for (size_t i = 0; i < p.n_y; i++)
            if (!(fabsf(y[i] - p.y[i]) <= 2e-6f * (1 + fabsf(p.y[i])))) { CHECK_MSG(0, "%s: inference alone gives y[%d] = %g, with training %g", name, (int)i, y[i], p.y[i]); break; }
        dt_model_free(m);
        free(y);
        problem_close(&p);
    }
}

/* ---- pixels and initializers --------------------------------------------------------------------- */

NET(net_same, dt_scale(x, 1, 0))
static void test_byte_input(void) {
    dt_error err = DT_DEFAULTS;
    unsigned char x[256];
    float y[256];
    dt_options o = DT_DEFAULTS;
    o.net = net_same;
    o.input[0] = 256;
    o.input_type = DT_UINT8;
    o.batch = 1;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    if (!m) return;
    for (int i = 0; i < 256; i++) x[i] = (unsigned char)i;
    CHECK_MSG(dt_predict(m, x, 1, y, &err) == 0, "%s", err.text);
    for (int i = 0; i < 256; i++) CHECK_NEAR(y[i], i / 255.0, 1e-7);
    dt_model_free(m);
}

typedef struct { const char *name; dt_initializer init; double value, mean, deviation, bound; } init_case;
enum { FAN_IN = 300, FAN_OUT = 200 };
static dt_tensor *net_init(dt_tensor *x, void *user) {
    const init_case *c = (const init_case *)user;
    return dt_dense(x, FAN_OUT, .init = c->init, .init_value = c->value, .name = "d");
}
static dt_tensor *net_init_conv(dt_tensor *x, void *user) {  /* fan_in 300 = 12 * 5 * 5; fan_out 200 = 8 * 5 * 5 */
    const init_case *c = (const init_case *)user;
    return dt_conv2d(x, 8, 5, .init = c->init, .init_value = c->value, .name = "d");
}
static void test_initializers(void) {
    static const init_case row[] = {  /* the deviation of a uniform distribution is bound / sqrt(3) */
        { "glorot uniform", DT_GLOROT_UNIFORM, 0, 0, 0.06324555, 0.10954451 },
        { "glorot normal",  DT_GLOROT_NORMAL,  0, 0, 0.06324555, 0 },
        { "he uniform",     DT_HE_UNIFORM,     0, 0, 0.08164966, 0.14142136 },
        { "he normal",      DT_HE_NORMAL,      0, 0, 0.08164966, 0 },
        { "lecun uniform",  DT_LECUN_UNIFORM,  0, 0, 0.05773503, 0.1 },
        { "lecun normal",   DT_LECUN_NORMAL,   0, 0, 0.05773503, 0 },
        { "uniform",        DT_UNIFORM,        0, 0, 0.02886751, 0.05 },
        { "uniform 0.3",    DT_UNIFORM,        0.3, 0, 0.17320508, 0.3 },
        { "normal",         DT_NORMAL,         0, 0, 0.05, 0 },
        { "normal 2",       DT_NORMAL,         2, 0, 2, 0 },
        { "constant",       DT_CONSTANT,       0.25, 0.25, 0, 0.25 },
        { "constant 0",     DT_CONSTANT,       0, 0, 0, 1e-30 },
    };
    static float w[FAN_IN * FAN_OUT], bias[FAN_OUT];
    for (int i = 0; i < 2 * COUNT(row); i++) {
        const init_case *c = &row[i / 2];
        const int conv = i % 2, size = conv ? 8 * 12 * 25 : FAN_IN * FAN_OUT, n_bias = conv ? 8 : FAN_OUT;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = conv ? net_init_conv : net_init;
        o.user = (void *)(uintptr_t)c;
        o.input[0] = conv ? 5 : FAN_IN;
        if (conv) { o.input[1] = 5; o.input[2] = 12; }
        o.batch = 1;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s: %s", c->name, err.text);
        if (!m) continue;
        double sum = 0, square = 0, largest = 0;
        dt_parameter_read(m, "d.weight", w, (size_t)size, &err);
        dt_parameter_read(m, "d.bias", bias, (size_t)n_bias, &err);
        CHECK_OK(err);
        for (int k = 0; k < size; k++) {
            sum += w[k];
            largest = fabs(w[k]) > largest ? fabs(w[k]) : largest;
        }
        for (int k = 0; k < size; k++) square += pow(w[k] - sum / size, 2);
        const double deviation = sqrt(square / size), noise = 5 * c->deviation / sqrt(size);
        CHECK_MSG(fabs(sum / size - c->mean) <= noise + 1e-7, "%s: mean %g", c->name, sum / size);
        CHECK_MSG(fabs(deviation - c->deviation) <= noise + 1e-7, "%s: deviation %g, expected %g", c->name, deviation, c->deviation);
        if (c->bound > 0) CHECK_MSG(largest <= c->bound * 1.000001 && largest >= c->bound * 0.99 - 1e-29, "%s: largest %g, bound %g", c->name, largest, c->bound);
        for (int k = 0; k < n_bias; k++) if (bias[k] != 0) { CHECK(bias[k] == 0); break; }
        dt_model_free(m);
    }
}

static dt_tensor *net_orthogonal(dt_tensor *x, void *user) {
    const int units = *(const int *)user;
    return dt_dense(x, units, .init = DT_ORTHOGONAL, .init_value = units == 20 ? 1.5 : 0, .name = "d");
}
static void test_orthogonal(void) {
    static const int units[] = { 8, 20, 33 };  /* rows of 20 values */
    for (int i = 0; i < COUNT(units); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        float w[33 * 20];
        o.net = net_orthogonal;
        o.user = (void *)(uintptr_t)&units[i];
        o.input[0] = 20;
        o.batch = 1;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) continue;
        const int rows = units[i] <= 20, count = rows ? units[i] : 20, length = rows ? 20 : units[i];
        const double square = units[i] == 20 ? 2.25 : 1;
        dt_parameter_read(m, "d.weight", w, (size_t)(units[i] * 20), &err);
        CHECK_OK(err);
        for (int a = 0; a < count; a++)
            for (int b = 0; b < count; b++) {
                double dot = 0;
                for (int k = 0; k < length; k++) dot += rows ? (double)w[a * 20 + k] * w[b * 20 + k] : (double)w[k * 20 + a] * w[k * 20 + b];
                if (fabs(dot - (a == b ? square : 0)) > 1e-5) CHECK_NEAR(dot, a == b ? square : 0, 1e-5);
            }
        dt_model_free(m);
    }
}

static dt_tensor *net_orthogonal_conv(dt_tensor *x, void *user) { (void)user; return dt_conv2d(x, 8, 3, .groups = 2, .init = DT_ORTHOGONAL, .name = "c"); }
static void test_orthogonal_conv(void) {  /* the filters of each group, as PyTorch flattens them: [filters][c / groups * kernel * kernel] */
    enum { FILTERS = 8, LENGTH = 2 * 3 * 3 };
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    float w[FILTERS * LENGTH];
    o.net = net_orthogonal_conv, o.input[0] = o.input[1] = 3, o.input[2] = 4, o.batch = 1;
    dt_model *m = dt_model_create(&o, &err);
    dt_parameter_read(m, "c.weight", w, FILTERS * LENGTH, &err);
    CHECK_OK(err);
    for (int a = 0; a < FILTERS; a++)
        for (int b = 0; b < FILTERS; b++) {
            double dot = 0;
            if (a / 4 != b / 4) continue;
            for (int k = 0; k < LENGTH; k++) dot += (double)w[a * LENGTH + k] * w[b * LENGTH + k];
            if (fabs(dot - (a == b)) > 1e-5) CHECK_NEAR(dot, a == b, 1e-5);
        }
    dt_model_free(m);
}

int main(void) {
    RUN(test_dense_values);
    RUN(test_dense_gradients);
    RUN(test_conv2d);
    RUN(test_winograd);
    RUN(test_fusion);
    RUN(test_overflow_in_the_last_strip);
    RUN(test_conv2d_sweep);
    RUN(test_conv2d_combined);
    RUN(test_maxpool);
    RUN(test_avgpool);
    RUN(test_global_avgpool);
    RUN(test_norm_gradients);
    RUN(test_layernorm_values);
    RUN(test_batchnorm_training_values);
    RUN(test_batchnorm_far_from_zero);
    RUN(test_batchnorm_running_statistics);
    RUN(test_batchnorm_frozen);
    RUN(test_dropout_gradients);
    RUN(test_dropout_mask);
    RUN(test_activation_gradients);
    RUN(test_activation_values);
    RUN(test_softmax);
    RUN(test_arithmetic_gradients);
    RUN(test_arithmetic_values);
    RUN(test_flatten_file_order);
    RUN(test_concat_slice_pad);
    RUN(test_embedding);
    RUN(test_embedding_refuses_unknown_tokens);
    RUN(test_custom_inputs_losses);
    RUN(test_custom_failure_is_reported);
    RUN(test_custom_without_backward);
    RUN(test_outputs);
    RUN(test_inputs_of_other_types);
    RUN(test_random_graphs);
    RUN(test_byte_input);
    RUN(test_initializers);
    RUN(test_orthogonal);
    RUN(test_orthogonal_conv);
    return finish();
}
