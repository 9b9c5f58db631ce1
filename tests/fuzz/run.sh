#!/bin/sh
# run.sh [TARGET…] - build and run the fuzz targets of this folder, all if none is named: clang and its libFuzzer
#
#   SECONDS_EACH  time for each, 60       JOBS             how many run at once, one per core
#   CLANG         the compiler            DTRAIN_FORMATS   a folder with more .safetensors, .npy, .csv … to begin with
#
# .build/fuzz/TARGET keeps the program, the log, the input that it failed on, and in corpus/ every input that was
# worth keeping: a later run begins where this one ended, and with what failed. Small files of each format are there from the start.
. "$(dirname "$0")/../lib.sh"
: "${CLANG:=clang}" "${SECONDS_EACH:=60}" "${JOBS:=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}" "${DTRAIN_FORMATS:=}"
flags="-g -O1 -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all"
mkdir -p "$BUILD/fuzz"
fuzz=$(cd "$BUILD/fuzz" && pwd)
export CLANG SECONDS_EACH flags fuzz LDLIBS

targets=
if [ $# = 0 ]; then set -- tests/fuzz/*.c; fi
for target; do
    target=$(basename "$target" .c)
    case "fuzz $target" in *"$ONLY"*) targets="$targets $target" ;; esac
done

printf '#include <stddef.h>\nint LLVMFuzzerTestOneInput(const unsigned char *p, size_t n) { return p && n > 9; }\n' >"$scratch/probe.c"
if ! $CLANG $flags "$scratch/probe.c" -o "$scratch/probe" 2>/dev/null; then
    for target in $targets; do skip "fuzz $target" "no $CLANG with libFuzzer and its sanitizers: CLANG=... names another"; done
    finish
fi

# ---- what to begin with. seed NAME: standard input becomes a file of $target's seeds

seed() { cat >"$fuzz/$target/seeds/$1"; }

le16() { printf "\\$(printf %03o $(($1 % 256)))\\$(printf %03o $(($1 / 256)))"; }
npy() { printf '\223NUMPY\1\0'; le16 118; printf "%-117s\n" "{'descr': '$1', 'fortran_order': False, 'shape': ($2), }"; printf "$3"; }  # 128 bytes, and the values

seeds_of_npy() {
    { le16 65535; npy '<f4' '2, 3' '\0\0\200\077\0\0\0\100\0\0\100\100\0\0\200\100\0\0\240\100\0\0\300\100'; } | seed floats
    { le16 130; npy '|u1' '2,' '\0\1'; npy '|u1' '2, 2, 2, 1' '\0\1\2\3\4\5\6\377'; } | seed labelled
    { le16 144; npy '<i8' '2,' '\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0'; npy '<f2' '2, 2' '\0\74\0\100\0\102\0\104'; } | seed converted
    { le16 130; npy '|b1' '2,' '\1\0'; npy '>i2' '2, 1' '\0\1\1\0'; } | seed other-order
}

seeds_of_idx() {
    { printf '\12\0\0\10\1\0\0\0\2\3\11\0\0\10\3\0\0\0\2\0\0\0\2\0\0\0\2'; printf '12345678'; } | seed labelled
    { printf '\377\0\0\10\2\0\0\0\3\0\0\0\2'; printf '123456'; } | seed unlabelled
}

seeds_of_cifar() {
    printf '\1\0\0\3a picture' | seed one
    printf '\2\0\2\11\0\1\2\3\4\5\6\7\10' | seed several
}

bmp() {  # 2 x 1 pixels of 24 bits
    printf 'BM\76\0\0\0\0\0\0\0\66\0\0\0\50\0\0\0\2\0\0\0\1\0\0\0\1\0\30\0\0\0\0\0\10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0abcdef\0\0'
}
seeds_of_images() {
    printf '\377\377P5 2 2 255\nabcd' | seed grey
    printf '\377\377P6\n# colours\n2 1\n255\nabcdef' | seed colours
    printf '\377\377P2 2 1 9\n3 4\n' | seed text
    printf '\377\377P5 1 1 65535\nab' | seed wide
    { printf '\377\377'; bmp; } | seed bmp
    { printf '\76\0'; bmp; printf 'P6 2 1 255\nabcdef'; } | seed both
}

seeds_of_safetensors() {
    printf '\122{"dense_1.weight":{"dtype":"F32","shape":[3,8],"data_offsets":[0,96]},"dense_1.bias":{"dtype":"F32","shape":[3],"data_offsets":[96,108]}}' | seed header
    printf '\122{"__metadata__":{"format":"pt"},"dense_1.bias":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},"dense_1.weight":{"dtype":"I8","shape":[102],"data_offsets":[6,108]}}' | seed types
    printf '\1{}' | seed empty
    printf '\2\10\0\1\60\0\40' | seed changes
    [ -z "$DTRAIN_FORMATS" ] || find "$DTRAIN_FORMATS" -name '*.safetensors' -size -64k | while read -r file; do { printf '\0'; cat "$file"; } | seed "whole-$(basename "$file")"; done
}

seeds_of_csv() {
    printf '\0\0\0\0\0''1,2,0\n3,4,1\n' | seed numbers
    printf '\1\0\0\0''age standardise, city onehot, zip hash 4, income bucket 3, city*age cross 8\0age,city,zip,income,bought\n25,"Bonn, Rhein",53111,1e3,yes\r\n?,Ulm,89073,2000.5,no\n41,"a ""b""",1,-3,no\n' | seed columns
    printf '\203\0\0\0''1 standardise\0''1;2;a\n3;4;b\n5;?;c\n' | seed saved
    printf '\20\0\0\0[["standardise",[0],2,0.5],["bucket",[1],1,2.5],["onehot",[2],"a","b"],["cross",[0,2],8],["label",[3],"no","yes"]]\0''1,2,a,no\n3,4,b,yes\n' | seed fitted
    printf '\12\377\10\0\0left out\n1\t2\n3\t4\n5\t6\n\1left out\n7\t8\n' | seed files
    printf '\0\0\0\11\0''1,2,0\n3,4,1\n5,6,0\n7,8,1\n' | seed fold
    printf '\300\0\0\203''2 onehot\0''1,u,0\n3,v,1\n5,u,0\n7,u,1\n' | seed part
    printf '\0\36\300\1\1\3abc\0\77\200\0\0\0\5hello\2\100\111\17\333' | seed table
    printf '\1\77\300\2\1\307abcdefgh\1\300def\7abc\6\1\1qqq' | seed words
    printf '\6\0\0\0''1 hash 64, 1 number\0''?,2,0\n,4,1\n' | seed twice
    printf '\10\0\0\0''1 onehot\0\351,1,0\n\350,2,1\n' | seed latin-1
    printf '\10\0\0\0''1 onehot\0%0127d,1,0\nb,2,1\n' 0 | seed longest
    printf '\20\0\0\0[["number",[0],1],["number",[1],1]]\0''1,2,0\n3,4,1\n' | seed no-label
    [ -z "$DTRAIN_FORMATS" ] || find "$DTRAIN_FORMATS" -name '*.csv' -size -16k | while read -r file; do { printf '\0\0\0\0\0'; cat "$file"; } | seed "whole-$(basename "$file")"; done
}

seeds_of_json() {
    printf '{"a": [1, -0.5e+3, true, false, null, "\\u00e9\\ud83d\\ude00\\n\\"\\\\\\/\\b\\f\\r\\t"], "b": {}, "": []}' | seed object
    printf ' [[[[0]], 1E-7, 18446744073709551615]] ' | seed lists
    printf '"caf\303\251 \342\202\254 \360\237\230\200"' | seed string
    printf -- '-12.75e-3' | seed number
    printf '18446744073709551616' | seed large
    { printf '%64s' '' | tr ' ' '['; printf '%64s' '' | tr ' ' ']'; } | seed deep
    { printf '%65s' '' | tr ' ' '['; printf '%65s' '' | tr ' ' ']'; } | seed deeper
    [ -z "$DTRAIN_FORMATS" ] || find "$DTRAIN_FORMATS" -name '*.json' -size -8k | while read -r file; do seed "whole-$(basename "$file")" <"$file"; done
}

seeds_of_options() {
    printf '\0--strategy=MirroredStrategy\n--replicas\n4\n--batch=64\n--epochs\n3\n--learning-rate\n0.05\n--optimizer=adamw\n--quiet\n--seed=7' | seed flags
    printf '\0--momentum=-1\n--schedule=cosine\n--freeze\nenc*,*.bias\n--data\nthere\n--model=m\n--no-shuffle\n--flip=0\n--json\n--replica-batch=8' | seed more
    printf '\0--warmup-steps=5\n--total-steps=99\n--final-rate=1e-5\n--decay-steps=2\n--decay-factor=.5\n--label-smoothing=0.1\n--clip-norm=1\n--weight-decay=0' | seed schedule
    printf '\0--beta1=0.8\n--beta2=0.9\n--alpha=0.7\n--epsilon=1e-7\n--accumulate=2\n--no-decay=*.bias\n--crop=4\n--patience=2\n--steps=9\n--save=a\n--load=b\n--profile\n--print-options\n--no-nan-guard' | seed others
    printf '\0--help' | seed help
    printf '\0--version' | seed version
    printf '\1learning-rate\n0.01' | seed option
    printf '\1quiet' | seed switch
    printf '\0023.14159e-2' | seed read
    printf '\0029007199254740993' | seed whole
    printf '\002-1' | seed off
    printf '\002179769313486231580793728971405301e270' | seed largest
    printf '\002.49406564584124654e-323' | seed smallest
    printf '\3\20\100\232\231\231\231\231\231\271\77' | seed write
    printf '\3\205\4\232\231\231\231\231\231\271\77' | seed fixed
}

seeds_of_cluster() {
    printf '\0{"cluster": {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"]}, "task": {"type": "worker", "index": 1}}' | seed tf-config
    printf '\0{"cluster": {"master": ["a:1"], "worker": {"0": "b:2", "1": "c:3"}}, "task": {"type": "worker", "index": "1", "trial": ""}, "environment": "cloud", "rpc_layer": "grpc"}' | seed object
    printf '\0{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}, "task": {"type": "workerpool1", "index": 0}}' | seed pools
    printf '\0{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "evaluator", "index": 0}}' | seed others
    printf '\0{}' | seed empty
    printf '\1RANK=1\nWORLD_SIZE=2\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=::1\nMASTER_PORT=29500\nTORCHELASTIC_USE_AGENT_STORE=True\nTORCHELASTIC_RUN_ID=x\n' | seed torchrun
    printf '\1DTRAIN_RANK=0\nDTRAIN_WORLD=3\nDTRAIN_CHIEF=h:5\nDTRAIN_PORT=6\nDTRAIN_BIND=h\nDTRAIN_INSECURE=1\nDTRAIN_JOIN=2\nDTRAIN_DEAD=3\n' | seed own
    printf '\1SLURM_PROCID=1\nSLURM_STEP_NUM_TASKS=4\nSLURM_STEP_TASKS_PER_NODE=2(x2)\nSLURM_STEP_NODELIST=n[1-2]\nSLURM_JOB_ID=77\nSLURM_STEP_ID=0\n' | seed slurm
    printf '\1PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALNRANKS=2\nPMI_JOBID=a\nOMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nPET_NODE_RANK=1\nPET_NNODES=2\nPET_MASTER_ADDR=h\nPET_MASTER_PORT=1\n' | seed mpi
    printf '\1TF_CONFIG={"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 0}}\nDTRAIN_CHIEF=z:9\n' | seed variable
    printf '\2\377n[1-3,05-07],gpu9' | seed hosts
    printf '\2\10rack[00-1]n[1-2]' | seed brackets
    printf '\3\377[fe80::1%%eth0]:65535' | seed v6
    printf '\3\12host.name:80' | seed address
}

seeds_of_frames() {
    printf '\0\11\0\377\0\0\0\11\0\1\0\0\44\0\2\0abcdefghabcdefghabcdefghabcdefghabcd' | seed short-sum
    printf '\0\50\43\100\0\0\0\50\43\1\270\13\300\56\2\100\1\0\0\50\43\1\160\27\300\56\2\100' | seed long-sum
    printf '\2\11\0\377\1\2\0\11\0\1\6\0\14\0\2\0abcdabcdabcd\2\0\0\0\0\0\0\0\0\0\2\0' | seed gather
    printf '\23\11\0\377\1\3\0\11\0\1\0\0\44\0\0\0abcdefghabcdefghabcdefghabcdefghabcd' | seed broadcast
    printf '\4\0\0\377\0\4\0\0\0\1\0\0\0\0\2\0\0\4\0\0\0\2\0\0\0\0\2\0' | seed barriers
    printf '\4\0\0\3\3\0\13\0\0\0\0\0\5\0\2\0cause\4\0\0\0\0\0\0\0\0\0\2\0' | seed abort
    printf '\4\0\0\377\5\0\0\0\0\0\0\0\0\20\0\100' | seed roster
    printf '\4\0\0\377\0\4\0\0\0\1\0\0\0\0\2\2' | seed huge
    printf '\44\0\0\377DTR1\1no frame of ours' | seed raw
}

seeds_of_server() {
    printf '\377\1\0\0\2\0\0\10\5\0\0\0\0\0\1\0\0\0\377\0\0\0\0\0\200\77\200\0\2\0\0\10\5\0\0\0\0\0\201\0\0\0\377\0\0\0\0\0\200\77' | seed pushes
    printf '\7\41\0\0\2\0\0\10\5\0\0\0\0\0\1\0\0\0\377\0\0\0\0\0\200\77\200\0\2\0\0\10\5\0\0\0\0\0\201\0\0\0\377\0\0\0\0\0\200\77' | seed together
    printf '\377\0\0\2\4\0\4\4\1\0\144\5\2\3\1\0\0\0\377\0\0\0\0\0\200\77\0\3\0\0\0\0\2\0\0\0\0\0\1\0\0\0\377\0\0\0\0\0\200\77\0\1\0\0\12\0\3\0\0\0\0\0\200\1\0\0\12\0\3\0\0\0\0\0' | seed setup
    printf '\377\1\200\0\2\0\0\10\5\0\0\0\0\0\201\0\0\0\3\0\0\0\0\0\200\77\0\2\4\0\0\0\7\0\310\4\1\3' | seed meanwhile
    printf '\377\1\4\0\0\0\0\0\0\0\0\0\0\0\200\1\0\0\12\0\3\0\0\0\0\0\204\0\0\0\0\0\0\0\0\0\0\0' | seed leave
}

# ---- each target in a process of its own, at most JOBS at a time; what it leaves is judged afterwards

for target in $targets; do
    rm -rf "$fuzz/$target/seeds" "$fuzz/$target/log" "$fuzz/$target/status"
    mkdir -p "$fuzz/$target/corpus" "$fuzz/$target/seeds"
    ! command -v "seeds_of_$target" >/dev/null || "seeds_of_$target"
    for input in "$fuzz/$target"/failed-*; do [ ! -f "$input" ] || mv "$input" "$fuzz/$target/seeds"; done
done

printf '%s\n' $targets | xargs -P "$JOBS" -I '{}' sh -c '
    cd "$fuzz/$1" && {
        $CLANG $flags "$2/tests/fuzz/$1.c" -o fuzz $LDLIBS &&
            ./fuzz -max_total_time="$SECONDS_EACH" -timeout=30 -print_final_stats=1 -artifact_prefix="$fuzz/$1/failed-" corpus seeds
    } >log 2>&1
    echo $? >status' sh '{}' "$root"

# The end of a log is the report; what it failed on stands in a line before it.
result() {
    [ "$(cat "$fuzz/$1/status")" = 0 ] && return 0
    grep -a -m 1 -e '^not so:' -e 'SUMMARY:' -e ' error: ' "$fuzz/$1/log"
    grep -a -e 'Test unit written to' "$fuzz/$1/log" || echo "it ended with status $(cat "$fuzz/$1/status")"
    echo "the end of $fuzz/$1/log:"
    tail -n 40 "$fuzz/$1/log"
    return 1
}
for target in $targets; do
    check "fuzz $target, $SECONDS_EACH s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$fuzz/$target/log") inputs" result "$target"
done
finish
