/*
 * The ring over gRPC under mutual TLS: the results of a group and of a smaller one made from it,
 * and what each side is told when certificates, tokens or the lack of them keep two ranks apart.
 * Skipped without the openssl command.
 */
#include "tests/common/collective/ring_world.h"
#include "tests/support/certificate.h"

#include "common/base/log.h"
#include "common/rpc/rpc.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define COUNT      100000
#define TIMEOUT_MS 30000
#define SHORT_MS   2000 /* where no link can stand */

/* What a rank is given, and what came of it. */
struct tls_rank {
    const char *name; /* of the group */
    unsigned rank, size;
    int64_t timeout_ms;
    struct rpc_security security;
    enum status status;
    struct error err;
};

static struct rpc_security security_of(const char *name)
{
    return (struct rpc_security){.ca_file = certificate_file("ca", "pem"),
                                 .cert_file = certificate_file(name, "pem"),
                                 .key_file = certificate_file(name, "key")};
}

static void sum_ranks(struct collective *group)
{
    static _Thread_local float values[COUNT];
    unsigned size = collective_world_size(group), rank = collective_rank(group);
    struct error err = {0};

    for (size_t i = 0; i < COUNT; i++)
        values[i] = (float)(rank + i % 100);
    assert_ok(collective_all_reduce(group, values, COUNT, REDUCE_FAST, &err));
    for (size_t i = 0; i < COUNT; i++)
        ck_assert_double_eq((double)values[i], (double)(size * (size - 1) / 2 + size * (i % 100)));
}

static void *run_rank(void *argument)
{
    struct tls_rank *r = argument;
    const unsigned pair[] = {0, 2};
    struct store *store = world_store(r->rank, r->size, &r->err);
    struct collective_config config = {.backend = "grpc",
                                       .name = r->name,
                                       .rank = r->rank,
                                       .world_size = r->size,
                                       .store = store,
                                       .timeout_ms = r->timeout_ms,
                                       .security = &r->security};
    struct collective *group = NULL, *smaller = NULL;
    struct error err = {0};

    ck_assert_msg(store != NULL, "%s", r->err.text);
    r->status = collective_open(&config, &group, &r->err);
    if (r->status == STATUS_OK) {
        sum_ranks(group);
        if (r->size > 2)
            assert_ok(collective_new_group(group, pair, 2, "pair", &smaller, &err));
        if (smaller)
            sum_ranks(smaller);
        collective_close(smaller);
    }
    collective_close(group);
    store_close(store, 0);
    return NULL;
}

/* Run ranks, each with its security already set. */
static void run_ranks(struct tls_rank *ranks, unsigned size, int64_t timeout_ms)
{
    static unsigned groups;
    pthread_t threads[WORLD_RANKS_MAX];
    char name[16];

    (void)snprintf(name, sizeof(name), "tls%u", groups++);
    for (unsigned r = 0; r < size; r++) {
        ranks[r].name = name;
        ranks[r].rank = r;
        ranks[r].size = size;
        ranks[r].timeout_ms = timeout_ms;
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (unsigned r = 0; r < size; r++)
        (void)pthread_join(threads[r], NULL);
}

static void expect_failure(const struct tls_rank *r, const char *part)
{
    ck_assert_int_ne(r->status, STATUS_OK);
    ck_assert_msg(strstr(r->err.text, part) != NULL, "rank %u: '%s' lacks '%s'", r->rank,
                  r->err.text, part);
}

/* Certificates of an authority: "node" for this host, "elsewhere" for another one. */
static bool prepare(void)
{
    log_set_level(LOG_QUIET);
    if (!certificate_can_make())
        return false;
    certificate_make_authority("ca");
    certificate_make("node", "ca", "subjectAltName=IP:127.0.0.1");
    certificate_make("elsewhere", "ca", "subjectAltName=IP:10.1.2.3");
    return true;
}

START_TEST(test_sums_under_tls)
{
    struct tls_rank ranks[3] = {0};

    if (!prepare())
        return;
    for (unsigned r = 0; r < 3; r++) {
        ranks[r].security = security_of("node");
        ranks[r].security.token_file = support_write("token", "0123456789abcdef", 16);
    }
    run_ranks(ranks, 3, TIMEOUT_MS);
    for (unsigned r = 0; r < 3; r++)
        ck_assert_msg(ranks[r].status == STATUS_OK, "rank %u: %s", r, ranks[r].err.text);
}
END_TEST

START_TEST(test_a_token_is_wanted)
{
    struct tls_rank ranks[2] = {0};

    if (!prepare())
        return;
    for (unsigned r = 0; r < 2; r++)
        ranks[r].security = security_of("node");
    ranks[0].security.token_file = support_write("token", "0123456789abcdef", 16);
    run_ranks(ranks, 2, SHORT_MS);
    expect_failure(&ranks[1], "bearer token");
    ck_assert_int_ne(ranks[0].status, STATUS_OK);
}
END_TEST

/* The certificate of rank 0 is for another address: rank 1 says so. */
START_TEST(test_a_certificate_of_another_host)
{
    struct tls_rank ranks[2] = {0};

    if (!prepare())
        return;
    ranks[0].security = security_of("elsewhere");
    ranks[1].security = security_of("node");
    run_ranks(ranks, 2, SHORT_MS);
    expect_failure(&ranks[1], "to rank 0: cannot reach 127.0.0.1:");
    ck_assert_int_ne(ranks[0].status, STATUS_OK);
}
END_TEST

/* Neither side falls back to plaintext. */
START_TEST(test_one_side_without_tls)
{
    if (!prepare())
        return;
    for (unsigned with_tls = 0; with_tls < 2; with_tls++) {
        struct tls_rank ranks[2] = {0};

        ranks[with_tls].security = security_of("node");
        run_ranks(ranks, 2, SHORT_MS);
        ck_assert_int_ne(ranks[0].status, STATUS_OK);
        ck_assert_int_ne(ranks[1].status, STATUS_OK);
    }
}
END_TEST

START_TEST(test_one_of_three_files)
{
    struct tls_rank ranks[2] = {0};

    if (!prepare())
        return;
    for (unsigned r = 0; r < 2; r++)
        ranks[r].security.cert_file = certificate_file("node", "pem");
    run_ranks(ranks, 2, TIMEOUT_MS);
    for (unsigned r = 0; r < 2; r++)
        expect_failure(&ranks[r], "TLS needs three files; missing: certificate authority key");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("ring_tls", 120, TEST(test_sums_under_tls), TEST(test_a_token_is_wanted),
                       TEST(test_a_certificate_of_another_host), TEST(test_one_side_without_tls),
                       TEST(test_one_of_three_files));
}
