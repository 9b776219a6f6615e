/* Attention on a memory node, from C:
 *
 *     karat node &
 *     ./client 127.0.0.1 7420
 *
 * A "model" of two layers invents queries, keys and values. The node keeps the keys and values in F32 and
 * attends, over a prompt in chunks and then token by token; every output is compared with attention in
 * double precision, written below. Exit status 0: the largest difference is what F32 explains. */
#include <karat/client.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, HEADS = 8, KV_HEADS = 2, DIM = 64, PROMPT = 300, CHUNK = 100, TOKENS = 320 };

static float query[LAYERS][TOKENS][HEADS][DIM];
static float key[LAYERS][TOKENS][KV_HEADS][DIM], value[LAYERS][TOKENS][KV_HEADS][DIM];
static float output[CHUNK][HEADS][DIM];

static void check(karat_status status, const karat_error *error)
{
    if (status == KARAT_OK)
        return;
    fprintf(stderr, "client: %s: %s\n", karat_status_name(status), error->text);
    exit(1);
}

/* Numbers in [-1, 1). */
static void invent(float *x, size_t count)
{
    static uint64_t state = 1;

    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(state >> 40) / (1 << 23) - 1.0);
    }
}

/* softmax(q . k / sqrt(dim)) . v of one head over tokens 0..token; the largest difference from got. */
static double difference(int layer, int token, int head, const float *got)
{
    const int kv = head / (HEADS / KV_HEADS);
    double weight[TOKENS], sum = 0, out[DIM] = {0}, largest = 0;

    for (int t = 0; t <= token; t++) {
        double score = 0;
        for (int d = 0; d < DIM; d++)
            score += (double)query[layer][token][head][d] * key[layer][t][kv][d];
        sum += weight[t] = exp(score / sqrt(DIM));
    }
    for (int t = 0; t <= token; t++)
        for (int d = 0; d < DIM; d++)
            out[d] += weight[t] / sum * value[layer][t][kv][d];
    for (int d = 0; d < DIM; d++)
        largest = fmax(largest, fabs(out[d] - got[d]));
    return largest;
}

/* Tokens [from, from + count) of a layer, on the node and here. */
static double step(karat_client *client, karat_session *session, int layer, int from, int count, int prefill)
{
    const karat_attend_item item = {
        .session = session,
        .tokens = (uint32_t)count,
        .prefill = (uint32_t)prefill,
        .query = {.data = query[layer][from], .dtype = KARAT_F32},
        .key = {.data = key[layer][from], .dtype = KARAT_F32},
        .value = {.data = value[layer][from], .dtype = KARAT_F32},
        .output = &output[0][0][0],
    };
    double largest = 0;
    karat_error error;

    check(karat_client_attend(client, (uint32_t)layer, &item, 1, &error), &error);
    for (int t = 0; t < count; t++)
        for (int h = 0; h < HEADS; h++)
            largest = fmax(largest, difference(layer, from + t, h, output[t][h]));
    return largest;
}

int main(int argc, char **argv)
{
    const karat_client_options options = {.struct_size = sizeof options, .timeout_ms = 5000};
    const karat_client_model model = {.struct_size = sizeof model,
                                      .layers = LAYERS,
                                      .query_heads = HEADS,
                                      .kv_heads = KV_HEADS,
                                      .key_dim = DIM,
                                      .value_dim = DIM,
                                      .kv_dtype = KARAT_F32,
                                      .context_max = TOKENS,
                                      .tokens_max = CHUNK};
    karat_client_stats stats = {.struct_size = sizeof stats};
    karat_client *client;
    karat_session *session;
    karat_error error;
    double largest = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: client HOST PORT\n");
        return 2;
    }
    invent(&query[0][0][0][0], sizeof query / sizeof(float));
    invent(&key[0][0][0][0], sizeof key / sizeof(float));
    invent(&value[0][0][0][0], sizeof value / sizeof(float));
    check(karat_client_connect(argv[1], (uint16_t)atoi(argv[2]), &options, &client, &error), &error);
    check(karat_client_configure(client, &model, &error), &error);
    check(karat_session_open(client, TOKENS, 0, &session, &error), &error);
    for (int t = 0; t < PROMPT; t += CHUNK)
        for (int layer = 0; layer < LAYERS; layer++)
            largest = fmax(largest, step(client, session, layer, t, CHUNK, 1));
    check(karat_session_end_prefill(session, &error), &error);
    for (int t = PROMPT; t < TOKENS; t++)
        for (int layer = 0; layer < LAYERS; layer++)
            largest = fmax(largest, step(client, session, layer, t, 1, 0));
    check(karat_client_ask_stats(client, &stats, &error), &error);
    printf("%d tokens in %d layers on a node of %u device(s); its pages hold %llu bytes\n"
           "largest difference from attention in double precision: %.1e\n",
           TOKENS, LAYERS, stats.devices, (unsigned long long)stats.used_bytes, largest);
    check(karat_session_close(session, &error), &error);
    karat_client_disconnect(client);
    return largest < 1e-5 ? 0 : 1;
}
