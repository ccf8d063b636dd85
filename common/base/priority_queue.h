/*
 * priority_queue: pointers in order of priority, the highest first, and in order of arrival among
 * equals.  Push and pop are O(log n) for n entries; memory grows by doubling and is kept, so a
 * queue does not allocate after its longest burst.
 *
 * Threads: one at a time.
 */
#ifndef SPARRING_COMMON_BASE_PRIORITY_QUEUE_H
#define SPARRING_COMMON_BASE_PRIORITY_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct priority_entry {
    uint64_t arrival;
    uint64_t priority;
    void *item; /* the caller's */
};

/* A zeroed struct is an empty queue. */
struct priority_queue {
    struct priority_entry *heap; /* owned; each entry goes before its children 2i+1 and 2i+2 */
    size_t length, capacity;
    uint64_t arrivals;
};

/* false: out of memory, and the queue is unchanged. */
bool priority_queue_push(struct priority_queue *q, uint64_t priority, void *item);

/* The first item; NULL when the queue is empty. */
void *priority_queue_first(const struct priority_queue *q);

/* Remove and return it. */
void *priority_queue_pop(struct priority_queue *q);

/* Free the memory, not the items. */
void priority_queue_release(struct priority_queue *q);

#endif
