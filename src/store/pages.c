/* The page tables of sessions: every page a session gets, shares, copies or gives back goes through
 * here, and with it the promise it came from. */
#include "store/pages.h"

#include <string.h>

#include "base/check.h"

static kr_pool *pool_of(kr_store *store, kr_page_id id) { return &store->device[id.device].pool[id.group]; }

uint32_t kr_prefix_page(const kr_store *store, const uint8_t *prefix, uint64_t page)
{
    kr_hash128 hash;

    memcpy(&hash, prefix + page * sizeof hash, sizeof hash);
    return kr_prefix_find(&store->prefix, hash);
}

void kr_pages_set(kr_store *store, kr_kv_session *s, uint32_t group, uint64_t page, kr_page_id id)
{
    kr_kv_session_group *p = &s->group[group];

    p->id[page] = id;
    p->base[page] = kr_pool_at(pool_of(store, id), id.page);
    p->device[page] = id.device;
    if (id.device != s->home) {
        s->spilled = true;
        store->device[id.device].spilled++;
    }
}

static void release(kr_store *store, kr_kv_session *s, uint32_t group, uint64_t page)
{
    kr_kv_session_group *p = &s->group[group];

    KR_CHECK(kr_pool_release(pool_of(store, p->id[page]), p->id[page], NULL) == KR_OK);
    if (p->id[page].device != s->home)
        store->device[p->id[page].device].spilled--;
    p->base[page] = NULL;
}

/* ---- promises ---- */

static void promise(kr_store *store, kr_kv_session *s, uint32_t device, uint32_t group, uint64_t pages)
{
    s->group[group].promised[device] += (uint32_t)pages;
    store->device[device].pool[group].reserved += (uint32_t)pages;
}

static void take_back_promises(kr_store *store, kr_kv_session *s)
{
    for (uint32_t g = 0; g < store->geometry.groups; g++)
        for (uint32_t d = 0; d < store->devices; d++) {
            store->device[d].pool[g].reserved -= s->group[g].promised[d];
            s->group[g].promised[d] = 0;
        }
}

/* Pages of a group the session may still take. Shared pages it holds are not counted on: when they
 * leave its window they do not come back to it. */
static uint64_t pages_needed(const kr_store *store, const kr_kv_session *s, uint32_t group)
{
    const kr_kv_session_group *p = &s->group[group];
    const uint64_t most = kr_geometry_pages(&store->geometry, group, s->tokens_max),
                   to_grow = p->capacity - p->count;

    return to_grow < most ? to_grow : most;
}

static uint64_t promised(const kr_store *store, const kr_kv_session *s, uint32_t group)
{
    uint64_t sum = 0;

    for (uint32_t d = 0; d < store->devices; d++)
        sum += s->group[group].promised[d];
    return sum;
}

static kr_status full(const kr_store *store, uint32_t group, uint64_t needed, kr_err *err)
{
    uint64_t total = 0, left = 0;

    for (uint32_t d = 0; d < store->devices; d++) {
        total += store->device[d].pool[group].total;
        left += kr_pool_available(&store->device[d].pool[group]);
    }
    return kr_fail(err, KR_E_FULL,
                   "session needs %llu more pages of layer group %u; %llu of %llu are left on %u devices",
                   (unsigned long long)needed, group, (unsigned long long)left, (unsigned long long)total,
                   store->devices);
}

kr_status kr_pages_check_home(const kr_store *store, const kr_kv_session *s, kr_err *err)
{
    return s->home < store->devices ? KR_OK : full(store, 0, pages_needed(store, s, 0), err);
}

/* The device with the most pages of a group left; UINT32_MAX: none has any. */
static uint32_t roomiest(const kr_store *store, uint32_t group)
{
    uint32_t best = UINT32_MAX, most = 0;

    for (uint32_t d = 0; d < store->devices; d++)
        if (kr_pool_available(&store->device[d].pool[group]) > most) {
            most = kr_pool_available(&store->device[d].pool[group]);
            best = d;
        }
    return best;
}

/* False when the devices do not have enough, part of it promised. */
static bool promise_group(kr_store *store, kr_kv_session *s, uint32_t group, const kr_store_policy *policy)
{
    uint64_t left = pages_needed(store, s, group);
    uint32_t device = s->home;

    for (uint32_t tries = 0; left > 0 && tries <= store->devices; tries++) {
        uint64_t most;

        if (tries > 0)
            device = policy->spill(policy->context, s->home);
        if (tries > 0 && device < store->devices &&
            kr_pool_available(&store->device[device].pool[group]) == 0)
            device = roomiest(store, group); /* the policy's has free pages of another group */
        if (device >= store->devices)
            return false;
        most = kr_pool_available(&store->device[device].pool[group]);
        most = most < left ? most : left;
        promise(store, s, device, group, most);
        left -= most;
    }
    return left == 0;
}

kr_status kr_pages_promise(kr_store *store, kr_kv_session *s, const kr_store_policy *policy, kr_err *err)
{
    for (uint32_t g = 0; g < store->geometry.groups; g++) {
        const uint64_t needed = pages_needed(store, s, g);

        if (!promise_group(store, s, g, policy)) {
            take_back_promises(store, s);
            return full(store, g, needed, err);
        }
    }
    return KR_OK;
}

kr_status kr_pages_take(kr_store *store, kr_kv_session *s, uint32_t group, kr_page_id *id, kr_err *err)
{
    kr_kv_session_group *p = &s->group[group];
    uint32_t device = s->home, evicted;

    for (uint32_t d = 0; p->promised[device] == 0 && d < store->devices; d++)
        device = p->promised[d] > 0 ? d : device;
    if (p->promised[device] == 0) /* a page it published left its window but is held by another session */
        return full(store, group, 1, err);
    kr_pool *pool = &store->device[device].pool[group];
    const kr_status status = kr_pool_take(pool, id, &evicted, err);
    if (status != KR_OK)
        return status;
    if (evicted != KR_NO_NAME)
        kr_prefix_drop(&store->prefix, evicted, group);
    p->promised[device]--;
    pool->reserved--;
    return KR_OK;
}

void kr_pages_give_back(kr_store *store, kr_kv_session *s)
{
    for (uint32_t g = 0; g < store->geometry.groups; g++)
        for (uint64_t n = s->group[g].count; n-- > s->group[g].first;)
            release(store, s, g, n);
    take_back_promises(store, s);
}

/* ---- growth ---- */

/* Shortest length among the layers of a group that are in use. */
static uint64_t shortest(const kr_store *store, const kr_kv_session *s, uint32_t group)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t l = 0; l < store->geometry.layers; l++)
        if (store->geometry.group_of[l] == group && s->tokens[l] != 0 && s->tokens[l] < least)
            least = s->tokens[l];
    return least == UINT64_MAX ? 0 : least;
}

/* Gives up pages wholly outside the window; each goes back to the promise it came from. */
static void drop_outside_window(kr_store *store, kr_kv_session *s, uint32_t group)
{
    kr_kv_session_group *p = &s->group[group];
    const uint64_t keep = kr_geometry_first_page(&store->geometry, group, shortest(store, s, group));

    for (; p->first < keep && p->first < p->count; p->first++) {
        const kr_page_id id = p->id[p->first];

        release(store, s, group, p->first);
        if (kr_pool_available(pool_of(store, id)) > 0 &&
            promised(store, s, group) < pages_needed(store, s, group))
            promise(store, s, id.device, group, 1);
    }
}

static bool is_private(kr_store *store, kr_page_id id)
{
    const kr_page_state *state = &pool_of(store, id)->state[id.page];
    return state->holders == 1 && state->name == KR_NO_NAME;
}

/* Replaces a shared or published page that is about to be written by a copy of its own. */
static kr_status make_writable(kr_store *store, kr_kv_session *s, uint32_t group, uint64_t page, kr_err *err)
{
    kr_kv_session_group *p = &s->group[group];
    const uint8_t *old = p->base[page];
    kr_page_id id;

    p->writable = page;
    if (is_private(store, p->id[page]))
        return KR_OK;
    const kr_status status = kr_pages_take(store, s, group, &id, err);
    if (status != KR_OK)
        return status;
    memcpy(kr_pool_at(pool_of(store, id), id.page), old, store->geometry.page_bytes[group]);
    release(store, s, group, page);
    kr_pages_set(store, s, group, page, id);
    return KR_OK;
}

/* Lock held: pages up to end exist. */
static kr_status extend(kr_store *store, kr_kv_session *s, uint32_t group, uint64_t end, kr_err *err)
{
    kr_kv_session_group *p = &s->group[group];
    kr_status status = KR_OK;

    drop_outside_window(store, s, group);
    while (p->count < end && status == KR_OK) {
        kr_page_id id = {0};

        status = kr_pages_take(store, s, group, &id, err);
        if (status != KR_OK)
            break;
        /* A page begins as zeros: nothing of its former owner can be read, saved or multiplied. */
        memset(kr_pool_at(pool_of(store, id), id.page), 0, store->geometry.page_bytes[group]);
        kr_pages_set(store, s, group, p->count++, id);
    }
    return status;
}

kr_status kr_store_grow(kr_store *store, kr_kv_session *s, uint32_t layer, uint64_t position, uint32_t count,
                        kr_err *err)
{
    const uint32_t group = store->geometry.group_of[layer];
    kr_kv_session_group *p = &s->group[group];
    const uint64_t page = position / KR_PAGE_TOKENS, end = kr_ceil_div(position + count, KR_PAGE_TOKENS);
    kr_status status = KR_OK;

    if (position + count > s->tokens_max)
        return kr_fail(err, KR_E_LIMIT, "%u tokens at position %llu: the session was opened for %llu", count,
                       (unsigned long long)position, (unsigned long long)s->tokens_max);
    if (kr_geometry_first_page(&store->geometry, group, position) < p->first)
        return kr_fail(err, KR_E_UNSUPPORTED, "layer %u: position %llu needs pages that left its window",
                       layer, (unsigned long long)position);
    if (end <= p->count && page >= p->writable)
        return KR_OK;
    pthread_mutex_lock(&store->lock);
    if (page < p->count && page < p->writable)
        status = make_writable(store, s, group, page, err);
    if (status == KR_OK && end > p->count)
        status = extend(store, s, group, end, err);
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ---- trim ---- */

static kr_status trim_check(const kr_store *store, const kr_kv_session *s, uint64_t tokens, kr_err *err)
{
    const kr_geometry *g = &store->geometry;

    if (tokens > kr_kv_session_tokens(store, s))
        return kr_fail(err, KR_E_LIMIT, "cannot cut a session of %llu tokens to %llu",
                       (unsigned long long)kr_kv_session_tokens(store, s), (unsigned long long)tokens);
    for (uint32_t i = 0; i < g->groups; i++)
        if (kr_geometry_first_page(g, i, tokens) < s->group[i].first)
            return kr_fail(err, KR_E_UNSUPPORTED,
                           "cut to %llu tokens: pages of the window there were dropped; "
                           "open a new session and fill it again",
                           (unsigned long long)tokens);
    for (uint32_t l = 0; l < g->layers; l++)
        if (g->plan[l].record_body_bytes != 0 && tokens < s->tokens[l])
            return kr_fail(err, KR_E_UNSUPPORTED, "layer %u: the index record of %s cannot be cut", l,
                           g->method[l]->name);
    return KR_OK;
}

/* The index of the unit that a cut leaves open also knows of tokens behind the cut: it counts as not
 * covered, and the node's next append makes it anew from the keys that are left. */
static void uncover(const kr_store *store, const kr_kv_session *s, uint32_t layer, uint64_t tokens)
{
    const kr_method_plan *plan = &store->geometry.plan[layer];
    kr_record_header *record = kr_kv_session_record(store, s, layer);
    const uint64_t whole = plan->page_index_bytes != 0 ? tokens - tokens % plan->unit_tokens : tokens;

    if (record->tokens_covered > whole)
        record->tokens_covered = whole;
}

/* Promises that are more, per group, after cutting to pages: those given back, and one to copy the
 * last page when it is shared. */
static uint64_t trim_promise(kr_store *store, const kr_kv_session *s, uint32_t group, uint64_t tokens)
{
    const kr_kv_session_group *p = &s->group[group];
    const uint64_t pages = kr_ceil_div(tokens, KR_PAGE_TOKENS);
    uint64_t more = p->count > pages ? p->count - pages : 0;

    if (tokens % KR_PAGE_TOKENS != 0 && pages <= p->writable && pages > p->first && pages <= p->count)
        more += !is_private(store, p->id[pages - 1]);
    return more;
}

kr_status kr_store_trim(kr_store *store, kr_kv_session *s, uint64_t tokens, kr_err *err)
{
    const uint64_t pages = kr_ceil_div(tokens, KR_PAGE_TOKENS);
    uint64_t more[KR_GROUPS_MAX] = {0, 0};
    kr_status status = trim_check(store, s, tokens, err);

    if (status != KR_OK)
        return status;
    pthread_mutex_lock(&store->lock);
    const uint32_t groups = store->geometry.groups;
    KR_CHECK(groups <= KR_GROUPS_MAX);
    for (uint32_t g = 0; g < groups; g++) {
        uint64_t left = 0;

        more[g] = trim_promise(store, s, g, tokens);
        for (uint32_t d = 0; d < store->devices; d++)
            left += kr_pool_available(&store->device[d].pool[g]);
        for (uint64_t n = pages; n < s->group[g].count; n++) /* released pages nobody else holds */
            left += pool_of(store, s->group[g].id[n])->state[s->group[g].id[n].page].holders == 1;
        if (left < more[g])
            status = full(store, g, more[g], err);
    }
    for (uint32_t g = 0; g < groups && status == KR_OK; g++) {
        kr_kv_session_group *p = &s->group[g];

        while (p->count > pages)
            release(store, s, g, --p->count);
        for (uint32_t i = 0; more[g] > 0 && i < store->devices; i++) {
            const uint32_t d = i == 0 ? s->home : i <= s->home ? i - 1 : i;
            const uint64_t room = kr_pool_available(&store->device[d].pool[g]);
            const uint64_t taken = room < more[g] ? room : more[g];

            promise(store, s, d, g, taken);
            more[g] -= taken;
        }
        p->writable = p->writable < pages ? p->writable
                                          : pages; /* a cut shared page is copied when written */
    }
    pthread_mutex_unlock(&store->lock);
    if (status != KR_OK)
        return status;
    for (uint32_t l = 0; l < store->geometry.layers; l++) {
        if (tokens < s->tokens[l])
            uncover(store, s, l, tokens);
        s->tokens[l] = s->tokens[l] < tokens ? s->tokens[l] : tokens;
    }
    while (s->boundary_count > 1 && s->boundaries[s->boundary_count - 1].first_token >= tokens)
        s->boundary_count--;
    return KR_OK;
}

/* ---- publishing ---- */

static void publish_page(kr_store *store, kr_kv_session *s, const uint8_t *prefix, uint64_t page)
{
    uint32_t entry = kr_prefix_page(store, prefix, page);
    kr_hash128 hash;

    memcpy(&hash, prefix + page * sizeof hash, sizeof hash);
    for (uint32_t g = 0; g < store->geometry.groups; g++) {
        kr_kv_session_group *p = &s->group[g];

        if (page < p->first || pool_of(store, p->id[page])->state[p->id[page].page].name != KR_NO_NAME)
            continue;
        if (entry == KR_NO_NAME)
            entry = kr_prefix_add(&store->prefix, hash);
        if (entry == KR_NO_NAME || (store->prefix.entry[entry].present >> g & 1) != 0)
            continue; /* another session's equal page is known already */
        store->prefix.entry[entry].page[g] = p->id[page];
        store->prefix.entry[entry].present |= (uint8_t)(1u << g);
        kr_pool_name(pool_of(store, p->id[page]), p->id[page].page, entry);
    }
}

void kr_store_publish(kr_store *store, kr_kv_session *s, const uint8_t *prefix, uint32_t pages)
{
    if (!store->geometry.sharable)
        return;
    for (uint32_t l = 0; l < store->geometry.layers; l++) /* sealed in every layer */
        pages = s->tokens[l] / KR_PAGE_TOKENS < pages ? (uint32_t)(s->tokens[l] / KR_PAGE_TOKENS) : pages;
    pthread_mutex_lock(&store->lock);
    for (uint64_t n = 0; n < pages; n++)
        publish_page(store, s, prefix, n);
    for (uint32_t g = 0; g < store->geometry.groups; g++)
        s->group[g].writable = s->group[g].writable > pages ? s->group[g].writable : pages;
    pthread_mutex_unlock(&store->lock);
}

/* ---- sharing ---- */

kr_status kr_pages_adopt(kr_store *store, kr_kv_session *s, const uint8_t *prefix, uint64_t pages,
                         kr_err *err)
{
    for (uint32_t g = 0; g < store->geometry.groups; g++) {
        kr_kv_session_group *p = &s->group[g];

        p->first = p->count = kr_geometry_first_page(&store->geometry, g, pages * KR_PAGE_TOKENS);
        memset(p->device, (int)s->home, p->first);
        for (; p->count < pages; p->count++) {
            const kr_page_id id = store->prefix.entry[kr_prefix_page(store, prefix, p->count)].page[g];

            /* A cached page counts as free until somebody holds it: it may be promised away. */
            if (pool_of(store, id)->state[id.page].holders == 0 && kr_pool_available(pool_of(store, id)) == 0)
                return full(store, g, pages, err);
            KR_CHECK(kr_pool_hold(pool_of(store, id), id, NULL) == KR_OK);
            kr_pages_set(store, s, g, p->count, id);
        }
        p->writable = pages;
    }
    return KR_OK;
}

kr_status kr_pages_begin_at(kr_store *store, kr_kv_session *s, uint32_t group, uint64_t first, uint64_t end,
                            kr_err *err)
{
    kr_kv_session_group *p = &s->group[group];

    KR_CHECK(p->count == 0 && first <= end && end <= p->capacity);
    pthread_mutex_lock(&store->lock);
    memset(p->device, (int)s->home, first);
    p->first = p->count = first;
    const kr_status status = extend(store, s, group, end, err);
    pthread_mutex_unlock(&store->lock);
    return status;
}
