/*
 * Farewell: who asks the store once more after it has said goodbye.  The store may be gone by then,
 * and a question to it would take as long as it is given to answer.
 */
#include "common/store/store_ops.h"
#include "tests/support/support.h"

struct spy {
    bool serving;
    unsigned goodbyes, waits, forgets;
};

static enum status spy_set(void *impl, const char *key, const void *value, size_t size,
                           int64_t deadline_ns, struct error *err)
{
    struct spy *spy = impl;

    (void)key;
    (void)value;
    (void)size;
    (void)deadline_ns;
    (void)err;
    spy->goodbyes++;
    return STATUS_OK;
}

static enum status spy_wait(void *impl, const char *const *keys, size_t count, int64_t deadline_ns,
                            int64_t answer_by_ns, bool *ret_missing, struct error *err)
{
    struct spy *spy = impl;

    (void)keys;
    (void)count;
    (void)deadline_ns;
    (void)answer_by_ns;
    (void)ret_missing;
    (void)err;
    spy->waits++;
    return STATUS_OK;
}

static void spy_forget(void *impl, const char *prefix, int64_t deadline_ns)
{
    struct spy *spy = impl;

    (void)prefix;
    (void)deadline_ns;
    spy->forgets++;
}

static bool spy_serves(const void *impl)
{
    return ((const struct spy *)impl)->serving;
}

static const struct {
    bool serving, leaves_something;
    unsigned waits, forgets;
} cases[] = {
    {.serving = true, .leaves_something = false, .waits = 1, .forgets = 0},
    {.serving = false, .leaves_something = false, .waits = 0, .forgets = 0},
    {.serving = false, .leaves_something = true, .waits = 1, .forgets = 1},
};

START_TEST(nobody_asks_for_nothing)
{
    const struct store_ops ops = {.set = spy_set,
                                  .wait = spy_wait,
                                  .forget = cases[_i].leaves_something ? spy_forget : NULL,
                                  .serves = spy_serves};
    struct spy spy = {.serving = cases[_i].serving};
    char no_prefix[] = "";
    struct store store = {
        .ops = &ops, .impl = &spy, .prefix = no_prefix, .rank = 1, .world_size = 2};

    store_farewell(&store, 0);
    ck_assert_uint_eq(spy.goodbyes, 1);
    ck_assert_uint_eq(spy.waits, cases[_i].waits);
    ck_assert_uint_eq(spy.forgets, cases[_i].forgets);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("farewell");
    TCase *all = tcase_create("farewell");

    tcase_add_loop_test(all, nobody_asks_for_nothing, 0, sizeof(cases) / sizeof(cases[0]));
    suite_add_tcase(suite, all);
    return support_run(suite);
}
