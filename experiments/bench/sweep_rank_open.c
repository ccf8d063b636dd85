/*
 * sweep_rank_open: a rank process of a sweep: opens its buffers, groups and ceilings, and assigns
 * its core.
 */
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/bench/sweep_measure.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096

/* ---- opening ---- */

static enum status open_group(struct bench_rank *b, const char *backend, const char *name,
                              struct collective **ret_group, struct error *err)
{
    struct collective_config config = {.backend = backend,
                                       .name = name,
                                       .rank = b->rank,
                                       .world_size = b->world_size,
                                       .store = b->store,
                                       .mesh = b->control ? collective_mesh(b->control) : NULL,
                                       .interface_host = getenv(SWEEP_ADDRESS),
                                       .host_id = getenv(SWEEP_ADDRESS),
                                       .timeout_ms = b->options->timeout_ms,
                                       .security = &b->security};

    return collective_open(&config, ret_group, err);
}

/* *ret is true on all ranks when `mine` is true on all ranks. */
static enum status all_ranks_true(struct bench_rank *b, bool mine, bool *ret, struct error *err)
{
    double vote = mine ? 1 : 0;
    enum status status = collective_all_gather(b->control, &vote, sizeof(vote), b->gathered, err);

    *ret = true;
    for (unsigned r = 0; r < b->world_size && status == STATUS_OK; r++)
        *ret &= b->gathered[r] > 0;
    return status;
}

/* A backend that --backend did not name and that is unavailable here is skipped, with a note. */
static enum status open_backend(struct bench_rank *b, size_t series, struct error *err)
{
    struct error problem = {0};
    char name[32];
    bool opened;
    bool everywhere = false;
    enum status status;

    (void)snprintf(name, sizeof(name), "series%zu", series);
    opened = open_group(b, b->sweep.series[series].name, name, &b->groups[series], &problem) ==
             STATUS_OK;
    if (opened && b->memory.base)
        opened = collective_register(b->groups[series], &b->memory, &problem) == STATUS_OK;
    if (!opened && (b->sweep.series[series].named || problem.status != STATUS_CONFIG))
        return error_set(err, problem.status, "%s: %s", b->sweep.series[series].name, problem.text);
    status = all_ranks_true(b, opened, &everywhere, err);
    if (status != STATUS_OK || everywhere)
        return status;
    collective_close(b->groups[series]);
    b->groups[series] = NULL;
    return bench_note(b, series, opened ? "cannot run on another rank" : problem.text, err);
}

static enum status open_series(struct bench_rank *b, struct error *err)
{
    const char *address = getenv(SWEEP_ADDRESS);
    enum status status;

    b->security = security_options_read(&b->options->security, false);
    status = open_group(b, "ring", "control", &b->control, err);
    for (size_t s = 0; s < b->sweep.length && status == STATUS_OK; s++) {
        if (b->sweep.series[s].kind == SERIES_BACKEND)
            status = open_backend(b, s, err);
        else if (b->sweep.series[s].kind == SERIES_SHM)
            status = shm_ceiling_open(&b->shm, b->store, (size_t)b->options->max_bytes + PAGE,
                                      b->options->timeout_ms, err);
        else if (b->sweep.series[s].kind == SERIES_TCP)
            status = tcp_ceiling_open(&b->tcp, b->store, address ? address : "127.0.0.1",
                                      b->options->timeout_ms, err);
    }
    return status;
}

static enum status open_store(struct bench_rank *b, struct error *err)
{
    struct launch_env launch = {.rank = b->rank, .world_size = b->world_size};
    char method[600];
    struct store_config config = {.init_method = method,
                                  .launch = &launch,
                                  .group = "",
                                  .timeout_ms = b->options->timeout_ms};

    (void)snprintf(method, sizeof(method), "file://%s/store", b->folder);
    return store_open(&config, &b->store, err);
}

/* Input and output in one block, page aligned, every page written: reads of a page that was never
 * written hit one zero page in the cache. */
static enum status allocate_buffers(struct bench_rank *b, struct error *err)
{
    size_t shift = (size_t)b->options->misalign * sizeof(double);
    size_t room = ((size_t)b->options->max_bytes + shift + PAGE) / PAGE * PAGE;
    unsigned char *base;
    enum status status;

    if (b->options->registered)
        status = shared_memory_open(2 * room, "sparring-bench", &b->memory, err);
    else
        status = mem_calloc_aligned(2 * room, 1, "buffers", &b->heap, err);
    if (status != STATUS_OK)
        return status;
    base = b->options->registered ? b->memory.base : b->heap;
    memset(base, 0, 2 * room);
    b->input_page = base;
    b->output_page = base + room;
    return STATUS_OK;
}

static enum status allocate_rank(struct bench_rank *b, struct error *err)
{
    size_t rounds = (size_t)b->options->rounds;
    size_t iterations = b->sweep.iterations > 0 ? (size_t)b->sweep.iterations : ITERATIONS_MAX;
    size_t cells = b->sweep.length * PLACEMENTS;
    enum status status = allocate_buffers(b, err);

    b->times_max = rounds * iterations;
    if (status == STATUS_OK)
        status = mem_calloc(cells * rounds, sizeof(double), "samples", &b->samples, err);
    if (status == STATUS_OK)
        status = mem_calloc(b->world_size, sizeof(double), "ranks", &b->gathered, err);
    if (status == STATUS_OK && b->options->per_iteration)
        status = mem_calloc(cells * b->times_max, sizeof(double), "times", &b->times, err);
    if (status == STATUS_OK && b->options->per_iteration)
        status =
            mem_calloc(b->world_size * iterations, sizeof(double), "times", &b->round_times, err);
    return status;
}

/* Read the allowed cores and choose this rank's, round robin; with --pin the rank and its later
 * threads stay there. */
static enum status find_core(struct bench_rank *b, struct error *err)
{
    unsigned skip;

    CPU_ZERO(&b->core);
    if (sched_getaffinity(0, sizeof(b->cores), &b->cores) != 0)
        return error_set_errno(err, errno, "cannot read the cores");
    skip = b->rank % (unsigned)CPU_COUNT(&b->cores);
    for (size_t core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &b->cores) && skip-- == 0) {
            CPU_SET(core, &b->core);
            break;
        }
    if (b->options->pin && sched_setaffinity(0, sizeof(b->core), &b->core) != 0)
        return error_set_errno(err, errno, "--pin: cannot bind rank %u", b->rank);
    return STATUS_OK;
}

/* Groups are closed without notice to the other ranks: the parent ends all when one fails. */
static void release_rank(struct bench_rank *b)
{
    for (size_t s = 0; s < SERIES_MAX; s++)
        collective_close(b->groups[s]);
    collective_close(b->control);
    shm_ceiling_close(&b->shm);
    tcp_ceiling_close(&b->tcp);
    store_close(b->store, 0);
    shared_memory_release(&b->memory);
    free(b->heap);
    free(b->samples);
    free(b->gathered);
    free(b->times);
    free(b->round_times);
    if (b->out_fd >= 0)
        (void)close(b->out_fd);
}

static enum status open_pipe(struct bench_rank *b, struct error *err)
{
    char path[600];

    if (b->rank != 0)
        return STATUS_OK;
    (void)snprintf(path, sizeof(path), "%s/%s", b->folder, SWEEP_PIPE);
    b->out_fd = open(path, O_WRONLY | O_CLOEXEC);
    if (b->out_fd < 0)
        return error_set_errno(err, errno, "cannot open '%s'", path);
    return STATUS_OK;
}

static enum status sweep_rank(enum collective_call call, const struct sweep_options *options,
                              unsigned rank, const char *folder, sweep_corrupt_fn *corrupt,
                              struct error *err)
{
    struct bench_rank b = {.options = options,
                           .rank = rank,
                           .world_size = (unsigned)options->nproc,
                           .memory = SHARED_MEMORY_NONE,
                           .tcp = {.right_fd = -1, .left_fd = -1},
                           .corrupt = corrupt,
                           .out_fd = -1};
    enum status status = sweep_plan(call, options, &b.sweep, err);

    (void)snprintf(b.folder, sizeof(b.folder), "%s", folder);
    if (status == STATUS_OK)
        status = find_core(&b, err);
    if (status == STATUS_OK)
        status = open_pipe(&b, err);
    if (status == STATUS_OK)
        status = allocate_rank(&b, err);
    if (status == STATUS_OK)
        status = open_store(&b, err);
    if (status == STATUS_OK)
        status = open_series(&b, err);
    if (status == STATUS_OK)
        status = bench_sweep(&b, err);
    release_rank(&b);
    return status;
}

/* ---- the process ---- */

static const char *lookup_environment(const char *name)
{
    return getenv(name);
}

static enum status own_rank(const char *word, int64_t nproc, uint64_t *ret, struct error *err)
{
    struct launch_flags flags = {.rank = -1, .world_size = -1, .local_rank = -1};
    struct launch_env launch;
    enum status status;

    if (strcmp(word, "mpi") == 0) {
        status = launch_env_read(&flags, lookup_environment, &launch, err);
        if (status != STATUS_OK)
            return status;
        if (launch.world_size != nproc)
            return error_set(err, STATUS_MISMATCH, "mpirun started %u ranks instead of %jd",
                             launch.world_size, (intmax_t)nproc);
        *ret = launch.rank;
        return STATUS_OK;
    }
    if (!parse_uint64(word, ret) || (int64_t)*ret >= nproc)
        return error_set(err, STATUS_INVALID, "rank '%s' of %jd", word, (intmax_t)nproc);
    return STATUS_OK;
}

int sweep_rank_main(enum collective_call call, int argc, char **argv, sweep_corrupt_fn *corrupt)
{
    struct sweep_options options = {0};
    struct option_result origins = {0};
    const struct option_set set = {.program = "sparring bench", .tables = SWEEP_TABLES};
    struct error err = {0};
    char config[600];
    char *words[] = {argv[0], config, NULL};
    uint64_t rank = 0;
    enum status status;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* end with the parent */
    log_open("sparring bench", -1);
    if (argc != 4) {
        (void)error_set(&err, STATUS_INVALID, "%s is for sparring bench itself", SWEEP_AS_RANK);
        return log_failure(&err);
    }
    (void)snprintf(config, sizeof(config), "--config=%.500s/%s", argv[3], SWEEP_CONFIG);
    status = option_parse(&set, 2, words, &options, &origins, &err);
    option_result_release(&origins);
    if (status == STATUS_OK)
        status = own_rank(argv[2], options.nproc, &rank, &err);
    if (status == STATUS_OK) {
        log_open("sparring bench", (int)rank);
        status = sweep_rank(call, &options, (unsigned)rank, argv[3], corrupt, &err);
    }
    return status == STATUS_OK ? 0 : log_failure(&err);
}
