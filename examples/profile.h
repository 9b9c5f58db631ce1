// profile.h - where the time of a training run went: seconds, GFLOP/s and share of the core's peak, layer by layer
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "profile.h"
//           and at DT_EVENT_END of a run with .profile = 1: dt_profile_show(e->model). train.c does so for --profile; without
//           this file dt_main shows seconds and shares.
//
// What:    a table on standard output. The peak is that of the matrix product's inner loop, measured then and there.
// Uses:    >>train, >>graph, >>kernels.   Used by: programs.
#ifndef DTRAIN_PROFILE_H
#define DTRAIN_PROFILE_H

#ifndef DTRAIN_IMPLEMENTED
#error "profile.h goes behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION"
#endif

// dt_profile_show - print it; nothing without .profile.
DT_API void dt_profile_show(dt_model *m);

// FLOP/s of the micro-kernel on one core where everything is in the first cache.
static double dt__profile_peak(void) {
    static float a[8 * 256], b[32 * 256], c[DT__MAX_TILE];
    const dt__tile *tile = &dt__cpu()->tile[0];
    dt__operand rows = {a, 1, tile->rows, 0, 1, NULL}, panel = {b, 1, dt__cpu()->columns, 0, 1, NULL};
    double start = dt__now(), best = 0;
    int i, round, columns = dt__cpu()->columns;
    for (round = 0; round < 20; round++, start = dt__now()) {
        for (i = 0; i < 200; i++) tile->full(1, 0, 0, 1, 256, &rows, &panel, c, columns, 0, NULL);
        best = DT__MAX(best, dt__ratio(200.0 * 2 * 256 * tile->rows * columns, dt__now() - start));
    }
    return best;
}

static void dt__profile_rate(double seconds, double operations, double peak) {
    printf(" %9.3f", seconds);
    if (operations > 0 && seconds > 0) printf(" %8.1f %5.0f %%", operations / seconds * 1e-9, 100 * operations / seconds / peak);
    else printf(" %8s %7s", "", "");
}

// Seconds are replica 0's, of training alone. Operations are those of a direct convolution, so Winograd's way may pass 100 %.
DT_API void dt_profile_show(dt_model *m) {
    static const char *const rest_name[] = {"data", "reduce", "update", "other, waiting"};
    const dt__graph *g = &m->graph;
    const double *seconds = m->o.profile ? m->replica[0].seconds : NULL, *more = seconds + (seconds ? 2 * g->n : 0);
    double all = m->report.seconds, data = m->report.data_s, rest = all - data, peak;
    int i, k;
    if (!seconds) return;
    m->o.profile = 0;  // dt_run need not show it again
    peak = dt__profile_peak();
    printf("one core's peak: %.1f GFLOP/s (%s)\n%-24s %9s %8s %7s %9s %8s %7s %7s\n", peak * 1e-9, dt__cpu()->name,
            "layer", "forward s", "GFLOP/s", "of peak", "backward", "GFLOP/s", "of peak", "share");
    for (i = 0; i < g->n; i++) {
        const dt_tensor *t = g->node[i];
        const double *s = seconds + 2 * i;
        double operations = 0;
        if (s[0] + s[1] <= 0) continue;
        if (t->op == &dt__dense || t->op == &dt__conv2d) operations = 2.0 * (double)t->variable[0]->size * (double)(t->size / t->dim[t->rank - 1]);
        rest -= s[0] + s[1];
        printf("%-24.24s", t->name);
        dt__profile_rate(s[0], operations * more[DT__PROFILED_ROWS], peak);
        dt__profile_rate(s[1], operations * more[DT__PROFILED_ROWS_BACK] * (dt__trains(t->variable[0]) + t->in[0]->back), peak);
        printf(" %5.1f %%\n", dt__ratio(100 * (s[0] + s[1]), all));
    }
    rest -= more[DT__PROFILED_REDUCE] + more[DT__PROFILED_UPDATE];
    for (k = 0; k < 4; k++) {
        double s = k == 0 ? data : k < 3 ? more[DT__PROFILED_REDUCE + k - 1] : DT__MAX(rest, 0);
        printf("%-24s %9.3f %41s %5.1f %%\n", rest_name[k], s, "", dt__ratio(100 * s, all));
    }
}
#endif  // DTRAIN_PROFILE_H
