/* The store's pools, its table of sessions, opening and closing. */
#include "store/store.h"

#include <string.h>

#include "base/check.h"
#include "store/pages.h"

/* ---- pools ---- */

/* Pages of each group on a device. A session holds at most live pages of a windowed group, and never more
 * of it than of the unwindowed one: the devices together have a window for each of sessions_max (one whose
 * home has none left gets it on another), but none has more pages of it than of the other group. */
static void divide(const kr_geometry *g, const kr_store_config *c, uint64_t pages[KR_GROUPS_MAX])
{
    const uint64_t *bytes = g->page_bytes;

    pages[1] = 0;
    if (g->groups == 1) {
        pages[0] = c->pool_bytes / bytes[0];
        return;
    }
    const uint32_t windowed = g->window[0] != 0 && g->window[1] == 0 ? 0 : 1, whole = 1 - windowed;
    const uint64_t even = c->pool_bytes / (bytes[0] + bytes[1]);
    const uint64_t live = kr_geometry_pages(g, windowed, g->context_max) *
                          kr_ceil_div(c->sessions_max, c->devices);

    pages[windowed] = live < even ? live : even;
    pages[whole] = (c->pool_bytes - pages[windowed] * bytes[windowed]) / bytes[whole];
}

static kr_status init_device(kr_store *store, uint32_t d, const kr_store_config *c,
                             const uint64_t pages[KR_GROUPS_MAX], kr_err *err)
{
    kr_store_device *device = &store->device[d];
    kr_page_state *state = store->page_state + d * (pages[0] + pages[1]);
    const uint32_t groups = store->geometry.groups;
    uint64_t bytes = 0;

    KR_CHECK(groups <= KR_GROUPS_MAX);
    for (uint32_t g = 0; g < groups; g++)
        bytes += pages[g] * store->geometry.page_bytes[g];
    const kr_status status = kr_arena_init(&device->memory, bytes, err);
    if (status != KR_OK)
        return status;
    if (c->bind != NULL)
        c->bind(c->context, d, device->memory.base, bytes);
    if (!c->lazy) /* commit it now: a full machine shows here, not in a decode step */
        memset(device->memory.base, 0, bytes);
    bytes = 0;
    for (uint32_t g = 0; g < groups; g++) {
        kr_pool_init(&device->pool[g], (uint8_t)d, (uint8_t)g, device->memory.base + bytes,
                     store->geometry.page_bytes[g], (uint32_t)pages[g], state);
        bytes += pages[g] * store->geometry.page_bytes[g];
        state += pages[g];
    }
    return KR_OK;
}

kr_status kr_store_init(kr_store *store, const kr_geometry *geometry, const kr_store_config *c, kr_err *err)
{
    uint64_t pages[KR_GROUPS_MAX];
    kr_status status = KR_OK;

    KR_CHECK(c->devices >= 1 && c->devices <= KR_STORE_DEVICES_MAX && c->sessions_max >= 1);
    memset(store, 0, sizeof *store);
    KR_CHECK(pthread_mutex_init(&store->lock, NULL) == 0);
    store->geometry = *geometry;
    store->devices = c->devices;
    store->sessions_max = c->sessions_max;
    divide(geometry, c, pages);
    if (pages[0] == 0 || (geometry->groups > 1 && pages[1] == 0) ||
        pages[0] + pages[1] >= UINT32_MAX / c->devices) {
        status = kr_fail(err, KR_E_LIMIT,
                         "a pool of %llu bytes holds %llu pages of %llu bytes; choose another size",
                         (unsigned long long)c->pool_bytes, (unsigned long long)pages[0],
                         (unsigned long long)geometry->page_bytes[0]);
        pthread_mutex_destroy(&store->lock);
        return status;
    }
    store->slot = kr_alloc(sizeof *store->slot * c->sessions_max);
    store->page_state = kr_alloc(sizeof *store->page_state * (pages[0] + pages[1]) * c->devices);
    if (store->slot == NULL || store->page_state == NULL)
        status = kr_fail(err, KR_E_MEMORY, "no memory for the tables of %u sessions", c->sessions_max);
    for (uint32_t i = 0; i < c->sessions_max && status == KR_OK; i++)
        store->slot[i].generation = c->generation;
    if (status == KR_OK)
        status = kr_prefix_init(&store->prefix, (uint32_t)((pages[0] + pages[1]) * c->devices), err);
    for (uint32_t d = 0; d < c->devices && status == KR_OK; d++)
        status = init_device(store, d, c, pages, err);
    if (status != KR_OK)
        kr_store_free(store);
    return status;
}

void kr_store_free(kr_store *store)
{
    for (uint32_t s = 0; store->slot != NULL && s < store->sessions_max; s++)
        if (store->slot[s].session != NULL)
            kr_kv_session_free(store->slot[s].session);
    for (uint32_t d = 0; d < store->devices; d++)
        kr_arena_free(&store->device[d].memory);
    kr_prefix_free(&store->prefix);
    kr_free(store->slot);
    kr_free(store->page_state);
    pthread_mutex_destroy(&store->lock);
    memset(store, 0, sizeof *store);
}

kr_occupancy kr_store_occupancy(const kr_store *store, uint32_t device)
{
    kr_occupancy sum = {0};

    for (uint32_t g = 0; g < store->geometry.groups; g++) {
        const kr_pool *pool = &store->device[device].pool[g];
        sum.total += pool->total;
        sum.used += pool->used;
        sum.cached += pool->cached;
        sum.reserved += pool->reserved;
    }
    return sum;
}

/* ---- sessions ---- */

void kr_kv_session_free(kr_kv_session *session)
{
    for (uint32_t g = 0; g < KR_GROUPS_MAX; g++) {
        kr_free(session->group[g].id);
        kr_free(session->group[g].base);
        kr_free(session->group[g].device);
    }
    kr_free(session->tokens);
    kr_free(session->records);
    kr_free(session->boundaries);
    kr_free(session);
}

static void init_records(const kr_geometry *g, const kr_kv_session *session)
{
    uint8_t *at = session->records;

    for (uint32_t l = 0; l < g->layers; l++) {
        kr_record_header header = {
            .magic = KR_RECORD_MAGIC,
            .version = KR_RECORD_VERSION,
            .method_version = g->method[l]->version,
            .layer = l,
            .body_bytes = g->plan[l].record_body_bytes,
            .seed = session->seed,
        };
        memcpy(header.method, g->config[l].name, sizeof header.method);
        memcpy(at, &header, sizeof header);
        at += kr_geometry_record_bytes(g, l);
    }
}

kr_kv_session *kr_kv_session_new(const kr_geometry *g, uint64_t tokens_max, uint64_t seed)
{
    kr_kv_session *s = kr_alloc(sizeof *s);
    const uint64_t pages = kr_ceil_div(tokens_max, KR_PAGE_TOKENS);
    bool whole = s != NULL;

    if (s == NULL)
        return NULL;
    s->tokens_max = tokens_max;
    s->seed = seed;
    s->boundary_capacity = 16;
    for (uint32_t i = 0; i < g->groups; i++) {
        kr_kv_session_group *p = &s->group[i];
        p->capacity = pages;
        p->id = kr_alloc(sizeof *p->id * pages);
        p->base = kr_alloc(sizeof *p->base * pages);
        p->device = kr_alloc(sizeof *p->device * pages);
        whole = whole && p->id != NULL && p->base != NULL && p->device != NULL;
    }
    s->tokens = kr_alloc(sizeof *s->tokens * g->layers);
    s->records = kr_alloc(g->record_bytes);
    s->boundaries = kr_alloc(sizeof *s->boundaries * s->boundary_capacity);
    if (!whole || s->tokens == NULL || s->records == NULL || s->boundaries == NULL) {
        kr_kv_session_free(s);
        return NULL;
    }
    init_records(g, s);
    s->boundaries[s->boundary_count++] = (kr_boundary){.first_token = 0, .is_prefill = 1};
    return s;
}

/* Whole pages of the request's prefix that every group still has, and the device of the first. */
static uint64_t find_prefix(const kr_store *store, const kr_open_request *r, uint32_t *device)
{
    const kr_geometry *g = &store->geometry;
    uint64_t chain = 0;

    *device = UINT32_MAX;
    if (!g->sharable)
        return 0;
    while (chain < r->prefix_pages && (chain + 1) * KR_PAGE_TOKENS <= r->tokens_max &&
           kr_prefix_page(store, r->prefix, chain) != KR_NO_NAME)
        chain++;
    for (; chain > 0; chain--) {
        bool whole = true;

        for (uint32_t i = 0; i < g->groups; i++)
            for (uint64_t p = kr_geometry_first_page(g, i, chain * KR_PAGE_TOKENS); p < chain && whole; p++)
                whole = store->prefix.entry[kr_prefix_page(store, r->prefix, p)].present >> i & 1;
        if (whole)
            break;
    }
    if (chain > 0)
        *device = store->prefix.entry[kr_prefix_page(store, r->prefix, chain - 1)].page[0].device;
    return chain;
}

/* Lock held. A free slot takes the session. */
static kr_status enter(kr_store *store, kr_kv_session *s, uint64_t client, kr_err *err)
{
    for (uint32_t i = 0; i < store->sessions_max; i++) {
        kr_kv_session_slot *slot = &store->slot[i];
        if (slot->session != NULL)
            continue;
        slot->generation++;
        slot->session = s;
        s->handle = (uint64_t)slot->generation << 32 | (i + 1);
        s->client = client;
        store->sessions++;
        return KR_OK;
    }
    return kr_fail(err, KR_E_FULL, "all %u sessions of the node are open", store->sessions_max);
}

kr_status kr_store_open(kr_store *store, const kr_open_request *r, const kr_store_policy *policy,
                        kr_kv_session **session, kr_err *err)
{
    uint32_t prefix_device;
    kr_kv_session *s;

    if (r->tokens_max > store->geometry.context_max)
        return kr_fail(err, KR_E_LIMIT, "session of %llu tokens; the node is configured for %llu",
                       (unsigned long long)r->tokens_max, (unsigned long long)store->geometry.context_max);
    s = kr_kv_session_new(&store->geometry, r->tokens_max, r->seed);
    if (s == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for the page table of a session of %llu tokens",
                       (unsigned long long)r->tokens_max);
    pthread_mutex_lock(&store->lock);
    const uint64_t shared = find_prefix(store, r, &prefix_device);
    s->home = policy->place(policy->context, r->tokens_max, prefix_device, shared * KR_PAGE_TOKENS);
    kr_status status = kr_pages_check_home(store, s, err);
    if (status == KR_OK)
        status = kr_pages_adopt(store, s, r->prefix, shared, err);
    if (status == KR_OK)
        status = kr_pages_promise(store, s, policy, err);
    if (status == KR_OK)
        status = enter(store, s, r->client, err);
    if (status != KR_OK)
        kr_pages_give_back(store, s);
    else
        store->prefix_hits_tokens += shared * KR_PAGE_TOKENS;
    pthread_mutex_unlock(&store->lock);
    if (status != KR_OK) {
        kr_kv_session_free(s);
        return status;
    }
    for (uint32_t l = 0; l < store->geometry.layers; l++)
        s->tokens[l] = shared * KR_PAGE_TOKENS;
    *session = s;
    return KR_OK;
}

/* Lock held. NULL for a handle of no session, of another life, or of another client. */
static kr_kv_session *look_up(const kr_store *store, uint64_t handle, uint64_t client)
{
    const uint32_t number = (uint32_t)handle, generation = (uint32_t)(handle >> 32);
    kr_kv_session *s = NULL;

    if (number >= 1 && number <= store->sessions_max && store->slot[number - 1].generation == generation)
        s = store->slot[number - 1].session;
    return s != NULL && s->client == client ? s : NULL;
}

kr_status kr_store_find(kr_store *store, uint64_t handle, uint64_t client, kr_kv_session **session,
                        kr_err *err)
{
    pthread_mutex_lock(&store->lock);
    kr_kv_session *found = look_up(store, handle, client);
    pthread_mutex_unlock(&store->lock);
    if (found == NULL)
        return kr_fail(err, KR_E_NOT_FOUND, "no open session with handle %#llx on this connection",
                       (unsigned long long)handle);
    *session = found;
    return KR_OK;
}

uint32_t kr_store_home(kr_store *store, uint64_t handle, uint64_t client)
{
    pthread_mutex_lock(&store->lock);
    const kr_kv_session *s = look_up(store, handle, client);
    const uint32_t home = s != NULL ? s->home : UINT32_MAX;
    pthread_mutex_unlock(&store->lock);
    return home;
}

kr_kv_session *kr_store_session_at(kr_store *store, uint32_t slot, uint64_t client)
{
    pthread_mutex_lock(&store->lock);
    kr_kv_session *s = slot < store->sessions_max ? store->slot[slot].session : NULL;
    if (s != NULL && s->client != client)
        s = NULL;
    pthread_mutex_unlock(&store->lock);
    return s;
}

uint32_t kr_store_generation(const kr_store *store)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < store->sessions_max; i++)
        most = store->slot[i].generation > most ? store->slot[i].generation : most;
    return most;
}

void kr_store_close(kr_store *store, kr_kv_session *session)
{
    pthread_mutex_lock(&store->lock);
    kr_kv_session_slot *slot = &store->slot[(uint32_t)session->handle - 1];
    KR_CHECK(slot->session == session);
    slot->session = NULL;
    store->sessions--;
    kr_pages_give_back(store, session);
    pthread_mutex_unlock(&store->lock);
    kr_kv_session_free(session);
}
