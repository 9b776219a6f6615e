/* Runs the step program once over a batch of rows.
 *
 * The compute rank asks the policy for its next op whenever it is free; sends leave as soon as the
 * ops before them are done; device ops are done when their replies have arrived. When the policy
 * says wait, the engine waits for the next reply due to the micro-batch whose turn it is.
 *
 * Per micro-batch an op is waiting (something it depends on is not done), ready, or done; a device op
 * that is ready is done once no reply is due to its micro-batch. A step ends when all compute ops
 * are done (the last samples), or with the first error. */
#include <string.h>

#include "base/check.h"
#include "engine/inside.h"

/* ---- assembling ---- */

static kr_status check_item(const kr_engine *engine, const kr_step_item *item, kr_err *err)
{
    const kr_session *session = item->session;
    KR_CHECK(session != NULL && session->engine == engine && session->open);
    KR_CHECK(item->tokens >= 1 && item->micro_batch < engine->config.micro_batches);
    KR_CHECK((item->logits != NULL) == (item->want >= KR_WANT_LAST_LOGITS));
    if (session->failed.status != KR_OK) {
        if (err != NULL)
            *err = session->failed;
        return session->failed.status;
    }
    const uint64_t end = session->kv_tokens + session->in_step + item->tokens;
    KR_CHECK(end <= session->tokens);
    if (item->want == KR_WANT_TOKEN && end >= session->limit)
        return kr_fail(err, KR_E_LIMIT, "session %u is full: %llu tokens of %llu", session->number,
                       (unsigned long long)end, (unsigned long long)session->limit);
    return KR_OK;
}

static bool sorts_after(const kr_session *a, const kr_session *b)
{
    return a->peer > b->peer || (a->peer == b->peer && a->device > b->device);
}

static kr_status insert_item(const kr_engine *engine, kr_micro_batch *batch, kr_step_item *item, kr_err *err)
{
    if (batch->rows.rows + item->tokens > engine->config.rows_max)
        return kr_fail(err, KR_E_LIMIT, "micro-batch %u would have %u rows; the engine was made for %u",
                       item->micro_batch, batch->rows.rows + item->tokens, engine->config.rows_max);
    if (engine->gather != NULL && batch->items != 0 && batch->prefill != item->prefill)
        return kr_fail(err, KR_E_ARG,
                       "micro-batch %u mixes prefill and decode, which indices-only placement cannot",
                       item->micro_batch);
    batch->prefill = item->prefill;
    batch->rows.rows += item->tokens;
    uint32_t at = batch->items++;
    for (; at > 0 && sorts_after(batch->item[at - 1]->session, item->session); at--)
        batch->item[at] = batch->item[at - 1];
    batch->item[at] = item;
    return KR_OK;
}

static void fill_rows(kr_micro_batch *batch)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < batch->items; i++) {
        const kr_step_item *item = batch->item[i];
        kr_session *session = item->session;
        const uint64_t position = session->kv_tokens + session->in_step;
        batch->row[i] = (kr_msg_row){.session = session->handle,
                                     .position = position,
                                     .tokens = item->tokens,
                                     .is_prefill = item->prefill};
        batch->gather_row[i] = batch->row[i];
        batch->first_row[i] = row;
        batch->gather_row[i].session = session->gather_handle;
        kr_group *group = batch->groups == 0 ? NULL : &batch->group[batch->groups - 1];
        if (group == NULL || group->peer != session->peer || group->device != session->device) {
            group = &batch->group[batch->groups++];
            *group = (kr_group){
                .peer = session->peer, .device = session->device, .item_first = i, .row_first = row};
        }
        group->items++;
        group->rows += item->tokens;
        for (uint32_t t = 0; t < item->tokens; t++, row++) {
            batch->token[row] = session->token[position + t];
            batch->position[row] = position + t;
        }
        session->in_step += item->tokens;
    }
}

/* Micro-batches in order, so that chunks of one session follow each other. */
static kr_status assemble(kr_engine *engine, kr_step_item *items, uint32_t count, kr_err *err)
{
    for (uint32_t mb = 0; mb < engine->config.micro_batches; mb++) {
        kr_micro_batch *batch = &engine->batch[mb];
        batch->head = batch->away = engine->program.first_of_micro_batch[mb];
        batch->items = batch->groups = batch->rows.rows = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (items[i].micro_batch != mb)
                continue;
            kr_status status = check_item(engine, &items[i], err);
            if (status == KR_OK)
                status = insert_item(engine, batch, &items[i], err);
            if (status != KR_OK)
                return status;
        }
        fill_rows(batch);
    }
    engine->order_position = 0;
    return KR_OK;
}

/* ---- compute ops ---- */

static void run_head(kr_engine *engine, kr_micro_batch *batch)
{
    uint32_t row = 0, wanted = 0;
    for (uint32_t i = 0; i < batch->items; i++) {
        const kr_step_item *item = batch->item[i];
        if (item->want == KR_WANT_ALL_LOGITS) {
            for (uint32_t t = 0; t < item->tokens; t++)
                batch->head_row[t] = row + t;
            kr_forward_head(engine->forward, &batch->rows, batch->head_row, item->tokens, item->logits);
        }
        row += item->tokens;
    }
    row = 0;
    for (uint32_t i = 0; i < batch->items; i++) {
        row += batch->item[i]->tokens;
        if (batch->item[i]->want == KR_WANT_TOKEN || batch->item[i]->want == KR_WANT_LAST_LOGITS)
            batch->head_row[wanted++] = row - 1;
    }
    KR_CHECK(wanted <= engine->head_max);
    if (wanted != 0)
        kr_forward_head(engine->forward, &batch->rows, batch->head_row, wanted, batch->logits);
}

static kr_status run_sample(kr_engine *engine, kr_micro_batch *batch, kr_err *err)
{
    const uint32_t vocab = engine->model.vocab;
    const float *logits = batch->logits;
    for (uint32_t i = 0; i < batch->items; i++) {
        kr_step_item *item = batch->item[i];
        const uint64_t next = batch->row[i].position + item->tokens;
        kr_status status = KR_OK;
        if (item->want == KR_WANT_TOKEN)
            status = kr_sample(&item->session->sampling, logits, vocab, next, engine->candidate, &item->token,
                               err);
        else if (item->want == KR_WANT_LAST_LOGITS)
            memcpy(item->logits, logits, vocab * sizeof *logits);
        else
            continue;
        if (status != KR_OK)
            return status;
        logits += vocab;
    }
    return KR_OK;
}

/* Ops that take the rows and a layer, and nothing else. */
static void (*const layer_op[KR_OP_KINDS])(kr_forward *forward, const kr_rows *rows, uint32_t layer) = {
    [KR_OP_QKV] = kr_forward_qkv,         [KR_OP_Q_UP] = kr_forward_q_up,
    [KR_OP_ABSORB] = kr_forward_absorb,   [KR_OP_V_UP] = kr_forward_v_up,
    [KR_OP_O_PROJ] = kr_forward_o_proj,   [KR_OP_ROUTER] = kr_forward_router,
    [KR_OP_EXPERTS] = kr_forward_experts, [KR_OP_SHARED_EXPERT] = kr_forward_shared_expert,
    [KR_OP_FFN] = kr_forward_ffn,
};

static kr_status run_compute(kr_engine *engine, const kr_op *op, kr_err *err)
{
    kr_micro_batch *batch = &engine->batch[op->micro_batch];
    if (batch->items == 0)
        return KR_OK;
    switch ((kr_op_kind)op->kind) {
    case KR_OP_EMBED:
        kr_forward_embed(engine->forward, &batch->rows);
        return KR_OK;
    case KR_OP_INDEX_PROJECT:
        if (engine->program.method[op->layer]->project != NULL)
            kr_project_run(engine, batch, op->layer);
        else
            kr_forward_index(engine->forward, &batch->rows, op->layer);
        return KR_OK;
    case KR_OP_APPEND:
    case KR_OP_GATHER:
        return KR_OK; /* ATTEND's message does all three */
    case KR_OP_ATTEND:
        return kr_exchange_gather(engine, batch, op->micro_batch, op->layer, err);
    case KR_OP_HEAD:
        run_head(engine, batch);
        return KR_OK;
    case KR_OP_SAMPLE:
        return run_sample(engine, batch, err);
    default:
        KR_CHECK(layer_op[op->kind] != NULL); /* op kinds are checked when the engine is made */
        layer_op[op->kind](engine->forward, &batch->rows, op->layer);
        return KR_OK;
    }
}

/* ---- the step ---- */

static void add_event(kr_engine *engine, kr_run_what what, uint32_t op, uint64_t now)
{
    if (engine->events == engine->config.events_max)
        return;
    if (engine->events == 0)
        engine->first_event_ns = now;
    engine->event[engine->events++] = (kr_run_event){.time_ns = now - engine->first_event_ns,
                                                     .step = (uint32_t)engine->stats.steps,
                                                     .op = op,
                                                     .worker = 0,
                                                     .what = (uint16_t)what};
}

static void account(kr_engine *engine, uint32_t number, uint64_t begin)
{
    const kr_op *op = &engine->program.ops[number];
    const uint64_t end = kr_engine_now(engine);
    engine->stats.op_ns[op->kind] += end - begin;
    const kr_span span = {.begin_ns = begin,
                          .end_ns = end,
                          .op = number,
                          .kind = op->kind,
                          .layer = op->layer,
                          .micro_batch = op->micro_batch,
                          .track = op->resource == KR_ON_COMPUTE ? KR_TRACK_COMPUTE : KR_TRACK_SENDS,
                          .step = (uint32_t)engine->stats.steps};
    kr_span_add(&engine->spans[span.track], span);
}

/* Starts sends that are ready and passes over device ops whose replies have come. */
static kr_status advance(kr_engine *engine, uint32_t mb, kr_err *err)
{
    kr_micro_batch *batch = &engine->batch[mb];
    const uint32_t end = engine->program.first_of_micro_batch[mb + 1];
    for (; batch->away < end; batch->away++) {
        const kr_op *op = &engine->program.ops[batch->away];
        if (op->resource == KR_ON_COMPUTE)
            continue;
        if (!kr_step_ready(engine, batch->away))
            return KR_OK;
        if (op->kind == KR_OP_SEND_QKV || op->kind == KR_OP_SEND_INDEX) {
            const bool index = op->kind == KR_OP_SEND_INDEX &&
                               engine->program.plan[op->layer].separate_index_query;
            const uint64_t begin = kr_engine_now(engine);
            kr_status status = (index ? kr_exchange_send_index : kr_exchange_send)(engine, batch, mb,
                                                                                   op->layer, err);
            if (status != KR_OK)
                return status;
            account(engine, batch->away, begin);
        } else if (batch->due != 0) {
            return KR_OK;
        } else if (op->kind == KR_OP_RETURN_OUT || op->kind == KR_OP_RETURN_INDICES) {
            add_event(engine, KR_RUN_ARRIVED, batch->away, kr_engine_now(engine));
        }
    }
    return KR_OK;
}

static void skip_done(kr_engine *engine)
{
    const uint32_t *order = engine->program.order[KR_ON_COMPUTE];
    const uint32_t count = engine->program.order_count[KR_ON_COMPUTE];
    uint32_t at = engine->order_position;
    while (at < count && order[at] < engine->batch[engine->program.ops[order[at]].micro_batch].head)
        at++;
    engine->order_position = at;
}

static kr_status start(kr_engine *engine, uint32_t number, kr_err *err)
{
    const kr_op *op = &engine->program.ops[number];
    kr_micro_batch *batch = &engine->batch[op->micro_batch];
    const uint64_t begin = kr_engine_now(engine);
    KR_CHECK(op->resource == KR_ON_COMPUTE && kr_step_ready(engine, number));
    add_event(engine, KR_RUN_STARTED, number, begin);
    kr_status status = run_compute(engine, op, err);
    if (status != KR_OK)
        return status;
    account(engine, number, begin);
    add_event(engine, KR_RUN_DONE, number, kr_engine_now(engine));
    batch->head = number + 1;
    skip_done(engine);
    return advance(engine, op->micro_batch, err);
}

/* For the micro-batch whose op comes next in the static order: it has replies due, since that op was
 * not ready. */
static kr_status wait(kr_engine *engine, const kr_port *port, kr_err *err)
{
    const uint32_t op = port->static_next(port, 0);
    KR_CHECK(op != KR_NO_OP);
    const uint64_t begin = kr_engine_now(engine);
    kr_status status = kr_exchange_wait(engine, &engine->batch[engine->program.ops[op].micro_batch], err);
    engine->stats.wait_ns += kr_engine_now(engine) - begin;
    return status;
}

static kr_status run_program(kr_engine *engine, kr_err *err)
{
    const kr_port port = kr_step_port(engine);
    kr_status status = KR_OK;
    while (status == KR_OK && port.static_next(&port, 0) != KR_NO_OP) {
        status = kr_exchange_poll(engine, err);
        for (uint32_t mb = 0; mb < engine->config.micro_batches && status == KR_OK; mb++)
            status = advance(engine, mb, err);
        if (status != KR_OK)
            break;
        const uint32_t op = kr_sched_next(&port, engine->config.policy, 0);
        status = op != KR_NO_OP ? start(engine, op, err) : wait(engine, &port, err);
    }
    return status;
}

static void finish(kr_step_item *items, uint32_t count, const kr_err *failure)
{
    for (uint32_t i = 0; i < count; i++) {
        kr_session *session = items[i].session;
        session->in_step = 0;
        if (failure->status != KR_OK) {
            if (session->failed.status == KR_OK)
                session->failed = *failure;
            continue;
        }
        session->kv_tokens += items[i].tokens;
        if (items[i].want == KR_WANT_TOKEN)
            session->token[session->tokens++] = items[i].token;
    }
}

kr_status kr_engine_step(kr_engine *engine, kr_step_item *items, uint32_t count, kr_err *err)
{
    kr_err cause = {0};
    const uint64_t begin = kr_engine_now(engine);
    kr_status status = assemble(engine, items, count, &cause);
    if (status != KR_OK) { /* nothing was sent: the sessions are as they were */
        for (uint32_t i = 0; i < count; i++)
            items[i].session->in_step = 0;
        if (err != NULL)
            *err = cause;
        return status;
    }
    status = run_program(engine, &cause);
    if (status != KR_OK && err != NULL)
        *err = cause;
    for (uint32_t mb = 0; mb < engine->config.micro_batches; mb++) {
        engine->stats.rows += engine->batch[mb].rows.rows;
        kr_exchange_drop(engine, &engine->batch[mb]);
    }
    finish(items, count, &cause);
    engine->stats.steps++;
    engine->stats.step_ns += kr_engine_now(engine) - begin;
    return status;
}
