// job.h - a run as a job: a directory with checkpoints, status, logs and curves, from which it comes back by itself
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms. checkpoint.h,
//           events.h, status.h and trace.h must lie beside it.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "job.h"
//              int main(int argc, char **argv) { return dt_job_main(argc, argv, .net = net, …); }
//           in place of dt_main. job.c and train.c, beside this file, do so. With export_onnx.h and export_c.h included
//           before job.h, a finished job also leaves the net as ONNX and as C.
//           ./program --job-dir out          the same command again, after whatever happened, goes on
//           ./program --job-dir out2 --checkpoint-every 500 --keep 5 --init-from out
//           ./program --job-dir out2 --plan  memory, bytes a step, bytes of a checkpoint; nothing is trained
//           ./program submit --job-dir out3  in the background, its output in out3/logs; prints the job's id
//           ./program status --job-dir out3  its status.json (--follow: until it ends); cancel ends it with SIGTERM
//           ./program list out out2          compares jobs
//           ./program evaluate --job-dir out  beside the run, or afterwards: evaluates each checkpoint once
//           ./program --job-dir out4 --status-port 8080   http://127.0.0.1:8080: a page with live curves; /status, /metrics, /healthz
//           tensorboard --logdir out         while it runs, or afterwards
//
// What:    listens to a run's events. Before the first step it goes back to the newest good checkpoint; then it saves after
//          epochs, and every so many steps or seconds, from a copy, by a thread, so that a step waits for the copy alone.
//          On SIGTERM the step ends, is saved, and the exit status is 143: start me again. Of several processes the chief does
//          all this; the others get its state when they join.
//          out/job.json            id, command, settings, versions    out/checkpoints/step-500.safetensors, …, best.safetensors
//          out/status.json         state, step, losses, last error    out/export/model.safetensors (.onnx, .c) when it has finished
//          out/metrics.csv         a row per epoch                    out/events/            the same for TensorBoard, and more
//          out/logs/chief.log, …   what happened, a file per task     out/tasks/chief.json, …        how far each task is
//          out/evaluator.csv       a row per evaluated checkpoint     out/trace/chief.json, …        for Perfetto (--trace)
// Owns:    one job per process, and its threads while it saves and answers.
// Uses:    >>train, >>checkpoint, >>server, >>base; checkpoint.h, events.h, status.h, trace.h.   Used by: programs.
// Promise: the bits of a run that was never interrupted (asynchronous parameter servers: every sample once); no file is ever
//          half written; a damaged checkpoint is told, and the one before it taken; a save that fails is told, and training
//          goes on; nothing is removed but what this wrote; two runs never share a directory.
#ifndef DTRAIN_JOB_H
#define DTRAIN_JOB_H

#ifndef DTRAIN_IMPLEMENTED
#error "job.h goes behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION"
#endif
#if defined(DTRAIN_NO_STDIO) || defined(DTRAIN_NO_MALLOC) || !DT__POSIX
#error "job.h needs files, malloc and POSIX"
#endif
#include <dirent.h>
#include <sys/file.h>
#include "checkpoint.h"
#include "events.h"
#include "status.h"
#include "trace.h"

// The flags of a job, as texts; NULL or "": the default.
typedef struct {
    const char *dir;        // NULL: no job, a plain run
    const char *id;         // letters, digits, _, a letter first; default: the program's name, date and time
    const char *every;      // a checkpoint after so many steps, too
    const char *seconds;    // … or so many seconds
    const char *keep;       // so many checkpoints; default 3
    const char *best;       // best.safetensors is judged by eval_loss, eval_accuracy, loss or accuracy; default: eval_loss, or loss
    const char *fresh;      // "1": remove the checkpoints that are there
    const char *init;       // another job's directory: begin with its best weights
    const char *port;       // the chief answers HTTP there, read only: "8080" on this machine, "0.0.0.0:8080" to all; server i on port + 1 + i
    const char *histograms; // "1": weights and gradients after every epoch, for TensorBoard
    const char *trace;      // so many steps as a Chrome trace
    const char *plan;       // "1": show what it takes, and stop
    const char *config;     // a JSON file with the platform's fields; dt_job_command puts flags in its place
} dt_job;

// For a program's own table of flags, before its {NULL, NULL, NULL}.
#define DT_JOB_FLAGS(job) \
    {"job-dir", &(job).dir, "the job's directory: checkpoints, status, curves; it goes on from there. In front of it: submit, status, cancel, list or evaluate"}, \
    {"job-id", &(job).id, "its name, or else program, date and time"}, \
    {"checkpoint-every", &(job).every, "a checkpoint after so many steps, not after epochs only"}, \
    {"checkpoint-seconds", &(job).seconds, "… or so many seconds"}, \
    {"keep", &(job).keep, "so many checkpoints stay, or else 3"}, \
    {"best", &(job).best, "what the best checkpoint is judged by: eval_loss, eval_accuracy, loss or accuracy"}, \
    {"fresh", &(job).fresh, "1: remove the job's checkpoints and begin anew"}, \
    {"init-from", &(job).init, "another job's directory: begin with its best weights"}, \
    {"status-port", &(job).port, "the chief shows the job there by HTTP, on this machine; HOST:PORT elsewhere"}, \
    {"histograms", &(job).histograms, "1: weights and gradients after every epoch, for TensorBoard"}, \
    {"trace", &(job).trace, "so many steps as a Chrome trace, for Perfetto"}, \
    {"plan", &(job).plan, "1: show memory, bytes a step and bytes of a checkpoint, and stop"}, \
    {"config", &(job).config, "JSON as the platform has it: scaleTier, workerCount, parameterServerCount, args, jobDir, jobId"}

// dt_job_run - dt_run as a job. Returns its exit status; 64, 78 or 1 if the job's flags or directory are no good.
DT_API int dt_job_run(const dt_options *o, const dt_job *job, int argc, char **argv);

// dt_job_main(argc, argv, .net = net, …) - dt_main with the flags of a job.
#define dt_job_main(argc, argv, ...) dt_job_main_opt(argc, argv, &(dt_options){__VA_ARGS__})
DT_API int dt_job_main_opt(int argc, char **argv, const dt_options *o);

// dt_job_command - what comes before a job's flags are parsed; dt_job_main calls it, and programs that parse themselves.
// submit, status, cancel and list as the first argument: 1 if that was all, with the exit status. Else 0, and a command line
// without the word (of submit: in the child), with the fields of --config FILE as flags in front of the others, and --fresh,
// --histograms and --plan without a value as --fresh=1. It lives until the next call.
DT_API int dt_job_command(int *argc, char ***argv, int *status);

// dt_job_id_valid - as the platform has it: letters, digits and underscore, a letter first, at most 128.
DT_API int dt_job_id_valid(const char *id);

// ---- what a job knows

typedef struct {
    dt_options o;           // the program's, with its on_event and .profile
    dt_job flags;
    int argc;
    char **argv;
    long every, keep, seconds, trace_steps;
    char id[129], error[240];
    char task[32];          // chief, worker 1, ps 0, evaluator
    const char *strategy;   // once the model is there, with
    int replicas, processes;
    int lock;               // the file that keeps a second run out
    int evaluates;          // this process is the evaluator
    dt_event last;          // the last event that was told
    double started, saved, told;
    long resumed, newest;   // steps: where it went on, the last one saved; -1: none
    long skipped;           // saves left out because one was running
    double best;            // by the metric of --best, smaller is better
    dt_events *events;
    int want_gradients;     // of the next step
    dt_trace *trace;
    long trace_end;
    int no_result;          // it could not be written
    dt_status *page;
    FILE *log;
    // what is being written: a copy of the model with values of its own
    dt_model copy;
    dt__replica replica;
    float *values;
    int writing;            // 1: by the thread; 2: it has finished
    int copy_is_best;
    double copy_best;       // what it was judged by
    char path[1024];
    dt_error failed;
#ifndef DTRAIN_NO_THREADS
    pthread_t thread;
#endif
} dt__job;
static dt__job dt__the_job;

DT_API int dt_job_id_valid(const char *id) {
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n > 0 && n <= 128 && !id[n] && !(*id >= '0' && *id <= '9') && *id != '_';
}

static int dt__job_is_on(const char *flag) { return flag && !strcmp(flag, "1"); }

// ---- files of the directory

// The directory, a folder or file in it, or a checkpoint: 0 if the path is too long.
static int dt__job_path(const char *inside, long step, char path[1024]) {
    size_t n = dt__format(path, 1024, "%s%s%s", dt__the_job.flags.dir, *inside ? "/" : "", inside);
    if (step >= 0 && n < 960) n += dt__format(path + n, 1024 - n, "/step-%ld.safetensors", step);
    return n < 960;
}

// folder/<task><end>, the task's blanks as dashes.
static void dt__job_task_path(const char *folder, const char *end, char path[1024]) {
    char name[100];
    size_t n = dt__format(name, sizeof name, "%s/", folder);
    dt__format(name + n, sizeof name - n, "%s%s", dt__the_job.task, end);
    for (char *c = name; *c; c++) if (*c == ' ') *c = '-';
    dt__job_path(name, -1, path);
}

static int dt__job_put_at(const char *path, const char *text, dt_error *err) {
    dt__new_file file;
    if (dt__new_file_open(&file, "--job-dir", path, err)) return DT_ERR_IO;
    if (fputs(text, file.f) < 0) return dt__new_file_fail(&file, err, "cannot write");
    return dt__new_file_close(&file, err);
}

// Replace a file of the directory whole.
static int dt__job_put(const char *name, const char *text, dt_error *err) {
    char path[1024];
    dt__job_path(name, -1, path);
    return dt__job_put_at(path, text, err);
}

static void dt__job_time(double when, char text[32]) {
    time_t t = (time_t)when;
    struct tm utc;
    if (!gmtime_r(&t, &utc) || !strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &utc)) *text = 0;
}

static void dt__job_put_string(dt__writer *w, const char *name, const char *text) {
    dt__print(w, ", \"%s\": \"", name);
    dt__put_json(w, text);
    dt__put(w, '"');
}

static void dt__job_put_time(dt__writer *w, const char *name, double when) {
    char text[32];
    dt__job_time(when, text);
    dt__job_put_string(w, name, text);
}

// The member of a JSON object: a string's text, or else the value as it stands there; "-" if there is none or it is null.
static int dt__job_member(const char *text, const char *name, char *out, size_t size) {
    dt__json j = {text, text ? text + strlen(text) : NULL, NULL};
    char key[64];
    size_t n;
    dt__format(out, size, "-");
    if (!text || !dt__json_want(&j, '{', "")) return 0;
    while (dt__json_more(&j, '}') && dt__json_key(&j, key, sizeof key, &n)) {
        const char *from;
        int found = dt__equals(name, strlen(name), (key[DT__MIN(n, sizeof key - 1)] = 0, key));
        if (!found) { dt__json_skip(&j); continue; }
        if (dt__json_peek(&j) == '"') {
            if (!dt__json_string(&j, out, size - 1, &n)) break;
            out[DT__MIN(n, size - 1)] = 0;
            return 1;
        }
        from = j.p;
        if (!dt__json_skip(&j) || !strncmp(from, "null", 4)) break;
        dt__format(out, size, "%.*s", (int)(j.p - from), from);
        return 1;
    }
    return 0;
}

// A file of a job's directory as text, for the caller to free; NULL if it is not there.
static char *dt__job_text(const char *dir, const char *name) {
    char path[1024], *text = NULL;
    FILE *f = dt__format(path, sizeof path, "%s/%s", dir, name) < sizeof path ? fopen(path, "r") : NULL;
    if (f && (text = (char *)calloc(1, 65536)) != NULL && fread(text, 1, 65535, f) == 0) { free(text); text = NULL; }
    if (f) fclose(f);
    return text;
}

static void dt__job_of(const char *dir, const char *file, const char *name, char *out, size_t size) {
    char *text = dt__job_text(dir, file);
    dt__job_member(text, name, out, size);
    free(text);
}

// ---- log, status and tasks

// A line in the task's log.
static void dt__job_log(const char *text) {
    dt__job *j = &dt__the_job;
    char path[1024], when[32];
    if (!j->log) {
        dt__job_task_path("logs", ".log", path);
        j->log = fopen(path, "a");
    }
    dt__job_time((double)time(NULL), when);
    if (j->log) { fprintf(j->log, "%s %s\n", when, text); fflush(j->log); }
}

// Something went wrong that training survives.
static void dt__job_warn(const char *text, const char *then) {
    char line[1400];
    dt__format(line, sizeof line, "%s%s%s", text, *then ? ": " : "", then);
    fprintf(stderr, "%s\n", line);
    dt__job_log(line);
}

static double dt__job_cpu_seconds(void) {
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u)) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void dt__job_put_process(dt__writer *w) {
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    dt__print(w, ", \"pid\": %ld", (long)getpid());
    dt__job_put_string(w, "host", host);
}

// What the table of tasks shows of this process.
static void dt__job_put_task(const char *state, double step, double speed) {
    char text[1024], path[1024];
    dt__writer w = dt__writer_on(text, sizeof text);
    dt_error err = DT_DEFAULTS;
    dt__print(&w, "{\"task\": \"%s\", \"state\": \"%s\"", dt__the_job.task, state);
    dt__job_put_process(&w);
    dt__print(&w, ", \"step\": %.0f, \"samples_per_s\": ", step);
    dt__put_json_number(&w, speed);
    dt__print(&w, ", \"cpu_seconds\": %.2f, \"memory_mb\": %.1f", dt__job_cpu_seconds(), dt__peak_rss() / 1e6);
    dt__job_put_time(&w, "updated", (double)time(NULL));
    dt__puts(&w, "}\n");
    dt__job_task_path("tasks", ".json", path);
    dt__job_put_at(path, text, &err);
}

// e: NULL: the last one, if there was any.
static void dt__job_status(const char *state, const dt_event *e) {
    dt__job *j = &dt__the_job;
    if (e) j->last = *e;
    if (j->last.steps) e = &j->last;
    char text[4096];
    dt__writer w = dt__writer_on(text, sizeof text);
    dt_error err = DT_DEFAULTS;
    dt__print(&w, "{\"state\": \"%s\"", state);
    dt__job_put_string(&w, "id", j->id);
    dt__job_put_process(&w);
    dt__job_put_time(&w, "started", j->started);
    dt__job_put_time(&w, "updated", (double)time(NULL));
    if (j->strategy) dt__print(&w, ", \"strategy\": \"%s\", \"processes\": %d, \"replicas\": %d", j->strategy, j->processes, j->replicas);
    if (e) {
        const struct { const char *name; double value; } measure[] = {{"loss", e->loss}, {"accuracy", e->accuracy}, {"eval_loss", e->eval_loss},
            {"eval_accuracy", e->eval_accuracy}, {"learning_rate", e->learning_rate}, {"samples_per_s", e->samples_per_s}, {"seconds", e->seconds}};
        dt__print(&w, ", \"step\": %ld, \"steps\": %ld, \"epoch\": %d, \"epochs\": %d", e->step, e->steps, e->epoch, e->epochs);
        for (int i = 0; i < DT__COUNT(measure); i++) {
            dt__print(&w, ", \"%s\": ", measure[i].name);
            dt__put_json_number(&w, measure[i].value);
        }
    }
    dt__print(&w, ", \"cpu_seconds\": %.2f, \"memory_mb\": %.1f, \"checkpoint\": %ld, \"saves_skipped\": %ld, \"generation\": %ld", dt__job_cpu_seconds(), dt__peak_rss() / 1e6,
        j->newest, j->skipped, dt_checkpoint_last().generation);
    if (*j->error) dt__job_put_string(&w, "error", j->error);
    dt__puts(&w, "}\n");
    if (dt__job_put("status.json", text, &err)) fprintf(stderr, "%s\n", err.text);
    if (j->page) dt_status_put(j->page, text);
    if (*j->task) dt__job_put_task(state, e ? (double)e->step : 0, e ? e->samples_per_s : 0);
    j->told = dt__now();
}

// Its settings: every flag whose value is not the standard's.
static void dt__job_put_settings(dt__writer *w, const dt_options *o) {
    int n = 0;
    dt__puts(w, ", \"settings\": {");
    for (int i = 0; i < DT__COUNT(dt__flags); i++) {
        const dt__flag f = dt__flag_at(i);
        char value[300];
        const char *text = f.type == DT__TITLE ? NULL : dt__flag_value(o, &f, value, sizeof value);
        if (!text || text == f.standard) continue;
        dt__print(w, "%s\"%s\": \"", n++ ? ", " : "", f.name);
        dt__put_json(w, text);
        dt__put(w, '"');
    }
    dt__put(w, '}');
}

static int dt__job_describe(dt_error *err) {
    const dt__job *j = &dt__the_job;
    const size_t size = 32768;
    char *text = (char *)malloc(size);
    dt__writer w = dt__writer_on(text, text ? size : 0);
    int code;
    if (!text) return dt__fail(err, DT_ERR_MEMORY, "no memory for job.json");
    dt__print(&w, "{\"id\": \"%s\", \"dtrain\": \"%s\", \"cpu\": \"%s\"", j->id, dt_version(), dt__cpu()->name);
    if (j->strategy) dt__print(&w, ", \"strategy\": \"%s\", \"processes\": %d, \"replicas\": %d", j->strategy, j->processes, j->replicas);
    dt__job_put_time(&w, "started", j->started);
    dt__job_put_settings(&w, &j->o);
    dt__puts(&w, ", \"command\": [");
    for (int i = 0; i < j->argc && w.n < size - 2000; i++) {
        char word[512];
        dt__format(word, 500, "%s", j->argv[i]);
        dt__puts(&w, i ? ", \"" : "\"");
        dt__put_json(&w, word);
        dt__put(&w, '"');
    }
    dt__puts(&w, "]}\n");
    code = dt__job_put("job.json", text, err);
    free(text);
    return code;
}

// ---- curves: metrics.csv and TensorBoard's events

static const char dt__job_columns[] = "step,epoch,loss,accuracy,eval_loss,eval_accuracy,learning_rate,samples_per_s,seconds\n";

// Rows of steps that a resumed run will make again go.
static void dt__job_trim_metrics(long step) {
    char path[1024], line[512];
    dt__new_file file;
    dt_error err = DT_DEFAULTS;
    dt__job_path("metrics.csv", -1, path);
    FILE *old = fopen(path, "r");
    if (dt__new_file_open(&file, "--job-dir", path, &err)) dt__job_warn(err.text, "");
    else {
        fputs(dt__job_columns, file.f);
        while (old && fgets(line, sizeof line, old))
            if (*line >= '0' && *line <= '9' && strchr(line, '\n') && strtol(line, NULL, 10) <= step) fputs(line, file.f);
        if (dt__new_file_close(&file, &err)) dt__job_warn(err.text, "");
    }
    if (old) fclose(old);
}

static void dt__job_row(const char *name, const char *head, long step, int epoch, const double *value, int n, double seconds) {
    char path[1024], line[512];
    dt__writer w = dt__writer_on(line, sizeof line);
    dt__job_path(name, -1, path);
    FILE *f = fopen(path, "a");
    if (f && *head && ftell(f) == 0) fputs(head, f);
    dt__print(&w, "%ld,%d", step, epoch);
    for (int i = 0; i < n; i++) { dt__put(&w, ','); if (value[i] == value[i]) dt__print(&w, "%.9g", value[i]); }
    dt__print(&w, ",%.3f\n", seconds);
    if (f) fputs(line, f);
    if (!f || fclose(f)) {
        char what[1200];
        dt__format(what, sizeof what, "\"%s\" cannot be written", path);
        dt__job_warn(what, strerror(errno));
    }
}

// An event that could not be written is told once; training goes on without events.
static void dt__job_events_failed(const dt_error *err) {
    dt__job *j = &dt__the_job;
    dt__job_warn(err->text, "training goes on without events for TensorBoard");
    dt_events_close(j->events);
    j->events = NULL;
}

static void dt__job_open_events(const char *folder, long resumed) {
    dt__job *j = &dt__the_job;
    char path[1024];
    dt_error err = DT_DEFAULTS;
    dt__job_path(folder, -1, path);
    j->events = dt_events_open(path, resumed, &err);
    if (!j->events) dt__job_events_failed(&err);
}

// The command and the settings, as TensorBoard's Text and HParams show them.
static void dt__job_tell_settings(void) {
    dt__job *j = &dt__the_job;
    const char *name[64], *value[64];
    char names[64][24], values[64][300];
    dt_error err = DT_DEFAULTS;
    char *text = dt__job_text(j->flags.dir, "job.json");
    int n = 0;
    for (int i = 0; i < DT__COUNT(dt__flags) && n < 64; i++) {
        const dt__flag f = dt__flag_at(i);
        const char *v = f.type == DT__TITLE ? NULL : dt__flag_value(&j->o, &f, values[n], sizeof values[n]);
        if (!v || v == f.standard) continue;
        dt__format(names[n], sizeof names[n], "%s", f.name);
        name[n] = names[n];
        value[n++] = v;
    }
    if (text && dt_events_text(j->events, 0, "job", text, &err)) dt__job_events_failed(&err);
    if (j->events && j->resumed < 0 && dt_events_hparams(j->events, j->id, n, name, value, 0, NULL, &err)) dt__job_events_failed(&err);
    free(text);
}

static void dt__job_histogram(const dt_model *m, const char *kind, const float *values, long step) {
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    for (int i = 0; i < m->graph.n_variables && j->events; i++) {
        const dt__var *v = m->graph.variable[i];
        char tag[DT_MAX_NAME + 64];
        if (!dt__trains(v)) continue;
        dt__format(tag, sizeof tag, "%s/%s", kind, v->name);
        if (dt_events_histogram(j->events, step, tag, values + v->offset, (size_t)v->size, &err)) dt__job_events_failed(&err);
    }
}

// In the middle of a step: the reduced gradients, which scale makes the mean's. Of the first step after an epoch.
static void dt__job_watch(dt_model *m, double scale) {
    dt__job *j = &dt__the_job;
    size_t n = (size_t)m->graph.n_trainable;
    float *mean = j->want_gradients && j->events ? (float *)malloc(DT__MAX(n, 1) * sizeof *mean) : NULL;
    if (!mean) return;
    j->want_gradients = 0;
    for (size_t i = 0; i < n; i++) mean[i] = (float)(m->replica[0].gradients[i] * scale);
    dt__job_histogram(m, "gradients", mean, m->step + 1);
    free(mean);
}

static void dt__job_curves(const dt_event *e) {
    static const char *const tag[] = {"loss/train", "accuracy/train", "loss/eval", "accuracy/eval", "learning_rate", "samples_per_s", "cpu_seconds", "memory_mb"};
    const double value[] = {e->loss, e->accuracy, e->eval_loss, e->eval_accuracy, e->learning_rate, e->samples_per_s, dt__job_cpu_seconds(), dt__peak_rss() / 1e6};
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    if (j->events && dt_events_scalars(j->events, e->step, DT__COUNT(tag), tag, value, &err)) dt__job_events_failed(&err);
    if (dt__job_is_on(j->flags.histograms)) {
        dt__job_histogram(e->model, "weights", e->model->replica[0].variables, e->step);
        j->want_gradients = 1;
    }
    dt__job_row("metrics.csv", "", e->step, e->epoch, value, 6, e->seconds);
}

// ---- checkpoints

// The last step below `below` of which there is one, or -1; first: the first step above it instead.
static long dt__job_checkpoint(long bound, int first) {
    char path[1024];
    struct dirent *e;
    long best = -1;
    DIR *d = dt__job_path("checkpoints", -1, path) ? opendir(path) : NULL;
    while (d && (e = readdir(d)) != NULL) {
        char *end = strstr(e->d_name, ".safetensors");
        int ok = 0;
        long step;
        if (!end || strcmp(end, ".safetensors") || strncmp(e->d_name, "step-", 5)) continue;
        *end = 0;
        step = (long)dt__whole(e->d_name + 5, LONG_MAX, &ok);
        if (ok && (first ? step > bound && (best < 0 || step < best) : step < bound && step > best)) best = step;
    }
    if (d) closedir(d);
    return best;
}

// What a killed process left half written, in a folder.
static void dt__job_sweep(const char *folder, const char *begins) {
    char path[1024], part[1400];
    struct dirent *e;
    DIR *d = dt__job_path(folder, -1, path) ? opendir(path) : NULL;
    while (d && (e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, begins, strlen(begins)) || n < 5 || strcmp(e->d_name + n - 4, ".tmp")) continue;
        dt__format(part, sizeof part, "%s/%s", path, e->d_name);
        remove(part);
    }
    if (d) closedir(d);
}

static void dt__job_prune(long keep) {
    char path[1024];
    for (long step = LONG_MAX; (step = dt__job_checkpoint(step, 0)) >= 0;)
        if (keep-- <= 0 && dt__job_path("checkpoints", step, path)) remove(path);
}

// Where it goes on, and why the bits may not be those of one run.
static void dt__job_tell_resumed(const dt_model *m, long step) {
    dt__job *j = &dt__the_job;
    const dt_checkpoint_info c = dt_checkpoint_last();
    char line[1600];
    dt__format(line, sizeof line, "goes on from step %ld of %s", step, j->flags.dir);
    dt__job_log(line);
    if (j->o.progress != DT_OFF) printf("%s\n", line);
    if (c.other_replicas) {
        dt__format(line, sizeof line, "it was saved by %d replicas in %d process%s, here are %d in %d: every sample once, as before, but the bits may differ from one run's",
            c.replicas, c.processes, c.processes == 1 ? "" : "es", m->world, m->processes);
        dt__job_log(line);
        if (j->o.progress != DT_OFF) printf("%s\n", line);
    }
    if (c.other_config) dt__job_warn("the optimizer's settings, or what is done to the samples, differ from those it was saved with", "it goes on with the new ones");
    fflush(stdout);
}

// Go back to the newest good one. One of another run is an error: to go on without it would lose it.
static int dt__job_resume(dt_model *m, dt_error *err) {
    dt__job *j = &dt__the_job;
    char path[1024];
    for (long step = LONG_MAX; (step = dt__job_checkpoint(step, 0)) >= 0;) {
        err->code = 0;
        dt__job_path("checkpoints", step, path);
        if (!dt_checkpoint_load(m, path, err)) {
            j->resumed = j->newest = step;
            dt__job_tell_resumed(m, step);
            return 0;
        }
        if (err->code != DT_ERR_FORMAT && err->code != DT_ERR_IO) break;
        dt__job_warn(err->text, "going back to the checkpoint before");
    }
    if (!err->code) return 0;
    dt__job_warn(err->text, "give another --job-dir, or --fresh");
    return err->code;
}

// The thread's: a checkpoint of the copy; of the best so far the weights alone, too, and best.json says what it was judged by.
static void *dt__job_write(void *user) {
    dt__job *j = (dt__job *)user;
    char path[1024], text[100];
    if (!dt_checkpoint_save(&j->copy, j->path, &j->failed)) dt__job_prune(j->keep);
    if (j->copy_is_best) {
        dt__writer w = dt__writer_on(text, sizeof text);
        dt__print(&w, "{\"value\": %.17g, \"step\": %ld}\n", j->copy_best, j->copy.step);
        dt__job_path("checkpoints/best.safetensors", -1, path);
        if (!dt_save(&j->copy, path, &j->failed)) dt__job_put("checkpoints/best.json", text, &j->failed);
    }
    DT__STORE(&j->writing, 2);
    return NULL;
}

static void dt__job_wait(void) {
    dt__job *j = &dt__the_job;
    if (!DT__LOAD(&j->writing)) return;
#ifndef DTRAIN_NO_THREADS
    pthread_join(j->thread, NULL);
#endif
    if (j->failed.code) {
        dt__job_warn(j->failed.text, "training goes on without this checkpoint");
        dt__format(j->error, sizeof j->error, "%s", j->failed.text);
        j->newest = -1;  // the next one is tried even at this step
    }
    j->writing = j->failed.code = 0;
}

// Copy what there is to save; the thread writes it. A save that still runs leaves this one out, but not the last or the best.
static void dt__job_save(dt_model *m, int last, int best) {
    dt__job *j = &dt__the_job;
    const dt__graph *g = &m->graph;
    dt_error err = DT_DEFAULTS;
    if (DT__LOAD(&j->writing) == 1 && !last && !best) { j->skipped++; return; }
    dt__job_wait();
    if (!j->values) j->values = (float *)malloc(((size_t)g->n_floats + 2 * (size_t)g->n_trainable) * sizeof(float));
    if (!j->values) { dt__job_warn("no memory for a checkpoint", "training goes on without"); return; }
    if (m->servers && m->served && dt__exchange_slots(m, DT__FETCH, &err)) { dt__job_warn(err.text, "training goes on without this checkpoint"); return; }
    memset(&j->copy, 0, sizeof j->copy);  // what saving reads; of the rest the replicas' threads wait at some
    j->copy.o = m->o;
    j->copy.graph = m->graph;
    j->copy.optimizer = m->optimizer;
    j->copy.batch = m->batch;
    j->copy.step = m->step;
    j->copy.world = m->world;
    j->copy.processes = m->processes;
    j->copy.columns = m->columns;
    memcpy(j->copy.progress, m->progress, sizeof m->progress);
    j->copy.replica = &j->replica;
    j->replica.variables = j->values;
    memcpy(j->values, m->replica[0].variables, (size_t)g->n_floats * sizeof(float));
    for (int i = 0; i < 2; i++) if (m->slot[i]) {
        j->copy.slot[i] = j->values + g->n_floats + i * g->n_trainable;
        memcpy(j->copy.slot[i], m->slot[i], (size_t)g->n_trainable * sizeof(float));
    }
    dt__job_path("checkpoints", m->step, j->path);
    j->newest = m->step;
    j->copy_is_best = best;
    j->copy_best = j->best;
    j->saved = dt__now();
    j->writing = 1;
#ifndef DTRAIN_NO_THREADS
    if (!pthread_create(&j->thread, NULL, dt__job_write, j)) {
        if (last) dt__job_wait();
        return;
    }
#endif
    dt__job_write(j);
    j->writing = 0;
}

// ---- the run's events

// The value of --best, smaller is better.
static double dt__job_judge(const dt_event *e) {
    const char *by = dt__the_job.flags.best;
    if (!by || !*by) by = e->eval_loss == e->eval_loss ? "eval_loss" : "loss";
    return !strcmp(by, "loss") ? e->loss : !strcmp(by, "eval_loss") ? e->eval_loss : !strcmp(by, "accuracy") ? -e->accuracy : -e->eval_accuracy;
}

static void dt__job_open_page(int offset) {
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    if (!j->flags.port || !*j->flags.port) return;
    j->page = dt_status_open(j->flags.port, offset, offset ? NULL : j->flags.dir, &err);
    if (!j->page) dt__job_warn(err.text, "training goes on without");
    else if (j->o.progress != DT_OFF) { printf("status: %s\n", dt_status_url(j->page)); fflush(stdout); }
}

// Of a run with more processes: what this one writes for itself. The others' files go, and come again within a second.
static void dt__job_sweep_tasks(void) {
    char path[1024], part[1400];
    struct dirent *e;
    DIR *d = dt__job_path("tasks", -1, path) ? opendir(path) : NULL;
    while (d && (e = readdir(d)) != NULL) {
        if (strncmp(e->d_name, "worker-", 7) && strncmp(e->d_name, "ps-", 3) && strncmp(e->d_name, "chief.", 6)) continue;
        dt__format(part, sizeof part, "%s/%s", path, e->d_name);
        if (strstr(e->d_name, ".json")) remove(part);
    }
    if (d) closedir(d);
}

static int dt__job_begin_chief(dt_model *m) {
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    char best[64], path[1024];
    j->resumed = j->newest = -1;
    dt__job_sweep("checkpoints", "step-");
    dt__job_sweep("checkpoints", "best.");
    dt__job_sweep_tasks();
    if (dt__job_is_on(j->flags.fresh)) {
        dt__job_prune(0);
        for (int i = 0; i < 4; i++) {
            static const char *const made[] = {"checkpoints/best.safetensors", "checkpoints/best.json", "evaluator.csv", "metrics.csv"};
            if (dt__job_path(made[i], -1, path)) remove(path);
        }
    }
    if (dt__job_resume(m, &err)) { dt__format(j->error, sizeof j->error, "%s", err.text); return 1; }
    j->best = DBL_MAX;
    dt__job_of(j->flags.dir, "checkpoints/best.json", "value", best, sizeof best);
    if (j->resumed >= 0 && strcmp(best, "-")) {
        const char *end;
        j->best = dt__parse_double(best, best + strlen(best), &end);
    }
    if (j->resumed < 0 && dt__job_describe(&err)) dt__job_warn(err.text, "");  // now with its strategy
    dt__job_trim_metrics(j->resumed);
    dt__job_open_events("events", j->resumed);
    if (j->events) dt__job_tell_settings();
    if (j->events && dt__job_is_on(j->flags.histograms)) { m->watch = dt__job_watch; j->want_gradients = 1; }
    dt__job_open_page(0);
    dt__job_status("RUNNING", NULL);
    return 0;
}

static int dt__job_begin(dt_model *m) {
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    char line[200];
    m->o.profile = j->o.profile;  // a trace needs the clocks alone
    dt__format(j->task, sizeof j->task, m->process ? "worker %d" : "chief", m->process);
    j->saved = dt__now();
    j->strategy = dt__strategy_name[m->strategy];
    j->replicas = m->n_replicas;
    j->processes = m->processes;
    dt__format(line, sizeof line, "begins: process %ld, %d replicas, rank %d of %d, strategy %s", (long)getpid(), m->n_replicas, m->process, m->processes, dt__strategy_name[m->strategy]);
    dt__job_log(line);
    if (!m->process && dt__job_begin_chief(m)) return 1;
    if (m->process) dt__job_put_task("RUNNING", (double)m->step, 0);
    if (j->trace_steps > 0 && !(j->trace = dt_trace_open(m, (size_t)DT__MIN(j->trace_steps, 10000) * 400, &err))) dt__job_warn(err.text, "training goes on without");
    return 0;
}

static void dt__job_write_trace(void) {
    dt__job *j = &dt__the_job;
    char path[1024], line[1100];
    dt_error err = DT_DEFAULTS;
    if (!j->trace) return;
    dt__job_path("trace", -1, path);
    mkdir(path, 0777);
    dt__job_task_path("trace", ".json", path);
    if (dt_trace_close(j->trace, path, &err)) dt__job_warn(err.text, "");
    else {
        dt__format(line, sizeof line, "wrote \"%s\"", path);
        dt__job_log(line);
    }
    j->trace = NULL;
}

// A finished job's net, also in the formats whose headers are there.
static void dt__job_export(dt_model *m) {
    char path[1024];
    dt_error err = DT_DEFAULTS;
    dt__job_path("export/model.safetensors", -1, path);
#ifdef DTRAIN_EXPORT_ONNX_H
    {
        char onnx[1024];
        dt_error none = DT_DEFAULTS;
        dt__job_path("export/model.onnx", -1, onnx);
        if (dt_export_onnx(m, onnx, &none)) dt__job_warn(none.text, "there is no export/model.onnx");
    }
#endif
#ifdef DTRAIN_EXPORT_C_H
    {
        char c[1024];
        dt_error none = DT_DEFAULTS;
        dt__job_path("export/model.c", -1, c);
        if (dt_export_c(m, c, NULL, &none)) dt__job_warn(none.text, "there is no export/model.c");
    }
#endif
    if (dt_save(m, path, &err)) {  // the last: a job with this file has finished
        dt__job_warn(err.text, "the job has no result: the same command goes on from its last checkpoint");
        dt__format(dt__the_job.error, sizeof dt__the_job.error, "%s", err.text);
        dt__the_job.no_result = 1;
    } else if (dt__the_job.o.progress != DT_OFF) printf("the job has finished: \"%s\" is its result\n", path);
}

static void dt__job_end_chief(const dt_event *e) {
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    int whole = e->model->stopped < DT__BY_SIGNAL;
    if (e->step > 0 && j->newest != dt_model_step(e->model)) dt__job_save(e->model, 1, 0);
    dt__job_wait();
    if (whole) dt__job_export(e->model);
    if (j->events && whole) dt_events_hparams_end(j->events, 1, &err);
    dt_events_close(j->events);
    j->events = NULL;
    free(j->values);
    j->values = NULL;
    dt__job_status("RUNNING", e);
}

static void dt__job_epoch(const dt_event *e) {
    char line[240];
    int over, best;
    dt__writer w = dt__writer_on(line, sizeof line);
    dt__print(&w, "epoch %d/%d  step %ld", e->epoch, e->epochs, e->step);
    dt__put_measure(&w, "loss", e->loss);
    dt__put_measure(&w, "accuracy", e->accuracy);
    dt__put_measure(&w, "test loss", e->eval_loss);
    dt__put_measure(&w, "test accuracy", e->eval_accuracy);
    dt__print(&w, "  %.0f samples/s", e->samples_per_s);
    dt__job_log(line);
    if (dt_model_report(e->model).process) return;
    over = e->model->stopped < DT__BY_SIGNAL;  // else it goes on later
    best = over && dt__job_judge(e) < dt__the_job.best;
    if (best) dt__the_job.best = dt__job_judge(e);
    if (over) dt__job_curves(e);
    dt__job_save(e->model, 0, best);
    dt__job_status("RUNNING", e);
}

// Flags that mean nothing here are told, not refused: the same command may go to one process and to many.
static void dt__job_idle_flags(const dt_report *r, int together) {
    const dt__job *j = &dt__the_job;
    if (r->strategy != DT_PARAMETER_SERVER && (j->o.sync || j->o.staleness || j->o.full_rate || j->o.backup))
        fprintf(stderr, "--sync, --staleness, --full-rate and --backup do nothing: there are no parameter servers (--ps 1 starts one)\n");
    if (r->processes == 1 && j->o.wire) fprintf(stderr, "--wire does nothing: there is one process\n");
    if (!together && (j->every || j->seconds))
        fprintf(stderr, "--checkpoint-every and --checkpoint-seconds: workers at their own pace are saved after epochs only (--sync: within them, too)\n");
}

static int dt__job_on_event(const dt_event *e, void *user) {
    dt__job *j = &dt__the_job;
    dt_report r = dt_model_report(e->model);
    int stop = 0, chief = !r.process, due;
    int together = r.strategy != DT_PARAMETER_SERVER || (j->o.sync && !j->o.backup);  // or else others are in the middle of batches
    if (e->kind == DT_EVENT_BEGIN && dt__job_begin(e->model)) return 1;
    if (e->kind == DT_EVENT_BEGIN && chief) dt__job_idle_flags(&r, together);
    if (j->o.on_event) stop = j->o.on_event(e, user);
    if (e->kind == DT_EVENT_EPOCH) dt__job_epoch(e);
    if (e->kind == DT_EVENT_END || (j->trace && e->kind == DT_EVENT_STEP && --j->trace_steps <= 0)) dt__job_write_trace();
    if (e->kind == DT_EVENT_END && chief) dt__job_end_chief(e);
    if (e->kind == DT_EVENT_END) dt__job_log("ends");
    if (e->kind == DT_EVENT_END && !chief) dt__job_put_task("ENDED", (double)e->step, e->samples_per_s);
    if (e->kind != DT_EVENT_STEP) return stop;
    due = chief && together && !e->ends_epoch && !stop;
    if (due && ((j->every && e->step % j->every == 0) || (j->seconds && dt__now() - j->saved >= (double)j->seconds))) dt__job_save(e->model, 0, 0);
    if (dt__now() - j->told < 1) return stop;
    if (chief) dt__job_status("RUNNING", e);
    else { dt__job_put_task("RUNNING", (double)e->step, e->samples_per_s); j->told = dt__now(); }
    return stop;
}

// ---- a parameter server's part

#ifndef DTRAIN_NO_SOCKETS
static void dt__job_on_server(dt_server *s) {
    dt__job *j = &dt__the_job;
    char text[600];
    dt__writer w = dt__writer_on(text, sizeof text);
    int number = s->net->comm.rank - s->workers;
    if (!*j->task) {
        dt__format(j->task, sizeof j->task, "ps %d", number);
        dt__job_log("begins");
        dt__job_open_page(1 + number);
    } else if (dt__now() - j->told < 1) return;
    dt__print(&w, "{\"state\": \"RUNNING\", \"id\": \"%s\", \"task\": \"ps %d\", \"pid\": %ld, \"step\": %ju, \"values\": %td, \"staleness\": %.3f, \"cpu_seconds\": %.2f, \"memory_mb\": %.1f",
        j->id, number, (long)getpid(), (uintmax_t)s->version, s->trained, s->version ? s->sum_staleness / (double)s->version : 0, dt__job_cpu_seconds(), dt__peak_rss() / 1e6);
    dt__job_put_time(&w, "updated", (double)time(NULL));
    dt__puts(&w, "}\n");
    if (j->page) dt_status_put(j->page, text);
    dt__job_put_task("RUNNING", (double)s->version, (double)NAN);
    j->told = dt__now();
}
#endif

// ---- the evaluator: no rank, in touch with nobody; it looks into the job's directory

// Is this process one, by DTRAIN_ROLE, TF_CONFIG or CLUSTER_SPEC?
static int dt__job_evaluates(void) {
#ifndef DTRAIN_NO_SOCKETS
    static const char *const names[] = {"TF_CONFIG", "CLUSTER_SPEC"};
    const char *role = dt__env("DTRAIN_ROLE");
    if (role && !strcmp(role, "evaluator")) return 1;
    for (int i = 0; i < 2 && !role; i++) {
        const char *text = dt__env(names[i]);
        dt__json j = {text, text ? text + strlen(text) : NULL, NULL};
        dt__spec s;
        memset(&s, 0, sizeof s);
        if (!text) continue;
        dt__spec_read(&j, 0, &s);
        return s.task && s.role == DT__EVALUATOR;
    }
#endif
    return 0;
}

// The last step that evaluator.csv has, or -1.
static long dt__job_evaluated(void) {
    char path[1024], line[256];
    long step = -1;
    FILE *f = dt__job_path("evaluator.csv", -1, path) ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof line, f)) if (*line >= '0' && *line <= '9' && strchr(line, '\n')) step = strtol(line, NULL, 10);
    if (f) fclose(f);
    return step;
}

static int dt__job_evaluate_one(dt_model *m, long step, dt_error *err) {
    static const char *const tag[] = {"loss/eval", "accuracy/eval"};
    dt__job *j = &dt__the_job;
    char path[1024], line[200];
    dt_metrics metrics = DT_DEFAULTS;
    double start = dt__now(), value[2];
    dt__writer w = dt__writer_on(line, sizeof line);
    dt__job_path("checkpoints", step, path);
    if (dt_load(m, path, NULL, err) || dt_evaluate(m, &j->o.test, &metrics, err)) return err->code;
    value[0] = metrics.loss;
    value[1] = metrics.accuracy;
    dt__job_row("evaluator.csv", "step,samples,eval_loss,eval_accuracy,seconds\n", step, (int)DT__MIN(metrics.n, INT_MAX), value, 2, dt__now() - start);
    if (j->events && dt_events_scalars(j->events, step, 2, tag, value, err)) dt__job_events_failed(err);
    dt__print(&w, "step %ld", step);
    dt__put_measure(&w, "test loss", value[0]);
    dt__put_measure(&w, "test accuracy", value[1]);
    if (j->o.progress != DT_OFF) { printf("%s\n", line); fflush(stdout); }
    dt__job_log(line);
    dt__job_put_task("RUNNING", (double)step, (double)metrics.n / DT__MAX(dt__now() - start, 1e-9));
    return 0;
}

// The evaluator's whole life: each checkpoint once, the old ones first, until the job has ended. Its exit status.
static int dt__job_evaluate(void) {
    dt__job *j = &dt__the_job;
    static const int caught[2] = {SIGINT, SIGTERM};
    const struct timespec pause = {0, 200000000};
    const dt_source none = DT_DEFAULTS;
    dt_options o = j->o;
    dt_error err = DT_DEFAULTS;
    dt_model *m;
    long failed = -1;
    int waits = 0, status = 0;
    strcpy(j->task, "evaluator");
    if (!o.test.open) return fprintf(stderr, "the evaluator has nothing to evaluate on: set .test\n"), 64;
    o.inference = 1;
    o.on_event = NULL;
    o.workers = o.servers = o.tier = 0;
    o.strategy = DT_STRATEGY_DEFAULT;
    m = dt_model_create(&o, &err);
    o.train = none;
    if (!m) return fprintf(stderr, "%s\n", err.text), 1;
    dt__signal = 0;
    for (int i = 0; i < 2; i++) signal(caught[i], dt__on_signal);
    dt__job_open_events("events/evaluator", dt__job_evaluated());
    dt__job_log("begins");
    while (!DT__STOPPED) {
        char state[32];
        dt__job_of(j->flags.dir, "status.json", "state", state, sizeof state);  // before the look at the checkpoints
        long done = dt__job_evaluated(), step = dt__job_checkpoint(DT__MAX(done, failed), 1);
        err.code = 0;
        if (step >= 0) {
            char path[1024];
            dt__job_path("checkpoints", step, path);
            if (dt__job_evaluate_one(m, step, &err) && !access(path, F_OK)) { dt__job_warn(err.text, "it is left out"); failed = step; }  // else it was pruned meanwhile
            if (err.code == DT_ERR_SHAPE) { status = 1; break; }
            continue;
        }
        if (!strcmp(state, "SUCCEEDED") || !strcmp(state, "FAILED") || !strcmp(state, "CANCELLED")) break;
        if (!waits++ && j->o.progress != DT_OFF) { printf("waits for checkpoints in %s\n", j->flags.dir); fflush(stdout); }
        nanosleep(&pause, NULL);
    }
    if (DT__STOPPED) status = dt__signal == SIGINT ? 130 : 143;
    dt__job_put_task("ENDED", (double)dt__job_evaluated(), (double)NAN);
    dt__job_log("ends");
    dt_events_close(j->events);
    dt_model_free(m);
    return status;
}

// ---- --plan

static void dt__job_show_bytes(const char *name, double bytes, const char *more) { printf("%-12s %10.1f MB  %s\n", name, bytes / 1e6, more); }

// What the job would take. Activations and variables are those of a model made for one process's part.
static int dt__job_plan(const dt_options *options, long keep) {
    static const int tiers[4][2] = {{0, 0}, {0, 0}, {4, 3}, {19, 11}};
    dt_options o = *options;
    int processes = 1 + (o.tier ? tiers[o.tier & 3][0] : o.workers), servers = o.tier ? tiers[o.tier & 3][1] : o.servers, alone;
    dt_error err = DT_DEFAULTS;
    size_t block = 0, least = 0;
    uint64_t checkpoint = 0, weights = 0;
    char more[300];
    double gradients, trained, moved = 0;
    dt_model *m;
    dt_report r;
#ifndef DTRAIN_NO_SOCKETS
    dt__who w;
    if (processes == 1 && !dt__who_am_i(NULL, &w, &err) && w.size > 1) { servers = DT__MAX(servers, w.servers); processes = w.size - servers; }
#endif
    alone = servers && !o.sync;  // every worker has batches of its own
    if (processes > 1 && o.batch && !alone) o.batch = (o.batch - 1) / processes + 1;
    o.workers = o.servers = o.tier = 0;
    if (o.strategy > DT_CENTRAL) o.strategy = DT_STRATEGY_DEFAULT;
    m = dt_model_create(&o, &err);
    if (!m) return fprintf(stderr, "%s\n", err.text), 64;
    r = dt_model_report(m);
    dt_model_plan_bytes(m, &block, &least);
    dt__write_header(m, "seed 0 batch 32 optimizer 3 step 128", dt__count_bytes, &checkpoint);
    dt__write_values(m, 1, dt__count_bytes, &checkpoint);
    dt__write_safetensors(m, dt__count_bytes, &weights);
    gradients = 4.0 * (double)m->graph.n_gradients;
    trained = 4.0 * (double)m->graph.n_trainable;
    printf("strategy %s, %d process%s of %d replica%s", servers ? "ps" : processes > 1 ? "multiworker" : dt__strategy_name[r.strategy], processes, processes > 1 ? "es" : "", r.replicas, r.replicas > 1 ? "s" : "");
    if (servers) printf(", %d parameter server%s", servers, servers > 1 ? "s" : "");
    printf("\n");
    dt__format(more, sizeof more, "%zu of them, as float", r.parameters);
    dt__job_show_bytes("parameters", 4.0 * (double)r.parameters, more);
    dt__format(more, sizeof more, "of each process; %.1f MB of it activations and scratch of each replica", (double)block / 1e6);
    dt__job_show_bytes("memory", (double)r.arena_bytes, more);
    dt__job_show_bytes("", (double)checkpoint, "more in the chief while a checkpoint is written");
    if (servers) dt__job_show_bytes("", (trained * (1 + m->optimizer.n_slots + processes)) / servers, "of each parameter server");
    if (processes > 1) moved = 2 * gradients * (processes - 1) / processes;
    if (servers) moved = gradients;
    dt__format(more, sizeof more, "out of each process, and %.1f MB into it, in every step", (servers ? trained : moved) / 1e6);
    if (processes > 1 || servers) dt__job_show_bytes("network", moved, more);
    dt__format(more, sizeof more, "%ld are kept, and the best weights: %.1f MB on disk", keep, ((double)keep * (double)checkpoint + (double)weights) / 1e6);
    dt__job_show_bytes("checkpoint", (double)checkpoint, more);
    if (m->data[0]) {
        const long batch = options->batch ? options->batch : (long)m->batch * (alone ? 1 : processes), n = m->data[0]->info.n, each = (n - 1) / batch + 1;
        long steps = each * DT__MAX(options->epochs, 1);
        if (options->steps && (steps > options->steps || !options->epochs)) steps = options->steps;
        printf("%-12s %10ld     of %ld samples; %ld an epoch\n", "steps", steps, batch, each);
    }
    dt_model_free(m);
    return 0;
}

// ---- --config: the platform's description of a job becomes flags in front of the command line's own

enum { DT__JOB_WORDS = 512 };
typedef struct { int n, failed; char *word[DT__JOB_WORDS]; } dt__job_words;

static void dt__job_add(dt__job_words *w, const char *before, const char *text) {
    size_t n = strlen(before) + strlen(text) + 1;
    char *word = w->n < DT__JOB_WORDS ? (char *)malloc(n) : NULL;
    if (!word) { w->failed = 1; return; }
    dt__format(word, n, "%s%s", before, text);
    w->word[w->n++] = word;
}

// The fields of an object, of trainingInput too.
static void dt__job_config_fields(dt__json *j, dt__job_words *w, int inner) {
    static const struct { const char *field, *flag; } as_flag[] = {{"scaleTier", "--tier="}, {"workerCount", "--workers="}, {"parameterServerCount", "--ps="}, {"jobDir", "--job-dir="}, {"jobId", "--job-id="}};
    static const char unused[] = "region,masterType,workerType,parameterServerType,evaluatorType,evaluatorCount,masterConfig,workerConfig,parameterServerConfig,evaluatorConfig,packageUris,pythonModule,"
        "runtimeVersion,pythonVersion,scheduling,network,serviceAccount,labels,encryptionConfig,useChiefInTfConfig,enableWebAccess,createTime,state,etag";
    char key[64], text[1024];
    size_t n;
    if (!dt__json_want(j, '{', "'{' is expected")) return;
    while (dt__json_more(j, '}') && dt__json_key(j, key, sizeof key - 1, &n)) {
        int k = 0;
        key[DT__MIN(n, sizeof key - 1)] = 0;
        if (!inner && !strcmp(key, "trainingInput")) { dt__job_config_fields(j, w, 1); continue; }
        if (!strcmp(key, "args")) {
            if (!dt__json_want(j, '[', "a list of words is expected")) return;
            while (dt__json_more(j, ']') && dt__json_string(j, text, sizeof text - 1, &n)) {
                if (n > sizeof text - 1 || strlen((text[n] = 0, text)) != n) { dt__json_fail(j, "this word is too long"); return; }
                dt__job_add(w, "", text);
            }
            continue;
        }
        while (k < DT__COUNT(as_flag) && strcmp(key, as_flag[k].field)) k++;
        if (k < DT__COUNT(as_flag)) {
            const char *from = (dt__json_peek(j), j->p);
            if (dt__json_peek(j) == '"') { if (!dt__json_string(j, text, sizeof text - 1, &n)) return; text[DT__MIN(n, sizeof text - 1)] = 0; }
            else if (dt__json_skip(j)) dt__format(text, sizeof text, "%.*s", (int)DT__MIN(j->p - from, 1000), from);
            else return;
            dt__job_add(w, as_flag[k].flag, text);
        } else if (!strcmp(key, "hyperparameters")) { dt__json_fail(j, "tuning is not here: leave hyperparameters out"); return; }
        else if (dt__glob(unused, key)) { fprintf(stderr, "--config: \"%s\" is not used here\n", key); dt__json_skip(j); }
        else { dt__json_fail(j, "no field of the platform's trainingInput has this name"); return; }
    }
}

static int dt__job_config(const char *path, dt__job_words *w) {
    char *text = (char *)malloc(1 << 20);
    FILE *f = fopen(path, "r");
    size_t n = f && text ? fread(text, 1, 1 << 20, f) : 0;
    int ok = n > 0 && n < 1 << 20 && !ferror(f);
    if (!ok) fprintf(stderr, "--config: \"%.200s\" %s\n", path, f ? "is empty, or larger than a megabyte" : "cannot be read");
    if (ok) {
        dt__json j = {text, text + n, NULL};
        dt__job_config_fields(&j, w, 0);
        if (dt__json_peek(&j)) dt__json_fail(&j, "nothing is expected behind the end");
        if (j.error) {
            int line = 1;
            for (const char *p = text; p < j.p; p++) line += *p == '\n';
            fprintf(stderr, "--config: \"%.200s\", line %d, before \"%.20s\": %s\n", path, line, j.p < j.end ? (text[DT__MIN(n, (1 << 20) - 1)] = 0, j.p) : "", j.error);
            ok = 0;
        }
        if (w->failed) { fprintf(stderr, "--config: \"%.200s\" has too many words\n", path); ok = 0; }
    }
    if (f) fclose(f);
    free(text);
    return ok;
}

// ---- submit, status, cancel, list

static double dt__job_core_seconds(const char *job) {
    char folder[1024], file[400], value[64];
    const char *end;
    double sum = 0;
    struct dirent *e;
    DIR *d = dt__format(folder, sizeof folder, "%s/tasks", job) < sizeof folder ? opendir(folder) : NULL;
    while (d && (e = readdir(d)) != NULL) {
        if (*e->d_name == '.' || dt__format(file, sizeof file, "tasks/%s", e->d_name) >= sizeof file) continue;
        dt__job_of(job, file, "cpu_seconds", value, sizeof value);
        sum += dt__parse_double(value, value + strlen(value), &end);
    }
    if (d) closedir(d);
    return sum;
}

static int dt__job_list(int argc, char **argv) {
    static const char *const setting[] = {"batch", "optimizer", "learning-rate"};
    static const char *const field[] = {"step", "epoch", "loss", "eval_loss", "eval_accuracy", "seconds", "samples_per_s"};
    int bad = 0;
    if (argc < 3) return fprintf(stderr, "list: which jobs? Give their directories\n"), 64;
    printf("%-32s %-10s %-11s", "id", "state", "strategy");
    for (int k = 0; k < DT__COUNT(setting); k++) printf(" %13s", setting[k]);
    for (int k = 0; k < DT__COUNT(field); k++) printf(" %13s", field[k]);
    printf(" %13s\n", "core_seconds");
    for (int i = 2; i < argc; i++) {
        char *text = dt__job_text(argv[i], "status.json"), *job = dt__job_text(argv[i], "job.json"), value[160], settings[4096];
        if (!text) { fprintf(stderr, "\"%s\" is no job's directory: it has no status.json\n", argv[i]); free(job); bad = 1; continue; }
        dt__job_member(text, "id", value, sizeof value);
        printf("%-32.80s", value);
        dt__job_member(text, "state", value, sizeof value);
        printf(" %-10.20s", value);
        dt__job_member(text, "strategy", value, sizeof value);
        printf(" %-11.20s", value);
        dt__job_member(job, "settings", settings, sizeof settings);
        for (int k = 0; k < DT__COUNT(setting); k++) { dt__job_member(settings, setting[k], value, sizeof value); printf(" %13.13s", value); }
        for (int k = 0; k < DT__COUNT(field); k++) { dt__job_member(text, field[k], value, sizeof value); printf(" %13.13s", value); }
        printf(" %13.1f\n", dt__job_core_seconds(argv[i]));
        free(text);
        free(job);
    }
    return bad;
}

// Does a run hold the directory's lock? A number in a file may be another process's by now.
static int dt__job_held(const char *dir) {
    char path[1024];
    int fd = dt__format(path, sizeof path, "%s/job.lock", dir) < sizeof path ? open(path, O_RDWR | O_CLOEXEC) : -1, held;
    if (fd < 0) return 0;
    held = flock(fd, LOCK_SH | LOCK_NB) != 0;
    close(fd);
    return held;
}

// The process of the job in dir if that runs, or is about to, on this machine; else 0.
static long dt__job_pid(const char *dir, char state[32]) {
    char pid[32], host[128], own[128] = "";
    long number;
    int queued;
    dt__job_of(dir, "status.json", "state", state, 32);
    dt__job_of(dir, "status.json", "pid", pid, sizeof pid);
    dt__job_of(dir, "status.json", "host", host, sizeof host);
    gethostname(own, sizeof own - 1);
    number = strtol(pid, NULL, 10);
    queued = !strcmp(state, "QUEUED");
    if ((strcmp(state, "RUNNING") && strcmp(state, "PREPARING") && !queued) || number < 2 || strcmp(host, own)) return 0;
    return !kill((pid_t)number, 0) && (queued || dt__job_held(dir)) ? number : 0;
}

// Has it told how it ended?
static int dt__job_settled(const char *dir) {
    char state[32];
    dt__job_of(dir, "status.json", "state", state, sizeof state);
    return !strcmp(state, "SUCCEEDED") || !strcmp(state, "FAILED") || !strcmp(state, "CANCELLED");
}

static int dt__job_none(const char *dir) { return fprintf(stderr, "\"%s\" is no job's directory: it has no status.json\n", dir), 1; }

static int dt__job_cancel(const char *dir) {
    char state[32];
    long pid = dt__job_pid(dir, state);
    if (!strcmp(state, "-")) return dt__job_none(dir);
    if (!strcmp(state, "QUEUED")) return fprintf(stderr, "the job in \"%s\" has not begun: try again\n", dir), 1;
    if (!pid) return fprintf(stderr, "the job in \"%s\" does not run on this machine (%s)\n", dir, state), 1;
    if (kill((pid_t)pid, SIGTERM)) return fprintf(stderr, "process %ld cannot be told: %s\n", pid, strerror(errno)), 1;
    printf("told process %ld to save and stop\n", pid);
    return 0;
}

// Its name: as given, or as the directory has it, or of the program, date and time.
static void dt__job_name(const char *given, const char *dir, const char *program, char id[129]) {
    const char *base = strrchr(program, '/') ? strrchr(program, '/') + 1 : program;
    time_t now = time(NULL);
    struct tm local;
    char when[32] = "";
    if (given && *given) { dt__format(id, 129, "%s", strlen(given) <= 128 ? given : "-"); return; }
    dt__job_of(dir, "job.json", "id", id, 129);
    if (dt_job_id_valid(id)) return;
    if (localtime_r(&now, &local)) strftime(when, sizeof when, "%Y%m%d_%H%M%S", &local);
    dt__format(id, 129, "%.100s_%s", base, when);
    for (char *c = id; *c; c++) if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", *c)) *c = '_';
    if (!dt_job_id_valid(id)) dt__format(id, 129, "job_%s", when);
}

static int dt__job_mkdir(const char *path) {
    if (!mkdir(path, 0777) || errno == EEXIST) return 0;
    return fprintf(stderr, "--job-dir: \"%.200s\" cannot be made: %s\n", path, strerror(errno)), 1;
}

// 1 in the parent, once the job has described itself; 0 in the child.
static int dt__job_submit(const char *dir, const char *given, const char *program, int *status) {
    char path[1024], state[32], queued[512], id[129];
    dt__writer w;
    long pid = dt__job_pid(dir, state);
    dt_error err = DT_DEFAULTS;
    int log, gone = 0, code = 0;
    pid_t child;
    *status = 1;
    if (pid) return fprintf(stderr, "the job in \"%s\" runs already, as process %ld: cancel ends it\n", dir, pid), 1;
    for (int k = 0; k < 2; k++) {
        if (dt__format(path, sizeof path, "%s%s", dir, k ? "/logs" : "") >= 960) return fprintf(stderr, "--job-dir: \"%.60s…\" is too long\n", dir), 1;
        if (dt__job_mkdir(path)) return 1;
    }
    dt__job_name(given, dir, program, id);
    if (!dt_job_id_valid(id)) return fprintf(stderr, "--job-id is \"%.130s\": letters, digits and _ are allowed, a letter first, at most 128\n", given), *status = 64, 1;
    dt__format(path, sizeof path, "%s/logs/output.log", dir);
    log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    fflush(stdout);
    if (log < 0 || (child = fork()) < 0) return fprintf(stderr, "the job cannot be started: %s\n", strerror(errno)), 1;
    if (!child) {
        setsid();
        for (int fd = 1; fd < 3; fd++) dup2(log, fd);
        close(log);
        if ((log = open("/dev/null", O_RDONLY)) >= 0) { dup2(log, 0); close(log); }
        dt__the_job.flags.dir = dir;
        w = dt__writer_on(queued, sizeof queued);
        dt__print(&w, "{\"state\": \"QUEUED\", \"id\": \"%s\"", id);
        dt__job_put_process(&w);
        dt__puts(&w, "}\n");
        if (dt__job_put("status.json", queued, &err)) fprintf(stderr, "%s\n", err.text);
        return 0;
    }
    close(log);
    for (int i = 0; i < 200 && !gone; i++) {  // until it prepares itself, or has ended
        struct timespec pause = {0, 50000000};
        char now[32];
        gone = waitpid(child, &code, WNOHANG) != 0;
        dt__job_of(dir, "status.json", "state", now, sizeof now);
        if (dt__job_pid(dir, now) && strcmp(now, "QUEUED")) break;
        if (!gone) nanosleep(&pause, NULL);
    }
    if (gone && code) return fprintf(stderr, "the job has ended with status %d: see \"%s\"\n", WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code), path), 1;
    dt__job_of(dir, "status.json", "id", id, sizeof id);
    printf("%s\n", id);
    *status = 0;
    return 1;
}

// status.json, and with follow each later one, until the job has ended.
static int dt__job_tell(const char *dir, int follow) {
    const struct timespec pause = {0, 300000000};
    char before[4096] = "", state[32];
    for (;;) {
        long pid = dt__job_pid(dir, state);
        char *text = dt__job_text(dir, "status.json");
        if (!text) return dt__job_none(dir);
        if (strcmp(text, before)) fputs(text, stdout);
        fflush(stdout);
        dt__format(before, sizeof before, "%s", text);
        free(text);
        if (!pid && (!strcmp(state, "RUNNING") || !strcmp(state, "PREPARING")))
            fprintf(stderr, "but no process of it runs on this machine: the same command again goes on from its last checkpoint\n");
        if (!follow || !pid) return 0;
        nanosleep(&pause, NULL);
    }
}

static int dt__job_word_evaluate;  // the command was "evaluate"

// The value of a flag in a command line, or NULL.
static const char *dt__job_flag(int argc, char **argv, const char *name) {
    size_t n = strlen(name);
    const char *value = NULL;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) || strncmp(argv[i] + 2, name, n)) continue;
        if (argv[i][2 + n] == '=') value = argv[i] + 3 + n;
        else if (!argv[i][2 + n] && i + 1 < argc) value = argv[i + 1];
    }
    return value;
}

// The command line anew: without the words of jobs, with a config's flags, and =1 where a switch has no value.
static int dt__job_rewrite(int *argc, char ***argv, int without) {
    static dt__job_words words;
    static const char *const bare[] = {"--fresh", "--histograms", "--plan"};
    const char *config = dt__job_flag(*argc, *argv, "config");
    char **from = *argv;
    int i = 0, told = !config;
    while (words.n) free(words.word[--words.n]);
    words.failed = 0;
    for (; i < *argc; i++) {
        int k = 0, last = i + 1 == *argc || !strncmp(from[i + 1], "--", 2);
        if (i == 1 && without) continue;
        if (i > 0 && !told && !strncmp(from[i], "--", 2)) { told = 1; if (!dt__job_config(config, &words)) return 64; }
        if (!strcmp(from[i], "--config") && i + 1 < *argc) { i++; continue; }
        if (!strncmp(from[i], "--config=", 9)) continue;
        while (k < DT__COUNT(bare) && strcmp(from[i], bare[k])) k++;
        dt__job_add(&words, k < DT__COUNT(bare) ? bare[k] : "", k < DT__COUNT(bare) ? last ? "=1" : "" : from[i]);
    }
    if (words.failed || words.n == DT__JOB_WORDS) return fprintf(stderr, "the command line has too many words\n"), 64;
    words.word[words.n] = NULL;
    *argc = words.n;
    *argv = words.word;
    return 0;
}

DT_API int dt_job_command(int *argc, char ***argv, int *status) {
    static const char *const word[] = {"submit", "status", "cancel", "list", "evaluate"};
    const char *dir;
    int which = 0, follow = 0;
    while (which < 5 && (*argc < 2 || strcmp((*argv)[1], word[which]))) which++;
    *status = 0;
    if (which == 3) { *status = dt__job_list(*argc, *argv); return 1; }
    for (int i = 2; i < *argc; i++) follow |= !strcmp((*argv)[i], "--follow");
    dt__job_word_evaluate = which == 4;
    if ((*status = dt__job_rewrite(argc, argv, which < 5)) != 0) return 1;
    if (which == 5) return 0;
    dir = dt__job_flag(*argc, *argv, "job-dir");
    if (!dir || !*dir) { fprintf(stderr, "%s: which job? Add --job-dir DIR\n", word[which]); *status = 64; return 1; }
    if (which == 0) return dt__job_submit(dir, dt__job_flag(*argc, *argv, "job-id"), **argv, status);
    if (which == 1) *status = dt__job_tell(dir, follow);
    if (which == 2) *status = dt__job_cancel(dir);
    return which < 3;
}

// ---- the whole

static int dt__job_number(const char *name, const char *text, long standard, long *out) {
    int ok = 1;
    *out = text && *text ? (long)dt__whole(text, LONG_MAX, &ok) : standard;
    if (!ok) fprintf(stderr, "--%s is \"%.60s\": a whole number of 0 or more is needed\n", name, text);
    return ok;
}

// The flags make sense: 0, or 64.
static int dt__job_check(const dt_job *job) {
    dt__job *j = &dt__the_job;
    if (!dt__job_number("checkpoint-every", job->every, 0, &j->every) || !dt__job_number("checkpoint-seconds", job->seconds, 0, &j->seconds)
        || !dt__job_number("keep", job->keep, 3, &j->keep) || !dt__job_number("trace", job->trace, 0, &j->trace_steps)) return 64;
    if (j->keep < 1) return fprintf(stderr, "--keep is 0: one checkpoint at least is needed to come back\n"), 64;
    if (job->best && *job->best && !dt__glob("loss,eval_loss,accuracy,eval_accuracy", job->best))
        return fprintf(stderr, "--best is \"%.60s\": one of eval_loss, eval_accuracy, loss, accuracy is needed\n", job->best), 64;
    if (job->best && !strncmp(job->best, "eval_", 5) && !j->o.test.open) return fprintf(stderr, "--best %s: there is no test data to evaluate on: set .test, or use loss\n", job->best), 64;
    return 0;
}

// Another run in this directory? Its lock goes with its last process, wherever that is killed.
static int dt__job_locked(void) {
    dt__job *j = &dt__the_job;
    const struct timespec pause = {0, 100000000};
    char path[1024];
    dt__job_path("job.lock", -1, path);
    j->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    for (int i = 0; i < 30 && j->lock >= 0 && flock(j->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; i++) {  // those of a run just killed still end
        if (i == 29) return fprintf(stderr, "--job-dir: another run works in \"%s\": cancel ends it\n", j->flags.dir), 1;
        nanosleep(&pause, NULL);
    }
    return 0;
}

// The weights that --init-from names: best, or else newest; 0 if there are none.
static int dt__job_initial(const char *dir, char path[1024]) {
    const char *own = dt__the_job.flags.dir;
    long step;
    int found;
    if (dt__format(path, 1024, "%s/checkpoints/best.safetensors", dir) < 960 && !access(path, R_OK)) return 1;
    if (dt__format(path, 1024, "%s/export/model.safetensors", dir) < 960 && !access(path, R_OK)) return 1;
    dt__the_job.flags.dir = dir;
    step = dt__job_checkpoint(LONG_MAX, 0);
    found = step >= 0 && dt__job_path("checkpoints", step, path);
    dt__the_job.flags.dir = own;
    return found;
}

// rank: of this process, where it is known already. The exit status of what is wrong; -1: it has finished; 0: go on.
static int dt__job_open(int rank) {
    static const char *const folder[] = {"", "checkpoints", "events", "export", "logs", "tasks"}, *const made[] = {"export/model.safetensors", "export/model.onnx", "export/model.c"};
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    char path[1024], old[129];
    for (int i = 0; i < DT__COUNT(folder); i++) {
        if (!dt__job_path(folder[i], -1, path)) return fprintf(stderr, "--job-dir: \"%.60s…\" is too long\n", j->flags.dir), 1;
        if (dt__job_mkdir(path)) return 1;
    }
    dt__job_path("checkpoints", 0, path);
    if (dt__new_file_try("--job-dir", path, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    dt__job_name(j->flags.id, j->flags.dir, j->argc > 0 ? j->argv[0] : "job", j->id);
    if (!dt_job_id_valid(j->id)) return fprintf(stderr, "--job-id is \"%.130s\": letters, digits and _ are allowed, a letter first, at most 128\n", j->flags.id), 64;
    dt__job_of(j->flags.dir, "job.json", "id", old, sizeof old);
    if (strcmp(old, "-") && strcmp(old, j->id)) return fprintf(stderr, "--job-id is %s, and \"%.200s\" is the directory of %s: leave out one, or give another\n", j->id, j->flags.dir, old), 64;
    if (rank || j->evaluates) return 0;
    if (dt__job_locked()) return 78;
    if (!strcmp(old, "-") && dt__job_describe(&err)) return fprintf(stderr, "%s\n", err.text), 1;
    for (int i = 0; i < DT__COUNT(made) && dt__job_is_on(j->flags.fresh); i++) if (dt__job_path(made[i], -1, path)) remove(path);
    dt__job_path(made[0], -1, path);
    if (!access(path, F_OK)) {
        if (j->o.progress != DT_OFF) printf("the job has finished: \"%s\" is its result; for other settings give another --job-dir, or --fresh, which begins anew\n", path);
        return -1;
    }
    dt__job_status("PREPARING", NULL);
    return 0;
}

DT_API int dt_job_run(const dt_options *o, const dt_job *job, int argc, char **argv) {
    dt__job *j = &dt__the_job;
    dt_options with = *o;
    char initial[1024];
    int status, rank = dt_comm_rank(o->comm), parent = !o->comm && (o->workers || o->servers || o->tier > 1);
    pid_t self = getpid();
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_IGN);  // a file too large for ulimit -f is an error of its own, not the end of the run
#endif
    if (o->print_cluster && (dt__job_word_evaluate || dt__job_evaluates())) return printf("role = evaluator\nrank = none\n"), 0;
    if (o->print_options || o->print_cluster) return dt_run(o);
    memset(j, 0, sizeof *j);
    j->o = *o;
    j->flags = *job;
    j->argc = argc;
    j->argv = argv;
    j->started = (double)time(NULL);
    j->lock = -1;
    j->evaluates = dt__job_word_evaluate || dt__job_evaluates();
    if (dt__job_check(job)) return 64;
    if (dt__job_is_on(job->plan)) return dt__job_plan(o, j->keep);
    if (!job->dir || !*job->dir) {
        if (j->evaluates) return fprintf(stderr, "an evaluator needs the job's directory: add --job-dir DIR\n"), 64;
        if (job->init || job->trace || job->port) fprintf(stderr, "%s works with a job: add --job-dir DIR\n", job->init ? "--init-from" : job->trace ? "--trace" : "--status-port");
        return job->init || job->trace || job->port ? 64 : dt_run(o);
    }
#ifndef DTRAIN_NO_SOCKETS
    if (!o->comm && !j->evaluates) {
        dt__who w;
        rank = dt__who_am_i(NULL, &w, NULL) ? 1 : w.rank;  // what is wrong, dt_run says
    }
    dt__watch_server = dt__job_on_server;
#endif
    status = dt__job_open(rank);
    if (!status && j->evaluates) status = dt__job_evaluate();
    else if (!status) {
        if (job->init && *job->init) {
            int found = dt__job_initial(job->init, initial);
            if (!found && dt__job_checkpoint(LONG_MAX, 0) < 0) {
                fprintf(stderr, "--init-from: \"%.200s\" holds no weights of a job\n", job->init);
                status = 64;
            }
            if (found) with.load = initial;
        }
        with.on_event = dt__job_on_event;
        with.profile |= j->trace_steps > 0;
        if (!status) status = dt_run(&with);
        if (!status) status = j->no_result;
        dt__job_wait();
        dt__tracing = NULL;
        free(j->values);
        dt_events_close(j->events);
        if (status && *dt__run_error && !*j->error) dt__format(j->error, sizeof j->error, "%s", dt__run_error);
        // The chief tells how it ended; if it never began, whoever started it.
        if (!strcmp(j->task, "chief") || (status && self == getpid() && !rank && (!parent || !dt__job_settled(j->flags.dir)))) {
            const char *state = !status ? "SUCCEEDED" : (status == 130 || status == 143) && !*j->error ? "CANCELLED" : "FAILED";
            if (*state == 'F' && !*j->error) dt__format(j->error, sizeof j->error, "exit status %d", status);
            dt__job_status(state, NULL);
        } else if (*j->task) dt__job_put_task(status ? "FAILED" : "ENDED", 0, (double)NAN);
    }
    if (*j->error && *j->task) dt__job_log(j->error);
    dt_status_close(j->page);
    if (j->log) fclose(j->log);
    if (j->lock >= 0) close(j->lock);
    return status < 0 ? 0 : status;
}

DT_API int dt_job_main_opt(int argc, char **argv, const dt_options *o) {
    dt_job job;
    const dt_flag own[] = {DT_JOB_FLAGS(job)};
    dt_flag flags[64] = {{NULL, NULL, NULL}};
    dt_options with = *o;
    dt_error err = DT_DEFAULTS;
    int n = DT__COUNT(own), code;
    memset(&job, 0, sizeof job);
    if (dt_job_command(&argc, &argv, &code)) return code;
    memcpy(flags, own, sizeof own);
    for (const dt_flag *f = o->flags; f && f->name && n < 63; f++) flags[n++] = *f;
    with.flags = flags;
    code = dt_parse(&with, argc, argv, &err);
    if (code == DT_ERR_STOPPED) return 0;
    if (code) return fprintf(stderr, "%s: %s\n", argc > 0 ? argv[0] : "dtrain", err.text), 64;
    return dt_job_run(&with, &job, argc, argv);
}
#endif  // DTRAIN_JOB_H
