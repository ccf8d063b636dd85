/*
 * bench_train: the time of one training step and its parts, ours over every requested backend and
 * optionally PyTorch's, compared with the no-communication control (n independent processes) and
 * with the rate of matrix products.  A job's figure is the median step of rank 0 over its steady
 * steps; a row has the median over the repeats and the extremes, and ratios are medians of the
 * ratios within a repeat.
 */
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_options.h"
#include "experiments/bench/train_jobs.h"
#include "experiments/bench/train_table.h"

#define AT(field) offsetof(struct train_options, field)

static const struct option_spec specs[] = {
    {.name = "model",
     .kind = OPTION_TEXT,
     .offset = AT(model),
     .metavar = "SPEC,...",
     .default_text = "mlp:784-1024-1024-10",
     .help = "Models as sparring-worker takes them; SPEC@BATCH@STEPS gives one its own batch size "
             "and steps."},
    {.name = "batch-size",
     .kind = OPTION_INT,
     .offset = AT(batch_size),
     .default_text = "64",
     .min = 1,
     .max = 1e6,
     .metavar = "B",
     .help = "Samples per rank and step."},
    {.name = "nproc",
     .kind = OPTION_INT,
     .offset = AT(nproc),
     .default_text = "2",
     .min = 1,
     .max = 256,
     .metavar = "N",
     .help = "Ranks."},
    {.name = "sync",
     .kind = OPTION_TEXT,
     .offset = AT(sync),
     .default_text = "allreduce,ps",
     .metavar = "NAME,...",
     .help = "allreduce, ps; the control, local, always runs."},
    {.name = "backend",
     .kind = OPTION_TEXT,
     .offset = AT(backend),
     .default_text = "auto",
     .metavar = "NAME,...",
     .help = "Of allreduce; each one is a contender."},
    {.name = "ps-transport",
     .kind = OPTION_TEXT,
     .offset = AT(ps_transport),
     .default_text = "auto",
     .metavar = "NAME,...",
     .help = "Of ps (auto, grpc, shm); each one is a contender."},
    {.name = "servers",
     .kind = OPTION_INT,
     .offset = AT(servers),
     .default_text = "1",
     .min = 1,
     .max = 64,
     .metavar = "K",
     .help = "Of ps."},
    {.name = "bind",
     .kind = OPTION_CHOICE,
     .offset = AT(bind),
     .default_text = "none",
     .choices = "core|numa|none",
     .help = "Of all contenders' ranks and servers, but not of MPI's: to cores or NUMA nodes, as "
             "launch does it."},
    {.name = "steps",
     .kind = OPTION_INT,
     .offset = AT(steps),
     .default_text = "200",
     .min = 10,
     .max = 1e6,
     .metavar = "S",
     .help = "Per job."},
    {.name = "repeats",
     .kind = OPTION_INT,
     .offset = AT(repeats),
     .default_text = "3",
     .min = 1,
     .max = 100,
     .metavar = "R",
     .help = "Jobs per contender."},
    {.name = "threads",
     .kind = OPTION_INT,
     .offset = AT(threads),
     .default_text = "1",
     .min = 1,
     .max = 1024,
     .metavar = "N",
     .help = "Of each process's matrix products."},
    BENCH_OPTION_DEVICE(AT(device)),
    BENCH_OPTION_PRECISION(AT(precision), "; PyTorch's by autocast."),
    {.name = "optimizer",
     .kind = OPTION_CHOICE,
     .offset = AT(optimizer),
     .default_text = "sgd",
     .choices = "sgd|adamw",
     .help = "Plain: no momentum, no weight decay asked for."},
    {.name = "no-ceiling",
     .kind = OPTION_BOOL,
     .offset = AT(no_ceiling),
     .help = "Do not measure matrix products (bench matmul) first: no utilisation."},
    {.name = "peer",
     .kind = OPTION_TEXT,
     .offset = AT(peer),
     .metavar = "PYTHON",
     .help =
         "Also time PyTorch with this interpreter: its control, the same by torch.compile where "
         "it has that, and, with several ranks, DistributedDataParallel over gloo (on GPUs "
         "nccl)."},
    {.name = "peer-script",
     .kind = OPTION_TEXT,
     .offset = AT(peer_script),
     .metavar = "FILE",
     .help = "The script that times PyTorch; by default the one that comes with sparring."},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "300000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "Of each job."},
    BENCH_OPTION_JSON(AT(json)),
    {0},
};

static const struct option_set option_set = {
    .program = "sparring bench train",
    .summary = "Time one training step beside the no-communication control.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}},
};

static enum status run_bench(const void *options, const struct option_result *origins,
                             struct error *err)
{
    const struct train_options *o = options;
    struct train_jobs c;
    struct bench_report out;
    enum status status = stop_install(err);

    (void)origins;
    if (status != STATUS_OK)
        return status;
    bench_report_init(&out, "train");
    status = train_jobs_open(&c, o, err);
    if (status == STATUS_OK && !o->no_ceiling)
        status = train_jobs_ceiling(&c, err);
    for (size_t m = 0; m < c.model_count && status == STATUS_OK; m++) {
        status = train_jobs_run(&c, m, err);
        if (status == STATUS_OK)
            train_table_report(&c, &c.models[m], &out);
    }
    if (status == STATUS_OK && o->json[0])
        status = bench_report_write(&out, o->json, err);
    train_jobs_close(&c, status);
    bench_report_release(&out);
    return status;
}

int bench_train_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &option_set,
        .options_size = sizeof(struct train_options),
        .run = run_bench,
    };

    return program_main(&program, argc, argv);
}
