/* graph - names and order of parameters, messages of graphs that are wrong, the memory plan, steps that
 * allocate nothing, failing allocations, partial batches, the guard against NaN, misuse.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every malloc of the library is counted here, and fails on demand. */
static long mallocs, blocks_alive, fail_malloc = -1;  /* fail_malloc: this one of them from now on; -1: none */

#define MAYBE_UNUSED __attribute__((unused))

static MAYBE_UNUSED void *counted_malloc(size_t n) {
    if (fail_malloc >= 0 && fail_malloc-- == 0) return NULL;
    if (n > (size_t)1 << 31) return NULL;  /* sizes that no test means */
    __atomic_add_fetch(&mallocs, 1, __ATOMIC_RELAXED);
    void *p = malloc(n);
    if (p) __atomic_add_fetch(&blocks_alive, 1, __ATOMIC_RELAXED);
    return p;
}
static MAYBE_UNUSED void *counted_calloc(size_t n, size_t size) {
    if (size && n > ((size_t)1 << 31) / size) return NULL;
    void *p = counted_malloc(n * size);
    return p ? memset(p, 0, n * size) : NULL;
}
static MAYBE_UNUSED void counted_free(void *p) {
    if (p) __atomic_sub_fetch(&blocks_alive, 1, __ATOMIC_RELAXED);
    free(p);
}
static MAYBE_UNUSED void *counted_realloc(void *old, size_t n) {
    if (!old) return counted_malloc(n);
    if (fail_malloc >= 0 && fail_malloc-- == 0) return NULL;
    __atomic_add_fetch(&mallocs, 1, __ATOMIC_RELAXED);
    return realloc(old, n);
}
#define malloc counted_malloc
#define calloc counted_calloc
#define realloc counted_realloc
#define free counted_free

#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "test.h"

/* the tests' own memory is not counted */
#undef malloc
#undef calloc
#undef realloc
#undef free

static uint32_t random_state;
static double uniform(void) {  /* -1 .. 1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / 8388608.0 - 1.0;
}
static void fill(float *x, int n) {
    random_state = 1234;
    for (int i = 0; i < n; i++) x[i] = (float)uniform();
}

#define NET(name, ...) static dt_tensor *name(dt_tensor *x, void *user) { (void)x; (void)user; return __VA_ARGS__; }

/* ---- names and order ------------------------------------------------------------------------------------ */

/* C does not say which argument is built first, and compilers differ: the names must not care. */
NET(net_arguments, dt_add(dt_dense(dt_dense(x, 3), 8), dt_dense(dt_dense(x, 5), 8)))
static dt_tensor *net_left_first(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dense(dt_dense(x, 3), 8), *b = dt_dense(dt_dense(x, 5), 8);
    return dt_add(a, b);
}
static dt_tensor *net_right_first(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *b = dt_dense(dt_dense(x, 5), 8), *a = dt_dense(dt_dense(x, 3), 8);
    return dt_add(a, b);
}
NET(net_three, dt_mul(dt_concat(dt_dense(x, 1), dt_dense(x, 2), 1), dt_sub(dt_dense(x, 3), dt_tanh(dt_dense(x, 3, .no_bias = 1)))))
static dt_tensor *net_reused(dt_tensor *x, void *user) {  /* a layer is numbered where it is first needed */
    (void)user;
    dt_tensor *h = dt_dense(x, 2), *late = dt_dense(h, 2), *early = dt_dense(x, 2);
    return dt_add(dt_add(early, h), dt_mul(late, h));
}
static int custom_nothing(const dt_custom_call *call) { (void)call; return 0; }
static dt_tensor *net_kinds(dt_tensor *x, void *user) {
    (void)user;
    x = dt_batchnorm(dt_conv2d(x, 6, 3, .kernel_w = 2, .groups = 2));
    x = dt_conv2d(x, 2, 1, .no_bias = 1);
    x = dt_layernorm(dt_layernorm(x), .no_bias = 1);
    x = dt_custom(x, { 0 }, custom_nothing, NULL, NULL, .weight = { 2, 5 });
    return dt_dense(dt_flatten(x), 3);
}
NET(net_embeds, dt_add(dt_embedding(x, 9, 4), dt_embedding(x, 9, 4, .name = "position")))
NET(net_named, dt_dense(dt_dense(x, 3, .name = "trunk.0"), 2, .name = "head"))
NET(net_share, dt_dense(dt_dense(x, 4, .name = "twin"), 4, .name = "copy"))
static dt_tensor *net_sharing(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dense(x, 4, .name = "twin");
    return dt_dense(dt_dense(a, 4, .share = a), 2);
}
static dt_tensor *net_ends(dt_tensor *x, void *user) {  /* after the result: outputs by name, then losses by name */
    (void)user;
    dt_loss(dt_dense(x, 6), DT_VALUE, .name = "beta");
    dt_loss(dt_dense(x, 7), DT_VALUE, .name = "alpha");
    dt_output(dt_dense(x, 2), "zebra");
    dt_output(dt_dense(x, 3), "apple");
    return dt_dense(x, 1);
}
static dt_tensor *net_unused(dt_tensor *x, void *user) {
    (void)user;
    dt_dense(x, 77);
    return dt_dense(x, 2);
}
static dt_tensor *net_more_inputs(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *b = dt_input(x, "b", { 3 }), *a = dt_input(x, "a", { 2 });
    return dt_add(dt_dense(b, 4), dt_add(dt_dense(a, 4), dt_dense(x, 4)));
}

static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); int input[DT_MAX_RANK - 1]; dt_type type; const char *expected; } order_case[] = {
    { "arguments", net_arguments, { 4 }, DT_FLOAT32, "dense_1.weight 3x4, dense_1.bias 3, dense_2.weight 8x3, dense_2.bias 8, "
                                                     "dense_3.weight 5x4, dense_3.bias 5, dense_4.weight 8x5, dense_4.bias 8" },
    { "left first", net_left_first, { 4 }, DT_FLOAT32, "dense_1.weight 3x4, dense_1.bias 3, dense_2.weight 8x3, dense_2.bias 8, "
                                                       "dense_3.weight 5x4, dense_3.bias 5, dense_4.weight 8x5, dense_4.bias 8" },
    { "right first", net_right_first, { 4 }, DT_FLOAT32, "dense_1.weight 3x4, dense_1.bias 3, dense_2.weight 8x3, dense_2.bias 8, "
                                                         "dense_3.weight 5x4, dense_3.bias 5, dense_4.weight 8x5, dense_4.bias 8" },
    { "nested", net_three, { 4 }, DT_FLOAT32, "dense_1.weight 1x4, dense_1.bias 1, dense_2.weight 2x4, dense_2.bias 2, "
                                              "dense_3.weight 3x4, dense_3.bias 3, dense_4.weight 3x4" },
    { "reused", net_reused, { 4 }, DT_FLOAT32, "dense_1.weight 2x4, dense_1.bias 2, dense_2.weight 2x4, dense_2.bias 2, dense_3.weight 2x2, dense_3.bias 2" },
    { "kinds", net_kinds, { 5, 4, 4 }, DT_FLOAT32,
      "conv2d_1.weight 6x2x3x2, conv2d_1.bias 6, batchnorm_1.weight 6, batchnorm_1.bias 6, batchnorm_1.running_mean 6, batchnorm_1.running_var 6, "
      "conv2d_2.weight 2x6x1x1, layernorm_1.weight 2, layernorm_1.bias 2, layernorm_2.weight 2, custom_1.weight 2x5, dense_1.weight 3x18, dense_1.bias 3" },
    { "embeddings", net_embeds, { 3 }, DT_INT32, "embedding_1.weight 9x4, position.weight 9x4" },
    { "named", net_named, { 4 }, DT_FLOAT32, "trunk.0.weight 3x4, trunk.0.bias 3, head.weight 2x3, head.bias 2" },
    { "not shared", net_share, { 4 }, DT_FLOAT32, "twin.weight 4x4, twin.bias 4, copy.weight 4x4, copy.bias 4" },
    { "shared", net_sharing, { 4 }, DT_FLOAT32, "twin.weight 4x4, twin.bias 4, " },
    { "several ends", net_ends, { 4 }, DT_FLOAT32, "dense_1.weight 1x4, dense_1.bias 1, dense_2.weight 3x4, dense_2.bias 3, dense_3.weight 2x4, dense_3.bias 2, "
                                                   "dense_4.weight 7x4, dense_4.bias 7, dense_5.weight 6x4, dense_5.bias 6" },
    { "unused", net_unused, { 4 }, DT_FLOAT32, "dense_1.weight 2x4, dense_1.bias 2" },
    { "more inputs", net_more_inputs, { 4 }, DT_FLOAT32, "dense_1.weight 4x3, dense_1.bias 4, dense_2.weight 4x2, dense_2.bias 4, dense_3.weight 4x4, dense_3.bias 4" },
};

static dt_options options_of(dt_tensor *(*net)(dt_tensor *, void *), const int *input, int batch) {
    dt_options o = DT_DEFAULTS;
    o.net = net;
    memcpy(o.input, input, sizeof o.input);
    o.batch = batch;
    o.replicas = 1;
    o.seed = 3;
    return o;
}

static void describe(dt_model *m, char *text, size_t size) {
    dt_parameter p;
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; dt_parameter_at(m, i, &p, NULL) == 0; i++) {
        used += (size_t)snprintf(text + used, used < size ? size - used : 0, "%s%s ", i ? ", " : "", p.name);
        size_t product = 1;
        for (int k = 0; k < p.rank; k++) {
            used += (size_t)snprintf(text + used, used < size ? size - used : 0, k ? "x%d" : "%d", p.dim[k]);
            product *= (size_t)p.dim[k];
        }
        CHECK(product == p.size);
    }
}

static void test_names_and_order(void) {
    for (int i = 0; i < COUNT(order_case); i++) {
        char text[1024];
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(order_case[i].net, order_case[i].input, 2);
        o.input_type = order_case[i].type;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s: %s", order_case[i].name, err.text);
        if (!m) continue;
        describe(m, text, sizeof text);
        if (order_case[i].net == net_sharing) {  /* whether the layer that shares has used up a number is its own affair */
            CHECK_MSG(!strncmp(text, order_case[i].expected, strlen(order_case[i].expected)), "\"%s\"", text);
            CHECK_MSG(strstr(text, ".weight 2x4") && !strstr(strstr(text, "twin.bias") + 1, "4x4"), "\"%s\"", text);
        } else {
            CHECK_MSG(!strcmp(text, order_case[i].expected), "%s:\n    got      \"%s\"\n    expected \"%s\"", order_case[i].name, text, order_case[i].expected);
        }
        dt_model_free(m);
    }
}

/* The same seed gives the same values, in whatever order the calls came; another seed others. */
NET(net_twins, dt_add(dt_dropout(dt_dense(x, 8), 0.5), dt_dropout(dt_dense(x, 8), 0.5)))
static dt_tensor *net_twins_left(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dropout(dt_dense(x, 8), 0.5), *b = dt_dropout(dt_dense(x, 8), 0.5);
    return dt_add(a, b);
}
static dt_tensor *net_twins_right(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *b = dt_dropout(dt_dense(x, 8), 0.5), *a = dt_dropout(dt_dense(x, 8), 0.5);
    return dt_add(a, b);
}
static void test_seeds_follow_the_graph(void) {
    static const struct { dt_tensor *(*net)(dt_tensor *, void *); uint64_t seed; int same; } row[] = {
        { net_twins, 3, 1 },  { net_twins_left, 3, 1 },  { net_twins_right, 3, 1 },  { net_twins, 4, 0 },
    };
    static const int input[DT_MAX_RANK - 1] = { 4 };
    float x[4 * 4], y[4 * 8] = { 0 }, first[4 * 8] = { 0 }, one[32], two[32];
    uint32_t crc = 0;
    fill(x, COUNT(x));
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_batch batch = DT_DEFAULTS;
        dt_options o = options_of(row[i].net, input, 4);
        o.seed = row[i].seed;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) continue;
        batch.x[0] = x;
        batch.n = 4;
        dt_forward(m, &batch, &err);
        dt_output_read(m, NULL, i ? y : first, &err);
        if (i) CHECK_MSG((dt_parameters_crc32c(m) == crc) == row[i].same && (memcmp(y, first, sizeof y) == 0) == row[i].same, "row %d", i);
        else crc = dt_parameters_crc32c(m);
        dt_parameter_read(m, "dense_1.weight", one, 32, &err);
        dt_parameter_read(m, "dense_2.weight", two, 32, &err);
        CHECK_MSG(memcmp(one, two, sizeof one), "two layers do not start alike");
        CHECK_OK(err);
        dt_model_free(m);
    }
}

/* Shapes can be asked for while the graph is built. */
static int seen_rank[8], seen_dim[8];
static dt_tensor *net_asks(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *t[] = { x, dt_conv2d(x, 8, 3, .stride = 2), dt_flatten(x), dt_global_avgpool(x), dt_dense(x, 9), dt_reshape(x, { -1, 5 }),
                       dt_slice(x, 2, 1, -1), dt_pad(x, 1, 1, 2) };
    for (int i = 0; i < COUNT(t); i++) {
        seen_rank[i] = dt_rank(t[i]);
        seen_dim[i] = dt_dim(t[i], 0) * 1000000 + dt_dim(t[i], 1) * 10000 + dt_dim(t[i], 2) * 100 + dt_dim(t[i], dt_rank(t[i]) - 1);
    }
    return t[2];
}
static void test_shapes_in_net(void) {
    static const int input[DT_MAX_RANK - 1] = { 7, 6, 5 };
    static const int rank[] = { 4, 4, 2, 2, 4, 3, 4, 4 }, dim[] = { 70605, 30208, 2100210, 50005, 70609, 420505, 70405, 100605 };
    dt_error err = DT_DEFAULTS;
    dt_options o = options_of(net_asks, input, 2);
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    for (int i = 0; i < COUNT(rank); i++) {
        CHECK_MSG(seen_rank[i] == rank[i], "tensor %d: rank %d, expected %d", i, seen_rank[i], rank[i]);
        CHECK_MSG(seen_dim[i] == dim[i], "tensor %d: sizes %d, expected %d", i, seen_dim[i], dim[i]);
    }
    dt_model_free(m);
}

/* ---- graphs that are wrong --------------------------------------------------------------------------------- */

static dt_tensor *stolen;
static dt_tensor *net_donor(dt_tensor *x, void *user) { (void)user; stolen = dt_tanh(x); return dt_dense(stolen, 2); }

NET(bad_conv_kernel, dt_conv2d(x, 8, 5, .name = "odd"))
NET(bad_conv_dilation, dt_conv2d(x, 8, 3, .dilation = 2, .name = "odd"))
NET(bad_conv_flat, dt_conv2d(dt_flatten(x), 8, 3, .name = "odd"))
NET(bad_conv_filters, dt_conv2d(x, 0, 3, .name = "odd"))
NET(bad_conv_minus, dt_conv2d(x, -8, 3, .name = "odd"))
NET(bad_conv_no_kernel, dt_conv2d(x, 8, 0, .name = "odd"))
NET(bad_conv_stride, dt_conv2d(x, 8, 3, .stride = -2, .name = "odd"))
NET(bad_conv_padding, dt_conv2d(x, 8, 3, .padding = -7, .name = "odd"))
NET(bad_conv_groups, dt_conv2d(x, 8, 3, .groups = 5, .name = "odd"))
NET(bad_conv_groups_out, dt_conv2d(x, 9, 3, .groups = 4, .name = "odd"))
NET(bad_pool, dt_maxpool2d(x, 4, .name = "odd"))
NET(bad_pool_size, dt_avgpool2d(x, 0, .name = "odd"))
NET(bad_pool_padding, dt_avgpool2d(x, 2, .padding = 2, .name = "odd"))
NET(bad_pool_flat, dt_maxpool2d(dt_flatten(x), 2, .name = "odd"))
NET(bad_global_pool, dt_global_avgpool(dt_flatten(x)))
NET(bad_dense, dt_dense(x, 0, .name = "odd"))
NET(bad_dense_minus, dt_dense(x, -10, .name = "odd"))
NET(bad_dense_huge, dt_dense(dt_flatten(x), 2147483647, .name = "odd"))
NET(bad_add, dt_add(dt_dense(x, 4), dt_dense(x, 5)))
NET(bad_mul_rank, dt_mul(x, dt_flatten(x)))
NET(bad_concat, dt_concat(dt_dense(x, 4), dt_flatten(x), 1))
NET(bad_concat_sizes, dt_concat(dt_conv2d(x, 2, 2), x, 3))
NET(bad_concat_batch, dt_concat(x, x, 0))
NET(bad_concat_axis, dt_concat(x, x, 4))
NET(bad_slice_empty, dt_slice(x, 1, 2, 2, .name = "odd"))
NET(bad_slice_beyond, dt_slice(x, 1, 0, 9, .name = "odd"))
NET(bad_slice_begin, dt_slice(x, 1, -5, 2, .name = "odd"))
NET(bad_slice_step, dt_slice(x, 1, 0, 2, .step = -1, .name = "odd"))
NET(bad_slice_axis, dt_slice(x, 0, 0, 1, .name = "odd"))
NET(bad_pad, dt_pad(x, 1, -1, 0))
NET(bad_pad_axis, dt_pad(x, 0, 1, 0))
NET(bad_reshape, dt_reshape(x, { 5, 7 }, .name = "odd"))
NET(bad_reshape_rest, dt_reshape(x, { -1, 7 }, .name = "odd"))
NET(bad_reshape_two, dt_reshape(x, { -1, -1 }, .name = "odd"))
NET(bad_reshape_minus, dt_reshape(x, { -3, 32 }, .name = "odd"))
NET(bad_embedding_float, dt_embedding(x, 10, 4, .name = "odd"))
NET(bad_embedding_tokens, dt_embedding(x, 0, 4, .name = "odd"))
NET(bad_dense_tokens, dt_dense(x, 4, .name = "odd"))
NET(bad_dropout_one, dt_dropout(x, 1))
NET(bad_dropout_minus, dt_dropout(x, -0.5))
NET(bad_dropout_nan, dt_dropout(x, NAN))
NET(bad_norm_epsilon, dt_layernorm(x, .epsilon = -1, .name = "odd"))
NET(bad_norm_momentum, dt_batchnorm(x, .momentum = 1.5, .name = "odd"))
NET(bad_custom, dt_custom(x, { 3 }, NULL, NULL, NULL, .name = "odd"))
NET(bad_custom_shape, dt_custom(x, { 3, -4 }, custom_nothing, NULL, NULL, .name = "odd"))
NET(bad_init, dt_dense(x, 3, .init = (dt_initializer)66, .name = "odd"))
NET(bad_init_value, dt_dense(x, 3, .init = DT_UNIFORM, .init_value = NAN, .name = "odd"))
NET(bad_null, dt_dense(NULL, 3, .name = "odd"))
NET(bad_null_second, dt_add(x, NULL))
NET(bad_null_relu, dt_relu(NULL))
NET(bad_null_inside, dt_dense(dt_tanh(dt_scale(NULL, 1, 1)), 3))
static dt_tensor *bad_nothing(dt_tensor *x, void *user) { (void)user; dt_dense(x, 3); return NULL; }
static dt_tensor *bad_stolen(dt_tensor *x, void *user) { (void)user; dt_dense(x, 3); return stolen; }
static dt_tensor *bad_stolen_inside(dt_tensor *x, void *user) { (void)user; return dt_add(x, stolen); }
static dt_tensor *bad_stolen_layer(dt_tensor *x, void *user) { (void)x; (void)user; return dt_dense(stolen, 4); }
NET(bad_twice, dt_dense(dt_dense(x, 4, .name = "odd"), 4, .name = "odd"))
NET(bad_twice_kinds, dt_dense(dt_flatten(dt_conv2d(x, 4, 1, .name = "odd")), 4, .name = "odd"))
NET(bad_name, dt_dense(x, 4, .name = "a_name_of_sixty_four_bytes_which_is_one_more_than_a_name_can_have"))
static dt_tensor *bad_share_kind(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 4, .share = dt_conv2d(x, 4, 1), .name = "odd"); }
static dt_tensor *bad_share_sizes(dt_tensor *x, void *user) { (void)user; dt_tensor *a = dt_dense(x, 4); return dt_dense(a, 5, .share = a, .name = "odd"); }
static dt_tensor *bad_share_bias(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 4, .share = dt_dense(x, 4), .no_bias = 1, .name = "odd"); }
static dt_tensor *bad_share_input(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 4, .share = x, .name = "odd"); }
static dt_tensor *bad_share_relu(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 4, .share = dt_relu(dt_dense(x, 4)), .name = "odd"); }
static dt_tensor *bad_share_stolen(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 4, .share = stolen, .name = "odd"); }
NET(bad_output_name, dt_output(dt_dense(x, 3), NULL))
NET(bad_output_twice, dt_add(dt_output(dt_tanh(x), "odd"), dt_output(dt_relu(x), "odd")))
NET(bad_output_null, dt_output(NULL, "odd"))
NET(bad_loss_null, dt_loss(NULL, DT_MSE, .name = "odd"))
NET(bad_input_shape, dt_concat(x, dt_input(x, "odd", { 3, -2 }), 1))
NET(bad_input_twice, dt_add(x, dt_add(dt_input(x, "odd", { 4 }), dt_input(x, "odd", { 4 }))))
NET(bad_rank, dt_flatten(dt_embedding(x, 3, 3, .name = "odd")))
NET(net_fine, dt_dense(x, 2))
NET(net_flat, dt_dense(dt_flatten(x), 2))
static dt_tensor *bad_many_inputs(dt_tensor *x, void *user) {
    (void)user;
    char name[] = "in_0";
    for (int i = 0; i < DT_MAX_INPUTS; i++) {
        name[3] = (char)('0' + i);
        x = dt_add(x, dt_input(x, name, { 3, 3, 32 }));
    }
    return x;
}
static dt_tensor *bad_then_more(dt_tensor *x, void *user) {  /* the first error stays, whatever follows */
    (void)user;
    dt_tensor *bad = dt_conv2d(x, 8, 5, .name = "odd"), *t = bad;
    for (int i = 0; i < 20; i++) t = dt_relu(dt_batchnorm(dt_conv2d(t, 8, 3)));
    t = dt_add(dt_dense(dt_flatten(t), 3), dt_dense(x, -5, .name = "second"));
    t = dt_softmax(dt_concat(dt_slice(t, 1, 0, 2), dt_dropout(dt_embedding(t, 0, 0), 3), 9));
    dt_loss(t, DT_MSE, .target = dt_output(t, "t"));
    seen_rank[0] = dt_rank(t) + dt_rank(bad);
    seen_dim[0] = dt_dim(t, 1);
    return dt_layernorm(dt_reshape(dt_maxpool2d(dt_custom(t, { 3 }, custom_nothing, NULL, NULL), 2), { 9, 9 }));
}

#define IMAGE { 3, 3, 32 }
static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); int input[DT_MAX_RANK - 1]; dt_type type; const char *fragment[4]; } bad_case[] = {
    { "kernel too large",        bad_conv_kernel,      IMAGE, DT_FLOAT32, { "dt_conv2d", "odd", "[n,3,3,32]", "DT_SAME" } },
    { "dilated kernel too large", bad_conv_dilation,   IMAGE, DT_FLOAT32, { "odd", "[n,3,3,32]", "DT_SAME" } },
    { "conv2d of a flat tensor", bad_conv_flat,        IMAGE, DT_FLOAT32, { "dt_conv2d", "odd", "[n,288]" } },
    { "no filters",              bad_conv_filters,     IMAGE, DT_FLOAT32, { "odd", "filters", "0" } },
    { "negative filters",        bad_conv_minus,       IMAGE, DT_FLOAT32, { "odd", "filters", "-8" } },
    { "no kernel",               bad_conv_no_kernel,   IMAGE, DT_FLOAT32, { "odd", "0x0" } },
    { "negative stride",         bad_conv_stride,      IMAGE, DT_FLOAT32, { "odd", "stride", "-2" } },
    { "negative padding",        bad_conv_padding,     IMAGE, DT_FLOAT32, { "odd", "padding", "-7" } },
    { "groups and channels",     bad_conv_groups,      IMAGE, DT_FLOAT32, { "odd", "groups", "32", "5" } },
    { "groups and filters",      bad_conv_groups_out,  IMAGE, DT_FLOAT32, { "odd", "groups", "9", "4" } },
    { "window too large",        bad_pool,             IMAGE, DT_FLOAT32, { "dt_maxpool2d", "odd", "[n,3,3,32]", "4" } },
    { "no window",               bad_pool_size,        IMAGE, DT_FLOAT32, { "dt_avgpool2d", "odd", "size", "0" } },
    { "padding over a half",     bad_pool_padding,     IMAGE, DT_FLOAT32, { "odd", "padding", "2" } },
    { "pool of a flat tensor",   bad_pool_flat,        IMAGE, DT_FLOAT32, { "dt_maxpool2d", "odd", "[n,288]" } },
    { "global pool, flat",       bad_global_pool,      IMAGE, DT_FLOAT32, { "dt_global_avgpool", "[n,288]" } },
    { "no units",                bad_dense,            IMAGE, DT_FLOAT32, { "dt_dense", "odd", "units", "0" } },
    { "negative units",          bad_dense_minus,      IMAGE, DT_FLOAT32, { "dt_dense", "odd", "units", "-10" } },
    { "add",                     bad_add,              IMAGE, DT_FLOAT32, { "dt_add", "[n,3,3,4]", "[n,3,3,5]" } },
    { "mul of other ranks",      bad_mul_rank,         IMAGE, DT_FLOAT32, { "dt_mul", "[n,3,3,32]", "[n,288]" } },
    { "concat of other ranks",   bad_concat,           IMAGE, DT_FLOAT32, { "dt_concat", "[n,3,3,4]", "[n,288]" } },
    { "concat of other sizes",   bad_concat_sizes,     IMAGE, DT_FLOAT32, { "dt_concat", "[n,2,2,2]", "[n,3,3,32]" } },
    { "concat along the batch",  bad_concat_batch,     IMAGE, DT_FLOAT32, { "dt_concat", "axis", "0" } },
    { "concat, no such axis",    bad_concat_axis,      IMAGE, DT_FLOAT32, { "dt_concat", "axis", "4" } },
    { "slice of nothing",        bad_slice_empty,      IMAGE, DT_FLOAT32, { "dt_slice", "odd", "2" } },
    { "slice beyond the end",    bad_slice_beyond,     IMAGE, DT_FLOAT32, { "dt_slice", "odd", "9", "3" } },
    { "slice before the start",  bad_slice_begin,      IMAGE, DT_FLOAT32, { "dt_slice", "odd", "-5" } },
    { "slice backwards",         bad_slice_step,       IMAGE, DT_FLOAT32, { "dt_slice", "odd", "step", "-1" } },
    { "slice of the batch",      bad_slice_axis,       IMAGE, DT_FLOAT32, { "dt_slice", "odd", "axis" } },
    { "pad by less",             bad_pad,              IMAGE, DT_FLOAT32, { "dt_pad", "-1" } },
    { "pad the batch",           bad_pad_axis,         IMAGE, DT_FLOAT32, { "dt_pad", "axis" } },
    { "reshape",                 bad_reshape,          IMAGE, DT_FLOAT32, { "dt_reshape", "odd", "[n,3,3,32]", "[n,5,7]" } },
    { "reshape with a rest",     bad_reshape_rest,     IMAGE, DT_FLOAT32, { "dt_reshape", "odd", "[n,3,3,32]", "7" } },
    { "reshape with two rests",  bad_reshape_two,      IMAGE, DT_FLOAT32, { "dt_reshape", "odd", "-1" } },
    { "reshape to -3",           bad_reshape_minus,    IMAGE, DT_FLOAT32, { "dt_reshape", "odd", "-3" } },
    { "embedding of floats",     bad_embedding_float,  { 4 }, DT_FLOAT32, { "dt_embedding", "odd", "DT_INT32" } },
    { "no tokens",               bad_embedding_tokens, { 4 }, DT_INT32,   { "dt_embedding", "odd", "tokens", "0" } },
    { "dense of tokens",         bad_dense_tokens,     { 4 }, DT_INT32,   { "dt_dense", "odd", "dt_embedding" } },
    { "dropout 1",               bad_dropout_one,      { 4 }, DT_FLOAT32, { "dt_dropout", "rate", "1" } },
    { "dropout -0.5",            bad_dropout_minus,    { 4 }, DT_FLOAT32, { "dt_dropout", "rate", "-0.5" } },
    { "dropout NaN",             bad_dropout_nan,      { 4 }, DT_FLOAT32, { "dt_dropout", "rate" } },
    { "negative epsilon",        bad_norm_epsilon,     { 4 }, DT_FLOAT32, { "dt_layernorm", "odd", "epsilon", "-1" } },
    { "momentum above 1",        bad_norm_momentum,    { 4 }, DT_FLOAT32, { "dt_batchnorm", "odd", "momentum", "1.5" } },
    { "custom, no forward",      bad_custom,           { 4 }, DT_FLOAT32, { "dt_custom", "odd", "forward" } },
    { "custom, shape",           bad_custom_shape,     { 4 }, DT_FLOAT32, { "dt_custom", "odd", "-4" } },
    { "unknown initializer",     bad_init,             { 4 }, DT_FLOAT32, { "dt_dense", "odd", "init", "66" } },
    { "initial value NaN",       bad_init_value,       { 4 }, DT_FLOAT32, { "dt_dense", "odd", "init_value" } },
    { "NULL",                    bad_null,             { 4 }, DT_FLOAT32, { "net", "NULL" } },
    { "NULL as the second",      bad_null_second,      { 4 }, DT_FLOAT32, { "dt_add", "NULL" } },
    { "NULL, relu",              bad_null_relu,        { 4 }, DT_FLOAT32, { "net", "NULL" } },
    { "NULL, deep inside",       bad_null_inside,      { 4 }, DT_FLOAT32, { "net", "NULL" } },
    { "net returns NULL",        bad_nothing,          { 4 }, DT_FLOAT32, { "net", "NULL" } },
    { "another graph's tensor",  bad_stolen,           { 4 }, DT_FLOAT32, { "net", "not made from its x" } },
    { "… inside",                bad_stolen_inside,    { 4 }, DT_FLOAT32, { "dt_add", "another" } },
    { "… alone",                 bad_stolen_layer,     { 4 }, DT_FLOAT32, { "net" } },
    { "a name twice",            bad_twice,            { 4 }, DT_FLOAT32, { "two layers", "odd", ".name" } },
    { "a name for two kinds",    bad_twice_kinds,      IMAGE, DT_FLOAT32, { "two layers", "odd", ".name" } },
    { "a long name",             bad_name,             { 4 }, DT_FLOAT32, { "a_name_of_sixty_four", "63" } },
    { "share of another kind",   bad_share_kind,       IMAGE, DT_FLOAT32, { "dt_dense", "odd", "share" } },
    { "share of other sizes",    bad_share_sizes,      { 4 }, DT_FLOAT32, { "dt_dense", "odd", "share", "20" } },
    { "share without the bias",  bad_share_bias,       { 4 }, DT_FLOAT32, { "dt_dense", "odd", "share" } },
    { "share of the input",      bad_share_input,      { 4 }, DT_FLOAT32, { "dt_dense", "odd", "share" } },
    { "share of a relu",         bad_share_relu,       { 4 }, DT_FLOAT32, { "dt_dense", "odd", "share" } },
    { "share of another graph",  bad_share_stolen,     { 4 }, DT_FLOAT32, { "dt_dense", "odd", "share" } },
    { "output without a name",   bad_output_name,      { 4 }, DT_FLOAT32, { "dt_output", "name" } },
    { "outputs of one name",     bad_output_twice,     { 4 }, DT_FLOAT32, { "two outputs", "odd" } },
    { "output of NULL",          bad_output_null,      { 4 }, DT_FLOAT32, { "net", "NULL" } },
    { "loss of NULL",            bad_loss_null,        { 4 }, DT_FLOAT32, { "net", "NULL" } },
    { "input of negative size",  bad_input_shape,      { 4 }, DT_FLOAT32, { "dt_input", "odd", "-2" } },
    { "inputs of one name",      bad_input_twice,      { 4 }, DT_FLOAT32, { "two", "odd" } },
    { "nine inputs",             bad_many_inputs,      IMAGE, DT_FLOAT32, { "dt_input", "8" } },
    { "rank 7",                  bad_rank,             { 2, 2, 2, 2, 2 }, DT_INT32, { "dt_embedding", "odd", "6" } },
    { "the first error stays",   bad_then_more,        IMAGE, DT_FLOAT32, { "dt_conv2d", "odd", "[n,3,3,32]", "DT_SAME" } },
    { "no input",                net_fine,             { 0 }, DT_FLOAT32, { ".input" } },
    { "negative input",          net_fine,             { 4, -3 }, DT_FLOAT32, { "input", "-3" } },
    { "no net",                  NULL,                 { 4 }, DT_FLOAT32, { ".net" } },
    { "input type of labels",    net_fine,             { 4 }, DT_ONE_HOT, { "input", "DT_ONE_HOT" } },
    { "unknown input type",      net_fine,             { 4 }, (dt_type)44, { "input_type", "44" } },
};

static void test_bad_graphs(void) {
    static const int input[DT_MAX_RANK - 1] = { 4 };
    dt_options donor = options_of(net_donor, input, 2);
    dt_model *other = dt_model_create(&donor, NULL);
    CHECK(other != NULL);
    const long alive = blocks_alive;
    for (int i = 0; i < COUNT(bad_case); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(bad_case[i].net, bad_case[i].input, 2);
        o.input_type = bad_case[i].type;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m == NULL, "%s is accepted", bad_case[i].name);
        CHECK_MSG(m != NULL || err.code == DT_ERR_SHAPE || err.code == DT_ERR_ARGUMENT, "%s: code %d \"%s\"", bad_case[i].name, err.code, err.text);
        for (int k = 0; m == NULL && k < 4 && bad_case[i].fragment[k]; k++)
            CHECK_MSG(strstr(err.text, bad_case[i].fragment[k]) != NULL, "%s: \"%s\" does not say \"%s\"", bad_case[i].name, err.text, bad_case[i].fragment[k]);
        if (m == NULL) {  /* dt_model_bytes refuses with the same words */
            dt_error again = DT_DEFAULTS;
            CHECK(dt_model_bytes(&o, &again) == 0);
            CHECK_MSG(again.code == err.code && strstr(err.text, again.text), "%s: \"%s\" and \"%s\"", bad_case[i].name, err.text, again.text);
            CHECK(dt_model_create(&o, NULL) == NULL);
        }
        dt_model_free(m);
        CHECK_MSG(blocks_alive == alive, "%s: %ld blocks are left", bad_case[i].name, blocks_alive - alive);
    }
    CHECK(seen_rank[0] == 0 && seen_dim[0] == 0);  /* a failed tensor has no shape */
    dt_model_free(other);
    dt_model_free(NULL);
    CHECK(dt_rank(NULL) == 0 && dt_dim(NULL, 1) == 0);
}

/* An error that is already there is not overwritten. */
static void test_first_error_stays(void) {
    static const int input[DT_MAX_RANK - 1] = { 4 };
    dt_error err = DT_DEFAULTS;
    dt_options good = options_of(net_fine, input, 2), bad = options_of(bad_nothing, input, 2);
    float x[8] = { 0 }, y[4];
    err.code = DT_ERR_IO;
    strcpy(err.text, "mine");
    CHECK(dt_model_create(&bad, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_IO, "mine");
    dt_model *m = dt_model_create(&good, NULL);
    CHECK(m != NULL);
    CHECK(dt_predict(m, x, -1, y, &err) == DT_ERR_ARGUMENT);  /* the call still says what happened to it */
    CHECK_ERROR(err, DT_ERR_IO, "mine");
    CHECK(dt_predict(m, x, 2, y, &err) == 0);
    CHECK_ERROR(err, DT_ERR_IO, "mine");
    dt_model_free(m);
    CHECK(dt_model_create(NULL, &err) == NULL && dt_model_bytes(NULL, NULL) == 0);
}

/* Sizes that overflow, or that no machine has, are refused and not computed with. */
static void test_absurd_sizes(void) {
    static const struct { dt_tensor *(*net)(dt_tensor *, void *); int input[DT_MAX_RANK - 1]; int batch; } row[] = {
        { net_flat, { 100000, 100000, 1000 }, 32 },
        { net_flat, { 2147483647, 2147483647, 2147483647, 2147483647, 2147483647 }, 1 },
        { net_flat, { 65536, 65536, 65536, 65536 }, 1 },  /* the product is 2^64: 0 in 64 bits */
        { net_flat, { 65536, 32768 }, 1 },                /* 2^31: negative in an int */
        { net_fine, { 2147483647 }, 2147483647 },
        { bad_dense_huge, { 2147483647 }, 1 },
        { net_fine, { 1000000 }, 2147483647 },
    };
    const long alive = blocks_alive;
    for (int i = 0; i < COUNT(row); i++)
        for (int replicas = 1; replicas <= 2; replicas++) {
            dt_error err = DT_DEFAULTS;
            dt_options o = options_of(row[i].net, row[i].input, row[i].batch);
            o.replicas = replicas;
            dt_model *m = dt_model_create(&o, &err);
            CHECK_MSG(m == NULL, "row %d is accepted", i);
            CHECK_MSG(err.code == DT_ERR_SHAPE || err.code == DT_ERR_MEMORY || err.code == DT_ERR_ARGUMENT, "row %d: %s", i, err.text);
            dt_model_free(m);
            dt_error again = DT_DEFAULTS;
            const size_t bytes = dt_model_bytes(&o, &again);
            CHECK_MSG(bytes == 0 || bytes > (size_t)1 << 31, "row %d: %lu bytes", i, (unsigned long)bytes);
            CHECK(blocks_alive == alive);
        }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static dt_tensor *net_mlp(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_dropout(dt_relu(dt_dense(dt_flatten(x), 33)), 0.2), 5);
}
static dt_tensor *net_cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 7, 3, .padding = DT_SAME)));
    x = dt_add(x, dt_conv2d(dt_tanh(x), 7, 3, .padding = 1));
    x = dt_concat(dt_maxpool2d(x, 2), dt_avgpool2d(x, 2), 3);
    return dt_dense(dt_layernorm(dt_flatten(x)), 5);
}
static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); int batch, replicas; dt_strategy strategy; int accumulate, inference; dt_optimizer optimizer; } memory_case[] = {
    { "mlp",             net_mlp, 4, 1, DT_ONE, 1, 0, DT_SGD },           { "mlp, adam",       net_mlp, 4, 1, DT_ONE, 1, 0, DT_ADAM },
    { "mlp, inference",  net_mlp, 4, 1, DT_ONE, 1, 1, DT_SGD },           { "mlp, mirrored 2", net_mlp, 5, 2, DT_MIRRORED, 1, 0, DT_MOMENTUM },
    { "mlp, central 3",  net_mlp, 5, 3, DT_CENTRAL, 1, 0, DT_ADAMW },     { "mlp, 2 parts",    net_mlp, 4, 1, DT_ONE, 2, 0, DT_RMSPROP },
    { "cnn",             net_cnn, 3, 1, DT_ONE, 1, 0, DT_NESTEROV },      { "cnn, inference",  net_cnn, 3, 1, DT_ONE, 1, 1, DT_SGD },
    { "cnn, mirrored 3", net_cnn, 7, 3, DT_MIRRORED, 1, 0, DT_ADAM },     { "cnn, central 2",  net_cnn, 3, 2, DT_CENTRAL, 1, 0, DT_SGD },
    { "cnn, inference 2", net_cnn, 4, 2, DT_MIRRORED, 1, 1, DT_SGD },
};
static const int memory_input[DT_MAX_RANK - 1] = { 6, 5, 2 };
enum { MEMORY_X = 60, MEMORY_Y = 5 };

static dt_options memory_options(int i) {
    dt_options o = options_of(memory_case[i].net, memory_input, memory_case[i].batch);
    o.replicas = memory_case[i].replicas;
    o.strategy = memory_case[i].strategy;
    o.accumulate = memory_case[i].accumulate;
    o.inference = memory_case[i].inference;
    o.optimizer = memory_case[i].optimizer;
    o.loss = o.inference ? DT_NO_LOSS : DT_CROSS_ENTROPY;
    return o;
}

/* Some work of every kind; returns a check sum of what came out. */
static double work(dt_model *m, int i, dt_error *err) {
    float x[8 * MEMORY_X], y[8 * MEMORY_Y];
    int labels[8] = { 0, 1, 2, 3, 4, 0, 1, 2 };
    double sum = 0;
    fill(x, COUNT(x));
    if (!memory_case[i].inference) {
        for (int step = 0; step < 3; step++) sum += dt_step(m, x, labels, memory_case[i].batch - step % 2, err);
        dt_batch batch = DT_DEFAULTS;
        batch.x[0] = x;
        batch.y[0] = labels;
        batch.n = memory_case[i].batch / memory_case[i].accumulate;
        sum += dt_forward(m, &batch, err);
        dt_backward(m, err);
        dt_reduce(m, err);
        dt_update(m, err);
        dt_output_read(m, NULL, y, err);
    }
    dt_predict(m, x, 8, y, err);
    for (int k = 0; k < COUNT(y); k++) sum += y[k] * (float)(k % 7 + 1);
    return sum;
}

/* A model runs in exactly the bytes that were named, wherever they begin, and not in one less. */
static void test_exact_bytes(void) {
    for (int i = 0; i < COUNT(memory_case); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = memory_options(i);
        const long alive = blocks_alive;
        const size_t bytes = dt_model_bytes(&o, &err);
        CHECK_MSG(bytes > 0, "%s: %s", memory_case[i].name, err.text);
        CHECK_MSG(blocks_alive == alive, "%s: dt_model_bytes leaves %ld blocks", memory_case[i].name, blocks_alive - alive);
        if (!bytes) continue;
        CHECK(dt_model_bytes(&o, &err) == bytes);
        double expected = 0;
        for (int offset = 0; offset <= 5; offset++) {
            unsigned char *room = (unsigned char *)malloc(bytes + 64);
            if (!room) return;
            memset(room, 0xa5, bytes + 64);
            o.memory = room + offset;
            o.memory_size = bytes;
            CHECK_MSG(dt_model_bytes(&o, &err) == bytes, "%s: the number depends on .memory", memory_case[i].name);
            const long before = mallocs;
            dt_model *m = dt_model_create(&o, &err);
            CHECK_MSG(m != NULL, "%s, offset %d: %s", memory_case[i].name, offset, err.text);
            if (m) {
                const double sum = work(m, i, &err);
                CHECK_MSG(err.code == 0 && isfinite(sum), "%s: %s", memory_case[i].name, err.text);
                if (offset == 0) expected = sum;
                CHECK_MSG(sum == expected, "%s, offset %d: %.17g, before %.17g", memory_case[i].name, offset, sum, expected);
                CHECK(dt_model_report(m).arena_bytes == bytes);
            }
            dt_model_free(m);
            CHECK_MSG(mallocs == before, "%s: malloc was called %ld times although there is .memory", memory_case[i].name, mallocs - before);
            int outside = 0;
            for (int k = 0; k < offset; k++) outside += room[k] != 0xa5;
            for (size_t k = bytes + (size_t)offset; k < bytes + 64; k++) outside += room[k] != 0xa5;
            CHECK_MSG(!outside, "%s, offset %d: %d bytes outside .memory were written", memory_case[i].name, offset, outside);

            char needs[80];
            dt_error less = DT_DEFAULTS;
            o.memory_size = bytes - 1;
            snprintf(needs, sizeof needs, "needs %lu bytes, has %lu", (unsigned long)bytes, (unsigned long)bytes - 1);
            m = dt_model_create(&o, &less);
            CHECK_MSG(m == NULL, "%s, offset %d: one byte less is enough", memory_case[i].name, offset);
            CHECK_ERROR(less, DT_ERR_MEMORY, needs);
            dt_model_free(m);
            free(room);
        }
        /* the same model on the heap */
        o = memory_options(i);
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL && work(m, i, &err) == expected, "%s on the heap: %s", memory_case[i].name, err.text);
        dt_model_free(m);
        CHECK(blocks_alive == alive);
    }
}

static void test_tiny_memory(void) {
    static const size_t sizes[] = { 0, 1, 7, 64, 1000 };
    unsigned char room[1001];
    for (int i = 0; i < COUNT(sizes); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = memory_options(0);
        o.memory = room;
        o.memory_size = sizes[i];
        memset(room, 0xa5, sizeof room);
        CHECK(dt_model_create(&o, &err) == NULL);
        CHECK_ERROR(err, sizes[i] ? DT_ERR_MEMORY : err.code, sizes[i] ? "needs" : "memory_size");
        CHECK(room[sizes[i]] == 0xa5);
    }
}

/* ---- allocation through hooks ------------------------------------------------------------------------------------- */

typedef struct { long calls, alive, fail; size_t bytes; } ledger;
typedef struct { size_t n; double align; } tag;

static void *ledger_alloc(size_t n, void *user) {
    ledger *l = (ledger *)user;
    if (l->fail >= 0 && l->calls >= l->fail) { l->calls++; return NULL; }
    tag *t = (tag *)malloc(sizeof *t + n);
    if (!t) return NULL;
    t->n = n;
    l->calls++;
    l->alive++;
    l->bytes += n;
    return t + 1;
}
static void ledger_release(void *p, void *user) {
    ledger *l = (ledger *)user;
    if (!p) return;
    l->alive--;
    l->bytes -= ((tag *)p - 1)->n;
    free((tag *)p - 1);
}

/* A step takes no memory, neither through the hooks nor around them. */
static void test_steps_do_not_allocate(void) {
    for (int i = 0; i < COUNT(memory_case); i++) {
        ledger l = { 0, 0, -1, 0 };
        dt_error err = DT_DEFAULTS;
        dt_options o = memory_options(i);
        o.alloc = ledger_alloc;
        o.release = ledger_release;
        o.alloc_user = &l;
        const size_t bytes = dt_model_bytes(&o, &err);
        CHECK_MSG(l.alive == 0, "%s: dt_model_bytes leaves %ld blocks", memory_case[i].name, l.alive);
        const long before = mallocs;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s: %s", memory_case[i].name, err.text);
        if (!m) continue;
        CHECK_MSG(l.calls > 0 && mallocs == before, "%s: %ld calls of the hook, %ld of malloc", memory_case[i].name, l.calls, mallocs - before);
        /* each block may carry a header and its alignment besides */
        CHECK_MSG(l.bytes + 64 >= bytes && l.bytes <= bytes + (size_t)l.alive * 192, "%s: %lu bytes are held in %ld blocks, dt_model_bytes says %lu", memory_case[i].name,
                  (unsigned long)l.bytes, l.alive, (unsigned long)bytes);
        l.calls = 0;
        work(m, i, &err);
        CHECK_MSG(l.calls == 0 && mallocs == before, "%s: %ld calls of the hook, %ld of malloc in steps", memory_case[i].name, l.calls, mallocs - before);
        CHECK_OK(err);
        dt_model_free(m);
        CHECK_MSG(l.alive == 0, "%s: %ld blocks are left", memory_case[i].name, l.alive);
    }
}

static void test_hooks_come_in_pairs(void) {
    ledger l = { 0, 0, -1, 0 };
    dt_error err = DT_DEFAULTS;
    dt_options o = memory_options(0);
    o.alloc = ledger_alloc;
    o.alloc_user = &l;
    CHECK(dt_model_create(&o, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "release");
    err.code = 0;
    o.alloc = NULL;
    o.release = ledger_release;
    CHECK(dt_model_create(&o, &err) == NULL);
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "alloc");
    CHECK(l.calls == 0);
}

/* Fail the first allocation, then the second, …: an error each time, nothing left, until it goes through. */
static void test_failing_allocations(void) {
    for (int i = 0; i < COUNT(memory_case); i++) {
        int done = 0;
        for (long fail = 0; !done && fail < 500; fail++) {
            ledger l = { 0, 0, fail, 0 };
            dt_error err = DT_DEFAULTS;
            dt_options o = memory_options(i);
            o.alloc = ledger_alloc;
            o.release = ledger_release;
            o.alloc_user = &l;
            dt_model *m = dt_model_create(&o, &err);
            if (m) {
                done = fail > 0 && l.calls <= fail;
                CHECK_MSG(done, "%s: allocation %ld failed and nobody noticed", memory_case[i].name, fail);
            } else {
                CHECK_MSG(err.code == DT_ERR_MEMORY, "%s, allocation %ld: code %d \"%s\"", memory_case[i].name, fail, err.code, err.text);
            }
            dt_model_free(m);
            CHECK_MSG(l.alive == 0, "%s, allocation %ld: %ld blocks are left", memory_case[i].name, fail, l.alive);
        }
        CHECK_MSG(done, "%s never gets through", memory_case[i].name);
    }
}

/* The same without hooks, for everything that a program does with a model. */
static int scenario(int i, dt_error *err) {
    float x[8 * MEMORY_X];
    int labels[8] = { 0, 1, 2, 3, 4, 0, 1, 2 };
    dt_options o = memory_options(i), run = DT_DEFAULTS;
    dt_metrics metrics = DT_DEFAULTS;
    fill(x, COUNT(x));
    const dt_source s = dt_arrays(x, DT_FLOAT32, labels, DT_INT32, 8);
    o.train = s;
    o.epochs = 2;
    run = o;
    dt_model *m = dt_model_create(&o, err);
    int ok = m && dt_evaluate(m, &s, &metrics, err) == 0 && dt_train(m, &run, err) == 0 && isfinite(work(m, i, err));
    dt_model_free(m);
    return ok;
}
static void test_failing_mallocs(void) {
    for (int i = 0; i < COUNT(memory_case); i++) {
        if (memory_case[i].inference) continue;
        const long alive = blocks_alive;
        int done = 0;
        for (long fail = 0; !done && fail < 1000; fail++) {
            dt_error err = DT_DEFAULTS;
            fail_malloc = fail;
            const int ok = scenario(i, &err);
            done = fail_malloc >= 0;  /* fewer mallocs than that */
            fail_malloc = -1;
            if (done) CHECK_MSG(ok && !err.code, "%s: %s", memory_case[i].name, err.text);
            else if (!ok) CHECK_MSG(err.code == DT_ERR_MEMORY, "%s, malloc %ld: code %d \"%s\"", memory_case[i].name, fail, err.code, err.text);
            CHECK_MSG(blocks_alive == alive, "%s, malloc %ld: %ld blocks are left", memory_case[i].name, fail, blocks_alive - alive);
        }
        CHECK_MSG(done, "%s never gets through", memory_case[i].name);
    }
}

/* ---- the plan -------------------------------------------------------------------------------------------------------- */

static dt_tensor *net_chain(dt_tensor *x, void *user) {
    (void)user;
    for (int i = 0; i < 20; i++) x = dt_tanh(dt_dense(x, 64));
    return x;
}
static void test_plan(void) {
    static const int input[DT_MAX_RANK - 1] = { 64 };
    const size_t layer = 256 * 64 * sizeof(float);
    size_t block[2], lower[2], bytes[2];
    for (int inference = 0; inference < 2; inference++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(net_chain, input, 256);
        o.inference = inference;
        o.loss = inference ? DT_NO_LOSS : DT_MSE;
        bytes[inference] = dt_model_bytes(&o, &err);
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        dt_model_plan_bytes(m, &block[inference], &lower[inference]);
        CHECK_MSG(lower[inference] > 0 && block[inference] >= lower[inference], "block %lu, lower bound %lu", (unsigned long)block[inference], (unsigned long)lower[inference]);
        CHECK(block[inference] < bytes[inference]);
        dt_model_free(m);
    }
    CHECK_MSG(block[1] <= 4 * layer, "a chain needs two layers at a time, with scratch at most four; the plan has %.1f", (double)block[1] / (double)layer);
    CHECK_MSG(block[0] >= 20 * layer, "training keeps the 20 layers' outputs; the plan has %.1f", (double)block[0] / (double)layer);
    CHECK_MSG(block[0] <= 30 * layer, "the gradients share their room; the plan has %.1f layers", (double)block[0] / (double)layer);
    CHECK_MSG(3 * bytes[1] < bytes[0], "a model for inference alone takes a fraction of the memory: %lu of %lu bytes", (unsigned long)bytes[1], (unsigned long)bytes[0]);
    for (int i = 0; i < COUNT(memory_case); i++) {
        dt_options o = memory_options(i);
        dt_model *m = dt_model_create(&o, NULL);
        size_t b = 0, l = 0;
        if (m) dt_model_plan_bytes(m, &b, &l);
        CHECK_MSG(l > 0 && b >= l, "%s: block %lu, lower bound %lu", memory_case[i].name, (unsigned long)b, (unsigned long)l);
        dt_model_free(m);
    }
}

static void test_inference_only(void) {
    float x[8 * MEMORY_X], y[2][8 * MEMORY_Y];
    int labels[8] = { 0 };
    fill(x, COUNT(x));
    for (int k = 0; k < 2; k++) {
        dt_tensor *(*net)(dt_tensor *, void *) = k ? net_cnn : net_mlp;
        size_t bytes[2];
        for (int inference = 0; inference < 2; inference++) {
            dt_error err = DT_DEFAULTS;
            dt_batch batch = DT_DEFAULTS;
            dt_options o = options_of(net, memory_input, 4);
            o.inference = inference;
            o.optimizer = DT_ADAM;
            o.loss = inference ? DT_NO_LOSS : DT_CROSS_ENTROPY;
            bytes[inference] = dt_model_bytes(&o, &err);
            dt_model *m = dt_model_create(&o, &err);
            CHECK_MSG(m != NULL, "%s", err.text);
            if (!m) return;
            CHECK_MSG(dt_predict(m, x, 8, y[inference], &err) == 0, "%s", err.text);
            batch.x[0] = x;
            batch.y[0] = labels;
            batch.n = 2;
            if (inference) {
                CHECK(isnan(dt_step(m, x, labels, 4, &err)));
                CHECK_ERROR(err, DT_ERR_STATE, "inference");
                dt_forward(m, &batch, NULL);  /* may be refused or not; it leads nowhere */
                CHECK(dt_backward(m, NULL) && dt_backward_from(m, x, NULL) && dt_update(m, NULL) && dt_reduce(m, NULL));
                CHECK(dt_gradients(m, NULL) == NULL);
            }
            dt_model_free(m);
        }
        CHECK_MSG(bytes[1] < bytes[0], "inference %lu bytes, training %lu", (unsigned long)bytes[1], (unsigned long)bytes[0]);
        for (int i = 0; i < 8 * MEMORY_Y; i++) if (fabsf(y[1][i] - y[0][i]) > 1e-6f) { CHECK_NEAR(y[1][i], y[0][i], 1e-6); break; }
    }
}

/* ---- partial batches ------------------------------------------------------------------------------------------------------ */

static dt_tensor *net_samples(dt_tensor *x, void *user) {  /* every sample for itself */
    (void)user;
    x = dt_relu(dt_conv2d(x, 7, 3, .padding = DT_SAME));
    x = dt_add(x, dt_conv2d(dt_tanh(x), 7, 3, .padding = 1, .groups = 7));
    x = dt_concat(dt_maxpool2d(x, 2), dt_avgpool2d(x, 2), 3);
    return dt_dense(dt_layernorm(dt_flatten(x)), 5);
}

static void test_partial_batches(void) {
    enum { BATCH = 7, MANY = 20 };
    float x[MANY * MEMORY_X], single[MANY * MEMORY_Y], y[MANY * MEMORY_Y];
    int labels[BATCH] = { 0, 1, 2, 3, 4, 0, 1 };
    fill(x, COUNT(x));
    for (int replicas = 1; replicas <= 3; replicas++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(net_samples, memory_input, BATCH);
        o.loss = DT_CROSS_ENTROPY;
        o.replicas = replicas;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        for (int s = 0; s < MANY; s++) CHECK(dt_predict(m, x + s * MEMORY_X, 1, single + s * MEMORY_Y, &err) == 0);
        for (int n = 1; n <= MANY; n++) {  /* more than a batch are run in several */
            memset(y, 0, sizeof y);
            CHECK_MSG(dt_predict(m, x, n, y, &err) == 0, "%s", err.text);
            for (int k = 0; k < n * MEMORY_Y; k++)
                if (fabsf(y[k] - single[k]) > 2e-6f) { CHECK_MSG(0, "predict %d with %d replicas: value %d is %g, alone %g", n, replicas, k, y[k], single[k]); break; }
            for (int k = n * MEMORY_Y; k < MANY * MEMORY_Y; k++) if (y[k] != 0) { CHECK_MSG(0, "predict %d writes value %d", n, k); break; }
        }
        CHECK(dt_predict(m, x, 0, y, &err) == 0);
        for (int n = 1; n <= BATCH; n++) {
            dt_batch batch = DT_DEFAULTS;
            batch.x[0] = x;
            batch.y[0] = labels;
            batch.n = n;
            double expected = 0;
            for (int s = 0; s < n; s++) {
                double sum = 0;
                for (int k = 0; k < MEMORY_Y; k++) sum += exp(single[s * MEMORY_Y + k]);
                expected += (log(sum) - single[s * MEMORY_Y + labels[s]]) / n;
            }
            CHECK_NEAR(dt_forward(m, &batch, &err), expected, 3e-6);
            memset(y, 0, sizeof y);
            dt_output_read(m, NULL, y, &err);
            for (int k = 0; k < n * MEMORY_Y; k++)
                if (fabsf(y[k] - single[k]) > 2e-6f) { CHECK_MSG(0, "forward of %d with %d replicas: value %d is %g, alone %g", n, replicas, k, y[k], single[k]); break; }
            for (int k = n * MEMORY_Y; k < MANY * MEMORY_Y; k++) if (y[k] != 0) { CHECK_MSG(0, "dt_output_read of %d writes value %d", n, k); break; }
        }
        CHECK_OK(err);
        dt_model_free(m);

        /* a step of n in a model for 7 is a step of a model for n; what the last batch left behind does not matter */
        for (int n = 1; n <= BATCH; n++) {
            float w[2][5 * 84];
            for (int k = 0; k < 2; k++) {
                o.batch = k ? BATCH : n;
                o.replicas = k ? replicas : 1;
                o.learning_rate = 0.1;
                m = dt_model_create(&o, &err);
                CHECK_MSG(m != NULL, "%s", err.text);
                if (!m) return;
                if (k) {
                    dt_batch full = DT_DEFAULTS;
                    full.x[0] = x;
                    full.y[0] = labels;
                    full.n = BATCH;
                    dt_forward(m, &full, &err);
                }
                dt_step(m, x, labels, n, &err);
                dt_step(m, x + MEMORY_X, labels, n, &err);
                dt_parameter_read(m, "dense_1.weight", w[k], 5 * 84, &err);
                CHECK_OK(err);
                dt_model_free(m);
            }
            for (int k = 0; k < 5 * 84; k++)
                if (fabsf(w[1][k] - w[0][k]) > 2e-6f) { CHECK_MSG(0, "step of %d with %d replicas: weight %d is %g, expected %g", n, replicas, k, w[1][k], w[0][k]); break; }
        }
    }
}

/* ---- the guard against NaN -------------------------------------------------------------------------------------------------- */

static int overflow_forward(const dt_custom_call *call) {
    for (int i = 0; i < call->n * 3; i++) call->y[i] = call->x[0][i];
    return 0;
}
static int overflow_backward(const dt_custom_call *call) {  /* sound until a sample says so */
    for (int i = 0; i < call->n * 3; i++) call->dx[0][i] += call->x[0][i] > 50 ? INFINITY : call->dy[i];
    return 0;
}
static dt_tensor *net_guarded(dt_tensor *x, void *user) {
    (void)user;
    x = dt_dense(x, 3, .name = "first", .init = DT_CONSTANT, .init_value = 0.1);
    x = dt_custom(x, { 0 }, overflow_forward, overflow_backward, NULL, .name = "middle");
    return dt_dense(dt_tanh(x), 2, .name = "last");
}

static void test_nan_guard(void) {
    static const struct { const char *name, *weight; float x, w; int rank; const char *layer, *other; } row[] = {
        { "NaN in the data",      NULL,         NAN,      0,        1, "first",  "input" },
        { "infinity in the data", NULL,         INFINITY, 0,        1, "first",  "input" },
        { "NaN in a weight",      "last.weight", 0,       NAN,      0, "last",   "last" },
        { "NaN in a bias",        "first.bias", 0,        NAN,      0, "first",  "first" },
        { "overflow in backward", NULL,         2000,     0,        1, "middle", "first" },
    };
    static const int input[DT_MAX_RANK - 1] = { 4 };
    for (int i = 0; i < 2 * COUNT(row); i++) {
        const int r = i / 2, replicas = 1 + i % 2;
        float x[4 * 4], y[4 * 2], kept[6];
        char text[32];
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(net_guarded, input, 4);
        o.loss = DT_MSE;
        o.optimizer = DT_MOMENTUM;
        o.replicas = replicas;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        fill(x, COUNT(x));
        fill(y, COUNT(y));
        for (int step = 0; step < 2; step++) CHECK_MSG(isfinite(dt_step(m, x, y, 4, &err)), "%s", err.text);
        const float good = x[3 * 4 + 1];
        size_t n = row[r].weight && strstr(row[r].weight, "bias") ? 3 : 6;
        if (row[r].weight) {
            float w[6];
            dt_parameter_read(m, row[r].weight, kept, n, &err);
            memcpy(w, kept, sizeof w);
            w[1] = row[r].w;
            dt_parameter_write(m, row[r].weight, w, n, &err);
            CHECK_OK(err);
        } else {
            x[3 * 4 + 1] = row[r].x;  /* in the last replica's rows */
        }
        const uint32_t before = dt_parameters_crc32c(m);
        CHECK_MSG(isnan(dt_step(m, x, y, 4, &err)), "%s, %d replicas: no failure", row[r].name, replicas);
        CHECK_MSG(err.code == DT_ERR_NUMERIC && (strstr(err.text, row[r].layer) || strstr(err.text, row[r].other)), "%s, %d replicas: code %d \"%s\"", row[r].name, replicas, err.code, err.text);
        CHECK_MSG(err.step == 2 || err.step == 3, "%s: step %ld", row[r].name, err.step);
        snprintf(text, sizeof text, "step %ld", err.step);
        CHECK_ERROR(err, DT_ERR_NUMERIC, text);
        CHECK_MSG(err.rank == (replicas == 2 ? row[r].rank : 0), "%s: rank %d", row[r].name, err.rank);
        snprintf(text, sizeof text, "replica %d", err.rank);
        CHECK_ERROR(err, DT_ERR_NUMERIC, text);
        CHECK_MSG(dt_parameters_crc32c(m) == before && dt_model_step(m) == 2, "%s: something was updated", row[r].name);
        /* repaired, the training goes on, and the broken step has left no gradient behind */
        err.code = 0;
        x[3 * 4 + 1] = good;
        if (row[r].weight) dt_parameter_write(m, row[r].weight, kept, n, &err);
        CHECK_MSG(isfinite(dt_step(m, x, y, 4, &err)) && dt_model_step(m) == 3, "%s: %s", row[r].name, err.text);
        const uint32_t after = dt_parameters_crc32c(m);
        dt_model_free(m);
        m = dt_model_create(&o, &err);
        for (int step = 0; m && step < 3; step++) dt_step(m, x, y, 4, &err);
        CHECK_MSG(m && dt_parameters_crc32c(m) == after, "%s, %d replicas: the failed step has left something", row[r].name, replicas);
        dt_model_free(m);
        /* without the guard the step goes on */
        o.no_nan_guard = 1;
        m = dt_model_create(&o, &err);
        x[3 * 4 + 1] = NAN;
        CHECK(m && isnan(dt_step(m, x, y, 4, &err)));
        CHECK_OK(err);
        CHECK(m && dt_model_step(m) == 1);
        dt_model_free(m);
    }
}

/* ---- misuse --------------------------------------------------------------------------------------------------------------------- */

static void test_sizes_of_batches(void) {
    static const int input[DT_MAX_RANK - 1] = { 4 };
    static const struct { int n; const char *fragment; } row[] = { { 0, "0" }, { -1, "-1" }, { 6, "6" }, { 2147483647, "2147483647" } };
    float x[24] = { 0 }, y[12] = { 0 };
    for (int replicas = 1; replicas <= 2; replicas++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(net_fine, input, 5);
        o.loss = DT_MSE;
        o.replicas = replicas;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        const uint32_t before = dt_parameters_crc32c(m);
        for (int i = 0; i < COUNT(row); i++) {
            dt_batch batch = DT_DEFAULTS;
            batch.x[0] = x;
            batch.y[0] = y;
            batch.n = row[i].n;
            err.code = 0;
            CHECK(isnan(dt_step(m, x, y, row[i].n, &err)));
            CHECK_ERROR(err, DT_ERR_ARGUMENT, row[i].fragment);
            if (row[i].n > 0) CHECK_ERROR(err, DT_ERR_ARGUMENT, "5");
            err.code = 0;
            CHECK(isnan(dt_step_batch(m, &batch, &err)));
            CHECK_ERROR(err, DT_ERR_ARGUMENT, row[i].fragment);
            err.code = 0;
            CHECK(isnan(dt_forward(m, &batch, &err)));
            CHECK_ERROR(err, DT_ERR_ARGUMENT, row[i].fragment);
        }
        err.code = 0;
        CHECK(isnan(dt_step(m, NULL, y, 2, &err)));
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "x");
        CHECK(dt_parameters_crc32c(m) == before && dt_model_step(m) == 0);
        CHECK(dt_local_batch(m) == 5);
        dt_model_free(m);
    }
}

/* NULL handles are refused, not followed. */
static void test_null_handles(void) {
    static const int input[DT_MAX_RANK - 1] = { 4 };
    float x[4] = { 0 };
    size_t n = 77, block = 77, lower = 77;
    dt_batch batch = DT_DEFAULTS;
    dt_parameter p;
    dt_metrics metrics = DT_DEFAULTS;
    const dt_source s = dt_arrays(x, DT_FLOAT32, x, DT_FLOAT32, 1);
    dt_options o = options_of(net_fine, input, 5);
    dt_model *m = dt_model_create(&o, NULL);
    CHECK(m != NULL);
    for (int with_error = 0; with_error < 2; with_error++) {
        dt_error error = DT_DEFAULTS, *err = with_error ? &error : NULL;
#define REFUSED(call) do { error.code = 0; CHECK(call); if (with_error) CHECK_MSG(error.code == DT_ERR_ARGUMENT && error.text[0], "%s: code %d \"%s\"", #call, error.code, error.text); } while (0)
        REFUSED(isnan(dt_step(NULL, x, x, 1, err)));
        REFUSED(isnan(dt_step_batch(NULL, &batch, err)));
        REFUSED(isnan(dt_step_batch(m, NULL, err)));
        REFUSED(isnan(dt_forward(NULL, &batch, err)));
        REFUSED(isnan(dt_forward(m, NULL, err)));
        REFUSED(dt_backward(NULL, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_backward_from(NULL, x, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_reduce(NULL, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_update(NULL, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_clear(NULL, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_output_read(NULL, NULL, x, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_input_gradient_read(NULL, x, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_predict(NULL, x, 1, x, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_predict(m, NULL, 1, x, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_predict(m, x, 1, NULL, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_evaluate(NULL, &s, &metrics, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_evaluate(m, NULL, &metrics, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_train(NULL, NULL, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_at(NULL, 0, &p, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_at(m, 0, NULL, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_at(m, -1, &p, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_at(m, 2, &p, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_read(NULL, "dense_1.bias", x, 2, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_read(m, NULL, x, 2, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_read(m, "dense_1.bias", NULL, 2, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_write(NULL, "dense_1.bias", x, 2, err) == DT_ERR_ARGUMENT);
        REFUSED(dt_parameter_write(m, "dense_1.bias", NULL, 2, err) == DT_ERR_ARGUMENT);
#ifndef DTRAIN_NO_STDIO
        REFUSED(dt_save(NULL, "x", err) == DT_ERR_ARGUMENT);
        REFUSED(dt_load(NULL, "x", NULL, err) == DT_ERR_ARGUMENT);
#endif
        REFUSED(dt_model_create(NULL, err) == NULL);
        REFUSED(dt_model_bytes(NULL, err) == 0);
    }
    CHECK(dt_gradients(NULL, &n) == NULL && n == 0);
    dt_model_plan_bytes(NULL, &block, &lower);
    CHECK(block == 0 && lower == 0);
    CHECK(dt_model_step(NULL) == 0 && dt_local_batch(NULL) == 0 && dt_learning_rate(NULL) == 0 && dt_parameters_crc32c(NULL) == 0);
    CHECK(dt_model_report(NULL).parameters == 0);
    dt_set_learning_rate(NULL, 1);
    dt_model_free(NULL);
    dt_model_free(m);
}

static void test_parameters_by_name(void) {
    static const int input[DT_MAX_RANK - 1] = { 4 };
    for (int replicas = 1; replicas <= 3; replicas++) {
        float w[8], got[8], x[6 * 4], y[6 * 2];
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(net_fine, input, 6);
        o.replicas = replicas;
        o.loss = DT_MSE;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        CHECK(dt_parameter_read(m, "dense_2.weight", w, 8, &err) == DT_ERR_ARGUMENT);
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "dense_2.weight");
        err.code = 0;
        CHECK(dt_parameter_read(m, "dense_1.weight", w, 7, &err) != 0);
        CHECK_MSG(strstr(err.text, "7") && strstr(err.text, "8") && strstr(err.text, "dense_1.weight"), "%s", err.text);
        err.code = 0;
        CHECK(dt_parameter_write(m, "dense_1.weight", w, 9, &err) != 0);
        CHECK_MSG(strstr(err.text, "9") && strstr(err.text, "8"), "%s", err.text);
        err.code = 0;
        fill(w, 8);
        fill(x, COUNT(x));
        CHECK(dt_parameter_write(m, "dense_1.weight", w, 8, &err) == 0 && dt_parameter_read(m, "dense_1.weight", got, 8, &err) == 0);
        CHECK(!memcmp(w, got, sizeof w));
        CHECK(dt_predict(m, x, 6, y, &err) == 0);  /* every replica has it */
        for (int s = 0; s < 6; s++)
            for (int u = 0; u < 2; u++) {
                double sum = 0;
                for (int k = 0; k < 4; k++) sum += (double)x[s * 4 + k] * w[u * 4 + k];
                CHECK_NEAR(y[s * 2 + u], sum, 1e-6);
            }
        CHECK_OK(err);
        dt_model_free(m);
    }
}

/* Options and strings are copied: the program may reuse them at once. */
static dt_tensor *net_temporary(dt_tensor *x, void *user) {
    char name[16];
    snprintf(name, sizeof name, "%s", (const char *)user);
    x = dt_dense(x, 2, .name = name);
    memset(name, 'x', sizeof name - 1);
    return x;
}
static void test_strings_are_copied(void) {
    static const int input[DT_MAX_RANK - 1] = { 4 };
    char name[16] = "short", glob[16] = "*.bias";
    dt_error err = DT_DEFAULTS;
    dt_parameter p;
    dt_options o = options_of(net_temporary, input, 2);
    o.user = name;
    o.freeze = glob;
    o.loss = DT_MSE;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    if (!m) return;
    memset(glob, '*', sizeof glob - 1);
    memset(name, 'y', sizeof name - 1);
    memset(&o, 0x55, sizeof o);
    CHECK(dt_parameter_at(m, 0, &p, &err) == 0 && !strcmp(p.name, "short.weight"));
    CHECK(dt_parameter_at(m, 1, &p, &err) == 0 && !strcmp(p.name, "short.bias") && !p.trainable);
    float x[8], y[4], before[2], after[2];
    fill(x, 8);
    fill(y, 4);
    dt_parameter_read(m, "short.bias", before, 2, &err);
    CHECK_MSG(isfinite(dt_step(m, x, y, 2, &err)), "%s", err.text);
    dt_parameter_read(m, "short.bias", after, 2, &err);
    CHECK(!memcmp(before, after, sizeof before));
    dt_model_free(m);
}

/* ---- what a review found ------------------------------------------------------------------------------ */

static int identity(const dt_custom_call *c) { for (int i = 0; i < c->n * 2; i++) c->y[i] = c->x[0][i]; return 0; }
static dt_tensor *net_vast_weights(dt_tensor *x, void *user) {
    int side = sizeof(ptrdiff_t) > 4 ? (1 << 30) - 1 : (1 << 14);
    (void)user;
    for (int i = 0; i < 4; i++) x = dt_custom(x, {0}, identity, identity, .weight = { side, side });
    return dt_custom(x, {0}, identity, identity, .weight = { 8, sizeof(ptrdiff_t) > 4 ? 1 << 30 : 1 << 8 });
}
static dt_tensor *net_vast_padding(dt_tensor *x, void *user) { (void)user; return dt_conv2d(x, 1, 32767, .kernel_w = 1, .padding = 32767); }
static dt_tensor *net_vast_values(dt_tensor *x, void *user) {
    char name[8];
    (void)user;
    for (int i = 0; i < 80; i++) { snprintf(name, sizeof name, "o%d", i); x = dt_output(dt_relu(x), name); }
    return x;
}
static dt_tensor *net_widest(dt_tensor *x, void *user) { (void)user; return dt_conv2d(x, 1, 1, .stride = 2, .padding = DT_SAME); }
static dt_tensor *net_turned(dt_tensor *x, void *user) {
    dt_tensor *a = dt_dense(x, 4, .no_bias = 1);
    (void)user;
    return dt_dense(a, 6, .no_bias = 1, .share = a);
}
static dt_tensor *net_image_second(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_concat(dt_dense(dt_global_avgpool(x), 2), dt_flatten(x), 1), 3);
}

/* sums of sizes that no memory holds are refused like single ones, and the largest that are legal are not */
static void test_vast(void) {
    static const struct { dt_tensor *(*net)(dt_tensor *, void *); int input[3], batch; } vast[] = {
        { net_vast_weights, { 2 }, 1 }, { net_vast_padding, { 1, 1 << 30, 1 << 20 }, 1 }, { net_vast_values, { 1 << 25, (1 << 26) - 1 }, 63 } };
    dt_options o = DT_DEFAULTS;
    for (int i = 0; i < COUNT(vast); i++) {
        dt_error err = DT_DEFAULTS;
        o.net = vast[i].net, o.inference = 1, o.batch = vast[i].batch, o.replicas = 1;
        memcpy(o.input, vast[i].input, sizeof vast[i].input);
        CHECK_MSG(dt_model_bytes(&o, &err) == 0 && (err.code == DT_ERR_MEMORY || err.code == DT_ERR_SHAPE) && strstr(err.text, "use "), "%d: %d %s", i, err.code, err.text);
    }
    if (sizeof(ptrdiff_t) > 4) {
        dt_error err = DT_DEFAULTS;
        o.net = net_widest, o.batch = 1, o.input[0] = INT_MAX, o.input[1] = o.input[2] = 1;
        CHECK(dt_model_bytes(&o, &err) > 0);
        CHECK_OK(err);
    }
}

static void test_share_and_order(void) {
    static const int six[DT_MAX_RANK - 1] = { 6 }, image[DT_MAX_RANK - 1] = { 2, 2, 2 };
    dt_error err = DT_DEFAULTS;
    dt_options o = options_of(net_turned, six, 4);
    o.loss = DT_MSE;
    CHECK(!dt_model_create(&o, &err));
    CHECK_ERROR(err, DT_ERR_SHAPE, ".share: dimension 0 of the other layer's weights is 4, this one needs 6");
    memset(&err, 0, sizeof err);
    o = options_of(net_image_second, image, 4);
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    CHECK(m && m->graph.hwc_files);  /* an image behind concat: PyTorch has no order for it, whichever input it is */
    dt_model_free(m);
}

static dt_model *within;
static double predicting_rate(long step, void *user) {
    static float x[64], y[64];
    (void)step, (void)user;
    if (within) dt_predict(within, x, 4, y, NULL);
    return 0.1;
}
static dt_tensor *net_linear3(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 3); }
static dt_tensor *net_norm(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_batchnorm(x, .name = "bn"), 3); }

/* what is left after a step that was refused, or that a callback interrupts */
static void test_left_over(void) {
    static const int six[DT_MAX_RANK - 1] = { 6 };
    float x[24], out[12], mean[2][6];
    int32_t y[4] = { 0, 1, 2, 0 };
    fill(x, COUNT(x));
    for (int replicas = 1; replicas <= 2; replicas++) {
        dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
        dt_options o = options_of(net_linear3, six, 4);
        o.loss = DT_CROSS_ENTROPY, o.replicas = replicas;
        dt_model *m = dt_model_create(&o, &err);
        y[2] = 9;
        CHECK(isnan(dt_step(m, x, y, 4, &err)) && dt_output_read(m, NULL, out, &none) == DT_ERR_STATE);
        y[2] = 2;
        dt_model_free(m);
        o.rate_at = predicting_rate;
        memset(&err, 0, sizeof err);
        m = within = dt_model_create(&o, &err);
        uint32_t before = dt_parameters_crc32c(m);
        CHECK(dt_step(m, x, y, 4, &err) > 0 && dt_parameters_crc32c(m) != before);
        CHECK_OK(err);
        within = NULL;
        dt_model_free(m);
    }
    for (int failed = 0; failed < 2; failed++) {  /* a forward that fails on one replica leaves nothing in the other's statistics */
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(net_norm, six, 4);
        dt_batch b = DT_DEFAULTS;
        o.loss = DT_CROSS_ENTROPY, o.replicas = 2;
        dt_model *m = dt_model_create(&o, &err);
        b.x[0] = x, b.y[0] = y, b.n = 4;
        y[3] = 9;
        if (failed) CHECK(isnan(dt_forward(m, &b, NULL)));
        y[3] = 0;
        dt_step(m, x, y, 4, &err);
        dt_parameter_read(m, "bn.running_mean", mean[failed], 6, &err);
        CHECK_OK(err);
        dt_model_free(m);
    }
    CHECK(!memcmp(mean[0], mean[1], sizeof mean[0]));
    float loss[2];
    for (int left = 0; left < 2; left++) {  /* a step begins without the gradients of a dt_backward before it */
        dt_error err = DT_DEFAULTS;
        dt_options o = options_of(net_linear3, six, 4);
        dt_batch b = DT_DEFAULTS;
        o.loss = DT_CROSS_ENTROPY;
        dt_model *m = dt_model_create(&o, &err);
        b.x[0] = x + 2, b.y[0] = y, b.n = 3;
        if (left) CHECK(dt_forward(m, &b, &err) > 0 && dt_backward(m, &err) == 0);
        loss[left] = dt_step(m, x, y, 4, &err);
        CHECK_OK(err);
        dt_model_free(m);
    }
    CHECK(loss[0] == loss[1]);
}

int main(void) {
    RUN(test_names_and_order);
    RUN(test_seeds_follow_the_graph);
    RUN(test_shapes_in_net);
    RUN(test_bad_graphs);
    RUN(test_first_error_stays);
    RUN(test_absurd_sizes);
    RUN(test_exact_bytes);
    RUN(test_tiny_memory);
    RUN(test_steps_do_not_allocate);
    RUN(test_hooks_come_in_pairs);
    RUN(test_failing_allocations);
    RUN(test_failing_mallocs);
    RUN(test_plan);
    RUN(test_inference_only);
    RUN(test_vast);
    RUN(test_share_and_order);
    RUN(test_left_over);
    RUN(test_partial_batches);
    RUN(test_nan_guard);
    RUN(test_sizes_of_batches);
    RUN(test_null_handles);
    RUN(test_parameters_by_name);
    RUN(test_strings_are_copied);
    return finish();
}
