/* train.c - options and flags, the training loop, and programs on dt_main, which this program starts
 * as children of itself: ./train child MODE FLAGS…
 */
#include "../dtrain.h"
#include "../examples/cifar10.h"
#include "test.h"
#include "scratch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *self;  /* argv[0] */

/* ---- a small job ------------------------------------------------------------------------------------ */

enum { FEATURES = 8, TRAIN_N = 120, TEST_N = 30, PARAMETERS = FEATURES * 12 + 12 + 12 * 3 + 3 };
static float train_x[TRAIN_N][FEATURES], test_x[TEST_N][FEATURES];
static int32_t train_y[TRAIN_N], test_y[TEST_N], wrong_y[TEST_N];

static void make_rows(void) {
    uint32_t h = 99;
    for (int i = 0; i < TRAIN_N + TEST_N; i++) {
        float *x = i < TRAIN_N ? train_x[i] : test_x[i - TRAIN_N];
        int label = i % 3;
        for (int k = 0; k < FEATURES; k++) {
            h = h * 1664525u + 1013904223u;
            x[k] = (float)(h >> 8) / 16777216.0f - 0.5f + (k % 3 == label ? 0.5f : 0.0f);
        }
        if (i < TRAIN_N) train_y[i] = label;
        else test_y[i - TRAIN_N] = label, wrong_y[i - TRAIN_N] = (label + 1) % 3;
    }
}

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_tanh(dt_dense(x, 12, .name = "hidden"));
    return dt_dense(x, 3, .name = "logits");
}

static dt_options job(void) {
    dt_options o = DT_DEFAULTS;
    o.net = net, o.loss = DT_CROSS_ENTROPY, o.optimizer = DT_ADAM, o.learning_rate = 0.01;
    o.input[0] = FEATURES, o.batch = 16, o.epochs = 2, o.replicas = 2, o.seed = 1;
    o.train = dt_arrays(train_x, DT_FLOAT32, train_y, DT_INT32, TRAIN_N);
    o.test = dt_arrays(test_x, DT_FLOAT32, test_y, DT_INT32, TEST_N);
    return o;
}
enum { JOB_STEPS = (TRAIN_N + 15) / 16 };  /* of an epoch */

/* ---- the children -------------------------------------------------------------------------------------- */

static int child_signal;
static int signal_at_5(const dt_event *e, void *user) {
    (void)user;
    if (e->kind == DT_EVENT_STEP && e->step == 5) raise(child_signal);
    return 0;
}

static int nan_forward(const dt_custom_call *c) {
    for (int i = 0; i < c->n * 12; i++) c->y[i] = c->training && c->step >= 3 ? NAN : c->x[0][i];
    return 0;
}

static int copy_backward(const dt_custom_call *c) {
    if (c->dx[0]) for (int i = 0; i < c->n * 12; i++) c->dx[0][i] += c->dy[i];
    return 0;
}

static dt_tensor *nan_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_dense(x, 12, .name = "hidden");
    x = dt_custom(x, {12}, nan_forward, copy_backward, NULL, .name = "poison");
    return dt_dense(x, 3, .name = "logits");
}

static void own_handler(int signal_number) { (void)signal_number; }

static int child(int argc, char **argv) {
    const char *mode = argv[0];
    static const char *colour = "blue";
    static const dt_flag flags[] = { { "colour", &colour, "of the bicycle shed" }, { NULL, NULL, NULL } };
    dt_options o = job();
    alarm(300);
    make_rows();
    o.flags = flags;
    if (!strcmp(mode, "ping")) return puts("pong") < 0;
    if (!strcmp(mode, "locale") && (!setlocale(LC_ALL, "") || strcmp(localeconv()->decimal_point, ","))) return 77;
    if (!strcmp(mode, "nan")) o.net = nan_net;
    if (!strcmp(mode, "full") && !freopen("/dev/full", "w", stdout)) return 78;
    if (!strcmp(mode, "no-test")) memset(&o.test, 0, sizeof o.test);
    if (!strcmp(mode, "missing")) o.train = dt_mnist("/nonexistent/digits", DT_TRAIN), o.input[0] = 0;
    if (!strcmp(mode, "interrupt")) child_signal = SIGINT, o.on_event = signal_at_5, o.steps = 100000000;
    if (!strcmp(mode, "terminate")) child_signal = SIGTERM, o.on_event = signal_at_5, o.steps = 100000000;
    if (!strcmp(mode, "handlers")) {  /* dt_run puts back what it found */
        struct sigaction mine, after[2];
        memset(&mine, 0, sizeof mine);
        mine.sa_handler = own_handler;
        sigaction(SIGINT, &mine, NULL);
        if (dt_run(&o)) return 2;
        sigaction(SIGINT, NULL, &after[0]), sigaction(SIGTERM, NULL, &after[1]);
        return after[0].sa_handler == own_handler && after[1].sa_handler == SIG_DFL ? 0 : 3;
    }
    if (!strcmp(mode, "flags")) {
        dt_error err = DT_DEFAULTS;
        int rc = dt_parse(&o, argc, argv, &err);
        printf("%s %d %d\n", colour, o.batch, rc);
        return rc;
    }
    return dt_main_opt(argc, argv, &o);
}

typedef struct { int status, signal; char *out, *err; size_t out_bytes, err_bytes; } outcome;

static void outcome_free(outcome *r) {
    free(r->out), free(r->err);
    memset(r, 0, sizeof *r);
}

/* runs a child; line: "MODE FLAG FLAG …", separated by single blanks; env: NAME=VALUE or NULL */
static outcome start(const char *line, const char *env) {
    outcome r;
    char words[2000], *argv[64];
    int argc = 0, status = 0;
    memset(&r, 0, sizeof r);
    snprintf(words, sizeof words, "%s", line);
    argv[argc++] = (char *)(uintptr_t)self, argv[argc++] = (char *)(uintptr_t)"child";
    for (char *p = strtok(words, " "); p && argc < 63; p = strtok(NULL, " ")) argv[argc++] = p;
    argv[argc] = NULL;
    char out[512], err[512];
    snprintf(out, sizeof out, "%s", at("stdout")), snprintf(err, sizeof err, "%s", at("stderr"));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(out, "w", stdout) || !freopen(err, "w", stderr)) _exit(126);
        if (env) putenv((char *)(uintptr_t)env);
        execv(self, argv);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0) status = 127 << 8;
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    r.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    r.out = (char *)get(out, &r.out_bytes), r.err = (char *)get(err, &r.err_bytes);
    if (!r.out) r.out = (char *)calloc(1, 1);
    if (!r.err) r.err = (char *)calloc(1, 1);
    return r;
}

static int can_start(void) {
    static int known = -1;
    if (known < 0) {
        outcome r = start("ping", NULL);
        known = r.status == 0 && !strcmp(r.out, "pong\n");
        outcome_free(&r);
    }
    return known;
}
#define NEEDS_CHILDREN do { if (!can_start()) SKIP("this program cannot start itself here"); } while (0)

static const char *last_line(char *text) {
    size_t n = strlen(text);
    if (n && text[n - 1] == '\n') text[n - 1] = 0;
    char *p = strrchr(text, '\n');
    return p ? p + 1 : text;
}

/* ---- one flat JSON object --------------------------------------------------------------------------------- */

typedef struct { char key[40], text[100]; int is_string; } field;
typedef struct { int n; field f[40]; } object;

static const char *json_string(const char *p, char *out, size_t size) {
    size_t n = 0;
    if (!p || *p++ != '"') return NULL;
    for (; *p && *p != '"'; p++) {
        if ((unsigned char)*p < 0x20) return NULL;
        if (*p == '\\' && !strchr("\"\\/bfnrtu", *++p)) return NULL;
        if (n + 1 < size) out[n++] = *p;
    }
    out[n] = 0;
    return *p == '"' ? p + 1 : NULL;
}

static const char *json_number(const char *p, char *out, size_t size) {  /* the grammar of RFC 8259 */
    const char *s = p;
    if (*p == '-') p++;
    if (*p == '0') p++;
    else if (isdigit((unsigned char)*p)) while (isdigit((unsigned char)*p)) p++;
    else return NULL;
    if (*p == '.') {
        if (!isdigit((unsigned char)*++p)) return NULL;
        while (isdigit((unsigned char)*p)) p++;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        if (!isdigit((unsigned char)*p)) return NULL;
        while (isdigit((unsigned char)*p)) p++;
    }
    if ((size_t)(p - s) >= size) return NULL;
    memcpy(out, s, (size_t)(p - s));
    out[p - s] = 0;
    return p;
}

static int json(const char *p, object *o) {
#define BLANKS do { while (*p == ' ') p++; } while (0)
    memset(o, 0, sizeof *o);
    if (*p++ != '{') return 0;
    BLANKS;
    for (; *p != '}' && o->n < 40; o->n++) {
        field *f = &o->f[o->n];
        if (o->n && *p++ != ',') return 0;
        BLANKS;
        if (!(p = json_string(p, f->key, sizeof f->key))) return 0;
        BLANKS;
        if (*p++ != ':') return 0;
        BLANKS;
        f->is_string = *p == '"';
        if (!strncmp(p, "null", 4)) memcpy(f->text, "null", 5), p += 4;
        else if (!strncmp(p, "true", 4)) memcpy(f->text, "true", 5), p += 4;
        else if (!strncmp(p, "false", 5)) memcpy(f->text, "false", 6), p += 5;
        else if (f->is_string) p = json_string(p, f->text, sizeof f->text);
        else p = json_number(p, f->text, sizeof f->text);
        if (!p) return 0;
        BLANKS;
    }
    return *p == '}' && !p[1];
#undef BLANKS
}

static const field *find(const object *o, const char *key) {
    const field *found = NULL;
    for (int i = 0; i < o->n; i++) if (!strcmp(o->f[i].key, key)) { if (found) return NULL; found = &o->f[i]; }
    return found;
}

static double number(const object *o, const char *key) {
    const field *f = find(o, key);
    return f && !f->is_string && strcmp(f->text, "null") ? strtod(f->text, NULL) : NAN;
}

static uint32_t crc_of(const object *o) {  /* a number, or a string of hexadecimal digits */
    const field *f = find(o, "parameters_crc32c");
    return f ? (uint32_t)strtoul(f->text, NULL, f->is_string ? 16 : 10) : 0;
}

/* the JSON line of a child that has to end well */
static object json_of(const char *line) {
    object o;
    outcome r = start(line, NULL);
    CHECK_MSG(r.status == 0, "%s: status %d, signal %d, \"%s\"", line, r.status, r.signal, r.err);
    const char *last = last_line(r.out);
    CHECK_MSG(json(last, &o), "%s: no JSON: \"%s\"", line, last);
    outcome_free(&r);
    return o;
}

/* ---- flags and options ---------------------------------------------------------------------------------------- */

static void test_option_set(void) {
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    static const struct { const char *name, *value; } set[] = {
        { "strategy", "central" }, { "replicas", "3" }, { "batch", "128" }, { "replica-batch", "64" }, { "epochs", "7" }, { "steps", "100000" },
        { "seed", "18446744073709551615" }, { "optimizer", "adamw" }, { "learning-rate", "2.5e-3" }, { "save", "a.safetensors" }, { "load", "b.safetensors" },
    };
    for (int i = 0; i < COUNT(set); i++) CHECK_MSG(dt_option_set(&o, set[i].name, set[i].value, &err) == 0, "%s: %s", set[i].name, err.text);
    CHECK(o.strategy == DT_CENTRAL && o.replicas == 3 && o.batch == 128 && o.replica_batch == 64 && o.epochs == 7 && o.steps == 100000);
    CHECK(o.seed == UINT64_MAX && o.optimizer == DT_ADAMW && o.learning_rate == 2.5e-3);
    CHECK(o.save && !strcmp(o.save, "a.safetensors") && o.load && !strcmp(o.load, "b.safetensors"));

    static const struct { const char *value; dt_optimizer is; } optimizer[] = {
        { "sgd", DT_SGD }, { "momentum", DT_MOMENTUM }, { "nesterov", DT_NESTEROV }, { "adam", DT_ADAM }, { "adamw", DT_ADAMW }, { "rmsprop", DT_RMSPROP },
    };
    for (int i = 0; i < COUNT(optimizer); i++) CHECK_MSG(dt_option_set(&o, "optimizer", optimizer[i].value, &err) == 0 && o.optimizer == optimizer[i].is, "%s: %s", optimizer[i].value, err.text);
    static const struct { const char *value; dt_strategy is; } strategy[] = {
        { "one", DT_ONE }, { "mirrored", DT_MIRRORED }, { "central", DT_CENTRAL },
        { "OneDeviceStrategy", DT_ONE }, { "MirroredStrategy", DT_MIRRORED }, { "CentralStorageStrategy", DT_CENTRAL },  /* TensorFlow's names */
    };
    for (int i = 0; i < COUNT(strategy); i++) CHECK_MSG(dt_option_set(&o, "strategy", strategy[i].value, &err) == 0 && o.strategy == strategy[i].is, "%s: %s", strategy[i].value, err.text);

    static const struct { const char *name, *value; } bad[] = {
        { "batch", "abc" },     { "batch", "12x" },      { "batch", "1.5" },       { "batch", "" },        { "batch", "-5" },       { "batch", "99999999999" },
        { "batch", "1e3" },     { "batch", "0x10" },     { "batch", " 5" },        { "batch", "5 " },      { "batch", "--batch" },
        { "epochs", "-1" },     { "epochs", "two" },     { "steps", "-1" },        { "steps", "99999999999999999999" },              { "replicas", "-2" },
        { "seed", "-1" },       { "seed", "18446744073709551616" },                { "seed", "0.5" },
        { "learning-rate", "nan" }, { "learning-rate", "inf" }, { "learning-rate", "-1" }, { "learning-rate", "1,5" }, { "learning-rate", "1e999" },
        { "learning-rate", "" }, { "learning-rate", "." }, { "learning-rate", "0.1x" }, { "learning-rate", "fast" },
        { "optimizer", "adamm" }, { "optimizer", "" }, { "strategy", "mirored" }, { "strategy", "TPUStrategy" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_options before = DT_DEFAULTS, after;
        before.batch = 3, before.learning_rate = 0.5, before.seed = 9, before.replicas = 2;
        after = before;
        dt_error e = DT_DEFAULTS;
        int rc = dt_option_set(&after, bad[i].name, bad[i].value, &e);
        CHECK_MSG(rc && rc == e.code && strstr(e.text, bad[i].name) && strstr(e.text, bad[i].value), "%s \"%s\": %d \"%s\"", bad[i].name, bad[i].value, rc, e.text);
        CHECK_MSG(after.batch == before.batch && after.learning_rate == before.learning_rate && after.seed == before.seed && after.replicas == before.replicas && after.optimizer == before.optimizer, "%s \"%s\" was stored", bad[i].name, bad[i].value);
    }
    dt_error e = DT_DEFAULTS;
    CHECK(dt_option_set(&o, "bacth", "5", &e) && strstr(e.text, "bacth"));
    memset(&e, 0, sizeof e);
    CHECK(dt_option_set(&o, "batch", NULL, &e) && strstr(e.text, "batch"));
    CHECK(dt_option_set(&o, NULL, "5", NULL) && dt_option_set(&o, "", "5", NULL) && dt_option_set(NULL, "batch", "5", NULL));
    /* the words for bad choices name the good ones */
    memset(&e, 0, sizeof e);
    dt_option_set(&o, "optimizer", "adamm", &e);
    CHECK_MSG(strstr(e.text, "adamw") && strstr(e.text, "sgd"), "\"%s\"", e.text);
}

static void test_parse(void) {
    char *good[] = { "prog", "--batch", "64", "--json", "--learning-rate", "0.5", "--seed", "7", "--shed", "red", NULL };
    const char *shed = "green", *other = "kept";
    dt_flag flags[] = { { "shed", &shed, "colour" }, { "other", &other, "not given" }, { NULL, NULL, NULL } };
    dt_error err = DT_DEFAULTS;
    dt_options o = job();
    o.flags = flags;
    CHECK(dt_parse(&o, COUNT(good) - 1, good, &err) == DT_OK);
    CHECK_OK(err);
    CHECK(o.batch == 64 && o.json == 1 && o.learning_rate == 0.5 && o.seed == 7 && o.epochs == 2);
    CHECK(shed == good[9] && !strcmp(other, "kept"));
    CHECK(dt_parse(&o, 1, good, &err) == DT_OK && o.batch == 64);

    static const struct { const char *name, *argv[5]; const char *says[2]; } bad[] = {
        { "unknown flag",       { "prog", "--bacth", "5" }, { "--bacth" } },
        { "unknown, one dash",  { "prog", "-x" }, { "-x" } },
        { "a word",             { "prog", "mnist" }, { "mnist" } },
        { "no value",           { "prog", "--batch" }, { "--batch", "value" } },
        { "no value of own",    { "prog", "--shed" }, { "--shed", "value" } },
        { "bad number",         { "prog", "--batch", "many" }, { "batch", "many" } },
        { "a flag as value",    { "prog", "--batch", "--json" }, { "batch", "--json" } },
        { "negative",           { "prog", "--replicas", "-1" }, { "replicas", "-1" } },
        { "bad word",           { "prog", "--optimizer", "best" }, { "optimizer", "best" } },
        { "behind a good one",  { "prog", "--batch", "5", "--sgd" }, { "--sgd" } },
        { "empty argument",     { "prog", "" }, { "" } },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        char *argv[6] = { NULL };
        int argc = 0;
        dt_error e = DT_DEFAULTS;
        dt_options p = job();
        p.flags = flags;
        for (; bad[i].argv[argc]; argc++) argv[argc] = (char *)(uintptr_t)bad[i].argv[argc];
        int rc = dt_parse(&p, argc, argv, &e);
        CHECK_MSG(rc == DT_ERR_USAGE && e.code == DT_ERR_USAGE, "%s: %d \"%s\"", bad[i].name, rc, e.text);
        for (int k = 0; k < 2 && bad[i].says[k]; k++) CHECK_MSG(strstr(e.text, bad[i].says[k]), "%s: \"%s\"", bad[i].name, e.text);
    }
}

#define AT(member) offsetof(dt_options, member)
static const struct { const char *name; size_t at; char type; double value; int optimizer, schedule, loss; } absurd[] = {
    { "learning_rate", AT(learning_rate), 'd', -1, DT_SGD, 0, 0 },        { "learning_rate", AT(learning_rate), 'd', NAN, DT_SGD, 0, 0 },
    { "learning_rate", AT(learning_rate), 'd', INFINITY, DT_ADAM, 0, 0 }, { "momentum", AT(momentum), 'd', 2, DT_MOMENTUM, 0, 0 },
    { "momentum", AT(momentum), 'd', NAN, DT_NESTEROV, 0, 0 },            { "momentum", AT(momentum), 'd', -0.5, DT_MOMENTUM, 0, 0 },
    { "beta1", AT(beta1), 'd', 1, DT_ADAM, 0, 0 },                        { "beta1", AT(beta1), 'd', -0.5, DT_ADAM, 0, 0 },
    { "beta2", AT(beta2), 'd', 1.5, DT_ADAMW, 0, 0 },                     { "beta2", AT(beta2), 'd', NAN, DT_ADAMW, 0, 0 },
    { "alpha", AT(alpha), 'd', 2, DT_RMSPROP, 0, 0 },                     { "epsilon", AT(epsilon), 'd', -1e-3, DT_ADAM, 0, 0 },
    { "epsilon", AT(epsilon), 'd', NAN, DT_ADAM, 0, 0 },                  { "weight_decay", AT(weight_decay), 'd', -0.5, DT_SGD, 0, 0 },
    { "weight_decay", AT(weight_decay), 'd', NAN, DT_ADAMW, 0, 0 },       { "clip_norm", AT(clip_norm), 'd', -0.5, DT_SGD, 0, 0 },
    { "clip_norm", AT(clip_norm), 'd', NAN, DT_SGD, 0, 0 },               { "accumulate", AT(accumulate), 'i', -1, DT_SGD, 0, 0 },
    { "warmup_steps", AT(warmup_steps), 'l', -1, DT_SGD, 0, 0 },          { "total_steps", AT(total_steps), 'l', -1, DT_SGD, DT_COSINE_DECAY, 0 },
    { "final_rate", AT(final_rate), 'd', -1, DT_SGD, DT_COSINE_DECAY, 0 }, { "decay_steps", AT(decay_steps), 'l', -1, DT_SGD, DT_STEP_DECAY, 0 },
    { "decay_factor", AT(decay_factor), 'd', -1, DT_SGD, DT_STEP_DECAY, 0 }, { "decay_factor", AT(decay_factor), 'd', NAN, DT_SGD, DT_EXPONENTIAL_DECAY, 0 },
    { "replicas", AT(replicas), 'i', -1, DT_SGD, 0, 0 },                  { "batch", AT(batch), 'i', -5, DT_SGD, 0, 0 },
    { "replica_batch", AT(replica_batch), 'i', -5, DT_SGD, 0, 0 },        { "epochs", AT(epochs), 'i', -1, DT_SGD, 0, 0 },
    { "steps", AT(steps), 'l', -1, DT_SGD, 0, 0 },                        { "crop", AT(crop), 'i', -1, DT_SGD, 0, 0 },
    { "patience", AT(patience), 'i', -1, DT_SGD, 0, 0 },                  { "label_smoothing", AT(label_smoothing), 'd', 1.5, DT_SGD, 0, 0 },
    { "label_smoothing", AT(label_smoothing), 'd', -0.5, DT_SGD, 0, 0 },  { "delta", AT(delta), 'd', -2, DT_SGD, 0, DT_HUBER },
    { "deviation", AT(deviation), 'd', -1, DT_SGD, 0, 0 },                { "mean", AT(mean), 'd', NAN, DT_SGD, 0, 0 },
    { "optimizer", AT(optimizer), 'i', 99, DT_SGD, 0, 0 },                { "strategy", AT(strategy), 'i', 99, DT_SGD, 0, 0 },
    { "schedule", AT(schedule), 'i', 99, DT_SGD, 0, 0 },                  { "loss", AT(loss), 'i', 99, DT_SGD, 0, 0 },
    { "reduction", AT(reduction), 'i', 99, DT_SGD, 0, 0 },                { "label_type", AT(label_type), 'i', 99, DT_SGD, 0, 0 },
    { "input_type", AT(input_type), 'i', 99, DT_SGD, 0, 0 },              { "input", AT(input), 'i', -3, DT_SGD, 0, 0 },
};

/* text holds name, spelt with _ or - */
static int names(const char *text, const char *name) {
    char dashed[40];
    snprintf(dashed, sizeof dashed, "%s", name);
    for (char *p = dashed; *p; p++) if (*p == '_') *p = '-';
    return strstr(text, name) || strstr(text, dashed);
}

static void test_absurd_options(void) {
    make_rows();
    for (int i = -1; i < COUNT(absurd); i++) {  /* -1: nothing is wrong */
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        if (i >= 0) {
            char *p = (char *)&o + absurd[i].at;
            o.optimizer = (dt_optimizer)absurd[i].optimizer, o.schedule = (dt_schedule)absurd[i].schedule;
            if (absurd[i].loss) o.loss = (dt_loss_kind)absurd[i].loss;
            if (o.schedule) o.total_steps = o.decay_steps = 10;
            o.deviation[0] = strcmp(absurd[i].name, "mean") ? 0 : 1;
            int whole = absurd[i].type == 'i' ? (int)absurd[i].value : 0;
            long longer = absurd[i].type == 'l' ? (long)absurd[i].value : 0;
            if (absurd[i].type == 'd') memcpy(p, &absurd[i].value, sizeof(double));
            else if (absurd[i].type == 'i') memcpy(p, &whole, sizeof whole);
            else memcpy(p, &longer, sizeof longer);
        }
        dt_model *m = dt_model_create(&o, &err);
        if (m) dt_train(m, NULL, &err);
        if (i < 0) CHECK_OK(err);
        else CHECK_MSG(err.code && names(err.text, absurd[i].name), "%s %g: %d \"%s\"", absurd[i].name, absurd[i].value, err.code, err.text);
        dt_model_free(m);
    }
    /* no batch given: 32 */
    dt_error err = DT_DEFAULTS;
    dt_options o = job();
    o.batch = 0;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    CHECK(dt_local_batch(m) == 32);
    dt_model_free(m);
}

static double dropout_rate;
static dt_tensor *dropout_net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_dropout(x, dropout_rate), 3);
}

static void test_absurd_dropout(void) {
    static const double rate[] = { 1, 2, -0.1, NAN, INFINITY };
    make_rows();
    for (int i = 0; i < COUNT(rate); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        o.net = dropout_net;
        dropout_rate = rate[i];
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(!m && strstr(err.text, "dropout"), "%g: %d \"%s\"", rate[i], err.code, err.text);
        dt_model_free(m);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

enum { MAX_EVENTS = 200 };
static struct { dt_event e[MAX_EVENTS]; int n, begun; long stop_at_step; int stop_at_epoch; } seen;

static int note_event(const dt_event *e, void *user) {
    (void)user;
    if (e->kind == DT_EVENT_BEGIN) {
        CHECK(seen.n == 0 && e->model && e->step == 0);  /* before all others */
        seen.begun++;
        return 0;
    }
    if (seen.n < MAX_EVENTS) seen.e[seen.n++] = *e;
    if (e->kind == DT_EVENT_STEP && e->step == seen.stop_at_step) return 1;
    return e->kind == DT_EVENT_EPOCH && e->epoch == seen.stop_at_epoch;
}

static dt_model *train(dt_options o, dt_error *err) {
    memset(&seen, 0, sizeof seen.e), seen.n = seen.begun = 0;
    o.on_event = note_event;
    dt_model *m = dt_model_create(&o, err);
    if (m) CHECK(dt_train(m, NULL, err) == err->code);
    return m;
}

static void test_events(void) {
    make_rows();
    seen.stop_at_step = seen.stop_at_epoch = 0;
    dt_error err = DT_DEFAULTS;
    dt_options o = job();
    o.clip_norm = 100, o.epochs = 3;
    dt_model *m = train(o, &err);
    CHECK_OK(err);
    CHECK_MSG(seen.n == 3 * (JOB_STEPS + 1) + 1 && seen.begun == 1, "%d events, %d begins", seen.n, seen.begun);
    int i = 0;
    for (int epoch = 1; epoch <= 3; epoch++) {
        for (int k = 1; k <= JOB_STEPS; k++, i++) {
            const dt_event *e = &seen.e[i];
            CHECK_MSG(e->kind == DT_EVENT_STEP && e->step == (epoch - 1) * JOB_STEPS + k && e->steps == 3 * JOB_STEPS && e->epoch == epoch && e->epochs == 3, "event %d: kind %d, step %ld of %ld, epoch %d of %d", i, (int)e->kind, e->step, e->steps, e->epoch, e->epochs);
            CHECK(e->model == m && isfinite(e->loss) && e->learning_rate == 0.01);
            /* nothing is evaluated after a step: none, or that of the last epoch */
            CHECK(isnan(e->eval_loss) ? isnan(e->eval_accuracy) : epoch > 1 && e->eval_loss == seen.e[(epoch - 1) * (JOB_STEPS + 1) - 1].eval_loss);
            CHECK_MSG(e->gradient_norm > 0, "gradient_norm %g though it is clipped", e->gradient_norm);
            CHECK(e->seconds >= 0 && e->accuracy >= 0 && e->accuracy <= 1);
        }
        const dt_event *e = &seen.e[i++];
        CHECK_MSG(e->kind == DT_EVENT_EPOCH && e->step == epoch * JOB_STEPS && e->epoch == epoch, "event %d", i - 1);
        CHECK(isfinite(e->loss) && isfinite(e->eval_loss) && e->eval_accuracy >= 0 && e->eval_accuracy <= 1 && e->samples_per_s > 0);
        double mean = 0;  /* the loss of an epoch is the mean over its samples */
        for (int k = 0; k < JOB_STEPS; k++) mean += seen.e[i - 1 - JOB_STEPS + k].loss * (k < JOB_STEPS - 1 ? 16 : TRAIN_N - 16 * (JOB_STEPS - 1)) / TRAIN_N;
        CHECK_NEAR(e->loss, mean, 1e-5);
    }
    CHECK(seen.e[i].kind == DT_EVENT_END && seen.e[i].step == 3 * JOB_STEPS);
    CHECK(seen.e[JOB_STEPS].loss > seen.e[3 * JOB_STEPS + 2].loss);
    dt_model_free(m);

    /* without clipping nobody needs the norm; without test data nothing is evaluated */
    memset(&o.test, 0, sizeof o.test);
    o.clip_norm = 0, o.epochs = 1;
    m = train(o, &err);
    CHECK_OK(err);
    CHECK(seen.n == JOB_STEPS + 2 && isnan(seen.e[JOB_STEPS].eval_loss) && isnan(seen.e[JOB_STEPS].eval_accuracy));
    dt_model_free(m);
}

static void test_stop_from_event(void) {
    make_rows();
    static const struct { long at_step; int at_epoch; long steps; int epochs; } row[] = { { 1, 0, 1, 1 }, { 5, 0, 5, 1 }, { 11, 0, 11, 2 }, { 0, 2, 2 * JOB_STEPS, 2 } };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        o.epochs = 10;
        seen.stop_at_step = row[i].at_step, seen.stop_at_epoch = row[i].at_epoch;
        dt_model *m = train(o, &err);
        CHECK_OK(err);
        CHECK_MSG(dt_model_step(m) == row[i].steps && dt_model_report(m).steps == row[i].steps, "row %d: %ld steps", i, dt_model_step(m));
        int steps = 0, ends = 0;
        for (int k = 0; k < seen.n; k++) steps += seen.e[k].kind == DT_EVENT_STEP, ends += seen.e[k].kind == DT_EVENT_END;
        CHECK_MSG(steps == row[i].steps && ends == 1 && seen.e[seen.n - 1].kind == DT_EVENT_END, "row %d: %d steps, %d ends", i, steps, ends);
        /* the model goes on from here */
        CHECK(isfinite(dt_step(m, train_x, train_y, 16, &err)) && dt_model_step(m) == row[i].steps + 1);
        dt_model_free(m);
    }
    seen.stop_at_step = seen.stop_at_epoch = 0;
}

static void test_early_stopping(void) {
    make_rows();
    for (int patience = 0; patience <= 3; patience++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        /* the better it learns, the worse it does on these labels: the first epoch is the best one */
        o.test = dt_arrays(test_x, DT_FLOAT32, wrong_y, DT_INT32, TEST_N);
        o.epochs = 6, o.patience = patience;
        dt_model *m = train(o, &err);
        CHECK_OK(err);
        int want = patience ? 1 + patience : 6;
        CHECK_MSG(dt_model_step(m) == want * JOB_STEPS && dt_model_report(m).epochs == want, "patience %d: %d epochs", patience, dt_model_report(m).epochs);
        dt_model_free(m);
        /* while it gets better, it goes on */
        o = job();
        o.epochs = 4, o.patience = patience;
        m = train(o, &err);
        CHECK_OK(err);
        CHECK(dt_model_step(m) == 4 * JOB_STEPS);
        dt_model_free(m);
    }
}

static void test_steps_and_epochs(void) {
    make_rows();
    static const struct { int epochs; long steps, want_steps, want_samples; } row[] = {
        { 0, 0, JOB_STEPS, TRAIN_N }, { 3, 0, 3 * JOB_STEPS, 3 * TRAIN_N }, { 0, 5, 5, 80 }, { 0, 1, 1, 16 },
        { 0, 2 * JOB_STEPS, 2 * JOB_STEPS, 2 * TRAIN_N }, { 0, 2 * JOB_STEPS + 3, 2 * JOB_STEPS + 3, 2 * TRAIN_N + 48 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        o.epochs = row[i].epochs, o.steps = row[i].steps;
        dt_model *m = train(o, &err);
        CHECK_OK(err);
        dt_report r = dt_model_report(m);
        CHECK_MSG(r.steps == row[i].want_steps && r.samples == row[i].want_samples, "row %d: %ld steps, %ld samples", i, r.steps, r.samples);
        CHECK(seen.n && seen.e[0].steps == row[i].want_steps);
        dt_model_free(m);
    }
    /* a second call goes on, with options of its own */
    dt_error err = DT_DEFAULTS;
    dt_options o = job();
    dt_model *m = train(o, &err);
    dt_options run = job();
    run.epochs = 0, run.steps = 3;
    CHECK(dt_train(m, &run, &err) == 0);
    CHECK_OK(err);
    CHECK(dt_model_step(m) == 2 * JOB_STEPS + 3);
    dt_model_free(m);

    /* nothing to train on */
    o = job();
    memset(&o.train, 0, sizeof o.train);
    m = dt_model_create(&o, &err);
    CHECK_OK(err);
    CHECK(dt_train(m, NULL, &err) && strstr(err.text, "train"));
    CHECK(dt_train(NULL, NULL, NULL) == DT_ERR_ARGUMENT);
    dt_model_free(m);
    memset(&err, 0, sizeof err);
    o = job();
    o.inference = 1;
    m = dt_model_create(&o, &err);
    CHECK_OK(err);
    CHECK(dt_train(m, NULL, &err) == DT_ERR_STATE && strstr(err.text, "inference"));
    dt_model_free(m);
}

static void test_report(void) {
    make_rows();
    static const struct { int replicas; dt_strategy strategy, want; } row[] = { { 1, DT_STRATEGY_DEFAULT, DT_ONE }, { 2, DT_STRATEGY_DEFAULT, DT_MIRRORED }, { 3, DT_CENTRAL, DT_CENTRAL } };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        o.replicas = row[i].replicas, o.strategy = row[i].strategy, o.epochs = 3;
        dt_model *m = train(o, &err);
        CHECK_OK(err);
        dt_report r = dt_model_report(m);
        const dt_event *last = &seen.e[seen.n - 2];
        CHECK(r.steps == 3 * JOB_STEPS && r.samples == 3 * TRAIN_N && r.epochs == 3 && r.replicas == row[i].replicas && r.strategy == row[i].want);
        CHECK(r.parameters == PARAMETERS && r.arena_bytes == dt_model_bytes(&o, &err));
        CHECK(last->kind == DT_EVENT_EPOCH && r.train_loss == last->loss && r.train_accuracy == last->accuracy && r.eval_loss == last->eval_loss && r.eval_accuracy == last->eval_accuracy);
        CHECK_MSG(r.seconds > 0 && fabs(r.samples_per_s * r.seconds - (double)r.samples) < 0.01 * (double)r.samples, "%g samples/s in %g s", r.samples_per_s, r.seconds);
        CHECK_MSG(r.data_s >= 0 && r.data_s <= r.seconds, "data %g of %g s", r.data_s, r.seconds);
        dt_metrics metrics = DT_DEFAULTS;
        CHECK(dt_evaluate(m, &o.test, &metrics, &err) == 0);
        CHECK_NEAR(metrics.loss, r.eval_loss, 1e-6);
        CHECK_NEAR(metrics.accuracy, r.eval_accuracy, 1e-9);
        CHECK(metrics.n == TEST_N && metrics.classes == 3 && r.eval_accuracy > 0.6);
        dt_model_free(m);
    }
    dt_report none = dt_model_report(NULL);
    CHECK(none.steps == 0 && none.parameters == 0);
}

/* predictions given by the sample itself: class x[0], sure of it */
static dt_tensor *oracle(dt_tensor *x, void *user) {
    (void)user;
    return dt_scale(x, 10, 0);
}

static void test_evaluate(void) {
    /* 7 samples, batches of 3: labels 0 0 0 1 1 2 3, predictions 0 0 1 1 2 2 0 */
    static const int guess[7] = { 0, 0, 1, 1, 2, 2, 0 };
    static const int32_t label[7] = { 0, 0, 0, 1, 1, 2, 3 };
    float x[7][4] = { { 0 } };
    double loss = 0;
    for (int i = 0; i < 7; i++) {
        x[i][guess[i]] = 1;
        x[i][3] += 0.5f;  /* class 3 is always the second guess */
        double e = 0;
        for (int k = 0; k < 4; k++) e += exp(10.0 * (double)x[i][k]);
        loss += (log(e) - 10.0 * (double)x[i][label[i]]) / 7;
    }
    for (int replicas = 1; replicas <= 3; replicas += 2) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = oracle, o.loss = DT_CROSS_ENTROPY, o.input[0] = 4, o.batch = 3, o.replicas = replicas, o.inference = 1;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_OK(err);
        long confusion[16] = { 0 };
        dt_metrics r = DT_DEFAULTS;
        r.confusion = confusion, r.top_k = 2;
        dt_source s = dt_arrays(x, DT_FLOAT32, label, DT_INT32, 7);
        CHECK(dt_evaluate(m, &s, &r, &err) == 0);
        CHECK_OK(err);
        CHECK_NEAR(r.loss, loss, 1e-6);
        CHECK_NEAR(r.accuracy, 4 / 7.0, 1e-9);
        CHECK_NEAR(r.top_k_accuracy, 5 / 7.0, 1e-9);
        CHECK(r.n == 7 && r.classes == 4);
        static const long want[16] = { 2, 1, 0, 0,  0, 1, 1, 0,  0, 0, 1, 0,  1, 0, 0, 0 };
        CHECK(!memcmp(confusion, want, sizeof want));
        CHECK_NEAR(dt_precision(&r, 0), 2 / 3.0, 1e-9);
        CHECK_NEAR(dt_recall(&r, 0), 2 / 3.0, 1e-9);
        CHECK_NEAR(dt_recall(&r, 1), 0.5, 1e-9);
        CHECK(isnan(dt_precision(&r, 3)) && dt_recall(&r, 3) == 0);
        dt_model_free(m);
    }
}

/* ---- values that are not finite ------------------------------------------------------------------------------------- */

static long poisoned_step;
static int row_forward(const dt_custom_call *c) {  /* one row of the batch, at step 4 of the run, so one replica */
    memcpy(c->y, c->x[0], (size_t)c->n * 12 * sizeof(float));
    for (int i = 0; i < c->n; i++)
        if (c->training && c->x[0][i * 12] > 1e5f) c->y[i * 12 + 3] = INFINITY, poisoned_step = c->step;
    return 0;
}

static dt_tensor *row_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_dense(x, 12, .name = "first", .init = DT_CONSTANT, .init_value = 1);
    x = dt_custom(x, {12}, row_forward, copy_backward, NULL, .name = "poison");
    return dt_dense(dt_scale(x, 1e-3, 0), 3, .name = "logits");
}

static void test_nan_guard(void) {
    make_rows();
    for (int off = 0; off < 2; off++) {
        static float x[TRAIN_N][FEATURES];
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        memcpy(x, train_x, sizeof x);
        x[63][0] = 1e6f;  /* the last row of step 4 of 16 rows each: replica 1 of 2 */
        o.net = row_net, o.train = dt_arrays(x, DT_FLOAT32, train_y, DT_INT32, TRAIN_N);
        o.no_shuffle = 1, o.no_nan_guard = off, o.epochs = 1;
        memset(&o.test, 0, sizeof o.test);
        dt_model *m = dt_model_create(&o, &err);
        CHECK_OK(err);
        int rc = dt_train(m, NULL, &err);
        if (off) CHECK_MSG(rc == 0 && dt_model_step(m) == JOB_STEPS && isnan(dt_model_report(m).train_loss), "without the guard: %d \"%s\"", rc, err.text);
        else {
            char step[30];
            snprintf(step, sizeof step, "step %ld", err.step);
            CHECK_ERROR(err, DT_ERR_NUMERIC, "poison");
            CHECK_MSG(err.step == poisoned_step || err.step == poisoned_step + 1, "step %ld, not %ld", err.step, poisoned_step);
            CHECK_MSG(err.rank == 1 && strstr(err.text, "replica 1") && strstr(err.text, step), "rank %d: \"%s\"", err.rank, err.text);
            CHECK_MSG(dt_model_step(m) == 3, "%ld updates", dt_model_step(m));
            float w[36];
            dt_parameter_read(m, "logits.weight", w, 36, NULL);
            for (int i = 0; i < 36; i++) CHECK(isfinite(w[i]));
        }
        dt_model_free(m);
    }
}

/* ---- signals ---------------------------------------------------------------------------------------------------------- */

static int same_handlers(const dt_event *e, void *user) {
    struct sigaction a, b;
    (void)e;
    sigaction(SIGINT, NULL, &a), sigaction(SIGTERM, NULL, &b);
    if (a.sa_handler != own_handler || b.sa_handler != SIG_DFL) *(int *)user = 1;
    return 0;
}

static void test_no_handlers_in_dt_train(void) {
    struct sigaction mine, old;
    int changed = 0;
    make_rows();
    memset(&mine, 0, sizeof mine);
    mine.sa_handler = own_handler;
    sigaction(SIGINT, &mine, &old);
    dt_error err = DT_DEFAULTS;
    dt_options o = job();
    o.on_event = same_handlers, o.user = &changed;
    dt_model *m = dt_model_create(&o, &err);
    CHECK(dt_train(m, NULL, &err) == 0);
    CHECK_OK(err);
    dt_model_free(m);
    CHECK(!changed);
    sigaction(SIGINT, &old, NULL);
}

/* ---- programs on dt_main -------------------------------------------------------------------------------------------------- */

static void test_json_line(void) {
    NEEDS_CHILDREN;
    static const char *const text[] = { "status", "strategy" };
    static const char *const numbers[] = {
        "replicas", "processes", "epochs", "steps", "samples", "train_loss", "eval_loss", "eval_accuracy", "seconds", "samples_per_s", "data_s",
        "parameters", "arena_bytes", "peak_rss_bytes",
    };
    char line[700];
    make_rows();
    snprintf(line, sizeof line, "job --json --save %s", at("json.safetensors"));
    object o = json_of(line);
    for (int i = 0; i < COUNT(text); i++) CHECK_MSG(find(&o, text[i]) && find(&o, text[i])->is_string, "%s is no string", text[i]);
    for (int i = 0; i < COUNT(numbers); i++) CHECK_MSG(isfinite(number(&o, numbers[i])), "%s is no number", numbers[i]);
    CHECK(number(&o, "replicas") == 2 && number(&o, "processes") == 1 && number(&o, "epochs") == 2 && number(&o, "steps") == 2 * JOB_STEPS && number(&o, "samples") == 2 * TRAIN_N);
    CHECK(number(&o, "parameters") == PARAMETERS && number(&o, "arena_bytes") > 4 * PARAMETERS && number(&o, "peak_rss_bytes") > 100000);
    CHECK(number(&o, "eval_accuracy") >= 0 && number(&o, "eval_accuracy") <= 1 && number(&o, "seconds") > 0 && number(&o, "data_s") >= 0);
    CHECK(find(&o, "strategy") && !strcmp(find(&o, "strategy")->text, "mirrored"));
    CHECK(find(&o, "status") && !strcmp(find(&o, "status")->text, "succeeded"));

    /* the checksum is that of what was saved, and the losses are those of that model */
    dt_error err = DT_DEFAULTS;
    dt_options options = job();
    dt_model *m = dt_model_create(&options, &err);
    CHECK(dt_load(m, at("json.safetensors"), NULL, &err) == 0);
    CHECK_OK(err);
    CHECK_MSG(dt_parameters_crc32c(m) == crc_of(&o), "%08x, not %08x", (unsigned)crc_of(&o), (unsigned)dt_parameters_crc32c(m));
    dt_metrics metrics = DT_DEFAULTS;
    dt_evaluate(m, &options.test, &metrics, &err);
    CHECK_NEAR(number(&o, "eval_loss"), metrics.loss, 1e-5);
    dt_model_free(m);

    o = json_of("no-test --json");
    CHECK(find(&o, "eval_loss") && !strcmp(find(&o, "eval_loss")->text, "null") && find(&o, "eval_accuracy") && !strcmp(find(&o, "eval_accuracy")->text, "null"));
}

static void test_flags_reach_the_run(void) {
    NEEDS_CHILDREN;
    static const struct { const char *line, *key; double value; } row[] = {
        { "job --json --steps 5", "steps", 5 },
        { "job --json --epochs 3", "epochs", 3 },
        { "job --json --batch 40", "steps", 6 },
        { "job --json --batch 120", "steps", 2 },
        { "job --json --replicas 1", "replicas", 1 },
        { "job --json --replicas 3", "replicas", 3 },
        { "job --json --replica-batch 30", "steps", 4 },
        { "job --json --replicas 3 --replica-batch 10", "steps", 8 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        object o = json_of(row[i].line);
        CHECK_MSG(number(&o, row[i].key) == row[i].value, "%s: %s is %g", row[i].line, row[i].key, number(&o, row[i].key));
    }
    object o = json_of("job --json --strategy central");
    CHECK(find(&o, "strategy") && !strcmp(find(&o, "strategy")->text, "central"));
    o = json_of("job --json --strategy one --replicas 1");
    CHECK(find(&o, "strategy") && !strcmp(find(&o, "strategy")->text, "one"));
    /* what changes the weights */
    static const char *const other[] = { "job --json", "job --json --seed 2", "job --json --optimizer sgd", "job --json --learning-rate 0.02", "job --json --batch 15" };
    uint32_t crc[COUNT(other)];
    for (int i = 0; i < COUNT(other); i++) {
        o = json_of(other[i]);
        crc[i] = crc_of(&o);
        for (int k = 0; k < i; k++) CHECK_MSG(crc[i] != crc[k], "%s and %s give the same weights", other[i], other[k]);
    }
}

static void test_same_bits_twice(void) {
    NEEDS_CHILDREN;
    static const char *const line[] = { "job --json --replicas 1", "job --json --replicas 2", "job --json --replicas 3 --strategy central", "job --json --replicas 3 --optimizer momentum" };
    for (int i = 0; i < COUNT(line); i++) {
        object a = json_of(line[i]), b = json_of(line[i]);
        CHECK_MSG(crc_of(&a) == crc_of(&b) && crc_of(&a), "%s", line[i]);
        CHECK(number(&a, "train_loss") == number(&b, "train_loss") && number(&a, "eval_loss") == number(&b, "eval_loss"));
    }
}

static void test_save_and_load_flags(void) {
    NEEDS_CHILDREN;
    char line[1200];
    size_t n1, n2;
    snprintf(line, sizeof line, "job --json --save %s", at("first"));
    object a = json_of(line);
    snprintf(line, sizeof line, "job --json --load %s --steps 1 --save %s", at("first"), at("second"));
    object b = json_of(line);
    object fresh = json_of("job --json --steps 1");
    CHECK_MSG(number(&b, "train_loss") < number(&a, "train_loss") && number(&b, "train_loss") < 0.8 * number(&fresh, "train_loss"), "starts at %g after %g", number(&b, "train_loss"), number(&a, "train_loss"));
    unsigned char *f1 = get(at("first"), &n1), *f2 = get(at("second"), &n2);
    CHECK(f1 && f2 && n1 == n2 && memcmp(f1, f2, n1) != 0);
    free(f1), free(f2);
    static const struct { const char *flag, *path; } bad[] = { { "--load", "nothing.safetensors" }, { "--save", "nowhere/w.safetensors" } };
    for (int i = 0; i < COUNT(bad); i++) {
        snprintf(line, sizeof line, "job %s %s", bad[i].flag, at(bad[i].path));
        outcome r = start(line, NULL);
        CHECK_MSG(r.status == 1 && strstr(r.err, bad[i].path), "%s: status %d \"%s\"", line, r.status, r.err);
        outcome_free(&r);
    }
}

static void test_exit_status(void) {
    NEEDS_CHILDREN;
    static const struct { const char *line; int status; const char *says[3]; } row[] = {
        { "job", 0, { "" } },
        { "job --bacth 5", 64, { "--bacth" } },
        { "job --batch", 64, { "--batch" } },
        { "job --batch many", 64, { "batch", "many" } },
        { "job --learning-rate 1,5", 64, { "learning-rate", "1,5" } },
        { "job --optimizer best", 64, { "optimizer", "best" } },
        { "job 5", 64, { "5" } },
        { "nan", 1, { "poison", "step", "replica" } },
        { "nan --quiet", 1, { "poison" } },
        { "missing", 1, { "/nonexistent/digits", "train-images" } },
        { "missing --quiet", 1, { "/nonexistent/digits" } },
        { "interrupt", 130, { "" } },
        { "interrupt --replicas 1 --no-shuffle", 130, { "" } },
        { "terminate", 143, { "" } },
        { "interrupt --quiet --replicas 1", 130, { "" } },
        { "handlers", 0, { "" } },
    };
    for (int i = 0; i < COUNT(row); i++) {
        outcome r = start(row[i].line, NULL);
        CHECK_MSG(r.status == row[i].status, "%s: status %d, signal %d, \"%s\"", row[i].line, r.status, r.signal, r.err);
        for (int k = 0; k < 3 && row[i].says[k]; k++) CHECK_MSG(strstr(r.err, row[i].says[k]), "%s: \"%s\" has no \"%s\"", row[i].line, r.err, row[i].says[k]);
        if (row[i].status == 64) CHECK_MSG(!r.out_bytes, "%s: printed \"%.200s\"", row[i].line, r.out);
        outcome_free(&r);
    }
    /* a run that was stopped has saved what it had */
    char line[700];
    snprintf(line, sizeof line, "interrupt --save %s", at("stopped.safetensors"));
    outcome stopped = start(line, NULL);
    dt_error err = DT_DEFAULTS;
    dt_options options = job();
    dt_model *m = dt_model_create(&options, &err);
    CHECK(stopped.status == 130 && dt_load(m, at("stopped.safetensors"), NULL, &err) == 0);
    CHECK_OK(err);
    dt_model_free(m);
    outcome_free(&stopped);

    /* with --json also a run that failed or was stopped ends in one object */
    static const struct { const char *line, *status; } failed[] = { { "nan --json", "failed" }, { "interrupt --json", "stopped" }, { "nan --json --quiet", "failed" }, { "missing --json", "failed" } };
    for (int i = 0; i < COUNT(failed); i++) {
        object o;
        outcome r = start(failed[i].line, NULL);
        const char *last = last_line(r.out);
        CHECK_MSG(r.status != 0 && json(last, &o) && find(&o, "status") && !strcmp(find(&o, "status")->text, failed[i].status), "%s: \"%s\"", failed[i].line, last);
        outcome_free(&r);
    }
}

static void test_quiet(void) {
    NEEDS_CHILDREN;
    outcome r = start("job --quiet", NULL);
    CHECK_MSG(r.status == 0 && !r.out_bytes && !r.err_bytes, "status %d, \"%.200s\", \"%.200s\"", r.status, r.out, r.err);
    outcome_free(&r);
    object o;
    r = start("job --quiet --json", NULL);
    CHECK_MSG(r.status == 0 && r.out_bytes && !r.err_bytes && r.out[r.out_bytes - 1] == '\n' && strchr(r.out, '\n') == r.out + r.out_bytes - 1, "\"%.200s\", \"%.200s\"", r.out, r.err);
    CHECK(json(last_line(r.out), &o));
    outcome_free(&r);
    /* not quiet: says something, but no carriage returns or colours into a file */
    r = start("job", NULL);
    CHECK(r.status == 0 && r.out_bytes + r.err_bytes > 0);
    CHECK_MSG(!strpbrk(r.out, "\r\033") && !strpbrk(r.err, "\r\033"), "a progress line for a terminal");
    outcome_free(&r);
}

static const char *const flag_names[] = {
    "strategy", "replicas", "batch", "replica-batch", "epochs", "steps", "seed", "optimizer", "learning-rate", "json", "quiet", "save", "load", "profile", "no-fusion", "print-options",
};

static void test_help(void) {
    NEEDS_CHILDREN;
    outcome r = start("job --help", NULL);
    CHECK_MSG(r.status == 0 && r.out_bytes && !r.err_bytes, "status %d, \"%s\"", r.status, r.err);
    for (int i = 0; i < COUNT(flag_names); i++) {
        char flag[60];
        snprintf(flag, sizeof flag, "--%s", flag_names[i]);
        const char *p = strstr(r.out, flag);
        while (p && (isalnum((unsigned char)p[strlen(flag)]) || p[strlen(flag)] == '-')) p = strstr(p + 1, flag);
        CHECK_MSG(p, "%s is not in the help", flag);
    }
    CHECK_MSG(strstr(r.out, "--colour") && strstr(r.out, "of the bicycle shed") && strstr(r.out, "blue"), "the program's own flag is not in the help");

    /* every flag of the help can be set with some value */
    static const char *const value[] = { NULL, "1", "0.5", "adam", "mirrored", "cosine", "a,b", "cross-entropy", "he-normal", "float32", "mean", "on", "basic", "bf16", "" };
    int flags = 0;
    for (char *line = strtok(r.out, "\n"); line; line = strtok(NULL, "\n")) {
        char name[60];
        int set = 0;
        while (*line == ' ') line++;
        if (sscanf(line, "--%59[a-z0-9-]", name) != 1 || !strcmp(name, "help") || !strcmp(name, "version") || !strcmp(name, "colour")) continue;
        flags++;
        for (int i = 0; i < COUNT(value) && !set; i++) {
            dt_options o = DT_DEFAULTS;
            set = dt_option_set(&o, name, value[i], NULL) == 0;
        }
        CHECK_MSG(set, "--%s takes none of the values tried", name);
        /* what the flag's default is stands in its line */
        int known = 0;
        for (int i = 0; i < COUNT(flag_names); i++) known |= !strcmp(name, flag_names[i]);
        if (known && strcmp(name, "help")) CHECK_MSG(strchr(line, '(') || strstr(line, "default"), "no default: %s", line);
    }
    CHECK_MSG(flags >= COUNT(flag_names), "%d flags in the help", flags);
    outcome_free(&r);

    /* help wins, whatever else is there; an own flag and an option go to their places */
    r = start("flags --colour red --batch 77", NULL);
    CHECK_MSG(!strcmp(r.out, "red 77 0\n"), "\"%s\"", r.out);
    outcome_free(&r);
    char want[40];
    snprintf(want, sizeof want, "%d\n", (int)DT_ERR_STOPPED);
    r = start("flags --help", NULL);
    CHECK_MSG(r.status == DT_ERR_STOPPED && strstr(r.out, want), "%d \"%s\"", r.status, r.out);
    outcome_free(&r);
}

static void test_print_options(void) {
    NEEDS_CHILDREN;
    char line[700];
    snprintf(line, sizeof line, "job --print-options --batch 77 --optimizer rmsprop --save %s", at("not_written"));
    outcome r = start(line, NULL);
    CHECK_MSG(r.status == 0 && strstr(r.out, "77") && strstr(r.out, "rmsprop") && strstr(r.out, "0.01"), "status %d \"%s\"", r.status, r.out);
    for (int i = 0; i < COUNT(flag_names); i++)
        if (strcmp(flag_names[i], "print-options")) CHECK_MSG(names(r.out, flag_names[i]), "%s is not shown", flag_names[i]);
    CHECK(access(at("not_written"), F_OK) != 0);
    outcome_free(&r);
}

static void test_profile(void) {
    NEEDS_CHILDREN;
    outcome r = start("job --profile --replicas 1 --batch 120 --epochs 20", NULL);
    static const char *const words[] = { "hidden", "logits", "forward s", "backward s", "share" };
    for (int i = 0; i < COUNT(words); i++) CHECK_MSG(r.status == 0 && strstr(r.out, words[i]), "status %d, no \"%s\" in \"%s\"", r.status, words[i], r.out);
    double forward = -1, backward = -1, share = 0;
    const char *line = strstr(r.out, "\nhidden");
    CHECK_MSG(line && sscanf(line, "%*s %lf %lf %lf %%", &forward, &backward, &share) == 3 && forward >= 0 && backward >= 0 && share > 0 && share < 101, "\"%s\"", r.out);
    outcome_free(&r);
}

static void test_decimal_comma_locale(void) {
    NEEDS_CHILDREN;
    static const char *const env[] = { "LC_ALL=de_DE.UTF-8", "LC_ALL=de_DE.utf8", "LC_ALL=de_DE", "LC_ALL=fr_FR.UTF-8", "LC_ALL=fr_FR.utf8" };
    outcome r = { 0 };
    int i = 0;
    for (; i < COUNT(env); i++) {
        r = start("locale --json --learning-rate 0.0125", env[i]);
        if (r.status != 77) break;
        outcome_free(&r);
    }
    if (i == COUNT(env)) SKIP("no locale with a decimal comma here");
    object o, plain = json_of("job --json --learning-rate 0.0125");
    CHECK_MSG(r.status == 0 && json(last_line(r.out), &o), "status %d \"%s\"", r.status, r.out);
    CHECK(crc_of(&o) == crc_of(&plain) && number(&o, "eval_loss") == number(&plain, "eval_loss"));
    outcome_free(&r);
}

/* ---- real data --------------------------------------------------------------------------------------------------------------- */

static dt_tensor *mnist_mlp(dt_tensor *x, void *user) {
    (void)user;
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 512)), 0.2);
    x = dt_dropout(dt_relu(dt_dense(x, 512)), 0.2);
    return dt_dense(x, 10);
}

static void test_real_mnist(void) {
    const char *data = getenv("DTRAIN_DATA");
    char folder[600];
    if (!data || !*data) SKIP("DTRAIN_DATA names no folder");
    snprintf(folder, sizeof folder, "%s/mnist", data);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = mnist_mlp, o.loss = DT_CROSS_ENTROPY, o.optimizer = DT_ADAM, o.learning_rate = 1e-3, o.batch = 128, o.epochs = 1, o.replicas = 2;
    o.train = dt_mnist(folder, DT_TRAIN), o.test = dt_mnist(folder, DT_TEST);
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    CHECK(dt_train(m, NULL, &err) == 0);
    CHECK_OK(err);
    dt_report r = dt_model_report(m);
    CHECK(r.samples == 60000 && r.steps == 469);
    CHECK_MSG(r.eval_accuracy > 0.95, "accuracy %g", r.eval_accuracy);
    dt_model_free(m);
}

static dt_tensor *cifar_cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 16, 3)), 2);
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
    return dt_dense(dt_flatten(x), 10);
}

static void test_real_cifar(void) {
    const char *data = getenv("DTRAIN_DATA");
    char path[600];
    if (!data || !*data) SKIP("DTRAIN_DATA names no folder");
    snprintf(path, sizeof path, "%s/cifar-10/data_batch_1.bin.gz", data);
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = cifar_cnn, o.loss = DT_CROSS_ENTROPY, o.optimizer = DT_ADAM, o.batch = 64, o.steps = 150, o.replicas = 2;
    o.train = dt_cifar10(path, DT_TRAIN);
    seen.stop_at_step = seen.stop_at_epoch = 0;
    dt_model *m = train(o, &err);
    CHECK_OK(err);
    double first = 0, last = 0;
    int steps = 0;
    for (int i = 0; i < seen.n; i++) {
        if (seen.e[i].kind != DT_EVENT_STEP) continue;
        if (steps < 10) first += seen.e[i].loss / 10;
        if (steps >= 120) last += seen.e[i].loss / 30;
        steps++;
    }
    CHECK_MSG(steps == 150 && first > 2 && last < 1.85, "the loss goes from %g to %g in %d steps", first, last, steps);
    dt_model_free(m);
}

/* ---- what a run leaves behind ------------------------------------------------------------------------ */

typedef struct { int calls, tried, code; } counter;

static int count_events(const dt_event *e, void *user) {
    counter *c = (counter *)user;
    c->calls += e->kind == DT_EVENT_STEP;
    return 0;
}

/* the options of a run are the run's: the next one has those of the model's creation again */
static void test_runs_leave_the_model(void) {
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    dt_options o = job(), run = DT_DEFAULTS;
    counter c = {0};
    dt_model *m = dt_model_create(&o, &err);
    run.train = o.train, run.epochs = 1, run.on_event = count_events, run.user = &c, run.learning_rate = 0.125;
    CHECK(dt_train(m, &run, &err) == 0);
    CHECK(c.calls == JOB_STEPS && dt_model_report(m).steps == JOB_STEPS);
    CHECK_NEAR(dt_learning_rate(m), 0.01, 0);
    CHECK(dt_train(m, NULL, &err) == 0);
    CHECK_OK(err);
    CHECK_MSG(c.calls == JOB_STEPS && dt_model_report(m).steps == 2 * JOB_STEPS, "%d events, %ld steps", c.calls, dt_model_report(m).steps);

    /* a run without a rate goes on with the model's; one that is refused changes nothing */
    dt_set_learning_rate(m, 0.003);
    run.learning_rate = 0;
    CHECK(dt_train(m, &run, &err) == 0);
    CHECK_NEAR(dt_learning_rate(m), 0.003, 0);
    uint32_t still = dt_parameters_crc32c(m);
    dt_set_learning_rate(m, 0);  /* 0 is a rate too */
    CHECK(dt_train(m, &run, &err) == 0 && dt_parameters_crc32c(m) == still && dt_learning_rate(m) == 0);
    dt_set_learning_rate(m, 0.003);
    static const double bad[] = { -1, 1e6, (double)INFINITY, (double)NAN };
    for (int i = 0; i < COUNT(bad); i++) {
        uint32_t before = dt_parameters_crc32c(m);
        run.learning_rate = bad[i];
        CHECK(dt_train(m, &run, &err) == DT_ERR_ARGUMENT && dt_parameters_crc32c(m) == before);
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "learning_rate");
        err = none;
        dt_set_learning_rate(m, bad[i]);
        CHECK_NEAR(dt_learning_rate(m), 0.003, 0);
    }
    run.learning_rate = 0, run.train = dt_mnist("/nonexistent", DT_TRAIN);
    int code = dt_train(m, &run, &err);
    CHECK(code == err.code && code == DT_ERR_IO);
    CHECK(dt_train(m, NULL, NULL) == 0);
    dt_model_free(m);
}

static int train_within(const dt_event *e, void *user) {
    counter *c = (counter *)user;
    float x[FEATURES] = {0};
    int32_t y = 0;
    dt_error err = DT_DEFAULTS;
    if (e->kind != DT_EVENT_STEP || c->tried++) return 0;
    c->code = dt_train(e->model, NULL, &err);
    if (dt_step(e->model, x, &y, 1, NULL) == 0) c->code = -1;
    if (dt_predict(e->model, x, 1, (float[3]){0}, &err)) c->code = -2;  /* is allowed */
    return 0;
}

static void test_no_training_within(void) {
    dt_error err = DT_DEFAULTS;
    dt_options o = job();
    counter c = {0};
    o.on_event = train_within, o.user = &c;
    dt_model *m = dt_model_create(&o, &err);
    CHECK(dt_train(m, NULL, &err) == 0);
    CHECK_OK(err);
    CHECK_MSG(c.tried == 2 * JOB_STEPS && c.code == DT_ERR_STATE && dt_model_report(m).steps == 2 * JOB_STEPS, "%d %d %ld", c.tried, c.code, dt_model_report(m).steps);
    dt_model_free(m);
}

static double rate_table(long step, void *user) { return ((const double *)user)[step < 3 ? step : 3]; }

/* a rate that is none is refused before it touches a weight */
static void test_absurd_rates(void) {
    static const double table[][4] = { { 0.1, (double)NAN, 0.1, 0.1 }, { 0.1, -1, 0.1, 0.1 }, { 0.1, (double)INFINITY, 0.1, 0.1 } };
    for (int i = 0; i < COUNT(table); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = job();
        o.rate_at = rate_table, o.user = (void *)(uintptr_t)table[i];
        dt_model *m = dt_model_create(&o, &err);
        dt_step(m, train_x, train_y, 16, &err);
        CHECK_OK(err);
        uint32_t before = dt_parameters_crc32c(m);
        float loss = dt_step(m, train_x, train_y, 16, &err);
        CHECK(loss != loss && dt_parameters_crc32c(m) == before && dt_model_step(m) == 1);
        CHECK_ERROR(err, DT_ERR_CALLBACK, "rate_at");
        float y[16 * 8];
        dt_error none = DT_DEFAULTS;
        CHECK(dt_output_read(m, NULL, y, &none) == DT_ERR_STATE);  /* nothing has run: the outputs of the step before are not this one's */
        dt_model_free(m);
    }
}

/* NaN is never right, and labels that do not count are not counted */
static void test_metrics_of_nothing(void) {
    dt_error err = DT_DEFAULTS, none = DT_DEFAULTS;
    dt_options o = job();
    long confusion[9] = {0}, sum = 0;
    float bias[3] = { NAN, NAN, NAN }, weight[16];
    static int32_t ignored[TEST_N];
    dt_metrics metrics = DT_DEFAULTS;
    o.ignore_label = 7;
    dt_model *m = dt_model_create(&o, &err);
    for (int i = 0; i < TEST_N; i++) ignored[i] = 7;
    dt_source nobody = dt_arrays(test_x, DT_FLOAT32, ignored, DT_INT32, TEST_N);
    CHECK(dt_evaluate(m, &nobody, &metrics, &err) == 0 && metrics.n == 0);
    metrics.top_k = -1;
    CHECK(dt_evaluate(m, &o.test, &metrics, &err) == DT_ERR_ARGUMENT);
    err = none, metrics.top_k = 0, metrics.confusion = confusion;
    CHECK(dt_parameter_write(m, "logits.bias", bias, 3, &err) == 0);
    CHECK(dt_evaluate(m, &o.test, &metrics, &err) == 0);
    for (int i = 0; i < 9; i++) sum += confusion[i];
    CHECK_MSG(metrics.n == TEST_N && metrics.accuracy == 0 && sum == 0, "%ld %g %ld", metrics.n, metrics.accuracy, sum);
    CHECK(dt_parameter_write(m, "logits.bias", bias, 4, &err) == err.code && err.code == DT_ERR_SHAPE);
    err = none;

    /* weights of samples */
    dt_batch b = DT_DEFAULTS;
    b.x[0] = train_x, b.y[0] = train_y, b.n = 16, b.weight = weight;
    for (int i = 0; i < 16; i++) weight[i] = i == 5 ? -1.0f : 1.0f;
    CHECK(!(dt_step_batch(m, &b, &err) >= 0));
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "weight[5] is -1");
    err = none;

    /* order of calls, names and globs */
    CHECK(dt_reduce(m, &err) == DT_ERR_STATE);
    err = none;
    dt_model_plan_bytes(m, NULL, NULL);
    dt_model_free(m);
    o.freeze = "hiden*";
    CHECK(!dt_model_create(&o, &err));
    CHECK_ERROR(err, DT_ERR_ARGUMENT, ".freeze: no parameter's name matches \"hiden*\"");
}

static int stop_at_3(const dt_event *e, void *user) { (void)user; return e->kind == DT_EVENT_STEP && e->step == 3; }
/* as many steps as a long holds are no fewer than that */
static void test_endless(void) {
    dt_error err = DT_DEFAULTS;
    dt_options o = job();
    o.epochs = 0, o.steps = LONG_MAX, o.on_event = stop_at_3;
    dt_model *m = dt_model_create(&o, &err);
    CHECK(dt_train(m, NULL, &err) == 0 && dt_model_report(m).steps == 3);
    CHECK_OK(err);
    dt_model_free(m);
}

/* what cannot be saved or shown is said before the work, or by the status */
static void test_bad_places(void) {
    NEEDS_CHILDREN;
    static const char *const lines[] = { "job --save /nonexistent/x.safetensors", "job --save /tmp" };
    for (int i = 0; i < COUNT(lines); i++) {
        outcome r = start(lines[i], NULL);
        CHECK_MSG(r.status == 1 && r.out_bytes == 0 && strstr(r.err, "--save"), "%s: %d \"%s\" \"%s\"", lines[i], r.status, r.out, r.err);
        outcome_free(&r);
    }
    FILE *full = fopen("/dev/full", "w");
    if (!full) return;
    fclose(full);
    outcome r = start("full", NULL);
    CHECK_MSG(r.status == 1 && strstr(r.err, "standard output"), "%d \"%s\"", r.status, r.err);
    outcome_free(&r);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 2 && !strcmp(argv[1], "child")) return child(argc - 2, argv + 2);
    if (scratch_begin()) return 1;
    RUN(test_option_set);
    RUN(test_parse);
    RUN(test_absurd_options);
    RUN(test_absurd_dropout);
    RUN(test_events);
    RUN(test_stop_from_event);
    RUN(test_early_stopping);
    RUN(test_steps_and_epochs);
    RUN(test_report);
    RUN(test_evaluate);
    RUN(test_nan_guard);
    RUN(test_no_handlers_in_dt_train);
    RUN(test_runs_leave_the_model);
    RUN(test_no_training_within);
    RUN(test_absurd_rates);
    RUN(test_metrics_of_nothing);
    RUN(test_bad_places);
    RUN(test_endless);
    RUN(test_json_line);
    RUN(test_flags_reach_the_run);
    RUN(test_same_bits_twice);
    RUN(test_save_and_load_flags);
    RUN(test_exit_status);
    RUN(test_quiet);
    RUN(test_help);
    RUN(test_print_options);
    RUN(test_profile);
    RUN(test_decimal_comma_locale);
    RUN(test_real_mnist);
    RUN(test_real_cifar);
    scratch_end();
    return finish();
}
