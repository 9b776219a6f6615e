/* The closed loop: draws sessions, admits them, ingests their turns and advances them by a token a
 * step. Every request is in exactly one of waiting, ingesting, decoding and thinking. */
#include "sim/loop.h"

#include <math.h>

#include "base/check.h"
#include "base/hash.h"

/* ---- what sched/ may ask ---- */

static const kr_loop *world(const kr_port *port) { return port->context; }

static uint32_t device_count(const kr_port *port) { return world(port)->devices; }

static kr_device_view device(const kr_port *port, uint32_t d) { return world(port)->device[d]; }

static kr_request_view view_of(const kr_request *r)
{
    return (kr_request_view){
        .id = r->id,
        .context_tokens = r->context_tokens,
        .max_new_tokens = r->peak_tokens - r->context_tokens,
        .device = r->device,
        .micro_batch = r->micro_batch,
        .prefix_device = KR_NO_DEVICE,
    };
}

/* Admission counts every admitted request; rebalancing deals out those that decode. The second is
 * the list, the first only a number, so one port serves both. */
static uint32_t decoding_count(const kr_port *port) { return world(port)->decoding_count; }

static uint32_t admitted_count(const kr_port *port) { return world(port)->admitted_count; }

static kr_request_view decoding(const kr_port *port, uint32_t i)
{
    return view_of(&world(port)->request[world(port)->decoding[i]]);
}

static uint32_t waiting_count(const kr_port *port) { return world(port)->waiting_count; }

static kr_request_view waiting(const kr_port *port, uint32_t i)
{
    const kr_loop *loop = world(port);

    return view_of(&loop->request[loop->waiting[(loop->waiting_first + i) % loop->options->sessions]]);
}

/* In units of a page of group 0; pages of the two groups differ in size. Index records, which grow with
 * a session, take their share. */
static uint64_t pages_for(const kr_port *port, uint64_t tokens)
{
    const kr_loop *loop = world(port);
    uint64_t pages[2];

    kr_program_pages(loop->program, tokens, 1, pages);
    if (pages[1] != 0)
        pages[0] += kr_ceil_div(pages[1] * loop->page_bytes[1], loop->page_bytes[0]);
    return pages[0] + kr_ceil_div(tokens * loop->record_token_bytes, loop->page_bytes[0]);
}

static uint32_t rows_max(const kr_port *port)
{
    const uint32_t max = world(port)->options->rows_max;

    return max != 0 ? max : UINT32_MAX;
}

static uint32_t micro_batches(const kr_port *port) { return world(port)->program->parallel.micro_batches; }

/* ---- sessions ---- */

static uint64_t promised_tokens(const kr_sim_session *session, uint32_t turn, kr_promise promise)
{
    const uint32_t first = promise == KR_PROMISE_SESSION ? 0 : turn;
    const uint32_t end = promise == KR_PROMISE_TURN ? turn + 1 : session->turns;
    uint64_t most = 0;

    for (uint32_t t = first; t < end; t++) {
        const uint64_t tokens = session->turn[t].context_tokens + session->turn[t].output_tokens;

        most = tokens > most ? tokens : most;
    }
    return most;
}

static void new_session(kr_loop *loop, uint32_t slot, bool initial)
{
    const uint64_t drawn = kr_rng_below(&loop->draw, loop->workload->sessions);
    const kr_sim_session *session = &loop->workload->session[drawn];
    const bool random_turn = initial && !loop->options->first_turns;
    kr_request *r = &loop->request[slot];

    *r = (kr_request){
        .id = loop->next_id++,
        .session = session,
        .turn = random_turn ? (uint32_t)kr_rng_below(&loop->start, session->turns) : 0,
        .device = KR_NO_DEVICE,
        .micro_batch = UINT32_MAX,
        .resident = initial,
    };
    r->peak_tokens = promised_tokens(session, r->turn, loop->options->promise);
    loop->waiting[(loop->waiting_first + loop->waiting_count++) % loop->options->sessions] = slot;
    if (loop->waiting_count > loop->result->waiting_max)
        loop->result->waiting_max = loop->waiting_count;
}

/* The turn has arrived at arrival_ns: its tokens enter the device's queue. */
static void ingest(kr_loop *loop, uint32_t slot, uint64_t tokens, uint64_t arrival_ns)
{
    const uint32_t d = loop->request[slot].device;
    const uint64_t bytes = tokens * loop->token_bytes;
    const uint64_t begin = loop->ingest_free_ns[d] > arrival_ns ? loop->ingest_free_ns[d] : arrival_ns;
    uint64_t end = arrival_ns;

    if (tokens != 0) {
        loop->ingest_free_ns[d] = begin + (uint64_t)((double)bytes / loop->ingest_bytes_per_s * 1e9 + 0.5);
        end = loop->ingest_free_ns[d] + (uint64_t)(loop->ingest_latency_s * 1e9 + 0.5);
        loop->result->ingests++;
        loop->result->ingested_bytes += bytes;
        loop->result->ingest_wait_ns += begin - arrival_ns;
    }
    KR_CHECK(kr_heap_push(&loop->ingesting, end, slot) == KR_OK);
}

static void begin_turn(kr_request *r)
{
    const kr_sim_turn *turn = &r->session->turn[r->turn];

    r->context_tokens = turn->context_tokens;
    r->tokens_left = turn->output_tokens;
}

static uint32_t drop_head(kr_loop *loop)
{
    const uint32_t slot = loop->waiting[loop->waiting_first];

    loop->waiting_first = (loop->waiting_first + 1) % loop->options->sessions;
    loop->waiting_count--;
    return slot;
}

static void admit_head(kr_loop *loop, const kr_admission *a, uint64_t now_ns)
{
    const uint32_t slot = drop_head(loop);
    kr_request *r = &loop->request[slot];

    r->device = a->device;
    r->pages = a->pages_needed;
    loop->device[a->device].pages_reserved += a->pages_needed;
    loop->admitted_count++;
    loop->result->admitted++;
    loop->digest = kr_digest_add(loop->digest, r->id << 20 ^ a->device);
    begin_turn(r);
    ingest(loop, slot, r->resident && now_ns == 0 ? 0 : r->context_tokens, now_ns);
}

/* A workload of which nothing fits is noticed after this many refusals without an admission. */
enum { REFUSALS_MAX = 10000 };

static kr_status admit(kr_loop *loop, uint64_t now_ns, kr_err *err)
{
    uint32_t refusals = 0;

    loop->port.running_count = admitted_count;
    while (loop->waiting_count != 0) {
        const kr_request_view head = waiting(&loop->port, 0);
        const kr_admission a = kr_sched_admit(&loop->port, &head);

        if (a.verdict == KR_DEFER)
            return KR_OK;
        if (a.verdict == KR_ADMIT) {
            admit_head(loop, &a, now_ns);
            refusals = 0;
            continue;
        }
        loop->result->refused++;
        if (++refusals == REFUSALS_MAX)
            return kr_fail(err, KR_E_LIMIT,
                           "sim: no session fits: the last needs %llu pages, the largest device has %llu",
                           (unsigned long long)a.pages_needed, (unsigned long long)a.pages_largest);
        new_session(loop, drop_head(loop), false);
    }
    return KR_OK;
}

/* ---- between steps ---- */

/* Puts a slot into the decoding list, which is in order of id. */
static void insert_decoding(kr_loop *loop, uint32_t slot)
{
    uint32_t i = loop->decoding_count++;

    for (; i > 0 && loop->request[loop->decoding[i - 1]].id > loop->request[slot].id; i--)
        loop->decoding[i] = loop->decoding[i - 1];
    loop->decoding[i] = slot;
    loop->changed = true;
}

/* Ingests the turns that have arrived, in order of arrival, and lets decode what is ingested.
 * Returns when the next of either happens. */
static uint64_t wake(kr_loop *loop, uint64_t now_ns)
{
    uint64_t next = UINT64_MAX;
    kr_heap_item item;

    while (loop->thinking.count != 0 && loop->thinking.items[0].time <= now_ns) {
        const kr_request *r;

        (void)kr_heap_pop(&loop->thinking, &item);
        r = &loop->request[item.payload];
        ingest(loop, (uint32_t)item.payload, r->session->turn[r->turn].new_tokens, item.time);
    }
    while (loop->ingesting.count != 0 && loop->ingesting.items[0].time <= now_ns) {
        (void)kr_heap_pop(&loop->ingesting, &item);
        insert_decoding(loop, (uint32_t)item.payload);
    }
    if (loop->thinking.count != 0)
        next = loop->thinking.items[0].time;
    if (loop->ingesting.count != 0 && loop->ingesting.items[0].time < next)
        next = loop->ingesting.items[0].time;
    return next;
}

/* Deals each micro-batch's requests of a cell out to its ranks in turn, in order of id. */
static void assign_ranks(kr_loop *loop)
{
    const uint32_t ranks = loop->ranks / loop->cells, devices = loop->devices / loop->cells;

    for (uint32_t i = 0; i < loop->cells * KR_MICRO_BATCHES_MAX; i++)
        loop->rank_next[i] = 0;
    for (uint32_t i = 0; i < loop->decoding_count; i++) {
        kr_request *r = &loop->request[loop->decoding[i]];
        const uint32_t cell = r->device / devices;
        uint32_t *next = &loop->rank_next[cell * KR_MICRO_BATCHES_MAX + r->micro_batch];

        r->rank = cell * ranks + *next;
        *next = (*next + 1) % ranks;
    }
}

/* Micro-batches by the policy, then ranks. */
static void assign(kr_loop *loop)
{
    loop->port.running_count = decoding_count;
    if (loop->options->rebalance)
        kr_sched_rebalance(&loop->port, loop->micro_batch, loop->scratch);
    else
        kr_sched_balance_count(&loop->port, loop->micro_batch);
    for (uint32_t i = 0; i < loop->decoding_count; i++)
        loop->request[loop->decoding[i]].micro_batch = loop->micro_batch[i];
    assign_ranks(loop);
    loop->changed = false;
}

kr_status kr_loop_prepare(kr_loop *loop, uint64_t *now_ns, kr_err *err)
{
    for (;;) {
        const kr_status status = admit(loop, *now_ns, err);
        uint64_t next;

        if (status != KR_OK)
            return status;
        next = wake(loop, *now_ns);
        if (loop->decoding_count != 0)
            break;
        /* Something thinks or is ingested: the head of the queue is deferred only while others hold pages. */
        KR_CHECK(next != UINT64_MAX);
        *now_ns = next;
    }
    if (loop->changed)
        assign(loop);
    return KR_OK;
}

static void end_session(kr_loop *loop, uint32_t slot)
{
    kr_request *r = &loop->request[slot];

    loop->device[r->device].pages_reserved -= r->pages;
    loop->admitted_count--;
    loop->result->finished++;
    new_session(loop, slot, false);
}

/* The next turn's pages in place of the last one's. */
static void promise_again(kr_loop *loop, kr_request *r)
{
    kr_device_view *d = &loop->device[r->device];

    r->peak_tokens = promised_tokens(r->session, r->turn, KR_PROMISE_TURN);
    d->pages_reserved -= r->pages;
    r->pages = pages_for(&loop->port, r->peak_tokens);
    d->pages_reserved += r->pages;
    loop->result->overdrawn += d->pages_reserved > d->pages_total;
}

static void end_turn(kr_loop *loop, uint32_t slot, uint64_t now_ns)
{
    kr_request *r = &loop->request[slot];

    loop->result->turns++;
    if (++r->turn == r->session->turns) {
        end_session(loop, slot);
        return;
    }
    r->micro_batch = UINT32_MAX;
    if (loop->options->promise == KR_PROMISE_TURN)
        promise_again(loop, r);
    begin_turn(r);
    KR_CHECK(kr_heap_push(&loop->thinking, now_ns + r->session->turn[r->turn].think_ns, slot) == KR_OK);
}

void kr_loop_advance(kr_loop *loop, uint64_t now_ns)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < loop->decoding_count; i++) {
        const uint32_t slot = loop->decoding[i];
        kr_request *r = &loop->request[slot];

        r->context_tokens++;
        if (--r->tokens_left != 0) {
            loop->decoding[kept++] = slot;
            continue;
        }
        loop->changed = true;
        end_turn(loop, slot, now_ns);
    }
    loop->decoding_count = kept;
}

/* ---- the beginning ---- */

/* Weights of the redundant expert that balancing adds to each rank, in every layer with experts. */
static double redundant_bytes(const kr_loop *loop)
{
    const kr_model *m = loop->program->model;
    const uint64_t expert = 3 * (uint64_t)m->hidden * m->moe.width;
    uint64_t layers = 0;

    if (loop->options->expert_share == NULL || !loop->options->balance_experts)
        return 0.0;
    for (uint32_t l = 0; l < m->layers; l++)
        layers += m->layer[l].ffn == KR_FFN_MOE;
    return (double)kr_model_weight_bytes(m, KR_WEIGHT_EXPERT, layers * expert);
}

/* Pages of one device, and the bytes that an ingested token sends over the link to it. */
static double pages_of_device(kr_loop *loop, const kr_memory_plan *plan, double rank_bytes)
{
    const kr_sim_hardware *h = loop->hardware;
    const double usable = 1.0 - h->reserved_share;
    const double index_token_bytes = (double)plan->index_token_bytes;
    double index = HUGE_VAL, kv;

    loop->token_bytes = plan->kv_token_bytes + plan->index_token_bytes;
    switch (loop->program->parallel.placement) {
    case KR_PLACE_ALL_ON_NODE:
        return h->memory->memory_bytes * usable / (double)plan->page_bytes[0];
    case KR_PLACE_ALL_ON_COMPUTE:
        if (h->host_bytes <= 0.0)
            return rank_bytes / (double)plan->page_bytes[0];
        /* KV in host memory, the index beside the weights: the scarcer one bounds. */
        kv = h->host_bytes * usable / (double)plan->kv_token_bytes;
        if (plan->index_token_bytes != 0)
            index = rank_bytes / index_token_bytes;
        break;
    case KR_PLACE_INDICES_ONLY:
        /* KV beside the weights, the index on the device. */
        kv = rank_bytes * loop->ranks / loop->devices / (double)plan->kv_token_bytes;
        if (plan->index_token_bytes != 0)
            index = h->memory->memory_bytes * usable / index_token_bytes;
        loop->token_bytes = plan->index_token_bytes;
        break;
    default:
        return 0.0;
    }
    return (index < kv ? index : kv) / KR_PAGE_TOKENS;
}

/* Pages are those of one accelerator of a tensor-parallel rank: the program's shapes are its own. Where
 * they are not (indices-only), MLA's latent rows are repeated on each and other KV heads spread over them. */
static kr_status size_pools(kr_loop *loop, kr_err *err)
{
    const kr_program *p = loop->program;
    const kr_sim_hardware *h = loop->hardware;
    const bool split = p->parallel.placement == KR_PLACE_INDICES_ONLY &&
                       p->model->attention != KR_ATTENTION_MLA;
    const double rank_devices = split ? p->parallel.tp : 1;
    kr_memory_plan plan;
    kr_status status = kr_program_memory(p, p->model->context, 1, &plan, err);
    double weight_bytes, rank_bytes, pages;

    if (status != KR_OK)
        return status;
    weight_bytes = (double)plan.weight_bytes + redundant_bytes(loop);
    rank_bytes = (h->compute->memory_bytes * (1.0 - h->reserved_share) - weight_bytes) * rank_devices;
    if (rank_bytes <= 0.0)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "%s holds %.1f GB, %.0f %% of them kept back; the weights of a rank take %.1f GB",
                       h->compute->name, h->compute->memory_bytes / 1e9, 100 * h->reserved_share,
                       weight_bytes / 1e9);
    loop->record_token_bytes = plan.record_bytes / p->context_max;
    loop->page_bytes[0] = plan.page_bytes[0];
    loop->page_bytes[1] = plan.page_bytes[1];
    pages = pages_of_device(loop, &plan, rank_bytes);
    for (uint32_t d = 0; d < loop->devices; d++)
        loop->device[d] = (kr_device_view){.pages_total = (uint64_t)pages,
                                           .up = true,
                                           .node = h->memory != NULL ? d / h->devices_per_node : d};
    return KR_OK;
}

static uint32_t greatest_common_divisor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        const uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

static kr_status allocate(kr_loop *loop, kr_err *err)
{
    const uint32_t n = loop->options->sessions;

    loop->device = kr_alloc(loop->devices * sizeof *loop->device);
    loop->ingest_free_ns = kr_alloc(loop->devices * sizeof *loop->ingest_free_ns);
    loop->rank_next = kr_alloc(loop->cells * KR_MICRO_BATCHES_MAX * sizeof *loop->rank_next);
    loop->request = kr_alloc(n * sizeof *loop->request);
    loop->waiting = kr_alloc(n * sizeof *loop->waiting);
    loop->decoding = kr_alloc(n * sizeof *loop->decoding);
    loop->micro_batch = kr_alloc(n * sizeof *loop->micro_batch);
    loop->scratch = kr_alloc(n * sizeof *loop->scratch);
    loop->thinking_items = kr_alloc(n * sizeof *loop->thinking_items);
    loop->ingesting_items = kr_alloc(n * sizeof *loop->ingesting_items);
    if (loop->device == NULL || loop->ingest_free_ns == NULL || loop->rank_next == NULL ||
        loop->request == NULL || loop->waiting == NULL || loop->decoding == NULL ||
        loop->micro_batch == NULL || loop->scratch == NULL || loop->thinking_items == NULL ||
        loop->ingesting_items == NULL)
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for %u sessions", n);
    kr_heap_init(&loop->thinking, loop->thinking_items, n);
    kr_heap_init(&loop->ingesting, loop->ingesting_items, n);
    return KR_OK;
}

kr_status kr_loop_init(kr_loop *loop, const kr_program *program, const kr_sim_hardware *hardware,
                       const kr_sim_workload *workload, const kr_sim_options *options, uint32_t ranks,
                       uint32_t devices, kr_sim_result *result, kr_err *err)
{
    const kr_device_model *path = hardware->memory != NULL ? hardware->memory : hardware->compute;
    kr_status status;

    *loop = (kr_loop){
        .program = program,
        .hardware = hardware,
        .workload = workload,
        .options = options,
        .ranks = ranks,
        .devices = devices,
        .cells = greatest_common_divisor(ranks, devices),
        .ingest_bytes_per_s = path->link_bytes_per_s,
        .ingest_latency_s = path->link_latency_s,
        .draw = kr_rng_make(options->seed, 1),
        .start = kr_rng_make(options->seed, 2),
        .result = result,
        .port = {.device_count = device_count,
                 .device = device,
                 .running = decoding,
                 .waiting_count = waiting_count,
                 .waiting = waiting,
                 .pages_for = pages_for,
                 .rows_max = rows_max,
                 .micro_batches = micro_batches},
    };
    loop->port.context = loop;
    status = allocate(loop, err);
    if (status == KR_OK)
        status = size_pools(loop, err);
    if (status != KR_OK)
        return status;
    for (uint32_t s = 0; s < options->sessions; s++)
        new_session(loop, s, true);
    return KR_OK;
}

void kr_loop_free(kr_loop *loop)
{
    kr_free(loop->device);
    kr_free(loop->ingest_free_ns);
    kr_free(loop->rank_next);
    kr_free(loop->request);
    kr_free(loop->waiting);
    kr_free(loop->decoding);
    kr_free(loop->micro_batch);
    kr_free(loop->scratch);
    kr_free(loop->thinking_items);
    kr_free(loop->ingesting_items);
}
