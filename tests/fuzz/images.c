/* images.c - dt_images on a folder of two files with any bytes: refused with a message, or decoded to values of 0 to 1.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/images.c -o fuzz-images -lm -pthread
 *   ./fuzz-images -max_total_time=60 corpus/
 *
 * The first two bytes are the length of the first file; 65535: both are the same.
 */
#include "fuzz.h"
#include "../../examples/images.h"
#include <sys/stat.h>

static int fd[2];
static char folder[64] = "/tmp/fuzz-imagesXXXXXX";

static void clean(void) {
    char path[200];
    int i;
    for (i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%d/1.pgm", folder, i), unlink(path);
        snprintf(path, sizeof path, "%s/%d", folder, i), rmdir(path);
    }
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    dt_error err = {0};
    char path[200], target[64];
    int i;
    (void)argc, (void)argv;
    MUST(mkdtemp(folder));
    atexit(clean);
    for (i = 0; i < 2; i++) {
        fd[i] = memfd_create("image", 0);
        MUST(fd[i] >= 0);
        snprintf(target, sizeof target, "/proc/self/fd/%d", fd[i]);
        snprintf(path, sizeof path, "%s/%d", folder, i);
        MUST(!mkdir(path, 0700));
        strcat(path, "/1.pgm");
        MUST(!symlink(target, path));
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dt_error err = {0};
    dt_source source = dt_images(folder);
    dt_dataset *d;
    size_t begin[2] = { 0, 0 }, n[2];
    int i;
    if (size < 2) return 0;
    n[0] = data[0] + 256u * data[1];
    data += 2, size -= 2;
    if (n[0] == 65535) n[0] = n[1] = size;
    else {
        if (n[0] > size) n[0] = size;
        begin[1] = n[0], n[1] = size - n[0];
    }
    for (i = 0; i < 2; i++) MUST(!ftruncate(fd[i], 0) && pwrite(fd[i], data + begin[i], n[i], 0) == (ssize_t)n[i]);
    d = dt_dataset_open(&source, &err);
    if (d) {
        dt_dataset_info info = dt_dataset_describe(d);
        dt_tensor x;
        memset(&x, 0, sizeof x);
        x.size = (ptrdiff_t)info.input[0] * info.input[1] * info.input[2];
        MUST(!err.code && info.n == 2 && info.classes == 2 && x.size > 0 && (size_t)x.size <= 3 * size && (info.input[2] == 1 || info.input[2] == 3));
        for (i = 0; i < 4; i++) {
            float *to = (float *)malloc((size_t)x.size * 4);
            ptrdiff_t k;
            int code;
            memset(&err, 0, sizeof err);
            x.type = i / 2 ? DT_FLOAT32 : DT_INT32;
            code = dt__read_sample(d, &x, DT_FLOAT32, to, NULL, DT_INT32, NULL, i % 2, &err);
            MUST(code == err.code && (!code || strstr(err.text, "/1.pgm")));
            for (k = 0; !code && k < x.size; k++) {
                int32_t v;
                memcpy(&v, to + k, 4);
                MUST(x.type == DT_INT32 ? v >= 0 && v < 65536 : to[k] >= 0 && to[k] <= 1.0000001f);
            }
            free(to);
        }
    } else {
        MUST(err.code && strstr(err.text, "/1.pgm"));
    }
    dt_dataset_close(d);
    return 0;
}
