/* Inside sim/: which experts a rank holds, and what share of the work the most loaded rank gets. */
#ifndef KR_SIM_ROUTE_H
#define KR_SIM_ROUTE_H

#include "base/status.h"
#include "model/model.h"

/* Spreads experts with the given shares [moe->experts] over ranks and writes the shares of the slots
 * of the most loaded rank (ties: the smaller number) to slowest, which holds
 * kr_route_slots(...) entries. A replicated expert's share is divided by its replicas. */
uint32_t kr_route_slots(const kr_moe *moe, uint32_t ranks, bool balanced);
kr_status kr_route_slowest(const kr_moe *moe, const double *share, uint32_t ranks, bool balanced,
                           double *slowest, kr_err *err);

#endif
