/* optimizers - update rules as PyTorch has them (golden/optimizers.py), their options, and schedules. */
#include "../dtrain.h"
#include "test.h"
#include "golden/optimizers.h"

static uint32_t random_state;
static double uniform(void) {  /* -1 .. 1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / 8388608.0 - 1.0;
}

static dt_tensor *net_linear(dt_tensor *x, void *user) { (void)user; return dt_dense(x, GOLDEN_OUT, .name = "linear"); }

static dt_options linear_options(void) {
    dt_options o = DT_DEFAULTS;
    o.net = net_linear;
    o.input[0] = GOLDEN_IN;
    o.loss = DT_MSE;
    o.batch = GOLDEN_N;
    o.replicas = 1;
    return o;
}

static dt_model *linear_model(const dt_options *o, const char *name) {
    dt_error err = DT_DEFAULTS;
    dt_model *m = dt_model_create(o, &err);
    if (m) {
        dt_parameter_write(m, "linear.weight", golden_weight, GOLDEN_OUT * GOLDEN_IN, &err);
        dt_parameter_write(m, "linear.bias", golden_bias, GOLDEN_OUT, &err);
    }
    CHECK_MSG(m != NULL && !err.code, "%s: %s", name, err.text);
    return m;
}

static void read_linear(dt_model *m, float *w) {
    dt_error err = DT_DEFAULTS;
    dt_parameter_read(m, "linear.weight", w, GOLDEN_OUT * GOLDEN_IN, &err);
    dt_parameter_read(m, "linear.bias", w + GOLDEN_OUT * GOLDEN_IN, GOLDEN_OUT, &err);
    CHECK_OK(err);
}

/* ---- update rules ------------------------------------------------------------------------------------ */

enum { WEIGHTS = GOLDEN_OUT * GOLDEN_IN + GOLDEN_OUT };

static const struct {
    const char *golden;
    dt_optimizer optimizer;
    double learning_rate, momentum, beta1, beta2, alpha, epsilon, weight_decay, clip_norm;
    const char *no_decay, *freeze;
} optimizer_case[] = {
    { "sgd",                 DT_SGD,      .learning_rate = 0.05 },
    { "sgd",                 DT_SGD,      .learning_rate = 0.05, .momentum = DT_OFF, .weight_decay = DT_OFF },
    { "sgd",                 DT_MOMENTUM, .learning_rate = 0.05, .momentum = DT_OFF },
    { "sgd_decay",           DT_SGD,      .learning_rate = 0.05, .weight_decay = 0.1 },
    { "sgd_momentum",        DT_SGD,      .learning_rate = 0.05, .momentum = 0.8 },
    { "momentum",            DT_MOMENTUM, .learning_rate = 0.02 },
    { "momentum",            DT_MOMENTUM, .learning_rate = 0.02, .momentum = 0.9 },
    { "momentum_05",         DT_MOMENTUM, .learning_rate = 0.02, .momentum = 0.5 },
    { "momentum_decay",      DT_MOMENTUM, .learning_rate = 0.02, .weight_decay = 0.1 },
    { "nesterov",            DT_NESTEROV, .learning_rate = 0.02 },
    { "nesterov_decay",      DT_NESTEROV, .learning_rate = 0.02, .momentum = 0.7, .weight_decay = 0.1 },
    { "adam",                DT_ADAM,     .learning_rate = 0.05 },
    { "adam",                DT_ADAMW,    .learning_rate = 0.05, .weight_decay = DT_OFF },
    { "adam_default_rate",   DT_ADAM,     .learning_rate = 0 },
    { "adam_betas",          DT_ADAM,     .learning_rate = 0.05, .beta1 = 0.7, .beta2 = 0.95 },
    { "adam_epsilon",        DT_ADAM,     .learning_rate = 0.05, .epsilon = 0.5 },
    { "adam_decay",          DT_ADAM,     .learning_rate = 0.05, .weight_decay = 0.2 },
    { "adamw",               DT_ADAMW,    .learning_rate = 0.05 },
    { "adamw",               DT_ADAMW,    .learning_rate = 0.05, .weight_decay = 0.01 },
    { "adamw_decay",         DT_ADAMW,    .learning_rate = 0.05, .weight_decay = 0.5 },
    { "adamw_none",          DT_ADAMW,    .learning_rate = 0.05, .weight_decay = DT_OFF },
    { "rmsprop",             DT_RMSPROP,  .learning_rate = 0.05 },
    { "rmsprop_alpha",       DT_RMSPROP,  .learning_rate = 0.05, .alpha = 0.8, .epsilon = 0.1 },
    { "rmsprop_momentum",    DT_RMSPROP,  .learning_rate = 0.02, .momentum = 0.6 },
    { "rmsprop_decay",       DT_RMSPROP,  .learning_rate = 0.02, .weight_decay = 0.2 },
    { "clip",                DT_SGD,      .learning_rate = 0.05, .clip_norm = 0.5 },
    { "clip_above",          DT_SGD,      .learning_rate = 0.05, .clip_norm = 1e6 },
    { "clip_adam",           DT_ADAM,     .learning_rate = 0.05, .clip_norm = 0.5 },
    { "clip_decay",          DT_MOMENTUM, .learning_rate = 0.05, .clip_norm = 0.5, .weight_decay = 0.1 },
    { "no_decay_bias",       DT_SGD,      .learning_rate = 0.05, .weight_decay = 0.3, .no_decay = "*.bias" },
    { "no_decay_bias_adamw", DT_ADAMW,    .learning_rate = 0.05, .weight_decay = 0.5, .no_decay = "nothing,*.b?as" },
    { "freeze_weight",       DT_MOMENTUM, .learning_rate = 0.05, .freeze = "linear.weight" },
    { "freeze_weight_clip",  DT_SGD,      .learning_rate = 0.05, .clip_norm = 0.5, .freeze = "*wei*" },
    { "freeze_weight_adamw", DT_ADAMW,    .learning_rate = 0.05, .weight_decay = 0.1, .freeze = "x*,linear.w*,*.y" },
};

static const struct { dt_strategy strategy; int replicas, accumulate; } place[] = {
    { DT_ONE, 1, 1 },  { DT_MIRRORED, 2, 1 },  { DT_CENTRAL, 2, 1 },  { DT_MIRRORED, 3, 1 },  { DT_CENTRAL, 3, 2 },  { DT_ONE, 1, 4 },
};

static void check_weights(dt_model *m, const char *name, int at, const double *expected, double tolerance) {
    float w[WEIGHTS];
    read_linear(m, w);
    for (int k = 0; k < WEIGHTS; k++)
        CHECK_MSG(fabs(w[k] - expected[k]) <= tolerance * (1 + fabs(expected[k])), "%s, place %d: value %d is %.8g, expected %.8g", name, at, k, w[k], expected[k]);
}

static void test_optimizers_as_pytorch(void) {
    int used[COUNT(golden_optimizer)] = { 0 };
    for (int i = 0; i < COUNT(optimizer_case); i++) {
        int g = -1;
        for (int k = 0; k < COUNT(golden_optimizer); k++) if (!strcmp(golden_optimizer[k].name, optimizer_case[i].golden)) g = k;
        CHECK_MSG(g >= 0, "no golden row %s", optimizer_case[i].golden);
        if (g < 0) continue;
        used[g] = 1;
        for (int at = 0; at < COUNT(place); at++) {
            const char *name = optimizer_case[i].golden;
            dt_error err = DT_DEFAULTS;
            dt_options o = linear_options();
            o.optimizer = optimizer_case[i].optimizer;
            o.learning_rate = optimizer_case[i].learning_rate;
            o.momentum = optimizer_case[i].momentum;
            o.beta1 = optimizer_case[i].beta1;
            o.beta2 = optimizer_case[i].beta2;
            o.alpha = optimizer_case[i].alpha;
            o.epsilon = optimizer_case[i].epsilon;
            o.weight_decay = optimizer_case[i].weight_decay;
            o.clip_norm = optimizer_case[i].clip_norm;
            o.no_decay = optimizer_case[i].no_decay;
            o.freeze = optimizer_case[i].freeze;
            o.strategy = place[at].strategy;
            o.replicas = place[at].replicas;
            o.accumulate = place[at].accumulate;
            dt_model *m = linear_model(&o, name);
            if (!m) continue;
            float loss = 0;
            for (int step = 0; step < GOLDEN_STEPS; step++) {
                loss = dt_step(m, golden_x, golden_y, GOLDEN_N, &err);
                if (step == 0) check_weights(m, name, at, golden_optimizer[g].first, 2e-6);
            }
            CHECK_OK(err);
            check_weights(m, name, at, golden_optimizer[g].last, 1e-5);
            CHECK_NEAR(loss, golden_optimizer[g].loss, 1e-5);
            CHECK(dt_model_step(m) == GOLDEN_STEPS);
            dt_model_free(m);
        }
    }
    for (int g = 0; g < COUNT(golden_optimizer); g++) CHECK_MSG(used[g], "golden row %s is not tested", golden_optimizer[g].name);
}

/* The whole width of the vector loops: 41 x 37 weights that all get one gradient, set by hand. Every
 * value then follows a formula of its own start, whatever the layout. */
enum { WIDE_IN = 37, WIDE_OUT = 41, WIDE = WIDE_IN * WIDE_OUT };
static dt_tensor *net_wide(dt_tensor *x, void *user) { (void)user; return dt_dense(x, WIDE_OUT, .name = "wide", .no_bias = 1); }

static double updated(dt_optimizer kind, double w, double g, double state[2], int step) {
    const double rate = 0.1, decay = 0.05;
    if (kind == DT_ADAMW) w -= rate * decay * w;
    else g += decay * w;
    if (kind == DT_SGD) return w - rate * g;
    if (kind == DT_MOMENTUM || kind == DT_NESTEROV) {
        state[0] = 0.9 * state[0] + g;
        return w - rate * (kind == DT_MOMENTUM ? state[0] : g + 0.9 * state[0]);
    }
    if (kind == DT_RMSPROP) {
        state[1] = 0.99 * state[1] + 0.01 * g * g;
        return w - rate * g / (sqrt(state[1]) + 1e-8);
    }
    state[0] = 0.9 * state[0] + 0.1 * g;
    state[1] = 0.999 * state[1] + 0.001 * g * g;
    return w - rate * (state[0] / (1 - pow(0.9, step))) / (sqrt(state[1] / (1 - pow(0.999, step))) + 1e-8);
}

static void test_gradients_set_by_hand(void) {
    static const double pull[] = { 0.5, -2, 0.125, 1 };
    for (int kind = DT_SGD; kind <= DT_RMSPROP; kind++)
        for (int replicas = 1; replicas <= 3; replicas++) {
            float w[WIDE], x[4 * WIDE_IN], y[4 * WIDE_OUT];
            double expected[WIDE], state[WIDE][2] = { { 0 } };
            dt_error err = DT_DEFAULTS;
            dt_options o = DT_DEFAULTS;
            dt_batch batch = DT_DEFAULTS;
            o.net = net_wide;
            o.input[0] = WIDE_IN;
            o.batch = 4;
            o.loss = DT_MSE;
            o.optimizer = (dt_optimizer)kind;
            o.learning_rate = 0.1;
            o.weight_decay = 0.05;
            o.replicas = replicas;
            dt_model *m = dt_model_create(&o, &err);
            CHECK_MSG(m != NULL, "%s", err.text);
            if (!m) return;
            random_state = 9;
            for (int k = 0; k < COUNT(x); k++) x[k] = (float)uniform();
            for (int k = 0; k < COUNT(y); k++) y[k] = (float)uniform();
            for (int k = 0; k < WIDE; k++) expected[k] = w[k] = (float)uniform();
            dt_parameter_write(m, "wide.weight", w, WIDE, &err);
            batch.x[0] = x;
            batch.y[0] = y;
            batch.n = 4;
            for (int step = 0; step < COUNT(pull); step++) {
                size_t n = 0;
                dt_forward(m, &batch, &err);
                dt_backward(m, &err);
                CHECK(dt_gradients(m, &n) == NULL);  /* not reduced yet */
                dt_reduce(m, &err);
                float *g = dt_gradients(m, &n);
                CHECK_MSG(g != NULL && n >= WIDE, "%d gradients", (int)n);
                for (size_t k = 0; g && k < n; k++) g[k] = (float)(4 * pull[step]);  /* a sum over four samples */
                dt_update(m, &err);
                for (int k = 0; k < WIDE; k++) expected[k] = updated((dt_optimizer)kind, expected[k], pull[step], state[k], step + 1);
            }
            dt_parameter_read(m, "wide.weight", w, WIDE, &err);
            CHECK_OK(err);
            for (int k = 0; k < WIDE; k++)
                if (fabs(w[k] - expected[k]) > 3e-6) {
                    CHECK_MSG(0, "optimizer %d, %d replicas: weight %d is %.8g, expected %.8g", kind, replicas, k, w[k], expected[k]);
                    break;
                }
            dt_model_free(m);
        }
}

/* ---- parts of a step ----------------------------------------------------------------------------------- */

static dt_tensor *net_deep(dt_tensor *x, void *user) {
    x = dt_tanh(dt_dense(x, 9, .name = "one"));
    return dt_dense(user ? dt_dropout(x, 0.4) : x, 4, .name = "two");
}

/* A batch run in four parts is the same batch, whole or not, with labels that are not counted too. */
static void test_accumulation(void) {
    static const struct { const char *name; int n, replicas, accumulate, ignore, dropout; } row[] = {
        { "4 parts", 8, 1, 4, 0, 0 },         { "2 replicas", 8, 2, 4, 0, 0 },      { "an uneven rest", 7, 1, 4, 0, 0 },
        { "3 samples in 4 parts", 3, 2, 4, 0, 0 },  { "uneven parts", 8, 1, 3, 0, 0 },    { "ignored labels", 8, 1, 4, 2, 0 },
        { "ignored labels, 3 replicas", 7, 3, 2, 2, 0 },  { "one sample each", 8, 1, 8, 0, 0 },  { "dropout", 8, 1, 4, 0, 1 },  { "dropout, 3 replicas", 7, 3, 2, 0, 1 },
    };
    float x[5 * 8 * 6];
    int y[5 * 8];
    random_state = 31;
    for (int k = 0; k < COUNT(x); k++) x[k] = (float)uniform();
    for (int k = 0; k < COUNT(y); k++) y[k] = k * 7 % 13 % 4;
    for (int i = 0; i < COUNT(row); i++) {
        float w[2][36], loss[2] = { 0, 0 };
        for (int parts = 0; parts < 2; parts++) {
            dt_error err = DT_DEFAULTS;
            dt_options o = DT_DEFAULTS;
            o.net = net_deep;
            o.user = row[i].dropout ? &o : NULL;
            o.input[0] = 6;
            o.batch = 8;
            o.loss = DT_CROSS_ENTROPY;
            o.ignore_label = row[i].ignore;
            o.optimizer = DT_MOMENTUM;
            o.learning_rate = 0.1;
            o.replicas = parts ? row[i].replicas : 1;
            o.accumulate = parts ? row[i].accumulate : 1;
            dt_model *m = dt_model_create(&o, &err);
            CHECK_MSG(m != NULL, "%s: %s", row[i].name, err.text);
            if (!m) return;
            for (int step = 0; step < 5; step++) loss[parts] = dt_step(m, x + step * 8 * 6, y + step * 8, row[i].n, &err);
            dt_parameter_read(m, "two.weight", w[parts], 36, &err);
            CHECK_MSG(!err.code && dt_model_step(m) == 5, "%s: %ld steps, %s", row[i].name, dt_model_step(m), err.text);
            dt_model_free(m);
        }
        CHECK_NEAR(loss[1], loss[0], 2e-6);
        for (int k = 0; k < 36; k++)
            if (fabs(w[1][k] - w[0][k]) > 3e-6) { CHECK_MSG(0, "%s: weight %d is %.8g, expected %.8g", row[i].name, k, w[1][k], w[0][k]); break; }
    }
}

/* dt_forward, dt_backward, dt_update by hand: two halves of a batch are the batch. Forward passes alone count nothing. */
static void test_own_step(void) {
    for (int replicas = 1; replicas <= 3; replicas++)
        for (int reduce = 0; reduce < 2; reduce++) {
            dt_error err = DT_DEFAULTS;
            dt_options o = linear_options();
            dt_batch half = DT_DEFAULTS;
            float a[WEIGHTS], b[WEIGHTS];
            o.replicas = replicas;
            o.learning_rate = 0.1;
            dt_model *whole = linear_model(&o, "whole"), *halves = linear_model(&o, "halves");
            if (whole && halves) {
                dt_step(whole, golden_x, golden_y, GOLDEN_N, &err);
                half.x[0] = golden_x;
                half.y[0] = golden_y;
                half.n = 1;
                dt_forward(halves, &half, &err);
                dt_backward(halves, &err);
                dt_clear(halves, &err);  /* forgotten */
                half.n = 3;
                dt_forward(halves, &half, &err);
                dt_forward(halves, &half, &err);  /* a forward without its backward counts nothing */
                dt_backward(halves, &err);
                half.x[0] = golden_x + 3 * GOLDEN_IN;
                half.y[0] = golden_y + 3 * GOLDEN_OUT;
                half.n = 1;
                dt_forward(halves, &half, &err);
                dt_backward(halves, &err);
                if (reduce) dt_reduce(halves, &err);
                dt_update(halves, &err);
                CHECK_OK(err);
                read_linear(whole, a);
                read_linear(halves, b);
                for (int k = 0; k < WEIGHTS; k++) CHECK_NEAR(b[k], a[k], 1e-6);
                CHECK(dt_model_step(halves) == 1);
                /* update has cleared: the next step is a step of its own */
                const float first = dt_step(whole, golden_x, golden_y, GOLDEN_N, &err), second = dt_step(halves, golden_x, golden_y, GOLDEN_N, &err);
                CHECK_NEAR(second, first, 1e-6);
                read_linear(whole, a);
                read_linear(halves, b);
                for (int k = 0; k < WEIGHTS; k++) CHECK_NEAR(b[k], a[k], 1e-6);
            }
            dt_model_free(whole);
            dt_model_free(halves);
        }
}

/* Calls at the wrong moment are refused and change nothing. */
static void test_order_of_calls(void) {
    dt_error err = DT_DEFAULTS;
    dt_options o = linear_options();
    float g[GOLDEN_N * GOLDEN_IN];
    dt_batch batch = DT_DEFAULTS;
    dt_model *m = linear_model(&o, "order");
    if (!m) return;
    const uint32_t before = dt_parameters_crc32c(m);
    CHECK(dt_backward(m, &err) == DT_ERR_STATE);
    CHECK_ERROR(err, DT_ERR_STATE, "dt_forward");
    err.code = 0;
    CHECK(dt_update(m, &err) == DT_ERR_STATE);
    CHECK_ERROR(err, DT_ERR_STATE, "dt_backward");
    err.code = 0;
    batch.x[0] = golden_x;
    batch.y[0] = golden_y;
    batch.n = GOLDEN_N;
    dt_forward(m, &batch, &err);
    CHECK_OK(err);
    CHECK(dt_input_gradient_read(m, g, &err) != 0);
    CHECK_MSG(strstr(err.text, "input_gradient") != NULL, "%s", err.text);
    CHECK(dt_parameters_crc32c(m) == before && dt_model_step(m) == 0);
    dt_model_free(m);
}

/* ---- frozen parameters ------------------------------------------------------------------------------------ */

static dt_tensor *net_frozen(dt_tensor *x, void *user) {
    (void)user;
    x = dt_tanh(dt_dense(x, 5, .name = "encoder_1", .frozen = 1));
    x = dt_tanh(dt_dense(x, 5, .name = "encoder_2"));
    return dt_dense(x, 2, .name = "head");
}

static void test_freezing(void) {
    static const struct { const char *glob; int moves[6]; } row[] = {  /* weights and biases of the three layers */
        { NULL, { 0, 0, 1, 1, 1, 1 } },  { "encoder*", { 0, 0, 0, 0, 1, 1 } },  { "*.bias", { 0, 0, 1, 0, 1, 0 } },
        { "head.weight,encoder_2.bias", { 0, 0, 1, 0, 0, 1 } },  { "encoder_?.weight", { 0, 0, 0, 1, 1, 1 } },
    };
    for (int i = 0; i < 2 * COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        dt_parameter p;
        float x[8 * 3], y[8 * 2], before[6][32], after[32];
        o.net = net_frozen;
        o.input[0] = 3;
        o.batch = 8;
        o.loss = DT_MSE;
        o.optimizer = DT_ADAMW;
        o.weight_decay = 0.5;
        o.freeze = row[i / 2].glob;
        o.replicas = 1 + i % 2;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        random_state = 17;
        for (int k = 0; k < COUNT(x); k++) x[k] = (float)uniform();
        for (int k = 0; k < COUNT(y); k++) y[k] = (float)uniform();
        for (int k = 0; k < 6; k++) {
            CHECK(dt_parameter_at(m, k, &p, &err) == 0 && p.size <= 32);
            CHECK_MSG(p.trainable == row[i / 2].moves[k], "%s, freeze \"%s\": trainable is %d", p.name, o.freeze ? o.freeze : "", p.trainable);
            dt_parameter_read(m, p.name, before[k], p.size, &err);
        }
        for (int step = 0; step < 3; step++) dt_step(m, x, y, 8, &err);
        for (int k = 0; k < 6; k++) {
            CHECK(dt_parameter_at(m, k, &p, &err) == 0);
            dt_parameter_read(m, p.name, after, p.size, &err);
            CHECK_MSG((memcmp(before[k], after, p.size * sizeof(float)) != 0) == row[i / 2].moves[k], "%s, freeze \"%s\"", p.name, o.freeze ? o.freeze : "");
        }
        CHECK_OK(err);
        dt_model_free(m);
    }
}

/* ---- schedules ----------------------------------------------------------------------------------------------- */

static double rate_by_callback(long step, void *user) { return *(const double *)user / (double)(step + 1); }

static double scheduled(const dt_options *o, long step) {
    const double pi = 3.14159265358979323846, first = o->learning_rate, last = o->final_rate;
    if (o->warmup_steps && step < o->warmup_steps) return first * (double)(step + 1) / (double)(o->warmup_steps + 1);
    step -= o->warmup_steps;
    const double steps = (double)(o->total_steps - o->warmup_steps), part = steps > 0 && (double)step < steps ? (double)step / steps : 1;
    switch (o->schedule) {
    case DT_STEP_DECAY:        return first * pow(o->decay_factor ? o->decay_factor : 0.1, floor((double)step / (double)(o->decay_steps ? o->decay_steps : 1000)));
    case DT_EXPONENTIAL_DECAY: return first * pow(o->decay_factor ? o->decay_factor : 0.96, (double)step / (double)(o->decay_steps ? o->decay_steps : 1000));
    case DT_COSINE_DECAY:      return last + (first - last) * (1 + cos(pi * part)) / 2;
    case DT_LINEAR_DECAY:      return first + (last - first) * part;
    default:                   return first;
    }
}

static const struct { const char *name; dt_schedule schedule; long warmup, total, decay_steps; double final_rate, factor; } schedule_case[] = {
    { "constant",                 DT_CONSTANT_RATE,     0, 0,  0,  0,     0 },
    { "constant, warm-up",        DT_CONSTANT_RATE,     5, 0,  0,  0,     0 },
    { "step",                     DT_STEP_DECAY,        0, 0,  4,  0,     0.5 },
    { "step, default factor",     DT_STEP_DECAY,        0, 0,  7,  0,     0 },
    { "step, default length",     DT_STEP_DECAY,        0, 0,  0,  0,     0 },
    { "step, warm-up",            DT_STEP_DECAY,        3, 0,  4,  0,     0.5 },
    { "exponential",              DT_EXPONENTIAL_DECAY, 0, 0,  5,  0,     0.8 },
    { "exponential, defaults",    DT_EXPONENTIAL_DECAY, 0, 0,  0,  0,     0 },
    { "exponential, warm-up",     DT_EXPONENTIAL_DECAY, 4, 0,  5,  0,     0.8 },
    { "cosine",                   DT_COSINE_DECAY,      0, 20, 0,  0,     0 },
    { "cosine to a rate",         DT_COSINE_DECAY,      0, 12, 0,  0.01,  0 },
    { "cosine, warm-up",          DT_COSINE_DECAY,      6, 18, 0,  0.01,  0 },
    { "linear",                   DT_LINEAR_DECAY,      0, 20, 0,  0,     0 },
    { "linear to a rate",         DT_LINEAR_DECAY,      0, 12, 0,  0.05,  0 },
    { "linear, warm-up",          DT_LINEAR_DECAY,      4, 14, 0,  0.02,  0 },
};

/* dt_learning_rate tells the rate of the next update, and the update uses it. */
static void test_schedules(void) {
    for (int i = 0; i < COUNT(schedule_case); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = linear_options();
        o.learning_rate = 0.2;
        o.schedule = schedule_case[i].schedule;
        o.warmup_steps = schedule_case[i].warmup;
        o.total_steps = schedule_case[i].total;
        o.decay_steps = schedule_case[i].decay_steps;
        o.final_rate = schedule_case[i].final_rate;
        o.decay_factor = schedule_case[i].factor;
        dt_model *m = linear_model(&o, schedule_case[i].name);
        if (!m) continue;
        for (long step = 0; step < 24; step++) {
            const double rate = dt_learning_rate(m), expected = scheduled(&o, step);
            size_t n = 0;
            float before[WEIGHTS], after[WEIGHTS];
            dt_batch batch = DT_DEFAULTS;
            CHECK_MSG(fabs(rate - expected) <= 1e-7, "%s: step %ld: rate %.9g, expected %.9g", schedule_case[i].name, step, rate, expected);
            read_linear(m, before);
            batch.x[0] = golden_x;
            batch.y[0] = golden_y;
            batch.n = GOLDEN_N;
            dt_forward(m, &batch, &err);
            dt_backward(m, &err);
            dt_reduce(m, &err);
            float *g = dt_gradients(m, &n);
            for (size_t k = 0; g && k < n; k++) g[k] = GOLDEN_N;  /* the mean gradient is 1 */
            dt_update(m, &err);
            read_linear(m, after);
            CHECK_MSG(fabs(before[0] - after[0] - expected) <= 1e-6, "%s: step %ld moved by %.9g, expected %.9g", schedule_case[i].name, step, before[0] - after[0], expected);
        }
        CHECK_OK(err);
        dt_model_free(m);
    }
}

static void test_rates_set_by_the_program(void) {
    dt_error err = DT_DEFAULTS;
    dt_options o = linear_options();
    double user = 0.5;
    o.rate_at = rate_by_callback;
    o.user = &user;
    o.learning_rate = 100;
    o.schedule = DT_COSINE_DECAY;
    o.total_steps = 3;
    dt_model *m = linear_model(&o, "rate_at");
    for (int step = 0; m && step < 6; step++) {
        CHECK_NEAR(dt_learning_rate(m), 0.5 / (step + 1), 1e-9);
        dt_step(m, golden_x, golden_y, GOLDEN_N, &err);
    }
    CHECK_OK(err);
    dt_model_free(m);

    o = linear_options();
    o.learning_rate = 0.1;
    o.schedule = DT_STEP_DECAY;
    o.decay_steps = 4;
    o.decay_factor = 0.5;
    m = linear_model(&o, "dt_set_learning_rate");
    for (int step = 0; m && step < 12; step++) {
        if (step == 2) dt_set_learning_rate(m, 0.02);
        CHECK_NEAR(dt_learning_rate(m), (step < 2 ? 0.1 : 0.02) * pow(0.5, step / 4), 1e-9);
        dt_step(m, golden_x, golden_y, GOLDEN_N, &err);
    }
    CHECK_OK(err);
    dt_model_free(m);
}

static void test_default_rates(void) {
    static const double rate[] = { 0.01, 0.01, 0.01, 0.001, 0.001, 0.01 };
    for (int kind = DT_SGD; kind <= DT_RMSPROP; kind++) {
        dt_options o = linear_options();
        o.optimizer = (dt_optimizer)kind;
        dt_model *m = linear_model(&o, "default rate");
        if (m) CHECK_NEAR(dt_learning_rate(m), rate[kind], 1e-9);
        dt_model_free(m);
    }
}

/* ---- options that make no sense -------------------------------------------------------------------------------- */

#define WITH(field, value) static void with_##field(dt_options *o, double v) { o->field = (value); }
WITH(learning_rate, v)
WITH(momentum, v)
WITH(beta1, v)
WITH(beta2, v)
WITH(alpha, v)
WITH(epsilon, v)
WITH(weight_decay, v)
WITH(clip_norm, v)
WITH(accumulate, (int)v)
WITH(warmup_steps, (long)v)
WITH(total_steps, (long)v)
WITH(decay_steps, (long)v)
WITH(decay_factor, v)
WITH(final_rate, v)
WITH(batch, (int)v)
WITH(replicas, (int)v)
WITH(replica_batch, (int)v)
WITH(optimizer, (dt_optimizer)(int)v)
WITH(schedule, (dt_schedule)(int)v)
WITH(strategy, (dt_strategy)(int)v)

static void test_bad_options(void) {
    static const struct { const char *field; void (*set)(dt_options *, double); double value; const char *shown; } row[] = {
        { "learning_rate", with_learning_rate, -0.1, "-0.1" },  { "learning_rate", with_learning_rate, NAN, "nan" },
        { "learning_rate", with_learning_rate, INFINITY, "inf" },
        { "momentum", with_momentum, 1.5, "1.5" },              { "momentum", with_momentum, -0.5, "-0.5" },
        { "beta1", with_beta1, 1, "1" },                        { "beta2", with_beta2, -0.25, "-0.25" },
        { "alpha", with_alpha, 1.25, "1.25" },                  { "epsilon", with_epsilon, -1e-3, "-0.001" },
        { "weight_decay", with_weight_decay, -0.5, "-0.5" },    { "clip_norm", with_clip_norm, -3, "-3" },
        { "accumulate", with_accumulate, -2, "-2" },            { "accumulate", with_accumulate, 1000, "1000" },
        { "warmup_steps", with_warmup_steps, -7, "-7" },        { "total_steps", with_total_steps, -8, "-8" },
        { "decay_steps", with_decay_steps, -9, "-9" },          { "decay_factor", with_decay_factor, -0.5, "-0.5" },
        { "final_rate", with_final_rate, -0.25, "-0.25" },      { "batch", with_batch, -4, "-4" },
        { "replicas", with_replicas, -3, "-3" },                { "replicas", with_replicas, 100000, "100000" },
        { "replica_batch", with_replica_batch, -2, "-2" },
        { "optimizer", with_optimizer, 99, "99" },              { "schedule", with_schedule, 98, "98" },
        { "strategy", with_strategy, 97, "97" },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = linear_options();
        o.optimizer = strstr(row[i].field, "beta") ? DT_ADAM : !strcmp(row[i].field, "alpha") ? DT_RMSPROP : DT_MOMENTUM;
        row[i].set(&o, row[i].value);
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m == NULL, ".%s = %g is accepted", row[i].field, row[i].value);
        CHECK_MSG(err.code == DT_ERR_ARGUMENT && strstr(err.text, row[i].field) && strstr(err.text, row[i].shown),
                  ".%s = %g: code %d \"%s\"", row[i].field, row[i].value, err.code, err.text);
        dt_model_free(m);
    }
}

int main(void) {
    RUN(test_optimizers_as_pytorch);
    RUN(test_gradients_set_by_hand);
    RUN(test_accumulation);
    RUN(test_own_step);
    RUN(test_order_of_calls);
    RUN(test_freezing);
    RUN(test_schedules);
    RUN(test_rates_set_by_the_program);
    RUN(test_default_rates);
    RUN(test_bad_options);
    return finish();
}
