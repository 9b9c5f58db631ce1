#!/bin/sh
# cortexm4.sh - tests/switches.c on a microcontroller with a float unit and no operating system: built with
# arm-none-eabi-gcc, run on qemu's model of one. Output and exit status travel by semihosting.
. "$(dirname "$0")/lib.sh"
CC=arm-none-eabi-gcc
flags="-std=gnu99 -O2 -mthumb -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16 -ffunction-sections -fdata-sections"
flags="$flags -DDTRAIN_NO_THREADS -DDTRAIN_NO_SOCKETS -DDTRAIN_NO_STDIO -DDTRAIN_NO_MALLOC"
if ! command -v $CC >/dev/null; then
    skip "Cortex-M4" "no $CC"
    finish
fi

cat >"$scratch/board.ld" <<'X'
ENTRY(reset)
MEMORY { ROM (rx): ORIGIN = 0x00000000, LENGTH = 4M  RAM (rw): ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS {
  .isr  : { KEEP(*(.isr)) } > ROM
  .text : { *(.text*) *(.rodata*) } > ROM
  .ARM.exidx : { *(.ARM.exidx*) } > ROM
  .data : { _sdata = .; *(.data*) . = ALIGN(4); _edata = .; } > RAM AT > ROM
  _ldata = LOADADDR(.data);
  .bss (NOLOAD) : { . = ALIGN(4); _sbss = .; *(.bss*) *(COMMON) . = ALIGN(8); _ebss = .; end = .; _end = .; } > RAM
  _stack = ORIGIN(RAM) + LENGTH(RAM);
}
X
cat >"$scratch/start.c" <<'X'
#include <stdint.h>
#include <stdlib.h>
extern uint32_t _stack, _sdata, _edata, _ldata, _sbss, _ebss;
extern void initialise_monitor_handles(void);
int main(void);
void reset(void) {
    uint32_t *from = &_ldata, *to = &_sdata;
    while (to < &_edata) *to++ = *from++;
    for (to = &_sbss; to < &_ebss;) *to++ = 0;
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20;  /* switch the float unit on */
    __asm volatile("dsb; isb");
    initialise_monitor_handles();
    exit(main());
}
static void hang(void) { for (;;) {} }
__attribute__((section(".isr"), used)) void (*const vectors[16])(void) = {(void (*)(void))&_stack, reset, hang, hang, hang, hang, hang};
X
printf '#define DTRAIN_IMPLEMENTATION\n#include "%s/dtrain.h"\n' "$root" >"$scratch/header.c"

# There a double is a library call of a hundred instructions: none may slip in by promotion.
check "compiles for Cortex-M4, no float promoted to double" \
    $CC $flags -Wall -Wextra -Wdouble-promotion -Werror -c "$scratch/header.c" -o "$scratch/header.o"
check "links for Cortex-M4" $CC $flags -nostartfiles -T "$scratch/board.ld" --specs=rdimon.specs \
    "$scratch/start.c" tests/switches.c -o "$scratch/test.elf" -lm -Wl,--gc-sections
if command -v qemu-system-arm >/dev/null; then
    check "runs on Cortex-M4" timeout 120 qemu-system-arm -M mps2-an386 -nographic -monitor none \
        -semihosting-config enable=on,target=native -kernel "$scratch/test.elf"
else
    skip "runs on Cortex-M4" "no qemu-system-arm"
fi
finish
