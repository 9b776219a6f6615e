/* The memory-pipeline paper's claims (its sections 3 to 7, Tables 2 to 4) as values of the tables. */
#include "plan/pair_inside.h"

#include <math.h>

enum { DSA, SEER_THRESHOLD, SEER_TOPK, LSERVE };

static const char KERNEL_CAUSE[] = "the paper's GPU kernels are far from the MI210's roofline (App. C.1: "
                                   "2,450 us for a scan of 128 MB, 80 us "
                                   "at 1.6 TB/s), ours are on it; see the run with its times";
static const char CONSISTENT[] =
    "no sizes are given that a model could start from; the paper's own shares and kernel speedups, by Amdahl";

static double geomean(const double *v, int n)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++)
        sum += log(v[i]);
    return exp(sum / n);
}

/* Speedup of the whole step, geometric mean over contexts. */
static double speedup(const kr_pair_tables *t, int method, int batch)
{
    double v[KR_PAIR_CONTEXTS];

    for (int c = 0; c < KR_PAIR_CONTEXTS; c++)
        v[c] = t->sparse[method][c][batch].gpu_s / kr_pair_step_s(&t->sparse[method][c][batch]);
    return geomean(v, KR_PAIR_CONTEXTS);
}

static double energy_gain(const kr_pair_point *p) { return p->gpu_j / kr_pair_token_j(p); }

/* ---- shares (3.2) ---- */

static uint32_t share_claims(const pair_room *r, kr_claim *cs, uint32_t n)
{
    kr_claim *c = kr_claim_add(cs, &n, "D-2",
                               "share of memory processing in sparse attention's step, 4K tokens",
                               "1 to 11 %", 1, 11, NAN, "%",
                               "the dense part of a step is on the roofline here; in the paper it runs in "
                               "unoptimised serving code");

    for (int m = 0; m < KR_PAIR_METHODS; m++)
        kr_claim_value(c, 100 * r->tables->sparse[m][0][0].memory_share);
    c = kr_claim_add(cs, &n, "D-2", "the same, 1M tokens", "22 to 81 %", 22, 81, NAN, "%", KERNEL_CAUSE);
    for (int m = 0; m < KR_PAIR_METHODS; m++)
        kr_claim_value(c, 100 * r->tables->sparse[m][KR_PAIR_CONTEXTS - 1][0].memory_share);
    return n;
}

/* ---- speed (6.2) ---- */

static uint32_t kernel_claims(const pair_room *r, kr_claim *cs, uint32_t n)
{
    static const struct {
        const char *id, *text, *paper;
        int method;
        double low, high;
    } rows[] = {
        {"D-10", "kernels of SeerAttention-R, top-k, 4K to 1M tokens", "1.8 to 2.2", SEER_TOPK, 1.8, 2.2},
        {"D-10", "kernels of SeerAttention-R, threshold", "2.6 to 4.9", SEER_THRESHOLD, 2.6, 4.9},
        {"D-10", "kernels of LServe", "1.2 to 5.6", LSERVE, 1.2, 5.6},
        {"D-13", "kernels of DSA", "1.3 to 2.2", DSA, 1.3, 2.2},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kr_claim *c = kr_claim_add(cs, &n, rows[i].id, rows[i].text, rows[i].paper, rows[i].low, rows[i].high,
                                   1, "x", KERNEL_CAUSE);

        for (int k = 0; k < KR_PAIR_CONTEXTS; k++)
            kr_claim_value(c, r->tables->sparse[rows[i].method][k][0].gpu_scan_s /
                                  r->tables->sparse[rows[i].method][k][0].pair_scan_s);
    }
    return n;
}

static uint32_t step_claims(const pair_room *r, kr_claim *cs, uint32_t n)
{
    const kr_pair_tables *t = r->tables;
    kr_claim *c = kr_claim_add(cs, &n, "D-11", "whole steps of SeerAttention-R and LServe, 4K to 1M tokens",
                               "1.04 to 1.49", 1.04, 1.49, 1, "x", KERNEL_CAUSE);

    for (int m = SEER_THRESHOLD; m < KR_PAIR_METHODS; m++)
        for (int k = 0; k < KR_PAIR_CONTEXTS; k++)
            kr_claim_value(c, t->sparse[m][k][0].gpu_s / kr_pair_step_s(&t->sparse[m][k][0]));
    c = kr_claim_add(cs, &n, "D-13", "whole steps of DSA", "1.1 to 1.2", 1.1, 1.2, 1, "x", KERNEL_CAUSE);
    for (int k = 0; k < KR_PAIR_CONTEXTS; k++)
        kr_claim_value(c, t->sparse[DSA][k][0].gpu_s / kr_pair_step_s(&t->sparse[DSA][k][0]));
    c = kr_claim_add(cs, &n, "D-12", "effective bandwidth of the scan over the GPU's SRAM", "about 5", 5, 5,
                     1, "x", "no public bandwidth of the MI210's caches was found");
    c->lost = 1;
    c = kr_claim_add(cs, &n, "D-4",
                     "context from which the pair is slower than the GPU alone, DSA and LServe", "above 1M",
                     1048, 1e9, NAN, "K tokens", KERNEL_CAUSE);
    for (int m = DSA; m <= LSERVE; m += LSERVE) {
        double from = 2097.152;

        for (int k = KR_PAIR_CONTEXTS - 1; k >= 0 && t->sparse[m][k][0].gpu_s < t->sparse[m][k][0].pair_s;
             k--)
            from = (double)kr_pair_contexts[k] * 1e-3;
        kr_claim_value(c, from);
    }
    return n;
}

static uint32_t transfer_claims(const pair_room *r, kr_claim *cs, uint32_t n)
{
    static const uint32_t segments = 16;
    const double kv = (5000 + 1024) * 28 * 2 * 4 * 128 * 2.0 / r->u55c.link_bytes_per_s * 1e3;
    kr_claim *c = kr_claim_add(cs, &n, "C.1",
                               "transfers of a DSA token and layer (its fixed part is an input here)",
                               "about 14", 14, 14, NAN, "us", "");

    kr_claim_value(c, r->tables->sparse[DSA][2][0].link_s * 1e6);
    c = kr_claim_add(cs, &n, "C.1", "transfers of MemAgent: KV of one segment, of 16 segments", "14 to 218",
                     14, 218, NAN, "ms",
                     "the paper does not say whether its range is of segments or of requests");
    kr_claim_value(c, kv);
    kr_claim_value(c, kv * segments);
    return n;
}

/* ---- batches (6.4, Table 4) ---- */

static const double table4[KR_PAIR_METHODS][KR_PAIR_BATCHES] = {
    {1.02, 1.05, 1.09, 1.14, 1.15},
    {1.12, 1.21, 1.33, 1.47, 1.60},
    {1.07, 1.15, 1.24, 1.30, 1.32},
    {1.19, 1.34, 1.51, 1.67, 1.83},
};

static uint32_t batch_claims(const pair_room *r, kr_claim *cs, uint32_t n)
{
    static const char *const texts[KR_PAIR_METHODS] = {
        "DSA over batches 1 to 32, over the paper's", "SeerAttention-R, threshold, over the paper's",
        "SeerAttention-R, top-k, over the paper's", "LServe, over the paper's"};
    static const double agent[KR_PAIR_BATCHES] = {1.85, 1.65, 0.93, 0.49, 0.13};
    kr_claim *c;

    for (int m = 0; m < KR_PAIR_METHODS; m++) {
        c = kr_claim_add(cs, &n, "Table 4", texts[m], "equal (1)", 0.9, 1.1, NAN, "x", KERNEL_CAUSE);
        for (int b = 0; b < KR_PAIR_BATCHES; b++)
            kr_claim_value(c, speedup(r->tables, m, b) / table4[m][b]);
    }
    c = kr_claim_add(cs, &n, "Table 4", "growth of the speedup from batch 1 to 32: DSA, Seer, Seer, LServe",
                     "1.13 to 1.54", 1.13, 1.54, 1, "x", KERNEL_CAUSE);
    for (int m = 0; m < KR_PAIR_METHODS; m++)
        kr_claim_value(c, speedup(r->tables, m, KR_PAIR_BATCHES - 1) / speedup(r->tables, m, 0));
    c = kr_claim_add(
        cs, &n, "Table 4", "MemAgent over batches 1 to 32, over the paper's", "equal (1)", 0.9, 1.1, NAN, "x",
        "1.85 over a GPU that takes 16.6 ms a token needs 9.2 ms a token on the U55C, 3.8 GB at 414 GB/s: "
        "weights of 4 bits, which the paper does not state; see the run with them");
    for (int b = 0; b < KR_PAIR_BATCHES; b++)
        kr_claim_value(c, r->tables->agent_speedup[b] / agent[b]);
    c = kr_claim_add(cs, &n, "D-4", "MemAgent: batches at which the pair is slower than the GPU alone",
                     "4 and up", 4, 4, NAN, "at once", "as above, and no rate of its decode kernel is given");
    for (int b = 0; b < KR_PAIR_BATCHES && c->values == 0; b++)
        if (r->tables->agent_speedup[b] < 1)
            kr_claim_value(c, kr_pair_batches[b]);
    return n;
}

/* ---- energy (6.3, Table 3) ---- */

static uint32_t energy_claims(const pair_room *r, kr_claim *cs, uint32_t n)
{
    static const double of[KR_PAIR_METHODS] = {1.61, 1.14, 1.11, 1.43};
    static const char *const texts[KR_PAIR_METHODS] = {
        "energy of a token, geometric mean: DSA", "the same: SeerAttention-R, threshold",
        "the same: SeerAttention-R, top-k", "the same: LServe"};
    static const char *const papers[KR_PAIR_METHODS] = {"1.61", "1.14", "1.11", "1.43"};
    static const char ENERGY_CAUSE[] = "power is TDP or idle here, the paper's measured; with the GPU's "
                                       "kernel times as measured it follows them";

    for (int m = 0; m < KR_PAIR_METHODS; m++) {
        double v[KR_PAIR_CONTEXTS];

        for (int c = 0; c < KR_PAIR_CONTEXTS; c++)
            v[c] = energy_gain(&r->tables->sparse[m][c][0]);
        kr_claim_value(
            kr_claim_add(cs, &n, "Table 3", texts[m], papers[m], of[m], of[m], 1, "x", ENERGY_CAUSE),
            geomean(v, KR_PAIR_CONTEXTS));
    }
    kr_claim_value(kr_claim_add(cs, &n, "Table 3", "energy of a MemAgent request",
                                "4.66 (13662 / 3202 is 4.27)", 4.27, 4.66, 1, "x", "as MemAgent's speed"),
                   r->tables->agent_energy);
    return n;
}

/* ---- what follows from the paper's own figures ---- */

static double amdahl(double share, double kernels) { return 1 / (1 - share + share / kernels); }

static uint32_t own_figure_claims(kr_claim *cs, uint32_t n)
{
    kr_claim *c = kr_claim_add(cs, &n, "D-14",
                               "single-stage RAG at 20M documents, from shares of 40 to 61 % and "
                               "kernels of 5.1 to 6.6",
                               "up to 1.47 to 1.84", 1.47, 1.84, 1, "x", CONSISTENT);

    kr_claim_value(c, amdahl(0.40, 5.1));
    kr_claim_value(c, amdahl(0.61, 6.6));
    c = kr_claim_add(cs, &n, "D-15",
                     "memory as context: share that 1.3 to 1.6 with kernels of 3.1 to 4.0 imply",
                     "no figure in the text", NAN, NAN, NAN, "%", CONSISTENT);
    kr_claim_value(c, 100 * (1 - 1 / 1.3) / (1 - 1 / 3.1));
    kr_claim_value(c, 100 * (1 - 1 / 1.6) / (1 - 1 / 4.0));
    c = kr_claim_add(cs, &n, "D-16",
                     "MemAgent: speedup that a decode share of 97 % and 1.85 imply for its kernel",
                     "no figure in the text", NAN, NAN, NAN, "x", CONSISTENT);
    kr_claim_value(c, 0.97 / (1 / 1.85 - 0.03));
    c = kr_claim_add(cs, &n, "D-19",
                     "KV cache of 1M tokens of GPT-OSS-120B: 36 layers, 8 heads of 64, BF16, GiB", "69 (GB)",
                     69, 69, NAN, "GiB", "");
    kr_claim_value(c, 36 * 8 * 64 * 2 * 2 * 1e6 / 1073741824.0);
    return n;
}

/* ---- intensities (Table 2) ---- */

static uint32_t intensity_claims(const pair_room *r, kr_claim *cs, uint32_t n)
{
    static const struct {
        const char *text, *paper;
        double low, high;
    } rows[3] = {{"FLOPs a byte of sparse attention: prepare (DSA's projection)", "10 to 100", 10, 100},
                 {"the same: relevancy (DSA, Seer, Seer, LServe)", "1 to 10", 1, 10},
                 {"the same: apply", "10 to 100", 10, 100}};

    for (int k = 0; k < 3; k++) {
        kr_claim *c = kr_claim_add(
            cs, &n, "Table 2", rows[k].text, rows[k].paper, rows[k].low, rows[k].high, NAN, "FLOP/B",
            "orders of magnitude over methods there; DSA scores with 64 heads that share a "
            "key (128 FLOP/B, as the KARAT paper has it), prepare at batch 1 reads its "
            "weights for one row, GQA attends at the group's size");

        for (int m = 0; m < KR_PAIR_METHODS; m++)
            if (isfinite(r->tables->intensity[m][k]))
                kr_claim_value(c, r->tables->intensity[m][k]);
    }
    return n;
}

uint32_t kr_pair_claims(const pair_room *r, kr_claim claims[KR_CLAIMS_MAX])
{
    uint32_t n = 0;

    n = share_claims(r, claims, n);
    n = kernel_claims(r, claims, n);
    n = step_claims(r, claims, n);
    n = transfer_claims(r, claims, n);
    n = batch_claims(r, claims, n);
    n = energy_claims(r, claims, n);
    n = own_figure_claims(claims, n);
    return intensity_claims(r, claims, n);
}
