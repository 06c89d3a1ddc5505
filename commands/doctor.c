/* scrystal doctor: what an admin wants to know before users do. See doctor.h. */
#include "config.h"

#include "commands/commands.h"
#include "commands/doctor.h"

#include "runtime/conf.h"
#include "runtime/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int problem_count;

void doctor_line(enum doctor_grade grade, const char *what, const char *format, ...)
{
    static const char *const names[] = {"ok", "note", "problem"};
    va_list args;

    if (getenv("SLURM_PROCID") && getenv("SLURMD_NODENAME"))
        printf("%s: ", getenv("SLURMD_NODENAME")); /* srun -N ... scrystal doctor */
    printf("%-8s %-22s ", names[grade], what);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    (void)fflush(stdout); /* before a child shares the buffer; errors show at the end */
    problem_count += grade == DOCTOR_PROBLEM;
}

int doctor_ask(const char *command, char *out, size_t out_bytes)
{
    char line[PATH_MAX + 64];
    FILE *pipe;
    int status;

    out[0] = 0;
    if (snprintf(line, sizeof line, "exec timeout 20 %s 2>/dev/null </dev/null",
                 command) >= (int)sizeof line)
        return -1;
    pipe = popen(line, "re");
    if (!pipe)
        return -1;
    if (fgets(out, (int)out_bytes, pipe))
        out[strcspn(out, "\n")] = 0;
    status = pclose(pipe);
    return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* In the child: the answer goes into the pipe. */
static void load(const char *path, const char *symbol, int fd)
{
    struct {
        unsigned value;
        char why[512];
    } answer = {0, ""};
    void *object = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    const unsigned *value = object && symbol ? dlsym(object, symbol) : NULL;

    if (!object || (symbol && !value))
        (void)snprintf(answer.why, sizeof answer.why, "%s", dlerror());
    else if (value)
        answer.value = *value;
    _exit(write(fd, &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
}

int doctor_load(const char *path, const char *unsigned_symbol, unsigned *ret_value,
                char *out, size_t out_bytes)
{
    struct {
        unsigned value;
        char why[512];
    } answer;
    int fds[2], status = -1;
    ssize_t got = 0;
    pid_t pid;

    if (pipe(fds) < 0 || (pid = fork()) < 0) {
        (void)snprintf(out, out_bytes, "%s", strerror(errno));
        return -1;
    }
    if (pid == 0)
        load(path, unsigned_symbol, fds[1]);
    (void)close(fds[1]);
    got = read(fds[0], &answer, sizeof answer);
    (void)close(fds[0]);
    (void)waitpid(pid, &status, 0);
    if (got != (ssize_t)sizeof answer) {
        (void)snprintf(out, out_bytes, "loading it ends the process (status %d)",
                       status);
        return -1;
    }
    answer.why[sizeof answer.why - 1] = 0;
    (void)snprintf(out, out_bytes, "%s", answer.why);
    if (ret_value)
        *ret_value = answer.value;
    return answer.why[0] ? -1 : 0;
}

static void check_library(const char *name)
{
    struct crystal_error err = {0};
    char path[PATH_MAX], why[512];

    if (crystal_library_path(name, path, sizeof path, &err))
        doctor_line(DOCTOR_PROBLEM, name, "%s", crystal_error_text(&err));
    else if (doctor_load(path, NULL, NULL, why, sizeof why))
        doctor_line(DOCTOR_PROBLEM, name, "%s cannot be loaded: %s; make install again",
                    path, why);
    else
        doctor_line(DOCTOR_OK, name, "%s", path);
}

/* The setting of job directories, and whether the file is one. */
static void check_conf(const char *path, struct doctor_conf *ret)
{
    struct crystal_conf conf;
    struct crystal_error err = {0};

    if (crystal_conf_read(path && path[0] ? path : NULL, &conf, &err)) {
        doctor_line(DOCTOR_PROBLEM, "configuration", "%s", crystal_error_text(&err));
        (void)snprintf(ret->job_dir, sizeof ret->job_dir, ".");
        return;
    }
    doctor_line(!conf.enabled ? DOCTOR_NOTE : DOCTOR_OK, "configuration", "%s%s",
                path && path[0] ? path : "none, so every key has its default",
                conf.enabled ? "" : ": Crystal is switched off (enabled: no)");
    (void)snprintf(ret->job_dir, sizeof ret->job_dir, "%s", conf.job_dir);
    ret->port_first = (long)conf.port_first;
    ret->port_last = (long)conf.port_last;
    crystal_conf_fini(&conf);
}

static void print_keys(void)
{
    for (const struct crystal_conf_key *key = crystal_conf_keys(); key->name; key++)
        printf("%s (%s, default '%s')\n    %s\n", key->name, key->type,
               key->default_text, key->doc);
}

static void help(FILE *out)
{
    fprintf(
        out,
        "usage: scrystal doctor [--config=FILE] [--keys]\n\n"
        "Checks what Crystal needs on this machine, one line each: ok, note (what\n"
        "is done without), problem (what stops a job, and the way out). Exit code\n"
        "1 where there is a problem. 'srun -N4 --ntasks-per-node=1 scrystal doctor'\n"
        "asks four nodes; each line begins with the node then.\n\n"
        "  --config=FILE  this crystal.yaml instead of the one in plugstack.conf\n"
        "  --keys         list the keys of crystal.yaml and end\n");
}

CRYSTAL_COMMAND(doctor)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"keys", no_argument, NULL, 'k'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    char slurm_config[PATH_MAX] = "";
    struct doctor_conf conf = {.job_dir = "."};
    const char *config = NULL;
    int c;

    optind = 1;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (c) {
        case 'c':
            config = optarg;
            break;
        case 'k':
            print_keys();
            return fflush(stdout) == 0 ? 0 : CRYSTAL_EXIT_STAGE;
        default:
            help(c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : CRYSTAL_EXIT_USAGE;
        }
    if (optind < argc) {
        help(stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    doctor_slurm(slurm_config, sizeof slurm_config);
    check_conf(config ? config : slurm_config, &conf);
    check_library("libcrystal-nccl.so");
    check_library("libcrystal-hostccl.so");
    check_library("libnccl-net-crystal.so");
    doctor_gpu();
    doctor_machine(&conf);
    if (fflush(stdout) != 0 || ferror(stdout))
        return CRYSTAL_EXIT_STAGE;
    return problem_count ? 1 : 0;
}
