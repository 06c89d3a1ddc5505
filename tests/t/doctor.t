#!/bin/bash
# scrystal doctor: each line of what is wrong on a made-up machine, and its exit code.
set -u
: "${CRYSTAL_BUILDDIR:=.}"
work=$(mktemp -d /tmp/crystal-doctor.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
count=0
# says NAME CODE LINE [ARGUMENT...]: doctor ends with CODE, and LINE, a regular
# expression, is one of its lines
says() {
    local name=$1 code=$2 line=$3 rc
    shift 3
    count=$((count + 1))
    SLURM_CONF=$work/slurm.conf "$CRYSTAL_BUILDDIR/scrystal" doctor "$@" >out 2>&1
    rc=$?
    if [ $rc -eq "$code" ] && grep -qxE -e "$line" out; then
        echo "ok $count - $name"
    else
        echo "not ok $count - $name"
        echo "# exit code $rc, want $code and: $line"
        sed 's/^/# /' out
    fi
}
plugin=$CRYSTAL_BUILDDIR/.libs/crystal.so
libs=$CRYSTAL_BUILDDIR/.libs

python=$(command -v python3) # another python must not decide
mkdir bin && printf '#!/bin/sh\necho "1 1 2.11.0"\n' >bin/python && chmod +x bin/python
PATH=$work/bin:$PATH
says "a machine without Slurm's file" 1 \
    "problem  Slurm  +$work/slurm.conf cannot be read: stages run by hand .*"
printf 'ClusterName=test\nSlurmctldHost=localhost\n' >slurm.conf
echo "# optional crystal.so" >plugstack.conf
says "no line" 1 "problem  plugstack.conf +no line of $work/plugstack.conf and what it includes names crystal.so, so srun has no --crystal- options; add 'optional .*'"
mkdir conf.d
echo "include conf.d/*.conf" >plugstack.conf

if [ -e "$plugin" ] && command -v srun >/dev/null; then
    echo "optional $plugin config=$work/crystal.yaml" >conf.d/crystal.conf
    echo "job_dir: $work/%u/%x" >crystal.yaml
    says "a whole machine" 0 "ok       crystal.so  +$plugin, for this Slurm \(slurm.*\)"
    says "its configuration is that of the line" 0 "ok       configuration +$work/crystal.yaml"
    says "and its job directories" 0 "ok       job directory +$work is writable \(job_dir: $work/%u/%x\)"
    echo "required $plugin" >conf.d/crystal.conf
    says "a required plugin" 0 "note     plugstack.conf +$work/conf.d/crystal.conf: 'required' stops every job where the plugin is missing; use 'optional'"
else
    for name in "a whole machine" "its configuration is that of the line" \
        "and its job directories" "a required plugin"; do
        count=$((count + 1))
        echo "ok $count - $name # SKIP built without Slurm"
    done
fi
echo "optional crystal.so" >conf.d/crystal.conf
echo "PluginDir=$work/plugins:$work" >>slurm.conf
says "a plugin that is not there" 1 \
    "problem  crystal.so  +crystal.so: Slurm does not find it; give its whole path in $work/conf.d/crystal.conf"
read -ra compiler <<<"${CC:-cc}"
echo "const unsigned plugin_version = 21 << 16 | 8 << 8 | 3;" >old.c
"${compiler[@]}" -shared -fPIC -o crystal.so old.c || echo "Bail out! no compiler"
printf '#!/bin/sh\necho "slurm 22.05.8"\n' >bin/srun && chmod +x bin/srun
says "a plugin for another Slurm, by name" 1 \
    "problem  crystal.so  +$work/crystal.so is for Slurm 21.08, but this is slurm 22.05.8; build it with this Slurm's headers \(configure --with-slurm=PREFIX\)"
echo "int nothing;" >old.c
"${compiler[@]}" -shared -fPIC -o crystal.so old.c
says "no plugin at all" 1 "problem  crystal.so  +$work/crystal.so cannot be loaded: .*undefined symbol: plugin_version"
echo "const unsigned plugin_version = 22 << 16 | 5 << 8 | 1;" >old.c
"${compiler[@]}" -shared -fPIC -o crystal.so old.c
says "another micro version" 0 "ok       crystal.so  +$work/crystal.so, for this Slurm \(slurm 22.05.8\)"
says "libraries are found" 0 "ok       libnccl-net-crystal.so $libs/libnccl-net-crystal.so"

says "no GPU" 0 "ok       GPU mode +no GPU that nvidia-smi tells of"
smi() { printf '#!/bin/sh\nprintf "%s"\n' "$1" >bin/nvidia-smi && chmod +x bin/nvidia-smi; }
smi 'Disabled, Default, 570.86.15\\nDisabled, Default, 570.86.15\\n'
says "GPUs" "$([ "$(ulimit -Hl)" = unlimited ] && echo 0 || echo 1)" "ok       GPU mode +2 GPUs, whole and shared"
smi 'Enabled, Default, 570.86.15\\nDisabled, Default, 570.86.15\\n'
says "MIG" 1 "problem  GPU mode +MIG is on at 1 of 2 GPUs, a rank needs a whole one; nvidia-smi -mig 0"
smi '[N/A], Exclusive_Process, 550.54.15\\n'
says "exclusive GPUs" 1 "problem  GPU mode +1 of 1 GPUs let one process in \(Exclusive_Process\), but ranks share them in capture; nvidia-smi -c DEFAULT"
says "an old driver" 1 "note     driver +550; the fallback by checkpoint needs 570 or later"
rm bin/nvidia-smi
echo "port_range: 31980-31989" >crystal.yaml
says "ports of a range" 0 "ok       port_range +[0-9]+ of 10 ports are free" --config=crystal.yaml
printf 'job_dir: /tmp/%%u/%%x\n' >crystal.yaml
echo "JobContainerType=job_container/tmpfs" >>slurm.conf
says "a /tmp for each job" 1 "problem  job_container +job directories would be gone with the job \(job_dir: /tmp/%u/%x, job_container/tmpfs\); set job_dir to a shared file system" \
    --config=crystal.yaml
sed -i '/JobContainerType/d' slurm.conf
echo "job_dir: /nowhere/%u" >crystal.yaml
says "no place for job directories" 1 \
    "problem  job directory +/nowhere/, for job directories \(job_dir: /nowhere/%u\), No such file or directory; make it, or set job_dir" \
    --config=crystal.yaml
echo "enabled: no" >crystal.yaml
says "switched off" 0 "note     configuration +crystal.yaml: Crystal is switched off \(enabled: no\)" \
    --config=crystal.yaml
echo "wire.speed: 1" >crystal.yaml
says "a bad configuration" 1 "problem  configuration +crystal.yaml:1:13: unknown key 'wire.speed'.*" \
    --config=crystal.yaml
says "PyTorch" 0 "ok       PyTorch +2.11.0 with crystal_torch"
printf '#!/bin/sh\necho "1 1 2.7.1"\n' >bin/python
says "an old PyTorch" 1 "problem  PyTorch +2.7.1; crystal_torch needs 2.8 or later"
printf '#!/bin/sh\necho "1 0 2.11.0"\n' >bin/python
says "PyTorch without our package" 1 \
    "problem  PyTorch +2.11.0 without crystal_torch, so its programs would not meet Crystal; pip install contrib/pytorch"
if [ -n "$python" ]; then
    printf '#!/bin/sh\nexec %s -S -I "$@"\n' "$python" >bin/python
    says "a real python without PyTorch" 0 "note     PyTorch +this python has none; .*"
else
    count=$((count + 1))
    echo "ok $count - a real python without PyTorch # SKIP no python3"
fi
(
    ulimit -n 1000
    says "few files" 1 "problem  open files +at most 1000; raise the hard limit \(ulimit -Hn\) to 4096"
)
count=$((count + 1))
says "no such option" 2 "usage: scrystal doctor .*" --nothing
echo "1..$count"
