// checkpoint.h - a model in the middle of its training as a file, from which training goes on with the same bits
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "checkpoint.h"
//           from on_event: at DT_EVENT_BEGIN dt_checkpoint_load(e->model, "run.safetensors", &err), at DT_EVENT_EPOCH, or at a
//           DT_EVENT_STEP, dt_checkpoint_save. job.h, beside this file, does so for whole jobs.
//
// What:    dt_save's file with the optimizer's moments as tensors "optimizer.0.<parameter>" and a line of text in its metadata:
//          whose run it is, where that stands, and a checksum. dt_load and every other reader of safetensors take its weights.
// Owns:    nothing.
// Uses:    >>checkpoint, >>replicas, >>base.   Used by: job.h, programs.
// Promise: the bits of a run that was never interrupted, with the same replicas and processes; a file is whole or not there,
//          the same on every machine and under every strategy; what is loaded is checked before one value changes.
#ifndef DTRAIN_CHECKPOINT_H
#define DTRAIN_CHECKPOINT_H

#ifndef DTRAIN_IMPLEMENTED
#error "checkpoint.h goes behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION"
#endif

// dt_checkpoint_save - dt_save with the optimizer's moments, and where dt_train stands. Parameter servers are asked for
// their moments: call it on the chief, at DT_EVENT_EPOCH (with .sync and no .backup at DT_EVENT_STEP, too), when they rest.
DT_API int dt_checkpoint_save(dt_model *m, const char *path, dt_error *err);

// dt_checkpoint_load - the next dt_train, or that of this DT_EVENT_BEGIN, goes on where the model's first one was, in the
// middle of an epoch too, and ends with the bits of a run never interrupted. Of several processes rank 0 loads for all.
// A damaged file or one of another net (DT_ERR_FORMAT, DT_ERR_SHAPE), optimizer, batch or seed (DT_ERR_STATE) changes
// nothing. Where the bits will differ, with other replicas or options, dt_checkpoint_last says so.
DT_API int dt_checkpoint_load(dt_model *m, const char *path, dt_error *err);

typedef struct {
    long step, generation;     // generation: how often this run has been taken up again
    int replicas, processes;   // that it was made by: replicas of all processes
    uint32_t config;           // a checksum of the options that decide the bits
    int other_replicas, other_config;  // 1: these differ from the model's: the same samples, other bits
} dt_checkpoint_info;

// dt_checkpoint_last - of the checkpoint that this process loaded last; zeros if there is none.
DT_API dt_checkpoint_info dt_checkpoint_last(void);

// The text in the metadata: "seed 0 batch 32 optimizer 3 step 128 loss … config 123 crc32c 2868354213".
static const char *const dt__state_names[] = {"step", "loss", "accuracy", "samples", "best", "waited",  // all but the first as in m->progress
    "replicas", "processes", "generation", "config"};
enum { DT__STATE_REPLICAS = 6, DT__STATE_PROCESSES, DT__STATE_GENERATION, DT__STATE_CONFIG, DT__STATE_VALUES };
static dt_checkpoint_info dt__checkpoint;

DT_API dt_checkpoint_info dt_checkpoint_last(void) { return dt__checkpoint; }

static size_t dt__put_run(dt__writer *w, const dt_model *m) {
    dt__print(w, "seed %ju batch %d optimizer %d", (uintmax_t)m->o.seed, m->batch, (int)m->optimizer.kind);
    return w->n;
}

// Of the options that decide the bits: the optimizer's group, and what is done to the samples.
static uint32_t dt__config_crc(const dt_model *m) {
    uint32_t crc = 0;
    int counts = 0;
    for (int i = 0; i < DT__COUNT(dt__flags); i++) {
        const dt__flag f = dt__flag_at(i);
        char value[300];
        const char *text;
        if (f.type == DT__TITLE) { counts = !strcmp(f.name, "optimizer"); continue; }
        if (!counts && strcmp(f.name, "no-shuffle") && strcmp(f.name, "crop") && strcmp(f.name, "flip") && strcmp(f.name, "no-fusion")) continue;
        text = dt__flag_value(&m->o, &f, value, sizeof value);
        crc = dt__crc32c(dt__crc32c(crc, f.name, strlen(f.name) + 1), text, strlen(text) + 1);
    }
    return crc;
}

// What a file will say of this model; generation: of this process's run.
static void dt__put_state(dt__writer *w, const dt_model *m) {
    const double value[DT__STATE_VALUES] = {(double)m->step, m->progress[0], m->progress[1], m->progress[2], m->progress[3], m->progress[4],
        (double)m->world, (double)m->processes, (double)dt__checkpoint.generation, (double)dt__config_crc(m)};
    dt__put_run(w, m);
    for (int k = 0; k < DT__STATE_VALUES; k++) dt__print(w, " %s %.17g", dt__state_names[k], value[k]);
}

typedef struct { FILE *f; uint32_t crc; } dt__checkpoint_file;

static int dt__checkpoint_write(void *user, const void *data, size_t n) {
    dt__checkpoint_file *c = (dt__checkpoint_file *)user;
    c->crc = dt__crc32c(c->crc, data, n);
    return fwrite(data, 1, n, c->f) != n;
}

// What stands before the values, the checksum with all its digits, so that it can be written again when they are through.
static int dt__checkpoint_head(const dt_model *m, FILE *f, const char *state, uint32_t crc) {
    char text[640];
    uint8_t bytes[8];
    uint64_t length = 0, blanks;
    dt__format(text, sizeof text, "%s crc32c %010ju", state, (uintmax_t)crc);
    dt__write_header(m, text, dt__count_bytes, &length);
    blanks = 7 - (length + 7) % 8;
    dt__write_le(bytes, length + blanks, 8);
    return fwrite(bytes, 1, 8, f) != 8 || dt__write_header(m, text, dt__write_file, f) || fwrite("       ", 1, (size_t)blanks, f) != blanks;
}

DT_API int dt_checkpoint_save(dt_model *m, const char *path, dt_error *err) {
    char text[600];
    dt__writer state = dt__writer_on(text, sizeof text);
    dt__checkpoint_file c = {NULL, 0};
    dt__new_file file;
    if (!m) return dt__is_null(err, "model");
    if (m->servers && m->process) return dt__not_now(err, "dt_checkpoint_save: with parameter servers the chief saves");
    if (m->servers && m->served && m->comm && dt__exchange_slots(m, DT__FETCH, err)) return err ? err->code : DT_ERR_PEER;
    if (dt__new_file_open(&file, "dt_checkpoint_save", path, err)) return DT_ERR_IO;
    setvbuf(file.f, NULL, _IOFBF, 1 << 18);
    dt__put_state(&state, m);
    c.f = file.f;
    c.crc = dt__crc32c(0, text, state.n);
    if (dt__checkpoint_head(m, file.f, text, 0) || dt__write_values(m, 1, dt__checkpoint_write, &c) || fseek(file.f, 0, SEEK_SET) || dt__checkpoint_head(m, file.f, text, c.crc))
        return dt__new_file_fail(&file, err, "cannot write");
    return dt__new_file_close(&file, err);
}

// What it was there, and is here: the first of these that differs.
static int dt__another_run(dt__tensors *t, const char *there, const char *here) {
    static const char *const names[] = {"seed ", "batch ", "optimizer "};
    for (int i = 0; i < DT__COUNT(names); i++) {
        const char *a = strstr(there, names[i]), *b = strstr(here, names[i]);
        char value[2][40];
        int ok = 1, k;
        if (!a || !b) break;
        for (k = 0; k < 2; k++, a = b) {
            dt__writer w = dt__writer_on(value[k], sizeof value[k]);
            dt__print(&w, "%.*s", (int)DT__MIN(strcspn(a + strlen(names[i]), " "), 30), a + strlen(names[i]));
            if (i < 2) continue;
            int kind = (int)dt__whole(value[k], DT_RMSPROP, &ok);
            dt__flag f;
            if (!ok || !dt__find_flag(&f, "optimizer", 9)) continue;
            w = dt__writer_on(value[k], sizeof value[k]);
            dt__put_words(&w, f.names, kind);
        }
        if (strcmp(value[0], value[1])) return dt__fail(t->err, DT_ERR_STATE, "\"%s\" is of another run: %swas %s there, is %s here", t->path, names[i], value[0], value[1]);
    }
    return dt__bad_file(t->err, "\"%s\": the checkpoint's state is \"%.60s\"", t->path, there);
}

// Is it a checkpoint, whole, and of the same run?
static int dt__state_read(const dt_model *m, dt__tensors *t, double values[DT__STATE_VALUES]) {
    char text[640] = "", run[128];
    dt__writer w = dt__writer_on(run, sizeof run);
    dt__stored s = DT_DEFAULTS;
    dt__json j = t->state;
    const char *at, *end;
    size_t n, i;
    uint32_t crc;
    if (!j.p) return dt__bad_file(t->err, "\"%s\" is no checkpoint, it holds weights alone: dt_load takes it", t->path);
    dt__json_string(&j, text, sizeof text - 1, &n);
    end = strstr(text, " crc32c ");
    crc = dt__crc32c(dt__crc32c(0, text, end ? (size_t)(end - text) : 0), t->memory + t->data_at, (size_t)(t->size - t->data_at));
    if (!end || dt__parse_double(end + 8, text + strlen(text), &at) != crc || *at)
        return dt__bad_file(t->err, "\"%s\" is damaged (%s there, its contents have %ju)", t->path, end ? end + 1 : "no crc32c", (uintmax_t)crc);
    n = dt__put_run(&w, m);
    at = strstr(text, " step ");
    if (!at || (size_t)(at - text) != n || memcmp(text, run, n)) return dt__another_run(t, text, run);
    values[DT__STATE_REPLICAS] = m->world;  // the first checkpoints end before these
    values[DT__STATE_PROCESSES] = m->processes;
    values[DT__STATE_CONFIG] = dt__config_crc(m);
    for (i = 0; i < DT__STATE_VALUES && (at < end || i < DT__STATE_REPLICAS); i++) {
        n = strlen(dt__state_names[i]);
        if (*at != ' ' || strncmp(at + 1, dt__state_names[i], n)) return dt__bad_file(t->err, "\"%s\": the checkpoint's state lacks \"%s\"", t->path, dt__state_names[i]);
        values[i] = dt__parse_double(at + n + 2, end, &at);
    }
    while (dt__next_stored(m, 1, &s)) t->moments |= s.part && *dt__tensors_slot(t, s.name, strlen(s.name));  // all of them, or none
    return values[0] >= 0 && values[0] < DT__MIN(1e15, (double)LONG_MAX) ? 0 : dt__bad_file(t->err, "\"%s\": step %g is none", t->path, values[0]);
}

DT_API int dt_checkpoint_load(dt_model *m, const char *path, dt_error *err) {
    dt_load_options o = DT_DEFAULTS;
    double state[DT__STATE_VALUES] = {0};
    dt_checkpoint_info *c = &dt__checkpoint;
    dt__tensors t;
    int code;
    if (!m || !path) return dt__is_null(err, m ? "path" : "model");
    o.path = path;
    code = dt__tensors_open(&t, "dt_checkpoint_load", &m->o, &o, err);
    if (!code) code = dt__state_read(m, &t, state);
    if (!code) code = dt__load_tensors(m, &t, &o);
    if (!code) {
        m->step = c->step = (long)state[0];
        m->resumed = 1;
        if (m->servers) m->changed = 2;
        memcpy(m->progress, state + 1, sizeof m->progress);
        c->replicas = (int)state[DT__STATE_REPLICAS];
        c->processes = (int)state[DT__STATE_PROCESSES];
        c->generation = (long)state[DT__STATE_GENERATION] + 1;
        c->config = (uint32_t)state[DT__STATE_CONFIG];
        c->other_replicas = c->replicas != m->world;
        c->other_config = c->config != dt__config_crc(m);
    }
    dt__tensors_close(&t);
    return code;
}
#endif  // DTRAIN_CHECKPOINT_H
