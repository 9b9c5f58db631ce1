// cifar10.h - dt_cifar10: CIFAR-10's binary version
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "cifar10.h"
//           In other files that call dt_cifar10: both without the definition. cifar10.c, cluster.c and train.c, beside
//           this file, read it so; data.sh fetches it.
//
// What:    opening checks sizes and labels; records stay as they are on the disk until a replica's thread brings the planes
//          of the samples that it feeds together.
// Owns:    nothing that outlives a call: files and paths belong to the open dt_dataset.
// Uses:    >>data (files, lists, values), >>base.   Used by: programs; images.h (folders).
// Promise: a file's size is whole records and its labels are 0 to 9 before a pixel is read.
#ifndef DTRAIN_CIFAR10_H
#define DTRAIN_CIFAR10_H

#ifndef DTRAIN_H
#error "cifar10.h goes behind dtrain.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

// dt_cifar10 - CIFAR-10's binary version, plain or .gz: all data_batch_*.bin (DT_TRAIN) or test_batch*.bin (DT_TEST) of
// a folder; or the files that path names.
DT_API dt_source dt_cifar10(const char *path, dt_split split);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // DTRAIN_CIFAR10_H

#if defined(DTRAIN_IMPLEMENTED) && !defined(DTRAIN_CIFAR10_IMPLEMENTED)
#define DTRAIN_CIFAR10_IMPLEMENTED

#ifndef DTRAIN_NO_STDIO
#if DT__POSIX
static int dt__by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

// Add the paths of a folder's files whose names, in either case, match the globs; NULL: of its sub-folders, if any. None
// begins with a dot.
static int dt__list_folder(const dt_dataset *d, dt__list *l, const char *folder, const char *globs) {
    char path[1024];
    struct dirent **e = NULL;
    int i, n = scandir(folder, &e, NULL, dt__by_name), before = l->n, code = 0;
    if (n < 0) return dt__fail(d->err, DT_ERR_IO, "%s: cannot list the folder \"%s\": %s", d->what, folder, strerror(errno));
    for (i = 0; i < n; free(e[i++])) {
        char *name = e[i]->d_name;
        size_t length = dt__format(path, sizeof path, "%s/%s", folder, name);
        struct stat st;
        if (code || *name == '.') continue;
        for (; *name && globs; name++) if (*name >= 'A' && *name <= 'Z') *name = (char)(*name | 32);
        if (globs && !dt__glob(globs, e[i]->d_name)) continue;
        if (length >= sizeof path) code = dt__deny(d->err, "%s: the path \"%.80s...\" is too long", d->what, path);
        else if (!stat(path, &st) && (globs ? S_ISREG(st.st_mode) : S_ISDIR(st.st_mode))) code = dt__list_add(d, l, path, length + 1);
    }
    free(e);
    if (code || !globs || l->n > before) return code;
    return dt__fail(d->err, DT_ERR_IO, "%s: no \"%s\" in the folder \"%s\"", d->what, globs, folder);
}
#endif

enum { DT__CIFAR_PART = 256 };  // pixels that are brought together at a time, in the first cache

#if DT__X86 && defined(DT__SHUFFLE)
typedef uint8_t dt__bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
DT__AVX2 static void dt__mix_planes(const uint8_t *from, uint8_t *p) {  // 16 pixels at a time: red and green, then blue
    int k;
    for (k = 0; k < DT__CIFAR_PART; k += 16, p += 48) {
        dt__bytes16 r = *(const dt__bytes16 *)(from + k), g = *(const dt__bytes16 *)(from + 1024 + k), b = *(const dt__bytes16 *)(from + 2048 + k), *to = (dt__bytes16 *)p;
        to[0] = DT__SHUFFLE(DT__SHUFFLE(r, g, 0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5), b,
            0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15);
        to[1] = DT__SHUFFLE(DT__SHUFFLE(r, g, 21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26), b,
            0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15);
        to[2] = DT__SHUFFLE(DT__SHUFFLE(r, g, 0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0), b,
            26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31);
    }
}
#endif

static int dt__read_cifar(const dt_dataset *d, const uint8_t *from, long i, dt_type to, float *x, dt_error *err) {
    uint8_t mixed[12 * DT__CIFAR_PART], *p;  // room for as many floats, which gcc looks for at -O3
    int k, j, code = 0;
    for (k = 0; k < 1024 && !code; k += DT__CIFAR_PART, from += DT__CIFAR_PART, x += 3 * DT__CIFAR_PART) {
#if DT__X86 && defined(DT__SHUFFLE)
        if (dt__cpu()->columns > 8) dt__mix_planes(from, mixed);
        else
#endif
            for (j = 0, p = mixed; j < DT__CIFAR_PART; j++, p += 3) { p[0] = from[j]; p[1] = from[1024 + j]; p[2] = from[2048 + j]; }
        code = dt__set_values(x, mixed, d->info.x_type, to, 3 * DT__CIFAR_PART, i, err);
    }
    return code;
}

static int dt__open_cifar(dt_dataset *d) {  // records of a label byte and 3 planes of 32 x 32 bytes
    const char *path = d->source.path, *before = NULL;
    int k, folder = 0, code;
    size_t i;
#if DT__POSIX
    struct stat st;
    folder = !stat(path, &st) && S_ISDIR(st.st_mode);
    if (folder) code = dt__list_folder(d, &d->paths[0], path, d->source.split == DT_TEST ? "test_batch*.bin,test_batch*.bin.gz" : "data_batch*.bin,data_batch*.bin.gz");
    else
#endif
    code = dt__add_paths(d, &d->paths[0], path);
    path = d->paths[0].data;
    for (k = 0; k < d->paths[0].n && !code; k++, path += strlen(path) + 1) {
        const dt__file *f;
        if (folder && before && !strncmp(path, before, strlen(before))) continue;  // x.bin or x.bin.gz is enough
        before = path;
        if (!(f = dt__add_file(d, path))) return 1;
        if (f->size == 0 || f->size % 3073) return dt__bad_file(d->err, "\"%s\" has %zu bytes, no whole number of CIFAR-10's records of 3073: it is cut, or another file", path, f->size);
        for (i = 0; i < f->size; i += 3073)
            if (f->data[i] > 9) return dt__bad_file(d->err, "\"%s\": record %zu has label %u, CIFAR-10 has 0..9: damaged, or another file", path, i / 3073, (unsigned)f->data[i]);
        code = dt__add_part(d, f->data + 1, f->data, f->size / 3073);
    }
    d->info.input[0] = d->info.input[1] = 32; d->info.input[2] = 3; d->info.classes = 10;
    d->info.x_type = d->info.y_type = DT_UINT8; d->x_stride = d->y_stride = 3073;
    d->read[0] = dt__read_cifar;
    return code;
}
#else
#define dt__open_cifar dt__no_files
#endif

DT_API dt_source dt_cifar10(const char *path, dt_split split) { return dt__files("dt_cifar10", dt__open_cifar, path, NULL, split); }
#endif
