/* cluster.c - who am I, from any text: TF_CONFIG and CLUSTER_SPEC, variables of launchers, Slurm's lists of hosts, addresses.
 * What is accepted is consistent: a rank below the size, an address that can be read; what is not says why.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/cluster.c -o fuzz-cluster -lm -pthread
 *   ./fuzz-cluster -max_total_time=60 corpus/
 *
 * The first byte says what the others are: a TF_CONFIG; variables, one a line; a list of hosts, behind a byte for the room;
 * an address, behind one too.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"

#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "not so: %s (%d %s)\n", #condition, err.code, err.text); abort(); } } while (0)

static dt_error err;

/* The variables that are looked at, and some more. */
static const char *const variables[] = {
    "DTRAIN_RANK", "DTRAIN_WORLD", "DTRAIN_CHIEF", "DTRAIN_PORT", "DTRAIN_BIND", "DTRAIN_INSECURE", "DTRAIN_JOIN", "DTRAIN_DEAD",
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "TF_CONFIG", "CLUSTER_SPEC"};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* The bytes up to the first zero, in a block of their own: reading beyond the end shows. */
static char *text_of(const uint8_t *data, size_t size) {
    size_t n = strnlen((const char *)data, size);
    char *s = (char *)malloc(n + 1);
    if (!s) abort();
    memcpy(s, data, n);
    s[n] = 0;
    return s;
}

static void judge(const dt__who *w, int code) {
    char host[256];
    int port = -1;
    MUST(code == err.code);
    if (code) {
        MUST(code == DT_ERR_CONFIG && *err.text && strlen(err.text) < sizeof err.text);
        return;
    }
    MUST(w->size >= 1 && w->size < DT__BY_SIGNAL && w->tries >= 1 && w->listener < 0 && *w->source);
    MUST(strlen(w->job) < sizeof w->job && strlen(w->chief) < sizeof w->chief && strlen(w->bind) < sizeof w->bind);
    if (w->size == 1) return;
    MUST(w->rank >= 0 && w->rank < w->size && *w->chief);
    if (dt__address(w->chief, host, sizeof host, &port)) MUST(*host && port >= 0 && port <= 65535);
}

static void specification(const char *text) {
    dt_cluster c = DT_DEFAULTS;
    dt__who w;
    int code, i;
    for (i = 0; i < VARIABLES; i++) unsetenv(variables[i]);
    c.tf_config = text;
    c.world_size = 1;  /* which .tf_config goes before */
    code = dt__who_am_i(&c, &w, &err);
    judge(&w, code);
    if (code) MUST(!strncmp(err.text, ".tf_config", 10) || strstr(err.text, " processes ("));
    if (!code && w.size > 1) MUST(!strcmp(w.source, ".tf_config") && w.port > 0 && w.port <= 65535);
}

static void environment(char *text) {
    dt__who w;
    char *line, *next, *value;
    int i;
    for (i = 0; i < VARIABLES; i++) unsetenv(variables[i]);
    for (line = text; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) *next++ = 0;
        value = strchr(line, '=');
        if (!value) continue;
        *value++ = 0;
        for (i = 0; i < VARIABLES; i++) if (!strcmp(line, variables[i])) setenv(line, value, 1);
    }
    judge(&w, dt__who_am_i(NULL, &w, &err));
}

/* The first of a list of hosts: a bracket gives its first number; one without its end, no host at all. */
static void hosts(const char *list, size_t room) {
    size_t n = 0, size = strlen(list) + 1;
    char *own = (char *)malloc(size), *host = (char *)malloc(room ? room : 1);
    const char *p = list;
    MUST(own && host);
    while (*p && *p != ',') {
        if (*p != '[') { own[n++] = *p++; continue; }
        for (p++; *p >= '0' && *p <= '9'; p++) own[n++] = *p;
        p += strcspn(p, "]");
        if (!*p) n = 0;
        else p++;
    }
    own[n] = 0;
    if (room) {
        dt__first_host(list, host, room);
        MUST(strlen(host) == (n < room ? n : room - 1) && !strncmp(host, own, strlen(host)));
    }
    free(own), free(host);
}

/* What is read as an address, written again, is the same. */
static void address(const char *text, size_t room) {
    char *host = (char *)malloc(room ? room : 1), again[600], host_again[512];
    int port = -1, port_again = -1;
    MUST(host);
    if (room && strlen(text) < 500 && dt__address(text, host, room, &port)) {
        MUST(*host && strlen(host) < room && port >= 0 && port <= 65535);
        if (!strpbrk(host, "[]")) {
            dt__format(again, sizeof again, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
            MUST(dt__address(again, host_again, sizeof host_again, &port_again) && !strcmp(host, host_again) && port == port_again);
        }
    }
    free(host);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text;
    int what = size ? data[0] % 4 : 0;
    if (size < 2 || size > 1 << 14) return 0;
    memset(&err, 0, sizeof err);
    text = text_of(data + (what < 2 ? 1 : 2), size - (what < 2 ? 1 : 2));
    if (what == 0) specification(text);
    if (what == 1) environment(text);
    if (what == 2) hosts(text, data[1]);
    if (what == 3) address(text, data[1]);
    free(text);
    return 0;
}
