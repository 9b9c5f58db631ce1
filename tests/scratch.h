/* scratch.h - a folder of its own for a test's files: scratch_begin() makes it, scratch_end() removes it. */
#ifndef SCRATCH_H
#define SCRATCH_H
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[256];

static inline int scratch_begin(void) {
    const char *base = getenv("TMPDIR");
    if (!base || !*base || strlen(base) > 100) base = "/tmp";
    snprintf(scratch, sizeof scratch, "%s/dtXXXXXX", base);
    if (!mkdtemp(scratch)) { printf("mkdtemp %s: %s\n", scratch, strerror(errno)); return -1; }
    return 0;
}

static inline void remove_tree(const char *path) {
    char inside[1024];
    struct dirent *e;
    DIR *d = opendir(path);
    while (d && (e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (snprintf(inside, sizeof inside, "%s/%s", path, e->d_name) < (int)sizeof inside && remove(inside)) remove_tree(inside);
    }
    if (d) closedir(d);
    remove(path);
}

static inline void scratch_end(void) { remove_tree(scratch); }

/* a path in the scratch folder; the last eight stay valid */
static inline const char *at(const char *name) {
    static char path[8][512];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", scratch, name);
    return path[turn];
}

static inline const char *put(const char *name, const void *bytes, size_t n) {
    const char *path = at(name);
    FILE *f = fopen(path, "wb");
    int bad = !f || (n && fwrite(bytes, 1, n, f) != n);
    if (f && fclose(f)) bad = 1;
    CHECK_MSG(!bad, "cannot write %s", path);
    return path;
}

/* a whole file, with a zero behind it; free it */
static inline unsigned char *get(const char *path, size_t *n) {
    struct stat s;
    FILE *f = fopen(path, "rb");
    unsigned char *b = NULL;
    *n = 0;
    if (f && stat(path, &s) == 0) {
        b = (unsigned char *)calloc(1, (size_t)s.st_size + 1);
        *n = fread(b, 1, (size_t)s.st_size, f);
    }
    if (f) fclose(f);
    return b;
}
#endif
