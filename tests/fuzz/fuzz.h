/* fuzz.h - what the targets that read files share: the library, with every read beyond a file's end visible. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A mapped file goes on with zeros up to the end of its page. Reading it into a block of its size instead
   shows the first byte that is read beyond. */
static void *exact_map(size_t n, int fd) {
    void *p = malloc(n);
    return p && pread(fd, p, n, 0) == (ssize_t)n ? p : MAP_FAILED;
}
#define mmap(where, n, protection, flags, fd, offset) exact_map(n, fd)
#define munmap(p, n) free(p)
#define DTRAIN_IMPLEMENTATION
#include "../../dtrain.h"

#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "not so: %s (%d %s)\n", #condition, err.code, err.text); abort(); } } while (0)
