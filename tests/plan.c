/* plan - the memory plan of the graph room never changes a number.
 *
 * A seeded generator builds random graphs out of every operation. Each graph becomes two models: one that runs the
 * plan as it is, and one that is taken apart (apart() below): every tensor, gradient and scratch has a place of its
 * own with a guard behind it, nothing is computed in place, and views copy. Both make the same random calls, and
 * everything that can be read from them must be equal to the bit. Meanwhile:
 *   - before a call, all memory that should not matter any more is filled with rubbish, in both models;
 *   - before each operation, the planned model's block is filled with rubbish wherever the plan says that nothing is
 *     alive (watch() below), so that a life that is too short shows even if its place was not given to another yet;
 *   - the guards of the other model must stay as they are, and backward must not touch a value.
 * Apart from that, on graphs without kinks: slopes of the loss agree with finite differences, and 2 and 3 replicas
 * agree with one. The plan itself is checked for overlaps. SEEDS=n runs n graphs, CASE=n one of them, and shows it.
 */
#define DTRAIN_IMPLEMENTATION
#define DT_STRIP_FLOATS 40  /* strips of one row or few */
#include "../dtrain.h"
#include "test.h"

enum { LIMIT = 150, POOL = 48, TOKENS = 5, MOST = 17, GUARD = 64, UNIT = 16, MOST_UNITS = 1 << 16 };

static ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

/* ---- dice ------------------------------------------------------------------------------------------------- */

typedef struct { uint64_t state; } dice;
static dice dice_of(uint64_t seed, int use) { dice d = { seed * 1000003u + (uint64_t)use * 7919u }; return d; }
static uint64_t roll(dice *d) {
    uint64_t z = d->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
static int below(dice *d, int n) { return (int)(roll(d) % (uint64_t)(n > 0 ? n : 1)); }
static int within(dice *d, int first, int last) { return first + below(d, last - first + 1); }
static int chance(dice *d, int percent) { return below(d, 100) < percent; }
static double real(dice *d) { return (double)(roll(d) >> 11) / 4503599627370496.0 - 1; }  /* -1 .. 1 */

/* ---- random graphs ---------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed;
    int smooth;       /* no kinks, nothing that hides a gradient, no statistics of a replica's own */
    int nodes;
    dt_options o;
} one_case;

typedef struct {
    const one_case *c;
    dice d;
    dt_tensor *t[POOL];      /* tensors to go on from */
    int used[POOL], n;
    int n_inputs, n_outputs, n_losses;
} builder;

static int last_dim(const dt_tensor *t) { return dt_dim(t, -1); }
static int is_int(const dt_tensor *t) { return t->type == DT_INT32; }
static int same_shape(const dt_tensor *a, const dt_tensor *b) {
    int i, same = dt_rank(a) == dt_rank(b) && !is_int(a) && !is_int(b);
    for (i = 1; same && i < dt_rank(a); i++) same = dt_dim(a, i) == dt_dim(b, i);
    return same;
}

/* A random tensor from the pool for which accepts says yes; NULL if there is none. */
typedef int accepts_fn(const dt_tensor *t, const dt_tensor *x);
static dt_tensor *find(builder *b, accepts_fn *accepts, const dt_tensor *x) {
    int from = below(&b->d, b->n);
    for (int i = 0; i < b->n; i++) {
        dt_tensor *t = b->t[(from + i) % b->n];
        if (accepts(t, x)) return t;
    }
    return NULL;
}

/* A tensor of x's shape: another one, x itself, or a new one. */
static dt_tensor *twin(builder *b, dt_tensor *x) {
    dt_tensor *t = find(b, same_shape, x);
    if (chance(&b->d, 10)) return x;
    if (t != x) return t;
    if (chance(&b->d, 40)) return dt_scale(x, 0.7, 0.1);
    return chance(&b->d, 50) ? dt_tanh(x) : dt_dense(x, last_dim(x));
}

static int shares_dense(const dt_tensor *t, const dt_tensor *x) { return t->op == &dt__dense && last_dim(t->in[0]) == last_dim(x); }
static int shares_conv(const dt_tensor *t, const dt_tensor *x) { return t->op == &dt__conv2d && last_dim(t->in[0]) == last_dim(x); }
static int shares_norm(const dt_tensor *t, const dt_tensor *x) { return t->op == &dt__batchnorm && last_dim(t) == last_dim(x); }
static int shares_layernorm(const dt_tensor *t, const dt_tensor *x) { return t->op == &dt__layernorm && last_dim(t) == last_dim(x); }
static int shares_embedding(const dt_tensor *t, const dt_tensor *x) { (void)x; return t->op == &dt__embedding; }
static dt_tensor *shared(builder *b, accepts_fn *accepts, const dt_tensor *x) { return chance(&b->d, 45) ? find(b, accepts, x) : NULL; }

/* Each of these makes one more tensor from x, or returns NULL where x does not suit it. */
static dt_tensor *grow_dense(builder *b, dt_tensor *x) {
    dt_tensor *s = shared(b, shares_dense, x);
    if (s) return dt_dense(x, last_dim(s), .share = s, .no_bias = !s->variable[1]);
    int units = chance(&b->d, 30) ? last_dim(x) : within(&b->d, 1, 9), no_bias = chance(&b->d, 20);
    return dt_dense(x, units, .no_bias = no_bias, .frozen = chance(&b->d, 12));
}

static int conv_fits(const dt_tensor *x, const dt_conv2d_options *o) {
    return dt__conv_size(dt_dim(x, 1), o->kernel, o->stride, o->dilation, o->padding) > 0 &&
           dt__conv_size(dt_dim(x, 2), o->kernel_w ? o->kernel_w : o->kernel, o->stride, o->dilation, o->padding) > 0;
}
static dt_tensor *grow_conv(builder *b, dt_tensor *x) {
    dt_conv2d_options o = DT_DEFAULTS;
    if (dt_rank(x) != 4) return NULL;
    dt_tensor *s = shared(b, shares_conv, x);
    if (s) o = *(const dt_conv2d_options *)s->options;
    else {
        o.kernel = within(&b->d, 1, 3);
        o.kernel_w = chance(&b->d, 30) ? within(&b->d, 1, 3) : 0;
        o.groups = chance(&b->d, 30) ? last_dim(x) : chance(&b->d, 20) && last_dim(x) % 2 == 0 ? 2 : 1;
        o.filters = chance(&b->d, 50) ? last_dim(x) : o.groups * within(&b->d, 1, o.groups > 1 ? 2 : 6);
        o.no_bias = chance(&b->d, 20);
        o.frozen = chance(&b->d, 12);
    }
    o.x = x;
    o.share = s;
    o.name = NULL;
    o.stride = chance(&b->d, 30) ? 2 : 1;
    o.dilation = chance(&b->d, 15) ? 2 : 1;
    o.padding = chance(&b->d, 40) ? DT_SAME : below(&b->d, 4);
    return conv_fits(x, &o) ? dt_conv2d_opt(o) : NULL;
}

static int pool_fits(const dt_tensor *x, const dt_pool2d_options *o) {
    int stride = o->stride ? o->stride : o->size;
    return dt__conv_size(dt_dim(x, 1), o->size, stride, 1, o->padding) > 0 && dt__conv_size(dt_dim(x, 2), o->size, stride, 1, o->padding) > 0;
}
static dt_tensor *grow_pool(builder *b, dt_tensor *x) {
    dt_pool2d_options o = DT_DEFAULTS;
    if (dt_rank(x) != 4) return NULL;
    o.x = x;
    o.size = within(&b->d, 1, 3);
    o.stride = below(&b->d, 3);
    o.padding = below(&b->d, o.size / 2 + 1);
    if (!pool_fits(x, &o)) return NULL;
    return !b->c->smooth && chance(&b->d, 60) ? dt_maxpool2d_opt(o) : dt_avgpool2d_opt(o);
}
static dt_tensor *grow_global(builder *b, dt_tensor *x) { (void)b; return dt_rank(x) == 4 ? dt_global_avgpool(x) : NULL; }
static dt_tensor *grow_flatten(builder *b, dt_tensor *x) { (void)b; return dt_flatten(x); }

static dt_tensor *grow_reshape(builder *b, dt_tensor *x) {
    dt_reshape_options o = DT_DEFAULTS;
    int rest = (int)x->size, rank = chance(&b->d, 40) ? 3 : within(&b->d, 1, 4);
    o.x = x;
    for (int i = 0; i < rank - 1; i++) {
        int k = within(&b->d, 1, rest);
        while (rest % k) k--;
        o.shape[i] = k;
        rest /= k;
    }
    o.shape[rank - 1] = chance(&b->d, 30) ? -1 : rest;
    return dt_reshape_opt(o);
}

static dt_tensor *grow_batchnorm(builder *b, dt_tensor *x) {
    int sync = b->c->smooth || chance(&b->d, 50);
    if (b->c->smooth && x->size / last_dim(x) < 6) return NULL;  /* few values: nearly a step function */
    dt_tensor *s = shared(b, shares_norm, x);
    if (s) return dt_batchnorm(x, .share = s, .sync = sync);
    return dt_batchnorm(x, .sync = sync, .frozen = chance(&b->d, 15));
}
static dt_tensor *grow_layernorm(builder *b, dt_tensor *x) {
    if (b->c->smooth && last_dim(x) < 4) return NULL;
    dt_tensor *s = shared(b, shares_layernorm, x);
    if (s) return dt_layernorm(x, .share = s, .no_bias = !s->variable[1]);
    int no_bias = chance(&b->d, 30);
    return dt_layernorm(x, .no_bias = no_bias, .frozen = chance(&b->d, 15));
}

static dt_tensor *grow_dropout(builder *b, dt_tensor *x) { return dt_dropout(x, chance(&b->d, 30) ? 0 : 0.4); }
static dt_tensor *grow_relu(builder *b, dt_tensor *x) { return b->c->smooth ? dt_silu(x) : dt_relu(x); }
static dt_tensor *grow_leaky(builder *b, dt_tensor *x) { return b->c->smooth ? dt_gelu(x) : dt_leaky_relu(x, 0.3 * (real(&b->d) + 1)); }
static dt_tensor *grow_reads_x(builder *b, dt_tensor *x) {
    int which = below(&b->d, 3);
    return which == 0 ? dt_gelu(x) : which == 1 ? dt_gelu_tanh(x) : dt_silu(x);
}
static dt_tensor *grow_reads_y(builder *b, dt_tensor *x) { return chance(&b->d, 50) ? dt_tanh(x) : dt_sigmoid(x); }
static dt_tensor *grow_softmax(builder *b, dt_tensor *x) { (void)b; return dt_softmax(x); }
static dt_tensor *grow_scale(builder *b, dt_tensor *x) {
    double factor = 1.5 * real(&b->d), offset = chance(&b->d, 50) ? 0 : real(&b->d);
    return dt_scale(x, factor, offset);
}
static dt_tensor *grow_add(builder *b, dt_tensor *x) {
    dt_tensor *y = twin(b, x), *swap = x;
    if (chance(&b->d, 50)) { x = y; y = swap; }
    return chance(&b->d, 70) ? dt_add(x, y) : dt_sub(x, y);
}
static dt_tensor *grow_mul(builder *b, dt_tensor *x) {
    dt_tensor *y = twin(b, x);
    return chance(&b->d, 50) ? dt_mul(x, y) : dt_mul(y, x);
}

static int joins(const dt_tensor *t, const dt_tensor *x) {  /* one axis may differ */
    int i, other = 0;
    for (i = 1; i < dt_rank(x) && dt_rank(t) == dt_rank(x); i++) other += dt_dim(t, i) != dt_dim(x, i);
    return t != x && dt_rank(t) == dt_rank(x) && other < 2 && !is_int(t);
}
static dt_tensor *grow_concat(builder *b, dt_tensor *x) {
    dt_tensor *y = chance(&b->d, 80) ? find(b, joins, x) : twin(b, x);
    int axis = within(&b->d, 1, dt_rank(x) - 1), i;
    if (!y) y = twin(b, x);
    for (i = 1; i < dt_rank(x); i++) if (dt_dim(x, i) != dt_dim(y, i)) axis = i;
    return chance(&b->d, 50) ? dt_concat(x, y, axis) : dt_concat(y, x, axis == dt_rank(x) - 1 ? -1 : axis);
}
static dt_tensor *grow_slice(builder *b, dt_tensor *x) {
    int axis = within(&b->d, 1, dt_rank(x) - 1), n = dt_dim(x, axis), begin = below(&b->d, n), end = within(&b->d, begin + 1, n);
    if (chance(&b->d, 50)) end -= n;
    return dt_slice(x, axis, begin, end, .step = below(&b->d, 4));
}
static dt_tensor *grow_pad(builder *b, dt_tensor *x) {
    int axis = within(&b->d, 1, dt_rank(x) - 1), before = below(&b->d, 3);
    return dt_pad(x, axis, before, below(&b->d, 3));
}

/* y = w x + x z / 2, where z is the second input, if there is one */
static int custom_forward(const dt_custom_call *c) {
    ptrdiff_t size = (ptrdiff_t)(intptr_t)c->user, i;
    for (i = 0; i < c->n * size; i++) c->y[i] = c->weight[i % size] * c->x[0][i] + (c->n_inputs > 1 ? c->x[0][i] * c->x[1][i] / 2 : 0);
    return 0;
}
static int custom_backward(const dt_custom_call *c) {
    ptrdiff_t size = (ptrdiff_t)(intptr_t)c->user, i;
    for (i = 0; i < c->n * size; i++) {
        float z = c->n_inputs > 1 ? c->x[1][i] : 0;
        if (c->dweight) c->dweight[i % size] += c->dy[i] * c->x[0][i];
        if (c->dx[0]) c->dx[0][i] += c->dy[i] * (c->weight[i % size] + z / 2);
        if (c->n_inputs > 1 && c->dx[1]) c->dx[1][i] += c->dy[i] * c->x[0][i] / 2;
    }
    return 0;
}
static int custom_half(const dt_custom_call *c) {
    ptrdiff_t size = (ptrdiff_t)(intptr_t)c->user, i;
    for (i = 0; i < c->n * size; i++) c->y[i] = c->x[0][i] / 2;
    return 0;
}
static dt_tensor *grow_custom(builder *b, dt_tensor *x) {
    void *size = (void *)(intptr_t)x->size;
    if (!b->c->smooth && chance(&b->d, 15)) return dt_custom(x, { 0 }, custom_half, NULL, size);
    dt_tensor *y = chance(&b->d, 60) ? twin(b, x) : NULL;
    return dt_custom(x, { 0 }, custom_forward, custom_backward, size, .more = { y }, .weight = { (int)x->size }, .frozen = chance(&b->d, 20));
}

static dt_tensor *grow_embedding(builder *b, dt_tensor *x) {
    dt_tensor *s = shared(b, shares_embedding, x);
    if (dt_rank(x) == DT_MAX_RANK) x = dt_flatten(x);
    if (s) return dt_embedding(x, TOKENS, last_dim(s), .share = s);
    int features = within(&b->d, 1, 6);
    return dt_embedding(x, TOKENS, features, .frozen = chance(&b->d, 12));
}
static dt_tensor *grow_input(builder *b, dt_tensor *x) {
    static const char *name[] = { "tail", "meta", "zeta" };
    static const dt_type type[] = { DT_FLOAT32, DT_INT32, DT_UINT8, DT_TYPE_DEFAULT };
    dt_input_options o = DT_DEFAULTS;
    if (b->n_inputs == COUNT(name)) return NULL;
    o.x = x;
    o.name = name[b->n_inputs++];
    o.type = type[below(&b->d, 4)];
    for (int i = 1; i < dt_rank(x); i++) o.shape[i - 1] = dt_dim(x, i);
    return dt_input_opt(o);
}

typedef struct { dt_tensor *(*make)(builder *b, dt_tensor *x); int weight; } growth;
static const growth of_floats[] = {
    { grow_dense, 12 }, { grow_conv, 17 },     { grow_pool, 8 },    { grow_global, 2 }, { grow_flatten, 6 }, { grow_reshape, 10 }, { grow_batchnorm, 9 },
    { grow_layernorm, 8 }, { grow_dropout, 5 }, { grow_relu, 9 },   { grow_leaky, 5 },  { grow_reads_x, 7 }, { grow_reads_y, 7 },  { grow_softmax, 4 },
    { grow_scale, 9 },  { grow_add, 16 },      { grow_mul, 7 },     { grow_concat, 8 }, { grow_slice, 7 },   { grow_pad, 4 },      { grow_custom, 4 },
    { grow_input, 3 },
};
static const growth of_ints[] = { { grow_embedding, 6 }, { grow_flatten, 1 }, { grow_reshape, 2 } };

static dt_tensor *grow(builder *b, const growth *g, int n, dt_tensor *x) {
    int sum = 0, at;
    for (int i = 0; i < n; i++) sum += g[i].weight;
    at = below(&b->d, sum);
    while (at >= g->weight) at -= g++->weight;
    return g->make(b, x);
}

/* y joins the pool; the tensors that it comes from are in use now. */
static void count_uses(builder *b, const dt_tensor *y) {
    for (int k = 0; k < y->n_in; k++) {
        int i = 0;
        while (i < b->n && b->t[i] != y->in[k]) i++;
        if (i < b->n) b->used[i]++;
        else count_uses(b, y->in[k]);
    }
}
static void accept_graph(builder *b, dt_tensor *y) {
    count_uses(b, y);
    for (int i = 0; i < b->n; i++) if (b->t[i] == y) return;
    b->used[b->n] = 0;
    b->t[b->n++] = y;
}

/* Something that was not used: into the result, as [n, units]. */
static dt_tensor *merge(builder *b, dt_tensor *result, dt_tensor *leaf) {
    if (is_int(leaf)) leaf = grow_embedding(b, leaf);
    if (dt_rank(result) > 2) result = dt_flatten(result);
    if (chance(&b->d, 40) && result->size + leaf->size < LIMIT) return dt_concat(result, dt_flatten(leaf), 1);
    return dt_add(result, dt_dense(dt_flatten(leaf), last_dim(result)));
}

static const float class_weights[] = { 0.5f, 2, 1, 1.5f, 0.25f };

static int same_size(const dt_tensor *t, const dt_tensor *x) { return t->size == x->size && !is_int(t) && t != x; }
static void add_loss(builder *b, dt_tensor *t) {
    static const char *name[] = { "mars", "luna", "terra", "venus" };
    static const dt_loss_kind kind[] = { DT_MSE, DT_VALUE, DT_BINARY_CROSS_ENTROPY, DT_CROSS_ENTROPY, DT_MAE, DT_HUBER };
    dt_loss_options o = DT_DEFAULTS;
    if (b->n_losses == COUNT(name)) return;
    o.t = t;
    o.kind = kind[below(&b->d, b->c->smooth ? 4 : 6)];
    if (o.kind == DT_CROSS_ENTROPY && last_dim(t) < 2) o.kind = DT_MSE;
    o.name = name[b->n_losses++];
    o.weight = chance(&b->d, 40) ? 0 : real(&b->d);
    o.reduction = chance(&b->d, 25) ? DT_SUM : DT_MEAN;
    if (o.kind == DT_CROSS_ENTROPY) {
        static const dt_type type[] = { DT_TYPE_DEFAULT, DT_FLOAT32, DT_UINT8, DT_ONE_HOT };
        o.label_type = type[below(&b->d, 4)];
        o.label_smoothing = chance(&b->d, 30) ? 0.2 : 0;
        o.ignore_label = chance(&b->d, 30) ? DT_IGNORE_CLASS_0 : 0;
        o.class_weights = last_dim(t) <= COUNT(class_weights) ? class_weights : NULL;
    } else if (!b->c->smooth && o.kind != DT_VALUE && chance(&b->d, 40)) {
        o.target = find(b, same_size, t);
    }
    dt_loss_opt(o);
}

/* Every leaf ends somewhere: in an output, in a loss, in the result, or in several of them. */
static dt_tensor *finish_net(builder *b) {
    static const char *name[] = { "uno", "due", "tre", "quattro" };
    dt_tensor *result = NULL;
    for (int i = b->n; i-- > 0 && !result;) if (!is_int(b->t[i])) { result = b->t[i]; b->used[i]++; }
    if (!result) result = grow_embedding(b, b->t[0]);
    for (int i = 0; i < b->n; i++) {
        dt_tensor *t = b->t[i];
        int done = b->used[i] > 0, luck = below(&b->d, 100);
        if (is_int(t) || t->op == &dt__input) { if (!done) result = merge(b, result, t); continue; }
        if (luck < (done ? 5 : 30) && b->n_outputs < COUNT(name)) { dt_output(t, name[b->n_outputs++]); done = 1; }
        if (luck % 4 == 0 && (!done || luck < 20)) {
            done |= b->n_losses < 4;
            add_loss(b, t);
            if (luck % 3 == 0) add_loss(b, t);
        }
        if (!done) result = merge(b, result, t);
    }
    if (last_dim(result) < 2) result = dt_dense(result, 3);  /* for cross-entropy */
    if (chance(&b->d, 10)) add_loss(b, result);
    if (chance(&b->d, 10)) result = dt_softmax(result);
    if (chance(&b->d, 10)) result = dt_sigmoid(result);
    return result;
}

static int is_image(const dt_tensor *t, const dt_tensor *x) { (void)x; return dt_rank(t) == 4 && !is_int(t); }

/* What to go on from: mostly the newest, so that there are chains; else any, so that tensors have several users. */
static dt_tensor *next(builder *b) {
    int luck = below(&b->d, 100);
    dt_tensor *image = b->c->seed % 3 == 0 && chance(&b->d, 60) ? find(b, is_image, NULL) : NULL;
    return image ? image : b->t[luck < 45 ? b->n - 1 : luck < 60 ? b->n - 1 - below(&b->d, b->n < 3 ? b->n : 3) : below(&b->d, b->n)];
}

static dt_tensor *net(dt_tensor *x, void *user) {
    builder b = { .c = (const one_case *)user };
    b.d = dice_of(b.c->seed, 1);
    accept_graph(&b, x);
    for (int i = 0; i < 4 * b.c->nodes && b.n < b.c->nodes; i++) {
        x = next(&b);
        dt_tensor *y = is_int(x) ? grow(&b, of_ints, COUNT(of_ints), x) : grow(&b, of_floats, COUNT(of_floats), x);
        if (y && y->size == 0) return y;  /* an error */
        if (y && (y->size <= LIMIT || y->op == &dt__input)) accept_graph(&b, y);
    }
    return finish_net(&b);
}

/* ---- random options ---------------------------------------------------------------------------------------- */

static void random_input(dt_options *o, dice *d) {
    int kind = below(d, 10);
    o->input[0] = within(d, 1, 9);
    if (kind < 7) {  /* an image */
        o->input[0] = within(d, 2, 6);
        o->input[1] = within(d, 2, 6);
        o->input[2] = within(d, 1, 4);
    } else if (kind < 9) {
        o->input[1] = within(d, 1, 8);
    }
    o->input_type = chance(d, 10) ? DT_INT32 : chance(d, 10) ? DT_UINT8 : DT_FLOAT32;
}

static int freezes_nothing(const one_case *c) {  /* which is an error */
    dt_options o = c->o;
    dt_error err = DT_DEFAULTS;
    o.user = (void *)(uintptr_t)c;
    return !dt_model_bytes(&o, &err) && strstr(err.text, ".freeze") != NULL;
}

static one_case random_case(uint64_t seed, int smooth) {
    static const char *freeze[] = { "*.bias", "dense_*", "*_1.weight", "conv2d_?.weight,*norm*", "*" };
    static const dt_loss_kind loss[] = { DT_NO_LOSS, DT_MSE, DT_VALUE, DT_BINARY_CROSS_ENTROPY, DT_CROSS_ENTROPY, DT_CROSS_ENTROPY, DT_MAE, DT_HUBER };
    one_case c = { seed, smooth, 0, DT_DEFAULTS };
    dice d = dice_of(seed, 2);
    c.nodes = within(&d, 3, 25);
    c.o.net = net;
    random_input(&c.o, &d);
    c.o.loss = loss[below(&d, smooth ? 6 : 8)];
    c.o.reduction = chance(&d, 15) ? DT_SUM : DT_MEAN;
    c.o.input_gradient = chance(&d, 50);
    c.o.optimizer = (dt_optimizer)below(&d, 6);
    c.o.learning_rate = 0.003;
    c.o.freeze = chance(&d, 20) ? freeze[below(&d, chance(&d, 20) ? 5 : 4)] : NULL;
    c.o.batch = within(&d, 1, 8);
    c.o.accumulate = chance(&d, 30) ? within(&d, 1, c.o.batch < 3 ? c.o.batch : 3) : 0;
    c.o.replicas = chance(&d, 60) ? 1 : within(&d, 2, 3);
    c.o.strategy = c.o.replicas > 1 && chance(&d, 30) ? DT_CENTRAL : DT_STRATEGY_DEFAULT;
    c.o.seed = seed;
    c.o.clip_norm = chance(&d, 20) ? 0.5 : 0;
    if (c.o.freeze && freezes_nothing(&c)) c.o.freeze = NULL;
    return c;
}

/* ---- a model whose plan is taken apart, and one whose plan is watched --------------------------------------- */

typedef struct { dt__op op; const dt__op *original; } wrapped_op;

typedef struct {
    dt_model *m;
    wrapped_op *op;          /* watched: one per node */
    dt__buffer *buffer;      /* apart */
    ptrdiff_t *floats;       /* apart: what each of them may hold, to the float */
    float *block[3];
    void *memory;
} subject;

static unsigned char rubbish = 0xff;  /* 0xff: NaN, and a token that is none; else large numbers */
static void spoil(float *p, ptrdiff_t n) { memset(p, rubbish, (size_t)n * sizeof *p); }

/* Rubbish into all of r's block that no buffer claims at this time. */
static void spoil_dead(const dt__replica *r, int time) {
    const dt__graph *g = r->graph;
    unsigned char live[MOST_UNITS];
    ptrdiff_t units = g->block_floats / UNIT, i;
    memset(live, 0, (size_t)units);
    for (i = 0; i < g->n_buffers; i++) {
        const dt__buffer *b = &g->buffer[i];
        if (b->birth <= time && time <= b->death) memset(live + b->offset / UNIT, 1, (size_t)(b->floats / UNIT));
    }
    for (i = 0; i < units; i++) if (!live[i]) spoil(r->block + i * UNIT, UNIT);
}

static const dt__op *original(const dt_tensor *t) { return ((const wrapped_op *)(const void *)t->op)->original; }
static void watched_forward(dt__replica *r, dt_tensor *t) {
    spoil_dead(r, 1 + 2 * t->number);
    original(t)->forward(r, t);
}
static void watched_forward_after(dt__replica *r, dt_tensor *t) {
    spoil_dead(r, 2 + 2 * t->number);
    original(t)->forward_after(r, t);
}
static void watched_backward(dt__replica *r, dt_tensor *t) {
    spoil_dead(r, 4 * r->graph->n - 1 - 2 * t->number);
    original(t)->backward(r, t);
}
static void watched_backward_after(dt__replica *r, dt_tensor *t) {
    spoil_dead(r, 4 * r->graph->n - 2 * t->number);
    original(t)->backward_after(r, t);
}

static void watch(subject *s) {
    dt__graph *g = &s->m->graph;
    s->op = (wrapped_op *)calloc((size_t)g->n, sizeof *s->op);
    if (g->block_floats > (ptrdiff_t)MOST_UNITS * UNIT) { CHECK_MSG(0, "a block of %ld floats", (long)g->block_floats); return; }
    for (int i = 0; i < g->n; i++) {
        dt_tensor *t = g->node[i];
        wrapped_op *w = &s->op[i];
        w->op = *t->op;
        w->original = t->op;
        if (w->op.forward) w->op.forward = watched_forward;
        if (w->op.forward_after) w->op.forward_after = watched_forward_after;
        if (w->op.backward) w->op.backward = watched_backward;
        if (w->op.backward_after) w->op.backward_after = watched_backward_after;
        t->op = &w->op;
    }
}

static void copy_view(dt__replica *r, dt_tensor *t) {
    memcpy(dt__value(r, t), dt__value(r, t->in[0]), (size_t)(r->rows * t->size) * sizeof(float));
}
static const dt__op copying_view = { "view", 0, NULL, copy_view, NULL, dt__view_backward, NULL, NULL, NULL };

static int own_place(subject *s, int *n, ptrdiff_t *at, ptrdiff_t floats) {
    s->buffer[*n].offset = *at;
    s->buffer[*n].floats = s->floats[*n] = floats;
    *at += dt__ceil(floats + GUARD, UNIT);
    return (*n)++;
}

static void apart(subject *s) {
    dt__graph *g = &s->m->graph;
    ptrdiff_t at = GUARD, slack = GUARD;
    int n = 0;
    s->buffer = (dt__buffer *)calloc((size_t)g->n * 5, sizeof *s->buffer);
    s->floats = (ptrdiff_t *)calloc((size_t)g->n * 5, sizeof *s->floats);
    for (int i = 0; i < g->n; i++) {
        dt_tensor *t = g->node[i];
        slack = larger(slack, t->slack);
        if (t->saved >= 0) t->saved = own_place(s, &n, &at, t->saved_fixed + t->saved_row * g->rows);
        for (int k = 0; k < 2; k++) if (t->scratch[k] >= 0) t->scratch[k] = own_place(s, &n, &at, g->buffer[t->scratch[k]].floats);
        if (t->value >= 0) t->value = own_place(s, &n, &at, t->size * g->rows);
        if (t->gradient >= 0) t->gradient = own_place(s, &n, &at, t->size * g->rows);
        t->relu = t->fused = 0;
        if (t->op->flags & DT__VIEW) t->op = &copying_view;
    }
    g->buffer = s->buffer;
    g->n_buffers = n;
    g->block_floats = at + slack;
    for (int i = 0; i < s->m->n_replicas; i++) {
        s->block[i] = (float *)malloc((size_t)g->block_floats * sizeof(float) + 64);
        s->m->replica[i].block = s->block[i] + (64 - (uintptr_t)s->block[i] % 64) % 64 / sizeof(float);
    }
}

/* What lies between the places is as spoil left it. */
static int guards_hold(const subject *s) {
    const dt__graph *g = &s->m->graph;
    for (int k = 0; k < s->m->n_replicas; k++)
        for (int i = 0; i < g->n_buffers; i++) {
            ptrdiff_t end = i + 1 < g->n_buffers ? g->buffer[i + 1].offset : g->block_floats;
            const unsigned char *p = (const unsigned char *)(s->m->replica[k].block + g->buffer[i].offset + s->floats[i]);
            const unsigned char *limit = (const unsigned char *)(s->m->replica[k].block + end);
            for (; p < limit; p++) if (*p != rubbish) return 0;
        }
    return 1;
}

static subject subject_of(const one_case *c, dt_options o, int planned, dt_error *err) {
    subject s = { NULL, NULL, NULL, NULL, { NULL }, NULL };
    o.user = (void *)(uintptr_t)c;
    if (planned && c->seed % 3 == 0) {  /* in exactly the bytes it asks for, so that the address sanitizer sees an overrun */
        o.memory_size = dt_model_bytes(&o, err);
        o.memory = s.memory = malloc(o.memory_size + 1);
    }
    s.m = dt_model_create(&o, err);
    if (s.m && planned) watch(&s);
    else if (s.m) apart(&s);
    return s;
}
static void subject_free(subject *s) {
    dt_model_free(s->m);
    for (int i = 0; i < 3; i++) free(s->block[i]);
    free(s->memory);
    free(s->op);
    free(s->buffer);
    free(s->floats);
}

/* ---- data ----------------------------------------------------------------------------------------------------- */

typedef struct {
    void *x[DT_MAX_INPUTS], *y[DT_MAX_INPUTS];
    size_t x_bytes[DT_MAX_INPUTS], y_bytes[DT_MAX_INPUTS];  /* of one sample */
    int n_x, n_y;
    float weight[MOST];
} feed;

static void put_value(void *to, ptrdiff_t i, dt_type type, int whole, double v) {
    if (type == DT_INT32) ((int32_t *)to)[i] = whole;
    else if (type == DT_UINT8) ((unsigned char *)to)[i] = (unsigned char)whole;
    else ((float *)to)[i] = (float)v;
}
static void *random_labels(const dt_tensor *loss, dice *d, size_t *bytes) {
    const dt_loss_options *o = (const dt_loss_options *)loss->options;
    const int classes = last_dim(loss->in[0]), cross = o->kind == DT_CROSS_ENTROPY;
    void *y = calloc((size_t)(loss->size * MOST) + 1, 4);
    *bytes = (size_t)loss->size * dt__type_size(o->label_type);
    for (ptrdiff_t i = 0; i < loss->size * MOST; i++) {
        int label = below(d, classes);
        put_value(y, i, o->label_type, label, loss->type == DT_INT32 ? (double)label : cross ? 1.0 / classes : 0.5 * (real(d) + 1));
    }
    return y;
}
static feed random_feed(const dt__graph *g, dice *d) {
    feed f;
    memset(&f, 0, sizeof f);
    for (f.n_x = 0; f.n_x < g->n_inputs; f.n_x++) {
        const dt_tensor *t = g->input[f.n_x];
        dt_type type = ((const dt_input_options *)t->options)->type;
        f.x_bytes[f.n_x] = (size_t)t->size * dt__type_size(type ? type : DT_FLOAT32);
        f.x[f.n_x] = calloc((size_t)(t->size * MOST), 4);
        for (ptrdiff_t i = 0; i < t->size * MOST; i++) {
            int whole = below(d, type == DT_UINT8 ? 256 : TOKENS);
            put_value(f.x[f.n_x], i, type, whole, real(d));
        }
    }
    for (int i = 0; i < g->n_losses; i++) if (g->loss[i]->label >= 0) f.y[f.n_y] = random_labels(g->loss[i], d, &f.y_bytes[f.n_y]), f.n_y++;
    for (int i = 0; i < MOST; i++) f.weight[i] = chance(d, 10) ? 0 : (float)(1 + 0.9 * real(d));
    return f;
}
static void feed_free(feed *f) { for (int i = 0; i < DT_MAX_INPUTS; i++) { free(f->x[i]); free(f->y[i]); } }

static dt_batch batch_of(const feed *f, int from, int n, int labelled, int weighted) {
    dt_batch b = DT_DEFAULTS;
    for (int i = 0; i < f->n_x; i++) b.x[i] = (const char *)f->x[i] + (size_t)from * f->x_bytes[i];
    for (int i = 0; i < f->n_y && labelled; i++) b.y[i] = (const char *)f->y[i] + (size_t)from * f->y_bytes[i];
    b.weight = weighted ? f->weight + from : NULL;
    b.n = n;
    return b;
}

/* ---- one run: the same calls to both models ------------------------------------------------------------------------ */

typedef struct {
    const one_case *c;
    subject s[2];            /* planned, apart */
    feed f;
    dice d;
    const char *call;        /* the running one, for messages */
    int over;                /* values have grown beyond all bounds, or something was wrong */
} run;

static long n_graphs, n_nodes, n_calls, n_exploded, n_slopes, n_in_place, n_aliases, n_fused, n_local, n_strips;

static int wrong(run *u, const char *what) {
    if (!u->over) CHECK_MSG(0, "CASE=%lu, smooth %d, %s: %s", (unsigned long)u->c->seed, u->c->smooth, u->call, what);
    u->over = 1;
    return 1;
}
static int agree(run *u, const char *what, const float *a, const float *b, ptrdiff_t n) {
    char text[160];
    for (ptrdiff_t i = 0; i < n; i++) {
        if (a[i] == b[i]) continue;
        if (!isfinite(a[i]) && !isfinite(b[i]) && rubbish != 0xff) { u->over = 1; n_exploded++; return 0; }  /* overflow; few do */
        snprintf(text, sizeof text, "%s: value %d of %d is %.9g, apart %.9g", what, (int)i, (int)n, (double)a[i], (double)b[i]);
        wrong(u, text);
        return 0;
    }
    return 1;
}
static int codes_agree(run *u, int a, int b, dt_error *err) {
    if (a != b) wrong(u, err[0].code ? err[0].text : err[1].code ? err[1].text : "other codes");
    return a == b && !a;
}

/* Rubbish wherever no later call may look: all blocks, and gradients that count as empty. */
static void spoil_all(run *u, const char *call) {
    u->call = call;
    n_calls++;
    for (int k = 0; k < 2; k++) {
        const dt_model *m = u->s[k].m;
        for (int i = 0; i < m->n_replicas; i++) {
            spoil(m->replica[i].block, m->graph.block_floats);
            if (m->state == DT__EMPTY || (i && m->state == DT__REDUCED)) spoil(m->replica[i].gradients, m->graph.n_trainable);
        }
    }
}
static void spoil_dead_all(run *u, int time) {
    for (int i = 0; i < u->s[0].m->n_replicas; i++) spoil_dead(&u->s[0].m->replica[i], time);
}

static void outputs_agree(run *u, int n) {
    const dt__graph *g = &u->s[0].m->graph;
    for (const dt__named *o = g->outputs;; o = o->next) {
        const dt_tensor *t = o ? o->t : g->output;
        float *y[2];
        dt_error err[2] = { DT_DEFAULTS, DT_DEFAULTS };
        int code[2];
        for (int k = 0; k < 2; k++) {
            y[k] = (float *)calloc((size_t)(t->size * n), sizeof(float));
            code[k] = dt_output_read(u->s[k].m, o ? o->name : NULL, y[k], &err[k]);
        }
        if (codes_agree(u, code[0], code[1], err)) agree(u, o ? o->name : "net's output", y[0], y[1], t->size * n);
        else wrong(u, "an output cannot be read");
        free(y[0]);
        free(y[1]);
        if (!o) return;
    }
}

static void input_gradients_agree(run *u, int n) {
    const dt_tensor *t = u->s[0].m->graph.input[0];
    float *d[2];
    dt_error err[2] = { DT_DEFAULTS, DT_DEFAULTS };
    int code[2];
    for (int k = 0; k < 2; k++) {
        d[k] = (float *)calloc((size_t)(t->size * n), sizeof(float));
        code[k] = dt_input_gradient_read(u->s[k].m, d[k], &err[k]);
    }
    if (is_int(t)) { if (!code[0] || !code[1]) wrong(u, "tokens have a gradient"); }
    else if (codes_agree(u, code[0], code[1], err)) agree(u, "the input's gradient", d[0], d[1], t->size * n);
    free(d[0]);
    free(d[1]);
}

static void gradients_agree(run *u) {
    size_t n[2];
    float *g[2];
    for (int k = 0; k < 2; k++) {
        if (dt_reduce(u->s[k].m, NULL)) wrong(u, "dt_reduce");
        g[k] = dt_gradients(u->s[k].m, &n[k]);
    }
    if (!g[0] || !g[1] || n[0] != n[1]) wrong(u, "dt_gradients");
    else agree(u, "gradients", g[0], g[1], (ptrdiff_t)n[0]);
}

static void parameters_agree(run *u) {
    const dt_model *a = u->s[0].m, *b = u->s[1].m;
    for (int i = 0; i < a->n_replicas; i++) agree(u, "parameters", a->replica[i].variables, b->replica[i].variables, a->graph.n_floats);
}

static dt_batch random_batch(run *u, int n, int labelled) {
    int from = below(&u->d, MOST - n + 1);
    return batch_of(&u->f, from, n, labelled, chance(&u->d, 30));
}

static int forward_both(run *u, int n, int labelled) {
    dt_batch b = random_batch(u, n, labelled);
    dt_error err[2] = { DT_DEFAULTS, DT_DEFAULTS };
    float loss[2];
    for (int k = 0; k < 2; k++) loss[k] = dt_forward(u->s[k].m, &b, &err[k]);
    if (!codes_agree(u, err[0].code, err[1].code, err)) { wrong(u, err[0].text); return 0; }
    if (agree(u, "loss", &loss[0], &loss[1], 1)) outputs_agree(u, n);
    return !u->over;
}

static void values_stay(run *u, const float *before) {
    const dt_model *m = u->s[1].m;
    for (int i = 0; i < m->graph.n; i++) {
        const dt_tensor *t = m->graph.node[i];
        ptrdiff_t at = t->value < 0 ? 0 : m->graph.buffer[t->value].offset;
        if (t->value >= 0 && memcmp(before + at, m->replica[0].block + at, (size_t)(t->size * m->replica[0].rows) * sizeof(float)))
            wrong(u, "backward has changed a value");
    }
}

static int backward_both(run *u, int n, const float *seed) {
    dt_error err[2] = { DT_DEFAULTS, DT_DEFAULTS };
    const dt_model *m = u->s[1].m;
    float *before = (float *)malloc((size_t)m->graph.block_floats * sizeof(float));
    int code[2];
    memcpy(before, m->replica[0].block, (size_t)m->graph.block_floats * sizeof(float));
    for (int k = 0; k < 2; k++) code[k] = seed ? dt_backward_from(u->s[k].m, seed, &err[k]) : dt_backward(u->s[k].m, &err[k]);
    if (codes_agree(u, code[0], code[1], err)) {
        values_stay(u, before);
        spoil_dead_all(u, 4 * m->graph.n + 1);
        outputs_agree(u, n);
        if (u->c->o.input_gradient) input_gradients_agree(u, n);
    }
    free(before);
    return !u->over && !code[0];
}

static int can_backward(const run *u) { return u->s[0].m->graph.n_losses > 0; }

/* ---- the calls --------------------------------------------------------------------------------------------------------- */

static int random_n(run *u) {  /* what one dt_forward takes, full more often than not */
    int most = u->s[0].m->batch / u->s[0].m->parts;
    return chance(&u->d, 50) ? most : within(&u->d, 1, most);
}

static void after_backward(run *u) {
    int then = below(&u->d, 4);
    if (then == 0) return;  /* the next backward adds */
    gradients_agree(u);
    for (int k = 0; k < 2 && then > 1; k++) if (then == 2 ? dt_clear(u->s[k].m, NULL) : dt_update(u->s[k].m, NULL)) u->over = 1;
}

static void call_step(run *u) {
    int n = chance(&u->d, 50) ? u->s[0].m->batch : within(&u->d, 1, u->s[0].m->batch);
    dt_batch b = random_batch(u, n, 1);
    dt_error err[2] = { DT_DEFAULTS, DT_DEFAULTS };
    float loss[2];
    if (!can_backward(u)) return;
    spoil_all(u, "dt_step");
    for (int k = 0; k < 2; k++) loss[k] = dt_step_batch(u->s[k].m, &b, &err[k]);
    if (err[0].code == DT_ERR_NUMERIC && err[1].code == DT_ERR_NUMERIC) { u->over = 1; n_exploded++; return; }
    if (codes_agree(u, err[0].code, err[1].code, err)) agree(u, "loss", &loss[0], &loss[1], 1);
    else wrong(u, err[0].text);
}

static void call_forward(run *u) {
    int n = random_n(u);
    spoil_all(u, "dt_forward");
    forward_both(u, n, chance(&u->d, 50));
}

static void call_backward(run *u) {
    int n = random_n(u);
    spoil_all(u, "dt_backward");
    if (!forward_both(u, n, 1)) return;
    if (chance(&u->d, 20)) { spoil_all(u, "dt_backward of a second dt_forward"); n = random_n(u); if (!forward_both(u, n, 1)) return; }
    if (can_backward(u) ? backward_both(u, n, NULL) : 0) after_backward(u);
}

static void call_backward_from(run *u) {
    int n = random_n(u);
    const dt_tensor *t = u->s[0].m->graph.output;
    spoil_all(u, "dt_backward_from");
    if (!forward_both(u, n, chance(&u->d, 50))) return;
    float *seed = (float *)malloc((size_t)(t->size * n) * sizeof(float));
    for (ptrdiff_t i = 0; i < t->size * n; i++) seed[i] = (float)real(&u->d);
    if (t->back) { if (backward_both(u, n, seed)) after_backward(u); }
    else if (dt_backward_from(u->s[0].m, seed, NULL) != DT_ERR_STATE) wrong(u, "no gradient flows from the output, and no error");
    free(seed);
}

/* Buffers are used up, or were never filled for it: backward must say so. */
static void backward_refused(run *u) {
    for (int k = 0; k < 2; k++) {
        dt_error err = DT_DEFAULTS;
        if (dt_backward(u->s[k].m, &err) != DT_ERR_STATE) wrong(u, "dt_backward without a dt_forward of its own is not refused");
    }
}

static void call_predict(run *u) {
    int n = within(&u->d, 1, MOST);
    const dt_tensor *t = u->s[0].m->graph.output;
    dt_error err[2] = { DT_DEFAULTS, DT_DEFAULTS };
    float *y[2];
    int code[2];
    if (u->f.n_x > 1) return;
    spoil_all(u, "dt_predict");
    for (int k = 0; k < 2; k++) {
        y[k] = (float *)calloc((size_t)(t->size * n), sizeof(float));
        code[k] = dt_predict(u->s[k].m, u->f.x[0], n, y[k], &err[k]);
    }
    if (codes_agree(u, code[0], code[1], err)) agree(u, "prediction", y[0], y[1], t->size * n);
    else wrong(u, err[0].text);
    free(y[0]);
    free(y[1]);
    if (u->s[0].m->graph.training) backward_refused(u);
}

static dt_type type_or(dt_type type) { return type ? type : DT_FLOAT32; }
static dt_source source_of(const run *u) {
    const dt__graph *g = &u->s[0].m->graph;
    dt_type y_type = DT_FLOAT32;
    for (int i = 0; i < g->n_losses; i++) if (g->loss[i]->label == 0) y_type = ((const dt_loss_options *)g->loss[i]->options)->label_type;
    return dt_arrays(u->f.x[0], type_or(u->c->o.input_type), u->f.n_y ? u->f.y[0] : NULL, y_type, MOST);
}

static void call_evaluate(run *u) {
    dt_error err[2] = { DT_DEFAULTS, DT_DEFAULTS };
    dt_metrics metrics[2] = { DT_DEFAULTS, DT_DEFAULTS };
    dt_source source = source_of(u);
    const dt_tensor *loss = u->s[0].m->graph.n_losses ? u->s[0].m->graph.loss[0] : NULL;
    int code[2], classes = loss && loss->type == DT_INT32 && loss->label == 0 && loss->in[0] == u->s[0].m->graph.output ? last_dim(loss->in[0]) : 0;
    if (u->f.n_x > 1 || u->f.n_y > 1 || !can_backward(u)) return;
    spoil_all(u, "dt_evaluate");
    for (int k = 0; k < 2; k++) {
        metrics[k].confusion = classes ? (long *)calloc((size_t)(classes * classes), sizeof(long)) : NULL;
        code[k] = dt_evaluate(u->s[k].m, &source, &metrics[k], &err[k]);
    }
    float loss_of[2] = { (float)metrics[0].loss, (float)metrics[1].loss };
    if (codes_agree(u, code[0], code[1], err)) agree(u, "loss", &loss_of[0], &loss_of[1], 1);
    else wrong(u, err[0].text);
    if (metrics[0].n != metrics[1].n) wrong(u, "labels are counted differently");
    if (classes && memcmp(metrics[0].confusion, metrics[1].confusion, (size_t)(classes * classes) * sizeof(long))) wrong(u, "another confusion");
    for (int k = 0; k < 2; k++) free(metrics[k].confusion);
    if (u->s[0].m->graph.training) backward_refused(u);
}

static void (*const call[])(run *u) = { call_step, call_step, call_forward, call_backward, call_backward, call_backward, call_backward_from, call_predict, call_evaluate };

/* ---- showing a graph ------------------------------------------------------------------------------------------------------ */

static void show(const dt_model *m) {
    const dt__graph *g = &m->graph;
    dt__shape_text text;
    printf("  batch %d, %d parts, %d replicas, input gradient %d\n", m->batch, m->parts, m->n_replicas, m->o.input_gradient);
    for (int i = 0; i < g->n; i++) {
        const dt_tensor *t = g->node[i];
        printf("  %3d %-16s %-14s", i, t->name, t->op->flags & DT__LOSS ? "" : dt__shape_of(t, &text));
        for (int k = 0; k < t->n_in; k++) printf(" %d", t->in[k]->number);
        if (t->op->flags & DT__LOSS) {
            const dt_loss_options *o = (const dt_loss_options *)t->options;
            printf(" kind %d weight %g reduction %d ignore %d label type %d", (int)o->kind, o->weight, (int)o->reduction, o->ignore_label, (int)o->label_type);
        }
        printf("  value %d gradient %d saved %d scratch %d %d%s%s\n", t->value, t->gradient, t->saved, t->scratch[0], t->scratch[1], t->back ? " back" : "", t->is_output ? " output" : "");
    }
    for (int i = 0; i < g->n_buffers; i++)
        printf("  buffer %d: %d at %d, %d .. %d\n", i, (int)g->buffer[i].floats, (int)g->buffer[i].offset, g->buffer[i].birth, g->buffer[i].death);
}

/* Both models of a case; 0 if there are none. */
static int run_open(run *u, const one_case *c, dt_options o) {
    dt_error err = DT_DEFAULTS;
    memset(u, 0, sizeof *u);
    u->c = c;
    u->call = "dt_model_create";
    u->d = dice_of(c->seed, 3);
    rubbish = c->seed % 4 ? 0xff : 0x4b;
    for (int k = 0; k < 2; k++) u->s[k] = subject_of(c, o, k == 0, &err);
    if (!u->s[0].m || !u->s[1].m) { wrong(u, err.text); return 0; }
    if (getenv("CASE")) show(u->s[0].m);
    u->f = random_feed(&u->s[0].m->graph, &u->d);
    spoil_all(u, "the first call");
    n_graphs++;
    n_nodes += u->s[0].m->graph.n;
    return 1;
}
static void run_close(run *u) {
    for (int k = 0; k < 2; k++) subject_free(&u->s[k]);
    feed_free(&u->f);
}

static void for_each_seed(int standard, int smooth, void (*check)(const one_case *c)) {
    const char *seeds = getenv("SEEDS"), *only = getenv("CASE");
    long first = only ? atol(only) : 1, last = only ? first : seeds ? atol(seeds) : standard;
    for (long seed = first; seed <= last && check_failed < 20; seed++) {
        one_case c = random_case((uint64_t)seed, smooth);
        check(&c);
    }
}

/* ---- 1: training, call by call ---------------------------------------------------------------------------------------------- */

static void run_calls(run *u, int n) {
    for (int i = 0; i < n && !u->over; i++) {
        call[below(&u->d, COUNT(call))](u);
        if (u->over) break;
        parameters_agree(u);
        if (!guards_hold(&u->s[1])) wrong(u, "something was written beyond its place");
    }
}

static const dt__op *const every_op[] = {
    &dt__dense, &dt__conv2d, &dt__maxpool2d, &dt__avgpool2d, &dt__global_avgpool, &dt__flatten, &dt__reshape, &dt__batchnorm, &dt__layernorm,
    &dt__dropout, &dt__relu, &dt__leaky_relu, &dt__gelu, &dt__gelu_tanh, &dt__silu, &dt__tanh, &dt__sigmoid, &dt__softmax, &dt__scale, &dt__add,
    &dt__sub, &dt__mul, &dt__concat, &dt__slice, &dt__pad, &dt__embedding, &dt__custom, &dt__loss,
};
static long n_of_op[COUNT(every_op)];

/* How much of what is to be tested the graphs have. g is watched. */
static void count_tricks(const dt__graph *g) {
    for (int i = 0; i < g->n; i++) {
        const dt_tensor *t = g->node[i];
        for (int k = 0; k < COUNT(every_op); k++) n_of_op[k] += t->back && original(t) == every_op[k];
        n_in_place += t->n_in && t->value >= 0 && t->value == t->in[0]->value && !(t->op->flags & DT__VIEW);
        n_aliases += t->n_in && t->gradient >= 0 && t->gradient == t->in[0]->gradient;
        n_fused += t->fused;
    }
    for (int i = 0; i < g->n_buffers; i++) n_local += g->buffer[i].local;
    for (int i = 0; i < g->n_segments; i++) n_strips += g->segment[i].strip < g->rows;
}

static void check_training(const one_case *c) {
    run u;
    if (run_open(&u, c, c->o)) {
        count_tricks(&u.s[0].m->graph);
        run_calls(&u, 7);
    }
    run_close(&u);
}
static void test_training(void) {
    for_each_seed(300, 0, check_training);
    if (getenv("CASE") || check_failed) return;
    CHECK_MSG(100 * n_exploded <= n_graphs, "%ld of %ld graphs overflow", n_exploded, n_graphs);
    CHECK_MSG(n_in_place > 100 && n_aliases > 500, "only %ld in place, %ld gradients on another's", n_in_place, n_aliases);
    CHECK_MSG(n_fused > 10 && n_local > 500 && n_strips > 500, "only %ld fused, %ld buffers of a strip, %ld segments in strips", n_fused, n_local, n_strips);
    for (int k = 0; k < COUNT(every_op); k++) CHECK_MSG(n_of_op[k] > 0, "no graph has dt_%s", every_op[k]->name);
}

/* ---- 2: models for inference: against themselves taken apart, and against the training model ---------------------------------- */

static void copy_parameters(dt_model *from, dt_model *to) {
    dt_parameter p;
    for (int i = 0; dt_parameter_at(from, i, &p, NULL) == 0; i++) {
        float *w = (float *)malloc(p.size * sizeof(float));
        CHECK(dt_parameter_read(from, p.name, w, p.size, NULL) == 0 && dt_parameter_write(to, p.name, w, p.size, NULL) == 0);
        free(w);
    }
}

static void predictions_agree(run *u, run *trained) {
    const dt_tensor *t = u->s[0].m->graph.output;
    float *y[2];
    if (u->f.n_x > 1) return;
    spoil_all(u, "dt_predict of the inference model and of the training model");
    spoil_all(trained, u->call);
    for (int k = 0; k < 2; k++) {
        y[k] = (float *)calloc((size_t)(t->size * MOST), sizeof(float));
        if (dt_predict(k ? trained->s[0].m : u->s[0].m, u->f.x[0], MOST, y[k], NULL)) wrong(u, "dt_predict");
    }
    agree(u, "prediction", y[0], y[1], t->size * MOST);
    free(y[0]);
    free(y[1]);
}

static void check_inference(const one_case *c) {
    run u, trained;
    dt_options o = c->o;
    o.inference = 1;
    if (c->seed % 2) o.loss = DT_NO_LOSS;
    if (run_open(&trained, c, c->o)) {
        call_step(&trained);  /* the statistics leave 0 and 1 */
        if (run_open(&u, c, o)) {
            for (int k = 0; k < 2; k++) copy_parameters(trained.s[0].m, u.s[k].m);
            for (int i = 0; i < 3 && !u.over; i++) call_forward(&u);
            if (!u.over) call_predict(&u);
            if (!u.over) call_evaluate(&u);
            if (!u.over) predictions_agree(&u, &trained);
            if (!guards_hold(&u.s[1])) wrong(&u, "something was written beyond its place");
        }
        run_close(&u);
    }
    run_close(&trained);
}
static void test_inference(void) { for_each_seed(120, 0, check_inference); }

/* ---- 3: slopes: the gradients against differences of the loss ------------------------------------------------------------------- */

static double divisor(const dt_model *m) {
    double totals[DT__TOTALS] = {0};
    dt__totals_add(totals, m->replica[0].gradients + m->graph.totals);
    return dt__totals_divisor(&m->graph, totals);
}

/* The sum of a loss's terms without their signs; a value's terms may cancel out. */
static double loss_size(const dt_model *m, const dt_tensor *t, const double *totals) {
    const dt_loss_options *o = (const dt_loss_options *)t->options;
    double w = dt__loss_means(&m->graph, t->loss_number) ? totals[2 * t->loss_number + 1] : 1, sum = fabs(totals[2 * t->loss_number]);
    if (!(w > 0)) return 0;
    for (int i = 0; i < m->n_replicas && o->kind == DT_VALUE; i++) {
        const float *v = dt__value(&m->replica[i], t->in[0]);
        for (ptrdiff_t k = 0; k < t->in[0]->size * m->replica[i].rows; k++) sum += fabs((double)v[k]);
    }
    return fabs(o->weight) * sum / w;
}

/* The loss, and how much of it may be rounding. */
static double loss_now(dt_model *m, const dt_batch *b, double *noise) {
    double totals[DT__TOTALS] = {0}, sum = 0;
    dt_forward(m, b, NULL);
    for (int i = 0; i < m->n_replicas; i++) dt__totals_add(totals, m->replica[i].chunk_totals);
    for (int i = 0; i < m->graph.n_losses; i++) sum += loss_size(m, m->graph.loss[i], totals);
    *noise = 5e-6 * (sum + 1e-3);
    return dt__totals_loss(&m->graph, totals);
}

/* x += step * direction, where x is a variable of all replicas, or the input */
typedef struct { dt_model *m; const dt__var *v; float *x; double *direction, *kept; ptrdiff_t n; } line;
static void move(const line *l, double step) {
    for (ptrdiff_t i = 0; i < l->n; i++) l->x[i] = (float)(l->kept[i] + step * l->direction[i]);
    if (l->v) dt__spread_var(l->m, l->v);
}

static double length_of(const float *v, ptrdiff_t n) {
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

/* Along the gradient's own direction and a bit beside it. gradient: of the mean loss. */
static int slope_agrees(const line *l, const float *gradient, double scale, double all, const dt_batch *b, dice *d, double *best) {
    double norm = 1e-12, rest = 1e-12, expected = 0, noise = 0, size = 0;
    for (ptrdiff_t i = 0; i < l->n; i++) {
        l->kept[i] = (double)l->x[i];
        l->direction[i] = real(d);
        norm += (double)gradient[i] * (double)gradient[i];
        rest += l->direction[i] * l->direction[i];
        size += l->kept[i] * l->kept[i];
    }
    for (ptrdiff_t i = 0; i < l->n; i++) {
        l->direction[i] = (double)gradient[i] / sqrt(norm) + 0.5 * l->direction[i] / sqrt(rest);
        expected += l->direction[i] * (double)gradient[i] * scale;
    }
    /* small steps are for norms of what is nearly constant: a thousand times as steep as anything else */
    for (double step = 0.1 * (sqrt(size) + 0.1); step > 2e-4 || (step > 1e-8 && noise < 0.1 * fabs(expected) * step); step /= 2.5) {
        move(l, step);
        double up = loss_now(l->m, b, &noise);
        move(l, -step);
        double slope = (up - loss_now(l->m, b, &noise)) / (2 * step);
        move(l, 0);
        *best = slope;
        if (fabs(slope - expected) <= 0.03 * fabs(expected) + 0.01 * all + noise / step) return 1;
    }
    return 0;
}

static void check_line(run *u, line *l, const float *gradient, double scale, double all, const dt_batch *b, const char *name) {
    char text[160];
    double slope = 0;
    l->m = u->s[1].m;
    l->kept = (double *)malloc((size_t)l->n * sizeof(double));
    l->direction = (double *)malloc((size_t)l->n * sizeof(double));
    n_slopes++;
    if (!slope_agrees(l, gradient, scale, all, b, &u->d, &slope)) {
        double along = 0;
        for (ptrdiff_t i = 0; i < l->n; i++) along += l->direction[i] * (double)gradient[i] * scale;
        snprintf(text, sizeof text, "along %s the loss rises by %g, its gradient says %g", name, slope, along);
        wrong(u, text);
    }
    free(l->kept);
    free(l->direction);
}

static void check_slopes(const one_case *c) {
    run u;
    if (run_open(&u, c, c->o) && can_backward(&u)) {
        dt_model *m = u.s[1].m;
        dt_batch b = batch_of(&u.f, 0, m->batch / m->parts, 1, c->seed % 2 != 0);
        const dt_tensor *x = m->graph.input[0];
        float *dx = (float *)malloc((size_t)(x->size * b.n) * sizeof(float));
        u.call = "slopes";
        if (isfinite(dt_forward(m, &b, NULL)) && !dt_backward(m, NULL)) {
            int with_x = c->o.input_gradient && type_or(c->o.input_type) == DT_FLOAT32 && !dt_input_gradient_read(m, dx, NULL);
            dt_reduce(m, NULL);
            double scale = divisor(m) > 0 ? 1 / divisor(m) : 0;
            float *gradient = (float *)malloc((size_t)(m->graph.n_trainable + 1) * sizeof(float));
            memcpy(gradient, dt_gradients(m, NULL), (size_t)m->graph.n_trainable * sizeof(float));
            double all = length_of(gradient, m->graph.n_trainable) * scale;
            for (int i = 0; i < m->graph.n_variables && !u.over; i++) {
                const dt__var *v = m->graph.variable[i];
                line l = { m, v, m->replica[0].variables + v->offset, NULL, NULL, v->size };
                if (!v->frozen && !v->statistic) check_line(&u, &l, gradient + v->offset, scale, all, &b, v->name);
            }
            line l = { m, NULL, (float *)u.f.x[0], NULL, NULL, x->size * b.n };
            if (with_x && !u.over) check_line(&u, &l, dx, scale, all, &b, "the input");
            free(gradient);
        }
        free(dx);
    }
    run_close(&u);
}
static void test_slopes(void) { for_each_seed(250, 1, check_slopes); }

/* ---- 4: several replicas against one ----------------------------------------------------------------------------------------------- */

static double distance(const float *a, const float *b, ptrdiff_t n) {  /* largest difference over largest value */
    double d = 0, size = 1e-3;
    for (ptrdiff_t i = 0; i < n; i++) {
        d = isfinite(a[i]) ? fmax(d, fabs((double)a[i] - (double)b[i])) : (double)INFINITY;
        size = fmax(size, fabs((double)b[i]));
    }
    return d / size;
}

static void compare_replicas(run *u, run *one) {
    dt_model *a = u->s[0].m, *b = one->s[0].m;
    dt_batch batch = batch_of(&u->f, 0, random_n(u), 1, u->c->seed % 3 == 0);
    spoil_all(u, "several replicas");
    spoil_all(one, u->call);
    double noise, loss[2] = { (double)dt_forward(a, &batch, NULL), (double)dt_forward(b, &batch, NULL) };
    loss_now(one->s[1].m, &batch, &noise);
    if (!(fabs(loss[0] - loss[1]) <= 1000 * noise)) wrong(u, "the loss depends on the replicas");
    if (!can_backward(u)) return;
    if (dt_backward(a, NULL) || dt_backward(b, NULL) || dt_reduce(a, NULL) || dt_reduce(b, NULL)) { wrong(u, "dt_backward or dt_reduce"); return; }
    if (fabs(divisor(a) - divisor(b)) > 1e-4 * fabs(divisor(a))) wrong(u, "the divisor depends on the replicas");
    if (distance(dt_gradients(a, NULL), dt_gradients(b, NULL), a->graph.n_trainable) > 5e-2) wrong(u, "the gradient depends on the replicas");
}

static void check_replicas(const one_case *c) {
    run u, one;
    dt_options o = c->o, single = c->o;
    o.replicas = 2 + (int)(c->seed % 2);
    single.replicas = 1;
    single.strategy = DT_STRATEGY_DEFAULT;
    if (run_open(&u, c, o)) {
        if (run_open(&one, c, single)) compare_replicas(&u, &one);
        run_close(&one);
    }
    run_close(&u);
}
static void test_replicas(void) { for_each_seed(80, 1, check_replicas); }

/* ---- 5: the layout: what lives at one time does not overlap --------------------------------------------------------------------------- */

static int collide(const dt__buffer *a, const dt__buffer *b) {
    return a->birth <= b->death && b->birth <= a->death && a->offset < b->offset + b->floats && b->offset < a->offset + a->floats;
}

static void check_layout(const one_case *c) {
    dt_options o = c->o;
    dt_error err = DT_DEFAULTS;
    ptrdiff_t slack = 64;
    o.user = (void *)(uintptr_t)c;
    o.inference = c->seed % 3 == 0;
    o.replicas = 1;
    o.strategy = DT_STRATEGY_DEFAULT;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "CASE=%lu: %s", (unsigned long)c->seed, err.text);
    if (!m) return;
    const dt__graph *g = &m->graph;
    for (int i = 0; i < g->n; i++) slack = larger(slack, g->node[i]->slack);
    for (int i = 0; i < g->n_buffers; i++) {
        const dt__buffer *a = &g->buffer[i];
        int good = a->offset >= 0 && a->offset % UNIT == 0 && a->floats % UNIT == 0 && a->birth <= a->death && a->offset + a->floats + slack <= g->block_floats;
        for (int k = 0; k < i; k++) good &= !collide(a, &g->buffer[k]);
        CHECK_MSG(good, "CASE=%lu: buffer %d has no place of its own", (unsigned long)c->seed, i);
    }
    CHECK_MSG(g->lower_bound <= g->block_floats, "CASE=%lu", (unsigned long)c->seed);
    dt_model_free(m);
}
static void test_layout(void) { for_each_seed(300, 0, check_layout); }

/* ---- 6: single nets, most of them distilled from what the generator has found --------------------------------------------------------------- */

#define NET(name, ...) static dt_tensor *name(dt_tensor *x, void *user) { (void)x; (void)user; return __VA_ARGS__; }

static const float some_x[8] = { 1, 2, 3, 4, 1, -2, 3, 4 }, some_y[8] = { 0, 1, 0, 1, 0, 1, 0, 1 };
static const int32_t some_tokens[8] = { 0, 1, 2, 0, 1, 2, 2, 1 };

/* A model for 4 samples of 2 values, its memory full of rubbish. */
static dt_model *small_model(dt_tensor *(*what)(dt_tensor *, void *), dt_options o) {
    dt_error err = DT_DEFAULTS;
    o.net = what;
    if (!o.input[0]) o.input[0] = 2;
    o.batch = 4;
    o.replicas = 1;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    rubbish = 0xff;
    if (m) spoil(m->replica[0].block, m->graph.block_floats);
    return m;
}
static dt_batch small_batch(const void *x, const void *more, const void *y, const void *other) {
    dt_batch b = DT_DEFAULTS;
    b.x[0] = x;
    b.x[1] = more;
    b.y[0] = y;
    b.y[1] = other;
    b.n = 4;
    return b;
}

/* Tokens have no gradient, so there is none to read. */
NET(net_tokens, dt_dense(dt_flatten(dt_embedding(x, 3, 2)), 1))
static void test_tokens_have_no_gradient(void) {
    float d[8];
    dt_options o = { .input_type = DT_INT32, .input_gradient = 1, .loss = DT_VALUE };
    dt_batch b = small_batch(some_tokens, NULL, NULL, NULL);
    dt_model *m = small_model(net_tokens, o);
    CHECK(m && isfinite(dt_forward(m, &b, NULL)) && dt_backward(m, NULL) == 0);
    CHECK(m && dt_input_gradient_read(m, d, NULL) != 0);
    dt_model_free(m);
}

/* No loss depends on input 0, though net's output does: its gradient is 0, and not what lay there. */
static dt_tensor *net_unreached(dt_tensor *x, void *user) {
    (void)user;
    dt_loss(dt_dense(dt_input(x, "other", { 2 }), 1), DT_VALUE);
    return dt_dense(x, 1);
}
static void test_gradient_of_an_input_without_loss(void) {
    float d[8], one[4] = { 1, 1, 1, 1 };
    dt_options o = { .input_gradient = 1 };
    dt_batch b = small_batch(some_x, some_x, NULL, NULL);
    dt_model *m = small_model(net_unreached, o);
    for (int seeded = 1; seeded >= 0 && m; seeded--) {
        CHECK(isfinite(dt_forward(m, &b, NULL)) && (seeded ? dt_backward_from(m, one, NULL) : dt_backward(m, NULL)) == 0);
        CHECK(dt_input_gradient_read(m, d, NULL) == 0);
        for (int i = 0; i < 8; i++) if ((d[i] == 0) == seeded || !isfinite(d[i])) { CHECK_MSG(0, "seeded %d: value %d is %g", seeded, i, (double)d[i]); break; }
    }
    dt_model_free(m);
}

/* Whatever runs forward takes the gradient's memory. */
NET(net_two_layers, dt_dense(dt_tanh(dt_dense(x, 3)), 2))
static void test_input_gradient_of_the_last_backward(void) {
    static const char *const between[] = { "nothing", "dt_forward", "dt_predict", "dt_evaluate", "dt_step" };
    for (int i = 0; i < COUNT(between); i++) {
        float d[8], out[8];
        dt_metrics metrics = DT_DEFAULTS;
        dt_options o = { .input_gradient = 1, .loss = DT_MSE };
        dt_source source = dt_arrays(some_x, DT_FLOAT32, some_y, DT_FLOAT32, 4);
        dt_batch b = small_batch(some_x, NULL, some_y, NULL);
        dt_model *m = small_model(net_two_layers, o);
        if (!m) return;
        CHECK(isfinite(dt_forward(m, &b, NULL)) && dt_backward(m, NULL) == 0);
        if (i == 1) dt_forward(m, &b, NULL);
        if (i == 2) dt_predict(m, some_x, 4, out, NULL);
        if (i == 3) dt_evaluate(m, &source, &metrics, NULL);
        if (i == 4) dt_step(m, some_x, some_y, 4, NULL);
        CHECK_MSG(dt_input_gradient_read(m, d, NULL) == (i ? DT_ERR_STATE : 0), "after %s", between[i]);
        dt_model_free(m);
    }
}

/* Backward uses up what dt_forward has left; nothing else leaves it. */
static void test_backward_needs_its_forward(void) {
    static const char *const before[] = { "dt_backward", "dt_predict", "dt_evaluate", "dt_step" };
    for (int i = 0; i < COUNT(before); i++) {
        float out[8];
        dt_error err = DT_DEFAULTS;
        dt_metrics metrics = DT_DEFAULTS;
        dt_options o = { .loss = DT_MSE };
        dt_source source = dt_arrays(some_x, DT_FLOAT32, some_y, DT_FLOAT32, 4);
        dt_batch b = small_batch(some_x, NULL, some_y, NULL);
        dt_model *m = small_model(net_two_layers, o);
        if (!m) return;
        dt_forward(m, &b, &err);
        if (i == 0) dt_backward(m, &err);
        if (i == 1) dt_predict(m, some_x, 4, out, &err);
        if (i == 2) dt_evaluate(m, &source, &metrics, &err);
        if (i == 3) dt_step(m, some_x, some_y, 4, &err);
        CHECK_OK(err);
        CHECK_MSG(dt_backward(m, NULL) == DT_ERR_STATE && dt_backward_from(m, some_y, NULL) == DT_ERR_STATE, "after %s", before[i]);
        dt_model_free(m);
    }
}

/* After a step in parts only the last part's rows are there: all of them are given, or none. */
static void test_outputs_of_a_step_in_parts(void) {
    for (int parts = 1; parts <= 2; parts++) {
        float out[8];
        int finite = 0, code;
        dt_options o = { .loss = DT_MSE, .accumulate = parts };
        dt_model *m = small_model(net_two_layers, o);
        if (!m) return;
        spoil(out, 8);
        CHECK(isfinite(dt_step(m, some_x, some_y, 4, NULL)));
        code = dt_output_read(m, NULL, out, NULL);
        for (int i = 0; i < 8; i++) finite += isfinite(out[i]) != 0;
        CHECK_MSG(finite == (code ? 0 : 8), "%d parts: code %d, and %d of 8 values", parts, code, finite);
        CHECK(parts > 1 || code == 0);
        dt_model_free(m);
    }
}

/* A loss whose labels are all ignored says nothing about the others. */
static dt_tensor *net_two_losses(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *first = dt_dense(x, 3, .name = "first");
    dt_loss(dt_dense(x, 2, .name = "second"), DT_MSE, .name = "second");
    return first;
}
static void test_losses_without_weights(void) {
    static const int32_t ignored[4] = { 2, 2, 2, 2 };
    for (int parts = 1; parts <= 2; parts++) {
        float before[4], after[4], w[6];
        double expected = 0;
        dt_options o = { .loss = DT_CROSS_ENTROPY, .ignore_label = 2, .learning_rate = 0.01, .accumulate = parts };
        dt_batch b = small_batch(some_x, NULL, ignored, some_y);
        dt_model *m = small_model(net_two_losses, o);
        if (!m) return;
        dt_parameter_read(m, "second.weight", before, 4, NULL);
        dt_parameter_read(m, "first.weight", w, 6, NULL);
        const float loss = dt_step_batch(m, &b, NULL);
        dt_parameter_read(m, "second.weight", after, 4, NULL);
        for (int s = 0; s < 4; s++) {  /* d loss / d weight[0][0] */
            double y = (double)before[0] * some_x[2 * s] + (double)before[1] * some_x[2 * s + 1];
            expected += (y - some_y[2 * s]) * some_x[2 * s] / 4;
        }
        CHECK(loss > 0);
        CHECK_NEAR((before[0] - after[0]) / 0.01f, expected, 1e-4 * (1 + fabs(expected)));
        dt_model_free(m);
    }
}

/* The same for parts that are accumulated by hand: labels that weigh nothing leave the other loss's mean as it is. */
static void test_weights_that_come_and_go(void) {
    static const int32_t label[2][4] = { { 2, 2, 2, 2 }, { 2, 0, 2, 2 } };
    float after[2];
    for (int chunks = 1; chunks <= 2; chunks++) {
        dt_options o = { .loss = DT_CROSS_ENTROPY, .ignore_label = 2, .learning_rate = 0.01 };
        dt_model *m = small_model(net_two_losses, o);
        if (!m) return;
        for (int i = 0; i < chunks; i++) {  /* the second loss sees the same samples again */
            dt_batch b = small_batch(some_x, NULL, label[i], some_y);
            CHECK(isfinite(dt_forward(m, &b, NULL)) && dt_backward(m, NULL) == 0);
        }
        CHECK(dt_update(m, NULL) == 0);
        CHECK(dt_parameter_read(m, "second.bias", after, 2, NULL) == 0);
        static float alone[2];
        if (chunks == 1) memcpy(alone, after, sizeof alone);
        else CHECK_NEAR(after[0], alone[0], 1e-5);
        dt_model_free(m);
    }
}

/* A gradient that was given by hand is divided by its rows. */
NET(net_one_layer, dt_dense(x, 1))
static void test_given_gradients_have_weights(void) {
    static const float one[4] = { 1, 1, 1, 1 };
    float before[2], after[2];
    dt_options o = { .learning_rate = 0.01 };
    dt_batch b = small_batch(some_x, NULL, NULL, NULL);
    dt_model *m = small_model(net_one_layer, o);
    if (!m) return;
    dt_parameter_read(m, "dense_1.weight", before, 2, NULL);
    CHECK(dt_forward(m, &b, NULL) == 0 && dt_backward_from(m, one, NULL) == 0 && dt_update(m, NULL) == 0);
    dt_parameter_read(m, "dense_1.weight", after, 2, NULL);
    CHECK_NEAR((before[0] - after[0]) / 0.01f, (some_x[0] + some_x[2] + some_x[4] + some_x[6]) / 4, 1e-4);
    dt_model_free(m);
}

/* Gradients that are there already stay, however many parts the next step has. */
static dt_tensor *net_sum_and_mean(dt_tensor *x, void *user) {
    (void)user;
    dt_loss(dt_dense(x, 1), DT_MSE, .name = "other", .reduction = DT_SUM);
    return dt_batchnorm(x);
}
static void test_step_in_parts_after_backward(void) {
    float w[2][2], mean[2][2];
    for (int parts = 1; parts <= 2; parts++) {
        dt_options o = { .loss = DT_MSE, .learning_rate = 0.01, .accumulate = parts };
        dt_batch one = small_batch(some_x + 4, NULL, some_y + 1, some_x), all = small_batch(some_x, NULL, some_y, some_x);
        dt_model *m = small_model(net_sum_and_mean, o);
        if (!m) return;
        one.n = 1;
        CHECK(isfinite(dt_forward(m, &one, NULL)) && dt_backward(m, NULL) == 0 && isfinite(dt_step_batch(m, &all, NULL)));
        dt_parameter_read(m, "dense_1.weight", w[parts - 1], 2, NULL);
        dt_parameter_read(m, "batchnorm_1.running_mean", mean[parts - 1], 2, NULL);
        dt_model_free(m);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_NEAR(w[1][i], w[0][i], 1e-5);
        CHECK_NEAR(mean[1][i], mean[0][i], 1e-5);
    }
}

/* A layer that only lends its variables to others is not in the graph; it needs a name all the same. */
static dt_tensor *net_lenders(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dense(x, 4), *b = dt_dense(x, 5);
    return dt_concat(dt_dense(x, 4, .share = a), dt_dense(x, 5, .share = b), 1);
}
static void test_lenders_have_names(void) {
    dt_options o = DT_DEFAULTS;
    dt_model_free(small_model(net_lenders, o));
}

/* Classes that come from a tensor are as dangerous as those that are fed. */
static dt_tensor *net_int_target(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *y = dt_dense(x, 3);
    return dt_loss(y, DT_CROSS_ENTROPY, .target = dt_input(x, "classes", { 1 }, .type = DT_INT32));
}
static void test_classes_of_a_target(void) {
    static const int32_t row[3][4] = { { 0, 1, 2, 0 }, { 0, 3, 0, 0 }, { 0, -1, 0, 0 } };
    for (int i = 0; i < 3; i++) {
        dt_options o = DT_DEFAULTS;
        dt_error err = DT_DEFAULTS;
        dt_batch b = small_batch(some_x, row[i], NULL, NULL);
        dt_model *m = small_model(net_int_target, o);
        if (!m) return;
        const float loss = dt_forward(m, &b, &err);
        CHECK_MSG(i ? err.code == DT_ERR_ARGUMENT : err.code == 0 && isfinite(loss), "row %d: code %d \"%s\"", i, err.code, err.text);
        dt_model_free(m);
    }
}

/* A confusion matrix is one of net's output and of labels that were fed, or it is refused. */
static dt_tensor *net_other_head(dt_tensor *x, void *user) {
    (void)user;
    dt_loss(dt_dense(x, 2), DT_CROSS_ENTROPY);
    return dt_dense(x, 64);
}
static dt_tensor *net_own_target(dt_tensor *x, void *user) {
    (void)user;
    return dt_loss(dt_dense(dt_flatten(dt_embedding(x, 3, 4)), 3), DT_CROSS_ENTROPY, .target = x);
}
static void test_confusion_of_something_else(void) {
    for (int i = 0; i < 2; i++) {
        static long confusion[64 * 64];
        dt_options o = { .input_type = i ? DT_INT32 : DT_FLOAT32, .input = { i ? 1 : 2 } };
        dt_source source = dt_arrays(i ? (const void *)some_tokens : some_x, i ? DT_INT32 : DT_FLOAT32, i ? NULL : some_tokens + 3, DT_INT32, i ? 4 : 2);
        dt_metrics metrics = { .confusion = confusion };
        dt_model *m = small_model(i ? net_own_target : net_other_head, o);
        if (!m) return;
        CHECK(dt_evaluate(m, &source, &metrics, NULL) == DT_ERR_ARGUMENT);
        for (int k = 4; k < COUNT(confusion); k++) if (confusion[k]) { CHECK_MSG(0, "2 classes, and count %d is written", k); break; }
        dt_model_free(m);
    }
}

int main(void) {
    RUN(test_training);
    RUN(test_inference);
    RUN(test_slopes);
    RUN(test_replicas);
    RUN(test_layout);
    RUN(test_tokens_have_no_gradient);
    RUN(test_gradient_of_an_input_without_loss);
    RUN(test_input_gradient_of_the_last_backward);
    RUN(test_backward_needs_its_forward);
    RUN(test_outputs_of_a_step_in_parts);
    RUN(test_losses_without_weights);
    RUN(test_weights_that_come_and_go);
    RUN(test_given_gradients_have_weights);
    RUN(test_step_in_parts_after_backward);
    RUN(test_lenders_have_names);
    RUN(test_classes_of_a_target);
    RUN(test_confusion_of_something_else);
    if (getenv("SEEDS"))
        printf("%ld graphs, %ld nodes (%ld in place, %ld gradients on another's), %ld calls, %ld slopes, %ld ended early\n", n_graphs, n_nodes, n_in_place, n_aliases, n_calls, n_slopes, n_exploded);
    return finish();
}
