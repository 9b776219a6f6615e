/* CONFIGURE: what every session of the node is like.
 *
 * One configuration at a time serves all clients. It stays while a session is open; a client whose own
 * fits it works with it, another is refused. An idle node takes the next client's, and those that knew
 * the one before have to ask again before they open a session. */
#include <stdio.h>
#include <string.h>

#include "node/state.h"

enum { WORKSPACE_AIM = 32 << 20 /* bytes of a wave, when one row needs less */ };

static kr_status read_layer(kr_geometry *g, const kr_msg_configure *c, const kr_msg_layer *layer, uint32_t l,
                            kr_err *err)
{
    kr_method_config *config = &g->config[l];
    const kr_method *method;
    kr_status status;

    memcpy(config, layer->method, sizeof *config);
    if (memchr(config->name, 0, sizeof config->name) == NULL || config->reserved != 0)
        return kr_fail(err, KR_E_FORMAT, "CONFIGURE: layer %u: malformed method", l);
    status = kr_method_find(config->name, &method, err);
    if (status != KR_OK)
        return status;
    if (method->stage[KR_STAGE_ATTEND].run == NULL || method->workspace_bytes == NULL)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "layer %u: method %s can be priced, but this node cannot run it", l, method->name);
    g->method[l] = method;
    g->group_of[l] = (uint8_t)layer->group;
    g->shape[l] = (kr_attention_shape){
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .key_dim = c->key_dim,
        .value_dim = c->value_dim,
        .latent = c->latent != 0,
        .kv_dtype = (kr_dtype)c->kv_dtype,
        .softmax_scale = c->softmax_scale,
        .window = layer->window,
        .layer = l,
        .layers = c->layers,
    };
    return KR_OK;
}

static kr_status make_geometry(kr_geometry *g, const kr_msg_configure *c, const kr_msg_layer *layers,
                               kr_err *err)
{
    kr_status status = KR_OK;

    *g = (kr_geometry){.layers = c->layers,
                       .groups = c->groups,
                       .context_max = c->context_max,
                       .tokens_max = c->tokens_max,
                       .fingerprint = c->fingerprint};
    if (!(c->softmax_scale > 0.0f))
        return kr_fail(err, KR_E_FORMAT, "CONFIGURE: softmax scale %g must be positive",
                       (double)c->softmax_scale);
    for (uint32_t l = 0; l < c->layers && status == KR_OK; l++)
        status = read_layer(g, c, &layers[l], l, err);
    if (status == KR_OK)
        status = kr_geometry_complete(g, err);
    return status;
}

/* Workspace and scratch of every device, for the layer that needs most. */
static kr_status make_memory(kr_node *node, kr_err *err)
{
    const kr_geometry *g = &node->store.geometry;
    size_t row = 64, scratch = 64;
    kr_status status = KR_OK;

    for (uint32_t l = 0; l < g->layers; l++) {
        const kr_method *m = g->method[l];
        const size_t w = m->workspace_bytes(&g->plan[l], &g->config[l], &g->shape[l], 1, g->context_max);
        const size_t p = m->workspace_bytes(&g->plan[l], &g->config[l], &g->shape[l], g->tokens_max,
                                            g->context_max);
        const size_t s = m->scratch_bytes != NULL
                             ? m->scratch_bytes(&g->plan[l], &g->shape[l], g->context_max)
                             : 0;

        row = w > row ? w : row;
        row = p > row ? p : row;
        scratch = s > scratch ? s : scratch;
    }
    row = kr_align_up(row, 64);
    for (uint32_t d = 0; d < node->config.devices && status == KR_OK; d++) {
        node_device *device = &node->device[d];
        const uint64_t rows = row < WORKSPACE_AIM ? WORKSPACE_AIM / row : 1;

        device->workspace_bytes = row * (rows < g->tokens_max ? rows : g->tokens_max);
        status = node_buffer_need(&device->workspace, device->workspace_bytes, err);
        device->scratch_bytes = kr_align_up(scratch, 4096);
        if (status == KR_OK)
            status = node_buffer_need(&device->scratch,
                                      device->scratch_bytes * node->config.threads_per_device, err);
    }
    return status;
}

static void bind_pool(void *context, uint32_t device, void *memory, uint64_t bytes)
{
    const kr_node *node = context;

    if (node->cpus != NULL)
        kr_bind_memory(memory, bytes, node->cpus[device * node->config.threads_per_device]);
}

void node_unconfigure(kr_node *node)
{
    if (!node->configured)
        return;
    node->generation = kr_store_generation(&node->store);
    kr_store_free(&node->store);
    for (uint32_t d = 0; d < node->config.devices; d++) {
        node_buffer_free(&node->device[d].workspace);
        node_buffer_free(&node->device[d].scratch);
        node_pending_drop(&node->device[d], UINT64_MAX);
    }
    node->configured = false;
}

/* ---- whether a client fits the configuration there is ---- */

enum { DIFFERENCE_BYTES = 128 };

/* Methods may draw a default or a bound from the longest context; then a client of a shorter one would
 * get other results here than alone. */
static bool plan_depends_on_context(const kr_geometry *g, uint32_t l, uint64_t context_max)
{
    kr_method_plan plan = {0};

    return g->method[l]->plan(&g->config[l], &g->shape[l], context_max, &plan, NULL) != KR_OK ||
           plan.dense != g->plan[l].dense || plan.unit_tokens != g->plan[l].unit_tokens ||
           plan.selected_max != g->plan[l].selected_max;
}

static bool layers_fit(const kr_node *node, const kr_msg_configure *c, const kr_msg_layer *layers,
                       char difference[DIFFERENCE_BYTES])
{
    const kr_geometry *g = &node->store.geometry;

    for (uint32_t l = 0; l < c->layers; l++) {
        const kr_msg_layer *here = &node->layers[l];

        if (memcmp(here, &layers[l], sizeof *here) == 0) {
            if (c->context_max == g->context_max || !plan_depends_on_context(g, l, c->context_max))
                continue;
            snprintf(difference, DIFFERENCE_BYTES, "%s in contexts of %llu tokens, which it depends on",
                     g->method[l]->name, (unsigned long long)g->context_max);
        } else if (memcmp(here->method, layers[l].method, sizeof g->config[l].name) != 0) {
            snprintf(difference, DIFFERENCE_BYTES, "%s, not %.15s, in layer %u", g->method[l]->name,
                     (const char *)layers[l].method, l);
        } else if (memcmp(here->method, layers[l].method, sizeof here->method) != 0) {
            snprintf(difference, DIFFERENCE_BYTES, "%s with other options in layer %u", g->method[l]->name,
                     l);
        } else {
            snprintf(difference, DIFFERENCE_BYTES, "a window of %u in layer %u", here->window, l);
        }
        return false;
    }
    return true;
}

/* The same model and methods; contexts and messages may be smaller than those the node is made for.
 * Otherwise difference says what the node has. */
static bool fits(const kr_node *node, const kr_msg_configure *c, const kr_msg_layer *layers,
                 char difference[DIFFERENCE_BYTES])
{
    const kr_msg_configure *here = &node->configure;
    kr_msg_configure sized = *c;

    sized.context_max = here->context_max;
    sized.tokens_max = here->tokens_max;
    sized.kv_dtype = here->kv_dtype;
    /* Wire forms, without padding: equal are those whose bytes are. */
    if (memcmp((const void *)here, (const void *)&sized, sizeof sized) != 0)
        snprintf(difference, DIFFERENCE_BYTES, "another model, of %u layers with %u and %u heads of %u",
                 here->layers, here->heads, here->kv_heads, here->key_dim);
    else if (c->kv_dtype != here->kv_dtype)
        snprintf(difference, DIFFERENCE_BYTES, "%s keys and values, not %s",
                 kr_dtype_name((kr_dtype)here->kv_dtype), kr_dtype_name((kr_dtype)c->kv_dtype));
    else if (c->context_max > here->context_max)
        snprintf(difference, DIFFERENCE_BYTES, "contexts of %llu tokens, not %llu (--ctx-size)",
                 (unsigned long long)here->context_max, (unsigned long long)c->context_max);
    else if (c->tokens_max > here->tokens_max)
        snprintf(difference, DIFFERENCE_BYTES, "messages of %u tokens, not %u (--prefill-chunk)",
                 here->tokens_max, c->tokens_max);
    else
        return layers_fit(node, c, layers, difference);
    return false;
}

/* Whether the present configuration decides the answer: it fits, or others hold it. */
static bool is_settled(kr_node *node, const kr_msg_configure *c, const kr_msg_layer *layers,
                       kr_status *status, kr_err *err)
{
    char difference[DIFFERENCE_BYTES];

    *status = KR_OK;
    if (!node->configured)
        return false;
    if (fits(node, c, layers, difference))
        return true;
    pthread_mutex_lock(&node->store.lock);
    const uint32_t sessions = node->store.sessions;
    pthread_mutex_unlock(&node->store.lock);
    if (sessions == 0)
        return false;
    *status = kr_fail(err, KR_E_BUSY,
                      "the node is configured for %s; that can change when its %u open session%s closed",
                      difference, sessions, sessions == 1 ? " is" : "s are");
    return true;
}

/* configuration lock held for writing, no session open. */
static kr_status configure(kr_node *node, const kr_msg_configure *c, const kr_msg_layer *layers, kr_err *err)
{
    kr_store_config store = {
        .devices = node->config.devices,
        .sessions_max = node->config.sessions_max,
        .pool_bytes = node->config.pool_bytes,
        .bind = bind_pool,
        .context = node,
    };
    kr_geometry *g = kr_alloc(sizeof *g);
    kr_status status;

    if (g == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a configuration");
    status = make_geometry(g, c, layers, err);
    if (status == KR_OK) {
        node_unconfigure(node);
        store.generation = node->generation;
        status = kr_store_init(&node->store, g, &store, err);
    }
    kr_free(g);
    if (status != KR_OK)
        return status;
    node->configured = true;
    status = make_memory(node, err);
    if (status != KR_OK) {
        node_unconfigure(node);
        return status;
    }
    node->configure = *c;
    memcpy(node->layers, layers, c->layers * sizeof *layers);
    node->configurations++;
    return KR_OK;
}

/* The lock is taken for writing only to change something: a client that fits, or never will, does not
 * wait for a pause in the others' work. */
kr_status node_configure(kr_node *node, node_connection *connection, const kr_message *m, kr_err *err)
{
    kr_msg_layer layers[KR_MSG_LAYERS_MAX];
    kr_msg_configure c;
    kr_status status = kr_msg_configure_read(m->payload, m->header.payload_bytes, &c, layers, err);

    if (status != KR_OK)
        return status;
    pthread_rwlock_rdlock(&node->configuration);
    bool settled = is_settled(node, &c, layers, &status, err);
    if (!settled) {
        pthread_rwlock_unlock(&node->configuration);
        pthread_rwlock_wrlock(&node->configuration);
        settled = is_settled(node, &c, layers, &status, err);
    }
    if (!settled)
        status = configure(node, &c, layers, err);
    if (status == KR_OK)
        connection->configuration = node->configurations;
    pthread_rwlock_unlock(&node->configuration);
    return status == KR_OK ? node_reply(connection, m, KR_MSG_DONE, 0, NULL, 0, err) : status;
}

kr_status node_check_agreed(const kr_node *node, const node_connection *connection, kr_err *err)
{
    if (connection->configuration == node->configurations)
        return KR_OK;
    return kr_fail(err, KR_E_STALE, "%s; send CONFIGURE again",
                   connection->configuration == 0 ? "this client has not sent CONFIGURE"
                                                  : "another client has configured the idle node since");
}

kr_status node_not_configured(const node_connection *connection, const kr_message *m, kr_err *err)
{
    return kr_fail(err, connection->configuration == 0 ? KR_E_ARG : KR_E_STALE, "%s before CONFIGURE",
                   kr_msg_name((kr_msg_kind)m->header.kind));
}
