// npy.h - dt_npy: arrays that NumPy's numpy.save wrote
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "npy.h"
//           In other files that call dt_npy: both without the definition.
//
// What:    opening checks the headers, and whole labels against their range; values stay as they are on the disk until a
//          replica's thread converts those of the samples that it feeds.
// Owns:    nothing that outlives a call: files and headers belong to the open dt_dataset.
// Uses:    >>data (pairs of files, values), >>base.   Used by: programs.
// Promise: a header is compared with the bytes there are before a value is read; no value changes but by rounding, or is an error.
#ifndef DTRAIN_NPY_H
#define DTRAIN_NPY_H

#ifndef DTRAIN_H
#error "npy.h goes behind dtrain.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

// dt_npy - what numpy.save writes, in C order: samples x [n, …] and labels y [n] or [n, …], or NULL; files as for
// dt_idx. float32, int32 and uint8 (value / 255) are used where they lie on the disk and may be larger than memory;
// float16, float64, bool and other integers (within int32) are converted when read. For grey images [n, h, w] set
// .input = {h, w, 1}.
DT_API dt_source dt_npy(const char *x, const char *y);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // DTRAIN_NPY_H

#if defined(DTRAIN_IMPLEMENTED) && !defined(DTRAIN_NPY_IMPLEMENTED)
#define DTRAIN_NPY_IMPLEMENTED

#ifndef DTRAIN_NO_STDIO
typedef struct {  // a file's values: shape, and type in NumPy's three characters
    const uint8_t *data;
    size_t dim[DT_MAX_RANK];
    ptrdiff_t values, stride;  // of a sample; its bytes
    int rank;
    char descr[4];
} dt__npy;

// Pass blanks, and t if it follows: ' stands for either quote, . for anything.
static int dt__npy_pass(const char **p, const char *end, const char *t) {
    const char *q;
    char quote = 0;
    while (*p < end && (**p == ' ' || (**p >= '\t' && **p <= '\r'))) ++*p;
    for (q = *p; *t; t++, q++) {
        if (q == end || (*t != '.' && *q != (*t == '\'' && quote ? quote : *t) && (*t != '\'' || quote || *q != '"'))) return 0;
        if (*t == '\'') quote = *q;
    }
    *p = q;
    return 1;
}

static int dt__npy_shape(const char **p, const char *end, dt__npy *a) {  // (2, 3) or (2,)
    int comma = 1;
    if (!dt__npy_pass(p, end, "(")) return 0;
    for (; comma && !dt__npy_pass(p, end, ")"); comma = dt__npy_pass(p, end, ",")) {
        size_t n = 0, digits = 0;
        for (; dt__digit_at(*p, end) && n < SIZE_MAX / 10; ++*p, digits++) n = n * 10 + (size_t)(**p - '0');
        if (!digits || a->rank == DT_MAX_RANK) return 0;
        a->dim[a->rank++] = n;
    }
    return a->rank && (comma || (a->rank > 1 && dt__npy_pass(p, end, ")")));
}

// NPY (numpy.lib.format): magic, version, length, {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, the values.
static int dt__npy_header(const dt__file *f, const char *path, dt__npy *a, dt_error *err) {
    const char *p, *end, *fortran = NULL;
    size_t at = f->size > 12 && f->data[6] == 1 ? 10 : 12, n = f->size > 12 ? (size_t)dt__read_le(f->data + 8, (int)at - 8) : SIZE_MAX;
    int key, seen = 0, ok, comma = 1;
    if (n > f->size - at || n > 10000 || memcmp(f->data, "\x93NUMPY", 6) || f->data[6] < 1 || f->data[6] > 3 || f->data[7])
        return dt__bad_file(err, "\"%s\" is no .npy file of version 1.0 to 3.0, or cut in its header, or compressed without .gz in its name: np.save it", path);
    p = (const char *)f->data + at; end = p + n;
    ok = dt__npy_pass(&p, end, "{");
    while (ok && comma && !dt__npy_pass(&p, end, "}")) {
        key = dt__npy_pass(&p, end, "'descr'") ? 1 : dt__npy_pass(&p, end, "'fortran_order'") ? 2 : dt__npy_pass(&p, end, "'shape'") ? 4 : 8;
        ok = key < 8 && !(seen & key) && dt__npy_pass(&p, end, ":");
        seen |= key;
        if (ok && key == 1 && (ok = dt__npy_pass(&p, end, "'...'")) != 0) {
            memcpy(a->descr, p - 4, 3);
            ok = strlen(a->descr) == 3 && strchr("<>|", p[-4]) && strstr("f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1", a->descr + 1) && p[-3] >= 'b' && (p[-4] != '|' || p[-2] == '1');
            if (!ok) p -= 5;
        } else if (ok && key == 2) {
            if (dt__npy_pass(&p, end, "True")) fortran = p - 4; else ok = dt__npy_pass(&p, end, "False");
        } else if (ok) ok = dt__npy_shape(&p, end, a);
        comma = ok && dt__npy_pass(&p, end, ",");
    }
    ok = ok && (comma || dt__npy_pass(&p, end, "}")) && seen == 7 && dt__npy_pass(&p, end, "") && p == end;
    if (ok && fortran && a->rank > 1) { ok = 0; p = fortran; }
    if (!ok) return dt__bad_file(err, "\"%s\": cannot take its header from \"%.*s\" on: np.save np.ascontiguousarray(a, np.float32), of 1 to %d dimensions", path, (int)DT__MIN(end - p, 24), p, DT_MAX_RANK);
    a->data = f->data + at + n;
    return 0;
}

static int dt__npy_native(const char *descr) { const uint16_t one = 1; return (*(const char *)&one == 1) == (descr[0] != '>'); }

// n values of a NumPy type to floats ('f') or int32 (all others).
static int dt__npy_convert(float *dst, const uint8_t *src, const char *descr, ptrdiff_t n, const char *what, ptrdiff_t sample, dt_error *err) {
    const int width = descr[2] - '0', flip = descr[0] == '>' ? width - 1 : 0, whole = descr[1] != 'f', native = width == 8 && dt__npy_native(descr);  // faster, for numpy's defaults
    const uint64_t sign = descr[1] == 'i' ? UINT64_C(1) << (8 * width - 1) : 0;
    const double limit = whole ? 2147483647.0 : (double)FLT_MAX;
    for (; n > 0; n--, dst++, src += width) {
        uint64_t bits = 0;
        double v;
        int k = native ? 0 : width;
        if (native) memcpy(&bits, src, 8);
        while (k--) bits = bits << 8 | src[k ^ flip];
        if (whole) { bits = (bits ^ sign) - sign; v = sign && bits >> 63 ? -(double)(0 - bits) : (double)bits; }
        else if (width == 8) memcpy(&v, &bits, 8);
        else {
            float f = dt__float_from((uint32_t)bits << (width == 2 ? 16 : 0));
            if (width == 2) dt__cpu()->widen(DT_F16, 1, &f, &f);
            v = (double)f;
        }
        if (v - v == 0 && (v > limit || v < -limit - whole)) return dt__bad_file(err, "%s: sample %td holds %.9g, beyond %s: np.save smaller values", what, sample, v, whole ? "int32" : "float32");
        if (whole) { int32_t i = (int32_t)v; memcpy(dst, &i, 4); } else *dst = (float)v;
    }
    return 0;
}

static int dt__npy_sample(const dt_dataset *d, const uint8_t *from, long i, dt_type to, float *x, dt_error *err) {
    const dt__npy *a = (const dt__npy *)d->x;
    int code = dt__npy_convert(x, from, a->descr, a->values, "dt_npy", i, err);
    return code ? code : dt__set_values(x, x, d->info.x_type, to, a->values, i, err);
}

static int dt__npy_label(const dt_dataset *d, const uint8_t *from, long i, dt_type to, float *y, dt_error *err) {
    const dt__npy *a = (const dt__npy *)d->x + 1;
    (void)to;
    return dt__npy_convert(y, from, a->descr, a->values, "dt_npy", i, err);
}

static int dt__npy_pair(dt_dataset *d, const char *const *path) {  // samples path[0], labels path[1] or NULL
    dt__npy *x = (dt__npy *)d->x, *y = x + 1;
    int k; ptrdiff_t i, n;
    for (k = 0; k < 2 && path[k]; k++) {
        const dt__file *f = dt__add_file(d, path[k]);
        dt__npy a = DT_DEFAULTS, *before = &x[k];
        dt_type *type = k ? &d->info.y_type : &d->info.x_type;
        size_t width;
        if (!f || dt__npy_header(f, path[k], &a, d->err)) return 1;
        width = (size_t)(a.descr[2] - '0');
        if (dt__check_size(d, path[k], a.dim, a.rank, width, f->size - (size_t)(a.data - f->data), &a.stride)) return 1;
        a.values = a.stride / (ptrdiff_t)width;
        if (d->n_parts && (strcmp(a.descr, before->descr) || memcmp(a.dim + 1, before->dim + 1, sizeof a.dim - sizeof *a.dim))) return dt__other_shape(d, path[k]);
        *type = a.descr[1] == 'f' ? DT_FLOAT32 : strcmp(a.descr + 1, "u1") ? DT_INT32 : DT_UINT8;
        if (*type != DT_UINT8 && (a.descr[1] == 'u' || a.descr[2] != '4' || !dt__npy_native(a.descr))) d->read[k] = k ? dt__npy_label : dt__npy_sample;
        *before = a;
    }
    d->x_stride = x->stride; d->y_stride = y->stride; d->y_values = y->values;
    d->info.input[0] = 1;  // of [n]
    for (k = 1; k < x->rank; k++) d->info.input[k - 1] = (int)x->dim[k];
    if (dt__add_pair(d, path, x->data, x->dim[0], y->data, y->dim[0])) return 1;
    n = d->info.y_type == DT_FLOAT32 ? 0 : (ptrdiff_t)y->dim[0] * y->values;
    for (i = 0; i < n; i++) {
        float value; int v;
        if (dt__npy_convert(&value, y->data + i * (y->descr[2] - '0'), y->descr, 1, path[1], i / y->values, d->err)) return 1;
        v = (int)dt__float_bits(value);
        d->info.classes = DT__MAX(d->info.classes, v + (v < INT_MAX));
    }
    return 0;
}

static int dt__open_npy(dt_dataset *d) {
    if (!(d->x = calloc(2, sizeof(dt__npy)))) return dt__no_memory(d);  // headers of samples and labels; those of other files are alike
    return dt__open_pairs(d, dt__npy_pair);
}
#else
#define dt__open_npy dt__no_files
#endif

DT_API dt_source dt_npy(const char *x, const char *y) { return dt__files("dt_npy", dt__open_npy, x, y, DT_TRAIN); }
#endif
