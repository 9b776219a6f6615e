/* Joules of a step by part. */
#include "sim/energy.h"

const char *kr_power_name(kr_power_part part)
{
    static const char *const names[] = {
        "compute, idle",         "compute, units",         "compute, memory", "memory devices, idle",
        "memory devices, units", "memory devices, memory", "links",           "network of the ranks",
    };

    return (unsigned)part < KR_POWER_PARTS ? names[part] : "?";
}

/* Loads of all places together, by class, and how many places have any: an op's fixed work is each's. */
typedef struct {
    kr_place_load sum;
    uint64_t places;
} total;

static total sum_places(const kr_pricer *p, const kr_place_load *place, uint32_t places, uint32_t micro_batch)
{
    const uint32_t batches = p->program->parallel.micro_batches;
    total t = {0};

    for (uint32_t i = 0; i < places; i++) {
        const kr_place_load *one = &place[(size_t)i * batches + micro_batch];

        t.places += one->load[0].rows != 0;
        for (uint32_t c = 0; c < p->classes; c++) {
            t.sum.load[c].rows += one->load[c].rows;
            t.sum.load[c].context_tokens += one->load[c].context_tokens;
            t.sum.load[c].units += one->load[c].units;
            t.sum.load[c].attended_tokens += one->load[c].attended_tokens;
        }
    }
    return t;
}

/* Work of an op on all places: a tensor-parallel rank is tp devices that each do the op's work. */
static kr_work work_of(const kr_pricer *p, const kr_price *price, const total *t)
{
    const kr_cost_terms *terms = &p->program->cost[price->op.cost];
    const uint64_t width = price->op.resource == KR_ON_COMPUTE || price->op.resource == KR_ON_A2A
                               ? p->program->parallel.tp
                               : 1;
    kr_load load = t->sum.load[price->load_class];
    kr_work work;

    if (price->op.kind == KR_OP_EXPERTS) {
        /* Experts are spread over all devices of a rank: their work is not repeated on each. */
        kr_pricer_experts(p, NULL, load.rows, &load);
        load.experts *= (uint64_t)p->ranks * width;
        load.expert_rows *= (uint64_t)p->ranks * width;
        return kr_op_work(p->program, &price->op, &load);
    }
    work = kr_op_work(p->program, &price->op, &load);
    if (t->places > 1)
        work = kr_work_add(work, kr_work_scale(terms->fixed, t->places - 1));
    return kr_work_scale(work, width);
}

static void add_stage(const kr_price *price, const kr_work *work, const kr_device_model *d,
                      kr_power_part math, kr_power_part memory, double *joules)
{
    joules[math] += kr_device_math_j(d, price->math, work) * price->uses;
    joules[memory] += kr_device_memory_j(d, work) * price->uses;
}

static void add_price(const kr_pricer *p, const kr_price *price, const total *ranks, const total *devices,
                      double *joules)
{
    const kr_sim_hardware *h = p->hardware;
    const bool by_rank = price->op.resource == KR_ON_COMPUTE || price->op.resource == KR_ON_A2A;
    const kr_work work = work_of(p, price, by_rank ? ranks : devices);

    switch ((kr_resource)price->op.resource) {
    case KR_ON_COMPUTE:
        add_stage(price, &work, h->compute, KR_POWER_COMPUTE_UNITS, KR_POWER_COMPUTE_MEMORY, joules);
        if (h->host_bytes > 0.0 && price->op.kind == KR_OP_ATTEND)
            joules[KR_POWER_LINKS] += (double)work.read_bytes * h->host_miss_share *
                                      h->compute->link_j_per_byte * price->uses;
        break;
    case KR_ON_DEVICE:
        /* What a device cannot run crosses its link and runs on the compute side. */
        if (!h->memory->can[price->op.kind])
            joules[KR_POWER_LINKS] += (double)work.read_bytes * h->memory->link_j_per_byte * price->uses;
        add_stage(price, &work, h->memory->can[price->op.kind] ? h->memory : h->compute,
                  KR_POWER_DEVICE_UNITS, KR_POWER_DEVICE_MEMORY, joules);
        break;
    case KR_ON_LINK:
        joules[KR_POWER_LINKS] += (double)work.move_bytes * h->memory->link_j_per_byte * price->uses;
        break;
    case KR_ON_A2A:
        joules[KR_POWER_NETWORK] += (double)work.move_bytes * h->compute->link_j_per_byte * price->uses;
        break;
    }
}

void kr_energy_add(const kr_pricer *p, const kr_place_load *rank, const kr_place_load *device,
                   double joules[KR_POWER_PARTS])
{
    for (uint32_t m = 0; m < p->program->parallel.micro_batches; m++) {
        const total ranks = sum_places(p, rank, p->ranks, m), devices = sum_places(p, device, p->devices, m);

        for (uint32_t k = 0; k < p->prices && ranks.places != 0; k++)
            add_price(p, &p->price[k], &ranks, &devices, joules);
    }
}

void kr_energy_idle(const kr_pricer *p, double watts[KR_POWER_PARTS])
{
    const kr_sim_hardware *h = p->hardware;

    watts[KR_POWER_COMPUTE_IDLE] += h->compute->idle_w * p->ranks * p->program->parallel.tp;
    if (h->memory != NULL)
        watts[KR_POWER_DEVICE_IDLE] += h->memory->idle_w * p->devices;
}

bool kr_energy_known(const kr_sim_hardware *h)
{
    return h->compute->memory_j_per_byte > 0.0 && (h->memory == NULL || h->memory->memory_j_per_byte > 0.0);
}
