// job.c - a run that survives: started again after a crash, it goes on where it was
//
// Shows:   dt_job_main of job.h in place of dt_main; what a job's directory holds; SIGTERM as machines that are taken away send it.
// Data:    the 1,797 digits of digits.h.
// Build:   cc -O2 examples/job.c -o job -lm -pthread
// Run:     ./job --job-dir out & sleep 1; kill -9 $!       whatever happens to it,
//          ./job --job-dir out                             the same command goes on, and ends with the same bits
//          ./job --job-dir out --workers 1                 … also as several processes
//          tensorboard --logdir out                        its curves, while it runs or later
// Output:  151,498 parameters, strategy mirrored, 2 replicas on avx512, batch 64, 1,438 samples     (of the second start)
//          goes on from step 483 of out
//          epoch 22/60  loss 0.0232  accuracy 0.9910  test loss 0.0267  test accuracy 0.9833  10,104 samples/s  0.1 s
//          …
//          epoch 60/60  loss 0.0083  accuracy 0.9986  test loss 0.0220  test accuracy 0.9916  15,118 samples/s  0.1 s
//          the job has finished: "out/export/model.safetensors" is its result
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "export_c.h"
#include "export_onnx.h"
#include "job.h"
#include "digits.h"

static unsigned char images[DIGITS][DIGITS_PIXELS], labels[DIGITS];

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 8, 8, 1]
    (void)user;
    x = dt_relu(dt_batchnorm(dt_conv2d(x, 32, 3, .padding = DT_SAME)));
    x = dt_maxpool2d(dt_relu(dt_batchnorm(dt_conv2d(x, 64, 3, .padding = DT_SAME))), 2);
    x = dt_dropout(dt_relu(dt_dense(dt_flatten(x), 128)), 0.5);
    return dt_dense(x, 10, .name = "logits");
}

int main(int argc, char **argv) {
    digits_decode(images[0], labels);
    dt_source all = dt_arrays(images, DT_UINT8, labels, DT_UINT8, DIGITS);
    return dt_job_main(argc, argv,
        .net = net, .input = {8, 8, 1}, .input_type = DT_UINT8, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM,
        .train = dt_fold(all, 5, 4, DT_TRAIN), .test = dt_fold(all, 5, 4, DT_TEST),
        .batch = 64, .epochs = 60, .schedule = DT_COSINE_DECAY);
}
