/*
 * Servers are services of this process, on free ports of 127.0.0.1; values come from xorshift32.
 * No locks: each struct belongs to the test's main thread.
 */
#include "tests/worker/sync/ps_parts.h"

#include "common/base/memory.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

void ps_servers_open(struct ps_servers *s, unsigned count, int64_t timeout_ms)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .share_memory = true,
                                    .timeout_ms = timeout_ms};
    struct error err = {0};
    size_t used = 0;

    ck_assert_uint_le(count, PS_SERVERS_MAX);
    *s = (struct ps_servers){.count = count};
    for (unsigned k = 0; k < count; k++) {
        assert_ok(service_open(&config, &s->services[k], &err));
        used += (size_t)snprintf(s->addresses + used, sizeof(s->addresses) - used, "%s127.0.0.1:%u",
                                 k ? "," : "", service_port(s->services[k]));
    }
}

void ps_servers_close(struct ps_servers *s)
{
    for (unsigned k = 0; k < s->count; k++)
        service_close(s->services[k]);
}

void ps_table_open(struct tensor_table *t, size_t count)
{
    struct error err = {0};

    assert_ok(tensor_table_add(t, "weight", 1, &count, &err));
    tensor_table_layout(t);
}

float *ps_slab_new(size_t count)
{
    struct error err = {0};
    float *slab = NULL;

    assert_ok(mem_calloc_aligned(count, sizeof(float), "slab", &slab, &err));
    ck_assert_ptr_nonnull(slab);
    return slab;
}

void ps_fill(float *values, size_t count, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        values[i] = ((float)(state >> 8) / 8388608.0f) - 1.0f;
    }
}

bool ps_same_bits(const void *a, const void *b, size_t count)
{
    return memcmp(a, b, count * sizeof(float)) == 0;
}
