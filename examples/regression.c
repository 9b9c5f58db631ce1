// regression.c - predict a number from the other columns of a table
//
// Shows:   dt_csv (of csv.h) with columns brought to one scale, squared error, five-fold cross-validation (dt_fold), and
//          what a network is to be compared with: the mean, and a straight line. With 61 rows the line wins.
// Data:    a CSV file with the number to predict in its last column; or else the table below.
// Build:   cc -O2 examples/regression.c -o regression -lm -pthread
// Run:     ./regression            (December's sea temperature from July to October)
//          ./regression houses.csv "area standardise, rooms standardise, town onehot"
// Output:  61 rows, 4 features; each row is held out once
//          root of the mean squared error, in the label's units:
//              mean             1.121
//              straight line    0.487
//              16 hidden units  0.534
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "csv.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Sea surface temperature off Peru (0-10 S, 90-80 W), monthly means in degrees Celsius, 1950 to 2010.
// From NOAA's National Weather Service, set ERSST.V3B, region Nino 1+2, which is in the public domain,
// by way of statsmodels' elnino.csv: five of its columns, all of its rows.
static const char el_nino[] =
    "july,august,september,october,december\n"
    "20.63,20.15,19.67,20.03,21.80\n23.86,22.32,21.44,21.77,22.89\n20.89,20.02,19.63,20.40,22.39\n"
    "22.20,21.45,21.25,20.95,22.44\n19.52,19.33,18.95,19.11,21.30\n20.46,19.63,19.24,19.16,21.19\n"
    "21.47,20.55,19.89,19.69,21.58\n23.83,22.34,21.80,21.80,23.69\n22.31,20.72,20.62,21.05,22.50\n"
    "21.50,20.15,20.23,20.86,22.55\n20.73,20.10,20.56,20.27,22.74\n20.52,19.97,19.70,20.07,22.11\n"
    "20.60,20.17,20.02,20.14,21.82\n21.80,21.31,21.00,21.13,22.55\n20.25,19.48,19.67,19.79,21.83\n"
    "23.26,22.54,21.26,21.57,23.35\n20.85,20.17,20.04,20.51,22.25\n21.10,19.84,19.08,19.47,21.28\n"
    "21.25,20.97,21.23,21.12,23.20\n22.47,21.06,20.88,21.74,23.60\n19.69,19.27,19.50,20.16,21.77\n"
    "21.01,19.97,19.74,19.88,21.99\n24.11,23.42,22.12,22.58,24.89\n20.84,19.47,19.49,19.80,21.74\n"
    "21.58,20.73,20.15,19.88,21.41\n21.05,19.97,19.14,19.17,21.05\n23.30,21.91,21.56,21.69,23.29\n"
    "21.63,20.25,19.82,20.61,22.47\n21.01,19.66,19.98,20.22,22.94\n21.79,21.05,21.15,21.43,22.97\n"
    "21.26,20.57,20.45,20.43,22.34\n21.10,20.03,20.09,20.58,22.60\n22.50,21.89,22.04,22.88,25.89\n"
    "25.73,23.88,22.26,22.22,23.19\n21.53,20.64,20.73,20.62,22.47\n20.75,19.90,19.86,20.26,22.49\n"
    "21.64,21.07,21.13,21.46,23.53\n23.00,21.92,22.00,22.54,23.51\n20.59,19.63,19.44,19.83,22.25\n"
    "21.27,20.86,20.17,20.52,22.61\n21.36,20.70,20.28,20.40,22.29\n22.39,21.39,21.22,21.73,23.75\n"
    "21.84,20.87,20.85,21.15,22.79\n22.61,21.65,21.11,21.71,22.86\n21.17,20.22,20.65,22.04,23.75\n"
    "21.42,20.46,20.50,20.62,22.03\n20.72,20.23,20.43,20.52,21.68\n25.59,24.95,24.69,24.64,27.08\n"
    "23.61,22.27,21.31,21.37,22.81\n21.36,20.67,20.08,20.46,22.42\n21.47,20.07,20.64,20.90,22.08\n"
    "21.48,20.24,19.73,20.14,21.73\n21.64,21.32,21.42,21.85,24.05\n21.50,21.25,20.75,21.70,23.60\n"
    "21.26,20.79,20.83,21.56,23.39\n21.61,20.47,20.00,19.89,22.20\n22.20,21.89,21.93,22.46,24.15\n"
    "21.05,19.95,19.85,19.31,21.15\n23.02,22.14,21.60,21.39,22.73\n23.09,22.03,21.48,21.64,23.21\n"
    "21.11,19.49,19.28,19.73,22.07\n";

typedef struct {
    int hidden;                // units; 0: a straight line
    double mean, deviation;    // of the training labels
} design;

// The last scale takes the answer to the label's units, in which the loss is then counted.
static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, features]
    const design *d = (const design *)user;
    if (d->hidden) x = dt_tanh(dt_dense(x, d->hidden));
    return dt_scale(dt_dense(x, 1), d->deviation, d->mean);
}

// The model that looks at nothing. The gradient of its squared error is 2 (bias - mean of the labels):
// one step of SGD with rate 1/2 over all rows goes from 0 to the mean itself.
static dt_tensor *constant(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_scale(x, 0, 0), 1, .name = "mean");
}

// Train on the one part of a fold, and return the sum of squared errors over the other.
static double held_out(dt_options *o, design *d, dt_error *err) {
    dt_metrics train = DT_DEFAULTS, test = DT_DEFAULTS;
    float mean = 0;
    dt_model *m = dt_model_create(o, err);
    dt_train(m, NULL, err);
    dt_evaluate(m, &o->test, &test, err);
    if (o->net == constant) {                          // then remember the labels' mean and deviation
        dt_evaluate(m, &o->train, &train, err);
        dt_parameter_read(m, "mean.bias", &mean, 1, err);
        d->mean = mean;
        d->deviation = sqrt(train.loss);
    }
    dt_model_free(m);
    return test.loss * (double)test.n;
}

static int write_table(char *path) {                   // into a file of its own: dt_csv reads files
    int fd = mkstemp(path), ok = fd >= 0 && write(fd, el_nino, sizeof el_nino - 1) == sizeof el_nino - 1;
    return fd >= 0 && close(fd) == 0 && ok;
}

int main(int argc, char **argv) {
    enum { FOLDS = 5 };
    static const char *const name[3] = {"mean", "straight line", "16 hidden units"};
    char path[] = "/tmp/regression-XXXXXX";
    const char *columns = "july standardise, august standardise, september standardise, october standardise";
    double sum[3] = {0};
    dt_error err = DT_DEFAULTS;
    if (argc < 2 && !write_table(path)) return perror(path), 1;
    if (argc > 1) columns = argc > 2 ? argv[2] : NULL;
    dt_source file = dt_csv(argc > 1 ? argv[1] : path, .label_type = DT_FLOAT32, .columns = columns);
    dt_dataset *data = dt_dataset_open(&file, &err);
    dt_dataset_info info = dt_dataset_describe(data);
    dt_dataset_close(data);
    if (data) printf("%ld rows, %d features; each row is held out once\n", info.n, info.input[0]);
    for (int fold = 0; fold < FOLDS && !err.code; fold++) {
        design d = {0, 0, 1};
        dt_options o = {.user = &d, .loss = DT_MSE, .replicas = 1,
                        .train = dt_fold(file, FOLDS, fold, DT_TRAIN), .test = dt_fold(file, FOLDS, fold, DT_TEST)};
        o.net = constant, o.batch = (int)info.n, o.steps = 1, o.learning_rate = 0.5;
        sum[0] += held_out(&o, &d, &err);
        o.net = net, o.batch = 32, o.steps = 2000, o.optimizer = DT_ADAM, o.learning_rate = 0.01;
        o.schedule = DT_COSINE_DECAY;
        sum[1] += held_out(&o, &d, &err);
        d.hidden = 16, o.optimizer = DT_ADAMW, o.weight_decay = 1;  // so few rows need a strong pull to zero
        sum[2] += held_out(&o, &d, &err);
    }
    if (argc < 2) remove(path);
    if (err.code) return fprintf(stderr, "regression: %s\nusage: regression [FILE.csv [COLUMNS]]\n", err.text), 1;
    printf("root of the mean squared error, in the label's units:\n");
    for (int i = 0; i < 3; i++) printf("    %-16s %.3f\n", name[i], sqrt(sum[i] / (double)info.n));
    return 0;
}
