/* Modelled devices: the time and the energy of one op. */
#include <math.h>
#include <string.h>

#include "device/tables.h"

const char *kr_provenance_name(kr_provenance provenance)
{
    static const char *const names[] = {"measured", "interpolated", "extrapolated", "modelled"};

    return (unsigned)provenance < KR_PROVENANCE_COUNT ? names[provenance] : "?";
}

/* FLOP/s for a type, falling back to the next wider one. */
static double flops_of(const kr_device_model *d, kr_dtype math)
{
    if ((math == KR_E4M3 || math == KR_I8) && d->flops_fp8 > 0.0)
        return d->flops_fp8;
    if (math != KR_F32 && d->flops_bf16 > 0.0)
        return d->flops_bf16;
    return d->flops_f32 > 0.0 ? d->flops_f32 : d->flops_bf16;
}

static bool is_of(const kr_device_curve *c, const kr_device_job *job)
{
    if (c->op != job->op)
        return false;
    if (c->key_width != 0 && (job->kernels == NULL || c->key_width != job->kernels->unit.in ||
                              (c->heads != 0 && c->heads != job->kernels->unit.count)))
        return false;
    return (c->model[0] == '\0' || strcmp(c->model, job->model) == 0) &&
           (c->method[0] == '\0' || (job->method != NULL && strcmp(c->method, job->method) == 0));
}

static bool holds(const kr_device_curve *c, const kr_device_job *job)
{
    return (c->rows_max <= 0.0 || (double)job->rows <= c->rows_max) &&
           (c->context_max <= 0.0 || (double)job->context_tokens <= c->context_max) &&
           (c->ranks == 0 || c->ranks >= job->ranks);
}

static const kr_device_curve *find_curve(const kr_device_model *d, const kr_device_job *job)
{
    const kr_device_curve *best = NULL;
    bool own = false;

    for (uint32_t i = 0; i < d->curves; i++)
        own |= is_of(&d->curve[i], job) && d->curve[i].method[0] != '\0';
    for (uint32_t i = 0; i < d->curves; i++) {
        const kr_device_curve *c = &d->curve[i];

        if (!is_of(c, job) || (own && c->method[0] == '\0'))
            continue;
        if (c->ranks == 0) {
            best = c;
            if (holds(c, job))
                return c;
            continue;
        }
        /* The smallest group that is not smaller, else the largest there is. */
        if (best == NULL || (best->ranks < job->ranks ? c->ranks > best->ranks
                                                      : c->ranks >= job->ranks && c->ranks < best->ranks))
            best = c;
    }
    return best;
}

static const kr_device_matrix *find_matrix(const kr_device_model *d, kr_dtype math)
{
    for (uint32_t i = 0; i < d->matrices; i++)
        if (d->matrix[i].math == math)
            return &d->matrix[i];
    return NULL;
}

static void add(kr_device_time *time, double seconds, kr_provenance provenance)
{
    /* 2^62 ns is 146 years: a time beyond it means a broken descriptor and stays comparable. */
    const uint64_t ns = (uint64_t)(fmin(seconds * 1e9, 0x1p62) + 0.5);

    time->ns += ns;
    time->by_ns[provenance] += ns;
}

static void add_curve(const kr_device_curve *c, const kr_device_job *job, kr_device_time *time)
{
    const double seconds = c->start_s + c->per_row_s * (double)job->rows +
                           c->per_attended_s * (double)job->attended_tokens +
                           c->per_context_s * (double)job->context_tokens +
                           c->per_expert_s * (double)job->experts +
                           c->per_expert_row_s * (double)job->expert_rows;

    add(time, fmax(seconds, 0.0), holds(c, job) ? c->provenance : KR_EXTRAPOLATED);
}

/* Bytes of a product as a kernel streams them: the matrix, rows in, BF16 rows out. */
static double matrix_bytes(const kr_matrix *m, double rows)
{
    const double element = kr_dtype_bytes(m->math);

    return m->count * (element * m->in * m->out + rows * (element * m->in + 2.0 * m->out));
}

static void add_matrix(const kr_device_model *d, const kr_device_job *job, const kr_matrix *m,
                       kr_device_time *time)
{
    const kr_device_matrix *fit = find_matrix(d, m->math);
    const double rows = (double)job->rows, flops = 2.0 * m->count * m->in * m->out * rows;
    double seconds;

    if (kr_device_tables_add(d->tables, job, m, time))
        return;
    seconds = fmax(flops / fit->flops, matrix_bytes(m, rows) / fit->bytes_per_s);
    add(time, fit->start_s + fmax(seconds, fit->depth_s * m->in),
        rows > fit->rows_max ? KR_EXTRAPOLATED : KR_INTERPOLATED);
}

/* Whether each kernel of the op has a time; an op of its own unit is no chain of kernels. */
static bool has_kernels(const kr_device_model *d, const kr_device_job *job)
{
    const kr_op_kernels *k = job->kernels;

    if (k == NULL || k->matrices + k->small == 0 || k->unit.count != 0 || d->small_kernel_s <= 0.0)
        return false;
    for (uint32_t i = 0; i < k->matrices; i++)
        if (find_matrix(d, k->matrix[i].math) == NULL)
            return false;
    return true;
}

static double roofline(const kr_device_model *d, const kr_device_job *job)
{
    const double compute = (double)job->work.flops / (flops_of(d, job->math) * d->flops_efficiency);
    const double fast = (double)job->fast_read_bytes;
    const double slow = (double)(job->work.read_bytes + job->work.write_bytes) - fast;
    const double memory = slow / (d->memory_bytes_per_s * d->memory_efficiency) +
                          (fast > 0.0 ? fast / d->fast_bytes_per_s : 0.0);

    return d->fixed_s + fmax(compute, memory);
}

kr_device_time kr_device_op_time(const kr_device_model *d, const kr_device_job *job)
{
    const kr_device_curve *c = find_curve(d, job);
    kr_device_time time = {0};

    if (kr_device_tables_add(d->tables, job, NULL, &time))
        return time;
    if (c != NULL) {
        add_curve(c, job, &time);
    } else if (has_kernels(d, job)) {
        for (uint32_t i = 0; i < job->kernels->matrices; i++)
            add_matrix(d, job, &job->kernels->matrix[i], &time);
        add(&time, job->kernels->small * d->small_kernel_s, KR_MODELLED);
    } else {
        add(&time, roofline(d, job), KR_MODELLED);
    }
    return time;
}

bool kr_device_measured(const kr_device_model *d, const kr_device_job *job)
{
    kr_device_time ignored = {0};

    return find_curve(d, job) != NULL || kr_device_tables_add(d->tables, job, NULL, &ignored);
}

bool kr_device_monotone(const kr_device_model *d, const kr_device_job *job)
{
    kr_device_time ignored = {0};
    uint32_t curves = 0;

    for (uint32_t i = 0; i < d->curves; i++)
        curves += is_of(&d->curve[i], job);
    return curves <= 1 && !kr_device_tables_add(d->tables, job, NULL, &ignored);
}

double kr_device_compute_share(const kr_device_model *d, const kr_device_job *job)
{
    const kr_device_curve *c = find_curve(d, job);

    return c != NULL ? c->compute_share : 0.0;
}

double kr_device_math_j(const kr_device_model *d, kr_dtype math, const kr_work *work)
{
    const double each = (math == KR_E4M3 || math == KR_I8) && d->fp8_j_per_flop > 0.0 ? d->fp8_j_per_flop
                        : math != KR_F32 && d->bf16_j_per_flop > 0.0                  ? d->bf16_j_per_flop
                                                                                      : d->f32_j_per_flop;

    return each * (double)work->flops;
}

double kr_device_memory_j(const kr_device_model *d, const kr_work *work)
{
    return d->memory_j_per_byte * ((double)work->read_bytes + (double)work->write_bytes);
}
