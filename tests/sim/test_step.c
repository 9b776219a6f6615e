/* kr_step against an independent slow reference on random small systems: the same events at the
 * same times; and against closed forms of deterministic pipelines.
 *
 * The reference knows no heap, port, cursor or table of successors: at each instant it scans every
 * task of every op. It decides by the text of sched/step.c, written out again here. */
#include "sim/step.h"
#include "tiny.h"

enum { EVENTS_MAX = 1 << 16, PLACES = 4 };

typedef struct {
    kr_run_event event[EVENTS_MAX];
    uint32_t count;
} trace;

static void record(void *context, const kr_run_event *event)
{
    trace *t = context;

    assert_true(t->count < EVENTS_MAX);
    t->event[t->count++] = *event;
}

static int by_time_op_worker(const void *a, const void *b)
{
    const kr_run_event *x = a, *y = b;

    if (x->time_ns != y->time_ns)
        return x->time_ns < y->time_ns ? -1 : 1;
    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    if (x->worker != y->worker)
        return x->worker < y->worker ? -1 : 1;
    return (x->what > y->what) - (x->what < y->what);
}

/* ---- the reference ---- */

typedef struct {
    const kr_program *program;
    const kr_step_shape *shape;
    const kr_step_times *times;
    kr_step_policy policy;
    bool *started, *ended; /* [ops][tasks] */
    uint64_t *end;         /* [ops][tasks] */
    uint32_t tasks;        /* largest number of tasks of an op: all places and the network */
    uint64_t now;
    trace *trace;
} reference;

/* Numbers of the tasks that an op has in one cell: [first, first + count). */
static void tasks_in(const reference *r, uint32_t op, uint32_t cell, uint32_t *first, uint32_t *count)
{
    const kr_step_shape *s = r->shape;
    const uint32_t per_cell = s->ranks + s->devices, workers = s->cells * per_cell;

    *count = s->devices;
    switch (r->program->ops[op].resource) {
    case KR_ON_COMPUTE:
        *first = cell * per_cell, *count = s->ranks;
        break;
    case KR_ON_DEVICE:
        *first = cell * per_cell + s->ranks;
        break;
    case KR_ON_LINK:
        *first = workers + cell * s->devices;
        break;
    default:
        *first = workers + s->cells * s->devices, *count = 1;
        break;
    }
}

static bool op_done(const reference *r, uint32_t op, uint32_t cell)
{
    uint32_t first, count;

    tasks_in(r, op, cell, &first, &count);
    for (uint32_t t = first; t < first + count; t++)
        if (!r->ended[(size_t)op * r->tasks + t])
            return false;
    return true;
}

/* The last dep of op that is not met for task: done in the cell, or by the same worker. */
static uint32_t unmet(const reference *r, uint32_t op, uint32_t cell, uint32_t task)
{
    for (uint32_t d = r->program->ops[op].dep_count; d-- > 0;) {
        const uint32_t dep = r->program->ops[op].dep[d];
        const bool own = r->program->ops[dep].resource == r->program->ops[op].resource;

        if (own ? !r->ended[(size_t)dep * r->tasks + task] : !op_done(r, dep, cell))
            return dep;
    }
    return UINT32_MAX;
}

static uint64_t duration(const reference *r, const uint64_t *table, uint32_t instance, uint32_t op)
{
    const kr_op *it = &r->program->ops[op];
    const uint32_t per_cell = it->resource == KR_ON_COMPUTE ? r->shape->ranks : r->shape->devices;
    const size_t instances = it->resource == KR_ON_A2A ? 1 : (size_t)r->shape->cells * per_cell;

    return table[(it->micro_batch * (size_t)r->times->prices + r->times->price[op]) * instances + instance];
}

static void begin(reference *r, uint32_t op, uint32_t task, uint64_t from, uint64_t until)
{
    const size_t i = (size_t)op * r->tasks + task;
    const kr_run_event e = {.time_ns = from, .op = op, .worker = (uint16_t)task, .what = KR_RUN_STARTED};

    assert_false(r->started[i]);
    r->started[i] = true;
    r->end[i] = until;
    record(r->trace, &e);
}

static bool finish_all(reference *r)
{
    const uint32_t workers = r->shape->cells * (r->shape->ranks + r->shape->devices);
    bool any = false;

    for (uint32_t op = 0; op < r->program->count; op++)
        for (uint32_t t = 0; t < r->tasks; t++) {
            const size_t i = (size_t)op * r->tasks + t;

            if (r->started[i] && !r->ended[i] && r->end[i] <= r->now) {
                const kr_run_event e = {.time_ns = r->now,
                                        .op = op,
                                        .worker = (uint16_t)t,
                                        .what = t < workers ? KR_RUN_DONE : KR_RUN_ARRIVED};

                r->ended[i] = true;
                any = true;
                record(r->trace, &e);
            }
        }
    return any;
}

/* When a link direction or the network is free again: the end of use of its latest message. */
static uint64_t free_from(const reference *r, uint32_t task, bool back, bool network)
{
    const uint32_t workers = r->shape->cells * (r->shape->ranks + r->shape->devices);
    uint64_t at = r->now;

    for (uint32_t op = 0; op < r->program->count; op++) {
        const size_t i = (size_t)op * r->tasks + task;
        const kr_op_kind kind = (kr_op_kind)r->program->ops[op].kind;
        const bool is_back = kind == KR_OP_RETURN_OUT || kind == KR_OP_RETURN_INDICES;
        uint64_t used_until;

        if (!r->started[i] || (!network && is_back != back))
            continue;
        used_until = r->end[i];
        if (!network && duration(r, r->times->link, task - workers, op) != 0)
            used_until -= r->times->link_latency_ns;
        at = used_until > at ? used_until : at;
    }
    return at;
}

static void start_messages(reference *r)
{
    const uint32_t workers = r->shape->cells * (r->shape->ranks + r->shape->devices);

    for (uint32_t op = 0; op < r->program->count; op++) {
        const uint8_t on = r->program->ops[op].resource;
        const kr_op_kind kind = (kr_op_kind)r->program->ops[op].kind;
        const bool back = kind == KR_OP_RETURN_OUT || kind == KR_OP_RETURN_INDICES;
        bool all = true;

        for (uint32_t c = 0; c < r->shape->cells; c++)
            all &= unmet(r, op, c, 0) == UINT32_MAX;
        for (uint32_t c = 0; c < r->shape->cells && on == KR_ON_LINK; c++) {
            uint32_t first, count;

            tasks_in(r, op, c, &first, &count);
            if (unmet(r, op, c, 0) != UINT32_MAX || r->started[(size_t)op * r->tasks + first])
                continue;
            for (uint32_t t = first; t < first + count; t++) {
                const uint64_t from = free_from(r, t, back, false);
                const uint64_t d = duration(r, r->times->link, t - workers, op);

                begin(r, op, t, from, from + d + (d != 0 ? r->times->link_latency_ns : 0));
            }
        }
        if (on == KR_ON_A2A && all && !r->started[(size_t)op * r->tasks + r->tasks - 1]) {
            const uint64_t from = free_from(r, r->tasks - 1, false, true);

            begin(r, op, r->tasks - 1, from, from + duration(r, r->times->all_to_all, 0, op));
        }
    }
}

/* First op of the static order, or of one micro-batch of it, that the worker has not started. */
static uint32_t first_open(const reference *r, uint32_t task, uint8_t on, uint32_t micro_batch)
{
    for (uint32_t i = 0; i < r->program->order_count[on]; i++) {
        const uint32_t op = r->program->order[on][i];

        if ((micro_batch == UINT32_MAX || r->program->ops[op].micro_batch == micro_batch) &&
            !r->started[(size_t)op * r->tasks + task])
            return op;
    }
    return UINT32_MAX;
}

static uint32_t choose(const reference *r, uint32_t task, uint8_t on, uint32_t cell)
{
    const uint32_t next = first_open(r, task, on, UINT32_MAX);
    uint32_t blocker;

    if (next == UINT32_MAX || (blocker = unmet(r, next, cell, task)) == UINT32_MAX)
        return next;
    if (r->policy != KR_POLICY_OFMS || r->program->ops[blocker].kind != KR_OP_COMBINE)
        return UINT32_MAX;
    for (uint32_t m = 0; m < r->program->parallel.micro_batches; m++) {
        const uint32_t head = first_open(r, task, on, m);
        const bool other = head != UINT32_MAX && m != r->program->ops[next].micro_batch;

        if (other && unmet(r, head, cell, task) == UINT32_MAX &&
            (r->program->ops[head].kind == KR_OP_V_UP || r->program->ops[head].kind == KR_OP_O_PROJ ||
             r->program->ops[head].kind == KR_OP_ROUTER))
            return head;
    }
    return UINT32_MAX;
}

static bool start_workers(reference *r)
{
    const uint32_t per_cell = r->shape->ranks + r->shape->devices;
    bool any = false;

    for (uint32_t t = 0; t < r->shape->cells * per_cell; t++) {
        const uint32_t cell = t / per_cell, place = t % per_cell;
        const bool compute = place < r->shape->ranks;
        const uint32_t instance = compute ? cell * r->shape->ranks + place
                                          : cell * r->shape->devices + place - r->shape->ranks;
        bool busy = false;
        uint32_t op;

        for (uint32_t i = 0; i < r->program->count; i++)
            busy |= r->started[(size_t)i * r->tasks + t] && !r->ended[(size_t)i * r->tasks + t];
        op = busy ? UINT32_MAX : choose(r, t, compute ? KR_ON_COMPUTE : KR_ON_DEVICE, cell);
        if (op == UINT32_MAX)
            continue;
        begin(r, op, t, r->now,
              r->now + duration(r, compute ? r->times->compute : r->times->device, instance, op));
        any = true;
    }
    return any;
}

static uint64_t reference_run(reference *r)
{
    for (;;) {
        uint64_t next = UINT64_MAX;

        do {
            while (finish_all(r))
                start_messages(r);
        } while (start_workers(r));
        for (size_t i = 0; i < (size_t)r->program->count * r->tasks; i++)
            if (r->started[i] && !r->ended[i] && r->end[i] < next)
                next = r->end[i];
        if (next == UINT64_MAX)
            return r->now;
        r->now = next;
    }
}

/* ---- comparisons ---- */

static uint64_t *random_table(kr_rng *rng, uint32_t instances, const kr_program *p)
{
    const size_t n = (size_t)(instances + 1) * p->parallel.micro_batches * KR_OP_KINDS;
    uint64_t *t = calloc(n, sizeof *t);

    for (size_t i = 0; i < n; i++)
        t[i] = kr_rng_below(rng, 4) == 0 ? 0 : kr_rng_below(rng, 30);
    return t;
}

static void compare(kr_rng *rng, uint32_t round)
{
    static trace got, want;
    const kr_model model = tiny_model(rng);
    const kr_step_shape shape = {.cells = 1 + (uint32_t)kr_rng_below(rng, 3),
                                 .ranks = 1 + (uint32_t)kr_rng_below(rng, PLACES),
                                 .devices = 1 + (uint32_t)kr_rng_below(rng, PLACES)};
    const kr_parallel parallel = tiny_parallel(rng, shape.cells * shape.ranks);
    const kr_step_policy policy = (kr_step_policy)kr_rng_below(rng, 2);
    const kr_sim_watch watch = {.context = &got, .event = record};
    kr_step_sums sums = {0};
    kr_step_times times;
    uint32_t *price;
    kr_step *step;
    uint64_t end;
    kr_err err;
    tiny t;

    tiny_build(&t, &model, &parallel);
    price = calloc(t.program.count, sizeof *price);
    for (uint32_t i = 0; i < t.program.count; i++)
        price[i] = t.program.ops[i].kind;
    times = (kr_step_times){
        .price = price,
        .prices = KR_OP_KINDS,
        .link_latency_ns = kr_rng_below(rng, 3),
        .compute = random_table(rng, shape.cells * shape.ranks, &t.program),
        .device = random_table(rng, shape.cells * shape.devices, &t.program),
        .link = random_table(rng, shape.cells * shape.devices, &t.program),
        .all_to_all = random_table(rng, 1, &t.program),
    };
    assert_int_equal(kr_step_create(&step, &t.program, &shape, &err), KR_OK);
    reference r = {.program = &t.program,
                   .shape = &shape,
                   .times = &times,
                   .policy = policy,
                   .trace = &want,
                   .tasks = shape.cells * (shape.ranks + 2 * shape.devices) + 1,
                   .now = 1000};
    r.started = calloc((size_t)t.program.count * r.tasks, 1);
    r.ended = calloc((size_t)t.program.count * r.tasks, 1);
    r.end = calloc((size_t)t.program.count * r.tasks, sizeof *r.end);
    got.count = want.count = 0;
    end = kr_step_run(step, &times, policy, 1000, 0, &watch, &sums);
    assert_int_equal(reference_run(&r), end);
    assert_int_equal(got.count, want.count);
    assert_int_equal(sums.events * 2, got.count);
    qsort(got.event, got.count, sizeof got.event[0], by_time_op_worker);
    qsort(want.event, want.count, sizeof want.event[0], by_time_op_worker);
    for (uint32_t i = 0; i < got.count; i++)
        if (by_time_op_worker(&got.event[i], &want.event[i]) != 0)
            fail_msg("round %u event %u: op %u of worker %u at %llu, reference: op %u of %u at %llu", round,
                     i, got.event[i].op, got.event[i].worker, (unsigned long long)got.event[i].time_ns,
                     want.event[i].op, want.event[i].worker, (unsigned long long)want.event[i].time_ns);
    /* A second run of the same step object gives the same. */
    got.count = 0;
    assert_int_equal(kr_step_run(step, &times, policy, 1000, 0, &watch, &sums), end);
    assert_int_equal(got.count, want.count);
    kr_step_destroy(step);
    free(r.started), free(r.ended), free(r.end), free(price);
    free(times.compute), free(times.device), free(times.link), free(times.all_to_all);
    tiny_free(&t);
}

static void equals_the_reference(void **state)
{
    const uint64_t seed = 20261130;
    kr_rng rng = kr_rng_make(seed, 4);

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t round = 0; round < 300; round++)
        compare(&rng, round);
}

/* One kind of op takes c on the rank, one takes d on the device, all else nothing. */
static uint64_t pipeline(uint32_t layers, uint32_t micro_batches, uint64_t c, uint64_t d)
{
    const kr_step_shape shape = {.cells = 1, .ranks = 1, .devices = 1};
    kr_parallel parallel = {.tp = 1,
                            .ep = 1,
                            .dp = 1,
                            .micro_batches = micro_batches,
                            .activation = KR_BF16,
                            .dispatch = KR_BF16,
                            .combine = KR_BF16};
    enum { TABLE = KR_MICRO_BATCHES_MAX * KR_OP_KINDS };
    uint64_t zero[TABLE] = {0}, compute[TABLE] = {0}, device[TABLE] = {0}, end;
    uint32_t price[2048];
    kr_rng rng = kr_rng_make(1, 1);
    kr_model model = tiny_model(&rng);
    kr_step_sums sums = {0};
    kr_step *step;
    kr_err err;
    tiny t;

    model.layers = layers;
    for (uint32_t l = 0; l < layers; l++)
        model.layer[l] = (kr_layer){.ffn = KR_FFN_DENSE};
    tiny_build(&t, &model, &parallel);
    for (uint32_t i = 0; i < t.program.count; i++)
        price[i] = t.program.ops[i].kind;
    for (uint32_t m = 0; m < micro_batches; m++) {
        compute[m * KR_OP_KINDS + KR_OP_O_PROJ] = c;
        device[m * KR_OP_KINDS + KR_OP_ATTEND] = d;
    }
    const kr_step_times times = {.price = price,
                                 .prices = KR_OP_KINDS,
                                 .compute = compute,
                                 .device = device,
                                 .link = zero,
                                 .all_to_all = zero};
    assert_int_equal(kr_step_create(&step, &t.program, &shape, &err), KR_OK);
    end = kr_step_run(step, &times, KR_POLICY_SCMS, 0, 0, NULL, &sums);
    assert_int_equal(sums.busy_ns[KR_ON_COMPUTE], layers * micro_batches * c);
    assert_int_equal(sums.busy_ns[KR_ON_DEVICE], layers * micro_batches * d);
    assert_int_equal(sums.stall_ns[KR_ON_DEVICE] + sums.busy_ns[KR_ON_COMPUTE], end);
    kr_step_destroy(step);
    tiny_free(&t);
    return end;
}

/* m jobs that visit device and rank in turn, layers times: alone nothing overlaps; with m the
 * slower side never rests once it has begun. */
static void deterministic_pipelines(void **state)
{
    (void)state;
    for (uint32_t layers = 1; layers <= 9; layers += 4) {
        for (uint64_t c = 1; c <= 7; c += 2) {
            for (uint64_t d = 1; d <= 7; d += 2) {
                assert_int_equal(pipeline(layers, 1, c, d), layers * (c + d));
                for (uint32_t m = 2; m <= 4; m++) {
                    const uint64_t slow = c > d ? c : d, fast = c > d ? d : c;
                    /* The slower side runs m * layers jobs back to back when a job's own round trip
                     * c + d is not longer than m of them; the first waits for the faster side (or
                     * the faster side for the last). */
                    assert_true(c + d <= m * slow);
                    assert_int_equal(pipeline(layers, m, c, d), m * layers * slow + fast);
                }
            }
        }
    }
}

static void shapes_are_checked(void **state)
{
    kr_rng rng = kr_rng_make(1, 2);
    const kr_model model = tiny_model(&rng);
    const kr_parallel parallel = {.tp = 1,
                                  .ep = 1,
                                  .dp = 1,
                                  .micro_batches = 1,
                                  .activation = KR_BF16,
                                  .dispatch = KR_BF16,
                                  .combine = KR_BF16};
    const kr_step_shape bad[] = {{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {1, 1, 70000}};
    kr_step *step = NULL;
    kr_err err;
    tiny t;

    (void)state;
    tiny_build(&t, &model, &parallel);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(kr_step_create(&step, &t.program, &bad[i], &err), KR_E_ARG);
    assert_null(step);
    tiny_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(deterministic_pipelines),
        cmocka_unit_test(shapes_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
