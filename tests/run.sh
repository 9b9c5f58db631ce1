#!/bin/sh
# run.sh - run test programs and add up what they count
#
#   tests/run.sh one NAME LOG COMMAND…   run COMMAND; print NAME's count, and its output where it failed
#   tests/run.sh total LOG…              the sum over all of them as the last line; 1 if anything failed
#
# The last line of a test is "N passed, N failed, N skipped". One that ends without it, or that is not
# successful although nothing failed (a crash at exit, a sanitizer's report), counts one failure more.
set -u

last_count() {  # "passed failed skipped" of a log, or nothing
    sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed, \([0-9][0-9]*\) skipped$/\1 \2 \3/p' "$1" | tail -n 1
}

one() {
    name=$1 log=$2
    shift 2
    limit=
    command -v timeout >/dev/null && limit="timeout ${TEST_SECONDS:-600}"
    $limit "$@" >"$log" 2>&1 </dev/null
    status=$?
    count=$(last_count "$log")
    set -- ${count:-0 0 0}
    if [ -z "$count" ] || { [ "$status" != 0 ] && [ "$2" = 0 ]; }; then
        shown=$(echo "$name ended with status $status; the end of what it said:"; tail -n 100 "$log")
        set -- "$1" $(($2 + 1)) "$3"
    elif [ "$2" != 0 ]; then
        shown=$(grep -v -e '^ok  ' -e '^skipped ' "$log")
    fi
    # Indented, so that only the sum of a run stands at the start of a line.
    [ -z "${shown:=}" ] || printf '%s\n' "$shown" | sed 's/^/  /'
    echo "$1 passed, $2 failed, $3 skipped" >>"$log"
    printf '%-6s %-12s %s\n' "$([ "$2" = 0 ] && echo ok || echo FAILED)" "$name" "$1 passed, $2 failed, $3 skipped"
}

total() {
    passed=0 failed=0 skipped=0
    for log; do
        set -- $(last_count "$log")
        passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

action=$1
shift
"$action" "$@"
