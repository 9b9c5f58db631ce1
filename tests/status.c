/* status.c - the status port, through real sockets: every path, requests that are split, too long or none at all, names that are
 * not this machine's, clients that send or read nothing, values that are put while others read, the ranks' files whole and
 * broken, and what is left behind. Ports are the system's choice.
 */
#define DT_STATUS_PATIENCE 0.4
#define DT_STATUS_RANKS 300
#include <limits.h>
#include <stdlib.h>
static int granted = INT_MAX;  /* allocations that still succeed */
#define GRANT(call) (__atomic_load_n(&granted, __ATOMIC_RELAXED) == INT_MAX || __atomic_fetch_sub(&granted, 1, __ATOMIC_RELAXED) > 0 ? (call) : NULL)
static inline void *scarce_malloc(size_t n) { return GRANT(malloc(n)); }
static inline void *scarce_calloc(size_t n, size_t size) { return GRANT(calloc(n, size)); }
#define malloc scarce_malloc
#define calloc scarce_calloc
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/status.h"
#undef malloc
#undef calloc
#include "test.h"

#ifdef DTRAIN_NO_SOCKETS
static void test_off(void) {
    dt_error err = DT_DEFAULTS;
    CHECK(!dt_status_open("0", 0, NULL, &err));
    CHECK_ERROR(err, DT_ERR_DISABLED, "--status-port");
    dt_status_put(NULL, "{}");
    dt_status_close(NULL);
    CHECK(!strcmp(dt_status_url(NULL), ""));
}
int main(void) { RUN(test_off); return finish(); }
#else
#include "scratch.h"

static void rest(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds, t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

/* ---- a client ------------------------------------------------------------------------------------------ */

static dt_status *begin(const char *folder) {
    dt_error err = DT_DEFAULTS;
    dt_status *s = dt_status_open("0", 0, folder, &err);
    if (!s) { printf("no status port: %s\n", err.text); exit(1); }
    return s;
}

static int port_of(const dt_status *s) { return atoi(strrchr(dt_status_url(s), ':') + 1); }

static int dial(const dt_status *s) {
    struct sockaddr_in a;
    struct timeval most = {10, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK), a.sin_port = htons((uint16_t)port_of(s));
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) { printf("cannot connect: %s\n", strerror(errno)); exit(1); }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);  /* so that a test ends in any case */
    return fd;
}

/* what comes until the other side closes, with a zero behind; free it. n may be NULL */
static char *hear(int fd, size_t *n) {
    size_t have = 0, room = 1 << 16;
    char *text = (char *)malloc(room);
    ssize_t got = 0;
    while (text && (got = recv(fd, text + have, room - have - 1, 0)) > 0)
        if ((have += (size_t)got) > room / 2) {
            char *more = (char *)realloc(text, room *= 2);
            if (!more) free(text);
            text = more;
        }
    if (!text) { printf("no memory for an answer of %zu bytes\n", room); exit(1); }
    CHECK_MSG(got == 0, "the answer does not end: %s", strerror(errno));
    text[have] = 0;
    if (n) *n = have;
    close(fd);
    return text;
}

static char *ask(const dt_status *s, const char *request, size_t *n) {
    int fd = dial(s);
    send(fd, request, strlen(request), MSG_NOSIGNAL);
    return hear(fd, n);
}

static char *get_path(const dt_status *s, const char *path) {
    char request[200];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    return ask(s, request, NULL);
}

static const char *body_of(const char *answer) {
    const char *b = strstr(answer, "\r\n\r\n");
    return b ? b + 4 : "";
}

static size_t length_of(const char *answer) {
    const char *l = strstr(answer, "\r\nContent-Length: ");
    return l ? (size_t)strtoul(l + 18, NULL, 10) : (size_t)-1;
}

static void check_answers(const dt_status *s, const char *when) {
    double start = dt__now();
    char *a = get_path(s, "/healthz");
    CHECK_MSG(!strncmp(a, "HTTP/1.1 200 OK\r\n", 17) && !strcmp(body_of(a), "ok\n"), "%s: \"%.100s\"", when, a);
    CHECK_MSG(dt__now() - start < 2, "%s: an answer took %.2f s", when, dt__now() - start);
    free(a);
}

static int open_files(void) {
    int n = 0;
    for (int fd = 0; fd < 400; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

#define HOST "Host: localhost\r\n\r\n"
static const char long_path[] = "GET /0123456789012345678901234567890123456789 HTTP/1.1\r\n";

static const struct { const char *name, *request, *head, *in_head, *in_body; } request_case[] = {
    { "page", "GET / HTTP/1.1\r\n" HOST, "200 OK", "Content-Type: text/html; charset=utf-8\r\n", "<title>dtrain</title>" },
    { "page's policy", "GET / HTTP/1.1\r\n" HOST, "200 OK", "\r\nContent-Security-Policy: default-src 'none'; ", "</html>\n" },
    { "query", "GET /?dark=1 HTTP/1.1\r\n" HOST, "200 OK", "text/html", "</script>" },
    { "status", "GET /status HTTP/1.1\r\n" HOST, "200 OK", "Content-Type: application/json\r\n", "{\"state\": \"RUNNING\", \"step\": 12}" },
    { "metrics", "GET /metrics HTTP/1.1\r\n" HOST, "200 OK", "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", "\ndtrain_step 12\n" },
    { "ranks", "GET /ranks HTTP/1.1\r\n" HOST, "200 OK", "Content-Type: application/json\r\n", "[]\n" },
    { "curves", "GET /metrics.csv HTTP/1.1\r\n" HOST, "200 OK", "Content-Type: text/csv; charset=utf-8\r\nContent-Length: 28\r\n", "step,loss\n1,2.5\n2,\n3,nan\n4,1" },
    { "health", "GET /healthz HTTP/1.1\r\n" HOST, "200 OK", "Cache-Control: no-store\r\n", "ok\n" },
    { "HTTP/1.0, no host", "GET /healthz HTTP/1.0\r\n\r\n", "200 OK", "Connection: close\r\n", "ok\n" },
    { "line feeds alone", "GET /healthz HTTP/1.1\nHost: localhost\n\n", "200 OK", "", "ok\n" },
    { "other headers", "GET /healthz HTTP/1.1\r\nAccept: */*\r\nHOST:localhost:99\r\nX: host: evil\r\n\r\n", "200 OK", "", "ok\n" },
    { "unknown path", "GET /etc/passwd HTTP/1.1\r\n" HOST, "404 Not Found", "", "/metrics.csv" },
    { "up", "GET /../metrics.csv HTTP/1.1\r\n" HOST, "404 Not Found", "", "/healthz" },
    { "tasks are no path", "GET /tasks/a.json HTTP/1.1\r\n" HOST, "404 Not Found", "", "/ranks" },
    { "longer name", "GET /statusx HTTP/1.1\r\n" HOST, "404 Not Found", "", "" },
    { "post", "POST /status HTTP/1.1\r\nContent-Length: 5\r\n" HOST "hello", "405 Method Not Allowed", "Allow: GET, HEAD\r\n", "GET and HEAD" },
    { "delete", "DELETE / HTTP/1.1\r\n" HOST, "405 Method Not Allowed", "Allow: GET, HEAD\r\n", "" },
    { "small letters", "get / HTTP/1.1\r\n" HOST, "400 Bad Request", "", "no HTTP" },
    { "no version", "GET /\r\n\r\n", "400 Bad Request", "", "METHOD /path" },
    { "next version", "GET / HTTP/2.0\r\n" HOST, "400 Bad Request", "", "" },
    { "version with more", "GET / HTTP/1.12\r\n" HOST, "400 Bad Request", "", "" },
    { "no path", "GET status HTTP/1.1\r\n" HOST, "400 Bad Request", "", "" },
    { "proxy's path", "GET http://localhost/ HTTP/1.1\r\n" HOST, "400 Bad Request", "", "" },
    { "three words", "GET / / HTTP/1.1\r\n" HOST, "400 Bad Request", "", "" },
    { "one word", "HELLO\r\n\r\n", "400 Bad Request", "", "" },
    { "TLS", "\026\003\001\002", "400 Bad Request", "", "https" },
    { "no host", "GET / HTTP/1.1\r\n\r\n", "400 Bad Request", "", "0 Host lines" },
    { "two hosts", "GET / HTTP/1.1\r\nHost: localhost\r\n" HOST, "400 Bad Request", "", "2 Host lines" },
    { "rebound name", "GET /status HTTP/1.1\r\nHost: evil.example:8080\r\n\r\n", "403 Forbidden", "", "HOST:PORT" },
    { "rebound HEAD", "HEAD /status HTTP/1.0\r\nHost: evil.example\r\n\r\n", "403 Forbidden", "", "" },
    { "never ends", "GET / HTTP/1.1\r\nHost: loc", "408 Request Timeout", "", "does not end" },
};

static void test_requests(void) {
    dt_status *s;
    if (scratch_begin()) { check_failed++; return; }
    put("metrics.csv", "step,loss\n1,2.5\n2,\n3,nan\n4,1", 28);
    s = begin(scratch);
    dt_status_put(s, "{\"state\": \"RUNNING\", \"step\": 12}");
    for (int i = 0; i < COUNT(request_case); i++) {
        size_t n;
        char *a = ask(s, request_case[i].request, &n), *end = strstr(a, "\r\n\r\n"), *found = strstr(a, request_case[i].in_head);
        const char *name = request_case[i].name;
        CHECK_MSG(!strncmp(a, "HTTP/1.1 ", 9) && !strncmp(a + 9, request_case[i].head, strlen(request_case[i].head)), "%s: \"%.60s\"", name, a);
        CHECK_MSG(end && found && found < end + 2, "%s: \"%s\" is not in the head", name, request_case[i].in_head);
        CHECK_MSG(strstr(body_of(a), request_case[i].in_body) != NULL, "%s: \"%.200s\"", name, body_of(a));
        if (strncmp(request_case[i].request, "HEAD ", 5)) CHECK_MSG(length_of(a) == n - (size_t)(body_of(a) - a), "%s: Content-Length %zu", name, length_of(a));
        else CHECK_MSG(!*body_of(a), "%s: HEAD has a body", name);
        free(a);
    }
    dt_status_close(s);
    scratch_end();
}

static void test_head(void) {
    static const char *const path[] = {"/", "/status", "/metrics", "/ranks", "/metrics.csv", "/healthz", "/none"};
    dt_status *s;
    if (scratch_begin()) { check_failed++; return; }
    put("metrics.csv", "step\n1\n", 7);
    s = begin(scratch);
    for (int i = 0; i < COUNT(path); i++) {
        char request[100], *with = get_path(s, path[i]), *without;
        size_t n;
        snprintf(request, sizeof request, "HEAD %s HTTP/1.1\r\n" HOST, path[i]);
        without = ask(s, request, &n);
        CHECK_MSG(n == (size_t)(body_of(with) - with) && !memcmp(with, without, n), "%s: HEAD \"%s\", GET \"%.300s\"", path[i], without, with);
        CHECK_MSG(length_of(without) > 0, "%s: no length", path[i]);
        free(with);
        free(without);
    }
    dt_status_close(s);
    scratch_end();
}

static const struct { const char *where, *host; int good; } host_case[] = {
    { "127.0.0.1:0", "localhost", 1 }, { "127.0.0.1:0", "LocalHost:1", 1 }, { "127.0.0.1:0", "127.0.0.1:9", 1 }, { "127.0.0.1:0", "[::1]:9", 1 },
    { "127.0.0.1:0", "192.168.1.7:9", 1 }, { "127.0.0.1:0", "a.example", 0 }, { "127.0.0.1:0", "localhost.a.example", 0 }, { "127.0.0.1:0", "127.0.0.1.a.example", 0 },
    { "127.0.0.1:0", "1a", 0 }, { "127.0.0.2:0", "a.example", 0 }, { "localhost:0", "localhost", 1 }, { "localhost:0", "node7", 0 },
    { "0.0.0.0:0", "a.example", 1 }, { "0.0.0.0:0", "node7.cluster:9", 1 },
};

static void test_hosts(void) {
    for (int i = 0; i < COUNT(host_case); i++) {
        dt_error err = DT_DEFAULTS;
        dt_status *s = dt_status_open(host_case[i].where, 0, NULL, &err);
        CHECK_OK(err);
        if (!s) continue;
        CHECK_MSG(dt__status_host(s, host_case[i].host, strlen(host_case[i].host)) == host_case[i].good, "at %s, Host: %s", host_case[i].where, host_case[i].host);
        dt_status_close(s);
    }
}

static void test_open(void) {
    static char far_folder[2000];
    static const struct { const char *where; int offset; const char *folder; int code; const char *text; } open_case[] = {
        { NULL, 0, NULL, DT_ERR_ARGUMENT, "--status-port is empty" },
        { "", 0, NULL, DT_ERR_ARGUMENT, "--status-port is empty" },
        { "web", 0, NULL, DT_ERR_ARGUMENT, "--status-port is \"web\"" },
        { "70000", 0, NULL, DT_ERR_ARGUMENT, "--status-port is \"70000\": a port is needed" },
        { "127.0.0.1:", 0, NULL, DT_ERR_ARGUMENT, "HOST:PORT" },
        { ":80", 0, NULL, DT_ERR_ARGUMENT, "HOST:PORT" },
        { "65535", 1, NULL, DT_ERR_ARGUMENT, "65536 is none: begin lower" },
        { "8080", -8081, NULL, DT_ERR_ARGUMENT, "begin lower" },
        { "no-such-host.invalid:8080", 0, NULL, DT_ERR_IO, "that host is not known" },
        { "192.0.2.1:8080", 0, NULL, DT_ERR_IO, "cannot listen at 192.0.2.1 port 8080" },
        { "0", 0, far_folder, DT_ERR_ARGUMENT, "has 1999 bytes" },
    };
    dt_error err = DT_DEFAULTS;
    char where[40];
    dt_status *s, *next;
    int before = open_files();
    memset(far_folder, 'a', sizeof far_folder - 1);
    for (int i = 0; i < COUNT(open_case); i++) {
        dt_error e = DT_DEFAULTS;
        CHECK(!dt_status_open(open_case[i].where, open_case[i].offset, open_case[i].folder, &e));
        CHECK_ERROR(e, open_case[i].code, open_case[i].text);
    }
    s = begin(NULL);
    snprintf(where, sizeof where, "%d", port_of(s));
    CHECK(!dt_status_open(where, 0, NULL, &err));
    CHECK_ERROR(err, DT_ERR_IO, "Address already in use");
    next = NULL;
    for (int offset = 1; offset < 100 && !next; offset++) {  /* one of the next ports is free */
        dt_error e = DT_DEFAULTS;
        if (!(next = dt_status_open(where, offset, NULL, &e))) continue;
        CHECK_MSG(port_of(next) == port_of(s) + offset, "%s is not %d behind %s", dt_status_url(next), offset, where);
        check_answers(next, "behind the first");
        dt_status_close(next);
    }
    CHECK_MSG(next != NULL, "none of the ports behind %s", where);
    dt_status_close(s);
    dt_status_close(NULL);
    dt_status_put(NULL, "{}");
    s = dt_status_open("[::1]:0", 0, NULL, NULL);
    if (s) CHECK_MSG(!strncmp(dt_status_url(s), "http://[::1]:", 13), "%s", dt_status_url(s));
    dt_status_close(s);
    CHECK_MSG(open_files() == before, "%d descriptors are left open", open_files() - before);
}

/* ---- clients that are no good ---------------------------------------------------------------------------- */

static void test_split(void) {
    static const char request[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    dt_status *s = begin(NULL);
    for (size_t cut = 1; cut < sizeof request - 1; cut += 3) {
        int fd = dial(s);
        char *a;
        send(fd, request, cut, MSG_NOSIGNAL);
        sched_yield();
        send(fd, request + cut, sizeof request - 1 - cut, MSG_NOSIGNAL);
        a = hear(fd, NULL);
        CHECK_MSG(!strcmp(body_of(a), "ok\n"), "cut at %zu: \"%s\"", cut, a);
        free(a);
    }
    int fd = dial(s);  /* and byte by byte */
    char *a;
    for (size_t i = 0; i < sizeof request - 1; i++) send(fd, request + i, 1, MSG_NOSIGNAL);
    a = hear(fd, NULL);
    CHECK_MSG(!strcmp(body_of(a), "ok\n"), "byte by byte: \"%s\"", a);
    free(a);
    dt_status_close(s);
}

static void test_garbage(void) {
    dt_status *s = begin(NULL);
    uint64_t seed = 7;
    char *huge = (char *)malloc(400000), *a;
    memset(huge, 'A', 400000);
    memcpy(huge, "GET /", 5);
    huge[399999] = 0;
    a = ask(s, huge, NULL);  /* more than the answer is written behind it: the client still gets it */
    CHECK_MSG(!strncmp(a, "HTTP/1.1 431 ", 13), "a line of 400 KB: \"%.60s\"", a);
    free(a);
    int fd = dial(s);
    send(fd, "GET /\0status HTTP/1.1\r\n\r\n", 25, MSG_NOSIGNAL);
    a = hear(fd, NULL);
    CHECK_MSG(!strncmp(a, "HTTP/1.1 400 ", 13), "a zero byte: \"%.60s\"", a);
    free(a);
    for (int i = 0; i < 300; i++) {  /* whatever it is, the next one is answered */
        unsigned char bytes[256];
        size_t n = 1 + (size_t)(i * 7 % 255);
        for (size_t k = 0; k < n; k++) { seed = dt__mix(seed); bytes[k] = i % 3 ? (unsigned char)" \r\n/AGETHPOST1.0:;"[seed % 18] : (unsigned char)(seed & 255); }
        if (i % 2) memcpy(bytes, "GET /", DT__MIN(n, 5));
        fd = dial(s);
        send(fd, bytes, n, MSG_NOSIGNAL);
        if (i % 5) { shutdown(fd, SHUT_WR); a = hear(fd, NULL); CHECK(!*a || !strncmp(a, "HTTP/1.1 4", 10)); free(a); }
        else close(fd);
    }
    check_answers(s, "after garbage");
    free(huge);
    dt_status_close(s);
}

static void test_half_open(void) {
    enum { MANY = 100 };
    int fd[MANY], before = open_files();
    dt_status *s = begin(NULL);
    for (int i = 0; i < MANY; i++) {
        fd[i] = dial(s);
        if (i % 2) send(fd[i], long_path, (size_t)i / 2, MSG_NOSIGNAL);
        if (i == 50) check_answers(s, "behind 50 half-open connections");
    }
    for (int i = 0; i < 3; i++) check_answers(s, "behind 100 half-open connections");
    for (int i = 0; i < MANY; i++) close(fd[i]);
    check_answers(s, "after them");
    dt_status_close(s);
    CHECK_MSG(open_files() == before, "%d descriptors are left open", open_files() - before);
}

/* A client that takes nothing of a large file holds nobody up, and is closed in the end. Others get the file whole. */
static void test_large_file(void) {
    size_t size = 16u << 20, n = 0;
    char *bytes = (char *)malloc(size), *a;
    dt_status *s;
    int lazy[3], narrow = 4096, before = open_files();
    double start = dt__now();
    if (scratch_begin()) { check_failed++; free(bytes); return; }
    for (size_t i = 0; i < size; i++) bytes[i] = (char)('0' + i / 7 % 10 + i % 3);
    put("metrics.csv", bytes, size);
    s = begin(scratch);
    for (int i = 0; i < 3; i++) {
        lazy[i] = dial(s);
        setsockopt(lazy[i], SOL_SOCKET, SO_RCVBUF, &narrow, sizeof narrow);
        send(lazy[i], "GET /metrics.csv HTTP/1.0\r\n\r\n", 29, MSG_NOSIGNAL);
    }
    check_answers(s, "beside clients that do not read");
    a = ask(s, "GET /metrics.csv HTTP/1.0\r\n\r\n", &n);
    CHECK_MSG(length_of(a) == size && n - (size_t)(body_of(a) - a) == size && !memcmp(body_of(a), bytes, size), "%zu bytes of %zu", n, size);
    free(a);
    CHECK(!truncate(at("metrics.csv"), 1000));  /* what is under way cannot be had any more */
    check_answers(s, "after the file was cut");
    rest(0.3 + 2 * DT_STATUS_PATIENCE);
    for (int i = 0; i < 3; i++) {
        while (recv(lazy[i], bytes, size, 0) > 0) {}
        close(lazy[i]);
    }
    CHECK_MSG(dt__now() - start < 5, "clients that do not read were kept for %.1f s", dt__now() - start);
    CHECK(!remove(at("metrics.csv")));
    a = get_path(s, "/metrics.csv");
    CHECK_MSG(!strncmp(a, "HTTP/1.1 200 ", 13) && !*body_of(a), "no file yet: \"%s\"", a);
    free(a);
    CHECK(!mkdir(at("metrics.csv"), 0777));
    a = get_path(s, "/metrics.csv");
    CHECK_MSG(!strncmp(a, "HTTP/1.1 500 ", 13) && strstr(a, "is no file"), "a folder: \"%s\"", a);
    free(a);
    dt_status_close(s);
    s = begin(NULL);
    a = get_path(s, "/metrics.csv");
    CHECK_MSG(!strncmp(a, "HTTP/1.1 404 ", 13) && strstr(a, "no folder"), "no folder: \"%s\"", a);
    free(a);
    dt_status_close(s);
    CHECK_MSG(open_files() == before, "%d descriptors are left open", open_files() - before);
    free(bytes);
    scratch_end();
}

/* Without memory: no half-open port, then an answer that says so, and the last status stays. */
static void test_no_memory(void) {
    dt_status *s = NULL;
    int before = open_files(), n;
    char *a;
    for (n = 0; n < 10 && !s; n++) {
        dt_error err = DT_DEFAULTS;
        __atomic_store_n(&granted, n, __ATOMIC_RELAXED);
        s = dt_status_open("0", 0, NULL, &err);
        if (!s) { CHECK_ERROR(err, DT_ERR_MEMORY, "--status-port"); CHECK(open_files() == before); }
    }
    CHECK_MSG(s && n > 3, "%d allocations are enough", n);
    __atomic_store_n(&granted, INT_MAX, __ATOMIC_RELAXED);
    dt_status_put(s, "{\"step\": 1}");
    __atomic_store_n(&granted, 0, __ATOMIC_RELAXED);
    dt_status_put(s, "{\"step\": 2}");
    for (int i = 0; i < 3; i++) {
        a = get_path(s, i == 0 ? "/status" : i == 1 ? "/metrics" : "/ranks");
        CHECK_MSG(!strncmp(a, "HTTP/1.1 503 ", 13), "\"%.60s\"", a);
        free(a);
    }
    __atomic_store_n(&granted, INT_MAX, __ATOMIC_RELAXED);
    a = get_path(s, "/status");
    CHECK_MSG(!strcmp(body_of(a), "{\"step\": 1}"), "\"%s\"", body_of(a));
    free(a);
    dt_status_close(s);
    CHECK(open_files() == before);
}

/* Without descriptors nobody is let in: the thread waits instead of spinning, and goes on when there are some. */
static void test_no_descriptors(void) {
    struct rlimit old, few;
    struct timespec before, after;
    struct sockaddr_in a;
    clockid_t clock;
    dt_status *s = begin(NULL);
    int fd = socket(AF_INET, SOCK_STREAM, 0), free_one = dup(fd);
    char *answer;
    close(free_one);
    if (getrlimit(RLIMIT_NOFILE, &old) || pthread_getcpuclockid(s->thread, &clock)) { dt_status_close(s); close(fd); SKIP("no limits here"); }
    few = old;
    few.rlim_cur = (rlim_t)free_one;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK), a.sin_port = htons((uint16_t)port_of(s));
    CHECK(!setrlimit(RLIMIT_NOFILE, &few));
    clock_gettime(clock, &before);
    CHECK(!connect(fd, (struct sockaddr *)&a, sizeof a));
    rest(0.25);
    clock_gettime(clock, &after);
    CHECK(!setrlimit(RLIMIT_NOFILE, &old));
    CHECK_MSG((double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec) < 0.05, "the thread spins");
    send(fd, "GET /healthz HTTP/1.0\r\n\r\n", 25, MSG_NOSIGNAL);
    answer = hear(fd, NULL);
    CHECK_MSG(!strcmp(body_of(answer), "ok\n"), "\"%s\"", answer);
    free(answer);
    dt_status_close(s);
}

/* ---- what is shown --------------------------------------------------------------------------------------- */

typedef struct { dt_status *s; int stop; long n; } putter;

static void *put_on(void *arg) {
    putter *p = (putter *)arg;
    while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE)) {
        char text[400];
        int n = snprintf(text, sizeof text, "{\"step\": %ld, \"state\": \"RUNNING\", \"pad\": \"%.*s\", \"last\": %ld}", p->n, (int)(p->n % 200),
            "....................................................................................................................................................................................................", p->n);
        CHECK(n > 0);
        dt_status_put(p->s, text);
        p->n++;
    }
    return NULL;
}

static void test_put(void) {
    putter p = {NULL, 0, 0};
    pthread_t thread;
    char *a;
    long seen = -1, steps = 0;
    p.s = begin(NULL);
    a = get_path(p.s, "/status");
    CHECK_MSG(!strcmp(body_of(a), "{}\n"), "before the first put: \"%s\"", body_of(a));
    free(a);
    dt_status_put(p.s, "{\"step\": 0, \"last\": 0}");
    dt_status_put(p.s, NULL);
    CHECK(!pthread_create(&thread, NULL, put_on, &p));
    for (int i = 0; i < 200; i++) {
        long first = -1, last = -2;
        a = get_path(p.s, i % 4 ? "/status" : "/metrics");
        if (i % 4) {
            const char *l = strstr(a, "\"last\": ");
            if (l && sscanf(body_of(a), "{\"step\": %ld", &first) == 1) last = strtol(l + 8, NULL, 10);
            CHECK_MSG(first == last && first >= seen, "half a status: \"%s\", %ld before", body_of(a), seen);
            steps += first > seen;
            seen = first;
        } else CHECK(strstr(a, "\ndtrain_step ") != NULL);
        free(a);
    }
    __atomic_store_n(&p.stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    CHECK_MSG(steps > 1, "nothing came in between");
    char *long_text = (char *)malloc(300000);  /* as large as you like */
    memset(long_text, 'x', 300000);
    memcpy(long_text, "{\"id\": \"", 8), strcpy(long_text + 299990, "\"}");
    dt_status_put(p.s, long_text);
    a = get_path(p.s, "/status");
    CHECK(!strcmp(body_of(a), long_text));
    free(a);
    free(long_text);
    dt_status_close(p.s);
}

static void test_metrics(void) {
    dt_status *s = begin(NULL);
    char *a;
    dt_status_put(s, "{\"state\": \"RUNNING\", \"id\": \"\\\"step\\\": 9\", \"step\": 500, \"loss\": null, \"accuracy\": \"0.5\", \"eval_loss\": 1.25e-3, \"eval_accuracy\": 1e999, "
        "\"inner\": {\"epoch\": 3, \"seconds\": [1]}, \"checkpoint\": -1}");
    a = get_path(s, "/metrics");
    CHECK_MSG(!strcmp(body_of(a), "# HELP dtrain_step Steps done.\n# TYPE dtrain_step gauge\ndtrain_step 500\n"
        "# HELP dtrain_evaluation_loss Loss of the last evaluation.\n# TYPE dtrain_evaluation_loss gauge\ndtrain_evaluation_loss 0.00125\n"
        "# HELP dtrain_checkpoint_step Step of the newest checkpoint.\n# TYPE dtrain_checkpoint_step gauge\ndtrain_checkpoint_step -1\n"
        "# HELP dtrain_up 1 while the job runs.\n# TYPE dtrain_up gauge\ndtrain_up 1\n"), "\"%s\"", body_of(a));
    free(a);
    dt_status_put(s, "{\"state\": \"SUCCEEDED\", \"note\": \"RUNNING\", \"step\": 5");  /* not whole: as far as it goes */
    a = get_path(s, "/metrics");
    CHECK_MSG(strstr(body_of(a), "dtrain_step 5\n") && strstr(body_of(a), "dtrain_up 0\n"), "\"%s\"", body_of(a));
    free(a);
    dt_status_close(s);
}

static const struct { const char *file, *text; } task_file[] = {
    { "w10.json", "{\"task\": \"worker 10\", \"state\": \"RUNNING\", \"step\": 10}" },
    { "w2.json", " {\"task\": \"worker 2\", \"step\": 7, \"samples_per_s\": 125.5,\n \"cpu_seconds\": 3.25, \"memory_mb\": 50}\n\n" },
    { "ps.json", "{\"task\": \"ps 0\", \"state\": \"SUCCEEDED\", \"step\": null}" },
    { "chief.json", "{\"host\": \"a\", \"task\": \"chief\", \"state\": \"RUNNING\", \"step\": 5}\n" },
    { "odd.json", "{\"task\": \"say \\\"hi\\\"\\\\\\n\"}" },
    { "again.json", "{\"task\": \"worker 2\", \"step\": 8}" },
    { "third.json", "{\"task\": \"worker 2\", \"step\": 9}" },
    { "half.json", "{\"task\": \"worker 3\", \"step\": 1" },            /* from here on: left out */
    { "two.json", "{\"task\": \"worker 4\"} {\"task\": \"worker 5\"}" },
    { "list.json", "[{\"task\": \"worker 6\"}]" },
    { "bad.json", "{\"task\": \"worker 7\", \"step\": 01}" },
    { "utf8.json", "{\"task\": \"worker \xff\"}" },
    { "empty.json", "" },
    { "nameless.json", "{\"step\": 3}" },
    { "number.json", "{\"task\": 3}" },
    { ".hidden.json", "{\"task\": \"worker 8\"}" },
    { "new.json.12.tmp", "{\"task\": \"worker 9\"}" },
};

static void test_ranks(void) {
    char *large = (char *)calloc(1, 5000), *a, name[80];
    dt_status *s;
    if (scratch_begin()) { check_failed++; free(large); return; }
    s = begin(scratch);
    a = get_path(s, "/ranks");
    CHECK_MSG(!strcmp(body_of(a), "[]\n"), "no folder yet: \"%s\"", body_of(a));
    free(a);
    dt_status_close(s);
    CHECK(!mkdir(at("tasks"), 0777));
    for (int i = 0; i < COUNT(task_file); i++) {
        const struct timespec old[2] = {{1000000 - 10 * i, 0}, {1000000 - 10 * i, 0}};
        snprintf(name, sizeof name, "tasks/%s", task_file[i].file);
        CHECK(!utimensat(AT_FDCWD, put(name, task_file[i].text, strlen(task_file[i].text)), old, 0));
    }
    memset(large, ' ', 4999);
    memcpy(large, "{\"task\": \"worker 11\",", 21), large[4998] = '}';
    put("tasks/large.json", large, 4999);
    CHECK(!mkfifo(at("tasks/pipe.json"), 0666) && !mkdir(at("tasks/folder.json"), 0777) && !symlink("nowhere", at("tasks/link.json")));
    s = begin(scratch);
    a = get_path(s, "/ranks");
    CHECK_MSG(!strcmp(body_of(a), "[{\"host\": \"a\", \"task\": \"chief\", \"state\": \"RUNNING\", \"step\": 5},\n"
        "{\"task\": \"worker 2\", \"step\": 7, \"samples_per_s\": 125.5,\n \"cpu_seconds\": 3.25, \"memory_mb\": 50},\n"
        "{\"task\": \"worker 10\", \"state\": \"RUNNING\", \"step\": 10},\n{\"task\": \"ps 0\", \"state\": \"SUCCEEDED\", \"step\": null},\n"
        "{\"task\": \"say \\\"hi\\\"\\\\\\n\"}]\n"), "\"%s\"", body_of(a));
    free(a);
    a = get_path(s, "/metrics");
    CHECK_MSG(!strcmp(body_of(a), "# HELP dtrain_up 1 while the job runs.\n# TYPE dtrain_up gauge\ndtrain_up 0\n"
        "# HELP dtrain_rank_step Steps done by the process.\n# TYPE dtrain_rank_step gauge\n"
        "dtrain_rank_step{task=\"chief\"} 5\ndtrain_rank_step{task=\"worker 2\"} 7\ndtrain_rank_step{task=\"worker 10\"} 10\n"
        "# HELP dtrain_rank_samples_per_second Training speed of the process.\n# TYPE dtrain_rank_samples_per_second gauge\ndtrain_rank_samples_per_second{task=\"worker 2\"} 125.5\n"
        "# HELP dtrain_rank_cpu_seconds_total CPU time of the process.\n# TYPE dtrain_rank_cpu_seconds_total counter\ndtrain_rank_cpu_seconds_total{task=\"worker 2\"} 3.25\n"
        "# HELP dtrain_rank_memory_bytes Memory of the process.\n# TYPE dtrain_rank_memory_bytes gauge\ndtrain_rank_memory_bytes{task=\"worker 2\"} 50000000\n"
        "# HELP dtrain_rank_up 1 while the process runs.\n# TYPE dtrain_rank_up gauge\n"
        "dtrain_rank_up{task=\"chief\"} 1\ndtrain_rank_up{task=\"worker 2\"} 0\ndtrain_rank_up{task=\"worker 10\"} 1\n"
        "dtrain_rank_up{task=\"ps 0\"} 0\ndtrain_rank_up{task=\"say \\\"hi\\\"\\\\ \"} 0\n"), "\"%s\"", body_of(a));
    free(a);
    dt_status_close(s);
    free(large);
    scratch_end();
}

/* More ranks than are kept, all of them in order. */
static void test_many_ranks(void) {
    dt_status *s;
    char name[40], text[60], *a;
    long last = -1;
    int n = 0;
    if (scratch_begin()) { check_failed++; return; }
    CHECK(!mkdir(at("tasks"), 0777));
    for (int i = 0; i < DT_STATUS_RANKS + 50; i++) {
        snprintf(name, sizeof name, "tasks/%d.json", i);
        put(name, text, (size_t)snprintf(text, sizeof text, "{\"task\": \"worker %d\"}", i));
    }
    s = begin(scratch);
    a = get_path(s, "/ranks");
    for (const char *p = body_of(a); (p = strstr(p, "worker ")) != NULL; n++) {
        long number = strtol(p += 7, NULL, 10);
        if (number <= last) { CHECK_MSG(0, "worker %ld behind worker %ld", number, last); break; }
        last = number;
    }
    CHECK_MSG(n == DT_STATUS_RANKS, "%d ranks", n);
    free(a);
    dt_status_close(s);
    scratch_end();
}

/* The page: no text becomes markup, nothing comes from elsewhere, and its policy names what it holds. */
static void test_page(void) {
    static const char *const never[] = {"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "src=", "@import", "style=", "onclick", "???"};
    dt_status *s = begin(NULL);
    char *a = get_path(s, "/"), *policy = strstr(a, "script-src 'sha256-"), want[100];
    const char *b = body_of(a);
    dt__writer w = dt__writer_on(want, sizeof want);
    for (int i = 0; i < COUNT(never); i++) CHECK_MSG(!strstr(b, never[i]), "the page holds %s", never[i]);
    for (int i = 0; i < COUNT(dt__status_page); i++) CHECK_MSG(strlen(dt__status_page[i]) < 4096, "piece %d has %zu bytes", i, strlen(dt__status_page[i]));
    dt__status_hash(&w, "<script>alert(1)</script>", "script");  /* as openssl dgst -sha256 -binary | base64 has it */
    CHECK_MSG(!strcmp(want, "; script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"), "%s", want);
    CHECK(policy && policy < b && strstr(policy, "style-src 'sha256-"));
    free(a);
    dt_status_close(s);
}

/* ---- the end --------------------------------------------------------------------------------------------- */

static void *close_it(void *s) {
    dt_status_close((dt_status *)s);
    return NULL;
}

/* A page that has asked just now sees the last status; without one, closing does not wait, whoever is connected. */
static void test_close(void) {
    dt_status *s = begin(NULL);
    pthread_t thread;
    double start;
    int fd[5], late;
    char *a;
    free(get_path(s, "/status"));
    for (int i = 0; i < 5; i++) fd[i] = dial(s);
    start = dt__now();
    dt_status_close(s);
    CHECK_MSG(dt__now() - start < 0.25, "closing took %.2f s", dt__now() - start);
    for (int i = 0; i < 5; i++) close(fd[i]);
    s = begin(NULL);
    free(get_path(s, "/status?page"));
    dt_status_put(s, "{\"state\": \"SUCCEEDED\"}");
    late = dial(s);
    start = dt__now();
    CHECK(!pthread_create(&thread, NULL, close_it, s));
    rest(0.1);
    send(late, "GET /status?page HTTP/1.0\r\n\r\n", 29, MSG_NOSIGNAL);
    a = hear(late, NULL);
    CHECK_MSG(strstr(a, "SUCCEEDED") != NULL, "\"%s\"", a);
    free(a);
    pthread_join(thread, NULL);
    CHECK_MSG(dt__now() - start < 1.3, "closing took %.2f s after the page had asked", dt__now() - start);
}

int main(void) {
    RUN(test_requests);
    RUN(test_head);
    RUN(test_hosts);
    RUN(test_open);
    RUN(test_split);
    RUN(test_garbage);
    RUN(test_half_open);
    RUN(test_large_file);
    RUN(test_no_memory);
    RUN(test_no_descriptors);
    RUN(test_put);
    RUN(test_metrics);
    RUN(test_ranks);
    RUN(test_many_ranks);
    RUN(test_page);
    RUN(test_close);
    return finish();
}
#endif
