/* What the files of scrystal doctor share: lines, of which each is one thing that
 * Crystal needs, what was seen of it, and the way out where that is not enough.
 */
#ifndef CRYSTAL_DOCTOR_H
#define CRYSTAL_DOCTOR_H

#include <stddef.h>

enum doctor_grade {
    DOCTOR_OK,
    DOCTOR_NOTE,   /* something is done without, or by hand */
    DOCTOR_PROBLEM /* a job would stop, or run without Crystal: exit code 1 */
};

void doctor_line(enum doctor_grade grade, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The first line that a shell command prints within a few seconds, without its end;
 * returns its exit code, -1 where it cannot run. */
int doctor_ask(const char *command, char *out, size_t out_bytes);

/* Loads a shared object in a process of its own. unsigned_symbol: a variable of it to
 * read, may be NULL. Returns 0, or -1 with the reason in out. */
int doctor_load(const char *path, const char *unsigned_symbol, unsigned *ret_value,
                char *out, size_t out_bytes);

/* The value of "KEY=VALUE" in slurm.conf, whose keys have any case; 0 = not there. */
int doctor_slurm_conf(const char *key, char *out, size_t out_bytes);
/* doctor_slurm.c: is the plugin there, of this Slurm's version, and in plugstack.conf?
 * *ret_config is the crystal.yaml that the line names, empty where it names none. */
void doctor_slurm(char *ret_config, size_t config_bytes);

/* doctor_gpu.c: mode and driver of GPUs, the NICs beside them, memory to pin. */
void doctor_gpu(void);

/* What crystal.yaml says of the machine. */
struct doctor_conf {
    char job_dir[4096];         /* template */
    long port_first, port_last; /* 0 = any */
};
/* doctor_machine.c: memory, files, ports, addresses, the job directory, PyTorch. */
void doctor_machine(const struct doctor_conf *conf);

#endif
