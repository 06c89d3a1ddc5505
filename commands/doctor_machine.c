/* The machine under Crystal. See doctor.h. */
#include "config.h"

#include "commands/doctor.h"

#include "runtime/infile.h"
#include "runtime/listen.h"
#include "runtime/space.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* One thousand communicators of one rank with some connections each. */
#define OPEN_FILES_MIN 4096
/* The board of 8192 ranks with two dozen communicators, and room for delay lines. */
#define SHM_BYTES_MIN (256ULL << 20)
/* Each connection of a sandbox rank has one; a node of 8 ranks in a dozen groups. */
#define PORTS_MIN 4096

static void check_shm(void)
{
    struct statvfs fs;
    uint64_t free_bytes;

    if (statvfs("/dev/shm", &fs) < 0 || access("/dev/shm", W_OK) < 0) {
        doctor_line(DOCTOR_PROBLEM, "/dev/shm", "%s; mount a tmpfs there",
                    strerror(errno));
        return;
    }
    free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    doctor_line(free_bytes >= SHM_BYTES_MIN ? DOCTOR_OK : DOCTOR_PROBLEM, "/dev/shm",
                "%" PRIu64 " MiB free%s", free_bytes >> 20,
                free_bytes >= SHM_BYTES_MIN ? "" : "; give it 256 MiB or more");
}

static void check_open_files(void)
{
    struct rlimit limit = {0, 0};
    int good;

    (void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail for a valid resource */
    good = limit.rlim_max >= OPEN_FILES_MIN;
    doctor_line(good ? DOCTOR_OK : DOCTOR_PROBLEM, "open files",
                "at most %" PRIu64 "%s", (uint64_t)limit.rlim_max,
                good ? "" : "; raise the hard limit (ulimit -Hn) to 4096");
}

/* Virtual ranks answer at addresses 127.x.y.z of the node itself. */
static void check_loopback(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), good;

    address.sin_addr.s_addr = htonl(0x7f123456);
    good = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    doctor_line(good ? DOCTOR_OK : DOCTOR_PROBLEM, "127.0.0.0/8", "%s",
                good ? "every address is this node's"
                     : "127.18.52.86 cannot be bound; virtual ranks need the whole of "
                       "127/8");
    if (fd >= 0)
        (void)close(fd);
}

/* port_range of crystal.yaml: how many of it are free. */
static void check_port_range(const struct doctor_conf *conf)
{
    long used = 0, count = conf->port_last - conf->port_first + 1;

    if (!conf->port_first)
        return;
    for (long port = conf->port_first; port <= conf->port_last; port++) {
        uint16_t got;
        int fd;

        if (crystal_listen((uint16_t)port, "port_range", &fd, &got, NULL))
            used++;
        else
            (void)close(fd);
    }
    doctor_line(used == count ? DOCTOR_PROBLEM : DOCTOR_OK, "port_range",
                "%ld of %ld ports are free%s", count - used, count,
                used == count ? "; widen port_range" : "");
}

/* With job_container/tmpfs /tmp is another one in each job, and gone with it. */
static void check_tmp(const struct doctor_conf *conf)
{
    char type[64];

    if (!doctor_slurm_conf("JobContainerType", type, sizeof type) ||
        !strstr(type, "tmpfs"))
        return;
    if (strncmp(conf->job_dir, "/tmp/", 5) == 0 ||
        strncmp(conf->job_dir, "/dev/shm/", 9) == 0)
        doctor_line(DOCTOR_PROBLEM, "job_container",
                    "job directories would be gone with the job (job_dir: %s, %s); set "
                    "job_dir to a shared file system",
                    conf->job_dir, type);
    else
        doctor_line(DOCTOR_OK, "job_container", "%s; job directories lie elsewhere",
                    type);
}

/* Listening sockets take ports of the range for outgoing connections. */
static void check_ports(void)
{
    FILE *file = crystal_infile_stream("/proc/sys/net/ipv4/ip_local_port_range", NULL);
    unsigned first = 0, last = 0;
    int got = file ? fscanf(file, "%u %u", &first, &last) : 0;

    if (file)
        (void)fclose(file); /* only read */
    if (got != 2 || last < first)
        doctor_line(DOCTOR_NOTE, "ports", "the range cannot be read");
    else if (last - first + 1 < PORTS_MIN)
        doctor_line(DOCTOR_PROBLEM, "ports",
                    "%u to %u are only %u; widen net.ipv4.ip_local_port_range to %d or "
                    "more",
                    first, last, last - first + 1, PORTS_MIN);
    else
        doctor_line(DOCTOR_OK, "ports", "%u to %u", first, last);
}

/* What stands before the first part of the template that depends on user or job. */
static void parent_of(const char *template, char *out, size_t out_bytes)
{
    size_t bytes = strcspn(template, "%");

    while (bytes && template[bytes - 1] != '/')
        bytes--;
    (void)snprintf(out, out_bytes, "%.*s", (int)(bytes ? bytes : 1),
                   bytes ? template : ".");
}

static void check_job_dir(const char *template)
{
    char parent[PATH_MAX], at[PATH_MAX];
    struct crystal_error err = {0};
    struct stat st;
    int good;

    parent_of(template, parent, sizeof parent);
    good = stat(parent, &st) == 0;
    if (!good || !S_ISDIR(st.st_mode))
        doctor_line(
            DOCTOR_PROBLEM, "job directory",
            "%s, for job directories (job_dir: %s), %s; make it, or set job_dir",
            parent, template, good ? "is no directory" : strerror(errno));
    else if (access(parent, W_OK | X_OK) < 0)
        doctor_line(DOCTOR_PROBLEM, "job directory",
                    "%s, for job directories (job_dir: %s), is not writable; give "
                    "another --crystal-job-dir, or set job_dir",
                    realpath(parent, at) ? at : parent, template);
    else if (crystal_space_check(parent, &err))
        doctor_line(DOCTOR_PROBLEM, "job directory", "%s", crystal_error_text(&err));
    else
        doctor_line(DOCTOR_OK, "job directory", "%s is writable (job_dir: %s)",
                    realpath(parent, at) ? at : parent, template);
}

/* Found without importing it, which takes seconds. */
static void check_pytorch(void)
{
    static const char *const pythons[] = {"python", "python3"};
    static const char command[] =
        "%s -c 'import importlib.util as u, importlib.metadata as m\n"
        "t = u.find_spec(\"torch\"); c = u.find_spec(\"crystal_torch\")\n"
        "print(\"%%d %%d %%s\" %% (bool(t), bool(c), m.version(\"torch\") if t else "
        "\"-\"))'";
    char line[512], out[128], version[64] = "";
    int torch = 0, ours = 0;
    unsigned major = 0, minor = 0;

    for (int i = 0; i < 2 && !version[0]; i++) {
        (void)snprintf(line, sizeof line, command, pythons[i]);
        if (doctor_ask(line, out, sizeof out) != 0 ||
            sscanf(out, "%d %d %63s", &torch, &ours, version) != 3)
            version[0] = 0;
    }
    (void)sscanf(version, "%u.%u", &major, &minor);
    if (!version[0])
        doctor_line(DOCTOR_NOTE, "PyTorch", "no python here");
    else if (!torch)
        doctor_line(DOCTOR_NOTE, "PyTorch",
                    "this python has none; programs with PyTorch need their own "
                    "environment, with contrib/pytorch in it");
    else if (!ours)
        doctor_line(DOCTOR_PROBLEM, "PyTorch",
                    "%s without crystal_torch, so its programs would not meet Crystal; "
                    "pip install contrib/pytorch",
                    version);
    else if (major < 2 || (major == 2 && minor < 8))
        doctor_line(DOCTOR_PROBLEM, "PyTorch", "%s; crystal_torch needs 2.8 or later",
                    version);
    else
        doctor_line(DOCTOR_OK, "PyTorch", "%s with crystal_torch", version);
}

/* The sandbox on GPUs runs on stock NCCL, without them on libcrystal-hostccl.so. */
static void check_nccl(void)
{
    char why[512];

    if (access("/dev/nvidiactl", F_OK) < 0)
        doctor_line(DOCTOR_OK, "NCCL", "no GPU here: libcrystal-hostccl.so stands in");
    else if (doctor_load("libnccl.so.2", NULL, NULL, why, sizeof why))
        doctor_line(
            DOCTOR_NOTE, "NCCL",
            "libnccl.so.2 is not in the loader's path (PyTorch brings its own)");
    else
        doctor_line(DOCTOR_OK, "NCCL", "libnccl.so.2 is found");
}

void doctor_machine(const struct doctor_conf *conf)
{
    check_nccl();
    check_pytorch();
    check_job_dir(conf->job_dir);
    check_tmp(conf);
    check_shm();
    check_open_files();
    check_ports();
    check_port_range(conf);
    check_loopback();
}
