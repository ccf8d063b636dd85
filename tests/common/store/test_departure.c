/*
 * Departure: which ranks may call the store again after they have announced their departure.  The
 * store may have ended by then, and a call would last until its reply deadline.
 */
#include "common/store/store_ops.h"
#include "tests/support/support.h"

struct mock_store {
    bool is_server;
    unsigned departures, waits, removals;
};

static enum status mock_set(void *impl, const char *key, const void *value, size_t size,
                            int64_t deadline_ns, struct error *err)
{
    struct mock_store *mock_store = impl;

    (void)key;
    (void)value;
    (void)size;
    (void)deadline_ns;
    (void)err;
    mock_store->departures++;
    return STATUS_OK;
}

static enum status mock_wait(void *impl, const char *const *keys, size_t count, int64_t deadline_ns,
                             int64_t reply_deadline_ns, bool *ret_missing, struct error *err)
{
    struct mock_store *mock_store = impl;

    (void)keys;
    (void)count;
    (void)deadline_ns;
    (void)reply_deadline_ns;
    (void)ret_missing;
    (void)err;
    mock_store->waits++;
    return STATUS_OK;
}

static void mock_remove_group(void *impl, const char *prefix, int64_t deadline_ns)
{
    struct mock_store *mock_store = impl;

    (void)prefix;
    (void)deadline_ns;
    mock_store->removals++;
}

static bool mock_is_server(const void *impl)
{
    return ((const struct mock_store *)impl)->is_server;
}

static const struct {
    bool is_server, has_persistent_data;
    unsigned waits, removals;
} cases[] = {
    {.is_server = true, .has_persistent_data = false, .waits = 1, .removals = 0},
    {.is_server = false, .has_persistent_data = false, .waits = 0, .removals = 0},
    {.is_server = false, .has_persistent_data = true, .waits = 1, .removals = 1},
};

START_TEST(no_unneeded_call_after_departure)
{
    const struct store_ops ops = {.set = mock_set,
                                  .wait = mock_wait,
                                  .remove_group =
                                      cases[_i].has_persistent_data ? mock_remove_group : NULL,
                                  .is_server = mock_is_server};
    struct mock_store mock_store = {.is_server = cases[_i].is_server};
    char no_prefix[] = "";
    struct store store = {
        .ops = &ops, .impl = &mock_store, .prefix = no_prefix, .rank = 1, .world_size = 2};

    store_depart(&store, 0);
    ck_assert_uint_eq(mock_store.departures, 1);
    ck_assert_uint_eq(mock_store.waits, cases[_i].waits);
    ck_assert_uint_eq(mock_store.removals, cases[_i].removals);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "departure", 0,
        LOOP_TEST(no_unneeded_call_after_departure, 0, sizeof(cases) / sizeof(cases[0])));
}
