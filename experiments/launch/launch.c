/*
 * launch: starts the servers, then the ranks, waits for the ranks, then stops the servers.
 *
 * The job's port: with --standalone a free one is chosen here.  The socket that chose it stays
 * bound (never listening, with SO_REUSEADDR) until the job ends, so the kernel gives the port to no
 * other process, and rank 0, whose listener sets SO_REUSEADDR as listeners do, can still bind it.
 */
#include "experiments/launch/launch.h"

#include "common/base/file.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "experiments/launch/child_set.h"
#include "experiments/launch/fault_injector.h"
#include "experiments/launch/placement.h"
#include "experiments/launch/plan.h"
#include "experiments/launch/pods.h"
#include "experiments/launch/servers.h"
#include "experiments/launch/step.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define VARIABLES_MAX   24
#define EXIT_RANKS_LOST 7 /* the others ended well */

struct job {
    struct plan *plan;
    struct child_set child_set;
    struct network network; /* emulated; without hosts: none */
    struct fault_schedule faults;
    struct fault_injector injector;
    uint16_t port;
    int port_fd;
    struct strbuf addresses, replicas, weights; /* of the servers */
    char server_folder[SERVERS_FOLDER_SIZE];    /* of their Unix sockets; "" when there is none */
    char own_folder[4096];                      /* of this executable */
    char **argv; /* the program's words, owned; with a spare entry for --local-rank */
    size_t argc;
};

/* The environment variables of one rank. */
struct variables {
    char texts[VARIABLES_MAX][OPTION_TEXT_MAX + 64];
    char *list[VARIABLES_MAX + 1]; /* into texts; NULL-terminated */
    size_t count;
};

static enum status find_own_folder(struct job *j, struct error *err)
{
    ssize_t length = readlink("/proc/self/exe", j->own_folder, sizeof(j->own_folder) - 1);
    char *slash;

    if (length < 0)
        return error_set_errno(err, errno, "cannot read '/proc/self/exe'");
    j->own_folder[length] = '\0';
    slash = strrchr(j->own_folder, '/');
    if (slash)
        *slash = '\0';
    return STATUS_OK;
}

/* Our own programs come from the folder of this one, so that all are of one build; others from
 * PATH. */
static void find_program(const struct job *j, const char *name, char *path, size_t size)
{
    (void)snprintf(path, size, "%.4000s/%.200s", j->own_folder, name);
    if (strchr(name, '/') || strncmp(name, "sparring-", 9) != 0 || access(path, X_OK) != 0)
        (void)snprintf(path, size, "%s", name);
}

static enum status choose_port(struct job *j, struct error *err)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int on = 1;

    j->port = j->plan->master_port;
    if (j->port != 0)
        return STATUS_OK;
    j->port_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (j->port_fd < 0 || setsockopt(j->port_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(j->port_fd, (const struct sockaddr *)&address, length) != 0 ||
        getsockname(j->port_fd, (struct sockaddr *)&address, &length) != 0)
        return error_set_errno(err, errno, "cannot find a free port");
    j->port = ntohs(address.sin_port);
    return STATUS_OK;
}

/* ---- one rank */

static void add_variable(struct variables *v, const char *name, const char *value)
{
    (void)snprintf(v->texts[v->count], sizeof(v->texts[v->count]), "%s=%s", name, value);
    v->list[v->count] = v->texts[v->count];
    v->count++;
}

static void add_number_variable(struct variables *v, const char *name, unsigned value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%u", value);
    add_variable(v, name, text);
}

static void add_unset(struct variables *v, const char *name)
{
    (void)snprintf(v->texts[v->count], sizeof(v->texts[v->count]), "%s", name);
    v->list[v->count] = v->texts[v->count];
    v->count++;
}

static void add_rank_variables(const struct plan *p, unsigned local_rank, struct variables *v)
{
    struct placement_rank place = placement_rank(p, local_rank);

    add_number_variable(v, "RANK", p->node_rank * p->ranks + local_rank);
    add_number_variable(v, "WORLD_SIZE", p->nodes * p->ranks);
    add_number_variable(v, "LOCAL_RANK", place.local_rank);
    add_number_variable(v, "LOCAL_WORLD_SIZE", place.ranks);
    add_number_variable(v, "GROUP_RANK", place.host);
    add_number_variable(v, "GROUP_WORLD_SIZE", place.hosts);
}

/* Under mpirun or an engine the ranks take these from it alone. */
static void add_unset_rank_variables(struct variables *v)
{
    static const char *const names[] = {"RANK",       "WORLD_SIZE",       "LOCAL_RANK",
                                        "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        add_unset(v, names[i]);
}

static void add_server_variables(const struct job *j, struct variables *v)
{
    if (j->addresses.length == 0)
        return;
    add_variable(v, "SPARRING_SERVERS", j->addresses.text);
    if (j->replicas.length > 0)
        add_variable(v, "SPARRING_REPLICAS", j->replicas.text);
    add_variable(v, "SPARRING_SERVER_PLACEMENT", j->plan->options.server_placement);
    if (j->weights.length > 0)
        add_variable(v, "SPARRING_SERVER_WEIGHTS", j->weights.text);
}

static void fill_variables(const struct job *j, unsigned local_rank, unsigned restarts,
                           struct variables *v)
{
    const struct plan *p = j->plan;
    char interface[OPTION_TEXT_MAX];

    v->count = 0;
    if (p->has_one_child)
        add_unset_rank_variables(v);
    else
        add_rank_variables(p, local_rank, v);
    if (p->options.backend[0] != '\0')
        add_variable(v, "SPARRING_BACKEND", p->options.backend);
    add_variable(v, "MASTER_ADDR", p->master_addr);
    add_number_variable(v, "MASTER_PORT", j->port);
    add_unset(v, "TORCHELASTIC_USE_AGENT_STORE"); /* of a launcher around this one */
    add_server_variables(j, v);
    if (p->options.run_dir[0] != '\0')
        add_variable(v, "SPARRING_RUN_DIR", p->options.run_dir);
    if (p->sets_on_rank_loss)
        add_variable(v, "SPARRING_ON_RANK_LOSS", p->options.on_rank_loss);
    add_number_variable(v, "SPARRING_RESTARTS", restarts);
    if (p->options.interface[0] != '\0') {
        placement_entry(p->options.interface, local_rank, interface, sizeof(interface));
        add_variable(v, "SPARRING_INTERFACE", interface);
    }
    if ((p->hosts.engine ? p->options.ranks_per_host > 1 : p->ranks > 1) &&
        !getenv("OMP_NUM_THREADS"))
        add_variable(v, "OMP_NUM_THREADS", "1");
    v->list[v->count] = NULL;
}

static enum status start_rank(struct job *j, unsigned local_rank, struct error *err)
{
    struct variables variables;
    char path[4400];
    char flag[32];
    char prefix[32];
    cpu_set_t processors;
    struct child_request request = {
        .kind = "rank",
        .index = j->plan->node_rank * j->plan->ranks + local_rank,
        .file = path,
        .argv = j->argv,
        .host = placement_rank(j->plan, local_rank).host,
        .variables = variables.list,
        .processors = placement_processors(j->plan, false, local_rank, &processors),
        .prefix = j->plan->options.tee ? prefix : NULL};

    fill_variables(j, local_rank, j->child_set.children[j->child_set.servers + local_rank].restarts,
                   &variables);
    find_program(j, j->argv[0], path, sizeof(path));
    (void)snprintf(prefix, sizeof(prefix), "[rank %u] ", request.index);
    (void)snprintf(flag, sizeof(flag), "--local-rank=%u",
                   placement_rank(j->plan, local_rank).local_rank);
    if (j->plan->options.pass_local_rank)
        j->argv[j->argc] = flag;
    return j->plan->hosts.engine
               ? step_start(&j->child_set, j->plan, j->child_set.servers + local_rank, request.host,
                            1, &request, err)
               : child_set_start(&j->child_set, j->child_set.servers + local_rank, &request, err);
}

/* One child, which starts all ranks.  They are not bound to cores: without mpirun they are not
 * either, and a rank has more than one thread. */
static enum status start_mpirun(struct job *j, struct error *err)
{
    char program[4400];
    char ranks[16];
    char words[][24] = {"mpirun", "--oversubscribe", "--bind-to", "none", "--tag-output", "-n"};
    size_t kept = sizeof(words) / sizeof(words[0]);
    struct variables variables;
    struct child_request request = {
        .kind = "mpirun", .file = words[0], .variables = variables.list};
    size_t count = 0;
    char **argv;
    enum status status = mem_calloc(kept + 2 + j->argc, sizeof(*argv), "words", &argv, err);

    if (status != STATUS_OK)
        return status;
    fill_variables(j, 0, 0, &variables);
    find_program(j, j->argv[0], program, sizeof(program));
    (void)snprintf(ranks, sizeof(ranks), "%u", j->plan->ranks);
    for (size_t i = 0; i < kept; i++)
        if (j->plan->options.tee || strcmp(words[i], "--tag-output") != 0)
            argv[count++] = words[i];
    argv[count++] = ranks;
    argv[count++] = program;
    memcpy(argv + count, j->argv + 1, (j->argc - 1) * sizeof(*argv));
    request.argv = argv;
    status = child_set_start(&j->child_set, j->child_set.servers, &request, err);
    if (status == STATUS_OK)
        j->child_set.mpirun.pid = j->child_set.children[j->child_set.servers].pid;
    free(argv);
    return status;
}

/* One child, the step that has all ranks. */
static enum status start_step(struct job *j, struct error *err)
{
    char program[4400];
    struct variables variables;
    struct child_request request = {
        .kind = "step", .file = program, .argv = j->argv, .variables = variables.list};

    fill_variables(j, 0, 0, &variables);
    find_program(j, j->argv[0], program, sizeof(program));
    return step_start(&j->child_set, j->plan, j->child_set.servers, 0, j->plan->ranks, &request,
                      err);
}

static enum status start_ranks(struct job *j, struct error *err)
{
    enum status status = STATUS_OK;

    if (j->plan->with_mpirun)
        return start_mpirun(j, err);
    if (j->plan->has_one_child)
        return start_step(j, err);
    for (unsigned r = 0; r < j->plan->ranks && status == STATUS_OK && !j->child_set.stopping; r++)
        status = start_rank(j, r, err);
    return status;
}

/* ---- the job */

/* For the processes' records, and for their numbers of threads. */
static enum status announce_binding(const struct plan *p, struct error *err)
{
    unsigned cores = binding_cores(&p->topology), processes = p->ranks + placement_own_count(p);
    char text[16];

    (void)unsetenv("SPARRING_BIND");
    (void)unsetenv("SPARRING_HOST_CORES");
    if (p->topology.count == 0)
        return STATUS_OK;
    if (strcmp(p->options.bind, "core") == 0 && processes > cores)
        log_warning("--bind core: %u ranks and servers on %u cores, so some share one", processes,
                    cores);
    (void)snprintf(text, sizeof(text), "%u", host_cores());
    if (setenv("SPARRING_BIND", p->options.bind, 1) != 0 ||
        setenv("SPARRING_HOST_CORES", text, 1) != 0)
        return error_set_errno(err, errno, "cannot set SPARRING_BIND");
    return STATUS_OK;
}

/* Before signals are blocked and children watched: a stop signal ends this process, and with it the
 * network. */
static enum status open_network(struct job *j, struct error *err)
{
    const struct hosts *h = &j->plan->hosts;
    char text[256];
    enum status status = network_open(&j->network, h->links, h->count, &j->plan->options.network,
                                      j->faults.changes_links, err);

    if (status != STATUS_OK)
        return status;
    network_options_text(&j->plan->options.network, text, sizeof(text));
    if (setenv("SPARRING_NETWORK", text, 1) != 0 ||
        setenv("SPARRING_INSECURE", "true", 0) != 0) /* the hosts reach nobody but each other */
        return error_set_errno(err, errno, "cannot set SPARRING_NETWORK");
    return network_measure(&j->network, err);
}

static enum status read_faults(struct job *j, struct error *err)
{
    struct plan *p = j->plan;
    const struct fault_targets targets = {
        .servers = placement_own_count(p),
        .ranks = p->ranks,
        .hosts = p->hosts.count,
        .worker_hosts = p->hosts.workers,
        .links = p->hosts.links,
        .servers_restart = p->options.max_restarts > 0 && p->options.state_dir[0] != '\0',
        .ranks_restart = p->options.max_restarts > 0 && p->elastic};

    if (p->options.fault_schedule[0] != '\0' && (p->nodes > 1 || p->with_mpirun))
        return error_set(err, STATUS_UNSUPPORTED,
                         "--fault-schedule is for processes of one host that this command starts: "
                         "not for several --nnodes or --backend mpi");
    return fault_schedule_read(p->options.fault_schedule, (uint64_t)p->options.fault_seed, &targets,
                               &j->faults, err);
}

/* The event callback of the child set. */
static enum status inject_faults(void *user, int64_t *ret_next_ns, struct error *err)
{
    struct job *j = user;

    return fault_injector_step(&j->injector, ret_next_ns, err);
}

static enum status start_faults(struct job *j, struct error *err)
{
    if (j->faults.length == 0)
        return STATUS_OK;
    j->child_set.event = inject_faults;
    return fault_injector_open(&j->injector, &j->faults, &j->child_set, err);
}

static enum status prepare_job(struct job *j, struct error *err)
{
    const struct plan *p = j->plan;
    const bool is_emulated = p->hosts.count > 0 && !p->hosts.engine;
    enum status status;

    while (p->program[j->argc])
        j->argc++;
    status = mem_calloc(j->argc + 2, sizeof(char *), "program words", &j->argv, err);
    if (status != STATUS_OK)
        return status;
    memcpy(j->argv, p->program, j->argc * sizeof(char *));
    status = read_faults(j, err);
    if (status == STATUS_OK)
        status = find_own_folder(j, err);
    if (status == STATUS_OK)
        status = announce_binding(p, err);
    if (status == STATUS_OK && p->options.run_dir[0] != '\0')
        status = file_make_folder(p->options.run_dir, err);
    if (status == STATUS_OK && p->options.state_dir[0] != '\0')
        status = file_make_folder(p->options.state_dir, err);
    if (status == STATUS_OK)
        status = choose_port(j, err);
    (void)unsetenv("SPARRING_NETWORK");
    if (status == STATUS_OK && is_emulated)
        status = open_network(j, err);
    if (status == STATUS_OK)
        status =
            child_set_open(&j->child_set, placement_own_count(p), p->has_one_child ? 1 : p->ranks,
                           p->options.grace_ms, p->options.timeout_ms, err);
    j->child_set.network = is_emulated ? &j->network : NULL;
    return status;
}

static void server_program(const struct job *j, char *path, size_t size)
{
    (void)snprintf(path, size, "%.4000s/sparring-server", j->own_folder);
}

/* The restart callback of the child set. */
static enum status restart_child(void *user, size_t index, struct error *err)
{
    struct job *j = user;
    char path[4400];

    if (index >= j->child_set.servers)
        return start_rank(j, (unsigned)(index - j->child_set.servers), err);
    server_program(j, path, sizeof(path));
    return servers_restart(&j->child_set, j->plan, path, j->addresses.text, j->replicas.text,
                           j->server_folder, index, err);
}

static enum status start_servers(struct job *j, struct error *err)
{
    char path[4400];
    enum status status = STATUS_OK;

    if (j->child_set.servers > 0) {
        server_program(j, path, sizeof(path));
        status = servers_start(&j->child_set, j->plan, path, &j->addresses, &j->replicas,
                               j->server_folder, err);
    }
    if (status == STATUS_OK)
        status = placement_weights(j->plan, &j->weights, err);
    if (status != STATUS_OK)
        return status;
    servers_addresses(j->plan, &j->addresses);
    if (!strbuf_ok(&j->addresses) || !strbuf_ok(&j->replicas) || !strbuf_ok(&j->weights))
        return error_set(err, STATUS_NO_MEMORY, "no memory for the servers' addresses");
    if (j->addresses.length >= OPTION_TEXT_MAX || j->replicas.length >= OPTION_TEXT_MAX ||
        j->weights.length >= OPTION_TEXT_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the addresses of the servers take %zu bytes, more than %d",
                         j->addresses.length, OPTION_TEXT_MAX - 1);
    return STATUS_OK;
}

static enum status run_job(struct job *j, struct error *err)
{
    struct child_set *child_set = &j->child_set;
    enum status status = prepare_job(j, err);

    if (status == STATUS_OK)
        status = start_servers(j, err);
    child_set->tolerates_rank_loss = j->plan->tolerates_rank_loss && !j->plan->has_one_child;
    child_set->replica_pairs = j->plan->placement.replicas;
    child_set->durable = j->plan->options.state_dir[0] != '\0';
    if (j->plan->elastic || child_set->durable)
        child_set->restarts_left = (unsigned)j->plan->options.max_restarts;
    child_set->restart = restart_child;
    child_set->user = j;
    if (status == STATUS_OK && !child_set->stopping)
        status = start_ranks(j, err);
    if (status == STATUS_OK)
        status = start_faults(j, err);
    if (status == STATUS_OK)
        status = child_set_wait(child_set, child_set->servers, child_set->count, err);
    if (status != STATUS_OK)
        return status;
    child_set->servers_may_end = true;
    child_set->event = NULL;
    child_set_stop(child_set, 0, child_set->servers, SIGTERM);
    return child_set_wait(child_set, 0, child_set->servers, err);
}

/* The first failure's code; a server that ends with 0 while it is needed has failed too. */
static int exit_code(const struct child_set *child_set)
{
    if (child_set->timed_out)
        return status_exit_code(STATUS_TIMEOUT);
    if (child_set->first_failed) {
        int code = child_exit_code(child_set->first_failed);

        return code != 0 ? code : 1;
    }
    if (child_set->lost > 0) /* all were lost: as the first of them */
        return child_set->ended_well > 0 ? EXIT_RANKS_LOST : child_exit_code(child_set->first_lost);
    for (size_t i = 0; i < child_set->count; i++) /* stopped by a signal before it was started */
        if (child_set->children[i].state == CHILD_NEW)
            return child_set->stop_signal != 0 ? 128 + child_set->stop_signal : 1;
    return 0;
}

/* Write the records of network and faults.  A run that ended well in a network that did not keep to
 * its times is a failure. */
static enum status write_records(const struct job *j, struct error *err)
{
    const char *folder = j->plan->options.run_dir;
    enum status status = STATUS_OK;

    if (j->network.length > 0 && folder[0] != '\0')
        status = network_write(&j->network, folder, err);
    if (status == STATUS_OK && j->injector.injected && folder[0] != '\0')
        status =
            fault_injector_write(&j->injector, folder, (uint64_t)j->plan->options.fault_seed, err);
    if (status == STATUS_OK && j->network.length > 0 && exit_code(&j->child_set) == 0)
        status = network_check(&j->network, err);
    return status;
}

int launch_main(int argc, char **argv)
{
    struct plan plan;
    struct job job = {.plan = &plan,
                      .network = NETWORK_CLOSED,
                      .port_fd = -1,
                      .addresses = STRBUF_INIT,
                      .replicas = STRBUF_INIT,
                      .weights = STRBUF_INIT};
    struct error err = {0};
    int code = 0;
    enum status status;

    log_open("sparring launch", -1);
    status = plan_read(&plan, argc, argv, &err);
    if (status != STATUS_OK)
        return log_failure(&err);
    if (plan.exit_now)
        return 0;
    if (plan.role.kind != ROLE_NONE) {
        status = role_run(&plan.role, &plan.options, argv, &code, &err);
        return status == STATUS_OK ? code : log_failure(&err);
    }
    if (plan.options.dry_run)
        return pods_print(&plan, &err) == STATUS_OK ? 0 : log_failure(&err);
    status = run_job(&job, &err);
    if (status == STATUS_OK)
        status = write_records(&job, &err);
    code = status == STATUS_OK ? exit_code(&job.child_set) : log_failure(&err);
    child_set_close(&job.child_set);
    fault_injector_close(&job.injector);
    fault_schedule_release(&job.faults);
    network_close(&job.network);
    servers_remove_folder(&plan, job.server_folder);
    if (job.port_fd >= 0)
        (void)close(job.port_fd);
    strbuf_release(&job.addresses);
    strbuf_release(&job.replicas);
    strbuf_release(&job.weights);
    free(job.argv);
    return code;
}
