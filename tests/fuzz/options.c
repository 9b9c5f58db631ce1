/* options.c - any command line: parsed or refused with a message, and what --print-options shows, given as flags again,
 * shows the same. And numbers: read as strtod reads them, written as printf writes them.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/options.c -o fuzz-options -lm -pthread
 *   ./fuzz-options -max_total_time=60 corpus/
 *
 * The first byte says what the others are: arguments, one a line; a name and a value for dt_option_set; the text
 * of a number; or a number's eight bytes, behind one byte for the digits and one for the room.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void not_so(const char *what, int code, const char *text) {
    fprintf(stderr, "not so: %s (%d %s)\n", what, code, text);
    abort();
}
#define MUST(condition) do { if (!(condition)) not_so(#condition, err.code, err.text); } while (0)

/* What the library prints is kept in memory. */
static FILE *the_stream;
static char *said;
static size_t n_said;
#undef stderr
#undef stdout
#define stderr the_stream
#define stdout the_stream
#define printf(...) fprintf(the_stream, __VA_ARGS__)
#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"

static void listen_to(void) {
    free(said);
    said = NULL;
    the_stream = open_memstream(&said, &n_said);
    if (!the_stream) abort();
}
static void heard(void) { fclose(the_stream), the_stream = NULL; }

#define MOST 64
#define LONGEST 4096

/* Arguments and flags as a program has them, each in a block of its own. */
typedef struct { char *at[MOST + 1]; int n; } arguments;

static void add(arguments *a, const char *s, size_t n) {
    char *copy = (char *)malloc(n + 1);
    if (!copy) abort();
    memcpy(copy, s, n);
    copy[n] = 0;
    a->at[a->n++] = copy;
}

static void release(arguments *a) {
    while (a->n) free(a->at[--a->n]);
}

static const char *own_value[2];
static const dt_flag own[] = {{"data", &own_value[0], "where the data is"}, {"model", &own_value[1], NULL}, {NULL, NULL, NULL}};

static dt_options fresh(void) {
    dt_options o;
    memset(&o, 0, sizeof o);
    o.flags = own;
    own_value[0] = "here", own_value[1] = NULL;
    return o;
}

/* What --print-options says of o, to be freed. */
static char *shown(const dt_options *options) {
    dt_error err = {0};
    dt_options o = *options;
    char *text;
    int status;
    o.print_options = 1;
    listen_to();
    status = dt_run(&o);
    heard();
    MUST(status == 0 && n_said && said[n_said - 1] == '\n');
    text = said;
    said = NULL;
    return text;
}

/* The lines of text that differ from the defaults', as flags. */
static void flags_of(const char *text, arguments *a) {
    dt_error err = {0};
    dt_options none = fresh();
    char *defaults = shown(&none), flag[LONGEST + 16];
    const char *d = defaults;
    for (; *text; text += strcspn(text, "\n") + 1, d += strcspn(d, "\n") + 1) {
        int n = (int)strcspn(text, "\n"), name = (int)(strstr(text, " = ") - text), value = n - name - 3, before = (int)strcspn(d, "\n") - name - 3;
        MUST(name > 0 && value >= 0 && before > 0 && !strncmp(text, d, (size_t)name + 3));
        if (value == before && !memcmp(text, d, (size_t)n)) continue;
        if (before == 3 && !strncmp(d + name, " = off\n", 7) && value == 2 && !strncmp(text + name, " = on\n", 6)) n = snprintf(flag, sizeof flag, "--%.*s", name, text);
        else n = snprintf(flag, sizeof flag, "--%.*s=%.*s", name, text, value, text + name + 3);
        MUST(n < (int)sizeof flag && a->n < MOST);
        add(a, flag, (size_t)n);
    }
    MUST(!*d);
    free(defaults);
}

static void command_line(const char *line, size_t size) {
    dt_error err = {0};
    dt_options o = fresh();
    arguments a = {{NULL}, 0}, b = {{NULL}, 0};
    const char *end = line + size;
    int code;
    add(&a, "program", 7);
    while (line < end && a.n < MOST) {
        size_t n = (size_t)(end - line), k;
        for (k = 0; k < n && line[k] != '\n' && line[k]; k++) {}
        add(&a, line, k);
        line += k + (k < n);
    }
    listen_to();
    code = dt_parse(&o, a.n, a.at, &err);
    heard();
    if (code == DT_ERR_STOPPED) {
        MUST(!err.code && (strstr(said, "usage: program") == said || strstr(said, "dtrain ") == said));
        listen_to();
        o = fresh();
        MUST(dt_main_opt(a.n, a.at, &o) == 0);
        heard();
        MUST(n_said);
    } else if (code) {
        MUST(code == DT_ERR_USAGE && err.code == code && strstr(err.text, "--") && strlen(err.text) < sizeof err.text && n_said == 0);
        listen_to();
        o = fresh();
        MUST(dt_main_opt(a.n, a.at, &o) == 64);
        heard();
        MUST(strstr(said, "program: ") == said && strstr(said, err.text) == said + 9);
    } else {
        char *first, *second;
        dt_options p;
        MUST(!err.code && n_said == 0);
        MUST(o.batch >= 0 && o.replica_batch >= 0 && !(o.batch && o.replica_batch) && o.replicas >= 0 && o.epochs >= 0 && o.steps >= 0);
        MUST(o.learning_rate >= 0 && o.learning_rate <= DBL_MAX && (o.momentum >= 0 || o.momentum == DT_OFF));
        MUST((int)o.strategy >= DT_STRATEGY_DEFAULT && o.strategy <= DT_CENTRAL && (int)o.optimizer >= DT_SGD && o.optimizer <= DT_RMSPROP);
        first = shown(&o);
        p = fresh();
        add(&b, "program", 7);
        flags_of(first, &b);
        own_value[0] = "here", own_value[1] = NULL;
        MUST(!dt_parse(&p, b.n, b.at, &err) && !err.code);
        /* a batch as large as the default is shown as the default */
        MUST((p.batch == o.batch || !p.batch) && p.replica_batch == o.replica_batch && p.steps == o.steps && p.seed == o.seed && p.strategy == o.strategy && p.optimizer == o.optimizer);
        MUST(p.progress == o.progress && p.no_shuffle == o.no_shuffle && p.json == o.json);
        MUST(p.learning_rate == o.learning_rate || fabs(p.learning_rate - o.learning_rate) <= 6e-6 * o.learning_rate);  /* six digits are shown */
        second = shown(&p);
        MUST(!strcmp(first, second));
        free(first), free(second);
    }
    release(&a), release(&b);
}

/* ---- numbers. The text of one, as dt__parse_double takes it: how long it is, and whether it is read exactly */

static size_t decimal(const char *s, size_t n, int *exact) {
    size_t i = 0, start, e;
    int digits = 0, point = 0, scale = 0, power = 0;
    if (i < n && (s[i] == '+' || s[i] == '-')) i++;
    start = i;
    while (i < n && ((s[i] >= '0' && s[i] <= '9') || (s[i] == '.' && !point))) {
        if (s[i] == '.') point = 1; else digits++, scale -= point;
        i++;
    }
    *exact = 0;
    if (!digits) {
        static const char *const word[] = {"nan", "inf"};
        for (i = 0; i < 2; i++) if (n - start >= 3 && !strncasecmp(s + start, word[i], 3)) return start + 3;
        return 0;
    }
    e = i;
    if (e < n && (s[e] == 'e' || s[e] == 'E')) {
        e++;
        if (e < n && (s[e] == '+' || s[e] == '-')) e++;
        if (e < n && s[e] >= '0' && s[e] <= '9') {
            while (e < n && s[e] >= '0' && s[e] <= '9') e++;
            if (e - i < 8) power = atoi(s + i + 1); else digits = INT_MAX;
            i = e;
        }
    }
    *exact = digits <= 15 && scale + power >= -22 && scale + power <= 22;
    return i;
}

static int same_number(double a, double b, int exact) {
    if (a != a || b != b) return a != a && b != b;
    return !signbit(a) == !signbit(b) && (a == b || (!exact && nextafter(a, b) == b));
}

static void read_number(const char *text, size_t size) {
    dt_error err = {0};
    char *copy = (char *)malloc(size + 1);
    const char *stop = NULL;
    size_t n;
    int exact, plain;
    double v, right;
    MUST(copy);
    memcpy(copy, text, size);
    copy[size] = 0;
    n = decimal(copy, size, &exact);
    v = dt__parse_double(text, text + size, &stop);
    MUST(stop == text + n);
    copy[n] = 0;
    right = n ? strtod(copy, NULL) : 0;
    MUST(same_number(v, right, exact));
    /* As an option: the whole of the text, finite, and not negative. */
    plain = n && strnlen(text, size) == n && v - v == 0;
    memcpy(copy, text, size);
    copy[size] = 0;
    {
        dt_options o = fresh();
        int code = dt_option_set(&o, "learning-rate", copy, &err);
        MUST(code == err.code && (code != 0) == !(plain && v >= 0) && (code || o.learning_rate == v));
        MUST(!code || strstr(err.text, "--learning-rate is \""));
        memset(&err, 0, sizeof err);
        code = dt_option_set(&o, "momentum", copy, &err);
        MUST(code == err.code && (code != 0) == !(plain && (v >= 0 || v == -1)) && (code || o.momentum == v));
    }
    /* As a whole number: digits, and no more than the option holds. */
    {
        dt_options o = fresh();
        unsigned long long whole = 0;
        int digits = copy[0] != 0, code, fits;
        size_t i;
        for (i = 0; copy[i]; i++) digits &= copy[i] >= '0' && copy[i] <= '9';
        if (digits) errno = 0, whole = strtoull(copy, NULL, 10);
        fits = digits && !(whole == ULLONG_MAX && errno == ERANGE);
        memset(&err, 0, sizeof err);
        code = dt_option_set(&o, "seed", copy, &err);
        MUST(code == err.code && (code == 0) == fits && (code || o.seed == whole));
        memset(&err, 0, sizeof err);
        code = dt_option_set(&o, "steps", copy, &err);
        MUST(code == err.code && (code == 0) == (fits && whole <= LONG_MAX) && (code || (unsigned long)o.steps == whole));
        memset(&err, 0, sizeof err);
        code = dt_option_set(&o, "replicas", copy, &err);
        MUST(code == err.code && (code == 0) == (fits && whole <= INT_MAX) && (code || (unsigned)o.replicas == whole));
    }
    free(copy);
}

/* text: v to so many digits. As printf writes it; or not quite half way between two such numbers, where the library's
   64 bits round otherwise, but no further from v than half a unit of the last digit and an ulp of v. */
static int written_well(const char *text, double v, int digits, int fixed) {
    char right[400];
    long double read, unit;
    snprintf(right, sizeof right, fixed ? "%.*f" : "%.*g", digits, v);
    if (!strcmp(text, right)) return 1;
    if (v - v != 0) return 0;
    read = strtold(text, NULL);
    snprintf(right, sizeof right, fixed ? "%.*Lf" : "%.*Lg", digits, read);
    if (LDBL_DIG >= 18 && strcmp(text, right)) return 0;  /* the form is printf's */
    if (fixed) {
        unit = powl(10, -digits);
    } else {
        snprintf(right, sizeof right, "%.*e", digits - 1, v);
        unit = powl(10, (long double)(atoi(strchr(right, 'e') + 1) - digits + 1));
    }
    return fabsl(read - (long double)v) <= unit * 0.500001L + (long double)(nextafter(fabs(v), INFINITY) - fabs(v));
}

static void write_number(const uint8_t *data, size_t size) {
    dt_error err = {0};
    int fixed = data[0] >= 128, digits = data[0] % 17 + !fixed, as_fixed;
    size_t room = data[1], wanted;
    char text[64], *less;
    const char *stop;
    double v, back;
    dt__writer w;
    if (size < 10) return;
    memcpy(&v, data + 2, 8);
    w.text = text, w.size = sizeof text, w.n = 0;
    dt__put_double(&w, v, digits, fixed);
    wanted = w.n;
    MUST(wanted > 0 && wanted < sizeof text && strlen(text) == wanted);
    as_fixed = fixed && fabs(v) * pow(10, digits) < 1e18;
    if (v != v) MUST(!strcmp(text, "nan"));
    else MUST(written_well(text, v, fixed && !as_fixed ? 17 : digits, as_fixed));
    back = dt__parse_double(text, text + wanted, &stop);
    MUST(stop == text + wanted && (digits < 17 || same_number(v, back, 0)));
    /* In a block that is too small: its beginning, and how much was wanted. */
    less = (char *)malloc(room);
    MUST(less || !room);
    if (room) *less = 0;
    w.text = less, w.size = room, w.n = 0;
    dt__put_double(&w, v, digits, fixed);
    MUST(w.n == wanted);
    if (room) MUST(strlen(less) == (wanted < room ? wanted : room - 1) && !strncmp(less, text, strlen(less)));
    free(less);
}

/* dt_option_set does what the command line does. */
static void one_option(const char *text, size_t size) {
    dt_error err = {0}, other = {0};
    dt_options o = fresh(), p = fresh();
    arguments a = {{NULL}, 0};
    char flag[LONGEST + 16], *copy = (char *)malloc(size + 1), *value, *first, *second;
    int code, parsed;
    MUST(copy);
    memcpy(copy, text, size);
    copy[size] = 0;
    value = strchr(copy, '\n');
    if (value) *value++ = 0;
    code = dt_option_set(&o, copy, value, &err);
    MUST(code == err.code && (!code || (code == DT_ERR_USAGE && *err.text)));
    if (strchr(copy, '=') || (value && strchr(value, '\n')) || !strcmp(copy, "data") || !strcmp(copy, "model") || !strcmp(copy, "help") || !strcmp(copy, "version")) {
        MUST(code || !strchr(copy, '='));
        free(copy);
        return;
    }
    add(&a, "program", 7);
    add(&a, flag, (size_t)snprintf(flag, sizeof flag, value ? "--%s=%s" : "--%s", copy, value));
    listen_to();
    parsed = dt_parse(&p, a.n, a.at, &other);
    heard();
    MUST(parsed == code && n_said == 0);
    if (!code) {
        first = shown(&o), second = shown(&p);
        MUST(!strcmp(first, second));
        free(first), free(second);
    }
    release(&a);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || size > LONGEST) return 0;
    if (data[0] % 4 == 0) command_line((const char *)data + 1, size - 1);
    if (data[0] % 4 == 1) one_option((const char *)data + 1, size - 1);
    if (data[0] % 4 == 2) read_number((const char *)data + 1, size - 1);
    if (data[0] % 4 == 3) write_number(data + 1, size - 1);
    free(said);
    said = NULL;
    return 0;
}
