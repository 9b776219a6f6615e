/* Which node takes a new session, and which micro-batch a session steps in: the port that the
 * placement policies see. Devices are numbered over all nodes, in node order; the gather node of
 * the indices-only placement is not a choice and not shown. */
#include "base/check.h"
#include "engine/inside.h"

static const kr_engine *world(const kr_port *port) { return port->context; }

static uint32_t device_count(const kr_port *port)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world(port)->config.node_count; i++)
        count += world(port)->peer[i].node.welcome.devices;
    return count;
}

/* Node of a device number; *device becomes its number inside the node. */
static uint32_t node_of(const kr_engine *engine, uint32_t *device)
{
    uint32_t node = 0;
    while (*device >= engine->peer[node].node.welcome.devices)
        *device -= engine->peer[node++].node.welcome.devices;
    return node;
}

static uint32_t number_of(const kr_engine *engine, const kr_session *session)
{
    uint32_t number = session->device;
    for (const kr_peer *peer = engine->peer; peer != session->peer; peer++)
        number += peer->node.welcome.devices;
    return number;
}

static uint64_t pages_for(const kr_port *port, uint64_t tokens)
{
    uint64_t pages[2];
    kr_program_pages(&world(port)->program, tokens, 2 * world(port)->config.rows_max, pages);
    return pages[0] + pages[1];
}

/* Pages promised to our sessions on the device and not used yet; other clients' are the node's to
 * know, and its OPEN refuses when they leave too little. */
static uint64_t reserved_pages(const kr_port *port, uint32_t device)
{
    const kr_engine *engine = world(port);
    uint64_t pages = 0;
    for (uint32_t i = 0; i < engine->running_count; i++) {
        const kr_session *session = engine->running[i];
        if (number_of(engine, session) == device)
            pages += pages_for(port, session->limit) - pages_for(port, session->kv_tokens);
    }
    return pages;
}

static kr_device_view device_view(const kr_port *port, uint32_t device)
{
    const kr_engine *engine = world(port);
    uint32_t inside = device;
    const uint32_t node = node_of(engine, &inside);
    const kr_peer *peer = &engine->peer[node];
    const kr_msg_device_stats *stats = &peer->device[inside];
    return (kr_device_view){
        .pages_total = stats->pages_total[0] + stats->pages_total[1],
        .pages_used = stats->pages_used[0] + stats->pages_used[1],
        .pages_reserved = reserved_pages(port, device),
        .node = node,
        .up = peer->down.status == KR_OK,
    };
}

static uint32_t running_count(const kr_port *port) { return world(port)->running_count; }

static kr_request_view running(const kr_port *port, uint32_t i)
{
    const kr_session *session = world(port)->running[i];
    return (kr_request_view){
        .id = session->number,
        .context_tokens = session->kv_tokens,
        .prompt_tokens = session->tokens - session->kv_tokens,
        .max_new_tokens = session->limit - session->tokens,
        .device = number_of(world(port), session),
        .micro_batch = session->micro_batch,
        .prefix_device = KR_NO_DEVICE,
    };
}

static uint32_t none_waiting(const kr_port *port)
{
    (void)port;
    return 0;
}

static uint32_t rows_max(const kr_port *port) { return world(port)->config.rows_max; }
static uint32_t micro_batches(const kr_port *port) { return world(port)->config.micro_batches; }

static kr_port place_port(kr_engine *engine)
{
    return (kr_port){
        .context = engine,
        .device_count = device_count,
        .device = device_view,
        .running_count = running_count,
        .running = running,
        .waiting_count = none_waiting,
        .pages_for = pages_for,
        .rows_max = rows_max,
        .micro_batches = micro_batches,
    };
}

/* ---- where prefixes lie ---- */

static kr_prefix_home *entry_of(const kr_engine *engine, kr_hash128 chain)
{
    return &engine->prefix_home[chain.low % KR_PREFIX_HOMES];
}

void kr_place_note(kr_engine *engine, const kr_session *session, uint32_t pages)
{
    for (uint32_t i = 0; i < pages; i++)
        *entry_of(engine, session->page_hash[i]) = (kr_prefix_home){session->page_hash[i],
                                                                    number_of(engine, session), true};
}

/* The longest prefix of the session that is known to lie somewhere. */
static void find_prefix(const kr_engine *engine, const kr_session *session, kr_request_view *request)
{
    for (uint64_t pages = session->pages_hashed; pages > 0; pages--) {
        const kr_hash128 chain = session->page_hash[pages - 1];
        const kr_prefix_home *home = entry_of(engine, chain);
        if (!home->known || home->chain.low != chain.low || home->chain.high != chain.high)
            continue;
        request->prefix_device = home->device;
        request->prefix_tokens = pages * KR_PAGE_TOKENS;
        return;
    }
}

kr_status kr_place_session(kr_engine *engine, const kr_session *session, kr_peer **peer, kr_err *err)
{
    if (engine->config.node_count == 1) { /* no choice: the node itself places or refuses */
        *peer = &engine->peer[0];
        return KR_OK;
    }
    for (uint32_t i = 0; i < engine->config.node_count; i++)
        (void)kr_peer_ask_stats(&engine->peer[i], NULL); /* a lost node is down, and passed over */
    const kr_port port = place_port(engine);
    kr_request_view request = {.prompt_tokens = session->tokens,
                               .max_new_tokens = session->limit - session->tokens,
                               .device = KR_NO_DEVICE,
                               .prefix_device = KR_NO_DEVICE};
    find_prefix(engine, session, &request);
    uint32_t device = kr_sched_place(&port, &request);
    if (device == KR_NO_DEVICE)
        return kr_fail(
            err, KR_E_FULL, "no memory node has a free page for a session of %llu tokens (%llu pages)",
            (unsigned long long)session->limit, (unsigned long long)pages_for(&port, session->limit));
    *peer = &engine->peer[node_of(engine, &device)];
    return KR_OK;
}

void kr_place_micro_batches(kr_engine *engine)
{
    const kr_port port = place_port(engine);
    kr_sched_balance_count(&port, engine->assignment);
    for (uint32_t i = 0; i < engine->running_count; i++) {
        KR_CHECK(engine->assignment[i] < engine->config.micro_batches);
        engine->running[i]->micro_batch = engine->assignment[i];
    }
}
