/* files.c - readers of other people's files: NumPy's .npy, folders of PGM, PPM and BMP images, lists of files.
 *
 * Every file is written here byte by byte. A test that needs python3 with numpy asks it for the same arrays
 * (PYTHON names another one), and DTRAIN_FORMATS names a folder of good and bad files.
 */
#include <stdlib.h>
static long allocations, allocation_fails = -1;  /* the one that fails, from 0 */
static int refuse(void) { return allocations++ == allocation_fails; }
static void *test_malloc(size_t n) { return refuse() ? NULL : malloc(n); }
static void *test_calloc(size_t n, size_t size) { return refuse() ? NULL : calloc(n, size); }
static void *test_realloc(void *p, size_t n) { return refuse() ? NULL : realloc(p, n); }
#define malloc test_malloc
#define calloc test_calloc
#define realloc test_realloc
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/csv.h"
#undef malloc
#undef calloc
#undef realloc
#include "test.h"
#include "scratch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES(text) text, sizeof text - 1

/* ---- what is seen of a data set ---------------------------------------------------------------- */

enum { MAX_VALUES = 4096 };

typedef struct {
    dt_dataset_info info;
    float x[MAX_VALUES];     /* [n, values] */
    int32_t whole[MAX_VALUES];  /* the same, as a DT_INT32 input gets it */
    float y[MAX_VALUES];     /* [n, labels] as floats */
    int32_t label[MAX_VALUES];
} seen;

/* Reads all samples as the replicas do. labels: values of a label; 0: none. */
static int see(const dt_source *s, int labels, seen *out, dt_error *err) {
    dt_loss_options o = DT_DEFAULTS;
    dt_tensor x, loss, p;
    dt_dataset *d = dt_dataset_open(s, err);
    ptrdiff_t values = 1;
    memset(out, 0, sizeof *out);
    if (!d) return err->code;
    out->info = dt_dataset_describe(d);
    memset(&x, 0, sizeof x), memset(&loss, 0, sizeof loss), memset(&p, 0, sizeof p);
    for (int i = 0; i < DT_MAX_RANK - 1 && out->info.input[i]; i++) values *= out->info.input[i];
    x.size = values;
    loss.size = labels, loss.in[0] = &p, loss.options = &o;
    p.rank = 2, p.dim[1] = INT_MAX;
    if ((values + labels) * out->info.n > MAX_VALUES) { CHECK_MSG(0, "%ld x %ld values", (long)values, out->info.n); dt_dataset_close(d); return -1; }
    for (long i = 0; i < out->info.n && !err->code; i++) {
        float *at = (float *)malloc((size_t)values * 4), *y = (float *)malloc((size_t)labels * 4 + 4);  /* blocks of the exact size, for the sanitizer */
        x.type = DT_FLOAT32, loss.type = DT_FLOAT32;
        if (!dt__read_sample(d, &x, DT_FLOAT32, at, labels ? &loss : NULL, DT_FLOAT32, y, i, err)) {
            memcpy(out->x + i * values, at, (size_t)values * 4);
            memcpy(out->y + i * labels, y, (size_t)labels * 4);
        }
        x.type = DT_INT32, loss.type = DT_INT32;
        dt_error other = DT_DEFAULTS;  /* what is no whole number has none */
        if (!dt__read_sample(d, &x, DT_INT32, at, NULL, DT_INT32, NULL, i, &other)) memcpy(out->whole + i * values, at, (size_t)values * 4);
        memset(&other, 0, sizeof other);
        x.type = DT_FLOAT32;
        if (labels && !dt__read_sample(d, &x, DT_FLOAT32, at, &loss, DT_INT32, y, i, &other)) memcpy(out->label + i * labels, y, (size_t)labels * 4);
        free(at), free(y);
    }
    dt_dataset_close(d);
    return err->code;
}

/* a message for people: it names the file, and every byte of it is text */
static int readable(const char *text) {
    for (; *text; text++) if ((unsigned char)*text < ' ') return 0;
    return 1;
}

static void expect_error(const dt_source *s, int labels, int code, const char *text, const char *what) {
    static seen got;
    dt_error err = DT_DEFAULTS;
    see(s, labels, &got, &err);
    CHECK_MSG(err.code == code && strstr(err.text, text), "%s: code %d \"%s\", expected %d with \"%s\"", what, err.code, err.text, code, text);
    if (err.code) CHECK_MSG(strlen(err.text) > 20, "%s: \"%s\"", what, err.text);
    dt_dataset_close(dt_dataset_open(s, NULL));  /* nobody listens */
}

/* to rounding: x87 keeps more digits than a float */
static int close_to(float v, double expected) { return fabs((double)v - expected) <= 1e-7 * fabs(expected); }

static void expect_values(const char *what, const float *got, const float *expected, int n) {
    for (int i = 0; i < n; i++)
        CHECK_MSG(got[i] == expected[i] || (got[i] != got[i] && expected[i] != expected[i]) || close_to(got[i], (double)expected[i]), "%s: value %d is %.9g, expected %.9g", what, i, (double)got[i], (double)expected[i]);
}

/* a new file: some file systems write an old one out as it is cut to nothing, which takes milliseconds */
static const char *put_new(const char *name, const void *bytes, size_t n) {
    remove(at(name));
    return put(name, bytes, n);
}

/* ---- NumPy files ----------------------------------------------------------------------------------- */

typedef struct { unsigned char b[20000]; size_t n; } buffer;

static void add(buffer *b, const void *bytes, size_t n) {
    if (n) memcpy(b->b + b->n, bytes, n);
    b->n += n;
}

/* the header as it stands in front of the data; version 1 or 2 */
static void npy_raw(buffer *b, int version, const char *header, size_t n) {
    unsigned char length[4] = { (unsigned char)n, (unsigned char)(n >> 8), 0, 0 };
    b->n = 0;
    add(b, "\x93NUMPY", 6);
    unsigned char v[2] = { (unsigned char)version, 0 };
    add(b, v, 2);
    add(b, length, version == 1 ? 2 : 4);
    add(b, header, n);
}

/* as numpy writes it: padded to a multiple of 64 */
static void npy_start(buffer *b, const char *descr, const char *shape) {
    char header[512];
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    while ((10 + n + 1) % 64) header[n++] = ' ';
    header[n++] = '\n';
    npy_raw(b, 1, header, (size_t)n);
}

static const char *put_npy(const char *name, const char *descr, const char *shape, const void *data, size_t n) {
    static buffer b;
    npy_start(&b, descr, shape);
    add(&b, data, n);
    return put(name, b.b, b.n);
}

/* the bits of v in one of NumPy's types */
static uint64_t bits_of(const char *descr, double v) {
    uint64_t bits;
    float f = (float)v;
    if (descr[1] != 'f') return (uint64_t)(int64_t)v;
    if (descr[2] == '8') { memcpy(&bits, &v, 8); return bits; }
    uint32_t single;
    memcpy(&single, &f, 4);
    if (descr[2] == '4') return single;
    if (v == 0) return 0;
    return (single >> 16 & 0x8000) | ((single >> 23 & 255) - 112) << 10 | (single >> 13 & 1023);  /* a normal number that fits */
}

static void add_value(buffer *b, const char *descr, double v) {
    uint64_t bits = bits_of(descr, v);
    int width = descr[2] - '0';
    for (int k = 0; k < width; k++) {
        unsigned char c = (unsigned char)(bits >> 8 * (descr[0] == '>' ? width - 1 - k : k));
        add(b, &c, 1);
    }
}

static const char *put_values(const char *name, const char *descr, const char *shape, const double *v, int n) {
    static buffer b;
    npy_start(&b, descr, shape);
    for (int i = 0; i < n; i++) add_value(&b, descr, v[i]);
    return put(name, b.b, b.n);
}

static void test_npy_types(void) {
    static const struct { const char *descr; double v[6]; dt_type as; } type[] = {
        { "<f4", { 0, 1, -2.5, 1e30, 3, 7 }, DT_FLOAT32 },        { ">f4", { 0, 1, -2.5, 1e30, 3, 7 }, DT_FLOAT32 },
        { "<f8", { 0, 1, -2.5, 1e30, 0.1, 7 }, DT_FLOAT32 },      { ">f8", { 0, 1, -2.5, 1e-30, 0.1, 7 }, DT_FLOAT32 },
        { "<f2", { 0, 1, -2.5, 1024, 0.125, 7 }, DT_FLOAT32 },    { ">f2", { 0, 1, -2.5, 1024, 0.125, 7 }, DT_FLOAT32 },
        { "|u1", { 0, 1, 255, 128, 3, 7 }, DT_UINT8 },            { "<u1", { 0, 1, 255, 128, 3, 7 }, DT_UINT8 },
        { "|b1", { 0, 1, 1, 0, 1, 1 }, DT_INT32 },                { "|i1", { 0, 1, -128, 127, 3, 7 }, DT_INT32 },
        { "<i2", { 0, 1, -32768, 32767, 3, 7 }, DT_INT32 },       { ">i2", { 0, 1, -32768, 32767, 3, 7 }, DT_INT32 },
        { "<u2", { 0, 1, 65535, 32768, 3, 7 }, DT_INT32 },        { ">u2", { 0, 1, 65535, 32768, 3, 7 }, DT_INT32 },
        { "<i4", { 0, 1, -2147483648.0, 2147483647, 3, 7 }, DT_INT32 },  { ">i4", { 0, 1, -2147483648.0, 2147483647, 3, 7 }, DT_INT32 },
        { "<u4", { 0, 1, 2147483647, 65536, 3, 7 }, DT_INT32 },   { ">u4", { 0, 1, 2147483647, 65536, 3, 7 }, DT_INT32 },
        { "<i8", { 0, 1, -2147483648.0, 2147483647, 3, 7 }, DT_INT32 },  { ">i8", { 0, 1, -2147483648.0, 2147483647, 3, 7 }, DT_INT32 },
        { "<u8", { 0, 1, 2147483647, 65536, 3, 7 }, DT_INT32 },   { ">u8", { 0, 1, 2147483647, 65536, 3, 7 }, DT_INT32 },
    };
    static seen got;
    for (int i = 0; i < COUNT(type); i++) {
        const double *v = type[i].v;
        const char *descr = type[i].descr;
        const char *x = put_values("x.npy", descr, "(2, 3)", v, 6), *y = put_values("y.npy", descr, "(2,)", v + 4, 2);
        float expected[6];
        double largest = 0;
        for (int k = 0; k < 6; k++) expected[k] = type[i].as == DT_UINT8 ? (float)v[k] * (1.0f / 255) : (float)v[k];
        for (int k = 4; k < 6; k++) largest = v[k] > largest ? v[k] : largest;
        dt_error err = DT_DEFAULTS;
        dt_source s = dt_npy(x, y);
        see(&s, 1, &got, &err);
        CHECK_MSG(!err.code, "%s: %s", descr, err.text);
        CHECK_MSG(got.info.n == 2 && got.info.input[0] == 3 && got.info.input[1] == 0, "%s: %ld samples of [%d,%d]", descr, got.info.n, got.info.input[0], got.info.input[1]);
        CHECK_MSG(got.info.x_type == type[i].as && got.info.y_type == type[i].as, "%s: types %d, %d", descr, (int)got.info.x_type, (int)got.info.y_type);
        CHECK_MSG(got.info.classes == (type[i].as == DT_FLOAT32 ? 0 : (int)largest + 1), "%s: %d classes", descr, got.info.classes);
        expect_values(descr, got.x, expected, 6);
        for (int k = 0; k < 2; k++) {
            CHECK_MSG(got.y[k] == (float)v[4 + k], "%s: label %d is %g", descr, k, (double)got.y[k]);
            if (v[4 + k] == floor(v[4 + k])) CHECK_MSG(got.label[k] == (int32_t)v[4 + k], "%s: label %d is %d", descr, k, (int)got.label[k]);
        }
        if (type[i].as != DT_FLOAT32) for (int k = 0; k < 6; k++) CHECK_MSG(got.whole[k] == (int32_t)v[k], "%s: whole number %d is %d", descr, k, (int)got.whole[k]);
    }
}

static void test_npy_not_finite(void) {
    static const double v[6] = { NAN, INFINITY, -INFINITY, 1, 2, 3 };
    static seen got;
    for (int width = 4; width <= 8; width += 4) {
        float expected[6];
        dt_error err = DT_DEFAULTS;
        dt_source s = dt_npy(put_values("x.npy", width == 4 ? "<f4" : "<f8", "(3, 2)", v, 6), NULL);
        for (int k = 0; k < 6; k++) expected[k] = (float)v[k];
        see(&s, 0, &got, &err);
        CHECK_OK(err);
        expect_values("not finite", got.x, expected, 6);
    }
}

static void test_npy_beyond(void) {
    static const struct { const char *descr; double v; const char *text; } row[] = {
        { "<f8", 1e39, "1e+39" },  { "<f8", -1e300, "-1e+300" },  { ">f8", 4e38, "4e+38" },  { "<i8", 2147483648.0, "2.14748365e+09" },
        { "<i8", -2147483649.0, "-2.14748365e+09" },  { ">i8", 9e18, "9e+18" },  { "<u4", 4294967295.0, "4.29496" },  { "<u8", 9.2e18, "9.2e+18" },
    };
    for (int i = 0; i < COUNT(row); i++) {
        const double v[4] = { 1, 2, 3, row[i].v }, fine[2] = { 0, 1 };
        dt_source s = dt_npy(put_values("x.npy", row[i].descr, "(2, 2)", v, 4), NULL);
        expect_error(&s, 0, DT_ERR_FORMAT, "sample 1", row[i].descr);
        expect_error(&s, 0, DT_ERR_FORMAT, row[i].text, row[i].descr);
        s = dt_npy(put_values("fine.npy", "<f4", "(2,)", fine, 2), put_values("y.npy", row[i].descr, "(2,)", v + 2, 2));
        expect_error(&s, 1, DT_ERR_FORMAT, row[i].descr[1] == 'f' ? "sample 1" : "y.npy", row[i].descr);  /* whole labels are all looked at */
        expect_error(&s, 1, DT_ERR_FORMAT, row[i].text, row[i].descr);
    }
    unsigned char all[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };
    dt_source s = dt_npy(put_npy("x.npy", "<u8", "(1, 1)", all, 8), NULL);
    expect_error(&s, 0, DT_ERR_FORMAT, "1.84467", "2^64 - 1");
}

static void test_npy_shapes(void) {
    static const struct { const char *shape; int n, input[DT_MAX_RANK - 1]; } row[] = {
        { "(6,)", 6, { 1 } },  { "(6,1)", 6, { 1 } },  { "(2, 3)", 2, { 3 } },  { "(1, 2, 3)", 1, { 2, 3 } },  { "(3,2,1)", 3, { 2, 1 } },
        { "(1, 1, 1, 1, 1, 6)", 1, { 1, 1, 1, 1, 6 } },  { "(6, 1, 1, 1, 1, 1)", 6, { 1, 1, 1, 1, 1 } },
    };
    static const double v[6] = { 1, 2, 3, 4, 5, 6 };
    static const float expected[6] = { 1, 2, 3, 4, 5, 6 };
    static seen got;
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_source s = dt_npy(put_values("x.npy", "<f8", row[i].shape, v, 6), NULL);
        see(&s, 0, &got, &err);
        CHECK_MSG(!err.code && got.info.n == row[i].n && !memcmp(got.info.input, row[i].input, sizeof row[i].input), "%s: %s, %ld samples of [%d,%d,…]", row[i].shape, err.text, got.info.n, got.info.input[0], got.info.input[1]);
        expect_values(row[i].shape, got.x, expected, 6);
    }
}

static void test_npy_good_headers(void) {
    static const struct { const char *name; int version; const char *header; } row[] = {
        { "numpy's",           1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }        \n" },
        { "version 2",         2, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n" },
        { "version 3",         3, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n" },
        { "no newline",        1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" },
        { "no last comma",     1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}" },
        { "comma in shape",    1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3,)}" },
        { "another order",     1, "{'shape': (2, 3), 'descr': '<f4', 'fortran_order': False}" },
        { "double quotes",     1, "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3)}" },
        { "no blanks",         1, "{'descr':'<f4','fortran_order':False,'shape':(2,3)}" },
        { "many blanks",       1, " \t\r\n{ 'descr' \n: '<f4' ,\t'fortran_order' : False , 'shape' : ( 2 , 3 , ) , } \n\n " },
    };
    static const float expected[6] = { 1, 2, 3, 4, 5, 6 };
    static seen got;
    for (int i = 0; i < COUNT(row); i++) {
        buffer b;
        dt_error err = DT_DEFAULTS;
        npy_raw(&b, row[i].version, row[i].header, strlen(row[i].header));
        for (int k = 0; k < 6; k++) add_value(&b, "<f4", (double)expected[k]);
        dt_source s = dt_npy(put("x.npy", b.b, b.n), NULL);
        see(&s, 0, &got, &err);
        CHECK_MSG(!err.code && got.info.n == 2 && got.info.input[0] == 3, "%s: %s", row[i].name, err.text);
        expect_values(row[i].name, got.x, expected, 6);
    }
    /* Fortran's order is C's where there is one size */
    buffer b;
    dt_error err = DT_DEFAULTS;
    const char *header = "{'descr': '<f4', 'fortran_order': True, 'shape': (6,), }";
    npy_raw(&b, 1, header, strlen(header));
    for (int k = 0; k < 6; k++) add_value(&b, "<f4", (double)expected[k]);
    dt_source s = dt_npy(put("x.npy", b.b, b.n), NULL);
    see(&s, 0, &got, &err);
    CHECK_OK(err);
    expect_values("Fortran's order, one size", got.x, expected, 6);
}

#define START "{'descr': '<f4', 'fortran_order': False, 'shape': "
static void test_npy_bad_headers(void) {
    static const struct { const char *header; size_t n; const char *text; } row[] = {
        { BYTES(""), "header" },  { BYTES("   \n"), "header" },  { BYTES("hello"), "hello" },  { BYTES("{}"), "header" },  { BYTES("{,}"), ",}" },
        { BYTES("[]"), "[]" },  { BYTES("{'descr': '<f4', 'fortran_order': False}"), "header" },  { BYTES("{'descr': '<f4', 'shape': (2, 3)}"), "header" },
        { BYTES("{'fortran_order': False, 'shape': (2, 3)}"), "header" },  { BYTES(START "(2, 3), 'x': 1}"), "'x'" },
        { BYTES(START "(2, 3), 'shape': (2, 3)}"), "header" },  { BYTES("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"), "header" },
        { BYTES(START "(2, 3)} x"), "x" },  { BYTES(START "(2, 3)}}"), "}" },  { BYTES(START "(2, 3)"), "header" },  { BYTES(START "(2, 3"), "header" },
        { BYTES(START "(2, 3),,}"), ",}" },  { BYTES(START "(2 3)}"), "3)}" },  { BYTES(START "(2,, 3)}"), ", 3)" },  { BYTES(START "(, 2, 3)}"), ", 2" },
        { BYTES(START "(6)}"), ")}" },  { BYTES(START "6}"), "6}" },  { BYTES(START "[2, 3]}"), "[2, 3]" },  { BYTES(START "()}"), "header" },
        { BYTES(START "(-2, -3)}"), "-2, -3" },  { BYTES(START "(2.0, 3)}"), ".0, 3" },  { BYTES(START "(2, 'a')}"), "'a'" },  { BYTES(START "(2, None)}"), "None" },
        { BYTES(START "(2, 3, 1, 1, 1, 1, 1)}"), "6 dimensions" },  { BYTES(START "(0, 3)}"), "no sample" },  { BYTES(START "(2, 0)}"), "no sample" },
        { BYTES(START "(99999999999999999999, 3)}"), "header" },  { BYTES(START "(18446744073709551617, 3)}"), "header" },
        { BYTES(START "(4294967296, 4294967296)}"), "4294967296" },  { BYTES(START "(4611686018427387904,)}"), "427387904" },
        { BYTES(START "(2, 4294967299)}"), "9" },  { BYTES(START "(1000000000, 1000000000)}"), "000000000" },
        { BYTES(START "(7,)}"), "28 bytes, 24 follow" },  { BYTES(START "(5,)}"), "20 bytes, 24 follow" },
        { BYTES("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}"), "'|O'" },  { BYTES("{'descr': '<U3', 'fortran_order': False, 'shape': (2, 3)}"), "'<U3'" },
        { BYTES("{'descr': '<c8', 'fortran_order': False, 'shape': (2, 3)}"), "'<c8'" },  { BYTES("{'descr': '<f3', 'fortran_order': False, 'shape': (2, 3)}"), "'<f3'" },
        { BYTES("{'descr': '<f1', 'fortran_order': False, 'shape': (2, 3)}"), "'<f1'" },  { BYTES("{'descr': '|b2', 'fortran_order': False, 'shape': (2, 3)}"), "'|b2'" },
        { BYTES("{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3)}"), "'=f4'" },  { BYTES("{'descr': '|f4', 'fortran_order': False, 'shape': (2, 3)}"), "'|f4'" },
        { BYTES("{'descr': '<4 ', 'fortran_order': False, 'shape': (2, 3)}"), "'<4 '" },  { BYTES("{'descr': '<f ', 'fortran_order': False, 'shape': (2, 3)}"), "'<f '" },
        { BYTES("{'descr': '<f\0', 'fortran_order': False, 'shape': (2, 3)}"), "'<f" },  { BYTES("{'descr': '<\0\0', 'fortran_order': False, 'shape': (2, 3)}"), "'<" },
        { BYTES("{'descr': '\0f4', 'fortran_order': False, 'shape': (2, 3)}"), "header" },  { BYTES("{'descr': '<f16', 'fortran_order': False, 'shape': (2, 3)}"), "'<f16'" },
        { BYTES("{'descr': '', 'fortran_order': False, 'shape': (2, 3)}"), "''" },  { BYTES("{'descr': 4, 'fortran_order': False, 'shape': (2, 3)}"), "4" },
        { BYTES("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}"), "[('a', '<f4')]" },  { BYTES("{'descr': '<f4\", 'fortran_order': False, 'shape': (6,)}"), "header" },
        { BYTES("{'descr\": '<f4', 'fortran_order': False, 'shape': (6,)}"), "'descr" },  { BYTES("{'descr\0': '<f4', 'fortran_order': False, 'shape': (6,)}"), "'descr" },
        { BYTES("{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (6,)}"), "__import__" },
        { BYTES("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}"), "0, 'shape'" },  { BYTES("{'descr': '<f4', 'fortran_order': 'False', 'shape': (2, 3)}"), "'False'" },
        { BYTES("{'descr': '<f4', 'fortran_order': false, 'shape': (2, 3)}"), "false" },  { BYTES("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}"), "ascontiguousarray" },
        { BYTES("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}"), "True" },  { BYTES("\0{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}"), "header" },
        { BYTES("{'descr': '<f4', 'fortran_order': Falsehood, 'shape': (6,)}"), "header" },
    };
    static const unsigned char data[24];
    for (int i = 0; i < COUNT(row); i++) {
        buffer b;
        char name[40];
        snprintf(name, sizeof name, "x%d.npy", i);
        npy_raw(&b, 1, row[i].header, row[i].n);
        add(&b, data, sizeof data);
        dt_source s = dt_npy(put(name, b.b, b.n), NULL);
        expect_error(&s, 0, DT_ERR_FORMAT, name, row[i].header);
        expect_error(&s, 0, DT_ERR_FORMAT, row[i].text, row[i].header);
        s = dt_npy(put_npy("fine.npy", "<f4", "(6,)", data, 24), at(name));
        expect_error(&s, 1, DT_ERR_FORMAT, name, row[i].header);
        remove(at(name));
    }
}

static void test_npy_bad_starts(void) {
    static const struct { const char *what, *bytes; size_t n; const char *text; } row[] = {
        { "empty", BYTES(""), "no .npy" },  { "a word", BYTES("hello"), "no .npy" },  { "wrong magic", BYTES("\x93NUMPX\1\0\5\0{}   000000000000"), "no .npy" },
        { "version 0", BYTES("\x93NUMPY\0\0\5\0{}   0000000"), "version" },  { "version 4", BYTES("\x93NUMPY\4\0\5\0\0\0{}   00000"), "version" },
        { "version 1.1", BYTES("\x93NUMPY\1\1\5\0{}   0000000"), "version" },  { "version 9", BYTES("\x93NUMPY\x09\0\5\0\0\0{}   000"), "version" },
        { "length past the end", BYTES("\x93NUMPY\1\0\xff\xff{}   000000"), "header" },  { "length 2^32 - 1", BYTES("\x93NUMPY\2\0\xff\xff\xff\xff{}   00000"), "header" },
        { "compressed", BYTES("\x1f\x8b\x08\0\0\0\0\0\0\3abcdefgh"), ".gz" },  { "a .npz", BYTES("PK\3\4\0\0\0\0\0\0\0\0abcdefgh"), "no .npy" },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_source s = dt_npy(put("start.npy", row[i].bytes, row[i].n), NULL);
        expect_error(&s, 0, DT_ERR_FORMAT, "start.npy", row[i].what);
        expect_error(&s, 0, DT_ERR_FORMAT, row[i].text, row[i].what);
    }
    /* a header of 10,000 bytes is taken, one of 10,001 is not: numpy's own limit */
    for (int more = 0; more < 2; more++) {
        static buffer b;
        static char header[10001];
        static seen got;
        dt_error err = DT_DEFAULTS;
        memset(header, ' ', sizeof header);
        memcpy(header, BYTES(START "(1,)}"));
        npy_raw(&b, 1, header, 10000 + (size_t)more);
        add_value(&b, "<f4", 1);
        dt_source s = dt_npy(put("long.npy", b.b, b.n), NULL);
        see(&s, 0, &got, &err);
        CHECK_MSG(err.code == (more ? DT_ERR_FORMAT : 0), "%d bytes: %d \"%s\"", 10000 + more, err.code, err.text);
    }
    dt_source s = dt_npy(NULL, NULL);
    expect_error(&s, 0, DT_ERR_ARGUMENT, "dt_npy", "NULL");
    s = dt_npy("", NULL);
    expect_error(&s, 0, DT_ERR_ARGUMENT, "dt_npy", "no path");
    s = dt_npy(at("nothing.npy"), NULL);
    expect_error(&s, 0, DT_ERR_IO, "nothing.npy", "missing");
    s = dt_npy(scratch, NULL);
    expect_error(&s, 0, DT_ERR_IO, scratch, "a folder");
    s = dt_npy(put_npy("fine.npy", "|u1", "(1,)", "a", 1), at("nothing.npy"));
    expect_error(&s, 1, DT_ERR_IO, "nothing.npy", "missing labels");
    s = dt_npy(at("fine.npy"), "");
    expect_error(&s, 1, DT_ERR_ARGUMENT, "dt_npy", "labels without a path");
}

static void test_npy_cut(void) {
    static const char *const descr[] = { "<f4", "|u1", "<f8", ">i2" };
    static const double v[6] = { 1, 2, 3, 4, 5, 6 };
    for (int i = 0; i < COUNT(descr); i++)
        for (int labels = 0; labels < 2; labels++) {
            size_t n;
            put_values("whole.npy", descr[i], labels ? "(6,)" : "(2, 3)", v, 6);
            unsigned char *b = get(at("whole.npy"), &n);
            const char *other = put_values("other.npy", "<f4", "(6, 1)", v, 6);
            for (size_t cut = 0; cut <= n + 1; cut++) {  /* n + 1: a byte too many, the zero behind it */
                static seen got;
                dt_error err = DT_DEFAULTS;
                const char *path = put_new("cut.npy", b, cut);
                dt_source s = labels ? dt_npy(other, path) : dt_npy(path, NULL);
                int code = see(&s, labels, &got, &err);
                CHECK_MSG(code == (cut == n ? 0 : DT_ERR_FORMAT), "%s: %lu of %lu bytes: %d \"%s\"", descr[i], (unsigned long)cut, (unsigned long)n, code, err.text);
                if (cut != n) CHECK_MSG(strstr(err.text, "cut.npy") && readable(err.text), "%lu bytes: \"%s\"", (unsigned long)cut, err.text);
            }
            free(b);
        }
}

/* each byte of the header in turn becomes another one: nothing crashes, and what is taken has a shape that fits the file */
static void test_npy_damaged(void) {
    static const double v[6] = { 1, 2, 3, 4, 5, 6 };
    static const unsigned char damage[] = { 0, ' ', '\'', ',', ')', '1', 'f', '8', 255 };
    size_t n;
    int taken = 0;
    put_values("whole.npy", "<f4", "(2, 3)", v, 6);
    unsigned char *b = get(at("whole.npy"), &n);
    for (size_t i = 0; i < 128; i++)
        for (int k = 0; k < COUNT(damage); k++) {
            static seen got;
            dt_error err = DT_DEFAULTS;
            unsigned char was = b[i];
            b[i] = damage[k];
            dt_source s = dt_npy(put_new("damaged.npy", b, n), NULL);
            see(&s, 0, &got, &err);
            taken += !err.code && was != damage[k];
            if (err.code) CHECK_MSG(strstr(err.text, "damaged.npy") || strstr(err.text, "dt_npy"), "\"%s\"", err.text);
            b[i] = was;
        }
    CHECK_MSG(taken > 0 && taken < 200, "%d", taken);
    free(b);
}

static void test_npy_labels(void) {
    static const double v[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, negative[2] = { -1, -5 }, largest[2] = { 2147483647, 3 };
    static seen got;
    dt_error err = DT_DEFAULTS;
    const char *x = put_values("x.npy", "<f4", "(2, 6)", v, 12);
    dt_source s = dt_npy(x, put_values("y.npy", "<i8", "(2, 3)", v + 1, 6));
    see(&s, 3, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.classes == 7 && got.info.y_type == DT_INT32);
    for (int i = 0; i < 6; i++) CHECK(got.label[i] == i + 1 && got.y[i] == (float)(i + 1));
    expect_error(&s, 2, DT_ERR_SHAPE, "3 values", "a loss of two values");
    expect_error(&s, 1, DT_ERR_SHAPE, "3 values", "a loss of one value");
    expect_error(&s, 6, DT_ERR_SHAPE, "needs 6", "a loss of six values");
    s = dt_npy(x, put_values("y.npy", "|u1", "(2, 1)", v + 3, 2));
    see(&s, 1, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.classes == 5 && got.info.y_type == DT_UINT8 && got.label[0] == 3 && got.label[1] == 4 && got.y[1] == 4);
    expect_error(&s, 2, DT_ERR_SHAPE, "1 values", "a loss of two values, bytes");
    s = dt_npy(x, put_values("y.npy", "<f8", "(2, 2)", v + 1, 4));
    see(&s, 2, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.classes == 0 && got.info.y_type == DT_FLOAT32 && got.y[3] == 4 && got.label[3] == 4);
    s = dt_npy(x, put_values("y.npy", "<i4", "(2,)", negative, 2));
    see(&s, 1, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.classes == 0 && got.y[0] == -1 && got.y[1] == -5);
    s = dt_npy(x, put_values("y.npy", "<i4", "(2,)", largest, 2));
    memset(&err, 0, sizeof err);
    dt_dataset *d = dt_dataset_open(&s, &err);
    CHECK_OK(err);
    CHECK(dt_dataset_describe(d).classes == INT_MAX);
    dt_dataset_close(d);
    s = dt_npy(x, put_values("y.npy", "<i4", "(3,)", v, 3));
    expect_error(&s, 1, DT_ERR_FORMAT, "3 labels", "other numbers");
    s = dt_npy(x, NULL);
    expect_error(&s, 1, DT_ERR_ARGUMENT, "no labels", "none");

    /* the same check for the older readers: a byte of label is no row of ten */
    static const unsigned char images[16 + 8] = { 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2 }, labels[8 + 2] = { 0, 0, 8, 1, 0, 0, 0, 2, 1, 0 };
    put("images", images, sizeof images);
    put("labels", labels, sizeof labels);
    s = dt_idx(at("images"), at("labels"));
    expect_error(&s, 10, DT_ERR_SHAPE, "1 values", "IDX");
    s = dt_csv_opt((dt_csv_options){ .path = put("t.csv", BYTES("1,2\n3,4\n")) });
    expect_error(&s, 10, DT_ERR_SHAPE, "1 values", "CSV");
}

/* A file that no memory holds: only what is read is there. */
static void test_npy_larger_than_memory(void) {
    if (sizeof(size_t) < 8) SKIP("an address space of 32 bits");
    buffer b;
    npy_start(&b, "<f4", "(1048576, 2048)");  /* 8 GiB */
    const char *path = put("large.npy", b.b, b.n);
    int fd = open(path, O_WRONLY);
    float last = 3;
    uint32_t bits;
    unsigned char little[4];
    memcpy(&bits, &last, 4);
    for (int i = 0; i < 4; i++) little[i] = (unsigned char)(bits >> 8 * i);
    int sparse = fd >= 0 && pwrite(fd, little, 4, (off_t)((int64_t)b.n + ((int64_t)1 << 33) - 4)) == 4;
    if (fd >= 0) close(fd);
    if (!sparse) { remove(path); SKIP("no large files here"); }
    dt_error err = DT_DEFAULTS;
    dt_source s = dt_npy(path, NULL);
    dt_dataset *d = dt_dataset_open(&s, &err);
    CHECK_OK(err);
    if (d) {
        float x[2048];
        dt_tensor t;
        memset(&t, 0, sizeof t);
        t.size = 2048, t.type = DT_FLOAT32;
        CHECK(dt_dataset_describe(d).n == 1048576 && d->file[0].mapped);
        CHECK(dt__read_sample(d, &t, DT_FLOAT32, x, NULL, DT_INT32, NULL, 1048575, &err) == 0 && x[2047] == 3 && x[0] == 0);
    }
    dt_dataset_close(d);
    remove(path);
}

/* ---- lists of files ---------------------------------------------------------------------------------- */

static const char *list_of(const char *a, const char *b, const char *c) {
    static char list[4][2000];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(list[turn], sizeof list[turn], "%s,%s%s%s", a, b, c ? "," : "", c ? c : "");
    return list[turn];
}

static void test_npy_lists(void) {
    static const double v[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    static const float expected[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    static seen got;
    dt_error err = DT_DEFAULTS;
    char a[300], b[300], c[300], ya[300], yb[300], yc[300];
    snprintf(a, sizeof a, "%s", put_values("a.npy", "<f8", "(1, 2)", v, 2));
    snprintf(b, sizeof b, "%s", put_values("b.npy", "<f8", "(3, 2)", v + 2, 6));
    snprintf(c, sizeof c, "%s", put_values("c.npy", "<f8", "(2, 2)", v + 8, 4));
    snprintf(ya, sizeof ya, "%s", put_values("ya.npy", "<i8", "(1,)", v, 1));
    snprintf(yb, sizeof yb, "%s", put_values("yb.npy", "<i8", "(3,)", v + 1, 3));
    snprintf(yc, sizeof yc, "%s", put_values("yc.npy", "<i8", "(2,)", v + 4, 2));
    dt_source s = dt_npy(list_of(a, b, c), list_of(ya, yb, yc));
    see(&s, 1, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.n == 6 && got.info.input[0] == 2 && got.info.classes == 6);
    expect_values("three files", got.x, expected, 12);
    for (int i = 0; i < 6; i++) CHECK(got.label[i] == i);
    s = dt_npy(list_of(a, b, ""), NULL);  /* a comma behind the last one is nothing */
    see(&s, 0, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.n == 4);

    s = dt_npy(list_of(a, "", b), NULL);
    expect_error(&s, 0, DT_ERR_IO, "cannot open", "no name between two commas");
    s = dt_npy(list_of(a, b, NULL), ya);
    expect_error(&s, 1, DT_ERR_ARGUMENT, "different numbers", "one file of labels");
    s = dt_npy(a, list_of(ya, yb, NULL));
    expect_error(&s, 1, DT_ERR_ARGUMENT, "different numbers", "two files of labels");
    s = dt_npy(list_of(a, b, NULL), list_of(yb, ya, NULL));
    expect_error(&s, 1, DT_ERR_FORMAT, "yb.npy", "labels in another order");
    s = dt_npy(list_of(a, put_values("wide.npy", "<f8", "(1, 3)", v, 3), NULL), NULL);
    expect_error(&s, 0, DT_ERR_FORMAT, "wide.npy", "another shape");
    s = dt_npy(list_of(a, put_values("deep.npy", "<f8", "(1, 2, 1)", v, 2), NULL), NULL);
    expect_error(&s, 0, DT_ERR_FORMAT, "deep.npy", "another rank");
    s = dt_npy(list_of(a, put_values("float.npy", "<f4", "(1, 2)", v, 2), NULL), NULL);
    expect_error(&s, 0, DT_ERR_FORMAT, "float.npy", "another type");
    s = dt_npy(list_of(a, b, NULL), list_of(ya, put_values("bytes.npy", "|u1", "(3,)", v, 3), NULL));
    expect_error(&s, 1, DT_ERR_FORMAT, "bytes.npy", "another type of labels");
    s = dt_npy(list_of(a, b, NULL), list_of(ya, put_values("pairs.npy", "<i8", "(3, 2)", v, 6), NULL));
    expect_error(&s, 1, DT_ERR_FORMAT, "pairs.npy", "another shape of labels");
    s = dt_npy(list_of(a, at("nothing.npy"), b), NULL);
    expect_error(&s, 0, DT_ERR_IO, "nothing.npy", "one is missing");

    char *many = (char *)calloc(70, 300), *labels = (char *)calloc(70, 300);
    for (int n = 64; n < 66; n++) {
        many[0] = labels[0] = 0;
        for (int i = 0; i < n; i++) strcat(strcat(many, i ? "," : ""), a), strcat(strcat(labels, i ? "," : ""), ya);
        memset(&err, 0, sizeof err);
        s = dt_npy(many, labels);
        see(&s, 1, &got, &err);
        CHECK_MSG(n == 64 ? !err.code && got.info.n == 64 : err.code == DT_ERR_ARGUMENT && strstr(err.text, "64 files"), "%d files: %d \"%s\"", n, err.code, err.text);
    }
    memset(many, 'a', 1500);
    many[1500] = 0;
    s = dt_npy(many, NULL);
    expect_error(&s, 0, DT_ERR_ARGUMENT, "too long", "1500 letters");
    s = dt_npy(a, many);
    expect_error(&s, 1, DT_ERR_ARGUMENT, "too long", "labels of 1500 letters");
    memset(many, ',', 1500);
    s = dt_npy(many, NULL);
    expect_error(&s, 0, DT_ERR_IO, "cannot open", "nothing but commas");
    free(many), free(labels);
}

static const char *put_idx(const char *name, int n, int rows, int columns, int from) {
    unsigned char b[400] = { 0, 0, 8, 3, 0, 0, 0, (unsigned char)n, 0, 0, 0, (unsigned char)rows, 0, 0, 0, (unsigned char)columns };
    int header = 16;
    if (!rows) b[3] = 1, header = 8;
    int values = rows ? n * rows * columns : n;
    for (int i = 0; i < values; i++) b[header + i] = (unsigned char)(from + i);
    return put(name, b, (size_t)(header + values));
}

static void test_idx_lists(void) {
    static seen got;
    dt_error err = DT_DEFAULTS;
    char a[300], b[300], ya[300], yb[300];
    snprintf(a, sizeof a, "%s", put_idx("a", 2, 2, 3, 0));
    snprintf(b, sizeof b, "%s", put_idx("b", 1, 2, 3, 12));
    snprintf(ya, sizeof ya, "%s", put_idx("ya", 2, 0, 0, 4));
    snprintf(yb, sizeof yb, "%s", put_idx("yb", 1, 0, 0, 9));
    dt_source s = dt_idx(list_of(a, b, NULL), list_of(ya, yb, NULL));
    see(&s, 1, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.n == 3 && got.info.classes == 10 && got.info.input[0] == 2 && got.info.input[1] == 3 && got.info.input[2] == 1 && got.info.input[3] == 0);
    for (int i = 0; i < 18; i++) CHECK(close_to(got.x[i], i / 255.0) && got.whole[i] == i);
    CHECK(got.label[0] == 4 && got.label[1] == 5 && got.label[2] == 9);
    s = dt_idx(list_of(a, b, NULL), ya);
    expect_error(&s, 1, DT_ERR_ARGUMENT, "different numbers", "one file of labels");
    s = dt_idx(list_of(a, put_idx("c", 1, 3, 2, 0), NULL), NULL);
    expect_error(&s, 0, DT_ERR_FORMAT, "/c\"", "another shape");
    s = dt_idx(list_of(a, b, NULL), list_of(yb, ya, NULL));
    expect_error(&s, 1, DT_ERR_FORMAT, "/yb\"", "labels in another order");
    s = dt_idx(list_of(a, ya, NULL), NULL);
    expect_error(&s, 0, DT_ERR_FORMAT, "/ya\"", "labels among the images");
}

static void test_csv_lists(void) {
    static const float expected[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    static seen got;
    dt_error err = DT_DEFAULTS;
    char a[300];
    snprintf(a, sizeof a, "%s", put("a.csv", BYTES("u,v,name\n1,2,cat\n3,4,dog\n")));
    dt_source s = dt_csv_opt((dt_csv_options){ .path = list_of(a, put("b.csv", BYTES("5;6;dog\n7;8;cow\n")), NULL) });
    see(&s, 1, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.n == 4 && got.info.input[0] == 2 && got.info.classes == 3);
    expect_values("two files", got.x, expected, 8);
    CHECK(got.label[0] == 0 && got.label[1] == 1 && got.label[2] == 1 && got.label[3] == 2);
    s = dt_csv_opt((dt_csv_options){ .path = list_of(a, put("wide.csv", BYTES("1,2,3,dog\n")), NULL) });
    expect_error(&s, 1, DT_ERR_FORMAT, "4 columns", "more columns");
    s = dt_csv_opt((dt_csv_options){ .path = list_of(a, put("wrong.csv", BYTES("1,2,dog\n3,x,dog\n")), NULL) });
    expect_error(&s, 1, DT_ERR_FORMAT, "wrong.csv\" line 2", "a bad line in the second file");
    s = dt_csv_opt((dt_csv_options){ .path = list_of(a, put("hollow.csv", BYTES("")), NULL) });
    expect_error(&s, 1, DT_ERR_FORMAT, "hollow.csv", "an empty file");
    s = dt_csv_opt((dt_csv_options){ .path = list_of(a, at("nothing.csv"), NULL) });
    expect_error(&s, 1, DT_ERR_IO, "nothing.csv", "a missing file");
}

/* ---- images -------------------------------------------------------------------------------------------- */

static void folder(const char *name) { mkdir(at(name), 0700); }

/* a folder of one class of one image */
static dt_source one_image(const char *name, const void *bytes, size_t n) {
    static char path[200];
    folder("one"), folder("one/class");
    if (*path) remove(at(path));
    snprintf(path, sizeof path, "one/class/%s", name);
    put(path, bytes, n);
    return dt_images(at("one"));
}

static void add_le(buffer *b, uint32_t v, int bytes) {
    for (; bytes > 0; bytes--, v >>= 8) { unsigned char c = (unsigned char)v; add(b, &c, 1); }
}

typedef struct { int w, h, bits, colors; unsigned header, compression, offset; } bmp;  /* 0: the usual; colors: of the palette's field */

static void bmp_start(buffer *b, bmp o, int palette) {
    unsigned header = o.header ? o.header : 40;
    b->n = 0;
    add(b, "BM", 2);
    add_le(b, 0, 4), add_le(b, 0, 4), add_le(b, o.offset ? o.offset : 14 + header + 4 * (unsigned)palette, 4);
    add_le(b, header, 4), add_le(b, (uint32_t)o.w, 4), add_le(b, (uint32_t)o.h, 4), add_le(b, 1, 2), add_le(b, (uint32_t)o.bits, 2), add_le(b, o.compression, 4);
    add_le(b, 0, 4), add_le(b, 2835, 4), add_le(b, 2835, 4), add_le(b, (uint32_t)o.colors, 4), add_le(b, 0, 4);
    for (unsigned i = 40; i < header && i < 200; i++) add_le(b, 0, 1);
}

static void test_image_formats(void) {
    static buffer grey, color, few;
    static seen got;
    /* [2, 3]: rows of 3 bytes, padded to 4 */
    bmp_start(&grey, (bmp){ .w = 3, .h = 2, .bits = 8 }, 256);
    for (unsigned i = 0; i < 256; i++) add_le(&grey, i * 0x010101, 4);
    add(&grey, "\x0a\x14\x1e_\x00\x80\xff_", 8);
    bmp_start(&color, (bmp){ .w = 3, .h = -2, .bits = 24 }, 0);
    add(&color, "\1\2\3\4\5\6\7\x08\x09___\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12___", 24);
    bmp_start(&few, (bmp){ .w = 3, .h = 1, .bits = 8, .colors = 2 }, 2);
    add(&few, "\x03\x02\x01\xff\x06\x05\x04\0\1\0\1\0", 12);
    const struct { const char *what, *name; const void *bytes; size_t n; int h, w, c; double v[18]; double most; } row[] = {
        { "P5", "a.pgm", BYTES("P5\n3 2\n255\n\x00\x80\xff\x0a\x14\x1e"), 2, 3, 1, { 0, 128, 255, 10, 20, 30 }, 255 },
        { "P5, comments", "a.pgm", BYTES("P5 # a\n#b 9\n  3#c\n\t2 \r\n#\n255\n\x00\x80\xff\x0a\x14\x1e"), 2, 3, 1, { 0, 128, 255, 10, 20, 30 }, 255 },
        { "P5, the first pixel is a blank", "a.pgm", BYTES("P5 1 2 255  \n"), 2, 1, 1, { 32, 10 }, 255 },
        { "P5, more behind it", "a.pgm", BYTES("P5 1 1 255\n\7P5 1 1 255\n\7"), 1, 1, 1, { 7 }, 255 },
        { "P5, largest 100", "a.pgm", BYTES("P5 2 1 100\n\0\x64"), 1, 2, 1, { 0, 100 }, 100 },
        { "P5, largest 1", "a.pgm", BYTES("P5 2 1 1\n\0\1"), 1, 2, 1, { 0, 1 }, 1 },
        { "P5, two bytes", "a.pgm", BYTES("P5 3 1 65535\n\0\1\x80\0\xff\xff"), 1, 3, 1, { 1, 32768, 65535 }, 65535 },
        { "P5, two bytes up to 256", "a.pgm", BYTES("P5 2 1 256\n\0\1\1\0"), 1, 2, 1, { 1, 256 }, 256 },
        { "P2", "a.pgm", BYTES("P2\n3 2\n255\n0 128 255\n10 20 30\n"), 2, 3, 1, { 0, 128, 255, 10, 20, 30 }, 255 },
        { "P2, no blank at the end", "a.pgm", BYTES("P2 3 1 9\n0 5 9"), 1, 3, 1, { 0, 5, 9 }, 9 },
        { "P2, comments", "a.pgm", BYTES("P2#\n3 1 9\n0#five\n5\n# and\n\n 9"), 1, 3, 1, { 0, 5, 9 }, 9 },
        { "P2, two bytes", "a.pgm", BYTES("P2 2 1 65535 1 65535"), 1, 2, 1, { 1, 65535 }, 65535 },
        { "P6", "a.ppm", BYTES("P6 2 1 255\n\1\2\3\xff\xfe\xfd"), 1, 2, 3, { 1, 2, 3, 255, 254, 253 }, 255 },
        { "P6, largest 10", "a.PPM", BYTES("P6 1 1 10\n\1\2\3"), 1, 1, 3, { 1, 2, 3 }, 10 },
        { "P6, two bytes", "a.ppm", BYTES("P6 1 1 1000\n\3\xe8\0\1\1\0"), 1, 1, 3, { 1000, 1, 256 }, 1000 },
        { "P3", "a.pnm", BYTES("P3\n1 2\n255\n255 0 7\n1 2 3"), 2, 1, 3, { 255, 0, 7, 1, 2, 3 }, 255 },
        { "a name that lies", "a.bmp", BYTES("P5 1 1 255\n\7"), 1, 1, 1, { 7 }, 255 },
        { "BMP, 8 bits, grey, padded", "a.bmp", grey.b, grey.n, 2, 3, 1, { 0, 128, 255, 10, 20, 30 }, 255 },
        { "BMP, 24 bits, from the top", "a.Bmp", color.b, color.n, 2, 3, 3, { 3, 2, 1, 6, 5, 4, 9, 8, 7, 12, 11, 10, 15, 14, 13, 18, 17, 16 }, 255 },
        { "BMP, a palette of two colors", "a.bmp", few.b, few.n, 1, 3, 3, { 4, 5, 6, 1, 2, 3, 4, 5, 6 }, 255 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_source s = one_image(row[i].name, row[i].bytes, row[i].n);
        int n = row[i].h * row[i].w * row[i].c;
        see(&s, 1, &got, &err);
        CHECK_MSG(!err.code, "%s: %s", row[i].what, err.text);
        CHECK_MSG(got.info.n == 1 && got.info.input[0] == row[i].h && got.info.input[1] == row[i].w && got.info.input[2] == row[i].c && got.info.input[3] == 0,
                  "%s: %ld images of [%d,%d,%d]", row[i].what, got.info.n, got.info.input[0], got.info.input[1], got.info.input[2]);
        CHECK(got.info.classes == 1 && got.label[0] == 0 && got.info.x_type == DT_UINT8 && got.info.y_type == DT_INT32);
        for (int k = 0; k < n; k++) {
            CHECK_MSG(close_to(got.x[k], row[i].v[k] / row[i].most), "%s: value %d is %.9g of %g", row[i].what, k, (double)got.x[k], row[i].most);
            CHECK_MSG(got.whole[k] == (int32_t)row[i].v[k], "%s: whole value %d is %d", row[i].what, k, (int)got.whole[k]);
        }
    }
}

/* every width from 1 to 9, both directions, all depths, and headers of 40, 52, 56, 108 and 124 bytes */
static void test_bmp_rows(void) {
    static const unsigned header[] = { 40, 52, 56, 108, 124 };
    static const int depth[] = { 8, 24, 32 };
    static seen got;
    for (int w = 1; w <= 9; w++)
        for (int k = 0; k < COUNT(depth); k++)
            for (int down = 0; down < 2; down++) {
                static buffer b;
                dt_error err = DT_DEFAULTS;
                int bits = depth[k], colors = bits == 8 ? 5 : 0, c = 3, h = 3;
                bmp_start(&b, (bmp){ .w = w, .h = down ? -h : h, .bits = bits, .colors = bits == 8 ? colors : 7, .header = header[w % 5] }, colors);
                for (int i = 0; i < colors; i++) add_le(&b, (uint32_t)(0x332211 + i * 0x010101), 4);
                for (int row = 0; row < h; row++) {
                    int y = down ? row : h - 1 - row, n = 0;
                    for (int x = 0; x < w; x++, n += bits / 8)
                        if (bits == 8) add_le(&b, (uint32_t)((x + y) % colors), 1);
                        else add_le(&b, 0xee000000u | (uint32_t)(0x010203 * (x + 10 * y)), bits / 8);
                    for (; n % 4; n++) add_le(&b, 0x77, 1);
                }
                dt_source s = one_image("a.bmp", b.b, b.n);
                see(&s, 1, &got, &err);
                CHECK_MSG(!err.code, "width %d, %d bits: %s", w, bits, err.text);
                CHECK(got.info.input[0] == h && got.info.input[1] == w && got.info.input[2] == c);
                for (int y = 0; y < h; y++)
                    for (int x = 0; x < w; x++)
                        for (int channel = 0; channel < 3; channel++) {
                            int i = bits == 8 ? 0x33 - 0x11 * channel + (x + y) % colors : (channel + 1) * (x + 10 * y);
                            int v = got.whole[(y * w + x) * 3 + channel];
                            CHECK_MSG(v == i, "width %d, %d bits, %s: [%d,%d,%d] is %d, expected %d", w, bits, down ? "down" : "up", y, x, channel, v, i);
                        }
                /* the last byte may be missing nowhere */
                s = one_image("a.bmp", b.b, b.n - 1);
                expect_error(&s, 1, DT_ERR_FORMAT, "cut", "last byte");
            }
}

static void test_bad_images(void) {
    static buffer plain[24];
    int n = 0;
#define BMP(...) (bmp_start(&plain[n], (bmp){ __VA_ARGS__ }, 0), add(&plain[n], "................................", 32), n++)
    BMP(.w = 0, .h = 2, .bits = 24); BMP(.w = 2, .h = 0, .bits = 24); BMP(.w = -2, .h = 2, .bits = 24); BMP(.w = 1, .h = INT_MIN, .bits = 24);
    BMP(.w = INT_MIN, .h = 1, .bits = 24); BMP(.w = 65536, .h = 65536, .bits = 24); BMP(.w = INT_MAX, .h = INT_MAX, .bits = 32); BMP(.w = 1 << 29, .h = 4, .bits = 32);
    BMP(.w = 2, .h = 2, .bits = 7); BMP(.w = 2, .h = 2, .bits = 0); BMP(.w = 2, .h = 2, .bits = 1); BMP(.w = 2, .h = 2, .bits = 16); BMP(.w = 2, .h = 2, .bits = 24, .compression = 1);
    BMP(.w = 2, .h = 2, .bits = 32, .compression = 3); BMP(.w = 2, .h = 2, .bits = 24, .header = 12); BMP(.w = 2, .h = 2, .bits = 24, .header = 3);
    BMP(.w = 2, .h = 2, .bits = 24, .offset = 10); BMP(.w = 2, .h = 2, .bits = 24, .offset = 53); BMP(.w = 2, .h = 2, .bits = 24, .offset = 0x7fffffff);
    BMP(.w = 2, .h = 2, .bits = 8, .colors = 257); BMP(.w = 2, .h = 2, .bits = 8, .colors = 0x40000000); BMP(.w = 2, .h = 2, .bits = 8); BMP(.w = 2, .h = 2, .bits = 8, .colors = 3, .offset = 14 + 40 + 11);
#undef BMP
    static const char *const text[] = { "header", "header", "header", "header", "header", "header", "header", "header", "bits", "bits", "bits", "bits", "compressed",
                                        "compressed", "header", "header", "header", "header", "header", "header", "header", "header", "header" };
    for (int i = 0; i < n; i++) {
        char what[60];
        snprintf(what, sizeof what, "BMP %d", i);
        dt_source s = one_image("bad.bmp", plain[i].b, plain[i].n);
        expect_error(&s, 1, DT_ERR_FORMAT, "bad.bmp", what);
        expect_error(&s, 1, DT_ERR_FORMAT, text[i], what);
    }
    static const struct { const char *bytes; size_t n; const char *text; } row[] = {
        { BYTES(""), "no PGM" },  { BYTES("P"), "no PGM" },  { BYTES("P5"), "no PGM" },  { BYTES("P9\n3 2\n255\n123456"), "no PGM" },  { BYTES("P1\n1 1\n1\n"), "no PGM" },
        { BYTES("P4\n1 1\n1"), "no PGM" },  { BYTES("P7\nWIDTH 1\n"), "no PGM" },  { BYTES("P\0\n3 2\n255\n123456"), "no PGM" },  { BYTES("\x89PNG\r\n\x1a\n and so on"), "no PGM" },
        { BYTES("BM"), "no PGM" },  { BYTES("BM and no more than this"), "no PGM" },  { BYTES("\xff\xd8\xff\xe0 JPEG"), "no PGM" },
        { BYTES("P5\n0 2\n255\n"), "header" },  { BYTES("P5\n3 0\n255\n"), "header" },  { BYTES("P5\n-3 2\n255\n123456"), "header" },  { BYTES("P5\n3 2\n-1\n123456"), "header" },
        { BYTES("P5\n3 2\n"), "header" },  { BYTES("P5\n3"), "header" },  { BYTES("P5 "), "header" },  { BYTES("P5 #3 2 255"), "header" },  { BYTES("P5 3 2 255"), "header" },
        { BYTES("P5 3 2 255#a\n123456"), "header" },  { BYTES("P5 3.0 2 255 123456"), "header" },  { BYTES("P5 3x2 255 123456"), "header" },  { BYTES("P5 a b c\n123456"), "header" },
        { BYTES("P5\n3 2\n0\n123456"), "header" },  { BYTES("P5\n3 2\n65536\n123456789012"), "header" },  { BYTES("P5\n3 2\n70000\n123456789012"), "header" },
        { BYTES("P5\n9999999999999999999999999999999999999999 2\n255\n12"), "header" },  { BYTES("P5\n4294967297 1\n255\n1"), "header" },
        { BYTES("P5\n65536 65536\n255\n123456"), "header" },  { BYTES("P6\n1431655766 1\n255\n123456"), "header" },  { BYTES("P6\n100000000 1\n255\n123456"), "cut" },
        { BYTES("P2\n100000 1000\n255\n1 2 3"), "cut" },  { BYTES("P5\n3 2\n255\n12345"), "cut" },  { BYTES("P6\n1 1\n255\n12"), "cut" },  { BYTES("P5\n1 1\n256\n1"), "cut" },
        { BYTES("P2\n3 1\n255\n1 22 "), "missing" },  { BYTES("P2\n3 1\n255\n1 2 #3"), "missing" },  { BYTES("P2\n2 1\n255\n1 x"), "no number" },  { BYTES("P2\n2 1\n255\n1 -1"), "no number" },
        { BYTES("P2\n2 1\n255\n1 256"), "above" },  { BYTES("P2\n2 1\n255\n1 99999999999999999999"), "above" },  { BYTES("P2\n2 1\n255\n1 4294967296"), "above" },
        { BYTES("P5\n2 1\n100\n\0\x65"), "above" },  { BYTES("P5\n1 1\n1000\n\3\xe9"), "above" },  { BYTES("P6\n1 1\n1\n\0\1\2"), "above" },
        { BYTES("P3\n1 1\n255\n1,2,3"), "no number" },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_source s = one_image("bad.pgm", row[i].bytes, row[i].n);
        expect_error(&s, 1, DT_ERR_FORMAT, "bad.pgm", row[i].bytes);
        expect_error(&s, 1, DT_ERR_FORMAT, row[i].text, row[i].bytes);
    }
    static buffer b;  /* a color beyond the palette, in the last pixel */
    bmp_start(&b, (bmp){ .w = 2, .h = 1, .bits = 8, .colors = 2 }, 2);
    add(&b, "\1\2\3\0\4\5\6\0\1\2\0\0", 12);
    dt_source s = one_image("bad.bmp", b.b, b.n);
    expect_error(&s, 1, DT_ERR_FORMAT, "palette", "color 2 of 2");
    CHECK(readable("text"));
}

/* no beginning of an image is one, but for text that ends inside its last number */
static void test_images_cut(void) {
    static buffer b[3];
    static seen got;
    bmp_start(&b[0], (bmp){ .w = 3, .h = 2, .bits = 24 }, 0);
    add(&b[0], "123456789012123456789012", 24);
    b[1].n = 0, add(&b[1], BYTES("P6 # a\n2 1\n255\n123456"));
    b[2].n = 0, add(&b[2], BYTES("P2 2 2 255\n1 2 3 4"));
    for (int i = 0; i < COUNT(b); i++)
        for (size_t cut = 0; cut <= b[i].n; cut++) {
            dt_error err = DT_DEFAULTS;
            dt_source s = one_image("cut.ppm", b[i].b, cut);
            int code = see(&s, 1, &got, &err);
            CHECK_MSG(code == (cut == b[i].n ? 0 : DT_ERR_FORMAT), "format %d, %lu of %lu bytes: %d \"%s\"", i, (unsigned long)cut, (unsigned long)b[i].n, code, err.text);
            if (code) CHECK_MSG(strstr(err.text, "cut.ppm") && readable(err.text), "\"%s\"", err.text);
        }
    /* and each byte of a header in turn is another */
    for (int i = 0; i < COUNT(b); i++)
        for (size_t at_byte = 0; at_byte < b[i].n && at_byte < 60; at_byte++)
            for (int value = 0; value < 256; value += value == 48 ? 3 : 51) {
                dt_error err = DT_DEFAULTS;
                unsigned char was = b[i].b[at_byte];
                b[i].b[at_byte] = (unsigned char)value;
                dt_source s = one_image("other.ppm", b[i].b, b[i].n);
                see(&s, 1, &got, &err);
                b[i].b[at_byte] = was;
                CHECK_MSG(!err.code || strstr(err.text, "other.ppm"), "\"%s\"", err.text);
            }
}

static const char *put_grey(const char *name, int v) {
    unsigned char b[] = "P5 2 1 255\n..";
    b[11] = (unsigned char)v, b[12] = (unsigned char)(v + 1);
    return put(name, b, 13);
}

static void test_image_folder(void) {
    static seen got;
    dt_error err = DT_DEFAULTS;
    remove_tree(at("set"));
    folder("set"), folder("set/b"), folder("set/a-1"), folder("set/a"), folder("set/Z"), folder("set/.hidden"), folder("set/b/deeper.pgm");
    put_grey("set/b/10.pgm", 50), put_grey("set/b/9.pgm", 60), put_grey("set/b/.9.pgm", 99), put_grey("set/b/deeper.pgm/1.pgm", 99);
    put_grey("set/a-1/x.PGM", 40), put_grey("set/a/y.pnm", 30), put_grey("set/a/x.bmp", 20), put_grey("set/Z/1.pgm", 10), put_grey("set/.hidden/1.pgm", 99), put_grey("set/1.pgm", 99);
    put("set/a/notes.txt", BYTES("words")), put("set/a/pgm", BYTES("no ending")), put("set/a/x.pgm~", BYTES("an editor's")), put("set/README", BYTES("words"));
    if (symlink("10.pgm", at("set/b/8.pgm")) || symlink("nowhere", at("set/b/7.pgm"))) CHECK_MSG(0, "no links here");
    int pipe = mkfifo(at("set/b/6.pgm"), 0600) == 0;  /* must not be waited for */
    dt_source s = dt_images(at("set"));
    see(&s, 1, &got, &err);
    CHECK_OK(err);
    static const int expected[7][2] = { { 10, 0 }, { 20, 1 }, { 30, 1 }, { 40, 2 }, { 50, 3 }, { 50, 3 }, { 60, 3 } };  /* Z, a, a-1, b; 10, 8 -> 10, 9 */
    CHECK(got.info.n == 7 && got.info.classes == 4 && got.info.input[0] == 1 && got.info.input[1] == 2 && got.info.input[2] == 1 && pipe);
    for (int i = 0; i < 7; i++) CHECK_MSG(got.whole[2 * i] == expected[i][0] && got.label[i] == expected[i][1], "sample %d is %d, class %d", i, (int)got.whole[2 * i], (int)got.label[i]);

    char slash[400];
    snprintf(slash, sizeof slash, "%s/", at("set"));
    s = dt_images(slash);
    memset(&err, 0, sizeof err);
    see(&s, 1, &got, &err);
    CHECK_OK(err);
    CHECK(got.info.n == 7 && got.info.classes == 4);

    folder("set/c");
    expect_error(&s, 1, DT_ERR_IO, "set//c", "an empty class");
    put("set/c/1.png", BYTES("PNG"));
    expect_error(&s, 1, DT_ERR_IO, ".pgm", "a class of other files");
    put("set/c/1.pgm", BYTES("P5 1 2 255\n12"));
    expect_error(&s, 1, DT_ERR_FORMAT, "[2,1,1]", "another size");
    expect_error(&s, 1, DT_ERR_FORMAT, "[1,2,1]", "another size: the first");
    expect_error(&s, 1, DT_ERR_FORMAT, "c/1.pgm", "another size");
    expect_error(&s, 1, DT_ERR_FORMAT, "Z/1.pgm", "another size");
    put("set/c/1.pgm", BYTES("P6 2 1 255\n123456"));
    expect_error(&s, 1, DT_ERR_FORMAT, "[1,2,3]", "color among grey");
    remove_tree(at("set/c"));

    folder("flat");
    put_grey("flat/1.pgm", 1);
    s = dt_images(at("flat"));
    expect_error(&s, 1, DT_ERR_IO, "sub-folder", "images without classes");
    folder("hollow");
    s = dt_images(at("hollow"));
    expect_error(&s, 1, DT_ERR_IO, "hollow", "an empty folder");
    s = dt_images(at("nothing"));
    expect_error(&s, 1, DT_ERR_IO, "nothing", "no folder");
    s = dt_images(put_grey("file.pgm", 1));
    expect_error(&s, 1, DT_ERR_IO, "file.pgm", "a file");
    s = dt_images(NULL);
    expect_error(&s, 1, DT_ERR_ARGUMENT, "dt_images", "NULL");
    s = dt_images("");
    expect_error(&s, 1, DT_ERR_ARGUMENT, "dt_images", "no path");
    char *longest = (char *)calloc(1, 2000);
    snprintf(longest, 2000, "%s", at("set"));
    while (strlen(longest) < 1015) strcat(longest, "/../set/a/..");
    s = dt_images(longest);
    expect_error(&s, 1, DT_ERR_ARGUMENT, "too long", "a long path");
    free(longest);
}

/* files that change between opening and reading */
static void test_images_change(void) {
    dt_error err = DT_DEFAULTS;
    dt_tensor t;
    float x[2];
    remove_tree(at("set"));
    folder("set"), folder("set/a"), folder("set/b");
    put_grey("set/a/1.pgm", 1), put_grey("set/b/1.pgm", 2), put_grey("set/b/2.pgm", 3);
    dt_source s = dt_images(at("set"));
    dt_dataset *d = dt_dataset_open(&s, &err);
    CHECK_OK(err);
    memset(&t, 0, sizeof t);
    t.size = 2, t.type = DT_FLOAT32;
    put("set/b/1.pgm", BYTES("P6 200 100 255\n12"));
    put("set/b/2.pgm", BYTES("P6 2 1 255\n123456"));
    remove(at("set/a/1.pgm"));
    static const char *const text[] = { "cannot open", "cut", "[1,2,3]" };
    static const int code[] = { DT_ERR_IO, DT_ERR_FORMAT, DT_ERR_FORMAT };
    for (int i = 0; d && i < 3; i++) {
        memset(&err, 0, sizeof err);
        CHECK(dt__read_sample(d, &t, DT_FLOAT32, x, NULL, DT_INT32, NULL, i, &err) != 0);
        CHECK_ERROR(err, code[i], text[i]);
    }
    put_grey("set/a/1.pgm", 7);
    memset(&err, 0, sizeof err);
    CHECK(d && dt__read_sample(d, &t, DT_FLOAT32, x, NULL, DT_INT32, NULL, 0, &err) == 0 && close_to(x[0], 7 / 255.0));
    dt_dataset_close(d);
}

/* ---- through the model ------------------------------------------------------------------------------------ */

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_flatten(x), 3);
}

static dt_tensor *image_net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_flatten(dt_conv2d(x, 2, 2)), 3);
}

static double trained(dt_source s, int replicas, dt_error *err) {
    dt_options o = { .net = net, .loss = DT_CROSS_ENTROPY, .train = s, .batch = 5, .epochs = 3, .replicas = replicas, .learning_rate = 0.5 };
    dt_model *m = dt_model_create(&o, err);
    float out[30 * 3];
    double loss = NAN;
    if (m && !dt_train(m, NULL, err)) {
        dt_metrics metrics = DT_DEFAULTS;
        dt_source opened = s;
        dt_evaluate(m, &opened, &metrics, err);
        loss = metrics.loss;
        CHECK(dt_predict_source(m, &s, 0, 30, out, err) == 0);
    }
    CHECK_OK(*err);
    dt_model_free(m);
    return loss;
}

/* The same 30 images as an array, as .npy of three types, in two files, and as a folder of files: the same training. */
static void test_training(void) {
    static unsigned char x[30][4];
    static int32_t y[30];
    static double values[120], labels[30];
    remove_tree(at("set"));
    folder("set"), folder("set/0"), folder("set/1"), folder("set/2");
    for (int i = 0; i < 30; i++) {
        char name[60];
        y[i] = i / 10;
        labels[i] = y[i];
        unsigned char b[] = "P5 2 2 255\n....";
        for (int k = 0; k < 4; k++) b[11 + k] = x[i][k] = (unsigned char)(k == y[i] ? 200 + i : 7 * i % 100), values[4 * i + k] = x[i][k];
        snprintf(name, sizeof name, "set/%d/%02d.pgm", (int)y[i], i);
        put(name, b, 15);
    }
    char a[300], b[300], ya[300], yb[300];
    put_values("x.npy", "|u1", "(30, 2, 2)", values, 120), put_values("y.npy", "<i8", "(30,)", labels, 30);
    snprintf(a, sizeof a, "%s", put_values("a.npy", "|u1", "(7, 2, 2, 1)", values, 28));
    snprintf(b, sizeof b, "%s", put_values("b.npy", "|u1", "(23, 2, 2, 1)", values + 28, 92));
    snprintf(ya, sizeof ya, "%s", put_values("ya.npy", ">i2", "(7, 1)", labels, 7));
    snprintf(yb, sizeof yb, "%s", put_values("yb.npy", ">i2", "(23, 1)", labels + 7, 23));
    for (int replicas = 1; replicas <= 3; replicas += 2) {
        dt_error err = DT_DEFAULTS;
        dt_source array = dt_arrays(x, DT_UINT8, y, DT_INT32, 30);
        dt_options shape = { .net = net, .input = { 2, 2, 1 }, .loss = DT_CROSS_ENTROPY, .train = array, .batch = 5, .epochs = 3, .replicas = replicas, .learning_rate = 0.5 };
        dt_model *m = dt_model_create(&shape, &err);
        dt_metrics metrics = DT_DEFAULTS;
        CHECK(m && !dt_train(m, NULL, &err) && !dt_evaluate(m, &array, &metrics, &err));
        CHECK_OK(err);
        dt_model_free(m);
        CHECK(metrics.loss > 0 && metrics.loss < 1);
        dt_source s[] = { dt_npy(at("x.npy"), at("y.npy")), dt_npy(list_of(a, b, NULL), list_of(ya, yb, NULL)), dt_images(at("set")) };
        for (int i = 0; i < COUNT(s); i++) {
            double loss = trained(s[i], replicas, &err);
            CHECK_MSG(close_to((float)loss, metrics.loss), "source %d on %d replicas: %.9g, the array %.9g", i, replicas, loss, metrics.loss);
        }
        /* parts of a set, and an open one */
        dt_dataset *d = dt_dataset_open(&s[2], &err);
        static seen whole, got;
        see(&s[2], 1, &whole, &err);
        dt_source opened = dt_opened(d), fold = dt_fold(opened, 3, 1, DT_TEST), part = dt_part(s[2], 0.5, DT_TEST);
        see(&fold, 1, &got, &err);
        CHECK_OK(err);
        CHECK(got.info.n == 10);
        for (int i = 0; i < 10; i++) CHECK(!memcmp(got.x + 4 * i, whole.x + 4 * (3 * i + 1), 16) && got.label[i] == whole.label[3 * i + 1]);
        see(&part, 1, &got, &err);
        CHECK_OK(err);
        CHECK(got.info.n == 15);
        dt_dataset_close(d);
    }
    /* [n, h, w] as grey images */
    dt_error ignored = DT_DEFAULTS;
    dt_options grey = { .net = image_net, .input = { 2, 2, 1 }, .loss = DT_CROSS_ENTROPY, .train = dt_npy(at("x.npy"), at("y.npy")), .batch = 6, .replicas = 1 };
    dt_model *images = dt_model_create(&grey, &ignored);
    CHECK(images && dt_train(images, NULL, &ignored) == 0);
    dt_model_free(images);
    /* an image that breaks in the middle of training stops it, on whatever replica */
    dt_error err = DT_DEFAULTS;
    dt_options o = { .net = net, .loss = DT_CROSS_ENTROPY, .train = dt_images(at("set")), .batch = 6, .epochs = 2, .replicas = 3 };
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    put("set/1/13.pgm", BYTES("P5 2 2 254\n1\xff""23"));
    CHECK(m && dt_train(m, NULL, &err) == DT_ERR_FORMAT);
    CHECK_ERROR(err, DT_ERR_FORMAT, "13.pgm");
    dt_model_free(m);
}

/* the first allocation fails, then the second, … until all goes well */
static void test_out_of_memory(void) {
    static const double v[6] = { 1, 2, 3, 4, 5, 6 };
    char a[300], y[300];
    remove_tree(at("set"));
    folder("set"), folder("set/a"), folder("set/b");
    put_grey("set/a/1.pgm", 1), put_grey("set/b/1.pgm", 2), put_grey("set/b/2.pgm", 3);
    snprintf(a, sizeof a, "%s", put_values("a.npy", "<f8", "(2, 3)", v, 6));
    snprintf(y, sizeof y, "%s", put_values("y.npy", "<i8", "(2,)", v, 2));
    dt_source s[] = { dt_images(at("set")), dt_npy(a, y), dt_csv_opt((dt_csv_options){ .path = list_of(put("a.csv", BYTES("1,2\n3,4\n")), put("b.csv", BYTES("5,6\n")), NULL) }) };
    for (int i = 0; i < COUNT(s); i++)
        for (long k = 0;; k++) {
            dt_error err = DT_DEFAULTS;
            allocations = 0, allocation_fails = k;
            dt_dataset *d = dt_dataset_open(&s[i], &err);
            allocation_fails = -1;
            dt_dataset_close(d);
            if (d) { CHECK_MSG(k > 0 && allocations <= k, "source %d: allocation %ld failed unseen", i, k); break; }
            CHECK_MSG(err.code == DT_ERR_MEMORY, "source %d, allocation %ld: %d \"%s\"", i, k, err.code, err.text);
            if (k > 100) { CHECK_MSG(0, "source %d: no end", i); break; }
        }
}

/* ---- outside truth ------------------------------------------------------------------------------------------ */

static int run_python(const char *script, const char *folder_) {
    const char *python = getenv("PYTHON");
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(126);
        if (!python || !*python) python = "python3";
        execlp(python, python, "-c", script, folder_, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_numpy(void) {
    static const char *const type[] = { "float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">f2", ">f4", ">f8", ">i2", ">i4", ">i8", ">u4" };
    static const char script[] =
        "import sys, numpy as np\n"
        "types = 'float16 float32 float64 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 >f2 >f4 >f8 >i2 >i4 >i8 >u4'.split()\n"
        "a = np.arange(30).reshape(5, 2, 3)\n"
        "for i, t in enumerate(types):\n"
        "    np.save('%s/np%d.npy' % (sys.argv[1], i), a.astype(t))\n"
        "    np.save('%s/label%d.npy' % (sys.argv[1], i), np.arange(5).astype(t))\n"
        "for v in 1, 2, 3:\n"
        "    with open('%s/v%d.npy' % (sys.argv[1], v), 'wb') as f: np.lib.format.write_array(f, a.astype('f4'), (v, 0))\n"
        "np.save(sys.argv[1] + '/fortran.npy', np.asfortranarray(a.astype('f4')))\n"
        "np.save(sys.argv[1] + '/one.npy', np.asfortranarray(np.arange(5.0)))\n"
        "np.save(sys.argv[1] + '/scalar.npy', np.float32(1))\n"
        "np.save(sys.argv[1] + '/none.npy', np.zeros((0, 3), 'f4'))\n"
        "np.save(sys.argv[1] + '/object.npy', np.array([None, 'a'], object), allow_pickle=True)\n"
        "np.save(sys.argv[1] + '/record.npy', np.zeros(3, [('a', 'f4'), ('b', 'i4')]))\n"
        "np.save(sys.argv[1] + '/words.npy', np.array(['a', 'bc']))\n"
        "np.save(sys.argv[1] + '/complex.npy', np.zeros(3, complex))\n"
        "np.save(sys.argv[1] + '/dates.npy', np.zeros(3, 'datetime64[D]'))\n"
        "np.savez(sys.argv[1] + '/z.npz', a=a)\n";
    static const char *const refused[] = { "fortran.npy", "scalar.npy", "none.npy", "object.npy", "record.npy", "words.npy", "complex.npy", "dates.npy", "z.npz" };
    static seen got;
    if (run_python("import numpy", scratch) != 0) SKIP("no python3 with numpy");
    CHECK(run_python(script, scratch) == 0);
    for (int i = 0; i < COUNT(type); i++) {
        char x[40], y[40];
        dt_error err = DT_DEFAULTS;
        snprintf(x, sizeof x, "np%d.npy", i), snprintf(y, sizeof y, "label%d.npy", i);
        dt_source s = dt_npy(at(x), at(y));
        see(&s, 1, &got, &err);
        CHECK_MSG(!err.code && got.info.n == 5 && got.info.input[0] == 2 && got.info.input[1] == 3 && got.info.input[2] == 0, "%s: %s", type[i], err.text);
        for (int k = 0; k < 30; k++) {
            float v = !strcmp(type[i], "bool") ? (float)(k != 0) : !strcmp(type[i], "uint8") ? (float)k * (1.0f / 255) : (float)k;
            CHECK_MSG(close_to(got.x[k], (double)v), "%s: value %d is %g", type[i], k, (double)got.x[k]);
        }
        for (int k = 0; k < 5; k++) CHECK(got.label[k] == (strcmp(type[i], "bool") ? k : k != 0));
    }
    for (int v = 1; v <= 3; v++) {
        char x[40];
        dt_error err = DT_DEFAULTS;
        snprintf(x, sizeof x, "v%d.npy", v);
        dt_source s = dt_npy(at(x), at("one.npy"));
        see(&s, 1, &got, &err);
        CHECK_MSG(!err.code && got.x[29] == 29 && got.y[4] == 4, "version %d: %s", v, err.text);
    }
    for (int i = 0; i < COUNT(refused); i++) {
        dt_source s = dt_npy(at(refused[i]), NULL);
        expect_error(&s, 0, DT_ERR_FORMAT, refused[i], refused[i]);
        expect_error(&s, 0, DT_ERR_FORMAT, i == 2 ? "no sample" : "np.save", refused[i]);
    }
}

/* the project's sample files, each with what its reader must say; the good ones but for these three hold what can be read */
static void test_format_files(void) {
    static const char *const odd[] = { "f32_fortran.npy", "f32_scalar.npy", "empty_dim.npy" };
    const char *root = getenv("DTRAIN_FORMATS");
    static seen got;
    if (!root || !*root) SKIP("DTRAIN_FORMATS names no folder");
    for (int k = 0; k < 4; k++) {
        char path[1200];
        int n = 0, good = k % 2, images = k / 2;
        snprintf(path, sizeof path, "%s/%s/%s", root, good ? "good" : "bad", images ? "img" : "npy");
        DIR *d = opendir(path);
        CHECK_MSG(d, "no %s", path);
        for (struct dirent *e; d && (e = readdir(d));) {
            if (e->d_name[0] == '.') continue;
            dt_error err = DT_DEFAULTS;
            int fine = good;
            snprintf(path, sizeof path, "%s/%s/%s/%s", root, good ? "good" : "bad", images ? "img" : "npy", e->d_name);
            size_t size;
            unsigned char *b = images ? get(path, &size) : NULL;
            dt_source s = images ? one_image(e->d_name, b, size) : dt_npy(path, NULL);
            free(b);
            for (int i = 0; i < COUNT(odd); i++) if (!strcmp(e->d_name, odd[i])) fine = 0;
            int code = see(&s, images, &got, &err);
            CHECK_MSG(code == (fine ? 0 : DT_ERR_FORMAT) && (fine || strstr(err.text, e->d_name)), "%s: %d \"%s\"", path, code, err.text);
            n++;
        }
        if (d) closedir(d);
        CHECK_MSG(n >= 10, "%d files in %s", n, path);
    }
}

int main(void) {
    if (scratch_begin()) return 1;
    RUN(test_npy_types);
    RUN(test_npy_not_finite);
    RUN(test_npy_beyond);
    RUN(test_npy_shapes);
    RUN(test_npy_good_headers);
    RUN(test_npy_bad_headers);
    RUN(test_npy_bad_starts);
    RUN(test_npy_cut);
    RUN(test_npy_damaged);
    RUN(test_npy_labels);
    RUN(test_npy_larger_than_memory);
    RUN(test_npy_lists);
    RUN(test_idx_lists);
    RUN(test_csv_lists);
    RUN(test_image_formats);
    RUN(test_bmp_rows);
    RUN(test_bad_images);
    RUN(test_images_cut);
    RUN(test_image_folder);
    RUN(test_images_change);
    RUN(test_training);
    RUN(test_out_of_memory);
    RUN(test_numpy);
    RUN(test_format_files);
    scratch_end();
    return finish();
}
