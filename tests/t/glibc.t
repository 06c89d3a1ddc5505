#!/bin/sh
# What is loaded into users' processes needs no function of a glibc newer than 2.28, so
# that it runs in their containers, and nothing that a container may lack.
set -u
libs=$CRYSTAL_BUILDDIR/.libs
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"
command -v objdump >/dev/null || { echo "1..0 # SKIP no objdump; install binutils"; exit 0; }
newer() { # FILE: what it needs that came after 2.28
    objdump -T "$1" | grep -oE 'GLIBC_2\.(29|[3-9][0-9])\)? +[A-Za-z0-9_]+' | tr -s ' ' | sort -u
}
for name in libcrystal-nccl libcrystal-hostccl libnccl-net-crystal libcrystal-graph; do
    is "$name.so: no newer function" "$(newer "$libs/$name.so")" ""
    is "$name.so: needs glibc's libraries only" "$(objdump -p "$libs/$name.so" |
        sed -n 's/^ *NEEDED *//p' | grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so' | tr '\n' ' ')" ""
done
# The test sees one where there is one.
cat >"glibc-$$.c" <<'C'
#include <stdint.h>
#include <sys/stat.h>
int look(const char *path)
{
    struct stat st;

    return stat(path, &st);
}
C
if ${CC:-cc} -shared -fPIC -o "glibc-$$.so" "glibc-$$.c" && [ "$(getconf GNU_LIBC_VERSION | sed 's/.*2\.//')" -ge 33 ]; then
    is "a newer function is found" "$(newer "glibc-$$.so" | sed 's/.* //')" stat
fi
rm -f "glibc-$$.c" "glibc-$$.so"
echo "1..$number"
