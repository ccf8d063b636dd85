/*
 * sweep: one run of `sparring bench all_reduce` and the other collectives.
 *
 * The parent starts --nproc rank processes (this program again, under mpirun when MPI is measured,
 * in network namespaces with --netns) and prints the results of rank 0.  A *series* is a backend,
 * or a ceiling: the bandwidth of the machine without any collective.  For each size the series take
 * turns, round after round, so that drift of the machine affects all alike; a round is some
 * operations back to back between two barriers, and its sample is the slowest rank's time per
 * operation (--average).
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_SWEEP_H
#define SPARRING_EXPERIMENTS_BENCH_SWEEP_H

#include "common/collective/collective.h"
#include "common/option/option.h"
#include "common/rpc/security_options.h"
#include "experiments/bench/bench_report.h"
#include "experiments/network/network_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* argv[1] of a rank process, followed by its rank ("mpi": from mpirun's environment) and the
 * folder. */
#define SWEEP_AS_RANK "--as-rank"
/* argv[1] of the process that becomes mpirun, followed by mpirun's arguments. */
#define SWEEP_AS_MPIRUN "--as-mpirun"

/* In the folder: a named pipe of results, the options as YAML. */
#define SWEEP_PIPE   "records"
#define SWEEP_CONFIG "options.yaml"

/* Environment of a rank: the address of its emulated host. */
#define SWEEP_ADDRESS "SPARRING_BENCH_ADDRESS"

#define SERIES_MAX    12
#define ROUNDS_MAX    1000
#define NPROC_MAX     64
#define AGGREGATE_MAX 32 /* two works of a group per send and receive */

/* Send to the right neighbour while receiving from the left one; beside the calls of a group. */
#define SWEEP_SENDRECV COLLECTIVE_CALL_COUNT

/* Names and limits as in the table of sweep_options.c. */
struct sweep_options {
    char backend[OPTION_TEXT_MAX]; /* "all" or "ring,gloo" */
    int64_t nproc;
    uint64_t min_bytes, max_bytes, step_bytes;
    int64_t factor;
    char iterations[OPTION_TEXT_MAX]; /* "auto" or a number */
    int64_t rounds, warmup, aggregate, cycles, check, average, misalign;
    char root[OPTION_TEXT_MAX];     /* a rank or "all" */
    char op[OPTION_TEXT_MAX];       /* a name, several with commas, or "all" */
    char datatype[OPTION_TEXT_MAX]; /* likewise */
    char order[OPTION_TEXT_MAX];
    char placement[OPTION_TEXT_MAX]; /* "both", "out", "in" */
    bool per_iteration, ceiling, registered, fresh, pin;
    int64_t netns; /* 0: none */
    struct network_options network;
    int64_t timeout_ms;
    char json[OPTION_TEXT_MAX];
    struct security_options security; /* of backend grpc */
};

extern const struct option_spec sweep_specs[];
#define SWEEP_TABLES                                                                               \
    {                                                                                              \
        {sweep_specs, 0}, {network_option_specs, offsetof(struct sweep_options, network)},         \
        {                                                                                          \
            security_specs, offsetof(struct sweep_options, security)                               \
        }                                                                                          \
    }

enum series_kind {
    SERIES_BACKEND,
    SERIES_SHM,    /* the bare two-phase loop over shared arenas, without checks */
    SERIES_TCP,    /* the bytes of the ring over the same kind of sockets, without sums or order */
    SERIES_MEMCPY, /* one copy of the buffer on every rank at once */
};

enum placement { OUT_OF_PLACE, IN_PLACE, PLACEMENTS };

/* The plan of the measurement from the options; the same on all ranks. */
struct sweep {
    enum collective_call call; /* or SWEEP_SENDRECV */
    unsigned nproc;
    struct {
        enum series_kind kind;
        char name[32]; /* of the backend, or "ceiling-tcp", ... */
        bool named;    /* named by --backend: it must run */
    } series[SERIES_MAX];
    size_t length;
    bool needs_mpirun;
    enum dtype dtypes[DTYPE_COUNT];
    size_t dtype_count;
    enum reduce_op ops[REDUCE_OP_COUNT]; /* one unused entry where the call does not reduce */
    size_t op_count;
    unsigned first_root, last_root; /* 0, 0 where the call has none */
    enum reduce_order order;
    uint64_t iterations; /* 0: auto */
    bool placements[PLACEMENTS];
    unsigned hosts;                               /* namespaces, or 1 */
    struct network_link links[NETWORK_HOSTS_MAX]; /* with netns */
    double link_gb_s; /* of the slowest link, one direction; 0: no limit */
};

/* STATUS_INVALID or STATUS_UNSUPPORTED for options that exclude each other. */
enum status sweep_plan(enum collective_call call, const struct sweep_options *options,
                       struct sweep *ret, struct error *err);

/* "sendrecv" and the names of collective_call_name. */
const char *sweep_call_name(enum collective_call call);
bool sweep_call_has_root(enum collective_call call);
/* True when the buffer of `bytes` has a block per rank: all_gather, scatter and the like. */
bool sweep_call_has_blocks(enum collective_call call);
/* True when the input holds the blocks of all ranks and the output one: scatter, reduce_scatter. */
bool sweep_call_spreads(enum collective_call call);
bool sweep_call_in_place(enum collective_call call);
double sweep_bus_factor(enum collective_call call, unsigned ranks);

/* The size after `bytes`; UINT64_MAX after the last one. */
uint64_t sweep_next_size(const struct sweep_options *options, uint64_t bytes);

/* nccl-tests' names: "float", "half"; "mulsum".  False when there is none. */
bool sweep_parse_dtype(const char *text, enum dtype *ret);
bool sweep_parse_op(const char *text, enum reduce_op *ret);
const char *sweep_dtype_name(enum dtype dtype);
const char *sweep_op_name(enum reduce_op op);

/* Translate nccl-tests' options ("-b", "8", "--stepfactor=2") into ours.  *ret_argv has *ret_argc
 * words and a NULL, is owned by the caller and freed with free; texts are borrowed from argv or
 * part of it.  Other words are kept.  STATUS_INVALID, with the reason, for options of nccl-tests
 * that do not apply here. */
enum status sweep_translate_options(int argc, char *const *argv, int *ret_argc, char ***ret_argv,
                                    struct error *err);

/* ---- what rank 0 sends to the parent through a pipe ---- */

struct iteration_figures { /* of single operations, in seconds, over all rounds; --per-iteration */
    uint64_t samples;      /* 0: none */
    double min, max, mean, median, p99, stdev;
};

struct placement_result {
    uint64_t measured; /* 0: the other members are unset */
    uint64_t checked;  /* 0: #wrong is N/A */
    uint64_t wrong;    /* wrong elements of all ranks */
    uint64_t iterations;
    struct bench_summary seconds; /* per operation, over the rounds */
    struct iteration_figures per_iteration;
};

enum result_kind { RESULT_ROW = 1, RESULT_NOTE };

struct sweep_result {
    uint64_t kind;
    uint64_t series; /* index in the list */
    uint64_t bytes, count;
    uint64_t dtype, op;
    uint64_t cycle;
    int64_t root; /* -1: none */
    struct placement_result placements[PLACEMENTS];
    char note[256]; /* RESULT_NOTE: why the series is not measured */
    uint64_t times; /* doubles that follow: seconds of single operations, out of place first */
};

/* ---- a rank ---- */

/* For tests: corrupt `output` before it is checked. */
typedef void sweep_corrupt_fn(void *output, size_t bytes);

/* The main function of a rank process (--as-rank). */
int sweep_rank_main(enum collective_call call, int argc, char **argv, sweep_corrupt_fn *corrupt);

/* ---- the parent ---- */

/* Start the ranks, pass every result and its times to `handle_result`, wait for all ranks; a rank
 * that dies or fails ends all of them.  `config` is --print-config's text, which the ranks read. */
typedef void sweep_result_fn(void *context, const struct sweep_result *result, const double *times);
enum status sweep_run(const struct sweep *sweep, const struct sweep_options *options,
                      const struct strbuf *config, sweep_result_fn *handle_result, void *context,
                      struct error *err);

struct sweep_table {
    const struct sweep_options *options;
    const struct sweep *sweep;
    struct bench_report report;
    struct strbuf results; /* nccl-tests' "results" so far */
    char start_time[32];
    uint64_t wrong;
    double busbw_sum[SERIES_MAX];
    size_t figures[SERIES_MAX]; /* in busbw_sum */
};

void sweep_table_open(struct sweep_table *t, const struct sweep_options *options,
                      const struct sweep *sweep);
void sweep_table_add(struct sweep_table *t, const struct sweep_result *result, const double *times);

/* Print the footer, write the JSON file (`argv`: of the program); STATUS_DATA when an element was
 * wrong. */
enum status sweep_table_close(struct sweep_table *t, char *const *argv, struct error *err);
void sweep_table_release(struct sweep_table *t);

/* Bandwidths of a result, in GB/s. */
struct sweep_bandwidth {
    struct bench_summary algbw, busbw;
    double link_share; /* of the link's rate in one direction; 0: no link */
};
struct sweep_bandwidth sweep_bandwidth(const struct sweep_table *t,
                                       const struct sweep_result *result, enum placement placement);

/* The JSON side of the table. */
void sweep_json_add(struct sweep_table *t, const struct sweep_result *result, const double *times);
enum status sweep_json_write(struct sweep_table *t, char *const *argv, struct error *err);

#endif
