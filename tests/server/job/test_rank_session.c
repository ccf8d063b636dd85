/*
 * Rank sessions without a network: states, deadlines, silence, and which connections renew the
 * deadline to reconnect.
 */
#include "server/job/rank_session.h"

#include "tests/support/support.h"

#define MS           INT64_C(1000000)
#define RECONNECT_MS 2000

START_TEST(test_a_break_and_a_reconnect)
{
    struct rank_session s = {0};

    rank_session_hold(&s, 7, 0, 1000 * MS);
    ck_assert_int_eq(s.state, RANK_HELD);
    ck_assert_uint_eq(s.lanes, 1);
    ck_assert_uint_eq(s.connection, 1);
    s.has_chunks = true;
    s.alive_ns[0] = 1500 * MS;
    rank_session_cut(&s, "gone", RECONNECT_MS, 1600 * MS);
    ck_assert_int_eq(s.state, RANK_AWAY);
    ck_assert_int_eq(s.silent_ns, 100 * MS);
    ck_assert(!rank_session_is_overdue(&s, 3599 * MS));
    ck_assert(rank_session_is_overdue(&s, 3600 * MS));
    rank_session_hold(&s, 7, 4, 2000 * MS);
    ck_assert_uint_eq(s.connection, 2);
    ck_assert_uint_eq(s.lanes, 4);
    ck_assert(!rank_session_is_overdue(&s, 9000 * MS));
}
END_TEST

START_TEST(test_no_reconnect_without_a_session)
{
    struct rank_session s = {0};

    rank_session_hold(&s, 0, 1, 1000 * MS);
    rank_session_cut(&s, "gone", RECONNECT_MS, 1600 * MS);
    ck_assert(rank_session_is_overdue(&s, 1600 * MS));
}
END_TEST

/* A session that only reconnects is lost at its deadline, and so is one that lacks a lane twice in
 * a row.  A connection that sent chunks, or lasted long enough, renews the deadline; a new session
 * has its own. */
START_TEST(test_breaks_that_do_not_renew)
{
    struct rank_session s = {0};

    rank_session_hold(&s, 7, 1, 1000 * MS);
    rank_session_cut(&s, "gone", RECONNECT_MS, 1100 * MS);
    ck_assert_int_eq(s.until_ns, 3100 * MS); /* the first one is as long as any */
    for (int64_t at = 1200; at < 3000; at += 200) {
        rank_session_hold(&s, 7, 1, at * MS);
        rank_session_cut(&s, "gone", RECONNECT_MS, (at + 100) * MS);
        ck_assert_int_eq(s.until_ns, 3100 * MS);
    }
    rank_session_hold(&s, 7, 4, 3030 * MS);
    s.has_chunks = true;
    s.opened = 7;
    rank_session_cut(&s, "gone", RECONNECT_MS, 3040 * MS);
    ck_assert_int_eq(s.until_ns, 5040 * MS);
    rank_session_hold(&s, 7, 1, 3050 * MS);
    s.has_chunks = true;
    s.opened = 1;
    rank_session_cut(&s, "gone", RECONNECT_MS, 3080 * MS);
    ck_assert_int_eq(s.until_ns, 5080 * MS);
    rank_session_hold(&s, 7, 1, 4000 * MS);
    s.opened = 1;
    rank_session_cut(&s, "gone", RECONNECT_MS, 6000 * MS);
    ck_assert_int_eq(s.until_ns, 8000 * MS);
    rank_session_hold(&s, 7, 4, 7000 * MS);
    s.opened = 7;
    rank_session_cut(&s, "it opened 3 of 4 lanes", RECONNECT_MS, 9500 * MS);
    ck_assert_int_eq(s.until_ns, 11500 * MS); /* once: it may have been slow */
    rank_session_hold(&s, 7, 4, 9600 * MS);
    s.opened = 7;
    rank_session_cut(&s, "it opened 3 of 4 lanes", RECONNECT_MS, 12000 * MS);
    ck_assert_int_eq(s.until_ns, 11500 * MS);
    ck_assert(rank_session_is_overdue(&s, 12000 * MS));
    rank_session_hold(&s, 8, 4, 12000 * MS);
    rank_session_cut(&s, "gone", RECONNECT_MS, 12100 * MS);
    ck_assert_int_eq(s.until_ns, 14100 * MS);
}
END_TEST

/* A join whose reply was lost does not shorten the deadline of the next connection, which may lack
 * a lane once. */
START_TEST(test_joined_again)
{
    struct rank_session s = {0};

    rank_session_hold(&s, 7, 1, 1000 * MS);
    rank_session_cut(&s, "it joined again", RECONNECT_MS, 1050 * MS);
    rank_session_hold(&s, 7, 1, 1060 * MS);
    ck_assert(rank_session_is_unopened(&s, RECONNECT_MS, 3070 * MS));
    rank_session_cut(&s, "it opened 0 of 1 lanes", RECONNECT_MS, 3070 * MS);
    ck_assert_int_eq(s.until_ns, 5070 * MS);
    rank_session_hold(&s, 7, 1, 3080 * MS);
    rank_session_cut(&s, "it opened 0 of 1 lanes", RECONNECT_MS, 5090 * MS);
    ck_assert(rank_session_is_overdue(&s, 5090 * MS));
}
END_TEST

/* A restored session has the whole time until its deadline, and its first connection here may lack
 * a lane like any other. */
START_TEST(test_marked_away)
{
    struct rank_session s = {0};

    rank_session_hold(&s, 7, 2, 500 * MS);
    rank_session_mark_away(&s, "the server was restarted", 1500 * MS, 1000 * MS);
    ck_assert_int_eq(s.state, RANK_AWAY);
    ck_assert(!rank_session_is_overdue(&s, 1499 * MS));
    ck_assert(rank_session_is_overdue(&s, 1500 * MS));
    rank_session_hold(&s, 7, 2, 1400 * MS);
    s.has_chunks = true;
    s.opened = 1;
    rank_session_cut(&s, "it opened 1 of 2 lanes", RECONNECT_MS, 1450 * MS);
    ck_assert_int_eq(s.until_ns, 3450 * MS);
    rank_session_hold(&s, 7, 2, 1500 * MS);
    s.has_chunks = true;
    s.opened = 1;
    rank_session_cut(&s, "it opened 1 of 2 lanes", RECONNECT_MS, 3000 * MS);
    ck_assert_int_eq(s.until_ns, 3450 * MS);
}
END_TEST

/* A pointer that is not NULL and never dereferenced. */
static struct rpc_call *some_call(void)
{
    union {
        int memory;
        struct rpc_call *call;
    } it = {.memory = 1};

    return it.call;
}

START_TEST(test_silence)
{
    struct rank_session s = {0};
    unsigned lane = 9;

    rank_session_hold(&s, 7, 1, 1000 * MS);
    ck_assert(!rank_session_has_heartbeat(&s));
    ck_assert(!rank_session_is_silent(&s, 500, 9000 * MS, &lane)); /* no heartbeats yet */
    ck_assert(!rank_session_is_unopened(&s, 500, 1500 * MS));
    ck_assert(rank_session_is_unopened(&s, 500, 1501 * MS));
    s.opened = 1;
    ck_assert(!rank_session_is_unopened(&s, 500, 9000 * MS));
    s.heartbeats[0] = some_call();
    ck_assert(rank_session_has_heartbeat(&s));
    ck_assert(!rank_session_is_silent(&s, 500, 1500 * MS, &lane));
    ck_assert(rank_session_is_silent(&s, 500, 1501 * MS, &lane));
    ck_assert(!rank_session_is_silent(&s, 0, 9000 * MS, &lane)); /* without heartbeats */
    s.heartbeats[0] = NULL;
    rank_session_cut(&s, "gone", RECONNECT_MS, 1600 * MS);
    ck_assert(!rank_session_is_silent(&s, 500, 9000 * MS, &lane));
}
END_TEST

/* The silence of a session is that of its longest silent lane, among the lanes with heartbeats. */
START_TEST(test_the_silence_of_a_lane)
{
    struct rank_session s = {0};
    unsigned lane = 9;

    rank_session_hold(&s, 7, 3, 1000 * MS);
    s.opened = 5;
    ck_assert(!rank_session_is_open(&s));
    ck_assert(rank_session_is_unopened(&s, 500, 1501 * MS));
    s.opened = 7;
    ck_assert(rank_session_is_open(&s));
    ck_assert(!rank_session_is_unopened(&s, 500, 9000 * MS));
    s.heartbeats[2] = some_call();
    s.alive_ns[2] = 1400 * MS; /* lanes 0 and 1 have no Attend call */
    ck_assert(!rank_session_is_silent(&s, 500, 1900 * MS, &lane));
    s.heartbeats[0] = s.heartbeats[1] = some_call();
    s.alive_ns[0] = 2000 * MS;
    ck_assert(rank_session_is_silent(&s, 500, 2000 * MS, &lane));
    ck_assert_uint_eq(lane, 1);
    s.alive_ns[1] = 2000 * MS;
    ck_assert(rank_session_is_silent(&s, 500, 2000 * MS, &lane));
    ck_assert_uint_eq(lane, 2);
    rank_session_cut(&s, "gone", RECONNECT_MS, 2100 * MS);
    ck_assert_int_eq(s.silent_ns, 700 * MS);
    rank_session_hold(&s, 7, 16, 3000 * MS);
    s.opened = 0x7fff;
    ck_assert(!rank_session_is_open(&s));
    s.opened = 0xffff;
    ck_assert(rank_session_is_open(&s));
}
END_TEST

/* The server was suspended: that time is not counted for lanes that were last heard before it. */
START_TEST(test_pauses_of_the_server_are_excluded)
{
    struct rank_session s = {0}, away = {0};

    rank_session_hold(&s, 7, 1, 1000 * MS);
    rank_session_exclude_pause(&s, 1200 * MS, 4200 * MS);
    ck_assert_int_eq(s.alive_ns[0], 4000 * MS);
    s.alive_ns[1] = 3000 * MS;
    rank_session_exclude_pause(&s, 3900 * MS, 9000 * MS); /* only lane 1 was last heard before */
    ck_assert_int_eq(s.alive_ns[0], 4000 * MS);
    ck_assert_int_eq(s.alive_ns[1], 8100 * MS);
    rank_session_hold(&away, 7, 1, 1000 * MS);
    rank_session_cut(&away, "gone", RECONNECT_MS, 1100 * MS);
    rank_session_exclude_pause(&away, 1200 * MS, 4200 * MS);
    ck_assert_int_eq(away.alive_ns[0], 1000 * MS);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rank_session", 0, TEST(test_a_break_and_a_reconnect),
                       TEST(test_no_reconnect_without_a_session),
                       TEST(test_breaks_that_do_not_renew), TEST(test_joined_again),
                       TEST(test_marked_away), TEST(test_silence), TEST(test_the_silence_of_a_lane),
                       TEST(test_pauses_of_the_server_are_excluded));
}
