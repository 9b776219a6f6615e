/* Home devices, spill and admission. Occupancy counts pages in use and pages promised. */
#include "sched/port.h"

static uint64_t occupied(const kr_device_view *device)
{
    const uint64_t sum = device->pages_used + device->pages_reserved;

    return sum < device->pages_used ? UINT64_MAX : sum;
}

static uint64_t free_pages(const kr_device_view *device)
{
    const uint64_t taken = occupied(device);

    return device->up && taken < device->pages_total ? device->pages_total - taken : 0;
}

/* Least-occupied device with at least pages free, on node only unless any_node; ties by id. */
static uint32_t least_occupied(const kr_port *port, uint64_t pages, bool any_node, uint32_t node)
{
    const uint32_t devices = port->device_count(port);
    uint32_t best = KR_NO_DEVICE;
    uint64_t best_occupied = 0;

    for (uint32_t d = 0; d < devices; d++) {
        const kr_device_view view = port->device(port, d);

        if (free_pages(&view) < pages || (!any_node && view.node != node))
            continue;
        if (best == KR_NO_DEVICE || occupied(&view) < best_occupied) {
            best = d;
            best_occupied = occupied(&view);
        }
    }
    return best;
}

/* The device of the longest known prefix when it has pages free, else the least-occupied one. */
static uint32_t place(const kr_port *port, const kr_request_view *request, uint64_t pages)
{
    if (request->prefix_device < port->device_count(port) && request->prefix_tokens != 0) {
        const kr_device_view view = port->device(port, request->prefix_device);

        if (free_pages(&view) >= pages)
            return request->prefix_device;
    }
    return least_occupied(port, pages, true, 0);
}

uint32_t kr_sched_place(const kr_port *port, const kr_request_view *request)
{
    return place(port, request, 1);
}

uint32_t kr_sched_spill(const kr_port *port, uint32_t home)
{
    const kr_device_view view = port->device(port, home);

    return least_occupied(port, 1, false, view.node);
}

static uint64_t add_saturating(uint64_t a, uint64_t b) { return b > UINT64_MAX - a ? UINT64_MAX : a + b; }

/* Pages of the request's whole life: what is there, the prompt, and all it may generate. */
static uint64_t pages_of_life(const kr_port *port, const kr_request_view *request)
{
    const uint64_t prompt = add_saturating(request->context_tokens, request->prompt_tokens);

    return port->pages_for(port, add_saturating(prompt, request->max_new_tokens));
}

static uint64_t largest_device(const kr_port *port, bool *any_up)
{
    const uint32_t devices = port->device_count(port);
    uint64_t largest = 0;

    *any_up = false;
    for (uint32_t d = 0; d < devices; d++) {
        const kr_device_view view = port->device(port, d);

        *any_up |= view.up;
        if (view.up && view.pages_total > largest)
            largest = view.pages_total;
    }
    return largest;
}

/* True when a request that may still start waits before this one. Those that can never fit do not
 * hold up the queue: they are refused when their own turn comes. */
static bool is_behind_another(const kr_port *port, const kr_request_view *request, uint64_t largest)
{
    const uint32_t waiting = port->waiting_count(port);

    for (uint32_t i = 0; i < waiting; i++) {
        const kr_request_view earlier = port->waiting(port, i);

        if (earlier.id == request->id)
            return false;
        if (pages_of_life(port, &earlier) <= largest)
            return true;
    }
    return false;
}

/* Pages free over the devices of home's node: a session whose home is full spills there. */
static uint64_t free_on_node(const kr_port *port, uint32_t home)
{
    const uint32_t devices = port->device_count(port);
    const uint32_t node = port->device(port, home).node;
    uint64_t sum = 0;

    for (uint32_t d = 0; d < devices; d++) {
        const kr_device_view view = port->device(port, d);

        if (view.node == node)
            sum = add_saturating(sum, free_pages(&view));
    }
    return sum;
}

kr_admission kr_sched_admit(const kr_port *port, const kr_request_view *request)
{
    bool any_up;
    const uint64_t largest = largest_device(port, &any_up);
    kr_admission a = {.verdict = KR_DEFER,
                      .device = KR_NO_DEVICE,
                      .pages_needed = pages_of_life(port, request),
                      .pages_largest = largest};

    if (!any_up)
        return a;
    if (a.pages_needed > largest) {
        a.verdict = KR_REFUSE;
        return a;
    }
    if (is_behind_another(port, request, largest) || port->running_count(port) >= port->rows_max(port))
        return a;
    if (request->device < port->device_count(port)) {
        /* It has a home, where its present context already lies. */
        const uint64_t held = port->pages_for(port, request->context_tokens);

        if (port->device(port, request->device).up &&
            free_on_node(port, request->device) >= a.pages_needed - held)
            a.device = request->device;
    } else {
        a.device = place(port, request, a.pages_needed);
    }
    if (a.device != KR_NO_DEVICE)
        a.verdict = KR_ADMIT;
    return a;
}
