/*
 * Handles: started and waited for in any order, polled, waited for too briefly, too many; sends and
 * receives that cross.
 */
#include "tests/common/collective/conformance/conformance.h"

#include "common/base/clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define CASES 13

/* Elements of what is long here, and of messages that no buffer of the system takes. */
#define LONG_COUNT    SUPPORT_DRAWS(70001, 9001)
#define MESSAGE_COUNT SUPPORT_DRAWS(1 << 19, 1 << 16)

/* Operations of several kinds and sizes, one behind the other. */
static void some_cases(const struct conformance *c, struct conformance_case ret[CASES])
{
    static const enum collective_call calls[] = {
        COLLECTIVE_ALL_REDUCE,     COLLECTIVE_BROADCAST,  COLLECTIVE_ALL_GATHER,
        COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_TO_ALL, COLLECTIVE_REDUCE,
        COLLECTIVE_BARRIER,
    };

    for (unsigned k = 0; k < CASES; k++)
        ret[k] = (struct conformance_case){
            .call = calls[k % (sizeof(calls) / sizeof(calls[0]))],
            .dtype = (enum dtype)(k % 2 ? DTYPE_FLOAT32 : DTYPE_INT64),
            .count = (size_t)(k % 3 == 0 ? LONG_COUNT : 1 + 100 * k),
            .root = k % c->size,
            .in_place = k % 4 == 1,
            .kind = VALUES_EXACT,
            .placement = (enum placement)(k % PLACE_COUNT),
        };
}

static void wait_for(struct conformance *c, struct conformance_pending *p)
{
    struct error err = {0};
    char text[256];

    if (collective_wait(p->work, INT64_MAX, &err) != STATUS_OK)
        ck_abort_msg("%s: %s", case_text(c, &p->what, text), err.text);
    case_check(c, p);
}

/* Start all; then wait in an order that is this rank's own. */
void conformance_wait_order(struct conformance *c)
{
    for (unsigned round = 0; round < 4; round++) {
        struct conformance_case cases[CASES];
        struct conformance_pending pending[CASES];
        bool started[CASES];

        some_cases(c, cases);
        for (unsigned k = 0; k < CASES; k++)
            started[k] = case_start(c, &cases[k], &pending[k]);
        for (unsigned k = 0; k < CASES; k++) {
            unsigned turn = k; /* in order, backwards, and in strides that visit all */

            if (round == 1)
                turn = CASES - 1 - k;
            else if (round > 1)
                turn = (k * (2 + c->rank + round) + c->rank) % CASES;
            if (started[turn])
                wait_for(c, &pending[turn]);
        }
    }
}

/* Nothing but poll moves the operations; wait then only returns the status. */
void conformance_poll(struct conformance *c)
{
    struct conformance_case cases[CASES];
    struct conformance_pending pending[CASES];
    bool started[CASES];
    bool all_done = false;

    some_cases(c, cases);
    for (unsigned k = 0; k < CASES; k++)
        started[k] = case_start(c, &cases[k], &pending[k]);
    while (!all_done) {
        all_done = true;
        for (unsigned k = 0; k < CASES; k++) {
            bool done = true;

            if (started[k])
                collective_poll(pending[k].work, &done);
            all_done = all_done && done;
        }
        (void)sched_yield();
    }
    for (unsigned k = 0; k < CASES; k++)
        if (started[k])
            wait_for(c, &pending[k]);
}

/* Rank 0 comes alone, waits too briefly, twice, and then lets the others start. */
void conformance_deadline(struct conformance *c)
{
    struct conformance_case what = {
        .call = COLLECTIVE_ALL_REDUCE, .count = 40009, .kind = VALUES_EXACT};
    struct conformance_pending first, second;
    struct error err = {0};

    if (c->rank != 0)
        conformance_await(c, "come");
    ck_assert(case_start(c, &what, &first));
    ck_assert(case_start(c, &what, &second));
    if (c->rank == 0 && c->size > 1) {
        assert_fails(collective_wait(second.work, clock_now_ns() + 20000000, &err), STATUS_TIMEOUT,
                     "all_reduce #2");
        assert_fails(collective_wait(first.work, 0, &err), STATUS_TIMEOUT, "all_reduce #1");
    }
    if (c->rank == 0)
        conformance_signal(c, "come");
    wait_for(c, &first);
    wait_for(c, &second);
    case_run(c, &what);
}

void conformance_full_queue(struct conformance *c)
{
    struct conformance_case what = {
        .call = COLLECTIVE_ALL_REDUCE, .count = 3, .kind = VALUES_EXACT};
    struct conformance_pending pending[COLLECTIVE_WORKS_MAX];
    struct collective_work *one_more;
    struct error err = {0};

    for (unsigned k = 0; k < COLLECTIVE_WORKS_MAX; k++)
        ck_assert(case_start(c, &what, &pending[k]));
    assert_fails(collective_start(c->group, &pending[0].args, &one_more, &err), STATUS_INVALID,
                 "64 operations");
    for (unsigned k = COLLECTIVE_WORKS_MAX; k > 0; k--)
        wait_for(c, &pending[k - 1]);
    case_run(c, &what);
}

/* ---- send and recv ---- */

/* Every rank starts a send to and a receive from every other, and waits for the receives first:
 * large messages cannot hide in a buffer of the system. */
static void exchange_all(struct conformance *c, size_t count)
{
    struct conformance_pending pending[2 * CONFORMANCE_RANKS_MAX];
    struct conformance_case what = {
        .dtype = DTYPE_INT32, .count = count, .kind = VALUES_RANDOM, .shift = count % 3};
    unsigned works = 0;

    for (unsigned k = 1; k < c->size; k++) {
        what.call = COLLECTIVE_SEND;
        what.root = (c->rank + k) % c->size;
        what.placement = (enum placement)(k % PLACE_COUNT);
        if (!case_start(c, &what, &pending[works]))
            return;
        works++;
        what.call = COLLECTIVE_RECV;
        what.root = (c->rank + c->size - k) % c->size;
        ck_assert(case_start(c, &what, &pending[works++]));
    }
    for (unsigned k = 1; k < works; k += 2)
        wait_for(c, &pending[k]);
    for (unsigned k = 0; k < works; k += 2)
        wait_for(c, &pending[k]);
}

/* Blocking calls: one way round the ring of ranks, rank 0 sends first. */
static void pass_round(struct conformance *c, size_t count)
{
    struct conformance_case send = {.call = COLLECTIVE_SEND,
                                    .dtype = DTYPE_FLOAT32,
                                    .count = count,
                                    .kind = VALUES_RANDOM,
                                    .root = (c->rank + 1) % c->size};
    struct conformance_case recv = send;

    recv.call = COLLECTIVE_RECV;
    recv.root = (c->rank + c->size - 1) % c->size;
    if (c->rank == 0)
        case_run(c, &send);
    case_run(c, &recv);
    if (c->rank != 0)
        case_run(c, &send);
}

void conformance_crossing(struct conformance *c)
{
    static const size_t counts[] = {0, 1, 17, 4099, MESSAGE_COUNT};

    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]) && c->size > 1; k++) {
        exchange_all(c, counts[k]);
        pass_round(c, counts[k]);
        case_run(c, &(struct conformance_case){
                        .call = COLLECTIVE_ALL_REDUCE, .count = counts[k], .kind = VALUES_EXACT});
    }
}
