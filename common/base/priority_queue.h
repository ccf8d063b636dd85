/*
 * priority_queue: pointers in order of priority, the highest first, and in order of arrival among
 * equals.  Put and take are O(log n) for n that wait; memory grows by doubling and is kept, so a
 * queue that has seen its longest burst allocates no more.
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
    uint32_t priority;
    void *item; /* the caller's */
};

/* Zeroed is empty. */
struct priority_queue {
    struct priority_entry *heap; /* owned; each entry goes before its children 2i+1 and 2i+2 */
    size_t length, capacity;
    uint64_t arrivals;
};

/* false: no memory, and nothing has changed. */
bool priority_queue_put(struct priority_queue *q, uint32_t priority, void *item);

/* The next one, or NULL when none waits. */
void *priority_queue_take(struct priority_queue *q);

/* Free the memory, not the items. */
void priority_queue_release(struct priority_queue *q);

#endif
