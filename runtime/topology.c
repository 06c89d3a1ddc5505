/* Placement by hwloc; the only file that includes it. See topology.h for the rules. */
#include "config.h"

#include "runtime/topology.h"

#include "runtime/infile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <hwloc.h>

#define DEVICE_MAX        64
#define PCI_CLASS_DISPLAY 0x03 /* base class of 3-D controllers, too */
#define PCI_CLASS_PROCESS 0x12 /* processing accelerators: AMD's newer GPUs */
#define PCI_VENDOR_NVIDIA 0x10de
#define PCI_VENDOR_AMD    0x1002

struct device {
    hwloc_obj_t pci;
    char name[CRYSTAL_TOPOLOGY_NAME];
    unsigned given; /* how many processes have it */
    int fabric;     /* of NICs: InfiniBand or RoCE */
};

struct machine {
    hwloc_topology_t topology;
    struct device gpus[DEVICE_MAX], nics[DEVICE_MAX];
    unsigned gpu_count, nic_count;
};

static int load(struct machine *m, const char *xml_path, struct crystal_error *err)
{
    static const char *const left_out[] = {"opencl", "gl"};

    if (xml_path) { /* hwloc opens it itself, whatever it is */
        int fd = crystal_infile_open(xml_path, NULL, err);

        if (fd < 0) {
            crystal_error_prefix(err, "topology");
            return fd;
        }
        (void)close(fd); /* nothing was read */
    }
    if (hwloc_topology_init(&m->topology) < 0)
        return crystal_error_set(err, ENOMEM, "topology: hwloc cannot start");
    if (xml_path && hwloc_topology_set_xml(m->topology, xml_path) < 0) {
        hwloc_topology_destroy(m->topology);
        return crystal_error_set(err, EINVAL, "topology %s: no hwloc XML file",
                                 xml_path);
    }
    /* They start drivers and look for displays, and tell nothing that PCI does not. */
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        (void)hwloc_topology_set_components(
            m->topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, left_out[i]);
    (void)hwloc_topology_set_io_types_filter(m->topology, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(m->topology) < 0) {
        hwloc_topology_destroy(m->topology);
        return crystal_error_set(err, EINVAL, "topology %s: hwloc cannot read it",
                                 xml_path ? xml_path : "of this machine");
    }
    return 0;
}

static hwloc_obj_t pci_of(hwloc_obj_t object)
{
    while (object && object->type != HWLOC_OBJ_PCI_DEVICE)
        object = object->parent;
    return object;
}

static struct device *nic_at(struct machine *m, hwloc_obj_t pci)
{
    for (unsigned i = 0; i < m->nic_count; i++)
        if (m->nics[i].pci == pci)
            return &m->nics[i];
    return NULL;
}

/* Network devices below PCI. One that is fabric and network goes by its fabric name;
 * where there are fabrics, as NCCL does, mere networks do not count. */
static void find_nics(struct machine *m)
{
    hwloc_obj_t o = NULL;
    unsigned kept = 0;
    int any_fabric = 0;

    while ((o = hwloc_get_next_osdev(m->topology, o))) {
        hwloc_obj_t pci = pci_of(o);
        int fabric = o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
        struct device *nic;

        if (!pci || !o->name ||
            (!fabric && o->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK))
            continue;
        nic = nic_at(m, pci);
        if (!nic && m->nic_count < DEVICE_MAX)
            nic = &m->nics[m->nic_count++];
        if (!nic || (nic->pci && !fabric))
            continue;
        nic->pci = pci;
        nic->fabric = fabric;
        any_fabric |= fabric;
        (void)snprintf(nic->name, sizeof nic->name, "%s", o->name);
    }
    for (unsigned i = 0; i < m->nic_count; i++)
        if (m->nics[i].fabric || !any_fabric)
            m->nics[kept++] = m->nics[i];
    m->nic_count = kept;
}

static void find_gpus(struct machine *m)
{
    hwloc_obj_t o = NULL;

    while ((o = hwloc_get_next_pcidev(m->topology, o))) {
        struct hwloc_pcidev_attr_s *pci = &o->attr->pcidev;
        int vendor_ok =
            pci->vendor_id == PCI_VENDOR_NVIDIA || pci->vendor_id == PCI_VENDOR_AMD;
        int class_ok = pci->class_id >> 8 == PCI_CLASS_DISPLAY ||
                       pci->class_id >> 8 == PCI_CLASS_PROCESS;

        if (class_ok && vendor_ok && m->gpu_count < DEVICE_MAX) {
            struct device *gpu = &m->gpus[m->gpu_count++];

            gpu->pci = o;
            (void)snprintf(gpu->name, sizeof gpu->name, "%04x:%02x:%02x.%x",
                           pci->domain, pci->bus, pci->dev, pci->func);
        }
    }
}

/* How a device is reached; smaller is nearer. The names are NVIDIA's. */
enum distance_kind { PIX, PXB, PHB, NODE, SYS };
static const char *const distance_names[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};
struct distance {
    enum distance_kind kind;
    unsigned
        hops; /* bridges on the way, where they have one in common; SYS: packages */
};

static hwloc_obj_t package_of(hwloc_obj_t object)
{
    while (object && object->type != HWLOC_OBJ_PACKAGE)
        object = object->parent;
    return object;
}

/* a: a PCI device or, where there are no GPUs, a NUMA node */
static struct distance distance(struct machine *m, hwloc_obj_t a, hwloc_obj_t b)
{
    hwloc_obj_t near_a = hwloc_get_non_io_ancestor_obj(m->topology, a);
    hwloc_obj_t near_b = hwloc_get_non_io_ancestor_obj(m->topology, b);
    unsigned from_a = 1, from_b;

    if (a->type == HWLOC_OBJ_PCI_DEVICE)
        for (hwloc_obj_t up = a->parent; up->type == HWLOC_OBJ_BRIDGE;
             up = up->parent, from_a++) {
            hwloc_obj_t other = b->parent;

            for (from_b = 1; other->type == HWLOC_OBJ_BRIDGE && other != up; from_b++)
                other = other->parent;
            if (other != up)
                continue;
            if (up->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI)
                return (struct distance){PHB, from_a + from_b};
            /* a switch is a port above it and one for each device */
            return (struct distance){from_a <= 2 && from_b <= 2 ? PIX : PXB,
                                     from_a + from_b};
        }
    if (hwloc_bitmap_isincluded(near_a->nodeset, near_b->nodeset))
        return (struct distance){NODE, 0};
    return (struct distance){SYS, package_of(near_a) != package_of(near_b)};
}

static int is_better(const struct device *nic, struct distance d,
                     const struct device *best, struct distance best_d)
{
    if (!best || d.kind != best_d.kind)
        return !best || d.kind < best_d.kind;
    return d.hops != best_d.hops ? d.hops < best_d.hops : nic->given < best->given;
}

static void pair_nic(struct machine *m, hwloc_obj_t from, struct crystal_place *place)
{
    struct device *best = NULL;
    struct distance best_distance = {SYS, 0};

    for (unsigned i = 0; i < m->nic_count && from; i++) {
        struct distance d = distance(m, from, m->nics[i].pci);

        if (is_better(&m->nics[i], d, best, best_distance)) {
            best = &m->nics[i];
            best_distance = d;
        }
    }
    if (!best)
        return;
    best->given++;
    (void)snprintf(place->nic, sizeof place->nic, "%s", best->name);
    (void)snprintf(place->nic_distance, sizeof place->nic_distance, "%s",
                   distance_names[best_distance.kind]);
}

static hwloc_obj_t numa_of(struct machine *m, uint32_t process)
{
    if (m->gpu_count) {
        hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(
            m->topology, m->gpus[process % m->gpu_count].pci);
        int first = near && near->nodeset ? hwloc_bitmap_first(near->nodeset) : -1;

        if (first >= 0)
            return hwloc_get_numanode_obj_by_os_index(m->topology, (unsigned)first);
    }
    return hwloc_get_obj_by_type(
        m->topology, HWLOC_OBJ_NUMANODE,
        process % (unsigned)hwloc_get_nbobjs_by_type(m->topology, HWLOC_OBJ_NUMANODE));
}

/* The share-th of `shares` equal parts of the node's cores (PUs of whole cores). */
static void cores(struct machine *m, hwloc_obj_t numa, unsigned share, unsigned shares,
                  struct crystal_place *place)
{
    int core_count = hwloc_get_nbobjs_inside_cpuset_by_type(m->topology, numa->cpuset,
                                                            HWLOC_OBJ_CORE);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    unsigned first, last;

    if (!set)
        return;
    if (core_count <= 0) {
        (void)hwloc_bitmap_copy(set, numa->cpuset);
    } else {
        first = share * (unsigned)core_count / shares;
        last = (share + 1) * (unsigned)core_count / shares;
        if (last == first) /* more processes than cores: they share */
            last = first + 1;
        for (unsigned i = first; i < last; i++) {
            hwloc_obj_t core = hwloc_get_obj_inside_cpuset_by_type(
                m->topology, numa->cpuset, HWLOC_OBJ_CORE, i);

            if (core)
                (void)hwloc_bitmap_or(set, set, core->cpuset);
        }
    }
    (void)hwloc_bitmap_list_snprintf(place->cpus, sizeof place->cpus, set);
    hwloc_bitmap_free(set);
}

static void place_all(struct machine *m, uint32_t count, struct crystal_place *places)
{
    for (uint32_t i = 0; i < count; i++) {
        hwloc_obj_t numa = numa_of(m, i);
        unsigned share = 0, shares = 0;

        if (m->gpu_count)
            (void)snprintf(places[i].gpu, sizeof places[i].gpu, "%s",
                           m->gpus[i % m->gpu_count].name);
        pair_nic(m, m->gpu_count ? m->gpus[i % m->gpu_count].pci : numa, &places[i]);
        if (!numa)
            continue;
        places[i].numa = numa->logical_index;
        for (uint32_t k = 0; k < count; k++)
            if (numa_of(m, k) == numa) {
                share += k < i;
                shares++;
            }
        cores(m, numa, share, shares, &places[i]);
    }
}

int crystal_topology_place(const char *xml_path, uint32_t count,
                           struct crystal_place **ret, struct crystal_error *err)
{
    struct machine m = {0};
    struct crystal_place *places;
    int code = load(&m, xml_path, err);

    if (code)
        return code;
    places = calloc(count ? count : 1, sizeof *places);
    if (places) {
        find_gpus(&m);
        find_nics(&m);
        place_all(&m, count, places);
        *ret = places;
    } else {
        code = crystal_error_set(err, ENOMEM, "topology: out of memory");
    }
    hwloc_topology_destroy(m.topology);
    return code;
}
