/*
 * Checks combinations of options, and derives the settings of the modules from them
 * (DistributedDataParallel, consistency, compression, sampler, optimizer, security).  Pure
 * functions of the options, but for a stat of --resume, so no locking.
 */
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/shard_map/shard_map.h"
#include "worker/options/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Refuse a backend that this build lacks, before any rank waits for another. */
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

/* Options of DistributedDataParallel: their exclusions, and those that only it supports. */
static enum status check_ddp(const struct worker_options *o, struct error *err)
{
    if (strcmp(o->sync, "ps") == 0) {
        const char *unsupported = worker_options_uneven(o)               ? "--uneven join and stop"
                                  : strcmp(o->weighting, "samples") == 0 ? "--weighting samples"
                                  : strcmp(o->comm_hook, "none") != 0    ? "--comm-hook"
                                  : o->layer_drop > 0                    ? "--layer-drop"
                                                                         : NULL;

        if (unsupported)
            return error_set(err, STATUS_INVALID, "%s: not with --sync ps", unsupported);
    }
    if (o->drop_last && worker_options_uneven(o))
        return error_set(err, STATUS_INVALID, "--drop-last and --uneven %s exclude each other",
                         o->uneven);
    if (strcmp(o->comm_hook, "powersgd") == 0 &&
        (strcmp(o->weighting, "samples") == 0 ||
         (worker_options_uneven(o) && strcmp(o->join_divide, "active") == 0)))
        return error_set(err, STATUS_INVALID,
                         "--comm-hook powersgd: not with --weighting samples or --join-divide "
                         "active");
    if (o->layer_drop > 0 && strcmp(o->sync, "allreduce") == 0 && !o->find_unused_parameters)
        return error_set(err, STATUS_INVALID,
                         "--layer-drop leaves parameters without gradients: add "
                         "--find-unused-parameters");
    return STATUS_OK;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static enum status check_checkpoints(const struct worker_options *o, struct error *err)
{
    bool saves = o->checkpoint_dir[0] != '\0';
    bool generated = strcmp(o->init, "torch") == 0 || strcmp(o->init, "torch-fma") == 0;

    if (!saves && o->checkpoint_every > 0)
        return error_set(err, STATUS_INVALID, "--checkpoint-every needs --checkpoint-dir");
    if (!saves && strcmp(o->resume, "auto") == 0)
        return error_set(err, STATUS_INVALID, "--resume auto needs --checkpoint-dir");
    if (strcmp(o->resume, "auto") == 0 && worker_options_elastic(o))
        return error_set(err, STATUS_INVALID,
                         "--resume auto: not with --on-rank-loss %s: a process that takes a lost "
                         "one's place later has to name the same checkpoint as the others",
                         o->on_rank_loss);
    if (worker_options_elastic(o) && is_folder(o->resume))
        return error_set(err, STATUS_INVALID,
                         "--resume '%s' is a folder: not with --on-rank-loss %s: a process that "
                         "takes a lost one's place later has to name the same checkpoint as the "
                         "others, so name the file",
                         o->resume, o->on_rank_loss);
    if (o->resume[0] != '\0' && strcmp(o->resume, "auto") != 0 && !generated)
        return error_set(err, STATUS_INVALID, "--resume and --init exclude each other");
    return STATUS_OK;
}

bool worker_options_data_parallel(const struct worker_options *o)
{
    return strcmp(o->sync, "dataparallel") == 0;
}

static enum status check_data_parallel(const struct worker_options *o, struct error *err)
{
    if (!worker_options_data_parallel(o))
        return STATUS_OK;
    if (o->layer_drop > 0)
        return error_set(err, STATUS_INVALID, "--layer-drop: not with --sync dataparallel");
    if (worker_options_uneven(o))
        return error_set(err, STATUS_INVALID, "--uneven %s: not with --sync dataparallel",
                         o->uneven);
    if (strcmp(o->comm_hook, "none") != 0)
        return error_set(err, STATUS_INVALID, "--comm-hook: not with --sync dataparallel");
    if (strcmp(o->weighting, "samples") == 0)
        return error_set(err, STATUS_INVALID, "--weighting samples: not with --sync dataparallel");
    return STATUS_OK;
}

/* A job that continues without a lost rank, or with its replacement. */
static enum status check_rank_loss(const struct worker_options *o, struct error *err)
{
    bool with_servers = strcmp(o->sync, "ps") == 0;
    const char *refusal = NULL;

    if (strcmp(o->on_rank_loss, "fail") == 0)
        return STATUS_OK;
    if (!with_servers && strcmp(o->sync, "allreduce") != 0)
        return error_set(err, STATUS_INVALID,
                         "--on-rank-loss %s needs --sync allreduce or --sync ps", o->on_rank_loss);
    if (strcmp(o->on_rank_loss, "wait") == 0 && !with_servers)
        refusal = "--on-rank-loss wait needs --sync ps";
    else if (strcmp(o->on_rank_loss, "wait") == 0 && strcmp(o->ps_update, "server") != 0)
        refusal = "--on-rank-loss wait needs --ps-update server: a replacement for a lost rank "
                  "reads the parameters from the servers";
    else if (!with_servers && strcmp(o->backend, "mpi") == 0)
        refusal = "--on-rank-loss shrink: not with --backend mpi, which ends all ranks with the "
                  "lost one";
    else if (!with_servers && worker_options_uneven(o))
        return error_set(err, STATUS_INVALID,
                         "--on-rank-loss shrink and --uneven %s exclude each other", o->uneven);
    return refusal ? error_set(err, STATUS_INVALID, "%s", refusal) : STATUS_OK;
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
    status = check_checkpoints(o, err);
    if (status == STATUS_OK)
        status = check_data_parallel(o, err);
    if (status == STATUS_OK)
        status = check_rank_loss(o, err);
    if (status == STATUS_OK)
        status = check_ddp(o, err);
    return status == STATUS_OK ? check_backend(o->backend, err) : status;
}

enum status worker_options_consistency(const struct worker_options *o, unsigned world_size,
                                       struct consistency *ret, struct error *err)
{
    enum status status;

    *ret = (struct consistency){
        .staleness = (uint32_t)o->staleness,
        .backup = (uint32_t)o->backup_workers,
        .lr_by_staleness = strcmp(o->asp_lr, "staleness") == 0,
        .delay_compensation = o->delay_compensation,
    };
    if (!consistency_parse(o->consistency, &ret->mode))
        return error_set(err, STATUS_INVALID, "unknown consistency '%s'", o->consistency);
    if (strcmp(o->sync, "ps") != 0)
        return STATUS_OK;
    status = consistency_check(ret, world_size, strcmp(o->ps_update, "server") == 0,
                               strcmp(o->reduce, "reproducible") == 0, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "--consistency %s, --ps-update %s, --reduce %s: ", o->consistency,
                           o->ps_update, o->reduce);
    return status;
}

enum worker_loss worker_options_on_loss(const struct worker_options *o)
{
    if (strcmp(o->on_rank_loss, "shrink") == 0)
        return WORKER_LOSS_SHRINK;
    return strcmp(o->on_rank_loss, "wait") == 0 ? WORKER_LOSS_WAIT : WORKER_LOSS_FAIL;
}

enum sync_transport worker_options_ps_transport(const struct worker_options *o)
{
    if (strcmp(o->ps_transport, "shm") == 0)
        return SYNC_TRANSPORT_SHM;
    return strcmp(o->ps_transport, "grpc") == 0 ? SYNC_TRANSPORT_GRPC : SYNC_TRANSPORT_AUTO;
}

bool worker_options_elastic(const struct worker_options *o)
{
    return strcmp(o->sync, "ps") == 0 && worker_options_on_loss(o) != WORKER_LOSS_FAIL;
}

/* A worker selects the rows of its next batch, so that batch must be known. */
static enum status check_row_selection(const struct worker_options *o,
                                       const struct consistency *consistency, struct error *err)
{
    if (o->accumulate_steps != 1)
        return error_set(err, STATUS_INVALID,
                         "rows are named for one batch, not for the %jd of --accumulate-steps",
                         (intmax_t)o->accumulate_steps);
    if (worker_options_on_loss(o) != WORKER_LOSS_FAIL && !consistency_is_lockstep(consistency))
        return error_set(err, STATUS_INVALID,
                         "a replacement that joins while other ranks continue may be moved to "
                         "another batch than it has named rows for");
    return STATUS_OK;
}

enum status worker_options_compression(const struct worker_options *o,
                                       const struct consistency *consistency,
                                       struct compression *ret, struct error *err)
{
    enum codec_kind up, down;
    enum status status;

    if (!codec_parse(o->compression, &up) || !codec_parse(o->compression_down, &down))
        return error_set(err, STATUS_INVALID, "unknown compression '%s' or '%s'", o->compression,
                         o->compression_down);
    *ret = compression_make((uint32_t)up, (uint32_t)down,
                            (uint32_t)(o->top_k * (CODEC_PPM / 100.0) + 0.5));
    if (strcmp(o->sync, "ps") != 0)
        return STATUS_OK;
    status = compression_check(ret, err);
    if (status == STATUS_OK)
        status = compression_check_row_selection(ret, consistency,
                                                 strcmp(o->ps_update, "server") == 0, err);
    if (status == STATUS_OK && down == CODEC_SELECTED_ROWS)
        status = check_row_selection(o, consistency, err);
    if (status == STATUS_OK && (up != CODEC_NONE || down != CODEC_NONE) &&
        worker_options_ps_transport(o) == SYNC_TRANSPORT_SHM)
        status = error_set(err, STATUS_INVALID,
                           "nothing is compressed in shared memory (--ps-transport shm)");
    if (status != STATUS_OK)
        (void)error_prefix(err,
                           "--compression %s, --compression-down %s, --consistency %s, "
                           "--on-rank-loss %s: ",
                           o->compression, o->compression_down, o->consistency, o->on_rank_loss);
    return status;
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

uint64_t worker_options_updates(const struct worker_options *o, uint64_t samples)
{
    uint64_t batch = (uint64_t)o->batch_size;
    uint64_t batches = (samples + batch - 1) / batch;
    uint64_t each = (uint64_t)o->accumulate_steps;

    return (batches + each - 1) / each;
}

enum sampler_remainder worker_options_remainder(const struct worker_options *o)
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
    return parse_list_length(o->servers);
}

/* "6,6,14" into ret[0..count). */
static enum status parse_weights(const char *text, uint32_t *ret, size_t count, struct error *err)
{
    const char *rest = text;
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        size_t length = strcspn(rest, ",");
        char entry[16];
        uint64_t weight;

        (void)snprintf(entry, sizeof(entry), "%.*s", length < 16 ? (int)length : 15, rest);
        if ((rest[length] == ',') != (i + 1 < count))
            return error_set(err, STATUS_INVALID,
                             "--server-weights '%s': expected one for each of %zu servers", text,
                             count);
        if (!parse_uint64(entry, &weight) || weight > SHARD_MAP_WEIGHT_MAX)
            return error_set(err, STATUS_INVALID,
                             "--server-weights: '%s' is not a whole number from 0 to %u", entry,
                             SHARD_MAP_WEIGHT_MAX);
        ret[i] = (uint32_t)weight;
        sum += weight;
        rest += length + (rest[length] == ',');
    }
    if (sum == 0)
        return error_set(err, STATUS_INVALID, "--server-weights '%s': all are 0", text);
    return STATUS_OK;
}

enum status worker_options_server_weights(const struct worker_options *o, uint32_t **ret,
                                          struct error *err)
{
    size_t count = worker_options_server_count(o);
    uint32_t *weights;
    enum status status;

    *ret = NULL;
    if (strcmp(o->sync, "ps") != 0 || o->server_weights[0] == '\0')
        return STATUS_OK;
    status = mem_calloc(count, sizeof(*weights), "weights of servers", &weights, err);
    if (status != STATUS_OK)
        return status;
    status = parse_weights(o->server_weights, weights, count, err);
    if (status != STATUS_OK) {
        free(weights);
        return status;
    }
    *ret = weights;
    return STATUS_OK;
}

struct rpc_security worker_options_security(const struct worker_options *o)
{
    return security_options_read(&o->security, o->insecure);
}
