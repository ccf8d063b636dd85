/* The table of views (layout, hostile shapes, failing allocations) and the bucket plan. */
#include "common/base/memory.h"
#include "common/tensor/tensor.h"
#include "tests/support/support.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static struct error err;

static void add_view(struct tensor_table *t, const char *name, size_t rows, size_t columns)
{
    size_t shape[2] = {rows, columns};

    assert_ok(tensor_table_add(t, name, columns > 0 ? 2 : 1, shape, &err));
}

START_TEST(test_layout_is_reversed_and_packed)
{
    struct tensor_table t = {0};

    add_view(&t, "fc1.weight", 128, 784);
    add_view(&t, "fc1.bias", 128, 0);
    add_view(&t, "fc2.weight", 10, 128);
    add_view(&t, "fc2.bias", 10, 0);
    tensor_table_layout(&t);
    ck_assert_uint_eq(t.count, 784 * 128 + 128 + 1280 + 10);
    ck_assert_uint_eq(tensor_table_find(&t, "fc2.bias")->offset, 0);
    ck_assert_uint_eq(tensor_table_find(&t, "fc2.weight")->offset, 10);
    ck_assert_uint_eq(tensor_table_find(&t, "fc1.bias")->offset, 1290);
    ck_assert_uint_eq(tensor_table_find(&t, "fc1.weight")->offset, 1418);
    ck_assert_ptr_null(tensor_table_find(&t, "fc3.bias"));
    ck_assert_uint_eq(t.views[0].dims, 2);
    ck_assert_uint_eq(t.views[0].shape[1], 784);
    ck_assert_uint_eq(t.views[1].count, 128);
    tensor_table_release(&t);
    ck_assert_ptr_null(t.views);
}
END_TEST

/* Many views: the table grows, earlier views stay, offsets tile the slab backwards. */
START_TEST(test_growth)
{
    struct tensor_table t = {0};
    size_t expected = 0;
    char name[32];

    for (size_t i = 0; i < 100; i++) {
        (void)snprintf(name, sizeof(name), "t%zu", i);
        add_view(&t, name, 1 + i, 0);
    }
    tensor_table_layout(&t);
    for (size_t i = 100; i-- > 0;) {
        (void)snprintf(name, sizeof(name), "t%zu", i);
        ck_assert_str_eq(t.views[i].name, name);
        ck_assert_uint_eq(t.views[i].offset, expected);
        expected += 1 + i;
    }
    ck_assert_uint_eq(t.count, expected);
    tensor_table_release(&t);
}
END_TEST

START_TEST(test_scalar)
{
    struct tensor_table t = {0};

    assert_ok(tensor_table_add(&t, "scale", 0, NULL, &err));
    tensor_table_layout(&t);
    ck_assert_uint_eq(t.count, 1);
    tensor_table_release(&t);
}
END_TEST

START_TEST(test_invalid_views)
{
    static const size_t huge[] = {SIZE_MAX / 2, 3};
    static const size_t half[] = {SIZE_MAX / 8};
    static const size_t empty[] = {4, 0};
    static const size_t ones[TENSOR_DIMS_MAX + 1] = {1, 1, 1, 1, 1, 1, 1};
    struct tensor_table t = {0};
    char long_name[TENSOR_NAME_MAX + 1];

    memset(long_name, 'n', TENSOR_NAME_MAX);
    long_name[TENSOR_NAME_MAX] = '\0';
    add_view(&t, "w", 2, 2);
    assert_fails(tensor_table_add(&t, "w", 1, ones, &err), STATUS_EXISTS, "'w'");
    assert_fails(tensor_table_add(&t, "", 1, ones, &err), STATUS_INVALID, "0 bytes");
    assert_fails(tensor_table_add(&t, long_name, 1, ones, &err), STATUS_INVALID, "64 bytes");
    assert_fails(tensor_table_add(&t, "x", TENSOR_DIMS_MAX + 1, ones, &err), STATUS_INVALID,
                 "7 dimensions");
    assert_fails(tensor_table_add(&t, "x", 2, empty, &err), STATUS_INVALID, "dimension 1 is 0");
    assert_fails(tensor_table_add(&t, "x", 2, huge, &err), STATUS_INVALID, "too many");
    assert_ok(tensor_table_add(&t, "half", 1, half, &err));
    assert_fails(tensor_table_add(&t, "x", 1, half, &err), STATUS_INVALID, "one slab");
    ck_assert_uint_eq(t.length, 2);
    ck_assert_uint_eq(t.count, 4 + SIZE_MAX / 8);
    long_name[TENSOR_NAME_MAX - 1] = '\0';
    assert_ok(tensor_table_add(&t, long_name, 1, ones, &err));
    tensor_table_release(&t);
    tensor_table_release(&t);
    tensor_table_release(NULL);
}
END_TEST

START_TEST(test_failing_allocation)
{
    static const size_t shape[] = {3};
    struct tensor_table t = {0};
    struct bucket_plan plan = {0};

    mem_fail_nth(1);
    assert_fails(tensor_table_add(&t, "w", 1, shape, &err), STATUS_NO_MEMORY, "tensor table");
    ck_assert_uint_eq(t.length, 0);
    assert_ok(tensor_table_add(&t, "w", 1, shape, &err));
    tensor_table_layout(&t);
    mem_fail_nth(1);
    assert_fails(bucket_plan_make(&t, 1, 1, &plan, &err), STATUS_NO_MEMORY, "bucket plan");
    ck_assert_ptr_null(plan.buckets);
    tensor_table_release(&t);
}
END_TEST

/* ---- bucket plan ---- */

static void make_plan(const struct tensor_table *t, size_t first, size_t cap,
                      struct bucket_plan *ret)
{
    assert_ok(bucket_plan_make(t, first, cap, ret, &err));
}

/* mlp:784-1024-1024-10 in PyTorch's default caps: the small first bucket closes with fc2's weight
 * (41000 + 4096 + 4 MiB >= 1 MiB), the rest fits under 25 MiB. */
START_TEST(test_plan_of_a_model)
{
    struct tensor_table t = {0};
    struct bucket_plan p = {0};

    add_view(&t, "fc1.weight", 1024, 784);
    add_view(&t, "fc1.bias", 1024, 0);
    add_view(&t, "fc2.weight", 1024, 1024);
    add_view(&t, "fc2.bias", 1024, 0);
    add_view(&t, "fc3.weight", 10, 1024);
    add_view(&t, "fc3.bias", 10, 0);
    tensor_table_layout(&t);
    make_plan(&t, 1u << 20, 25u << 20, &p);
    ck_assert_uint_eq(p.length, 2);
    ck_assert_uint_eq(p.buckets[0].offset, 0);
    ck_assert_uint_eq(p.buckets[0].count, 10 + 10240 + 1024 + 1048576);
    ck_assert_uint_eq(p.buckets[1].offset, p.buckets[0].count);
    ck_assert_uint_eq(p.buckets[1].count, 1024 + 784 * 1024);
    bucket_plan_release(&p);
    make_plan(&t, SIZE_MAX, SIZE_MAX, &p); /* one bucket for all */
    ck_assert_uint_eq(p.length, 1);
    ck_assert_uint_eq(p.buckets[0].count, t.count);
    bucket_plan_release(&p);
    make_plan(&t, 0, 0, &p); /* one bucket per view */
    ck_assert_uint_eq(p.length, 6);
    bucket_plan_release(&p);
    bucket_plan_release(NULL);
    tensor_table_release(&t);
}
END_TEST

/* The last bucket closes exactly at its limit: no empty bucket follows. */
START_TEST(test_plan_closes_on_the_limit)
{
    struct tensor_table t = {0};
    struct bucket_plan p = {0};

    add_view(&t, "a", 4, 0);
    add_view(&t, "b", 4, 0);
    tensor_table_layout(&t);
    make_plan(&t, 16, 16, &p);
    ck_assert_uint_eq(p.length, 2);
    bucket_plan_release(&p);
    make_plan(&t, 17, 16, &p);
    ck_assert_uint_eq(p.length, 1);
    bucket_plan_release(&p);
    tensor_table_release(&t);
}
END_TEST

START_TEST(test_plan_of_an_empty_table)
{
    struct tensor_table t = {0};
    struct bucket_plan p = {0};

    make_plan(&t, 1, 1, &p);
    ck_assert_uint_eq(p.length, 0);
    bucket_plan_release(&p);
}
END_TEST

static size_t random_below(size_t limit)
{
    return (size_t)(support_random() * (double)limit);
}

/* Of any plan: it tiles the slab; buckets hold whole views; each closed as soon as it could. */
static void check_plan(const struct tensor_table *t, size_t first, size_t cap,
                       const struct bucket_plan *p)
{
    size_t view = t->length;
    size_t at = 0;

    for (size_t b = 0; b < p->length; b++) {
        size_t limit = b == 0 ? first : cap;
        size_t count = 0;

        ck_assert_uint_eq(p->buckets[b].offset, at);
        while (count < p->buckets[b].count) {
            ck_assert_msg(count == 0 || count * 4 < limit, "bucket %zu closed too late", b);
            ck_assert_uint_gt(view, 0);
            count += t->views[--view].count;
        }
        ck_assert_uint_eq(count, p->buckets[b].count);
        ck_assert_msg(count * 4 >= limit || b + 1 == p->length, "bucket %zu closed too early", b);
        at += count;
    }
    ck_assert_uint_eq(at, t->count);
    ck_assert_uint_eq(view, 0);
}

START_TEST(test_plan_of_random_tables)
{
    for (int round = 0; round < 300; round++) {
        struct tensor_table t = {0};
        struct bucket_plan p = {0};
        size_t views = 1 + random_below(40);
        size_t first = random_below(2000);
        size_t cap = random_below(8000);
        char name[32];

        for (size_t i = 0; i < views; i++) {
            (void)snprintf(name, sizeof(name), "t%zu", i);
            add_view(&t, name, 1 + random_below(700), 0);
        }
        tensor_table_layout(&t);
        make_plan(&t, first, cap, &p);
        check_plan(&t, first, cap, &p);
        bucket_plan_release(&p);
        tensor_table_release(&t);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("tensor", 0, TEST(test_layout_is_reversed_and_packed), TEST(test_growth),
                       TEST(test_scalar), TEST(test_invalid_views), TEST(test_failing_allocation),
                       TEST_CASE("bucket plan", 0), TEST(test_plan_of_a_model),
                       TEST(test_plan_closes_on_the_limit), TEST(test_plan_of_an_empty_table),
                       TEST(test_plan_of_random_tables));
}
