#!/bin/sh
# inclusion.sh - the header included in every order, in C and in C++, and with little else around it.
. "$(dirname "$0")/lib.sh"
warnings="-O0 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I$root"

# The same small program for C and C++: learns something, or says why not.
cat >"$scratch/use.h" <<'X'
#include <stdio.h>
#ifdef __cplusplus
static dt_tensor *net(dt_tensor *x, void *) {
    dt_dense_options named = DT_DEFAULTS;
    named.name = "out";
    return dt_dense(dt_tanh(dt_dense(x, 4)), 1, named);
}
#else
static dt_tensor *net(dt_tensor *x, void *user) {
    (void)user;
    return dt_dense(dt_tanh(dt_dense(x, 4)), 1, .name = "out");
}
#endif
static int use(void) {
    const float x[8] = {0, 0, 0, 1, 1, 0, 1, 1}, y[4] = {0, 1, 1, 2};
    dt_options o = DT_DEFAULTS;
    dt_error err = DT_DEFAULTS;
    dt_parameter weight;
    o.net = net;
    o.input[0] = 2;
    o.batch = 4;
    o.replicas = 2;
    o.loss = DT_MSE;
    o.learning_rate = 0.1;
    dt_model *m = dt_model_create(&o, &err);
    float first = dt_step(m, x, y, 4, &err), last = first;
    for (int i = 0; i < 50; i++) last = dt_step(m, x, y, 4, &err);
    dt_parameter_at(m, 2, &weight, &err);
    dt_model_free(m);
    if (err.code) puts(err.text);
    else printf("%s: loss %g, then %g\n", dt_version(), (double)first, (double)last);
    return err.code || !(last < first);
}
X

source_file() {  # NAME: text from standard input; @ stands for the header, @impl for the implementation
    awk '/^@impl$/ { print "#define DTRAIN_IMPLEMENTATION" } /^@/ { $0 = "#include \"dtrain.h\"" } { print }' >"$scratch/$1"
}
runs() {  # PROGRAM COMPILER SOURCE…: compiles without a word, and then runs
    program=$scratch/$1 compiler=$2
    shift 2
    (cd "$scratch" && $compiler $warnings "$@" -o "$program" $LDFLAGS $LDLIBS) || return 1
    "$program"
}
have_cxx() { echo 'int main() { return 0; }' >"$scratch/try.cpp" && $CXX "$scratch/try.cpp" -o "$scratch/try" >/dev/null 2>&1; }
main='int main(void) { return use(); }'

source_file first.c <<X
@impl
#include "use.h"
$main
X
check "implementation first" runs first "$CC" first.c

# Another order: it compiles without a word, and the preprocessor leaves the lines that ran above, each once. With -23 others,
# of the system's headers, may be among them.
lines_of() { $CC -E -P -I"$root" "$scratch/$1" | LC_ALL=C sort; }
same_lines() {  # -3 or -23, FILE
    (cd "$scratch" && $CC $warnings -fsyntax-only "$2") || return 1
    lines_of first.c >"$scratch/first.lines" && lines_of "$2" >"$scratch/lines" && [ "$(wc -l <"$scratch/first.lines")" -gt 5000 ] || return 1
    LC_ALL=C comm "$1" "$scratch/first.lines" "$scratch/lines" >"$scratch/others"
    grep . "$scratch/others" | head
    [ ! -s "$scratch/others" ]
}

source_file twice.c <<X
@impl
@
#include "use.h"
$main
X
check "included twice" same_lines -3 twice.c

source_file last.c <<X
@
#include "use.h"
$main
@impl
X
check "implementation last" same_lines -3 last.c

printf '#include <elf.h>\n#include <dirent.h>\n' >"$scratch/system.h"
source_file before.c <<X
@impl
#include "system.h"
#include "use.h"
$main
X
source_file after.c <<X
#include "system.h"
@impl
#include "use.h"
$main
X
if $CC -E "$scratch/system.h" >/dev/null 2>&1; then
    check "before elf.h and dirent.h" same_lines -23 before.c
    check "after elf.h and dirent.h" same_lines -23 after.c
else
    skip "before and after elf.h and dirent.h" "this system does not have both"
fi

source_file one.c <<X
#define DTRAIN_STATIC
@impl
#include "use.h"
int other(void);
int main(void) { return use() || other(); }
X
source_file other.c <<X
#define DTRAIN_STATIC
@impl
#include "use.h"
int other(void);
int other(void) { return use(); }
X
check "two static copies in one program" runs static "$CC" one.c other.c

source_file user.c <<X
@
#include "use.h"
$main
X
source_file impl.c <<X
@impl
#include "examples/csv.h"
#include "examples/images.h"
#include "examples/npy.h"
#include "examples/cifar10.h"
#include "examples/csv.h"
#include "examples/images.h"
#include "examples/npy.h"
#include "examples/cifar10.h"
X
object() { (cd "$scratch" && { [ -f impl.o ] || $CC $warnings -c impl.c -o impl.o; }); }  # made once
own() { object && runs own "$CC" user.c impl.o; }
check "implementation in a file of its own" own

source_file user.cpp <<X
@
#include "use.h"
$main
X
source_file all.cpp <<X
@impl
#include "use.h"
$main
X
mixed() { object && runs mixed "$CXX -std=gnu++11" user.cpp impl.o; }
if have_cxx; then
    check "c++ user of a C implementation" mixed
    check "c++11 implementation and wrappers" runs cxx11 "$CXX -std=gnu++11" all.cpp
    check "c++17 implementation and wrappers" $CXX -std=gnu++17 $warnings -fsyntax-only "$scratch/all.cpp"
else
    skip "c++" "no C++ compiler"
fi

# cifar10.h, csv.h, images.h and npy.h, whose calls other files may use too.
printf '1,cat,3\n4,dog,6\n' >"$scratch/table.csv"
mkdir -p "$scratch/pictures/grey"
printf 'P5 2 1 255\nab' >"$scratch/pictures/grey/1.pgm"
{ printf '\7'; head -c 3072 /dev/zero; } >"$scratch/cifar.bin"
printf "\\223NUMPY\\1\\0\\71\\0{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2)}ab" >"$scratch/array.npy"
cat >"$scratch/data.h" <<X
#include <stdio.h>
static int opens(dt_source s, int axis, int size) {  // of its samples
    dt_error err = DT_DEFAULTS;
    dt_dataset *d = dt_dataset_open(&s, &err);
    int n = dt_dataset_describe(d).input[axis];
    dt_dataset_close(d);
    if (err.code) puts(err.text);
    return !err.code && n == size;
}
static int data(void) {
    dt_csv_options o = DT_DEFAULTS;
    o.label = 2;
#ifdef __cplusplus
    dt_source table = dt_csv("$scratch/table.csv", o);
#else
    dt_source table = dt_csv("$scratch/table.csv", .label = o.label);
#endif
    return !opens(table, 0, 2) || !opens(dt_images("$scratch/pictures"), 1, 2) || !opens(dt_npy("$scratch/array.npy", NULL), 0, 2) ||
           !opens(dt_cifar10("$scratch/cifar.bin", DT_TRAIN), 1, 32);
}
X
source_file data_user.c <<X
@
#include "examples/npy.h"
#include "examples/cifar10.h"
#include "examples/images.h"
#include "examples/csv.h"
#include "data.h"
int main(void) { return data(); }
X
cp "$scratch/data_user.c" "$scratch/data_user.cpp"
source_file data_last.cpp <<X
#include "data_user.c"
@impl
#include "examples/images.h"
#include "examples/export_c.h"
#include "examples/export_onnx.h"
#include "examples/cifar10.h"
#include "examples/npy.h"
#include "examples/csv.h"
X
data_own() { object && runs data_own "$CC" data_user.c impl.o; }
data_mixed() { object && (cd "$scratch" && $CXX -std=gnu++11 $warnings -c data_user.cpp -o data_user.o) && runs data_mixed "$CXX" data_user.o impl.o; }
check "cifar10.h, csv.h, images.h and npy.h: implementation in a file of its own" data_own
if have_cxx; then
    check "cifar10.h, csv.h, images.h and npy.h: c++ user of a C implementation" data_mixed
    check "cifar10.h, csv.h, images.h and npy.h: c++11, implementation last, around export_c.h and export_onnx.h" runs data_cxx "$CXX -std=gnu++11" data_last.cpp
else
    skip "cifar10.h, csv.h, images.h and npy.h in c++" "no C++ compiler"
fi

# The public part must not bring in more than stddef.h and stdint.h.
source_file public.c <<X
@
X
little() {
    $CC -E -I"$root" "$scratch/public.c" >"$scratch/public.i" || return 1
    ! grep -nE 'pthread_create|struct sockaddr|FILE|fopen|malloc *\(' "$scratch/public.i"
}
check "the public part brings in no threads, sockets or files" little
check "the public part as C99" $CC -std=c99 $warnings -c "$scratch/public.c" -o "$scratch/public.o"
# What -std=c99 hides, and how to have it: one sentence, in front of what follows from it.
source_file hidden.c <<X
@impl
X
hidden() {
    ! $CC -std=c99 "$@" -I"$root" -c "$scratch/hidden.c" -o "$scratch/hidden.o" 2>"$scratch/said" && grep -m 1 'error' "$scratch/said" | grep 'std=c99 hides POSIX'
}
check "the implementation as strict C99" hidden
check "the implementation as strict C99 with -pthread" hidden -pthread
if command -v tcc >/dev/null; then
    check "the public part with tcc" tcc -Wall -Werror -I"$root" -c "$scratch/user.c" -o "$scratch/tcc.o"
else
    skip "the public part with tcc" "no tcc"
fi
finish
