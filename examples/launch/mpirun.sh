#!/bin/sh
# mpirun.sh - train under Open MPI's or MPICH's launcher. The program itself uses no MPI.
#
#   mpirun.sh 4 ./train --data digits --json                           four processes on this machine
#   HOSTS=n1,n2,n3 mpirun.sh 3 ./train --data digits --json            one on each of three hosts, rank 0 on the first
#   MPIRUN="mpirun --bind-to none" mpirun.sh 2 ./train …               another launcher, or flags for it
#
# On several hosts Open MPI does not say where rank 0 is: that is what MASTER_ADDR is for; MPICH does. Open MPI pins one or
# two processes to a core each; a process that has a host for itself shall have all of its cores.
set -eu
: "${MPIRUN:=mpirun}" "${HOSTS:=}"
if [ $# -lt 2 ]; then sed -n 's/^# \{0,1\}//p' "$0" >&2; exit 64; fi
n=$1
shift
[ -n "$HOSTS" ] || exec $MPIRUN -np "$n" "$@"
case $($MPIRUN --version) in
*"Open MPI"* | *OpenRTE*)
    export DTRAIN_SECRET="${DTRAIN_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}"  # of this job alone: only its processes join
    export MASTER_ADDR="${HOSTS%%,*}"
    exec $MPIRUN -np "$n" --bind-to none --host "$HOSTS" -x MASTER_ADDR -x DTRAIN_SECRET "$@"
    ;;
*) exec $MPIRUN -np "$n" -hosts "$HOSTS" "$@" ;;
esac
