#!/bin/bash
# The Debian and the rpm package: built, installed into a root of its own, loaded by Slurm
# from there, removed again; and plugins of another Slurm, or gone ones, which stop nobody.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
command -v dpkg-deb >/dev/null || skip_all "no dpkg-deb"
cluster_begin 1
conf=$work/cluster/plugstack.conf.d/crystal.conf

# --- another release's plugin, a broken one, none: "optional" lets all others run
plain() { # NAME
    run srun hostname
    is "$1: plain srun" "$code $out" "0 $(uname -n)"
    submit --wrap true
    is "$1: plain sbatch" "$code" 0
    run srun --crystal-logical-ranks=8 true
    is "$1: ours is an unknown option" "$code" 255
}
cp "$conf" "$work/own.conf"
echo 'const char plugin_name[] = "crystal"; const char plugin_type[] = "spank";
const unsigned plugin_version = 21 << 16 | 8 << 8; const unsigned spank_plugin_version = 1;' >"$work/old.c"
${CC:-cc} -shared -fPIC -o "$work/old.so" "$work/old.c"
echo "optional $work/old.so" >"$conf"
plain "a plugin of another release"
head -c 64 /dev/urandom >"$work/cut.so"
echo "optional $work/cut.so" >"$conf"
plain "a plugin that is none"
echo "optional $work/gone.so" >"$conf"
plain "no plugin"
cp "$work/own.conf" "$conf"
run srun --crystal-logical-ranks=8 --crystal-live=all --crystal-ranks-per-node=2 --crystal-iterations=2 \
    --crystal-stages=capture "$CRYSTAL_BUILDDIR/tests/slurm/rank"
is "back again" "$code" 0
printf 'enabled: no\n' >"$work/cluster/crystal.yaml"
run srun hostname
is "switched off: plain srun" "$code" 0
: >"$work/cluster/crystal.yaml"

# --- the package of this build tree, whatever its prefix
package=$("$CRYSTAL_SRCDIR/contrib/packages/deb" "$CRYSTAL_BUILDDIR" "$work/packages" 2>/dev/null)
root=$work/root
mkdir -p "$root/var/lib/dpkg/updates" && : >"$root/var/lib/dpkg/status"
run dpkg --root="$root" --force-depends --force-not-root --force-script-chrootless -i "$package"
is "the package installs in a clean root" "$code" 0
is "the package: plugin, command, manual page, configuration" "$(dpkg --root="$root" -L crystal-slurm | grep -cE "/(scrystal|crystal.so|crystal.7|crystal.yaml|plugstack.conf.d/crystal.conf)$")" 5
plugin=$(find "$root/usr" -name crystal.so)
echo "optional $plugin scrystal=$(find "$root/usr" -name scrystal -type f)" >"$conf"
run srun --crystal-logical-ranks=8 --crystal-live=all --crystal-ranks-per-node=2 --crystal-iterations=2 \
    --crystal-stages=capture -J packaged "$CRYSTAL_BUILDDIR/tests/slurm/rank"
is "the package: an emulated srun" "$code" 0
run dpkg --root="$root" --force-not-root --force-script-chrootless --purge crystal-slurm
is "the package goes without a rest" "$code $(find "$root/usr" "$root/etc" -type f 2>/dev/null | wc -l)" "0 0"
run srun hostname
is "the package is gone: plain srun" "$code" 0

# --- the rpm package, the same; Debian's rpm asks whether one knows what one does
if command -v rpmbuild >/dev/null; then
    make -s -C "$CRYSTAL_BUILDDIR" install DESTDIR="$work/tree" >/dev/null 2>&1
    package=$("$CRYSTAL_SRCDIR/contrib/packages/rpm" "$CRYSTAL_BUILDDIR" "$work/packages" 2>"$work/rpm.err")
    is "the rpm package is built" "$(basename "$package")" \
        "crystal-slurm-$(sed -n 's/^PACKAGE_VERSION = //p' "$CRYSTAL_BUILDDIR/Makefile")-1.$(uname -m).rpm"
    is "its files are make install's, and plugstack.conf's line" "$(rpm -qpl "$package" | sed 's/\.gz$//')" \
        "$({ echo /etc/slurm/plugstack.conf.d/crystal.conf
            cd "$work/tree" && find . ! -type d ! -name '*.la' | sed 's/^\.//'; } | LC_ALL=C sort)"
    has "it asks for the libraries" "$(rpm -qp --requires "$package")" libhwloc.so
    root=$work/rpm.root
    mkdir "$root"
    force=$(rpm --help | grep -o -m 1 -e --force-debian)
    # shellcheck disable=SC2086 # none or one
    run rpm --root="$root" $force --nodeps --noscripts -i "$package"
    is "it installs in a clean root" "$code" 0
    is "plugstack.conf's line names the plugin" \
        "$(sed -n 's/^optional \([^ ]*\).*/\1/p' "$root/etc/slurm/plugstack.conf.d/crystal.conf")" \
        "$(cd "$root" && find usr -name crystal.so | sed 's#^#/#')"
    echo "optional $(find "$root" -name crystal.so) scrystal=$(find "$root" -name scrystal -type f)" >"$conf"
    run srun --crystal-logical-ranks=8 --crystal-live=all --crystal-ranks-per-node=2 --crystal-iterations=2 \
        --crystal-stages=capture -J rpm "$CRYSTAL_BUILDDIR/tests/slurm/rank"
    is "an emulated srun from it" "$code" 0
    # shellcheck disable=SC2086
    run rpm --root="$root" $force --noscripts -e crystal-slurm
    is "it goes without a rest" "$code $(find "$root/usr" "$root/etc" -type f 2>/dev/null | wc -l)" "0 0"
    run srun hostname
    is "it is gone: plain srun" "$code" 0
else
    echo "ok $((test_count += 1)) - the rpm package # SKIP no rpmbuild; install rpm"
fi
nothing_left "nothing is left"
done_testing
