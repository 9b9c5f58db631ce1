/* onnx.c - nets that together use every operation, as ONNX: onnx FOLDER, driven by run_onnx.py
 *
 * Writes for each net FOLDER/NET.onnx, raw samples NET.x0, NET.x1, … in the order of inputs, and what dtrain makes of them:
 * NET.y0 (dt_predict) and NET.y1, … (dt_output, in the order of names). Prints "NET samples inputs outputs". "refusals"
 * instead of a net: checks what is refused.
 */
#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"
#include "../../examples/export_onnx.h"
#include "../nets.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 7 };  /* samples */

static uint32_t random_state = 1;
static float uniform(void) {  /* -1 .. 1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

/* ---- the nets */

static dt_tensor *mlp(dt_tensor *x, void *user) {
    (void)user;
    x = dt_sigmoid(dt_dense(dt_tanh(dt_dense(x, 8, .name = "an \"\xc3\xa9vil\" /name\\")), 8, .no_bias = 1));
    return dt_softmax(dt_dense(x, 3));
}

static dt_tensor *activations(dt_tensor *x, void *user) {
    (void)user;
    x = dt_scale(x, 6, 0.25);
    dt_tensor *y = dt_concat(dt_relu(x), dt_leaky_relu(x, 0.125), 1);
    y = dt_concat(y, dt_concat(dt_gelu(x), dt_gelu_tanh(x), -1), 1);
    y = dt_concat(y, dt_concat(dt_silu(x), dt_tanh(x), 1), 1);
    return dt_concat(y, dt_concat(dt_sigmoid(x), dt_softmax(x), 1), 1);
}

static dt_tensor *residual(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 6, 3, .padding = DT_SAME, .no_bias = 1)));
    for (int i = 0; i < 2; i++) {
        dt_tensor *y = dt_relu(dt_batchnorm(dt_conv2d(x, 6, 3, .padding = 1)));
        x = dt_relu(dt_add(x, dt_batchnorm(dt_conv2d(y, 6, 3, .padding = 1, .no_bias = i), .epsilon = 0.01)));
    }
    dt_tensor *y = dt_slice(dt_slice(x, 1, 0, 0, .step = 2), 2, 0, 0, .step = 2);  /* a shortcut without weights */
    x = dt_add(dt_pad(y, 3, 1, 2), dt_conv2d(x, 9, 3, .stride = 2, .padding = DT_SAME, .groups = 3));
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 9, 3, .stride = 2, .padding = 1, .groups = 9)));
    return dt_dense(dt_global_avgpool(x), 3);
}

/* Activations, norms and the rest between images, whose channels are first in the file. */
static dt_tensor *images(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_conv2d(x, 4, 3, .padding = 1), *b = dt_leaky_relu(dt_sub(a, x), 0.25);
    a = dt_concat(dt_gelu(a), dt_silu(b), 3);                                     /* [9,7,8] */
    a = dt_concat(dt_scale(a, 2, -0.5), dt_gelu_tanh(a), 1);                      /* [18,7,8] */
    a = dt_mul(a, dt_sigmoid(dt_dropout(a, 0.3)));
    a = dt_pad(dt_pad(a, 2, 1, 3), 1, 2, 0);                                      /* [20,11,8] */
    a = dt_dense(dt_layernorm(dt_softmax(dt_slice(a, 3, 1, 7, .step = 2)), .epsilon = 0.01), 5);   /* [20,11,3] -> 5 */
    a = dt_batchnorm(a);
    a = dt_maxpool2d(dt_tanh(a), 3, .stride = 2);
    return dt_reshape(dt_output(a, "small"), {-1});
}

/* Norms of every rank, behind a flattened image too. */
static dt_tensor *norms(dt_tensor *x, void *user) {
    (void)user;
    x = dt_batchnorm(x, .name = "first");
    dt_tensor *a = dt_conv2d(x, 4, 3, .padding = 1, .name = "two users");
    dt_tensor *b = dt_relu(dt_batchnorm(a, .epsilon = 0.5)), *c = dt_batchnorm(dt_relu(a));
    dt_tensor *d = dt_conv2d(x, 4, 3, .padding = 1, .name = "lender"), *e = dt_conv2d(x, 4, 3, .padding = 1, .share = d);
    dt_tensor *f = dt_batchnorm(d, .name = "norm d"), *g = dt_batchnorm(e, .share = f, .epsilon = 0.01);
    x = dt_batchnorm(dt_reshape(dt_add(dt_mul(b, c), dt_sub(f, g)), {10, 8}));
    x = dt_reshape(dt_batchnorm(dt_reshape(x, {2, 5, 2, 4})), {5, 4, 4});
    x = dt_layernorm(dt_batchnorm(dt_flatten(x)), .name = "flat");
    x = dt_dense(dt_relu(dt_batchnorm(dt_dense(x, 8))), 3);
    return dt_batchnorm(x);
}

static dt_tensor *winograd(dt_tensor *x, void *user) {
    (void)user;
    return dt_conv2d(dt_relu(dt_conv2d(dt_relu(dt_conv2d(x, 16, 3, .padding = 1)), 16, 3, .padding = 1)), 4, 1);
}

static dt_tensor *pixels(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_flatten(dt_output(dt_scale(dt_dropout(x, 0.1), 3.2, -1), "scaled")), 3); }
static dt_tensor *view(dt_tensor *x, void *user) { (void)user; return dt_dropout(dt_flatten(x), 0.5); }
static dt_tensor *ranks(dt_tensor *x, void *user) { (void)user; return dt_softmax(dt_dense(dt_layernorm(x), 4, .no_bias = 1)); }

/* Names that collide with each other, with parameters and with the graph's own. */
static dt_tensor *many(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *time = dt_input(x, "time", {2}, .type = DT_INT32), *mask = dt_input(x, "mask", {4}, .type = DT_UINT8), *unused = dt_input(x, "unused", {4});
    dt_tensor *a = dt_dense(x, 4, .name = "/1"), *b = dt_output(dt_tanh(a), "half"), *c = dt_mul(dt_relu(b), mask);
    dt_loss(c, DT_MSE, .target = unused, .name = "aside");
    dt_output(b, "/1/dense"), dt_output(mask, "input"), dt_output(x, "same");
    c = dt_concat(c, dt_flatten(dt_embedding(time, 10, 3)), 1);
    return dt_output(dt_output(dt_output(dt_dropout(dt_dense(c, 3, .name = "last"), 0.5), "output"), "again \xff"), "last.weight");
}

static const struct { const char *name; dt_tensor *(*net)(dt_tensor *, void *); int input[DT_MAX_RANK - 1]; dt_type type; } nets[] = {
    { "mlp", mlp, { 5 }, DT_FLOAT32 },                   { "activations", activations, { 37 }, DT_FLOAT32 },
    { "digits", digits, { 10, 10, 1 }, DT_FLOAT32 },     { "digits_of_bytes", digits, { 10, 10, 1 }, DT_UINT8 },
    { "residual", residual, { 7, 7, 2 }, DT_FLOAT32 },   { "images", images, { 9, 7, 4 }, DT_FLOAT32 },
    { "norms", norms, { 5, 4, 3 }, DT_FLOAT32 },         { "convolutions", convolutions, { 9, 7, 4 }, DT_FLOAT32 },
    { "winograd", winograd, { 12, 12, 16 }, DT_FLOAT32 },{ "pools", pools, { 9, 7, 3 }, DT_FLOAT32 },
    { "embedded", embedded, { 2, 3 }, DT_INT32 },        { "moves", moves, { 9, 7, 4 }, DT_FLOAT32 },
    { "shared", shared, { 6 }, DT_FLOAT32 },             { "pixels", pixels, { 2, 3 }, DT_UINT8 },
    { "identity", identity, { 4 }, DT_FLOAT32 },         { "only_bytes", identity, { 4 }, DT_UINT8 },
    { "view", view, { 2, 3, 2 }, DT_FLOAT32 },           { "ranks", ranks, { 2, 1, 3, 2, 5 }, DT_FLOAT32 },
    { "many", many, { 6 }, DT_FLOAT32 },
};

/* ---- the files */

static const char *folder;
static void fail(const char *name, const char *text) { fprintf(stderr, "onnx: %s: %s\n", name, text); exit(1); }

static void save(const char *name, const char *kind, int k, const void *data, size_t bytes) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s.%s%d", folder, name, kind, k);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f)) fail(path, "cannot write");
}

/* Everything away from where it begins. */
static void shake(dt_model *m) {
    dt_parameter p;
    dt_error err = DT_DEFAULTS;
    for (int i = 0; dt_parameter_at(m, i, &p, NULL) == 0; i++) {
        float *w = (float *)malloc(p.size * sizeof *w);
        dt_parameter_read(m, p.name, w, p.size, &err);
        for (size_t k = 0; k < p.size; k++) w[k] = strstr(p.name, "running_var") ? 1 + 0.9f * uniform() : w[k] + 0.2f * uniform();
        dt_parameter_write(m, p.name, w, p.size, &err);
        free(w);
    }
    if (err.code) fail("parameters", err.text);
}

static void export_net(int which) {
    const char *name = nets[which].name;
    char path[400];
    dt_error err = DT_DEFAULTS;
    dt_options o = {.net = nets[which].net, .input_type = nets[which].type, .batch = N, .replicas = 1 + which % 2, .seed = 3, .inference = 1};
    memcpy(o.input, nets[which].input, sizeof o.input);
    dt_model *m = dt_model_create(&o, &err);
    if (!m) fail(name, err.text);
    shake(m);
    dt_batch b = {.n = N};
    for (int k = 0; k < m->graph.n_inputs; k++) {
        const dt_tensor *t = m->graph.input[k];
        size_t n = N * (size_t)t->size, bytes = n * (dt__onnx_is_bytes(t) ? 1 : 4);
        void *x = malloc(bytes);
        for (size_t i = 0; i < n; i++) {
            float v = uniform();
            if (t->type == DT_INT32) ((int32_t *)x)[i] = (int32_t)((v + 1) * 4.999f);
            else if (dt__onnx_is_bytes(t)) ((unsigned char *)x)[i] = (unsigned char)((v + 1) * 127.5f);
            else ((float *)x)[i] = v * 1.5f;
        }
        save(name, "x", k, x, bytes);
        b.x[k] = x;
    }
    int k = 0;
    float *y = (float *)malloc(N * (size_t)m->graph.output->size * sizeof(float));
    if (m->graph.n_inputs == 1) dt_predict(m, b.x[0], N, y, &err);
    dt_forward(m, &b, &err);
    if (m->graph.n_inputs > 1) dt_output_read(m, NULL, y, &err);
    save(name, "y", k++, y, N * (size_t)m->graph.output->size * sizeof(float));
    free(y);
    for (const dt__named *out = m->graph.outputs; out; out = out->next) {
        y = (float *)malloc(N * (size_t)out->t->size * sizeof(float));
        dt_output_read(m, out->name, y, &err);
        save(name, "y", k++, y, N * (size_t)out->t->size * sizeof(float));
        free(y);
    }
    snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
    uint32_t before = dt_parameters_crc32c(m);
    if (!err.code) dt_export_onnx(m, path, &err);
    if (err.code) fail(name, err.text);
    if (dt_parameters_crc32c(m) != before) fail(name, "the model has changed");
    printf("%s %d %d %d\n", name, N, m->graph.n_inputs, k);
    for (k = 0; k < m->graph.n_inputs; k++) free((void *)(uintptr_t)b.x[k]);
    dt_model_free(m);
}

/* ---- what is refused */

static int twice(const dt_custom_call *c) { for (int i = 0; i < c->n * 3; i++) c->y[i] = 2 * c->x[0][i]; return 0; }
static dt_tensor *with_custom(dt_tensor *x, void *user) { (void)user; return dt_custom(dt_dense(x, 3), {0}, twice, NULL, .name = "twice"); }
static dt_tensor *custom_aside(dt_tensor *x, void *user) {  /* needed by a loss only */
    (void)user;
    dt_tensor *y = dt_dense(x, 3);
    dt_loss(dt_custom(y, {0}, twice, NULL), DT_VALUE, .name = "aside");
    return y;
}

static void refuses(dt_tensor *(*net)(dt_tensor *, void *), const char *path, float weight, int code, const char *text) {
    dt_error err = DT_DEFAULTS;
    dt_options o = {.net = net, .input = {4}, .inference = 1};
    dt_model *m = dt_model_create(&o, &err);
    const float bias[3] = {weight, 0, 0};
    if (!m) fail(text, err.text);
    dt_parameter_write(m, "dense_1.bias", bias, 3, &err);
    if (err.code) fail(text, err.text);
    if (dt_export_onnx(m, path, &err) != code || (code && !strstr(err.text, text))) fail(text, err.code ? err.text : "not refused");
    dt_model_free(m);
}

static void refusals(void) {
    char path[400], nowhere[420], line[8] = "";
    dt_error err = DT_DEFAULTS;
    snprintf(path, sizeof path, "%s/refused.onnx", folder);
    snprintf(nowhere, sizeof nowhere, "%s/none/net.onnx", folder);
    FILE *f = fopen(path, "w");
    if (!f || fputs("before", f) < 0 || fclose(f)) fail(path, "cannot write");
    refuses(with_custom, path, 0, DT_ERR_ARGUMENT, "\"twice\" is a dt_custom, which has no ONNX form");
    refuses(custom_aside, path, (float)NAN, DT_ERR_NUMERIC, "a weight is not finite");
    refuses(custom_aside, nowhere, 0, DT_ERR_IO, "cannot create a file beside");
    refuses(custom_aside, "", 0, DT_ERR_ARGUMENT, "the path is empty");
    if (dt_export_onnx(NULL, path, &err) != DT_ERR_ARGUMENT || !strstr(err.text, "model is NULL")) fail("NULL", err.text);
    f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f) || fclose(f) || strcmp(line, "before")) fail(path, "what was there is lost");
    refuses(custom_aside, path, 0, 0, "");
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    folder = argv[1];
    if (argc > 2) { refusals(); return 0; }
    for (int i = 0; i < (int)(sizeof nets / sizeof *nets); i++) export_net(i);
    return 0;
}
