// comm.c - the collectives between threads, or between processes, in microseconds and GB/s, beside memcpy
//
// Build:   cc -O2 bench/comm.c -o comm -lm -pthread
// Run:     ./comm                   1, 2, 4, ... threads up to the cores, 10 K to 16 M floats
//          ./comm --threads 8 --rounds 9 --seconds 0.02 --most 1000000      --most: no more floats than that
//          ./comm --servers 4       one worker and 1, 2, ... 4 parameter servers as processes: push gradients, get values back
//          under mpirun, srun, … or with DTRAIN_RANK, DTRAIN_WORLD and DTRAIN_CHIEF: between these processes, 1 KB to 64 MB
// Prints Markdown: the medians over the rounds; in each round the operations follow each other, so that the ratio
// compares neighbours on a noisy machine. GB/s are the bytes that an operation must read and write at least: of n
// floats on each of T threads, memcpy and allreduce 2 T n, reduce-scatter T n + n, allgather and broadcast 2 (T - 1) n.
// So a mean that were as fast as the memory would take as long as T threads that copy n floats each.
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 1024, MOST_ROUNDS = 99, MOST_CALLS = 100000 };
enum { MEMCPY, ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, BARRIER, KINDS };
static size_t floats[] = {10000, 100000, 270000, 1000000, 4000000, 16000000};
static const size_t floats_of_processes[] = {256, 16384, 262144, 1048576, 4194304, 16777216};
enum { SIZES = sizeof floats / sizeof *floats };

static int rounds = 5;
static size_t most = 16777216;
static double seconds = 0.01;
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;  // volatile: no compiler leaves it out

typedef struct {
    dt_comm *comm;
    float *buf, *to;
    dt_error err;
    float calls[KINDS];                                // of one round: rank 0 chooses them for all
    double took[KINDS][MOST_ROUNDS];
    pthread_t thread;
} worker;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    const double *x = (const double *)a, *y = (const double *)b;
    return (*x > *y) - (*x < *y);
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void call(worker *w, int kind, size_t n) {
    switch (kind) {
    case MEMCPY:         copy(w->to, w->buf, n * sizeof *w->buf); break;
    case ALLREDUCE:      dt_allreduce(w->comm, w->buf, n, DT_MEAN, &w->err); break;  // a sum would grow to infinity
    case REDUCE_SCATTER: dt_reduce_scatter(w->comm, w->buf, n, DT_MEAN, &w->err); break;
    case ALLGATHER:      dt_allgather(w->comm, w->buf, n, &w->err); break;
    case BROADCAST:      dt_broadcast(w->comm, w->buf, n, 0, &w->err); break;
    default:             dt_barrier(w->comm, &w->err);
    }
}

// Seconds of one call: all ranks start together, and the last one to finish stops the clock.
static double measure(worker *w, int kind, size_t n, long times) {
    dt_barrier(w->comm, &w->err);
    double begin = now();
    for (long i = 0; i < times && !w->err.code; i++) call(w, kind, n);
    if (kind == MEMCPY) dt_barrier(w->comm, &w->err);
    return (now() - begin) / (double)times;
}

static void choose_calls(worker *w, size_t n) {
    for (int kind = 0; kind < KINDS; kind++) {
        measure(w, kind, n, 1);                        // touches the memory
        double once = measure(w, kind, n, 3);
        w->calls[kind] = once > seconds ? 1 : once * MOST_CALLS < seconds ? MOST_CALLS : (float)(long)(seconds / once);
    }
    dt_broadcast(w->comm, w->calls, KINDS, 0, &w->err);
}

static double least_bytes(int kind, double ranks, double n) {
    static const double per_rank[] = {2, 2, 1, 2, 2, 0}, once[] = {0, 0, 1, -2, -2, 0};
    return ranks == 1 && kind != MEMCPY ? 0 : sizeof(float) * n * (per_rank[kind] * ranks + once[kind]);
}

static void print_row(worker *w, size_t n) {
    double ratio[MOST_ROUNDS];
    int ranks = dt_comm_size(w->comm);
    for (int r = 0; r < rounds; r++) ratio[r] = w->took[ALLREDUCE][r] / w->took[MEMCPY][r];
    printf("| %d | %zu |", ranks, n);
    for (int kind = 0; kind < KINDS; kind++) {
        double took = median(w->took[kind], rounds), bytes = least_bytes(kind, ranks, (double)n);
        printf(" %.*f", took < 1e-4 ? 2 : 0, 1e6 * took);
        if (bytes > 0) printf(", %.1f", 1e-9 * bytes / took);
        printf(" |");
    }
    printf(" %.2f |\n", median(ratio, rounds));
    fflush(stdout);
}

static void measure_size(worker *w, size_t n) {
    choose_calls(w, n);
    for (int r = 0; r < rounds && !w->err.code; r++)
        for (int kind = 0; kind < KINDS; kind++) {
            w->took[kind][r] = measure(w, kind, n, (long)w->calls[kind]);
        }
    if (dt_comm_rank(w->comm) == 0 && !w->err.code) print_row(w, n);
}

// Every rank allocates its own memory: on a machine of several sockets it lies beside the rank's core.
static void *run(void *user) {
    worker *w = (worker *)user;
    w->buf = (float *)malloc(most * sizeof *w->buf);
    w->to = (float *)malloc(most * sizeof *w->to);
    if (w->buf && w->to) {
        for (size_t i = 0; i < most; i++) w->buf[i] = (float)(i % 1000) / 1000;
        for (int k = 0; k < SIZES && !w->err.code; k++) if (floats[k] <= most) measure_size(w, floats[k]);
    } else {
        w->err.code = DT_ERR_MEMORY;
        snprintf(w->err.text, sizeof w->err.text, "no memory for 2 * %zu floats: give a lower --most", most);
    }
    free(w->buf);
    free(w->to);
    dt_comm_close(w->comm);                            // whoever still waits for us gets an error
    return NULL;
}

static int measure_group(int ranks) {
    dt_comm *comm[MOST_THREADS];
    dt_error err = DT_DEFAULTS;
    worker *w = (worker *)calloc((size_t)ranks, sizeof *w);
    int failed = 0, started = 1;
    if (!w) return fprintf(stderr, "comm: out of memory\n"), 1;
    if (dt_comm_group(ranks, comm, &err)) return fprintf(stderr, "comm: %s\n", err.text), free(w), 1;
    for (int r = 0; r < ranks; r++) w[r].comm = comm[r];
    while (started < ranks && !pthread_create(&w[started].thread, NULL, run, &w[started])) started++;
    for (int r = started; r < ranks; r++) dt_comm_close(comm[r]);
    run(&w[0]);
    for (int r = 1; r < started; r++) pthread_join(w[r].thread, NULL);
    if (started < ranks) failed = fprintf(stderr, "comm: only %d of %d threads started\n", started, ranks);
    for (int r = 0; r < ranks && !failed; r++)
        if (w[r].err.code) failed = fprintf(stderr, "comm: rank %d: %s\n", r, w[r].err.text);
    free(w);
    return failed != 0;
}

// ---- parameter servers

// One round: n gradients leave, are applied by SGD, and come back as values.
static double push(dt_comm *c, dt__push *p, int kind, float *out, dt_error *err) {
    double begin = now();
    p->kind = kind;
    p->out = out;
    p->order.rate = 0.01;
    p->order.weight = 1;
    c->push(c, p, err);
    return now() - begin;
}

static int measure_servers(int servers, size_t n) {
    dt_cluster cluster = {.world_size = 1, .servers = servers, .chief = "127.0.0.1:29511"};
    dt_error err = DT_DEFAULTS;
    float *g = (float *)calloc(n, sizeof *g), *w = (float *)calloc(n, sizeof *w), *sums = (float *)calloc(n, sizeof *sums);
    double took[MOST_ROUNDS];
    fflush(stdout);
    for (int k = 0; k < servers; k++) {
        if (fork()) continue;
        cluster.role = DT_ROLE_PS;
        cluster.rank = k;
        dt_server *server = dt_server_open(&cluster, &err);
        dt_server_run(server, &err);
        dt_server_close(server);
        if (err.code) fprintf(stderr, "comm: %s\n", err.text);
        _exit(err.code != 0);
    }
    dt_comm *c = dt_comm_open(&cluster, &err);
    dt__push p = {.into = w, .sums = sums, .trained = (ptrdiff_t)n, .all = (ptrdiff_t)n};
    const int ready = c && g && w && sums;
    if (ready) {
        push(c, &p, DT__SETUP, w, &err);
        push(c, &p, DT__STRETCH, NULL, &err);
        for (int i = 0; i < 3; i++) push(c, &p, DT__PUSH, g, &err);
        for (int r = 0; r < rounds && !err.code; r++) took[r] = push(c, &p, DT__PUSH, g, &err);
    }
    dt_comm_close(c);
    while (wait(NULL) > 0) {}
    free(g); free(w); free(sums);
    if (!ready || err.code) return fprintf(stderr, "comm: %s\n", err.code ? err.text : "no memory"), 1;
    printf("| %d | %.1f | %.2f |\n", servers, 1e-6 * (double)(n * sizeof *g), 1e3 * median(took, rounds));
    return 0;
}

static void print_head(const char *ranks) {
    printf("%ld cores, medians of %d rounds; microseconds, GB/s\n\n", sysconf(_SC_NPROCESSORS_ONLN), rounds);
    printf("| %s | floats | memcpy | allreduce | reduce-scatter | allgather | broadcast | barrier | allreduce / memcpy |\n"
           "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n", ranks);
}

int main(int argc, char **argv) {
    int threads = (int)sysconf(_SC_NPROCESSORS_ONLN), servers = 0, failed = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--threads")) threads = atoi(value);
        else if (!strcmp(argv[i], "--servers")) servers = atoi(value);
        else if (!strcmp(argv[i], "--rounds")) rounds = atoi(value);
        else if (!strcmp(argv[i], "--seconds")) seconds = atof(value);
        else if (!strcmp(argv[i], "--most")) most = (size_t)atol(value);
        else threads = 0;
    }
    if (threads < 1 || threads > MOST_THREADS || rounds < 1 || rounds > MOST_ROUNDS || !(seconds > 0)
        || most < floats[0] || most > floats_of_processes[SIZES - 1]) {
        fprintf(stderr, "usage: comm [--threads 1..%d] [--servers K] [--rounds 1..%d] [--seconds S] [--most %zu..%zu]\n",
                MOST_THREADS, MOST_ROUNDS, floats[0], floats_of_processes[SIZES - 1]);
        return 64;
    }
    if (servers > 0) {
        printf("| servers | MB each way | push and pull, ms |\n| ---: | ---: | ---: |\n");
        for (int k = 1; k <= servers && !failed; k *= 2) failed = measure_servers(k, most < 6250000 ? most : 6250000);
        return failed;
    }
    dt_error err = DT_DEFAULTS;
    dt_comm *processes = dt_comm_open(NULL, &err);
    if (!processes) return fprintf(stderr, "comm: %s\n", err.text), 1;
    if (dt_comm_size(processes) > 1) {
        static worker w;
        w.comm = processes;
        memcpy(floats, floats_of_processes, sizeof floats);
        if (!dt_comm_rank(processes)) print_head("processes");
        run(&w);
        return w.err.code ? fprintf(stderr, "comm: %s\n", w.err.text), 1 : 0;
    }
    dt_comm_close(processes);
    print_head("threads");
    for (int t = 1; !failed; t = t * 2 < threads ? t * 2 : threads) {
        failed = measure_group(t);
        if (t == threads) break;
    }
    return failed;
}
