// trace.h - when each layer ran on which replica, as a Chrome trace: Perfetto and chrome://tracing open it
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "trace.h"
//           and in on_event of a run with .profile = 1: at DT_EVENT_BEGIN t = dt_trace_open(e->model, 100000, &err), after as many
//           steps as you like dt_trace_close(t, "trace.json", &err). job.h does so for --trace STEPS. Then open
//           https://ui.perfetto.dev and drop the file there: nothing is uploaded.
//
// What:    a row per replica with a span for each layer's forward and backward of a strip, for the data, the sum over the
//          replicas (waiting for others included) and the update.
// Owns:    one trace per process, from open to close.
// Uses:    >>graph, >>base.   Used by: job.h, programs.
// Promise: replicas note their spans without waiting for each other; where there is no room left, spans are dropped, and counted.
// Source:  Trace Event Format, "Complete Events" (the document of that name by the Chromium project).
#ifndef DTRAIN_TRACE_H
#define DTRAIN_TRACE_H

#ifndef DTRAIN_IMPLEMENTED
#error "trace.h goes behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION"
#endif

typedef struct dt_trace dt_trace;

// dt_trace_open - note up to spans of them on each replica of a model with .profile, from now on (40 bytes each). NULL on
// failure, or while another is open.
DT_API dt_trace *dt_trace_open(dt_model *m, size_t spans, dt_error *err);

// dt_trace_close - end it, write it to path (NULL: throw it away), and free it. NULL is fine. Before the model is freed, and
// not while a step runs.
DT_API int dt_trace_close(dt_trace *t, const char *path, dt_error *err);

typedef struct { double from, to; long step; int what; } dt__trace_span;  // what: as dt__spent has it
struct dt_trace {
    dt_model *m;
    size_t room;               // spans of each replica
    size_t *n, *dropped;       // [replicas]
    dt__trace_span *span;      // [replicas][room]
    double began;
};
static dt_trace *dt__tracing;

static void dt__trace_note(dt__replica *r, int what, double from, double to) {
    dt_trace *t = dt__tracing;
    if (!t || r->model != t->m) return;
    if (t->n[r->rank] == t->room) { t->dropped[r->rank]++; return; }
    dt__trace_span *s = &t->span[(size_t)r->rank * t->room + t->n[r->rank]++];
    s->from = from; s->to = to; s->step = r->model->step; s->what = what;
}

DT_API dt_trace *dt_trace_open(dt_model *m, size_t spans, dt_error *err) {
    const size_t most = SIZE_MAX / 2 / sizeof(dt__trace_span);
    size_t replicas = m ? (size_t)m->n_replicas : 0;
    dt_trace *t;
    if (!m) { dt__is_null(err, "model"); return NULL; }
    if (!m->graph.profile) { dt__not_now(err, "dt_trace_open: the model was made without .profile = 1"); return NULL; }
    if (dt__tracing) { dt__not_now(err, "dt_trace_open: another trace is open: dt_trace_close it first"); return NULL; }
    if (!spans || spans > most / replicas) { dt__deny(err, "dt_trace_open: room for %zu spans is none", spans); return NULL; }
    t = (dt_trace *)calloc(1, sizeof *t);
    if (t) {
        t->m = m;
        t->room = spans;
        t->n = (size_t *)calloc(2 * replicas, sizeof *t->n);
        t->span = (dt__trace_span *)malloc(replicas * spans * sizeof *t->span);
        t->began = dt__now();
    }
    if (!t || !t->n || !t->span) {
        if (t) { free(t->n); free(t->span); free(t); }
        dt__fail(err, DT_ERR_MEMORY, "no memory for a trace of %zu spans on each of %zu replicas", spans, replicas);
        return NULL;
    }
    t->dropped = t->n + replicas;
    dt__tracing = t;
    m->graph.span = dt__trace_note;
    return t;
}

static void dt__trace_put(FILE *f, const dt_trace *t, int replica, const dt__trace_span *s) {
    static const char *const rest[] = {"reduce", "update"};
    const dt__graph *g = &t->m->graph;
    int layer = s->what >= 0 && s->what < 2 * g->n, back = layer && s->what % 2;
    char line[400];
    dt__writer w = dt__writer_on(line, sizeof line);
    if (s->what >= 2 * g->n + DT__PROFILED_ALL || s->to < s->from) return;
    dt__puts(&w, ",\n{\"name\": \"");
    dt__put_json(&w, layer ? g->node[s->what / 2]->name : s->what < 0 ? "data" : rest[s->what - 2 * g->n - DT__PROFILED_REDUCE]);
    dt__print(&w, "\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": %d, \"tid\": %d, \"args\": {\"step\": %ld}}",
        layer ? back ? "backward" : "forward" : "step", (s->from - t->began) * 1e6, (s->to - s->from) * 1e6, t->m->process, replica, s->step);
    fputs(line, f);
}

DT_API int dt_trace_close(dt_trace *t, const char *path, dt_error *err) {
    dt__new_file file;
    int code = 0;
    if (!t) return 0;
    t->m->graph.span = NULL;
    dt__tracing = NULL;
    if (path && !(code = dt__new_file_open(&file, "the trace", path, err))) {
        size_t lost = 0;
        fprintf(file.f, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"process %d\"}}", t->m->process, t->m->process);
        for (int r = 0; r < t->m->n_replicas; r++) {
            fprintf(file.f, ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"replica %d\"}}", t->m->process, r, r);
            for (size_t i = 0; i < t->n[r]; i++) dt__trace_put(file.f, t, r, &t->span[(size_t)r * t->room + i]);
            lost += t->dropped[r];
        }
        fprintf(file.f, "\n], \"otherData\": {\"dropped spans\": \"%lu\"}}\n", (unsigned long)lost);
        code = ferror(file.f) ? dt__new_file_fail(&file, err, "cannot write") : dt__new_file_close(&file, err);
    }
    free(t->n);
    free(t->span);
    free(t);
    return code;
}
#endif  // DTRAIN_TRACE_H
