#!/bin/sh
# docs.sh - what is public is described where it is declared, is called by a test or an example, and stands in the lists;
# and what the pages promise by name (files, flags, targets, variables) is there. Reads only: a second.
. "$(dirname "$0")/lib.sh"
headers="dtrain.h $(ls examples/*.h | grep -v digits.h)"

# A function is described if
#   - a comment stands behind it on its line, or
#   - the comment above its paragraph (lines without a blank one between) names it: dt_load, dt_dense(x, …) for dt_dense_opt,
#     or "dt_parameter_read, _write"; or names another of the same noun, whose handle or getters it documents (dt_comm_group:
#     dt_comm_rank), or none at all: then it speaks of the group, or
#   - it returns the struct that ends in the line above, whose fields say what they are.
# A comment that begins with "dt_name -" must have dt_name below it: else it describes what has gone.
described() {
    LC_ALL=C awk '
        function noun(name)     { split(name, word, "_"); return word[1] "_" word[2] }
        function said(name,  short, base, suffix) {
            short = name
            sub(/_opt$/, "", short)
            if (match(above, "(^|[^a-z_0-9])" short "($|[^a-z_0-9])")) return 1
            for (base = name; sub(/_[a-z]+$/, "", base); ) {  # dt_parameter_read, _write
                suffix = substr(name, length(base) + 1)
                if (above ~ base "_[a-z_]+, " suffix "($|[^a-z_0-9])") return 1
            }
            if (above == "") return 0
            if (above !~ /^\/\/ dt_[a-z_0-9]+[^.]* - /) return 1
            base = above
            sub(/^\/\/ /, "", base)
            return noun(base " _") == noun(name)
        }
        function wrong(text)    { printf "%s:%d: %s\n", FILENAME, FNR, text; bad = 1 }
        function check_promise() {
            if (promised != "" && !kept) { printf "%s: a comment describes %s, which does not follow it\n", FILENAME, promised; bad = 1 }
            promised = ""
        }
        FNR == 1                { above = ""; returned = ""; promised = ""; check_promise() }
        /^#endif  \/\/ DTRAIN_/ { check_promise(); nextfile }
        /^[ \t]*$/              { check_promise(); above = ""; returned = ""; fresh = 0; next }
        /^\/\/ /                {
            if (!fresh) { check_promise(); above = "" }
            above = above (above == "" ? "" : " ") $0
            fresh = 1
            if ($2 ~ /^dt_[a-z_0-9]+$/ && $3 == "-") { promised = $2; kept = 0 }
            next
        }
                                { fresh = 0 }
        promised != "" && match($0, "(^|[^a-z_0-9])" promised "(_opt)?($|[^a-z_0-9])") { kept = 1 }
        /^} dt_[a-z_]+;/        { returned = substr($2, 1, length($2) - 1); next }
        /^DT_API .*\);/ && !/\{/ {
            name = $0
            sub(/\(.*/, "", name)
            type = name
            sub(/.*[ *]/, "", name)
            functions++
            split(type, word, " ")
            if ($0 !~ /\); *\/\/ ./ && !said(name) && word[2] != returned) wrong(name " has no comment: behind it, above it, or above its group")
        }
        END { print functions " functions"; exit bad || functions < 50 }' $headers
}
check "public functions are described" described

# Comments and texts in quotation marks are no calls. What a macro of its name calls counts for both.
called() {
    LC_ALL=C awk '
        FILENAME ~ /\.h$/ && FILENAME !~ /^tests/ {
            if (/^DT_API .*\);/ && !/\{/) { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); declared[name] = FILENAME ":" FNR }
            if (/^#define dt_[a-z][a-z0-9_]*\(/) { name = $2; sub(/\(.*/, "", name); declared[name] = FILENAME ":" FNR }
            next
        }
        {
            line = $0
            gsub(/"([^"\\]|\\.)*"/, "", line)
            if (comment && !sub(/^.*\*\//, "", line)) next
            comment = 0
            gsub(/\/\*[^*]*\*\//, "", line)
            sub(/\/\/.*/, "", line)
            if (sub(/\/\*.*/, "", line)) comment = 1
            while (match(line, /dt_[a-z0-9_]+/)) {
                seen[substr(line, RSTART, RLENGTH)] = 1
                line = substr(line, RSTART + RLENGTH)
            }
        }
        END {
            for (name in declared) {
                short = name
                sub(/_opt$/, "", short)
                if (!(name in seen) && !(short in seen)) { print declared[name] ": " name " is called by no test and no example"; bad = 1 }
            }
            exit bad
        }' $headers tests/*.h tests/*.c tests/exchange/*.c tests/fuzz/*.c tests/fuzz/*.h examples/*.c examples/*.cpp
}
check "public functions are called" called

listed() {  # every example and header in the map of the examples; every header in the README, too
    bad=0
    for file in examples/*.c examples/*.cpp examples/*.h examples/*.sh; do
        name=$(basename "$file")
        grep -qF "$name" examples/README.md || { echo "examples/README.md does not name $name"; bad=1; }
        case $name in
        digits.h) ;;
        *.h) grep -qF "examples/$name" README.md || { echo "README.md does not name examples/$name"; bad=1; } ;;
        esac
    done
    return $bad
}
check "examples and headers are in the lists" listed

# Names of files in the pages and in head comments: of this tree, but for what their commands make or fetch.
files() {
    bad=0
    for file in $(cat README.md examples/README.md examples/*.h dtrain.h | grep -oE '(examples|tests|bench)/[a-zA-Z0-9_./-]*[a-zA-Z0-9_]' | sort -u); do
        [ -e "$file" ] || [ -e "${file%.}" ] || { echo "$file is named, and is not there"; bad=1; }
    done
    for file in $(grep -oE '\]\([a-z0-9_./]+\)' examples/README.md | tr -d ']()'); do
        [ -e "examples/$file" ] || { echo "examples/README.md links to $file, which is not there"; bad=1; }
    done
    return $bad
}
check "files that are named are there" files

# Every flag has its help beside it in a table. Here: the pages, and what the examples say of themselves, name flags that
# are in a table (of dtrain.h, job.h, or a program's own), or that a program compares its words with. Lines of other tools
# may have theirs.
flags() {
    {
        sed -n 's/^\tDT__FLAG[A-Z_]*([A-Z]*, *"\{0,1\}\([a-z_0-9]*\)"\{0,1\},.*/\1/p; s/^\tDT__\(ONLY\|COUNTS\)(\([a-z_]*\),.*/\2/p' dtrain.h | tr _ -
        grep -hoE '\{"[a-z-]+", *&' examples/*.h examples/*.c bench/*.c | sed 's/{"\([a-z-]*\)".*/\1/'
        grep -hoE '"--[a-z-]+' dtrain.h examples/*.h examples/*.c bench/*.c bench/*.py | sed 's/"--//'
    } | sort -u >"$scratch/flags"
    [ "$(wc -l <"$scratch/flags")" -gt 40 ] || { echo "only these flags were found:"; cat "$scratch/flags"; return 1; }
    bad=0
    {
        cat README.md examples/README.md
        for file in dtrain.h examples/*.h examples/*.c bench/*.c; do sed -n '/^\/\//!q; p' "$file"; done
    } | grep -vE 'torchrun|mpirun|srun|sbatch|docker|kubectl|curl|tensorboard|python' | grep -oE '(^|[^-a-zA-Z0-9])--[a-z][a-z-]*' | sed 's/.*--//' | sort -u >"$scratch/named"
    for flag in $(cat "$scratch/named"); do
        grep -qx -- "$flag" "$scratch/flags" || { echo "--$flag is named, and is no flag"; bad=1; }
    done
    return $bad
}
check "flags that are named exist" flags

# What changes the library from outside has its line: variables that it reads (but a family that launchers set), switches
# that it asks for.
variables() {
    bad=0
    for name in $(grep -v '{"DTRAIN", ' dtrain.h | grep -oE '"DTRAIN_[A-Z_]+"' | tr -d '"' | sort -u) \
        $(sed -n 's/^#.*defined *(*\(DTRAIN_[A-Z_]*\).*/\1/p; s/^#ifn*def \(DTRAIN_[A-Z_]*\).*/\1/p' dtrain.h | sort -u); do
        case $name in DTRAIN_H | DTRAIN_IMPLEMENTED) continue ;; esac
        sed -n '1,/^#define DTRAIN_H/p' dtrain.h | cat - README.md | grep -qw "$name" ||
            grep -qE "^ *// .*[^A-Z_](${name#DTRAIN}|$name)([^A-Z_]|\$)" dtrain.h || { echo "$name is in no manual and no README"; bad=1; }
    done
    for name in $(grep -oE 'DTRAIN_[A-Z_]*[A-Z]' README.md | sort -u); do
        grep -qw "$name" dtrain.h Makefile tests/*.sh examples/*.h || { echo "README.md names $name, which nothing reads"; bad=1; }
    done
    return $bad
}
check "variables and switches have their line" variables

targets() {
    bad=0
    for name in $(cat README.md examples/README.md | grep -oE '(`|^|^DTRAIN_DATA=[^ ]* )make [a-z-]+' | sed 's/.*make //' | sort -u); do
        grep -qE "^$name:" Makefile || { echo "make $name is named, and is no target"; bad=1; }
    done
    for name in $(grep -oE '^[a-z-]+:.*##' Makefile | sed 's/:.*//'); do
        grep -qE "^\.PHONY:.* $name( |\$)|^\.PHONY: $name " Makefile || { echo "make $name is not .PHONY"; bad=1; }
    done
    return $bad
}
check "make targets that are named exist" targets
finish
