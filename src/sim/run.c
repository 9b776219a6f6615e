/* kr_sim_run: steps of the closed loop until a bound, and the sums over its measured part. */
#include "sim/sim.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"
#include "sim/energy.h"
#include "sim/loop.h"
#include "sim/steady.h"

/* What is kept of each step; busy and stall are per instance. */
typedef struct {
    uint64_t begin_ns, end_ns, context_tokens;
    uint32_t rows;
    uint64_t busy_ns[KR_RESOURCE_COUNT], stall_ns[KR_RESOURCE_COUNT], provenance_ns[KR_PROVENANCE_COUNT];
    double joules[KR_POWER_PARTS]; /* above idle */
} step_record;

typedef struct {
    kr_loop loop;
    kr_pricer pricer;
    kr_step *step;
    kr_step_shape shape;
    kr_step_times times;
    kr_place_load *rank, *device; /* [ranks or devices][micro_batches] */
    step_record *record;
    uint64_t records, capacity;
} run;

static kr_status check(const kr_program *program, const kr_sim_hardware *h, const kr_sim_workload *w,
                       const kr_sim_options *o, kr_err *err)
{
    const bool remote = program->parallel.placement != KR_PLACE_ALL_ON_COMPUTE;

    if (remote != (h->memory != NULL))
        return kr_fail(err, KR_E_ARG, "sim: placement %s %s memory devices",
                       kr_placement_name(program->parallel.placement), remote ? "needs" : "takes no");
    if (remote && (h->devices == 0 || h->devices_per_node == 0 || h->memory->link_bytes_per_s <= 0.0))
        return kr_fail(err, KR_E_ARG, "sim: memory devices, devices a node and their link must be above 0");
    if (h->compute->link_bytes_per_s <= 0.0)
        return kr_fail(err, KR_E_ARG, "sim: %s has no link", h->compute->name);
    if (h->host_bytes > 0.0 &&
        (remote || !(h->host_bytes_per_s > 0.0) || !(h->host_miss_share >= 0.0 && h->host_miss_share <= 1.0)))
        return kr_fail(err, KR_E_ARG,
                       "sim: a host tier needs placement all-on-compute, bytes per second above 0 and a "
                       "miss share of 0 to 1");
    if (!(h->reserved_share >= 0.0 && h->reserved_share <= 0.9))
        return kr_fail(err, KR_E_ARG, "sim: reserved share %g, must be 0 to 0.9", h->reserved_share);
    if (o->sessions == 0 || o->sessions > 1u << 22)
        return kr_fail(err, KR_E_ARG, "sim: %u sessions, must be 1 to %u", o->sessions, 1u << 22);
    if (o->tokens_max == 0 && o->time_max_ns == 0 && o->steps_max == 0)
        return kr_fail(err, KR_E_ARG, "sim: one of tokens, time and steps must bound the run");
    if (o->warmup_percent > 90)
        return kr_fail(err, KR_E_ARG, "sim: warm-up of %u %%, must be 0 to 90", o->warmup_percent);
    if (w->sessions == 0)
        return kr_fail(err, KR_E_ARG, "sim: the workload has no session");
    return KR_OK;
}

/* Numbers from a trace: bounded so that sums of them fit, and no turn without a token. */
static kr_status check_workload(const kr_sim_workload *w, kr_err *err)
{
    for (uint32_t s = 0; s < w->sessions; s++) {
        const kr_sim_session *session = &w->session[s];

        if (session->turns == 0)
            return kr_fail(err, KR_E_ARG, "sim: session %llu has no turn", (unsigned long long)session->id);
        for (uint32_t t = 0; t < session->turns; t++) {
            const kr_sim_turn *turn = &session->turn[t];

            if (turn->output_tokens == 0 || turn->output_tokens > KR_CONTEXT_MAX ||
                turn->context_tokens > KR_CONTEXT_MAX || turn->new_tokens > turn->context_tokens ||
                turn->think_ns > UINT64_MAX / 1000000)
                return kr_fail(err, KR_E_ARG,
                               "sim: session %llu turn %u: output must be 1 to %d, context at most that, "
                               "new tokens at most the context, thinking under 5 hours",
                               (unsigned long long)session->id, t, KR_CONTEXT_MAX);
        }
    }
    return KR_OK;
}

static uint64_t *table(size_t instances, const run *r)
{
    const size_t batches = r->loop.program->parallel.micro_batches;

    return kr_alloc((instances + 1) * batches * r->pricer.prices * sizeof(uint64_t));
}

static kr_status allocate(run *r, kr_err *err)
{
    const uint32_t batches = r->loop.program->parallel.micro_batches;
    const size_t ranks = (size_t)r->shape.cells * r->shape.ranks;
    const size_t devices = (size_t)r->shape.cells * r->shape.devices;

    r->rank = kr_alloc((size_t)r->loop.ranks * batches * sizeof *r->rank);
    r->device = kr_alloc((size_t)r->loop.devices * batches * sizeof *r->device);
    r->times.compute = table(ranks, r);
    r->times.device = table(devices, r);
    r->times.link = table(devices, r);
    r->times.all_to_all = table(1, r);
    if (r->rank == NULL || r->device == NULL || r->times.compute == NULL || r->times.device == NULL ||
        r->times.link == NULL || r->times.all_to_all == NULL)
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for the times of %zu ranks and %zu devices", ranks,
                       devices);
    return KR_OK;
}

static void release(run *r)
{
    kr_loop_free(&r->loop);
    kr_pricer_free(&r->pricer);
    kr_step_destroy(r->step);
    kr_free(r->rank);
    kr_free(r->device);
    kr_free(r->times.compute);
    kr_free(r->times.device);
    kr_free(r->times.link);
    kr_free(r->times.all_to_all);
    kr_free(r->record);
}

static kr_status prepare(run *r, const kr_program *program, const kr_sim_hardware *hardware,
                         const kr_sim_workload *workload, const kr_sim_options *options,
                         kr_sim_result *result, kr_err *err)
{
    const uint32_t ranks = program->parallel.dp;
    const bool remote = hardware->memory != NULL;
    const uint32_t devices = remote ? hardware->devices : ranks;
    kr_status status = kr_loop_init(&r->loop, program, hardware, workload, options, ranks, devices, result,
                                    err);

    if (status != KR_OK)
        return status;
    r->shape = (kr_step_shape){.cells = 1, .ranks = 1, .devices = remote};
    if (options->expanded)
        r->shape = (kr_step_shape){.cells = r->loop.cells,
                                   .ranks = ranks / r->loop.cells,
                                   .devices = remote ? devices / r->loop.cells : 0};
    status = kr_pricer_init(&r->pricer, program, hardware, options, ranks, devices, err);
    if (status == KR_OK)
        status = kr_step_create(&r->step, program, &r->shape, err);
    return status == KR_OK ? allocate(r, err) : status;
}

/* Loads of all places from the decoding requests; the token being made counts as context. */
static uint64_t load_places(run *r)
{
    const kr_loop *loop = &r->loop;
    const size_t batches = loop->program->parallel.micro_batches;
    uint64_t context = 0;

    for (size_t i = 0; i < loop->ranks * batches; i++)
        r->rank[i] = (kr_place_load){0};
    for (size_t i = 0; i < loop->devices * batches; i++)
        r->device[i] = (kr_place_load){0};
    for (uint32_t i = 0; i < loop->decoding_count; i++) {
        const kr_request *q = &loop->request[loop->decoding[i]];

        kr_pricer_add(&r->pricer, &r->rank[q->rank * batches + q->micro_batch], q->context_tokens + 1);
        kr_pricer_add(&r->pricer, &r->device[q->device * batches + q->micro_batch], q->context_tokens + 1);
        context += q->context_tokens + 1;
    }
    return context;
}

static kr_status keep(run *r, const step_record *record, kr_err *err)
{
    if (r->records == r->capacity) {
        const uint64_t capacity = r->capacity == 0 ? 256 : 2 * r->capacity;
        step_record *grown = kr_realloc(r->record, capacity * sizeof *grown);

        if (grown == NULL)
            return kr_fail(err, KR_E_MEMORY, "sim: no memory for %llu steps", (unsigned long long)capacity);
        r->record = grown;
        r->capacity = capacity;
    }
    r->record[r->records++] = *record;
    return KR_OK;
}

static kr_status one_step(run *r, uint64_t *now_ns, const kr_sim_watch *watch, kr_err *err)
{
    kr_sim_result *result = r->loop.result;
    kr_step_sums sums = {0};
    step_record record = {.begin_ns = *now_ns, .rows = r->loop.decoding_count};
    kr_status status;

    record.context_tokens = load_places(r);
    kr_pricer_fill(&r->pricer, r->rank, r->device, r->loop.options->expanded, &r->times,
                   record.provenance_ns);
    kr_energy_add(&r->pricer, r->rank, r->device, record.joules);
    record.end_ns = kr_step_run(r->step, &r->times, r->loop.options->policy, *now_ns, (uint32_t)result->steps,
                                watch, &sums);
    const uint32_t ranks = r->shape.cells * r->shape.ranks;
    KR_CHECK(ranks > 0);
    for (uint32_t i = 0; i < KR_RESOURCE_COUNT; i++) {
        const uint32_t of_class[] = {r->shape.ranks, r->shape.devices, 2 * r->shape.devices, 1};
        const uint32_t instances = i == KR_ON_A2A ? 1 : r->shape.cells * of_class[i];

        record.busy_ns[i] = instances != 0 ? sums.busy_ns[i] / instances : 0;
        record.stall_ns[i] = sums.stall_ns[i] / ranks;
    }
    r->loop.digest = kr_digest_add(kr_digest_add(r->loop.digest, record.end_ns), record.context_tokens);
    status = keep(r, &record, err);
    if (status != KR_OK)
        return status;
    if (watch != NULL && watch->step != NULL) {
        const kr_sim_step_view view = {record.begin_ns, record.end_ns,         (uint32_t)result->steps,
                                       record.rows,     record.context_tokens, r->loop.digest};

        watch->step(watch->context, &view);
    }
    result->steps++;
    result->tokens += record.rows;
    result->events += sums.events;
    if (sums.live_max > result->events_live_max)
        result->events_live_max = sums.live_max;
    *now_ns = record.end_ns;
    return KR_OK;
}

static int by_length(const void *a, const void *b)
{
    const step_record *x = a, *y = b;
    const uint64_t p = x->end_ns - x->begin_ns, q = y->end_ns - y->begin_ns;

    return (p > q) - (p < q);
}

/* Smallest length that at least percent of the tokens do not exceed; records sorted by length. */
static uint64_t percentile(const step_record *record, uint64_t records, uint64_t tokens, uint32_t percent)
{
    const uint64_t target = kr_ceil_div(tokens * percent, 100);
    uint64_t seen = 0;

    for (uint64_t i = 0; i < records; i++) {
        seen += record[i].rows;
        if (seen >= target)
            return record[i].end_ns - record[i].begin_ns;
    }
    return 0;
}

static double total_tdp(const kr_loop *loop)
{
    const kr_sim_hardware *h = loop->hardware;
    const double compute = h->compute->tdp_w * loop->ranks * loop->program->parallel.tp;

    return compute + (h->memory != NULL ? h->memory->tdp_w * loop->devices : 0.0);
}

static void summarise_shares(kr_sim_result *result, const step_record *record, uint64_t records)
{
    double provenance = 0.0;

    for (uint64_t i = 0; i < records; i++) {
        for (uint32_t k = 0; k < KR_RESOURCE_COUNT; k++) {
            result->busy[k] += (double)record[i].busy_ns[k];
            result->stall[k] += (double)record[i].stall_ns[k];
        }
        for (uint32_t k = 0; k < KR_PROVENANCE_COUNT; k++) {
            result->provenance[k] += (double)record[i].provenance_ns[k];
            provenance += (double)record[i].provenance_ns[k];
        }
    }
    for (uint32_t k = 0; k < KR_RESOURCE_COUNT && result->measured_ns != 0; k++) {
        result->busy[k] /= (double)result->measured_ns;
        result->stall[k] /= (double)result->measured_ns;
    }
    for (uint32_t k = 0; k < KR_PROVENANCE_COUNT && provenance > 0.0; k++)
        result->provenance[k] /= provenance;
}

static void summarise_energy(const run *r, kr_sim_result *result, const step_record *record, uint64_t records)
{
    double sum = 0.0;

    if (!kr_energy_known(r->loop.hardware) || result->measured_ns == 0)
        return;
    for (uint64_t i = 0; i < records; i++)
        for (uint32_t k = 0; k < KR_POWER_PARTS; k++)
            result->watts[k] += record[i].joules[k];
    for (uint32_t k = 0; k < KR_POWER_PARTS; k++)
        result->watts[k] /= (double)result->measured_ns * 1e-9;
    kr_energy_idle(&r->pricer, result->watts);
    for (uint32_t k = 0; k < KR_POWER_PARTS; k++)
        sum += result->watts[k];
    result->joules_per_token = sum / result->tokens_per_s;
}

/* First step after the warm-up share of the tokens. */
static uint64_t first_by_share(const run *r)
{
    const uint64_t skipped = r->loop.result->tokens / 100 * r->loop.options->warmup_percent;
    uint64_t first = 0, tokens = 0;

    while (first + 1 < r->records && tokens + r->record[first].rows <= skipped)
        tokens += r->record[first++].rows;
    return first;
}

/* Sets the first measured step, and what is known about the throughput from there on. */
static kr_status find_measured(run *r, uint64_t *first, kr_err *err)
{
    kr_sim_result *result = r->loop.result;
    uint64_t *end_ns = kr_alloc(r->records * sizeof *end_ns);
    uint32_t *rows = kr_alloc(r->records * sizeof *rows);

    if (end_ns == NULL || rows == NULL) {
        kr_free(end_ns);
        kr_free(rows);
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for %llu steps", (unsigned long long)r->records);
    }
    for (uint64_t i = 0; i < r->records; i++) {
        end_ns[i] = r->record[i].end_ns;
        rows[i] = r->record[i].rows;
    }
    *first = r->loop.options->warmup_by_test ? kr_steady_cut(end_ns, rows, r->records, r->record[0].begin_ns)
                                             : first_by_share(r);
    const kr_steady s = kr_steady_mean(end_ns, rows, r->records, r->record[0].begin_ns, *first);

    result->tokens_per_s_half_width = s.half_width;
    result->stationary = s.stationary;
    kr_free(end_ns);
    kr_free(rows);
    return KR_OK;
}

static kr_status summarise(run *r, kr_err *err)
{
    kr_sim_result *result = r->loop.result;
    uint64_t first = 0, context = 0;
    step_record *record;

    if (find_measured(r, &first, err) != KR_OK)
        return KR_E_MEMORY;
    record = r->record + first;
    result->measured_steps = r->records - first;
    result->measured_ns = result->elapsed_ns - record[0].begin_ns;
    for (uint64_t i = 0; i < result->measured_steps; i++) {
        result->measured_tokens += record[i].rows;
        context += record[i].context_tokens;
    }
    summarise_shares(result, record, result->measured_steps);
    result->rows_mean = (double)result->measured_tokens / (double)result->measured_steps;
    result->context_mean = (double)context / (double)result->measured_tokens;
    if (result->measured_ns != 0)
        result->tokens_per_s = (double)result->measured_tokens / ((double)result->measured_ns * 1e-9);
    result->tdp_w = total_tdp(&r->loop);
    result->tokens_per_s_per_w = result->tokens_per_s / result->tdp_w;
    summarise_energy(r, result, record, result->measured_steps);
    qsort(record, result->measured_steps, sizeof *record, by_length);
    result->tbt_p50_ns = percentile(record, result->measured_steps, result->measured_tokens, 50);
    result->tbt_p90_ns = percentile(record, result->measured_steps, result->measured_tokens, 90);
    result->tbt_p99_ns = percentile(record, result->measured_steps, result->measured_tokens, 99);
    result->tbt_max_ns = percentile(record, result->measured_steps, result->measured_tokens, 100);
    return KR_OK;
}

static bool is_over(const kr_sim_options *o, const kr_sim_result *result, uint64_t now_ns)
{
    return (o->steps_max != 0 && result->steps >= o->steps_max) ||
           (o->tokens_max != 0 && result->tokens >= o->tokens_max) ||
           (o->time_max_ns != 0 && now_ns >= o->time_max_ns && result->steps != 0);
}

kr_status kr_sim_run(const kr_program *program, const kr_sim_hardware *hardware,
                     const kr_sim_workload *workload, const kr_sim_options *options,
                     const kr_sim_watch *watch, kr_sim_result *result, kr_err *err)
{
    kr_sim_result sums = {0};
    uint64_t now_ns = 0;
    run r = {0};
    kr_status status = check(program, hardware, workload, options, err);

    if (status == KR_OK)
        status = check_workload(workload, err);
    if (status != KR_OK)
        return status;
    status = prepare(&r, program, hardware, workload, options, &sums, err);
    while (status == KR_OK && !is_over(options, &sums, now_ns)) {
        status = kr_loop_prepare(&r.loop, &now_ns, err);
        if (status == KR_OK)
            status = one_step(&r, &now_ns, watch, err);
        if (status == KR_OK)
            kr_loop_advance(&r.loop, now_ns);
    }
    if (status == KR_OK) {
        sums.elapsed_ns = now_ns;
        sums.in_flight = options->sessions;
        sums.digest = r.loop.digest;
        status = summarise(&r, err);
    }
    if (status == KR_OK)
        *result = sums;
    release(&r);
    return status;
}
