#!/bin/sh
# switches.sh SWITCH - build and run tests/switches.c with -DDTRAIN_SWITCH; none and all are words of their
# own. The header alone must not ask the linker for what has been switched off either.
. "$(dirname "$0")/lib.sh"
off="NO_THREADS NO_SOCKETS NO_STDIO NO_MALLOC NO_SIMD"
forbidden_NO_THREADS='pthread_[a-z_]*'
forbidden_NO_SOCKETS='socket|connect|accept|getaddrinfo'
forbidden_NO_STDIO='f?open(64)?|fdopen|popen|f?printf|puts|fwrite|getenv|stderr|stdout'
forbidden_NO_MALLOC='malloc|calloc|realloc|free|aligned_alloc|posix_memalign|mmap(64)?'

flags= libs= names=$1
case $1 in
none) names= ;;
all)  names=$off ;;
BLAS) libs=-lopenblas
      echo 'void cblas_sgemm(void); int main(void) { cblas_sgemm(); return 0; }' >"$scratch/blas.c"
      if ! $CC "$scratch/blas.c" -o "$scratch/blas" -lopenblas >/dev/null 2>&1; then
          skip BLAS "no OpenBLAS to link with"
          finish
      fi ;;
esac
for name in $names; do flags="$flags -DDTRAIN_$name"; done

run() {
    $CC $CFLAGS -Wall -Wextra -Werror $flags tests/switches.c -o "$scratch/test" $LDFLAGS $libs $LDLIBS || return 1
    "$scratch/test" >"$scratch/log" 2>&1
    status=$?
    cat "$scratch/log"
    return $status
}

undefined() {  # what the implementation asks the linker for and should not
    printf '#define DTRAIN_IMPLEMENTATION\n#include "%s/dtrain.h"\n' "$root" >"$scratch/header.c"
    $CC $flags -O1 -c "$scratch/header.c" -o "$scratch/header.o" || return 1
    found=0
    for name in $names; do
        eval "pattern=\${forbidden_$name:-}"
        [ -n "$pattern" ] || continue
        if nm -u "$scratch/header.o" | awk '{ sub(/@.*/, "", $NF); print $NF }' | grep -xE "_?_?($pattern)(_chk)?"; then
            echo "asked for, although DTRAIN_$name is defined"
            found=1
        fi
    done
    return $found
}

products() {  # every shape, step and transposition, against sums in double
    $CC $CFLAGS $flags tests/kernels.c -o "$scratch/kernels" $LDFLAGS $libs $LDLIBS && "$scratch/kernels" >"$scratch/log" 2>&1 && return
    grep -v '^ok' "$scratch/log" | head -20
    return 1
}

check "$1 runs" run
[ "$1" != BLAS ] || check "BLAS multiplies" products
case " $names " in
*" NO_"*) if command -v nm >/dev/null; then check "$1 links" undefined; else skip "$1 links" "no nm"; fi ;;
esac
finish
