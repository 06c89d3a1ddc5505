/* Where in a rank's program an operation was called, for diagnoses and injection rules:
 * from the addresses that come with operations, the rank's mappings, and the places
 * that its own language has told (capture/site.h).
 */
#include "config.h"

#include "runtime/coord_state.h"

#include "runtime/infile.h"
#include "runtime/process.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAPS_RANKS_MAX 256
#define TOLD_BYTES     256 /* longest line of ranks/R.sites */

/* A rank that has ended may still be told of, so what is mapped where is kept. */
void crystal_coord_keep_maps(struct crystal_coord *coord, uint32_t lrank, uint32_t pid)
{
    const uint32_t lrank_count = coord->config.layout->lrank_count;

    if (coord->exchange_layout.live_count > MAPS_RANKS_MAX || lrank >= lrank_count ||
        !crystal_process_is_rank(pid, lrank)) /* or on another node */
        return;
    if (!coord->watch.maps)
        coord->watch.maps = calloc(lrank_count, sizeof *coord->watch.maps);
    if (!coord->watch.maps)
        return;
    free(coord->watch.maps[lrank]);
    coord->watch.maps[lrank] = crystal_process_maps(pid);
}

/* The line that the rank's program told, and its address. A line that is none is
 * ignored: -ENOENT. */
static int told_site(const struct crystal_coord *coord, uint32_t lrank, uint64_t number,
                     uint64_t *ret_address, char *text, size_t text_bytes)
{
    char path[PATH_MAX], line[TOLD_BYTES], *end = NULL;
    FILE *in = NULL;
    int code = -ENOENT;

    if (snprintf(path, sizeof path, "%s/ranks/%u.sites",
                 crystal_jobdir_path(coord->config.dir), lrank) < (int)sizeof path)
        in = crystal_infile_stream(path, NULL);
    for (uint64_t i = 0; in && i <= number && fgets(line, sizeof line, in); i++) {
        size_t length = strcspn(line, "\n");

        if (line[length] != '\n')
            break; /* longer than any that is written */
        line[length] = 0;
        if (i < number)
            continue;
        *ret_address = strtoull(line, &end, 16);
        if (*end == ' ' && end[1]) {
            (void)snprintf(text, text_bytes, "%s", end + 1);
            code = 0;
        }
    }
    if (in)
        (void)fclose(in); /* read-only */
    for (char *c = text; !code && *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    return code;
}

static int native_site(struct crystal_coord *coord, uint32_t lrank, uint64_t address,
                       char *text, size_t text_bytes)
{
    const struct client *c = crystal_coord_rank(coord, lrank);

    if (c) /* it may have loaded more */
        crystal_coord_keep_maps(coord, lrank, c->pid);
    if (!coord->watch.maps || !coord->watch.maps[lrank])
        return -ESRCH;
    return crystal_process_site(coord->watch.maps[lrank], address, text, text_bytes);
}

int crystal_coord_site(void *context, uint32_t lrank, uint64_t address, char *text,
                       size_t text_bytes)
{
    struct crystal_coord *coord = context;
    char told[TOLD_BYTES], native[TOLD_BYTES];
    int code;

    if (!(address & CRYSTAL_SITE_TOLD))
        return native_site(coord, lrank, address, text, text_bytes);
    code = told_site(coord, lrank, address & ~CRYSTAL_SITE_TOLD, &address, told,
                     sizeof told);
    if (!code && native_site(coord, lrank, address, native, sizeof native))
        (void)snprintf(native, sizeof native, "0x%" PRIx64, address);
    if (!code)
        (void)snprintf(text, text_bytes, "%s (%s)", told, native);
    return code;
}
