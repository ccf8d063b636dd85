/*
 * Barriers, the short forms, wrong arguments, and sizes beyond 32 bits.
 */
#include "tests/common/collective/conformance/conformance.h"

#include "common/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void conformance_barriers(struct conformance *c)
{
    struct collective_stats before = collective_get_stats(c->group), after;
    struct error err = {0};
    int64_t entered;
    char key[64];

    (void)snprintf(key, sizeof(key), "%s/entered", c->name);
    for (unsigned round = 1; round <= 20; round++) {
        assert_ok(store_add(c->store, key, 1, &entered, &err));
        assert_ok(collective_barrier(c->group, &err));
        assert_ok(store_add(c->store, key, 0, &entered, &err));
        ck_assert_msg(entered >= (int64_t)round * c->size,
                      "%s: left barrier %u when %lld of %u ranks had come", c->backend, round,
                      (long long)entered - (long long)(round - 1) * c->size, c->size);
    }
    after = collective_get_stats(c->group);
    ck_assert_uint_eq(after.operations - before.operations, 20);
    ck_assert_uint_eq(after.tx_payload_bytes, before.tx_payload_bytes);
    ck_assert_uint_eq(after.rx_payload_bytes, before.rx_payload_bytes);
}

void conformance_everyday(struct conformance *c)
{
    struct error err = {0};
    float data[1000];
    unsigned char bytes[777], all[CONFORMANCE_RANKS_MAX * 9];

    for (size_t i = 0; i < 1000; i++)
        data[i] = (float)(i + c->rank);
    assert_ok(collective_all_reduce(c->group, data, 1000, REDUCE_FAST, &err));
    for (size_t i = 0; i < 1000; i++)
        ck_assert_int_eq((int)data[i], (int)(i * c->size + (size_t)c->size * (c->size - 1) / 2));
    for (unsigned root = 0; root < c->size; root++) {
        memset(bytes, (int)(c->rank + 1), sizeof(bytes));
        assert_ok(collective_broadcast(c->group, bytes, sizeof(bytes), root, &err));
        for (size_t i = 0; i < sizeof(bytes); i++)
            ck_assert_uint_eq(bytes[i], root + 1);
    }
    memset(bytes, (int)c->rank + 7, 9);
    assert_ok(collective_all_gather(c->group, bytes, 9, all, &err));
    for (size_t i = 0; i < (size_t)9 * c->size; i++)
        ck_assert_uint_eq(all[i], i / 9 + 7);
    memset(all, 0, sizeof(all));
    memset(all + (size_t)9 * c->rank, (int)c->rank + 50, 9);
    assert_ok(collective_all_gather(c->group, all + (size_t)9 * c->rank, 9, all, &err));
    for (size_t i = 0; i < (size_t)9 * c->size; i++)
        ck_assert_uint_eq(all[i], i / 9 + 50);
    assert_ok(collective_barrier(c->group, &err));
}

/* What no backend can do, and what no group has, is refused before anything moves. */
void conformance_refusals(struct conformance *c)
{
    float data[4] = {0};
    struct collective_args args = {
        .call = COLLECTIVE_BROADCAST, .input = data, .output = data, .count = 4, .root = c->size};
    struct collective_work *work;
    struct error err = {0};

    assert_fails(collective_start(c->group, &args, &work, &err), STATUS_INVALID, "broadcast");
    args.call = COLLECTIVE_SEND;
    args.root = c->rank;
    assert_fails(collective_start(c->group, &args, &work, &err), STATUS_INVALID, "send");
    args.call = COLLECTIVE_ALL_REDUCE;
    args.root = 0;
    args.dtype = DTYPE_BYTE;
    assert_fails(collective_start(c->group, &args, &work, &err), STATUS_UNSUPPORTED, "uint8");
    args.dtype = DTYPE_INT32;
    args.op = REDUCE_PREMUL_SUM;
    assert_fails(collective_start(c->group, &args, &work, &err), STATUS_UNSUPPORTED, "int32");
    case_run(c, &(struct conformance_case){
                    .call = COLLECTIVE_ALL_REDUCE, .count = 100, .kind = VALUES_EXACT});
}

/* ---- beyond 4 GiB ---- */

/* A gigantic buffer in little memory: one file, mapped over and over.  Its length is no divisor of
 * 4 GiB, so an offset that lost its upper bits reads something else. */
#define TILE_BYTES  (61 * CONFORMANCE_MIB)
#define TILES       70
#define HUGE_BYTES  (TILES * TILE_BYTES) /* 4.17 GiB */
#define HUGE_FLOATS (HUGE_BYTES / sizeof(float))
#define TILE_FLOATS (TILE_BYTES / sizeof(float))

static float tile_value(unsigned rank, size_t i)
{
    size_t at = i % TILE_FLOATS;

    return (float)((at * 7 + at / 1009 + rank * 13) % 8191) - 4095.0f;
}

/* One tile's file mapped `TILES` times in a row. */
static float *new_tiled(unsigned rank)
{
    struct shared_memory tile = SHARED_MEMORY_NONE;
    struct error err = {0};
    unsigned char *base =
        mmap(NULL, HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    ck_assert_ptr_ne(base, MAP_FAILED);
    assert_ok(shared_memory_open(TILE_BYTES, "huge", &tile, &err));
    for (size_t i = 0; i < TILE_FLOATS; i++)
        ((float *)tile.base)[i] = tile_value(rank, i);
    for (size_t k = 0; k < TILES; k++)
        ck_assert_ptr_ne(
            mmap(base + k * TILE_BYTES, TILE_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, tile.fd, 0),
            MAP_FAILED);
    shared_memory_release(&tile);
    return (float *)(void *)base;
}

static float *new_real(void)
{
    void *base = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    ck_assert_ptr_ne(base, MAP_FAILED);
    return base;
}

/* The output is that of `call` where the input of rank r is tiles of tile_value(r). */
static void check_huge(const struct conformance *c, const struct collective_args *a,
                       const float *output)
{
    size_t total = a->call == COLLECTIVE_ALL_GATHER ? a->count * c->size : a->count;

    for (size_t i = 0; i < total; i++) {
        float wanted = tile_value(a->root, i);

        if (a->call == COLLECTIVE_ALL_REDUCE)
            for (unsigned r = 1; r < c->size; r++)
                wanted += tile_value(r, i);
        else if (a->call == COLLECTIVE_ALL_GATHER)
            wanted = tile_value((unsigned)(i / a->count), i % a->count);
        if (output[i] < wanted || output[i] > wanted)
            ck_abort_msg("%s, rank %u: huge %s, element %zu (byte %zu) is %g, not %g", c->backend,
                         c->rank, collective_call_name(a->call), i, i * sizeof(float),
                         (double)output[i], (double)wanted);
    }
}

static void run_huge(struct conformance *c, enum collective_call call, const float *input,
                     float *output)
{
    struct collective_args args = {.call = call,
                                   .input = input,
                                   .output = output,
                                   .count = call == COLLECTIVE_ALL_GATHER ? HUGE_FLOATS / c->size
                                                                          : HUGE_FLOATS};
    struct collective_stats before = collective_get_stats(c->group), after;
    struct error err = {0};
    uint64_t tx, rx;

    if (!collective_supports(c->group, &args))
        return;
    assert_ok(collective_run(c->group, &args, &err));
    check_huge(c, &args, output);
    after = collective_get_stats(c->group);
    collective_expected_bytes(c->group, &args, &tx, &rx);
    ck_assert_uint_eq(after.tx_payload_bytes - before.tx_payload_bytes, tx);
    ck_assert_uint_eq(after.rx_payload_bytes - before.rx_payload_bytes, rx);
    /* Pages go back, so that the next call needs no more than this one. */
    ck_assert_int_eq(madvise(output, HUGE_BYTES, MADV_DONTNEED), 0);
}

void conformance_huge(struct conformance *c)
{
    float *input = new_tiled(c->rank);
    float *output = new_real();

    run_huge(c, COLLECTIVE_BROADCAST, input, output);
    run_huge(c, COLLECTIVE_ALL_GATHER, input, output);
    run_huge(c, COLLECTIVE_ALL_REDUCE, input, output);
    ck_assert_int_eq(munmap(input, HUGE_BYTES), 0);
    ck_assert_int_eq(munmap(output, HUGE_BYTES), 0);
}
