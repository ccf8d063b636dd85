/*
 * sweep_options: the options of a sweep, and the plan that follows from them (sweep_plan).
 */
#include "common/base/parse.h"
#include "experiments/bench/sweep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field)        offsetof(struct sweep_options, field)
#define SIZE_MAX_BYTES   17179869184.0
#define ITERATIONS_LIMIT 1000000

const struct option_spec sweep_specs[] = {
    {.help = "What runs:"},
    {.name = "backend",
     .kind = OPTION_TEXT,
     .offset = AT(backend),
     .default_text = "all",
     .metavar = "NAME,...",
     .help = "Backends that take turns; all: every one that runs here. With mpi the ranks are "
             "started by mpirun."},
    {.name = "nproc",
     .kind = OPTION_INT,
     .offset = AT(nproc),
     .default_text = "2",
     .min = 2,
     .max = NPROC_MAX,
     .metavar = "N",
     .help = "Rank processes. (-g)"},
    {.name = "op",
     .kind = OPTION_TEXT,
     .offset = AT(op),
     .default_text = "sum",
     .metavar = "NAME,...",
     .help = "sum, avg, prod, min, max, mulsum, or all. (-o)"},
    {.name = "datatype",
     .kind = OPTION_TEXT,
     .offset = AT(datatype),
     .default_text = "float",
     .metavar = "NAME,...",
     .help = "float, bfloat16, half, double, int32, int64, uint8 (copied only), or all. (-d)"},
    {.name = "root",
     .kind = OPTION_TEXT,
     .offset = AT(root),
     .default_text = "0",
     .metavar = "RANK",
     .help = "Of broadcast, reduce, gather and scatter; or all. (-r)"},
    {.name = "order",
     .kind = OPTION_CHOICE,
     .offset = AT(order),
     .default_text = "fast",
     .choices = "fast|reproducible",
     .help = "How sums associate: the algorithm's way, or by ascending rank."},
    {.name = "placement",
     .kind = OPTION_CHOICE,
     .offset = AT(placement),
     .default_text = "both",
     .choices = "both|out|in",
     .help = "Out of place, in place, or both."},
    {.name = "ceiling",
     .kind = OPTION_BOOL,
     .offset = AT(ceiling),
     .default_text = "true",
     .help = "Also measure what the machine does without a collective, in the same rounds: a bare "
             "two-phase loop over shared memory, plain TCP, memcpy."},
    {.help = "Sizes:"},
    {.name = "min-bytes",
     .kind = OPTION_BYTES,
     .offset = AT(min_bytes),
     .default_text = "4K",
     .min = 0,
     .max = SIZE_MAX_BYTES,
     .metavar = "SIZE",
     .help = "Smallest buffer per rank. (-b)"},
    {.name = "max-bytes",
     .kind = OPTION_BYTES,
     .offset = AT(max_bytes),
     .default_text = "256M",
     .min = 0,
     .max = SIZE_MAX_BYTES,
     .metavar = "SIZE",
     .help = "Largest buffer per rank. (-e)"},
    {.name = "factor",
     .kind = OPTION_INT,
     .offset = AT(factor),
     .default_text = "4",
     .min = 2,
     .max = 1024,
     .metavar = "F",
     .help = "From one size to the next. (-f)"},
    {.name = "step-bytes",
     .kind = OPTION_BYTES,
     .offset = AT(step_bytes),
     .default_text = "0",
     .min = 0,
     .max = SIZE_MAX_BYTES,
     .metavar = "SIZE",
     .help = "From one size to the next, instead of --factor, unless 0. (-i)"},
    {.name = "misalign",
     .kind = OPTION_INT,
     .offset = AT(misalign),
     .default_text = "0",
     .min = 0,
     .max = 1024,
     .metavar = "E",
     .help = "Buffers start this many elements behind a page. (-u)"},
    {.name = "registered",
     .kind = OPTION_BOOL,
     .offset = AT(registered),
     .default_text = "true",
     .help = "Buffers lie in shared memory that every backend is told of, as training's gradients "
             "do; false: in private memory."},
    {.help = "How it is measured:"},
    {.name = "iterations",
     .kind = OPTION_TEXT,
     .offset = AT(iterations),
     .default_text = "auto",
     .metavar = "I",
     .help = "Operations per round, back to back; auto: as many as take 50 ms. (-n)"},
    {.name = "rounds",
     .kind = OPTION_INT,
     .offset = AT(rounds),
     .default_text = "9",
     .min = 1,
     .max = ROUNDS_MAX,
     .metavar = "R",
     .help = "The backends take turns R times; the median counts."},
    {.name = "warmup",
     .kind = OPTION_INT,
     .offset = AT(warmup),
     .default_text = "2",
     .min = 0,
     .max = 1e6,
     .metavar = "I",
     .help = "Operations before the first round of a size. (-w)"},
    {.name = "aggregate",
     .kind = OPTION_INT,
     .offset = AT(aggregate),
     .default_text = "1",
     .min = 1,
     .max = AGGREGATE_MAX,
     .metavar = "M",
     .help = "Start M operations, then wait for all of them. (-m)"},
    {.name = "average",
     .kind = OPTION_INT,
     .offset = AT(average),
     .default_text = "3",
     .min = 0,
     .max = 3,
     .metavar = "A",
     .help = "A round's time over the ranks: 0 rank 0, 1 mean, 2 least, 3 most. (-a)"},
    {.name = "per-iteration",
     .kind = OPTION_BOOL,
     .offset = AT(per_iteration),
     .help = "Also time every single operation and print percentiles. (-I)"},
    {.name = "fresh",
     .kind = OPTION_BOOL,
     .offset = AT(fresh),
     .help = "Every rank rewrites its input before each operation, as training rewrites gradients, "
             "so that no cache still holds what the last operation left; that time is taken off."},
    {.name = "check",
     .kind = OPTION_INT,
     .offset = AT(check),
     .default_text = "1",
     .min = 0,
     .max = 1000,
     .metavar = "I",
     .help = "Operations whose every result is compared with the exact one; 0: none. (-c)"},
    {.name = "cycles",
     .kind = OPTION_INT,
     .offset = AT(cycles),
     .default_text = "1",
     .min = 1,
     .max = 1e6,
     .metavar = "N",
     .help = "Sweeps through all sizes. (-N)"},
    {.help = "Where:"},
    {.name = "pin",
     .kind = OPTION_BOOL,
     .offset = AT(pin),
     .help = "Give every rank, with all its threads, one core, in turn; whatever the backend."},
    {.name = "netns",
     .kind = OPTION_INT,
     .offset = AT(netns),
     .default_text = "0",
     .min = 0,
     .max = NPROC_MAX,
     .metavar = "N",
     .help = "Spread the ranks over N emulated hosts with the network that --network-... describe; "
             "0: all on this host's loopback."},
    {.name = "rate", .kind = OPTION_TEXT, .alias_of = "network-rate"},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "60000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "Longest wait for a rank, and longest operation. (-T, in seconds)"},
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = AT(json),
     .metavar = "FILE",
     .help = "Write the rows there. (-J)"},
    {0},
};

/* ---- series ---- */

static bool is_backend(const char *name)
{
    if (strcmp(name, "auto") == 0)
        return true;
    for (const char *const *known = collective_backends(); *known; known++)
        if (strcmp(*known, name) == 0)
            return true;
    return false;
}

static enum status add_series(struct sweep *s, enum series_kind kind, const char *name, bool named,
                              struct error *err)
{
    if (s->length == SERIES_MAX)
        return error_set(err, STATUS_INVALID, "--backend names more than %d backends",
                         SERIES_MAX - 3);
    s->series[s->length].kind = kind;
    s->series[s->length].named = named;
    (void)snprintf(s->series[s->length].name, sizeof(s->series[0].name), "%s", name);
    s->length++;
    s->needs_mpirun |= kind == SERIES_BACKEND && strcmp(name, "mpi") == 0;
    return STATUS_OK;
}

static enum status add_named_backends(struct sweep *s, const struct sweep_options *o,
                                      struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;

    (void)snprintf(names, sizeof(names), "%s", o->backend);
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        enum status status = STATUS_OK;

        if (!is_backend(name))
            return error_set(err, STATUS_INVALID, "--backend: this build has no backend '%s'",
                             name);
        if (strcmp(name, "mpi") == 0 && o->netns > 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "mpi cannot be measured between network namespaces: mpirun would need "
                             "a remote shell into them");
        status = add_series(s, SERIES_BACKEND, name, true, err);
        if (status != STATUS_OK)
            return status;
    }
    if (s->length == 0)
        return error_set(err, STATUS_INVALID, "--backend names no backend");
    return STATUS_OK;
}

static bool is_program(const char *name)
{
    const char *path = getenv("PATH");
    char folders[4096];
    char path_of_program[4200];
    char *rest = NULL;

    (void)snprintf(folders, sizeof(folders), "%s", path ? path : "");
    for (char *f = strtok_r(folders, ":", &rest); f; f = strtok_r(NULL, ":", &rest)) {
        (void)snprintf(path_of_program, sizeof(path_of_program), "%s/%s", f, name);
        if (access(path_of_program, X_OK) == 0)
            return true;
    }
    return false;
}

/* All backends over host memory, so not nccl; mpi only where mpirun is installed. */
static enum status add_all_backends(struct sweep *s, const struct sweep_options *o,
                                    struct error *err)
{
    enum status status = STATUS_OK;

    for (const char *const *name = collective_backends(); *name && status == STATUS_OK; name++) {
        bool mpi = strcmp(*name, "mpi") == 0;

        if (strcmp(*name, "nccl") != 0 && (!mpi || (o->netns == 0 && is_program("mpirun"))))
            status = add_series(s, SERIES_BACKEND, *name, false, err);
    }
    return status;
}

/* The shared-memory loop applies to all-reduce; the ring's bytes to calls with a ring pattern. */
static enum status add_ceilings(struct sweep *s, const struct sweep_options *o, struct error *err)
{
    enum status status = STATUS_OK;
    bool ring = s->call == COLLECTIVE_ALL_REDUCE || s->call == COLLECTIVE_ALL_GATHER ||
                s->call == COLLECTIVE_REDUCE_SCATTER || s->call == SWEEP_SENDRECV;

    if (!o->ceiling || s->call == COLLECTIVE_BARRIER)
        return STATUS_OK;
    if (s->call == COLLECTIVE_ALL_REDUCE && s->hosts == 1)
        status = add_series(s, SERIES_SHM, "ceiling-shm", false, err);
    if (ring && status == STATUS_OK)
        status = add_series(s, SERIES_TCP, "ceiling-tcp", false, err);
    if (status == STATUS_OK)
        status = add_series(s, SERIES_MEMCPY, "ceiling-memcpy", false, err);
    return status;
}

/* ---- lists ---- */

static enum status plan_dtypes(struct sweep *s, const struct sweep_options *o, struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;
    bool reduces = collective_call_reduces(s->call);

    if (strcmp(o->datatype, "all") == 0) {
        for (unsigned d = 0; d < DTYPE_COUNT; d++)
            if (!reduces || d != DTYPE_BYTE)
                s->dtypes[s->dtype_count++] = (enum dtype)d;
        return STATUS_OK;
    }
    (void)snprintf(names, sizeof(names), "%s", o->datatype);
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (s->dtype_count == DTYPE_COUNT || !sweep_parse_dtype(name, &s->dtypes[s->dtype_count]))
            return error_set(err, STATUS_INVALID, "--datatype: '%s' is no element type", name);
        if (reduces && s->dtypes[s->dtype_count] == DTYPE_BYTE)
            return error_set(err, STATUS_INVALID, "--datatype: uint8 is copied, never reduced");
        s->dtype_count++;
    }
    if (s->dtype_count == 0)
        return error_set(err, STATUS_INVALID, "--datatype names none");
    return STATUS_OK;
}

static enum status plan_ops(struct sweep *s, const struct sweep_options *o, struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;

    if (!collective_call_reduces(s->call)) {
        s->op_count = 1;
        return STATUS_OK;
    }
    if (strcmp(o->op, "all") == 0) {
        for (unsigned op = 0; op < REDUCE_OP_COUNT; op++)
            s->ops[s->op_count++] = (enum reduce_op)op;
        return STATUS_OK;
    }
    (void)snprintf(names, sizeof(names), "%s", o->op);
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (s->op_count == REDUCE_OP_COUNT || !sweep_parse_op(name, &s->ops[s->op_count++]))
            return error_set(err, STATUS_INVALID, "--op: '%s' is no reduction", name);
    if (s->op_count == 0)
        return error_set(err, STATUS_INVALID, "--op names none");
    return STATUS_OK;
}

static enum status plan_roots(struct sweep *s, const struct sweep_options *o, struct error *err)
{
    uint64_t root;

    if (!sweep_call_has_root(s->call))
        return STATUS_OK;
    if (strcmp(o->root, "all") == 0) {
        s->last_root = s->nproc - 1;
        return STATUS_OK;
    }
    if (!parse_uint64(o->root, &root) || root >= s->nproc)
        return error_set(err, STATUS_INVALID, "--root: '%s' is neither all nor a rank of %u",
                         o->root, s->nproc);
    s->first_root = s->last_root = (unsigned)root;
    return STATUS_OK;
}

/* "1gbit" in bits per second, as tc reads it. */
static enum status plan_hosts(struct sweep *s, const struct sweep_options *o, struct error *err)
{
    enum status status;

    s->hosts = o->netns > 0 ? (unsigned)o->netns : 1;
    if (o->netns == 0 && network_options_given(&o->network))
        return error_set(err, STATUS_INVALID, "--network-rate and the like need --netns N");
    if (o->netns == 1 || o->netns > o->nproc)
        return error_set(err, STATUS_INVALID, "--netns must be 0 or 2 to --nproc");
    status =
        network_options_read(&o->network, s->hosts, s->hosts, NETWORK_DELAY_MIN_MS, s->links, err);
    for (unsigned h = 0; h < s->hosts && status == STATUS_OK; h++) {
        const double gb_s = s->links[h].rate / 8 * 1e-9;

        if (gb_s > 0 && (s->link_gb_s == 0 || gb_s < s->link_gb_s))
            s->link_gb_s = gb_s;
    }
    return status;
}

static enum status plan_numbers(struct sweep *s, const struct sweep_options *o, struct error *err)
{
    if (o->max_bytes < o->min_bytes)
        return error_set(err, STATUS_INVALID, "--min-bytes must be at most --max-bytes");
    if (o->min_bytes == 0 && o->step_bytes == 0 && o->max_bytes > 0)
        return error_set(err, STATUS_INVALID,
                         "--min-bytes 0 with --factor never ends: use --step-bytes");
    if (strcmp(o->iterations, "auto") != 0 &&
        (!parse_uint64(o->iterations, &s->iterations) || s->iterations == 0 ||
         s->iterations > ITERATIONS_LIMIT))
        return error_set(err, STATUS_INVALID,
                         "--iterations: '%s' is neither auto nor a number of 1 to %d",
                         o->iterations, ITERATIONS_LIMIT);
    s->order = strcmp(o->order, "reproducible") == 0 ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
    s->placements[IN_PLACE] = strcmp(o->placement, "out") != 0 && sweep_call_in_place(s->call);
    s->placements[OUT_OF_PLACE] = strcmp(o->placement, "in") != 0;
    if (!s->placements[IN_PLACE] && !s->placements[OUT_OF_PLACE])
        return error_set(err, STATUS_INVALID, "--placement in: %s has no buffer in place",
                         sweep_call_name(s->call));
    return STATUS_OK;
}

enum status sweep_plan(enum collective_call call, const struct sweep_options *o, struct sweep *ret,
                       struct error *err)
{
    struct sweep s = {.call = call, .nproc = (unsigned)o->nproc};
    enum status status = plan_numbers(&s, o, err);

    if (status == STATUS_OK)
        status = plan_dtypes(&s, o, err);
    if (status == STATUS_OK)
        status = plan_ops(&s, o, err);
    if (status == STATUS_OK)
        status = plan_roots(&s, o, err);
    if (status == STATUS_OK)
        status = plan_hosts(&s, o, err);
    if (status == STATUS_OK)
        status = strcmp(o->backend, "all") == 0 ? add_all_backends(&s, o, err)
                                                : add_named_backends(&s, o, err);
    if (status == STATUS_OK)
        status = add_ceilings(&s, o, err);
    if (status == STATUS_OK)
        *ret = s;
    return status;
}

uint64_t sweep_next_size(const struct sweep_options *o, uint64_t bytes)
{
    uint64_t next = o->step_bytes > 0 ? bytes + o->step_bytes : bytes * (uint64_t)o->factor;

    return next <= bytes || next > o->max_bytes ? UINT64_MAX : next;
}
