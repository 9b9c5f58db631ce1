/* server.c - parameter servers: with .sync the bits of a direct exchange, without it every batch once; bounded staleness, backup
 * workers, pushes that come twice; processes that die, stop, leave or send anything. Servers and workers are threads of this
 * program, each with the handle of a process, but where one is killed. Ports are the system's choice; no test depends on how
 * fast the machine is.
 */
#include <stdlib.h>
static size_t most_floats = (size_t)1 << 28;  /* what the system has for one array */
static void *scarce_calloc(size_t n, size_t size) { return size == 4 && n > __atomic_load_n(&most_floats, __ATOMIC_RELAXED) ? NULL : calloc(n, size); }
#define calloc scarce_calloc
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#undef calloc
#include "test.h"
#include "scratch.h"

#ifdef DTRAIN_NO_SOCKETS
int main(void) {
    printf("skipped server: built without sockets\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else

/* ---- a world of threads, each with the handle of a process: workers, then parameter servers ------------------ */

#define SIDE 6
#define FEATURES (SIDE * SIDE)
#define ROWS 203
#define MOST 16   /* processes */
#define LOSSES 64 /* that are remembered */

static float rows[ROWS][FEATURES];
static int32_t row_label[ROWS];

static void make_rows(void) {
    for (int i = 0; i < ROWS; i++) {
        row_label[i] = (int32_t)(dt__random(7, 1, (uint64_t)i) % 4);
        for (int k = 0; k < FEATURES; k++)
            rows[i][k] = (float)dt__uniform(dt__random(7, (uint64_t)i + 2, (uint64_t)k)) + (k % 4 == row_label[i] ? 0.5f : 0);
    }
}

static void rest(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds, t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

/* counters that all threads see */
typedef struct { int n[ROWS * 64]; } tally;
static int see(const int *n) { return __atomic_load_n(n, __ATOMIC_ACQUIRE); }
static int add(int *n, int more) { return __atomic_add_fetch(n, more, __ATOMIC_ACQ_REL); }

typedef struct player {
    dt__who who;
    dt_options o;
    void (*body)(struct player *p);  /* what it does; NULL: dt_train */
    int (*after)(struct player *p, const dt_event *e);  /* … every event */
    dt_comm *comm;
    dt_model *model;
    dt_report report;
    dt_error err;
    int code, n_losses, number, stop_after, slow;
    float loss[LOSSES];
    uint32_t crc;
    uint64_t updates;   /* of a server */
    dt_server *server;
    struct player *all;
    int *count;
    double ended;
    pthread_t thread;
} player;

static int on_event(const dt_event *e, void *user) {
    player *p = (player *)user;
    if (e->kind == DT_EVENT_STEP && p->n_losses < LOSSES) p->loss[p->n_losses++] = (float)e->loss;
    return p->after ? p->after(p, e) : 0;
}

static dt_tensor *plain(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_relu(dt_dense(dt_flatten(x), 16)), 4);
}

static dt_options options(void) {
    dt_options o = DT_DEFAULTS;
    o.net = plain, o.loss = DT_CROSS_ENTROPY, o.input[0] = o.input[1] = SIDE, o.input[2] = 1;
    o.batch = 12, o.epochs = 2, o.seed = 5, o.replicas = 1, o.learning_rate = 0.02;
    o.train = dt_arrays(rows, DT_FLOAT32, row_label, DT_INT32, 57);
    return o;
}

static int serves(const player *p) { return p->who.rank >= p->who.size - p->who.servers; }

static void *play(void *arg) {
    player *p = (player *)arg;
    if (serves(p)) {
        dt_server *s = dt__server_on(dt__net_open(&p->who, &p->err), &p->err);
        __atomic_store_n(&p->server, s, __ATOMIC_RELEASE);
        p->code = s ? dt_server_run(s, &p->err) : p->err.code;
        p->ended = dt__now();
        if (s) p->updates = s->version;
        if (!p->body) dt_server_close(s);
        return NULL;
    }
    if (p->who.size > 1) p->o.comm = p->comm = dt__net_open(&p->who, &p->err);
    p->o.user = p;
    p->o.on_event = on_event;
    if (p->who.size == 1 || p->comm) {
        p->model = dt_model_create(&p->o, &p->err);
        if (!p->model) p->code = p->err.code;
        else if (p->body) p->body(p);
        else p->code = dt_train(p->model, NULL, &p->err);
    }
    p->ended = dt__now();
    if (p->model) {
        p->report = dt_model_report(p->model);
        p->crc = dt_parameters_crc32c(p->model);
    }
    dt_model_free(p->model);
    dt_comm_close(p->comm);
    return NULL;
}

static int open_door(int *port) {
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 64) || getsockname(fd, (struct sockaddr *)&a, &n)) { printf("no port\n"); exit(1); }
    *port = ntohs(a.sin_port);
    return fd;
}

static void set_world(player *p, int workers, int servers) {
    int port, door = open_door(&port);
    memset(p, 0, (size_t)(workers + servers) * sizeof *p);
    for (int i = 0; i < workers + servers; i++) {
        dt__who *w = &p[i].who;
        w->rank = i, w->size = w->local = workers + servers, w->servers = servers, w->tries = 1, w->patience = 30, w->dead = 10;
        w->listener = i || workers + servers == 1 ? -1 : door;
        snprintf(w->chief, sizeof w->chief, "127.0.0.1:%d", port);
        strcpy(w->job, "a job"), strcpy(w->source, "a test");
        p[i].o = options(), p[i].number = i, p[i].all = p;
    }
    if (workers + servers == 1) close(door);
}

static void start_player(player *p) { if (pthread_create(&p->thread, NULL, play, p)) { printf("no thread\n"); exit(1); } }
static void end_player(player *p) { pthread_join(p->thread, NULL); }

static void play_all(player *p, int n) {
    for (int i = 0; i < n; i++) start_player(&p[i]);
    for (int i = 0; i < n; i++) end_player(&p[i]);
}

static void check_all(const player *p, int n, const char *what) {
    for (int i = 0; i < n; i++) CHECK_MSG(!p[i].code && !p[i].err.code, "%s: process %d: code %d, %s", what, i, p[i].code, p[i].err.text);
}

/* a test that hangs ends the program, with its name */
static const char *running;
static void too_long(int number) {
    (void)number;
    if (write(1, "\nhangs: ", 8) < 0 || write(1, running, strlen(running)) < 0 || write(1, "\n", 1) < 0) _exit(3);
    _exit(2);
}
#define TRY(test) do { running = #test; fflush(stdout); alarm(90); RUN(test); alarm(0); } while (0)

/* ---- kinds of training ---------------------------------------------------------------------------------------- */

static const float class_weights[4] = {1, 2, 0.5f, 3};

static dt_tensor *normal(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 4, 3)));
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 16)), 0.2);
    return dt_dense(x, 4);
}
static dt_tensor *synced(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 4, 3), .sync = 1));
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 16)), 0.2);
    return dt_dense(x, 4);
}
static dt_tensor *mixed(dt_tensor *x, void *user) {
    dt_tensor *h;
    (void)user;
    x = dt_flatten(x);
    h = dt_relu(dt_dense(x, 16));
    dt_loss(dt_dense(h, FEATURES), DT_MSE, .target = x, .weight = 0.3, .name = "again");
    return dt_dense(h, 4);
}
static dt_tensor *frozen(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_relu(dt_dense(dt_relu(dt_dense(dt_flatten(x), 20, .frozen = 1)), 16)), 4);
}
static dt_tensor *wide(dt_tensor *x, void *user) {  /* more values than a frame holds */
    (void)user;
    return dt_dense(dt_relu(dt_dense(dt_relu(dt_dense(dt_flatten(x), 400)), 500)), 4);
}
static dt_tensor *tiny(dt_tensor *x, void *user) {  /* fewer than there are servers */
    (void)user;
    return dt_dense(dt_slice(dt_flatten(x), 1, 0, 8), 4);
}

enum { SGD, MOMENTUM, NESTEROV, ADAM, ADAMW, NO_DECAY, RMSPROP, NORM, SYNCED, CLASSES, MIXED, FROZEN, FREEZE, SUMS, PARTS, RATES, WIDE, TINY, PAIRS, KINDS };
static const char *const kind_names[KINDS] = {"SGD", "momentum", "Nesterov", "Adam", "AdamW", "AdamW with .no_decay", "RMSprop", "batch norm", "batch norm, .sync",
    "class weights", "mixed losses", "a frozen layer", ".freeze", "a sum", ".accumulate", "a schedule", "a wide net", "a tiny net", "two replicas"};

static void make_kind(dt_options *o, int kind) {
    static const dt_optimizer optimizer[] = {DT_SGD, DT_MOMENTUM, DT_NESTEROV, DT_ADAM, DT_ADAMW, DT_ADAMW, DT_RMSPROP};
    o->optimizer = kind < COUNT(optimizer) ? optimizer[kind] : DT_ADAM;
    if (kind == SGD || kind == RMSPROP) o->weight_decay = 0.01;
    if (kind == ADAMW) o->weight_decay = 0.05;
    if (kind == NO_DECAY) o->weight_decay = 0.5, o->no_decay = "*.bias,dense_2*";
    if (kind == NORM) o->net = normal;
    if (kind == SYNCED || kind == PAIRS) o->net = synced;
    if (kind == CLASSES || kind == MIXED) o->class_weights = class_weights;
    if (kind == MIXED) o->net = mixed;
    if (kind == FROZEN) o->net = frozen;
    if (kind == FREEZE) o->net = normal, o->freeze = "conv*,*.bias";
    if (kind == SUMS) o->reduction = DT_SUM, o->learning_rate = 0.001;
    if (kind == PARTS) o->accumulate = 2;
    if (kind == RATES) o->schedule = DT_COSINE_DECAY, o->warmup_steps = 3, o->optimizer = DT_ADAMW, o->label_smoothing = 0.1, o->ignore_label = 2;
    if (kind == WIDE) o->net = wide, o->epochs = 1, o->optimizer = DT_MOMENTUM;
    if (kind == TINY) o->net = tiny, o->optimizer = DT_MOMENTUM;
    if (kind == PAIRS) o->replicas = 2;
}

static void check_same(const player *is, const player *should, const char *what, int workers, int servers) {
    CHECK_MSG(is->crc == should->crc, "%s, %d workers, %d servers: other parameters", what, workers, servers);
    CHECK_MSG(is->n_losses == should->n_losses && !memcmp(is->loss, should->loss, sizeof is->loss), "%s, %d workers, %d servers: other losses: %d of them, %.9g; %d, %.9g",
        what, workers, servers, is->n_losses, (double)is->loss[1], should->n_losses, (double)should->loss[1]);
    CHECK_MSG(is->report.steps == should->report.steps && is->report.samples == should->report.samples, "%s: %ld steps, %ld samples", what, is->report.steps, is->report.samples);
    CHECK_MSG(!memcmp(&is->report.train_loss, &should->report.train_loss, sizeof(double)) && !memcmp(&is->report.eval_loss, &should->report.eval_loss, sizeof(double)),
        "%s, %d workers, %d servers: the report's loss is %.17g, not %.17g; evaluated %.17g, not %.17g", what, workers, servers, is->report.train_loss, should->report.train_loss, is->report.eval_loss, should->report.eval_loss);
}

/* .sync: two and three workers with one to three servers end with every bit that the same workers have by themselves */
static void test_sync_is_multiworker(void) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int workers = 2; workers <= 3; workers++) {
            static player p[MOST], direct[MOST];
            for (int servers = 0; servers <= 3; servers++) {
                set_world(p, workers, servers);
                for (int i = 0; i < workers; i++) {
                    make_kind(&p[i].o, kind);
                    p[i].o.sync = servers > 0;
                    p[i].o.test = dt_arrays(rows[100], DT_FLOAT32, row_label + 100, DT_INT32, 31);
                }
                play_all(p, workers + servers);
                check_all(p, workers + servers, kind_names[kind]);
                if (!servers) memcpy(direct, p, sizeof p);
                for (int i = 0; i < workers; i++) {
                    check_same(&p[i], &direct[i], kind_names[kind], workers, servers);
                    CHECK(p[i].crc == p[0].crc && p[i].report.strategy == (servers ? DT_PARAMETER_SERVER : DT_MULTIWORKER));
                    if (servers) CHECK_MSG(p[i].report.pushes == p[i].report.steps && p[i].report.staleness == 0, "%ld pushes, stale by %g", p[i].report.pushes, p[i].report.staleness);
                }
                for (int i = workers; i < workers + servers; i++) CHECK(p[i].updates == (uint64_t)p[0].report.steps);
            }
        }
}

/* one worker without .sync: the bits of one process by itself */
static void test_one_worker(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        static player p[MOST], alone;
        for (int servers = 0; servers <= 3; servers++) {
            set_world(p, 1, servers);
            make_kind(&p[0].o, kind);
            p[0].o.test = dt_arrays(rows[100], DT_FLOAT32, row_label + 100, DT_INT32, 31);
            play_all(p, 1 + servers);
            check_all(p, 1 + servers, kind_names[kind]);
            if (!servers) alone = p[0];
            check_same(&p[0], &alone, kind_names[kind], 1, servers);
        }
    }
}

/* … and with .clip_norm nearly those */
static void test_one_worker_clips(void) {
    static player p[MOST];
    float losses[LOSSES];
    int cut = 0;
    for (int servers = 0; servers <= 2; servers++) {
        set_world(p, 1, servers);
        make_kind(&p[0].o, MOMENTUM);
        p[0].o.clip_norm = 0.4;
        play_all(p, 1 + servers);
        check_all(p, 1 + servers, "clipping");
        if (!servers) memcpy(losses, p[0].loss, sizeof losses);
        for (int i = 0; i < LOSSES; i++) { CHECK_NEAR(p[0].loss[i], losses[i], 1e-5); cut += losses[i] > 0; }
    }
    CHECK(cut > 0);
}

int main(void) {
    signal(SIGALRM, too_long);
    make_rows();
    TRY(test_sync_is_multiworker);
    TRY(test_one_worker);
    TRY(test_one_worker_clips);
    return finish();
}
#endif
