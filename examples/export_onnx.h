// export_onnx.h - dt_export_onnx: a trained net as an ONNX file, for onnxruntime and every other program that reads them
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "export_onnx.h"
//           train.c, beside this file, has it as --export-onnx FILE. In Python:
//              onnxruntime.InferenceSession("net.onnx").run(["output"], {"input": x})
//
// What:    writes inference as a graph of ONNX's operations (ir 8, opset 17), weights inside; protobuf by hand.
// Owns:    nothing that outlives a call.
// Uses:    >>replicas (the model), >>graph, >>layers (options), >>base.   Used by: programs.
// Promise: the graph computes what dt_predict does, up to rounding, for any number of samples; floats keep every bit; the file
//          appears whole or not at all.
// Source:  onnx.proto and Operators.md of github.com/onnx/onnx.
#ifndef DTRAIN_EXPORT_ONNX_H
#define DTRAIN_EXPORT_ONNX_H

#ifndef DTRAIN_IMPLEMENTED
#error "export_onnx.h goes behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION"
#endif

// dt_export_onnx - the net as an ONNX file. Inputs and outputs have the model's shapes, channels last, behind a batch of any size "N";
// images change to channels first inside, before the first layer that needs it. The first input is called "input", further
// ones have their names; they hold floats, DT_INT32 int32 and DT_UINT8 bytes, which the graph divides by 255. The first output, that of
// dt_predict, is called "output"; those of dt_output follow in the order of their names. A name that is taken gets a _ behind it.
// As in dt_predict, .mean and .deviation are the caller's part. DT_ERR_ARGUMENT names the layer that ONNX has no form for
// (dt_custom), or says that the file would pass 2 GiB, the most that the format can hold; DT_ERR_NUMERIC: a weight is not finite.
DT_API int dt_export_onnx(dt_model *m, const char *path, dt_error *err);

#ifndef DTRAIN_NO_STDIO
enum {  // numbers of the format: types of values and attributes
    DT__ONNX_FLOAT = 1, DT__ONNX_UINT8 = 2, DT__ONNX_INT32 = 6, DT__ONNX_INT64 = 7,
    DT__ONNX_A_FLOAT = 1, DT__ONNX_A_INT = 2, DT__ONNX_A_INTS = 7,
    DT__ONNX_LAST = 0, DT__ONNX_FIRST = 1  // where the channels of an image are
};

// Value by value: the steps of an operation, by name so that exporting links no layer. x and z are inputs, y the output, a to e
// between; # a constant.
typedef struct { const char *op; char to; const char *node; char a, b; double constant; } dt__onnx_step;
static const dt__onnx_step dt__onnx_steps[] = {
    {"relu", 'y', "Relu", 'x', 0, 0},
    {"tanh", 'y', "Tanh", 'x', 0, 0},
    {"sigmoid", 'y', "Sigmoid", 'x', 0, 0},
    {"add", 'y', "Add", 'x', 'z', 0},
    {"sub", 'y', "Sub", 'x', 'z', 0},
    {"mul", 'y', "Mul", 'x', 'z', 0},
    {"silu", 'a', "Sigmoid", 'x', 0, 0},
    {"silu", 'y', "Mul", 'x', 'a', 0},
    {"gelu", 'a', "Mul", 'x', '#', 0.70710678118654752},  // x / 2 * (1 + erf(x / sqrt 2))
    {"gelu", 'b', "Erf", 'a', 0, 0},
    {"gelu", 'c', "Add", 'b', '#', 1},
    {"gelu", 'd', "Mul", 'x', 'c', 0},
    {"gelu", 'y', "Mul", 'd', '#', 0.5},
    {"gelu_tanh", 'a', "Mul", 'x', 'x', 0},  // x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
    {"gelu_tanh", 'b', "Mul", 'a', '#', 0.07135481627260025},
    {"gelu_tanh", 'c', "Add", 'b', '#', 1.5957691216057308},
    {"gelu_tanh", 'd', "Mul", 'x', 'c', 0},
    {"gelu_tanh", 'e', "Sigmoid", 'd', 0, 0},
    {"gelu_tanh", 'y', "Mul", 'x', 'e', 0}};

typedef struct { uint8_t at[2048]; size_t n; } dt__onnx_bytes;  // a message without weights; names are short

typedef struct {
    int users;   // readers, the caller among them; 0: not needed
    int layout;  // of what its node gives
    int has[2];  // the graph has it in this layout
} dt__onnx_value;

typedef struct {
    const dt__graph *g;
    const float *w;  // the model's variables
    dt__onnx_value *value;
    dt__shape_text *name;  // of inputs, then outputs
    dt__onnx_bytes node;   // the one being built
    FILE *f;               // NULL: only count
    uint64_t bytes;        // of the graph
} dt__onnx;

// ---- protobuf: a message is a row of fields; a key holds number and kind: 0 varint, 2 length and bytes, 5 four bytes

static void dt__onnx_put(dt__onnx_bytes *b, const void *data, size_t n) {
    if (n > sizeof b->at - b->n) return;  // cannot be
    memcpy(b->at + b->n, data, n);
    b->n += n;
}
static void dt__onnx_varint(dt__onnx_bytes *b, uint64_t v) {
    do {
        const uint8_t byte = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
        dt__onnx_put(b, &byte, 1);
        v >>= 7;
    } while (v);
}
static void dt__onnx_int(dt__onnx_bytes *b, unsigned field, int64_t v) {
    dt__onnx_varint(b, field << 3);
    dt__onnx_varint(b, (uint64_t)v);
}
static void dt__onnx_data(dt__onnx_bytes *b, unsigned field, const void *data, size_t n) {
    dt__onnx_varint(b, field << 3 | 2);
    dt__onnx_varint(b, n);
    dt__onnx_put(b, data, n);
}
static void dt__onnx_text(dt__onnx_bytes *b, unsigned field, const char *text) { dt__onnx_data(b, field, text, strlen(text)); }
static void dt__onnx_message(dt__onnx_bytes *b, unsigned field, const dt__onnx_bytes *message) { dt__onnx_data(b, field, message->at, message->n); }

static void dt__onnx_write(dt__onnx *e, const void *data, size_t n) {
    e->bytes += n;
    if (e->f) fwrite(data, 1, n, e->f);
}
static void dt__onnx_field(dt__onnx *e, unsigned field, const dt__onnx_bytes *message) {  // of the graph
    dt__onnx_bytes head = DT_DEFAULTS;
    dt__onnx_varint(&head, field << 3 | 2);
    dt__onnx_varint(&head, message->n);
    dt__onnx_write(e, head.at, head.n);
    dt__onnx_write(e, message->at, message->n);
}

// ---- constants

// The head of a constant whose values follow; no dimensions: a scalar.
static void dt__onnx_constant(dt__onnx *e, const char *name, int type, int rank, const int *dim) {
    dt__onnx_bytes t = DT_DEFAULTS, head = DT_DEFAULTS;
    uint64_t size = type == DT__ONNX_INT64 ? 8 : 4;
    int i;
    for (i = 0; i < rank; i++) { dt__onnx_int(&t, 1, dim[i]); size *= (uint64_t)dim[i]; }
    dt__onnx_int(&t, 2, type);
    dt__onnx_text(&t, 8, name);
    dt__onnx_varint(&t, 9 << 3 | 2);
    dt__onnx_varint(&t, size);
    dt__onnx_varint(&head, 5 << 3 | 2);
    dt__onnx_varint(&head, t.n + size);
    dt__onnx_write(e, head.at, head.n);
    dt__onnx_write(e, t.at, t.n);
}
static void dt__onnx_float_out(dt__onnx *e, float v) {
    uint8_t bytes[4];
    dt__write_le(bytes, dt__float_bits(v), 4);
    dt__onnx_write(e, bytes, 4);
}

// Names that begin with / are the graph's own; users' do not, and those of parameters have a point.
static const char *dt__onnx_own(const dt_tensor *t, const char *what, dt__shape_text *out) {
    dt__format(out->text, sizeof out->text, "/%d/%s", t->number, what);
    return out->text;
}
static const char *dt__onnx_ints_constant(dt__onnx *e, const dt_tensor *t, const char *what, int n, const int *v, dt__shape_text *out) {
    uint8_t bytes[8];
    int i;
    dt__onnx_constant(e, dt__onnx_own(t, what, out), DT__ONNX_INT64, 1, &n);
    for (i = 0; i < n; i++) { dt__write_le(bytes, (uint64_t)(int64_t)v[i], 8); dt__onnx_write(e, bytes, 8); }
    return out->text;
}
static const char *dt__onnx_scalar(dt__onnx *e, const dt_tensor *t, const char *what, float v, dt__shape_text *out) {
    dt__onnx_constant(e, dt__onnx_own(t, what, out), DT__ONNX_FLOAT, 0, NULL);
    dt__onnx_float_out(e, v);
    return out->text;
}

// Variable k of layer t, once: filters in the order of files, which is ONNX's, the others as they lie in memory: channels last.
static const char *dt__onnx_variable(dt__onnx *e, const dt_tensor *t, int k) {
    const dt__var *v = t->variable[k];
    const int filters = v->rank == 4, dense = v->rank == 2 && t->op->name[0] == 'd', turned[2] = {v->dim[dense], v->dim[v->rank > 1 && !dense]};
    ptrdiff_t i;
    for (i = 0; i < t->number; i++) if (e->value[i].users && e->g->node[i]->variable[k] == v) return v->name;
    dt__onnx_constant(e, v->name, DT__ONNX_FLOAT, v->rank, filters ? v->dim : turned);
    if (!e->f) e->bytes += (uint64_t)v->size * 4;
    else for (i = 0; i < v->size; i++) dt__onnx_float_out(e, e->w[v->offset + (filters ? dt__walk(v, i) : i)]);
    return v->name;
}

// ---- nodes

static void dt__onnx_open(dt__onnx *e, const char *op, const char *to) {
    e->node.n = 0;
    dt__onnx_text(&e->node, 2, to);
    dt__onnx_text(&e->node, 3, to);
    dt__onnx_text(&e->node, 4, op);
}
static void dt__onnx_from(dt__onnx *e, const char *name) { if (name) dt__onnx_text(&e->node, 1, name); }
static void dt__onnx_close(dt__onnx *e) { dt__onnx_field(e, 1, &e->node); }
static void dt__onnx_node(dt__onnx *e, const char *op, const char *to, const char *a, const char *b) {
    dt__onnx_open(e, op, to);
    dt__onnx_from(e, a);
    dt__onnx_from(e, b);
}

static void dt__onnx_attribute(dt__onnx *e, dt__onnx_bytes *a, const char *name, int type) {
    dt__onnx_text(a, 1, name);
    dt__onnx_int(a, 20, type);
    dt__onnx_message(&e->node, 5, a);
}
static void dt__onnx_set_float(dt__onnx *e, const char *name, float v) {
    dt__onnx_bytes a = DT_DEFAULTS;
    uint8_t bytes[4];
    dt__write_le(bytes, dt__float_bits(v), 4);
    dt__onnx_varint(&a, 2 << 3 | 5);
    dt__onnx_put(&a, bytes, 4);
    dt__onnx_attribute(e, &a, name, DT__ONNX_A_FLOAT);
}
static void dt__onnx_set_int(dt__onnx *e, const char *name, int v) {
    dt__onnx_bytes a = DT_DEFAULTS;
    dt__onnx_int(&a, 3, v);
    dt__onnx_attribute(e, &a, name, DT__ONNX_A_INT);
}
static void dt__onnx_set_ints(dt__onnx *e, const char *name, int n, const int *v) {
    dt__onnx_bytes a = DT_DEFAULTS;
    int i;
    for (i = 0; i < n; i++) dt__onnx_int(&a, 8, v[i]);
    dt__onnx_attribute(e, &a, name, DT__ONNX_A_INTS);
}

// ---- values and their names

static int dt__onnx_is_bytes(const dt_tensor *t) { return !t->n_in && ((const dt_input_options *)t->options)->type == DT_UINT8; }
static const dt_tensor *dt__onnx_alias(const dt_tensor *t) {  // what holds its value
    while (!strcmp(t->op->name, "dropout")) t = t->in[0];
    return t;
}

// Output k: what net returned, then those of dt_output; NULL behind the last.
static const dt_tensor *dt__onnx_output(const dt__onnx *e, int k, const char **name) {
    const dt__named *o = e->g->outputs;
    *name = "output";
    if (!k) return e->g->output;
    for (; o && --k; o = o->next) {}
    if (o) *name = o->name;
    return o ? o->t : NULL;
}

// Name k of inputs and outputs: the user's, but UTF-8 and unlike all others.
static void dt__onnx_call(dt__onnx *e, int k, const char *name) {
    char *out = e->name[k].text;
    size_t n = 0;
    int i, length;
    if (*name == '/') out[n++] = '_';
    while (*name && n < sizeof e->name[k].text - 4) {
        length = dt__utf8((const uint8_t *)name, 4);
        if (!length) { out[n++] = '_'; name++; }
        for (; length > 0; length--) out[n++] = *name++;
    }
    out[n] = 0;
    for (i = 0; i < k + e->g->n_variables && n + 1 < sizeof e->name[k].text; i++)
        if (!strcmp(out, i < k ? e->name[i].text : e->g->variable[i - k]->name)) { out[n++] = '_'; out[n] = 0; i = -1; }
}

static const char *dt__onnx_name(const dt__onnx *e, const dt_tensor *t, int layout, dt__shape_text *out) {
    const dt_tensor *o; const char *name;
    int k;
    if (layout == DT__ONNX_FIRST) return dt__onnx_own(t, "channels_first", out);
    for (k = 0; !t->n_in && !dt__onnx_is_bytes(t) && k < e->g->n_inputs; k++) if (e->g->input[k] == t) return e->name[k].text;
    for (k = 0; (o = dt__onnx_output(e, k, &name)) != NULL; k++) if (o == t) return e->name[e->g->n_inputs + k].text;
    return dt__onnx_own(t, t->op->name, out);
}

// The name of t's value in this layout, made if need be.
static const char *dt__onnx_get(dt__onnx *e, const dt_tensor *t, int layout, dt__shape_text *out) {
    static const int perm[2][4] = {{0, 2, 3, 1}, {0, 3, 1, 2}};
    dt__shape_text from;
    int *has;
    t = dt__onnx_alias(t);
    has = &e->value[t->number].has[layout];
    if (!*has) {
        dt__onnx_node(e, "Transpose", dt__onnx_name(e, t, layout, out), dt__onnx_name(e, t, !layout, &from), NULL);
        dt__onnx_set_ints(e, "perm", 4, perm[layout]);
        dt__onnx_close(e);
        *has = 1;
    }
    return dt__onnx_name(e, t, layout, out);
}

// ---- layers

#define DT__ONNX_ANY "relu,leaky_relu,tanh,sigmoid,silu,gelu,gelu_tanh,add,sub,mul,scale,concat,slice,pad"  // either layout will do
#define DT__ONNX_IMAGES "conv2d,maxpool2d,avgpool2d,global_avgpool"
#define DT__ONNX_OTHERS "input,dense,batchnorm,layernorm,softmax,flatten,reshape,dropout,embedding"

// Behind an image with channels first it stays so: most transpositions fall away.
static int dt__onnx_layout(const dt__onnx *e, const dt_tensor *t) {
    int i;
    if (dt__glob(DT__ONNX_IMAGES, t->op->name) || (t->rank == 4 && !strcmp(t->op->name, "batchnorm"))) return DT__ONNX_FIRST;
    for (i = 0; t->rank == 4 && i < t->n_in && dt__glob(DT__ONNX_ANY, t->op->name); i++)
        if (e->value[dt__onnx_alias(t->in[i])->number].layout == DT__ONNX_FIRST) return DT__ONNX_FIRST;
    return DT__ONNX_LAST;
}

static void dt__onnx_by_steps(dt__onnx *e, const dt_tensor *t, const char *x, const char *z, const char *y) {
    dt__shape_text own[2], constant, to;
    const dt__onnx_step *s;
    for (s = dt__onnx_steps; s < dt__onnx_steps + DT__COUNT(dt__onnx_steps); s++) {
        const char what[2] = {s->to, 0}, arguments[2] = {s->a, s->b};
        const char *from[2] = {NULL, NULL};
        int i;
        if (strcmp(s->op, t->op->name)) continue;
        for (i = 0; i < 2 && arguments[i]; i++) {
            const char other[2] = {arguments[i], 0};
            from[i] = *other == 'x' ? x : *other == 'z' ? z : *other == '#' ? dt__onnx_scalar(e, t, s->to == 'y' ? "y_constant" : s->to == 'a' ? "a_constant"
                    : s->to == 'b' ? "b_constant" : "c_constant", (float)s->constant, &constant) : dt__onnx_own(t, other, &own[i]);
        }
        dt__onnx_node(e, s->node, s->to == 'y' ? y : dt__onnx_own(t, what, &to), from[0], from[1]);
        dt__onnx_close(e);
    }
}

// Batch norm of neither rank 2 nor 4: x * scale + shift.
static void dt__onnx_plain_norm(dt__onnx *e, const dt_tensor *t, const char *x, const char *y) {
    const dt_batchnorm_options *o = (const dt_batchnorm_options *)t->options;
    const dt__var *const *v = (const dt__var *const *)t->variable;
    dt__shape_text scale, shift, product;
    const int n = t->dim[t->rank - 1];
    int i, k;
    for (k = 0; k < 2; k++) {
        dt__onnx_constant(e, k ? dt__onnx_own(t, "shift", &shift) : dt__onnx_own(t, "scale", &scale), DT__ONNX_FLOAT, 1, &n);
        for (i = 0; i < n; i++) {
            const double factor = (double)e->w[v[0]->offset + i] / sqrt((double)e->w[v[3]->offset + i] + o->epsilon);
            dt__onnx_float_out(e, (float)(k ? (double)e->w[v[1]->offset + i] - (double)e->w[v[2]->offset + i] * factor : factor));
        }
    }
    dt__onnx_node(e, "Mul", dt__onnx_own(t, "product", &product), x, scale.text);
    dt__onnx_close(e);
    dt__onnx_node(e, "Add", y, product.text, shift.text);
    dt__onnx_close(e);
}

static void dt__onnx_conv(dt__onnx *e, const dt_tensor *t, const char *x, const char *y) {
    const dt_conv2d_options *o = (const dt_conv2d_options *)t->options;
    const dt__conv v = dt__conv_of(t);
    const int same = o->padding == DT_SAME, top = (int)v.top, left = (int)v.left;
    const int kernel[2] = {o->kernel, o->kernel_w}, strides[2] = {o->stride, o->stride}, dilations[2] = {o->dilation, o->dilation};
    const int pads[4] = {top, left, same ? (int)DT__MAX(v.hp - v.h, 0) - top : top, same ? (int)DT__MAX(v.wp - v.w, 0) - left : left};
    const char *w = dt__onnx_variable(e, t, 0), *b = t->variable[1] ? dt__onnx_variable(e, t, 1) : NULL;
    dt__onnx_node(e, "Conv", y, x, w);
    dt__onnx_from(e, b);
    dt__onnx_set_ints(e, "kernel_shape", 2, kernel);
    dt__onnx_set_ints(e, "strides", 2, strides);
    dt__onnx_set_ints(e, "dilations", 2, dilations);
    dt__onnx_set_ints(e, "pads", 4, pads);
    dt__onnx_set_int(e, "group", o->groups);
    dt__onnx_close(e);
}

static void dt__onnx_pool(dt__onnx *e, const dt_tensor *t, const char *x, const char *y) {
    const dt_pool2d_options *o = (const dt_pool2d_options *)t->options;
    const int size[2] = {o->size, o->size}, strides[2] = {o->stride, o->stride}, pads[4] = {o->padding, o->padding, o->padding, o->padding};
    dt__onnx_node(e, t->op->name[0] == 'm' ? "MaxPool" : "AveragePool", y, x, NULL);
    dt__onnx_set_ints(e, "kernel_shape", 2, size);
    dt__onnx_set_ints(e, "strides", 2, strides);
    dt__onnx_set_ints(e, "pads", 4, pads);
    dt__onnx_close(e);
}

// Concat, slice and pad go along one axis, which channels first has elsewhere.
static void dt__onnx_move(dt__onnx *e, const dt_tensor *t, int layout, const char *x, const char *z, const char *y) {
    static const int moved[4] = {0, 2, 3, 1};
    static const char *const what[4] = {"starts", "ends", "axes", "steps"};
    const dt_slice_options *o = (const dt_slice_options *)t->options;
    const int axis = layout == DT__ONNX_FIRST ? moved[o->axis] : o->axis;
    dt__shape_text text[4];
    if (t->op->name[0] == 's') {
        const int v[4] = {o->begin, o->end, axis, o->step};
        int k;
        for (k = 0; k < 4; k++) dt__onnx_ints_constant(e, t, what[k], 1, &v[k], &text[k]);
        dt__onnx_node(e, "Slice", y, x, NULL);
        for (k = 0; k < 4; k++) dt__onnx_from(e, text[k].text);
    } else if (t->op->name[0] == 'p') {
        int pads[2 * DT_MAX_RANK] = {0};
        pads[axis] = -o->begin;
        pads[t->rank + axis] = t->dim[o->axis] - t->in[0]->dim[o->axis] + o->begin;
        dt__onnx_ints_constant(e, t, "pads", 2 * t->rank, pads, &text[0]);
        dt__onnx_node(e, "Pad", y, x, text[0].text);
    } else {
        dt__onnx_node(e, "Concat", y, x, z);
        dt__onnx_set_int(e, "axis", axis);
    }
    dt__onnx_close(e);
}

// x / 255 of bytes.
static void dt__onnx_from_bytes(dt__onnx *e, const dt_tensor *t, const char *y) {
    dt__shape_text a, b;
    int k = 0;
    while (e->g->input[k] != t) k++;
    dt__onnx_node(e, "Cast", dt__onnx_own(t, "a", &a), e->name[k].text, NULL);
    dt__onnx_set_int(e, "to", DT__ONNX_FLOAT);
    dt__onnx_close(e);
    dt__onnx_scalar(e, t, "constant", 1 / 255.0f, &b);
    dt__onnx_node(e, "Mul", y, a.text, b.text);
    dt__onnx_close(e);
}

static void dt__onnx_layer(dt__onnx *e, const dt_tensor *t) {
    dt__onnx_value *value = &e->value[t->number];
    const char *op = t->op->name, *x = NULL, *z = NULL, *y, *w[4] = {NULL, NULL, NULL, NULL};
    const void *o = t->options;
    dt__shape_text in[2], out, a, b;
    int k;
    if (dt__onnx_alias(t) != t) return;
    value->layout = dt__onnx_layout(e, t);
    if (t->n_in > 0) x = dt__onnx_get(e, t->in[0], value->layout, &in[0]);
    if (t->n_in > 1) z = dt__onnx_get(e, t->in[1], value->layout, &in[1]);
    if (t->rank != 4) value->layout = DT__ONNX_LAST;  // global_avgpool ends the image
    y = dt__onnx_name(e, t, value->layout, &out);
    value->has[value->layout] = 1;
    if (!strcmp(op, "input")) { if (dt__onnx_is_bytes(t)) dt__onnx_from_bytes(e, t, y); }
    else if (!strcmp(op, "conv2d")) dt__onnx_conv(e, t, x, y);
    else if (dt__glob("maxpool2d,avgpool2d", op)) dt__onnx_pool(e, t, x, y);
    else if (dt__glob("concat,slice,pad", op)) dt__onnx_move(e, t, value->layout, x, z, y);
    else if (!strcmp(op, "batchnorm") && t->rank != 2 && t->rank != 4) dt__onnx_plain_norm(e, t, x, y);
    else if (!strcmp(op, "dense")) {
        for (k = 0; k < 2 && t->variable[k]; k++) w[k] = dt__onnx_variable(e, t, k);
        dt__onnx_node(e, t->rank == 2 ? "Gemm" : "MatMul", t->rank == 2 || !w[1] ? y : dt__onnx_own(t, "a", &a), x, w[0]);
        if (t->rank == 2) dt__onnx_from(e, w[1]);
        dt__onnx_close(e);
        if (t->rank == 2 || !w[1]) return;
        dt__onnx_node(e, "Add", y, a.text, w[1]);
        dt__onnx_close(e);
    } else if (dt__glob("batchnorm,layernorm", op)) {
        for (k = 0; k < 4; k++) if (t->variable[k]) w[k] = dt__onnx_variable(e, t, k);
        dt__onnx_node(e, *op == 'b' ? "BatchNormalization" : "LayerNormalization", y, x, NULL);
        for (k = 0; k < 4; k++) dt__onnx_from(e, w[k]);
        if (*op == 'l') dt__onnx_set_int(e, "axis", -1);
        dt__onnx_set_float(e, "epsilon", (float)(*op == 'l' ? ((const dt_layernorm_options *)o)->epsilon : ((const dt_batchnorm_options *)o)->epsilon));
        dt__onnx_close(e);
    } else if (!strcmp(op, "global_avgpool")) {
        dt__onnx_node(e, "GlobalAveragePool", dt__onnx_own(t, "a", &a), x, NULL);
        dt__onnx_close(e);
        dt__onnx_node(e, "Flatten", y, a.text, NULL);
        dt__onnx_close(e);
    } else if (dt__glob("flatten,reshape", op)) {  // 0: as it is
        dt__onnx_ints_constant(e, t, "shape", t->rank, t->dim, &a);
        dt__onnx_node(e, "Reshape", y, x, a.text);
        dt__onnx_close(e);
    } else if (!strcmp(op, "scale")) {
        dt__onnx_scalar(e, t, "factor", ((const dt__linear_options *)o)->factor[0], &b);
        dt__onnx_node(e, "Mul", dt__onnx_own(t, "a", &a), x, b.text);
        dt__onnx_close(e);
        dt__onnx_scalar(e, t, "offset", ((const dt__linear_options *)o)->offset, &b);
        dt__onnx_node(e, "Add", y, a.text, b.text);
        dt__onnx_close(e);
    } else if (dt__glob("softmax,leaky_relu", op)) {
        dt__onnx_node(e, *op == 's' ? "Softmax" : "LeakyRelu", y, x, NULL);
        if (*op == 's') dt__onnx_set_int(e, "axis", -1); else dt__onnx_set_float(e, "alpha", ((const dt__activation_options *)o)->slope);
        dt__onnx_close(e);
    } else if (!strcmp(op, "embedding")) {
        w[0] = dt__onnx_variable(e, t, 0);
        dt__onnx_node(e, "Gather", y, w[0], x);
        dt__onnx_close(e);
    } else dt__onnx_by_steps(e, t, x, z, y);
}

// ---- the file

// An input or output of the graph: name, type and shape.
static void dt__onnx_port(dt__onnx *e, unsigned field, int k, const dt_tensor *t, int type) {
    dt__onnx_bytes shape = DT_DEFAULTS, tensor = DT_DEFAULTS, any = DT_DEFAULTS, port = DT_DEFAULTS;
    int i;
    for (i = 0; i < t->rank; i++) {
        dt__onnx_bytes dim = DT_DEFAULTS;
        if (i) dt__onnx_int(&dim, 1, t->dim[i]); else dt__onnx_text(&dim, 2, "N");
        dt__onnx_message(&shape, 1, &dim);
    }
    dt__onnx_int(&tensor, 1, type);
    dt__onnx_message(&tensor, 2, &shape);
    dt__onnx_message(&any, 1, &tensor);
    dt__onnx_text(&port, 1, e->name[k].text);
    dt__onnx_message(&port, 2, &any);
    dt__onnx_field(e, field, &port);
}

static void dt__onnx_graph(dt__onnx *e) {
    const dt__graph *g = e->g;
    dt__onnx_bytes name = DT_DEFAULTS;
    const dt_tensor *t; const char *called;
    dt__shape_text text;
    int i, k;
    e->bytes = 0;
    dt__onnx_text(&name, 2, "net");
    dt__onnx_write(e, name.at, name.n);
    for (i = 0; i < g->n; i++) memset(e->value[i].has, 0, sizeof e->value[i].has);
    for (i = 0; i < g->n; i++) if (e->value[i].users) dt__onnx_layer(e, g->node[i]);
    for (k = 0; k < g->n_inputs; k++) {
        t = g->input[k];
        dt__onnx_port(e, 11, k, t, dt__onnx_is_bytes(t) ? DT__ONNX_UINT8 : t->type == DT_INT32 ? DT__ONNX_INT32 : DT__ONNX_FLOAT);
    }
    for (k = 0; (t = dt__onnx_output(e, k, &called)) != NULL; k++) {
        const char *to = e->name[g->n_inputs + k].text, *from = dt__onnx_get(e, t, DT__ONNX_LAST, &text);
        if (strcmp(from, to)) {  // an input, dropout, or another output too
            dt__onnx_node(e, "Identity", to, from, NULL);
            dt__onnx_close(e);
        }
        dt__onnx_port(e, 12, g->n_inputs + k, t, t->type == DT_INT32 ? DT__ONNX_INT32 : DT__ONNX_FLOAT);
    }
}

// What is needed, and whether ONNX has it.
static int dt__onnx_mark(dt__onnx *e, dt_error *err) {
    int i, k;
    for (i = e->g->n - 1; i >= 0; i--) {
        const dt_tensor *t = e->g->node[i];
        e->value[i].users += t->is_output;
        if (!e->value[i].users) continue;
        if (!dt__glob(DT__ONNX_ANY "," DT__ONNX_IMAGES "," DT__ONNX_OTHERS, t->op->name))
            return dt__deny(err, "dt_export_onnx: layer \"%s\" is a dt_%s, which has no ONNX form: use other operations", t->name, t->op->name);
        if (!strcmp(t->op->name, "scale")) {
            const dt__linear_options *o = (const dt__linear_options *)t->options;
            if (!(fabsf(o->factor[0]) <= FLT_MAX) || !(fabsf(o->offset) <= FLT_MAX))
                return dt__fail(err, DT_ERR_NUMERIC, "dt_export_onnx: layer \"%s\": factor or offset is beyond float", t->name);
        }
        for (k = 0; k < t->n_in; k++) e->value[t->in[k]->number].users++;
    }
    return 0;
}

DT_API int dt_export_onnx(dt_model *m, const char *path, dt_error *err) {
    dt__onnx e = DT_DEFAULTS;
    dt__onnx_bytes head = DT_DEFAULTS, tail = DT_DEFAULTS, opset = DT_DEFAULTS;
    dt__new_file file; dt__pool pool;
    const char *name; ptrdiff_t i;
    int code, k, n_outputs = 0;
    if (!m || !path) return dt__is_null(err, m ? "path" : "model");
    e.g = &m->graph; e.w = m->replica[0].variables;
    while (dt__onnx_output(&e, n_outputs, &name)) n_outputs++;
    dt__pool_open(&pool, &m->o, 0);
    pool.base = NULL;  // the model's own block is full
    e.value = (dt__onnx_value *)dt__take(&pool, (size_t)e.g->n * sizeof *e.value);
    e.name = (dt__shape_text *)dt__take(&pool, (size_t)(e.g->n_inputs + n_outputs) * sizeof *e.name);
    code = e.value && e.name ? dt__onnx_mark(&e, err) : dt__fail(err, DT_ERR_MEMORY, "dt_export_onnx: no memory for a plan of %d layers", e.g->n);
    for (i = 0; i < e.g->n_floats && !code; i++)
        if (!(fabsf(e.w[i]) <= FLT_MAX)) code = dt__fail(err, DT_ERR_NUMERIC, "dt_export_onnx: a weight is not finite: train or load again");
    if (!code) {
        for (k = 0; k < e.g->n_inputs; k++) dt__onnx_call(&e, k, k ? e.g->input[k]->name : "input");
        for (k = 0; dt__onnx_output(&e, k, &name); k++) dt__onnx_call(&e, e.g->n_inputs + k, name);
        dt__onnx_graph(&e);  // counts
        if (e.bytes > 2147483647 - 1024)
            code = dt__deny(err, "dt_export_onnx: the file would have %.1f GiB: ONNX files hold at most 2", (double)e.bytes / (1 << 30));
    }
    if (!code && (code = dt__new_file_open(&file, "dt_export_onnx", path, err)) == 0) {
        dt__onnx_int(&head, 1, 8);
        dt__onnx_text(&head, 2, "dtrain");
        dt__onnx_text(&head, 3, dt_version());
        dt__onnx_varint(&head, 7 << 3 | 2);
        dt__onnx_varint(&head, e.bytes);
        dt__onnx_int(&opset, 2, 17);
        dt__onnx_message(&tail, 8, &opset);
        e.f = file.f;
        dt__onnx_write(&e, head.at, head.n);
        dt__onnx_graph(&e);
        dt__onnx_write(&e, tail.at, tail.n);
        code = dt__new_file_close(&file, err);
    }
    dt__pool_close(pool);
    return code;
}
#undef DT__ONNX_ANY
#undef DT__ONNX_IMAGES
#undef DT__ONNX_OTHERS
#else
DT_API int dt_export_onnx(dt_model *m, const char *path, dt_error *err) {
    (void)m; (void)path;
    return dt__off(err, "DTRAIN_NO_STDIO");
}
#endif
#endif  // DTRAIN_EXPORT_ONNX_H
