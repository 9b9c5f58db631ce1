// checkpoint.c - what checkpoints cost a run: one replica, a net of 10 MB with Adam, saved every so many steps
//
// Build:   cc -O2 bench/checkpoint.c -o checkpoint -lm -pthread
// Run:     ./checkpoint [--every 10] [--run-steps 60] [--rounds 7] [--size 512]      make bench-checkpoint
// What:    the same run in turn without a job and as one that saves, rounds times. Of each, the time of a step, from the tenth
//          to the last, with whatever happens between them. Printed: medians and their ratio.
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/job.h"

enum { SAMPLES = 65536, PIXELS = 784, ROUNDS = 99 };  // more than a run takes: no epoch ends
static unsigned char images[SAMPLES][PIXELS], labels[SAMPLES];
static double tenth, last;
static long saves, skipped;

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_dense(x, 1200));
    x = dt_relu(dt_dense(x, 1200));
    return dt_dense(x, 10);
}

static int on_event(const dt_event *e, void *user) {
    (void)user;
    if (e->kind == DT_EVENT_STEP && e->step == 10) tenth = dt__now();
    if (e->kind == DT_EVENT_STEP) last = dt__now();
    if (e->kind == DT_EVENT_END) skipped += dt__the_job.skipped;
    return 0;
}

static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

static double median(double *v, int n) { qsort(v, (size_t)n, sizeof *v, by_size); return v[n / 2]; }

int main(int argc, char **argv) {
    const char *every = "10", *steps_text = "60", *rounds_text = "7", *batch_text = "512";
    const dt_flag flags[] = {{"every", &every, "steps between checkpoints"}, {"rounds", &rounds_text, "of both, in turn"}, {"run-steps", &steps_text, "steps of a run"}, {"size", &batch_text, "samples a step"}, {NULL, NULL, NULL}};
    char folder[] = "/tmp/checkpoint-XXXXXX", command[100];
    double with[ROUNDS], without[ROUNDS], ratio[ROUNDS];
    dt_options o = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    int rounds, code;
    long steps;
    o.flags = flags;
    if ((code = dt_parse(&o, argc, argv, &err)) != 0) { if (code != DT_ERR_STOPPED) fprintf(stderr, "%s\n", err.text); return code == DT_ERR_STOPPED ? 0 : 64; }
    rounds = DT__MAX(1, DT__MIN(atoi(rounds_text), ROUNDS));
    steps = DT__MAX(20, atol(steps_text));
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = (unsigned char)(dt__random(1, 1, (uint64_t)i) % 10);
        for (int k = 0; k < PIXELS; k++) images[i][k] = (unsigned char)(dt__random(1, (uint64_t)i + 2, (uint64_t)k) % 256);
    }
    o.net = net; o.input[0] = PIXELS; o.input_type = DT_UINT8; o.loss = DT_CROSS_ENTROPY; o.optimizer = DT_ADAM;
    o.train = dt_arrays(images, DT_UINT8, labels, DT_UINT8, SAMPLES);
    o.batch = DT__MAX(1, atoi(batch_text)); o.replicas = 1; o.steps = steps; o.progress = DT_OFF; o.on_event = on_event;
    if (!mkdtemp(folder)) { perror(folder); return 1; }
    for (int round = 0; round < rounds; round++) {
        dt_job job;
        char name[60];
        dt__format(name, sizeof name, "%s/%d", folder, round);
        memset(&job, 0, sizeof job);
        job.dir = name; job.every = every;
        if ((code = dt_run(&o)) != 0) return code;
        without[round] = (last - tenth) / (double)(steps - 10);
        if ((code = dt_job_run(&o, &job, argc, argv)) != 0) return code;
        with[round] = (last - tenth) / (double)(steps - 10);
        ratio[round] = with[round] / without[round];
        saves += (steps - 10) / DT__MAX(1, atol(every));
        printf("without %.1f ms a step, with %.1f: %.3f\n", without[round] * 1e3, with[round] * 1e3, ratio[round]);
        fflush(stdout);
    }
    printf("%s: median step %.1f ms without, %.1f ms with a checkpoint every %s steps: %.3f times (%ld saves, %ld left out)\n", dt__cpu()->name,
        median(without, rounds) * 1e3, median(with, rounds) * 1e3, every, median(ratio, rounds), saves, skipped);
    dt__format(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0;
}
