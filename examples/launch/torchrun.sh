#!/bin/sh
# torchrun.sh - train under PyTorch's launcher, which starts all processes again when one of them dies.
#
#   torchrun.sh 4 ./train --data digits --json                         four processes on this machine
#   NODES=3 NODE=0 MASTER=n1 torchrun.sh 2 ./train …                   the first of three hosts with two processes each;
#                                                                      on the others the same with NODE=1 and NODE=2,
#                                                                      and with the same DTRAIN_SECRET in the environment
#
# TORCHRUN names the launcher, RESTARTS how often it starts a failed run again (0), PORT where it listens on MASTER.
set -eu
: "${TORCHRUN:=torchrun}" "${RESTARTS:=0}" "${PORT:=29500}" "${NODES:=1}" "${NODE:=0}" "${MASTER:=}"
if [ $# -lt 2 ]; then sed -n 's/^# \{0,1\}//p' "$0" >&2; exit 64; fi
n=$1
shift
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # dtrain has its own threads; this only spares a warning
if [ "$NODES" = 1 ]; then exec "$TORCHRUN" --no-python --standalone --nproc_per_node "$n" --max-restarts "$RESTARTS" "$@"; fi
[ -n "$MASTER" ] || { echo "torchrun.sh: MASTER must name the first host" >&2; exit 64; }
[ -n "${DTRAIN_SECRET:-}" ] || { echo "torchrun.sh: DTRAIN_SECRET must be the same 16 characters or more on all hosts" >&2; exit 64; }
export DTRAIN_SECRET
exec "$TORCHRUN" --no-python --nnodes "$NODES" --node_rank "$NODE" --master_addr "$MASTER" --master_port "$PORT" \
    --nproc_per_node "$n" --max-restarts "$RESTARTS" "$@"
