/* export.c - dt_export_c: many nets are written as C, compiled by the system's compiler with every
 * warning an error, run, and compared with dt_predict.
 */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/export_c.h"
#include "test.h"
#include "nets.h"
#include "scratch.h"
#include "../examples/digits.h"

#include <locale.h>
#include <signal.h>
#include <sys/resource.h>

#define STRICT "-std=c99 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"

/* ---- files and commands -------------------------------------------------------------------------- */

static int files_in(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    struct dirent *e;
    while (d && (e = readdir(d))) n += e->d_name[0] != '.' || (e->d_name[1] && e->d_name[1] != '.');
    if (d) closedir(d);
    return n;
}

/* run a command in the scratch folder; what it says is shown if it fails and show is set */
static int shell(int show, const char *format, ...) {
    char command[2048];
    va_list a;
    size_t n;
    int used = snprintf(command, sizeof command, "cd '%s' && (", scratch);
    va_start(a, format);
    used += vsnprintf(command + used, sizeof command - (size_t)used, format, a);
    va_end(a);
    snprintf(command + used, sizeof command - (size_t)used, ") >log 2>&1 </dev/null");
    fflush(stdout);
    int status = system(command);
    if (status && show) {
        char *log = (char *)get(at("log"), &n);
        printf("  %s\n%.3000s\n", command, log ? log : "");
        free(log);
    }
    return status;
}

static const char *cc(void) {
    const char *name = getenv("CC");
    return name && *name ? name : "cc";
}

/* 1: the compiler makes programs that run here */
static int compiler(void) {
    static int known = -1;
    if (known >= 0) return known;
    static const char text[] = "#include <math.h>\nint main(int n, char **v) { (void)v; return expf((float)n) < 1; }\n";
    put("empty.c", text, sizeof text - 1);
    known = shell(0, "%s -std=c99 empty.c -o empty -lm && ./empty", cc()) == 0;
    return known;
}

static uint32_t random_state;
static float uniform(void) {  /* -1 .. 1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

/* ---- the nets ------------------------------------------------------------------------------------- */

static dt_tensor *one_dense(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 3); }

static dt_tensor *mlp(dt_tensor *x, void *user) {
    (void)user;
    x = dt_sigmoid(dt_dense(dt_tanh(dt_dense(x, 8, .name = "an */ evil \"name\" ?\?/ \\")), 8, .no_bias = 1));
    return dt_dense(x, 3);
}

static dt_tensor *activations(dt_tensor *x, void *user) {
    (void)user;
    x = dt_scale(x, 6, 0.25);
    dt_tensor *y = dt_concat(dt_relu(x), dt_leaky_relu(x, 0.125), 1);
    y = dt_concat(y, dt_gelu(x), 1);
    y = dt_concat(y, dt_gelu_tanh(x), -1);
    y = dt_concat(y, dt_silu(x), 1);
    y = dt_concat(y, dt_tanh(x), 1);
    y = dt_concat(y, dt_sigmoid(x), 1);
    return dt_concat(y, dt_softmax(x), 1);
}

static dt_tensor *extremes(dt_tensor *x, void *user) {  /* nothing overflows on the way */
    (void)user;
    x = dt_scale(x, 300, 0);
    dt_tensor *y = dt_concat(dt_tanh(x), dt_sigmoid(x), 1);
    return dt_concat(y, dt_softmax(x), 1);
}

static dt_tensor *residual(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 6, 3, .padding = DT_SAME, .no_bias = 1)));
    for (int i = 0; i < 2; i++) {
        dt_tensor *y = dt_relu(dt_batchnorm(dt_conv2d(x, 6, 3, .padding = 1)));
        x = dt_relu(dt_add(x, dt_batchnorm(dt_conv2d(y, 6, 3, .padding = 1, .no_bias = i))));
    }
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 6, 3, .stride = 2, .padding = 1, .groups = 6)));
    return dt_dense(dt_global_avgpool(x), 3);
}

/* batch norms that cannot be folded, and one behind a dense layer that can */
static dt_tensor *norms(dt_tensor *x, void *user) {
    (void)user;
    x = dt_batchnorm(x, .name = "first");
    dt_tensor *a = dt_conv2d(x, 4, 3, .padding = 1, .name = "two users");
    dt_tensor *b = dt_relu(dt_batchnorm(a, .epsilon = 0.5)), *c = dt_batchnorm(dt_relu(a));
    dt_tensor *d = dt_conv2d(x, 4, 3, .padding = 1, .name = "lender"), *e = dt_conv2d(x, 4, 3, .padding = 1, .share = d, .name = "borrower");
    dt_tensor *f = dt_batchnorm(d, .name = "norm d"), *g = dt_batchnorm(e, .share = f, .epsilon = 0.01);
    x = dt_flatten(dt_add(dt_mul(b, c), dt_sub(f, g)));
    x = dt_dense(dt_relu(dt_batchnorm(dt_dense(x, 8))), 3);
    return dt_batchnorm(x);
}

/* convolutions of every kind, on an image that is not square */
/* what may be overwritten and what may not: views, several users, outputs in the middle */
static dt_tensor *in_place(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_dense(x, 12), *view = dt_reshape(a, {3, 4}), *b = dt_reshape(dt_relu(view), {12});
    dt_tensor *c = dt_tanh(a), *d = dt_sub(b, a), *e = dt_mul(dt_dropout(c, 0.5), d);
    dt_tensor *f = dt_softmax(dt_reshape(e, {4, 3})), *g = dt_add(f, f), *twice = dt_reshape(dt_scale(a, 0.5, 0), {2, 6});
    dt_tensor *h = dt_add(dt_reshape(dt_relu(twice), {12}), dt_reshape(twice, {12}));
    return dt_add(h, dt_sub(dt_reshape(g, {12}), dt_mul(c, c)));
}

/* Two towers with the same convolution and the same batch norm: nothing is folded, each array stands once. */
static dt_tensor *siamese(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *conv = dt_conv2d(dt_slice(x, 3, 0, 2), 4, 3), *norm = dt_batchnorm(conv);
    dt_tensor *other = dt_batchnorm(dt_conv2d(dt_slice(x, 3, 2, 4), 4, 3, .share = conv), .share = norm);
    return dt_sub(dt_global_avgpool(dt_relu(norm)), dt_global_avgpool(dt_relu(other)));
}

static dt_tensor *close_call(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 3, .name = "close"); }

static dt_tensor *scaled_input(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_flatten(dt_scale(dt_dropout(x, 0.1), 3.2, -1)), 3); }
static dt_tensor *tokens_only(dt_tensor *x, void *user) { (void)user; return dt_embedding(x, 10, 3); }
static dt_tensor *view_of_input(dt_tensor *x, void *user) { (void)user; return dt_dropout(dt_flatten(x), 0.5); }
static dt_tensor *only_relu(dt_tensor *x, void *user) { (void)user; return dt_relu(x); }
static dt_tensor *rank_five(dt_tensor *x, void *user) { (void)user; return dt_softmax(dt_dense(dt_layernorm(x), 4)); }

/* Inputs in the order of their names: x, "mask", "time", "unused"; outputs: net's, "again", "half", "input", "same". */
static dt_tensor *many(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *time = dt_input(x, "time", {2}, .type = DT_INT32), *mask = dt_input(x, "mask", {4}, .type = DT_UINT8), *unused = dt_input(x, "unused", {4});
    dt_tensor *a = dt_dense(x, 4), *b = dt_output(dt_tanh(a), "half"), *c = dt_mul(dt_relu(b), mask);
    dt_loss(c, DT_MSE, .target = unused, .name = "aside");
    dt_output(b, "same");
    dt_output(mask, "input");
    c = dt_concat(c, dt_flatten(dt_embedding(time, 10, 3)), 1);
    return dt_output(dt_output(dt_dense(c, 3), "returned"), "again");
}

enum { TRAINED = 1, INFERENCE = 2, BYTES = 4 };  /* BYTES: also with weights as bytes */

typedef struct {
    const char *name;
    dt_tensor *(*net)(dt_tensor *x, void *user);
    int input[DT_MAX_RANK - 1];
    unsigned flags;
    dt_type type;
    int work;  /* floats of work memory that are enough; 0: any number */
} net_case;

static const net_case cases[] = {
    { "one_dense",     one_dense,     { 5 }, BYTES, DT_FLOAT32, -1 },
    { "mlp",           mlp,           { 5 }, TRAINED | BYTES, DT_FLOAT32, 16 },
    { "activations",   activations,   { 37 }, 0, DT_FLOAT32, 0 },
    { "extremes",      extremes,      { 11 }, 0, DT_FLOAT32, 0 },
    { "digits",        digits,        { 10, 10, 1 }, TRAINED | BYTES, DT_FLOAT32, 8 * 8 * 8 + 4 * 4 * 8 },
    { "pixels",        digits,        { 10, 10, 1 }, TRAINED | BYTES, DT_UINT8, 8 * 8 * 8 + 4 * 4 * 8 },
    { "residual",      residual,      { 7, 7, 2 }, TRAINED | BYTES, DT_FLOAT32, 3 * 7 * 7 * 6 },
    { "norms",         norms,         { 5, 4, 3 }, TRAINED | BYTES, DT_FLOAT32, 0 },
    { "convolutions",  convolutions,  { 9, 7, 4 }, BYTES, DT_FLOAT32, 0 },
    { "pools",         pools,         { 9, 7, 3 }, 0, DT_FLOAT32, 0 },
    { "embedded",      embedded,      { 2, 3 }, BYTES, DT_INT32, 0 },
    { "moves",         moves,         { 9, 7, 4 }, 0, DT_FLOAT32, 0 },
    { "shared",        shared,        { 6 }, BYTES, DT_FLOAT32, 0 },
    { "in_place",      in_place,      { 5 }, 0, DT_FLOAT32, 36 },
    { "siamese",       siamese,       { 5, 5, 4 }, 0, DT_FLOAT32, 0 },
    { "close_call",    close_call,    { 60 }, BYTES, DT_FLOAT32, -1 },
    { "scaled_input",  scaled_input,  { 2, 3 }, 0, DT_FLOAT32, 6 },
    { "scaled_pixels", scaled_input,  { 2, 3 }, 0, DT_UINT8, 6 },
    { "identity",      identity,      { 4 }, 0, DT_FLOAT32, -1 },
    { "view_of_input", view_of_input, { 2, 2 }, 0, DT_FLOAT32, -1 },
    { "only_relu",     only_relu,     { 2, 2 }, 0, DT_FLOAT32, -1 },
    { "only_pixels",   identity,      { 4 }, 0, DT_UINT8, -1 },
    { "rank_five",     rank_five,     { 2, 1, 3, 2, 5 }, BYTES, DT_FLOAT32, 60 },
    { "many",          many,          { 6 }, INFERENCE, DT_FLOAT32, 0 },
};

enum { N = 7, MOST = 4 };  /* samples of a made net; inputs or outputs of one net */

static void die(const char *what, const dt_error *err) { printf("%s: %s\n", what, err->text); exit(1); }

static dt_model *model_of(const net_case *c, int replicas) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = c->net, o.input_type = c->type, o.batch = 8, o.replicas = replicas, o.seed = 3, o.learning_rate = 0.05;
    o.inference = (c->flags & INFERENCE) != 0, o.loss = c->flags & TRAINED ? DT_CROSS_ENTROPY : DT_NO_LOSS;
    memcpy(o.input, c->input, sizeof o.input);
    dt_model *m = dt_model_create(&o, &err);
    if (!m) die(c->name, &err);
    return m;
}

static size_t bytes_of(const dt_tensor *t) {
    return (size_t)t->size * (((const dt_input_options *)t->options)->type == DT_UINT8 ? 1 : 4);
}

/* n samples for input k of a model, in its type */
static void *samples(const dt_model *m, int k, int n) {
    const dt_tensor *t = m->graph.input[k];
    void *p = calloc((size_t)n, bytes_of(t));
    for (ptrdiff_t i = 0; i < n * t->size; i++) {
        float v = uniform();
        if (t->type == DT_INT32) ((int32_t *)p)[i] = (int32_t)((v + 1) * 4.999f);
        else if (bytes_of(t) == (size_t)t->size) ((unsigned char *)p)[i] = (unsigned char)((v + 1) * 127.5f);
        else ((float *)p)[i] = v * 1.5f;
    }
    return p;
}

/* A few steps, so that running statistics, biases and gains are like nothing they began with. */
static void train(dt_model *m) {
    dt_error err = DT_DEFAULTS;
    int32_t label[8];
    for (int step = 0; step < 12; step++) {
        void *x = samples(m, 0, 8);
        for (int i = 0; i < 8; i++) label[i] = i % 3;
        dt_step(m, x, label, 8, &err);
        free(x);
    }
    if (err.code) die("training", &err);
}

/* biases, gains and so on away from where they begin */
static void shake(dt_model *m) {
    dt_parameter p;
    dt_error err = DT_DEFAULTS;
    for (int i = 0; dt_parameter_at(m, i, &p, NULL) == 0; i++) {
        float *w = (float *)malloc(p.size * sizeof *w);
        dt_parameter_read(m, p.name, w, p.size, &err);
        for (size_t k = 0; k < p.size; k++) w[k] += strstr(p.name, "running_var") ? 0 : 0.2f * uniform();
        if (p.size > 2 && strstr(p.name, "norm") && strstr(p.name, ".weight")) w[1] = -w[1], w[2] = 0;  /* signs and zeros go through the folding too */
        dt_parameter_write(m, p.name, w, p.size, &err);
        free(w);
    }
    if (err.code) die("shaking", &err);
}

/* Outputs so near to each other that bytes change which is the largest. */
static void bring_close(dt_model *m) {
    static float w[3 * 60];
    for (int i = 0; i < 60; i++) w[i] = uniform(), w[60 + i] = w[i] + 0.003f * uniform(), w[120 + i] = w[i] + 0.003f * uniform();
    static const float none[3];
    dt_parameter_write(m, "close.weight", w, 3 * 60, NULL);
    dt_parameter_write(m, "close.bias", none, 3, NULL);
}

/* One exported net: what it got, and what it must give. */
typedef struct {
    char name[80];
    const dt_model *m;
    int n, n_in, n_out;   /* samples; inputs and outputs */
    void *x[MOST];
    float *y[MOST];
    ptrdiff_t size[MOST];
    dt_export_options o;  /* as returned */
} exported;

static void expect(exported *e, dt_model *m, const net_case *c) {
    dt_error err = DT_DEFAULTS;
    e->m = m;
    e->n = N;
    e->n_in = m->graph.n_inputs;
    for (int k = 0; k < e->n_in; k++) e->x[k] = samples(m, k, N);
    if (c->net != many) {
        e->n_out = 1;
        e->size[0] = m->graph.output->size;
        e->y[0] = (float *)calloc((size_t)(N * e->size[0]), sizeof(float));
        dt_predict(m, e->x[0], N, e->y[0], &err);
    } else {
        static const char *const name[] = { NULL, "half", "input", "same" };
        static const int size[] = { 3, 4, 4, 4 };
        dt_batch b = DT_DEFAULTS;
        b.n = N;
        for (int k = 0; k < e->n_in; k++) b.x[k] = e->x[k];
        dt_forward(m, &b, &err);
        for (e->n_out = 0; e->n_out < COUNT(name); e->n_out++) {
            e->size[e->n_out] = size[e->n_out];
            e->y[e->n_out] = (float *)calloc((size_t)(N * size[e->n_out]), sizeof(float));
            dt_output_read(m, name[e->n_out], e->y[e->n_out], &err);
        }
    }
    if (err.code) die(e->name, &err);
}

/* The program that calls all of them: inputs from x.bin, outputs to y.bin. */
static void write_program(const exported *e, int n) {
    FILE *f = fopen(at("run.c"), "w"), *x = fopen(at("x.bin"), "wb");
    if (!f || !x) { printf("cannot write in %s\n", scratch); exit(1); }
    fprintf(f, "#include <stdio.h>\n");
    for (int i = 0; i < n; i++) fprintf(f, "#include \"%s.c\"\n", e[i].name);
    fprintf(f, "int main(void) {\n    FILE *x = fopen(\"x.bin\", \"rb\"), *y = fopen(\"y.bin\", \"wb\");\n    size_t done = 0;\n    if (!x || !y) return 1;\n");
    for (int i = 0; i < n; i++) {
        const char *p = e[i].name, *last = "";
        fprintf(f, "    for (int i = 0; i < %d; i++) {\n", e[i].n);
        for (int k = 0; k < e[i].n_in; k++) {
            const dt_tensor *t = e[i].m->graph.input[k];
            char suffix[8] = "";
            if (k) snprintf(suffix, sizeof suffix, "%d", k);
            fprintf(f, "        static %s a%d[%s_x%s_size]; done += fread(a%d, sizeof a%d, 1, x);\n", t->type == DT_INT32 ? "int32_t" : bytes_of(t) == (size_t)t->size ? "unsigned char" : "float", k, p, suffix, k, k);
        }
        for (int k = 0; k < e[i].n_out; k++) {
            if (k) fprintf(f, "        static float b%d[%s_y%d_size];\n", k, p, k);
            else fprintf(f, "        static float b0[%s_y_size];\n", p);
        }
        fprintf(f, "        %s_predict(", p);
        for (int k = 0; k < e[i].n_in; k++) fprintf(f, "a%d, ", k);
        for (int k = 0; k < e[i].n_out; k++, last = ", ") fprintf(f, "%sb%d", last, k);
        fprintf(f, ");\n");
        for (int k = 0; k < e[i].n_out; k++) fprintf(f, "        done += fwrite(b%d, sizeof b%d, 1, y);\n", k, k);
        fprintf(f, "    }\n");
        for (int s = 0; s < e[i].n; s++)
            for (int k = 0; k < e[i].n_in; k++) { size_t b = bytes_of(e[i].m->graph.input[k]); fwrite((const char *)e[i].x[k] + (size_t)s * b, b, 1, x); }
    }
    fprintf(f, "    return done == 0 || fclose(x) || fclose(y);\n}\n");
    if (fclose(f) | fclose(x)) { printf("cannot write in %s\n", scratch); exit(1); }
}

static int largest(const float *v, ptrdiff_t n) {
    ptrdiff_t best = 0;
    for (ptrdiff_t k = 1; k < n; k++) if (v[k] > v[best]) best = k;
    return (int)best;
}

/* y.bin against what is expected: floats to rounding, bytes to what the export has measured */
static void check_outputs(const exported *e, int n) {
    size_t bytes, used = 0, wanted = 0;
    char *got = (char *)get(at("y.bin"), &bytes);
    for (int i = 0; i < n; i++) for (int k = 0; k < e[i].n_out; k++) wanted += (size_t)(e[i].n * e[i].size[k]) * sizeof(float);
    CHECK_MSG(bytes == wanted, "%zu bytes, expected %zu", bytes, wanted);
    for (int i = 0; i < n && bytes == wanted; i++) {
        double worst = 0, off = 0, range = 0;
        int rows = 0, same = 0;
        for (int s = 0; s < e[i].n; s++)
            for (int k = 0; k < e[i].n_out; k++) {
                ptrdiff_t c = e[i].m->graph.output->dim[e[i].m->graph.output->rank - 1];
                float *v = (float *)malloc((size_t)e[i].size[k] * sizeof(float));
                const float *y = e[i].y[k] + s * e[i].size[k];
                memcpy(v, got + used, (size_t)e[i].size[k] * sizeof(float));
                used += (size_t)e[i].size[k] * sizeof(float);
                for (ptrdiff_t j = 0; j < e[i].size[k]; j++) {
                    double d = fabs((double)v[j] - (double)y[j]);
                    if (!(d <= worst)) worst = d;
                    if (!(d <= off * fmax(1, fabs((double)y[j])))) off = d / fmax(1, fabs((double)y[j]));
                    range = fmax(range, fabs((double)y[j]));
                }
                for (ptrdiff_t j = 0; k == 0 && j < e[i].size[k]; j += c) { rows++; same += largest(v + j, c) == largest(y + j, c); }
                free(v);
            }
        if (getenv("VERBOSE")) printf("  %-18s off %.2g (of up to %.3g)  int8: told %.4g, found %.4g; agreement %.4g  %zu + %zu bytes\n", e[i].name, off, range, e[i].o.difference, worst, e[i].o.agreement, e[i].o.weight_bytes, e[i].o.work_bytes);
        if (!e[i].o.int8) { CHECK_MSG(off <= 1e-5, "%s: %g off", e[i].name, off); continue; }
        CHECK_MSG(fabs(worst - e[i].o.difference) <= 1e-5 * fmax(1, range), "%s: bytes make %g, told %g", e[i].name, worst, e[i].o.difference);
        CHECK_MSG(worst > 0 && worst <= 0.05 * fmax(1, range), "%s: bytes make %g", e[i].name, worst);
        CHECK_MSG(fabs(e[i].o.agreement - (double)same / rows) < 1.5 / rows, "%s: %d of %d agree, told %g", e[i].name, same, rows, e[i].o.agreement);
    }
    free(got);
}

/* Every net, as floats and as bytes, in one program. */
static void test_nets(void) {
    static exported e[2 * COUNT(cases)];
    dt_model *m[COUNT(cases)];
    char path[300], file[100];
    int n = 0;
    if (!compiler()) SKIP("no C compiler whose programs run here");
    random_state = 1;
    for (int i = 0; i < COUNT(cases); i++) {
        const net_case *c = &cases[i];
        m[i] = model_of(c, 1 + i % 2);
        if (c->flags & TRAINED) train(m[i]); else shake(m[i]);
        if (i % 3 == 0 || c->net == norms) shake(m[i]);
        if (c->net == close_call) bring_close(m[i]);
        for (int bytes = 0; bytes < (c->flags & BYTES ? 2 : 1); bytes++, n++) {
            dt_error err = DT_DEFAULTS;
            uint32_t before = dt_parameters_crc32c(m[i]);
            snprintf(e[n].name, sizeof e[n].name, "%s%s", c->name, bytes ? "_8" : "");
            expect(&e[n], m[i], c);
            e[n].o.prefix = e[n].name, e[n].o.int8 = bytes;
            if (bytes) e[n].o.x = e[n].x[0], e[n].o.n = N;
            snprintf(file, sizeof file, "%s.c", e[n].name);
            snprintf(path, sizeof path, "%s", at(file));
            CHECK(dt_export_c(m[i], path, &e[n].o, &err) == 0);
            CHECK_OK(err);
            CHECK_MSG(dt_parameters_crc32c(m[i]) == before, "%s: the model has changed", c->name);
            CHECK(bytes || (isnan(e[n].o.difference) && isnan(e[n].o.agreement)));
            if (c->work) CHECK_MSG(e[n].o.work_bytes <= sizeof(float) * (size_t)(c->work > 0 ? c->work : 0), "%s: %zu bytes of work memory", e[n].name, e[n].o.work_bytes);
            if (c->net == siamese) CHECK_MSG(e[n].o.weight_bytes == sizeof(float) * (3 * 3 * 2 * 4 + 4 + 2 * 2 * 4), "%zu bytes of weights", e[n].o.weight_bytes);
            if (c->net == close_call && bytes) CHECK_MSG(e[n].o.agreement > 0 && e[n].o.agreement < 1, "agreement %g", e[n].o.agreement);
            if (c->net != many) {  /* all replicas have their floats again */
                float *again = (float *)calloc((size_t)(N * e[n].size[0]), sizeof(float));
                CHECK(dt_predict(m[i], e[n].x[0], N, again, &err) == 0 && !memcmp(again, e[n].y[0], (size_t)(N * e[n].size[0]) * sizeof(float)));
                free(again);
            }
        }
    }
    write_program(e, n);
    CHECK(shell(1, "for f in $(ls *.c | grep -v run.c | awk 'NR %% 3 == 1'); do %s " STRICT " -c $f -o alone.o || exit 1; done", cc()) == 0);  /* each stands alone (one in three is tried), */
    CHECK(shell(1, "%s " STRICT " -O2 run.c -o run -lm && ./run", cc()) == 0);           /* and all together */
    check_outputs(e, n);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < MOST; k++) { free(e[i].x[k]); free(e[i].y[k]); }
        snprintf(file, sizeof file, "%s.c", e[i].name);
        remove(at(file));
    }
    for (int i = 0; i < COUNT(cases); i++) dt_model_free(m[i]);
}

/* ---- the nets of the README and of examples/digits.c, trained on images --------------------------------- */

static dt_tensor *mnist_cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3)), 2);
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 128)), 0.5);
    return dt_dense(x, 10, .name = "logits");
}
static dt_tensor *digits_cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_conv2d(x, 32, 3, .padding = DT_SAME));
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3, .padding = DT_SAME)), 2);
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 128)), 0.5);
    return dt_dense(x, 10, .name = "logits");
}

/* Train, export as floats and as bytes, and compare on n test images. */
static void compare_on_images(dt_tensor *(*net)(dt_tensor *x, void *user), int side, dt_source train, dt_source test, const void *images, int n, int steps, double accuracy) {
    exported e[2];
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = net, o.input[0] = o.input[1] = side, o.input[2] = 1, o.loss = DT_CROSS_ENTROPY, o.optimizer = DT_ADAM;
    o.batch = 64, o.replicas = 2, o.seed = 1, o.learning_rate = 2e-3, o.epochs = 4, o.steps = steps, o.train = train, o.test = test;
    dt_model *m = dt_model_create(&o, &err);
    if (!m || dt_train(m, NULL, &err)) die("training", &err);
    CHECK_MSG(dt_model_report(m).eval_accuracy >= accuracy, "accuracy %g", dt_model_report(m).eval_accuracy);
    memset(e, 0, sizeof e);
    for (int bytes = 0; bytes < 2; bytes++) {
        char file[100];
        e[bytes].m = m, e[bytes].n = n, e[bytes].n_in = e[bytes].n_out = 1, e[bytes].size[0] = 10;
        e[bytes].x[0] = (void *)(uintptr_t)images;
        e[bytes].y[0] = (float *)calloc((size_t)n * 10, sizeof(float));
        dt_predict(m, images, n, e[bytes].y[0], &err);
        snprintf(e[bytes].name, sizeof e[bytes].name, "images%d_%d", side, bytes);
        snprintf(file, sizeof file, "%.80s.c", e[bytes].name);
        e[bytes].o.prefix = e[bytes].name, e[bytes].o.int8 = bytes;
        if (bytes) e[bytes].o.x = images, e[bytes].o.n = n;
        CHECK(dt_export_c(m, at(file), &e[bytes].o, &err) == 0);
        CHECK_OK(err);
        CHECK(shell(1, "%s " STRICT " -c %s -o alone.o", cc(), file) == 0);
    }
    CHECK_MSG(e[1].o.agreement >= 0.98, "bytes keep %g of the answers", e[1].o.agreement);
    write_program(e, 2);
    CHECK(shell(1, "%s " STRICT " -O2 run.c -o run -lm && ./run", cc()) == 0);
    check_outputs(e, 2);
    free(e[0].y[0]), free(e[1].y[0]);
    dt_model_free(m);
}

static void test_digits(void) {
    static unsigned char images[DIGITS * DIGITS_PIXELS], labels[DIGITS];
    static float held_out[DIGITS / 5 * DIGITS_PIXELS];
    if (!compiler()) SKIP("no C compiler whose programs run here");
    digits_decode(images, labels);
    dt_source all = dt_arrays(images, DT_UINT8, labels, DT_UINT8, DIGITS);
    for (int i = 0; i < DIGITS / 5; i++)
        for (int k = 0; k < DIGITS_PIXELS; k++) held_out[i * DIGITS_PIXELS + k] = (float)images[(5 * i + 4) * DIGITS_PIXELS + k] / 255;
    compare_on_images(digits_cnn, 8, dt_fold(all, 5, 4, DT_TRAIN), dt_fold(all, 5, 4, DT_TEST), held_out, DIGITS / 5, 250, 0.9);
}

static void test_mnist(void) {
    enum { IMAGES = 200, PIXELS = 28 * 28 };
    const char *data = getenv("DTRAIN_DATA");
    static float x[IMAGES * PIXELS];
    static unsigned char bytes[IMAGES * PIXELS];
    char folder[1000], command[1100];
    if (!compiler()) SKIP("no C compiler whose programs run here");
    if (!data) SKIP("DTRAIN_DATA names no folder with mnist in it");
    snprintf(folder, sizeof folder, "%s/mnist", data);
    snprintf(command, sizeof command, "gzip -dcf '%s'/t10k-images-idx3-ubyte* | tail -c +17", folder);
    FILE *f = popen(command, "r");
    CHECK(f && fread(bytes, 1, sizeof bytes, f) == sizeof bytes);
    if (f) pclose(f);
    for (int i = 0; i < IMAGES * PIXELS; i++) x[i] = (float)bytes[i] / 255;
    compare_on_images(mnist_cnn, 28, dt_mnist(folder, DT_TRAIN), dt_fold(dt_mnist(folder, DT_TEST), 10, 0, DT_TEST), x, IMAGES, 60, 0.8);
}

/* ---- bits ------------------------------------------------------------------------------------------- */

static dt_tensor *wide(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 40, .name = "w"); }

static dt_model *small_model(dt_tensor *(*net)(dt_tensor *x, void *user), int inputs) {
    dt_options o = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    o.net = net, o.input[0] = inputs, o.batch = 4, o.replicas = 1;
    dt_model *m = dt_model_create(&o, &err);
    if (!m) die("small_model", &err);
    return m;
}

/* Every kind of float is read back by the compiler with the same bits: denormals, largest, -0, nine digits. */
static void test_floats_keep_their_bits(void) {
    if (!compiler()) SKIP("no C compiler whose programs run here");
    enum { IN = 50, OUT = 40 };
    static const float special[] = { 0, -0.0f, 1, -1, 0.1f, 1e-45f, -1e-45f, 1.17549435e-38f, 1.17549421e-38f, 3.40282347e+38f, -3.40282347e+38f, 16777216, 16777218, 123456792,
                                     1e9f, 1e10f, 1e-5f, 9.99999975e-05f, 0.5f, 33554428, 8388607.5f, 4294967296.0f };
    static float w[IN * OUT], got[IN * OUT];
    dt_error err = DT_DEFAULTS;
    dt_model *m = small_model(wide, IN);
    random_state = 7;
    for (int i = 0; i < IN * OUT; i++) {
        uint32_t bits = (uniform(), random_state ^ random_state >> 7);
        if ((bits >> 23 & 255) == 255) bits ^= 1u << 30;
        memcpy(&w[i], &bits, 4);
        if (i < COUNT(special)) w[i] = special[i];
    }
    CHECK(dt_parameter_write(m, "w.weight", w, IN * OUT, &err) == 0);
    CHECK(dt_export_c(m, at("bits.c"), NULL, &err) == 0);
    CHECK_OK(err);
    static const char run[] = "#include <stdio.h>\n#include \"bits.c\"\nint main(void) { FILE *f = fopen(\"bits.bin\", \"wb\"); return !f || fwrite(net_w1, sizeof net_w1, 1, f) != 1 || fclose(f); }\n";
    put("bits_run.c", run, sizeof run - 1);
    CHECK(shell(1, "%s " STRICT " bits_run.c -o bits_run -lm && ./bits_run", cc()) == 0);
    size_t n;
    char *bytes = (char *)get(at("bits.bin"), &n);
    CHECK(n == sizeof got);
    if (n == sizeof got) memcpy(got, bytes, n);
    for (int i = 0; i < IN * OUT; i++) CHECK_MSG(!memcmp(&got[i], &w[i], 4), "weight %d: %.9g has become %.9g", i, (double)w[i], (double)got[i]);
    free(bytes);
    dt_model_free(m);
}

/* dt_predict refuses tokens that are none; the file has zeros for them. */
static void test_tokens_outside(void) {
    if (!compiler()) SKIP("no C compiler whose programs run here");
    dt_error err = DT_DEFAULTS;
    dt_model *m = model_of(&(net_case){ "tokens", tokens_only, { 4 }, 0, DT_INT32, 0 }, 1);
    CHECK(dt_export_c(m, at("tokens.c"), NULL, &err) == 0);
    CHECK_OK(err);
    static const char run[] = "#include \"tokens.c\"\nint main(void) {\n    static const int32_t x[4] = {-1, 10, 9, -2147483647 - 1};\n    float y[12];\n    net_predict(x, y);\n"
               "    for (int i = 0; i < 12; i++) if ((y[i] != 0) != (i / 3 == 2)) return 1;\n    return 0;\n}\n";
    put("tokens_run.c", run, sizeof run - 1);
    CHECK(shell(1, "%s " STRICT " tokens_run.c -o tokens_run -lm && ./tokens_run", cc()) == 0);
    dt_model_free(m);
}

/* The text is the same in a locale with a decimal comma, and for the same model. */
static void test_same_text_everywhere(void) {
    static const char *const name[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8", "xx_XX" };
    dt_error err = DT_DEFAULTS;
    dt_model *m = model_of(&cases[1], 1);
    size_t n[2];
    float x[2 * 5] = { 1, 2, 3, 4, 5, -1, 0, 1 };
    char *text[2];
    int found = 0;
    for (int i = 0; i < 2; i++) {
        dt_export_options o = DT_DEFAULTS;
        o.int8 = 1, o.x = x, o.n = 2;
        for (int k = 0; i && !found && k < COUNT(name); k++) found = setlocale(LC_ALL, name[k]) && !strcmp(localeconv()->decimal_point, ",");
        CHECK(dt_export_c(m, at("text.c"), &o, &err) == 0);
        CHECK_OK(err);
        setlocale(LC_ALL, "C");
        text[i] = (char *)get(at("text.c"), &n[i]);
    }
    CHECK(n[0] && n[0] == n[1] && !memcmp(text[0], text[1], n[0]));
    /* it tells what it needs and what it measured, and includes nothing of ours */
    CHECK(strstr(text[0], "void net_predict(const float *x, float *y);") && strstr(text[0], "net_x_size = 5,") && strstr(text[0], "net_y_size = 3,") && strstr(text[0], "On 2 samples"));
    for (const char *p = text[0]; (p = strstr(p, "#include")) != NULL; p++) CHECK_MSG(!strncmp(p, "#include <math.h>", 17) || !strncmp(p, "#include <stdint.h>", 19), "%.40s", p);
    CHECK(!strstr(text[0], "alloc") && !strstr(text[0], "conv2d") && !strstr(text[0], "dtrain.h"));
    free(text[0]), free(text[1]);
    dt_model_free(m);
    if (!found) SKIP("no locale with a decimal comma here");
}

/* What the compiled file asks the linker for: expf, and what compilers make of loops. */
static void test_needs_only_expf(void) {
    dt_error err = DT_DEFAULTS;
    dt_model *m = model_of(&cases[6], 1);
    CHECK(dt_export_c(m, at("alone.c"), NULL, &err) == 0);
    CHECK_OK(err);
    dt_model_free(m);
    if (!compiler() || shell(0, "nm --version")) SKIP("no compiler, or no nm");
    CHECK(shell(1, "%s -std=c99 -O2 -c alone.c -o alone.o && nm -u alone.o | awk '{ print $NF }' | grep -vxE '_?(expf|memcpy|memset|memmove)(@.*)?'; test $? = 1", cc()) == 0);
}

/* Other compilers that happen to be here take the same text, as C and as C++. */
static void test_other_compilers(void) {
    static const char *const other[] = {
        "gcc " STRICT, "clang " STRICT, "tcc -std=c99 -Wall -Werror", "arm-none-eabi-gcc " STRICT " -Wdouble-promotion -O2 -mthumb -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16",
        "g++ -x c++ -Wall -Wextra -Werror", "clang++ -x c++ -Wall -Wextra -Werror" };
    dt_error err = DT_DEFAULTS;
    int ran = 0;
    FILE *f = fopen(at("all.c"), "w");
    for (int i = 0; i < COUNT(cases); i++) {
        char file[100];
        dt_export_options o = DT_DEFAULTS;
        dt_model *m = model_of(&cases[i], 1);
        o.prefix = cases[i].name, o.int8 = i % 2;
        snprintf(file, sizeof file, "%s.c", cases[i].name);
        CHECK(dt_export_c(m, at(file), &o, &err) == 0);
        fprintf(f, "#include \"%s\"\n", file);
        dt_model_free(m);
    }
    fclose(f);
    CHECK_OK(err);
    for (int i = 0; i < COUNT(other); i++) {
        if (shell(0, "%.*s --version || %.*s -v", (int)strcspn(other[i], " "), other[i], (int)strcspn(other[i], " "), other[i])) continue;
        ran++;
        CHECK_MSG(shell(1, "%s -c all.c -o all.o", other[i]) == 0, "%s", other[i]);
    }
    if (!ran) SKIP("no other compiler here");
}

/* ---- misfortune ---------------------------------------------------------------------------------------- */

static int twice(const dt_custom_call *c) { for (int i = 0; i < c->n * 3; i++) c->y[i] = 2 * c->x[0][i]; return 0; }
static dt_tensor *with_custom(dt_tensor *x, void *user) { (void)user; return dt_custom(dt_dense(x, 3), {0}, twice, NULL, .name = "twice"); }
static dt_tensor *custom_aside(dt_tensor *x, void *user) {  /* the custom operation is behind a loss only */
    (void)user;
    dt_tensor *y = dt_dense(x, 3);
    dt_loss(dt_custom(y, {0}, twice, NULL), DT_VALUE, .name = "aside");
    return y;
}
static dt_tensor *nine_outputs(dt_tensor *x, void *user) {
    char name[8];
    (void)user;
    for (int i = 0; i < 9; i++) { snprintf(name, sizeof name, "o%d", i); x = dt_output(dt_relu(x), name); }
    return dt_dense(x, 2);
}

static dt_tensor *dense_norm(dt_tensor *x, void *user) { (void)user; return dt_batchnorm(dt_dense(x, 3), .name = "b"); }
static dt_tensor *scaled_beyond(dt_tensor *x, void *user) { (void)user; return dt_scale(x, 1e39, 0); }

static void test_arguments(void) {
    static const char *const bad[] = { "", "9lives", "a b", "a-b", "x;", "na\xc3\xafve", "0123456789", "a23456789_123456789_123456789_123456789_123456789_123456789_1234" };
    static const char *const good[] = { "a", "_", "Net_2", "a23456789_123456789_123456789_123456789_123456789_123456789_123" };
    dt_error err = DT_DEFAULTS;
    dt_export_options o = DT_DEFAULTS;
    dt_model *m = small_model(one_dense, 4);
    CHECK(dt_export_c(NULL, "x.c", NULL, &err) == DT_ERR_ARGUMENT);
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "model is NULL");
    memset(&err, 0, sizeof err);
    CHECK(dt_export_c(m, NULL, NULL, &err) == DT_ERR_ARGUMENT);
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "path is NULL");
    memset(&err, 0, sizeof err);
    CHECK(dt_export_c(m, "", NULL, &err) == DT_ERR_ARGUMENT && err.code == DT_ERR_ARGUMENT);
    for (int i = 0; i < COUNT(bad); i++) {
        o.prefix = bad[i];
        memset(&err, 0, sizeof err);
        CHECK_MSG(dt_export_c(m, at("never.c"), &o, &err) == DT_ERR_ARGUMENT && strstr(err.text, "prefix"), "%s: %s", bad[i], err.text);
        CHECK(access(at("never.c"), F_OK) != 0);
    }
    for (int i = 0; i < COUNT(good); i++) {
        o.prefix = good[i];
        memset(&err, 0, sizeof err);
        CHECK_MSG(dt_export_c(m, at("good.c"), &o, &err) == 0, "%s: %s", good[i], err.text);
    }
    /* int8 without a number of samples, or with samples that cannot be fed */
    float x[4] = { 1, 2, 3, 4 };
    o.prefix = NULL, o.int8 = 1, o.x = x;
    for (o.n = 0; o.n > -2; o.n--) {
        memset(&err, 0, sizeof err);
        CHECK(dt_export_c(m, at("never.c"), &o, &err) == DT_ERR_ARGUMENT && strstr(err.text, ".n is") && access(at("never.c"), F_OK) != 0);
    }
    o.n = 1, o.int8 = 0;  /* samples without int8 measure nothing */
    CHECK(dt_export_c(m, at("good.c"), &o, NULL) == 0 && isnan(o.difference) && isnan(o.agreement));
    dt_model_free(m);

    m = small_model(with_custom, 4);
    memset(&err, 0, sizeof err);
    CHECK(dt_export_c(m, at("never.c"), NULL, &err) == DT_ERR_ARGUMENT);
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "\"twice\" is a dt_custom");
    CHECK(access(at("never.c"), F_OK) != 0);
    dt_model_free(m);
    m = small_model(custom_aside, 4);
    CHECK(dt_export_c(m, at("good.c"), NULL, NULL) == 0);
    dt_model_free(m);
    m = small_model(nine_outputs, 4);
    memset(&err, 0, sizeof err);
    CHECK(dt_export_c(m, at("good.c"), NULL, &err) == 0);
    CHECK_OK(err);
    dt_model_free(m);

    const float strange[] = { INFINITY, -INFINITY, NAN };
    m = small_model(one_dense, 4);
    for (int i = 0; i < COUNT(strange); i++) {
        float w[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
        w[3 * i] = strange[i];
        memset(&err, 0, sizeof err);
        dt_parameter_write(m, "dense_1.weight", w, 12, &err);
        CHECK(dt_export_c(m, at("never.c"), NULL, &err) == DT_ERR_NUMERIC && strstr(err.text, "not finite"));
        CHECK(access(at("never.c"), F_OK) != 0);
    }
    dt_model_free(m);

    /* finite weights that folding, or a rounding to float, makes infinite or no number: no file that does not compile */
    static const struct { float weight, variance; } folded[] = { { 1, -1 }, { 3e38f, 0 } };
    for (int i = 0; i < COUNT(folded); i++) {
        float w[3] = { folded[i].weight, 1, 1 }, v[3] = { folded[i].variance, 1, 1 };
        m = small_model(dense_norm, 4);
        memset(&err, 0, sizeof err);
        dt_parameter_write(m, "b.weight", w, 3, &err);
        dt_parameter_write(m, "b.running_var", v, 3, &err);
        CHECK_OK(err);
        CHECK_MSG(dt_export_c(m, at("never.c"), NULL, &err) == DT_ERR_NUMERIC && strstr(err.text, "batch norm"), "%d: %s", i, err.text);
        CHECK(access(at("never.c"), F_OK) != 0);
        dt_model_free(m);
    }
    m = small_model(scaled_beyond, 4);
    memset(&err, 0, sizeof err);
    CHECK(dt_export_c(m, at("never.c"), NULL, &err) == DT_ERR_NUMERIC && strstr(err.text, "dt_scale") && access(at("never.c"), F_OK) != 0);
    dt_model_free(m);

    /* a token outside: no file, and the model has its weights again */
    m = model_of(&cases[10], 2);
    int32_t tokens[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0 };
    memset(&o, 0, sizeof o), memset(&err, 0, sizeof err);
    uint32_t before = dt_parameters_crc32c(m);
    o.int8 = 1, o.x = tokens, o.n = 2;
    CHECK(dt_export_c(m, at("never.c"), &o, &err) == DT_ERR_ARGUMENT && strstr(err.text, "token 10"));
    CHECK(dt_parameters_crc32c(m) == before && access(at("never.c"), F_OK) != 0);
    dt_model_free(m);
    m = model_of(&cases[COUNT(cases) - 1], 1);
    memset(&err, 0, sizeof err);
    CHECK(dt_export_c(m, at("never.c"), &o, &err) == DT_ERR_ARGUMENT && strstr(err.text, "inputs"));  /* several inputs cannot be measured */
    dt_model_free(m);
}

/* Whatever goes wrong: the old file stays, and nothing is left beside it. */
static void test_files(void) {
    static const char *const bad[] = { "nowhere/net.c", "plain/net.c", "out/net.c", "out/" };
    dt_model *m = small_model(wide, 200);
    dt_error err = DT_DEFAULTS;
    struct rlimit old, limit;
    size_t n, k;
    mkdir(at("out"), 0700), mkdir(at("out/net.c"), 0700), mkdir(at("full"), 0700);
    put("plain", "x", 1);
    for (int i = 0; i < COUNT(bad); i++) {
        memset(&err, 0, sizeof err);
        CHECK_MSG(dt_export_c(m, at(bad[i]), NULL, &err) == DT_ERR_IO && err.code == DT_ERR_IO && strstr(err.text, bad[i]), "%s: %s", bad[i], err.text);
    }
    CHECK(files_in(at("out")) == 1 && files_in(at("out/net.c")) == 0);
    memset(&err, 0, sizeof err);
    CHECK(access("/dev/full", F_OK) != 0 || dt_export_c(m, "/dev/full", NULL, &err) == DT_ERR_IO);

    CHECK(dt_export_c(m, at("full/net.c"), NULL, NULL) == 0);
    char *first = (char *)get(at("full/net.c"), &n);
    CHECK(n > 60000);
    static const rlim_t room[] = { 0, 1, 4096, 50000 };
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    for (int i = 0; i < COUNT(room); i++) {
        memset(&err, 0, sizeof err);
        limit = old, limit.rlim_cur = room[i];
        fflush(stdout);
        setrlimit(RLIMIT_FSIZE, &limit);
        int rc = dt_export_c(m, at("full/net.c"), NULL, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        char *now = (char *)get(at("full/net.c"), &k);
        CHECK_MSG(rc == DT_ERR_IO && strstr(err.text, "net.c"), "room for %lu bytes: %d %s", (unsigned long)room[i], rc, err.text);
        CHECK(k == n && !memcmp(now, first, n) && files_in(at("full")) == 1);
        free(now);
    }
    signal(SIGXFSZ, SIG_DFL);
    free(first);
    dt_model_free(m);
}

static int allocations, refuse_at, alive;
static void *refusing(size_t bytes, void *user) {
    (void)user;
    if (refuse_at >= 0 && allocations++ >= refuse_at) return NULL;
    alive++;
    return malloc(bytes);
}
static void releasing(void *p, void *user) { (void)user; alive -= p != NULL; free(p); }

/* The first allocation fails, then the second, ...: an error each time, nothing leaked, the model as it was. */
static void test_no_memory(void) {
    dt_options o = DT_DEFAULTS;
    dt_export_options e = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    float x[3 * 5] = { 1, 2, 3 };
    o.net = mlp, o.input[0] = 5, o.batch = 4, o.replicas = 1, o.alloc = refusing, o.release = releasing;
    refuse_at = -1;
    dt_model *m = dt_model_create(&o, &err);
    if (!m) die("model", &err);
    uint32_t before = dt_parameters_crc32c(m);
    int mine = alive, rc = -1;
    e.int8 = 1, e.x = x, e.n = 3;
    for (refuse_at = 0; refuse_at < 20 && rc; refuse_at++) {
        allocations = 0;
        memset(&err, 0, sizeof err);
        rc = dt_export_c(m, at("memory.c"), &e, &err);
        CHECK_MSG(rc == 0 || (rc == DT_ERR_MEMORY && err.code == rc), "%d %s", rc, err.text);
        CHECK(alive == mine && dt_parameters_crc32c(m) == before && (rc == 0) == (access(at("memory.c"), F_OK) == 0));
    }
    CHECK(rc == 0 && refuse_at > 2);
    refuse_at = -1;
    dt_model_free(m);
    CHECK(alive == 0);

    /* a model in the user's own block can be exported too */
    memset(&o, 0, sizeof o);
    o.net = mlp, o.input[0] = 5, o.batch = 4, o.replicas = 1;
    o.memory_size = dt_model_bytes(&o, &err), o.memory = malloc(o.memory_size);
    m = dt_model_create(&o, &err);
    CHECK(m && dt_export_c(m, at("block.c"), &e, &err) == 0);
    CHECK_OK(err);
    dt_model_free(m);
    free(o.memory);
}

int main(void) {
    if (scratch_begin()) return 1;
    RUN(test_nets);
    RUN(test_digits);
    RUN(test_mnist);
    RUN(test_floats_keep_their_bits);
    RUN(test_tokens_outside);
    RUN(test_same_text_everywhere);
    RUN(test_needs_only_expf);
    RUN(test_other_compilers);
    RUN(test_arguments);
    RUN(test_files);
    RUN(test_no_memory);
    if (getenv("KEEP")) printf("%s\n", scratch); else scratch_end();
    return finish();
}
