#!/bin/sh
# readme.sh - every code block of README.md compiles and runs, in the order of the page; so do those of the manual at the top
# of dtrain.h, and the "DO THIS" at the top of each header in examples.
#
#   ```c   a block with a main is a program: "// NAME.c" in its first line names it, it is compiled and run. Any other block is put into a main of its own, behind the C code
#          that an HTML comment in the line above it may bring: <!-- prelude: … -->
#   ```sh  a list of commands for a shell. `make run` builds with -O2, as the page says; other cc lines are kept cheap, see below.
#   // …   a manual's code stands further to the right than its words; how is said below.
# Everything happens in a copy of the project in which data/mnist holds small IDX files.
. "$(dirname "$0")/lib.sh"
cp -R dtrain.h Makefile README.md examples tests bench "$scratch/"
cd "$scratch" || exit 1

# Blocks become files block-01.c, block-02.sh, …
LC_ALL=C awk '
    /^```/ && name  { close(name); name = ""; next }
    /^```(c|sh)$/   { name = sprintf("block-%02d.%s", ++n, substr($0, 4)); printf "%s", (name ~ /c$/ ? prelude : "") >(name ".prelude"); close(name ".prelude"); printf "" >name; next }
    /^```/          { name = "block-other"; printf "" >name; next }
    name            { print >name; next }
    /^<!-- prelude: .* -->$/ { prelude = substr($0, 15, length($0) - 18) "\n"; next }
                    { prelude = "" }' README.md

cat >idx.c <<'X'
/* Small files in the form of MNIST: a bright bar per class on noise. */
#include <stdio.h>
static void number(FILE *f, unsigned v) { for (int shift = 24; shift >= 0; shift -= 8) putc((int)(v >> shift & 255), f); }
static int write_pair(const char *images, const char *labels, unsigned n) {
    unsigned noise = 1;
    FILE *x = fopen(images, "wb"), *y = fopen(labels, "wb");
    if (!x || !y) return 1;
    number(x, 2051); number(x, n); number(x, 28); number(x, 28);
    number(y, 2049); number(y, n);
    for (unsigned i = 0; i < n; i++) {
        unsigned label = i * 7 % 10;
        putc((int)label, y);
        for (unsigned at = 0; at < 784; at++) {
            noise = noise * 1664525u + 1013904223u;
            putc((int)((noise >> 26) + (at / 28 / 2 == label + 2 ? 180 : 0)), x);
        }
    }
    return fclose(x) || fclose(y);
}
int main(void) {
    return write_pair("data/mnist/train-images-idx3-ubyte", "data/mnist/train-labels-idx1-ubyte", 300)
        || write_pair("data/mnist/t10k-images-idx3-ubyte", "data/mnist/t10k-labels-idx1-ubyte", 60);
}
X
mkdir -p data/mnist
$CC idx.c -o idx && ./idx  # whatever ONLY says
check "small data files" test -s data/mnist/t10k-labels-idx1-ubyte

compile_and_run() {  # NAME without .c
    if grep -q 'define DTRAIN_NO_' "$1.c"; then $CC -O0 -Wall -Wextra "$1.c" -o "$1" $LDFLAGS $LDLIBS; else user "$1.c" "$1" -Wall -Wextra; fi && "./$1"
}
program() {
    name=$(sed -n '1s|^// *\([a-z_]*\)\.c.*|\1|p' "$1")
    : "${name:=${1%.c}}"
    [ "$1" = "$name.c" ] || cp "$1" "$name.c"
    compile_and_run "$name"
}
fragment() {
    name=${1%.c}-main
    {
        printf '#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\n'
        cat "$1.prelude"
        echo 'int main(void) {'
        cat "$1"
        echo 'return 0; }'
    } >"$name.c"
    compile_and_run "$name"
}
# A block's cc: one of examples is built once for several scripts, a program of the page is built without an implementation of
# its own; each must be said as the page says it. What is only compiled is compiled with -O0. Tests that call the tests would
# never end, so of those the block only checks that they are there.
{ sed -n '/^program()/,/^}/p; /^user()/,/^}/p' "$root/tests/lib.sh"; cat <<'X'; } >shell.sh
set -e
cc() {
    source=$2 program=$4
    case $* in
    "-O2 examples/job.c -o $program -lm -pthread" | "-O2 examples/train.c -o $program -lm -pthread") source=${source#*/}; program "${source%.c}" "$program" ;;
    "-O2 $source -o $program -lm -pthread") user "$source" "$program" ;;
    "-O2 "*) shift; command cc -O0 "$@" ;;
    *) echo "cc $*: without -O2"; return 1 ;;
    esac
}
make() { case " $* " in *" test "* | *" check-all "*) command make -n "$@" >/dev/null ;; *) command make "$@" ;; esac; }
X
export root BUILT CC TEST_CFLAGS LDFLAGS LDLIBS
commands() {
    cat shell.sh "$1" >commands.sh
    BUILD=.build CFLAGS=-O2 PREFIX=$scratch/installed sh commands.sh
}

for block in block-[0-9]*; do
    case $block in
    *.prelude) ;;
    *.sh) check "$block: $(head -n 1 "$block")" commands "$block" ;;
    *.c) if grep -q 'int main' "$block"; then check "$block: $(head -n 1 "$block")" program "$block"; else check "$block: $(head -n 1 "$block")" fragment "$block"; fi ;;
    esac
done

# ---- dtrain.h's manual

# Whoever begins reads "DO THIS": its lines in one file, the other line in another, its command.
started() {
    build=$(sed -n 's/^.* \(cc -O2 train\.c .*\)/\1/p' dtrain.h | head -n 1)
    [ -n "$build" ] || { echo "dtrain.h's DO THIS has no cc line any more"; return 1; }
    mkdir -p manual && cp dtrain.h manual/ && cd manual || return 1
    awk '/^\/\/ CONTENTS/ { exit } /^\/\/ +#/ { sub(/^\/\/ +/, ""); sub(/   .*/, ""); print }' dtrain.h >one.c
    grep -q 'define DTRAIN_IMPLEMENTATION' one.c && grep -q '#include "dtrain.h"' one.c || { cat one.c; return 1; }
    awk '/^\/\/ QUICK START/ { on = 1 } on && /^\/\/     / { print substr($0, 8); lines++; next } lines && !/^\/\/$/ { exit }' dtrain.h >train.c
    head -n "$(wc -l <one.c)" train.c | cmp - one.c || { echo "QUICK START does not begin as DO THIS says"; return 1; }
    echo "$build" | sed "s|^cc -O2|$CC -O0 -Wall -Wextra -Wpedantic -Werror|" >build.sh
    sh ./build.sh && ln -sf ../data data && ./train --steps 1 >said || { cat said; return 1; }
    cat said
    grep '^epoch 1/1  loss ' said
}
check "dtrain.h: DO THIS, and QUICK START" started

# ---- the headers in examples

# HEADER: the code of its DO THIS, to be compiled in examples/. An ellipsis stands for a small net and its data.
do_this() {
    awk '
        /^\/\/ DO THIS/ { on = 1 }
        /^\/\/ What:/   { exit }
        on && /^\/\/              (#|int main)/ { sub(/^\/\/ +/, ""); print }' "examples/$1" | sed "s|\"dtrain.h\"|\"../dtrain.h\"|" >code
    grep -q "define DTRAIN_IMPLEMENTATION" code && grep -q "#include \"$1\"" code || { echo "$1 has no DO THIS with its lines:"; cat code; return 1; }
    grep '^#' code
    if grep -q 'int main' code; then
        echo 'static dt_tensor *net(dt_tensor *x, void *user) { (void)user; return dt_dense(dt_flatten(x), 10); }'
        grep -v '^#' code | sed 's|net = net, …|net = net, .loss = DT_CROSS_ENTROPY, .train = dt_mnist("data/mnist", DT_TRAIN), .test = dt_mnist("data/mnist", DT_TEST)|'
    else
        echo 'int main(void) { return 0; }'
    fi
}
# The library and one more header compile; where other files may include both, they get all that is declared.
companion() {
    do_this "$1" >"examples/do-$1.c" || { cat "examples/do-$1.c"; return 1; }
    $CC -fsyntax-only -Werror "examples/do-$1.c" || return 1
    sed -n '/^\/\/ DO THIS/,/^\/\/ What:/p' "examples/$1" | grep -q 'In other files' || return 0
    printf '#include "../dtrain.h"\n#include "%s"\nvoid (*const used_%s[])(void) = {\n' "$1" "${1%.h}" >"examples/other-$1.c"
    sed -n 's/^DT_API [^({]*[ *]\(dt_[a-z0-9_]*\)(.*);.*/    (void (*)(void))\1,/p' "examples/$1" >>"examples/other-$1.c"
    echo '};' >>"examples/other-$1.c"
    grep -q '(void)' "examples/other-$1.c" && $CC -O0 -Wall -Wextra -Wno-cast-function-type -c "examples/other-$1.c" -o "examples/other-$1.o"
}
headers=$(cd examples && grep -l '^// DO THIS' *.h)
for header in $headers; do check "$header: DO THIS" companion "$header"; done

all_in_one() {  # the implementation once, all headers behind it, and each of the files that include them without it
    {
        printf '#define DTRAIN_IMPLEMENTATION\n#include "../dtrain.h"\n'
        for header in $headers; do echo "#include \"$header\""; done
        echo 'int main(void) { return 0; }'
    } >examples/all-in-one.c
    $CC -O0 -Wall -Wextra -Wpedantic -Werror examples/all-in-one.c examples/other-*.o -o all-in-one $LDFLAGS $LDLIBS && ./all-in-one
}
check "all headers in one program" all_in_one

# The commands of job.h's DO THIS, one after another; words behind two blanks explain them.
job_commands() {
    $CC -O0 -w examples/do-job.h.c -o program $LDFLAGS $LDLIBS || return 1
    sed -n '/^\/\/ DO THIS/,/^\/\/ What:/p' examples/job.h | sed -n 's|^// *\(\./program .*\)|\1|p' |
        sed "s/  .*//; s/ (.*//; s/;.*//; s/:\{0,1\}8080/$a_port/" >job-lines
    cat job-lines
    [ "$(wc -l <job-lines)" -ge 4 ] || return 1
    { echo 'set -e'; awk '{ print } / submit / { print "sleep 1" }' job-lines; } >job.sh
    sh ./job.sh && test -s out/export/model.safetensors && grep -q '"state": "SUCCEEDED"' out/status.json
}
check "job.h: the commands of DO THIS" job_commands
finish
