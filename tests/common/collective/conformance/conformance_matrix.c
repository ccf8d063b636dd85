/*
 * Every operation, at every size that is likely to go wrong.
 */
#include "tests/common/collective/conformance/conformance.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const enum collective_call calls[] = {
    COLLECTIVE_ALL_REDUCE,     COLLECTIVE_BROADCAST,  COLLECTIVE_REDUCE,
    COLLECTIVE_ALL_GATHER,     COLLECTIVE_GATHER,     COLLECTIVE_SCATTER,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_TO_ALL, COLLECTIVE_BARRIER,
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

/* Roots in turn; `all` of them where that is asked for. */
static void run_roots(struct conformance *c, struct conformance_case what, bool all)
{
    unsigned roots = case_has_root(what.call) && all ? c->size : 1;

    for (unsigned k = 0; k < roots; k++) {
        what.root = ((unsigned)what.count + (unsigned)what.dtype + k) % c->size;
        case_run(c, &what);
    }
}

/* In place and not, and reductions with both kinds of values; alignment and registered memory
 * change from count to count. */
static void run_count(struct conformance *c, struct conformance_case what, unsigned turn)
{
    bool both_kinds = collective_call_reduces(what.call);

    what.shift = turn / 2 % 2 == 0 ? 0 : 1 + turn % 3;
    what.placement = (enum placement)(turn % PLACE_COUNT);
    for (unsigned pass = 0; pass < (what.call == COLLECTIVE_BARRIER ? 1 : 2); pass++) {
        what.in_place = (turn + pass) % 2 == 0;
        what.kind = both_kinds && pass == 0 ? VALUES_EXACT : VALUES_RANDOM;
        run_roots(c, what, what.dtype == DTYPE_FLOAT32);
    }
}

/* shm and ring run all cases; ring with other numbers of streams, what is made of them, other
 * people's libraries, slow transports and instrumented builds run a sample that changes from run to
 * run. */
static bool is_chosen(const struct conformance *c, const struct conformance_case *what, size_t k)
{
    bool whole =
        (strcmp(c->backend, "shm") == 0 || strcmp(c->backend, "ring") == 0) && !c->streams_wanted;
    unsigned one_of = CONFORMANCE_INSTRUMENTED ? 15 : whole ? 1 : 5;
    size_t place = (size_t)what->call * 131 + (size_t)what->dtype * 29 + (size_t)what->op * 7 +
                   (size_t)what->order * 3 + k;

    return (place + c->seed) % one_of == 0;
}

static void run_counts(struct conformance *c, struct conformance_case what)
{
    const size_t n = c->size;
    const size_t counts[] = {0, 1, n - 1, n, n + 1, 127, 1009, 5003};
    unsigned turn = (unsigned)what.dtype + (unsigned)what.op;

    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        what.count = counts[k];
        if (is_chosen(c, &what, k))
            run_count(c, what, turn + (unsigned)k);
    }
}

static void run_operations(struct conformance *c, struct conformance_case what)
{
    if (!collective_call_reduces(what.call)) {
        run_counts(c, what);
        return;
    }
    for (int op = 0; op < REDUCE_OP_COUNT; op++) {
        for (int order = REDUCE_FAST; order <= REDUCE_REPRODUCIBLE; order++) {
            what.op = (enum reduce_op)op;
            what.order = (enum reduce_order)order;
            run_counts(c, what);
        }
    }
}

void conformance_matrix(struct conformance *c)
{
    for (size_t k = 0; k < CALLS; k++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            if (calls[k] != COLLECTIVE_BARRIER || dtype == 0)
                run_operations(
                    c, (struct conformance_case){.call = calls[k], .dtype = (enum dtype)dtype});
}

void conformance_short(struct conformance *c)
{
    for (size_t k = 0; k < CALLS; k++)
        run_counts(c, (struct conformance_case){.call = calls[k]});
}

/* A bit more than 1 MiB, so that segments and chunks are cut unevenly.  Under a sanitizer a call
 * has a third of the types, and the next call the next third. */
void conformance_large(struct conformance *c)
{
    const int step = SUPPORT_DRAWS(1, 3);

    for (size_t k = 0; k < CALLS; k++) {
        for (int dtype = (int)k % step; dtype < DTYPE_COUNT; dtype += step) {
            struct conformance_case what = {
                .call = calls[k],
                .dtype = (enum dtype)dtype,
                .count = CONFORMANCE_MIB / dtype_size((enum dtype)dtype) + 3,
                .kind = VALUES_RANDOM,
                .in_place = (k + (size_t)dtype) % 2 == 0,
                .shift = (size_t)dtype % 3,
                .placement = (enum placement)((k + (size_t)dtype) % PLACE_COUNT),
            };

            if (what.call == COLLECTIVE_BARRIER || !is_chosen(c, &what, 0))
                continue;
            run_roots(c, what, false);
            if (!collective_call_reduces(what.call))
                continue;
            what.order = REDUCE_REPRODUCIBLE;
            what.in_place = !what.in_place;
            run_roots(c, what, false);
        }
    }
}

/* Infinities, NaN and signed zeros are as in one addition, on every rank.  What a minimum makes of
 * NaN, libraries decide for themselves. */
void conformance_special(struct conformance *c)
{
    static const enum reduce_op ops[] = {REDUCE_SUM, REDUCE_AVG, REDUCE_PREMUL_SUM};

    for (size_t k = 0; k < CALLS; k++) {
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            if (!collective_call_reduces(calls[k]) || !dtype_is_float((enum dtype)dtype))
                continue;
            for (size_t op = 0; op < sizeof(ops) / sizeof(ops[0]); op++)
                for (int order = REDUCE_FAST; order <= REDUCE_REPRODUCIBLE; order++)
                    case_run(c, &(struct conformance_case){.call = calls[k],
                                                           .dtype = (enum dtype)dtype,
                                                           .op = ops[op],
                                                           .order = (enum reduce_order)order,
                                                           .count = 301,
                                                           .kind = VALUES_SPECIAL});
        }
    }
}
