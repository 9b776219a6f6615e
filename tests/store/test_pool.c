/* A pool's accounts against a naive model under random operations; a freed page cannot be freed or
 * held again through an old handle; the oldest cached page gives way first. */
#include "store/pool.h"
#include "tests/test.h"

enum { TOTAL = 20, HOLDS = 200 };

static kr_page_state state_of[TOTAL];
static uint8_t memory[TOTAL];

/* Pitfall K-19: freed twice, by two features that both think they own the page. */
static void double_free_is_refused(void **unused)
{
    kr_pool pool;
    kr_page_id id, other;
    uint32_t evicted;
    kr_err err = {0};

    (void)unused;
    kr_pool_init(&pool, 3, 1, memory, 1, TOTAL, state_of);
    assert_int_equal(kr_pool_take(&pool, &id, &evicted, &err), KR_OK);
    assert_int_equal(kr_pool_release(&pool, id, &err), KR_OK);
    assert_int_equal(kr_pool_release(&pool, id, &err), KR_E_STALE);
    assert_non_null(strstr(err.text, "device 3"));
    assert_int_equal(pool.used, 0);
    assert_int_equal(kr_pool_take(&pool, &other, &evicted, &err), KR_OK);
    assert_int_equal(other.page, id.page); /* the same slot lives again: the old handle must not free it */
    assert_int_equal(kr_pool_release(&pool, id, &err), KR_E_STALE);
    assert_int_equal(kr_pool_hold(&pool, id, &err), KR_E_STALE);
    assert_int_equal(pool.used, 1);
    assert_int_equal(kr_pool_release(&pool, (kr_page_id){.page = TOTAL, .generation = 1}, &err), KR_E_STALE);
    assert_int_equal(kr_pool_release(&pool, other, &err), KR_OK);
}

static void oldest_cached_page_gives_way(void **unused)
{
    kr_pool pool;
    kr_page_id id[TOTAL], next;
    uint32_t evicted;

    (void)unused;
    kr_pool_init(&pool, 0, 0, memory, 1, TOTAL, state_of);
    for (uint32_t i = 0; i < TOTAL; i++) {
        assert_int_equal(kr_pool_take(&pool, &id[i], &evicted, NULL), KR_OK);
        kr_pool_name(&pool, id[i].page, 100 + i);
    }
    assert_int_equal(kr_pool_take(&pool, &next, &evicted, NULL), KR_E_FULL);
    for (uint32_t i = TOTAL; i-- > 0;) /* the last page first: the oldest in the cache */
        assert_int_equal(kr_pool_release(&pool, id[i], NULL), KR_OK);
    assert_int_equal(pool.cached, TOTAL);
    assert_int_equal(kr_pool_hold(&pool, id[TOTAL - 2], NULL), KR_OK); /* used again: not to be evicted */
    for (uint32_t i = TOTAL; i-- > 0;) {
        if (i == TOTAL - 2)
            continue;
        assert_int_equal(kr_pool_take(&pool, &next, &evicted, NULL), KR_OK);
        assert_int_equal(evicted, 100 + i);
        assert_int_equal(kr_pool_hold(&pool, id[i], NULL), KR_E_STALE);
    }
    assert_int_equal(pool.cached, 0);
    assert_int_equal(pool.used, TOTAL);
    assert_int_equal(kr_pool_take(&pool, &next, &evicted, NULL), KR_E_FULL);
}

static void accounts_agree_with_a_model(void **unused)
{
    kr_pool pool;
    kr_page_id held[HOLDS];
    uint32_t holds = 0, evicted, holders[TOTAL] = {0};
    bool named[TOTAL] = {false};
    kr_rng rng = test_rng("accounts_agree_with_a_model");

    (void)unused;
    kr_pool_init(&pool, 0, 0, memory, 1, TOTAL, state_of);
    for (uint32_t n = 0; n < 20000; n++) {
        const uint32_t pick = holds > 0 ? (uint32_t)kr_rng_below(&rng, holds) : 0;
        uint32_t used = 0, cached = 0;

        switch (kr_rng_below(&rng, 4)) {
        case 0:
            if (holds == HOLDS || kr_pool_take(&pool, &held[holds], &evicted, NULL) != KR_OK)
                break;
            assert_int_equal(holders[held[holds].page], 0);
            assert_true((evicted != KR_NO_NAME) == named[held[holds].page]);
            named[held[holds].page] = false;
            holders[held[holds++].page] = 1;
            break;
        case 1:
            if (holds == 0 || holds == HOLDS)
                break;
            assert_int_equal(kr_pool_hold(&pool, held[pick], NULL), KR_OK);
            held[holds++] = held[pick];
            holders[held[pick].page]++;
            break;
        case 2:
            if (holds == 0)
                break;
            assert_int_equal(kr_pool_release(&pool, held[pick], NULL), KR_OK);
            holders[held[pick].page]--;
            held[pick] = held[--holds];
            break;
        default:
            if (holds == 0)
                break;
            kr_pool_name(&pool, held[pick].page, named[held[pick].page] ? KR_NO_NAME : n);
            named[held[pick].page] = !named[held[pick].page];
        }
        for (uint32_t p = 0; p < TOTAL; p++) {
            used += holders[p] > 0;
            cached += holders[p] == 0 && named[p];
        }
        assert_int_equal(pool.used, used);
        assert_int_equal(pool.cached, cached);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(double_free_is_refused),
        cmocka_unit_test(oldest_cached_page_gives_way),
        cmocka_unit_test(accounts_agree_with_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
