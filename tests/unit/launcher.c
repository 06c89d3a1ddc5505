/* Which command lines start ranks of their own. */
#include "config.h"

#include "runtime/launcher.h"

#include "tests/check.h"

static void lines(void)
{
    static const struct {
        const char *argv[6], *want;
    } cases[] = {
        {{"mpirun", "-n", "8", "a.out"}, "mpirun"},
        {{"/opt/bin/deepspeed", "train.py"}, "deepspeed"},
        {{"env", "A=1", "srun", "-n8", "a.out"}, "srun"},
        {{"numactl", "--localalloc", "mpiexec", "a.out"}, "mpiexec"},
        {{"bash", "-c", "cd /tmp && exec mpirun -n 8 x"}, "mpirun"},
        {{"bash", "-lc", "A=1 B=2 mpirun x"}, "mpirun"},
        {{"sh", "-e", "-c", "x; (horovodrun y)"}, "horovodrun"},
        {{"bash", "-c", "echo `jsrun x`"}, "jsrun"},
        {{"bash", "-c", "echo mpirun is not run"}, NULL},
        {{"bash", "-c", "python train.py --launcher mpirun"}, NULL},
        {{"bash", "-c"}, NULL},
        {{"bash", "script", "-c", "mpirun"}, NULL},
        {{"torchrun", "--nnodes=4", "train.py"}, NULL},
        {{"python", "mpirun"}, NULL},
        {{"python", "-m", "torch.distributed.run", "srun"}, NULL},
        {{"mpirunner"}, NULL},
        {{"env", "A=1"}, NULL},
        {{NULL}, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *argv[7] = {NULL};
        const char *got;

        for (int k = 0; k < 6; k++)
            argv[k] = (char *)cases[i].argv[k];
        got = crystal_launcher_find(argv);
        CHECK_STR(got ? got : "none", cases[i].want ? cases[i].want : "none");
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(lines);
    return check_end();
}
