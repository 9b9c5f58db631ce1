/* compat.c - what an earlier version wrote is read by this one: weights, tables and checkpoints, from which training goes on
 * as it would have there, and the frames of the wire protocol. The files are in tests/compat, one set for each format that
 * has left the house; a set that stands is never written again. `compat write FOLDER` makes one with this version: README,
 * Contributing, says when a new one is due.
 */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/csv.h"
#include "../examples/job.h"
#include "test.h"
#include "scratch.h"

/* ---- the runs whose files are kept. None of this may change: the files hold what came of it ----------------- */

#define SAMPLES 90
#define PIXELS 50  /* [5, 5, 2] */
static float image[SAMPLES][PIXELS];
static int32_t label[SAMPLES];

static void make_images(void) {  /* by numbers of their own, so that no change of the library's random bits is hidden */
    uint32_t r = 12345;
    for (int i = 0; i < SAMPLES; i++) {
        label[i] = (int32_t)(i * 7 % 3);
        for (int k = 0; k < PIXELS; k++) {
            r = r * 1664525u + 1013904223u;
            image[i][k] = (float)(r >> 16) / 65536 - 0.5f + (k % 3 == label[i] ? 0.4f : 0);
        }
    }
}

static dt_tensor *image_net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_tanh(dt_batchnorm(dt_conv2d(x, 4, 3, .padding = DT_SAME)));
    x = dt_dropout(dt_tanh(dt_dense(dt_flatten(x), 5)), 0.25);
    return dt_dense(x, 3, .name = "logits");
}

#define SAVED_AT 15  /* of 24 steps: in the middle of the third epoch of four */
static const char *saved_path;

static int save_in_the_middle(const dt_event *e, void *user) {
    dt_error err = {0};
    (void)user;
    if (e->kind != DT_EVENT_STEP || e->step != SAVED_AT || !saved_path) return 0;
    dt_checkpoint_save(e->model, saved_path, &err);
    CHECK_OK(err);
    return err.code != 0;
}

static dt_options image_run(void) {
    dt_options o = {.net = image_net, .input = {5, 5, 2}, .batch = 16, .replicas = 1, .seed = 11, .epochs = 4, .loss = DT_CROSS_ENTROPY,
                    .optimizer = DT_ADAM, .learning_rate = 0.02, .epsilon = 1e-4, .schedule = DT_COSINE_DECAY, .progress = DT_OFF, .on_event = save_in_the_middle};
    o.train = dt_arrays(image, DT_FLOAT32, label, DT_INT32, SAMPLES);
    return o;
}

static dt_tensor *table_net(dt_tensor *x, void *user) { (void)user; return dt_dense(x, 1, .name = "price"); }

static const char table_text[] = "age,city,price\n20,Bern,1\n30,Wien,2\n40,Bern,3\n50,Graz,5\n";
static dt_options table_run(const char *path) {
    dt_options o = {.net = table_net, .batch = 4, .replicas = 1, .seed = 3, .epochs = 5, .loss = DT_MSE, .learning_rate = 0.05, .progress = DT_OFF};
    o.train = dt_csv(path, .label_type = DT_FLOAT32, .columns = "age standardise, city onehot");
    return o;
}

/* what is kept beside the files: a line of a name and its numbers */
static double expected(const char *folder, const char *name, int i) {
    char path[300], line[1000], *p;
    double v = NAN;
    FILE *f;
    snprintf(path, sizeof path, "tests/compat/%s/expected.txt", folder);
    if (!(f = fopen(path, "r"))) return NAN;
    while (fgets(line, sizeof line, f)) {
        size_t n = strlen(name);
        if (strncmp(line, name, n) || line[n] != ' ') continue;
        for (p = line + n; i-- >= 0; ) v = strtod(p, &p);
        break;
    }
    fclose(f);
    return v;
}

static const char *kept(const char *folder, const char *name) {
    static char path[4][300];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "tests/compat/%s/%s", folder, name);
    return path[turn];
}

/* ---- frames -------------------------------------------------------------------------------------------------- */

#ifndef DTRAIN_NO_SOCKETS
static const char secret[] = "a secret of sixteen characters";

/* what both sides of a joining have said: rank 1 of 2, port 4711, job "kept", and random bytes that are none */
static void make_said(uint8_t said[DT__SAID]) {
    memset(said, 0, DT__SAID);
    dt__write_le(said, 1, 4);
    dt__write_le(said + 4, 2, 4);
    dt__write_le(said + 8, 4711, 4);
    memcpy(said + 12, "kept", 4);
    for (int i = 0; i < 32; i++) said[76 + i] = (uint8_t)(i * 37 + 5);
}

/* the first and the last are what rank 1 of 2 says, word for word, to join and to add ten values; the others stand alone */
enum { ADDS = 11 };
static const struct { const char *name; int type; size_t bytes; int keyed; uint64_t number; } frame_case[] = {
    {"hello", DT__HELLO, DT__HELLO_BYTES, 0, 0}, {"challenge", DT__CHALLENGE, 48, 0, 0}, {"proof", DT__PROOF, 32, 0, 1}, {"welcome", DT__WELCOME, 0, 0, 1},
    {"roster", DT__ROSTER, 128, 1, 2}, {"heartbeat", DT__HEARTBEAT, 0, 1, 3}, {"part", DT__PART, 20, 1, 4}, {"result", DT__RESULT, 12, 1, 5},
    {"abort", DT__ABORT, 17, 1, 6}, {"bye", DT__BYE, 0, 0, 7}, {"part-in-the-clear", DT__PART, 20, 0, 8}, {"adds", DT__PART, 40, 0, 2}};

/* a frame and its payload as they travel */
static size_t make_frame(int k, uint8_t out[256]) {
    static const float values[] = {1, -2.5f, 3.25f, 0, 1e-30f, 5, 6, 7, 8, 9};
    uint8_t said[DT__SAID], payload[128] = {0};
    dt__link l;
    dt__frame f = dt__frame_of(frame_case[k].type, 1, frame_case[k].bytes);
    make_said(said);
    memset(&l, 0, sizeof l);
    l.sent = frame_case[k].number;
    l.keyed = frame_case[k].keyed;
    l.key_out[0] = UINT64_C(0x0706050403020100), l.key_out[1] = UINT64_C(0x0f0e0d0c0b0a0908);
    switch (frame_case[k].type) {
    case DT__HELLO: memcpy(payload, said, DT__HELLO_BYTES); break;
    case DT__CHALLENGE: memcpy(payload, said + DT__HELLO_BYTES, 16); dt__proof(secret, said, 'a', payload + 16); break;
    case DT__PROOF: dt__proof(secret, said, 'd', payload); break;
    case DT__ROSTER: strcpy((char *)payload, "10.0.0.1:4001"), strcpy((char *)payload + 64, "[fe80::1]:4002"); break;
    case DT__ABORT: memcpy(payload, "the disk is full.", 17); f.detail = DT_ERR_IO; break;
    case DT__PART: case DT__RESULT:
        memcpy(payload, values, frame_case[k].bytes);
        f.n = 10, f.call = k == ADDS ? 1 : 7, f.offset = k == ADDS ? 0 : 5, f.detail = DT_SUM;
        break;
    default: break;
    }
    dt__link_queue(&l, f, payload);
    memcpy(out, l.head, 64);
    memcpy(out + 64, payload, frame_case[k].bytes);
    return 64 + frame_case[k].bytes;
}

/* the bytes that stand under a name; 0: none */
static size_t kept_frame(const char *folder, const char *name, uint8_t out[256]) {
    char line[700], *p;
    size_t n = 0;
    unsigned byte;
    FILE *f = fopen(kept(folder, "frames.txt"), "r");
    while (f && fgets(line, sizeof line, f)) {
        size_t length = strlen(name);
        if (strncmp(line, name, length) || line[length] != ' ') continue;
        for (p = line + length + 1; n < 256 && sscanf(p, "%2x", &byte) == 1; p += 2) out[n++] = (uint8_t)byte;
        break;
    }
    if (f) fclose(f);
    return n;
}

static int little_endian(void) {
    const uint16_t one = 1;
    return *(const uint8_t *)&one;
}
#endif

/* ---- writing a set ------------------------------------------------------------------------------------------- */

static void print_numbers(FILE *f, const char *name, const float *v, int n) {
    fputs(name, f);
    for (int i = 0; i < n; i++) fprintf(f, " %.9g", (double)v[i]);
    fputc('\n', f);
}

static int write_set(const char *folder) {
    char path[5][300];
    static const char *const name[] = {"checkpoint.safetensors", "weights.safetensors", "table.safetensors", "expected.txt", "frames.txt"};
    float y[9];
    dt_error err = {0};
    dt_options o = image_run();
    dt_model *m;
    FILE *f;
    for (int i = 0; i < 5; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, name[i]);
        if ((f = fopen(path[i], "rb"))) return fclose(f), printf("%s is there: what has been written stays; name a new folder\n", path[i]), 1;
    }
    f = fopen(path[3], "w");
    if (!f) return printf("%s: %s\n", path[3], strerror(errno)), 1;
    fprintf(f, "# dtrain %s: what tests/compat.c got after it wrote the files beside this one\n", dt_version());
    saved_path = path[0];
    m = dt_model_create(&o, &err);
    dt_train(m, NULL, &err);
    dt_save(m, path[1], &err);
    dt_predict(m, image, 3, y, &err);
    print_numbers(f, "predictions", y, 9);
    fprintf(f, "weights-crc32c %ju\ntrain-loss %.9g\n", (uintmax_t)dt_parameters_crc32c(m), dt_model_report(m).train_loss);
    dt_model_free(m);
    saved_path = NULL;

    o = table_run(put("table.csv", table_text, sizeof table_text - 1));
    m = dt_model_create(&o, &err);
    dt_train(m, NULL, &err);
    dt_save(m, path[2], &err);
    dt_predict_source(m, &o.train, 0, 4, y, &err);
    print_numbers(f, "prices", y, 4);
    dt_model_free(m);
    if (fclose(f) || err.code) return printf("%s\n", err.code ? err.text : strerror(errno)), 1;

#ifndef DTRAIN_NO_SOCKETS
    f = fopen(path[4], "w");
    if (!f || !little_endian()) return printf("%s: %s\n", path[4], f ? "write it on a little-endian machine" : strerror(errno)), 1;
    fprintf(f, "# dtrain %s: frames and their payloads, as tests/compat.c makes them on a little-endian machine\n", dt_version());
    for (int k = 0; k < COUNT(frame_case); k++) {
        uint8_t bytes[256];
        size_t n = make_frame(k, bytes);
        fprintf(f, "%s ", frame_case[k].name);
        for (size_t i = 0; i < n; i++) fprintf(f, "%02x", bytes[i]);
        fputc('\n', f);
    }
    if (fclose(f)) return printf("%s: %s\n", path[4], strerror(errno)), 1;
#endif
    return 0;
}

/* ---- reading all sets ---------------------------------------------------------------------------------------- */

/* A folder for each version whose files are another's no more. The files of 0.1.0 come first. */
static const char *const set[] = {"0.1.0"};

static void test_weights(void) {
    for (int s = 0; s < COUNT(set); s++) {
        dt_error err = {0};
        float y[9];
        dt_options o = image_run();
        dt_model *m = dt_model_create(&o, &err);
        CHECK(dt_load(m, kept(set[s], "weights.safetensors"), NULL, &err) == 0);
        CHECK_OK(err);
        CHECK_MSG(dt_parameters_crc32c(m) == (uint32_t)expected(set[s], "weights-crc32c", 0), "%s: other bits", set[s]);
        dt_predict(m, image, 3, y, &err);
        for (int i = 0; i < 9; i++) CHECK_NEAR(y[i], expected(set[s], "predictions", i), 1e-5);
        dt_model_free(m);
    }
}

/* a table is read as it was fitted there: a new table's words, and ages on the old scale */
static void test_table(void) {
    for (int s = 0; s < COUNT(set); s++) {
        static const char one[] = "age,city,price\n20,Bern,1\n50,Graz,5\n40,Rom,3\n";
        dt_error err = {0};
        float y[4];
        dt_options o = table_run(put("table.csv", table_text, sizeof table_text - 1));
        dt_source other;
        dt_model *m = dt_model_create(&o, &err);
        CHECK(dt_load(m, kept(set[s], "table.safetensors"), NULL, &err) == 0);
        CHECK_OK(err);
        CHECK(dt_predict_source(m, &o.train, 0, 4, y, &err) == 0);
        for (int i = 0; i < 4; i++) CHECK_NEAR(y[i], expected(set[s], "prices", i), 1e-5);
        dt_model_free(m);

        /* without the table it was fitted to: by what the file says alone */
        o.train = dt_csv(put("other.csv", one, sizeof one - 1), .label_type = DT_FLOAT32, .fitted = kept(set[s], "table.safetensors"));
        m = dt_model_create(&o, &err);
        CHECK(dt_load(m, kept(set[s], "table.safetensors"), NULL, &err) == 0);
        other = o.train;
        CHECK(dt_predict_source(m, &other, 0, 3, y, &err) == 0);
        CHECK_OK(err);
        CHECK_NEAR(y[0], expected(set[s], "prices", 0), 1e-5);
        CHECK_NEAR(y[1], expected(set[s], "prices", 3), 1e-5);
        dt_model_free(m);
    }
}

/* Training goes on from an old checkpoint as it went on there: order of the samples, masks, moments, rates. Without its
 * moments and place it would not: that is measured, too, so that the tolerance means something. */
static void test_checkpoint(void) {
    for (int s = 0; s < COUNT(set); s++) {
        double far[2] = {0, 0};
        for (int whole = 0; whole < 2; whole++) {
            dt_error err = {0};
            float y[9];
            dt_options o = image_run();
            dt_model *m = dt_model_create(&o, &err);
            if (whole) {
                CHECK(dt_checkpoint_load(m, kept(set[s], "checkpoint.safetensors"), &err) == 0);
                CHECK(dt_model_step(m) == SAVED_AT);
            } else {
                dt_load(m, kept(set[s], "checkpoint.safetensors"), NULL, &err);
            }
            CHECK(dt_train(m, NULL, &err) == 0);
            dt_predict(m, image, 3, y, &err);
            CHECK_OK(err);
            for (int i = 0; i < 9; i++) far[whole] = fmax(far[whole], fabs(y[i] - expected(set[s], "predictions", i)));
            if (whole) {
                CHECK(dt_model_step(m) == 24);
                CHECK_NEAR(dt_model_report(m).train_loss, expected(set[s], "train-loss", 0), 1e-5);
            }
            dt_model_free(m);
        }
        if (getenv("COMPAT_SHOW")) printf("%g away; without moments %g\n", far[1], far[0]);
        CHECK_MSG(far[1] <= 1e-4, "%s: %g away from what it ended with there", set[s], far[1]);
        CHECK_MSG(far[0] > 1e-2, "%s: weights alone come as near: %g", set[s], far[0]);
    }
}

/* of another run: refused, by both values; and a file cut short or with one byte turned */
static void test_refusals(void) {
    for (int s = 0; s < COUNT(set); s++) {
        size_t n;
        unsigned char *bytes = get(kept(set[s], "checkpoint.safetensors"), &n);
        dt_error err = {0};
        dt_options o = image_run();
        dt_model *m;
        uint32_t crc;
        CHECK(n > 1000 && n < 10240);
        o.batch = 8;
        m = dt_model_create(&o, &err);
        crc = dt_parameters_crc32c(m);
        CHECK(dt_checkpoint_load(m, kept(set[s], "checkpoint.safetensors"), &err) == DT_ERR_STATE);
        CHECK_MSG(strstr(err.text, "batch was 16 there, is 8 here"), "%s", err.text);
        CHECK_MSG(crc == dt_parameters_crc32c(m) && !dt_model_step(m), "the model has changed");
        dt_model_free(m);
        o = image_run();
        for (int bad = 0; bad < 2 && n > 1000; bad++) {
            dt_error said = {0};
            if (!bad) bytes[n - 9] ^= 4;
            m = dt_model_create(&o, &said);
            crc = dt_parameters_crc32c(m);
            CHECK(dt_checkpoint_load(m, put("bad.safetensors", bytes, n - (size_t)bad * 40), &said) == DT_ERR_FORMAT);
            CHECK_MSG(crc == dt_parameters_crc32c(m) && !dt_model_step(m), "the model has changed");
            dt_model_free(m);
            bytes[n - 9] ^= (unsigned char)(bad ? 0 : 4);
        }
        free(bytes);
    }
}

#ifndef DTRAIN_NO_SOCKETS
/* the newest set: what this version sends has the same bytes, so that processes of both versions understand each other */
static void test_frames_out(void) {
    if (!little_endian()) SKIP("frames have the byte order of the machine; these were kept on a little-endian one");
    for (int k = 0; k < COUNT(frame_case); k++) {
        uint8_t old[256], now[256];
        size_t n = kept_frame(set[COUNT(set) - 1], frame_case[k].name, old);
        CHECK_MSG(n && n == make_frame(k, now) && !memcmp(old, now, n), "%s has other bytes: the protocol has changed, and needs another number", frame_case[k].name);
    }
}

static uint8_t heard[256];
static uint8_t *place_heard(void *user, dt__link *l) { (void)user; return l->frame.bytes <= sizeof heard ? heard : NULL; }

/* … and what it sent is understood here, byte by byte or at once; with another key, or one bit turned, it is not */
static void test_frames_in(void) {
    if (!little_endian()) SKIP("frames have the byte order of the machine; these were kept on a little-endian one");
    for (int k = 0; k < COUNT(frame_case); k++)
        for (int bad = 0; bad < 3; bad++) {
            uint8_t old[256];
            size_t n = kept_frame(set[COUNT(set) - 1], frame_case[k].name, old);
            int fd[2], got;
            dt__link l;
            CHECK_MSG(n == 64 + frame_case[k].bytes, "%s is not kept", frame_case[k].name);
            if (n < 64 || socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) continue;
            memset(&l, 0, sizeof l);
            l.fd = fd[0];
            l.received = frame_case[k].number;
            l.keyed = frame_case[k].keyed;
            l.key_in[0] = UINT64_C(0x0706050403020100), l.key_in[1] = UINT64_C(0x0f0e0d0c0b0a0908);
            if (bad == 1) l.key_in[1]++;
            if (bad == 2) old[frame_case[k].type == DT__PART && !l.keyed ? 30 : n - 1] ^= 1;  /* floats in the clear have no sum */
            if (n != (size_t)send(fd[1], old, n, 0)) CHECK(!"send");
            got = dt__link_read(&l, place_heard, NULL);
            if (bad == 2 || (bad == 1 && l.keyed)) CHECK_MSG(got == -2, "%s, harm %d: %d", frame_case[k].name, bad, got);
            else {
                CHECK_MSG(got == 1 && l.frame.type == frame_case[k].type && l.frame.rank == 1 && l.frame.bytes == frame_case[k].bytes, "%s: %d", frame_case[k].name, got);
                CHECK(!frame_case[k].bytes || !memcmp(heard, old + 64, frame_case[k].bytes));
                if (l.frame.type == DT__PART && k != ADDS) CHECK(l.frame.n == 10 && l.frame.call == 7 && l.frame.offset == 5 && l.frame.detail == DT_SUM);
            }
            close(fd[0]), close(fd[1]);
        }
}

/* ---- a process of this version, and one of bytes that were kept ------------------------------------------------ */

static int hear(int fd, uint8_t *p, size_t n) {
    while (n) {
        ssize_t got = recv(fd, p, n, 0);
        if (got <= 0) return 0;
        p += got, n -= (size_t)got;
    }
    return 1;
}

typedef struct { dt__who who; dt_error err; float sum[10]; int joined; pthread_t thread; } chief;

static void *chief_main(void *arg) {
    chief *c = (chief *)arg;
    dt_comm *comm = dt__net_open(&c->who, &c->err);
    c->joined = comm != NULL;
    for (int i = 0; i < 10; i++) c->sum[i] = (float)i;
    if (comm) dt_allreduce(comm, c->sum, 10, DT_SUM, &c->err);
    dt_comm_close(comm);
    return NULL;
}

/* a chief of two, on a port of the system's choice; a connection to it */
static int dial_chief(chief *c, double patience) {
    struct sockaddr_in a;
    struct timeval most = {20, 0};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(c, 0, sizeof *c);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->who.listener = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || c->who.listener < 0 || bind(c->who.listener, (struct sockaddr *)&a, n) || listen(c->who.listener, 9) ||
        getsockname(c->who.listener, (struct sockaddr *)&a, &n)) { printf("no port\n"); exit(1); }
    c->who.size = 2, c->who.tries = 1, c->who.patience = patience, c->who.dead = 4;
    snprintf(c->who.chief, sizeof c->who.chief, "127.0.0.1:%d", ntohs(a.sin_port));
    strcpy(c->who.job, "kept"), strcpy(c->who.source, "a test");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    if (pthread_create(&c->thread, NULL, chief_main, c) || connect(fd, (struct sockaddr *)&a, sizeof a)) { printf("no connection\n"); exit(1); }
    return fd;
}

/* Rank 1 is a recording: it says what was kept, and counts its own proof only, since that answers what the chief has thrown. */
static void test_recorded_peer(void) {
    uint8_t said[DT__SAID], bytes[256], text[64 + 128];
    dt__link l;
    chief c;
    size_t n;
    int fd, type = 0;
    float sum[10], ours[10];
    if (!little_endian()) SKIP("frames have the byte order of the machine; these were kept on a little-endian one");
    fd = dial_chief(&c, 20);
    n = kept_frame(set[COUNT(set) - 1], "hello", bytes);
    CHECK(n == 64 + DT__HELLO_BYTES && send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    memcpy(said, bytes + 64, DT__HELLO_BYTES);
    CHECK(hear(fd, bytes, 64 + 48) && bytes[5] == DT__CHALLENGE);
    memcpy(said + DT__HELLO_BYTES, bytes + 64, 16);
    dt__proof("", said, 'a', text);
    CHECK(!memcmp(text, bytes + 80, 32));
    dt__proof("", said, 'd', text);
    memset(&l, 0, sizeof l);
    l.sent = 1;
    dt__link_queue(&l, dt__frame_of(DT__PROOF, 1, 32), text);
    CHECK(send(fd, l.head, 64, MSG_NOSIGNAL) == 64 && send(fd, text, 32, MSG_NOSIGNAL) == 32);
    CHECK(hear(fd, bytes, 64) && bytes[5] == DT__WELCOME);
    CHECK(hear(fd, text, 64 + 128) && text[5] == DT__ROSTER);
    n = kept_frame(set[COUNT(set) - 1], "adds", bytes);
    memcpy(ours, bytes + 64, sizeof ours);
    CHECK(n == 104 && send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    while (type != DT__PART && hear(fd, text, 64)) type = text[5];  /* it may have said that it lives */
    CHECK(type == DT__PART && hear(fd, (uint8_t *)sum, sizeof sum) && sum[0] == 0 && sum[9] == 9);
    pthread_join(c.thread, NULL);
    close(fd);
    CHECK_OK(c.err);
    for (int i = 0; i < 10; i++) CHECK(c.sum[i] == ours[i] + (float)i);
}

/* Who speaks another version of the protocol does not get in, and is no stranger without a name either: both sides say which
 * version is spoken where. */
static void test_other_protocol(void) {
    uint8_t bytes[256] = { 0 };
    size_t n;
    chief c;
    int fd, version;
    if (!little_endian()) SKIP("frames have the byte order of the machine; these were kept on a little-endian one");
    n = kept_frame(set[COUNT(set) - 1], "hello", bytes);
    CHECK(n == 64 + DT__HELLO_BYTES && !memcmp(bytes, "DTR1", 4));
    version = bytes[4]++;
    dt__write_le(bytes + 60, dt__crc32c(0, bytes, 60), 4);
    fd = dial_chief(&c, 1);
    CHECK(send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    CHECK_MSG(version == 1, "the newest set is of version %d", version);
    CHECK(hear(fd, bytes, 64) && !memcmp(bytes, "DTR1", 4) && bytes[4] == DT__PROTOCOL && bytes[5] == DT__ABORT);  /* its head tells the version */
    while (recv(fd, bytes, sizeof bytes, 0) > 0) CHECK(bytes[5] != DT__CHALLENGE && bytes[5] != DT__WELCOME);
    pthread_join(c.thread, NULL);
    close(fd);
    CHECK(!c.joined);
    CHECK_ERROR(c.err, DT_ERR_PEER, "have not come: 1");
}

/* … and who dials one names both */
static void *other_chief(void *arg) {
    uint8_t bytes[256];
    const int listener = *(int *)arg, fd = accept(listener, NULL, NULL);
    size_t n = kept_frame(set[COUNT(set) - 1], "challenge", bytes);
    bytes[4]++;
    dt__write_le(bytes + 60, dt__crc32c(0, bytes, 60), 4);
    if (fd >= 0 && send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n) while (recv(fd, bytes, sizeof bytes, 0) > 0) {}
    if (fd >= 0) close(fd);
    return NULL;
}

static void test_dialling_other_protocol(void) {
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    pthread_t thread;
    dt_error err = {0};
    dt__who w;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (!little_endian()) SKIP("frames have the byte order of the machine; these were kept on a little-endian one");
    memset(&w, 0, sizeof w);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, n) || listen(listener, 9) || getsockname(listener, (struct sockaddr *)&a, &n)) { CHECK(!"a port"); return; }
    w.rank = 1, w.size = 2, w.tries = 1, w.patience = 20, w.dead = 4, w.listener = -1;
    snprintf(w.chief, sizeof w.chief, "127.0.0.1:%d", ntohs(a.sin_port));
    strcpy(w.job, "kept"), strcpy(w.source, "a test");
    if (pthread_create(&thread, NULL, other_chief, &listener)) { printf("no thread\n"); exit(1); }
    CHECK(!dt__net_open(&w, &err));
    pthread_join(thread, NULL);
    close(listener);
    CHECK_ERROR(err, DT_ERR_CONFIG, "version 2 of the protocol, this process 1 (+64: another byte order): build all with one dtrain.h");
}
#endif

int main(int argc, char **argv) {
    make_images();
    if (scratch_begin()) return 1;
    if (argc == 3 && !strcmp(argv[1], "write")) {
        int code = write_set(argv[2]);
        scratch_end();
        return code;
    }
    RUN(test_weights);
    RUN(test_table);
    RUN(test_checkpoint);
    RUN(test_refusals);
#ifndef DTRAIN_NO_SOCKETS
    setenv("DTRAIN_TRANSPORT", "tcp", 1);  /* a recording speaks no other */
    RUN(test_frames_out);
    RUN(test_frames_in);
    RUN(test_recorded_peer);
    RUN(test_other_protocol);
    RUN(test_dialling_other_protocol);
#endif
    scratch_end();
    return finish();
}
