#!/bin/bash
# Where the program's Python comes from, and accelerate: a prefix as conda makes it, found
# by PATH alone; a module that is loaded in the batch script; accelerate in a virtual
# environment of its own that CRYSTAL_ACCELERATE names (made with: python3 -m venv
# --without-pip and a .pth that adds PyTorch's site-packages, pip install accelerate).
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
need_pytorch
cluster_begin 1
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-parallel=tp=2,dp=4
    --crystal-iterations=2 --crystal-stages=capture)
train=$CRYSTAL_SRCDIR/tests/slurm/train.py
told() { # NAME WANT
    is "$1" "$code $(cat launched.capture.1)" "0 $2"
    [ "$code" = 0 ] || { echo "$err"; cat crystal.*/log/capture.1.log; } | tail -20 | sed 's/^/# /'
    rm -rf launched.* crystal.*
}

# --- an interpreter and a library of its own, no pyvenv.cfg
version=$("$venv/bin/python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
"$venv/bin/python" - "prefix/lib/$version" <<'PYTHON'
import os, sys, sysconfig
lib = sys.argv[1]
os.makedirs(lib + "/site-packages")
for name in os.listdir(sysconfig.get_paths()["stdlib"]):
    if name not in ("site-packages", "dist-packages"):
        os.symlink(os.path.join(sysconfig.get_paths()["stdlib"], name), f"{lib}/{name}")
with open(lib + "/site-packages/pytorch.pth", "w") as file:
    print("import site; site.addsitedir(%r)" % sysconfig.get_paths()["purelib"], file=file)
PYTHON
mkdir -p prefix/bin prefix/lib/python3
ln -s "../$version/site-packages" prefix/lib/python3/dist-packages # Debian's name of it
cp -L "$venv/bin/python" "prefix/bin/$version"
ln -s "$version" prefix/bin/python
sed "1s|.*|#!$PWD/prefix/bin/python|" "$venv/bin/torchrun" >prefix/bin/torchrun
chmod +x prefix/bin/torchrun
is "the prefix has its own Python" "$(prefix/bin/python -c 'import sys, torch; print(sys.prefix == sys.base_prefix, sys.prefix)')" "True $PWD/prefix"
run env -u VIRTUAL_ENV CONDA_PREFIX="$PWD/prefix" PATH="$PWD/prefix/bin:$PATH" \
    srun "${crystal[@]}" --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=2 "$train"
told "a conda-style prefix" "1 1 8 0 4 0 4 4 - 1 8"

# --- modules: environment-modules or Lmod, of which Debian installs one
for init in /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
    [ ! -e $init ] || break
done
name="module load in a batch script"
case $init in */lmod/*) name+=", Lmod" ;; esac
if [ -e $init ]; then
    mkdir modules
    printf '#%%Module1.0\nprepend-path PATH %s/bin\nsetenv VIRTUAL_ENV %s\n' "$venv" "$venv" >modules/pytorch
    cat >job <<SCRIPT
#!/bin/bash
#SBATCH --output=job.out
. $init
module use $PWD/modules
module load pytorch
srun ${crystal[*]} -n8 python $train
SCRIPT
    submit "${crystal[@]}" job
    err=$(cat job.out)
    told "$name" "1 1 8 - - 1 8 4 venv 1 8"
else
    pass "$name # SKIP no environment-modules"
fi

# --- accelerate: a launcher for each node, which ends in torchrun; and one for each rank
if [ -n "${CRYSTAL_ACCELERATE:-}" ]; then
    export PATH=$CRYSTAL_ACCELERATE/bin:$PATH
    options=(--mixed_precision no --dynamo_backend no)
    # shellcheck disable=SC2016 # the step's shell expands it
    run srun "${crystal[@]}" --ntasks-per-node=1 bash -c "accelerate launch --multi_gpu \
        --num_machines \$SLURM_NNODES --num_processes 8 --machine_rank \$SLURM_NODEID \
        --main_process_ip \$(scontrol show hostnames | head -n 1) --main_process_port 29511 \
        --rdzv_backend c10d ${options[*]} $train"
    told "accelerate, a task a node" "1 1 8 0 4 0 4 4 - 1 8"
    run srun "${crystal[@]}" -n8 accelerate launch --cpu --num_processes 1 --num_machines 1 \
        "${options[@]}" "$train"
    told "accelerate, a task a rank" "1 1 8 - - 1 8 4 - 1 8"
else
    echo "# accelerate: not tried, CRYSTAL_ACCELERATE names no virtual environment that has it"
fi
nothing_left "nothing is left"
done_testing
