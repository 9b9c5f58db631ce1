/* npy.c - dt_npy on any pair of files: refused with a message, or every value of every sample can be read.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/npy.c -o fuzz-npy -lm -pthread
 *   ./fuzz-npy -max_total_time=60 corpus/
 *
 * The first two bytes are the length of the label file, which comes before the samples; 65535: no label file.
 */
#include "fuzz.h"
#include "../../examples/npy.h"

static int fd[2];
static char path[2][64];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    dt_error err = {0};
    int i;
    (void)argc, (void)argv;
    for (i = 0; i < 2; i++) {
        fd[i] = memfd_create("npy", 0);
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
    int labelled;
    if (size < 2) return 0;
    n_labels = data[0] + 256u * data[1];
    labelled = n_labels != 65535;
    data += 2, size -= 2;
    if (!labelled) n_labels = 0;
    if (n_labels > size) n_labels = size;
    MUST(!ftruncate(fd[0], 0) && pwrite(fd[0], data, n_labels, 0) == (ssize_t)n_labels);
    MUST(!ftruncate(fd[1], 0) && pwrite(fd[1], data + n_labels, size - n_labels, 0) == (ssize_t)(size - n_labels));
    source = dt_npy(path[1], labelled ? path[0] : NULL);
    d = dt_dataset_open(&source, &err);
    if (d) {
        dt_dataset_info info = dt_dataset_describe(d);
        dt_tensor x, loss, p;
        dt_loss_options o = {0};
        long i;
        int k;
        memset(&x, 0, sizeof x), memset(&loss, 0, sizeof loss), memset(&p, 0, sizeof p);
        for (x.size = 1, k = 0; k < DT_MAX_RANK - 1 && info.input[k]; k++) x.size *= info.input[k];
        loss.size = labelled ? d->y_values : 0;
        loss.in[0] = &p, loss.options = &o, p.rank = 2, p.dim[1] = INT_MAX;
        MUST(!err.code && info.n > 0 && info.input[0] > 0 && info.classes >= 0 && labelled == (d->part[0].y != NULL));
        MUST((size_t)x.size * (size_t)info.n <= size && (size_t)loss.size * (size_t)info.n <= size);
        for (i = 0; i < info.n; i++) {
            float *to = (float *)malloc((size_t)x.size * 4), *y = (float *)malloc((size_t)loss.size * 4);
            memset(&err, 0, sizeof err);
            x.type = i % 2 ? DT_FLOAT32 : DT_INT32, loss.type = i % 3 ? DT_FLOAT32 : DT_INT32;
            k = dt__read_sample(d, &x, DT_FLOAT32, to, labelled ? &loss : NULL, DT_FLOAT32, y, i, &err);
            MUST((k != 0) == (err.code != 0) && (!k || strstr(err.text, "sample")));
            free(to), free(y);
        }
    } else {
        MUST(err.code && strstr(err.text, "/proc/self/fd/"));
    }
    dt_dataset_close(d);
    return 0;
}
