/* processes.c - several processes train as one: every layout of processes and threads gives one process' answer, through memory
 * that they share and over TCP; and a process that fails, stops or was started otherwise is told to all. */
#define DTRAIN_IMPLEMENTATION
#define DT_BUCKET_FLOATS 64  /* small nets' gradients leave while backward goes on */
#include "../dtrain.h"
#include "test.h"
#include "rows.h"
#include <sys/mman.h>
#include <sys/wait.h>

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 4, 3, .no_bias = 1), .sync = 1));  /* Adam would scale up what rounding leaves of a bias' gradient */
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 16)), 0.2);
    return dt_dense(x, 4);
}

static dt_tensor *wide(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_relu(dt_dense(dt_flatten(x), 24)), 4);
}

/* ---- several processes, each with a handle of its own: threads of this program, or children of it ------ */

#define MOST 8
#define STEPS 50

enum { THREADS, SEGMENT, TCP, WAYS };  /* how they meet; the last two are processes */
static const char *const way_names[WAYS] = {"threads", "shared memory", "TCP"};

typedef struct player {
    dt_comm *comm;
    dt_options o;
    dt_report report;
    dt_error err;
    int code, stop_rank, n_losses, by_segment, overlaps, dies, pinned, spins;  /* pinned: to this core, from 1 */
    double cores;
    long stop_step;
    uint32_t crc;
    double loss[STEPS];  /* of the first steps */
    double run_rate;  /* of dt_train's options */
} player;

static int stopping(const dt_event *e, void *user) {
    player *p = (player *)user;
    if (e->kind == DT_EVENT_STEP && p->dies && e->step == 5) raise(SIGKILL);
    if (e->kind == DT_EVENT_STEP && p->n_losses < STEPS) p->loss[p->n_losses++] = e->loss;
    return e->kind == DT_EVENT_STEP && p->stop_step && dt_comm_rank(p->comm) == p->stop_rank && e->step == p->stop_step;
}

static void *play(void *arg) {
    player *p = (player *)arg;
    p->o.comm = p->comm;
    p->o.user = p;
    p->o.on_event = stopping;
    dt_model *m = dt_model_create(&p->o, &p->err);
    p->overlaps = m && m->leaves;
    dt_options run = p->o;
    run.learning_rate = p->run_rate;
    p->code = m ? dt_train(m, p->run_rate > 0 ? &run : NULL, &p->err) : 1;
    p->report = dt_model_report(m);
    p->crc = dt_parameters_crc32c(m);
    dt_model_free(m);
    dt_comm_close(p->comm);
    return NULL;
}

static dt_options options(void) {
    dt_options o = DT_DEFAULTS;
    o.net = net, o.loss = DT_CROSS_ENTROPY, o.optimizer = DT_ADAM, o.input[0] = o.input[1] = SIDE, o.input[2] = 1;
    o.batch = 24, o.epochs = 2, o.seed = 5;
    o.train = dt_arrays(rows, DT_FLOAT32, row_label, DT_INT32, ROWS);
    o.test = dt_arrays(rows[100], DT_FLOAT32, row_label + 100, DT_INT32, 61);
    return o;
}

/* the players of a test; what a child writes into them, its parent reads */
static player *players(void) {
    static player *team;
    if (!team) team = (player *)mmap(NULL, MOST * sizeof *team, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (team == MAP_FAILED) { printf("no memory\n"); exit(1); }
    memset(team, 0, MOST * sizeof *team);
    return team;
}

#ifndef DTRAIN_NO_SOCKETS
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

static void pin(int core) {
#ifdef SYS_sched_setaffinity
    uint64_t mask[16] = {0};
    mask[core / 64] = UINT64_C(1) << core % 64;
    syscall(SYS_sched_setaffinity, 0, sizeof mask, mask);
#else
    (void)core;
#endif
}

/* one process of n, which joins the others at the port that its parent has chosen */
static void play_child(int way, int rank, int n, int door, int port, player *p) {
    dt__who w;
    memset(&w, 0, sizeof w);
    if (p->pinned) pin(p->pinned - 1);
    alarm(120);  /* a hang is a failure */
    setenv("DTRAIN_TRANSPORT", way == TCP ? "tcp" : "shm", 1);
    w.rank = rank, w.size = n, w.tries = 1, w.patience = 60, w.dead = 60;
    w.listener = rank ? -1 : door;
    if (rank) close(door);
    snprintf(w.chief, sizeof w.chief, "127.0.0.1:%d", port);
    strcpy(w.job, "a job"), strcpy(w.source, "a test");
    p->comm = dt__net_open(&w, &p->err);
    if (p->comm && way == TCP) p->comm->start = dt__net_start;  /* as between machines, where gradients leave early */
    p->by_segment = p->comm && p->comm->run == dt__desk_run;
    if (p->comm) p->cores = p->comm->cores, p->spins = p->comm->spins;
    if (p->comm) play(p);
    else p->code = p->err.code;
}

static void play_processes(int way, int n, player *p) {
    pid_t child[MOST];
    int port, door = open_door(&port), status;
    fflush(stdout);
    for (int i = 0; i < n; i++) {
        child[i] = fork();
        if (child[i] < 0) { printf("no process\n"); exit(1); }
        if (!child[i]) { play_child(way, i, n, door, port, &p[i]); fflush(stdout); _exit(0); }
    }
    close(door);
    for (int i = 0; i < n; i++) {
        CHECK(waitpid(child[i], &status, 0) == child[i]);
        CHECK_MSG(p[i].dies ? WIFSIGNALED(status) : WIFEXITED(status) && !WEXITSTATUS(status), "%s: process %d of %d ended with status %#x", way_names[way], i, n, (unsigned)status);
        CHECK_MSG(p[i].by_segment == (way == SEGMENT), "process %d of %d did not go by %s", i, n, way_names[way]);
    }
}
#endif

static void play_threads(int n, player *p) {
    pthread_t thread[MOST];
    dt_comm *comm[MOST];
    dt_error err = DT_DEFAULTS;
    dt_comm_group(n, comm, &err);
    CHECK_OK(err);
    for (int i = 0; i < n; i++) {
        p[i].comm = comm[i];
        pthread_create(&thread[i], NULL, play, &p[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
}

static void play_all(int way, int n, player *p) {
#ifndef DTRAIN_NO_SOCKETS
    if (way != THREADS && n > 1) { play_processes(way, n, p); return; }
#endif
    play_threads(n, p);
    (void)way;
}

/* 50 steps in every layout of processes and replicas: each loss is that of one process with one replica, all ranks have the same
 * bits, and so have layouts of equally many replicas where each process has a power of two of them, however they meet */
static void layouts(int way) {
    static const struct { int processes, replicas; } layout[] = {
        {1, 1},  {1, 2}, {2, 1},  {1, 3}, {3, 1},  {1, 4}, {2, 2}, {4, 1},  {1, 6}, {2, 3}, {3, 2}, {6, 1},  {1, 8}, {2, 4}, {4, 2}, {8, 1} };
    static const char *const variant[] = {"a convolution, norm and dropout by Adam", "… clipped, in two parts", "dense layers by Nesterov"};
    static struct { player one; uint32_t crc[MOST + 1]; } all[COUNT(variant)];  /* what one process comes to, and so many replicas */
    make_rows();
    for (int v = 0; v < COUNT(variant); v++) {
        player *one = &all[v].one;
        double worst = 0;
        for (int k = 0; k < COUNT(layout); k++) {
            int processes = layout[k].processes, replicas = layout[k].replicas, power = !(replicas & (replicas - 1)) || processes == 1;
            uint32_t *crc = &all[v].crc[processes * replicas];
            player *p = players();
            if (processes == 1 ? *crc != 0 : way != THREADS && processes > 4) continue;
            for (int i = 0; i < processes; i++) {
                p[i].o = options();
                p[i].o.replicas = replicas, p[i].o.steps = STEPS, p[i].o.epochs = 0;
                if (v == 1) p[i].o.clip_norm = 0.5, p[i].o.accumulate = 2;
                if (v == 2) p[i].o.net = wide, p[i].o.optimizer = DT_NESTEROV, p[i].o.learning_rate = 0.01;
            }
            play_all(way, processes, p);
            if (!k) *one = p[0];
            if (processes == 1) *crc = p[0].crc;
            for (int i = 0; i < processes; i++) {
                CHECK_MSG(p[i].code == 0 && p[i].n_losses == STEPS, "%s: %d losses; %s", variant[v], p[i].n_losses, p[i].err.text);
                CHECK(p[i].crc == p[0].crc && !memcmp(p[i].loss, p[0].loss, sizeof one->loss) && p[i].report.eval_loss == p[0].report.eval_loss);
                CHECK_MSG(p[i].overlaps == (way == TCP && processes > 1 && v == 2), "%s, %s: gradients leave %s", way_names[way], variant[v], p[i].overlaps ? "early" : "late");
                CHECK(p[i].report.processes == processes && p[i].report.samples == one->report.samples && p[i].report.steps == STEPS);
            }
            if (power) CHECK_MSG(p[0].crc == *crc, "%s, %s: %d x %d gives other bits", way_names[way], variant[v], processes, replicas);
            for (int i = 0; i < STEPS; i++) {
                double off = fabs(p[0].loss[i] - one->loss[i]);
                CHECK_MSG(off <= 1e-5, "%s, %s: %d x %d, step %d: the loss is %.9g, not %.9g", way_names[way], variant[v], processes, replicas, i, p[0].loss[i], one->loss[i]);
                if (off > worst) worst = off;
            }
            CHECK_NEAR(p[0].report.eval_loss, one->report.eval_loss, 1e-4);
        }
        CHECK_MSG(one->loss[STEPS - 1] < 0.9 * one->loss[0], "%s: the loss goes from %g to %g", variant[v], one->loss[0], one->loss[STEPS - 1]);
        if (getenv("SHOW")) printf("  %s, %s: losses differ by %.2g at most, %g to %g\n", way_names[way], variant[v], worst, one->loss[0], one->loss[STEPS - 1]);
    }
}

#ifndef DTRAIN_NO_SOCKETS
/* gradients of 16 bits: the loss goes down as it does with 32, all ranks have the same bits, in each run */
static dt_tensor *large(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_relu(dt_dense(dt_relu(dt_dense(dt_flatten(x), 160)), 64)), 4);
}
static void test_16_bits_on_the_wire(void) {
    static player exact;
    uint32_t first = 0;
    make_rows();
    for (int k = 0; k < 7; k++) {  /* 32 bits, then twice each kind by three, then by shared memory, where nothing is packed */
        player *p = players();
        for (int i = 0; i < 3; i++) {
            p[i].o = options();
            p[i].o.net = large, p[i].o.steps = STEPS, p[i].o.epochs = 0, p[i].o.optimizer = DT_SGD, p[i].o.learning_rate = 0.05;
            p[i].o.replicas = 2;
            p[i].o.wire = k == 0 ? DT_F32 : k < 3 || k == 5 ? DT_BF16 : DT_F16;
        }
        play_processes(k < 5 ? TCP : SEGMENT, 3, p);
        for (int i = 0; i < 3; i++) CHECK_MSG(p[i].code == 0 && p[i].n_losses == STEPS && p[i].crc == p[0].crc, "kind %d, rank %d: %s", k, i, p[i].err.text);
        if (!k) exact = p[0];
        double off = fabs(p[0].loss[STEPS - 1] - exact.loss[STEPS - 1]);
        if (k > 4) CHECK(p[0].crc == exact.crc);
        else if (k) CHECK_MSG(p[0].crc != exact.crc && off < (k < 3 ? 2e-3 : 3e-4), "kind %d: the last loss differs by %.3g", k, off);
        if (k == 1 || k == 3) first = p[0].crc;
        else if (k == 2 || k == 4) CHECK(p[0].crc == first);
        if (getenv("SHOW")) printf("  kind %d: %.6f to %.6f, off by %.3g\n", k, p[0].loss[0], p[0].loss[STEPS - 1], off);
    }
    CHECK(exact.loss[STEPS - 1] < 0.9 * exact.loss[0]);
    /* one that sends otherwise is told so */
    player *p = players();
    for (int i = 0; i < 2; i++) p[i].o = options(), p[i].o.replicas = 1, p[i].o.wire = i ? DT_F16 : DT_F32;
    play_processes(TCP, 2, p);
    for (int i = 0; i < 2; i++) CHECK_MSG(p[i].code && strstr(p[i].err.text, ".wire, 2 from 0"), "\"%s\"", p[i].err.text);
}
#endif

#ifndef DTRAIN_NO_SOCKETS
/* one is killed while gradients leave early, in several buckets: the others end, and name it */
static void test_one_dies(void) {
    make_rows();
    for (int victim = 0; victim < 3; victim++) {
        player *p = players();
        for (int i = 0; i < 3; i++) p[i].o = options(), p[i].o.net = large, p[i].o.replicas = 1 + victim % 2, p[i].o.steps = STEPS, p[i].o.epochs = 0, p[i].dies = i == victim;
        play_processes(TCP, 3, p);
        for (int i = 0; i < 3; i++) if (i != victim) {
            char who[40];
            snprintf(who, sizeof who, "rank %d (127.0.0.1", victim);
            CHECK_MSG(p[i].code == DT_ERR_PEER && strstr(p[i].err.text, who) && p[i].n_losses <= 6, "rank %d: %d, \"%s\"", i, p[i].code, p[i].err.text);
        }
    }
}
#endif

static void test_layouts_by_threads(void) { layouts(THREADS); }
#ifndef DTRAIN_NO_SOCKETS
static void test_layouts_by_shared_memory(void) { layouts(SEGMENT); }
static void test_layouts_by_tcp(void) { layouts(TCP); }
#endif

/* on_event of one process asks to stop: all stop after the same step */
static void test_one_stops_all(void) {
    player *p = players();
    make_rows();
    for (int i = 0; i < 3; i++) { p[i].o = options(); p[i].o.replicas = 1; p[i].stop_rank = 2; p[i].stop_step = 5; }
    play_all(THREADS, 3, p);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(p[i].err);
        CHECK_MSG(p[i].report.steps == 6, "%ld steps", p[i].report.steps);
        CHECK(p[i].crc == p[0].crc);
    }
}

/* an own loop may feed every process another number of samples, or none: the loss and the step are those of the union */
typedef struct { dt_comm *comm; int rank; float loss[10]; float answer[4]; dt_error err; } feeder;
static const int fed[3] = { 8, 5, 0 };

static void *feed(void *arg) {
    feeder *f = (feeder *)arg;
    dt_options o = options();
    memset(&o.train, 0, sizeof o.train), memset(&o.test, 0, sizeof o.test);
    o.net = wide, o.optimizer = DT_MOMENTUM, o.learning_rate = 0.05, o.replicas = f->comm ? 1 : 2, o.comm = f->comm;
    dt_model *m = dt_model_create(&o, &f->err);
    CHECK(dt_local_batch(m) == (f->comm ? 8 : 24));
    for (int step = 0; step < 10; step++) {
        int from = 13 * step + (f->rank > 0 ? 8 : 0) + (f->rank > 1 ? 5 : 0), n = f->comm ? fed[f->rank] : 13;
        f->loss[step] = dt_step(m, rows[from], row_label + from, n, &f->err);
    }
    dt_predict(m, rows[200], 1, f->answer, &f->err);
    dt_model_free(m);
    dt_comm_close(f->comm);
    return NULL;
}

static void test_uneven_data(void) {
    feeder f[3], one;
    pthread_t thread[3];
    dt_comm *comm[3];
    dt_error err = DT_DEFAULTS;
    make_rows();
    memset(f, 0, sizeof f), memset(&one, 0, sizeof one);
    feed(&one);
    CHECK_OK(one.err);
    dt_comm_group(3, comm, &err);
    for (int i = 0; i < 3; i++) { f[i].comm = comm[i], f[i].rank = i; pthread_create(&thread[i], NULL, feed, &f[i]); }
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(f[i].err);
        for (int step = 0; step < 10; step++) CHECK_NEAR(f[i].loss[step], one.loss[step], 1e-5);
        for (int k = 0; k < 4; k++) CHECK_NEAR(f[i].answer[k], one.answer[k], 1e-5);
    }
}

/* what differs between the processes is named, with both values */
#define SETTINGS "the settings of optimizer, loss or samples"
static void test_differences_are_named(void) {
    static const char *const says[] = {".batch, 30 from 24", "the net (checksum", ".optimizer, 0 from 3", ".seed, 6 from 5", "training samples, 202 from 203", ".epochs, 3 from 2", ".replicas, 2 from 1", ".patience, 4 from 0",
        SETTINGS, SETTINGS, SETTINGS, SETTINGS, SETTINGS, SETTINGS, SETTINGS};
    make_rows();
    for (int k = 0; k < COUNT(says); k++) {
        player *p = players();
        for (int i = 0; i < 2; i++) { p[i].o = options(); p[i].o.replicas = 1; }
        if (k == 0) p[1].o.batch = 30;
        if (k == 1) p[1].o.net = wide;
        if (k == 2) p[1].o.optimizer = DT_SGD;
        if (k == 3) p[1].o.seed = 6;
        if (k == 4) p[1].o.train.n = 202;
        if (k == 5) p[1].o.epochs = 3;
        if (k == 6) p[1].o.replicas = 2;
        if (k == 7) p[1].o.patience = 4;
        if (k == 8) p[1].o.learning_rate = 0.125;
        if (k == 9) p[1].o.clip_norm = 1;
        if (k == 10) p[1].o.schedule = DT_COSINE_DECAY;
        if (k == 11) p[1].o.no_shuffle = 1;
        if (k == 12) p[1].o.label_smoothing = 0.1;
        if (k == 13) p[1].o.weight_decay = 0.1;
        if (k == 14) p[1].run_rate = 0.125;  /* given to dt_train alone */
        play_all(THREADS, 2, p);
        for (int i = 0; i < 2; i++) CHECK_MSG(p[i].code && strstr(p[i].err.text, says[k]), "%d: \"%s\"", k, p[i].err.text);
    }
}

#ifndef DTRAIN_NO_SOCKETS
/* cores are shared with the ranks that may run there too, as launchers pin; who shares one does not spin */
static void test_pinned(void) {
    uint64_t mask[16];
    int core[2] = {-1, -1}, found = 0;
    if (!dt__core_mask(mask)) SKIP("the system does not tell where a process may run");
    for (int i = 0; i < 1024 && found < 2; i++) if (mask[i / 64] >> i % 64 & 1) core[found++] = i;
    for (int apart = 0; apart < found; apart++) {
        player *p = players();
        for (int i = 0; i < 2; i++) { p[i].o = options(); p[i].o.steps = 2; p[i].pinned = 1 + core[apart * i]; }
        play_all(SEGMENT, 2, p);
        for (int i = 0; i < 2; i++) {
            CHECK_OK(p[i].err);
            CHECK_NEAR(p[i].cores, apart ? 1 : 0.5, 1e-5);
            CHECK(!p[i].spins == !apart && p[i].report.replicas == 1);
        }
    }
    player *p = players();
    for (int i = 0; i < 2; i++) { p[i].o = options(); p[i].o.steps = 2; }
    play_all(SEGMENT, 2, p);
    for (int i = 0; i < 2; i++) CHECK_NEAR(p[i].cores, dt__cores() / 2.0, 1e-5);
}
#endif

int main(void) {
    RUN(test_layouts_by_threads);
#ifndef DTRAIN_NO_SOCKETS
    RUN(test_layouts_by_shared_memory);
    RUN(test_layouts_by_tcp);
    RUN(test_16_bits_on_the_wire);
    RUN(test_one_dies);
    RUN(test_pinned);
#endif
    RUN(test_one_stops_all);
    RUN(test_uneven_data);
    RUN(test_differences_are_named);
    return finish();
}
