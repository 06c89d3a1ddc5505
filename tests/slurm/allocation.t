#!/bin/bash
# The allocation: the handful of nodes whatever -N and -n say, for sbatch, salloc and
# srun, and nothing changed for those who do not ask.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4
crystal=(--crystal-logical-ranks=8192 --crystal-parallel=tp=8,pp=16,dp=64)

submit "${crystal[@]}" -N1024 -n8192 --ntasks-per-node=8 -o wrap.out \
    --wrap 'echo $SLURM_JOB_NUM_NODES $SLURM_NTASKS; srun -N1 -n1 printf "%s\n" "$SLURM_NNODES"'
is "sbatch --wrap: exit code" "$code" 0
is "sbatch --wrap: nodes and tasks, plain srun" "$(cat wrap.out)" $'1 8\n1'
is "sbatch --wrap: NumNodes" "$(job_field NumNodes)" 1
is "sbatch --wrap: NumTasks" "$(job_field NumTasks)" 8

cat >script <<'SCRIPT'
#!/bin/bash
#SBATCH --output=script.out
echo "$SLURM_JOB_NUM_NODES $SLURM_NTASKS $1"
exit 3
SCRIPT
submit "${crystal[@]}" -N64 -- script argument
is "sbatch FILE: the script's exit code" "$code" 3
is "sbatch FILE: output" "$(cat script.out)" "1 8 argument"
is "sbatch FILE: ExitCode" "$(job_field ExitCode)" "3:0"
submit "${crystal[@]}" -N64 <script
is "sbatch < FILE: the script's exit code" "$code" 3
is "sbatch < FILE: output" "$(cat script.out)" "1 8 "
sed 's/^#SBATCH.*/&\n#SBATCH --crystal-logical-ranks=64\n#SBATCH --crystal-live=all -N3/' script >directives
submit directives
is "#SBATCH --crystal-...: exit code" "$code" 3
is "#SBATCH --crystal-...: output" "$(cat script.out)" "1 8 "
run bash -c 'cat script | sbatch "$@"' - "${crystal[@]}"
is "sbatch from a pipe: exit code" "$code" 2
has "sbatch from a pipe: sentence" "$err" "cannot read its script twice from a pipe"
run bash -c 'cat script | sbatch "$@"' - -N2
is "plain sbatch from a pipe" "$(job_field ExitCode) $(cat script.out)" "3:0 2  "

run salloc --quiet "${crystal[@]}" -N64 -n512 bash -c 'echo $SLURM_JOB_NUM_NODES $SLURM_NTASKS; srun -n8 true; exit 5'
is "salloc: the command's exit code" "$code" 5
is "salloc: nodes and tasks" "$out" "1 8"
is "salloc: NumNodes" "$(job_field NumNodes)" 1
run salloc --quiet -N2 bash -c 'echo $SLURM_JOB_NUM_NODES; srun hostname | wc -l; srun -N1 hostname | wc -l'
is "plain salloc" "$code $out" $'0 2\n2\n1'

before=$(last_job)
run srun -N3 -l true
is "plain srun: exit code" "$code" 0
is "plain srun: NumNodes" "$(job_field NumNodes)" 3
is "plain srun: one job, one step" "$(($(last_job) - before))" 1
run srun -n2 sh -c 'exit 9'
is "plain srun: the program's exit code" "$code" 9
run env SLURM_CRYSTAL_LOGICAL_RANKS=64 srun -N2 -n2 sh -c 'echo ${RANK:-none}'
is "a default in the environment switches nothing on" "$code $out" $'0 none\nnone'
run env SLURM_CRYSTAL_LIVE=all salloc --quiet --crystal-logical-ranks=64 sh -c 'echo $SLURM_NTASKS'
is "a default in the environment is one" "$code $out" "0 8"
run env SLURM_CRYSTAL_LIVE=some salloc --quiet --crystal-logical-ranks=64 sh -c 'echo $SLURM_NTASKS'
is "a bad default in the environment is told" "$code" 2
nothing_left "nothing is left"
done_testing
