/* server.c - whatever workers send to a parameter server: orders and floats are taken, kept for later or refused with a message;
 * nothing is written but what is theirs.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/server.c -o fuzz-server -lm -pthread
 *   ./fuzz-server -max_total_time=60 corpus/
 *
 * Two workers speak. Two bytes say how the bytes are cut and whether there are values from the start; then come frames of twelve
 * bytes. Checksums, numbers, places and sizes are put right unless a bit of theirs says otherwise.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *scarce_calloc(size_t n, size_t size) { return n > 1 << 20 ? NULL : calloc(n, size); }  /* as a system with little memory */
#define calloc scarce_calloc
#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"

enum { WORKERS = 2, WORLD = 3 };

static dt_error err;
#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "not so: %s (%d %s)\n", #condition, err.code, err.text); abort(); } } while (0)

static struct { dt__net net; dt__link link[WORLD]; struct pollfd poll[WORLD]; dt_server *s; int mine[WORKERS]; uint64_t number[WORKERS]; } w;

/* one turn of dt_server_run: 1 if something moved */
static int serve(void) {
    static unsigned char heard[1 << 16];
    int i, moved = 0;
    dt__link *l;
    DT__LINKS(&w.net, i, l) {
        moved |= dt__net_pull(&w.net, l);
        if (l->greeted && !w.net.cause.code) dt__ps_take(w.s, i);
        if (l->fd >= 0) moved |= dt__ps_send(w.s, i);
    }
    if (!w.net.cause.code) moved |= dt__ps_work(w.s);
    for (i = 0; i < WORKERS; i++) {
        const dt__client *c = &w.s->client[i];
        while (recv(w.mine[i], heard, sizeof heard, MSG_DONTWAIT) > 0) {}
        l = &w.link[i];
        MUST(l->from <= l->to && l->to <= sizeof l->in);
        MUST(l->part_in.begin <= l->part_in.end && l->result_out.begin <= l->result_out.end);
        MUST(c->done >= 0 && (c->done <= w.s->all || l->result_out.begin == l->result_out.end));
        MUST(w.net.cause.code || l->part_in.end <= w.s->all || l->part_in.begin == l->part_in.end);
    }
    MUST(w.s->n_queue >= 0 && w.s->n_queue <= WORKERS && w.s->n_group >= 0 && w.s->n_group <= WORKERS);
    err = w.net.cause;
    return moved && !w.net.cause.code;
}

static void say(int i, const unsigned char *p, size_t n, size_t cut) {
    while (n && !w.net.cause.code) {
        ssize_t gone = send(w.mine[i], p, n < cut ? n : cut, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (gone > 0) p += gone, n -= (size_t)gone;
        if (gone < 0 && errno != EAGAIN) return;
        if (!serve() && gone <= 0) return;
        while (serve()) {}
    }
}

/* one frame of twelve bytes */
static void frame(const uint8_t *d, size_t cut) {
    static const unsigned char types[] = {DT__ORDER, DT__PART, DT__ORDER, DT__PART, DT__BYE, DT__HEARTBEAT, DT__ABORT, 0};
    static unsigned char whole[64 + 4096];
    unsigned char *h = whole, *payload = whole + 64;
    int i = d[0] >> 7, off = d[2];
    const dt__link *l = &w.link[i];
    size_t bytes = 0, k;
    memset(whole, 0, sizeof whole);
    memcpy(h, "DTR1\1", 5);
    h[5] = types[d[0] % 8] ? types[d[0] % 8] : d[1];
    h[6] = off & 1 ? d[3] : DT__PUSHING;
    h[8] = (unsigned char)i;
    if (h[5] == DT__ORDER) {
        dt__order o;
        uint64_t word[sizeof o / 8];
        memset(&o, 0, sizeof o);
        h[12] = d[1] % 5;
        o.sequence = d[6];
        o.version = off & 2 ? w.s->version : d[7];
        o.stop = d[3] & 1;
        o.batches = d[4];
        o.rate = d[4] / 16.0 - 1;
        o.weight = d[5] == 255 ? (double)NAN : d[5] - 3.0;
        o.trained = h[12] < DT__SETUP || !(off & 4) ? (uint64_t)w.s->trained : d[8];
        o.all = h[12] < DT__SETUP || !(off & 4) ? (uint64_t)w.s->all : o.trained + d[9];
        o.begin = h[12] < DT__SETUP || !(off & 4) ? (uint64_t)w.s->begin : d[10];
        memcpy(word, &o, sizeof word);
        if (d[3] & 2) word[d[8] % (sizeof word / 8)] = (uint64_t)d[9] << d[10] % 64;
        memcpy(&o, word, sizeof word);
        o.kind = d[11] % 8;
        o.n_slots = d[11] / 8 % 4;
        o.f.momentum = o.f.beta1 = o.f.beta2 = o.f.alpha = o.f.epsilon = o.f.decay = 0.5;
        o.sync = d[11] >> 5 & 1;
        o.ahead = d[11] >> 6 & 1;
        o.backup = d[11] >> 7 & 1;
        memcpy(payload, &o, sizeof o);
        bytes = sizeof(dt__order);
    } else if (h[5] == DT__PART || h[5] == DT__RESULT) {
        ptrdiff_t left = l->part_in.end - l->part_in.begin, n = d[4] | d[5] << 8;
        if (n > left && !(off & 2)) n = left;
        bytes = (size_t)(n % 1024) * 4 + (off & 4 ? d[6] % 4 : 0);
        dt__write_le(h + 32, (uint64_t)(w.s->begin + l->part_in.begin) + (off & 8 ? d[7] : 0), 8);
        for (k = 0; k < bytes; k++) payload[k] = d[8 + k % 4];
    } else bytes = d[4];
    h[3] = off & 16 ? '2' : '1';
    dt__write_le(h + 40, off & 32 ? UINT32_MAX - bytes : bytes, 4);
    dt__write_le(h + 48, w.number[i]++, 8);
    if (h[5] < DT__PART) dt__write_le(h + 56, dt__crc32c(0, payload, bytes), 4);
    dt__write_le(h + 60, dt__crc32c(0, h, 60) ^ (unsigned)(off >> 6 & 1), 4);
    if (off & 128 && bytes > 8) bytes = 8;  /* the rest comes with other frames */
    say(i, whole, 64 + bytes, cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t setup[] = {0, 2, 4, 0, 4, 4, 1, 0, 70, 9, 3, 0}, values[] = {1, 0, 0, 0, 255, 0, 0, 0, 0, 0, 128, 63};
    size_t at, cut;
    int pair[2], i, turns;
    if (size < 2 || size > 4000) return 0;
    memset(&w, 0, sizeof w);
    memset(&err, 0, sizeof err);
    cut = (size_t)data[0] * 17 + 1;
    w.net.comm.rank = WORKERS, w.net.comm.size = WORKERS, w.net.comm.servers = 1, w.net.comm.net = &w.net, w.net.comm.kind = DT__PUSHING;
    w.net.link = w.link, w.net.poll = w.poll, w.net.n = WORLD, w.net.dead = 1e9;
    for (i = 0; i < WORLD; i++) w.link[i].fd = -1;
    for (i = 0; i < WORKERS; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
        dt__socket_ready(pair[0]);
        w.link[i].fd = pair[0], w.mine[i] = pair[1];
    }
    w.s = dt__ps_on(&w.net.comm, &err);
    MUST(w.s);
    if (data[1] & 1) {
        uint8_t first[12];
        memcpy(first, setup, 12);
        first[11] = data[1] & 0xfe;
        first[11] = (uint8_t)((first[11] & 0xe0) | 3 | 2 << 3);  /* Adam */
        frame(first, 1 << 20);
        frame(values, 1 << 20);
        for (i = 0; i < 2 && !w.net.cause.code; i++) {
            memcpy(first, setup, 12);
            first[0] = (uint8_t)(i << 7), first[1] = DT__STRETCH;
            frame(first, 1 << 20);
        }
        MUST(!w.net.cause.code && w.s->variables && w.s->trained == 70 && w.s->all == 79);
    }
    for (at = 2; at + 12 <= size && !w.net.cause.code; at += 12) frame(data + at, cut);
    for (i = 0; i < WORKERS; i++) shutdown(w.mine[i], SHUT_WR);
    for (turns = 0; turns < 1000 && serve(); turns++) {}
    MUST(turns < 1000);
    if (w.net.cause.code) MUST(*w.net.cause.text && strlen(w.net.cause.text) < sizeof w.net.cause.text);
    for (i = 0; i < WORKERS; i++) {
        MUST(w.net.cause.code || w.link[i].fd < 0);
        dt__link_close(&w.link[i]);
        close(w.mine[i]);
    }
    dt__ps_forget(w.s);
    free(w.s);
    return 0;
}
