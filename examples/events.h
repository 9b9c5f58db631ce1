// events.h - dt_events: TensorBoard's event files, from any program
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "events.h"
//           In other files that call it: both without the definition. Then, in a loop of your own or at an event of dt_train:
//              dt_events *log = dt_events_open("runs/first", -1, &err);
//              dt_events_scalars(log, step, 2, (const char *const[]){"loss/train", "loss/eval"}, (double[]){loss, eval_loss}, &err);
//              dt_events_close(log);
//           tensorboard --logdir runs        while it runs, or afterwards: a curve per folder in runs
//
// What:    one file per dt_events, of records that each hold one event: scalars, a histogram, a text, hyperparameters.
// Owns:    the open file, and a buffer as large as the largest record.
// Uses:    >>base.   Used by: job.h, programs.
// Promise: an event is in the file, by one write, when its call returns; when the disk is full the file ends with its last
//          whole event; the same bytes on every host; nothing is cut or left out but what is said below.
// Source:  tensorflow/core/lib/io/record_writer.h around tensorflow/core/util/event.proto and framework/summary.proto;
//          tensorboard/plugins/histogram/summary_v2.py, and plugins/hparams/{plugin_data,api}.proto.
#ifndef DTRAIN_EVENTS_H
#define DTRAIN_EVENTS_H

#ifndef DTRAIN_H
#error "events.h goes behind dtrain.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

// All calls: 0 or the code, one caller at a time per dt_events. A step is 0 or more. Tags and texts are UTF-8 without a limit,
// and a tag is not empty; "loss/train" and "loss/eval" stand in one group. What is wrong with an argument is
// DT_ERR_ARGUMENT and writes nothing. DT_ERR_IO, a full disk say, stays: each call after it returns the same, and writes nothing.
typedef struct dt_events dt_events;

// dt_events_open - a new file in folder, which is made with its parents: events.out.tfevents.<seconds>.<host>.<process>, later
// in the alphabet than those that are there, since TensorBoard reads them in that order and never goes back. (So of two that
// are open in one folder at a time it may follow one alone.)
//   resumed  the step that the run goes on from: what older files of the folder say of later steps is shown no more (at
//            once, or, by TensorBoard's fast loader, curve by curve with the first point that comes); -1: a new run in their place
// NULL on failure.
DT_API dt_events *dt_events_open(const char *folder, long resumed, dt_error *err);

// dt_events_scalars - a point for each of n curves, in one record. NaN: no point. Kept as float, beyond its range infinite.
DT_API int dt_events_scalars(dt_events *e, long step, int n, const char *const *tags, const double *values, dt_error *err);

// dt_events_histogram - how values [n] are spread, over 30 buckets of equal width between the least and the largest (as
// tf.summary.histogram has it). NaN and infinities are not counted; of nothing, all buckets are 0.
DT_API int dt_events_histogram(dt_events *e, long step, const char *tag, const float *values, size_t n, dt_error *err);

// dt_events_text - Markdown, for the tab Text.
DT_API int dt_events_text(dt_events *e, long step, const char *tag, const char *text, dt_error *err);

// dt_events_hparams - the run's row in the tab HParams: values by name, numbers and true or false as such, all else (and nan,
// inf) as words. Once per run, and before it ends: TensorBoard keeps the first row of a folder.
//   session  runs of the same name are one row, with the mean of their metrics; NULL: the folder's name
//   metrics  tags of the scalars [n_metrics] that stand in the row. TensorBoard takes these, and which names have a column,
//            from one run for all in its --logdir. n_metrics 0: all scalars, and the names of all runs
DT_API int dt_events_hparams(dt_events *e, const char *session, int n, const char *const *names, const char *const *values,
    int n_metrics, const char *const *metrics, dt_error *err);

// dt_events_hparams_end - the row's state, success or failure, and its time. The first one stays: none for a run that will
// be resumed.
DT_API int dt_events_hparams_end(dt_events *e, int ok, dt_error *err);

DT_API void dt_events_close(dt_events *e);  // NULL is fine

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // DTRAIN_EVENTS_H

#if defined(DTRAIN_IMPLEMENTED) && !defined(DTRAIN_EVENTS_IMPLEMENTED)
#define DTRAIN_EVENTS_IMPLEMENTED

#if !defined(DTRAIN_NO_STDIO) && DT__POSIX
#define DT__EVENTS_HEAD 12     // of a record: the event's length, and its CRC
#define DT__EVENTS_BUCKETS 30  // DEFAULT_BUCKET_COUNT of summary_v2.py

struct dt_events {
    int fd;
    char *path;
    off_t whole;  // bytes of whole records
    uint8_t *b;  // the record in the making: n bytes of cap
    size_t n, cap;
    int no_memory;
    size_t begin[10];  // of the messages in it that are open, 8 at most
    int depth;
    dt_error error;  // of the first write that failed
};

// ---- protocol buffers: messages of fields 1 to 15

static uint8_t *dt__events_room(dt_events *e, size_t n) {
    if (e->no_memory || n > SIZE_MAX / 4 - e->n) { e->no_memory = 1; return NULL; }
    if (e->n + n > e->cap) {
        size_t cap = DT__MAX(2 * e->cap, e->n + n + 256);
        uint8_t *p = (uint8_t *)realloc(e->b, cap);
        if (!p) { e->no_memory = 1; return NULL; }
        e->b = p; e->cap = cap;
    }
    e->n += n;
    return e->b + e->n - n;
}

static void dt__events_put(dt_events *e, const void *data, size_t n) {
    uint8_t *p = n ? dt__events_room(e, n) : NULL;
    if (p) memcpy(p, data, n);
}

static void dt__events_le(dt_events *e, uint64_t bits, int bytes) {
    uint8_t b[8];
    dt__write_le(b, bits, bytes);
    dt__events_put(e, b, (size_t)bytes);
}

static size_t dt__events_varint(uint8_t *p, uint64_t v) {
    size_t n = 0;
    for (; v > 127; v >>= 7) p[n++] = (uint8_t)(v | 128);
    p[n++] = (uint8_t)v;
    return n;
}

static void dt__events_whole(dt_events *e, int field, uint64_t v) {
    uint8_t b[11];
    b[0] = (uint8_t)(field << 3);
    dt__events_put(e, b, 1 + dt__events_varint(b + 1, v));
}

static void dt__events_double(dt_events *e, int field, double v) {  // field 0: the bytes alone
    uint64_t bits;
    memcpy(&bits, &v, 8);
    if (field) dt__events_le(e, (uint64_t)field << 3 | 1, 1);
    dt__events_le(e, bits, 8);
}

static void dt__events_open(dt_events *e, int field) {
    dt__events_le(e, (uint64_t)field << 3 | 2, 1);
    e->begin[e->depth++] = e->n;
}

static void dt__events_shut(dt_events *e, int messages) {  // opened last: now their length is known, and goes before them
    for (; messages > 0; messages--) {
        uint8_t length[10];
        size_t begin = e->begin[--e->depth], n = e->n - begin, k = dt__events_varint(length, n);
        if (!dt__events_room(e, k)) continue;
        memmove(e->b + begin + k, e->b + begin, n);
        memcpy(e->b + begin, length, k);
    }
}

static void dt__events_words(dt_events *e, int field, const char *text) {
    dt__events_open(e, field);
    dt__events_put(e, text, strlen(text));
    dt__events_shut(e, 1);
}

// ---- records: the length, its CRC, the event, its CRC

static double dt__events_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t dt__events_crc(const void *data, size_t n) {  // masked as record_writer.h has it
    uint32_t crc = dt__crc32c(0, data, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void dt__events_begin(dt_events *e, long step) {  // Event {1: wall time, 2: step
    e->n = 0; e->depth = 0; e->no_memory = 0;
    dt__events_room(e, DT__EVENTS_HEAD);
    dt__events_double(e, 1, dt__events_now());
    dt__events_whole(e, 2, (uint64_t)step);
}

// In one write, unless a signal comes between.
static int dt__events_end(dt_events *e, const char *what, dt_error *err) {
    size_t n = e->n - DT__EVENTS_HEAD, at = 0;
    if (e->no_memory) return dt__fail(err, DT_ERR_MEMORY, "%s: no memory for an event of %zu bytes or more", what, e->n);
    if (n > INT32_MAX) return dt__deny(err, "%s: an event of %zu bytes, and readers take 2147483647: shorten it", what, n);
    dt__events_le(e, dt__events_crc(e->b + DT__EVENTS_HEAD, n), 4);
    if (e->no_memory) return dt__fail(err, DT_ERR_MEMORY, "%s: no memory for an event of %zu bytes", what, n);
    dt__write_le(e->b, n, 8);
    dt__write_le(e->b + 8, dt__events_crc(e->b, 8), 4);
    while (at < e->n) {
        ssize_t k = write(e->fd, e->b + at, e->n - at);
        if (k > 0) at += (size_t)k;
        else if (k == 0 || errno != EINTR) {
            int why = k ? errno : ENOSPC, cut = !ftruncate(e->fd, e->whole);
            dt__fail(&e->error, DT_ERR_IO, "%s: %s: no more events are written, and the last one of \"%s\" is %s", what, strerror(why), e->path,
                    cut ? "whole" : "not, for it cannot be cut off");
            return dt__pass(err, &e->error);
        }
    }
    e->whole += (off_t)e->n;
    return 0;
}

// ---- arguments

// n texts, that is: least 1 where nothing is no name. A reader refuses an event whole for one byte that is no UTF-8.
static int dt__events_check_text(const char *what, const char *name, int n, const char *const *texts, size_t least, dt_error *err) {
    int i, k;
    if (n > 0 && !texts) return dt__deny(err, "%s: the %s is NULL", what, name);
    for (i = 0; i < n; i++) {
        const char *s = texts[i];
        size_t length = s ? strlen(s) : 0, at;
        if (!s || length < least) return dt__deny(err, "%s: %s %d of %d is %s: give it one", what, name, i + 1, n, s ? "empty" : "NULL");
        for (at = 0; at < length; at += (size_t)k) {
            k = dt__utf8((const uint8_t *)s + at, 4);  // the final zero continues nothing
            if (!k) return dt__deny(err, "%s: %s %d of %d is no UTF-8, byte %zu is 0x%02x: convert it", what, name, i + 1, n, at, (unsigned)(uint8_t)s[at]);
        }
    }
    return 0;
}

static int dt__events_check(const dt_events *e, const char *what, long step, int n, const char *const *tags, dt_error *err) {
    if (!e) return dt__deny(err, "%s: the dt_events is NULL", what);
    if (e->error.code) return dt__pass(err, &e->error);
    if (step < 0) return dt__deny(err, "%s: the step is %ld: 0 is the first", what, step);
    return dt__events_check_text(what, "tag", n, tags, 1, err);
}

// ---- what events hold

DT_API int dt_events_scalars(dt_events *e, long step, int n, const char *const *tags, const double *values, dt_error *err) {
    int i, points = 0, code = dt__events_check(e, "dt_events_scalars", step, n, tags, err);
    if (!code && n > 0 && !values) code = dt__is_null(err, "values");
    if (code) return code;
    dt__events_begin(e, step);
    dt__events_open(e, 5);  // summary {1: value {1: tag, 2: float}, …
    for (i = 0; i < n; i++) {
        double v = values[i];
        if (v != v) continue;
        points++;
        dt__events_open(e, 1);
        dt__events_words(e, 1, tags[i]);
        dt__events_le(e, 2 << 3 | 5, 1);
        dt__events_le(e, dt__float_bits(v > (double)FLT_MAX ? (float)INFINITY : v < -(double)FLT_MAX ? -(float)INFINITY : (float)v), 4);
        dt__events_shut(e, 1);
    }
    dt__events_shut(e, 1);
    return points ? dt__events_end(e, "dt_events_scalars", err) : 0;
}

// Event {5: summary {1: value {1: tag, 9: metadata {1: {1: plugin, 2: its content}, 4: DATA_CLASS_TENSOR}, 8: tensor
static void dt__events_plugin(dt_events *e, const char *tag, const char *plugin) {
    dt__events_open(e, 1);
    dt__events_words(e, 1, tag);
    dt__events_open(e, 9);
    dt__events_open(e, 1);
    dt__events_words(e, 1, plugin);
}

static void dt__events_tensor(dt_events *e, const char *type_and_shape, size_t n) {  // {1: type, 2: {2: {1: size}, …}}
    dt__events_shut(e, 1);
    dt__events_whole(e, 4, 2);
    dt__events_shut(e, 1);
    dt__events_open(e, 8);
    dt__events_put(e, type_and_shape, n);
}

DT_API int dt_events_histogram(dt_events *e, long step, const char *tag, const float *values, size_t n, dt_error *err) {
    static const char shape[] = {1 << 3, 2, 2 << 3 | 2, 8, 2 << 3 | 2, 2, 1 << 3, DT__EVENTS_BUCKETS, 2 << 3 | 2, 2, 1 << 3, 3};  // DT_DOUBLE [30, 3]
    double count[DT__EVENTS_BUCKETS] = {0}, low = INFINITY, high = -INFINITY, width;
    size_t i;
    int k, code = dt__events_check(e, "dt_events_histogram", step, 1, &tag, err);
    if (!code && n && !values) code = dt__is_null(err, "values");
    if (code) return code;
    for (i = 0; i < n; i++) {
        double v = (double)values[i];
        if (v - v != 0) continue;
        if (v < low) low = v;
        if (v > high) high = v;
    }
    if (low > high) low = high = 0;
    width = (high - low) / DT__EVENTS_BUCKETS;
    for (i = 0; i < n; i++) {
        double v = (double)values[i];
        if (v - v != 0) continue;
        k = width > 0 ? (int)((v - low) / width) : DT__EVENTS_BUCKETS;
        count[DT__MIN(k, DT__EVENTS_BUCKETS - 1)]++;
    }
    dt__events_begin(e, step);
    dt__events_open(e, 5);
    dt__events_plugin(e, tag, "histograms");
    dt__events_tensor(e, shape, sizeof shape);
    dt__events_open(e, 4);
    for (k = 0; k < DT__EVENTS_BUCKETS; k++) {  // left edge, right edge, count
        dt__events_double(e, 0, low + k * width);
        dt__events_double(e, 0, k + 1 < DT__EVENTS_BUCKETS ? low + (k + 1) * width : high);
        dt__events_double(e, 0, count[k]);
    }
    dt__events_shut(e, 4);
    return dt__events_end(e, "dt_events_histogram", err);
}

DT_API int dt_events_text(dt_events *e, long step, const char *tag, const char *text, dt_error *err) {
    int code = dt__events_check(e, "dt_events_text", step, 1, &tag, err);
    if (!code) code = dt__events_check_text("dt_events_text", "text", 1, &text, 0, err);
    if (code) return code;
    dt__events_begin(e, step);
    dt__events_open(e, 5);
    dt__events_plugin(e, tag, "text");
    dt__events_tensor(e, "\x08\x07\x12\x00", 4);  // DT_STRING []
    dt__events_words(e, 8, text);
    dt__events_shut(e, 3);
    return dt__events_end(e, "dt_events_text", err);
}

static int dt__events_type(const char *text, double *v) {  // DataType: 1 string, 2 bool, 3 number
    const char *end;
    if (!strcmp(text, "true") || !strcmp(text, "false")) { *v = *text == 't'; return 2; }
    *v = dt__parse_double(text, text + strlen(text), &end);
    return *text && !*end && *v - *v == 0 ? 3 : 1;  // JSON, in which TensorBoard passes it on, has no infinity
}

// A value of the plugin hparams: its data, {1: version 0, field: message}, stands in the metadata; the tensor is empty.
static void dt__events_open_hparams(dt_events *e, const char *tag, int field) {
    dt__events_plugin(e, tag, "hparams");
    dt__events_open(e, 2);
    dt__events_open(e, field);
}

static void dt__events_shut_hparams(dt_events *e) {
    dt__events_shut(e, 2);
    dt__events_tensor(e, "\x08\x01\x12\x02\x12\x00", 6);  // DT_FLOAT [0]
    dt__events_shut(e, 2);
}

DT_API int dt_events_hparams(dt_events *e, const char *session, int n, const char *const *names, const char *const *values,
    int n_metrics, const char *const *metrics, dt_error *err) {
    static const char what[] = "dt_events_hparams";
    double v;
    int i, type, code = dt__events_check(e, what, 0, 0, NULL, err);
    if (!code) code = dt__events_check_text(what, "session", session != NULL, &session, 0, err);
    if (!code) code = dt__events_check_text(what, "name", n, names, 1, err);
    if (!code) code = dt__events_check_text(what, "value", n, values, 0, err);
    if (!code) code = dt__events_check_text(what, "metric", n_metrics, metrics, 1, err);
    if (code) return code;
    dt__events_begin(e, 0);
    dt__events_open(e, 5);
    if (n_metrics > 0) {
        dt__events_open_hparams(e, "_hparams_/experiment", 2);
        dt__events_double(e, 3, dt__events_now());
        for (i = 0; i < n; i++) {  // 4: HParamInfo {1: name, 4: type}
            dt__events_open(e, 4);
            dt__events_words(e, 1, names[i]);
            dt__events_whole(e, 4, (uint64_t)dt__events_type(values[i], &v));
            dt__events_shut(e, 1);
        }
        for (i = 0; i < n_metrics; i++) {  // 5: MetricInfo {1: MetricName {2: tag}}
            dt__events_open(e, 5);
            dt__events_open(e, 1);
            dt__events_words(e, 2, metrics[i]);
            dt__events_shut(e, 2);
        }
        dt__events_shut_hparams(e);
    }
    dt__events_open_hparams(e, "_hparams_/session_start_info", 3);
    for (i = 0; i < n; i++) {  // 1: {1: name, 2: Value {2: number, or 3: string, or 4: bool}}
        dt__events_open(e, 1);
        dt__events_words(e, 1, names[i]);
        dt__events_open(e, 2);
        type = dt__events_type(values[i], &v);
        if (type == 3) dt__events_double(e, 2, v);
        else if (type == 2) dt__events_whole(e, 4, v > 0);
        else dt__events_words(e, 3, values[i]);
        dt__events_shut(e, 2);
    }
    dt__events_words(e, 4, session ? session : "");
    dt__events_double(e, 5, dt__events_now());
    dt__events_shut_hparams(e);
    dt__events_shut(e, 1);
    return dt__events_end(e, what, err);
}

DT_API int dt_events_hparams_end(dt_events *e, int ok, dt_error *err) {
    int code = dt__events_check(e, "dt_events_hparams_end", 0, 0, NULL, err);
    if (code) return code;
    dt__events_begin(e, 0);
    dt__events_open(e, 5);
    dt__events_open_hparams(e, "_hparams_/session_end_info", 4);
    dt__events_whole(e, 1, ok ? 1 : 2);  // STATUS_SUCCESS, STATUS_FAILURE
    dt__events_double(e, 2, dt__events_now());
    dt__events_shut_hparams(e);
    dt__events_shut(e, 1);
    return dt__events_end(e, "dt_events_hparams_end", err);
}

// ---- the file

// A number for its name: the time, or one more than the latest there has.
static uint64_t dt__events_next(const char *folder) {
    static const char prefix[] = "events.out.tfevents.";
    uint64_t next = (uint64_t)dt__events_now();
    struct dirent *entry;
    DIR *d = opendir(folder);
    while (d && (entry = readdir(d)) != NULL) {
        char digits[11] = "";
        uint64_t there;
        int ok;
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1)) continue;
        memcpy(digits, entry->d_name + sizeof prefix - 1, DT__MIN(10, strlen(entry->d_name + sizeof prefix - 1)));
        there = dt__whole(digits, UINT64_C(9999999998), &ok);
        if (ok && there >= next) next = there + 1;
    }
    if (d) closedir(d);
    return next;
}

DT_API dt_events *dt_events_open(const char *folder, long resumed, dt_error *err) {
    static const char what[] = "dt_events_open";
    char host[64] = "host", *p;
    size_t n = folder ? strlen(folder) : 0, size = n + 160;
    uint64_t number;
    dt_events *e;
    int made = 0, code;
    if (!folder || !*folder) { dt__deny(err, "%s: the folder is %s: name one", what, folder ? "empty" : "NULL"); return NULL; }
    e = n > PTRDIFF_MAX / 2 ? NULL : (dt_events *)calloc(1, sizeof *e);
    if (e) e->path = (char *)malloc(size);
    if (!e || !e->path) {
        free(e);
        dt__fail(err, DT_ERR_MEMORY, "%s: no memory for the path of %zu bytes", what, n);
        return NULL;
    }
    for (memcpy(e->path, folder, n + 1), p = e->path + 1; p <= e->path + n; p++) {
        char c = *p;
        if (c && c != '/') continue;
        *p = 0;
        made = !mkdir(e->path, 0777) || errno == EEXIST ? 0 : made ? made : errno;
        *p = c;
    }
    gethostname(host, sizeof host - 1);
    for (p = host; *p; p++) if (*p == '/') *p = '_';
    number = dt__events_next(folder);
    do {
        dt__format(e->path + n, size - n, "/events.out.tfevents.%010ju.%s.%ld", (uintmax_t)number++, host, (long)getpid());
        e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (e->fd < 0 && errno == EEXIST);
    if (e->fd < 0) {
        int why = made && errno == ENOENT ? made : errno;  // what kept the folder from being made
        dt__fail(err, DT_ERR_IO, "%s: %s: cannot create \"%s\"; name a folder that can be written", what, strerror(why), e->path);
        dt_events_close(e);
        return NULL;
    }
    dt__events_begin(e, 0);
    dt__events_words(e, 3, "brain.Event:2");
    code = dt__events_end(e, what, err);
    if (!code) {  // 7: SessionLog {1: START}, for new runs too: TensorBoard takes only the second one of a folder for a restart
        dt__events_begin(e, resumed < 0 ? 0 : resumed < LONG_MAX ? resumed + 1 : resumed);
        dt__events_open(e, 7);
        dt__events_whole(e, 1, 1);
        dt__events_shut(e, 1);
        code = dt__events_end(e, what, err);
    }
    if (!code) return e;
    unlink(e->path);
    dt_events_close(e);
    return NULL;
}

DT_API void dt_events_close(dt_events *e) {
    if (!e) return;
    if (e->fd >= 0) close(e->fd);
    free(e->path);
    free(e->b);
    free(e);
}

#else
#define DT__EVENTS_OFF(name, parameters, unused) \
    DT_API int name parameters { unused; return dt__fail(err, DT_ERR_DISABLED, #name ": needs files and POSIX: build without DTRAIN_NO_STDIO and DTRAIN_NO_MALLOC"); }
DT__EVENTS_OFF(dt_events_scalars, (dt_events *e, long step, int n, const char *const *tags, const double *values, dt_error *err), ((void)e, (void)step, (void)n, (void)tags, (void)values))
DT__EVENTS_OFF(dt_events_histogram, (dt_events *e, long step, const char *tag, const float *values, size_t n, dt_error *err), ((void)e, (void)step, (void)tag, (void)values, (void)n))
DT__EVENTS_OFF(dt_events_text, (dt_events *e, long step, const char *tag, const char *text, dt_error *err), ((void)e, (void)step, (void)tag, (void)text))
DT__EVENTS_OFF(dt_events_hparams, (dt_events *e, const char *session, int n, const char *const *names, const char *const *values, int n_metrics, const char *const *metrics, dt_error *err),
    ((void)e, (void)session, (void)n, (void)names, (void)values, (void)n_metrics, (void)metrics))
DT__EVENTS_OFF(dt_events_hparams_end, (dt_events *e, int ok, dt_error *err), ((void)e, (void)ok))
#undef DT__EVENTS_OFF
DT_API dt_events *dt_events_open(const char *folder, long resumed, dt_error *err) { (void)folder; (void)resumed; dt__fail(err, DT_ERR_DISABLED, "dt_events_open: needs files and POSIX: build without DTRAIN_NO_STDIO and DTRAIN_NO_MALLOC"); return NULL; }
DT_API void dt_events_close(dt_events *e) { (void)e; }
#endif
#endif  // DTRAIN_EVENTS_IMPLEMENTED
