/* replicas.c - collectives between threads, and training on several replicas: the same mathematics,
 * the same bits on a second run, and errors in one replica that harm nobody.
 */
#include "../dtrain.h"
#include "test.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- collectives ----------------------------------------------------------------------------- */

#ifdef DTRAIN_NO_THREADS
#define NEEDS_THREADS SKIP("built without threads")
#else
#define NEEDS_THREADS do { } while (0)
#endif

enum { MAX_WORLD = 8, MAX_N = 100003 };
static const size_t length[] = { 0, 1, 3, 8, 1001, MAX_N };
enum { LENGTHS = sizeof length / sizeof *length };

typedef struct one_rank {
    dt_comm *comm;
    int rank, world;
    void (*body)(struct one_rank *);
    const void *arg;
    dt_error err;
    int rc;
    float *buf;
    uint32_t hash[LENGTHS][6];  /* of results that have to be equal on all ranks */
    char failure[200];          /* the first one; CHECK is for the main thread */
} one_rank;

static void failed(one_rank *r, const char *format, ...) {
    va_list args;
    if (r->failure[0]) return;
    va_start(args, format);
    vsnprintf(r->failure, sizeof r->failure, format, args);
    va_end(args);
}

/* the same tests over TCP: every thread plays a process of its own, which joins the others at this address */
static char meeting_place[64];

/* A free port below those that the system gives to others in the moment until rank 0 listens there. */
static void choose_meeting_place(void) {
#ifndef DTRAIN_NO_SOCKETS
    static int turn;
    struct sockaddr_in a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), port = 0, tried = 0;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    do {
        if (tried++ == 2700) { printf("no port\n"); exit(1); }
        port = 30000 + ((int)getpid() % 2700 + 7 * turn++) % 2700;
        a.sin_port = htons((uint16_t)port);
    } while (bind(fd, (struct sockaddr *)&a, sizeof a));
    close(fd);
    snprintf(meeting_place, sizeof meeting_place, "127.0.0.1:%d", port);
#endif
}

static void *rank_main(void *p) {
    one_rank *r = (one_rank *)p;
    if (!r->comm) {
        dt_cluster c = DT_DEFAULTS;
        c.rank = r->rank, c.world_size = r->world, c.chief = meeting_place, c.timeout_ms = 20000;
        r->comm = dt_comm_open(&c, &r->err);
        if (!r->comm) { failed(r, "%s", r->err.text); return NULL; }
    }
    r->body(r);
    if (meeting_place[0]) dt_comm_close(r->comm);
    return NULL;
}

static int tcp;

/* runs body on a thread per rank and closes the handles that it has not closed itself */
static void run_ranks(one_rank *r, int world, void (*body)(one_rank *), const void *arg) {
    dt_comm *comm[MAX_WORLD] = { NULL };
    pthread_t thread[MAX_WORLD];
    dt_error err = DT_DEFAULTS;
    memset(r, 0, (size_t)world * sizeof *r);
    if (tcp && world > 1) choose_meeting_place();
    else CHECK_MSG(dt_comm_group(world, comm, &err) == 0, "%s", err.text);
    for (int i = 0; i < world; i++) {
        r[i].comm = comm[i], r[i].rank = i, r[i].world = world, r[i].body = body, r[i].arg = arg;
        r[i].buf = (float *)calloc(MAX_N + 1, sizeof(float));
        if (pthread_create(&thread[i], NULL, rank_main, &r[i])) { printf("no thread\n"); exit(1); }
    }
    for (int i = 0; i < world; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < world; i++) {
        CHECK_MSG(!r[i].failure[0], "world %d, rank %d: %s", world, i, r[i].failure);
        free(r[i].buf);
    }
    for (int i = 0; i < world; i++) if (!tcp || world == 1) dt_comm_close(r[i].comm);
}

/* values whose sum depends on the order of addition */
static float value(int rank, size_t i) {
    uint32_t h = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank + 1) * 0x9e3779b9u;
    h ^= h >> 15, h *= 0x85ebca6bu, h ^= h >> 13;
    return ((float)(h & 0xffff) - 32768.0f) * (float)(1 << (h >> 28)) / 65536.0f;
}

static float combined(int world, size_t i, dt_reduction how) {  /* neighbours first, then pairs, … */
    float v[MAX_WORLD] = { 0 };
    for (int r = 0; r < world; r++) v[r] = value(r, i);
    for (int stride = 1; stride < world; stride *= 2)
        for (int r = 0; r + stride < world; r += 2 * stride)
            v[r] = how == DT_MAX ? (v[r] > v[r + stride] ? v[r] : v[r + stride]) : v[r] + v[r + stride];
    return v[0];
}

static void fill(one_rank *r, size_t n) {
    for (size_t i = 0; i < n; i++) r->buf[i] = value(r->rank, i);
    r->buf[n] = 12345;  /* must stay */
}

static uint32_t hash_of(const float *x, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        h = (h ^ bits) * 16777619u;
    }
    return h;
}

static void every_collective(one_rank *r) {
    dt_comm *c = r->comm;
    int world = r->world;
    if (dt_comm_rank(c) != r->rank || dt_comm_size(c) != world) failed(r, "is rank %d of %d", dt_comm_rank(c), dt_comm_size(c));
    for (int l = 0; l < LENGTHS; l++) {
        size_t n = length[l], begin, end;
        static const dt_reduction how[] = { DT_SUM, DT_MEAN, DT_MAX };
        for (int k = 0; k < 3; k++) {
            fill(r, n);
            if (dt_allreduce(c, r->buf, n, how[k], &r->err)) failed(r, "allreduce: %s", r->err.text);
            for (size_t i = 0; i < n; i++) {
                float want = combined(world, i, how[k]);
                int good = how[k] != DT_MEAN ? r->buf[i] == want : fabs((double)r->buf[i] - (double)want / world) <= 1e-6 * fabs((double)want);
                if (!good) { failed(r, "allreduce %d of %zu: value %zu is %.9g, expected %.9g", k, n, i, r->buf[i], want); break; }
            }
            r->hash[l][k] = hash_of(r->buf, n);
            if (r->buf[n] != 12345) failed(r, "allreduce wrote behind %zu", n);
        }
        if (dt_barrier(c, &r->err)) failed(r, "barrier: %s", r->err.text);

        fill(r, n);
        dt_comm_slice(c, n, &begin, &end);
        if (begin > end || end > n || end - begin > n / (size_t)world + 1) failed(r, "slice of %zu is %zu .. %zu", n, begin, end);
        if (dt_reduce_scatter(c, r->buf, n, DT_SUM, &r->err)) failed(r, "reduce_scatter: %s", r->err.text);
        for (size_t i = begin; i < end && i < n; i++)
            if (r->buf[i] != combined(world, i, DT_SUM)) { failed(r, "reduce_scatter of %zu: value %zu is %.9g", n, i, r->buf[i]); break; }
        for (size_t i = 0; i < n; i++) if (i < begin || i >= end) r->buf[i] = -1;
        if (dt_allgather(c, r->buf, n, &r->err)) failed(r, "allgather: %s", r->err.text);
        for (size_t i = 0; i < n; i++)
            if (r->buf[i] != combined(world, i, DT_SUM)) { failed(r, "allgather of %zu: value %zu is %.9g", n, i, r->buf[i]); break; }
        r->hash[l][3] = hash_of(r->buf, n);
        if (r->buf[n] != 12345) failed(r, "reduce_scatter or allgather wrote behind %zu", n);

        fill(r, n);
        if (dt_reduce_scatter(c, r->buf, n, DT_MAX, &r->err)) failed(r, "reduce_scatter: %s", r->err.text);
        for (size_t i = begin; i < end && i < n; i++)
            if (r->buf[i] != combined(world, i, DT_MAX)) { failed(r, "reduce_scatter of %zu: maximum %zu is %.9g", n, i, r->buf[i]); break; }

        for (int root = 0; root < world; root++) {
            fill(r, n);
            if (dt_broadcast(c, r->buf, n, root, &r->err)) failed(r, "broadcast: %s", r->err.text);
            for (size_t i = 0; i < n; i++)
                if (r->buf[i] != value(root, i)) { failed(r, "broadcast of %zu from %d: value %zu is %.9g", n, root, i, r->buf[i]); break; }
            if (r->buf[n] != 12345) failed(r, "broadcast wrote behind %zu", n);
        }
    }
    if (dt_allreduce(c, NULL, 0, DT_SUM, &r->err)) failed(r, "nothing to reduce: %s", r->err.text);
}

static void test_collectives(void) {
    NEEDS_THREADS;
    static one_rank r[MAX_WORLD];
    for (int world = 1; world <= MAX_WORLD; world++) {
        run_ranks(r, world, every_collective, NULL);
        for (int i = 1; i < world; i++) CHECK_MSG(!memcmp(r[i].hash, r[0].hash, sizeof r[0].hash), "world %d: rank %d has other bits than rank 0", world, i);
    }
}

static void test_slices_tile(void) {
    NEEDS_THREADS;
    static const size_t n[] = { 0, 1, 2, 3, 6, 7, 8, 1001, 1 << 20 };
    for (int world = 1; world <= MAX_WORLD; world++) {
        dt_comm *c[MAX_WORLD];
        dt_error err = DT_DEFAULTS;
        CHECK(dt_comm_group(world, c, &err) == 0);
        for (int k = 0; k < COUNT(n); k++) {
            size_t at = 0;
            for (int i = 0; i < world; i++) {
                size_t begin = 99, end = 99;
                dt_comm_slice(c[i], n[k], &begin, &end);
                CHECK_MSG(begin == at && end >= begin, "n %zu, world %d: slice %d is %zu .. %zu, the last one ended at %zu", n[k], world, i, begin, end, at);
                at = end;
            }
            CHECK_MSG(at == n[k], "n %zu, world %d: the slices end at %zu", n[k], world, at);
        }
        for (int i = 0; i < world; i++) dt_comm_close(c[i]);
    }
}

/* many calls of changing kinds: no rank may run ahead into a peer's buffers */
static void many_calls(one_rank *r) {
    uint32_t h = 1;
    for (int step = 0; step < 400; step++) {
        h = h * 1664525u + 1013904223u;
        size_t n = h >> 25;
        int root = (int)((h >> 8) % (uint32_t)r->world);
        for (size_t i = 0; i < n; i++) r->buf[i] = (float)(r->rank + 1) * (float)(step + 1);
        float all = (float)(r->world * (r->world + 1) / 2) * (float)(step + 1), want = all;
        int rc = 0;
        switch (h >> 4 & 3) {
        case 0: rc = dt_allreduce(r->comm, r->buf, n, DT_SUM, &r->err); break;
        case 1: rc = dt_broadcast(r->comm, r->buf, n, root, &r->err), want = (float)(root + 1) * (float)(step + 1); break;
        case 2: rc = dt_reduce_scatter(r->comm, r->buf, n, DT_SUM, &r->err) || dt_allgather(r->comm, r->buf, n, &r->err); break;
        default: rc = dt_allreduce(r->comm, r->buf, n, DT_MAX, &r->err), want = (float)r->world * (float)(step + 1); break;
        }
        if (rc) { failed(r, "step %d: %s", step, r->err.text); return; }
        for (size_t i = 0; i < n; i++) if (r->buf[i] != want) { failed(r, "step %d: value %zu is %g, not %g", step, i, r->buf[i], want); return; }
    }
}

static void test_many_calls(void) {
    NEEDS_THREADS;
    static one_rank r[MAX_WORLD];
    for (int world = 2; world <= 7; world += 1 + (world > 2)) run_ranks(r, world, many_calls, NULL);
}

typedef struct { int kind; size_t n; int root; dt_reduction how; } one_call;
enum { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, BARRIER };
enum { NULL_ARRAY = -9 };  /* as root of an allreduce */

static int call(one_rank *r, const one_call *c) {
    switch (c->kind) {
    case ALLREDUCE: return dt_allreduce(r->comm, c->root == NULL_ARRAY ? NULL : r->buf, c->n, c->how, &r->err);
    case REDUCE_SCATTER: return dt_reduce_scatter(r->comm, r->buf, c->n, c->how, &r->err);
    case ALLGATHER: return dt_allgather(r->comm, r->buf, c->n, &r->err);
    case BROADCAST: return dt_broadcast(r->comm, r->buf, c->n, c->root, &r->err);
    default: return dt_barrier(r->comm, &r->err);
    }
}

static const struct { const char *name; one_call call[3]; const char *says[2]; } mismatch[] = {
    { "kinds",        { { ALLREDUCE, 5, 0, DT_SUM }, { BARRIER, 0, 0, DT_SUM }, { ALLREDUCE, 5, 0, DT_SUM } }, { "allreduce", "barrier" } },
    { "other kinds",  { { BROADCAST, 5, 0, DT_SUM }, { BROADCAST, 5, 0, DT_SUM }, { ALLGATHER, 5, 0, DT_SUM } }, { "broadcast", "allgather" } },
    { "more kinds",   { { ALLREDUCE, 5, 0, DT_SUM }, { REDUCE_SCATTER, 5, 0, DT_SUM }, { REDUCE_SCATTER, 5, 0, DT_SUM } }, { "allreduce", "reduce_scatter" } },
    { "lengths",      { { ALLREDUCE, 5000, 0, DT_SUM }, { ALLREDUCE, 5000, 0, DT_SUM }, { ALLREDUCE, 7000, 0, DT_SUM } }, { "5000", "7000" } },
    { "roots",        { { BROADCAST, 5, 1, DT_SUM }, { BROADCAST, 5, 2, DT_SUM }, { BROADCAST, 5, 1, DT_SUM } }, { "1", "2" } },
    { "a root that is none", { { BROADCAST, 5, 1, DT_SUM }, { BROADCAST, 5, 77, DT_SUM }, { BROADCAST, 5, 1, DT_SUM } }, { "77", "77" } },
    { "one array is NULL", { { ALLREDUCE, 5, NULL_ARRAY, DT_SUM }, { ALLREDUCE, 5, 0, DT_SUM }, { ALLREDUCE, 5, 0, DT_SUM } }, { "NULL", "rank 0" } },
    { "sum and max",  { { ALLREDUCE, 5, 0, DT_SUM }, { ALLREDUCE, 5, 0, DT_SUM }, { ALLREDUCE, 5, 0, DT_MAX } }, { "", "" } },
};

static void mismatched_call(one_rank *r) {
    r->rc = call(r, (const one_call *)r->arg + r->rank);
    dt_comm_close(r->comm), r->comm = NULL;  /* so that nobody waits for ever, whatever went wrong */
}

static void test_mismatched_calls(void) {
    NEEDS_THREADS;
    static one_rank r[MAX_WORLD];
    for (int k = 0; k < COUNT(mismatch); k++) {
        run_ranks(r, 3, mismatched_call, mismatch[k].call);
        for (int i = 0; i < 3; i++)
            CHECK_MSG((r[i].rc == DT_ERR_STATE || r[i].rc == DT_ERR_ARGUMENT) && r[i].err.code == r[i].rc && strstr(r[i].err.text, mismatch[k].says[0]) && strstr(r[i].err.text, mismatch[k].says[1]),
                      "%s, rank %d: %d \"%s\"", mismatch[k].name, i, r[i].rc, r[i].err.text);
    }
}

/* rank 1 leaves; whoever waits for it, or calls later, gets an error */
static void leave_or_wait(one_rank *r) {
    if (r->rank == 1) { dt_comm_close(r->comm), r->comm = NULL; return; }
    r->rc = call(r, (const one_call *)r->arg);
    dt_error err = DT_DEFAULTS;
    if (!dt_barrier(r->comm, &err)) failed(r, "a later barrier succeeds");
}

static void test_close_releases_peers(void) {
    NEEDS_THREADS;
    static one_rank r[MAX_WORLD];
    static const one_call waits[] = { { ALLREDUCE, 100, 0, DT_SUM }, { REDUCE_SCATTER, 100, 0, DT_SUM }, { ALLGATHER, 100, 0, DT_SUM }, { BROADCAST, 100, 0, DT_SUM }, { BARRIER, 0, 0, DT_SUM } };
    for (int world = 2; world <= 4; world++)
        for (int k = 0; k < COUNT(waits); k++) {
            run_ranks(r, world, leave_or_wait, &waits[k]);
            for (int i = 0; i < world; i++) if (i != 1) CHECK_MSG(r[i].rc == DT_ERR_STATE && r[i].err.text[0], "world %d, call %d, rank %d: %d \"%s\"", world, k, i, r[i].rc, r[i].err.text);
        }
}

/* a rank that closes right after a call must not spoil that call for the others */
static void call_and_leave(one_rank *r) {
    for (int i = 0; i < 1000; i++) r->buf[i] = 1;
    if (dt_allreduce(r->comm, r->buf, 1000, DT_SUM, &r->err)) failed(r, "allreduce: %s", r->err.text);
    dt_comm_close(r->comm), r->comm = NULL;
    for (int i = 0; i < 1000; i++) if (r->buf[i] != (float)r->world) { failed(r, "value %d is %g", i, r->buf[i]); break; }
}

static void test_call_and_leave(void) {
    NEEDS_THREADS;
    static one_rank r[MAX_WORLD];
    for (int i = 0; i < 60; i++) run_ranks(r, 2 + i % 4, call_and_leave, NULL);
}

static void between_processes(const char *transport, void (*test)(void)) {
#ifdef DTRAIN_NO_SOCKETS
    (void)test; (void)transport;
    SKIP("built without sockets");
#else
    setenv("DTRAIN_TRANSPORT", transport, 1);
    tcp = 1;
    test();
    tcp = 0, meeting_place[0] = 0;
    unsetenv("DTRAIN_TRANSPORT");
#endif
}
static void test_collectives_over_tcp(void) { between_processes("tcp", test_collectives); }
static void test_collectives_by_segment(void) { between_processes("shm", test_collectives); }
static void test_many_calls_over_tcp(void) { between_processes("tcp", test_many_calls); }
static void test_many_calls_by_segment(void) { between_processes("shm", test_many_calls); }
static void test_mismatched_calls_over_tcp(void) { between_processes("tcp", test_mismatched_calls); }
static void test_mismatched_calls_by_segment(void) { between_processes("shm", test_mismatched_calls); }
static void test_close_releases_peers_over_tcp(void) { between_processes("tcp", test_close_releases_peers); }
static void test_close_releases_peers_by_segment(void) { between_processes("shm", test_close_releases_peers); }
static void test_call_and_leave_over_tcp(void) { between_processes("tcp", test_call_and_leave); }
static void test_call_and_leave_by_segment(void) { between_processes("shm", test_call_and_leave); }

static void test_comm_arguments(void) {
    dt_comm *c[2] = { NULL, NULL };
    float x[4] = { 1, 2, 3, 4 };
    static const int bad[] = { 0, -1, 1025, -2147483647 };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_error err = DT_DEFAULTS;
        CHECK_MSG(dt_comm_group(bad[i], c, &err) == DT_ERR_ARGUMENT && err.code == DT_ERR_ARGUMENT, "%d: \"%s\"", bad[i], err.text);
    }
    dt_error err = DT_DEFAULTS;
    CHECK(dt_comm_group(1, NULL, &err) == DT_ERR_ARGUMENT);
    CHECK(dt_comm_group(1, c, NULL) == 0 && c[0]);
    if (!c[0]) return;
    CHECK(dt_allreduce(c[0], x, 4, DT_MEAN, NULL) == 0 && x[0] == 1 && x[3] == 4);
    memset(&err, 0, sizeof err);
    CHECK(dt_allreduce(c[0], NULL, 4, DT_SUM, &err) == DT_ERR_ARGUMENT && err.text[0]);
    CHECK(dt_broadcast(c[0], x, 4, 1, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_broadcast(c[0], x, 4, -1, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_allreduce(c[0], x, 4, (dt_reduction)77, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_allreduce(NULL, x, 4, DT_SUM, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_barrier(NULL, NULL) == DT_ERR_ARGUMENT);
    CHECK(dt_barrier(c[0], NULL) == 0);
    dt_comm_close(c[0]);
    dt_comm_close(NULL);
}

/* ---- the same mathematics on any number of replicas -------------------------------------------- */

static dt_tensor *mlp(dt_tensor *x, void *user) {
    (void)user;
    x = dt_dropout(dt_tanh(dt_dense(dt_flatten(x), 16)), 0.2);
    return dt_dense(x, 4, .name = "logits");
}

static dt_tensor *cnn(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 5, 3, .padding = DT_SAME)), 2);
    x = dt_relu(dt_conv2d(x, 6, 3));
    return dt_dense(dt_flatten(x), 4, .name = "logits");
}

static dt_tensor *cnn_sync(dt_tensor *x, void *user) {
    (void)user;
    x = dt_batchnorm(dt_conv2d(x, 5, 3, .padding = DT_SAME, .no_bias = 1), .sync = 1, .name = "bn1");
    x = dt_maxpool2d(dt_relu(x), 2);
    x = dt_tanh(dt_batchnorm(dt_conv2d(x, 6, 3), .sync = 1, .name = "bn2"));
    return dt_dense(dt_flatten(x), 4, .name = "logits");
}

static dt_tensor *norm_first(dt_tensor *x, void *user) {  /* not .sync, but on inputs that are the same for all */
    (void)user;
    x = dt_batchnorm(x, .name = "bn1");
    return dt_dense(dt_flatten(x), 4, .name = "logits");
}

enum { SIDE = 6, CHANNELS = 2, FEATURES = SIDE * SIDE * CHANNELS, ROWS = 64, STEPS = 100, BATCH = 22 };
static float rows[ROWS][FEATURES], row_weight[ROWS];
static int32_t row_label[ROWS];
static const float class_weights[4] = { 1, 3, 0.5f, 2 };

static void make_rows(void) {
    uint32_t h = 12345;
    for (int i = 0; i < ROWS; i++) {
        float best = -1e9f;
        for (int k = 0; k < FEATURES; k++) {
            h = h * 1664525u + 1013904223u;
            rows[i][k] = (float)(h >> 8) / 8388608.0f - 1;
        }
        for (int k = 0; k < 4; k++) if (rows[i][k * 3] + rows[i][k * 3 + 1] > best) best = rows[i][k * 3] + rows[i][k * 3 + 1], row_label[i] = k;
        if (i % 9 == 0) row_label[i] = i / 9 % 4;  /* noise, so that the loss stays away from 0 */
        row_weight[i] = 0.25f + (float)(i % 5);
    }
}

static const struct setup {
    const char *name;
    dt_tensor *(*net)(dt_tensor *, void *);
    dt_options o;
    int ignore_first, weighted, norms;
} setup[] = {
    { "mlp, sgd",             mlp, { .learning_rate = 0.05 }, 0, 0, 0 },
    { "mlp, adam",            mlp, { .optimizer = DT_ADAM }, 0, 0, 0 },
    { "mlp, clipped, decayed", mlp, { .optimizer = DT_MOMENTUM, .clip_norm = 0.3, .weight_decay = 1e-3 }, 0, 0, 0 },
    { "mlp, class weights",   mlp, { .learning_rate = 0.05, .class_weights = class_weights }, 0, 0, 0 },
    { "mlp, ignored labels",  mlp, { .learning_rate = 0.05, .ignore_label = 3 }, 1, 0, 0 },
    { "mlp, sample weights",  mlp, { .learning_rate = 0.05 }, 0, 1, 0 },
    { "mlp, sum",             mlp, { .learning_rate = 0.002, .reduction = DT_SUM }, 0, 0, 0 },
    { "mlp, smoothed labels", mlp, { .optimizer = DT_NESTEROV, .label_smoothing = 0.1 }, 0, 0, 0 },
    { "cnn, momentum",        cnn, { .optimizer = DT_MOMENTUM, .learning_rate = 0.02 }, 0, 0, 0 },
    { "cnn, adam",            cnn, { .optimizer = DT_ADAM }, 0, 0, 0 },
    { "cnn, sync batch norm", cnn_sync, { .learning_rate = 0.05 }, 0, 0, 2 },
    { "batch norm of the input", norm_first, { .learning_rate = 0.0 }, 0, 0, 1 },
};

typedef struct {
    double loss[STEPS];
    uint32_t crc;
    float mean[2][8], variance[2][8];
} outcome;

static void train(const struct setup *s, int replicas, dt_strategy strategy, int accumulate, outcome *out) {
    static const int n[] = { BATCH, BATCH, 13, BATCH, 5, BATCH, 21, 7 };
    dt_error err = DT_DEFAULTS;
    dt_options o = s->o;
    o.net = s->net, o.loss = DT_CROSS_ENTROPY;
    o.input[0] = SIDE, o.input[1] = SIDE, o.input[2] = CHANNELS;
    o.batch = BATCH, o.replicas = replicas, o.strategy = strategy, o.accumulate = accumulate, o.seed = 3;
    dt_model *m = dt_model_create(&o, &err);
    memset(out, 0, sizeof *out);
    for (int step = 0; m && step < STEPS; step++) {
        static float x[BATCH][FEATURES], w[BATCH];
        static int32_t y[BATCH];
        int count = n[step % COUNT(n)];
        for (int i = 0; i < count; i++) {
            int row = (step * 7 + i * 3) % ROWS;
            memcpy(x[i], rows[row], sizeof x[i]);
            y[i] = s->ignore_first && i < count / 3 ? 3 : row_label[row];
            w[i] = row_weight[row];
        }
        dt_batch b = DT_DEFAULTS;
        b.x[0] = x, b.y[0] = y, b.n = count, b.weight = s->weighted ? w : NULL;
        out->loss[step] = (double)dt_step_batch(m, &b, &err);
    }
    CHECK_MSG(!err.code, "%s, %d replicas: %s", s->name, replicas, err.text);
    if (!m) return;
    out->crc = dt_parameters_crc32c(m);
    for (int k = 0; k < s->norms; k++) {
        char name[40];
        size_t size = s->net == norm_first ? CHANNELS : k ? 6 : 5;
        snprintf(name, sizeof name, "bn%d.running_mean", k + 1);
        dt_parameter_read(m, name, out->mean[k], size, &err);
        snprintf(name, sizeof name, "bn%d.running_var", k + 1);
        dt_parameter_read(m, name, out->variance[k], size, &err);
    }
    CHECK_OK(err);

    /* every replica has the same weights: equal rows, equal predictions */
    static float same[3 * 7][FEATURES], p[3 * 7][4];
    for (int i = 0; i < 21; i++) memcpy(same[i], rows[5], sizeof same[i]);
    dt_predict(m, same, 21, &p[0][0], &err);
    CHECK_OK(err);
    for (int i = 1; i < 21; i++) for (int k = 0; k < 4; k++) CHECK_NEAR(p[i][k], p[0][k], 2e-6);
    dt_report report = dt_model_report(m);
    CHECK_MSG(report.replicas == replicas && report.strategy == strategy, "%d replicas, strategy %d", report.replicas, (int)report.strategy);
    dt_model_free(m);
}

static void expect_close(const struct setup *s, const char *what, const outcome *a, const outcome *b) {
    double worst = 0;
    int at = 0;
    for (int step = 0; step < STEPS; step++) {
        double d = fabs(a->loss[step] - b->loss[step]) / fabs(b->loss[step]);
        if (!(d <= worst)) worst = d, at = step;
    }
    CHECK_MSG(worst <= 1e-5, "%s, %s: the loss of step %d is %.9g, not %.9g: %.1e", s->name, what, at, a->loss[at], b->loss[at], worst);
    for (int k = 0; k < s->norms; k++)
        for (int c = 0; c < 8; c++) {
            CHECK_MSG(fabs((double)a->mean[k][c] - (double)b->mean[k][c]) <= 1e-4 * fmax(1, fabs((double)b->mean[k][c])), "%s, %s: running mean %d", s->name, what, c);
            CHECK_MSG(fabs((double)a->variance[k][c] - (double)b->variance[k][c]) <= 1e-4 * fmax(1, fabs((double)b->variance[k][c])), "%s, %s: running variance %d", s->name, what, c);
        }
}

static void test_same_mathematics(void) {
    static const int replicas[] = { 2, 3, 7 };
    static outcome one, a, again;
    make_rows();
    for (int k = 0; k < COUNT(setup); k++) {
        train(&setup[k], 1, DT_ONE, 0, &one);
        train(&setup[k], 1, DT_ONE, 0, &again);
        CHECK_MSG(again.crc == one.crc && !memcmp(again.loss, one.loss, sizeof one.loss), "%s: not the same bits twice", setup[k].name);
        CHECK_MSG(one.crc != 0 && isfinite(one.loss[STEPS - 1]), "%s", setup[k].name);
        if (setup[k].net != norm_first) CHECK_MSG(fabs(one.loss[STEPS - 8] - one.loss[0]) > 0.01 * one.loss[0], "%s: nothing is learned", setup[k].name);
        for (int i = 0; i < COUNT(replicas); i++)
            for (int central = 0; central < 2; central++) {
                char what[40];
                dt_strategy strategy = central ? DT_CENTRAL : DT_MIRRORED;
                snprintf(what, sizeof what, "%d replicas, %s", replicas[i], central ? "central" : "mirrored");
                train(&setup[k], replicas[i], strategy, 0, &a);
                if (setup[k].net != norm_first) expect_close(&setup[k], what, &a, &one);
                else for (int c = 0; c < CHANNELS; c++) {  /* batch norm per replica: only its input is the same */
                    CHECK_NEAR(a.mean[0][c], one.mean[0][c], 1e-4);
                    CHECK_NEAR(a.variance[0][c], one.variance[0][c], 1e-4);
                }
                train(&setup[k], replicas[i], strategy, 0, &again);
                CHECK_MSG(again.crc == a.crc && !memcmp(again.loss, a.loss, sizeof a.loss), "%s, %s: not the same bits twice", setup[k].name, what);
            }
    }
}

/* one replica or three with the batch in parts: still the same mathematics (batch norm aside) */
static void test_accumulate(void) {
    static outcome one, a;
    make_rows();
    for (int k = 0; k < COUNT(setup); k++) {
        if (setup[k].norms) continue;
        train(&setup[k], 1, DT_ONE, 0, &one);
        train(&setup[k], 1, DT_ONE, 2, &a);
        expect_close(&setup[k], "in 2 parts", &a, &one);
        train(&setup[k], 3, DT_MIRRORED, 3, &a);
        expect_close(&setup[k], "3 replicas in 3 parts", &a, &one);
        train(&setup[k], 3, DT_CENTRAL, 2, &a);
        expect_close(&setup[k], "3 central replicas in 2 parts", &a, &one);
    }
}

/* the running statistics after one step, by hand: momentum 0.1, unbiased variance of the whole batch */
static void test_running_statistics(void) {
    make_rows();
    for (int replicas = 1; replicas <= 7; replicas += 2) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        float mean[CHANNELS], variance[CHANNELS];
        o.net = norm_first, o.loss = DT_CROSS_ENTROPY, o.batch = BATCH, o.replicas = replicas;
        o.input[0] = SIDE, o.input[1] = SIDE, o.input[2] = CHANNELS;
        dt_model *m = dt_model_create(&o, &err);
        dt_step(m, rows, row_label, 20, &err);
        dt_parameter_read(m, "bn1.running_mean", mean, CHANNELS, &err);
        dt_parameter_read(m, "bn1.running_var", variance, CHANNELS, &err);
        CHECK_OK(err);
        for (int c = 0; c < CHANNELS; c++) {
            double sum = 0, squares = 0, n = 20 * SIDE * SIDE;
            for (int i = 0; i < 20; i++) for (int k = c; k < FEATURES; k += CHANNELS) sum += (double)rows[i][k];
            for (int i = 0; i < 20; i++) for (int k = c; k < FEATURES; k += CHANNELS) squares += ((double)rows[i][k] - sum / n) * ((double)rows[i][k] - sum / n);
            CHECK_NEAR(mean[c], 0.1 * sum / n, 1e-6);
            CHECK_NEAR(variance[c], 0.9 + 0.1 * squares / (n - 1), 1e-6);
        }
        dt_model_free(m);
    }
}

/* ---- batches ------------------------------------------------------------------------------------- */

static int read_one(void *user, long index, void *x, void *y) {
    long fails_at = user ? *(long *)user : -1;
    if (index == fails_at) return 1;
    *(float *)x = (float)(index % 17) / 17 - 0.5f;
    *(int32_t *)y = (int32_t)(index % 4);
    return 0;
}

static void test_batch_and_replica_batch(void) {
    static const struct { int batch, replica_batch, replicas; long samples, steps; int global; } row[] = {
        { 64, 0, 1, 5656, 89, 64 },  { 64, 0, 2, 5656, 89, 64 },  { 64, 0, 3, 5656, 89, 64 },  { 0, 64, 1, 5656, 89, 64 },
        { 0, 64, 2, 5656, 45, 128 }, { 0, 64, 3, 5656, 30, 192 }, { 0, 64, 7, 5656, 13, 448 }, { 0, 0, 2, 5656, 177, 32 },
        { 1, 0, 3, 5, 5, 1 },        { 0, 1, 3, 5, 2, 3 },        { 100, 0, 7, 3, 1, 100 },
    };
    for (int i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = mlp, o.loss = DT_CROSS_ENTROPY, o.input[0] = 1;
        o.batch = row[i].batch, o.replica_batch = row[i].replica_batch, o.replicas = row[i].replicas;
        o.train = dt_from(read_one, NULL, row[i].samples);
        dt_model *m = dt_model_create(&o, &err);
        CHECK(dt_train(m, NULL, &err) == 0);
        CHECK_OK(err);
        dt_report r = dt_model_report(m);
        CHECK_MSG(r.steps == row[i].steps && r.samples == row[i].samples && dt_model_step(m) == row[i].steps, "row %d: %ld steps, %ld samples", i, r.steps, r.samples);
        CHECK_MSG(dt_local_batch(m) == row[i].global, "row %d: batch %d", i, dt_local_batch(m));
        dt_model_free(m);
    }
}

/* more replicas than samples: some of them have nothing to do */
static void test_more_replicas_than_samples(void) {
    make_rows();
    for (int kind = 0; kind < 2; kind++) {
        double want[4] = { 0 };
        for (int k = 0; k < 4; k++) {
            dt_error err = DT_DEFAULTS;
            dt_options o = DT_DEFAULTS;
            o.net = kind ? cnn_sync : mlp, o.loss = DT_CROSS_ENTROPY, o.learning_rate = 0.05;
            o.input[0] = SIDE, o.input[1] = SIDE, o.input[2] = CHANNELS;
            o.batch = k == 3 ? 2 : 9, o.replicas = k == 0 ? 1 : 7, o.strategy = k == 0 ? DT_ONE : k == 2 ? DT_CENTRAL : DT_MIRRORED;
            dt_model *m = dt_model_create(&o, &err);
            for (int step = 0; step < 4; step++) {
                double loss = (double)dt_step(m, rows[step], &row_label[step], 1 + step % 2, &err);
                if (k == 0) want[step] = loss;
                CHECK_NEAR(loss, want[step], kind ? 1e-4 : 1e-5);  /* a norm over one or two values magnifies rounding */
            }
            CHECK_OK(err);
            float p[4] = {0};
            CHECK(dt_predict(m, rows[0], 1, p, &err) == 0 && isfinite(p[0]));
            dt_model_free(m);
        }
    }
}

static void test_sizes_refused(void) {
    static const struct { const char *name; int replicas, batch, replica_batch, accumulate; const char *text; } bad[] = {
        { "-1 replica", -3, 8, 0, 0, "replicas" },         { "a million replicas", 1000000, 8, 0, 0, "replicas" },
        { "batch -8", 2, -8, 0, 0, "batch" },              { "replica_batch -8", 2, 0, -8, 0, "replica_batch" },
        { "product overflows", 2, 0, 2147483647, 0, "batch" }, { "accumulate -1", 2, 8, 0, -1, "accumulate" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        dt_error err = DT_DEFAULTS;
        dt_options o = DT_DEFAULTS;
        o.net = mlp, o.loss = DT_CROSS_ENTROPY, o.input[0] = 4;
        o.replicas = bad[i].replicas, o.batch = bad[i].batch, o.replica_batch = bad[i].replica_batch, o.accumulate = bad[i].accumulate;
        dt_model *m = dt_model_create(&o, &err);
        CHECK_MSG(!m && err.code && strstr(err.text, bad[i].text), "%s: %d \"%s\"", bad[i].name, err.code, err.text);
        dt_model_free(m);
    }
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = mlp, o.loss = DT_CROSS_ENTROPY, o.input[0] = FEATURES, o.batch = 8, o.replicas = 2;
    dt_model *m = dt_model_create(&o, &err);
    static const int n[] = { 0, -1, 9 };
    for (int i = 0; i < COUNT(n); i++) {
        dt_error e = DT_DEFAULTS;
        CHECK(isnan(dt_step(m, rows, row_label, n[i], &e)));
        CHECK_MSG(e.code == DT_ERR_ARGUMENT && e.text[0], "n = %d: %d \"%s\"", n[i], e.code, e.text);
    }
    CHECK(dt_model_step(m) == 0);
    dt_model_free(m);
}

/* replicas = 0 takes one per core and says how many */
static void test_default_replicas(void) {
    make_rows();
    dt_error err = DT_DEFAULTS;
    dt_options o = DT_DEFAULTS;
    o.net = mlp, o.loss = DT_CROSS_ENTROPY, o.input[0] = FEATURES, o.batch = 8;
    dt_model *m = dt_model_create(&o, &err);
    CHECK_OK(err);
    dt_report r = dt_model_report(m);
    CHECK(r.replicas >= 1 && r.strategy == (r.replicas > 1 ? DT_MIRRORED : DT_ONE));
    CHECK(isfinite(dt_step(m, rows, row_label, 8, &err)));
    dt_model_free(m);
}

/* ---- errors in one replica -------------------------------------------------------------------------- */

static struct { float marker; int in_backward; } trap = { 1e9f, 0 };

static int trapped(const dt_custom_call *c) {
    for (int i = 0; i < c->n; i++) if (c->x[0][i * FEATURES] == trap.marker) return 1;
    return 0;
}

static int pass_forward(const dt_custom_call *c) {
    memcpy(c->y, c->x[0], (size_t)c->n * FEATURES * sizeof(float));
    return !trap.in_backward && trapped(c);
}

static int pass_backward(const dt_custom_call *c) {
    if (c->dx[0]) for (int i = 0; i < c->n * FEATURES; i++) c->dx[0][i] += c->dy[i];
    return trap.in_backward && trapped(c);
}

static dt_tensor *trap_net(dt_tensor *x, void *user) {  /* peers wait in .sync while one replica fails before it */
    (void)user;
    x = dt_scale(x, 1, 0);
    x = dt_custom(x, {0}, pass_forward, pass_backward, NULL, .weight = {1}, .name = "trap");
    x = dt_batchnorm(x, .sync = 1, .name = "bn1");
    x = dt_tanh(dt_batchnorm(dt_dense(dt_flatten(x), 8), .sync = 1));
    return dt_dense(x, 4);
}

static dt_model *trap_model(int replicas, dt_strategy strategy, dt_source train_source, dt_error *err) {
    dt_options o = DT_DEFAULTS;
    o.net = trap_net, o.loss = DT_CROSS_ENTROPY, o.optimizer = DT_ADAM, o.batch = 6, o.replicas = replicas, o.strategy = strategy;
    o.input[0] = SIDE, o.input[1] = SIDE, o.input[2] = CHANNELS;
    o.train = train_source;
    return dt_model_create(&o, err);
}

enum { ANY_RANK = -1 };  /* .sync spreads a NaN before anybody looks */

static void test_error_in_one_replica(void) {
    static const struct { const char *name; int row, other_row; int label; float marker; int in_backward; int code; const char *text; int rank; } bad[] = {
        { "bad label, last replica",  5, -1, 77, 0, 0, DT_ERR_ARGUMENT, "77", 2 },
        { "bad label, first replica", 0, -1, -7, 0, 0, DT_ERR_ARGUMENT, "-7", 0 },
        { "bad label in two",         4, 3, 99, 0, 0, DT_ERR_ARGUMENT, "99", 1 },
        { "forward fails",            5, -1, 0, 123, 0, DT_ERR_CALLBACK, "trap", 2 },
        { "forward fails in two",     5, 1, 0, 123, 0, DT_ERR_CALLBACK, "trap", 0 },
        { "backward fails",           3, -1, 0, 123, 1, DT_ERR_CALLBACK, "trap", 1 },
        { "not a number",             5, -1, 0, NAN, 0, DT_ERR_NUMERIC, "", ANY_RANK },
    };
    static float x[6][FEATURES];
    int32_t y[6];
    make_rows();
    for (int k = 0; k < COUNT(bad); k++)
        for (int central = 0; central < 2; central++) {
            dt_error err = DT_DEFAULTS, fresh_err = DT_DEFAULTS;
            dt_source none = DT_DEFAULTS;
            dt_model *m = trap_model(3, central ? DT_CENTRAL : DT_MIRRORED, none, &err);
            dt_model *fresh = trap_model(3, central ? DT_CENTRAL : DT_MIRRORED, none, &fresh_err);
            CHECK_OK(err);
            dt_step(m, rows[10], &row_label[10], 6, &err), dt_step(fresh, rows[10], &row_label[10], 6, &fresh_err);
            uint32_t before = dt_parameters_crc32c(m);
            memcpy(x, rows, sizeof x), memcpy(y, row_label, sizeof y);
            trap.marker = bad[k].marker ? bad[k].marker : 1e9f;
            trap.in_backward = bad[k].in_backward;
            for (int i = 0; i < 2; i++) {
                int row = i ? bad[k].other_row : bad[k].row;
                if (row < 0) continue;
                if (bad[k].label) y[row] = bad[k].label;
                else x[row][0] = bad[k].marker;
            }
            float loss = dt_step(m, x, y, 6, &err);
            CHECK_MSG(isnan(loss), "%s: loss %g", bad[k].name, loss);
            CHECK_MSG(err.code == bad[k].code && strstr(err.text, bad[k].text) && (bad[k].rank == ANY_RANK || err.rank == bad[k].rank), "%s: code %d, rank %d, \"%s\"", bad[k].name, err.code, err.rank, err.text);
            CHECK_MSG(dt_parameters_crc32c(m) == before && dt_model_step(m) == 1, "%s: something was updated", bad[k].name);

            /* go on as if nothing had been: the same bits as a model that saw no error */
            trap.marker = 1e9f;
            memset(&err, 0, sizeof err);
            for (int step = 0; step < 3; step++) {
                float a = dt_step(m, rows[20 + step], &row_label[20 + step], 6, &err), b = dt_step(fresh, rows[20 + step], &row_label[20 + step], 6, &fresh_err);
                CHECK_MSG(a == b, "%s: the loss afterwards is %.9g, not %.9g", bad[k].name, a, b);
            }
            CHECK_OK(err);
            CHECK_OK(fresh_err);
            CHECK_MSG(dt_parameters_crc32c(m) == dt_parameters_crc32c(fresh), "%s: other weights afterwards", bad[k].name);
            dt_model_free(m), dt_model_free(fresh);
        }
}

static int trap_read(void *user, long index, void *x, void *y) {
    long *fails_at = (long *)user;
    if (index == *fails_at) return 1;
    memcpy(x, rows[index], sizeof rows[index]);
    *(int32_t *)y = row_label[index];
    return 0;
}

static void test_failing_read(void) {
    make_rows();
    for (long fails_at = 0; fails_at < 6; fails_at++) {
        dt_error err = DT_DEFAULTS;
        long at = fails_at;
        dt_model *m = trap_model(3, DT_MIRRORED, dt_from(trap_read, &at, 6), &err);
        CHECK_OK(err);
        uint32_t before = dt_parameters_crc32c(m);
        CHECK(dt_train(m, NULL, &err) == DT_ERR_CALLBACK);
        char index[8];
        snprintf(index, sizeof index, "%ld", fails_at);
        CHECK_ERROR(err, DT_ERR_CALLBACK, index);
        CHECK(err.rank >= 0 && err.rank < 3);
        CHECK(dt_parameters_crc32c(m) == before && dt_model_step(m) == 0);
        at = -1;
        memset(&err, 0, sizeof err);
        CHECK(dt_train(m, NULL, &err) == 0 && dt_model_step(m) == 1);
        CHECK_OK(err);
        CHECK(isfinite(dt_step(m, rows, row_label, 6, &err)));
        dt_model_free(m);
    }
}

/* prediction and evaluation report errors of a replica too, and the model goes on */
static void test_error_in_evaluation(void) {
    static float x[6][FEATURES], p[6][4];
    make_rows();
    dt_error err = DT_DEFAULTS;
    dt_source none = DT_DEFAULTS;
    dt_model *m = trap_model(3, DT_MIRRORED, none, &err);
    memcpy(x, rows, sizeof x);
    x[5][0] = trap.marker = 123, trap.in_backward = 0;
    CHECK(dt_predict(m, x, 6, &p[0][0], &err) == DT_ERR_CALLBACK && err.rank == 2);
    memset(&err, 0, sizeof err);
    dt_metrics metrics = DT_DEFAULTS;
    dt_source s = dt_arrays(x, DT_FLOAT32, row_label, DT_INT32, 6);
    CHECK(dt_evaluate(m, &s, &metrics, &err) == DT_ERR_CALLBACK && strstr(err.text, "trap"));
    trap.marker = 1e9f;
    memset(&err, 0, sizeof err);
    CHECK(dt_predict(m, x, 6, &p[0][0], &err) == 0);
    CHECK(dt_evaluate(m, &s, &metrics, &err) == 0 && metrics.n == 6);
    CHECK_OK(err);
    dt_model_free(m);
}

/* ---- models side by side ------------------------------------------------------------------------------ */

static void *train_alone(void *p) {
    uint32_t *crc = (uint32_t *)p;
    dt_options o = DT_DEFAULTS;
    o.net = mlp, o.loss = DT_CROSS_ENTROPY, o.input[0] = FEATURES, o.batch = 16, o.replicas = 2, o.optimizer = DT_ADAM;
    dt_model *m = dt_model_create(&o, NULL);
    for (int step = 0; step < 60; step++) dt_step(m, rows[step % 40], &row_label[step % 40], 16, NULL);
    *crc = dt_parameters_crc32c(m);
    dt_model_free(m);
    return NULL;
}

static void test_models_side_by_side(void) {
    NEEDS_THREADS;
    uint32_t alone = 0, crc[3] = { 0 };
    pthread_t thread[3];
    make_rows();
    train_alone(&alone);
    for (int i = 0; i < 3; i++) if (pthread_create(&thread[i], NULL, train_alone, &crc[i])) { printf("no thread\n"); exit(1); }
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 3; i++) CHECK_MSG(crc[i] == alone && alone, "model %d has other weights than alone", i);
}

int main(void) {
    alarm(900);  /* a deadlock ends the test */
    RUN(test_collectives);
    RUN(test_slices_tile);
    RUN(test_many_calls);
    RUN(test_mismatched_calls);
    RUN(test_close_releases_peers);
    RUN(test_call_and_leave);
    RUN(test_collectives_over_tcp);
    RUN(test_collectives_by_segment);
    RUN(test_many_calls_over_tcp);
    RUN(test_many_calls_by_segment);
    RUN(test_mismatched_calls_over_tcp);
    RUN(test_mismatched_calls_by_segment);
    RUN(test_close_releases_peers_over_tcp);
    RUN(test_close_releases_peers_by_segment);
    RUN(test_call_and_leave_over_tcp);
    RUN(test_call_and_leave_by_segment);
    RUN(test_comm_arguments);
    RUN(test_same_mathematics);
    RUN(test_accumulate);
    RUN(test_running_statistics);
    RUN(test_batch_and_replica_batch);
    RUN(test_more_replicas_than_samples);
    RUN(test_sizes_refused);
    RUN(test_default_replicas);
    RUN(test_error_in_one_replica);
    RUN(test_failing_read);
    RUN(test_error_in_evaluation);
    RUN(test_models_side_by_side);
    return finish();
}
