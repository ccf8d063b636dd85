/*
 * The shortest of several reads of a large value, less the shortest of a small one: what other
 * processes delay is not the network's.  No locking: runs once, on the training thread.
 */
#include "worker/train/link_rate.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_KEY   "link/small"
#define LARGE_KEY   "link/large"
#define RATE_KEY    "link/rate"
#define LARGE_BYTES ((size_t)256 << 10)
#define READS_LEAST 4 /* on a link with a long round trip TCP's window grows in the first three */
#define READS_MOST  8
#define ENOUGH_NS   100000000 /* no more reads than the least after that long */

/* The duration of the fastest read of a key. */
static enum status time_reads(struct store *store, const char *key, int64_t *ret_ns,
                              struct error *err)
{
    int64_t began_ns = clock_now_ns();
    enum status status = STATUS_OK;

    *ret_ns = INT64_MAX;
    for (int i = 0; status == STATUS_OK && i < READS_MOST &&
                    (i < READS_LEAST || clock_now_ns() - began_ns < ENOUGH_NS);
         i++) {
        int64_t started_ns = clock_now_ns(), took_ns;
        char *value = NULL;
        size_t size;

        status = store_get(store, key, -1, &value, &size, err);
        took_ns = clock_now_ns() - started_ns;
        *ret_ns = took_ns < *ret_ns ? took_ns : *ret_ns;
        free(value);
    }
    return status;
}

static enum status set_values(struct store *store, struct error *err)
{
    char *large = NULL;
    enum status status = mem_calloc(LARGE_BYTES, 1, "a value of the store", &large, err);

    if (status == STATUS_OK)
        status = store_set(store, LARGE_KEY, large, LARGE_BYTES, err);
    if (status == STATUS_OK)
        status = store_set(store, SMALL_KEY, large, 1, err);
    free(large);
    return status;
}

static enum status measure(struct store *store, struct error *err)
{
    int64_t small_ns = 0, large_ns = 0;
    char text[64];
    bool found;
    enum status status = time_reads(store, SMALL_KEY, &small_ns, err);

    if (status == STATUS_OK)
        status = time_reads(store, LARGE_KEY, &large_ns, err);
    if (status == STATUS_OK)
        status = store_delete(store, LARGE_KEY, &found, err);
    if (status != STATUS_OK)
        return status;
    large_ns = large_ns > small_ns ? large_ns - small_ns : 1;
    (void)snprintf(text, sizeof(text), "%.0f,%.9f", (double)LARGE_BYTES * 1e9 / (double)large_ns,
                   (double)small_ns / 1e9);
    return store_set(store, RATE_KEY, text, strlen(text), err);
}

static bool parse_link_rate(const char *text, struct link_rate *ret)
{
    char rate[32];
    const char *round_trip = parse_list_next(text, rate, sizeof(rate));

    return parse_double(rate, &ret->bytes_per_s) && parse_double(round_trip, &ret->round_trip_s);
}

enum status link_rate_measure(struct store *store, struct link_rate *ret, struct error *err)
{
    unsigned rank = store_rank(store);
    char *text = NULL;
    size_t size;
    enum status status = STATUS_OK;

    if (rank == 0)
        status = set_values(store, err);
    else if (rank + 1 == store_world_size(store))
        status = measure(store, err);
    if (status == STATUS_OK)
        status = store_get(store, RATE_KEY, -1, &text, &size, err);
    if (status == STATUS_OK && !parse_link_rate(text, ret))
        status = error_set(err, STATUS_DATA, "the store's %s is '%.40s'", RATE_KEY, text);
    free(text);
    return status;
}
