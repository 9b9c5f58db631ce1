#!/bin/sh
# size.sh HEADER - lines and bytes of each room, and of the whole against its budget.
LC_ALL=C awk '
    function show(name, lines, bytes) { printf "%-12s %6d lines %8d bytes\n", name, lines, bytes }
                            { total += length($0) + 1 }
    NR == 1                 { room = "contents" }
    /^\/\/ =====/           { held++; held_bytes += length($0) + 1; next }  # belongs to the banner below it
    /^\/\/ >>[a-z]+/        { if (lines) show(room, lines, bytes); room = substr($2, 3); lines = bytes = 0 }
                            { lines += 1 + held; bytes += length($0) + 1 + held_bytes; held = held_bytes = 0 }
    END {
        show(room, lines, bytes)
        show("all", NR, total)
        show("budget", 10000, 460800)
        exit NR > 10000 || total > 460800
    }' "$1"
