/* processes.c - several processes train as one: every layout of processes and threads gives one process' answer,
 * and a process that fails, stops or was started otherwise is told to all. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "test.h"
#include "rows.h"

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 4, 3), .sync = 1));
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 16)), 0.2);
    return dt_dense(x, 4);
}

static dt_tensor *wide(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_relu(dt_dense(dt_flatten(x), 24)), 4);
}

/* ---- several processes, each played by a thread with a handle of its own ------------------------------ */

typedef struct player {
    dt_comm *comm;
    dt_options o;
    dt_report report;
    dt_error err;
    int code, stop_rank;
    long stop_step;
    uint32_t crc;
    double eval_loss, eval_accuracy;
} player;

static int stopping(const dt_event *e, void *user) {
    player *p = (player *)user;
    return e->kind == DT_EVENT_STEP && p->stop_step && dt_comm_rank(p->comm) == p->stop_rank && e->step == p->stop_step;
}

static void *play(void *arg) {
    player *p = (player *)arg;
    p->o.comm = p->comm;
    p->o.user = p;
    p->o.on_event = stopping;
    dt_model *m = dt_model_create(&p->o, &p->err);
    p->code = m ? dt_train(m, NULL, &p->err) : 1;
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

#define MOST 8
static void play_all(int n, player *p) {
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

/* P x T = 8 replicas in each of four layouts: equal bits; other numbers agree to rounding */
static void test_layouts(void) {
    static const struct { int processes, replicas; } layout[] = { {1, 8}, {2, 4}, {4, 2}, {8, 1}, {1, 1}, {3, 1}, {2, 3}, {3, 2} };
    make_rows();
    for (int variant = 0; variant < 3; variant++) {
        uint32_t crc = 0;
        double loss = 0, eval = 0;
        for (int k = 0; k < COUNT(layout); k++) {
            player p[MOST];
            memset(p, 0, sizeof p);
            for (int i = 0; i < layout[k].processes; i++) {
                p[i].o = options();
                p[i].o.replicas = layout[k].replicas;
                if (variant == 1) p[i].o.clip_norm = 0.5, p[i].o.accumulate = 2;
                if (variant == 2) p[i].o.net = wide, p[i].o.optimizer = DT_NESTEROV;
            }
            play_all(layout[k].processes, p);
            for (int i = 0; i < layout[k].processes; i++) {
                CHECK_MSG(p[i].code == 0, "%s", p[i].err.text);
                CHECK(p[i].crc == p[0].crc && p[i].report.train_loss == p[0].report.train_loss && p[i].report.eval_loss == p[0].report.eval_loss);
                CHECK(p[i].report.processes == layout[k].processes && p[i].report.samples == 2 * ROWS);
            }
            if (!k) crc = p[0].crc, loss = p[0].report.train_loss, eval = p[0].report.eval_loss;
            if (k < 4) CHECK_MSG(p[0].crc == crc, "variant %d: %d x %d gives other bits", variant, layout[k].processes, layout[k].replicas);
            CHECK_NEAR(p[0].report.train_loss, loss, 1e-4);
            CHECK_NEAR(p[0].report.eval_loss, eval, variant == 2 ? 1e-5 : 1e-3);
        }
    }
}

/* on_event of one process asks to stop: all stop after the same step */
static void test_one_stops_all(void) {
    player p[3];
    make_rows();
    memset(p, 0, sizeof p);
    for (int i = 0; i < 3; i++) { p[i].o = options(); p[i].o.replicas = 1; p[i].stop_rank = 2; p[i].stop_step = 5; }
    play_all(3, p);
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
static void test_differences_are_named(void) {
    static const char *const says[] = {".batch, 30 from 24", "the net (checksum", ".optimizer, 0 from 3", ".seed, 6 from 5", "training samples, 202 from 203", ".epochs, 3 from 2", ".replicas, 2 from 1"};
    make_rows();
    for (int k = 0; k < COUNT(says); k++) {
        player p[2];
        memset(p, 0, sizeof p);
        for (int i = 0; i < 2; i++) { p[i].o = options(); p[i].o.replicas = 1; }
        if (k == 0) p[1].o.batch = 30;
        if (k == 1) p[1].o.net = wide;
        if (k == 2) p[1].o.optimizer = DT_SGD;
        if (k == 3) p[1].o.seed = 6;
        if (k == 4) p[1].o.train.n = 202;
        if (k == 5) p[1].o.epochs = 3;
        if (k == 6) p[1].o.replicas = 2;
        play_all(2, p);
        for (int i = 0; i < 2; i++) CHECK_MSG(p[i].code && strstr(p[i].err.text, says[k]), "%d: \"%s\"", k, p[i].err.text);
    }
}

static void test_layouts_over_tcp(void) {
    setenv("DTRAIN_TRANSPORT", "tcp", 1);
    test_layouts();
    unsetenv("DTRAIN_TRANSPORT");
}

int main(void) {
    RUN(test_layouts);
    RUN(test_layouts_over_tcp);
    RUN(test_one_stops_all);
    RUN(test_uneven_data);
    RUN(test_differences_are_named);
    return finish();
}
