/* wire.c - joining over TCP among strangers, peers that send anything, who this process is by its environment, and transports of
 * the caller's own. Ports are the system's choice; no test depends on how fast the machine is.
 */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "test.h"

#ifdef DTRAIN_NO_SOCKETS
int main(void) {
    printf("skipped wire: built without sockets\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else

/* ---- a world of threads, each with the handle of a process -------------------------------------------- */

typedef struct { int fd, port; } door;  /* a listener */

static door open_door(void) {
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    door d;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    d.fd = socket(AF_INET, SOCK_STREAM, 0);
    if (d.fd < 0 || bind(d.fd, (struct sockaddr *)&a, sizeof a) || listen(d.fd, 256) || getsockname(d.fd, (struct sockaddr *)&a, &n)) {
        printf("no port\n");
        exit(1);
    }
    d.port = ntohs(a.sin_port);
    return d;
}

/* as dt__who_am_i tells it; rank 0 takes over the door's listener */
static dt__who who(int rank, int size, door d) {
    dt__who w;
    memset(&w, 0, sizeof w);
    w.rank = rank, w.size = size, w.tries = 1, w.patience = 30, w.dead = 4;
    w.listener = rank ? -1 : d.fd;
    snprintf(w.chief, sizeof w.chief, "127.0.0.1:%d", d.port);
    strcpy(w.job, "a job"), strcpy(w.source, "a test");
    return w;
}

typedef struct peer {
    dt__who who;
    int rounds, n;    /* sums, of so many values */
    int narrow;       /* bytes that the system keeps for a connection, or 0 for its choice */
    double pause;     /* before it joins */
    dt_error leave;   /* what it says instead of good-bye */
    dt_error err;
    int joined, done, wrong;
    uint32_t crc;
    double seconds;   /* until it had joined */
    pthread_t thread;
} peer;

static void rest(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds, t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

static void *peer_main(void *arg) {
    peer *p = (peer *)arg;
    double start = dt__now();
    float *buf = (float *)calloc((size_t)p->n + 1, sizeof *buf);
    dt_comm *c;
    rest(p->pause);
    c = dt__net_open(&p->who, &p->err);
    p->seconds = dt__now() - start - p->pause;
    p->joined = c != NULL;
    for (int i = 0; c && p->narrow && i < p->who.size; i++)
        if (i != p->who.rank) setsockopt(c->net->link[i].fd, SOL_SOCKET, SO_SNDBUF, &p->narrow, sizeof p->narrow);
    for (; c && p->done < p->rounds; p->done++) {
        double sum = 0;
        for (int i = 0; i < p->n; i++) buf[i] = (float)(p->who.rank + 1) * (float)((i + p->done) % 1000);
        if (dt_allreduce(c, buf, (size_t)p->n, DT_SUM, &p->err)) break;
        for (int i = 0; i < p->who.size; i++) sum += i + 1;
        for (int i = 0; i < p->n; i++) p->wrong += buf[i] != (float)sum * (float)((i + p->done) % 1000);
    }
    free(buf);
    if (p->leave.code) dt__run_leave(c, &p->leave);
    else dt_comm_close(c);
    return NULL;
}

static void start_peer(peer *p) {
    if (pthread_create(&p->thread, NULL, peer_main, p)) { printf("no thread\n"); exit(1); }
}

static void set_peers(peer *p, int n, door d) {
    memset(p, 0, (size_t)n * sizeof *p);
    for (int i = 0; i < n; i++) p[i].who = who(i, n, d), p[i].rounds = 20, p[i].n = 9000;
}

static void end_peers(peer *p, int n) {
    for (int i = 0; i < n; i++) pthread_join(p[i].thread, NULL);
}

/* all have joined, and every sum was right */
static void check_peers(const peer *p, int n) {
    for (int i = 0; i < n; i++) {
        CHECK_MSG(p[i].joined && p[i].done == p[i].rounds, "rank %d has made %d calls: %s", i, p[i].done, p[i].err.text);
        CHECK_MSG(!p[i].wrong, "rank %d has %d wrong values", i, p[i].wrong);
    }
}

/* ten ranks pass long arrays round: sums, means and maxima are right, the same on all, also of a length that they cannot share evenly */
static void *ring_main(void *arg) {
    peer *p = (peer *)arg;
    float *buf = (float *)calloc((size_t)p->n, sizeof *buf);
    dt_comm *c = dt__net_open(&p->who, &p->err);
    p->joined = c && c->run == dt__net_run;
    for (int way = 0; c && way < 3; way++, p->done++) {
        int size = p->who.size;
        for (int i = 0; i < p->n; i++) buf[i] = (float)((p->who.rank * 31 + i * 7) % 64);
        if (dt_allreduce(c, buf, (size_t)p->n, (dt_reduction)way, &p->err)) break;
        for (int i = 0; i < p->n; i++) {
            float sum = 0, most = 0;
            for (int k = 0; k < size; k++) sum += (float)((k * 31 + i * 7) % 64), most = fmaxf(most, (float)((k * 31 + i * 7) % 64));
            float want = way == DT_SUM ? sum : way == DT_MAX ? most : sum / (float)size;
            p->wrong += fabsf(buf[i] - want) > (way == DT_MEAN ? 1e-5f : 0);
        }
        for (int i = 0; i < p->n; i++) p->crc = dt__crc32c(p->crc, buf + i, sizeof *buf);
    }
    free(buf);
    dt_comm_close(c);
    return NULL;
}
static void test_ring(void) {
    enum { N = DT_RING + 2 };
    peer p[N];
    set_peers(p, N, open_door());
    for (int i = 0; i < N; i++) {
        p[i].n = 100003, p[i].rounds = 3;
        if (pthread_create(&p[i].thread, NULL, ring_main, &p[i])) { printf("no thread\n"); exit(1); }
    }
    end_peers(p, N);
    check_peers(p, N);
    for (int i = 1; i < N; i++) CHECK(p[i].crc == p[0].crc);
}

/* ---- somebody who speaks with bytes -------------------------------------------------------------------- */

static int call_at(int port) {
    struct sockaddr_in a;
    struct timeval most = {20, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK), a.sin_port = htons((uint16_t)port);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) { if (fd >= 0) close(fd); return -1; }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);  /* so that a test ends in any case */
    return fd;
}

static void say(int fd, const void *p, size_t n) {
    const char *at = (const char *)p;
    while (n) {
        ssize_t gone = send(fd, at, n, MSG_NOSIGNAL);
        if (gone <= 0) return;
        at += gone, n -= (size_t)gone;
    }
}

typedef struct { dt__frame f; uint64_t number; size_t claims; int bad_magic, bad_version, bad_head, bad_payload; } letter;

static void say_frame(int fd, letter a, const void *payload) {
    dt__link l;
    unsigned char h[64];
    memset(&l, 0, sizeof l);
    l.sent = a.number;
    dt__link_queue(&l, a.f, payload);
    memcpy(h, l.head, 64);
    if (a.claims) dt__write_le(h + 40, a.claims, 4);
    h[0] = (unsigned char)(h[0] + a.bad_magic), h[4] = (unsigned char)(h[4] + a.bad_version), h[56] = (unsigned char)(h[56] ^ a.bad_payload);
    dt__write_le(h + 60, dt__crc32c(0, h, 60) ^ (unsigned)a.bad_head, 4);
    say(fd, h, 64);
    say(fd, payload, a.f.bytes);
}

static letter hello_of(int rank, int size, int port, const char *job, unsigned char *payload) {
    letter a;
    memset(&a, 0, sizeof a);
    memset(payload, 0, DT__HELLO_BYTES);
    dt__write_le(payload, (uint64_t)rank, 4);
    dt__write_le(payload + 4, (uint64_t)size, 4);
    dt__write_le(payload + 8, (uint64_t)port, 4);
    memcpy(payload + 12, job, strlen(job));
    a.f.type = DT__HELLO, a.f.rank = rank, a.f.bytes = DT__HELLO_BYTES;
    return a;
}

static void say_hello(int fd, int rank, int size, int port, const char *job) {
    unsigned char payload[DT__HELLO_BYTES];
    letter a = hello_of(rank, size, port, job, payload);
    say_frame(fd, a, payload);
}

static int hear(int fd, unsigned char *p, size_t n) {
    while (n) {
        ssize_t got = recv(fd, p, n, 0);
        if (got <= 0) return 0;
        p += got, n -= (size_t)got;
    }
    return 1;
}

/* the next frame's type, its payload as a text; 0 at the end */
static int hear_frame(int fd, char *text, size_t size) {
    unsigned char h[64], c;
    size_t n, i;
    *text = 0;
    if (!hear(fd, h, 64)) return 0;
    n = (size_t)dt__read_le(h + 40, 4);
    for (i = 0; i < n; i++) {
        if (!hear(fd, &c, 1)) return 0;
        if (i + 1 < size) text[i] = (char)c, text[i + 1] = 0;
    }
    return h[5];
}

/* the next frame's type, if its payload has n bytes */
static int hear_bytes(int fd, unsigned char *p, size_t n) {
    unsigned char h[64];
    return hear(fd, h, 64) && dt__read_le(h + 40, 4) == n && hear(fd, p, n) ? h[5] : 0;
}

/* dial as a process of this job would: what is answered in the end, 0 for nothing */
static int enter_with(const char *secret, int fd, int rank, int size, int port, const char *job, char *text, size_t room) {
    unsigned char said[DT__SAID], answer[48], proof[32];
    letter a = hello_of(rank, size, port, job, said);
    *text = 0;
    say_frame(fd, a, said);
    if (hear_bytes(fd, answer, sizeof answer) != DT__CHALLENGE) return 0;
    memcpy(said + DT__HELLO_BYTES, answer, 16);
    dt__proof(secret, said, 'a', proof);
    if (memcmp(proof, answer + 16, sizeof proof)) return -1;  /* it knows another secret */
    dt__proof(secret, said, 'd', proof);
    a.f.type = DT__PROOF, a.f.bytes = sizeof proof, a.number = 1;
    say_frame(fd, a, proof);
    return hear_frame(fd, text, room);
}

static int enter(int fd, int rank, int size, int port, const char *job, char *text, size_t room) {
    return enter_with("", fd, rank, size, port, job, text, room);
}

/* let in who dials, as a rank of this job would: 1 if it has proved itself */
static int let_in(int fd) {
    unsigned char said[DT__SAID] = {0}, answer[48] = {0}, proof[32], own[32];
    letter a;
    memset(&a, 0, sizeof a);
    if (hear_bytes(fd, said, DT__HELLO_BYTES) != DT__HELLO) return 0;
    dt__proof("", said, 'a', answer + 16);
    a.f.type = DT__CHALLENGE, a.f.rank = 1, a.f.bytes = sizeof answer;
    say_frame(fd, a, answer);
    if (hear_bytes(fd, proof, sizeof proof) != DT__PROOF) return 0;
    dt__proof("", said, 'd', own);
    a.f.type = DT__WELCOME, a.f.bytes = 0, a.number = 1;
    say_frame(fd, a, NULL);
    return !memcmp(proof, own, sizeof own);
}

static void hear_to_the_end(int fd) {
    unsigned char c[4096];
    while (recv(fd, c, sizeof c, 0) > 0) {}
}

static long most_memory(void) {  /* KiB */
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss;
}

static void check_memory(long before) {
    CHECK_MSG(most_memory() - before < 1 << 19, "%ld KiB more", most_memory() - before);
}

/* ---- strangers at the door ------------------------------------------------------------------------------ */

/* none of them gets in or disturbs the three who belong there; those of this job are told why not */
static void test_strangers(void) {
    static const struct { int rank, size; const char *job, *answer; } visitor[] = {
        {1, 5, "a job", "the world has 5 processes there, 3 here"}, {1, 2, "a job", "the world has 2 processes there, 3 here"},
        {0, 3, "a job", "rank 0 does not dial rank 0 of 3"}, {3, 3, "a job", "rank 3 does not dial"}, {INT_MAX, 3, "a job", "does not dial"},
        {1, 3, "another job", NULL}, {1, 3, "", NULL}, {1, 3, "a jo", NULL}};
    unsigned char payload[8192], noise[8192];
    char text[600];
    door d = open_door();
    peer p[3];
    int fd[40], n = 0;
    long memory = most_memory();
    set_peers(p, 3, d);
    start_peer(&p[0]);
    for (int i = 0; i < (int)sizeof noise; i++) noise[i] = (unsigned char)dt__random(3, 4, (uint64_t)i);
    for (int i = 0; i < COUNT(visitor); i++) {
        int at = fd[n++] = call_at(d.port), type;
        type = enter(at, visitor[i].rank, visitor[i].size, 1, visitor[i].job, text, sizeof text);
        if (visitor[i].answer) CHECK_MSG(type == DT__ABORT && strstr(text, visitor[i].answer), "visitor %d: type %d, \"%s\"", i, type, text);
        else CHECK_MSG(type == 0, "visitor %d: type %d, \"%s\"", i, type, text);
    }
    for (int i = 0; i < 14; i++) {  /* these hear nothing, and most stay */
        letter a = hello_of(1, 3, 1, "a job", payload);
        int at = fd[n++] = call_at(d.port);
        if (i == 0) { say(at, noise, sizeof noise); continue; }
        if (i == 1) { say(at, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27); continue; }
        if (i == 2) a.bad_magic = 1;
        if (i == 3) a.bad_version = 1;
        if (i == 4) a.bad_head = 1;
        if (i == 5) a.bad_payload = 1;
        if (i == 6) a.number = 7;
        if (i == 7) a.claims = UINT32_MAX;
        if (i == 8) a.f.type = DT__ROSTER, a.claims = UINT32_C(1) << 30;
        if (i == 9) a.f.type = DT__PART, a.claims = UINT32_C(1) << 31;
        if (i == 10) a.f.type = 77;
        if (i == 11) a.f.type = DT__WELCOME, a.f.bytes = 0;
        if (i == 12) { say_frame(at, a, payload); close(at); n--; continue; }  /* a rank that has gone again */
        if (i == 13) { say(at, "DTR1\1\1", 6); shutdown(at, SHUT_WR); continue; }
        say_frame(at, a, payload);
    }
    start_peer(&p[1]);
    start_peer(&p[2]);
    end_peers(p, 3);
    check_peers(p, 3);
    check_memory(memory);
    while (n) close(fd[--n]);
}

/* more silent connections than are kept in mind, and one that brings a byte at a time */
static void test_half_open(void) {
    unsigned char h[64 + DT__HELLO_BYTES];
    door d = open_door();
    peer p[3];
    int fd[100], k = 0;
    set_peers(p, 3, d);
    memset(h, 'D', sizeof h);
    for (int i = 0; i < COUNT(fd); i++) {
        fd[i] = call_at(d.port);
        if (i % 3 == 1) say(fd[i], "DTR1\1\1\0\0", 8);
    }
    for (int i = 0; i < 3; i++) start_peer(&p[i]);
    for (; k < 20; k++) { say(fd[0], h + k, 1); rest(0.05); }
    end_peers(p, 3);
    check_peers(p, 3);
    for (int i = 0; i < 3; i++) CHECK_MSG(p[i].seconds < 20, "rank %d has joined after %g s", i, p[i].seconds);
    for (int i = 0; i < COUNT(fd); i++) close(fd[i]);
}

/* a process that has called before rank 0 listened, and has given up: it is not taken for one that is there */
static void test_gone_again(void) {
    door d = open_door();
    peer p[2];
    set_peers(p, 2, d);
    for (int i = 0; i < 3; i++) {
        int fd = call_at(d.port);
        say_hello(fd, 1, 2, 1, "a job");
        close(fd);
    }
    for (int i = 0; i < 2; i++) { p[i].who.patience = 8; start_peer(&p[i]); }
    end_peers(p, 2);
    check_peers(p, 2);
}

/* rank 0 of four waits for 1.5 s, two have called, and the first of them is in as rank 2 */
static void two_call(peer *p, int *first, int *second) {
    door d = open_door();
    char text[600];
    set_peers(p, 1, d);
    p[0].who.size = 4;
    p[0].who.patience = 1.5;
    start_peer(&p[0]);
    *first = call_at(d.port), *second = call_at(d.port);
    CHECK_MSG(enter(*first, 2, 4, 1, "a job", text, sizeof text) == DT__WELCOME, "%s", text);
}

/* two claim one rank: the second is refused; and who has not come is named */
static void test_duplicate(void) {
    peer p[1];
    char text[600];
    int first, second;
    two_call(p, &first, &second);
    CHECK(enter(second, 2, 4, 1, "a job", text, sizeof text) == DT__ABORT);
    CHECK_MSG(strstr(text, "there is a rank 2 already"), "%s", text);
    hear_frame(first, text, sizeof text);
    CHECK_MSG(strstr(text, "these have not come: 1, 3"), "who came is told too: \"%s\"", text);
    close(first), close(second);
    end_peers(p, 1);
    CHECK_ERROR(p[0].err, DT_ERR_PEER, "of 4 processes these have not come: 1, 3");
}

/* one that is stopped while it waits for the others says so: its place is free for the next */
static void test_stopped_early(void) {
    peer p[1];
    char text[600];
    letter a;
    int first, second;
    two_call(p, &first, &second);
    memset(&a, 0, sizeof a);
    a.f.type = DT__ABORT, a.f.rank = 2, a.f.detail = DT_ERR_PEER, a.f.bytes = 7, a.number = 2;
    say_frame(first, a, "stopped");
    CHECK_MSG(enter(second, 2, 4, 1, "a job", text, sizeof text) == DT__WELCOME, "%s", text);
    close(first), close(second);
    end_peers(p, 1);
}

/* the sizes of the world differ: the one who comes is refused with both, the other waits in vain for the rest */
static void test_world_sizes(void) {
    door d = open_door();
    peer p[2];
    set_peers(p, 2, d);
    p[0].who.size = 3, p[1].who.size = 4;
    p[0].who.patience = 1.5;
    for (int i = 0; i < 2; i++) start_peer(&p[i]);
    end_peers(p, 2);
    CHECK_ERROR(p[0].err, DT_ERR_PEER, "these have not come: 1, 2");
    CHECK_ERROR(p[1].err, DT_ERR_CONFIG, "refuses: the world has 4 processes there, 3 here");
}

/* one does not come: those who came all say so */
static void test_missing(void) {
    door d = open_door();
    peer p[2];
    set_peers(p, 2, d);
    p[0].who.size = p[1].who.size = 3;
    p[0].who.patience = 1;
    for (int i = 0; i < 2; i++) start_peer(&p[i]);
    end_peers(p, 2);
    for (int i = 0; i < 2; i++) CHECK_ERROR(p[i].err, DT_ERR_PEER, "of 3 processes these have not come: 2");
}

/* rank 0 writes where it is to a file, once it listens; one that an earlier job left is read again, and no other job is joined */
static void meet_at(peer *p, int n, const char *path) {
    door none = {-1, 0};
    set_peers(p, n, none);
    for (int i = 0; i < n; i++) {
        snprintf(p[i].who.file, sizeof p[i].who.file, "%s", path);
        snprintf(p[i].who.chief, sizeof p[i].who.chief, "file:%s", path);
        strcpy(p[i].who.bind, "127.0.0.1");
        p[i].who.job[0] = 0, p[i].who.listener = -1;
        p[i].pause = i ? 0 : 0.3;  /* so that the others find the old file */
    }
}
static void test_meeting_file(void) {
    enum { N = 3 };
    char folder[] = "/tmp/dtrain-test-XXXXXX", path[64];
    peer p[N], others[2];
    door closed = open_door(), living = open_door();
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/meet", folder);
    close(closed.fd);
    for (int old = 0; old < 3; old++) {  /* no file; a job's that has ended; a job's that goes on */
        meet_at(p, N, path);
        if (old == 2) {
            set_peers(others, 2, living);
            others[1].pause = 1;
            for (int i = 0; i < 2; i++) start_peer(&others[i]);
        }
        if (old) {
            FILE *f = fopen(path, "w");
            CHECK(f && fprintf(f, "127.0.0.1:%d 123\n", old == 1 ? closed.port : living.port) > 0 && !fclose(f));
        }
        for (int i = 0; i < N; i++) start_peer(&p[i]);
        end_peers(p, N);
        check_peers(p, N);
        CHECK(access(path, F_OK));  /* nobody shall find it later */
        if (old < 2) continue;
        end_peers(others, 2);
        check_peers(others, 2);
    }
    meet_at(p, 2, path);
    p[1].who.patience = 0.2;
    start_peer(&p[1]);
    pthread_join(p[1].thread, NULL);
    CHECK_ERROR(p[1].err, DT_ERR_PEER, "waited in vain for rank 0 to write");
    CHECK(!mkfifo(path, 0600));  /* a failure removes nothing */
    meet_at(p, 2, path);
    start_peer(&p[0]);
    pthread_join(p[0].thread, NULL);
    CHECK_ERROR(p[0].err, DT_ERR_IO, "is no regular file");
    CHECK(!remove(path));
    rmdir(folder);
    meet_at(p, 2, path);
    start_peer(&p[0]);
    pthread_join(p[0].thread, NULL);
    CHECK_ERROR(p[0].err, DT_ERR_IO, "DTRAIN_RDZV: cannot create a file beside");
}

/* What MPICH's mpiexec does for its ranks (PMI-1), until all have said goodbye. spoils: rank 1 hears something else instead */
enum { PMI_RANKS = 3 };
typedef struct { int fd[PMI_RANKS], n, left; char put[900], kvs[64]; const char *spoils; pthread_t thread; } mpiexec;
static void *mpiexec_main(void *user) {
    mpiexec *m = (mpiexec *)user;
    int waiting = 0;
    while (m->left) {
        struct pollfd p[PMI_RANKS];
        for (int i = 0; i < m->n; i++) p[i].fd = m->fd[i], p[i].events = POLLIN, p[i].revents = 0;
        poll(p, (nfds_t)m->n, -1);
        for (int i = 0; i < m->n; i++) {
            char line[1200] = "", answer[1300] = "", key[64] = "", kvs[64] = "";
            ssize_t n = p[i].revents ? recv(m->fd[i], line, sizeof line - 1, 0) : -1;
            if (n < 0) continue;
            if (n == 0) { close(m->fd[i]); m->fd[i] = -1; m->left--; continue; }
            CHECK_MSG(line[n - 1] == '\n' && !strchr(line, '\n')[1], "one line at a time: %s", line);
            if (i == 1 && m->spoils) {
                if (*m->spoils) send(m->fd[i], m->spoils, strlen(m->spoils), MSG_NOSIGNAL);  /* it may have left */
                else shutdown(m->fd[i], SHUT_RDWR);
                continue;
            }
            if (!strcmp(line, "cmd=init pmi_version=1 pmi_subversion=1\n")) strcpy(answer, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
            else if (!strcmp(line, "cmd=get_my_kvsname\n")) snprintf(answer, sizeof answer, "cmd=my_kvsname kvsname=%s\n", m->kvs);
            else if (sscanf(line, "cmd=put kvsname=%63s key=%63s value=%899s", kvs, key, m->put) == 3) {
                CHECK(i == 0 && !strcmp(kvs, m->kvs) && strlen(key) <= 64 && strlen(m->put) <= 1024);
                strcpy(answer, "cmd=put_result rc=0 msg=success\n");
            } else if (sscanf(line, "cmd=get kvsname=%63s key=%63s", kvs, key) == 2) {
                CHECK(*m->put && !strcmp(kvs, m->kvs) && !strcmp(key, "dtrain"));
                snprintf(answer, sizeof answer, "cmd=get_result rc=0 msg=success value=%s\n", m->put);
            } else if (!strcmp(line, "cmd=finalize\n")) strcpy(answer, "cmd=finalize_ack\n");
            else {
                CHECK_MSG(!strcmp(line, "cmd=barrier_in\n"), "mpiexec does not know \"%s\"", line);
                if (++waiting < m->n) continue;
                for (int k = 0; k < m->n; k++) CHECK(send(m->fd[k], "cmd=barrier_out\n", 16, MSG_NOSIGNAL) == 16);
                continue;
            }
            CHECK(send(m->fd[i], answer, strlen(answer), MSG_NOSIGNAL) == (ssize_t)strlen(answer));
        }
    }
    return NULL;
}

static void under_mpiexec(mpiexec *m, peer *p, int n, const char *spoils) {
    door none = {-1, 0};
    memset(m, 0, sizeof *m);
    m->n = m->left = n, m->spoils = spoils;
    strcpy(m->kvs, "kvs_4711_0_1234_host");
    set_peers(p, n, none);
    for (int i = 0; i < n; i++) {
        int pair[2];
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        m->fd[i] = pair[0], p[i].who.store = pair[1], p[i].who.listener = -1;
        strcpy(p[i].who.chief, "PMI_FD"), strcpy(p[i].who.bind, "127.0.0.1");
    }
    pthread_create(&m->thread, NULL, mpiexec_main, m);
}

static void no_matter(int number) { (void)number; }
static void test_pmi(void) {
    static const char *const bad[] = {"", "hello\n", "cmd=response_to_init\n", "cmd=response_to_init rc=\n", "rc=0 kvsname=k\n"};
    static char endless[5001];
    mpiexec m;
    peer p[PMI_RANKS];
    struct sigaction quiet, before;
    int file[2];
    char c;
    memset(&quiet, 0, sizeof quiet);
    quiet.sa_handler = no_matter;
    sigaction(SIGUSR1, &quiet, &before);
    for (int secret = 0; secret < 2; secret++) {
        under_mpiexec(&m, p, PMI_RANKS, NULL);
        for (int i = 0; i < PMI_RANKS && secret; i++) strcpy(p[i].who.secret, "the caller's own secret");
        p[2].pause = 0.3;
        for (int i = 0; i < PMI_RANKS; i++) start_peer(&p[i]);
        for (int i = 0; i < 20; i++) rest(0.01), pthread_kill(p[0].thread, SIGUSR1);  /* a profiler's, say: it goes on waiting */
        end_peers(p, PMI_RANKS);
        check_peers(p, PMI_RANKS);
        for (int i = 0; i < PMI_RANKS; i++) {
            const char *word = strchr(m.put, ',');
            CHECK(word && strlen(word) > 10 && !strncmp(m.put, "127.0.0.1:", 10) && !strcmp(p[i].who.job, m.kvs));
            CHECK(!strcmp(p[i].who.secret, secret ? "the caller's own secret" : word + 1));
            close(p[i].who.store);
        }
        pthread_join(m.thread, NULL);
    }
    memset(endless, 'x', sizeof endless - 1);
    for (int i = 0; i <= COUNT(bad); i++) {
        under_mpiexec(&m, p, 2, i < COUNT(bad) ? bad[i] : endless);
        p[1].who.patience = 0.3;  /* a silent one */
        start_peer(&p[1]);
        pthread_join(p[1].thread, NULL);
        CHECK_ERROR(p[1].err, DT_ERR_CONFIG, "not all came, or mpiexec does not tell where rank 0 is (PMI_FD): set DTRAIN_CHIEF");
        for (int k = 0; k < 2; k++) close(p[k].who.store);
        pthread_join(m.thread, NULL);
    }
    CHECK(!pipe(file));  /* an old PMI_FD, which is something else by now, gets nothing */
    set_peers(p, 1, (door){-1, 0});
    p[0].who.size = 2, p[0].who.store = file[1];
    start_peer(&p[0]);
    pthread_join(p[0].thread, NULL);
    CHECK_ERROR(p[0].err, DT_ERR_CONFIG, "mpiexec does not tell");
    close(file[1]);
    CHECK(read(file[0], &c, 1) == 0);
    close(file[0]);
    sigaction(SIGUSR1, &before, NULL);
}

/* What torchrun's agent keeps for its processes, c10d's TCPStore. spoils: who waits hears that instead, and then nothing. */
typedef struct { door door; char key[100], value[400]; const char *spoils; size_t n_spoils; pthread_mutex_t lock; pthread_cond_t set; pthread_t thread; } agent;
typedef struct { agent *a; int fd; } agent_client;
static int agent_text(int fd, char *text, size_t size) {
    uint64_t n;
    if (recv(fd, &n, 8, MSG_WAITALL) != 8) return 0;
    CHECK(n > 0 && n < size);
    if (n >= size || recv(fd, text, n, MSG_WAITALL) != (ssize_t)n) return 0;
    text[n] = 0;
    return 1;
}
static void *agent_client_main(void *user) {
    agent_client *c = (agent_client *)user;
    agent *a = c->a;
    unsigned char op;
    uint32_t magic;
    uint64_t n;
    char key[100];
    while (recv(c->fd, &op, 1, 0) == 1) {
        if (op == 0) CHECK(recv(c->fd, &magic, 4, MSG_WAITALL) == 4 && magic == 0x3C85F7CE);
        else if (op == 1) {
            char value[400];
            if (!agent_text(c->fd, key, sizeof key) || !agent_text(c->fd, value, sizeof value)) break;
            pthread_mutex_lock(&a->lock);
            strcpy(a->key, key), strcpy(a->value, value);
            pthread_cond_broadcast(&a->set);
            pthread_mutex_unlock(&a->lock);
        } else if (op == 6) {
            if (recv(c->fd, &n, 8, MSG_WAITALL) != 8 || n != 1 || !agent_text(c->fd, key, sizeof key)) break;
            pthread_mutex_lock(&a->lock);
            while (strcmp(a->key, key) && !a->spoils) pthread_cond_wait(&a->set, &a->lock);
            const char *says = a->spoils ? a->spoils : "";
            n = a->spoils ? a->n_spoils : 1;
            pthread_mutex_unlock(&a->lock);
            if (n == 0 || send(c->fd, says, n, MSG_NOSIGNAL) != 1) break;
        } else if (op == 3) {
            char answer[8 + sizeof a->value];
            if (!agent_text(c->fd, key, sizeof key)) break;
            pthread_mutex_lock(&a->lock);
            CHECK_MSG(!strcmp(a->key, key), "the store has no \"%s\"", key);
            n = strlen(a->value);
            memcpy(answer, &n, 8), memcpy(answer + 8, a->value, n);
            pthread_mutex_unlock(&a->lock);
            for (size_t i = 0; i < 8 + n; i++) {  /* byte by byte, as a network may */
                if (send(c->fd, answer + i, 1, MSG_NOSIGNAL) != 1) break;
                if (i % 8 == 3) rest(0.001);
            }
        } else { CHECK_MSG(0, "the store does not know operation %d", op); break; }
    }
    close(c->fd);
    free(c);
    return NULL;
}
static void *agent_main(void *user) {
    agent *a = (agent *)user;
    int fd;
    while ((fd = accept(a->door.fd, NULL, NULL)) >= 0) {
        agent_client *c = (agent_client *)malloc(sizeof *c);
        pthread_t thread;
        c->a = a, c->fd = fd;
        if (pthread_create(&thread, NULL, agent_client_main, c)) { printf("no thread\n"); exit(1); }
        pthread_detach(thread);
    }
    return NULL;
}
static void by_agent(const agent *a, peer *p, int n) {
    set_peers(p, n, (door){-1, 0});
    for (int i = 0; i < n; i++) {
        p[i].who.store = -1, p[i].who.listener = -1;
        snprintf(p[i].who.file, sizeof p[i].who.file, "127.0.0.1:%d", a->door.port);
        strcpy(p[i].who.chief, p[i].who.file);
        p[i].pause = i ? 0 : 0.3;  /* the others come first */
    }
}

static void test_torchrun_store(void) {
    enum { N = 3 };
    static const struct { const char *says; size_t n; } bad[] = {
        {"", 0}, {"\1", 1}, {"\0\377\377\377\377\377\377\377\377", 9}, {"\0\5\0\0\0\0\0\0\0hello", 14}, {"\0\5\0\0\0\0\0\0\0h", 10}};
    static agent a;  /* it serves to the end */
    peer p[N], others[2];
    door closed = open_door(), living = open_door();
    close(closed.fd);
    a.door = open_door();
    pthread_mutex_init(&a.lock, NULL), pthread_cond_init(&a.set, NULL);
    pthread_create(&a.thread, NULL, agent_main, &a);
    setenv("TORCHELASTIC_RUN_ID", "r7", 1);
    for (int old = 0; old < 3; old++) {  /* no word there; of a job that has ended; of one that goes on */
        pthread_mutex_lock(&a.lock);
        strcpy(a.key, old ? "dtrain/r7/chief" : "");
        snprintf(a.value, sizeof a.value, "127.0.0.1:%d 123", old == 1 ? closed.port : living.port);
        pthread_mutex_unlock(&a.lock);
        by_agent(&a, p, N);
        for (int i = 0; i < N && old == 1; i++) strcpy(p[i].who.bind, "0.0.0.0"), p[i].who.insecure = 1;  /* no address to tell */
        if (old == 2) {
            set_peers(others, 2, living);
            others[1].pause = 1;
            for (int i = 0; i < 2; i++) start_peer(&others[i]);
        }
        for (int i = 0; i < N; i++) start_peer(&p[i]);
        end_peers(p, N);
        check_peers(p, N);
        pthread_mutex_lock(&a.lock);
        CHECK(!strcmp(a.key, "dtrain/r7/chief") && !strncmp(a.value, "127.0.0.1:", 10) && atoi(a.value + 10) != living.port);
        CHECK(strchr(a.value, ' ') && !strcmp(strchr(a.value, ' ') + 1, p[2].who.job) && strlen(p[2].who.job) > 10);
        pthread_mutex_unlock(&a.lock);
        if (old < 2) continue;
        end_peers(others, 2);
        check_peers(others, 2);
    }
    for (int i = 0; i <= COUNT(bad); i++) {  /* the last: there is no store */
        pthread_mutex_lock(&a.lock);
        if (i < COUNT(bad)) a.spoils = bad[i].says, a.n_spoils = bad[i].n;
        pthread_mutex_unlock(&a.lock);
        by_agent(&a, p, 2);
        for (int k = 0; k < 2; k++) {
            if (i == COUNT(bad)) snprintf(p[k].who.file, sizeof p[k].who.file, "127.0.0.1:%d", closed.port);
            p[k].who.patience = 0.3, p[k].pause = 0;
            start_peer(&p[k]);
        }
        for (int k = 0; k < 2; k++) pthread_join(p[k].thread, NULL);
        CHECK_ERROR(p[0].err, DT_ERR_CONFIG, "does not answer: set DTRAIN_CHIEF");
        CHECK_ERROR(p[1].err, DT_ERR_PEER, "rank 1 waited in vain for rank 0 to write to \"127.0.0.1:");
    }
    unsetenv("TORCHELASTIC_RUN_ID");
    shutdown(a.door.fd, SHUT_RDWR);
    close(a.door.fd);
    pthread_join(a.thread, NULL);
}

/* FIPS 180-4's examples, and HMAC as RFC 2104 writes it, with short and long keys */
static void test_hashes(void) {
    static const struct { const char *text; const char *hash; } sha[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"}};
    unsigned char said[DT__SAID], text[64 + DT__SAID + 1], key[64], inner[64 + 32], out[32], want[32];
    for (int i = 0; i < COUNT(sha); i++) {
        char hex[65];
        dt__sha256((const unsigned char *)sha[i].text, strlen(sha[i].text), out);
        for (int k = 0; k < 32; k++) snprintf(hex + 2 * k, 3, "%02x", out[k]);
        CHECK_MSG(!strcmp(hex, sha[i].hash), "\"%s\": %s", sha[i].text, hex);
    }
    for (int i = 0; i < DT__SAID; i++) said[i] = (unsigned char)(i * 7);
    for (int length = 16; length < 200; length += 61) {
        char secret[256] = "";
        for (int i = 0; i < length; i++) secret[i] = (char)('a' + i % 26), secret[i + 1] = 0;
        memset(key, 0, sizeof key);
        if (length > 64) dt__sha256((const unsigned char *)secret, (size_t)length, key); else memcpy(key, secret, (size_t)length);
        for (int i = 0; i < 64; i++) text[i] = key[i] ^ 0x36, inner[i] = key[i] ^ 0x5c;
        memcpy(text + 64, said, sizeof said), text[64 + DT__SAID] = 'd';
        dt__sha256(text, sizeof text, inner + 64);
        dt__sha256(inner, sizeof inner, want);
        dt__proof(secret, said, 'd', out);
        CHECK(!memcmp(out, want, sizeof want));
        dt__proof(secret, said, 'a', out);
        CHECK(memcmp(out, want, sizeof want));
    }
}

/* who knows the secret joins; who does not is told or is left standing, and learns nothing that helps */
static void test_secret(void) {
    static const char right[] = "a secret of this job", wrong[] = "a secret of that job";
    door d = open_door();
    peer p[3], stranger[1];
    char text[600];
    unsigned char said[DT__SAID], answer[48];
    letter a;
    int fd;
    set_peers(p, 3, d);
    set_peers(stranger, 1, d);
    for (int i = 0; i < 3; i++) strcpy(p[i].who.secret, right);
    stranger[0].who = who(1, 3, d);
    strcpy(stranger[0].who.secret, wrong);
    start_peer(&p[0]);
    start_peer(stranger);
    end_peers(stranger, 1);
    CHECK_ERROR(stranger[0].err, DT_ERR_CONFIG, "rank 0 (127.0.0.1:");
    CHECK_ERROR(stranger[0].err, DT_ERR_CONFIG, "knows another secret: set the same DTRAIN_SECRET for all");
    fd = call_at(d.port);
    CHECK(enter_with(wrong, fd, 1, 3, 1, "a job", text, sizeof text) == -1);
    close(fd);
    fd = call_at(d.port);  /* rank 0's own proof, sent back to it */
    a = hello_of(1, 3, 1, "a job", said);
    say_frame(fd, a, said);
    CHECK(hear_bytes(fd, answer, sizeof answer) == DT__CHALLENGE);
    a.f.type = DT__PROOF, a.f.bytes = 32, a.number = 1;
    say_frame(fd, a, answer + 16);
    CHECK(hear_frame(fd, text, sizeof text) == 0);
    close(fd);
    start_peer(&p[1]);
    start_peer(&p[2]);
    end_peers(p, 3);
    check_peers(p, 3);
}

/* SipHash-2-4 by its authors' vectors; and who has proved that he knows the secret, but sends a frame without its tag, ends the job */
static void test_tags(void) {
    unsigned char key[16], text[256];
    uint64_t k[2];
    for (int i = 0; i < 256; i++) text[i] = (unsigned char)i;
    memcpy(key, text, sizeof key);
    k[0] = dt__read_le(key, 8), k[1] = dt__read_le(key + 8, 8);
    CHECK(dt__tag(k, text, text + 56, 0) == UINT64_C(0xb78dbfaf3a8d83bd));
    CHECK(dt__tag(k, text, text + 56, 7) == UINT64_C(0x958a324ceb064572));
    door d = open_door();
    peer p[2];
    char answer[600];
    set_peers(p, 2, d);
    strcpy(p[0].who.secret, "a secret of this job");
    start_peer(&p[0]);
    int fd = call_at(d.port);
    CHECK(enter_with("a secret of this job", fd, 1, 2, 1, "a job", answer, sizeof answer) == DT__WELCOME);
    letter a;
    memset(&a, 0, sizeof a);
    a.f.type = DT__HEARTBEAT, a.f.rank = 1, a.number = 2;
    say_frame(fd, a, "");
    end_peers(p, 1);
    CHECK_ERROR(p[0].err, DT_ERR_PEER, "rank 1 (127.0.0.1:1) is lost: it sent damaged bytes");
    close(fd);
}

/* where the secret comes from: the program, the environment, a file; too short, too long or unreadable is said */
static void test_where_the_secret_is(void) {
    char long_one[400], file[] = "/tmp/dtrain-secret-XXXXXX";
    int fd = mkstemp(file);
    dt_cluster c = DT_DEFAULTS;
    dt__who w;
    dt_error err = DT_DEFAULTS;
    memset(long_one, 'x', sizeof long_one);
    long_one[399] = 0;
    c.world_size = 2, c.chief = "127.0.0.1:2222";
    CHECK(fd >= 0 && write(fd, "a secret in a file\r\nand more\n", 30) == 30);
    close(fd);
    setenv("DTRAIN_SECRET_FILE", file, 1);
    CHECK(!dt__who_am_i(&c, &w, &err) && !strcmp(w.secret, "a secret in a file"));
    setenv("DTRAIN_SECRET", "a secret in a variable", 1);
    CHECK(!dt__who_am_i(&c, &w, &err) && !strcmp(w.secret, "a secret in a variable"));
    c.secret = "a secret in the program";
    CHECK(!dt__who_am_i(&c, &w, &err) && !strcmp(w.secret, "a secret in the program"));
    CHECK_OK(err);
    c.secret = "fifteen letters";
    CHECK(dt__who_am_i(&c, &w, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "the secret has 15 characters: 16 to 255 are needed");
    memset(&err, 0, sizeof err);
    c.secret = long_one;
    CHECK(dt__who_am_i(&c, &w, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "the secret has 399 characters");
    memset(&err, 0, sizeof err);
    c.secret = NULL;
    unsetenv("DTRAIN_SECRET");
    unlink(file);
    CHECK(dt__who_am_i(&c, &w, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "cannot be read");
    unsetenv("DTRAIN_SECRET_FILE");
}

/* the same over IPv6, where there is one */
static void test_v6(void) {
    struct sockaddr_in6 a;
    socklen_t n = sizeof a;
    door d;
    peer p[3];
    memset(&a, 0, sizeof a);
    a.sin6_family = AF_INET6, a.sin6_addr.s6_addr[15] = 1;
    d.fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (d.fd < 0 || bind(d.fd, (struct sockaddr *)&a, sizeof a) || getsockname(d.fd, (struct sockaddr *)&a, &n)) SKIP("no IPv6 here");
    close(d.fd);  /* rank 0 opens it again itself */
    d.port = ntohs(a.sin6_port);
    set_peers(p, 3, d);
    for (int i = 0; i < 3; i++) {
        p[i].who.listener = -1;
        p[i].who.patience = 10;
        snprintf(p[i].who.chief, sizeof p[i].who.chief, "[::1]:%d", d.port);
        start_peer(&p[i]);
    }
    end_peers(p, 3);
    check_peers(p, 3);
}

/* nobody there, nobody of this job there, no such address: each says what it waited for */
static void test_in_vain(void) {
    static const char *const bad[] = {"", "host", "host:", ":80", "host:70000", "::1:80", "[::1]80", "h:-1", "h:1x"};
    door d = open_door();
    peer p[1];
    dt_error err = DT_DEFAULTS;
    dt_cluster c = DT_DEFAULTS;
    set_peers(p, 1, d);
    p[0].who = who(1, 2, d);
    p[0].who.patience = 0.3;
    start_peer(p);
    end_peers(p, 1);
    CHECK_ERROR(p[0].err, DT_ERR_PEER, "rank 1 waited in vain for rank 0 at 127.0.0.1:");
    memset(&p[0].err, 0, sizeof p[0].err);
    close(d.fd);
    start_peer(p);
    end_peers(p, 1);
    CHECK_ERROR(p[0].err, DT_ERR_PEER, "in vain for rank 0");
    for (int i = 0; i < COUNT(bad); i++) {
        dt_error e = DT_DEFAULTS;
        p[0].who = who(1, 2, d);
        snprintf(p[0].who.chief, sizeof p[0].who.chief, "%s", bad[i]);
        CHECK(!dt__net_open(&p[0].who, &e));
        CHECK_ERROR(e, DT_ERR_CONFIG, "is no address: host:port is needed");
    }
    c.rank = 1, c.world_size = 2, c.chief = "192.0.2.1:4000", c.timeout_ms = 10;  /* an address of nobody */
    CHECK(!dt_comm_open(&c, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "set the same DTRAIN_SECRET of 16 characters or more for all, or DTRAIN_INSECURE=1");
    CHECK(!dt_comm_open(&c, NULL));
    memset(&err, 0, sizeof err);
    c.chief = "127.0.0.1:1", c.bind = "0.0.0.0";  /* the network is listened to only by those who say so */
    CHECK(!dt_comm_open(&c, &err));
    CHECK_ERROR(err, DT_ERR_CONFIG, "set the same DTRAIN_SECRET of 16 characters or more for all, or DTRAIN_INSECURE=1");
}

/* a rank 0 of somebody else's: what it hands out as addresses is read no further than it goes */
static void test_false_roster(void) {
    door d = open_door();
    peer p[1];
    unsigned char roster[3 * 64];
    letter a;
    int fd;
    set_peers(p, 1, d);
    p[0].who = who(2, 3, d);
    p[0].who.patience = 0.5;
    start_peer(p);
    fd = accept(d.fd, NULL, NULL);
    CHECK(let_in(fd));
    memset(&a, 0, sizeof a);
    memset(roster, 'x', sizeof roster);
    a.f.type = DT__ROSTER, a.f.bytes = sizeof roster, a.number = 2;
    say_frame(fd, a, roster);
    end_peers(p, 1);
    CHECK_ERROR(p[0].err, DT_ERR_PEER, "rank 2 waited in vain for rank 1");
    close(fd), close(d.fd);
}

/* ---- a member who sends anything ------------------------------------------------------------------------- */

enum { NOISE, MAGIC, VERSION, HEAD_CRC, PAYLOAD_CRC, REPEATED, SKIPPED, HUGE_PART, HUGE_WORD, OTHER_CALL, OLD_CALL, OFFSET, TOO_LONG, ODD, EARLY_RESULT,
       OTHER_KIND, OTHER_N, OTHER_HOW, UNKNOWN_KIND, CLOSES, HALF_A_FRAME, SILENT, AHEAD, ABORTS, LEAVES, DRIP, ATTACKS };

static const struct { int code; const char *says; } outcome[ATTACKS] = {
    [NOISE] = {DT_ERR_PEER, "damaged bytes"}, [MAGIC] = {DT_ERR_PEER, "damaged bytes"}, [VERSION] = {DT_ERR_PEER, "damaged bytes"},
    [HEAD_CRC] = {DT_ERR_PEER, "damaged bytes"}, [PAYLOAD_CRC] = {DT_ERR_PEER, "damaged bytes"}, [REPEATED] = {DT_ERR_PEER, "damaged bytes"},
    [SKIPPED] = {DT_ERR_PEER, "damaged bytes"}, [HUGE_PART] = {DT_ERR_PEER, "out of turn"}, [HUGE_WORD] = {DT_ERR_PEER, ""},
    [OTHER_CALL] = {DT_ERR_PEER, "out of turn"}, [OLD_CALL] = {DT_ERR_PEER, "out of turn"}, [OFFSET] = {DT_ERR_PEER, "out of turn"},
    [TOO_LONG] = {DT_ERR_PEER, "out of turn"}, [ODD] = {DT_ERR_PEER, "out of turn"}, [EARLY_RESULT] = {DT_ERR_PEER, ""},
    [OTHER_KIND] = {DT_ERR_STATE, "rank 1 calls dt_broadcast"}, [OTHER_N] = {DT_ERR_STATE, "rank 1 calls dt_allreduce, 8999"},
    [OTHER_HOW] = {DT_ERR_STATE, "rank 1 calls dt_allreduce, 9000, 2"}, [UNKNOWN_KIND] = {DT_ERR_STATE, "rank 1 calls"},
    [CLOSES] = {DT_ERR_PEER, "is lost"}, [HALF_A_FRAME] = {DT_ERR_PEER, "is lost"}, [SILENT] = {DT_ERR_PEER, "is silent"},
    [AHEAD] = {DT_ERR_PEER, "is silent"}, [ABORTS] = {DT_ERR_IO, "rank 1: the disk is full"}, [LEAVES] = {DT_ERR_STATE, "rank 1 closed its handle"},
    [DRIP] = {DT_ERR_PEER, "rank 1"}};

typedef struct { int kind; door d, own; peer p[3]; int failed; pthread_t thread; } attack;

/* rank 1 of three: joins as it should, and then does what it came for */
static void *attack_main(void *arg) {
    static const float values[9000];
    attack *a = (attack *)arg;
    char text[600];
    letter w;
    int fd = call_at(a->d.port), other, kind = a->kind;
    a->failed = enter(fd, 1, 3, a->own.port, "a job", text, sizeof text) != DT__WELCOME || hear_frame(fd, text, sizeof text) != DT__ROSTER;
    if (a->failed) { close(fd); return NULL; }
    other = accept(a->own.fd, NULL, NULL);
    a->failed = !let_in(other);
    /* the first frame of dt_allreduce(buf, 9000, DT_SUM) at rank 0, whose slice is 3000 long */
    memset(&w, 0, sizeof w);
    w.f.type = DT__PART, w.f.rank = 1, w.f.n = 9000, w.f.detail = DT_SUM, w.f.call = 1, w.f.bytes = 3000 * sizeof(float), w.number = 2;
    switch (kind) {
    case MAGIC: w.bad_magic = 1; break;
    case VERSION: w.bad_version = 1; break;
    case HEAD_CRC: w.bad_head = 4; break;
    case PAYLOAD_CRC: w.f.type = DT__ABORT, w.f.bytes = 5, w.bad_payload = 1; break;
    case SKIPPED: w.number = 3; break;
    case HUGE_PART: w.claims = 0xfffffffc; break;
    case HUGE_WORD: w.f.type = DT__HEARTBEAT, w.claims = 0xfffffff0, w.f.bytes = 0; break;
    case OTHER_CALL: w.f.call = 7; break;
    case OLD_CALL: w.f.call = 0; break;
    case OFFSET: w.f.offset = 3000; break;
    case TOO_LONG: w.f.bytes = 3001 * sizeof(float); break;
    case ODD: w.f.bytes--; break;
    case EARLY_RESULT: w.f.type = DT__RESULT, w.f.offset = 3000; break;
    case OTHER_KIND: w.f.kind = DT__BROADCAST; break;
    case OTHER_N: w.f.n = 8999; break;
    case OTHER_HOW: w.f.detail = DT_MAX; break;
    case UNKNOWN_KIND: w.f.kind = 200; break;
    case AHEAD: w.f.call = 2; break;
    case ABORTS: w.f.type = DT__ABORT, w.f.detail = DT_ERR_IO, w.f.bytes = 24; break;
    case LEAVES: w.f.type = DT__BYE, w.f.bytes = 0; break;
    default: break;
    }
    if (kind == NOISE) {
        unsigned char noise[5000];
        for (int i = 0; i < COUNT(noise); i++) noise[i] = (unsigned char)dt__random(3, 5, (uint64_t)i);
        say(fd, noise, sizeof noise);
    } else if (kind == HALF_A_FRAME) {
        say(fd, "DTR1\1", 5);
    } else if (kind == DRIP) {
        for (int i = 0; i < 20; i++) { say(fd, "D", 1); rest(0.05); }
    } else if (kind != CLOSES && kind != SILENT) {
        say_frame(fd, w, kind == ABORTS ? (const void *)"rank 1: the disk is full" : values);
        if (kind == REPEATED) say_frame(fd, w, values);
        if (kind == EARLY_RESULT) w.number = 3, w.f.offset = 0, say_frame(fd, w, values);
    }
    if (kind == CLOSES || kind == HALF_A_FRAME || kind == DRIP || kind == LEAVES) shutdown(fd, SHUT_WR);
    hear_to_the_end(fd);
    close(fd);
    hear_to_the_end(other);
    close(other);
    return NULL;
}

/* a frame of no known type goes nowhere but into what it may fill */
static void test_unknown_type(void) {
    static const float values[4500];
    door d = open_door();
    peer p[1];
    char text[600];
    letter w;
    int fd;
    set_peers(p, 1, d);
    p[0].who.size = 2;
    start_peer(&p[0]);
    fd = call_at(d.port);
    CHECK(enter(fd, 1, 2, 1, "a job", text, sizeof text) == DT__WELCOME && hear_frame(fd, text, sizeof text) == DT__ROSTER);
    memset(&w, 0, sizeof w);
    w.f.type = 13, w.f.rank = 1, w.f.n = 9000, w.f.detail = DT_SUM, w.f.call = 1, w.f.offset = 4500, w.f.bytes = sizeof values, w.number = 2;
    say_frame(fd, w, values);
    shutdown(fd, SHUT_WR);
    hear_to_the_end(fd);
    close(fd);
    end_peers(p, 1);
    CHECK_ERROR(p[0].err, DT_ERR_PEER, "rank 1");
}

/* the other two end with one and the same error, which names it; all attacks at a time */
static void test_hostile_member(void) {
    static attack a[ATTACKS];
    long memory = most_memory();
    for (int k = 0; k < ATTACKS; k++) {
        a[k].kind = k;
        a[k].d = open_door(), a[k].own = open_door();
        set_peers(a[k].p, 3, a[k].d);
        start_peer(&a[k].p[0]);
        start_peer(&a[k].p[2]);
        if (pthread_create(&a[k].thread, NULL, attack_main, &a[k])) { printf("no thread\n"); exit(1); }
    }
    for (int k = 0; k < ATTACKS; k++) {
        peer *p = a[k].p;
        pthread_join(a[k].thread, NULL);
        pthread_join(p[0].thread, NULL);
        pthread_join(p[2].thread, NULL);
        close(a[k].own.fd);
        CHECK_MSG(!a[k].failed && p[0].joined && p[2].joined, "attack %d: not joined: %s; %s", k, p[0].err.text, p[2].err.text);
        CHECK_MSG(p[0].err.code == outcome[k].code && strstr(p[0].err.text, outcome[k].says) && strstr(p[0].err.text, "rank 1"),
            "attack %d: code %d \"%s\", expected %d \"%s\"", k, p[0].err.code, p[0].err.text, outcome[k].code, outcome[k].says);
        CHECK_MSG(p[2].err.code == p[0].err.code && !strcmp(p[2].err.text, p[0].err.text), "attack %d: rank 2 says \"%s\", rank 0 \"%s\"", k, p[2].err.text, p[0].err.text);
        CHECK(p[0].done == 0 && p[2].done == 0);
    }
    check_memory(memory);
}

/* one has nothing to do any more, one has a reason: the others are told it, in their call */
static void test_leaving(void) {
    for (int k = 0; k < 2; k++) {
        door d = open_door();
        peer p[3];
        set_peers(p, 3, d);
        p[1].rounds = 3;
        if (k) dt__fail(&p[1].leave, DT_ERR_IO, "\"train.csv\" is not there");
        for (int i = 0; i < 3; i++) start_peer(&p[i]);
        end_peers(p, 3);
        for (int i = 0; i < 3; i += 2) {
            CHECK(p[i].done == 3 && !p[i].wrong);
            if (k) CHECK_ERROR(p[i].err, DT_ERR_IO, "rank 1: \"train.csv\" is not there");
            else CHECK_ERROR(p[i].err, DT_ERR_STATE, "dt_allreduce: rank 1 closed its handle");
        }
    }
}

/* connections that take few bytes at a time carry the same sums, short and long */
static void test_narrow(void) {
    static const int length[] = {1, 4096, 4097, 300000};
    for (int k = 0; k < COUNT(length); k++) {
        door d = open_door();
        peer p[4];
        set_peers(p, 4, d);
        for (int i = 0; i < 4; i++) {
            p[i].narrow = 2048;
            p[i].n = length[k];
            p[i].rounds = length[k] > 9999 ? 2 : 40;
            start_peer(&p[i]);
        }
        end_peers(p, 4);
        check_peers(p, 4);
    }
}

/* a short sum is made in place only when the own values have left: this peer reads them late, through a narrow connection */
static void test_sum_waits_for_sending(void) {
    enum { N = 4096 };
    static float values[N], heard[N];
    struct sockaddr_in a;
    unsigned char h[64];
    char text[600];
    door d = open_door();
    peer p[1];
    letter w;
    int fd = socket(AF_INET, SOCK_STREAM, 0), narrow = 2048, wrong = 0;
    set_peers(p, 1, d);
    p[0].who = who(0, 2, d);
    p[0].n = N, p[0].rounds = 1, p[0].narrow = narrow;
    start_peer(p);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK), a.sin_port = htons((uint16_t)d.port);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &narrow, sizeof narrow);
    CHECK(!connect(fd, (struct sockaddr *)&a, sizeof a));
    CHECK(enter(fd, 1, 2, 1, "a job", text, sizeof text) == DT__WELCOME && hear_frame(fd, text, sizeof text) == DT__ROSTER);
    for (int i = 0; i < N; i++) values[i] = 2 * (float)(i % 1000);
    memset(&w, 0, sizeof w);
    w.f.type = DT__PART, w.f.rank = 1, w.f.n = N, w.f.detail = DT_SUM, w.f.call = 1, w.f.bytes = sizeof values, w.number = 2;
    say_frame(fd, w, values);
    rest(0.3);
    do CHECK(hear(fd, h, 64)); while (h[5] == DT__HEARTBEAT && !check_failed);
    CHECK(h[5] == DT__PART && hear(fd, (unsigned char *)heard, sizeof heard));
    for (int i = 0; i < N; i++) wrong += heard[i] != (float)(i % 1000);
    CHECK_MSG(!wrong, "%d of %d values are not those of rank 0", wrong, N);
    shutdown(fd, SHUT_WR);
    hear_to_the_end(fd);
    close(fd);
    end_peers(p, 1);
    check_peers(p, 1);
}

/* ---- who am I ---------------------------------------------------------------------------------------------- */

static const char *const variables[] = {
    "DTRAIN_RANK", "DTRAIN_WORLD", "DTRAIN_CHIEF", "DTRAIN_PORT", "DTRAIN_BIND", "DTRAIN_INSECURE", "DTRAIN_JOIN", "DTRAIN_DEAD", "DTRAIN_RDZV",
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID", "PMI_FD", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "TF_CONFIG", "CLUSTER_SPEC"};

/* "A=1 B=2", and nothing else */
static dt__who environment(const char *settings, dt_error *err) {
    char text[800], *at, *word;
    dt__who w;
    for (int i = 0; i < COUNT(variables); i++) unsetenv(variables[i]);
    snprintf(text, sizeof text, "%s", settings);
    for (word = strtok_r(text, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
        char *value = strchr(word, '=');
        *value++ = 0;
        setenv(word, value, 1);
    }
    memset(err, 0, sizeof *err);
    dt__who_am_i(NULL, &w, err);
    for (int i = 0; i < COUNT(variables); i++) unsetenv(variables[i]);
    return w;
}

#define TORCHRUN "RANK=2 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r7"
#define SLURM "SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) "
#define TF(cluster) "TF_CONFIG={\"cluster\":{\"worker\":[" cluster "]},\"task\":{\"type\":\"worker\",\"index\":1}}"

static void test_families(void) {
    static const struct { const char *settings; int rank, size; const char *chief, *job, *source; } is[] = {
        {"", 0, 1, "", "", "no variable"},
        {"SLURM_JOB_ID=7 SLURM_PROCID=0", 0, 1, "", "", "no variable"},  /* a batch script */
        {"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", 0, 1, "", "", "Slurm"},
        {"DTRAIN_RANK=1 DTRAIN_WORLD=3 DTRAIN_CHIEF=a.b:44", 1, 3, "a.b:44", "", "DTRAIN"},
        {"DTRAIN_RANK=1 DTRAIN_WORLD=2 MASTER_ADDR=h MASTER_PORT=5", 1, 2, "h:5", "", "DTRAIN"},
        {"DTRAIN_RANK=0 DTRAIN_WORLD=1", 0, 1, "", "", "DTRAIN"},
        {TORCHRUN, 2, 4, "n1:29500", "r7", "torchrun"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=fe80::1 MASTER_PORT=9", 0, 2, "[fe80::1]:9", "", "torchrun"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=0 MASTER_ADDR=h MASTER_PORT=9", 0, 2, "h:9", "", "torchrun"},
        {"PET_NODE_RANK=1 PET_NNODES=2 PET_MASTER_ADDR=h PET_MASTER_PORT=5", 1, 2, "h:5", "", "PET"},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=p@1", 3, 4, "127.0.0.1:", "p@1", "Open MPI"},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 DTRAIN_CHIEF=h:1", 3, 4, "h:1", "", "Open MPI"},
        {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2 PMI_JOBID=j", 1, 2, "127.0.0.1:", "j", "MPICH"}, {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=1 PMI_FD=7", 1, 2, "PMI_FD", "", "MPICH"},
        {SLURM "SLURM_STEP_NODELIST=n[1-3,05-07],gpu9", 1, 4, "n1:", "77.0", "Slurm"},
        {SLURM "SLURM_STEP_NODELIST=rack[0-1]n[1-2]", 1, 4, "rack0n1:", "77.0", "Slurm"},
        {SLURM "SLURM_STEP_NODELIST=a,b[2-4]", 1, 4, "a:", "77.0", "Slurm"},
        {SLURM "SLURM_STEP_NODELIST=gpu[007-9]-x.site", 1, 4, "gpu007-x.site:", "77.0", "Slurm"},
        {SLURM "SLURM_STEP_NODELIST=n[1-3 DTRAIN_CHIEF=z:3", 1, 4, "z:3", "77.0", "Slurm"},
        {TF("\"a:1\",\"b:2\""), 1, 2, "a:1", "", "TF_CONFIG"},
        /* which goes first */
        {"DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=c:1 " TORCHRUN, 0, 2, "c:1", "", "DTRAIN"},
        {TF("\"a:1\",\"b:2\"") " " TORCHRUN, 1, 2, "a:1", "", "TF_CONFIG"},
        {"TF_CONFIG={} CLUSTER_SPEC={\"cluster\":{\"worker\":[\"x:7\",\"y:7\"]},\"task\":{\"index\":1}} " TORCHRUN, 1, 2, "x:7", "", "CLUSTER_SPEC"},
        {"TF_CONFIG={} " TORCHRUN, 2, 4, "n1:29500", "r7", "torchrun"},
        {TORCHRUN " OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=9", 2, 4, "n1:29500", "r7", "torchrun"},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=4 " SLURM "SLURM_STEP_NODELIST=q", 1, 2, "h:4", "", "Open MPI"},
        {TF("\"a:1\",\"b:2\"") " DTRAIN_CHIEF=other:3", 1, 2, "other:3", "", "TF_CONFIG"},
        {"RANK=", 0, 1, "", "", "no variable"}};  /* empty is not set */
    dt_error err;
    for (int i = 0; i < COUNT(is); i++) {
        dt__who w = environment(is[i].settings, &err);
        CHECK_MSG(!err.code, "%s: %s", is[i].settings, err.text);
        CHECK_MSG(w.rank == is[i].rank && w.size == is[i].size, "%s: %d of %d", is[i].settings, w.rank, w.size);
        CHECK_MSG(!strncmp(w.chief, is[i].chief, strlen(is[i].chief)) && (*is[i].chief || !*w.chief), "%s: chief \"%s\"", is[i].settings, w.chief);
        if (*is[i].job) CHECK_MSG(!strcmp(w.job, is[i].job), "%s: job \"%s\"", is[i].settings, w.job);
        CHECK_MSG(!strncmp(w.source, is[i].source, strlen(is[i].source)), "%s: by %s", is[i].settings, w.source);
    }
}

static void test_half_families(void) {
    static const struct { const char *settings, *says; } bad[] = {
        {"DTRAIN_RANK=0", "DTRAIN_WORLD is not set"}, {"DTRAIN_WORLD=2", "DTRAIN_RANK is not set"}, {"RANK=0", "WORLD_SIZE is not set"},
        {"WORLD_SIZE=2", "RANK is not set"}, {"PET_NNODES=2", "PET_NODE_RANK is not set"}, {"PET_NODE_RANK=0", "PET_NNODES is not set"},
        {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set"}, {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is not set"},
        {"PMI_RANK=0 PMI_SIZE=2 PMI_FD=x", "nothing says where rank 0 is"}, {"PMI_RANK=0 PMI_SIZE=2 PMI_FD=-3", "nothing says where rank 0 is"},
        {"PMI_RANK=0", "PMI_SIZE is not set"}, {"PMI_SIZE=2", "PMI_RANK is not set"},
        {"RANK=0 WORLD_SIZE=2", "nothing says where rank 0 is"}, {"RANK=1 WORLD_SIZE=2 MASTER_PORT=4", "nothing says where rank 0 is"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2", "nothing says where rank 0 is"},
        {"DTRAIN_RANK=0 DTRAIN_WORLD=2", "nothing says where rank 0 is"}, {"DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_RDZV=tcp", "nothing says where rank 0 is"},
        {"DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_RDZV=there", "DTRAIN_RDZV is \"there\": tcp or file:PATH"}, {"RANK=0 WORLD_SIZE=2 DTRAIN_RDZV=file:", "file:PATH"},
        {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "rank 2 of 2 processes (torchrun"}, {"RANK=1 WORLD_SIZE=1", "rank 1 of 1"}, {"RANK=-1 WORLD_SIZE=2", "RANK is \"-1\": a whole number"},
        {"RANK=x WORLD_SIZE=2", "RANK is \"x\""}, {"RANK=0 WORLD_SIZE=1:4", "WORLD_SIZE is \"1:4\""}, {"RANK=0 WORLD_SIZE=99999999999999999999", "a whole number"},
        {"RANK=0 WORLD_SIZE=5000 MASTER_ADDR=a MASTER_PORT=1", "rank 0 of 5000"}, {"RANK=0 WORLD_SIZE=0 MASTER_ADDR=a", "rank 0 of 0"},
        {"DTRAIN_CHIEF=h:1", "DTRAIN_RANK is not set, as DTRAIN_CHIEF"}, {"RANK=0 WORLD_SIZE=2", "MASTER_ADDR"}, {"DTRAIN_PORT=65536", "DTRAIN_PORT is \"65536\""},
        {"DTRAIN_PORT=x", "DTRAIN_PORT is \"x\""}, {"DTRAIN_PORT=70000", "DTRAIN_PORT is \"70000\""}};
    dt_error err;
    for (int i = 0; i < COUNT(bad); i++) {
        environment(bad[i].settings, &err);
        CHECK_MSG(err.code == DT_ERR_CONFIG && strstr(err.text, bad[i].says), "%s: code %d \"%s\", expected \"%s\"", bad[i].settings, err.code, err.text, bad[i].says);
    }
}

/* ports: given, or from the job so that all find the same; torchrun's own store keeps its port, and says where rank 0 is */
static void test_ports(void) {
    dt_error err;
    dt__who a = environment(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True", &err), b = environment(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True RANK=0", &err), c;
    CHECK(a.store == -1 && b.store == -1 && !strcmp(a.file, "n1:29500") && !strcmp(b.file, a.file) && a.rank == 2 && b.rank == 0);
    b = environment(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True DTRAIN_CHIEF=h:1", &err);
    CHECK(!b.store && !*b.file && !strcmp(b.chief, "h:1"));
    b = environment(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True DTRAIN_RDZV=tcp", &err);
    CHECK(b.store == -1 && !strcmp(b.file, "n1:29500"));
    b = environment(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True DTRAIN_RDZV=file:/a/b", &err);
    CHECK(!b.store && !strcmp(b.file, "/a/b") && !strcmp(b.chief, "file:/a/b"));
    b = environment(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=False", &err);
    CHECK(!strcmp(b.chief, "n1:29500") && b.tries == 1 && !b.store && !*b.file);
    a = environment(SLURM "SLURM_STEP_NODELIST=n[1-2]", &err);
    b = environment(SLURM "SLURM_STEP_NODELIST=n[1-2] SLURM_PROCID=3", &err);
    c = environment(SLURM "SLURM_STEP_NODELIST=n[1-2] SLURM_JOB_ID=78", &err);
    CHECK(!strcmp(a.chief, b.chief) && strcmp(a.chief, c.chief) && a.rank == 1 && b.rank == 3);
    a = environment(SLURM "SLURM_STEP_NODELIST=n[1-2", &err);  /* a list without its end names no host: */
    CHECK(*a.chief == ':' && dt__listen(&a, &(int){0}, &err) < 0);
    CHECK_ERROR(err, DT_ERR_CONFIG, "(Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS) is no address");
    memset(&err, 0, sizeof err);
    a = environment(SLURM "SLURM_STEP_NODELIST=n[1-2] DTRAIN_PORT=6001", &err);  /* the chief's */
    CHECK(!strcmp(a.chief, "n1:6001") && a.port == 6001);
    a = environment(SLURM "SLURM_STEP_NODELIST=n1 SLURM_STEP_TASKS_PER_NODE=4 DTRAIN_PORT=6001", &err);
    CHECK(!strcmp(a.chief, "127.0.0.1:6001") && a.port == 0);
    a = environment("DTRAIN_CHIEF=h:1 DTRAIN_RDZV=file:/a/b " TORCHRUN, &err);
    CHECK_OK(err);
    CHECK(!strcmp(a.file, "/a/b") && !strcmp(a.chief, "file:/a/b") && a.tries == 1);
    dt_cluster own = {.rank = 1, .world_size = 2, .chief = "h:2"};  /* the program's word comes first */
    dt__who told;
    setenv("DTRAIN_RDZV", "file:/a/b", 1);
    CHECK(!dt__who_am_i(&own, &told, NULL) && !*told.file && !strcmp(told.chief, "h:2"));
    unsetenv("DTRAIN_RDZV");
    a = environment("DTRAIN_RANK=1 DTRAIN_WORLD=2 DTRAIN_CHIEF=h:1 DTRAIN_PORT=99 DTRAIN_BIND=me DTRAIN_INSECURE=1 DTRAIN_JOIN=7 DTRAIN_DEAD=3", &err);
    CHECK(a.port == 99 && !strcmp(a.bind, "me") && a.insecure && a.patience == 7 && a.dead == 3);
    a = environment(TF("\"a:1\",\"b:2\"") " DTRAIN_PORT=5", &err);
    CHECK(a.port == 5);
    a = environment(TF("\"a:1\",\"b:2\""), &err);
    CHECK(a.port == 2 && !a.insecure && a.dead == 10 && a.patience == 600);
    a = environment("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2", &err);
    CHECK(!strncmp(a.chief, "127.0.0.1:", 10) && !strncmp(a.job, "parent ", 7));
}

static int tf(const char *text, dt__who *w, dt_error *err) {
    dt_cluster c = DT_DEFAULTS;
    memset(err, 0, sizeof *err);
    c.tf_config = text;
    return dt__who_am_i(&c, w, err);
}

static void test_tf_config(void) {
    static const struct { const char *text; int rank, size; const char *chief; int port; } is[] = {
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\", \"c:3\"]}, \"task\": {\"type\": \"worker\", \"index\": 2}}", 2, 3, "a:1", 3},
        {"{\"task\": {\"index\": 0, \"type\": \"worker\"}, \"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}}", 0, 2, "a:1", 1},
        {"{\"cluster\": {\"chief\": [\"c:1\"], \"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"chief\", \"index\": 0}}", 0, 3, "c:1", 1},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"], \"chief\": [\"c:9\"]}, \"task\": {\"type\": \"worker\", \"index\": 1}}", 2, 3, "c:9", 2},
        {"{\"cluster\": {\"master\": [\"m:1\"], \"worker\": [\"a:5\"]}, \"task\": {\"type\": \"master\", \"index\": 0}}", 0, 2, "m:1", 1},
        {"{\"cluster\": {\"master\": [\"m:1\"], \"worker\": [\"a:5\"]}, \"task\": {\"type\": \"worker\", \"index\": \"0\"}}", 1, 2, "m:1", 5},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"worker\", \"index\": \"1\"}}", 1, 2, "a:1", 2},
        {"{\"cluster\": {\"worker\": {\"0\": \"a:1\", \"1\": \"b:2\"}}, \"task\": {\"type\": \"worker\", \"index\": 1}}", 1, 2, "a:1", 2},
        {"{\"cluster\": {\"worker\": {\"1\": \"b:2\", \"0\": \"a:1\"}}, \"task\": {\"type\": \"worker\", \"index\": 0}}", 0, 2, "a:1", 1},
        {"{\"cluster\": {\"workerpool0\": [\"v:1\"], \"workerpool1\": [\"w:2\", \"x:3\"]}, \"task\": {\"type\": \"workerpool1\", \"index\": 1, \"trial\": \"\"}, \"environment\": \"cloud\"}", 2, 3, "v:1", 3},
        {"{\"cluster\": {\"worker\": [\"[::1]:1\", \"[fe80::2]:2\"]}, \"task\": {\"index\": 1}, \"rpc_layer\": \"grpc\", \"x\": [1, {\"y\": null}]}", 1, 2, "[::1]:1", 2},
        {"{\"cluster\": {\"worker\": [\"a:1\"]}}", 0, 1, "", -1},
        {"{\"cluster\": {\"worker\": [\"a:1\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}", 0, 1, "", -1},
        {"{\"cluster\": {\"chief\": [\"a:1\"]}}", 0, 1, "", -1},
        {"{}", 0, 1, "", -1}, {" { } ", 0, 1, "", -1}, {"{\"task\": {\"type\": \"worker\", \"index\": 3}}", 0, 1, "", -1}};
    static const struct { const char *text, *says; } bad[] = {
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}}", "no \"task\": which of 2 processes"},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"worker\", \"index\": 2}}", "the task is worker 2, of 2"},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"chief\", \"index\": 0}}", "the task is chief 0, of 0"},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"worker\", \"index\": \"x\"}}", "the task is worker"},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"evaluator\", \"index\": 0}}", "an evaluator: dt_job_main of examples/job.h"},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"ps\", \"index\": 0}}", "the task is ps 0, of 0"},
        {"{\"cluster\": {\"chief\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"chief\", \"index\": 1}}", "one chief"},
        {"{\"cluster\": {\"worker\": {\"1\": \"a:1\"}}, \"task\": {\"type\": \"worker\", \"index\": 1}}", "sparse"},
        {"{\"cluster\": {\"worker\": {\"0\": \"a:1\", \"2\": \"c:1\"}}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "byte 47, \"}, \"task\": {\"type\": \": the cluster is sparse"},
        {"{\"cluster\": {\"worker\": {\"0\": \"a:1\", \"0\": \"c:1\"}}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "the cluster is sparse"},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:1\", \"a:1\"]}, \"task\": {\"type\": \"worker\", \"index\": 1}}", "byte 29, \", \"b:1\", \"a:1\"]}, \"t\": this address stands twice"},
        {"{\"cluster\": {\"worker\": {\"1\": \"b:2\", \"1\": \"c:3\"}}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "the task is worker 0, of 2"},
        {"{\"cluster\": {\"worker\": {\"1\": \"b:2\", \"1\": \"c:3\"}}, \"task\": {\"type\": \"worker\", \"index\": 1}}", "all workers"},
        {"{\"cluster\": {\"ps\": [\"a:1\"], \"worker\": [\"a:1\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "this address stands twice"},
        {"{\"cluster\": {\"chief\": [\"a:1\"], \"master\": [\"b:1\"], \"worker\": [\"c:1\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "this role stands twice"},
        {"{\"cluster\": {\"worker\": [\"[::1:5\"]}}", "\"host:port\" is expected"}, {"{\"cluster\": {\"worker\": [\"[:5\"]}}", "\"host:port\" is expected"},
        {"{\"cluster\": {\"worker\": [\"a b:5\"]}}", "\"host:port\" is expected"}, {"{\"cluster\": {\"worker\": [\"user@h:5\"]}}", "\"host:port\" is expected"},
        {"{\"cluster\": {\"worker\": [\"grpc://h:5\"]}}", "\"host:port\" is expected"}, {"{\"cluster\": {\"worker\": [\"a:1,b:5\"]}}", "\"host:port\" is expected"},
        {"{\"cluster\": {}, \"task\": {\"type\": \"worker\", \"index\": 0}}", "worker 0, of 0"},
        /* and what cannot be read: the place is told */
        {"", "byte 0, \"\": '{' is expected"}, {"[]", "byte 0, \"[]\""}, {"{", "byte 1, \"\""}, {"{\"cluster\"}", "byte 10, \"}\": ':' is expected"},
        {"{\"cluster\": [\"a:1\"]}", "byte 12, \"[\"a:1\"]}\": '{' is expected"}, {"{\"cluster\": {\"worker\": \"a:1\"}}", "byte 23, \"\"a:1\"}}\": a list of addresses"},
        {"{\"cluster\": {\"worker\": [\"a:1\" \"b:2\"]}}", "byte 30, \"\"b:2\"]}}\": ','"}, {"{\"cluster\": {\"worker\": [\"a:1\",]}}", "byte 30"},
        {"{\"cluster\": {\"worker\": [\"a\"]}}", "byte 27, \"]}}\": \"host:port\" is expected"}, {"{\"cluster\": {\"worker\": [\"a:0\"]}}", "\"host:port\" is expected"},
        {"{\"cluster\": {\"worker\": [\"::1:4\"]}}", "\"host:port\" is expected"}, {"{\"cluster\": {\"worker\": [\"a:99999\"]}}", "\"host:port\" is expected"},
        {"{\"cluster\": {\"worker\": [7]}}", "byte 24, \"7]}}\": a string is expected"}, {"{\"cluster\": {\"worker\": {\"x\": \"a:1\"}}}", "\"host:port\" is expected"},
        {"{\"cluster\": {\"worker\": {\"4096\": \"a:1\"}}}", "\"host:port\" is expected"}, {"{\"cluster\": {\"worker\": [\"a:1\"]}} x", "byte 33, \"x\": nothing is expected"},
        {"{\"task\": {\"type\": \"boss\"}}", "byte 24, \"}}\": the task's type is none of"}, {"{\"task\": {\"index\": -1}}", "byte 21, \"}}\": a whole number"},
        {"{\"task\": {\"index\": 1.5}}", "a whole number below 2^64 is expected"}, {"{'task': {}}", "byte 1, \"'task': {}}\""}, {"{\"cluster\": {\"worker\": [\"a\\q:1\"]}}", "invalid escape"},
        {"{\"a\": nul}", "byte 6, \"nul}\": a value is expected"}, {"{\"cluster\": {\"worker\": [\"a:1\"", "byte 29, \"\""}};
    dt_error err;
    dt__who w;
    for (int i = 0; i < COUNT(is); i++) {
        CHECK_MSG(!tf(is[i].text, &w, &err), "%s: %s", is[i].text, err.text);
        CHECK_MSG(w.rank == is[i].rank && w.size == is[i].size, "%s: %d of %d", is[i].text, w.rank, w.size);
        if (w.size > 1) CHECK_MSG(!strcmp(w.chief, is[i].chief) && w.port == is[i].port, "%s: chief \"%s\", port %d", is[i].text, w.chief, w.port);
    }
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(tf(bad[i].text, &w, &err) == DT_ERR_CONFIG);
        CHECK_MSG(err.code == DT_ERR_CONFIG && !strncmp(err.text, ".tf_config", 10) && strstr(err.text, bad[i].says), "%s: \"%s\", expected \"%s\"", bad[i].text, err.text, bad[i].says);
    }
}

/* a handle without any launcher is a group of one, which does every call */
static void test_alone(void) {
    dt_error err = DT_DEFAULTS;
    float v[3] = {1, 2, 3};
    dt_comm *c;
    for (int i = 0; i < COUNT(variables); i++) unsetenv(variables[i]);
    c = dt_comm_open(NULL, &err);
    CHECK_OK(err);
    CHECK(c && dt_comm_rank(c) == 0 && dt_comm_size(c) == 1);
    CHECK(!dt_allreduce(c, v, 3, DT_MEAN, &err) && !dt_barrier(c, &err) && !dt_broadcast(c, v, 3, 0, &err) && v[0] == 1 && v[2] == 3);
    dt_comm_close(c);
}

/* ---- a transport of the caller's own ------------------------------------------------------------------------ */

typedef struct { dt_comm *under, *c; dt_error err; int calls, closed, refuses, bad; } transport;

static int carry(void *user, float *buf, size_t n, dt_reduction how) {
    transport *t = (transport *)user;
    t->calls++;
    t->bad |= how != DT_SUM && how != DT_MAX;
    return t->refuses ? t->refuses : dt_allreduce(t->under, buf, n, how, &t->err);
}
static int hand_out(void *user, float *buf, size_t n, int root) {
    transport *t = (transport *)user;
    t->calls++;
    return t->refuses ? t->refuses : dt_broadcast(t->under, buf, n, root, &t->err);
}
static void put_away(void *user) { ((transport *)user)->closed++; }

static void *over_hooks(void *user) {
    transport *t = (transport *)user;
    float v[10];
    size_t begin, end;
    int rank = dt_comm_rank(t->c), i;
    for (int how = DT_SUM; how <= DT_MAX; how++) {
        for (i = 0; i < 10; i++) v[i] = (float)(rank + 1) * (float)(i - 4);
        t->bad |= dt_allreduce(t->c, v, 10, (dt_reduction)how, &t->err);
        for (i = 0; i < 10; i++) {
            float x = (float)(i - 4), want = how == DT_SUM ? 6 * x : how == DT_MEAN ? 2 * x : x > 0 ? 3 * x : x;
            t->bad |= fabsf(v[i] - want) > 1e-5f;
        }
    }
    for (i = 0; i < 10; i++) v[i] = 1;
    dt_comm_slice(t->c, 10, &begin, &end);
    t->bad |= dt_reduce_scatter(t->c, v, 10, DT_SUM, &t->err);
    for (i = (int)begin; i < (int)end; i++) t->bad |= v[i] != 3;
    for (i = 0; i < 10; i++) v[i] = i >= (int)begin && i < (int)end ? (float)i : -1;
    t->bad |= dt_allgather(t->c, v, 10, &t->err);
    for (i = 0; i < 10; i++) t->bad |= v[i] != (float)i;
    for (i = 0; i < 10; i++) v[i] = (float)(100 * rank);
    t->bad |= dt_broadcast(t->c, v, 10, 2, &t->err) || v[0] != 200 || v[9] != 200;
    t->bad |= dt_barrier(t->c, &t->err) || dt_allreduce(t->c, NULL, 0, DT_SUM, &t->err);
    return NULL;
}

static void test_hooks(void) {
    transport t[3];
    dt_comm *under[3];
    pthread_t thread[3];
    dt_comm_hooks h = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    float v[2] = {0, 0};
    memset(t, 0, sizeof t);
    CHECK_MSG(!dt_comm_group(3, under, &err), "%s", err.text);
    h.allreduce = carry, h.broadcast = hand_out, h.close = put_away, h.size = 3;
    for (int i = 0; i < 3; i++) {
        t[i].under = under[i], h.rank = i, h.user = &t[i];
        t[i].c = dt_comm_from(&h, &err);
        CHECK_OK(err);
        CHECK(t[i].c && dt_comm_rank(t[i].c) == i && dt_comm_size(t[i].c) == 3);
        pthread_create(&thread[i], NULL, over_hooks, &t[i]);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        CHECK_MSG(!t[i].bad && !t[i].err.code && t[i].calls > 6, "rank %d: %s", i, t[i].err.text);
    }
    t[0].refuses = -7;
    CHECK(dt_allreduce(t[0].c, v, 2, DT_SUM, &err));
    CHECK_ERROR(err, DT_ERR_CALLBACK, "dt_allreduce: the callback of rank 0 returned -7");
    memset(&err, 0, sizeof err);
    CHECK(dt_broadcast(t[0].c, v, 2, 1, &err));
    CHECK_ERROR(err, DT_ERR_CALLBACK, "dt_broadcast");
    memset(&err, 0, sizeof err);
    CHECK(dt_broadcast(t[0].c, v, 2, 3, &err));
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "dt_broadcast: the root or reduction is 3");
    memset(&err, 0, sizeof err);
    CHECK(dt_allreduce(t[0].c, NULL, 2, DT_SUM, &err));
    CHECK_ERROR(err, DT_ERR_ARGUMENT, "the array of rank 0 is NULL");
    for (int i = 0; i < 3; i++) {
        dt_comm_close(t[i].c);
        CHECK(t[i].closed == 1);
        dt_comm_close(under[i]);
    }
    for (int i = 0; i < 5; i++) {
        dt_comm_hooks bad = h;
        if (i == 0) bad.allreduce = NULL;
        if (i == 1) bad.broadcast = NULL;
        if (i == 2) bad.rank = 3;
        if (i == 3) bad.rank = -1;
        if (i == 4) bad.size = bad.rank = 0;
        memset(&err, 0, sizeof err);
        CHECK(!dt_comm_from(&bad, &err));
        CHECK_ERROR(err, DT_ERR_ARGUMENT, "dt_comm_from");
    }
    CHECK(!dt_comm_from(NULL, NULL));
}

int main(void) {
    setenv("DTRAIN_TRANSPORT", "tcp", 1);  /* hand-made peers speak no other */
    RUN(test_strangers);
    RUN(test_half_open);
    RUN(test_gone_again);
    RUN(test_duplicate);
    RUN(test_stopped_early);
    RUN(test_world_sizes);
    RUN(test_missing);
    RUN(test_meeting_file);
    RUN(test_pmi);
    RUN(test_torchrun_store);
    RUN(test_hashes);
    RUN(test_secret);
    RUN(test_tags);
    RUN(test_where_the_secret_is);
    RUN(test_v6);
    RUN(test_in_vain);
    RUN(test_false_roster);
    RUN(test_hostile_member);
    RUN(test_unknown_type);
    RUN(test_leaving);
    RUN(test_narrow);
    RUN(test_sum_waits_for_sending);
    RUN(test_families);
    RUN(test_half_families);
    RUN(test_ports);
    RUN(test_tf_config);
    RUN(test_alone);
    RUN(test_hooks);
    RUN(test_ring);
    return finish();
}
#endif
