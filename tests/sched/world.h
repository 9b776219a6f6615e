/* A small world behind kr_port for the tests of placement, admission and rebalancing. */
#ifndef TESTS_SCHED_WORLD_H
#define TESTS_SCHED_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sched/port.h"

enum { WORLD_DEVICES = 8, WORLD_REQUESTS = 64, WORLD_PAGE = 128 };

typedef struct {
    kr_port port;
    kr_device_view device[WORLD_DEVICES];
    kr_request_view running[WORLD_REQUESTS], waiting[WORLD_REQUESTS];
    uint32_t devices, runs, waits, rows_max, micro_batches;
} world;

static uint32_t world_devices(const kr_port *p) { return ((const world *)p->context)->devices; }

static kr_device_view world_device(const kr_port *p, uint32_t d)
{
    return ((const world *)p->context)->device[d];
}

static uint32_t world_runs(const kr_port *p) { return ((const world *)p->context)->runs; }

static kr_request_view world_running(const kr_port *p, uint32_t i)
{
    return ((const world *)p->context)->running[i];
}

static uint32_t world_waits(const kr_port *p) { return ((const world *)p->context)->waits; }

static kr_request_view world_waiting(const kr_port *p, uint32_t i)
{
    return ((const world *)p->context)->waiting[i];
}

static uint32_t world_rows_max(const kr_port *p) { return ((const world *)p->context)->rows_max; }

static uint32_t world_micro_batches(const kr_port *p) { return ((const world *)p->context)->micro_batches; }

static uint64_t world_pages_for(const kr_port *p, uint64_t tokens)
{
    (void)p;
    return tokens / WORLD_PAGE + (tokens % WORLD_PAGE != 0);
}

static inline void world_init(world *w, uint32_t devices)
{
    memset(w, 0, sizeof *w);
    w->devices = devices;
    w->rows_max = WORLD_REQUESTS;
    w->micro_batches = 2;
    for (uint32_t d = 0; d < devices; d++)
        w->device[d].up = true;
    w->port = (kr_port){
        .context = w,
        .device_count = world_devices,
        .device = world_device,
        .running_count = world_runs,
        .running = world_running,
        .waiting_count = world_waits,
        .waiting = world_waiting,
        .pages_for = world_pages_for,
        .rows_max = world_rows_max,
        .micro_batches = world_micro_batches,
    };
}

static inline kr_request_view world_request(uint64_t id, uint64_t tokens)
{
    return (kr_request_view){.id = id,
                             .prompt_tokens = tokens,
                             .device = KR_NO_DEVICE,
                             .prefix_device = KR_NO_DEVICE,
                             .micro_batch = UINT32_MAX};
}

#endif
