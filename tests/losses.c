/* losses - values and gradients as PyTorch has them (golden/losses.py), their options, and metrics. */
#include "../dtrain.h"
#include "test.h"
#include "golden/losses.h"

static uint32_t random_state;
static double uniform(void) {  /* -1 .. 1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / 8388608.0 - 1.0;
}

static int golden_index(const char *name) {
    for (int i = 0; i < COUNT(golden_loss); i++)
        if (!strcmp(golden_loss[i].name, name)) return i;
    CHECK_MSG(0, "no golden row %s", name);
    return 0;
}

/* The nets all begin with a dense layer that holds the identity: its output is the input, the gradient of
 * its bias is the sum over the rows of the loss's gradient, and an update of rate 1 shows it. */
static dt_tensor *same(dt_tensor *x) { return dt_dense(x, dt_dim(x, dt_rank(x) - 1), .name = "same"); }

static int write_identity(dt_model *m, int size, dt_error *err) {
    float w[64] = { 0 }, b[8] = { 0 };
    for (int i = 0; i < size; i++) w[i * size + i] = 1;
    return dt_parameter_write(m, "same.weight", w, (size_t)(size * size), err) || dt_parameter_write(m, "same.bias", b, (size_t)size, err);
}

static dt_tensor *net_plain(dt_tensor *x, void *user) { (void)user; return same(x); }
static dt_tensor *net_softmax(dt_tensor *x, void *user) { (void)user; return dt_softmax(same(x)); }
static dt_tensor *net_sigmoid(dt_tensor *x, void *user) { (void)user; return dt_sigmoid(same(x)); }

/* ---- golden values ------------------------------------------------------------------------------- */

typedef enum { TARGETS, BINARY, SOFT, LABELS, TOKENS, TOKEN_TARGETS } label_set;

typedef struct {
    const char *golden;
    dt_loss_kind loss;
    label_set labels;
    dt_type label_type;
    dt_tensor *(*net)(dt_tensor *, void *);
    int by_hand;              /* 1: by dt_loss in net instead of the options' loss */
    dt_loss_options o;
    int weighted;             /* with .weight per sample */
} loss_case;

static const loss_case loss_cases[] = {
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_TYPE_DEFAULT, net_plain, 0, { .t = NULL }, 0 },
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .t = NULL }, 0 },
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_UINT8, net_plain, 0, { .t = NULL }, 0 },
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_FLOAT32, net_plain, 0, { .t = NULL }, 0 },
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_ONE_HOT, net_plain, 0, { .t = NULL }, 0 },
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_softmax, 0, { .t = NULL }, 0 },
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_ONE_HOT, net_softmax, 0, { .t = NULL }, 0 },
    { "ce", DT_CROSS_ENTROPY, LABELS, DT_TYPE_DEFAULT, net_plain, 1, { .t = NULL }, 0 },
    { "ce_smooth", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .label_smoothing = 0.1 }, 0 },
    { "ce_smooth", DT_CROSS_ENTROPY, LABELS, DT_ONE_HOT, net_plain, 0, { .label_smoothing = 0.1 }, 0 },
    { "ce_smooth", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_softmax, 0, { .label_smoothing = 0.1 }, 0 },
    { "ce_ignore_2", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .ignore_label = 2 }, 0 },
    { "ce_ignore_2", DT_CROSS_ENTROPY, LABELS, DT_UINT8, net_plain, 0, { .ignore_label = 2 }, 0 },
    { "ce_ignore_2", DT_CROSS_ENTROPY, LABELS, DT_FLOAT32, net_softmax, 0, { .ignore_label = 2 }, 0 },
    { "ce_ignore_0", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .ignore_label = DT_IGNORE_CLASS_0 }, 0 },
    { "ce_ignore_0", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 1, { .ignore_label = DT_IGNORE_CLASS_0 }, 0 },
    { "ce_class_weights", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .class_weights = golden_class_weights }, 0 },
    { "ce_class_weights", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_softmax, 1, { .class_weights = golden_class_weights }, 0 },
    { "ce_soft_class_weights", DT_CROSS_ENTROPY, SOFT, DT_ONE_HOT, net_plain, 0, { .class_weights = golden_class_weights }, 0 },
    { "ce_smooth_ignore_class_weights", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0,
      { .label_smoothing = 0.2, .ignore_label = 2, .class_weights = golden_class_weights }, 0 },
    { "ce_sample_weights", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .t = NULL }, 1 },
    { "ce_everything", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0,
      { .label_smoothing = 0.2, .ignore_label = 1, .class_weights = golden_class_weights }, 1 },
    { "ce_sum", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .reduction = DT_SUM }, 0 },
    { "ce_sum_class_weights", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 1, { .reduction = DT_SUM, .class_weights = golden_class_weights }, 0 },
    { "ce_sum_sample_weights", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .reduction = DT_SUM }, 1 },
    { "ce_soft", DT_CROSS_ENTROPY, SOFT, DT_ONE_HOT, net_plain, 0, { .t = NULL }, 0 },
    { "ce_soft", DT_CROSS_ENTROPY, SOFT, DT_ONE_HOT, net_softmax, 0, { .t = NULL }, 0 },
    { "ce_soft_smooth", DT_CROSS_ENTROPY, SOFT, DT_ONE_HOT, net_plain, 1, { .label_smoothing = 0.1 }, 0 },
    { "ce_soft_sample_weights", DT_CROSS_ENTROPY, SOFT, DT_ONE_HOT, net_plain, 0, { .t = NULL }, 1 },
    { "bce", DT_BINARY_CROSS_ENTROPY, BINARY, DT_TYPE_DEFAULT, net_plain, 0, { .t = NULL }, 0 },
    { "bce", DT_BINARY_CROSS_ENTROPY, BINARY, DT_INT32, net_plain, 0, { .t = NULL }, 0 },
    { "bce", DT_BINARY_CROSS_ENTROPY, BINARY, DT_UINT8, net_plain, 0, { .t = NULL }, 0 },
    { "bce", DT_BINARY_CROSS_ENTROPY, BINARY, DT_FLOAT32, net_sigmoid, 0, { .t = NULL }, 0 },
    { "bce", DT_BINARY_CROSS_ENTROPY, BINARY, DT_TYPE_DEFAULT, net_sigmoid, 1, { .t = NULL }, 0 },
    { "bce_sum", DT_BINARY_CROSS_ENTROPY, BINARY, DT_TYPE_DEFAULT, net_plain, 0, { .reduction = DT_SUM }, 0 },
    { "bce_sample_weights", DT_BINARY_CROSS_ENTROPY, BINARY, DT_TYPE_DEFAULT, net_plain, 0, { .t = NULL }, 1 },
    { "mse", DT_MSE, TARGETS, DT_TYPE_DEFAULT, net_plain, 0, { .t = NULL }, 0 },
    { "mse", DT_MSE, TARGETS, DT_FLOAT32, net_plain, 1, { .t = NULL }, 0 },
    { "mse_sum", DT_MSE, TARGETS, DT_FLOAT32, net_plain, 0, { .reduction = DT_SUM }, 0 },
    { "mse_sample_weights", DT_MSE, TARGETS, DT_FLOAT32, net_plain, 0, { .t = NULL }, 1 },
    { "mae", DT_MAE, TARGETS, DT_FLOAT32, net_plain, 0, { .t = NULL }, 0 },
    { "mae_sample_weights", DT_MAE, TARGETS, DT_FLOAT32, net_plain, 1, { .t = NULL }, 1 },
    { "huber", DT_HUBER, TARGETS, DT_FLOAT32, net_plain, 0, { .t = NULL }, 0 },
    { "huber_03", DT_HUBER, TARGETS, DT_FLOAT32, net_plain, 0, { .delta = 0.3 }, 0 },
    { "huber_sum", DT_HUBER, TARGETS, DT_FLOAT32, net_plain, 1, { .delta = 0.3, .reduction = DT_SUM }, 0 },
    { "tokens", DT_CROSS_ENTROPY, TOKENS, DT_TYPE_DEFAULT, net_plain, 0, { .t = NULL }, 0 },
    { "tokens", DT_CROSS_ENTROPY, TOKENS, DT_ONE_HOT, net_plain, 0, { .t = NULL }, 0 },
    { "tokens", DT_CROSS_ENTROPY, TOKENS, DT_INT32, net_softmax, 0, { .t = NULL }, 0 },
    { "tokens_smooth", DT_CROSS_ENTROPY, TOKENS, DT_INT32, net_plain, 0, { .label_smoothing = 0.1 }, 0 },
    { "tokens_ignore_4", DT_CROSS_ENTROPY, TOKENS, DT_INT32, net_plain, 0, { .ignore_label = 4 }, 0 },
    { "tokens_class_weights", DT_CROSS_ENTROPY, TOKENS, DT_INT32, net_plain, 0, { .class_weights = golden_class_weights }, 0 },
    { "tokens_sample_weights", DT_CROSS_ENTROPY, TOKENS, DT_INT32, net_plain, 0, { .ignore_label = 4 }, 1 },
    { "tokens_sum", DT_CROSS_ENTROPY, TOKENS, DT_INT32, net_plain, 1, { .reduction = DT_SUM }, 0 },
    { "tokens_mse", DT_MSE, TOKEN_TARGETS, DT_FLOAT32, net_plain, 0, { .t = NULL }, 0 },
    { "tokens_mse_sum", DT_MSE, TOKEN_TARGETS, DT_FLOAT32, net_plain, 1, { .reduction = DT_SUM }, 0 },
};

static dt_tensor *net_by_hand(dt_tensor *x, void *user) {
    const loss_case *c = (const loss_case *)user;
    dt_loss_options o = c->o;
    o.t = c->net(x, NULL);
    o.kind = c->loss;
    o.label_type = c->label_type;
    return dt_loss_opt(o);
}

/* The labels of a case in its type: the bytes of every kind start at buffer. */
static const void *labels_as(const loss_case *c, float *buffer) {
    const float *values = c->labels == TARGETS ? golden_targets : c->labels == BINARY ? golden_binary : c->labels == SOFT ? golden_soft : golden_token_targets;
    const int whole = c->labels == LABELS || c->labels == TOKENS, tokens = c->labels == TOKENS;
    const int *numbers = tokens ? golden_token_labels : golden_labels;
    const int n = tokens ? GOLDEN_TOKEN_N * GOLDEN_T : whole ? GOLDEN_N : c->labels == TOKEN_TARGETS ? GOLDEN_TOKEN_N * GOLDEN_T * GOLDEN_C : GOLDEN_N * GOLDEN_C;
    const dt_type type = c->label_type != DT_TYPE_DEFAULT ? c->label_type : c->loss == DT_CROSS_ENTROPY ? DT_INT32 : DT_FLOAT32;
    memset(buffer, 0, 64 * sizeof *buffer);
    for (int i = 0; i < n; i++) {
        const double v = whole ? numbers[i] : values[i];
        if (type == DT_INT32) ((int *)(void *)buffer)[i] = (int)v;
        else if (type == DT_UINT8) ((unsigned char *)buffer)[i] = (unsigned char)v;
        else if (type == DT_ONE_HOT && whole) buffer[i * GOLDEN_C + numbers[i]] = 1;
        else buffer[i] = (float)v;
    }
    return buffer;
}

static dt_model *loss_model(const loss_case *c, int replicas, int accumulate) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    const int tokens = c->labels == TOKENS || c->labels == TOKEN_TARGETS;
    o.net = c->by_hand ? net_by_hand : c->net;
    o.user = (void *)(uintptr_t)c;
    o.input[0] = tokens ? GOLDEN_T : GOLDEN_C;
    if (tokens) o.input[1] = GOLDEN_C;
    if (!c->by_hand) {
        o.loss = c->loss;
        o.label_type = c->label_type;
        o.reduction = c->o.reduction;
        o.label_smoothing = c->o.label_smoothing;
        o.ignore_label = c->o.ignore_label;
        o.class_weights = c->o.class_weights;
        o.delta = c->o.delta;
    }
    o.input_gradient = 1;
    o.batch = GOLDEN_N;
    o.replicas = replicas;
    o.accumulate = accumulate;
    o.optimizer = DT_SGD;
    o.learning_rate = 1;
    dt_model *m = dt_model_create(&o, &err);
    if (m) write_identity(m, GOLDEN_C, &err);
    CHECK_MSG(m != NULL && !err.code, "%s, label type %d%s: %s", c->golden, (int)c->label_type, c->by_hand ? ", dt_loss" : "", err.text);
    return m;
}

static void check_bias(dt_model *m, const char *name, const double *gradient, int rows) {
    float bias[GOLDEN_C];
    dt_error err = DT_DEFAULTS;
    CHECK_MSG(dt_parameter_read(m, "same.bias", bias, GOLDEN_C, &err) == 0, "%s", err.text);
    for (int k = 0; k < GOLDEN_C; k++) {
        double sum = 0;
        for (int r = 0; r < rows; r++) sum += gradient[r * GOLDEN_C + k];
        CHECK_MSG(fabs(-bias[k] - sum) <= 2e-6 * (1 + fabs(sum)), "%s: bias %d moved by %.8g, expected %.8g", name, k, -bias[k], sum);
    }
}

static void check_loss(const loss_case *c, int replicas) {
    const int g = golden_index(c->golden), tokens = c->labels == TOKENS || c->labels == TOKEN_TARGETS;
    const int rows = tokens ? GOLDEN_TOKEN_N * GOLDEN_T : GOLDEN_N;
    char name[96];
    float labels[64], gradient[64];
    dt_error err = DT_DEFAULTS;
    dt_batch batch = DT_DEFAULTS;
    snprintf(name, sizeof name, "%s, type %d%s, %d replicas", c->golden, (int)c->label_type,
             c->net == net_softmax ? " on softmax" : c->net == net_sigmoid ? " on sigmoid" : "", replicas);
    dt_model *m = loss_model(c, replicas, 1);
    if (!m) return;
    batch.x[0] = tokens ? golden_token_logits : golden_logits;
    batch.y[0] = labels_as(c, labels);
    batch.weight = !c->weighted ? NULL : tokens ? golden_token_weights : golden_sample_weights;
    batch.n = tokens ? GOLDEN_TOKEN_N : GOLDEN_N;
    const double loss = dt_forward(m, &batch, &err);
    CHECK_MSG(fabs(loss - golden_loss[g].loss) <= 2e-6 * (1 + golden_loss[g].loss), "%s: loss %.8g, expected %.8g; %s", name, loss, golden_loss[g].loss, err.text);
    dt_backward(m, &err);
    CHECK_MSG(dt_input_gradient_read(m, gradient, &err) == 0, "%s: %s", name, err.text);
    for (int i = 0; i < rows * GOLDEN_C; i++) {
        const double expected = golden_loss[g].gradient[i] * golden_loss[g].weight;
        if (!(fabs(gradient[i] - expected) <= 2e-6 * (1 + fabs(expected)))) {
            CHECK_MSG(0, "%s: gradient %d is %.8g, expected %.8g", name, i, gradient[i], expected);
            break;
        }
    }
    CHECK_MSG(dt_update(m, &err) == 0, "%s: %s", name, err.text);
    check_bias(m, name, golden_loss[g].gradient, rows);
    dt_model_free(m);

    /* dt_step is all of that, also in parts */
    for (int accumulate = 1; accumulate <= 3; accumulate += 2) {
        m = loss_model(c, replicas, accumulate);
        if (!m) return;
        err.code = 0;
        const double step_loss = dt_step_batch(m, &batch, &err);
        snprintf(name + strlen(name), 3, "/%d", accumulate);
        CHECK_MSG(fabs(step_loss - golden_loss[g].loss) <= 2e-6 * (1 + golden_loss[g].loss), "%s: step's loss %.8g, expected %.8g; %s", name, step_loss, golden_loss[g].loss, err.text);
        check_bias(m, name, golden_loss[g].gradient, rows);
        dt_model_free(m);
    }
}

static void test_losses_as_pytorch(void) {
    int used[COUNT(golden_loss)] = { 0 };
    for (int i = 0; i < COUNT(loss_cases); i++) {
        for (int replicas = 1; replicas <= 3; replicas++) check_loss(&loss_cases[i], replicas);
        used[golden_index(loss_cases[i].golden)] = 1;
    }
    for (int i = 0; i < COUNT(golden_loss); i++) CHECK_MSG(used[i], "golden row %s is not tested", golden_loss[i].name);
}

/* ---- extremes ------------------------------------------------------------------------------------ */

/* Losses of confident, wrong predictions are large but finite, and so are their gradients. */
static void test_extreme_logits(void) {
    static const struct { const char *name; dt_loss_kind loss; dt_tensor *(*net)(dt_tensor *, void *); float x[2], y[2]; double expected, tolerance; } row[] = {
        { "ce, wrong by 200",      DT_CROSS_ENTROPY, net_plain, { 100, -100 }, { 0, 1 }, 200, 1e-6 },
        { "ce, right by 200",      DT_CROSS_ENTROPY, net_plain, { 100, -100 }, { 1, 0 }, 0, 1e-6 },
        { "ce at 10000",           DT_CROSS_ENTROPY, net_plain, { 10000, 10000 }, { 1, 0 }, 0.69314718, 1e-6 },
        { "ce on softmax",         DT_CROSS_ENTROPY, net_softmax, { 5, -5 }, { 0, 1 }, 10.0000454, 1e-5 },
        { "bce, wrong by 200",     DT_BINARY_CROSS_ENTROPY, net_plain, { 200, -200 }, { 0, 1 }, 200, 1e-6 },
        { "bce, right by 200",     DT_BINARY_CROSS_ENTROPY, net_plain, { 200, -200 }, { 1, 0 }, 0, 1e-6 },
        { "bce on sigmoid",        DT_BINARY_CROSS_ENTROPY, net_sigmoid, { 4, -4 }, { 0, 1 }, 4.01814993, 1e-5 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = row[i].net;
        o.input[0] = 2;
        o.batch = 1;
        o.loss = row[i].loss;
        o.label_type = row[i].loss == DT_CROSS_ENTROPY ? DT_ONE_HOT : DT_FLOAT32;
        o.learning_rate = 1e-3;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) continue;
        write_identity(m, 2, &err);
        CHECK_MSG(fabs(dt_step(m, row[i].x, row[i].y, 1, &err) - row[i].expected) <= row[i].tolerance * (1 + row[i].expected), "%s", row[i].name);
        CHECK_OK(err);
        dt_model_free(m);
    }
    /* A softmax that has underflowed to 0 gives a large, finite loss and no NaN. */
    static const float x[] = { 300, -300 };
    static const int y[] = { 1 };
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = net_softmax;
    o.input[0] = 2;
    o.batch = 1;
    o.loss = DT_CROSS_ENTROPY;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    if (!m) return;
    write_identity(m, 2, &err);
    const double loss = dt_step(m, x, y, 1, &err);
    CHECK_MSG(isfinite(loss) && loss > 15, "loss %g: %s", loss, err.text);
    dt_model_free(m);
}

/* Where every label is ignored, or every weight is 0, the loss is 0 and nothing moves. */
static void test_nothing_counts(void) {
    static const int labels[GOLDEN_N] = { 2, 2, 2, 2, 2, 2 };
    static const float zero[GOLDEN_N] = { 0 };
    static const double still[GOLDEN_N * GOLDEN_C] = { 0 };
    for (int i = 0; i < 4; i++) {
        const loss_case c = { "nothing counts", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .ignore_label = i < 2 ? 2 : 0 }, 0 };
        dt_error err = DT_DEFAULTS;
        dt_batch batch = DT_DEFAULTS;
        dt_model *m = loss_model(&c, 1 + i % 2, 1);
        if (!m) return;
        batch.x[0] = golden_logits;
        batch.y[0] = labels;
        batch.weight = i < 2 ? NULL : zero;
        batch.n = GOLDEN_N;
        CHECK_NEAR(dt_step_batch(m, &batch, &err), 0, 0);
        CHECK_OK(err);
        check_bias(m, "nothing counts", still, GOLDEN_N);
        dt_model_free(m);
    }
}

/* ---- DT_VALUE, targets in the graph, several losses ------------------------------------------------ */

static dt_tensor *net_value(dt_tensor *x, void *user) { (void)user; return dt_mul(same(x), x); }

static void test_value_loss(void) {
    static const float weights[GOLDEN_N] = { 1, 0.5f, 0, 2, 1, 0.25f };
    for (int i = 0; i < 8; i++) {
        const int weighted = i & 1, sum = i >> 1 & 1, replicas = i & 4 ? 3 : 1;
        const loss_case c = { "value", DT_VALUE, TARGETS, DT_TYPE_DEFAULT, net_value, 0, { .reduction = sum ? DT_SUM : DT_MEAN }, weighted };
        double loss = 0, total = 0, gradient[GOLDEN_N * GOLDEN_C];
        dt_error err = DT_DEFAULTS;
        dt_batch batch = DT_DEFAULTS;
        dt_model *m = loss_model(&c, replicas, 1);
        if (!m) return;
        for (int r = 0; r < GOLDEN_N; r++) {
            const double w = weighted ? weights[r] : 1;
            for (int k = 0; k < GOLDEN_C; k++) {
                const double v = golden_logits[r * GOLDEN_C + k];
                loss += w * v * v;
                gradient[r * GOLDEN_C + k] = w * v;
            }
            total += w;
        }
        if (sum) total = 1;
        for (int k = 0; k < GOLDEN_N * GOLDEN_C; k++) gradient[k] /= total;
        batch.x[0] = golden_logits;
        batch.weight = weighted ? weights : NULL;
        batch.n = GOLDEN_N;
        CHECK_NEAR(dt_step_batch(m, &batch, &err), loss / total, 2e-6);
        CHECK_OK(err);
        check_bias(m, "value", gradient, GOLDEN_N);
        dt_model_free(m);
    }
}

/* A target is taken as it is: nothing flows into it. */
static dt_tensor *net_target_mse(dt_tensor *x, void *user) { (void)user; return dt_loss(same(x), DT_MSE, .target = dt_scale(x, 2, 1)); }
static dt_tensor *net_target_own(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *h = same(x);
    return dt_loss(h, DT_MSE, .target = dt_scale(h, 2, 1));
}
static dt_tensor *net_target_soft(dt_tensor *x, void *user) { (void)user; return dt_loss(same(x), DT_CROSS_ENTROPY, .target = dt_softmax(dt_scale(x, -0.5, 0))); }

static void softmax_of(const double *x, double *p, int n) {
    double sum = 0;
    for (int k = 0; k < n; k++) sum += exp(x[k]);
    for (int k = 0; k < n; k++) p[k] = exp(x[k]) / sum;
}

static void test_targets_in_the_graph(void) {
    static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); } row[] = {
        { "mse against an input", net_target_mse },  { "mse against its own tensor", net_target_own },  { "soft targets", net_target_soft },
    };
    for (int i = 0; i < 2 * COUNT(row); i++) {
        const loss_case c = { row[i / 2].name, DT_NO_LOSS, TARGETS, DT_TYPE_DEFAULT, row[i / 2].net, 0, { .t = NULL }, 0 };
        double loss = 0, gradient[GOLDEN_N * GOLDEN_C];
        float read[GOLDEN_N * GOLDEN_C];
        dt_error err = DT_DEFAULTS;
        dt_batch batch = DT_DEFAULTS;
        dt_model *m = loss_model(&c, 1 + i % 2 * 2, 1);
        if (!m) return;
        for (int r = 0; r < GOLDEN_N; r++) {
            double x[GOLDEN_C], half[GOLDEN_C], p[GOLDEN_C], t[GOLDEN_C];
            for (int k = 0; k < GOLDEN_C; k++) {
                x[k] = golden_logits[r * GOLDEN_C + k];
                half[k] = -0.5 * x[k];
            }
            softmax_of(x, p, GOLDEN_C);
            softmax_of(half, t, GOLDEN_C);
            for (int k = 0; k < GOLDEN_C; k++) {
                const double d = x[k] - (2 * x[k] + 1);
                loss += c.net == net_target_soft ? -t[k] * log(p[k]) / GOLDEN_N : d * d / (GOLDEN_N * GOLDEN_C);
                gradient[r * GOLDEN_C + k] = c.net == net_target_soft ? (p[k] - t[k]) / GOLDEN_N : 2 * d / (GOLDEN_N * GOLDEN_C);
            }
        }
        batch.x[0] = golden_logits;
        batch.n = GOLDEN_N;
        CHECK_NEAR(dt_forward(m, &batch, &err), loss, 3e-6);
        dt_backward(m, &err);
        dt_input_gradient_read(m, read, &err);
        for (int k = 0; k < GOLDEN_N * GOLDEN_C; k++)
            if (fabs(read[k] / GOLDEN_N - gradient[k]) > 2e-6) { CHECK_MSG(0, "%s: gradient %d: %g, expected %g", c.golden, k, read[k] / GOLDEN_N, gradient[k]); break; }
        dt_update(m, &err);
        CHECK_OK(err);
        check_bias(m, c.golden, gradient, GOLDEN_N);
        dt_model_free(m);
    }
}

/* The loss of the options reads y[0]; the others follow by name, whatever the order of the calls. Each is
 * divided by its own sum of weights: here six samples, four labels, and nothing at all. */
typedef struct { dt_reduction first; dt_reduction second; int reverse; } mix;
static dt_tensor *net_mixed(dt_tensor *x, void *user) {
    const mix *c = (const mix *)user;
    dt_tensor *h = same(x);
    for (int i = 0; i < 2; i++) {
        if (i != c->reverse) dt_loss(h, DT_HUBER, .name = "a", .weight = 2, .delta = 0.3, .reduction = c->first);
        else dt_loss(h, DT_MSE, .name = "b", .weight = 0.5, .reduction = c->second);
    }
    dt_loss(dt_mul(h, h), DT_VALUE, .name = "c", .weight = 0.125);
    return h;
}

static void test_several_losses(void) {
    static const mix mixes[] = { { DT_MEAN, DT_MEAN, 0 }, { DT_MEAN, DT_MEAN, 1 }, { DT_SUM, DT_MEAN, 0 }, { DT_MEAN, DT_SUM, 1 }, { DT_SUM, DT_SUM, 0 } };
    const int ce = golden_index("ce_ignore_2"), huber = golden_index("huber_03"), huber_sum = golden_index("huber_sum");
    float opposite[GOLDEN_N * GOLDEN_C];
    for (int k = 0; k < GOLDEN_N * GOLDEN_C; k++) opposite[k] = -golden_targets[k];
    for (int i = 0; i < COUNT(mixes); i++)
        for (int replicas = 1; replicas <= 3; replicas++)
            for (int accumulate = 1; accumulate <= 3; accumulate++) {
                const int a = mixes[i].first == DT_SUM ? huber_sum : huber;
                const double divisor = mixes[i].second == DT_SUM ? 1 : GOLDEN_N * GOLDEN_C;
                double gradient[GOLDEN_N * GOLDEN_C], loss = golden_loss[ce].loss + 2 * golden_loss[a].loss;
                for (int k = 0; k < GOLDEN_N * GOLDEN_C; k++) {
                    const double v = golden_logits[k], d = v - opposite[k];
                    loss += 0.5 * d * d / divisor + 0.125 * v * v / GOLDEN_N;
                    gradient[k] = golden_loss[ce].gradient[k] + 2 * golden_loss[a].gradient[k] + 0.5 * 2 * d / divisor + 0.125 * 2 * v / GOLDEN_N;
                }
                dt_error err = DT_DEFAULTS;
                dt_options o = DT_DEFAULTS;
                dt_batch batch = DT_DEFAULTS;
                o.net = net_mixed;
                o.user = (void *)(uintptr_t)&mixes[i];
                o.input[0] = GOLDEN_C;
                o.loss = DT_CROSS_ENTROPY;
                o.ignore_label = 2;
                o.batch = GOLDEN_N;
                o.replicas = replicas;
                o.accumulate = accumulate;
                o.learning_rate = 1;
                dt_model *m = dt_model_create(&o, &err);
                CHECK_MSG(m != NULL, "%s", err.text);
                if (!m) return;
                write_identity(m, GOLDEN_C, &err);
                batch.x[0] = golden_logits;
                batch.y[0] = golden_labels;
                batch.y[1] = golden_targets;
                batch.y[2] = opposite;
                batch.n = GOLDEN_N;
                const double got = dt_step_batch(m, &batch, &err);
                CHECK_MSG(fabs(got - loss) <= 3e-6 * loss, "mix %d, %d replicas, %d parts: %.8g, expected %.8g; %s", i, replicas, accumulate, got, loss, err.text);
                check_bias(m, "several losses", gradient, GOLDEN_N);
                dt_model_free(m);
            }
}

/* ---- labels that do not fit -------------------------------------------------------------------------- */

static void test_bad_labels(void) {
    static const struct { const char *name; dt_type type; double label; int ignore; int code; const char *value, *range; } row[] = {
        { "one too many",        DT_INT32,   5,   0, DT_ERR_ARGUMENT, "5",   "4" },
        { "negative",            DT_INT32,   -1,  0, DT_ERR_ARGUMENT, "-1",  "4" },
        { "huge",                DT_INT32,   2147483647, 0, DT_ERR_ARGUMENT, "2147483647", "4" },
        { "byte",                DT_UINT8,   200, 0, DT_ERR_ARGUMENT, "200", "4" },
        { "float",               DT_FLOAT32, 17,  0, DT_ERR_ARGUMENT, "17",  "4" },
        { "ignored",             DT_INT32,   255, 255, DT_OK, "", "" },
        { "ignored, negative",   DT_INT32,   -100, -100, DT_OK, "", "" },
        { "not the ignored one", DT_INT32,   254, 255, DT_ERR_ARGUMENT, "254", "4" },
    };
    for (int i = 0; i < 2 * COUNT(row); i++) {
        const loss_case c = { row[i / 2].name, DT_CROSS_ENTROPY, LABELS, row[i / 2].type, net_plain, 0, { .ignore_label = row[i / 2].ignore }, 0 };
        float labels[64];
        dt_error err = DT_DEFAULTS;
        dt_model *m = loss_model(&c, 1 + i % 2, 1);
        if (!m) return;
        labels_as(&c, labels);
        if (c.label_type == DT_INT32) ((int *)(void *)labels)[4] = (int)row[i / 2].label;
        else if (c.label_type == DT_UINT8) ((unsigned char *)labels)[4] = (unsigned char)row[i / 2].label;
        else labels[4] = (float)row[i / 2].label;
        const uint32_t before = dt_parameters_crc32c(m);
        const float loss = dt_step(m, golden_logits, labels, GOLDEN_N, &err);
        if (row[i / 2].code) {
            CHECK_MSG(isnan(loss), "%s", c.golden);
            CHECK_ERROR(err, row[i / 2].code, row[i / 2].value);
            CHECK_ERROR(err, row[i / 2].code, row[i / 2].range);
            CHECK(dt_parameters_crc32c(m) == before);
        } else {
            CHECK_MSG(isfinite(loss), "%s: %s", c.golden, err.text);
        }
        dt_metrics metrics = DT_DEFAULTS;
        const dt_source s = dt_arrays(golden_logits, DT_FLOAT32, labels, c.label_type, GOLDEN_N);
        err.code = 0;
        dt_evaluate(m, &s, &metrics, &err);
        CHECK_ERROR(err, row[i / 2].code, row[i / 2].value);
        /* the model still works */
        err.code = 0;
        labels_as(&c, labels);
        CHECK_MSG(isfinite(dt_step(m, golden_logits, labels, GOLDEN_N, &err)), "%s: %s", c.golden, err.text);
        dt_model_free(m);
    }
    /* the message leads to the option that helps those who have another type of labels */
    const loss_case c = { "hint", DT_CROSS_ENTROPY, LABELS, DT_INT32, net_plain, 0, { .t = NULL }, 0 };
    dt_error err = DT_DEFAULTS;
    dt_model *m = loss_model(&c, 1, 1);
    if (!m) return;
    float one_hot[GOLDEN_N * GOLDEN_C] = { 0 };
    for (int r = 0; r < GOLDEN_N; r++) one_hot[r * GOLDEN_C + golden_labels[r]] = 1;
    CHECK(isnan(dt_step(m, golden_logits, one_hot, GOLDEN_N, &err)));
    CHECK_ERROR(err, DT_ERR_ARGUMENT, ".label_type");
    err.code = 0;
    CHECK(isnan(dt_step(m, golden_logits, NULL, GOLDEN_N, &err)) && err.code != 0);  /* labels are needed */
    dt_model_free(m);
}

/* ---- metrics ------------------------------------------------------------------------------------------ */

enum { SAMPLES = 37, CLASSES = 5 };

static void test_metrics(void) {
    float x[SAMPLES * CLASSES];
    int labels[SAMPLES];
    random_state = 11;
    for (int i = 0; i < SAMPLES * CLASSES; i++) x[i] = (float)(2 * uniform());
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = i % 4;  /* class 4 never occurs */
        if (i % 3) x[i * CLASSES + labels[i]] += 1.5f;
        x[i * CLASSES + 3] -= 8;  /* class 3 is never predicted */
    }
    for (int i = 0; i < 12; i++) {
        const int ignore = i % 3 == 2 ? 2 : 0, replicas = 1 + i % 2 * 2, top_k = i % 3 == 1 ? 2 : i % 3 == 2 ? 3 : 1;
        const dt_type type = i >= 9 ? DT_UINT8 : DT_INT32;
        const loss_case c = { "metrics", DT_CROSS_ENTROPY, LABELS, type, i >= 6 ? net_softmax : net_plain, 0, { .ignore_label = ignore }, 0 };
        long confusion[CLASSES * CLASSES] = { 0 }, expected[CLASSES * CLASSES] = { 0 };
        double loss = 0, right = 0, among = 0;
        unsigned char bytes[SAMPLES];
        long n = 0;
        for (int s = 0; s < SAMPLES; s++) {
            const float *row = &x[s * CLASSES];
            double sum = 0;
            int best = 0, above = 0;
            bytes[s] = (unsigned char)labels[s];
            if (ignore && labels[s] == ignore) continue;
            for (int k = 0; k < CLASSES; k++) {
                sum += exp(row[k]);
                if (row[k] > row[best]) best = k;
                above += row[k] > row[labels[s]];
            }
            loss += log(sum) - row[labels[s]];
            right += best == labels[s];
            among += above < top_k;
            expected[labels[s] * CLASSES + best]++;
            n++;
        }
        confusion[3] = 1000;  /* counts are added */
        expected[3] += 1000;
        dt_error err = DT_DEFAULTS;
        dt_metrics got = DT_DEFAULTS;
        dt_model *m = loss_model(&c, replicas, 1);
        if (!m) return;
        got.top_k = top_k;
        got.confusion = confusion;
        const dt_source source = dt_arrays(x, DT_FLOAT32, type == DT_UINT8 ? (const void *)bytes : labels, type, SAMPLES);
        const uint32_t before = dt_parameters_crc32c(m);
        CHECK_MSG(dt_evaluate(m, &source, &got, &err) == 0, "%s", err.text);
        CHECK_MSG(got.n == n, "%ld labels counted, expected %ld", got.n, n);
        CHECK(got.classes == CLASSES);
        CHECK_NEAR(got.loss, loss / (double)n, 2e-6);
        CHECK_NEAR(got.accuracy, right / (double)n, 1e-9);
        CHECK_NEAR(got.top_k_accuracy, among / (double)n, 1e-7);
        for (int k = 0; k < CLASSES * CLASSES; k++)
            CHECK_MSG(confusion[k] == expected[k], "label %d predicted as %d: %ld times, expected %ld", k / CLASSES, k % CLASSES, confusion[k], expected[k]);
        CHECK(dt_parameters_crc32c(m) == before && dt_model_step(m) == 0);
        confusion[3] -= 1000;
        for (int k = 0; k < CLASSES; k++) {
            double predicted = 0, present = 0;
            for (int j = 0; j < CLASSES; j++) {
                predicted += (double)confusion[j * CLASSES + k];
                present += (double)confusion[k * CLASSES + j];
            }
            const double precision = dt_precision(&got, k), recall = dt_recall(&got, k);
            if (predicted > 0) CHECK_NEAR(precision, (double)confusion[k * CLASSES + k] / predicted, 1e-12);
            else CHECK(isnan(precision));
            if (present > 0) CHECK_NEAR(recall, (double)confusion[k * CLASSES + k] / present, 1e-12);
            else CHECK(isnan(recall));
        }
        CHECK(isnan(dt_precision(&got, 3)));  /* never predicted */
        CHECK(isnan(dt_recall(&got, 4)));     /* never present */
        CHECK(isnan(dt_precision(&got, -1)) && isnan(dt_recall(&got, CLASSES)) && isnan(dt_recall(NULL, 0)));
        dt_model_free(m);
    }
}

/* By default the fifth place still counts; with one-hot labels the largest is the label. */
static void test_metrics_defaults(void) {
    enum { N = 23, WIDE = 8 };
    float x[N * WIDE], y[N * WIDE] = { 0 };
    double right = 0, among = 0;
    random_state = 21;
    for (int i = 0; i < N * WIDE; i++) x[i] = (float)uniform();
    for (int i = 0; i < N; i++) {
        int above = 0;
        y[i * WIDE + i % WIDE] = 1;
        for (int k = 0; k < WIDE; k++) above += x[i * WIDE + k] > x[i * WIDE + i % WIDE];
        right += above == 0;
        among += above < 5;
    }
    CHECK(among > right && among < N);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    dt_metrics got = DT_DEFAULTS;
    o.net = net_plain;
    o.input[0] = WIDE;
    o.loss = DT_CROSS_ENTROPY;
    o.label_type = DT_ONE_HOT;
    o.batch = 10;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_MSG(m != NULL, "%s", err.text);
    if (!m) return;
    write_identity(m, WIDE, &err);
    const dt_source source = dt_arrays(x, DT_FLOAT32, y, DT_ONE_HOT, N);
    CHECK_MSG(dt_evaluate(m, &source, &got, &err) == 0, "%s", err.text);
    CHECK(got.n == N && got.classes == WIDE);
    CHECK_NEAR(got.accuracy, right / N, 1e-9);
    CHECK_NEAR(got.top_k_accuracy, among / N, 1e-7);
    dt_model_free(m);
}

static void test_metrics_of_tokens(void) {
    const loss_case c = { "tokens", DT_CROSS_ENTROPY, TOKENS, DT_INT32, net_plain, 0, { .ignore_label = 4 }, 0 };
    double right = 0, n = 0;
    for (int r = 0; r < GOLDEN_TOKEN_N * GOLDEN_T; r++) {
        int best = 0;
        for (int k = 1; k < GOLDEN_C; k++) if (golden_token_logits[r * GOLDEN_C + k] > golden_token_logits[r * GOLDEN_C + best]) best = k;
        if (golden_token_labels[r] == 4) continue;
        right += best == golden_token_labels[r];
        n++;
    }
    dt_error err = DT_DEFAULTS;
    dt_metrics got = DT_DEFAULTS;
    dt_model *m = loss_model(&c, 2, 1);
    if (!m) return;
    const dt_source source = dt_arrays(golden_token_logits, DT_FLOAT32, golden_token_labels, DT_INT32, GOLDEN_TOKEN_N);
    CHECK_MSG(dt_evaluate(m, &source, &got, &err) == 0, "%s", err.text);
    CHECK(got.n == (long)n);
    CHECK_NEAR(got.accuracy, right / n, 1e-9);
    CHECK_NEAR(got.loss, golden_loss[golden_index("tokens_ignore_4")].loss, 2e-6);
    dt_model_free(m);
}

/* Binary cross-entropy counts an output as right if it is on the label's side of a half; a regression has
 * no accuracy. */
static void test_metrics_of_other_losses(void) {
    static const struct { dt_loss_kind loss; dt_tensor *(*net)(dt_tensor *, void *); const float *y; int has_accuracy; const char *golden; } row[] = {
        { DT_BINARY_CROSS_ENTROPY, net_plain,   golden_binary,  1, "bce" },
        { DT_BINARY_CROSS_ENTROPY, net_sigmoid, golden_binary,  1, "bce" },
        { DT_MSE,                  net_plain,   golden_targets, 0, "mse" },
        { DT_MAE,                  net_plain,   golden_targets, 0, "mae" },
    };
    for (int i = 0; i < COUNT(row); i++) {
        const loss_case c = { row[i].golden, row[i].loss, TARGETS, DT_FLOAT32, row[i].net, 0, { .t = NULL }, 0 };
        double right = 0;
        for (int k = 0; k < GOLDEN_N * GOLDEN_C; k++) right += (golden_logits[k] > 0) == (golden_binary[k] > 0.5f);
        dt_error err = DT_DEFAULTS;
        dt_metrics got = DT_DEFAULTS;
        dt_model *m = loss_model(&c, 1 + i % 2, 1);
        if (!m) return;
        const dt_source source = dt_arrays(golden_logits, DT_FLOAT32, row[i].y, DT_FLOAT32, GOLDEN_N);
        CHECK_MSG(dt_evaluate(m, &source, &got, &err) == 0, "%s", err.text);
        CHECK_NEAR(got.loss, golden_loss[golden_index(row[i].golden)].loss, 2e-6);
        if (row[i].has_accuracy) CHECK_NEAR(got.accuracy, right / (GOLDEN_N * GOLDEN_C), 1e-9);
        else CHECK(isnan(got.accuracy));
        CHECK(isnan(got.top_k_accuracy));
        dt_model_free(m);
    }
}

/* The loss is the mean over all samples, not the mean of the batches' means. */
static void test_evaluation_in_batches(void) {
    const double expected = golden_loss[golden_index("mse")].loss;
    static const int batches[] = { 1, 2, 4, 5, 6, 32 };
    for (int i = 0; i < COUNT(batches); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        dt_metrics got = DT_DEFAULTS;
        o.net = net_plain;
        o.input[0] = GOLDEN_C;
        o.loss = DT_MSE;
        o.batch = batches[i];
        o.replicas = 1;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m != NULL, "%s", err.text);
        if (!m) return;
        write_identity(m, GOLDEN_C, &err);
        const dt_source source = dt_arrays(golden_logits, DT_FLOAT32, golden_targets, DT_FLOAT32, GOLDEN_N);
        CHECK_MSG(dt_evaluate(m, &source, &got, &err) == 0, "%s", err.text);
        CHECK_NEAR(got.loss, expected, 2e-6);
        CHECK(got.n == GOLDEN_N || got.n == GOLDEN_N * GOLDEN_C);
        dt_model_free(m);
    }
}

/* ---- options that make no sense ------------------------------------------------------------------------ */

static dt_tensor *net_bad_target(dt_tensor *x, void *user) { (void)user; return dt_loss(same(x), DT_MSE, .target = dt_dense(x, 3), .name = "gap"); }
static dt_tensor *net_two_unnamed(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *h = same(x);
    dt_loss(h, DT_MSE, .target = x);
    return dt_loss(h, DT_MAE, .target = x);
}
static dt_tensor *net_bad_smoothing(dt_tensor *x, void *user) { (void)user; return dt_loss(same(x), DT_CROSS_ENTROPY, .label_smoothing = 1.5, .name = "gap"); }
static dt_tensor *net_bad_delta(dt_tensor *x, void *user) { (void)user; return dt_loss(same(x), DT_HUBER, .delta = -1, .name = "gap"); }
static dt_tensor *net_bad_kind(dt_tensor *x, void *user) { (void)user; return dt_loss(same(x), (dt_loss_kind)77, .name = "gap"); }

static void test_bad_losses(void) {
    static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); int loss; double smoothing, delta; const char *fragment, *more; } row[] = {
        { "target of another shape", net_bad_target,    DT_NO_LOSS, 0, 0, "gap", "3" },
        { "two losses, no names",    net_two_unnamed,   DT_NO_LOSS, 0, 0, "name", "loss" },
        { "smoothing above 1",       net_bad_smoothing, DT_NO_LOSS, 0, 0, "gap", "1.5" },
        { "negative delta",          net_bad_delta,     DT_NO_LOSS, 0, 0, "gap", "-1" },
        { "unknown loss",            net_bad_kind,      DT_NO_LOSS, 0, 0, "gap", "77" },
        { "unknown loss in options", net_plain,         55,         0, 0, "55", "" },
        { "smoothing in options",    net_plain,         DT_CROSS_ENTROPY, -0.5, 0, "label_smoothing", "-0.5" },
        { "smoothing not a number",  net_plain,         DT_CROSS_ENTROPY, NAN, 0, "label_smoothing", "" },
        { "delta in options",        net_plain,         DT_HUBER,   0, -2, "delta", "-2" },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = row[i].net;
        o.input[0] = GOLDEN_C;
        o.batch = 2;
        o.loss = (dt_loss_kind)row[i].loss;
        o.label_smoothing = row[i].smoothing;
        o.delta = row[i].delta;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(m == NULL, "%s is accepted", row[i].name);
        CHECK_MSG((err.code == DT_ERR_ARGUMENT || err.code == DT_ERR_SHAPE) && strstr(err.text, row[i].fragment) && strstr(err.text, row[i].more),
                  "%s: code %d \"%s\", expected \"%s\" and \"%s\"", row[i].name, err.code, err.text, row[i].fragment, row[i].more);
        dt_model_free(m);
    }
}

int main(void) {
    RUN(test_losses_as_pytorch);
    RUN(test_extreme_logits);
    RUN(test_nothing_counts);
    RUN(test_value_loss);
    RUN(test_targets_in_the_graph);
    RUN(test_several_losses);
    RUN(test_bad_labels);
    RUN(test_metrics);
    RUN(test_metrics_defaults);
    RUN(test_metrics_of_tokens);
    RUN(test_metrics_of_other_losses);
    RUN(test_evaluation_in_batches);
    RUN(test_bad_losses);
    return finish();
}
