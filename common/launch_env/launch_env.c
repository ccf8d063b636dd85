/*
 * Finds this rank's place in the job from flags and launchers' environment variables.
 *
 * One table lists the launchers in order of priority; the first of which any variable is set must
 * be complete.  Open MPI comes before Slurm because under mpirun the SLURM_* variables describe the
 * daemon that started the ranks.  Only the variables of a Slurm *step* count: the script of a batch
 * job has SLURM_PROCID=0 and SLURM_NTASKS=4 and no peers.
 * An empty variable counts as not set.  No state, no locking.
 */
#include "common/launch_env/launch_env.h"

#include "common/base/parse.h"
#include "common/launch_env/node_list.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef const char *(*lookup_function)(const char *name);

/* The variables of one launcher.  `rank` and `size` may have a second spelling. */
struct launcher {
    const char *rank[2];
    const char *size[2];
    const char *local_rank;
    const char *local_size;
    const char *step; /* the launcher counts only if this or size[0] is set; NULL: always */
};

static const struct launcher launchers[] = {
    {{"RANK"}, {"WORLD_SIZE"}, "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
    {{"OMPI_COMM_WORLD_RANK"},
     {"OMPI_COMM_WORLD_SIZE"},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     NULL},
    {{"PMI_RANK", "PMI_ID"}, {"PMI_SIZE"}, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    {{"SLURM_PROCID"},
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     "SLURM_LOCALID",
     NULL,
     "SLURM_STEP_NODELIST"},
};

/* A variable's text; NULL when it is not set or empty. */
static const char *read_variable(lookup_function lookup, const char *name)
{
    const char *text = name ? lookup(name) : NULL;

    return text && text[0] != '\0' ? text : NULL;
}

/* The first of two spellings that is set; NULL when none is. */
static const char *pick_name(lookup_function lookup, const char *const names[2])
{
    for (size_t i = 0; i < 2; i++)
        if (read_variable(lookup, names[i]))
            return names[i];
    return NULL;
}

static enum status read_number(lookup_function lookup, const char *name, unsigned *ret,
                               struct error *err)
{
    const char *text = read_variable(lookup, name);
    uint64_t value;

    if (!text || !parse_uint64(text, &value) || value > INT_MAX)
        return error_set(err, STATUS_CONFIG, "%s is '%.100s', not a number from 0 to %d", name,
                         text ? text : "", INT_MAX);
    *ret = (unsigned)value;
    return STATUS_OK;
}

/* An optional number; *ret is unchanged when it is missing. */
static enum status read_optional(lookup_function lookup, const char *name, unsigned *ret,
                                 struct error *err)
{
    if (!read_variable(lookup, name))
        return STATUS_OK;
    return read_number(lookup, name, ret, err);
}

static enum status check_rank(const char *rank_name, const char *size_name,
                              enum status failure_status, const struct launch_env *env,
                              struct error *err)
{
    if (env->world_size == 0)
        return error_set(err, failure_status, "%s is 0, a job has at least 1 rank", size_name);
    if (env->rank >= env->world_size)
        return error_set(err, failure_status, "%s is %u, but %s is %u: ranks count from 0 to %u",
                         rank_name, env->rank, size_name, env->world_size, env->world_size - 1);
    return STATUS_OK;
}

static enum status check_local_rank(const char *name, enum status failure_status,
                                    const struct launch_env *env, struct error *err)
{
    if (env->local_world_size > 0 && env->local_rank >= env->local_world_size)
        return error_set(err, failure_status, "%s is %u, but this host has %u ranks", name,
                         env->local_rank, env->local_world_size);
    if (env->local_rank >= env->world_size)
        return error_set(err, failure_status, "%s is %u, but the job has %u ranks", name,
                         env->local_rank, env->world_size);
    return STATUS_OK;
}

/* ---- flags */

static enum status flag_value(const char *name, int64_t value, unsigned *ret, struct error *err)
{
    if (value > INT_MAX)
        return error_set(err, STATUS_INVALID, "%s is %jd, more than %d", name, (intmax_t)value,
                         INT_MAX);
    *ret = (unsigned)value;
    return STATUS_OK;
}

static enum status read_flags(const struct launch_flags *flags, struct launch_env *env,
                              struct error *err)
{
    enum status status;

    if (flags->rank < 0 || flags->world_size < 0)
        return error_set(err, STATUS_INVALID, "%s is given, %s is missing",
                         flags->rank < 0 ? "--world-size" : "--rank",
                         flags->rank < 0 ? "--rank" : "--world-size");
    if (flags->standalone)
        return error_set(err, STATUS_INVALID,
                         "--standalone runs one rank alone; it does not go with --rank and "
                         "--world-size");
    status = flag_value("--rank", flags->rank, &env->rank, err);
    if (status == STATUS_OK)
        status = flag_value("--world-size", flags->world_size, &env->world_size, err);
    if (status == STATUS_OK)
        status = check_rank("--rank", "--world-size", STATUS_INVALID, env, err);
    (void)snprintf(env->source, sizeof(env->source), "flags");
    return status;
}

/* --local-rank overrides the launcher's number, but must be consistent with its sizes. */
static enum status apply_local_flag(const struct launch_flags *flags, struct launch_env *env,
                                    struct error *err)
{
    enum status status;

    if (flags->local_rank < 0)
        return STATUS_OK;
    status = flag_value("--local-rank", flags->local_rank, &env->local_rank, err);
    return status == STATUS_OK ? check_local_rank("--local-rank", STATUS_INVALID, env, err)
                               : status;
}

/* ---- launchers */

static enum status incomplete_source_error(lookup_function lookup, const struct launcher *s,
                                           struct error *err)
{
    const char *rank = pick_name(lookup, s->rank);
    const char *size = pick_name(lookup, s->size);

    return error_set(err, STATUS_CONFIG,
                     "%s is set, but %s is not: set both, or neither (--standalone ignores "
                     "launchers)",
                     rank ? rank : (size ? size : s->step), rank ? s->size[0] : s->rank[0]);
}

/* Is any identifying variable of the launcher set? */
static bool is_source_present(lookup_function lookup, const struct launcher *s)
{
    if (s->step)
        return read_variable(lookup, s->step) || read_variable(lookup, s->size[0]);
    return pick_name(lookup, s->rank) || pick_name(lookup, s->size);
}

/* Ranks on this node of the Slurm step, if the variables are set. */
static enum status read_step_tasks(lookup_function lookup, unsigned *ret, struct error *err)
{
    const char *tasks = read_variable(lookup, "SLURM_STEP_TASKS_PER_NODE");
    unsigned node = 0;
    enum status status;

    if (!tasks || !read_variable(lookup, "SLURM_NODEID"))
        return STATUS_OK;
    status = read_number(lookup, "SLURM_NODEID", &node, err);
    if (status != STATUS_OK)
        return status;
    status = node_list_tasks(tasks, node, ret, err);
    if (status != STATUS_OK && err)
        return error_prefix(err, "SLURM_STEP_TASKS_PER_NODE: ");
    return status;
}

static enum status read_source(lookup_function lookup, const struct launcher *s,
                               struct launch_env *env, struct error *err)
{
    const char *rank = pick_name(lookup, s->rank);
    const char *size = pick_name(lookup, s->size);
    enum status status;

    if (!rank || !size)
        return incomplete_source_error(lookup, s, err);
    (void)snprintf(env->source, sizeof(env->source), "%s", rank);
    status = read_number(lookup, rank, &env->rank, err);
    if (status == STATUS_OK)
        status = read_number(lookup, size, &env->world_size, err);
    if (status == STATUS_OK)
        status = check_rank(rank, size, STATUS_CONFIG, env, err);
    if (status == STATUS_OK)
        status = read_optional(lookup, s->local_rank, &env->local_rank, err);
    if (status == STATUS_OK && s->local_size)
        status = read_optional(lookup, s->local_size, &env->local_world_size, err);
    if (status == STATUS_OK && s->step)
        status = read_step_tasks(lookup, &env->local_world_size, err);
    if (status == STATUS_OK)
        status = check_local_rank(s->local_rank, STATUS_CONFIG, env, err);
    return status;
}

/* ---- the master's address */

/* True when the Slurm step has the same rank and size as the launcher used (srun --mpi=pmi2 sets
 * PMI_RANK too): the first host of the step is then rank 0's. */
static bool is_slurm_step_of_job(lookup_function lookup, const struct launch_env *env)
{
    const char *rank = read_variable(lookup, "SLURM_PROCID");
    const char *size = read_variable(lookup, "SLURM_STEP_NUM_TASKS");
    uint64_t value;

    if (strcmp(env->source, "SLURM_PROCID") == 0)
        return true;
    return rank && parse_uint64(rank, &value) && value == env->rank && size &&
           parse_uint64(size, &value) && value == env->world_size;
}

static enum status read_master_addr(lookup_function lookup, struct launch_env *env,
                                    struct error *err)
{
    const char *text = read_variable(lookup, "MASTER_ADDR");
    const char *nodes = read_variable(lookup, "SLURM_STEP_NODELIST");
    enum status status;

    if (text) {
        if (strlen(text) >= sizeof(env->master_addr))
            return error_set(err, STATUS_CONFIG, "MASTER_ADDR has %zu characters, %zu allowed",
                             strlen(text), sizeof(env->master_addr) - 1);
        (void)snprintf(env->master_addr, sizeof(env->master_addr), "%s", text);
        (void)snprintf(env->master_addr_origin, sizeof(env->master_addr_origin), "MASTER_ADDR");
        return STATUS_OK;
    }
    if (env->world_size == 1 || !is_slurm_step_of_job(lookup, env))
        return STATUS_OK;
    if (!nodes)
        return error_set(err, STATUS_CONFIG,
                         "SLURM_PROCID is set, but neither SLURM_STEP_NODELIST nor MASTER_ADDR "
                         "says where rank 0 is");
    status = launch_env_first_host(nodes, env->master_addr, sizeof(env->master_addr), err);
    if (status != STATUS_OK)
        return err ? error_prefix(err, "SLURM_STEP_NODELIST: ") : status;
    (void)snprintf(env->master_addr_origin, sizeof(env->master_addr_origin), "SLURM_STEP_NODELIST");
    return STATUS_OK;
}

static enum status read_master_port(lookup_function lookup, struct launch_env *env,
                                    struct error *err)
{
    const char *text = read_variable(lookup, "MASTER_PORT");
    const unsigned lowest =
        env->world_size > 1 ? 1 : 0; /* 0: any free one, if no other rank has to find it */
    uint64_t port;

    if (!text)
        return STATUS_OK;
    if (!parse_uint64(text, &port) || port < lowest || port > UINT16_MAX)
        return error_set(err, STATUS_CONFIG, "MASTER_PORT is '%.100s', not a port from %u to %d",
                         text, lowest, UINT16_MAX);
    env->master_port = (uint16_t)port;
    (void)snprintf(env->master_port_origin, sizeof(env->master_port_origin), "MASTER_PORT");
    return STATUS_OK;
}

static enum status read_master(lookup_function lookup, struct launch_env *env, struct error *err)
{
    const char *agent = read_variable(lookup, "TORCHELASTIC_USE_AGENT_STORE");
    enum status status = read_master_addr(lookup, env, err);

    if (status == STATUS_OK)
        status = read_master_port(lookup, env, err);
    /* torchrun writes Python's True and accepts nothing else. */
    env->agent_store = agent && strcmp(agent, "True") == 0 && strcmp(env->source, "RANK") == 0;
    return status;
}

enum status launch_env_read(const struct launch_flags *flags, lookup_function lookup,
                            struct launch_env *ret, struct error *err)
{
    struct launch_env env = {.world_size = 1,
                             .master_addr = "127.0.0.1",
                             .master_addr_origin = "default",
                             .master_port = 29500,
                             .master_port_origin = "default",
                             .source = "alone"};
    const struct launcher *found = NULL;
    const bool by_flags = flags->rank >= 0 || flags->world_size >= 0;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]) && !found; i++)
        if (!flags->standalone && !by_flags && is_source_present(lookup, &launchers[i]))
            found = &launchers[i];
    if (by_flags)
        status = read_flags(flags, &env, err);
    else if (found)
        status = read_source(lookup, found, &env, err);
    if (status == STATUS_OK)
        status = apply_local_flag(flags, &env, err);
    if (status == STATUS_OK && !flags->standalone)
        status = read_master(lookup, &env, err);
    if (status == STATUS_OK)
        *ret = env;
    return status;
}
