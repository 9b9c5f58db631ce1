/* wan.c - a network between hosts on one machine, for tests/launchers.sh: every packet is delayed, every sender has a
 * limit of bytes per second, and links can be cut while it runs. Linux, as root.
 *
 *   wan PREFIX N DELAY_MS MBIT CONTROL
 *
 * Host i is the network namespace PREFIXi, which must be there; it gets the device t0 with the address 10.77.0.i. CONTROL
 * is a pipe made by mkfifo: the lines "cut 1 3" and "join 1 3" written into it end and renew what two hosts hear of each other. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS = 16, PACKETS = 65536 };

typedef struct { double at; int to, size; unsigned char *bytes; } packet;

static packet queue[PACKETS];  /* a heap: the next to deliver comes first */
static int queued;
static int device[HOSTS + 1], cut[HOSTS + 1][HOSTS + 1];
static double busy[HOSTS + 1];  /* until when a host's line is full */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put(packet p) {
    int i = queued++;
    for (; i && queue[(i - 1) / 2].at > p.at; i = (i - 1) / 2) queue[i] = queue[(i - 1) / 2];
    queue[i] = p;
}

static packet get(void) {
    packet first = queue[0], last = queue[--queued];
    int i = 0, child;
    while ((child = 2 * i + 1) < queued) {
        if (child + 1 < queued && queue[child + 1].at < queue[child].at) child++;
        if (last.at <= queue[child].at) break;
        queue[i] = queue[child];
        i = child;
    }
    queue[i] = last;
    return first;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void host_open(const char *prefix, int i) {
    char text[200];
    struct ifreq request;
    int space;
    snprintf(text, sizeof text, "/run/netns/%s%d", prefix, i);
    space = open(text, O_RDONLY);
    if (space < 0 || setns(space, CLONE_NEWNET)) fail(text);
    close(space);
    device[i] = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    memset(&request, 0, sizeof request);
    strcpy(request.ifr_name, "t0");
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    if (device[i] < 0 || ioctl(device[i], TUNSETIFF, &request)) fail("/dev/net/tun");
    snprintf(text, sizeof text, "ip link set lo up && ip addr add 10.77.0.%d/24 dev t0 && ip link set t0 txqueuelen 100 up", i);
    if (system(text)) exit(1);
}

static void obey(char *lines) {
    int a, b;
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
        int ends = sscanf(line, "cut %d %d", &a, &b) == 2;
        if (!ends && sscanf(line, "join %d %d", &a, &b) != 2) continue;
        if (a > 0 && a <= HOSTS && b > 0 && b <= HOSTS) cut[a][b] = cut[b][a] = ends;
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "usage: wan PREFIX N DELAY_MS MBIT CONTROL\n"), 64;
    int n = atoi(argv[2]), home = open("/proc/self/ns/net", O_RDONLY), control = open(argv[5], O_RDWR | O_NONBLOCK);
    double delay = atof(argv[3]) / 1e3, rate = atof(argv[4]) * 1e6 / 8;
    if (n < 1 || n > HOSTS || control < 0) fail(argv[5]);
    for (int i = 1; i <= n; i++) host_open(argv[1], i);
    setns(home, CLONE_NEWNET);
    puts("wan up");
    fflush(stdout);
    for (;;) {
        struct pollfd p[HOSTS + 1];
        char lines[300];
        double t = now(), pause = 0.01;
        while (queued && queue[0].at <= t) {
            packet k = get();
            if (write(device[k.to], k.bytes, (size_t)k.size) < 0 && errno != EAGAIN) perror("write");
            free(k.bytes);
        }
        for (int i = 0; i < n; i++) {
            p[i].fd = device[i + 1];
            p[i].events = queued < PACKETS - 64 * HOSTS && busy[i + 1] < t + 0.05 ? POLLIN : 0;
            p[i].revents = 0;
        }
        p[n].fd = control;
        p[n].events = POLLIN;
        p[n].revents = 0;
        if (queued && queue[0].at - t < pause) pause = queue[0].at > t ? queue[0].at - t : 0;
        struct timespec wait = {0, (long)(pause * 1e9)};
        ppoll(p, (nfds_t)n + 1, &wait, NULL);
        t = now();
        if (p[n].revents & POLLIN) {
            ssize_t got = read(control, lines, sizeof lines - 1);
            lines[got > 0 ? got : 0] = 0;
            obey(lines);
        }
        for (int i = 1; i <= n; i++) {
            unsigned char bytes[2048];
            ssize_t size;
            for (int k = 0; k < 32 && (p[i - 1].revents & POLLIN) && (size = read(device[i], bytes, sizeof bytes)) > 0; k++) {
                int to = bytes[19];  /* the last byte of an IPv4 packet's address */
                if (size < 20 || bytes[0] >> 4 != 4 || to < 1 || to > n || cut[i][to]) continue;
                if (busy[i] < t) busy[i] = t;
                busy[i] += (double)size / rate;
                packet out = {busy[i] + delay, to, (int)size, malloc((size_t)size)};
                if (!out.bytes) continue;
                memcpy(out.bytes, bytes, (size_t)size);
                put(out);
            }
        }
    }
}
