/* From measured points to the curves of a machine.
 *
 * Ops of the compute side depend on rows alone: a table with a line between neighbours. Stages of the
 * device work row by row, so their time is a sum over rows: start + rows + attended + context, with
 * coefficients that are not negative and errors weighed relative to the time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "eval/profile.h"

enum { TERMS = 4, ROWS_TABLE_MAX = 16, VALUES_MAX = 1024, COMPUTE_OPS = 6 };

/* Rows of one micro-batch at a layer of the group. */
static void add_row(kr_profile_layers *group, double (*sum)[2], uint32_t mb, const kr_method_plan *plan,
                    uint64_t tokens)
{
    const kr_load row = kr_row_load(plan, tokens);

    sum[mb][0] += (double)row.context_tokens / group->layers;
    sum[mb][1] += (double)row.attended_tokens / group->layers;
    group->load[mb].context_tokens = (uint64_t)(sum[mb][0] + 0.5);
    group->load[mb].attended_tokens = (uint64_t)(sum[mb][1] + 0.5);
}

kr_profile_sample kr_profile_sample_of(const kr_profile_point *point, const kr_program *program)
{
    const uint32_t layers = program->model->layers;
    kr_profile_sample s = {.times = point->times,
                           .layers = layers,
                           .micro_batches = program->parallel.micro_batches,
                           .method = "dense"};
    double sum[2][KR_MICRO_BATCHES_MAX][2] = {{{0}}};

    for (uint32_t l = 0; l < layers; l++) {
        (program->plan[l].dense ? &s.dense : &s.selecting)->layers++;
        if (!program->plan[l].dense)
            snprintf(s.method, sizeof s.method, "%.15s", program->config[l].name);
    }
    for (uint32_t i = 0; i < point->rows; i++) {
        const uint32_t mb = point->micro_batch[i];
        const uint64_t tokens = point->context[i] + point->warm_up + point->counted / 2 + 1;

        s.rows[mb]++;
        s.dense.load[mb].rows = s.selecting.load[mb].rows = s.rows[mb];
        for (uint32_t l = 0; l < layers; l++) {
            const bool dense = program->plan[l].dense;

            add_row(dense ? &s.dense : &s.selecting, sum[!dense], mb, &program->plan[l], tokens);
        }
    }
    for (uint32_t i = 0; i < program->count; i++)
        s.has_gather |= program->ops[i].kind == KR_OP_GATHER;
    return s;
}

/* ---- least squares ---- */

typedef struct {
    double x[TERMS], y;
} observation;

/* Solves the normal equations of the terms in use; false: singular. */
static bool solve(const observation *o, uint32_t count, const bool use[TERMS], double c[TERMS])
{
    double a[TERMS][TERMS + 1] = {{0}};

    for (uint32_t i = 0; i < count; i++)
        for (int r = 0; r < TERMS; r++) {
            const double weight = 1.0 / (o[i].y * o[i].y);

            for (int k = 0; k < TERMS; k++)
                a[r][k] += use[r] && use[k] ? weight * o[i].x[r] * o[i].x[k] : 0.0;
            a[r][TERMS] += use[r] ? weight * o[i].x[r] * o[i].y : 0.0;
        }
    for (int r = 0; r < TERMS; r++)
        if (!use[r])
            a[r][r] = 1.0;
    for (int p = 0; p < TERMS; p++) {
        int best = p;

        for (int r = p + 1; r < TERMS; r++)
            best = fabs(a[r][p]) > fabs(a[best][p]) ? r : best;
        for (int k = 0; k <= TERMS; k++) {
            const double t = a[p][k];

            a[p][k] = a[best][k];
            a[best][k] = t;
        }
        if (fabs(a[p][p]) < 1e-300)
            return false;
        for (int r = 0; r < TERMS; r++)
            for (int k = TERMS; r != p && k >= p; k--)
                a[r][k] -= a[r][p] / a[p][p] * a[p][k];
    }
    for (int r = 0; r < TERMS; r++)
        c[r] = a[r][TERMS] / a[r][r];
    return true;
}

/* A term varies when it is not the same multiple of the first one everywhere. */
static bool varies(const observation *o, uint32_t count, int term)
{
    for (uint32_t i = 1; i < count; i++)
        if (o[i].x[term] * o[0].x[0] != o[0].x[term] * o[i].x[0])
            return true;
    return false;
}

/* y as a sum of terms with coefficients that are not negative: the most negative one goes, until none
 * is left. Terms that repeat another (attended = context) are the caller's to leave at 0. */
static void fit_terms(const observation *o, uint32_t count, double c[TERMS])
{
    bool use[TERMS];

    for (int k = 0; k < TERMS; k++)
        use[k] = k == 0 || varies(o, count, k);
    for (;;) {
        int worst = -1;

        memset(c, 0, TERMS * sizeof *c);
        if (!solve(o, count, use, c))
            memset(c, 0, TERMS * sizeof *c);
        for (int k = 0; k < TERMS; k++)
            if (use[k] && c[k] < 0.0 && (worst < 0 || c[k] < c[worst]))
                worst = k;
        if (worst < 0)
            return;
        use[worst] = false;
    }
}

/* ---- what a sample says of each op, seconds of one op in one layer ---- */

static double median(double *value, uint32_t count)
{
    KR_CHECK(count != 0);
    kr_sort_reals(value, count);
    return count % 2 != 0 ? value[count / 2] : (value[count / 2 - 1] + value[count / 2]) / 2;
}

static double sum_ops(const kr_profile_sample *s)
{
    double sum = 0.0;

    for (int k = 0; k < KR_OP_KINDS; k++)
        sum += s->times.op[k];
    return sum;
}

static double sending(const kr_profile_sample *s)
{
    return (s->times.op[KR_OP_SEND_QKV] + s->times.op[KR_OP_SEND_INDEX]) / (s->layers * s->micro_batches);
}

/* Receiving, replying, taking the reply; wake-ups where there are any. Of one micro-batch. */
static double messaging(const kr_profile_sample *s)
{
    return fmax(s->times.wait - s->times.busy, 0.0) / s->layers;
}

/* One op of the compute side without its messages, micro-batches being alike; what a step costs besides
 * its ops goes with the first. */
static double compute_op(const kr_profile_sample *s, kr_op_kind kind)
{
    const bool layered = kind == KR_OP_QKV || kind == KR_OP_O_PROJ || kind == KR_OP_FFN;
    const double rest = kind == KR_OP_EMBED ? fmax(s->times.step - s->times.wait - sum_ops(s), 0.0) : 0.0;

    return (s->times.op[kind] / (layered ? s->layers : 1) + rest) / s->micro_batches;
}

/* All layers' time in one stage of the device for one micro-batch, without its messages; what the device
 * does besides its stages is part of append. */
static double device_ops(const kr_profile_sample *s, kr_op_kind kind)
{
    const double *t = s->times.stage;
    const double gather = s->has_gather ? 0.0 : t[KR_STAGE_GATHER];
    double seconds = t[KR_STAGE_ATTEND] + t[KR_STAGE_MERGE] + gather;

    switch (kind) {
    case KR_OP_APPEND:
        seconds = s->times.busy;
        for (int k = 0; k < KR_STAGES; k++)
            seconds -= k == KR_STAGE_APPEND ? 0.0 : t[k];
        break;
    case KR_OP_SCORE:
        seconds = t[KR_STAGE_SCORE];
        break;
    case KR_OP_SELECT:
        seconds = t[KR_STAGE_SELECT];
        break;
    case KR_OP_GATHER:
        seconds = t[KR_STAGE_GATHER] - gather;
        break;
    default:
        break;
    }
    return fmax(seconds, 0.0) / s->micro_batches;
}

/* ---- tables by rows ---- */

/* Medians of a quantity by number of rows, ascending. */
typedef struct {
    double rows[ROWS_TABLE_MAX], value[ROWS_TABLE_MAX];
    uint32_t count;
} table;

typedef double (*quantity)(const kr_profile_sample *sample, kr_op_kind kind);

static kr_status tabulate(const kr_profile_sample *samples, uint32_t count, quantity of, kr_op_kind kind,
                          table *t, kr_err *err)
{
    double value[VALUES_MAX];

    t->count = 0;
    for (uint64_t rows = 1; rows <= KR_PROFILE_ROWS_MAX; rows++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < count && n < VALUES_MAX; i++)
            if (samples[i].rows[0] == rows)
                value[n++] = of(&samples[i], kind);
        if (n == 0)
            continue;
        if (t->count == ROWS_TABLE_MAX)
            return kr_fail(err, KR_E_LIMIT, "profile: more than %d different numbers of rows",
                           ROWS_TABLE_MAX);
        t->rows[t->count] = (double)rows;
        t->value[t->count++] = median(value, n);
    }
    KR_CHECK(t->count != 0);
    return KR_OK;
}

static kr_status add_curve(kr_device_model *side, const kr_machine_mode *mode, kr_device_curve curve,
                           kr_err *err)
{
    if (strlen(mode->model) >= sizeof curve.model)
        return kr_fail(err, KR_E_LIMIT, "profile: the model's name is longer than %zu bytes: %s",
                       sizeof curve.model - 1, mode->model);
    if (side->curves == KR_DEVICE_CURVES_MAX)
        return kr_fail(err, KR_E_LIMIT, "profile: more than %d curves", KR_DEVICE_CURVES_MAX);
    memcpy(curve.model, mode->model, strlen(mode->model) + 1);
    side->curve[side->curves++] = curve;
    return KR_OK;
}

static kr_status add_table(kr_machine_mode *mode, kr_op_kind kind, const table *t, kr_err *err)
{
    kr_status status = KR_OK;

    for (uint32_t i = 0; i < t->count && status == KR_OK; i++) {
        const double step = i == 0 ? 1.0 : t->rows[i] - t->rows[i - 1];
        const double slope = i == 0 ? 0.0 : (t->value[i] - t->value[i - 1]) / step;

        status = add_curve(&mode->compute, mode,
                           (kr_device_curve){.op = kind,
                                             .start_s = t->value[i] - slope * t->rows[i],
                                             .per_row_s = slope,
                                             .rows_max = t->rows[i],
                                             .provenance = step > 1.0 ? KR_INTERPOLATED : KR_MEASURED},
                           err);
    }
    return status;
}

/* ---- stages ---- */

static const kr_op_kind stage_ops[] = {KR_OP_APPEND, KR_OP_SCORE, KR_OP_SELECT, KR_OP_GATHER, KR_OP_ATTEND};
enum { STAGE_OPS = sizeof stage_ops / sizeof stage_ops[0] };

static observation observe(const kr_load *load, double y)
{
    return (observation){
        {1.0, (double)load->rows, (double)load->attended_tokens, (double)load->context_tokens}, y};
}

/* c0 + c1 rows: what messages cost. */
static double by_rows(const double c[TERMS], uint32_t rows) { return c[0] + c[1] * rows; }

/* Seconds of one op on the mode's device, as the simulator will price it; without a curve nothing. */
static double priced(const kr_machine_mode *mode, const char *method, kr_op_kind kind, const kr_load *load)
{
    const kr_device_job job = {.op = kind,
                               .model = mode->model,
                               .method = method,
                               .rows = load->rows,
                               .context_tokens = load->context_tokens,
                               .attended_tokens = load->attended_tokens};

    if (load->rows == 0 || !kr_device_measured(&mode->memory, &job))
        return 0.0;
    return (double)kr_device_op_time(&mode->memory, &job).ns * 1e-9;
}

/* Which terms a stage's time may have: start and rows always. */
static void drop_terms(kr_op_kind kind, bool is_dense, observation *o)
{
    if (kind == KR_OP_APPEND || kind == KR_OP_SCORE || kind == KR_OP_SELECT)
        o->x[2] = 0.0;
    if (kind == KR_OP_APPEND || (kind == KR_OP_ATTEND && is_dense))
        o->x[3] = 0.0;
}

/* With a budget for every token a method that selects runs as dense does: no sample of its own stages. */
static bool selects(const kr_profile_layers *group)
{
    return group->load[0].attended_tokens < group->load[0].context_tokens;
}

/* A stage of the method's layers; of a method that selects, dense layers have been fitted before. */
static kr_status add_stage(const kr_profile_sample *samples, uint32_t count, const char *method,
                           kr_op_kind kind, kr_machine_mode *mode, kr_err *err)
{
    const bool is_dense = strcmp(method, "dense") == 0;
    kr_device_curve curve = {.op = kind, .provenance = KR_INTERPOLATED};
    observation o[VALUES_MAX];
    double c[TERMS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < count && n < VALUES_MAX; i++) {
        const kr_profile_sample *s = &samples[i];
        const kr_profile_layers *group = is_dense ? &s->dense : &s->selecting;
        double y = device_ops(s, kind);

        if (strcmp(s->method, method) != 0 || (!is_dense && !selects(group)))
            continue;
        curve.rows_max = fmax(curve.rows_max, (double)group->load[0].rows);
        curve.context_max = fmax(curve.context_max, (double)group->load[0].context_tokens);
        if (!is_dense && s->dense.layers != 0)
            y -= s->dense.layers * priced(mode, "dense", kind, &s->dense.load[0]);
        if (y <= 0.0)
            continue;
        o[n] = observe(&group->load[0], y / group->layers);
        drop_terms(kind, is_dense, &o[n]);
        n++;
    }
    if (n == 0)
        return KR_OK; /* the method has no such stage */
    fit_terms(o, n, c);
    memcpy(curve.method, method, strlen(method) + 1);
    curve.start_s = c[0];
    curve.per_row_s = c[1];
    curve.per_attended_s = c[2];
    curve.per_context_s = c[3];
    return add_curve(&mode->memory, mode, curve, err);
}

static kr_status add_method(const kr_profile_sample *samples, uint32_t count, const char *method,
                            kr_machine_mode *mode, kr_err *err)
{
    kr_status status = KR_OK;

    for (uint32_t k = 0; k < STAGE_OPS && status == KR_OK; k++)
        status = add_stage(samples, count, method, stage_ops[k], mode, err);
    return status;
}

/* Dense first. The device's half of what messages cost goes with attend at the end. */
static kr_status add_stages(const kr_profile_sample *samples, uint32_t count, const double message[TERMS],
                            kr_machine_mode *mode, kr_err *err)
{
    kr_status status = add_method(samples, count, "dense", mode, err);

    for (uint32_t i = 0; i < count && status == KR_OK; i++) {
        bool seen = strcmp(samples[i].method, "dense") == 0;

        for (uint32_t k = 0; k < i; k++)
            seen |= strcmp(samples[k].method, samples[i].method) == 0;
        if (!seen)
            status = add_method(samples, count, samples[i].method, mode, err);
    }
    for (uint32_t i = 0; i < mode->memory.curves; i++) {
        kr_device_curve *c = &mode->memory.curve[i];

        c->start_s += c->op == KR_OP_ATTEND ? message[0] / 2 : 0.0;
        c->per_row_s += c->op == KR_OP_ATTEND ? message[1] / 2 : 0.0;
    }
    return status;
}

/* ---- modes ---- */

/* A quantity of messages as c0 + c1 rows. */
static void fit_message(const kr_profile_sample *samples, uint32_t count,
                        double (*of)(const kr_profile_sample *sample), double c[TERMS])
{
    observation o[VALUES_MAX];
    uint32_t n = 0;

    for (uint32_t i = 0; i < count && n < VALUES_MAX; i++) {
        const double y = of(&samples[i]);

        if (y > 0.0)
            o[n++] = (observation){{1.0, (double)samples[i].rows[0], 0.0, 0.0}, y};
    }
    memset(c, 0, TERMS * sizeof *c);
    if (n != 0)
        fit_terms(o, n, c);
}

/* Ops from samples of the mode's own threads, messages as given. */
static kr_status add_ops(const kr_profile_sample *samples, uint32_t count, const double send[TERMS],
                         const double message[TERMS], kr_machine_mode *mode, kr_err *err)
{
    static const kr_op_kind kinds[COMPUTE_OPS] = {KR_OP_EMBED, KR_OP_QKV,  KR_OP_O_PROJ,
                                                  KR_OP_FFN,   KR_OP_HEAD, KR_OP_SAMPLE};
    kr_status status = KR_OK;
    table t;

    for (size_t k = 0; k < COMPUTE_OPS && status == KR_OK; k++) {
        status = tabulate(samples, count, compute_op, kinds[k], &t, err);
        for (uint32_t i = 0; i < t.count && status == KR_OK; i++) {
            const uint32_t rows = (uint32_t)t.rows[i];

            t.value[i] += kinds[k] == KR_OP_QKV      ? by_rows(send, rows)
                          : kinds[k] == KR_OP_O_PROJ ? by_rows(message, rows) / 2
                                                     : 0.0;
        }
        if (status == KR_OK)
            status = add_table(mode, kinds[k], &t, err);
    }
    return status == KR_OK ? add_stages(samples, count, message, mode, err) : status;
}

/* What sleeping costs: a send that wakes its receiver against one that does not, and the rest of the
 * wait, half in each direction. */
static void fit_wake_up(const kr_profile_samples *s, const double send[TERMS], const double message[TERMS],
                        kr_machine_mode *mode)
{
    double signal[VALUES_MAX], latency[VALUES_MAX];
    uint32_t n = 0;

    for (; n < s->alones && n < VALUES_MAX; n++)
        signal[n] = sending(&s->alone[n]) - by_rows(send, s->alone[n].rows[0]);
    mode->signal_s = s->in_turns != 0 ? fmax(median(signal, n), 0.0) : 0.0;
    for (uint32_t i = 0; i < n; i++)
        latency[i] = (messaging(&s->alone[i]) - by_rows(message, s->alone[i].rows[0]) - mode->signal_s) / 2;
    mode->memory.link_latency_s = mode->compute.link_latency_s = fmax(median(latency, n), 0.0);
}

kr_status kr_profile_fit(const kr_profile_samples *s, kr_machine_mode *mode, kr_err *err)
{
    const bool at_once = s->at_onces != 0;
    double send[TERMS], message[TERMS];
    kr_status status;

    KR_CHECK((s->in_turns != 0 || at_once) && at_once == (s->alones != 0));
    fit_message(s->in_turns != 0 ? s->in_turn : s->at_once, s->in_turns != 0 ? s->in_turns : s->at_onces,
                sending, send);
    fit_message(s->in_turn, s->in_turns, messaging, message);
    mode->compute.curves = mode->memory.curves = 0;
    mode->signal_s = 0.0;
    mode->remainder = 1.0;
    status = add_ops(at_once ? s->at_once : s->in_turn, at_once ? s->at_onces : s->in_turns, send, message,
                     mode, err);
    if (status == KR_OK && at_once)
        fit_wake_up(s, send, message, mode);
    return status;
}
