#!/bin/sh
# lint.sh - what compilers do not say: clang-tidy, cppcheck and gcc's analyzer over dtrain.h, the headers beside it, the
# examples, and the form of all files (tests/format.sh); clang-tidy and cppcheck look at tests and measurements, too. Ends in a
# pass or a failure; a tool that is not there is skipped.
#
# A finding is mended, or it has a line in tests/lint.txt that says why it stays:
#     CHECK | a piece of the line that is meant, or - for any | reason
# A line there that no finding needs any more is a failure, too (when all tools have run).
#
#   ONLY     format, tidy, cppcheck or analyzer alone         JOBS     how many at once, one per core
#   GCC, CLANG_TIDY, CPPCHECK   the tools; gcc 12, clang-tidy 14 and cppcheck 2.10 is what the list was made with
if [ "${1:-}" = one ]; then cd "$root" || exit 1; else . "$(dirname "$0")/lib.sh"; fi  # one: a part of itself, see below
: "${GCC:=gcc}" "${CLANG_TIDY:=clang-tidy}" "${CPPCHECK:=cppcheck}" "${JOBS:=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}" "${LINT_SECONDS:=600}"
headers=$(cd examples && ls *.h | grep -v digits.h)
rooms=$(sed -n 's/^\/\/ >>\([a-z]*\) - .*/\1/p' dtrain.h | grep -v -e manual -e interface -e licence)
export GCC CLANG_TIDY CPPCHECK LINT_SECONDS scratch root

# gcc's analyzer follows every call until its budget is spent, and then says nothing at all: of the whole header it found not even
# a leak that was planted. So it gets one room at a time. Of all other functions the heads stay, as declarations.
[ "${1:-}" = one ] || cat >"$scratch/heads.awk" <<'A'
FNR == 1 { inside = 0; here = FILENAME ~ /dtrain\.h$/ ? "" : "beside" }
/^\/\/ >>[a-z]+/ { here = substr($2, 3) }
here != "" && here != keep && /^(static|DT_API|DT__FORMAT|DT__SHAPE|DT__PHASE|DT__BOTH_WAYS|(const )?[a-z][a-z0-9_]* \**dt_[a-z0-9_]+\().*\) *\{( *\/\/.*)?$/ { sub(/ *\{( *\/\/.*)?$/, ";"); print; inside = 1; next }
inside { print ""; if (/^}/) inside = 0; next }
{ print }
A
# KIND NAME: a folder with the project's headers in which only that room, header or example has bodies; prints its main file.
work() {
    mkdir -p "$scratch/$1-$2/examples"
    awk -v keep="$2" -f "$scratch/heads.awk" dtrain.h >"$scratch/$1-$2/dtrain.h"
    for header in $(cd examples && ls *.h); do
        awk -v keep=none -f "$scratch/heads.awk" "examples/$header" >"$scratch/$1-$2/examples/$header"
    done
    main=$scratch/$1-$2/examples/main.c
    case $1 in
    room) printf '#define DTRAIN_IMPLEMENTATION\n#include "../dtrain.h"\n' >"$main" ;;
    header) cp "examples/$2" "$scratch/$1-$2/examples/" && printf '#define DTRAIN_IMPLEMENTATION\n#include "../dtrain.h"\n#include "%s"\n' "$2" >"$main" ;;
    examples | tests | bench)
        mkdir -p "$scratch/$1-$2/$1"
        [ "$1" != tests ] || cp -r tests/*.h tests/golden "$scratch/$1-$2/tests/"
        main=$scratch/$1-$2/$1/$2 && cp "$1/$2" "$main" ;;
    planted) printf '#include <stdlib.h>\nint f(int n);\nint f(int n) {\n    char *p = (char *)malloc(9);\n    if (!p) return 1;\n    if (n) return 2;\n    free(p);\n    return 0;\n}\n' >"$main" ;;
    whole)
        cp dtrain.h "$scratch/$1-$2/" && cp examples/*.h "$scratch/$1-$2/examples/"
        { printf '#define DTRAIN_IMPLEMENTATION\n#include "../dtrain.h"\n'; for header in $headers; do echo "#include \"$header\""; done; } >"$main" ;;
    esac
    echo "$main"
}

# One piece for one tool: its findings as "FILE:LINE: TEXT [CHECK]". What stops the tool is a finding, too.
one() {
    main=$(work "$2" "$3") folder=$scratch/$2-$3 language= less=
    case $3 in *.cpp) language=-std=c++11 ;; esac
    # Tests compare bits, compute in double what is float, run commands, and cut texts where they break.
    if [ "$2" = tests ]; then
        less=--checks=-bugprone-suspicious-memory-comparison,-cert-exp42-c,-cert-flp37-c,-performance-type-promotion-in-math-fn,-cert-env33-c
        less=$less,-bugprone-not-null-terminated-result,-clang-analyzer-security.insecureAPI.strcpy,-clang-analyzer-security.FloatLoopCounter
        less=$less,-performance-no-int-to-ptr,-bugprone-misplaced-widening-cast,-cert-flp30-c
    fi
    case $1 in
    analyzer) timeout "$LINT_SECONDS" $GCC -fanalyzer -O0 -S "$main" -o /dev/null ;;
    tidy) timeout "$LINT_SECONDS" $CLANG_TIDY --quiet --config-file="$root/tests/lint-tidy.yaml" $less --header-filter='.*' "$main" -- $language ;;
    # It does not look into the system's headers, so it is told what they would say.
    cppcheck) timeout "$LINT_SECONDS" $CPPCHECK --quiet --enable=warning,performance,portability --std=c11 --max-configs=1 \
            -DDTRAIN_IMPLEMENTATION -D__linux__ -D__unix__ -D__GNUC__=12 -D__x86_64__ -D__SSE2__ -D__BYTE_ORDER__=1234 -D__ORDER_LITTLE_ENDIAN__=1234 \
            -DCLOCK_MONOTONIC=1 -DO_CLOEXEC=1 --template='{file}:{line}:{column}: warning: {message} [{id}]' "$main" ;;
    esac >"$folder/said" 2>&1
    status=$?
    sed -n "s#^.*$folder/##; s#^[a-z]*/\.\./##; s#^\([a-z][a-zA-Z0-9_./]*:[0-9]*\):[0-9]*: \(fatal \)*\(warning\|error\): \(.*\) \[\([^] ]*\)\]\$#\1: \4 [\5]#p" "$folder/said" |
        sed 's/\[CWE-[0-9]*\] //; s/\[-W\(analyzer[a-z-]*\)\]$/[\1]/' |
        if [ "$1" = analyzer ]; then grep '\[analyzer-'; else cat; fi
    grep -E '[0-9]: (fatal )?error: [^[]*$' "$folder/said" | sed "s|^.*$folder/||; s|^[a-z]*/\.\./||; s|\$| [cannot be read]|"
    case $status in
    0) ;;
    124) echo "$3:0: not done in $LINT_SECONDS seconds: LINT_SECONDS gives more [$1]" ;;
    *) echo "$3:0: the tool ended with status $status: $(tail -n 1 "$folder/said") [$1]" ;;
    esac
}
if [ "${1:-}" = one ]; then shift; one "$@" >"$scratch/found-$1-$2-$3"; exit 0; fi

pieces() {  # TOOL: what it looks at, one a line
    case $1 in
    analyzer)
        for name in $rooms; do echo "room $name"; done
        for name in $headers; do echo "header $name"; done
        for name in $(cd examples && ls *.c); do echo "examples $name"; done ;;
    *)
        echo "whole all"
        for name in $(ls examples/*.c examples/*.cpp bench/*.c tests/*.c); do echo "${name%/*} ${name##*/}"; done ;;
    esac | if echo '#include <mpi.h>' | $GCC -E - >/dev/null 2>&1; then cat; else grep -v ' mpi\.c$'; fi
}

# Findings that no line of the list speaks for; the lines that were needed go to $scratch/needed.
unexplained() {
    LC_ALL=C awk -F ' *[|] *' -v needed="$scratch/needed" '
        FILENAME ~ /lint\.txt$/ { if (/^[^#]/) { check[++n] = $1; text[n] = $2 } next }
        {
            place = $0; sub(/: .*/, "", place)
            file = place; sub(/:.*/, "", file); number = place; sub(/.*:/, "", number)
            name = $0; sub(/.*\[/, "", name); sub(/\]$/, "", name)
            line = ""
            for (i = 0; i < number + 0 && (getline line <file) > 0; i++) {}
            close(file)
            for (i = 1; i <= n; i++) if (index("," name ",", "," check[i] ",") && (text[i] == "-" || index(line, text[i]))) { print i >>needed; next }
            print $0
            sub(/^[ \t]+/, "", line)
            print "    " line
            bad = 1
        }
        END { exit bad }' tests/lint.txt "$1"
}
planted() { sh tests/lint.sh one "$1" planted leak && cat "$scratch/found-$1-planted-leak" && grep -q 'main.c:6: .*\[.*\(Malloc\|malloc-leak\|memleak\)\]' "$scratch/found-$1-planted-leak" && rm "$scratch/found-$1-planted-leak"; }
tool() {  # NAME
    pieces "$1" | sed "s/^/$1 /" | xargs -P "$JOBS" -n 3 sh tests/lint.sh one || return 1
    cat "$scratch/found-$1-"* | sort -u >"$scratch/found-$1"
    unexplained "$scratch/found-$1"
}
needed() {
    LC_ALL=C awk 'FILENAME ~ /needed$/ { used[$1] = 1; next } /^[^#]/ && !used[++n] { print "no finding needs this line of tests/lint.txt any more: " $0; bad = 1 } END { exit bad }' "$scratch/needed" tests/lint.txt
}

: >"$scratch/needed"
all=1
check "format" tests/format.sh
for pair in "tidy $CLANG_TIDY" "cppcheck $CPPCHECK" "analyzer $GCC"; do
    set -- $pair
    if ! command -v "$2" >/dev/null; then skip "$1" "no $2"; all=0
    elif [ "$1" = analyzer ] && ! $GCC -fanalyzer -S -x c /dev/null -o /dev/null 2>/dev/null; then skip "$1" "$2 has no -fanalyzer"; all=0
    else
        check "$1 finds a planted leak" planted "$1"
        check "$1" tool "$1"
    fi
done
[ $all = 0 ] || [ -n "$ONLY" ] || check "the list of what stays" needed
finish
