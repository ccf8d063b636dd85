/*
 * sparring: the command-line program.  Dispatches to subcommands; each owns its options and help.
 */
#include "common/base/log.h"
#include "common/option/option.h"
#include "experiments/bench/bench.h"
#include "experiments/compare/compare.h"
#include "experiments/doctor/doctor.h"
#include "experiments/export/export.h"
#include "experiments/inspect/inspect.h"
#include "experiments/launch/launch.h"
#include "experiments/network/net.h"
#include "experiments/predict/predict.h"
#include "experiments/report/report.h"
#include "experiments/runs/runs.h"
#include "experiments/standby/standby.h"
#include "experiments/stats/stats.h"
#include "experiments/watch/watch.h"

#include <stdio.h>
#include <string.h>

struct subcommand {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
};

static int bench_main(int argc, char **argv);
static int net_main(int argc, char **argv);
static int standby_main(int argc, char **argv);

static const struct subcommand subcommands[] = {
    {"launch", launch_main, "start the ranks of a job on this host, and servers"},
    {"compare", compare_main, "run an experiment's modes in turn and report"},
    {"predict", predict_main, "say what an experiment's steps will take, and why"},
    {"report", report_main, "make the report of run directories"},
    {"runs", runs_main, "list run directories: what each was, and how it ended"},
    {"status", status_main, "print what the runs of a folder are doing now"},
    {"watch", watch_main, "serve a page that shows the same, live"},
    {"inspect", inspect_main, "say what a run did, how it ended and who is to blame"},
    {"export", export_main, "pack an experiment into one archive that can be checked"},
    {"stats", stats_main, "print what a running parameter server says of itself"},
    {"bench", bench_main, "measure collectives, parameter server or a training step"},
    {"doctor", doctor_main, "what this host has, what is missing, what disturbs"},
    {"net", net_main, "hold a network of emulated hosts"},
    {"standby", standby_main, "wait for jobs of others on this host, without a scheduler"},
};

static const struct subcommand nets[] = {
    {"up", net_up_main, "make the hosts, and hold them until Ctrl-C"},
};

static const struct subcommand standbys[] = {
    {"serve", standby_serve_main, "the daemon"},
    {"run", standby_run_main, "run one task on a daemon's host, as launch does"},
    {"hold", standby_hold_main, "hold hosts while a command runs, as compare does"},
};

static const struct subcommand benches[] = {
    {"all_reduce", bench_collective_main, "bandwidth by backend and size"},
    {"all_gather", bench_collective_main, "likewise"},
    {"reduce_scatter", bench_collective_main, "likewise"},
    {"broadcast", bench_collective_main, "likewise"},
    {"reduce", bench_collective_main, "likewise"},
    {"gather", bench_collective_main, "likewise"},
    {"scatter", bench_collective_main, "likewise"},
    {"all_to_all", bench_collective_main, "likewise"},
    {"sendrecv", bench_collective_main, "likewise, every rank to its right neighbour"},
    {"barrier", bench_collective_main, "likewise, time alone"},
    {"allreduce", bench_collective_main, "the former name of all_reduce"},
    {"ps", bench_ps_main, "parameter-server push and pull"},
    {"train", bench_train_main, "one training step, beside the no-communication control"},
    {"matmul", bench_matmul_main, "matrix products: the ceiling of a training step"},
    {"optimizer", bench_optimizer_main, "the optimizer's update beside a copy of memory"},
};

static void print_help(FILE *out, const char *program, const struct subcommand *rows, size_t count)
{
    (void)fprintf(out, "Usage: %s COMMAND [OPTION]...\n\n", program);
    for (size_t i = 0; i < count; i++)
        (void)fprintf(out, "  %-14s %s\n", rows[i].name, rows[i].help);
    (void)fprintf(out, "\n'%s COMMAND --help' lists the options of a command.\n", program);
}

static int unknown_command(const char *word, const char *program, const struct subcommand *rows,
                           size_t count)
{
    const char *names[32];
    size_t known = 0;
    const char *nearest;

    for (size_t i = 0; i < count; i++)
        names[known++] = rows[i].name;
    nearest = option_nearest(word, names, known);
    log_open(program, -1);
    if (nearest)
        log_error("unknown command '%s', did you mean '%s'?", word, nearest);
    else
        log_error("unknown command '%s'; '%s --help' lists them", word, program);
    return status_exit_code(STATUS_INVALID);
}

static int dispatch(const char *program, const struct subcommand *rows, size_t count, int argc,
                    char **argv)
{
    if (argc < 2) {
        print_help(stderr, program, rows, count);
        return status_exit_code(STATUS_INVALID);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout, program, rows, count);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("sparring %s\n", SPARRING_VERSION);
        return 0;
    }
    for (size_t i = 0; i < count; i++)
        if (strcmp(argv[1], rows[i].name) == 0)
            return rows[i].main(argc - 1, argv + 1);
    return unknown_command(argv[1], program, rows, count);
}

static int bench_main(int argc, char **argv)
{
    return dispatch("sparring bench", benches, sizeof(benches) / sizeof(benches[0]), argc, argv);
}

static int net_main(int argc, char **argv)
{
    return dispatch("sparring net", nets, sizeof(nets) / sizeof(nets[0]), argc, argv);
}

static int standby_main(int argc, char **argv)
{
    return dispatch("sparring standby", standbys, sizeof(standbys) / sizeof(standbys[0]), argc,
                    argv);
}

int main(int argc, char **argv)
{
    return dispatch("sparring", subcommands, sizeof(subcommands) / sizeof(subcommands[0]), argc,
                    argv);
}
