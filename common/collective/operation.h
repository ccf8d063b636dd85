/*
 * operation: what a collective operation is, and how a rank can fail: plain data and names that
 * signatures, the mesh, the flight recorder and the groups share.  Pure.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_OPERATION_H
#define SPARRING_COMMON_COLLECTIVE_OPERATION_H

#include "common/tensor/dtype.h"
#include "common/tensor/reduce.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COLLECTIVE_TEXT_SIZE 192

/* How floating-point sums associate. */
enum reduce_order {
    REDUCE_FAST,         /* the algorithm's own order; same result on every rank */
    REDUCE_REPRODUCIBLE, /* ((g0 + g1) + g2) + ...: ascending ranks, whatever sizes and segments */
};

/* Values are part of wire headers and of the flight recorder's file: never renumber. */
enum collective_call {
    COLLECTIVE_ALL_REDUCE = 1, /* input count, output count */
    COLLECTIVE_BROADCAST,      /* root's input count -> output count; input unused elsewhere */
    COLLECTIVE_REDUCE,         /* input count -> root's output count; output unused elsewhere */
    COLLECTIVE_ALL_GATHER,     /* input count, output n * count, in rank order */
    COLLECTIVE_GATHER,         /* input count -> root's output n * count */
    COLLECTIVE_SCATTER,        /* root's input n * count -> output count */
    COLLECTIVE_REDUCE_SCATTER, /* input n * count, output count: block `rank` of the reduction */
    COLLECTIVE_ALL_TO_ALL,     /* input n * count, output n * count: block r goes to rank r */
    COLLECTIVE_SEND,           /* input count -> rank `root` */
    COLLECTIVE_RECV,           /* output count <- rank `root` */
    COLLECTIVE_BARRIER,
    COLLECTIVE_CLOSE, /* not for callers: a rank left in order */
    COLLECTIVE_CALL_COUNT
};

/*
 * One operation.  Input and output are equal (in place; for all_gather and gather input = output +
 * rank * count, for reduce_scatter and scatter output = input + rank * count) or disjoint.  Buffers
 * are the caller's, any alignment of the element type, and untouched by the caller from start to
 * the end of wait.  After a failure outputs are unspecified; an input that is not also the output
 * is intact.
 */
struct collective_args {
    enum collective_call call;
    enum dtype dtype;
    enum reduce_op op;       /* all_reduce, reduce, reduce_scatter */
    enum reduce_order order; /* likewise */
    const void *input;
    void *output;
    size_t count;  /* elements; see enum collective_call */
    unsigned root; /* broadcast, reduce, gather, scatter; the peer of send and recv */
    double factor; /* REDUCE_PREMUL_SUM: this rank's own */
    int bucket;    /* for messages and the flight recorder: 1, 2, ... of `buckets`; 0: none */
    int buckets;
    uint64_t step; /* likewise: of the training */
};

const char *
collective_call_name(enum collective_call call); /* "all_reduce"; "?" outside the list */

/* Between two ranks; several may be under way at once. */
static inline bool collective_call_is_pair(enum collective_call call)
{
    return call == COLLECTIVE_SEND || call == COLLECTIVE_RECV;
}

/* Does the call combine the ranks' values: have args.op and args.order a meaning? */
static inline bool collective_call_reduces(enum collective_call call)
{
    return call == COLLECTIVE_ALL_REDUCE || call == COLLECTIVE_REDUCE ||
           call == COLLECTIVE_REDUCE_SCATTER;
}

/* busbw = algbw * factor, algbw = bytes / seconds (nccl-tests, doc/PERFORMANCE.md): all_reduce
 * 2(n-1)/n; reduce_scatter, all_gather, all_to_all, gather, scatter (n-1)/n with bytes of the whole
 * n * count; others 1. */
double collective_bus_factor(enum collective_call call, unsigned world_size);

/* How a rank failed; the error text contains it, too. */
enum fault {
    FAULT_NONE,
    FAULT_DEAD,     /* its process is gone */
    FAULT_STOPPED,  /* its process exists and does not run (SIGSTOP, a debugger, a frozen host) */
    FAULT_STALLED,  /* it runs, and has not started the operation within the time-out */
    FAULT_SLOW,     /* it is in the operation, and moves, too slowly for the time-out; without a
                       rank where all are in it and none stands out, as inside mpi, which shows
                       nothing of its waits */
    FAULT_DESYNC,   /* it is in another operation */
    FAULT_NETWORK,  /* it may run; no traffic reaches it */
    FAULT_FINISHED, /* it left the group in order, while others had more to do */
    FAULT_EXCLUDED, /* the others went on without this rank (shrink) */
    FAULT_FAILED,   /* it reported an error of its own */
    FAULT_COUNT
};
const char *fault_name(enum fault fault); /* "dead" */
bool fault_is_loss(enum fault fault);     /* others may go on without the rank */

#endif
