/* golden.c - every operation, loss and schedule, and whole trainings, against PyTorch (golden/layers.py).
 *
 * All on every instruction set of this machine, each in a process of its own. GOLDEN_SHOW=1 prints the largest
 * difference of each case, in units of the largest value of the tensor it is in.
 */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "test.h"
#include "golden/layers.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* In units of the largest value in the tensor: a sum of a few dozen products is right to some 1e-7 of it. */
#define TOLERANCE 1e-6
#define TOLERANCE_TRAINED 5e-6  /* after five steps, in which differences grow */

/* ---- the numbers that layers.py draws ------------------------------------------------------------ */

static uint32_t draw_state;
static double draw(void) {
    draw_state = draw_state * 1664525u + 1013904223u;
    return (double)(draw_state >> 8) / 8388608.0 - 1.0;
}

static float *draw_floats(int n, double offset, double factor, int quarters) {
    float *v = (float *)calloc((size_t)n + 1, sizeof *v);
    if (!v) { printf("no memory for the test\n"); exit(1); }
    for (int i = 0; i < n; i++) {
        double d = offset + factor * draw();
        if (quarters) d = floor(d * 4) / 4;
        v[i] = (float)d;
    }
    return v;
}

static int *draw_tokens(int n, int tokens) {
    int *v = (int *)calloc((size_t)n + 1, sizeof *v);
    if (!v) { printf("no memory for the test\n"); exit(1); }
    for (int i = 0; i < n; i++) v[i] = (int)((draw() + 1) / 2 * tokens);
    return v;
}

static int product(const int *shape) {
    int n = 1;
    for (int i = 0; i < 4 && shape[i]; i++) n *= shape[i];
    return n;
}

/* ---- differences ---------------------------------------------------------------------------------- */

static double case_difference, case_tolerance;  /* the largest of a case */

static void compare(const char *name, const char *what, const float *got, const double *expected, int n, double tolerance) {
    double largest = 0, worst = 0;
    int at = 0;
    for (int i = 0; i < n; i++) if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
    for (int i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - expected[i]);
        if (!(d <= worst)) { worst = d; at = i; }
        if (d != d) break;
    }
    CHECK_MSG(worst <= tolerance * largest, "%s: %s[%d] is %.9g, expected %.9g; the largest value is %.4g", name, what, at, n ? got[at] : 0, n ? expected[at] : 0, largest);
    worst /= largest > 0 ? largest : 1;
    if (worst > case_difference) case_difference = worst;
    case_tolerance = tolerance;
}

static void show(const char *name) {
    if (getenv("GOLDEN_SHOW")) printf("  %-8s %-42s %.1e of %.0e\n", dt__cpu()->name, name, case_difference, case_tolerance);
    case_difference = 0;
}

/* ---- operations -------------------------------------------------------------------------------------- */

#define NET(name, ...) static dt_tensor *name(dt_tensor *x, void *user) { (void)user; return __VA_ARGS__; }
#define CONV(x, filters, kernel, ...) dt_conv2d(x, filters, kernel, .name = "c", __VA_ARGS__)

NET(dense_7, dt_dense(x, 7, .name = "d"))
NET(dense_4_no_bias, dt_dense(x, 4, .name = "d", .no_bias = 1))
NET(dense_7_no_bias, dt_dense(x, 7, .name = "d", .no_bias = 1))
NET(dense_1, dt_dense(x, 1, .name = "d"))
NET(dense_9, dt_dense(x, 9, .name = "d"))
static dt_tensor *dense_shared(dt_tensor *x, void *user) {
    (void)user;
    x = dt_dense(x, 6, .name = "d");
    return dt_dense(dt_tanh(x), 6, .share = x);
}
static dt_tensor *dense_branches(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dense(x, 4, .name = "d");
    return dt_mul(a, dt_dense(dt_sigmoid(x), 4, .share = a));
}

NET(conv_1x1, dt_conv2d(x, 4, 1, .name = "c"))
NET(conv_3x3, dt_conv2d(x, 4, 3, .name = "c"))
NET(conv_3x3_no_bias, CONV(x, 3, 3, .no_bias = 1))
NET(conv_stride_2, CONV(x, 3, 3, .stride = 2))
NET(conv_stride_3_padding_1, CONV(x, 3, 3, .stride = 3, .padding = 1))
NET(conv_stride_3_kernel_2, CONV(x, 3, 2, .stride = 3))
NET(conv_padding_1, CONV(x, 2, 3, .padding = 1))
NET(conv_padding_3, CONV(x, 2, 3, .padding = 3))
NET(conv_same, CONV(x, 3, 3, .padding = DT_SAME))
NET(conv_same_kernel_2, CONV(x, 3, 2, .padding = DT_SAME))
NET(conv_same_kernel_4, CONV(x, 2, 4, .padding = DT_SAME))
NET(conv_same_kernel_5, CONV(x, 2, 5, .padding = DT_SAME))
NET(conv_same_stride_2, CONV(x, 3, 3, .padding = DT_SAME, .stride = 2))
NET(conv_same_stride_2_even, CONV(x, 2, 3, .padding = DT_SAME, .stride = 2))
NET(conv_same_stride_2_kernel_4, CONV(x, 2, 4, .padding = DT_SAME, .stride = 2))
NET(conv_same_stride_3_kernel_1, CONV(x, 3, 1, .padding = DT_SAME, .stride = 3))
NET(conv_same_stride_2_dilation_2, CONV(x, 2, 3, .padding = DT_SAME, .stride = 2, .dilation = 2))
NET(conv_dilation_2, CONV(x, 3, 3, .dilation = 2))
NET(conv_dilation_2_same, CONV(x, 3, 3, .dilation = 2, .padding = DT_SAME))
NET(conv_dilation_3_padding_2, CONV(x, 2, 3, .dilation = 3, .padding = 2))
NET(conv_groups_2, CONV(x, 6, 3, .groups = 2))
NET(conv_groups_3, CONV(x, 3, 3, .groups = 3, .stride = 2, .padding = 1))
NET(conv_depthwise, CONV(x, 5, 3, .groups = 5))
NET(conv_depthwise_same_stride_2, CONV(x, 3, 3, .groups = 3, .padding = DT_SAME, .stride = 2))
NET(conv_depthwise_dilation_2, CONV(x, 3, 3, .groups = 3, .padding = 2, .dilation = 2, .no_bias = 1))
NET(conv_depthwise_times_2, CONV(x, 6, 3, .groups = 3, .padding = 1))
NET(conv_kernel_w, CONV(x, 2, 2, .kernel_w = 4))
NET(conv_kernel_w_same, CONV(x, 2, 1, .kernel_w = 5, .padding = DT_SAME))
NET(conv_kernel_w_same_stride_2, CONV(x, 2, 3, .kernel_w = 2, .padding = DT_SAME, .stride = 2))
NET(conv_everything, CONV(x, 4, 3, .kernel_w = 2, .stride = 2, .padding = 2, .dilation = 2, .groups = 2, .no_bias = 1))
NET(conv_17_to_9, CONV(x, 9, 1, .kernel_w = 2))
static dt_tensor *conv_shared(dt_tensor *x, void *user) {
    (void)user;
    x = CONV(x, 2, 3, .padding = DT_SAME);
    return dt_conv2d(dt_tanh(x), 2, 3, .padding = DT_SAME, .share = x);
}

NET(maxpool_2, dt_maxpool2d(x, 2))
NET(maxpool_3_stride_2, dt_maxpool2d(x, 3, .stride = 2))
NET(maxpool_3_stride_1_padding_1, dt_maxpool2d(x, 3, .stride = 1, .padding = 1))
NET(maxpool_3_stride_2_padding_1, dt_maxpool2d(x, 3, .stride = 2, .padding = 1))
NET(maxpool_2_stride_3, dt_maxpool2d(x, 2, .stride = 3))
NET(avgpool_2, dt_avgpool2d(x, 2))
NET(avgpool_3_stride_2, dt_avgpool2d(x, 3, .stride = 2))
NET(avgpool_3_stride_1_padding_1, dt_avgpool2d(x, 3, .stride = 1, .padding = 1))
NET(avgpool_4_stride_3_padding_2, dt_avgpool2d(x, 4, .stride = 3, .padding = 2))
NET(global_avgpool, dt_global_avgpool(x))

NET(flatten_dense, dt_dense(dt_flatten(x), 3, .name = "d"))
NET(flatten_relu_dense, dt_dense(dt_relu(dt_flatten(x)), 3, .name = "d"))
NET(flatten_twice_dense, dt_dense(dt_flatten(dt_flatten(x)), 3, .name = "d"))
NET(flatten_layernorm_dense, dt_dense(dt_layernorm(dt_flatten(x), .name = "l"), 3, .name = "d"))
NET(flatten_batchnorm_dense, dt_dense(dt_batchnorm(dt_flatten(x), .name = "n"), 3, .name = "d"))
NET(flatten_scale_dense, dt_dense(dt_scale(dt_flatten(x), 0.5, -0.25), 3, .name = "d"))
NET(flatten_softmax_dense, dt_dense(dt_softmax(dt_flatten(x)), 3, .name = "d"))
static dt_tensor *flatten_arithmetic_dense(dt_tensor *x, void *user) {
    (void)user;
    x = dt_flatten(x);
    return dt_dense(dt_sub(x, dt_mul(dt_silu(x), dt_tanh(x))), 3, .name = "d");
}
NET(reshape, dt_dense(dt_reshape(x, {2, 12}), 3, .name = "d"))
NET(reshape_image, dt_dense(dt_reshape(x, {-1, 4}), 3, .name = "d"))

NET(batchnorm, dt_batchnorm(x, .name = "n"))
NET(batchnorm_options, dt_batchnorm(x, .name = "n", .momentum = 0.25, .epsilon = 0.125))
NET(batchnorm_sync, dt_batchnorm(x, .name = "n", .sync = 1))
NET(batchnorm_frozen, dt_batchnorm(x, .name = "n", .frozen = 1))
static dt_tensor *batchnorm_shared(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_batchnorm(x, .name = "n");
    return dt_batchnorm(dt_add(dt_tanh(a), dt_scale(x, 0.5, 0)), .share = a);
}
NET(layernorm, dt_layernorm(x, .name = "l"))
NET(layernorm_no_bias, dt_layernorm(x, .name = "l", .no_bias = 1))
NET(layernorm_epsilon, dt_layernorm(x, .name = "l", .epsilon = 0.125))
static dt_tensor *layernorm_shared(dt_tensor *x, void *user) {
    (void)user;
    x = dt_layernorm(x, .name = "l");
    return dt_layernorm(dt_tanh(x), .share = x);
}
NET(embedding, dt_embedding(x, 7, 4, .name = "e"))
NET(embedding_2d, dt_embedding(x, 6, 3, .name = "e"))
static dt_tensor *embedding_shared(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *e = dt_embedding(x, 5, 3, .name = "e");
    return dt_mul(e, dt_tanh(dt_embedding(x, 5, 3, .share = e)));
}

NET(relu, dt_relu(x))
NET(leaky_relu, dt_leaky_relu(x, 0.125))
NET(leaky_relu_quarter, dt_leaky_relu(x, 0.25))
NET(leaky_relu_0, dt_leaky_relu(x, 0))
NET(gelu, dt_gelu(x))
NET(gelu_tanh, dt_gelu_tanh(x))
NET(silu, dt_silu(x))
NET(tanh_, dt_tanh(x))
NET(sigmoid, dt_sigmoid(x))
NET(softmax, dt_softmax(x))
NET(dropout, dt_dropout(x, 0.25))
NET(dropout_half, dt_mul(x, dt_dropout(dt_tanh(x), 0.5)))

NET(add, dt_add(dt_slice(x, -1, 0, 4), dt_slice(x, -1, 4, 8)))
NET(sub, dt_sub(dt_slice(x, -1, 0, 4), dt_slice(x, -1, 4, 8)))
NET(mul, dt_mul(dt_slice(x, -1, 0, 4), dt_slice(x, -1, 4, 8)))
static dt_tensor *add_self(dt_tensor *x, void *user) { (void)user; x = dt_tanh(x); return dt_add(x, x); }
static dt_tensor *mul_self(dt_tensor *x, void *user) { (void)user; x = dt_tanh(x); return dt_mul(x, x); }
NET(sub_self, dt_sub(dt_scale(x, 3, 0), x))
NET(scale, dt_scale(x, -1.5, 0))
NET(scale_offset, dt_scale(x, 0.75, 2.5))

NET(concat_1, dt_concat(dt_tanh(x), dt_slice(x, 1, 0, 1), 1))
NET(concat_2, dt_concat(dt_tanh(x), dt_slice(x, 2, 0, 1), 2))
NET(concat_3, dt_concat(dt_tanh(x), dt_slice(x, 3, 0, 1), 3))
NET(concat_last, dt_concat(dt_dense(x, 4, .name = "d"), x, -1))
NET(slice_1, dt_slice(x, 1, 1, 4))
NET(slice_2, dt_slice(x, 2, 0, 5, .step = 2))
NET(slice_3, dt_slice(x, 3, 1, -1))
NET(slice_last, dt_slice(x, -1, 1, 0, .step = 3))
NET(slices, dt_mul(dt_slice(x, 1, 0, 4), dt_slice(x, 1, 2, 6)))
NET(pad_1, dt_pad(x, 1, 1, 2))
NET(pad_2, dt_pad(x, 2, 2, 0))
NET(pad_last, dt_pad(x, -1, 1, 3))

static dt_tensor *second_input(dt_tensor *x, void *user) {
    (void)user;
    return dt_concat(dt_tanh(dt_dense(x, 4, .name = "d")), dt_input(x, "more", { 3 }), 1);
}

/* y = w x^2 */
static int square_forward(const dt_custom_call *c) {
    for (int i = 0; i < c->n * 5; i++) c->y[i] = c->weight[i % 5] * c->x[0][i] * c->x[0][i];
    return 0;
}
static int square_backward(const dt_custom_call *c) {
    for (int i = 0; i < c->n * 5; i++) {
        if (c->dx[0]) c->dx[0][i] += 2 * c->weight[i % 5] * c->x[0][i] * c->dy[i];
        if (c->dweight) c->dweight[i % 5] += c->x[0][i] * c->x[0][i] * c->dy[i];
    }
    return 0;
}
NET(custom, dt_custom(x, { 5 }, square_forward, square_backward, .weight = { 5 }, .name = "u"))

static dt_tensor *residual(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *y = dt_relu(dt_batchnorm(dt_conv2d(x, 3, 3, .padding = DT_SAME, .no_bias = 1, .name = "c1"), .name = "n1"));
    y = dt_batchnorm(dt_conv2d(y, 3, 3, .padding = DT_SAME, .no_bias = 1, .name = "c2"), .name = "n2");
    return dt_relu(dt_add(x, y));
}
static dt_tensor *residual_down(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *y = dt_relu(dt_batchnorm(dt_conv2d(x, 4, 3, .stride = 2, .padding = 1, .no_bias = 1, .name = "c1"), .name = "n1"));
    y = dt_batchnorm(dt_conv2d(y, 4, 3, .padding = 1, .no_bias = 1, .name = "c2"), .name = "n2");
    x = dt_slice(dt_slice(x, 1, 0, 0, .step = 2), 2, 0, 0, .step = 2);
    return dt_relu(dt_add(dt_pad(x, 3, 1, 1), y));
}
static dt_tensor *separable(dt_tensor *x, void *user) {
    (void)user;
    x = dt_silu(dt_batchnorm(dt_conv2d(x, 3, 3, .groups = 3, .padding = DT_SAME, .no_bias = 1, .name = "c1"), .name = "n1"));
    return dt_avgpool2d(dt_sigmoid(dt_conv2d(x, 5, 1, .name = "c2")), 2);
}
static dt_tensor *token_block(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *h = dt_embedding(x, 7, 4, .name = "e");
    dt_tensor *y = dt_dense(dt_gelu(dt_dense(dt_layernorm(h, .name = "l"), 6, .name = "d1")), 4, .name = "d2");
    return dt_softmax(dt_dense(dt_flatten(dt_layernorm(dt_add(h, y), .name = "l2")), 3, .name = "d3"));
}
static dt_tensor *cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_gelu_tanh(dt_conv2d(x, 4, 3, .padding = 1, .name = "c1")), 2);
    x = dt_leaky_relu(dt_dense(dt_flatten(dt_conv2d(x, 3, 2, .name = "c2")), 5, .name = "d1"), 0.0625);
    return dt_dense(x, 3, .name = "d2");
}

typedef dt_tensor *(*net_function)(dt_tensor *x, void *user);

static const struct { const char *golden; net_function net; } nets[] = {
    { "dense", dense_7 },  { "dense 3-D", dense_7 },  { "dense 4-D no_bias", dense_4_no_bias },  { "dense no_bias", dense_7_no_bias },  { "dense to 1", dense_1 },
    { "dense 33 to 9", dense_9 },  { "dense shared", dense_shared },  { "dense shared by two branches", dense_branches },

    { "conv 1x1", conv_1x1 },  { "conv 3x3", conv_3x3 },  { "conv 3x3 no_bias", conv_3x3_no_bias },  { "conv stride 2", conv_stride_2 },
    { "conv stride 3 padding 1", conv_stride_3_padding_1 },  { "conv stride 3 kernel 2", conv_stride_3_kernel_2 },  { "conv padding 1", conv_padding_1 },
    { "conv padding 3", conv_padding_3 },  { "conv same", conv_same },  { "conv same kernel 2", conv_same_kernel_2 },  { "conv same kernel 4", conv_same_kernel_4 },
    { "conv same kernel 5", conv_same_kernel_5 },  { "conv same stride 2 odd", conv_same_stride_2 },  { "conv same stride 2 even", conv_same_stride_2_even },
    { "conv same stride 2 kernel 4", conv_same_stride_2_kernel_4 },  { "conv same stride 3 kernel 1", conv_same_stride_3_kernel_1 },
    { "conv same stride 2 dilation 2", conv_same_stride_2_dilation_2 },  { "conv dilation 2", conv_dilation_2 },  { "conv dilation 2 same", conv_dilation_2_same },
    { "conv dilation 3 padding 2", conv_dilation_3_padding_2 },  { "conv groups 2", conv_groups_2 },  { "conv groups 3 stride 2 padding 1", conv_groups_3 },
    { "conv depthwise", conv_depthwise },  { "conv depthwise same stride 2", conv_depthwise_same_stride_2 },  { "conv depthwise dilation 2 padding 2", conv_depthwise_dilation_2 },
    { "conv depthwise times 2", conv_depthwise_times_2 },  { "conv kernel_w", conv_kernel_w },  { "conv kernel_w same", conv_kernel_w_same },
    { "conv kernel_w same stride 2", conv_kernel_w_same_stride_2 },  { "conv everything", conv_everything },  { "conv 17 to 9", conv_17_to_9 },  { "conv shared", conv_shared },

    { "maxpool 2", maxpool_2 },  { "maxpool 3 stride 2", maxpool_3_stride_2 },  { "maxpool 3 stride 1 padding 1", maxpool_3_stride_1_padding_1 },
    { "maxpool 3 stride 2 padding 1, negative", maxpool_3_stride_2_padding_1 },  { "maxpool 2 stride 3", maxpool_2_stride_3 },  { "maxpool ties", maxpool_3_stride_2_padding_1 },
    { "avgpool 2", avgpool_2 },  { "avgpool 3 stride 2", avgpool_3_stride_2 },  { "avgpool 3 stride 1 padding 1", avgpool_3_stride_1_padding_1 },
    { "avgpool 4 stride 3 padding 2", avgpool_4_stride_3_padding_2 },  { "global_avgpool", global_avgpool },

    { "flatten dense", flatten_dense },  { "flatten relu dense", flatten_relu_dense },  { "flatten twice dense", flatten_twice_dense },
    { "flatten layernorm dense", flatten_layernorm_dense },  { "flatten batchnorm dense", flatten_batchnorm_dense },
    { "flatten arithmetic dense", flatten_arithmetic_dense },  { "flatten scale dense", flatten_scale_dense },  { "flatten softmax dense", flatten_softmax_dense },
    { "flatten of rows", flatten_dense },  { "reshape", reshape },  { "reshape image to rows", reshape_image },

    { "batchnorm", batchnorm },  { "batchnorm 3-D", batchnorm },  { "batchnorm 4-D", batchnorm },  { "batchnorm options", batchnorm_options },
    { "batchnorm sync", batchnorm_sync },  { "batchnorm frozen", batchnorm_frozen },  { "batchnorm shared", batchnorm_shared },
    { "layernorm", layernorm },  { "layernorm 3-D", layernorm },  { "layernorm 4-D", layernorm },  { "layernorm no_bias", layernorm_no_bias },
    { "layernorm epsilon", layernorm_epsilon },  { "layernorm of 37", layernorm },  { "layernorm shared", layernorm_shared },
    { "embedding", embedding },  { "embedding 2-D", embedding_2d },  { "embedding shared", embedding_shared },

    { "relu", relu },  { "leaky_relu", leaky_relu },  { "gelu", gelu },  { "gelu_tanh", gelu_tanh },  { "silu", silu },  { "tanh", tanh_ },  { "sigmoid", sigmoid },
    { "softmax", softmax },  { "relu far", relu },  { "leaky_relu far", leaky_relu },  { "gelu far", gelu },  { "gelu_tanh far", gelu_tanh },  { "silu far", silu },
    { "tanh far", tanh_ },  { "sigmoid far", sigmoid },  { "softmax far", softmax },  { "relu at 0", relu },  { "leaky_relu at 0", leaky_relu_quarter },
    { "gelu at 0", gelu },  { "leaky_relu slope 0", leaky_relu_0 },  { "softmax 3-D", softmax },  { "softmax 4-D", softmax },
    { "dropout", dropout },  { "dropout in the middle", dropout_half },

    { "add", add },  { "sub", sub },  { "mul", mul },  { "add to itself", add_self },  { "mul by itself", mul_self },  { "sub from itself", sub_self },
    { "scale", scale },  { "scale and offset", scale_offset },
    { "concat axis 1", concat_1 },  { "concat axis 2", concat_2 },  { "concat axis 3", concat_3 },  { "concat axis -1", concat_last },
    { "slice 1", slice_1 },  { "slice 2 step 2", slice_2 },  { "slice 3 to -1", slice_3 },  { "slice -1 step 3 to the end", slice_last },  { "slices that overlap", slices },
    { "pad 1", pad_1 },  { "pad 2", pad_2 },  { "pad -1", pad_last },
    { "second input", second_input },  { "custom", custom },
    { "residual block", residual },  { "residual block down", residual_down },  { "separable block", separable },  { "token block", token_block },  { "small CNN", cnn },
};

static const golden_case *golden_named(const char *name) {
    for (int i = 0; i < COUNT(golden_cases); i++)
        if (!strcmp(golden_cases[i].name, name)) return &golden_cases[i];
    CHECK_MSG(0, "no golden case %s", name);
    return NULL;
}

static float *room(int n) {
    float *v = (float *)calloc((size_t)n + 1, sizeof *v);
    if (!v) { printf("no memory for the test\n"); exit(1); }
    return v;
}

/* What dropout left must be as expected; the rest is 0, in y and dx at the same places. */
static void check_dropout(const golden_case *g, const float *y, const float *dx) {
    int dropped = 0;
    for (int i = 0; i < g->y.n; i++) {
        const int kept = y[i] != 0;
        dropped += !kept;
        if (kept) CHECK_MSG(fabs(y[i] - g->y.value[i]) <= TOLERANCE * 4, "%s: y[%d] is %.9g, expected %.9g or 0", g->name, i, y[i], g->y.value[i]);
        CHECK_MSG(kept ? fabs(dx[i] - g->dx.value[i]) <= TOLERANCE * 4 : dx[i] == 0, "%s: y[%d] is %.9g, dx %.9g", g->name, i, y[i], dx[i]);
    }
    CHECK_MSG(dropped > 0 && dropped < g->y.n, "%s: %d of %d values are dropped", g->name, dropped, g->y.n);
}

/* The rate of the update: so large that the difference of parameters has the gradient's digits, not the parameter's. */
#define RATE 65536.0

static void check_operation(const golden_case *g, net_function net, int replicas) {
    char name[96];
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    dt_batch batch = DT_DEFAULTS;
    const int size = g->n * product(g->shape);
    snprintf(name, sizeof name, "%s, %d replicas", g->name, replicas);
    o.net = net;
    for (int i = 0; i < 4; i++) o.input[i] = g->shape[i];
    o.input_type = g->tokens ? DT_INT32 : DT_FLOAT32;
    o.input_gradient = !g->tokens;
    o.optimizer = DT_SGD;
    o.learning_rate = RATE;
    o.batch = g->n;
    o.replicas = replicas;
    o.strategy = replicas == 2 ? DT_CENTRAL : DT_STRATEGY_DEFAULT;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s: %s", name, err.text);
    if (!m) return;

    draw_state = 12345u + 7919u * (uint32_t)(g - golden_cases);
    int *tokens = g->tokens ? draw_tokens(size, g->tokens) : NULL;
    float *x = g->tokens ? NULL : draw_floats(size, g->offset, g->factor, g->quarters), *more = draw_floats(g->more * g->n, 0, 1, 0);
    float *parameters[16] = { NULL };
    for (int i = 0; i < g->n_parameters; i++) {
        const golden_parameter *p = &g->parameter[i];
        parameters[i] = draw_floats(p->expected.n, p->offset, p->factor, 0);
        CHECK_MSG(dt_parameter_write(m, p->name, parameters[i], (size_t)p->expected.n, &err) == 0, "%s: %s", name, err.text);
    }
    dt_parameter q;
    CHECK_MSG(dt_parameter_at(m, g->n_parameters, &q, NULL) != 0, "%s has a parameter more: %s", name, q.name);
    float *dy = draw_floats(g->y.n, 0, 1, 0), *y = room(g->y.n), *dx = room(size);

    batch.x[0] = g->tokens ? (const void *)tokens : (const void *)x;
    if (g->more) batch.x[1] = more;
    batch.n = g->n;
    if (!g->more && !(g->dropout > 0 && g->y_inference.n == 0)) {
        const golden_array *expected = g->y_inference.n ? &g->y_inference : &g->y;
        CHECK_MSG(dt_predict(m, batch.x[0], g->n, y, &err) == 0, "%s: %s", name, err.text);
        compare(name, "y in inference", y, expected->value, expected->n, g->tolerance);
    }
    dt_forward(m, &batch, &err);
    CHECK_MSG(dt_output_read(m, NULL, y, &err) == 0, "%s: %s", name, err.text);
    if (!(g->dropout > 0)) compare(name, "y", y, g->y.value, g->y.n, g->tolerance);
    CHECK_MSG(dt_backward_from(m, dy, &err) == 0, "%s: %s", name, err.text);
    if (!g->tokens) {
        CHECK_MSG(dt_input_gradient_read(m, dx, &err) == 0, "%s: %s", name, err.text);
        if (g->dropout > 0) check_dropout(g, y, dx);
        else compare(name, "dx", dx, g->dx.value, g->dx.n, g->tolerance);
    }
    CHECK_MSG(dt_update(m, &err) == 0, "%s: %s", name, err.text);
    for (int i = 0; i < g->n_parameters; i++) {
        const golden_parameter *p = &g->parameter[i];
        const int n = p->expected.n, as_is = g->frozen || strstr(p->name, "running") != NULL;
        float *after = room(n);
        CHECK_MSG(dt_parameter_read(m, p->name, after, (size_t)n, &err) == 0, "%s: %s", name, err.text);
        if (!as_is) for (int k = 0; k < n; k++) after[k] = (float)(((double)parameters[i][k] - after[k]) * (g->n / RATE));
        compare(name, p->name, after, p->expected.value, n, g->tolerance);
        free(after);
    }
    for (int i = 0; i < g->n_parameters; i++) free(parameters[i]);
    free(tokens); free(x); free(more); free(dy); free(y); free(dx);
    dt_model_free(m);
}

/* A batch norm sees its replica's part of the batch, unless it is synchronised or frozen. */
static int depends_on_replicas(const golden_case *g) {
    for (int i = 0; i < g->n_parameters; i++)
        if (strstr(g->parameter[i].name, "running")) return !strstr(g->name, "sync") && !g->frozen;
    return 0;
}

static void test_operations(void) {
    int used[COUNT(golden_cases)] = { 0 };
    for (int i = 0; i < COUNT(nets); i++) {
        const golden_case *g = golden_named(nets[i].golden);
        if (!g) continue;
        used[g - golden_cases]++;
        for (int replicas = 1; replicas <= (depends_on_replicas(g) ? 1 : 3); replicas++) check_operation(g, nets[i].net, replicas);
        show(g->name);
    }
    for (int i = 0; i < COUNT(golden_cases); i++) CHECK_MSG(used[i] == 1, "golden case %s is tested %d times", golden_cases[i].name, used[i]);
}

/* ---- batch norm over three steps --------------------------------------------------------------------- */

static const char *const norm_parameter[] = { "n.weight", "n.bias", "n.running_mean", "n.running_var" };
static const double norm_offset[] = { 1, 0, 0, 1 }, norm_factor[] = { 0.25, 0.25, 0.25, 0.5 };

/* With several replicas the outputs are those of each part; the running statistics and, synchronised, all
 * else are the same. */
static void test_batchnorm_steps(void) {
    for (int i = 0; i < COUNT(golden_steps); i++)
        for (int replicas = 1; replicas <= 3; replicas++) {
            char name[96];
            const int c = golden_steps[i].last.n / 4, n = golden_steps[i].n, size = n * product(golden_steps[i].shape);
            dt_error err = DT_DEFAULTS;
            dt_options o = DT_DEFAULTS;
            dt_batch batch = DT_DEFAULTS;
            float *x = NULL, *y = room(size), *last = room(4 * c);
            snprintf(name, sizeof name, "%s over three steps, %d replicas", golden_steps[i].name, replicas);
            o.net = strstr(name, "options") ? batchnorm_options : batchnorm;
            for (int k = 0; k < 4; k++) o.input[k] = golden_steps[i].shape[k];
            o.optimizer = DT_SGD;
            o.learning_rate = 0.125;
            o.batch = n;
            o.replicas = replicas;
            dt_model *m = dt_model_create(&o, &err);
            CHECK_MSG(m != NULL, "%s: %s", name, err.text);
            if (!m) return;
            draw_state = 4711;
            for (int k = 0; k < 4; k++) {
                float *v = draw_floats(c, norm_offset[k], norm_factor[k], 0);
                CHECK_MSG(dt_parameter_write(m, norm_parameter[k], v, (size_t)c, &err) == 0, "%s: %s", name, err.text);
                free(v);
            }
            for (int step = 0; step < 3; step++) {
                free(x);
                x = draw_floats(size, step, 2, 0);
                float *dy = draw_floats(size, 0, 1, 0);
                batch.x[0] = x;
                batch.n = n;
                dt_forward(m, &batch, &err);
                dt_output_read(m, NULL, y, &err);
                dt_backward_from(m, dy, &err);
                CHECK_MSG(dt_update(m, &err) == 0, "%s: %s", name, err.text);
                if (replicas == 1) compare(name, "y", y, golden_steps[i].y.value + step * size, size, TOLERANCE);
                free(dy);
            }
            for (int k = 0; k < 4; k++) dt_parameter_read(m, norm_parameter[k], last + k * c, (size_t)c, &err);
            compare(name, "running_mean", last + 2 * c, golden_steps[i].last.value + 2 * c, c, TOLERANCE);
            compare(name, "running_var", last + 3 * c, golden_steps[i].last.value + 3 * c, c, TOLERANCE);
            if (replicas == 1) {
                compare(name, "weight", last, golden_steps[i].last.value, c, TOLERANCE);
                compare(name, "bias", last + c, golden_steps[i].last.value + c, c, TOLERANCE);
                CHECK_MSG(dt_predict(m, x, n, y, &err) == 0, "%s: %s", name, err.text);
                compare(name, "y in inference", y, golden_steps[i].y.value + 3 * size, size, TOLERANCE);
            }
            if (replicas == 3) show(name);
            free(x); free(y); free(last);
            dt_model_free(m);
        }
}

/* ---- losses that losses.c has not ------------------------------------------------------------------------ */

enum { LOSS_VALUES = LOSS_N * LOSS_T * LOSS_C };
typedef enum { TARGETS, SHARES, LABELS, NO_LABELS } label_set;
static float loss_class_weight[LOSS_C];

typedef struct {
    const char *golden;
    dt_loss_kind kind;
    label_set labels;
    dt_loss_options o;
    int weighted;           /* with .weight per sample */
    dt_tensor *(*target)(dt_tensor *x, void *user);
    int on_activation;      /* the net ends in the softmax or sigmoid that the loss looks through */
} loss_case;

NET(half_softmax, dt_softmax(dt_scale(x, 0.5, 0)))

static const loss_case loss_cases[] = {
    { "mae sum", DT_MAE, TARGETS, { .reduction = DT_SUM }, 0, NULL, 0 },
    { "mae 3-D", DT_MAE, TARGETS, { .t = NULL }, 0, NULL, 0 },
    { "huber 3-D delta 2", DT_HUBER, TARGETS, { .delta = 2 }, 0, NULL, 0 },
    { "huber sample weights", DT_HUBER, TARGETS, { .t = NULL }, 1, NULL, 0 },
    { "huber sum sample weights", DT_HUBER, TARGETS, { .reduction = DT_SUM }, 1, NULL, 0 },
    { "mse sum sample weights", DT_MSE, TARGETS, { .reduction = DT_SUM }, 1, NULL, 0 },
    { "bce 3-D soft", DT_BINARY_CROSS_ENTROPY, SHARES, { .t = NULL }, 0, NULL, 0 },
    { "bce 3-D soft", DT_BINARY_CROSS_ENTROPY, SHARES, { .t = NULL }, 0, NULL, 1 },
    { "bce sum sample weights", DT_BINARY_CROSS_ENTROPY, SHARES, { .reduction = DT_SUM }, 1, NULL, 0 },
    { "bce sum sample weights", DT_BINARY_CROSS_ENTROPY, SHARES, { .reduction = DT_SUM }, 1, NULL, 1 },
    { "bce far", DT_BINARY_CROSS_ENTROPY, SHARES, { .t = NULL }, 0, NULL, 0 },
    { "bce weight 3", DT_BINARY_CROSS_ENTROPY, SHARES, { .weight = 3 }, 0, NULL, 0 },
    { "ce far", DT_CROSS_ENTROPY, LABELS, { .t = NULL }, 0, NULL, 0 },
    { "ce far", DT_CROSS_ENTROPY, LABELS, { .t = NULL }, 0, NULL, 1 },
    { "ce sum smooth", DT_CROSS_ENTROPY, LABELS, { .reduction = DT_SUM, .label_smoothing = 0.25 }, 0, NULL, 0 },
    { "ce sum ignore", DT_CROSS_ENTROPY, LABELS, { .reduction = DT_SUM, .ignore_label = 2 }, 0, NULL, 0 },
    { "ce 3-D everything", DT_CROSS_ENTROPY, LABELS, { .label_smoothing = 0.25, .ignore_label = 3, .class_weights = loss_class_weight }, 1, NULL, 0 },
    { "ce 3-D everything", DT_CROSS_ENTROPY, LABELS, { .label_smoothing = 0.25, .ignore_label = 3, .class_weights = loss_class_weight }, 1, NULL, 1 },
    { "ce soft 3-D", DT_CROSS_ENTROPY, SHARES, { .t = NULL }, 0, NULL, 0 },
    { "ce soft sum", DT_CROSS_ENTROPY, SHARES, { .reduction = DT_SUM }, 0, NULL, 0 },
    { "ce soft everything", DT_CROSS_ENTROPY, SHARES, { .label_smoothing = 0.25, .class_weights = loss_class_weight }, 1, NULL, 0 },
    { "ce soft sum sample weights", DT_CROSS_ENTROPY, SHARES, { .reduction = DT_SUM }, 1, NULL, 0 },
    { "ce weight 0.5", DT_CROSS_ENTROPY, LABELS, { .weight = 0.5 }, 0, NULL, 0 },
    { "value", DT_VALUE, NO_LABELS, { .t = NULL }, 0, NULL, 1 },
    { "value sum sample weights", DT_VALUE, NO_LABELS, { .reduction = DT_SUM }, 1, NULL, 1 },
    { "mse to its own detached tanh", DT_MSE, NO_LABELS, { .t = NULL }, 0, tanh_, 0 },
    { "ce to its own detached softmax", DT_CROSS_ENTROPY, NO_LABELS, { .t = NULL }, 0, half_softmax, 0 },
};

static dt_tensor *loss_net(dt_tensor *x, void *user) {
    const loss_case *c = (const loss_case *)user;
    dt_loss_options o = c->o;
    x = dt_scale(x, 1, 0);
    o.t = !c->on_activation ? x : c->kind == DT_CROSS_ENTROPY ? dt_softmax(x) : dt_sigmoid(x);
    o.kind = c->kind;
    o.label_type = c->labels == SHARES && c->kind == DT_CROSS_ENTROPY ? DT_ONE_HOT : DT_TYPE_DEFAULT;
    o.target = c->target ? c->target(x, NULL) : NULL;
    return dt_loss_opt(o);
}

static void check_loss(const loss_case *c, int g, int replicas) {
    char name[96];
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    dt_batch batch = DT_DEFAULTS;
    snprintf(name, sizeof name, "%s%s, %d replicas", c->golden, c->on_activation ? " on its activation" : "", replicas);
    o.net = loss_net;
    o.user = (void *)(uintptr_t)c;
    o.input[0] = LOSS_T;
    o.input[1] = LOSS_C;
    o.input_gradient = 1;
    o.batch = LOSS_N;
    o.replicas = replicas;
    draw_state = 99;
    float *x = draw_floats(LOSS_VALUES, 0, 4, 0), *targets = draw_floats(LOSS_VALUES, 0, 4, 0), *far = draw_floats(LOSS_VALUES, 0, 64, 0);
    free(draw_floats(LOSS_VALUES, 0, 2, 0));  /* the logits of loss_shares */
    int *labels = draw_tokens(LOSS_N * LOSS_T, LOSS_C);
    float *class_weight = draw_floats(LOSS_C, 1, 0.5, 0), *sample_weight = draw_floats(LOSS_N, 1, 1, 0), gradient[LOSS_VALUES];
    double expected[LOSS_VALUES];
    memcpy(loss_class_weight, class_weight, sizeof loss_class_weight);
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s: %s", name, err.text);
    if (m) {
        batch.x[0] = strstr(c->golden, "far") ? far : x;
        batch.y[0] = c->labels == TARGETS ? (const void *)targets : c->labels == SHARES ? (const void *)loss_shares : c->labels == LABELS ? (const void *)labels : NULL;
        batch.weight = c->weighted ? sample_weight : NULL;
        batch.n = LOSS_N;
        const float loss = dt_forward(m, &batch, &err);
        compare(name, "loss", &loss, &golden_losses[g].loss, 1, TOLERANCE);
        dt_backward(m, &err);
        CHECK_MSG(dt_input_gradient_read(m, gradient, &err) == 0, "%s: %s", name, err.text);
        for (int i = 0; i < LOSS_VALUES; i++) expected[i] = golden_losses[g].gradient[i] * golden_losses[g].weight;
        compare(name, "gradient", gradient, expected, LOSS_VALUES, TOLERANCE);
        dt_model_free(m);
    }
    free(x); free(targets); free(far); free(labels); free(class_weight); free(sample_weight);
}

static void test_losses(void) {
    int used[COUNT(golden_losses)] = { 0 };
    for (int i = 0; i < COUNT(loss_cases); i++) {
        int g = 0;
        while (g < COUNT(golden_losses) && strcmp(golden_losses[g].name, loss_cases[i].golden)) g++;
        CHECK_MSG(g < COUNT(golden_losses), "no golden loss %s", loss_cases[i].golden);
        if (g == COUNT(golden_losses)) continue;
        used[g] = 1;
        for (int replicas = 1; replicas <= 3; replicas++) check_loss(&loss_cases[i], g, replicas);
        show(loss_cases[i].golden);
    }
    for (int i = 0; i < COUNT(golden_losses); i++) CHECK_MSG(used[i], "golden loss %s is not tested", golden_losses[i].name);
}

/* ---- schedules --------------------------------------------------------------------------------------------- */

static void test_schedules(void) {
    static const struct { const char *golden; dt_schedule schedule; long total_steps, decay_steps; double final_rate, decay_factor; } row[] = {
        { "step", DT_STEP_DECAY, 0, 4, 0, 0.3 },  { "exponential", DT_EXPONENTIAL_DECAY, 0, 5, 0, 0.5 },
        { "cosine", DT_COSINE_DECAY, 10, 0, 0.01, 0 },  { "linear", DT_LINEAR_DECAY, 10, 0, 0.02, 0 },
    };
    CHECK(COUNT(row) == COUNT(golden_schedules));
    for (int i = 0; i < COUNT(row); i++) {
        const float x[2] = { 1, 2 }, y[1] = { 1 };
        float rate[GOLDEN_RATES];
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        CHECK(!strcmp(row[i].golden, golden_schedules[i].name));
        o.net = dense_1;
        o.input[0] = 2;
        o.loss = DT_MSE;
        o.batch = o.replicas = 1;
        o.learning_rate = 0.2;
        o.schedule = row[i].schedule;
        o.total_steps = row[i].total_steps;
        o.decay_steps = row[i].decay_steps;
        o.final_rate = row[i].final_rate;
        o.decay_factor = row[i].decay_factor;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s: %s", row[i].golden, err.text);
        if (!m) return;
        for (int step = 0; step < GOLDEN_RATES; step++) {
            rate[step] = (float)dt_learning_rate(m);
            dt_step(m, x, y, 1, &err);
        }
        CHECK_OK(err);
        compare(row[i].golden, "rate", rate, golden_schedules[i].rate, GOLDEN_RATES, TOLERANCE);
        dt_model_free(m);
        show(row[i].golden);
    }
}

/* ---- whole trainings: every optimizer on a net of most layers --------------------------------------------------- */

static dt_tensor *trained_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_gelu(dt_batchnorm(dt_conv2d(x, 3, 3, .padding = DT_SAME, .no_bias = 1, .name = "c1"), .sync = 1, .name = "n1"));
    dt_tensor *y = dt_batchnorm(dt_conv2d(x, 3, 3, .padding = DT_SAME, .no_bias = 1, .name = "c2"), .sync = 1, .name = "n2");
    x = dt_flatten(dt_avgpool2d(dt_silu(dt_add(x, y)), 2));
    return dt_dense(dt_layernorm(dt_tanh(dt_dense(x, 5, .name = "d1")), .name = "l1"), 3, .name = "d2");
}

static const struct { const char *golden; dt_optimizer optimizer; double learning_rate, momentum, weight_decay, clip_norm, beta1, beta2, alpha; } training[] = {
    { "sgd",           DT_SGD,      .learning_rate = 0.25 },
    { "momentum",      DT_MOMENTUM, .learning_rate = 0.125, .momentum = 0.9, .weight_decay = 0.0625 },
    { "nesterov clip", DT_NESTEROV, .learning_rate = 0.125, .momentum = 0.875, .clip_norm = 0.5 },
    { "adam",          DT_ADAM,     .learning_rate = 0.03125 },
    { "adamw",         DT_ADAMW,    .learning_rate = 0.03125, .beta1 = 0.75, .beta2 = 0.9375, .weight_decay = 0.125 },
    { "rmsprop",       DT_RMSPROP,  .learning_rate = 0.0078125, .alpha = 0.875, .momentum = 0.5 },
};

static const struct { dt_strategy strategy; int replicas; } place[] = { { DT_ONE, 1 }, { DT_MIRRORED, 2 }, { DT_CENTRAL, 3 } };

static void test_trainings(void) {
    CHECK(COUNT(training) == COUNT(golden_training));
    for (int i = 0; i < COUNT(training) * COUNT(place); i++) {
        const int at = i % COUNT(place), t = i / COUNT(place);
        char name[96];
        float loss[TRAINED_STEPS], y[TRAINED_N * 3], last[TRAINED_VALUES], *x = NULL;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        snprintf(name, sizeof name, "%s, %d replicas", training[t].golden, place[at].replicas);
        CHECK(!strcmp(training[t].golden, golden_training[t].name));
        o.net = trained_net;
        o.input[0] = o.input[1] = 4;
        o.input[2] = 2;
        o.loss = DT_CROSS_ENTROPY;
        o.label_smoothing = 0.125;
        o.batch = TRAINED_N;
        o.strategy = place[at].strategy;
        o.replicas = place[at].replicas;
        o.optimizer = training[t].optimizer;
        o.learning_rate = training[t].learning_rate;
        o.momentum = training[t].momentum;
        o.weight_decay = training[t].weight_decay;
        o.clip_norm = training[t].clip_norm;
        o.beta1 = training[t].beta1;
        o.beta2 = training[t].beta2;
        o.alpha = training[t].alpha;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s: %s", name, err.text);
        if (!m) return;
        draw_state = 2718;
        for (int k = 0; k < TRAINED_PARAMETERS; k++) {
            const golden_parameter *p = &trained_parameter[k];
            float *v = draw_floats(p->expected.n, p->offset, p->factor, 0);
            CHECK_MSG(dt_parameter_write(m, p->name, v, (size_t)p->expected.n, &err) == 0, "%s: %s", name, err.text);
            free(v);
        }
        for (int step = 0; step < TRAINED_STEPS; step++) {
            free(x);
            x = draw_floats(TRAINED_N * 32, 0, 2, 0);
            int *labels = draw_tokens(TRAINED_N, 3);
            loss[step] = dt_step(m, x, labels, TRAINED_N, &err);
            free(labels);
        }
        CHECK_MSG(dt_predict(m, x, TRAINED_N, y, &err) == 0, "%s: %s", name, err.text);
        compare(name, "loss", loss, golden_training[t].loss, TRAINED_STEPS, TOLERANCE_TRAINED);
        compare(name, "output", y, golden_training[t].y, TRAINED_N * 3, TOLERANCE_TRAINED);
        for (int k = 0, from = 0; k < TRAINED_PARAMETERS; from += trained_parameter[k++].expected.n) {
            const int n = trained_parameter[k].expected.n;
            CHECK_MSG(dt_parameter_read(m, trained_parameter[k].name, last + from, (size_t)n, &err) == 0, "%s: %s", name, err.text);
            compare(name, trained_parameter[k].name, last + from, golden_training[t].last + from, n, TOLERANCE_TRAINED);
        }
        free(x);
        dt_model_free(m);
        if (at == COUNT(place) - 1) show(training[t].golden);
    }
}

/* ---- all of that on every instruction set -------------------------------------------------------------------------- */

static const struct { const char *name; void (*test)(void); } tests[] = {
    { "operations", test_operations },  { "batchnorm_steps", test_batchnorm_steps },  { "losses", test_losses },  { "schedules", test_schedules },  { "trainings", test_trainings },
};
static const char *const isa_name[] = { "avx512", "avx2", "sse2", "neon", "vector", "plain" };
static int isa, test_at;

static void in_a_child(void) {
    int status = 0;
    setenv("DTRAIN_ISA", isa_name[isa], 1);
    if (strcmp(dt__kernels_choose()->name, isa_name[isa])) SKIP("not an instruction set of this machine");
    fflush(stdout);
    const pid_t pid = fork();
    if (pid < 0) SKIP("no fork");
    if (pid == 0) {
        tests[test_at].test();
        fflush(stdout);
        _exit(check_failed ? 1 : 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status), "ended by signal %d", WTERMSIG(status));
    CHECK_MSG(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "see above");
}

int main(void) {
    for (isa = 0; isa < COUNT(isa_name); isa++)
        for (test_at = 0; test_at < COUNT(tests); test_at++) {
            char name[64];
            snprintf(name, sizeof name, "test_%s_as_pytorch_%s", tests[test_at].name, isa_name[isa]);
            test_run(name, in_a_child);
        }
    return finish();
}
