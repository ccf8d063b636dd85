/*
 * bench_collective: bench all_reduce and the other collectives: runs as parent, as rank, or becomes
 * mpirun.  Figures and format are those of nccl-tests (doc/PERFORMANCE.md): algbw = bytes / time,
 * busbw = algbw times a factor of the collective, GB = 1e9 bytes.
 */
#include "common/base/log.h"
#include "common/base/stop.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/sweep.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void add_table_row(void *context, const struct sweep_result *result, const double *times)
{
    sweep_table_add(context, result, times);
}

static enum status run_parent(enum collective_call call, const struct sweep_options *options,
                              const struct strbuf *config, char *const *argv, struct error *err)
{
    struct sweep sweep;
    struct sweep_table table;
    enum status status = sweep_plan(call, options, &sweep, err);

    if (status == STATUS_OK)
        status = stop_install(err);
    if (status != STATUS_OK)
        return status;
    sweep_table_open(&table, options, &sweep);
    status = sweep_run(&sweep, options, config, add_table_row, &table, err);
    if (status == STATUS_OK)
        status = sweep_table_close(&table, argv, err);
    sweep_table_release(&table);
    return status;
}

/* Passes all options to the ranks as YAML, whether they came from the command line or elsewhere. */
static enum status parse_and_run(enum collective_call call, const struct option_set *set, int argc,
                                 char **words, char *const *argv, struct error *err)
{
    struct sweep_options options = {0};
    struct option_result origins = {0};
    struct strbuf config = STRBUF_INIT;
    enum status status = option_parse(set, argc, words, &options, &origins, err);

    if (status == STATUS_OK && !origins.exit_now) {
        option_print_config(set, &options, &origins, &config);
        if (origins.first_positional < argc)
            status = error_set(err, STATUS_INVALID,
                               "unexpected word '%s'; '%s --help' lists the "
                               "options",
                               words[origins.first_positional], set->program);
        else if (!strbuf_ok(&config))
            status = error_set(err, STATUS_NO_MEMORY, "no memory for the options");
        else if (origins.print_config)
            (void)fputs(config.text, stdout);
        else
            status = run_parent(call, &options, &config, argv, err);
    }
    strbuf_release(&config);
    option_result_release(&origins);
    return status;
}

/* Exec mpirun, which gets SIGTERM when our parent dies, so that it ends its ranks. */
static int become_mpirun(char **argv)
{
    struct error err = {0};

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    /* Open MPI refuses to run as root, as in containers, without the first two, and with more ranks
     * than cores without the others (version 4, 5).  Other MPIs do not know its option for that. */
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    (void)setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    (void)setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
    argv[1] = (char[]){"mpirun"};
    (void)execvp("mpirun", argv + 1);
    (void)error_set(&err, STATUS_NOT_FOUND,
                    "cannot start mpirun: %s; leave mpi out of --backend "
                    "or install Open MPI",
                    strerror(errno));
    return log_failure(&err);
}

static int run_collective(enum collective_call call, int argc, char **argv)
{
    char program[64];
    struct option_set set = {
        .program = program,
        .summary = "Measure a collective by backend and size, backends taking turns. Options of "
                   "nccl-tests are taken, too.",
        .usage = "[OPTION]...",
        .tables = SWEEP_TABLES,
    };
    struct error err = {0};
    char **words = NULL;
    int count = 0;
    enum status status;

    (void)snprintf(program, sizeof(program), "sparring bench %s", sweep_call_name(call));
    log_open(program, -1);
    if (argc > 2 && strcmp(argv[1], SWEEP_AS_MPIRUN) == 0)
        return become_mpirun(argv);
    if (argc > 1 && strcmp(argv[1], SWEEP_AS_RANK) == 0)
        return sweep_rank_main(call, argc, argv, NULL);
    status = sweep_translate_options(argc, argv, &count, &words, &err);
    if (status == STATUS_OK)
        status = parse_and_run(call, &set, count, words, argv, &err);
    free(words);
    return status == STATUS_OK ? 0 : log_failure(&err);
}

static const struct {
    const char *name;
    enum collective_call call;
} calls[] = {
    {"all_reduce", COLLECTIVE_ALL_REDUCE},
    {"allreduce", COLLECTIVE_ALL_REDUCE}, /* the former name */
    {"all_gather", COLLECTIVE_ALL_GATHER},
    {"reduce_scatter", COLLECTIVE_REDUCE_SCATTER},
    {"broadcast", COLLECTIVE_BROADCAST},
    {"reduce", COLLECTIVE_REDUCE},
    {"gather", COLLECTIVE_GATHER},
    {"scatter", COLLECTIVE_SCATTER},
    {"all_to_all", COLLECTIVE_ALL_TO_ALL},
    {"sendrecv", SWEEP_SENDRECV},
    {"barrier", COLLECTIVE_BARRIER},
};

int bench_collective_main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(argv[0], calls[i].name) == 0)
            return run_collective(calls[i].call, argc, argv);
    return status_exit_code(STATUS_INVALID); /* the caller's table has another name */
}
