#!/bin/sh
# format.sh [fix] - the form of every file of the repository, as far as a tool can judge it: no blanks at a line's end, one line
# end at the file's end, no carriage returns, UTF-8, and levels of one kind: tabs in dtrain.h (its size is limited) and in
# Makefile's commands, four spaces in C elsewhere, none of the other kind. Lines have at most $WIDTH columns; strings and tables
# that were laid out by hand stay as they are, which is why clang-format is not asked (see .clang-format).
# fix mends what can be mended without a choice; the rest is told, and the status is 1.
set -u
cd "$(dirname "$0")/.." || exit 1
: "${WIDTH:=300}"
what=${1:-check} bad=0
list() { git ls-files -co --exclude-standard 2>/dev/null || find . -type f ! -path './.*' | sed 's|^\./||'; }

judge() {  # FILE LEVEL: what is wrong, line by line
    LC_ALL=C awk -v file="$1" -v level="$2" -v width="$WIDTH" '
        function wrong(text) { printf "%s:%d: %s\n", file, NR, text; bad = 1 }
        /\r/                            { wrong("a carriage return") }
        /[ \t]+$/                       { wrong("blanks at the end") }
        level == "tabs" && /^\t* /      { if ($0 !~ /^ \*/) wrong("spaces in front: a level is one tab here") }
        level == "spaces" && /\t/       { wrong("a tab: a level is four spaces here") }
        level != "commands" && /[^\t]\t/ && level != "" { wrong("a tab inside the line") }
        file ~ /\.md$/ && /^\|/ { next }  # a row of a table is one line
        {
            text = $0
            gsub(/[\200-\277]/, "", text)  # characters, not bytes
            if (length(text) > width) wrong(length(text) " columns: at most " width)
        }
        END { exit bad }' "$1" || return 1
}

for file in $(list); do
    [ -f "$file" ] && [ ! -L "$file" ] && [ -s "$file" ] || continue
    level=
    case $file in
    *.safetensors | *.bin | *.npy | *.gz | *.png) continue ;;
    tests/compat/*/*) continue ;;  # never written again
    dtrain.h) level=tabs ;;
    Makefile) level=commands ;;
    *.c | *.cpp | *.h | *.py | *.sh | *.yaml) level=spaces ;;
    esac
    if [ "$what" = fix ]; then
        cp -p "$file" "$file.formatted" || exit 1  # its rights
        LC_ALL=C awk -v level="$level" '
            { sub(/\r$/, ""); sub(/[ \t]+$/, "") }
            level == "spaces"   { while (match($0, /^ *\t/)) $0 = sprintf("%*s", int(RLENGTH + 3) - (RLENGTH + 3) % 4, "") substr($0, RLENGTH + 1) }
            level == "tabs"     { while (match($0, /^\t*    /)) $0 = substr($0, 1, RLENGTH - 4) "\t" substr($0, RLENGTH + 1) }
            /^$/                { empty++; next }
            { for (; empty; empty--) print ""; print }' "$file" >"$file.formatted" || exit 1
        if cmp -s "$file" "$file.formatted"; then rm "$file.formatted"
        else mv "$file.formatted" "$file" && echo "mended $file"; fi
    fi
    judge "$file" "$level" || bad=1
    [ -z "$(tail -c 1 "$file")" ] || { echo "$file: no end of line at the end of the file"; bad=1; }
    [ -n "$(tail -n 1 "$file")" ] || { echo "$file: empty lines at the end of the file"; bad=1; }
    if command -v iconv >/dev/null && ! iconv -f UTF-8 -t UTF-8 "$file" >/dev/null 2>&1; then echo "$file: not UTF-8"; bad=1; fi
done
[ $bad = 0 ] && echo "format: nothing to mend"
exit $bad
