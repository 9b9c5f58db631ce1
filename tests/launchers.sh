#!/bin/sh
# launchers.sh - one program under every real launcher that is installed: each run must give the weights of one process with
# as many replicas, through shared memory and over TCP. Then processes die, stop, or are started with half of what they need:
# the others say so and end. Four minutes. Open MPI (mpirun.openmpi), MPICH (mpiexec.hydra) and torchrun are looked for; MPIRUN, MPIEXEC and TORCHRUN name
# others. Slurm runs as a cluster of its own, hosts are network namespaces: both need root. PYTHON (python3) with yaml reads
# the .yaml files of examples/launch, and kubernetes_validate checks them. DTRAIN_DATA names a folder with mnist in it.
. "$(dirname "$0")/lib.sh"
: "${MPIRUN:=mpirun.openmpi}" "${MPIEXEC:=mpiexec.hydra}" "${TORCHRUN:=torchrun}" "${PYTHON:=python3}"
for name in $(env | sed -n 's/^\(\(DTRAIN\|OMPI\|PMI\|PMIX\|MPI\|PET\|SLURM\|TORCHELASTIC\)_[A-Z_]*\)=.*/\1/p') \
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TF_CONFIG CLUSTER_SPEC HOSTS NODES NODE MASTER; do
    [ "$name" = DTRAIN_DATA ] || unset "$name"
done
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

$CC $CFLAGS examples/train.c -o "$scratch/train" $LDFLAGS $LDLIBS || exit 1
cd "$scratch" || exit 1
program=$scratch/train
job="$program --data digits --model mlp --epochs 2 --replicas 1 --quiet --json"
endless="$program --data digits --model mlp --epochs 1000000 --replicas 1"
echo $((21000 + $$ % 8000)) >port
next_port() { port=$(($(cat port) + 10)); echo $port >port; }  # of which some may follow each other

# ---- one program, and what it must say

for replicas in 2 3 4 6 8; do  # what one process comes to
    timeout 60 $job --replicas $replicas | sed -n 's/.*"parameters_crc32c": \([0-9]*\),.*/\1/p' >crc.$replicas
    [ -s crc.$replicas ] || { echo "launchers: one process with $replicas replicas does not train" >&2; exit 1; }
done

same() {  # PROCESSES FILE STRATEGY: only rank 0 has given an answer, and it is right
    cat "$2"
    [ "$(grep -c '"status"' "$2")" = 1 ] || { echo "one answer is expected"; return 1; }
    for part in '"status": "succeeded"' "\"strategy\": \"${3:-multiworker}\"" "\"processes\": $1," "\"parameters_crc32c\": $(cat crc.$1),"; do
        grep -qF "$part" "$2" || { echo "it does not say $part"; return 1; }
    done
}

under() {  # PROCESSES LAUNCHER…: without the program, which is appended
    processes=$1
    shift
    timeout -k 5 100 "$@" $job >said 2>errors </dev/null
    status=$?
    cat errors
    same "$processes" said && [ $status = 0 ]
}

says() {  # STATUS TEXT COMMAND…: ends with that status, and says the text
    wanted=$1 text=$2
    shift 2
    timeout -k 5 60 "$@" >said 2>&1 </dev/null
    status=$?
    cat said
    echo "status $status"
    [ $status = "$wanted" ] && grep -qF -- "$text" said
}

served() {  # WORKERS LAUNCHER…: the program and --ps are appended: the last process is a parameter server
    workers=$1
    shift
    timeout -k 5 100 "$@" $job --ps 1 --sync >said 2>errors </dev/null
    status=$?
    cat errors
    same "$workers" said ps && [ $status = 0 ]
}

ways() {  # NAME COMMAND…: a check that the ranks meet in memory, and another over TCP
    ways_name=$1
    shift
    for way in shm tcp; do check "$ways_name, $way" by_way $way "$@"; done
}
by_way() { export DTRAIN_TRANSPORT="$1"; shift; "$@"; }  # shm is an error where it cannot be had

# ---- several programs in the background: pid.R, out.R, err.R, and status.R when rank R has ended

start() {  # RANK COMMAND…
    r=$1
    shift
    [ ! -f pid.$r ] || [ -f status.$r ] || kill -9 "$(cat pid.$r)" 2>/dev/null
    rm -f pid.$r status.$r out.$r err.$r
    (sh -c 'echo $$ >"$0"; exec "$@"' pid.$r "$@" >out.$r 2>err.$r </dev/null; echo $? >status.$r) &
    while [ ! -s pid.$r ]; do sleep 0.01; done
}

started() { for file in pid.*; do [ -f "$file" ] && [ ! -f "status.${file#pid.}" ] && echo "${file#pid.}"; done; }

clear_ranks() {  # end what still runs
    for r in $(started); do kill -9 "$(cat pid.$r)" 2>/dev/null; done
    rm -f pid.* status.* out.* err.*
}

soon() {  # SECONDS COMMAND…: it succeeds within that time
    tries=$(($1 * 20))
    shift
    while ! "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.05
    done
}

over() { for r; do [ -s status.$r ] || return 1; done; }

ended() {  # STATUS SECONDS RANK…: these end within that time, with that status
    wanted=$1 seconds=$2 right=0
    shift 2
    soon "$seconds" over "$@" || { echo "after $seconds s these still run: $(started | tr '\n' ' ')"; right=1; }
    for r; do
        sed "s/^/rank $r: /" err.$r
        [ ! -s status.$r ] || [ "$(cat status.$r)" = "$wanted" ] || { echo "rank $r ended with status $(cat status.$r)"; right=1; }
    done
    return $right
}

together() {  # N COMMAND…: ranks 0 to N-1 by DTRAIN_*
    n=$1
    shift
    next_port
    for rank in $(seq 0 $((n - 1))); do start $rank env DTRAIN_RANK=$rank DTRAIN_WORLD=$n DTRAIN_CHIEF=127.0.0.1:$port "$@"; done
}

training() {  # N: as many processes are in the middle of their training
    together "$@" $endless
    soon 20 grep -q 'epoch 1/' out.0 || { ended 0 0 0; return 1; }
}

trap 'clear_ranks; hosts_down; slurm_down' EXIT
trap 'exit 1' INT TERM
hosts_down() { :; }
slurm_down() { :; }

# ---- by hand

by_hand() { together "$1" $job && ended 0 30 $(seq 0 $(($1 - 1))) && same "$1" out.0; }
ways "DTRAIN_*, 2 processes" by_hand 2
ways "DTRAIN_*, 3 processes" by_hand 3
ways "DTRAIN_*, 4 processes" by_hand 4
by_spec() {  # VARIABLE ROLE,INDEX… : the cluster has a port for each; the first is rank 0
    variable=$1 roles= rank=0
    shift
    next_port
    for task; do
        address="\"127.0.0.1:$((port + rank))\""
        case $roles in
        *"\"${task%,*}\""*) roles="${roles%]}, $address]" ;;
        *) roles="$roles${roles:+, }\"${task%,*}\": [$address]" ;;
        esac
        rank=$((rank + 1))
    done
    rank=0
    for task; do
        start $rank env $variable="{\"cluster\": {$roles}, \"task\": {\"type\": \"${task%,*}\", \"index\": ${task#*,}}, \"environment\": \"cloud\"}" $job
        rank=$((rank + 1))
    done
    ended 0 30 $(seq 0 $(($# - 1))) && same $# out.0
}
spec_served() {  # chief, worker and two servers by TF_CONFIG
    next_port
    spec="\"chief\": [\"127.0.0.1:$port\"], \"worker\": [\"127.0.0.1:$((port + 1))\"], \"ps\": [\"127.0.0.1:$((port + 2))\", \"127.0.0.1:$((port + 3))\"]"
    rank=0
    for task in chief,0 worker,0 ps,0 ps,1; do
        start $rank env TF_CONFIG="{\"cluster\": {$spec}, \"task\": {\"type\": \"${task%,*}\", \"index\": ${task#*,}}}" $job --sync
        rank=$((rank + 1))
    done
    ended 0 30 0 1 2 3 && same 2 out.0 ps
}
by_six() {  # [::1]
    next_port
    for rank in 0 1 2; do start $rank env DTRAIN_JOIN=10 DTRAIN_RANK=$rank DTRAIN_WORLD=3 DTRAIN_CHIEF=[::1]:$port $job; done
    ended 0 30 0 1 2 && same 3 out.0
}
if grep -q '^0*1 ' /proc/net/if_inet6 2>/dev/null; then check "DTRAIN_*, IPv6" by_six; else skip "DTRAIN_*, IPv6" "there is no ::1"; fi
ways "TF_CONFIG, two workers" by_spec TF_CONFIG worker,0 worker,1
ways "TF_CONFIG, chief and two workers" by_spec TF_CONFIG chief,0 worker,0 worker,1
check "TF_CONFIG, an index in quotes" by_spec TF_CONFIG 'worker,"0"' 'worker,"1"'
check "TF_CONFIG, chief, worker and two parameter servers" spec_served
check "CLUSTER_SPEC, chief and two workers" by_spec CLUSTER_SPEC workerpool0,0 workerpool1,0 workerpool1,1
alone() { TF_CONFIG='{}' timeout 60 $job >said && cat said && grep -qF '"processes": 1,' said; }
check "TF_CONFIG without a cluster is one process" alone
batch() { SLURM_PROCID=0 SLURM_NTASKS=6 SLURM_JOB_ID=1 timeout 60 $job >said && cat said && grep -qF '"processes": 1,' said; }
check "a batch script itself is one process" batch
two_steps() {  # of one Slurm job at a time: neither takes the other's processes
    export SLURM_JOB_ID=$$ SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2 DTRAIN_JOIN=10
    start 0 env SLURM_STEP_ID=0 SLURM_PROCID=0 $job
    sleep 0.3
    start 2 env SLURM_STEP_ID=1 SLURM_PROCID=0 $job --seed 1
    start 3 env SLURM_STEP_ID=1 SLURM_PROCID=1 $job --seed 1
    sleep 0.3
    start 1 env SLURM_STEP_ID=0 SLURM_PROCID=1 $job
    ended 0 30 0 1 2 3 && same 2 out.0
}
ways "two steps of a Slurm job" two_steps
workers() {
    timeout 60 $program --data digits --epochs 2 --replicas 1 --workers 2 --json >out.0 || return 1
    grep -q '^\[chief\] ' out.0 && tail -n 1 out.0 | grep -q '^{"status"' && same 3 out.0
}
ways "--workers 2" workers

# ---- parameter servers: who trains which batch, and how well

shared_out() {  # 10,000 equal batches to ten equal workers: each batch once, and each worker its tenth, give or take
    rm -f seen
    timeout -k 5 100 ./workers --seen seen --workers 9 --ps 1 --json >said || { cat said; return 1; }
    tail -n 1 said
    awk '{ n[$1]++; times[$2]++ }
        END { for (w in n) { workers++; if (!least || n[w] < least) least = n[w]; if (n[w] > most) most = n[w] }
            for (b in times) { different++; twice += times[b] > 1 }
            printf "%d batches, %d different; %d workers with %d to %d\n", NR, different, workers, least, most
            exit !(NR == 10000 && different == 10000 && workers == 10 && least >= 900 && most <= 1100) }' seen
}
if $CC $CFLAGS "$root/tests/launchers/workers.c" -o workers $LDFLAGS $LDLIBS; then check "10,000 batches, ten workers" shared_out; else check "tests/launchers/workers.c" false; fi
reaches() {  # FLAGS…: a chief, two workers and two servers come to 97 % of MNIST
    timeout -k 5 300 $program --data "mnist:$DTRAIN_DATA/mnist" --model mlp --epochs 8 --workers 2 --ps 2 --replicas 1 --json "$@" >said || { tail -n 20 said; return 1; }
    tail -n 1 said
    tail -n 1 said | tr ',' '\n' | awk -F': ' '$1 ~ /"eval_accuracy"/ { exit !($2 >= 0.97) }' && tail -n 1 said | grep -q '"strategy": "ps", .*"processes": 3,'
}
if [ -d "${DTRAIN_DATA:-}/mnist" ]; then
    check "MNIST, parameter servers" reaches
    check "MNIST, parameter servers, --sync" reaches --sync
else
    skip "MNIST, parameter servers" "DTRAIN_DATA names no folder with mnist in it"
fi

# ---- launchers

if command -v "$MPIRUN" >/dev/null; then
    ways "Open MPI" under 4 "$MPIRUN" --oversubscribe -np 4
    check "Open MPI, parameter server" served 3 "$MPIRUN" --oversubscribe -np 4
    check "examples/launch/mpirun.sh" under 3 env MPIRUN="$MPIRUN --oversubscribe" "$root/examples/launch/mpirun.sh" 3
else
    skip "Open MPI" "no $MPIRUN"
fi
if command -v "$MPIEXEC" >/dev/null; then
    ways "MPICH" under 4 "$MPIEXEC" -np 4
    check "MPICH, parameter server" served 2 "$MPIEXEC" -np 3
    check "examples/launch/mpirun.sh, MPICH" under 3 env MPIRUN="$MPIEXEC" "$root/examples/launch/mpirun.sh" 3
else
    skip "MPICH" "no $MPIEXEC"
fi

agents() {  # FLAGS…: two of torchrun's agents, each with two processes
    next_port
    for node in 0 1; do
        start $node timeout -k 5 100 "$TORCHRUN" --no-python --nnodes 2 --nproc_per_node 2 $(echo "$@" | sed "s/NODE/$node/; s/PORT/$port/") $job
    done
    ended 0 100 0 1 && cat out.0 out.1 >both && same 4 both
}
restarted() {  # one is killed: the agent starts both again, and they train to the end
    rm -f ranks.*
    cat >again.sh <<'Y'
echo $$ >ranks.$RANK.$TORCHELASTIC_RESTART_COUNT
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec "$@" --epochs 1000000
exec "$@"
Y
    start 0 timeout -k 5 100 "$TORCHRUN" --no-python --standalone --nproc_per_node 2 --max-restarts 1 sh again.sh $job
    soon 40 test -s ranks.1.0 || return 1
    sleep 1
    kill -9 "$(cat ranks.1.0)"
    ended 0 60 0 && [ -s ranks.1.1 ] && grep -v '"failed"\|"stopped"' out.0 >last && same 2 last
}
if command -v "$TORCHRUN" >/dev/null; then
    ways "torchrun --standalone" under 2 "$TORCHRUN" --no-python --standalone --nproc_per_node 2
    check "torchrun, parameter server" served 2 "$TORCHRUN" --no-python --standalone --nproc_per_node 3
    check "torchrun without the agent's store" under 2 env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "$TORCHRUN" --no-python --standalone --nproc_per_node 2
    ways "torchrun, two agents, static" agents --node_rank NODE --master_addr 127.0.0.1 --master_port PORT
    c10d() { export DTRAIN_INSECURE=1; agents --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:PORT --rdzv-id test; }  # MASTER_ADDR is this host's name
    check "torchrun, two agents, c10d" c10d
    check "torchrun starts all again" restarted
    check "examples/launch/torchrun.sh" under 2 env TORCHRUN="$TORCHRUN" "$root/examples/launch/torchrun.sh" 2
else
    skip "torchrun" "no $TORCHRUN"
fi

# ---- Slurm: a controller and three nodes, which have names of their own, on this machine or on three hosts

slurm_up() {  # ON CONTROLLER NODES: ON I COMMAND… runs it where node I is
    on=$1
    next_port
    rm -rf slurm
    mkdir -p slurm/state slurm/spool/n1 slurm/spool/n2 slurm/spool/n3
    chmod 700 slurm
    (umask 077; dd if=/dev/urandom of=slurm/key bs=1024 count=1 2>/dev/null)
    cat >slurm/slurm.conf <<Y
ClusterName=test
SlurmctldHost=$2
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/slurm/socket
StateSaveLocation=$scratch/slurm/state
SlurmdSpoolDir=$scratch/slurm/spool/%n
SlurmdPidFile=$scratch/slurm/%n.pid
SlurmctldPidFile=$scratch/slurm/controller.pid
SlurmctldLogFile=$scratch/slurm/controller.log
SlurmdLogFile=$scratch/slurm/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SlurmdParameters=config_overrides
NodeName=n[1-3] $3 Port=[$((port + 1))-$((port + 3))] CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
Y
    export SLURM_CONF="$scratch/slurm/slurm.conf"
    slurm_pids=
    munged -F --force --key-file="$scratch/slurm/key" --socket="$scratch/slurm/socket" --pid-file="$scratch/slurm/munged.pid" \
        --log-file="$scratch/slurm/munged.log" --seed-file="$scratch/slurm/seed" >slurm/munged.out 2>&1 &
    slurm_pids="$slurm_pids $!"
    $on 1 slurmctld -D >slurm/controller.out 2>&1 &
    slurm_pids="$slurm_pids $!"
    for node in 1 2 3; do
        $on $node slurmd -D -N n$node >slurm/n$node.out 2>&1 &
        slurm_pids="$slurm_pids $!"
    done
    slurm_down() {  # when no step is ending any more: neither a slurmd nor a step's own process ends while it cannot tell the controller
        soon 10 idle
        kill $slurm_pids 2>/dev/null
        soon 5 slurm_over || kill -9 $slurm_pids 2>/dev/null
        wait $slurm_pids 2>/dev/null
        for file in $(grep -lsx slurmstepd /proc/[0-9]*/comm); do
            ! grep -qsF "$SLURM_CONF" "${file%comm}environ" || kill -9 "$(basename "${file%/comm}")"
        done
        slurm_down() { :; }
    }
    slurm_over() { for pid in $slurm_pids; do ! grep -qs . /proc/$pid/cmdline || return 1; done; }
    idle() { [ "$(timeout 5 $on 1 sinfo -h -t idle -o %D 2>/dev/null)" = 3 ]; }
    soon 20 idle
}
slurm_here() {
    printf '127.0.0.1 localhost n1 n2 n3\n' >names.txt
    printf '#!/bin/sh\n# here.sh NODE COMMAND…\nshift\nexec unshare -m sh -c '"'"'mount --bind %s /etc/hosts; exec "$@"'"'"' sh "$@"\n' "$scratch/names.txt" >here.sh
    chmod +x here.sh
    slurm_up ./here.sh "$(hostname)(127.0.0.1)" "NodeHostname=localhost NodeAddr=127.0.0.1"
}
batch_job() {
    timeout 60 sbatch --wait -o "$scratch/slurm/batch.out" --export=ALL,TRAIN="$job" "$root/examples/launch/slurm.sbatch" || return 1
    same 3 slurm/batch.out
}
step_loses() {  # by default srun lets the others live
    rm -f ranks.*
    start 0 timeout -k 5 60 srun -N 3 -n 3 sh -c 'echo $$ >ranks.$SLURM_PROCID; "$0" "$@" 2>causes.$SLURM_PROCID; echo $? >codes.$SLURM_PROCID' $endless
    soon 20 grep -q 'epoch 1/' out.0 || return 1
    kill -9 $(ps -A -o ppid=,pid= | awk -v shell="$(cat ranks.1)" '$1 == shell { print $2 }')
    soon 3 test -s codes.0 -a -s codes.2
    cat causes.* codes.*
    [ "$(cat codes.0 codes.1 codes.2 | tr '\n' ' ')" = "143 137 143 " ] && cmp causes.0 causes.2
}
if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
    skip "Slurm" "no slurmctld, slurmd and munged"
elif [ "$(id -u)" != 0 ]; then
    skip "Slurm" "its cluster needs root"
elif ! slurm_here; then
    skip "Slurm" "its three nodes do not come up: see $scratch/slurm"
else
    ways "srun, a process a node" under 3 srun -N 3 -n 3
    ways "srun, two processes a node" under 6 srun -N 3 -n 6
    check "srun, parameter server" served 2 srun -N 3 -n 3
    check "srun, two nodes of three" under 2 srun -w 'n[2-3]' -n 2
    next_port
    check "srun, DTRAIN_CHIEF" under 4 env DTRAIN_CHIEF=127.0.0.1:$port srun -N 2 -n 4
    check "srun, a process is killed" step_loses
    check "examples/launch/slurm.sbatch" batch_job
fi
slurm_down

# ---- hosts with 20 ms and 100 Mbit/s between them: three, and a fourth for the TFJob

hosts_up() {
    $CC -O2 "$root/tests/launchers/wan.c" -o wan && mkfifo control || return 1
    printf '#!/bin/sh\n# on.sh HOST COMMAND…\ni=$1\nshift\nexec nsenter --net=/run/netns/dtrain$i unshare -u -m sh -c '"'"'hostname n$0; mount --bind %s /etc/hosts; exec "$@"'"'"' $i "$@"\n' "$scratch/hosts.txt" >on.sh
    printf '#!/bin/sh\n# rsh.sh [FLAGS] nHOST COMMAND…: in the place of ssh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=${1#n}\nshift\nexec %s/on.sh $host sh -c "$*"\n' "$scratch" >rsh.sh
    chmod +x on.sh rsh.sh
    echo "127.0.0.1 localhost" >hosts.txt
    for i in 1 2 3 4; do
        pod=dtrain-worker-$((i - 2)).space.svc
        [ $i != 1 ] || pod=dtrain-chief-0.space.svc
        echo "10.77.0.$i n$i job-worker-$((i - 1)).space.svc dtrain-$((i - 1)).dtrain $pod" >>hosts.txt
        ip netns del dtrain$i 2>/dev/null
        ip netns add dtrain$i || return 1
    done
    hosts_down() {
        kill "$wan" 2>/dev/null
        wait "$wan" 2>/dev/null
        for i in 1 2 3 4; do ip netns del dtrain$i; done
        hosts_down() { :; }
    }
    ./wan dtrain 4 20 100 control >wan.out 2>&1 &
    wan=$!
    soon 5 grep -q up wan.out && ./on.sh 1 true
}
on_hosts() {  # AS COMMAND…: as many processes; what AS prints for a host goes before the command
    as=$1
    shift
    for i in 1 2 3; do start $((i - 1)) timeout -k 5 100 ./on.sh $i env DTRAIN_SECRET=0123456789abcdef "$($as $i)" "$@"; done
    ended 0 100 0 1 2 && same 3 out.0
}
by_rank() { export DTRAIN_WORLD=3 DTRAIN_CHIEF=n1:2222; on_hosts rank_of $job; }
rank_of() { echo DTRAIN_RANK=$(($1 - 1)); }
by_file() {  # nobody says where rank 0 is; an earlier run's file says something else
    echo "10.77.0.4:9 17" >meet
    export DTRAIN_WORLD=3 DTRAIN_RDZV="file:$scratch/meet"
    on_hosts rank_of $job && [ ! -e meet ]
}
by_pod() { on_hosts pod_of $job; }
pod_of() { echo '{"cluster":{"worker":["job-worker-0.space.svc:2222","job-worker-1.space.svc:2222","job-worker-2.space.svc:2222"]},"task":{"type":"worker","index":'$(($1 - 1))'},"environment":"cloud"}' | sed 's/^/TF_CONFIG=/'; }
hosts_served() {  # a chief, a worker and a server
    for i in 1 2 3; do
        task=$(echo chief worker ps | cut -d ' ' -f $i)
        start $((i - 1)) timeout -k 5 100 ./on.sh $i env DTRAIN_SECRET=0123456789abcdef TF_CONFIG="{\"cluster\": {\"chief\": [\"n1:2222\"], \"worker\": [\"n2:2222\"], \"ps\": [\"n3:2222\"]}, \"task\": {\"type\": \"$task\", \"index\": 0}}" $job --sync
    done
    ended 0 100 0 1 2 && same 2 out.0 ps
}
no_memory() {  # two processes wish to meet in memory that they do not share
    export DTRAIN_TRANSPORT=shm DTRAIN_WORLD=2 DTRAIN_CHIEF=n1:2222 DTRAIN_INSECURE=1
    for i in 1 2; do start $((i - 1)) timeout -k 5 60 ./on.sh $i env DTRAIN_RANK=$((i - 1)) $job; done
    ended 78 20 0 1 && grep -q "DTRAIN_TRANSPORT=shm: the ranks do not find the same memory" err.0
}
by_agents() {
    for i in 1 2 3; do start $((i - 1)) timeout -k 5 100 ./on.sh $i env DTRAIN_SECRET=0123456789abcdef NODES=3 NODE=$((i - 1)) MASTER=n1 TORCHRUN="$TORCHRUN" "$root/examples/launch/torchrun.sh" 1 $job; done
    ended 0 100 0 1 2 && same 3 out.0
}
by_store() {  # the agents find each other on the last host; rank 0 is on the first, and says so in the store of its agent
    for i in 1 2 3; do start $((i - 1)) timeout -k 5 100 ./on.sh $i env DTRAIN_SECRET=0123456789abcdef "$TORCHRUN" --no-python --nnodes 3 --nproc_per_node 1 --rdzv-backend c10d --rdzv-endpoint n3:29400 --rdzv-id test $job; done
    ended 0 100 0 1 2 && cat out.0 out.1 out.2 >all && same 3 all
}
own_name() {  # a host may have its own name at 127.0.1.1; two of the processes are on the first
    sed 's/^10.77.0.1 n1/127.0.1.1 n1/' hosts.txt >hosts1.txt
    for rank in 0 1 2; do
        i=$((rank / 2 + 1))
        start $rank timeout -k 5 60 ./on.sh $i sh -c 'if [ $0 = 1 ]; then mount --bind hosts1.txt /etc/hosts; fi; exec "$@"' $i \
            env DTRAIN_INSECURE=1 DTRAIN_JOIN=10 DTRAIN_RANK=$rank DTRAIN_WORLD=3 DTRAIN_CHIEF=n1:2222 $job
    done
    ended 0 60 0 1 2 && same 3 out.0
}
own_address() {  # rank 0's host calls itself 127.0.0.1, and there is nobody else to ask
    sed 's/^10.77.0.1 n1/127.0.0.1 n1/' hosts.txt >hosts2.txt
    under 3 ./on.sh 1 "$MPIEXEC" -launcher rsh -launcher-exec "$scratch/rsh.sh" -hosts n1,n2,n3 -np 3 \
        sh -c 'if [ "$(hostname)" = n1 ]; then mount --bind hosts2.txt /etc/hosts; fi; exec "$@"' sh
}
strangers() {  # without the word that the network is one's own
    says 78 DTRAIN_INSECURE=1 ./on.sh 1 env DTRAIN_RANK=0 DTRAIN_WORLD=3 DTRAIN_CHIEF=n1:2222 $job
}
lost_link() {  # two hosts do not hear of each other any more: nobody trains on without the others
    export DTRAIN_WORLD=3 DTRAIN_CHIEF=n1:2222 DTRAIN_INSECURE=1 DTRAIN_DEAD=3
    for i in 1 2 3; do start $((i - 1)) ./on.sh $i env DTRAIN_RANK=$((i - 1)) $endless; done
    soon 60 grep -q 'epoch 1/' out.0 || return 1
    echo "cut 1 3" >control
    ended 143 6 0 1 2
    code=$?
    echo "join 1 3" >control
    return $code
}
by_ssh() {
    under 3 env SSH="$scratch/rsh.sh" FOLDER="$scratch" "$root/examples/launch/ssh.sh" "n1 n2 n3" || return 1
    ls train-* 2>/dev/null && return 1
    start 0 env SSH="$scratch/rsh.sh" FOLDER="$scratch" "$root/examples/launch/ssh.sh" "n1 n2 n3" $endless
    soon 40 grep -q 'epoch 1/' out.0 || return 1
    kill "$(cat pid.0)"
    nobody() { ! ps -A -o args= | grep -q "^$scratch/train-"; }
    ended 143 2 0 && soon 5 nobody
    code=$?
    rm -f train-*
    return $code
}
pods() {  # the shell line of the StatefulSet, with the names that its pods have
    "$PYTHON" -c 'import sys, yaml
pod = list(yaml.safe_load_all(open(sys.argv[1])))[1]["spec"]["template"]["spec"]["containers"][0]
open("pod.sh", "w").write("".join("export %s=%s\n" % (e["name"], e.get("value", "0123456789abcdef")) for e in pod["env"]) + pod["args"][0])' "$root/examples/launch/statefulset.yaml" || return 1
    sed 's/--epochs 5/--epochs 2/' pod.sh >pod2.sh
    for i in 1 2 3; do start $((i - 1)) ./on.sh $i env HOSTNAME=dtrain-$((i - 1)) PATH="$scratch:$PATH" sh pod2.sh; done
    soon 60 grep -q '"succeeded"' out.0
    cat out.0 err.*
    grep -qF "\"parameters_crc32c\": $(cat crc.6)," out.0 || return 1
    sleep 0.5
    started | tr '\n' ' ' | grep -q '0 1 2' || { echo "a pod has ended"; return 1; }
    kill $(cat pid.*)
    ended 143 2 0 1 2
}
tfjob() {  # the pods of the TFJob, with its flags, and the TF_CONFIG that the operator makes for each
    "$PYTHON" -c 'import json, sys, yaml
job = yaml.safe_load(open(sys.argv[1]))
specs = job["spec"]["tfReplicaSpecs"]
cluster, tasks = {}, []
for role, spec in specs.items():
    pod = spec["template"]["spec"]["containers"][0]
    port = [p["containerPort"] for p in pod["ports"] if p["name"] == "tfjob-port"][0]
    cluster[role.lower()] = ["%s-%s-%d.space.svc:%d" % (job["metadata"]["name"], role.lower(), i, port) for i in range(spec["replicas"])]
    tasks += [(role.lower(), i, pod) for i in range(spec["replicas"])]
for i, (role, index, pod) in enumerate(tasks):
    config = {"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"}
    variables = "".join("export %s=%s\n" % (e["name"], e.get("value", "0123456789abcdef")) for e in pod["env"])
    open("pod%d.sh" % (i + 1), "w").write("export TF_CONFIG=\x27%s\x27\n%sexec \"$1\" %s --epochs 2\n" % (json.dumps(config), variables, " ".join(pod["args"])))' "$root/examples/launch/tfjob.yaml" || return 1
    for i in 1 2 3 4; do start $((i - 1)) timeout -k 5 100 ./on.sh $i sh pod$i.sh "$program"; done
    ended 0 100 0 1 2 3 && cat out.0 && grep -q '"processes": 4,' out.0 && grep -qF "\"parameters_crc32c\": $(cat crc.8)," out.0
}
if [ "$(id -u)" != 0 ] || [ ! -c /dev/net/tun ] || ! command -v ip >/dev/null || ! command -v nsenter >/dev/null; then
    skip "three hosts" "needs root, ip, nsenter and /dev/net/tun"
elif ! hosts_up >hosts.out 2>&1; then
    skip "three hosts" "their network does not come up: $(tail -n 1 hosts.out)"
else
    check "three hosts, DTRAIN_*" by_rank
    check "three hosts, DTRAIN_RDZV" by_file
    check "three hosts, TF_CONFIG" by_pod
    check "three hosts, parameter server" hosts_served
    check "three hosts, nobody said that it is safe" strangers
    check "three hosts, DTRAIN_TRANSPORT=shm" no_memory
    check "three hosts, 127.0.1.1" own_name
    check "three hosts, a link is lost" lost_link
    check "three hosts, examples/launch/ssh.sh" by_ssh
    if "$PYTHON" -c 'import yaml' 2>/dev/null; then
        check "three hosts, examples/launch/statefulset.yaml" pods
        check "four hosts, examples/launch/tfjob.yaml" tfjob
    else
        skip "three hosts, examples/launch/*.yaml" "no $PYTHON with yaml"
    fi
    if command -v "$MPIRUN" >/dev/null; then
        check "three hosts, Open MPI" under 3 ./on.sh 1 env HOSTS=n1,n2,n3 MPIRUN="$MPIRUN --mca plm_rsh_agent $scratch/rsh.sh" "$root/examples/launch/mpirun.sh" 3
    fi
    if command -v "$MPIEXEC" >/dev/null; then
        check "three hosts, MPICH" under 3 ./on.sh 1 env HOSTS=n1,n2,n3 MPIRUN="$MPIEXEC -launcher rsh -launcher-exec $scratch/rsh.sh" "$root/examples/launch/mpirun.sh" 3
        check "three hosts, MPICH, nobody says anything" under 3 ./on.sh 1 "$MPIEXEC" -launcher rsh -launcher-exec "$scratch/rsh.sh" -hosts n1,n2,n3 -np 3
        check "three hosts, MPICH, nobody says anything, parameter server" served 2 ./on.sh 1 "$MPIEXEC" -launcher rsh -launcher-exec "$scratch/rsh.sh" -hosts n1,n2,n3 -np 3
        check "three hosts, MPICH, 127.0.0.1" own_address
        check "three hosts, MPICH, DTRAIN_RDZV" under 3 env DTRAIN_SECRET=0123456789abcdef DTRAIN_RDZV="file:$scratch/meet" \
            ./on.sh 1 "$MPIEXEC" -launcher rsh -launcher-exec "$scratch/rsh.sh" -hosts n1,n2,n3 -genvlist DTRAIN_RDZV,DTRAIN_SECRET -np 3
    fi
    if command -v "$TORCHRUN" >/dev/null; then
        check "three hosts, torchrun" by_agents
        check "three hosts, torchrun, c10d" by_store
    fi
    if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
        skip "three hosts, srun" "no slurmctld, slurmd and munged"
    elif ! slurm_up ./on.sh "n1(10.77.0.1)" "NodeAddr=10.77.0.[1-3]"; then
        skip "three hosts, srun" "its nodes do not come up: see $scratch/slurm"
    else
        check "three hosts, srun" under 3 env DTRAIN_SECRET=0123456789abcdef ./on.sh 1 srun -N 3 -n 3
        check "three hosts, srun, parameter server" served 2 env DTRAIN_SECRET=0123456789abcdef ./on.sh 1 srun -N 3 -n 3
    fi
    slurm_down
fi
hosts_down

# ---- processes that die, stop, or are told to end

killed() {  # RANK: the others end within two seconds, and say the same
    training 3 || return 1
    kill -9 "$(cat pid.$1)"
    others=$(echo 0 1 2 | sed "s/$1//")
    ended 143 2 $others || return 1
    set -- $1 $others
    grep -q "rank $1 .* is lost" err.$2 && cmp err.$2 err.$3
}
stopped() {  # RANK: and one that wakes up finds the others gone
    export DTRAIN_DEAD=2
    training 3 || return 1
    kill -STOP "$(cat pid.$1)"
    others=$(echo 0 1 2 | sed "s/$1//")
    ended 143 4 $others || return 1
    set -- $1 $others
    grep -q "rank $1 .* is lost: it is silent" err.$2 && cmp err.$2 err.$3 || return 1
    kill -CONT "$(cat pid.$1)"
    ended 143 2 $1
}
for r in 0 1 2; do check "rank $r of 3 is killed" killed $r; done
for r in 0 1 2; do check "rank $r of 3 is stopped" stopped $r; done
terminated() { training 3 && kill "$(cat pid.$1)" && ended 143 3 0 1 2 && grep -q "^stopped by signal\|^stopped" out.0; }
for r in 0 2; do check "SIGTERM to rank $r of 3" terminated $r; done
waits() {  # RANK: SIGTERM to one that waits for the others
    next_port
    start $1 env DTRAIN_RANK=$1 DTRAIN_WORLD=3 DTRAIN_CHIEF=127.0.0.1:$port $job
    sleep 0.5
    kill "$(cat pid.$1)"
    ended 143 1 $1
}
for r in 0 1; do check "SIGTERM to rank $r while it waits for the others" waits $r; done
again() {  # one that dies while all gather, and is started again
    next_port
    export DTRAIN_WORLD=3 DTRAIN_CHIEF=127.0.0.1:$port DTRAIN_JOIN=20
    start 0 env DTRAIN_RANK=0 $job
    start 1 env DTRAIN_RANK=1 $job
    sleep 0.5
    kill -9 "$(cat pid.1)"
    soon 2 over 1
    [ "$1" = before ] || start 2 env DTRAIN_RANK=2 $job
    sleep 0.5
    start 1 env DTRAIN_RANK=1 $job
    sleep 0.5
    [ "$1" != before ] || start 2 env DTRAIN_RANK=2 $job
    ended 0 30 0 1 2 && same 3 out.0
}
check "a rank dies while all gather" again before
check "a rank dies before the last one comes" again after
family() {  # SIGTERM to the parent of a cluster: all end
    start 0 $endless --workers 2 --json
    soon 20 grep -q 'epoch 1/' out.0 || return 1
    children=$(ps -A -o ppid=,pid= | awk -v parent="$(cat pid.0)" '$1 == parent { print $2 }')
    kill "$(cat pid.0)"
    ended 143 3 0 || return 1
    tail -n 1 out.0
    tail -n 1 out.0 | grep -q '^{"status": "stopped"' || return 1
    [ "$(echo $children | wc -w)" = 3 ] || return 1
    for child in $children; do kill -0 $child 2>/dev/null && { echo "process $child lives"; kill -9 $child; return 1; }; done
    return 0
}
check "SIGTERM to the parent of --workers 2" family
frozen() {  # RANK: one of --workers 2 is stopped: the others notice it, and the parent ends it
    export DTRAIN_DEAD=2
    start 0 $endless --workers 2
    soon 20 grep -q 'epoch 1/' out.0 || return 1
    children=$(ps -A -o ppid=,pid= | awk -v parent="$(cat pid.0)" '$1 == parent { print $2 }' | sort -n)
    [ "$(echo $children | wc -w)" = 3 ] || return 1
    kill -STOP "$(echo $children | cut -d ' ' -f $(($1 + 1)))"
    [ $1 = 0 ] && expected=137 || expected=143
    ended $expected 8 0 || return 1
    for child in $children; do kill -0 $child 2>/dev/null && { echo "process $child lives"; kill -9 $child; return 1; }; done
    return 0
}
for r in 0 2; do check "rank $r of --workers 2 is stopped" frozen $r; done
told() {  # SIGTERM to a worker: the parameter server is to be started again, too
    next_port
    export DTRAIN_WORLD=2 DTRAIN_SERVERS=1 DTRAIN_CHIEF=127.0.0.1:$port
    start 2 env DTRAIN_RANK=0 DTRAIN_ROLE=ps $endless
    for r in 0 1; do start $r env DTRAIN_RANK=$r $endless; done
    soon 20 grep -q 'epoch 1/' out.0 || return 1
    kill "$(cat pid.$1)"
    ended 143 5 0 1 2
}
for r in 0 1; do check "SIGTERM to rank $r of 2 with a parameter server" told $r; done
late() {  # one that is stopped while all gather does not wait for ever when it wakes up
    next_port
    export DTRAIN_WORLD=3 DTRAIN_CHIEF=127.0.0.1:$port DTRAIN_JOIN=60 DTRAIN_DEAD=2
    for r in 0 1; do start $r env DTRAIN_RANK=$r $job; done
    sleep 1
    kill -STOP "$(cat pid.1)"
    start 2 env DTRAIN_RANK=2 $job
    ended 143 10 0 2 || return 1
    kill -CONT "$(cat pid.1)"
    ended 143 8 1
}
check "a rank is stopped while all gather" late

# ---- what is missing or taken is named

other() {  # what differs is named, and is the command line's fault
    next_port
    export DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:$port
    start 0 env DTRAIN_RANK=0 $job
    start 1 env DTRAIN_RANK=1 $job "$@"
    ended 78 10 0 1 && cat err.1 && grep -q "rank 1 differs from rank 0 in" err.0
}
check "another batch" other --batch 64
check "another learning rate" other --learning-rate 0.02
check "the source of rank and world is told" says 143 "2 processes by DTRAIN: DTRAIN_RANK, DTRAIN_WORLD, rank 0 at 127.0.0.1:" env DTRAIN_JOIN=1 DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:2222 $program --data digits --model mlp

half() { name=$1; shift; check "$(echo "$@") without $name" says 78 "$name is not set" env "$@" $job; }
half DTRAIN_WORLD DTRAIN_RANK=0 DTRAIN_CHIEF=127.0.0.1:2222
half DTRAIN_RANK DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:2222
half WORLD_SIZE RANK=0 MASTER_ADDR=127.0.0.1
half RANK WORLD_SIZE=2 MASTER_ADDR=127.0.0.1
half PET_NNODES PET_NODE_RANK=0
half PET_NODE_RANK PET_NNODES=2
half OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK=0
half OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE=2
half PMI_SIZE PMI_RANK=0
half PMI_RANK PMI_SIZE=2
check "no address of rank 0" says 78 "DTRAIN_CHIEF=host:port" env DTRAIN_RANK=0 DTRAIN_WORLD=2 $job
check "no task in TF_CONFIG" says 78 '"task"' env TF_CONFIG='{"cluster": {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}}' $job
for value in soon 0 -1; do
    for name in DTRAIN_JOIN DTRAIN_DEAD; do check "$name=$value" says 78 "$name is" env $name=$value DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:2222 $job; done
done
check "DTRAIN_INSECURE=0" says 78 "DTRAIN_INSECURE=1" env DTRAIN_INSECURE=0 DTRAIN_JOIN=1 DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=10.77.0.1:23222 $job
check "a rank beyond the world" says 78 "rank 2 of 2" env DTRAIN_RANK=2 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:2222 $job
check "--workers in a cluster" says 78 "leave out one of the two" env DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:2222 $job --workers 2
taken() {  # two that want the same port
    next_port
    start 0 env DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:$port $job
    sleep 0.5
    says 78 "port $port" env DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:$port $job || return 1
    says 78 "port $port" env TF_CONFIG="{\"cluster\": {\"worker\": [\"127.0.0.1:$((port + 1))\", \"127.0.0.1:$port\"]}, \"task\": {\"type\": \"worker\", \"index\": 1}}" $job
}
check "a port in use" taken
missing() { next_port; says 143 "have not come: 1" env DTRAIN_JOIN=1 DTRAIN_RANK=0 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:$port $job; }
check "a rank that never comes" missing
for r in 0 1; do check "--print-cluster, rank $r" says 0 "rank = $r" env DTRAIN_RANK=$r DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:2222 $program --print-cluster; done

# ---- examples/launch

for file in "$root"/examples/launch/*.sh "$root"/examples/launch/*.sbatch; do check "${file##*/} is shell" sh -n "$file"; done
if "$PYTHON" -c 'import yaml' 2>/dev/null; then
    parses() { "$PYTHON" -c 'import sys, yaml; assert all(d["kind"] and d["metadata"]["name"] for d in yaml.safe_load_all(open(sys.argv[1])))' "$1"; }
    for file in "$root"/examples/launch/*.yaml; do check "${file##*/} is YAML" parses "$file"; done
else
    skip "examples/launch/*.yaml" "no $PYTHON with yaml"
fi
if "$PYTHON" -c 'import yaml, kubernetes_validate' 2>/dev/null; then
    valid() {  # every object, and every template of a pod in an object that Kubernetes does not know itself
        "$PYTHON" -c 'import sys, yaml, kubernetes_validate as k
def pods(v):
    if isinstance(v, dict):
        if "template" in v: yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": v["template"]}
        for e in v.values(): yield from pods(e)
for d in yaml.safe_load_all(open(sys.argv[1])):
    for e in [d] if d["apiVersion"] in ("v1", "apps/v1") else list(pods(d["spec"])): k.validate(e, k.latest_version(), strict=True)' "$1"
    }
    for file in "$root"/examples/launch/*.yaml; do check "${file##*/} is what Kubernetes takes" valid "$file"; done
else
    skip "examples/launch/*.yaml are what Kubernetes takes" "no $PYTHON with yaml and kubernetes_validate"
fi

image() {  # what the Dockerfile builds needs nothing beside it; musl-gcc is what gcc is in its image
    build=$(sed -n 's/^RUN gcc \(.*\) "$SOURCE" -o \/train \(.*\)/\1 XX \2/p' "$root/examples/launch/Dockerfile")
    [ -n "$build" ] || { echo "no line of the Dockerfile compiles"; return 1; }
    mkdir -p image
    (cd "$root" && musl-gcc $(echo "$build" | sed "s:XX:examples/train.c -o $scratch/image/train:")) && ls -l image || return 1
    timeout 60 chroot image /train --data digits --model mlp --epochs 2 --replicas 2 --json >said
    tail -n 1 said
    grep -qF '"eval_accuracy"' said && [ "$(wc -c <image/train)" -lt 1000000 ]
}
if [ "$(id -u)" = 0 ] && command -v musl-gcc >/dev/null; then check "Dockerfile: the program alone" image; else skip "Dockerfile: the program alone" "needs root and musl-gcc"; fi

unit() {  # the service as systemd runs it: it serves one job after another, and ends for good when its settings are wrong
    file=$root/examples/launch/parameter_server.service
    sed "s:^ExecStart=.*:ExecStart=$scratch/parameter_server:" "$file" >dtrain.service
    if command -v systemd-analyze >/dev/null; then systemd-analyze verify ./dtrain.service || return 1; fi
    grep -qx 'Restart=always' "$file" && grep -qx 'RestartPreventExitStatus=78' "$file" || return 1
    next_port
    echo 0123456789abcdef >unit.secret
    printf 'DTRAIN_ROLE=ps\nDTRAIN_RANK=0\nDTRAIN_SERVERS=1\nDTRAIN_WORLD=2\nDTRAIN_CHIEF=127.0.0.1:%s\n' $port >unit.env
    grep -o 'DTRAIN_[A-Z]*=' unit.env >named
    sed -n 's/^#  *\(DTRAIN_[A-Z]*=\).*/\1/p' "$file" | cmp - named || { echo "the variables of the example are others"; return 1; }
    cat >unit.sh <<'Y'
while :; do
    env $(cat unit.env) "$(sed -n 's/^Environment=//p' dtrain.service | sed "s:%d/secret:unit.secret:")" "$(sed -n 's/^ExecStart=//p' dtrain.service)"
    status=$?
    echo "served: $status"
    [ $status != 78 ] || exit 78
done
Y
    start 9 timeout -k 5 100 sh unit.sh
    for turn in 1 2; do
        for rank in 0 1; do start $rank env DTRAIN_SECRET_FILE=unit.secret DTRAIN_SERVERS=1 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:$port DTRAIN_RANK=$rank $job --sync; done
        ended 0 30 0 1 && same 2 out.0 ps || return 1
    done
    soon 2 grep -q 'served: 0' out.9 && sed -i 's/DTRAIN_WORLD=2/DTRAIN_WORLD=x/' unit.env || return 1
    for rank in 0 1; do start $rank env DTRAIN_SECRET_FILE=unit.secret DTRAIN_SERVERS=1 DTRAIN_WORLD=2 DTRAIN_CHIEF=127.0.0.1:$port DTRAIN_RANK=$rank $job --sync; done
    ended 0 30 0 1 && ended 78 5 9
    code=$?
    cat out.9
    return $code
}
if $CC $CFLAGS "$root/examples/parameter_server.c" -o parameter_server $LDFLAGS $LDLIBS; then check "parameter_server.service" unit; else check "examples/parameter_server.c" false; fi
finish
