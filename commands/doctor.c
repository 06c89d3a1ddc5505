/* scrystal doctor: what an admin wants to know before users do. Each line is one thing
 * that Crystal needs, with what was seen; exit code 0 where nothing is wrong.
 */
#include "config.h"

#include "commands/commands.h"

#include "runtime/conf.h"
#include "runtime/library.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdarg.h>
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

static int problem_count;

static void line(int good, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void line(int good, const char *what, const char *format, ...)
{
    va_list args;

    printf("%-8s %-22s ", good ? "ok" : "problem", what);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    problem_count += !good;
}

static void check_shm(void)
{
    struct statvfs fs;
    uint64_t free_bytes;

    if (statvfs("/dev/shm", &fs) < 0 || access("/dev/shm", W_OK) < 0) {
        line(0, "/dev/shm", "%s; mount a tmpfs there", strerror(errno));
        return;
    }
    free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    line(free_bytes >= SHM_BYTES_MIN, "/dev/shm", "%" PRIu64 " MiB free%s",
         free_bytes >> 20,
         free_bytes >= SHM_BYTES_MIN ? "" : "; give it 256 MiB or more");
}

static void check_open_files(void)
{
    struct rlimit limit = {0, 0};

    (void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail for a valid resource */
    line(limit.rlim_max >= OPEN_FILES_MIN, "open files", "at most %" PRIu64 "%s",
         (uint64_t)limit.rlim_max,
         limit.rlim_max >= OPEN_FILES_MIN ? "" : "; raise the hard limit to 4096");
}

/* Virtual ranks answer at addresses 127.x.y.z of the node itself. */
static void check_loopback(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), good;

    address.sin_addr.s_addr = htonl(0x7f123456);
    good = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    line(good, "127.0.0.0/8", "%s",
         good ? "every address is this node's"
              : "127.18.52.86 cannot be bound; virtual ranks need the whole of 127/8");
    if (fd >= 0)
        (void)close(fd);
}

static void check_library(const char *name)
{
    struct crystal_error err = {0};
    char path[4096];
    int good = crystal_library_path(name, path, sizeof path, &err) == 0;

    line(good, name, "%s", good ? path : crystal_error_text(&err));
}

static void check_slurm(void)
{
    static const char *const places[] = {"/etc/slurm/plugstack.conf.d", "/etc/slurm"};
    const char *conf = getenv("SLURM_CONF");

    if (conf || access("/etc/slurm/slurm.conf", R_OK) == 0) {
        line(1, "Slurm", "%s", conf ? conf : "/etc/slurm/slurm.conf");
        for (int i = 0; i < 2 && !conf; i++)
            if (access(places[i], R_OK) == 0) {
                line(1, "plugstack", "%s: add 'optional crystal.so'", places[i]);
                break;
            }
    } else {
        line(1, "Slurm",
             "no SLURM_CONF, no /etc/slurm/slurm.conf: stages run by hand (scrystal "
             "capture, plan, emulate), the plugin is not looked at");
    }
}

static void print_keys(void)
{
    for (const struct crystal_conf_key *key = crystal_conf_keys(); key->name; key++)
        printf("%s (%s, default '%s')\n    %s\n", key->name, key->type,
               key->default_text, key->doc);
}

static void help(void)
{
    printf("usage: scrystal doctor [--config=FILE] [--keys]\n\n"
           "Checks what Crystal needs on this machine, one line each.\n\n"
           "  --config=FILE  also check this crystal.yaml\n"
           "  --keys         list the keys of crystal.yaml and end\n");
}

CRYSTAL_COMMAND(doctor)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"keys", no_argument, NULL, 'k'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
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
            return 0;
        case 'h':
            help();
            return 0;
        default:
            return CRYSTAL_EXIT_USAGE;
        }
    if (config) {
        struct crystal_conf conf;
        struct crystal_error err = {0};

        if (crystal_conf_read(config, &conf, &err) == 0) {
            line(1, "configuration", "%s", config);
            crystal_conf_fini(&conf);
        } else {
            line(0, "configuration", "%s", crystal_error_text(&err));
        }
    }
    check_slurm();
    check_library("libcrystal-nccl.so");
    check_library("libcrystal-hostccl.so");
    check_library("libnccl-net-crystal.so");
    check_shm();
    check_open_files();
    check_loopback();
    return problem_count ? 1 : 0;
}
