/* Durations of ops on ranks, devices, links and the all-to-all network. A place without rows takes
 * no time; all figures come from kr_op_work and the device models. */
#include "sim/price.h"

#include <string.h>
#include "base/check.h"

static bool same_class(const kr_method_plan *a, const kr_method_plan *b)
{
    return a->dense == b->dense && a->owns_index == b->owns_index && a->selected_max == b->selected_max &&
           a->unit_tokens == b->unit_tokens && a->attended_fixed == b->attended_fixed &&
           a->attended_ppm == b->attended_ppm;
}

static kr_status class_of(kr_pricer *p, const kr_method_plan *plan, uint32_t *class, kr_err *err)
{
    for (*class = 0; *class < p->classes; (*class)++)
        if (same_class(p->class_plan[*class], plan))
            return KR_OK;
    if (p->classes == KR_LOAD_CLASSES_MAX)
        return kr_fail(err, KR_E_UNSUPPORTED, "sim: layers attend in more than %d ways", KR_LOAD_CLASSES_MAX);
    p->class_plan[p->classes++] = plan;
    return KR_OK;
}

/* Whether rows alone decide: no work by tokens. Stages may have curves with other terms. */
static bool is_by_rows(const kr_pricer *p, const kr_op *op)
{
    static const kr_work none;
    const kr_cost_terms *t = &p->program->cost[op->cost];

    return (op->kind < KR_OP_APPEND || op->kind > KR_OP_ATTEND) &&
           memcmp(&t->per_context_token, &none, sizeof none) == 0 &&
           memcmp(&t->per_unit, &none, sizeof none) == 0 &&
           memcmp(&t->per_attended_token, &none, sizeof none) == 0;
}

/* Whose curve prices a stage of the layer: layers that a method leaves dense run as dense does. */
static const char *method_of(const kr_program *program, kr_op_kind kind, uint32_t layer)
{
    if (kind != KR_OP_APPEND && kind != KR_OP_SCORE && kind != KR_OP_SELECT && kind != KR_OP_GATHER &&
        kind != KR_OP_ATTEND)
        return NULL;
    return program->plan[layer].dense ? "dense" : program->method[layer]->name;
}

/* Shares of the most loaded rank, of each layer where they differ; none when routing is uniform. */
static kr_status list_experts(kr_pricer *p, const kr_sim_options *options, kr_err *err)
{
    const kr_model *m = p->program->model;
    const uint32_t ep = p->program->parallel.ep, rows = options->share_by_layer ? m->layers : 1;
    kr_status status = KR_OK;

    if (options->expert_share == NULL)
        return KR_OK;
    if (m->moe.experts == 0)
        return kr_fail(err, KR_E_ARG, "sim: shares of experts are given, the model has none");
    p->share_by_layer = options->share_by_layer;
    p->slowest_experts = kr_route_slots(&m->moe, ep, options->balance_experts);
    p->slowest = kr_alloc((size_t)rows * p->slowest_experts * sizeof *p->slowest);
    if (p->slowest == NULL)
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for %u experts", p->slowest_experts);
    for (uint32_t l = 0; l < rows && status == KR_OK; l++)
        if (!options->share_by_layer || m->layer[l].ffn == KR_FFN_MOE)
            status = kr_route_slowest(&m->moe, options->expert_share + (size_t)l * m->moe.experts, ep,
                                      options->balance_experts, p->slowest + (size_t)l * p->slowest_experts,
                                      err);
    return status;
}

/* Shares by which an op is priced: of the experts and of the exchanges on both sides of them. */
static const double *slowest_of(const kr_pricer *p, const kr_op *op)
{
    if (p->slowest == NULL ||
        (op->kind != KR_OP_EXPERTS && op->kind != KR_OP_DISPATCH && op->kind != KR_OP_COMBINE))
        return NULL;
    return p->slowest + (p->share_by_layer ? (size_t)op->layer * p->slowest_experts : 0);
}

/* Groups ops into prices. */
static kr_status list_prices(kr_pricer *pricer, kr_err *err)
{
    const kr_program *program = pricer->program;
    kr_pricer p = *pricer;

    for (uint32_t i = 0; i < program->count; i++) {
        const kr_op *op = &program->ops[i];
        const uint32_t layer = op->layer < program->model->layers ? op->layer : 0;
        const char *method = method_of(program, (kr_op_kind)op->kind, layer);
        uint32_t class, k = 0;

        if (class_of(&p, &program->plan[layer], &class, err) != KR_OK)
            return KR_E_UNSUPPORTED;
        while (k < p.prices && (p.price[k].op.kind != op->kind || p.price[k].op.cost != op->cost ||
                                p.price[k].load_class != class || p.price[k].method != method ||
                                p.price[k].slowest != slowest_of(&p, op)))
            k++;
        if (k == p.prices)
            p.price[p.prices++] = (kr_price){
                .op = *op,
                .load_class = class,
                .method = method,
                .slowest = slowest_of(&p, op),
                .by_rows = is_by_rows(&p, op),
                .math = kr_program_math(program, (kr_op_kind)op->kind, layer),
                .kernels = kr_program_kernels(program, (kr_op_kind)op->kind, layer)};
        p.price[k].uses += op->micro_batch == 0;
        p.price_of[i] = k;
    }
    *pricer = p;
    return KR_OK;
}

void kr_pricer_free(kr_pricer *pricer)
{
    kr_free(pricer->slowest);
    kr_free(pricer->price);
    kr_free(pricer->price_of);
}

void kr_pricer_add(const kr_pricer *pricer, kr_place_load *place, uint64_t context_tokens)
{
    for (uint32_t c = 0; c < pricer->classes; c++) {
        const kr_load row = kr_row_load(pricer->class_plan[c], context_tokens);

        place->load[c].rows += row.rows;
        place->load[c].context_tokens += row.context_tokens;
        place->load[c].units += row.units;
        place->load[c].attended_tokens += row.attended_tokens;
    }
}

/* base^n by squaring: the same bits everywhere, which pow() does not promise. */
static double power(double base, uint64_t n)
{
    double result = 1.0;

    for (; n != 0; n >>= 1) {
        if (n & 1)
            result *= base;
        base *= base;
    }
    return result;
}

/* Tokens of one expert-parallel group of accelerators. */
static uint64_t rows_of_group(const kr_pricer *p, uint64_t rows_of_all)
{
    const kr_parallel *parallel = &p->program->parallel;
    const uint64_t rows = kr_ceil_div(rows_of_all * parallel->ep, (uint64_t)p->ranks * parallel->tp);

    return rows < rows_of_all ? rows : rows_of_all;
}

void kr_pricer_experts(const kr_pricer *p, const double *slowest, uint64_t rows_of_all, kr_load *load)
{
    const kr_moe *moe = &p->program->model->moe;
    const uint32_t ep = p->program->parallel.ep;
    const uint64_t rows = rows_of_group(p, rows_of_all);
    double touched = 0.0, share = 0.0;

    if (slowest == NULL) {
        touched = (double)kr_ceil_div(moe->experts, ep) *
                  (1.0 - power(1.0 - (double)moe->active / moe->experts, rows));
        load->expert_rows = kr_ceil_div(rows * moe->active, ep);
    } else {
        for (uint32_t i = 0; i < p->slowest_experts; i++) {
            const double chosen = moe->active * slowest[i];

            touched += 1.0 - power(1.0 - (chosen < 1.0 ? chosen : 1.0), rows);
            share += slowest[i];
        }
        load->expert_rows = (uint64_t)((double)(rows * moe->active) * share + 0.5);
    }
    load->experts = (uint64_t)(touched + 0.5);
    if (load->experts == 0 && load->expert_rows != 0)
        load->experts = 1;
}

static kr_device_job job_of(const kr_pricer *p, const kr_price *price, const kr_load *load)
{
    return (kr_device_job){
        .op = (kr_op_kind)price->op.kind,
        .math = price->math,
        .model = p->program->model->name,
        .method = price->method,
        .work = kr_op_work(p->program, &price->op, load),
        .rows = load->rows,
        .context_tokens = load->context_tokens,
        .attended_tokens = load->attended_tokens,
        .experts = load->experts,
        .expert_rows = load->expert_rows,
        .kernels = &price->kernels,
    };
}

/* A stage where it runs: on the device, or on the rank when there is none or it cannot. */
static bool is_monotone(const kr_pricer *p, const kr_price *price)
{
    const kr_device_model *memory = p->hardware->memory;
    const kr_device_job job = job_of(p, price, &(kr_load){0});
    const bool device = price->op.resource == KR_ON_DEVICE && memory != NULL && memory->can[price->op.kind];

    return kr_device_monotone(device ? memory : p->hardware->compute, &job);
}

kr_status kr_pricer_init(kr_pricer *pricer, const kr_program *program, const kr_sim_hardware *hardware,
                         const kr_sim_options *options, uint32_t ranks, uint32_t devices, kr_err *err)
{
    kr_pricer p = {.program = program, .hardware = hardware, .ranks = ranks, .devices = devices};
    kr_status status;

    p.price = kr_alloc(program->count * sizeof *p.price);
    p.price_of = kr_alloc(program->count * sizeof *p.price_of);
    status = p.price == NULL || p.price_of == NULL
                 ? kr_fail(err, KR_E_MEMORY, "sim: no memory for the prices of %u ops", program->count)
                 : list_experts(&p, options, err);
    if (status == KR_OK)
        status = list_prices(&p, err);
    for (uint32_t k = 0; k < p.prices && status == KR_OK; k++)
        p.price[k].monotone = is_monotone(&p, &p.price[k]);
    if (status != KR_OK) {
        kr_pricer_free(&p);
        return status;
    }
    *pricer = p;
    return KR_OK;
}

static uint64_t seconds_to_ns(double seconds) { return (uint64_t)(seconds * 1e9 + 0.5); }

/* What a micro-batch has over all ranks, and the places that have most of it. */
typedef struct {
    uint32_t micro_batch;
    uint64_t rows_of_all, rows_largest; /* largest of the ranks */
    uint32_t largest_rank, largest_device;
} batch_rows;

static bool is_expert_message(const kr_price *price)
{
    return price->op.kind == KR_OP_DISPATCH || price->op.kind == KR_OP_COMBINE;
}

static void add_modelled(kr_device_time *t, uint64_t ns)
{
    t->ns += ns;
    t->by_ns[KR_MODELLED] += ns;
}

/* Of an expert-parallel exchange, the part between accelerators of one node goes over its own fabric, at
 * the same time as the rest goes over the network. A rank's own experts cost as much as its neighbours'. */
static double exchange_s(const kr_pricer *p, double bytes)
{
    const kr_device_model *c = p->hardware->compute;
    const uint32_t ep = p->program->parallel.ep, node = p->hardware->ranks_per_node;
    const double inside = c->peer_bytes_per_s <= 0.0 || node < 2 ? 0.0 : node < ep ? (double)node / ep : 1.0;
    const double within = inside > 0.0 ? bytes * inside / c->peer_bytes_per_s : 0.0;
    const double between = bytes * (1.0 - inside) / c->link_bytes_per_s;

    return (between > within ? between : within) + 2 * c->link_latency_s;
}

/* How many times the mean the most loaded rank of an exchange receives, and sends back. */
static double imbalance(const kr_pricer *p, const kr_price *price)
{
    double share = 0.0;

    for (uint32_t i = 0; price->slowest != NULL && i < p->slowest_experts; i++)
        share += price->slowest[i];
    share *= p->program->parallel.ep;
    return share > 1.0 ? share : 1.0;
}

/* An all-to-all among the ranks of a group, and how much of it keeps their compute units busy. */
static kr_device_time all_to_all(const kr_pricer *p, const kr_price *price, uint64_t rank_rows, double *share)
{
    const kr_device_model *compute = p->hardware->compute;
    const kr_op_kind kind = (kr_op_kind)price->op.kind;
    const kr_load load = {.rows = rank_rows};
    kr_device_job job = job_of(p, price, &load);
    kr_device_time t = {0};
    double seconds;

    *share = 0.0;
    job.ranks = kind == KR_OP_REDUCE ? p->program->parallel.tp : p->program->parallel.ep;
    if (rank_rows == 0)
        return t;
    if (!p->hardware->all_to_all_by_bytes && kr_device_measured(compute, &job)) {
        job.rows = (uint64_t)((double)rank_rows * imbalance(p, price) + 0.5);
        *share = kr_device_compute_share(compute, &job);
        return kr_device_op_time(compute, &job);
    }
    seconds = exchange_s(p, (double)job.work.move_bytes);
    if (kind == KR_OP_REDUCE && compute->peer_bytes_per_s > 0.0)
        seconds = (double)job.work.move_bytes / compute->peer_bytes_per_s + 2 * compute->peer_latency_s;
    add_modelled(&t, seconds_to_ns(seconds));
    return t;
}

/* The part of an all-to-all in which a rank sends or receives with its compute units, or the rest. */
static kr_device_time part_of(kr_device_time t, double share)
{
    kr_device_time part = {0};

    for (int i = 0; i < KR_PROVENANCE_COUNT; i++) {
        part.by_ns[i] = (uint64_t)((double)t.by_ns[i] * share + 0.5);
        part.ns += part.by_ns[i];
    }
    return part;
}

static kr_device_time on_rank(const kr_pricer *p, const kr_price *price, kr_load load,
                              const batch_rows *batch)
{
    kr_device_job job;
    kr_device_time t = {0};

    if (price->op.kind == KR_OP_EXPERTS)
        kr_pricer_experts(p, price->slowest, batch->rows_of_all, &load);
    /* A rank without rows still runs the experts that others send it tokens for. */
    if (load.rows == 0 && load.expert_rows == 0)
        return t;
    job = job_of(p, price, &load);
    t = kr_device_op_time(p->hardware->compute, &job);
    if (p->hardware->host_bytes > 0.0 && price->op.kind == KR_OP_ATTEND)
        add_modelled(&t, seconds_to_ns((double)job.work.read_bytes * p->hardware->host_miss_share /
                                       p->hardware->host_bytes_per_s));
    if (price->op.kind == KR_OP_EXPERTS)
        for (uint32_t k = 0; k < p->prices; k++)
            if (is_expert_message(&p->price[k]) && p->price[k].slowest == price->slowest) {
                double share;
                const kr_device_time whole = all_to_all(p, &p->price[k], batch->rows_largest, &share);
                const kr_device_time busy = part_of(whole, share);

                t.ns += busy.ns;
                for (int i = 0; i < KR_PROVENANCE_COUNT; i++)
                    t.by_ns[i] += busy.by_ns[i];
            }
    return t;
}

/* What of a scan lies in the device's fast memory, which the layers with an index share equally. */
static uint64_t fast_bytes(const kr_pricer *p, const kr_device_job *job)
{
    const kr_device_model *memory = p->hardware->memory;
    uint32_t layers = 0;
    uint64_t share;

    if (job->op != KR_OP_SCORE || memory->fast_bytes <= 0.0)
        return 0;
    for (uint32_t l = 0; l < p->program->model->layers; l++)
        layers += !p->program->plan[l].dense && p->program->plan[l].owns_index;
    share = (uint64_t)(memory->fast_bytes / (p->hardware->fast_unshared || layers == 0 ? 1 : layers));
    return share < job->work.read_bytes ? share : job->work.read_bytes;
}

/* An op that the device cannot run goes to the compute rank: what it reads crosses the link. */
static kr_device_time on_device(const kr_pricer *p, const kr_price *price, const kr_load *load)
{
    const kr_device_model *memory = p->hardware->memory;
    kr_device_job job = job_of(p, price, load);
    kr_device_time t = {0};

    if (load->rows == 0)
        return t;
    KR_CHECK(memory != NULL);
    job.fast_read_bytes = fast_bytes(p, &job);
    if (memory->can[price->op.kind])
        return kr_device_op_time(memory, &job);
    job.fast_read_bytes = 0;
    t = kr_device_op_time(p->hardware->compute, &job);
    add_modelled(&t, seconds_to_ns((double)job.work.read_bytes / memory->link_bytes_per_s +
                                   2 * memory->link_latency_s));
    return t;
}

/* Either end of a link may be the narrow one: the device's own, or the rank's, which carries the
 * messages of all its rows. */
static uint64_t on_link(const kr_pricer *p, const kr_price *price, const kr_load *load, uint64_t rank_rows)
{
    const kr_device_model *memory = p->hardware->memory, *compute = p->hardware->compute;
    KR_CHECK(memory != NULL);
    const uint64_t unshared = p->hardware->link_unshared && rank_rows != 0;
    const kr_load own = {.rows = unshared ? 1 : load->rows}, of_rank = {.rows = unshared ? 1 : rank_rows};
    const double bytes = (double)kr_op_work(p->program, &price->op, &own).move_bytes;
    const double rank_bytes = (double)kr_op_work(p->program, &price->op, &of_rank).move_bytes;
    const double device_s = bytes / memory->link_bytes_per_s;
    const double of_link = p->hardware->rank_link > 0.0 ? p->hardware->rank_link : 1.0;
    const double rank_s = rank_bytes / (compute->link_bytes_per_s * of_link * p->program->parallel.tp);

    return load->rows == 0 ? 0 : seconds_to_ns(device_s > rank_s ? device_s : rank_s);
}

/* What the network is taken for: without the part that the ranks are busy with themselves. */
static kr_device_time on_network(const kr_pricer *p, const kr_price *price, uint64_t rank_rows)
{
    double share;
    const kr_device_time whole = all_to_all(p, price, rank_rows, &share);

    return share > 0.0 ? part_of(whole, 1.0 - share) : whole;
}

/* Nowhere more than in b. */
static bool is_within(const kr_load *a, const kr_load *b)
{
    return a->rows <= b->rows && a->context_tokens <= b->context_tokens && a->units <= b->units &&
           a->attended_tokens <= b->attended_tokens;
}

/* Fills one price on all ranks or devices and returns the slowest. */
static kr_device_time fill_places(const kr_pricer *p, uint32_t k, const kr_place_load *place,
                                  const batch_rows *batch, bool expanded, kr_step_times *times)
{
    const kr_price *price = &p->price[k];
    const uint32_t batches = p->program->parallel.micro_batches, micro_batch = batch->micro_batch;
    const kr_resource on = (kr_resource)price->op.resource;
    const uint32_t places = on == KR_ON_COMPUTE ? p->ranks : p->devices;
    uint64_t *table = on == KR_ON_COMPUTE ? times->compute : on == KR_ON_DEVICE ? times->device : times->link;
    kr_device_time slowest = {0};
    const uint32_t largest = on == KR_ON_COMPUTE ? batch->largest_rank : batch->largest_device;
    const bool one = !expanded && price->by_rows, skip = !expanded && price->monotone;
    const kr_load *longest = NULL;

    for (uint32_t i = one ? largest : 0; i < (one ? largest + 1 : places); i++) {
        const kr_load *load = &place[(size_t)i * batches + micro_batch].load[price->load_class];
        kr_device_time t = {0};

        if (skip && longest != NULL && is_within(load, longest))
            continue;
        if (on == KR_ON_COMPUTE)
            t = on_rank(p, price, *load, batch);
        else if (on == KR_ON_DEVICE)
            t = on_device(p, price, load);
        else
            add_modelled(&t, on_link(p, price, load, batch->rows_largest));
        if (t.ns > slowest.ns) {
            slowest = t;
            longest = load;
        }
        if (expanded)
            table[((size_t)micro_batch * p->prices + k) * places + i] = t.ns;
    }
    if (!expanded)
        table[(size_t)micro_batch * p->prices + k] = slowest.ns;
    return slowest;
}

/* The place with most rows of the micro-batch, the first of equals; *rows are its rows. */
static uint32_t largest_place(const kr_place_load *place, uint32_t places, uint32_t batches,
                              uint32_t micro_batch, uint64_t *rows, uint64_t *sum)
{
    uint32_t best = 0;

    *rows = *sum = 0;
    for (uint32_t i = 0; i < places; i++) {
        const uint64_t here = place[(size_t)i * batches + micro_batch].load[0].rows;

        *sum += here;
        if (here > *rows) {
            *rows = here;
            best = i;
        }
    }
    return best;
}

static batch_rows sum_rows(const kr_pricer *p, const kr_place_load *rank, const kr_place_load *device,
                           uint32_t micro_batch)
{
    const uint32_t batches = p->program->parallel.micro_batches;
    batch_rows b = {.micro_batch = micro_batch};
    uint64_t rows, sum;

    b.largest_rank = largest_place(rank, p->ranks, batches, micro_batch, &b.rows_largest, &b.rows_of_all);
    b.largest_device = largest_place(device, p->devices, batches, micro_batch, &rows, &sum);
    return b;
}

void kr_pricer_fill(const kr_pricer *p, const kr_place_load *rank, const kr_place_load *device, bool expanded,
                    kr_step_times *times, uint64_t provenance_ns[KR_PROVENANCE_COUNT])
{
    times->price = p->price_of;
    times->prices = p->prices;
    times->link_latency_ns = p->hardware->memory != NULL ? seconds_to_ns(p->hardware->memory->link_latency_s)
                                                         : 0;
    for (uint32_t m = 0; m < p->program->parallel.micro_batches; m++) {
        const batch_rows batch = sum_rows(p, rank, device, m);

        for (uint32_t k = 0; k < p->prices; k++) {
            const uint8_t on = p->price[k].op.resource;
            kr_device_time t;

            if (on == KR_ON_A2A) {
                t = on_network(p, &p->price[k], batch.rows_largest);
                times->all_to_all[(size_t)m * p->prices + k] = t.ns;
            } else {
                t = fill_places(p, k, on == KR_ON_COMPUTE ? rank : device, &batch, expanded, times);
            }
            for (int i = 0; i < KR_PROVENANCE_COUNT; i++)
                provenance_ns[i] += t.by_ns[i] * p->price[k].uses;
        }
    }
}
