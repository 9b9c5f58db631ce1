/* data.c - sources of samples: good and bad files, conversion, order, sharding, augmentation.
 *
 * How samples are seen from outside: the net is one custom operation whose output is 0. Its backward
 * callback gets the rows as they were fed, and the gradient of a cross-entropy on equal logits,
 * 1/classes - [class is the label], shows their labels.
 */
#include "../dtrain.h"
#include "../examples/cifar10.h"
#include "../examples/csv.h"
#include "test.h"
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- scratch files ------------------------------------------------------------------------- */

static const char *put_text(const char *name, const char *text) { return put(name, text, strlen(text)); }

static int run_program(const char *const *argv) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(126);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int have_gzip(void) {
    static const char *const argv[] = { "gzip", "--version", NULL };
    return run_program(argv) == 0;
}

static void gzip_file(const char *path) {  /* path -> path.gz */
    const char *argv[] = { "gzip", "-f", path, NULL };
    CHECK_MSG(run_program(argv) == 0, "gzip %s", path);
}

/* ---- the recorder ---------------------------------------------------------------------------- */

enum { MAX_CALLS = 20000 };

typedef struct {
    int outputs;                       /* in: of the net; 0 -> 10 */
    int tokens;                        /* in: an embedding of so many tokens stands before it */
    int features;                      /* values of a sample */
    long n, room;
    float *x, *dy;                     /* [n, features], [n, outputs] */
    long *step;                        /* [n] */
    struct { long step; int n; } call[MAX_CALLS];
    int calls;
    long first_step;
    pthread_mutex_t lock;
    long augmented, augment_fails_at;  /* for the augment callback */
    uint64_t random[64];
} recorder;

static void recorder_clear(recorder *r) {
    free(r->x), free(r->dy), free(r->step);
    memset(r, 0, sizeof *r);
    r->augment_fails_at = -1;
    pthread_mutex_init(&r->lock, NULL);
}

static int record_forward(const dt_custom_call *c) {
    recorder *r = (recorder *)c->user;
    memset(c->y, 0, (size_t)c->n * (size_t)r->outputs * sizeof *c->y);
    return 0;
}

static int record_backward(const dt_custom_call *c) {
    recorder *r = (recorder *)c->user;
    size_t features = (size_t)r->features, outputs = (size_t)r->outputs;
    pthread_mutex_lock(&r->lock);
    if (r->n + c->n > r->room) {
        r->room = 2 * (r->n + c->n);
        r->x = (float *)realloc(r->x, (size_t)r->room * features * sizeof(float));
        r->dy = (float *)realloc(r->dy, (size_t)r->room * outputs * sizeof(float));
        r->step = (long *)realloc(r->step, (size_t)r->room * sizeof(long));
    }
    if (c->n > 0) {
        memcpy(r->x + (size_t)r->n * features, c->x[0], (size_t)c->n * features * sizeof(float));
        memcpy(r->dy + (size_t)r->n * outputs, c->dy, (size_t)c->n * outputs * sizeof(float));
    }
    for (int i = 0; i < c->n; i++) r->step[r->n + i] = c->step;
    if (r->calls == 0 || c->step < r->first_step) r->first_step = c->step;
    if (r->calls < MAX_CALLS) r->call[r->calls].step = c->step, r->call[r->calls++].n = c->n;
    r->n += c->n;
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static dt_tensor *record_net(dt_tensor *x, void *user) {
    recorder *r = (recorder *)user;
    if (!r->outputs) r->outputs = 10;
    if (r->tokens) x = dt_embedding(x, r->tokens, 1, .name = "table");
    r->features = 1;
    for (int axis = 1; axis < dt_rank(x); axis++) r->features *= dt_dim(x, axis);
    return dt_custom(x, {r->outputs}, record_forward, record_backward, r, .weight = {1}, .init = DT_CONSTANT);
}

/* Trains (which changes nothing) with these options and records what was fed. */
static int gather(recorder *r, dt_options o, dt_error *err) {
    o.net = record_net, o.user = r;
    if (o.loss == DT_NO_LOSS) o.loss = DT_CROSS_ENTROPY;
    if (!o.batch) o.batch = 16;
    if (!o.replicas) o.replicas = 1;
    dt_model *m = dt_model_create(&o, err);
    if (!m) return err->code;
    if (r->tokens) {
        float row[32];
        for (int i = 0; i < r->tokens; i++) row[i] = (float)i;
        dt_parameter_write(m, "table.weight", row, (size_t)r->tokens, err);
    }
    int rc = dt_train(m, NULL, err);
    CHECK_MSG(rc == err->code, "dt_train returns %d, the error holds %d \"%s\"", rc, err->code, err->text);
    dt_model_free(m);
    return rc;
}

static int label_of(const recorder *r, long i) {
    const float *dy = r->dy + i * r->outputs;
    int best = 0;
    for (int k = 1; k < r->outputs; k++) if (dy[k] < dy[best]) best = k;
    return best;
}

/* the row that has this label in an epoch of so many steps; NULL if there are none or several */
static const float *row_of(const recorder *r, int label, long epoch, long steps) {
    const float *found = NULL;
    for (long i = 0; i < r->n; i++) {
        if ((r->step[i] - r->first_step) / steps != epoch || label_of(r, i) != label) continue;
        if (found) return NULL;
        found = r->x + i * r->features;
    }
    return found;
}

static dt_tensor *one_weight(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(x, 1, .name = "w");
}

static dt_tensor *same(dt_tensor *x, void *user) {
    (void)user;
    return dt_scale(x, 1, 0);
}

static dt_tensor *two_logits(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(x, 2);
}

static void expect_open_error(const dt_source *s, int code, const char *text, const char *what) {
    dt_error err = DT_DEFAULTS;
    dt_dataset *d = dt_dataset_open(s, &err);
    CHECK_MSG(!d, "%s: opened", what);
    CHECK_MSG(d || (err.code == code && strstr(err.text, text)), "%s: code %d \"%s\", expected %d with \"%s\"", what, err.code, err.text, code, text);
    dt_dataset_close(d);
}

/* ---- IDX --------------------------------------------------------------------------------------- */

/* a file of this header and so many bytes 0, 7, 14, … % 251 behind it */
static const char *put_idx(const char *name, const char *header, size_t header_bytes, size_t data) {
    unsigned char *b = (unsigned char *)malloc(header_bytes + data + 1);
    if (header_bytes) memcpy(b, header, header_bytes);
    for (size_t i = 0; i < data; i++) b[header_bytes + i] = (unsigned char)(i * 7 % 251);
    const char *path = put(name, b, header_bytes + data);
    free(b);
    return path;
}

#define BYTES(literal) literal, sizeof(literal) - 1
#define IMAGES_3X2X4 BYTES("\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x04")
#define LABELS_3 BYTES("\0\0\x08\x01\0\0\0\x03")

static void test_idx_good(void) {
    static const char labels[] = "\0\0\x08\x01\0\0\0\x03\x05\x00\x09";
    put_idx("images", IMAGES_3X2X4, 24);
    put("labels", labels, 11);
    static recorder r;
    recorder_clear(&r);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.train = dt_idx(at("images"), at("labels"));
    o.no_shuffle = 1;

    dt_dataset *d = dt_dataset_open(&o.train, &err);
    CHECK_OK(err);
    dt_dataset_info info = dt_dataset_describe(d);
    CHECK(info.n == 3 && info.classes == 10 && info.x_type == DT_UINT8);
    CHECK(info.input[0] == 2 && info.input[1] == 4 && info.input[2] <= 1 && info.input[3] == 0);
    dt_dataset_close(d);

    gather(&r, o, &err);
    CHECK_OK(err);
    CHECK(r.n == 3 && r.features == 8);
    for (int i = 0; r.n == 3 && r.features == 8 && i < 24; i++) CHECK_NEAR(r.x[i], i * 7 / 255.0, 1e-7);
    for (int i = 0; r.n == 3 && i < 3; i++) CHECK(label_of(&r, i) == labels[8 + i]);

    /* no labels: fine to open, an error to train on */
    dt_source alone = dt_idx(at("images"), NULL);
    d = dt_dataset_open(&alone, &err);
    CHECK_OK(err);
    info = dt_dataset_describe(d);
    CHECK(info.n == 3 && info.classes == 0);
    dt_dataset_close(d);
    o.train = alone;
    gather(&r, o, &err);
    CHECK_MSG(err.code != 0 && strstr(err.text, "label"), "%d \"%s\"", err.code, err.text);

    /* other ranks */
    dt_error err2 = DT_DEFAULTS;
    put_idx("rank2", BYTES("\0\0\x08\x02\0\0\0\x02\0\0\0\x05"), 10);
    put_idx("rank4", BYTES("\0\0\x08\x04\0\0\0\x02\0\0\0\x03\0\0\0\x02\0\0\0\x04"), 48);
    dt_source s = dt_idx(at("rank2"), NULL);
    d = dt_dataset_open(&s, &err2);
    info = dt_dataset_describe(d);
    CHECK(info.n == 2 && info.input[0] == 5 && info.input[1] == 0);
    dt_dataset_close(d);
    s = dt_idx(at("rank4"), NULL);
    d = dt_dataset_open(&s, &err2);
    info = dt_dataset_describe(d);
    CHECK(info.n == 2 && info.input[0] == 3 && info.input[1] == 2 && info.input[2] == 4 && info.input[3] == 0);
    dt_dataset_close(d);
    CHECK_OK(err2);
    recorder_clear(&r);
}

static void test_idx_bad_images(void) {
    static const struct { const char *name, *header; size_t header_bytes, data; const char *text; } bad[] = {
        { "empty file",             BYTES(""), 0, "bad_images" },
        { "three bytes",            BYTES("\0\0\x08"), 0, "bad_images" },
        { "ends in the sizes",      BYTES("\0\0\x08\x03\0\0\0\x03\0\0"), 0, "bad_images" },
        { "one byte missing",       IMAGES_3X2X4, 23, "bad_images" },
        { "no data",                IMAGES_3X2X4, 0, "bad_images" },
        { "one byte too many",      IMAGES_3X2X4, 25, "bad_images" },
        { "first byte not 0",       BYTES("\1\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x04"), 24, "bad_images" },
        { "second byte not 0",      BYTES("\0\1\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x04"), 24, "bad_images" },
        { "little-endian",          BYTES("\x03\x08\0\0\x03\0\0\0\x02\0\0\0\x04\0\0\0"), 24, "bad_images" },
        { "still gzipped",          BYTES("\x1f\x8b\x08\0\0\0\0\0\0\x03\1\2\3\4\5\6"), 24, "gz" },
        { "a PNG",                  BYTES("\x89PNG\r\n\x1a\n"), 40, "bad_images" },
        { "type 0",                 BYTES("\0\0\0\x03\0\0\0\x03\0\0\0\x02\0\0\0\x04"), 24, "bad_images" },
        { "type 0x0A",              BYTES("\0\0\x0a\x03\0\0\0\x03\0\0\0\x02\0\0\0\x04"), 24, "bad_images" },
        { "floats",                 BYTES("\0\0\x0d\x03\0\0\0\x03\0\0\0\x02\0\0\0\x04"), 96, "bad_images" },
        { "rank 0",                 BYTES("\0\0\x08\0"), 1, "bad_images" },
        { "rank 7",                 BYTES("\0\0\x08\x07\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1"), 1, "bad_images" },
        { "rank 255, short",        BYTES("\0\0\x08\xff\0\0\0\1"), 1, "bad_images" },
        { "no images",              BYTES("\0\0\x08\x03\0\0\0\0\0\0\0\x02\0\0\0\x04"), 0, "bad_images" },
        { "height 0",               BYTES("\0\0\x08\x03\0\0\0\x03\0\0\0\0\0\0\0\x04"), 0, "bad_images" },
        { "width 0",                BYTES("\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\0"), 0, "bad_images" },
        { "2^32 bytes wrap to 0",   BYTES("\0\0\x08\x02\0\1\0\0\0\1\0\0"), 0, "bad_images" },
        { "2^64 bytes wrap to 0",   BYTES("\0\0\x08\x04\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0"), 0, "bad_images" },
        { "2^64 + 24 bytes",        BYTES("\0\0\x08\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 24, "bad_images" },
        { "count 2^32 - 1",         BYTES("\0\0\x08\x03\xff\xff\xff\xff\0\0\0\x02\0\0\0\x04"), 24, "bad_images" },
        { "count says one more",    BYTES("\0\0\x08\x03\0\0\0\x04\0\0\0\x02\0\0\0\x04"), 24, "bad_images" },
    };
    put_idx("labels", LABELS_3, 3);
    for (int i = 0; i < COUNT(bad); i++) {
        put_idx("bad_images", bad[i].header, bad[i].header_bytes, bad[i].data);
        dt_source s = dt_idx(at("bad_images"), at("labels"));
        expect_open_error(&s, DT_ERR_FORMAT, bad[i].text, bad[i].name);
        s = dt_idx(at("bad_images"), NULL);
        expect_open_error(&s, DT_ERR_FORMAT, bad[i].text, bad[i].name);
    }
    dt_source s = dt_idx(at("no_such_file"), at("labels"));
    expect_open_error(&s, DT_ERR_IO, "no_such_file", "missing file");
    dt_error err = DT_DEFAULTS;
    s = dt_idx(scratch, at("labels"));
    dt_dataset *d = dt_dataset_open(&s, &err);
    CHECK_MSG(!d && err.code && strstr(err.text, scratch), "a folder: \"%s\"", err.text);
    dt_dataset_close(d);
}

static void test_idx_bad_labels(void) {
    static const struct { const char *name, *header; size_t header_bytes, data; int code; const char *text; } bad[] = {
        { "empty file",           BYTES(""), 0, DT_ERR_FORMAT, "bad_labels" },
        { "one byte missing",     LABELS_3, 2, DT_ERR_FORMAT, "bad_labels" },
        { "one byte too many",    LABELS_3, 4, DT_ERR_FORMAT, "bad_labels" },
        { "an image file",        IMAGES_3X2X4, 24, DT_ERR_FORMAT, "bad_labels" },
        { "four labels",          BYTES("\0\0\x08\x01\0\0\0\x04"), 4, DT_ERR_FORMAT, "4" },
        { "two labels",           BYTES("\0\0\x08\x01\0\0\0\x02"), 2, DT_ERR_FORMAT, "2" },
        { "ints",                 BYTES("\0\0\x0c\x01\0\0\0\x03"), 12, DT_ERR_FORMAT, "bad_labels" },
    };
    put_idx("images", IMAGES_3X2X4, 24);
    for (int i = 0; i < COUNT(bad); i++) {
        put_idx("bad_labels", bad[i].header, bad[i].header_bytes, bad[i].data);
        dt_source s = dt_idx(at("images"), at("bad_labels"));
        expect_open_error(&s, bad[i].code, bad[i].text, bad[i].name);
    }
    dt_source s = dt_idx(at("images"), at("no_such_file"));
    expect_open_error(&s, DT_ERR_IO, "no_such_file", "missing labels");
    dt_error err = DT_DEFAULTS;
    s = dt_idx(NULL, at("labels"));
    CHECK(!dt_dataset_open(&s, &err) && err.code);
}

/* a label that the net has no output for: names the value and the number of classes */
static void test_label_out_of_range(void) {
    static recorder r;
    put_idx("images", IMAGES_3X2X4, 24);
    put("labels", "\0\0\x08\x01\0\0\0\x03\x01\x00\x7b", 11);
    recorder_clear(&r);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.train = dt_idx(at("images"), at("labels"));
    gather(&r, o, &err);
    CHECK_MSG(err.code && strstr(err.text, "123") && strstr(err.text, "sample 2") && strstr(err.text, "0..9"), "%d \"%s\"", err.code, err.text);
    recorder_clear(&r);
}

/* ---- MNIST in a folder --------------------------------------------------------------------------- */

static void put_mnist(const char *folder, const char *set, const char *dash, int n) {
    char name[200];
    unsigned char *b = (unsigned char *)calloc(1, 16 + (size_t)n * 784);
    memcpy(b, "\0\0\x08\x03\0\0\0\0\0\0\0\x1c\0\0\0\x1c", 16);
    b[7] = (unsigned char)n;
    for (int i = 0; i < n; i++) b[16 + i * 784 + i] = 255;  /* sample i has one white pixel, the i-th */
    snprintf(name, sizeof name, "%s/%s-images%sidx3-ubyte", folder, set, dash);
    put(name, b, 16 + (size_t)n * 784);
    memcpy(b, "\0\0\x08\x01\0\0\0", 7);
    b[7] = (unsigned char)n;
    for (int i = 0; i < n; i++) b[8 + i] = (unsigned char)(i % 10);
    snprintf(name, sizeof name, "%s/%s-labels%sidx1-ubyte", folder, set, dash);
    put(name, b, 8 + (size_t)n);
    free(b);
}

static void zip_mnist(const char *folder, const char *set, const char *dash) {
    char name[200];
    snprintf(name, sizeof name, "%s/%s-images%sidx3-ubyte", folder, set, dash), gzip_file(at(name));
    snprintf(name, sizeof name, "%s/%s-labels%sidx1-ubyte", folder, set, dash), gzip_file(at(name));
}

static void expect_mnist(const char *folder, dt_split split, int n) {
    static recorder r;
    recorder_clear(&r);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.train = dt_mnist(at(folder), split);
    o.no_shuffle = 1;
    dt_dataset *d = dt_dataset_open(&o.train, &err);
    CHECK_OK(err);
    dt_dataset_info info = dt_dataset_describe(d);
    CHECK(info.n == n && info.input[0] == 28 && info.input[1] == 28 && info.input[2] == 1 && info.input[3] == 0);
    dt_dataset_close(d);
    gather(&r, o, &err);
    CHECK_MSG(r.n == n && !err.code, "%s: %ld samples \"%s\"", folder, r.n, err.text);
    for (int i = 0; r.n == n && i < n; i++) {
        CHECK(label_of(&r, i) == i % 10);
        for (int k = 0; k < 784; k++)
            if (r.x[i * 784 + k] != (k == i ? 1.0f : 0.0f)) { CHECK_MSG(0, "sample %d, pixel %d is %g", i, k, r.x[i * 784 + k]); break; }
    }
    recorder_clear(&r);
}

static void test_mnist_names(void) {
    mkdir(at("dash"), 0700), mkdir(at("dot"), 0700);
    put_mnist("dash", "train", "-", 12), put_mnist("dash", "t10k", "-", 7);
    put_mnist("dot", "train", ".", 12), put_mnist("dot", "t10k", ".", 7);
    expect_mnist("dash", DT_TRAIN, 12), expect_mnist("dash", DT_TEST, 7);
    expect_mnist("dot", DT_TRAIN, 12), expect_mnist("dot", DT_TEST, 7);
    expect_mnist("dot/", DT_TEST, 7);
}

static void test_mnist_gzip(void) {
    if (!have_gzip()) SKIP("no gzip here");
    /* the folder's name would be a command if a shell saw it */
    static const char *const folder[] = { "zipped", "a b;touch pwned;$(touch pwned)`touch pwned`'\"", "-c" };
    static const char *const dash[] = { "-", ".", "-" };
    for (int i = 0; i < COUNT(folder); i++) {
        mkdir(at(folder[i]), 0700);
        put_mnist(folder[i], "train", dash[i], 12), put_mnist(folder[i], "t10k", dash[i], 7);
        zip_mnist(folder[i], "train", dash[i]), zip_mnist(folder[i], "t10k", dash[i]);
        expect_mnist(folder[i], DT_TRAIN, 12), expect_mnist(folder[i], DT_TEST, 7);
    }
    CHECK(access("pwned", F_OK) != 0 && access(at("pwned"), F_OK) != 0);

    /* a damaged archive is refused with its name */
    unsigned char b[300];
    FILE *f = fopen(at("zipped/train-images-idx3-ubyte.gz"), "rb");
    size_t n = f ? fread(b, 1, sizeof b, f) : 0;
    if (f) fclose(f);
    CHECK(n > 60);
    dt_error err = DT_DEFAULTS;
    dt_source s = dt_mnist(at("zipped"), DT_TRAIN);
    put("zipped/train-images-idx3-ubyte.gz", b, n > 20 ? n - 12 : 0);
    dt_dataset *d = dt_dataset_open(&s, &err);
    CHECK_MSG(!d && strstr(err.text, "train-images-idx3-ubyte.gz"), "cut: \"%s\"", err.text);
    dt_dataset_close(d);
    memset(&err, 0, sizeof err);
    put_text("zipped/train-images-idx3-ubyte.gz", "this is no archive");
    d = dt_dataset_open(&s, &err);
    CHECK_MSG(!d && strstr(err.text, "train-images-idx3-ubyte.gz"), "no archive: \"%s\"", err.text);
    dt_dataset_close(d);

    /* a child nobody can ask about says so; closed standard files do no harm */
    put_mnist("zipped", "train", "-", 12), zip_mnist("zipped", "train", "-");
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    memset(&err, 0, sizeof err);
    d = dt_dataset_open(&s, &err);
    signal(SIGCHLD, before);
    CHECK_MSG(!d && err.code == DT_ERR_IO && strstr(err.text, "SIGCHLD"), "SIGCHLD ignored: \"%s\"", err.text);
    dt_dataset_close(d);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dt_error none = DT_DEFAULTS;
        close(0), close(1), close(2);
        _exit(dt_dataset_open(&s, &none) ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);

    /* without gzip on the PATH the message says what is missing */
    const char *old = getenv("PATH");
    char *path = strdup(old ? old : "/usr/bin:/bin");
    setenv("PATH", scratch, 1);
    memset(&err, 0, sizeof err);
    s = dt_mnist(at("-c"), DT_TEST);
    d = dt_dataset_open(&s, &err);
    CHECK_MSG(d || strstr(err.text, "gzip"), "no gzip: \"%s\"", err.text);
    dt_dataset_close(d);
    setenv("PATH", path, 1);
    free(path);
}

static void test_mnist_missing(void) {
    mkdir(at("half"), 0700);
    put_mnist("half", "train", "-", 3);
    remove(at("half/train-labels-idx1-ubyte"));
    static const struct { const char *name, *folder; dt_split split; const char *text[2]; } bad[] = {
        { "no such folder",  "no_folder", DT_TRAIN, { "no_folder", "train-images" } },
        { "no such folder",  "no_folder", DT_TEST, { "no_folder", "t10k-images" } },
        { "no labels",       "half", DT_TRAIN, { "half", "train-labels" } },
        { "no test set",     "half", DT_TEST, { "half", "t10k-images" } },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_source s = dt_mnist(at(bad[i].folder), bad[i].split);
        expect_open_error(&s, DT_ERR_IO, bad[i].text[0], bad[i].name);
        expect_open_error(&s, DT_ERR_IO, bad[i].text[1], bad[i].name);
    }
}

/* ---- CIFAR-10 -------------------------------------------------------------------------------------- */

static unsigned char cifar_pixel(int record, int c, int h, int w) { return (unsigned char)((record * 31 + c * 100 + h * 7 + w * 3) % 256); }

/* records first .. first + n - 1, record r with label r % 10; extra bytes behind them, cut if negative */
static const char *put_cifar(const char *name, int first, int n, int extra) {
    unsigned char *b = (unsigned char *)calloc(1, (size_t)n * 3073 + 16), *p = b;
    for (int r = first; r < first + n; r++) {
        *p++ = (unsigned char)(r % 10);
        for (int c = 0; c < 3; c++)
            for (int h = 0; h < 32; h++)
                for (int w = 0; w < 32; w++) *p++ = cifar_pixel(r, c, h, w);
    }
    const char *path = put(name, b, (size_t)(n * 3073 + extra));
    free(b);
    return path;
}

static void expect_cifar(const char *what, const char *path, dt_split split, int n, const int *record) {
    static recorder r;
    recorder_clear(&r);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.train = dt_cifar10(path, split);
    o.no_shuffle = 1;
    gather(&r, o, &err);
    CHECK_MSG(!err.code && r.n == n && r.features == 3072, "%s: %ld samples \"%s\"", what, r.n, err.text);
    for (int i = 0; r.n == n && i < n; i++) {
        int wrong = 0;
        CHECK_MSG(label_of(&r, i) == record[i] % 10, "%s: label %d of sample %d", what, label_of(&r, i), i);
        for (int h = 0; h < 32; h++)
            for (int w = 0; w < 32; w++)
                for (int c = 0; c < 3; c++)  /* planes in the file, channels last here */
                    wrong += fabs((double)r.x[((i * 32 + h) * 32 + w) * 3 + c] - cifar_pixel(record[i], c, h, w) / 255.0) > 1e-6;
        CHECK_MSG(wrong == 0, "%s: %d wrong values in sample %d", what, wrong, i);
    }
    recorder_clear(&r);
}

static void test_cifar_good(void) {
    static const int both[] = { 20, 21, 22, 51, 52 }, test[] = { 3, 4 }, list[] = { 51, 52, 3, 4 };
    char names[1100];
    mkdir(at("cifar"), 0700);
    put_cifar("cifar/data_batch_5.bin", 51, 2, 0);
    put_cifar("cifar/data_batch_2.bin", 20, 3, 0);
    put_cifar("cifar/test_batch.bin", 3, 2, 0);
    put_text("cifar/batches.meta.txt", "airplane\n");
    expect_cifar("folder, training set", at("cifar"), DT_TRAIN, 5, both);
    expect_cifar("folder, test set", at("cifar"), DT_TEST, 2, test);
    expect_cifar("a file", at("cifar/test_batch.bin"), DT_TRAIN, 2, test);
    snprintf(names, sizeof names, "%s,%s", at("cifar/data_batch_5.bin"), at("cifar/test_batch.bin"));
    expect_cifar("two files", names, DT_TRAIN, 4, list);

    dt_error err = DT_DEFAULTS;
    dt_source s = dt_cifar10(at("cifar"), DT_TRAIN);
    dt_dataset *d = dt_dataset_open(&s, &err);
    dt_dataset_info info = dt_dataset_describe(d);
    CHECK(info.n == 5 && info.input[0] == 32 && info.input[1] == 32 && info.input[2] == 3 && info.input[3] == 0 && info.classes == 10);
    dt_dataset_close(d);

    if (!have_gzip()) SKIP("the plain files are fine; no gzip here");
    gzip_file(at("cifar/data_batch_2.bin"));
    put_cifar("cifar/test_batch_first2.bin", 3, 2, 0);
    remove(at("cifar/test_batch.bin"));
    gzip_file(at("cifar/test_batch_first2.bin"));
    expect_cifar("folder, one of two zipped", at("cifar"), DT_TRAIN, 5, both);
    expect_cifar("folder, zipped test set", at("cifar"), DT_TEST, 2, test);
    put_cifar("cifar/data_batch_2.bin", 20, 3, 0);
    expect_cifar("folder, one twice: plain and zipped", at("cifar"), DT_TRAIN, 5, both);
    expect_cifar("a zipped file", at("cifar/test_batch_first2.bin.gz"), DT_TEST, 2, test);
}

static void test_cifar_bad(void) {
    static const struct { const char *name; int records, extra; } bad[] = {
        { "empty", 0, 0 },  { "one byte missing", 2, -1 },  { "one byte too many", 2, 1 },  { "a label and no pixels", 0, 1 },
        { "a CIFAR-100 file", 2, 2 },  { "half a record", 1, -1536 },
    };
    char names[1100];
    dt_source s;
    put_cifar("good.bin", 0, 2, 0);
    for (int i = 0; i < COUNT(bad); i++) {
        put_cifar("bad.bin", 0, bad[i].records, bad[i].extra);
        s = dt_cifar10(at("bad.bin"), DT_TRAIN);
        expect_open_error(&s, DT_ERR_FORMAT, "bad.bin", bad[i].name);
        snprintf(names, sizeof names, "%s,%s", at("good.bin"), at("bad.bin"));
        s = dt_cifar10(names, DT_TRAIN);
        expect_open_error(&s, DT_ERR_FORMAT, "bad.bin", bad[i].name);
    }
    unsigned char *b = (unsigned char *)calloc(3, 3073);
    b[2 * 3073] = 10;
    put("label.bin", b, 3 * 3073);
    free(b);
    s = dt_cifar10(at("label.bin"), DT_TRAIN);
    expect_open_error(&s, DT_ERR_FORMAT, "label.bin", "label 10");
    expect_open_error(&s, DT_ERR_FORMAT, "10", "label 10");

    s = dt_cifar10(at("nothing.bin"), DT_TRAIN);
    expect_open_error(&s, DT_ERR_IO, "nothing.bin", "missing");
    snprintf(names, sizeof names, "%s,%s", at("good.bin"), at("nothing.bin"));
    s = dt_cifar10(names, DT_TRAIN);
    expect_open_error(&s, DT_ERR_IO, "nothing.bin", "missing in a list");
    mkdir(at("hollow"), 0700);
    s = dt_cifar10(at("hollow"), DT_TRAIN);
    expect_open_error(&s, DT_ERR_IO, "hollow", "no file in the folder");
    expect_open_error(&s, DT_ERR_IO, "data_batch", "no file in the folder");
    s = dt_cifar10(at("hollow"), DT_TEST);
    expect_open_error(&s, DT_ERR_IO, "test_batch", "no file in the folder");
}

/* ---- CSV -------------------------------------------------------------------------------------------- */

#define NONE -1
static const struct {
    const char *name, *text;
    dt_csv_options o;
    int n, features;
    float x[12];
    int y[4];
} csv_good[] = {
    { "plain",                "1,2,0\n3,4,1\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "header",               "a,b,c\n1,2,0\n3,4,1\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "header of numbers",    "10,20,30\n1,2,0\n3,4,1\n", { .header = 1 }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "header in quotes",     "\"a, b\",\"say \"\"c\"\"\",d\n1,2,0\n3,4,1\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "two lines left out",   "made by hand\n\n1,2,0\n3,4,1\n", { .skip = 2 }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "left out, then header", "# c\na,b,c\n1,2,0\n3,4,1\n", { .skip = 1 }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "CRLF",                 "a,b,c\r\n1,2,0\r\n3,4,1\r\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "no final newline",     "1,2,0\n3,4,1", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "CRLF, no final one",   "1,2,0\r\n3,4,1", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "empty lines",          "\n1,2,0\n\n\n3,4,1\n\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "empty lines, CRLF",    "1,2,0\r\n\r\n3,4,1\r\n\r\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "byte-order mark",      "\xef\xbb\xbf" "1,2,0\n3,4,1\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "quoted numbers",       "\"1\",\"2\",\"0\"\n\"3\",4,\"1\"\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "semicolons",           "1;2;0\n3;4;1\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "tabs",                 "1\t2\t0\n3\t4\t1\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "chosen separator",     "1|2|0\n3|4|1\n", { .separator = '|' }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "commas in a header of semicolons", "\"a,b,c,d\";b;c\n1;2;0\n3;4;1\n", { .separator = ';' }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "blanks around",        " 1 , 2,0 \n3, 4 ,1\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "forms of numbers",     "1e2,-2.5E-1,+3,.5,5.,-0,0\n", {0}, 1, 6, { 100, -0.25f, 3, 0.5f, 5, 0 }, { 0 } },
    { "many digits",          "0.1000000000000000000000000000000000001,100000000000000000000000000000000e-32,1\n", {0}, 1, 2, { 0.1f, 1 }, { 1 } },
    { "too small for a float", "1e-400,-1e-60,1\n", {0}, 1, 2, { 0, 0 }, { 1 } },
    { "label first",          "0,1,2\n1,3,4\n", { .label = 1 }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "label in the middle",  "1,0,2\n3,1,4\n", { .label = 2 }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "label last, by number", "1,2,0\n3,4,1\n", { .label = 3 }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "labels as floats",     "1,2,0.0\n3,4,7.0\n", {0}, 2, 2, { 1, 2, 3, 4 }, { 0, 7 } },
    { "word labels",          "1,2,cat\n3,4,dog\n5,6,cat\n", { .header = DT_OFF }, 3, 2, { 1, 2, 3, 4, 5, 6 }, { 0, 1, 0 } },
    { "word labels, header",  "a,b,what\n1,2,dog\n3,4,cat\n5,6,dog\n", {0}, 3, 2, { 1, 2, 3, 4, 5, 6 }, { 0, 1, 0 } },
    { "quoted words",         "1,2,\"a, \"\"b\"\"\"\n3,4,\"a, b\"\n5,6,\"a, \"\"b\"\"\"\n", { .header = DT_OFF }, 3, 2, { 1, 2, 3, 4, 5, 6 }, { 0, 1, 0 } },
    { "words with blanks",    "1,2,Iris setosa\n3,4,Iris virginica\n5,6,Iris setosa\n", { .header = DT_OFF }, 3, 2, { 1, 2, 3, 4, 5, 6 }, { 0, 1, 0 } },
    { "word labels first",    "dog,1,2\ncat,3,4\n", { .label = 1, .header = DT_OFF }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "missing -> mean",      "1,?,0\n3,4,1\n,NA,1\n5,8,0\n", { .missing = DT_MISSING_MEAN }, 4, 2, { 1, 6, 3, 4, 3, 6, 5, 8 }, { 0, 1, 1, 0 } },
    { "missing -> 0",         "1,?,0\n3,4,1\n,NaN,1\n5,8,0\n", { .missing = DT_MISSING_ZERO }, 4, 2, { 1, 0, 3, 4, 0, 0, 5, 8 }, { 0, 1, 1, 0 } },
    { "missing -> skip",      "1,?,0\n3,4,1\n,NA,1\n5,8,2\n", { .missing = DT_MISSING_SKIP }, 2, 2, { 3, 4, 5, 8 }, { 1, 2 } },
    { "skipped word labels do not count", "a,b,c\n1,?,cat\n3,4,dog\n5,8,cow\n", { .missing = DT_MISSING_SKIP }, 2, 2, { 3, 4, 5, 8 }, { NONE, NONE } },
    { "missing label -> skip", "1,2,0\n3,4,\n5,6,1\n", { .missing = DT_MISSING_SKIP }, 2, 2, { 1, 2, 5, 6 }, { 0, 1 } },
    { "missing word label -> skip", "1,2,cat\n3,4,\n5,6,?\n7,8,dog\n", { .header = DT_OFF, .missing = DT_MISSING_SKIP }, 2, 2, { 1, 2, 7, 8 }, { 0, 1 } },
    { "quotes and blanks",    "\"1\" 2 0\n\"3\"  4 1\n", { .separator = ' ' }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "columns of blanks",    "1 2  0\n3  4 1\n", { .separator = ' ' }, 2, 2, { 1, 2, 3, 4 }, { 0, 1 } },
    { "one feature",          "5,1\n6,0\n", {0}, 2, 1, { 5, 6 }, { 1, 0 } },
};

static dt_source csv_source(const char *file, dt_csv_options o) {
    o.path = at(file);
    return dt_csv_opt(o);
}

static void test_csv_good(void) {
    static recorder r;
    for (int i = 0; i < COUNT(csv_good); i++) {
        recorder_clear(&r);
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        put_text("good.csv", csv_good[i].text);
        o.train = csv_source("good.csv", csv_good[i].o);
        o.no_shuffle = 1;
        gather(&r, o, &err);
        int fits = !err.code && r.n == csv_good[i].n && r.features == csv_good[i].features;
        CHECK_MSG(fits, "%s: %ld rows of %d, expected %d of %d: \"%s\"", csv_good[i].name, r.n, r.features, csv_good[i].n, csv_good[i].features, err.text);
        for (int k = 0; fits && k < r.n * r.features; k++)
            CHECK_MSG(fabs((double)r.x[k] - (double)csv_good[i].x[k]) <= 1e-6 * fabs((double)csv_good[i].x[k]), "%s: value %d is %.9g", csv_good[i].name, k, r.x[k]);
        for (int k = 0; fits && k < r.n; k++)
            CHECK_MSG(csv_good[i].y[k] == NONE || label_of(&r, k) == csv_good[i].y[k], "%s: label %d is %d", csv_good[i].name, k, label_of(&r, k));
    }
    recorder_clear(&r);
}

static void test_csv_bad(void) {
    static const struct { const char *name, *text; size_t size; dt_csv_options o; int code; const char *says[3]; } bad[] = {
        { "empty file",           BYTES(""), {0}, DT_ERR_FORMAT, { "bad.csv" } },
        { "only newlines",        BYTES("\n\n\n"), {0}, DT_ERR_FORMAT, { "bad.csv" } },
        { "only a header",        BYTES("a,b,c\n"), {0}, DT_ERR_FORMAT, { "bad.csv" } },
        { "all left out",         BYTES("1,2,3\n"), { .skip = 4 }, DT_ERR_FORMAT, { "bad.csv" } },
        { "one field less",       BYTES("1,2,0\n3,4,1\n5,0\n"), {0}, DT_ERR_FORMAT, { "bad.csv", "line 3", "2" } },
        { "one field more",       BYTES("1,2,0\n3,4,1,9\n"), {0}, DT_ERR_FORMAT, { "bad.csv", "line 2", "4" } },
        { "lines are counted as in an editor", BYTES("a,b,c\r\n\r\n1,2,0\r\n3,4\r\n"), {0}, DT_ERR_FORMAT, { "bad.csv", "line 4" } },
        { "… also those left out", BYTES("x\ny\n1,2,0\n3,4\n"), { .skip = 2 }, DT_ERR_FORMAT, { "bad.csv", "line 4" } },
        { "a word among numbers", BYTES("1,2,0\n3,four,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2", "four" } },
        { "column 1",             BYTES("1,2,0\n-,4,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 1" } },
        { "half a number",        BYTES("1,2,0\n3,4x,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2", "4x" } },
        { "two numbers",          BYTES("1,2,0\n3,4 5,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "hexadecimal",          BYTES("1,2,0\n3,0x10,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "decimal comma",        BYTES("1;2;0\n3;4,5;1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "infinity",             BYTES("1,2,0\n3,inf,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "too large for a float", BYTES("1,2,0\n3,1e99,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "exponent 99999999999", BYTES("1,2,0\n3,1e99999999999,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "an exponent alone",    BYTES("1,2,0\n3,e5,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "no exponent behind e", BYTES("1,2,0\n3,4e,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "a dot alone",          BYTES("1,2,0\n3,.,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "empty field",          BYTES("1,2,0\n3,,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "question mark",        BYTES("1,2,0\n3,?,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "NA",                   BYTES("1,2,0\n3,NA,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "NaN",                  BYTES("1,2,0\n3,NaN,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "missing label",        BYTES("1,2,0\n3,4,\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 3" } },
        { "missing word label",   BYTES("1,2,cat\n3,4,\n5,6,dog\n"), { .header = DT_OFF }, DT_ERR_FORMAT, { "line 2", "column 3" } },
        { "every row skipped",    BYTES("1,?,0\n,4,1\n"), { .missing = DT_MISSING_SKIP }, DT_ERR_FORMAT, { "bad.csv" } },
        { "NUL byte",             BYTES("1,2,0\n3,4\0,1\n"), {0}, DT_ERR_FORMAT, { "bad.csv", "line 2" } },
        { "NUL in quotes",        BYTES("1,2,0\n3,\"4\0\",1\n"), {0}, DT_ERR_FORMAT, { "bad.csv", "line 2" } },
        { "NUL behind the end",   BYTES("1,2,0\n3,4,1\n\0\0"), {0}, DT_ERR_FORMAT, { "bad.csv", "line 3" } },
        { "quote not closed",     BYTES("1,2,0\n3,\"4,1\n"), {0}, DT_ERR_FORMAT, { "bad.csv", "line 2" } },
        { "text behind a quote",  BYTES("1,2,0\n3,\"4\"5,1\n"), {0}, DT_ERR_FORMAT, { "line 2", "column 2" } },
        { "only the label",       BYTES("1\n0\n"), {0}, DT_ERR_FORMAT, { "bad.csv" } },
        { "label column 4 of 3",  BYTES("1,2,0\n3,4,1\n"), { .label = 4 }, DT_ERR_ARGUMENT, { "4", "3" } },
        { "label column -2",      BYTES("1,2,0\n3,4,1\n"), { .label = -2 }, DT_ERR_ARGUMENT, { "label", "-2" } },
        { "label column INT_MIN", BYTES("1,2,0\n3,4,1\n"), { .label = INT_MIN }, DT_ERR_ARGUMENT, { "label" } },
        { "a quote between fields", BYTES("1,2,0\n3,4,1\n"), { .separator = '"' }, DT_ERR_ARGUMENT, { "separator", "34" } },
        { "no UTF-8 to learn",    BYTES("1,2,0\n\xe9,4,1\n"), { .columns = "1 onehot" }, DT_ERR_FORMAT, { "line 2", "column 1", "UTF-8" } },
        { "labels in no UTF-8",   BYTES("1,2,b\n3,4,\xff\n"), { .header = DT_OFF }, DT_ERR_FORMAT, { "line 2", "column 3", "UTF-8" } },
        { "skip -1",              BYTES("1,2,0\n3,4,1\n"), { .skip = -1 }, DT_ERR_ARGUMENT, { "skip", "-1" } },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        put("bad.csv", bad[i].text, bad[i].size);
        dt_source s = csv_source("bad.csv", bad[i].o);
        for (int k = 0; k < 3 && bad[i].says[k]; k++) expect_open_error(&s, bad[i].code, bad[i].says[k], bad[i].name);
    }
    dt_source s = csv_source("nothing.csv", (dt_csv_options){0});
    expect_open_error(&s, DT_ERR_IO, "nothing.csv", "missing");
    s = dt_csv(NULL);
    expect_open_error(&s, DT_ERR_ARGUMENT, "path", "no path");
}

static void test_csv_labels(void) {
    static const struct { const char *name, *text; dt_csv_options o; int classes; dt_type y_type; int features; } kind[] = {
        { "whole numbers",   "1,2,0\n3,4,2\n", {0}, 3, DT_INT32, 2 },
        { "words",           "1,2,a\n3,4,b\n", { .header = DT_OFF }, 2, DT_INT32, 2 },
        { "real numbers",    "1,2,0.5\n3,4,2\n", {0}, 0, DT_FLOAT32, 2 },
        { "asked for floats", "1,2,0\n3,4,2\n", { .label_type = DT_FLOAT32 }, 0, DT_FLOAT32, 2 },
        { "none",            "1,2,0\n3,4,2\n", { .label = DT_OFF }, 0, DT_TYPE_DEFAULT, 3 },
    };
    dt_error err = DT_DEFAULTS;
    for (int i = 0; i < COUNT(kind); i++) {
        put_text("labels.csv", kind[i].text);
        dt_source s = csv_source("labels.csv", kind[i].o);
        dt_dataset *d = dt_dataset_open(&s, &err);
        CHECK_MSG(d, "%s: %s", kind[i].name, err.text);
        dt_dataset_info info = dt_dataset_describe(d);
        CHECK_MSG(info.n == 2 && info.input[0] == kind[i].features && info.input[1] == 0, "%s: %ld x %d", kind[i].name, info.n, info.input[0]);
        CHECK_MSG(info.classes == kind[i].classes, "%s: %d classes", kind[i].name, info.classes);
        if (kind[i].y_type) CHECK_MSG(info.y_type == kind[i].y_type, "%s: y_type %d", kind[i].name, info.y_type);
        dt_dataset_close(d);
    }

    /* a regression: the gradient of a squared error at prediction 0 is proportional to -label */
    static recorder r;
    recorder_clear(&r);
    r.outputs = 1;
    dt_options o = DT_DEFAULTS;
    put_text("labels.csv", "1,2,0.5\n3,4,-2\n5,6,0.125\n");
    o.train = csv_source("labels.csv", (dt_csv_options){0});
    o.loss = DT_MSE;
    o.no_shuffle = 1;
    gather(&r, o, &err);
    CHECK_OK(err);
    CHECK(r.n == 3 && r.dy && r.dy[0] < 0);
    for (int i = 0; r.n == 3 && i < 3; i++) CHECK_NEAR(r.dy[i] / r.dy[0], ((float[]){ 1, -4, 0.25f })[i], 1e-6);

    /* words or halves where the loss wants numbers of classes: an error in words */
    recorder_clear(&r);
    o.loss = DT_CROSS_ENTROPY;
    gather(&r, o, &err);
    CHECK_MSG(err.code && strstr(err.text, "label"), "%d \"%s\"", err.code, err.text);
    recorder_clear(&r);
}

/* a column with nothing in it has no mean: refused, or at least not NaN */
static void test_csv_mean_of_nothing(void) {
    static recorder r;
    recorder_clear(&r);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    put_text("hollow.csv", "1,?,0\n3,,1\n");
    o.train = csv_source("hollow.csv", (dt_csv_options){ .missing = DT_MISSING_MEAN });
    gather(&r, o, &err);
    if (err.code) CHECK_ERROR(err, DT_ERR_FORMAT, "column 2");
    for (long i = 0; i < r.n * r.features; i++) CHECK(isfinite(r.x[i]));
    recorder_clear(&r);
}

static void test_csv_huge_fields(void) {
    static recorder r;
    size_t n = 1 << 20;
    char *text = (char *)malloc(3 * n + 100);
    for (int kind = 0; kind < 3; kind++) {
        static const char *const format[] = { "%s,2,0\n3,4,1\n", "1,2,%s\n3,4,dog\n", "1,%s2,0\n3,4,1\n" };
        char *field = (char *)malloc(n + 1);
        memset(field, kind == 0 ? '3' : kind == 1 ? 'w' : ' ', n);
        field[n] = 0;
        if (kind == 0) memcpy(field, "0.", 2);
        int length = sprintf(text, format[kind], field);
        put("huge.csv", text, (size_t)length);
        free(field);
        recorder_clear(&r);
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = csv_source("huge.csv", (dt_csv_options){ .header = DT_OFF });
        o.no_shuffle = 1;
        gather(&r, o, &err);  /* read rightly, or refused with the line; never anything else */
        if (err.code) CHECK_ERROR(err, DT_ERR_FORMAT, "line 1");
        else {
            CHECK(r.n == 2 && r.features == 2);
            if (r.n == 2) CHECK_NEAR(r.x[0], kind == 0 ? 1 / 3.0 : 1, 1e-6);
            if (r.n == 2) CHECK_NEAR(r.x[1], 2, 1e-6);
        }
    }
    /* what makes two fields differ may stand far behind */
    char number[600], words[1300];
    sprintf(number, "1,2,0\n3,4%300sx,1\n", "");
    put_text("huge.csv", number);
    dt_source far = csv_source("huge.csv", (dt_csv_options){0});
    expect_open_error(&far, DT_ERR_FORMAT, "line 2", "4, 300 blanks and an x");
    sprintf(words, "1,2,%0400dA\n3,4,%0400dB\n", 0, 0);
    put_text("huge.csv", words);
    far = csv_source("huge.csv", (dt_csv_options){ .header = DT_OFF });
    dt_error far_err = DT_DEFAULTS;
    dt_dataset *apart = dt_dataset_open(&far, &far_err);
    CHECK_MSG(apart ? dt_dataset_describe(apart).classes == 2 : far_err.code == DT_ERR_FORMAT, "two long words are %d class(es)", dt_dataset_describe(apart).classes);
    dt_dataset_close(apart);

    /* a hundred thousand columns */
    size_t length = 0;
    for (int row = 0; row < 2; row++) {
        for (int i = 0; i < 100000; i++) length += (size_t)sprintf(text + length, "%d,", i % 7);
        length += (size_t)sprintf(text + length, "%d\n", row);
    }
    put("huge.csv", text, length);
    free(text);
    dt_error err = DT_DEFAULTS;
    dt_source s = csv_source("huge.csv", (dt_csv_options){0});
    dt_dataset *d = dt_dataset_open(&s, &err);
    CHECK_MSG(d ? dt_dataset_describe(d).input[0] == 100000 : err.code == DT_ERR_FORMAT, "\"%s\"", err.text);
    dt_dataset_close(d);
    recorder_clear(&r);
}

static void test_csv_decimal_comma_locale(void) {
    static const char *const name[] = { "de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8", "fr_FR", "es_ES.UTF-8", "pt_BR.UTF-8" };
    const char *found = NULL;
    for (int i = 0; !found && i < COUNT(name); i++) found = setlocale(LC_ALL, name[i]);
    if (!found || strcmp(localeconv()->decimal_point, ",")) { setlocale(LC_ALL, "C"); SKIP("no locale with a decimal comma here"); }
    put_text("locale.csv", "1.5,2.25,0\n-3.5e-1,4,1\n");
    static recorder r;
    recorder_clear(&r);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.train = csv_source("locale.csv", (dt_csv_options){0});
    o.no_shuffle = 1;
    gather(&r, o, &err);
    CHECK_OK(err);
    CHECK(r.n == 2 && r.features == 2);
    for (int i = 0; r.n == 2 && i < 4; i++) CHECK_NEAR(r.x[i], ((double[]){ 1.5, 2.25, -0.35, 4 })[i], 1e-6);
    put_text("locale.csv", "1,5;2;0\n3,5;4;1\n");
    dt_source s = csv_source("locale.csv", (dt_csv_options){ .separator = ';', .header = DT_OFF });
    expect_open_error(&s, DT_ERR_FORMAT, "line 1", "a decimal comma is no number in any locale");
    dt_options rate = DT_DEFAULTS;
    CHECK(dt_option_set(&rate, "learning-rate", "0.25", &err) == 0 && rate.learning_rate == 0.25);
    setlocale(LC_ALL, "C");
    recorder_clear(&r);
}

/* ---- arrays, callbacks, folds, opened sets ---------------------------------------------------------- */

static void test_arrays(void) {
    static const float f[6] = { 0.5f, -1, 2, 3.25f, 1e-3f, 0 };
    static const unsigned char b[6] = { 0, 1, 127, 128, 254, 255 };
    static const int32_t token[6] = { 4, 0, 3, 1, 2, 4 };
    static const int32_t yi[3] = { 2, 0, 1 };
    static const unsigned char yb[3] = { 2, 0, 1 };
    static const float yf[3] = { 2, 0, 1 }, yh[9] = { 0, 0, 1, 1, 0, 0, 0, 1, 0 };
    static const struct { const char *name; const void *x; dt_type x_type; const void *y; dt_type y_type, label_type; } row[] = {
        { "floats, int labels",  f, DT_FLOAT32, yi, DT_INT32, DT_TYPE_DEFAULT },
        { "floats, byte labels", f, DT_FLOAT32, yb, DT_UINT8, DT_TYPE_DEFAULT },
        { "floats, float labels", f, DT_FLOAT32, yf, DT_FLOAT32, DT_TYPE_DEFAULT },
        { "floats, one-hot",     f, DT_FLOAT32, yh, DT_ONE_HOT, DT_ONE_HOT },
        { "floats, all default", f, DT_TYPE_DEFAULT, yi, DT_TYPE_DEFAULT, DT_TYPE_DEFAULT },
        { "bytes, int labels",   b, DT_UINT8, yi, DT_INT32, DT_TYPE_DEFAULT },
        { "tokens, int labels",  token, DT_INT32, yi, DT_INT32, DT_TYPE_DEFAULT },
    };
    static recorder r;
    for (int i = 0; i < COUNT(row); i++) {
        recorder_clear(&r);
        r.outputs = 3;
        if (row[i].x_type == DT_INT32) r.tokens = 5;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_arrays(row[i].x, row[i].x_type, row[i].y, row[i].y_type, 3);
        o.input[0] = 2;
        o.input_type = row[i].x_type == DT_INT32 ? DT_INT32 : DT_TYPE_DEFAULT;
        o.label_type = row[i].label_type;
        o.no_shuffle = 1;
        gather(&r, o, &err);
        CHECK_MSG(!err.code && r.n == 3 && r.features == 2, "%s: %ld of %d \"%s\"", row[i].name, r.n, r.features, err.text);
        for (int k = 0; r.n == 3 && k < 6; k++) {
            double want = row[i].x == b ? b[k] / 255.0 : row[i].x == token ? (double)token[k] : f[k];
            CHECK_MSG(fabs(r.x[k] - want) < 1e-7, "%s: value %d is %g, not %g", row[i].name, k, r.x[k], want);
        }
        for (int k = 0; r.n == 3 && k < 3; k++) CHECK_MSG(label_of(&r, k) == yi[k], "%s: label %d is %d", row[i].name, k, label_of(&r, k));
    }

    /* what cannot be right is refused in words */
    static const float half[3] = { 2, 0.5f, 1 };
    static const int32_t minus[3] = { 2, -1, 1 };
    static const struct { const char *name; const void *x, *y; dt_type y_type; long n; const char *text; } bad[] = {
        { "no array", NULL, yi, DT_INT32, 3, "" },       { "no samples", f, yi, DT_INT32, 0, "0" },
        { "-3 samples", f, yi, DT_INT32, -3, "-3" },     { "no labels", f, NULL, DT_INT32, 3, "label" },
        { "label 0.5", f, half, DT_FLOAT32, 3, "0.5" },  { "label -1", f, minus, DT_INT32, 3, "-1" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        recorder_clear(&r);
        r.outputs = 3;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_arrays(bad[i].x, DT_FLOAT32, bad[i].y, bad[i].y_type, bad[i].n);
        o.input[0] = 2;
        gather(&r, o, &err);
        CHECK_MSG(err.code && err.text[0] && strstr(err.text, bad[i].text), "%s: %d \"%s\"", bad[i].name, err.code, err.text);
    }
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    recorder_clear(&r);
    o.train = dt_arrays(f, DT_FLOAT32, yi, DT_INT32, 3);
    gather(&r, o, &err);
    CHECK_MSG(err.code && strstr(err.text, ".input"), "arrays without .input: %d \"%s\"", err.code, err.text);
    memset(&err, 0, sizeof err);
    dt_source none = DT_DEFAULTS;
    CHECK(!dt_dataset_open(&none, &err) && err.code && err.text[0]);
    memset(&err, 0, sizeof err);
    CHECK(!dt_dataset_open(NULL, &err) && err.code == DT_ERR_ARGUMENT);
    CHECK(!dt_dataset_open(&none, NULL));
    CHECK(dt_dataset_describe(NULL).n == 0);
    dt_dataset_close(NULL);
    recorder_clear(&r);
}

/* a file of one shape for a model of another */
static void test_shape_of_source(void) {
    static recorder r;
    recorder_clear(&r);
    put_text("three.csv", "1,2,3,0\n3,4,5,1\n");
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.train = csv_source("three.csv", (dt_csv_options){0});
    o.input[0] = 2;
    gather(&r, o, &err);
    CHECK_MSG(err.code == DT_ERR_SHAPE && strstr(err.text, "3") && strstr(err.text, "2"), "%d \"%s\"", err.code, err.text);
    recorder_clear(&r);
}

enum { FROM_N = 53 };
static struct { int calls[FROM_N]; long fails_at; } from;

static int from_read(void *user, long index, void *x, void *y) {
    CHECK(user == &from && index >= 0 && index < FROM_N);
    if (index < 0 || index >= FROM_N || index == from.fails_at) return 77;
    __atomic_fetch_add(&from.calls[index], 1, __ATOMIC_SEQ_CST);
    *(float *)x = (float)index;
    *(int32_t *)y = (int32_t)(index % 10);
    return 0;
}

static void test_from_callback(void) {
    static recorder r;
    static const struct { int replicas; dt_strategy strategy; int batch, epochs; } row[] = {
        { 1, DT_ONE, 8, 1 }, { 2, DT_MIRRORED, 8, 2 }, { 3, DT_MIRRORED, 10, 1 }, { 3, DT_CENTRAL, 53, 2 }, { 7, DT_MIRRORED, 16, 1 }, { 7, DT_CENTRAL, 4, 2 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        recorder_clear(&r);
        memset(&from, 0, sizeof from);
        from.fails_at = -1;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_from(from_read, &from, FROM_N);
        o.input[0] = 1;
        o.replicas = row[i].replicas, o.strategy = row[i].strategy, o.batch = row[i].batch, o.epochs = row[i].epochs;
        gather(&r, o, &err);
        CHECK_OK(err);
        CHECK_MSG(r.n == FROM_N * row[i].epochs, "row %d: %ld samples", i, r.n);
        for (int k = 0; k < FROM_N; k++) CHECK_MSG(from.calls[k] == row[i].epochs, "row %d: sample %d was read %d times", i, k, from.calls[k]);
        for (long k = 0; k < r.n; k++) CHECK(label_of(&r, k) == (int)r.x[k] % 10);
    }

    /* a failing read names the index */
    for (int replicas = 1; replicas <= 3; replicas += 2) {
        recorder_clear(&r);
        memset(&from, 0, sizeof from);
        from.fails_at = 37;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_from(from_read, &from, FROM_N);
        o.input[0] = 1, o.replicas = replicas, o.batch = 8;
        gather(&r, o, &err);
        CHECK_ERROR(err, DT_ERR_CALLBACK, "37");
        CHECK_MSG(strstr(err.text, "read"), "\"%s\"", err.text);
    }

    static const struct { const char *name; int (*read)(void *, long, void *, void *); long n; } bad[] = {
        { "no callback", NULL, 5 }, { "no samples", from_read, 0 }, { "-5 samples", from_read, -5 },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        recorder_clear(&r);
        o.train = dt_from(bad[i].read, &from, bad[i].n);
        o.input[0] = 1;
        gather(&r, o, &err);
        CHECK_MSG(err.code && err.text[0], "%s", bad[i].name);
    }
    recorder_clear(&r);
}

static int label_types_read(void *user, long index, void *x, void *y) {
    *(float *)x = (float)index;
    int label = (int)(index % 3);
    switch (*(dt_type *)user) {
    case DT_UINT8: *(unsigned char *)y = (unsigned char)label; break;
    case DT_FLOAT32: *(float *)y = (float)label; break;
    case DT_ONE_HOT: for (int k = 0; k < 3; k++) ((float *)y)[k] = k == label ? 1.0f : 0.0f; break;
    default: *(int32_t *)y = label; break;
    }
    return 0;
}

static void test_from_label_types(void) {
    static const dt_type type[] = { DT_TYPE_DEFAULT, DT_INT32, DT_UINT8, DT_FLOAT32, DT_ONE_HOT };
    static recorder r;
    for (int i = 0; i < COUNT(type); i++) {
        dt_type user = type[i];
        recorder_clear(&r);
        r.outputs = 3;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_from(label_types_read, &user, 7);
        o.input[0] = 1, o.label_type = type[i], o.replicas = 2, o.batch = 3;
        gather(&r, o, &err);
        CHECK_MSG(!err.code && r.n == 7, "label type %d: %ld samples \"%s\"", (int)type[i], r.n, err.text);
        for (long k = 0; k < r.n; k++) CHECK(label_of(&r, k) == (int)r.x[k] % 3);
    }
    recorder_clear(&r);
}

static int input_types_read(void *user, long index, void *x, void *y) {
    for (int k = 0; k < 37; k++) {
        int v = (int)((index * 37 + k) % 251);
        switch (*(dt_type *)user) {
        case DT_UINT8: ((unsigned char *)x)[k] = (unsigned char)v; break;
        case DT_INT32: ((int32_t *)x)[k] = v % 5; break;
        default: ((float *)x)[k] = (float)v; break;
        }
    }
    *(int32_t *)y = (int32_t)index;
    return 0;
}

static void test_from_input_types(void) {
    static const dt_type type[] = { DT_TYPE_DEFAULT, DT_FLOAT32, DT_UINT8, DT_INT32 };
    static recorder r;
    for (int i = 0; i < COUNT(type); i++) {
        dt_type user = type[i];
        recorder_clear(&r);
        if (user == DT_INT32) r.tokens = 5;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_from(input_types_read, &user, 9);
        o.input[0] = 37, o.input_type = user, o.replicas = 2, o.batch = 4;
        gather(&r, o, &err);
        CHECK_MSG(!err.code && r.n == 9 && r.features == 37, "input type %d: %ld samples \"%s\"", (int)user, r.n, err.text);
        for (int index = 0; r.n == 9 && index < 9; index++) {
            const float *x = row_of(&r, index, 0, 3);
            int wrong = !x;
            for (int k = 0; x && k < 37; k++) {
                double v = (index * 37 + k) % 251;
                wrong += fabs((double)x[k] - (user == DT_UINT8 ? v / 255 : user == DT_INT32 ? fmod(v, 5) : v)) > 1e-6;
            }
            CHECK_MSG(!wrong, "input type %d, sample %d: %d wrong values", (int)user, index, wrong);
        }
    }
    recorder_clear(&r);
}

/* numbers for an embedding that come as floats: whole ones are taken, others refused */
static void test_tokens_as_floats(void) {
    static const struct { float token; int good; } row[] = { { 4, 1 }, { 0, 1 }, { 2.5f, 0 }, { -1, 0 }, { 5, 0 }, { 1e20f, 0 }, { NAN, 0 } };
    static const int32_t y[2] = { 0, 1 };
    static recorder r;
    for (int i = 0; i < COUNT(row); i++) {
        float x[2] = { 1, row[i].token };
        recorder_clear(&r);
        r.tokens = 5;
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_arrays(x, DT_FLOAT32, y, DT_INT32, 2);
        o.input[0] = 1, o.input_type = DT_INT32, o.no_shuffle = 1;
        gather(&r, o, &err);
        if (row[i].good) CHECK_MSG(!err.code && r.n == 2 && r.x[1] == row[i].token, "token %g: \"%s\"", row[i].token, err.text);
        else CHECK_MSG(err.code && err.text[0], "token %g is taken as %g", row[i].token, r.n == 2 ? r.x[1] : NAN);
    }
    recorder_clear(&r);
}

/* ---- columns -------------------------------------------------------------------------------------- */

/* the rows of a source as the net sees them, [n][features], and its number of features */
static int rows_of(dt_source source, const char *fitted, float *x, dt_error *err) {
    source.fitted = fitted;
    dt_dataset *d = dt_dataset_open(&source, err);
    if (!d) return 0;
    dt_dataset_info info = dt_dataset_describe(d);
    dt_options o = DT_DEFAULTS;
    o.net = same, o.inference = 1, o.replicas = 1;
    memcpy(o.input, info.input, sizeof o.input);
    dt_model *m = dt_model_create(&o, err);
    dt_source open = dt_opened(d);
    dt_predict_source(m, &open, 0, info.n, x, err);
    dt_model_free(m);
    dt_dataset_close(d);
    return info.input[0];
}

static void test_columns(void) {
    static const char train[] = "age,city,zip,income,sex,id,label\n"
                                "20,Oslo,0150,10,f,a1,no\n30,Rome,00100,20,m,b2,yes\n40,Oslo,0150,30,m,c3,yes\n50,\"New \"\"York\",10001,40,f,d4,no\n";
    static const char test[] = "age,city,zip,income,sex,id,label\n35,Rome,0150,25,m,zz,yes\n0,Paris,99999,-5,x,yy,no\n60,Oslo,0150,1000,f,ww,no\n";
    static const char spec[] = "age standardise, city onehot,zip hash 8 , income bucket 4, sex*city cross 16, sex drop, id drop";
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    float x[4][64], t[3][64];
    put_text("train.csv", train), put_text("test.csv", test);
    dt_source a = csv_source("train.csv", (dt_csv_options){ .columns = spec }), b = csv_source("test.csv", (dt_csv_options){0});
    int n = rows_of(a, NULL, x[0], &err);
    CHECK_OK(err);
    CHECK_MSG(n == 1 + 3 + 8 + 4 + 16, "%d features", n);
    if (n != 32) return;
    memmove(x[3], x[0] + 96, 128), memmove(x[2], x[0] + 64, 128), memmove(x[1], x[0] + 32, 128);  /* rows of 32 into rows of 64 */
    for (int i = 0; i < 4; i++) {
        float hashed = 0, crossed = 0;
        CHECK_NEAR(x[i][0], (10 * i - 15) / sqrt(125.0), 1e-6);
        for (int k = 0; k < 3; k++) CHECK(x[i][1 + k] == (float)(k == (i == 2 ? 0 : i == 3 ? 2 : i)));
        for (int k = 0; k < 8; k++) hashed += x[i][4 + k];
        for (int k = 0; k < 4; k++) CHECK_MSG(x[i][12 + k] == (float)(k == i), "row %d, bucket %d is %g", i, k, x[i][12 + k]);
        for (int k = 0; k < 16; k++) crossed += x[i][16 + k];
        CHECK(hashed == 1 && crossed == 1);
    }
    CHECK(!memcmp(x[0] + 4, x[2] + 4, 32) && memcmp(x[0] + 16, x[2] + 16, 64));  /* the same zip; another sex in the same city */

    /* what was fitted to the training data is applied to the test data, and only that */
    dt_dataset *d = dt_dataset_open(&a, &err);
    const char *fitted = dt_dataset_columns(d);
    CHECK_MSG(fitted && strstr(fitted, "[\"onehot\",[1],\"Oslo\",\"Rome\",\"New \\\"York\"]") && strstr(fitted, "[\"label\",[6],\"no\",\"yes\"]"), "%s", fitted ? fitted : "nothing");
    CHECK(rows_of(b, fitted, t[0], &err) == 32);
    CHECK_OK(err);
    memmove(t[2], t[0] + 64, 128), memmove(t[1], t[0] + 32, 128);
    CHECK_NEAR(t[0][0], 0, 1e-6);
    CHECK_NEAR(t[1][0], -35 / sqrt(125.0), 1e-6);
    CHECK(t[0][2] == 1 && t[0][1] + t[0][3] == 0 && t[1][1] + t[1][2] + t[1][3] == 0);  /* Paris is new: no city */
    CHECK(t[0][13] == 1 && t[1][12] == 1 && t[2][15] == 1);
    CHECK(!memcmp(t[0] + 4, x[0] + 4, 32));
    for (size_t cut = 0; cut < strlen(fitted); cut++) {  /* cut anywhere, it is refused */
        char *piece = (char *)malloc(cut + 1);
        memcpy(piece, fitted, cut), piece[cut] = 0;
        if (cut) CHECK_MSG(!rows_of(b, piece, t[0], &err) && err.code == DT_ERR_FORMAT, "cut at %d", (int)cut);
        err = none;
        free(piece);
    }
    dt_dataset_close(d);
}

/* a label that the training data has not, columns that do not fit, and every kind of nonsense */
static void test_columns_refused(void) {
    static const struct { const char *spec; int code; const char *says; } bad[] = {
        { "age", DT_ERR_ARGUMENT, "\"age\"" }, { "age normalise", DT_ERR_ARGUMENT, "standardise" }, { "height standardise", DT_ERR_ARGUMENT, "\"height\"" }, { "0 drop", DT_ERR_ARGUMENT, "no column" },
        { "4 drop", DT_ERR_ARGUMENT, "no column" }, { "kind onehot", DT_ERR_ARGUMENT, "the label" }, { "age hash", DT_ERR_ARGUMENT, "hash N" }, { "age hash 1", DT_ERR_ARGUMENT, "N from 2" },
        { "age standardise 5", DT_ERR_ARGUMENT, "standardise" }, { "age cross 5", DT_ERR_ARGUMENT, "two or more" }, { "age*city*age*city*age cross 5", DT_ERR_ARGUMENT, "more than 4" },
        { "age*nowhere cross 5", DT_ERR_ARGUMENT, "nowhere" }, { "age hash 999999999999999", DT_ERR_ARGUMENT, "N from 2" }, { " standardise", DT_ERR_ARGUMENT, "name the column" }, { "5", DT_ERR_ARGUMENT, "say NAME" },
        { "age drop, city drop", DT_ERR_FORMAT, "0 features" }, { "age onehot", DT_ERR_FORMAT, "\"Oslo\" is no number" }, { "city standardise", DT_ERR_FORMAT, "onehot" }, { "city bucket 3", DT_ERR_FORMAT, "Oslo" },
    };
    dt_error err = DT_DEFAULTS;
    float x[64];
    put_text("small.csv", "age,city,kind\n20,Oslo,a\n30,Rome,b\n");
    for (int i = 0; i < COUNT(bad); i++) {
        dt_source s = csv_source("small.csv", (dt_csv_options){ .columns = bad[i].spec });
        expect_open_error(&s, bad[i].code, bad[i].says, bad[i].spec);
    }
    dt_source good = csv_source("small.csv", (dt_csv_options){ .columns = " city onehot ;; 1 standardise,," });
    CHECK(rows_of(good, NULL, x, &err) == 3);
    CHECK_OK(err);
    static const char *const lies[] = { "[", "[]", "[[]]", "[[\"number\",[]]]", "[[\"number\",[0]]]", "[[\"cross\",[0,1],1e300]]", "[[\"hash\",[0],-3]]", "[[\"hash\",[0],2.5e18]]", "[[\"number\",[77],1]]", "[[\"standardise\",[0],1,0]]",
                                        "[[\"onehot\",[0,0,0,0,0],\"a\"]]", "[[\"onehot\",[-1],\"a\"]]", "[[\"magic\",[0],1]]", "[[\"label\",[0],\"a\"],[\"number\",[1],2]]", "[[\"number\",[0],1e999]]x" };
    for (int i = 0; i < COUNT(lies); i++) {
        dt_source s = csv_source("small.csv", (dt_csv_options){ .fitted = lies[i] });
        dt_error e = DT_DEFAULTS;
        CHECK_MSG(!rows_of(s, lies[i], x, &e) && e.code, "taken: %s", lies[i]);
    }
    dt_dataset *d = dt_dataset_open(&good, &err);
    put_text("other.csv", "age,city,kind\n20,Oslo,c\n");
    dt_source other = csv_source("other.csv", (dt_csv_options){ .fitted = dt_dataset_columns(d) });
    expect_open_error(&other, DT_ERR_FORMAT, "the label \"c\" is none of the 2", "a new label");
    put_text("other.csv", "age,kind\n20,a\n");
    expect_open_error(&other, DT_ERR_FORMAT, "2 columns", "a column less");
    put_text("other.csv", "1,2\n3,4\n");  /* a label that nothing was learned of */
    other.fitted = "[[\"number\",[0],1]]";
    expect_open_error(&other, DT_ERR_FORMAT, "had no label", "an unknown label");
    /* of two words about a column the last one counts, and nothing of the first is left */
    char word[128];
    memset(word, 'w', 127), word[127] = 0;
    char row[400];
    snprintf(row, sizeof row, "1,%s,0\n2,b,1\n", word);
    put_text("other.csv", row);
    dt_source twice = csv_source("other.csv", (dt_csv_options){ .columns = "1 hash 64, 1 number, 2 hash 5, 2 onehot", .header = DT_OFF });
    dt_dataset *first = dt_dataset_open(&twice, &err);
    CHECK_OK(err);
    CHECK(first && dt_dataset_describe(first).input[0] == 3 && strstr(dt_dataset_columns(first), "[\"number\",[0],1.5]") && strstr(dt_dataset_columns(first), word));
    CHECK(first && rows_of(twice, dt_dataset_columns(first), x, &err) == 3);  /* words of 127 bytes too */
    CHECK_OK(err);
    dt_dataset_close(first);
    dt_dataset_close(d);
}

/* two files are one set; their labels are numbered together */
static void test_csv_of_several_files(void) {
    static recorder r;
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    char paths[1100];
    put_text("one.csv", "a,b,what\n1,2,dog\n3,4,cat\n"), put_text("two.csv", "a,b,what\n5,6,cow\n7,8,dog\n"), put_text("three.csv", "1,2,3,4\n");
    snprintf(paths, sizeof paths, "%s,%s", at("one.csv"), at("two.csv"));
    o.train = dt_csv_opt((dt_csv_options){ .path = paths }), o.no_shuffle = 1;
    recorder_clear(&r);
    gather(&r, o, &err);
    CHECK_OK(err);
    CHECK(r.n == 4 && r.x[4] == 5 && label_of(&r, 0) == 0 && label_of(&r, 1) == 1 && label_of(&r, 2) == 2 && label_of(&r, 3) == 0);
    snprintf(paths, sizeof paths, "%s,%s", at("one.csv"), at("three.csv"));
    expect_open_error(&o.train, DT_ERR_FORMAT, "file 2 has 4 columns, the first has 3", "other columns");
    recorder_clear(&r);
}

/* of a fold or a part, the training side alone is fitted to */
static void test_columns_of_a_fold(void) {
    char text[400] = "v,kind\n";
    float x[64];
    for (int i = 0; i < 20; i++) snprintf(text + strlen(text), 40, "%d,%d\n", i % 4 == 1 ? 1000 : i, i % 2);
    put_text("fold.csv", text);
    for (int part = 0; part < 2; part++)
        for (int test = 0; test < 2; test++) {
            dt_error err = DT_DEFAULTS;
            dt_source s = csv_source("fold.csv", (dt_csv_options){ .columns = "v standardise" });
            s = part ? dt_part(s, 0.25, test ? DT_TEST : DT_TRAIN) : dt_fold(s, 4, 1, test ? DT_TEST : DT_TRAIN);
            CHECK(rows_of(s, NULL, x, &err) == 1);
            CHECK_OK(err);
            double sum = 0;
            for (int i = 0; i < 15; i++) sum += (double)x[i];
            if (!test) CHECK_NEAR(sum, 0, 1e-4);  /* the mean of the training side, whatever lies outside */
            if (test && !part) CHECK_MSG(x[0] > 100 && x[4] > 100, "%g: 1000 is far from what was fitted", x[0]);
        }
}

/* a model learns from a table, keeps its columns in the file, and reads another table as the first one was read */
static void test_columns_travel_with_the_model(void) {
    enum { N = 60 };
    static char text[2][N * 40];
    dt_error err = DT_DEFAULTS;
    float p[2][N * 2];
    for (int half = 0; half < 2; half++) {  /* the second table has its words in another order */
        size_t n = (size_t)sprintf(text[half], "size,colour,kind\n");
        for (int i = 0; i < N; i++) {
            int k = half ? N - 1 - i : i, red = k % 3 == 0;
            n += (size_t)sprintf(text[half] + n, "%d,%s,%s\n", 1000 + k, red ? "red" : k % 3 == 1 ? "blue" : "gr\303\274n", red ? "fruit" : "stone");
        }
    }
    put_text("first.csv", text[0]), put_text("second.csv", text[1]);
    dt_options o = DT_DEFAULTS;
    o.net = two_logits, o.loss = DT_CROSS_ENTROPY, o.optimizer = DT_ADAM, o.learning_rate = 0.05, o.epochs = 30, o.replicas = 2, o.seed = 3;
    o.train = csv_source("first.csv", (dt_csv_options){ .columns = "size standardise, colour onehot" });
    o.test = csv_source("second.csv", (dt_csv_options){0});
    dt_model *m = dt_model_create(&o, &err);
    CHECK(dt_train(m, NULL, &err) == 0);
    CHECK_OK(err);
    CHECK_MSG(dt_model_report(m).eval_accuracy == 1, "accuracy %g: the words of the second table are read in another order", dt_model_report(m).eval_accuracy);
    CHECK(dt_save(m, at("columns.safetensors"), &err) == 0 && dt_predict_source(m, &o.test, 0, N, p[0], &err) == 0);
    dt_model_free(m);

    o.train = o.test, o.test = (dt_source)DT_DEFAULTS;       /* a model made from the second table … */
    o.train.columns = "size standardise, colour onehot";
    o.seed = 4;
    m = dt_model_create(&o, &err);
    CHECK(dt_load(m, at("columns.safetensors"), NULL, &err) == 0);  /* … takes over the columns of the first */
    CHECK_OK(err);
    dt_metrics metrics = DT_DEFAULTS;
    CHECK(dt_predict_source(m, &o.train, 0, N, p[1], &err) == 0 && !memcmp(p[0], p[1], sizeof p[0]));
    CHECK(dt_evaluate(m, &o.train, &metrics, &err) == 0 && metrics.accuracy == 1);
    CHECK(dt_train(m, NULL, &err) == 0);
    CHECK_OK(err);
    dt_model_free(m);

    /* a file whose words are not those of the model's data is refused, and the model keeps its weights and columns */
    put_text("other.csv", "size,colour,kind\n1,red,x\n2,blue,y\n3,red,x\n4,gr\303\274n,y\n");
    dt_options q = o;
    q.train = csv_source("other.csv", (dt_csv_options){ .columns = "size standardise, colour onehot" });
    m = dt_model_create(&q, &err);
    CHECK(dt_save(m, at("other.safetensors"), &err) == 0);
    dt_model_free(m);
    m = dt_model_create(&o, &err);
    CHECK(m && dt_save(m, at("before.safetensors"), &err) == 0);
    CHECK_OK(err);
    CHECK(dt_load(m, at("other.safetensors"), NULL, &err) == DT_ERR_FORMAT && strstr(err.text, "is none of the 2"));
    memset(&err, 0, sizeof err);
    CHECK(dt_save(m, at("after.safetensors"), &err) == 0 && dt_train(m, NULL, &err) == 0);
    CHECK_OK(err);
    size_t size[2];
    void *file[2] = { get(at("before.safetensors"), &size[0]), get(at("after.safetensors"), &size[1]) };
    CHECK(size[0] > 0 && size[0] == size[1] && !memcmp(file[0], file[1], size[0]));
    free(file[0]), free(file[1]);
    dt_model_free(m);

    /* the file alone tells a later program what the columns mean */
    o.train = dt_csv_opt((dt_csv_options){ .path = at("second.csv"), .fitted = at("columns.safetensors") });
    m = dt_model_create(&o, &err);
    CHECK(dt_load(m, at("columns.safetensors"), NULL, &err) == 0);
    CHECK(dt_predict_source(m, &o.train, 0, N, p[1], &err) == 0 && !memcmp(p[0], p[1], sizeof p[0]));
    CHECK_OK(err);
    dt_model_free(m);
    dt_source lost = dt_csv_opt((dt_csv_options){ .path = at("second.csv"), .fitted = at("second.csv") });
    expect_open_error(&lost, DT_ERR_FORMAT, "no valid safetensors", "a table as .fitted");
    lost.fitted = "nowhere.safetensors";
    expect_open_error(&lost, DT_ERR_IO, "nowhere", "no file as .fitted");
}

/* ---- a part, a fold ----------------------------------------------------------------------------------- */

/* a part by fraction: both sides together are everything, nothing twice, and always the same */
static void test_part(void) {
    enum { N = 101 };
    static float x[N];
    static int32_t y[N];
    static const struct { double fraction; int held; } row[] = { { 0.25, 25 }, { 0.005, 1 }, { 0.99, 100 }, { 0.5, 51 } };
    static const double bad[] = { -1, 1, 2, 0.004, 0.9999, (double)NAN };
    static recorder r;
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = i % 10;
    dt_source all = dt_arrays(x, DT_FLOAT32, y, DT_INT32, N);
    for (int k = 0; k < COUNT(row); k++) {
        int seen[N] = {0};
        float out[N], w = 1, b = 0;
        for (int test = 0; test < 2; test++) {
            recorder_clear(&r);
            dt_error err = DT_DEFAULTS;
            dt_options o = DT_DEFAULTS;
            o.train = dt_part(all, row[k].fraction, test ? DT_TEST : DT_TRAIN);
            o.input[0] = 1, o.no_shuffle = 1;
            gather(&r, o, &err);
            CHECK_OK(err);
            CHECK_MSG(r.n == (test ? row[k].held : N - row[k].held), "fraction %g: %ld samples", row[k].fraction, r.n);
            for (long i = 0; i < r.n; i++) seen[(int)r.x[i]]++;

            /* dt_predict_source sees the same samples in the same order */
            dt_options q = DT_DEFAULTS;
            q.net = one_weight, q.input[0] = 1, q.replicas = 2, q.batch = 8, q.inference = 1;
            q.mean[0] = 3, q.deviation[0] = 2;
            dt_model *m = dt_model_create(&q, &err);
            dt_parameter_write(m, "w.weight", &w, 1, &err);
            dt_parameter_write(m, "w.bias", &b, 1, &err);
            CHECK(dt_predict_source(m, &o.train, 1, r.n - 1, out, &err) == 0);
            CHECK_OK(err);
            for (long i = 1; i < r.n; i++) CHECK_NEAR(out[i - 1], (r.x[i] - 3) / 2, 1e-6);
            CHECK(dt_predict_source(m, &o.train, 1, r.n, out, &err) == DT_ERR_ARGUMENT);
            CHECK_ERROR(err, DT_ERR_ARGUMENT, "are asked for");
            dt_model_free(m);
        }
        for (int i = 0; i < N; i++) CHECK_MSG(seen[i] == 1, "fraction %g: sample %d comes %d times", row[k].fraction, i, seen[i]);
    }
    for (int k = 0; k < COUNT(bad); k++) {
        dt_source s = dt_part(all, bad[k], DT_TEST);
        expect_open_error(&s, DT_ERR_ARGUMENT, "dt_part", "a bad fraction");
    }
    dt_source nested = dt_part(dt_fold(all, 5, 0, DT_TRAIN), 0.5, DT_TEST);
    expect_open_error(&nested, DT_ERR_ARGUMENT, "part of a part", "nested");
    recorder_clear(&r);
}

static void test_fold(void) {
    enum { N = 23 };
    static float x[N];
    static int32_t y[N];
    static recorder r;
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = i % 10;
    dt_source all = dt_arrays(x, DT_FLOAT32, y, DT_INT32, N);
    for (int folds = 2; folds <= 5; folds++)
        for (int fold = 0; fold < folds; fold++)
            for (int test = 0; test < 2; test++) {
                recorder_clear(&r);
                dt_error err = DT_DEFAULTS;
                dt_options o = DT_DEFAULTS;
                o.train = dt_fold(all, folds, fold, test ? DT_TEST : DT_TRAIN);
                o.input[0] = 1, o.no_shuffle = 1;
                gather(&r, o, &err);
                CHECK_OK(err);
                long k = 0;
                for (int i = 0; i < N; i++) {
                    if ((i % folds == fold) != test) continue;
                    CHECK_MSG(k < r.n && r.x[k] == (float)i && label_of(&r, k) == i % 10, "folds %d, fold %d, %s: sample %ld", folds, fold, test ? "test" : "train", k);
                    k++;
                }
                CHECK(r.n == k);
                dt_dataset *d = dt_dataset_open(&o.train, &err);
                CHECK(dt_dataset_describe(d).n == k);
                dt_dataset_close(d);
            }
    /* a fold of a fold is one, or an error, but never quietly something else */
    dt_error nested = DT_DEFAULTS;
    dt_source inner = dt_fold(dt_fold(all, 5, 4, DT_TRAIN), 3, 0, DT_TEST);
    dt_dataset *part = dt_dataset_open(&inner, &nested);
    CHECK_MSG(part ? dt_dataset_describe(part).n == 7 : nested.code && strstr(nested.text, "fold"), "%ld samples \"%s\"", dt_dataset_describe(part).n, nested.text);
    dt_dataset_close(part);
    static const struct { int folds, fold; } bad[] = { { 0, 0 }, { -3, 0 }, { 3, 3 }, { 3, -1 }, { 1, 1 }, { 30, 25 } };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_error err = DT_DEFAULTS;
        dt_source s = dt_fold(all, bad[i].folds, bad[i].fold, DT_TEST);
        dt_dataset *d = dt_dataset_open(&s, &err);
        CHECK_MSG(!d && err.code && strstr(err.text, "fold"), "folds %d, fold %d: \"%s\"", bad[i].folds, bad[i].fold, err.text);
        dt_dataset_close(d);
    }
    recorder_clear(&r);
}

/* one open data set behind two sources and two models, also in folds */
static void test_opened(void) {
    static recorder r;
    dt_error err = DT_DEFAULTS;
    put_text("open.csv", "1,0\n2,1\n3,2\n4,0\n5,1\n");
    dt_source file = csv_source("open.csv", (dt_csv_options){0});
    dt_dataset *d = dt_dataset_open(&file, &err);
    CHECK_OK(err);
    remove(at("open.csv"));
    for (int fold = 0; fold < 2; fold++) {
        recorder_clear(&r);
        dt_options o = DT_DEFAULTS;
        o.train = dt_fold(dt_opened(d), 2, fold, DT_TEST);
        o.no_shuffle = 1;
        gather(&r, o, &err);
        CHECK_OK(err);
        CHECK(r.n == 3 - fold);
        for (long i = 0; i < r.n; i++) CHECK(r.x[i] == (float)(2 * i + fold + 1));
    }
    dt_source none = dt_opened(NULL);
    CHECK(!dt_dataset_open(&none, &err) && err.code);
    dt_dataset_close(d);
    recorder_clear(&r);
}

/* ---- order and shares -------------------------------------------------------------------------------- */

static void test_shuffle(void) {
    static const long size[] = { 1, 2, 3, 10, 100, 1797, 65537 };
    static const uint64_t seed[] = { 0, 1, 42, UINT64_MAX };
    static const long epoch[] = { 0, 1, 2, 1000000 };
    static unsigned char seen[65537];
    for (int s = 0; s < COUNT(size); s++)
        for (int k = 0; k < COUNT(seed); k++)
            for (int e = 0; e < COUNT(epoch); e++) {
                long n = size[s], bad = 0;
                memset(seen, 0, (size_t)n);
                for (long i = 0; i < n; i++) {
                    long j = dt_shuffle(i, n, seed[k], epoch[e]);
                    bad += j < 0 || j >= n || seen[j] || j != dt_shuffle(i, n, seed[k], epoch[e]);
                    if (j >= 0 && j < n) seen[j] = 1;
                }
                CHECK_MSG(bad == 0, "n %ld, seed %d, epoch %ld: %ld wrong", n, k, epoch[e], bad);
            }

    /* epochs, seeds and the plain order have little in common */
    for (int s = 4; s < COUNT(size); s++) {
        long n = size[s], by_epoch = 0, by_seed = 0, plain = 0, rising = 0;
        for (long i = 0; i < n; i++) {
            long j = dt_shuffle(i, n, 7, 3);
            by_epoch += j == dt_shuffle(i, n, 7, 4), by_seed += j == dt_shuffle(i, n, 8, 3), plain += j == i;
            rising += i > 0 && j > dt_shuffle(i - 1, n, 7, 3);
        }
        CHECK_MSG(by_epoch <= 10 && by_seed <= 10 && plain <= 10, "n %ld: %ld, %ld, %ld positions agree", n, by_epoch, by_seed, plain);
        CHECK_MSG(rising > n / 3 && rising < 2 * n / 3, "n %ld: %ld neighbours rise", n, rising);
    }

    /* any sample may come first: 1,000 epochs of 10 are about 100 each (5 deviations: 53 .. 147) */
    int first[10] = { 0 }, three[3] = { 0 };
    for (long e = 0; e < 1000; e++) first[dt_shuffle(0, 10, 99, e)]++, three[dt_shuffle(1, 3, 5, e)]++;
    for (int i = 0; i < 10; i++) CHECK_MSG(first[i] > 50 && first[i] < 150, "%d comes first in %d of 1000 epochs", i, first[i]);
    for (int i = 0; i < 3; i++) CHECK_MSG(three[i] > 250 && three[i] < 420, "%d of 3 comes second in %d of 1000 epochs", i, three[i]);

    /* far more samples than a table would hold */
    static long far[1000];
    long n = 2000000011, bad = 0;
    for (int i = 0; i < 1000; i++) {
        far[i] = dt_shuffle(n - 1 - i * 1000, n, 1, 1);
        bad += far[i] < 0 || far[i] >= n;
        for (int k = 0; k < i; k++) bad += far[i] == far[k];
    }
    CHECK(bad == 0);
}

static void test_order_of_training(void) {
    enum { N = 37 };
    static float x[N];
    static int32_t y[N];
    static recorder r;
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = i % 10;
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        recorder_clear(&r);
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_arrays(x, DT_FLOAT32, y, DT_INT32, N);
        o.input[0] = 1, o.batch = 8, o.epochs = 3, o.seed = 11, o.no_shuffle = !shuffled;
        gather(&r, o, &err);
        CHECK_OK(err);
        CHECK(r.n == 3 * N);
        /* the epoch that dt_shuffle is asked for may count from 0 or from 1 */
        long wrong[2] = { 0, 0 };
        for (long i = 0; i < r.n; i++)
            for (int from_1 = 0; from_1 < 2; from_1++) wrong[from_1] += r.x[i] != (float)(shuffled ? dt_shuffle(i % N, N, 11, i / N + from_1) : i % N);
        CHECK_MSG(wrong[0] == 0 || wrong[1] == 0, "shuffled %d: %ld, %ld samples out of order", shuffled, wrong[0], wrong[1]);
    }
    recorder_clear(&r);
}

/* every sample once an epoch, in shares that differ by one sample at most */
static void test_even_sharding(void) {
    static float x[70];
    static int32_t y[70];
    static recorder r;
    static const int replicas[] = { 1, 2, 3, 7 };
    static const struct { long n; int batch, accumulate; } set[] = { { 70, 10, 0 }, { 37, 10, 0 }, { 41, 10, 0 }, { 11, 32, 0 }, { 5, 5, 0 }, { 3, 3, 0 }, { 1, 4, 0 }, { 61, 20, 2 } };
    for (int i = 0; i < 70; i++) x[i] = (float)i, y[i] = i % 10;
    for (int s = 0; s < COUNT(set); s++)
        for (int k = 0; k < COUNT(replicas); k++)
            for (int central = 0; central < 2; central++) {
                long n = set[s].n, epochs = 2, steps = (n + set[s].batch - 1) / set[s].batch;
                recorder_clear(&r);
                dt_error err = DT_DEFAULTS;
                dt_options o = DT_DEFAULTS;
                o.train = dt_arrays(x, DT_FLOAT32, y, DT_INT32, n);
                o.input[0] = 1, o.batch = set[s].batch, o.epochs = (int)epochs, o.replicas = replicas[k], o.accumulate = set[s].accumulate;
                o.strategy = replicas[k] == 1 ? DT_ONE : central ? DT_CENTRAL : DT_MIRRORED;
                gather(&r, o, &err);
                CHECK_OK(err);
                CHECK_MSG(r.n == n * epochs, "%ld samples, batch %d, %d replicas: saw %ld", n, set[s].batch, replicas[k], r.n);
                for (long e = 0; e < epochs; e++) {
                    int seen[70] = { 0 };
                    for (long i = 0; i < r.n; i++) if ((r.step[i] - r.first_step) / steps == e) seen[(int)r.x[i]]++;
                    for (long i = 0; i < n; i++) CHECK_MSG(seen[i] == 1, "%ld samples, batch %d, %d replicas, epoch %ld: sample %ld came %d times", n, set[s].batch, replicas[k], e, i, seen[i]);
                }
                if (set[s].accumulate) continue;
                for (long step = 0; step < steps * epochs; step++) {
                    int calls = 0, most = 0, least = 1000;
                    for (int i = 0; i < r.calls; i++) {
                        if (r.call[i].step - r.first_step != step) continue;
                        calls++;
                        if (r.call[i].n > most) most = r.call[i].n;
                        if (r.call[i].n < least) least = r.call[i].n;
                    }
                    if (calls < replicas[k]) least = 0;  /* a replica without a share need not be called */
                    CHECK_MSG(calls <= replicas[k] && most - least <= 1, "%ld samples, batch %d, %d replicas, step %ld: shares of %d to %d", n, set[s].batch, replicas[k], step, least, most);
                }
            }
    recorder_clear(&r);
}

/* ---- augmentation --------------------------------------------------------------------------------------- */

enum { H = 5, W = 4, C = 2, IMAGES = 32, PIXELS = H * W * C };
static unsigned char image[IMAGES][H][W][C];
static int32_t image_label[IMAGES];

static void make_images(void) {
    for (int i = 0; i < IMAGES * PIXELS; i++) (&image[0][0][0][0])[i] = (unsigned char)(1 + (i * 37 + i / 40 * 11) % 255);
    for (int i = 0; i < IMAGES; i++) image_label[i] = i;
}

static dt_options image_options(void) {
    dt_options o = DT_DEFAULTS;
    o.train = dt_arrays(image, DT_UINT8, image_label, DT_INT32, IMAGES);
    o.input[0] = H, o.input[1] = W, o.input[2] = C;
    o.batch = 10, o.epochs = 4, o.seed = 5;
    return o;
}
enum { IMAGE_STEPS = (IMAGES + 9) / 10 };

static void image_gather(recorder *r, dt_options o) {
    dt_error err = DT_DEFAULTS;
    recorder_clear(r);
    r->outputs = IMAGES;
    gather(r, o, &err);
    CHECK_OK(err);
    CHECK(r->features == PIXELS && r->n == (long)IMAGES * o.epochs);
}

/* x is image i, moved by (dy, dx) with zeros around it, perhaps mirrored */
static int same_image(const float *x, int i, int dy, int dx, int mirrored) {
    for (int h = 0; h < H; h++)
        for (int w = 0; w < W; w++)
            for (int c = 0; c < C; c++) {
                int from_h = h + dy, from_w = (mirrored ? W - 1 - w : w) + dx;
                double want = from_h < 0 || from_h >= H || from_w < 0 || from_w >= W ? 0 : image[i][from_h][from_w][c] / 255.0;
                if (fabs((double)x[(h * W + w) * C + c] - want) > 1e-6) return 0;
            }
    return 1;
}

static void test_flip_and_crop(void) {
    static recorder r;
    make_images();
    for (int crop = 0; crop <= 2; crop += 2)
        for (int flip = 0; flip < 2; flip++) {
            dt_options o = image_options();
            o.crop = crop, o.flip = flip;
            image_gather(&r, o);
            int mirrored = 0, moved[5][5] = { { 0 } }, changed = 0, total = 0;
            for (long e = 0; e < o.epochs; e++)
                for (int i = 0; i < IMAGES; i++) {
                    const float *x = row_of(&r, i, e, IMAGE_STEPS), *before = e ? row_of(&r, i, e - 1, IMAGE_STEPS) : NULL;
                    CHECK_MSG(x, "image %d does not come once in epoch %ld", i, e);
                    if (!x) continue;
                    int found = 0;
                    for (int m = 0; m <= flip && !found; m++)
                        for (int dy = -crop; dy <= crop && !found; dy++)
                            for (int dx = -crop; dx <= crop && !found; dx++)
                                if (same_image(x, i, dy, dx, m)) found = 1, mirrored += m, moved[dy + 2][dx + 2]++;
                    CHECK_MSG(found, "crop %d, flip %d: image %d of epoch %ld is no cut of the original", crop, flip, i, e);
                    total += before != NULL, changed += before && memcmp(before, x, PIXELS * sizeof *x) != 0;
                }
            if (flip) CHECK_MSG(mirrored > 38 && mirrored < 90, "%d of 128 mirrored", mirrored);
            if (flip || crop) CHECK_MSG(changed > total / 4, "%d of %d images change from epoch to epoch", changed, total);
            else CHECK(changed == 0);
            int places = 0;
            for (int k = 0; k < 25; k++) places += moved[k / 5][k % 5] > 0;
            if (crop) CHECK_MSG(places > 20, "%d of 25 places", places);
        }
    recorder_clear(&r);
}

static void test_mean_and_deviation(void) {
    static recorder r;
    static const double mean[C] = { 0.25, 0.5 }, deviation[C] = { 0.5, 0.125 };
    make_images();
    for (int off = 0; off < 2; off++) {
        dt_options o = image_options();
        for (int c = 0; c < C; c++) o.mean[c] = mean[c], o.deviation[c] = c == 1 && off ? 0 : deviation[c];
        image_gather(&r, o);
        for (int i = 0; i < IMAGES; i++) {
            const float *x = row_of(&r, i, 0, IMAGE_STEPS);
            int wrong = !x;
            for (int k = 0; x && k < PIXELS; k++) {
                double want = (&image[i][0][0][0])[k] / 255.0;
                if (k % C == 0 || !off) want = (want - mean[k % C]) / deviation[k % C];
                else if (fabs((double)x[k] - want) > 1e-5) want -= mean[1];  /* deviation off: as stored, or only centred */
                wrong += fabs((double)x[k] - want) > 1e-5;
            }
            CHECK_MSG(!wrong, "image %d: %d wrong values", i, wrong);
        }
    }
    recorder_clear(&r);
}

static int darken(void *user, float *x, long index, uint64_t random) {
    recorder *r = (recorder *)user;
    if (index == r->augment_fails_at) return 5;
    pthread_mutex_lock(&r->lock);
    r->augmented++;
    if (index >= 0 && index < 64) r->random[index] = random;
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < PIXELS; i++) x[i] *= (float)(random >> 40) / 16777216.0f;
    return 0;
}

/* the same picture of every sample in every epoch, whoever prepares it */
static void test_augmentation_is_deterministic(void) {
    static recorder base, r;
    static const struct { int replicas; dt_strategy strategy; } row[] = { { 1, DT_ONE }, { 2, DT_MIRRORED }, { 3, DT_MIRRORED }, { 7, DT_CENTRAL } };
    make_images();
    dt_options o = image_options();
    o.crop = 2, o.flip = 1, o.augment = darken;
    o.mean[0] = 0.1, o.deviation[0] = 0.5, o.mean[1] = 0.2, o.deviation[1] = 0.25;
    o.replicas = 1;
    image_gather(&base, o);
    CHECK(base.augmented == (long)IMAGES * o.epochs);
    for (int k = 0; k < COUNT(row); k++) {
        o.replicas = row[k].replicas, o.strategy = row[k].strategy;
        image_gather(&r, o);
        CHECK(r.augmented == base.augmented && !memcmp(r.random, base.random, sizeof r.random));
        int differ = 0;
        for (long e = 0; e < o.epochs; e++)
            for (int i = 0; i < IMAGES; i++) {
                const float *a = row_of(&base, i, e, IMAGE_STEPS), *b = row_of(&r, i, e, IMAGE_STEPS);
                differ += !a || !b || memcmp(a, b, PIXELS * sizeof *a) != 0;
            }
        CHECK_MSG(differ == 0, "%d replicas: %d of %d pictures differ", row[k].replicas, differ, IMAGES * o.epochs);
    }
    /* another seed, other pictures; and every sample its own random number */
    o.seed = 6;
    image_gather(&r, o);
    int same = 0;
    for (int i = 0; i < IMAGES; i++) {
        same += r.random[i] == base.random[i];
        for (int k = 0; k < i; k++) same += r.random[i] == r.random[k];
    }
    CHECK_MSG(same == 0, "%d random numbers are equal", same);

    recorder_clear(&r);
    r.outputs = IMAGES, r.augment_fails_at = 13;
    dt_error err = DT_DEFAULTS;
    gather(&r, o, &err);
    CHECK_ERROR(err, DT_ERR_CALLBACK, "13");
    CHECK_MSG(strstr(err.text, "augment"), "\"%s\"", err.text);
    recorder_clear(&r), recorder_clear(&base);
}

static struct { float x[IMAGES][PIXELS]; long n; } seen_in_evaluation;

static int evaluation_forward(const dt_custom_call *c) {
    memset(c->y, 0, (size_t)c->n * IMAGES * sizeof *c->y);
    for (int i = 0; i < c->n && seen_in_evaluation.n < IMAGES; i++) memcpy(seen_in_evaluation.x[seen_in_evaluation.n++], c->x[0] + i * PIXELS, sizeof seen_in_evaluation.x[0]);
    return c->training != 0;
}

static dt_tensor *evaluation_net(dt_tensor *x, void *user) {
    (void)user;
    return dt_custom(x, {IMAGES}, evaluation_forward, NULL, NULL);
}

static int never(void *user, float *x, long index, uint64_t random) {
    (void)user, (void)x, (void)index, (void)random;
    return 1;
}

/* evaluation sees the samples in order, normalised but not cut, mirrored or augmented */
static void test_evaluation_is_not_augmented(void) {
    make_images();
    seen_in_evaluation.n = 0;
    dt_error err = DT_DEFAULTS;
    dt_options o = image_options();
    o.net = evaluation_net, o.loss = DT_CROSS_ENTROPY, o.replicas = 1, o.crop = 2, o.flip = 1, o.augment = never;
    o.mean[0] = 0.25, o.deviation[0] = 0.5;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    dt_metrics metrics = DT_DEFAULTS;
    dt_evaluate(m, &o.train, &metrics, &err);
    CHECK_OK(err);
    CHECK(metrics.n == IMAGES && seen_in_evaluation.n == IMAGES);
    CHECK_NEAR(metrics.loss, log(IMAGES), 1e-5);
    int wrong = 0;
    for (int i = 0; i < IMAGES; i++)
        for (int k = 0; k < PIXELS; k++) {
            double want = (&image[i][0][0][0])[k] / 255.0;
            if (k % C == 0) want = (want - 0.25) / 0.5;
            wrong += fabs((double)seen_in_evaluation.x[i][k] - want) > 1e-5;
        }
    CHECK_MSG(wrong == 0, "%d wrong values", wrong);
    dt_model_free(m);
}

static void test_augmentation_of_what_is_no_image(void) {
    static recorder r;
    static const float x[6] = { 1, 2, 3, 4, 5, 6 };
    static const int32_t y[3] = { 0, 1, 2 };
    static const struct { const char *name; int crop, flip; const char *text; } bad[] = {
        { "crop of a row", 1, 0, "crop" }, { "flip of a row", 0, 1, "flip" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        recorder_clear(&r);
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.train = dt_arrays(x, DT_FLOAT32, y, DT_INT32, 3);
        o.input[0] = 2, o.crop = bad[i].crop, o.flip = bad[i].flip;
        gather(&r, o, &err);
        CHECK_MSG(err.code && strstr(err.text, bad[i].text), "%s: %d \"%s\"", bad[i].name, err.code, err.text);
    }
    recorder_clear(&r);
}

int main(void) {
    if (scratch_begin()) return 1;
    RUN(test_idx_good);
    RUN(test_idx_bad_images);
    RUN(test_idx_bad_labels);
    RUN(test_label_out_of_range);
    RUN(test_mnist_names);
    RUN(test_mnist_gzip);
    RUN(test_mnist_missing);
    RUN(test_cifar_good);
    RUN(test_cifar_bad);
    RUN(test_csv_good);
    RUN(test_csv_bad);
    RUN(test_csv_labels);
    RUN(test_csv_mean_of_nothing);
    RUN(test_csv_huge_fields);
    RUN(test_csv_decimal_comma_locale);
    RUN(test_arrays);
    RUN(test_shape_of_source);
    RUN(test_from_callback);
    RUN(test_from_label_types);
    RUN(test_from_input_types);
    RUN(test_tokens_as_floats);
    RUN(test_columns);
    RUN(test_columns_refused);
    RUN(test_csv_of_several_files);
    RUN(test_columns_of_a_fold);
    RUN(test_columns_travel_with_the_model);
    RUN(test_part);
    RUN(test_fold);
    RUN(test_opened);
    RUN(test_shuffle);
    RUN(test_order_of_training);
    RUN(test_even_sharding);
    RUN(test_flip_and_crop);
    RUN(test_mean_and_deviation);
    RUN(test_augmentation_is_deterministic);
    RUN(test_evaluation_is_not_augmented);
    RUN(test_augmentation_of_what_is_no_image);
    scratch_end();
    return finish();
}
