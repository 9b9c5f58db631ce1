#!/bin/sh
# onnx.sh - what examples/export_onnx.h writes: onnx's checker finds nothing wrong, and onnxruntime computes what dt_predict does.
# Skipped where $PYTHON (python3) has no onnx, onnxruntime and numpy.
. "$(dirname "$0")/lib.sh"
: "${PYTHON:=python3}"

if ! (cd "$scratch" && "$PYTHON" -c 'import numpy, onnx, onnxruntime') 2>/dev/null; then
    skip "ONNX" "no $PYTHON with onnx, onnxruntime and numpy: PYTHON=... names another"
    finish
fi
build() { $CC $CFLAGS -Wall -Wextra tests/exchange/onnx.c -o "$scratch/onnx" $LDFLAGS $LDLIBS; }
if ! build >"$scratch/build" 2>&1; then
    broken() { cat "$scratch/build"; false; }
    check "onnx.c builds" broken
    finish
fi
check "what has no ONNX form is refused, and a file that is there stays" "$scratch/onnx" "$scratch" refusals
exports() { "$scratch/onnx" "$scratch" >"$scratch/nets"; }
check "every net is written" exports

# One run for all, since importing takes a second; each check leaves a file: its name, and "ok" or why not.
PYTHONDONTWRITEBYTECODE=1 "$PYTHON" tests/exchange/run_onnx.py "$scratch" >"$scratch/said" 2>&1
status=$?
[ -z "${VERBOSE:-}" ] || cat "$scratch/said"
ended() { cat "$scratch/said"; [ "$status" = 0 ]; }
check "run_onnx.py ends well" ended
result() { sed 1d "$1"; [ "$(sed -n 2p "$1")" = ok ]; }
for file in "$scratch"/results/*; do
    [ -f "$file" ] && check "$(head -n 1 "$file")" result "$file"
done

trained() {  # by a flag of train.c
    $CC $CFLAGS examples/train.c -o "$scratch/train" $LDFLAGS $LDLIBS || return 1
    cd "$scratch" || return 1
    ./train --data synthetic:12x12x2:3:60 --model resnet20 --steps 2 --batch 7 --quiet --export-onnx net.onnx || return 1
    "$PYTHON" - <<'PY'
import numpy, onnx, onnxruntime
onnx.checker.check_model("net.onnx", full_check=True)
y, = onnxruntime.InferenceSession("net.onnx").run(["output"], {"input": numpy.zeros((2, 12, 12, 2), numpy.float32)})
assert y.shape == (2, 3) and numpy.isfinite(y).all(), y
PY
}
check "train --export-onnx" trained
finish
