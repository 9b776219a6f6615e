/* A client of a running memory node: connection, configuration, statistics.
 *
 *   connected --configure--> configured --configure, no session open--> configured anew
 *
 * Liveness, deadlines and request numbers are kr_peer's, as for the engine. */
#include "api/client.h"

#include <math.h>
#include <string.h>

#include "method/native.h"
#include "ops/attend_rows.h"
#include "wire/ucx.h"
#include "wire/ucx_process.h"

enum { TIMEOUT_MS = 10000, SPIN_US = 50 };
/* Of the structs in the first version of ABI 0. */
enum { OPTIONS_BYTES = 40, MODEL_BYTES = 72, PLAN_BYTES = 28, STATS_BYTES = 80 };

_Static_assert(sizeof(karat_client_options) >= OPTIONS_BYTES && sizeof(karat_client_model) >= MODEL_BYTES &&
                   sizeof(karat_client_plan) >= PLAN_BYTES && sizeof(karat_client_stats) >= STATS_BYTES,
               "they grow at their ends");

#define MESSAGE_BYTES_MAX ((uint64_t)256 << 20)
#define NS_PER_MS ((uint64_t)1000000)

_Static_assert(KARAT_TRANSPORT_SHM == KR_PATH_SHM && KARAT_TRANSPORT_TCP == KR_PATH_TCP, "one list of bits");

/* A program that loads the library keeps its signals. */
__attribute__((constructor)) static void loaded(void) { kr_ucx_tame(); }

/* ---- connection ---- */

static kr_status read_options(const karat_client_options *given, karat_client_options *o, kr_err *err)
{
    *o = (karat_client_options){.struct_size = sizeof *o};
    if (given != NULL) {
        kr_status status = kr_api_struct(given, o, sizeof *o, OPTIONS_BYTES, "karat_client_options", err);
        if (status != KR_OK)
            return status;
    }
    if (o->transports > KR_PATH_ALL)
        return kr_fail(err, KR_E_ARG, "transports %#x: a set of 1 (shared memory) and 2 (TCP)",
                       o->transports);
    if (o->key == NULL && o->key_bytes != 0)
        return kr_fail(err, KR_E_ARG, "key is null, key_bytes is %zu", o->key_bytes);
    if (o->message_bytes_max > KR_MSG_PAYLOAD_MAX)
        return kr_fail(err, KR_E_LIMIT, "message_bytes_max %llu; at most %llu",
                       (unsigned long long)o->message_bytes_max, (unsigned long long)KR_MSG_PAYLOAD_MAX);
    o->timeout_ms = o->timeout_ms != 0 ? o->timeout_ms : TIMEOUT_MS;
    o->spin_us = o->spin_us != 0 ? o->spin_us : SPIN_US;
    o->message_bytes_max = o->message_bytes_max != 0 ? o->message_bytes_max : MESSAGE_BYTES_MAX;
    return KR_OK;
}

static kr_status connect_to(const char *host, uint16_t port, const karat_client_options *o,
                            kr_engine_node *node, kr_err *err)
{
    static const kr_ucx_transport transport[] = {KR_UCX_AUTO, KR_UCX_SHM, KR_UCX_TCP, KR_UCX_AUTO};
    const kr_ucx_config config = {.host = host,
                                  .port = port,
                                  .transport = transport[o->transports],
                                  .key = o->key,
                                  .key_bytes = o->key_bytes,
                                  .payload_max = o->message_bytes_max,
                                  .timeout_ns = o->timeout_ms * NS_PER_MS,
                                  .spin_us = o->spin_us,
                                  .clock = &kr_clock_system};
    *node = (kr_engine_node){0};
    return kr_ucx_connect(&config, &node->welcome, &node->link, err);
}

static kr_status client_connect(const char *host, uint16_t port, const karat_client_options *given,
                                karat_client **out, kr_err *err)
{
    karat_client_options o;
    kr_engine_node node;
    kr_status status = KR_OK;

    if (host == NULL || port == 0 || out == NULL)
        return kr_fail(err, KR_E_ARG, "connect needs a host, a port from 1 and a place for the client");
    status = read_options(given, &o, err);
    if (status != KR_OK)
        return status;
    karat_client *client = kr_alloc(sizeof *client);
    if (client == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a client");
    status = connect_to(host, port, &o, &node, err);
    if (status != KR_OK) {
        kr_free(client);
        return status;
    }
    status = kr_peer_init(&client->peer, &node, &kr_clock_system, o.timeout_ms * NS_PER_MS, err);
    if (status == KR_OK) /* a node that takes no more clients says so now */
        status = kr_peer_ask_stats(&client->peer, err);
    if (status != KR_OK) {
        node.link->close(node.link);
        kr_free(client);
        return status;
    }
    client->message_bytes_max = o.message_bytes_max < node.welcome.payload_max ? o.message_bytes_max
                                                                               : node.welcome.payload_max;
    *out = client;
    return KR_OK;
}

karat_status karat_client_connect(const char *host, uint16_t port, const karat_client_options *options,
                                  karat_client **client, karat_error *error)
{
    kr_err err;
    return kr_api_end(client_connect(host, port, options, client, &err), &err, error);
}

void karat_client_disconnect(karat_client *client)
{
    uint64_t sequence;

    if (client == NULL)
        return;
    while (client->sessions != NULL) /* the node closes them when it hears BYE */
        kr_client_free_session(client->sessions);
    (void)kr_peer_send(&client->peer, (kr_msg_header){.kind = KR_MSG_BYE}, NULL, 0, &sequence, NULL);
    client->peer.node.link->close(client->peer.node.link);
    kr_arena_free(&client->plan.rows.arena);
    kr_free(client->selected);
    kr_free(client);
}

kr_status kr_client_usable(const karat_client *client, kr_err *err)
{
    if (client == NULL)
        return kr_fail(err, KR_E_ARG, "client is null");
    if (client->peer.down.status != KR_OK)
        *err = client->peer.down;
    return client->peer.down.status;
}

/* ---- configuration ---- */

static kr_status check_model(const karat_client_model *m, kr_err *err)
{
    if (m->layers == 0 || m->layers > KR_LAYERS_MAX)
        return kr_fail(err, KR_E_LIMIT, "model of %u layers; 1 to %d", m->layers, KR_LAYERS_MAX);
    if (m->context_max == 0 || m->context_max > KR_CONTEXT_MAX)
        return kr_fail(err, KR_E_LIMIT, "context_max %llu; 1 to %llu", (unsigned long long)m->context_max,
                       (unsigned long long)KR_CONTEXT_MAX);
    if (m->tokens_max == 0 || m->tokens_max > KR_MSG_ROWS_MAX)
        return kr_fail(err, KR_E_LIMIT, "tokens_max %u; 1 to %d", m->tokens_max, KR_MSG_ROWS_MAX);
    if ((unsigned)m->kv_dtype > KARAT_BF16)
        return kr_fail(err, KR_E_ARG, "kv_dtype %d; F32, F16 or BF16", (int)m->kv_dtype);
    if (m->query_heads == 0 || m->query_heads > KR_HEADS_MAX || m->kv_heads == 0 || m->key_dim == 0 ||
        m->key_dim > KR_ATTEND_DIM_MAX || m->value_dim == 0 || m->value_dim > KR_ATTEND_DIM_MAX ||
        m->query_heads % m->kv_heads != 0)
        return kr_fail(err, KR_E_SHAPE,
                       "%u query heads over %u KV heads with keys of %u and values of %u elements; at most "
                       "%d heads, a multiple of the KV heads, and 1 to %d elements",
                       m->query_heads, m->kv_heads, m->key_dim, m->value_dim, KR_HEADS_MAX,
                       KR_ATTEND_DIM_MAX);
    if (m->latent > 1 || !(m->softmax_scale >= 0.0f) || isinf(m->softmax_scale))
        return kr_fail(err, KR_E_ARG, "latent %u (0 or 1), softmax_scale %g (positive, or 0)", m->latent,
                       (double)m->softmax_scale);
    return KR_OK;
}

static kr_status read_layer(const karat_client_layer *from, uint32_t l, kr_method_config *config, kr_err *err)
{
    const char *name = from->method != NULL ? from->method : "dense";

    if (from->shares_index > 1 || from->reserved[0] != 0 || from->reserved[1] != 0 || from->reserved[2] != 0)
        return kr_fail(err, KR_E_ARG, "layer %u: shares_index %u (0 or 1), or a reserved field is set", l,
                       from->shares_index);
    *config = (kr_method_config){.budget = from->budget,
                                 .dense_layers = from->dense_layers,
                                 .unit = from->unit,
                                 .mode = from->mode,
                                 .threshold = from->threshold,
                                 .seed = from->seed};
    memcpy(config->parameter, from->parameter, sizeof config->parameter);
    if (strlen(name) >= sizeof config->name)
        return kr_fail(err, KR_E_ARG, "layer %u: the method's name is longer than %zu characters", l,
                       sizeof config->name - 1);
    memcpy(config->name, name, strlen(name));
    return KR_OK;
}

/* The method's own word on the layer, before the node is asked. */
static kr_status plan_layer(kr_client_plan *p, const kr_method_config *config, uint32_t l, kr_err *err)
{
    const kr_msg_configure *c = &p->configure;
    const kr_attention_shape shape = {.heads = c->heads,
                                      .kv_heads = c->kv_heads,
                                      .key_dim = c->key_dim,
                                      .value_dim = c->value_dim,
                                      .latent = c->latent != 0,
                                      .kv_dtype = (kr_dtype)c->kv_dtype,
                                      .softmax_scale = c->softmax_scale,
                                      .window = p->layer[l].window,
                                      .layer = l,
                                      .layers = c->layers};
    const kr_method *method;
    kr_method_plan plan = {0};
    kr_status status = kr_method_find(config->name, &method, err);

    if (status == KR_OK)
        status = method->plan(config, &shape, c->context_max, &plan, err);
    if (status != KR_OK)
        return status;
    p->of[l] = (karat_client_plan){
        .struct_size = sizeof p->of[l],
        .lists = !plan.dense && method->lists != NULL ? method->lists(config, &shape) : 0,
        .unit_tokens = plan.unit_tokens,
        .index_query_bytes = plan.index_query_bytes,
        .index_key_bytes = plan.index_key_bytes,
        .index_owner = plan.index_owner,
    };
    if (p->of[l].lists != 0)
        p->of[l].units_max = (uint32_t)kr_ceil_div(
            plan.selected_max != 0 ? plan.selected_max : c->context_max, plan.unit_tokens);
    p->layer[l].index_owner = plan.index_owner;
    memcpy(p->layer[l].method, config, sizeof p->layer[l].method);
    return KR_OK;
}

/* dsa's parameters name the layer that owns the index. */
static kr_status set_owner(const karat_client_layer *from, uint32_t l, uint32_t *owner,
                           kr_method_config *config, kr_err *err)
{
    const bool dsa = strcmp(config->name, kr_method_dsa.name) == 0;

    if (from->shares_index != 0 && (!dsa || *owner == KR_LAYERS_MAX))
        return kr_fail(err, KR_E_ARG, "layer %u shares an index: only dsa does, after a layer with its own",
                       l);
    if (!dsa)
        return KR_OK;
    *owner = from->shares_index != 0 ? *owner : l;
    config->parameter[KR_NATIVE_OWNER] = *owner;
    return KR_OK;
}

static kr_status read_layers(kr_client_plan *p, const karat_client_layer *layer, kr_err *err)
{
    static const karat_client_layer dense = {0};
    kr_msg_configure *c = &p->configure;
    bool windows = false, whole = false;
    uint32_t owner = KR_LAYERS_MAX; /* none yet */
    kr_status status = KR_OK;

    for (uint32_t l = 0; l < c->layers && status == KR_OK; l++) {
        const karat_client_layer *from = layer != NULL ? &layer[l] : &dense;
        kr_method_config config;

        p->layer[l].window = from->window;
        windows |= from->window != 0;
        whole |= from->window == 0;
        status = read_layer(from, l, &config, err);
        if (status == KR_OK)
            status = set_owner(from, l, &owner, &config, err);
        if (status == KR_OK)
            status = plan_layer(p, &config, l, err);
    }
    c->groups = windows && whole ? 2 : 1;
    for (uint32_t l = 0; l < c->layers; l++)
        p->layer[l].group = c->groups == 2 && p->layer[l].window != 0;
    return status;
}

/* Room for the largest call; the largest message and reply must fit the link. */
static kr_status make_rows(const karat_client *client, kr_client_plan *p, kr_err *err)
{
    const kr_msg_configure *c = &p->configure;
    const uint64_t tokens = c->tokens_max, element = kr_dtype_bytes((kr_dtype)c->kv_dtype);
    const uint64_t row = tokens * sizeof(kr_msg_row), query = 4 * tokens * c->heads * c->key_dim;
    const uint64_t key = element * tokens * c->kv_heads * c->key_dim;
    const uint64_t value = c->latent != 0 ? 0 : element * tokens * c->kv_heads * c->value_dim;
    const uint64_t one = 4 * (uint64_t)(c->key_dim > c->value_dim ? c->key_dim : c->value_dim);
    const uint64_t sent = row + query + key + value + 32, got = 4 * tokens * c->heads * c->value_dim;
    uint64_t index_query = 0, index_key = 0;
    kr_client_rows *r = &p->rows;

    for (uint32_t l = 0; l < c->layers; l++) {
        const uint64_t q = tokens * p->of[l].index_query_bytes, k = tokens * p->of[l].index_key_bytes;
        index_query = q > index_query ? q : index_query;
        index_key = k > index_key ? k : index_key;
    }
    const uint64_t index = row + index_query + index_key + 32, most = sent > index ? sent : index;
    const uint64_t largest = most > got ? most : got;

    if (largest > client->message_bytes_max)
        return kr_fail(
            err, KR_E_LIMIT,
            "a call of %u tokens makes a message of %llu bytes; this client and the node take %llu: "
            "lower tokens_max",
            c->tokens_max, (unsigned long long)largest, (unsigned long long)client->message_bytes_max);
    const kr_status status = kr_arena_init(&r->arena, sent + one + index_query + index_key + 8 * 64, err);
    if (status != KR_OK)
        return status;
    r->row = kr_arena_take(&r->arena, row);
    r->query = kr_arena_take(&r->arena, query);
    r->key = kr_arena_take(&r->arena, key);
    r->value = kr_arena_take(&r->arena, value);
    r->index_query = kr_arena_take(&r->arena, index_query);
    r->index_key = kr_arena_take(&r->arena, index_key);
    r->one = kr_arena_take(&r->arena, one);
    return KR_OK;
}

kr_status kr_client_send_plan(karat_client *client, const kr_client_plan *plan, kr_err *err)
{
    const kr_msg_configure *c = &plan->configure;
    const kr_piece pieces[] = {{c, sizeof *c}, {plan->layer, c->layers * sizeof plan->layer[0]}};
    kr_message reply;
    const kr_status status = kr_peer_call(&client->peer, KR_MSG_CONFIGURE, 0, pieces, 2, KR_MSG_DONE, &reply,
                                          err);

    if (status == KR_OK)
        kr_peer_release(&client->peer, &reply);
    return status;
}

static kr_status client_configure(karat_client *client, const karat_client_model *given, kr_err *err)
{
    karat_client_model m;
    kr_client_plan p = {0};
    kr_status status = kr_client_usable(client, err);

    if (status == KR_OK)
        status = kr_api_struct(given, &m, sizeof m, MODEL_BYTES, "karat_client_model", err);
    if (status == KR_OK)
        status = check_model(&m, err);
    if (status == KR_OK && client->sessions != NULL)
        status = kr_fail(err, KR_E_BUSY, "configure comes before sessions: close those that are open");
    if (status != KR_OK)
        return status;
    p.configure = (kr_msg_configure){
        .layers = m.layers,
        .heads = m.query_heads,
        .kv_heads = m.kv_heads,
        .key_dim = m.key_dim,
        .value_dim = m.value_dim,
        .latent = m.latent,
        .kv_dtype = (uint32_t)m.kv_dtype,
        .softmax_scale = m.softmax_scale > 0.0f ? m.softmax_scale : 1.0f / sqrtf((float)m.key_dim),
        .context_max = m.context_max,
        .tokens_max = m.tokens_max,
        .fingerprint = m.fingerprint,
    };
    status = read_layers(&p, m.layer, err);
    if (status == KR_OK)
        status = make_rows(client, &p, err);
    if (status == KR_OK)
        status = kr_client_send_plan(client, &p, err);
    if (status != KR_OK) {
        kr_arena_free(&p.rows.arena);
        return status;
    }
    kr_arena_free(&client->plan.rows.arena);
    client->plan = p;
    client->configured = true;
    return KR_OK;
}

karat_status karat_client_configure(karat_client *client, const karat_client_model *model, karat_error *error)
{
    kr_err err;
    return kr_api_end(client_configure(client, model, &err), &err, error);
}

static kr_status plan_of(const karat_client *client, uint32_t layer, karat_client_plan *out, kr_err *err)
{
    karat_client_plan given;
    kr_status status = kr_api_struct(out, &given, sizeof given, PLAN_BYTES, "karat_client_plan", err);

    if (status == KR_OK && (client == NULL || !client->configured || layer >= client->plan.configure.layers))
        status = kr_fail(err, KR_E_ARG, "plan of layer %u: the client is null, not configured, or has fewer",
                         layer);
    if (status != KR_OK)
        return status;
    const uint32_t size = given.struct_size;
    given = client->plan.of[layer];
    given.struct_size = size;
    memcpy(out, &given, size < sizeof given ? size : sizeof given);
    return KR_OK;
}

karat_status karat_client_plan_of(const karat_client *client, uint32_t layer, karat_client_plan *plan,
                                  karat_error *error)
{
    kr_err err;
    return kr_api_end(plan_of(client, layer, plan, &err), &err, error);
}

/* ---- statistics ---- */

static kr_status ask_stats(karat_client *client, karat_client_stats *out, kr_err *err)
{
    karat_client_stats s = {0};
    kr_status status = kr_client_usable(client, err);

    if (status == KR_OK) /* also says whether struct_size is one */
        status = kr_api_struct(out, &s, sizeof s, STATS_BYTES, "karat_client_stats", err);
    if (status == KR_OK)
        status = kr_peer_ask_stats(&client->peer, err);
    if (status != KR_OK)
        return status;
    const kr_peer *peer = &client->peer;
    const uint32_t size = s.struct_size;
    s = (karat_client_stats){.struct_size = size,
                             .devices = peer->stats.devices,
                             .sessions = peer->stats.sessions,
                             .messages = peer->stats.messages,
                             .nan_scores = peer->stats.nan_scores,
                             .sent_bytes = peer->node.link->bytes_sent,
                             .received_bytes = peer->node.link->bytes_received,
                             .sent_messages = peer->node.link->messages_sent};
    for (uint32_t d = 0; d < peer->stats.devices; d++) {
        const kr_msg_device_stats *device = &peer->device[d];
        s.memory_bytes += device->pool_bytes;
        s.used_bytes += device->pages_used[0] * device->page_bytes[0] +
                        device->pages_used[1] * device->page_bytes[1];
        s.busy_ns = device->busy_ns > s.busy_ns ? device->busy_ns : s.busy_ns;
    }
    memcpy(out, &s, size < sizeof s ? size : sizeof s);
    return KR_OK;
}

karat_status karat_client_ask_stats(karat_client *client, karat_client_stats *stats, karat_error *error)
{
    kr_err err;
    return kr_api_end(ask_stats(client, stats, &err), &err, error);
}
