/* The systems of the papers as data.
 *
 *   karat      H200s and memory devices, 32 a node, all stages on the devices
 *   gpu-only   H200s alone
 *   hisparse   gpu-only with the KV cache in host memory: 2 TB a node of eight, PCIe 5 x16 a GPU, 5 % of
 *              what is attended is missed (KARAT paper IV-A); the index stays on the GPU
 *   duplex     H200s whose own stacks compute; 1,000 W each; weights share the stack with the KV
 *   attacc     as karat with HBM-PIM devices; spnm: as karat with 8 TFLOPS in LPDDR5X
 *   fpga       MI210s and U55Cs of the memory-pipeline paper: indices-only
 *
 * Accounting: the paper's by default (no index scales, no rope FLOPs, un-absorbed queries, BF16 on
 * links, FP8 dispatch and BF16 combine), ours with exact. 5 % of a device's memory is kept back. */
#include "plan/scenario.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"

const char *const kr_system_names[KR_SYSTEMS + 1] = {
    "karat", "gpu-only", "hisparse", "duplex", "attacc", "spnm", "fpga", NULL,
};

/* First of the streams of random numbers that think times are drawn from. */
static const uint64_t THINK_STREAM = UINT64_C(1) << 63;

enum { ARENA_BYTES = 16 << 20, PATH_BYTES = 1024, NODE_GPUS = 8, NODE_DEVICES = 32 };

static const struct {
    const char *compute, *memory; /* NULL: none */
    kr_placement placement;
    bool inside; /* the memory device is part of the compute device, and its watts are of both */
} systems[KR_SYSTEMS] = {
    {"h200", "karat", KR_PLACE_ALL_ON_NODE, false},  {"h200", NULL, KR_PLACE_ALL_ON_COMPUTE, false},
    {"h200", NULL, KR_PLACE_ALL_ON_COMPUTE, false},  {"h200", "duplex", KR_PLACE_ALL_ON_NODE, true},
    {"h200", "attacc", KR_PLACE_ALL_ON_NODE, false}, {"h200", "spnm", KR_PLACE_ALL_ON_NODE, false},
    {"mi210", "u55c", KR_PLACE_INDICES_ONLY, false},
};

/* ---- sessions ---- */

void kr_plan_workload_free(kr_plan_workload *workload)
{
    kr_free(workload->session);
    kr_free(workload->turn);
    *workload = (kr_plan_workload){0};
}

static uint64_t think_ns(const kr_trace_turn *t, const kr_plan_load *load, uint32_t session, uint32_t turn)
{
    static const double HOUR_S = 3600;
    kr_rng rng = kr_rng_make(load->seed, THINK_STREAM + ((uint64_t)session << 32 | turn));
    double seconds = 0.0;

    if (load->think == KR_THINK_TRACE && t->think_us != KR_TRACE_NONE)
        seconds = (double)t->think_us * 1e-6;
    if (load->think == KR_THINK_MEAN)
        seconds = -load->think_s * log1p(-kr_rng_unit(&rng));
    return (uint64_t)(fmin(seconds, HOUR_S) * 1e9);
}

kr_status kr_plan_workload_of(const kr_trace *trace, const kr_plan_load *load, kr_plan_workload *workload,
                              kr_err *err)
{
    kr_plan_workload w = {.session = kr_alloc((trace->sessions + 1) * sizeof *w.session),
                          .turn = kr_alloc((trace->turns + 1) * sizeof *w.turn)};
    uint32_t turns = 0;

    if (!(load->think_s >= 0.0 && load->think_s <= 3600.0)) {
        kr_plan_workload_free(&w);
        return kr_fail(err, KR_E_ARG, "plan: a mean think time of %g s, must be 0 to 3600", load->think_s);
    }
    if (w.session == NULL || w.turn == NULL) {
        kr_plan_workload_free(&w);
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for %u turns", trace->turns);
    }
    for (uint32_t s = 0; s < trace->sessions; s++) {
        const kr_trace_session *from = &trace->session[s];
        kr_sim_session *to = &w.session[w.view.sessions];

        if (from->parent != KR_TRACE_NO_PARENT && !load->sub_agents)
            continue;
        *to = (kr_sim_session){.id = s, .turn = &w.turn[turns]};
        for (uint32_t t = 0; t < from->turns; t++) {
            const kr_trace_turn *turn = &trace->turn[from->first_turn + t];
            const uint64_t end = turn->input_tokens + turn->output_tokens;

            if (turn->output_tokens == 0) {
                w.dropped_turns++;
                continue;
            }
            w.turn[turns++] = (kr_sim_turn){
                .context_tokens = turn->input_tokens,
                .new_tokens = turn->input_tokens - turn->cached_tokens,
                .output_tokens = turn->output_tokens,
                .think_ns = think_ns(turn, load, s, t),
            };
            to->turns++;
            w.context_max = end > w.context_max ? end : w.context_max;
        }
        w.view.sessions += to->turns > 0;
    }
    w.view.session = w.session;
    if (w.view.sessions == 0) {
        kr_plan_workload_free(&w);
        return kr_fail(err, KR_E_FORMAT, "plan: the trace has no turn that decodes");
    }
    *workload = w;
    return KR_OK;
}

kr_status kr_plan_workload_cut(const kr_plan_workload *from, uint64_t tokens, kr_plan_workload *workload,
                               kr_err *err)
{
    uint32_t turns = 0;
    kr_plan_workload w = *from;

    for (uint32_t s = 0; s < from->view.sessions; s++)
        turns += from->session[s].turns;
    w.session = kr_alloc(from->view.sessions * sizeof *w.session);
    w.turn = kr_alloc(turns * sizeof *w.turn);
    if (w.session == NULL || w.turn == NULL) {
        kr_plan_workload_free(&w);
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for %u turns", turns);
    }
    memcpy(w.session, from->session, from->view.sessions * sizeof *w.session);
    memcpy(w.turn, from->turn, turns * sizeof *w.turn);
    w.context_max = 0;
    for (uint32_t t = 0; t < turns; t++) {
        kr_sim_turn *turn = &w.turn[t];

        if (turn->output_tokens > tokens / 2)
            turn->output_tokens = tokens / 2;
        if (turn->context_tokens > tokens - turn->output_tokens)
            turn->context_tokens = tokens - turn->output_tokens;
        if (turn->new_tokens > turn->context_tokens)
            turn->new_tokens = turn->context_tokens;
        if (turn->context_tokens + turn->output_tokens > w.context_max)
            w.context_max = turn->context_tokens + turn->output_tokens;
    }
    for (uint32_t s = 0; s < w.view.sessions; s++)
        w.session[s].turn = w.turn + (from->session[s].turn - from->turn);
    w.view.session = w.session;
    *workload = w;
    return KR_OK;
}

/* ---- systems ---- */

static kr_status load_device(const char *data, const char *name, const char *own, kr_device_model *device,
                             kr_err *err)
{
    char path[PATH_BYTES];

    if (own != NULL)
        return kr_device_model_load(own, device, err);
    snprintf(path, sizeof path, "%s/devices/%s.json", data, name);
    return kr_device_model_load(path, device, err);
}

static kr_status load_model(const char *data, const char *name, kr_model *model, kr_err *err)
{
    const size_t length = strlen(name);
    char path[PATH_BYTES];

    if (length > 5 && strcmp(name + length - 5, ".json") == 0)
        return kr_model_load(name, model, err);
    snprintf(path, sizeof path, "%s/models/%s.json", data, name);
    return kr_model_load(path, model, err);
}

static void apply_factors(kr_scenario *s, const kr_plan_factors *f)
{
    kr_device_model *c = &s->compute, *m = &s->memory;

    c->flops_f32 *= f->compute_flops;
    c->flops_bf16 *= f->compute_flops;
    c->flops_fp8 *= f->compute_flops;
    c->memory_bytes_per_s *= f->compute_memory;
    for (uint32_t i = 0; i < c->curves; i++) {
        c->curve[i].start_s *= f->curves;
        c->curve[i].per_row_s *= f->curves;
        c->curve[i].per_attended_s *= f->curves;
        c->curve[i].per_context_s *= f->curves;
        c->curve[i].per_expert_s *= f->curves;
        c->curve[i].per_expert_row_s *= f->curves;
    }
    for (uint32_t i = 0; i < c->matrices; i++) {
        c->matrix[i].flops *= f->compute_flops;
        c->matrix[i].bytes_per_s *= f->compute_memory;
        c->matrix[i].start_s *= f->curves;
        c->matrix[i].depth_s *= f->curves;
    }
    c->small_kernel_s *= f->curves;
    m->flops_f32 *= f->cores;
    m->flops_bf16 *= f->cores;
    m->flops_fp8 *= f->cores * f->memory_fp8;
    m->memory_bytes_per_s *= f->memory_bytes_per_s;
    m->memory_bytes *= f->memory_bytes;
    m->tdp_w *= f->memory_watts;
    m->link_bytes_per_s *= f->link_bytes;
    m->link_latency_s *= f->link_latency;
}

static kr_parallel parallel_of(const kr_scenario_options *o, const kr_model *model)
{
    const uint32_t ranks = o->gpus / o->tp, experts = model->moe.experts;
    const uint32_t ep = o->ep != 0 ? o->ep : o->gpus;

    return (kr_parallel){
        .tp = o->tp,
        .dp = ranks,
        .ep = experts == 0   ? 1
              : ep < experts ? ep
                             : experts,
        .micro_batches = o->micro_batches,
        .placement = systems[o->system].placement,
        .absorb_on_memory = !o->exact && systems[o->system].placement == KR_PLACE_ALL_ON_NODE,
        .paper_accounting = !o->exact,
        .activation = KR_BF16,
        .dispatch = KR_E4M3,
        .combine = KR_BF16,
    };
}

static kr_status build(kr_scenario *s, const kr_scenario_options *o, uint64_t context_max, kr_err *err)
{
    static const uint32_t ROWS = 256; /* of a message: sizes workspaces, which are small beside weights */
    kr_method_config configs[KR_LAYERS_MAX];
    const kr_parallel parallel = parallel_of(o, &s->model);
    kr_status status;

    if (strlen(o->method) >= sizeof configs[0].name)
        return kr_fail(err, KR_E_ARG, "plan: method %s is unknown", o->method);
    memset(configs, 0, sizeof configs);
    for (uint32_t l = 0; l < s->model.layers; l++) {
        memcpy(configs[l].name, o->method, strlen(o->method));
        configs[l].budget = o->budget;
        configs[l].mode = o->mode;
        configs[l].dense_layers = UINT32_MAX;
    }
    status = kr_program_build(&s->program, &s->arena, &s->model, configs, &parallel, context_max, err);
    return status == KR_OK ? kr_program_memory(&s->program, context_max, ROWS, &s->bytes, err) : status;
}

/* spread devices that share out a session's KV heads work as one of so many times the size. */
static void spread_heads(kr_scenario *s, uint32_t spread)
{
    kr_device_model *m = &s->memory;

    m->flops_f32 *= spread;
    m->flops_bf16 *= spread;
    m->flops_fp8 *= spread;
    m->memory_bytes *= spread;
    m->memory_bytes_per_s *= spread;
    m->link_bytes_per_s *= spread;
    m->tdp_w *= spread;
    s->hardware.devices /= spread;
    s->hardware.devices_per_node /= spread;
}

static kr_status check_spread(const kr_scenario *s, uint32_t spread, kr_err *err)
{
    const kr_model *m = &s->model;

    if (m->attention == KR_ATTENTION_MLA || m->kv_heads % spread != 0 || s->hardware.devices % spread != 0 ||
        s->hardware.devices_per_node % spread != 0)
        return kr_fail(err, KR_E_ARG, "plan: %u KV heads do not spread over %u of %u devices", m->kv_heads,
                       spread, s->hardware.devices);
    return KR_OK;
}

static kr_status connect_parts(kr_scenario *s, const kr_scenario_options *o, kr_err *err)
{
    const bool remote = systems[o->system].placement != KR_PLACE_ALL_ON_COMPUTE;

    s->hardware = (kr_sim_hardware){
        .compute = &s->compute,
        .memory = remote ? &s->memory : NULL,
        .devices = systems[o->system].inside ? o->gpus : o->devices,
        .devices_per_node = systems[o->system].inside ? NODE_GPUS : NODE_DEVICES,
        .reserved_share = o->reserved_share > 0.0 ? o->reserved_share : 0.05,
        .ranks_per_node = o->flat_network ? 1 : NODE_GPUS,
        .rank_link = o->factors.link_bytes,
        .link_unshared = o->link_unshared,
        .fast_unshared = o->fast_unshared,
        .all_to_all_by_bytes = o->all_to_all_by_bytes,
    };
    if (o->unlimited_memory)
        s->compute.memory_bytes = s->memory.memory_bytes = 1e18;
    if (o->system == KR_SYSTEM_HISPARSE) {
        s->hardware.host_bytes = 2e12 / NODE_GPUS;
        s->hardware.host_bytes_per_s = 64e9;
        s->hardware.host_miss_share = 0.05;
    }
    if (systems[o->system].inside) {
        if (s->memory.memory_bytes <= (double)s->bytes.weight_bytes)
            return kr_fail(err, KR_E_UNSUPPORTED,
                           "plan: %s holds %.1f GB, the weights of a rank take %.1f GB", s->memory.name,
                           s->memory.memory_bytes / 1e9, (double)s->bytes.weight_bytes / 1e9);
        s->memory.memory_bytes -= (double)s->bytes.weight_bytes;
        s->compute.tdp_w = s->compute.idle_w = 0.0; /* the memory's watts are of both */
    }
    if (remote && o->spread > 1) {
        if (check_spread(s, o->spread, err) != KR_OK)
            return KR_E_ARG;
        spread_heads(s, o->spread);
    }
    s->tdp_w = s->compute.tdp_w * o->gpus + (remote ? s->memory.tdp_w * s->hardware.devices : 0.0);
    return KR_OK;
}

static kr_status check(const kr_scenario_options *o, kr_err *err)
{
    const bool needs = systems[o->system].memory != NULL && !systems[o->system].inside;

    if (o->gpus == 0 || o->tp == 0 || o->gpus % o->tp != 0)
        return kr_fail(err, KR_E_ARG, "plan: %u GPUs do not split into ranks of %u", o->gpus, o->tp);
    if (needs && o->devices == 0)
        return kr_fail(err, KR_E_ARG, "plan: %s needs memory devices", kr_system_names[o->system]);
    if (o->ep > o->gpus)
        return kr_fail(err, KR_E_ARG, "plan: expert parallelism over %u of %u GPUs", o->ep, o->gpus);
    return KR_OK;
}

kr_status kr_scenario_init(kr_scenario *scenario, const kr_scenario_options *o, uint64_t context_max,
                           kr_err *err)
{
    kr_status status = check(o, err);

    memset(scenario, 0, sizeof *scenario);
    if (status != KR_OK)
        return status;
    status = kr_arena_init(&scenario->arena, ARENA_BYTES, err);
    if (status != KR_OK)
        return status;
    status = load_model(o->data, o->model, &scenario->model, err);
    if (status == KR_OK)
        status = load_device(o->data, systems[o->system].compute, o->compute, &scenario->compute, err);
    if (status == KR_OK && systems[o->system].memory != NULL)
        status = load_device(o->data, systems[o->system].memory, o->memory, &scenario->memory, err);
    if (status == KR_OK && o->tables != NULL && !kr_device_tables_are_of(o->tables, scenario->compute.name))
        status = kr_fail(err, KR_E_ARG, "plan: the tables were not measured on %s", scenario->compute.name);
    if (status == KR_OK) {
        scenario->compute.tables = o->tables;
        apply_factors(scenario, &o->factors);
        status = build(scenario, o, context_max, err);
    }
    if (status == KR_OK)
        status = connect_parts(scenario, o, err);
    if (status != KR_OK)
        kr_scenario_free(scenario);
    return status;
}

void kr_scenario_free(kr_scenario *scenario)
{
    if (scenario->arena.base != NULL)
        kr_arena_free(&scenario->arena);
    memset(scenario, 0, sizeof *scenario);
}

static const double gpu_w = 700, device_w[KR_SYSTEMS] = {175, 0, 0, 1000, 120, 150, 150};

uint32_t kr_system_devices_for(kr_system system, double watts, uint32_t *gpus)
{
    if (systems[system].memory == NULL || systems[system].inside) {
        const double each = systems[system].inside ? device_w[system] : gpu_w;

        *gpus = (uint32_t)(watts / (each * NODE_GPUS) + 0.5) * NODE_GPUS;
        return 0;
    }
    return watts <= gpu_w * *gpus
               ? 0
               : (uint32_t)((watts - gpu_w * *gpus) / (device_w[system] * NODE_DEVICES) + 0.5) * NODE_DEVICES;
}

void kr_system_nearest(kr_system system, double watts, uint32_t *gpus, uint32_t *devices)
{
    double least = HUGE_VAL;

    *devices = kr_system_devices_for(system, watts, gpus);
    if (systems[system].memory == NULL || systems[system].inside)
        return;
    for (uint32_t tried = NODE_GPUS; tried * gpu_w < watts; tried += NODE_GPUS) {
        const uint32_t with = kr_system_devices_for(system, watts, &tried);
        const double off = fabs(tried * gpu_w + with * device_w[system] - watts);

        /* Sums of watts are whole numbers, so that equals are equal. */
        if (with == 0 || off >= least)
            continue;
        least = off;
        *gpus = tried;
        *devices = with;
    }
}
