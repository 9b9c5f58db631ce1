// allreduce.c - only the collectives: sums, means and copies between threads or processes of your own
//
// Shows:   dt_comm_group, dt_comm_open, dt_allreduce (sum, mean, maximum), dt_reduce_scatter and dt_allgather with
//          dt_comm_slice, dt_broadcast, dt_barrier, and how fast an allreduce goes over memory.
// Data:    none.
// Build:   cc -O2 examples/allreduce.c -o allreduce -lm -pthread
// Run:     ./allreduce [RANKS]     RANKS threads, 1 to 64, or else 4
//          mpirun -np 4 ./allreduce, srun, torchrun …, or by hand one process after the other, with DTRAIN_RANK from 0 on:
//          DTRAIN_RANK=0 DTRAIN_WORLD=4 DTRAIN_CHIEF=127.0.0.1:2222 ./allreduce
// Output:  4 ranks; rank r starts with r, r + 1, r + 2, ...
//          rank 0 has           0     1     2     3     4     5     6     7     8     9
//          sum                  6    10    14    18    22    26    30    34    38    42
//          mean               1.5   2.5   3.5   4.5   5.5   6.5   7.5   8.5   9.5  10.5
//          maximum              3     4     5     6     7     8     9    10    11    12
//          10 * sum            60   100   140   180   220   260   300   340   380   420
//          of the last rank     3     4     5     6     7     8     9    10    11    12
//          mean of 4 MiB over 4 ranks: 0.81 ms, 5.18 GB/s a rank
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 64, SHORT = 10, LONG = 1 << 20, ROUNDS = 50 };

typedef struct {
    dt_comm *comm;
    dt_error err;
    double seconds;
} worker;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// buf[i] = rank + i: the sum over the ranks 0..size-1 is then known.
static void fill(float *buf, int n, int rank) {
    for (int i = 0; i < n; i++) buf[i] = (float)(rank + i);
}

// One line of the table, by rank 0: every rank holds the same.
static void show(const worker *w, const char *what, const float *buf) {
    if (dt_comm_rank(w->comm) || w->err.code) return;
    printf("%-16s", what);
    for (int i = 0; i < SHORT; i++) printf("%6g", buf[i]);
    printf("\n");
}

static void every_collective(worker *w, float *buf) {
    dt_comm *c = w->comm;
    int rank = dt_comm_rank(c), size = dt_comm_size(c);

    fill(buf, SHORT, rank);
    show(w, "rank 0 has", buf);
    dt_allreduce(c, buf, SHORT, DT_SUM, &w->err);
    show(w, "sum", buf);

    fill(buf, SHORT, rank);
    dt_allreduce(c, buf, SHORT, DT_MEAN, &w->err);
    show(w, "mean", buf);

    fill(buf, SHORT, rank);
    dt_allreduce(c, buf, SHORT, DT_MAX, &w->err);
    show(w, "maximum", buf);

    // An allreduce in its two halves: between them each rank works on its own slice of the sum alone.
    size_t begin, end;
    fill(buf, SHORT, rank);
    dt_comm_slice(c, SHORT, &begin, &end);
    dt_reduce_scatter(c, buf, SHORT, DT_SUM, &w->err);
    for (size_t i = begin; i < end; i++) buf[i] *= 10;
    dt_allgather(c, buf, SHORT, &w->err);
    show(w, "10 * sum", buf);

    fill(buf, SHORT, rank);
    dt_broadcast(c, buf, SHORT, size - 1, &w->err);
    show(w, "of the last rank", buf);
}

static void *run(void *arg) {
    worker *w = (worker *)arg;
    float *buf = (float *)calloc(LONG, sizeof *buf);
    if (buf) {
        every_collective(w, buf);
        fill(buf, LONG, 0);
        dt_barrier(w->comm, &w->err);                  // all start the clock together
        double begin = now();
        for (int i = 0; i < ROUNDS && !w->err.code; i++) dt_allreduce(w->comm, buf, LONG, DT_MEAN, &w->err);
        w->seconds = now() - begin;
    } else {
        w->err.code = DT_ERR_MEMORY;
        snprintf(w->err.text, sizeof w->err.text, "no memory for %d numbers", LONG);
    }
    free(buf);
    if (w->err.code) {                                 // whoever still waits for us gets an error, not silence
        dt_comm_close(w->comm);
        w->comm = NULL;
    }
    return NULL;
}

static int report(const worker *w, int ranks) {
    if (w->err.code) return fprintf(stderr, "allreduce: rank %d: %s\n", w->err.rank, w->err.text), 1;
    if (dt_comm_rank(w->comm)) return 0;
    printf("mean of 4 MiB over %d ranks: %.2f ms, %.2f GB/s a rank\n", ranks, 1e3 * w->seconds / ROUNDS, 4e-9 * LONG * ROUNDS / w->seconds);
    return 0;
}

int main(int argc, char **argv) {
    static worker worker_of[MOST];
    dt_comm *comm[MOST];
    pthread_t thread[MOST];
    dt_error err = DT_DEFAULTS;
    int ranks = argc > 1 ? atoi(argv[1]) : 4, failed = 0;
    if (ranks < 1 || ranks > MOST) return fprintf(stderr, "usage: allreduce [RANKS], 1 to %d\n", MOST), 64;

    // A launcher started several of us: each process is one rank.
    worker_of[0].comm = dt_comm_open(NULL, &err);
    if (!worker_of[0].comm) return fprintf(stderr, "allreduce: %s\n", err.text), 1;
    if (dt_comm_size(worker_of[0].comm) > 1) {
        run(&worker_of[0]);
        failed = report(&worker_of[0], dt_comm_size(worker_of[0].comm));
        dt_comm_close(worker_of[0].comm);
        return failed;
    }
    dt_comm_close(worker_of[0].comm);

    // Or else each thread.
    if (dt_comm_group(ranks, comm, &err)) return fprintf(stderr, "allreduce: %s\n", err.text), 1;
    printf("%d ranks; rank r starts with r, r + 1, r + 2, ...\n", ranks);
    for (int r = 0; r < ranks; r++) {
        worker_of[r].comm = comm[r];
        if (r && pthread_create(&thread[r], NULL, run, &worker_of[r])) return perror("allreduce"), 1;
    }
    run(&worker_of[0]);                                // the caller is rank 0
    for (int r = 1; r < ranks; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < ranks; r++) {
        failed |= report(&worker_of[r], ranks);
        dt_comm_close(worker_of[r].comm);
    }
    return failed;
}
