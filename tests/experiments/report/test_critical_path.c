/*
 * The critical path of runs whose last rank and slowest server are known.
 */
#include "experiments/report/critical_path.h"

#include "experiments/report/metric.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>

#define RANKS        3
#define SERVERS      2
#define STEPS        40
#define FIRST_SERVER 2 /* those before it hold no part of the model */
#define EXACT        1e-12

/* In microseconds. */
struct step_times {
    unsigned input, forward, backward, exposed, optimizer, other;
};

static struct step_times times[RANKS][STEPS];
static struct records ranks[RANKS], servers[SERVERS];
static const char *hosts[SERVERS]; /* of the servers */
static double begins_us[SERVERS];  /* of their rounds */
static struct run run;
static struct critical_path path;
static struct error err;

/* A setting of the run. */
#define SET(member, value)                                                                         \
    ((void)snprintf(run.configuration.member, sizeof(run.configuration.member), "%s", value))

static void setup(void)
{
    run = (struct run){.ranks = ranks, .servers = servers, .rank_count = RANKS};
    SET(sync, "allreduce");
    SET(backend, "ring");
    SET(device, "cpu");
    path = (struct critical_path){0};
    hosts[0] = hosts[1] = "a";
    begins_us[0] = begins_us[1] = 0;
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned s = 0; s < STEPS; s++)
            times[r][s] = (struct step_times){100, 1000, 2000, 3000, 200, 50};
}

static void teardown(void)
{
    for (unsigned r = 0; r < RANKS; r++)
        records_release(&ranks[r]);
    for (unsigned k = 0; k < SERVERS; k++)
        records_release(&servers[k]);
    critical_path_release(&path);
}

static void parse(struct strbuf *text, unsigned index, struct records *ret)
{
    ck_assert(strbuf_ok(text));
    assert_ok(records_parse("records", text->text, text->length, index, ret, &err));
    strbuf_release(text);
}

/* The records of the ranks as a worker writes them; rank 1 without the step `missing`. */
static void write_ranks(unsigned missing)
{
    for (unsigned r = 0; r < RANKS; r++) {
        struct strbuf text = STRBUF_INIT;

        for (unsigned s = 0; s < STEPS; s++) {
            const struct step_times *t = &times[r][s];

            if (r == 1 && s == missing)
                continue;
            strbuf_addf(
                &text,
                "{\"kind\":\"step\",\"step\":%u,\"epoch\":0,\"loss\":1,\"samples\":4,"
                "\"step_ns\":%u,\"input_ns\":%u,\"compute_ns\":%u,"
                "\"forward_ns\":%u,\"exposed_comm_ns\":%u,\"optimizer_ns\":%u,"
                "\"tx_payload_bytes\":0,\"rx_payload_bytes\":0}\n",
                s + 7,
                1000 * (t->input + t->forward + t->backward + t->exposed + t->optimizer + t->other),
                1000 * t->input, 1000 * (t->forward + t->backward), 1000 * t->forward,
                1000 * t->exposed, 1000 * t->optimizer);
        }
        parse(&text, r, &ranks[r]);
    }
}

/* Rounds of `partitions` partitions; without the round of step `missing`. */
static void write_server(unsigned k, unsigned partitions, unsigned round_us, unsigned sum_us,
                         unsigned wait_us, unsigned missing)
{
    const double begin = 1.8e9 + begins_us[k] * 1e-6;
    struct strbuf text = STRBUF_INIT;

    strbuf_addf(&text, "{\"kind\":\"start\",\"host\":\"%s\",\"partitions\":%u}\n", hosts[k],
                partitions);
    for (unsigned s = 0; s < STEPS; s++)
        if (s != missing)
            strbuf_addf(&text,
                        "{\"kind\":\"round\",\"round\":%u,\"begin_wall\":%.6f,\"round_ns\":%u,"
                        "\"sum_ns\":%u,\"wait_ns\":%u}\n",
                        s + 1, begin + s, 1000 * round_us, 1000 * sum_us, 1000 * wait_us);
    parse(&text, FIRST_SERVER + k, &servers[k]);
    SET(sync, "ps");
    run.server_count = SERVERS;
}

static void assert_part(enum path_part part, double share, const char *process)
{
    char text[32];

    ck_assert_double_eq_tol(critical_path_share(&path, part), share, EXACT);
    critical_path_process(&path, part, text, sizeof(text));
    ck_assert_str_eq(text, process);
}

static void assert_described(const char *wanted)
{
    struct strbuf text = STRBUF_INIT;

    critical_path_describe(&path, &text);
    ck_assert_str_eq(text.length > 0 ? text.text : "", wanted);
    strbuf_release(&text);
}

START_TEST(test_slow_rank)
{
    for (unsigned s = 0; s < STEPS; s++) {
        times[2][s].backward = 4900;
        times[2][s].exposed = 100;
    }
    write_ranks(STEPS);
    assert_ok(critical_path_add(&path, &run, &err));
    ck_assert_uint_eq(path.steps, metric_steady(STEPS).end - metric_steady(STEPS).first);
    assert_part(PATH_BACKWARD, 4900 / 6350.0, "rank 2");
    assert_part(PATH_FORWARD, 1000 / 6350.0, "rank 2");
    assert_part(PATH_COMMUNICATION, 100 / 6350.0, "");
    assert_part(PATH_COMPUTE, 0, "");
    assert_described("77 % backward of rank 2, 16 % forward of rank 2");
    /* Two of three wait 2.9 ms for it, then all for 0.1 ms. */
    ck_assert_double_eq_tol(critical_path_caused_ms(&path, 2), 2.9 * 2 / 3, EXACT);
    ck_assert(critical_path_caused_ms(&path, 0) == 0 && critical_path_caused_ms(&path, 1) == 0);
    ck_assert_double_eq_tol(critical_path_messages_ms(&path), 0.1, EXACT);
    ck_assert_uint_eq(critical_path_latest(&path), 2);
}
END_TEST

/* Server 1 works 2.5 ms of the 2.8 ms after the last contribution. */
START_TEST(test_slow_server)
{
    write_ranks(STEPS);
    write_server(0, 1, 400, 300, 200, STEPS);
    write_server(1, 4, 3000, 2500, 800, STEPS);
    assert_ok(critical_path_add(&path, &run, &err));
    assert_part(PATH_SUM, 2500 / 6350.0, "server 3");
    assert_part(PATH_COMMUNICATION, 500 / 6350.0, "server 3");
    assert_described(
        "39 % sum of server 3, 31 % backward, 16 % forward, 8 % communication with server 3");
}
END_TEST

/* A round of server 0 is complete late, by more than 5 % of a step; clocks of two hosts say
 * nothing. */
START_TEST(test_late_server)
{
    const bool is_late = _i == 1;

    begins_us[0] = is_late ? 2000 : 1000;
    hosts[1] = _i == 2 ? "b" : "a";
    write_ranks(STEPS);
    write_server(0, 1, 100, 90, 0, STEPS);
    write_server(1, 1, 1000, 80, 0, STEPS);
    assert_ok(critical_path_add(&path, &run, &err));
    assert_part(PATH_SUM, 90 / 6350.0, "server 2");
    assert_part(PATH_COMMUNICATION, 2910 / 6350.0, is_late ? "server 2" : "");
    assert_described(is_late ? "46 % communication with server 2, 31 % backward, 16 % forward"
                             : "46 % communication, 31 % backward, 16 % forward");
}
END_TEST

/* The sum is neither more than the wait for it nor than what follows the last contribution. */
START_TEST(test_bounds_of_sums)
{
    static const struct {
        unsigned round, sum, wait, exposed, part;
    } cases[] = {
        {9000, 8000, 0, 3000, 3000}, {9000, 2000, 8500, 3000, 500}, {100, 90, 200, 3000, 0}};

    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned s = 0; s < STEPS; s++)
            times[r][s].exposed = cases[_i].exposed;
    write_ranks(STEPS);
    write_server(0, 1, cases[_i].round, cases[_i].sum, cases[_i].wait, STEPS);
    write_server(1, 1, 10, 0, 0, STEPS);
    assert_ok(critical_path_add(&path, &run, &err));
    ck_assert_double_eq_tol(critical_path_share(&path, PATH_SUM), cases[_i].part / 6350.0, EXACT);
}
END_TEST

/* Rounds of a server that was restarted do not belong to the steps by their order. */
START_TEST(test_rounds_that_begin_anew)
{
    struct strbuf text = STRBUF_INIT;

    write_ranks(STEPS);
    write_server(0, 1, 1000, 1000, 0, STEPS);
    for (unsigned n = 1; n <= STEPS + 20; n++)
        strbuf_addf(&text, "{\"kind\":\"round\",\"round\":%u,\"round_ns\":9,\"sum_ns\":9}\n",
                    n > 20 ? n - 20 : n);
    records_release(&servers[0]);
    parse(&text, FIRST_SERVER, &servers[0]);
    servers[0].partitions = 1;
    assert_ok(critical_path_add(&path, &run, &err));
    ck_assert_uint_eq(path.steps, metric_steady(STEPS).end - metric_steady(STEPS).first);
    ck_assert(critical_path_share(&path, PATH_SUM) == 0);
}
END_TEST

/* A step that a rank has not recorded is left out; one whose round is missing has no sum. */
START_TEST(test_gaps)
{
    write_ranks(STEPS - 2);
    write_server(0, 1, 1000, 1000, 0, STEPS - 3);
    write_server(1, 1, 10, 0, 0, STEPS);
    assert_ok(critical_path_add(&path, &run, &err));
    ck_assert_uint_eq(path.steps, metric_steady(STEPS).end - metric_steady(STEPS).first - 1);
    ck_assert_double_eq_tol(critical_path_share(&path, PATH_SUM),
                            1000.0 * (double)(path.steps - 1) / (6350.0 * (double)path.steps),
                            EXACT);
}
END_TEST

START_TEST(test_where_there_is_none)
{
    write_ranks(STEPS);
    write_server(0, 1, 1000, 1000, 0, STEPS);
    SET(consistency, "asp");
    assert_ok(critical_path_add(&path, &run, &err));
    SET(consistency, "ssp");
    SET(staleness, "2");
    assert_ok(critical_path_add(&path, &run, &err));
    SET(consistency, "bsp");
    SET(backup_workers, "1");
    assert_ok(critical_path_add(&path, &run, &err));
    SET(sync, "local");
    assert_ok(critical_path_add(&path, &run, &err));
    ck_assert_uint_eq(path.steps, 0);
    ck_assert(isnan(critical_path_share(&path, PATH_INPUT)));
    assert_described("");
}
END_TEST

/* Forward is issued, not computed, when it returns. */
START_TEST(test_other_device)
{
    SET(device, "cuda");
    write_ranks(STEPS);
    assert_ok(critical_path_add(&path, &run, &err));
    ck_assert_double_eq_tol(critical_path_share(&path, PATH_COMPUTE), 3000 / 6350.0, EXACT);
    ck_assert(critical_path_share(&path, PATH_BACKWARD) == 0);
}
END_TEST

/* Rank 2 waits 5 % of a step less than rank 1, and 5.1 % less than rank 0. */
START_TEST(test_almost_equal_ranks)
{
    char text[32];

    for (unsigned s = 0; s < STEPS; s++) {
        times[0][s].exposed = 3650 + 501;
        times[1][s].exposed = 3650 + 500;
        times[2][s] = (struct step_times){100, 1000, 5000, 3650, 200, 50};
    }
    write_ranks(STEPS);
    assert_ok(critical_path_add(&path, &run, &err));
    assert_part(PATH_BACKWARD, 5000 / 10000.0, "");
    ck_assert(path.ns[PATH_BACKWARD * RANKS + 0] == 0);
    ck_assert(path.ns[PATH_BACKWARD * RANKS + 1] == path.ns[PATH_BACKWARD * RANKS + 2]);
    ck_assert(critical_path_caused_ms(&path, 0) == 0);
    ck_assert_double_eq_tol(critical_path_caused_ms(&path, 1), (0.501 + 0.5) / 2 / RANKS, EXACT);
    ck_assert(critical_path_caused_ms(&path, 2) == critical_path_caused_ms(&path, 1));
    for (int i = 0; i < PATH_PARTS; i++) {
        critical_path_process(&path, (enum path_part)i, text, sizeof(text));
        ck_assert_str_eq(text, "");
    }
}
END_TEST

/* Two runs of random times: the shares are those of the ranks that wait least, and add up to 1;
 * what ranks wait for adds up to all waiting. */
START_TEST(test_random_runs)
{
    double backward = 0, total = 0, sum = 0, waited = 0, count = 0, for_all;

    for (int round = 0; round < 2; round++) {
        for (unsigned s = 0; s < STEPS; s++) {
            const struct step_times *last = &times[0][s];

            for (unsigned r = 0; r < RANKS; r++) {
                struct step_times *t = &times[r][s];

                *t = (struct step_times){
                    (unsigned)(100 * support_random()),  (unsigned)(1000 * support_random()) + 1,
                    (unsigned)(1000 * support_random()), (unsigned)(1000 * support_random()),
                    (unsigned)(100 * support_random()),  (unsigned)(100 * support_random())};
                last = t->exposed < last->exposed ? t : last;
            }
            if (s < metric_steady(STEPS).first || s >= metric_steady(STEPS).end)
                continue;
            for (unsigned r = 0; r < RANKS; r++, count++)
                waited += times[r][s].exposed * 1e-3;
            backward += last->backward;
            total += last->input + last->forward + last->backward + last->exposed +
                     last->optimizer + last->other;
        }
        for (unsigned r = 0; r < RANKS; r++)
            records_release(&ranks[r]);
        write_ranks(STEPS);
        assert_ok(critical_path_add(&path, &run, &err));
    }
    ck_assert_double_eq_tol(critical_path_share(&path, PATH_BACKWARD), backward / total, EXACT);
    for (int i = 0; i < PATH_PARTS; i++)
        sum += critical_path_share(&path, (enum path_part)i);
    ck_assert_double_eq_tol(sum, 1, EXACT);
    for_all = critical_path_messages_ms(&path);
    for (size_t r = 0; r < RANKS; r++)
        for_all += critical_path_caused_ms(&path, r);
    ck_assert_double_eq_tol(for_all, waited / count, EXACT);
}
END_TEST

static const struct {
    double queued[RANKS]; /* of 1000 bytes that each rank sends */
    const char *wanted;
} links[] = {
    {{0, 300, 300}, "the link of rank 2"},
    {{300, 1, 280}, "the link of rank 0"},
    {{2, 300, 0}, "the link from rank 1 to rank 2"},
    {{0, 0, 300}, "the link from rank 2 to rank 0"},
    {{300, 300, 300}, ""},
    {{101, 300, 300}, ""}, /* not three times as much */
    {{0, 49, 49}, ""},     /* too little */
    {{0, 0, 0}, ""},
    {{(double)NAN, 300, 300}, ""},
};

START_TEST(test_slow_link)
{
    char link[64];

    write_ranks(STEPS);
    for (unsigned r = 0; r < RANKS; r++) {
        ranks[r].end.tx_wire_bytes = 1000;
        ranks[r].end.tx_queued_bytes = links[_i].queued[r];
    }
    for (int i = 0; i < 2; i++)
        assert_ok(critical_path_add(&path, &run, &err));
    critical_path_link(&path, link, sizeof(link));
    ck_assert_str_eq(link, links[_i].wanted);
    if (_i == 0)
        assert_described("47 % communication over the link of rank 2, 31 % backward, 16 % forward");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "report critical path", 60, CHECKED_FIXTURE(setup, teardown), TEST(test_slow_rank),
        TEST(test_slow_server), LOOP_TEST(test_late_server, 0, 3),
        LOOP_TEST(test_bounds_of_sums, 0, 3), TEST(test_rounds_that_begin_anew), TEST(test_gaps),
        TEST(test_where_there_is_none), TEST(test_other_device), TEST(test_almost_equal_ranks),
        TEST(test_random_runs), LOOP_TEST(test_slow_link, 0, sizeof(links) / sizeof(links[0])));
}
