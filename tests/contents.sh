#!/bin/sh
# contents.sh HEADER - every >>tag of the contents has one banner and every banner its line in the
# contents, in the same order; comments that point to a room point to one that exists.
awk '
    /^\/\/ =====/                           { body = 1 }
    !body && /^\/\/    >>[a-z]+/            {
        for (i = 2; i <= NF; i++) if (sub(/^>>/, "", $i)) { listed[$i]++; list = list " " $i }
    }
    body && /^\/\/ >>[a-z]+/                { tag = substr($2, 3); banner[tag]++; banners = banners " " tag }
    body && /^ *\/\// && match($0, />>[a-z]+/) { mentioned[substr($0, RSTART + 2, RLENGTH - 2)] = NR }
    function wrong(text)                    { print "contents: " text; bad = 1 }
    END {
        for (tag in listed) if (listed[tag] != 1) wrong(">>" tag " is listed " listed[tag] " times")
        for (tag in banner) if (banner[tag] != 1) wrong(">>" tag " has " banner[tag] " banners")
        for (tag in listed) if (!banner[tag]) wrong(">>" tag " is listed and has no banner")
        for (tag in banner) if (!listed[tag]) wrong(">>" tag " has a banner and is not listed")
        for (tag in mentioned) if (!banner[tag]) wrong("line " mentioned[tag] " points to >>" tag ", which is no room")
        if (!bad && list != banners) wrong("the banners come in another order:" banners)
        if (list == "") wrong("no list of contents found")
        if (!bad) print "contents:" list
        exit bad
    }' "$1"
