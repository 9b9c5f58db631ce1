# lib.sh - for test scripts: counts and prints as test.h does. Sourced; the script is in the root folder then.
#   check NAME COMMAND…   passes if COMMAND succeeds; its output is shown if it does not
#   skip NAME REASON
#   finish                the last line, and the script's exit status
#   program NAME FILE     examples/NAME.c as a program
#   user SOURCE FILE …    a program that calls public names of dtrain.h, cifar10.h and csv.h; … are flags
# $a_port and the nine behind it are ports for this script.
# ONLY=text runs the checks whose names hold it. $scratch is an empty folder with an absolute name.
set -u
cd "$(dirname "$0")/.." || exit 1
[ -f dtrain.h ] || cd .. || exit 1  # tests/fuzz
: "${CC:=cc}" "${CXX:=c++}" "${CFLAGS:=-O2}" "${TEST_CFLAGS:=$CFLAGS}" "${LDFLAGS:=}" "${LDLIBS:=-lm -pthread}" "${BUILD:=.build}" "${ONLY:=}" "${BUILT:=}"
unset MAKEFLAGS MFLAGS MAKELEVEL
passed=0 failed=0 skipped=0
root=$(pwd)
scratch=$BUILD/scratch-$(basename "$0" .sh)${1:+-$1}
rm -rf "$scratch"
mkdir -p "$scratch"
scratch=$(cd "$scratch" && pwd)

# Below those that the system gives to whoever asks for any.
a_port=$((10000 + $$ % 2000 * 10))

# BUILT is the folder in which make has built examples and an object file with the implementation, once for all scripts.
# A script that is started alone builds them itself.
[ -z "$BUILT" ] || BUILT=$(cd "$BUILT" && pwd) || exit 1
program() {
    if [ -n "$BUILT" ]; then cp "$BUILT/programs/$1" "$2"
    else command $CC $TEST_CFLAGS -Wall -Wextra -Wpedantic -Werror "$root/examples/$1.c" -o "$2" $LDFLAGS $LDLIBS; fi
}
user() {
    user_source=$1 user_program=$2
    shift 2
    if [ -n "$BUILT" ]; then
        sed '/^#define DTRAIN_IMPLEMENTATION$/d' "$user_source" |
            command $CC $TEST_CFLAGS "$@" -I"$(dirname "$user_source")" -x c - -x none "$BUILT/dtrain.o" -o "$user_program" $LDFLAGS $LDLIBS
    else command $CC $TEST_CFLAGS "$@" "$user_source" -o "$user_program" $LDFLAGS $LDLIBS; fi
}

check() {
    check_name=$1
    shift
    case $check_name in *"$ONLY"*) ;; *) return 0 ;; esac
    if ("$@") >"$scratch/output" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $check_name"
    else
        failed=$((failed + 1))
        sed 's/^/  /' "$scratch/output" | head -n 60
        echo "FAILED  $check_name"
    fi
}

skip() {
    case $1 in *"$ONLY"*) ;; *) return 0 ;; esac
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}
