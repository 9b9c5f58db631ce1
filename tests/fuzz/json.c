/* json.c - the JSON reader on any bytes: it accepts what RFC 8259 does, nothing else, and finds the same values as the
 * small reader here, which was written for itself. What is written as a JSON string is read back.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/json.c -o fuzz-json -lm -pthread
 *   ./fuzz-json -max_total_time=60 corpus/
 *
 * The input is the text, without a terminator: reading beyond it shows.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"

#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "not so: %s (%s)\n", #condition, j.error ? j.error : "no error"); abort(); } } while (0)

#define DEEPEST 64  /* nesting that is accepted, which RFC 8259 leaves to the reader */
#define MOST 8192

/* ---- the grammar, function by function: each steps *p behind what it names, or returns 0 */

static const char *end;
static int deepest;
static long values;  /* of every kind, at every depth */

static void blank(const char **p) {
    while (*p < end && strchr(" \t\n\r", **p) && **p) ++*p;
}

static int digits(const char **p) {
    const char *start = *p;
    while (*p < end && **p >= '0' && **p <= '9') ++*p;
    return *p > start;
}

static int number(const char **p) {
    if (*p < end && **p == '-') ++*p;
    if (*p < end && **p == '0') ++*p;
    else if (!digits(p)) return 0;
    if (*p < end && **p == '.') {
        ++*p;
        if (!digits(p)) return 0;
    }
    if (*p < end && (**p == 'e' || **p == 'E')) {
        ++*p;
        if (*p < end && (**p == '+' || **p == '-')) ++*p;
        if (!digits(p)) return 0;
    }
    return 1;
}

/* One code point of well-formed UTF-8, after Table 3-7 of the Unicode Standard. */
static int utf8(const char **p) {
    static const struct { unsigned char first, last, low, high; int n; } row[] = {
        {0x00, 0x7f, 0x00, 0x00, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
        {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    const unsigned char *s = (const unsigned char *)*p;
    size_t i;
    int k;
    for (i = 0; i < sizeof row / sizeof *row; i++) {
        if (*s < row[i].first || *s > row[i].last) continue;
        if (end - *p < row[i].n || (row[i].n > 1 && (s[1] < row[i].low || s[1] > row[i].high))) return 0;
        for (k = 2; k < row[i].n; k++) if (s[k] < 0x80 || s[k] > 0xbf) return 0;
        *p += row[i].n;
        return 1;
    }
    return 0;
}

static long hex4(const char **p) {
    char text[5] = "", *stop;
    long v;
    int i;
    if (end - *p < 4) return -1;
    for (i = 0; i < 4; i++) if (!strchr("0123456789abcdefABCDEF", (*p)[i]) || !(*p)[i]) return -1;
    memcpy(text, *p, 4);
    v = strtol(text, &stop, 16);
    *p += 4;
    return v;
}

/* The string's text to out, which has room for as many bytes as the string itself. */
static int string(const char **p, char *out, size_t *n) {
    *n = 0;
    if (*p >= end || *(*p)++ != '"') return 0;
    while (*p < end && **p != '"') {
        const char *start = *p;
        if ((unsigned char)**p < 0x20) return 0;
        if (**p != '\\') {
            if (!utf8(p)) return 0;
            memcpy(out + *n, start, (size_t)(*p - start));
            *n += (size_t)(*p - start);
            continue;
        }
        if (end - ++*p < 1) return 0;
        switch (*(*p)++) {
        case '"': out[(*n)++] = '"'; break;
        case '\\': out[(*n)++] = '\\'; break;
        case '/': out[(*n)++] = '/'; break;
        case 'b': out[(*n)++] = 8; break;
        case 'f': out[(*n)++] = 12; break;
        case 'n': out[(*n)++] = 10; break;
        case 'r': out[(*n)++] = 13; break;
        case 't': out[(*n)++] = 9; break;
        case 'u': {
            long u = hex4(p), low;
            if (u < 0 || (u >= 0xdc00 && u <= 0xdfff)) return 0;
            if (u >= 0xd800 && u <= 0xdbff) {
                if (end - *p < 2 || memcmp(*p, "\\u", 2)) return 0;
                *p += 2;
                low = hex4(p);
                if (low < 0xdc00 || low > 0xdfff) return 0;
                u = 0x10000 + (u - 0xd800) * 0x400 + (low - 0xdc00);
            }
            if (u < 0x80) {
                out[(*n)++] = (char)u;
            } else if (u < 0x800) {
                out[(*n)++] = (char)(0xc0 + u / 64), out[(*n)++] = (char)(0x80 + u % 64);
            } else if (u < 0x10000) {
                out[(*n)++] = (char)(0xe0 + u / 4096), out[(*n)++] = (char)(0x80 + u / 64 % 64), out[(*n)++] = (char)(0x80 + u % 64);
            } else {
                out[(*n)++] = (char)(0xf0 + u / 262144), out[(*n)++] = (char)(0x80 + u / 4096 % 64);
                out[(*n)++] = (char)(0x80 + u / 64 % 64), out[(*n)++] = (char)(0x80 + u % 64);
            }
            break;
        }
        default: return 0;
        }
    }
    if (*p >= end) return 0;
    ++*p;
    return 1;
}

static int value(const char **p, int depth) {
    static char unused[MOST];
    static const char *const literal[] = {"true", "false", "null"};
    size_t n;
    int i;
    blank(p);
    values++;
    if (*p >= end) return 0;
    if (**p == '{' || **p == '[') {
        char closing = **p == '{' ? '}' : ']';
        if (depth + 1 > deepest) deepest = depth + 1;
        ++*p;
        blank(p);
        if (*p < end && **p == closing) { ++*p; return 1; }
        for (;;) {
            blank(p);
            if (closing == '}') {
                if (!string(p, unused, &n)) return 0;
                blank(p);
                if (*p >= end || *(*p)++ != ':') return 0;
            }
            if (!value(p, depth + 1)) return 0;
            blank(p);
            if (*p >= end) return 0;
            if (**p == closing) { ++*p; return 1; }
            if (*(*p)++ != ',') return 0;
        }
    }
    if (**p == '"') return string(p, unused, &n);
    for (i = 0; i < 3; i++) {
        size_t length = strlen(literal[i]);
        if ((size_t)(end - *p) < length || memcmp(*p, literal[i], length)) continue;
        *p += length;
        return 1;
    }
    return number(p);
}

/* ---- compared */

static dt__json reader(const char *text, size_t size) {
    dt__json j;
    j.p = text, j.end = text + size, j.error = NULL;
    return j;
}

/* A failure is told, within the text, and stays. */
static void failed(dt__json j, const char *text) {
    const char *first = j.error;
    size_t n;
    MUST(j.error && *j.error && j.p >= text && j.p <= j.end);
    MUST(!dt__json_peek(&j) && !dt__json_skip(&j) && !dt__json_string(&j, NULL, 0, &n) && j.error == first);
}

static void compare_string(const char *text, size_t size) {
    static char mine[MOST];
    dt__json j = reader(text, size);
    const char *p = text, *start;
    size_t n = 0, n_mine = 0, cap;
    char *out = (char *)malloc(size + 1), *cut;
    int right;
    MUST(out);
    blank(&p);
    start = p;
    right = string(&p, mine, &n_mine);
    if (dt__json_string(&j, out, size, &n)) {
        MUST(right && j.p == p && n == n_mine && !memcmp(out, mine, n));
        cap = n / 2;
        cut = (char *)malloc(cap + 1);  /* with less room: the beginning, and how long it would have been */
        MUST(cut);
        cut[cap] = 'E';
        j = reader(start, (size_t)(p - start));
        MUST(dt__json_string(&j, cut, cap, &n) && n == n_mine && !memcmp(cut, mine, cap) && cut[cap] == 'E');
        free(cut);
    } else {
        MUST(!right);
        failed(j, text);
    }
    free(out);
}

static void compare_number(const char *text, size_t size) {
    for (; size && strchr(" \t\r\n", *text) && *text; size--) text++;  /* blanks may stand in front of a value */
    dt__json j = reader(text, size);
    const char *p = text, *k;
    double v = -1;
    uint64_t u = 1;
    int right = size > 0 && number(&p) && p == end, whole = size > 0;
    char *copy = (char *)malloc(size + 1);
    MUST(copy);
    memcpy(copy, text, size);
    copy[size] = 0;
    if (dt__json_number(&j, &v) && j.p == end) {
        double exact = strtod(copy, NULL);
        MUST(right && (v == exact || nextafter(exact, v) == v) && !signbit(v) == (*text != '-'));
    } else {
        MUST(!right);
        if (j.error) failed(j, text);
    }
    j = reader(text, size);
    for (k = text; k < end; k++) whole &= *k >= '0' && *k <= '9';
    whole &= size == 1 || (size > 1 && *text != '0');
    errno = 0;
    if (dt__json_uint(&j, &u) && j.p == end) {
        MUST(whole && u == strtoull(copy, NULL, 10) && !errno);
    } else if (whole) {
        MUST(strtoull(copy, NULL, 10) == UINT64_MAX && errno == ERANGE);
        failed(j, text);
    }
    free(copy);
}

/* The same document, pulled piece by piece: as many values as the grammar finds. */
static long walk(dt__json *r) {
    dt__json j = *r;
    char c = dt__json_peek(&j), closing = c == '{' ? '}' : ']';
    long count = 1;
    size_t n;
    if (c == '{' || c == '[') {
        MUST(dt__json_want(&j, c, "a bracket is expected"));
        while (dt__json_more(&j, closing)) {
            if (c == '{') MUST(dt__json_string(&j, NULL, 0, &n) && dt__json_want(&j, ':', "':' is expected"));
            count += walk(&j);
        }
    } else if (c == '"') {
        compare_string(j.p, (size_t)(end - j.p));
        MUST(dt__json_string(&j, NULL, 0, &n));
    } else {
        MUST(dt__json_skip(&j));
    }
    MUST(!j.error);
    *r = j;
    return count;
}

static void compare_document(const char *text, size_t size) {
    dt__json j = reader(text, size);
    const char *p = text;
    int right, accepted = dt__json_skip(&j);
    deepest = 0, values = 0;
    right = value(&p, 0);
    if (right) blank(&p);
    if (right && p == end && deepest > DEEPEST) {
        MUST(!accepted && strstr(j.error, "deep"));
        return;
    }
    if (!accepted) {
        MUST(!right || p != end);
        failed(j, text);
        return;
    }
    dt__json_blank(&j);
    MUST(!j.error && (j.p == end) == (right && p == end));
    if (j.p != end) return;
    j = reader(text, size);
    MUST(walk(&j) == values);
    dt__json_blank(&j);
    MUST(j.p == end);
}

/* Written as a string and read again: the same, with a question mark for each byte that belongs to no character. */
static void write_string(const char *text, size_t size) {
    size_t n = strnlen(text, size), room = 6 * n + 3, at = 0, n_read = 0, small;
    char *source = (char *)malloc(n + 1), *out = (char *)malloc(room), *back = (char *)malloc(n + 1), *less;
    dt__json j = reader(text, size);
    dt__writer w;
    MUST(source && out && back);
    memcpy(source, text, n);
    source[n] = 0;
    w.text = out, w.size = room, w.n = 0;
    dt__put(&w, '"');
    dt__put_json(&w, source);
    dt__put(&w, '"');
    MUST(w.n < room && strlen(out) == w.n);
    small = w.n / 2 + 1;  /* with less room nothing is written beyond it, and w.n still tells how much was wanted */
    less = (char *)malloc(small);
    MUST(less);
    *less = 0;
    j = reader(out, w.n);
    MUST(dt__json_string(&j, back, n + 1, &n_read) && j.p == j.end && n_read == n);
    room = w.n - 2;
    w.text = less, w.size = small, w.n = 0;
    dt__put_json(&w, source);
    MUST(w.n == room && strlen(less) < small && !strncmp(less, out + 1, strlen(less)));
    end = source + n;
    while (at < n) {
        const char *p = source + at;
        if (utf8(&p)) { MUST(!memcmp(back + at, source + at, (size_t)(p - source) - at)); at = (size_t)(p - source); }
        else MUST(back[at++] == '?');
    }
    free(source), free(out), free(back), free(less);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    if (size > MOST) return 0;
    end = text + size;
    compare_document(text, size);
    compare_string(text, size);
    compare_number(text, size);
    write_string(text, size);
    return 0;
}
