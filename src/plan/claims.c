/* Verdicts, and the report of a reproduction in Markdown. */
#include <math.h>
#include <string.h>

#include "plan/pair.h"
#include "plan/rederive.h"

kr_claim *kr_claim_add(kr_claim *list, uint32_t *count, const char *id, const char *text, const char *paper,
                       double low, double high, double pivot, const char *unit, const char *cause)
{
    kr_claim *c = &list[(*count)++];

    *c = (kr_claim){.id = id,
                    .text = text,
                    .paper = paper,
                    .low = low,
                    .high = high,
                    .pivot = pivot,
                    .unit = unit,
                    .cause = cause};
    return c;
}

void kr_claim_value(kr_claim *c, double value)
{
    if (isfinite(value) && c->values < KR_CLAIM_VALUES_MAX)
        c->value[c->values++] = value;
    else
        c->lost++;
}

static double widened(double end, double by) { return end + by * fabs(end); }

static bool inside(const kr_claim *c, double v)
{
    return v >= widened(c->low, -0.1) && v <= widened(c->high, 0.1);
}

kr_verdict kr_claim_verdict(const kr_claim *c)
{
    const bool above = c->low >= c->pivot, below = c->high <= c->pivot;
    uint32_t in = 0, side = 0;

    if (c->values == 0 || isnan(c->low))
        return KR_CLAIM_CANNOT_SAY;
    for (uint32_t i = 0; i < c->values; i++) {
        in += inside(c, c->value[i]);
        side += (above && c->value[i] > c->pivot) || (below && c->value[i] < c->pivot);
    }
    if (in == c->values)
        return KR_CLAIM_HOLDS;
    if (isnan(c->pivot))
        return KR_CLAIM_MISSED;
    if (above || below)
        return side == c->values ? KR_CLAIM_SIGN : KR_CLAIM_MISSED;
    return in > 0 ? KR_CLAIM_SIGN : KR_CLAIM_MISSED;
}

const char *kr_verdict_name(kr_verdict verdict)
{
    static const char *const names[] = {"holds", "sign holds", "missed", "cannot say"};

    return names[verdict];
}

static void write_values(const kr_claim *c, FILE *out)
{
    double low = INFINITY, high = -INFINITY;

    for (uint32_t i = 0; i < c->values; i++) {
        low = fmin(low, c->value[i]);
        high = fmax(high, c->value[i]);
    }
    if (c->values == 0)
        fputs("-", out);
    else if (c->values <= 3)
        for (uint32_t i = 0; i < c->values; i++)
            fprintf(out, "%s%.4g", i > 0 ? ", " : "", c->value[i]);
    else
        fprintf(out, "%.4g to %.4g (%u points)", low, high, c->values);
    if (c->values > 0)
        fprintf(out, " %s", c->unit);
    if (c->lost > 0)
        fprintf(out, "; %u points cannot run", c->lost);
}

static void count_verdicts(const kr_paper_claims *p, uint32_t count[4])
{
    memset(count, 0, 4 * sizeof *count);
    for (uint32_t i = 0; i < p->claims; i++)
        count[kr_claim_verdict(&p->claim[i])]++;
}

static void write_claims(const kr_paper_claims *p, FILE *out)
{
    uint32_t count[4];

    count_verdicts(p, count);
    fprintf(out,
            "%u claims: %u hold, for %u the sign holds, %u are missed, %u cannot be judged.\n\n"
            "| id | claim | paper | ours | verdict | cause of a miss, as far as known "
            "|\n|---|---|---|---|---|---|\n",
            p->claims, count[0], count[1], count[2], count[3]);
    for (uint32_t i = 0; i < p->claims; i++) {
        const kr_claim *c = &p->claim[i];
        const kr_verdict v = kr_claim_verdict(c);

        fprintf(out, "| %s | %s | %s | ", c->id, c->text, c->paper);
        write_values(c, out);
        fprintf(out, " | %s | %s |\n", kr_verdict_name(v), v == KR_CLAIM_HOLDS ? "" : c->cause);
    }
}

/* What a change moves: verdicts, and counts of sessions that move far. */
static void write_moved(const kr_paper_claims *p, const kr_changed_run *run, FILE *out)
{
    if (run->moved_count == 0)
        fputs("nothing", out);
    for (uint32_t i = 0; i < run->moved_count; i++) {
        const kr_moved_claim *m = &run->moved[i];

        fprintf(out, "%s%s %s: ", i > 0 ? "; " : "", p->claim[m->claim].id, p->claim[m->claim].text);
        if (m->before != m->after)
            fprintf(out, "%s -> **%s**, ", kr_verdict_name(m->before), kr_verdict_name(m->after));
        write_values(&m->moved, out);
    }
}

static void write_changes(const kr_paper_claims *p, FILE *out)
{
    uint32_t count[4];

    count_verdicts(p, count);
    fputs("| parameter | here | tried instead | holds, sign, missed | what moves |\n|---|---|---|---|---|\n",
          out);
    fprintf(out, "| | as above | | %u, %u, %u | |\n", count[0], count[1], count[2]);
    for (uint32_t i = 0; i < p->changes; i++) {
        const kr_changed_run *run = &p->change[i];

        fprintf(out, "| %s | %s | %s | %u, %u, %u | ", run->parameter, run->here, run->instead, run->count[0],
                run->count[1], run->count[2]);
        write_moved(p, run, out);
        fputs(" |\n", out);
    }
}

static kr_status write_rederived(const char *data, FILE *out, kr_err *err)
{
    kr_rederived list[KR_REDERIVED_MAX];
    unsigned count = 0, exact = 0;
    const kr_status status = kr_rederive(data, list, &count, err);

    if (status != KR_OK)
        return status;
    for (unsigned i = 0; i < count; i++)
        exact += fabs(list[i].ours / list[i].paper - 1) <= list[i].tolerance;
    fprintf(out,
            "\n## Rederived from the paper's own inputs\n\n%u of %u agree to the digits that the paper "
            "prints.\n\n"
            "| id | figure | paper | ours | unit | agrees |\n|---|---|---|---|---|---|\n",
            exact, count);
    for (unsigned i = 0; i < count; i++)
        fprintf(out, "| %s | %s | %g | %.6g | %s | %s |\n", list[i].id, list[i].what, list[i].paper,
                list[i].ours, list[i].unit,
                fabs(list[i].ours / list[i].paper - 1) <= list[i].tolerance ? "yes" : "no");
    return KR_OK;
}

static const char *trace_of(const kr_study_job *job) { return job->trace != NULL ? job->trace : ""; }

static void write_grid(const kr_reproduction *r, FILE *out)
{
    fputs("\n## Every point\n\n| model | method | trace | system | GPUs | devices | EP | sessions | tokens/s "
          "| +- | "
          "tokens/s/W | P99 ms | compute busy | devices busy | what binds |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
          out);
    for (uint32_t i = 0; i < r->grid_count; i++) {
        const kr_study_job *j = &r->grid[i];
        const kr_scenario_options *s = &j->scenario;
        const kr_study_result *x = &j->result;

        fprintf(out, "| %s | %s | %s | %s%s%s%s | %u | %u | %u | ", s->model, s->method, trace_of(j),
                kr_system_names[s->system], j->study.policy == KR_POLICY_SCMS ? ", no OFMS" : "",
                j->study.rebalance ? "" : ", no CMR",
                j->skew > 0 ? j->study.balance_experts ? ", skew, EPLB" : ", skew" : "", s->gpus, s->devices,
                s->ep);
        if (j->status != KR_OK)
            fprintf(out, "- | - | - | - | - | - | - | %s |\n", j->err.text);
        else
            fprintf(out, "%u | %.0f | %.0f | %.4f | %.1f | %.0f %% | %.0f %% | %s |\n", x->sessions,
                    x->tokens_per_s, isfinite(x->half_width) ? x->half_width : 0.0, x->tokens_per_s_per_w,
                    x->p99_s * 1e3, 100 * x->first.busy[KR_ON_COMPUTE], 100 * x->first.busy[KR_ON_DEVICE],
                    x->bound);
    }
}

static void write_pair_tables(const kr_pair_tables *t, FILE *out)
{
    fputs("\n### Steps of the pair\n\nOver the GPU alone: whole step, kernels of scan and selection, energy "
          "of a "
          "token, at batch 1; then the whole step by batch, geometric mean over contexts. Above a million "
          "tokens "
          "DSA and LServe run on the GPU alone, which is the paper's rule.\n\n| method |",
          out);
    for (int c = 0; c < KR_PAIR_CONTEXTS; c++)
        fprintf(out, " %lluK |", (unsigned long long)kr_pair_contexts[c] / 1024);
    for (int b = 0; b < KR_PAIR_BATCHES; b++)
        fprintf(out, " batch %u |", kr_pair_batches[b]);
    fputs("\n|---|---|---|---|---|---|---|---|---|---|---|\n", out);
    for (int m = 0; m < KR_PAIR_METHODS; m++) {
        fprintf(out, "| %s |", kr_pair_methods[m]);
        for (int c = 0; c < KR_PAIR_CONTEXTS; c++) {
            const kr_pair_point *p = &t->sparse[m][c][0];

            fprintf(out, " %.2f, %.2f, %.2f |", p->gpu_s / kr_pair_step_s(p), p->gpu_scan_s / p->pair_scan_s,
                    p->gpu_j / kr_pair_token_j(p));
        }
        for (int b = 0; b < KR_PAIR_BATCHES; b++) {
            double sum = 0.0;

            for (int c = 0; c < KR_PAIR_CONTEXTS; c++)
                sum += log(t->sparse[m][c][b].gpu_s / kr_pair_step_s(&t->sparse[m][c][b]));
            fprintf(out, " %.2f |", exp(sum / KR_PAIR_CONTEXTS));
        }
        fputs("\n", out);
    }
    fputs("| MemAgent | | | | | |", out);
    for (int b = 0; b < KR_PAIR_BATCHES; b++)
        fprintf(out, " %.2f |", t->agent_speedup[b]);
    fputs("\n", out);
}

static void write_head(const kr_reproduce_options *o, const kr_reproduction *r, FILE *out)
{
    fputs("# The papers' experiments on karat's simulator\n\n"
          "Written by `karat reproduce`; nothing below is typed by hand and no constant was tuned to a "
          "claim.\n\n",
          out);
    for (int t = 0; t < KR_TRACES; t++)
        fprintf(out, "* %s\n", r->traces[t]);
    fprintf(
        out,
        "* %u points of the KARAT paper, changes included; the best of each system with %u seed(s), first "
        "seed %llu; digest of all runs %016llx\n"
        "* %.0f s on %u threads\n\n"
        "A claim *holds* when every point lies in the paper's range widened by a tenth of its ends; its "
        "*sign holds* when every point is on the paper's side of 1 (ratios) or 0 (differences); else, and "
        "for counts and shares outside the range, it is *missed*. Ranges are over models and traces.\n",
        r->runs, o->seeds, (unsigned long long)o->seed, (unsigned long long)r->digest, r->wall_s, o->threads);
}

kr_status kr_reproduction_write(const kr_reproduce_options *o, const kr_reproduction *r, FILE *out,
                                kr_err *err)
{
    kr_status status;

    write_head(o, r, out);
    fputs("\n## KARAT: claims\n\n", out);
    write_claims(&r->karat, out);
    fputs("\n## KARAT: what the paper leaves open, and what it does to the verdicts\n\n"
          "Each row is a run of everything it touches under one change, at each system's best configuration "
          "of the run above, one seed; what concerns every trace is tried on KVCT. Not moved by anything "
          "here: op times (data/devices and its sources; "
          "the paper's profiled table is unpublished), budgets of the training-free methods (their "
          "defaults).\n\n",
          out);
    write_changes(&r->karat, out);
    fputs("\n## The memory-pipeline paper: claims\n\nOne MI210 and one U55C against the MI210 alone; "
          "src/plan/pair.h says how each method is run.\n\n",
          out);
    write_claims(&r->pair, out);
    write_pair_tables(r->tables, out);
    fputs("\n### What the paper leaves open\n\n", out);
    write_changes(&r->pair, out);
    status = write_rederived(o->data, out, err);
    if (status != KR_OK)
        return status;
    write_grid(r, out);
    return ferror(out) ? kr_fail(err, KR_E_IO, "the report cannot be written") : KR_OK;
}
