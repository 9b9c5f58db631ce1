/* workers.c - 10,000 batches that all take equally long, for tests/launchers.sh: who trains which?
 *
 *   workers --seen FILE [--batches 10000] [--wait-ms 5] [--work-ms 0] --workers 9 --ps 1
 *
 * A batch is one sample. To read it takes wait-ms of sleep, so that ten workers need no ten cores, and work-ms of a core's
 * time. Each process adds a line "process batch" to FILE for each batch that it reads. */
#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int seen = -1;
static double wait_ms, work_ms;

static double worked(void) {  /* milliseconds of a core that this thread has had */
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int read_slowly(void *user, long index, void *x, void *y) {
    double end = worked() + work_ms;
    struct timespec rest = {0, (long)(wait_ms * 1e6)};
    char line[64];
    int n = snprintf(line, sizeof line, "%ld %ld\n", (long)getpid(), index);
    (void)user;
    for (int i = 0; i < 4; i++) ((float *)x)[i] = (float)(index >> (3 * i) & 7) / 8;
    *(int32_t *)y = (int32_t)(index >> 2 & 1);
    if (wait_ms > 0) nanosleep(&rest, NULL);
    while (worked() < end) {}
    return write(seen, line, (size_t)n) != n;  /* O_APPEND: no line of another process comes between */
}

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_relu(dt_dense(x, 16)), 2);
}

int main(int argc, char **argv) {
    const char *file = "", *batches = "10000", *waits = "5", *works = "0";
    const dt_flag flags[] = {
        {"seen", &file, "the file for the lines"}, {"batches", &batches, "how many"}, {"wait-ms", &waits, "sleep for each"}, {"work-ms", &works, "a core's time for each"}, {NULL, NULL, NULL} };
    dt_options o = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    int code;
    o.flags = flags, o.net = net, o.loss = DT_CROSS_ENTROPY, o.input[0] = 4, o.batch = o.replicas = o.epochs = 1, o.learning_rate = 0.001;
    code = dt_parse(&o, argc, argv, &err);
    if (code) return fprintf(stderr, "workers: %s\n", err.text), 64;
    wait_ms = atof(waits), work_ms = atof(works);
    o.train = dt_from(read_slowly, NULL, atol(batches)), o.label_type = DT_INT32;
    seen = open(file, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (seen < 0 || o.train.n < 1 || !(wait_ms >= 0 && wait_ms < 1000)) return fprintf(stderr, "workers: --seen %s cannot be written, or --batches or --wait-ms is no number\n", file), 64;
    return dt_run(&o);
}
