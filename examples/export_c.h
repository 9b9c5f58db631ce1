// export_c.h - dt_export_c: a trained net as one C99 file that depends on nothing, for firmware
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "export_c.h"
//           export.c, beside this file, is a whole program; train.c has it as --export-c FILE.
//
// What:    writes inference of one sample as C99: weights as constants, one call per layer, and the functions called.
// Owns:    nothing that outlives a call.
// Uses:    >>replicas (the model), >>graph (placing buffers), >>layers (options), >>base.   Used by: programs.
// Promise: the file computes what dt_predict does, up to rounding; floats keep every bit; it appears whole or not at all.
// Source:  bytes with a scale per output channel: Krishnamoorthi 2018, arXiv:1806.08342, section 3.1.
#ifndef DTRAIN_EXPORT_C_H
#define DTRAIN_EXPORT_C_H

#ifndef DTRAIN_IMPLEMENTED
#error "export_c.h goes behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION"
#endif

typedef struct {
    const char *prefix;       // of every name in the file, a C identifier; NULL -> "net"
    int int8;                 // 1: weights of dense and conv2d as bytes, symmetric, with one float scale per output channel
    const void *x;  long n;   // int8: samples on which to measure what it costs, as for dt_predict; NULL: not measured
    double difference;        // out: largest |float - int8| of a value of the output; NAN if not measured
    double agreement;         // out: share of rows (of the last axis) whose largest value keeps its place; NAN likewise
    size_t weight_bytes, work_bytes;  // out: constants and static memory of the code
} dt_export_options;

// dt_export_c - the net as one C99 file that needs nothing else, for microcontrollers and other programs. It defines
//     void <prefix>_predict(const float *x, float *y);     // one sample, as dt_predict computes it
// x is int32_t or unsigned char for DT_INT32 or DT_UINT8; further inputs come behind x, and what dt_output has named
// behind y, in the order of their names. enum { <prefix>_x_size, <prefix>_y_size, … } holds the numbers of values. No malloc,
// and of libc expf only; activations lie in static memory: one call at a time. Batch norm goes into the dense or conv2d before
// it. As in dt_predict, .mean and .deviation are the caller's part. o may be NULL. DT_ERR_ARGUMENT names the layer that has no C
// (dt_custom); DT_ERR_NUMERIC: a weight is not finite. C++ compilers take the file too.
DT_API int dt_export_c(dt_model *m, const char *path, dt_export_options *o, dt_error *err);

#ifndef DTRAIN_NO_STDIO
// Operations, by name so that exporting links no layer; the function for them; what it gets, by letters: numbers (capitals), x and z
// inputs (X: bytes, T: tokens), w weights, s their scales, b bias, y output; its code. Filters are dot products: the sum stays in a
// register, and the scale of its bytes comes once.
typedef struct { const char *ops, *name, *gets, *code; } dt__c_row;
#define DT__TO(i, n) for (int i = 0; i < n; i++)
#define DT__EACH_ROW for (; rows > 0; rows--, x += n, y += n)
#define DT__C0(ops, name, gets, ...) {ops, #name, gets, #__VA_ARGS__},
#define DT__CS(...) DT__C0(__VA_ARGS__)
#define DT__C(name, ...) DT__C0(#name, name, __VA_ARGS__)
#define DT__C1(name, gets, value) DT__C(name, gets, { DT__TO(i, n) y[i] = value; })
static const dt__c_row dt__c_rows[] = {
    {"flatten,reshape,dropout", "", "", ""},
    DT__C1(input, "LXy", (float)x[i] * (1 / 255.0f))
    DT__C1(add, "Lxzy", x[i] + z[i])
    DT__C1(sub, "Lxzy", x[i] - z[i])
    DT__C1(mul, "Lxzy", x[i] * z[i])
    DT__C1(scale, "LFOxy", x[i] * factor + offset)
    DT__C1(leaky_relu, "LKxy", x[i] <= 0 ? x[i] * slope : x[i])
    DT__C1(relu, "Lxy", x[i] <= 0 ? 0 : x[i])
    DT__C1(tanh, "Lxy", 1 - 2 / (1 + expf(2 * x[i])))
    DT__C1(sigmoid, "Lxy", 1 / (1 + expf(-x[i])))
    DT__C1(silu, "Lxy", x[i] / (1 + expf(-x[i])))
    DT__C1(gelu_tanh, "Lxy", x[i] / (1 + expf(-1.5957691f * (x[i] + 0.044715f * x[i] * x[i] * x[i]))))
    DT__C(gelu, "Lxy", { DT__TO(i, n) {  // Abramowitz & Stegun 7.1.26
        float a = (x[i] < 0 ? -x[i] : x[i]) * 0.70710678f, t = 1 / (1 + 0.3275911f * a);
        t *= 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
        t *= 0.5f * expf(-a * a); y[i] = x[i] * (x[i] > 0 ? 1 - t : t); } })
    DT__C(softmax, "Rxy", { DT__EACH_ROW {
        float top = x[0], sum = 0; DT__TO(i, n) if (x[i] > top) top = x[i];
        DT__TO(i, n) sum += y[i] = expf(x[i] - top); DT__TO(i, n) y[i] /= sum; } })
    DT__C(layernorm, "RExwby", { DT__EACH_ROW {
        float mean = 0, v = 0, root, next; DT__TO(i, n) mean += x[i] / (float)n;
        DT__TO(i, n) v += (x[i] - mean) * (x[i] - mean) / (float)n; v += epsilon; next = v > 1 ? v : 1;
        do { root = next; next = 0.5f * (root + v / root); } while (next < root);  // Heron's square root, from above
        DT__TO(i, n) y[i] = (x[i] - mean) / root * k[i] + (b ? b[i] : 0); } })
    DT__C(batchnorm, "Rxwby", { DT__EACH_ROW DT__TO(i, n) y[i] = x[i] * k[i] + b[i]; })
    DT__C(dense, "RIxwsby", {
        for (; rows > 0; rows--, x += in) DT__TO(o, n) {
            float sum = 0; DT__TO(i, in) sum += x[i] * (float)k[o * in + i];
            *y++ = sum * (scale ? scale[o] : 1) + (b ? b[o] : 0); } })
    DT__C(conv2d, "Cxwsby", {
        int n = c / groups; DT__TO(oy, oh) DT__TO(ox, ow) DT__TO(f, filters) {
        float sum = 0; DT__TO(ky, kh) DT__TO(kx, kw) {
                int iy = oy * stride + ky * dilation - top, ix = ox * stride + kx * dilation - left;
                int at = (iy * w + ix) * c + f / (filters / groups) * n, tap = ((f * kh + ky) * kw + kx) * n;
                if (iy >= 0 && iy < h && ix >= 0 && ix < w) DT__TO(i, n) sum += x[at + i] * (float)k[tap + i]; }
                *y++ = sum * (scale ? scale[f] : 1) + (b ? b[f] : 0); } })
    DT__CS("maxpool2d,avgpool2d,global_avgpool", pool2d, "Pxy", {
        DT__TO(oy, oh) DT__TO(ox, ow) DT__TO(i, c) {
        int n = 0; float v = 0; DT__TO(ky, size) DT__TO(kx, size) {
                int iy = oy * stride + ky - padding, ix = ox * stride + kx - padding;
            if (iy >= 0 && iy < h && ix >= 0 && ix < w) {
                    float t = x[(iy * w + ix) * c + i]; v = !max ? v + t : n == 0 || t > v || t != t ? t : v; n++; } }
                *y++ = max ? v : v / (float)n; } })
    DT__C(concat, "Jxzy", {
        for (; n > 0; n--) { DT__TO(i, x_part) *y++ = *x++; DT__TO(i, z_part) *y++ = *z++; } })
    DT__C(slice, "Sxy", {
        for (; n > 0; n--, x += from * part) DT__TO(i, to) DT__TO(k, part) *y++ = x[(begin + i * step) * part + k]; })
    DT__C(pad, "Dxy", {
        for (; n > 0; n--) { DT__TO(i, before) *y++ = 0; DT__TO(i, part) *y++ = *x++; DT__TO(i, after) *y++ = 0; } })
    DT__C(embedding, "RITwy", {
        for (; rows > 0; rows--, x++) DT__TO(i, n) *y++ = *x < 0 || *x >= in ? 0 : k[(int)*x * n + i]; })
};
#undef DT__TO
#undef DT__EACH_ROW
#undef DT__C0
#undef DT__CS
#undef DT__C
#undef DT__C1

// The parameters behind a letter of .gets; @ is the type of weights. Their arguments are in dt__c_layer.
static const char *const dt__c_parameters[] = {
    "Lint n", "Rint rows, int n", "Iint in", "Efloat epsilon", "Kfloat slope", "Ffloat factor", "Ofloat offset",
    "Cint h, int w, int c, int oh, int ow, int filters, int kh, int kw, int stride, int dilation, int groups, int top, int left",
    "Pint max, int h, int w, int c, int oh, int ow, int size, int stride, int padding", "Jint n, int x_part, int z_part",
    "Sint n, int from, int begin, int step, int to, int part", "Dint n, int before, int part, int after", "xconst float *x",
    "Xconst unsigned char *x", "Tconst int32_t *x", "zconst float *z", "wconst @ *k", "sconst float *scale", "bconst float *b", "yfloat *y"};

typedef struct {
    const dt__c_row *row;
    int users;   // readers, the caller among them; 0: not needed
    int buffer;  // of the plan, or -1 - k: argument k, an input
    const dt_tensor *norm;  // folded into this layer; itself if alone
} dt__c_node;

typedef struct {
    const dt__graph *g;
    dt_export_options *o;
    const char *prefix;
    float *w;        // the model's variables, or a copy
    dt__c_node *node;
    dt__graph plan;  // its buffers only: of one sample, without gradients
    FILE *f;
    int infinite;  // C has no text for a number
} dt__c;

static dt__c_node *dt__c_of(const dt__c *e, const dt_tensor *t) { return &e->node[t->number]; }
static int dt__c_is_alias(const dt__c *e, const dt_tensor *t) { return !*dt__c_of(e, t)->row->gets; }  // a view, nothing, or folded
static int dt__c_is_bytes(const dt_tensor *t) { return !t->n_in && ((const dt_input_options *)t->options)->type == DT_UINT8; }
static ptrdiff_t dt__c_taps(const dt_tensor *t) { return t->variable[0]->size / t->dim[t->rank - 1]; }  // weights per output channel

// Argument k: x, x1, …, then y, y1, …; NULL behind the last.
static const dt_tensor *dt__c_argument(const dt__c *e, int k, dt__shape_text *name) {
    const dt__named *o = e->g->outputs;
    int y = k - e->g->n_inputs;
    dt__format(name->text, sizeof name->text, k && y ? "%c%d" : "%c", y < 0 ? 'x' : 'y', y < 0 ? k : y);
    if (y <= 0) return y ? e->g->input[k] : e->g->output;
    for (; o; o = o->next) if (o->t != e->g->output && --y == 0) return o->t;
    return NULL;
}

// The first needed layer with t's variables, which holds the arrays, or the last. Batch norms hold their own.
static int dt__c_sharer(const dt__c *e, const dt_tensor *t, int last) {
    int i, found = -1;
    for (i = 0; i < e->g->n && (last || found < 0); i++) if (e->node[i].users && e->g->node[i]->variable[0] == t->variable[0]) found = i;
    return dt__c_of(e, t)->norm ? t->number : found;
}

// What is needed, and its row.
static int dt__c_mark(dt__c *e, dt_error *err) {
    int i, k;
    for (i = e->g->n - 1; i >= 0; i--) {
        const dt_tensor *t = e->g->node[i];
        e->node[i].row = dt__c_rows;
        e->node[i].users += t->is_output;
        if (!e->node[i].users) continue;
        for (k = 0; k < DT__COUNT(dt__c_rows) && !dt__glob(dt__c_rows[k].ops, t->op->name); k++) {}
        if (k == DT__COUNT(dt__c_rows)) return dt__deny(err, "dt_export_c: layer \"%s\" is a dt_%s, which has no C: use other operations", t->name, t->op->name);
        e->node[i].row += k;
        for (k = 0; k < t->n_in; k++) dt__c_of(e, t->in[k])->users++;
    }
    for (i = 0; i < e->g->n; i++) {  // batch norm goes into the layer before, if nobody else has its output or weights
        const dt_tensor *t = e->g->node[i], *x = t->n_in ? t->in[0] : t;
        dt__c_node *node = &e->node[i], *before = dt__c_of(e, x);
        if (strcmp(node->row->name, "batchnorm")) continue;
        if (before->users > 1 || !strchr(before->row->gets, 's') || dt__c_sharer(e, x, 0) != dt__c_sharer(e, x, 1)) before = node;
        else node->row = dt__c_rows;
        before->norm = t;
    }
    return 0;
}

// Every value lies in an argument or, by liveness, in work memory. What goes value by value or row by row overwrites what it alone reads.
static void dt__c_place(dt__c *e) {
    dt__graph *p = &e->plan;
    const dt_tensor *t, *x; dt__shape_text name;
    int i, k, b;
    for (i = 0; i < e->g->n; i++) {
        const char *gets = e->node[i].row->gets;
        if (!e->node[i].users) continue;
        t = e->g->node[i];
        b = -1;
        if (!t->n_in && !dt__c_is_bytes(t)) while (e->g->input[-1 - b] != t) b--;
        else if (dt__c_is_alias(e, t)) b = dt__c_of(e, t->in[0])->buffer;
        else {
            for (k = 0; k < t->n_in && b < 0 && strchr("LR", *gets) && gets[1] != 'I'; k++) {
                for (x = t->in[k]; dt__c_of(e, x)->users == 1 && dt__c_is_alias(e, x); x = x->in[0]) {}
                if (dt__c_of(e, x)->users == 1) b = dt__c_of(e, x)->buffer;
            }
            if (b < 0) b = dt__new_buffer(p, t->size, 0, i, i);
            p->buffer[b].floats = t->size;  // not rounded up: boards are small
        }
        e->node[i].buffer = b;
        for (k = 0; k < t->n_in; k++) dt__extend(p, dt__c_of(e, t->in[k])->buffer, i);
    }
    for (k = e->g->n_inputs; (t = dt__c_argument(e, k, &name)) != NULL; k++) if ((b = dt__c_of(e, t)->buffer) >= 0) p->buffer[b].floats = 0;  // the caller's
    dt__plan_place(p);
}

// ---- weights

// Weight i of the file: by filter, kernel row, kernel column, channel.
static float *dt__c_weight(const dt__c *e, const dt_tensor *t, ptrdiff_t i) {
    ptrdiff_t n = t->dim[t->rank - 1], taps = dt__c_taps(t), f = i / taps;
    if (t->op->name[0] == 'c') { dt__conv v = dt__conv_of(t); if (!v.depthwise) n = v.fg; }
    return e->w + t->variable[0]->offset + (t->op->name[0] == 'e' ? i : (f / n * taps + i % taps) * n + f % n);
}

// What a unit of the bytes of filter f stands for: its largest weight becomes +-127.
static double dt__c_step(const dt__c *e, const dt_tensor *t, ptrdiff_t f) {
    ptrdiff_t k, taps = dt__c_taps(t);
    float most = 0;
    for (k = 0; k < taps; k++) most = DT__MAX(most, fabsf(*dt__c_weight(e, t, f * taps + k)));
    return (double)most / 127;
}
static double dt__c_byte(float w, double step) { return step > 0 ? floor((double)w / step + 0.5) : 0; }

// Compare predictions with floats and with what the bytes stand for.
static int dt__c_measure(dt__c *e, dt_model *m, dt__pool *pool, dt_error *err) {
    dt_export_options *o = e->o;
    ptrdiff_t n = 0, c = e->g->output->dim[e->g->output->rank - 1], i, j, a, b, same = 0;
    float *y = o->n > 0 && dt__times(o->n, e->g->output->size, &n) ? (float *)dt__take(pool, (size_t)n * 2 * sizeof *y) : NULL, *z;
    float *rounded = (float *)dt__take(pool, (size_t)e->g->n_floats * sizeof *rounded);
    float **kept = (float **)dt__take(pool, (size_t)m->n_replicas * sizeof *kept);
    double step = 0;
    int code;
    if (o->n <= 0) return dt__deny(err, "dt_export_c: .n is %ld: at least 1 sample is needed", o->n);
    if (!y || !rounded || !kept) return dt__fail(err, DT_ERR_MEMORY, "dt_export_c: .n is %ld: no memory to measure so many", o->n);
    if ((code = dt_predict(m, o->x, o->n, y, err)) != 0) return code;
    z = y + n;
    memcpy(rounded, e->w, (size_t)e->g->n_floats * sizeof *rounded);
    e->w = rounded;
    for (i = 0; i < e->g->n; i++) {
        const dt_tensor *t = e->g->node[i];
        for (j = 0; strchr(e->node[i].row->gets, 's') && j < t->variable[0]->size; j++) {
            float *w = dt__c_weight(e, t, j);
            if (j % dt__c_taps(t) == 0) step = dt__c_step(e, t, j / dt__c_taps(t));
            *w = (float)(dt__c_byte(*w, step) * step);
        }
    }
    for (i = 0; i < m->n_replicas; i++) { kept[i] = m->replica[i].variables; m->replica[i].variables = rounded; }
    code = dt_predict(m, o->x, o->n, z, err);
    for (i = 0; i < m->n_replicas; i++) m->replica[i].variables = kept[i];
    for (i = 0, o->difference = 0; i < n; i += c, same += a == b)
        for (a = b = j = 0; j < c; j++) {
            double d = fabs((double)y[i + j] - (double)z[i + j]);
            if (d > o->difference || d != d) o->difference = d;  // NaN stays
            if (y[i + j] > y[i + a]) a = j;
            if (z[i + j] > z[i + b]) b = j;
        }
    if (c > 1) o->agreement = (double)same / (double)(n / c);
    return code;
}

// ---- the file

// What C calls what layer t gets as x, z, w, s, b or y.
static const char *dt__c_at(const dt__c *e, const dt_tensor *t, char role, dt__shape_text *out) {
    const dt_tensor *a;
    int k, b = dt__c_of(e, role == 'y' || !t->n_in ? t : t->in[role == 'z'])->buffer;
    if (strchr("wsb", role)) {
        k = role == 's' ? e->o->int8 : role == 'w' || t->variable[1] || dt__c_of(e, t)->norm;
        dt__format(out->text, sizeof out->text, k ? "%s_%c%d" : "0", e->prefix, role, dt__c_sharer(e, t, 0));
        return out->text;
    }
    for (k = 0; (a = dt__c_argument(e, k, out)) != NULL; k++)
        if (k < e->g->n_inputs ? b == -1 - k || (a == t && role != 'y') : b == dt__c_of(e, a)->buffer) return out->text;
    dt__format(out->text, sizeof out->text, "work + %td", e->plan.buffer[b].offset);
    return out->text;
}

static void dt__c_float(dt__c *e, double v) {  // a float as C that reads the same bits back
    char text[24];
    e->infinite |= !(fabs((double)(float)v) <= (double)FLT_MAX);
    dt__format(text, sizeof text, "%.9g", (double)(float)v);
    fprintf(e->f, strpbrk(text, ".e") ? "%sf" : "%s.0f", text);
}

// name: operation [in] -> [out]
static void dt__c_comment(dt__c *e, const char *before, const dt_tensor *t, const char *more) {
    dt__shape_text shape; const char *c;
    int i;
    fputs(before, e->f);
    for (c = t->name; *c; c++) fputc(*c > ' ' && *c < 127 && *c != '/' ? *c : '_', e->f);  // nothing ends the comment
    fprintf(e->f, ": %s", t->op->name);
    for (i = 0; i < t->n_in; i++) fprintf(e->f, " [%s", dt__shape_of(t->in[i], &shape) + 3);
    fprintf(e->f, " -> [%s%s */\n", dt__shape_of(t, &shape) + 3, more);
}

// A function of the table: one statement a line, indented by braces.
static void dt__c_function(dt__c *e, const dt__c_row *row) {
    const char *s, *p;
    int depth = 0, inside = 0, k;
    fprintf(e->f, "\nstatic void %s_%s(", e->prefix, row->name);
    for (p = row->gets; *p; p++) {
        for (k = 0; *dt__c_parameters[k] != *p; k++) {}
        for (s = dt__c_parameters[k] + 1; *s; s++)
            if (*s == '@') fputs(e->o->int8 && strchr(row->gets, 's') ? "signed char" : "float", e->f); else fputc(*s, e->f);
        fputs(p[1] ? ", " : ") ", e->f);
    }
    for (s = row->code; *s; s++) {
        fputc(*s, e->f);
        inside += (*s == '(') - (*s == ')'); depth += (*s == '{') - (*s == '}');
        if (inside || !strchr(";{}", *s)) continue;
        if (s[1] == ' ') s++;
        fprintf(e->f, "\n%*s", 4 * (depth - (s[1] == '}')), "");
    }
}

static double dt__c_variable(const dt__c *e, const dt_tensor *t, int k, ptrdiff_t i) { return (double)e->w[t->variable[k]->offset + i]; }

static void dt__c_array(dt__c *e, const dt_tensor *t, char role) {
    const dt_tensor *norm = dt__c_of(e, t)->norm;
    ptrdiff_t taps = role == 'w' ? dt__c_taps(t) : 1, n = role == 'w' ? t->variable[0]->size : t->dim[t->rank - 1], i;
    int scaled = e->o->int8 && strchr(dt__c_of(e, t)->row->gets, 's'), bytes = scaled && role == 'w';
    double step = 0, scale = 1, shift = 0, value;
    fprintf(e->f, "static const %s %s_%c%d[%td] = {", bytes ? "signed char" : "float", e->prefix, role, t->number, n);
    for (i = 0; i < n; i++) {
        ptrdiff_t f = i / taps;
        if (norm) {
            const dt_batchnorm_options *o = (const dt_batchnorm_options *)norm->options;
            scale = dt__c_variable(e, norm, 0, f) / sqrt(dt__c_variable(e, norm, 3, f) + o->epsilon);
            shift = dt__c_variable(e, norm, 1, f) - dt__c_variable(e, norm, 2, f) * scale;
        }
        if (scaled && i % taps == 0) step = dt__c_step(e, t, f);
        value = role == 's' ? step : norm == t ? role == 'w' : role == 'w' ? (double)*dt__c_weight(e, t, i) : t->variable[1] ? dt__c_variable(e, t, 1, f) : 0;
        if (norm) value = value * scale + (role == 'b' ? shift : 0);
        fputs(i % (bytes ? 32 : 10) ? " " : "\n    ", e->f);
        if (bytes) fprintf(e->f, "%d", (int)dt__c_byte(*dt__c_weight(e, t, i), step)); else dt__c_float(e, value);
        fputc(',', e->f);
    }
    fputs("\n};\n", e->f);
    e->o->weight_bytes += (size_t)n * (bytes ? 1 : sizeof(float));
}

static ptrdiff_t dt__c_product(const dt_tensor *t, int axis, int end) {
    ptrdiff_t n = 1;
    for (; axis < end; axis++) n *= t->dim[axis];
    return n;
}

static void dt__c_layer(dt__c *e, const dt_tensor *t) {
    const char *p = dt__c_of(e, t)->row->gets;
    const dt_tensor *x = t->n_in ? t->in[0] : t;
    const void *o = t->options;
    const dt_pool2d_options *pool = (const dt_pool2d_options *)o;
    const dt_slice_options *move = (const dt_slice_options *)o;
    const int axis = *p && strchr("JSD", *p) ? move->axis : 1;
    ptrdiff_t n = t->dim[t->rank - 1], outer = dt__c_product(t, 1, axis), inner = dt__c_product(t, axis + 1, t->rank);
    dt__shape_text text; dt__conv v;
    if (!t->n_in && !dt__c_is_bytes(t)) return;
    dt__c_comment(e, "\n    /* ", t, *p ? "" : t->op->name[0] == 'b' ? ", in the weights before" : ", nothing to do");
    if (*p) fprintf(e->f, "    %s_%s(", e->prefix, dt__c_of(e, t)->row->name);
    for (; *p; p++) {
        switch (*p) {
        case 'L': fprintf(e->f, "%td", t->size); break;
        case 'R': fprintf(e->f, "%td, %td", t->size / n, n); break;
        case 'I': fprintf(e->f, "%td", dt__c_taps(t)); break;
        case 'E': dt__c_float(e, ((const dt_layernorm_options *)o)->epsilon); break;
        case 'K': dt__c_float(e, (double)((const dt__activation_options *)o)->slope); break;
        case 'F': dt__c_float(e, (double)((const dt__linear_options *)o)->factor[0]); break;
        case 'O': dt__c_float(e, (double)((const dt__linear_options *)o)->offset); break;
        case 'C':
            v = dt__conv_of(t);
            fprintf(e->f, "%td, %td, %td, %td, %td, %td, %td, %td, %td, %td, %td, %td, %td", v.h, v.w, v.c, v.oh, v.ow, v.f, v.kh, v.kw, v.s, v.dil, v.groups, v.top, v.left);
            break;
        case 'P':
            fprintf(e->f, "%d, %d, %d, %d, ", t->op->name[0] == 'm', x->dim[1], x->dim[2], x->dim[3]);
            if (pool) fprintf(e->f, "%d, %d, %d, %d, %d", t->dim[1], t->dim[2], pool->size, pool->stride, pool->padding);
            else fprintf(e->f, "1, 1, %d, 1, 0", DT__MAX(x->dim[1], x->dim[2]));  // global
            break;
        case 'J': fprintf(e->f, "%td, %td, %td", outer, x->size / outer, t->in[1]->size / outer); break;
        case 'S': fprintf(e->f, "%td, %d, %d, %d, %d, %td", outer, x->dim[axis], move->begin, move->step, t->dim[axis], inner); break;
        case 'D':
            n = -move->begin * inner;
            fprintf(e->f, "%td, %td, %td, %td", outer, n, x->size / outer, (t->size - x->size) / outer - n);
            break;
        default: fputs(dt__c_at(e, t, *p, &text), e->f);
        }
        fputs(p[1] ? ", " : ");\n", e->f);
    }
}

static void dt__c_prototype(dt__c *e, const char *end) {
    dt__shape_text name; const dt_tensor *t;
    int k;
    fprintf(e->f, "void %s_predict(", e->prefix);
    for (k = 0; (t = dt__c_argument(e, k, &name)) != NULL; k++)
        fprintf(e->f, "%s%s%s *%s", k ? ", " : "", k < e->g->n_inputs ? "const " : "", k >= e->g->n_inputs ? "float"
                : t->type == DT_INT32 ? "int32_t" : dt__c_is_bytes(t) ? "unsigned char" : "float", name.text);
    fputs(end, e->f);
}

static void dt__c_write(dt__c *e) {
    const dt__graph *g = e->g;
    const dt_tensor *t; const dt__c_row *row;
    dt__shape_text name, text; const char *p;
    int i, k;
    fprintf(e->f, "/* %s_predict: a net as C99, written by dt_export_c of dtrain %s. x and y must not overlap. Activations lie in static\n"
            " * memory: one call at a time.", e->prefix, dt_version());
    if (e->o->difference >= 0) {
        dt__format(text.text, sizeof text.text, "%.4g; %.4g", e->o->difference, e->o->agreement);
        fprintf(e->f, " Weights are bytes. On %ld samples, their largest difference in y from floats, and the share\n"
                " * of rows whose largest value keeps its place: %s.", e->o->n, text.text);
    }
    fputs(" */\n#include <math.h>\n#include <stdint.h>\nenum {\n", e->f);
    for (k = 0; (t = dt__c_argument(e, k, &name)) != NULL; k++) {
        fprintf(e->f, "    %s_%s_size = %td,", e->prefix, name.text, t->size);
        dt__c_comment(e, "  /* ", t, "");
    }
    fputs("};\n", e->f);
    dt__c_prototype(e, ");\n");
    for (row = dt__c_rows + 1; row < dt__c_rows + DT__COUNT(dt__c_rows); row++) {
        for (i = 0; i < g->n && !(e->node[i].row == row && e->node[i].buffer >= 0); i++) {}
        if (i < g->n) dt__c_function(e, row);
    }
    for (i = 0; i < g->n; i++) {
        t = g->node[i];
        if (!strchr(p = e->node[i].row->gets, 'w') || dt__c_sharer(e, t, 0) != i) continue;
        dt__c_comment(e, "\n/* ", t, "");
        for (; *p; p++) if (strchr("wsb", *p) && dt__c_at(e, t, *p, &name)[0] != '0') dt__c_array(e, t, *p);
    }
    e->o->work_bytes = (size_t)e->plan.block_floats * sizeof(float);
    fprintf(e->f, "\n/* %lu bytes of constants, %lu of static memory */\n", (unsigned long)e->o->weight_bytes, (unsigned long)e->o->work_bytes);
    dt__c_prototype(e, ") {\n");
    if (e->plan.block_floats) fprintf(e->f, "    static float work[%td];\n", e->plan.block_floats);
    for (i = 0; i < g->n; i++) if (e->node[i].users) dt__c_layer(e, g->node[i]);
    for (k = 0; (t = dt__c_argument(e, k, &name)) != NULL; k++) {
        if (k < g->n_inputs && !dt__c_of(e, t)->users) fprintf(e->f, "    (void)%s;\n", name.text);
        if (k >= g->n_inputs && strcmp(dt__c_at(e, t, 'y', &text), name.text))  // an input, or another output too
            fprintf(e->f, "    for (int i = 0; i < %td; i++) %s[i] = %s[i];\n", t->size, name.text, text.text);
    }
    fputs("}\n", e->f);
}

DT_API int dt_export_c(dt_model *m, const char *path, dt_export_options *options, dt_error *err) {
    dt_export_options none = DT_DEFAULTS;
    dt__c e = DT_DEFAULTS;
    dt__new_file file; dt__pool pool;
    const char *c; ptrdiff_t i;
    int code;
    if (!m || !path) return dt__is_null(err, m ? "path" : "model");
    e.g = &m->graph; e.w = m->replica[0].variables; e.o = options ? options : &none;
    e.o->difference = e.o->agreement = (double)NAN; e.o->weight_bytes = 0;
    e.prefix = e.o->prefix ? e.o->prefix : "net";
    for (c = e.prefix; *c == '_' || ((*c | 32) >= 'a' && (*c | 32) <= 'z') || (c > e.prefix && *c >= '0' && *c <= '9'); c++) {}
    if (c == e.prefix || *c || c - e.prefix >= DT_MAX_NAME)
        return dt__deny(err, "dt_export_c: .prefix \"%.70s\" is no name in C: use at most %d letters, digits and _", e.prefix, DT_MAX_NAME - 1);
    dt__pool_open(&pool, &m->o, 0);
    pool.base = NULL;  // the model's own block is full
    e.node = (dt__c_node *)dt__take(&pool, (size_t)e.g->n * sizeof *e.node);
    e.plan.buffer = (dt__buffer *)dt__take(&pool, (size_t)e.g->n * sizeof *e.plan.buffer);
    code = e.node && e.plan.buffer ? dt__c_mark(&e, err) : dt__fail(err, DT_ERR_MEMORY, "dt_export_c: no memory for a plan of %d layers", e.g->n);
    for (i = 0; i < e.g->n_floats && !code; i++)
        if (!(fabsf(e.w[i]) <= FLT_MAX)) code = dt__fail(err, DT_ERR_NUMERIC, "dt_export_c: a weight is not finite: train or load again");
    if (!code && e.o->int8 && e.o->x) code = dt__c_measure(&e, m, &pool, err);
    if (!code && (code = dt__new_file_open(&file, "dt_export_c", path, err)) == 0) {
        e.f = file.f;
        dt__c_place(&e);
        dt__c_write(&e);
        if (e.infinite) {
            code = dt__fail(err, DT_ERR_NUMERIC, "dt_export_c: a batch norm's weights, or a dt_scale, are beyond float: train or load again");
            dt__new_file_fail(&file, NULL, "");
        } else code = dt__new_file_close(&file, err);
    }
    dt__pool_close(pool);
    return code;
}
#else
DT_API int dt_export_c(dt_model *m, const char *path, dt_export_options *o, dt_error *err) {
    (void)m; (void)path; (void)o;
    return dt__off(err, "DTRAIN_NO_STDIO");
}
#endif
#endif
