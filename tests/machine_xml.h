/* Writes a machine as an hwloc XML file from a short description: packages, NUMA nodes,
 * cores with two threads each (numbered as Linux does: first all first threads), and
 * PCI devices below switches. For tests of the layout.
 */
#ifndef CRYSTAL_TESTS_MACHINE_XML_H
#define CRYSTAL_TESTS_MACHINE_XML_H

#include <stdio.h>

enum machine_kind {
    MACHINE_GPU,
    MACHINE_AMD_GPU,
    MACHINE_IB,
    MACHINE_ETH,
    MACHINE_VGA
};

struct machine_device {
    int numa;  /* where its PCI root is */
    int root;  /* devices of one number share the root */
    int outer; /* and this switch, -1 = none */
    int inner; /* and this switch below the outer one, -1 = none */
    enum machine_kind kind;
    int bus;    /* PCI bus: the device is 0000:BUS:00.0 */
    int number; /* mlx5_NUMBER, ethNUMBER */
};

struct machine_spec {
    int packages, numa_per_package, cores_per_numa;
    const struct machine_device *devices; /* those of a switch, root, node together */
    int device_count;
};

struct machine_writer {
    FILE *out;
    const struct machine_spec *spec;
    int id;
};

static void machine_set(struct machine_writer *w, const char *name, int first,
                        int count)
{
    int total = w->spec->packages * w->spec->numa_per_package * w->spec->cores_per_numa;

    fprintf(w->out, " %s=\"", name);
    for (int word = (2 * total - 1) / 32; word >= 0; word--) {
        unsigned bits = 0;

        for (int i = 0; i < 32; i++) {
            int cpu = word * 32 + i, core = cpu % total;

            if (cpu < 2 * total && core >= first && core < first + count)
                bits |= 1U << i;
        }
        fprintf(w->out, "0x%08x%s", bits, word ? "," : "");
    }
    fprintf(w->out, "\"");
}

/* first, count: cores; node, nodes: NUMA nodes */
static void machine_open(struct machine_writer *w, const char *type, int os_index,
                         int first, int count, int node, int nodes)
{
    unsigned nodeset = ((1U << nodes) - 1) << node;

    fprintf(w->out, "<object type=\"%s\" os_index=\"%d\" gp_index=\"%d\"", type,
            os_index, ++w->id);
    machine_set(w, "cpuset", first, count);
    machine_set(w, "complete_cpuset", first, count);
    if (w->id == 1)
        machine_set(w, "allowed_cpuset", first, count);
    fprintf(w->out, " nodeset=\"0x%08x\" complete_nodeset=\"0x%08x\"", nodeset,
            nodeset);
    if (w->id == 1)
        fprintf(w->out, " allowed_nodeset=\"0x%08x\"", nodeset);
}

static void machine_pu(struct machine_writer *w, int cpu, int node)
{
    char set[256] = "";
    int used = 0;

    for (int word = cpu / 32; word >= 0; word--)
        used += snprintf(set + used, sizeof set - (size_t)used, "0x%08x%s",
                         word == cpu / 32 ? 1U << cpu % 32 : 0U, word ? "," : "");
    fprintf(w->out,
            "<object type=\"PU\" os_index=\"%d\" gp_index=\"%d\" cpuset=\"%s\" "
            "complete_cpuset=\"%s\" nodeset=\"0x%08x\" complete_nodeset=\"0x%08x\"/>\n",
            cpu, ++w->id, set, set, 1U << node, 1U << node);
}

static void machine_bridge(struct machine_writer *w, int depth, int bus)
{
    fprintf(w->out,
            "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"%d-1\" depth=\"%d\" "
            "bridge_pci=\"0000:[%02x-%02x]\"",
            ++w->id, depth > 0, depth, bus, bus);
    if (depth > 0)
        fprintf(
            w->out,
            " pci_busid=\"0000:%02x:%02x.0\" pci_type=\"0604 [1000:c030] [1000:0000] "
            "b0 00\" pci_link_speed=\"0.000000\"",
            bus, depth);
    fprintf(w->out, ">\n");
}

static void machine_device(struct machine_writer *w, const struct machine_device *d)
{
    static const char *const types[] = {"0302 [10de:2330]", "1200 [1002:74a1]",
                                        "0207 [15b3:1021]", "0200 [15b3:101d]",
                                        "0300 [1a03:2000]"};

    fprintf(w->out,
            "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" "
            "pci_type=\"%s [0000:0000] a1 00\" pci_link_speed=\"0.000000\">\n",
            ++w->id, (unsigned)d->bus, types[d->kind]);
    if (d->kind == MACHINE_IB)
        fprintf(
            w->out,
            "<object type=\"OSDev\" gp_index=\"%d\" name=\"ib%d\" osdev_type=\"2\"/>\n"
            "<object type=\"OSDev\" gp_index=\"%d\" name=\"mlx5_%d\" "
            "osdev_type=\"3\"/>\n",
            w->id + 1, d->number, w->id + 2, d->number);
    else if (d->kind == MACHINE_ETH)
        fprintf(w->out,
                "<object type=\"OSDev\" gp_index=\"%d\" name=\"eth%d\" "
                "osdev_type=\"2\"/>\n",
                w->id + 1, d->number);
    w->id += 2;
    fprintf(w->out, "</object>\n");
}

/* root -> root port -> [outer switch] -> [inner switch] -> port -> device; what two
 * devices in a row have in common is written once. */
static void machine_devices(struct machine_writer *w, int numa)
{
    const struct machine_device *before = NULL;
    int open = 0;

    for (int i = 0; i < w->spec->device_count; i++) {
        const struct machine_device *d = &w->spec->devices[i];
        int keep = 0;

        if (d->numa != numa)
            continue;
        if (before && before->root == d->root) {
            keep = 1;
            if (d->outer >= 0 && before->outer == d->outer) {
                keep = 3; /* root, root port, upper port of the switch */
                if (d->inner >= 0 && before->inner == d->inner)
                    keep = 5;
            }
        }
        while (open > keep) {
            fprintf(w->out, "</object>\n");
            open--;
        }
        for (int want = 2 + (d->outer >= 0) + 2 * (d->inner >= 0); open < want; open++)
            machine_bridge(w, open, d->bus);
        machine_bridge(w, open++, d->bus); /* its own port */
        machine_device(w, d);
        before = d;
    }
    for (; open > 0; open--)
        fprintf(w->out, "</object>\n");
}

static void machine_numa(struct machine_writer *w, int node)
{
    int cores = w->spec->cores_per_numa, first = node * cores;
    int total = w->spec->packages * w->spec->numa_per_package * cores;

    machine_open(w, "Group", node, first, cores, node, 1);
    fprintf(w->out, " kind=\"0\" subkind=\"0\">\n");
    machine_open(w, "NUMANode", node, first, cores, node, 1);
    fprintf(w->out, " local_memory=\"1073741824\"/>\n");
    for (int i = first; i < first + cores; i++) {
        machine_open(w, "Core", i, i, 1, node, 1);
        fprintf(w->out, ">\n");
        machine_pu(w, i, node);
        machine_pu(w, total + i, node);
        fprintf(w->out, "</object>\n");
    }
    machine_devices(w, node);
    fprintf(w->out, "</object>\n");
}

/* 0, or -1 where the file cannot be written. */
static int machine_write(const struct machine_spec *spec, const char *path)
{
    struct machine_writer w = {fopen(path, "w"), spec, 0};
    int nodes = spec->numa_per_package, cores = nodes * spec->cores_per_numa;

    if (!w.out)
        return -1;
    fprintf(w.out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                   "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
                   "version=\"2.0\">\n");
    machine_open(&w, "Machine", 0, 0, spec->packages * cores, 0,
                 spec->packages * nodes);
    fprintf(w.out, ">\n");
    for (int p = 0; p < spec->packages; p++) {
        machine_open(&w, "Package", p, p * cores, cores, p * nodes, nodes);
        fprintf(w.out, ">\n");
        for (int n = p * nodes; n < (p + 1) * nodes; n++)
            machine_numa(&w, n);
        fprintf(w.out, "</object>\n");
    }
    fprintf(w.out, "</object>\n</topology>\n");
    return fclose(w.out) == 0 ? 0 : -1;
}

#endif
