#!/bin/bash
# Launch styles: torchrun with each kind of rendezvous, itself, as a module, inside bash -c
# and a script; addresses of the program's own; a virtual environment; what is refused.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
need_pytorch
cluster_begin 2
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-sandbox=2-3
    --crystal-parallel=tp=2,dp=4 --crystal-iterations=2)
capture=("${crystal[@]}" --crystal-stages=capture)
train=$CRYSTAL_SRCDIR/tests/slurm/train.py
# shellcheck source=/dev/null
. "$venv/bin/activate"

# What the ranks of a stage were told: ours, whatever the line says. Torchrun's own
# numbers and those of a step with a task a node, "-" without a launcher.
launched() { # STAGE RANK
    cat "launched.$1.$2" 2>&1
}
told() { # NAME STAGE RANK GROUP-RANK GROUPS PROCID NTASKS NNODES
    is "$1: $2 of rank $3" "$(launched "$2" "$3")" \
        "$3 $(($3 % 2)) 8 $4 $5 $6 $7 $8 venv $3 8"
}

# --- torchrun in all stages: a task a node, c10d; the other nodes' agents do not exist
run srun "${crystal[@]}" -N4 --ntasks-per-node=1 -J c10d torchrun --nnodes=4 \
    --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=7 --rdzv-endpoint=nowhere:29500 "$train"
is "torchrun, c10d: exit code" "$code" 0
told "torchrun, c10d" capture 0 0 4 0 4 4
told "torchrun, c10d" plan 3 1 4 1 4 4
told "torchrun, c10d" emulate 2 1 4 1 4 4
told "torchrun, c10d" emulate 3 1 4 1 4 4
has "torchrun, c10d: report" "$err" "crystal: report: "
[ "$code" = 0 ] || echo "$err" | sed 's/^/# /'
nothing_left "torchrun, c10d: nothing is left"
rm -f launched.*

# --- the rest in capture only, which starts ranks as the other stages do
style() { # NAME GROUP-RANK GROUPS PROCID NTASKS COMMAND...
    local name=$1 group=$2 groups=$3 procid=$4 ntasks=$5
    shift 5
    run "$@"
    is "$name: exit code" "$code" 0
    [ "$code" = 0 ] || { echo "$err"; cat crystal.*/log/capture.1.log; } | tail -20 | sed 's/^/# /'
    told "$name" capture 1 "$group" "$groups" "$procid" "$ntasks" 4
    rm -rf launched.* crystal.*
}
style "torchrun, static, as a module, in bash -c" 0 4 0 4 \
    srun "${capture[@]}" --ntasks-per-node=1 bash -c "python -m torch.distributed.run \
    --nnodes=\$SLURM_NNODES --node-rank=\$SLURM_NODEID --nproc_per_node 2 \
    --master-addr=\$(scontrol show hostnames | head -n 1) --master-port=29511 $train"
cat >job <<SCRIPT
#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --output=job.out
export MASTER_ADDR=\$(scontrol show hostnames "\$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=\$((10000 + SLURM_JOB_ID % 20000))
cat >each <<EACH
#!/bin/bash
. $venv/bin/activate
exec torchrun --nnodes \\\$SLURM_NNODES --nproc_per_node=2 --node_rank \\\$SLURM_PROCID \
    --master_addr \\\$MASTER_ADDR --master_port \\\$MASTER_PORT $train
EACH
chmod +x each
srun ${capture[*]} ./each
SCRIPT
submit "${crystal[@]}" job
is "torchrun in a script of a batch job: exit code" "$code" 0
[ "$code" = 0 ] || tail -20 job.out | sed 's/^/# /'
told "torchrun in a script of a batch job" capture 1 0 4 0 4 4
rm -rf launched.* crystal.*
style "a task per rank, its own MASTER_PORT" - - 1 8 \
    srun "${capture[@]}" -n8 python "$train" --port 29513
style "a task per rank, tcp://" - - 1 8 \
    srun "${capture[@]}" -n8 bash -c "exec python $train --init tcp://localhost:29514"

# --- refused
run srun "${capture[@]}" -J nproc --ntasks-per-node=1 torchrun --nproc-per-node=4 "$train"
is "torchrun with another number of ranks: exit code" "$code" 70
has "torchrun with another number of ranks: sentence" "$(cat crystal.nproc/log/capture.0.log)" \
    "crystal: pytorch: torchrun --nproc-per-node=4, but a node of the job has 2 ranks; give --crystal-ranks-per-node=4"
run srun "${capture[@]}" -J file python "$train" --init "file://$PWD/meet"
is "a file to meet at: exit code" "$code" 70
has "a file to meet at: sentence" "$(cat crystal.file/log/capture.0.log)" \
    "crystal: ranks that do not run cannot meet at a file; use init_method env:// or tcp://"
launcher() { # WORD COMMAND...
    local word=$1
    shift
    run srun "${crystal[@]}" "$@"
    is "$*: exit code" "$code" 2
    is "$*: sentence" "$err" "crystal: layout: the program is started by '$word', which would start ranks of its own; let srun or torchrun start it"
}
launcher mpirun mpirun -n 8 python "$train"
launcher deepspeed /opt/bin/deepspeed --hostfile=h "$train"
launcher mpiexec bash -c "cd /tmp && mpiexec -n 8 python $train"
launcher srun env A=1 srun -n8 python "$train"
run srun --crystal-logical-ranks=64 --crystal-ranks-per-node=16 --crystal-live=all true
is "more ranks a node than GPUs: exit code" "$code" 2
is "more ranks a node than GPUs: sentence" "$err" "crystal: layout: --crystal-ranks-per-node: 16 ranks of a target node need 16 GPUs of one node, the partition's have 8; use a partition with larger nodes, or --crystal-ranks-per-node=8"
nothing_left "nothing is left"
done_testing
