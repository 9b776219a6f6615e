/* Inside cli/: karat plan device. */
#ifndef KR_CLI_PLAN_DEVICE_H
#define KR_CLI_PLAN_DEVICE_H

#include "plan/search.h"

typedef struct {
    const kr_search_options *search; /* model, method, data, device, workload, rule of measurement */
    const char *trace, *html, *access_trace;
    uint64_t context_tokens; /* of the access trace */
    uint32_t access_bytes;
    bool json;
} kr_plan_device_options;

/* Prints, and writes the page and the access trace that are asked for. */
kr_status kr_plan_device(const kr_plan_device_options *options, int *code, kr_err *err);

#endif
