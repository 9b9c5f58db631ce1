#!/bin/sh
# readme.sh - every code block of README.md compiles and runs, in the order of the page.
#
#   ```c   a block with a main is a program: "// NAME.c" in its first line names it, it is compiled with the
#          README's one cc line and run. Any other block is put into a main of its own, behind the C code
#          that an HTML comment in the line above it may bring: <!-- prelude: … -->
#   ```sh  a list of commands for a shell.
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
small_files() { $CC idx.c -o idx && ./idx; }
check "small data files" small_files

compile_and_run() {  # NAME without .c
    $CC $TEST_CFLAGS -Wall -Wextra "$1.c" -o "$1" $LDFLAGS $LDLIBS && "./$1"
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
# Tests that call the tests would never end, so of those the block only checks that they are there.
commands() {
    { echo 'set -e; make() { case " $* " in *" test "* | *" check-all "*) command make -n "$@" >/dev/null ;; *) command make "$@" ;; esac; }'; cat "$1"; } >commands.sh
    BUILD=.build PREFIX=$scratch/installed sh commands.sh
}

for block in block-[0-9]*; do
    case $block in
    *.prelude) ;;
    *.sh) check "$block: $(head -n 1 "$block")" commands "$block" ;;
    *.c) if grep -q 'int main' "$block"; then check "$block: $(head -n 1 "$block")" program "$block"; else check "$block: $(head -n 1 "$block")" fragment "$block"; fi ;;
    esac
done
finish
