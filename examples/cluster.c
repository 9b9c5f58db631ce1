// cluster.c - the course's last step: CIFAR-10 on several workers
//
// Shows:   the program of cifar10.c on several processes or machines. Nothing in it speaks of them: whoever starts it
//          does, and the loss is the same, bit for bit, for 4 threads, 2 processes of 2 and 4 processes.
// Data:    CIFAR-10's binary version in data/cifar10, in the same place for every process.
// Build:   cc -O2 examples/cluster.c -o cluster -lm -pthread
// Run:     ./cluster --workers 1 --replicas 1          a chief and one worker on this machine
//          or one process at a time, anywhere, with the course's TF_CONFIG; the second one has "index": 1
//            TF_CONFIG='{"cluster": {"worker": ["127.0.0.1:12345", "127.0.0.1:23456"]},
//                        "task": {"type": "worker", "index": 0}}' ./cluster --replicas 1
//          or by a launcher: srun ./cluster, mpirun ./cluster, torchrun --no-python ./cluster; see examples/launch.
//          Between machines set the same DTRAIN_SECRET for all: only who knows it may join. Nothing is encrypted.
// Output:  [chief] 462,410 parameters, strategy multiworker, 2 processes of 1 replica on avx512, batch 128, 30,000 samples
//          [chief] epoch 1/10  loss 1.5588  accuracy 0.4403  test loss 1.3451  test accuracy 0.5200  13,443 samples/s  2.3 s
//          …       (with --workers; the numbers are those of cifar10.c with two replicas)
//          [chief] epoch 10/10  loss 0.6362  accuracy 0.7785  test loss 1.0941  test accuracy 0.6240  14,251 samples/s  2.1 s
//          [chief] saved cifar10.safetensors
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "cifar10.h"

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 32, 32, 3], pixels in 0..1
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 32, 3)), 2);
    x = dt_relu(dt_dense(dt_flatten(x), 64));
    return dt_dense(x, 10, .name = "logits");
}

int main(int argc, char **argv) {
    return dt_main(argc, argv,
        .net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM, .learning_rate = 1e-3,
        .train = dt_cifar10("data/cifar10", DT_TRAIN), .test = dt_cifar10("data/cifar10", DT_TEST),
        .mean = {0.4914, 0.4822, 0.4465}, .deviation = {0.2470, 0.2435, 0.2616},
        .batch = 128, .epochs = 10,                    // 128 samples a step, over all replicas of all processes
        .save = "cifar10.safetensors");                // by the chief
}
