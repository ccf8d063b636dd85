/*
 * priority_queue against a model: a list with linear search.
 */
#include "common/base/priority_queue.h"
#include "common/base/random.h"
#include "tests/support/support.h"

#define ITEMS 400

static struct priority_queue queue;

/* The queued items, in order of arrival. */
static struct {
    uint32_t priority[ITEMS];
    int *item[ITEMS];
    size_t length;
} list;

static int items[ITEMS];

static void push_to_both(uint32_t priority, int *item)
{
    ck_assert(priority_queue_push(&queue, priority, item));
    list.priority[list.length] = priority;
    list.item[list.length++] = item;
}

static int *take_from_list(void)
{
    size_t best = 0;
    int *item;

    if (list.length == 0)
        return NULL;
    for (size_t i = 1; i < list.length; i++)
        if (list.priority[i] > list.priority[best])
            best = i;
    item = list.item[best];
    for (size_t i = best; i + 1 < list.length; i++) {
        list.priority[i] = list.priority[i + 1];
        list.item[i] = list.item[i + 1];
    }
    list.length--;
    return item;
}

START_TEST(equal_priorities_keep_arrival_order)
{
    for (size_t i = 0; i < ITEMS; i++)
        ck_assert(priority_queue_push(&queue, 7, &items[i]));
    for (size_t i = 0; i < ITEMS; i++)
        ck_assert_ptr_eq(priority_queue_pop(&queue), &items[i]);
    ck_assert_ptr_null(priority_queue_pop(&queue));
    priority_queue_release(&queue);
}
END_TEST

START_TEST(equals_the_list_model)
{
    static const uint32_t ranges[] = {1, 2, 5, 1000, UINT32_MAX};
    struct random r;
    uint32_t range = ranges[(size_t)_i % (sizeof(ranges) / sizeof(ranges[0]))];

    random_seed(&r, (uint64_t)_i);
    for (size_t i = 0; i < ITEMS; i++) {
        push_to_both(random_u32(&r) % range, &items[i]);
        while (random_u32(&r) % 3 == 0)
            ck_assert_ptr_eq(priority_queue_pop(&queue), take_from_list());
    }
    while (list.length > 0)
        ck_assert_ptr_eq(priority_queue_pop(&queue), take_from_list());
    ck_assert_ptr_null(priority_queue_pop(&queue));
    priority_queue_release(&queue);
}
END_TEST

START_TEST(memory_is_kept)
{
    struct priority_entry *heap;
    size_t capacity;

    for (size_t i = 0; i < ITEMS; i++)
        ck_assert(priority_queue_push(&queue, (uint32_t)i, &items[i]));
    heap = queue.heap;
    capacity = queue.capacity;
    for (size_t i = 0; i < 10 * ITEMS; i++) {
        ck_assert_ptr_nonnull(priority_queue_pop(&queue));
        ck_assert(priority_queue_push(&queue, (uint32_t)(i * 7919 % ITEMS), &items[i % ITEMS]));
    }
    ck_assert_ptr_eq(queue.heap, heap);
    ck_assert_uint_eq(queue.capacity, capacity);
    priority_queue_release(&queue);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("priority_queue", 0, TEST(equal_priorities_keep_arrival_order),
                       LOOP_TEST(equals_the_list_model, 0, 50), TEST(memory_is_kept));
}
