/* karat's selection on a program's own keys and values, without a model and without a node.
 *
 * Fills one layer's KV cache as an engine would hold it, [kv_head][token][dim] in F32, gives each method
 * the keys alone, lets it choose what one query should attend to, attends over those units where the
 * arrays lie, and prints what the choice kept of exact attention: its mass, and the error of the output.
 *
 *     cc select.c $(pkg-config --cflags --libs karat) -lm -o select
 *     ./select [METHOD or ./my_method.so ...] */
#include <karat/kernels.h>
#include <karat/selector.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, DIM = 64, TOKENS = 4096, BUDGET = 512 };

static float key[KV_HEADS][TOKENS][DIM], value[KV_HEADS][TOKENS][DIM];
static float query[TOKENS][HEADS][DIM]; /* prompt queries, for methods that watch them; the last is asked */
static double mass[HEADS][TOKENS];      /* exact attention of the last query */
static double exact[HEADS][DIM];

/* Sums of uniform numbers, nearly normal; the same on every machine. */
static float noise(void)
{
    static uint64_t state = 1;
    float sum = 0;

    for (int i = 0; i < 12; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(state >> 40) / (float)(1 << 24);
    }
    return sum - 6;
}

/* Keys drift, as in text; each query looks for what one earlier token said. */
static void fill_cache(void)
{
    for (int h = 0; h < KV_HEADS; h++)
        for (int t = 0; t < TOKENS; t++)
            for (int c = 0; c < DIM; c++) {
                key[h][t][c] = (t > 0 ? 0.8f * key[h][t - 1][c] : 0) + 0.6f * noise();
                value[h][t][c] = noise();
            }
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++) {
            const int seen = t * (h + 1) / 10;

            for (int c = 0; c < DIM; c++)
                query[t][h][c] = 1.5f * key[h / GROUP][seen][c] + noise();
        }
}

static void attend_exactly(void)
{
    for (int h = 0; h < HEADS; h++) {
        double largest = -HUGE_VAL, sum = 0;

        for (int t = 0; t < TOKENS; t++) {
            mass[h][t] = 0;
            for (int c = 0; c < DIM; c++)
                mass[h][t] += (double)query[TOKENS - 1][h][c] * (double)key[h / GROUP][t][c] / sqrt(DIM);
            largest = fmax(largest, mass[h][t]);
        }
        for (int t = 0; t < TOKENS; t++)
            sum += mass[h][t] = exp(mass[h][t] - largest);
        for (int t = 0; t < TOKENS; t++) {
            mass[h][t] /= sum;
            for (int c = 0; c < DIM; c++)
                exact[h][c] += mass[h][t] * (double)value[h / GROUP][t][c];
        }
    }
}

static void must(karat_status status, const karat_error *error)
{
    if (status == KARAT_OK)
        return;
    fprintf(stderr, "select: %s\n", error->text);
    exit(1);
}

/* Prompt and newest token into a sequence; returns its selection for the last query. */
static void select_units(const karat_selector_options *options, karat_selector_plan *plan, karat_lists *lists)
{
    karat_selector *selector;
    karat_sequence *sequence;
    karat_error error;
    karat_rows rows = {.struct_size = sizeof rows,
                       .prompt = 1,
                       .count = TOKENS - 1,
                       .key = key,
                       .key_token_stride = DIM,
                       .key_head_stride = (uint64_t)TOKENS * DIM};

    must(karat_selector_create(options, &selector, &error), &error);
    must(karat_selector_plan_of(selector, 0, plan, &error), &error);
    must(karat_sequence_open(selector, 0, &sequence, &error), &error);
    if (plan->needs_queries)
        rows.query = query[0][0];
    must(karat_sequence_append(sequence, 0, &rows, &error), &error);
    must(karat_sequence_end_prompt(sequence, &error), &error);
    rows.prompt = 0, rows.count = 1, rows.query = NULL;
    rows.key = key[0][TOKENS - 1];
    must(karat_sequence_append(sequence, 0, &rows, &error), &error);
    lists->lists = plan->lists;
    lists->stride = plan->units_max;
    lists->count = malloc(sizeof(uint32_t) * lists->lists);
    lists->unit = malloc(sizeof(uint32_t) * lists->lists * lists->stride);
    must(karat_sequence_select(sequence, 0, query[TOKENS - 1][0], NULL, lists, &error), &error);
    karat_selector_destroy(selector);
}

/* Prints what the lists keep. */
static void judge(const char *method, const karat_selector_plan *plan, const karat_lists *lists)
{
    float output[HEADS][DIM];
    double kept = 0, tokens = 0, wrong = 0, whole = 0;
    karat_error error;
    const karat_list_attention attention = {.struct_size = sizeof attention,
                                            .dtype = KARAT_F32,
                                            .heads = HEADS,
                                            .kv_heads = KV_HEADS,
                                            .key_dim = DIM,
                                            .value_dim = DIM,
                                            .lists = lists->lists,
                                            .unit_tokens = plan->unit_tokens,
                                            .stride = lists->stride,
                                            .tokens = TOKENS,
                                            .key = key,
                                            .key_token_stride = DIM,
                                            .key_head_stride = (uint64_t)TOKENS * DIM,
                                            .value = value,
                                            .value_token_stride = DIM,
                                            .value_head_stride = (uint64_t)TOKENS * DIM,
                                            .query = query[TOKENS - 1][0],
                                            .count = lists->count,
                                            .unit = lists->unit,
                                            .output = output[0]};

    must(karat_attend_lists(&attention, &error), &error);
    for (uint32_t h = 0; h < HEADS; h++) {
        const uint32_t list = h * lists->lists / HEADS;

        for (uint32_t i = 0; i < lists->count[list]; i++) {
            const uint64_t first = (uint64_t)lists->unit[(size_t)list * lists->stride + i] *
                                   plan->unit_tokens;

            for (uint64_t t = first; t < first + plan->unit_tokens && t < TOKENS; t++, tokens++)
                kept += mass[h][t];
        }
        for (int c = 0; c < DIM; c++) {
            wrong += pow((double)output[h][c] - exact[h][c], 2);
            whole += pow(exact[h][c], 2);
        }
    }
    printf("%-14s %5.0f of %d tokens  %5.1f %% of the attention mass  output error %6.4f  index %6.1f bytes "
           "a token\n",
           method, tokens / HEADS, TOKENS, 100 * kept / HEADS, sqrt(wrong / whole),
           (double)plan->page_index_bytes / plan->page_tokens + (double)plan->record_bytes / TOKENS);
}

static void try_method(const char *method)
{
    karat_error error;
    karat_selector_plan plan = {.struct_size = sizeof plan};
    karat_lists lists = {.struct_size = sizeof lists};
    karat_selector_options options = {.struct_size = sizeof options,
                                      .dtype = KARAT_F32,
                                      .heads = HEADS,
                                      .kv_heads = KV_HEADS,
                                      .key_dim = DIM,
                                      .value_dim = 0,
                                      .tokens_max = TOKENS,
                                      .threads = 2,
                                      .budget = BUDGET};

    if (strstr(method, ".so") != NULL)
        must(karat_method_load(method, &method, &error), &error);
    options.method = method;
    select_units(&options, &plan, &lists);
    judge(method, &plan, &lists);
    free(lists.count);
    free(lists.unit);
}

int main(int argc, char **argv)
{
    static const char *const methods[] = {"quest",  "lserve", "sparq",       "starc",
                                          "snapkv", "h2o",    "streamingllm"};

    printf("karat %s: %s\n", karat_version(), karat_kernels());
    fill_cache();
    attend_exactly();
    for (int i = 1; i < argc; i++)
        try_method(argv[i]);
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && argc == 1; i++)
        try_method(methods[i]);
    return 0;
}
