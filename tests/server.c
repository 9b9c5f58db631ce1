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
#include "rows.h"

/* ---- a world of threads, each with the handle of a process: workers, then parameter servers ------------------ */

#define MOST 16   /* processes */
#define LOSSES 64 /* that are remembered */

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
    int kept;  /* a server that another thread stops, and closes */
    double busy;  /* a server that does something else for so long, */
    int mute;  /* … and whose heart does not beat */
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
        dt_server *s = dt__ps_on(dt__net_open(&p->who, &p->err), &p->err);
        __atomic_store_n(&p->server, s, __ATOMIC_RELEASE);
        if (s && p->mute) dt__hand_stop(&s->net->heart);
        if (p->busy > 0) rest(p->busy);
        p->code = s ? dt_server_run(s, &p->err) : p->err.code;
        p->ended = dt__now();
        if (s) p->updates = s->version;
        if (!p->kept) dt_server_close(s);
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
        w->rank = i, w->size = workers + servers, w->servers = servers, w->tries = 1, w->patience = 30, w->dead = 10;
        w->listener = i || workers + servers == 1 ? -1 : door;
        snprintf(w->chief, sizeof w->chief, "127.0.0.1:%d", port);
        strcpy(w->job, "a job"), strcpy(w->source, "a test");
        p[i].o = options(), p[i].number = i, p[i].all = p;
    }
    if (workers + servers == 1) close(door);
}

static void start_player(player *p) { if (pthread_create(&p->thread, NULL, play, p)) { printf("no thread\n"); exit(1); } }
static void end_player(player *p) {
    pthread_join(p->thread, NULL);
    if (p->kept) dt_server_close(p->server);
}

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


/* ---- without .sync: batches are handed out -------------------------------------------------------------------- */


/* a sample that says which one it is */
static int read_counted(void *user, long index, void *x, void *y) {
    (void)user;
    memcpy(x, rows[index % ROWS], sizeof rows[0]);
    if (y) *(int32_t *)y = row_label[index % ROWS];
    return 0;
}
static int count_sample(void *user, float *x, long index, uint64_t random) {
    player *p = (player *)user;
    (void)x, (void)random;
    add(&p->count[index], 1);
    return 0;
}

/* the slow one goes on when the others have done 40 steps more, or nearly all; it would wait for ever if they waited for it */
typedef struct { int total, batches, ahead, most_ahead, begun[MOST], done[MOST], over[MOST]; } progress;
static progress shared;

static int dawdle(player *p, const dt_event *e) {
    int until;
    if (e->kind != DT_EVENT_STEP) return 0;
    until = add(&shared.total, 1) + 40;
    add(&shared.done[p->number], 1);
    if (until > shared.batches * e->epoch - 3) until = shared.batches * e->epoch - 3;
    while (p->slow && see(&shared.total) < until) rest(0.0005);
    return 0;
}

/* three workers: each sample of an epoch is read once, whoever is slow does little, and all end with the same values */
static void test_each_batch_once(void) {
    enum { N = 1200, EPOCHS = 3 };
    static player p[MOST];
    static int count[N];
    for (int servers = 1; servers <= 3; servers++) {
        long steps = 0;
        memset(count, 0, sizeof count), memset(&shared, 0, sizeof shared);
        shared.batches = N / 4;
        set_world(p, 3, servers);
        for (int i = 0; i < 3; i++) {
            p[i].o.train = dt_from(read_counted, &p[i], N), p[i].o.augment = count_sample, p[i].o.batch = 4, p[i].o.epochs = EPOCHS;
            p[i].o.optimizer = DT_ADAM, p[i].o.net = servers == 2 ? normal : plain, p[i].o.label_type = DT_INT32, p[i].o.learning_rate = 0.003;
            p[i].o.test = dt_arrays(rows, DT_FLOAT32, row_label, DT_INT32, ROWS);
            p[i].count = count, p[i].after = dawdle, p[i].slow = i == 1;
        }
        play_all(p, 3 + servers);
        check_all(p, 3 + servers, "each batch once");
        for (int i = 0; i < N; i++) CHECK_MSG(count[i] == EPOCHS, "sample %d was read %d times", i, count[i]);
        for (int i = 0; i < 3; i++) {
            const dt_report *r = &p[i].report;
            CHECK_MSG(p[i].crc == p[0].crc, "worker %d has other parameters", i);
            CHECK_MSG(r->steps == EPOCHS * N / 4 && r->samples == EPOCHS * N && r->epochs == EPOCHS, "worker %d: %ld steps, %ld samples, %d epochs", i, r->steps, r->samples, r->epochs);
            CHECK(r->train_loss == p[0].report.train_loss && r->eval_loss == p[0].report.eval_loss);
            CHECK_MSG(r->pushes == shared.done[i], "worker %d: %ld pushes, %d steps", i, r->pushes, shared.done[i]);
            CHECK_MSG(r->train_loss < 0.8 * (double)p[0].loss[0], "the loss goes from %g to %g", (double)p[0].loss[0], r->train_loss);
            steps += r->pushes;
        }
        CHECK_MSG(steps == EPOCHS * N / 4, "%ld steps together", steps);
        CHECK_MSG(4 * p[1].report.pushes < p[0].report.pushes + p[2].report.pushes, "the slow worker did %ld steps, the others %ld and %ld", p[1].report.pushes, p[0].report.pushes, p[2].report.pushes);
        for (int i = 3; i < 3 + servers; i++) CHECK_MSG(p[i].updates == (uint64_t)steps, "server %d made %d updates", i - 3, (int)p[i].updates);
    }
}

/* fewer batches than workers, the last one short: who gets none waits for the others */
static void test_few_batches(void) {
    static player p[MOST];
    for (int n = 1; n <= 31; n += 15) {
        long pushes = 0;
        set_world(p, 4, 1);
        for (int i = 0; i < 4; i++) p[i].o.train.n = n, p[i].o.epochs = 3;
        play_all(p, 5);
        check_all(p, 5, "few batches");
        for (int i = 0; i < 4; i++) {
            CHECK(p[i].crc == p[0].crc && p[i].report.samples == 3 * n && p[i].report.steps == 3 * ((n + 11) / 12));
            CHECK(p[i].report.train_loss == p[0].report.train_loss && p[0].report.train_loss > 0);
            pushes += p[i].report.pushes;
        }
        CHECK(pushes == 3 * ((n + 11) / 12));
    }
}

/* equal workers get about equally many: 900 to 1100 each where each has a core of its own, which is not asked for here */
static void test_shared_out(void) {
    static player p[MOST];
    long least = LONG_MAX, most = 0, sum = 0;
    set_world(p, 10, 1);
    for (int i = 0; i < 10; i++) p[i].o.train = dt_from(read_counted, NULL, 10000), p[i].o.label_type = DT_INT32, p[i].o.batch = 1, p[i].o.epochs = 1, p[i].o.learning_rate = 0.001;
    play_all(p, 11);
    check_all(p, 11, "shared out");
    for (int i = 0; i < 10; i++) {
        least = DT__MIN(least, p[i].report.pushes), most = DT__MAX(most, p[i].report.pushes), sum += p[i].report.pushes;
        if (getenv("SHOW")) printf("  worker %d: %ld\n", i, p[i].report.pushes);
    }
    CHECK(sum == 10000);
    CHECK_MSG(least >= 100 && most <= 3000, "of 10000 batches %ld to %ld", least, most);
}

/* ---- .staleness and .backup ------------------------------------------------------------------------------------ */

static int read_tracked(void *user, long index, void *x, void *y) {
    player *p = (player *)user;
    if (index % 2 == 0) add(&shared.begun[p->number], 1);  /* a batch is two samples, in their order */
    return read_counted(user, index, x, y);
}
/* by how much this worker's steps done exceed the steps that the slowest has begun, but for those who got no more batches */
static int track(player *p, const dt_event *e) {
    int done, ahead = 0, was, begun;
    if (e->kind != DT_EVENT_STEP) return 0;
    done = add(&shared.done[p->number], 1);
    if (p->model->push.order.next < 0) add(&shared.over[p->number], 1);
    for (int i = 0; i < 3; i++) {
        begun = see(&shared.begun[i]);
        if (!see(&shared.over[i]) && done - begun > ahead) ahead = done - begun;
    }
    for (was = see(&shared.most_ahead); ahead > was && !__atomic_compare_exchange_n(&shared.most_ahead, &was, ahead, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);) {}
    if (p->slow) rest(0.004);
    return 0;
}

/* .staleness = s: when one has done n steps, the slowest is at its step n - s or later; and all ends */
static void test_bounded_staleness(void) {
    static const int bound[] = {1, 2, 5};
    static player p[MOST];
    for (int k = 0; k < COUNT(bound); k++) {
        memset(&shared, 0, sizeof shared);
        set_world(p, 3, 2);
        for (int i = 0; i < 3; i++) {
            p[i].o.staleness = bound[k], p[i].o.batch = 2, p[i].o.epochs = 1, p[i].o.no_shuffle = 1;
            p[i].o.train = dt_from(read_tracked, &p[i], 180), p[i].o.label_type = DT_INT32;
            p[i].after = track, p[i].slow = i == 2;
        }
        play_all(p, 5);
        check_all(p, 5, ".staleness");
        CHECK_MSG(shared.most_ahead <= bound[k], ".staleness %d: somebody was %d steps ahead", bound[k], shared.most_ahead);
        CHECK(p[0].report.pushes + p[1].report.pushes + p[2].report.pushes == 90);
        CHECK(p[1].crc == p[0].crc && p[2].crc == p[0].crc);
    }
}

static int lag(player *p, const dt_event *e) {
    if (e->kind == DT_EVENT_STEP && p->slow) rest(0.003);
    return 0;
}

/* .backup: the slow worker's pushes are left out, the number of updates is that of the batches */
static void test_backup(void) {
    static player p[MOST];
    for (int servers = 1; servers <= 2; servers++) {
        set_world(p, 3, servers);
        for (int i = 0; i < 3; i++) {
            p[i].o.sync = 1, p[i].o.backup = 1, p[i].o.epochs = 6, p[i].o.optimizer = DT_MOMENTUM, p[i].o.test = dt_arrays(rows[100], DT_FLOAT32, row_label + 100, DT_INT32, 31);
            p[i].after = lag, p[i].slow = i == 1;
        }
        play_all(p, 3 + servers);
        check_all(p, 3 + servers, ".backup");
        CHECK_MSG(p[2 + servers].updates == 30, "%d updates, of 30 batches", (int)p[2 + servers].updates);  /* by the last, which numbers them */
        for (int i = 0; i < 3; i++) {
            CHECK(p[i].crc == p[0].crc && p[i].report.eval_loss == p[0].report.eval_loss);
            CHECK_MSG(p[i].report.steps == 30 && p[i].report.epochs == 6, "worker %d: %ld steps, %d epochs", i, p[i].report.steps, p[i].report.epochs);
        }
        CHECK_MSG(p[0].report.train_loss < (double)p[0].loss[0], "the loss goes from %g to %g", (double)p[0].loss[0], p[0].report.train_loss);
        CHECK_MSG(p[0].report.pushes <= 30 && p[1].report.pushes <= 30 && p[2].report.pushes <= 30, "%ld, %ld, %ld pushes for 30 updates", p[0].report.pushes, p[1].report.pushes, p[2].report.pushes);
    }
}

/* ---- stale gradients -------------------------------------------------------------------------------------------- */

static int turn;
static void await(int number) { while (see(&turn) != number) rest(0.0005); }
static void hand_on(void) { add(&turn, 1); }

static dt_batch batch_at(int from, int n) {
    dt_batch b = DT_DEFAULTS;
    b.x[0] = rows[from], b.y[0] = row_label + from, b.n = n;
    return b;
}

/* worker 1 takes its gradient where worker 0 begins, and pushes it three steps later */
static void stale_pair(player *p) {
    dt_batch b = batch_at(60, 12);
    if (p->number) {
        dt_forward(p->model, &b, &p->err);
        dt_backward(p->model, &p->err);
        hand_on();
        await(2);
        p->code = dt_update(p->model, &p->err);
        hand_on();
    } else {
        b = batch_at(0, 12);
        dt_forward(p->model, &b, &p->err);  /* both begin with the same values */
        dt_clear(p->model, &p->err);
        await(1);
        for (int i = 0; i < 3; i++) dt_step(p->model, rows[12 * i], row_label + 12 * i, 12, &p->err);
        hand_on();
        await(3);
    }
    p->n_losses = (int)dt_model_step(p->model);
}

/* the same with one model: three steps, then the gradient that belongs to the first values */
static uint32_t stale_alone(dt_options o, double divisor) {
    dt_error err = DT_DEFAULTS;
    dt_model *m = dt_model_create(&o, &err), *first = dt_model_create(&o, &err);
    dt_batch b = batch_at(60, 12);
    size_t n = 0, also = 0;
    const float *from;
    float *to;
    uint32_t crc;
    for (int i = 0; i < 3; i++) dt_step(m, rows[12 * i], row_label + 12 * i, 12, &err);
    dt_forward(first, &b, &err), dt_backward(first, &err), dt_reduce(first, &err);
    dt_forward(m, &b, &err), dt_backward(m, &err), dt_reduce(m, &err);
    from = dt_gradients(first, &n), to = dt_gradients(m, &also);
    CHECK(n && n == also);
    memcpy(to, from, n * sizeof *to);
    dt_set_learning_rate(m, o.learning_rate / divisor);
    dt_update(m, &err);
    CHECK_OK(err);
    crc = dt_parameters_crc32c(m);
    dt_model_free(m), dt_model_free(first);
    return crc;
}

static dt_options local_options(const dt_options *with) {
    dt_options o = *with;
    o.comm = NULL, o.on_event = NULL, o.user = NULL;
    return o;
}

static void test_stale_gradient(void) {
    static player p[MOST];
    for (int full = 0; full < 2; full++)
        for (int servers = 1; servers <= 2; servers++) {
            turn = 0;
            set_world(p, 2, servers);
            for (int i = 0; i < 2; i++) p[i].o.optimizer = DT_SGD, p[i].o.learning_rate = 0.1, p[i].o.full_rate = full, p[i].body = stale_pair;
            play_all(p, 2 + servers);
            check_all(p, 2 + servers, "a stale gradient");
            CHECK_MSG(p[1].crc == stale_alone(local_options(&p[0].o), full ? 1 : 4), ".full_rate %d, %d servers: other parameters", full, servers);
            CHECK(p[1].report.pushes == 1 && p[1].report.staleness == 3 && p[0].report.pushes == 3 && p[0].report.staleness == 0);
            CHECK(p[0].n_losses == 3 && p[1].n_losses == 1);
        }
}

/* ---- one job after another, own loops ------------------------------------------------------------------------- */

static void train_twice(player *p) {
    p->code = dt_train(p->model, NULL, &p->err);
    if (!p->code) p->code = dt_train(p->model, NULL, &p->err);
}
static char weights[512];
static void train_load_train(player *p) {
    p->code = dt_train(p->model, NULL, &p->err);
    if (!p->code && !p->number) p->code = dt_save(p->model, weights, &p->err);
    if (!p->code) p->code = dt_train(p->model, NULL, &p->err);
    if (!p->code && !p->number) p->code = dt_load(p->model, weights, NULL, &p->err);
    if (!p->code) p->code = dt_train(p->model, NULL, &p->err);
}
/* a model, and then another: of the same sizes, of other sizes, with another optimizer */
static void two_models(player *p) {
    dt_options o = p->o;
    p->code = dt_train(p->model, NULL, &p->err);
    dt_model_free(p->model);
    if (p->slow == 1) o.net = wide;
    if (p->slow == 2) o.optimizer = DT_RMSPROP, o.weight_decay = 0.1;
    p->model = p->code ? NULL : dt_model_create(&o, &p->err);
    p->code = p->model ? dt_train(p->model, NULL, &p->err) : 1;
}
static int stop_early(player *p, const dt_event *e) { return e->kind == DT_EVENT_STEP && p->number == p->stop_after && e->step == 3; }
static void stop_and_go(player *p) {
    p->after = stop_early;
    p->code = dt_train(p->model, NULL, &p->err);
    p->after = NULL;
    if (!p->code) p->code = dt_train(p->model, NULL, &p->err);
}
static int stop_at_epoch(player *p, const dt_event *e) { (void)p; return e->kind == DT_EVENT_EPOCH && e->epoch == 1; }
static void stop_at_an_epoch(player *p) {
    p->after = stop_at_epoch;
    p->code = dt_train(p->model, NULL, &p->err);
}

/* the same body with a direct exchange and with servers: the same bits, whatever was done before */
static void compare_bodies(void (*body)(player *), int variant, const char *what) {
    static player p[MOST], direct[MOST];
    for (int servers = 0; servers <= 2; servers++) {
        set_world(p, 2, servers);
        for (int i = 0; i < 2; i++) {
            make_kind(&p[i].o, variant == 3 ? NORM : NO_DECAY);
            p[i].o.sync = servers > 0;
            p[i].body = body, p[i].slow = variant;
        }
        play_all(p, 2 + servers);
        check_all(p, 2 + servers, what);
        if (!servers) memcpy(direct, p, sizeof p);
        for (int i = 0; i < 2; i++) check_same(&p[i], &direct[i], what, 2, servers);
    }
}

static void test_train_goes_on(void) { compare_bodies(train_twice, 0, "dt_train twice"); compare_bodies(train_twice, 3, "dt_train twice, with batch norm"); }
static void test_load_between(void) { compare_bodies(train_load_train, 0, "dt_load between two dt_train"); }
static void test_model_after_model(void) {
    compare_bodies(two_models, 1, "two models of other sizes");
    compare_bodies(two_models, 0, "two models of the same sizes");
    compare_bodies(two_models, 2, "two models, another optimizer");
}

/* a run that an event stopped is no end: the next one trains */
static void test_stop_and_go(void) {
    static player p[MOST];
    for (int sync = 0; sync < 2; sync++) {
        set_world(p, 2, 2);
        for (int i = 0; i < 2; i++) p[i].o.sync = sync, p[i].body = stop_and_go, p[i].stop_after = 1;
        if (!sync) p[0].stop_after = 0, p[1].stop_after = 1;
        play_all(p, 4);
        check_all(p, 4, "stopped");
        for (int i = 0; i < 2; i++) CHECK_MSG(p[i].report.steps == 10 && p[i].report.epochs == 2, "sync %d: worker %d: %ld steps, %d epochs of the second run", sync, i, p[i].report.steps, p[i].report.epochs);
    }
}

/* on_event stops at the end of an epoch: the report is of that epoch, or of one that has begun */
static void test_stop_at_epoch(void) {
    static player p[MOST];
    for (int sync = 0; sync < 2; sync++)
        for (int workers = 1; workers <= 2; workers++) {
            set_world(p, workers, 1);
            for (int i = 0; i < workers; i++) p[i].o.sync = sync, p[i].o.epochs = 5, p[i].body = stop_at_an_epoch;
            play_all(p, workers + 1);
            check_all(p, workers + 1, "stopped");
            for (int i = 0; i < workers; i++)
                CHECK_MSG(p[i].report.train_loss > 0 && p[i].report.epochs <= 2, "sync %d, %d workers: loss %g, %d epochs, %ld steps", sync, workers, p[i].report.train_loss, p[i].report.epochs, p[i].report.steps);
        }
}

/* ---- own loops ------------------------------------------------------------------------------------------------- */

static void own_loop(player *p) {
    for (int step = 0; step < 10 && !p->err.code; step++) {
        int from = 12 * step + (p->number ? 6 : 0), n = p->o.comm ? dt_local_batch(p->model) : 12;
        p->loss[step] = dt_step(p->model, rows[from], row_label + from, n, &p->err);
        p->n_losses++;
    }
    p->code = p->err.code;
}
static void own_parts(player *p) {
    for (int step = 0; step < 10 && !p->err.code; step++) {
        int from = 12 * step + (p->number ? 6 : 0);
        dt_batch b = batch_at(from, p->o.comm ? dt_local_batch(p->model) : 12);
        p->loss[step] = dt_forward(p->model, &b, &p->err);
        dt_backward(p->model, &p->err);
        dt_update(p->model, &p->err);
    }
    p->code = p->err.code;
}

static void test_own_loop(void) {
    static player p[MOST], one;
    for (int parts = 0; parts < 2; parts++) {
        for (int servers = 0; servers <= 2; servers++) {  /* .sync: two workers are as two by direct exchange */
            set_world(p, 2, servers);
            for (int i = 0; i < 2; i++) make_kind(&p[i].o, NO_DECAY), p[i].o.sync = servers > 0, p[i].body = parts ? own_parts : own_loop;
            play_all(p, 2 + servers);
            check_all(p, 2 + servers, "an own loop");
            if (!servers) one = p[0];
            for (int i = 0; i < 2; i++) CHECK_MSG(p[i].crc == one.crc && (parts || !memcmp(p[i].loss, one.loss, sizeof one.loss)), "parts %d, %d servers, worker %d: other bits", parts, servers, i);
        }
        for (int servers = 0; servers <= 2; servers++) {  /* one worker without .sync is as one alone */
            set_world(p, 1, servers);
            make_kind(&p[0].o, NO_DECAY);
            p[0].body = parts ? own_parts : own_loop;
            play_all(p, 1 + servers);
            check_all(p, 1 + servers, "an own loop");
            if (!servers) one = p[0];
            CHECK(p[0].crc == one.crc && !memcmp(p[0].loss, one.loss, sizeof one.loss));
        }
    }
}

/* worker 0 does 9 steps, worker 1 three and leaves: the other goes on without him */
static void own_and_leave(player *p) {
    for (int step = 0; step < (p->number ? 3 : 9) && !p->err.code; step++)
        p->loss[step] = dt_step(p->model, rows[12 * step], row_label + 12 * step, 6, &p->err);
    p->code = p->err.code;
}
static void test_leaving_early(void) {
    static player p[MOST];
    for (int mode = 0; mode < 3; mode++) {
        set_world(p, 2, 2);
        for (int i = 0; i < 2; i++) p[i].o.sync = mode == 1, p[i].o.staleness = mode == 2, p[i].body = own_and_leave;
        play_all(p, 4);
        check_all(p, 4, "leaving early");
        CHECK_MSG(p[0].report.pushes == 9 && p[1].report.pushes == 3, "%ld and %ld pushes", p[0].report.pushes, p[1].report.pushes);
        for (int i = 2; i < 4; i++) CHECK(p[i].updates == (mode == 1 ? 9 : 12));
    }
}
static void chief_leaves(player *p) {
    for (int step = 0; step < (p->number ? 9 : 3) && !p->err.code; step++)
        p->loss[step] = dt_step(p->model, rows[12 * step], row_label + 12 * step, 6, &p->err);
    p->code = p->err.code;
}
static void test_chief_leaves_early(void) {
    static player p[MOST];
    for (int sync = 0; sync < 2; sync++) {
        set_world(p, 2, 2);
        for (int i = 0; i < 2; i++) p[i].o.sync = sync, p[i].body = chief_leaves;
        play_all(p, 4);
        check_all(p, 4, "the chief leaves early");
        CHECK(p[0].report.pushes == 3 && p[1].report.pushes == 9);
    }
}

/* what is written behind the servers' back is refused in an own loop */
static void write_too_late(player *p) {
    float v[4] = {0, 0, 0, 0};
    CHECK(!dt_parameter_write(p->model, "dense_2.bias", v, 4, &p->err));  /* in time */
    dt_step(p->model, rows[0], row_label, 6, &p->err);
    dt_step(p->model, rows[0], row_label, 6, &p->err);
    CHECK_OK(p->err);
    if (p->slow) dt_load(p->model, weights, NULL, &p->err); else dt_parameter_write(p->model, "dense_2.bias", v, 4, &p->err);
    CHECK_OK(p->err);
    dt_step(p->model, rows[0], row_label, 6, &p->err);
    p->code = p->err.code;
}
static void test_write_in_own_loop(void) {
    static player p[MOST];
    dt_options o = options();
    dt_error err = DT_DEFAULTS;
    dt_model *m = dt_model_create(&o, &err);
    dt_save(m, weights, &err);
    dt_model_free(m);
    CHECK_OK(err);
    for (int loads = 0; loads < 2; loads++) {
        set_world(p, 2, 1);
        for (int i = 0; i < 2; i++) p[i].body = write_too_late, p[i].slow = loads;
        play_all(p, 3);
        for (int i = 0; i < 2; i++) CHECK_ERROR(p[i].err, DT_ERR_STATE, "the parameter servers hold them");
        CHECK_OK(p[2].err);
    }
}

/* ---- what is refused ------------------------------------------------------------------------------------------- */

static void test_refusals(void) {
    static const char *const says[] = {".clip_norm needs the whole gradient", ".backup is 2 of 2 workers", ".sync", ".strategy is for others than 2 workers and 1 parameter servers: use DT_PARAMETER_SERVER", ".staleness is -1", ".staleness", ".backup is 5000"};
    static player p[MOST];
    dt_options o = options();
    dt_error err = DT_DEFAULTS;
    for (int k = 0; k < COUNT(says); k++) {
        set_world(p, 2, 1);
        for (int i = 0; i < 2; i++) {
            p[i].o.sync = k < 2;
            if (k == 0) p[i].o.clip_norm = 1;
            if (k == 1) p[i].o.backup = 2;
            if (k == 2) p[i].o.sync = i;
            if (k == 3) p[i].o.strategy = DT_MULTIWORKER;
            if (k == 4) p[i].o.staleness = -1;
            if (k == 5) p[i].o.staleness = 1 + i;
            if (k == 6) p[i].o.backup = 5000;
        }
        play_all(p, 3);
        for (int i = 0; i < 2; i++) CHECK_MSG(p[i].code && strstr(p[i].err.text, says[k]), "%d: process %d: code %d, \"%s\", expected \"%s\"", k, i, p[i].code, p[i].err.text, says[k]);
    }
    o.strategy = DT_PARAMETER_SERVER;
    CHECK(!dt_model_create(&o, &err));
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "there are no parameter servers");
    CHECK(dt_server_run(NULL, NULL) == DT_ERR_ARGUMENT);
    dt_server_stop(NULL), dt_server_close(NULL);
}

/* ---- failures --------------------------------------------------------------------------------------------------- */

/* a server has no memory for the variables: all are told */
static void test_no_memory(void) {
    static player p[MOST];
    __atomic_store_n(&most_floats, 5000, __ATOMIC_RELAXED);
    set_world(p, 2, 2);
    for (int i = 0; i < 2; i++) p[i].o.net = wide;
    play_all(p, 4);
    __atomic_store_n(&most_floats, (size_t)1 << 28, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++) CHECK_ERROR(p[i].err, DT_ERR_MEMORY, "has no memory for ");
}

/* dt_server_stop, and dt_server_close of one that runs no more: the others end, and say why */
static int tell_begun(player *p, const dt_event *e) {
    (void)e;
    add(&shared.begun[p->number], 1);
    rest(0.0005);
    return 0;
}
static void endless(player *p) { p->code = dt_train(p->model, NULL, &p->err); }
static void test_server_stops(void) {
    static player p[MOST];
    for (int sync = 0; sync < 2; sync++) {
        double stopped;
        memset(&shared, 0, sizeof shared);
        set_world(p, 2, 2);
        for (int i = 0; i < 2; i++) p[i].o.sync = sync, p[i].o.epochs = 1000000, p[i].body = endless, p[i].after = tell_begun;
        p[2].kept = 1;
        for (int i = 0; i < 4; i++) start_player(&p[i]);
        while (see(&shared.begun[0]) < 20) rest(0.001);
        stopped = dt__now();
        dt_server_stop(__atomic_load_n(&p[2].server, __ATOMIC_ACQUIRE));
        for (int i = 0; i < 4; i++) end_player(&p[i]);
        for (int i = 0; i < 4; i++) {
            CHECK_ERROR(p[i].err, DT_ERR_PEER, "parameter server 0 was stopped");
            CHECK_MSG(p[i].ended - stopped < 2, "process %d ended after %g s", i, p[i].ended - stopped);
        }
    }
}

/* a worker whose values are not finite says so; nobody waits for him for ever */
static float bad_rows[60][FEATURES];
static void test_not_finite(void) {
    static player p[MOST];
    memcpy(bad_rows, rows, sizeof bad_rows);
    bad_rows[40][3] = (float)INFINITY;
    for (int sync = 0; sync < 2; sync++) {
        set_world(p, 2, 1);
        for (int i = 0; i < 2; i++) p[i].o.sync = sync, p[i].o.train = dt_arrays(bad_rows, DT_FLOAT32, row_label, DT_INT32, 57);
        play_all(p, 3);
        CHECK(p[0].code && p[1].code);
        CHECK_MSG(p[0].code == DT_ERR_NUMERIC || p[1].code == DT_ERR_NUMERIC, "sync %d: %d \"%s\"; %d \"%s\"", sync, p[0].code, p[0].err.text, p[1].code, p[1].err.text);
        if (getenv("SHOW")) printf("  sync %d: %s | %s | %s\n", sync, p[0].err.text, p[1].err.text, p[2].err.text);
    }
}

/* ---- a server among workers who speak with bytes ---------------------------------------------------------------- */

typedef struct { int fd, rank; uint64_t number; } hand;

static void say(int fd, const void *p, size_t n) {
    const char *next = (const char *)p;
    while (n) {
        ssize_t gone = send(fd, next, n, MSG_NOSIGNAL);
        if (gone <= 0) return;
        next += gone, n -= (size_t)gone;
    }
}

static int hear(int fd, void *p, size_t n) {
    char *to = (char *)p;
    while (n) {
        ssize_t got = recv(fd, to, n, 0);
        if (got <= 0) return 0;
        to += got, n -= (size_t)got;
    }
    return 1;
}

static void say_frame(hand *h, dt__frame f, const void *payload, size_t claims) {
    dt__link l;
    unsigned char head[64];
    memset(&l, 0, sizeof l);
    l.sent = h->number++;
    f.rank = h->rank;
    dt__link_queue(&l, f, payload);
    memcpy(head, l.head, 64);
    if (claims) { dt__write_le(head + 40, claims, 4); dt__write_le(head + 60, dt__crc32c(0, head, 60), 4); }
    say(h->fd, head, 64);
    say(h->fd, payload, f.bytes);
}

/* the next frame but for heartbeats: its type, 0 at the end; a payload of up to most bytes */
static int hear_frame(hand *h, unsigned char *head, void *payload, size_t most) {
    size_t n;
    double until = dt__now() + 3;
    do if (dt__now() > until || !hear(h->fd, head, 64)) return 0; while (head[5] == DT__HEARTBEAT);
    n = (size_t)dt__read_le(head + 40, 4);
    return n <= most && hear(h->fd, payload, n) ? head[5] : 0;
}

/* let in who dials, as a rank of this job would */
static hand let_in(int door, int rank) {
    unsigned char head[64], said[DT__SAID] = {0}, answer[48] = {0}, proof[32];
    struct timeval most = {6, 0};
    hand h;
    h.rank = rank, h.number = 0;
    h.fd = accept(door, NULL, NULL);
    setsockopt(h.fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);  /* so that a test ends in any case */
    CHECK(hear_frame(&h, head, said, DT__HELLO_BYTES) == DT__HELLO);
    dt__proof("", said, 'a', answer + 16);
    say_frame(&h, dt__frame_of(DT__CHALLENGE, 0, sizeof answer), answer, 0);
    CHECK(hear_frame(&h, head, proof, sizeof proof) == DT__PROOF);
    say_frame(&h, dt__frame_of(DT__WELCOME, 0, 0), NULL, 0);
    return h;
}

/* two workers by hand, h[0] and h[1], and a server */
static void set_hands(hand *h, player *p) {  /* who speak no other way than by sockets */
    unsigned char roster[3][64] = {{0}};
    int port, door = open_door(&port), own, own_port;
    own = open_door(&own_port);
    memset(p, 0, sizeof *p);
    p->kept = 1;
    p->who.rank = 2, p->who.size = 3, p->who.servers = 1, p->who.tries = 1, p->who.patience = 10, p->who.dead = 10, p->who.listener = -1;
    snprintf(p->who.chief, sizeof p->who.chief, "127.0.0.1:%d", port);
    strcpy(p->who.job, "a job"), strcpy(p->who.source, "a test");
    start_player(p);
    h[0] = let_in(door, 0);
    snprintf((char *)roster[1], 64, "127.0.0.1:%d", own_port);
    say_frame(&h[0], dt__frame_of(DT__ROSTER, 0, sizeof roster), roster, 0);
    h[1] = let_in(own, 1);
    close(door), close(own);
}

enum { TRAINED = 8, ALL = 11 };

static dt__order order_of(uint64_t sequence) {
    dt__order o;
    memset(&o, 0, sizeof o);
    o.sequence = sequence, o.trained = TRAINED, o.all = ALL, o.batches = 100;
    o.rate = 0.5, o.weight = 2;
    return o;
}

static void say_order(hand *h, int kind, const dt__order *o, size_t bytes) {
    unsigned char text[400] = {0};
    dt__frame f = dt__frame_of(DT__ORDER, 0, bytes);
    memcpy(text, o, sizeof *o);
    f.kind = DT__PUSHING, f.detail = kind, f.n = ALL, f.call = o->sequence;
    say_frame(h, f, text, 0);
}

static void say_part(hand *h, int type, size_t offset, size_t bytes, const void *values, size_t claims) {
    dt__frame f = dt__frame_of(type, 0, bytes);
    f.kind = DT__PUSHING, f.n = ALL, f.offset = offset;
    say_frame(h, f, values, claims);
}

/* an answer, and n floats; 0: something else came */
static int hear_answer(hand *h, dt__order *o, float *values, size_t n) {
    unsigned char head[64], text[sizeof(dt__order)];
    size_t have = 0, bytes;
    if (hear_frame(h, head, text, sizeof text) != DT__ANSWER) return 0;
    memcpy(o, text, sizeof *o);
    while (have < n) {
        if (hear_frame(h, head, values + have, (n - have) * sizeof *values) != DT__RESULT) return 0;
        bytes = (size_t)dt__read_le(head + 40, 4);
        if (dt__read_le(head + 32, 8) != have || !bytes || bytes % 4) return 0;
        have += bytes / 4;
    }
    return 1;
}

/* settings: the optimizer, its moments, and so on as in the order */
static void say_setup(hand *chief, const double *setting, int n) {
    static const float start[TRAINED] = {0, 1, 2, 3, 4, 5, 6, 7};
    dt__order o = order_of(1);
    int64_t *whole[12] = {&o.kind, &o.n_slots, NULL, NULL, NULL, NULL, NULL, NULL, &o.sync, &o.ahead, &o.backup, &o.full_rate};
    double *real[12] = {NULL, NULL, &o.f.momentum, &o.f.beta1, &o.f.beta2, &o.f.alpha, &o.f.epsilon, &o.f.decay};
    for (int i = 0; i < n; i++) if (whole[i]) *whole[i] = (int64_t)setting[i]; else *real[i] = setting[i];
    say_order(chief, DT__SETUP, &o, sizeof(dt__order));
    say_part(chief, DT__PART, 0, TRAINED * sizeof *start, start, 0);
}

static int set_values(hand *h, const double *setting, int n) {
    dt__order o = order_of(2);
    float values[ALL];
    int ok;
    say_setup(h, setting, n);
    ok = hear_answer(h, &o, values, 0);
    o = order_of(2);
    for (int i = 0; i < 2; i++) say_order(&h[i], DT__STRETCH, &o, sizeof(dt__order));
    for (int i = 0; i < 2; i++) ok = ok && hear_answer(&h[i], &o, values, TRAINED) && values[7] == 7 && o.next == (n > 8 && setting[8] > 0 ? 0 : i);
    return ok;
}

static const float gradient[ALL + 40] = {4, 4, 4, 4, 4, 4, 4, 4, 10, 20, 30};
static void say_push(hand *h, uint64_t sequence, uint64_t version) {
    dt__order o = order_of(sequence);
    o.version = version;
    say_order(h, DT__PUSH, &o, sizeof(dt__order));
    say_part(h, DT__PART, 0, ALL * sizeof *gradient, gradient, 0);
}

/* ends the connections; the server has run well if they have said good-bye */
static void end_hands(hand *h, player *p, int well) {
    for (int i = 0; i < 2 && well; i++) say_frame(&h[i], dt__frame_of(DT__BYE, 0, 0), NULL, 0);
    if (!well) dt_server_stop(__atomic_load_n(&p->server, __ATOMIC_ACQUIRE));
    for (int i = 0; i < 2; i++) {
        char c[4096];
        shutdown(h[i].fd, SHUT_WR);
        while (recv(h[i].fd, c, sizeof c, 0) > 0) {}
        close(h[i].fd);
    }
    end_player(p);
}

/* a server by hand, which answers one order by a single frame of all values, trained and what lies behind them */
static void *serve_in_one(void *user) {
    unsigned char said[DT__SAID] = {0}, answer[48], head[64], text[512], proof[32];
    static const float values[ALL] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    struct sockaddr_in a;
    struct timeval most = {6, 0};
    hand h;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK), a.sin_port = htons((uint16_t)*(int *)user);
    h.rank = 1, h.number = 0, h.fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(h.fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    CHECK(!connect(h.fd, (struct sockaddr *)&a, sizeof a));
    dt__write_le(said, 1, 4), dt__write_le(said + 4, 2 | 1 << 16, 4), dt__write_le(said + 8, 9, 4), memcpy(said + 12, "a job", 5);
    say_frame(&h, dt__frame_of(DT__HELLO, 1, DT__HELLO_BYTES), said, 0);
    CHECK(hear_frame(&h, head, answer, sizeof answer) == DT__CHALLENGE);
    memcpy(said + DT__HELLO_BYTES, answer, 16);
    dt__proof("", said, 'd', proof);
    say_frame(&h, dt__frame_of(DT__PROOF, 1, sizeof proof), proof, 0);
    CHECK(hear_frame(&h, head, text, sizeof text) == DT__WELCOME);
    CHECK(hear_frame(&h, head, text, sizeof text) == DT__ROSTER);
    CHECK(hear_frame(&h, head, text, sizeof text) == DT__ORDER);
    dt__frame f = dt__frame_of(DT__ANSWER, 1, sizeof(dt__order));
    f.kind = DT__PUSHING, f.detail = DT__PUSH, f.n = ALL, f.call = 1;
    say_frame(&h, f, text, 0);
    f.type = DT__RESULT, f.bytes = sizeof values;
    say_frame(&h, f, values, 0);
    while (hear_frame(&h, head, text, sizeof text)) {}
    close(h.fd);
    return NULL;
}

/* results that cross the border between the values and what lies behind them are not written past the values */
static void test_result_across(void) {
    float values[ALL], sums[ALL];
    int port, door = open_door(&port), wrong = 0;
    pthread_t thread;
    dt__who w;
    dt_error err = DT_DEFAULTS;
    memset(&w, 0, sizeof w);
    w.size = 2, w.servers = 1, w.tries = 1, w.patience = 10, w.dead = 10, w.listener = door;
    snprintf(w.chief, sizeof w.chief, "127.0.0.1:%d", port);
    strcpy(w.job, "a job"), strcpy(w.source, "a test");
    if (pthread_create(&thread, NULL, serve_in_one, &port)) { CHECK(!"a thread"); return; }
    dt_comm *c = dt__net_open(&w, &err);
    CHECK_OK(err);
    dt__push p;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < ALL; i++) values[i] = sums[i] = -1;
    p.kind = DT__PUSH, p.out = (float *)(uintptr_t)gradient, p.into = values, p.sums = sums, p.trained = TRAINED, p.all = ALL;
    if (c) c->push(c, &p, &err);
    for (int i = TRAINED; i < ALL; i++) wrong += values[i] != -1;
    CHECK_MSG(!wrong, "%d values were written behind the last", wrong);
    dt_comm_close(c);
    pthread_join(thread, NULL);
}

/* a push that comes twice is applied once and answered twice, alike; also long after */
static void test_push_twice(void) {
    const double settings[12] = {DT_SGD};
    hand h[2];
    player p;
    dt__order once, twice;
    float a[ALL], b[ALL];
    int wrong = 0;
    set_hands(h, &p);
    CHECK(set_values(h, settings, 12));
    say_push(&h[1], 7, 0);
    CHECK(hear_answer(&h[1], &once, a, ALL) && once.version == 1);
    for (int i = 0; i < TRAINED; i++) wrong += a[i] != (float)i - 1;
    CHECK_MSG(!wrong && a[8] == 10 && a[10] == 30, "%g %g … %g %g", (double)a[0], (double)a[1], (double)a[8], (double)a[10]);
    say_push(&h[1], 7, 0);
    CHECK(hear_answer(&h[1], &twice, b, ALL) && twice.version == 1);
    CHECK(!memcmp(a, b, sizeof a));
    CHECK_MSG(once.next == 2 && twice.next == 2, "the next batch is %d, and then %d", (int)once.next, (int)twice.next);
    say_push(&h[0], 9, 0);
    CHECK(hear_answer(&h[0], &once, a, ALL) && once.version == 2 && once.next == 3 && once.staleness == 1);
    CHECK_MSG(a[0] == -1.5f, "%g", (double)a[0]);  /* at half the rate */
    say_push(&h[1], 7, 0);
    CHECK(hear_answer(&h[1], &twice, b, ALL) && twice.version == 2 && b[0] == -1.5f);
    end_hands(h, &p, 1);
    CHECK_OK(p.err);
    CHECK_MSG(p.updates == 2, "%d updates", (int)p.updates);
}

/* the same where all workers' pushes are one update */
static void test_sync_push_twice(void) {
    double settings[12] = {DT_SGD};
    hand h[2];
    player p;
    dt__order o;
    float a[ALL], b[ALL];
    settings[8] = 1;
    set_hands(h, &p);
    say_setup(h, settings, 12);
    CHECK(hear_answer(h, &o, a, 0));
    o = order_of(2), o.batches = 2;
    for (int i = 0; i < 2; i++) say_order(&h[i], DT__STRETCH, &o, sizeof(dt__order));
    for (int i = 0; i < 2; i++) CHECK(hear_answer(&h[i], &o, a, TRAINED) && o.next == 0);
    for (int i = 0; i < 2; i++) say_push(&h[i], 3, 0);
    for (int i = 0; i < 2; i++) CHECK(hear_answer(&h[i], &o, a, ALL) && o.version == 1 && o.next == 1 && a[0] == -1 && a[8] == 20 && a[10] == 60);
    say_push(&h[0], 3, 0);
    CHECK(hear_answer(&h[0], &o, b, ALL) && o.version == 1 && o.next == 1 && b[0] == -1 && b[7] == 6);
    for (int i = 0; i < 2; i++) say_push(&h[i], 4, 1);
    for (int i = 0; i < 2; i++) CHECK(hear_answer(&h[i], &o, a, ALL) && o.version == 2 && o.next == -1 && a[0] == -2);
    end_hands(h, &p, 1);
    CHECK_OK(p.err);
    CHECK(p.updates == 2);
}

/* .sync, servers that are not equally far: a push that comes when all others are through is answered, and changes nothing */
static void test_push_alone(void) {
    double settings[12] = {DT_SGD};
    hand h[2];
    player p;
    dt__order o, wait = order_of(4);
    float a[ALL];
    settings[8] = 1;
    set_hands(h, &p);
    CHECK(set_values(h, settings, 12));
    say_order(&h[0], DT__STRETCH, &wait, sizeof wait);
    say_push(&h[1], 3, 0);
    CHECK(hear_answer(&h[1], &o, a, ALL) && o.version == 0 && a[0] == 0 && a[7] == 7);
    say_order(&h[1], DT__STRETCH, &wait, sizeof wait);
    for (int i = 0; i < 2; i++) CHECK(hear_answer(&h[i], &o, a, TRAINED) && a[7] == 7);
    end_hands(h, &p, 0);
    CHECK_MSG(p.updates == 0, "%d updates", (int)p.updates);
}

/* what may come in one piece may come in bytes, and behind the order of another */
static void test_push_in_bytes(void) {
    const double settings[12] = {DT_SGD};
    hand h[2];
    player p;
    dt__order o = order_of(5);
    float a[ALL], b[ALL];
    set_hands(h, &p);
    CHECK(set_values(h, settings, 12));
    say_order(&h[0], DT__PUSH, &o, sizeof(dt__order));  /* this one came first, so it is applied first */
    say_part(&h[0], DT__PART, 0, 12, gradient, 0);
    rest(0.05);
    say_push(&h[1], 5, 0);
    for (size_t i = 3; i < ALL; i++) say_part(&h[0], DT__PART, i, 4, gradient + i, 0);
    say_part(&h[0], DT__PART, ALL, 0, NULL, 0);
    CHECK(hear_answer(&h[0], &o, a, ALL) && a[0] == -1 && a[7] == 6 && a[10] == 30);
    CHECK(hear_answer(&h[1], &o, b, ALL) && b[0] == -1.5f && b[7] == 5.5f && b[10] == 30);
    end_hands(h, &p, 1);
    CHECK_OK(p.err);
}

/* .staleness by hand: worker 0 is let through as often as it says, then waits for worker 1 */
static void test_staleness_by_hand(void) {
    for (int bound = 1; bound <= 3; bound++) {
        double settings[12] = {DT_SGD};
        struct timeval soon = {0, 200000}, late = {6, 0};
        hand h[2];
        player p;
        dt__order o;
        float a[ALL];
        unsigned char head[64];
        int n = 0;
        settings[9] = bound;
        set_hands(h, &p);
        CHECK(set_values(h, settings, 12));
        setsockopt(h[0].fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        for (;;) {
            say_push(&h[0], (uint64_t)n + 3, (uint64_t)n);
            if (recv(h[0].fd, head, 1, MSG_PEEK) < 1 || !hear_answer(&h[0], &o, a, ALL) || n > 5) break;
            n++;
        }
        CHECK_MSG(n == bound, ".staleness %d: %d steps ahead", bound, n);
        setsockopt(h[0].fd, SOL_SOCKET, SO_RCVTIMEO, &late, sizeof late);
        say_push(&h[1], 3, 0);
        CHECK(hear_answer(&h[1], &o, a, ALL));
        if (n <= 5) CHECK(hear_answer(&h[0], &o, a, ALL));
        end_hands(h, &p, 1);
        CHECK_OK(p.err);
    }
}

/* ---- members who send anything ----------------------------------------------------------------------------------- */

enum { PART_FIRST, EMPTY_PART, RESULT_FIRST, COLLECTIVE, OTHER_TYPE, ANSWERS, SHORT_ORDER, LONG_ORDER, HUGE_ORDER, OTHER_KIND, LAST_KIND, SETUP_BY_OTHER, DECAY_FIRST, PUSH_FIRST,
       OTHER_BEGIN, OTHER_TRAINED, OTHER_ALL, TWO_ORDERS, LONG_PART, HUGE_PART, ODD_PART, FAR_PART, PART_TWICE, PART_AFTER, MORE_TRAINED, MORE_THAN_ALL, HUGE_ALL, HUGE_BEGIN,
       NO_OPTIMIZER, NAN_OPTIMIZER, MANY_MOMENTS, NO_MOMENTS, SETUP_MEANWHILE, SETUP_AT_WORK, NOT_FINITE, LEAVES_IN_PUSH, LEAVES_IN_SETUP, ATTACKS };
static const struct { const char *name, *says; int by, begun; } attack[ATTACKS] = {  /* by: which worker; begun: the servers have values */
    [PART_FIRST] = {"a part first", "out of turn", 1, 0}, [EMPTY_PART] = {"an empty part, and then nothing", NULL, 1, 0}, [RESULT_FIRST] = {"a result", "out of turn", 1, 0}, [COLLECTIVE] = {"a collective", "out of turn", 1, 1},
    [OTHER_TYPE] = {"an unknown type", "out of turn", 0, 1}, [ANSWERS] = {"an answer", "", 0, 0}, [SHORT_ORDER] = {"a short order", "does not fit", 1, 1}, [LONG_ORDER] = {"a long order", "does not fit", 1, 1},
    [HUGE_ORDER] = {"a huge order", "damaged bytes", 1, 1}, [OTHER_KIND] = {"an order of unknown kind", "does not fit", 1, 1}, [LAST_KIND] = {"an order of kind INT_MAX", "does not fit", 1, 1}, [SETUP_BY_OTHER] = {"a setup by worker 1", "does not fit", 1, 0},
    [DECAY_FIRST] = {"decay before values", "does not fit", 0, 0}, [PUSH_FIRST] = {"a push before values", "does not fit", 1, 0}, [OTHER_BEGIN] = {"another slice", "does not fit", 1, 1}, [OTHER_TRAINED] = {"another length", "does not fit", 1, 1},
    [OTHER_ALL] = {"another length of all", "does not fit", 1, 1}, [TWO_ORDERS] = {"two orders", "does not fit", 1, 1}, [LONG_PART] = {"a long part", "out of turn", 1, 1}, [HUGE_PART] = {"a huge part", "out of turn", 1, 1},
    [ODD_PART] = {"an odd part", "out of turn", 1, 1}, [FAR_PART] = {"a part elsewhere", "out of turn", 1, 1}, [PART_TWICE] = {"a part twice", "out of turn", 1, 1}, [PART_AFTER] = {"a part too much", "out of turn", 1, 1},
    [MORE_TRAINED] = {"more trained than all", "does not fit", 0, 0}, [MORE_THAN_ALL] = {"values beyond memory", "has no memory", 0, 0}, [HUGE_ALL] = {"a length beyond everything", "does not fit", 0, 0}, [HUGE_BEGIN] = {"a slice beyond everything", "does not fit", 0, 0},
    [NO_OPTIMIZER] = {"an unknown optimizer", "does not fit", 0, 0}, [NAN_OPTIMIZER] = {"no number as optimizer", "does not fit", 0, 0}, [MANY_MOMENTS] = {"too many moments", "does not fit", 0, 0}, [NO_MOMENTS] = {"Adam without moments", "does not fit", 0, 0},
    [SETUP_MEANWHILE] = {"other sizes in the middle of a push", "does not fit", 0, 1}, [SETUP_AT_WORK] = {"other sizes while an answer leaves", NULL, 0, 1}, [NOT_FINITE] = {"numbers that are none", NULL, 1, 1},
    [LEAVES_IN_PUSH] = {"leaves in the middle of a push", "", 1, 1}, [LEAVES_IN_SETUP] = {"leaves in the middle of a setup", "", 0, 0}};

static void do_attack(int kind, hand *h) {
    static const float zeros[1 << 16];
    hand *by = &h[attack[kind].by];
    double settings[12] = {DT_ADAM, 2, 0.9, 0.9, 0.999, 0.99, 1e-8};
    dt__order o = order_of(5);
    float values[ALL];
    dt__frame f = dt__frame_of(DT__PART, 0, 0);
    if (attack[kind].begun) CHECK(set_values(h, settings, 12));
    switch (kind) {
    case PART_FIRST: say_part(by, DT__PART, 0, 16, gradient, 0); break;
    case EMPTY_PART: say_part(by, DT__PART, 0, 0, NULL, 0); break;
    case RESULT_FIRST: say_part(by, DT__RESULT, 0, 16, gradient, 0); break;
    case COLLECTIVE: f.bytes = 16, f.n = 4, f.call = 1, f.detail = DT_SUM, say_frame(by, f, gradient, 0); break;
    case OTHER_TYPE: say_part(by, 200, 0, 16, gradient, 0); break;
    case ANSWERS: f = dt__frame_of(DT__ANSWER, 0, sizeof(dt__order)), say_frame(by, f, zeros, 0), say_part(by, DT__PART, 0, 16, gradient, 0); break;
    case SHORT_ORDER: say_order(by, DT__PUSH, &o, 8); break;
    case LONG_ORDER: say_order(by, DT__PUSH, &o, sizeof(dt__order) + 8); break;
    case HUGE_ORDER: f = dt__frame_of(DT__ORDER, 0, 0), f.kind = DT__PUSHING, say_frame(by, f, NULL, UINT32_MAX); break;
    case OTHER_KIND: say_order(by, DT__SETUP_DECAY + 1, &o, sizeof(dt__order)); break;
    case LAST_KIND: say_order(by, INT_MAX, &o, sizeof(dt__order)); break;
    case SETUP_BY_OTHER: say_setup(by, settings, 12); break;
    case DECAY_FIRST: say_order(by, DT__SETUP_DECAY, &o, sizeof(dt__order)); break;
    case PUSH_FIRST: say_push(by, 5, 0); break;
    case OTHER_BEGIN: o.begin = 1, say_order(by, DT__PUSH, &o, sizeof(dt__order)); break;
    case OTHER_TRAINED: o.trained = 9, say_order(by, DT__PUSH, &o, sizeof(dt__order)); break;
    case OTHER_ALL: o.all = UINT64_MAX, say_order(by, DT__PUSH, &o, sizeof(dt__order)); break;
    case TWO_ORDERS: for (int i = 0; i < 2; i++) say_order(by, DT__PUSH, &o, sizeof(dt__order)); break;
    case LONG_PART: say_order(by, DT__PUSH, &o, sizeof(dt__order)), say_part(by, DT__PART, 0, (ALL + 1) * 4, gradient, 0); break;
    case HUGE_PART: say_order(by, DT__PUSH, &o, sizeof(dt__order)), say_part(by, DT__PART, 0, sizeof zeros, zeros, 0xfffffffc); break;
    case ODD_PART: say_order(by, DT__PUSH, &o, sizeof(dt__order)), say_part(by, DT__PART, 0, 7, gradient, 0); break;
    case FAR_PART: say_order(by, DT__PUSH, &o, sizeof(dt__order)), say_part(by, DT__PART, (size_t)1 << 40, 4, gradient, 0); break;
    case PART_TWICE: say_order(by, DT__PUSH, &o, sizeof(dt__order)); for (int i = 0; i < 2; i++) say_part(by, DT__PART, 0, 16, gradient, 0); break;
    case PART_AFTER: say_push(by, 5, 0), hear_answer(by, &o, values, ALL), say_part(by, DT__PART, ALL, 4, gradient, 0); break;
    case MORE_TRAINED: o.trained = 12, say_order(by, DT__SETUP, &o, sizeof(dt__order)); break;
    case MORE_THAN_ALL: o.all = o.trained = (uint64_t)1 << 50, say_order(by, DT__SETUP, &o, sizeof(dt__order)); break;
    case HUGE_ALL: o.all = UINT64_MAX / 4, say_order(by, DT__SETUP, &o, sizeof(dt__order)); break;
    case HUGE_BEGIN: o.begin = UINT64_MAX, say_order(by, DT__SETUP, &o, sizeof(dt__order)); break;
    case NO_OPTIMIZER: settings[0] = 99, say_setup(by, settings, 12); break;
    case NAN_OPTIMIZER: settings[0] = (double)NAN, say_setup(by, settings, 12); break;
    case MANY_MOMENTS: settings[1] = 3, say_setup(by, settings, 12); break;
    case NO_MOMENTS:
        settings[1] = 0, say_setup(by, settings, 12);
        if (hear_answer(by, &o, values, 0)) say_push(&h[1], 7, 0);
        break;
    case SETUP_MEANWHILE:  /* the other's floats go on coming to where its array was */
        say_order(&h[1], DT__PUSH, &o, sizeof(dt__order)), say_part(&h[1], DT__PART, 0, 8, gradient, 0);
        f.kind = DT__PUSHING, f.n = ALL, f.offset = 2, f.bytes = 8;
        say_frame(&h[1], f, gradient, 32);
        rest(0.1);
        o.trained = o.all = 5000, say_order(by, DT__SETUP, &o, sizeof(dt__order));
        rest(0.1);
        say(h[1].fd, gradient, 24);
        break;
    case SETUP_AT_WORK:
        say_push(&h[1], 5, 0);
        o.trained = o.all = 5000, say_order(by, DT__SETUP, &o, sizeof(dt__order));
        rest(0.05);
        break;
    case NOT_FINITE:
        o.stop = INT64_MAX, o.version = UINT64_MAX;
        o.rate = o.weight = o.seeds = (double)NAN;
        say_order(by, DT__PUSH, &o, sizeof(dt__order)), say_part(by, DT__PART, 0, ALL * 4, gradient, 0);
        CHECK(hear_answer(by, &o, values, ALL));
        break;
    case LEAVES_IN_PUSH:
    case LEAVES_IN_SETUP:
        say_order(by, kind == LEAVES_IN_PUSH ? DT__PUSH : DT__SETUP, &o, sizeof(dt__order)), say_part(by, DT__PART, 0, 8, gradient, 0);
        say_frame(by, dt__frame_of(DT__BYE, 0, 0), NULL, 0);
        shutdown(by->fd, SHUT_WR);
        if (kind == LEAVES_IN_PUSH) say_push(&h[0], 5, 0);
        break;
    default: break;
    }
}

static void *attack_main(void *arg) {
    int k = *(int *)arg, type = 0;
    unsigned char head[64];
    char text[4096], who[20];
    hand h[2], *other = &h[!attack[k].by];
    player p;
    set_hands(h, &p);
    do_attack(k, h);
    if (attack[k].says) {
        do { memset(text, 0, sizeof text); type = hear_frame(other, head, text, sizeof text - 1); } while (type && type != DT__ABORT);
        CHECK_MSG(type == DT__ABORT, "%s: the other worker is not told", attack[k].name);
    }
    end_hands(h, &p, !attack[k].says);
    if (!attack[k].says) return NULL;
    CHECK_MSG(p.err.code == (k == MORE_THAN_ALL ? DT_ERR_MEMORY : DT_ERR_PEER) && strstr(p.err.text, attack[k].says), "%s: code %d, \"%s\", expected \"%s\"", attack[k].name, p.err.code, p.err.text, attack[k].says);
    snprintf(who, sizeof who, "rank %d", attack[k].by);
    if (k != MORE_THAN_ALL) CHECK_MSG(strstr(p.err.text, who), "%s: \"%s\"", attack[k].name, p.err.text);
    if (type == DT__ABORT) CHECK_MSG(!strcmp(text, p.err.text), "%s: told \"%s\", the server says \"%s\"", attack[k].name, text, p.err.text);
    return NULL;
}

/* each ends the server with one cause, which names it, and the other worker is told the same; many attacks at a time */
static void test_hostile_workers(void) {
    pthread_t thread[ATTACKS];
    int number[ATTACKS];
    for (int k = 0; k < ATTACKS; k++) {
        number[k] = k;
        if (pthread_create(&thread[k], NULL, attack_main, &number[k])) { printf("no thread\n"); exit(1); }
    }
    for (int k = 0; k < ATTACKS; k++) pthread_join(thread[k], NULL);
}

/* ---- processes that are killed ------------------------------------------------------------------------------------ */

typedef struct { volatile int begun[8]; struct { int code; double ended; char text[240]; } end[8]; } board;
static board *common;  /* of all processes */

static int tell_board(player *p, const dt_event *e) {
    (void)e;
    common->begun[p->number]++;
    rest(0.0005);
    return 0;
}

static void end_in_time(int number) { (void)number; _exit(9); }

/* two workers and two servers; one is killed: the others end within two seconds, with one and the same cause */
static void test_killed(void) {
    static const struct { int victim, signal; const char *says; } way[] = {{0, SIGKILL, "rank 0 (127.0.0.1"}, {1, SIGKILL, "rank 1 (127.0.0.1"}, {2, SIGKILL, "parameter server 0 (127.0.0.1"},
        {3, SIGKILL, "parameter server 1 (127.0.0.1"}, {2, SIGTERM, "parameter server 0 was stopped by a signal"}, {3, SIGINT, "parameter server 1 was stopped by a signal"}};
    static player p[MOST];
    common = (board *)mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED) SKIP("no memory that processes share");
    for (int k = 0; k < 2 * COUNT(way); k++) {
        int v = way[k / 2].victim, sync = k % 2, asked = way[k / 2].signal != SIGKILL;
        double killed;
        pid_t child[4];
        char first[240] = "";
        memset(common, 0, sizeof *common);
        set_world(p, 2, 2);
        fflush(stdout);
        for (int i = 0; i < 4; i++) {
            child[i] = fork();
            if (child[i] < 0) { printf("no process\n"); exit(1); }
            if (child[i]) continue;
            signal(SIGALRM, end_in_time);
            alarm(60);
            signal(SIGTERM, dt__on_signal), signal(SIGINT, dt__on_signal);  /* as dt_run does */
            p[i].o.sync = sync, p[i].o.epochs = 1000000, p[i].after = tell_board;
            if (i) close(p[0].who.listener);
            play(&p[i]);
            common->end[i].code = p[i].err.code, common->end[i].ended = p[i].ended;
            memcpy(common->end[i].text, p[i].err.text, 240);
            _exit(0);
        }
        close(p[0].who.listener);
        while (common->begun[0] < 10 || common->begun[1] < 10) rest(0.001);
        killed = dt__now();
        kill(child[v], way[k / 2].signal);
        for (int i = 0; i < 4; i++) {
            int status = 0;
            const char *text;
            waitpid(child[i], &status, 0);
            if (i == v && !asked) continue;
            CHECK_MSG(WIFEXITED(status) && !WEXITSTATUS(status), "%s, sync %d: process %d ends with status %d", way[k / 2].says, sync, i, status);
            text = strstr(common->end[i].text, "training: ") ? common->end[i].text + 10 : common->end[i].text;
            CHECK_MSG(common->end[i].code == DT_ERR_PEER && strstr(text, way[k / 2].says), "sync %d: process %d: code %d, \"%s\", expected \"%s\"", sync, i, common->end[i].code, text, way[k / 2].says);
            CHECK_MSG(common->end[i].ended - killed < 2, "%s, sync %d: process %d ended after %g s", way[k / 2].says, sync, i, common->end[i].ended - killed);
            if (!*first) snprintf(first, sizeof first, "%s", text);
            CHECK_MSG(!strcmp(first, text), "process %d says \"%s\", another \"%s\"", i, text, first);
        }
    }
    munmap(common, sizeof *common);
}

/* the server dies between the parts of a step: dt_update says so, and nothing is counted */
static int parts_failed;
static void parts_without_server(player *p) {
    dt_batch b = batch_at(0, 6);
    long before;
    int code;
    dt_step(p->model, rows[0], row_label, 6, &p->err);
    CHECK_OK(p->err);
    dt_forward(p->model, &b, &p->err);
    dt_backward(p->model, &p->err);
    dt_server_stop(__atomic_load_n(&p->all[1].server, __ATOMIC_ACQUIRE));
    end_player(&p->all[1]);
    before = dt_model_step(p->model);
    code = dt_update(p->model, &p->err);
    parts_failed = code == DT_ERR_PEER && dt_model_step(p->model) == before && strstr(p->err.text, "was stopped");
}
static void test_update_without_server(void) {
    static player p[MOST];
    set_world(p, 1, 1);
    parts_failed = 0;
    p[0].body = parts_without_server, p[1].kept = 1;
    start_player(&p[1]), start_player(&p[0]);
    end_player(&p[0]);
    CHECK_MSG(parts_failed, "%ld steps, code %d, \"%s\"", p[0].report.pushes, p[0].err.code, p[0].err.text);
}

/* the floats that leave may be in the way: a narrow connection and a heartbeat in between */
static void narrow_loop(player *p) {
    int narrow = 4096;
    for (int i = 0; i < p->who.size; i++) if (i != p->number) setsockopt(p->comm->net->link[i].fd, SOL_SOCKET, SO_SNDBUF, &narrow, sizeof narrow);
    p->code = dt_train(p->model, NULL, &p->err);
}
static void test_narrow(void) {
    static player p[MOST], direct[MOST];
    for (int servers = 0; servers <= 3; servers += 3) {
        set_world(p, 2, servers);
        for (int i = 0; i < 2; i++) make_kind(&p[i].o, WIDE), p[i].o.sync = servers > 0, p[i].body = narrow_loop;
        play_all(p, 2 + servers);
        check_all(p, 2 + servers, "narrow");
        if (!servers) memcpy(direct, p, sizeof p);
        for (int i = 0; i < 2; i++) check_same(&p[i], &direct[i], "narrow", 2, servers);
    }
}

/* ---- who is who --------------------------------------------------------------------------------------------------- */

#define SPEC(cluster, type, index) "{\"cluster\": {" cluster "}, \"task\": {\"type\": \"" type "\", \"index\": " #index "}}"
#define PS_CLUSTER "\"worker\": [\"a:1\", \"b:2\"], \"ps\": [\"c:3\", \"d:4\"]"
#define CHIEF_CLUSTER "\"chief\": [\"z:9\"], \"ps\": [\"c:3\"], \"worker\": [\"a:1\"]"
#define POOLS "\"workerpool0\": [\"v:1\"], \"workerpool1\": [\"w:2\", \"x:3\"], \"workerpool2\": [\"y:4\"], \"workerpool3\": [\"e:5\"]"

static void test_specs(void) {
    static const struct { const char *text; int rank, size, servers, port; const char *chief; } is[] = {
        {SPEC(PS_CLUSTER, "worker", 1), 1, 4, 2, 2, "a:1"}, {SPEC(PS_CLUSTER, "ps", 0), 2, 4, 2, 3, "a:1"}, {SPEC(PS_CLUSTER, "ps", 1), 3, 4, 2, 4, "a:1"},
        {SPEC(CHIEF_CLUSTER, "chief", 0), 0, 3, 1, 9, "z:9"}, {SPEC(CHIEF_CLUSTER, "worker", 0), 1, 3, 1, 1, "z:9"}, {SPEC(CHIEF_CLUSTER, "ps", 0), 2, 3, 1, 3, "z:9"},
        {SPEC("\"ps\": [\"c:3\"], \"master\": [\"m:7\"]", "ps", 0), 1, 2, 1, 3, "m:7"}, {SPEC("\"ps\": {\"1\": \"c:3\", \"0\": \"d:5\"}, \"worker\": [\"a:1\"]", "ps", 1), 2, 3, 2, 3, "a:1"},
        {SPEC(POOLS, "workerpool0", 0), 0, 4, 1, 1, "v:1"}, {SPEC(POOLS, "workerpool1", 1), 2, 4, 1, 3, "v:1"}, {SPEC(POOLS, "workerpool2", 0), 3, 4, 1, 4, "v:1"}};
    static const struct { const char *text, *says; } bad[] = {
        {SPEC(PS_CLUSTER, "ps", 2), "the task is ps 2, of 2"}, {SPEC("\"worker\": [\"a:1\"]", "ps", 0), "the task is ps 0, of 0"}, {SPEC("\"ps\": [\"a:1\"]", "ps", 0), "all workers"},
        {SPEC("\"ps\": {\"1\": \"a:1\"}, \"worker\": [\"b:1\"]", "ps", 0), "sparse"}, {SPEC(POOLS, "workerpool3", 0), "evaluator"}, {SPEC(PS_CLUSTER, "evaluator", 0), "evaluator"},
        {"{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}}", "no \"task\": which of 2"}, {SPEC("\"ps\": [\"a\"], \"worker\": [\"b:1\"]", "ps", 0), "\"host:port\" is expected"},
        {SPEC(PS_CLUSTER, "parameter_server", 0), "the task's type is none of chief, master, worker, ps, evaluator"}};
    for (int variable = 0; variable < 2; variable++) {
        for (int i = 0; i < COUNT(is); i++) {
            dt_cluster c = DT_DEFAULTS;
            dt_error err = DT_DEFAULTS;
            dt__who w;
            if (variable) setenv("CLUSTER_SPEC", is[i].text, 1); else c.tf_config = is[i].text;
            CHECK_MSG(!dt__who_am_i(&c, &w, &err), "%s: %s", is[i].text, err.text);
            CHECK_MSG(w.rank == is[i].rank && w.size == is[i].size && w.servers == is[i].servers && w.port == is[i].port && !strcmp(w.chief, is[i].chief), "%s: %d of %d, %d servers, port %d, chief %s",
                is[i].text, w.rank, w.size, w.servers, w.port, w.chief);
        }
        for (int i = 0; i < COUNT(bad); i++) {
            dt_cluster c = DT_DEFAULTS;
            dt_error err = DT_DEFAULTS;
            dt__who w;
            if (variable) setenv("CLUSTER_SPEC", bad[i].text, 1); else c.tf_config = bad[i].text;
            CHECK_MSG(dt__who_am_i(&c, &w, &err) == DT_ERR_CONFIG && strstr(err.text, bad[i].says), "%s: code %d \"%s\", expected \"%s\"", bad[i].text, err.code, err.text, bad[i].says);
        }
        unsetenv("CLUSTER_SPEC");
    }
}

static const char *const variables[] = {"DTRAIN_RANK", "DTRAIN_WORLD", "DTRAIN_CHIEF", "DTRAIN_ROLE", "DTRAIN_SERVERS", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
/* "A=1 B=2", and nothing else */
static int environment(const char *settings, dt__who *w, dt_error *err) {
    char text[400], *next, *word;
    for (int i = 0; i < COUNT(variables); i++) unsetenv(variables[i]);
    snprintf(text, sizeof text, "%s", settings);
    for (word = strtok_r(text, " ", &next); word; word = strtok_r(NULL, " ", &next)) {
        char *value = strchr(word, '=');
        *value++ = 0;
        setenv(word, value, 1);
    }
    memset(err, 0, sizeof *err);
    return dt__who_am_i(NULL, w, err);
}

static void test_roles(void) {
#define OWN "DTRAIN_WORLD=2 DTRAIN_CHIEF=h:1 "
#define TORCHRUN "WORLD_SIZE=5 MASTER_ADDR=h MASTER_PORT=1 "
    static const struct { const char *settings; int rank, size, servers; } is[] = {
        {OWN "DTRAIN_RANK=1", 1, 2, 0}, {OWN "DTRAIN_RANK=1 DTRAIN_SERVERS=2", 1, 4, 2}, {OWN "DTRAIN_RANK=1 DTRAIN_SERVERS=2 DTRAIN_ROLE=worker", 1, 4, 2},
        {OWN "DTRAIN_RANK=0 DTRAIN_SERVERS=2 DTRAIN_ROLE=chief", 0, 4, 2}, {OWN "DTRAIN_RANK=0 DTRAIN_SERVERS=2 DTRAIN_ROLE=ps", 2, 4, 2}, {OWN "DTRAIN_RANK=1 DTRAIN_SERVERS=2 DTRAIN_ROLE=ps", 3, 4, 2},
        {TORCHRUN "RANK=1 DTRAIN_SERVERS=2", 1, 5, 2}, {TORCHRUN "RANK=4 DTRAIN_SERVERS=2", 4, 5, 2}};
    static const struct { const char *settings, *says; } bad[] = {
        {OWN "DTRAIN_RANK=2 DTRAIN_SERVERS=2", "rank 2 of 2 workers and 2 parameter servers"}, {OWN "DTRAIN_RANK=2 DTRAIN_SERVERS=2 DTRAIN_ROLE=ps", "parameter server 2 of 2 workers and 2"},
        {OWN "DTRAIN_RANK=0 DTRAIN_ROLE=ps", "parameter server 0 of 2 workers and 0"}, {OWN "DTRAIN_RANK=0 DTRAIN_ROLE=server", "DTRAIN_ROLE is \"server\": chief, worker or ps is needed"},
        {OWN "DTRAIN_RANK=0 DTRAIN_ROLE=evaluator DTRAIN_SERVERS=1", "DTRAIN_ROLE is \"evaluator\""}, {OWN "DTRAIN_RANK=0 DTRAIN_ROLE=PS DTRAIN_SERVERS=1", "DTRAIN_ROLE is \"PS\""},
        {OWN "DTRAIN_RANK=0 DTRAIN_SERVERS=x", "DTRAIN_SERVERS is \"x\""}, {OWN "DTRAIN_RANK=0 DTRAIN_SERVERS=-1", "DTRAIN_SERVERS is \"-1\""}, {OWN "DTRAIN_RANK=0 DTRAIN_SERVERS=9000", "9000"},
        {TORCHRUN "RANK=1 DTRAIN_SERVERS=5", "5 of them parameter servers"}, {OWN "DTRAIN_SERVERS=1", "DTRAIN_RANK is not set"},
        {"DTRAIN_RANK=0 DTRAIN_WORLD=1 DTRAIN_SERVERS=1", "nothing says where rank 0 is"},
        /* half a cluster is never one process */
        {"DTRAIN_ROLE=ps", "DTRAIN_RANK is not set"}, {"DTRAIN_SERVERS=2", "DTRAIN_RANK is not set"}};
    dt_error err;
    dt__who w;
    for (int i = 0; i < COUNT(is); i++) {
        CHECK_MSG(!environment(is[i].settings, &w, &err), "%s: %s", is[i].settings, err.text);
        CHECK_MSG(w.rank == is[i].rank && w.size == is[i].size && w.servers == is[i].servers, "%s: %d of %d, %d servers", is[i].settings, w.rank, w.size, w.servers);
    }
    for (int i = 0; i < COUNT(bad); i++) {
        environment(bad[i].settings, &w, &err);
        CHECK_MSG(err.code == DT_ERR_CONFIG && strstr(err.text, bad[i].says), "%s: code %d \"%s\", expected \"%s\"", bad[i].settings, err.code, err.text, bad[i].says);
    }
    for (int i = 0; i < COUNT(variables); i++) unsetenv(variables[i]);
}

/* by dt_cluster; and who is one does not open the other */
/* A server that answers nothing for longer than the dead time is waited for as long as its heart beats, and no longer. */
static void test_busy_server(void) {
    player p[3];
    for (int mute = 0; mute < 2; mute++) {
        set_world(p, 2, 1);
        for (int i = 0; i < 3; i++) p[i].who.dead = 2;
        p[2].busy = 6, p[2].mute = mute;
        play_all(p, 3);
        for (int i = 0; i < 2; i++) {
            if (mute) CHECK_ERROR(p[i].err, DT_ERR_PEER, "is silent"); else CHECK_OK(p[i].err);
        }
        if (!mute) { CHECK_OK(p[2].err); CHECK(p[2].updates > 0 && p[0].report.steps > 0); }
    }
}

static void test_wrong_door(void) {
    dt_cluster c = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    dt__who w;
    c.rank = 1, c.world_size = 3, c.servers = 2, c.role = DT_ROLE_PS, c.chief = "127.0.0.1:9";
    CHECK(!dt__who_am_i(&c, &w, &err) && w.rank == 4 && w.size == 5 && w.servers == 2);
    CHECK(!dt_comm_open(&c, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "this process is a parameter server (dt_cluster): use dt_server_open");
    memset(&err, 0, sizeof err);
    c.role = DT_ROLE_WORKER;
    CHECK(!dt__who_am_i(&c, &w, &err) && w.rank == 1 && w.size == 5);
    CHECK(!dt_server_open(&c, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "dt_server_open: this process is rank 1, no parameter server (dt_cluster)");
    memset(&err, 0, sizeof err);
    CHECK(!dt_server_open(NULL, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "no parameter server");
    for (int k = 0; k < 5; k++) {
        memset(&err, 0, sizeof err);
        c.rank = 1, c.world_size = 3, c.servers = 2, c.role = DT_ROLE_PS;
        if (k == 0) c.rank = 2;
        if (k == 1) c.rank = -1;
        if (k == 2) c.servers = -1;
        if (k == 3) c.servers = 0;
        if (k == 4) c.servers = INT_MAX;
        CHECK(!dt_server_open(&c, &err));
        CHECK_ERROR(err, DT_ERR_CONFIG, "of 3 workers and");
    }
    memset(&err, 0, sizeof err);
    c.servers = 1, c.rank = 0, c.timeout_ms = 200;
    CHECK(!dt_server_open(&c, &err));
    CHECK_ERROR(err, DT_ERR_PEER, "in vain for rank 0");
}

int main(void) {
    signal(SIGALRM, too_long);
    if (scratch_begin()) return 1;
    make_rows();
    snprintf(weights, sizeof weights, "%s/weights.safetensors", scratch);
    TRY(test_sync_is_multiworker);
    TRY(test_one_worker);
    TRY(test_one_worker_clips);
    TRY(test_each_batch_once);
    TRY(test_few_batches);
    TRY(test_shared_out);
    TRY(test_bounded_staleness);
    TRY(test_backup);
    TRY(test_stale_gradient);
    TRY(test_train_goes_on);
    TRY(test_load_between);
    TRY(test_model_after_model);
    TRY(test_stop_and_go);
    TRY(test_stop_at_epoch);
    TRY(test_own_loop);
    TRY(test_leaving_early);
    TRY(test_chief_leaves_early);
    TRY(test_write_in_own_loop);
    TRY(test_refusals);
    TRY(test_no_memory);
    TRY(test_server_stops);
    TRY(test_not_finite);
    TRY(test_update_without_server);
    TRY(test_narrow);
    TRY(test_push_twice);
    TRY(test_result_across);
    TRY(test_sync_push_twice);
    TRY(test_push_alone);
    TRY(test_push_in_bytes);
    TRY(test_staleness_by_hand);
    TRY(test_hostile_workers);
    TRY(test_specs);
    TRY(test_roles);
    TRY(test_wrong_door);
    TRY(test_busy_server);
    TRY(test_killed);
    scratch_end();
    return finish();
}
#endif
