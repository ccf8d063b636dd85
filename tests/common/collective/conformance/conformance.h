/*
 * conformance: what every backend must do, against models that are one loop, for any backend by
 * name.  A world is `size` ranks on threads of one test; or, for backends that need processes (mpi,
 * nccl), this process is one rank of a launched world: SPARRING_TEST_STORE names a file that all
 * ranks reach ("file:///..."), and the launcher's variables say rank and size.
 *
 * Inputs are a function of (seed, rank, index), so every rank can compute the inputs of all others.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_CONFORMANCE_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_CONFORMANCE_H

#include "tests/support/support.h"

#include "common/base/shared_memory.h"
#include "common/collective/collective.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFORMANCE_RANKS_MAX 8
#define CONFORMANCE_MIB       ((size_t)1 << 20)

/* Instrumented builds run the same cases at fewer sizes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CONFORMANCE_INSTRUMENTED true
#else
#define CONFORMANCE_INSTRUMENTED false
#endif

enum value_kind {
    VALUES_EXACT,   /* small whole numbers: any order of summation gives the same bits */
    VALUES_RANDOM,  /* over many magnitudes: the order shows; integers: any bits */
    VALUES_SPECIAL, /* infinities, NaN, -0, subnormals; floats only */
    VALUES_KINDS
};

enum placement { PLACE_HEAP, PLACE_ARENA, PLACE_MIXED, PLACE_COUNT };

/* One operation.  The root is the peer of send and recv. */
struct conformance_case {
    enum collective_call call;
    enum dtype dtype;
    enum reduce_op op;
    enum reduce_order order;
    size_t count;
    unsigned root;
    enum value_kind kind;
    bool in_place;
    size_t shift; /* elements that buffers lie behind an aligned place */
    enum placement placement;
};

/* What must have the same bits on all ranks. */
struct conformance_result {
    struct conformance_case what;
    uint64_t hash;
};

/* One rank of one world; used by its own thread only. */
struct conformance {
    const char *backend;
    const char *name; /* of the group */
    struct collective *group;
    struct store *store;
    unsigned rank, size;
    bool streams_wanted; /* SPARRING_TEST_STREAMS says how many */
    uint64_t seed;
    struct shared_memory arena; /* registered with the group */
    size_t arena_used;
    unsigned arena_users; /* cases under way in it */
    struct conformance_result *results;
    size_t result_count, result_room;
};

typedef void conformance_body(struct conformance *c);

/* Run body on every rank of a world of `size`; returns false, and has printed why, when the backend
 * cannot run here or a launched world has another size. */
bool conformance_run(const char *backend, unsigned size, conformance_body *body);

/* Before Check forks its tests: what they share.  At the end: did any test find its backend? */
void conformance_prepare(void);
bool conformance_ran(void);

/* Ranks of the launched world that this process is part of; 0: none. */
unsigned conformance_launched_size(void);

/* All ranks get rank 0's value (through the store). */
uint64_t conformance_share(struct conformance *c, const char *key, uint64_t value);

/* An event between ranks that does not go through the backend. */
void conformance_signal(struct conformance *c, const char *key);
void conformance_await(struct conformance *c, const char *key);

/* ---- values ---- */

/* Elements [first, first + count) of `rank`'s input. */
struct values {
    uint64_t seed;
    enum value_kind kind;
    enum dtype dtype;
    enum reduce_op op;
};
void values_fill(const struct values *v, unsigned rank, size_t first, size_t count, void *ret);

/* The reduction of all ranks' elements [first, first + count), ascending. */
void values_reduce(const struct values *v, unsigned ranks, size_t first, size_t count, void *ret);

/* PREMUL_SUM: the factor of `rank`; a power of two when kind is VALUES_EXACT. */
double values_factor(const struct values *v, unsigned rank);

/* Is got[0..count) the reduction in some order, by a bound from double precision?  Index of the
 * first that is not, or count. */
size_t values_far(const struct values *v, unsigned ranks, size_t first, size_t count,
                  const void *got);

/* Must every order of summation give the same bits? */
bool values_have_one_result(const struct values *v, unsigned ranks);

/* Index of the first element whose bits differ (NaN equals NaN), or count. */
size_t values_differ(enum dtype dtype, const void *got, const void *wanted, size_t count);

/* ---- running cases ---- */

/* A case under way. */
struct conformance_pending {
    struct conformance_case what;
    struct values values;
    unsigned char *input_block, *output_block; /* equal when in place; NULL: none */
    unsigned char *input, *output;
    size_t input_count, output_count; /* elements on this rank */
    struct collective_args args;
    struct collective_work *work;
    size_t result; /* its place in the rank's results: in order of start */
};

bool case_has_root(enum collective_call call);

/* Fill buffers and start; returns false, having checked the error, when the backend does not
 * support it. */
bool case_start(struct conformance *c, const struct conformance_case *what,
                struct conformance_pending *ret);

/* Once wait said STATUS_OK: check output, input and what lies around them; release. */
void case_check(struct conformance *c, struct conformance_pending *p);

/* Start, wait, check, and compare the counters with the formula. */
void case_run(struct conformance *c, const struct conformance_case *what);

/* "ring, rank 1 of 3: all_reduce of 100 float32, sum, fast, in place" */
const char *case_text(const struct conformance *c, const struct conformance_case *what,
                      char text[256]);

/* ---- what is tested; each runs on every rank ---- */

conformance_body conformance_matrix;   /* every call, type, operation, order, at small counts */
conformance_body conformance_short;    /* every call, float32 */
conformance_body conformance_large;    /* every call and type at 1 MiB and a bit */
conformance_body conformance_special;  /* infinities and NaN */
conformance_body conformance_refusals; /* wrong arguments; the group lives on */
conformance_body conformance_barriers; /* no rank leaves before all have arrived */
conformance_body conformance_everyday; /* the short forms */
conformance_body conformance_wait_order;
conformance_body conformance_poll;
conformance_body conformance_deadline;
conformance_body conformance_full_queue;
conformance_body conformance_crossing; /* send and recv, both ways at once */
conformance_body conformance_huge;     /* beyond 4 GiB */

#endif
