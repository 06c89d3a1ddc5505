#!/bin/bash
# make install DESTDIR=: what lies where, and that it works from there.
set -u
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
number=0
cd "$CRYSTAL_BUILDDIR" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS MAKEOVERRIDES CRYSTAL_JOB_DIR DESTDIR

ok() { # ok NAME COMMAND...
    number=$((number + 1)) name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$tmp/out"
    fi
}

# The directories that configure chose, expanded by make itself.
dir() {
    printf 'include Makefile\nshow-dir:\n\t@echo $(%s)\n' "$1" |
        ${MAKE:-make} -s --no-print-directory -f - show-dir
}
bindir=$(dir bindir) libdir=$(dir libdir) pkglibdir=$(dir pkglibdir)
includedir=$(dir includedir) mandir=$(dir mandir) sysconfdir=$(dir sysconfdir)

root=$tmp/root
ok "make install" ${MAKE:-make} -s install "DESTDIR=$root"
is_there() { # is_there TEST PATH
    test "$1" "$root$2" || { find "$root" | sort; return 1; }
}
ok "scrystal" is_there -x "$bindir/scrystal"
for name in libcrystal-nccl libcrystal-hostccl libnccl-net-crystal; do
    ok "$name.so" is_there -f "$pkglibdir/$name.so"
done
if [ -e .libs/crystal.so ]; then
    ok "crystal.so" is_there -f "$pkglibdir/crystal.so"
fi
ok "libcrystal-graph.so" is_there -f "$libdir/libcrystal-graph.so.0.0.0"
ok "its soname" is_there -L "$libdir/libcrystal-graph.so.0"
for name in error graph op profile; do
    ok "crystal/$name.h" is_there -f "$includedir/crystal/$name.h"
done
for page in scrystal "$CRYSTAL_SRCDIR"/doc/man/scrystal-*.1; do
    page=$(basename "$page" .1)
    ok "$page.1" is_there -f "$mandir/man1/$page.1"
done
ok "crystal.7" is_there -f "$mandir/man7/crystal.7"
ok "crystal.yaml.5" is_there -f "$mandir/man5/crystal.yaml.5"
ok "crystal.yaml" is_there -f "$sysconfdir/crystal/crystal.yaml"

doctor() { # finds each library in the installed tree; other lines may be problems here
    local name
    "$root$bindir/scrystal" doctor >"$tmp/doctor" 2>&1
    cat "$tmp/doctor"
    for name in libcrystal-nccl libcrystal-hostccl libnccl-net-crystal; do
        grep -qE "^ok +$name.so +$root$pkglibdir/$name.so\$" "$tmp/doctor" || return 1
    done
}
ok "scrystal doctor finds the installed libraries" doctor
ok "the installed crystal.yaml is accepted" grep -qE '^ok +configuration' <(
    "$root$bindir/scrystal" doctor "--config=$root$sysconfdir/crystal/crystal.yaml")

# A program of a user: the installed header and library are all it needs.
read -ra compiler <<<"${CC:-cc} ${SANITIZER_FLAGS:-}"
ok "a program compiles and links" "${compiler[@]}" -std=c99 -Wall -Wextra -Werror \
    -pedantic -o "$tmp/graphprog" "$CRYSTAL_SRCDIR/tests/programs/graphprog.c" \
    "-I$root$includedir" "-L$root$libdir" -lcrystal-graph
reads() { # reads FILES CODE TEXT
    # shellcheck disable=SC2086 # one or two
    LD_LIBRARY_PATH=$root$libdir "$tmp/graphprog" $1 >"$tmp/text" 2>&1
    code=$?
    cat "$tmp/text"
    [ "$code" -eq "$2" ] && grep -qF -e "$3" "$tmp/text"
}
graph=$CRYSTAL_SRCDIR/tests/data/graph-v1
ok "it reads a graph" reads "$graph" 0 "8 ranks, "
ok "and a profile" reads "$graph ${graph%graph-v1}profile-v1" 0 " ranks measured, iteration "
ok "and says what it cannot read" reads "$CRYSTAL_SRCDIR/README.md" 1 "README.md"
ok "make uninstall" ${MAKE:-make} -s uninstall "DESTDIR=$root"
nothing_left() {
    [ -z "$(find "$root" ! -type d)" ] || { find "$root" ! -type d; return 1; }
}
ok "leaves nothing" nothing_left
echo "1..$number"
