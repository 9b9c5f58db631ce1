/* csv.c - dt_csv on any files with any .columns or .fitted: refused with a message, or every value of every row is
 * there; and what was fitted gives the same values when it is read again, from its text and from a saved model.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/csv.c -o fuzz-csv -lm -pthread
 *   ./fuzz-csv -max_total_time=60 corpus/
 *
 * The first four bytes are options. Then come .columns or .fitted, a zero byte, and the files, a byte 1 between
 * them (where .fitted is a path, the first of them is that file). Or, as the third byte says, the bytes describe a
 * table of numbers and words, which is written as a CSV and must come back.
 */
#include "fuzz.h"
#include "../../examples/csv.h"

#define FILES 3
#define ROWS 64
#define COLUMNS 5
#define LONGEST 127  /* bytes of a field that are taken */

static int fd[FILES + 1];  /* the last one: a saved model */
static char path[FILES + 1][64];

/* Memory that nobody has written reads as NAN, and as a negative label; too much of it is refused, which dt_csv has
   to tell. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=64:max_malloc_fill_size=1000000:malloc_fill_byte=255";
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    dt_error err = {0};
    int i;
    (void)argc, (void)argv;
    for (i = 0; i <= FILES; i++) {
        fd[i] = memfd_create("csv", 0);
        MUST(fd[i] >= 0);
        snprintf(path[i], sizeof path[i], "/proc/self/fd/%d", fd[i]);
    }
    return 0;
}

/* ---- what was read */

static const float *features(const dt_dataset *d) { return (const float *)(const void *)d->part[0].x; }
static const void *labels(const dt_dataset *d) { return d->part[0].y; }
static long all_rows(const dt_dataset *d) { return d->part[0].n; }  /* of a fold too, the whole of it */

static float label(const dt_dataset *d, long row) {
    const char *at = (const char *)labels(d) + 4 * row;
    int32_t whole;
    float v;
    memcpy(&v, at, 4), memcpy(&whole, at, 4);
    return dt_dataset_describe(d).y_type == DT_INT32 ? (float)whole : v;
}

/* Every value can be read, and is one. What a stranger has fitted may be so far off that a quotient overflows. */
static void read_all(const dt_dataset *d, int stranger) {
    dt_error err = {0};
    dt_dataset_info info = dt_dataset_describe(d);
    const float *x = features(d);
    long n = all_rows(d), i;
    int largest = -1;
    MUST(info.n > 0 && info.n <= n && info.input[0] > 0 && info.input[1] == 0 && info.x_type == DT_FLOAT32);
    for (i = 0; i < n * info.input[0]; i++) MUST(stranger ? x[i] == x[i] : x[i] - x[i] == 0);
    for (i = 0; labels(d) && i < n; i++) {
        float y = label(d, i);
        MUST(y - y == 0);
        if (info.y_type != DT_INT32) continue;
        MUST(y >= 0 && y < (float)info.classes);
        if (y > (float)largest) largest = (int)y;
    }
    MUST(info.y_type == DT_INT32 ? info.classes == largest + 1 : info.classes == 0);
    MUST(dt_dataset_columns(d) && *dt_dataset_columns(d) == '[');
}

static void same(const dt_dataset *a, const dt_dataset *b) {
    dt_error err = {0};
    dt_dataset_info p = dt_dataset_describe(a), q = dt_dataset_describe(b);
    MUST(p.n == q.n && p.input[0] == q.input[0] && p.classes == q.classes && p.y_type == q.y_type);
    MUST(all_rows(a) == all_rows(b) && !labels(a) == !labels(b));
    MUST(!memcmp(features(a), features(b), (size_t)all_rows(a) * (size_t)p.input[0] * 4));
    MUST(!labels(a) || !memcmp(labels(a), labels(b), (size_t)all_rows(a) * 4));
    MUST(!strcmp(dt_dataset_columns(a), dt_dataset_columns(b)));
}

/* ---- fitted, saved, and read again */

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(x, 1);
}

static int append(void *user, const void *data, size_t n) {
    return write(*(const int *)user, data, n) != (ssize_t)n;
}

static void again(dt_dataset *d, dt_source s, const char *fitted) {
    dt_error err = {0};
    dt_dataset *e;
    s.columns = NULL;
    s.fitted = fitted;
    e = dt_dataset_open(&s, &err);
    MUST(e && !err.code);
    same(d, e);
    dt_dataset_close(e);
}

static void round_trip(dt_dataset *d, dt_source s, int saved) {
    dt_error err = {0};
    again(d, s, dt_dataset_columns(d));
    if (saved && dt_dataset_describe(d).input[0] <= 1000) {
        dt_options o = {.net = net, .train = dt_opened(d), .inference = 1, .batch = 1, .replicas = 1};
        dt_model *m = dt_model_create(&o, &err);
        MUST(m && !ftruncate(fd[FILES], 0) && lseek(fd[FILES], 0, SEEK_SET) == 0);
        MUST(!dt_save_to(m, append, &fd[FILES], &err));
        dt_model_free(m);
        again(d, s, path[FILES]);
    }
}

/* ---- any bytes */

static int refusal_names(const char *text) {
    static const char *const what[] = {"/proc/self/fd/", "dt_csv: .columns has \"", "dt_csv: .columns crosses", "dt_csv: .fitted: ", "dt_csv: .separator is ", "dt_fold: ", "dt_part: "};
    size_t i;
    for (i = 0; i < sizeof what / sizeof *what; i++) if (strstr(text, what[i])) return 1;
    return 0;
}

static void any(const uint8_t *data, size_t size) {
    static const int header[] = {0, 1, DT_OFF, 0}, separator[] = {0, 0, 0, ',', ';', '\t', '|', ' '};
    dt_error err = {0};
    dt_csv_options o = {0};
    dt_source s;
    dt_dataset *d;
    char names[FILES * sizeof *path] = "", *spec;
    size_t n;
    int i, split = data[0] & 64 ? DT_TEST : DT_TRAIN, fold = data[3], saved = data[0] & 128;
    o.missing = (dt_missing)(data[0] & 3);
    o.header = header[data[0] >> 2 & 3];
    o.label_type = data[0] & 32 ? DT_FLOAT32 : DT_TYPE_DEFAULT;
    o.label = (signed char)data[1];
    o.separator = data[2] >> 5 == 7 ? data[1] : separator[data[2] & 7];
    o.skip = data[2] >> 3 & 3;
    n = strnlen((const char *)data + 4, size - 4);
    spec = (char *)malloc(n + 1);
    MUST(spec);
    memcpy(spec, data + 4, n);
    spec[n] = 0;
    if (!(data[0] & 16)) o.columns = spec;
    else o.fitted = *spec == '[' ? spec : path[0];
    data += 4 + n, size -= 4 + n;
    if (size) data++, size--;
    for (i = 0; i < FILES; i++) {
        const uint8_t *end = size && i + 1 < FILES ? (const uint8_t *)memchr(data, 1, size) : NULL;
        n = end ? (size_t)(end - data) : size;
        MUST(!ftruncate(fd[i], 0) && pwrite(fd[i], data, n, 0) == (ssize_t)n);
        if (i || o.fitted != path[0] || !end) sprintf(names + strlen(names), "%s%s", *names ? "," : "", path[i]);
        if (!end) break;
        data += n + 1, size -= n + 1;
    }
    o.path = names;
    s = dt_csv_opt(o);
    if (fold & 1) s = fold & 2 ? dt_part(s, (fold >> 2) / 64.0, (dt_split)split) : dt_fold(s, fold >> 2 & 7, fold >> 5, (dt_split)split);
    d = dt_dataset_open(&s, &err);
    if (d) {
        MUST(!err.code && dt_dataset_describe(d).input[0] <= 10000000);
        read_all(d, o.fitted != NULL);
        if (!o.fitted) round_trip(d, s, saved);
    } else {
        MUST(err.code && refusal_names(err.text));
    }
    dt_dataset_close(d);
    free(spec);
}

/* ---- a table that the bytes describe */

static const uint8_t *left, *left_end;
static unsigned next(void) { return left < left_end ? *left++ : 0; }

static char text[1 << 18];
static size_t n_text;
static void put(char c) { text[n_text++] = c; }
static void put_text(const char *s) { while (*s) put(*s++); }

/* one column's words in the order of their appearance */
static char word[COLUMNS][ROWS][180];
static int n_words[COLUMNS];

/* A word that is no UTF-8 may be refused, for JSON cannot keep it; one that is taken is kept. */
static int foreign;

static int is_utf8(const char *s) {
    const unsigned char *p = (const unsigned char *)s;
    while (*p) {
        unsigned long v = *p, least[] = {0, 0x80, 0x800, 0x10000};
        int more = v < 0x80 ? 0 : v >> 5 == 6 ? 1 : v >> 4 == 14 ? 2 : v >> 3 == 30 ? 3 : -1, i;
        if (more < 0) return 0;
        if (more) v &= 0x3fu >> more;
        for (i = 1; i <= more; i++) {
            if (p[i] >> 6 != 2) return 0;
            v = v << 6 | (p[i] & 0x3f);
        }
        if (v < least[more] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff)) return 0;
        p += more + 1;
    }
    return 1;
}

static int word_number(int column, const char *w) {
    int k;
    for (k = 0; k < n_words[column]; k++) if (!strcmp(word[column][k], w)) return k;
    strcpy(word[column][k], w);
    return n_words[column]++;
}

/* A field of a word, which begins with a letter, so that it is no number and not missing; returns its length. */
static size_t put_word(int column, char separator, int *number) {
    char w[180] = "w";
    unsigned how = next(), size = how < 192 ? how % 8 : how - 80, i;  /* some around the longest that is taken */
    int quoted;
    for (i = 1; i <= size; i++) w[i] = (char)(i <= 8 ? next() : 'x');
    for (i = 1; i <= size; i++) if (!w[i]) w[i] = '0';
    w[i] = 0;
    quoted = how & 1 || strchr(w, separator) || strchr(w, '"') || strchr(w, '\n') || strchr(w, '\r') || w[size] == ' ';
    if (how & 2) put_text(" ");
    if (quoted) put('"');
    for (i = 0; w[i]; i++) { if (quoted && w[i] == '"') put('"'); put(w[i]); }
    if (quoted) put('"');
    if (how & 4) put_text("  ");
    foreign |= !is_utf8(w);
    *number = word_number(column, w);
    return strlen(w);
}

static float put_number(void) {
    char digits[40];
    unsigned how = next(), bits = 0, i;
    int quoted = how & 1;
    float v;
    for (i = 0; i < 4; i++) bits = bits << 8 | next();
    memcpy(&v, &bits, 4);
    if (how & 8 || v - v != 0) v = (float)(bits >> 24);
    if (how & 2 && !quoted) put_text(" ");
    if (quoted) put('"');
    snprintf(digits, sizeof digits, how & 4 ? "%.9g" : how & 16 && !signbit(v) ? "+%.12E" : "%.8e", (double)v);
    put_text(digits);
    if (quoted) put('"');
    if (how & 32) put_text(" ");
    return v;
}

static void table(const uint8_t *data, size_t size) {
    static float value[ROWS][COLUMNS];
    dt_error err = {0};
    char separator = ",;\t"[data[0] % 3], names[2 * sizeof *path] = "", spec[COLUMNS * 24] = "";
    int columns = 2 + data[1] % (COLUMNS - 1), words = data[1] / (COLUMNS - 1), saved = data[3] & 1;
    int rows = 0, c, n_files = 0, whole = 1, width = 0, features_of[COLUMNS];
    size_t longest = 0;
    dt_source s;
    dt_dataset *d;
    left = data + 4, left_end = data + size;
    memset(n_words, 0, sizeof n_words);
    foreign = 0;
    for (c = 0; c + 1 < columns; c++)
        if (words >> c & 1) sprintf(spec + strlen(spec), data[3] & 2 ? "%s%d onehot" : "%scolumn %d onehot", *spec ? "," : "", c + 1);
    for (n_text = 0; rows < ROWS && (rows == 0 || left < left_end); rows++) {
        unsigned how = next();
        if (rows == 0 || (how % 8 == 0 && n_files == 1)) {  /* the next file, and its header */
            if (rows) MUST(!ftruncate(fd[0], 0) && pwrite(fd[0], text, n_text, 0) == (ssize_t)n_text);
            if (rows) n_text = 0;
            sprintf(names + strlen(names), "%s%s", n_files ? "," : "", path[n_files]);
            n_files++;
            for (c = 0; c < columns; c++) n_text += (size_t)sprintf(text + n_text, "%scolumn %d", c ? (char[]){separator, 0} : "", c + 1);
            put('\n');
        }
        for (c = 0; c < columns; c++) {
            if (c) put(separator);
            if (words >> c & 1) {
                int k;
                size_t n = put_word(c, separator, &k);
                value[rows][c] = (float)k;
                if (n > longest) longest = n;
            } else {
                float v = value[rows][c] = put_number();
                if (c == columns - 1) whole &= v >= 0 && v < 1e6f && v == (float)(int)v;
            }
        }
        put_text(how & 16 ? "\r\n" : how & 32 ? "\n\n" : "\n");
    }
    if (data[3] & 4 && text[n_text - 1] == '\n') n_text--;  /* the last line may lack its end */
    if (data[3] & 4 && text[n_text - 1] == '\n') n_text--;
    MUST(!ftruncate(fd[n_files - 1], 0) && pwrite(fd[n_files - 1], text, n_text, 0) == (ssize_t)n_text);
    s = dt_csv(names, .header = 1, .columns = spec);
    d = dt_dataset_open(&s, &err);
    if (longest > LONGEST) {
        MUST(!d && refusal_names(err.text) && (foreign || strstr(err.text, "more than 127 bytes")));
        return;
    }
    if (!d && foreign) {
        MUST(refusal_names(err.text) && strstr(err.text, "UTF-8"));
        return;
    }
    MUST(d && !err.code);
    read_all(d, 0);
    for (c = 0; c + 1 < columns; c++) width += features_of[c] = words >> c & 1 ? n_words[c] : 1;
    MUST(dt_dataset_describe(d).n == rows && dt_dataset_describe(d).input[0] == width);
    MUST(dt_dataset_describe(d).y_type == (whole ? DT_INT32 : DT_FLOAT32));
    while (rows-- > 0) {
        const float *x = features(d) + (long)rows * width;
        int k;
        for (c = 0; c + 1 < columns; x += features_of[c++]) {
            if (!(words >> c & 1)) MUST(x[0] == value[rows][c]);
            else for (k = 0; k < n_words[c]; k++) MUST(x[k] == (k == (int)value[rows][c] ? 1.0f : 0.0f));
        }
        MUST(label(d, rows) == value[rows][c]);
    }
    round_trip(d, s, saved);
    dt_dataset_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    if (data[2] >> 5 == 6) table(data, size); else any(data, size);
    return 0;
}
