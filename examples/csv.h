// csv.h - dt_csv: tables of numbers and words, and what their columns become before a net sees them
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "csv.h"
//           In other files that call dt_csv: both without the definition. regression.c, beside this file, is a whole
//           program; train.c has it as --data csv:FILE --columns TEXT.
//
// What:    a first pass over the rows learns means, words and edges, a second one writes floats; what was learned is kept as
//          JSON, by which other tables are read alike.
// Owns:    nothing that outlives a call: rows and JSON belong to the open dt_dataset.
// Uses:    >>data (files, lists, folds), >>checkpoint (the metadata of a file), >>base.   Used by: programs.
// Promise: every field is a value, a word that was seen, or an error with its line and column; nothing is fitted to rows that are
//          held out.
#ifndef DTRAIN_CSV_H
#define DTRAIN_CSV_H

#ifndef DTRAIN_H
#error "csv.h goes behind dtrain.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    DT_MISSING_ERROR,  // an empty field, ?, NA or NaN is refused, by line and column
    DT_MISSING_MEAN,  // … becomes its column's mean
    DT_MISSING_ZERO,  // … becomes 0
    DT_MISSING_SKIP  // … drops the whole row
} dt_missing;

typedef struct {
    const char *path;
    int label;  // its column, from 1; 0 -> the last; DT_OFF: none
    int header;  // 0 -> the first line is one if it holds a word outside the label's column; 1: it is; DT_OFF: it is not
    int skip;  // lines to skip at the start
    int separator;  // 0 -> that of , ; tab which the first line holds most of
    dt_missing missing;
    dt_type label_type;  // 0: DT_INT32 if all labels are words, or whole numbers from 0 below 1e6; else DT_FLOAT32
    const char *columns;  // what columns become, by name or number; all others stay numbers:
                          // "age standardise, city onehot, zip hash 64, income bucket 10, city*sex cross 32, id drop"
    const char *fitted;  // … as fitted before: from dt_dataset_columns, or the path of what dt_save wrote
} dt_csv_options;

// dt_csv(path, …) - columns of numbers and words. Labels that are words are numbered as they appear. standardise:
// (x - mean) / deviation; onehot: one feature per word, all 0 for a new one; hash N: a word lights one of N features;
// bucket N: so does a number, by N shares of equal size; cross N: several columns, hashed together. Means, words and
// edges come from the training data (or the training side of a fold or part); the model applies them to its test data
// and to what it predicts, and dt_save and dt_load keep them in the file's metadata.
DT_API dt_source dt_csv_opt(dt_csv_options o);

#ifdef __cplusplus
}  // extern "C"
static inline dt_source dt_csv(const char *path, dt_csv_options o = dt_csv_options()) { o.path = path; return dt_csv_opt(o); }
#else
#define dt_csv(...) dt_csv_opt((dt_csv_options){.path = __VA_ARGS__})
#endif

#endif  // DTRAIN_CSV_H

#if defined(DTRAIN_IMPLEMENTED) && !defined(DTRAIN_CSV_IMPLEMENTED)
#define DTRAIN_CSV_IMPLEMENTED

#ifndef DTRAIN_NO_STDIO
#define DT__CSV_TEXT 128  // bytes kept of a field, its zero included

// What becomes of a column; up to BUCKET it is read as numbers.
enum { DT__AS_NUMBER, DT__AS_STANDARD, DT__AS_BUCKET, DT__AS_ONE_HOT, DT__AS_HASH, DT__AS_CROSS, DT__AS_NOTHING, DT__AS_LABEL };
static const struct { const char *name; int takes_size, n_numbers; } dt__kinds[] = {  // n_numbers: fitted; -1: any
    {"number", 0, 1}, {"standardise", 0, 2}, {"bucket", 1, -1}, {"onehot", 0, 0}, {"hash", 1, 1}, {"cross", 1, 1}, {"drop", 0, 0}, {"label", 0, 0}};

#define DT__CROSSED 4
typedef struct {
    int kind, n_columns, column[DT__CROSSED];  // from 0
    int size, width;  // N of bucket, hash and cross; its floats in a row of x
    double mean, squares, count;  // while a number is fitted
    dt__list numbers;  // fitted: mean and deviation; edges of buckets; size of hash and cross
    dt__list words;  // of onehot, and of word labels
} dt__feature;

typedef struct {
    dt_dataset *d;
    dt_error *err;
    dt_csv_options o;
    const char *path, *p, *end;  // of the file
    char separator;
    int column, cut, last;  // the field read or used; it exceeds its text; it is its row's last
    long line, n_rows;  // line: of that field, from 1
    dt__list fields, features;
    char (*text)[DT__CSV_TEXT];  // [columns] of the row, in the list
    dt__feature *feature;  // [n] in the list
    int n, columns, label;  // the file's; label -1: none
    int word_labels, whole_labels, width;  // -1 until the first label; width: floats of a row of x
    float *x, *y;
    uint8_t *fits;  // [rows] 1: on the training side, which is fitted to; NULL: all are
} dt__table;

static double *dt__numbers(const dt__feature *f) { return (double *)(void *)f->numbers.data; }

// ---- fields (RFC 4180, with any of , ; tab between them)

static int dt__csv_bad(const dt__table *t, const char *text, const char *wrong) {
    return dt__bad_file(t->err, "\"%s\" line %ld, column %d: \"%.40s\" %s", t->path, t->line, t->column, text, wrong);
}

// Of a field.
static int dt__csv_at_end(const dt__table *t) { return t->p == t->end || *t->p == t->separator || *t->p == '\n' || *t->p == '\r'; }

static int dt__csv_field(dt__table *t, char *text) {  // without quotes and blanks around
    const char *wrong = NULL;
    size_t n = 0, count = 0;  // count: with blanks that may be at the end
    long line = t->line;
    int quoted;
    t->column = t->last ? 1 : t->column + 1;
    while (t->p < t->end && (*t->p == ' ' || (*t->p == '\t' && t->separator != '\t'))) t->p++;
    quoted = t->p < t->end && *t->p == '"';
    for (t->p += quoted; !wrong && (quoted ? t->p < t->end : !dt__csv_at_end(t)); t->p++) {
        if (quoted && *t->p == '"' && (++t->p == t->end || *t->p != '"')) { quoted = 2; break; }  // 2: it has ended
        if (!*t->p) wrong = "stands before a zero byte: it is no text file";
        t->line += *t->p == '\n';
        if (count < DT__CSV_TEXT - 1) text[count] = *t->p;
        count++;
        if (quoted || *t->p != ' ') n = count;
    }
    t->cut = n >= DT__CSV_TEXT;
    text[DT__MIN(n, DT__CSV_TEXT - 1)] = 0;
    if (quoted == 1 && !wrong) { wrong = "has a quote that does not end"; t->line = line; }
    while (quoted && !dt__csv_at_end(t) && *t->p == ' ') t->p++;
    if (!wrong && !dt__csv_at_end(t)) wrong = "has text behind its closing quote";
    if (wrong) return dt__csv_bad(t, text, wrong);
    t->last = t->p == t->end || *t->p != t->separator;
    if (!t->last || (t->p < t->end && *t->p == '\r')) t->p++;
    if (t->last && t->p < t->end && *t->p == '\n') t->p++;
    return 0;
}

static void dt__csv_next_line(dt__table *t) {  // from a line's end to the next line that is not empty
    for (t->line++; t->p < t->end && (*t->p == '\n' || *t->p == '\r'); t->p++) t->line += *t->p == '\n';
}

static int dt__csv_is_missing(const char *s) {
    return !*s || !strcmp(s, "?") || ((*s | 32) == 'n' && dt__glob("NA,N/A,nan,NaN,NAN,null,NULL", s));
}

static int dt__csv_number(const char *s, float *out) {
    const char *end;
    double v = dt__parse_double(s, s + strlen(s), &end);
    *out = (float)v;
    return end > s && !*end && v - v == 0 && (double)*out - (double)*out == 0;
}

static int dt__word_number(const dt__list *l, const char *word) {  // a word's number in a list, or -1
    const char *w = l->data;
    int k;
    for (k = 0; k < l->n; k++, w += strlen(w) + 1) if (!strcmp(w, word)) return k;
    return -1;
}

static int dt__kind_of(const char *name) {
    int kind = 0;
    while (kind < DT__COUNT(dt__kinds) && strcmp(dt__kinds[kind].name, name)) kind++;
    return kind;
}

static int dt__add_feature(dt__table *t, const dt__feature *f) {
    if (dt__list_add(t->d, &t->features, f, sizeof *f)) return 1;
    t->feature = (dt__feature *)(void *)t->features.data; t->n = t->features.n;
    return 0;
}

static int dt__add_number(const dt__table *t, dt__feature *f, double v) { return dt__list_add(t->d, &f->numbers, &v, sizeof v); }

static int dt__add_word(const dt__table *t, dt__feature *f, const char *s) {
    return dt__word_number(&f->words, s) < 0 ? dt__list_add(t->d, &f->words, s, strlen(s) + 1) : 0;
}

// ---- .columns: see dt_csv_options

static int dt__digits(const char *s) {  // a number of digits only, else 0
    int v = 0;
    for (; *s >= '0' && *s <= '9' && v < 1000000; s++) v = v * 10 + (*s - '0');
    return *s ? 0 : v;
}

// By name in the header, or number from 1; -1: none.
static int dt__csv_column(const dt__table *t, const char *name) {
    int i = 0, number = dt__digits(name);
    while (i < t->columns && strcmp(t->text[i], name)) i++;
    return i < t->columns ? i : number <= t->columns ? number - 1 : -1;
}

static char *dt__trim(char *s) {
    size_t n = strlen(s);
    while (n && s[n - 1] == ' ') s[--n] = 0;
    return s + strspn(s, " ");
}

static char *dt__cut_word(char *s) {  // the last one, at a blank
    char *word;
    dt__trim(s);
    word = strrchr(s, ' ');
    if (word) *word++ = 0;
    return word ? word : s + strlen(s);
}

static int dt__column_spec(dt__table *t, const char *spec, int n) {
    char item[640], *word, *name, *next;  // four names and a kind fit
    int wrong = dt__format(item, sizeof item, " %.*s", n, spec) >= sizeof item, column;
    dt__feature f = DT_DEFAULTS;
    word = dt__cut_word(item);
    if ((f.size = dt__digits(word)) != 0) word = dt__cut_word(item);
    f.kind = dt__kind_of(word);
    wrong |= f.kind >= DT__AS_LABEL || dt__kinds[f.kind].takes_size != (f.size > 0) || f.size == 1 || f.size > 100000;
    for (name = item; name && !wrong; name = next) {
        next = f.kind == DT__AS_CROSS ? strchr(name, '*') : NULL;
        if (next) *next++ = 0;
        name = dt__trim(name);
        if ((wrong = !*name || f.n_columns == DT__CROSSED) != 0) break;
        column = f.column[f.n_columns++] = dt__csv_column(t, name);
        if (column < 0 || column == t->label)
            return dt__deny(t->err, "dt_csv: .columns names \"%.60s\", which is %s in \"%s\": use a name of its header or a number from 1", name, column < 0 ? "no column" : "the label", t->path);
    }
    if (wrong || (f.kind == DT__AS_CROSS && f.n_columns < 2))
        return dt__deny(t->err, "dt_csv: .columns has \"%.*s\": say NAME and number, standardise, onehot, hash N, bucket N, cross N or drop; N from 2; name the column, for cross two or more (a*b), not more than %d", DT__MIN(n, 40), spec, DT__CROSSED);
    if (f.kind == DT__AS_CROSS) return dt__add_feature(t, &f);
    t->feature[f.column[0]] = f;
    return 0;
}

static int dt__columns_spec(dt__table *t) {  // one feature per column, then the crosses
    const char *spec = t->o.columns;
    dt__feature f = DT_DEFAULTS;
    size_t n;
    for (f.n_columns = 1; f.column[0] < t->columns; f.column[0]++) {
        f.kind = f.column[0] == t->label ? DT__AS_LABEL : DT__AS_NUMBER;
        if (dt__add_feature(t, &f)) return 1;
    }
    for (; spec && *spec; spec += n + (spec[n] != 0)) {
        n = strcspn(spec, ",;");
        if (n > strspn(spec, " ") && dt__column_spec(t, spec, (int)DT__MIN(n, 1000))) return 1;
    }
    return 0;
}

// ---- what was fitted, as JSON: [["standardise",[0],12.5,3.25],["onehot",[1],"a","b"],["label",[3]]]

static void dt__put_columns(dt__writer *w, const dt__table *t) {
    int i, k;
    for (i = 0; i < t->n; i++) {
        const dt__feature *f = &t->feature[i];
        const char *word = f->words.data;
        dt__print(w, "%s[\"%s\",[", i ? "," : "[", dt__kinds[f->kind].name);
        for (k = 0; k < f->n_columns; k++) dt__print(w, "%s%d", k ? "," : "", f->column[k]);
        dt__put(w, ']');
        for (k = 0; k < f->numbers.n; k++) dt__print(w, ",%.17g", dt__numbers(f)[k]);
        for (k = 0; k < f->words.n; k++, word += strlen(word) + 1) { dt__puts(w, ",\""); dt__put_json(w, word); dt__put(w, '"'); }
        dt__put(w, ']');
    }
    dt__put(w, ']');
}

static char *dt__columns_of_file(const char *path, dt_error *err) {  // in the metadata of what dt_save wrote; the caller frees it
    dt_options none = DT_DEFAULTS;
    dt_load_options o = DT_DEFAULTS;
    dt__tensors t;
    char *text = NULL;
    o.path = path;
    if (!dt__tensors_open(&t, "dt_csv", &none, &o, err)) {
        if (t.columns.p) text = dt__tensors_columns(&t);
        else dt__bad_file(err, "dt_csv: .fitted: \"%s\" keeps no columns: was the model trained on a CSV?", path);
    }
    dt__tensors_close(&t);
    return text;
}

static int dt__json_word(dt__json *j, char word[128]) {
    size_t n = 0;
    if (!dt__json_string(j, word, 127, &n) || n > 127 || memchr(word, 0, n)) return dt__json_fail(j, "a bad word");
    word[n] = 0;
    return 1;
}

static int dt__columns_parse(dt__table *t) {  // after the first error all of dt__json return 0
    const char *fitted = t->o.fitted, *list = "a list is expected";
    dt__json j = {fitted, fitted + strlen(fitted), NULL};
    dt__json_want(&j, '[', list);
    while (dt__json_more(&j, ']')) {
        char word[128] = "";
        uint64_t column; double number;
        const double *v;
        dt__feature *f, empty = DT_DEFAULTS;
        int n_numbers;
        if (dt__add_feature(t, &empty)) return 1;
        f = &t->feature[t->n - 1];
        dt__json_want(&j, '[', list); dt__json_word(&j, word);
        f->kind = dt__kind_of(word);
        if (f->kind > DT__AS_LABEL) { dt__json_fail(&j, "an unknown kind of column"); break; }
        dt__json_want(&j, ',', "',' is expected"); dt__json_want(&j, '[', list);
        while (dt__json_more(&j, ']') && dt__json_uint(&j, &column)) {
            if (f->n_columns == DT__CROSSED || column > 100000) dt__json_fail(&j, "a bad column");
            else f->column[f->n_columns++] = (int)column;
        }
        while (dt__json_more(&j, ']')) {
            if (dt__json_peek(&j) == '"') {
                if (dt__json_word(&j, word) && dt__add_word(t, f, word)) return 1;
            } else if (dt__json_number(&j, &number) && number - number != 0) dt__json_fail(&j, "a number too large");
            else if (!j.error && dt__add_number(t, f, number)) return 1;
        }
        n_numbers = dt__kinds[f->kind].n_numbers; v = dt__numbers(f);
        if (f->n_columns < 1 || f->numbers.n > 100000 || (n_numbers >= 0 && f->numbers.n != n_numbers) || (f->kind == DT__AS_STANDARD && !(v[1] > 0))
                || ((f->kind == DT__AS_HASH || f->kind == DT__AS_CROSS) && !(v[0] >= 2 && v[0] <= 100000))) dt__json_fail(&j, "a bad column");
        if (f->kind == DT__AS_LABEL) t->word_labels = f->words.n > 0;
    }
    if (!t->n || j.p != j.end) dt__json_fail(&j, "no column, or something behind the list");
    return j.error ? dt__bad_file(t->err, "dt_csv: .fitted: %s, at byte %td: it must come from dt_dataset_columns", j.error, j.p - fitted) : 0;
}

// ---- rows

// The next row to t->text. *keep: 0 if a missing value drops it.
static int dt__csv_row(dt__table *t, int *keep) {
    int k;
    for (k = 0, *keep = 1; k < t->columns; k++) {
        char *text = t->text[k];
        if (dt__csv_field(t, text)) return 1;
        if (t->last != (k == t->columns - 1)) {
            long line = t->line;
            while (!t->last && !dt__csv_field(t, text)) {}
            return dt__bad_file(t->err, "\"%s\" line %ld has %d fields, the first row has %d", t->path, line, t->column, t->columns);
        }
        if (k < t->n && t->feature[k].kind == DT__AS_NOTHING) continue;
        if (t->cut) return dt__csv_bad(t, text, "… has more than 127 bytes");
        if (!dt__csv_is_missing(text)) continue;
        if (t->o.missing == DT_MISSING_SKIP) *keep = 0;
        else if (k == t->label || t->o.missing == DT_MISSING_ERROR)
            return dt__csv_bad(t, text, k == t->label ? "is a missing label: set .missing = DT_MISSING_SKIP" : "is a missing value: set .missing");
        *text = 0;
    }
    return 0;
}

// While there is no t->x, learn from a row; then its features to x and label to y. Mean and sum of squares: Welford 1962.
static int dt__use_row(dt__table *t, long row) {
    float *x = t->x ? t->x + (ptrdiff_t)row * t->width : NULL;
    dt__feature *f;
    for (f = t->feature; f < t->feature + t->n; f++) {
        const double *fitted = dt__numbers(f);
        int column = f->column[0], label = f->kind == DT__AS_LABEL;
        const char *s; float v;
        int k, words, number;
        if (f->kind == DT__AS_NOTHING || (label && column != t->label)) continue;
        t->column = column + 1;
        number = dt__csv_number(s = t->text[column], &v);
        if (label && t->word_labels < 0) t->word_labels = !number;
        words = label ? t->word_labels : f->kind >= DT__AS_ONE_HOT;
        if (!words && !number) {
            if (*s) return dt__csv_bad(t, s, "is no number: repair it, or let .columns say what it is (\"NAME onehot\")");
            v = (float)NAN;
        }
        if (!x) {
            if ((label && words) || f->kind == DT__AS_ONE_HOT) {
                const char *at = s;
                for (k = 1; *at && k; at += k) k = dt__utf8((const uint8_t *)at, (ptrdiff_t)strlen(at));
                if (!k) return dt__csv_bad(t, s, "is no UTF-8, in which words are kept: convert the file");
                if (*s && dt__add_word(t, f, s)) return 1;
                if (!label && f->words.n > 1000) return dt__csv_bad(t, s, "is one value too many, after 1,000: use \"hash N\" instead of \"onehot\"");
            } else if (f->kind == DT__AS_BUCKET) {
                if (v == v && dt__add_number(t, f, (double)v)) return 1;
            } else if (f->kind <= DT__AS_STANDARD && v == v) {
                double d = (double)v - f->mean;
                f->mean += d / ++f->count;
                f->squares += d * ((double)v - f->mean);
            }
        } else if (label) {
            if (words && (v = (float)dt__word_number(&f->words, s)) < 0)
                return dt__bad_file(t->err, "\"%s\" line %ld: the label \"%.40s\" is none of the %d of the training data", t->path, t->line, s, f->words.n);
            t->y[row] = v;
            t->whole_labels &= v >= 0 && v < 1e6f && v == floorf(v);
        } else if (f->kind <= DT__AS_STANDARD) {
            if (v != v) v = t->o.missing == DT_MISSING_MEAN ? (float)fitted[0] : 0;
            *x = f->kind == DT__AS_NUMBER ? v : (float)(((double)v - fitted[0]) / fitted[1]);
        } else {
            uint32_t hash = 0;
            for (k = 0; k < f->n_columns; k++) hash = dt__crc32c(hash, t->text[f->column[k]], strlen(t->text[f->column[k]]) + 1);
            memset(x, 0, (size_t)f->width * sizeof *x);
            if (f->kind == DT__AS_ONE_HOT) k = dt__word_number(&f->words, s);
            else if (f->kind != DT__AS_BUCKET) k = (int)(dt__mix(hash) % (uint64_t)f->width);
            else for (k = v == v ? 0 : -1; k >= 0 && k < f->numbers.n && (double)v >= fitted[k]; k++) {}
            if (k >= 0) x[k] = 1;
        }
        if (x) x += f->width;
    }
    return 0;
}

static int dt__by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int dt__fit_end(dt__table *t) {
    dt__feature *f; int k;
    for (f = t->feature; f < t->feature + t->n; f++) {
        double *v = dt__numbers(f), fitted[2] = {f->size ? f->size : f->mean, f->squares > 0 ? sqrt(f->squares / f->count) : 1};
        int all = f->numbers.n, n = 0;
        for (k = 0; k < dt__kinds[f->kind].n_numbers; k++) if (dt__add_number(t, f, fitted[k])) return 1;
        if (f->kind != DT__AS_BUCKET || !all) continue;
        qsort(v, (size_t)all, sizeof *v, dt__by_value);  // edges between equal shares of the values, each once
        for (k = 1; k < f->size; k++) {
            double edge = v[(uint64_t)all * (unsigned)k / (unsigned)f->size];
            if (edge > v[n ? n - 1 : 0]) v[n++] = edge;  // n < k: nothing unread is overwritten
        }
        f->numbers.n = n;
    }
    return 0;
}

static int dt__feature_width(const dt__feature *f) {
    if (f->kind == DT__AS_BUCKET) return f->numbers.n + 1;
    if (f->kind == DT__AS_ONE_HOT) return f->words.n;
    return dt__kinds[f->kind].takes_size ? (int)*dt__numbers(f) : f->kind <= DT__AS_STANDARD;
}

// Find separator, columns and header (t->text holds it, or nothing); stop before the first row of data.
static int dt__csv_start(dt__table *t, int file) {
    const dt_csv_options *o = &t->o;
    const char *q, *s, *first; char text[DT__CSV_TEXT];
    int n, most = 0, words = 0, word = 0;
    long line; float v;
    if (o->separator < 0 || o->separator > 255 || (o->separator && strchr("\"\r\n", o->separator)))
        return dt__deny(t->err, "dt_csv: .separator is %d: give one character, but no quote or line end", o->separator);
    if (t->end - t->p >= 3 && !memcmp(t->p, "\xef\xbb\xbf", 3)) t->p += 3;  // a byte order mark
    for (t->line = 0; t->line < o->skip && t->p < t->end; t->p++) t->line += *t->p == '\n';
    dt__csv_next_line(t);
    t->separator = o->separator ? (char)o->separator : ',';
    for (s = o->separator ? "" : ",;\t"; *s; s++) {
        for (q = t->p, n = 0; q < t->end && *q != '\n'; q++) n += *q == *s;
        if (n > most) { most = n; t->separator = *s; }
    }
    first = t->p; line = t->line;
    t->last = 1; t->fields.used = 0;
    do {
        if (dt__csv_field(t, text) || dt__list_add(t->d, &t->fields, text, sizeof text)) return 1;
        if (t->column > 100000) return dt__csv_bad(t, text, "is one field too many");
        if (!dt__csv_number(text, &v) && !dt__csv_is_missing(text)) { words++; word = t->column; }
    } while (!t->last);
    n = t->column;
    if (t->columns && t->columns != n) return dt__bad_file(t->err, "\"%s\": file %d has %d columns, the first has %d", t->path, file, n, t->columns);
    t->columns = n; t->label = o->label == DT_OFF ? -1 : o->label > 0 ? o->label - 1 : o->label ? n : n - 1;
    if (t->label >= n) return dt__deny(t->err, "\"%s\" has %d columns, .label is %d: columns count from 1", t->path, n, o->label);
    if (n == (t->label >= 0)) return dt__bad_file(t->err, "\"%s\" has no features: it is empty, or needs another .separator", t->path);
    t->text = (char (*)[DT__CSV_TEXT])t->fields.data;
    // A word in the label's column alone is a label, no header.
    if (o->header != DT_OFF && (o->header || (words && (words > 1 || word != t->label + 1)))) { dt__csv_next_line(t); return 0; }
    memset(t->text, 0, (size_t)n * sizeof *t->text);
    t->p = first; t->line = line;
    return 0;
}

// All files: to count rows, to learn from those of the training side, to apply.
static int dt__csv_pass(dt__table *t) {
    long row = 0;
    int i, k, keep, used, labels;
    t->path = t->d->paths[0].data;
    for (i = 0; i < t->d->n_files; i++, t->path += strlen(t->path) + 1) {
        const dt__feature *f;
        t->p = (const char *)t->d->file[i].data; t->end = t->p + t->d->file[i].size;
        if (dt__csv_start(t, i + 1) || (!t->n && dt__columns_spec(t))) return 1;
        labels = 0;
        for (f = t->feature; f < t->feature + t->n; labels += f++->kind == DT__AS_LABEL)
            for (k = 0; k < f->n_columns; k++)
                if (f->kind == DT__AS_LABEL ? t->label >= 0 && f->column[k] != t->label : f->column[k] >= t->columns || f->column[k] == t->label)
                    return dt__bad_file(t->err, "\"%s\" has %d columns and its label in column %d, unlike the training data", t->path, t->columns, t->label + 1);
        if (t->label >= 0 && !labels) return dt__bad_file(t->err, "\"%s\": the training data had no label: set .label = DT_OFF", t->path);
        for (; t->p < t->end && row < t->n_rows; dt__csv_next_line(t), row += keep) {  // the file may have grown
            if (dt__csv_row(t, &keep)) return 1;
            used = t->x || (!t->o.fitted && (t->fits ? t->fits[row] : !t->d->source.folds));
            if (keep && used && dt__use_row(t, row)) return 1;
        }
    }
    t->n_rows = row;
    return 0;
}

static int dt__csv_training_rows(dt__table *t) {  // count rows; find those of the training side of a fold or part
    dt_dataset training = *t->d;
    long i;
    if (dt__csv_pass(t)) return 1;
    if (!(t->fits = (uint8_t *)calloc((size_t)t->n_rows + 1, 1))) return dt__no_memory(t->d);
    training.n_all = t->n_rows; training.source.held_out = 0;
    if (dt__open_fold(&training)) return 1;
    for (i = 0; i < training.info.n; i++) t->fits[dt__unfold(&training, i)] = 1;
    return 0;
}

static int dt__csv_read(dt__table *t) {
    dt_dataset *d = t->d;
    dt__writer w = DT_DEFAULTS;
    const char *path;
    double width = 0;
    ptrdiff_t n; long row;
    int i, whole;
    if (dt__add_paths(d, &d->paths[0], t->o.path)) return 1;
    path = d->paths[0].data;
    for (i = 0; i < d->paths[0].n; i++, path += strlen(path) + 1) if (!dt__add_file(d, path)) return 1;
    if (t->o.fitted ? dt__columns_parse(t) : d->source.folds && dt__csv_training_rows(t)) return 1;
    if (dt__csv_pass(t) || (!t->o.fitted && dt__fit_end(t))) return 1;
    for (i = 0; i < t->n; i++) width += t->feature[i].width = dt__feature_width(&t->feature[i]);
    if (width < 1 || width > 10000000) return dt__bad_file(t->err, "\"%s\" gives %.0f features: at least one, and at most 10,000,000", t->o.path, width);
    if (t->n_rows == 0) return dt__bad_file(t->err, "\"%s\" has no row of data", t->o.path);
    t->width = d->info.input[0] = (int)width;
    if (!dt__times(t->n_rows, t->width, &n)) return dt__no_memory(d);
    d->x = t->x = (float *)calloc((size_t)n, sizeof *t->x);
    d->y = t->y = (float *)calloc((size_t)t->n_rows, sizeof *t->y);
    if (!t->x || !t->y) return dt__no_memory(d);
    if (dt__csv_pass(t)) return 1;
    dt__put_columns(&w, t);
    w.size = w.n + 1; w.n = 0;
    d->columns = w.text = (char *)malloc(w.size);
    if (!w.text) return dt__no_memory(d);
    dt__put_columns(&w, t);
    d->info.x_type = DT_FLOAT32; d->x_stride = t->width * (ptrdiff_t)sizeof *t->x;
    if (t->label < 0) return dt__add_part(d, t->x, NULL, (size_t)t->n_rows);
    whole = t->whole_labels && t->o.label_type != DT_FLOAT32;
    d->info.y_type = whole ? DT_INT32 : DT_FLOAT32; d->y_stride = sizeof *t->y;
    for (row = 0; whole && row < t->n_rows; row++) {
        int32_t label = (int32_t)t->y[row];
        memcpy(&t->y[row], &label, sizeof label);
        d->info.classes = DT__MAX(d->info.classes, (int)label + 1);
    }
    return dt__add_part(d, t->x, t->y, (size_t)t->n_rows);
}

static dt_csv_options dt__csv_options(const dt_source *s) {  // see dt_csv_opt
    dt_csv_options o = DT_DEFAULTS;
    o.path = s->path; o.columns = s->columns; o.fitted = s->fitted;
    o.label = s->option[0]; o.header = s->option[1]; o.skip = s->option[2]; o.separator = s->option[3];
    o.missing = (dt_missing)s->option[4]; o.label_type = (dt_type)s->option[5];
    return o;
}

static int dt__open_csv(dt_dataset *d) {
    dt__table t = DT_DEFAULTS;
    char *fitted = NULL;
    int code;
    t.d = d; t.err = d->err; t.o = dt__csv_options(&d->source); t.n_rows = LONG_MAX;
    t.whole_labels = 1; t.word_labels = -1;
    if (t.o.skip < 0) return dt__deny(d->err, "dt_csv: .skip is %d: it must be 0 or more", t.o.skip);
    if (t.o.fitted && *t.o.fitted != '[' && !(t.o.fitted = fitted = dt__columns_of_file(t.o.fitted, d->err))) return 1;
    code = dt__csv_read(&t);
    free(fitted);
    while (d->n_files > 0) dt__file_free(&d->file[--d->n_files]);
    for (; t.n > 0; t.n--, t.feature++) { free(t.feature->numbers.data); free(t.feature->words.data); }
    free(t.features.data); free(t.fields.data); free(t.fits);
    return code;
}
#else
static int dt__open_csv(dt_dataset *d) { return dt__fail(d->err, DT_ERR_DISABLED, "dt_csv: this build has DTRAIN_NO_STDIO: build without it"); }
#endif

DT_API dt_source dt_csv_opt(dt_csv_options o) {
    const int option[] = {o.label, o.header, o.skip, o.separator, (int)o.missing, (int)o.label_type};
    dt_source s = dt__files("dt_csv", dt__open_csv, o.path, NULL, DT_TRAIN);
    s.columns = o.columns; s.fitted = o.fitted;
    memcpy(s.option, option, sizeof option);
    return s;
}
#endif
