# lib.sh - for test scripts: counts and prints as test.h does. Sourced; the script is in the root folder then.
#   check NAME COMMAND…   passes if COMMAND succeeds; its output is shown if it does not
#   skip NAME REASON
#   finish                the last line, and the script's exit status
# ONLY=text runs the checks whose names hold it. $scratch is an empty folder with an absolute name.
set -u
cd "$(dirname "$0")/.." || exit 1
[ -f dtrain.h ] || cd .. || exit 1  # tests/fuzz
: "${CC:=cc}" "${CXX:=c++}" "${CFLAGS:=-O2}" "${TEST_CFLAGS:=$CFLAGS}" "${LDFLAGS:=}" "${LDLIBS:=-lm -pthread}" "${BUILD:=.build}" "${ONLY:=}"
unset MAKEFLAGS MFLAGS MAKELEVEL
passed=0 failed=0 skipped=0
root=$(pwd)
scratch=$BUILD/scratch-$(basename "$0" .sh)${1:+-$1}
rm -rf "$scratch"
mkdir -p "$scratch"
scratch=$(cd "$scratch" && pwd)

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
