/* The papers' experiments: first as karat takes what they leave open, then once more under each change of
 * it, and which verdicts that moves. */
#include "plan/reproduce.h"

#include <math.h>
#include <string.h>

#include "plan/cells.h"
#include "plan/pair.h"
#include "workload/generate.h"

enum { LLAMA_CONTEXT = 131072 };

/* ---- traces ---- */

static void free_traces(kr_cell_traces *t)
{
    for (int i = 0; i < KR_TRACES; i++) {
        kr_plan_workload_free(&t->whole[i]);
        kr_plan_workload_free(&t->cut[i]);
        kr_plan_workload_free(&t->drawn_again[i]);
    }
}

static kr_status read_one(const kr_reproduce_options *o, int t, uint64_t seed, kr_plan_workload *workload,
                          char *text, size_t bytes, kr_err *err)
{
    static const char *const recipes[KR_TRACES] = {"kvct-like", "swe-pro", "swe-chat"};
    const bool real = t == KR_CELL_KVCT && o->kvct != NULL;
    kr_trace trace;
    kr_status status = real ? kr_trace_read(&trace, o->kvct, 0, err)
                            : kr_trace_generate(&trace, kr_trace_recipe_find(recipes[t]), o->trace_sessions,
                                                seed, err);

    if (status != KR_OK)
        return status;
    status = kr_plan_workload_of(&trace, &(kr_plan_load){0}, workload, err);
    snprintf(text, bytes, "%s: %u sessions, digest %016llx", real ? "KVCT (a real subset)" : recipes[t],
             workload->view.sessions, (unsigned long long)trace.digest);
    kr_trace_free(&trace);
    return status;
}

static kr_status read_traces(const kr_reproduce_options *o, kr_cell_traces *traces, kr_reproduction *out,
                             kr_err *err)
{
    kr_status status = KR_OK;
    char unused[160];

    for (int t = 0; t < KR_TRACES && status == KR_OK; t++) {
        status = read_one(o, t, o->seed, &traces->whole[t], out->traces[t], sizeof out->traces[t], err);
        if (status == KR_OK)
            status = read_one(o, t, o->seed + 1000, &traces->drawn_again[t], unused, sizeof unused, err);
        if (status == KR_OK)
            status = kr_plan_workload_cut(&traces->whole[t], LLAMA_CONTEXT, &traces->cut[t], err);
    }
    return status;
}

/* ---- changes ---- */

/* Whether two sets of values differ by more than a share somewhere. */
static bool far_apart(const kr_claim *a, const kr_claim *b, double share)
{
    if (a->values != b->values)
        return true;
    for (uint32_t i = 0; i < a->values; i++)
        if (fabs(a->value[i] - b->value[i]) > share * fabs(a->value[i]))
            return true;
    return false;
}

/* Keeps the claims that change their verdict, counts and shares that move by a tenth, and differences that
 * move by half and by two points in sum. */
static kr_status compare(const kr_paper_claims *base, const kr_claim *claims, kr_changed_run *run,
                         kr_err *err)
{
    run->moved = kr_alloc((base->claims + 1) * sizeof *run->moved);
    if (run->moved == NULL)
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for %u claims", base->claims);
    for (uint32_t i = 0; i < base->claims; i++) {
        const kr_verdict before = kr_claim_verdict(&base->claim[i]), after = kr_claim_verdict(&claims[i]);
        const kr_claim *a = &base->claim[i], *b = &claims[i];
        double moved = 0.0;

        for (uint32_t k = 0; k < a->values && k < b->values; k++)
            moved += fabs(a->value[k] - b->value[k]);
        run->count[after]++;
        if (before != after || (isnan(b->pivot) && far_apart(a, b, 0.1)) ||
            (b->pivot == 0.0 && far_apart(a, b, 0.5) && moved > 2.0))
            run->moved[run->moved_count++] = (kr_moved_claim){i, before, after, claims[i]};
    }
    return KR_OK;
}

static kr_status run_changes(const kr_reproduce_options *o, const kr_cell_traces *traces,
                             const kr_cells *base, kr_cells *cells, kr_reproduction *out, kr_err *err)
{
    kr_claim *claims = kr_alloc(KR_CLAIMS_MAX * sizeof *claims);
    kr_status status = claims == NULL ? kr_fail(err, KR_E_MEMORY, "plan: no memory for claims") : KR_OK;

    for (int c = KR_CHANGE_NONE + 1; c < KR_CHANGES && status == KR_OK; c++) {
        kr_changed_run *run = &out->karat.change[out->karat.changes++];

        *run = (kr_changed_run){.parameter = kr_change_texts[c].parameter,
                                .here = kr_change_texts[c].here,
                                .instead = kr_change_texts[c].instead};
        status = kr_cells_run(o, traces, (kr_change)c, base, cells, NULL, NULL, err);
        out->runs += cells->runs;
        if (status != KR_OK)
            break;
        (void)kr_karat_claims(cells, claims);
        status = compare(&out->karat, claims, run, err);
    }
    kr_free(claims);
    return status;
}

/* ---- all ---- */

static kr_status karat_paper(const kr_reproduce_options *o, const kr_cell_traces *traces,
                             kr_reproduction *out, kr_err *err)
{
    kr_cells *base = kr_alloc(sizeof *base), *changed = kr_alloc(sizeof *changed);
    kr_status status = KR_OK;

    if (base == NULL || changed == NULL)
        status = kr_fail(err, KR_E_MEMORY, "plan: no memory for the points");
    if (status == KR_OK)
        status = kr_cells_run(o, traces, KR_CHANGE_NONE, NULL, base, &out->grid, &out->grid_count, err);
    if (status == KR_OK) {
        out->runs = base->runs;
        out->digest = base->digest;
        out->karat.claims = kr_karat_claims(base, out->karat.claim);
        if (!o->no_changes)
            status = run_changes(o, traces, base, changed, out, err);
    }
    kr_free(base);
    kr_free(changed);
    return status;
}

static kr_status pair_paper(const kr_reproduce_options *o, kr_reproduction *out, kr_err *err)
{
    kr_paper_claims *p = &out->pair;
    kr_claim *claims = kr_alloc(KR_CLAIMS_MAX * sizeof *claims);
    kr_status status = KR_OK;

    out->tables = kr_alloc(sizeof *out->tables);
    if (out->tables == NULL || claims == NULL)
        status = kr_fail(err, KR_E_MEMORY, "plan: no memory for claims");
    if (status == KR_OK)
        status = kr_pair_run(o, KR_PAIR_AS_TAKEN, p->claim, &p->claims, out->tables, err);
    for (int c = KR_PAIR_AS_TAKEN + 1; c < KR_PAIR_CHANGES && status == KR_OK && !o->no_changes; c++) {
        kr_changed_run *run = &p->change[p->changes++];
        uint32_t count;

        *run = (kr_changed_run){.parameter = kr_pair_texts[c].parameter,
                                .here = kr_pair_texts[c].here,
                                .instead = kr_pair_texts[c].instead};
        status = kr_pair_run(o, (kr_pair_change)c, claims, &count, NULL, err);
        if (status == KR_OK)
            status = compare(p, claims, run, err);
    }
    kr_free(claims);
    return status;
}

kr_status kr_reproduce(const kr_reproduce_options *options, kr_reproduction *reproduction, kr_err *err)
{
    kr_cell_traces traces = {0};
    kr_status status;

    memset(reproduction, 0, sizeof *reproduction);
    status = read_traces(options, &traces, reproduction, err);
    if (status == KR_OK)
        status = karat_paper(options, &traces, reproduction, err);
    if (status == KR_OK)
        status = pair_paper(options, reproduction, err);
    free_traces(&traces);
    if (status != KR_OK)
        kr_reproduction_free(reproduction);
    return status;
}

void kr_reproduction_free(kr_reproduction *r)
{
    for (uint32_t i = 0; i < KR_REPRODUCE_CHANGES_MAX; i++) {
        kr_free(r->karat.change[i].moved);
        kr_free(r->pair.change[i].moved);
    }
    kr_free(r->grid);
    kr_free(r->tables);
    memset(r, 0, sizeof *r);
}
