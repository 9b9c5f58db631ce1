#!/bin/sh
# exchange.sh - weights from PyTorch and to it: the same outputs on both sides. Skipped where $PYTHON
# (python3) has no torch, numpy and safetensors.
. "$(dirname "$0")/lib.sh"
: "${PYTHON:=python3}"

if ! "$PYTHON" -c 'import numpy, safetensors, torch' 2>/dev/null; then
    skip "exchange with PyTorch" "no $PYTHON with torch, numpy and safetensors: PYTHON=... names another"
    finish
fi
build() { $CC $CFLAGS -Wall -Wextra tests/exchange/exchange.c -o "$scratch/exchange" $LDFLAGS $LDLIBS; }
if ! build >"$scratch/build" 2>&1; then
    broken() { cat "$scratch/build"; false; }
    check "exchange.c builds" broken
    finish
fi

# One run for all, since importing torch takes seconds; each check leaves a file: its name, and "ok" or why not.
PYTHONDONTWRITEBYTECODE=1 "$PYTHON" tests/exchange/exchange.py "$scratch/exchange" "$scratch" >"$scratch/said" 2>&1
status=$?
ended() { cat "$scratch/said"; [ "$status" = 0 ]; }
check "exchange.py ends well" ended
result() { sed 1d "$1"; [ "$(sed -n 2p "$1")" = ok ]; }
for file in "$scratch"/results/*; do
    [ -f "$file" ] && check "$(head -n 1 "$file")" result "$file"
done
finish
