#!/bin/sh
# events.sh - what examples/events.h writes, read by TensorBoard: its loaders, its own functions' messages, its server.
# Skipped where $PYTHON (python3) has no tensorboard and numpy; tensorflow is not needed.
. "$(dirname "$0")/lib.sh"
: "${PYTHON:=python3}"

if ! (cd "$scratch" && "$PYTHON" -c 'import numpy, tensorboard') 2>/dev/null; then
    skip "TensorBoard" "no $PYTHON with tensorboard and numpy: PYTHON=... names another"
    finish
fi
build() { $CC $TEST_CFLAGS -Wall -Wextra tests/events.c -o "$scratch/events" $LDFLAGS $LDLIBS; }
if ! build >"$scratch/build" 2>&1; then
    broken() { cat "$scratch/build"; false; }
    check "events.c builds" broken
    finish
fi

# One run for all, since importing takes a second; each check leaves a file: its name, and "ok" or why not.
PYTHONDONTWRITEBYTECODE=1 "$PYTHON" tests/events.py "$scratch/events" "$scratch" >"$scratch/log" 2>&1
status=$?
[ -z "${VERBOSE:-}" ] || cat "$scratch/log"
ended() { cat "$scratch/log" "$scratch/said"; [ "$status" = 0 ]; }
check "events.py ends well" ended
result() { sed 1d "$1"; [ "$(sed -n 2p "$1")" = ok ]; }
for file in "$scratch"/results/*; do
    [ -f "$file" ] && check "$(head -n 1 "$file")" result "$file"
done
finish
