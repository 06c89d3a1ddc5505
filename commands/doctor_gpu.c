/* GPUs, their mode and what lies beside them. See doctor.h.
 *
 * nvidia-smi tells mode and driver: a line for each GPU, "Disabled, Default, 570.86.15"
 * (MIG mode, compute mode, driver), by its --query-gpu.
 */
#include "config.h"

#include "commands/doctor.h"

#include "runtime/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* What the checkpoint fallback of capture needs. */
#define DRIVER_MIN 570
/* NCCL and RDMA pin their buffers. */
#define MEMLOCK_BYTES_MIN (1ULL << 30)

struct gpus {
    unsigned count, mig, exclusive, driver;
};

/* Reads all lines of the answer. */
static struct gpus ask_gpus(void)
{
    FILE *pipe = popen("exec timeout 20 nvidia-smi --query-gpu=mig.mode.current,"
                       "compute_mode,driver_version --format=csv,noheader 2>/dev/null "
                       "</dev/null",
                       "re");
    struct gpus gpus = {0};
    char line[256], mig[64], mode[64];
    unsigned driver;

    while (pipe && fgets(line, sizeof line, pipe)) {
        if (sscanf(line, " %63[^,], %63[^,], %u", mig, mode, &driver) != 3)
            continue;
        gpus.count++;
        gpus.mig += strcmp(mig, "Enabled") == 0;
        gpus.exclusive += strcmp(mode, "Exclusive_Process") == 0;
        gpus.driver = driver;
    }
    if (pipe)
        (void)pclose(pipe); /* what it printed counts */
    return gpus;
}

static void check_modes(const struct gpus *gpus)
{
    if (gpus->mig)
        doctor_line(DOCTOR_PROBLEM, "GPU mode",
                    "MIG is on at %u of %u GPUs, a rank needs a whole one; nvidia-smi "
                    "-mig 0",
                    gpus->mig, gpus->count);
    else if (gpus->exclusive)
        doctor_line(DOCTOR_PROBLEM, "GPU mode",
                    "%u of %u GPUs let one process in (Exclusive_Process), but ranks "
                    "share them in capture; nvidia-smi -c DEFAULT",
                    gpus->exclusive, gpus->count);
    else
        doctor_line(DOCTOR_OK, "GPU mode", "%u GPUs, whole and shared", gpus->count);
    doctor_line(gpus->driver >= DRIVER_MIN ? DOCTOR_OK : DOCTOR_NOTE, "driver", "%u%s",
                gpus->driver,
                gpus->driver >= DRIVER_MIN
                    ? ""
                    : "; the fallback by checkpoint needs 570 or later");
}

/* Which NIC a GPU's rank would take. */
static void check_pairs(unsigned count)
{
    struct crystal_error err = {0};
    struct crystal_place *places = NULL;
    unsigned far = 0, without = 0, with_gpu = 0;

    if (crystal_topology_place(NULL, count, &places, &err)) {
        doctor_line(DOCTOR_NOTE, "NICs", "%s", crystal_error_text(&err));
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        with_gpu += places[i].gpu[0] != 0;
        without += !places[i].nic[0];
        far += places[i].nic[0] && strcmp(places[i].nic_distance, "SYS") == 0;
    }
    if (!with_gpu)
        doctor_line(DOCTOR_NOTE, "NICs",
                    "hwloc sees no GPU here; scrystal layout --draw");
    else if (without)
        doctor_line(DOCTOR_NOTE, "NICs", "%u of %u GPUs have no NIC of the fabric",
                    without, count);
    else
        doctor_line(far ? DOCTOR_NOTE : DOCTOR_OK, "NICs",
                    "%u GPUs, %u with a NIC at "
                    "another socket; scrystal layout --draw shows the pairs",
                    count, far);
    free(places);
}

static void check_memlock(void)
{
    struct rlimit limit = {0, 0};
    int good;

    (void)getrlimit(RLIMIT_MEMLOCK, &limit); /* cannot fail for a valid resource */
    good = limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= MEMLOCK_BYTES_MIN;
    doctor_line(
        good ? DOCTOR_OK : DOCTOR_PROBLEM, "locked memory", "%s",
        good ? "enough"
             : "less than 1 GiB may be pinned; LimitMEMLOCK=infinity in slurmd's "
               "unit, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf");
}

void doctor_gpu(void)
{
    struct gpus gpus = ask_gpus();

    if (!gpus.count) {
        doctor_line(DOCTOR_OK, "GPU mode", "no GPU that nvidia-smi tells of");
        return;
    }
    check_modes(&gpus);
    check_memlock();
    check_pairs(gpus.count);
}
