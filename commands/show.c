/* scrystal show: prints any binary file of a job directory, which its first 8 bytes
 * name.
 */
#include "config.h"

#include "commands/commands.h"
#include "commands/show.h"

#include "replay/run_record.h"
#include "runtime/blockfile.h"
#include "runtime/filehead.h"
#include "runtime/infile.h"
#include "runtime/log.h"
#include "runtime/payload.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_head(const struct crystal_filehead *h, const char *what)
{
    printf("%s of rank %" PRIu64 ", version %u, fingerprint %016" PRIx64 ", %s\n", what,
           h->lrank, h->version, h->fingerprint,
           h->file_bytes ? "sealed" : "still being written");
}

static int show_trace(const char *path, struct crystal_error *err)
{
    struct crystal_trace trace;
    int code = crystal_trace_read(path, &trace, err);

    if (code)
        return code;
    print_head(&trace.head, "trace");
    printf("%" PRIu64 " records (record, us since start)\n", trace.op_count);
    crystal_show_ops(stdout, trace.ops, 0, trace.op_count);
    crystal_trace_fini(&trace);
    return 0;
}

static int show_graph(const char *path, struct crystal_error *err)
{
    struct crystal_graph *g = crystal_graph_open(path, err);
    int code;

    if (!g)
        return -EINVAL;
    code = crystal_show_graph(stdout, g, 1);
    crystal_graph_close(g);
    return code ? crystal_error_set(err, -code, "%s: out of memory", path) : 0;
}

static int show_payload(const char *path, struct crystal_error *err)
{
    struct crystal_file_view view;
    const unsigned char *bytes;
    int code = crystal_file_map(path, CRYSTAL_PAYLOAD_MAGIC, CRYSTAL_PAYLOAD_VERSION,
                                &view, err);

    if (code)
        return code;
    print_head(view.head, "payload");
    printf("%zu bytes\n", view.body_bytes);
    bytes = view.body;
    for (size_t i = 0; i < view.body_bytes; i += 16) {
        printf("%8zu ", i);
        for (size_t k = i; k < i + 16 && k < view.body_bytes; k++)
            printf(" %02x", bytes[k]);
        putchar('\n');
    }
    crystal_file_unmap(&view);
    return 0;
}

static int show_profile(const char *path, struct crystal_error *err)
{
    struct crystal_profile *p = crystal_profile_open(path, err);

    if (!p)
        return -EINVAL;
    crystal_show_profile(stdout, p);
    crystal_profile_close(p);
    return 0;
}

static int show_run(const char *path, struct crystal_error *err)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct crystal_filehead head;
    void *records;
    uint64_t count;
    int code = crystal_block_read(path, &kind, &head, &records, &count, err);

    if (code)
        return code;
    print_head(&head, "run");
    printf("%" PRIu64 " operations\n"
           "   order function      comm             crank       bytes       called us"
           "    began    ended   waited\n",
           count);
    for (uint64_t i = 0; i < count; i++) {
        const struct crystal_run_record *r = (struct crystal_run_record *)records + i;

        printf("%8" PRIu64 " %-13s %016" PRIx64 " %u/%u %11" PRIu64
               " %15.3f %+8.3f %+8.3f %8u%s%s",
               r->order, crystal_func_name(r->func), r->comm_id, r->crank, r->nranks,
               r->bytes, (double)r->api_ns / 1e3,
               (double)(int64_t)(r->arrive_ns - r->api_ns) / 1e3,
               (double)(int64_t)(r->end_ns - r->api_ns) / 1e3, r->waited_us,
               r->flags & CRYSTAL_RUN_VIRTUAL ? " virtual" : "",
               r->flags & CRYSTAL_RUN_STANDIN ? " stand-in" : "");
        crystal_show_way(stdout, r->way);
        putchar('\n');
    }
    free(records);
    return 0;
}

/* One row per kind of file. */
static const struct {
    const char *magic;
    int (*show)(const char *path, struct crystal_error *err);
} kinds[] = {
    {CRYSTAL_TRACE_MAGIC, show_trace},     {CRYSTAL_GRAPH_MAGIC, show_graph},
    {CRYSTAL_PAYLOAD_MAGIC, show_payload}, {CRYSTAL_PROFILE_MAGIC, show_profile},
    {CRYSTAL_RUN_MAGIC, show_run},
};

static int show(const char *path, struct crystal_error *err)
{
    char magic[8];
    ssize_t got;
    int fd = crystal_infile_open(path, NULL, err);

    if (fd < 0)
        return fd;
    got = read(fd, magic, sizeof magic);
    (void)close(fd); /* read-only, nothing to lose */
    if (got == (ssize_t)sizeof magic)
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
            if (memcmp(magic, kinds[i].magic, sizeof magic) == 0)
                return kinds[i].show(path, err);
    return crystal_error_set(err, EINVAL,
                             "%s: no binary file of a job directory; text files "
                             "(layout.yaml, comms.tab) read as they are",
                             path);
}

CRYSTAL_COMMAND(show)
{
    static const struct option long_options[] = {
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static const char usage[] =
        "usage: scrystal show FILE...\n\n"
        "Prints binary files of a job directory as text: ranks/*.trace,\n"
        "ranks/*.payload, job.graph, job.profile, runs/*/*.run.\n";
    struct crystal_error err = {0};
    int option;

    optind = 1;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) >= 0) {
        fputs(usage, option == 'h' ? stdout : stderr);
        return option == 'h' ? 0 : CRYSTAL_EXIT_USAGE;
    }
    if (optind == argc) {
        fputs(usage, stderr);
        return CRYSTAL_EXIT_USAGE;
    }
    for (; optind < argc; optind++)
        if (show(argv[optind], &err)) {
            crystal_log(CRYSTAL_LOG_ERROR, "show", "%s", crystal_error_text(&err));
            return CRYSTAL_EXIT_STAGE;
        }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        crystal_log(CRYSTAL_LOG_ERROR, "show", "cannot print");
        return CRYSTAL_EXIT_STAGE;
    }
    return 0;
}
