// train.c - the job runner: well-known models on well-known data, every choice a flag
//
// Shows:   flags of your own beside the library's, data sets described before the model is built,
//          models from a table, residual blocks, defaults that depend on the model.
// Build:   cc -O2 examples/train.c -o train -lm -pthread
// Run:     ./train --data digits --model mlp --save digits.safetensors
//          ./train --data mnist:data/mnist --model cnn --epochs 2
//          ./train --data csv:table.csv --columns "city onehot, age standardise" --save table.safetensors
//          ./train --data mnist:data/mnist --model cnn --epochs 9 --job-dir out      again, after any end: it goes on
//          ./train predict --data digits --model mlp --load digits.safetensors --out answers.csv
//          (--help lists every flag)
// Output:  (of ./train --data digits --model mlp --epochs 5)
//          301,066 parameters, strategy mirrored, 2 replicas on avx512, batch 128, 1,438 samples
//          epoch 1/5  loss 1.7923  accuracy 0.5828  test loss 1.0625  test accuracy 0.8329  72,577 samples/s  0.0 s
//          …
//          epoch 5/5  loss 0.1657  accuracy 0.9458  test loss 0.1202  test accuracy 0.9499  76,934 samples/s  0.0 s
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "cifar10.h"
#include "csv.h"
#include "export_c.h"
#include "export_onnx.h"
#include "images.h"
#include "job.h"
#include "profile.h"
#include "digits.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the data: a name, and behind a colon where it is ---------------------------------------

#define DATA_CHOICES \
    "digits, mnist:DIR, fashion:DIR, cifar10:DIR, images:DIR, csv:FILE or synthetic:HxWxC:CLASSES:N"
#define MODEL_CHOICES "linear, mlp, cnn, cifar or resnet20"

typedef struct {
    int shape[3];  // height, width, channels
    int classes;
    long n;
} synthetic;

typedef struct {
    dt_source train, test;
    dt_dataset *open[2];  // what they read from
    synthetic made;
    int input[DT_MAX_RANK - 1];
    int classes;          // 0: the labels are numbers to predict
    const char *columns;  // what becomes of the columns of a CSV
    const char *fitted;   // … as the file of weights has it
    const char *export_c;  // where the net goes as C when it is trained, or NULL
    const char *export_onnx;  // … as ONNX
    dt_error export_error;
} job_data;

// A number in -0.5 .. 0.5 that depends on a and b alone: the last step of splitmix64.
static float noise(uint64_t a, uint64_t b) {
    uint64_t z = (a + 1) * 0x9E3779B97F4A7C15u + b * 0xD1B54A32D192ED03u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (float)((z ^ (z >> 31)) >> 40) / 16777216.0f - 0.5f;
}

// Sample index of the synthetic data: the picture of its class under twice as much noise.
static int synthetic_read(void *user, long index, void *x, void *y) {
    const synthetic *s = (const synthetic *)user;
    int size = s->shape[0] * s->shape[1] * s->shape[2], label = (int)(index % s->classes);
    for (int i = 0; i < size; i++)
        ((float *)x)[i] = 0.5f + noise((uint64_t)label, (uint64_t)i) / 3
                        + noise((uint64_t)index + 1000000, (uint64_t)i) * 2 / 3;
    *(int32_t *)y = label;
    return 0;
}

// One positive number, and then the character `end`; 0 if it is anything else.
static long number(const char **text, char end) {
    char *rest;
    long value = strtol(*text, &rest, 10);
    if (**text < '0' || **text > '9' || *rest != end || value < 1 || value > 100000000) return 0;
    *text = rest + (end != 0);
    return value;
}

static int synthetic_parse(synthetic *s, const char *text) {
    for (int i = 0; i < 3; i++) s->shape[i] = (int)number(&text, i < 2 ? 'x' : ':');
    s->classes = (int)number(&text, ':');
    s->n = number(&text, 0);
    return s->shape[0] && s->shape[1] && s->shape[2] && s->classes && s->n
        && (double)s->shape[0] * s->shape[1] * s->shape[2] < 1e8;
}

// The part of `data` behind the name and its colon; NULL if `data` is something else.
static const char *after(const char *data, const char *name) {
    size_t n = strlen(name);
    return strncmp(data, name, n) == 0 && data[n] == ':' && data[n + 1] ? data + n + 1 : NULL;
}

// Open the data once, to learn its shape and classes; the job then reads what is open.
static int data_open(job_data *d, const char *name, dt_error *err) {
    static unsigned char images[DIGITS * DIGITS_PIXELS], labels[DIGITS];
    const char *path;
    dt_source train = DT_DEFAULTS, test = DT_DEFAULTS;
    int whole = 0;  // one source: every fifth sample is held out
    int table = 0;
    if (strcmp(name, "digits") == 0) {
        digits_decode(images, labels);
        train = dt_arrays(images, DT_UINT8, labels, DT_UINT8, DIGITS);
        d->input[0] = d->input[1] = 8;
        d->input[2] = 1;
        d->classes = 10;
        whole = 1;
    } else if ((path = after(name, "mnist")) || (path = after(name, "fashion"))) {
        train = dt_mnist(path, DT_TRAIN);
        test = dt_mnist(path, DT_TEST);
    } else if ((path = after(name, "cifar10"))) {
        train = dt_cifar10(path, DT_TRAIN);
        test = dt_cifar10(path, DT_TEST);
    } else if ((path = after(name, "images"))) {  // a folder per class
        train = dt_images(path);
        whole = 1;
    } else if ((path = after(name, "csv"))) {
        train = dt_csv(path, .columns = d->columns, .fitted = d->fitted);
        whole = table = 1;
    } else if ((path = after(name, "synthetic")) && synthetic_parse(&d->made, path)) {
        train = dt_from(synthetic_read, &d->made, d->made.n);
        memcpy(d->input, d->made.shape, sizeof d->made.shape);
        d->classes = d->made.classes;
        whole = 1;
    } else {
        fprintf(stderr, "train: --data %s is none of " DATA_CHOICES "\n", name);
        return DT_ERR_USAGE;
    }

    if (table && !d->fitted) {  // what is fitted to the columns comes from the training rows
        test = dt_fold(train, 5, 4, DT_TEST);
        train = dt_fold(train, 5, 4, DT_TRAIN);
        whole = 0;
    }
    for (int i = 0; i < (whole ? 1 : 2); i++) {
        if (i && table) test.fitted = dt_dataset_columns(d->open[0]);
        d->open[i] = dt_dataset_open(i ? &test : &train, err);
        if (!d->open[i]) return err->code;
        dt_dataset_info info = dt_dataset_describe(d->open[i]);
        if (info.input[0]) memcpy(d->input, info.input, sizeof d->input);
        if (info.classes > d->classes) d->classes = info.classes;
    }
    d->train = whole ? dt_fold(dt_opened(d->open[0]), 5, 4, DT_TRAIN) : dt_opened(d->open[0]);
    d->test = whole ? dt_fold(dt_opened(d->open[0]), 5, 4, DT_TEST) : dt_opened(d->open[1]);
    return DT_OK;
}

// ---- the models: from one sample to `units` outputs -----------------------------------------

static int units(void *user) {
    const job_data *d = (const job_data *)user;
    return d->classes ? d->classes : 1;
}

static dt_tensor *linear(dt_tensor *x, void *user) {
    return dt_dense(dt_flatten(x), units(user), .name = "logits");
}

static dt_tensor *mlp(dt_tensor *x, void *user) {
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 512)), 0.2);
    x = dt_dropout(dt_relu(dt_dense(x, 512)), 0.2);
    return dt_dense(x, units(user), .name = "logits");
}

static dt_tensor *cnn(dt_tensor *x, void *user) {
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 64, 3)), 2);
    x = dt_relu(dt_dense(dt_flatten(x), 128));
    return dt_dense(x, units(user), .name = "logits");
}

static dt_tensor *cifar(dt_tensor *x, void *user) {
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
    x = dt_relu(dt_dense(dt_flatten(x), 64));
    return dt_dense(x, units(user), .name = "logits");
}

static dt_tensor *conv_norm(dt_tensor *x, int filters, int stride) {
    return dt_batchnorm(dt_conv2d(x, filters, 3, .stride = stride, .padding = 1, .no_bias = 1,
                                  .init = DT_HE_NORMAL));
}

// Two convolutions beside a shortcut without parameters: where the block halves the picture, the
// shortcut takes every second pixel and adds channels of zeros.
static dt_tensor *residual_block(dt_tensor *x, int filters, int stride) {
    int extra = filters - dt_dim(x, 3);
    dt_tensor *y = conv_norm(dt_relu(conv_norm(x, filters, stride)), filters, 1);
    if (stride > 1) x = dt_slice(dt_slice(x, 1, 0, 0, .step = stride), 2, 0, 0, .step = stride);
    if (extra > 0) x = dt_pad(x, 3, extra / 2, extra - extra / 2);
    return dt_relu(dt_add(x, y));
}

// The CIFAR ResNet of He et al. 2015, section 4.2, with 3 x 3 blocks and shortcuts of option A.
static dt_tensor *resnet20(dt_tensor *x, void *user) {
    x = dt_relu(conv_norm(x, 16, 1));
    for (int stage = 0; stage < 3; stage++)
        for (int block = 0; block < 3; block++)
            x = residual_block(x, 16 << stage, stage > 0 && block == 0 ? 2 : 1);
    return dt_dense(dt_global_avgpool(x), units(user), .name = "logits");
}

static const struct {
    const char *name;
    dt_tensor *(*net)(dt_tensor *x, void *user);
    int smallest;         // height and width of an image that it needs; 0: takes any sample
    int batch;
    dt_optimizer optimizer;
    double learning_rate, momentum, weight_decay;
} model_table[] = {
    {"mlp",      mlp,       0, 128, DT_ADAM,     1e-3, 0,   0},
    {"linear",   linear,    0, 128, DT_ADAM,     1e-3, 0,   0},
    {"cnn",      cnn,      10, 128, DT_ADAM,     1e-3, 0,   0},
    {"cifar",    cifar,     4,  64, DT_ADAM,     1e-3, 0,   0},
    {"resnet20", resnet20,  1, 128, DT_MOMENTUM, 0.1,  0.9, 1e-4},
};
enum { MODELS = sizeof model_table / sizeof model_table[0] };

// ---- the job --------------------------------------------------------------------------------

// The options that the model brings along. An optimizer of the user's brings its own instead.
static void defaults(dt_options *o, const dt_flag *flags, int model, int own_optimizer) {
    dt_options fresh = DT_DEFAULTS;
    *o = fresh;
    o->flags = flags;
    o->batch = model_table[model].batch;
    if (own_optimizer) return;
    o->optimizer = model_table[model].optimizer;
    o->learning_rate = model_table[model].learning_rate;
    o->momentum = model_table[model].momentum;
    o->weight_decay = model_table[model].weight_decay;
}

static int find_model(const char *name) {
    int i = 0;
    while (i < MODELS && strcmp(name, model_table[i].name) != 0) i++;
    if (i == MODELS) fprintf(stderr, "train: --model %s is none of " MODEL_CHOICES "\n", name);
    return i;
}

static int fits(const job_data *d, const char *data, int model) {
    int need = model_table[model].smallest;
    if (!need || (d->input[2] && d->input[0] >= need && d->input[1] >= need)) return 1;
    fprintf(stderr, "train: --model %s needs images of at least %dx%d; --data %s has ",
            model_table[model].name, need, need, data);
    if (d->input[2]) fprintf(stderr, "%dx%d", d->input[0], d->input[1]);
    else fprintf(stderr, "none");
    fprintf(stderr, ": use --model mlp or linear\n");
    return 0;
}

// Parse with the defaults of one model. Returns -1 to go on, or the program's exit status.
static int parse(dt_options *o, int argc, char **argv) {
    dt_error err = DT_DEFAULTS;
    int code = dt_parse(o, argc, argv, &err);
    if (code == DT_OK) return -1;
    if (code == DT_ERR_STOPPED) return 0;  // --help was answered
    fprintf(stderr, "train: %s\n", err.text);
    return DT_ERR_USAGE;
}

// Load the weights and write a line per sample of the data: its number, and the class with its
// probability, or the value.
static int predict(dt_options *o, const job_data *data, const char *path) {
    enum { ROWS = 1024 };
    int n_out = data->classes ? data->classes : 1;
    float *y = malloc(sizeof *y * ROWS * (size_t)n_out);
    dt_source source = data->open[1] ? data->test : dt_opened(data->open[0]);
    dt_dataset *d = NULL;
    FILE *out = stdout;
    dt_error err = DT_DEFAULTS;
    dt_source none = DT_DEFAULTS;
    dt_model *m;
    if (!o->load) {
        fprintf(stderr, "train predict: which weights? Add --load FILE\n");
        free(y);
        return DT_ERR_USAGE;
    }
    o->train = o->test = none;
    o->inference = 1;
    m = dt_model_create(o, &err);
    dt_load(m, o->load, NULL, &err);
    if (!err.code) d = dt_dataset_open(&source, &err);
    if (!err.code && !y) {
        snprintf(err.text, sizeof err.text, "no memory for %d answers", ROWS);
        err.code = DT_ERR_MEMORY;
    }
    if (!err.code && path && *path && !(out = fopen(path, "w"))) {
        snprintf(err.text, sizeof err.text, "--out %s cannot be written", path);
        err.code = DT_ERR_IO;
    }
    if (!err.code) fprintf(out, data->classes ? "sample,class,probability\n" : "sample,value\n");
    for (long at = 0, n; y && !err.code && at < dt_dataset_describe(d).n; at += n) {
        n = dt_dataset_describe(d).n - at < ROWS ? dt_dataset_describe(d).n - at : ROWS;
        if (dt_predict_source(m, &source, at, n, y, &err)) break;
        for (long i = 0; i < n; i++) {
            const float *row = y + i * n_out;
            double sum = 0;
            int best = 0;
            for (int k = 1; k < n_out; k++) best = row[k] > row[best] ? k : best;
            for (int k = 0; k < n_out; k++) sum += exp((double)row[k] - (double)row[best]);
            if (data->classes) fprintf(out, "%ld,%d,%.4f\n", at + i, best, 1 / sum);
            else fprintf(out, "%ld,%g\n", at + i, (double)row[0]);
        }
    }
    if (out && (fflush(out) || ferror(out)) && !err.code) {
        err.code = DT_ERR_IO;
        snprintf(err.text, sizeof err.text, "the answers cannot all be written");
    }
    if (err.code) fprintf(stderr, "train predict: %s\n", err.text);
    if (out && out != stdout) fclose(out);
    dt_dataset_close(d);
    dt_model_free(m);
    free(y);
    return err.code ? 1 : 0;
}

// At the end of training the chief shows where the time went and writes the net as C or ONNX, if it was asked to.
static int at_end(const dt_event *e, void *user) {
    job_data *data = (job_data *)user;
    if (e->kind != DT_EVENT_END || dt_model_report(e->model).process) return 0;
    dt_profile_show(e->model);
    if (data->export_c && !dt_export_c(e->model, data->export_c, NULL, &data->export_error)) fprintf(stderr, "exported %s\n", data->export_c);
    if (data->export_onnx && !dt_export_onnx(e->model, data->export_onnx, &data->export_error)) fprintf(stderr, "exported %s\n", data->export_onnx);
    return 0;
}

int main(int argc, char **argv) {
    static job_data data;
    dt_job job = {0};
    const char *data_name = "digits", *model_name = model_table[0].name, *columns = NULL, *out = NULL, *export_c = NULL, *export_onnx = NULL;
    const dt_flag flags[] = {
        {"data", &data_name, DATA_CHOICES},
        {"model", &model_name, MODEL_CHOICES},
        {"columns", &columns, "csv: what becomes of columns, as in \"city onehot, age standardise\""},
        {"out", &out, "with the word predict in front of all flags, and --load: the file for the answers; otherwise they are printed"},
        {"export-c", &export_c, "the trained net as one C file, for firmware"},
        {"export-onnx", &export_onnx, "the trained net as an ONNX file, for other programs"},
        DT_JOB_FLAGS(job),
        {NULL, NULL, NULL},
    };
    int own_optimizer = 0, model = 0, status, predicting = argc > 1 && strcmp(argv[1], "predict") == 0;
    dt_options o;
    dt_error err = DT_DEFAULTS;

    if (dt_job_command(&argc, &argv, &status)) return status;
    if (predicting) argv[1] = argv[0], argc--, argv++;
    // Twice: once to learn the model, and again so that flags override what the model brings along.
    defaults(&o, flags, model, 0);
    if ((status = parse(&o, argc, argv)) >= 0) return status;
    if ((model = find_model(model_name)) == MODELS) return DT_ERR_USAGE;
    for (int i = 1; i < argc; i++) own_optimizer |= strncmp(argv[i], "--optimizer", 11) == 0;
    defaults(&o, flags, model, own_optimizer);
    if ((status = parse(&o, argc, argv)) >= 0) return status;

    data.columns = columns && *columns ? columns : NULL;
    data.fitted = predicting ? o.load : NULL;
    status = data_open(&data, data_name, &err);
    if (err.code) fprintf(stderr, "train: --data %s: %s\n", data_name, err.text);
    if (!status && !fits(&data, data_name, model)) status = DT_ERR_USAGE;
    if (!status) {
        o.net = model_table[model].net;
        o.user = &data;
        memcpy(o.input, data.input, sizeof o.input);
        o.loss = data.classes ? DT_CROSS_ENTROPY : DT_MSE;
        o.train = data.train;
        o.test = data.test;
        o.on_event = at_end;
        data.export_c = export_c && *export_c ? export_c : NULL;
        data.export_onnx = export_onnx && *export_onnx ? export_onnx : NULL;
        status = predicting ? predict(&o, &data, out) : dt_job_run(&o, &job, argc, argv);
        if (data.export_error.code) status = (fprintf(stderr, "%s\n", data.export_error.text), 1);
    } else if (status != DT_ERR_USAGE) {
        status = 1;
    }
    dt_dataset_close(data.open[0]);
    dt_dataset_close(data.open[1]);
    return status;
}
