// parameter_server.c - a parameter server as a program of its own, for any job whose workers are built on dtrain.h
//
// Shows:   dt_server_open, _run, _stop. It knows no model: the chief says how many values there are and how they are
//          updated. Whoever trains with dt_main needs no such program: its own binary serves where its task is "ps".
// Build:   cc -O2 examples/parameter_server.c -o parameter_server -lm -pthread
//          cc -O2 examples/digits.c -o digits -lm -pthread
// Run:     export DTRAIN_CHIEF=127.0.0.1:29500 DTRAIN_WORLD=2 DTRAIN_SERVERS=2       two workers, two servers
//          DTRAIN_ROLE=ps DTRAIN_RANK=0 ./parameter_server &
//          DTRAIN_ROLE=ps DTRAIN_RANK=1 ./parameter_server &
//          DTRAIN_RANK=1 ./digits &
//          DTRAIN_RANK=0 ./digits
//          Between machines set the same DTRAIN_SECRET for all. examples/launch has a systemd unit for it.
// Output:  151,306 parameters, strategy ps, 2 processes of 1 replica on avx512, batch 64, 1,438 samples       (of the chief)
//          epoch 1/25  loss 2.2270  accuracy 0.1815  test loss 1.8601  test accuracy 0.6128  32,083 samples/s  0.0 s
//          …
//          epoch 25/25  loss 0.1558  accuracy 0.9534  test loss 0.0525  test accuracy 0.9889  30,648 samples/s  0.1 s
//          saved digits.safetensors
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <signal.h>
#include <stdio.h>

static dt_server *server;
static void stop(int number) { (void)number; dt_server_stop(server); }

int main(void) {
    dt_error err = DT_DEFAULTS;
    server = dt_server_open(NULL, &err);               // waits until all have come; then
    if (server) {
        signal(SIGTERM, stop);
        signal(SIGINT, stop);
        dt_server_run(server, &err);                   // serves until the workers have finished
    }
    dt_server_close(server);
    if (err.code) fprintf(stderr, "%s\n", err.text);
    return err.code == DT_ERR_PEER ? 143 : err.code;   // 143: start me again
}
