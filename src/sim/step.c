/* The event loop of one decode step. Nothing is allocated after creation. */
#include "sim/step.h"

#include <string.h>

#include "base/check.h"

enum { MESSAGES_AT_ONCE = 4 };

/* One compute rank or memory device. Within a micro-batch it runs its ops in program order, so a
 * cursor per micro-batch says which have started; position walks the static order past those. */
typedef struct {
    uint32_t cell;
    uint8_t resource; /* KR_ON_COMPUTE or KR_ON_DEVICE */
    bool busy, dirty;
    uint8_t stalled_on; /* kr_resource, while idle */
    uint32_t position;
    uint32_t cursor[KR_MICRO_BATCHES_MAX];
    uint64_t idle_since;
} worker;

/* Progress of one op in one cell. */
typedef struct {
    uint16_t waiting; /* deps of other classes not done; see is_local */
    uint16_t running; /* tasks not done; meaningful once all have been given out */
    bool done;
} progress;

/* An op of the static order: its number among those of its class and micro-batch. */
typedef struct {
    uint32_t rank, micro_batch;
} ordered;

struct kr_step {
    const kr_program *program;
    kr_step_shape shape;
    kr_port port;
    uint32_t workers_per_cell, workers;
    worker *worker;  /* [workers]: per cell its ranks, then its devices */
    uint32_t *dirty; /* [workers] to be asked at this instant */
    uint64_t *ready; /* [ready_max] op << 32 | cell: messages to be started now */
    uint32_t dirty_count, ready_count, ready_max;
    progress *state;           /* [ops][cells]: cells work on the same ops at about the same time */
    progress *initial;         /* [ops] */
    uint32_t *cells_ready;     /* [ops]: all-to-alls: cells whose deps are done */
    uint32_t *successor;       /* ops that depend on op: successor[first_successor[op] ..] */
    uint32_t *first_successor; /* [ops + 1] */
    uint32_t *rank_in_batch;   /* [ops]: number of the op among those of its class and micro-batch */
    uint32_t *batch_op[2][KR_MICRO_BATCHES_MAX]; /* compute, device: that number -> op */
    uint32_t batch_ops[2][KR_MICRO_BATCHES_MAX];
    ordered *order[2];      /* compute, device: program->order */
    uint64_t *link_free;    /* [cells * devices][2]: to the device, from it */
    uint32_t *cell_of_link; /* [cells * devices] */
    uint64_t network_free;
    kr_heap heap;
    kr_heap_item *items;
    uint64_t now;
    uint32_t cell_asked; /* of the worker that the policy is being asked for */
    /* ---- of the running step ---- */
    const kr_step_times *times;
    const kr_sim_watch *watch;
    kr_step_sums *sums;
    uint32_t number, ops_done;
};

/* ---- the port ---- */

static const kr_step *world(const kr_port *port) { return port->context; }

static progress *progress_of(const kr_step *s, uint32_t cell, uint32_t op)
{
    return &s->state[(size_t)op * s->shape.cells + cell];
}

static uint32_t queue_head(const kr_port *port, uint32_t number, uint32_t micro_batch)
{
    const kr_step *s = world(port);
    const worker *w = &s->worker[number];

    if (w->cursor[micro_batch] == s->batch_ops[w->resource][micro_batch])
        return KR_NO_OP;
    return s->batch_op[w->resource][micro_batch][w->cursor[micro_batch]];
}

static uint32_t static_next(const kr_port *port, uint32_t number)
{
    const kr_step *s = world(port);
    const worker *w = &s->worker[number];

    if (w->position == s->program->order_count[w->resource])
        return KR_NO_OP;
    return s->program->order[w->resource][w->position];
}

/* Policies ask only about ops at a worker's queue heads, which have not started there. */
static kr_op_state op_state(const kr_port *port, uint32_t op)
{
    const kr_step *s = world(port);
    const progress *p = progress_of(s, s->cell_asked, op);

    return p->done ? KR_OP_DONE : p->waiting == 0 ? KR_OP_READY : KR_OP_WAITING;
}

static kr_op_kind op_kind(const kr_port *port, uint32_t op)
{
    return (kr_op_kind)world(port)->program->ops[op].kind;
}

static uint32_t op_layer(const kr_port *port, uint32_t op) { return world(port)->program->ops[op].layer; }

static uint32_t op_micro_batch(const kr_port *port, uint32_t op)
{
    return world(port)->program->ops[op].micro_batch;
}

static bool idle(const kr_port *port, uint32_t number) { return !world(port)->worker[number].busy; }

/* A worker runs a micro-batch's ops of its class in order, so a dep of the same class is met when
 * the op is at the worker's queue head and the worker is idle. */
static bool is_local(const kr_program *p, uint32_t op, uint32_t dep)
{
    return p->ops[op].resource == p->ops[dep].resource && p->ops[op].resource <= KR_ON_DEVICE;
}

/* The last dep that is not done, as in the engine. */
static uint32_t blocking_dep(const kr_step *s, uint32_t cell, uint32_t op)
{
    const kr_op *it = &s->program->ops[op];

    for (uint32_t d = it->dep_count; d > 0; d--)
        if (!is_local(s->program, op, it->dep[d - 1]) && !progress_of(s, cell, it->dep[d - 1])->done)
            return it->dep[d - 1];
    return KR_NO_OP;
}

static kr_op_kind waits_for(const kr_port *port, uint32_t op)
{
    const kr_step *s = world(port);
    const uint32_t dep = blocking_dep(s, s->cell_asked, op);

    return op_kind(port, dep == KR_NO_OP ? op : dep);
}

static uint32_t micro_batches(const kr_port *port) { return world(port)->program->parallel.micro_batches; }

/* ---- creation ---- */

static void *take(size_t count, size_t size, bool *failed)
{
    void *p = kr_alloc(count * size + 1); /* a zero count is legal */

    *failed |= p == NULL;
    return p;
}

static void count_successors(kr_step *s)
{
    const kr_program *p = s->program;

    for (uint32_t i = 0; i < p->count; i++)
        for (uint32_t d = 0; d < p->ops[i].dep_count; d++)
            s->first_successor[p->ops[i].dep[d] + 1] += !is_local(p, i, p->ops[i].dep[d]);
    for (uint32_t i = 0; i < p->count; i++)
        s->first_successor[i + 1] += s->first_successor[i];
}

static void list_successors(kr_step *s, uint32_t *fill)
{
    const kr_program *p = s->program;

    for (uint32_t i = 0; i < p->count; i++)
        for (uint32_t d = 0; d < p->ops[i].dep_count; d++) {
            const uint32_t dep = p->ops[i].dep[d];

            if (is_local(p, i, dep))
                continue;
            s->successor[s->first_successor[dep] + fill[dep]++] = i;
            s->initial[i].waiting++;
        }
}

/* Tasks of an op in one cell. */
static uint32_t tasks_of(const kr_step *s, const kr_op *op)
{
    switch ((kr_resource)op->resource) {
    case KR_ON_COMPUTE:
        return s->shape.ranks;
    case KR_ON_DEVICE:
    case KR_ON_LINK:
        return s->shape.devices;
    case KR_ON_A2A:
        return 1;
    }
    return 1;
}

static void number_ops(kr_step *s)
{
    const kr_program *p = s->program;

    for (uint32_t i = 0; i < p->count; i++) {
        const kr_op *op = &p->ops[i];

        s->initial[i].running = (uint16_t)tasks_of(s, op);
        if (op->resource > KR_ON_DEVICE)
            continue;
        s->rank_in_batch[i] = s->batch_ops[op->resource][op->micro_batch];
        s->batch_op[op->resource][op->micro_batch][s->batch_ops[op->resource][op->micro_batch]++] = i;
    }
}

static void list_order(kr_step *s)
{
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < s->program->order_count[r]; i++) {
            const uint32_t op = s->program->order[r][i];

            s->order[r][i] = (ordered){s->rank_in_batch[op], s->program->ops[op].micro_batch};
        }
}

static bool allocate(kr_step *s)
{
    const uint32_t ops = s->program->count, m = s->program->parallel.micro_batches;
    bool failed = false;
    size_t live;
    uint32_t deps = 0;

    for (uint32_t i = 0; i < ops; i++)
        deps += s->program->ops[i].dep_count;
    /* A micro-batch's chain of ops branches into few messages at once. */
    s->ready_max = s->shape.cells * m * MESSAGES_AT_ONCE;
    s->ready = take(s->ready_max, sizeof *s->ready, &failed);
    s->worker = take(s->workers, sizeof *s->worker, &failed);
    s->dirty = take(s->workers, sizeof *s->dirty, &failed);
    s->state = take((size_t)s->shape.cells * ops, sizeof *s->state, &failed);
    s->initial = take(ops, sizeof *s->initial, &failed);
    s->cells_ready = take(ops, sizeof *s->cells_ready, &failed);
    s->successor = take(deps, sizeof *s->successor, &failed);
    s->first_successor = take(ops + 1, sizeof *s->first_successor, &failed);
    s->rank_in_batch = take(ops, sizeof *s->rank_in_batch, &failed);
    s->link_free = take((size_t)s->shape.cells * s->shape.devices * 2, sizeof *s->link_free, &failed);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t b = 0; b < m; b++)
            s->batch_op[r][b] = take(ops, sizeof **s->batch_op[r], &failed);
    /* A worker has one task running, a link and the network the messages of each micro-batch. */
    s->cell_of_link = take((size_t)s->shape.cells * s->shape.devices, sizeof *s->cell_of_link, &failed);
    for (uint32_t r = 0; r < 2; r++)
        s->order[r] = take(s->program->order_count[r], sizeof **s->order, &failed);
    live = s->workers + ((size_t)s->shape.cells * s->shape.devices + 1) * m * MESSAGES_AT_ONCE;
    s->items = take(live, sizeof *s->items, &failed);
    if (!failed)
        kr_heap_init(&s->heap, s->items, (uint32_t)live);
    return !failed;
}

static kr_status check_shape(const kr_program *p, const kr_step_shape *shape, kr_err *err)
{
    const bool remote = p->parallel.placement != KR_PLACE_ALL_ON_COMPUTE;

    if (shape->cells == 0 || shape->ranks == 0 || shape->ranks > UINT16_MAX || shape->devices > UINT16_MAX ||
        (remote && shape->devices == 0))
        return kr_fail(err, KR_E_ARG, "sim: %u cells of %u ranks and %u devices", shape->cells, shape->ranks,
                       shape->devices);
    return KR_OK;
}

kr_status kr_step_create(kr_step **step, const kr_program *program, const kr_step_shape *shape, kr_err *err)
{
    kr_step *s;
    uint32_t *fill;
    bool failed = false;

    if (check_shape(program, shape, err) != KR_OK)
        return KR_E_ARG;
    s = kr_alloc(sizeof *s);
    fill = take(program->count, sizeof *fill, &failed);
    if (s == NULL || failed) {
        kr_free(s);
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for a step of %u ops", program->count);
    }
    s->program = program;
    s->shape = *shape;
    s->workers_per_cell = shape->ranks + shape->devices;
    s->workers = shape->cells * s->workers_per_cell;
    s->port = (kr_port){.context = s,
                        .queue_head = queue_head,
                        .op_state = op_state,
                        .op_kind = op_kind,
                        .op_layer = op_layer,
                        .op_micro_batch = op_micro_batch,
                        .static_next = static_next,
                        .idle = idle,
                        .waits_for = waits_for,
                        .micro_batches = micro_batches};
    if (!allocate(s)) {
        kr_free(fill);
        kr_step_destroy(s);
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for %u workers and %u cells of %u ops", s->workers,
                       shape->cells, program->count);
    }
    count_successors(s);
    list_successors(s, fill);
    number_ops(s);
    list_order(s);
    for (uint32_t i = 0; i < shape->cells * shape->devices; i++)
        s->cell_of_link[i] = i / shape->devices;
    kr_free(fill);
    *step = s;
    return KR_OK;
}

void kr_step_destroy(kr_step *s)
{
    if (s == NULL)
        return;
    kr_free(s->worker);
    kr_free(s->dirty);
    kr_free(s->ready);
    kr_free(s->state);
    kr_free(s->initial);
    kr_free(s->cells_ready);
    kr_free(s->successor);
    kr_free(s->first_successor);
    kr_free(s->rank_in_batch);
    kr_free(s->link_free);
    kr_free(s->cell_of_link);
    kr_free(s->items);
    kr_free(s->order[KR_ON_COMPUTE]);
    kr_free(s->order[KR_ON_DEVICE]);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t b = 0; b < KR_MICRO_BATCHES_MAX; b++)
            kr_free(s->batch_op[r][b]);
    kr_free(s);
}

/* ---- running ---- */

/* Payload of an event: op in the low half, task (worker, link number, or network) in the high. */
static uint64_t payload(uint32_t op, uint32_t task) { return (uint64_t)task << 32 | op; }

static void tell(const kr_step *s, uint64_t time, uint32_t op, uint32_t task, kr_run_what what)
{
    const kr_run_event event = {
        .time_ns = time, .step = s->number, .op = op, .worker = (uint16_t)task, .what = (uint16_t)what};

    if (s->watch != NULL && s->watch->event != NULL)
        s->watch->event(s->watch->context, &event);
}

static void push(kr_step *s, uint64_t end, uint32_t op, uint32_t task)
{
    KR_CHECK(kr_heap_push(&s->heap, end, payload(op, task)) == KR_OK);
    s->sums->events++;
    if (s->heap.count > s->sums->live_max)
        s->sums->live_max = s->heap.count;
}

/* Place of an op's duration in a table of times, for one of so many instances. */
static size_t slot(const kr_step *s, size_t instance, size_t instances, uint32_t op)
{
    const size_t m = s->program->ops[op].micro_batch;

    return (m * s->times->prices + s->times->price[op]) * instances + instance;
}

static void mark_dirty(kr_step *s, uint32_t number)
{
    if (s->worker[number].dirty)
        return;
    s->worker[number].dirty = true;
    s->dirty[s->dirty_count++] = number;
}

static bool is_return(kr_op_kind kind) { return kind == KR_OP_RETURN_OUT || kind == KR_OP_RETURN_INDICES; }

/* Starts a message on every link of the cell. */
static void start_links(kr_step *s, uint32_t cell, uint32_t op)
{
    const bool back = is_return((kr_op_kind)s->program->ops[op].kind);

    for (uint32_t d = 0; d < s->shape.devices; d++) {
        const uint32_t link = cell * s->shape.devices + d;
        uint64_t *free_at = &s->link_free[2 * (size_t)link + back];
        const uint64_t begin = *free_at > s->now ? *free_at : s->now;
        const uint64_t taken = s->times->link[slot(s, link, (size_t)s->shape.cells * s->shape.devices, op)];

        *free_at = begin + taken;
        s->sums->busy_ns[KR_ON_LINK] += taken;
        tell(s, begin, op, s->workers + link, KR_RUN_STARTED);
        push(s, begin + taken + (taken != 0 ? s->times->link_latency_ns : 0), op, s->workers + link);
    }
}

static void start_network(kr_step *s, uint32_t op)
{
    const uint64_t begin = s->network_free > s->now ? s->network_free : s->now;
    const uint64_t taken = s->times->all_to_all[slot(s, 0, 1, op)];
    const uint32_t network = s->workers + s->shape.cells * s->shape.devices;

    s->network_free = begin + taken;
    s->sums->busy_ns[KR_ON_A2A] += taken;
    tell(s, begin, op, network, KR_RUN_STARTED);
    push(s, begin + taken, op, network);
}

static void mark_ready(kr_step *s, uint32_t cell, uint32_t op)
{
    KR_CHECK(s->ready_count < s->ready_max);
    s->ready[s->ready_count++] = (uint64_t)op << 32 | cell;
}

/* One dep of the op more is done in the cell. Workers are asked even when others remain, since a
 * policy may look at what an op waits for. The last cell that is ready starts an all-to-all. */
static void dep_done(kr_step *s, uint32_t cell, uint32_t op)
{
    const uint32_t first = cell * s->workers_per_cell;
    const bool ready = --progress_of(s, cell, op)->waiting == 0;

    switch ((kr_resource)s->program->ops[op].resource) {
    case KR_ON_COMPUTE:
        for (uint32_t r = 0; r < s->shape.ranks; r++)
            mark_dirty(s, first + r);
        break;
    case KR_ON_DEVICE:
        for (uint32_t d = 0; d < s->shape.devices; d++)
            mark_dirty(s, first + s->shape.ranks + d);
        break;
    case KR_ON_LINK:
        if (ready)
            mark_ready(s, cell, op);
        break;
    case KR_ON_A2A:
        if (ready && ++s->cells_ready[op] == s->shape.cells)
            mark_ready(s, 0, op);
        break;
    }
}

static void finish_op(kr_step *s, uint32_t cell, uint32_t op)
{
    progress_of(s, cell, op)->done = true;
    s->ops_done++;
    for (uint32_t i = s->first_successor[op]; i < s->first_successor[op + 1]; i++)
        dep_done(s, cell, s->successor[i]);
}

static void finish_task(kr_step *s, uint32_t op, uint32_t task)
{
    const uint32_t links = s->shape.cells * s->shape.devices;
    uint32_t cell;

    tell(s, s->now, op, task, task < s->workers ? KR_RUN_DONE : KR_RUN_ARRIVED);
    if (task == s->workers + links) {
        for (cell = 0; cell < s->shape.cells; cell++)
            finish_op(s, cell, op);
        return;
    }
    if (task < s->workers) {
        s->worker[task].busy = false;
        s->worker[task].idle_since = s->now;
        mark_dirty(s, task);
        cell = s->worker[task].cell;
    } else {
        cell = s->cell_of_link[task - s->workers];
    }
    if (--progress_of(s, cell, op)->running == 0)
        finish_op(s, cell, op);
}

/* Charges a rank's time since the last look to what it waited for then, and looks again. */
static void account_stall(kr_step *s, worker *w, uint32_t next)
{
    const uint32_t dep = next == KR_NO_OP ? KR_NO_OP : blocking_dep(s, w->cell, next);

    s->sums->stall_ns[w->stalled_on] += s->now - w->idle_since;
    w->idle_since = s->now;
    if (dep == KR_NO_OP)
        return;
    w->stalled_on = s->program->ops[dep].resource;
    /* A message that has not been sent yet is the device's delay, not the link's. */
    if (w->stalled_on == KR_ON_LINK && progress_of(s, w->cell, dep)->waiting != 0)
        w->stalled_on = KR_ON_DEVICE;
}

static void start_task(kr_step *s, uint32_t number, uint32_t op)
{
    worker *w = &s->worker[number];
    const kr_op *it = &s->program->ops[op];
    const uint32_t in_cell = number - w->cell * s->workers_per_cell;
    const bool compute = w->resource == KR_ON_COMPUTE;
    const size_t in_class = compute ? s->shape.ranks : s->shape.devices;
    const size_t instance = w->cell * in_class + in_cell - (compute ? 0 : s->shape.ranks);
    const uint64_t taken = (compute ? s->times->compute
                                    : s->times->device)[slot(s, instance, s->shape.cells * in_class, op)];
    const ordered *order = s->order[w->resource];

    KR_CHECK(s->rank_in_batch[op] == w->cursor[it->micro_batch] && !w->busy);
    if (compute)
        account_stall(s, w, KR_NO_OP);
    w->cursor[it->micro_batch]++;
    while (w->position < s->program->order_count[w->resource] &&
           order[w->position].rank < w->cursor[order[w->position].micro_batch])
        w->position++;
    w->busy = true;
    s->sums->busy_ns[w->resource] += taken;
    tell(s, s->now, op, number, KR_RUN_STARTED);
    push(s, s->now + taken, op, number);
}

/* Starts the messages that became ready at this instant, in ascending op and cell. */
static void start_messages(kr_step *s)
{
    for (uint32_t i = 1; i < s->ready_count; i++) {
        const uint64_t message = s->ready[i];
        uint32_t j = i;

        for (; j > 0 && s->ready[j - 1] > message; j--)
            s->ready[j] = s->ready[j - 1];
        s->ready[j] = message;
    }
    for (uint32_t i = 0; i < s->ready_count; i++) {
        const uint32_t op = (uint32_t)(s->ready[i] >> 32);

        if (s->program->ops[op].resource == KR_ON_LINK)
            start_links(s, (uint32_t)s->ready[i], op);
        else
            start_network(s, op);
    }
    s->ready_count = 0;
}

/* Asks every worker to which something happened, in ascending id. */
static void ask_workers(kr_step *s, kr_step_policy policy)
{
    /* Few are marked at once unless the cluster is expanded; insertion keeps ids ascending. */
    for (uint32_t i = 1; i < s->dirty_count; i++) {
        const uint32_t id = s->dirty[i];
        uint32_t j = i;

        for (; j > 0 && s->dirty[j - 1] > id; j--)
            s->dirty[j] = s->dirty[j - 1];
        s->dirty[j] = id;
    }
    for (uint32_t i = 0; i < s->dirty_count; i++) {
        const uint32_t number = s->dirty[i];
        worker *w = &s->worker[number];
        uint32_t op;

        w->dirty = false;
        if (w->busy)
            continue;
        s->cell_asked = w->cell;
        op = kr_sched_next(&s->port, policy, number);
        if (op != KR_NO_OP)
            start_task(s, number, op);
        else if (w->resource == KR_ON_COMPUTE)
            account_stall(s, w, static_next(&s->port, number));
    }
    s->dirty_count = 0;
}

static void reset(kr_step *s)
{
    for (uint32_t op = 0; op < s->program->count; op++)
        for (uint32_t c = 0; c < s->shape.cells; c++)
            *progress_of(s, c, op) = s->initial[op];
    memset(s->cells_ready, 0, s->program->count * sizeof *s->cells_ready);
    for (uint32_t i = 0; i < s->workers; i++)
        s->worker[i] = (worker){
            .cell = i / s->workers_per_cell,
            .resource = i % s->workers_per_cell < s->shape.ranks ? KR_ON_COMPUTE : KR_ON_DEVICE,
            .idle_since = s->now,
        };
    for (size_t i = 0; i < 2 * (size_t)s->shape.cells * s->shape.devices; i++)
        s->link_free[i] = s->now;
    s->network_free = s->now;
    s->ops_done = 0;
    s->dirty_count = s->ready_count = 0;
    for (uint32_t i = 0; i < s->workers; i++)
        mark_dirty(s, i);
}

static bool more_now(const kr_step *s) { return s->heap.count != 0 && s->heap.items[0].time == s->now; }

uint64_t kr_step_run(kr_step *s, const kr_step_times *times, kr_step_policy policy, uint64_t begin_ns,
                     uint32_t number, const kr_sim_watch *watch, kr_step_sums *sums)
{
    kr_heap_item item;

    s->times = times;
    s->watch = watch;
    s->sums = sums;
    s->number = number;
    s->now = begin_ns;
    reset(s);
    ask_workers(s, policy);
    while (kr_heap_pop(&s->heap, &item)) {
        s->now = item.time;
        finish_task(s, (uint32_t)item.payload, (uint32_t)(item.payload >> 32));
        if (more_now(s))
            continue;
        start_messages(s);
        if (more_now(s))
            continue;
        ask_workers(s, policy);
    }
    /* Every op of every cell ran: a policy that leaves ready work undone is a bug. */
    KR_CHECK(s->ops_done == s->program->count * s->shape.cells);
    return s->now;
}
