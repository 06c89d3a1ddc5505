/* The ring of all-gathers, seen from where virtual ranks stand next to real ones.
 *
 * NCCL's bootstrap gathers in both directions at once since 2.28.7. Of n ranks, in step
 * s < n/2 rank r sends to its next the slice of r-s and to its previous the slice of
 * r+s; for even n the last step goes to the next only. Before, all n - 1 steps went to
 * the next (is_one_way). A frame is a size and that many bytes; in a step all sizes are
 * exchanged before any payload.
 *
 * So on the connection of a real rank a to its virtual next we read the slices of a,
 * a-1, ... and write those of a+1, a+2, ...; on that of a virtual rank to its real next
 * b we write b-1, b-2, ... and read b, b+1, ... What we read is either a real rank's
 * slice, which we keep, or our own clone on its way round, which we drop.
 *
 * Because sizes go first, the size word of the next frame must follow a payload at
 * once: holding it back until the next slice is known stops both ends of a run of real
 * ranks.
 */
#include "config.h"

#include "replay/proxy_internal.h"
#include "runtime/nccl_names.h"
#include "runtime/clock.h"

#include <stdlib.h>
#include <string.h>

#define SIZE_BYTES  4U
#define SPLIT_BYTES 8U /* ncclCommSplit gathers {int key, int colour} */

static uint32_t step_crank(const struct proxy_comm *comm, uint32_t crank, uint32_t up,
                           uint32_t down)
{
    return (uint32_t)(((uint64_t)crank + up + comm->nranks - down % comm->nranks) %
                      comm->nranks);
}

static uint32_t in_crank(const struct proxy_comm *comm, const struct proxy_link *link)
{
    uint32_t crank = comm->reals[link->real].crank;

    return link->is_next ? step_crank(comm, crank, 0, link->in_frame)
                         : step_crank(comm, crank, link->in_frame, 0);
}

static uint32_t out_crank(const struct proxy_comm *comm, const struct proxy_link *link)
{
    uint32_t crank = comm->reals[link->real].crank;

    return link->is_next ? step_crank(comm, crank, link->out_frame + 1, 0)
                         : step_crank(comm, crank, 0, link->out_frame + 1);
}

static struct proxy_gather *find(const struct proxy_comm *comm, uint32_t index)
{
    struct proxy_gather *gather = comm->gathers;

    while (gather && gather->index != index)
        gather = gather->next;
    return gather;
}

static void gather_free(struct proxy_gather *gather)
{
    split_groups_destroy(gather->split);
    free(gather->has);
    free(gather->slices);
    free(gather);
}

void proxy_gathers_free(struct proxy_comm *comm)
{
    while (comm->gathers) {
        struct proxy_gather *gather = comm->gathers;

        comm->gathers = gather->next;
        gather_free(gather);
    }
}

static bool size_is_right(struct proxy_comm *comm, uint32_t index, uint32_t size)
{
    if (index < PROXY_GATHER_KINDS && size != comm->layout->gather_bytes[index]) {
        proxy_comm_fail(
            comm,
            "all-gather %u of its set-up has %u bytes per rank, NCCL %s has "
            "%u; set nccl.version in crystal.yaml to the program's",
            index, size, comm->layout->versions, comm->layout->gather_bytes[index]);
        return false;
    }
    if (!size || size > PROXY_SLICE_MAX) {
        proxy_comm_fail(comm, "all-gather %u has %u bytes per rank; can be 1 to %u",
                        index, size, PROXY_SLICE_MAX);
        return false;
    }
    return true;
}

static struct proxy_gather *gather_begin(struct proxy_comm *comm, uint32_t size)
{
    struct proxy_gather *gather, **end = &comm->gathers;

    if (!size_is_right(comm, comm->gather_next, size))
        return NULL;
    gather = calloc(1, sizeof *gather);
    if (gather) {
        gather->has = calloc(comm->real_count, 1);
        gather->slices = malloc((size_t)comm->real_count * size);
    }
    if (!gather || !gather->has || !gather->slices) {
        if (gather)
            gather_free(gather);
        proxy_comm_fail(comm, "out of memory");
        return NULL;
    }
    gather->index = comm->gather_next++;
    gather->slice_bytes = size;
    if (gather->index >= PROXY_GATHER_KINDS && size == SPLIT_BYTES &&
        !proxy_split_begin(comm, gather)) {
        gather_free(gather);
        return NULL;
    }
    while (*end)
        end = &(*end)->next;
    *end = gather;
    return gather;
}

/* All-gathers that every link has behind it in both directions are forgotten. */
static void retire(struct proxy_comm *comm)
{
    uint32_t done = comm->gather_next;

    for (uint32_t i = 0; i < comm->link_count; i++) {
        const struct proxy_link *link = &comm->links[i];

        if (link->is_closed)
            continue;
        if (link->in_count && link->in_gather < done)
            done = link->in_gather;
        if (link->out_count && link->out_gather < done)
            done = link->out_gather;
    }
    if (done >= PROXY_GATHER_KINDS && !comm->setup_ns)
        comm->setup_ns = crystal_now_ns() - comm->begin_ns;
    while (comm->gathers && comm->gathers->index < done) {
        struct proxy_gather *gather = comm->gathers;

        comm->gathers = gather->next;
        gather_free(gather);
    }
}

/* Every member uses as many channels as the one whose search found least. */
static void learn_channels(struct proxy_comm *comm, const uint8_t *slice)
{
    int32_t tree = proxy_get_i32(slice, comm->layout->topology_tree_channels);
    int32_t ring = proxy_get_i32(slice, comm->layout->topology_ring_channels);
    uint32_t least = (uint32_t)(tree < ring ? tree : ring);

    if (tree < 1 || ring < 1 || least > comm->layout->channel_count)
        return; /* no tree then */
    if (!comm->graph_channels || least < comm->graph_channels)
        comm->graph_channels = least;
    crystal_board_comm_channels(comm->proxy->board, comm->comm_id,
                                comm->graph_channels);
}

/* What we learn from a real rank's slice. */
static void learn(struct proxy_comm *comm, struct proxy_gather *gather, uint32_t real,
                  const uint8_t *slice)
{
    const struct proxy_layout *layout = comm->layout;
    struct proxy_real *member = &comm->reals[real];

    memcpy(gather->slices + (size_t)real * gather->slice_bytes, slice,
           gather->slice_bytes);
    gather->has[real] = 1;
    if (gather->split) {
        proxy_split_learn(comm, gather, member->crank, slice);
    } else if (gather->index == PROXY_GATHER_RING_DATA) {
        memcpy(member->peer_address, slice + layout->ring_peer, PROXY_ADDRESS_BYTES);
        member->has_peer_address = proxy_address_is_usable(member->peer_address);
        if (!member->has_peer_address)
            proxy_comm_fail(comm, "real rank %u (logical rank %u) has no address",
                            member->crank, comm->members[member->crank]);
    } else if (gather->index == PROXY_GATHER_TOPOLOGY) {
        learn_channels(comm, slice);
        proxy_rings_learn(comm, gather);
    } else if (gather->index == PROXY_GATHER_PEER_INFO) {
        int32_t version = proxy_get_i32(slice, layout->peer_version);
        int32_t crank = proxy_get_i32(slice, layout->peer_rank);

        char text[CRYSTAL_NCCL_VERSION_TEXT];

        if (version < layout->version_min || version > layout->version_max)
            proxy_comm_fail(comm,
                            "logical rank %u runs NCCL %s, but the job is set up for "
                            "NCCL %s; set nccl.version in crystal.yaml to it",
                            comm->members[member->crank],
                            crystal_nccl_version_text(version, text), layout->versions);
        else if (crank < 0 || (uint32_t)crank != member->crank)
            proxy_comm_fail(comm,
                            "logical rank %u says that it is rank %d, the members say "
                            "%u; give every rank the same list of members",
                            comm->members[member->crank], crank, member->crank);
    }
}

/* One step for every link: new slices are passed on, new sizes too. */
static void flush_links(struct proxy_comm *comm)
{
    for (uint32_t i = 0; i < comm->link_count && !comm->is_failed; i++)
        if (comm->links[i].conn)
            proxy_conn_flush(comm->links[i].conn);
}

/* Reads one frame. Returns false where it is not complete or the end came. */
static bool read_frame(struct proxy_comm *comm, struct proxy_link *link,
                       struct proxy_conn *conn, bool *is_news)
{
    const uint8_t *bytes;
    size_t count = proxy_conn_input(conn, &bytes);
    struct proxy_gather *gather;
    uint32_t size, real;

    if (count < SIZE_BYTES)
        return false;
    size = proxy_get_u32(bytes, 0);
    if (!link->in_count) {
        proxy_comm_fail(comm, "real rank %u sends where nothing is expected",
                        comm->reals[link->real].crank);
        return false;
    }
    gather = find(comm, link->in_gather);
    if (!gather && link->in_gather == comm->gather_next) {
        gather = gather_begin(comm, size);
        *is_news = true;
    }
    if (!gather || comm->is_failed)
        return false;
    if (size != gather->slice_bytes) {
        proxy_comm_fail(comm,
                        "real rank %u sends %u bytes per rank in all-gather %u, others "
                        "%u; let all ranks run the same NCCL",
                        comm->reals[link->real].crank, size, gather->index,
                        gather->slice_bytes);
        return false;
    }
    if (count - SIZE_BYTES < size)
        return false;
    real = proxy_comm_real(comm, in_crank(comm, link));
    if (real != PROXY_NONE && !gather->has[real]) {
        learn(comm, gather, real, bytes + SIZE_BYTES);
        *is_news = true;
        if (comm->is_failed)
            return false;
    }
    proxy_conn_consume(conn, SIZE_BYTES + size);
    if (++link->in_frame == link->in_count) {
        link->in_frame = 0;
        link->in_gather++;
    }
    return true;
}

void proxy_link_read(struct proxy_conn *conn)
{
    struct proxy_comm *comm = conn->comm;
    struct proxy_link *link = conn->link;
    bool is_news = false;

    while (!conn->is_dead && read_frame(comm, link, conn, &is_news))
        ;
    if (comm->is_failed)
        return;
    retire(comm);
    if (!is_news)
        return;
    flush_links(comm);
    if (comm->parked_count && !comm->is_failed)
        proxy_connect_retry(comm);
}

/* Queues one frame. Returns false where its slice is not known yet. */
static bool fill_frame(struct proxy_comm *comm, struct proxy_link *link)
{
    struct proxy_gather *gather = find(comm, link->out_gather);
    uint8_t slice[PROXY_SLICE_MAX];
    uint32_t crank;

    if (!gather)
        return false;
    if (!link->out_has_size &&
        !proxy_conn_put(link->conn, &gather->slice_bytes, SIZE_BYTES))
        return false;
    link->out_has_size = true;
    crank = out_crank(comm, link);
    if ((comm->is_real[crank] || !gather->split) &&
        !gather->has[comm->templates[crank]])
        return false;
    if (!comm->is_real[crank] && gather->split) {
        if (!proxy_split_slice(comm, gather, crank, slice))
            return false;
    } else if (comm->is_real[crank])
        memcpy(slice,
               gather->slices + (size_t)comm->templates[crank] * gather->slice_bytes,
               gather->slice_bytes);
    else
        proxy_comm_clone(comm, gather, crank, slice);
    if (!proxy_conn_put(link->conn, slice, gather->slice_bytes))
        return false;
    link->out_has_size = false;
    if (++link->out_frame == link->out_count) {
        link->out_frame = 0;
        link->out_gather++;
    } else if (proxy_conn_put(link->conn, &gather->slice_bytes, SIZE_BYTES)) {
        link->out_has_size = true;
    }
    return true;
}

void proxy_link_fill(struct proxy_comm *comm, struct proxy_link *link)
{
    struct proxy_conn *conn = link->conn;
    uint32_t before = link->out_gather;

    if (!link->out_count)
        return;
    while (link->conn && !conn->is_dead &&
           conn->out.end - conn->out.begin < PROXY_OUTPUT_LOW && fill_frame(comm, link))
        ;
    if (link->out_gather != before && !comm->is_failed)
        retire(comm);
}

void proxy_link_open(struct proxy_comm *comm, struct proxy_link *link,
                     struct proxy_conn *conn)
{
    conn->link = link;
    link->conn = conn;
    if (!comm->begin_ns)
        comm->begin_ns = crystal_now_ns();
}

void proxy_link_eof(struct proxy_conn *conn)
{
    struct proxy_comm *comm = conn->comm;
    struct proxy_link *link = conn->link;
    uint32_t crank = comm->reals[link->real].crank;
    const uint8_t *bytes;
    bool is_between = !link->in_frame && !link->out_frame && !link->out_has_size &&
                      !proxy_conn_input(conn, &bytes) &&
                      conn->out.begin == conn->out.end;

    if (!is_between || comm->gather_next < PROXY_GATHER_KINDS ||
        (link->in_count && link->in_gather != comm->gather_next) ||
        (link->out_count && link->out_gather != comm->gather_next)) {
        proxy_comm_lose(
            comm,
            "logical rank %u (rank %u) left in all-gather %u of its set-up; "
            "see that rank's log",
            comm->members[crank], crank,
            link->in_count ? link->in_gather : link->out_gather);
        proxy_conn_close(conn);
        return;
    }
    link->is_closed = true;
    comm->open_count--;
    proxy_conn_close(conn);
    proxy_comm_close_if_done(comm);
}
