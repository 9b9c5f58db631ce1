/* cifar.c - dt_cifar10 on any files: refused with a message, or every byte of every sample is there.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/cifar.c -o fuzz-cifar -lm -pthread
 *   ./fuzz-cifar -max_total_time=60 corpus/
 *
 * A record has 3073 bytes, more than a fuzzer likes to invent: the file is the input, again and again, for as
 * many bytes as its first two say; the third says how often the file is named.
 */
#include "fuzz.h"
#include "../../examples/cifar10.h"

static int fd;
static char path[64];
static unsigned char file[1 << 16];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    dt_error err = {0};
    (void)argc, (void)argv;
    fd = memfd_create("cifar", 0);
    MUST(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dt_error err = {0};
    dt_source source;
    dt_dataset *d;
    char names[80 * sizeof path] = "";
    size_t n, i;
    int k, times;
    if (size < 4) return 0;
    n = data[0] + 256u * data[1];
    if (n % 16 < 12) n = n % 16 * 3073;  /* mostly whole records */
    times = data[2] % 70 + 1;            /* 64 files are taken */
    for (i = 0; i < n; i++) file[i] = data[3 + i % (size - 3)];
    MUST(!ftruncate(fd, 0) && pwrite(fd, file, n, 0) == (ssize_t)n);
    for (k = 0; k < times; k++) sprintf(names + strlen(names), "%s%s", k ? "," : "", path);
    source = dt_cifar10(names, DT_TRAIN);
    d = dt_dataset_open(&source, &err);
    if (d) {
        dt_dataset_info info = dt_dataset_describe(d);
        MUST(!err.code && times <= 64 && info.n == times * (long)(n / 3073) && n % 3073 == 0 && info.classes == 10);
        for (k = 0; k < d->n_parts; k++)
            for (i = 0; i < (size_t)d->part[k].n; i++) {
                MUST(d->part[k].y[i * (size_t)d->y_stride] == file[i * 3073] && file[i * 3073] < 10);
                MUST(!memcmp(d->part[k].x + i * (size_t)d->x_stride, file + i * 3073 + 1, 3072));
            }
    } else {
        MUST(err.code && *err.text);
    }
    dt_dataset_close(d);
    return 0;
}
