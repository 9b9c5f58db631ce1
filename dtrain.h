// dtrain.h - v0.1.0 - neural-network training in one C99 file - MIT or public domain, text at the end
//
// DO THIS   In ONE C or C++ file:               Build:
//              #define DTRAIN_IMPLEMENTATION       cc -O2 train.c -o train -lm -pthread
//              #include "dtrain.h"
//           In all other files: #include "dtrain.h" alone.
//
// CONTENTS  search for a tag to jump there
//    >>manual       how to use it, errors, threads, switches                    reading
//    >>interface    every public type and function                              reading
//    >>base         errors, memory, numbers, JSON, clock, threads, random bits  ground floor
//    >>kernels      matrix multiply, convolution, vector loops, CPU dispatch    ground floor
//    >>graph        tensors, parameters, memory plan, forward and backward      one replica
//    >>layers       one record per operation                                    one replica
//    >>losses       losses, and the metrics that are counted with them          one replica
//    >>optimizers   update rules, schedules, clipping                           one replica
//    >>data         data sets: IDX, CIFAR-10, CSV, arrays, callbacks            one replica
//    >>replicas     collectives between threads; mirrored and central           many
//    >>checkpoint   weights as .safetensors                                     the job
//    >>train        the loop, progress, flags, dt_main                          the job
//    >>licence
//
// =============================================================================================
// >>manual - how to use it
//
// QUICK START  A model is a C function from tensor to tensor. dt_main does the rest: it reads the
// command line, opens the data, trains on every core, shows progress, evaluates and saves.
//
//     #define DTRAIN_IMPLEMENTATION
//     #include "dtrain.h"
//
//     static dt_tensor *net(dt_tensor *x, void *user) {          // x: [batch, 28, 28, 1]
//         (void)user;
//         x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
//         x = dt_relu(dt_dense(dt_flatten(x), 128));
//         return dt_dense(x, 10, .name = "logits");              // [batch, 10]
//     }
//     int main(int argc, char **argv) {
//         return dt_main(argc, argv, .net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM,
//                        .train = dt_mnist("data/mnist", DT_TRAIN),
//                        .test = dt_mnist("data/mnist", DT_TEST), .batch = 128, .epochs = 5);
//     }
//
// OWN LOOP     dt_model_create, dt_step for every batch, dt_predict, dt_save, dt_model_free.
// OWN STEP     dt_forward, dt_backward, dt_reduce, dt_update are the parts of dt_step.
// COLLECTIVES  dt_comm_group gives allreduce and its relatives to anybody's threads.
// MICROCONTROLLER  set .memory and .memory_size; dt_model_bytes() tells the number; see SWITCHES.
//
// OPTIONS      Every options struct is zero by default, and zero means "the sensible choice". Where
//              zero would be a request of its own, DT_OFF says "really none".
// ERRORS       Functions that can fail take a dt_error * last (NULL is fine) and return 0 or the
//              code, or NULL or NAN. The first error stays in it. Building a graph is sticky: after
//              the first error every layer passes it on, and dt_model_create reports it. Nothing
//              here exits, aborts, prints (but dt_main and .progress) or changes the locale.
// THREADS      One caller per model and per comm; different models may run side by side. A data
//              source's read, augment and custom operations run on any replica's thread; net,
//              on_event and rate_at on the caller's.
// OWNERSHIP    Options, names and strings are copied by dt_model_create. Borrowed until the model is
//              freed: user pointers, .memory, arrays behind data sources, .class_weights.
// LAYOUT       Activations are [batch, height, width, channels]. Files hold PyTorch's layout
//              (weight [out, in] and [out, in, kh, kw]); the library permutes when it reads or writes.
// SAME ANSWER  .batch is the global batch: the mathematics do not change with the number of
//              replicas. The same seed, strategy and replicas give the same bits on one CPU class.
//
// SWITCHES     define before the implementation; functions stay and return DT_ERR_DISABLED
//    DTRAIN_STATIC      every function static: several private copies in one program
//    DTRAIN_NO_THREADS  replicas run in turn, with the same results
//    DTRAIN_NO_SOCKETS  no networking (this version has none yet)
//    DTRAIN_NO_STDIO    no files, no output, no environment
//    DTRAIN_NO_MALLOC   never malloc: models live in .memory; implies no files and no data sets
//    DTRAIN_NO_SIMD     plain C loops only
//    DTRAIN_BLAS        large matrix products by cblas_sgemm: add -lopenblas
//    DTRAIN_ISA (environment variable) avx512, avx2, sse2, neon, vector or plain: for tests
// -std=c99 hides POSIX and stops gcc from fusing multiply and add: use -std=gnu99 (or no -std), or
// -std=c99 -D_POSIX_C_SOURCE=200809L -ffp-contract=fast.
// =============================================================================================

#ifndef DTRAIN_H
#define DTRAIN_H

#include <stddef.h>
#include <stdint.h>

#define DTRAIN_VERSION_MAJOR 0
#define DTRAIN_VERSION_MINOR 1
#define DTRAIN_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

#if !defined(DTRAIN_STATIC)
#define DT_API extern
#elif defined(__GNUC__)
#define DT_API static __attribute__((unused))
#else
#define DT_API static
#endif

// =============================================================================================
// >>interface - every public type and function
// =============================================================================================

#define DT_MAX_RANK 6      // dimensions of a tensor, the batch included
#define DT_MAX_INPUTS 8    // tensors that enter one operation, and inputs and labels of one model
#define DT_MAX_NAME 64     // bytes of a layer's name, the final zero included
#define DT_MAX_CHANNELS 4  // channels that .mean and .deviation speak of

#define DT_SAME (-1)                // padding: as much as keeps height and width at stride 1
#define DT_OFF (-1)                 // "really none" where 0 stands for the default
#define DT_IGNORE_CLASS_0 (-2147483647 - 1)  // .ignore_label for class 0, since 0 means "no such label"

#ifdef __cplusplus
#define DT_DEFAULTS {}
#else
#define DT_DEFAULTS {0}
#endif

// Errors: code, name, and the remedy that is added where a message has none of its own.
#define DT_ERRORS(X)                                                        \
    X(DT_OK,           0, "no error", "")                                   \
    X(DT_ERR_ARGUMENT, 1, "bad argument", "see the function's description") \
    X(DT_ERR_SHAPE,    2, "shapes do not fit", "check the sizes named")     \
    X(DT_ERR_MEMORY,   3, "out of memory", "use a smaller batch or model")  \
    X(DT_ERR_IO,       4, "file error", "check the path and its rights")    \
    X(DT_ERR_FORMAT,   5, "malformed file", "fetch or write the file again") \
    X(DT_ERR_STATE,    6, "wrong moment", "check the order of the calls")   \
    X(DT_ERR_DISABLED, 7, "switched off", "build without the switch named") \
    X(DT_ERR_NUMERIC,  8, "not a finite number", "lower .learning_rate, or set .clip_norm") \
    X(DT_ERR_CALLBACK, 9, "callback failed", "see the callback named")      \
    X(DT_ERR_STOPPED, 10, "stopped", "")                                    \
    X(DT_ERR_USAGE,   64, "bad command line", "--help lists the flags")

enum {
#define DT__X(code, value, name, remedy) code = value,
    DT_ERRORS(DT__X)
#undef DT__X
    DT_ERR_COUNT
};

typedef struct {
    int code;        // DT_OK or DT_ERR_…
    int rank;        // the replica it happened in
    long step;       // the training step it happened in
    char text[240];  // what failed, on what, and what to do
} dt_error;

// dt_error_name - "shapes do not fit" for DT_ERR_SHAPE; "unknown error" for codes that are none.
DT_API const char *dt_error_name(int code);

// dt_version - "0.1.0" of the linked implementation (DTRAIN_VERSION_… speak of the header).
DT_API const char *dt_version(void);

// ---- types, losses, optimizers: the first of each is the default ----------------------------

typedef enum {
    DT_TYPE_DEFAULT,  // inputs: DT_FLOAT32; labels: DT_INT32 for cross-entropy, else DT_FLOAT32
    DT_FLOAT32,
    DT_INT32,         // as input: token or category numbers, for dt_embedding
    DT_UINT8,         // as input: pixels, read as value / 255
    DT_ONE_HOT        // as label: floats [n, classes] that sum to 1, one-hot or soft
} dt_type;

typedef enum {
    DT_GLOROT_UNIFORM,  // +-sqrt(6 / (fan_in + fan_out))        Glorot & Bengio 2010, eq. 16
    DT_GLOROT_NORMAL,   // deviation sqrt(2 / (fan_in + fan_out))
    DT_HE_UNIFORM,      // +-sqrt(6 / fan_in)                    He et al. 2015, eq. 10
    DT_HE_NORMAL,       // deviation sqrt(2 / fan_in)
    DT_LECUN_UNIFORM,   // +-sqrt(3 / fan_in)                    LeCun et al. 1998, eq. 16
    DT_LECUN_NORMAL,    // deviation sqrt(1 / fan_in)
    DT_UNIFORM,         // +-.init_value, 0 -> 0.05
    DT_NORMAL,          // deviation .init_value, 0 -> 0.05
    DT_ORTHOGONAL,      // orthonormal rows or columns times .init_value, 0 -> 1   Saxe et al. 2014
    DT_CONSTANT         // .init_value everywhere
} dt_initializer;

typedef enum {
    DT_NO_LOSS,               // inference, or all losses come from dt_loss in net
    DT_CROSS_ENTROPY,         // softmax cross-entropy of logits [n, …, classes]; on a dt_softmax output: of its probabilities
    DT_BINARY_CROSS_ENTROPY,  // sigmoid cross-entropy of logits, mean over the outputs; on a dt_sigmoid output: of its probabilities
    DT_MSE,                   // mean squared error over the outputs
    DT_MAE,                   // mean absolute error over the outputs
    DT_HUBER,                 // quadratic below .delta, linear above          Huber 1964
    DT_VALUE                  // the tensor itself, summed over a sample, is the loss: no label
} dt_loss_kind;

typedef enum {
    DT_MEAN,  // losses: divided by the global sum of the weights
    DT_SUM,
    DT_MAX    // collectives only
} dt_reduction;

typedef enum {
    DT_SGD,       // w -= rate * g
    DT_MOMENTUM,  // v = momentum * v + g; w -= rate * v                    (PyTorch's form)
    DT_NESTEROV,  // v = momentum * v + g; w -= rate * (g + momentum * v)
    DT_ADAM,      // Kingma & Ba 2015, Algorithm 1
    DT_ADAMW,     // Loshchilov & Hutter 2019, Algorithm 2: decoupled weight decay
    DT_RMSPROP    // s = alpha * s + (1 - alpha) g^2; w -= rate * g / (sqrt(s) + epsilon)
} dt_optimizer;

typedef enum {
    DT_CONSTANT_RATE,
    DT_STEP_DECAY,         // times .decay_factor every .decay_steps
    DT_EXPONENTIAL_DECAY,  // times .decay_factor ^ (step / .decay_steps)
    DT_COSINE_DECAY,       // half a cosine from .learning_rate to .final_rate over .total_steps
    DT_LINEAR_DECAY        // a straight line to .final_rate over .total_steps
} dt_schedule;

typedef enum {
    DT_STRATEGY_DEFAULT,  // several replicas: DT_MIRRORED, else DT_ONE
    DT_ONE,               // one replica in the caller's thread (Default, OneDevice)
    DT_MIRRORED,          // replicas as threads, each with its own copy of the variables
    DT_CENTRAL            // replicas as threads, one copy of the variables (CentralStorage)
} dt_strategy;

typedef struct dt_tensor dt_tensor;    // a node of the graph; dies with its model
typedef struct dt_model dt_model;
typedef struct dt_dataset dt_dataset;  // an opened source of samples
typedef struct dt_comm dt_comm;        // one rank's handle on a group

// ---- building a graph -----------------------------------------------------------------------
// All of these are called from net only. Shapes are given without the batch. A layer that gets a
// tensor after an error passes the error on. Names are at most 63 bytes; parameters are called
// "<layer>.weight", "<layer>.bias" and so on; NULL -> "<operation>_<number from 1>", counted in the
// order of the graph (inputs before their users, left to right), not in the order of calls.
// Common fields: .init, .init_value (see dt_initializer); .frozen = 1 keeps the layer as it is;
// .share = tensor of an earlier layer of the same kind and sizes: both use one set of variables.

typedef struct {
    dt_tensor *x;               // [n, …, in]
    int units;                  // out
    int no_bias;
    dt_initializer init;  double init_value;
    int frozen;
    dt_tensor *share;
    const char *name;
} dt_dense_options;
// dt_dense(x, units, …) - y [n, …, units] = x W + b. weight [units, in], bias [units].
DT_API dt_tensor *dt_dense_opt(dt_dense_options o);

typedef struct {
    dt_tensor *x;               // [n, h, w, c]
    int filters, kernel;        // kernel: its height, and its width too unless .kernel_w is given
    int stride;                 // 0 -> 1
    int padding;                // zeros on every side; 0 -> none; DT_SAME: out = ceil(in / stride)
    int dilation;               // 0 -> 1
    int groups;                 // 0 -> 1; groups = c is a depthwise convolution
    int kernel_w;               // 0 -> kernel
    int no_bias;
    dt_initializer init;  double init_value;
    int frozen;
    dt_tensor *share;
    const char *name;
} dt_conv2d_options;
// dt_conv2d(x, filters, kernel, …) - y [n, h', w', filters], h' = (h + 2 padding - dilation (kernel - 1) - 1) / stride + 1.
// weight [filters, c / groups, kernel, kernel_w], bias [filters]. DT_SAME pads as TensorFlow does
// (an odd zero goes below and to the right).
DT_API dt_tensor *dt_conv2d_opt(dt_conv2d_options o);

typedef struct {
    dt_tensor *x;               // [n, h, w, c]
    int size;                   // window
    int stride;                 // 0 -> size
    int padding;                // 0 -> none; at most size / 2. Padding never wins a maximum and never counts in an average
    const char *name;
} dt_pool2d_options;
// dt_maxpool2d(x, size, …), dt_avgpool2d(x, size, …) - y [n, h', w', c], h' = (h + 2 padding - size) / stride + 1.
DT_API dt_tensor *dt_maxpool2d_opt(dt_pool2d_options o);
DT_API dt_tensor *dt_avgpool2d_opt(dt_pool2d_options o);

// dt_global_avgpool - [n, h, w, c] -> [n, c], the mean over height and width.
DT_API dt_tensor *dt_global_avgpool(dt_tensor *x);

// dt_flatten - [n, …] -> [n, product]. A dense layer or norm behind the flatten of an image keeps
// PyTorch's channels-first order in files.
DT_API dt_tensor *dt_flatten(dt_tensor *x);

typedef struct { dt_tensor *x; int shape[DT_MAX_RANK - 1]; const char *name; } dt_reshape_options;
// dt_reshape(x, {7, 7, 64}) - the same values in another shape; one size may be -1: whatever is left.
DT_API dt_tensor *dt_reshape_opt(dt_reshape_options o);

typedef struct {
    dt_tensor *x;               // [n, …, c]
    double momentum;            // share of the new batch in the running statistics, 0 -> 0.1
    double epsilon;             // 0 -> 1e-5
    int sync;                   // 1: normalise over the global batch, not over the replica's part
    int frozen;
    dt_tensor *share;
    const char *name;
} dt_batchnorm_options;
// dt_batchnorm(x, …) - per channel over batch and positions: (x - mean) / sqrt(var + epsilon) * weight + bias.
// In inference the running statistics stand in; they follow the global batch (unbiased variance) on
// every replica alike. weight, bias, running_mean, running_var [c].   Ioffe & Szegedy 2015, Algorithm 1
DT_API dt_tensor *dt_batchnorm_opt(dt_batchnorm_options o);

typedef struct {
    dt_tensor *x;               // [n, …, c]
    double epsilon;             // 0 -> 1e-5
    int no_bias;
    int frozen;
    dt_tensor *share;
    const char *name;
} dt_layernorm_options;
// dt_layernorm(x, …) - each row of c values to mean 0 and variance 1, times weight plus bias [c].   Ba et al. 2016
DT_API dt_tensor *dt_layernorm_opt(dt_layernorm_options o);

// dt_dropout - in training each value is zero with probability rate (0 <= rate < 1) and divided by
// 1 - rate otherwise; in inference nothing. The mask depends on seed, step and sample only.
DT_API dt_tensor *dt_dropout(dt_tensor *x, double rate);

// Activations, value by value.
DT_API dt_tensor *dt_relu(dt_tensor *x);
DT_API dt_tensor *dt_leaky_relu(dt_tensor *x, double slope);  // x < 0: slope * x
DT_API dt_tensor *dt_gelu(dt_tensor *x);                      // x * Phi(x), with erf   Hendrycks & Gimpel 2016
DT_API dt_tensor *dt_gelu_tanh(dt_tensor *x);                 // its approximation with tanh
DT_API dt_tensor *dt_silu(dt_tensor *x);                      // x * sigmoid(x)
DT_API dt_tensor *dt_tanh(dt_tensor *x);
DT_API dt_tensor *dt_sigmoid(dt_tensor *x);
DT_API dt_tensor *dt_softmax(dt_tensor *x);                   // over the last axis

// Arithmetic on tensors of one shape, and x * factor + offset.
DT_API dt_tensor *dt_add(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_sub(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_mul(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_scale(dt_tensor *x, double factor, double offset);

// dt_concat - a and b behind each other along an axis (1 is the first behind the batch; -1 the last).
DT_API dt_tensor *dt_concat(dt_tensor *a, dt_tensor *b, int axis);

typedef struct { dt_tensor *x; int axis, begin, end; int step; const char *name; } dt_slice_options;
// dt_slice(x, axis, begin, end, …) - indexes begin, begin + step, … below end along an axis (not the batch);
// end 0 or less counts from the axis' end; .step 0 -> 1.
DT_API dt_tensor *dt_slice_opt(dt_slice_options o);

// dt_pad - zeros before and after along an axis (not the batch).
DT_API dt_tensor *dt_pad(dt_tensor *x, int axis, int before, int after);

typedef struct {
    dt_tensor *x;               // [n, …] of DT_INT32, values 0 .. tokens - 1
    int tokens, features;
    dt_initializer init;  double init_value;   // 0 -> DT_NORMAL with deviation 1, as PyTorch
    int frozen;
    dt_tensor *share;
    const char *name;
} dt_embedding_options;
// dt_embedding(x, tokens, features, …) - y [n, …, features]: row x of weight [tokens, features].
DT_API dt_tensor *dt_embedding_opt(dt_embedding_options o);

// What a custom operation's callbacks see. Arrays are [n, …] floats of the replica's part.
typedef struct {
    int n;                             // samples; may be 0
    int n_inputs;
    const float *x[DT_MAX_INPUTS];     // inputs
    float *y;                          // output: forward writes it, backward may read it
    const float *dy;                   // backward: gradient of the output
    float *dx[DT_MAX_INPUTS];          // backward ADDS to these; NULL where nobody asks
    const float *weight;               // the operation's own parameter, or NULL
    float *dweight;                    // backward ADDS to it; NULL if there is none or it is frozen
    int training;
    long step;
    void *user;
} dt_custom_call;

typedef struct {
    dt_tensor *x;
    int shape[DT_MAX_RANK - 1];        // of the output; all 0 -> that of x
    int (*forward)(const dt_custom_call *);   // both return 0, or anything else for failure;
    int (*backward)(const dt_custom_call *);  // both run on any replica's thread. NULL: no gradient
    void *user;
    dt_tensor *more[DT_MAX_INPUTS - 1];       // further inputs
    int weight[DT_MAX_RANK - 1];       // shape of the operation's own parameter; all 0 -> none
    dt_initializer init;  double init_value;
    int frozen;
    const char *name;
} dt_custom_options;
// dt_custom(x, {shape}, forward, backward, user, …) - the user's own operation.
DT_API dt_tensor *dt_custom_opt(dt_custom_options o);

typedef struct { dt_tensor *x; const char *name; int shape[DT_MAX_RANK - 1]; dt_type type; } dt_input_options;
// dt_input(x, "meta", {5}, .type = DT_INT32) - a further input of the model that x belongs to. Inputs are
// fed as dt_batch.x[1], x[2], … in the order of their names.
DT_API dt_tensor *dt_input_opt(dt_input_options o);

// dt_output - give t a name under which dt_output_read finds it. Returns t.
DT_API dt_tensor *dt_output(dt_tensor *t, const char *name);

typedef struct {
    dt_tensor *t;                      // prediction
    dt_loss_kind kind;
    dt_tensor *target;                 // NULL: labels, fed as dt_batch.y[…]; no gradient flows into a target
    double weight;                     // 0 -> 1
    dt_reduction reduction;            // DT_MEAN or DT_SUM
    double label_smoothing;            // cross-entropy: 0 .. 1
    int ignore_label;                  // cross-entropy: this label counts nothing; 0 -> none; see DT_IGNORE_CLASS_0
    const float *class_weights;        // cross-entropy: [classes], borrowed; NULL -> all 1
    double delta;                      // Huber: 0 -> 1
    dt_type label_type;
    const char *name;                  // NULL -> "loss"; several losses need names
} dt_loss_options;
// dt_loss(t, DT_MSE, .target = x, .weight = 0.3, .name = "age") - a further loss. Returns t. Labels: the
// loss of the options reads dt_batch.y[0], these the next ones, in the order of their names.
// The loss of a step is the weighted sum of its losses, each sum over samples divided by its global
// sum of weights (samples; cross-entropy: labels not ignored, times their class weights).
DT_API dt_tensor *dt_loss_opt(dt_loss_options o);

// The shape of a tensor: dt_rank counts the batch; dt_dim(t, 0) is 0, for the batch has no fixed size.
DT_API int dt_rank(const dt_tensor *t);
DT_API int dt_dim(const dt_tensor *t, int axis);

#ifndef __cplusplus  // the first argument is the tensor, the next are the required ones, the rest goes by name
#define dt_dense(...)      dt_dense_opt((dt_dense_options){.x = __VA_ARGS__})
#define dt_conv2d(...)     dt_conv2d_opt((dt_conv2d_options){.x = __VA_ARGS__})
#define dt_maxpool2d(...)  dt_maxpool2d_opt((dt_pool2d_options){.x = __VA_ARGS__})
#define dt_avgpool2d(...)  dt_avgpool2d_opt((dt_pool2d_options){.x = __VA_ARGS__})
#define dt_reshape(...)    dt_reshape_opt((dt_reshape_options){.x = __VA_ARGS__})
#define dt_batchnorm(...)  dt_batchnorm_opt((dt_batchnorm_options){.x = __VA_ARGS__})
#define dt_layernorm(...)  dt_layernorm_opt((dt_layernorm_options){.x = __VA_ARGS__})
#define dt_slice(...)      dt_slice_opt((dt_slice_options){.x = __VA_ARGS__})
#define dt_embedding(...)  dt_embedding_opt((dt_embedding_options){.x = __VA_ARGS__})
#define dt_custom(...)     dt_custom_opt((dt_custom_options){.x = __VA_ARGS__})
#define dt_input(...)      dt_input_opt((dt_input_options){.x = __VA_ARGS__})
#define dt_loss(...)       dt_loss_opt((dt_loss_options){.t = __VA_ARGS__})
#define dt_csv(...)        dt_csv_opt((dt_csv_options){.path = __VA_ARGS__})
#define dt_main(argc, argv, ...) dt_main_opt(argc, argv, &(dt_options){__VA_ARGS__})
#endif

// ---- data -----------------------------------------------------------------------------------

typedef enum { DT_TRAIN, DT_TEST } dt_split;

typedef enum {
    DT_MISSING_ERROR,  // an empty field, ?, NA or NaN is refused, with its line and column
    DT_MISSING_MEAN,   // … is replaced by the mean of its column
    DT_MISSING_ZERO,   // … by 0
    DT_MISSING_SKIP    // … drops the whole row
} dt_missing;

typedef struct {
    const char *path;
    int label;           // column of the label, from 1; 0 -> the last; DT_OFF: there is none
    int header;          // 0 -> the first line is one if it holds a word; 1: it is; DT_OFF: it is not
    int skip;            // lines to leave out at the start
    int separator;       // 0 -> whichever of , ; tab the first line holds most of
    dt_missing missing;
    dt_type label_type;  // 0: DT_INT32 if all labels are whole numbers or words, else DT_FLOAT32
} dt_csv_options;

// A source is a plain value; the trainer opens it and reports its errors. Fields are for the functions below.
typedef struct {
    int kind;
    const char *path, *labels;
    const void *x, *y;
    dt_type x_type, y_type;
    long n;
    int (*read)(void *user, long index, void *x, void *y);
    void *user;
    dt_csv_options csv;
    dt_dataset *dataset;
    int split, folds, fold;
} dt_source;

// dt_mnist - the four IDX files of MNIST or Fashion-MNIST in a folder, under their usual names, plain or .gz
// (unpacked by the system's gzip). Images [28, 28, 1] of bytes, labels 0..9.
DT_API dt_source dt_mnist(const char *folder, dt_split split);

// dt_idx - any pair of IDX files of bytes: images [n, …] and labels [n]; labels may be NULL.
DT_API dt_source dt_idx(const char *images, const char *labels);

// dt_cifar10 - CIFAR-10's binary version: all data_batch_*.bin (DT_TRAIN) or test_batch*.bin (DT_TEST) of
// a folder, plain or .gz; or, if path names a file, that file; several files are separated by commas.
DT_API dt_source dt_cifar10(const char *path, dt_split split);

// dt_csv(path, …) - numbers in columns; the label may be a word (numbered in the order of appearance).
DT_API dt_source dt_csv_opt(dt_csv_options o);

// dt_arrays - n samples in memory: x [n, …] in the shape of the model's input, y [n, …] or NULL. Borrowed.
// Bytes in x are read as value / 255.
DT_API dt_source dt_arrays(const void *x, dt_type x_type, const void *y, dt_type y_type, long n);

// dt_from - read writes sample index (0 <= index < n) to x and y in the model's .input_type and .label_type, and
// returns 0, or anything else for failure. It is called from any thread, in any order.
DT_API dt_source dt_from(int (*read)(void *user, long index, void *x, void *y), void *user, long n);

// dt_opened - the samples of an open data set, which must outlive the model.
DT_API dt_source dt_opened(dt_dataset *d);

// dt_fold - a part of s: DT_TEST is every sample with index % folds == fold, DT_TRAIN all others.
DT_API dt_source dt_fold(dt_source s, int folds, int fold, dt_split split);

// dt_dataset_open - read (or map) a source. NULL on failure. Close with dt_dataset_close (NULL is fine).
DT_API dt_dataset *dt_dataset_open(const dt_source *s, dt_error *err);
DT_API void dt_dataset_close(dt_dataset *d);

typedef struct {
    long n;                        // samples
    int input[DT_MAX_RANK - 1];    // shape of one; all 0: unknown, as the model has it
    int classes;                   // of whole-number labels: the largest + 1; 0: unknown
    dt_type x_type, y_type;        // as stored
} dt_dataset_info;
DT_API dt_dataset_info dt_dataset_describe(const dt_dataset *d);

// dt_shuffle - position -> sample index in the order of an epoch: a keyed permutation of 0..n-1, so
// that every index comes once. The trainer uses it with its .seed.
DT_API long dt_shuffle(long position, long n, uint64_t seed, long epoch);

// ---- models ---------------------------------------------------------------------------------

typedef enum { DT_EVENT_STEP, DT_EVENT_EPOCH, DT_EVENT_END } dt_event_kind;

typedef struct {
    dt_event_kind kind;
    dt_model *model;
    long step, steps;           // done so far, and in all
    int epoch, epochs;          // the running one from 1, and in all
    double loss, accuracy;      // of the step, or of the epoch; accuracy is NAN where there is none
    double eval_loss, eval_accuracy;  // NAN where nothing was evaluated
    double learning_rate, gradient_norm;  // the norm is NAN unless it was needed
    double samples_per_s, seconds;
} dt_event;

// A program's own flag for dt_parse and dt_main: --name VALUE stores VALUE, and --help shows it.
typedef struct {
    const char *name;           // without the dashes; NULL ends the list
    const char **value;         // holds the default, and receives the value (a pointer into argv)
    const char *help;
} dt_flag;

typedef struct {
    // model
    dt_tensor *(*net)(dt_tensor *x, void *user);
    void *user;                      // for net, rate_at, on_event and augment
    int input[DT_MAX_RANK - 1];      // shape of one sample; all 0 -> that of .train or .test
    dt_type input_type;
    dt_loss_kind loss;               // applies to what net returns
    dt_type label_type;
    dt_reduction reduction;
    double label_smoothing;
    int ignore_label;
    const float *class_weights;
    double delta;
    int inference;                   // 1: plan without gradients; steps are refused
    int input_gradient;              // 1: backward also computes the gradient of input 0
    // optimizer
    dt_optimizer optimizer;
    double learning_rate;            // 0 -> 0.01 (SGD, momentum, Nesterov, RMSprop), 0.001 (Adam, AdamW)
    double momentum;                 // 0 -> 0.9 for DT_MOMENTUM and DT_NESTEROV, else none; DT_OFF: none
    double beta1, beta2;             // Adam: 0 -> 0.9, 0.999
    double alpha;                    // RMSprop: 0 -> 0.99
    double epsilon;                  // 0 -> 1e-8
    double weight_decay;             // added to the gradient; DT_ADAMW: decoupled, 0 -> 0.01, DT_OFF: none
    double clip_norm;                // 0 -> off; largest global norm of the gradient
    const char *freeze;              // parameters whose names match this glob (* and ?) keep their values;
    const char *no_decay;            // … get no weight decay; several globs are separated by commas
    int accumulate;                  // parts that a batch is run in, one after another; 0 -> 1
    dt_schedule schedule;
    long warmup_steps;               // the rate rises linearly over these, then the schedule begins
    long total_steps;                // for cosine and linear; 0 -> the steps of the run
    double final_rate;
    long decay_steps;                // 0 -> one epoch (1000 steps in an own loop)
    double decay_factor;             // 0 -> 0.1 for DT_STEP_DECAY, 0.96 for DT_EXPONENTIAL_DECAY
    double (*rate_at)(long step, void *user);  // replaces schedule and learning_rate; step from 0
    // distribution
    dt_strategy strategy;
    int replicas;                    // 0 -> one per core that this process may use
    int batch;                       // global batch; 0 -> 32
    int replica_batch;               // instead: global batch = this x replicas
    // data and run
    dt_source train, test;
    int epochs;                      // 0 -> 1, or as many as .steps need
    long steps;                      // 0 -> as many as .epochs need
    uint64_t seed;
    int no_shuffle;
    int crop;                        // training images: zeros on every side, then a random cut of the old size
    int flip;                        // training images: every second one, by chance, mirrored left to right
    double mean[DT_MAX_CHANNELS], deviation[DT_MAX_CHANNELS];  // per channel: (x - mean) / deviation; 0 deviation -> off
    int (*augment)(void *user, float *x, long index, uint64_t random);  // training samples, in place; 0 or failure
    int patience;                    // stop after this many epochs without a better evaluation loss; 0 -> off
    int no_nan_guard;                // 1: train on with values that are not finite
    int (*on_event)(const dt_event *e, void *user);  // anything but 0 stops the run, which is no error
    int progress;                    // 0 -> dt_main prints, dt_train is silent; 1: print; DT_OFF: silent
    int json;                        // dt_main: the last line of standard output is one JSON object
    int profile;                     // dt_main: time per layer at the end
    int print_options;               // dt_main: show the options and stop
    const char *save, *load;         // dt_main: weights after the run, and before it
    const dt_flag *flags;            // dt_main: the program's own flags
    // memory
    void *memory;  size_t memory_size;    // the model lives here and malloc is not called for it
    void *(*alloc)(size_t bytes, void *user);  // instead of malloc and free: both or none
    void (*release)(void *p, void *user);
    void *alloc_user;
} dt_options;

// dt_model_create - build the graph, plan its memory, initialise the variables, start the replicas.
// NULL on failure. If .input is not given, .train or .test is opened for its shape.
DT_API dt_model *dt_model_create(const dt_options *o, dt_error *err);

// dt_model_free - end the replicas and free everything. NULL is fine.
DT_API void dt_model_free(dt_model *m);

// dt_model_bytes - the memory that dt_model_create takes with these options, exactly; 0 on failure.
// .memory_size must be at least this; the alignment of .memory does not matter. Threads' stacks and
// data sets are not counted. With DTRAIN_NO_MALLOC it builds the graph in .memory, as work space.
DT_API size_t dt_model_bytes(const dt_options *o, dt_error *err);

// dt_model_plan_bytes - what the planner placed for one replica: the block it laid out (activations, their
// gradients, scratch), and the largest sum of buffers alive at once, below which no layout can go.
DT_API void dt_model_plan_bytes(const dt_model *m, size_t *block, size_t *lower_bound);

typedef struct {
    const void *x[DT_MAX_INPUTS];  // [n, …] in the type of each input
    const void *y[DT_MAX_INPUTS];  // [n, …] in the type of each label
    const float *weight;           // [n] per sample, or NULL for all 1
    int n;                         // samples, at most the model's batch
} dt_batch;

// dt_step - forward, backward, reduce over the replicas, update. x [n, …], y [n, …] or NULL; 0 < n <= batch.
// Returns the mean loss before the update; NAN on failure, and then nothing has been updated.
DT_API float dt_step(dt_model *m, const void *x, const void *y, int n, dt_error *err);
DT_API float dt_step_batch(dt_model *m, const dt_batch *b, dt_error *err);  // several inputs, labels, weights

// The parts of dt_step. Backward adds to the gradients; update divides them by the weights seen since the
// last clear, reduces if nobody has, applies the optimizer and clears. n is at most batch / accumulate.
// With DTRAIN_… switches or several replicas nothing changes here: rows are split as in dt_step.
DT_API float dt_forward(dt_model *m, const dt_batch *b, dt_error *err);   // training mode; returns the mean loss, 0 without labels
DT_API int dt_backward(dt_model *m, dt_error *err);                       // of the losses of the last dt_forward
DT_API int dt_backward_from(dt_model *m, const float *gradient, dt_error *err);  // of net's output instead: [n, …], a sum's gradient
DT_API int dt_reduce(dt_model *m, dt_error *err);                         // sum over the replicas
DT_API int dt_update(dt_model *m, dt_error *err);
DT_API int dt_clear(dt_model *m, dt_error *err);                          // forget the gradients

// dt_output_read - the rows of the last forward: name of dt_output, or NULL for what net returned. out [n, …].
DT_API int dt_output_read(dt_model *m, const char *name, float *out, dt_error *err);

// dt_input_gradient_read - d loss sum / d input 0 of the last backward, [n, …]. Needs .input_gradient.
DT_API int dt_input_gradient_read(dt_model *m, float *out, dt_error *err);

// dt_gradients - the flat array of all parameters' gradients after dt_reduce (sums, not yet divided), in
// the memory's layout; *n receives its length. May be changed before dt_update. NULL if not reduced.
DT_API float *dt_gradients(dt_model *m, size_t *n);

// dt_predict - what net returns for n samples (any n) in inference mode, rows split over the replicas.
// out [n, …]. A net that ends in logits gives logits; let it end in dt_softmax for probabilities.
DT_API int dt_predict(dt_model *m, const void *x, long n, float *out, dt_error *err);

typedef struct {
    int top_k;             // in: count a sample as right in top_k_accuracy if its label is among so many; 0 -> 5
    long *confusion;       // in: [classes * classes] or NULL; out: [label][prediction] counts are added
    long n;                // out: labels counted
    double loss;           // out: all losses together
    double accuracy;       // out: NAN without a cross-entropy or binary cross-entropy on net's output
    double top_k_accuracy; // out: cross-entropy only, else NAN
    int classes;           // out
} dt_metrics;

// dt_evaluate - loss and metrics over a whole source in inference mode. metrics->confusion needs integer labels.
DT_API int dt_evaluate(dt_model *m, const dt_source *s, dt_metrics *metrics, dt_error *err);

// dt_precision, dt_recall - of one class from a confusion matrix; NAN where nothing was predicted or present.
DT_API double dt_precision(const dt_metrics *metrics, int label);
DT_API double dt_recall(const dt_metrics *metrics, int label);

// dt_train - the loop over epochs, steps, evaluations and events. run: options of the groups "optimizer's
// rate" and "data and run"; NULL: those that the model was created with. 0 also when an event, or patience, ended it.
DT_API int dt_train(dt_model *m, const dt_options *run, dt_error *err);

typedef struct {
    long steps, samples;
    int epochs, replicas;
    dt_strategy strategy;
    double train_loss, train_accuracy;  // of the last epoch
    double eval_loss, eval_accuracy;    // of the last evaluation
    double seconds, samples_per_s;      // of the training steps, without evaluation
    double data_s;                      // of these, gathering and converting (the slowest replica's)
    size_t parameters, arena_bytes;
} dt_report;
DT_API dt_report dt_model_report(const dt_model *m);

DT_API int dt_local_batch(const dt_model *m);                 // samples that this process feeds per step
DT_API long dt_model_step(const dt_model *m);                 // updates done
DT_API void dt_set_learning_rate(dt_model *m, double rate);   // from the next update on, before any schedule
DT_API double dt_learning_rate(const dt_model *m);            // of the next update

// ---- parameters and files -------------------------------------------------------------------

typedef struct {
    const char *name;             // lives as long as the model
    int rank, dim[DT_MAX_RANK];   // as in files: [out, in], [out, in, kh, kw]
    size_t size;
    int trainable;                // 0: frozen, or a running statistic
} dt_parameter;

// dt_parameter_at - parameter i in the order of the graph, and 0; an error beyond the last one.
DT_API int dt_parameter_at(const dt_model *m, int i, dt_parameter *out, dt_error *err);

// dt_parameter_read, _write - by name, n floats in file layout; write reaches every replica.
DT_API int dt_parameter_read(dt_model *m, const char *name, float *out, size_t n, dt_error *err);
DT_API int dt_parameter_write(dt_model *m, const char *name, const float *in, size_t n, dt_error *err);

// dt_parameters_crc32c - over all parameters in file order, little-endian: equal bits, equal numbers.
DT_API uint32_t dt_parameters_crc32c(dt_model *m);

// dt_save - the parameters as .safetensors, which PyTorch, NumPy and Hugging Face open. Written beside
// path and renamed over it, so that path is never half a file.
DT_API int dt_save(dt_model *m, const char *path, dt_error *err);

// dt_load - the parameters that match glob (NULL: all, and then the file must hold nothing else) from a
// .safetensors file in PyTorch's layout. F32, F16 and BF16. On failure the model is unchanged.
DT_API int dt_load(dt_model *m, const char *path, const char *glob, dt_error *err);

// ---- collectives between threads ------------------------------------------------------------
// Every rank of a group makes the same calls in the same order; a call that differs from its peers' in
// kind, n or root is DT_ERR_STATE on all of them, naming both. When a rank closes its handle, calls
// that wait for it end with DT_ERR_STATE. Sums have a fixed order, a binary tree over the ranks.

// dt_comm_group - n handles for n threads of this process (1 <= n <= 1024). Close every one of them.
DT_API int dt_comm_group(int n, dt_comm **out, dt_error *err);
DT_API void dt_comm_close(dt_comm *c);  // NULL is fine
DT_API int dt_comm_rank(const dt_comm *c);
DT_API int dt_comm_size(const dt_comm *c);

// dt_allreduce - combine buf [n] over all ranks, in place; every rank gets the same bits.
DT_API int dt_allreduce(dt_comm *c, float *buf, size_t n, dt_reduction how, dt_error *err);
// dt_reduce_scatter - the same, but only the rank's own slice of buf is valid afterwards.
DT_API int dt_reduce_scatter(dt_comm *c, float *buf, size_t n, dt_reduction how, dt_error *err);
// dt_allgather - every rank's own slice of buf [n] to all ranks.
DT_API int dt_allgather(dt_comm *c, float *buf, size_t n, dt_error *err);
// dt_comm_slice - the own slice of n values: begin <= index < end.
DT_API void dt_comm_slice(const dt_comm *c, size_t n, size_t *begin, size_t *end);
// dt_broadcast - buf [n] of rank root to all.
DT_API int dt_broadcast(dt_comm *c, float *buf, size_t n, int root, dt_error *err);
// dt_barrier - wait until every rank is here.
DT_API int dt_barrier(dt_comm *c, dt_error *err);

// ---- the job --------------------------------------------------------------------------------

// dt_option_set - one option by its flag's name: dt_option_set(&o, "learning-rate", "0.01", &err). Numbers
// use a decimal point in every locale. A string value is borrowed.
DT_API int dt_option_set(dt_options *o, const char *name, const char *value, dt_error *err);

// dt_parse - all flags of a command line. DT_OK; DT_ERR_USAGE; or DT_ERR_STOPPED after --help was answered.
DT_API int dt_parse(dt_options *o, int argc, char **argv, dt_error *err);

// dt_run - create, load, train, evaluate, report, save, free. Returns the exit status: 0, 1 training
// error, 64 usage, 130 after Ctrl-C, 143 after SIGTERM.
DT_API int dt_run(const dt_options *o);

// dt_main(argc, argv, .net = net, …) - dt_parse and dt_run: the flags override the options.
DT_API int dt_main_opt(int argc, char **argv, const dt_options *o);

#ifdef __cplusplus
}  // extern "C"

static inline dt_tensor *dt_dense(dt_tensor *x, int units, dt_dense_options o = dt_dense_options()) { o.x = x; o.units = units; return dt_dense_opt(o); }
static inline dt_tensor *dt_conv2d(dt_tensor *x, int filters, int kernel, dt_conv2d_options o = dt_conv2d_options()) { o.x = x; o.filters = filters; o.kernel = kernel; return dt_conv2d_opt(o); }
static inline dt_tensor *dt_maxpool2d(dt_tensor *x, int size, dt_pool2d_options o = dt_pool2d_options()) { o.x = x; o.size = size; return dt_maxpool2d_opt(o); }
static inline dt_tensor *dt_avgpool2d(dt_tensor *x, int size, dt_pool2d_options o = dt_pool2d_options()) { o.x = x; o.size = size; return dt_avgpool2d_opt(o); }
static inline dt_tensor *dt_batchnorm(dt_tensor *x, dt_batchnorm_options o = dt_batchnorm_options()) { o.x = x; return dt_batchnorm_opt(o); }
static inline dt_tensor *dt_layernorm(dt_tensor *x, dt_layernorm_options o = dt_layernorm_options()) { o.x = x; return dt_layernorm_opt(o); }
static inline dt_tensor *dt_slice(dt_tensor *x, int axis, int begin, int end, dt_slice_options o = dt_slice_options()) { o.x = x; o.axis = axis; o.begin = begin; o.end = end; return dt_slice_opt(o); }
static inline dt_tensor *dt_embedding(dt_tensor *x, int tokens, int features, dt_embedding_options o = dt_embedding_options()) { o.x = x; o.tokens = tokens; o.features = features; return dt_embedding_opt(o); }
static inline dt_tensor *dt_loss(dt_tensor *t, dt_loss_kind kind, dt_loss_options o = dt_loss_options()) { o.t = t; o.kind = kind; return dt_loss_opt(o); }
static inline dt_source dt_csv(const char *path, dt_csv_options o = dt_csv_options()) { o.path = path; return dt_csv_opt(o); }
static inline int dt_main(int argc, char **argv, const dt_options &o) { return dt_main_opt(argc, argv, &o); }
#endif

#endif  // DTRAIN_H
