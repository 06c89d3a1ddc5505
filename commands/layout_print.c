/* See layout_print.h. A drawing:
 *
 *   64 ranks, 8 a node; sandbox 0-7 on one node, 56 virtual ranks
 *
 *   target node 0
 *   +- NUMA node 0
 *   |  +- rank 0   cpus 0-6   GPU 0000:1b:00.0 --PIX-- mlx5_0
 *   |  `- rank 1   cpus 7-13  GPU 0000:1c:00.0 --PIX-- mlx5_1
 *   `- NUMA node 1
 *      ...
 */
#include "config.h"

#include "commands/layout_print.h"

#include "runtime/topology.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ranks: of one target node, all of it */
static void print_node(const uint32_t *ranks, uint32_t count,
                       const struct crystal_place *places)
{
    printf("  - target_node: %u\n    processes:\n", ranks[0] / count);
    for (uint32_t i = 0; i < count; i++) {
        printf("      - {rank: %u, numa: %u, cpus: \"%s\"", ranks[i], places[i].numa,
               places[i].cpus);
        if (places[i].gpu[0])
            printf(", gpu: \"%s\"", places[i].gpu);
        if (places[i].nic[0])
            printf(", nic: \"%s\", distance: %s", places[i].nic,
                   places[i].nic_distance);
        printf("}\n");
    }
}

int layout_print(const struct crystal_layout *l, const char *topology,
                 struct crystal_error *err)
{
    struct crystal_place *places;
    char *sandbox, *live;
    int code = crystal_topology_place(topology, l->ranks_per_node, &places, err);

    if (code)
        return code;
    sandbox = crystal_ranks_format(l->sandbox, l->sandbox_count);
    live = crystal_ranks_format(l->live, l->live_count);
    printf("logical_ranks: %u\nranks_per_node: %u\ntarget_nodes: %u\n", l->lrank_count,
           l->ranks_per_node, l->lrank_count / l->ranks_per_node);
    printf("sandbox: \"%s\"\nlive: \"%s\"\nvirtual_ranks: %u\n", sandbox ? sandbox : "",
           live ? live : "", l->lrank_count - l->sandbox_count);
    printf("wire:\n  bytes_per_s: %" PRIu64 "\n  latency_ns: %" PRIu64 "\n",
           l->wire_bytes_per_s, l->wire_latency_ns);
    printf("nodes:\n");
    for (uint32_t first = 0; first < l->sandbox_count; first += l->ranks_per_node)
        print_node(l->sandbox + first, l->ranks_per_node, places);
    free(sandbox);
    free(live);
    free(places);
    return 0;
}

static void draw_rank(const struct crystal_place *place, uint32_t lrank,
                      const char *branch, int cpus_width)
{
    printf("%s rank %-5u cpus %-*s", branch, lrank, cpus_width, place->cpus);
    if (place->gpu[0])
        printf("  GPU %s", place->gpu);
    if (place->nic[0])
        printf("%s--%s-- %s", place->gpu[0] ? " " : "  NIC ", place->nic_distance,
               place->nic);
    putchar('\n');
}

/* The first place from at on with this NUMA node, count = there is none. */
static uint32_t next_on(const struct crystal_place *places, uint32_t count, uint32_t at,
                        uint32_t numa)
{
    while (at < count && places[at].numa != numa)
        at++;
    return at;
}

static void draw_numa(const uint32_t *ranks, uint32_t count,
                      const struct crystal_place *places, uint32_t numa, int is_last,
                      int cpus_width)
{
    uint32_t next;

    printf("%s NUMA node %u\n", is_last ? "`-" : "+-", numa);
    for (uint32_t i = next_on(places, count, 0, numa); i < count; i = next) {
        char branch[8];

        next = next_on(places, count, i + 1, numa);
        (void)snprintf(branch, sizeof branch, "%s  %s", is_last ? " " : "|",
                       next < count ? "+-" : "`-");
        draw_rank(&places[i], ranks[i], branch, cpus_width);
    }
}

static void draw_node(const uint32_t *ranks, uint32_t count,
                      const struct crystal_place *places)
{
    uint32_t highest = 0;
    int width = 0;

    for (uint32_t i = 0; i < count; i++) {
        int bytes = (int)strlen(places[i].cpus);

        width = bytes > width ? bytes : width;
        highest = places[i].numa > highest ? places[i].numa : highest;
    }
    printf("target node %u\n", ranks[0] / count);
    for (uint32_t numa = 0; numa <= highest; numa++)
        if (next_on(places, count, 0, numa) < count)
            draw_numa(ranks, count, places, numa, numa == highest, width);
    putchar('\n');
}

int layout_draw(const struct crystal_layout *l, const char *topology,
                struct crystal_error *err)
{
    struct crystal_place *places;
    char *sandbox = crystal_ranks_format(l->sandbox, l->sandbox_count);
    int any_nic = 0;
    int code = crystal_topology_place(topology, l->ranks_per_node, &places, err);

    if (!code) {
        printf("%u ranks, %u a node; sandbox %s, %u virtual ranks\n\n", l->lrank_count,
               l->ranks_per_node, sandbox ? sandbox : "?",
               l->lrank_count - l->sandbox_count);
        for (uint32_t first = 0; first < l->sandbox_count; first += l->ranks_per_node)
            draw_node(l->sandbox + first, l->ranks_per_node, places);
        for (uint32_t i = 0; i < l->ranks_per_node; i++)
            any_nic |= places[i].nic[0] != 0;
        if (any_nic)
            printf("PIX: below one PCIe switch; PXB: several switches; PHB: below one "
                   "PCIe root;\nNODE: at one NUMA node; SYS: farther\n");
        free(places);
    }
    free(sandbox);
    return code;
}
