#!/bin/bash
# A second plugin, which does what one for containers does, before and after ours in
# plugstack.conf, with its option in sbatch and salloc and without: all stages run inside,
# and the rank's numbers are right there. The image is this machine's root as a folder,
# with a mark of its own.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 1
plugin=$CRYSTAL_BUILDDIR/tests/slurm/.libs/container.so
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-parallel=tp=2,dp=4
    --crystal-sandbox=2-3 --crystal-iterations=2)
# Not below $work, which is removed with all that is in it: rmdir leaves a mount alone.
image=$(mktemp -d /tmp/crystal-image.XXXXXX)
trap 'umount -l "$image" 2>/dev/null; rmdir "$image"; cluster_end' EXIT
if ! mount --rbind / "$image" || ! mount --make-rslave "$image" || ! mount -t tmpfs tmpfs "$image/mnt"; then
    fail "an image" "mount --rbind does not work here"
    done_testing
fi
echo inside >"$image/mnt/mark"
cat >where <<SCRIPT
#!/bin/sh
echo "\$(cat /mnt/mark 2>/dev/null) \$RANK \$WORLD_SIZE \$SLURM_PROCID" >$PWD/where.\$CRYSTAL_STAGE.\$RANK
exec $rank sh -c 'echo rank \$RANK of \$WORLD_SIZE'
SCRIPT
chmod +x where

all_inside() { # NAME
    is "$1: exit code" "$code" 0
    [ "$code" = 0 ] || echo "$err" | tail -20 | sed 's/^/# /'
    is "$1: output" "$(sort <<<"$out")" $'rank 2 of 8\nrank 3 of 8'
    is "$1: capture" "$(cat where.capture.0)" "inside 0 8 0"
    is "$1: plan" "$(cat where.plan.3)" "inside 3 8 3"
    is "$1: emulate" "$(cat where.emulate.2)" "inside 2 8 2"
    rm -rf where.* crystal.*
}
for order in before after; do
    for option in "" allocator; do
        name=$([ $order = before ] && echo a || echo z)-container.conf
        echo "required $plugin $option" >"$work/cluster/plugstack.conf.d/$name"
        if [ -n "$option" ]; then # the job has the image
            run salloc --quiet "${crystal[@]}" --container-image="$image" srun --crystal-stages=capture,plan,emulate "$PWD/where"
        else
            run srun --container-image "$image" "${crystal[@]}" "$PWD/where"
        fi
        all_inside "$order ours, ${option:-srun} has the option"
        rm "$work/cluster/plugstack.conf.d/$name"
    done
done
run srun "${crystal[@]}" -J plain "$PWD/where"
is "without the plugin" "$code $(cat where.emulate.2)" "0  2 8 2"
nothing_left "nothing is left"

# --- the cluster that a step belongs to stays known to the helper steps
cat >keep <<SCRIPT
#!/bin/sh
env | grep -E '^SLURM_(CONF|CLUSTERS|WORKING_CLUSTER|JWT|SPANK_OTHER)=' | sort >$PWD/kept.\$CRYSTAL_STAGE
exec $rank
SCRIPT
chmod +x keep
run env SLURM_SPANK_OTHER=1 srun "${crystal[@]}" -J keep --crystal-stages=capture "$PWD/keep"
is "environment of helper steps" "$code $(grep -c SPANK_OTHER kept.capture)" "0 1"

# --- what enroot is told to mount is all that scrystal needs beside a C library
echo 'limits: {logical_ranks: 4}' >"$work/cluster/crystal.yaml"
"$CRYSTAL_SRCDIR/contrib/enroot/mounts" "$CRYSTAL_BUILDDIR/scrystal" >mounts
cat >bare <<'SCRIPT'
mkdir bare.root && mount -t tmpfs tmpfs bare.root || exit 9
ldd "$1" | grep -oE '/[^ ]*/(libc|libm|libdl|libpthread|librt|ld-linux[^/ ]*)\.so[^ ]*' |
    xargs cp -L --parents -t bare.root
while read -r from to _; do
    mkdir -p "bare.root$(dirname "$to")" && touch "bare.root$to" && mount --bind "$from" "bare.root$to"
done <mounts
exec chroot bare.root "$1" layout --logical-ranks=8 --live=all --config="$2"
SCRIPT
has "mounts: crystal.yaml of plugstack.conf" "$(cat mounts)" "$work/cluster/crystal.yaml $work/cluster/crystal.yaml none x-create=file"
run unshare --mount sh ./bare "$CRYSTAL_BUILDDIR/scrystal" "$work/cluster/crystal.yaml"
is "mounts: scrystal runs and reads it" "$code" 2
has "mounts: its sentence" "$err" "--logical-ranks: '8' is no whole number from 1 to 4"
done_testing
