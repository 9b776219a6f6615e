/* The heap gives the same sequence as a sort by (time, order of insertion), under any mix of
 * pushes and pops; a full heap refuses and stays whole. */
#include "base/heap.h"
#include "tests/test.h"

enum { CAPACITY = 700 };

typedef struct {
    kr_heap_item live[CAPACITY];
    uint32_t count;
} naive;

/* The earliest of the list by linear search. */
static kr_heap_item naive_pop(naive *n)
{
    uint32_t least = 0;

    for (uint32_t i = 1; i < n->count; i++) {
        const kr_heap_item *a = &n->live[i], *b = &n->live[least];
        if (a->time < b->time || (a->time == b->time && a->sequence < b->sequence))
            least = i;
    }
    const kr_heap_item item = n->live[least];
    n->live[least] = n->live[--n->count];
    return item;
}

static void order_is_time_then_insertion(void **state)
{
    kr_rng rng = test_rng("heap");
    kr_heap_item items[CAPACITY];
    kr_heap heap;
    (void)state;

    for (uint64_t times = 1; times <= 100000; times *= 10) { /* 1: all equal */
        naive list = {.count = 0};
        uint64_t pushed = 0;
        kr_heap_init(&heap, items, CAPACITY);
        for (int step = 0; step < 6000; step++) {
            const bool push = list.count == 0 || (list.count < CAPACITY && kr_rng_below(&rng, 9) < 5);
            if (push) {
                const uint64_t time = kr_rng_below(&rng, times), payload = kr_rng_next(&rng);
                assert_int_equal(kr_heap_push(&heap, time, payload), KR_OK);
                list.live[list.count++] = (kr_heap_item){time, pushed++, payload};
            } else {
                kr_heap_item got;
                const kr_heap_item want = naive_pop(&list);
                assert_true(kr_heap_pop(&heap, &got));
                assert_memory_equal(&got, &want, sizeof got);
            }
            assert_int_equal(heap.count, list.count);
        }
    }
}

static void full_and_empty(void **state)
{
    kr_heap_item items[3], item = {.payload = 42};
    kr_heap heap;
    (void)state;

    kr_heap_init(&heap, items, 3);
    assert_false(kr_heap_pop(&heap, &item));
    assert_int_equal(item.payload, 42);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(kr_heap_push(&heap, UINT64_MAX - i, i), KR_OK);
    assert_int_equal(kr_heap_push(&heap, 0, 9), KR_E_FULL);
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(kr_heap_pop(&heap, &item));
        assert_int_equal(item.payload, 2 - i);
    }
    kr_heap_init(&heap, NULL, 0);
    assert_int_equal(kr_heap_push(&heap, 0, 0), KR_E_FULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_time_then_insertion),
        cmocka_unit_test(full_and_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
