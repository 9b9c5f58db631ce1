/* exchange.c - the nets of models.py in dtrain, driven by exchange.py
 *
 *   exchange NET ACTION…    one after another, on one model:
 *     --load FILE           strict; or as the flags before it say: --partial, --glob GLOB, --prefix TEXT (the
 *                           file's names begin with it), --without TEXT (parameters whose names begin so are
 *                           not asked for). Prints "loaded missing unexpected misshaped" as four numbers.
 *     --train STEPS         on noise
 *     --save FILE
 *     --dump FILE           all parameters as dt_parameter_read gives them, and FILE.txt: name and shape of each
 *     --predict IN OUT      raw float32 (or int32) samples to raw float32 outputs
 */
#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dt_tensor *mlp(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_dense(x, 33, .name = "fc1"));
    x = dt_tanh(dt_dense(x, 17, .name = "fc2"));
    return dt_dense(x, 5, .no_bias = 1, .name = "fc3");
}

static dt_tensor *cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 8, 3, .padding = DT_SAME, .name = "conv1")), 2);
    x = dt_conv2d(x, 8, 3, .stride = 2, .padding = 1, .groups = 8, .no_bias = 1, .name = "conv2");
    x = dt_flatten(dt_gelu(dt_conv2d(x, 6, 1, .kernel_w = 2, .groups = 2, .name = "conv3")));
    x = dt_dense(dt_batchnorm(x, .name = "norm"), 11, .name = "fc1");
    return dt_dense(dt_leaky_relu(x, 0.125), 4, .name = "fc2");
}

/* A name from parts: "layer2.0.conv1". The model copies it. */
static dt_tensor *conv_norm(dt_tensor *x, int filters, int stride, const char *prefix, int number) {
    char conv[DT_MAX_NAME], norm[DT_MAX_NAME];
    snprintf(conv, sizeof conv, "%sconv%d", prefix, number);
    snprintf(norm, sizeof norm, "%sbn%d", prefix, number);
    x = dt_conv2d(x, filters, 3, .stride = stride, .padding = 1, .no_bias = 1, .name = conv);
    return dt_batchnorm(x, .name = norm);
}

static dt_tensor *resnet20(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(conv_norm(x, 16, 1, "", 1));
    for (int stage = 0; stage < 3; stage++)
        for (int block = 0; block < 3; block++) {
            const int filters = 16 << stage, stride = stage > 0 && block == 0 ? 2 : 1, extra = filters - dt_dim(x, 3);
            char prefix[32];
            snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, block);
            dt_tensor *y = conv_norm(dt_relu(conv_norm(x, filters, stride, prefix, 1)), filters, 1, prefix, 2);
            if (stride > 1) x = dt_slice(dt_slice(x, 1, 0, 0, .step = 2), 2, 0, 0, .step = 2);
            if (extra) x = dt_pad(x, 3, extra / 2, extra - extra / 2);
            x = dt_relu(dt_add(x, y));
        }
    return dt_dense(dt_global_avgpool(x), 10, .name = "fc");
}

static dt_tensor *tokens(dt_tensor *x, void *user) {
    (void)user;
    x = dt_embedding(x, 19, 12, .name = "embedding");
    dt_tensor *y = dt_gelu_tanh(dt_dense(dt_layernorm(x, .name = "ln1"), 24, .name = "up"));
    x = dt_layernorm(dt_add(x, dt_dense(y, 12, .name = "down")), .no_bias = 1, .name = "ln2");
    return dt_dense(dt_flatten(x), 6, .name = "head");
}

static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); int input[3], tokens, outputs; } nets[] = {
    { "mlp", mlp, { 20 }, 0, 5 },  { "cnn", cnn, { 12, 10, 3 }, 0, 4 },  { "resnet20", resnet20, { 16, 12, 3 }, 0, 10 },  { "tokens", tokens, { 7 }, 19, 6 },
};

typedef struct { const char *prefix, *without; char name[2 * DT_MAX_NAME]; } names;

static const char *rename_of(void *user, const char *name) {
    names *n = (names *)user;
    if (n->without && !strncmp(name, n->without, strlen(n->without))) return NULL;
    snprintf(n->name, sizeof n->name, "%s%s", n->prefix ? n->prefix : "", name);
    return n->name;
}

static int fail(const char *what, const dt_error *err) {
    fprintf(stderr, "%s: %s: %s\n", what, dt_error_name(err->code), err->text);
    return 1;
}

static uint32_t random_state = 1;
static float noise(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

static int train(dt_model *m, int at, int size, int steps, dt_error *err) {
    enum { N = 16 };
    void *x = calloc((size_t)(N * size), 4);
    int y[N];
    if (!x) return 1;
    for (int step = 0; step < steps && !err->code; step++) {
        for (int i = 0; i < N * size; i++) {
            if (nets[at].tokens) ((int *)x)[i] = (int)((noise() + 1) / 2 * (float)nets[at].tokens);
            else ((float *)x)[i] = 2 * noise() + 0.5f;
        }
        for (int i = 0; i < N; i++) y[i] = (int)((noise() + 1) / 2 * (float)nets[at].outputs);
        dt_step(m, x, y, N, err);
    }
    free(x);
    return err->code;
}

static int dump(dt_model *m, const char *path, dt_error *err) {
    char list[1024];
    dt_parameter p;
    snprintf(list, sizeof list, "%s.txt", path);
    FILE *values = fopen(path, "wb"), *text = fopen(list, "w");
    for (int i = 0; values && text && dt_parameter_at(m, i, &p, NULL) == 0; i++) {
        float *v = (float *)calloc(p.size, sizeof *v);
        if (!v || dt_parameter_read(m, p.name, v, p.size, err)) return 1;
        fwrite(v, sizeof *v, p.size, values);
        fprintf(text, "%s", p.name);
        for (int d = 0; d < p.rank; d++) fprintf(text, " %d", p.dim[d]);
        fprintf(text, "\n");
        free(v);
    }
    return !values || !text || fclose(values) || fclose(text);
}

static int predict(dt_model *m, int at, int size, const char *in, const char *out, dt_error *err) {
    FILE *f = fopen(in, "rb");
    if (!f || fseek(f, 0, SEEK_END)) return 1;
    const long n = ftell(f) / (4 * size);
    void *x = calloc((size_t)(n * size) + 1, 4);
    float *y = (float *)calloc((size_t)(n * nets[at].outputs) + 1, sizeof *y);
    rewind(f);
    int bad = !x || !y || fread(x, 4, (size_t)(n * size), f) != (size_t)(n * size) || fclose(f) || dt_predict(m, x, n, y, err);
    f = bad ? NULL : fopen(out, "wb");
    bad = !f || fwrite(y, sizeof *y, (size_t)(n * nets[at].outputs), f) != (size_t)(n * nets[at].outputs) || fclose(f);
    free(x);
    free(y);
    return bad;
}

int main(int argc, char **argv) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    dt_load_options load = DT_DEFAULTS;
    names n = { NULL, NULL, "" };
    int at = 0, size = 1, bad = 0;
    while (at < 4 && argc > 1 && strcmp(nets[at].name, argv[1])) at++;
    if (argc < 2 || at == 4) { fprintf(stderr, "usage: exchange NET ACTION...\n"); return 64; }
    o.net = nets[at].net;
    for (int i = 0; i < 3; i++) {
        o.input[i] = nets[at].input[i];
        size *= nets[at].input[i] ? nets[at].input[i] : 1;
    }
    o.input_type = nets[at].tokens ? DT_INT32 : DT_FLOAT32;
    o.loss = DT_CROSS_ENTROPY;
    o.optimizer = DT_MOMENTUM;
    o.learning_rate = 0.03;
    o.batch = 16;
    o.replicas = 2;
    o.seed = 11;
    dt_model *m = dt_model_create(&o, &err);
    if (!m) return fail("dt_model_create", &err);
    for (int i = 2; i < argc && !bad; i++) {
        const char *action = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(action, "--partial")) { load.partial = 1; continue; }
        i++;
        if (!strcmp(action, "--glob")) load.glob = value;
        else if (!strcmp(action, "--prefix")) n.prefix = value;
        else if (!strcmp(action, "--without")) n.without = value;
        else if (!strcmp(action, "--train")) bad = train(m, at, size, atoi(value), &err);
        else if (!strcmp(action, "--save")) bad = dt_save(m, value, &err);
        else if (!strcmp(action, "--dump")) bad = dump(m, value, &err);
        else if (!strcmp(action, "--predict") && i + 1 < argc) bad = predict(m, at, size, value, argv[++i], &err);
        else if (!strcmp(action, "--load")) {
            load.path = value;
            load.user = &n;
            load.rename = n.prefix || n.without ? rename_of : NULL;
            /* a strict load of everything is dt_load's; both must say the same */
            bad = load.partial || load.glob || load.rename ? 0 : dt_load(m, value, NULL, &err);
            if (!bad) bad = dt_load_opt(m, &load, &err);
            printf("%d %d %d %d\n", load.loaded, load.missing, load.unexpected, load.misshaped);
        } else bad = 64;
        if (bad) fail(action, &err);
    }
    dt_model_free(m);
    return bad ? 1 : 0;
}
