// dtrain.h - v0.1.0 - neural-network training in one C99 file - MIT or public domain, text at the end
//
// DO THIS   In ONE C or C++ file:               Build:
//              #define DTRAIN_IMPLEMENTATION       cc -O2 train.c -o train -lm -pthread
//              #include "dtrain.h"
//           In all other files: #include "dtrain.h" alone.
//
// CONTENTS  search for a tag to jump there
//    >>manual      >>interface                                     reading
//    >>base        >>kernels                                       ground floor
//    >>graph       >>layers     >>losses    >>optimizers  >>data   one replica
//    >>replicas    >>wire       >>server    >>cluster              many
//    >>checkpoint  >>train      >>licence                          the job
//
// ========
// >>manual - how to use it
//
// QUICK START  A model is a C function from tensor to tensor. dt_main does the rest: it reads the command line, opens
// the data, trains on every core, shows progress, evaluates and saves.
//
//     #define DTRAIN_IMPLEMENTATION
//     #include "dtrain.h"
//
//     static dt_tensor *net(dt_tensor *x, void *user) {  // x: [batch, 28, 28, 1]
//         (void)user;
//         x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
//         x = dt_relu(dt_dense(dt_flatten(x), 128));
//         return dt_dense(x, 10, .name = "logits");  // [batch, 10]
//     }
//     int main(int argc, char **argv) {
//         return dt_main(argc, argv, .net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM,
//                        .train = dt_mnist("data/mnist", DT_TRAIN),
//                        .test = dt_mnist("data/mnist", DT_TEST), .batch = 128, .epochs = 5);
//     }
//
// OWN LOOP  dt_model_create, dt_step for every batch, dt_predict, dt_save, dt_model_free.
// OWN STEP  dt_forward, dt_backward, dt_reduce, dt_update are the parts of dt_step.
// PROCESSES  dt_main asks the environment who it is (a launcher's variables, or --workers N) and joins the others; rank 0,
//    the chief, shows and saves for all. Own loops set .comm = dt_comm_open(NULL, &err). With parameter servers (--ps 2)
//    workers train at their own pace; or together, with .sync.
// COLLECTIVES  dt_comm_open, dt_comm_group, dt_comm_from: allreduce and its relatives for processes, threads, MPI.
// MORE DATA  in examples: csv.h reads tables, images.h folders of PGM, PPM and BMP files, cifar10.h CIFAR-10, npy.h NumPy's.
// JOBS  examples/job.h: checkpoints from which training goes on where it was, bit for bit, and a directory of them.
// MICROCONTROLLER  set .memory and .memory_size (dt_model_bytes() tells it); see SWITCHES. examples/export_c.h writes a
//    trained net as C of its own, without the library.
//
// OPTIONS  Every options struct is zero by default, which means "the sensible choice". Where zero would be a request of its
//    own, DT_OFF says "really none".
// ERRORS  Functions that can fail take a dt_error * last (NULL is fine) and return 0 or the code, or NULL or NAN. The first
//    error stays in it. Layers pass an error on until dt_model_create reports it. Nothing here exits, aborts, prints (but
//    dt_main and .progress) or changes the locale.
// THREADS  One caller per model and per comm; models may run side by side. A source's read, augment and custom operations run
//    on any replica's thread; net, on_event and rate_at on the caller's.
// OWNERSHIP  dt_model_create copies options, names and strings. Borrowed until the model is freed: user pointers, .memory,
//    .class_weights, arrays and strings of data sources.
// LAYOUT  Activations are [batch, height, width, channels], files hold PyTorch's layout (weight [out, in] and [out, in, kh,
//    kw]): reading and writing permute.
// SAME ANSWER  .batch is the global batch: the mathematics do not change with the number of replicas. The same seed and
//    replicas give the same bits on one CPU class, also over up to 8 processes that have a power of two each.
//
// SWITCHES     define before the implementation; functions stay and return DT_ERR_DISABLED
//    DTRAIN_STATIC      all functions static: several private copies in one program
//    DTRAIN_NO_THREADS  replicas run in turn, with the same results
//    DTRAIN_NO_SOCKETS  no networking
//    DTRAIN_NO_STDIO    no files, no output, no environment
//    DTRAIN_NO_MALLOC   never malloc: models live in .memory; no files, no data sets
//    DTRAIN_NO_SIMD     plain C loops only
//    DTRAIN_BLAS        large matrix products by cblas_sgemm: add -lopenblas
//    DTRAIN_ISA (environment variable) avx512, avx2, sse2, neon, vector or plain: for tests
// -std=c99 hides POSIX and stops gcc from fusing multiply and add: use -std=gnu99 (or no -std), or add
// -D_POSIX_C_SOURCE=200809L -ffp-contract=fast.
// ========

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

// ========
// >>interface - every public type and function

#define DT_MAX_RANK 6 // of a tensor, the batch included
#define DT_MAX_INPUTS 8 // of one operation; inputs and labels of one model
#define DT_MAX_NAME 64 // bytes of a layer's name, its zero included
#define DT_MAX_CHANNELS 4 // of .mean and .deviation

#define DT_SAME (-1) // padding that keeps height and width at stride 1
#define DT_OFF (-1) // "really none" where 0 is the default
#define DT_IGNORE_CLASS_0 (-2147483647 - 1) // .ignore_label for class 0, since 0 means none

#ifdef __cplusplus
#define DT_DEFAULTS {}
#else
#define DT_DEFAULTS {0}
#endif

#define DT_ERRORS(X) \
	X(DT_OK, 0, "no error") \
	X(DT_ERR_ARGUMENT, 1, "bad argument") \
	X(DT_ERR_SHAPE, 2, "shapes do not fit") \
	X(DT_ERR_MEMORY, 3, "out of memory") \
	X(DT_ERR_IO, 4, "file error") \
	X(DT_ERR_FORMAT, 5, "malformed file") \
	X(DT_ERR_STATE, 6, "wrong moment") \
	X(DT_ERR_DISABLED, 7, "switched off") \
	X(DT_ERR_NUMERIC, 8, "not a finite number") \
	X(DT_ERR_CALLBACK, 9, "callback failed") \
	X(DT_ERR_STOPPED, 10, "stopped") \
	X(DT_ERR_PEER, 11, "another process is lost") \
	X(DT_ERR_USAGE, 64, "bad command line") \
	X(DT_ERR_CONFIG, 78, "bad cluster")

enum {
#define DT__X(code, value, name) code = value,
	DT_ERRORS(DT__X)
#undef DT__X
	DT_ERR_COUNT
};

typedef struct {
	int code; // DT_OK or DT_ERR_…
	int rank; // the replica it happened in
	long step; // … and the training step
	char text[240]; // what failed, on what, what to do
} dt_error;

// dt_error_name - "shapes do not fit" for DT_ERR_SHAPE; "unknown error" for what is no code.
DT_API const char *dt_error_name(int code);

// dt_version - "0.1.0" of the linked implementation (DTRAIN_VERSION_… speak of the header).
DT_API const char *dt_version(void);

// ---- types, losses, optimizers: the first of each is the default

typedef enum {
	DT_TYPE_DEFAULT, // inputs: DT_FLOAT32; labels: DT_INT32 for cross-entropy, else DT_FLOAT32
	DT_FLOAT32,
	DT_INT32, // inputs: token or category numbers, for dt_embedding
	DT_UINT8, // inputs: pixels, read as value / 255
	DT_ONE_HOT // labels: floats [n, classes] that sum to 1, one-hot or soft
} dt_type;

typedef enum {
	DT_GLOROT_UNIFORM, // +-sqrt(6 / (fan_in + fan_out))   Glorot & Bengio 2010, eq. 16
	DT_GLOROT_NORMAL, // deviation sqrt(2 / (fan_in + fan_out))
	DT_HE_UNIFORM, // +-sqrt(6 / fan_in)   He et al. 2015, eq. 10
	DT_HE_NORMAL, // deviation sqrt(2 / fan_in)
	DT_LECUN_UNIFORM, // +-sqrt(3 / fan_in)   LeCun et al. 1998, eq. 16
	DT_LECUN_NORMAL, // deviation sqrt(1 / fan_in)
	DT_UNIFORM, // +-.init_value, 0 -> 0.05
	DT_NORMAL, // deviation .init_value, 0 -> 0.05
	DT_ORTHOGONAL, // orthonormal rows or columns times .init_value, 0 -> 1   Saxe et al. 2014
	DT_CONSTANT // .init_value everywhere
} dt_initializer;

typedef enum {
	DT_NO_LOSS, // inference, or net calls dt_loss
	DT_CROSS_ENTROPY, // softmax cross-entropy of logits [n, …, classes], or of dt_softmax's probabilities
	DT_BINARY_CROSS_ENTROPY, // sigmoid cross-entropy of logits, or of dt_sigmoid's probabilities; mean over the outputs
	DT_MSE, // mean squared error over the outputs
	DT_MAE, // mean absolute error over the outputs
	DT_HUBER, // quadratic below .delta, linear above   Huber 1964
	DT_VALUE // the tensor, summed over a sample, is the loss: no label
} dt_loss_kind;

typedef enum {
	DT_MEAN, // losses: divided by the global sum of the weights
	DT_SUM,
	DT_MAX // collectives only
} dt_reduction;

typedef enum {
	DT_SGD, // w -= rate * g
	DT_MOMENTUM, // v = momentum * v + g; w -= rate * v   (PyTorch's form)
	DT_NESTEROV, // v = momentum * v + g; w -= rate * (g + momentum * v)
	DT_ADAM, // Kingma & Ba 2015, Algorithm 1
	DT_ADAMW, // Loshchilov & Hutter 2019, Algorithm 2: decoupled weight decay
	DT_RMSPROP // s = alpha * s + (1 - alpha) g^2; w -= rate * g / (sqrt(s) + epsilon)
} dt_optimizer;

typedef enum {
	DT_CONSTANT_RATE,
	DT_STEP_DECAY, // times .decay_factor every .decay_steps
	DT_EXPONENTIAL_DECAY, // times .decay_factor ^ (step / .decay_steps)
	DT_COSINE_DECAY, // half a cosine to .final_rate over .total_steps
	DT_LINEAR_DECAY // a straight line instead
} dt_schedule;

typedef enum {
	DT_STRATEGY_DEFAULT, // servers: DT_PARAMETER_SERVER; several processes: DT_MULTIWORKER; replicas: DT_MIRRORED; else DT_ONE
	DT_ONE, // one replica, in the caller's thread (Default, OneDevice)
	DT_MIRRORED, // replicas as threads, each with its own variables
	DT_CENTRAL, // … that share one copy (CentralStorage)
	DT_MULTIWORKER, // several processes, each with replicas as threads (MultiWorkerMirrored)
	DT_PARAMETER_SERVER // … that push gradients to servers, which update slices of the variables (ParameterServer)
} dt_strategy;

typedef enum { DT_F32, DT_BF16, DT_F16 } dt_wire; // 16 bits: half the bytes, and gradients rounded once before and after the sum

typedef struct dt_tensor dt_tensor; // a node of the graph; dies with its model
typedef struct dt_model dt_model;
typedef struct dt_dataset dt_dataset; // an opened source of samples
typedef struct dt_comm dt_comm; // one rank's handle on a group
typedef struct dt_server dt_server; // a parameter server

// ---- building a graph
// Call these from net only. Shapes are given without the batch. After an error every layer passes it on. Parameters are
// called "<layer>.weight", "<layer>.bias" and so on; a name NULL -> "<operation>_<number from 1>", counted in the order
// of the graph (inputs before their users, left to right), not of the calls.
// Common fields: .frozen = 1 keeps the layer as it is; .share = tensor of an earlier layer of the same kind and sizes:
// both use one set of variables.

typedef struct {
	dt_tensor *x; // [n, …, in]
	int units; // out
	int no_bias;
	dt_initializer init;  double init_value;
	int frozen;
	dt_tensor *share;
	const char *name;
} dt_dense_options;
// dt_dense(x, units, …) - y [n, …, units] = x W + b. weight [units, in], bias [units].
DT_API dt_tensor *dt_dense_opt(dt_dense_options o);

typedef struct {
	dt_tensor *x; // [n, h, w, c]
	int filters, kernel; // kernel: height, and width unless .kernel_w is given
	int stride; // 0 -> 1
	int padding; // zeros on every side; 0 -> none; DT_SAME: out = ceil(in / stride)
	int dilation; // 0 -> 1
	int groups; // 0 -> 1; groups = c is a depthwise convolution
	int kernel_w; // 0 -> kernel
	int direct; // 1: never by Winograd's way
	int no_bias;
	dt_initializer init;  double init_value;
	int frozen;
	dt_tensor *share;
	const char *name;
} dt_conv2d_options;
// dt_conv2d(x, filters, kernel, …) - y [n, h', w', filters], h' = (h + 2 padding - dilation (kernel - 1) - 1) / stride + 1.
// weight [filters, c / groups, kernel, kernel_w], bias [filters]. DT_SAME pads as TensorFlow does: an odd zero goes
// below and to the right. Winograd's way serves 3 x 3 kernels of stride 1 where c and filters are multiples of 16: up
// to three times as fast, rounding errors some ten times as large.
DT_API dt_tensor *dt_conv2d_opt(dt_conv2d_options o);

typedef struct {
	dt_tensor *x; // [n, h, w, c]
	int size; // window
	int stride; // 0 -> size
	int padding; // 0 -> none; at most size / 2. It never wins a maximum and never counts in an average
	const char *name;
} dt_pool2d_options;
// dt_maxpool2d(x, size, …), dt_avgpool2d(x, size, …) - y [n, h', w', c], h' = (h + 2 padding - size) / stride + 1. Of
// equal maxima the first gets the gradient; NaN counts as the largest.
DT_API dt_tensor *dt_maxpool2d_opt(dt_pool2d_options o);
DT_API dt_tensor *dt_avgpool2d_opt(dt_pool2d_options o);

// dt_global_avgpool - [n, h, w, c] -> [n, c], the mean over height and width.
DT_API dt_tensor *dt_global_avgpool(dt_tensor *x);

// dt_flatten - [n, …] -> [n, product]. In files, a dense layer or norm behind a flattened image keeps PyTorch's
// channels-first order.
DT_API dt_tensor *dt_flatten(dt_tensor *x);

typedef struct { dt_tensor *x; int shape[DT_MAX_RANK - 1]; const char *name; } dt_reshape_options;
// dt_reshape(x, {7, 7, 64}) - the same values in another shape; one size may be -1: what is left.
DT_API dt_tensor *dt_reshape_opt(dt_reshape_options o);

typedef struct {
	dt_tensor *x; // [n, …, c]
	double momentum; // the new batch's share in the running statistics, 0 -> 0.1
	double epsilon; // 0 -> 1e-5
	int sync; // 1: normalise over the global batch, not the replica's part
	int frozen;
	dt_tensor *share;
	const char *name;
} dt_batchnorm_options;
// dt_batchnorm(x, …) - per channel over batch and positions: (x - mean) / sqrt(var + epsilon) * weight + bias.
// Inference takes the running statistics, which follow the global batch (unbiased variance) alike on every replica.
// weight, bias, running_mean, running_var [c].   Ioffe & Szegedy 2015, Algorithm 1
DT_API dt_tensor *dt_batchnorm_opt(dt_batchnorm_options o);

typedef struct {
	dt_tensor *x; // [n, …, c]
	double epsilon; // 0 -> 1e-5
	int no_bias, frozen;
	dt_tensor *share;
	const char *name;
} dt_layernorm_options;
// dt_layernorm(x, …) - each row of c values to mean 0 and variance 1, times weight plus bias [c].   Ba et al. 2016
DT_API dt_tensor *dt_layernorm_opt(dt_layernorm_options o);

// dt_dropout - in training each value is zero with probability rate (0 <= rate < 1), else divided by 1 - rate; in
// inference nothing. The mask depends on seed, step and sample only.
DT_API dt_tensor *dt_dropout(dt_tensor *x, double rate);

// Activations, value by value.
DT_API dt_tensor *dt_relu(dt_tensor *x);
DT_API dt_tensor *dt_leaky_relu(dt_tensor *x, double slope); // x < 0: slope * x
DT_API dt_tensor *dt_gelu(dt_tensor *x); // x * Phi(x), by erf   Hendrycks & Gimpel 2016
DT_API dt_tensor *dt_gelu_tanh(dt_tensor *x); // by tanh, approximately
DT_API dt_tensor *dt_silu(dt_tensor *x); // x * sigmoid(x)
DT_API dt_tensor *dt_tanh(dt_tensor *x);
DT_API dt_tensor *dt_sigmoid(dt_tensor *x);
DT_API dt_tensor *dt_softmax(dt_tensor *x); // over the last axis

// Arithmetic on tensors of one shape, and x * factor + offset.
DT_API dt_tensor *dt_add(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_sub(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_mul(dt_tensor *a, dt_tensor *b);
DT_API dt_tensor *dt_scale(dt_tensor *x, double factor, double offset);

// dt_concat - a, then b along an axis (1: the first behind the batch; -1: the last).
DT_API dt_tensor *dt_concat(dt_tensor *a, dt_tensor *b, int axis);

typedef struct { dt_tensor *x; int axis, begin, end; int step; const char *name; } dt_slice_options;
// dt_slice(x, axis, begin, end, …) - indexes begin, begin + step, … below end along an axis (not the batch); end 0 or
// less counts from the axis' end; .step 0 -> 1.
DT_API dt_tensor *dt_slice_opt(dt_slice_options o);

// dt_pad - zeros before and after along an axis (not the batch).
DT_API dt_tensor *dt_pad(dt_tensor *x, int axis, int before, int after);

typedef struct {
	dt_tensor *x; // [n, …] of DT_INT32, values 0 .. tokens - 1
	int tokens, features;
	dt_initializer init;  double init_value; // 0 -> DT_NORMAL, deviation 1, as PyTorch
	int frozen;
	dt_tensor *share;
	const char *name;
} dt_embedding_options;
// dt_embedding(x, tokens, features, …) - y [n, …, features]: row x of weight [tokens, features].
DT_API dt_tensor *dt_embedding_opt(dt_embedding_options o);

// What a custom operation's callbacks see: arrays [n, …] of floats, of the replica's part.
typedef struct {
	int n; // samples; may be 0
	int n_inputs;
	const float *x[DT_MAX_INPUTS];
	float *y; // output: forward writes it, backward may read it
	const float *dy; // backward: the output's gradient
	float *dx[DT_MAX_INPUTS]; // backward ADDS to these; NULL where nobody asks
	const float *weight; // the operation's own parameter, or NULL
	float *dweight; // backward ADDS to it; NULL if there is none or frozen
	int training;
	long step;
	void *user;
} dt_custom_call;

typedef struct {
	dt_tensor *x;
	int shape[DT_MAX_RANK - 1]; // the output's; all 0 -> that of x
	int (*forward)(const dt_custom_call *); // both on any replica's thread; 0, or else failure
	int (*backward)(const dt_custom_call *); // NULL: no gradient
	void *user;
	dt_tensor *more[DT_MAX_INPUTS - 1]; // further inputs
	int weight[DT_MAX_RANK - 1]; // of its own parameter; all 0 -> none
	dt_initializer init;  double init_value;
	int frozen;
	const char *name;
} dt_custom_options;
// dt_custom(x, {shape}, forward, backward, user, …) - your own operation.
DT_API dt_tensor *dt_custom_opt(dt_custom_options o);

typedef struct { dt_tensor *x; const char *name; int shape[DT_MAX_RANK - 1]; dt_type type; } dt_input_options;
// dt_input(x, "meta", {5}, .type = DT_INT32) - a further input of x's model: dt_batch.x[1], x[2], … in the names' order.
DT_API dt_tensor *dt_input_opt(dt_input_options o);

// dt_output - name t for dt_output_read. Returns t.
DT_API dt_tensor *dt_output(dt_tensor *t, const char *name);

typedef struct {
	dt_tensor *t; // prediction
	dt_loss_kind kind;
	dt_tensor *target; // NULL: labels, fed as dt_batch.y[…]; a target gets no gradient
	double weight; // 0 -> 1
	dt_reduction reduction; // DT_MEAN or DT_SUM
	double label_smoothing; // cross-entropy: 0 .. 1
	int ignore_label; // cross-entropy: this label does not count; 0 -> none; see DT_IGNORE_CLASS_0
	const float *class_weights; // cross-entropy: [classes], borrowed; NULL -> all 1
	double delta; // Huber: 0 -> 1
	dt_type label_type;
	const char *name; // NULL -> "loss"; several losses need names
} dt_loss_options;
// dt_loss(t, DT_MSE, .target = x, .weight = 0.3, .name = "age") - a further loss. Returns t. The options' loss reads
// dt_batch.y[0], these the next labels in their names' order. A step's loss is the weighted sum of its losses, each
// summed over samples and divided by the global sum of weights (samples; cross-entropy: labels not ignored, integer ones
// times their class weights).
DT_API dt_tensor *dt_loss_opt(dt_loss_options o);

// The shape of a tensor: dt_rank counts the batch, whose dt_dim(t, 0) is 0: it has no fixed size.
DT_API int dt_rank(const dt_tensor *t);
DT_API int dt_dim(const dt_tensor *t, int axis);

#ifndef __cplusplus // first the tensor, then what is required, the rest by name
#define DT__WITH(layer, ...) layer##_opt((layer##_options){__VA_ARGS__})
#define dt_dense(...) DT__WITH(dt_dense, .x = __VA_ARGS__)
#define dt_conv2d(...) DT__WITH(dt_conv2d, .x = __VA_ARGS__)
#define dt_maxpool2d(...) dt_maxpool2d_opt((dt_pool2d_options){.x = __VA_ARGS__})
#define dt_avgpool2d(...) dt_avgpool2d_opt((dt_pool2d_options){.x = __VA_ARGS__})
#define dt_reshape(...) DT__WITH(dt_reshape, .x = __VA_ARGS__)
#define dt_batchnorm(...) DT__WITH(dt_batchnorm, .x = __VA_ARGS__)
#define dt_layernorm(...) DT__WITH(dt_layernorm, .x = __VA_ARGS__)
#define dt_slice(...) DT__WITH(dt_slice, .x = __VA_ARGS__)
#define dt_embedding(...) DT__WITH(dt_embedding, .x = __VA_ARGS__)
#define dt_custom(...) DT__WITH(dt_custom, .x = __VA_ARGS__)
#define dt_input(...) DT__WITH(dt_input, .x = __VA_ARGS__)
#define dt_loss(...) DT__WITH(dt_loss, .t = __VA_ARGS__)
#define dt_main(argc, argv, ...) dt_main_opt(argc, argv, &(dt_options){__VA_ARGS__})
#endif

// ---- data

typedef enum { DT_TRAIN, DT_TEST } dt_split;

// A plain value, filled by the functions below; the trainer opens it and reports errors. Commas separate several files.
typedef struct {
	const char *what; // the function below, or of a companion header such as examples/csv.h
	int (*open)(dt_dataset *d);
	const char *path, *labels;
	const void *x, *y;
	dt_type x_type, y_type;
	long n;
	int (*read)(void *user, long index, void *x, void *y);
	void *user;
	dt_dataset *dataset;
	int split, folds, fold, held_out;
	double fraction;
	const char *columns, *fitted; // of companions; fitted: NULL -> that of the model which opens it
	int option[6];
} dt_source;

// dt_mnist - the four IDX files of MNIST or Fashion-MNIST in a folder, under their usual names, plain or .gz (unpacked
// by the system's gzip). Images [28, 28, 1] of bytes, labels 0..9.
DT_API dt_source dt_mnist(const char *folder, dt_split split);

// dt_idx - IDX files of bytes: images [n, …], all files of one shape, and as many of labels [n], or NULL.
DT_API dt_source dt_idx(const char *images, const char *labels);

// dt_arrays - n samples in memory: x [n, …] in the shape of the model's input (bytes: value / 255), y [n, …] or NULL.
// Borrowed.
DT_API dt_source dt_arrays(const void *x, dt_type x_type, const void *y, dt_type y_type, long n);

// dt_from - read writes sample index (0 <= index < n) to x and y in the model's .input_type and .label_type and returns
// 0, or else failure. Called from any thread, in any order; y is NULL where no label is wanted.
DT_API dt_source dt_from(int (*read)(void *user, long index, void *x, void *y), void *user, long n);

// dt_opened - an open data set, which must outlive the model.
DT_API dt_source dt_opened(dt_dataset *d);

// dt_fold - a part of s: DT_TEST is each sample with index % folds == fold, DT_TRAIN all others.
DT_API dt_source dt_fold(dt_source s, int folds, int fold, dt_split split);

// dt_part - the same, drawn by chance but always alike: DT_TEST is this fraction of the samples, DT_TRAIN the rest.
DT_API dt_source dt_part(dt_source s, double fraction, dt_split split);

// dt_dataset_open - read (or map) a source. NULL on failure. Close with dt_dataset_close (NULL is fine).
DT_API dt_dataset *dt_dataset_open(const dt_source *s, dt_error *err);
DT_API void dt_dataset_close(dt_dataset *d);

typedef struct {
	long n; // samples
	int input[DT_MAX_RANK - 1]; // of one; all 0: unknown, as the model has it
	int classes; // largest whole-number label + 1; 0: unknown
	dt_type x_type, y_type; // as stored
} dt_dataset_info;
DT_API dt_dataset_info dt_dataset_describe(const dt_dataset *d);

// dt_dataset_columns - what a companion header fitted to the data, as text for .fitted; lives as long as d. NULL for others.
DT_API const char *dt_dataset_columns(const dt_dataset *d);

// dt_shuffle - position -> sample index in an epoch's order: a keyed permutation of 0..n-1, so every index comes once.
// The trainer uses it with its .seed.
DT_API long dt_shuffle(long position, long n, uint64_t seed, long epoch);

// ---- models

// BEGIN: before the first step, for job.h's dt_checkpoint_load; model is its only field.
typedef enum { DT_EVENT_STEP, DT_EVENT_EPOCH, DT_EVENT_END, DT_EVENT_BEGIN } dt_event_kind;

typedef struct {
	dt_event_kind kind;
	dt_model *model;
	long step, steps; // done, and in all
	int epoch, epochs; // this one from 1, and in all
	int ends_epoch; // 0: more steps of this epoch follow
	double loss, accuracy; // of the step or epoch; accuracy: NAN where there is none
	double eval_loss, eval_accuracy; // NAN where nothing was evaluated
	double learning_rate, gradient_norm; // norm: NAN unless it was needed
	double samples_per_s; // of training steps; EPOCH: in this epoch, else since the run began
	double seconds; // since the run began
} dt_event;

// A program's own flag for dt_parse and dt_main, --name VALUE; --help shows it.
typedef struct {
	const char *name; // without the dashes; NULL ends the list
	const char **value; // holds the default; receives the value (a pointer into argv)
	const char *help;
} dt_flag;

typedef struct {
	// model
	dt_tensor *(*net)(dt_tensor *x, void *user);
	void *user; // for net, rate_at, on_event, augment
	int input[DT_MAX_RANK - 1]; // of one sample; all 0 -> that of .train or .test
	dt_type input_type;
	dt_loss_kind loss; // of what net returns
	dt_type label_type;
	dt_reduction reduction;
	double label_smoothing;
	int ignore_label;
	const float *class_weights;
	double delta;
	int inference; // 1: no gradients; steps are refused
	int input_gradient; // 1: backward also computes input 0's gradient
	// optimizer
	dt_optimizer optimizer;
	double learning_rate; // 0 -> 0.01 (SGD, momentum, Nesterov, RMSprop), 0.001 (Adam, AdamW)
	double momentum; // 0 -> 0.9 for DT_MOMENTUM and DT_NESTEROV, else none; DT_OFF: none
	double beta1, beta2; // Adam: 0 -> 0.9, 0.999
	double alpha; // RMSprop: 0 -> 0.99
	double epsilon; // 0 -> 1e-8
	double weight_decay; // added to the gradient; DT_ADAMW: decoupled, 0 -> 0.01, DT_OFF: none
	double clip_norm; // 0 -> off; the gradient's largest global norm
	const char *freeze; // parameters that match this glob (* and ?) keep their values;
	const char *no_decay; // … get no weight decay. Commas separate several globs
	int accumulate; // parts that a batch is run in, in turn; 0 -> 1
	dt_schedule schedule;
	long warmup_steps; // the rate first rises linearly over these
	long total_steps; // for cosine and linear; 0 -> the steps of the run
	double final_rate;
	long decay_steps; // 0 -> one epoch (1000 steps in an own loop)
	double decay_factor; // 0 -> 0.1 for DT_STEP_DECAY, 0.96 for DT_EXPONENTIAL_DECAY
	double (*rate_at)(long step, void *user); // instead of schedule and learning_rate; step from 0
	// distribution
	dt_strategy strategy;
	int replicas; // 0 -> one per usable core
	int batch; // global batch; 0 -> 32
	int replica_batch; // instead: global batch = this x replicas x processes
	dt_comm *comm; // to the other processes, see dt_comm_open; borrowed
	int workers, servers; // dt_main: start so many more processes, and parameter servers, on this machine
	int tier; // dt_main: 0: as these two say; 1 basic: none; 2 standard_1: 4 and 3; 3 premium_1: 19 and 11
	int sync; // DT_PARAMETER_SERVER: 1: one update from all workers' parts of a batch, as DT_MULTIWORKER;
	int staleness; // … else each has batches of its own, and is so many steps ahead at most; 0 -> any number
	int full_rate; // 1: not divided by 1 + the updates made since a gradient's values were fetched
	int backup; // .sync: the slowest so many workers do not count in a step
	dt_wire wire; // DT_MULTIWORKER: what sums of gradients send over TCP
	int print_cluster; // dt_main: show who this process is, by what variables; stop
	// data and run
	dt_source train, test;
	int epochs; // 0 -> 1, or as many as .steps need
	long steps; // 0 -> as many as .epochs need
	uint64_t seed;
	int no_shuffle;
	int crop; // training images: zeros on every side, then a random cut of the old size
	int flip; // training images: half, by chance, mirrored left to right
	double mean[DT_MAX_CHANNELS], deviation[DT_MAX_CHANNELS]; // (x - mean) / deviation by channel; deviation 0 -> off
	int (*augment)(void *user, float *x, long index, uint64_t random); // training samples, in place; 0 or failure
	int patience; // stop after so many epochs with no better evaluation loss; 0 -> off
	int no_nan_guard; // 1: train on when values are not finite
	int (*on_event)(const dt_event *e, void *user); // anything but 0 stops the run, without an error
	int progress; // 0 -> dt_main prints, dt_train is silent; 1: print; DT_OFF: silent
	int json; // dt_main: the last line of standard output is a JSON object
	int profile; // dt_main: time per layer at the end
	int no_fusion; // 1: every layer by itself on the whole batch: slower, to compare
	int print_options; // dt_main: show the options and stop
	const char *save, *load; // dt_main: weights, after the run and before it
	const dt_flag *flags; // dt_main: the program's own
	// memory
	void *memory;  size_t memory_size; // the model lives here, without malloc
	void *(*alloc)(size_t bytes, void *user); // instead of malloc and free: both or none
	void (*release)(void *p, void *user);
	void *alloc_user;
} dt_options;

// dt_model_create - build the graph, plan its memory, initialise the variables, start the replicas. NULL on failure.
// Without .input, .train or .test is opened for its shape.
DT_API dt_model *dt_model_create(const dt_options *o, dt_error *err);

// dt_model_free - end the replicas and free all. NULL is fine.
DT_API void dt_model_free(dt_model *m);

// dt_model_bytes - exactly what dt_model_create takes: the least .memory_size, however .memory is aligned; 0 on failure.
// Threads' stacks and data sets are not counted. DTRAIN_NO_MALLOC: builds the graph in .memory, as work space.
DT_API size_t dt_model_bytes(const dt_options *o, dt_error *err);

// dt_model_plan_bytes - one replica's plan: the block laid out (activations, their gradients, scratch), and the largest
// sum of buffers alive at once, the least that any layout needs.
DT_API void dt_model_plan_bytes(const dt_model *m, size_t *block, size_t *lower_bound);

typedef struct {
	const void *x[DT_MAX_INPUTS]; // [n, …] in the type of each input
	const void *y[DT_MAX_INPUTS]; // [n, …] in the type of each label
	const float *weight; // [n], 0 or more; NULL: all 1. All 0: loss and gradient are 0
	int n; // samples, at most the model's batch
} dt_batch;

// dt_step - forward, backward, reduce over the replicas, update. x [n, …], y [n, …] or NULL; 0 < n <= batch. Returns
// the mean loss before the update; NAN on failure, with nothing updated. Gradients left by dt_backward without a
// dt_update are forgotten.
DT_API float dt_step(dt_model *m, const void *x, const void *y, int n, dt_error *err);
DT_API float dt_step_batch(dt_model *m, const dt_batch *b, dt_error *err); // several inputs, labels, weights

// The parts of dt_step. Backward adds to the gradients; update divides them by the weights seen since the last clear,
// reduces if nobody has, applies the optimizer and clears. n is at most batch / accumulate, split over the replicas as in
// dt_step. Several losses whose weights differ: each forward's are averaged for themselves, and forwards count by their rows.
DT_API float dt_forward(dt_model *m, const dt_batch *b, dt_error *err); // training mode; the mean loss, 0 without labels
DT_API int dt_backward(dt_model *m, dt_error *err); // of the losses of the last dt_forward, once
DT_API int dt_backward_from(dt_model *m, const float *gradient, dt_error *err); // of net's output instead: [n, …], a sum's gradient
DT_API int dt_reduce(dt_model *m, dt_error *err); // sum over the replicas
DT_API int dt_update(dt_model *m, dt_error *err);
DT_API int dt_clear(dt_model *m, dt_error *err); // forget the gradients

// dt_output_read - the rows [n, …] of the last dt_forward, or dt_step without .accumulate: of the dt_output called
// name, or (NULL) of what net returned.
DT_API int dt_output_read(dt_model *m, const char *name, float *out, dt_error *err);

// dt_input_gradient_read - d loss sum / d input 0 [n, …] of the last dt_backward; DT_ERR_STATE after another forward.
// Needs .input_gradient.
DT_API int dt_input_gradient_read(dt_model *m, float *out, dt_error *err);

// dt_gradients - all parameters' gradients after dt_reduce (sums, not yet divided), flat, in memory's layout; *n: how
// many. May be changed before dt_update. NULL if not reduced.
DT_API float *dt_gradients(dt_model *m, size_t *n);

// dt_predict - what net returns for n samples (any n) in inference mode, out [n, …]. For probabilities end net in
// dt_softmax.
DT_API int dt_predict(dt_model *m, const void *x, long n, float *out, dt_error *err);

// dt_predict_source - the same for samples begin .. begin + n - 1 of a source, normalised as in training.
DT_API int dt_predict_source(dt_model *m, const dt_source *s, long begin, long n, float *out, dt_error *err);

typedef struct {
	int top_k; // in: top_k_accuracy finds the label among so many; 0 -> 5
	long *confusion; // in: [classes * classes] or NULL; out: adds counts to [label][prediction]
	long n; // out: labels counted; samples, if nothing counts labels
	double loss; // out: all losses together
	double accuracy; // out: NAN without a (binary) cross-entropy on net's output
	double top_k_accuracy; // out: cross-entropy only, else NAN
	int classes; // out
} dt_metrics;

// dt_evaluate - loss and metrics over a source in inference mode. metrics->confusion needs integer labels.
DT_API int dt_evaluate(dt_model *m, const dt_source *s, dt_metrics *metrics, dt_error *err);

// dt_precision, dt_recall - of one class by the confusion matrix; NAN where nothing was predicted or present.
DT_API double dt_precision(const dt_metrics *metrics, int label);
DT_API double dt_recall(const dt_metrics *metrics, int label);

// dt_train - the loop over epochs, steps, evaluations and events. run: for this run only, the learning rate (none: the
// model's) with its schedule, and the group "data and run" but .seed; NULL: the options of the creation. 0 also when an
// event or patience ended it. DT_ERR_STATE from within on_event, as with dt_step.
DT_API int dt_train(dt_model *m, const dt_options *run, dt_error *err);

typedef struct {
	long steps, samples;
	int epochs, replicas; // replicas: this process's,
	int process, processes; // … which is this one (0: the chief) of so many
	dt_strategy strategy;
	long pushes;  double staleness; // DT_PARAMETER_SERVER: this process's steps, and their mean staleness
	double train_loss, train_accuracy; // of the last epoch
	double eval_loss, eval_accuracy; // of the last evaluation
	double seconds, samples_per_s; // of training steps, without evaluation
	double data_s; // of these, gathering and converting (slowest replica)
	size_t parameters, arena_bytes;
} dt_report;
DT_API dt_report dt_model_report(const dt_model *m);

DT_API int dt_local_batch(const dt_model *m); // samples that this process feeds per step
DT_API long dt_model_step(const dt_model *m); // updates done
DT_API void dt_set_learning_rate(dt_model *m, double rate); // before any schedule, from the next update on; 0 <= rate < 1e6, else ignored
DT_API double dt_learning_rate(const dt_model *m); // of the next update

// ---- parameters and files

typedef struct {
	const char *name; // lives as long as the model
	int rank, dim[DT_MAX_RANK]; // as in files: [out, in], [out, in, kh, kw]
	size_t size;
	int trainable; // 0: frozen, or a running statistic
} dt_parameter;

// dt_parameter_at - parameter i in the graph's order, and 0; an error beyond the last.
DT_API int dt_parameter_at(const dt_model *m, int i, dt_parameter *out, dt_error *err);

// dt_parameter_read, _write - n floats in file layout; write reaches every replica.
DT_API int dt_parameter_read(dt_model *m, const char *name, float *out, size_t n, dt_error *err);
DT_API int dt_parameter_write(dt_model *m, const char *name, const float *in, size_t n, dt_error *err);

// dt_parameters_crc32c - over all parameters in file order, little-endian: equal bits, equal numbers.
DT_API uint32_t dt_parameters_crc32c(dt_model *m);

// dt_save - the parameters as .safetensors, which PyTorch, NumPy and Hugging Face open. Written beside path and renamed
// over it: never half a file.
DT_API int dt_save(dt_model *m, const char *path, dt_error *err);

// dt_save_to - the same bytes piece by piece, for boards and archives; write returns 0, or else failure
// (DT_ERR_CALLBACK). Works with every switch.
DT_API int dt_save_to(dt_model *m, int (*write)(void *user, const void *data, size_t n), void *user, dt_error *err);

// dt_load - the parameters that match glob (NULL: all, and the file must hold nothing else) from a .safetensors file in
// PyTorch's layout, F32, F16 or BF16. On failure the model is unchanged. A dense layer or norm behind flatten and then
// concat, slice, pad or reshape has no order in PyTorch: such a net takes files by dt_save only.
DT_API int dt_load(dt_model *m, const char *path, const char *glob, dt_error *err);

typedef enum { DT_LOADED, DT_MISSING, DT_UNEXPECTED, DT_MISSHAPED } dt_load_result;

typedef struct {
	const char *path; // from a file,
	const void *data; // … or memory (flash, say) of .size bytes, to copy from,
	int (*read)(void *user, uint64_t at, void *out, size_t n); // … or a callback over .size bytes: 0, or else failure
	uint64_t size;
	const char *glob; // parameters to load; NULL: all
	const char *(*rename)(void *user, const char *name); // the model's name -> the file's; NULL: not this one
	void *user; // for read, rename and on_tensor
	int partial; // 1: load what fits; the rest is told, without an error
	void (*on_tensor)(void *user, dt_load_result result, const char *name); // for each parameter and unexpected tensor
	void *scratch;  size_t scratch_size; // DTRAIN_NO_MALLOC: for the table, about 8 times the file's header
	int loaded, missing, unexpected, misshaped; // out. misshaped: in shape, or of a type that is not loaded
} dt_load_options;

// dt_load_opt - dt_load with choices. Only without .glob and .rename it looks for unexpected tensors. When read fails
// in the middle, the tensors before stay loaded.
DT_API int dt_load_opt(dt_model *m, dt_load_options *o, dt_error *err);

// ---- collectives
// The ranks of a group make the same calls in the same order; a call that differs from its peers' in kind, n or root is
// DT_ERR_STATE on all, naming both. When a rank closes its handle, calls that wait for it end with DT_ERR_STATE. Sums
// have a fixed order, a binary tree over the ranks.

// dt_comm_group - n handles for n threads of this process (1 <= n <= 1024). Close each.
DT_API int dt_comm_group(int n, dt_comm **out, dt_error *err);
DT_API void dt_comm_close(dt_comm *c); // NULL is fine
DT_API int dt_comm_rank(const dt_comm *c);
DT_API int dt_comm_size(const dt_comm *c);

typedef enum { DT_ROLE_WORKER, DT_ROLE_PS } dt_role;

typedef struct {
	int rank, world_size; // of this process, of how many workers, the chief among them; world_size 0: see .tf_config
	int servers; // parameter servers besides them
	dt_role role; // DT_ROLE_PS: rank is a server's
	const char *chief; // "host:port" where rank 0 listens
	const char *tf_config; // {"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}
	const char *bind; // host, or host:port, to listen on; NULL -> this machine only, if the chief is on it; else all
	const char *secret; // 16 characters or more, the same for all, needed beyond this machine; NULL: DTRAIN_SECRET, DTRAIN_SECRET_FILE
	int insecure; // 1: do without, though anybody in the network could join
	int timeout_ms; // for all to come; 0 -> 600,000
} dt_cluster;

// dt_comm_open - join the other processes of this job, which wait for each other. NULL: the environment says who this
// is (DTRAIN_RANK, _WORLD and _CHIEF, TF_CONFIG, CLUSTER_SPEC, torchrun, PET_*, Open MPI, MPICH, a Slurm step); without
// any, a group of one. A peer that dies, or sends nothing for 10 s (DTRAIN_DEAD), ends the calls of all with
// DT_ERR_PEER and one cause. NULL on failure.
DT_API dt_comm *dt_comm_open(const dt_cluster *c, dt_error *err);

typedef struct {
	int rank, size; // of this process
	int local; // ranks on this machine, which share its cores; 0 -> 1
	int (*allreduce)(void *user, float *buf, size_t n, dt_reduction how); // DT_SUM or DT_MAX, in place, the same bits on all
	int (*broadcast)(void *user, float *buf, size_t n, int root); // the bits as they are; both return 0, or else failure
	void (*close)(void *user); // may be NULL
	void *user;
} dt_comm_hooks;

// dt_comm_from - a handle on another transport, MPI say (examples/mpi.c). Calls are not compared between the ranks.
// NULL on failure.
DT_API dt_comm *dt_comm_from(const dt_comm_hooks *h, dt_error *err);

// dt_allreduce - combine buf [n] over all ranks, in place; all get the same bits.
DT_API int dt_allreduce(dt_comm *c, float *buf, size_t n, dt_reduction how, dt_error *err);
// dt_reduce_scatter - the same, but only the rank's own slice of buf is valid then.
DT_API int dt_reduce_scatter(dt_comm *c, float *buf, size_t n, dt_reduction how, dt_error *err);
// dt_allgather - every rank's own slice of buf [n] to all.
DT_API int dt_allgather(dt_comm *c, float *buf, size_t n, dt_error *err);
// dt_comm_slice - the rank's own slice of n values: begin <= index < end.
DT_API void dt_comm_slice(const dt_comm *c, size_t n, size_t *begin, size_t *end);
// dt_broadcast - root's buf [n] to all.
DT_API int dt_broadcast(dt_comm *c, float *buf, size_t n, int root, dt_error *err);
// dt_barrier - wait for all ranks.
DT_API int dt_barrier(dt_comm *c, dt_error *err);

// dt_server_open - join a job as one of its parameter servers; NULL: the environment says which (TF_CONFIG's task "ps",
// DTRAIN_ROLE=ps). It learns sizes and optimizer from the chief, and serves one job. NULL on failure.
DT_API dt_server *dt_server_open(const dt_cluster *c, dt_error *err);
// dt_server_run - serve until the workers have closed their handles, or dt_server_stop. DT_ERR_PEER if one is lost.
DT_API int dt_server_run(dt_server *s, dt_error *err);
DT_API void dt_server_stop(dt_server *s); // from any thread, or a signal handler: the others learn that it stopped
DT_API void dt_server_close(dt_server *s); // NULL is fine

// ---- the job

// dt_option_set - one option by its flag: dt_option_set(&o, "learning-rate", "0.01", &err). Numbers have a decimal
// point in every locale. A string value is borrowed.
DT_API int dt_option_set(dt_options *o, const char *name, const char *value, dt_error *err);

// dt_parse - all flags of a command line. DT_OK; DT_ERR_USAGE; or DT_ERR_STOPPED after --help.
DT_API int dt_parse(dt_options *o, int argc, char **argv, dt_error *err);

// dt_run - create, load, train, evaluate, report, save, free. Returns the exit status: 0, 1 training error, 64 usage,
// 130 after Ctrl-C, 143 after SIGTERM.
DT_API int dt_run(const dt_options *o);

// dt_main(argc, argv, .net = net, …) - dt_parse and dt_run: flags override options.
DT_API int dt_main_opt(int argc, char **argv, const dt_options *o);

#ifdef __cplusplus
} // extern "C"

// first what is required, then the options: dt_dense(x, 10), dt_dense(x, 10, o)
#define DT__CALL(name, kind, required, ...) static inline dt_tensor *name(__VA_ARGS__, kind o = kind()) { required; return name##_opt(o); }
DT__CALL(dt_dense, dt_dense_options, (o.x = x, o.units = units), dt_tensor *x, int units)
DT__CALL(dt_conv2d, dt_conv2d_options, (o.x = x, o.filters = filters, o.kernel = kernel), dt_tensor *x, int filters, int kernel)
DT__CALL(dt_maxpool2d, dt_pool2d_options, (o.x = x, o.size = size), dt_tensor *x, int size)
DT__CALL(dt_avgpool2d, dt_pool2d_options, (o.x = x, o.size = size), dt_tensor *x, int size)
DT__CALL(dt_batchnorm, dt_batchnorm_options, o.x = x, dt_tensor *x)
DT__CALL(dt_layernorm, dt_layernorm_options, o.x = x, dt_tensor *x)
DT__CALL(dt_slice, dt_slice_options, (o.x = x, o.axis = axis, o.begin = begin, o.end = end), dt_tensor *x, int axis, int begin, int end)
DT__CALL(dt_embedding, dt_embedding_options, (o.x = x, o.tokens = tokens, o.features = features), dt_tensor *x, int tokens, int features)
DT__CALL(dt_loss, dt_loss_options, (o.t = t, o.kind = kind), dt_tensor *t, dt_loss_kind kind)
#undef DT__CALL
static inline int dt_main(int argc, char **argv, const dt_options &o) { return dt_main_opt(argc, argv, &o); }
#endif

#endif // DTRAIN_H

#ifdef DTRAIN_IMPLEMENTATION
#ifndef DTRAIN_IMPLEMENTED
#define DTRAIN_IMPLEMENTED

// ========
// >>base - errors, memory, numbers, text, JSON, files, clock, threads, random bits
//
// What: what C99 does not give in a form that is checked, portable and locale-proof.
// Uses: libc, and pthreads unless DTRAIN_NO_THREADS.
// Promise: no size from outside meets malloc or a pointer unchecked; no text overruns its buffer; a file is replaced whole or
//   not at all.

#if defined(DTRAIN_NO_MALLOC) && !defined(DTRAIN_NO_STDIO)
#define DTRAIN_NO_STDIO // files and data sets need malloc
#endif
#if defined(__unix__) || defined(__APPLE__)
#define DT__POSIX 1
#else
#define DT__POSIX 0
#endif
#if defined(__GNUC__) && !defined(__TINYC__) && !defined(DTRAIN_NO_SIMD)
#define DT__SIMD 1
#else
#define DT__SIMD 0
#endif
#if DT__SIMD && (defined(__x86_64__) || defined(__i386__))
#define DT__X86 1
#else
#define DT__X86 0
#endif
#if !defined(DTRAIN_NO_THREADS) && (!DT__POSIX || !defined(__GNUC__) || defined(__TINYC__))
#define DTRAIN_NO_THREADS // no pthreads or atomics: replicas run in turn
#endif

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#ifndef DTRAIN_NO_MALLOC
#include <stdlib.h>
#endif
#ifndef DTRAIN_NO_STDIO
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#endif
#if DT__POSIX && (!defined(DTRAIN_NO_STDIO) || !defined(DTRAIN_NO_THREADS))
#include <fcntl.h>
#include <time.h>
#if !defined(CLOCK_MONOTONIC) || !defined(O_CLOEXEC)
#error "-std=c99 hides POSIX: use -std=gnu99, or add -D_POSIX_C_SOURCE=200809L"
#endif
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <dirent.h>
#endif
#ifndef DTRAIN_NO_THREADS
#include <pthread.h>
#endif
#if !defined(DTRAIN_NO_SOCKETS) && (defined(DTRAIN_NO_THREADS) || defined(DTRAIN_NO_STDIO))
#define DTRAIN_NO_SOCKETS // a connection needs a thread that says its process lives
#endif
#ifndef DTRAIN_NO_SOCKETS
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#endif
#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" // what is used depends on the switches
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define DT__INLINE static inline __attribute__((always_inline, unused))
#define DT__FORMAT(n) __attribute__((format(printf, n, n + 1)))
#else
#define DT__INLINE static inline
#define DT__FORMAT(n)
#endif

#define DT__MIN(a, b) ((a) < (b) ? (a) : (b))
#define DT__MAX(a, b) ((a) > (b) ? (a) : (b))
#define DT__FOR(i, n) for (i = 0; i < (n); i++)
#define DT__WHILE(i, n, c) for (i = 0; i < (n) && (c); i++)
#define DT__CLEAR(p) memset(p, 0, sizeof *(p))
#define DT__COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
typedef ptrdiff_t dt__n; // a number of floats or of rows, an index, a stride

const char *dt_version(void) {
#define DT__TEXT(x) #x
#define DT__VERSION(a, b, c) DT__TEXT(a) "." DT__TEXT(b) "." DT__TEXT(c)
	return DT__VERSION(DTRAIN_VERSION_MAJOR, DTRAIN_VERSION_MINOR, DTRAIN_VERSION_PATCH);
#undef DT__VERSION
#undef DT__TEXT
}

// ---- text: a bounded writer with its own printf, which needs neither a locale nor stdio

typedef struct {
	char *text;
	size_t size, n; // n: bytes wanted so far, maybe more than fit
} dt__writer;

static dt__writer dt__writer_on(char *text, size_t size) {
	dt__writer w = {text, size, 0};
	if (size) text[0] = 0;
	return w;
}

#define DT__WRITER(w, array) dt__writer w = dt__writer_on(array, sizeof(array))

static void dt__put(dt__writer *w, char c) {
	if (w->n + 1 < w->size) { w->text[w->n] = c; w->text[w->n + 1] = 0; }
	w->n++;
}
static void dt__puts(dt__writer *w, const char *s) { while (*s) dt__put(w, *s++); }
static void dt__put_uint(dt__writer *w, uint64_t v, unsigned base, int width) {
	char digits[24];
	int n = 0;
	do { digits[n++] = "0123456789abcdef"[v % base]; v /= base; } while (v);
	while (width-- > n) dt__put(w, '0');
	while (n) dt__put(w, digits[--n]);
}

// m * 2^e, the top bit of m set: between decimal and binary with an error below 1 ulp of a double.
typedef struct { uint64_t m; int e; } dt__wide;

static dt__wide dt__wide_of(uint64_t m, int e) { // m > 0
	dt__wide w = {m, e};
	for (; !(w.m >> 63); w.e--) w.m <<= 1;
	return w;
}

static dt__wide dt__wide_mul(dt__wide a, dt__wide b) {
	uint64_t a_low = (uint32_t)a.m, a_high = a.m >> 32, b_low = (uint32_t)b.m, b_high = b.m >> 32;
	uint64_t middle = (a_low * b_low >> 32) + (uint32_t)(a_low * b_high) + (uint32_t)(a_high * b_low);
	a.m = a_high * b_high + (a_low * b_high >> 32) + (a_high * b_low >> 32) + (middle >> 32);
	a.e += b.e + 64;
	if (!(a.m >> 63)) { a.m = a.m << 1 | (middle >> 31 & 1); a.e--; }
	return a;
}

static dt__wide dt__wide_power10(int n) {
	dt__wide p = dt__wide_of(1, 0), b = n < 0 ? dt__wide_of(UINT64_C(0xcccccccccccccccd), -67) : dt__wide_of(10, 0);
	for (n = n < 0 ? -n : n; n; n >>= 1, b = dt__wide_mul(b, b)) if (n & 1) p = dt__wide_mul(p, b);
	return p;
}

// As printf's %.<digits>g, or %.<digits>f if fixed and not too large, digits 1 .. 17; in any locale.
static void dt__put_double(dt__writer *w, double v, int digits, int fixed) {
	char d[24];
	uint64_t m = 0, unit = 1, rest = 0;
	int e = 0, e2, n, last, point, scientific;
	if (v != v) { dt__puts(w, "nan"); return; }
	if (copysign(1, v) < 0) { dt__put(w, '-'); v = -v; }
	if (v > DBL_MAX) { dt__puts(w, "inf"); return; }
	for (n = fixed ? 0 : 1; n < digits; n++) unit *= 10;
	if (fixed && v * (double)unit < 1e18) {
		m = (uint64_t)(v * (double)unit);
		m += v * (double)unit - (double)m >= 0.5; // + 0.5 would round too
		dt__put_uint(w, m / unit, 10, 0);
		if (digits) { dt__put(w, '.'); dt__put_uint(w, m % unit, 10, digits); }
		return;
	}
	if (fixed) { digits = 17; unit = UINT64_C(10000000000000000); }
	if (v > 0) {
		double f = frexp(v, &e2);
		dt__wide x = dt__wide_of((uint64_t)(f * 9007199254740992.0), e2 - 53), y;
		for (e = (int)floor(log10(v)) + 2; m < unit;) { // log10 may be one off
			y = dt__wide_mul(x, dt__wide_power10(digits - 1 - --e));
			m = y.e < -64 ? 0 : y.m >> (-y.e - 1) >> 1; rest = y.e < -64 ? 0 : y.m << (64 + y.e);
		}
		m += rest > UINT64_C(1) << 63 || (rest == UINT64_C(1) << 63 && m % 2); // a tie goes to the even digit
		if (m / 10 == unit) { m = unit; e++; } // 9.99 has become 10.0
	}
	for (n = digits; n > 0; m /= 10) d[--n] = (char)('0' + (int)(m % 10));
	for (last = digits; last > 1 && d[last - 1] == '0'; last--) {}
	scientific = e < -4 || e >= digits;
	point = scientific ? 0 : e; // the digit before the decimal point
	if (point < 0) dt__puts(w, "0.");
	for (n = point + 1; n < 0; n++) dt__put(w, '0');
	DT__FOR(n, DT__MAX(last, point + 1)) {
		if (n && n == point + 1) dt__put(w, '.');
		dt__put(w, d[n]);
	}
	if (!scientific) return;
	dt__puts(w, e < 0 ? "e-" : "e+");
	dt__put_uint(w, (uint64_t)(e < 0 ? -e : e), 10, 2);
}

// Only printf's %s %c %d %u %x %ld %lu %zu %ju %jd %td %g %f with flag 0, width and precision.
static void dt__vprint(dt__writer *w, const char *f, va_list a) {
	for (; *f; f++) {
		int width = 0, precision = -1, size = 0, n = 0;
		char fill = ' ', number[48];
		const char *s = number;
		DT__WRITER(t, number);
		if (*f != '%') { dt__put(w, *f); continue; }
		if (*++f == '0') { fill = '0'; f++; }
		for (; *f >= '0' && *f <= '9'; f++) width = width * 10 + (*f - '0');
		if (*f == '.' && f[1] == '*') { precision = va_arg(a, int); f += 2; }
		else if (*f == '.') for (f++, precision = 0; *f >= '0' && *f <= '9'; f++) precision = precision * 10 + (*f - '0');
		while (*f && strchr("lztj", *f)) size = *f++;
		if (*f == 's') {
			if (!(s = va_arg(a, const char *))) s = "(none)";
			while (n != precision && s[n]) n++;
		} else if (*f == 'd') {
			int64_t v = size == 'l' ? va_arg(a, long) : size == 't' ? va_arg(a, dt__n)
					: size == 'j' ? va_arg(a, intmax_t) : va_arg(a, int);
			if (v < 0) dt__put(&t, '-');
			dt__put_uint(&t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, 10, 0);
		} else if (*f == 'u' || *f == 'x') {
			uint64_t v = size == 'l' ? va_arg(a, unsigned long) : size == 'z' ? va_arg(a, size_t)
					: size == 'j' ? va_arg(a, uintmax_t) : va_arg(a, unsigned);
			dt__put_uint(&t, v, *f == 'x' ? 16 : 10, 0);
		} else if (*f == 'g' || *f == 'f') {
			dt__put_double(&t, va_arg(a, double), precision < 0 ? 6 : precision, *f == 'f');
		} else dt__put(&t, *f == 'c' ? (char)va_arg(a, int) : *f);
		if (*f != 's') n = (int)t.n;
		width -= n;
		if (fill == '0' && *s == '-') { dt__put(w, *s++); n--; } // zeros go behind the sign
		for (; width > 0; width--) dt__put(w, fill);
		while (n-- > 0) dt__put(w, *s++);
	}
}

#define DT__VPRINT(w, format) { va_list a; va_start(a, format); dt__vprint(w, format, a); va_end(a); }

DT__FORMAT(2) static void dt__print(dt__writer *w, const char *format, ...) { DT__VPRINT(w, format); }

DT__FORMAT(3) static size_t dt__format(char *out, size_t size, const char *format, ...) {
	dt__writer w = dt__writer_on(out, size);
	DT__VPRINT(&w, format);
	return w.n;
}
#define dt__fill(array, ...) dt__format(array, sizeof(array), __VA_ARGS__)

static void dt__put_json_number(dt__writer *w, double v) { // null where it is not finite
	if (v - v == 0) dt__put_double(w, v, 9, 0); else dt__puts(w, "null");
}
static int dt__digit_at(const char *p, const char *limit) { return p < limit && *p >= '0' && *p <= '9'; }

// A number in any locale, correct to 1 ulp; *end: where it stopped.
static double dt__parse_double(const char *s, const char *limit, const char **end) {
	const char *p = *end = s;
	uint64_t m = 0;
	int negative = 0, digits = 0, scale = 0, e = 0, e_negative = 0, point = 0;
	double v; dt__wide w;
	if (p < limit && (*p == '+' || *p == '-')) negative = *p++ == '-';
	if (limit - p >= 3 && *p > '9') {
		char word[3] = {(char)(p[0] | 32), (char)(p[1] | 32), (char)(p[2] | 32)};
		int nan = !memcmp(word, "nan", 3);
		if (nan || !memcmp(word, "inf", 3)) { *end = p + 3; return (double)(nan ? NAN : negative ? -INFINITY : INFINITY); }
	}
	for (; p < limit; p++) {
		if (*p == '.' && !point) { point = 1; continue; }
		if (*p < '0' || *p > '9') break;
		digits++;
		if (m < UINT64_C(100000000000000000)) { m = m * 10 + (uint64_t)(*p - '0'); scale -= point; }
		else if (scale < 100000) scale += !point;
	}
	if (!digits) return 0;
	*end = p;
	if (p < limit && (*p | 32) == 'e') {
		if (++p < limit && (*p == '+' || *p == '-')) e_negative = *p++ == '-';
		for (; dt__digit_at(p, limit); *end = ++p) if (e < 100000) e = e * 10 + (*p - '0');
		scale += e_negative ? -e : e;
	}
	scale = m ? DT__MAX(-400, DT__MIN(scale, 400)) : 0;
	if (m < UINT64_C(9007199254740992) && scale >= -22 && scale <= 22) { // both exact: the compiler's own result
		w = dt__wide_power10(scale < 0 ? -scale : scale);
		v = ldexp((double)w.m, w.e);
		v = scale < 0 ? (double)m / v : (double)m * v;
	} else { w = dt__wide_mul(dt__wide_of(m, 0), dt__wide_power10(scale)); v = ldexp((double)w.m, w.e); }
	return negative ? -v : v;
}

// A whole number in digits, up to limit; or *ok = 0.
static uint64_t dt__whole(const char *s, uint64_t limit, int *ok) {
	uint64_t v = 0;
	for (*ok = *s != 0; *s && *ok; s++) {
		uint64_t d = (uint64_t)(*s - '0'); // large below '0' too
		*ok = d <= 9 && v <= limit / 10 && v * 10 <= limit - d;
		v = v * 10 + d;
	}
	return v;
}

// ---- errors

const char *dt_error_name(int code) {
#define DT__X(symbol, value, name) if (code == value) return name;
	DT_ERRORS(DT__X)
#undef DT__X
	return "unknown error";
}

DT__FORMAT(3) static int dt__fail(dt_error *err, int code, const char *format, ...) {
	dt__writer w;
	if (!err || err->code) return code; // the first error stays
	err->code = code; w = dt__writer_on(err->text, sizeof err->text);
	DT__VPRINT(&w, format);
	return code;
}

#define dt__deny(err, ...) dt__fail(err, DT_ERR_ARGUMENT, __VA_ARGS__)
#define dt__oom(err, ...) dt__fail(err, DT_ERR_MEMORY, __VA_ARGS__)
#define dt__bad_file(err, ...) dt__fail(err, DT_ERR_FORMAT, __VA_ARGS__)
#define dt__bad_job(err, ...) dt__fail(err, DT_ERR_CONFIG, __VA_ARGS__)
#define dt__lost(err, ...) dt__fail(err, DT_ERR_PEER, __VA_ARGS__)
#define dt__is_null(err, name) dt__deny(err, "%s: the %s is NULL", __func__, name)
#define dt__off(err, name) dt__fail(err, DT_ERR_DISABLED, "%s: this build has %s: build without it", __func__, name)

static int dt__code(const dt_error *err, int otherwise) { return err && err->code ? err->code : otherwise; }
static int dt__pass(dt_error *to, const dt_error *from) { if (to && !to->code) *to = *from; return from->code; }

// ---- sizes and memory

static int dt__times(dt__n a, dt__n b, dt__n *out) {
	if (a < 0 || b < 0 || (a && b > PTRDIFF_MAX / 8 / a)) return 0; // room for 8-byte elements
	*out = a * b;
	return 1;
}
static dt__n dt__ceil(dt__n n, dt__n unit) { return (n + unit - 1) / unit * unit; }

#define DT__ALIGN 64 // bytes: a cache line, the widest vector
#define DT__UNIT 16 // bytes: a pool's piece is a multiple, behind a header of one

// Zeroed memory from the user's block or from alloc, freed all at once. Both count the same bytes, for dt_model_bytes.
typedef struct {
	uint8_t *base; // the user's block, or NULL
	size_t size, used;
	void *(*alloc)(size_t bytes, void *user);
	void (*release)(void *p, void *user);
	void *user, *last; // last: from alloc; its header holds the one before
	int measuring; // dt__reserve only counts
} dt__pool;

#ifndef DTRAIN_NO_MALLOC
static void *dt__malloc(size_t bytes, void *user) { return malloc(bytes); }
static void dt__release(void *p, void *user) { free(p); }
#endif

// Count a piece; *total: what it takes in all. Returns the count before.
static size_t dt__count_piece(dt__pool *pool, size_t bytes, size_t *total) {
	size_t before = pool->used;
	*total = (bytes + DT__UNIT - 1) / DT__UNIT * DT__UNIT + DT__UNIT;
	if (before == 0) *total += DT__UNIT - 1; // the user's block may begin anywhere
	pool->used = before > PTRDIFF_MAX / 4 || bytes > PTRDIFF_MAX / 4 - before ? PTRDIFF_MAX : before + *total;
	return before;
}

static void *dt__take(dt__pool *pool, size_t bytes) { // NULL: out of memory; the piece is counted all the same
	size_t total, before = dt__count_piece(pool, bytes, &total);
	uint8_t *p = pool->base;
	if (pool->used == PTRDIFF_MAX || (p && pool->used > pool->size)) return NULL;
	if (p) {
		if (before) p += before - (DT__UNIT - 1);
		p += (0 - (uintptr_t)p) % DT__UNIT;
	} else {
		if (!pool->alloc || !(p = (uint8_t *)pool->alloc(total, pool->user))) return NULL;
		memcpy(p, &pool->last, sizeof pool->last);
		pool->last = p;
	}
	return memset(p + DT__UNIT, 0, bytes);
}

#define DT__NEW(pool, n, type) ((type *)dt__take(pool, (size_t)(n) * sizeof(type)))

static void dt__pool_open(dt__pool *pool, const dt_options *o, int measuring) {
	dt__pool p = {(uint8_t *)o->memory, o->memory_size, 0, o->alloc, o->release, o->alloc_user, NULL, measuring};
	*pool = p;
#ifndef DTRAIN_NO_MALLOC
	if (measuring) pool->base = NULL;
	if (!pool->alloc) { pool->alloc = dt__malloc; pool->release = dt__release; }
#endif
}

static void dt__pool_close(dt__pool pool) { // by value: its owner may live in it
	while (pool.last) {
		void *p = pool.last;
		memcpy(&pool.last, p, sizeof p);
		pool.release(p, pool.user);
	}
}

// ---- bytes, in any host's order

static uint32_t dt__read_be32(const uint8_t *p) {
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void dt__write_le(uint8_t *p, uint64_t v, int bytes) {
	for (; bytes > 0; bytes--, v >>= 8) *p++ = (uint8_t)(v & 255);
}

static uint64_t dt__read_le(const uint8_t *p, int bytes) {
	uint64_t v = 0;
	while (bytes > 0) v = v << 8 | p[--bytes];
	return v;
}
static uint32_t dt__float_bits(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }
static float dt__float_from(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }

#define DT__PIECE 256 // floats converted at a time

// CRC-32C (Castagnoli, reflected, as in RFC 3720), half a byte a step. Start with 0.
#if DT__X86
__attribute__((target("sse4.2"))) static uint32_t dt__crc_words(uint32_t crc, const uint8_t *p, size_t n) {
	uint32_t v;
	for (; n > 3; n -= 4, p += 4) { memcpy(&v, p, 4); crc = __builtin_ia32_crc32si(crc, v); }
	return crc;
}
#endif
static uint32_t dt__crc32c(uint32_t crc, const void *data, size_t n) {
	uint32_t table[16], i, k;
	const uint8_t *p = (const uint8_t *)data;
	crc = ~crc;
#if DT__X86
	if (n > 15 && __builtin_cpu_supports("sse4.2")) { crc = dt__crc_words(crc, p, n); p += n & ~(size_t)3; n &= 3; }
#endif
	DT__WHILE(i, 16, n) for (table[i] = i, k = 0; k < 4; k++) table[i] = table[i] >> 1 ^ (table[i] & 1) * 0x82f63b78;
	while (n--) {
		crc ^= *p++;
		crc = crc >> 4 ^ table[crc & 15]; crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

// ---- random bits: pure functions of (key, counter), so nothing needs saving

static uint64_t dt__mix(uint64_t x) { // SplitMix64's finaliser (Steele, Lea & Flood 2014)
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}
static uint64_t dt__random_key(uint64_t seed, uint64_t a) { return dt__mix(dt__mix(seed) ^ a); }
static uint64_t dt__random(uint64_t seed, uint64_t a, uint64_t b) { return dt__mix(dt__random_key(seed, a) + b); }
static double dt__uniform(uint64_t bits) { return (double)(bits >> 11) * (1.0 / 9007199254740992.0); } // [0, 1)
static double dt__normal(uint64_t bits) { // Box & Muller 1958
	double u = 1 - dt__uniform(bits), v = dt__uniform(dt__mix(bits));
	return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

// * any run, ? any byte; commas separate several globs.
static int dt__glob(const char *globs, const char *name) {
	while (globs && *(globs += strspn(globs, " ,"))) {
		const char *g = globs, *end = globs + strcspn(globs, ","), *s = name, *star = NULL, *back = NULL;
		while (*s) {
			if (g < end && *g == '*') { star = ++g; back = s; }
			else if (g < end && (*g == '?' || *g == *s)) { g++; s++; }
			else if (star) { g = star; s = ++back; }
			else break;
		}
		while (g < end && *g == '*') g++;
		if (!*s && g == end) return 1;
		globs = end;
	}
	return 0;
}
static int dt__equals(const char *text, size_t n, const char *word) { return n == strlen(word) && !memcmp(text, word, n); }

// ---- JSON: a strict pull reader (RFC 8259) of bytes without a terminator. The first offence stays in .error and every
// later call fails. Nesting is counted, never recursed.

typedef struct {
	const char *p, *end, *error;
} dt__json;

#define DT__JSON_DEPTH 64

static int dt__json_fail(dt__json *j, const char *what) { if (!j->error) j->error = what; return 0; }
static void dt__json_blank(dt__json *j) {
	while (!j->error && j->p < j->end && memchr(" \t\n\r", *j->p, 4)) j->p++;
}

// The next byte that is not blank; 0 at the end or after an error.
static char dt__json_peek(dt__json *j) { dt__json_blank(j); return j->error || j->p >= j->end ? (char)0 : *j->p; }
static int dt__json_want(dt__json *j, char c, const char *what) {
	if (dt__json_peek(j) != c) return dt__json_fail(j, what);
	j->p++;
	return 1;
}

static int dt__json_hex(dt__json *j, unsigned *out) { // \uXXXX
	static const char digits[] = "0123456789abcdefABCDEF";
	int i;
	for (i = 0, *out = 0, j->p += 2; i < 4; i++, j->p++) {
		const char *d = j->p < j->end ? (const char *)memchr(digits, *j->p, 22) : NULL;
		if (!d) return dt__json_fail(j, "invalid escape");
		*out = *out << 4 | (unsigned)(d - digits - (d - digits < 16 ? 0 : 6));
	}
	return 1;
}

// The length of valid UTF-8 at p (RFC 3629: no overlong forms, no surrogates), or 0.
static int dt__utf8(const uint8_t *p, dt__n left) {
	int n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0, i;
	if (n > left) return 0;
	for (i = 1; i < n; i++) if ((p[i] & 0xc0) != 0x80) return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f)) return 0;
	return (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f) ? 0 : n;
}

// The next character of a JSON string, escaped; ? for a byte that is no UTF-8. Returns what follows.
static const char *dt__put_json_character(dt__writer *w, const char *s) {
	int n = dt__utf8((const uint8_t *)s, 4); // the final zero continues nothing
	if (n == 0) { dt__put(w, '?'); return s + 1; }
	if (n == 1 && *s < ' ') { dt__print(w, "\\u%04x", (unsigned)*s); return s + 1; }
	if (*s == '"' || *s == '\\') dt__put(w, '\\');
	while (n-- > 0) dt__put(w, *s++);
	return s;
}
static void dt__put_json(dt__writer *w, const char *s) { while (*s) s = dt__put_json_character(w, s); }

// A string, unescaped. At most cap bytes are kept; *n counts all.
static int dt__json_string(dt__json *j, char *out, size_t cap, size_t *n) {
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	*n = 0;
	if (!dt__json_want(j, '"', "a string is expected")) return 0;
	while (j->p < j->end && *j->p != '"') {
		char bytes[4]; unsigned u, low;
		int count = 1, i;
		if ((uint8_t)*j->p < 0x20) return dt__json_fail(j, "control character in a string");
		if (*j->p != '\\') {
			if (!(count = dt__utf8((const uint8_t *)j->p, j->end - j->p))) return dt__json_fail(j, "invalid UTF-8");
			memcpy(bytes, j->p, (size_t)count);
			j->p += count;
		} else if (j->end - j->p >= 2 && j->p[1] == 'u') {
			if (!dt__json_hex(j, &u)) return 0;
			if (u >= 0xd800 && u < 0xdc00 && j->end - j->p >= 2 && j->p[0] == '\\' && j->p[1] == 'u') {
				if (!dt__json_hex(j, &low)) return 0;
				if (low >= 0xdc00 && low < 0xe000) u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
			}
			if (u >= 0xd800 && u < 0xe000) return dt__json_fail(j, "lone surrogate in a string");
			count = u < 0x80 ? 1 : u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
			for (i = count - 1; i > 0; i--, u >>= 6) bytes[i] = (char)(0x80 | (u & 0x3f));
			bytes[0] = (char)(count == 1 ? u : u | (0xf00u >> count & 0xf0u));
		} else {
			const char *k = j->end - j->p >= 2 ? (const char *)memchr(from, j->p[1], sizeof from - 1) : NULL;
			if (!k) return dt__json_fail(j, "invalid escape");
			bytes[0] = to[k - from]; j->p += 2;
		}
		for (i = 0; i < count; i++, ++*n) if (*n < cap) out[*n] = bytes[i];
	}
	return dt__json_want(j, '"', "a string does not end");
}

static int dt__json_key(dt__json *j, char *out, size_t cap, size_t *n) {
	return dt__json_string(j, out, cap, n) && dt__json_want(j, ':', "':' is expected");
}

static int dt__json_number(dt__json *j, double *out) {
	const char *p, *end; int good;
	dt__json_blank(j);
	p = j->p + (j->p < j->end && *j->p == '-');
	good = !j->error && dt__digit_at(p, j->end) && !(*p == '0' && dt__digit_at(p + 1, j->end));
	while (dt__digit_at(p, j->end)) p++;
	if (p < j->end && *p == '.' && !dt__digit_at(p + 1, j->end)) good = 0;
	*out = dt__parse_double(j->p, j->end, &end);
	if (!good || (end < j->end && (*end | 32) == 'e')) return dt__json_fail(j, "invalid number");
	j->p = end;
	return 1;
}

static int dt__json_uint(dt__json *j, uint64_t *out) { // 0 to 2^64 - 1 in plain digits
	char digits[24]; // more than 2^64 has
	const char *p; double any; int ok;
	dt__json_blank(j);
	p = j->p;
	if (!dt__json_number(j, &any)) return 0;
	dt__fill(digits, "%.*s", (int)DT__MIN(j->p - p, 23), p);
	*out = dt__whole(digits, UINT64_MAX, &ok);
	return ok || dt__json_fail(j, "a whole number below 2^64 is expected");
}

// Behind a bracket or a member: 1 if a member follows, 0 at the end (stepped over) or on an error.
static int dt__json_more(dt__json *j, char closing) {
	int first = !j->error && (j->p[-1] == '{' || j->p[-1] == '['); // no member ends so
	char c = dt__json_peek(j);
	if (j->error) return 0;
	if (c == closing) { j->p++; return 0; }
	if (!first) {
		if (!dt__json_want(j, ',', "',' or the end is expected")) return 0;
		if (dt__json_peek(j) == closing) return dt__json_fail(j, "comma before the end");
	}
	return 1;
}

static int dt__json_skip(dt__json *j) {
	char closing[DT__JSON_DEPTH];
	int depth = 0;
	do {
		const char *word; double number;
		size_t n; char c;
		if (depth && !dt__json_more(j, closing[depth - 1])) { depth--; continue; }
		if (depth && closing[depth - 1] == '}') dt__json_key(j, NULL, 0, &n);
		c = dt__json_peek(j);
		word = c == 't' ? "true" : c == 'f' ? "false" : "null";
		n = strlen(word);
		if (c == '{' || c == '[') {
			if (depth == DT__JSON_DEPTH) return dt__json_fail(j, "nested too deep");
			closing[depth++] = c == '{' ? '}' : ']';
			j->p++;
		} else if (c == '"') dt__json_string(j, NULL, 0, &n);
		else if (c == '-' || (c >= '0' && c <= '9')) dt__json_number(j, &number);
		else if ((size_t)(j->end - j->p) >= n && !memcmp(j->p, word, n)) j->p += n;
		else dt__json_fail(j, "a value is expected");
	} while (depth && !j->error);
	return !j->error;
}

static double dt__now(void) { // seconds, monotonic; 0 where there is no clock
#if DT__POSIX && defined(CLOCK_MONOTONIC)
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
	return 0;
#endif
}

// ---- files

#ifndef DTRAIN_NO_STDIO
// A file that takes path's place once complete. A failure leaves path as it was.
typedef struct {
	FILE *f;
	char temporary[1024];
	const char *path, *what;
} dt__new_file;

static int dt__new_file_fail(dt__new_file *n, dt_error *err, const char *doing) {
	int e = errno;
	if (n->f) { fclose(n->f); n->f = NULL; remove(n->temporary); }
	return dt__fail(err, DT_ERR_IO, "%s: %s \"%s\": %s", n->what, doing, n->path, strerror(e));
}

static int dt__new_file_open(dt__new_file *n, const char *what, const char *path, dt_error *err) {
	long process = 0;
	DT__CLEAR(n);
	n->path = path; n->what = what;
	if (!path || !*path) return dt__deny(err, "%s: the path is empty: name a file", what);
#if DT__POSIX
	struct stat s;
	if (!stat(path, &s) && !S_ISREG(s.st_mode)) return dt__fail(err, DT_ERR_IO, "%s: \"%s\" is no regular file: name another", what, path);
	process = (long)getpid();
#endif
	if (dt__fill(n->temporary, "%s.%ld.tmp", path, process) >= sizeof n->temporary)
		return dt__fail(err, DT_ERR_IO, "%s: the path \"%.40s...\" has %zu bytes: at most 1000 are taken", what, path, strlen(path));
	n->f = fopen(n->temporary, "wb");
	return n->f ? 0 : dt__new_file_fail(n, err, "cannot create a file beside");
}

// Can a file be made there? Asked before the work.
static int dt__new_file_try(const char *what, const char *path, dt_error *err) {
	dt__new_file n;
	int code = dt__new_file_open(&n, what, path, err);
	if (!code) dt__new_file_fail(&n, NULL, "");
	return code;
}

static int dt__new_file_close(dt__new_file *n, dt_error *err) {
	int bad = fflush(n->f) || ferror(n->f);
#if DT__POSIX
	bad = bad || (fsync(fileno(n->f)) && errno != EINVAL && errno != ENOTSUP);
#endif
	if (!bad) { bad = fclose(n->f); n->f = NULL; }
	if (bad || rename(n->temporary, n->path)) {
		dt__new_file_fail(n, err, "cannot write");
		remove(n->temporary);
		return DT_ERR_IO;
	}
#if DT__POSIX
	{ // the new name itself must reach the disk too
		char *slash = strrchr(n->temporary, '/');
		int fd;
		if (slash) slash[1] = 0;
		fd = open(slash ? n->temporary : ".", O_RDONLY);
		if (fd >= 0) { fsync(fd); close(fd); }
	}
#endif
	return 0;
}

typedef struct { uint8_t *data; size_t size; int mapped; } dt__file;

static void dt__file_free(dt__file *f) {
#if DT__POSIX
	if (f->mapped) munmap(f->data, f->size);
	else
#endif
	free(f->data);
	DT__CLEAR(f);
}

static int dt__stream_read(FILE *in, dt__file *out) { // to its end
	size_t cap = 0, n = 1;
	for (DT__CLEAR(out); n; out->size += n) {
		if (out->size == cap) {
			uint8_t *p = cap > SIZE_MAX / 4 ? NULL : (uint8_t *)realloc(out->data, cap += cap ? cap : 1 << 16);
			if (!p) return DT_ERR_MEMORY;
			out->data = p;
		}
		n = fread(out->data + out->size, 1, cap - out->size, in);
	}
	return ferror(in) ? DT_ERR_IO : 0;
}

#if DT__POSIX
// gzip reads the open file, whose name never meets the shell.
static int dt__gunzip(const char *what, const char *path, FILE *packed, dt__file *out, dt_error *err) {
	char command[64];
	int status, code, missing;
	FILE *in;
	dt__fill(command, "gzip -dc </dev/fd/%d 2>/dev/null", fileno(packed));
	if (!(in = popen(command, "r"))) return dt__fail(err, DT_ERR_IO, "%s: no gzip for \"%s\": %s", what, path, strerror(errno));
	code = dt__stream_read(in, out);
	status = pclose(in); // -1: unknown, where the program ignores SIGCHLD
	if (!code && status == 0) return 0;
	dt__file_free(out);
	missing = WIFEXITED(status) && WEXITSTATUS(status) == 127;
	return dt__fail(err, missing || status == -1 ? DT_ERR_IO : code ? code : DT_ERR_FORMAT, "%s: \"%s\"%s", what, path,
			missing ? " needs gzip, which is not here: unpack it yourself"
			: status == -1 ? ": how gzip ended is unknown, as SIGCHLD is ignored: unpack it yourself"
			: " cannot be unpacked: gzip finds it damaged or cut");
}
#endif

// Map a file, or else read it; unpack it if its name ends in .gz.
static int dt__file_read(const char *what, const char *path, dt__file *out, dt_error *err) {
	FILE *f = fopen(path, "rb");
	int code = 0;
	DT__CLEAR(out);
	if (!f) return dt__fail(err, DT_ERR_IO, "%s: cannot open \"%s\": %s", what, path, strerror(errno));
#if DT__POSIX
	struct stat s;
	if (dt__glob("?*.gz", path)) code = dt__gunzip(what, path, f, out, err);
	else if (!fstat(fileno(f), &s)) {
		if (S_ISCHR(s.st_mode) || S_ISBLK(s.st_mode)) code = dt__fail(err, DT_ERR_IO, "%s: \"%s\" is a device, no file", what, path);
		if (S_ISREG(s.st_mode) && s.st_size > 0 && (uint64_t)s.st_size < SIZE_MAX / 2) {
			void *p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fileno(f), 0);
			if (p != MAP_FAILED) { out->data = (uint8_t *)p; out->size = (size_t)s.st_size; out->mapped = 1; }
		}
	}
#endif
	errno = 0;
	if (!code && !out->data && (code = dt__stream_read(f, out))) {
		dt__fail(err, code, "%s: cannot read \"%s\": %s", what, path, code == DT_ERR_MEMORY ? "out of memory" : strerror(errno));
		dt__file_free(out);
	}
	fclose(f);
	return code;
}
#endif

// ---- threads: atomics, cores, and a barrier that spins briefly, then sleeps

#ifndef DTRAIN_NO_THREADS
#define DT__LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define DT__STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define DT__ADD(p, v) __atomic_add_fetch(p, v, __ATOMIC_ACQ_REL)
#define DT__SWAP(p, v) __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)
#if DT__X86
#define DT__PAUSE() __asm__ volatile("pause")
#else
#define DT__PAUSE() ((void)0)
#endif

#ifndef DTRAIN_NO_STDIO
static int dt__read_numbers(const char *path, long *a, long *b) {
	FILE *f = fopen(path, "r");
	int n = f ? fscanf(f, "%ld %ld", a, b) : 0;
	if (f) fclose(f);
	return n;
}
#endif

// The cores this process may run on, as bits: how many; 0: unknown.
static int dt__core_mask(uint64_t mask[16]) {
	int i, set = 0;
	memset(mask, 0, 16 * sizeof *mask);
#if defined(SYS_sched_getaffinity) && defined(_DEFAULT_SOURCE)
	if (syscall(SYS_sched_getaffinity, 0, 16 * sizeof *mask, mask) < 1) return 0;
#endif
	DT__FOR(i, 1024) set += (int)(mask[i / 64] >> i % 64 & 1);
	return set;
}

// Cores of this process, and its cgroup's quota (version 2 or 1) rounded up.
static int dt__cores(void) {
	uint64_t mask[16];
	long n = dt__core_mask(mask), quota = 0, period = 0;
	if (!n) n = sysconf(_SC_NPROCESSORS_ONLN);
#ifndef DTRAIN_NO_STDIO
	if (dt__read_numbers("/sys/fs/cgroup/cpu.max", &quota, &period) < 2) { // the others hold one number each
		dt__read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota, &period);
		dt__read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &quota);
	}
#endif
	if (quota > 0 && period > 0) n = DT__MIN(n, (quota - 1) / period + 1);
	return n < 1 ? 1 : n > 1024 ? 1024 : (int)n;
}

// Who waits spins for 0.5 ms, longer than waking takes (50 us), then sleeps. Where threads outnumber cores nobody spins.
#define DT__SPINS 20000
typedef struct {
	int spins;
	int n, arrived, round, broken; // atomic; broken: 1 + the rank that has left
	pthread_mutex_t lock;
	pthread_cond_t wake;
} dt__meeting;

static int dt__meeting_open(dt__meeting *b, int n) {
	DT__CLEAR(b);
	b->n = n; b->spins = n > dt__cores() ? 0 : DT__SPINS;
	if (pthread_mutex_init(&b->lock, NULL)) return DT_ERR_MEMORY;
	if (!pthread_cond_init(&b->wake, NULL)) return 0;
	pthread_mutex_destroy(&b->lock);
	return DT_ERR_MEMORY;
}

static void dt__meeting_close(dt__meeting *b) { pthread_mutex_destroy(&b->lock); pthread_cond_destroy(&b->wake); }
static int dt__meet(dt__meeting *b) { // for all; 0, or 1 + the rank that has left for good
	int round = DT__LOAD(&b->round), spin;
	if (DT__LOAD(&b->n) == 1) return 0;
	if (DT__ADD(&b->arrived, 1) == DT__LOAD(&b->n)) {
		DT__STORE(&b->arrived, 0);
		pthread_mutex_lock(&b->lock);
		DT__STORE(&b->round, round + 1);
		pthread_cond_broadcast(&b->wake); pthread_mutex_unlock(&b->lock);
		return 0;
	}
	DT__WHILE(spin, b->spins, DT__LOAD(&b->round) == round) DT__PAUSE();
	if (DT__LOAD(&b->round) == round) {
		pthread_mutex_lock(&b->lock);
		while (DT__LOAD(&b->round) == round && !DT__LOAD(&b->broken)) pthread_cond_wait(&b->wake, &b->lock);
		pthread_mutex_unlock(&b->lock);
	}
	return DT__LOAD(&b->round) == round ? DT__LOAD(&b->broken) : 0;
}

static void dt__meeting_leave(dt__meeting *b, int rank) {
	pthread_mutex_lock(&b->lock);
	if (!b->broken) DT__STORE(&b->broken, rank + 1);
	pthread_cond_broadcast(&b->wake); pthread_mutex_unlock(&b->lock);
}
#else
#define DT__LOAD(p) (*(p))
#define DT__STORE(p, v) (*(p) = (v))
#define DT__ADD(p, v) (*(p) += (v))
static int dt__cores(void) { return 1; }
#endif

// ========
// >>kernels - matrix multiply, convolution's inner loop, vector loops; chosen for the CPU at run time
//
// What: one micro-kernel with free strides on A, a row stride on B and a two-level k: matrix product and direct channels-last
//   convolution are the same code. Around it, loops over rows of floats, and Winograd's transforms, whose products it makes too.
// Uses: >>base.
// Promise: every instruction set computes the same sums up to rounding. Nothing is read beyond an operand unless its caller
//   says that the memory behind it is real.
// How: vector loops are functions on GCC's vector types, inlined into a wrapper for AVX2: plain `cc -O2` needs no -march.

#define DT__W (DT__X86 ? 8 : DT__SIMD ? 4 : 1) // floats in a vector: AVX2's, or two of SSE2

#if DT__SIMD
#define DT__VECTOR(type, bytes) type __attribute__((vector_size(bytes), aligned(4), may_alias))
typedef DT__VECTOR(float, DT__W * 4) dt__v;
typedef DT__VECTOR(int32_t, DT__W * 4) dt__vi;
typedef DT__VECTOR(uint32_t, DT__W * 4) dt__vu;
typedef DT__VECTOR(float, 16) dt__v4;
typedef DT__VECTOR(int32_t, 16) dt__v4i;
#if DT__X86
typedef DT__VECTOR(float, 32) dt__v8;
typedef DT__VECTOR(int32_t, 32) dt__v8i;
typedef DT__VECTOR(float, 64) dt__v16;
typedef DT__VECTOR(int32_t, 64) dt__v16i;
#endif
#define DT__ALIGNED __attribute__((aligned(64)))
#define DT__PREFETCH(p) __builtin_prefetch(p, 1)
#define DT__HIDE(x) __asm__("" : "+r"(x))
#define DT__BITS(f) ((dt__vi)(f))
#define DT__FLOATS(i) ((dt__v)(i))
#define DT__TEST(comparison) ((dt__vi)(comparison)) // lanes of all ones or zero
#else
typedef float dt__v;
typedef int32_t dt__vi;
typedef uint32_t dt__vu;
#define DT__ALIGNED
#define DT__PREFETCH(p) (void)0
#define DT__HIDE(x) (void)0
#define DT__BITS(f) (int32_t)dt__float_bits(f)
#define DT__FLOATS(i) dt__float_from((uint32_t)(i))
#define DT__TEST(comparison) (-(int32_t)(comparison))
#endif
#define DT__SELECT_BITS(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
#define DT__SELECT(mask, a, b) DT__FLOATS(DT__SELECT_BITS(mask, DT__BITS(a), DT__BITS(b)))
typedef float dt__v1; typedef int32_t dt__v1i;

// ---- the micro-kernel: C [rows, columns] = or += bias (NULL: 0) + sum over k2 and k of A(row, k2, k) * B(k2, k, columns), and
// perhaps relu of that, for n tiles; next, next_c: floats from one's A and C to the next one's

// As the micro-kernel walks it: .step along its own rows (A) or columns (B, always 1), .k and .k2 along
// the sums. Tiles of a packed operand lie behind each other, each [k2][k][width].
typedef struct {
	const float *p;
	dt__n step, k, k2;
	int packed;
	const float *edge; // not packed: the last, partial tile, packed; NULL: reading past the end is safe
} dt__operand;

#define DT__MICRO_ARGS \
	(dt__n n, dt__n next, dt__n next_c, dt__n k2, dt__n k, \
	const dt__operand *a, const dt__operand *b, float *c, dt__n ci, int how, const float *bias)
typedef void dt__micro DT__MICRO_ARGS;

enum { DT__ADDS = 1, DT__RECTIFIES = 2 }; // how

#define DT__R4(X) X(0) X(1) X(2) X(3)
#define DT__R6(X) DT__R4(X) X(4) X(5)
#define DT__R8(X) DT__R6(X) X(6) X(7)
#define DT__R9(X) DT__R8(X) X(8)
#define DT__BEGIN(r) V c##r = first, d##r = second;
#define DT__FETCH(r) DT__PREFETCH(c + r * ci); if (two) DT__PREFETCH(c + r * ci + sizeof(V) / 4);
#define DT__STEP(r) { float s = (r < 4 ? p : r < 8 ? p4 : p4 + ai4)[r % 4 * ai]; c##r += s * b0; if (two) d##r += s * b1; }
#define DT__KEEP(r) { V *o = (V *)(c + r * ci); if (how) { DT__KEEP_AT(o, c##r) if (two) DT__KEEP_AT(o + 1, d##r) } else { *o = c##r; if (two) o[1] = d##r; } }
#define DT__KEEP_AT(o, v) { if (how & DT__ADDS) v += *(o); if (how & DT__RECTIFIES) DT__RELU_OF(v) *(o) = v; }
#define DT__RELU_OF(v) { I no = v <= 0, bits; no |= -no; memcpy(&bits, &v, sizeof v); bits &= ~no; memcpy(&v, &bits, sizeof v); } // keeps NaN

#define DT__MICRO_OF(name, target, vector, rows, N) \
	target static void name DT__MICRO_ARGS { \
		typedef vector V; \
		typedef vector##i I; \
		const int two = N == 2; \
		const float *from = a->p; \
		dt__n ai = a->step, ak = a->k, bk = b->k, ai4 = 4 * ai, i, j; \
		V first = {0}, second = {0}; \
		if (bias) { first = *(const V *)bias; if (two) second = ((const V *)bias)[1]; } \
		DT__HIDE(ai4); \
		for (; n > 0; n--, from += next, c += next_c) { \
			DT__R##rows(DT__BEGIN) \
			if (how & DT__ADDS && k > 64) { DT__R##rows(DT__FETCH) } \
			DT__FOR(j, k2) { \
				const float *p = from + j * a->k2, *p4 = p + ai4, *q = b->p + j * b->k2; \
				for (i = k; i > 0; i--, p += ak, p4 += ak, q += bk) { \
					V b0 = *(const V *)q, b1 = two ? ((const V *)q)[1] : b0; \
					DT__R##rows(DT__STEP) \
				} \
			} \
			DT__R##rows(DT__KEEP) \
		} \
	}

#define DT__MICRO(isa, target, vector, rows) \
	DT__MICRO_OF(dt__micro_##isa##_##rows##x2, target, vector, rows, 2) \
	DT__MICRO_OF(dt__micro_##isa##_##rows##x1, target, vector, rows, 1)

#if DT__X86
#define DT__AVX2 __attribute__((target("avx2,fma")))
#define DT__AVX512 __attribute__((target("avx512f")))
DT__MICRO(avx512, DT__AVX512, dt__v16, 9)
DT__MICRO(avx512, DT__AVX512, dt__v16, 8)
DT__MICRO(avx512, DT__AVX512, dt__v16, 4)
DT__MICRO(avx2, DT__AVX2, dt__v8, 6)
DT__MICRO(avx2, DT__AVX2, dt__v8, 4)
DT__MICRO(sse2, , dt__v4, 6)
#elif DT__SIMD && defined(__aarch64__)
DT__MICRO(neon, , dt__v4, 9)
DT__MICRO(neon, , dt__v4, 8)
#endif
#if DT__SIMD
DT__MICRO(vector, , dt__v4, 4)
#endif
DT__MICRO(plain, , dt__v1, 4)

#define DT__MAX_COLUMNS 32
#define DT__MAX_TILE (9 * DT__MAX_COLUMNS)

typedef struct {
	int rows;
	dt__micro *full, *half; // all the columns of a panel, or half of them
} dt__tile;

// ---- vector loops

static void dt__zero(dt__n n, float *x) { if (n > 0) memset(x, 0, 4 * (size_t)n); }

#define DT__AT(p) (*(const dt__v *)(p))
#define DT__EACH(n) for (dt__n i = 0; i < (n); i += DT__W) // in its body, for rows p of n:
#define DT__GET(v, p) dt__get(&v, (p) + i, n - i)
#define DT__READ(v, p) dt__v v; DT__GET(v, p) // declares v
#define DT__SET(v, p) dt__set(&v, (p) + i, n - i)
#define DT__SET_OR_ADD(v, p, add) dt__set_or_add(&v, (p) + i, n - i, add)

// Up to DT__W floats; other lanes are 0. Vectors go by address: by value they need an ABI.
DT__INLINE void dt__get(dt__v *v, const float *p, dt__n n) {
	if (n >= DT__W) { *v = DT__AT(p); return; }
	DT__CLEAR(v);
	memcpy(v, p, 4 * (size_t)n);
}
DT__INLINE void dt__set(const dt__v *v, float *p, dt__n n) {
	if (n >= DT__W) *(dt__v *)p = *v;
	else memcpy(p, v, 4 * (size_t)n);
}
DT__INLINE void dt__set_or_add(dt__v *v, float *p, dt__n n, int add) {
	dt__v old;
	if (add) { dt__get(&old, p, n); *v += old; }
	dt__set(v, p, n);
}
DT__INLINE float dt__lanes_sum(const dt__v *v) {
	float a[DT__W], s = 0;
	int i;
	memcpy(a, v, sizeof a);
	DT__FOR(i, DT__W) s += a[i];
	return s;
}
// v where the comparison holds, else 0
#define DT__WHERE(comparison, v) DT__FLOATS(DT__BITS(v) & DT__TEST(comparison))
// v, or relu(v) if relu is 1; keeps NaN
#define DT__RELU_IF(relu, v) DT__FLOATS(DT__BITS(v) & ~(DT__TEST((v) <= 0) & -(relu)))

// In front of a body: dt__<name>_base, which is inlined into the wrapper of another instruction set. give: return, if any.
#if DT__X86
#define DT__ON_X86(...) __VA_ARGS__
#else
#define DT__ON_X86(...)
#endif
#define DT__LOOP_OF(type, give, name, parameters, arguments) \
	typedef type dt__##name##_loop parameters; \
	DT__INLINE type dt__##name##_base parameters; \
	DT__ON_X86(DT__AVX2 static type dt__##name##_avx2 parameters { give dt__##name##_base arguments; }) \
	DT__INLINE type dt__##name##_base parameters
#define DT__LOOP(name, parameters, arguments) DT__LOOP_OF(void, , name, parameters, arguments)

#if defined(__GNUC__) && FLT_EVAL_METHOD != 0
#define DT__ROUND(v) __asm__ volatile("" : "+m"(v)) // to a float, where registers hold more (x87)
#else
#define DT__ROUND(v) (void)0
#endif

// e^x for -87.3 <= x <= 88.3 (clamped; NaN stays). Cephes' polynomial of degree 6, relative error below 1e-7.
DT__INLINE void dt__v_exp(dt__v *inout) {
	dt__v x = *inout, t, n, r, p, low = {0}, high = low + 88.37626f;
	low -= 87.33654f;
	x = DT__SELECT(DT__TEST(x > high), high, x); x = DT__SELECT(DT__TEST(x < low), low, x);
	t = x * 1.44269504f + 12582912.0f; // 1.5 * 2^23: the sum's low bits are the rounded integer
	DT__ROUND(t);
	n = t - 12582912.0f; r = x - n * 0.693359375f + n * 2.12194440e-4f;
	p = 1.9875691500e-4f * r + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f; p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f; p = p * (r * r) + r + 1.0f;
	*inout = DT__SELECT(DT__TEST(x != x), x, DT__FLOATS((dt__vi)((dt__vu)DT__BITS(p) + ((dt__vu)DT__BITS(t) << 23))));
}

// tanh by Eigen's rational approximation: odd degree 13 over even degree 6, on [-7.9, 7.9].
DT__INLINE void dt__v_tanh(dt__v *inout) {
	dt__v x = *inout, x2 = x * x, p, q, one = {0}, limit = one + 7.90531110763549805f;
	one += 1.0f; p = x2 * -2.76076847742355e-16f + 2.00018790482477e-13f;
	p = p * x2 + -8.60467152213735e-11f; p = p * x2 + 5.12229709037114e-08f;
	p = p * x2 + 1.48572235717979e-05f; p = p * x2 + 6.37261928875436e-04f;
	p = p * x2 + 4.89352455891786e-03f;
	q = x2 * 1.19825839466702e-06f + 1.18534705686654e-04f;
	q = q * x2 + 2.26843463243900e-03f; q = q * x2 + 4.89352518554385e-03f;
	*inout = DT__SELECT(DT__TEST(x >= limit), one, DT__SELECT(DT__TEST(x <= -limit), -one, x * p / q));
}

DT__INLINE void dt__v_sigmoid(dt__v *inout) {
	dt__v e = -*inout;
	dt__v_exp(&e);
	*inout = 1.0f / (1.0f + e);
}

// Phi(x), the normal distribution. Abramowitz & Stegun 7.1.26, absolute error below 1e-7.
DT__INLINE void dt__v_phi(dt__v *inout) {
	dt__v x = *inout, a = DT__FLOATS(DT__BITS(x) & 0x7fffffff) * 0.70710678f, e = -a * a, t, half;
	dt__v_exp(&e);
	t = 1.0f / (1.0f + 0.3275911f * a);
	half = 0.5f * e * t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
	*inout = DT__SELECT(DT__TEST(x > 0), 1.0f - half, half);
}

// sqrt without a builtin: the well-known bit trick, two Newton steps, one correction.
DT__INLINE void dt__v_sqrt(dt__v *inout) {
	dt__v v = *inout, h = v * 0.5f, y = DT__FLOATS(0x5f375a86 - (DT__BITS(v) >> 1)), s;
	y = y * (1.5f - h * y * y); y = y * (1.5f - h * y * y); s = v * y;
	*inout = DT__SELECT(DT__TEST(v > FLT_MAX), v, s + 0.5f * y * (v - s * s));
}

enum { DT__RELU, DT__LEAKY_RELU, DT__GELU, DT__GELU_TANH, DT__SILU, DT__TANH, DT__SIGMOID };

#define DT__GELU_C 0.7978845608f // sqrt(2 / pi)

DT__LOOP(activate, (int kind, dt__n n, const float *x, float *y, float slope), (kind, n, x, y, slope)) {
	DT__EACH(n) {
		DT__READ(v, x);
		dt__v t = v;
		switch (kind) {
		case DT__RELU: t = DT__RELU_IF(1, v); break;
		case DT__LEAKY_RELU: t = DT__SELECT(DT__TEST(v <= 0), v * slope, v); break;
		case DT__GELU: dt__v_phi(&t); t *= v; break;
		case DT__GELU_TANH: t = DT__GELU_C * (v + 0.044715f * v * v * v); dt__v_tanh(&t); t = 0.5f * v * (1.0f + t); break;
		case DT__SILU: dt__v_sigmoid(&t); t *= v; break;
		case DT__TANH: dt__v_tanh(&t); break;
		default: dt__v_sigmoid(&t); break;
		}
		DT__SET(t, y);
	}
}

// dx = or += dy * f'; reads y for relu, leaky relu, tanh and sigmoid, x for the others.
DT__LOOP(activate_back, (int kind, dt__n n, const float *x, const float *y, const float *dy, float *dx, int add, float slope), (kind, n, x, y, dy, dx, add, slope)) {
	int from_x = kind == DT__GELU || kind == DT__GELU_TANH || kind == DT__SILU;
	DT__EACH(n) {
		DT__READ(v, from_x ? x : y);
		DT__READ(g, dy);
		dt__v t = v, e;
		switch (kind) {
		case DT__RELU: g = DT__WHERE(v > 0, g); break;
		case DT__LEAKY_RELU: g = DT__SELECT(DT__TEST(v > 0), g, g * slope); break;
		case DT__GELU: dt__v_phi(&t); e = -0.5f * v * v; dt__v_exp(&e); g *= t + v * e * 0.39894228f; break;
		case DT__GELU_TANH:
			t = DT__GELU_C * (v + 0.044715f * v * v * v);
			dt__v_tanh(&t);
			g *= 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * DT__GELU_C * (1.0f + 0.134145f * v * v);
			break;
		case DT__SILU: dt__v_sigmoid(&t); g *= t * (1.0f + v * (1.0f - t)); break;
		case DT__TANH: g *= 1.0f - v * v; break;
		default: g *= v * (1.0f - v); break;
		}
		DT__SET_OR_ADD(g, dx, add);
	}
}

// y = or += a * b
DT__LOOP(multiply, (dt__n n, const float *a, const float *b, float *y, int add), (n, a, b, y, add)) {
	DT__EACH(n) {
		DT__READ(v, a);
		DT__READ(w, b);
		v *= w;
		DT__SET_OR_ADD(v, y, add);
	}
}

// Row of a max pool: y [n_out, c] from windows [rows, size] of x [rows, n_in, c]; a window starts at o * stride - pad and is
// cut to what lies inside. NaN wins. which (NULL: nobody asks): the place in the cut window, row by row, that y came from.
typedef struct { dt__n n_out, n_in, c, rows, size, stride, pad; int relu; } dt__pool_row;
#define DT__WINDOWS(w)  /* for channels i of n of output o: the first place of its window on a row of x, and how many */ \
	for (dt__n n = w->c, o = 0, first, wide, i; o < w->n_out; o++) \
		for (first = DT__MAX(o * w->stride - w->pad, 0), wide = DT__MIN(o * w->stride - w->pad + w->size, w->n_in) - first, i = 0; i < n; i += DT__W)
#define DT__LARGER(at, k) \
	v = DT__AT(at); \
	hit = DT__TEST(v > best) | DT__TEST(v != v); \
	best = DT__SELECT(hit, v, best); \
	place = (place & ~hit) | ((int32_t)(k) & hit);
DT__LOOP(maximum, (const dt__pool_row *w, const float *x, float *y, int32_t *which), (w, x, y, which)) {
	DT__WINDOWS(w) {
		const float *p = x + first * n + i, *q = p + w->n_in * n;
		dt__n k, ky, kx;
		dt__vi place = {0}, hit;
		dt__v best, v;
		dt__get(&best, p, n - i);
		if (w->rows == 2 && wide == 2 && n - i >= DT__W) { // the usual one, without loops
			DT__LARGER(p + n, 1) DT__LARGER(q, 2) DT__LARGER(q + n, 3)
		} else {
			for (k = ky = 0; ky < w->rows; ky++)
				for (kx = 0; kx < wide; kx++, k++) {
					float edge[DT__W];
					dt__get(&v, p + (ky * w->n_in + kx) * n, n - i);
					dt__set(&v, edge, DT__W);
					DT__LARGER(edge, k)
				}
		}
		best = DT__RELU_IF(w->relu, best);
		DT__SET(best, y + o * n);
		if (which) { v = DT__FLOATS(place); DT__SET(v, (float *)(void *)which + o * n); }
	}
}

// Its backward: dx = or += dy at the places in which, and 0 at the others.
#define DT__TAKE(at, k, n) { v = DT__WHERE(place == (int32_t)(k), g); dt__set_or_add(&v, at, n, add); }
DT__LOOP(maximum_back, (const dt__pool_row *w, const int32_t *which, const float *dy, float *dx, int add), (w, which, dy, dx, add)) {
	DT__WINDOWS(w) {
		float *p = dx + first * n + i, *q = p + w->n_in * n;
		dt__n k, ky, kx;
		DT__READ(v, (const float *)(const void *)which + o * n);
		DT__READ(g, dy + o * n);
		dt__vi place = DT__BITS(v);
		if (w->rows == 2 && wide == 2 && n - i >= DT__W) {
			DT__TAKE(p, 0, DT__W) DT__TAKE(p + n, 1, DT__W) DT__TAKE(q, 2, DT__W) DT__TAKE(q + n, 3, DT__W)
		} else {
			for (k = ky = 0; ky < w->rows; ky++)
				for (kx = 0; kx < wide; kx++, k++) DT__TAKE(p + (ky * w->n_in + kx) * n, k, n - i)
		}
	}
}

DT__LOOP_OF(float, return, dot, (dt__n n, const float *a, const float *b), (n, a, b)) {
	dt__v s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
	dt__n i = 0;
#define DT__PRODUCT(r) s##r += DT__AT(a + i + r * DT__W) * DT__AT(b + i + r * DT__W);
	for (; i + 4 * DT__W <= n; i += 4 * DT__W) { DT__R4(DT__PRODUCT) }
	for (; i < n; i += DT__W) {
		DT__READ(v, a);
		DT__READ(w, b);
		s0 += v * w;
	}
	s0 += s1 + (s2 + s3);
	return dt__lanes_sum(&s0);
}

DT__INLINE float dt__row_sum(dt__n n, const float *x) {
	dt__v s = {0};
	DT__EACH(n) { DT__READ(v, x); s += v; }
	return dt__lanes_sum(&s);
}

// Rows [r, r1), counted in k, of [rows, n] that stay in the first cache with their like, and columns from i on, whose sums stay
// in registers; at most 256 rows, so that those lose little.
#define DT__PATCHES(rows, n) \
	for (dt__n r = 0, r1, i, k; r < rows; r = r1) \
		for (r1 = DT__MIN(r + DT__MIN(4096 / DT__MIN(DT__MAX(n, 1), 512), 256), rows), i = 0; i < n; i += DT__W)

// y = fa * a + fb * b + offset, perhaps relu; b may be NULL
DT__LOOP(linear, (dt__n n, float fa, const float *a, float fb, const float *b, float offset, int relu, float *y), (n, fa, a, fb, b, offset, relu, y)) {
	DT__EACH(n) {
		DT__READ(v, a);
		v = fa * v + offset;
		if (b) { DT__READ(w, b); v += fb * w; }
		v = DT__RELU_IF(relu, v);
		DT__SET(v, y);
	}
}

// s1[column] = or += sum of g, s2 of g * (x - shift), where g is dy, or x - shift if dy is NULL; s2 NULL: sums of dy alone
DT__LOOP(column_moments, (dt__n rows, dt__n n, const float *x, const float *shift, const float *dy, float *s1, float *s2, int add), (rows, n, x, shift, dy, s1, s2, add)) {
	if (!add) { dt__zero(n, s1); if (s2) dt__zero(n, s2); }
	DT__PATCHES(rows, n) {
		dt__v a1 = {0}, a2 = a1, b1 = a1, b2 = a1, m = a1, v = a1, w = a1, g, h;
		if (s2) DT__GET(m, shift);
		for (k = r; n - i >= DT__W && k + 2 <= r1; k += 2) { // two sums each, since one would wait for itself
			dt__n at = k * n + i;
			if (s2) { v = DT__AT(x + at) - m; w = DT__AT(x + at + n) - m; }
			g = v; h = w;
			if (dy) { g = DT__AT(dy + at); h = DT__AT(dy + at + n); }
			a1 += g; a2 += g * v;
			b1 += h; b2 += h * w;
		}
		for (; k < r1; k++) {
			if (s2) { DT__GET(v, x + k * n); v -= m; }
			g = v;
			if (dy) DT__GET(g, dy + k * n);
			a1 += g; a2 += g * v;
		}
		a1 += b1; a2 += b2;
		DT__SET_OR_ADD(a1, s1, 1);
		if (s2) DT__SET_OR_ADD(a2, s2, 1);
	}
}

// y[row] = or += x[row] * a (NULL: 1) + z[row] * b (z NULL: none) + c (NULL: 0), per column, perhaps relu
DT__LOOP(columns_affine, (dt__n rows, dt__n n, const float *x, const float *a, const float *z, const float *b, const float *c, int relu, float *y, int add), (rows, n, x, a, z, b, c, relu, y, add)) {
	DT__PATCHES(rows, n) {
		dt__v va = {0}, vb = va, vc = va;
		if (a) DT__GET(va, a); else va += 1.0f;
		if (z) DT__GET(vb, b);
		if (c) DT__GET(vc, c);
		for (k = r; k < r1; k++) {
			DT__READ(v, x + k * n);
			v = v * va + vc;
			if (z) { DT__READ(w, z + k * n); v += w * vb; }
			v = DT__RELU_IF(relu, v);
			DT__SET_OR_ADD(v, y + k * n, add);
		}
	}
}

// Returns log(sum(exp(x - top))), and top, the largest x. y may be x.
DT__LOOP_OF(float, return, softmax, (dt__n n, const float *x, float *y, float *top_out), (n, x, y, top_out)) {
	float top = x[0], sum = 0;
	for (dt__n i = 1; i < n; i++) if (x[i] > top) top = x[i];
	DT__EACH(n) {
		DT__READ(v, x);
		v -= top;
		dt__v_exp(&v);
		DT__SET(v, y);
	}
	sum = dt__row_sum(n, y);
	dt__linear_base(n, 1 / sum, y, 0, NULL, 0, 0, y);
	*top_out = top;
	return logf(sum);
}

// y = (x - mean) * inv * weight + bias; bias may be NULL.
DT__LOOP(layernorm, (dt__n n, const float *x, const float *weight, const float *bias, float epsilon, float *y, float *mean_inv), (n, x, weight, bias, epsilon, y, mean_inv)) {
	float mean = dt__row_sum(n, x) / (float)n, inv;
	dt__linear_base(n, 1, x, 0, NULL, -mean, 0, y);
	inv = 1 / sqrtf(dt__dot_base(n, y, y) / (float)n + epsilon);
	mean_inv[0] = mean; mean_inv[1] = inv;
	DT__EACH(n) {
		DT__READ(v, y);
		DT__READ(w, weight);
		v = v * inv * w;
		if (bias) { DT__GET(w, bias); v += w; }
		DT__SET(v, y);
	}
}

// Its backward: dx = or += …, dweight += dy * xhat, dbias += dy; each of the three may be NULL.
DT__LOOP(layernorm_back, (dt__n n, const float *x, const float *weight, const float *mean_inv, const float *dy, float *dx, int add, float *dweight, float *dbias), (n, x, weight, mean_inv, dy, dx, add, dweight, dbias)) {
	dt__v s1 = {0}, s2 = {0}, v, g, w;
	float mean = mean_inv[0], inv = mean_inv[1], m1, m2;
	DT__EACH(n) {
		DT__GET(v, x);
		v = (v - mean) * inv;
		DT__GET(g, dy);
		if (dweight) { DT__GET(w, dweight); w += g * v; DT__SET(w, dweight); }
		if (dbias) { w = g; DT__SET_OR_ADD(w, dbias, 1); }
		DT__GET(w, weight); // lanes beyond n: weight and so g are 0
		g *= w;
		s1 += g; s2 += g * v;
	}
	if (!dx) return;
	m1 = dt__lanes_sum(&s1) / (float)n; m2 = dt__lanes_sum(&s2) / (float)n;
	DT__EACH(n) {
		DT__GET(v, x);
		v = (v - mean) * inv;
		DT__GET(g, dy);
		DT__GET(w, weight);
		g = (g * w - m1 - v * m2) * inv;
		DT__SET_OR_ADD(g, dx, add);
	}
}

// y = or += x * mask * scale; dropped is what hashes (key, index; Chris Wellons' lowbias32) below threshold
DT__LOOP(dropout, (dt__n n, uint64_t key, uint32_t threshold, float scale, const float *x, float *y, int add), (n, key, threshold, scale, x, y, add)) {
	uint32_t lane[DT__W], k1 = (uint32_t)key, k2 = (uint32_t)(key >> 32);
	dt__vu index;
	for (dt__n i = 0; i < DT__W; i++) lane[i] = (uint32_t)i * 0x9e3779b9u + k1;
	memcpy(&index, lane, sizeof index);
	DT__EACH(n) {
		dt__vu h = index;
		h ^= h >> 16; h *= 0x7feb352du;
		h ^= h >> 15; h ^= k2; h *= 0x846ca68bu;
		h ^= h >> 16;
		index += (uint32_t)DT__W * 0x9e3779b9u;
		DT__READ(v, x);
		v = DT__WHERE((dt__vi)(h >> 1) >= (int32_t)(threshold >> 1), v * scale);
		DT__SET_OR_ADD(v, y, add);
	}
}

// 0 for what is below 2^(exponent - 127): where gradients stay 0, moments fade to denormals, a hundred times slower on many
// CPUs. Squares keep all that is normal.
#define DT__NOT_BELOW(exponent, v) DT__WHERE((DT__BITS(v) & 0x7f800000) >= ((exponent) << 23), v)

// w -= rate * step; g is scaled first, weight decay added; divided by the root of its mean square, kept in s (RMSprop; NULL: not);
// momentum kept in v (NULL: none).
DT__LOOP(sgd, (dt__n n, float *w, const float *g, float *v, float *s, float scale, float rate, float momentum, float decay, int nesterov, float alpha, float epsilon), (n, w, g, v, s, scale, rate, momentum, decay, nesterov, alpha, epsilon)) {
	DT__EACH(n) {
		DT__READ(p, w);
		DT__READ(d, g);
		d = d * scale + decay * p;
		if (s) {
			DT__READ(q, s);
			q = alpha * q + (1.0f - alpha) * d * d; q = DT__NOT_BELOW(1, q);
			DT__SET(q, s);
			dt__v_sqrt(&q);
			d = d / (q + epsilon);
		}
		if (v) {
			DT__READ(m, v);
			m = momentum * m + d; m = DT__NOT_BELOW(15, m);
			DT__SET(m, v);
			if (nesterov) d += momentum * m; else d = m;
		}
		p -= rate * d;
		DT__SET(p, w);
	}
}

typedef struct { float scale, rate, beta2, rest1, rest2, epsilon, decay, shrink, root2; } dt__adam_numbers;

// rest: 1 - beta; shrink: 1 - rate * decoupled decay; rate: divided by 1 - beta1^t; root2: 1 / sqrt(1 - beta2^t)
#define DT__ADAM_ARGS (dt__n n, float *w, const float *g, float *m, float *v, const dt__adam_numbers *a)
typedef void dt__adam_loop DT__ADAM_ARGS;
#define DT__ADAM(READ, SET, ROOT) { \
		dt__v root; \
		READ(p, w); \
		READ(d, g); \
		READ(m1, m); \
		READ(m2, v); \
		d = d * a->scale + a->decay * p; \
		m1 += a->rest1 * (d - m1); \
		m2 = a->beta2 * m2 + a->rest2 * d * d; \
		m1 = DT__NOT_BELOW(15, m1); \
		m2 = DT__NOT_BELOW(1, m2); \
		ROOT \
		p = p * a->shrink - a->rate * m1 / (root * a->root2 + a->epsilon); \
		SET(m1, m); \
		SET(m2, v); \
		SET(p, w); \
	}
static void dt__adam_base DT__ADAM_ARGS { DT__EACH(n) DT__ADAM(DT__READ, DT__SET, root = m2; dt__v_sqrt(&root);) }
#if DT__X86
#define DT__ROOT __asm__("vsqrtps %1, %0" : "=x"(root) : "x"(m2));
DT__AVX2 static void dt__adam_avx2 DT__ADAM_ARGS { DT__EACH(n) DT__ADAM(DT__READ, DT__SET, DT__ROOT) }
#define DT__READ_ALL(v, p) dt__v v = DT__AT((p) + i)
#define DT__SET_ALL(v, p) *(dt__v *)((p) + i) = v
#define dt__v dt__v16 // for all above
#define dt__vi dt__v16i
DT__AVX512 static void dt__adam_avx512 DT__ADAM_ARGS {
	dt__n i = 0;
	for (; i + 16 <= n; i += 16) DT__ADAM(DT__READ_ALL, DT__SET_ALL, DT__ROOT)
	dt__adam_avx2(n - i, w + i, g + i, m + i, v + i, a);
}
#undef dt__v
#undef dt__vi
#endif

// y = x * scale, from bytes
DT__LOOP(from_bytes, (dt__n n, const uint8_t *x, float scale, float *y), (n, x, scale, y)) {
	dt__n i = 0;
#if DT__SIMD && (defined(__clang__) || __GNUC__ >= 9)
	typedef uint8_t bytes __attribute__((vector_size(DT__W), aligned(1), may_alias));
	typedef uint16_t words __attribute__((vector_size(2 * DT__W))); // without these gcc goes byte by byte
	for (; i + DT__W <= n; i += DT__W) {
		dt__v v = __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(*(const bytes *)(x + i), words), dt__vi), dt__v);
		v *= scale;
		dt__set(&v, y + i, DT__W);
	}
#endif
	for (; i < n; i++) y[i] = (float)x[i] * scale;
}

#if DT__SIMD && (defined(__clang__) || __GNUC__ >= 12)
#define DT__SHUFFLE __builtin_shufflevector
#endif

// out [n_k][width] = the width lines (rows of A, columns of B) from p on, any numbers beyond the n there are.
DT__LOOP(pack, (const float *p, dt__n step, dt__n stride_k, dt__n n, dt__n width, dt__n n_k, float *out), (p, step, stride_k, n, width, n_k, out)) {
	dt__n i, k, i4 = 0, k4 = 0;
	if (n > width) n = width;
	if (step == 1) {
		for (k = 0; k < n_k; k++, p += stride_k, out += width) {
			dt__n end = (n_k - 1 - k) * stride_k + n < width ? n : width; // what follows does as well as zeros
			DT__PREFETCH(p + 4 * stride_k);
			for (i = 0; i + DT__W <= end; i += DT__W) *(dt__v *)(out + i) = DT__AT(p + i);
			for (; i < n; i++) out[i] = p[i];
			for (; i < width; i++) out[i] = 0;
		}
		return;
	}
#ifdef DT__SHUFFLE
	for (i4 = 0; stride_k == 1 && i4 + 4 <= n; i4 += 4) // a transposition, 4 x 4 at a time
		for (k4 = 0; k4 + 4 <= n_k; k4 += 4) {
			const float *q = p + i4 * step + k4;
			float *o = out + k4 * width + i4;
			dt__v4 a = *(const dt__v4 *)q, b = *(const dt__v4 *)(q + step), c = *(const dt__v4 *)(q + 2 * step), d = *(const dt__v4 *)(q + 3 * step);
			dt__v4 ab = DT__SHUFFLE(a, b, 0, 4, 1, 5), cd = DT__SHUFFLE(c, d, 0, 4, 1, 5);
			*(dt__v4 *)o = DT__SHUFFLE(ab, cd, 0, 1, 4, 5);
			*(dt__v4 *)(o + width) = DT__SHUFFLE(ab, cd, 2, 3, 6, 7);
			ab = DT__SHUFFLE(a, b, 2, 6, 3, 7); cd = DT__SHUFFLE(c, d, 2, 6, 3, 7);
			*(dt__v4 *)(o + 2 * width) = DT__SHUFFLE(ab, cd, 0, 1, 4, 5);
			*(dt__v4 *)(o + 3 * width) = DT__SHUFFLE(ab, cd, 2, 3, 6, 7);
		}
#endif
	DT__FOR(i, width)
		for (k = i < i4 ? k4 : 0; k < n_k; k++) out[k * width + i] = i < n ? p[i * step + k * stride_k] : 0;
}

// Winograd's F(4x4, 3x3): 36 products make 16 outputs, where a direct convolution needs 144. Matrices of Lavin & Gray
// 2015, arXiv 1509.09308. Each kind maps a line of values, get(k), to put(k, v).
enum { DT__WINOGRAD_IMAGE, DT__WINOGRAD_OUTPUT, DT__WINOGRAD_DY, DT__WINOGRAD_WEIGHTS, DT__WINOGRAD_DW };

#define DT__GET4(get) V d0 = get(0), d1 = get(1), d2 = get(2), d3 = get(3);
#define DT__GET6(get) DT__GET4(get) V d4 = get(4), d5 = get(5);
#define DT__PUT1TO4(put) put(1, even + odd) put(2, even - odd) put(3, low + high) put(4, low - high)
#define DT__LINE_IMAGE(get, put) { DT__GET6(get) \
	V even = d4 - 4.0f * d2, odd = d3 - 4.0f * d1, low = d4 - d2, high = 2.0f * (d3 - d1); \
	put(0, 4.0f * d0 - 5.0f * d2 + d4) DT__PUT1TO4(put) put(5, 4.0f * d1 - 5.0f * d3 + d5) }
#define DT__LINE_OUTPUT(get, put) { DT__GET6(get) \
	V s1 = d1 + d2, s2 = d1 - d2, s3 = d3 + d4, s4 = d3 - d4; \
	put(0, d0 + s1 + s3) put(1, s2 + 2.0f * s4) put(2, s1 + 4.0f * s3) put(3, s2 + 8.0f * s4 + d5) }
#define DT__LINE_DY(get, put) { DT__GET4(get) \
	V even = d0 + d2, odd = d1 + d3, low = d0 + 4.0f * d2, high = 2.0f * d1 + 8.0f * d3; \
	put(0, d0) DT__PUT1TO4(put) put(5, d3) }
#define DT__LINE_WEIGHTS(get, put) { \
	V d0 = get(0), d1 = get(1), d2 = get(2), even = (d0 + d2) * (-1.0f / 6), odd = d1 * (-1.0f / 6); \
	V low = d0 * (1.0f / 24) + d2 * (1.0f / 6), high = d1 * (1.0f / 12); \
	put(0, d0 * 0.25f) DT__PUT1TO4(put) put(5, d2) }
#define DT__LINE_DW(get, put) { DT__GET6(get) \
	V s1 = d1 + d2, s3 = d3 + d4; \
	put(0, 0.25f * d0 - s1 * (1.0f / 6) + s3 * (1.0f / 24)) \
	put(1, (d2 - d1) * (1.0f / 6) + (d3 - d4) * (1.0f / 12)) put(2, (s3 - s1) * (1.0f / 6) + d5) }

// A square of values, each a row of channels: strides, and the part that exists.
typedef struct { dt__n row, column; int top, bottom, left, right; } dt__square;

// One square through both its directions, n_in x n_in to n_out x n_out: y = or += the transform of x, or its relu, for c
// channels, a multiple of 16. What does not exist of x is 0, and of y is left out.
#define DT__WINOGRAD_ARGS (int kind, dt__n c, const float *x, const dt__square *in, float *y, const dt__square *out, int how)
typedef void dt__winograd_loop DT__WINOGRAD_ARGS;
#define DT__GET_X(k) (*(const V *)(p + k * row + j * column))
#define DT__PUT_T(k, v) t[k * 6 + j] = v;
#define DT__GET_T(k) t[i * 6 + k]
#define DT__TRANSFORM(kind, n_in, n_out) \
	case DT__WINOGRAD_##kind: \
		DT__FOR(j, n_in) DT__LINE_##kind(DT__GET_X, DT__PUT_T) \
		DT__FOR(i, n_out) { \
			DT__LINE_##kind(DT__GET_T, DT__PUT_Y) \
		} \
		break;
#define DT__PUT_Y(k, v) *(V *)(q + i * to_row + k * to_column) = v;
#define DT__WINOGRAD_OF(name, target, vector, n) \
	target static void name DT__WINOGRAD_ARGS { \
		typedef vector V; \
		typedef vector##i I; \
		static const signed char sizes[] = {6, 6, 6, 4, 4, 6, 3, 6, 6, 3}; \
		int n_in = sizes[2 * kind], n_out = sizes[2 * kind + 1], i, j; \
		int part_in = in->top > 0 || in->left > 0 || in->bottom < n_in || in->right < n_in; \
		int part_out = how || out->top > 0 || out->left > 0 || out->bottom < n_out || out->right < n_out; \
		dt__n row = in->row, column = in->column, to_row = out->row, to_column = out->column, l; \
		V t[36] DT__ALIGNED, edge[36] DT__ALIGNED; \
		if (part_in) { row = 6 * n; column = n; } \
		if (part_out) { to_row = 6 * n; to_column = n; } \
		for (l = 0; l < c; l += n) { \
			const float *p = part_in ? (const float *)edge : x + l; \
			float *q = part_out ? (float *)edge : y + l; \
			if (part_in) { \
				memset(edge, 0, sizeof edge); \
				for (i = in->top; i < in->bottom; i++) \
					for (j = in->left; j < in->right; j++) edge[i * 6 + j] = *(const V *)(x + l + i * in->row + j * in->column); \
			} \
			switch (kind) { \
			DT__TRANSFORM(IMAGE, 6, 6) \
			DT__TRANSFORM(OUTPUT, 6, 4) \
			DT__TRANSFORM(DY, 4, 6) \
			DT__TRANSFORM(WEIGHTS, 3, 6) \
			DT__TRANSFORM(DW, 6, 3) \
			} \
			for (i = out->top; part_out && i < out->bottom; i++) \
				for (j = out->left; j < out->right; j++) { \
					V *o = (V *)(y + l + i * out->row + j * out->column); \
					DT__KEEP_AT(o, edge[i * 6 + j]) \
				} \
		} \
	}
#if DT__X86
DT__WINOGRAD_OF(dt__winograd_avx512, DT__AVX512, dt__v16, 16)
DT__WINOGRAD_OF(dt__winograd_avx2, DT__AVX2, dt__v8, 8)
#endif
#if DT__SIMD
DT__WINOGRAD_OF(dt__winograd_base, , dt__v4, 4)
#else
DT__WINOGRAD_OF(dt__winograd_base, , dt__v1, 1)
#endif

// To IEEE 754's binary16, or to bfloat16, a float's upper half: the nearest, ties to even. Word i of n has values i and n + i.
DT__LOOP(narrow, (dt_wire wire, dt__n all, const float *x, float *word), (wire, all, x, word)) {
	dt__n n = all - all / 2;
	DT__EACH(n) {
		dt__v v; dt__vu both = {0};
		for (int k = 0; k < 2; k++) {
			dt__get(&v, x + k * n + i, (k ? all - n : n) - i);
			dt__vi b = DT__BITS(v), nan = DT__TEST(v != v), a = b & 0x7fffffff;
			a = DT__SELECT_BITS(DT__TEST(a > 0x477ff000), 0x477ff000, a); // infinite, subnormal
			a = DT__SELECT_BITS(DT__TEST(a < 0x38800000), DT__BITS(DT__FLOATS(a) + 0.5f) - 0x3f000000, (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13);
			if (wire == DT_F16) b = a << 16 | (b & INT32_MIN);
			else b += (0x7fff + (b >> 16 & 1)) & ~nan;
			both = both << 16 | (dt__vu)(b | (nan & 0x400000)) >> 16;
		}
		v = DT__FLOATS((dt__vi)both);
		DT__SET(v, word);
	}
}
DT__LOOP(widen, (dt_wire wire, dt__n all, const float *word, float *x), (wire, all, word, x)) {
	dt__n n = all - all / 2;
	DT__EACH(n) {
		DT__READ(v, word);
		dt__vu both = (dt__vu)DT__BITS(v);
		for (int k = 0; k < 2; k++, both <<= 16) {
			dt__vi b = (dt__vi)(both & 0xffff0000), a = b >> 3 & 0x0fffe000;
			a += 0x38000000 + (DT__TEST(a >= 0x0f800000) & 0x38000000);
			if (wire == DT_F16) b = (b & INT32_MIN) | DT__SELECT_BITS(DT__TEST(a < 0x38800000), DT__BITS(DT__FLOATS(a | 0x800000) - 6.103515625e-5f), a);
			v = DT__FLOATS(b);
			dt__set(&v, x + k * n + i, (k ? all - n : n) - i);
		}
	}
}

// c [n] = or += a [k] * B [k, n], with rows (bj = 1) or columns (bk = ak = 1) of B contiguous
DT__LOOP(gemv, (dt__n n, dt__n k, const float *a, dt__n ak, const float *b, dt__n bk, dt__n bj, float *c, int add), (n, k, a, ak, b, bk, bj, c, add)) {
	dt__n i, p, r;
#define DT__FACTOR(r) const float a##r = a[r * ak];
#define DT__TERM(r) if (r % 2) s += a##r * DT__AT(b + i + r * bk); else t += a##r * DT__AT(b + i + r * bk);
	if (bj == 1) {
		if (!add) dt__zero(n, c);
		for (p = 0; p + 8 <= k; p += 8, a += 8 * ak, b += 8 * bk) {
			DT__R8(DT__FACTOR)
			for (i = 0; i + DT__W <= n; i += DT__W) {
				dt__v s = DT__AT(c + i), t = {0};
				DT__R8(DT__TERM)
				*(dt__v *)(c + i) = s + t;
			}
			for (; i < n; i++)
				DT__FOR(r, 8) c[i] += a[r * ak] * b[r * bk + i];
		}
		for (; p < k; p++, a += ak, b += bk) dt__linear_base(n, *a, b, 1, c, 0, 0, c);
		return;
	}
#define DT__VECTORS(r) s##r += v * DT__AT(b + r * bj + p);
#define DT__TOTAL(r) c[i + r] = dt__lanes_sum(&s##r) + (add ? c[i + r] : 0);
#define DT__REST(r) c[i + r] += a[p] * b[r * bj + p];
	for (i = 0; i + 4 <= n; i += 4, b += 4 * bj) {
		dt__v s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, v;
		for (p = 0; p + DT__W <= k; p += DT__W) { v = DT__AT(a + p); DT__R4(DT__VECTORS) }
		DT__R4(DT__TOTAL)
		for (; p < k; p++) { DT__R4(DT__REST) }
	}
	for (; i < n; i++, b += bj) c[i] = dt__dot_base(k, a, b) + (add ? c[i] : 0);
}

// ---- the table of one instruction set, and the choice among them

#define DT__VECTOR_LOOPS(X) \
	X(activate) X(activate_back) X(multiply) X(maximum) X(maximum_back) X(dot) X(linear) X(column_moments) \
	X(columns_affine) X(softmax) X(layernorm) X(layernorm_back) X(dropout) X(sgd) X(from_bytes) X(pack) X(gemv) X(narrow) X(widen)

typedef struct {
	const char *name;
	int columns; // of a full panel
	dt__tile tile[3]; // the usual one, one of fewer rows, one of a row more; rows 0: there is none
	dt__winograd_loop *winograd;
	dt__adam_loop *adam;
#define DT__FIELD(name) dt__##name##_loop *name;
	DT__VECTOR_LOOPS(DT__FIELD)
} dt__kernels;

#define DT__BASE(name) dt__##name##_base,
#define DT__WIDE(name) dt__##name##_avx2,
#define DT__TILE(isa, rows) {rows, dt__micro_##isa##_##rows##x2, dt__micro_##isa##_##rows##x1}
#define DT__BASE_LOOPS dt__winograd_base, dt__adam_base, DT__VECTOR_LOOPS(DT__BASE)
static const dt__kernels dt__isa[] = { // best first
#if DT__X86
	{"avx512", 32, {DT__TILE(avx512, 8), DT__TILE(avx512, 4), DT__TILE(avx512, 9)}, dt__winograd_avx512, dt__adam_avx512, DT__VECTOR_LOOPS(DT__WIDE)},
	{"avx2", 16, {DT__TILE(avx2, 6), DT__TILE(avx2, 4)}, dt__winograd_avx2, dt__adam_avx2, DT__VECTOR_LOOPS(DT__WIDE)},
	{"sse2", 8, {DT__TILE(sse2, 6)}, DT__BASE_LOOPS},
#elif DT__SIMD && defined(__aarch64__)
	{"neon", 8, {DT__TILE(neon, 8), DT__TILE(vector, 4), DT__TILE(neon, 9)}, DT__BASE_LOOPS},
#endif
#if DT__SIMD
	{"vector", 8, {DT__TILE(vector, 4)}, DT__BASE_LOOPS},
#endif
	{"plain", 2, {DT__TILE(plain, 4)}, DT__BASE_LOOPS},
};

// The best row this CPU can run; DTRAIN_ISA may ask for a lesser one.
static const dt__kernels *dt__kernels_choose(void) {
	int best = 0;
#if DT__X86
	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx512f")) best = 1;
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) best = 2;
#endif
#ifndef DTRAIN_NO_STDIO
	const char *wanted = getenv("DTRAIN_ISA");
	for (int i = best; wanted && i < DT__COUNT(dt__isa); i++) if (!strcmp(dt__isa[i].name, wanted)) return &dt__isa[i];
#endif
	return &dt__isa[best];
}

// Racing threads choose the same.
static const dt__kernels *dt__cpu(void) {
	static const dt__kernels *chosen;
	const dt__kernels *k = DT__LOAD(&chosen);
	if (!k) { k = dt__kernels_choose(); DT__STORE(&chosen, k); }
	return k;
}

// ---- products

// How the lines of an operand are cut into tiles: n[i] of size[i], behind each other; only the very last may be partial.
typedef struct { dt__n size[3], n[3]; } dt__cut;

// m rows, with the fewest in vain; where there are tiles of a row more, large is a multiple of small.
static dt__cut dt__cut_rows(dt__n m) {
	const dt__tile *tile = dt__cpu()->tile;
	dt__n large = tile[0].rows, small = tile[1].rows, more = tile[2].rows, whole = m / large, rest = m % large;
	int swap = whole && large + rest <= 2 * small; // a large one and the rest for two small ones
	dt__cut cut = {{large, small, more}, {whole, rest > 0, 0}};
	if (more && rest % small <= whole) { cut.n[0] -= cut.n[2] = rest % small; cut.n[1] = rest / small; }
	else if (rest > small) { cut.n[0]++; cut.n[1] = 0; }
	else if (rest && swap) { cut.n[0]--; cut.n[1] = 2; }
	return cut;
}

// n columns: whole panels, and half a one if that is enough for the rest.
static dt__cut dt__cut_columns(dt__n n) {
	dt__n panel = dt__cpu()->columns, whole = (n + panel / 2 - 1) / panel;
	dt__cut cut = {{panel, panel / 2, 0}, {whole, n > whole * panel, 0}};
	return cut;
}

// Its tile from line i on, of the given width, of whose lines the first n exist.
DT__INLINE dt__operand dt__tile_at(const dt__operand *o, dt__n i, dt__n n, dt__n width, dt__n k2, dt__n k) {
	dt__operand tile = *o;
	int edge = n < width && o->edge;
	tile.p = edge ? o->edge : o->p + i * (o->packed ? k2 * k : o->step);
	if (edge || o->packed) { tile.step = 1; tile.k = width; tile.k2 = k * width; }
	return tile;
}

// The micro-kernel's C, of any m and n, without blocking; for so many lines, whose A and C lie next and next_c behind each other's.
static void dt__tiles(dt__n lines, dt__n next, dt__n next_c, dt__n m, dt__n n, dt__n k2, dt__n k,
		const dt__operand *a, const dt__operand *b, float *c, dt__n ci, int how, const float *bias) {
	const dt__kernels *kernels = dt__cpu();
	dt__cut cut = dt__cut_rows(m);
	dt__n i, j, s, t, r, line, size, tiles, width;
	for (j = 0; j < n; j += width) {
		int half = n - j <= kernels->columns / 2;
		width = kernels->columns >> half;
		dt__n columns = DT__MIN(n - j, width);
		dt__operand tb = dt__tile_at(b, j, columns, width, k2, k);
		for (i = s = 0; s < 3; s++)
			for (t = cut.n[s], size = cut.size[s]; t > 0; t -= tiles, i += tiles * size) {
				dt__n rows = DT__MIN(m - i, size);
				dt__operand ta = dt__tile_at(a, i, rows, size, k2, k);
				dt__micro *micro = half ? kernels->tile[s].half : kernels->tile[s].full;
				float *out = c + i * ci + j, buffer[DT__MAX_TILE] DT__ALIGNED, edge[DT__MAX_COLUMNS];
				tiles = 1;
				if (rows == size && columns == width) { // of one line, all such tiles in one call; of more, its tile of all lines
					if (lines == 1) { tiles = t - (t * size > m - i); next = size * (a->packed ? k2 * k : a->step); next_c = size * ci; }
					micro(DT__MAX(lines, tiles), next, next_c, k2, k, &ta, &tb, out, ci, how, bias ? bias + j : NULL);
					continue;
				}
				if (bias) memcpy(edge, bias + j, 4 * (size_t)columns);
				for (line = 0; line < lines; line++, ta.p += next, out += next_c) { // what exists of C, there and back
					DT__WHILE(r, rows, how & DT__ADDS) memcpy(buffer + r * width, out + r * ci, 4 * (size_t)columns);
					micro(1, 0, 0, k2, k, &ta, &tb, buffer, width, how, bias ? edge : NULL);
					DT__FOR(r, rows) memcpy(out + r * ci, buffer + r * width, 4 * (size_t)columns);
				}
			}
	}
}

// A packed block of A stays in L2, a panel of B in L1, the block of B in L3.
#define DT__KC 256
#define DT__MC 192
#define DT__NC 2048

static dt__n dt__gemm_scratch(dt__n m, dt__n n, dt__n k) {
	dt__n kc = DT__MIN(k, DT__KC), columns = dt__cpu()->columns;
	if (n <= columns / 2 && m > columns) return m * n + dt__gemm_scratch(n, m, k);
	return kc * (DT__MIN(m, DT__MC) + dt__cpu()->tile[0].rows + dt__ceil(DT__MIN(n, DT__NC), columns) + columns);
}

// The block of size at most limit that splits n evenly, a multiple of unit.
static dt__n dt__block(dt__n n, dt__n limit, dt__n unit) {
	dt__n blocks = (n + limit - 1) / limit;
	return blocks <= 1 ? n : DT__MIN(limit, dt__ceil((n + blocks - 1) / blocks, unit));
}

#ifdef DTRAIN_BLAS
#include <cblas.h>
#endif

// The n lines of an operand, cut into tiles: all packed into out, or the last one if it is partial.
static void dt__pack_tiles(dt__operand *o, dt__n n, dt__cut cut, dt__n k, float *out) {
	dt__n i = 0, s, size = 0;
	DT__FOR(s, 3)
		for (; cut.n[s] > 0; cut.n[s]--, i += size) {
			size = cut.size[s];
			if (o->packed || n - i < size) dt__cpu()->pack(o->p + i * o->step, o->step, o->k, n - i, size, k, o->packed ? out + i * k : out);
		}
	if (o->packed) o->p = out;
	else if (i > n) o->edge = out;
}

// C [m, n] = or += bias (NULL: 0) + A [m, k] B [k, n], perhaps relu of that; A(i, p) = a[i * ai + p * ak], B(p, j) = b[p * bk +
// j * bj], C(i, j) = c[i * ci + j]. 1: without bias and relu, which are left to the caller.
static int dt__gemm(dt__n m, dt__n n, dt__n k, const float *a, dt__n ai, dt__n ak, const float *b, dt__n bk,
		dt__n bj, float *c, dt__n ci, int how, const float *bias, float *scratch) {
	const dt__kernels *kernels = dt__cpu();
	dt__n columns = kernels->columns, rows = kernels->tile[0].rows, kc, mc, nc, i0, j0, k0;
	float *packed_b;
	int add = how & DT__ADDS;
	if (m <= 0 || n <= 0) return 0;
#ifdef DTRAIN_BLAS
	if ((ai == 1 || ak == 1) && (bk == 1 || bj == 1) && m * n * k > 4096) {
		cblas_sgemm(CblasRowMajor, ak == 1 ? CblasNoTrans : CblasTrans, bj == 1 ? CblasNoTrans : CblasTrans, (int)m, (int)n, (int)k, 1, a,
				(int)(ak == 1 ? DT__MAX(ai, k) : DT__MAX(ak, m)), b, (int)(bj == 1 ? DT__MAX(bk, n) : DT__MAX(bj, k)), add ? 1.0f : 0.0f, c, (int)ci);
		return 1;
	}
#endif
	if (m == 1 && (bj == 1 || (bk == 1 && ak == 1))) { kernels->gemv(n, k, a, ak, b, bk, bj, c, add); return 1; }
	if (ai == 1 && ak != 1 && n > 1 && n <= columns / 2 && m > columns) { // few columns: as rows, they fill the panels
		dt__gemm(n, m, k, b, bj, bk, a, ak, 1, scratch, m, 0, NULL, scratch + m * n);
		if (!add && ci == n) kernels->pack(scratch, m, 1, n, n, m, c);
		else DT__FOR(i0, m) DT__FOR(j0, n) c[i0 * ci + j0] = scratch[j0 * m + i0] + (add ? c[i0 * ci + j0] : 0);
		return 1;
	}
	kc = DT__MAX(dt__block(k, DT__KC, 4), 1); mc = dt__block(m, DT__MC, rows);
	nc = dt__block(n, DT__NC, columns); packed_b = scratch + kc * (mc + rows);
	for (j0 = 0; j0 < n; j0 += nc) {
		dt__n nb = DT__MIN(nc, n - j0);
		for (k0 = 0; k0 == 0 || k0 < k; k0 += kc) {
			dt__n kb = DT__MIN(kc, k - k0);
			// below that, packing costs more than strided rows do
			dt__operand ob = {b + k0 * bk + j0 * bj, bj, bk, 0, bj != 1 || m > 8 * rows, NULL};
			dt__pack_tiles(&ob, nb, dt__cut_columns(nb), kb, packed_b);
			for (i0 = 0; i0 < m; i0 += mc) {
				dt__n mb = DT__MIN(mc, m - i0);
				dt__operand oa = {a + i0 * ai + k0 * ak, ai, ak, 0, n > (ak == 1 ? 16 : 4) * columns, NULL};
				dt__pack_tiles(&oa, mb, dt__cut_rows(mb), kb, scratch);
				dt__tiles(1, 0, 0, mb, nb, 1, kb, &oa, &ob, c + i0 * ci + j0, ci,
						(k0 > 0 ? DT__ADDS : add) | (k0 + kc < k ? 0 : how & DT__RECTIFIES), bias && k0 == 0 ? bias + j0 : NULL);
			}
		}
	}
	return 0;
}

// ========
// >>graph - tensors, parameters, the memory plan, forward and backward
//
// What: net builds nodes; dt__graph_finish numbers them in post-order from net's output, names them and lays one replica's
//   activations, gradients and scratch into one block by liveness. A step runs in segments, strip by strip of the batch, so
//   that a layer finds in the cache what the one before it wrote; some neighbours become one pass (.no_fusion: neither).
// Owns: the graph (shared, constant once finished) and what one replica needs to run it.
// Uses: >>kernels, >>base. Operations are records of >>layers and >>losses.
// Promise: a step allocates nothing; a partial batch runs the same plan; numbers, names and seeds depend on the graph alone.

typedef struct dt__replica dt__replica;
typedef struct dt__graph dt__graph;

enum { // what an operation promises or needs
	DT__READS_X = 1, // backward reads the inputs
	DT__READS_Y = 2, // backward reads the output
	DT__IN_PLACE = 4, // y may lie on x, and dx on dy: a value depends on its own place only
	DT__VIEW = 8, // y is x under another shape
	DT__PASSES = 16, // dx of input 0 may lie on dy
	DT__PER_FEATURE = 32, // the last axis keeps its meaning, and a flatten's (h, w, c)
	DT__LOSS = 64, // has labels instead of a value
	DT__ALL_ROWS = 128 // wants all rows at once; others go strip by strip
};

typedef void dt__phase(dt__replica *r, dt_tensor *t);

typedef struct {
	const char *name;
	unsigned flags;
	int (*shape)(dt_tensor *t); // check inputs and options; set shape, variables and sizes
	dt__phase *forward, *forward_after, *backward, *backward_after; // after: once t->exchange floats of saved are summed over the replicas
	dt__n (*scratch)(const dt_tensor *t, dt__n rows, int back); // floats
	void (*update)(dt__replica *r, dt_tensor *t, int pass); // running statistics from the reduced sums; pass 0, then 1
} dt__op;

// A parameter or a running statistic.
typedef struct {
	char name[DT_MAX_NAME + 16];
	const char *suffix;
	dt_tensor *owner;
	int rank, dim[DT_MAX_RANK]; // its shape in files
	int walk_rank; // file order is a walk through memory …
	dt__n walk_dim[DT_MAX_RANK], walk_stride[DT_MAX_RANK];
	dt__n size, offset, fan_in, fan_out; // floats, and where in the flat array
	dt_initializer init;
	double init_value;
	int statistic, frozen, no_decay, number, user; // user: the first in the graph, and so the last in backward
} dt__var;

#define DT__MAX_VARS 4 // of one layer

struct dt_tensor {
	dt__graph *graph;
	const dt__op *op;
	dt_tensor *in[DT_MAX_INPUTS];
	int n_in, rank, dim[DT_MAX_RANK]; // dim[0], the batch, is 0
	dt__n size; // values of one sample
	dt_type type;
	char name[DT_MAX_NAME];
	void *options; // with defaults filled in
	dt__var *variable[DT__MAX_VARS];
	int hwc[3]; // behind a flatten: the image it came from
	dt_tensor *made_before, *visitor; // list of all nodes; stack of the walk
	int number, visited, consumers, consumers_back, is_output;
	int wants, back; // something trainable lies before; … and a loss or net's output behind: backward runs
	int value, gradient, saved, scratch[2]; // buffers; -1: none
	dt__n saved_fixed, saved_row; // floats, and floats per sample, kept between phases
	dt__n exchange; // floats of saved that the replicas sum between two phases
	dt__n n_statistics, statistics; // floats of batch sums; their place in the gradient array
	dt__n slack; // floats that may be read behind any buffer
	int relu, fused; // fusion: forward ends with a relu; the layer before does forward
	int loss_number, label; // its place among losses; which of dt_batch.y, or -1
};

typedef struct {
	dt__n floats, row, offset; // row: floats per row of the batch; 0: fixed size
	int birth, death, next, local; // local: holds the rows of one strip
} dt__buffer;

// Phases that all run on one strip of the batch before the next begins.
typedef struct { int first, last; dt__n strip, complete; } dt__segment; // times; rows; gradients from there on are, behind it

typedef struct dt__named { struct dt__named *next; dt_tensor *t; char name[DT_MAX_NAME]; } dt__named;

struct dt__graph {
	dt__pool *pool;
	dt_error error;
	int sealed; // net has returned
	dt_tensor failed; // what layers return after an error
	dt_tensor *last_made;
	dt_tensor *output, *main_loss; // what net returned; the options' loss
	dt__named *outputs; // by name
	dt_tensor *input[DT_MAX_INPUTS]; // 0: net's own; then by name
	dt_tensor *loss[DT_MAX_INPUTS]; // main_loss, then by name
	dt_tensor **node; // post-order
	dt__var **variable; // in the order of their first user
	dt__buffer *buffer;
	dt__segment *segment;
	int n_inputs, n_losses, n_labels, n, n_variables, n_buffers, n_segments;
	dt__n n_trainable, n_floats; // flat array: trainable, then frozen and statistics
	dt__n kept; // gradients below may not leave before backward has ended
	dt__n statistics, totals, n_gradients; // gradient array: trainable, batch statistics, totals
	int mixed_losses; // their weights differ and are exchanged before backward
	int training, input_gradient, hwc_files, profile, no_fusion;
	void (*span)(dt__replica *r, int what, double from, double to); // profile: hears of each; what: as in .seconds, -1: data
	dt__n rows, block_floats, lower_bound; // rows: planned for one replica
};

enum { DT__PROFILED_ROWS, DT__PROFILED_ROWS_BACK, DT__PROFILED_REDUCE, DT__PROFILED_UPDATE, DT__PROFILED_ALL };

// Totals: for each loss its sum and its weights, then these.
enum { DT__RIGHT = 2 * DT_MAX_INPUTS, DT__COUNTED, DT__RIGHT_TOP, DT__SEEDED, DT__ROWS, DT__STOPS, DT__TOTALS };

struct dt__replica {
	const dt__graph *graph;
	int rank;
	float *variables, *gradients;
	float *block; // activations, their gradients, scratch
	uint8_t *written; // per node: its gradient holds something; and a copy from before the segment
	uint8_t *variable_written; // per variable
	dt__n run_rows, first_row; // of this run, and the first one's place in the batch
	dt__n first_sample; // … and in the batch of all processes
	dt__n rows, from; // of this strip, and how many lie before it; outside of phases the whole run
	int training, labelled, checking, top_k;
	int rehearsing; // this forward only counts the losses' weights
	long step;
	uint64_t seed;
	const float *sample_weight; // [rows] or NULL
	float weight_scale[DT_MAX_INPUTS]; // mixed losses: scales of their gradients
	float chunk_totals[DT__TOTALS]; // of the last forward
	float global_totals[DT__TOTALS]; // mixed losses: of all replicas
	float *exchange_at;
	void (*exchange)(dt__replica *set, int n, dt__n floats); // set by the strategy
	void (*leave)(dt__replica *set, int n, dt__n from); // NULL, or hears which gradients are complete: from there on
	dt__n complete;
	dt_model *model;
	double data_seconds, marked; // spent on feeding; the profile's last mark
	double *seconds; // profile: forward and backward of every node, then DT__PROFILED_…
	dt_error error;
};

// ---- what operations call

static float *dt__at(const dt__replica *r, int buffer) { return buffer < 0 ? NULL : r->block + r->graph->buffer[buffer].offset; }
static float *dt__strip(const dt__replica *r, int buffer, dt__n row) {
	return buffer < 0 ? NULL : dt__at(r, buffer) + (r->graph->buffer[buffer].local ? 0 : r->from * row);
}
static float *dt__value(const dt__replica *r, const dt_tensor *t) { return dt__strip(r, t->value, t->size); }
static float *dt__x(const dt__replica *r, const dt_tensor *t, int i) { return dt__value(r, t->in[i]); }
static float *dt__saved(const dt__replica *r, const dt_tensor *t) { return dt__strip(r, t->saved, t->saved_row); }
static float *dt__grad(const dt__replica *r, const dt_tensor *t) { return dt__strip(r, t->gradient, t->size); }
static float *dt__weights(const dt__replica *r, const dt_tensor *t, int i) { return r->variables + t->variable[i]->offset; }
static int dt__trains(const dt__var *v) { return v && !v->frozen && !v->statistic; }
static int dt__is_target(const dt_tensor *t, int k) { return t->op->flags & DT__LOSS && k == 1; } // no gradient goes there

// Before n floats of a gradient, if d is one, are written. *add: d already holds something; add NULL: d starts with zeros.
static float *dt__claim(float *d, dt__n n, uint8_t *written, int *add) {
	if (add) *add = *written;
	else if (d && !*written) dt__zero(n, d);
	*written |= d != NULL;
	return d;
}

// Where the gradient of input i goes, or of variable i; NULL: nobody wants it.
static float *dt__dx(dt__replica *r, const dt_tensor *t, int i, int *add) {
	const dt_tensor *x = t->in[i];
	return dt__claim(dt__grad(r, x), r->rows * x->size, &r->written[x->number], add);
}
static float *dt__dw(dt__replica *r, const dt_tensor *t, int i, int *add) {
	const dt__var *v = t->variable[i];
	if (add) *add = 0;
	return dt__trains(v) ? dt__claim(r->gradients + v->offset, v->size, &r->variable_written[v->number], add) : NULL;
}

static dt__n dt__last(const dt_tensor *t) { return t->dim[t->rank - 1]; } // size of the last axis

// Rows of the last axis: samples times positions.
static dt__n dt__rows(const dt__replica *r, const dt_tensor *t) { return t->size ? r->rows * (t->size / dt__last(t)) : 0; }

// ---- building

// Fail inside a layer: dt_conv2d "name": …
DT__FORMAT(2) static int dt__bad(dt_tensor *t, const char *format, ...) {
	char text[240];
	DT__WRITER(w, text);
	DT__VPRINT(&w, format);
	return dt__fail(&t->graph->error, DT_ERR_SHAPE, t->name[0] ? "dt_%s \"%s\": %s" : "dt_%s%s: %s", t->op->name, t->name, text);
}

// "[n,28,28,1]"
typedef struct { char text[96]; } dt__shape_text;
static const char *dt__shape_of(const dt_tensor *t, dt__shape_text *out) {
	DT__WRITER(w, out->text);
	int i;
	dt__puts(&w, "[n");
	for (i = 1; i < t->rank; i++) dt__print(&w, ",%d", t->dim[i]);
	dt__put(&w, ']');
	return out->text;
}

static int dt__set_name(dt_tensor *t, const char *name) {
	const char *p = name;
	size_t length = name ? strlen(name) : 0;
	int n = 1;
	if (!name) return 0;
	if (!length || length >= DT_MAX_NAME)
		return dt__deny(&t->graph->error, "dt_%s: the name \"%.70s\" has %zu bytes: use 1 to %d", t->op->name, name, length, DT_MAX_NAME - 1);
	for (; n && *p; p += n) n = dt__utf8((const uint8_t *)p, 4);
	if (!n) return dt__deny(&t->graph->error, "dt_%s: a name is no valid UTF-8, which files need", t->op->name);
	memcpy(t->name, name, length + 1);
	return 0;
}

static int dt__set_shape(dt_tensor *t, int rank, const int *dim) {
	int i;
	if (rank > DT_MAX_RANK) return dt__bad(t, "%d dimensions: at most %d with the batch", rank, DT_MAX_RANK);
	t->rank = rank; t->size = 1; t->dim[0] = 0;
	for (i = 1; i < rank; i++) {
		if (dim[i] < 1) return dt__bad(t, "dimension %d of the output is %d: sizes start at 1", i, dim[i]);
		if (!dt__times(t->size, dim[i], &t->size) || t->size > PTRDIFF_MAX / 4096) return dt__bad(t, "a sample of the output is too large for memory: use smaller sizes");
		t->dim[i] = dim[i];
	}
	return 0;
}

static int dt__graph_full(dt__graph *g, const char *what) {
	return dt__oom(&g->error, "%s: no memory for the graph%s", what, g->pool->base ? ": raise .memory_size; dt_model_bytes() tells the number" : "");
}
static int dt__called_twice(dt__graph *g, const char *what, const char *name) {
	return dt__deny(&g->error, "two %s are called \"%s\": give each its own .name", what, name);
}

// A new node, with a copy of options. NULL: there is no graph, or its net has returned.
static dt_tensor *dt__layer(const dt__op *op, dt_tensor *const *in, int n_in, const void *options, size_t options_size, const char *name) {
	dt__graph *g = in[0] ? in[0]->graph : NULL;
	dt_tensor *t;
	int i;
	if (!g || (g->sealed && !g->error.code)) return NULL;
	for (i = 1; i < n_in; i++) {
		if (!in[i]) dt__deny(&g->error, "dt_%s: input %d is NULL: an earlier layer got no tensor", op->name, i);
		else if (in[i]->graph != g) dt__deny(&g->error, "dt_%s: input %d belongs to another model: use tensors made from net's x", op->name, i);
	}
	if (g->error.code) return &g->failed;
	t = DT__NEW(g->pool, 1, dt_tensor);
	if (t && options_size) t->options = dt__take(g->pool, options_size);
	if (!t || (options_size && !t->options)) { dt__graph_full(g, op->name); return &g->failed; }
	if (options_size) memcpy(t->options, options, options_size);
	t->graph = g; t->op = op; t->n_in = n_in;
	t->number = t->value = t->gradient = t->saved = t->scratch[0] = t->scratch[1] = t->label = -1;
	t->type = DT_FLOAT32;
	DT__FOR(i, n_in) t->in[i] = in[i];
	if (op->flags & DT__PER_FEATURE) memcpy(t->hwc, in[0]->hwc, sizeof t->hwc);
	if (dt__set_name(t, name) || op->shape(t)) return &g->failed;
	t->made_before = g->last_made; g->last_made = t;
	return t;
}
static dt_tensor *dt__layer1(const dt__op *op, dt_tensor *x, const void *options, size_t options_size, const char *name) {
	return dt__layer(op, &x, 1, options, options_size, name);
}

static int dt__needs_floats(dt_tensor *t) {
	int i;
	DT__FOR(i, t->n_in) if (t->in[i]->type != DT_FLOAT32) return dt__bad(t, "input %d holds integers: put dt_embedding in between", i);
	return 0;
}

static int dt__share(dt_tensor *t, const dt_tensor *from) {
	if (!from) return 0;
	if (from->graph != t->graph || from->op != t->op)
		return dt__bad(t, ".share is a dt_%s%s: it must be a dt_%s of this model", from->op->name, from->graph != t->graph ? " of another model" : "", t->op->name);
	memcpy(t->variable, from->variable, sizeof t->variable);
	return 0;
}

// A variable of layer t, in memory as in files, of shape dim; rank 0: none. What dt__share took over must fit.
static int dt__add_var(dt_tensor *t, const dt_tensor *share, int slot, const char *suffix, int rank, const int *dim, dt_initializer init, double init_value, int frozen) {
	dt__var *v = t->variable[slot];
	dt__n has = v ? v->size : 0, size = rank > 0;
	int i;
	DT__FOR(i, rank) if (!dt__times(size, dim[i], &size)) return dt__bad(t, "its %s is too large for memory: use smaller sizes", suffix);
	if (share && has != size) return dt__bad(t, ".share: the other layer has %td values in variable %d, this one needs %td", has, slot, size);
	DT__WHILE(i, rank, share)
		if (v->dim[i] != dim[i]) return dt__bad(t, ".share: dimension %d of the other layer's weights is %d, this one needs %d", i, v->dim[i], dim[i]);
	if (share || !rank) return 0;
	v = t->variable[slot] = DT__NEW(t->graph->pool, 1, dt__var);
	if (!v) return dt__graph_full(t->graph, t->op->name);
	if ((unsigned)init > DT_CONSTANT || !(init_value - init_value == 0)) return dt__bad(t, ".init %d, .init_value %g: one of dt_initializer and a finite number are needed", (int)init, init_value);
	v->owner = t; v->suffix = suffix; v->rank = v->walk_rank = rank; v->size = 1;
	for (i = rank - 1; i >= 0; v->size *= dim[i--]) {
		v->walk_dim[i] = v->dim[i] = dim[i]; v->walk_stride[i] = v->size;
	}
	v->init = init; v->init_value = init_value;
	v->fan_in = rank > 1 ? v->size / dim[0] : v->size;
	v->fan_out = rank > 1 ? v->size / dim[1] : v->size;
	v->frozen = frozen; v->number = -1;
	return 0;
}

// A feature axis behind a flatten has channels first in files. features: the stride of one index.
static void dt__walk_features(dt__var *v, int rank_before, const int *hwc, dt__n features) {
	dt__n *dim = v->walk_dim + rank_before, *stride = v->walk_stride + rank_before;
	if (!hwc[2]) return;
	v->walk_rank = rank_before + 3;
	dim[0] = hwc[2]; stride[0] = features;
	dim[1] = hwc[0]; stride[1] = (dt__n)hwc[1] * hwc[2] * features;
	dim[2] = hwc[1]; stride[2] = hwc[2] * features;
}

// Where element i in file order lies in memory.
static dt__n dt__walk(const dt__var *v, dt__n i) {
	dt__n at = 0;
	int d;
	for (d = v->walk_rank - 1; d >= 0; i /= v->walk_dim[d--]) at += i % v->walk_dim[d] * v->walk_stride[d];
	return at;
}

int dt_rank(const dt_tensor *t) { return t ? t->rank : 0; }
int dt_dim(const dt_tensor *t, int axis) {
	if (t && axis < 0) axis += t->rank;
	return t && axis >= 0 && axis < t->rank ? t->dim[axis] : 0;
}

// ---- inputs and outputs

static int dt__input_shape(dt_tensor *t) {
	const dt_input_options *o = (const dt_input_options *)t->options;
	int dim[DT_MAX_RANK] = {0}, rank = 1;
	for (; rank < DT_MAX_RANK && o->shape[rank - 1]; rank++) dim[rank] = o->shape[rank - 1];
	t->type = o->type == DT_INT32 ? DT_INT32 : DT_FLOAT32;
	if (o->type == DT_ONE_HOT) return dt__bad(t, ".type DT_ONE_HOT is for labels: inputs are DT_FLOAT32, DT_INT32 or DT_UINT8");
	if (rank == 1) return dt__bad(t, "the shape is empty: give at least one size, as in {5}");
	return dt__set_shape(t, rank, dim);
}
static const dt__op dt__input = {"input", 0, dt__input_shape, NULL, NULL, NULL, NULL, NULL, NULL};

dt_tensor *dt_input_opt(dt_input_options o) {
	dt__graph *g = o.x ? o.x->graph : NULL;
	dt_tensor *t;
	int i;
	if (!g) return NULL;
	if (!o.name) dt__deny(&g->error, "dt_input: a further input needs a name, which orders it among dt_batch.x");
	if (g->n_inputs == DT_MAX_INPUTS) dt__deny(&g->error, "dt_input \"%s\": more than %d inputs", o.name, DT_MAX_INPUTS);
	t = dt__layer1(&dt__input, o.x, &o, sizeof o, o.name);
	if (!t || t == &g->failed) return t;
	t->n_in = 0; // x only said which model
	for (i = g->n_inputs++; i > 1 && strcmp(g->input[i - 1]->name, t->name) > 0; i--) g->input[i] = g->input[i - 1];
	return g->input[i] = t;
}

dt_tensor *dt_output(dt_tensor *t, const char *name) {
	dt__graph *g = t ? t->graph : NULL;
	dt__named **at, *o;
	if (!g || g->error.code || g->sealed) return t;
	for (at = &g->outputs; name && *at && strcmp((*at)->name, name) < 0; at = &(*at)->next) {}
	o = DT__NEW(g->pool, 1, dt__named);
	if (!name || !*name || strlen(name) >= DT_MAX_NAME) dt__deny(&g->error, "dt_output: an output needs a name of 1 to %d bytes", DT_MAX_NAME - 1);
	else if (*at && !strcmp((*at)->name, name)) dt__called_twice(g, "outputs", name);
	else if (!o) dt__graph_full(g, "output");
	if (g->error.code) return &g->failed;
	memcpy(o->name, name, strlen(name) + 1);
	o->t = t; o->next = *at; *at = o;
	return t;
}

// ---- numbering: post-order, inputs left to right, without recursion

static void dt__graph_walk(dt__graph *g, dt_tensor *t) {
	if (!t || t->number >= 0) return;
	t->visitor = NULL;
	while (t) {
		if (t->visited < t->n_in) {
			dt_tensor *x = t->in[t->visited++];
			if (x->number < 0) { x->visitor = t; t = x; }
		} else {
			t->number = g->n; g->node[g->n++] = t; t = t->visitor;
		}
	}
}

static void dt__default_name(dt__graph *g, dt_tensor *t) {
	const dt_tensor *other;
	int i, k = 1;
	if (t->name[0]) return;
	if (t == g->input[0]) { memcpy(t->name, "input", 6); return; }
	DT__FOR(i, (t->number < 0 ? g->n : t->number)) k += g->node[i]->op == t->op;
	for (other = g->last_made; other && t->number < 0; other = other->made_before) // one that only lends its variables
		k += other->number < 0 && other->op == t->op && other->name[0];
	dt__fill(t->name, "%s_%d", t->op->name, k);
}

static int dt__graph_number(dt__graph *g) {
	const dt__named *o;
	dt_tensor *t;
	int i, j, k, n = 0;
	for (t = g->last_made; t; t = t->made_before) n++;
	g->node = DT__NEW(g->pool, n, dt_tensor *);
	g->variable = DT__NEW(g->pool, n * DT__MAX_VARS, dt__var *);
	g->buffer = DT__NEW(g->pool, n * 5, dt__buffer);
	g->segment = DT__NEW(g->pool, n * (g->training ? 4 : 2) + 1, dt__segment);
	if (!g->node || !g->variable || !g->buffer || !g->segment) return dt__graph_full(g, "plan");
	dt__graph_walk(g, g->output);
	dt__graph_walk(g, g->main_loss);
	for (o = g->outputs; o; o = o->next) dt__graph_walk(g, o->t);
	DT__FOR(i, g->n_losses) dt__graph_walk(g, g->loss[i]);
	for (i = 2; i < g->n_inputs; i++)
		if (!strcmp(g->input[i]->name, g->input[i - 1]->name)) return dt__called_twice(g, "inputs", g->input[i]->name);
	DT__FOR(i, g->n_inputs)
		if (g->input[i]->number < 0) return dt__deny(&g->error, "input \"%s\" reaches nothing that net returns: use it or leave it out", i ? g->input[i]->name : "x");
	DT__FOR(i, g->n) dt__default_name(g, g->node[i]);
	DT__FOR(i, g->n) DT__FOR(k, DT__MAX_VARS) {
		dt__var *v = g->node[i]->variable[k];
		if (!v || v->number >= 0) continue;
		v->number = g->n_variables; v->user = i; g->variable[g->n_variables++] = v;
		dt__default_name(g, v->owner);
		dt__fill(v->name, "%s.%s", v->owner->name, v->suffix);
		DT__FOR(j, v->number) if (!strcmp(g->variable[j]->name, v->name)) return dt__called_twice(g, "layers", v->owner->name);
	}
	for (i = 1; i < g->n_losses; i++)
		DT__FOR(j, i) if (!strcmp(g->loss[i]->name, g->loss[j]->name)) return dt__called_twice(g, "losses", g->loss[i]->name);
	return 0;
}

// Offsets: trainable ones first, so that both flat arrays agree on them.
static int dt__graph_offsets(dt__graph *g, const char *freeze, const char *no_decay) {
	int pass, i;
	DT__FOR(pass, 2) {
		const char *globs = pass ? no_decay : freeze;
		int hits = 0;
		DT__FOR(i, g->n_variables) {
			dt__var *v = g->variable[i];
			int hit = dt__glob(globs, v->name);
			if (pass) v->no_decay |= hit;
			else v->frozen |= !g->training || hit;
			hits += hit;
		}
		if (globs && *globs && !hits)
			dt__deny(&g->error, ".%s: no parameter's name matches \"%.80s\": dt_parameter_at lists them", pass ? "no_decay" : "freeze", globs);
	}
	DT__FOR(pass, 2) {
		DT__FOR(i, g->n_variables) {
			dt__var *v = g->variable[i];
			if (dt__trains(v) == pass) continue;
			if (v->size > PTRDIFF_MAX / 8 - g->n_floats) return dt__oom(&g->error, "parameter \"%s\": with its %td values the model is too large for memory: use smaller layers", v->name, v->size);
			v->offset = g->n_floats; g->n_floats += v->size;
		}
		if (!pass) g->n_trainable = g->n_floats;
	}
	g->statistics = g->n_gradients = dt__ceil(g->n_trainable, 16); // slices of whole cache lines
	DT__FOR(i, g->n) {
		g->node[i]->statistics = g->n_gradients; g->n_gradients += g->node[i]->n_statistics;
	}
	g->totals = g->n_gradients; g->n_gradients = dt__ceil(g->n_gradients + DT__TOTALS, 16);
	return g->error.code;
}

// ---- the plan

static void dt__graph_marks(dt__graph *g) {
	const dt__named *o;
	int i, k;
	DT__FOR(i, g->n) {
		dt_tensor *t = g->node[i];
		t->wants = g->input_gradient && t == g->input[0];
		DT__FOR(k, DT__MAX_VARS) t->wants |= dt__trains(t->variable[k]);
		DT__FOR(k, t->n_in) {
			t->in[k]->consumers++;
			t->wants |= t->in[k]->wants && !dt__is_target(t, k);
		}
		if (!t->op->backward && t->op != &dt__input) t->wants = 0;
	}
	for (o = g->outputs; o; o = o->next) o->t->is_output = 1;
	g->output->is_output = 1;
	if (!g->training) return;
	g->output->back = g->output->wants && (!g->main_loss || g->main_loss->in[0] == g->output);
	for (i = g->n - 1; i >= 0; i--) {
		dt_tensor *t = g->node[i];
		if (t->op->flags & DT__LOSS) t->back = t->wants;
		if (!t->back) continue;
		DT__FOR(k, t->n_in) {
			int wants = t->in[k]->wants && !dt__is_target(t, k);
			t->in[k]->back |= wants; t->in[k]->consumers_back += wants;
		}
	}
}

// May x's consumer overwrite it? Not if it is read afterwards.
static int dt__overwritable(const dt_tensor *x) {
	for (;; x = x->in[0]) {
		if (x->consumers != 1 || x->is_output || (x->back && x->op->flags & DT__READS_Y) || x->op->flags & DT__LOSS) return 0;
		if (x->n_in == 0 || x->value != x->in[0]->value) return 1;
	}
}

static int dt__new_buffer(dt__graph *g, dt__n fixed, dt__n row, int birth, int death) {
	dt__buffer b = {dt__ceil(fixed + row * g->rows, DT__ALIGN / 4), row, -1, birth, death, -1, 0};
	g->buffer[g->n_buffers] = b;
	return g->n_buffers++;
}
static void dt__extend(dt__graph *g, int buffer, int time) {
	if (buffer >= 0 && g->buffer[buffer].death < time) g->buffer[buffer].death = time;
}

// Times: 0 feed; 1 + 2i and 2 + 2i the forward phases of node i; 4n - 1 - 2i and 4n - 2i its backward ones; 4n + 1 the end.
// These give the later phase, if there are two.
static int dt__forward_time(const dt_tensor *t) { return 1 + 2 * t->number + (t->op->forward_after != NULL); }
static int dt__back_time(const dt_tensor *t) { return 4 * t->graph->n - 1 - 2 * t->number + (t->op->backward_after != NULL); }

// The phase of a time, or NULL, and its node.
static dt__phase *dt__phase_at(const dt__graph *g, int time, dt_tensor **t) {
	int back = time > 2 * g->n, at = back ? 4 * g->n - time : time - 1;
	const dt__op *op = (*t = g->node[at / 2])->op;
	if (back) return !(*t)->back ? NULL : at % 2 ? op->backward : op->backward_after;
	return (*t)->fused ? NULL : at % 2 ? op->forward_after : op->forward;
}

static void dt__plan_values(dt__graph *g) {
	int i, k, n = g->n, end = g->training ? 4 * n + 1 : 2 * n + 1;
	DT__FOR(i, n) {
		dt_tensor *t = g->node[i], *x = t->in[0];
		unsigned flags = t->op->flags;
		int forward = dt__forward_time(t), backward = dt__back_time(t);
		DT__FOR(k, t->n_in) {
			dt__extend(g, t->in[k]->value, forward);
			if (t->back && flags & DT__READS_X) dt__extend(g, t->in[k]->value, backward);
		}
		if (flags & DT__LOSS) t->value = t->label >= 0 ? dt__new_buffer(g, 0, t->size, 0, 2 * n) : -1;
		else if (flags & DT__VIEW || (flags & DT__IN_PLACE && !(t->back && flags & DT__READS_X) && dt__overwritable(x))) t->value = x->value;
		else t->value = dt__new_buffer(g, 0, t->size, t->op == &dt__input ? 0 : forward, forward);
		dt__extend(g, t->value, forward);
		if (t->back && flags & DT__READS_Y) dt__extend(g, t->value, backward);
		if (t->is_output) dt__extend(g, t->value, end);
		if (t->saved_fixed || (t->saved_row && g->training))
			t->saved = dt__new_buffer(g, t->saved_fixed, t->saved_row, 1 + 2 * i, t->back ? backward : forward);
		if (t->op->scratch) t->scratch[0] = dt__new_buffer(g, t->op->scratch(t, g->rows, 0), 0, 1 + 2 * i, forward);
	}
}

static void dt__plan_grads(dt__graph *g) {
	int i, k, n = g->n;
	for (i = n - 1; i >= 0; i--) {
		dt_tensor *t = g->node[i];
		int backward = dt__back_time(t);
		if (!t->back) continue;
		if (t->op->scratch) t->scratch[1] = dt__new_buffer(g, t->op->scratch(t, g->rows, 1), 0, 4 * n - 1 - 2 * i, backward);
		if (t == g->output && t->gradient < 0) t->gradient = dt__new_buffer(g, 0, t->size, 2 * n, backward); // dt_backward_from
		DT__FOR(k, t->n_in) {
			dt_tensor *x = t->in[k];
			int death = x == g->input[0] && g->input_gradient ? 4 * n + 1 : dt__back_time(x);
			int on_dy = k == 0 && t->gradient >= 0 && x->consumers_back == 1 && x != g->output && t->op->flags & (DT__IN_PLACE | DT__VIEW | DT__PASSES);
			if (!x->back || dt__is_target(t, k)) continue;
			if (x->gradient < 0) x->gradient = on_dy ? t->gradient : dt__new_buffer(g, 0, x->size, backward, death);
			dt__extend(g, x->gradient, death);
		}
	}
}

// Floats of one strip, to stay in the second cache for a whole segment.
#ifndef DT_STRIP_FLOATS
#define DT_STRIP_FLOATS 262144
#endif

// Cut the times into segments: where a phase wants all rows, or all sums of the phase before it.
static void dt__plan_segments(dt__graph *g) {
	int time, n = g->n, end = g->training ? 4 * n : 2 * n, whole = 0, phases = 0;
	dt__n floats = 1;
	dt__segment *s = NULL;
	for (time = 1; time <= end; time++) {
		dt_tensor *t;
		dt__phase *phase = dt__phase_at(g, time, &t);
		int alone = g->no_fusion || t->op->flags & (DT__ALL_ROWS | DT__LOSS);
		int after = phase == t->op->backward_after || (phase == t->op->forward_after && g->training);
		if (time == 1 || time == 2 * n + 1 || (phase && (whole || alone || after))) {
			s = &g->segment[g->n_segments++]; s->first = time; s->strip = DT__MAX(g->rows, 1);
			phases = whole = 0; floats = 1;
		}
		s->last = time;
		if (!phase) continue;
		whole = alone;
		phases++;
		floats = DT__MIN(floats + (time > 2 * n ? 2 : 1) * (t->size + t->saved_row), DT_STRIP_FLOATS);
		if (phases > 1) s->strip = dt__block(g->rows, DT__MAX(DT_STRIP_FLOATS / floats, 1), 1);
	}
}

#ifndef DT_BUCKET_FLOATS
#define DT_BUCKET_FLOATS 65536 // gradients that leave together, at least
#endif

// Behind which segment which gradients are complete. Those of the last one stay for the end.
static void dt__plan_buckets(dt__graph *g) {
	dt__n open;
	int k, i;
	g->kept = g->n_trainable;
	DT__FOR(k, g->n_segments) {
		dt__segment *s = &g->segment[k];
		for (i = 0, open = 0; i < g->n_variables; i++)
			if (dt__trains(g->variable[i]) && dt__back_time(g->node[g->variable[i]->user]) > s->last) open = g->variable[i]->offset + g->variable[i]->size;
		if (k < g->n_segments - 1 && g->kept - open >= DT_BUCKET_FLOATS) g->kept = open;
		s->complete = g->kept;
	}
}

// The segment of a time if it runs in several strips, else NULL.
static const dt__segment *dt__strips_at(const dt__graph *g, int time) {
	const dt__segment *s = g->segment, *end = s + g->n_segments;
	while (s < end && s->last < time) s++;
	return s < end && s->first <= time && s->strip < g->rows ? s : NULL;
}

// With several strips, a buffer within one segment holds one strip's rows; all others live through the whole segment.
static void dt__plan_strips(dt__graph *g) {
	int i;
	DT__FOR(i, g->n_buffers) {
		dt__buffer *b = &g->buffer[i];
		const dt__segment *first = dt__strips_at(g, b->birth), *last = dt__strips_at(g, b->death);
		if (first && first == last && b->row) {
			b->local = 1;
			b->floats = dt__ceil(b->floats - b->row * (g->rows - first->strip), DT__ALIGN / 4);
			continue;
		}
		if (first) b->birth = first->first;
		if (last) b->death = last->last;
	}
}

// ---- fusion: a relu is free in a neighbour's pass, which stores its values anyway

// max(relu(x)) = relu(max(x)), and the second looks at fewer values: the nodes change roles.
static void dt__fuse_pool(dt_tensor *relu, dt_tensor *pool) {
	dt_tensor was = *relu;
	relu->op = pool->op; relu->options = pool->options; relu->size = pool->size;
	relu->saved_row = pool->saved_row; pool->saved_row = 0;
	memcpy(relu->dim, pool->dim, sizeof relu->dim);
	memcpy(relu->name, pool->name, sizeof relu->name);
	pool->op = was.op; pool->options = was.options;
	memcpy(pool->name, was.name, sizeof pool->name);
}

// The layer before applies the relu, if both have one place.
static void dt__fuse_relu(dt_tensor *x, dt_tensor *relu) { if (relu->value == x->value) x->relu = relu->fused = 1; }
static const struct { const char *first, *second; void (*fuse)(dt_tensor *, dt_tensor *); } dt__fused[] = {
	{"relu", "maxpool2d", dt__fuse_pool}, // before values have places; then
	{"conv2d,dense,batchnorm,add,maxpool2d", "relu", dt__fuse_relu}};
static void dt__fuse(const dt__graph *g, int k) {
	int i;
	DT__WHILE(i, g->n, !g->no_fusion) {
		dt_tensor *t = g->node[i], *x = t->in[0];
		if (x->consumers == 1 && !x->is_output && dt__glob(dt__fused[k].first, x->op->name) && dt__glob(dt__fused[k].second, t->op->name)) dt__fused[k].fuse(x, t);
	}
}

// Largest buffer first, each at the lowest place free while it lives.
static void dt__plan_place(dt__graph *g) {
	int first = -1, k, i;
	DT__FOR(k, g->n_buffers) {
		dt__buffer *b = NULL;
		dt__n at = 0, alive = 0;
		int *link;
		DT__FOR(i, g->n_buffers)
			if (g->buffer[i].offset < 0 && (!b || g->buffer[i].floats > b->floats)) b = &g->buffer[i];
		for (i = first; i >= 0; i = g->buffer[i].next) { // the placed ones, by offset
			const dt__buffer *p = &g->buffer[i];
			if (p->death < b->birth || p->birth > b->death) continue;
			if (p->offset >= at + b->floats) break;
			at = DT__MAX(at, p->offset + p->floats);
		}
		b->offset = at;
		for (link = &first; *link >= 0 && g->buffer[*link].offset <= at; link = &g->buffer[*link].next) {}
		b->next = *link; *link = (int)(b - g->buffer);
		g->block_floats = DT__MAX(g->block_floats, at + b->floats);
		DT__FOR(i, g->n_buffers) if (g->buffer[i].birth <= b->birth && b->birth <= g->buffer[i].death) alive += g->buffer[i].floats;
		g->lower_bound = DT__MAX(g->lower_bound, alive);
	}
}

static int dt__graph_finish(dt__graph *g, const char *freeze, const char *no_decay) {
	dt__n slack = 64, bytes;
	int i;
	g->sealed = 1;
	if (dt__graph_number(g) || dt__graph_offsets(g, freeze, no_decay)) return g->error.code;
	dt__graph_marks(g);
	DT__FOR(i, g->n) {
		const dt_tensor *t = g->node[i];
		slack = DT__MAX(slack, t->slack);
		if (!dt__times(t->size + t->saved_row, g->rows, &bytes) || bytes > PTRDIFF_MAX / 64)
			return dt__oom(&g->error, "layer \"%s\": %td samples of %td values are too large for memory: use a smaller .batch", t->name, g->rows, t->size);
	}
	dt__fuse(g, 0);
	dt__plan_values(g);
	if (g->training) dt__plan_grads(g);
	dt__fuse(g, 1);
	dt__plan_segments(g);
	dt__plan_buckets(g);
	dt__plan_strips(g);
	for (i = 0, bytes = slack; i < g->n_buffers; bytes += g->buffer[i++].floats)
		if (g->buffer[i].floats > PTRDIFF_MAX / 8 - bytes) return dt__oom(&g->error, "the layers' values for %td samples are too large for memory: use a smaller .batch", g->rows);
	dt__plan_place(g);
	g->block_floats += dt__ceil(slack, DT__ALIGN / 4);
	return 0;
}

// ---- running. A set is the replicas that this thread runs: its own or, without threads, all in turn.

// first: the index of p[0].
static void dt__check_finite(dt__replica *r, const dt_tensor *t, const float *p, dt__n n, dt__n first, const char *what) {
	dt__n i = 0;
	while (i < n && p[i] - p[i] == 0) i++;
	if (i < n) dt__fail(&r->error, DT_ERR_NUMERIC, "step %ld, replica %d: the %s of layer \"%s\" is not finite (%g at index %td): lower .learning_rate, scale the input, or set .clip_norm",
			r->step, r->rank, what, t->name, (double)p[i], first + i);
}

// Is what a phase wrote finite? Before the last strip, gradients of variables may be old.
static void dt__check_phase(dt__replica *r, const dt_tensor *t, int back) {
	int j, last = r->from + r->rows == r->run_rows;
	if (!back && !(t->op->flags & DT__LOSS)) dt__check_finite(r, t, dt__value(r, t), t->size * r->rows, t->size * r->from, "output");
	DT__WHILE(j, DT__MAX_VARS, back && last)
		if (dt__trains(t->variable[j])) dt__check_finite(r, t, r->gradients + t->variable[j]->offset, t->variable[j]->size, 0, "gradient");
	DT__WHILE(j, t->n_in, back) {
		const dt_tensor *x = t->in[j];
		if (x->back && !dt__is_target(t, j)) dt__check_finite(r, x, dt__grad(r, x), x->size * r->rows, x->size * r->from, "gradient");
	}
}

// Profile: what the time since start was for, in training.
static double dt__spent(dt__replica *r, int what, double start) {
	double now = dt__now();
	if (what >= 0 && r->training) r->seconds[what] += now - start;
	if (r->graph->span) r->graph->span(r, what, start, now);
	return now;
}

static void dt__run_strip(dt__replica *r, const dt__segment *s, int seeded) {
	const dt__graph *g = r->graph;
	int time;
	for (time = s->first; time <= s->last; time++) {
		dt_tensor *t;
		dt__phase *phase = dt__phase_at(g, time, &t);
		int back = time > 2 * g->n, loss = (t->op->flags & DT__LOSS) != 0;
		double start = g->profile ? dt__now() : 0;
		if (!phase || (back ? loss ? seeded : !r->written[t->number] : loss && !r->labelled)) continue;
		phase(r, t);
		if (r->checking && time == (back ? dt__back_time(t) : dt__forward_time(t))) dt__check_phase(r, t, back);
		if (g->profile) dt__spent(r, 2 * t->number + back, start);
	}
}

static void dt__run_segments(dt__replica *set, int n, int back, int seeded) {
	const dt__graph *g = set->graph;
	int i, k;
	DT__WHILE(i, n, g->profile) set[i].seconds[2 * g->n + back] += (double)(set[i].rows * set[i].training);
	DT__FOR(k, g->n_segments) {
		const dt__segment *s = &g->segment[k];
		dt_tensor *t;
		dt__phase *phase = dt__phase_at(g, s->first, &t);
		if ((s->first > 2 * g->n) != back) continue;
		if (phase && t->exchange && set->training && (!back || set->written[t->number]) && (phase == t->op->forward_after || phase == t->op->backward_after)) {
			DT__FOR(i, n) set[i].exchange_at = dt__saved(&set[i], t);
			set->exchange(set, n, t->exchange);
		}
		DT__FOR(i, n) {
			dt__replica *r = &set[i];
			r->run_rows = r->rows;
			memcpy(r->written + g->n, r->written, (size_t)g->n);
			do { // every strip finds the gradients as the first one did
				memcpy(r->written, r->written + g->n, (size_t)g->n);
				r->rows = DT__MIN(s->strip, r->run_rows - r->from);
				dt__run_strip(r, s, seeded);
			} while ((r->from += s->strip) < r->run_rows);
			r->rows = r->run_rows; r->from = 0;
		}
		if (back && set->leave) set->leave(set, n, s->complete);
	}
}

// seeded: from net's output, whose gradient is there; else from the losses.
static void dt__backward(dt__replica *set, int n, int seeded) {
	const dt__graph *g = set->graph;
	const dt_tensor *x = g->input[0];
	int i;
	DT__FOR(i, n) {
		memset(set[i].written, 0, (size_t)g->n);
		set[i].written[g->output->number] = seeded != 0;
	}
	dt__run_segments(set, n, 1, seeded);
	DT__FOR(i, n) // no loss depends on input 0
		if (x->back && !set[i].written[x->number]) dt__zero(x->size * set[i].rows, dt__grad(&set[i], x));
}

// Variables that no backward reached have gradient 0.
static void dt__grads_complete(dt__replica *r, dt__n from) {
	int i;
	DT__FOR(i, r->graph->n_variables) {
		const dt__var *v = r->graph->variable[i];
		if (v->offset < from) continue;
		if (!r->variable_written[i] && dt__trains(v)) dt__zero(v->size, r->gradients + v->offset);
		r->variable_written[i] = 1;
	}
}
static void dt__grads_clear(dt__replica *r) {
	memset(r->variable_written, 0, (size_t)r->graph->n_variables);
	dt__zero(r->graph->n_gradients - r->graph->statistics, r->gradients + r->graph->statistics);
}

// ========
// >>layers - one record per operation, reached from its layer function
//
// What: for each operation its shape rule, forward, backward and record. No list holds them, so the linker drops what a
//   program does not use.
// Uses: >>graph, >>kernels.
// Promise: forward and backward run with any number of rows, 0 included; backward adds where asked to.

#define DT__SET_OPTIONS(layer, t) dt_##layer##_options *o = (dt_##layer##_options *)(t)->options
#define DT__OPTIONS(layer, t) const DT__SET_OPTIONS(layer, t)
#define DT__ELSE(value, standard) ((value) != 0 ? (value) : (standard))
// In front of a body: dt__<op>_shape; dt__<name>, a phase; forward and backward in one, dt__<op>_run.
#define DT__SHAPE(op) static int dt__##op##_shape(dt_tensor *t)
#define DT__PHASE(name) static void dt__##name(dt__replica *r, dt_tensor *t)
#define DT__BOTH_WAYS(op) \
	static void dt__##op##_run(dt__replica *r, dt_tensor *t, int back); \
	DT__PHASE(op##_forward) { dt__##op##_run(r, t, 0); } \
	DT__PHASE(op##_backward) { dt__##op##_run(r, t, 1); } \
	static void dt__##op##_run(dt__replica *r, dt_tensor *t, int back)
// The record of an operation without second phases, from dt__<shape>_shape, dt__<run>_forward and so on.
#define DT__OP(name, flags, shape, run, scratch) \
	static const dt__op dt__##name = {#name, flags, dt__##shape##_shape, dt__##run##_forward, NULL, dt__##run##_backward, NULL, scratch, NULL}
#define DT__LAYER(layer, options) \
	dt_tensor *dt_##layer##_opt(dt_##options##_options o) { return dt__layer1(&dt__##layer, o.x, &o, sizeof o, o.name); }
#define DT__BARE_LAYER(layer) \
	dt_tensor *dt_##layer(dt_tensor *x) { return dt__layer1(&dt__##layer, x, NULL, 0, NULL); }

// ---- what several operations share

// y = or += a * x
static void dt__copy(dt__n n, float a, const float *x, float *y, int add) {
	if (a != 1 || add) dt__cpu()->linear(n, a, x, 1, add ? y : NULL, 0, 0, y);
	else if (n > 0 && x != y) memcpy(y, x, 4 * (size_t)n);
}

// The gradient of input i is factor * dy.
static void dt__pass_back(dt__replica *r, dt_tensor *t, int i, float factor, const float *dy) {
	int add;
	float *dx = dt__dx(r, t, i, &add);
	if (dx) dt__copy(r->rows * t->in[i]->size, factor, dy, dx, add);
}
static int dt__same_shape(dt_tensor *t) { return dt__needs_floats(t) || dt__set_shape(t, t->in[0]->rank, t->in[0]->dim); }
static int dt__needs_image(dt_tensor *t) {
	dt__shape_text text;
	if (t->in[0]->rank != 4) return dt__bad(t, "input is %s: [n, height, width, channels] is needed", dt__shape_of(t->in[0], &text));
	return dt__needs_floats(t);
}

// One axis: outputs for n inputs, or 0 if the kernel does not fit.
static int dt__conv_size(int n, int kernel, int stride, int dilation, int padding) {
	dt__n extent = (dt__n)dilation * (kernel - 1) + 1, in = (dt__n)n + 2 * (dt__n)padding;
	if (padding == DT_SAME) return (n - 1) / stride + 1;
	return in < extent ? 0 : (int)((in - extent) / stride + 1);
}

// The shape [n, h', w', c] of a window's places on the image.
static int dt__window_shape(dt_tensor *t, int h, int w, int stride, int dilation, int padding, int c) {
	const int *x = t->in[0]->dim;
	dt__shape_text text;
	t->dim[1] = dt__conv_size(x[1], h, stride, dilation, padding);
	t->dim[2] = dt__conv_size(x[2], w, stride, dilation, padding);
	t->dim[3] = c;
	if (t->dim[1] < 1 || t->dim[2] < 1)
		return dt__bad(t, "input %s is smaller than the %dx%d window: use at most %d, or in dt_conv2d .padding = DT_SAME",
				dt__shape_of(t->in[0], &text), dilation * (h - 1) + 1, dilation * (w - 1) + 1, DT__MIN(x[1], x[2]) + 2 * DT__MAX(padding, 0));
	return dt__set_shape(t, 4, t->dim);
}

// Weight and bias, share's or new ones. file: the weight's shape in files; the bias has file[0] values.
static int dt__parameters(dt_tensor *t, const dt_tensor *share, int rank, const int *file, dt_initializer init, double init_value, int no_bias, int frozen) {
	return dt__share(t, share) || dt__add_var(t, share, 0, "weight", rank, file, init, init_value, frozen) ||
			dt__add_var(t, share, 1, "bias", !no_bias, file, DT_CONSTANT, 0, frozen);
}
static const float *dt__bias(const dt__replica *r, const dt_tensor *t) { return t->variable[1] ? dt__weights(r, t, 1) : NULL; }
static void dt__finish(const dt__replica *r, const dt_tensor *t) {
	const float *bias = dt__bias(r, t);
	float *y = dt__value(r, t);
	if (bias || t->relu) dt__cpu()->columns_affine(dt__rows(r, t), dt__last(t), y, NULL, NULL, NULL, bias, t->relu, y, 0);
}

// ---- dense: Y [rows, out] = X [rows, in] W [in, out] + b

DT__SHAPE(dense) {
	DT__OPTIONS(dense, t);
	const dt_tensor *x = t->in[0];
	int file[2] = {o->units, x->dim[x->rank - 1]};
	if (dt__needs_floats(t)) return 1;
	if (o->units < 1) return dt__bad(t, ".units is %d: at least 1 is needed", o->units);
	memcpy(t->dim, x->dim, sizeof t->dim);
	t->dim[x->rank - 1] = o->units;
	if (dt__set_shape(t, x->rank, t->dim) || dt__parameters(t, o->share, 2, file, o->init, o->init_value, o->no_bias, o->frozen)) return 1;
	if (o->share) return 0;
	t->variable[0]->walk_stride[0] = 1; t->variable[0]->walk_stride[1] = o->units;
	dt__walk_features(t->variable[0], 1, x->hwc, o->units);
	return 0;
}
static dt__n dt__dense_scratch(const dt_tensor *t, dt__n rows, int back) {
	dt__n in = dt__last(t->in[0]), out = dt__last(t), m = rows * (t->size / out);
	dt__n dw = dt__gemm_scratch(in, out, m), dx = dt__gemm_scratch(m, in, out);
	return back ? DT__MAX(dw, dx) : dt__gemm_scratch(m, out, in);
}
DT__BOTH_WAYS(dense) {
	dt__n in = dt__last(t->in[0]), out = dt__last(t), m = dt__rows(r, t);
	const float *x = dt__x(r, t, 0), *w = dt__weights(r, t, 0), *dy = dt__grad(r, t);
	float *scratch = dt__at(r, t->scratch[back]), *d;
	int add;
	if (!back) { // Y = X W + b
		if (dt__gemm(m, out, in, x, in, 1, w, out, 1, dt__value(r, t), out, t->relu * DT__RECTIFIES, dt__bias(r, t), scratch)) dt__finish(r, t);
		return;
	}
	if ((d = dt__dw(r, t, 0, &add))) dt__gemm(in, out, m, x, 1, in, dy, out, 1, d, out, add, NULL, scratch); // dW = X^T dY
	if ((d = dt__dw(r, t, 1, &add))) dt__cpu()->column_moments(m, out, NULL, NULL, dy, d, NULL, add);
	if ((d = dt__dx(r, t, 0, &add))) dt__gemm(m, in, out, dy, out, 1, w, 1, out, d, in, add, NULL, scratch); // dX = dY W^T
}
DT__OP(dense, DT__READS_X | DT__ALL_ROWS, dense, dense, dt__dense_scratch);
DT__LAYER(dense, dense)

// ---- conv2d, channels last. Memory holds weights as [group][kh][kw][c / groups][filters / groups], depthwise
// ones as [kh][kw][c]. The three passes are one micro-kernel with other strides:
//
//   pass              rows        columns   inner k      outer k   A (row, k, k2)          B
//   forward           ow          filters   kw * c       kh        s*c, 1, pitch           weights
//   backward weights  kw * c      filters   ow           oh        1, s*c, s*pitch         dY
//   backward data     w           c         kw * filters kh        filters, 1, dY's pitch  weights flipped and transposed
//
// Groups and dilation break "kw * c contiguous": they go by kernel rows, and backward data tap by tap into a padded dX.
// With a stride, backward data is one such pass for each class of positions.

typedef struct {
	dt__n h, w, c, oh, ow, f, kh, kw, s, dil, groups, cg, fg, top, left;
	dt__n hp, wp; // the used part of the padded image
	dt__n pitch; // from a row of the image, padded or not, to the next
	dt__n span, spans; // contiguous values under a kernel row, and how many such pieces it has
	int padded, depthwise, simple, winograd;
} dt__conv;

static dt__conv dt__conv_of(const dt_tensor *t) {
	DT__OPTIONS(conv2d, t);
	const int *x = t->in[0]->dim;
	dt__conv v;
	v.h = x[1]; v.w = x[2]; v.c = x[3];
	v.oh = t->dim[1]; v.ow = t->dim[2]; v.f = t->dim[3];
	v.kh = o->kernel; v.kw = o->kernel_w; v.s = o->stride; v.dil = o->dilation;
	v.groups = o->groups; v.cg = v.c / v.groups; v.fg = v.f / v.groups;
	v.hp = (v.oh - 1) * v.s + v.dil * (v.kh - 1) + 1;
	v.wp = (v.ow - 1) * v.s + v.dil * (v.kw - 1) + 1;
	v.top = o->padding == DT_SAME ? DT__MAX(v.hp - v.h, 0) / 2 : o->padding;
	v.left = o->padding == DT_SAME ? DT__MAX(v.wp - v.w, 0) / 2 : o->padding;
	v.padded = v.top || v.left || v.hp > v.h || v.wp > v.w;
	v.pitch = (v.padded ? v.wp : v.w) * v.c;
	v.depthwise = v.groups > 1 && v.cg == 1 && v.fg == 1;
	v.simple = v.groups == 1 && v.dil == 1;
	v.span = v.simple ? v.kw * v.c : v.cg; v.spans = v.simple ? 1 : v.kw;
	// Whole vectors of channels, products that cannot overflow, tiles that are not too empty.
	v.winograd = v.simple && v.s == 1 && v.kh == 3 && v.kw == 3 && v.top < 3 && v.left < 3 && !o->direct && v.c % 16 == 0 && v.f % 16 == 0 && DT__MAX(v.c, v.f) <= 4096 &&
			dt__ceil(v.oh, 4) * dt__ceil(v.ow, 4) * 5 <= v.oh * v.ow * 8 && dt__ceil(v.h, 4) * dt__ceil(v.w, 4) * 5 <= v.h * v.w * 8;
	return v;
}

// Floats of packed weights: n columns per group, the rest as rows.
static dt__n dt__conv_packed(dt__conv v, dt__n rows, dt__n n) { return v.groups * v.kh * v.kw * rows * dt__ceil(n, dt__cpu()->columns / 2); }

DT__SHAPE(conv) {
	DT__SET_OPTIONS(conv2d, t);
	int file[4] = {o->filters, 0, o->kernel, DT__ELSE(o->kernel_w, o->kernel)};
	dt__n floats;
	dt__conv v;
	if (dt__needs_image(t)) return 1;
	o->kernel_w = file[3]; o->stride = DT__ELSE(o->stride, 1);
	o->dilation = DT__ELSE(o->dilation, 1); o->groups = DT__ELSE(o->groups, 1);
	if (o->filters < 1 || o->kernel < 1 || o->kernel_w < 1 || o->stride < 1 || o->dilation < 1 || o->groups < 1 || o->padding < DT_SAME ||
			DT__MAX(o->kernel, o->kernel_w) > 32767 || DT__MAX(o->stride, o->dilation) > 32767 || o->padding > 32767)
		return dt__bad(t, "%d filters, %dx%d kernel, .stride %d, .dilation %d, .groups %d, .padding %d: from 1 to 32767 each, .padding also 0 or DT_SAME",
				o->filters, o->kernel, o->kernel_w, o->stride, o->dilation, o->groups, o->padding);
	if (t->in[0]->dim[3] % o->groups || o->filters % o->groups)
		return dt__bad(t, ".groups = %d does not divide %d channels and %d filters", o->groups, t->in[0]->dim[3], o->filters);
	if (dt__window_shape(t, o->kernel, o->kernel_w, o->stride, o->dilation, o->padding, o->filters)) return 1;
	v = dt__conv_of(t);
	if (!dt__times(8 * v.s, DT__MAX(v.c, v.f), &floats) || floats > PTRDIFF_MAX / 64 ||
			!dt__times(v.hp + v.kh, v.wp + v.kw, &floats) || !dt__times(floats, DT__MAX(v.c, v.f), &floats) || floats > PTRDIFF_MAX / 64 ||
			!dt__times(v.kh * v.kw, DT__MAX(v.cg, v.fg), &floats) || !dt__times(floats, v.groups * dt__ceil(DT__MIN(v.cg, v.fg), 32), &floats))
		return dt__bad(t, "a padded image, or the weights, are too large for memory: use a smaller .padding, .stride or kernel");
	t->slack = DT__MAX(8 * v.s * v.c, 8 * v.f) + 64;
	file[1] = (int)v.cg;
	if (dt__parameters(t, o->share, 4, file, o->init, o->init_value, o->no_bias, o->frozen)) return 1;
	if (!o->share) {
		dt__var *w = t->variable[0];
		dt__n tap = v.depthwise ? v.c : v.cg * v.fg, dim[5] = {v.groups, v.fg, v.cg, v.kh, v.kw};
		dt__n stride[5] = {v.depthwise ? 1 : v.kh * v.kw * tap, 1, v.fg, v.kw * tap, tap};
		w->fan_out = v.fg * v.kh * v.kw; w->walk_rank = 5;
		memcpy(w->walk_dim, dim, sizeof dim);
		memcpy(w->walk_stride, stride, sizeof stride);
	}
	return 0;
}

// How one axis of dX comes from dY: position p, counted from the padding's start, gets taps r, r + s, … of the kernel,
// with its class r = p % s, from dY at p / s, p / s - 1, …
static dt__n dt__conv_taps(dt__n kernel, dt__n s, dt__n r) { return (kernel - r + s - 1) / s; }

// dY padded so that all exist: before, and in all.
static dt__n dt__conv_before(dt__n kernel, dt__n s) { return dt__conv_taps(kernel, s, 0) - 1; }
static dt__n dt__conv_lines(dt__n n, dt__n padding, dt__n kernel, dt__n s) { return (n - 1 + padding) / s + 1 + dt__conv_before(kernel, s); }

// out = or += the image x, moved down by top and right by left, which may be negative; zeros around it.
static void dt__move_image(const float *x, dt__n h, dt__n w, dt__n c, dt__n top, dt__n left, dt__n h_out, dt__n w_out, float *out, int add) {
	dt__n first = DT__MIN(DT__MAX(left, 0), w_out), last = DT__MAX(DT__MIN(w + left, w_out), first), y;
	for (y = 0; y < h_out; y++, out += w_out * c) {
		int outside = y < top || y - top >= h;
		if (!outside) dt__copy((last - first) * c, 1, x + ((y - top) * w + first - left) * c, out + first * c, add);
		if (add) continue;
		dt__zero((outside ? w_out : first) * c, out);
		dt__zero((w_out - last) * c, out + last * c);
	}
}

static const float *dt__conv_image(const dt__replica *r, const dt_tensor *t, dt__conv v, dt__n i, float *scratch) {
	const float *image = dt__x(r, t, 0) + i * t->in[0]->size;
	if (v.padded) dt__move_image(image, v.h, v.w, v.c, v.top, v.left, v.hp, v.wp, scratch, 0);
	return v.padded ? scratch : image;
}

// Weights [n_k][n] as panels for the micro-kernel.
static void dt__pack_panels(const float *p, dt__n step, dt__n stride_k, dt__n n, dt__n n_k, float *out) {
	dt__operand o = {p, step, stride_k, 0, 1, NULL};
	dt__pack_tiles(&o, n, dt__cut_columns(n), n_k, out);
}

static void dt__depthwise_run(dt__replica *r, dt_tensor *t, dt__conv v, int back) {
	const dt__kernels *k = dt__cpu();
	const float *weight = dt__weights(r, t, 0), *x = dt__x(r, t, 0), *dy = dt__grad(r, t);
	float *y = dt__value(r, t), *dw = back ? dt__dw(r, t, 0, NULL) : NULL, *dx = back ? dt__dx(r, t, 0, NULL) : NULL;
	dt__n i, oy, ox, ky, kx;
	if (!back) dt__zero(r->rows * t->size, y);
	DT__FOR(i, r->rows) DT__FOR(oy, v.oh) DT__FOR(ox, v.ow)
		DT__FOR(ky, v.kh) DT__FOR(kx, v.kw) {
			dt__n iy = oy * v.s + ky * v.dil - v.top, ix = ox * v.s + kx * v.dil - v.left;
			dt__n at = ((i * v.h + iy) * v.w + ix) * v.c, out = ((i * v.oh + oy) * v.ow + ox) * v.c, tap = (ky * v.kw + kx) * v.c;
			if (iy < 0 || iy >= v.h || ix < 0 || ix >= v.w) continue;
			if (!back) k->multiply(v.c, x + at, weight + tap, y + out, 1);
			if (dw) k->multiply(v.c, x + at, dy + out, dw + tap, 1);
			if (dx) k->multiply(v.c, weight + tap, dy + out, dx + at, 1);
		}
}

// ---- Winograd's way, for 3 x 3 kernels of stride 1. A tile of 4 x 4 outputs comes from a square of 6 x 6; a transform
// turns the convolution into a product for each of its 36 places:
//
//   pass              products, for every place
//   forward           [tiles, f] = image [tiles, c] weights [c, f]
//   backward weights  [c, f] += image^T [c, tiles] dY [tiles, f]
//   backward data     [tiles, c] = dY as an image [tiles, f] weights, flipped and transposed [f, c]

enum { DT__PLACES = 36 };

// From place to place of n tiles of c channels; not a power of two, which would crowd one corner of the cache.
static dt__n dt__places(dt__n n, dt__n c) { return n * c + 16; }

// About so many floats of both operands go through the products at once.
#ifndef DT_WINOGRAD_FLOATS
#define DT_WINOGRAD_FLOATS 98304
#endif
static dt__n dt__winograd_tiles(dt__conv v) { return dt__ceil(DT__MAX(DT_WINOGRAD_FLOATS / (DT__PLACES * (v.c + v.f)), 1), 8); }
static dt__n dt__winograd_panels(dt__conv v) { return v.f * dt__ceil(v.c, dt__cpu()->columns / 2); }
static dt__n dt__winograd_scratch(dt__conv v, int back) {
	dt__n weights = v.f * v.c, panels = dt__winograd_panels(v), moved = 2 * dt__places(dt__winograd_tiles(v), DT__MAX(v.c, v.f));
	return DT__PLACES * (back ? weights + panels + DT__MAX(moved, weights) : weights + moved);
}

// Images, and squares that begin so far above and left of a tile.
typedef struct { float *image; dt__n h, w, c, size, above, left; } dt__squares;

// Tiles [from, to), th * tw of an image, to or from their 36 places.
static void dt__winograd_move(int kind, dt__squares s, dt__n th, dt__n tw, dt__n from, dt__n to, float *places, int how) {
	dt__square place = {6 * dt__places(to - from, s.c), dt__places(to - from, s.c), 0, 6, 0, 6};
	dt__n t;
	for (t = from; t < to; t++, places += s.c) {
		dt__n y = t / tw % th * 4 - s.above, x = t % tw * 4 - s.left;
		dt__square square = {s.w * s.c, s.c, (int)DT__MAX(-y, 0), (int)DT__MIN(s.h - y, s.size), (int)DT__MAX(-x, 0), (int)DT__MIN(s.w - x, s.size)};
		float *corner = s.image + ((t / (th * tw) * s.h + y) * s.w + x) * s.c;
		if (kind == DT__WINOGRAD_OUTPUT) dt__cpu()->winograd(kind, s.c, places, &place, corner, &square, how);
		else dt__cpu()->winograd(kind, s.c, corner, &square, places, &place, 0);
	}
}

// y = or += rows of x times weights + bias, or its relu; without weights, y is dY and sums += x^T y. step: floats of weights or sums from place to
// place. in: room for dt__winograd_tiles of both.
static void dt__winograd_pass(dt__n rows, dt__conv v, dt__squares x, dt__squares y, const dt__operand *weights, const float *bias, float *sums, dt__n step, float *in, int how) {
	dt__n th = (y.h + 3) / 4, tw = (y.w + 3) / 4, tiles = dt__winograd_tiles(v), from, to, n, i;
	float *out = in + DT__PLACES * dt__places(tiles, x.c);
	for (from = 0; from < rows * th * tw; from = to) {
		to = DT__MIN(from + tiles, rows * th * tw); n = to - from;
		dt__winograd_move(DT__WINOGRAD_IMAGE, x, th, tw, from, to, in, 0);
		if (!weights) dt__winograd_move(DT__WINOGRAD_DY, y, th, tw, from, to, out, 0);
		DT__FOR(i, DT__PLACES) {
			float *xs = in + i * dt__places(n, x.c), *ys = out + i * dt__places(n, y.c);
			dt__operand a = {xs, weights ? x.c : 1, weights ? 1 : x.c, 0, 0, NULL}, b = {ys, 1, y.c, 0, 0, NULL};
			if (weights) {
				b = *weights; b.p += i * step;
				dt__tiles(1, 0, 0, n, y.c, 1, x.c, &a, &b, ys, y.c, 0, i == 7 ? bias : NULL); // this place goes to all outputs
			} else dt__tiles(1, 0, 0, x.c, y.c, 1, n, &a, &b, sums + i * step, y.c, 1, NULL);
		}
		if (weights) dt__winograd_move(DT__WINOGRAD_OUTPUT, y, th, tw, from, to, out, how);
	}
}

// 3 x 3 weights [c][f] to their places; flipped: last to first.
static void dt__winograd_weights(dt__conv v, const float *weights, int flipped, float *places) {
	dt__n n = v.c * v.f, tap = flipped ? -n : n, i;
	dt__square in = {3 * tap, tap, 0, 3, 0, 3}, out = {6 * n, n, 0, 6, 0, 6};
	for (i = 0; i < n; i += v.f) dt__cpu()->winograd(DT__WINOGRAD_WEIGHTS, v.f, weights + (flipped ? 8 * n : 0) + i, &in, places + i, &out, 0);
}
static void dt__winograd_forward(dt__replica *r, dt_tensor *t, dt__conv v) {
	float *weights = dt__at(r, t->scratch[0]);
	dt__squares x = {dt__x(r, t, 0), v.h, v.w, v.c, 6, v.top, v.left}, y = {dt__value(r, t), v.oh, v.ow, v.f, 4, 0, 0};
	dt__operand b = {weights, 1, v.f, 0, 0, NULL};
	if (r->from == 0) dt__winograd_weights(v, dt__weights(r, t, 0), 0, weights); // for all strips
	dt__winograd_pass(r->rows, v, x, y, &b, dt__bias(r, t), NULL, v.c * v.f, weights + DT__PLACES * v.c * v.f, t->relu * DT__RECTIFIES);
}

// The sums of dW's places go on over all strips; the last transforms them.
static void dt__winograd_backward_weights(dt__replica *r, dt_tensor *t, dt__conv v) {
	dt__n n = v.c * v.f, i;
	float *sums = dt__at(r, t->scratch[1]), *dw;
	dt__squares x = {dt__x(r, t, 0), v.h, v.w, v.c, 6, v.top, v.left}, dy = {dt__grad(r, t), v.oh, v.ow, v.f, 4, 0, 0};
	dt__square places = {6 * n, n, 0, 6, 0, 6}, kernel = {3 * n, n, 0, 3, 0, 3};
	int add;
	if (r->from == 0) dt__zero(DT__PLACES * n, sums);
	dt__winograd_pass(r->rows, v, x, dy, NULL, NULL, sums, n, sums + DT__PLACES * (n + dt__winograd_panels(v)), 0);
	if (r->from + r->rows < r->run_rows) return;
	dw = dt__dw(r, t, 0, &add);
	for (i = 0; i < n; i += v.f) dt__cpu()->winograd(DT__WINOGRAD_DW, v.f, sums + i, &places, dw + i, &kernel, add);
}

static void dt__winograd_backward_data(dt__replica *r, dt_tensor *t, dt__conv v, float *dx, int add) {
	dt__n n = v.c * v.f, panels = dt__winograd_panels(v), i;
	float *packed = dt__at(r, t->scratch[1]) + DT__PLACES * n, *in = packed + DT__PLACES * panels;
	dt__squares dy = {dt__grad(r, t), v.oh, v.ow, v.f, 6, 2 - v.top, 2 - v.left}, x = {dx, v.h, v.w, v.c, 4, 0, 0};
	dt__operand b = {packed, 1, 0, 0, 1, NULL};
	if (r->from == 0) dt__winograd_weights(v, dt__weights(r, t, 0), 1, in); // for all strips
	DT__WHILE(i, DT__PLACES, r->from == 0) dt__pack_panels(in + i * n, v.f, 1, v.c, v.f, packed + i * panels);
	dt__winograd_pass(r->rows, v, dy, x, &b, NULL, NULL, panels, in, add);
}

static dt__n dt__conv_scratch(const dt_tensor *t, dt__n rows, int back) {
	dt__conv v = dt__conv_of(t);
	dt__n image = v.padded ? v.hp * v.wp * v.c : 0, other;
	if (v.depthwise) return 0;
	if (v.winograd) return dt__winograd_scratch(v, back);
	if (!back) return image + dt__conv_packed(v, v.cg, v.fg) + t->slack;
	if (!t->in[0]->back) return image + t->slack;
	other = v.simple ? dt__conv_lines(v.h, v.top, v.kh, v.s) * dt__conv_lines(v.w, v.left, v.kw, v.s) * v.f : v.hp * v.wp * v.c;
	return DT__MAX(image, other) + dt__conv_packed(v, v.fg, v.cg) + t->slack;
}

DT__PHASE(conv_forward) {
	const dt__kernels *k = dt__cpu();
	dt__conv v = dt__conv_of(t);
	const float *weight = dt__weights(r, t, 0), *bias = dt__bias(r, t), *image;
	float *y = dt__value(r, t), *packed = dt__at(r, t->scratch[0]), *scratch = packed;
	// A simple kernel is one product, others one for each row: [k2][span] values with [fg] weights each.
	dt__n parts = v.simple ? 1 : v.kh, k2 = v.simple ? v.kh : v.kw, step2 = v.simple ? v.pitch : v.dil * v.c;
	dt__n part = k2 * v.span, part_floats = part * dt__ceil(v.fg, k->columns / 2), i, g, ky;
	int packs = part_floats > part * v.fg; // only if the last panel is partial
	if (v.winograd) dt__winograd_forward(r, t, v);
	if (v.depthwise) { dt__depthwise_run(r, t, v, 0); dt__finish(r, t); }
	if (v.winograd || v.depthwise) return;
	for (g = 0; packs && g < v.groups * parts; g++, scratch += part_floats)
		if (r->from == 0) dt__pack_panels(weight + g * part * v.fg, 1, v.fg, v.fg, part, scratch); // for all strips
	if (packs) weight = packed;
	DT__FOR(i, r->rows) {
		image = dt__conv_image(r, t, v, i, scratch);
		DT__FOR(g, v.groups) DT__FOR(ky, parts) {
			dt__operand a = {image + ky * v.dil * v.pitch + g * v.cg, v.s * v.c, 1, step2, 0, NULL};
			dt__operand b = {weight + (g * parts + ky) * part_floats, 1, v.fg, v.span * v.fg, packs, NULL};
			dt__tiles(v.oh, v.s * v.pitch, v.ow * v.f, v.ow, v.fg, k2, v.span, &a, &b, y + i * t->size + g * v.fg, v.f,
					(ky > 0) | (ky == parts - 1) * t->relu * DT__RECTIFIES, bias && ky == 0 ? bias + g * v.fg : NULL);
		}
	}
}

static void dt__conv_direct_weights(dt__replica *r, dt_tensor *t, dt__conv v, float *dw, int add) {
	// Rows of both images that stay in the first cache for all of dW.
	dt__n i, g, oy, ky, kx, block = dt__block(v.oh, DT__MAX(8192 / (v.s * v.pitch + v.ow * v.f), 1), 1);
	if (!add && r->rows == 0) dt__zero(t->variable[0]->size, dw);
	DT__FOR(i, r->rows) {
		const float *image = dt__conv_image(r, t, v, i, dt__at(r, t->scratch[1]) + (t->in[0]->back ? dt__conv_packed(v, v.fg, v.cg) : 0)), *dy = dt__grad(r, t) + i * t->size;
		for (oy = 0; oy < v.oh; oy += block, add = 1)
			DT__FOR(g, v.groups) DT__FOR(ky, v.kh) DT__FOR(kx, v.spans) {
				dt__operand a = {image + (oy * v.s + ky * v.dil) * v.pitch + kx * v.c * v.dil + g * v.cg, 1, v.s * v.c, v.s * v.pitch, 0, NULL};
				dt__operand b = {dy + oy * v.ow * v.f + g * v.fg, 1, v.f, v.ow * v.f, 0, NULL};
				float *out = dw + ((g * v.kh + ky) * v.spans + kx) * v.span * v.fg;
				dt__tiles(1, 0, 0, v.span, v.fg, DT__MIN(block, v.oh - oy), v.ow, &a, &b, out, v.fg, add, NULL);
			}
	}
}

// No dilation, no groups: for each of s * s classes a forward convolution of padded dY with its taps, last to first.
static void dt__conv_backward_classes(dt__replica *r, dt_tensor *t, dt__conv v, float *dx, int add) {
	const dt__kernels *k = dt__cpu();
	float *packed = dt__at(r, t->scratch[1]), *image = packed + dt__conv_packed(v, v.f, v.c), *panels = packed;
	dt__n above = dt__conv_before(v.kh, v.s), before = dt__conv_before(v.kw, v.s), wide = dt__conv_lines(v.w, v.left, v.kw, v.s);
	dt__n half = k->columns / 2, tap_floats = v.f * dt__ceil(v.c, half), i, j, y, x, ky, kx, n;
	for (y = 0; r->from == 0 && y < v.s; y++) // for all strips: panels class by class, each [columns of c][taps][f]
		DT__FOR(x, v.s) for (j = 0; j < v.c; j += k->columns)
			for (n = DT__MIN(dt__ceil(v.c - j, half), k->columns), ky = dt__conv_taps(v.kh, v.s, y) - 1; ky >= 0; ky--)
				for (kx = dt__conv_taps(v.kw, v.s, x) - 1; kx >= 0; kx--, panels += v.f * n)
					k->pack(dt__weights(r, t, 0) + (((y + ky * v.s) * v.kw + x + kx * v.s) * v.c + j) * v.f, v.f, 1, v.c - j, n, v.f, panels);
	DT__FOR(i, r->rows) {
		dt__move_image(dt__grad(r, t) + i * t->size, v.oh, v.ow, v.f, above, before, dt__conv_lines(v.h, v.top, v.kh, v.s), wide, image, 0);
		DT__FOR(y, DT__MIN(v.s, v.h)) { // the first position of each class
			dt__n row = (y + v.top) / v.s + above, class_y = (y + v.top) % v.s, ny = dt__conv_taps(v.kh, v.s, class_y);
			DT__FOR(x, DT__MIN(v.s, v.w)) {
				dt__n class_x = (x + v.left) % v.s, nx = dt__conv_taps(v.kw, v.s, class_x);
				dt__operand a = {image + ((row - ny + 1) * wide + (x + v.left) / v.s + before - nx + 1) * v.f, v.f, 1, wide * v.f, 0, NULL};
				dt__operand b = {packed, 1, 0, 0, 1, NULL};
				DT__FOR(j, class_y) b.p += dt__conv_taps(v.kh, v.s, j) * v.kw * tap_floats;
				DT__FOR(j, class_x) b.p += dt__conv_taps(v.kw, v.s, j) * ny * tap_floats;
				dt__tiles((v.h - y + v.s - 1) / v.s, wide * v.f, v.s * v.w * v.c, (v.w - x + v.s - 1) / v.s, v.c, ny, nx * v.f, &a, &b, dx + ((i * v.h + y) * v.w + x) * v.c, v.s * v.c, add, NULL);
			}
		}
	}
}

// With dilation or groups: each tap adds dY W^T to its places in a padded dX.
static void dt__conv_backward_taps(dt__replica *r, dt_tensor *t, dt__conv v, float *dx, int add) {
	const dt__kernels *k = dt__cpu();
	float *packed = dt__at(r, t->scratch[1]), *image = packed + dt__conv_packed(v, v.fg, v.cg);
	dt__n tap_floats = v.fg * dt__ceil(v.cg, k->columns / 2), i, g, ky, kx;
	for (g = 0; r->from == 0 && g < v.groups * v.kh * v.kw; g++) // for all strips
		dt__pack_panels(dt__weights(r, t, 0) + g * v.cg * v.fg, v.fg, 1, v.cg, v.fg, packed + g * tap_floats);
	DT__FOR(i, r->rows) {
		const float *dy = dt__grad(r, t) + i * t->size;
		dt__zero(v.hp * v.wp * v.c, image);
		DT__FOR(g, v.groups) DT__FOR(ky, v.kh) DT__FOR(kx, v.kw) {
			dt__operand a = {dy + g * v.fg, v.f, 1, 0, 0, NULL};
			dt__operand b = {packed + ((g * v.kh + ky) * v.kw + kx) * tap_floats, 1, 0, 0, 1, NULL};
			float *out = image + (ky * v.wp + kx) * v.dil * v.c + g * v.cg;
			dt__tiles(v.oh, v.ow * v.f, v.s * v.wp * v.c, v.ow, v.cg, 1, v.fg, &a, &b, out, v.s * v.c, 1, NULL);
		}
		dt__move_image(image, v.hp, v.wp, v.c, -v.top, -v.left, v.h, v.w, dx + i * t->in[0]->size, add);
	}
}

DT__PHASE(conv_backward_weights) {
	dt__conv v = dt__conv_of(t);
	float *d;
	int add;
	if ((d = dt__dw(r, t, 1, &add))) dt__cpu()->column_moments(dt__rows(r, t), v.f, NULL, NULL, dt__grad(r, t), d, NULL, add);
	if (v.depthwise) dt__depthwise_run(r, t, v, 1); // both
	else if (v.winograd && dt__trains(t->variable[0])) dt__winograd_backward_weights(r, t, v);
	else if ((d = dt__dw(r, t, 0, &add))) dt__conv_direct_weights(r, t, v, d, add);
}
DT__PHASE(conv_backward_data) {
	dt__conv v = dt__conv_of(t);
	int add;
	float *dx = v.depthwise ? NULL : dt__dx(r, t, 0, &add);
	if (!dx) return;
	if (v.winograd) dt__winograd_backward_data(r, t, v, dx, add);
	else if (v.simple) dt__conv_backward_classes(r, t, v, dx, add);
	else dt__conv_backward_taps(r, t, v, dx, add);
}
DT__PHASE(conv_backward) { dt__conv_backward_weights(r, t); dt__conv_backward_data(r, t); }
DT__OP(conv2d, DT__READS_X, conv, conv, dt__conv_scratch);
DT__LAYER(conv2d, conv2d)

// ---- pooling

DT__SHAPE(pool) {
	DT__SET_OPTIONS(pool2d, t);
	if (dt__needs_image(t)) return 1;
	o->stride = DT__ELSE(o->stride, o->size);
	if (o->size < 1 || o->stride < 1 || o->padding < 0 || o->padding > o->size / 2 || o->size > 32767)
		return dt__bad(t, ".size %d, .stride %d, .padding %d: size and stride are at least 1, padding at most size / 2", o->size, o->stride, o->padding);
	if (dt__window_shape(t, o->size, o->size, o->stride, 1, o->padding, t->in[0]->dim[3])) return 1;
	if (t->op->name[0] == 'm') t->saved_row = t->size; // where each maximum came from: x need not be kept
	return 0;
}

// A row of averages over n rows of the image; padding does not count.
static void dt__average_row(const dt_tensor *t, dt__n n, const float *x, float *y, const float *dy, float *dx) {
	DT__OPTIONS(pool2d, t);
	dt__n w = t->in[0]->dim[2], c = t->dim[3], ox, ky, kx;
	DT__FOR(ox, t->dim[2]) {
		dt__n left = ox * o->stride - o->padding, first = DT__MAX(left, 0), last = DT__MIN(left + o->size, w);
		float share = 1 / (float)(n * (last - first));
		DT__FOR(ky, n) for (kx = first; kx < last; kx++) {
			dt__n at = (ky * w + kx) * c;
			if (dx) dt__copy(c, share, dy + ox * c, dx + at, 1);
			else dt__copy(c, share, x + at, y + ox * c, ky > 0 || kx > first);
		}
	}
}

// Only a maximum saves something.
DT__BOTH_WAYS(pool) {
	DT__OPTIONS(pool2d, t);
	const dt_tensor *in = t->in[0];
	dt__pool_row p = {t->dim[2], in->dim[2], in->dim[3], 0, o->size, o->stride, o->padding, t->relu};
	dt__n i, row = p.n_in * p.c, out = p.n_out * p.c;
	const float *dy = dt__grad(r, t), *x = dt__value(r, in);
	float *y = dt__value(r, t);
	int32_t *which = t->saved_row ? (int32_t *)(void *)dt__saved(r, t) : NULL;
	int add = 0, apart = t->saved_row && o->stride >= o->size; // maxima whose windows share nothing
	int covered = o->stride == o->size && p.n_out * o->size == p.n_in && t->dim[1] * o->size == in->dim[1];
	float *dx = back ? dt__dx(r, t, 0, &add) : NULL;
	if (back && !dx) return;
	if (dx && !add && !(apart && covered)) dt__zero(r->rows * in->size, dx);
	DT__FOR(i, r->rows * t->dim[1]) {
		dt__n top = i % t->dim[1] * o->stride - o->padding, first = DT__MAX(top, 0), at = i / t->dim[1] * in->size + first * row, to = i * out;
		p.rows = DT__MIN(top + o->size, in->dim[1]) - first;
		if (!t->saved_row) dt__average_row(t, p.rows, x + at, y + to, dx ? dy + to : NULL, dx ? dx + at : NULL);
		else if (dx) dt__cpu()->maximum_back(&p, which + to, dy + to, dx + at, add || !apart);
		else dt__cpu()->maximum(&p, x + at, y + to, which && r->training ? which + to : NULL);
	}
}
DT__OP(maxpool2d, 0, pool, pool, NULL);
DT__LAYER(maxpool2d, pool2d)
DT__OP(avgpool2d, 0, pool, pool, NULL);
DT__LAYER(avgpool2d, pool2d)

DT__SHAPE(global_avgpool) {
	if (dt__needs_image(t)) return 1;
	t->dim[1] = t->in[0]->dim[3];
	return dt__set_shape(t, 2, t->dim);
}
DT__BOTH_WAYS(global_avgpool) {
	dt__n i, c = t->size, n = t->in[0]->size / c;
	int add;
	float *y = dt__value(r, t), *dx = back ? dt__dx(r, t, 0, &add) : NULL, share = 1 / (float)n;
	DT__WHILE(i, r->rows * n, dx) dt__copy(c, share, dt__grad(r, t) + i / n * c, dx + i * c, add);
	if (back) return;
	DT__FOR(i, r->rows) dt__cpu()->column_moments(n, c, NULL, NULL, dt__x(r, t, 0) + i * n * c, y + i * c, NULL, 0);
	dt__copy(r->rows * c, share, y, y, 0);
}
DT__OP(global_avgpool, 0, global_avgpool, global_avgpool, NULL);
DT__BARE_LAYER(global_avgpool)

// ---- views

DT__PHASE(view_backward) { dt__pass_back(r, t, 0, 1, dt__grad(r, t)); }
#define dt__view_forward NULL

DT__SHAPE(flatten) {
	const dt_tensor *x = t->in[0];
	if (x->size > INT_MAX) return dt__bad(t, "%td values in a row are too many", x->size);
	t->dim[1] = (int)x->size; t->type = x->type;
	if (x->rank == 4) memcpy(t->hwc, x->dim + 1, sizeof t->hwc);
	if (x->rank == 2) memcpy(t->hwc, x->hwc, sizeof t->hwc);
	return dt__set_shape(t, 2, t->dim);
}
DT__OP(flatten, DT__VIEW, flatten, view, NULL);
DT__BARE_LAYER(flatten)

// An axis behind a flatten loses its image: files hold it as memory does, and say so.
static int dt__set_other_shape(dt_tensor *t, int rank) {
	int i;
	DT__FOR(i, t->n_in) if (t->in[i]->hwc[2]) t->graph->hwc_files = 1;
	return dt__set_shape(t, rank, t->dim);
}

DT__SHAPE(reshape) {
	DT__OPTIONS(reshape, t);
	const dt_tensor *x = t->in[0];
	int open = 0, i;
	dt__n known = 1;
	dt__shape_text text, other;
	for (i = 1; i < DT_MAX_RANK && o->shape[i - 1]; i++) {
		t->dim[i] = o->shape[i - 1];
		if (t->dim[i] == -1 && !open) open = i;
		else if (t->dim[i] < 0) return dt__bad(t, "size %d of the new shape is %d: sizes start at 1, and one of them may be -1", i, t->dim[i]);
		else if (!dt__times(known, t->dim[i], &known)) return dt__bad(t, "the new shape is too large");
	}
	t->rank = i;
	if (i == 1) return dt__bad(t, "the new shape is empty: give at least one size, as in {7, 7, 64}");
	if (open && x->size % known == 0 && x->size / known <= INT_MAX) { t->dim[open] = (int)(x->size / known); known = x->size; }
	if (known != x->size)
		return dt__bad(t, "input %s has %td values a sample, %s has %td: they must agree", dt__shape_of(x, &text), x->size, dt__shape_of(t, &other), known);
	t->type = x->type;
	if (x->rank == 4 && i == 2) t->graph->hwc_files = 1;
	return dt__set_other_shape(t, i);
}
DT__OP(reshape, DT__VIEW, reshape, view, NULL);
DT__LAYER(reshape, reshape)

// ---- batch norm. saved: [count, sums 1 [c], sums 2 [c]] which .sync exchanges, then mean [c], 1 / deviation [c] and three
// numbers per column from the end of a phase, where sums are complete, to the strips of the next. The batch's sums,
// shifted by the running mean, ride in the gradient array: running statistics come from the global batch, equal everywhere.

// n variables of one value per feature, or share's.
static int dt__norm_vars(dt_tensor *t, const dt_tensor *share, int n, int no_bias, int frozen) {
	static const char *const suffix[DT__MAX_VARS] = {"weight", "bias", "running_mean", "running_var"};
	int c = (int)dt__last(t->in[0]), i;
	if (dt__same_shape(t) || dt__share(t, share)) return 1;
	DT__FOR(i, n) {
		int has = i != 1 || !no_bias;
		if (dt__add_var(t, share, i, suffix[i], has, &c, DT_CONSTANT, i == 0 || i == 3, frozen)) return 1;
		if (share || !has) continue;
		t->variable[i]->statistic = i > 1;
		dt__walk_features(t->variable[i], 0, t->hwc, 1);
	}
	return 0;
}
DT__SHAPE(batchnorm) {
	DT__SET_OPTIONS(batchnorm, t);
	o->momentum = DT__ELSE(o->momentum, 0.1); o->epsilon = DT__ELSE(o->epsilon, 1e-5);
	if (!(o->momentum > 0 && o->momentum <= 1) || !(o->epsilon > 0 && o->epsilon < 1))
		return dt__bad(t, ".momentum %g, .epsilon %g: both lie between 0 and 1", o->momentum, o->epsilon);
	if (dt__norm_vars(t, o->share, 4, 0, o->frozen)) return 1;
	t->n_statistics = 1 + 2 * dt__last(t);
	t->saved_fixed = t->n_statistics + 5 * dt__last(t);
	if (o->sync) t->exchange = t->n_statistics;
	return 0;
}

// Frozen statistics, or inference: the running ones normalise.
static int dt__batchnorm_fixed(const dt__replica *r, const dt_tensor *t) { return !r->training || t->variable[2]->frozen; }

typedef struct { float *sums, *one, *two, *mean, *inv, *a, *b, *d; } dt__batchnorm_saved;
static dt__batchnorm_saved dt__batchnorm_of(const dt__replica *r, const dt_tensor *t) {
	dt__n c = dt__last(t);
	float *p = dt__saved(r, t) + 1;
	dt__batchnorm_saved s = {p - 1, p, p + c, p + 2 * c, p + 3 * c, p + 4 * c, p + 5 * c, p + 6 * c};
	return s;
}
DT__PHASE(batchnorm_forward) {
	dt__n c = dt__last(t), i;
	const float *x = dt__x(r, t, 0), *running = dt__weights(r, t, 2);
	dt__batchnorm_saved s = dt__batchnorm_of(r, t);
	double n;
	if (dt__batchnorm_fixed(r, t)) return;
	if (r->from == 0) {
		dt__zero(t->saved_fixed, s.sums);
		if (r->rows) memcpy(s.a, x, 4 * (size_t)c); // values count from the first row: no cancellation
	}
	dt__cpu()->column_moments(dt__rows(r, t), c, x, s.a, NULL, s.one, s.two, 1);
	s.sums[0] += (float)dt__rows(r, t);
	if (r->from + r->rows < r->run_rows || s.sums[0] == 0) return;
	n = (double)s.sums[0];
	DT__FOR(i, c) {
		double step = (double)s.one[i] / n, m2 = (double)s.two[i] - step * (double)s.one[i], mean = (double)s.a[i] + step, shift = mean - (double)running[i];
		s.one[i] = (float)(n * shift);
		s.two[i] = (float)(DT__MAX(m2, 0) + n * shift * shift);
		s.mean[i] = (float)mean;
		s.inv[i] = (float)(DT__MAX(m2, 0) / n); // the variance, so far
	}
	DT__WHILE(i, t->n_statistics, !r->rehearsing) r->gradients[t->statistics + i] += s.sums[i];
}
DT__PHASE(batchnorm_forward_after) {
	DT__OPTIONS(batchnorm, t);
	dt__n c = dt__last(t), i;
	const float *weight = dt__weights(r, t, 0), *bias = dt__weights(r, t, 1), *running = dt__weights(r, t, 2), *running_var = dt__weights(r, t, 3);
	dt__batchnorm_saved s = dt__batchnorm_of(r, t);
	int fixed = dt__batchnorm_fixed(r, t);
	DT__WHILE(i, c, r->from == 0) {
		double m = (double)running[i], v = (double)running_var[i];
		if (!fixed && t->exchange && s.sums[0] > 0) {
			double step = (double)s.one[i] / (double)s.sums[0];
			m += step;
			v = DT__MAX((double)s.two[i] / (double)s.sums[0] - step * step, 0);
		} else if (!fixed) {
			m = (double)s.mean[i]; v = (double)s.inv[i];
		}
		v = 1 / sqrt(v + o->epsilon); s.mean[i] = (float)m; s.inv[i] = (float)v;
		s.a[i] = (float)v * weight[i]; s.b[i] = bias[i] - (float)m * s.a[i];
	}
	dt__cpu()->columns_affine(dt__rows(r, t), c, dt__x(r, t, 0), s.a, NULL, NULL, s.b, t->relu, dt__value(r, t), 0);
}
DT__PHASE(batchnorm_backward) {
	dt__n c = dt__last(t), i;
	dt__batchnorm_saved s = dt__batchnorm_of(r, t);
	float *d;
	int add;
	if (r->from == 0) s.sums[0] = 0;
	dt__cpu()->column_moments(dt__rows(r, t), c, dt__x(r, t, 0), s.mean, dt__grad(r, t), s.one, s.two, r->from > 0);
	s.sums[0] += (float)dt__rows(r, t);
	if (r->from + r->rows < r->run_rows) return;
	if ((d = dt__dw(r, t, 0, &add))) DT__FOR(i, c) d[i] = (add ? d[i] : 0) + s.two[i] * s.inv[i];
	if ((d = dt__dw(r, t, 1, &add))) dt__copy(c, 1, s.one, d, add);
}

// dx = weight / deviation * (dy - mean(dy) - xhat * mean(dy * xhat)), as dy * a + x * b + d per column
DT__PHASE(batchnorm_backward_after) {
	dt__n c = dt__last(t), i;
	const float *weight = dt__weights(r, t, 0);
	dt__batchnorm_saved s = dt__batchnorm_of(r, t);
	int add, fixed = dt__batchnorm_fixed(r, t) || s.sums[0] == 0;
	float *dx = dt__dx(r, t, 0, &add);
	if (!dx) return;
	DT__WHILE(i, c, r->from == 0) {
		s.a[i] = weight[i] * s.inv[i];
		s.b[i] = fixed ? 0 : -s.a[i] * s.inv[i] * s.inv[i] * s.two[i] / s.sums[0];
		s.d[i] = fixed ? 0 : -s.a[i] * s.one[i] / s.sums[0] - s.b[i] * s.mean[i];
	}
	dt__cpu()->columns_affine(dt__rows(r, t), c, dt__grad(r, t), s.a, dt__x(r, t, 0), s.b, s.d, 0, dx, add);
}

static void dt__batchnorm_update(dt__replica *r, dt_tensor *t, int pass) {
	DT__OPTIONS(batchnorm, t);
	dt__n c = dt__last(t), i;
	float *sums = r->gradients + t->statistics, *one = sums + 1, *two = one + c;
	float *mean = dt__weights(r, t, 2), *var = dt__weights(r, t, 3);
	double n = (double)sums[0];
	if (n == 0 || t->variable[2]->frozen) return;
	DT__FOR(i, c) {
		if (pass == 0) { // the batch's mean and variance, before a sharer moves the running mean
			double s = (double)one[i] / n, v = DT__MAX((double)two[i] / n - s * s, 0);
			one[i] = (float)((double)mean[i] + s);
			two[i] = (float)(n > 1 ? v * (n / (n - 1)) : v);
			continue;
		}
		mean[i] = (float)((1 - o->momentum) * (double)mean[i] + o->momentum * (double)one[i]);
		var[i] = (float)((1 - o->momentum) * (double)var[i] + o->momentum * (double)two[i]);
	}
}
static const dt__op dt__batchnorm = {"batchnorm", DT__READS_X | DT__PER_FEATURE, dt__batchnorm_shape, dt__batchnorm_forward, dt__batchnorm_forward_after,
		dt__batchnorm_backward, dt__batchnorm_backward_after, NULL, dt__batchnorm_update};
DT__LAYER(batchnorm, batchnorm)

// ---- layer norm. saved: mean and 1 / deviation of every row

DT__SHAPE(layernorm) {
	DT__SET_OPTIONS(layernorm, t);
	o->epsilon = DT__ELSE(o->epsilon, 1e-5);
	if (!(o->epsilon > 0 && o->epsilon < 1)) return dt__bad(t, ".epsilon %g: it lies between 0 and 1", o->epsilon);
	if (dt__norm_vars(t, o->share, 2, o->no_bias, o->frozen)) return 1;
	t->saved_row = 2 * (t->size / dt__last(t));
	return 0;
}
DT__BOTH_WAYS(layernorm) {
	DT__OPTIONS(layernorm, t);
	dt__n c = dt__last(t), n = dt__rows(r, t), i;
	const float *x = dt__x(r, t, 0), *w = dt__weights(r, t, 0), *b = dt__bias(r, t), *dy = dt__grad(r, t);
	float *y = dt__value(r, t), *saved = dt__saved(r, t), unused[2], *dx = NULL, *dw = NULL, *db = NULL;
	int add;
	if (back) { dx = dt__dx(r, t, 0, &add); dw = dt__dw(r, t, 0, NULL); db = dt__dw(r, t, 1, NULL); }
	for (i = 0; i < n; i++, x += c) {
		if (!back) dt__cpu()->layernorm(c, x, w, b, (float)o->epsilon, y + i * c, saved ? saved + 2 * i : unused);
		else dt__cpu()->layernorm_back(c, x, w, saved + 2 * i, dy + i * c, dx ? dx + i * c : NULL, add, dw, db);
	}
}
DT__OP(layernorm, DT__READS_X | DT__PER_FEATURE, layernorm, layernorm, NULL);
DT__LAYER(layernorm, layernorm)

// ---- dropout. options: the rate

DT__SHAPE(dropout) {
	double rate = *(const double *)t->options;
	if (!(rate >= 0 && rate < 1)) return dt__bad(t, "the rate is %g: it must be at least 0 and below 1", rate);
	return dt__same_shape(t);
}
// The mask depends on seed, step, node and sample alone: backward makes it again.
DT__BOTH_WAYS(dropout) {
	double rate = *(const double *)t->options;
	uint64_t key = dt__random(r->seed, (uint64_t)t->number, (uint64_t)r->step);
	dt__n i, n = t->size;
	int add = 0;
	const float *x = back ? dt__grad(r, t) : dt__x(r, t, 0);
	float *y = back ? dt__dx(r, t, 0, &add) : dt__value(r, t);
	if (!y) return;
	if (!r->training || rate == 0) { dt__copy(r->rows * n, 1, x, y, add); return; }
	DT__FOR(i, r->rows)
		dt__cpu()->dropout(n, dt__mix(key + (uint64_t)(r->first_sample + r->from + i)), (uint32_t)(rate * 4294967295.0),
				(float)(1 / (1 - rate)), x + i * n, y + i * n, add);
}
DT__OP(dropout, DT__IN_PLACE | DT__PER_FEATURE, dropout, dropout, NULL);
dt_tensor *dt_dropout(dt_tensor *x, double rate) { return dt__layer1(&dt__dropout, x, &rate, sizeof rate, NULL); }

// ---- activations

typedef struct { int kind; float slope; } dt__activation_options;
DT__BOTH_WAYS(activation) {
	DT__OPTIONS(_activation, t);
	const float *x = dt__x(r, t, 0), *dy = dt__grad(r, t);
	float *y = dt__value(r, t), *dx;
	dt__n n = r->rows * t->size;
	int add;
	if (!back) dt__cpu()->activate(o->kind, n, x, y, o->slope);
	else if ((dx = dt__dx(r, t, 0, &add))) dt__cpu()->activate_back(o->kind, n, x, y, dy, dx, add, o->slope);
}
static dt_tensor *dt__activation(const dt__op *op, dt_tensor *x, int kind, double slope) {
	dt__activation_options o = {kind, (float)slope};
	return dt__layer1(op, x, &o, sizeof o, NULL);
}
#define DT__ACTIVATION(name, kind, reads) \
	DT__OP(name, reads | DT__IN_PLACE | DT__PER_FEATURE, same, activation, NULL); \
	dt_tensor *dt_##name(dt_tensor *x) { return dt__activation(&dt__##name, x, kind, 0); }
DT__ACTIVATION(relu, DT__RELU, DT__READS_Y)
DT__ACTIVATION(gelu, DT__GELU, DT__READS_X)
DT__ACTIVATION(gelu_tanh, DT__GELU_TANH, DT__READS_X)
DT__ACTIVATION(silu, DT__SILU, DT__READS_X)
DT__ACTIVATION(tanh, DT__TANH, DT__READS_Y)
DT__ACTIVATION(sigmoid, DT__SIGMOID, DT__READS_Y)
DT__OP(leaky_relu, DT__READS_Y | DT__IN_PLACE | DT__PER_FEATURE, same, activation, NULL);
dt_tensor *dt_leaky_relu(dt_tensor *x, double slope) {
	if (x && !(slope >= 0 && slope < 1e6)) dt__deny(&x->graph->error, "dt_leaky_relu: the slope is %g: it must be 0 or more", slope);
	return dt__activation(&dt__leaky_relu, x, DT__LEAKY_RELU, slope);
}
#undef DT__ACTIVATION

// ---- softmax

// dx = y * (dy - sum(dy * y))
DT__BOTH_WAYS(softmax) {
	dt__n c = dt__last(t), n = dt__rows(r, t) * c, i;
	int add;
	const float *dy = dt__grad(r, t);
	float *y = dt__value(r, t), *dx = back ? dt__dx(r, t, 0, &add) : NULL, top;
	for (i = 0; i < n; i += c) {
		if (!back) dt__cpu()->softmax(c, dt__x(r, t, 0) + i, y + i, &top);
		if (!dx) continue;
		dt__cpu()->multiply(c, y + i, dy + i, dx + i, add);
		dt__copy(c, -dt__cpu()->dot(c, y + i, dy + i), y + i, dx + i, 1);
	}
}
DT__OP(softmax, DT__READS_Y | DT__PER_FEATURE, same, softmax, NULL);
DT__BARE_LAYER(softmax)

// ---- arithmetic: y = factor[0] * a + factor[1] * b + offset, and y = a * b

// Both inputs have one shape, but for this axis.
static int dt__pair_fits(dt_tensor *t, int axis) {
	const dt_tensor *a = t->in[0], *b = t->in[1];
	dt__shape_text one, two;
	int i, ok = a->rank == b->rank;
	for (i = 1; ok && i < a->rank; i++) ok = i == axis || a->dim[i] == b->dim[i];
	return ok ? 0 : dt__bad(t, axis ? "the inputs are %s and %s: they may differ along axis %d only" : "the inputs are %s and %s: both need one shape",
			dt__shape_of(a, &one), dt__shape_of(b, &two), axis);
}
DT__SHAPE(pair) {
	if (dt__pair_fits(t, 0)) return 1;
	if (memcmp(t->in[0]->hwc, t->in[1]->hwc, sizeof t->hwc)) { memset(t->hwc, 0, sizeof t->hwc); t->graph->hwc_files = 1; }
	return dt__same_shape(t);
}
static dt_tensor *dt__layer2(const dt__op *op, dt_tensor *a, dt_tensor *b, const void *options, size_t options_size) {
	dt_tensor *const in[2] = {a, b};
	return dt__layer(op, in, 2, options, options_size, NULL);
}

typedef struct { float factor[2], offset; } dt__linear_options;
DT__BOTH_WAYS(linear) {
	DT__OPTIONS(_linear, t);
	int i = t->n_in - 1; // back, b first: a's gradient may lie on dy
	if (!back) dt__cpu()->linear(r->rows * t->size, o->factor[0], dt__x(r, t, 0), o->factor[1], i ? dt__x(r, t, 1) : NULL, o->offset, t->relu, dt__value(r, t));
	for (; back && i >= 0; i--) dt__pass_back(r, t, i, o->factor[i], dt__grad(r, t));
}
DT__OP(add, DT__PASSES | DT__PER_FEATURE, pair, linear, NULL);
DT__OP(sub, DT__PASSES | DT__PER_FEATURE, pair, linear, NULL);
static dt_tensor *dt__sum(const dt__op *op, dt_tensor *a, dt_tensor *b, float factor) {
	dt__linear_options o = {{1, factor}, 0};
	return dt__layer2(op, a, b, &o, sizeof o);
}
dt_tensor *dt_add(dt_tensor *a, dt_tensor *b) { return dt__sum(&dt__add, a, b, 1); }
dt_tensor *dt_sub(dt_tensor *a, dt_tensor *b) { return dt__sum(&dt__sub, a, b, -1); }
DT__OP(scale, DT__IN_PLACE | DT__PER_FEATURE, same, linear, NULL);
dt_tensor *dt_scale(dt_tensor *x, double factor, double offset) {
	dt__linear_options o = {{(float)factor, 0}, (float)offset};
	if (x && !(factor - factor == 0 && offset - offset == 0))
		dt__deny(&x->graph->error, "dt_scale: factor %g, offset %g: both must be finite", factor, offset);
	return dt__layer1(&dt__scale, x, &o, sizeof o, NULL);
}

DT__BOTH_WAYS(mul) {
	dt__n n = r->rows * t->size;
	int i, add;
	if (!back) dt__cpu()->multiply(n, dt__x(r, t, 0), dt__x(r, t, 1), dt__value(r, t), 0);
	DT__WHILE(i, 2, back) {
		float *d = dt__dx(r, t, i, &add);
		if (d) dt__cpu()->multiply(n, dt__grad(r, t), dt__x(r, t, 1 - i), d, add);
	}
}
DT__OP(mul, DT__READS_X | DT__PER_FEATURE, pair, mul, NULL);
dt_tensor *dt_mul(dt_tensor *a, dt_tensor *b) { return dt__layer2(&dt__mul, a, b, NULL, 0); }

// ---- moving blocks along an axis: concat, slice, pad, all with slice's options. A pad is a slice that begins before the
// axis and ends behind it; concat takes all of each input in turn.

// A negative axis counts from the end. t starts with its first input's shape.
static int dt__axis(dt_tensor *t) {
	DT__SET_OPTIONS(slice, t);
	int rank = t->in[0]->rank, asked = o->axis;
	if (o->axis < 0) o->axis += rank;
	if (o->axis < 1 || o->axis >= rank) return dt__bad(t, "axis %d: the input has axes 1 to %d behind the batch", asked, rank - 1);
	return dt__same_shape(t);
}

DT__BOTH_WAYS(move) {
	DT__OPTIONS(slice, t);
	dt__n blocks = r->rows, inner = 1, n_y = t->dim[o->axis], from = DT__MAX(o->begin, 0), to = from - o->begin, b, k, n;
	int i, add = 0;
	for (i = 1; i < o->axis; i++) blocks *= t->dim[i];
	for (i = o->axis + 1; i < t->rank; i++) inner *= t->dim[i];
	for (i = 0; i < t->n_in; i++, to += n) {
		dt__n n_x = t->in[i]->dim[o->axis], run; // indexes, and how many of them move at once
		float *x = dt__x(r, t, i), *y = dt__value(r, t);
		n = DT__MIN(n_x, n_y); run = o->step == 1 ? n : 1;
		if (back) {
			y = dt__grad(r, t); add = 1;
			x = dt__dx(r, t, i, n < n_x ? NULL : &add);
			if (!x) continue;
		} else if (t->n_in == 1 && n < n_y) dt__zero(r->rows * t->size, y);
		DT__FOR(b, blocks) for (k = 0; k < n; k += run) {
			dt__n at_x = (b * n_x + from + k * o->step) * inner, at_y = (b * n_y + to + k) * inner;
			if (back) dt__copy(run * inner, 1, y + at_y, x + at_x, add);
			else dt__copy(run * inner, 1, x + at_x, y + at_y, 0);
		}
	}
}

DT__SHAPE(concat) {
	DT__OPTIONS(slice, t);
	const int *b = t->in[1]->dim;
	if (dt__axis(t) || dt__pair_fits(t, o->axis)) return 1;
	if (b[o->axis] > INT_MAX - t->dim[o->axis]) return dt__bad(t, "axis %d becomes too large", o->axis);
	t->dim[o->axis] += b[o->axis];
	return dt__set_other_shape(t, t->rank);
}
DT__OP(concat, 0, concat, move, NULL);
dt_tensor *dt_concat(dt_tensor *a, dt_tensor *b, int axis) {
	dt_slice_options o = {a, axis, 0, 0, 1, NULL};
	return dt__layer2(&dt__concat, a, b, &o, sizeof o);
}

DT__SHAPE(slice) {
	DT__SET_OPTIONS(slice, t);
	int n, end = o->end;
	if (dt__axis(t)) return 1;
	n = t->dim[o->axis]; o->step = DT__ELSE(o->step, 1);
	if (o->end <= 0 && o->end >= -n) o->end += n;
	if (o->begin < 0 || o->begin >= o->end || o->end > n || o->step < 1)
		return dt__bad(t, "from %d to %d by %d along axis %d of size %d: begin lies in 0..%d, end behind it, and the step is at least 1",
				o->begin, end, o->step, o->axis, n, n - 1);
	t->dim[o->axis] = (o->end - o->begin - 1) / o->step + 1;
	return dt__set_other_shape(t, t->rank);
}
DT__OP(slice, 0, slice, move, NULL);
DT__LAYER(slice, slice)

DT__SHAPE(pad) {
	DT__SET_OPTIONS(slice, t);
	int *n;
	if (dt__axis(t)) return 1;
	n = &t->dim[o->axis];
	if (o->begin < 0 || o->end < 0 || o->begin > 1 << 24 || o->end > 1 << 24 || *n > 1 << 28)
		return dt__bad(t, "%d before and %d after: 0 to 2^24 are needed, and 2^28 in all", o->begin, o->end);
	*n += o->begin + o->end; o->begin = -o->begin;
	return dt__set_other_shape(t, t->rank);
}
DT__OP(pad, 0, pad, move, NULL);
dt_tensor *dt_pad(dt_tensor *x, int axis, int before, int after) {
	dt_slice_options o = {x, axis, before, after, 1, NULL};
	return dt__layer1(&dt__pad, x, &o, sizeof o, NULL);
}

// ---- embedding

DT__SHAPE(embedding) {
	DT__SET_OPTIONS(embedding, t);
	const dt_tensor *x = t->in[0];
	int file[2] = {o->tokens, o->features};
	if (x->type != DT_INT32) return dt__bad(t, "the input holds floats: give the input .input_type (or .type) DT_INT32");
	if (o->tokens < 1 || o->features < 1) return dt__bad(t, "%d tokens, %d features: at least 1 of each is needed", o->tokens, o->features);
	if (x->rank >= DT_MAX_RANK) return dt__bad(t, "the input has %d dimensions: at most %d", x->rank, DT_MAX_RANK - 1);
	memcpy(t->dim, x->dim, sizeof t->dim);
	t->dim[x->rank] = o->features;
	if (!o->init) { o->init = DT_NORMAL; o->init_value = DT__ELSE(o->init_value, 1); }
	return dt__set_shape(t, x->rank + 1, t->dim) || dt__parameters(t, o->share, 2, file, o->init, o->init_value, 1, o->frozen);
}
DT__BOTH_WAYS(embedding) {
	DT__OPTIONS(embedding, t);
	dt__n n = r->rows * t->in[0]->size, c = o->features, i;
	const int32_t *x = (const int32_t *)(const void *)dt__x(r, t, 0);
	float *dw = back ? dt__dw(r, t, 0, NULL) : NULL;
	DT__WHILE(i, n, dw || !back) {
		if (x[i] < 0 || x[i] >= o->tokens) {
			dt__deny(&r->error, "dt_embedding \"%s\": token %d of sample %td lies outside 0..%d", t->name, (int)x[i], r->first_row + r->from + i / t->in[0]->size, o->tokens - 1);
			if (!dw) dt__zero(c, dt__value(r, t) + i * c);
		} else if (dw) dt__copy(c, 1, dt__grad(r, t) + i * c, dw + x[i] * c, 1);
		else dt__copy(c, 1, dt__weights(r, t, 0) + x[i] * c, dt__value(r, t) + i * c, 0);
	}
}
DT__OP(embedding, DT__READS_X, embedding, embedding, NULL);
DT__LAYER(embedding, embedding)

// ---- custom

DT__SHAPE(custom) {
	DT__OPTIONS(custom, t);
	dt__n size = 1;
	int i;
	if (!o->forward) return dt__bad(t, ".forward is NULL: a callback is needed");
	memcpy(t->dim + 1, o->shape[0] ? o->shape : t->in[0]->dim + 1, sizeof o->shape);
	for (i = 1; i < DT_MAX_RANK && t->dim[i]; i++) {}
	if (dt__set_other_shape(t, i)) return 1;
	DT__WHILE(i, DT_MAX_RANK - 1, o->weight[i])
		if (o->weight[i] < 1 || !dt__times(size, o->weight[i], &size)) return dt__bad(t, ".weight: size %d is %d: use sizes from 1 whose product fits in memory", i, o->weight[i]);
	return dt__add_var(t, NULL, 0, "weight", i, o->weight, o->init, o->init_value, o->frozen);
}
DT__BOTH_WAYS(custom) {
	DT__OPTIONS(custom, t);
	dt_custom_call c = DT_DEFAULTS;
	int i, code;
	c.n = (int)r->rows; c.n_inputs = t->n_in; c.y = dt__value(r, t); c.training = r->training;
	c.step = r->step; c.user = o->user;
	if (t->variable[0]) c.weight = dt__weights(r, t, 0);
	DT__FOR(i, t->n_in) {
		c.x[i] = dt__x(r, t, i);
		if (back) c.dx[i] = dt__dx(r, t, i, NULL);
	}
	if (back) { c.dy = dt__grad(r, t); c.dweight = dt__dw(r, t, 0, NULL); }
	code = back ? o->backward(&c) : o->forward(&c);
	if (code) dt__fail(&r->error, DT_ERR_CALLBACK, "dt_custom \"%s\": .%s returned %d", t->name, back ? "backward" : "forward", code);
}
DT__OP(custom, DT__READS_X | DT__READS_Y | DT__ALL_ROWS, custom, custom, NULL);
static const dt__op dt__custom_constant = {"custom", DT__ALL_ROWS, dt__custom_shape, dt__custom_forward, NULL, NULL, NULL, NULL, NULL};
dt_tensor *dt_custom_opt(dt_custom_options o) {
	dt_tensor *in[DT_MAX_INPUTS] = {o.x};
	int n = 1;
	for (; n < DT_MAX_INPUTS && o.more[n - 1]; n++) in[n] = o.more[n - 1];
	return dt__layer(o.backward ? &dt__custom : &dt__custom_constant, in, n, &o, sizeof o, o.name);
}
#undef DT__LAYER

// ========
// >>losses - losses, and the metrics that are counted with them
//
// What: a loss is a node at the graph's end. Forward sums weight * loss and the weights of its rows, and keeps the
//   prediction's gradient for backward to pass on. The division by the global sum of weights comes after the reduction, so
//   that any split of the batch gives the same answer.
// Owns: labels, in the loss node's value buffer: int32 classes or floats.
// Uses: >>graph, >>kernels.
// Promise: definitions equal PyTorch's. Labels are checked when they are fed, not when they do harm.

DT__SHAPE(loss) {
	DT__SET_OPTIONS(loss, t);
	const dt_tensor *p = t->in[0], *target = t->n_in > 1 ? t->in[1] : NULL;
	dt__shape_text one, two;
	dt__n classes = dt__last(p);
	int cross = o->kind == DT_CROSS_ENTROPY;
	if (p->type != DT_FLOAT32) return dt__bad(t, "the prediction holds integers");
	if ((unsigned)o->kind - 1 >= DT_VALUE) return dt__bad(t, "kind %d is no loss", (int)o->kind);
	o->weight = DT__ELSE(o->weight, 1); o->delta = DT__ELSE(o->delta, 1);
	if (!(o->weight - o->weight == 0) || !(o->delta > 0) || !(o->label_smoothing >= 0 && o->label_smoothing <= 1) || (unsigned)o->reduction > DT_SUM)
		return dt__bad(t, ".weight %g, .delta %g, .label_smoothing %g, .reduction %d: weight is finite, delta above 0, smoothing 0 to 1, reduction DT_MEAN or DT_SUM",
				o->weight, o->delta, o->label_smoothing, (int)o->reduction);
	if (cross && classes < 2) return dt__bad(t, "cross-entropy on %s needs at least 2 outputs: for one use DT_BINARY_CROSS_ENTROPY", dt__shape_of(p, &one));
	if (!o->label_type) o->label_type = cross ? DT_INT32 : DT_FLOAT32;
	t->type = !cross ? DT_FLOAT32 : target ? target->type : o->label_type == DT_ONE_HOT ? DT_FLOAT32 : DT_INT32;
	t->rank = 1;
	t->size = o->kind == DT_VALUE ? 0 : t->type == DT_INT32 ? p->size / classes : p->size;
	if (target && target->size != t->size) return dt__bad(t, "the target is %s, the prediction %s", dt__shape_of(target, &one), dt__shape_of(p, &two));
	if (target && target->type != t->type) return dt__bad(t, "the target holds integers");
	t->saved_row = p->size;
	return 0;
}
static dt__n dt__loss_scratch(const dt_tensor *t, dt__n rows, int back) {
	return back ? 0 : dt__last(t->in[0]);
}

// Labels or the target's values; NULL for DT_VALUE.
static const float *dt__loss_labels(const dt__replica *r, const dt_tensor *t) { return dt__value(r, t->n_in > 1 ? t->in[1] : t); }
static int dt__ignored(const dt_loss_options *o, int label) {
	return o->ignore_label && label == (o->ignore_label == DT_IGNORE_CLASS_0 ? 0 : o->ignore_label);
}

static void dt__count(dt__replica *r, int right, int right_top) {
	r->chunk_totals[DT__COUNTED] += 1; r->chunk_totals[DT__RIGHT] += (float)right;
	r->chunk_totals[DT__RIGHT_TOP] += (float)right_top;
}

// One row: returns its loss, sets weight and gradient d. soft: the label as floats, or NULL.
//   q: the target distribution times class weights, Q its sum:  loss = Q log(sum exp x) - q x,  d = Q softmax(x) - q
static double dt__cross_entropy_row(dt__replica *r, const dt_tensor *t, const float *x, dt__n classes, int label, const float *soft, double *weight, float *d) {
	DT__OPTIONS(loss, t);
	const float *cw = o->class_weights;
	double smooth = o->label_smoothing, lse, total = 0, dot = 0;
	float top;
	dt__n k, best = label, before = 0;
	int pass;
	*weight = cw && !soft ? (double)cw[label] : 1; // as PyTorch: one-hot and soft rows count 1
	lse = (double)dt__cpu()->softmax(classes, x, d, &top); // all logits count from the largest: no digits are lost
	if (soft) for (best = 0, k = 1; k < classes; k++) if (soft[k] > soft[best]) best = k;
	if (t->loss_number == 0) {
		DT__FOR(k, classes) before += !(x[k] <= x[best]) || (k < best && x[k] == x[best]); // NaN is never right
		dt__count(r, before == 0, before < r->top_k);
	}
	if (!soft && !cw && smooth == 0) { d[label] -= 1; return lse + (double)(top - x[label]); }
	DT__FOR(pass, 2) DT__FOR(k, classes) {
		double q = (cw ? (double)cw[k] : 1) * ((1 - smooth) * (soft ? (double)soft[k] : k == label) + smooth / (double)classes);
		if (pass) { d[k] = (float)(total * (double)d[k] - q); continue; }
		total += q; dot += q * (double)(x[k] - top);
	}
	return total * lse - dot;
}

static void dt__cross_entropy_forward(dt__replica *r, dt_tensor *t, double *sum, double *weights) {
	DT__OPTIONS(loss, t);
	const dt_tensor *p = t->in[0];
	dt__n classes = dt__last(p), per_sample = p->size / classes, n = r->rows * per_sample, i, k;
	const float *labels = dt__loss_labels(r, t), *x = dt__value(r, p);
	float *saved = r->training ? dt__saved(r, t) : NULL, *row = dt__at(r, t->scratch[0]);
	DT__FOR(i, n) {
		float *d = saved ? saved + i * classes : row, sw = r->sample_weight ? r->sample_weight[i / per_sample] : 1;
		double weight;
		int32_t label = 0;
		if (t->type == DT_INT32) {
			memcpy(&label, labels + i, sizeof label);
			if (dt__ignored(o, label)) { dt__zero(classes, d); continue; }
			if (label < 0 || label >= classes) { // a target's: fed labels were checked
				dt__deny(&r->error, "the target of loss \"%s\" holds class %d, which lies outside 0..%td", t->name, (int)label, classes - 1);
				label = 0;
			}
		}
		*sum += dt__cross_entropy_row(r, t, x + i * classes, classes, label, t->type == DT_INT32 ? NULL : labels + i * classes, &weight, d) * (double)sw;
		*weights += weight * (double)sw;
		if (sw != 1) DT__FOR(k, classes) d[k] *= sw;
	}
}

// A loss of single values, and its gradient d.
static double dt__pointwise(const dt_loss_options *o, double x, double y, double *d) {
	double e = x - y, a = fabs(e), z;
	switch (o->kind) {
	case DT_BINARY_CROSS_ENTROPY: // log(1 + exp(x)) - x y, without overflow
		z = exp(-fabs(x));
		*d = (x >= 0 ? 1 / (1 + z) : z / (1 + z)) - y;
		return DT__MAX(x, 0) - x * y + log1p(z);
	case DT_MSE: *d = 2 * e; return e * e;
	case DT_MAE: *d = e > 0 ? 1 : e < 0 ? -1 : e; return a;
	case DT_HUBER: *d = a < o->delta ? e : e > 0 ? o->delta : -o->delta; return a < o->delta ? 0.5 * e * e : o->delta * (a - 0.5 * o->delta);
	default: *d = 1; return x;
	}
}

static void dt__pointwise_forward(dt__replica *r, dt_tensor *t, double *sum, double *weights) {
	DT__OPTIONS(loss, t);
	const dt_tensor *p = t->in[0];
	const float *labels = dt__loss_labels(r, t), *x = dt__value(r, p);
	float *saved = r->training ? dt__saved(r, t) : NULL;
	double share = o->reduction == DT_SUM || o->kind == DT_VALUE ? 1 : 1 / (double)p->size;
	dt__n i, k;
	DT__FOR(i, r->rows) {
		double sw = r->sample_weight ? (double)r->sample_weight[i] : 1, d;
		for (k = i * p->size; k < (i + 1) * p->size; k++) {
			double y = labels ? (double)labels[k] : 0;
			*sum += sw * share * dt__pointwise(o, (double)x[k], y, &d);
			if (saved) saved[k] = (float)(sw * share * d);
			if (o->kind == DT_BINARY_CROSS_ENTROPY && t->loss_number == 0) dt__count(r, x[k] == x[k] && (x[k] > 0) == (y > 0.5), 0);
		}
		*weights += sw;
	}
}
DT__BOTH_WAYS(loss) {
	DT__OPTIONS(loss, t);
	double sum = 0, weights = 0;
	if (back) { dt__pass_back(r, t, 0, (float)o->weight * (r->graph->mixed_losses ? r->weight_scale[t->loss_number] : 1), dt__saved(r, t)); return; }
	if (o->kind == DT_CROSS_ENTROPY) dt__cross_entropy_forward(r, t, &sum, &weights);
	else dt__pointwise_forward(r, t, &sum, &weights);
	r->chunk_totals[2 * t->loss_number] = (float)sum;
	r->chunk_totals[2 * t->loss_number + 1] = (float)weights;
}
DT__OP(loss, DT__LOSS, loss, loss, dt__loss_scratch);
#undef DT__OP
#undef DT__SHAPE
#undef DT__PHASE
#undef DT__BOTH_WAYS

// A cross-entropy looks through a softmax (a binary one through a sigmoid): the same function without its overflow.
static dt_tensor *dt__logits(dt_tensor *t, dt_loss_kind kind) {
	return (kind == DT_CROSS_ENTROPY && t->op == &dt__softmax) || (kind == DT_BINARY_CROSS_ENTROPY && t->op == &dt__sigmoid) ? t->in[0] : t;
}
// The loss of the options comes first, others by name.
static dt_tensor *dt__add_loss(const dt_loss_options *o, int main_loss) {
	dt__graph *g = o->t ? o->t->graph : NULL;
	dt_tensor *in[2] = {NULL, o->target}, *t;
	int i;
	if (!g) return NULL;
	if (!g->error.code && g->n_losses == DT_MAX_INPUTS) dt__deny(&g->error, "dt_loss: more than %d losses", DT_MAX_INPUTS);
	in[0] = dt__logits(o->t, o->kind);
	t = dt__layer(&dt__loss, in, o->target ? 2 : 1, o, sizeof *o, o->name ? o->name : "loss");
	if (!t || t == &g->failed) return t;
	for (i = g->n_losses++; i > 0 && (main_loss || (g->loss[i - 1] != g->main_loss && strcmp(g->loss[i - 1]->name, t->name) > 0)); i--) g->loss[i] = g->loss[i - 1];
	g->loss[i] = t;
	if (main_loss) g->main_loss = t;
	return o->t;
}
dt_tensor *dt_loss_opt(dt_loss_options o) { return dt__add_loss(&o, 0); }

static void dt__losses_finish(dt__graph *g) {
	int i, sums = 0, odd = 0;
	DT__FOR(i, g->n_losses) {
		dt_tensor *t = g->loss[i];
		DT__OPTIONS(loss, t);
		t->loss_number = i;
		if (t->n_in == 1 && o->kind != DT_VALUE) t->label = g->n_labels++;
		sums += o->reduction == DT_SUM;
		odd += o->kind == DT_CROSS_ENTROPY && (o->class_weights || o->ignore_label || t->in[0]->rank > 2);
	}
	g->mixed_losses = g->n_losses > 1 && (odd || (sums && sums < g->n_losses));
}

// ---- totals: floats in the gradient array, judged in double

static void dt__totals_add(double *sum, const float *totals) { int i; DT__FOR(i, DT__TOTALS) sum[i] += (double)totals[i]; }
static const dt_loss_options *dt__loss_of(const dt_tensor *t) { return (const dt_loss_options *)t->options; }
static int dt__loss_means(const dt__graph *g, int i) { return dt__loss_of(g->loss[i])->reduction == DT_MEAN; }
static double dt__totals_loss(const dt__graph *g, const double *totals) {
	double loss = 0;
	int i;
	DT__FOR(i, g->n_losses) {
		DT__OPTIONS(loss, g->loss[i]);
		double w = o->reduction == DT_MEAN ? totals[2 * i + 1] : 1;
		if (w != 0) loss += o->weight * totals[2 * i] / w;
	}
	return loss;
}

// What summed gradients are divided by: the first mean loss's weights, or the rows of mixed losses; and rows seeded by hand.
static double dt__totals_weight(const dt__graph *g, const double *totals) { // -1: all losses are sums
	int i;
	if (g->mixed_losses) return totals[DT__ROWS];
	DT__FOR(i, g->n_losses) if (dt__loss_means(g, i)) return totals[2 * i + 1];
	return -1;
}
static double dt__divisor(double weight, double seeded) { return weight >= 0 ? weight + seeded : seeded > 0 ? seeded : 1; }
static double dt__totals_divisor(const dt__graph *g, const double *totals) {
	return dt__divisor(dt__totals_weight(g, totals), totals[DT__SEEDED]);
}

static double dt__totals_accuracy(const dt__graph *g, const double *totals, int which) {
	double counted = totals[DT__COUNTED];
	if (counted == 0 || (which == DT__RIGHT_TOP && dt__loss_of(g->loss[0])->kind != DT_CROSS_ENTROPY)) return (double)NAN;
	return totals[which] / counted;
}

// Mixed losses: scale each one's gradient so that one division serves all.
static void dt__losses_balance(dt__replica *r) {
	const dt__graph *g = r->graph;
	double totals[DT__TOTALS] = {0}, rows;
	int i;
	dt__totals_add(totals, r->global_totals);
	rows = dt__totals_divisor(g, totals);
	DT__FOR(i, g->n_losses) {
		double w = dt__loss_means(g, i) ? totals[2 * i + 1] : 1;
		r->weight_scale[i] = w != 0 ? (float)(rows / w) : 0;
	}
}

// ---- labels

// Convert one sample's labels to the form that the loss keeps; dst may be src.
static int dt__set_labels(const dt_tensor *t, float *dst, const void *src, dt_type type, dt__n index, dt_error *err) {
	DT__OPTIONS(loss, t);
	const dt_tensor *p = t->in[0];
	const uint8_t *bytes = (const uint8_t *)src;
	dt__n i, classes = dt__last(p);
	DT__FOR(i, t->size) {
		float f = 0;
		int32_t v = 0;
		if (type == DT_UINT8) { v = bytes[i]; f = (float)v; }
		else if (type == DT_INT32) { memcpy(&v, bytes + 4 * i, 4); f = (float)v; }
		else { memcpy(&f, bytes + 4 * i, 4); v = f > -2e9f && f < 2e9f ? (int32_t)f : -1; }
		if (f - f != 0) return dt__deny(err, "label %g of sample %td is not a finite number", (double)f, index);
		if (t->type != DT_INT32) { dst[i] = f; continue; }
		if ((float)v != f && type != DT_INT32)
			return dt__deny(err, "label %g of sample %td is no whole number: for one-hot or soft labels set .label_type = DT_ONE_HOT", (double)f, index);
		if ((v < 0 || v >= classes) && !dt__ignored(o, v))
			return dt__deny(err, "label %d of sample %td lies outside 0..%td, the net's outputs: add outputs, set .ignore_label, or check .label_type",
					(int)v, index, classes - 1);
		memcpy(dst + i, &v, sizeof v);
	}
	return 0;
}

// ========
// >>optimizers - update rules, schedules, clipping
//
// What: the options as numbers, the learning rate of a step, the update of one slice.
// Uses: >>kernels, >>base.
// Promise: definitions equal PyTorch's to rounding.

typedef struct { double momentum, beta1, beta2, alpha, epsilon, decay; } dt__factors; // of an update rule
typedef struct {
	dt_optimizer kind;
	dt__factors f;
	double rate, clip, final_rate, factor, warmup;
	dt_schedule schedule;
	long total, decay_steps;
	double (*rate_at)(long step, void *user);
	void *user;
	int n_slots; // arrays of moments
} dt__optimizer;

static double dt__default(double value, double standard) { return value == 0 ? standard : value == DT_OFF ? 0 : value; }
static int dt__slots(dt_optimizer kind, double momentum) {
	return kind == DT_ADAM || kind == DT_ADAMW ? 2 : (kind == DT_RMSPROP) + (momentum > 0 || kind == DT_MOMENTUM || kind == DT_NESTEROV);
}

static int dt__optimizer_open(dt__optimizer *p, const dt_options *o, dt_error *err) {
	int adam = o->optimizer == DT_ADAM || o->optimizer == DT_ADAMW, heavy = o->optimizer == DT_MOMENTUM || o->optimizer == DT_NESTEROV, i;
#define DT__N(field, standard, below) {#field, &p->f.field, dt__default(o->field, standard), below}
	const struct { const char *flag; double *to, value, below; } v[] = {
		{"learning_rate", &p->rate, DT__ELSE(o->learning_rate, adam ? 1e-3 : 1e-2), 1e6},
		DT__N(momentum, heavy ? 0.9 : 0, 1), DT__N(beta1, 0.9, 1), DT__N(beta2, 0.999, 1), DT__N(alpha, 0.99, 1), DT__N(epsilon, 1e-8, 1),
		{"weight_decay", &p->f.decay, dt__default(o->weight_decay, o->optimizer == DT_ADAMW ? 0.01 : 0), 1e6},
		{"clip_norm", &p->clip, dt__default(o->clip_norm, 0), HUGE_VAL},
		{"final_rate", &p->final_rate, o->final_rate, 1e6},
		{"decay_factor", &p->factor, DT__ELSE(o->decay_factor, o->schedule == DT_STEP_DECAY ? 0.1 : 0.96), 1e6},
		{"warmup_steps", &p->warmup, (double)o->warmup_steps, HUGE_VAL}, {"total_steps", NULL, (double)o->total_steps, HUGE_VAL},
		{"decay_steps", NULL, (double)o->decay_steps, HUGE_VAL}, {"optimizer", NULL, (double)o->optimizer, DT_RMSPROP + 1},
		{"schedule", NULL, (double)o->schedule, DT_LINEAR_DECAY + 1}
	};
#undef DT__N
	DT__FOR(i, DT__COUNT(v)) {
		if (!(v[i].value >= 0 && v[i].value < v[i].below))
			return dt__deny(err, ".%s is %g: it must be at least 0 and below %g", v[i].flag, v[i].value, v[i].below);
		if (v[i].to) *v[i].to = v[i].value;
	}
	p->kind = o->optimizer; p->schedule = o->schedule; p->total = o->total_steps;
	p->decay_steps = o->decay_steps; p->rate_at = o->rate_at; p->user = o->user;
	p->n_slots = dt__slots(o->optimizer, p->f.momentum);
	return 0;
}

// The learning rate after `step` updates.
static double dt__rate_of(const dt__optimizer *p, long step) {
	double t = (double)step - p->warmup, n = DT__MAX((double)p->total - p->warmup, 1);
	if (p->rate_at) return p->rate_at(step, p->user);
	if (t < 0) return p->rate * (double)(step + 1) / (p->warmup + 1);
	if (p->schedule == DT_COSINE_DECAY || p->schedule == DT_LINEAR_DECAY) {
		if (p->total == 0) return p->rate; // length unknown: dt_train fills it in
		t = DT__MIN(t / n, 1);
		if (p->schedule == DT_LINEAR_DECAY) return p->rate + (p->final_rate - p->rate) * t;
		return p->final_rate + (p->rate - p->final_rate) * 0.5 * (1 + cos(3.14159265358979323846 * t));
	}
	t /= (double)DT__ELSE(p->decay_steps, 1000);
	if (p->schedule == DT_STEP_DECAY) return p->rate * pow(p->factor, floor(t));
	if (p->schedule == DT_EXPONENTIAL_DECAY) return p->rate * pow(p->factor, t);
	return p->rate;
}

// The gradient is scale * g. step counts from 1.
static void dt__optimizer_apply(const dt__optimizer *p, dt__n at, dt__n n, float *w, const float *g, float *const *slot, double scale, double rate, long step, int no_decay) {
	const dt__kernels *k = dt__cpu();
	float *slot0 = slot[0] ? slot[0] + at : NULL, *slot1 = slot[1] ? slot[1] + at : NULL;
	dt__factors f = p->f;
	double decay = no_decay ? 0 : f.decay;
	int adamw = p->kind == DT_ADAMW, rms = p->kind == DT_RMSPROP;
	if (adamw || p->kind == DT_ADAM) {
		const dt__adam_numbers a = {(float)scale, (float)(rate / (1 - pow(f.beta1, (double)step))), (float)f.beta2, (float)(1 - f.beta1),
			(float)(1 - f.beta2), // not 1 - (float)0.999, which is 1.3e-5 of itself less
			(float)f.epsilon, adamw ? 0 : (float)decay, adamw ? (float)(1 - rate * decay) : 1, (float)(1 / sqrt(1 - pow(f.beta2, (double)step)))};
		k->adam(n, w + at, g, slot0, slot1, &a);
	} else k->sgd(n, w + at, g, rms ? slot1 : slot0, rms ? slot0 : NULL, (float)scale, (float)rate, (float)f.momentum, (float)decay, p->kind == DT_NESTEROV, (float)f.alpha, (float)f.epsilon);
}

// ========
// >>data - data sets: IDX, arrays, callbacks
//
// What: a source is opened into parts that stay as they are on disk (mapped where possible); a replica converts the samples
//   that it feeds. Shuffling is a keyed permutation, computed per index.
// Owns: the files of an open dt_dataset.
// Uses: >>losses (labels), >>base.
// Promise: every header is compared with the bytes there are before anything is allocated or multiplied; a sample and its
//   augmentation depend on (seed, epoch, index) alone.

#define DT__MAX_PARTS 64
typedef struct { const uint8_t *x, *y; long n; } dt__part;

// Items one behind the other, such as words with their zeros.
typedef struct { char *data; size_t size, used; int n; } dt__list;

struct dt_dataset {
	dt_source source;
	const char *what; // the function that made it
	dt_error *err; // of opening: functions return not 0 once they have told it why
	dt_dataset_info info;
	long n_all; // before folding
	dt__n x_stride, y_stride; // bytes; 0: those of the model's sample
	dt__part part[DT__MAX_PARTS];
#ifndef DTRAIN_NO_STDIO
	dt__list paths[2]; // of x, of labels
	dt__file file[2 * DT__MAX_PARTS];
#endif
	int n_parts, n_files;
	void *x, *y; // if made here
	dt__n y_values; // of a label; 0 -> 1
	int (*read[2])(const dt_dataset *d, const uint8_t *from, long i, dt_type to, float *x, dt_error *err); // a sample, its label; NULL: values lie there
	char *columns; // see dt_dataset_columns
};

// A Feistel network over the smallest even number of bits that holds n, walked until below n.
long dt_shuffle(long position, long n, uint64_t seed, long epoch) {
	int half = 1, round;
	uint64_t v = (uint64_t)position, key = dt__random(seed, 0x73687566, (uint64_t)epoch), mask;
	if (n <= 1 || position < 0 || position >= n) return position;
	while (half < 31 && (UINT64_C(1) << (2 * half)) < (uint64_t)n) half++;
	mask = (UINT64_C(1) << half) - 1;
	do {
		uint64_t left = v >> half, right = v & mask;
		DT__FOR(round, 4) {
			uint64_t next = left ^ (dt__mix(key + (uint64_t)round * UINT64_C(0x632be59bd9b4e019) + right) & mask);
			left = right; right = next;
		}
		v = left << half | right;
	} while (v >= (uint64_t)n);
	return (long)v;
}

static long dt__unfold(const dt_dataset *d, long i) { // index in a fold -> index in the file
	long k = d->source.folds, fold = d->source.fold;
	if (!k) return i;
	if (d->source.fraction != 0) return dt_shuffle(d->source.held_out ? i : d->n_all - d->info.n + i, d->n_all, 0, 0);
	if (d->source.held_out) return i * k + fold;
	return i / (k - 1) * k + i % (k - 1) + (i % (k - 1) >= fold);
}

// n values of type to floats (bytes / 255) or int32, as the input is; dst may hold src at its end.
static int dt__set_values(float *dst, const void *src, dt_type type, dt_type to, dt__n n, dt__n index, dt_error *err) {
	const uint8_t *bytes = (const uint8_t *)src;
	dt__n i;
	if (type == DT_UINT8 && to == DT_FLOAT32) { dt__cpu()->from_bytes(n, bytes, 1.0f / 255, dst); return 0; }
	if (type == to || (type == DT_ONE_HOT && to == DT_FLOAT32)) { memmove(dst, src, (size_t)n * 4); return 0; }
	DT__FOR(i, n) {
		int32_t v;
		if (type == DT_UINT8) v = bytes[i]; else memcpy(&v, bytes + 4 * i, 4);
		if (type == DT_FLOAT32) {
			float f = dt__float_from((uint32_t)v);
			if (!(f > -2147483648.0f && f < 2147483648.0f) || f != floorf(f))
				return dt__deny(err, "sample %td holds %g where its DT_INT32 input needs a whole number", index, (double)f);
			v = (int32_t)f;
		}
		if (to == DT_FLOAT32) dst[i] = (float)v; else memcpy(dst + i, &v, 4);
	}
	return 0;
}

static dt__n dt__type_size(dt_type type) { return type == DT_UINT8 ? 1 : 4; }
static int dt__open_fold(dt_dataset *d) { // sets info.n
	const dt_source *s = &d->source;
	long n = d->n_all, held;
	d->info.n = n;
	if (s->folds == 0) return 0;
	if (s->folds == -2) return dt__deny(d->err, "dt_fold: a part of a part is not made");
	if (s->fraction != 0) {
		held = (long)((double)n * s->fraction + 0.5);
		if (s->fraction < 0 || held < 1 || held >= n) return dt__deny(d->err, "dt_part: the fraction of %ld samples must leave some on both sides, as 0.2 does", n);
	} else if (s->folds < 2 || s->fold < 0 || s->fold >= s->folds || n < s->folds) {
		return dt__deny(d->err, "dt_fold: fold %d of %d folds of %ld samples: 2 or more folds, no more than samples, counted from 0",
				s->fold, DT__MAX(s->folds, 0), n);
	} else held = n / s->folds + (n % s->folds > s->fold);
	d->info.n = s->held_out ? held : n - held;
	return 0;
}

static int dt__add_part(dt_dataset *d, const void *x, const void *y, size_t n) {
	dt__part *p = &d->part[d->n_parts++];
	if (n > (size_t)(LONG_MAX - d->n_all)) return dt__bad_file(d->err, "%s: more samples than can be counted", d->what);
	p->x = (const uint8_t *)x; p->y = (const uint8_t *)y; p->n = (long)n;
	d->n_all += p->n;
	return 0;
}

#ifndef DTRAIN_NO_STDIO
static int dt__no_memory(const dt_dataset *d) { return dt__oom(d->err, "%s: no memory for \"%s\"", d->what, d->source.path); }
static int dt__list_add(const dt_dataset *d, dt__list *l, const void *item, size_t bytes) {
	if (bytes > l->size - l->used) {
		char *p = (char *)realloc(l->data, (l->size + bytes) * 2);
		if (!p) return dt__no_memory(d);
		l->data = p; l->size = (l->size + bytes) * 2;
	}
	memcpy(l->data + l->used, item, bytes);
	l->used += bytes; l->n++;
	return 0;
}

static int dt__add_paths(const dt_dataset *d, dt__list *l, const char *paths) { // separated by commas
	size_t n;
	for (; *paths; paths += n + (paths[n] != 0)) {
		n = strcspn(paths, ",");
		if (n > 1023) return dt__deny(d->err, "%s: the path \"%.40s...\" is too long", d->what, paths);
		if (dt__list_add(d, l, paths, n + 1)) return 1;
		l->data[l->used - 1] = 0; // where its comma was
	}
	return 0;
}

static const dt__file *dt__add_file(dt_dataset *d, const char *path) { // it stays until the set is closed
	if (d->n_files == DT__COUNT(d->file) || d->n_parts == DT__MAX_PARTS)
		dt__deny(d->err, "%s: more than %d files: join some", d->what, d->n_parts ? DT__MAX_PARTS : DT__COUNT(d->file));
	else if (!dt__file_read(d->what, path, &d->file[d->n_files], d->err)) return &d->file[d->n_files++];
	return NULL;
}

// ---- IDX, and pairs of files: samples and labels

// A header's sizes against the bytes that follow it; bytes of a sample to *stride.
static int dt__check_size(const dt_dataset *d, const char *path, const size_t *dim, int rank, size_t width, size_t follow, dt__n *stride) {
	size_t bytes = width;
	int i;
	for (i = rank - 1; i >= 0; bytes *= dim[i--])
		if (dim[i] == 0 || (i && dim[i] > INT_MAX) || bytes > SIZE_MAX / dim[i])
			return dt__bad_file(d->err, "\"%s\": size %d of its shape is %zu: %s", path, i + 1, dim[i], dim[i] ? "no memory holds so many values" : "it holds no sample");
	*stride = (dt__n)(bytes / dim[0]);
	if (bytes == follow) return 0;
	return dt__bad_file(d->err, "\"%s\" is %s: its header promises %zu bytes, %zu follow", path, bytes > follow ? "cut" : "too long", bytes, follow);
}

static int dt__other_shape(const dt_dataset *d, const char *path) {
	return dt__bad_file(d->err, "\"%s\" differs from the file before it in shape or type: only the number of samples may", path);
}

static int dt__add_pair(dt_dataset *d, const char *const *path, const void *x, size_t n, const void *y, size_t n_labels) {
	if (y && n != n_labels) return dt__bad_file(d->err, "\"%s\" holds %zu samples, \"%s\" %zu labels: they must agree", path[0], n, path[1], n_labels);
	return dt__add_part(d, x, y, n);
}

// IDX: 0 0 type(8: bytes) rank, rank big-endian sizes, the bytes.
static int dt__read_idx(dt_dataset *d, const char *path, int labels, size_t *dim, const uint8_t **data, dt__n *stride) {
	const dt__file *f = dt__add_file(d, path);
	unsigned start = !f || f->size < 4 ? 0 : dt__read_be32(f->data), rank = start - 0x0800;
	size_t header = 4 + 4 * (size_t)rank;
	unsigned i;
	if (!f) return 1;
	if ((labels ? rank != 1 : rank < 2 || rank > 4) || f->size < header)
		return dt__bad_file(d->err, "\"%s\" (%zu bytes, it begins with 0x%08x) is no IDX file of bytes in %s file, and not compressed without .gz in its name?",
				path, f->size, start, labels ? "1 dimension: is it the label" : "2 to 4 dimensions: is it the image");
	DT__FOR(i, rank) dim[i] = dt__read_be32(f->data + 4 + 4 * i);
	*data = f->data + header;
	return dt__check_size(d, path, dim, (int)rank, 1, f->size - header, stride);
}

static int dt__idx_pair(dt_dataset *d, const char *const *path) { // images path[0], labels path[1] or NULL
	const uint8_t *x = NULL, *y = NULL;
	size_t dim[4] = {0}, n = 0, i;
	int input[3];
	if (dt__read_idx(d, path[0], 0, dim, &x, &d->x_stride)) return 1;
	DT__FOR(i, 3) input[i] = (int)dim[i + 1];
	if (input[1] && !input[2]) input[2] = 1; // grey: one channel
	if (d->n_parts && memcmp(input, d->info.input, sizeof input)) return dt__other_shape(d, path[0]);
	memcpy(d->info.input, input, sizeof input);
	d->info.x_type = DT_UINT8;
	if (path[1]) {
		if (dt__read_idx(d, path[1], 1, &n, &y, &d->y_stride)) return 1;
		d->info.y_type = DT_UINT8;
		DT__FOR(i, n) d->info.classes = DT__MAX(d->info.classes, y[i] + 1);
	}
	return dt__add_pair(d, path, x, dim[0], y, n);
}

static int dt__open_pairs(dt_dataset *d, int (*open_pair)(dt_dataset *d, const char *const *path)) {
	const dt_source *s = &d->source;
	const char *path[2]; int i;
	if (dt__add_paths(d, &d->paths[0], s->path) || (s->labels && dt__add_paths(d, &d->paths[1], s->labels))) return 1;
	if (s->labels && d->paths[0].n != d->paths[1].n) return dt__deny(d->err, "%s: \"%.80s\" and \"%.80s\" list different numbers of files", d->what, s->path, s->labels);
	path[0] = d->paths[0].data; path[1] = d->paths[1].data;
	DT__FOR(i, d->paths[0].n) {
		if (open_pair(d, path)) return 1;
		path[0] += strlen(path[0]) + 1;
		if (path[1]) path[1] += strlen(path[1]) + 1;
	}
	return 0;
}

static int dt__open_idx(dt_dataset *d) { return dt__open_pairs(d, dt__idx_pair); }
static int dt__open_mnist(dt_dataset *d) {
	static const char *const part[] = {"images-idx3", "images.idx3", "labels-idx1", "labels.idx1"};
	const char *folder = d->source.path, *stem = d->source.split == DT_TEST ? "t10k" : "train", *pair[2];
	char path[2][1024];
	int k, i;
	DT__FOR(k, 2) {
		FILE *f = NULL;
		DT__WHILE(i, 4, !f) { // plain or .gz
			size_t n = dt__format(path[k], sizeof path[k], "%s/%s-%s-ubyte%s", folder, stem, part[2 * k + i % 2], i < 2 ? "" : ".gz");
			if (n < sizeof path[k]) f = fopen(path[k], "rb");
		}
		if (!f) return dt__fail(d->err, DT_ERR_IO, "dt_mnist: no \"%s-%s-ubyte\" (or .gz) in the folder \"%s\": examples/data.sh fetches all four", stem, part[2 * k], folder);
		fclose(f); pair[k] = path[k];
	}
	return dt__idx_pair(d, pair);
}
#else
static int dt__no_files(dt_dataset *d) { return dt__fail(d->err, DT_ERR_DISABLED, "%s: this build has DTRAIN_NO_STDIO: use dt_from or dt_arrays", d->what); }
#define dt__open_idx dt__no_files
#define dt__open_mnist dt__no_files
#endif

static int dt__open_memory(dt_dataset *d) {
	const dt_source *s = &d->source;
	if (s->n < 1) return dt__deny(d->err, "%s: n is %ld: at least 1 sample is needed", d->what, s->n);
	if (!s->x && !s->read) return dt__deny(d->err, "%s: x (or read) is NULL", d->what);
	if (s->x_type == DT_ONE_HOT) return dt__deny(d->err, "dt_arrays: x_type is DT_ONE_HOT, which is for labels");
	d->info.x_type = DT__ELSE(s->x_type, DT_FLOAT32); d->info.y_type = s->y_type;
	return dt__add_part(d, s->x, s->y, (size_t)s->n);
}

static int dt__open_opened(dt_dataset *d) {
	dt_source s = d->source;
	dt_error *err = d->err;
	if (!s.dataset) return dt__deny(err, "dt_opened: the data set is NULL");
	*d = *s.dataset;
	d->err = err; d->source.dataset = s.dataset;
	if (!s.folds) return 0;
	d->source = dt_fold(d->source, s.folds, s.fold, s.held_out ? DT_TEST : DT_TRAIN);
	d->source.fraction = s.fraction;
	return 0;
}

#ifndef DTRAIN_NO_MALLOC
void dt_dataset_close(dt_dataset *d) {
	if (d && !d->source.dataset) { // else all is that one's
#ifndef DTRAIN_NO_STDIO
		while (d->n_files > 0) dt__file_free(&d->file[--d->n_files]);
		free(d->paths[0].data); free(d->paths[1].data);
#endif
		free(d->x); free(d->y); free(d->columns);
	}
	free(d);
}

dt_dataset *dt_dataset_open(const dt_source *s, dt_error *err) {
	dt_dataset *d = NULL;
	if (!s || !s->open) dt__deny(err, "dt_dataset_open: no source: use dt_mnist, dt_arrays or a relative");
	else if (s->path && !*s->path) dt__deny(err, "%s: the path is empty: name a file or folder", s->what);
	else if (!(d = (dt_dataset *)calloc(1, sizeof *d))) dt__oom(err, "dt_dataset_open: no memory for a data set");
	if (!d) return NULL;
	d->source = *s; d->what = s->what; d->err = err;
	if (s->open(d) || dt__open_fold(d)) { dt_dataset_close(d); return NULL; }
	d->err = NULL;
	return d;
}
#else
void dt_dataset_close(dt_dataset *d) {}
dt_dataset *dt_dataset_open(const dt_source *s, dt_error *err) { dt__off(err, "DTRAIN_NO_MALLOC"); return NULL; }
#endif

static dt_source dt__source(const char *what, int (*opener)(dt_dataset *d)) {
	dt_source s = DT_DEFAULTS;
	s.what = what; s.open = opener;
	return s;
}
static dt_source dt__files(const char *what, int (*opener)(dt_dataset *d), const char *path, const char *labels, dt_split split) {
	dt_source s = dt__source(what, opener);
	s.path = path ? path : ""; s.labels = labels; s.split = (int)split;
	return s;
}
dt_source dt_mnist(const char *folder, dt_split split) { return dt__files(__func__, dt__open_mnist, folder, NULL, split); }
dt_source dt_idx(const char *images, const char *labels) { return dt__files(__func__, dt__open_idx, images, labels, DT_TRAIN); }
dt_source dt_arrays(const void *x, dt_type x_type, const void *y, dt_type y_type, long n) {
	dt_source s = dt__source(__func__, dt__open_memory);
	s.x = x; s.x_type = x_type; s.y = y; s.y_type = y_type; s.n = n;
	return s;
}
dt_source dt_from(int (*read)(void *user, long index, void *x, void *y), void *user, long n) {
	dt_source s = dt__source(__func__, dt__open_memory);
	s.read = read; s.user = user; s.n = n;
	return s;
}
dt_source dt_opened(dt_dataset *d) {
	dt_source s = dt__source(__func__, dt__open_opened);
	s.dataset = d;
	return s;
}
dt_source dt_fold(dt_source s, int folds, int fold, dt_split split) {
	s.folds = s.folds ? -2 : folds ? folds : -1; // errors, told on opening: a fold of a fold, no folds
	s.fold = fold; s.held_out = split == DT_TEST;
	return s;
}
dt_source dt_part(dt_source s, double fraction, dt_split split) {
	s = dt_fold(s, 1, 0, split);
	s.fraction = fraction > 0 && fraction < 1 ? fraction : -1;
	return s;
}

const char *dt_dataset_columns(const dt_dataset *d) { return d ? d->columns : NULL; }

dt_dataset_info dt_dataset_describe(const dt_dataset *d) {
	dt_dataset_info none = DT_DEFAULTS;
	return d ? d->info : none;
}

// ---- one sample

// Sample index of d: x as the input t wants it, labels as the loss node does.
// x: NULL: it is read soon, and the memory is told.
static int dt__read_sample(const dt_dataset *d, const dt_tensor *t, dt_type x_type, float *x, const dt_tensor *loss, dt_type y_type, float *y, long index, dt_error *err) {
	const uint8_t *from, *label = NULL;
	const dt__part *p = d->part;
	dt__n n = t->size, values = DT__ELSE(d->y_values, 1);
	long i = dt__unfold(d, index), k = i;
	int code;
	if (d->source.read && !x) return 0;
	if (d->source.read) { // bytes go to the end of their place and spread from there
		uint8_t *to = (uint8_t *)x + (4 - dt__type_size(x_type)) * n, *label_to = NULL;
		if (loss) label_to = (uint8_t *)y + (4 - dt__type_size(y_type)) * loss->size;
		if ((code = d->source.read(d->source.user, i, to, label_to))) return dt__fail(err, DT_ERR_CALLBACK, "dt_from: read returned %d for sample %ld", code, i);
		from = to; label = label_to;
	} else {
		for (; k >= p->n; p++) k -= p->n;
		x_type = d->info.x_type;
		if (d->info.y_type) y_type = d->info.y_type;
		from = p->x + k * DT__ELSE(d->x_stride, n * dt__type_size(x_type));
		if (loss && p->y) label = p->y + k * DT__ELSE(d->y_stride, loss->size * dt__type_size(y_type));
		for (k = 0; !x && k < n; k += 64) DT__PREFETCH(from + k);
		if (!x) return 0;
	}
	code = d->read[0] ? d->read[0](d, from, i, t->type, x, err) : dt__set_values(x, from, x_type, t->type, n, i, err);
	if (code || !loss) return code;
	if (!label) return dt__deny(err, "the data has no labels, which the loss \"%s\" needs", loss->name);
	if (d->y_stride && values != loss->size) return dt__fail(err, DT_ERR_SHAPE, "a label of the data has %td values, the loss \"%s\" needs %td", values, loss->name, loss->size);
	if (d->read[1]) {
		if ((code = d->read[1](d, label, i, y_type, y, err))) return code;
		label = (const uint8_t *)y;
	}
	return dt__set_labels(loss, y, label, y_type, i, err);
}

// ---- augmentation of one image x [h, w, c], in place

static void dt__shift_image(float *x, int h, int w, int c, int down, int right, int mirror) {
	dt__n line = (dt__n)w * c, by = (dt__n)right * c, kept = line - DT__MAX(by, -by);
	int i, k;
	if (!down && !right && !mirror) return;
	DT__FOR(i, h) {
		int y = down > 0 ? h - 1 - i : i; // overwrite no row that is still to move
		float *to = x + y * line, *a = to, *b = to + line - c;
		if (y - down < 0 || y - down >= h || kept <= 0) { dt__zero(line, to); continue; }
		memmove(to + DT__MAX(by, 0), x + (y - down) * line + DT__MAX(-by, 0), 4 * (size_t)kept);
		dt__zero(line - kept, by > 0 ? to : to + kept);
		for (; mirror && a < b; a += c, b -= c) DT__FOR(k, c) { float v = a[k]; a[k] = b[k]; b[k] = v; }
	}
}

// Crop and flip (training only), normalise, then (training only) the user's own.
static int dt__augment(const dt_options *o, const dt_tensor *t, float *x, int training, long epoch, long index, dt_error *err) {
	uint64_t random = dt__random(o->seed ^ UINT64_C(0x617567), (uint64_t)epoch, (uint64_t)index);
	dt__n i;
	int k, c = t->dim[t->rank - 1], code;
	if (training && t->rank == 4) {
		int h = t->dim[1], w = t->dim[2];
		uint64_t places = 2 * (uint64_t)o->crop + 1;
		dt__shift_image(x, h, w, c, (int)(random % places) - o->crop, (int)((random >> 24) % places) - o->crop, o->flip && random >> 63);
	}
	DT__FOR(k, DT__MIN(c, DT_MAX_CHANNELS)) {
		float mean = (float)o->mean[k], scale = (float)(1 / o->deviation[k]);
		if (o->deviation[k] == 0) continue;
		for (i = k; i < t->size; i += c) x[i] = (x[i] - mean) * scale;
	}
	if (!training || !o->augment) return 0;
	code = o->augment(o->user, x, index, dt__mix(random));
	return code ? dt__fail(err, DT_ERR_CALLBACK, "augment returned %d for sample %ld", code, index) : 0;
}

// ========
// >>replicas - collectives between threads; the model, its replicas, and the strategies of one process
//
// What: a replica is a thread with its own activations and gradients; a batch is split over the replicas by rows. A step is:
//   feed, forward, backward | reduce own slice | norm | update own slice | statistics. The bars are barriers; every replica
//   does 1/R of the reduction and of the update, for all. mirrored: each replica has its own variables, and a slice's owner
//   writes it to all. central: they share one. Without threads, the caller runs every phase for all replicas in turn.
// Owns: dt_model with its memory and threads; dt_comm groups.
// Uses: >>data, >>optimizers, >>losses, >>graph.
// Promise: sums are a binary tree over the replica index, so a setup gives the same bits every time; a replica that fails
//   still comes to every barrier, and then nothing is updated.

// ---- reduction of slices

typedef struct { dt__n begin, end; } dt__span;

static dt__n dt__len(dt__span s) { return s.end - s.begin; }

// Slice i of n values in parts, even to one unit. With units of a cache line two owners never share one.
static dt__span dt__slice_of(dt__n n, dt__n unit, int parts, int i) {
	dt__n units = (n + unit - 1) / unit, each = units / parts, more = units % parts;
	dt__span s = {DT__MIN(n, (each * i + DT__MIN(i, more)) * unit), DT__MIN(n, (each * (i + 1) + DT__MIN(i + 1, more)) * unit)};
	return s;
}

static void dt__copy_span(dt__span s, const float *from, float *to) { dt__copy(dt__len(s), 1, from + s.begin, to + s.begin, 0); }

// Combine a slice of buf[0..n-1] into buf[0], by a binary tree over the index, a piece of L1 at a time; the others are
// scratch. spread: the result goes to all of them.
static void dt__reduce(float *const *buf, int n, dt__span s, dt_reduction how, int spread) {
	dt__n at, count, j;
	int i, step;
	for (at = s.begin; at < s.end; at += count) {
		count = DT__MIN(s.end - at, 1024);
		for (step = 1; step < n; step *= 2)
			for (i = 0; i + step < n; i += 2 * step) {
				float *to = buf[i] + at;
				const float *from = buf[i + step] + at;
				if (how != DT_MAX) dt__copy(count, 1, from, to, 1);
				else DT__FOR(j, count) if (from[j] > to[j] || from[j] != from[j]) to[j] = from[j];
			}
		if (how == DT_MEAN) dt__copy(count, 1 / (float)n, buf[0] + at, buf[0] + at, 0);
		for (i = 1; i < n && spread; i++) dt__copy(count, 1, buf[0] + at, buf[i] + at, 0);
	}
}

// ---- groups: of threads here; of processes in >>wire, or through the caller's own transport

#define dt__not_now(err, ...) dt__fail(err, DT_ERR_STATE, __VA_ARGS__)

typedef struct {
	int n, open;
	dt_comm *comm; // [n]
	float **buf; // [n], what each rank brings
#ifndef DTRAIN_NO_THREADS
	dt__meeting meeting;
#endif
} dt__group;

typedef enum { DT__ALLREDUCE, DT__REDUCE_SCATTER, DT__ALLGATHER, DT__BROADCAST, DT__BARRIER, DT__PUSHING } dt__kind;

// What a worker tells its parameter servers, and is told: DT__PUSH: gradients for values; DT__STRETCH: values, once all workers
// ask, and how many batches there are to share; DT__SETUP: the chief's values and settings; DT__SETUP_DECAY: where they decay;
// DT__SETUP_SLOT, DT__FETCH: the optimizer's moments, there and back.
enum { DT__PUSH, DT__STRETCH, DT__SETUP, DT__SETUP_DECAY, DT__SETUP_SLOT, DT__FETCH };
typedef struct { // as it travels: eight bytes each
	uint64_t sequence, begin, trained, all; // number of the round; the server's slice
	uint64_t version; // updates of the values that the gradients are based on, or that come back
	int64_t stop, batches, next; // stop: as the model's; next: the batch to work on, or -1; moments: which
	double rate, weight, seeds; // weight and seeds: as dt__divisor takes them
	double staleness; // updates between
	dt__factors f; // DT__SETUP: these and the last
	int64_t kind, n_slots, sync, ahead, backup, full_rate;
} dt__order;
static int dt__order_answers(int kind) { return kind < DT__SETUP || kind == DT__FETCH; } // with values
typedef struct {
	int kind;
	float *out, *into, *sums; // [all] that leaves; [trained] that comes, and what lies behind it
	dt__n trained, all;
	dt__order order; // and then the answer
} dt__push;

struct dt_comm {
	int rank, size;
	int servers; // parameter servers, reached by push
	int (*push)(dt_comm *c, dt__push *p, dt_error *err);
	double cores; // that it may take for its own
	int spins; // how long it waits before it sleeps
	dt_wire wire; // what the next allreduce sends of a long array
	void (*start)(dt_comm *c, float *buf); // NULL: nothing to hide behind backward
	int (*finish)(dt_comm *c, dt_error *err); // wait for what was started
	dt__kind kind; // what this rank does now,
	size_t n; // … with so many values
	int detail; // how, or the root
	int (*run)(dt_comm *c, float *buf, dt_error *err);
	void (*close)(dt_comm *c);
	dt__group *group; // one of these three
	dt_comm_hooks hooks;
	struct dt__net *net;
};

// What others get from a rank: its slice, or in a broadcast all from the root.
static dt__span dt__comm_slice(const dt_comm *c, int rank) {
	dt__span s = {0, 0};
	if (c->kind != DT__BROADCAST) return dt__slice_of((dt__n)c->n, 1, c->size, rank);
	if (rank == c->detail) s.end = (dt__n)c->n;
	return s;
}

static int dt__sums(const dt_comm *c) { return c->kind <= DT__REDUCE_SCATTER; }

int dt_comm_rank(const dt_comm *c) { return c ? c->rank : 0; }
int dt_comm_size(const dt_comm *c) { return c ? c->size : 0; }
void dt_comm_slice(const dt_comm *c, size_t n, size_t *begin, size_t *end) {
	dt__span s = {0, 0};
	if (c) s = dt__slice_of((dt__n)n, 1, c->size, c->rank);
	*begin = (size_t)s.begin; *end = (size_t)s.end;
}

static const char *dt__call_of(const dt_comm *c) {
	static const char *const names[] = {"dt_allreduce", "dt_reduce_scatter", "dt_allgather", "dt_broadcast", "dt_barrier", "a parameter server's round"};
	return names[(unsigned)c->kind % DT__COUNT(names)];
}

static int dt__comm_left(const dt_comm *c, int rank, dt_error *err) { return dt__not_now(err, "%s: rank %d closed its handle: let all make the same calls first", dt__call_of(c), rank); }
static int dt__group_meet(const dt_comm *c, dt_error *err) {
	int left = 0;
#ifndef DTRAIN_NO_THREADS
	left = DT__LOAD(&c->group->meeting.broken);
	if (!left) left = dt__meet(&c->group->meeting);
#endif
	if (!left) return 0;
	return dt__comm_left(c, left - 1, err);
}

static int dt__same_call(const dt_comm *a, const dt_comm *b, dt_error *err) {
	if (a->kind == b->kind && a->n == b->n && a->detail == b->detail) return 0;
	return dt__not_now(err, "rank %d calls %s, n = %zu, root or reduction %d; rank %d calls %s, %zu, %d: let all make the same call",
		a->rank, dt__call_of(a), a->n, a->detail, b->rank, dt__call_of(b), b->n, b->detail);
}

static int dt__check_call(const dt_comm *c, const float *buf, dt_error *err) {
	int most = c->kind == DT__BROADCAST ? c->size - 1 : DT_MAX;
	if (c->n && !buf) return dt__deny(err, "%s: the array of rank %d is NULL", dt__call_of(c), c->rank);
	if (c->detail >= 0 && c->detail <= most) return 0;
	return dt__deny(err, "%s: the root or reduction is %d: give 0 .. %d", dt__call_of(c), c->detail, most);
}

// The second meeting: until nobody reads the others' arrays and calls any more.
static int dt__group_run(dt_comm *c, float *buf, dt_error *err) {
	dt__group *g = c->group;
	dt__span s;
	int i, code, left;
	g->buf[c->rank] = buf;
	if ((code = dt__group_meet(c, err))) return code;
	DT__WHILE(i, g->n, !code) { // the same answer on every rank
		code = dt__check_call(&g->comm[i], g->buf[i], err);
		if (!code) code = dt__same_call(g->comm, &g->comm[i], err);
	}
	DT__WHILE(i, g->n, !code && c->n && !dt__sums(c)) dt__copy_span(dt__comm_slice(c, i), g->buf[i], buf);
	if (!code && c->n && dt__sums(c)) {
		s = dt__comm_slice(c, c->rank);
		dt__reduce(g->buf, g->n, s, (dt_reduction)c->detail, c->kind == DT__ALLREDUCE);
		if (c->kind == DT__REDUCE_SCATTER) dt__copy_span(s, g->buf[0], buf);
	}
	left = dt__group_meet(c, err);
	return code ? code : left;
}

// The five kinds by the caller's two.
static int dt__hooks_run(dt_comm *c, float *buf, dt_error *err) {
	const dt_comm_hooks *h = &c->hooks;
	float one = 0;
	int i, failed = dt__check_call(c, buf, err);
	if (failed) return failed;
	if (c->kind == DT__BARRIER) failed = h->allreduce(h->user, &one, 1, DT_SUM);
	else if (!dt__sums(c)) DT__WHILE(i, c->size, !failed) {
		dt__span s = dt__comm_slice(c, i);
		if (dt__len(s)) failed = h->broadcast(h->user, buf + s.begin, (size_t)dt__len(s), i);
	} else if (c->n) {
		failed = h->allreduce(h->user, buf, c->n, c->detail == DT_MAX ? DT_MAX : DT_SUM);
		if (c->detail == DT_MEAN) dt__copy((dt__n)c->n, 1 / (float)c->size, buf, buf, 0);
	}
	return failed ? dt__fail(err, DT_ERR_CALLBACK, "%s: the callback of rank %d returned %d", dt__call_of(c), c->rank, failed) : 0;
}

static int dt__collective(dt_comm *c, dt__kind kind, float *buf, size_t n, int detail, dt_error *err) {
	if (!c) return dt__deny(err, "a collective: the comm is NULL");
	c->kind = kind; c->n = n; c->detail = detail;
	return c->run(c, buf, err);
}

int dt_allreduce(dt_comm *c, float *buf, size_t n, dt_reduction how, dt_error *err) { return dt__collective(c, DT__ALLREDUCE, buf, n, (int)how, err); }
int dt_reduce_scatter(dt_comm *c, float *buf, size_t n, dt_reduction how, dt_error *err) { return dt__collective(c, DT__REDUCE_SCATTER, buf, n, (int)how, err); }
int dt_allgather(dt_comm *c, float *buf, size_t n, dt_error *err) { return dt__collective(c, DT__ALLGATHER, buf, n, 0, err); }
int dt_broadcast(dt_comm *c, float *buf, size_t n, int root, dt_error *err) { return dt__collective(c, DT__BROADCAST, buf, n, root, err); }
int dt_barrier(dt_comm *c, dt_error *err) { return dt__collective(c, DT__BARRIER, NULL, 0, 0, err); }

void dt_comm_close(dt_comm *c) { if (c) c->close(c); }

#ifndef DTRAIN_NO_MALLOC
static void dt__group_close(dt_comm *c) {
	dt__group *g = c->group;
#ifndef DTRAIN_NO_THREADS
	dt__meeting_leave(&g->meeting, c->rank);
	if (DT__ADD(&g->open, -1)) return;
	dt__meeting_close(&g->meeting);
#endif
	free(g);
}

int dt_comm_group(int n, dt_comm **out, dt_error *err) {
	dt__group *g;
	int i;
	if (n < 1 || n > 1024 || !out) return dt__deny(err, "dt_comm_group: n is %d: give 1 to 1024, and an array for them", n);
#ifdef DTRAIN_NO_THREADS
	if (n > 1) return dt__off(err, "DTRAIN_NO_THREADS");
#endif
	g = (dt__group *)calloc(1, sizeof *g + (size_t)n * (sizeof *g->comm + sizeof *g->buf));
#ifndef DTRAIN_NO_THREADS
	if (g && dt__meeting_open(&g->meeting, n)) { free(g); g = NULL; }
#endif
	if (!g) return dt__oom(err, "dt_comm_group: no memory, or no mutex, for %d handles", n);
	g->n = g->open = n; g->comm = (dt_comm *)(void *)(g + 1);
	g->buf = (float **)(void *)(g->comm + n);
	DT__FOR(i, n) {
		dt_comm *c = out[i] = &g->comm[i];
		c->group = g; c->rank = i; c->size = n; c->run = dt__group_run;
		c->cores = dt__cores() / (double)n; c->close = dt__group_close;
	}
	return 0;
}

static void dt__hooks_close(dt_comm *c) {
	if (c->hooks.close) c->hooks.close(c->hooks.user);
	free(c);
}

dt_comm *dt_comm_from(const dt_comm_hooks *h, dt_error *err) {
	dt_comm *c = NULL;
	if (!h || !h->allreduce || !h->broadcast) dt__is_null(err, h ? "callback for allreduce or broadcast" : "struct of callbacks");
	else if (h->size < 1 || h->rank < 0 || h->rank >= h->size) dt__deny(err, "dt_comm_from: rank %d of %d: give 0 to size - 1", h->rank, h->size);
	else if (!(c = (dt_comm *)calloc(1, sizeof *c))) dt__oom(err, "dt_comm_from: no memory");
	if (!c) return NULL;
	c->hooks = *h; c->rank = h->rank; c->size = h->size; c->cores = dt__cores() / (double)DT__ELSE(h->local, 1);
	c->run = dt__hooks_run; c->close = dt__hooks_close;
	return c;
}

// Rows own [n] of all ranks: a new array [size][n], or NULL. To the collectives a word is two floats.
static uint64_t *dt__gather_words(dt_comm *c, int n, const void *own, dt_error *err) {
	size_t row = (size_t)n, all = row * (size_t)c->size;
	uint64_t *v = (uint64_t *)calloc(all, sizeof *v);
	if (!v) { dt__oom(err, "no memory for a message"); return NULL; }
	memcpy(v + row * (size_t)c->rank, own, row * sizeof *v);
	if (!dt_allgather(c, (float *)(void *)v, 2 * all, err)) return v;
	free(v);
	return NULL;
}

// All ranks must mean the same n named values.
static int dt__agree(dt_comm *c, int n, const char *const *name, const int64_t *value, dt_error *err) {
	uint64_t *v = dt__gather_words(c, n, value, err);
	int i, code = v ? 0 : dt__code(err, DT_ERR_MEMORY);
	DT__WHILE(i, n * c->size, !code)
		if (v[i] != v[i % n]) code = dt__bad_job(err, "rank %d differs from rank 0 in %s, %jd from %jd: start all with the same program and flags",
			i / n, name[i % n], (intmax_t)v[i], (intmax_t)v[i % n]);
	free(v);
	return code;
}

// Totals of all processes, added in the order of the ranks.
static int dt__sum_totals(dt_comm *c, double *totals, dt_error *err) {
	double *all = (double *)(void *)dt__gather_words(c, DT__TOTALS, totals, err);
	int i;
	if (!all) return dt__code(err, DT_ERR_MEMORY);
	memset(totals, 0, DT__TOTALS * sizeof *totals);
	DT__FOR(i, c->size * DT__TOTALS) totals[i % DT__TOTALS] += all[i];
	free(all);
	return 0;
}
#else // and so no dt_comm
static int dt__agree(dt_comm *c, int n, const char *const *name, const int64_t *value, dt_error *err) { return 0; }
static int dt__sum_totals(dt_comm *c, double *totals, dt_error *err) { return 0; }
int dt_comm_group(int n, dt_comm **out, dt_error *err) { return dt__off(err, "DTRAIN_NO_MALLOC"); }
dt_comm *dt_comm_from(const dt_comm_hooks *h, dt_error *err) { dt__off(err, "DTRAIN_NO_MALLOC"); return NULL; }
#endif

// ---- the model

typedef struct { // arrays of the caller, or samples of a data set
	const dt_batch *batch;
	const dt_dataset *data;
	long epoch, position; // of the batch's first sample in the epoch
	int shuffle;
	int shared; // n is of all processes, and each takes its part
	dt__n n; // samples; 0: no forward has left its values
	int training, labelled, checking, parts;
	const float *seed; // dt_backward_from
	int input_gradient; // 1: that of the last backward lies at input 0
	int leaving; // gradients go to the other processes while backward goes on
} dt__task;

struct dt_model {
	dt__pool pool;
	dt_options o;
	dt__graph graph;
	dt__optimizer optimizer;
	dt_strategy strategy;
	int batch, n_replicas, parts, threaded;
	dt_comm *comm; // with the other processes, or NULL
	int process, processes, world; // this one's rank of how many; replicas of all
	int servers, own; // parameter servers; 1: every process works on batches of its own
	int served, changed; // the servers hold the variables; these have been written since, with the moments: 2
	dt__push push; // the last one
	int local_batch; // samples of a step that fall to one process, at most
	int stop, stopped; // shall this run stop? 1: it asks to, DT__BY_SIGNAL: it was signalled; … and all processes' sum
	dt__replica *replica;
	float *slot[2]; // moments, as long as the trainable variables; of servers: the chief's copy
	float **buf; // [n_replicas], for reductions
	long step;
	int resumed; // from a checkpoint: the next dt_train goes on with its run
	double progress[5]; // of that run: the epoch's sums of loss, accuracy and samples; best evaluation, epochs since
	dt__task task;
	int leaves; // 1: may they? Not where layers exchange sums in backward
	int state; // DT__EMPTY …
	int running; // inside dt_train
	double rate; // of the running step
	double *squares; // [world], the squared norm of each slice of the gradient
	double norm; // of the last gradient, NAN if not needed
	long pushes;  double staleness; // this process's, and their sum
	int bad; // a value of the last update was not finite, so nothing was updated
	dt_dataset *data[2]; // DT_TRAIN, DT_TEST
	char *columns; // what was fitted to the columns of a CSV; of malloc, as data sets are
	dt_report report;
	size_t bytes;
	int lost; // the memory is not enough
	void (*job)(dt__replica *set, int n);
	void (*watch)(dt_model *m, double scale); // sees the reduced gradients, not yet scaled
#ifndef DTRAIN_NO_THREADS
	dt__meeting meeting;
	pthread_t *thread;
	int n_threads, quit;
#endif
};

enum { DT__EMPTY, DT__ACCUMULATED, DT__REDUCED }; // what the gradients hold
#define DT__BY_SIGNAL 4096 // more than there may be processes

// ---- stopping on a signal: the only global state, and only dt_run touches it

#ifndef DTRAIN_NO_STDIO
static volatile sig_atomic_t dt__signal;
static void dt__on_signal(int number) {
	dt__signal = number;
	signal(number, SIG_DFL); // the second one ends the program at once
}
#define DT__STOPPED dt__signal
#else
#define DT__STOPPED 0
#endif

// ---- jobs: a function that every replica's thread runs on its own replica, or the caller on all of them

static void dt__wait(const dt__replica *set) {
#ifndef DTRAIN_NO_THREADS
	if (set->model->threaded) dt__meet(&set->model->meeting);
#endif
}

#ifndef DTRAIN_NO_THREADS
static void *dt__replica_main(void *p) {
	dt__replica *r = (dt__replica *)p;
	dt_model *m = r->model;
	for (;;) {
		dt__meet(&m->meeting);
		if (m->quit) return NULL;
		m->job(r, 1);
		dt__meet(&m->meeting);
	}
}

static int dt__threads_start(dt_model *m, dt_error *err) {
	int i;
	if (m->n_replicas == 1) return 0;
	m->threaded = !dt__meeting_open(&m->meeting, m->n_replicas);
	if (m->comm && m->n_replicas > m->comm->cores) m->comm->spins = m->meeting.spins = 0;
	for (i = 1; m->threaded && i < m->n_replicas; i++, m->n_threads++)
		if (pthread_create(&m->thread[i], NULL, dt__replica_main, &m->replica[i])) break;
	if (i == m->n_replicas) return 0;
	return dt__oom(err, "the system refuses thread %d of %d: use fewer .replicas", i, m->n_replicas);
}

static void dt__threads_stop(dt_model *m) {
	if (!m->threaded) return;
	m->quit = 1;
	DT__STORE(&m->meeting.n, m->n_threads + 1); // fewer than planned if one could not be started
	dt__meet(&m->meeting);
	for (; m->n_threads; m->n_threads--) pthread_join(m->thread[m->n_threads], NULL);
	dt__meeting_close(&m->meeting);
}
#endif

static void dt__run_job(dt_model *m, void (*job)(dt__replica *set, int n)) {
	m->job = job;
	dt__wait(m->replica);
	job(m->replica, m->threaded ? 1 : m->n_replicas);
	dt__wait(m->replica);
}

// Gradients from there on are complete: their sum over the processes goes on while backward does.
static void dt__leave(dt__replica *set, int n, dt__n from) {
	dt_model *m = set->model;
	dt_comm *c = m->comm;
	dt__n floats = set->complete - from;
	int i, begun = set->complete < m->graph.n_trainable;
	if (!floats || from == m->graph.n_trainable) return;
	set->complete = from;
	DT__FOR(i, n) {
		dt__grads_complete(&set[i], from);
		m->buf[set[i].rank] = set[i].gradients + from;
	}
	dt__wait(set);
	DT__FOR(i, n) dt__reduce(m->buf, m->n_replicas, dt__slice_of(floats, 16, m->n_replicas, set[i].rank), DT_SUM, 0);
	dt__wait(set);
	if (set->rank) return;
	if (begun) c->finish(c, &set->error);
	c->kind = DT__ALLREDUCE; c->n = (size_t)floats; c->detail = DT_SUM; c->wire = m->o.wire;
	c->start(c, m->buf[0]);
}

// Sum [floats] at exchange_at over all replicas of all processes: into all of them (spread), or replica 0's of each process.
// First within the process, then (between) among them: a binary tree over all replicas where each process has a power of two.
static void dt__sum_replicas(dt__replica *set, int n, dt__n floats, int spread, int between, dt_wire wire) {
	dt_model *m = set->model;
	int i;
	DT__FOR(i, n) m->buf[set[i].rank] = set[i].exchange_at;
	dt__wait(set);
	DT__FOR(i, n)
		dt__reduce(m->buf, m->n_replicas, dt__slice_of(floats, 16, m->n_replicas, set[i].rank), DT_SUM, spread && !between);
	dt__wait(set);
	if (!between) return;
	if (set->rank == 0) {
		m->comm->wire = wire;
		dt_allreduce(m->comm, m->buf[0], (size_t)floats, DT_SUM, &set->error);
	}
	dt__wait(set);
	DT__WHILE(i, n, spread) if (set[i].rank) dt__copy(floats, 1, m->buf[0], set[i].exchange_at, 0);
	dt__wait(set);
}

static int dt__shares(const dt_model *m) { return m->processes > 1 && !m->own; } // a batch with other processes
static void dt__exchange_replicas(dt__replica *set, int n, dt__n floats) { dt__sum_replicas(set, n, floats, 1, dt__shares(set->model), DT_F32); }
static const char *dt__row_of(const void *p, const dt_tensor *t, dt_type type, dt__n row) {
	return (const char *)p + row * t->size * (dt__n)dt__type_size(type);
}

// Row i of the replica's part: from a data set,
static void dt__feed_sample(dt__replica *r, dt__n i) {
	const dt_options *o = &r->model->o;
	const dt__task *k = &r->model->task;
	const dt_tensor *t = r->graph->input[0], *loss = NULL;
	float *x = dt__value(r, t) + i * t->size, *y = NULL;
	long index = k->position + (long)(r->first_row + i);
	dt_type type = DT_TYPE_DEFAULT;
	int l;
	DT__WHILE(l, r->graph->n_losses, k->labelled) if (r->graph->loss[l]->label == 0) loss = r->graph->loss[l];
	if (k->shuffle) {
		long soon = dt_shuffle(DT__MIN(index + 3, k->data->info.n - 1), k->data->info.n, o->seed, k->epoch);
		dt__read_sample(k->data, t, type, NULL, NULL, type, NULL, soon, NULL);
		index = dt_shuffle(index, k->data->info.n, o->seed, k->epoch);
	}
	if (loss) { type = dt__loss_of(loss)->label_type; y = dt__value(r, loss) + i * loss->size; }
	if (!dt__read_sample(k->data, t, DT__ELSE(o->input_type, DT_FLOAT32), x, loss, type, y, index, &r->error) && t->type == DT_FLOAT32)
		dt__augment(o, t, x, k->training, k->epoch, index, &r->error);
}

// … or from the caller's arrays.
static void dt__feed_row(dt__replica *r, dt__n i) {
	const dt__task *k = &r->model->task;
	const dt__graph *g = r->graph;
	dt__n row = r->first_row + i;
	int l;
	DT__FOR(l, g->n_inputs) {
		const dt_tensor *t = g->input[l];
		dt_type type = DT__ELSE(((const dt_input_options *)t->options)->type, DT_FLOAT32);
		const char *x = dt__row_of(k->batch->x[l], t, type, row);
		dt__set_values(dt__value(r, t) + i * t->size, x, type, t->type, t->size, row, &r->error);
	}
	DT__WHILE(l, g->n_losses, k->labelled) {
		const dt_tensor *t = g->loss[l];
		DT__OPTIONS(loss, t);
		const char *y = t->label < 0 ? NULL : dt__row_of(k->batch->y[t->label], t, o->label_type, row);
		if (y) dt__set_labels(t, dt__value(r, t) + i * t->size, y, o->label_type, row, &r->error);
	}
}

static void dt__feed(dt__replica *r, int part) {
	const dt__task *k = &r->model->task;
	const dt_model *m = r->model;
	dt__n from = k->n * part / k->parts, n = k->n * (part + 1) / k->parts - from, i;
	dt__n sharers = k->shared ? m->world : m->n_replicas, rank = (k->shared ? m->process * m->n_replicas : 0) + r->rank;
	double start = dt__now();
	r->first_row = from + n * rank / sharers;
	r->rows = from + n * (rank + 1) / sharers - r->first_row;
	r->first_sample = r->first_row + (k->shared || m->own ? 0 : (dt__n)m->batch * m->process / m->processes);
	r->training = k->training; r->labelled = k->labelled; r->checking = k->checking;
	r->step = m->step;
	memset(r->chunk_totals, 0, sizeof r->chunk_totals);
	r->chunk_totals[DT__ROWS] = (float)r->rows;
	if (!part && !r->rank) r->chunk_totals[DT__STOPS] = (float)m->stop;
	r->sample_weight = k->batch && k->batch->weight ? k->batch->weight + r->first_row : NULL;
	DT__WHILE(i, r->rows, !r->error.code) if (k->data) dt__feed_sample(r, i); else dt__feed_row(r, i);
	if (r->error.code) r->rows = 0; // go on without rows, so that nobody waits for this replica in vain
	r->data_seconds += (dt__spent(r, -1, start) - start) * r->training;
}

// global_totals: the sums over the parts so far.
static void dt__job_forward_part(dt__replica *set, int n, int part) {
	int i, j;
	DT__FOR(i, n) dt__feed(&set[i], part);
	dt__run_segments(set, n, 0, 0);
	DT__FOR(i, n)
		DT__FOR(j, DT__TOTALS)
			set[i].global_totals[j] = (part ? set[i].global_totals[j] : 0) + set[i].chunk_totals[j];
}

static void dt__job_forward(dt__replica *set, int n) { dt__job_forward_part(set, n, 0); }

// Mixed losses: the totals of the whole batch, on all replicas, give each loss its scale.
static void dt__balance(dt__replica *set, int n) {
	int i;
	DT__FOR(i, n) set[i].exchange_at = set[i].global_totals;
	dt__exchange_replicas(set, n, DT__TOTALS);
	DT__FOR(i, n) { dt__losses_balance(&set[i]); set[i].rehearsing = 0; }
}

// The totals of the last forward join the gradients.
static void dt__job_backward(dt__replica *set, int n) {
	const dt__task *k = &set->model->task;
	const dt__graph *g = set->graph;
	int i, j;
	if (g->mixed_losses && k->parts == 1 && !k->seed) dt__balance(set, n);
	DT__FOR(i, n) {
		dt__replica *r = &set[i];
		float *totals = r->gradients + g->totals;
		if (k->seed) {
			dt__copy(r->rows * g->output->size, 1, k->seed + r->first_row * g->output->size, dt__grad(r, g->output), 0);
			totals[DT__SEEDED] += (float)r->rows;
		} else DT__FOR(j, DT__TOTALS) totals[j] += r->chunk_totals[j];
	}
	dt__backward(set, n, k->seed != NULL);
}

static void dt__job_accumulate(dt__replica *set, int n) {
	int part, i, parts = set->model->task.parts;
	if (set->graph->mixed_losses && parts > 1) { // the weights of the whole batch are needed first: a forward for them
		DT__FOR(i, n) set[i].rehearsing = 1;
		DT__FOR(part, parts) dt__job_forward_part(set, n, part);
		dt__balance(set, n);
	}
	DT__FOR(part, parts) {
		dt__job_forward_part(set, n, part);
		set->leave = set->model->task.leaving && part == parts - 1 ? dt__leave : NULL;
		set->complete = set->model->o.wire ? set->graph->n_trainable : set->graph->n_gradients;
		dt__job_backward(set, n);
	}
	set->leave = NULL;
}

static void dt__job_clear(dt__replica *set, int n) {
	int i;
	DT__FOR(i, n) dt__grads_clear(&set[i]);
}

// Sums of all replicas into replica 0's array, but of what has left; afterwards the others hold nothing. What lies behind
// the gradients is always exact.
static void dt__job_reduce(dt__replica *set, int n) {
	dt_model *m = set->model;
	const dt__graph *g = set->graph;
	int between = dt__shares(m) && !m->servers, i;
	dt__n floats = m->task.leaving ? g->kept : m->o.wire ? g->statistics : g->n_gradients;
	DT__FOR(i, n) {
		dt__grads_complete(&set[i], 0);
		set[i].exchange_at = set[i].gradients;
	}
	if (m->task.leaving && !set->rank) m->comm->finish(m->comm, &set->error);
	dt__sum_replicas(set, n, floats, 0, between, m->o.wire);
	DT__FOR(i, n) set[i].exchange_at = set[i].gradients + g->statistics;
	if (m->o.wire) dt__sum_replicas(set, n, g->n_gradients - g->statistics, 0, between, DT_F32);
	DT__FOR(i, n) if (set[i].rank) dt__grads_clear(&set[i]);
}

static dt__span dt__trained_slice(const dt__graph *g, int parts, int i) {
	dt__span s = dt__slice_of(g->n_gradients, 16, parts, i);
	s.begin = DT__MIN(s.begin, g->n_trainable); s.end = DT__MIN(s.end, g->n_trainable);
	return s;
}

// Every replica adds the squares up in the same order, whatever the processes.
static void dt__slice_squares(const dt__replica *r) {
	const dt_model *m = r->model;
	const float *g = m->replica[0].gradients;
	int i;
	for (i = r->rank * m->processes; i < (r->rank + 1) * m->processes; i++) {
		dt__span s = dt__trained_slice(r->graph, m->world, i);
		dt__n count;
		for (m->squares[i] = 0; s.begin < s.end; s.begin += count) {
			count = DT__MIN(s.end - s.begin, 4096);
			m->squares[i] += (double)dt__cpu()->dot(count, g + s.begin, g + s.begin);
		}
	}
}

// To the other copies of the variables.
static void dt__spread(const dt__replica *r, dt__n begin, dt__n n) {
	const dt_model *m = r->model;
	int i;
	DT__FOR(i, m->n_replicas) dt__copy(n, 1, r->variables + begin, m->replica[i].variables + begin, 0);
}

static void dt__spread_var(dt_model *m, const dt__var *v) {
	dt__spread(m->replica, v->offset, v->size);
	m->changed = 1;
}

// Gradients to the parameter servers, and what they made of them to replica 0. Their norm is this process's.
static void dt__push_grads(dt_model *m, const double *totals, double clipped) {
	dt__replica *r = m->replica;
	dt__push *p = &m->push;
	p->kind = DT__PUSH; p->out = r->gradients;
	p->order.weight = dt__totals_weight(&m->graph, totals) / clipped;
	p->order.seeds = totals[DT__SEEDED] / clipped;
	p->order.rate = m->rate; p->order.stop = m->stop;
	if (!m->comm->push(m->comm, p, &r->error)) m->pushes++;
	m->staleness += p->order.staleness;
}

static void dt__update_slice(dt__replica *r, double scale) {
	dt_model *m = r->model;
	const float *g = m->replica[0].gradients;
	dt__span s = dt__trained_slice(r->graph, m->n_replicas, r->rank);
	int i;
	DT__WHILE(i, r->graph->n_variables, !m->servers) {
		const dt__var *v = r->graph->variable[i];
		dt__n from = DT__MAX(s.begin, v->offset), to = DT__MIN(s.end, v->offset + v->size);
		if (from >= to) continue; // as all that are not trained, which lie behind
		dt__optimizer_apply(&m->optimizer, from, to - from, r->variables, g + from, m->slot, scale, m->rate, m->step + 1, v->no_decay);
	}
	dt__spread(m->servers ? m->replica : r, s.begin, s.end - s.begin);
}

static void dt__update_statistics(dt__replica *r) {
	const dt__graph *g = r->graph;
	int i, pass;
	DT__FOR(pass, 2)
		DT__FOR(i, g->n) if (g->node[i]->op->update) g->node[i]->op->update(r, g->node[i], pass);
	DT__FOR(i, g->n_variables) if (g->variable[i]->statistic) dt__spread(r, g->variable[i]->offset, g->variable[i]->size);
}

static void dt__profile_mark(dt__replica *r, int what) { if (r->seconds) r->marked = dt__spent(r, 2 * r->graph->n + what, r->marked); }
static void dt__job_update(dt__replica *set, int n) {
	dt_model *m = set->model;
	double totals[DT__TOTALS] = {0}, clip = m->optimizer.clip, scale, norm = 0, loss, clipped = 1;
	int i, need_norm = clip > 0 || !m->o.no_nan_guard, bad, failed = 0;
	if (set->seconds) set->marked = dt__now();
	if (m->state != DT__REDUCED) dt__job_reduce(set, n);
	dt__profile_mark(set, DT__PROFILED_REDUCE);
	DT__WHILE(i, n, need_norm) dt__slice_squares(&set[i]);
	dt__wait(set);
	dt__totals_add(totals, m->replica[0].gradients + set->graph->totals);
	scale = dt__totals_divisor(set->graph, totals);
	scale = scale > 0 ? 1 / scale : 0;
	if (m->watch && !set->rank) m->watch(m, scale);
	loss = dt__totals_loss(set->graph, totals);
	DT__FOR(i, m->n_replicas) failed |= m->replica[i].error.code;
	DT__WHILE(i, m->world, need_norm) norm += m->squares[i];
	norm = sqrt(norm) * scale;
	if (clip > 0 && norm > clip) clipped = clip / (norm + 1e-6);
	bad = !m->o.no_nan_guard && !(loss - loss == 0 && norm - norm == 0);
	failed |= bad;
	if (m->servers) {
		dt__wait(set);
		if (set->rank == 0 && !failed) dt__push_grads(m, totals, clipped);
		dt__wait(set);
		failed |= m->replica[0].error.code;
		memset(totals, 0, sizeof totals);
		dt__totals_add(totals, m->replica[0].gradients + set->graph->totals);
		loss = dt__totals_loss(set->graph, totals);
	}
	DT__WHILE(i, n, !failed) dt__update_slice(&set[i], scale * clipped);
	if (set->rank == 0) {
		m->bad = bad;
		m->stopped = m->servers ? (int)m->push.order.stop : (int)totals[DT__STOPS];
		if (!failed) {
			m->norm = need_norm ? norm : (double)NAN;
			m->report.train_loss = loss;
			m->report.train_accuracy = dt__totals_accuracy(set->graph, totals, DT__RIGHT);
		}
	}
	dt__wait(set); // nobody clears what another still reads
	if (set->rank == 0 && !failed) dt__update_statistics(set);
	dt__job_clear(set, n);
	dt__profile_mark(set, DT__PROFILED_UPDATE);
}

static void dt__job_step(dt__replica *set, int n) {
	dt__job_accumulate(set, n);
	dt__job_update(set, n);
}

// ---- creation

// What the random values of an initialiser are multiplied by.
static double dt__initial_scale(const dt__var *v) {
	static const double spread[] = {6, 2, 6, 2, 3, 1}; // squared, times the fan
	double fan = (double)DT__MAX(v->fan_in, 1);
	if (v->init < DT_HE_UNIFORM) fan += (double)DT__MAX(v->fan_out, 1);
	if (v->init < DT_UNIFORM) return sqrt(spread[v->init] / fan);
	return v->init == DT_ORTHOGONAL ? 1 : DT__ELSE(v->init_value, 0.05);
}

// Gram-Schmidt, twice, over the shorter side of w.
static void dt__make_orthogonal(dt__n rows, dt__n columns, double scale, float *w) {
	dt__n n = DT__MIN(rows, columns), length = DT__MAX(rows, columns), a, b, i;
	dt__n between = rows <= columns ? columns : 1; // from vector to vector
	dt__n step = rows <= columns ? 1 : columns; // along one
	int pass;
	DT__FOR(a, n) {
		float *x = w + a * between;
		double norm = 0;
		DT__FOR(pass, 2)
			DT__FOR(b, a) {
				const float *y = w + b * between;
				double dot = 0;
				DT__FOR(i, length) dot += (double)x[i * step] * (double)y[i * step];
				DT__FOR(i, length) x[i * step] -= (float)(dot * (double)y[i * step]);
			}
		DT__FOR(i, length) norm += (double)x[i * step] * (double)x[i * step];
		norm = norm > 0 ? 1 / sqrt(norm) : 0;
		DT__FOR(i, length) x[i * step] *= (float)norm;
	}
	DT__FOR(i, rows * columns) w[i] *= (float)scale;
}

// Its memory as matrices: outputs are columns where they lie side by side, each group of a convolution is one.
static void dt__orthogonal_var(const dt__var *v, float *w) {
	int conv = v->rank == 4 && v->walk_rank == 5 && v->walk_stride[0] != 1;
	dt__n groups = conv ? v->walk_dim[0] : 1, size = v->size / groups, first = v->rank > 1 ? v->dim[0] / groups : 1;
	dt__n columns = conv || (v->rank > 1 && v->walk_stride[0] == 1) ? first : size / first;
	for (; groups; groups--, w += size) dt__make_orthogonal(size / columns, columns, DT__ELSE(v->init_value, 1), w);
}

// First values, drawn in file order so that the memory's layout does not matter.
static void dt__initialise_var(const dt__var *v, uint64_t seed, float *w) {
	uint64_t key = dt__random_key(seed, (uint64_t)v->number + 1), bits;
	int normal = v->init % 2 || v->init == DT_ORTHOGONAL, last = v->walk_rank - 1;
	double scale = v->init == DT_CONSTANT ? 0 : dt__initial_scale(v);
	dt__n i, j;
	for (i = 0; i < v->size; i += v->walk_dim[last]) {
		float *line = w + dt__walk(v, i);
		for (j = 0; j < v->walk_dim[last]; j++, line += v->walk_stride[last]) {
			bits = dt__mix(key + (uint64_t)(i + j));
			*line = v->init == DT_CONSTANT ? (float)v->init_value : (float)(scale * (normal ? dt__normal(bits) : 2 * dt__uniform(bits) - 1));
		}
	}
	if (v->init == DT_ORTHOGONAL) dt__orthogonal_var(v, w);
}

static void dt__initialise(dt_model *m) {
	int k;
	DT__FOR(k, m->graph.n_variables) {
		dt__initialise_var(m->graph.variable[k], m->o.seed, m->replica[0].variables + m->graph.variable[k]->offset);
		dt__spread_var(m, m->graph.variable[k]);
	}
}

// On a cache line of its own. Counting goes on where memory is lacking, for the message.
static void *dt__reserve(dt_model *m, dt__n count, size_t size) {
	size_t bytes = (size_t)count * size + DT__ALIGN - 1, total;
	uint8_t *p;
	if (m->pool.measuring) { dt__count_piece(&m->pool, bytes, &total); return NULL; }
	p = (uint8_t *)dt__take(&m->pool, bytes); m->lost |= !p;
	return p ? p + (0 - (uintptr_t)p) % DT__ALIGN : NULL;
}

static int dt__too_small(dt_error *err, size_t needs, size_t has) {
	return dt__oom(err, "the model needs %zu bytes, has %zu: raise .memory_size, or use a smaller .batch", needs, has);
}

#define DT__RESERVE(type, n) (type *)dt__reserve(m, n, sizeof(type))
static int dt__model_memory(dt_model *m, dt_error *err) {
	const dt__graph *g = &m->graph;
	float *variables = NULL;
	int i;
	m->replica = DT__RESERVE(dt__replica, m->n_replicas);
	m->buf = DT__RESERVE(float *, m->n_replicas); m->squares = DT__RESERVE(double, m->world);
#ifndef DTRAIN_NO_THREADS
	m->thread = DT__RESERVE(pthread_t, m->n_replicas);
#endif
	DT__WHILE(i, m->optimizer.n_slots, g->training && !(m->servers && m->process)) m->slot[i] = DT__RESERVE(float, g->n_trainable);
	DT__FOR(i, m->n_replicas) {
		dt__replica none, *r = m->replica ? &m->replica[i] : &none;
		r->graph = g; r->model = m; r->rank = i; r->seed = m->o.seed;
		r->exchange = dt__exchange_replicas;
		r->written = DT__RESERVE(uint8_t, 2 * (dt__n)g->n);
		r->variable_written = DT__RESERVE(uint8_t, g->n_variables);
		r->gradients = DT__RESERVE(float, g->n_gradients);
		r->block = DT__RESERVE(float, g->block_floats);
		if (g->profile) r->seconds = DT__RESERVE(double, 2 * (dt__n)g->n + DT__PROFILED_ALL);
		if (!i || m->strategy != DT_CENTRAL) variables = DT__RESERVE(float, g->n_floats);
		r->variables = variables;
	}
	m->bytes = m->pool.used;
	if (!m->lost) return 0;
	if (m->pool.base) return dt__too_small(err, m->bytes, m->pool.size);
	return dt__oom(err, "no memory for the model's %zu bytes (%td variables, %td samples; on each of %d replicas): "
			"use a smaller .batch or fewer .replicas", m->bytes, g->n_floats, g->rows, m->n_replicas);
}

static int dt__check_options(const dt_options *o, dt_error *err) {
	const struct { const char *name; long value, most; } v[] = {
		{"batch", o->batch, INT_MAX}, {"replica_batch", o->replica_batch, INT_MAX}, {"replicas", o->replicas, 1024},
		{"accumulate", o->accumulate, 1 << 20}, {"strategy (a dt_strategy)", (long)o->strategy, DT_PARAMETER_SERVER},
		{"staleness", o->staleness, INT_MAX}, {"wire (a dt_wire)", (long)o->wire, DT_F16}, {"backup", o->backup, 4096},
		{"input_type (a dt_type, DT_ONE_HOT is for labels)", (long)o->input_type, DT_UINT8},
		{"label_type (a dt_type)", (long)o->label_type, DT_ONE_HOT}, {"crop", o->crop, 4096}, {"patience", o->patience, INT_MAX},
		{"epochs", o->epochs, INT_MAX}, {"steps", o->steps, LONG_MAX}};
	int i;
	DT__FOR(i, DT__COUNT(v))
		if (v[i].value < 0 || v[i].value > v[i].most) return dt__deny(err, ".%s is %ld: give 0 to %ld", v[i].name, v[i].value, v[i].most);
	DT__FOR(i, DT_MAX_CHANNELS)
		if (!(o->mean[i] - o->mean[i] == 0) || !(o->deviation[i] >= 0 && o->deviation[i] <= DBL_MAX))
			return dt__deny(err, ".mean %g, .deviation %g of channel %d: give finite ones, .deviation 0 (off) or more", o->mean[i], o->deviation[i], i);
	return 0;
}

// Every process has as many replicas.
static int dt__model_group(dt_model *m, dt_error *err) {
	const dt_options *o = &m->o;
	int code = 0, cores = dt__cores();
	m->process = dt_comm_rank(o->comm);
	m->processes = o->comm ? dt_comm_size(o->comm) : 1;
	m->servers = o->comm ? o->comm->servers : 0;
	m->own = m->servers && !o->sync;
	m->comm = (m->processes > 1 || m->servers) && !m->pool.measuring ? o->comm : NULL;
	if (o->strategy == DT_PARAMETER_SERVER && !m->servers) return dt__deny(err, "DT_PARAMETER_SERVER: there are no parameter servers: start some (--ps 1)");
	m->strategy = m->servers ? DT_PARAMETER_SERVER : m->processes > 1 ? DT_MULTIWORKER : DT_STRATEGY_DEFAULT;
	if (m->strategy && o->strategy && o->strategy != m->strategy)
		return dt__deny(err, ".strategy is for others than %d workers and %d parameter servers: use %s", m->processes, m->servers, m->servers ? "DT_PARAMETER_SERVER" : "DT_MULTIWORKER");
	if (m->servers && o->sync && o->clip_norm > 0) return dt__deny(err, ".clip_norm needs the whole gradient, which no parameter server has: leave out .sync, or the servers");
	if (m->servers && o->backup >= m->processes) return dt__deny(err, ".backup is %d of %d workers: some must count", o->backup, m->processes);
	if (o->comm) cores = DT__MAX(1, (int)o->comm->cores);
	if (m->comm && !o->replicas) { // machines may differ
		float fewest = (float)-cores;
		code = dt_allreduce(m->comm, &fewest, 1, DT_MAX, err);
		cores = (int)-fewest;
	}
	m->n_replicas = o->strategy == DT_ONE ? 1 : DT__ELSE(o->replicas, cores);
	return code;
}

static int dt__model_sizes(dt_model *m, dt_error *err) {
	const dt_options *o = &m->o;
	int code = dt__check_options(o, err), sharers, all;
	if (code) return code;
	if (o->batch && o->replica_batch) return dt__deny(err, ".batch %d, .replica_batch %d: give one of them", o->batch, o->replica_batch);
	if (o->strategy == DT_ONE && o->replicas > 1) return dt__deny(err, ".replicas is %d: DT_ONE has one replica", o->replicas);
	if ((code = dt__model_group(m, err))) return code;
	sharers = m->own ? 1 : m->processes; // of a batch
	m->parts = DT__ELSE(o->accumulate, 1); m->batch = DT__ELSE(o->batch, 32);
	if (!o->replicas && !o->replica_batch) m->n_replicas = DT__MAX(1, DT__MIN(m->n_replicas, m->batch / sharers));
	m->world = m->n_replicas * m->processes; all = m->n_replicas * sharers;
	if (o->replica_batch) {
		if (o->replica_batch > INT_MAX / all) return dt__deny(err, ".replica_batch %d is too large for %d replicas", o->replica_batch, all);
		m->batch = o->replica_batch * all;
	}
	m->local_batch = (m->batch - 1) / sharers + 1;
	if (m->batch / sharers < m->parts)
		return dt__deny(err, "the batch of %d samples has fewer than one for each of %d processes and %d parts (.accumulate)", m->batch, sharers, m->parts);
	if (!m->strategy) m->strategy = o->strategy == DT_MULTIWORKER ? o->strategy : m->n_replicas == 1 ? DT_ONE : DT__ELSE(o->strategy, DT_MIRRORED);
	m->graph.rows = (((dt__n)m->batch + m->parts - 1) / m->parts + all - 1) / all;
	return 0;
}

// The columns of a CSV mean to a model what they meant when they were fitted.
static dt_dataset *dt__open_data(dt_model *m, const dt_source *s, dt_error *err) {
	dt_source with = *s;
	dt_dataset *d;
	if (!with.fitted) with.fitted = m->columns;
	d = dt_dataset_open(&with, err);
#ifndef DTRAIN_NO_MALLOC
	if (d && d->columns && !m->columns) {
		size_t n = strlen(d->columns) + 1;
		m->columns = (char *)malloc(n);
		if (m->columns) { memcpy(m->columns, d->columns, n); return d; }
		dt__oom(err, "no memory to keep the columns of \"%s\"", d->source.path);
		dt_dataset_close(d);
		return NULL;
	}
#endif
	return d;
}

// The input's shape may come from the data sets.
static int dt__model_data(dt_model *m, dt_error *err) {
	int i;
	DT__FOR(i, 2) {
		const dt_source *s = i ? &m->o.test : &m->o.train;
		if (!s->open || (m->pool.measuring && m->o.input[0])) continue;
		m->data[i] = dt__open_data(m, s, err);
		if (!m->data[i]) return DT_ERR_IO;
		if (!m->o.input[0]) memcpy(m->o.input, m->data[i]->info.input, sizeof m->o.input);
	}
	if (m->o.input[0]) return 0;
	return dt__deny(err, "no data tells a sample's shape: give it, as in .input = {28, 28, 1}");
}

static int dt__data_fits(const dt_model *m, const dt_dataset *d, int labelled, dt_error *err) {
	const dt_tensor *t = m->graph.input[0];
	dt__n size = 1;
	dt__shape_text text;
	int i;
	DT__WHILE(i, DT_MAX_RANK - 1, d->info.input[i]) size *= d->info.input[i];
	if (i && size != t->size) return dt__fail(err, DT_ERR_SHAPE, "a sample of the data has %td values, the net's input is %s", size, dt__shape_of(t, &text));
	if (m->graph.n_inputs <= 1 && (!labelled || m->graph.n_labels <= 1)) return 0;
	return dt__deny(err, "the net has %d inputs and %d labels, data sources one of each: use dt_step_batch", m->graph.n_inputs, m->graph.n_labels);
}

static int dt__model_graph(dt_model *m, dt_error *err) {
	dt__graph *g = &m->graph;
	const dt_options *o = &m->o;
	dt_input_options in = DT_DEFAULTS;
	dt_loss_options loss = DT_DEFAULTS;
	dt_tensor *x, *y, *t;
	memcpy(in.shape, o->input, sizeof in.shape);
	in.type = o->input_type; g->failed.graph = g; g->failed.op = &dt__input; g->failed.number = -1;
	x = dt__layer1(&dt__input, &g->failed, &in, sizeof in, NULL);
	if (g->error.code) return dt__pass(err, &g->error);
	x->n_in = 0; // g->failed only said which model
	g->input[g->n_inputs++] = x; y = o->net(x, o->user);
	for (t = g->last_made; t && t != y;) t = t->made_before;
	if (!t) dt__deny(&g->error, "net returned %s: return the last tensor of this model",
			y ? "a tensor that was not made from its x" : "NULL, as a layer that got NULL does");
	g->output = t;
	if (o->loss) {
		loss.t = t; loss.kind = o->loss; loss.reduction = o->reduction; loss.label_smoothing = o->label_smoothing; loss.ignore_label = o->ignore_label;
		loss.class_weights = o->class_weights; loss.delta = o->delta; loss.label_type = o->label_type;
		dt__add_loss(&loss, 1);
	}
	if (!g->error.code) {
		dt__losses_finish(g);
		dt__graph_finish(g, o->freeze, o->no_decay);
	}
	return dt__pass(err, &g->error);
}

// Of all other numbers that a step and its samples depend on.
#define DT__SETTINGS "the settings of optimizer, loss or samples (checksum)"
static int64_t dt__settings(const dt_model *m) {
	const dt_options *o = &m->o;
	const dt__optimizer *p = &m->optimizer;
	const int64_t v[] = {p->schedule, o->total_steps, o->decay_steps, o->loss, o->no_shuffle, o->crop, o->flip};
	uint32_t crc = dt__crc32c(0, &p->f, offsetof(dt__optimizer, schedule) - offsetof(dt__optimizer, f));
	return dt__crc32c(dt__crc32c(crc, &o->label_smoothing, sizeof(double)), v, sizeof v);
}

static int dt__model_agree(dt_model *m, dt_error *err) {
	static const char *const name[] = {"the net (checksum of its parameters' names and sizes)", ".batch", ".replicas", ".accumulate", ".optimizer", ".seed", ".sync", ".staleness", ".backup", ".wire", DT__SETTINGS};
	int64_t value[] = {0, m->batch, m->n_replicas, m->parts, m->o.optimizer, (int64_t)m->o.seed, m->o.sync, m->o.staleness, m->o.backup, m->o.wire, dt__settings(m)};
	uint32_t net = 0;
	int i;
	DT__WHILE(i, m->graph.n_variables, m->graph.variable[i]->name) { // for gcc -O3
		const dt__var *v = m->graph.variable[i];
		char text[DT_MAX_NAME + 64];
		net = dt__crc32c(net, text, dt__fill(text, "%s %td %d", v->name, v->size, dt__trains(v)));
	}
	value[0] = net;
	return dt__agree(m->comm, DT__COUNT(value), name, value, err);
}

static int dt__model_build(dt_model *m, const dt_options *o, dt_error *err) {
	int i;
	m->o = *o; m->graph.pool = &m->pool; m->graph.training = !o->inference;
	m->graph.input_gradient = o->input_gradient;
	m->graph.profile = o->profile; m->graph.no_fusion = o->no_fusion; m->norm = (double)NAN;
	if (!o->net) return dt__deny(err, ".net is NULL: give the function that builds the model");
	if (dt__optimizer_open(&m->optimizer, o, err) || dt__model_sizes(m, err) || dt__model_data(m, err) || dt__model_graph(m, err)) return 1;
	DT__FOR(i, 2) if (m->data[i] && dt__data_fits(m, m->data[i], 1, err)) return 1;
	m->o.freeze = m->o.no_decay = m->o.save = m->o.load = NULL; // strings are the caller's
	if (m->comm && dt__model_agree(m, err)) return 1;
	if (dt__model_memory(m, err)) return 1;
	if (m->pool.measuring) return 0;
	m->leaves = m->comm && m->comm->start && !m->servers && m->graph.training && m->graph.kept < m->graph.n_trainable;
	DT__FOR(i, m->graph.n) m->leaves &= !m->graph.node[i]->exchange;
#ifdef OPENBLAS_VERSION
	if (m->world > 1) openblas_set_num_threads(1);
#endif
	dt__initialise(m);
#ifndef DTRAIN_NO_THREADS
	if (dt__threads_start(m, err)) return 1;
#endif
	return 0;
}

void dt_model_free(dt_model *m) {
	if (!m) return;
#ifndef DTRAIN_NO_THREADS
	dt__threads_stop(m);
#endif
	dt_dataset_close(m->data[0]);
	dt_dataset_close(m->data[1]);
#ifndef DTRAIN_NO_MALLOC
	free(m->columns);
#endif
	dt__pool_close(m->pool);
}

static dt_model *dt__model_new(const char *what, const dt_options *o, int measuring, dt_error *err) {
	dt__pool pool;
	dt_model *m;
	if (!o) { dt__deny(err, "%s: the options struct is NULL", what); return NULL; }
	if (!o->alloc != !o->release) { dt__deny(err, ".alloc and .release belong together: set both or none"); return NULL; }
	dt__pool_open(&pool, o, measuring);
	m = (dt_model *)dt__take(&pool, sizeof *m);
	if (m) {
		m->pool = pool;
		if (!dt__model_build(m, o, err)) return m;
		dt_model_free(m);
	} else if (pool.base) {
		dt__oom(err, "the model needs more than %zu bytes, has %zu: raise .memory_size", pool.used, pool.size);
	} else if (!pool.alloc) {
		dt__fail(err, DT_ERR_DISABLED, "this build has DTRAIN_NO_MALLOC: set .memory and .memory_size");
	} else {
		dt__oom(err, "no memory for the model");
	}
	return NULL;
}

size_t dt_model_bytes(const dt_options *o, dt_error *err) {
	dt_model *m = dt__model_new(__func__, o, 1, err);
	size_t bytes = m ? m->bytes : 0;
	dt_model_free(m);
	return bytes;
}

dt_model *dt_model_create(const dt_options *o, dt_error *err) {
	dt_model *m;
	dt_error why = DT_DEFAULTS;
	m = dt__model_new(__func__, o, 0, &why);
#ifndef DTRAIN_NO_MALLOC
	if (why.code == DT_ERR_MEMORY && o->memory) { // even the graph did not fit: say the whole number
		size_t bytes = dt_model_bytes(o, NULL);
		if (bytes > o->memory_size) { why.code = 0; dt__too_small(&why, bytes, o->memory_size); }
	}
#endif
	dt__pass(err, &why);
	return m;
}

void dt_model_plan_bytes(const dt_model *m, size_t *block, size_t *lower_bound) {
	if (block) *block = m ? 4 * (size_t)m->graph.block_floats : 0;
	if (lower_bound) *lower_bound = m ? 4 * (size_t)m->graph.lower_bound : 0;
}

// ---- steps

// The lowest failed replica's error becomes the caller's.
static int dt__errors(dt_model *m, const char *what, dt_error *err) {
	int i, code = 0;
	DT__FOR(i, m->n_replicas) {
		dt_error *e = &m->replica[i].error;
		if (e->code && !code) {
			code = e->code;
			if (err && !err->code) {
				dt__fail(err, code, "%s: %s", what, e->text);
				err->rank = i; err->step = m->step;
			}
		}
		e->code = 0;
	}
	return code;
}

static int dt__no_loss(const char *what, dt_error *err) { return dt__not_now(err, "%s: the net has no loss: set .loss, or call dt_loss in net", what); }

// step: for a whole step, or else for a forward, which may do without labels.
static int dt__check_batch(const dt_model *m, const char *what, const dt_batch *b, int step, dt_error *err) {
	int i, most;
	if (!m || !b) return dt__deny(err, "%s: the %s is NULL", what, m ? "batch" : "model");
	most = step ? m->local_batch : m->local_batch / m->parts;
	if (b->n < !m->comm || b->n > most) return dt__deny(err, "%s: n is %d: give %d to %d samples (.batch)", what, b->n, !m->comm, most);
	DT__FOR(i, m->graph.n_inputs)
		if (!b->x[i]) return dt__deny(err, "%s: x[%d], the input \"%s\", is NULL", what, i, m->graph.input[i]->name);
	DT__WHILE(i, b->n, b->weight)
		if (!(b->weight[i] >= 0 && b->weight[i] <= FLT_MAX)) return dt__deny(err, "%s: weight[%d] is %g: give 0 or more", what, i, (double)b->weight[i]);
	DT__WHILE(i, m->graph.n_labels, step)
		if (!b->y[i]) return dt__deny(err, "%s: y[%d] is NULL: the losses need labels", what, i);
	if (m->graph.n_losses || !step) return 0;
	return dt__no_loss(what, err);
}

static void dt__new_task(dt_model *m, const dt_batch *b, const dt_dataset *d, long position, long n) {
	DT__CLEAR(&m->task);
	m->task.batch = b; m->task.data = d; m->task.position = position; m->task.n = n;
	m->task.parts = 1;
}

static int dt__not_finite(const dt_model *m, const char *what, dt_error *err) {
	return dt__fail(err, DT_ERR_NUMERIC, "%s: step %ld: the loss or the gradient's norm is not finite: "
			"lower .learning_rate, or set .clip_norm", what, m->step);
}

// Run the step again, looking at every value, to name the first layer that is not finite.
static int dt__diagnose(dt_model *m, dt_error *err) {
	m->task.checking = 1; m->task.leaving = 0;
	dt__run_job(m, dt__job_accumulate);
	dt__run_job(m, dt__job_clear);
	return dt__errors(m, "training", err) ? DT_ERR_NUMERIC : dt__not_finite(m, "training", err);
}

// Moments go from the chief to the servers, or come from them, as they are between two rounds.
static int dt__exchange_slots(dt_model *m, int kind, dt_error *err) {
	dt__push *p = &m->push, before = *p;
	int i, code = 0;
	DT__WHILE(i, m->optimizer.n_slots, !code) {
		p->kind = kind; p->out = p->into = m->slot[i];
		p->order.next = i; code = m->comm->push(m->comm, p, err);
	}
	*p = before;
	return code;
}

// All workers' values become the chief's, on the servers too; batches: to be drawn from now on.
static int dt__stretch(dt_model *m, long batches, dt_error *err) {
	const dt__optimizer *q = &m->optimizer;
	const dt_options *o = &m->o;
	dt__push *p = &m->push;
	dt__order order = {0, 0, 0, 0, (uint64_t)m->step, m->stop, batches, m->served, 0, 0, 0, 0, q->f,
		q->kind, q->n_slots, o->sync, o->staleness, o->backup, o->full_rate};
	int code = 0;
	dt__n i;
	p->trained = m->graph.n_trainable; p->all = m->graph.n_gradients;
	p->into = m->replica[0].variables; p->sums = m->replica[0].gradients;
	if (!m->process && (!m->served || m->changed)) {
		p->kind = DT__SETUP; p->out = p->into; p->order = order;
		code = m->comm->push(m->comm, p, err);
		DT__FOR(i, m->graph.n_variables) {
			const dt__var *v = m->graph.variable[i];
			dt__n k;
			DT__WHILE(k, v->size, v->offset < p->trained) p->sums[v->offset + k] = (float)v->no_decay;
		}
		p->kind = DT__SETUP_DECAY; p->out = p->sums;
		if (!code && m->optimizer.f.decay > 0) code = m->comm->push(m->comm, p, err);
		dt__zero(p->trained, p->sums);
		if (!code && m->changed > 1) code = dt__exchange_slots(m, DT__SETUP_SLOT, err);
	}
	p->kind = DT__STRETCH; p->order = order;
	if (!code) code = m->comm->push(m->comm, p, err);
	dt__spread(m->replica, 0, p->trained);
	m->stopped = (int)p->order.stop; m->served = 1; m->changed = 0;
	return code;
}

// In an own loop the first step lets all workers meet.
static int dt__serve(dt_model *m, dt_error *err) {
	if (!m->servers || m->running) return 0;
	if (!m->served) return dt__stretch(m, 0, err);
	return m->changed ? dt__not_now(err, "variables were written, but the parameter servers hold them: write before the first step, or use dt_train") : 0;
}

// .rate_at is asked once, in the caller's thread.
static int dt__set_rate(dt_model *m, dt_error *err) {
	m->rate = dt__rate_of(&m->optimizer, m->step);
	if (m->rate >= 0 && m->rate < 1e6) return 0;
	return dt__fail(err, DT_ERR_CALLBACK, "step %ld: .rate_at returned %g: 0 or more, below 1e6, is needed", m->step, m->rate);
}

// The loss is in the report.
static int dt__step_task(dt_model *m, dt_error *err) {
	dt__task task = m->task; // .rate_at may call dt_predict
	int code = dt__serve(m, err);
	if (!code) code = dt__set_rate(m, err);
	m->task = task;
	if (code) { m->task.n = 0; return code; } // no outputs
	m->task.training = m->task.labelled = 1; m->task.parts = m->parts;
	m->task.leaving = m->leaves;
	if (m->state != DT__EMPTY) dt__run_job(m, dt__job_clear);
	m->state = DT__EMPTY;
	dt__run_job(m, dt__job_step);
	code = dt__errors(m, "training", err);
	if (!code && m->bad) code = dt__diagnose(m, err);
	if (!code) m->step++;
	m->task.training = 0; // nothing is left for a backward,
	if (code || m->parts > 1) m->task.n = 0; // and of outputs nothing, or the last part's rows alone
	return code;
}

static int dt__can_train(const dt_model *m, const char *what, dt_error *err) {
	if (!m) return dt__deny(err, "%s: the model is NULL", what);
	if (!m->graph.training) return dt__not_now(err, "%s: the model was created with .inference = 1", what);
	if (m->running) return dt__not_now(err, "%s: dt_train is running on this model: call it afterwards", what);
	return 0;
}

float dt_step_batch(dt_model *m, const dt_batch *b, dt_error *err) {
	if (dt__can_train(m, "dt_step", err) || dt__check_batch(m, "dt_step", b, 1, err)) return NAN;
	dt__new_task(m, b, NULL, 0, b->n);
	return dt__step_task(m, err) ? NAN : (float)m->report.train_loss;
}

float dt_step(dt_model *m, const void *x, const void *y, int n, dt_error *err) {
	dt_batch b = DT_DEFAULTS;
	b.x[0] = x; b.y[0] = y; b.n = n;
	return dt_step_batch(m, &b, err);
}

float dt_forward(dt_model *m, const dt_batch *b, dt_error *err) {
	double totals[DT__TOTALS] = {0};
	int i;
	if (dt__check_batch(m, __func__, b, 0, err) || (m->graph.training && dt__serve(m, err))) return NAN;
	dt__new_task(m, b, NULL, 0, b->n);
	m->task.training = m->graph.training; m->task.labelled = m->graph.n_losses > 0;
	DT__FOR(i, m->graph.n_labels) m->task.labelled &= b->y[i] != NULL;
	if (m->state == DT__REDUCED) m->state = DT__ACCUMULATED;
	dt__run_job(m, dt__job_forward);
	if (dt__errors(m, __func__, err)) {
		m->task.n = 0;
		if (m->state == DT__EMPTY) dt__run_job(m, dt__job_clear); // batch sums of the replicas that did not fail
		return NAN;
	}
	DT__FOR(i, m->n_replicas) dt__totals_add(totals, m->replica[i].chunk_totals);
	return m->task.labelled ? (float)dt__totals_loss(&m->graph, totals) : 0;
}

static int dt__backward_task(dt_model *m, const char *what, const float *seed, dt_error *err) {
	int code = dt__can_train(m, what, err);
	if (code) return code;
	if (!m->task.n || !m->task.training) return dt__not_now(err, "%s: call dt_forward first", what);
	if (!seed && !m->task.labelled) return dt__not_now(err, "%s: no labels in dt_forward, or no loss in net: see dt_backward_from", what);
	if (seed && !m->graph.output->back) return dt__not_now(err, "%s: net's output passes no gradient on: nothing below trains, or its loss skips it", what);
	m->task.seed = seed;
	dt__run_job(m, dt__job_backward);
	m->task.input_gradient = 1;
	m->task.training = 0; // its buffers are used up: the next backward needs a new forward
	m->state = DT__ACCUMULATED;
	return dt__errors(m, what, err);
}

int dt_backward(dt_model *m, dt_error *err) { return dt__backward_task(m, __func__, NULL, err); }
int dt_backward_from(dt_model *m, const float *gradient, dt_error *err) {
	if (!gradient) return dt__is_null(err, "gradient");
	return dt__backward_task(m, __func__, gradient, err);
}

static int dt__has_grads(const dt_model *m, const char *what, dt_error *err) {
	int code = dt__can_train(m, what, err);
	if (code || m->state != DT__EMPTY) return code;
	return dt__not_now(err, "%s: there are no gradients: call dt_forward and dt_backward first", what);
}

int dt_reduce(dt_model *m, dt_error *err) {
	int code = dt__has_grads(m, __func__, err);
	if (code) return code;
	if (m->state != DT__REDUCED) dt__run_job(m, dt__job_reduce);
	m->state = DT__REDUCED;
	return 0;
}

int dt_update(dt_model *m, dt_error *err) {
	int code = dt__has_grads(m, __func__, err);
	if (code || (code = dt__set_rate(m, err))) return code;
	dt__run_job(m, dt__job_update);
	m->state = DT__EMPTY;
	if ((code = dt__errors(m, __func__, err))) return code;
	if (m->bad) return dt__not_finite(m, __func__, err);
	m->step++;
	return 0;
}

int dt_clear(dt_model *m, dt_error *err) {
	int code = dt__can_train(m, __func__, err);
	if (code) return code;
	dt__run_job(m, dt__job_clear);
	m->state = DT__EMPTY;
	return 0;
}

float *dt_gradients(dt_model *m, size_t *n) {
	int ready = m && m->state == DT__REDUCED;
	if (n) *n = ready ? (size_t)m->graph.n_trainable : 0;
	return ready ? m->replica[0].gradients : NULL;
}

// Rows of a buffer, in the order of the batch.
static void dt__gather_rows(const dt_model *m, int buffer, dt__n size, float *out) {
	int i;
	DT__FOR(i, m->n_replicas) {
		const dt__replica *r = &m->replica[i];
		dt__copy(r->rows * size, 1, dt__at(r, buffer), out + r->first_row * size, 0);
	}
}

int dt_output_read(dt_model *m, const char *name, float *out, dt_error *err) {
	const dt_tensor *t;
	const dt__named *o;
	if (!m || !out) return dt__is_null(err, m ? "array" : "model");
	if (!m->task.n) return dt__not_now(err, "dt_output_read: call dt_forward first");
	t = m->graph.output;
	if (name) {
		for (o = m->graph.outputs; o && strcmp(o->name, name); o = o->next) {}
		if (!o) return dt__deny(err, "dt_output_read: no output \"%s\": name it by dt_output in net", name);
		t = o->t;
	}
	dt__gather_rows(m, t->value, t->size, out);
	return 0;
}

int dt_input_gradient_read(dt_model *m, float *out, dt_error *err) {
	const dt_tensor *t;
	if (!m || !out) return dt__is_null(err, m ? "array" : "model");
	t = m->graph.input[0];
	if (!m->o.input_gradient || !t->back || t->type == DT_INT32)
		return dt__not_now(err, "%s: create the model with .input_gradient = 1, and floats as input", __func__);
	if (!m->task.input_gradient) return dt__not_now(err, "%s: call dt_forward and dt_backward first, and nothing after them", __func__);
	dt__gather_rows(m, t->gradient, t->size, out);
	return 0;
}

// As many of n samples as fit: of x, or of a data set from position on.
static int dt__infer(dt_model *m, const void *x, const dt_dataset *d, long position, long n, int evaluate, int shared, dt_error *err) {
	dt_batch b = DT_DEFAULTS;
	b.x[0] = x;
	dt__new_task(m, &b, d, position, DT__MIN(n, shared ? m->batch / m->parts : m->local_batch / m->parts));
	m->task.labelled = evaluate; m->task.shared = shared;
	dt__run_job(m, dt__job_forward);
	m->task.n = 0;
	return dt__errors(m, evaluate ? "dt_evaluate" : "dt_predict", err);
}

// From x, or from `begin` on of a data set.
static int dt__predict(dt_model *m, const void *x, const dt_dataset *d, long begin, long n, float *out, dt_error *err) {
	const dt_tensor *in = m->graph.input[0], *y = m->graph.output;
	long at;
	int code = 0;
	for (at = 0; at < n && !code; at += m->local_batch / m->parts) {
		code = dt__infer(m, x ? dt__row_of(x, in, m->o.input_type, at) : NULL, d, begin + at, n - at, 0, 0, err);
		if (!code) dt__gather_rows(m, y->value, y->size, out + at * y->size);
	}
	return code;
}

int dt_predict(dt_model *m, const void *x, long n, float *out, dt_error *err) {
	if (!m || !x || !out) return dt__is_null(err, !m ? "model" : !x ? "input" : "output");
	if (n < 0) return dt__deny(err, "dt_predict: n is %ld: give 0 or more", n);
	if (m->graph.n_inputs > 1) return dt__deny(err, "dt_predict: net has %d inputs: use dt_forward, dt_output_read", m->graph.n_inputs);
	return dt__predict(m, x, NULL, 0, n, out, err);
}

int dt_predict_source(dt_model *m, const dt_source *s, long begin, long n, float *out, dt_error *err) {
	dt_dataset *d;
	int code;
	if (!m || !s || !out) return dt__is_null(err, !m ? "model" : !s ? "source" : "output");
	d = dt__open_data(m, s, err);
	if (!d) return dt__code(err, DT_ERR_IO);
	code = dt__data_fits(m, d, 0, err);
	if (!code && (begin < 0 || n < 0 || n > d->info.n - begin))
		code = dt__deny(err, "dt_predict_source: %ld samples from %ld on are asked for, of %ld", n, begin, d->info.n);
	if (!code) code = dt__predict(m, NULL, d, begin, n, out, err);
	dt_dataset_close(d);
	return code;
}

// ---- evaluation

static void dt__count_confusion(const dt_model *m, const dt_tensor *loss, dt_metrics *out) {
	DT__OPTIONS(loss, loss);
	const dt_tensor *t = m->graph.output;
	dt__n classes = t->dim[t->rank - 1], i, k;
	int j;
	DT__FOR(j, m->n_replicas) {
		const dt__replica *r = &m->replica[j];
		const float *x = dt__value(r, t);
		for (i = 0; i < r->rows * loss->size; i++, x += classes) {
			dt__n best = 0;
			int32_t label;
			memcpy(&label, dt__value(r, loss) + i, sizeof label);
			for (k = 1; k < classes; k++) if (x[k] > x[best]) best = k;
			if (x[best] == x[best] && label >= 0 && label < classes && !dt__ignored(o, label)) out->confusion[label * classes + best]++;
		}
	}
}

// shared: each process takes its part of every batch.
static int dt__evaluate_data(dt_model *m, const dt_dataset *d, int shared, dt_metrics *out, dt_error *err) {
	double totals[DT__TOTALS] = {0};
	const dt__graph *g = &m->graph;
	const dt_tensor *loss = g->loss[0], *logits;
	dt_loss_kind kind;
	long at;
	int i, code;
	if (!g->n_losses) return dt__no_loss("dt_evaluate", err);
	if ((code = dt__data_fits(m, d, 1, err))) return code;
	if (out->top_k < 0) return dt__deny(err, "dt_evaluate: .top_k is %d: give 0 (for 5) or more", out->top_k);
	logits = loss->in[0]; kind = dt__loss_of(loss)->kind;
	if (out->confusion && (loss->type != DT_INT32 || loss->label < 0 || (logits != g->output && logits != dt__logits(g->output, kind))))
		return dt__deny(err, "dt_evaluate: .confusion needs a cross-entropy of net's output and fed integer labels");
	DT__FOR(i, m->n_replicas) m->replica[i].top_k = DT__ELSE(out->top_k, 5);
	for (at = 0; at < d->info.n && !code; at += (shared ? m->batch : m->local_batch) / m->parts) {
		code = dt__infer(m, NULL, d, at, d->info.n - at, 1, shared, err);
		DT__FOR(i, m->n_replicas) dt__totals_add(totals, m->replica[i].chunk_totals);
		if (out->confusion && !code) dt__count_confusion(m, loss, out);
	}
	if (shared && !code) code = dt__sum_totals(m->comm, totals, err);
	out->loss = dt__totals_loss(g, totals);
	out->n = kind <= DT_BINARY_CROSS_ENTROPY ? (long)totals[DT__COUNTED] : d->info.n;
	out->accuracy = dt__totals_accuracy(g, totals, DT__RIGHT);
	out->top_k_accuracy = dt__totals_accuracy(g, totals, DT__RIGHT_TOP);
	out->classes = kind == DT_CROSS_ENTROPY ? logits->dim[logits->rank - 1] : 0;
	return code;
}

int dt_evaluate(dt_model *m, const dt_source *s, dt_metrics *metrics, dt_error *err) {
	dt_dataset *d;
	int code;
	if (!m || !s || !metrics) return dt__is_null(err, !m ? "model" : !s ? "source" : "result");
	d = dt__open_data(m, s, err);
	if (!d) return dt__code(err, DT_ERR_IO);
	code = dt__evaluate_data(m, d, 0, metrics, err);
	dt_dataset_close(d);
	return code;
}

// The diagonal's share of a row of the confusion matrix, or of a column.
static double dt__share_right(const dt_metrics *metrics, int label, int column) {
	const long *confusion = metrics ? metrics->confusion : NULL;
	dt__n n, i;
	long all = 0;
	if (!confusion || label < 0 || label >= metrics->classes) return (double)NAN;
	n = metrics->classes;
	DT__FOR(i, n) all += confusion[column ? i * n + label : label * n + i];
	return all ? (double)confusion[label * n + label] / (double)all : (double)NAN;
}
double dt_precision(const dt_metrics *metrics, int label) { return dt__share_right(metrics, label, 1); }
double dt_recall(const dt_metrics *metrics, int label) { return dt__share_right(metrics, label, 0); }

int dt_local_batch(const dt_model *m) {
	if (!m || m->own) return m ? m->batch : 0;
	return (int)((int64_t)m->batch * (m->process + 1) / m->processes - (int64_t)m->batch * m->process / m->processes);
}
long dt_model_step(const dt_model *m) { return m ? m->step : 0; }
void dt_set_learning_rate(dt_model *m, double rate) { if (m && rate >= 0 && rate < 1e6) m->optimizer.rate = rate; }
double dt_learning_rate(const dt_model *m) { return m ? dt__rate_of(&m->optimizer, m->step) : 0; }

// ========
// >>wire - a group of processes: joining, frames, collectives over TCP
//
// What: every two processes share a connection: the higher rank dials the lower. Rank 0 hears from all first and hands out
//   the addresses. In a collective each rank adds its slice of everybody's array, in the order of the tree, and sends the sum
//   round; short arrays are added by everybody, and long ones of many ranks go round a ring. A thread says each second that
//   this process lives; another carries sums while the caller computes.
// Owns: dt__net: the sockets, those threads, memory for the others' slices.
// Uses: >>replicas, >>base.
// Promise: every wait has a deadline, every length is checked first, and all ranks that outlive a failure tell the same
//   cause. Who joins proves that he knows the secret, and so does each of his frames; nothing is encrypted.
// Frame: dt__frame and its payload, in the byte order of the machines, which must be one.

#ifndef DTRAIN_NO_SOCKETS
// ---- the secret: both sides prove that they know it

// SHA-256 (FIPS 180-4), whose constants are the first bits behind the point of roots of primes.
static void dt__sha256(const uint8_t *p, size_t n, uint8_t out[32]) {
	uint32_t h[8], k[64], w[64], v[8], a, b;
	size_t at, all = (n + 72) / 64 * 64, from;
	int i, prime = 2, d;
	for (i = 0; i < 64; prime++) {
		for (d = 2; d * d <= prime && prime % d; d++) {}
		if (d * d <= prime) continue;
		if (i < 8) h[i] = (uint32_t)(fmod(sqrt(prime), 1) * 4294967296.0);
		k[i++] = (uint32_t)(fmod(cbrt(prime), 1) * 4294967296.0);
	}
#define DT__TURN(x, k) ((x) >> (k) | (x) << (32 - (k)))
	for (at = 0; at < all; at += 64) {
		DT__FOR(i, 64) { // the text, a bit, and its length in bits
			from = at + (size_t)i;
			a = from < n ? p[from] : from == n ? 0x80 : from + 8 < all ? 0 : (uint32_t)((uint64_t)n * 8 >> 8 * (all - 1 - from) & 255);
			w[i / 4] = (i % 4 ? w[i / 4] << 8 : 0) | a;
		}
		for (i = 16; i < 64; i++) {
			a = w[i - 15]; b = w[i - 2];
			w[i] = w[i - 16] + w[i - 7] + (DT__TURN(a, 7) ^ DT__TURN(a, 18) ^ a >> 3) + (DT__TURN(b, 17) ^ DT__TURN(b, 19) ^ b >> 10);
		}
		memcpy(v, h, sizeof v);
		DT__FOR(i, 64) {
			a = v[7] + (DT__TURN(v[4], 6) ^ DT__TURN(v[4], 11) ^ DT__TURN(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
			b = (DT__TURN(v[0], 2) ^ DT__TURN(v[0], 13) ^ DT__TURN(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
			memmove(v + 1, v, 7 * sizeof *v);
			v[4] += a; v[0] = a + b;
		}
		DT__FOR(i, 8) h[i] += v[i];
	}
#undef DT__TURN
	DT__FOR(i, 32) out[i] = (uint8_t)(h[i / 4] >> (24 - i % 4 * 8));
}

#define DT__HELLO_BYTES 92 // rank (4), size (4), port of the listener (4), job (64), random (16)
#define DT__SAID (DT__HELLO_BYTES + 16) // … and those of the answer

// HMAC-SHA256 (RFC 2104) of what both have said, and of the side that proves.
static void dt__proof(const char *secret, const uint8_t *said, char side, uint8_t out[32]) {
	uint8_t key[64] = {0}, text[64 + DT__SAID + 1];
	size_t n = strlen(secret);
	int pass, i;
	if (n > 64) dt__sha256((const uint8_t *)secret, n, key); else memcpy(key, secret, n);
	memcpy(text + 64, said, DT__SAID);
	text[64 + DT__SAID] = (uint8_t)side;
	DT__FOR(pass, 2) {
		DT__FOR(i, 64) text[i] = key[i] ^ (pass ? 0x5c : 0x36);
		dt__sha256(text, pass ? 96 : sizeof text, out);
		memcpy(text + 64, out, 32);
	}
}

// SipHash-2-4 (Aumasson & Bernstein 2012) of a head's first 56 bytes and a payload.
static uint64_t dt__tag(const uint64_t key[2], const void *head, const void *payload, size_t n) {
	const uint8_t *p = (const uint8_t *)head;
	uint64_t a = key[0] ^ UINT64_C(0x736f6d6570736575), b = key[1] ^ UINT64_C(0x646f72616e646f6d);
	uint64_t c = key[0] ^ UINT64_C(0x6c7967656e657261), d = key[1] ^ UINT64_C(0x7465646279746573), m;
	size_t left = n / 8 + 8; // words, in the machines' byte order
#define DT__TURN(x, k) x = x << k | x >> (64 - k)
#define DT__SIP a += b; DT__TURN(b, 13); b ^= a; DT__TURN(a, 32); c += d; DT__TURN(d, 16); d ^= c; \
	a += d; DT__TURN(d, 21); d ^= a; c += b; DT__TURN(b, 17); b ^= c; DT__TURN(c, 32);
	while (left) {
		if (left-- == n / 8 + 1) p = (const uint8_t *)payload;
		if (left) { memcpy(&m, p, 8); p += 8; }
		else m = (uint64_t)(n + 56) << 56 | dt__read_le(p, (int)(n % 8));
		d ^= m;
		DT__SIP DT__SIP
		a ^= m;
	}
	c ^= 0xff;
	DT__SIP DT__SIP DT__SIP DT__SIP
#undef DT__TURN
#undef DT__SIP
	return a ^ b ^ c ^ d;
}

static int dt__differs(const uint8_t *a, const uint8_t *b) { // of 32 bytes, in constant time
	int i, d = 0;
	DT__FOR(i, 32) d |= a[i] ^ b[i];
	return d;
}

static void dt__random_bytes(uint8_t p[16]) {
	FILE *f = fopen("/dev/urandom", "rb");
	if (!f || fread(p, 1, 16, f) < 16) dt__write_le(p, dt__mix((uint64_t)(dt__now() * 1e9)), 8);
	if (f) fclose(f);
}

// ---- a connection and its frames

enum { DT__HELLO = 1, DT__CHALLENGE, DT__PROOF, DT__WELCOME, DT__ROSTER, DT__HEARTBEAT, DT__ABORT, DT__BYE, DT__ORDER, DT__ANSWER, DT__PART, DT__RESULT }; // the last two carry floats

#define DT__PROTOCOL (1 + 64 * (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)) // version of joining and frames, and byte order
typedef struct { // 64 bytes without gaps
	char magic[5]; // … and the version
	uint8_t type, kind, zero;
	int32_t rank, detail;
	uint64_t n, call, offset;
	uint32_t bytes, zeros; // bytes: of payload
	uint64_t number; // of the frame
	uint32_t check[2]; // CRC-32C of the payload, but not of floats; of the 60 bytes up to here. With a secret: SipHash of 56 bytes and the payload
} dt__frame;

static dt__frame dt__frame_of(int type, int rank, size_t bytes) {
	dt__frame f;
	DT__CLEAR(&f);
	f.type = (uint8_t)type; f.rank = rank; f.bytes = (uint32_t)bytes;
	return f;
}

typedef struct {
	int fd;
	int here, left, other; // it is on this machine; has said good-bye; speaks another version
	char address[64];
	double began, heard; // when it was opened; when bytes came last
	uint64_t sent, received; // frames are numbered
	int keyed; // frames carry a tag,
	uint64_t key_out[2], key_in[2]; // … by these
	uint8_t head[sizeof(dt__frame)]; // of the frame that leaves,
	struct iovec out[2]; // … and what is left of it
	uint8_t in[8192];  size_t from, to; // bytes that came ahead of their turn
	dt__frame frame; // that arrives: stage 0 its head, 1 its payload
	int stage;
	uint8_t *payload, *place;  size_t missing;
	uint8_t small[512]; // payloads of control
	dt__span part_out, part_in, result_out, result_in; // still missing of the collective, in floats
	int announced, greeted;
	dt__order order; // for a server, and then its answer
	uint8_t said[DT__SAID]; // joining
} dt__link;

static int dt__link_idle(const dt__link *l) { return !(l->out[0].iov_len + l->out[1].iov_len); }
static uint64_t dt__frame_sum(const dt__frame *f, const uint64_t *key, const void *payload) {
	return key ? dt__tag(key, f, payload, f->bytes) : f->type < DT__PART ? dt__crc32c(0, payload, f->bytes) : 0;
}

// The link must be idle; the payload stays in place until it is again.
static void dt__link_queue(dt__link *l, dt__frame f, const void *payload) {
	uint64_t sum;
	memcpy(f.magic, "DTR1", 4); f.magic[4] = DT__PROTOCOL;
	f.number = l->sent++;
	sum = dt__frame_sum(&f, l->keyed ? l->key_out : NULL, payload);
	f.check[0] = (uint32_t)sum;
	f.check[1] = l->keyed ? (uint32_t)(sum >> 32) : dt__crc32c(0, &f, 60);
	memcpy(l->head, &f, sizeof f);
	l->out[0].iov_base = l->head; l->out[0].iov_len = sizeof f;
	l->out[1].iov_base = (void *)(uintptr_t)payload;
	l->out[1].iov_len = f.bytes;
}

static int dt__later(void) { return errno == EAGAIN || errno == EINTR; }

// Send what can leave now: how many bytes, or -1: the connection has ended.
static ssize_t dt__link_flush(dt__link *l) {
	struct msghdr m;
	ssize_t n, left;
	int i;
	if (dt__link_idle(l)) return 0;
	DT__CLEAR(&m);
	m.msg_iov = l->out; m.msg_iovlen = 2;
	n = sendmsg(l->fd, &m, MSG_NOSIGNAL);
	if (n < 0) return dt__later() ? 0 : -1;
	for (i = 0, left = n; i < 2; i++) {
		size_t gone = DT__MIN((size_t)left, l->out[i].iov_len);
		l->out[i].iov_base = (char *)l->out[i].iov_base + gone;
		l->out[i].iov_len -= gone; left -= (ssize_t)gone;
	}
	return n;
}

// Take in a head. 0: it is none of ours.
static int dt__link_head(dt__link *l) {
	dt__frame *f = &l->frame;
	memcpy(f, l->in + l->from, sizeof *f);
	l->from += sizeof *f;
	l->other = memcmp(f->magic, "DTR1", 4) ? 0 : f->magic[4] ^ DT__PROTOCOL;
	if (memcmp(f->magic, "DTR1", 4) || l->other || (!l->keyed && f->check[1] != dt__crc32c(0, f, 60)) || f->number != l->received++ || f->detail < 0) return 0;
	return 1;
}

// Take in what has come. 1: a frame; 0: not yet; -1: the connection has ended; -2: damaged, or no peer of ours. place says where
// a payload goes; NULL: later.
static int dt__link_read(dt__link *l, uint8_t *(*place)(void *user, dt__link *l), void *user) {
	for (;;) {
		size_t have = l->to - l->from, n;
		ssize_t got;
		if (l->stage == 0 && have >= sizeof l->frame) {
			if (!dt__link_head(l)) return -2;
			l->stage = 1; l->payload = NULL;
			continue;
		}
		if (l->stage == 1) {
			if (!l->payload) {
				l->payload = l->place = place(user, l);
				if (!l->payload) return l->frame.type < DT__PART ? -2 : 0;
				l->missing = l->frame.bytes;
			}
			n = DT__MIN(have, l->missing);
			memcpy(l->place, l->in + l->from, n);
			l->from += n; l->place += n; l->missing -= n;
			if (!l->missing) {
				uint64_t sum = dt__frame_sum(&l->frame, l->keyed ? l->key_in : NULL, l->payload);
				l->stage = 0;
				return (uint32_t)sum == l->frame.check[0] && (!l->keyed || sum >> 32 == l->frame.check[1]) ? 1 : -2;
			}
		}
		if (l->stage == 1 && l->missing >= sizeof l->in) {
			got = recv(l->fd, l->place, l->missing, 0);
			if (got > 0) { l->place += got; l->missing -= (size_t)got; }
		} else {
			memmove(l->in, l->in + l->from, l->to - l->from);
			l->to -= l->from;
			l->from = 0; got = recv(l->fd, l->in + l->to, sizeof l->in - l->to, 0);
			if (got > 0) l->to += (size_t)got;
		}
		if (got == 0) return -1;
		if (got < 0) return dt__later() ? 0 : -1;
		l->heard = dt__now();
	}
}

static uint8_t *dt__place_small(void *user, dt__link *l) {
	return l->frame.bytes < sizeof l->small ? (uint8_t *)memset(l->small, 0, sizeof l->small) : NULL;
}

static void dt__link_close(dt__link *l) {
	if (l->fd >= 0) close(l->fd);
	l->fd = -1;
}

// ---- the net: one link to every other rank

typedef struct { pthread_t thread; int runs, fd[2]; } dt__hand; // a thread, which hears through a pair of sockets, and ends with ours

typedef struct dt__net {
	dt_comm comm;
	int n; // processes; the last comm.servers of them are parameter servers
	dt__link *link; // [n], the own one unused
	struct pollfd *poll; // [n]
	float **part; // [2 * size], for the sum
	float *room;  size_t room_floats; // the others' parts of the own slice
	double dead, began; // seconds of silence that end a peer; start of the running collective
	uint64_t call, calls[2]; // number of the running collective; of collectives so far, of servers' rounds
	dt_server *server; // that this process is, or NULL
	float *buf, *into[2]; // what leaves; where results go: below `trained`, and behind it
	dt__n trained;
	dt__span mine; // what this rank adds up, or hands out; up to ready it is done
	dt__n ready;
	char (*roster)[64]; // [n], addresses
	dt_error cause; // why everything ends
	dt__hand heart, courier;
	pthread_mutex_t lock; // over the links: a collective's unless it waits, or the heart's
	struct dt__desk *desk; // [size], and areas, in a segment; or NULL
	void *segment;  size_t segment_bytes;
	int turn; // of the areas
	int ring, step; // a long sum goes round; its next step
	dt_wire wire; float *wide; dt__n wide_n; // a sum in 16 bits: where it came from
} dt__net;

#define DT__LOCK(net) pthread_mutex_lock(&(net)->lock)
#define DT__UNLOCK(net) pthread_mutex_unlock(&(net)->lock)
#define DT__CHUNK 131072 // floats of a frame
#define DT__SHORT 4096 // floats up to which everybody adds all: one way, not there and back

#define DT__LINKS(net, i, l) \
	for (i = 0, l = (net)->link; i < (net)->n; i++, l++) if (i != (net)->comm.rank && l->fd >= 0)

static void dt__link_beat(const dt__net *net, dt__link *l) {
	if (dt__link_idle(l)) dt__link_queue(l, dt__frame_of(DT__HEARTBEAT, net->comm.rank, 0), NULL);
	dt__link_flush(l);
}

static int dt__hand_start(dt__hand *h, void *(*run)(void *user), dt__net *net) {
	int i;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, h->fd)) return 0;
	DT__FOR(i, 2) fcntl(h->fd[i], F_SETFD, FD_CLOEXEC);
	h->runs = !pthread_create(&h->thread, NULL, run, net);
	DT__WHILE(i, 2, !h->runs) close(h->fd[i]);
	return h->runs;
}
static void dt__hand_stop(dt__hand *h) {
	if (!h->runs) return;
	close(h->fd[1]);
	pthread_join(h->thread, NULL);
	close(h->fd[0]);
	h->runs = 0;
}

static void *dt__heart_main(void *user) {
	dt__net *net = (dt__net *)user;
	struct pollfd bell = {net->heart.fd[0], POLLIN, 0};
	dt__link *l;
	int i;
	while (poll(&bell, 1, 1000) <= 0) { // until the other end is closed
		DT__LOCK(net);
		DT__LINKS(net, i, l) dt__link_beat(net, l);
		DT__UNLOCK(net);
	}
	return NULL;
}

// Say a last thing to all, within a time, and close. A frame half sent goes out whole first.
static void dt__net_end(dt__net *net, int type, double seconds) {
	double until = dt__now() + seconds;
	const char *text = net->cause.text;
	dt__frame f = dt__frame_of(type, net->comm.rank, type == DT__ABORT ? strlen(text) : 0);
	dt__link *l;
	int i, open;
	dt__hand_stop(&net->heart);
	f.detail = net->cause.code;
	DT__LINKS(net, i, l) l->announced = 0;
	do {
		open = 0;
		DT__LINKS(net, i, l) {
			int got = 0;
			if (dt__link_idle(l) && !l->announced) { dt__link_queue(l, f, text); l->announced = 1; }
			if (dt__link_flush(l) < 0) got = -1;
			if (l->announced == 1 && dt__link_idle(l)) { shutdown(l->fd, SHUT_WR); l->announced = 2; }
			while (got >= 0 && dt__now() < until && (got = (int)recv(l->fd, l->in, sizeof l->in, 0)) > 0) {} // bytes unread would make the system drop ours
			if (got < 0 && errno == EAGAIN) open = 1; else dt__link_close(l);
		}
		if (open) poll(NULL, 0, 1);
	} while (open && dt__now() < until);
	DT__LINKS(net, i, l) dt__link_close(l);
}

static void dt__net_lost(dt__net *net, const dt__link *l, const char *why) {
	int rank = (int)(l - net->link), workers = net->comm.size;
	dt__lost(&net->cause, "%s %d (%s) is lost: %s", rank < workers ? "rank" : "parameter server", rank % workers, l->address, why);
}

static uint8_t *dt__ps_place(dt__net *net, dt__link *l);

// Are the floats that come the next of a span, which counts from `begin` on?
static int dt__link_expects(const dt__link *l, const dt__span *s, dt__n begin) {
	const dt__frame *f = &l->frame;
	return f->bytes % 4 == 0 && f->offset == (uint64_t)(begin + s->begin) && f->bytes / 4 <= (size_t)dt__len(*s);
}

// Where a frame's payload goes, if this is its time.
static uint8_t *dt__net_place(void *user, dt__link *l) {
	dt__net *net = (dt__net *)user;
	const dt__frame *f = &l->frame;
	dt__span *s = f->type == DT__PART ? &l->part_in : &l->result_in;
	dt__n peer = l - net->link;
	dt_comm other = net->comm, *own = &net->comm;
	if (f->type < DT__PART) return dt__place_small(NULL, l);
	if (net->server) return dt__ps_place(net, l);
	if (f->call == net->call + 1) return NULL; // it is ahead
	other.rank = (int)peer; other.kind = (dt__kind)f->kind; other.n = (size_t)f->n;
	other.detail = f->detail;
	if (dt__same_call(own->rank < other.rank ? own : &other, own->rank < other.rank ? &other : own, &net->cause)) return NULL;
	if (f->call != net->call || (f->bytes && !dt__link_expects(l, s, 0))) {
		dt__net_lost(net, l, "it sent a frame out of turn");
		return NULL;
	}
	l->greeted = 1;
	if (!f->bytes) return l->small;
	if (s == &l->result_in) return (uint8_t *)(net->into[s->begin + (dt__n)f->bytes / 4 > net->trained] + s->begin);
	return (uint8_t *)(net->room + peer * dt__len(net->mine) + (s->begin - net->mine.begin));
}

// Read from a link: 1 if a frame has come, or the end.
static int dt__net_pull(dt__net *net, dt__link *l) {
	int rank = (int)(l - net->link), got = dt__link_read(l, dt__net_place, net);
	const dt__frame *f = &l->frame;
	dt__n count = (dt__n)(f->bytes / 4);
	if (got == 0) return 0;
	if (got == -2) dt__net_lost(net, l, "it sent damaged bytes");
	else if (got == -1 && !l->left) dt__net_lost(net, l, "its connection has ended");
	else if (got == -1 && (net->server || net->desk)) dt__link_close(l);
	else if (got == -1) dt__comm_left(&net->comm, rank, &net->cause);
	else if (f->type == DT__PART) l->part_in.begin += count;
	else if (f->type == DT__RESULT) l->result_in.begin += count;
	else if (f->type == DT__ABORT) dt__fail(&net->cause, DT__ELSE(f->detail, DT_ERR_PEER), "%s", *l->small ? (const char *)l->small : "a process ended without a word");
	else if (f->type == DT__ANSWER && rank >= net->comm.size) { l->greeted = 1; memcpy(&l->order, l->small, sizeof l->order); }
	else if (f->type == DT__ORDER && net->server) l->greeted = 1;
	else if (f->type == DT__BYE) l->left = 1;
	return 1;
}

static int dt__net_flush(dt__net *net, dt__link *l) {
	ssize_t gone = dt__link_flush(l);
	while (gone < 0 && !net->cause.code && dt__net_pull(net, l)) {} // which finds out why: an ABORT may lie there
	if (gone < 0) dt__net_lost(net, l, "its connection has ended");
	return gone != 0;
}

// Send what may leave now: 1 if something has.
static int dt__net_push(dt__net *net, dt__link *l) {
	const dt_comm *c = &net->comm;
	int order = c->kind == DT__PUSHING && !l->announced, result = l->announced && !dt__len(l->part_out);
	dt__span *s = result ? &l->result_out : &l->part_out;
	dt__n count = order ? 0 : DT__MIN((result ? DT__MIN(net->ready, s->end) : s->end) - s->begin, DT__CHUNK);
	if (dt__link_idle(l) && (!result || count > 0)) {
		dt__frame f = dt__frame_of(order ? DT__ORDER : result ? DT__RESULT : DT__PART, c->rank, order ? sizeof l->order : 4 * (size_t)count);
		f.kind = (uint8_t)c->kind; f.detail = c->detail; f.n = c->n; f.call = net->call;
		f.offset = (uint64_t)s->begin;
		dt__link_queue(l, f, order ? (const void *)&l->order : net->buf ? net->buf + s->begin : NULL);
		s->begin += count; l->announced = 1;
	}
	return dt__net_flush(net, l);
}

// Sums of packed values are rounded once. wide: [size] pieces.
static void dt__net_add_packed(const dt__net *net, dt__n n, float *wide) {
	int size = net->comm.size;
	float **part = net->part, **sum = part + size;
	dt__span s = {0, 0};
	dt__n at;
	int i;
	for (at = 0; at < n; at += DT__PIECE) {
		s.end = 2 * DT__MIN(n - at, DT__PIECE);
		DT__FOR(i, size) dt__cpu()->widen(net->wire, s.end, part[i] + at, sum[i] = wide + 2 * DT__PIECE * i);
		dt__reduce(sum, size, s, DT_SUM, 0);
		dt__cpu()->narrow(net->wire, s.end, *sum, *part + at);
	}
}

static int dt__everybody(const dt_comm *c) { return c->kind == DT__ALLREDUCE && c->n <= DT__SHORT; } // adds everything

// Add up what all have sent of the own slice.
static void dt__net_add(dt__net *net) {
	const dt_comm *c = &net->comm;
	dt__n all = net->mine.end, size = dt__len(net->mine);
	dt__span s = {0, 0};
	dt__link *l;
	int i;
	DT__LINKS(net, i, l) if (i < c->size) {
		all = DT__MIN(all, l->part_in.begin);
		if (dt__everybody(c) && !(l->announced && dt__link_idle(l))) return; // the own values leave from the same place first
	}
	if (all <= net->ready || (all < net->mine.end && all - net->ready < DT__CHUNK)) return;
	DT__FOR(i, c->size) net->part[i] = i == c->rank ? net->buf + net->ready : net->room + i * size + (net->ready - net->mine.begin);
	s.end = all - net->ready;
	if (net->wire) dt__net_add_packed(net, s.end, net->room + c->size * size);
	else dt__reduce(net->part, c->size, s, (dt_reduction)c->detail, 0);
	if (c->rank) dt__copy(s.end, 1, net->part[0], net->buf + net->ready, 0);
	net->ready = all;
}

static int dt__link_done(const dt__link *l) {
	return l->announced && l->greeted && dt__link_idle(l) && !dt__len(l->part_out) && !dt__len(l->part_in) &&
		!dt__len(l->result_out) && !dt__len(l->result_in);
}

// It has nothing to send and nothing to get, but for a frame if it takes part.
static void dt__link_begin(dt__link *l, int part) {
	dt__span none = {0, 0};
	l->part_out = l->part_in = l->result_out = l->result_in = none;
	l->announced = l->greeted = !part;
}

// n floats of each rank.
static int dt__net_room(dt__net *net, dt__n n) {
	size_t floats = (size_t)n * (size_t)net->comm.size;
	if (floats <= net->room_floats) return 0;
	free(net->room);
	net->room = (float *)malloc(4 * floats);
	net->room_floats = net->room ? floats : 0;
	return net->room ? 0 : dt__oom(&net->cause, "%s: no memory for %zu values of other ranks", dt__call_of(&net->comm), floats);
}

// Who sends and adds what: slices for sums and gathering, all for short sums and the root of a broadcast.
static int dt__net_begin(dt__net *net, float *buf) {
	const dt_comm *c = &net->comm;
	int sums = dt__sums(c), everybody = dt__everybody(c), i;
	dt__span whole = {0, 0};
	whole.end = (dt__n)c->n; net->call = ++net->calls[0];
	net->buf = net->into[0] = net->into[1] = buf;
	net->mine = everybody ? whole : dt__comm_slice(c, c->rank);
	DT__FOR(i, net->n) {
		dt__link *l = &net->link[i];
		dt__span slice = everybody ? whole : dt__comm_slice(c, i);
		dt__link_begin(l, i < c->size);
		if (i >= c->size) continue;
		if (sums) { l->part_out = slice; l->part_in = net->mine; }
		if (!everybody && c->kind != DT__REDUCE_SCATTER) { l->result_in = slice; l->result_out = net->mine; }
	}
	net->ready = sums ? net->mine.begin : net->mine.end;
	return dt__net_room(net, (sums ? dt__len(net->mine) : 0) + (net->wire ? 2 * DT__PIECE : 0));
}

// Wait until something moves, but not for a silent peer.
static void dt__net_wait(dt__net *net) {
	dt__link *l;
	double now;
	char c;
	int i, n = 0;
	DT__LINKS(net, i, l) if (!dt__link_done(l)) {
		net->poll[n].fd = l->fd;
		net->poll[n].events = (short)((dt__link_idle(l) ? 0 : POLLOUT) | (l->stage == 1 && !l->payload ? 0 : POLLIN));
		n++;
	}
	DT__UNLOCK(net);
	poll(net->poll, (nfds_t)n, 200);
	DT__LOCK(net);
	now = dt__now();
	DT__LINKS(net, i, l) // unless it was this process that slept
		if (!dt__link_done(l) && now - DT__MAX(l->heard, net->began) > net->dead &&
			((l->stage == 1 && !l->payload) || (recv(l->fd, &c, 1, MSG_PEEK) < 0 && errno == EAGAIN))) dt__net_lost(net, l, "it is silent");
}

// After an error, which all are told, nothing is left of the net.
static int dt__net_code(dt__net *net, dt_error *err) {
	if (net->cause.code) dt__net_end(net, DT__ABORT, 0.5);
	return dt__pass(err, &net->cause);
}

#ifndef DT_RING
#define DT_RING 8 // ranks up to which each sends to all
#endif

// More pass slices on to the next rank, who adds his values; then the sums go round: not in the tree's order, but the same on all.
// 1: a step begins.
static int dt__ring_step(dt__net *net) {
	dt_comm *c = &net->comm;
	int n = c->size, t = net->step++;
	dt__link *next = &net->link[(c->rank + 1) % n], *before = &net->link[(c->rank + n - 1) % n];
	dt__span s = dt__comm_slice(c, (c->rank + 2 * n - t) % n);
	float *two[2];
	int i;
	two[0] = net->buf; two[1] = net->room;
	if (t && t < n) dt__reduce(two, 2, s, c->detail == DT_MAX ? DT_MAX : DT_SUM, 0); // it has just come
	if (t == n - 1 && c->detail == DT_MEAN) dt__copy(dt__len(s), 1 / (float)n, net->buf + s.begin, net->buf + s.begin, 0);
	net->ring = t < 2 * n - 2;
	if (!net->ring) return 0;
	DT__FOR(i, net->n) dt__link_begin(&net->link[i], 0);
	next->announced = before->greeted = 0;
	next->result_out = s; before->result_in = dt__comm_slice(c, (c->rank + 2 * n - t - 1) % n);
	net->call = ++net->calls[0]; net->ready = (dt__n)c->n;
	net->into[0] = net->into[1] = t < n - 1 ? net->room : net->buf;
	return 1;
}

static void dt__net_prepare(dt_comm *c, float *buf) {
	dt__net *net = c->net;
	int long_sum = c->kind == DT__ALLREDUCE && c->n > 2 * DT__SHORT;
	dt_wire wire = c->wire;
	dt__n n = (dt__n)c->n, words = (n + 1) / 2, each = (words - 1) / c->size + 1;
	net->began = dt__now(); net->ring = 0; net->wire = c->wire = DT_F32;
	if (net->cause.code || dt__check_call(c, buf, &net->cause)) return;
	if (long_sum && c->detail == DT_SUM && wire) {
		if (dt__net_room(net, 2 * (each + DT__PIECE))) return; // parts, room to add them, and these
		net->wire = wire; net->wide = buf; net->wide_n = n;
		buf = net->room + c->size * (each + 2 * DT__PIECE);
		dt__cpu()->narrow(wire, n, net->wide, buf);
		c->n = (size_t)words;
	}
	net->ring = long_sum && !net->wire && c->size > DT_RING; net->step = 0; net->buf = buf;
	if (!net->ring) dt__net_begin(net, buf);
	else if (!dt__net_room(net, (n - 1) / c->size + 1)) dt__ring_step(net);
}

static void dt__net_work(dt__net *net) {
	const dt_comm *c = &net->comm;
	dt__link *l;
	int i, open = 1, idle = 0;
	DT__LOCK(net);
	while (open && !net->cause.code) {
		int moved = 0;
		open = 0;
		DT__LINKS(net, i, l) if (!dt__link_done(l)) {
			moved |= dt__net_pull(net, l) | dt__net_push(net, l);
			open |= !dt__link_done(l);
		}
		if (dt__sums(c) && !net->ring) dt__net_add(net);
		if (!open && net->ring) open = moved = dt__ring_step(net);
		idle = moved ? 0 : idle + 1;
		if (open && idle > c->spins) dt__net_wait(net);
	}
	DT__UNLOCK(net);
	if (!open && net->wire) dt__cpu()->widen(net->wire, net->wide_n, net->buf, net->wide);
}

static int dt__net_run(dt_comm *c, float *buf, dt_error *err) {
	dt__net_prepare(c, buf);
	dt__net_work(c->net);
	return dt__net_code(c->net, err);
}

// The same in two steps, by a thread of its own. One byte goes there, and comes back: 0: the other end is closed.
static int dt__tell_hand(int fd, int sends, char *byte) {
	ssize_t n;
	do n = sends ? send(fd, byte, 1, MSG_NOSIGNAL) : recv(fd, byte, 1, 0); while (n < 0 && errno == EINTR);
	return n == 1;
}
static void *dt__courier_main(void *user) {
	dt__net *net = (dt__net *)user;
	char c;
	while (dt__tell_hand(net->courier.fd[0], 0, &c)) { dt__net_work(net); dt__tell_hand(net->courier.fd[0], 1, &c); }
	return NULL;
}
static void dt__net_start(dt_comm *c, float *buf) {
	char go = 0;
	dt__net_prepare(c, buf);
	dt__tell_hand(c->net->courier.fd[1], 1, &go);
}
static int dt__net_finish(dt_comm *c, dt_error *err) {
	char done;
	dt__tell_hand(c->net->courier.fd[1], 0, &done);
	return dt__net_code(c->net, err);
}

// A worker's round with all its servers, each of which holds a slice.
static int dt__net_push_all(dt_comm *c, dt__push *p, dt_error *err) {
	dt__net *net = c->net;
	int i, code;
	c->kind = DT__PUSHING; c->n = (size_t)p->all; c->detail = p->kind; net->call = ++net->calls[1];
	net->began = dt__now(); net->buf = p->out;
	net->into[0] = p->into; net->into[1] = p->sums;
	net->trained = p->trained;
	DT__FOR(i, net->n) {
		dt__link *l = &net->link[i];
		dt__span slice = dt__slice_of(p->trained, 64, c->servers, i - c->size), held = slice;
		uint64_t version = l->order.version;
		dt__link_begin(l, i >= c->size);
		if (i < c->size) continue;
		if (i == net->n - 1) held.end = p->all;
		if (p->kind != DT__STRETCH && p->kind != DT__FETCH) l->part_out = p->kind == DT__PUSH ? held : slice;
		if (dt__order_answers(p->kind)) l->result_in = p->kind == DT__PUSH ? held : slice;
		l->order = p->order; l->order.sequence = net->call;
		if (p->kind != DT__SETUP) l->order.version = version;
		l->order.begin = (uint64_t)held.begin;
		l->order.trained = (uint64_t)dt__len(slice);
		l->order.all = (uint64_t)dt__len(held);
	}
	net->ring = 0; net->wire = DT_F32;
	dt__net_work(net);
	code = dt__net_code(net, err); p->order = net->link[net->n - 1].order;
	return code;
}

// ---- ranks that share memory: a segment instead of the sockets, which still tell who has died

#define DT__AREA 65536 // floats
typedef struct dt__desk { // a rank's, with two areas that it uses in turn
	unsigned arrived, sleeping; // meetings it has come to; it waits at its sockets
	char apart[56];
	dt_comm call[2]; // of which kind, n and detail are read
} dt__desk;

static float *dt__area(const dt__net *net, int rank) { return (float *)net->segment + (rank * 2 + net->turn) * DT__AREA; }
static int dt__desk_late(const dt__net *net, int rank, unsigned round) { return (int)(DT__LOAD(&net->desk[rank].arrived) - round) < 0; }
static int dt__desk_all(const dt__net *net, unsigned round) { // have come?
	int i = 0;
	while (i < net->comm.size && !dt__desk_late(net, i, round)) i++;
	return i == net->comm.size;
}

static void dt__desk_meet(dt__net *net) {
	dt__desk *own = &net->desk[net->comm.rank];
	unsigned round = own->arrived + 1;
	dt__link *l;
	int i, spin;
	DT__SWAP(&own->arrived, round);
	DT__LINKS(net, i, l) if (i < net->comm.size && DT__LOAD(&net->desk[i].sleeping)) { // a frame wakes it
		DT__LOCK(net);
		dt__link_beat(net, l);
		DT__UNLOCK(net);
	}
	for (spin = net->comm.spins ? 0 : DT__SPINS; !dt__desk_all(net, round) && spin < DT__SPINS; spin++) DT__PAUSE();
	if (dt__desk_all(net, round)) return;
	DT__LOCK(net);
	DT__SWAP(&own->sleeping, 1);
	while (!dt__desk_all(net, round) && !net->cause.code) {
		dt__net_wait(net);
		DT__LINKS(net, i, l) while (!net->cause.code && l->fd >= 0 && dt__net_pull(net, l)) {}
		DT__FOR(i, net->comm.size) if (net->link[i].left && dt__desk_late(net, i, round)) dt__comm_left(&net->comm, i, &net->cause);
	}
	DT__STORE(&own->sleeping, 0);
	DT__UNLOCK(net);
}

// Of values at .. at + count - 1, counted from there: what a rank adds up, or hands out.
static dt__span dt__desk_slice(const dt_comm *c, int rank, dt__n at, dt__n count) {
	dt__span s = dt__comm_slice(c, rank);
	if (dt__sums(c)) return dt__slice_of(count, 16, c->size, rank);
	s.begin = DT__MAX(s.begin - at, 0); s.end = DT__MAX(DT__MIN(s.end - at, count), s.begin);
	return s;
}

// Those values by way of the areas. A rank brings what others add up, or its own; sums, in the tree's order, go to all areas.
static void dt__desk_piece(dt__net *net, float *buf, dt__n at, dt__n count) {
	const dt_comm *c = &net->comm;
	int sums = dt__sums(c), own = c->rank, i;
	net->turn ^= 1; net->desk[own].call[net->turn] = *c;
	DT__WHILE(i, c->size, count) if (sums != (i == own)) dt__copy_span(dt__desk_slice(c, i, at, count), buf + at, dt__area(net, own));
	dt__desk_meet(net);
	for (i = 1; i < c->size && !net->cause.code; i++) dt__same_call(&net->desk[0].call[net->turn], &net->desk[i].call[net->turn], &net->cause);
	if (net->cause.code || !count) return;
	if (sums) {
		DT__FOR(i, c->size) net->part[i] = i == own ? buf + at : dt__area(net, i);
		dt__reduce(net->part, c->size, dt__desk_slice(c, own, at, count), (dt_reduction)c->detail, 1);
		dt__desk_meet(net);
	}
	DT__WHILE(i, c->size, !net->cause.code) if (i != own) dt__copy_span(dt__desk_slice(c, i, at, count), dt__area(net, sums ? own : i), buf + at);
}

static int dt__desk_run(dt_comm *c, float *buf, dt_error *err) {
	dt__net *net = c->net;
	dt__n n = (dt__n)c->n, at;
	dt__link *l;
	int i;
	if (!net->cause.code) dt__check_call(c, buf, &net->cause);
	net->began = dt__now();
	DT__LINKS(net, i, l) l->announced = l->greeted = 0;
	for (at = 0; !net->cause.code && (!at || at < n); at += DT__AREA) dt__desk_piece(net, buf, at, DT__MIN(n - at, DT__AREA));
	return dt__net_code(net, err);
}

#define DT__HOST_BYTES 50
static void dt__host_of(const void *address, socklen_t n, char *host) { // in numbers
	if (getnameinfo((const struct sockaddr *)address, n, host, DT__HOST_BYTES, NULL, 0, NI_NUMERICHOST)) strcpy(host, "?");
}

// Is the peer on this host? Then both ends have one address, or loopback's. own: this end's
static int dt__is_here(int fd, char *own) {
	struct sockaddr_storage a;
	char peer[DT__HOST_BYTES];
	int i;
	DT__FOR(i, 2) {
		socklen_t n = sizeof a;
		if (i ? getpeername(fd, (struct sockaddr *)&a, &n) : getsockname(fd, (struct sockaddr *)&a, &n)) return 0;
		dt__host_of(&a, n, i ? peer : own);
	}
	return !strcmp(own, peer) || (!strncmp(own, "127.", 4) && !strncmp(peer, "127.", 4));
}

// Ranks of one machine share its cores evenly; or, where launchers pin, those they may run on (offers). A quota holds for all.
static void dt__net_cores(dt__net *net, const uint64_t *offers) {
	dt_comm *c = &net->comm;
	dt__link *l;
	char name[DT__HOST_BYTES];
	int here = net->link[c->rank].here = 1, bit, i;
	DT__LINKS(net, i, l) here += l->here = dt__is_here(l->fd, name);
	if (here < net->n) c->start = dt__net_start;
	c->cores = offers ? 0 : dt__cores() / (double)here;
	DT__WHILE(bit, 1024, offers) {
		int sharers = 0, own = 0;
		DT__FOR(i, c->size) if (net->link[i].here && offers[24 * i + 8 + bit / 64] >> bit % 64 & 1) { sharers++; own |= i == c->rank; }
		if (own) c->cores += 1.0000001 / sharers;
	}
	c->spins = c->cores < 1 ? 0 : 200;
}

// All ranks of one host map a file that rank 0 makes, if they find there what it says that it has written; else sockets serve.
static int dt__desk_open(dt__net *net, dt_error *err) {
	dt_comm *c = &net->comm;
	const char *wish = getenv("DTRAIN_TRANSPORT");
	uint64_t own[24] = {0}, *offers; // a rank's: 8 words, where the segment is; the cores it may run on
	char *path = (char *)memcpy(own, "/dev/shm/dtrain-XXXXXX", 23), *token = path + 48;
	float failed;
	uint8_t *const none = (uint8_t *)MAP_FAILED, *p = none;
	size_t bytes = (size_t)c->size * (sizeof *net->desk + 8 * DT__AREA);
	int fd = -1, must = wish && !strcmp(wish, "shm"), code = 0, i, quota = dt__core_mask(own + 8) != dt__cores();
	struct stat st;
	if (wish && !strcmp(wish, "tcp")) return 0;
	if (wish && !must && strcmp(wish, "auto")) return dt__bad_job(err, "DTRAIN_TRANSPORT is \"%.40s\": auto, tcp or shm is needed", wish);
	if (!c->rank) {
		fd = mkstemp(path);
		if (fd < 0) fd = mkstemp(strcpy(path, "/tmp/dtrain-XXXXXX"));
#ifdef __linux__
		if (fd >= 0 && posix_fallocate(fd, 0, (off_t)bytes)) { unlink(path); close(fd); fd = -1; } // or else a full disk would kill
#endif
		dt__random_bytes((uint8_t *)token);
		if (fd < 0 || pwrite(fd, token, 16, (off_t)bytes) < 16) { unlink(path); *path = 0; }
	}
	offers = dt__gather_words(c, 24, own, err);
	if (offers) memcpy(own, offers, 64); else code = dt__code(err, DT_ERR_MEMORY);
	if (!quota && !c->servers) dt__net_cores(net, offers);
	free(offers);
	path[47] = 0;
	if (c->rank && *path) fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && !fstat(fd, &st) && (size_t)st.st_size >= bytes + 16) p = (uint8_t *)mmap(NULL, bytes + 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0) close(fd);
	failed = p == none || memcmp(p + bytes, token, 16);
	DT__FOR(i, c->size) if (!net->link[i].here) failed = 1;
	if (!code) code = dt_allreduce(c, &failed, 1, DT_MAX, err);
	if (!c->rank && *path) unlink(path);
	if (p != none) { net->segment = p; net->segment_bytes = bytes + 16; }
	if (!code && failed == 0) {
		net->desk = (dt__desk *)(void *)dt__area(net, c->size); // behind the areas
		c->run = dt__desk_run; c->start = NULL;
	} else if (!code && must) code = dt__bad_job(err, "DTRAIN_TRANSPORT=shm: the ranks do not find the same memory: leave it out, or set tcp");
	return code;
}

// cause: what the others are told; NULL after a good end.
static void dt__net_close(dt_comm *c, const dt_error *cause) {
	dt__net *net = c->net;
	if (cause && !net->cause.code) dt__fail(&net->cause, cause->code, "rank %d: %s", c->rank, cause->text);
	dt__hand_stop(&net->courier);
	dt__net_end(net, cause ? DT__ABORT : DT__BYE, cause ? 0.5 : c->rank ? 2 : 5);
	pthread_mutex_destroy(&net->lock);
	if (net->segment) munmap(net->segment, net->segment_bytes);
	free(net->room);
	free(net);
}

static void dt__net_leave(dt_comm *c) { dt__net_close(c, NULL); }

// ---- joining

typedef struct { // what >>cluster has found out
	int rank, size;
	int servers; // of these processes, the last so many
	char chief[280]; // host:port of rank 0, which may have taken one of the next ports
	int tries;
	char bind[256]; // the own listener's host, or "", and port, 0: any
	int port;
	char job[64]; // processes of another job are not let in
	char file[280]; // of DTRAIN_RDZV, or torchrun's store, or ""
	int store; // MPICH's, or 0; -1: torchrun's
	char source[120]; // which variables said so
	double patience, dead; // seconds
	char secret[256];
	int insecure, listener; // listener: open already, or -1
} dt__who;

// "host:port" or "[v6]:port"; 0: neither.
static int dt__address(const char *text, char *host, size_t size, int *port) {
	const char *colon = strrchr(text, ':'), *begin = text + (*text == '['), *end = colon;
	int ok = 0;
	if (!colon) return 0;
	if (*text == '[' && *--end != ']') return 0;
	*port = (int)dt__whole(colon + 1, 65535, &ok);
	return ok && end > begin && dt__format(host, size, "%.*s", (int)(end - begin), begin) < size && !host[strcspn(host, *text == '[' ? " /@," : ": /@,")];
}

static struct addrinfo *dt__resolve(const char *host, int family, int port) {
	struct addrinfo hint, *found = NULL;
	char number[16];
	DT__CLEAR(&hint);
	hint.ai_family = family; hint.ai_socktype = SOCK_STREAM; hint.ai_flags = AI_PASSIVE;
	dt__fill(number, "%d", port);
	return getaddrinfo(host, number, &hint, &found) ? NULL : found;
}

// Of all hosts this one only: Debian gives a host's own name 127.0.1.1, and that name is another address elsewhere.
static int dt__is_loopback(const void *address, socklen_t n) {
	char host[DT__HOST_BYTES];
	dt__host_of(address, n, host);
	return !strcmp(host, "127.0.0.1") || !strcmp(host, "::1");
}

static void dt__socket_ready(int fd) {
	int one = 1;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifdef SO_NOSIGPIPE
	setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
}

// The own listener, or -1: on loopback if rank 0 is there and .bind says nothing else.
static int dt__listen(const dt__who *w, int *port, dt_error *err) {
	char host[256];
	const char *why = "the address is not known here";
	struct sockaddr_storage own;
	socklen_t n = sizeof own;
	struct addrinfo *a, *at;
	int i, fd = -1, one = 1, first, local, family = AF_UNSPEC;
	if (!dt__address(w->chief, host, sizeof host, &first)) {
		dt__bad_job(err, "\"%.100s\" (%s) is no address: host:port is needed", w->chief, w->source);
		return -1;
	}
	a = dt__resolve(host, AF_UNSPEC, first);
	local = a && w->store <= 0 && dt__is_loopback(a->ai_addr, a->ai_addrlen);
	for (at = a; at; at = at->ai_next) if (family != AF_INET) family = at->ai_family; // IPv6 only where rank 0 has no other
	if (a) freeaddrinfo(a);
	if (w->rank) first = w->port;
	DT__WHILE(i, w->rank ? 1 : w->tries, fd < 0) {
		a = *w->bind ? dt__resolve(w->bind, AF_UNSPEC, first + i) : dt__resolve(local ? host : NULL, family, first + i);
		if (!a) break;
		if (!w->insecure && !*w->secret && !dt__is_loopback(a->ai_addr, a->ai_addrlen)) {
			why = "anybody in its network could join: set the same DTRAIN_SECRET of 16 characters or more for all, or DTRAIN_INSECURE=1";
		} else if ((fd = socket(a->ai_family, SOCK_STREAM, 0)) >= 0) {
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
			if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 1024)) { why = strerror(errno); close(fd); fd = -1; }
		}
		freeaddrinfo(a);
	}
	if (fd >= 0 && !getsockname(fd, (struct sockaddr *)&own, &n)) {
		*port = ntohs(((struct sockaddr_in *)(void *)&own)->sin_port); // so has IPv6
		return fd;
	}
	if (fd >= 0) close(fd);
	dt__bad_job(err, "rank %d, with rank 0 at %s (%s), cannot listen at port %d: %s", w->rank, w->chief, w->source, first, why);
	return -1;
}

// A connection, or -1 and why not; two seconds for each address.
static int dt__connect(const char *address, int shift, const char **why) {
	char host[256];
	int fd = -1, port, code = 0;
	socklen_t n = sizeof code;
	struct addrinfo *a = dt__address(address, host, sizeof host, &port) ? dt__resolve(host, AF_UNSPEC, port + shift) : NULL, *at;
	struct pollfd p;
	*why = "the host's name is not found";
	for (at = a; at && fd < 0; at = at->ai_next) {
		fd = socket(at->ai_family, SOCK_STREAM, 0);
		if (fd < 0) continue;
		dt__socket_ready(fd);
		code = connect(fd, at->ai_addr, at->ai_addrlen) && errno != EINPROGRESS ? errno : 0;
		p.fd = fd; p.events = POLLOUT;
		if (!code && poll(&p, 1, 2000) < 1) code = ETIMEDOUT;
		else if (!code) getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &n);
		if (code) { close(fd); fd = -1; *why = strerror(code); }
	}
	if (a) freeaddrinfo(a);
	return fd;
}

// Wait for a frame of control. 0: it is there.
static int dt__link_await(dt__link *l, int type, uint8_t *(*place)(void *, dt__link *), void *user, double until) {
	struct pollfd p = {l->fd, POLLIN, 0};
	int got;
	while ((got = dt__link_read(l, place, user)) >= 0 && dt__now() < until && !DT__STOPPED) {
		if (got == 1) return l->frame.type != type;
		poll(&p, 1, 100);
	}
	return 1;
}

static void dt__link_tell(dt__link *l, int type, int rank, const void *payload, size_t n) {
	double until = dt__now() + 5;
	dt__link_queue(l, dt__frame_of(type, rank, n), payload);
	while (!dt__link_idle(l) && dt__link_flush(l) >= 0 && dt__now() < until) {}
}

static int dt__join_stopped(const dt__who *w, dt_error *err) {
	return dt__lost(err, "rank %d was stopped by signal %d while it waited for the others", w->rank, (int)DT__STOPPED);
}

// Has the process at the other end gone, or does it say so?
static int dt__link_gone(const dt__link *l) {
	char c[6] = "";
	ssize_t n = recv(l->fd, c, 6, MSG_PEEK);
	return n > 0 ? c[5] == DT__ABORT : n == 0 || !dt__later();
}

// From now on frames carry tags, if there is a secret. Each direction has a key of its own.
static void dt__link_seal(dt__link *l, const char *secret, int dialled) {
	uint8_t key[32];
	int i, side;
	l->keyed = *secret != 0;
	DT__FOR(side, 2) {
		dt__proof(secret, l->said, side ? 'D' : 'A', key);
		DT__FOR(i, 2) (side == dialled ? l->key_out : l->key_in)[i] = dt__read_le(key + 8 * i, 8);
	}
}

// What a launcher's store says: n bytes, or a line of fewer.
static size_t dt__hear(const dt__who *w, int fd, void *to, size_t n, int line) {
	struct pollfd p = {fd, POLLIN, 0};
	char *c = (char *)to;
	size_t i;
	DT__FOR(i, n) {
		while (poll(&p, 1, (int)(w->patience * 1000)) < 0 && dt__later() && !DT__STOPPED) {}
		if (recv(fd, c + i, 1, MSG_DONTWAIT) < 1 || (line && c[i] == '\n')) break;
	}
	return i;
}

// Where rank 0 listens, and a word. fd: a connection, or -1.
static int dt__meet_listen(dt__who *w, int fd, dt_error *err) {
	char host[256] = "";
	uint8_t word[16];
	int port;
	if (w->bind[strspn(w->bind, "0.:")]) dt__fill(host, "%s", w->bind); // not all addresses
	else if (fd < 0) gethostname(host, sizeof host - 1);
	else if (dt__is_here(fd, host)) dt__address(w->file, host, sizeof host, &port);
	dt__random_bytes(word);
	dt__fill(w->job, "%ju", (uintmax_t)dt__read_le(word, 8));
	if (w->store > 0 && !*w->secret) dt__fill(w->secret, "%s", w->job);
	do dt__fill(w->chief, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, w->port); // then with its port
	while (w->listener < 0 && (w->listener = dt__listen(w, &w->port, err)) >= 0);
	return w->listener < 0;
}

// By the store of torchrun's agent (c10d's TCPStore), in the host's byte order: rank 0 sets its word, all get it.
static char *dt__c10d_put(char *p, const char *text) {
	uint64_t n = strlen(text);
	memcpy(p, &n, 8);
	for (p += 8; *text; ) *p++ = *text++;
	return p;
}
static int dt__meet_c10d(dt__who *w, dt_error *err) {
	enum { SET = 1, GET = 3, WAIT = 6 };
	char m[1024] = "", key[100], word[360] = "", *p = m + 5;
	const char *why, *run = getenv("TORCHELASTIC_RUN_ID");
	uint32_t hello = 0x3C85F7CE; // behind a 0
	uint64_t n = 1;
	int fd = dt__connect(w->file, 0, &why), ok = fd >= 0;
	memcpy(m + 1, &hello, 4);
	dt__fill(key, "dtrain/%s/chief", run ? run : "");
	if (ok && !w->rank) {
		ok = !dt__meet_listen(w, fd, err);
		dt__fill(word, "%s %s", w->chief, w->job);
		*p = SET; p = dt__c10d_put(dt__c10d_put(p + 1, key), word);
	}
	*p = WAIT; memcpy(p + 1, &n, 8);
	p = dt__c10d_put(p + 9, key);
	ok = ok && send(fd, m, (size_t)(p - m), MSG_NOSIGNAL) > 0 && dt__hear(w, fd, m, 1, 0) && !*m;
	*m = GET; p = dt__c10d_put(m + 1, key);
	ok = ok && send(fd, m, (size_t)(p - m), MSG_NOSIGNAL) > 0 && dt__hear(w, fd, &n, 8, 0) == 8 && n < sizeof word && dt__hear(w, fd, word, (size_t)n, 0) == n;
	if (fd >= 0) close(fd);
	word[ok ? n : 0] = 0;
	return sscanf(word, "%279s %63s", w->chief, w->job) == 2;
}

// Or by a file.
static int dt__meet_read(dt__who *w) {
	if (w->store) return dt__meet_c10d(w, NULL);
	FILE *f = fopen(w->file, "r");
	int ok = f && fscanf(f, "%279s %63s", w->chief, w->job) == 2;
	if (f) fclose(f);
	return ok;
}
static int dt__meet_write(dt__who *w, dt_error *err) {
	dt__new_file file;
	if (w->store) return dt__meet_c10d(w, err) || err->code ? err->code : dt__bad_job(err, "torchrun's store at %s does not answer: set DTRAIN_CHIEF=host:port", w->file);
	if (dt__meet_listen(w, -1, err) || dt__new_file_open(&file, "DTRAIN_RDZV", w->file, err)) return DT_ERR_CONFIG;
	fprintf(file.f, "%s %s\n", w->chief, w->job);
	return dt__new_file_close(&file, err);
}

// Or by words that MPICH's mpiexec keeps (PMI-1): one line asks, another answers. found: what it has behind mark.
static int dt__pmi(const dt__who *w, char found[360], const char *mark, const char *format, ...) {
	char line[900];
	DT__WRITER(out, line);
	DT__VPRINT(&out, format);
	if (send(w->store, line, out.n, MSG_NOSIGNAL) < 0) return 0;
	line[dt__hear(w, w->store, line, sizeof line - 1, 1)] = 0;
	return strstr(line, mark) && sscanf(strstr(line, mark) + strlen(mark), "%359s", found) == 1;
}
static int dt__meet_pmi(dt__who *w, dt_error *err) {
	char said[360], job[360] = "";
	int ok = dt__pmi(w, said, "rc=", "cmd=init pmi_version=1 pmi_subversion=1\n") && dt__pmi(w, job, "kvsname=", "cmd=get_my_kvsname\n");
	if (ok && !w->rank) { // its word is also the secret, if there is none
		if (dt__meet_listen(w, -1, err)) return DT_ERR_CONFIG;
		ok = dt__pmi(w, said, "rc=", "cmd=put kvsname=%s key=dtrain value=%s,%s\n", job, w->chief, w->job);
	}
	ok = ok && dt__pmi(w, said, "cmd=", "cmd=barrier_in\n");
	if (ok && w->rank) ok = dt__pmi(w, said, "value=", "cmd=get kvsname=%s key=dtrain\n", job) && sscanf(said, "%279[^,],%63s", w->chief, w->job) == 2;
	if (!*w->secret) dt__fill(w->secret, "%s", w->job);
	dt__fill(w->job, "%s", job);
	dt__pmi(w, said, "cmd=", "cmd=finalize\n");
	unsetenv("PMI_FD");
	return ok ? 0 : dt__bad_job(err, "not all came, or mpiexec does not tell where rank 0 is (PMI_FD): set DTRAIN_CHIEF=host:port");
}

// Dial a rank until it answers or time is over.
static int dt__dial(dt__net *net, dt__who *w, int rank, const char *address, int port, double until, dt_error *err) {
	dt__link *l = &net->link[rank];
	uint8_t proof[32];
	const char *why = "";
	int round;
	for (round = 0; dt__now() < until && !DT__STOPPED; round++) {
		DT__CLEAR(l);
		if (!rank && *w->file) dt__meet_read(w); // it may be new
		l->fd = dt__connect(address, rank ? 0 : round % w->tries, &why);
		if (l->fd >= 0) {
			dt__fill(l->address, "%s", address);
			dt__write_le(l->said, (uint64_t)w->rank, 4);
			dt__write_le(l->said + 4, (uint64_t)w->size | (uint64_t)w->servers << 16, 4);
			dt__write_le(l->said + 8, (uint64_t)port, 4);
			memcpy(l->said + 12, w->job, strlen(w->job));
			dt__random_bytes(l->said + 76);
			dt__link_tell(l, DT__HELLO, w->rank, l->said, DT__HELLO_BYTES);
			if (!dt__link_await(l, DT__CHALLENGE, dt__place_small, NULL, rank || (w->tries == 1 && !*w->file) ? until : DT__MIN(dt__now() + 5, until))) {
				memcpy(l->said + DT__HELLO_BYTES, l->small, 16);
				dt__proof(w->secret, l->said, 'a', proof);
				if (dt__differs(proof, l->small + 16)) return dt__bad_job(err, "rank %d (%s) knows another secret: set the same DTRAIN_SECRET for all", rank, address);
				dt__proof(w->secret, l->said, 'd', proof);
				dt__link_tell(l, DT__PROOF, w->rank, proof, sizeof proof);
				if (!dt__link_await(l, DT__WELCOME, dt__place_small, NULL, until)) { dt__link_seal(l, w->secret, 1); return 0; }
			}
			if (l->other) return dt__bad_job(err, "rank %d (%s) has version %d of the protocol, this process %d (+64: another byte order): build all with one dtrain.h", rank, address, l->other ^ DT__PROTOCOL, DT__PROTOCOL);
			if (l->frame.type == DT__ABORT) return dt__bad_job(err, "rank %d (%s) refuses: %s", rank, address, (const char *)l->small);
			why = "no answer from a process of this job";
			dt__link_close(l);
		}
		poll(NULL, 0, 5 << DT__MIN(round / (rank ? 1 : w->tries), 7));
	}
	if (DT__STOPPED) return dt__join_stopped(w, err);
	return dt__lost(err, "rank %d waited in vain for rank %d at %s: %s", w->rank, rank, address, why);
}

// A process said hello: ask for its proof, then let it in or say why not. 1: it is in; -1: go on; 0: none of ours.
static int dt__join_greet(dt__net *net, const dt__who *w, dt__link *half, int *missing) {
	const uint8_t *hello = half->said;
	int rank = (int)(dt__read_le(hello, 4) & INT_MAX), size = (int)dt__read_le(hello + 4, 2), servers = (int)dt__read_le(hello + 6, 2);
	uint8_t proof[48];
	char text[160] = "";
	if (half->frame.type == DT__HELLO && half->frame.bytes == DT__HELLO_BYTES && !half->sent) {
		memcpy(half->said, half->small, DT__HELLO_BYTES);
		if (strncmp((const char *)hello + 12, w->job, sizeof w->job)) return 0;
		dt__random_bytes(half->said + DT__HELLO_BYTES);
		memcpy(proof, half->said + DT__HELLO_BYTES, 16);
		dt__proof(w->secret, hello, 'a', proof + 16);
		dt__link_tell(half, DT__CHALLENGE, w->rank, proof, sizeof proof);
		return dt__link_idle(half) ? -1 : 0;
	}
	if (half->frame.type != DT__PROOF || half->frame.bytes != 32 || dt__link_gone(half)) return 0;
	dt__proof(w->secret, hello, 'd', proof);
	if (dt__differs(proof, half->small)) return 0;
	if (size != w->size || servers != w->servers)
		dt__fill(text, "the world has %d processes there, %d here; %d and %d of them parameter servers", size, w->size, servers, w->servers);
	else if (rank <= w->rank || rank >= size) dt__fill(text, "rank %d does not dial rank %d of %d", rank, w->rank, size);
	else if (net->link[rank].fd >= 0 && !dt__link_gone(&net->link[rank])) dt__fill(text, "there is a rank %d already", rank);
	dt__link_tell(half, *text ? DT__ABORT : DT__WELCOME, w->rank, text, strlen(text));
	if (*text || !dt__link_idle(half)) return 0;
	dt__link_seal(half, w->secret, 0);
	dt__format(half->address + strlen(half->address), 8, ":%d", (int)(dt__read_le(hello + 8, 4) & 0xffff));
	if (net->link[rank].fd >= 0) dt__link_close(&net->link[rank]); else --*missing; // it had died, and was started again
	net->link[rank] = *half; half->fd = -1;
	return 1;
}

#define DT__HALVES 64

// Hear from all higher ranks. Strangers get five seconds, half of one in a throng.
static int dt__join_accept(dt__net *net, const dt__who *w, int listener, double until, dt_error *err) {
	dt__link *half = (dt__link *)calloc(DT__HALVES, sizeof *half), *l;
	struct pollfd p[DT__HALVES + 1];
	char text[80] = "";
	DT__WRITER(out, text);
	int missing = w->size - 1 - w->rank, i;
	if (!half) return dt__oom(err, "no memory to join");
	DT__FOR(i, DT__HALVES) half[i].fd = -1;
	for (i = 0; i <= DT__HALVES; i++) p[i].events = POLLIN;
	while (missing && dt__now() < until && !DT__STOPPED) {
		int taken = 0;
		DT__FOR(i, DT__HALVES) taken += (p[i].fd = half[i].fd) >= 0;
		p[DT__HALVES].fd = taken < DT__HALVES ? listener : -1;
		poll(p, DT__HALVES + 1, 100);
		for (i = 0, l = half; i < DT__HALVES && missing; i++, l++) {
			int got;
			if (l->fd < 0) {
				struct sockaddr_storage from;
				socklen_t n = sizeof from;
				char host[DT__HOST_BYTES];
				int fd = accept(listener, (struct sockaddr *)&from, &n);
				if (fd < 0) continue;
				DT__CLEAR(l);
				dt__socket_ready(l->fd = fd);
				l->heard = l->began = dt__now();
				dt__host_of(&from, n, host);
				dt__format(l->address, sizeof l->address - 10, strchr(host, ':') ? "[%s]" : "%s", host);
			}
			got = dt__link_read(l, dt__place_small, NULL);
			if (l->other) dt__link_tell(l, DT__ABORT, w->rank, "", 0); // its head tells
			if (got == 1) got = dt__join_greet(net, w, l, &missing) ? 0 : -1;
			if (l->fd >= 0 && (got || dt__now() - l->began > (taken < DT__HALVES ? 5 : 0.5))) dt__link_close(l);
		}
		if (!missing) DT__LINKS(net, i, l) if (i > w->rank && dt__link_gone(l)) { dt__link_close(l); missing++; }
	}
	DT__FOR(i, DT__HALVES) dt__link_close(&half[i]);
	free(half);
	if (!missing) return 0;
	if (DT__STOPPED) return dt__join_stopped(w, err);
	for (i = w->rank + 1; i < w->size; i++) if (net->link[i].fd < 0) dt__print(&out, out.n ? ", %d" : "%d", i);
	return dt__lost(err, "rank %d (%s) waited; of %d processes these have not come: %s", w->rank, w->chief, w->size, text);
}

static uint8_t *dt__place_roster(void *user, dt__link *l) {
	const dt__net *net = (const dt__net *)user;
	return l->frame.type == DT__ROSTER && l->frame.bytes == 64 * (size_t)net->n ? (uint8_t *)net->roster : dt__place_small(NULL, l);
}

static int dt__join(dt__net *net, dt__who *w, dt_error *err) {
	double until = dt__now() + w->patience;
	char host[256], text[64];
	dt__link *l;
	int i, port = 0, code = w->store > 0 ? dt__meet_pmi(w, err) : *w->file && !w->rank ? dt__meet_write(w, err) : 0, listener;
	while (*w->file && w->rank && !dt__meet_read(w)) {
		if (dt__now() > until || DT__STOPPED) return dt__lost(err, "rank %d waited in vain for rank 0 to write to \"%s\"", w->rank, w->file);
		poll(NULL, 0, 50);
	}
	if (code) *w->file = 0; // not ours
	listener = code || w->listener >= 0 ? w->listener : dt__listen(w, &port, err);
	if (listener < 0) return DT_ERR_CONFIG;
	dt__socket_ready(listener);
	if (w->rank && !code) code = dt__dial(net, w, 0, w->chief, port, until, err);
	if (!code && w->rank && dt__link_await(net->link, DT__ROSTER, dt__place_roster, net, until + 2))
		code = net->link->frame.type == DT__ABORT ? dt__lost(err, "%s", (const char *)net->link->small)
			: DT__STOPPED ? dt__join_stopped(w, err) : dt__lost(err, "rank 0 (%s) has ended, or the others have not come to it within %g s", w->chief, w->patience);
	DT__FOR(i, w->size) net->roster[i][63] = 0;
	if (w->rank) until = DT__MIN(until, dt__now() + 2 * w->dead); // all have been there: who does not answer now has died
	for (i = 1; i < w->rank && !code; i++) code = dt__dial(net, w, i, net->roster[i], port, until, err);
	if (!code) code = dt__join_accept(net, w, listener, until, err);
	close(listener);
	if (*w->file && !w->rank && !w->store) unlink(w->file);
	if (code || w->rank) return code;
	dt__address(w->chief, host, sizeof host, &port);
	DT__LINKS(net, i, l) { // who came from this host is where this one is, as the others call it
		if (!strncmp(l->address, "127.", 4) && dt__fill(text, "%s:%s", host, strrchr(l->address, ':') + 1) < sizeof text) strcpy(l->address, text);
		memcpy(net->roster[i], l->address, 64);
	}
	DT__LINKS(net, i, l) dt__link_tell(l, DT__ROSTER, 0, net->roster, 64 * (size_t)w->size);
	return 0;
}

static dt_comm *dt__net_open(dt__who *w, dt_error *err) {
	size_t n = (size_t)w->size;
	dt__net *net = (dt__net *)calloc(1, sizeof *net + n * (sizeof *net->link + 2 * sizeof *net->part + sizeof *net->poll + 64));
	dt_comm *c = &net->comm;
	dt_error own = DT_DEFAULTS;
	int i;
	if (!net || pthread_mutex_init(&net->lock, NULL)) {
		free(net);
		dt__oom(err, "no memory for %d processes", w->size);
		return NULL;
	}
	net->n = w->size; c->rank = w->rank; c->servers = w->servers; c->size = w->size - w->servers;
	c->run = dt__net_run; c->finish = dt__net_finish; c->push = dt__net_push_all; c->close = dt__net_leave;
	c->net = net; net->dead = w->dead;
	net->link = (dt__link *)(void *)(net + 1); net->part = (float **)(void *)(net->link + n);
	net->poll = (struct pollfd *)(void *)(net->part + 2 * n);
	net->roster = (char (*)[64])(void *)(net->poll + n);
	DT__FOR(i, w->size) net->link[i].fd = -1;
	if (!dt__join(net, w, &own) && dt__hand_start(&net->heart, dt__heart_main, net)) {
		dt__net_cores(net, NULL);
		if (c->rank >= c->size || c->size < 2) return c;
		if (!dt__desk_open(net, &own) && (net->desk || dt__hand_start(&net->courier, dt__courier_main, net))) return c;
	}
	if (!own.code) dt__oom(&own, "the system refuses a pair of sockets or a thread");
	dt__net_close(c, &own);
	dt__pass(err, &own);
	return NULL;
}
#endif

// ========
// >>server - parameter servers
//
// What: each holds a slice of the variables and their moments, and runs the optimizer. A push is applied front to back while
//   it arrives, and leaves as values; none overtakes another, so nobody gets a torn slice. Async: pushes one by one (Li et
//   al. 2014), a bounded number of steps apart (Ho et al. 2013); sync: all workers' as one, added in the tree's order, or all
//   but the last (Chen et al. 2016). The last server also adds what lies behind the variables: batch sums and totals. It
//   hands out the numbers of the batches.
// Owns: dt_server.
// Uses: >>wire, >>optimizers.
// Promise: a push that comes twice is applied once; with sync the bits are those of DT_MULTIWORKER.

#ifndef DTRAIN_NO_SOCKETS
enum { DT__ANSWERED, DT__COMES, DT__AT_WORK }; // the answer to an order has left; one arrives; is worked on

typedef struct { // a worker, as its server sees it; spans count from the server's first value
	dt__link *link;
	float *buf; // [all] gradients, which what it gets replaces
	dt__order order;
	dt__frame frame; // as the order came, for the answer
	int state, again; // again: nothing is applied
	dt__n done; // values worked on
	uint64_t last, pushes, arrived; // number of its last push; pushes since the last stretch; when this order came
	float sums[2]; // weight and seeds
	double scale;
	int repeats, late; // its push has been applied, and gets the same next; comes when all others are through
	int64_t next;
} dt__client;

struct dt_server {
	dt__net *net;
	dt__optimizer optimizer;
	int sync, full_rate, backup, workers, stopped, signalled, n_queue, n_group;
	double ahead; // most steps that a worker may be; 0: any number
	dt__n begin, trained, all; // its slice; with what lies behind
	float *variables, *slot[2], **part; // part: [workers]
	dt__n *border;  int n_borders; // where weight decay ends and begins, in turn
	uint64_t version, base, orders; // updates; before this stretch; orders so far
	int64_t cursor, batches, stop;
	double sum_staleness;
	dt__client *client, **queue; // [net->n]; [workers] pushes at work in their order, of which the first n_group count as one
};

static void dt__ps_forget(dt_server *s) {
	free(s->variables);
	free(s->border);
	s->variables = NULL; s->border = NULL; s->n_borders = 0;
}

static int dt__ps_holds(const dt_server *s, const dt__order *o) {
	return s->variables && o->begin == (uint64_t)s->begin && o->trained == (uint64_t)s->trained && o->all == (uint64_t)s->all;
}

// The chief says how much there is to hold.
static int dt__ps_setup(dt_server *s, const dt__order *o) {
	uint64_t most = PTRDIFF_MAX / 8 / ((uint64_t)s->workers + 3);
	size_t each = (size_t)(o->all / 16 + 1) * 16; // floats: whole cache lines
	int i, n = 1;
	if (o->all > most || o->trained > o->all || o->begin > most || !(o->kind >= 0 && o->kind <= DT_RMSPROP && o->n_slots <= 2 && o->n_slots >= dt__slots((dt_optimizer)o->kind, o->f.momentum))) return 0;
	s->sync = o->sync > 0; s->ahead = (double)o->ahead; s->backup = (int)DT__MIN(DT__MAX(o->backup, 0), s->workers - 1); s->full_rate = o->full_rate > 0;
	s->base += o->version - s->version; s->version = o->version; // Adam counts steps
	if (o->next && dt__ps_holds(s, o)) return 1;
	DT__FOR(i, s->workers) { // nobody else's array is in use
		const dt__client *c = &s->client[i];
		if (c->state == DT__AT_WORK || (c->state == DT__COMES && c->frame.detail != DT__STRETCH) || dt__len(c->link->result_out) || (c->link->out[1].iov_len && c->link->fd >= 0)) return 0;
	}
	dt__ps_forget(s);
	s->optimizer.kind = (dt_optimizer)(int)o->kind; s->optimizer.f = o->f;
	s->begin = (dt__n)o->begin; s->trained = (dt__n)o->trained; s->all = (dt__n)o->all;
	s->variables = (float *)calloc(each * (size_t)(1 + (int)o->n_slots + s->workers), 4);
	if (!s->variables) {
		dt__oom(&s->net->cause, "a parameter server has no memory for %td values of %d workers", s->all, s->workers);
		return 0;
	}
	DT__FOR(i, 2) s->slot[i] = i < (int)o->n_slots ? s->variables + each * (size_t)n++ : NULL;
	DT__FOR(i, s->workers) s->client[i].buf = s->variables + each * (size_t)n++;
	return 1;
}

// A mask has come: remember where it changes.
static void dt__ps_mask(dt_server *s, const float *mask) {
	dt__n i;
	for (i = s->n_borders = 0; i < s->trained; i++) if (mask[i] != (i ? mask[i - 1] : 0)) {
		dt__n *more = (dt__n *)realloc(s->border, ((size_t)s->n_borders + 1) * sizeof *more);
		if (!more) { dt__oom(&s->net->cause, "a parameter server has no memory for its settings"); return; }
		s->border = more; more[s->n_borders++] = i;
	}
}

// Gradients g of values from .. end - 1.
static void dt__ps_apply(dt_server *s, const dt__client *c, dt__n from, dt__n end, const float *g) {
	dt__n at, to;
	int i = 0;
	end = DT__MIN(end, s->trained);
	for (at = from; at < end; at = to) {
		while (i < s->n_borders && s->border[i] <= at) i++;
		to = i < s->n_borders ? DT__MIN(end, s->border[i]) : end;
		dt__optimizer_apply(&s->optimizer, at, to - at, s->variables, g + (at - from), s->slot, c->scale, c->order.rate, (long)c->order.version, i % 2);
	}
}

static uint8_t *dt__ps_place(dt__net *net, dt__link *l) {
	const dt_server *s = net->server;
	const dt__client *c = &s->client[l - net->link];
	if (l - net->link >= s->workers || l->frame.type != DT__PART || !dt__link_expects(l, &l->part_in, s->begin)) {
		dt__net_lost(net, l, "it sent a frame out of turn");
		return NULL;
	}
	if (!l->frame.bytes) return l->small;
	return (uint8_t *)((c->frame.detail == DT__SETUP ? s->variables : c->frame.detail == DT__SETUP_SLOT ? s->slot[c->order.next] : c->buf) + l->part_in.begin);
}

// An order has come.
static void dt__ps_take(dt_server *s, int rank) {
	dt__client *c = &s->client[rank];
	dt__link *l = c->link;
	const dt__order *o = &c->order;
	int kind = l->frame.detail, ok = rank < s->workers && kind <= DT__FETCH && l->frame.bytes == sizeof *o &&
		c->state == DT__ANSWERED && !dt__len(l->result_out) && !l->out[1].iov_len;
	l->greeted = 0;
	if (ok) {
		memcpy(&c->order, l->small, sizeof c->order);
		c->frame = l->frame;
		if (kind == DT__SETUP) ok = !rank && dt__ps_setup(s, o);
		else if (kind != DT__STRETCH) ok = dt__ps_holds(s, o) && (kind < DT__SETUP_SLOT || (!rank && (o->next == 0 || o->next == 1) && s->slot[o->next]));
	}
	if (!ok) { dt__net_lost(s->net, l, "its order does not fit the servers' state"); return; }
	c->state = DT__COMES; c->arrived = ++s->orders;
	s->stop = DT__MAX(s->stop, o->stop); s->signalled |= o->stop >= DT__BY_SIGNAL;
	l->part_in.begin = l->result_out.begin = l->result_out.end = 0;
	l->part_in.end = kind == DT__PUSH ? s->all : kind == DT__STRETCH || kind == DT__FETCH ? 0 : s->trained;
}

static int dt__waits(const dt__client *c, int kind) { return c->state == DT__COMES && c->frame.detail == kind; }

// These pushes, or what else it is, are answered from now on.
static void dt__ps_begin(dt_server *s, dt__client *const *who, int n) {
	dt__span both = {0, 2};
	dt__client *first = *who;
	int i;
	DT__FOR(i, n) {
		dt__client *c = who[i];
		dt__order *o = &c->order;
		int push = c->frame.detail == DT__PUSH;
		o->staleness = push && o->version < s->version ? (double)(s->version - o->version) : 0;
		c->repeats = push && o->sequence == c->last && c->pushes;
		c->again = !push || o->sequence == c->last || (s->sync && (o->staleness > 0 || c->late));
		c->late = 0; c->last = o->sequence;
		c->pushes += (uint64_t)(push && !c->repeats);
		c->state = DT__AT_WORK; c->done = 0;
		c->sums[0] = (float)o->weight; c->sums[1] = (float)o->seeds;
		s->part[i] = c->sums;
		if (dt__order_answers(c->frame.detail)) c->link->result_out.end = push ? s->all : s->trained;
	}
	dt__reduce(s->part, n, both, DT_SUM, 0);
	first->scale = dt__divisor((double)first->sums[0], (double)first->sums[1]);
	first->scale = first->scale > 0 ? 1 / first->scale : 0;
	if (!s->full_rate) first->order.rate /= 1 + first->order.staleness;
	if (!first->again) { s->version++; s->sum_staleness += first->order.staleness; }
	DT__FOR(i, n) {
		dt__order *o = &who[i]->order;
		o->version = s->version; o->stop = s->stop;
		if (who[i]->repeats) o->next = who[i]->next;
		else o->next = s->sync || first->frame.detail >= DT__SETUP ? (int64_t)(s->version - s->base) : s->cursor++;
		if (o->next >= s->batches) o->next = -1;
		who[i]->next = o->next;
	}
}

// Work on what has come of some pushes together, up to limit: 1 if there was some.
static int dt__ps_advance(dt_server *s, dt__client *const *who, int n, dt__n limit) {
	const dt__client *first = *who;
	dt__n from = first->done, to = limit, values;
	dt__span piece = {0, 0};
	int i;
	DT__FOR(i, n) to = DT__MIN(to, who[i]->link->part_in.begin);
	if (to <= from || (to < s->all && to - from < DT__CHUNK)) return 0;
	DT__FOR(i, n) s->part[i] = who[i]->buf + from;
	piece.end = to - from;
	dt__reduce(s->part, n, piece, DT_SUM, 0);
	if (!first->again) dt__ps_apply(s, first, from, to, s->part[0]);
	values = DT__MAX(0, DT__MIN(to, s->trained) - from);
	DT__FOR(i, n) {
		dt__copy(values, 1, s->variables + from, s->part[i], 0);
		if (i) dt__copy(to - from - values, 1, s->part[0] + values, s->part[i] + values, 0);
		who[i]->done = to;
	}
	return 1;
}

// How many workers are there, and wait with an order of this kind?
static int dt__ps_count(const dt_server *s, int kind, int *waiting) {
	int i, alive = 0;
	for (i = *waiting = 0; i < s->workers; i++) {
		alive += s->client[i].link->fd >= 0;
		*waiting += dt__waits(&s->client[i], kind);
	}
	return alive;
}

// The pushes that make the next update of all, by rank: the first that came, but for the backup.
static void dt__ps_gather(dt_server *s) {
	int i, k, waiting, alive = dt__ps_count(s, DT__PUSH, &waiting), most = DT__MAX(1, alive - s->backup);
	if (waiting < most) {
		dt__ps_count(s, DT__STRETCH, &k);
		DT__WHILE(i, s->workers, k && k + waiting == alive) { // the others are through: these come too late
			dt__client *c = &s->client[i];
			if (!dt__waits(c, DT__PUSH)) continue;
			c->late = 1; s->queue[s->n_queue++] = c;
			dt__ps_begin(s, &c, 1);
		}
		return;
	}
	memmove(s->queue + most, s->queue, (size_t)s->n_queue * sizeof *s->queue);
	DT__FOR(i, s->workers) {
		dt__client *c = &s->client[i];
		int before = 0;
		DT__FOR(k, s->workers) before += dt__waits(&s->client[k], DT__PUSH) && s->client[k].arrived < c->arrived;
		if (dt__waits(c, DT__PUSH) && before < most) s->queue[s->n_group++] = c;
	}
	s->n_queue += most;
	dt__ps_begin(s, s->queue, s->n_group);
}

// Whoever may begin by himself does.
static void dt__ps_admit(dt_server *s, dt__client *c) {
	uint64_t slowest = c->pushes;
	int i;
	if (s->sync && c->order.version >= s->version && c->order.sequence != c->last) return;
	DT__WHILE(i, s->workers, !s->sync)
		if (s->client[i].link->fd >= 0 && !dt__waits(&s->client[i], DT__STRETCH)) slowest = DT__MIN(slowest, s->client[i].pushes);
	if ((double)(c->pushes - slowest) >= s->ahead && s->ahead > 0) return;
	s->queue[s->n_queue++] = c;
	dt__ps_begin(s, &c, 1);
}

// All workers wait for the same values: a stretch of batches begins.
static void dt__ps_stretch(dt_server *s) {
	int i, waiting, alive = dt__ps_count(s, DT__STRETCH, &waiting);
	uint64_t done = s->version - s->base;
	if (!waiting || waiting < alive || !s->variables) return;
	s->base = s->version; s->cursor = 0;
	s->batches = s->client[0].order.batches;
	DT__FOR(i, s->workers) {
		dt__client *c = &s->client[i];
		if (!dt__waits(c, DT__STRETCH)) continue;
		dt__ps_begin(s, &c, 1);
		c->order.staleness = (double)done; c->pushes = 0;
		dt__copy(s->trained, 1, s->variables, c->buf, 0);
		c->done = s->trained;
	}
	s->stop = 0;
}

static int dt__ps_work(dt_server *s) {
	dt__n limit = s->all;
	int i, moved = 0;
	DT__FOR(i, s->workers) {
		dt__client *c = &s->client[i];
		if (dt__waits(c, DT__PUSH)) dt__ps_admit(s, c);
		if (c->state != DT__COMES || c->frame.detail < DT__SETUP || dt__len(c->link->part_in)) continue;
		if (c->frame.detail == DT__SETUP_DECAY) dt__ps_mask(s, c->buf);
		if (c->frame.detail == DT__FETCH) dt__copy(s->trained, 1, s->slot[c->order.next], c->buf, 0);
		dt__ps_begin(s, &c, 1);
		if (c->frame.detail == DT__FETCH) c->done = s->trained;
	}
	dt__ps_stretch(s);
	if (s->sync && !s->n_group) dt__ps_gather(s);
	for (i = 0; i < s->n_queue; ) {
		int n = i < s->n_group ? s->n_group : 1;
		moved |= dt__ps_advance(s, s->queue + i, n, limit);
		limit = s->queue[i]->done;
		if (limit < s->all) { i += n; continue; }
		if (!i) s->n_group = 0;
		s->n_queue -= n;
		memmove(s->queue + i, s->queue + i + n, (size_t)(s->n_queue - i) * sizeof *s->queue);
	}
	return moved;
}

// Send an answer, and values as far as they are worked on: 1 if something has left.
static int dt__ps_send(dt_server *s, int rank) {
	dt__client *c = &s->client[rank];
	dt__link *l = c->link;
	if (c->state != DT__COMES && dt__link_idle(l)) {
		dt__frame f = c->frame;
		dt__n at = l->result_out.begin, end = DT__MIN(DT__MIN(c->done, l->result_out.end), at < s->trained ? s->trained : s->all);
		f.rank = s->net->comm.rank;
		f.type = c->state == DT__AT_WORK ? DT__ANSWER : DT__RESULT;
		if (c->state == DT__AT_WORK) {
			f.bytes = sizeof c->order;
			dt__link_queue(l, f, &c->order);
			c->state = DT__ANSWERED;
		} else if (at < end) {
			end = DT__MIN(end, at + DT__CHUNK); f.offset = (uint64_t)(s->begin + at);
			f.bytes = (uint32_t)(4 * (end - at));
			dt__link_queue(l, f, c->buf + at);
			l->result_out.begin = end;
		}
	}
	return dt__net_flush(s->net, l);
}

static dt_server *dt__ps_on(dt_comm *c, dt_error *err) {
	int n = c ? c->net->n : 0, i;
	dt_server *s = c ? (dt_server *)calloc(1, sizeof *s + (size_t)n * (sizeof *s->client + sizeof *s->part + sizeof *s->queue)) : NULL;
	if (!s) {
		if (c) { dt__oom(err, "no memory for a parameter server"); dt_comm_close(c); }
		return NULL;
	}
	s->net = c->net; s->net->server = s; s->workers = c->size;
	s->client = (dt__client *)(void *)(s + 1); s->part = (float **)(void *)(s->client + n);
	s->queue = (dt__client **)(void *)(s->part + n);
	DT__FOR(i, n) s->client[i].link = &s->net->link[i];
	return s;
}

static void (*dt__watch_server)(dt_server *s); // of job.h: sees it between two turns

int dt_server_run(dt_server *s, dt_error *err) {
	dt__net *net;
	dt__link *l;
	double beat = 0;
	int i, open = 1;
	if (!s) return dt__is_null(err, "server");
	net = s->net;
	DT__LOCK(net);
	net->began = dt__now();
	while (open && !net->cause.code) {
		int moved = 0;
		open = 0;
		DT__LINKS(net, i, l) {
			moved |= dt__net_pull(net, l);
			if (l->greeted && !net->cause.code) dt__ps_take(s, i);
			if (l->left && i < s->workers && (l->part_in.begin < l->part_in.end || (s->sync && s->version - s->base < (uint64_t)s->batches)))
				dt__lost(&net->cause, "rank %d closed its handle in the middle of a round", i);
			if (i < s->workers && l->fd >= 0) { moved |= dt__ps_send(s, i); open = 1; }
		}
		moved |= dt__ps_work(s);
		if (dt__watch_server) dt__watch_server(s);
		if (dt__now() > beat) DT__LINKS(net, i, l) { // the heart has no turn meanwhile
			dt__link_beat(net, l); beat = dt__now() + 1;
		}
		if (!moved && open) dt__net_wait(net);
		if (DT__LOAD(&s->stopped) || DT__STOPPED)
			dt__lost(&net->cause, "parameter server %d was stopped%s", net->comm.rank - s->workers, DT__STOPPED ? " by a signal" : "");
	}
	DT__UNLOCK(net);
	return dt__net_code(net, err);
}

void dt_server_stop(dt_server *s) { if (s) DT__STORE(&s->stopped, 1); }

void dt_server_close(dt_server *s) {
	if (!s) return;
	dt_comm_close(&s->net->comm);
	dt__ps_forget(s);
	free(s);
}
#else
int dt_server_run(dt_server *s, dt_error *err) { return dt__off(err, "DTRAIN_NO_SOCKETS"); }
void dt_server_stop(dt_server *s) {}
void dt_server_close(dt_server *s) {}
#endif

// ========
// >>cluster - who am I: the variables of launchers; a cluster on this machine
//
// What: rank, number of processes and rank 0's address, from the first of dt_comm_open's sources that speaks; amended by
//   DTRAIN_CHIEF, _PORT, _BIND, _INSECURE, _JOIN, _DEAD, _TRANSPORT, _RDZV.
// Uses: >>wire, >>base (JSON).
// Promise: a family of variables set by half is an error, never one process.

#ifndef DTRAIN_NO_STDIO
static const char *dt__env(const char *name) {
	const char *v = name ? getenv(name) : NULL;
	return v && *v ? v : NULL;
}

typedef struct { const char *name, *rank, *size, *local, *host, *port, *job; } dt__family;
#define DT__MASTER "MASTER_ADDR", "MASTER_PORT"
static const dt__family dt__families[] = {
	{"DTRAIN", "DTRAIN_RANK", "DTRAIN_WORLD", NULL, DT__MASTER, NULL},
	{"torchrun", "RANK", "WORLD_SIZE", NULL, DT__MASTER, "TORCHELASTIC_RUN_ID"},
	{"PET", "PET_NODE_RANK", "PET_NNODES", NULL, "PET_MASTER_ADDR", "PET_MASTER_PORT", NULL},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", DT__MASTER, "PMIX_NAMESPACE"},
	{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", DT__MASTER, "PMI_JOBID"},
	{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", NULL, "SLURM_JOB_ID"}};
#endif
#ifndef DTRAIN_NO_SOCKETS
// The first name of Slurm's list: "rack[0-1]n[01-3],x" -> "rack0n01".
static void dt__first_host(const char *list, char *host, size_t size) {
	dt__writer w = dt__writer_on(host, size);
	for (; *list && *list != ','; list++) {
		if (*list != '[') { dt__put(&w, *list); continue; }
		for (list++; dt__digit_at(list, list + 1); list++) dt__put(&w, *list);
		while (*list && *list != ']') list++;
		if (!*list) { *host = 0; return; }
	}
}

static int dt__who_number(const char *name, int needed, int *out, dt_error *err) {
	const char *text = dt__env(name);
	int ok = 0;
	if (!text && !needed) return 0;
	*out = text ? (int)dt__whole(text, 65535, &ok) : 0;
	if (ok) return 0;
	return dt__bad_job(err, text ? "%s is \"%.60s\": a whole number is needed" : "%s is not set, as its family of variables needs", name, text);
}

static int dt__who_seconds(const char *name, double *out, dt_error *err) {
	const char *text = dt__env(name), *end = text;
	if (!text) return 0;
	*out = dt__parse_double(text, text + strlen(text), &end);
	return *out >= 1 && *out <= 1e6 && !*end ? 0 : dt__bad_job(err, "%s is \"%.60s\": seconds are needed, 1 or more", name, text);
}

enum { DT__CHIEF, DT__WORKER, DT__SERVER, DT__EVALUATOR };
static int dt__role_of(const char *name) {
	static const char *const names[] = {"chief", "worker", "ps", "evaluator", "workerpool0", "workerpool1", "workerpool2", "workerpool3", "master"};
	int i;
	DT__FOR(i, DT__COUNT(names)) if (!strcmp(name, names[i])) return i % 4;
	return -1;
}

static int dt__who_role(dt__who *w, int rank, int workers, int servers, int serves, dt_error *err) {
	if (workers < 1 || servers < 0 || rank < 0 || rank >= (serves ? servers : workers) || workers >= DT__BY_SIGNAL || servers >= DT__BY_SIGNAL)
		return dt__bad_job(err, "%s %d of %d workers and %d parameter servers (%s): they count from 0", serves ? "parameter server" : "rank", rank, workers, servers, w->source);
	w->rank = rank + serves * workers; w->size = workers + servers; w->servers = servers;
	return 0;
}

static int dt__who_family(dt__who *w, const dt__family *f, dt_error *err) {
	const char *host = dt__env(f->host), *port = dt__env(f->port), *job = dt__env(f->job), *local = dt__env(f->local);
	const char *store = dt__env("TORCHELASTIC_USE_AGENT_STORE"), *role = dt__env("DTRAIN_ROLE");
	char first[256], own[8];
	int slurm = !strcmp(f->name, "Slurm"), serves = role && !strcmp(role, "ps"), servers = 0, here;
	if (dt__who_number(f->rank, 1, &w->rank, err) || dt__who_number(f->size, 1, &w->size, err) || dt__who_number("DTRAIN_SERVERS", 0, &servers, err)) return DT_ERR_CONFIG;
	if (role && !serves && (unsigned)dt__role_of(role) > DT__WORKER)
		return dt__bad_job(err, "DTRAIN_ROLE is \"%.40s\": chief, worker or ps is needed", role);
	dt__fill(w->source, "%s: %s, %s", f->name, f->rank, f->size);
	w->servers = servers; // a launcher's last ranks
	if (f == dt__families && dt__who_role(w, w->rank, w->size, servers, serves, err)) return DT_ERR_CONFIG;
	here = (local ? atoi(local) : 1) == w->size; // all
	if (job) dt__fill(w->job, "%s%s%s", job, slurm ? "." : "", slurm ? getenv("SLURM_STEP_ID") : "");
	if (slurm && here) host = NULL;
	if (slurm && host) { dt__first_host(host, first, sizeof first); host = first; }
	if (!host && here) {
		host = "127.0.0.1";
		if (!job) dt__fill(w->job, "parent %d", (int)getppid());
	}
	if (*w->chief || !host || w->size < 2) return 0;
	if (port && store && !strcmp(store, "True")) w->store = -1; // torchrun itself listens there
	if (!port) {
		w->tries = 8;
		dt__fill(own, "%d", DT__ELSE(w->port, 20000 + (int)(dt__crc32c(0, w->job, strlen(w->job)) % 12000)));
		if (here) w->port = 0; // one port is not enough
		port = own; // systems hand out higher ones
	}
	dt__fill(w->chief, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
	if (w->store) memcpy(w->file, w->chief, sizeof w->file);
	return 0;
}

// ---- TF_CONFIG and CLUSTER_SPEC

typedef struct { int role, index, count[4]; char first[2][280], own[280]; int cluster, task; } dt__spec;

// A string, or a member's name; none that is too long.
static int dt__spec_text(dt__json *j, int key, char *text, size_t size) {
	size_t n;
	int ok = key ? dt__json_key(j, text, size, &n) : dt__json_string(j, text, size, &n);
	text[n < size ? n : 0] = 0;
	return ok;
}

// A role's addresses: a list, or an object by index.
static void dt__spec_hosts(dt__json *j, int role, dt__spec *s) {
	int object = dt__json_peek(j) == '{', index = 0, ok = 1, port, n = 0;
	char text[280], host[256], quoted[283];
	if (s->count[role]) dt__json_fail(j, "this role stands twice");
	if (!dt__json_want(j, object ? '{' : '[', "a list of addresses is expected")) return;
	for (; dt__json_more(j, object ? '}' : ']'); index++, n++) {
		if (object && dt__spec_text(j, 1, text, sizeof text)) index = (int)dt__whole(text, 4095, &ok);
		if (!dt__spec_text(j, 0, text, sizeof text)) return;
		if (!ok || index > 4095 || !dt__address(text, host, sizeof host, &port) || !port) { dt__json_fail(j, "\"host:port\" is expected, at most 4096 of them"); return; }
		dt__fill(quoted, "\"%s\"", text);
		if (strstr(j->p, quoted)) dt__json_fail(j, "this address stands twice");
		if (role < 2 && !index) memcpy(s->first[role], text, sizeof text);
		if (role == s->role && index == s->index) memcpy(s->own, text, sizeof text);
		s->count[role] = DT__MAX(s->count[role], index + 1);
	}
	if (n != s->count[role]) dt__json_fail(j, "the cluster is sparse: all must be listed");
}

// {"cluster": {"worker": ["host:port", …], …}, "task": {"type": "worker", "index": 0}}; the task is read first.
static void dt__spec_read(dt__json *j, int part, dt__spec *s) {
	char key[32], word[32];
	if (!dt__json_want(j, '{', "'{' is expected")) return;
	while (dt__json_more(j, '}') && dt__spec_text(j, 1, key, sizeof key)) {
		int task = !strcmp(key, "task"), cluster = !strcmp(key, "cluster");
		if (part ? !cluster : !task) { dt__json_skip(j); continue; }
		if (!dt__json_want(j, '{', "'{' is expected")) return;
		if (task) s->task = 1; else s->cluster = 1;
		while (dt__json_more(j, '}') && dt__spec_text(j, 1, key, sizeof key)) {
			uint64_t v = 0;
			int ok = 1;
			if (cluster && dt__role_of(key) >= 0) { dt__spec_hosts(j, dt__role_of(key), s); continue; }
			if (cluster || (strcmp(key, "type") && strcmp(key, "index"))) { dt__json_skip(j); continue; }
			if (dt__json_peek(j) != '"') { dt__json_uint(j, &v); } else {
				if (!dt__spec_text(j, 0, word, sizeof word)) return;
				if (*key == 't' && (s->role = dt__role_of(word)) < 0) dt__json_fail(j, "the task's type is none of chief, master, worker, ps, evaluator");
				if (*key == 'i') v = dt__whole(word, 4095, &ok);
			}
			if (*key == 'i') s->index = ok && v < 4096 ? (int)v : -1;
		}
	}
	if (dt__json_peek(j)) dt__json_fail(j, "nothing is expected behind the end");
}

// *spoke = 0: it holds no cluster.
static int dt__who_spec(dt__who *w, const char *name, const char *text, int *spoke, dt_error *err) {
	dt__spec s;
	dt__json j;
	int part, has_chief, workers;
	DT__CLEAR(&s);
	s.role = DT__WORKER;
	DT__FOR(part, 2) {
		j.p = text; j.end = text + DT__MIN(strlen(text), (size_t)1 << 20);
		j.error = NULL;
		dt__spec_read(&j, part, &s);
		if (j.error) return dt__bad_job(err, "%s, byte %td, \"%.20s\": %s", name, j.p - text, j.p, j.error);
	}
	*spoke = s.cluster;
	if (!s.cluster) return 0;
	dt__fill(w->source, "%s", name);
	has_chief = s.count[DT__CHIEF] > 0; workers = has_chief + s.count[DT__WORKER];
	w->servers = s.count[DT__SERVER]; w->size = workers + w->servers;
	if (s.task && s.role == DT__EVALUATOR) return dt__bad_job(err, "%s: the task is an evaluator: dt_job_main of examples/job.h has it", name);
	if (!s.task && w->size == 1 && s.count[DT__CHIEF] < 2) return 0;
	if (!s.task) return dt__bad_job(err, "%s has a \"cluster\" and no \"task\": which of %d processes is this one?", name, w->size);
	if (s.count[DT__CHIEF] > 1 || !*s.own || !*s.first[!has_chief])
		return dt__bad_job(err, "%s: the task is %s %d, of %d (and a cluster lists one chief at most, and all workers)", name, s.role == DT__SERVER ? "ps" : s.role ? "worker" : "chief", s.index, s.count[s.role]);
	w->rank = s.role == DT__CHIEF ? 0 : s.role == DT__SERVER ? workers + s.index : has_chief + s.index;
	if (!*w->chief) memcpy(w->chief, s.first[has_chief ? DT__CHIEF : DT__WORKER], sizeof w->chief);
	if (!w->port) { char host[256]; dt__address(s.own, host, sizeof host, &w->port); }
	return 0;
}

// ---- all sources: the first that speaks

static int dt__who_speaks(const dt_cluster *given, dt__who *w, int *spoke, dt_error *err) {
	static const char *const spec[] = {"TF_CONFIG", "CLUSTER_SPEC"};
	int i, code;
	if (given && given->tf_config) return dt__who_spec(w, ".tf_config", given->tf_config, spoke, err);
	if (given && given->world_size) {
		strcpy(w->source, "dt_cluster");
		return dt__who_role(w, given->rank, given->world_size, given->servers, given->role == DT_ROLE_PS, err);
	}
	DT__FOR(i, DT__COUNT(dt__families) + 2) {
		const dt__family *f = &dt__families[DT__MAX(i - 2, 0)];
		if (i == 1 || i == 2) {
			const char *text = dt__env(spec[i - 1]);
			if (text && ((code = dt__who_spec(w, spec[i - 1], text, spoke, err)) || *spoke)) return code;
		} else if (dt__env(f->rank) || dt__env(f->size)) {
			int slurm = !strcmp(f->name, "Slurm"); // whose batch script itself is one process
			if (!strcmp(f->name, "MPICH") && dt__env("SLURM_STEP_ID") && !dt__env(f->local)) continue; // srun's PMI-2
			if (!slurm || (dt__env(f->rank) && dt__env(f->size) && dt__env("SLURM_STEP_ID"))) return dt__who_family(w, f, err);
		}
	}
	if (dt__env("DTRAIN_ROLE") || dt__env("DTRAIN_SERVERS") || dt__env("DTRAIN_CHIEF")) return dt__bad_job(err, "DTRAIN_RANK is not set, as DTRAIN_CHIEF, DTRAIN_ROLE and DTRAIN_SERVERS need");
	return 0;
}

static int dt__who_secret(dt__who *w, const char *secret, dt_error *err) {
	const char *file = dt__env("DTRAIN_SECRET_FILE");
	char line[300] = "";
	if (!secret && file) {
		FILE *f = fopen(file, "r");
		int got = f && fgets(line, sizeof line, f);
		if (f) fclose(f);
		if (!got) return dt__bad_job(err, "DTRAIN_SECRET_FILE, \"%.100s\", cannot be read", file);
		line[strcspn(line, "\r\n")] = 0;
		secret = line;
	}
	if (!secret) secret = dt__env("OMPI_MCA_orte_precondition_transports"); // Open MPI's key of the job
	if (secret && (strlen(secret) < 16 || dt__fill(w->secret, "%s", secret) >= sizeof w->secret))
		return dt__bad_job(err, "the secret has %zu characters: 16 to %zu are needed", strlen(secret), sizeof w->secret - 1);
	return 0;
}

static int dt__who_am_i(const dt_cluster *given, dt__who *w, dt_error *err) {
	const dt_cluster none = DT_DEFAULTS, *c = given ? given : &none;
	const char *chief = c->chief ? c->chief : dt__env("DTRAIN_CHIEF"), *host = c->bind ? c->bind : dt__env("DTRAIN_BIND");
	const char *insecure = dt__env("DTRAIN_INSECURE"), *meet = dt__env("DTRAIN_RDZV");
	int spoke = 0, code;
	DT__CLEAR(w);
	w->size = w->tries = 1; w->listener = -1;
	strcpy(w->source, "no variable of a launcher");
	if (chief) dt__fill(w->chief, "%s", chief);
	if (host && !dt__address(host, w->bind, sizeof w->bind, &w->port)) dt__fill(w->bind, "%s", host);
	w->patience = 600; w->dead = 10;
	if (dt__who_secret(w, c->secret ? c->secret : dt__env("DTRAIN_SECRET"), err) || dt__who_seconds("DTRAIN_JOIN", &w->patience, err) || dt__who_seconds("DTRAIN_DEAD", &w->dead, err) || dt__who_number("DTRAIN_PORT", 0, &w->port, err)) return DT_ERR_CONFIG;
	if (c->timeout_ms > 0) w->patience = c->timeout_ms / 1000.0;
	w->insecure = c->insecure || (insecure && strcmp(insecure, "0"));
	code = dt__who_speaks(given, w, &spoke, err);
	if (code || (w->size == 1 && !w->rank)) return code;
	if (w->size < 1 || w->rank < 0 || w->rank >= w->size || w->size >= DT__BY_SIGNAL || w->servers >= w->size)
		return dt__bad_job(err, "rank %d of %d processes (%s), %d of them parameter servers: ranks are 0 to size - 1", w->rank, w->size, w->source, w->servers);
	if (!c->chief && meet && strcmp(meet, "tcp")) {
		if (strncmp(meet, "file:", 5) || !meet[5] || dt__fill(w->chief, "%s", meet) > 260) return dt__bad_job(err, "DTRAIN_RDZV is \"%.60s\": tcp or file:PATH is needed", meet);
		dt__fill(w->file, "%s", meet + 5);
		w->tries = 1; w->store = 0;
	}
	meet = strncmp(w->source, "MPICH", 5) ? NULL : dt__env("PMI_FD");
	if (!*w->chief && meet && (w->store = atoi(meet)) > 0) strcpy(w->chief, "PMI_FD");
	if (*w->chief) return 0;
	return dt__bad_job(err, "%s: nothing says where rank 0 is: set (PET_)MASTER_ADDR, DTRAIN_CHIEF=host:port or DTRAIN_RDZV=file:PATH for all", w->source);
}

static int dt__who_serves(const dt__who *w) { return w->rank >= w->size - w->servers; }

dt_comm *dt_comm_open(const dt_cluster *given, dt_error *err) {
	dt__who w;
	dt_comm *one = NULL;
	if (dt__who_am_i(given, &w, err)) return NULL;
	if (dt__who_serves(&w)) { dt__bad_job(err, "dt_comm_open: this process is a parameter server (%s): use dt_server_open", w.source); return NULL; }
	if (w.size > 1) return dt__net_open(&w, err);
	return dt_comm_group(1, &one, err) ? NULL : one;
}

dt_server *dt_server_open(const dt_cluster *given, dt_error *err) {
	dt__who w;
	if (dt__who_am_i(given, &w, err)) return NULL;
	if (dt__who_serves(&w)) return dt__ps_on(dt__net_open(&w, err), err);
	dt__bad_job(err, "dt_server_open: this process is rank %d, no parameter server (%s): set DTRAIN_ROLE=ps, TF_CONFIG's task or .role", w.rank, w.source);
	return NULL;
}

// ---- a cluster on this machine

typedef struct { pid_t child; int fd; size_t n; char text[2048]; } dt__outlet; // what a process says, line by line

static void dt__outlet_show(dt__outlet *p, FILE *to, int rank, int workers, int json, char *last, size_t size) {
	while (p->n) {
		char *end = (char *)memchr(p->text, '\n', p->n);
		int n = (int)(end ? end - p->text : (dt__n)p->n);
		if (!end && p->fd >= 0 && p->n < sizeof p->text) return;
		if (json && !rank && to == stdout && n >= 9 && !strncmp(p->text, "{\"status\"", 9)) dt__format(last, size, "%.*s", n, p->text);
		else if (rank) fprintf(to, "[%s %d] %.*s\n", rank < workers ? "worker" : "ps", rank % workers, n, p->text);
		else fprintf(to, "[chief] %.*s\n", n, p->text);
		fflush(to);
		p->n -= (size_t)n + (end != NULL);
		memmove(p->text, p->text + n + (end != NULL), p->n);
	}
}

// Show what they say and hand signals on until all have ended: the chief's exit status.
static int dt__watch(dt__outlet *p, int workers, int n, int json) {
	int i, open, code = 0, status = 1, told = 0;
	struct pollfd ready[2 * DT__BY_SIGNAL];
	double end = HUGE_VAL; // one that is stopped would not end by itself
	char last[2400] = "";
	do {
		for (i = open = 0; i < 2 * n; i++) {
			ready[i].fd = p[i].fd; ready[i].events = POLLIN; ready[i].revents = 0;
			open += p[i].fd >= 0;
		}
		if (open) poll(ready, (nfds_t)(2 * n), 500);
		if (!told && (told = DT__STOPPED)) DT__WHILE(i, n, i <= workers) if (p[2 * i].child) kill(p[2 * i].child, told);
		DT__FOR(i, 2 * n) if (p[i].fd >= 0 && (ready[i].revents & (POLLIN | POLLHUP))) {
			ssize_t got = read(p[i].fd, p[i].text + p[i].n, sizeof p[i].text - p[i].n);
			if (got <= 0) { close(p[i].fd); p[i].fd = -1; } else p[i].n += (size_t)got;
			dt__outlet_show(&p[i], i % 2 ? stderr : stdout, i / 2, 1 + workers, json, last, sizeof last);
		}
		DT__FOR(i, n) if (p[2 * i].child) {
			if (dt__now() > end) kill(p[2 * i].child, SIGKILL);
			if (waitpid(p[2 * i].child, &code, open ? WNOHANG : 0) <= 0 && (open || errno == EINTR)) continue;
			if (!i) status = WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
			if (!i || (code && !told)) end = DT__MIN(end, dt__now() + (code && !told ? 2 : 12));
			p[2 * i].child = 0;
		}
	} while (open || (n && p->child));
	if (*last) printf("%s\n", last);
	return status;
}

// Process i, heard by p[2i] and p[2i + 1]: 0 there, -1 if refused.
static pid_t dt__spawn(dt__outlet *p, int i) {
	int pair[2][2], k;
	pid_t child = p[2 * i].child = pipe(pair[0]) || pipe(pair[1]) ? -1 : fork();
	DT__WHILE(k, 2, child >= 0) {
		if (!child) dup2(pair[k][1], k + 1);
		close(pair[k][1]);
		if (!child) close(pair[k][0]);
		else p[2 * i + k].fd = pair[k][0];
	}
	if (child) return child;
	setpgid(0, 0); // the terminal's signals come through the parent,
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGTERM); // … and so does its end
#endif
	DT__FOR(k, 2 * i) close(p[k].fd);
	return 0;
}

// Become chief, workers and servers: -1 in each, with who it is; in the parent the chief's exit status.
static int dt__launch(int workers, int servers, int json, dt__who *w, dt_error *err) {
	int n = 1 + workers + servers, i, port, status = 1, listener;
	void (*old)(int) = signal(SIGCHLD, SIG_DFL);
	dt__outlet *p = (dt__outlet *)calloc((size_t)n * 2, sizeof *p);
	while ((i = open("/dev/null", O_RDWR)) >= 0 && i < 3) {} // no pipe takes a closed output's place
	close(i);
	w->size = n; w->servers = servers;
	strcpy(w->source, "--workers, --ps");
	strcpy(w->chief, "127.0.0.1:0"); w->port = 0;
	listener = dt__listen(w, &port, err);
	if (!p) dt__oom(err, "no memory for %d processes", n);
	if (err->code) n = 0;
	dt__fill(w->chief, "127.0.0.1:%d", port);
	dt__fill(w->job, "parent %d", (int)getpid());
	fflush(stdout);
	fflush(stderr);
	DT__FOR(i, n) {
		pid_t child = dt__spawn(p, i);
		if (child > 0) continue;
		if (!child) { status = -1; w->rank = i; break; }
		dt__oom(err, "the system refuses one of %d processes", n);
		for (n = i; i-- > 0; ) kill(p[2 * i].child, SIGKILL);
		break;
	}
	if (status < 0 && !w->rank) w->listener = listener; else close(listener);
	if (status > 0) status = dt__watch(p, workers, n, json);
	signal(SIGCHLD, old);
	free(p);
	return status;
}

// A parameter server's whole life: its exit status, or -1 and the error.
static int dt__serve_run(dt__who *w, const dt_options *o, dt_error *err) {
	dt_server *s = dt__ps_on(dt__net_open(w, err), err);
	int signalled;
	if (s && !dt_server_run(s, err) && o->progress > 0)
		printf("%ju updates of %td values, stale by %.2f on average\n", (uintmax_t)s->version, s->trained, s->version ? s->sum_staleness / (double)s->version : 0);
	signalled = s && s->signalled; // a worker was, so that the job is to be started again
	dt_server_close(s);
	return err->code ? -1 : signalled ? 143 : 0;
}

// The comm of dt_run, or NULL for one process; *status of 0 or more: nothing is left to do.
static dt_comm *dt__run_cluster(const dt_options *o, int *status, dt_error *err) {
	static const int tiers[4][2] = {{0, 0}, {0, 0}, {4, 3}, {19, 11}};
	int more = o->tier ? tiers[o->tier & 3][0] : o->workers, servers = o->tier ? tiers[o->tier & 3][1] : o->servers;
	dt__who w;
	*status = -1;
	if (dt__who_am_i(NULL, &w, err)) return NULL;
	if (o->print_cluster) {
		int workers = w.size - w.servers;
		printf("role = %s\nrank = %d\nworld size = %d\nparameter servers = %d\nchief = %s\nby = %s\n", w.rank >= workers ? "ps" : w.rank ? "worker" : "chief",
				w.rank % workers, workers, w.servers, *w.chief ? w.chief : "this process", w.source);
		*status = 0;
		return NULL;
	}
	if (more > 0 && w.size > 1) dt__bad_job(err, "--workers and --tier start processes, and this is one of %d already (%s): leave out one of the two", w.size, w.source);
	else if (more < 0 || servers < 0 || o->tier < 0 || o->tier > 3 || more >= DT__BY_SIGNAL - 1 || servers >= DT__BY_SIGNAL - 1 - more)
		dt__bad_job(err, "--workers is %d, --ps %d: give at most %d", more, servers, DT__BY_SIGNAL - 2);
	else if (w.size == 1 && more + servers > 0) *status = dt__launch(more, servers, o->json, &w, err);
	else if (!w.servers && servers >= w.size) dt__bad_job(err, "--ps is %d of %d processes: some must work", servers, w.size);
	else if (!w.servers && w.size > 1) w.servers = servers;
	if (err->code || *status >= 0 || w.size == 1) return NULL;
	if (!w.rank && o->progress > 0) printf("%d processes by %s, rank 0 at %s\n", w.size, w.source, w.chief);
	if (dt__who_serves(&w)) { *status = dt__serve_run(&w, o, err); return NULL; }
	return dt__net_open(&w, err);
}

// After an error the others are told why.
static void dt__run_leave(dt_comm *c, const dt_error *err) {
	if (c && c->net && err->code) dt__net_close(c, err);
	else dt_comm_close(c);
}
#else
#ifndef DTRAIN_NO_STDIO
static dt_comm *dt__run_cluster(const dt_options *o, int *status, dt_error *err) {
	int asked = o->workers || o->servers || o->tier > 1 || o->print_cluster || getenv("TF_CONFIG") || getenv("CLUSTER_SPEC"), i;
	DT__FOR(i, DT__COUNT(dt__families)) asked |= dt__env(dt__families[i].size) && strcmp(getenv(dt__families[i].size), "1");
	*status = asked ? 78 : -1;
	if (asked) dt__fail(err, DT_ERR_DISABLED, "several processes, by flags or variables: this build has DTRAIN_NO_SOCKETS: build without it");
	return NULL;
}
static void dt__run_leave(dt_comm *c, const dt_error *err) { dt_comm_close(c); }
#endif
dt_comm *dt_comm_open(const dt_cluster *given, dt_error *err) { dt__off(err, "DTRAIN_NO_SOCKETS"); return NULL; }
dt_server *dt_server_open(const dt_cluster *given, dt_error *err) { dt__off(err, "DTRAIN_NO_SOCKETS"); return NULL; }
#endif

// ========
// >>checkpoint - parameters by name, and weights as .safetensors
//
// What: the one place that knows file order: variables are walked from memory's layout to PyTorch's and back.
// Uses: >>replicas (the model), >>base (JSON, files).
// Promise: a file is checked completely, as strictly as the format allows, before one value changes; what is written appears
//   whole or not at all, with the same bytes on every machine.
// Source: the safetensors format, github.com/huggingface/safetensors

int dt_parameter_at(const dt_model *m, int i, dt_parameter *out, dt_error *err) {
	const dt__var *v;
	if (!m || !out) return dt__is_null(err, m ? "result" : "model");
	if (i < 0 || i >= m->graph.n_variables) return dt__deny(err, "dt_parameter_at: there is no parameter %d: they are 0..%d", i, m->graph.n_variables - 1);
	v = m->graph.variable[i];
	out->name = v->name; out->rank = v->rank;
	memcpy(out->dim, v->dim, sizeof out->dim);
	out->size = (size_t)v->size; out->trainable = dt__trains(v);
	return 0;
}

// A file's tensors, from a zeroed struct on: the variables (part 0) and, with moments, behind them the optimizer's of
// those that are trained.
typedef struct {
	int next, part;
	const dt__var *v;
	float *values;
	char name[DT_MAX_NAME + 32];
} dt__stored;

static int dt__next_stored(const dt_model *m, int moments, dt__stored *s) { // 0: that was the last
	int n = m->graph.n_variables, parts = moments && m->slot[0] ? 1 + m->optimizer.n_slots : 1;
	while (s->next < parts * n) {
		s->part = s->next / n; s->v = m->graph.variable[s->next++ % n];
		if (s->part && !dt__trains(s->v)) continue;
		s->values = (s->part ? m->slot[s->part - 1] : m->replica[0].variables) + s->v->offset;
		if (s->part) dt__fill(s->name, "optimizer.%d.%s", s->part - 1, s->v->name);
		else dt__fill(s->name, "%s", s->v->name);
		return 1;
	}
	return 0;
}
static float *dt__element(const dt__stored *s, dt__n i) { return s->values + dt__walk(s->v, i); } // in file order

static int dt__copy_parameter(dt_model *m, const char *what, const char *name, float *out, const float *in, size_t n, dt_error *err) {
	dt__stored s = DT_DEFAULTS;
	dt__n i;
	if (!m || !name || (!out && !in)) return dt__deny(err, "%s: the %s is NULL", what, !m ? "model" : !name ? "name" : "array");
	while (dt__next_stored(m, 0, &s)) {
		if (strcmp(s.name, name)) continue;
		if ((size_t)s.v->size != n) return dt__fail(err, DT_ERR_SHAPE, "%s: \"%s\" has %td values, n is %zu", what, name, s.v->size, n);
		DT__FOR(i, s.v->size) if (out) out[i] = *dt__element(&s, i); else *dt__element(&s, i) = in[i];
		if (in) dt__spread_var(m, s.v);
		return 0;
	}
	return dt__deny(err, "%s: there is no parameter \"%.70s\": dt_parameter_at lists them", what, name);
}

int dt_parameter_read(dt_model *m, const char *name, float *out, size_t n, dt_error *err) {
	return dt__copy_parameter(m, __func__, name, out, NULL, n, err);
}

int dt_parameter_write(dt_model *m, const char *name, const float *in, size_t n, dt_error *err) {
	return dt__copy_parameter(m, __func__, name, NULL, in, n, err);
}

// ---- writing: each part goes to a callback; 0: go on

typedef int (*dt__write)(void *user, const void *data, size_t n);

static int dt__write_values(const dt_model *m, int moments, dt__write write, void *user) { // in file order, little-endian
	dt__stored s = DT_DEFAULTS;
	uint8_t bytes[4 * DT__PIECE];
	int code = 0;
	while (!code && dt__next_stored(m, moments, &s)) {
		dt__n i, left = 0, step = s.v->walk_stride[s.v->walk_rank - 1]; size_t n = 0;
		const float *p = NULL;
		for (i = 0; i < s.v->size && !code; i++, left--, p += step) {
			if (!left) { p = dt__element(&s, i); left = s.v->walk_dim[s.v->walk_rank - 1]; }
			dt__write_le(bytes + n, dt__float_bits(*p), 4);
			if ((n += 4) == sizeof bytes || i == s.v->size - 1) { code = write(user, bytes, n); n = 0; }
		}
	}
	return code;
}

static int dt__write_crc32c(void *crc, const void *data, size_t n) { *(uint32_t *)crc = dt__crc32c(*(uint32_t *)crc, data, n); return 0; }

uint32_t dt_parameters_crc32c(dt_model *m) {
	uint32_t crc = 0;
	if (m) dt__write_values(m, 0, dt__write_crc32c, &crc);
	return crc;
}

// state: of a checkpoint, which has moments too; NULL: weights alone.
static int dt__write_header(const dt_model *m, const char *state, dt__write write, void *user) { // without the blanks at its end
	char text[1024];
	const char *columns = m->columns;
	DT__WRITER(w, text);
	dt__stored s = DT_DEFAULTS;
	uintmax_t at = 0, end;
	int d, code = 0;
	dt__print(&w, "{\"__metadata__\":{\"format\":\"pt\",\"dtrain.version\":\"%s\"%s", dt_version(), m->graph.hwc_files ? ",\"dtrain.order\":\"hwc\"" : "");
	if (state) dt__print(&w, ",\"dtrain.state\":\"%s\"", state);
	if (columns) dt__puts(&w, ",\"dtrain.columns\":\"");
	while (columns && *columns && !code) { // may be longer than text
		columns = dt__put_json_character(&w, columns);
		if (w.n < sizeof text / 2) continue;
		code = write(user, text, w.n); w = dt__writer_on(text, sizeof text);
	}
	dt__puts(&w, columns ? "\"}" : "}");
	while (!code && dt__next_stored(m, state != NULL, &s)) {
		code = write(user, text, w.n); w = dt__writer_on(text, sizeof text);
		dt__puts(&w, ",\""); dt__put_json(&w, s.name); dt__puts(&w, "\":{\"dtype\":\"F32\",\"shape\":[");
		DT__FOR(d, s.v->rank) dt__print(&w, "%s%d", d ? "," : "", s.v->dim[d]);
		end = at + 4 * (uintmax_t)s.v->size;
		dt__print(&w, "],\"data_offsets\":[%ju,%ju]}", at, end);
		at = end;
	}
	dt__put(&w, '}');
	return code ? code : write(user, text, w.n);
}

static int dt__count_bytes(void *sum, const void *data, size_t n) { *(uint64_t *)sum += n; return 0; }

// What write returned, if not 0.
static int dt__write_safetensors(const dt_model *m, dt__write write, void *user) {
	uint8_t bytes[8];
	uint64_t length = 0, blanks;
	int code;
	dt__write_header(m, NULL, dt__count_bytes, &length);
	blanks = 7 - (length + 7) % 8;
	dt__write_le(bytes, length + blanks, 8);
	if (!(code = write(user, bytes, 8))) code = dt__write_header(m, NULL, write, user);
	if (!code && blanks) code = write(user, "       ", (size_t)blanks);
	return code ? code : dt__write_values(m, 0, write, user);
}

int dt_save_to(dt_model *m, dt__write write, void *user, dt_error *err) {
	int code;
	if (!m || !write) return dt__is_null(err, m ? "callback" : "model");
	code = dt__write_safetensors(m, write, user);
	return code ? dt__fail(err, DT_ERR_CALLBACK, "dt_save_to: write returned %d", code) : 0;
}

#ifndef DTRAIN_NO_STDIO
static int dt__write_file(void *user, const void *data, size_t n) { return fwrite(data, 1, n, (FILE *)user) != n; }
#endif

int dt_save(dt_model *m, const char *path, dt_error *err) {
#ifndef DTRAIN_NO_STDIO
	dt__new_file file; int code;
	if (!m) return dt__is_null(err, "model");
	if ((code = dt__new_file_open(&file, __func__, path, err))) return code;
	if (dt__write_safetensors(m, dt__write_file, file.f)) return dt__new_file_fail(&file, err, "cannot write");
	return dt__new_file_close(&file, err);
#else
	return dt__off(err, "DTRAIN_NO_STDIO");
#endif
}

// ---- reading

typedef struct {
	const char *name; // unescaped, not terminated
	size_t name_length;
	int dtype, rank, used;
	uint64_t dim[DT_MAX_RANK]; // the first ones
	uint64_t begin, end, bytes; // offsets; what the shape needs
} dt__entry;

typedef struct {
	const char *path; // for messages
	dt_error *err;
	const dt_load_options *o;
	const uint8_t *memory; // all of it, or NULL: it is read
	dt__json columns, state; // at the values of dtrain.columns and dtrain.state
	int hwc, moments; // it has dtrain.order; has moments that are to be loaded
	uint64_t size, data_at;
	char *names; // the entries'
	dt__entry *entry, **place, **table; // in the header's order; by place in the data; by name: an open hash table
	size_t n, cap, table_size;
	dt__pool pool;
#ifndef DTRAIN_NO_STDIO
	dt__file file;
#endif
} dt__tensors;

static const struct { const char *name; int bits; } dt__dtype[] = {
	{"F32", 32}, {"F16", 16}, {"BF16", 16}, {"F64", 64}, {"I64", 64}, {"U64", 64}, {"C64", 64}, {"I32", 32}, {"U32", 32}, {"I16", 16}, {"U16", 16}, {"BOOL", 8}, {"U8", 8}, {"I8", 8},
	{"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};

static int dt__tensors_memory(const dt__tensors *t) {
	return dt__oom(t->err, "no memory to read \"%s\"%s: %zu bytes of .scratch are not enough", t->path, t->pool.base ? "" : " (or none given)", t->pool.size);
}

// A map of strings, no key twice. As the JSON reader's first error stays, here and below most calls need no check.
static void dt__metadata(dt__tensors *t, dt__json *j) {
	const char *seen[64]; // starts of keys, for duplicates
	size_t n, n_seen = 0, k;
	if (dt__json_peek(j) == 'n') { dt__json_skip(j); return; }
	dt__json_want(j, '{', "__metadata__ must be a map");
	while (dt__json_more(j, '}')) {
		char key[128], other[128];
		const char *start = j->p;
		size_t length;
		dt__json_key(j, key, sizeof key, &length);
		DT__FOR(k, n_seen) {
			dt__json again = *j;
			again.p = seen[k];
			if (dt__json_string(&again, other, sizeof other, &n) && n == length && !memcmp(key, other, DT__MIN(n, sizeof key)))
				dt__json_fail(j, "a key stands twice in __metadata__");
		}
		if (n_seen < 64) seen[n_seen++] = start;
		dt__json_blank(j);
		if (dt__equals(key, length, "dtrain.columns")) t->columns = *j;
		if (dt__equals(key, length, "dtrain.state")) t->state = *j;
		if (dt__equals(key, length, "dtrain.order")) t->hwc = 1;
		dt__json_string(j, NULL, 0, &n);
	}
}

// {"dtype":…, "shape":[…], "data_offsets":[a, b]} in any order, other fields skipped
static void dt__tensor_entry(dt__json *j, dt__entry *e) {
	uint64_t elements = 1, v = 0;
	int has = 0, overflow = 0;
	dt__json_want(j, '{', "an entry is no map");
	while (dt__json_more(j, '}')) {
		char text[16]; size_t n;
		int field;
		dt__json_key(j, text, sizeof text, &n);
		field = dt__equals(text, n, "dtype") ? 1 : dt__equals(text, n, "shape") ? 2 : dt__equals(text, n, "data_offsets") ? 4 : 0;
		if (has & field) dt__json_fail(j, "a field stands twice");
		has |= field;
		if (field == 1) {
			dt__json_string(j, text, sizeof text, &n);
			while (e->dtype < DT__COUNT(dt__dtype) && !dt__equals(text, n, dt__dtype[e->dtype].name)) e->dtype++;
			if (e->dtype == DT__COUNT(dt__dtype)) { e->dtype = 0; dt__json_fail(j, "unknown dtype"); }
		} else if (field == 2) {
			dt__json_want(j, '[', "shape must be a list");
			for (; dt__json_more(j, ']'); e->rank++) {
				dt__json_uint(j, &v);
				if (e->rank < DT_MAX_RANK) e->dim[e->rank] = v;
				if (v && elements > UINT64_MAX / v) overflow = 1;
				elements *= v;
			}
		} else if (field == 4) {
			static const char two[] = "data_offsets must be a list of two numbers";
			dt__json_want(j, '[', two); dt__json_uint(j, &e->begin); dt__json_want(j, ',', two);
			dt__json_uint(j, &e->end); dt__json_want(j, ']', two);
		} else dt__json_skip(j);
	}
	if (has != 7) dt__json_fail(j, "dtype, shape or data_offsets is missing");
	if (overflow || elements > UINT64_MAX / 64) dt__json_fail(j, "the shape overflows");
	elements *= (uint64_t)dt__dtype[e->dtype].bits;
	if (elements % 8) dt__json_fail(j, "the values end inside a byte");
	e->bytes = elements / 8;
}

static int dt__tensors_fail(const dt__tensors *t, const dt__entry *e, const char *what) {
	char name[80] = "";
	if (e) dt__fill(name, "tensor \"%.*s\": ", (int)DT__MIN(e->name_length, 60), e->name);
	return dt__bad_file(t->err, "\"%s\" is no valid safetensors file: %s%s", t->path, name, what);
}

// By place in the data, an empty tensor before the one that begins there. Shell's, by Knuth's steps: no libc, no memory, O(n^1.5).
static void dt__sort_entries(dt__entry **e, size_t n) {
	size_t step = 1, i, j;
	while (step < n / 3) step = 3 * step + 1;
	for (; step; step /= 3)
		for (i = step; i < n; i++) {
			dt__entry *moved = e[i];
			for (j = i; j >= step; j -= step) {
				dt__entry *x = e[j - step];
				if (x->begin < moved->begin || (x->begin == moved->begin && x->end <= moved->end)) break;
				e[j] = x;
			}
			e[j] = moved;
		}
}

// A name's place in the table: its entry, or where it would stand.
static dt__entry **dt__tensors_slot(const dt__tensors *t, const char *name, size_t n) {
	size_t at = dt__crc32c(0, name, n) & (t->table_size - 1);
	for (; t->table[at]; at = (at + 1) & (t->table_size - 1))
		if (t->table[at]->name_length == n && !memcmp(t->table[at]->name, name, n)) break;
	return &t->table[at];
}

static int dt__tensors_tile(const dt__tensors *t) {
	uint64_t at = 0, n_data = t->size - t->data_at;
	size_t i;
	DT__FOR(i, t->n) {
		const dt__entry *e = t->place[i];
		const char *wrong = e->begin > e->end || e->end > n_data ? "its data_offsets lie outside the file" : e->begin > at ? "a hole lies before its data"
				: e->begin < at ? "its data overlap another tensor's"
				: e->end - e->begin != e->bytes ? "its shape and data_offsets disagree" : NULL;
		if (wrong) return dt__tensors_fail(t, e, wrong);
		at = e->end;
	}
	return at == n_data ? 0 : dt__tensors_fail(t, NULL, "the data end too early or too late");
}

static int dt__tensors_header(dt__tensors *t, dt__json *j) {
	int metadata = 0;
	char *name = t->names;
	dt__json_want(j, '{', "the header is no JSON object");
	while (dt__json_more(j, '}')) {
		dt__entry *e = &t->entry[t->n], **slot;
		size_t n;
		if (t->n == t->cap) return dt__json_fail(j, "an entry is no map");
		if (!dt__json_key(j, name, (size_t)(j->end - j->p), &n)) return 0; // unescaped it is never longer
		if (dt__equals(name, n, "__metadata__")) {
			if (metadata++) dt__json_fail(j, "__metadata__ stands twice");
			dt__metadata(t, j);
			continue;
		}
		e->name = name; e->name_length = n;
		name += n;
		t->place[t->n++] = e;
		slot = dt__tensors_slot(t, e->name, n);
		if (*slot) return dt__json_fail(j, "the name stands twice");
		*slot = e;
		dt__tensor_entry(j, e);
	}
	dt__json_blank(j);
	return j->p == j->end ? !j->error : dt__json_fail(j, "something follows the header's object");
}

// n bytes from at on: where they lie, or read into out. NULL on failure.
static const uint8_t *dt__tensors_bytes(const dt__tensors *t, uint64_t at, size_t n, void *out) {
	if (t->memory) return t->memory + at;
	if (!t->o->read(t->o->user, at, out, n)) return (const uint8_t *)out;
	dt__fail(t->err, DT_ERR_CALLBACK, "dt_load: read failed on \"%s\"", t->path);
	return NULL;
}

static int dt__tensors_read(dt__tensors *t) {
	uint8_t length[8]; const uint8_t *p;
	uint64_t n, k;
	void *room = NULL;
	dt__json j;
	if (t->size < 8) return dt__tensors_fail(t, NULL, "it is shorter than 8 bytes");
	if (!(p = dt__tensors_bytes(t, 0, 8, length))) return DT_ERR_CALLBACK;
	n = dt__read_le(p, 8);
	if (n > 100000000) return dt__tensors_fail(t, NULL, "its header is longer than 100,000,000 bytes");
	if (n > t->size - 8) return dt__tensors_fail(t, NULL, "it ends inside its header");
	if (!t->memory && !(room = dt__take(&t->pool, (size_t)n))) return dt__tensors_memory(t);
	if (!(p = dt__tensors_bytes(t, 8, (size_t)n, room))) return DT_ERR_CALLBACK;
	if (n == 0 || *p != '{') return dt__tensors_fail(t, NULL, "its header does not begin with '{'");
	t->data_at = 8 + n;
	DT__FOR(k, n) t->cap += p[k] == '{'; // an entry has a '{' and at least 40 bytes
	t->cap = DT__MIN(t->cap, (size_t)n / 40 + 1);
	for (t->table_size = 16; t->table_size < 2 * t->cap;) t->table_size *= 2;
	t->names = DT__NEW(&t->pool, n, char); t->entry = DT__NEW(&t->pool, t->cap, dt__entry);
	t->place = DT__NEW(&t->pool, t->cap, dt__entry *);
	t->table = DT__NEW(&t->pool, t->table_size, dt__entry *);
	if (!t->names || !t->entry || !t->place || !t->table) return dt__tensors_memory(t);
	j.p = (const char *)p; j.end = j.p + n; j.error = NULL;
	if (!dt__tensors_header(t, &j)) {
		char text[128];
		dt__fill(text, "%s, at byte %td of the header%s", j.error, j.p - (const char *)p, t->n ? ", in or behind it" : "");
		return dt__tensors_fail(t, t->n ? &t->entry[t->n - 1] : NULL, text);
	}
	dt__sort_entries(t->place, t->n);
	return dt__tensors_tile(t);
}

// The model's hooks give the memory, or .scratch.
static int dt__tensors_open(dt__tensors *t, const char *what, const dt_options *model, const dt_load_options *o, dt_error *err) {
	DT__CLEAR(t);
	t->err = err; t->o = o;
	dt__pool_open(&t->pool, model, 0);
	t->pool.base = (uint8_t *)o->scratch; t->pool.size = o->scratch_size;
	t->path = o->path ? o->path : o->data ? "the file in memory" : "the file behind .read";
	t->memory = (const uint8_t *)o->data; t->size = o->size;
	if (o->path) {
#ifndef DTRAIN_NO_STDIO
		int code = dt__file_read(what, o->path, &t->file, err);
		if (code) return code;
		t->memory = t->file.data; t->size = t->file.size;
#else
		return dt__fail(err, DT_ERR_DISABLED, "%s: this build has DTRAIN_NO_STDIO: build without it", o->path);
#endif
	}
	return dt__tensors_read(t);
}

static void dt__tensors_close(dt__tensors *t) {
	dt__pool_close(t->pool);
#ifndef DTRAIN_NO_STDIO
	dt__file_free(&t->file);
#endif
}

static float dt__file_value(const uint8_t *p, int dtype) { // F32, F16 or BF16
	float v = dt__float_from((uint32_t)dt__read_le(p, dtype ? 2 : 4) << (dtype ? 16 : 0));
	if (dtype == 1) dt__cpu()->widen(DT_F16, 1, &v, &v);
	return v;
}

// What s takes from the file; *name: its name there, or NULL: it is not to be loaded.
static dt__entry *dt__load_entry(const dt__tensors *t, const dt__stored *s, const char **name) {
	if (t->o->glob && !dt__glob(t->o->glob, s->name)) *name = NULL;
	else *name = t->o->rename ? t->o->rename(t->o->user, s->name) : s->name;
	return *name ? *dt__tensors_slot(t, *name, strlen(*name)) : NULL;
}

// Does the entry (NULL: there is none) fit the variable? err receives why not.
static dt_load_result dt__entry_fits(const dt__tensors *t, const dt__entry *e, const dt__var *v, const char *name, dt_error *err) {
	char text[160];
	DT__WRITER(w, text);
	int d, ok;
	if (!e) {
		dt__bad_file(err, "dt_load: \"%s\" has no tensor \"%s\": is it of this net? A glob loads a part", t->path, name);
		return DT_MISSING;
	}
	for (d = 0, ok = e->rank == v->rank; d < v->rank; d++) ok &= e->dim[d] == (uint64_t)v->dim[d];
	if (ok && e->dtype <= 2) return DT_LOADED;
	DT__FOR(d, DT__MIN(e->rank, DT_MAX_RANK)) dt__print(&w, "%s%ju", d ? "," : "", (uintmax_t)e->dim[d]);
	dt__puts(&w, e->rank > DT_MAX_RANK ? ",...], the model needs [" : "], the model needs [");
	DT__FOR(d, v->rank) dt__print(&w, "%s%d", d ? "," : "", v->dim[d]);
	if (ok) dt__bad_file(err, "dt_load: \"%s\": tensor \"%s\" is %s: F32, F16 and BF16 can be loaded", t->path, name, dt__dtype[e->dtype].name);
	else dt__fail(err, DT_ERR_SHAPE, "dt_load: \"%s\": tensor \"%s\" has shape [%s]", t->path, name, text);
	return DT_MISSHAPED;
}

static void dt__load_tell(dt_load_options *o, dt_load_result result, const char *name) {
	int *const count[] = {&o->loaded, &o->missing, &o->unexpected, &o->misshaped};
	++*count[result];
	if (o->on_tensor) o->on_tensor(o->user, result, name);
}

// Tell how file and model differ; err receives the first difference.
static void dt__load_compare(const dt_model *m, const dt__tensors *t, dt_load_options *o, dt_error *err) {
	dt__stored s = DT_DEFAULTS;
	size_t j;
	int wanted = 0;
	while (dt__next_stored(m, t->moments, &s)) {
		const char *name;
		dt__entry *e = dt__load_entry(t, &s, &name);
		if (!name) continue;
		wanted++;
		if (e) e->used = 1;
		dt__load_tell(o, dt__entry_fits(t, e, s.v, name, err), s.name);
	}
	if (!wanted) dt__deny(err, "dt_load: no parameter's name matches \"%s\": dt_parameter_at lists them", o->glob ? o->glob : "*");
	if (o->glob || o->rename) return;
	if (t->hwc != m->graph.hwc_files)
		dt__bad_file(err, "dt_load: \"%s\" has %s order of features, this net another (see dt_load): save the same net, or load by a glob", t->path, t->hwc ? "this library's" : "PyTorch's");
	DT__FOR(j, t->n) {
		const dt__entry *e = t->place[j];
		char name[DT_MAX_NAME + 32];
		dt__fill(name, "%.*s", (int)DT__MIN(e->name_length, sizeof name), e->name);
		if (e->used || dt__glob(t->state.p ? "*num_batches_tracked,optimizer.*" : "*num_batches_tracked", name)) continue; // of PyTorch's batch norm; moments
		dt__load_tell(o, DT_UNEXPECTED, name);
		dt__bad_file(err, "dt_load: \"%s\" has the tensor \"%.60s\", the model not: is it of this net? A glob loads a part", t->path, name);
	}
}

static int dt__load_values(dt_model *m, const dt__tensors *t, const dt__stored *s, const dt__entry *e) {
	uint8_t bytes[4 * DT__PIECE];
	dt__n i, k, count, width = dt__dtype[e->dtype].bits / 8;
	for (i = 0; i < s->v->size; i += count) {
		const uint8_t *p;
		count = DT__MIN(s->v->size - i, DT__PIECE);
		p = dt__tensors_bytes(t, t->data_at + e->begin + (uint64_t)(i * width), (size_t)(count * width), bytes);
		if (!p) return DT_ERR_CALLBACK;
		DT__FOR(k, count) *dt__element(s, i + k) = dt__file_value(p + k * width, e->dtype);
	}
	if (!s->part) dt__spread_var(m, s->v);
	return 0;
}

#ifndef DTRAIN_NO_MALLOC
static char *dt__tensors_columns(const dt__tensors *t) { // the caller frees it
	dt__json j = t->columns;
	size_t n, room = (size_t)(j.end - j.p);
	char *text = (char *)calloc(1, room);
	if (text) dt__json_string(&j, text, room, &n);
	else dt__tensors_memory(t);
	return text;
}

// The file's columns become the model's; data opened with others is opened again.
static int dt__load_columns(dt_model *m, const dt__tensors *t) {
	char *text = dt__tensors_columns(t), *before = m->columns;
	dt_dataset *d[2] = {NULL, NULL};
	int i, code = 0;
	if (!text) return DT_ERR_MEMORY;
	if (before && !strcmp(before, text)) { free(text); return 0; }
	m->columns = text;
	DT__WHILE(i, 2, !code) {
		if (!m->data[i] || !m->data[i]->columns) continue;
		d[i] = dt__open_data(m, i ? &m->o.test : &m->o.train, t->err);
		if (!d[i] || dt__data_fits(m, d[i], 1, t->err)) code = DT_ERR_FORMAT;
	}
	DT__FOR(i, 2) { // the old ones go; after an error, the new ones
		dt_dataset *old = m->data[i];
		if (!code && d[i]) { m->data[i] = d[i]; d[i] = old; }
		dt_dataset_close(d[i]);
	}
	if (code) m->columns = before;
	free(code ? text : before);
	return code;
}
#endif

static int dt__load_tensors(dt_model *m, const dt__tensors *t, dt_load_options *o) {
	dt_error difference = DT_DEFAULTS;
	dt__stored s = DT_DEFAULTS;
	int code = 0;
	dt__load_compare(m, t, o, &difference);
	if (difference.code && (!o->partial || difference.code == DT_ERR_ARGUMENT)) return dt__pass(t->err, &difference);
#ifndef DTRAIN_NO_MALLOC
	if (t->columns.p && !o->glob) code = dt__load_columns(m, t);
#endif
	while (!code && dt__next_stored(m, t->moments, &s)) {
		const char *name;
		const dt__entry *e = dt__load_entry(t, &s, &name);
		if (e && dt__entry_fits(t, e, s.v, name, NULL) == DT_LOADED) code = dt__load_values(m, t, &s, e);
	}
	return code;
}

int dt_load_opt(dt_model *m, dt_load_options *o, dt_error *err) {
	dt__tensors t;
	int code;
	if (!m || !o) return dt__deny(err, "dt_load: the %s is NULL", m ? "options" : "model");
	if (!o->path + !o->data + !o->read != 2) return dt__deny(err, "dt_load: one of .path, .data and .read is needed, and one only");
	o->loaded = o->missing = o->unexpected = o->misshaped = 0;
	code = dt__tensors_open(&t, "dt_load", &m->o, o, err);
	if (!code) code = dt__load_tensors(m, &t, o);
	dt__tensors_close(&t);
	return code;
}

int dt_load(dt_model *m, const char *path, const char *glob, dt_error *err) {
	dt_load_options o = DT_DEFAULTS;
	o.path = path; o.glob = glob;
	return dt_load_opt(m, &o, err);
}

// ========
// >>train - the loop, progress, flags, dt_main
//
// What: dt_train walks epochs of shuffled batches through the model's step, evaluates, reports and listens. One table
//   describes every flag: --help, the command line, dt_option_set and --print-options follow from it.
// Owns: while dt_run runs: the handlers of SIGINT, SIGTERM and SIGCHLD, standard output and error.
// Uses: >>checkpoint, >>replicas, >>data.
// Promise: a run can be stopped at every step's border; the numbers shown are of the whole batch.

// ---- what a run shows

typedef struct {
	long steps, per_epoch, first_epoch; // of the run; how far it is stands in the model's report
	int epoch, epochs, terminal;
	double start, shown, epoch_start;
	double seconds; // running sums of the epoch: its steps' time; and what begins the model's progress
	struct { double loss, accuracy, samples; } sum;
	long steps_before, samples_before, epoch_samples; // before an interruption; before this epoch
	int ends_epoch;
} dt__run;

static const char *const dt__strategy_name[] = {"default", "one", "mirrored", "central", "multiworker", "ps"};
static double dt__ratio(double a, double b) { return b > 0 ? a / b : 0; }

#ifndef DTRAIN_NO_STDIO
// 60000 -> "60,000"
static void dt__put_grouped(dt__writer *w, double v) {
	char digits[24];
	size_t n = dt__fill(digits, "%.0f", v < 0 || v > 1e15 ? 0 : v), i;
	DT__FOR(i, n) dt__print(w, i && (n - i) % 3 == 0 ? ",%c" : "%c", digits[i]);
}

static void dt__put_measure(dt__writer *w, const char *name, double v) { if (v == v) dt__print(w, "  %s %.4f", name, v); }

// The line that moves, on a terminal only.
static void dt__show_progress(const dt_model *m, dt__run *s) {
	char line[160];
	DT__WRITER(w, line);
	double done = (double)m->report.steps, all = (double)s->steps, left = DT__MIN(dt__ratio((all - done) * m->report.seconds, done - (double)s->steps_before), 1e9); // seconds
	if (!s->terminal || dt__now() - s->shown < 0.1) return;
	s->shown = dt__now();
	dt__print(&w, "epoch %d/%d  %3.0f %%  ", s->epoch, s->epochs, 100 * done / all);
	dt__put_grouped(&w, m->report.samples_per_s);
	dt__puts(&w, " samples/s");
	dt__put_measure(&w, "loss", s->sum.loss / s->sum.samples);
	dt__put_measure(&w, "accuracy", s->sum.accuracy / s->sum.samples);
	dt__print(&w, "  %d:%02d left", (int)(left / 60), (int)left % 60);
	fprintf(stderr, "\r%-79.158s", line);
	fflush(stderr);
}

static void dt__show_epoch(const dt__run *s, const dt_event *e) {
	char line[240];
	DT__WRITER(w, line);
	if (s->terminal) fprintf(stderr, "\r%79s\r", "");
	dt__print(&w, "epoch %d/%d", e->epoch, e->epochs);
	dt__put_measure(&w, "loss", e->loss);
	dt__put_measure(&w, "accuracy", e->accuracy);
	dt__put_measure(&w, "test loss", e->eval_loss);
	dt__put_measure(&w, "test accuracy", e->eval_accuracy);
	dt__puts(&w, "  ");
	dt__put_grouped(&w, e->samples_per_s);
	dt__print(&w, " samples/s  %.1f s", dt__now() - s->epoch_start);
	printf("%s\n", line);
	fflush(stdout);
}
#endif

// ---- the loop

static dt_event dt__event_of(dt_model *m, const dt__run *s, dt_event_kind kind) {
	const dt_report *r = &m->report;
	int step = kind == DT_EVENT_STEP;
	dt_event e;
	e.kind = kind; e.model = m; e.step = r->steps; e.steps = s->steps; e.epoch = s->epoch;
	e.epochs = s->epochs; e.ends_epoch = !step || s->ends_epoch;
	e.loss = step ? r->train_loss : s->sum.loss / s->sum.samples;
	e.accuracy = step ? r->train_accuracy : s->sum.accuracy / s->sum.samples;
	e.eval_loss = r->eval_loss; e.eval_accuracy = r->eval_accuracy;
	if (step) e.eval_loss = e.eval_accuracy = (double)NAN;
	e.learning_rate = dt_learning_rate(m);
	e.gradient_norm = m->norm; e.seconds = dt__now() - s->start;
	e.samples_per_s = kind == DT_EVENT_EPOCH ? dt__ratio((double)(r->samples - s->epoch_samples), s->seconds) : r->samples_per_s;
	return e;
}

static int dt__tell(dt_model *m, const dt__run *s, dt_event_kind kind) {
	dt_event e;
	if (!m->o.on_event) return 0;
	e = dt__event_of(m, s, kind);
	return m->o.on_event(&e, m->o.user);
}

// Shall the run stop? Several processes stop together, after the step that tells all.
static int dt__stops(dt_model *m, int asked) {
	m->stop = DT__STOPPED ? DT__BY_SIGNAL : m->stop | (asked != 0);
	if (m->processes == 1) m->stopped = m->stop;
	return m->stopped != 0;
}

// What workers with batches of their own did together, and all of them with the same values.
static int dt__join_workers(dt_model *m, dt__run *s, double *steps, dt_error *err) {
	double totals[DT__TOTALS] = {s->sum.loss, s->sum.accuracy, s->sum.samples, *steps};
	int i, code = dt__stretch(m, 0, err);
	if (!m->own) *steps = m->push.order.staleness; // updates of the stretch: a late worker has missed some
	if (!m->own || m->processes == 1 || code) return code;
	DT__WHILE(i, m->graph.n_variables, !code) {
		const dt__var *v = m->graph.variable[i];
		if (!v->statistic) continue;
		code = dt_allreduce(m->comm, m->replica[0].variables + v->offset, (size_t)v->size, DT_MEAN, err);
		dt__spread(m->replica, v->offset, v->size);
	}
	if (!code) code = dt__sum_totals(m->comm, totals, err);
	memcpy(&s->sum, totals, sizeof s->sum);
	memcpy(m->progress, totals, sizeof s->sum);
	*steps = totals[3];
	return code;
}

static long dt__samples_after(const dt_model *m, const dt__run *s, const dt_dataset *d, long steps) {
	return steps / s->per_epoch * d->info.n + steps % s->per_epoch * m->batch;
}

// Returns 1 if the run shall stop; *code on failure. Parameter servers hand out the batches, so that a slow worker gets fewer.
static int dt__train_epoch(dt_model *m, const dt_dataset *d, dt__run *s, int *code, dt_error *err) {
	dt_report *r = &m->report;
	long steps = r->steps, first = m->step, skipped = steps - (s->epoch - 1) * s->per_epoch; // done before an interruption, maybe all
	long batches = DT__MIN(s->per_epoch - skipped, s->steps - steps);
	long batch = 0;
	double done = 0;
	int stop = 0;
	DT__CLEAR(&s->sum);
	if (skipped && !(m->own && m->process)) memcpy(&s->sum, m->progress, sizeof s->sum); // by one of the workers whose sums are added
	s->seconds = 0; s->epoch_start = dt__now(); s->epoch_samples = r->samples;
	if (m->servers && batches > 0) {
		if ((*code = dt__stretch(m, batches, err))) return 1;
		batch = (long)m->push.order.next; stop = m->stopped;
	}
	while (batch >= 0 && batch < batches && !stop) {
		double seconds = dt__now();
		long at = (skipped + batch) * m->batch, n = DT__MIN((long)m->batch, d->info.n - at);
		dt__new_task(m, NULL, d, at, n);
		m->step = first + batch; m->task.epoch = s->first_epoch + s->epoch - 1;
		m->task.shuffle = !m->o.no_shuffle;
		m->task.shared = dt__shares(m); *code = dt__step_task(m, err); m->task.n = 0;
		if (*code) return 1;
		seconds = dt__now() - seconds; r->steps = steps + batch + 1;
		r->samples += n;
		done++;
		r->seconds += seconds;
		r->samples_per_s = dt__ratio((double)(r->samples - s->samples_before), r->seconds);
		s->seconds += seconds; s->sum.loss += r->train_loss * (double)n;
		s->sum.accuracy += r->train_accuracy * (double)n;
		s->sum.samples += (double)n;
#ifndef DTRAIN_NO_STDIO
		dt__show_progress(m, s);
#endif
		memcpy(m->progress, &s->sum, sizeof s->sum);
		s->ends_epoch = skipped + batch == s->per_epoch - 1;
		stop = dt__stops(m, dt__tell(m, s, DT_EVENT_STEP));
		batch = m->servers ? (long)m->push.order.next : batch + 1;
	}
	if (m->servers) {
		*code = dt__join_workers(m, s, &done, err); r->steps = steps + (long)done;
		r->samples = dt__samples_after(m, s, d, r->steps);
		m->step = first + (long)done;
		r->samples_per_s = dt__ratio((double)(r->samples - s->samples_before), r->seconds);
	}
	return stop || *code;
}

// The options of a run in place of the model's; in dt_options they stand side by side.
static int dt__train_options(dt_model *m, const dt_options *run, dt_error *err) {
	static const size_t range[4][2] = {{offsetof(dt_options, schedule), offsetof(dt_options, strategy)},
			{offsetof(dt_options, epochs), offsetof(dt_options, seed)},
			{offsetof(dt_options, no_shuffle), offsetof(dt_options, no_nan_guard)},
			{offsetof(dt_options, on_event), offsetof(dt_options, json)}};
	dt_options with = m->o;
	dt__optimizer optimizer = m->optimizer;
	int i, code;
	DT__FOR(i, 4) memcpy((char *)&with + range[i][0], (const char *)run + range[i][0], range[i][1] - range[i][0]);
	with.learning_rate = DT__ELSE(run->learning_rate, m->optimizer.rate);
	if (run->user) with.user = run->user;
	if ((code = dt__check_options(&with, err)) || (code = dt__optimizer_open(&optimizer, &with, err))) return code;
	if (run->learning_rate == 0) optimizer.rate = m->optimizer.rate; // which may be 0
	m->o = with; m->optimizer = optimizer;
	return 0;
}

// How far the run goes, and how far it has come.
static int dt__train_begin(dt_model *m, dt__run *s, const dt_dataset *d, dt_error *err) {
	dt_report *r = &m->report;
	long per_epoch = s->per_epoch = (d->info.n - 1) / m->batch + 1, done = m->resumed ? m->step : 0;
	int i;
	s->first_epoch = (m->step - done) / per_epoch;
	if ((m->o.crop || m->o.flip) && m->graph.input[0]->rank != 4)
		return dt__deny(err, "dt_train: .%s needs images, [height, width, channels]; the net's input is no image", m->o.crop ? "crop" : "flip");
	s->epochs = DT__ELSE(m->o.epochs, m->o.steps ? INT_MAX : 1);
	if (m->o.steps) s->epochs = (int)DT__MIN((m->o.steps - 1) / per_epoch + 1, (long)s->epochs);
	if (per_epoch > LONG_MAX / s->epochs) return dt__deny(err, "dt_train: %d epochs of %ld steps are too many", s->epochs, per_epoch);
	s->steps = per_epoch * s->epochs;
	if (m->o.steps && m->o.steps < s->steps) s->steps = m->o.steps;
	s->start = dt__now(); m->stop = m->stopped = 0; m->pushes = 0; m->staleness = 0;
	DT__CLEAR(r);
	r->steps = s->steps_before = done;
	r->samples = s->samples_before = dt__samples_after(m, s, d, done);
	s->epoch = r->epochs = (int)((done - (done && m->progress[2] > 0)) / per_epoch);
	if (!m->resumed) { m->progress[3] = DBL_MAX; m->progress[4] = 0; }
	m->resumed = 0; r->eval_loss = r->eval_accuracy = (double)NAN;
#if !defined(DTRAIN_NO_STDIO) && DT__POSIX
	s->terminal = m->o.progress > 0 && isatty(2);
#endif
	m->optimizer.total = DT__ELSE(m->o.total_steps, m->step - done + s->steps);
	m->optimizer.decay_steps = DT__ELSE(m->o.decay_steps, per_epoch);
	DT__FOR(i, m->n_replicas) m->replica[i].data_seconds = 0;
	return 0;
}

static int dt__train_on(dt_model *m, const dt_dataset *d, const dt_dataset *test, dt_error *err) {
	dt_report *r = &m->report;
	dt__run s = DT_DEFAULTS;
	double *best = &m->progress[3], *waited = &m->progress[4];
	int code = dt__train_begin(m, &s, d, err), stop = code, i;
	while (s.epoch < s.epochs && !stop && (!m->o.patience || *waited < m->o.patience)) {
		long before = r->steps;
		dt_event event;
		s.epoch++;
		stop = dt__train_epoch(m, d, &s, &code, err);
		DT__FOR(i, m->n_replicas) r->data_s = DT__MAX(r->data_s, m->replica[i].data_seconds);
		if (code) break;
		if (stop && r->steps == before) { s.epoch--; break; } // before its first step
		if (test && m->stopped < DT__BY_SIGNAL) {
			dt_metrics metrics = DT_DEFAULTS;
			if ((code = dt__evaluate_data(m, test, m->processes > 1, &metrics, err))) break;
			r->eval_loss = metrics.loss; r->eval_accuracy = metrics.accuracy;
		}
		event = dt__event_of(m, &s, DT_EVENT_EPOCH);
		if (r->steps % s.per_epoch == 0 && m->stopped < DT__BY_SIGNAL) { // else it goes on after dt_checkpoint_load, and is judged then
			double judged = test ? event.eval_loss : event.loss;
			if (judged < *best) { *best = judged; *waited = 0; } else ++*waited;
			m->progress[2] = 0;
		}
#ifndef DTRAIN_NO_STDIO
		if (m->o.progress > 0) dt__show_epoch(&s, &event);
#endif
		stop |= dt__stops(m, dt__tell(m, &s, DT_EVENT_EPOCH));
		r->epochs = s.epoch; r->train_loss = event.loss;
		r->train_accuracy = event.accuracy;
	}
	if (!code) dt__tell(m, &s, DT_EVENT_END);
	return code;
}

// All processes run the same, and rank 0's state becomes everybody's.
static int dt__train_together(dt_model *m, long n, dt_error *err) {
	static const char *const name[] = {"the number of training samples", ".epochs", ".steps", ".patience", DT__SETTINGS};
	const int64_t value[] = {n, m->o.epochs, m->o.steps, m->o.patience, dt__settings(m)};
	double state[7] = {(double)m->step, (double)m->resumed};
	int i, code = dt__agree(m->comm, DT__COUNT(value), name, value, err);
	memcpy(state + 2, m->progress, sizeof m->progress);
	if (!code) code = dt_broadcast(m->comm, (float *)(void *)state, sizeof state / 4, 0, err);
	if (code) return code;
	m->step = (long)state[0]; m->resumed = (int)state[1];
	memcpy(m->progress, state + 2, sizeof m->progress);
	code = dt_broadcast(m->comm, m->replica[0].variables, (size_t)m->graph.n_floats, 0, err);
	DT__WHILE(i, 2, !code && m->resumed && !m->servers) if (m->slot[i]) code = dt_broadcast(m->comm, m->slot[i], (size_t)m->graph.n_trainable, 0, err);
	dt__spread(m->replica, 0, m->graph.n_floats);
	return code;
}

int dt_train(dt_model *m, const dt_options *run, dt_error *err) {
	dt_dataset *opened[2] = {NULL, NULL};
	const dt_dataset *d[2];
	dt_options created;
	dt__optimizer optimizer;
	dt_error own = DT_DEFAULTS;
	int i, code = dt__can_train(m, __func__, err);
	if (code) return code;
	created = m->o; optimizer = m->optimizer;
	if (run && (code = dt__train_options(m, run, err))) return code;
	m->running = 1;
	DT__FOR(i, 2) {
		const dt_source *s = run ? i ? &run->test : &run->train : NULL;
		d[i] = i && run && run->train.open ? NULL : m->data[i]; // another training set brings its own test set, or none
		if (!s || !s->open || own.code) continue;
		d[i] = opened[i] = dt__open_data(m, s, &own);
		if (opened[i]) dt__data_fits(m, opened[i], 1, &own);
	}
	if (!m->graph.n_losses) dt__no_loss(__func__, &own);
	if (!d[0]) dt__deny(&own, "dt_train: there is no training data: set .train");
	if (!own.code && m->o.on_event) {
		dt_event begin = DT_DEFAULTS;
		begin.kind = DT_EVENT_BEGIN; begin.model = m;
		if (m->o.on_event(&begin, m->o.user)) dt__fail(&own, DT_ERR_STOPPED, "on_event ended the run before it began");
	}
	if (!own.code && m->comm) dt__train_together(m, d[0]->info.n, &own);
	if (!own.code) dt__train_on(m, d[0], d[1], &own);
	DT__FOR(i, 2) dt_dataset_close(opened[i]);
	if (run) { m->o = created; m->optimizer = optimizer; }
	m->running = 0;
	return dt__pass(err, &own);
}

dt_report dt_model_report(const dt_model *m) {
	dt_report r = DT_DEFAULTS;
	int i;
	if (!m) return r;
	r = m->report; r.replicas = m->n_replicas; r.process = m->process; r.processes = m->processes;
	r.strategy = m->strategy; r.pushes = m->pushes;
	r.staleness = dt__ratio(m->staleness, (double)m->pushes);
	r.arena_bytes = m->bytes;
	DT__FOR(i, m->graph.n_variables) // running statistics are no parameters
		if (!m->graph.variable[i]->statistic) r.parameters += (size_t)m->graph.variable[i]->size;
	return r;
}

// ---- the table of flags

typedef enum { DT__TITLE, DT__WHOLE, DT__UNSIGNED, DT__DOUBLE, DT__TEXT, DT__ENUM, DT__SWITCH } dt__flag_type;

typedef struct {
	dt__flag_type type;
	char name[24]; // the option's, see dt__flag_at
	size_t offset, size;
	const char *standard, *help;
	const char *names; // enums: "zero one …", aliases behind a slash
	int stores; // switches: the value that they set; numbers: DT_OFF if that is allowed
} dt__flag;

#define DT__GROUP(title) {DT__TITLE, title, 0, 0, NULL, NULL, NULL, 0},
#define DT__FLAG_AS(type, name, field, standard, help, names, stores) \
	{DT__##type, name, offsetof(dt_options, field), sizeof(((dt_options *)0)->field), standard, help, names, stores},
#define DT__FLAG_OF(type, field, ...) DT__FLAG_AS(type, #field, field, __VA_ARGS__)
#define DT__FLAG(type, field, standard, help) DT__FLAG_OF(type, field, standard, help, NULL, 0)
#define DT__COUNTS(field, standard, help) DT__FLAG(WHOLE, field, standard, help)
#define DT__ONLY(field, help) DT__FLAG_OF(SWITCH, field, "off", help, NULL, 1)
static const dt__flag dt__flags[] = {
	DT__GROUP("distribution")
	DT__FLAG_OF(ENUM, strategy, "mirrored if there are several replicas", "how replicas work together", "default one/OneDeviceStrategy mirrored/MirroredStrategy central/CentralStorageStrategy multiworker/MultiWorkerMirroredStrategy ps/ParameterServerStrategy", 0)
	DT__COUNTS(replicas, "one per core", "copies of the model that share a batch")
	DT__COUNTS(batch, "32", "samples per step, over all replicas")
	DT__COUNTS(replica_batch, "off", "instead of --batch: samples per step and replica")
	DT__COUNTS(workers, "0", "start this many workers besides the chief, on this machine")
	DT__FLAG_AS(WHOLE, "ps", servers, "0", "… and this many parameter servers", NULL, 0)
	DT__FLAG_OF(ENUM, tier, "custom", "a whole cluster: standard_1 is 4 workers and 3 servers, premium_1 19 and 11", "custom/CUSTOM basic/BASIC standard_1/STANDARD_1 premium_1/PREMIUM_1", 0)
	DT__ONLY(sync, "ps: one update from all workers' parts of a batch")
	DT__COUNTS(staleness, "any", "ps: steps that a worker may be ahead of the slowest")
	DT__ONLY(full_rate, "ps: stale gradients count in full")
	DT__COUNTS(backup, "0", "ps, sync: the slowest so many workers do not count in a step")
	DT__FLAG_OF(ENUM, wire, "f32", "multiworker: how gradients travel over TCP", "f32 bf16 f16", 0)
	DT__ONLY(print_cluster, "show rank and processes, and what says so, and stop")
	DT__GROUP("run")
	DT__COUNTS(epochs, "1", "passes through the training data")
	DT__COUNTS(steps, "as many as --epochs need", "stop after this many steps")
	DT__FLAG(UNSIGNED, seed, "0", "of weights, order and dropout")
	DT__COUNTS(patience, "off", "stop after this many epochs without a better test loss")
	DT__ONLY(no_shuffle, "take the samples in their own order")
	DT__COUNTS(crop, "0", "random shift of training images by up to this many pixels")
	DT__ONLY(flip, "mirror training images by chance")
	DT__ONLY(no_nan_guard, "go on with values that are not finite")
	DT__FLAG(TEXT, save, "nothing", "write the weights here when done (.safetensors)")
	DT__FLAG(TEXT, load, "nothing", "begin with the weights of this file")
	DT__GROUP("optimizer")
	DT__FLAG_OF(ENUM, optimizer, "sgd", "update rule", "sgd momentum nesterov adam adamw rmsprop", 0)
	DT__FLAG(DOUBLE, learning_rate, "0.01; adam, adamw: 0.001", "size of a step")
	DT__FLAG_OF(DOUBLE, momentum, "0; momentum, nesterov: 0.9", "share of the last step in the next (-1: none)", NULL, DT_OFF)
	DT__FLAG(DOUBLE, beta1, "0.9", "Adam: decay of the mean")
	DT__FLAG(DOUBLE, beta2, "0.999", "Adam: decay of the variance")
	DT__FLAG(DOUBLE, alpha, "0.99", "RMSprop: decay of the variance")
	DT__FLAG(DOUBLE, epsilon, "1e-8", "keeps divisions finite")
	DT__FLAG_OF(DOUBLE, weight_decay, "0; adamw: 0.01", "pull of the weights towards zero (-1: none)", NULL, DT_OFF)
	DT__FLAG_OF(DOUBLE, clip_norm, "off", "largest norm of the whole gradient", NULL, DT_OFF)
	DT__COUNTS(accumulate, "1", "parts that a batch is run in, to save memory")
	DT__FLAG(TEXT, freeze, "nothing", "parameters to keep, as globs: \"enc*,*.bias\"")
	DT__FLAG(TEXT, no_decay, "nothing", "parameters without weight decay, as globs")
	DT__FLAG_OF(ENUM, schedule, "constant", "course of the learning rate", "constant step exponential cosine linear", 0)
	DT__COUNTS(warmup_steps, "0", "steps over which the rate rises to its full size")
	DT__COUNTS(total_steps, "the run's", "end of the cosine or linear schedule")
	DT__FLAG(DOUBLE, final_rate, "0", "learning rate at its end")
	DT__COUNTS(decay_steps, "one epoch", "step and exponential schedule: steps per decay")
	DT__FLAG(DOUBLE, decay_factor, "step 0.1, exponential 0.96", "… and its factor")
	DT__FLAG(DOUBLE, label_smoothing, "0", "cross-entropy: share of all labels in the target")
	DT__GROUP("output")
	DT__ONLY(json, "print the result as one JSON object, last")
	DT__FLAG_AS(SWITCH, "quiet", progress, "off", "print nothing but errors", NULL, DT_OFF)
	DT__ONLY(profile, "print the time of every layer")
	DT__ONLY(no_fusion, "every layer by itself: to compare")
	DT__ONLY(print_options, "print every option and stop")
};

// The size low bytes of *v: enums may be smaller than int on boards.
static char *dt__low_bytes(int64_t *v, size_t size) {
	const int16_t one = 1;
	return (char *)v + (*(const char *)&one ? 0 : sizeof *v - size);
}

// The number of a word in "zero one/Alias two", aliases included; -1: none.
static int dt__enum_number(const char *names, const char *word) {
	int k = 0;
	for (;; names++) {
		size_t n = strcspn(names, " /");
		if (dt__equals(names, n, word)) return k;
		names += n;
		if (!*names) return -1;
		k += *names == ' ';
	}
}
// Word k without its alias, or all (k < 0): zero|one|two.
static void dt__put_words(dt__writer *w, const char *names, int k) {
	int at = 0;
	for (; *names; names++)
		if (*names == '/') names += strcspn(names, " ") - 1;
		else if (*names == ' ') { at++; if (k < 0) dt__put(w, '|'); }
		else if (k < 0 || at == k) dt__put(w, *names);
}

// Named as its option, with dashes.
static dt__flag dt__flag_at(int i) {
	dt__flag f = dt__flags[i];
	char *c;
	for (c = f.name; *c; c++) if (*c == '_') *c = '-';
	return f;
}

static int dt__find_flag(dt__flag *f, const char *name, size_t n) {
	int i;
	DT__FOR(i, DT__COUNT(dt__flags)) {
		*f = dt__flag_at(i);
		if (f->type != DT__TITLE && dt__equals(name, n, f->name)) return 1;
	}
	return 0;
}

static int dt__set_flag(dt_options *o, const dt__flag *f, const char *value, dt_error *err) {
	char choices[200];
	const char *needs = "a whole number of 0 or more", *end;
	int64_t whole = 0;
	double v;
	const void *from = dt__low_bytes(&whole, f->size);
	int ok = 1;
	if (!value && f->type != DT__SWITCH) return dt__fail(err, DT_ERR_USAGE, "--%s needs a value: %s", f->name, f->help);
	if (f->type == DT__TEXT) {
		from = &value;
	} else if (f->type == DT__DOUBLE) {
		from = &v; v = dt__parse_double(value, value + strlen(value), &end);
		needs = "a number of 0 or more (0.5, not 0,5)";
		ok = *value && !*end && v - v == 0 && (v >= 0 || (v == DT_OFF && f->stores == DT_OFF));
	} else if (f->type == DT__SWITCH) {
		needs = "0, 1 or no value";
		ok = !value || !strcmp(value, "0") || !strcmp(value, "1");
		whole = value && *value == '0' ? 0 : f->stores;
	} else if (f->type == DT__ENUM) {
		DT__WRITER(w, choices);
		if (dt__glob("*TPU*,*tpu*,*GPU*,*gpu*", value)) dt__puts(&w, "dtrain computes on CPUs: ");
		dt__puts(&w, "one of ");
		dt__put_words(&w, f->names, -1);
		needs = choices; whole = dt__enum_number(f->names, value);
		ok = whole >= 0;
	} else {
		whole = (int64_t)dt__whole(value, f->type == DT__UNSIGNED ? UINT64_MAX : UINT64_MAX >> (65 - 8 * f->size), &ok);
	}
	if (ok) memcpy((char *)o + f->offset, from, f->size);
	return ok ? 0 : dt__fail(err, DT_ERR_USAGE, "--%s is \"%.60s\": %s is needed", f->name, value, needs);
}

int dt_option_set(dt_options *o, const char *name, const char *value, dt_error *err) {
	dt__flag f;
	if (!o || !name) return dt__is_null(err, o ? "name" : "options");
	if (dt__find_flag(&f, name, strlen(name))) return dt__set_flag(o, &f, value, err);
	return dt__fail(err, DT_ERR_USAGE, "there is no option \"%.60s\": --help lists them", name);
}

#ifndef DTRAIN_NO_STDIO
// An option's value, or its standard in words.
static const char *dt__flag_value(const dt_options *o, const dt__flag *f, char *text, size_t size) {
	const char *p = (const char *)o + f->offset;
	dt__writer w = dt__writer_on(text, size);
	if (f->type == DT__DOUBLE) {
		double v;
		memcpy(&v, p, sizeof v);
		if (v != 0) dt__print(&w, "%g", v);
	} else if (f->type == DT__TEXT) {
		const char *v;
		memcpy(&v, p, sizeof v);
		if (v) dt__puts(&w, v);
	} else {
		int64_t v = 0;
		memcpy(dt__low_bytes(&v, f->size), p, f->size);
		v = (int64_t)((uint64_t)v << (64 - 8 * f->size)) >> (64 - 8 * f->size); // with its sign
		if (f->type == DT__SWITCH) dt__puts(&w, v == f->stores ? "on" : "");
		else if (v && f->type == DT__ENUM) dt__put_words(&w, f->names, (int)v);
		else if (v && f->type == DT__UNSIGNED) dt__print(&w, "%ju", (uintmax_t)v);
		else if (v) dt__print(&w, "%jd", (intmax_t)v);
	}
	return *text ? text : f->standard;
}
static const char *dt__own_value(const dt_flag *own) { return own->value && *own->value ? *own->value : "none"; }
static void dt__show_help(const dt_options *o, const char *program) {
	const dt_flag *own;
	int i;
	printf("usage: %s [--flag value ...]\n", program);
	for (own = o->flags; own && own->name; own++)
		printf("%s  --%-17s %s (default: %s)\n", own == o->flags ? "\nthis program\n" : "", own->name, own->help ? own->help : "", dt__own_value(own));
	DT__FOR(i, DT__COUNT(dt__flags)) {
		dt__flag f = dt__flag_at(i);
		char value[160], choices[160];
		DT__WRITER(w, choices);
		if (f.type == DT__TITLE) { printf("\n%s\n", f.name); continue; }
		if (f.names) { dt__puts(&w, ": "); dt__put_words(&w, f.names, -1); }
		printf("  --%-17s %s%s (default: %s)\n", f.name, f.help, choices, dt__flag_value(o, &f, value, sizeof value));
	}
	printf("\n  --help              show this and stop\n  --version           show the version and stop\n");
}

static void dt__show_options(const dt_options *o) {
	const dt_flag *own;
	char value[240];
	int i;
	DT__FOR(i, DT__COUNT(dt__flags)) {
		dt__flag f = dt__flag_at(i);
		if (f.type != DT__TITLE) printf("%s = %s\n", f.name, dt__flag_value(o, &f, value, sizeof value));
	}
	for (own = o->flags; own && own->name; own++) printf("%s = %s\n", own->name, dt__own_value(own));
}

int dt_parse(dt_options *o, int argc, char **argv, dt_error *err) {
	int i;
	if (!o || (argc > 0 && !argv)) return dt__is_null(err, o ? "command line" : "options");
	for (i = 1; i < argc; i++) {
		const char *name = argv[i], *value = strchr(name, '=');
		const dt_flag *own = o->flags;
		dt__flag f;
		size_t n;
		if (!strcmp(name, "-h") || !strcmp(name, "--help")) { dt__show_help(o, argv[0]); return DT_ERR_STOPPED; }
		if (!strcmp(name, "--version")) { printf("dtrain %s\n", dt_version()); return DT_ERR_STOPPED; }
		if (strncmp(name, "--", 2)) return dt__fail(err, DT_ERR_USAGE, "\"%.60s\" is no flag: flags begin with --, and --help lists them", name);
		name += 2;
		n = value ? (size_t)(value++ - name) : strlen(name);
		while (own && own->name && !dt__equals(name, n, own->name)) own++;
		if (own && !own->name) own = NULL;
		if (!dt__find_flag(&f, name, n) && !own) return dt__fail(err, DT_ERR_USAGE, "there is no flag \"--%.*s\": --help lists them", (int)DT__MIN(n, (size_t)60), name);
		if (!value && (own || f.type != DT__SWITCH) && i + 1 < argc) value = argv[++i];
		if (own) {
			if (!value) return dt__fail(err, DT_ERR_USAGE, "--%s needs a value: %s", own->name, own->help ? own->help : "");
			*own->value = value;
			continue;
		}
		if (dt__set_flag(o, &f, value, err)) return DT_ERR_USAGE;
		if (o->batch && o->replica_batch) { // the one given takes the other's place
			if (f.offset == offsetof(dt_options, replica_batch)) o->batch = 0;
			else if (f.offset == offsetof(dt_options, batch)) o->replica_batch = 0;
		}
	}
	return 0;
}

// ---- one whole run

static double dt__peak_rss(void) {
#if DT__POSIX
	struct rusage u;
	if (!getrusage(RUSAGE_SELF, &u))
#ifdef __APPLE__
		return (double)u.ru_maxrss;
#else
		return (double)u.ru_maxrss * 1024;
#endif
#endif
	return 0;
}

// m: NULL if it could not be created.
static void dt__show_json(dt_model *m, const char *status, const dt_error *err) {
	char line[2400];
	DT__WRITER(w, line);
	dt_report r = dt_model_report(m);
	static const char *const name[] = {"train_loss", "eval_loss", "eval_accuracy"};
	const double none = (double)NAN, v[] = {r.steps ? r.train_loss : none, m ? r.eval_loss : none, m ? r.eval_accuracy : none};
	int i;
	dt__print(&w, "{\"status\": \"%s\", \"strategy\": \"%s\", \"replicas\": %d, \"processes\": %d, \"epochs\": %d, \"steps\": %ld, \"samples\": %ld", status,
			dt__strategy_name[r.strategy], r.replicas, r.processes, r.epochs, r.steps, r.samples);
	DT__FOR(i, 3) { dt__print(&w, ", \"%s\": ", name[i]); dt__put_json_number(&w, v[i]); }
	dt__print(&w, ", \"seconds\": %.6g, \"samples_per_s\": %.6g, \"data_s\": %.6g, \"parameters\": %zu, \"parameters_crc32c\": %lu, \"arena_bytes\": %zu, \"peak_rss_bytes\": %.0f", r.seconds,
			r.samples_per_s, r.data_s, r.parameters, m ? (unsigned long)dt_parameters_crc32c(m) : 0ul, r.arena_bytes, dt__peak_rss());
	if (err->code) { dt__puts(&w, ", \"error\": \""); dt__put_json(&w, err->text); dt__put(&w, '"'); }
	printf("%s}\n", line);
}

static void dt__show_start(const dt_model *m) {
	char line[240];
	DT__WRITER(w, line);
	dt__put_grouped(&w, (double)dt_model_report(m).parameters);
	dt__print(&w, " parameters, strategy %s, ", dt__strategy_name[m->strategy]);
	if (m->processes > 1) dt__print(&w, "%d processes of ", m->processes);
	dt__print(&w, "%d replica%s on %s, batch %d", m->n_replicas, m->n_replicas == 1 ? "" : "s", dt__cpu()->name, m->batch);
	if (m->data[0]) {
		dt__puts(&w, ", ");
		dt__put_grouped(&w, (double)m->data[0]->info.n);
		dt__puts(&w, " samples");
	}
	printf("%s\n", line);
	fflush(stdout);
}

// Seconds are replica 0's. See examples/profile.h.
static void dt__show_profile(const dt_model *m) {
	const double *s = m->replica[0].seconds;
	int i;
	printf("%-24s %10s %10s %9s\n", "layer", "forward s", "backward s", "share");
	for (i = 0; i < m->graph.n; i++, s += 2)
		if (s[0] + s[1] > 0) printf("%-24.24s %10.3f %10.3f %7.1f %%\n", m->graph.node[i]->name, s[0], s[1], dt__ratio(100 * (s[0] + s[1]), m->report.seconds));
}

static int dt__run_model(dt_model *m, const dt_options *o, dt_error *err) {
	int code, shows = m->o.progress > 0;
	if (o->load && (code = dt_load(m, o->load, NULL, err))) return code;
	if (o->load && shows) printf("loaded %s\n", o->load);
	if (shows) dt__show_start(m);
	if ((code = dt_train(m, NULL, err))) return code;
	if (o->save && (code = dt_save(m, o->save, err))) return code;
	if (o->save && shows) printf("saved %s\n", o->save);
	return 0;
}

// Returns the exit status.
static int dt__run_as(dt_options *o, dt_comm *comm, dt_error *err) {
	dt_model *m = NULL;
	int code = 0, status;
	if (dt_comm_rank(comm)) { o->progress = DT_OFF; o->json = 0; o->save = o->load = NULL; } // the chief does that for all
	o->comm = comm;
	if (o->save) code = dt__new_file_try("--save", o->save, err);
	if (!code && !(m = dt_model_create(o, err))) code = err->code;
	if (m) code = dt__run_model(m, o, err);
	status = dt__signal == SIGINT ? 130 : dt__signal || (m && m->stopped >= DT__BY_SIGNAL) ? 143 : 0;
	if (code) {
		int usage = !m && (code == DT_ERR_USAGE || code == DT_ERR_ARGUMENT || code == DT_ERR_SHAPE);
		status = code == DT_ERR_PEER ? DT__ELSE(status, 143) : code == DT_ERR_CONFIG ? 78 : usage ? 64 : 1;
		fprintf(stderr, "%s\n", err->text);
	} else if (status && o->progress > 0) printf("stopped by signal %d after %ld steps\n", DT__ELSE((int)dt__signal, SIGTERM), m->report.steps);
	if (m && m->o.profile && !m->process) dt__show_profile(m);
	if (o->json) dt__show_json(m, code ? "failed" : status ? "stopped" : "succeeded", err);
	if ((fflush(stdout) || ferror(stdout)) && !status) { fprintf(stderr, "standard output cannot be written: %s\n", strerror(errno)); status = 1; }
	dt_model_free(m);
	return status;
}

static char dt__run_error[240]; // of the last dt_run, for job.h

int dt_run(const dt_options *options) {
	static const int caught[2] = {SIGINT, SIGTERM};
	dt_options o;
	dt_comm *comm;
	dt_error err = DT_DEFAULTS;
	int status = -1, i;
	void (*old[2])(int);
	if (!options) { fprintf(stderr, "dt_run: the options are NULL\n"); return 64; }
	o = *options;
	if (o.print_options) { dt__show_options(&o); return 0; }
	if (!o.progress) o.progress = 1;
	dt__signal = 0;
	DT__FOR(i, 2) {
		old[i] = signal(caught[i], dt__on_signal);
		if (old[i] == SIG_IGN) signal(caught[i], SIG_IGN); // started in the background, or by nohup
	}
	comm = o.comm ? o.comm : dt__run_cluster(&o, &status, &err);
	if (err.code) { fprintf(stderr, "%s\n", err.text); status = dt__signal == SIGINT ? 130 : err.code == DT_ERR_PEER ? 143 : 78; }
	if (status < 0) {
		status = dt__run_as(&o, comm, &err);
		if (comm != options->comm) dt__run_leave(comm, &err);
	}
	strcpy(dt__run_error, err.text);
	dt__signal = 0;
	DT__FOR(i, 2) signal(caught[i], old[i] == SIG_ERR ? SIG_DFL : old[i]);
	return status;
}

int dt_main_opt(int argc, char **argv, const dt_options *o) {
	dt_options with;
	dt_error err = DT_DEFAULTS;
	int code;
	if (!o) return dt_run(NULL);
	with = *o; code = dt_parse(&with, argc, argv, &err);
	if (code == DT_ERR_STOPPED) return 0;
	if (code) { fprintf(stderr, "%s: %s\n", argc > 0 ? argv[0] : "dtrain", err.text); return 64; }
	return dt_run(&with);
}
#else
int dt_parse(dt_options *o, int argc, char **argv, dt_error *err) { return dt__off(err, "DTRAIN_NO_STDIO"); }
int dt_run(const dt_options *o) { return DT_ERR_DISABLED; }
int dt_main_opt(int argc, char **argv, const dt_options *o) { return DT_ERR_DISABLED; }
#endif

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#endif // DTRAIN_IMPLEMENTED
#endif // DTRAIN_IMPLEMENTATION

// ========
// >>licence - MIT or public domain, whichever you prefer
//
// ALTERNATIVE A - MIT License
// Copyright (c) 2026 the dtrain authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
// documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
// rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
// permit persons to whom the Software is furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
// Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
// WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
// COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
// OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
//
// ALTERNATIVE B - Public Domain: the Unlicense, whose text is at unlicense.org.
