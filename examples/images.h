// images.h - dt_images: a folder of PGM, PPM and BMP files, in a sub-folder per class
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "images.h"
//           In other files that call dt_images: both without the definition. cifar10.h, which lists folders, lies beside
//           this file; so does train.c, which has it as --data images:DIR.
//
// What:    opening lists the files and checks their headers; a replica's thread decodes the pixels of the samples that it
//          feeds, so a set may be larger than memory.
// Owns:    nothing that outlives a call: paths and labels belong to the open dt_dataset.
// Uses:    >>data (lists, values), >>base; cifar10.h (folders).   Used by: programs.
// Promise: a header is compared with the bytes there are before a pixel is read; a file that has changed its size or kind since is an error.
#ifndef DTRAIN_IMAGES_H
#define DTRAIN_IMAGES_H

#ifndef DTRAIN_H
#error "images.h goes behind dtrain.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

// dt_images - a folder with a sub-folder per class (labels 0, 1, … by name) of PGM, PPM or BMP files of one size:
// [height, width, 1 or 3], value / largest value. Opening checks the headers; reading decodes the pixels.
DT_API dt_source dt_images(const char *folder);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // DTRAIN_IMAGES_H

#if defined(DTRAIN_IMPLEMENTED) && !defined(DTRAIN_IMAGES_IMPLEMENTED)
#define DTRAIN_IMAGES_IMPLEMENTED

#if DT__POSIX && !defined(DTRAIN_NO_STDIO)
#include "cifar10.h"

// PGM and PPM (netpbm's, plain and raw), BMP.
typedef struct {
    const uint8_t *p, *palette, *end;
    int h, w, c, most, plain;  // most: the largest value; plain: numbers as text
    int colors, step;  // BMP: of the palette; bytes of a pixel, else 0
    ptrdiff_t line;  // BMP: from a row to the one below
} dt__image;

static int dt__image_blank(int c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static int dt__image_number(dt__image *m, int most) {  // the next number, behind blanks and comments; -1: none up to most
    int v = -1, comment = 0;
    for (; m->p < m->end && (comment || *m->p == '#' || dt__image_blank(*m->p)); m->p++) comment = (comment || *m->p == '#') && *m->p != '\n';
    for (; m->p < m->end && *m->p >= '0' && *m->p <= '9' && v <= most; m->p++) v = DT__MAX(v, 0) * 10 + (*m->p - '0');
    return v <= most ? v : -1;
}

// NULL, or what is wrong with a header and what must follow it.
static const char *dt__image_start(dt__image *m, const uint8_t *b, size_t size) {
    const uint8_t *p; uint64_t line;
    memset(m, 0, sizeof *m);
    m->end = b + size; m->most = 255;
    if (size >= 54 && !memcmp(b, "BM", 2)) {
        uint64_t at = dt__read_le(b + 10, 4), header = dt__read_le(b + 14, 4), bits = dt__read_le(b + 28, 2), colors = dt__read_le(b + 46, 4);
        uint32_t h = (uint32_t)dt__read_le(b + 22, 4), up = h >> 31 ? 0 - h : h;
        if ((bits != 8 && bits != 24 && bits != 32) || dt__read_le(b + 30, 4)) return "a BMP that is compressed, or has not 8, 24 or 32 bits";
        colors = bits != 8 ? 0 : colors ? colors : 256;
        if (header < 40 || colors > 256 || at < 14 + header + 4 * colors || at > size) return "a BMP with a damaged header, or of OS/2";
        m->w = (int)DT__MIN(dt__read_le(b + 18, 4), INT_MAX); m->h = (int)DT__MIN(up, INT_MAX);
        m->step = (int)bits / 8; m->colors = (int)colors; m->palette = b + 14 + header; m->p = b + at;
        m->c = m->colors ? 1 : 3;
        for (p = m->palette; p < m->palette + 4 * m->colors; p += 4) if (p[0] != p[1] || p[0] != p[2]) m->c = 3;  // not all grey
        line = ((uint64_t)m->w * bits + 31) / 32 * 4;
        m->line = h == up ? -(ptrdiff_t)line : (ptrdiff_t)line;
    } else {
        if (size < 3 || b[0] != 'P' || !memchr("2356", b[1], 4)) return "no PGM, PPM or BMP, whatever its name says";
        m->p = b + 2; m->plain = b[1] < '5'; m->c = b[1] == '3' || b[1] == '6' ? 3 : 1;
        m->w = dt__image_number(m, INT_MAX / 12); m->h = dt__image_number(m, INT_MAX / 12);
        m->most = dt__image_number(m, 65535);
        if (m->most < 1 || m->p == m->end || !dt__image_blank(*m->p++)) m->h = 0;
        line = (uint64_t)m->w * (unsigned)m->c * (m->plain || m->most > 255 ? 2 : 1);  // plain: at least a digit and a blank
    }
    if (m->w < 1 || m->h < 1 || (uint64_t)m->w * (unsigned)m->h > INT_MAX / 12) return "an image with a damaged header, or too large";
    if (line * (unsigned)m->h - (unsigned)m->plain > (size_t)(m->end - m->p)) return "a cut image";
    if (m->line < 0) m->p -= m->line * (m->h - 1);  // the lowest row is first
    return NULL;
}

// Pixels to x as floats or int32, as the input is. NULL, or what is wrong with them.
static const char *dt__image_values(dt__image *m, dt_type to, float *x) {
    int y, i, k;
    if (!m->step && !m->plain && m->most == 255) dt__set_values(x, m->p, DT_UINT8, to, (ptrdiff_t)m->h * m->w * m->c, 0, NULL);
    else for (y = 0; y < m->h; y++) for (i = 0; i < m->w; i++) for (k = 0; k < m->c; k++, x++) {
        int32_t v;
        if (m->step) {
            const uint8_t *pixel = m->p + y * m->line + (ptrdiff_t)i * m->step;
            v = !m->colors ? pixel[2 - k] : *pixel < m->colors ? m->palette[4 * *pixel + 2 - k] : -1;  // blue is first
        } else if (m->plain) v = dt__image_number(m, m->most);
        else { v = *m->p++; if (m->most > 255) v = v << 8 | *m->p++; }
        if (v < 0 || v > m->most) return "an image with a value that is missing, no number, or above its header's largest or palette";
        if (to == DT_INT32) memcpy(x, &v, 4); else *x = (float)v * (1.0f / (float)m->most);
    }
    return NULL;
}

// Compare an image's header with the first one's, which goes to found; read its pixels too, unless x is NULL.
static int dt__image_read(const dt_dataset *d, const char *path, int *found, dt_type to, float *x, dt_error *err) {
    const char *first = d->paths[0].data, *wrong;
    const int *size = d->info.input;
    dt__image m; dt__file f;
    int code = dt__file_read("dt_images", path, &f, err);
    if (code) return code;
    wrong = dt__image_start(&m, f.data, f.size);
    if (!wrong && found) { found[0] = m.h; found[1] = m.w; found[2] = m.c; }
    if (!wrong && (size[0] != m.h || size[1] != m.w || size[2] != m.c))
        code = dt__bad_file(err, "\"%s\" is [%d,%d,%d], \"%s\" [%d,%d,%d]: give all images one size", path, m.h, m.w, m.c, first, size[0], size[1], size[2]);
    else if (!wrong && x) wrong = dt__image_values(&m, to, x);
    if (wrong) code = dt__bad_file(err, "\"%s\" is %s (%d x %d, values to %d): save it as PGM, PPM or plain BMP", path, wrong, m.h, m.w, m.most);
    dt__file_free(&f);
    return code;
}

static int dt__image_sample(const dt_dataset *d, const uint8_t *from, long i, dt_type to, float *x, dt_error *err) {
    const char *path;
    (void)i;
    memcpy(&path, from, sizeof path);
    return dt__image_read(d, path, NULL, to, x, err);
}

static int dt__list_images(dt_dataset *d) {  // at least one in each sub-folder
    static const char globs[] = "*.pgm,*.ppm,*.pnm,*.bmp";
    dt__list folders = DT_DEFAULTS;
    int i, code = dt__list_folder(d, &folders, d->source.path, NULL);
    const char *path = folders.data;
    if (!code && !folders.n) code = dt__fail(d->err, DT_ERR_IO, "dt_images: no sub-folder with \"%s\" in the folder \"%s\"", globs, d->source.path);
    for (i = 0; i < folders.n && !code; i++, path += strlen(path) + 1) code = dt__list_folder(d, &d->paths[0], path, globs);
    free(folders.data);
    return code;
}

static int dt__open_images(dt_dataset *d) {
    const char *name, *before = NULL, **path;
    int32_t *label; int i, n;
    d->read[0] = dt__image_sample;
    if (dt__list_images(d)) return 1;
    n = d->paths[0].n;
    d->x = path = (const char **)malloc((size_t)n * sizeof *path);  // a sample is its path
    d->y = label = (int32_t *)malloc((size_t)n * sizeof *label);
    if (!path || !label) return dt__no_memory(d);
    dt__add_part(d, path, label, (size_t)n);
    name = d->paths[0].data;
    for (i = 0; i < n; i++, before = name, name += strlen(name) + 1) {
        path[i] = name;
        if (dt__image_read(d, name, i ? NULL : d->info.input, DT_UINT8, NULL, d->err)) return 1;
        d->info.classes += !before || strncmp(name, before, (size_t)(strrchr(name, '/') - name) + 1);
        label[i] = d->info.classes - 1;
    }
    d->info.x_type = DT_UINT8; d->info.y_type = DT_INT32;
    d->x_stride = sizeof *path; d->y_stride = sizeof *label;
    return 0;
}
#else
static int dt__open_images(dt_dataset *d) {
    return dt__fail(d->err, DT_ERR_DISABLED, "dt_images: this build has DTRAIN_NO_STDIO, or a folder needs POSIX: use dt_from or dt_arrays");
}
#endif

DT_API dt_source dt_images(const char *folder) { return dt__files("dt_images", dt__open_images, folder, NULL, DT_TRAIN); }
#endif
