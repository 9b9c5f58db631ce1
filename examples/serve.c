// serve.c - a trained net behind HTTP: POST /predict with {"instances": [...]} answers {"predictions": [...]}
//
// Shows:   dt_load and dt_predict in a server; requests that wait together are predicted together.
// Data:    the weights of ./digits --save digits.safetensors (the net of digits.c).
// Build:   cc -O2 examples/serve.c -o serve -lm -pthread
// Run:     ./serve digits.safetensors 8080 &                     on this machine only
//          curl -s localhost:8080/predict -d '{"instances": [[0,0,5,13,9,1,0,0, 0,0,13,15,10,15,5,0, 0,3,15,2,0,11,8,0,
//              0,4,12,0,0,8,8,0, 0,5,8,0,0,9,8,0, 0,4,11,0,1,12,7,0, 0,2,14,5,10,12,0,0, 0,0,6,13,10,0,0,0]]}'
//          An instance is 64 numbers 0..16, nested as you like. GET /healthz answers "ok".
// Output:  {"predictions": [[0.99999785,4.8112332e-07,1.2760455e-07,…]]}         a probability per digit
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIXELS = 64, CLASSES = 10, BATCH = 256, CLIENTS = 512, MOST_BYTES = 4 << 20 };

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 8, 8, 1], as in digits.c, and probabilities
    (void)user;
    x = dt_relu(dt_conv2d(x, 32, 3, .padding = DT_SAME));
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3, .padding = DT_SAME)), 2);
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 128)), 0.5);
    return dt_softmax(dt_dense(x, CLASSES, .name = "logits"));
}

typedef struct {
    int fd;
    char *text;            // the request as far as it came, then the answer
    size_t n, room, sent;
    int answering;
    double since;
    float *x;              // instances of a complete request that waits
    long instances;
} client;

static client clients[CLIENTS];
static volatile sig_atomic_t stopped;
static void stop(int number) { (void)number; stopped = 1; }

static void hang_up(client *c) {
    close(c->fd);
    free(c->text);
    free(c->x);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

static void answer(client *c, const char *status, const char *type, const char *body, size_t n) {
    char head[200];
    int length = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status, type, n);
    free(c->text);
    c->text = (char *)malloc((size_t)length + n);
    if (!c->text) { hang_up(c); return; }
    memcpy(c->text, head, (size_t)length);
    memcpy(c->text + length, body, n);
    c->n = (size_t)length + n;
    c->sent = 0;
    c->answering = 1;
}

static void refuse(client *c, const char *status, const char *why) {
    char body[300];
    int n = snprintf(body, sizeof body, "{\"error\": \"%s\"}\n", why);
    answer(c, status, "application/json", body, (size_t)n);
}

// {"instances": [[…], …]}: the numbers of each, whatever their nesting. NULL, or what is wrong.
static const char *read_instances(const char *json, client *c) {
    const char *p = strstr(json, "\"instances\"");
    int depth = 0;
    long n = 0, room = 0;
    if (!p || !(p = strchr(p, '['))) return "the body is no {\\\"instances\\\": [...]}";
    for (;; p++) {
        if (*p == '[') depth++;
        else if (*p == ']') {
            if (--depth == 1 && n != (c->instances + 1) * PIXELS) return "an instance has not 64 numbers";
            if (depth == 1) c->instances++;
            if (!depth) return c->instances ? NULL : "there is no instance";
        } else if ((*p >= '0' && *p <= '9') || *p == '-') {
            char *end;
            double v = strtod(p, &end);
            if (depth < 2) return "an instance is a list of numbers";
            if (n == room) {
                float *more = (float *)realloc(c->x, (size_t)(room = room ? 2 * room : PIXELS) * sizeof *more);
                if (!more) return "out of memory";
                c->x = more;
            }
            c->x[n++] = (float)v / 16;
            p = end - 1;
        } else if (!strchr(" \t\r\n,.", *p) || !*p) return "the list does not end, or holds what is no number";
    }
}

// The request, if all of it is here. A client that sends too much, or nothing for ten seconds, is turned away.
static void look_at(client *c) {
    char *body = strstr(c->text, "\r\n\r\n"), *length;
    const char *wrong;
    size_t expected;
    if (!body) { if (c->n > 16384) refuse(c, "431 Request Header Fields Too Large", "the header has more than 16 KB"); return; }
    if (!strncmp(c->text, "GET /healthz ", 13)) { answer(c, "200 OK", "text/plain", "ok\n", 3); return; }
    if (strncmp(c->text, "POST /predict ", 14)) { refuse(c, "404 Not Found", "only POST /predict and GET /healthz are here"); return; }
    *body = 0;
    for (length = c->text; (length = strchr(length, '\n')) != NULL;) if (!strncasecmp(++length, "content-length:", 15)) break;
    *body = '\r';
    if (!length) { refuse(c, "411 Length Required", "the request has no Content-Length"); return; }
    expected = strtoul(length + 15, NULL, 10);
    if (expected > MOST_BYTES) { refuse(c, "413 Content Too Large", "the body has more than 4 MB"); return; }
    if (c->n < (size_t)(body + 4 - c->text) + expected) {
        if (strstr(c->text, "100-continue") && !c->sent++) send(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
        return;
    }
    body[4 + expected] = 0;
    c->instances = 0;
    if ((wrong = read_instances(body + 4, c)) != NULL) { c->instances = 0; refuse(c, "400 Bad Request", wrong); }
}

// Everybody whose request is complete, as far as the batch has room; who does not fit waits for the next.
static void predict(dt_model *m) {
    static float x[BATCH][PIXELS], y[BATCH][CLASSES];
    static client *owner[BATCH];
    dt_error err = DT_DEFAULTS;
    long n = 0, at;
    for (client *c = clients; c < clients + CLIENTS; c++) {
        if (c->fd < 0 || !c->instances || c->answering) continue;
        if (c->instances > BATCH) { c->instances = 0; refuse(c, "413 Content Too Large", "more than 256 instances in one request"); continue; }
        if (n + c->instances > BATCH) break;
        memcpy(x[n], c->x, (size_t)c->instances * sizeof x[0]);
        for (at = 0; at < c->instances; at++) owner[n++] = c;
    }
    if (n && dt_predict(m, x, n, y[0], &err)) fprintf(stderr, "serve: %s\n", err.text);
    for (long i = 0; i < n; i += at) {
        client *c = owner[i];
        size_t room = (size_t)c->instances * CLASSES * 20 + 40, used = 0;
        char *body = (char *)malloc(room);
        at = c->instances;
        c->instances = 0;
        if (!body || err.code) { free(body); refuse(c, "500 Internal Server Error", "the prediction failed"); continue; }
        used += (size_t)sprintf(body, "{\"predictions\": [");
        for (long k = 0; k < at; k++)
            for (int j = 0; j < CLASSES; j++) used += (size_t)sprintf(body + used, "%s%.8g%s", j ? "," : k ? ",[" : "[", (double)y[i + k][j], j == CLASSES - 1 ? "]" : "");
        used += (size_t)sprintf(body + used, "]}\n");
        answer(c, "200 OK", "application/json", body, used);
        free(body);
    }
}

static void receive(client *c) {
    ssize_t got;
    if (c->room - c->n < 4096) {
        char *more = (char *)realloc(c->text, c->room = 2 * c->room + 8192);
        if (!more) { hang_up(c); return; }
        c->text = more;
    }
    got = recv(c->fd, c->text + c->n, c->room - c->n - 1, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) { hang_up(c); return; }
    if (got < 0) return;
    c->n += (size_t)got;
    c->text[c->n] = 0;
    look_at(c);
}

int main(int argc, char **argv) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(argc > 2 ? atoi(argv[2]) : 8080)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int door = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    dt_error err = DT_DEFAULTS;
    if (argc < 2) return fprintf(stderr, "usage: serve WEIGHTS [PORT]\n"), 64;
    dt_model *m = dt_model_create(&(dt_options){.net = net, .input = {8, 8, 1}, .batch = BATCH, .inference = 1}, &err);
    dt_load(m, argv[1], NULL, &err);
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (err.code) return fprintf(stderr, "serve: %s\n", err.text), 1;
    if (bind(door, (struct sockaddr *)&here, sizeof here) || listen(door, CLIENTS)) return perror("serve: the port"), 1;
    fcntl(door, F_SETFL, O_NONBLOCK);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    for (int i = 0; i < CLIENTS; i++) clients[i].fd = -1;
    while (!stopped) {
        static struct pollfd p[CLIENTS + 1];
        int free_place = -1, n = 0;
        for (client *c = clients; c < clients + CLIENTS; c++) {
            if (c->fd < 0) { free_place = (int)(c - clients); continue; }
            p[n].fd = c->fd;
            p[n++].events = c->answering ? POLLOUT : c->instances ? 0 : POLLIN;
        }
        if (free_place >= 0) { p[n].fd = door; p[n++].events = POLLIN; }
        poll(p, (nfds_t)n, 1000);
        while (free_place >= 0 && (n = accept(door, NULL, NULL)) >= 0) {
            fcntl(n, F_SETFL, O_NONBLOCK);
            clients[free_place].fd = n;
            clients[free_place].since = dt__now();
            for (free_place = CLIENTS - 1; free_place >= 0 && clients[free_place].fd >= 0; free_place--) {}
        }
        for (client *c = clients; c < clients + CLIENTS; c++) {
            if (c->fd >= 0 && !c->answering && !c->instances) receive(c);
            if (c->fd >= 0 && !c->instances && dt__now() - c->since > 10) hang_up(c);
        }
        predict(m);
        for (client *c = clients; c < clients + CLIENTS; c++) {
            if (c->fd < 0 || !c->answering) continue;
            ssize_t gone = send(c->fd, c->text + c->sent, c->n - c->sent, MSG_NOSIGNAL);
            if (gone > 0) c->sent += (size_t)gone;
            if (c->sent == c->n || (gone < 0 && errno != EAGAIN)) { shutdown(c->fd, SHUT_WR); hang_up(c); }
        }
    }
    dt_model_free(m);
    return 0;
}
