/* idx.c - dt_idx on any pair of files: refused with a message, or every byte of every sample is there.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/idx.c -o fuzz-idx -lm -pthread
 *   ./fuzz-idx -max_total_time=60 corpus/
 *
 * The first byte is the length of the label file, which comes before the images; 255: no label file.
 */
#include "fuzz.h"

static int fd[2];
static char path[2][64];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    dt_error err = {0};
    int i;
    (void)argc, (void)argv;
    for (i = 0; i < 2; i++) {
        fd[i] = memfd_create("idx", 0);
        MUST(fd[i] >= 0);
        snprintf(path[i], sizeof path[i], "/proc/self/fd/%d", fd[i]);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dt_error err = {0};
    dt_source source;
    dt_dataset *d;
    size_t n_labels;
    if (size == 0) return 0;
    n_labels = data[0] == 255 ? 0 : data[0];
    if (n_labels > size - 1) n_labels = size - 1;
    MUST(!ftruncate(fd[0], 0) && pwrite(fd[0], data + 1, n_labels, 0) == (ssize_t)n_labels);
    MUST(!ftruncate(fd[1], 0) && pwrite(fd[1], data + 1 + n_labels, size - 1 - n_labels, 0) == (ssize_t)(size - 1 - n_labels));
    source = dt_idx(path[1], data[0] == 255 ? NULL : path[0]);
    d = dt_dataset_open(&source, &err);
    if (d) {
        dt_dataset_info info = dt_dataset_describe(d);
        size_t each = 1, i, sum = 0;
        int k;
        for (k = 0; k < DT_MAX_RANK - 1 && info.input[k]; k++) each *= (size_t)info.input[k];
        MUST(!err.code && info.n > 0 && info.input[0] > 0 && info.classes <= 256);
        MUST((ptrdiff_t)each == d->x_stride && d->part[0].n == info.n && (data[0] == 255) == !d->part[0].y);
        for (i = 0; i < (size_t)info.n * each; i++) sum += d->part[0].x[i];
        for (i = 0; d->part[0].y && i < (size_t)info.n; i++) sum += d->part[0].y[i] < info.classes ? 1 : size;
        MUST(sum <= 255 * size);
    } else {
        MUST(err.code && strstr(err.text, "/proc/self/fd/"));
    }
    dt_dataset_close(d);
    return 0;
}
