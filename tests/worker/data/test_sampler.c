/*
 * DistributedSampler: published vectors, the orders of five PyTorch runs, and a literal translation
 * of PyTorch's source against ours with random sizes.
 */
#include "common/base/memory.h"
#include "common/base/random.h"
#include "tests/support/support.h"
#include "worker/data/sampler.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

static void check_order(size_t count, unsigned ranks, unsigned rank, bool drop_last, uint64_t epoch,
                        const char *wanted)
{
    struct sampler s;
    char got[256] = "";

    assert_ok(sampler_init(&s, count, rank, ranks, true, drop_last, 0, &err));
    sampler_set_epoch(&s, epoch);
    for (size_t i = 0; i < s.length; i++)
        (void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%jd", i > 0 ? " " : "",
                       (intmax_t)s.order[i]);
    ck_assert_str_eq(got, wanted);
    sampler_release(&s);
}

START_TEST(published_vectors)
{
    static const char *const epoch0[] = {"4 3 6", "1 9 2", "7 0 4", "5 8 1"};
    static const char *const epoch1[] = {"5 0 7", "6 8 4", "1 9 5", "2 3 6"};
    static const char *const dropped[] = {"4 3", "1 9", "7 0", "5 8"};
    static const char *const tiny[] = {"0", "1", "0", "1", "0"};

    for (unsigned rank = 0; rank < 4; rank++) {
        check_order(10, 4, rank, false, 0, epoch0[rank]);
        check_order(10, 4, rank, false, 1, epoch1[rank]);
        check_order(10, 4, rank, true, 0, dropped[rank]);
    }
    for (unsigned rank = 0; rank < 5; rank++) {
        check_order(2, 5, rank, false, 0, tiny[rank]);
        check_order(2, 5, rank, true, 0, "");
    }
}
END_TEST

static size_t number(const json_t *run, const char *key)
{
    ck_assert(json_is_integer(json_object_get(run, key)));
    return (size_t)json_integer_value(json_object_get(run, key));
}

/* The first 64 indices of every rank of a run of PyTorch's DistributedDataParallel. */
START_TEST(pytorch_runs)
{
    static const char *const names[] = {"linear10_w4", "mnist_mlp_w1", "mnist_mlp_w2",
                                        "mnist_mlp_w3", "seed_w2"};
    char path[128];
    json_t *run;
    json_t *heads;

    (void)snprintf(path, sizeof(path), "tests/data/parity/%s.json", names[_i]);
    run = json_load_file(support_source(path), 0, NULL);
    heads = json_object_get(run, "first_epoch_indices_head");
    ck_assert_uint_eq(json_array_size(heads), number(run, "world"));
    for (unsigned rank = 0; rank < json_array_size(heads); rank++) {
        const json_t *head = json_array_get(heads, rank);
        struct sampler s;

        assert_ok(sampler_init(&s, number(run, "samples"), rank, (unsigned)number(run, "world"),
                               true, false, number(run, "seed"), &err));
        sampler_set_epoch(&s, 0);
        ck_assert_uint_eq(json_array_size(head), 64);
        for (size_t i = 0; i < 64; i++)
            ck_assert_int_eq(s.order[i], json_integer_value(json_array_get(head, i)));
        sampler_release(&s);
    }
    json_decref(run);
}
END_TEST

/* torch/utils/data/distributed.py, translated statement by statement. */
static size_t reference_order(int64_t *mine, size_t n, unsigned rank, unsigned ranks, bool shuffle,
                              bool drop_last, uint64_t seed, uint64_t epoch)
{
    size_t each = drop_last && n % ranks != 0 ? (n >= ranks ? (n - ranks + ranks - 1) / ranks : 0)
                                              : (n + ranks - 1) / ranks;
    size_t total = each * ranks;
    int64_t *indices = calloc(total + n + 1, sizeof(*indices));
    size_t length = n;
    size_t taken = 0;
    struct random random;

    ck_assert_ptr_nonnull(indices);
    random_seed(&random, seed + epoch);
    for (size_t i = 0; i < n; i++)
        indices[i] = (int64_t)i;
    if (shuffle)
        random_permutation(&random, indices, n);
    while (length < total) { /* indices += indices[:padding], over and over */
        indices[length] = indices[length - n];
        length++;
    }
    for (size_t i = rank; i < total; i += ranks)
        mine[taken++] = indices[i];
    free(indices);
    ck_assert_uint_eq(taken, each);
    return taken;
}

START_TEST(equals_the_reference)
{
    for (unsigned round = 0; round < 400; round++) {
        size_t n = 1 + (size_t)(support_random() * 60);
        unsigned ranks = 1 + (unsigned)(support_random() * 9);
        unsigned rank = (unsigned)(support_random() * ranks);
        bool shuffle = support_random() < 0.8;
        bool drop_last = support_random() < 0.5;
        uint64_t seed = (uint64_t)(support_random() * 1e6);
        uint64_t epoch = (uint64_t)(support_random() * 5);
        int64_t mine[64] = {0};
        size_t length = reference_order(mine, n, rank, ranks, shuffle, drop_last, seed, epoch);
        struct sampler s;

        assert_ok(sampler_init(&s, n, rank, ranks, shuffle, drop_last, seed, &err));
        sampler_set_epoch(&s, epoch + 1); /* another epoch must have no effect */
        sampler_set_epoch(&s, epoch);
        ck_assert_uint_eq(s.length, length);
        ck_assert_mem_eq(s.order, mine, length * sizeof(mine[0]));
        ck_assert_uint_eq(sampler_padding(&s), drop_last ? 0 : length * ranks - n);
        sampler_release(&s);
    }
}
END_TEST

/* The ranks together use every sample, and repeat only the padding. */
START_TEST(ranks_cover_the_data)
{
    static const unsigned ranks = 7;
    unsigned seen[1003] = {0};
    size_t repeated = 0;
    struct sampler s;

    for (unsigned rank = 0; rank < ranks; rank++) {
        assert_ok(sampler_init(&s, 1003, rank, ranks, true, false, 3, &err));
        sampler_set_epoch(&s, 12);
        for (size_t i = 0; i < s.length; i++)
            repeated += seen[s.order[i]]++ > 0;
        ck_assert_uint_eq(sampler_padding(&s), 5); /* 7 * 144 - 1003 */
        sampler_release(&s);
    }
    ck_assert_uint_eq(repeated, 5);
    for (size_t i = 0; i < 1003; i++)
        ck_assert_uint_ge(seen[i], 1);
}
END_TEST

START_TEST(limits)
{
    struct sampler s;

    assert_fails(sampler_init(&s, 10, 4, 4, true, false, 0, &err), STATUS_INVALID,
                 "rank 4 is outside a world of 4");
    assert_fails(sampler_init(&s, 10, 0, 0, true, false, 0, &err), STATUS_INVALID, "world of 0");
    assert_fails(sampler_init(&s, 214748364, 0, 1, true, false, 0, &err), STATUS_UNSUPPORTED,
                 "at most 214748363");
    assert_ok(sampler_init(&s, 0, 0, 3, true, false, 0, &err));
    sampler_set_epoch(&s, 0);
    ck_assert_uint_eq(s.length, 0);
    ck_assert_uint_eq(sampler_padding(&s), 0);
    sampler_release(&s);
    for (size_t n = 1; n <= 2; n++) {
        mem_fail_nth(n);
        assert_fails(sampler_init(&s, 10, 0, 1, true, false, 0, &err), STATUS_NO_MEMORY,
                     "allocate");
    }
    sampler_release(NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("sampler", 0, TEST(published_vectors), LOOP_TEST(pytorch_runs, 0, 5),
                       TEST(equals_the_reference), TEST(ranks_cover_the_data), TEST(limits));
}
