/*
 * The prefetching loader against a sequential walk through sampler and data set, with random sizes;
 * closing at every stage; failing allocations.  Under TSan this checks the loader's locking.
 */
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "worker/data/loader.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FEATURES 3

static struct error err;

static struct dataset *open_spec(const char *spec)
{
    struct dataset *d;

    assert_ok(dataset_open(&(struct dataset_config){.spec = spec}, &d, &err));
    ck_assert_uint_eq(dataset_count(d), 97);
    ck_assert_uint_eq(dataset_features(d), FEATURES);
    return d;
}

static struct dataset *open_data(void)
{
    return open_spec("random:97,3,5");
}

/* The reference: the expected batches in order, without threads. */
struct walk {
    struct sampler sampler;
    size_t at;
    uint64_t epoch;
    float x[97 * FEATURES];
    int32_t y[97 * FEATURES]; /* of tokens one per feature */
};

static struct batch walk_next(struct walk *w, const struct dataset *d, size_t batch_size)
{
    struct batch batch;
    size_t left;

    if (w->at == w->sampler.length) {
        w->at = 0;
        sampler_set_epoch(&w->sampler, ++w->epoch);
    }
    left = w->sampler.length - w->at;
    batch = (struct batch){.x = w->x,
                           .y = w->y,
                           .count = batch_size < left ? batch_size : left,
                           .epoch = w->epoch,
                           .last_of_epoch = batch_size >= left};
    dataset_gather(d, w->sampler.order + w->at, batch.count, w->x, w->y);
    w->at += batch.count;
    return batch;
}

static void check_same(const struct dataset *d, const struct batch *got, const struct batch *wanted)
{
    ck_assert_uint_eq(got->count, wanted->count);
    ck_assert_uint_eq(got->epoch, wanted->epoch);
    ck_assert_int_eq(got->last_of_epoch, wanted->last_of_epoch);
    ck_assert_mem_eq(got->x, wanted->x, wanted->count * FEATURES * sizeof(float));
    ck_assert_mem_eq(got->y, wanted->y, wanted->count * dataset_positions(d) * sizeof(int32_t));
}

/* Caller's memory that counts its blocks. */
struct counted_memory {
    size_t live, most;
};

static enum status counted_alloc(void *user, size_t count, float **ret, struct error *e)
{
    struct counted_memory *a = user;
    enum status status = mem_calloc(count, sizeof(**ret), "arena", ret, e);

    a->live += status == STATUS_OK;
    a->most = a->live > a->most ? a->live : a->most;
    return status;
}

static void counted_free(void *user, float *memory)
{
    struct counted_memory *a = user;

    a->live--;
    free(memory);
}

static void check_against_walk(const struct dataset *d, unsigned rank, unsigned ranks,
                               size_t batch_size, unsigned batches)
{
    struct walk *w;
    struct sampler sampler;
    struct loader *l;
    struct batch got, peeked;
    struct counted_memory counted = {0};
    const struct loader_memory memory = {counted_alloc, counted_free, &counted};
    size_t per_epoch = 0, part;
    uint64_t number = 0;

    assert_ok(mem_calloc(1, sizeof(*w), "walk", &w, &err));
    assert_ok(sampler_init(&w->sampler, 97, rank, ranks, true, false, 5, &err));
    sampler_set_epoch(&w->sampler, 0);
    assert_ok(sampler_init(&sampler, 97, rank, ranks, true, false, 5, &err));
    part = sampler.length;
    assert_ok(loader_open(d, &sampler, batch_size, batches % 2 ? &memory : NULL, &l, &err));
    for (unsigned i = 0; i < batches; i++) {
        struct batch wanted = walk_next(w, d, batch_size);
        bool there = loader_try_peek(l, &peeked);

        loader_next(l, &got);
        ck_assert(!there || memcmp(&peeked, &got, sizeof(got)) == 0);
        ck_assert_uint_gt(got.number, number);
        number = got.number;
        check_same(d, &got, &wanted);
        per_epoch += got.epoch == 0;
        if (got.epoch == 0 && got.last_of_epoch)
            ck_assert_uint_eq(per_epoch, (part + batch_size - 1) / batch_size);
    }
    loader_close(l);
    ck_assert_uint_eq(counted.live, 0);
    ck_assert_uint_eq(counted.most, batches % 2 ? 8 : 0);
    sampler_release(&sampler);
    sampler_release(&w->sampler);
    free(w);
}

/* Large batches in the caller's memory: three buffers, and the same samples. */
START_TEST(takes_few_large_buffers)
{
    static const char spec[] = "random:3,4500000,5";
    struct counted_memory counted = {0};
    const struct loader_memory memory = {counted_alloc, counted_free, &counted};
    struct dataset *d;
    struct sampler sampler;
    struct loader *l;
    struct batch got;
    float *x;
    int32_t y[2];

    assert_ok(dataset_open(&(struct dataset_config){.spec = spec}, &d, &err));
    assert_ok(mem_calloc(2 * dataset_features(d), sizeof(*x), "batch", &x, &err));
    assert_ok(sampler_init(&sampler, 3, 0, 1, false, false, 0, &err));
    assert_ok(loader_open(d, &sampler, 2, &memory, &l, &err));
    ck_assert_uint_eq(counted.most, 3);
    for (unsigned i = 0; i < 9; i++) {
        int64_t indices[2];

        loader_next(l, &got);
        ck_assert_uint_eq(got.offset, i % 2 * 2);
        for (size_t k = 0; k < got.count; k++)
            indices[k] = (int64_t)(got.offset + k);
        dataset_gather(d, indices, got.count, x, y);
        ck_assert(memcmp(got.x, x, got.count * dataset_features(d) * sizeof(*x)) == 0);
    }
    loader_close(l);
    ck_assert_uint_eq(counted.live, 0);
    free(x);
    sampler_release(&sampler);
    dataset_close(d);
}
END_TEST

static const char *const specs[] = {"random:97,3,5", "random-tokens:97,3,5"};

START_TEST(gives_what_a_plain_walk_gives)
{
    struct dataset *d = open_spec(specs[_i]);

    ck_assert_uint_eq(dataset_positions(d), _i == 0 ? 1 : FEATURES);

    for (unsigned round = 0; round < 60; round++) {
        unsigned ranks = 1 + (unsigned)(support_random() * 5);
        unsigned rank = (unsigned)(support_random() * ranks);
        size_t batch_size = 1 + (size_t)(support_random() * 40);

        check_against_walk(d, rank, ranks, batch_size, (unsigned)(support_random() * 100));
    }
    check_against_walk(d, 0, 1, 1000, 5); /* a batch larger than the data */
    check_against_walk(d, 0, 97, 4, 5);   /* one sample per rank */
    dataset_close(d);
}
END_TEST

/* The world shrinks at any batch: the loader continues at any sample, and uses the new partition
 * from the next epoch on. */
START_TEST(resumes_with_another_partition)
{
    struct dataset *d = open_data();

    for (unsigned round = 0; round < 40; round++) {
        unsigned rank = (unsigned)(support_random() * 4);
        size_t batch_size = 1 + (size_t)(support_random() * 40);
        struct sampler sampler;
        struct walk *w;
        struct loader *l;
        struct batch got = {0};
        struct batch wanted = {0};

        assert_ok(mem_calloc(1, sizeof(*w), "walk", &w, &err));
        assert_ok(sampler_init(&w->sampler, 97, rank, 4, true, false, 5, &err));
        sampler_set_epoch(&w->sampler, 0);
        assert_ok(sampler_init(&sampler, 97, rank, 4, true, false, 5, &err));
        assert_ok(loader_open(d, &sampler, batch_size, NULL, &l, &err));
        for (unsigned i = 0; i < 1 + (unsigned)(support_random() * 30); i++) {
            loader_next(l, &got);
            wanted = walk_next(w, d, batch_size);
            ck_assert_uint_eq(got.offset + got.count, w->at);
        }
        loader_pause(l); /* expect the last batch again, then the rest of its epoch */
        assert_ok(sampler_repartition(&sampler, got.epoch + 1, rank / 2, 2, &err));
        assert_ok(loader_resume(l, got.epoch, got.offset, &err));
        loader_next(l, &got);
        check_same(d, &got, &wanted);
        while (!got.last_of_epoch) {
            loader_next(l, &got);
            wanted = walk_next(w, d, batch_size);
            check_same(d, &got, &wanted);
        }
        sampler_release(&w->sampler);
        assert_ok(sampler_init(&w->sampler, 97, rank / 2, 2, true, false, 5, &err));
        w->at = w->sampler.length;
        w->epoch = got.epoch;
        for (unsigned i = 0; i < 40; i++) {
            wanted = walk_next(w, d, batch_size);
            loader_next(l, &got);
            check_same(d, &got, &wanted);
        }
        loader_pause(l);
        assert_fails(loader_resume(l, 0, 1000, &err), STATUS_INVALID, "sample 1000");
        loader_close(l);
        sampler_release(&sampler);
        sampler_release(&w->sampler);
        free(w);
    }
    dataset_close(d);
}
END_TEST

/* A borrowed batch is constant until the next call, while the thread fills other buffers. */
START_TEST(a_held_batch_does_not_change)
{
    struct dataset *d = open_data();
    struct sampler sampler;
    struct loader *l;
    struct batch batch;
    float before[16 * FEATURES];
    float after[16 * FEATURES];

    assert_ok(sampler_init(&sampler, 97, 0, 1, false, false, 0, &err));
    assert_ok(loader_open(d, &sampler, 16, NULL, &l, &err));
    for (unsigned i = 0; i < 500; i++) {
        loader_next(l, &batch);
        memcpy(before, batch.x, batch.count * FEATURES * sizeof(float));
        for (unsigned k = 0; k < 50; k++) /* the time of a small step */
            memcpy(after, batch.x, batch.count * FEATURES * sizeof(float));
        ck_assert_mem_eq(before, after, batch.count * FEATURES * sizeof(float));
    }
    loader_close(l);
    sampler_release(&sampler);
    dataset_close(d);
}
END_TEST

START_TEST(closes_at_any_moment)
{
    struct dataset *d = open_data();
    struct sampler sampler;
    struct loader *l;
    struct batch batch;

    assert_ok(sampler_init(&sampler, 97, 0, 1, true, false, 0, &err));
    for (unsigned round = 0; round < 300; round++) {
        assert_ok(loader_open(d, &sampler, 30, NULL, &l, &err));
        for (unsigned i = 0; i < round % 7; i++)
            loader_next(l, &batch);
        loader_close(l);
    }
    loader_close(NULL);
    sampler_release(&sampler);
    dataset_close(d);
}
END_TEST

START_TEST(refuses)
{
    struct dataset *d = open_data();
    struct sampler sampler;
    struct loader *l;
    size_t n = 0;

    assert_ok(sampler_init(&sampler, 97, 0, 98, true, true, 0, &err));
    assert_fails(loader_open(d, &sampler, 8, NULL, &l, &err), STATUS_INVALID,
                 "data 'random:97,3,5': 97 samples leave none for rank 0 of 98");
    sampler_release(&sampler);
    assert_ok(sampler_init(&sampler, 97, 0, 1, true, false, 0, &err));
    assert_fails(loader_open(d, &sampler, 0, NULL, &l, &err), STATUS_INVALID, "batch size 0");
    for (;;) {
        enum status status;

        mem_fail_nth(++n);
        status = loader_open(d, &sampler, 8, NULL, &l, &err);
        mem_fail_nth(0);
        if (status == STATUS_OK)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
    }
    ck_assert_uint_eq(n, 1 + 1 + 16); /* the loader, and samples and labels of eight buffers */
    loader_close(l);
    sampler_release(&sampler);
    dataset_close(d);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("loader", 30, LOOP_TEST(gives_what_a_plain_walk_gives, 0, 2),
                       TEST(takes_few_large_buffers), TEST(resumes_with_another_partition),
                       TEST(a_held_batch_does_not_change), TEST(closes_at_any_moment),
                       TEST(refuses));
}
