/*
 * The worker's option table: names, environment variables, defaults, bounds and help in one place.
 */
#include "worker/options.h"

#include "common/shard_map/shard_map.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct worker_options, field)

static const struct option_spec specs[] = {
    {.help = "The job:"},
    {.name = "model",
     .env = "SPARRING_MODEL",
     .kind = OPTION_TEXT,
     .offset = AT(model),
     .metavar = "SPEC",
     .help = "What to train: mlp:784-128-10 (ReLU between) or linear:10-5-2 (no activation)."},
    {.name = "data",
     .env = "SPARRING_DATA_SPEC",
     .kind = OPTION_TEXT,
     .offset = AT(data),
     .default_text = "digits",
     .metavar = "SPEC",
     .help = "digits (built in), mnist:DIR (IDX files, plain or .gz), random:N,D,C or a "
             "FILE.safetensors with tensors x and y."},
    {.name = "samples",
     .env = "SPARRING_SAMPLES",
     .kind = OPTION_INT,
     .offset = AT(samples),
     .default_text = "0",
     .min = 0,
     .max = 1e9,
     .metavar = "N",
     .help = "Train on the first N samples; 0 takes all."},
    {.name = "batch-size",
     .env = "SPARRING_BATCH_SIZE",
     .kind = OPTION_INT,
     .offset = AT(batch_size),
     .default_text = "32",
     .min = 1,
     .max = 1e6,
     .metavar = "B",
     .help = "Samples per rank and step."},
    {.name = "epochs",
     .env = "SPARRING_EPOCHS",
     .kind = OPTION_INT,
     .offset = AT(epochs),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .metavar = "E",
     .help = "Passes over the data; give this or --steps."},
    {.name = "steps",
     .env = "SPARRING_STEPS",
     .kind = OPTION_INT,
     .offset = AT(steps),
     .default_text = "0",
     .min = 0,
     .max = 1e9,
     .metavar = "S",
     .help = "Updates to make; give this or --epochs."},
    {.name = "accumulate-steps",
     .env = "SPARRING_ACCUMULATE_STEPS",
     .kind = OPTION_INT,
     .offset = AT(accumulate_steps),
     .default_text = "1",
     .min = 1,
     .max = 1e6,
     .metavar = "N",
     .help = "Batches whose gradients are summed locally before one synchronised update "
             "(DistributedDataParallel's no_sync)."},
    {.name = "shuffle",
     .env = "SPARRING_SHUFFLE",
     .kind = OPTION_BOOL,
     .offset = AT(shuffle),
     .default_text = "true",
     .help = "Draw a new order each epoch, as DistributedSampler does."},
    {.name = "drop-last",
     .env = "SPARRING_DROP_LAST",
     .kind = OPTION_BOOL,
     .offset = AT(drop_last),
     .default_text = "false",
     .help = "The same as --uneven drop."},
    {.name = "seed",
     .env = "SPARRING_SEED",
     .kind = OPTION_INT,
     .offset = AT(seed),
     .default_text = "0",
     .min = 0,
     .max = 4294967295.0,
     .metavar = "N",
     .help = "Of the weights, the order of the samples and generated data."},
    {.name = "init",
     .env = "SPARRING_INIT",
     .kind = OPTION_TEXT,
     .offset = AT(init),
     .default_text = "torch",
     .metavar = "HOW",
     .help = "torch or torch-fma (the weights that PyTorch draws from this seed, in both roundings "
             "that its builds have), or a FILE.safetensors."},
    {.name = "layer-drop",
     .env = "SPARRING_LAYER_DROP",
     .kind = OPTION_DOUBLE,
     .offset = AT(layer_drop),
     .default_text = "0",
     .min = 0,
     .max = 0.99,
     .metavar = "P",
     .help =
         "Skip each hidden layer that is as wide as its input with this probability, drawn anew "
         "per rank and batch (LayerDrop); its parameters then have no gradient."},
    {.help = "Optimizer:"},
    {.name = "optimizer",
     .env = "SPARRING_OPTIMIZER",
     .kind = OPTION_CHOICE,
     .offset = AT(optimizer),
     .default_text = "sgd",
     .choices = "sgd|adam|adamw",
     .help = "As in torch.optim."},
    {.name = "lr",
     .env = "SPARRING_LR",
     .kind = OPTION_DOUBLE,
     .offset = AT(lr),
     .default_text = "0.01",
     .min = 0,
     .max = 1e6,
     .metavar = "F",
     .help = "Learning rate."},
    {.name = "momentum",
     .env = "SPARRING_MOMENTUM",
     .kind = OPTION_DOUBLE,
     .offset = AT(momentum),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .metavar = "F",
     .help = "Of SGD."},
    {.name = "dampening",
     .env = "SPARRING_DAMPENING",
     .kind = OPTION_DOUBLE,
     .offset = AT(dampening),
     .default_text = "0",
     .min = -1e6,
     .max = 1e6,
     .metavar = "F",
     .help = "Of SGD's momentum."},
    {.name = "nesterov",
     .env = "SPARRING_NESTEROV",
     .kind = OPTION_BOOL,
     .offset = AT(nesterov),
     .default_text = "false",
     .help = "Nesterov momentum (SGD)."},
    {.name = "weight-decay",
     .env = "SPARRING_WEIGHT_DECAY",
     .kind = OPTION_DOUBLE,
     .offset = AT(weight_decay),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .metavar = "F",
     .help = "L2 penalty (SGD, Adam) or decoupled decay (AdamW)."},
    {.name = "beta1",
     .env = "SPARRING_BETA1",
     .kind = OPTION_DOUBLE,
     .offset = AT(beta1),
     .default_text = "0.9",
     .min = 0,
     .max = 1,
     .metavar = "F",
     .help = "Of Adam and AdamW."},
    {.name = "beta2",
     .env = "SPARRING_BETA2",
     .kind = OPTION_DOUBLE,
     .offset = AT(beta2),
     .default_text = "0.999",
     .min = 0,
     .max = 1,
     .metavar = "F",
     .help = "Of Adam and AdamW."},
    {.name = "epsilon",
     .env = "SPARRING_EPSILON",
     .kind = OPTION_DOUBLE,
     .offset = AT(epsilon),
     .default_text = "1e-8",
     .min = 0,
     .max = 1,
     .metavar = "F",
     .help = "Of Adam and AdamW."},
    {.help = "Synchronisation:"},
    {.name = "sync",
     .env = "SPARRING_SYNC",
     .kind = OPTION_CHOICE,
     .offset = AT(sync),
     .default_text = "allreduce",
     .choices = "local|allreduce|ps",
     .help = "allreduce (DistributedDataParallel), ps (parameter server) or local (no "
             "communication: the control)."},
    {.name = "backend",
     .env = "SPARRING_BACKEND",
     .kind = OPTION_TEXT,
     .offset = AT(backend),
     .default_text = "auto",
     .metavar = "NAME",
     .help = "Of allreduce: auto (shm when all ranks share a host, hier when some do, else ring), "
             "shm, ring (TCP), grpc (the ring over gRPC), hier (shm inside a host, a ring between "
             "hosts), nccl (GPUs), gloo, or mpi (under mpirun, which 'sparring launch --backend "
             "mpi' starts)."},
    {.name = "transport",
     .env = "SPARRING_TRANSPORT",
     .kind = OPTION_CHOICE,
     .offset = AT(transport),
     .default_text = "tcp",
     .choices = "tcp|grpc",
     .help = "Under the ring, alone or between the hosts of hier; --backend grpc is ring over "
             "grpc."},
    {.name = "interface",
     .env = "SPARRING_INTERFACE",
     .kind = OPTION_TEXT,
     .offset = AT(interface),
     .metavar = "NAME",
     .help = "Network interface, or address of this host, that the other ranks reach it by; "
             "default: the one that reaches the store."},
    {.name = "heartbeat-timeout-ms",
     .env = "SPARRING_HEARTBEAT_TIMEOUT_MS",
     .kind = OPTION_INT,
     .offset = AT(heartbeat_timeout_ms),
     .default_text = "1500",
     .min = 100,
     .max = 86400000,
     .metavar = "N",
     .help = "Silence after which a rank of allreduce counts as stopped or cut off."},
    {.name = "bucket-cap-mb",
     .env = "SPARRING_BUCKET_CAP_MB",
     .kind = OPTION_DOUBLE,
     .offset = AT(bucket_cap_mb),
     .default_text = "-1",
     .min = -1,
     .max = 1e6,
     .metavar = "F",
     .help = "MiB per gradient bucket; -1 is PyTorch's default: 25, and 1 for the first bucket."},
    {.name = "comm-cpu",
     .env = "SPARRING_COMM_CPU",
     .kind = OPTION_INT,
     .offset = AT(comm_cpu),
     .default_text = "-1",
     .min = -1,
     .max = 1023,
     .metavar = "CPU",
     .help = "Core of allreduce's communication thread; -1: any."},
    {.name = "broadcast-buffers",
     .env = "SPARRING_BROADCAST_BUFFERS",
     .kind = OPTION_BOOL,
     .offset = AT(broadcast_buffers),
     .default_text = "true",
     .help = "Rank 0's buffers (running statistics of mlp-bn) go to all ranks before the forward "
             "that follows a synchronised one."},
    {.name = "find-unused-parameters",
     .env = "SPARRING_FIND_UNUSED_PARAMETERS",
     .kind = OPTION_BOOL,
     .offset = AT(find_unused_parameters),
     .default_text = "false",
     .help = "Parameters may have no gradient in a step (--layer-drop): agree on which were used."},
    {.name = "static-graph",
     .env = "SPARRING_STATIC_GRAPH",
     .kind = OPTION_BOOL,
     .offset = AT(static_graph),
     .default_text = "false",
     .help = "The parameters used in the first step are those used in all."},
    {.name = "uneven",
     .env = "SPARRING_UNEVEN",
     .kind = OPTION_CHOICE,
     .offset = AT(uneven),
     .default_text = "pad",
     .choices = "pad|drop|join|stop",
     .help = "Samples that do not divide among the ranks: pad repeats some, drop leaves some out; "
             "join uses each once, and ranks without any shadow the others; stop fails then."},
    {.name = "join-divide",
     .env = "SPARRING_JOIN_DIVIDE",
     .kind = OPTION_CHOICE,
     .offset = AT(join_divide),
     .default_text = "initial",
     .choices = "initial|active",
     .help = "With --uneven join, divide sums by the initial world size or by the ranks that still "
             "have inputs."},
    {.name = "weighting",
     .env = "SPARRING_WEIGHTING",
     .kind = OPTION_CHOICE,
     .offset = AT(weighting),
     .default_text = "ranks",
     .choices = "ranks|samples",
     .help =
         "The mean gradient is over ranks, as DDP's, or over samples: equal to one process with "
         "the whole batch even when the ranks' batches differ."},
    {.name = "comm-hook",
     .env = "SPARRING_COMM_HOOK",
     .kind = OPTION_CHOICE,
     .offset = AT(comm_hook),
     .default_text = "none",
     .choices = "none|fp16|bf16|powersgd",
     .help = "How gradients of allreduce travel: as they are, in 16 bits, or as matrices of low "
             "rank."},
    {.name = "powersgd-rank",
     .env = "SPARRING_POWERSGD_RANK",
     .kind = OPTION_INT,
     .offset = AT(powersgd_rank),
     .default_text = "1",
     .min = 1,
     .max = 1024,
     .metavar = "R",
     .help = "Rank of the approximation."},
    {.name = "powersgd-start-iter",
     .env = "SPARRING_POWERSGD_START_ITER",
     .kind = OPTION_INT,
     .offset = AT(powersgd_start_iter),
     .default_text = "10",
     .min = 2,
     .max = 1e9,
     .metavar = "N",
     .help = "Steps of plain all-reduce before compression."},
    {.name = "powersgd-min-rate",
     .env = "SPARRING_POWERSGD_MIN_RATE",
     .kind = OPTION_DOUBLE,
     .offset = AT(powersgd_min_rate),
     .default_text = "2",
     .min = 0,
     .max = 1e9,
     .metavar = "F",
     .help = "Compress a tensor only when it shrinks by more than this."},
    {.name = "reduce",
     .env = "SPARRING_REDUCE",
     .kind = OPTION_CHOICE,
     .offset = AT(reduce),
     .default_text = "fast",
     .choices = "fast|reproducible",
     .help =
         "reproducible sums in rank order: the same bits through allreduce and ps, whatever the "
         "number of servers."},
    {.name = "on-rank-loss",
     .env = "SPARRING_ON_RANK_LOSS",
     .kind = OPTION_CHOICE,
     .offset = AT(on_rank_loss),
     .default_text = "fail",
     .choices = "fail|shrink",
     .help = "Of allreduce, when a rank dies, is stopped or cut off: fail ends the job and names "
             "it; shrink redoes the step without it and goes on."},
    {.name = "servers",
     .env = "SPARRING_SERVERS",
     .kind = OPTION_TEXT,
     .offset = AT(servers),
     .metavar = "H:P,...",
     .help = "Parameter servers; sparring launch --servers K sets them."},
    {.name = "consistency",
     .env = "SPARRING_CONSISTENCY",
     .kind = OPTION_CHOICE,
     .offset = AT(consistency),
     .default_text = "bsp",
     .choices = "bsp",
     .help = "Of ps: bsp, every worker waits for every other in each step."},
    {.name = "ps-update",
     .env = "SPARRING_PS_UPDATE",
     .kind = OPTION_CHOICE,
     .offset = AT(ps_update),
     .default_text = "server",
     .choices = "server|worker",
     .help = "Where the optimizer runs; with worker the servers only sum."},
    {.name = "partition-bytes",
     .env = "SPARRING_PARTITION_BYTES",
     .kind = OPTION_BYTES,
     .offset = AT(partition_bytes),
     .default_text = "0",
     .min = 0,
     .max = PARTITION_BYTES_MAX,
     .metavar = "BYTES",
     .help = "Piece of the parameters that one message of ps carries, 4K to 4M; 0: at most 1M, "
             "equal pieces for all servers."},
    {.help = "Device:"},
    {.name = "device",
     .env = "SPARRING_DEVICE",
     .kind = OPTION_TEXT,
     .offset = AT(device),
     .default_text = "auto",
     .metavar = "DEVICE",
     .help = "auto (a GPU where there is one), cpu, cuda or cuda:I."},
    {.name = "threads",
     .env = "SPARRING_THREADS",
     .kind = OPTION_INT,
     .offset = AT(threads),
     .default_text = "0",
     .min = 0,
     .max = 1024,
     .metavar = "N",
     .help = "Of the CPU's matrix products; 0: the cores divided among this host's ranks."},
    {.help = "Who and where (a launcher sets these through the environment):"},
    {.name = "rank",
     .kind = OPTION_INT,
     .offset = AT(rank),
     .default_text = "-1",
     .min = -1,
     .max = 1e6,
     .metavar = "N",
     .help = "This process's rank; -1: the launcher's."},
    {.name = "world-size",
     .kind = OPTION_INT,
     .offset = AT(world_size),
     .default_text = "-1",
     .min = -1,
     .max = 1e6,
     .metavar = "N",
     .help = "Number of ranks; -1: the launcher's."},
    {.name = "local-rank",
     .kind = OPTION_INT,
     .offset = AT(local_rank),
     .default_text = "-1",
     .min = -1,
     .max = 1e6,
     .metavar = "N",
     .help = "Rank on this host; -1: the launcher's."},
    {.name = "standalone",
     .kind = OPTION_BOOL,
     .offset = AT(standalone),
     .default_text = "false",
     .help = "Ignore every launcher's variables."},
    {.name = "init-method",
     .env = "SPARRING_INIT_METHOD",
     .kind = OPTION_TEXT,
     .offset = AT(init_method),
     .default_text = "env://",
     .metavar = "URL",
     .help = "Rendezvous: env:// (MASTER_ADDR, MASTER_PORT), tcp://host:port (rank 0 hosts) or "
             "file:///path."},
    {.name = "group",
     .env = "SPARRING_GROUP",
     .kind = OPTION_TEXT,
     .offset = AT(group),
     .default_text = "default",
     .metavar = "NAME",
     .help = "Prefix of this job's keys, so that two jobs can share one store."},
    {.name = "timeout-ms",
     .env = "SPARRING_TIMEOUT_MS",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "60000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "Longest wait for a peer, at rendezvous and in every operation."},
    {.name = "tls-ca",
     .env = "SPARRING_TLS_CA",
     .kind = OPTION_TEXT,
     .offset = AT(tls_ca),
     .metavar = "FILE",
     .help = "Certificate authority (PEM) of the store and the servers."},
    {.name = "tls-cert",
     .env = "SPARRING_TLS_CERT",
     .kind = OPTION_TEXT,
     .offset = AT(tls_cert),
     .metavar = "FILE",
     .help = "This process's certificate (PEM)."},
    {.name = "tls-key",
     .env = "SPARRING_TLS_KEY",
     .kind = OPTION_TEXT,
     .offset = AT(tls_key),
     .metavar = "FILE",
     .help = "Its private key (PEM)."},
    {.name = "insecure",
     .env = "SPARRING_INSECURE",
     .kind = OPTION_BOOL,
     .offset = AT(insecure),
     .default_text = "false",
     .help = "Let rank 0 host the store in plaintext on an address that is not loopback."},
    {.help = "Results:"},
    {.name = "run-dir",
     .env = "SPARRING_RUN_DIR",
     .kind = OPTION_TEXT,
     .offset = AT(run_dir),
     .metavar = "DIR",
     .help = "Folder for manifest.json, rank<r>.jsonl and summary.json."},
    {.name = "save",
     .env = "SPARRING_SAVE",
     .kind = OPTION_TEXT,
     .offset = AT(save),
     .metavar = "FILE",
     .help = "Write the final parameters as safetensors (rank 0)."},
    {.name = "evaluate",
     .env = "SPARRING_EVALUATE",
     .kind = OPTION_CHOICE,
     .offset = AT(evaluate),
     .default_text = "end",
     .choices = "end|epoch|never",
     .help = "When rank 0 measures accuracy on the test split."},
    {.name = "log-level",
     .env = "SPARRING_LOG_LEVEL",
     .kind = OPTION_CHOICE,
     .offset = AT(log_level),
     .default_text = "info",
     .choices = "debug|info|warning|error|quiet",
     .help = "Least severe line on stderr."},
};

const struct option_set worker_option_set = {
    .program = "sparring-worker",
    .summary = "Train one model as one rank of a job.",
    .usage = "--model SPEC --data SPEC (--epochs E | --steps S) [OPTION]...",
    .specs = specs,
    .count = sizeof(specs) / sizeof(specs[0]),
};

/* A name that this build knows, said before any rank waits for another. */
static enum status check_backend(const char *name, struct error *err)
{
    char known[256] = "auto";
    size_t used = strlen(known);

    if (strcmp(name, "auto") == 0)
        return STATUS_OK;
    for (const char *const *backend = collective_backends(); *backend; backend++) {
        if (strcmp(name, *backend) == 0)
            return STATUS_OK;
        if (used < sizeof(known))
            used += (size_t)snprintf(known + used, sizeof(known) - used, ", %s", *backend);
    }
    return error_set(err, STATUS_INVALID, "--backend '%s' is not in this build, which has %s", name,
                     known);
}

/* Options that only DistributedDataParallel can honour. */
static enum status check_ddp(const struct worker_options *o, struct error *err)
{
    if (strcmp(o->sync, "ps") == 0) {
        const char *unheard = worker_options_uneven(o)               ? "--uneven join and stop"
                              : strcmp(o->weighting, "samples") == 0 ? "--weighting samples"
                              : strcmp(o->comm_hook, "none") != 0    ? "--comm-hook"
                              : o->layer_drop > 0                    ? "--layer-drop"
                                                                     : NULL;

        if (unheard)
            return error_set(err, STATUS_INVALID, "%s: not with --sync ps", unheard);
    }
    if (o->drop_last && worker_options_uneven(o))
        return error_set(err, STATUS_INVALID, "--drop-last and --uneven %s exclude each other",
                         o->uneven);
    if (strcmp(o->on_rank_loss, "shrink") == 0 && strcmp(o->sync, "allreduce") != 0)
        return error_set(err, STATUS_INVALID, "--on-rank-loss shrink needs --sync allreduce");
    if (strcmp(o->on_rank_loss, "shrink") == 0 && worker_options_uneven(o))
        return error_set(err, STATUS_INVALID,
                         "--on-rank-loss shrink and --uneven %s exclude each other", o->uneven);
    if (o->layer_drop > 0 && strcmp(o->sync, "allreduce") == 0 && !o->find_unused_parameters)
        return error_set(err, STATUS_INVALID,
                         "--layer-drop leaves parameters without gradients: add "
                         "--find-unused-parameters");
    return STATUS_OK;
}

enum status worker_options_check(const struct worker_options *o, struct error *err)
{
    enum status status;

    if (o->model[0] == '\0')
        return error_set(err, STATUS_INVALID, "--model is missing (for example mlp:784-128-10)");
    if ((o->epochs > 0) == (o->steps > 0))
        return error_set(err, STATUS_INVALID, "give one of --epochs and --steps");
    if (strcmp(o->sync, "ps") == 0 && o->servers[0] == '\0')
        return error_set(err, STATUS_INVALID,
                         "--sync ps needs --servers host:port,... (or SPARRING_SERVERS, which "
                         "'sparring launch --servers K' sets)");
    if (o->bucket_cap_mb < 0 && o->bucket_cap_mb != -1)
        return error_set(err, STATUS_INVALID, "--bucket-cap-mb %g is negative", o->bucket_cap_mb);
    if (o->partition_bytes % sizeof(float) != 0 ||
        (o->partition_bytes > 0 && o->partition_bytes < PARTITION_BYTES_MIN))
        return error_set(err, STATUS_INVALID,
                         "--partition-bytes %ju is neither 0 nor a multiple of 4 from %u up",
                         (uintmax_t)o->partition_bytes, PARTITION_BYTES_MIN);
    status = check_ddp(o, err);
    return status == STATUS_OK ? check_backend(o->backend, err) : status;
}

struct ddp_config worker_options_ddp(const struct worker_options *o)
{
    static const struct {
        const char *name;
        enum ddp_hook hook;
    } hooks[] = {{"none", DDP_HOOK_NONE},
                 {"fp16", DDP_HOOK_FP16},
                 {"bf16", DDP_HOOK_BF16},
                 {"powersgd", DDP_HOOK_POWERSGD}};
    struct ddp_config ddp = {
        .bucket_cap_mb = o->bucket_cap_mb,
        .comm_cpu = (int)o->comm_cpu,
        .broadcast_buffers = o->broadcast_buffers,
        .find_unused_parameters = o->find_unused_parameters,
        .static_graph = o->static_graph,
        .uneven = strcmp(o->uneven, "join") == 0   ? DDP_JOIN
                  : strcmp(o->uneven, "stop") == 0 ? DDP_STOP
                                                   : DDP_EVEN,
        .divide_by_active = strcmp(o->join_divide, "active") == 0,
        .weight_by_samples = strcmp(o->weighting, "samples") == 0,
        .powersgd_rank = (unsigned)o->powersgd_rank,
        .powersgd_start = (uint64_t)o->powersgd_start_iter,
        .powersgd_min_rate = o->powersgd_min_rate,
    };

    for (size_t i = 0; i < sizeof(hooks) / sizeof(hooks[0]); i++)
        if (strcmp(hooks[i].name, o->comm_hook) == 0)
            ddp.hook = hooks[i].hook;
    return ddp;
}

bool worker_options_uneven(const struct worker_options *o)
{
    return strcmp(o->uneven, "join") == 0 || strcmp(o->uneven, "stop") == 0;
}

enum sampler_rest worker_options_rest(const struct worker_options *o)
{
    if (worker_options_uneven(o))
        return SAMPLER_KEEP;
    return o->drop_last || strcmp(o->uneven, "drop") == 0 ? SAMPLER_DROP : SAMPLER_PAD;
}

enum status worker_options_optimizer(const struct worker_options *o, struct optimizer_config *ret,
                                     struct error *err)
{
    enum optimizer_kind kind;

    if (!optimizer_parse(o->optimizer, &kind))
        return error_set(err, STATUS_INVALID, "unknown optimizer '%s'", o->optimizer);
    *ret = (struct optimizer_config){
        .kind = kind,
        .learning_rate = o->lr,
        .momentum = o->momentum,
        .dampening = o->dampening,
        .nesterov = o->nesterov,
        .weight_decay = o->weight_decay,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .epsilon = o->epsilon,
    };
    return STATUS_OK;
}

size_t worker_options_server_count(const struct worker_options *o)
{
    size_t count = o->servers[0] != '\0';

    for (const char *p = o->servers; *p; p++)
        count += *p == ',';
    return count;
}

struct rpc_security worker_options_security(const struct worker_options *o)
{
    return (struct rpc_security){
        .ca_file = o->tls_ca,
        .cert_file = o->tls_cert,
        .key_file = o->tls_key,
        .insecure = o->insecure,
    };
}
