#!/bin/sh
# accuracy.sh - the models of the learner's road on the real data, two replicas: accuracies that must be reached. Minutes.
# DTRAIN_DATA names a folder with mnist, fashion and cifar-10 (or cifar10) in it; DTRAIN_FASHION another one for Fashion-MNIST.
# Prints the lines of the README's table.
. "$(dirname "$0")/lib.sh"
if [ -z "${DTRAIN_DATA:-}" ]; then
    skip "accuracy" "DTRAIN_DATA names no folder"
    finish
fi
fashion=${DTRAIN_FASHION:-$DTRAIN_DATA/fashion}
cifar=$DTRAIN_DATA/cifar10
[ -d "$cifar" ] || cifar=$DTRAIN_DATA/cifar-10
mkdir "$scratch/data"
ln -s "$DTRAIN_DATA/mnist" "$scratch/data/mnist"
ln -s "$fashion" "$scratch/data/fashion"
ln -s "$cifar" "$scratch/data/cifar10"
for program in train digits cifar10 fashion; do $CC $CFLAGS "examples/$program.c" -o "$scratch/$program" $LDFLAGS $LDLIBS || exit 1; done
cd "$scratch" || exit 1

reaches() {  # ACCURACY COMMAND…
    wanted=$1
    shift
    "$@" --replicas 2 --json --quiet >json || { cat json; return 1; }
    tail -n 1 json | tr ',{}' '\n\n\n' | awk -F': ' -v wanted="$wanted" '
        { gsub(/[ "]/, "", $1); v[$1] = $2 }
        END { printf "accuracy %.4f in %d epochs, %.0f s of training\n", v["eval_accuracy"], v["epochs"], v["seconds"]; exit !(v["eval_accuracy"] >= wanted) }' >said
    status=$?
    cat said
    return $status
}
row() {  # NAME FOLDER ACCURACY COMMAND…
    name=$1 folder=$2
    shift 2
    [ -d "$folder" ] || { skip "$name" "no folder $folder"; return; }
    check "$name" reaches "$@"
    [ ! -s said ] || echo "        $name: $(cat said)"
    rm -f said
}
row "digits, CNN" . 0.97 ./digits
row "MNIST, MLP" "$DTRAIN_DATA/mnist" 0.98 ./train --data "mnist:$DTRAIN_DATA/mnist" --model mlp --epochs 8
row "MNIST, CNN" "$DTRAIN_DATA/mnist" 0.99 ./train --data "mnist:$DTRAIN_DATA/mnist" --model cnn --epochs 8
row "CIFAR-10, the course's CNN" "$cifar" 0.61 ./cifar10
row "Fashion-MNIST, CNN" "$fashion" 0.91 ./fashion
finish
