/* Verdicts, and the report of a reproduction in Markdown. */
#include <math.h>
#include <string.h>

#include "plan/rederive.h"
#include "plan/reproduce.h"

static double widened(double end, double by) { return end + by * fabs(end); }

static bool inside(const kr_claim *c, double v)
{
    return v >= widened(c->low, -0.1) && v <= widened(c->high, 0.1);
}

kr_verdict kr_claim_verdict(const kr_claim *c)
{
    const bool above = c->low >= c->pivot, below = c->high <= c->pivot;
    uint32_t in = 0, side = 0;

    if (c->values == 0)
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

static void write_claims(const kr_reproduction *r, FILE *out)
{
    uint32_t count[4] = {0};

    for (uint32_t i = 0; i < r->claims; i++)
        count[kr_claim_verdict(&r->claim[i])]++;
    fprintf(
        out,
        "%u claims: %u hold, for %u the sign holds, %u are missed, %u cannot be judged. A claim *holds* when "
        "every "
        "point lies in the paper's range widened by a tenth of its ends; its *sign holds* when every point "
        "is on "
        "the paper's side of 1 (ratios) or 0 (differences, and counts, where that says nothing); else it is "
        "*missed*.\n\n",
        r->claims, count[0], count[1], count[2], count[3]);
    fputs("| id | claim | paper | ours | verdict | cause of a miss, as far as known "
          "|\n|---|---|---|---|---|---|\n",
          out);
    for (uint32_t i = 0; i < r->claims; i++) {
        const kr_claim *c = &r->claim[i];
        const kr_verdict v = kr_claim_verdict(c);

        fprintf(out, "| %s | %s | %s | ", c->id, c->text, c->paper);
        write_values(c, out);
        fprintf(out, " | %s | %s |\n", kr_verdict_name(v), v == KR_CLAIM_HOLDS ? "" : c->cause);
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

        fprintf(out, "| %s | %s | %s | %s%s%s%s | %u | %u | %u | ", s->model, s->method, r->grid_trace[i],
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

static const char FREE_PARAMETERS[] =
    "\n## What the paper leaves open, and what stands here for it\n\n"
    "| parameter | here | what else is possible |\n|---|---|---|\n"
    "| time of ops | data/devices: public fits for Score and Attend on the H200, a roofline for the rest | "
    "the paper's "
    "profiled table is unpublished |\n"
    "| expert all-to-all | bytes over 400 GB/s a node (the paper's network) | `--measured-network`: DeepEP's "
    "measured "
    "curves, up to 2.5x slower |\n"
    "| admission | pages of the largest remaining turn are promised at the start | unstated |\n"
    "| memory kept back | 5 % | unstated |\n"
    "| GPU-only and HiSparse | one micro-batch | two-batch overlap is unstated |\n"
    "| Duplex | 48 GPUs (48 kW): whole nodes nearest to 44.8 kW | 40 GPUs |\n"
    "| experts' shares under skew | number^-1.01, shuffled | Fig. 12's data is unpublished |\n"
    "| training-free methods | Llama-3-70B, attention over 8 GPUs, default budgets | unstated |\n"
    "| SWE traces | synthetic, from Table VII's figures alone | the traces are not public |\n";

kr_status kr_reproduction_write(const kr_reproduce_options *o, const kr_reproduction *r, FILE *out,
                                kr_err *err)
{
    kr_status status;

    fputs("# The KARAT paper's experiments on karat's simulator\n\n"
          "Written by `karat reproduce`; nothing below is typed by hand and no constant was tuned to a "
          "claim.\n\n",
          out);
    for (int t = 0; t < KR_TRACES; t++)
        fprintf(out, "* %s\n", r->traces[t]);
    fprintf(
        out,
        "* %u points, %u seed(s) each at the final number of sessions, first seed %llu; digest of all runs "
        "%016llx\n* network: %s\n\n## Claims\n\n",
        r->runs, o->seeds, (unsigned long long)o->seed, (unsigned long long)r->digest,
        o->measured_network ? "DeepEP as measured" : "400 GB/s a node, as the paper has it");
    write_claims(r, out);
    fputs(FREE_PARAMETERS, out);
    status = write_rederived(o->data, out, err);
    if (status != KR_OK)
        return status;
    write_grid(r, out);
    return ferror(out) ? kr_fail(err, KR_E_IO, "the report cannot be written") : KR_OK;
}
