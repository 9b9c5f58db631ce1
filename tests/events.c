/* events.c - TensorBoard's event files: every record is read back by a small reader of its own, which shares nothing with events.h.
 *
 * events FOLDER writes runs there for events.py, which reads them with TensorBoard's own code; it stops twice, and goes on
 * after a line on its input.
 */
#include <stdlib.h>
static long allocations, allocation_fails = -1;  /* the one that fails, from 0 */
static int refuse(void) { return __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED) == allocation_fails; }  /* threads do so too */
static void *test_malloc(size_t n) { return refuse() ? NULL : malloc(n); }
static void *test_calloc(size_t n, size_t size) { return refuse() ? NULL : calloc(n, size); }
static void *test_realloc(void *p, size_t n) { return refuse() ? NULL : realloc(p, n); }
#define malloc test_malloc
#define calloc test_calloc
#define realloc test_realloc
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
static long writes, pieces, interrupted;  /* calls of write; of so many bytes at most, if not 0; every second one is interrupted */
static ssize_t test_write(int fd, const void *p, size_t n) {
    long nth = __atomic_add_fetch(&writes, 1, __ATOMIC_RELAXED);
    if (interrupted && nth % 2) { errno = EINTR; return -1; }
    return write(fd, p, pieces && n > (size_t)pieces ? (size_t)pieces : n);
}
static int blind;  /* no folder shows what it holds, as if another process made its file at the same time */
static DIR *test_opendir(const char *path) { return blind ? NULL : opendir(path); }
#define write(fd, p, n) test_write(fd, p, n)
#define opendir(path) test_opendir(path)
#include "../examples/events.h"
#undef write
#undef opendir
#undef malloc
#undef calloc
#undef realloc
#include "test.h"
#include "scratch.h"

#include <locale.h>
#include <sys/resource.h>

/* ---- a reader ------------------------------------------------------------------------------------ */

typedef struct { const unsigned char *p; size_t n; } bytes;  /* p NULL: not there */

static unsigned crc_of(const unsigned char *p, size_t n) {  /* bit by bit, by the polynomial; masked */
    unsigned crc = 0xffffffffu;
    for (; n; n--) {
        crc ^= *p++;
        for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    crc = ~crc;
    return (crc << 17 | crc >> 15) + 0xa282ead8u;
}

static unsigned long long little(const unsigned char *p, int n) {
    unsigned long long v = 0;
    for (int k = 0; k < n; k++) v |= (unsigned long long)p[k] << (8 * k);
    return v;
}

/* event number i of a file; *events: how many whole ones it has, or -1 if anything is wrong with it */
static bytes event_at(bytes file, int i, int *events) {
    bytes found = { NULL, 0 };
    size_t at = 0;
    for (*events = 0; at < file.n; ++*events) {
        size_t left = file.n - at, n;
        if (left < 16) { *events = -1; break; }
        n = (size_t)little(file.p + at, 8);
        if (n > left - 16 || crc_of(file.p + at, 8) != little(file.p + at + 8, 4) || crc_of(file.p + at + 12, n) != little(file.p + at + 12 + n, 4)) { *events = -1; break; }
        if (*events == i) { found.p = file.p + at + 12; found.n = n; }
        at += n + 16;
    }
    return found;
}

static unsigned long long varint(bytes *m) {
    unsigned long long v = 0;
    int shift = 0;
    while (m->n) {
        unsigned char b = *m->p++;
        m->n--;
        v |= (unsigned long long)(b & 127) << shift;
        shift += 7;
        if (b < 128) return v;
        if (shift > 63) break;
    }
    m->p = NULL;  /* cut */
    return 0;
}

/* the which-th field of that number in a message: *v where it is a number; its bytes where it is not */
static bytes field_at(bytes m, int field, int which, unsigned long long *v) {
    bytes none = { NULL, 0 };
    *v = 0;
    while (m.p && m.n) {
        unsigned long long key = varint(&m), value = 0;
        bytes part = { m.p, 0 };
        if (!m.p) break;
        if (key % 8 == 0) value = varint(&m);
        else {
            part.n = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : key % 8 == 2 ? (size_t)varint(&m) : (size_t)-1;
            part.p = m.p;
            if (!m.p || part.n > m.n) break;
            if (key % 8 != 2) value = little(m.p, (int)part.n);
            m.p += part.n, m.n -= part.n;
        }
        if ((int)(key / 8) == field && which-- == 0) { *v = value; return part; }
    }
    return none;
}

/* by a path: "5.1.1" is the tag of an event's first value, "5.1#2.1" of its third */
static bytes inside(bytes m, const char *path, unsigned long long *v) {
    unsigned long long any;
    while (m.p && *path) {
        int field = (int)strtol(path, (char **)&path, 10), which = *path == '#' ? (int)strtol(path + 1, (char **)&path, 10) : 0;
        m = field_at(m, field, which, v ? v : &any);
        if (*path == '.') path++;
    }
    return m;
}

static int there(bytes m, const char *path) { return inside(m, path, NULL).p != NULL; }
static long long whole(bytes m, const char *path) { unsigned long long v = 0; return inside(m, path, &v).p ? (long long)v : -1; }
static double f64_at(const unsigned char *p) { unsigned long long bits = little(p, 8); double v; memcpy(&v, &bits, 8); return v; }
static double real(bytes m, const char *path) {
    bytes b = inside(m, path, NULL);
    unsigned bits;
    float v;
    if (b.p && b.n == 8) return f64_at(b.p);
    if (!b.p || b.n != 4) return NAN;
    bits = (unsigned)little(b.p, 4);
    memcpy(&v, &bits, 4);
    return (double)v;
}
static int says(bytes m, const char *path, const char *text) {
    bytes b = inside(m, path, NULL);
    return b.p && b.n == strlen(text) && !memcmp(b.p, text, b.n);
}

/* ---- files -------------------------------------------------------------------------------------- */

static char at_once[512];
static char names[16][256];  /* of the event files in a folder, in the alphabet's order */
static int by_name(const void *a, const void *b) { return strcmp((const char *)a, (const char *)b); }

static int list(const char *folder) {
    DIR *d = opendir(folder);
    struct dirent *e;
    int n = 0;
    while (d && n < COUNT(names) && (e = readdir(d))) if (*e->d_name != '.') snprintf(names[n++], sizeof names[0], "%s", e->d_name);
    if (d) closedir(d);
    qsort(names, (size_t)n, sizeof names[0], by_name);
    return n;
}

static unsigned char *held;
static bytes read_file(const char *folder, int i) {  /* until the next one is read */
    char path[1024];
    bytes b;
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    free(held);
    held = get(path, &b.n);
    b.p = held;
    return b;
}

static bytes event_in(const char *folder, int file, int i) {
    int n = list(folder), events;
    bytes b = { NULL, 0 }, e;
    if (file >= n) return b;
    b = read_file(folder, file);
    e = event_at(b, i, &events);
    CHECK_MSG(events >= 0, "%s/%s is damaged", folder, names[file]);
    return e;
}

static int events_in(const char *folder, int file) {
    int events;
    event_at(list(folder) > file ? read_file(folder, file) : (bytes){ NULL, 0 }, 0, &events);
    return events;
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void test_reader(void) {
    unsigned char cut[128];
    int events;
    CHECK(crc_of((const unsigned char *)"123456789", 9) == (unsigned)((0xe3069283u << 17 | 0xe3069283u >> 15) + 0xa282ead8u));  /* RFC 3720's */
    dt_error err = DT_DEFAULTS;
    dt_events_close(dt_events_open(at("reader"), -1, &err));
    CHECK_OK(err);
    CHECK(list(at("reader")) == 1);
    bytes b = read_file(at("reader"), 0);
    CHECK(b.n > 50 && b.n < sizeof cut && event_at(b, 0, &events).p && events == 2);
    size_t second = (size_t)(event_at(b, 1, &events).p - b.p) - 12;
    for (size_t i = 0; i < b.n && b.n < sizeof cut; i++) {  /* it sees one damaged bit, and a cut */
        memcpy(cut, b.p, b.n);
        cut[i] ^= 4;
        event_at((bytes){ cut, b.n }, 0, &events);
        CHECK(events == -1);
        event_at((bytes){ b.p, i }, 0, &events);
        CHECK(events == (i == 0 ? 0 : i == second ? 1 : -1));
    }
}

static void test_open(void) {
    dt_error err = DT_DEFAULTS;
    char host[256] = "";
    struct stat s;
    double before = (double)time(NULL);
    dt_events *e = dt_events_open(at("open/with//parents/"), -1, &err);
    CHECK_OK(err);
    CHECK(e && list(at("open/with/parents")) == 1);
    dt_events_close(e);
    dt_events_close(NULL);
    CHECK(!strncmp(names[0], "events.out.tfevents.", 20) && fabs(strtod(names[0] + 20, NULL) - before) < 60 && names[0][30] == '.');
    gethostname(host, sizeof host - 1);
    CHECK(strstr(names[0] + 30, host));
    CHECK(strtol(strrchr(names[0], '.') + 1, NULL, 10) == (long)getpid());
    CHECK(events_in(at("open/with/parents"), 0) == 2);
    bytes first = event_in(at("open/with/parents"), 0, 0);
    CHECK(says(first, "3", "brain.Event:2") && whole(first, "2") == 0 && fabs(real(first, "1") - before) < 60);
    bytes start = event_in(at("open/with/parents"), 0, 1);
    CHECK(whole(start, "7.1") == 1 && whole(start, "2") == 0);
    CHECK(!stat(at("open/with/parents"), &s) && S_ISDIR(s.st_mode));
}

static void test_scalars(void) {
    static const char *const tags[] = { "loss/train", "none", "endless", "too large", "tiny", "last" };
    const double values[] = { 0.1, NAN, -INFINITY, 1e300, 1e-300, -2.5 };
    const char *folder = at("scalars");
    dt_error err = DT_DEFAULTS;
    dt_events *e = dt_events_open(folder, -1, &err);
    bytes v;
    CHECK(!dt_events_scalars(e, 7, 6, tags, values, &err));
    CHECK(!dt_events_scalars(e, LONG_MAX, 1, tags, values, &err));
    CHECK(!dt_events_scalars(e, 8, 1, tags + 1, values + 1, &err));  /* NaN alone: no event */
    CHECK(!dt_events_scalars(e, 9, 0, NULL, NULL, &err));
    CHECK(!dt_events_scalars(e, 0, 1, tags + 5, values + 5, NULL));
    dt_events_close(e);
    CHECK_OK(err);
    CHECK(events_in(folder, 0) == 5);
    v = event_in(folder, 0, 2);
    CHECK(whole(v, "2") == 7 && fabs(real(v, "1") - (double)time(NULL)) < 60);
    CHECK(says(v, "5.1.1", "loss/train") && real(v, "5.1.2") == (double)0.1f);
    CHECK(says(v, "5.1#1.1", "endless") && real(v, "5.1#1.2") == (double)-INFINITY);
    CHECK(says(v, "5.1#2.1", "too large") && real(v, "5.1#2.2") == (double)INFINITY);
    CHECK(says(v, "5.1#3.1", "tiny") && real(v, "5.1#3.2") == 0);
    CHECK(says(v, "5.1#4.1", "last") && real(v, "5.1#4.2") == -2.5);
    CHECK(!there(v, "5.1#5"));
    CHECK(whole(event_in(folder, 0, 3), "2") == (long long)LONG_MAX);
    v = event_in(folder, 0, 4);
    CHECK(whole(v, "2") == 0 && says(v, "5.1.1", "last"));
}

static void test_histogram(void) {
    static float many[3000];
    static const float huge[] = { -FLT_MAX, FLT_MAX, 0, 1, -1 }, tiny[] = { 1e-45f, 0, -1e-45f, 3e-45f }, near_[] = { 16777215, 16777216 }, edge_[] = { -0.1f, 13 / 7.0f };
    const float broken[] = { NAN, 1, INFINITY, 2, -INFINITY, 4 }, none[] = { NAN, INFINITY };
    static const float one[] = { -3.5f };
    for (int i = 0; i < COUNT(many); i++) many[i] = (float)dt__normal(dt__random(1, 2, (uint64_t)i));
    const struct { const char *name; const float *v; size_t n; double low, high, counted; } row[] = {
        { "normal", many, COUNT(many), 0, 0, COUNT(many) },  { "huge", huge, 5, -(double)FLT_MAX, (double)FLT_MAX, 5 },
        { "tiny", tiny, 4, (double)-1e-45f, (double)3e-45f, 4 },  { "two", near_, 2, 16777215, 16777216, 2 },  { "rounded edges", edge_, 2, (double)-0.1f, (double)(13 / 7.0f), 2 },  { "broken", broken, 6, 1, 4, 3 },
        { "none finite", none, 2, 0, 0, 0 },  { "empty", NULL, 0, 0, 0, 0 },  { "one", one, 1, -3.5, -3.5, 1 },
    };
    const char *folder = at("histogram");
    dt_error err = DT_DEFAULTS;
    dt_events *e = dt_events_open(folder, -1, &err);
    for (int i = 0; i < COUNT(row); i++) CHECK(!dt_events_histogram(e, i, row[i].name, row[i].v, row[i].n, &err));
    dt_events_close(e);
    CHECK_OK(err);
    for (int i = 0; i < COUNT(row); i++) {
        bytes event = event_in(folder, 0, i + 2), v = inside(event, "5.1", NULL), content = inside(v, "8.4", NULL);
        double sum = 0, low = row[i].low, high = row[i].high;
        CHECK(whole(event, "2") == i && says(v, "1", row[i].name) && says(v, "9.1.1", "histograms") && whole(v, "9.4") == 2);
        CHECK(whole(v, "8.1") == 2 && whole(v, "8.2.2.1") == 30 && whole(v, "8.2.2#1.1") == 3 && !there(v, "8.2.2#2"));
        CHECK(content.p && content.n == 30 * 3 * 8);
        if (!content.p || content.n != 720) continue;
        if (i == 0) for (int k = 0; k < COUNT(many); k++) { low = fmin(low, (double)many[k]); high = fmax(high, (double)many[k]); }
        CHECK_MSG(f64_at(content.p) == low && f64_at(content.p + 720 - 16) == high, "%s: %g to %g", row[i].name, f64_at(content.p), f64_at(content.p + 720 - 16));
        for (int k = 0; k < 30; k++) {
            const unsigned char *p = content.p + 24 * k;
            double left = f64_at(p), right = f64_at(p + 8), count = f64_at(p + 16), in = 0, edge = (high - low) * 1e-9;
            CHECK(left <= right && (k == 0 || left == f64_at(p - 16)) && (low == high || left < right));
            sum += count;
            for (size_t j = 0; j < row[i].n; j++) {
                double x = (double)row[i].v[j];
                in += isfinite(x) && x >= left + (k ? edge : 0) && (k == 29 ? x <= right : x < right - edge);
            }
            if (low < high) CHECK_MSG(count >= in && (i || count <= in + 1), "%s, bucket %d: %g, %g found", row[i].name, k, count, in);
        }
        CHECK_MSG(sum == row[i].counted, "%s: %g counted", row[i].name, sum);
    }
    bytes v = inside(event_in(folder, 0, 10), "5.1.8.4", NULL);  /* one value: in the last bucket, as TensorFlow has it */
    CHECK(v.n == 720 && f64_at(v.p + 712) == 1);
}

static void test_text(void) {
    static const char emoji[] = "| a | b |\n|---|---|\n| \xc3\xa4 | \xf0\x9f\x8c\xb1 |\n\1\t<b>&\"'";
    const char *folder = at("text");
    size_t n = 300000;
    char *text = (char *)malloc(n + 1), *tag = (char *)malloc(n + 1);
    dt_error err = DT_DEFAULTS;
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + i % 26), tag[i] = (char)('A' + i % 26);
    text[n] = tag[n] = 0;
    dt_events *e = dt_events_open(folder, -1, &err);
    CHECK(!dt_events_text(e, 1, "notes", text, &err) && !dt_events_text(e, 2, tag, emoji, &err) && !dt_events_text(e, 3, "notes", "", &err));
    CHECK(!dt_events_scalars(e, 4, 1, (const char *const *)&tag, (const double[]){ 1 }, &err));
    dt_events_close(e);
    CHECK_OK(err);
    CHECK(events_in(folder, 0) == 6);
    bytes v = inside(event_in(folder, 0, 2), "5.1", NULL);
    CHECK(says(v, "1", "notes") && says(v, "9.1.1", "text") && whole(v, "9.4") == 2 && whole(v, "8.1") == 7 && inside(v, "8.2", NULL).n == 0 && says(v, "8.8", text));
    v = inside(event_in(folder, 0, 3), "5.1", NULL);
    CHECK(says(v, "1", tag) && says(v, "8.8", emoji));
    v = inside(event_in(folder, 0, 4), "5.1", NULL);
    CHECK(says(v, "8.8", ""));
    v = inside(event_in(folder, 0, 5), "5.1", NULL);
    CHECK(says(v, "1", tag) && real(v, "2") == 1);
    for (n = 0; n < 300; n += n < 60 || n > 130 ? 13 : 1) {  /* lengths around those where a length takes a byte more */
        text[n] = 0;
        e = dt_events_open(at("lengths"), -1, &err);
        CHECK(!dt_events_text(e, 0, "t", text, &err));
        dt_events_close(e);
        CHECK(list(at("lengths")) == 1 && says(event_in(at("lengths"), 0, 2), "5.1.8.8", text));
        text[n] = 'x';
        remove_tree(at("lengths"));
    }
    free(text), free(tag);
}

static void test_hparams(void) {
    static const char *const name[] = { "rate", "batch", "optimizer", "shuffle", "decay", "empty", "no number", "not one", "\xc3\xa4", "beyond", "off" };
    static const char *const value[] = { "1e-3", "128", "adam", "true", "-.5", "", "nan", "12x", "True", "1e999", "false" };
    static const char *const metric[] = { "loss/eval", "accuracy/eval" };
    static const int type[] = { 3, 3, 1, 2, 3, 1, 1, 1, 1, 1, 2 };
    static const double number[] = { 1e-3, 128, 0, 1, -.5, 0, 0, 0, 0, 0, 0 };
    const char *folder = at("hparams");
    dt_error err = DT_DEFAULTS;
    dt_events *e = dt_events_open(folder, -1, &err);
    CHECK(!dt_events_hparams(e, "a", COUNT(name), name, value, 2, metric, &err) && !dt_events_hparams(e, NULL, 1, name, value, 0, NULL, &err));
    CHECK(!dt_events_hparams_end(e, 1, &err) && !dt_events_hparams_end(e, 0, &err));
    dt_events_close(e);
    CHECK_OK(err);
    CHECK(events_in(folder, 0) == 6);
    bytes event = event_in(folder, 0, 2), v = inside(event, "5.1", NULL), x = inside(v, "9.1.2.2", NULL), s;
    CHECK(whole(event, "2") == 0 && says(v, "1", "_hparams_/experiment") && says(v, "9.1.1", "hparams") && whole(v, "9.4") == 2);
    CHECK(whole(v, "8.1") == 1 && there(v, "8.2.2") && inside(v, "8.2.2", NULL).n == 0);
    CHECK(fabs(real(x, "3") - (double)time(NULL)) < 60 && says(x, "5.1.2", metric[0]) && says(x, "5#1.1.2", metric[1]) && !there(x, "5#2"));
    v = inside(event, "5.1#1", NULL), s = inside(v, "9.1.2.3", NULL);
    CHECK(says(v, "1", "_hparams_/session_start_info") && says(s, "4", "a") && fabs(real(s, "5") - (double)time(NULL)) < 60);
    for (int i = 0; i < COUNT(name); i++) {
        char path[32];
        snprintf(path, sizeof path, "4#%d", i);
        bytes info = inside(x, path, NULL);
        CHECK_MSG(says(info, "1", name[i]) && whole(info, "4") == type[i], "%s", name[i]);
        snprintf(path, sizeof path, "1#%d", i);
        info = inside(s, path, NULL);
        CHECK_MSG(says(info, "1", name[i]) && there(info, "2.2") == (type[i] == 3) && there(info, "2.3") == (type[i] == 1) && there(info, "2.4") == (type[i] == 2), "%s", name[i]);
        if (type[i] == 3) CHECK(real(info, "2.2") == number[i]);
        if (type[i] == 2) CHECK(whole(info, "2.4") == (long long)number[i]);
        if (type[i] == 1) CHECK(says(info, "2.3", value[i]));
    }
    CHECK(!there(x, "4#11") && !there(s, "1#11"));
    event = event_in(folder, 0, 3);
    CHECK(says(event, "5.1.1", "_hparams_/session_start_info") && !there(event, "5.1#1") && says(event, "5.1.9.1.2.3.4", ""));
    CHECK(whole(event_in(folder, 0, 4), "5.1.9.1.2.4.1") == 1 && whole(event_in(folder, 0, 5), "5.1.9.1.2.4.1") == 2);
    CHECK(fabs(real(event_in(folder, 0, 5), "5.1.9.1.2.4.2") - (double)time(NULL)) < 60);
}

/* A file opened later is later in the alphabet, and no two are one: in a second and process, and from another process. */
static void test_names(void) {
    const char *folder = at("names");
    dt_error err = DT_DEFAULTS;
    dt_events *open_[4];
    char last[256] = "", path[600];
    int status = -1;
    for (int i = 0; i < 4; i++) {
        open_[i] = dt_events_open(folder, i - 1, &err);
        CHECK(list(folder) == i + 1 && strcmp(names[i], last) > 0);
        snprintf(last, sizeof last, "%s", names[i]);
    }
    for (int i = 0; i < 4; i++) CHECK(!dt_events_text(open_[i], i, "who", (const char *[]){ "0", "1", "2", "3" }[i], &err));
    fflush(stdout);
    if (fork() == 0) {
        dt_events *e = dt_events_open(folder, -1, NULL);
        _exit(!e || dt_events_text(e, 4, "who", "4", NULL));
    }
    wait(&status);
    CHECK(status == 0 && list(folder) == 5 && strcmp(names[4], last) > 0);
    for (int i = 0; i < 4; i++) dt_events_close(open_[i]);
    for (int i = 0; i < 5; i++) {  /* and each has its own event */
        CHECK(events_in(folder, i) == 3 && whole(event_in(folder, i, 2), "2") == i);
        CHECK(whole(event_in(folder, i, 1), "2") == i % 4 && whole(event_in(folder, i, 1), "7.1") == 1);
    }
    remove_tree(folder);
    blind = 1;  /* one name for two is tried, and refused */
    for (int i = 0; i < 4; i++) dt_events_close(dt_events_open(folder, -1, &err));
    blind = 0;
    CHECK(list(folder) == 4);
    for (int i = 0; i < 4; i++) CHECK(events_in(folder, i) == 2);
    /* behind a clock that was wrong; but no name decides that is none of ours, or has no number behind it */
    remove_tree(folder);
    mkdir(folder, 0777);
    put("names/events.out.tfevents.4000000000.a.1", "", 0);
    put("names/events.out.tfevents.5000000000", "", 0), put("names/other.tfevents.6000000000", "", 0), put("names/events.out.tfevents.70000000x0.a", "", 0);
    put("names/events.out.tfevents.", "", 0), put("names/events.out.tfevents.9999999999.a.1", "", 0);
    dt_events_close(dt_events_open(folder, -1, &err));
    CHECK_OK(err);
    snprintf(path, sizeof path, "events.out.tfevents.5000000001.");
    int found = 0;
    for (int i = list(folder); i-- > 0;) found += !strncmp(names[i], path, strlen(path));
    CHECK(found == 1);
}

#ifndef DTRAIN_NO_THREADS
static void *open_one(void *number) {
    dt_events *e = dt_events_open(at_once, -1, NULL);
    if (e) dt_events_text(e, *(long *)number, "who", "me", NULL);
    return e;
}

/* the names are chosen at the same time, and still are no two the same */
static void test_threads(void) {
    pthread_t thread[8];
    long number[8];
    snprintf(at_once, sizeof at_once, "%s", at("threads"));
    for (int round = 0; round < 5; round++) {
        int seen = 0;
        for (int i = 0; i < 8; i++) { number[i] = i; if (pthread_create(&thread[i], NULL, open_one, &number[i])) SKIP("no threads"); }
        for (int i = 0; i < 8; i++) {
            void *e;
            pthread_join(thread[i], &e);
            CHECK(e);
            dt_events_close((dt_events *)e);
        }
        CHECK(list(at_once) == 8);
        for (int i = 0; i < 8; i++) { CHECK(events_in(at_once, i) == 3); seen |= 1 << whole(event_in(at_once, i, 2), "2"); }
        CHECK(seen == 255);
        remove_tree(at_once);
    }
}
#endif

/* The reason is that of the folder that cannot be made, not that the file has none. */
static void test_forbidden(void) {
    dt_error err = DT_DEFAULTS;
    uid_t me = geteuid();
    mkdir(at("forbidden"), 0777);
    chmod(scratch, 0755), chmod(at("forbidden"), 0555);
    if (me == 0 && seteuid(65534)) SKIP("cannot be another user");
    dt_events *e = dt_events_open(at("forbidden/inside/deep"), -1, &err);
    if (me == 0 && seteuid(0)) CHECK(0);
    CHECK(!e);
    CHECK_ERROR(err, DT_ERR_IO, strerror(EACCES));
    chmod(at("forbidden"), 0755);
}

static void test_resumed(void) {
    static const long step[] = { 0, 500, LONG_MAX - 1, LONG_MAX };
    for (int i = 0; i < COUNT(step); i++) {
        dt_error err = DT_DEFAULTS;
        dt_events_close(dt_events_open(at("resumed"), step[i], &err));
        CHECK_OK(err);
        CHECK(events_in(at("resumed"), 0) == 2);
        bytes event = event_in(at("resumed"), 0, 1);
        CHECK(whole(event, "7.1") == 1 && whole(event, "2") == (step[i] == LONG_MAX ? (long long)LONG_MAX : step[i] + 1));
        remove_tree(at("resumed"));
    }
}

static void test_arguments(void) {
    static const char *const good = "a", *const empty = "", *const none = NULL, *const latin = "gr\xfc" "n", *const cut = "abc\xe2\x82";
    const char *const two[] = { "a", latin };
    const double value[] = { 1, 2 };
    const float number = 1;
    const char *folder = at("arguments");
    dt_error err = DT_DEFAULTS;
    dt_events *e = dt_events_open(folder, -1, &err);
    CHECK_OK(err);
#define REFUSED(call, text) do { memset(&err, 0, sizeof err); CHECK(call == DT_ERR_ARGUMENT); CHECK_ERROR(err, DT_ERR_ARGUMENT, text); } while (0)
    REFUSED(dt_events_scalars(NULL, 1, 1, &good, value, &err), "dt_events_scalars: the dt_events is NULL");
    REFUSED(dt_events_scalars(e, -1, 1, &good, value, &err), "step is -1");
    REFUSED(dt_events_scalars(e, 1, 1, &empty, value, &err), "tag 1 of 1 is empty");
    REFUSED(dt_events_scalars(e, 1, 1, &none, value, &err), "tag 1 of 1 is NULL");
    REFUSED(dt_events_scalars(e, 1, 2, two, value, &err), "tag 2 of 2 is no UTF-8, byte 2 is 0xfc");
    REFUSED(dt_events_scalars(e, 1, 1, NULL, value, &err), "tag is NULL");
    REFUSED(dt_events_scalars(e, 1, 1, &good, NULL, &err), "values is NULL");
    REFUSED(dt_events_histogram(NULL, 1, good, &number, 1, &err), "dt_events_histogram");
    REFUSED(dt_events_histogram(e, LONG_MIN, good, &number, 1, &err), "step is -");
    REFUSED(dt_events_histogram(e, 1, NULL, &number, 1, &err), "tag 1 of 1 is NULL");
    REFUSED(dt_events_histogram(e, 1, good, NULL, 1, &err), "values is NULL");
    REFUSED(dt_events_text(NULL, 1, good, good, &err), "dt_events_text");
    REFUSED(dt_events_text(e, 1, cut, good, &err), "tag 1 of 1 is no UTF-8, byte 3 is 0xe2");
    REFUSED(dt_events_text(e, 1, good, latin, &err), "text 1 of 1 is no UTF-8, byte 2 is 0xfc");
    REFUSED(dt_events_text(e, 1, good, NULL, &err), "text 1 of 1 is NULL");
    REFUSED(dt_events_hparams(NULL, good, 1, &good, &good, 1, &good, &err), "dt_events_hparams");
    REFUSED(dt_events_hparams(e, latin, 1, &good, &good, 1, &good, &err), "session 1 of 1 is no UTF-8");
    REFUSED(dt_events_hparams(e, good, 1, &empty, &good, 1, &good, &err), "name 1 of 1 is empty");
    REFUSED(dt_events_hparams(e, good, 2, two, two, 1, &good, &err), "name 2 of 2 is no UTF-8");
    REFUSED(dt_events_hparams(e, good, 1, &good, &none, 1, &good, &err), "value 1 of 1 is NULL");
    REFUSED(dt_events_hparams(e, good, 1, &good, NULL, 1, &good, &err), "value is NULL");
    REFUSED(dt_events_hparams(e, good, 1, &good, &good, 1, &empty, &err), "metric 1 of 1 is empty");
    REFUSED(dt_events_hparams_end(NULL, 1, &err), "dt_events_hparams_end");
    CHECK(dt_events_text(e, 1, good, NULL, NULL) == DT_ERR_ARGUMENT);
    memset(&err, 0, sizeof err);
    CHECK(!dt_events_text(e, 1, good, good, &err) && err.code == 0);  /* and it goes on */
    dt_events_close(e);
    CHECK(events_in(folder, 0) == 3);
    static const struct { const char *folder; int code; const char *text; } row[] = {
        { NULL, DT_ERR_ARGUMENT, "NULL" },  { "", DT_ERR_ARGUMENT, "empty" },  { "/dev/null", DT_ERR_IO, "Not a directory" },
        { "/dev/null/deeper/down", DT_ERR_IO, "Not a directory" },
    };
    for (int i = 0; i < COUNT(row); i++) {
        memset(&err, 0, sizeof err);
        CHECK(!dt_events_open(row[i].folder, -1, &err));
        CHECK_ERROR(err, row[i].code, row[i].text);
        CHECK(!dt_events_open(row[i].folder, -1, NULL));
    }
    char *deep = (char *)malloc(100001);
    memset(deep, 'd', 100000), deep[100000] = 0, memcpy(deep, "/tmp/", 5);
    memset(&err, 0, sizeof err);
    CHECK(!dt_events_open(deep, -1, &err));
    CHECK_ERROR(err, DT_ERR_IO, "File name too long");
    free(deep);
}

/* ---- misfortune --------------------------------------------------------------------------------- */

static int some_of_all(const char *folder, dt_error *err) {  /* one event of each kind */
    static const char *const tags[] = { "loss", "rate" };
    static const float numbers[] = { 1, 2, 3, 3 };
    static const double values[] = { 1, 2 };
    dt_events *e = dt_events_open(folder, 3, err);
    int code = !e;
    if (!code) code = dt_events_hparams(e, "run", 2, tags, tags, 1, tags, err);
    if (!code) code = dt_events_scalars(e, 4, 2, tags, values, err);
    if (!code) code = dt_events_histogram(e, 4, "weights", numbers, 4, err);
    if (!code) code = dt_events_text(e, 4, "note", "it is so", err);
    if (!code) code = dt_events_hparams_end(e, 1, err);
    dt_events_close(e);
    return code;
}

static void test_out_of_memory(void) {
    int done = 0;
    for (allocation_fails = 0; allocation_fails < 100 && !done; allocation_fails++) {
        dt_error err = DT_DEFAULTS;
        allocations = 0;
        done = !some_of_all(at("memory"), &err);
        if (!done) CHECK_ERROR(err, DT_ERR_MEMORY, "dt_events_");
        for (int i = list(at("memory")); i-- > 0;) CHECK(events_in(at("memory"), i) >= (done ? 7 : 2));
        remove_tree(at("memory"));
    }
    CHECK_MSG(done && allocation_fails > 4, "%ld allocations", allocation_fails);
    allocation_fails = -1;
    /* where there is no room for the last bytes of an event, none of it is written */
    dt_error err = DT_DEFAULTS;
    static const char *names_of[40], *values_of[40];
    char text[5000] = "";
    dt_events *e = dt_events_open(at("memory"), -1, &err);
    int fit = 0, refused = 0;
    for (int n = 0; n < 400; n++) {
        allocations = 0, allocation_fails = 0;
        int code = dt_events_text(e, n, "t", text, NULL);
        fit += !code, refused += code == DT_ERR_MEMORY;
        text[n] = 'x', text[n + 1] = 0;
    }
    allocation_fails = -1;
    dt_events_close(e);
    CHECK(list(at("memory")) == 1 && fit > 10 && refused > 10 && fit + refused == 400 && events_in(at("memory"), 0) == 2 + fit);
    remove_tree(at("memory"));
    for (int i = 0; i < COUNT(names_of); i++) names_of[i] = "a name", values_of[i] = "a value";
    done = 0;
    for (int fails = 0; fails < 100 && !done; fails++) {  /* many messages are opened behind the one that fails */
        e = dt_events_open(at("memory"), -1, &err);
        allocations = 0, allocation_fails = fails;
        int code = dt_events_hparams(e, NULL, COUNT(names_of), names_of, values_of, COUNT(names_of), names_of, NULL);
        allocation_fails = -1;
        CHECK(code == DT_ERR_MEMORY || code == 0);
        CHECK(!dt_events_text(e, 1, "t", text, &err));
        dt_events_close(e);
        done = !code;
        CHECK(list(at("memory")) == 1 && events_in(at("memory"), 0) == 3 + done);
        remove_tree(at("memory"));
    }
    CHECK(done);
    /* what did not get memory for a large event goes on with small ones */
    e = dt_events_open(at("memory"), -1, &err);
    memset(text, 'x', sizeof text), text[sizeof text - 1] = 0;
    allocations = 0, allocation_fails = 0;
    CHECK(dt_events_text(e, 1, "t", text, &err) == DT_ERR_MEMORY && err.code == DT_ERR_MEMORY);
    allocation_fails = -1;
    memset(&err, 0, sizeof err);
    CHECK(!dt_events_text(e, 1, "t", text, &err) && !dt_events_text(e, 2, "t", "small", &err));
    dt_events_close(e);
    CHECK(events_in(at("memory"), 0) == 4 && says(event_in(at("memory"), 0, 2), "5.1.8.8", text));
}

static void test_one_write(void) {  /* per event; and where the system takes a part of it, or is interrupted, all the same */
    dt_error err = DT_DEFAULTS;
    writes = 0;
    CHECK(!some_of_all(at("write"), &err) && writes == 7 && events_in(at("write"), 0) == 7);
    remove_tree(at("write"));
    pieces = 5, interrupted = 1;
    CHECK(!some_of_all(at("write"), &err) && writes > 100 && events_in(at("write"), 0) == 7);
    pieces = interrupted = 0;
    CHECK_OK(err);
}

/* A disk that is full after so many bytes: within events and at their ends. */
static void test_full_disk(void) {
    struct rlimit old, less;
    struct sigaction ignore, before;
    struct stat s;
    char path[1024];
    size_t size, end[7];
    dt_error err = DT_DEFAULTS;
    int seen[16] = { 0 };
    CHECK(!some_of_all(at("disk"), &err) && list(at("disk")) == 1);
    bytes all = read_file(at("disk"), 0);
    size = all.n;
    for (int i = 0, events; i < 7; i++) end[i] = (size_t)(event_at(all, i, &events).p - all.p) - 12;
    remove_tree(at("disk"));
    if (getrlimit(RLIMIT_FSIZE, &old)) SKIP("no limit for files here");
    memset(&ignore, 0, sizeof ignore);
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &ignore, &before);
    fflush(stdout);
    for (size_t most = 0; most < size; most++) {
        int near_end = 0;
        for (int i = 0; i < 7; i++) near_end |= most + 1 >= end[i] && most <= end[i] + 1;
        if (!near_end && most % 31) continue;
        less = old;
        less.rlim_cur = (rlim_t)most;
        memset(&err, 0, sizeof err);
        if (setrlimit(RLIMIT_FSIZE, &less)) SKIP("no limit for files here");
        int code = some_of_all(at("disk"), &err);
        setrlimit(RLIMIT_FSIZE, &old);
        int files = list(at("disk")), events = files ? events_in(at("disk"), 0) : 0;
        CHECK_MSG(code && err.code == DT_ERR_IO && strstr(err.text, strerror(EFBIG)), "%zu bytes: \"%s\"", most, err.text);
        CHECK_MSG(files <= 1 && events != -1 && events != 1, "%zu bytes: %d files, %d events", most, files, events);
        if (events >= 0) seen[events]++;
        remove_tree(at("disk"));
    }
    CHECK(seen[0] && seen[2] && seen[3] && seen[4] && seen[5] && seen[6] && !seen[7]);
    /* the same error again, and nothing more in the file, even when there is room again */
    memset(&err, 0, sizeof err);
    dt_events *e = dt_events_open(at("disk"), -1, &err);
    CHECK(e && list(at("disk")) == 1 && !dt_events_text(e, 1, "t", "first", &err));
    snprintf(path, sizeof path, "%s/%s", at("disk"), names[0]);
    stat(path, &s);
    size = (size_t)s.st_size;
    less.rlim_cur = (rlim_t)size + 20;
    setrlimit(RLIMIT_FSIZE, &less);
    CHECK(dt_events_text(e, 2, "t", "second", &err) == DT_ERR_IO);
    setrlimit(RLIMIT_FSIZE, &old);
    sigaction(SIGXFSZ, &before, NULL);
    CHECK_ERROR(err, DT_ERR_IO, "dt_events_text: File too large: no more events are written, and the last one of \"");
    dt_error again = DT_DEFAULTS;
    CHECK(dt_events_scalars(e, 3, 1, (const char *const[]){ "loss" }, (const double[]){ 1 }, &again) == DT_ERR_IO && !strcmp(again.text, err.text));
    CHECK(dt_events_hparams_end(e, 1, NULL) == DT_ERR_IO && dt_events_histogram(e, 3, "h", NULL, 0, NULL) == DT_ERR_IO);
    CHECK(!stat(path, &s) && (size_t)s.st_size == size && events_in(at("disk"), 0) == 3);
    dt_events_close(e);
}

/* ---- runs for events.py ------------------------------------------------------------------------- */

static void stop_here(const char *word) {
    printf("%s\n", word);
    fflush(stdout);
    while (getchar() > '\n') {}
}

static int write_runs(const char *folder) {
    static const char *const tags[] = { "loss/train", "loss/eval", "learning_rate", "often \"odd\" <tag> \xc3\xa4\xf0\x9f\x8c\xb1", "not finite" };
    static const char *const metrics[] = { "loss/eval" };
    static const char *const name[] = { "learning_rate", "batch", "optimizer", "shuffle", "schedule" };
    static const char *const value[3][5] = { { "0.001", "128", "adam", "true", "cosine" }, { "0.01", "64", "sgd", "false", "none" }, { "0.1", "32", "sgd", "true", "none" } };
    static const char *const run[] = { "first", "second", "third" };
    static float weight[4000];
    char path[1200];
    dt_error err = DT_DEFAULTS;
    snprintf(path, sizeof path, "%s/weights", folder);
    FILE *f = fopen(path, "wb");
    if (!f) return 1;
    for (int r = 0; r < 3; r++) {
        snprintf(path, sizeof path, "%s/runs/%s", folder, run[r]);
        for (int part = 0; part < (r ? 1 : 2); part++) {  /* the first one is stopped at step 200, and resumed from step 120 */
            dt_events *e = dt_events_open(path, part ? 120 : -1, &err);
            int from = part ? 121 : 0, to = part || r ? 300 : 200;
            if (!part) dt_events_hparams(e, run[r], 5, name, value[r], r ? 0 : 1, metrics, &err);
            if (!part) dt_events_text(e, 0, "about", r ? "" : "# A run\n\nwith a **table**:\n\n| name | value |\n|---|---|\n| rate | 0.001 |\n| \xc3\xa4 | \xf0\x9f\x8c\xb1 |\n", &err);
            for (int step = from; step <= to; step++) {
                double bad[] = { NAN, INFINITY, -INFINITY, 1e300 }, loss = 2.3 / (1 + 0.02 * (r + 1) * step) + 0.05 * dt__uniform(dt__random(7, (uint64_t)r, (uint64_t)step));
                double v[] = { loss + 1000 * part, step % 10 ? NAN : loss * 1.1, 0.001 * (1 + cos(3.14159265 * step / 300)), step, step == 2 ? bad[0] : step % 50 ? 1.0 : bad[step / 50 % 4] };
                v[0] -= 1000 * part * (step > 125);  /* a peak that shows where the second part begins */
                dt_events_scalars(e, step, COUNT(tags), tags, v, &err);
                if (step % 20) continue;
                for (int i = 0; i < COUNT(weight); i++) weight[i] = (float)((0.3 + 0.004 * step) * dt__normal(dt__random(9, (uint64_t)(step + 1000 * r), (uint64_t)i)) + 0.002 * step);
                if (step == 40) weight[0] = NAN, weight[1] = INFINITY, weight[2] = -INFINITY;
                for (int i = 0; i < COUNT(weight) && r == 0 && !part; i++) {
                    uint8_t b[4];
                    dt__write_le(b, dt__float_bits(weight[i]), 4);
                    fwrite(b, 1, 4, f);
                }
                dt_events_histogram(e, step, "dense/weight", weight, COUNT(weight), &err);
            }
            if (r == 0 && !part) {
                float same[] = { 5, 5, 5 };
                dt_events_histogram(e, 0, "same", same, 3, &err);
                dt_events_histogram(e, 0, "nothing", NULL, 0, &err);
                fclose(f);
            }
            if (r == 0) stop_here(part ? "resumed" : "open");
            if (part || r) dt_events_hparams_end(e, r < 2, &err);
            if (r == 2) {  /* a second row of the same run: it changes nothing */
                dt_events_hparams(e, "another", 5, name, value[0], 0, NULL, &err);
                dt_events_hparams_end(e, 1, &err);
            }
            dt_events_close(e);
        }
    }
    for (int r = 0; r < 2; r++) {  /* two that name no metrics, and differ in names and types */
        static const char *const names_of[2][2] = { { "depth", "width" }, { "depth", "dropout" } }, *const values_of[2][2] = { { "3", "64" }, { "deep", "0.5" } };
        snprintf(path, sizeof path, "%s/more/%s", folder, run[r]);
        dt_events *e = dt_events_open(path, -1, &err);
        dt_events_hparams(e, NULL, 2, names_of[r], values_of[r], 0, NULL, &err);
        dt_events_scalars(e, 1, 1 + r, tags, (const double[]){ 0.5, 0.25 }, &err);
        dt_events_close(e);
    }
    if (err.code) printf("%s\n", err.text);
    return err.code != 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return write_runs(argv[1]);
    if (scratch_begin()) return 1;
    RUN(test_reader);
    RUN(test_open);
    RUN(test_scalars);
    RUN(test_histogram);
    RUN(test_text);
    RUN(test_hparams);
    RUN(test_names);
#ifndef DTRAIN_NO_THREADS
    RUN(test_threads);
#endif
    RUN(test_forbidden);
    RUN(test_resumed);
    RUN(test_arguments);
    RUN(test_out_of_memory);
    RUN(test_one_write);
    RUN(test_full_disk);
    free(held);
    scratch_end();
    return finish();
}
