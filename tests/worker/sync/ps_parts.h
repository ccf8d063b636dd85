/*
 * ps_parts: helpers for tests of workers with parameter servers: servers in this process, slabs,
 * and values generated from a seed.  Every error fails the test.
 */
#ifndef SPARRING_TESTS_WORKER_SYNC_PS_PARTS_H
#define SPARRING_TESTS_WORKER_SYNC_PS_PARTS_H

#include "common/tensor/tensor.h"
#include "server/service/service.h"

#include <stdbool.h>

#define PS_SERVERS_MAX 3u

struct ps_servers {
    struct service *services[PS_SERVERS_MAX]; /* owned; NULL: closed by the test */
    unsigned count;
    char addresses[128]; /* as --servers takes them */
};

/* Start servers on free ports of 127.0.0.1, which share memory with workers that request it. */
void ps_servers_open(struct ps_servers *s, unsigned count, int64_t timeout_ms);
void ps_servers_close(struct ps_servers *s);

/* One tensor of `count` elements; tensor_table_release releases it. */
void ps_table_open(struct tensor_table *t, size_t count);

/* A slab of zeros; the caller frees it. */
float *ps_slab_new(size_t count);

/* Fill with values in [-1, 1), a function of the seed. */
void ps_fill(float *values, size_t count, uint32_t seed);

/* Compare floats bit for bit: 0 and -0 differ, a NaN equals itself. */
bool ps_same_bits(const void *a, const void *b, size_t count);

#endif
