#!/bin/bash
# Manual pages: one for each subcommand of scrystal, with every option of its --help and no
# other; every option of the plugin in crystal(7); no page that its formatter complains of.
set -u
: "${CRYSTAL_SRCDIR:=$(cd "$(dirname "$0")/../.." && pwd)}"
: "${CRYSTAL_BUILDDIR:=$CRYSTAL_SRCDIR/build}"
scrystal=$CRYSTAL_BUILDDIR/scrystal pages=$CRYSTAL_SRCDIR/doc/man
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"
# The names that stand in the left column of a list, below the line that matches.
names_below() { # PATTERN
    sed -n "/$1/,\$s/^  \([a-z]\{2,\}\) .*/\1/p"
}
# A quoted command line of another program has options of its own.
options_of() { sed "s/'[^']*'//g" | grep -oE -- '--[a-z][a-z-]+' | grep -vx -e --help | sort -u; }
# The page's text without its fonts.
plain() { sed 's/\\f[BIR]//g; s/\\-/-/g' "$1"; }
# In bold at the beginning of a paragraph's tag, where an option is explained.
tags() { # PAGE
    awk '/^\.TP/ { tag = 1; next } tag { print; tag = 0 }' "$1" |
        sed 's/\\f[BIR]//g; s/\\-/-/g' | options_of
}
both() { # COMMAND: --help of it and of its verbs
    "$scrystal" "$1" --help
    [ "$1" != graph ] || "$scrystal" graph --help | names_below '^verbs' |
        while read -r verb; do "$scrystal" graph "$verb" --help; done
}

commands=$("$scrystal" --help | names_below '^Emulates')
is "a page for each subcommand" \
    "$(cd "$pages" && for page in scrystal-*.1; do page=${page#scrystal-}; echo "${page%.1}"; done)" \
    "$(sort <<<"$commands")"
is "scrystal(1) names them in the order of --help" \
    "$(sed -n 's/^\.BR scrystal\\-\([a-z]*\) (1)$/\1/p' "$pages/scrystal.1")" "$commands"
for command in $commands; do
    page=$pages/scrystal-$command.1
    is "$command: the name of the page" "$(plain "$page" | grep -c "^scrystal-$command - .")" 1
    is "$command: its options" "$(tags "$page")" "$(both "$command" | options_of)"
done
is "graph: its verbs" \
    "$(plain "$pages/scrystal-graph.1" | sed -n '/^\.SH VERBS/,/^\.SH OPTIONS/p' |
        awk '/^\.TP/ { getline; print $1 }' | sort -u)" \
    "$("$scrystal" graph --help | names_below '^verbs' | sort)"
is "crystal(7): the plugin's options" "$(tags "$pages/crystal.7" | grep -- --crystal-)" \
    "$(sed -n 's/^ *{"\(crystal-[a-z-]*\)", "[A-Z].*/--\1/p' "$CRYSTAL_SRCDIR/spank/options.c" | sort)"
is "an option that only the page has is seen" \
    "$(printf '.TP\n\\fB\\-\\-no\\-such=\\fR\\fIX\\fR\n' | tags -)" --no-such

if command -v mandoc >/dev/null; then
    is "mandoc has nothing to say" "$(mandoc -T lint -W warning "$pages"/*.[157] 2>&1)" ""
    is "it would" "$(printf '.TH A 1 2026-11-30\n.SH NAME\na \\- b\n.XX\n' |
        mandoc -T lint -W warning 2>&1 | grep -c XX)" 1
else
    number=$((number + 1))
    echo "ok $number - mandoc has nothing to say # SKIP install mandoc"
fi
echo "1..$number"
