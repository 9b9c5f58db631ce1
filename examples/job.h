// job.h - a run as a job: a directory with checkpoints, status and curves, from which it comes back by itself
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "job.h"
//              int main(int argc, char **argv) { return dt_job_main(argc, argv, .net = net, …); }
//           in place of dt_main. cluster.c and train.c, beside this file, do so.
//           ./program --job-dir out          the same command again, after whatever happened, goes on
//           ./program --job-dir out --checkpoint-every 500 --keep 5; --fresh begins anew
//           ./program submit --job-dir out   the same in the background, its output in out/logs; prints the job's id
//           ./program status --job-dir out   its status.json (--follow: until it ends); cancel ends it with SIGTERM; list out out2 compares jobs
//           ./program --job-dir out --status-port 8080     http://127.0.0.1:8080: a page with live curves; /status, /metrics, /healthz
//           tensorboard --logdir out         while it runs, or afterwards
//
// What:    listens to a run's events. Before the first step it goes back to the newest good checkpoint; then it saves after
//          epochs, and every so many steps or seconds, from a copy, by a thread, so that a step waits for the copy alone.
//          On SIGTERM the step ends, is saved, and the exit status is 143: start me again. Of several processes the chief does
//          all this; the others get its state when they join.
//          out/job.json            id, command, versions              out/checkpoints/step-500.safetensors, …, best.safetensors
//          out/status.json         state, step, losses, last error    out/export/model.safetensors     when it has finished
//          out/metrics.csv         a row per epoch                    out/events/                      the same for TensorBoard
// Owns:    one job per process, and its thread while it saves.
// Uses:    >>train, >>checkpoint, >>base.   Used by: programs.
// Promise: the bits of a run that was never interrupted (with parameter servers: every sample once, the optimizer's moments
//          anew); no file is ever half written; a damaged checkpoint is told, and the one before it taken; a save that
//          fails is told, and training goes on; nothing is removed but checkpoints that this wrote.
// Source:  TensorBoard's event files: records of tensorflow/core/lib/io/record_writer.h around event.proto.
#ifndef DTRAIN_JOB_H
#define DTRAIN_JOB_H

#if defined(DTRAIN_NO_STDIO) || defined(DTRAIN_NO_MALLOC) || !DT__POSIX
#error "job.h needs files, malloc and POSIX"
#endif
#include <sys/time.h>

// dt_checkpoint_save - dt_save with the optimizer's moments, and where dt_train stands. dt_load takes the weights.
DT_API int dt_checkpoint_save(dt_model *m, const char *path, dt_error *err);

// dt_checkpoint_load - the next dt_train, or that of this DT_EVENT_BEGIN, goes on where the model's first one was, in the
// middle of an epoch too, and ends with the bits of a run never interrupted. Of several processes rank 0 loads for all.
// A damaged file or one of another net (DT_ERR_FORMAT, DT_ERR_SHAPE), optimizer, batch or seed (DT_ERR_STATE) changes
// nothing. (With parameter servers the moments are theirs: they begin anew.)
DT_API int dt_checkpoint_load(dt_model *m, const char *path, dt_error *err);

// The flags of a job, as texts; NULL or "": the default.
typedef struct {
    const char *dir;       // NULL: no job, a plain run
    const char *id;        // letters, digits, _, a letter first; default: the program's name, date and time
    const char *every;     // a checkpoint after so many steps, too
    const char *seconds;   // … or so many seconds
    const char *keep;      // so many checkpoints; default 3
    const char *fresh;     // "1": remove the checkpoints that are there
    const char *port;      // the chief answers HTTP there, read only: "8080" on this machine, "0.0.0.0:8080" to all
} dt_job;

// For a program's own table of flags, before its {NULL, NULL, NULL}.
#define DT_JOB_FLAGS(job) \
    {"job-dir", &(job).dir, "the job's directory: checkpoints, status, curves; it goes on from there"}, \
    {"job-id", &(job).id, "its name; default: program, date and time"}, \
    {"checkpoint-every", &(job).every, "a checkpoint after so many steps, not after epochs only"}, \
    {"checkpoint-seconds", &(job).seconds, "… or so many seconds"}, \
    {"keep", &(job).keep, "so many checkpoints stay; default 3"}, \
    {"fresh", &(job).fresh, "1: remove the job's checkpoints and begin anew"}, \
    {"status-port", &(job).port, "the chief shows the job there by HTTP, on this machine; HOST:PORT elsewhere"}

// dt_job_run - dt_run as a job. Returns its exit status; 64 or 1 if the job's flags or directory are no good.
DT_API int dt_job_run(const dt_options *o, const dt_job *job, int argc, char **argv);

// dt_job_main(argc, argv, .net = net, …) - dt_main with the flags of a job.
#define dt_job_main(argc, argv, ...) dt_job_main_opt(argc, argv, &(dt_options){__VA_ARGS__})
DT_API int dt_job_main_opt(int argc, char **argv, const dt_options *o);

// dt_job_command - submit, status, cancel or list as a program's first argument: 1 if that was all, with the exit status.
// dt_job_main calls it; others before they parse. Of submit, the child gets 0 and its command line without the word.
DT_API int dt_job_command(int *argc, char **argv, int *status);

// dt_job_id_valid - as the platform has it: letters, digits and underscore, a letter first, at most 128.
DT_API int dt_job_id_valid(const char *id);

// ---- checkpoints: dt_save's file, with the optimizer's moments and a line of text

// A checkpoint's metadata: whose run it is, where that stands, and a checksum of this text and all values:
// "seed 0 batch 32 optimizer 3 step 128 loss … crc32c 2868354213".
static const char *const dt__state_names[] = {"step", "loss", "accuracy", "samples", "best", "waited"};  // the last as in m->progress
static size_t dt__put_run(dt__writer *w, const dt_model *m) {
    dt__print(w, "seed %ju batch %d optimizer %d", (uintmax_t)m->o.seed, m->batch, (int)m->optimizer.kind);
    return w->n;
}

DT_API int dt_checkpoint_save(dt_model *m, const char *path, dt_error *err) {
    char text[512];
    dt__writer state = dt__writer_on(text, sizeof text);
    uint32_t crc;
    int k;
    if (!m) return dt__is_null(err, "dt_checkpoint_save", "model");
    dt__put_run(&state, m);
    for (k = 0; k < DT__COUNT(dt__state_names); k++) dt__print(&state, " %s %.17g", dt__state_names[k], k ? m->progress[k - 1] : (double)m->step);
    crc = dt__crc32c(0, text, state.n);
    dt__write_values(m, 1, dt__write_crc32c, &crc);
    dt__print(&state, " crc32c %ju", (uintmax_t)crc);
    return dt__save(m, "dt_checkpoint_save", text, path, err);
}

// Is it a checkpoint, whole, and of the same run? values: the step, then m->progress.
static int dt__state_read(const dt_model *m, dt__tensors *t, double *values) {
    char text[512] = "", run[128];
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
    if (!at || (size_t)(at - text) != n || memcmp(text, run, n))
        return dt__fail(t->err, DT_ERR_STATE, "\"%s\" is of another run: %.*s there, %s here", t->path, at ? (int)DT__MIN(at - text, 80) : 0, text, run);
    for (i = 0; i < DT__COUNT(dt__state_names); i++) {
        n = strlen(dt__state_names[i]);
        if (*at != ' ' || strncmp(at + 1, dt__state_names[i], n)) return dt__bad_file(t->err, "\"%s\": the checkpoint's state lacks \"%s\"", t->path, dt__state_names[i]);
        values[i] = dt__parse_double(at + n + 2, end, &at);
    }
    while (dt__next_stored(m, 1, &s)) t->moments |= s.part && *dt__tensors_slot(t, s.name, strlen(s.name));  // all of them, or none
    return values[0] >= 0 && values[0] < DT__MIN(1e15, (double)LONG_MAX) ? 0 : dt__bad_file(t->err, "\"%s\": step %g is none", t->path, values[0]);
}

DT_API int dt_checkpoint_load(dt_model *m, const char *path, dt_error *err) {
    dt_load_options o = DT_DEFAULTS;
    double state[DT__COUNT(dt__state_names)] = {0};
    dt__tensors t;
    int code;
    if (!m || !path) return dt__is_null(err, "dt_checkpoint_load", m ? "path" : "model");
    o.path = path;
    code = dt__tensors_open(&t, "dt_checkpoint_load", &m->o, &o, err);
    if (!code) code = dt__state_read(m, &t, state);
    if (!code) code = dt__load_tensors(m, &t, &o);
    if (!code) {
        m->step = (long)state[0];
        m->resumed = 1;
        memcpy(m->progress, state + 1, sizeof m->progress);
    }
    dt__tensors_close(&t);
    return code;
}

// ---- what a job knows

typedef struct {
    dt_options o;          // the program's, with its on_event
    dt_job flags;
    long every, keep, seconds;
    char id[129], error[240];
    int chief;
    dt_event last;         // the last event that was told
    double started, saved, told;
    long resumed, newest;  // steps: where it went on, the last one saved; -1: none
    long skipped;          // saves left out because one was running
    double best;
    FILE *events;
    // what is being written: a copy of the model with values of its own
    dt_model copy;
    dt__replica replica;
    float *values;
    int writing;           // 1: by the thread; 2: it has finished
    char path[1024];
    dt_error failed;
#ifndef DTRAIN_NO_THREADS
    pthread_t thread;
#endif
    int door, closing;     // the listener of --status-port, or -1
    char answer[4096];     // status.json as it was last written, for the page
#if !defined(DTRAIN_NO_THREADS) && !defined(DTRAIN_NO_SOCKETS)
    pthread_t porter;
    pthread_mutex_t lock;  // over the answer
#endif
} dt__job;
static dt__job dt__the_job;

DT_API int dt_job_id_valid(const char *id) {
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n > 0 && n <= 128 && !id[n] && !(*id >= '0' && *id <= '9') && *id != '_';
}

// The directory, a folder or file in it, or a checkpoint: 0 if the path is too long.
static int dt__job_path(const char *inside, long step, char path[1024]) {
    size_t n = dt__format(path, 1024, "%s%s%s", dt__the_job.flags.dir, *inside ? "/" : "", inside);
    if (step >= 0 && n < 960) n += dt__format(path + n, 1024 - n, "/step-%ld.safetensors", step);
    return n < 960;
}

// Replace a file of the directory whole.
static int dt__job_put(const char *name, const char *text, dt_error *err) {
    char path[1024];
    dt__new_file file;
    dt__job_path(name, -1, path);
    if (dt__new_file_open(&file, "--job-dir", path, err)) return DT_ERR_IO;
    if (fputs(text, file.f) < 0) return dt__new_file_fail(&file, err, "cannot write");
    return dt__new_file_close(&file, err);
}

static void dt__job_put_time(dt__writer *w, const char *name, double when) {
    time_t t = (time_t)when;
    struct tm utc;
    char text[32] = "";
    if (gmtime_r(&t, &utc)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    dt__print(w, ", \"%s\": \"%s\"", name, text);
}

static void dt__job_put_string(dt__writer *w, const char *name, const char *text) {
    dt__print(w, ", \"%s\": \"", name);
    dt__put_json(w, text);
    dt__put(w, '"');
}

static void dt__job_show(const char *text);

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
    dt__print(&w, ", \"pid\": %ld", (long)getpid());
    dt__job_put_time(&w, "started", j->started);
    dt__job_put_time(&w, "updated", (double)time(NULL));
    if (e) {
        const struct { const char *name; double value; } measure[] = {{"loss", e->loss}, {"accuracy", e->accuracy}, {"eval_loss", e->eval_loss},
            {"eval_accuracy", e->eval_accuracy}, {"samples_per_s", e->samples_per_s}, {"seconds", e->seconds}};
        dt__print(&w, ", \"step\": %ld, \"steps\": %ld, \"epoch\": %d, \"epochs\": %d", e->step, e->steps, e->epoch, e->epochs);
        for (int i = 0; i < DT__COUNT(measure); i++) {
            dt__print(&w, ", \"%s\": ", measure[i].name);
            dt__put_json_number(&w, measure[i].value);
        }
    }
    dt__print(&w, ", \"checkpoint\": %ld, \"saves_skipped\": %ld", j->newest, j->skipped);
    if (*j->error) dt__job_put_string(&w, "error", j->error);
    dt__put_text(&w, "}\n");
    if (dt__job_put("status.json", text, &err)) fprintf(stderr, "%s\n", err.text);
    dt__job_show(text);
    j->told = dt__now();
}

static int dt__job_describe(int argc, char **argv, dt_error *err) {
    char text[8192];
    dt__writer w = dt__writer_on(text, sizeof text);
    dt__print(&w, "{\"id\": \"%s\", \"dtrain\": \"%s\"", dt__the_job.id, dt_version());
    dt__job_put_time(&w, "started", dt__the_job.started);
    dt__put_text(&w, ", \"command\": [");
    for (int i = 0; i < argc && w.n < sizeof text - 600; i++) {
        char word[512];
        dt__format(word, 500, "%s", argv[i]);
        dt__put_text(&w, i ? ", \"" : "\"");
        dt__put_json(&w, word);
        dt__put(&w, '"');
    }
    dt__put_text(&w, "]}\n");
    return dt__job_put("job.json", text, err);
}

// The value of a field of status.json as text, without quotes; "-" if it is not there or null.
static void dt__job_field(const char *text, const char *name, char *out, size_t size) {
    char key[64];
    const char *p;
    size_t n;
    dt__format(key, sizeof key, "\"%s\": ", name);
    p = text ? strstr(text, key) : NULL;
    if (p) p += strlen(key);
    if (p && *p == '"') { p++; n = strcspn(p, "\""); } else n = p ? strcspn(p, ",}") : 0;
    if (!p || !n || !strncmp(p, "null", 4)) { p = "-"; n = 1; }
    dt__format(out, size, "%.*s", (int)n, p);
}

// ---- the status port: HTTP/1.0 GET, one request at a time, read only

#if !defined(DTRAIN_NO_THREADS) && !defined(DTRAIN_NO_SOCKETS)
static const char dt__job_page[] =
    "<!doctype html><meta charset=utf-8><title>dtrain</title><style>body{font:15px sans-serif;margin:2em;color:#222}"
    "td{padding:.15em 1.2em .15em 0}canvas{border:1px solid #ccc;margin:0 1em 1em 0}h1{font-size:1.3em}</style>"
    "<h1 id=h>job</h1><canvas id=l width=460 height=260></canvas><canvas id=s width=460 height=260></canvas><table id=t></table><script>"
    "function draw(id,names,rows){const c=document.getElementById(id),g=c.getContext('2d'),col=['#06c','#c40'];g.clearRect(0,0,460,260);"
    "const v=rows.flatMap(r=>names.map(n=>r[n])).filter(x=>isFinite(x)),hi=Math.max(...v),lo=Math.min(0,...v);g.font='12px sans-serif';"
    "names.forEach((n,k)=>{g.strokeStyle=g.fillStyle=col[k];g.fillText(n+(rows.length?' '+rows[rows.length-1][n]:''),60+k*200,16);g.beginPath();"
    "let first=true;rows.forEach((r,i)=>{if(!isFinite(r[n]))return;const x=50+400*(rows.length>1?i/(rows.length-1):0),y=245-215*(r[n]-lo)/(hi-lo||1);"
    "first?g.moveTo(x,y):g.lineTo(x,y);first=false});g.stroke()});g.fillStyle='#555';if(v.length){g.fillText(hi.toPrecision(4),4,32);g.fillText(lo.toPrecision(3),4,245)}}"
    "async function tick(){try{const j=await(await fetch('status')).json();document.getElementById('h').textContent=j.id+': '+j.state;"
    "document.getElementById('t').innerHTML='';for(const k in j){const r=document.getElementById('t').insertRow();r.insertCell().textContent=k;r.insertCell().textContent=j[k]}"
    "const t=(await(await fetch('metrics.csv')).text()).trim().split('\\n').map(x=>x.split(',')),rows=t.slice(1).map(x=>Object.fromEntries(t[0].map((n,i)=>[n,x[i]===''?NaN:+x[i]])));"
    "draw('l',['loss','eval_loss'],rows);draw('s',['samples_per_s'],rows)}catch(e){document.getElementById('h').textContent='no answer'}}tick();setInterval(tick,1000)</script>";

static void dt__job_show(const char *text) {
    dt__job *j = &dt__the_job;
    if (j->door < 0) return;
    pthread_mutex_lock(&j->lock);
    dt__format(j->answer, sizeof j->answer, "%s", text);
    pthread_mutex_unlock(&j->lock);
}

// Prometheus' text format: a gauge for each number of the status.
static size_t dt__job_gauges(const char *status, char *out, size_t size) {
    static const struct { const char *field, *name, *help; } gauge[] = {
        {"step", "step", "Steps done."}, {"steps", "planned_steps", "Steps in all."}, {"epoch", "epoch", "Epoch, from 1."},
        {"loss", "loss", "Training loss of the step or epoch."}, {"accuracy", "accuracy", "Training accuracy, 0 to 1."},
        {"eval_loss", "evaluation_loss", "Loss of the last evaluation."}, {"eval_accuracy", "evaluation_accuracy", "Accuracy of the last evaluation, 0 to 1."},
        {"samples_per_s", "samples_per_second", "Training speed."}, {"seconds", "run_seconds", "Time since this run began."},
        {"checkpoint", "checkpoint_step", "Step of the newest checkpoint."}, {"saves_skipped", "skipped_saves", "Checkpoints left out because one was being written."}};
    dt__writer w = dt__writer_on(out, size);
    for (int i = 0; i < DT__COUNT(gauge); i++) {
        char value[64];
        dt__job_field(status, gauge[i].field, value, sizeof value);
        if (strcmp(value, "-")) dt__print(&w, "# HELP dtrain_%s %s\n# TYPE dtrain_%s gauge\ndtrain_%s %s\n", gauge[i].name, gauge[i].help, gauge[i].name, gauge[i].name, value);
    }
    dt__print(&w, "# HELP dtrain_up 1 while the job runs.\n# TYPE dtrain_up gauge\ndtrain_up %d\n", strstr(status, "\"RUNNING\"") != NULL);
    return w.n;
}

static void dt__job_answer(int fd) {
    static char body[65536];
    char request[8192] = "", status[4096], head[200];
    const char *type = "text/plain; charset=utf-8", *from = body, *code = "200 OK";
    size_t have = 0, n = 0;
    struct pollfd p = {fd, POLLIN, 0};
    double until = dt__now() + 2;
    while (have < sizeof request - 1 && dt__now() < until && !strstr(request, "\r\n\r\n")) {
        ssize_t got = poll(&p, 1, 200) > 0 ? recv(fd, request + have, sizeof request - 1 - have, 0) : -2;
        if (got == 0 || got == -1) return;
        if (got > 0) request[have += (size_t)got] = 0;
    }
    pthread_mutex_lock(&dt__the_job.lock);
    strcpy(status, dt__the_job.answer);
    pthread_mutex_unlock(&dt__the_job.lock);
    if (!strncmp(request, "GET / ", 6)) { from = dt__job_page; n = sizeof dt__job_page - 1; type = "text/html; charset=utf-8"; }
    else if (!strncmp(request, "GET /status ", 12)) { from = status; n = strlen(status); type = "application/json"; }
    else if (!strncmp(request, "GET /metrics ", 13)) { n = dt__job_gauges(status, body, sizeof body); type = "text/plain; version=0.0.4"; }
    else if (!strncmp(request, "GET /healthz ", 13)) n = dt__format(body, sizeof body, "ok\n");
    else if (!strncmp(request, "GET /metrics.csv ", 17)) {
        char path[1024];
        FILE *f = dt__job_path("metrics.csv", -1, path) ? fopen(path, "r") : NULL;
        if (f) { n = fread(body, 1, sizeof body, f); fclose(f); }
    } else { code = strstr(request, "\r\n\r\n") ? "404 Not Found" : "400 Bad Request"; n = dt__format(body, sizeof body, "%s\n", code); }
    have = dt__format(head, sizeof head, "HTTP/1.0 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", code, type, n);
    p.events = POLLOUT;
    for (int part = 0; part < 2; part++)
        for (const char *at = part ? from : head, *end = at + (part ? n : have); at < end && dt__now() < until;) {
            ssize_t gone = poll(&p, 1, 200) > 0 ? send(fd, at, (size_t)(end - at), MSG_NOSIGNAL) : 0;
            if (gone < 0 && !dt__later()) return;
            if (gone > 0) at += gone;
        }
}

static void *dt__job_porter(void *user) {
    dt__job *j = (dt__job *)user;
    struct pollfd p = {j->door, POLLIN, 0};
    while (!DT__LOAD(&j->closing)) {
        int fd = poll(&p, 1, 200) > 0 ? accept(j->door, NULL, NULL) : -1;
        if (fd < 0) continue;
        dt__socket_ready(fd);
        dt__job_answer(fd);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    return NULL;
}

// Before the first step, in the chief. What cannot be had is told, and training goes on.
static void dt__job_open_door(void) {
    dt__job *j = &dt__the_job;
    char host[256] = "127.0.0.1";
    const char *why = "the system refuses a socket";
    int port = 0, ok = 1, one = 1;
    struct addrinfo *a;
    if (!j->flags.port || !*j->flags.port) return;
    if (!dt__address(j->flags.port, host, sizeof host, &port)) port = (int)dt__parse_whole(j->flags.port, 65535, &ok);
    if (!ok || !port) { fprintf(stderr, "--status-port is \"%.60s\": a port or HOST:PORT is needed: training goes on without\n", j->flags.port); return; }
    a = dt__resolve(host, AF_UNSPEC, port);
    j->door = a ? socket(a->ai_family, SOCK_STREAM, 0) : -1;
    if (j->door >= 0) {
        setsockopt(j->door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        dt__socket_ready(j->door);
        ok = !bind(j->door, a->ai_addr, a->ai_addrlen) && !listen(j->door, 16);
        why = strerror(errno);
        if (ok && !pthread_mutex_init(&j->lock, NULL) && !pthread_create(&j->porter, NULL, dt__job_porter, j)) {
            if (j->o.progress != DT_OFF) printf("status: http://%s:%d\n", host, port);
        } else { close(j->door); j->door = -1; }
    }
    if (a) freeaddrinfo(a);
    if (j->door < 0) fprintf(stderr, "--status-port %.60s: %s: training goes on without\n", j->flags.port, a ? why : "that host is not known");
}

static void dt__job_close_door(void) {
    dt__job *j = &dt__the_job;
    if (j->door < 0) return;
    DT__STORE(&j->closing, 1);
    pthread_join(j->porter, NULL);
    close(j->door);
    j->door = -1;
}
#else
static void dt__job_show(const char *text) { (void)text; }
static void dt__job_open_door(void) {
    if (dt__the_job.flags.port && *dt__the_job.flags.port) fprintf(stderr, "--status-port needs threads and sockets: training goes on without\n");
}
static void dt__job_close_door(void) {}
#endif

// ---- curves: metrics.csv and TensorBoard's events

static const char dt__job_columns[] = "step,epoch,loss,accuracy,eval_loss,eval_accuracy,learning_rate,samples_per_s,seconds\n";

// Rows of steps that a resumed run will make again go.
static void dt__job_trim_metrics(long step) {
    char path[1024], line[512];
    dt__new_file file;
    dt_error err = DT_DEFAULTS;
    dt__job_path("metrics.csv", -1, path);
    FILE *old = fopen(path, "r");
    if (dt__new_file_open(&file, "--job-dir", path, &err)) fprintf(stderr, "%s\n", err.text);
    else {
        fputs(dt__job_columns, file.f);
        while (old && fgets(line, sizeof line, old))
            if (*line >= '0' && *line <= '9' && strchr(line, '\n') && strtol(line, NULL, 10) <= step) fputs(line, file.f);
        if (dt__new_file_close(&file, &err)) fprintf(stderr, "%s\n", err.text);
    }
    if (old) fclose(old);
}

static size_t dt__job_varint(uint8_t *p, uint64_t v) {
    size_t n = 0;
    for (; v > 127; v >>= 7) p[n++] = (uint8_t)(v | 128);
    p[n++] = (uint8_t)v;
    return n;
}

// One record: length, its masked CRC, the event, its masked CRC, all in one write, so that a reader never sees a part.
static void dt__job_record(const uint8_t *event, size_t n) {
    uint8_t record[1024];
    uint32_t crc;
    if (!dt__the_job.events || n > sizeof record - 16) return;
    dt__write_le(record, n, 8);
    crc = dt__crc32c(0, record, 8);
    dt__write_le(record + 8, (crc >> 15 | crc << 17) + 0xa282ead8u, 4);
    memcpy(record + 12, event, n);
    crc = dt__crc32c(0, event, n);
    dt__write_le(record + 12 + n, (crc >> 15 | crc << 17) + 0xa282ead8u, 4);
    if (fwrite(record, 1, n + 16, dt__the_job.events) < n + 16 || fflush(dt__the_job.events)) {
        fprintf(stderr, "the events for TensorBoard cannot be written: %s\n", strerror(errno));
        fclose(dt__the_job.events);
        dt__the_job.events = NULL;
    }
}

// Event {1: wall time, 2: step, and a last field: number, bytes}
static void dt__job_event(long step, int field, const void *bytes, size_t n) {
    uint8_t event[800];
    struct timeval now;
    double wall;
    uint64_t bits;
    size_t at = 9;
    gettimeofday(&now, NULL);
    wall = (double)now.tv_sec + (double)now.tv_usec * 1e-6;
    memcpy(&bits, &wall, sizeof bits);
    event[0] = 1 << 3 | 1;
    dt__write_le(event + 1, bits, 8);
    if (step) { event[at++] = 2 << 3; at += dt__job_varint(event + at, (uint64_t)step); }
    event[at++] = (uint8_t)(field << 3 | 2);
    at += dt__job_varint(event + at, n);
    memcpy(event + at, bytes, n);
    dt__job_record(event, at + n);
}

static void dt__job_open_events(long step) {
    char path[1024], name[64] = "host", file[160];
    gethostname(name, sizeof name - 1);
    dt__format(file, sizeof file, "events/events.out.tfevents.%010ld.%s.%ld", (long)time(NULL), name, (long)getpid());
    dt__job_path(file, -1, path);
    dt__the_job.events = fopen(path, "ab");
    dt__job_event(0, 3, "brain.Event:2", 13);
    if (step > 0) dt__job_event(step + 1, 7, "\x08\x01", 2);  // START: older points from here on are dropped
}

// Summary {value {1: tag, 2: float}, …}
static void dt__job_scalars(const dt_event *e, int n, const char *const *tag, const double *value) {
    uint8_t summary[700];
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t length = strlen(tag[i]);
        if (value[i] != value[i]) continue;
        summary[at++] = 1 << 3 | 2;
        summary[at++] = (uint8_t)(length + 7);
        summary[at++] = 1 << 3 | 2;
        summary[at++] = (uint8_t)length;
        memcpy(summary + at, tag[i], length);
        at += length;
        summary[at++] = 2 << 3 | 5;
        dt__write_le(summary + at, dt__float_bits((float)value[i]), 4);
        at += 4;
    }
    dt__job_event(e->step, 5, summary, at);
}

static void dt__job_curves(const dt_event *e) {
    static const char *const tag[] = {"loss/train", "accuracy/train", "loss/eval", "accuracy/eval", "learning_rate", "samples_per_s", "cpu_seconds", "memory_mb"};
    struct rusage u;
    double cpu = 0, memory = 0;
    char path[1024];
    if (!getrusage(RUSAGE_SELF, &u)) {
        cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
        memory = dt__peak_rss() / 1e6;
    }
    const double value[] = {e->loss, e->accuracy, e->eval_loss, e->eval_accuracy, e->learning_rate, e->samples_per_s, cpu, memory};
    if (!dt__the_job.events) dt__job_open_events(dt__the_job.resumed);
    dt__job_scalars(e, DT__COUNT(tag), tag, value);
    dt__job_path("metrics.csv", -1, path);
    FILE *f = fopen(path, "a");
    if (f) {
        char line[512];
        dt__writer w = dt__writer_on(line, sizeof line);
        dt__print(&w, "%ld,%d", e->step, e->epoch);
        for (int i = 0; i < 6; i++) { dt__put(&w, ','); if (value[i] == value[i]) dt__print(&w, "%.9g", value[i]); }
        dt__print(&w, ",%.3f\n", e->seconds);
        fputs(line, f);
    }
    if (!f || fclose(f)) fprintf(stderr, "\"%s\" cannot be written: %s\n", path, strerror(errno));
}

// ---- checkpoints

// The last step below `below` of which there is one, or -1.
static long dt__job_newest(long below, int sweep) {
    char path[1024];
    struct dirent *e;
    long best = -1;
    DIR *d = dt__job_path("checkpoints", -1, path) ? opendir(path) : NULL;
    while (d && (e = readdir(d)) != NULL) {
        char *end = strstr(e->d_name, ".safetensors"), part[1400];
        size_t n = strlen(e->d_name);
        int ok = 0;
        if (!end || (strncmp(e->d_name, "step-", 5) && strncmp(e->d_name, "best.", 5))) continue;
        if (n > 4 && !strcmp(e->d_name + n - 4, ".tmp") && sweep) {  // whoever wrote it was killed
            dt__format(part, sizeof part, "%s/%s", path, e->d_name);
            remove(part);
        }
        if (strcmp(end, ".safetensors") || *e->d_name == 'b') continue;
        *end = 0;
        long step = (long)dt__parse_whole(e->d_name + 5, LONG_MAX, &ok);
        if (ok && step < below && step > best) best = step;
    }
    if (d) closedir(d);
    return best;
}

static void dt__job_prune(long keep) {
    char path[1024];
    for (long step = LONG_MAX; (step = dt__job_newest(step, 0)) >= 0;)
        if (keep-- <= 0 && dt__job_path("checkpoints", step, path)) remove(path);
}

// Go back to the newest good one. One of another run is an error: to go on without it would lose it.
static int dt__job_resume(dt_model *m, dt_error *err) {
    dt__job *j = &dt__the_job;
    char path[1024];
    for (long step = LONG_MAX; (step = dt__job_newest(step, 0)) >= 0;) {
        err->code = 0;
        dt__job_path("checkpoints", step, path);
        if (!dt_checkpoint_load(m, path, err)) {
            j->resumed = j->newest = step;
            j->best = m->progress[3];
            if (j->o.progress != DT_OFF) printf("goes on from step %ld of %s\n", step, j->flags.dir);
            return 0;
        }
        if (err->code != DT_ERR_FORMAT && err->code != DT_ERR_IO) break;
        fprintf(stderr, "%s: going back to the checkpoint before\n", err->text);
    }
    if (!err->code) return 0;
    fprintf(stderr, "%s: give another --job-dir, or --fresh 1\n", err->text);
    return err->code;
}

static void *dt__job_write(void *user) {
    dt__job *j = (dt__job *)user;
    if (!dt_checkpoint_save(&j->copy, j->path, &j->failed)) dt__job_prune(j->keep);
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
        fprintf(stderr, "%s: training goes on without this checkpoint\n", j->failed.text);
        dt__format(j->error, sizeof j->error, "%s", j->failed.text);
        j->newest = -1;  // the next one is tried even at this step
    }
    j->writing = j->failed.code = 0;
}

// Copy what there is to save; the thread writes it. A save that still runs leaves this one out, but not the last.
static void dt__job_save(dt_model *m, int last) {
    dt__job *j = &dt__the_job;
    const dt__graph *g = &m->graph;
    if (DT__LOAD(&j->writing) == 1 && !last) { j->skipped++; return; }
    dt__job_wait();
    if (!j->values) j->values = (float *)malloc(((size_t)g->n_floats + 2 * (size_t)g->n_trainable) * sizeof(float));
    if (!j->values) { fprintf(stderr, "no memory for a checkpoint: training goes on without\n"); return; }
    memset(&j->copy, 0, sizeof j->copy);  // what saving reads; of the rest the replicas' threads wait at some
    j->copy.o = m->o;
    j->copy.graph = m->graph;
    j->copy.optimizer = m->optimizer;
    j->copy.batch = m->batch;
    j->copy.step = m->step;
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

static int dt__job_begin(dt_model *m) {
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    j->resumed = j->newest = -1;
    j->best = DBL_MAX;
    j->saved = dt__now();
    dt__job_newest(LONG_MAX, 1);
    if (j->flags.fresh && !strcmp(j->flags.fresh, "1")) dt__job_prune(0);
    if (dt__job_resume(m, &err)) { dt__format(j->error, sizeof j->error, "%s", err.text); return 1; }
    dt__job_trim_metrics(j->resumed);
    dt__job_open_door();
    dt__job_status("RUNNING", NULL);
    return 0;
}

static void dt__job_end(const dt_event *e) {
    dt__job *j = &dt__the_job;
    char path[1024];
    dt_error err = DT_DEFAULTS;
    if (e->step > 0 && j->newest != dt_model_step(e->model)) dt__job_save(e->model, 1);
    dt__job_wait();
    if (e->model->stopped < DT__BY_SIGNAL && dt__job_path("export/model.safetensors", -1, path) && dt_save(e->model, path, &err)) fprintf(stderr, "%s\n", err.text);
    if (j->events) fclose(j->events);
    j->events = NULL;
    free(j->values);
    j->values = NULL;
    dt__job_status("RUNNING", e);
    dt__job_close_door();
}

static void dt__job_epoch(const dt_event *e) {
    dt__job *j = &dt__the_job;
    double judged = e->eval_loss == e->eval_loss ? e->eval_loss : e->loss;
    char path[1024];
    dt_error err = DT_DEFAULTS;
    dt__job_curves(e);
    dt__job_save(e->model, 0);
    if (judged < j->best) {
        j->best = judged;
        dt__job_path("checkpoints/best.safetensors", -1, path);
        if (dt_save(e->model, path, &err)) fprintf(stderr, "%s\n", err.text);
    }
    dt__job_status("RUNNING", e);
}

static int dt__job_on_event(const dt_event *e, void *user) {
    dt__job *j = &dt__the_job;
    dt_report r = dt_model_report(e->model);
    int stop = 0;
    j->chief = r.process == 0;
    if (j->chief && e->kind == DT_EVENT_BEGIN && dt__job_begin(e->model)) return 1;
    if (j->o.on_event) stop = j->o.on_event(e, user);
    if (!j->chief) return stop;
    if (e->kind == DT_EVENT_EPOCH) dt__job_epoch(e);
    if (e->kind == DT_EVENT_END) dt__job_end(e);
    if (e->kind == DT_EVENT_STEP) {
        int whole = r.strategy != DT_PARAMETER_SERVER || j->o.sync;  // or else others are in the middle of batches
        int due = (j->every && e->step % j->every == 0) || (j->seconds && dt__now() - j->saved >= (double)j->seconds);
        if (due && whole && !e->ends_epoch && !stop) dt__job_save(e->model, 0);
        if (dt__now() - j->told >= 1) dt__job_status("RUNNING", e);
    }
    return stop;
}

// ---- submit, status, cancel, list

// A file of a job's directory as text, for the caller to free; NULL if it is not there.
static char *dt__job_text(const char *dir, const char *name) {
    char path[1024], *text = NULL;
    FILE *f = dt__format(path, sizeof path, "%s/%s", dir, name) < sizeof path ? fopen(path, "r") : NULL;
    if (f && (text = (char *)calloc(1, 16384)) != NULL && fread(text, 1, 16383, f) == 0) { free(text); text = NULL; }
    if (f) fclose(f);
    return text;
}

static int dt__job_list(int argc, char **argv) {
    static const char *const field[] = {"state", "step", "epoch", "loss", "eval_loss", "eval_accuracy", "seconds", "samples_per_s"};
    int bad = 0;
    if (argc < 3) return fprintf(stderr, "list: which jobs? Give their directories\n"), 64;
    printf("%-32s", "id");
    for (int k = 0; k < DT__COUNT(field); k++) printf(" %13s", field[k]);
    printf("\n");
    for (int i = 2; i < argc; i++) {
        char *text = dt__job_text(argv[i], "status.json"), value[160];
        if (!text) { fprintf(stderr, "\"%s\" is no job's directory: it has no status.json\n", argv[i]); bad = 1; continue; }
        dt__job_field(text, "id", value, sizeof value);
        printf("%-32.80s", value);
        for (int k = 0; k < DT__COUNT(field); k++) { dt__job_field(text, field[k], value, sizeof value); printf(" %13.13s", value); }
        printf("\n");
        free(text);
    }
    return bad;
}

static int dt__job_cancel(const char *dir) {
    char *text = dt__job_text(dir, "status.json"), state[32], pid[32];
    long number;
    dt__job_field(text, "state", state, sizeof state);
    dt__job_field(text, "pid", pid, sizeof pid);
    free(text);
    number = strtol(pid, NULL, 10);
    if (!text) return fprintf(stderr, "\"%s\" is no job's directory: it has no status.json\n", dir), 1;
    if ((strcmp(state, "RUNNING") && strcmp(state, "PREPARING")) || number < 2 || kill((pid_t)number, 0))
        return fprintf(stderr, "the job in \"%s\" does not run (%s, process %s)\n", dir, state, pid), 1;
    if (kill((pid_t)number, SIGTERM)) return fprintf(stderr, "process %s cannot be told: %s\n", pid, strerror(errno)), 1;
    printf("told process %s to save and stop\n", pid);
    return 0;
}

// 1 in the parent, once the job has described itself; 0 in the child.
static int dt__job_submit(const char *dir, int *status) {
    char path[1024], id[160], before[40];
    char *text = dt__job_text(dir, "status.json");
    int log;
    pid_t child;
    dt__job_field(text, "started", before, sizeof before);
    free(text);
    *status = 1;
    for (int k = 0; k < 2; k++)
        if (dt__format(path, sizeof path, "%s%s", dir, k ? "/logs" : "") >= sizeof path || (mkdir(path, 0777) && errno != EEXIST))
            return fprintf(stderr, "--job-dir: \"%.200s\" cannot be made: %s\n", path, strerror(errno)), 1;
    dt__format(path, sizeof path, "%s/logs/chief.log", dir);
    log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    fflush(stdout);
    if (log < 0 || (child = fork()) < 0) return fprintf(stderr, "the job cannot be started: %s\n", strerror(errno)), 1;
    if (!child) {
        setsid();
        for (int fd = 1; fd < 3; fd++) dup2(log, fd);
        close(log);
        if ((log = open("/dev/null", O_RDONLY)) >= 0) { dup2(log, 0); close(log); }
        return 0;
    }
    close(log);
    for (int i = 0; i < 200 && !waitpid(child, &log, WNOHANG); i++) {  // until the status is this run's
        struct timespec pause = {0, 50000000};
        text = dt__job_text(dir, "status.json");
        dt__job_field(text, "pid", id, sizeof id);
        log = text && strtol(id, NULL, 10) == (long)child;
        dt__job_field(text, "started", id, sizeof id);
        log |= text && strcmp(id, before);
        free(text);
        if (log) break;
        nanosleep(&pause, NULL);
    }
    text = dt__job_text(dir, "status.json");
    dt__job_field(text, "id", id, sizeof id);
    free(text);
    if (!text) return fprintf(stderr, "the job has not begun: see \"%s\"\n", path), 1;
    printf("%s\n", id);
    *status = 0;
    return 1;
}

// status.json, and with follow each later one, until the job has ended.
static int dt__job_tell(const char *dir, int follow) {
    char state[32] = "", before[4096] = "";
    do {
        struct timespec pause = {0, 300000000};
        char *text = dt__job_text(dir, "status.json");
        if (!text) return fprintf(stderr, "\"%s\" is no job's directory: it has no status.json\n", dir), 1;
        if (strcmp(text, before)) fputs(text, stdout);
        fflush(stdout);
        dt__format(before, sizeof before, "%s", text);
        dt__job_field(text, "state", state, sizeof state);
        free(text);
        if (follow) nanosleep(&pause, NULL);
    } while (follow && (!strcmp(state, "RUNNING") || !strcmp(state, "PREPARING")));
    return 0;
}

DT_API int dt_job_command(int *argc, char **argv, int *status) {
    static const char *const word[] = {"submit", "status", "cancel", "list"};
    const char *dir = NULL;
    int which = 0, follow = 0;
    while (which < 4 && (*argc < 2 || strcmp(argv[1], word[which]))) which++;
    if (which == 4) return 0;
    for (int i = 2; i < *argc; i++) {
        if (!strncmp(argv[i], "--job-dir=", 10)) dir = argv[i] + 10;
        else if (!strcmp(argv[i], "--job-dir") && i + 1 < *argc) dir = argv[i + 1];
        follow |= !strcmp(argv[i], "--follow");
    }
    *status = 64;
    if (which == 3) { *status = dt__job_list(*argc, argv); return 1; }
    if (!dir) { fprintf(stderr, "%s: which job? Add --job-dir DIR\n", argv[1]); return 1; }
    if (which == 0 && dt__job_submit(dir, status)) return 1;
    if (which == 0) {
        for (int i = 1; i < *argc; i++) argv[i] = argv[i + 1];  // the last one is NULL
        --*argc;
        return 0;
    }
    if (which == 2) { *status = dt__job_cancel(dir); return 1; }
    *status = dt__job_tell(dir, follow);
    return 1;
}

// ---- the whole

static int dt__job_number(const char *name, const char *text, long standard, long *out) {
    int ok = 1;
    *out = text && *text ? (long)dt__parse_whole(text, LONG_MAX, &ok) : standard;
    if (!ok) fprintf(stderr, "--%s is \"%.60s\": a whole number of 0 or more is needed\n", name, text);
    return ok;
}

// The exit status of what is wrong; -1: it has finished; 0: go on.
static int dt__job_open(const dt_options *o, const dt_job *job, int argc, char **argv) {
    static const char *const folder[] = {"", "checkpoints", "events", "export"};
    dt__job *j = &dt__the_job;
    dt_error err = DT_DEFAULTS;
    char path[1024], line[512] = "";
    FILE *old;
    const char *base = argc > 0 && strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argc > 0 ? argv[0] : "job";
    time_t now = time(NULL);
    struct tm local;
    memset(j, 0, sizeof *j);
    j->door = -1;
    j->flags = *job;
    j->started = (double)now;
    if (!dt__job_number("checkpoint-every", job->every, 0, &j->every) || !dt__job_number("checkpoint-seconds", job->seconds, 0, &j->seconds)
        || !dt__job_number("keep", job->keep, 3, &j->keep)) return 64;
    if (j->keep < 1) return fprintf(stderr, "--keep is 0: one checkpoint at least is needed to come back\n"), 64;
    if (job->id && *job->id) dt__format(j->id, sizeof j->id, "%s", strlen(job->id) <= 128 ? job->id : "-");
    else {
        char when[32] = "";
        if (localtime_r(&now, &local)) strftime(when, sizeof when, "%Y%m%d_%H%M%S", &local);
        dt__format(j->id, sizeof j->id, "%.100s_%s", base, when);
        for (char *c = j->id; *c; c++) if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", *c)) *c = '_';
        if (!dt_job_id_valid(j->id)) dt__format(j->id, sizeof j->id, "job_%s", when);
    }
    if (!dt_job_id_valid(j->id)) return fprintf(stderr, "--job-id is \"%.130s\": letters, digits and _ are allowed, a letter first, at most 128\n", job->id), 64;
    for (int i = 0; i < DT__COUNT(folder); i++)
        if (!dt__job_path(folder[i], -1, path) || (mkdir(path, 0777) && errno != EEXIST)) {
            fprintf(stderr, "--job-dir: \"%.200s\" cannot be made: %s\n", path, errno ? strerror(errno) : "the path is too long");
            return 1;
        }
    dt__job_path("checkpoints", 0, path);
    if (dt__new_file_try("--job-dir", path, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    dt__job_path("job.json", -1, path);
    old = fopen(path, "r");
    if (old && fgets(line, sizeof line, old) && !strncmp(line, "{\"id\": \"", 8) && !(job->id && *job->id)) {  // it keeps its name
        line[8 + strcspn(line + 8, "\"")] = 0;
        if (dt_job_id_valid(line + 8)) strcpy(j->id, line + 8);
    } else *line = 0;
    if (old) fclose(old);
    if (!*line && dt__job_describe(argc, argv, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    dt__job_path("export/model.safetensors", -1, path);
    if (job->fresh && !strcmp(job->fresh, "1")) remove(path);
    if (!access(path, F_OK)) {
        if (o->progress != DT_OFF) printf("the job has finished: \"%s\" is its result; --fresh 1 begins anew\n", path);
        return -1;
    }
    dt__job_status("PREPARING", NULL);
    return 0;
}

DT_API int dt_job_run(const dt_options *o, const dt_job *job, int argc, char **argv) {
    dt__job *j = &dt__the_job;
    dt_options with = *o;
    int status;
    pid_t self = getpid();
    if (!job->dir || !*job->dir) return dt_run(o);
    if ((status = dt__job_open(o, job, argc, argv)) != 0) return status < 0 ? 0 : status;
    j->o = *o;
    with.on_event = dt__job_on_event;
    status = dt_run(&with);
    // The chief tells how it ended; if it never began, whoever started it.
    if (j->chief || (status && self == getpid() && !(o->workers || o->servers || o->tier))) {
        if (status && !*j->error) dt__format(j->error, sizeof j->error, "exit status %d", status);
        dt__job_status(!status ? "SUCCEEDED" : status == 130 || status == 143 ? "CANCELLED" : "FAILED", NULL);
    }
    return status;
}

DT_API int dt_job_main_opt(int argc, char **argv, const dt_options *o) {
    dt_job job = {NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    const dt_flag own[] = {DT_JOB_FLAGS(job)};
    dt_flag flags[64] = {{NULL, NULL, NULL}};
    dt_options with = *o;
    dt_error err = DT_DEFAULTS;
    int n = DT__COUNT(own), code;
    if (dt_job_command(&argc, argv, &code)) return code;
    memcpy(flags, own, sizeof own);
    for (const dt_flag *f = o->flags; f && f->name && n < 63; f++) flags[n++] = *f;
    with.flags = flags;
    code = dt_parse(&with, argc, argv, &err);
    if (code == DT_ERR_STOPPED) return 0;
    if (code) return fprintf(stderr, "%s: %s\n", argc > 0 ? argv[0] : "dtrain", err.text), 64;
    return dt_job_run(&with, &job, argc, argv);
}
#endif  // DTRAIN_JOB_H
