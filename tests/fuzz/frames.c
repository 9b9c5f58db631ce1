/* frames.c - whatever a peer sends: its frames are taken, kept for later or refused with a message; nothing is written but the
 * peer's own part of the arrays, and nothing is allocated.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/frames.c -o fuzz-frames -lm -pthread
 *   ./fuzz-frames -max_total_time=60 corpus/
 *
 * Four bytes say which collective runs, on how many values; then come bytes as they are, or frames of twelve bytes and a
 * payload, whose checksums and numbers are put right unless a bit of theirs says otherwise.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"

enum { WORLD = 3, RANK = 1, MOST = 1 << 15 };

static dt_error err;
#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "not so: %s (%d %s)\n", #condition, err.code, err.text); abort(); } } while (0)

static unsigned char wire[MOST];
static size_t on_wire;

static void put(const void *p, size_t n) {
    if (n > MOST - on_wire) n = MOST - on_wire;
    if (n) memcpy(wire + on_wire, p, n);
    on_wire += n;
}

/* One frame; returns how many bytes it took of the input. */
static size_t frame(const uint8_t *d, size_t size, uint64_t *number) {
    static const unsigned char types[] = {DT__PART, DT__RESULT, DT__HEARTBEAT, DT__ABORT, DT__BYE, DT__ROSTER, DT__HELLO, 0};
    static unsigned char payload[8192];
    unsigned char h[64] = {0}, off = d[11];
    size_t bytes = (size_t)(d[8] | d[9] << 8) % sizeof payload, n, k;
    memcpy(h, "DTR1\1", 5);
    h[4] = (unsigned char)(h[4] + (off & 1));
    h[5] = types[d[0] % 8];
    if (h[5] == 0) h[5] = d[1];
    h[6] = d[1];
    h[8] = d[10];
    h[12] = d[2];
    dt__write_le(h + 16, (uint64_t)(d[3] | d[4] << 8), 8);
    dt__write_le(h + 24, (uint64_t)d[5], 8);
    dt__write_le(h + 32, (uint64_t)(d[6] | d[7] << 8), 8);
    dt__write_le(h + 40, bytes, 4);
    if (off & 2) dt__write_le(h + 40, UINT32_MAX - bytes, 4);
    if (off & 4) ++*number;
    dt__write_le(h + 48, (*number)++, 8);
    n = size - 12 < bytes ? size - 12 : bytes;
    for (k = 0; k < bytes; k++) payload[k] = n ? d[12 + k % n] : 0;
    if (off & 64) n = 0;  /* so that short inputs have long payloads */
    if (h[5] != DT__PART && h[5] != DT__RESULT) dt__write_le(h + 56, dt__crc32c(0, payload, bytes) + (off >> 3 & 1), 4);
    dt__write_le(h + 60, dt__crc32c(0, h, 60) + (off >> 4 & 1), 4);
    put(h, 64);
    put(payload, bytes);
    return 12 + n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int kinds[] = {DT__ALLREDUCE, DT__REDUCE_SCATTER, DT__ALLGATHER, DT__BROADCAST, DT__BARRIER};
    static dt__link link[WORLD];
    struct pollfd poll_room[WORLD];
    float *part[WORLD], *buf;
    char roster[WORLD][64];
    dt_comm c;
    dt__net net;
    dt__link *l;
    dt__span in;
    ptrdiff_t i, n;
    size_t at = 0, cut;
    uint64_t number = 0;
    int pair[2], peer, turns = 0, more = 1;
    if (size < 6 || size > MOST / 2) return 0;
    memset(&err, 0, sizeof err);
    memset(&c, 0, sizeof c);
    memset(&net, 0, sizeof net);
    memset(link, 0, sizeof link);
    peer = data[0] & 16 ? 0 : 2;
    c.rank = RANK, c.size = WORLD, c.kind = (dt__kind)kinds[data[0] % 16 % 5], c.net = &net;
    c.n = c.kind == DT__BARRIER ? 0 : (size_t)(data[1] | data[2] << 8) % 12000;
    if (c.kind == DT__BROADCAST) c.detail = data[0] >> 6 < 3 ? data[0] >> 6 : 0;
    else if (c.kind <= DT__REDUCE_SCATTER) c.detail = data[0] >> 6 < 3 ? data[0] >> 6 : 0;
    cut = (size_t)data[3] * 37 + 1;
    for (i = 0; i < WORLD; i++) link[i].fd = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
    dt__socket_ready(pair[0]);
    net.comm = c, net.n = WORLD, net.link = link, net.poll = poll_room, net.part = part, net.roster = roster, net.dead = 1e9;
    n = (ptrdiff_t)c.n;
    buf = (float *)malloc(n ? (size_t)n * sizeof *buf : 1);
    MUST(buf);
    for (i = 0; i < n; i++) buf[i] = 7;
    l = &link[peer];
    l->fd = pair[0];
    MUST(!dt__net_begin(&net, buf));
    in = l->result_in;
    on_wire = 0;
    if (data[0] & 32) put(data + 4, size - 4);
    else for (at = 4; at + 12 <= size;) at += frame(data + at, size - at, &number);
    for (at = 0; !net.cause.code && more; turns++) {
        size_t count = on_wire - at < cut ? on_wire - at : cut;
        if (count) {
            ssize_t sent = send(pair[1], wire + at, count, MSG_NOSIGNAL | MSG_DONTWAIT);
            MUST(sent >= 0 || errno == EAGAIN);
            if (sent > 0) at += (size_t)sent;
        } else if (turns >= 0) { shutdown(pair[1], SHUT_WR); turns = -(1 << 30); }
        while (!net.cause.code && dt__net_pull(&net, l)) {
            MUST(l->from <= l->to && l->to <= sizeof l->in);
            MUST(l->part_in.begin <= l->part_in.end && l->result_in.begin <= l->result_in.end);
        }
        if (l->stage == 1 && !l->payload) more = 0;  /* kept for later */
        if (turns < 0 && !net.cause.code && l->stage != 1) MUST(at == on_wire && !"the end is not seen");
        if (turns < 0) more = 0;
    }
    if (net.cause.code) MUST((*net.cause.text || l->frame.type == DT__ABORT) && strlen(net.cause.text) < sizeof net.cause.text);
    for (i = 0; i < n; i++) if (i < in.begin || i >= in.end) MUST(buf[i] == 7);
    if (net.room) MUST(net.room_floats <= (size_t)(n + WORLD) * WORLD);
    free(net.room);
    free(buf);
    close(pair[0]), close(pair[1]);
    return 0;
}
