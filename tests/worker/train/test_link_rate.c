/*
 * The rate and the round trip between hosts, measured by three ranks through one store: all get the
 * same.
 */
#include "worker/train/link_rate.h"

#include "tests/support/support.h"

#include <pthread.h>
#include <stdio.h>

#define RANKS      3u
#define TIMEOUT_MS 20000

struct rank_thread {
    pthread_t thread;
    struct launch_env launch;
    struct store *store;
    struct link_rate rate;
    enum status status;
    struct error err;
};

static void *measure(void *user)
{
    struct rank_thread *r = user;

    r->status = link_rate_measure(r->store, &r->rate, &r->err);
    return NULL;
}

START_TEST(test_all_ranks_get_one_rate)
{
    struct rank_thread ranks[RANKS] = {0};
    char url[600];
    struct error err = {0};

    (void)snprintf(url, sizeof(url), "file://%s", support_path("store"));
    for (unsigned i = 0; i < RANKS; i++) {
        struct rank_thread *r = &ranks[i];
        struct store_config config = {
            .init_method = url, .launch = &r->launch, .group = "job", .timeout_ms = TIMEOUT_MS};

        r->launch.rank = i;
        r->launch.world_size = RANKS;
        assert_ok(store_open(&config, &r->store, &err));
        ck_assert_int_eq(pthread_create(&r->thread, NULL, measure, r), 0);
    }
    for (unsigned i = 0; i < RANKS; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        ck_assert_msg(ranks[i].status == STATUS_OK, "%s", ranks[i].err.text);
        ck_assert_double_gt(ranks[i].rate.bytes_per_s, 1e3);
        ck_assert_double_lt(ranks[i].rate.bytes_per_s, 1e15);
        ck_assert_double_gt(ranks[i].rate.round_trip_s, 1e-7);
        ck_assert_double_lt(ranks[i].rate.round_trip_s, 1);
        ck_assert_mem_eq(&ranks[i].rate, &ranks[0].rate, sizeof(ranks[0].rate));
    }
    for (unsigned i = RANKS; i-- > 0;)
        store_close(ranks[i].store, 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("link_rate", 0, TEST(test_all_ranks_get_one_rate));
}
