/*
 * What the members' answers mean, without any connection.
 */
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/collective/verdict.h"

#include <string.h>

#define RANKS 4u

static const unsigned members[RANKS] = {1, 2, 4, 7}; /* of the job */

static struct signature operation(enum collective_call call, uint64_t sequence)
{
    return (struct signature){
        .call = call, .group = 9, .generation = 1, .sequence = sequence, .count = 10};
}

/* All run all_reduce #5 and have moved half of their bytes. */
static void all_alike(struct mesh_view *views, uint64_t *left)
{
    for (unsigned r = 0; r < RANKS; r++) {
        views[r] = (struct mesh_view){.replied = true,
                                      .status = {.phase = MESH_RUNNING,
                                                 .signature = operation(COLLECTIVE_ALL_REDUCE, 5),
                                                 .done_bytes = 50,
                                                 .total_bytes = 100}};
        left[r] = UINT64_MAX;
    }
}

struct result {
    enum fault fault;
    unsigned culprit;
    char text[256];
};

static struct result judge(const struct mesh_view *views, const uint64_t *left, unsigned self,
                           const struct signature *mine)
{
    struct result r = {.culprit = RANKS};

    r.fault = verdict_from_views(views, left, members, RANKS, self, mine, &r.culprit, r.text,
                                 sizeof(r.text));
    return r;
}

/* The verdict is `fault` of `culprit` on every rank in the operation. */
static void check_all(const struct mesh_view *views, const uint64_t *left, enum fault fault,
                      unsigned culprit, const char *part)
{
    for (unsigned self = 0; self < RANKS; self++) {
        const struct mesh_status *s = &views[self].status;
        struct result r;

        if (s->phase != MESH_RUNNING || s->signature.sequence != 5 || left[self] != UINT64_MAX)
            continue;
        r = judge(views, left, self, &s->signature);
        ck_assert_msg(r.fault == fault && r.culprit == culprit, "rank %u: %s of rank %u: %s", self,
                      fault_name(r.fault), r.culprit, r.text);
        ck_assert_msg(strstr(r.text, part) != NULL, "no '%s' in '%s'", part, r.text);
    }
}

START_TEST(the_one_that_moved_least_is_slow)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];

    for (unsigned slow = 0; slow < RANKS; slow++) {
        all_alike(views, left);
        views[slow].status.done_bytes = 7;
        check_all(views, left, FAULT_SLOW, slow, "7 of its 100 bytes");
    }
}
END_TEST

/* Who waits much less than the others keeps them waiting; bytes are said where they are known. */
START_TEST(the_one_that_waits_least_is_slow)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];

    for (unsigned slow = 0; slow < RANKS; slow++) {
        all_alike(views, left);
        for (unsigned r = 0; r < RANKS; r++) {
            views[r].status.done_bytes = views[r].status.total_bytes = 0; /* a library */
            views[r].status.waited_ns = r == slow ? 100000000 : 2000000000;
        }
        check_all(views, left, FAULT_SLOW, slow, "it has waited for 0.10 s, no other for less");
    }
}
END_TEST

/* It came when the others had spent more than half of their time; who came a bit later did not. */
START_TEST(the_one_that_came_late_is_slow)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];
    int64_t now_ns = clock_now_ns();

    for (unsigned late = 0; late < RANKS; late++) {
        all_alike(views, left);
        for (unsigned r = 0; r < RANKS; r++)
            views[r].status.since_ns = now_ns - (r == late ? 1000000000 : 4000000000);
        check_all(views, left, FAULT_SLOW, late, "came to it 3.00 s after all others");
        views[late].status.since_ns = now_ns - 3000000000;
        check_all(views, left, FAULT_SLOW, VERDICT_RANK_UNKNOWN, "none waits or moves much less");
    }
}
END_TEST

/* Where none stands out, no rank is named: a wrong name is worse than none. */
START_TEST(nobody_is_named_where_nobody_stands_out)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];

    all_alike(views, left);
    check_all(views, left, FAULT_SLOW, VERDICT_RANK_UNKNOWN, "none waits or moves much less");
    for (unsigned r = 0; r < RANKS; r++)
        views[r].status.done_bytes = views[r].status.total_bytes = 0;
    check_all(views, left, FAULT_SLOW, VERDICT_RANK_UNKNOWN, "nothing shows how far each is");
    views[0].replied = views[1].replied = views[2].replied = false;
    check_all(views, left, FAULT_SLOW, VERDICT_RANK_UNKNOWN, "nothing shows how far each is");
}
END_TEST

START_TEST(the_one_that_has_not_come_is_stalled)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];

    for (unsigned late = 0; late < RANKS; late++) {
        all_alike(views, left);
        views[late].status.phase = MESH_IDLE;
        views[late].status.signature.sequence = 4;
        check_all(views, left, FAULT_STALLED, late, "begun nothing since it ended all_reduce #4");
        /* One that is in the operation before it is not as late as one that has not begun any. */
        views[(late + 1) % RANKS].status = (struct mesh_status){.phase = MESH_IDLE};
        check_all(views, left, FAULT_STALLED, (late + 1) % RANKS, "not begun any operation");
    }
}
END_TEST

START_TEST(one_that_is_ahead_is_not_to_blame)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];

    all_alike(views, left);
    views[0].status.phase = MESH_IDLE; /* it has ended #5 */
    views[2].status.done_bytes = 3;
    check_all(views, left, FAULT_SLOW, 2, "3 of its 100");
    left[0] = 5; /* and left */
    check_all(views, left, FAULT_SLOW, 2, "3 of its 100");
    left[0] = 4; /* it left before */
    check_all(views, left, FAULT_FINISHED, 0, "left the group in order");
}
END_TEST

/* Another one that is further behind may still start the operation; one that has left never does.
 */
START_TEST(the_one_that_left_is_to_blame_before_one_that_is_late)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];

    for (unsigned leaver = 0; leaver < RANKS; leaver++) {
        all_alike(views, left);
        left[leaver] = 4;
        views[(leaver + 1) % RANKS].status.signature.sequence = 4; /* runs it still */
        check_all(views, left, FAULT_FINISHED, leaver, "left the group in order");
        views[(leaver + 1) % RANKS].status = (struct mesh_status){.phase = MESH_IDLE};
        check_all(views, left, FAULT_FINISHED, leaver, "left the group in order");
        left[(leaver + 2) % RANKS] = 3; /* of two, the one that left the earlier */
        check_all(views, left, FAULT_FINISHED, (leaver + 2) % RANKS, "left the group in order");
    }
}
END_TEST

START_TEST(the_odd_one_is_desynchronised)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];

    for (unsigned odd = 0; odd < RANKS; odd++) {
        all_alike(views, left);
        views[odd].status.signature = operation(COLLECTIVE_BARRIER, 5);
        check_all(views, left, FAULT_DESYNC, odd, "barrier #5");
        check_all(views, left, FAULT_DESYNC, odd, odd == 0 ? "rank 2 is in" : "rank 1 is in");
    }
    /* Two against two: not the side of the lowest rank. */
    all_alike(views, left);
    views[0].status.signature.count = views[3].status.signature.count = 11;
    check_all(views, left, FAULT_DESYNC, 1, "of 11 float32");
}
END_TEST

/* Which of two sides is the odd one is open while those that have not come could turn it. */
START_TEST(the_sides_are_open_until_enough_have_come)
{
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];
    const struct signature mine = operation(COLLECTIVE_ALL_REDUCE, 5);

    all_alike(views, left);
    ck_assert(!verdict_is_open(views, left, RANKS, &mine));
    views[1].status.signature.count = 11;
    ck_assert(!verdict_is_open(views, left, RANKS, &mine));
    views[2].status.signature.sequence = 4; /* two to one: it may make them equal */
    ck_assert(verdict_is_open(views, left, RANKS, &mine));
    views[3].replied = false;
    ck_assert(verdict_is_open(views, left, RANKS, &mine));
    views[2].fault = FAULT_DEAD;
    ck_assert(verdict_is_open(views, left, RANKS, &mine));
    views[3].replied = true;
    ck_assert(!verdict_is_open(views, left, RANKS, &mine));
    views[2].fault = FAULT_NONE;
    views[2].status.signature = (struct signature){.call = 0};
    ck_assert(verdict_is_open(views, left, RANKS, &mine));
    views[2].status.signature = operation(COLLECTIVE_BARRIER, 6); /* has passed it */
    ck_assert(!verdict_is_open(views, left, RANKS, &mine));
    views[2].status.signature.sequence = 4;
    left[2] = 4; /* it never comes, and is the one to blame */
    ck_assert(!verdict_is_open(views, left, RANKS, &mine));
}
END_TEST

START_TEST(a_transfer_concerns_its_peer_alone)
{
    struct signature recv = operation(COLLECTIVE_RECV, 1);
    struct mesh_view views[RANKS];
    uint64_t left[RANKS];
    struct result r;

    recv.root = 2;
    all_alike(views, left);
    views[1].status = (struct mesh_status){.phase = MESH_IDLE};
    r = judge(views, left, 3, &recv);
    ck_assert(r.fault == FAULT_DESYNC && r.culprit == 2);
    views[2].status.signature = operation(COLLECTIVE_SEND, 1);
    views[2].status.signature.root = 3;
    r = judge(views, left, 3, &recv);
    ck_assert(r.fault == FAULT_SLOW && r.culprit == 2);
    views[2].status.phase = MESH_IDLE;
    r = judge(views, left, 3, &recv);
    ck_assert(r.fault == FAULT_STALLED && r.culprit == 2);
    left[2] = 0;
    r = judge(views, left, 3, &recv);
    ck_assert(r.fault == FAULT_FINISHED && r.culprit == 2);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "verdict", 0, TEST(the_one_that_moved_least_is_slow),
        TEST(the_one_that_waits_least_is_slow), TEST(the_one_that_came_late_is_slow),
        TEST(nobody_is_named_where_nobody_stands_out), TEST(the_one_that_has_not_come_is_stalled),
        TEST(one_that_is_ahead_is_not_to_blame),
        TEST(the_one_that_left_is_to_blame_before_one_that_is_late),
        TEST(the_odd_one_is_desynchronised), TEST(the_sides_are_open_until_enough_have_come),
        TEST(a_transfer_concerns_its_peer_alone));
}
