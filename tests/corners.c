/* corners.c - what `make coverage` found that no other program runs: refusals of models, files with long headers, and programs
 * on dt_main as a launcher, at a terminal, and told to stop while they wait. This program starts itself: ./corners child FLAGS…
 */
#define _GNU_SOURCE  /* glibc's word for posix_openpt */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/csv.h"
#include "../examples/job.h"
#include "test.h"
#include "scratch.h"

static dt_tensor *plain_net(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 1); }

static int make_sample(void *user, long i, void *x, void *y) {
    (void)user;
    for (int k = 0; k < 3; k++) ((float *)x)[k] = (float)((i * 7 + k * 3) % 11) / 11;
    if (y) *(float *)y = ((float *)x)[0] - ((float *)x)[1];
    return 0;
}

static dt_options plain_run(void) {
    dt_options o = {.net = plain_net, .input = {3}, .batch = 8, .replicas = 1, .loss = DT_MSE, .progress = DT_OFF};
    return o;
}

/* ---- names ---------------------------------------------------------------------------------------------------- */

static void test_names(void) {
    static const struct { const char *id; int good; } id_case[] = {
        {"a", 1}, {"job_20261122_1", 1}, {"Z9_", 1}, {"", 0}, {"9lives", 0}, {"_a", 0}, {"a-b", 0}, {"a b", 0}, {"../a", 0}, {"\303\244", 0}};
    char id[130];
    int n = 0;
#define DT_NAMED(code, value, name) CHECK(code == value && !strcmp(dt_error_name(code), name)); n++;
    DT_ERRORS(DT_NAMED)
#undef DT_NAMED
    CHECK(n == 14);
    CHECK(!strcmp(dt_error_name(-1), "unknown error") && !strcmp(dt_error_name(63), "unknown error"));
    for (int i = 0; i < COUNT(id_case); i++) CHECK_MSG(dt_job_id_valid(id_case[i].id) == id_case[i].good, "\"%s\"", id_case[i].id);
    memset(id, 'a', sizeof id), id[128] = 0;
    CHECK(dt_job_id_valid(id));
    id[128] = 'a', id[129] = 0;
    CHECK(!dt_job_id_valid(id));
}

/* ---- models that are refused ------------------------------------------------------------------------------------ */

static dt_tensor *scaled_net(dt_tensor *x, void *user) { return dt_dense(dt_scale(x, ((double *)user)[0], ((double *)user)[1]), 1); }
static dt_tensor *two_inputs(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_add(x, dt_input(x, "more", {3})), 1); }

static void test_refused(void) {
    double factors[3][2] = {{NAN, 0}, {1, INFINITY}, {-INFINITY, NAN}};
    for (int i = 0; i < 3; i++) {
        dt_error err = {0};
        dt_options o = plain_run();
        o.net = scaled_net, o.user = factors[i];
        CHECK(!dt_model_create(&o, &err));
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "both must be finite");
    }
    dt_error err = {0}, twice = {0};
    dt_options o = plain_run();
    o.net = two_inputs;
    o.train = dt_from(make_sample, NULL, 20);
    dt_model *m = dt_model_create(&o, &err);
    if (m) dt_train(m, NULL, &err);
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "the net has 2 inputs and 1 labels, data sources one of each: use dt_step_batch");
    dt_model_free(m);

    float x[24] = {0}, y[8] = {0};
    o = plain_run(), o.loss = DT_NO_LOSS;
    m = dt_model_create(&o, &twice);
    CHECK(isnan(dt_step(m, x, y, 8, &twice)));
    CHECK_ERROR(twice, DT_ERR_STATE, "the net has no loss: set .loss, or call dt_loss in net");
    dt_model_free(m);
}

/* a gradient that the program itself has spoilt: nothing is updated, and the model goes on with the next */
static void test_update_not_finite(void) {
    dt_error err = {0}, none = {0};
    dt_options o = plain_run();
    dt_model *m = dt_model_create(&o, &none);
    float x[24], y[8];
    size_t n = 0;
    for (int i = 0; i < 8; i++) make_sample(NULL, i, x + 3 * i, y + i);
    dt_batch b = {.x = {x}, .y = {y}, .n = 8};
    for (int bad = 1; bad >= 0; bad--) {
        uint32_t crc = dt_parameters_crc32c(m);
        float *g;
        dt_forward(m, &b, &none);
        dt_backward(m, &none);
        dt_reduce(m, &none);
        g = dt_gradients(m, &n);
        CHECK(g && n == 4);
        if (bad) g[1] = INFINITY;
        CHECK(dt_update(m, bad ? &err : &none) == (bad ? DT_ERR_NUMERIC : 0));
        CHECK((dt_parameters_crc32c(m) == crc) == bad && dt_model_step(m) == !bad);
        dt_clear(m, &none);
    }
    CHECK_ERROR(err, DT_ERR_NUMERIC, "dt_update: step 0: the loss or the gradient's norm is not finite: lower .learning_rate");
    CHECK_OK(none);
    dt_model_free(m);
}

/* ---- two processes, played by two threads ------------------------------------------------------------------------- */

typedef struct { dt_comm *comm; dt_strategy strategy; int replicas; dt_error err; pthread_t thread; } member;

static void *member_main(void *arg) {
    member *p = (member *)arg;
    dt_options o = plain_run();
    dt_model *m;
    o.comm = p->comm, o.strategy = p->strategy, o.replicas = 0;
    m = dt_model_create(&o, &p->err);
    if (m) p->replicas = dt_model_report(m).replicas;
    dt_model_free(m);
    return NULL;
}

/* replicas that nobody named are as many everywhere; a strategy for one process is refused on all */
static void test_members(void) {
    for (int round = 0; round < 2; round++) {
        member p[2];
        dt_comm *c[2];
        dt_error err = {0};
        memset(p, 0, sizeof p);
        CHECK(dt_comm_group(2, c, &err) == 0);
        for (int i = 0; i < 2; i++) {
            p[i].comm = c[i], p[i].strategy = round ? DT_MIRRORED : DT_STRATEGY_DEFAULT;
            if (pthread_create(&p[i].thread, NULL, member_main, &p[i])) { printf("no thread\n"); exit(1); }
        }
        for (int i = 0; i < 2; i++) pthread_join(p[i].thread, NULL);
        for (int i = 0; i < 2; i++) {
            if (round) CHECK_ERROR(p[i].err, DT_ERR_ARGUMENT, ".strategy is for others than 2 workers and 0 parameter servers: use DT_MULTIWORKER");
            else { CHECK_OK(p[i].err); CHECK(p[i].replicas >= 1 && p[i].replicas == p[0].replicas); }
            dt_comm_close(c[i]);
        }
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

/* a column of two hundred words: what was fitted to it does not fit in one piece of a file's header, and comes back whole */
static void test_long_columns(void) {
    static char text[8000];
    float before[200], after[200];
    size_t n = (size_t)sprintf(text, "word,y\n");
    for (int i = 0; i < 200; i++) n += (size_t)sprintf(text + n, "w\303\266rd \"%d\",%d\n", i, i % 5);
    dt_error err = {0};
    dt_options o = plain_run();
    memset(o.input, 0, sizeof o.input);
    o.steps = 20;
    o.train = dt_csv(put("words.csv", text, n), .label_type = DT_FLOAT32, .columns = "word onehot");
    dt_model *m = dt_model_create(&o, &err);
    CHECK(dt_train(m, NULL, &err) == 0 && dt_predict_source(m, &o.train, 0, 200, before, &err) == 0);
    CHECK(dt_save(m, at("words.safetensors"), &err) == 0);
    dt_model_free(m);
    o.train = dt_csv(at("words.csv"), .label_type = DT_FLOAT32, .fitted = at("words.safetensors"));
    m = dt_model_create(&o, &err);
    CHECK(dt_load(m, at("words.safetensors"), NULL, &err) == 0 && dt_predict_source(m, &o.train, 0, 200, after, &err) == 0);
    CHECK_OK(err);
    CHECK(!memcmp(before, after, sizeof after));
    dt_model_free(m);

    /* … and weights of a model that has seen no table keep no columns */
    dt_options p = plain_run();
    m = dt_model_create(&p, &err);
    dt_save(m, at("plain.safetensors"), &err);
    CHECK_OK(err);
    dt_model_free(m);
    o.train = dt_csv(at("words.csv"), .label_type = DT_FLOAT32, .fitted = at("plain.safetensors"));
    CHECK(!dt_model_create(&o, &err));
    CHECK_ERROR(err, DT_ERR_FORMAT, "keeps no columns: was the model trained on a CSV?");
}

static dt_tensor *in_order(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_flatten(x), 2, .name = "out"); }
static dt_tensor *out_of_order(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_pad(dt_slice(dt_flatten(x), 1, 0, 11), 1, 0, 1), 2, .name = "out"); }

/* features in this library's order do not pass for PyTorch's, nor the other way; by a glob they do */
static void test_feature_order(void) {
    for (int way = 0; way < 2; way++) {
        dt_error err = {0}, none = {0};
        dt_options o = {.input = {2, 2, 3}, .batch = 4, .replicas = 1, .progress = DT_OFF};
        o.net = way ? in_order : out_of_order;
        dt_model *m = dt_model_create(&o, &none);
        dt_save(m, at("order.safetensors"), &none);
        dt_model_free(m);
        o.net = way ? out_of_order : in_order;
        m = dt_model_create(&o, &none);
        CHECK(dt_load(m, at("order.safetensors"), NULL, &err) == DT_ERR_FORMAT);
        CHECK_ERROR(err, DT_ERR_FORMAT, way ? "has PyTorch's order of features, this net another" : "has this library's order of features, this net another");
        CHECK(dt_load(m, at("order.safetensors"), "out.*", &none) == 0);
        CHECK_OK(none);
        dt_model_free(m);
    }
}

/* ---- programs on dt_main -------------------------------------------------------------------------------------------------- */

static const char *self;
static char long_line[5000];

/* says something as its last act, too long for one read, and but for the chief without an end */
static int talk(const dt_event *e, void *user) {
    (void)user;
    if (e->kind != DT_EVENT_END) return 0;
    memset(long_line, 'x', sizeof long_line - 1);
    printf("here is %d of %d\n%s", dt_model_report(e->model).process, dt_model_report(e->model).processes, long_line);
    if (!dt_model_report(e->model).process) printf("\n");
    fflush(stdout);
    return 0;
}

static int child_main(int argc, char **argv) {
    dt_options o = plain_run();
    int status;
    o.progress = 0, o.on_event = talk;
    o.train = dt_from(make_sample, NULL, 64);
    if (argc > 1 && !strcmp(argv[1], "submit")) return dt_job_command(&argc, &argv, &status) ? status : 99;
    return dt_main_opt(argc, argv, &o);
}

#if DT__POSIX
typedef struct { pid_t pid; int status; char *out, *err; } child;

static child launch(const char *line, const char *env, int terminal) {
    char words[600], variables[600], *argv[40], out[512], err[512];
    int argc = 0;
    child c;
    memset(&c, 0, sizeof c);
    snprintf(words, sizeof words, "%s", line);
    snprintf(variables, sizeof variables, "%s", env ? env : "");
    argv[argc++] = (char *)(uintptr_t)self, argv[argc++] = (char *)(uintptr_t)"child";
    for (char *p = strtok(words, " "); p && argc < 39; p = strtok(NULL, " ")) argv[argc++] = p;
    argv[argc] = NULL;
    snprintf(out, sizeof out, "%s", at("stdout")), snprintf(err, sizeof err, "%s", at("stderr"));
    fflush(stdout);
    c.pid = fork();
    if (c.pid == 0) {
        if (!freopen(out, "w", stdout) || (terminal < 0 && !freopen(err, "w", stderr)) || (terminal >= 0 && dup2(terminal, 2) < 0)) _exit(126);
        for (char *p = strtok(variables, " "); p; p = strtok(NULL, " ")) putenv(p);
        execv(self, argv);
        _exit(127);
    }
    return c;
}

static void end_child(child *c) {
    size_t n;
    int status = 0;
    if (c->pid < 0 || waitpid(c->pid, &status, 0) < 0) status = 127 << 8;
    c->status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    c->out = (char *)get(at("stdout"), &n), c->err = (char *)get(at("stderr"), &n);
    if (!c->out) c->out = (char *)calloc(1, 1);
    if (!c->err) c->err = (char *)calloc(1, 1);
}

static child start(const char *line, const char *env) {
    child c = launch(line, env, -1);
    end_child(&c);
    return c;
}
static void free_child(child *c) { free(c->out), free(c->err); }

/* lines of a cluster on this machine carry who says them; the chief's JSON stands alone, last */
static void test_launcher(void) {
    child c = start("--workers 1 --steps 3 --json", NULL);
    const char *last = strrchr(c.out, '{');
    CHECK_MSG(c.status == 0, "status %d: %s", c.status, c.err);
    CHECK(strstr(c.out, "[chief] here is 0 of 2\n") && strstr(c.out, "[worker 1] here is 1 of 2\n"));
    CHECK_MSG(last && last > c.out && last[-1] == '\n' && !strncmp(last, "{\"status\"", 9) && !strchr(last, '[') && last[strlen(last) - 1] == '\n', "%s", c.out);
    CHECK(strstr(c.out, "[worker 1] xxxx") && strstr(c.out, "[chief] xxxx"));
    free_child(&c);

    c = start("--workers 1 --ps 1 --steps 3", NULL);
    CHECK_MSG(c.status == 0, "status %d: %s", c.status, c.err);
    CHECK_MSG(strstr(c.out, "[ps 0] ") && strstr(c.out, " updates of 4 values, stale by "), "%s", c.out);
    free_child(&c);
}

static void test_who(void) {
    static const struct { const char *flags, *env, *says; } who_case[] = {
        {"--print-cluster", NULL, "role = chief\nrank = 0\nworld size = 1\nparameter servers = 0\nchief = this process\n"},
        {"--print-cluster", "DTRAIN_RANK=1 DTRAIN_WORLD=3 DTRAIN_CHIEF=10.0.0.1:4001", "role = worker\nrank = 1\nworld size = 3\nparameter servers = 0\nchief = 10.0.0.1:4001\n"},
        {"--print-cluster", "DTRAIN_RANK=1 DTRAIN_WORLD=2 DTRAIN_SERVERS=2 DTRAIN_ROLE=ps DTRAIN_CHIEF=h:1", "role = ps\nrank = 1\nworld size = 2\nparameter servers = 2\n"},
        {"--batch 4 --replica-batch 2 --print-options", NULL, "replica-batch = 2\n"}, {"--replica-batch 2 --batch 4 --print-options", NULL, "batch = 4\n"}};
    for (int i = 0; i < COUNT(who_case); i++) {
        child c = start(who_case[i].flags, who_case[i].env);
        CHECK_MSG(c.status == 0 && strstr(c.out, who_case[i].says), "%s: status %d: %s%s", who_case[i].flags, c.status, c.out, c.err);
        free_child(&c);
    }
    static const struct { const char *flags, *env, *says; int status; } refused[] = {
        {"--workers 100000", NULL, "--workers is 100000, --ps 0: give at most", 64},
        {"--workers 2", "DTRAIN_RANK=1 DTRAIN_WORLD=3 DTRAIN_CHIEF=10.0.0.1:4001", "leave out one of the two", 64},
        {"submit --job-dir /dev/null/none", NULL, "--job-dir: \"/dev/null/none\" cannot be made", 1}};
    for (int i = 0; i < COUNT(refused); i++) {
        child c = start(refused[i].flags, refused[i].env);
        CHECK_MSG(c.status != 0 && strstr(c.err, refused[i].says), "%s: status %d: %s%s", refused[i].flags, c.status, c.out, c.err);
        free_child(&c);
    }
}

/* on a terminal one line moves, and is gone at the end */
static void test_terminal(void) {
    int near = posix_openpt(O_RDWR | O_NOCTTY), far = -1;
    static char said[1 << 16];
    size_t n = 0;
    if (near < 0 || grantpt(near) || unlockpt(near) || (far = open(ptsname(near), O_RDWR | O_NOCTTY)) < 0) {
        if (near >= 0) close(near);
        SKIP("this system has no pseudo-terminals");
    }
    child c = launch("--steps 4000 --batch 1", NULL, far);
    close(far);
    for (ssize_t got; n < sizeof said - 1 && (got = read(near, said + n, sizeof said - 1 - n)) > 0; ) n += (size_t)got;
    said[n] = 0;
    end_child(&c);
    close(near);
    CHECK(c.status == 0);
    CHECK_MSG(strstr(said, "\repoch 1/63 ") && strstr(said, " samples/s  loss 0.") && strstr(said, " left"), "%s", said);
    CHECK(!strchr(c.out, '\r') && strstr(c.out, "epoch 63/63  loss "));
    free_child(&c);
}

/* SIGTERM while the others have not come yet: it says so, and what to tell a launcher; the chief, and one that it has let in */
static void test_stopped_while_joining(void) {
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    char env[200];
    int fd = socket(AF_INET, SOCK_STREAM, 0), there = -1;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) || getsockname(fd, (struct sockaddr *)&a, &n)) { CHECK(!"a port"); return; }
    close(fd);
    snprintf(env, sizeof env, "DTRAIN_RANK=0 DTRAIN_WORLD=3 DTRAIN_CHIEF=127.0.0.1:%d DTRAIN_JOIN=60", ntohs(a.sin_port));
    child c = launch("--steps 3", env, -1);
    env[12] = '1';
    child d = launch("--steps 3", env, -1);
    for (int i = 0; i < 400 && there < 0; i++) {  /* until it listens */
        const struct timespec pause = {0, 50000000};
        fd = socket(AF_INET, SOCK_STREAM, 0);
        there = connect(fd, (struct sockaddr *)&a, sizeof a);
        close(fd);
        if (there < 0) nanosleep(&pause, NULL);
    }
    CHECK(there == 0);
    nanosleep(&(struct timespec){1, 0}, NULL);  /* until rank 1 waits for the list of all */
    kill(d.pid, SIGTERM);
    end_child(&d);
    CHECK_MSG(d.status == 143 && strstr(d.err, "rank 1 was stopped by signal 15 while it waited for the others"), "status %d: %s", d.status, d.err);
    free_child(&d);
    kill(c.pid, SIGTERM);
    end_child(&c);
    CHECK_MSG(c.status == 143 && strstr(c.err, "rank 0 was stopped by signal 15 while it waited for the others"), "status %d: %s", c.status, c.err);
    free_child(&c);
}
#endif

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 1 && !strcmp(argv[1], "child")) {
        argv[1] = argv[0];
        return child_main(argc - 1, argv + 1);
    }
    if (scratch_begin()) return 1;
    RUN(test_names);
    RUN(test_refused);
    RUN(test_update_not_finite);
    RUN(test_members);
    RUN(test_long_columns);
    RUN(test_feature_order);
#if DT__POSIX
    child c = start("--print-cluster", NULL);  /* an emulator cannot start this program again */
    int can = c.status == 0;
    free_child(&c);
    if (can) {
        RUN(test_launcher);
        RUN(test_who);
        RUN(test_terminal);
        RUN(test_stopped_while_joining);
    }
#endif
    scratch_end();
    return finish();
}
