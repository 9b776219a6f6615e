/* Lists of free and of cached pages, threaded through the pages' states. */
#include "store/pool.h"

#include "base/check.h"

static void push_free(kr_pool *pool, uint32_t page)
{
    pool->state[page].older = pool->free_head;
    pool->free_head = page;
}

static void cache_add(kr_pool *pool, uint32_t page)
{
    kr_page_state *s = &pool->state[page];

    s->older = pool->newest;
    s->newer = KR_NO_PAGE;
    if (pool->newest != KR_NO_PAGE)
        pool->state[pool->newest].newer = page;
    else
        pool->oldest = page;
    pool->newest = page;
    pool->cached++;
}

static void cache_remove(kr_pool *pool, uint32_t page)
{
    const kr_page_state *s = &pool->state[page];

    if (s->older != KR_NO_PAGE)
        pool->state[s->older].newer = s->newer;
    else
        pool->oldest = s->newer;
    if (s->newer != KR_NO_PAGE)
        pool->state[s->newer].older = s->older;
    else
        pool->newest = s->older;
    pool->cached--;
}

void kr_pool_init(kr_pool *pool, uint8_t device, uint8_t group, uint8_t *base, uint64_t page_bytes,
                  uint32_t total, kr_page_state *state)
{
    *pool = (kr_pool){
        .page_bytes = page_bytes,
        .total = total,
        .device = device,
        .group = group,
        .state = state,
        .free_head = KR_NO_PAGE,
        .oldest = KR_NO_PAGE,
        .newest = KR_NO_PAGE,
    };
    pool->base = base;
    for (uint32_t page = total; page-- > 0;) {
        state[page] = (kr_page_state){.generation = 1, .name = KR_NO_NAME};
        push_free(pool, page);
    }
}

kr_status kr_pool_take(kr_pool *pool, kr_page_id *id, uint32_t *evicted, kr_err *err)
{
    uint32_t page = pool->free_head;

    *evicted = KR_NO_NAME;
    if (page != KR_NO_PAGE) {
        pool->free_head = pool->state[page].older;
    } else if (pool->oldest != KR_NO_PAGE) {
        page = pool->oldest;
        cache_remove(pool, page);
        *evicted = pool->state[page].name;
        pool->state[page].name = KR_NO_NAME;
    } else {
        return kr_fail(err, KR_E_FULL, "device %u: all %u pages of layer group %u are in use", pool->device,
                       pool->total, pool->group);
    }
    pool->state[page].generation++;
    pool->state[page].holders = 1;
    pool->used++;
    *id = (kr_page_id){page, pool->state[page].generation, pool->device, pool->group, 0};
    return KR_OK;
}

static kr_status check_alive(const kr_pool *pool, kr_page_id id, bool cached_is_alive, kr_err *err)
{
    if (id.page < pool->total && pool->state[id.page].generation == id.generation &&
        (pool->state[id.page].holders > 0 || (cached_is_alive && pool->state[id.page].name != KR_NO_NAME)))
        return KR_OK;
    return kr_fail(err, KR_E_STALE, "device %u: page %u of layer group %u was freed already (generation %u)",
                   pool->device, id.page, pool->group, id.generation);
}

kr_status kr_pool_hold(kr_pool *pool, kr_page_id id, kr_err *err)
{
    const kr_status status = check_alive(pool, id, true, err);

    if (status != KR_OK)
        return status;
    if (pool->state[id.page].holders++ == 0) {
        cache_remove(pool, id.page);
        pool->used++;
    }
    return KR_OK;
}

kr_status kr_pool_release(kr_pool *pool, kr_page_id id, kr_err *err)
{
    const kr_status status = check_alive(pool, id, false, err);
    kr_page_state *s = &pool->state[id.page];

    if (status != KR_OK)
        return status;
    if (--s->holders > 0)
        return KR_OK;
    pool->used--;
    if (s->name != KR_NO_NAME) {
        cache_add(pool, id.page);
        return KR_OK;
    }
    s->generation++; /* handles to this life end here */
    push_free(pool, id.page);
    return KR_OK;
}

void kr_pool_name(kr_pool *pool, uint32_t page, uint32_t name)
{
    kr_page_state *s = &pool->state[page];

    KR_CHECK(page < pool->total && (name == KR_NO_NAME || s->holders > 0));
    s->name = name;
    if (name == KR_NO_NAME && s->holders == 0) {
        cache_remove(pool, page);
        s->generation++;
        push_free(pool, page);
    }
}
