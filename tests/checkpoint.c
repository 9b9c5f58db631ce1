/* checkpoint.c - weights in .safetensors files: what dt_save writes, read by a second parser; what
 * dt_load takes, refuses and leaves alone; and checkpoints: a run that was cut ends as if it had not been.
 */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/job.h"
#include "test.h"
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int files_in(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    struct dirent *e;
    while (d && (e = readdir(d))) n += e->d_name[0] != '.' || (e->d_name[1] && e->d_name[1] != '.');
    if (d) closedir(d);
    return n;
}

/* ---- the second parser: as simple as the format allows --------------------------------------------- */

typedef struct { char name[100]; int rank; long dim[8]; size_t begin, end; } file_tensor;

typedef struct {
    unsigned char *bytes;
    size_t size, header;     /* header: length of the JSON text */
    int n;
    file_tensor t[64];
    char order[100];         /* "dtrain.order" of the metadata, or "" */
} tensor_file;

static uint64_t little(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    while (bytes--) v = v << 8 | p[bytes];
    return v;
}

/* Takes only what dt_save should write: no blanks but the padding, no escapes, fields dtype, shape, data_offsets. */
static int parse(const char *path, tensor_file *f) {
    memset(f, 0, sizeof *f);
    f->bytes = get(path, &f->size);
    if (!f->bytes || f->size < 8) return 0;
    f->header = (size_t)little(f->bytes, 8);
    if (f->header > f->size - 8) return 0;
    char *text = (char *)calloc(1, f->header + 1), *p = text;
    memcpy(text, f->bytes + 8, f->header);
    int good = *p++ == '{', used = 0;
    if (good && !strncmp(p, "\"__metadata__\":{", 16)) {
        for (p += 16; good && *p != '}';) {
            char key[100] = "", v[400] = "";
            used = 0;
            good = sscanf(p, "\"%99[^\"]\":\"%399[^\"]\"%n", key, v, &used) == 2 && used > 0;
            if (!strcmp(key, "dtrain.order")) snprintf(f->order, sizeof f->order, "%.99s", v);
            p += used;
            if (*p == ',') p++;
        }
        p += good;
        if (*p == ',') p++;
    }
    while (good && *p == '"' && f->n < 64) {
        file_tensor *t = &f->t[f->n++];
        used = 0;
        good = sscanf(p, "\"%99[^\"]\":{\"dtype\":\"F32\",\"shape\":[%n", t->name, &used) == 1 && used > 0;
        for (p += used; good && *p != ']'; p += *p == ',') {
            char *end;
            good = t->rank < 8;
            if (good) t->dim[t->rank++] = strtol(p, &end, 10), good = end > p, p = end;
        }
        used = 0;
        unsigned long begin = 0, end = 0;
        good = good && sscanf(p, "],\"data_offsets\":[%lu,%lu]}%n", &begin, &end, &used) == 2 && used > 0;
        t->begin = begin, t->end = end;
        p += used;
        if (*p == ',') p++;
    }
    good = good && *p++ == '}';
    while (good && *p == ' ') p++;
    good = good && p == text + f->header;
    free(text);
    return good;
}

static const file_tensor *tensor_named(const tensor_file *f, const char *name) {
    for (int i = 0; i < f->n; i++) if (!strcmp(f->t[i].name, name)) return &f->t[i];
    return NULL;
}

static uint32_t crc32c(const unsigned char *p, size_t n) {
    uint32_t c = 0xffffffffu;
    for (; n--; p++) {
        c ^= *p;
        for (int i = 0; i < 8; i++) c = c >> 1 ^ (0x82f63b78u & (0u - (c & 1)));
    }
    return ~c;
}

/* ---- models ------------------------------------------------------------------------------------------ */

static dt_tensor *image_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_conv2d(x, 4, 3, .kernel_w = 2, .name = "conv");
    x = dt_relu(dt_batchnorm(x, .name = "bn"));
    x = dt_conv2d(x, 4, 1, .groups = 2, .no_bias = 1, .name = "grouped");
    x = dt_layernorm(dt_flatten(x), .name = "ln");
    return dt_dense(x, 3, .name = "fc");
}
enum { IH = 5, IW = 4, IC = 2, OH = 3, OW = 3, OC = 4 };

static dt_model *image_model(int replicas, dt_strategy strategy, uint64_t seed) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = image_net, o.input[0] = IH, o.input[1] = IW, o.input[2] = IC, o.loss = DT_CROSS_ENTROPY;
    o.batch = 8, o.replicas = replicas, o.strategy = strategy, o.seed = seed;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    return m;
}

static void train_a_little(dt_model *m) {
    static float x[8][IH * IW * IC];
    static const int32_t y[8] = { 0, 1, 2, 0, 1, 2, 0, 1 };
    dt_error err = DT_DEFAULTS;
    for (int i = 0; i < 8 * IH * IW * IC; i++) (&x[0][0])[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    for (int i = 0; i < 3; i++) dt_step(m, x, y, 8, &err);
    CHECK_OK(err);
}

/* the smallest model with one matrix, "w.weight" [1,2] */
static dt_tensor *two_net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(x, 1, .no_bias = 1, .name = "w");
}

/* … and with two vectors "a.weight" [1,1], "b.weight" [1,1] */
static dt_tensor *pair_net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_dense(x, 1, .no_bias = 1, .name = "a"), 1, .no_bias = 1, .name = "b");
}

static dt_model *small_model(dt_tensor *(*net)(dt_tensor *, void *), int input) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = net, o.input[0] = input, o.replicas = 1, o.inference = 1;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    return m;
}

static float *read_parameter(dt_model *m, const char *name, float *out, size_t n) {
    dt_error err = DT_DEFAULTS;
    memset(out, 0, n * sizeof *out);
    dt_parameter_read(m, name, out, n, &err);
    CHECK_MSG(!err.code, "%s: %s", name, err.text);
    return out;
}

static void write_parameter(dt_model *m, const char *name, const float *in, size_t n) {
    dt_error err = DT_DEFAULTS;
    dt_parameter_write(m, name, in, n, &err);
    CHECK_MSG(!err.code, "%s: %s", name, err.text);
}

/* ---- what is written ------------------------------------------------------------------------------------ */

static void test_file_as_promised(void) {
    static const struct { const char *name; int rank; long dim[4]; } want[] = {
        { "conv.weight", 4, { 4, 2, 3, 2 } }, { "conv.bias", 1, { 4 } },
        { "bn.weight", 1, { 4 } }, { "bn.bias", 1, { 4 } }, { "bn.running_mean", 1, { 4 } }, { "bn.running_var", 1, { 4 } },
        { "grouped.weight", 4, { 4, 2, 1, 1 } },
        { "ln.weight", 1, { 36 } }, { "ln.bias", 1, { 36 } },
        { "fc.weight", 2, { 3, 36 } }, { "fc.bias", 1, { 3 } },
    };
    static tensor_file f;
    dt_error err = DT_DEFAULTS;
    dt_model *m = image_model(1, DT_ONE, 1);
    train_a_little(m);
    const char *path = at("promised.safetensors");
    CHECK(dt_save(m, path, &err) == 0);
    CHECK_OK(err);
    CHECK(parse(path, &f));
    CHECK_MSG((8 + f.header) % 8 == 0, "the header is %zu bytes", f.header);
    CHECK_MSG(f.n == COUNT(want), "%d tensors", f.n);
    for (int i = 0; i < COUNT(want); i++) {
        const file_tensor *t = tensor_named(&f, want[i].name);
        CHECK_MSG(t, "no %s", want[i].name);
        if (!t) continue;
        int same = t->rank == want[i].rank;
        size_t size = 1;
        for (int k = 0; k < t->rank; k++) same = same && t->dim[k] == want[i].dim[k], size *= (size_t)t->dim[k];
        CHECK_MSG(same && t->end - t->begin == 4 * size, "%s has another shape", want[i].name);
        float v[200];
        int differ = 0;
        read_parameter(m, want[i].name, v, size);
        for (size_t k = 0; k < size; k++) {
            uint32_t bits;
            memcpy(&bits, &v[k], 4);
            differ += bits != (uint32_t)little(f.bytes + 8 + f.header + t->begin + 4 * k, 4);
        }
        CHECK_MSG(differ == 0, "%s: %d values differ from dt_parameter_read", want[i].name, differ);
    }
    /* the tensors tile the data: each begins where another one ended */
    size_t end = 0;
    for (int i = 0; i < f.n; i++) {
        int found = 0;
        for (int k = 0; k < f.n && !found; k++) if (f.t[k].begin == end && f.t[k].end > end) found = 1, end = f.t[k].end;
        CHECK_MSG(found, "nothing begins at %zu", end);
    }
    CHECK(8 + f.header + end == f.size);
    CHECK_MSG(crc32c(f.bytes + 8 + f.header, end) == dt_parameters_crc32c(m), "dt_parameters_crc32c is not that of the data");
    CHECK(!f.order[0]);
    free(f.bytes);

    /* dt_parameter_at tells the same names and shapes */
    size_t total = 0;
    int n = 0;
    dt_parameter p;
    for (; n < 100 && dt_parameter_at(m, n, &p, NULL) == 0; n++) {
        int found = 0;
        for (int i = 0; i < COUNT(want); i++)
            if (!strcmp(want[i].name, p.name)) {
                found = p.rank == want[i].rank;
                for (int k = 0; k < p.rank; k++) found = found && p.dim[k] == want[i].dim[k];
                CHECK_MSG(p.trainable == !strstr(p.name, "running"), "%s: trainable %d", p.name, p.trainable);
            }
        CHECK_MSG(found, "%s is not expected", p.name);
        total += p.size;
    }
    CHECK(n == COUNT(want));
    CHECK(4 * total == end);
    CHECK(dt_parameter_at(m, n, &p, &err) && err.code == DT_ERR_ARGUMENT);
    CHECK(dt_parameter_at(m, -1, &p, NULL));
    /* others may read the file, as umask says */
    struct stat s;
    mode_t mask = umask(022);
    CHECK(dt_save(m, path, NULL) == 0 && stat(path, &s) == 0);
    CHECK_MSG((s.st_mode & 0777) == 0644, "mode %o", (unsigned)s.st_mode & 0777);
    umask(mask);
    dt_model_free(m);
}

static void test_round_trip(void) {
    static const struct { int replicas; dt_strategy strategy; } row[] = { { 1, DT_ONE }, { 3, DT_MIRRORED }, { 3, DT_CENTRAL } };
    static const float odd[3] = { -0.0f, 1e-42f, 3.4028235e38f };
    size_t n1, n2;
    for (int i = 0; i < COUNT(row); i++)
        for (int k = 0; k < COUNT(row); k++) {
            dt_error err = DT_DEFAULTS;
            dt_model *a = image_model(row[i].replicas, row[i].strategy, 1), *b = image_model(row[k].replicas, row[k].strategy, 2);
            train_a_little(a);
            write_parameter(a, "fc.bias", odd, 3);
            CHECK(dt_parameters_crc32c(a) != dt_parameters_crc32c(b));
            CHECK(dt_save(a, at("trip"), &err) == 0);
            CHECK(dt_load(b, at("trip"), NULL, &err) == 0);
            CHECK_OK(err);
            CHECK(dt_parameters_crc32c(a) == dt_parameters_crc32c(b));
            float bias[3];
            CHECK(!memcmp(read_parameter(b, "fc.bias", bias, 3), odd, sizeof odd));
            CHECK(dt_save(b, at("trip2"), &err) == 0);
            unsigned char *f1 = get(at("trip"), &n1), *f2 = get(at("trip2"), &n2);
            CHECK(f1 && f2 && n1 == n2 && !memcmp(f1, f2, n1));
            free(f1), free(f2);

            /* the load reached every replica */
            static float x[7][IH * IW * IC], p[7][3], q[7][3];
            for (int j = 0; j < 7 * IH * IW * IC; j++) (&x[0][0])[j] = (float)(j % 40 * 17 % 13) / 13;
            float zero[3] = { 0, 0, 0 };
            write_parameter(a, "fc.bias", zero, 3), write_parameter(b, "fc.bias", zero, 3);
            dt_predict(a, x, 7, &p[0][0], &err), dt_predict(b, x, 7, &q[0][0], &err);
            CHECK_OK(err);
            for (int j = 0; j < 21; j++) CHECK_NEAR((&p[0][0])[j], (&q[0][0])[j], 1e-5);
            for (int j = 3; j < 21; j++) CHECK_NEAR((&q[0][0])[j], q[0][j % 3], 1e-5);
            dt_model_free(a), dt_model_free(b);
        }
}

/* ---- PyTorch's layout, by hand ---------------------------------------------------------------------------- */

static float number(int i) { return (float)(i * 7919 % 1009) / 1009 - 0.5f; }

/* image_net as PyTorch would compute it: channels first, flatten in (c, h, w) order */
static void by_hand(const float *x, const float *cw, const float *cb, const float *gw, const float *lw, const float *lb, const float *fw, const float *fb, double *out) {
    double conv[OC][OH][OW], flat[OC * OH * OW], mean = 0, variance = 0;
    for (int o = 0; o < OC; o++)
        for (int h = 0; h < OH; h++)
            for (int w = 0; w < OW; w++) {
                double s = (double)cb[o];
                for (int c = 0; c < IC; c++)
                    for (int i = 0; i < 3; i++)
                        for (int j = 0; j < 2; j++) s += (double)cw[((o * IC + c) * 3 + i) * 2 + j] * (double)x[((h + i) * IW + w + j) * IC + c];
                s /= sqrt(1 + 1e-5);  /* batch norm with running mean 0 and variance 1 */
                conv[o][h][w] = s > 0 ? s : 0;
            }
    for (int o = 0; o < OC; o++)
        for (int h = 0; h < OH; h++)
            for (int w = 0; w < OW; w++) {
                int group = o / 2;
                double s = 0;
                for (int c = 0; c < 2; c++) s += (double)gw[o * 2 + c] * conv[group * 2 + c][h][w];
                flat[(o * OH + h) * OW + w] = s;
                mean += s / (OC * OH * OW);
            }
    for (int i = 0; i < OC * OH * OW; i++) variance += (flat[i] - mean) * (flat[i] - mean) / (OC * OH * OW);
    for (int u = 0; u < 3; u++) {
        out[u] = (double)fb[u];
        for (int i = 0; i < OC * OH * OW; i++)
            out[u] += (double)fw[u * OC * OH * OW + i] * ((flat[i] - mean) / sqrt(variance + 1e-5) * (double)lw[i] + (double)lb[i]);
    }
}

static void test_layout_is_pytorchs(void) {
    enum { N = 3 };
    static float cw[48], cb[4], gw[8], lw[36], lb[36], fw[108], fb[3], x[N][IH * IW * IC], y[N][3], back[108];
    static const struct { const char *name; float *v; int n; } all[] = {
        { "conv.weight", cw, 48 }, { "conv.bias", cb, 4 }, { "grouped.weight", gw, 8 }, { "ln.weight", lw, 36 }, { "ln.bias", lb, 36 }, { "fc.weight", fw, 108 }, { "fc.bias", fb, 3 },
    };
    dt_error err = DT_DEFAULTS;
    int next = 1;
    for (int replicas = 1; replicas <= 2; replicas++) {
        dt_model *m = image_model(replicas, replicas > 1 ? DT_MIRRORED : DT_ONE, 1), *again = image_model(1, DT_ONE, 9);
        for (int i = 0; i < COUNT(all); i++) {
            for (int k = 0; k < all[i].n; k++) all[i].v[k] = number(next++);
            write_parameter(m, all[i].name, all[i].v, (size_t)all[i].n);
            CHECK(!memcmp(read_parameter(m, all[i].name, back, (size_t)all[i].n), all[i].v, (size_t)all[i].n * sizeof(float)));
        }
        for (int i = 0; i < N * IH * IW * IC; i++) (&x[0][0])[i] = number(next++);
        CHECK(dt_save(m, at("layout"), &err) == 0 && dt_load(again, at("layout"), NULL, &err) == 0);
        for (int k = 0; k < 2; k++) {
            dt_predict(k ? again : m, x, N, &y[0][0], &err);
            CHECK_OK(err);
            for (int i = 0; i < N; i++) {
                double want[3];
                by_hand(x[i], cw, cb, gw, lw, lb, fw, fb, want);
                for (int u = 0; u < 3; u++) CHECK_NEAR(y[i][u], want[u], 1e-4);
            }
        }
        dt_model_free(m), dt_model_free(again);
    }
    /* wrong sizes and names are refused */
    dt_model *m = image_model(1, DT_ONE, 1);
    uint32_t before = dt_parameters_crc32c(m);
    static const struct { const char *name; size_t n; const char *text; } bad[] = {
        { "fc.weight", 107, "108" }, { "fc.weight", 109, "109" }, { "fc.weight", 0, "108" }, { "no.weight", 3, "no.weight" }, { "", 3, "" }, { "fc", 108, "fc" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_error e = DT_DEFAULTS;
        CHECK_MSG(dt_parameter_write(m, bad[i].name, back, bad[i].n, &e) && strstr(e.text, bad[i].text), "write %s %zu: \"%s\"", bad[i].name, bad[i].n, e.text);
        memset(&e, 0, sizeof e);
        CHECK_MSG(dt_parameter_read(m, bad[i].name, back, bad[i].n, &e) && strstr(e.text, bad[i].text), "read %s %zu: \"%s\"", bad[i].name, bad[i].n, e.text);
    }
    CHECK(dt_parameter_write(m, NULL, back, 3, NULL) && dt_parameter_write(m, "fc.bias", NULL, 3, NULL) && dt_parameter_write(NULL, "fc.bias", back, 3, NULL));
    CHECK(dt_parameters_crc32c(m) == before);
    dt_model_free(m);
}

/* behind a reshape nobody knows of channels: the order stays, and the file says so */
static dt_tensor *reshaped_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_conv2d(x, 2, 1, .no_bias = 1, .name = "conv");
    return dt_dense(dt_reshape(x, {-1}), 1, .no_bias = 1, .name = "fc");
}

/* element-wise operations and dropout behind a flatten keep the note */
static dt_tensor *noted_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_conv2d(x, 2, 1, .no_bias = 1, .name = "conv");
    x = dt_dropout(dt_leaky_relu(dt_flatten(x), 0.5), 0.3);
    return dt_dense(dt_add(x, x), 1, .no_bias = 1, .name = "fc");
}

static void test_order_behind_reshape(void) {
    for (int noted = 0; noted < 2; noted++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        static tensor_file f;
        static const float one[2] = { 1, 2 };  /* channel 1 is twice channel 0 */
        float w[12], y[1], x[6] = { 1, 2, 3, 4, 5, 6 };
        o.net = noted ? noted_net : reshaped_net, o.input[0] = 2, o.input[1] = 3, o.input[2] = 1, o.replicas = 1, o.inference = 1;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_OK(err);
        for (int i = 0; i < 12; i++) w[i] = (float)(1 << i);
        write_parameter(m, "conv.weight", one, 2);
        write_parameter(m, "fc.weight", w, 12);
        dt_predict(m, x, 1, y, &err);
        double want = 0;
        for (int p = 0; p < 6; p++)
            for (int c = 0; c < 2; c++) want += (double)x[p] * (c + 1) * (double)w[noted ? c * 6 + p : p * 2 + c] * (noted ? 2 : 1);
        CHECK_NEAR(y[0], want, 1e-6);
        CHECK(dt_save(m, at("reshaped"), &err) == 0 && parse(at("reshaped"), &f));
        CHECK_MSG(noted ? !f.order[0] : strstr(f.order, "hwc") != NULL, "dtrain.order is \"%s\"", f.order);
        free(f.bytes);
        CHECK(dt_load(m, at("reshaped"), NULL, &err) == 0);
        CHECK_OK(err);
        dt_model_free(m);
    }
}

/* ---- files made here ----------------------------------------------------------------------------------------- */

/* header text and so many data bytes (0, 1, 2, …); length: what the first 8 bytes say, AUTO: the truth */
#define AUTO UINT64_MAX
static const char *put_tensors(const char *name, const char *header, size_t header_bytes, const void *data, size_t data_bytes, uint64_t says) {
    unsigned char *b = (unsigned char *)calloc(1, 8 + header_bytes + data_bytes + 1);
    if (says == AUTO) says = header_bytes;
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(says >> (8 * i));
    memcpy(b + 8, header, header_bytes);
    if (data) memcpy(b + 8 + header_bytes, data, data_bytes);
    else for (size_t i = 0; i < data_bytes; i++) b[8 + header_bytes + i] = (unsigned char)i;
    const char *path = put(name, b, 8 + header_bytes + data_bytes);
    free(b);
    return path;
}

#define W "\"w.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}"
#define ENTRY(dtype, shape, offsets) "{\"w.weight\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

/* all of these hold w.weight [1,2] and have to load */
static const struct { const char *name, *header; size_t data; } good_file[] = {
    { "plain",               "{" W "}", 8 },
    { "padded",              "{" W "}     ", 8 },
    { "other blanks behind", "{" W "}\n\t\r ", 8 },
    { "blanks everywhere",   "{ \"w.weight\" :\t{ \"dtype\" : \"F32\" ,\n\"shape\" : [ 1 , 2 ] , \"data_offsets\" : [ 0 , 8 ] } }", 8 },
    { "other order of fields", "{\"w.weight\":{\"data_offsets\":[0,8],\"shape\":[1,2],\"dtype\":\"F32\"}}", 8 },
    { "unknown field",       "{\"w.weight\":{\"dtype\":\"F32\",\"note\":{\"a\":[1,-2.5e3,true,null,\"}\"]},\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8 },
    { "escaped name",        "{\"w\\u002eweight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8 },
    { "escaped dtype",       "{\"w.weight\":{\"dtype\":\"\\u00463\\u0032\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8 },
    { "metadata",            "{\"__metadata__\":{\"format\":\"pt\",\"\":\"\\ud83d\\ude00 \\u0000\"}," W "}", 8 },
    { "metadata last",       "{" W ",\"__metadata__\":{}}", 8 },
    { "metadata null",       "{\"__metadata__\":null," W "}", 8 },
    { "odd header length",   "{\"__metadata__\":{\"a\":\"b\"}," W "} ", 8 },
};

static const struct { const char *name, *header; size_t header_bytes, data; uint64_t says; } bad_file[] = {
#define TEXT(s) s, sizeof(s) - 1
    { "length one too large",   TEXT("{" W "}"), 8, sizeof("{" W "}") + 8 },
    { "length one too small",   TEXT("{" W "}"), 8, sizeof("{" W "}") - 2 },
    { "length 0",               TEXT("{" W "}"), 8, 0 },
    { "length past the end",    TEXT("{" W "}"), 8, 9999 },
    { "length 2^63",            TEXT("{" W "}"), 8, (uint64_t)1 << 63 },
    { "length 2^64 - 8",        TEXT("{" W "}"), 8, UINT64_MAX - 7 },
    { "length + 2^32",          TEXT("{" W "}"), 8, ((uint64_t)1 << 32) + sizeof("{" W "}") - 1 },
    { "big-endian length",      TEXT("{" W "}"), 8, (uint64_t)(sizeof("{" W "}") - 1) << 56 },
    { "over 100,000,000",       TEXT("{" W "}"), 8, 100000001 },
    { "no JSON",                TEXT("hello"), 8, AUTO },
    { "empty text",             TEXT("      "), 8, AUTO },
    { "an array",               TEXT("[" "]"), 0, AUTO },
    { "a string",               TEXT("\"w\""), 0, AUTO },
    { "byte-order mark",        TEXT("\xef\xbb\xbf{" W "}"), 8, AUTO },
    { "blank before {",         TEXT(" {" W "}"), 8, AUTO },
    { "no closing brace",       TEXT("{" W), 8, AUTO },
    { "one brace too many",     TEXT("{" W "}}"), 8, AUTO },
    { "two objects",            TEXT("{" W "}{}"), 8, AUTO },
    { "NUL padding",            TEXT("{" W "}\0\0\0"), 8, AUTO },
    { "comma at the end",       TEXT("{" W ",}"), 8, AUTO },
    { "comma at the start",     TEXT("{," W "}"), 8, AUTO },
    { "no comma",               TEXT("{\"__metadata__\":{}" W "}"), 8, AUTO },
    { "no colon",               TEXT("{\"w.weight\" {\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "comment",                TEXT("{/**/" W "}"), 8, AUTO },
    { "single quotes",          TEXT("{'w.weight':{'dtype':'F32','shape':[1,2],'data_offsets':[0,8]}}"), 8, AUTO },
    { "name without quotes",    TEXT("{w:{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "bad UTF-8",              TEXT("{\"__metadata__\":{\"a\":\"\xff\"}," W "}"), 8, AUTO },
    { "overlong UTF-8",         TEXT("{\"__metadata__\":{\"a\":\"\xc0\xaf\"}," W "}"), 8, AUTO },
    { "surrogate in UTF-8",     TEXT("{\"__metadata__\":{\"a\":\"\xed\xa0\x80\"}," W "}"), 8, AUTO },
    { "UTF-8 cut",              TEXT("{\"__metadata__\":{\"a\":\"\xe2\x82\"}," W "}"), 8, AUTO },
    { "newline in a string",    TEXT("{\"__metadata__\":{\"a\":\"\n\"}," W "}"), 8, AUTO },
    { "unknown escape",         TEXT("{\"__metadata__\":{\"a\":\"\\q\"}," W "}"), 8, AUTO },
    { "lone surrogate",         TEXT("{\"__metadata__\":{\"a\":\"\\ud800\"}," W "}"), 8, AUTO },
    { "low surrogate first",    TEXT("{\"__metadata__\":{\"a\":\"\\udc00\\ud800\"}," W "}"), 8, AUTO },
    { "half an escape",         TEXT("{\"__metadata__\":{\"a\":\"\\u00\"}," W "}"), 8, AUTO },
    { "metadata of numbers",    TEXT("{\"__metadata__\":{\"step\":42}," W "}"), 8, AUTO },
    { "metadata of null",       TEXT("{\"__metadata__\":{\"step\":null}," W "}"), 8, AUTO },
    { "metadata of objects",    TEXT("{\"__metadata__\":{\"step\":{}}," W "}"), 8, AUTO },
    { "metadata is an array",   TEXT("{\"__metadata__\":[]," W "}"), 8, AUTO },
    { "metadata twice",         TEXT("{\"__metadata__\":{}," W ",\"__metadata__\":{}}"), 8, AUTO },
    { "metadata key twice",     TEXT("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," W "}"), 8, AUTO },
    { "entry is a number",      TEXT("{\"w.weight\":8}"), 8, AUTO },
    { "entry is null",          TEXT("{\"w.weight\":null}"), 8, AUTO },
    { "no dtype",               TEXT("{\"w.weight\":{\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "no shape",               TEXT("{\"w.weight\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "no offsets",             TEXT("{\"w.weight\":{\"dtype\":\"F32\",\"shape\":[1,2]}}"), 8, AUTO },
    { "unknown dtype",          TEXT(ENTRY("\"F31\"", "[1,2]", "[0,8]")), 8, AUTO },
    { "dtype in lower case",    TEXT(ENTRY("\"f32\"", "[1,2]", "[0,8]")), 8, AUTO },
    { "dtype is a number",      TEXT(ENTRY("32", "[1,2]", "[0,8]")), 8, AUTO },
    { "dimension -2",           TEXT(ENTRY("\"F32\"", "[-1,-2]", "[0,8]")), 8, AUTO },
    { "dimension 2.0",          TEXT(ENTRY("\"F32\"", "[1,2.0]", "[0,8]")), 8, AUTO },
    { "dimension 2e0",          TEXT(ENTRY("\"F32\"", "[1,2e0]", "[0,8]")), 8, AUTO },
    { "dimension \"2\"",        TEXT(ENTRY("\"F32\"", "[1,\"2\"]", "[0,8]")), 8, AUTO },
    { "dimension 02",           TEXT(ENTRY("\"F32\"", "[1,02]", "[0,8]")), 8, AUTO },
    { "dimension +2",           TEXT(ENTRY("\"F32\"", "[1,+2]", "[0,8]")), 8, AUTO },
    { "dimension 2^64 + 2",     TEXT(ENTRY("\"F32\"", "[1,18446744073709551618]", "[0,8]")), 8, AUTO },
    { "shape is a number",      TEXT(ENTRY("\"F32\"", "2", "[0,8]")), 8, AUTO },
    { "shape with a comma",     TEXT(ENTRY("\"F32\"", "[1,2,]", "[0,8]")), 8, AUTO },
    { "product wraps",          TEXT(ENTRY("\"F32\"", "[4294967296,4294967296,2]", "[0,8]")), 8, AUTO },
    { "bytes wrap",             TEXT(ENTRY("\"F32\"", "[4611686018427387904]", "[0,8]")), 8, AUTO },
    { "wraps before a 0",       TEXT("{\"z\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}," W "}"), 8, AUTO },
    { "span too long",          TEXT(ENTRY("\"F32\"", "[1,2]", "[0,12]")), 12, AUTO },
    { "span too short",         TEXT(ENTRY("\"F32\"", "[1,2]", "[0,4]")), 4, AUTO },
    { "end before begin",       TEXT(ENTRY("\"F32\"", "[1,2]", "[8,0]")), 8, AUTO },
    { "negative offset",        TEXT(ENTRY("\"F32\"", "[1,2]", "[-8,0]")), 8, AUTO },
    { "offset -0",              TEXT(ENTRY("\"F32\"", "[1,2]", "[-0,8]")), 8, AUTO },
    { "offset 8.0",             TEXT(ENTRY("\"F32\"", "[1,2]", "[0,8.0]")), 8, AUTO },
    { "one offset",             TEXT(ENTRY("\"F32\"", "[1,2]", "[8]")), 8, AUTO },
    { "three offsets",          TEXT(ENTRY("\"F32\"", "[1,2]", "[0,8,8]")), 8, AUTO },
    { "offsets wrap",           TEXT(ENTRY("\"F32\"", "[1,2]", "[18446744073709551608,0]")), 8, AUTO },
    { "hole at the start",      TEXT(ENTRY("\"F32\"", "[1,2]", "[4,12]")), 12, AUTO },
    { "hole in the middle",     TEXT("{" W ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]}}"), 10, AUTO },
    { "overlap",                TEXT("{" W ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"), 8, AUTO },
    { "overlap: one in another", TEXT("{" W ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}"), 9, AUTO },
    { "two names, one span",    TEXT("{" W ",\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "one byte missing",       TEXT("{" W "}"), 7, AUTO },
    { "one byte too many",      TEXT("{" W "}"), 9, AUTO },
    { "no data",                TEXT("{" W "}"), 0, AUTO },
    { "name twice",             TEXT("{" W "," W "}"), 8, AUTO },
    { "name twice, two places", TEXT("{" W ",\"w.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]}}"), 16, AUTO },
    { "name twice, empty",      TEXT("{\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}," W "}"), 8, AUTO },
    { "name twice, escaped",    TEXT("{" W ",\"w\\u002eweight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "name twice, the last one right", TEXT("{\"w.weight\":{\"dtype\":\"F32\",\"shape\":[9],\"data_offsets\":[0,36]}," W "}"), 8, AUTO },
    { "field twice",            TEXT("{\"w.weight\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "number cut",             TEXT("{\"w.weight\":{\"dtype\":\"F32\",\"x\":-,\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "unknown word",           TEXT("{\"w.weight\":{\"dtype\":\"F32\",\"x\":nil,\"shape\":[1,2],\"data_offsets\":[0,8]}}"), 8, AUTO },
    { "F4, 3 elements",         TEXT("{" W ",\"z\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[8,9]}}"), 9, AUTO },
#undef TEXT
};

static const float start[2] = { 7, -7 };

/* loads into a model with w.weight = start; says whether it still is */
static int load_two(dt_model *m, const char *path, const char *glob, dt_error *err) {
    float w[2];
    write_parameter(m, "w.weight", start, 2);
    uint32_t before = dt_parameters_crc32c(m);
    int rc = dt_load(m, path, glob, err);
    CHECK_MSG(rc == err->code, "%s: returns %d, the error holds %d", path, rc, err->code);
    if (rc) CHECK_MSG(dt_parameters_crc32c(m) == before && !memcmp(read_parameter(m, "w.weight", w, 2), start, sizeof start), "%s: the failed load changed the model", path);
    return rc;
}

static void test_good_files(void) {
    static const float data[2] = { 1.5f, -2 };
    unsigned char bytes[8];
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++) {
            uint32_t bits;
            memcpy(&bits, &data[i], 4);
            bytes[4 * i + k] = (unsigned char)(bits >> (8 * k));
        }
    dt_model *m = small_model(two_net, 2);
    for (int i = 0; i < COUNT(good_file); i++) {
        dt_error err = DT_DEFAULTS;
        float w[2];
        load_two(m, put_tensors("good", good_file[i].header, strlen(good_file[i].header), bytes, good_file[i].data, AUTO), NULL, &err);
        CHECK_MSG(!err.code, "%s: %s", good_file[i].name, err.text);
        read_parameter(m, "w.weight", w, 2);
        CHECK_MSG(w[0] == 1.5f && w[1] == -2, "%s: %g, %g", good_file[i].name, w[0], w[1]);
    }
    dt_model_free(m);

    /* two tensors, last one first */
    dt_error err = DT_DEFAULTS;
    float a, b;
    m = small_model(pair_net, 1);
    static const char two[] = "{\"b.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]},\"a.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}";
    CHECK(dt_load(m, put_tensors("good", two, sizeof two - 1, bytes, 8, AUTO), NULL, &err) == 0);
    CHECK_OK(err);
    CHECK(*read_parameter(m, "a.weight", &a, 1) == 1.5f && *read_parameter(m, "b.weight", &b, 1) == -2);
    /* an empty tensor in between is no parameter of this model, but no hole either */
    static const char empty[] = "{\"b.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]},\"z\":{\"dtype\":\"I64\",\"shape\":[0,3],\"data_offsets\":[4,4]},"
                                "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}";
    CHECK(dt_load(m, put_tensors("good", empty, sizeof empty - 1, bytes, 8, AUTO), "?.weight", &err) == 0);
    CHECK_OK(err);
    dt_model_free(m);
}

static void test_bad_files(void) {
    dt_model *m = small_model(two_net, 2);
    for (int i = 0; i < COUNT(bad_file); i++)
        for (int partial = 0; partial < 2; partial++) {  /* a partial load is no less strict about the file */
            dt_error err = DT_DEFAULTS;
            const char *path = put_tensors("broken.safetensors", bad_file[i].header, bad_file[i].header_bytes, NULL, bad_file[i].data, bad_file[i].says);
            int rc = load_two(m, path, partial ? "w.*" : NULL, &err);
            CHECK_MSG(rc == DT_ERR_FORMAT, "%s: code %d \"%s\"", bad_file[i].name, rc, err.text);
            CHECK_MSG(!rc || strstr(err.text, "broken.safetensors"), "%s: \"%s\" does not name the file", bad_file[i].name, err.text);
            if (!strncmp(bad_file[i].name, "overlap", 7)) CHECK_MSG(strstr(err.text, "\"b\": its data overlap another tensor's"), "%s: \"%s\"", bad_file[i].name, err.text);
            if (!strncmp(bad_file[i].name, "hole", 4)) CHECK_MSG(strstr(err.text, "a hole lies before its data"), "%s: \"%s\"", bad_file[i].name, err.text);
        }
    /* nested too deep: in an unknown field and as an entry */
    static const char *const before[] = { "{\"w.weight\":{\"dtype\":\"F32\",\"x\":", "{\"x\":" }, *const after[] = { ",\"shape\":[1,2],\"data_offsets\":[0,8]}}", "," W "}" };
    for (int k = 0; k < 4; k++) {
        int depth = 200000;
        char *text = (char *)malloc((size_t)depth * 6 + 200), *p = text + sprintf(text, "%s", before[k % 2]);
        for (int i = 0; i < depth; i++) p += sprintf(p, k < 2 ? "[" : "{\"a\":");
        if (k >= 2) *p++ = '1';
        for (int i = 0; i < depth; i++) *p++ = k < 2 ? ']' : '}';
        p += sprintf(p, "%s", after[k % 2]);
        dt_error err = DT_DEFAULTS;
        CHECK_MSG(load_two(m, put_tensors("deep.safetensors", text, (size_t)(p - text), NULL, 8, AUTO), NULL, &err) == DT_ERR_FORMAT, "nesting %d: \"%s\"", k, err.text);
        free(text);
    }
    dt_model_free(m);
}

/* every prefix of a good file is refused; every bit turned in its header does no harm */
static void test_cut_and_damaged(void) {
    static const char header[] = "{\"__metadata__\":{\"a\":\"b\"}," W "}  ";
    size_t size;
    dt_model *m = small_model(two_net, 2);
    unsigned char *b = get(put_tensors("whole", header, sizeof header - 1, NULL, 8, AUTO), &size);
    CHECK(size == 8 + sizeof header - 1 + 8);
    for (size_t n = 0; n < size; n++) {
        dt_error err = DT_DEFAULTS;
        CHECK_MSG(load_two(m, put("cut", b, n), NULL, &err) == DT_ERR_FORMAT, "the first %zu bytes load", n);
    }
    for (size_t i = 0; i < 8 * (size - 8); i++) {
        dt_error err = DT_DEFAULTS;
        b[i / 8] ^= (unsigned char)(1 << i % 8);
        if (load_two(m, put("damaged", b, size), NULL, &err)) CHECK_MSG(err.text[0], "bit %zu: no message", i);
        b[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    free(b);
    dt_model_free(m);
}

/* ---- other number types ------------------------------------------------------------------------------------------ */

static void test_number_types(void) {
    static const struct { const char *dtype; unsigned bits; double value; } half[] = {
        { "F16", 0x3c00, 1 },  { "F16", 0xc000, -2 },  { "F16", 0x0001, 5.9604644775390625e-8 },  { "F16", 0x03ff, 6.097555160522461e-5 },
        { "F16", 0x0400, 6.103515625e-5 },  { "F16", 0x8401, -6.109476089477539e-5 },  { "F16", 0x7bff, 65504 },  { "F16", 0x8000, -0.0 },  { "F16", 0x3555, 0.333251953125 },
        { "F16", 0x0200, 3.0517578125e-5 }, { "BF16", 0x3f80, 1 },  { "BF16", 0xc000, -2 },  { "BF16", 0x3eab, 0.333984375 },  { "BF16", 0x7f7f, 3.3895313892515355e38 },
        { "BF16", 0x0080, 1.1754943508222875e-38 },  { "BF16", 0x0001, 9.183549615799121e-41 },  { "BF16", 0x8000, -0.0 },
    };
    char header[200];
    dt_model *m = small_model(two_net, 2);
    for (int i = 0; i < COUNT(half); i++) {
        unsigned char data[4] = { (unsigned char)half[i].bits, (unsigned char)(half[i].bits >> 8), 0, 0 };
        float w[2], want[2] = { (float)half[i].value, 0 };
        dt_error err = DT_DEFAULTS;
        int n = snprintf(header, sizeof header, "{\"w.weight\":{\"dtype\":\"%s\",\"shape\":[1,2],\"data_offsets\":[0,4]}}", half[i].dtype);
        load_two(m, put_tensors("half", header, (size_t)n, data, 4, AUTO), NULL, &err);
        CHECK_OK(err);
        read_parameter(m, "w.weight", w, 2);
        CHECK_MSG(!memcmp(w, want, sizeof w), "%s %04x is %.9g, expected %.9g", half[i].dtype, half[i].bits, w[0], want[0]);
    }
    static const struct { const char *dtype; int bytes; } other[] = {
        { "F64", 8 }, { "I64", 8 }, { "U64", 8 }, { "C64", 8 }, { "I32", 4 }, { "U32", 4 }, { "I16", 2 }, { "U16", 2 }, { "I8", 1 }, { "U8", 1 }, { "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 },
    };
    for (int i = 0; i < COUNT(other); i++) {
        dt_error err = DT_DEFAULTS;
        int n = snprintf(header, sizeof header, "{\"w.weight\":{\"dtype\":\"%s\",\"shape\":[1,2],\"data_offsets\":[0,%d]}}", other[i].dtype, 2 * other[i].bytes);
        int rc = load_two(m, put_tensors("other", header, (size_t)n, NULL, 2 * (size_t)other[i].bytes, AUTO), NULL, &err);
        CHECK_MSG(rc && strstr(err.text, other[i].dtype) && strstr(err.text, "w.weight"), "%s: %d \"%s\"", other[i].dtype, rc, err.text);
        /* … but may stand beside what is asked for */
        char two[300];
        memset(&err, 0, sizeof err);
        n = snprintf(two, sizeof two, "{" W ",\"n\":{\"dtype\":\"%s\",\"shape\":[1,2],\"data_offsets\":[8,%d]}}", other[i].dtype, 8 + 2 * other[i].bytes);
        rc = load_two(m, put_tensors("other", two, (size_t)n, NULL, 8 + 2 * (size_t)other[i].bytes, AUTO), "w.*", &err);
        CHECK_MSG(!rc, "%s beside it: \"%s\"", other[i].dtype, err.text);
    }
    dt_model_free(m);
}

/* ---- strict and partial loads --------------------------------------------------------------------------------------- */

static dt_tensor *three_net(dt_tensor *x, void *user) {  /* layers enc1, enc2, head; user: units of head */
    x = dt_tanh(dt_dense(x, 4, .name = "enc1"));
    x = dt_tanh(dt_dense(x, 4, .name = "enc2"));
    return dt_dense(x, *(int *)user, .name = "head");
}

static dt_model *three_model(int units, uint64_t seed) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = three_net, o.user = &units, o.input[0] = 3, o.replicas = 2, o.batch = 4, o.seed = seed, o.loss = DT_CROSS_ENTROPY;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    return m;
}

static void test_partial_load(void) {
    dt_error err = DT_DEFAULTS;
    float a[40], b[40], c[40];
    dt_model *m = three_model(5, 1);
    CHECK(dt_save(m, at("five"), &err) == 0);

    /* another head: the strict load names it, the partial one takes the rest */
    dt_model *other = three_model(7, 2);
    uint32_t before = dt_parameters_crc32c(other);
    CHECK(dt_load(other, at("five"), NULL, &err));
    CHECK_MSG(strstr(err.text, "head.") && strstr(err.text, "5") && strstr(err.text, "7"), "\"%s\"", err.text);
    CHECK(dt_parameters_crc32c(other) == before);
    memset(&err, 0, sizeof err);
    read_parameter(other, "head.weight", c, 28);
    CHECK(dt_load(other, at("five"), "enc*", &err) == 0);
    CHECK_OK(err);
    CHECK(!memcmp(read_parameter(m, "enc1.weight", a, 12), read_parameter(other, "enc1.weight", b, 12), 12 * sizeof *a));
    CHECK(!memcmp(read_parameter(m, "enc2.weight", a, 16), read_parameter(other, "enc2.weight", b, 16), 16 * sizeof *a));
    CHECK(!memcmp(read_parameter(other, "head.weight", b, 28), c, 28 * sizeof *a));
    dt_model_free(other);

    /* one layer of three */
    other = three_model(5, 3);
    read_parameter(other, "enc1.weight", c, 12);
    CHECK(dt_load(other, at("five"), "enc2.*", &err) == 0);
    CHECK(!memcmp(read_parameter(other, "enc1.weight", b, 12), c, 12 * sizeof *a));
    CHECK(!memcmp(read_parameter(m, "enc2.bias", a, 4), read_parameter(other, "enc2.bias", b, 4), 4 * sizeof *a));
    CHECK(dt_load(other, at("five"), "*", &err) == 0);
    CHECK_OK(err);
    CHECK(dt_parameters_crc32c(other) == dt_parameters_crc32c(m));
    before = dt_parameters_crc32c(other);
    CHECK(dt_load(other, at("five"), "decoder*", &err) && strstr(err.text, "decoder*"));  /* a misspelt glob loads nothing: say so */
    CHECK(dt_parameters_crc32c(other) == before);
    dt_model_free(other), dt_model_free(m);
}

static void test_strict_load(void) {
#define A "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}"
#define B "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]}"
    static const struct { const char *name, *header; size_t data; const char *glob, *says[3]; } bad[] = {
        { "missing",            "{" A "}", 4, NULL, { "b.weight" } },
        { "missing, by glob",   "{" A "}", 4, "b*", { "b.weight" } },
        { "all missing",        "{}", 0, NULL, { ".weight" } },
        { "unexpected",         "{" A "," B ",\"extra.bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, NULL, { "extra.bias" } },
        { "unexpected, empty",  "{" A "," B ",\"extra.bias\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}", 8, NULL, { "extra.bias" } },
        { "misspelt",           "{" A ",\"b.wieght\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]}}", 8, NULL, { "b.w" } },
        { "shape",              "{" A ",\"b.weight\":{\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[4,16]}}", 16, NULL, { "b.weight", "[3,1]", "[1,1]" } },
        { "rank",               "{" A ",\"b.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, NULL, { "b.weight", "[1]", "[1,1]" } },
        { "rank 0",             "{" A ",\"b.weight\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}", 8, NULL, { "b.weight" } },
        { "rank 20",            "{" A ",\"b.weight\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[4,8]}}", 8, NULL, { "b.weight" } },
        { "a NUL in the name",  "{" A ",\"b.weight\\u0000x\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]}}", 8, NULL, { "b.weight" } },
    };
    dt_model *m = small_model(pair_net, 1);
    uint32_t before = dt_parameters_crc32c(m);
    for (int i = 0; i < COUNT(bad); i++) {
        const char *path = put_tensors("strict", bad[i].header, strlen(bad[i].header), NULL, bad[i].data, AUTO);
        dt_error err = DT_DEFAULTS;
        int rc = dt_load(m, path, bad[i].glob, &err);
        CHECK_MSG(rc && rc == err.code, "%s: %d", bad[i].name, rc);
        for (int k = 0; k < 3 && bad[i].says[k]; k++) CHECK_MSG(strstr(err.text, bad[i].says[k]), "%s: \"%s\" has no \"%s\"", bad[i].name, err.text, bad[i].says[k]);
        CHECK_MSG(dt_parameters_crc32c(m) == before, "%s: the model changed", bad[i].name);
    }
    dt_model_free(m);
}

static void test_load_arguments(void) {
    dt_model *m = small_model(two_net, 2);
    static const struct { const char *name, *path; int code; } bad[] = {
        { "missing file", "nothing.safetensors", DT_ERR_IO }, { "missing folder", "nowhere/w.safetensors", DT_ERR_IO }, { "a folder", ".", 0 },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_error err = DT_DEFAULTS;
        int rc = load_two(m, at(bad[i].path), NULL, &err);
        CHECK_MSG(rc && (!bad[i].code || rc == bad[i].code) && strstr(err.text, bad[i].path), "%s: %d \"%s\"", bad[i].name, rc, err.text);
    }
    dt_error err = DT_DEFAULTS;
    CHECK(load_two(m, "/dev/null", NULL, &err) && strstr(err.text, "/dev/null"));
    CHECK(dt_load(m, NULL, NULL, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_load(NULL, at("good"), NULL, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_save(m, NULL, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_save(NULL, at("good"), NULL) == DT_ERR_ARGUMENT);
    dt_model_free(m);
}

/* ---- when writing fails ------------------------------------------------------------------------------------------------ */

static dt_tensor *large_net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(x, 100, .name = "fc");
}

/* an old file in a folder of its own, which every failure has to leave as it is */
static const char *old_file(dt_model *m, int (*save)(dt_model *, const char *, dt_error *), unsigned char **bytes, size_t *n) {
    static char path[400];
    mkdir(at("out"), 0700);
    snprintf(path, sizeof path, "%s", at("out/w.safetensors"));
    CHECK(save(m, path, NULL) == 0);
    *bytes = get(path, n);
    CHECK(files_in(at("out")) == 1);
    return path;
}

static void expect_old(const char *path, const unsigned char *bytes, size_t n, const char *what) {
    size_t now;
    unsigned char *b = get(path, &now);
    CHECK_MSG(b && now == n && !memcmp(b, bytes, n), "%s: the old file is damaged", what);
    CHECK_MSG(files_in(at("out")) == 1, "%s: %d files in the folder", what, files_in(at("out")));
    free(b);
}

static void save_fails(int (*save)(dt_model *, const char *, dt_error *)) {
    dt_model *m = small_model(large_net, 100);
    unsigned char *bytes;
    size_t n;
    const char *path = old_file(m, save, &bytes, &n);
    char long_path[6000], long_name[600];
    memset(long_path, 'x', sizeof long_path), memset(long_name, 'x', sizeof long_name);
    long_path[snprintf(long_path, 300, "%s/", scratch)] = 'x', long_path[5000] = 0;
    long_name[snprintf(long_name, 300, "%s/", scratch)] = 'x', long_name[strlen(scratch) + 301] = 0;
    mkdir(at("out2"), 0700), mkdir(at("out2/w.safetensors"), 0700);
    put("plain", "x", 1);
    static const char *const bad[] = { "nowhere/w.safetensors", "plain/w.safetensors", "out2/w.safetensors", "out2/", "" };
    for (int i = 0; i < COUNT(bad) + 2; i++) {
        dt_error err = DT_DEFAULTS;
        const char *to = i < COUNT(bad) ? at(bad[i]) : i == COUNT(bad) ? long_path : long_name;
        int rc = save(m, to, &err);
        CHECK_MSG(rc && rc == err.code && err.text[0], "%.60s: %d", to, rc);
        CHECK_MSG(i >= COUNT(bad) || strstr(err.text, bad[i]), "%s: \"%s\"", bad[i], err.text);
    }
    CHECK(save(m, "", NULL) != 0);
    CHECK(files_in(at("out2")) == 1 && files_in(at("out2/w.safetensors")) == 0);

    /* a folder without the right to write; nothing stops root */
    if (geteuid() != 0) {
        dt_error err = DT_DEFAULTS;
        chmod(at("out"), 0500);
        CHECK(save(m, path, &err) == DT_ERR_IO && strstr(err.text, "out/w.safetensors"));
        chmod(at("out"), 0700);
        expect_old(path, bytes, n, "no right to write");
    }

    /* the disk is full after so many bytes */
    struct rlimit old, limit;
    static const rlim_t room[] = { 0, 1, 100, 4096, 30000, 40000 };
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    CHECK(n > 40000);
    for (int i = 0; i < COUNT(room); i++) {
        dt_error err = DT_DEFAULTS;
        limit = old, limit.rlim_cur = room[i];
        fflush(stdout);
        setrlimit(RLIMIT_FSIZE, &limit);
        int rc = save(m, path, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        CHECK_MSG(rc == DT_ERR_IO && strstr(err.text, "w.safetensors"), "room for %lu bytes: %d \"%s\"", (unsigned long)room[i], rc, err.text);
        expect_old(path, bytes, n, "disk full");
    }
    signal(SIGXFSZ, SIG_DFL);
    dt_error err = DT_DEFAULTS;
    CHECK(save(m, path, &err) == 0);
    CHECK_OK(err);
    expect_old(path, bytes, n, "saved again");
    free(bytes);
    dt_model_free(m);
}

static void test_save_fails(void) { save_fails(dt_save); }
static void test_checkpoint_save_fails(void) { save_fails(dt_checkpoint_save); }

/* A path that is no plain file (a device, a pipe) must not be replaced by one: root's --save /dev/null. */
static void test_save_to_what_is_no_file(void) {
    dt_model *m = small_model(two_net, 2);
    struct stat s;
    char path[400];
    snprintf(path, sizeof path, "%s", at("pipe"));
    if (mkfifo(path, 0600)) { dt_model_free(m); SKIP("no named pipes here"); }
    int both = open(path, O_RDWR | O_NONBLOCK);  /* a reader, so that no writer waits for one */
    dt_save(m, path, NULL);
    CHECK_MSG(lstat(path, &s) == 0 && S_ISFIFO(s.st_mode), "the pipe was replaced by a file");
    close(both);
    remove(path);
    dt_model_free(m);
}

/* ---- the format's test files ---------------------------------------------------------------------------------------------- */

static int ends_in(const char *s, const char *end) { return strlen(s) >= strlen(end) && !strcmp(s + strlen(s) - strlen(end), end); }

static void test_format_files(void) {
    const char *root = getenv("DTRAIN_FORMATS");
    if (!root || !*root) SKIP("DTRAIN_FORMATS names no folder");
    dt_model *m = small_model(two_net, 2);
    static const char *const part[] = { "bad", "good" };
    for (int good = 0; good < 2; good++) {
        char folder[500], path[1000];
        int n = 0;
        snprintf(folder, sizeof folder, "%s/%s", root, part[good]);
        DIR *d = opendir(folder);
        CHECK_MSG(d, "no %s", folder);
        for (struct dirent *e; d && (e = readdir(d));) {
            if (!ends_in(e->d_name, ".safetensors")) continue;
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            dt_error err = DT_DEFAULTS;
            int rc = load_two(m, path, NULL, &err);  /* no file holds w.weight: also the good ones do not fit this model */
            CHECK_MSG(rc && err.text[0] && (good ? rc != DT_ERR_IO : rc == DT_ERR_FORMAT), "%s/%s: %d \"%s\"", part[good], e->d_name, rc, err.text);
            n++;
        }
        if (d) closedir(d);
        CHECK_MSG(n >= 20, "%d files in %s", n, folder);
    }
    dt_model_free(m);
}

/* ---- from and to memory and callbacks ---------------------------------------------------------------- */

typedef struct { unsigned char bytes[4096]; size_t n, limit; int calls; } store;

static int store_write(void *user, const void *data, size_t n) {
    store *s = (store *)user;
    if (s->n + n > s->limit) return 7;
    memcpy(s->bytes + s->n, data, n);
    s->n += n;
    return 0;
}

static int store_read(void *user, uint64_t offset, void *out, size_t n) {
    store *s = (store *)user;
    s->calls++;
    if (offset + n > s->limit) return 7;
    memcpy(out, s->bytes + offset, n);
    return 0;
}

static void test_save_and_load_elsewhere(void) {
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    static store s;
    size_t n;
    dt_model *m = three_model(5, 1), *other = three_model(5, 2);
    uint32_t want = dt_parameters_crc32c(m), before = dt_parameters_crc32c(other);
    CHECK(dt_save(m, at("five"), &err) == 0);
    unsigned char *file = get(at("five"), &n);
    s.limit = sizeof s.bytes;
    CHECK(dt_save_to(m, store_write, &s, &err) == 0);
    CHECK_MSG(s.n == n && !memcmp(s.bytes, file, n), "the callback got %d bytes, the file has %d", (int)s.n, (int)n);
    for (s.limit = 0; s.limit < n; s.limit += 1 + s.limit / 3) {  /* wherever it fails */
        s.n = 0;
        CHECK(dt_save_to(m, store_write, &s, &err) == DT_ERR_CALLBACK);
        CHECK_ERROR(err, DT_ERR_CALLBACK, "returned 7");
        err = none;
    }
    s.limit = n, s.n = n;
    memcpy(s.bytes, file, n);

    /* memory: at every alignment, and cut wherever */
    for (int shift = 0; shift < 4; shift++) {
        unsigned char *copy = (unsigned char *)malloc(n + 4);
        memcpy(copy + shift, file, n);
        dt_load_options o = DT_DEFAULTS;
        dt_model *third = three_model(5, 3);
        o.data = copy + shift, o.size = n;
        CHECK(dt_load_opt(third, &o, &err) == 0 && dt_parameters_crc32c(third) == want && o.loaded == 6 && !o.missing && !o.unexpected && !o.misshaped);
        CHECK_OK(err);
        dt_model_free(third);
        free(copy);
    }
    for (size_t cut = 0; cut < n; cut++) {
        unsigned char *copy = (unsigned char *)malloc(cut + 1);
        memcpy(copy, file, cut);
        dt_load_options o = DT_DEFAULTS;
        o.data = copy, o.size = cut;
        CHECK_MSG(dt_load_opt(other, &o, &err) == DT_ERR_FORMAT && dt_parameters_crc32c(other) == before, "cut at %d: %d %s", (int)cut, err.code, err.text);
        err = none;
        free(copy);
    }

    /* a callback; with too little scratch; one that fails */
    static unsigned char scratch_memory[20000];
    dt_load_options o = DT_DEFAULTS;
    o.read = store_read, o.user = &s, o.size = n;
    o.scratch = scratch_memory + 1, o.scratch_size = 300;
    CHECK(dt_load_opt(other, &o, &err) == DT_ERR_MEMORY);
    CHECK_ERROR(err, DT_ERR_MEMORY, ".scratch");
    err = none, o.scratch_size = sizeof scratch_memory - 1;
    s.limit = 100;
    CHECK(dt_load_opt(other, &o, &err) == DT_ERR_CALLBACK && dt_parameters_crc32c(other) == before);
    err = none, s.limit = n;
    CHECK(dt_load_opt(other, &o, &err) == 0 && dt_parameters_crc32c(other) == want);
    CHECK_OK(err);

    /* one source, no less and no more */
    o.data = file;
    CHECK(dt_load_opt(other, &o, &err) == DT_ERR_ARGUMENT);
    err = none, o.data = NULL, o.read = NULL;
    CHECK(dt_load_opt(other, &o, &err) == DT_ERR_ARGUMENT);
    err = none;
    CHECK(dt_load_opt(other, NULL, &err) == DT_ERR_ARGUMENT && dt_load_opt(NULL, &o, NULL) == DT_ERR_ARGUMENT && dt_save_to(m, NULL, NULL, NULL) == DT_ERR_ARGUMENT);
    free(file);
    dt_model_free(m);
    dt_model_free(other);
}

typedef struct { char text[400]; } told;

static void tell(void *user, dt_load_result result, const char *name) {
    static const char *const word[] = { "loaded", "missing", "unexpected", "misshaped" };
    told *t = (told *)user;
    size_t n = strlen(t->text);
    snprintf(t->text + n, sizeof t->text - n, "%s %s;", word[result], name);
}

static const char *from_other(void *user, const char *name) {  /* as a file of somebody else's names has them */
    (void)user;
    if (!strcmp(name, "enc1.weight")) return "enc2.bias";     /* [4,3] there is none: misshaped */
    if (!strcmp(name, "enc1.bias")) return "enc2.bias";
    if (!strcmp(name, "enc2.weight")) return "nowhere";
    return strstr(name, "head") ? NULL : name;
}

static void test_report_and_rename(void) {
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    float a[40], b[40];
    told t = {""};
    dt_load_options o = DT_DEFAULTS;
    dt_model *five = three_model(5, 1), *seven = three_model(7, 2), *two = small_model(two_net, 2);
    uint32_t before = dt_parameters_crc32c(seven);
    CHECK(dt_save(five, at("five"), &err) == 0);
    o.path = at("five"), o.on_tensor = tell, o.user = &t;

    CHECK(dt_load_opt(seven, &o, &err) == DT_ERR_SHAPE && dt_parameters_crc32c(seven) == before);  /* strict: told, and refused */
    CHECK_MSG(o.loaded == 4 && o.misshaped == 2 && !o.missing && !o.unexpected, "%d %d %d %d", o.loaded, o.misshaped, o.missing, o.unexpected);
    err = none, t.text[0] = 0, o.partial = 1;
    CHECK(dt_load_opt(seven, &o, &err) == 0);
    CHECK_OK(err);
    CHECK_MSG(!strcmp(t.text, "loaded enc1.weight;loaded enc1.bias;loaded enc2.weight;loaded enc2.bias;misshaped head.weight;misshaped head.bias;"), "%s", t.text);
    CHECK(!memcmp(read_parameter(five, "enc2.weight", a, 16), read_parameter(seven, "enc2.weight", b, 16), 16 * sizeof *a));

    t.text[0] = 0;
    before = dt_parameters_crc32c(two);
    CHECK(dt_load_opt(two, &o, &err) == 0 && dt_parameters_crc32c(two) == before);
    CHECK_MSG(o.missing == 1 && o.unexpected == 6 && !strncmp(t.text, "missing w.weight;", 17) && strstr(t.text, "unexpected head.bias;"), "%d %d %s", o.missing, o.unexpected, t.text);

    t.text[0] = 0, o.rename = from_other;
    CHECK(dt_load_opt(seven, &o, &err) == 0);
    CHECK_MSG(!strcmp(t.text, "misshaped enc1.weight;loaded enc1.bias;missing enc2.weight;loaded enc2.bias;"), "%s", t.text);
    CHECK(!memcmp(read_parameter(five, "enc2.bias", a, 4), read_parameter(seven, "enc1.bias", b, 4), 4 * sizeof *a));
    o.partial = 0;
    CHECK(dt_load_opt(seven, &o, &err) == DT_ERR_SHAPE);
    CHECK_ERROR(err, DT_ERR_SHAPE, "enc2.bias");
    dt_model_free(five);
    dt_model_free(seven);
    dt_model_free(two);
}

/* ---- training that goes on where it was -------------------------------------------------------------- */

enum { SIDE = 6, TRAINED = 77, TESTED = 40, BATCH = 16, PER_EPOCH = 5 };
static unsigned char pictures[TRAINED + TESTED][SIDE * SIDE], kinds[TRAINED + TESTED];

static void make_pictures(void) {
    for (int i = 0; i < TRAINED + TESTED; i++) {
        kinds[i] = (unsigned char)(dt__random(3, 1, (uint64_t)i) % 3);
        for (int k = 0; k < SIDE * SIDE; k++) pictures[i][k] = (unsigned char)(dt__random(3, (uint64_t)i + 2, (uint64_t)k) % 180 + (k % 3 == kinds[i] ? 60 : 0));
    }
}

static dt_tensor *picture_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 4, 3, .padding = DT_SAME, .name = "conv"), .name = "bn"));
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 16, .name = "hidden")), 0.3);
    return dt_dense(x, 3, .name = "out");
}

/* one run: load at its begin, at a step or epoch save and stop */
typedef struct {
    dt_options o;
    const char *load, *save;
    long stop_step;           /* 0: never */
    dt_event_kind stop_kind;  /* at a step, or at an epoch's end */
    dt_report report;
    dt_error err, file_err;
    uint32_t crc;
    long step;
    double losses[20][2];     /* of the epochs' events */
} a_run;

static int run_event(const dt_event *e, void *user) {
    a_run *r = (a_run *)user;
    if (e->kind == DT_EVENT_BEGIN && r->load) return dt_checkpoint_load(e->model, r->load, &r->file_err);
    if (e->kind == DT_EVENT_EPOCH && e->epoch < 20) r->losses[e->epoch][0] = e->loss, r->losses[e->epoch][1] = e->eval_loss;
    if (e->kind != r->stop_kind || e->step != r->stop_step) return 0;
    if (r->save) dt_checkpoint_save(e->model, r->save, &r->file_err);
    return 1;
}

static int noise(void *user, float *x, long index, uint64_t random) {
    (void)user, (void)index;
    x[random % (SIDE * SIDE)] += 0.25f;
    return 0;
}

static a_run new_run(dt_optimizer optimizer, int replicas) {
    a_run r;
    memset(&r, 0, sizeof r);
    r.o.net = picture_net, r.o.input[0] = r.o.input[1] = SIDE, r.o.input[2] = 1, r.o.input_type = DT_UINT8;
    r.o.loss = DT_CROSS_ENTROPY, r.o.optimizer = optimizer, r.o.replicas = replicas, r.o.batch = BATCH, r.o.epochs = 3, r.o.seed = 7;
    r.o.schedule = DT_COSINE_DECAY, r.o.warmup_steps = 3, r.o.crop = r.o.flip = 1, r.o.augment = noise, r.o.patience = 2;
    r.o.train = dt_arrays(pictures, DT_UINT8, kinds, DT_UINT8, TRAINED);
    r.o.test = dt_arrays(pictures[TRAINED], DT_UINT8, kinds + TRAINED, DT_UINT8, TESTED);
    return r;
}

static void *run_it(void *arg) {
    a_run *r = (a_run *)arg;
    r->o.user = r, r->o.on_event = run_event;
    dt_model *m = dt_model_create(&r->o, &r->err);
    if (m) dt_train(m, NULL, &r->err);
    r->report = dt_model_report(m), r->crc = dt_parameters_crc32c(m), r->step = m ? dt_model_step(m) : -1;
    dt_model_free(m);
    return NULL;
}

static int same_double(double a, double b) { return a == b || (a != a && b != b); }

static void expect_same_end(const a_run *whole, const a_run *again, const char *what) {
    const dt_report *a = &whole->report, *b = &again->report;
    CHECK_MSG(!again->err.code && !again->file_err.code, "%s: %s%s", what, again->err.text, again->file_err.text);
    CHECK_MSG(again->crc == whole->crc, "%s: other bits", what);
    CHECK_MSG(a->steps == b->steps && a->epochs == b->epochs && a->samples == b->samples && whole->step == again->step,
        "%s: %ld steps, %d epochs, %ld samples, not %ld, %d, %ld", what, b->steps, b->epochs, b->samples, a->steps, a->epochs, a->samples);
    CHECK_MSG(same_double(a->train_loss, b->train_loss) && same_double(a->eval_loss, b->eval_loss) && same_double(a->train_accuracy, b->train_accuracy)
        && same_double(a->eval_accuracy, b->eval_accuracy), "%s: losses %.17g and %.17g, not %.17g and %.17g", what, b->train_loss, b->eval_loss, a->train_loss, a->eval_loss);
}

/* cut after so many steps, or in the event of the epoch that ends there */
static const struct { const char *name; long step; dt_event_kind kind; } cut[] = {
    { "the first step", 1, DT_EVENT_STEP }, { "the middle of an epoch", PER_EPOCH + 2, DT_EVENT_STEP }, { "an epoch's last step", PER_EPOCH, DT_EVENT_STEP },
    { "an epoch's end", 2 * PER_EPOCH, DT_EVENT_EPOCH }, { "the last step", 3 * PER_EPOCH, DT_EVENT_STEP }, { "the run's end", 3 * PER_EPOCH, DT_EVENT_EPOCH },
};

static void test_resumed_is_uninterrupted(void) {
    make_pictures();
    for (int optimizer = DT_SGD; optimizer <= DT_RMSPROP; optimizer++)
        for (int replicas = 1; replicas <= 2; replicas++) {
            a_run whole = new_run((dt_optimizer)optimizer, replicas);
            run_it(&whole);
            CHECK_OK(whole.err);
            for (int i = 0; i < COUNT(cut); i++) {
                char what[100];
                a_run first = new_run((dt_optimizer)optimizer, replicas), again = first;
                snprintf(what, sizeof what, "optimizer %d, %d replicas, cut at %s", optimizer, replicas, cut[i].name);
                first.stop_step = cut[i].step, first.stop_kind = cut[i].kind, first.save = again.load = at("ck.safetensors");
                run_it(&first);
                CHECK_MSG(!first.err.code && !first.file_err.code && first.step == cut[i].step, "%s: %s%s", what, first.err.text, first.file_err.text);
                run_it(&again);
                if (cut[i].step == 3 * PER_EPOCH && cut[i].kind == DT_EVENT_EPOCH) {  /* nothing is left to do */
                    CHECK_MSG(again.crc == whole.crc && again.report.steps == whole.report.steps && !again.err.code, "%s: %s", what, again.err.text);
                    continue;
                }
                expect_same_end(&whole, &again, what);
                for (int k = (int)(cut[i].step / PER_EPOCH) + 1; k <= 3; k++)
                    CHECK_MSG(same_double(again.losses[k][0], whole.losses[k][0]) && same_double(again.losses[k][1], whole.losses[k][1]), "%s: epoch %d has other losses", what, k);
            }
        }
}

/* patience waits on: as many epochs without a better one as in one run, wherever it is cut */
static void test_patience_goes_on(void) {
    make_pictures();
    a_run whole = new_run(DT_ADAM, 1);
    whole.o.epochs = 19, whole.o.learning_rate = 0.05, whole.o.schedule = DT_CONSTANT_RATE;
    a_run again = whole;
    run_it(&whole);
    CHECK_OK(whole.err);
    const int epochs = whole.report.epochs;
    CHECK_MSG(epochs > 2 && epochs < 19, "patience ended the run after %d epochs", epochs);
    for (int step = PER_EPOCH; step <= epochs * PER_EPOCH; step++)
        for (int kind = 0; kind < 2; kind++) {
            char what[100];
            a_run first = again, rest = again;
            if (kind && step % PER_EPOCH) continue;
            snprintf(what, sizeof what, "patience, cut at step %d, event %d", step, kind);
            first.stop_step = step, first.stop_kind = kind ? DT_EVENT_EPOCH : DT_EVENT_STEP, first.save = rest.load = at("ck.safetensors");
            run_it(&first), run_it(&rest);
            CHECK_MSG(rest.crc == whole.crc && rest.report.steps == whole.report.steps, "%s: ended after %ld steps, not %ld", what, rest.report.steps, whole.report.steps);
        }
}

/* a run that was stopped, saved when it had ended, and goes on in the same model's next dt_train */
static void test_saved_after_the_run(void) {
    make_pictures();
    a_run whole = new_run(DT_ADAM, 1), again = whole, first = whole;
    run_it(&whole);
    first.stop_step = PER_EPOCH + 3, first.o.user = &first, first.o.on_event = run_event;
    dt_model *m = dt_model_create(&first.o, &first.err);
    CHECK(dt_train(m, NULL, &first.err) == 0 && dt_checkpoint_save(m, at("after"), &first.err) == 0);
    CHECK_OK(first.err);
    again.load = at("after");
    run_it(&again);
    expect_same_end(&whole, &again, "another model");
    first.stop_step = 0;
    CHECK(dt_checkpoint_load(m, at("after"), &first.err) == 0 && dt_model_step(m) == PER_EPOCH + 3);
    CHECK(dt_train(m, NULL, &first.err) == 0);
    CHECK_MSG(dt_parameters_crc32c(m) == whole.crc, "the same model: other bits");
    dt_model_free(m);
}

/* with other replicas or another rate: the same samples, and dt_checkpoint_last says that the bits may differ */
static void test_checkpoint_last(void) {
    make_pictures();
    for (int i = 0; i < 3; i++) {
        a_run first = new_run(DT_ADAM, 2), again = first;
        const dt_checkpoint_info before = dt_checkpoint_last();
        first.save = at("last"), first.stop_step = PER_EPOCH + 2;
        run_it(&first);
        again.load = at("last");
        if (i == 1) again.o.replicas = 1;
        if (i == 2) again.o.learning_rate = 0.002;
        run_it(&again);
        CHECK_OK(first.err);
        CHECK_OK(again.err);
        const dt_checkpoint_info c = dt_checkpoint_last();
        CHECK_MSG(c.step == PER_EPOCH + 2 && c.replicas == 2 && c.processes == 1, "step %ld by %d replicas in %d processes", c.step, c.replicas, c.processes);
        CHECK(c.generation == before.generation + 1);
        CHECK_MSG(c.other_replicas == (i == 1) && c.other_config == (i == 2), "%d: other replicas %d, other options %d", i, c.other_replicas, c.other_config);
        CHECK(again.report.steps == 3 * PER_EPOCH && again.report.samples == 3 * TRAINED);
    }
}

static dt_tensor *line_net(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 1); }

/* a trace: what has no room is counted, one at a time, none without .profile; tests/jobs.sh reads a whole one */
static void test_trace(void) {
    float x[BATCH][4] = {{1, 2, 3, 4}}, y[BATCH] = {1};
    for (int rooms = 0; rooms < 3; rooms++) {
        dt_options o = DT_DEFAULTS;
        dt_error err = DT_DEFAULTS, second = DT_DEFAULTS, third = DT_DEFAULTS;
        dt__file text;
        o.net = line_net, o.input[0] = 4, o.loss = DT_MSE, o.batch = BATCH, o.replicas = 2, o.profile = rooms > 0;
        dt_model *m = dt_model_create(&o, &err);
        if (!m) { CHECK_OK(err); return; }
        dt_trace *t = dt_trace_open(m, rooms == 1 ? 3 : 1000, &err);
        CHECK(!dt_trace_open(NULL, 3, &third) && third.code == DT_ERR_ARGUMENT);
        if (!rooms) CHECK_ERROR(err, DT_ERR_STATE, ".profile = 1");
        else {
            CHECK(t && !dt_trace_open(m, 3, &second));
            CHECK_ERROR(second, DT_ERR_STATE, "another trace is open");
            CHECK(dt_step(m, x, y, BATCH, &err) >= 0);
            CHECK(dt_trace_close(t, at("trace"), &err) == 0);
            CHECK(dt_step(m, x, y, BATCH, &err) >= 0);  /* nobody listens now */
            CHECK_OK(err);
            CHECK(dt__file_read("trace", at("trace"), &text, &err) == 0);
            dt__json j = {(const char *)text.data, (const char *)text.data + text.size, NULL};
            CHECK_MSG(dt__json_skip(&j) && !dt__json_peek(&j), "no JSON: %s", j.error ? j.error : "more behind");
            char *copy = (char *)calloc(1, text.size + 1);
            memcpy(copy, text.data, text.size);
            CHECK((strstr(copy, "\"dropped spans\": \"0\"") != NULL) == (rooms == 2));
            CHECK(strstr(copy, "\"replica 1\"") && strstr(copy, "\"ph\": \"X\""));
            free(copy);
            dt__file_free(&text);
            t = dt_trace_open(m, 5, &err);
            CHECK(t && dt_trace_close(t, "/nowhere/trace.json", &err) == DT_ERR_IO);  /* and it is closed all the same */
        }
        dt_model_free(m);
    }
    CHECK(dt_trace_close(NULL, at("trace"), NULL) == 0);
}

/* several processes, played by threads: rank 0 alone saves and loads */
static void run_together(int n, a_run *r) {
    dt_comm *comm[4];
    pthread_t thread[4];
    dt_error err = DT_DEFAULTS;
    dt_comm_group(n, comm, &err);
    CHECK_OK(err);
    for (int i = 0; i < n; i++) {
        r[i].o.comm = comm[i];
        pthread_create(&thread[i], NULL, run_it, &r[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        CHECK_MSG(!r[i].err.code && !r[i].file_err.code, "rank %d: %s%s", i, r[i].err.text, r[i].file_err.text);
    }
    for (int i = 0; i < n; i++) dt_comm_close(comm[i]);
}

static void test_resumed_processes(void) {
    make_pictures();
    for (int optimizer = DT_SGD; optimizer <= DT_RMSPROP; optimizer++) {
        a_run whole[2], first[2], again[2];
        for (int i = 0; i < 2; i++) whole[i] = new_run((dt_optimizer)optimizer, 1);
        run_together(2, whole);
        for (int k = 1; k < 4; k++) {
            char what[100];
            for (int i = 0; i < 2; i++) {
                first[i] = again[i] = new_run((dt_optimizer)optimizer, 1);
                first[i].stop_step = cut[k].step, first[i].stop_kind = cut[k].kind;
            }
            first[0].save = again[0].load = at("both");
            run_together(2, first), run_together(2, again);
            for (int i = 0; i < 2; i++) {
                snprintf(what, sizeof what, "rank %d of 2, optimizer %d, cut at %s", i, optimizer, cut[k].name);
                expect_same_end(&whole[i], &again[i], what);
            }
        }
    }
}

/* a checkpoint of one run, and a model for it as it is created */
static const char *checkpoint_of(a_run r, const char *name) {
    const char *path = at(name);
    r.save = path, r.stop_step = 7, r.stop_kind = DT_EVENT_STEP;
    run_it(&r);
    CHECK_MSG(!r.err.code && !r.file_err.code, "%s%s", r.err.text, r.file_err.text);
    return path;
}

static dt_tensor *other_net(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_flatten(x), 3, .name = "out"); }
static dt_tensor *wider_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 4, 3, .padding = DT_SAME, .name = "conv"), .name = "bn"));
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 17, .name = "hidden")), 0.3);
    return dt_dense(x, 3, .name = "out");
}

/* loading fails with this code and text, and changes nothing */
static void expect_refused(a_run r, const char *path, int code, const char *says, const char *what) {
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    dt_model *m = dt_model_create(&r.o, &none);
    CHECK_OK(none);
    uint32_t before = dt_parameters_crc32c(m);
    int rc = dt_checkpoint_load(m, path, &err);
    CHECK_MSG(rc == code && err.code == code && strstr(err.text, says), "%s: %d, %d \"%s\"", what, rc, err.code, err.text);
    CHECK_MSG(dt_parameters_crc32c(m) == before && dt_model_step(m) == 0, "%s: the model changed", what);
    for (int i = 0; i < 2 && m->slot[i]; i++)
        for (ptrdiff_t k = 0; k < m->graph.n_trainable; k++) if (m->slot[i][k] != 0) { CHECK_MSG(0, "%s: a moment changed", what); break; }
    dt_model_free(m);
}

static void test_checkpoint_refused(void) {
    make_pictures();
    a_run r = new_run(DT_ADAM, 1), other;
    const char *path = checkpoint_of(r, "ck.safetensors");
    size_t n;
    unsigned char *b = get(path, &n);
    CHECK(b && n > 1000);
    if (!b) return;
    const size_t header = (size_t)little(b, 8);

    /* another run */
    other = r, other.o.batch = BATCH + 1;
    expect_refused(other, path, DT_ERR_STATE, "batch was 16 there, is 17 here", "batch");
    other = r, other.o.seed = 8;
    expect_refused(other, path, DT_ERR_STATE, "seed was 7 there, is 8 here", "seed");
    other = r, other.o.optimizer = DT_ADAMW;
    expect_refused(other, path, DT_ERR_STATE, "optimizer was adam there, is adamw here", "optimizer");
    other = r, other.o.net = other_net;
    expect_refused(other, path, DT_ERR_SHAPE, "out.weight", "net");
    other = r, other.o.net = wider_net;
    expect_refused(other, path, DT_ERR_SHAPE, "hidden.weight", "wider net");

    /* seeds that no double tells apart */
    other = r, other.o.seed = ((uint64_t)1 << 60) + 1;
    const char *large = checkpoint_of(other, "large");
    other.o.seed--;
    expect_refused(other, large, DT_ERR_STATE, "seed was 1152921504606846977 there, is 1152921504606846976 here", "large seed");
    a_run same = r;
    same.o.seed = ((uint64_t)1 << 60) + 1, same.load = large;
    run_it(&same);
    CHECK_MSG(!same.err.code && !same.file_err.code, "%s%s", same.err.text, same.file_err.text);

    /* no checkpoint */
    dt_error err = DT_DEFAULTS;
    dt_model *m = dt_model_create(&r.o, &err);
    CHECK(dt_save(m, at("weights"), &err) == 0);
    dt_model_free(m);
    expect_refused(r, at("weights"), DT_ERR_FORMAT, "no checkpoint, it holds weights alone: dt_load takes it", "plain weights");
    expect_refused(r, at("nothing"), DT_ERR_IO, "nothing", "no file");
    expect_refused(r, NULL, DT_ERR_ARGUMENT, "path is NULL", "no path");
    CHECK(dt_checkpoint_load(NULL, path, NULL) == DT_ERR_ARGUMENT && dt_checkpoint_save(NULL, path, NULL) == DT_ERR_ARGUMENT);

    /* a byte of the values: in variables, in moments */
    for (int i = 0; i < 8; i++) {
        size_t k = 8 + header + (n - 8 - header) / 8 * (size_t)i + (size_t)i % 4;
        b[k] ^= 4;
        expect_refused(r, put("damaged", b, n), DT_ERR_FORMAT, "is damaged", "a byte of the values");
        b[k] ^= 4;
    }
    /* each byte of the state: its numbers, their names */
    char *state = strstr((char *)b + 8, "dtrain.state\":\"");
    CHECK(state);
    for (char *p = state ? state + 15 : NULL; p && *p != '"'; p++) {
        dt_error e = DT_DEFAULTS;
        *p ^= 1;
        m = dt_model_create(&r.o, &e);
        uint32_t before = dt_parameters_crc32c(m);
        int rc = dt_checkpoint_load(m, put("damaged", b, n), &e);
        CHECK_MSG(rc == DT_ERR_FORMAT && rc == e.code && dt_parameters_crc32c(m) == before, "byte %d of the state: %d \"%s\"", (int)(p - state), rc, e.text);
        dt_model_free(m);
        *p ^= 1;
    }
    /* cut short */
    for (size_t k = 0; k < n; k += k < 16 ? 1 : n / 13)
        expect_refused(r, put("short", b, k), DT_ERR_FORMAT, "no valid safetensors file", "a cut file");
    expect_refused(r, put("whole", b, n - 1), DT_ERR_FORMAT, "no valid safetensors file", "a byte short");

    /* one moment is missing, although all others are there */
    char *name = strstr((char *)b + 8, "optimizer.1.out.bias");
    CHECK(name);
    if (name) {
        memcpy(name, "optimizer.1.out.bIas", 20);
        expect_refused(r, put("renamed", b, n), DT_ERR_FORMAT, "no tensor \"optimizer.1.out.bias\"", "a missing moment");
        memcpy(name, "optimizer.1.out.bias", 20);
    }
    name = strstr((char *)b + 8, "optimizer.0.");  /* the first that is looked for */
    if (name) {
        name[12] ^= 1;
        expect_refused(r, put("renamed", b, n), DT_ERR_FORMAT, "no tensor \"optimizer.0.", "the first moment");
        name[12] ^= 1;
    }
    free(b);
}

static void test_checkpoint_as_weights(void) {
    make_pictures();
    a_run r = new_run(DT_ADAM, 2);
    const char *path = checkpoint_of(r, "ck.safetensors");
    dt_error err = DT_DEFAULTS;
    /* dt_load takes the weights, into another run and optimizer too; the moments are no surprise to it */
    dt_model *m = dt_model_create(&r.o, &err), *plain;
    CHECK(dt_checkpoint_load(m, path, &err) == 0);
    r.o.optimizer = DT_SGD, r.o.seed = 99, r.o.batch = 20;
    plain = dt_model_create(&r.o, &err);
    CHECK(dt_parameters_crc32c(plain) != dt_parameters_crc32c(m));
    CHECK(dt_load(plain, path, NULL, &err) == 0);
    CHECK_OK(err);
    CHECK(dt_parameters_crc32c(plain) == dt_parameters_crc32c(m) && dt_model_step(plain) == 0);
    /* a second parser finds the variables as they are, and the moments of those that are trained */
    static tensor_file f;
    CHECK(parse(path, &f));
    CHECK_MSG(f.n == 10 + 2 * 8, "%d tensors", f.n);
    CHECK(tensor_named(&f, "optimizer.0.conv.weight") && tensor_named(&f, "optimizer.1.out.bias") && !tensor_named(&f, "optimizer.0.bn.running_mean"));
    free(f.bytes);
    dt_model_free(m), dt_model_free(plain);
    /* what is no checkpoint has no moments: they are unexpected there */
#define NUMBER(name, from, to) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[" from "," to "]}"
    static const char strange[] = "{" NUMBER("a.weight", "0", "4") "," NUMBER("b.weight", "4", "8") "," NUMBER("optimizer.0.a.weight", "8", "12") "}";
    m = small_model(pair_net, 1);
    CHECK(dt_load(m, put_tensors("strange", strange, strlen(strange), NULL, 12, AUTO), NULL, &err) == DT_ERR_FORMAT && strstr(err.text, "optimizer.0.a.weight"));
    dt_model_free(m);
}

/* without moments (parameter servers hold them) a checkpoint's run goes on with new ones */
static void test_checkpoint_without_moments(void) {
    make_pictures();
    a_run r = new_run(DT_ADAM, 1);
    dt_error err = DT_DEFAULTS;
    dt_model *m = dt_model_create(&r.o, &err);
    int32_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = kinds[i];
    for (int i = 0; i < 7; i++) dt_step(m, pictures, labels, BATCH, &err);
    float *moments[2] = { m->slot[0], m->slot[1] };
    m->slot[0] = m->slot[1] = NULL;
    CHECK(dt_checkpoint_save(m, at("bare"), &err) == 0);
    m->slot[0] = moments[0], m->slot[1] = moments[1];
    CHECK_OK(err);
    static tensor_file f;
    CHECK(parse(at("bare"), &f) && f.n == 10);
    free(f.bytes);
    dt_model *fresh = dt_model_create(&r.o, &err);
    CHECK(dt_checkpoint_load(fresh, at("bare"), &err) == 0);
    CHECK_OK(err);
    CHECK(dt_parameters_crc32c(fresh) == dt_parameters_crc32c(m) && dt_model_step(fresh) == 7);
    for (int i = 0; i < 2; i++)
        for (ptrdiff_t k = 0; k < fresh->graph.n_trainable; k++) if (fresh->slot[i][k] != 0) { CHECK_MSG(0, "moment %d is not new", i); break; }
    CHECK(dt_train(fresh, NULL, &err) == 0 && dt_model_report(fresh).steps == 3 * PER_EPOCH);
    CHECK_OK(err);
    /* and one with moments in a run without: they are left */
    CHECK(dt_checkpoint_save(m, at("full"), &err) == 0);
    moments[0] = fresh->slot[0], moments[1] = fresh->slot[1];
    fresh->slot[0] = fresh->slot[1] = NULL;
    CHECK(dt_checkpoint_load(fresh, at("full"), &err) == 0 && dt_parameters_crc32c(fresh) == dt_parameters_crc32c(m));
    fresh->slot[0] = moments[0], fresh->slot[1] = moments[1];
    CHECK_OK(err);
    dt_model_free(m), dt_model_free(fresh);
}

int main(void) {
    if (scratch_begin()) return 1;
    RUN(test_file_as_promised);
    RUN(test_round_trip);
    RUN(test_layout_is_pytorchs);
    RUN(test_order_behind_reshape);
    RUN(test_good_files);
    RUN(test_bad_files);
    RUN(test_cut_and_damaged);
    RUN(test_number_types);
    RUN(test_partial_load);
    RUN(test_strict_load);
    RUN(test_load_arguments);
    RUN(test_save_and_load_elsewhere);
    RUN(test_report_and_rename);
    RUN(test_save_fails);
    RUN(test_save_to_what_is_no_file);
    RUN(test_checkpoint_save_fails);
    RUN(test_format_files);
    RUN(test_resumed_is_uninterrupted);
    RUN(test_patience_goes_on);
    RUN(test_saved_after_the_run);
    RUN(test_resumed_processes);
    RUN(test_checkpoint_refused);
    RUN(test_checkpoint_as_weights);
    RUN(test_checkpoint_last);
    RUN(test_trace);
    RUN(test_checkpoint_without_moments);
    scratch_end();
    return finish();
}
