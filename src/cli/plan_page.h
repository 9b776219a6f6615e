/* Inside cli/: the pictures of karat plan's page. */
#ifndef KR_CLI_PLAN_PAGE_H
#define KR_CLI_PLAN_PAGE_H

#include <stdio.h>

#include "plan/search.h"

/* Throughput per watt of the front, what its devices do, what a step consists of, all points, and how far
 * the best moves with each parameter; written between two parts of a page. KR_E_IO. */
kr_status kr_plan_draw(const kr_search *search, FILE *out, kr_err *err);

#endif
