#!/bin/bash
# pyxis and enroot themselves, which no system packages: CRYSTAL_PYXIS names spank_pyxis.so,
# built for this Slurm, and enroot is in PATH. The image is made of a few files of this machine.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
if [ -z "${CRYSTAL_PYXIS:-}" ] || ! command -v enroot >/dev/null || ! command -v mksquashfs >/dev/null; then
    # Nothing that could be installed is missing.
    pass "not tried here: CRYSTAL_PYXIS names no spank_pyxis.so, or there is no enroot or mksquashfs"
    done_testing
fi
cluster_begin 1
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
for kind in RUNTIME DATA CACHE TEMP; do
    mkdir -p "$work/enroot/$kind"
    export "ENROOT_${kind}_PATH=$work/enroot/$kind"
done

# --- the image: a shell, a C library, and a mark of its own
image=$work/image
mkdir -p "$image"/{etc,tmp,proc,sys,dev,root,mnt,run}
cp /etc/passwd /etc/group "$image/etc/"
programs=(/bin/bash /bin/sh /bin/cat /bin/ls /bin/mkdir /bin/touch /usr/bin/env)
{
    ldd "${programs[@]}" "$rank" | grep -oE '/[^ ]*\.so[^ ]*'
    ldd "$CRYSTAL_BUILDDIR/scrystal" | grep -oE '/[^ ]*/(libc|libm|libdl|libpthread|librt)\.so[^ ]*'
    printf '%s\n' "${programs[@]}"
} | sort -u | xargs cp -L --parents -t "$image"
echo inside >"$image/mnt/mark"
mksquashfs "$image" "$work/image.sqsh" -noappend -quiet -no-progress >/dev/null 2>&1
mounts=$("$CRYSTAL_SRCDIR/contrib/enroot/mounts" "$CRYSTAL_BUILDDIR/scrystal" "$work/cluster/crystal.yaml" |
    awk '{ printf "%s:%s,", $1, $2 }')
container=("--container-image=$work/image.sqsh" "--container-workdir=$PWD"
    "--container-mounts=$mounts$PWD:$PWD,$CRYSTAL_BUILDDIR:$CRYSTAL_BUILDDIR")
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-parallel=tp=2,dp=4
    --crystal-sandbox=2-3 --crystal-iterations=2)
cat >where <<SCRIPT
#!/bin/sh
echo "\$(cat /mnt/mark) \$RANK \$WORLD_SIZE \$SLURM_PROCID" >$PWD/where.\$CRYSTAL_STAGE.\$RANK
exec $rank sh -c 'echo rank \$RANK of \$WORLD_SIZE'
SCRIPT
chmod +x where
mkdir "$work/pyxis"
for order in before after; do
    conf=$work/cluster/plugstack.conf.d/$([ $order = before ] && echo a || echo z)-pyxis.conf
    echo "required $CRYSTAL_PYXIS runtime_path=$work/pyxis" >"$conf"
    run srun "${container[@]}" cat /mnt/mark
    is "$order ours: a plain step" "$code $out" "0 inside"
    run srun "${container[@]}" "${crystal[@]}" -J pyxis "$PWD/where"
    is "$order ours: exit code" "$code" 0
    [ "$code" = 0 ] || tail -n 20 <<<"$err" | sed 's/^/# /'
    is "$order ours: output" "$(sort <<<"$out")" $'rank 2 of 8\nrank 3 of 8'
    is "$order ours: capture" "$(cat where.capture.0)" "inside 0 8 0"
    is "$order ours: plan" "$(cat where.plan.3)" "inside 3 8 3"
    is "$order ours: emulate" "$(cat where.emulate.2)" "inside 2 8 2"
    rm -rf where.* crystal.* "$conf"
done
nothing_left "nothing is left"
done_testing
