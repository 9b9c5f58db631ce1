// mpi.c - training over MPI: the machine's own library moves the gradients
//
// Shows:   dt_comm_from: two callbacks make somebody else's transport a group of processes. On a supercomputer MPI
//          knows the interconnect; dtrain needs its allreduce and its broadcast, no more.
// Data:    the handwritten digits in digits.h.
// Build:   mpicc -O2 examples/mpi.c -o mpi -lm -pthread
// Run:     mpirun -np 2 ./mpi
// Output:  17,258 parameters, strategy multiworker, 2 processes of 1 replica on avx512, batch 32, 1,438 samples
//          epoch 1/10  loss 2.0561  accuracy 0.4465  test loss 1.7529  test accuracy 0.6936  267,762 samples/s  0.0 s
//          …
//          epoch 10/10  loss 0.1221  accuracy 0.9708  test loss 0.1296  test accuracy 0.9694  272,209 samples/s  0.0 s
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "digits.h"
#include <mpi.h>

static int allreduce(void *user, float *buf, size_t n, dt_reduction how) {
    (void)user;
    return MPI_Allreduce(MPI_IN_PLACE, buf, (int)n, MPI_FLOAT, how == DT_MAX ? MPI_MAX : MPI_SUM, MPI_COMM_WORLD);
}

static int broadcast(void *user, float *buf, size_t n, int root) {
    (void)user;
    return MPI_Bcast(buf, (int)n, MPI_FLOAT, root, MPI_COMM_WORLD);
}

static dt_tensor *net(dt_tensor *x, void *user) {      // x: [batch, 8, 8, 1]
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 16, 3, .padding = DT_SAME)), 2);
    return dt_dense(dt_relu(dt_dense(dt_flatten(x), 64)), 10, .name = "logits");
}

int main(int argc, char **argv) {
    static unsigned char images[DIGITS * DIGITS_PIXELS], labels[DIGITS];
    dt_comm_hooks hooks = {.allreduce = allreduce, .broadcast = broadcast};
    dt_source all = dt_arrays(images, DT_UINT8, labels, DT_UINT8, DIGITS);
    dt_error err = DT_DEFAULTS;
    int status;
    digits_decode(images, labels);
    MPI_Init(&argc, &argv);                            // dtrain's threads never call MPI, but the one that trains
    MPI_Comm_rank(MPI_COMM_WORLD, &hooks.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &hooks.size);
    hooks.local = hooks.size;                          // all on one machine: they share its cores
    dt_comm *comm = dt_comm_from(&hooks, &err);
    if (!comm) return fprintf(stderr, "%s\n", err.text), 1;
    status = dt_main(argc, argv,
        .net = net, .loss = DT_CROSS_ENTROPY, .optimizer = DT_ADAM, .input = {8, 8, 1}, .comm = comm,
        .train = dt_fold(all, 5, 4, DT_TRAIN), .test = dt_fold(all, 5, 4, DT_TEST), .epochs = 10);
    dt_comm_close(comm);
    MPI_Finalize();
    return status;
}
