#!/bin/sh
# coverage.sh [FOLDER] - which lines and branches of dtrain.h, and of the headers beside it, no program has run
#
# FOLDER ($BUILD/coverage) holds what programs built with --coverage left there: `make coverage` makes it. Each program has
# the whole header, so its counts are added up here, line by line, from what plain gcov prints. A line counts if any program
# has code for it; one of another CPU's instructions, or behind a switch that no program sets, has none and does not count.
# FOLDER/uncovered.txt lists what nobody ran: functions first, then lines. Less than LEAST percent of dtrain.h's lines is a failure.
#   GCOV   what reads the counts: gcov, or GCOV="llvm-cov gcov" for a program made by clang
set -u
cd "$(dirname "$0")/.." || exit 1
: "${BUILD:=.build}" "${GCOV:=gcov}" "${LEAST:=90}"
folder=${1:-$BUILD/coverage}
notes=$(find "$folder" -name '*.gcno' | sort)
[ -n "$notes" ] || { echo "coverage: no .gcno in $folder: make coverage builds the programs that leave them"; exit 1; }

stale=$(find dtrain.h examples/*.h -newer "$(ls -tr $notes | head -n 1)")
[ -z "$stale" ] || { echo "coverage: $stale changed after a program was built, so lines would not match: make coverage again"; exit 1; }

# One notes file at a time: gcov names all alike when it writes files, so it writes to its output (-t).
for note in $notes; do
    $GCOV -b -c -t "$note" 2>/dev/null || { echo "coverage: $GCOV cannot read $note: GCOV names the gcov of the compiler in CC" >&2; exit 1; }
done >"$folder/counts" || exit 1

LC_ALL=C awk -v folder="$folder" -v least="$LEAST" '
    function percent(part, all) { return all ? sprintf("%5.1f %%", 100 * part / all) : "      -" }
    function show(name, key) {
        printf "%-14s %6d of %6d lines %s   %6d of %6d branches %s\n", name, ran[key], lines[key], percent(ran[key], lines[key]), \
            taken[key], branches[key], percent(taken[key], branches[key])
    }
    # ---- the counts: "function NAME called N …", "COUNT:LINE:TEXT", "branch N taken COUNT"
    $1 == "-:" && $2 ~ /^0:Source:/ {
        file = $0
        sub(/^.*Source:/, "", file)
        at = 0
        if (file !~ /dtrain\.h$|examples\/[a-z_0-9]+\.h$/ || file ~ /digits\.h$/) { file = ""; next }
        sub(/^.*\//, "", file)
        next
    }
    file == ""              { next }
    /^function /            { calls[file, $2] += $4; pending[++n_pending] = $2; next }
    /^branch /              { if (at) { k = file SUBSEP at SUBSEP $2 + 0; branch[k] += $4 == "executed" ? 0 : $4 } next }
    /^(call|uncond)/        { next }
    match($0, /^ *[^:]+: *[0-9]+:/) {
        split($0, part, ":")
        count = part[1]
        gsub(/ /, "", count)
        at = part[2] + 0
        for (; n_pending; n_pending--) where[file, pending[n_pending]] = at
        if (!at || count == "-") next
        hits[file, at] += count ~ /^[#=]/ ? 0 : count + 0
        if (!((file, at) in text)) { text[file, at] = substr($0, RLENGTH + 1); if (at > last[file]) last[file] = at }
    }
    END {
        # ---- the rooms of dtrain.h
        room = "contents"
        for (n = 1; (getline line <"dtrain.h") > 0; n++) {
            if (line ~ /^\/\/ >>[a-z]+/) { room = substr(line, 6); sub(/ .*/, "", room); order[++n_rooms] = room }
            of[n] = room
        }
        for (file in last) {
            for (n = 1; n <= last[file]; n++) {
                if (!((file, n) in hits)) continue
                r = file == "dtrain.h" ? of[n] : ""
                lines[file]++; lines[file, r]++
                if (hits[file, n]) { ran[file]++; ran[file, r]++ }
            }
        }
        for (key in branch) {
            split(key, part, SUBSEP)
            file = part[1]; r = file == "dtrain.h" ? of[part[2]] : ""
            branches[file]++; branches[file, r]++
            if (branch[key]) { taken[file]++; taken[file, r]++ }
        }
        for (i = 1; i <= n_rooms; i++) if (lines["dtrain.h", order[i]]) show(order[i], "dtrain.h" SUBSEP order[i])
        show("dtrain.h", "dtrain.h")
        for (file in last) if (file != "dtrain.h") names[++n_names] = file
        for (i = 1; i <= n_names; i++) for (j = i + 1; j <= n_names; j++) if (names[j] < names[i]) { file = names[i]; names[i] = names[j]; names[j] = file }
        for (i = 1; i <= n_names; i++) show(names[i], names[i])

        # ---- what nobody ran
        list = folder "/uncovered.txt"
        printf "" >list
        close(list)
        for (key in calls) {
            split(key, part, SUBSEP)
            if (!calls[key]) { printf "%s:%05d: never called: %s\n", part[1], where[key], part[2] | ("sort >>" list); n_functions++ }
        }
        close("sort >>" list)
        names[0] = "dtrain.h"
        for (i = 0; i <= n_names; i++)
            for (n = 1; n <= last[names[i]]; n++)
                if ((names[i], n) in hits && !hits[names[i], n]) printf "%s:%d:%s\n", names[i], n, text[names[i], n] >>list
        close(list)
        printf "%d functions were never called; they and the lines are in %s\n", n_functions, list
        if (100 * ran["dtrain.h"] < least * lines["dtrain.h"]) {
            printf "coverage: less than %g %% of the lines of dtrain.h: a test is missing\n", least
            exit 1
        }
    }' "$folder/counts"
