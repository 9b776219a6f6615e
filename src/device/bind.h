/* Which CPUs and which memory a device of this machine uses: topology by hwloc. */
#ifndef KR_DEVICE_BIND_H
#define KR_DEVICE_BIND_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Spreads devices * threads workers over the CPUs this process may use, whole cores first, so that
 * the threads of one device are neighbours: cpus [devices * threads], device-major. With more
 * workers than CPUs they wrap around. KR_E_UNSUPPORTED when the topology cannot be read. */
kr_status kr_bind_cpus(uint32_t devices, uint32_t threads, uint32_t *cpus, kr_err *err);

/* Binds memory that is not yet touched to the NUMA node of cpu. A machine that cannot is left alone. */
void kr_bind_memory(void *memory, size_t bytes, uint32_t cpu);

/* Binds the calling thread to cpu. */
void kr_bind_thread(uint32_t cpu);

#endif
