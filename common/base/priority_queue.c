/*
 * A binary heap in an array.  A heap is not stable among equal priorities, so every entry stores
 * its arrival number.
 */
#include "common/base/priority_queue.h"

#include <stdlib.h>

#define FIRST_CAPACITY 64

static bool goes_before(const struct priority_entry *a, const struct priority_entry *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

static bool reserve_entry(struct priority_queue *q)
{
    size_t capacity = q->capacity ? q->capacity * 2 : FIRST_CAPACITY;
    struct priority_entry *heap;

    if (q->length < q->capacity)
        return true;
    heap = capacity < SIZE_MAX / sizeof(*heap) ? realloc(q->heap, capacity * sizeof(*heap)) : NULL;
    if (!heap)
        return false;
    q->heap = heap;
    q->capacity = capacity;
    return true;
}

bool priority_queue_push(struct priority_queue *q, uint64_t priority, void *item)
{
    struct priority_entry entry = {.priority = priority, .item = item};
    size_t at;

    if (!reserve_entry(q))
        return false;
    entry.arrival = q->arrivals++;
    for (at = q->length++; at > 0; at = (at - 1) / 2) {
        if (goes_before(&q->heap[(at - 1) / 2], &entry))
            break;
        q->heap[at] = q->heap[(at - 1) / 2];
    }
    q->heap[at] = entry;
    return true;
}

void *priority_queue_first(const struct priority_queue *q)
{
    return q->length > 0 ? q->heap[0].item : NULL;
}

void *priority_queue_pop(struct priority_queue *q)
{
    struct priority_entry last;
    void *item;
    size_t at = 0;

    if (q->length == 0)
        return NULL;
    item = q->heap[0].item;
    last = q->heap[--q->length];
    for (;;) {
        size_t child = 2 * at + 1;

        if (child + 1 < q->length && goes_before(&q->heap[child + 1], &q->heap[child]))
            child++;
        if (child >= q->length || goes_before(&last, &q->heap[child]))
            break;
        q->heap[at] = q->heap[child];
        at = child;
    }
    q->heap[at] = last;
    return item;
}

void priority_queue_release(struct priority_queue *q)
{
    free(q->heap);
    *q = (struct priority_queue){0};
}
