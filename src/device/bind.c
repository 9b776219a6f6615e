/* CPUs in the order hwloc knows the cores, and memory bound to the NUMA node of one. */
#include "device/bind.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

static kr_status load_topology(hwloc_topology_t *topology, kr_err *err)
{
    if (hwloc_topology_init(topology) != 0)
        return kr_fail(err, KR_E_MEMORY, "no memory for the machine's topology");
    if (hwloc_topology_load(*topology) != 0) {
        hwloc_topology_destroy(*topology);
        return kr_fail(err, KR_E_UNSUPPORTED, "the machine's topology cannot be read; leave binding off");
    }
    return KR_OK;
}

/* The n-th usable processing unit, going through first units of cores, then second ones, ... */
static uint32_t unit_of(hwloc_topology_t topology, uint32_t n)
{
    const int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);

    for (uint32_t thread = 0; cores > 0; thread++) {
        uint32_t found = 0;

        for (int c = 0; c < cores; c++) {
            hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)c);
            int unit = hwloc_bitmap_first(core->cpuset);

            for (uint32_t t = 0; t < thread && unit >= 0; t++)
                unit = hwloc_bitmap_next(core->cpuset, unit);
            if (unit < 0)
                continue;
            if (found++ == n)
                return (uint32_t)unit;
        }
        if (found == 0)
            break;
        n -= found;
    }
    const int units = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    return hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, units > 0 ? n % (unsigned)units : 0)->os_index;
}

kr_status kr_bind_cpus(uint32_t devices, uint32_t threads, uint32_t *cpus, kr_err *err)
{
    hwloc_topology_t topology;
    const kr_status status = load_topology(&topology, err);

    if (status != KR_OK)
        return status;
    const int units = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    for (uint32_t i = 0; i < devices * threads; i++)
        cpus[i] = unit_of(topology, units > 0 ? i % (uint32_t)units : 0);
    hwloc_topology_destroy(topology);
    return KR_OK;
}

void kr_bind_memory(void *memory, size_t bytes, uint32_t cpu)
{
    hwloc_topology_t topology;
    hwloc_obj_t unit;

    if (load_topology(&topology, NULL) != KR_OK)
        return;
    unit = hwloc_get_pu_obj_by_os_index(topology, cpu);
    if (unit != NULL && unit->nodeset != NULL)
        (void)hwloc_set_area_membind(topology, memory, bytes, unit->nodeset, HWLOC_MEMBIND_BIND,
                                     HWLOC_MEMBIND_BYNODESET);
    hwloc_topology_destroy(topology);
}

void kr_bind_thread(uint32_t cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (cpu < CPU_SETSIZE)
        CPU_SET(cpu, &set);
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}
