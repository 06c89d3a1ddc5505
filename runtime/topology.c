/* Placement by hwloc; the only file that includes it. See topology.h for the rules. */
#include "config.h"

#include "runtime/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hwloc.h>

#define DEVICE_MAX        64
#define PCI_CLASS_DISPLAY 0x03 /* base class of 3-D controllers, too */
#define PCI_VENDOR_NVIDIA 0x10de
#define PCI_VENDOR_AMD    0x1002

struct device {
    hwloc_obj_t pci;
    char name[CRYSTAL_TOPOLOGY_NAME];
    unsigned given; /* how many processes have it */
};

struct machine {
    hwloc_topology_t topology;
    struct device gpus[DEVICE_MAX], nics[DEVICE_MAX];
    unsigned gpu_count, nic_count;
};

static int load(struct machine *m, const char *xml_path, struct crystal_error *err)
{
    if (hwloc_topology_init(&m->topology) < 0)
        return crystal_error_set(err, ENOMEM, "topology: hwloc cannot start");
    if (xml_path && hwloc_topology_set_xml(m->topology, xml_path) < 0) {
        hwloc_topology_destroy(m->topology);
        return crystal_error_set(err, EINVAL, "topology %s: no hwloc XML file",
                                 xml_path);
    }
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

static void find_devices(struct machine *m)
{
    hwloc_obj_t o = NULL;

    while ((o = hwloc_get_next_pcidev(m->topology, o))) {
        struct hwloc_pcidev_attr_s *pci = &o->attr->pcidev;
        int vendor_ok =
            pci->vendor_id == PCI_VENDOR_NVIDIA || pci->vendor_id == PCI_VENDOR_AMD;

        if (pci->class_id >> 8 == PCI_CLASS_DISPLAY && vendor_ok &&
            m->gpu_count < DEVICE_MAX) {
            struct device *gpu = &m->gpus[m->gpu_count++];

            gpu->pci = o;
            (void)snprintf(gpu->name, sizeof gpu->name, "%04x:%02x:%02x.%x",
                           pci->domain, pci->bus, pci->dev, pci->func);
        }
    }
    o = NULL;
    while ((o = hwloc_get_next_osdev(m->topology, o))) {
        hwloc_obj_t pci = pci_of(o);
        int fabric = o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;

        if (!pci || !o->name || m->nic_count == DEVICE_MAX ||
            (!fabric && o->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK))
            continue;
        /* an InfiniBand device shows up as network and fabric: the fabric name wins */
        for (unsigned i = 0; i < m->nic_count; i++)
            if (m->nics[i].pci == pci) {
                if (fabric)
                    (void)snprintf(m->nics[i].name, sizeof m->nics[i].name, "%s",
                                   o->name);
                pci = NULL;
                break;
            }
        if (pci) {
            m->nics[m->nic_count].pci = pci;
            (void)snprintf(m->nics[m->nic_count].name, sizeof m->nics[0].name, "%s",
                           o->name);
            m->nic_count++;
        }
    }
}

/* 0 same switch, 1 same PCI root, 2 same NUMA node, 3 further */
static unsigned distance(struct machine *m, hwloc_obj_t a, hwloc_obj_t b)
{
    hwloc_obj_t common = hwloc_get_common_ancestor_obj(m->topology, a, b);
    hwloc_obj_t near_a = hwloc_get_non_io_ancestor_obj(m->topology, a);
    hwloc_obj_t near_b = hwloc_get_non_io_ancestor_obj(m->topology, b);

    if (common && common->type == HWLOC_OBJ_BRIDGE)
        return common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? 0 : 1;
    return hwloc_bitmap_isequal(near_a->nodeset, near_b->nodeset) ? 2 : 3;
}

static void pair_nic(struct machine *m, hwloc_obj_t gpu, struct crystal_place *place)
{
    static const char *const names[] = {"PIX", "PHB", "NODE", "SYS"};
    struct device *best = NULL;
    unsigned best_distance = 4;

    for (unsigned i = 0; i < m->nic_count; i++) {
        unsigned d = gpu ? distance(m, gpu, m->nics[i].pci) : 3;

        if (d < best_distance ||
            (d == best_distance && best && m->nics[i].given < best->given)) {
            best = &m->nics[i];
            best_distance = d;
        }
    }
    if (!best)
        return;
    best->given++;
    (void)snprintf(place->nic, sizeof place->nic, "%s", best->name);
    (void)snprintf(place->nic_distance, sizeof place->nic_distance, "%s",
                   names[best_distance]);
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
        pair_nic(m, m->gpu_count ? m->gpus[i % m->gpu_count].pci : NULL, &places[i]);
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
        find_devices(&m);
        place_all(&m, count, places);
        *ret = places;
    } else {
        code = crystal_error_set(err, ENOMEM, "topology: out of memory");
    }
    hwloc_topology_destroy(m.topology);
    return code;
}
