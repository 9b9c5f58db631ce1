/* safetensors.c - dt_load on any bytes: refused with a message and nothing changed, or loaded.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/safetensors.c -o fuzz-safetensors -lm -pthread
 *   ./fuzz-safetensors -max_total_time=60 corpus/
 *
 * The first byte says what the others are: a whole file; a header without its length; or changes to a file that
 * the model itself has saved, three bytes each.
 */
#include "fuzz.h"

static dt_model *model;
static unsigned char saved[1 << 16], file[1 << 17];
static size_t n_saved;
static int fd;
static char path[64];

static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 2, 3)));
    return dt_dense(dt_flatten(x), 3);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    dt_error err = {0};
    dt_options o = {.net = net, .input = {4, 4, 1}, .batch = 1, .replicas = 1};
    char name[] = "/tmp/dtXXXXXX";
    int temporary = mkstemp(name);
    FILE *f;
    (void)argc, (void)argv;
    fd = memfd_create("safetensors", 0);
    MUST(fd >= 0 && temporary >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    model = dt_model_create(&o, &err);
    MUST(model && !dt_save(model, name, &err));
    f = fopen(name, "rb");
    MUST(f);
    n_saved = fread(saved, 1, sizeof saved, f);
    fclose(f);
    close(temporary);
    remove(name);
    return 0;
}

/* the file that the input stands for */
static size_t make(const uint8_t *data, size_t size) {
    size_t n = size - 1;
    if (n > sizeof file / 2) n = sizeof file / 2;
    if (data[0] % 3 == 0) {
        memcpy(file, data + 1, n);
        return n;
    }
    if (data[0] % 3 == 1) {
        size_t i, behind = data[0] / 3 * 4u;
        memset(file, 0, 8 + n + behind);
        for (i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> (8 * i));
        memcpy(file + 8, data + 1, n);
        return 8 + n + behind;
    }
    memcpy(file, saved, n_saved);
    for (data++; n >= 3; n -= 3, data += 3) file[(data[0] + 256u * data[1]) % n_saved] = data[2];
    return n_saved;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dt_error err = {0};
    uint32_t before = dt_parameters_crc32c(model);
    size_t n;
    if (size == 0) return 0;
    n = make(data, size);
    MUST(!ftruncate(fd, 0) && pwrite(fd, file, n, 0) == (ssize_t)n);
    if (dt_load(model, path, data[0] & 64 ? "dense_1.*" : NULL, &err)) {
        MUST(err.code && strstr(err.text, path) && dt_parameters_crc32c(model) == before);
    } else {
        MUST(!err.code);
    }
    return 0;
}
