/* The store's questions about placement, answered by sched/ through a port that shows this node. */
#include "sched/port.h"

#include "node/state.h"

static const kr_store *store_of(const kr_port *port) { return &((const kr_node *)port->context)->store; }

static uint32_t device_count(const kr_port *port) { return store_of(port)->devices; }

static kr_device_view device_view(const kr_port *port, uint32_t device)
{
    const kr_occupancy o = kr_store_occupancy(store_of(port), device);

    return (kr_device_view){
        .pages_total = o.total, .pages_used = o.used, .pages_reserved = o.reserved, .up = true};
}

static uint64_t pages_for(const kr_port *port, uint64_t tokens)
{
    const kr_geometry *g = &store_of(port)->geometry;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < g->groups; i++)
        sum += kr_geometry_pages(g, i, tokens);
    return sum;
}

static kr_port port_of(kr_node *node)
{
    return (kr_port){
        .context = node, .device_count = device_count, .device = device_view, .pages_for = pages_for};
}

static uint32_t place(void *context, uint64_t tokens_max, uint32_t prefix_device, uint64_t prefix_tokens)
{
    const kr_port port = port_of(context);
    const kr_request_view request = {
        .prompt_tokens = tokens_max,
        .device = KR_NO_DEVICE,
        .prefix_device = prefix_device,
        .prefix_tokens = prefix_tokens,
    };

    return kr_sched_place(&port, &request);
}

static uint32_t spill(void *context, uint32_t home)
{
    const kr_port port = port_of(context);
    return kr_sched_spill(&port, home);
}

kr_store_policy node_policy(kr_node *node)
{
    return (kr_store_policy){.context = node, .place = place, .spill = spill};
}
