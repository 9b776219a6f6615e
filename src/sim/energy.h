/* Inside sim/: the energy of a step. Work is linear in load, so each op is priced once, on the load of
 * all places together; idle power comes on top by the clock.
 *
 * What is left out: prefill and ingest, host memory, switches, power supplies. Experts that a skewed
 * routing leaves out are counted as under uniform routing. */
#ifndef KR_SIM_ENERGY_H
#define KR_SIM_ENERGY_H

#include "sim/price.h"

/* Adds the energy above idle of a whole step to joules. rank and device as for kr_pricer_fill. */
void kr_energy_add(const kr_pricer *pricer, const kr_place_load *rank, const kr_place_load *device,
                   double joules[KR_POWER_PARTS]);
/* Power of devices that do nothing. */
void kr_energy_idle(const kr_pricer *pricer, double watts[KR_POWER_PARTS]);
/* Whether every device states its energy. */
bool kr_energy_known(const kr_sim_hardware *hardware);

#endif
