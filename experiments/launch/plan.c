/*
 * plan: torchrun's flags with torchrun's defaults, also from the variables PET_<FLAG> that torchrun
 * reads (Kubeflow's trainer sets these).  Left out: MIN:MAX nodes and rendezvous back ends; a job
 * that loses a rank ends, or goes on with the others (--on-rank-loss).  Unlike
 * torchrun, a restart starts a single process again, which rejoins the running job.
 */
#include "experiments/launch/plan.h"

#include "common/base/host.h"
#include "common/base/parse.h"
#include "experiments/launch/engine_hosts.h"
#include "experiments/launch/placement.h"
#include "experiments/network/network.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_MAX     1024
#define SERVERS_MAX   256
#define EMULATED_PORT 29500 /* of a namespace that is the job's own */

#define AT(field) offsetof(struct plan_options, field)

static const struct option_spec specs[] = {
    {.help = "Ranks:"},
    {.name = "nproc-per-node",
     .env = "PET_NPROC_PER_NODE",
     .kind = OPTION_TEXT,
     .offset = AT(nproc_per_node),
     .default_text = "1",
     .metavar = "N",
     .help = "Ranks to start on this host: a number, cpu (one per processor), gpu (one per NVIDIA "
             "GPU) or auto (gpu where there is one, else cpu)."},
    {.name = "nnodes",
     .env = "PET_NNODES",
     .kind = OPTION_TEXT,
     .offset = AT(nnodes),
     .default_text = "1",
     .metavar = "N",
     .help = "Hosts of the job; each runs this command, with the same --nproc-per-node."},
    {.name = "node-rank",
     .env = "PET_NODE_RANK",
     .kind = OPTION_INT,
     .offset = AT(node_rank),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .metavar = "R",
     .help = "Which of them this host is, from 0."},
    {.name = "master-addr",
     .env = "PET_MASTER_ADDR",
     .kind = OPTION_TEXT,
     .offset = AT(master_addr),
     .default_text = "127.0.0.1",
     .metavar = "HOST",
     .help = "Address of node 0; becomes MASTER_ADDR."},
    {.name = "master-port",
     .env = "PET_MASTER_PORT",
     .kind = OPTION_INT,
     .offset = AT(master_port),
     .default_text = "29500",
     .min = 0,
     .max = 65535,
     .metavar = "PORT",
     .help = "Port on it where rank 0 listens; becomes MASTER_PORT.  With one node 0 stands for "
             "any free one."},
    {.name = "standalone",
     .env = "PET_STANDALONE",
     .kind = OPTION_BOOL,
     .offset = AT(standalone),
     .default_text = "false",
     .help = "One node, 127.0.0.1 and a free port: jobs side by side do not collide."},
    {.name = "pass-local-rank",
     .kind = OPTION_BOOL,
     .offset = AT(pass_local_rank),
     .default_text = "false",
     .help = "Append --local-rank=N to the program's words, as torch.distributed.launch does "
             "without --use-env."},
    {.name = "backend",
     .kind = OPTION_TEXT,
     .offset = AT(backend),
     .metavar = "NAME",
     .help = "Becomes SPARRING_BACKEND; with mpi this command starts mpirun, which starts the "
             "ranks (one node; as root mpirun wants OMPI_ALLOW_RUN_AS_ROOT=1 and "
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)."},
    {.help = "Hosts of a cluster:"},
    {.name = "on",
     .kind = OPTION_TEXT,
     .offset = AT(on),
     .default_text = "local",
     .metavar = ENGINE_METAVAR,
     .help = "slurm: run the job on the hosts of the Slurm allocation that this command is in; "
             "ssh: on these; standby: on these, which have daemons (sparring standby serve).  Each "
             "has --ranks-per-host ranks, and --nproc-per-node is then all ranks; servers that "
             "stand alone have a host each.  Except with standby, all hosts need this folder, that "
             "of these programs and --run-dir."},
    {.name = "hosts",
     .kind = OPTION_TEXT,
     .offset = AT(hosts),
     .metavar = "NAME,...",
     .help = "Of --on: these of its hosts, in this order; first those of ranks.  By default all."},
    {.name = "dry-run",
     .kind = OPTION_BOOL,
     .offset = AT(dry_run),
     .default_text = "false",
     .help =
         "With --on kubernetes: print the manifests of the job, a JobSet, and run nothing; with "
         "kubernetes:jobs a Service and Indexed Jobs.  Each host is a pod."},
    {.help = "Parameter servers:"},
    {.name = "servers",
     .kind = OPTION_INT,
     .offset = AT(servers),
     .default_text = "0",
     .min = 0,
     .max = SERVERS_MAX,
     .metavar = "K",
     .help = "Start K sparring-server processes on node 0 before the ranks and stop them after; "
             "their addresses become SPARRING_SERVERS.  Their own options come from SPARRING_* "
             "variables."},
    {.name = "server-port",
     .kind = OPTION_INT,
     .offset = AT(server_port),
     .default_text = "0",
     .min = 0,
     .max = 65535,
     .metavar = "PORT",
     .help = "With several nodes: the servers listen on PORT, PORT + 1, ... of node 0, on every "
             "interface.  Give the same --servers and --server-port on every node, so that each "
             "knows the addresses.  With one node 0 stands for any free ports of 127.0.0.1, with "
             "--on for 5757."},
    {.name = "server-transport",
     .kind = OPTION_CHOICE,
     .offset = AT(server_transport),
     .default_text = "tcp",
     .choices = "tcp|unix",
     .help =
         "How ranks reach the servers: over TCP, or with one node over Unix sockets in a folder "
         "for this user alone, which goes with the servers."},
    {.name = "server-addresses",
     .kind = OPTION_TEXT,
     .offset = AT(server_addresses),
     .metavar = "H:P,...",
     .help = "Servers that run already, instead of --servers; becomes SPARRING_SERVERS."},
    {.name = "server-placement",
     .kind = OPTION_CHOICE,
     .offset = AT(server_placement),
     .default_text = "dedicated",
     .choices = "dedicated|colocated|mixed",
     .help = "dedicated: the --servers stand alone, on node 0.  colocated: one beside the ranks of "
             "each node; with one node one for each rank, or --servers of them.  mixed: colocated "
             "ones and --servers (or --server-addresses) that stand alone, each with the share of "
             "the parameters that keeps all links equally busy; no colocated ones where those "
             "would hold nothing."},
    {.name = "node-addresses",
     .kind = OPTION_TEXT,
     .offset = AT(node_addresses),
     .metavar = "HOST,...",
     .help =
         "With colocated servers on several nodes: the address of each node, in order, the same "
         "list on every node; node R's server listens on --server-port + R."},
    {.name = "replicas",
     .kind = OPTION_BOOL,
     .offset = AT(replicas),
     .default_text = "false",
     .help = "With one node: start a second process for each server, which keeps a copy of its "
             "shard; their addresses become SPARRING_REPLICAS.  One of the two may then be lost."},
    {.help = "Processors and networks:"},
    {.name = "bind",
     .kind = OPTION_CHOICE,
     .offset = AT(bind),
     .default_text = "none",
     .choices = "core|numa|none",
     .help = "core divides the physical cores of this host evenly among its ranks and servers; "
             "numa spreads the ranks, and the servers, over the NUMA nodes; none leaves them to "
             "the kernel.  Recorded with the processors of each process."},
    {.name = "interface",
     .kind = OPTION_TEXT,
     .offset = AT(interface),
     .metavar = "NAME,...",
     .help = "Network interfaces, or addresses of this host, for its ranks in turn; rank R's "
             "becomes its SPARRING_INTERFACE.  One name is for all."},
    {0},
};

/* After those of the emulated network. */
static const struct option_spec last_specs[] = {
    {.name = "ranks-per-host",
     .kind = OPTION_INT,
     .offset = AT(ranks_per_host),
     .default_text = "1",
     .min = 1,
     .max = RANKS_MAX,
     .metavar = "N",
     .help =
         "Ranks on one host, emulated or of --on; dedicated servers have one each.  An emulated "
         "network, on this host, is used where one of the options above is given; it takes root or "
         "user namespaces, and the programs ip and tc."},
    {.help = "Faults:"},
    {.name = "fault-schedule",
     .kind = OPTION_TEXT,
     .offset = AT(fault_schedule),
     .metavar = "FILE",
     .help = "Inject faults, one rule per line: 'AT pause|kill rank1|server0' or 'AT cut host2' or "
             "'AT slow host2 100mbit', then 'for SECONDS' where it ends.  AT is in seconds since "
             "the ranks were started; 2-3 draws a time, rank* a rank."},
    {.name = "fault-seed",
     .kind = OPTION_INT,
     .offset = AT(fault_seed),
     .default_text = "1",
     .min = 0,
     .max = 4294967295,
     .metavar = "N",
     .help = "Of what is drawn there."},
    {.help = "Running:"},
    {.name = "run-dir",
     .env = "SPARRING_RUN_DIR",
     .kind = OPTION_TEXT,
     .offset = AT(run_dir),
     .metavar = "DIR",
     .help = "Folder for the records of ranks and servers; becomes SPARRING_RUN_DIR."},
    {.name = "on-worker-loss",
     .env = "SPARRING_ON_WORKER_LOSS",
     .kind = OPTION_CHOICE,
     .alias_of = "on-rank-loss"},
    {.name = "on-rank-loss",
     .env = "SPARRING_ON_RANK_LOSS",
     .kind = OPTION_CHOICE,
     .offset = AT(on_rank_loss),
     .default_text = "fail",
     .choices = "fail|shrink|wait",
     .help = "fail stops all ranks when one fails; shrink lets the others go on when one is killed "
             "or lost, and ends with 7 when they end well without it; with wait, of jobs with "
             "servers, the others wait for another process to take the lost rank's place, see "
             "--max-restarts.  Becomes SPARRING_ON_RANK_LOSS; also found among PROGRAM's words."},
    {.name = "max-restarts",
     .env = "PET_MAX_RESTARTS",
     .kind = OPTION_INT,
     .offset = AT(max_restarts),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .metavar = "N",
     .help = "Processes of this node to start again, one at a time and N in all, while the others "
             "go on: ranks of a job with servers that were killed, with --on-rank-loss shrink or "
             "wait; servers that ended, with --state-dir.  Without effect on other jobs."},
    {.name = "state-dir",
     .env = "SPARRING_STATE_DIR",
     .kind = OPTION_TEXT,
     .offset = AT(state_dir),
     .metavar = "DIR",
     .help = "Folder where the servers keep what they must not lose, each in one of its own, which "
             "becomes its SPARRING_STATE_DIR."},
    {.name = "tee",
     .kind = OPTION_BOOL,
     .offset = AT(tee),
     .default_text = "false",
     .help = "Put '[rank 1] ' before every line that rank 1 writes.  Without it the ranks write "
             "straight to this command's output."},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "0",
     .min = 0,
     .max = 1e12,
     .metavar = "MS",
     .help = "Stop the job when it has not ended after MS milliseconds; 0 sets no limit."},
    {.name = "start-timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(start_timeout_ms),
     .default_text = "30000",
     .min = 1,
     .max = 1e9,
     .metavar = "MS",
     .help = "How long the servers may take until they listen."},
    {.name = "grace-ms",
     .kind = OPTION_INT,
     .offset = AT(grace_ms),
     .default_text = "10000",
     .min = 0,
     .max = 1e9,
     .metavar = "MS",
     .help = "Time between asking a process to stop (SIGTERM, or the signal that this command got) "
             "and killing it."},
    {.help = "Accepted for the sake of torchrun's users, without effect:"},
    {.name = "no-python",
     .kind = OPTION_BOOL,
     .offset = AT(no_python),
     .default_text = "false",
     .help = "PROGRAM is always run as it is."},
    {.name = "use-env",
     .kind = OPTION_BOOL,
     .offset = AT(use_env),
     .default_text = "false",
     .help = "LOCAL_RANK is always set."},
    {0},
};

static const struct option_set set = {
    .program = "sparring launch",
    .summary = "Start the ranks of a job on this host, with RANK, WORLD_SIZE, LOCAL_RANK, "
               "LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set "
               "(and OMP_NUM_THREADS=1 where it is not set and there are several ranks).  When a "
               "rank fails the others are stopped, and its exit code is kept; but see "
               "--on-rank-loss.",
    .usage = "[OPTION]... [--] PROGRAM [ARG]...",
    .tables = {{specs, 0},
               {network_option_specs, AT(network)},
               {last_specs, 0},
               {kubernetes_option_specs, AT(kubernetes)}},
};

static enum status read_ranks(struct plan *p, const char *origin, struct error *err)
{
    const char *text = p->options.nproc_per_node;
    int64_t count;

    if (strcmp(text, "cpu") == 0) {
        count = host_cores();
    } else if (strcmp(text, "gpu") == 0 || strcmp(text, "auto") == 0) {
        count = host_gpus();
        if (count == 0 && strcmp(text, "gpu") == 0)
            return error_set(err, STATUS_INVALID, "%s: no NVIDIA GPU on this host", origin);
        if (count == 0)
            count = host_cores();
    } else if (!parse_int64(text, &count)) {
        return error_set(err, STATUS_INVALID, "%s: '%s' is not a number, cpu, gpu or auto", origin,
                         text);
    }
    if (count < 1 || count > RANKS_MAX)
        return error_set(err, STATUS_INVALID, "%s: %s ranks, allowed is 1 to %d", origin, text,
                         RANKS_MAX);
    p->ranks = (unsigned)count;
    return STATUS_OK;
}

/* "2", or torchrun's MIN:MAX where both are the same. */
static enum status read_nodes(struct plan *p, const char *origin, struct error *err)
{
    char text[OPTION_TEXT_MAX];
    char *colon;
    int64_t count;

    (void)snprintf(text, sizeof(text), "%s", p->options.nnodes);
    colon = strchr(text, ':');
    if (colon) {
        *colon = '\0';
        if (strcmp(text, colon + 1) != 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: '%s': the number of nodes cannot change during a job", origin,
                             p->options.nnodes);
    }
    if (!parse_int64(text, &count) || count < 1 || count > 1000000)
        return error_set(err, STATUS_INVALID, "%s: '%s' is not a number of nodes from 1", origin,
                         p->options.nnodes);
    p->nodes = (unsigned)count;
    if (p->options.node_rank >= count)
        return error_set(err, STATUS_INVALID, "--node-rank is %jd, but there are %jd nodes",
                         (intmax_t)p->options.node_rank, (intmax_t)count);
    p->node_rank = (unsigned)p->options.node_rank;
    return STATUS_OK;
}

static enum status read_master(struct plan *p, const struct option_result *r, struct error *err)
{
    static const char *const rivals[] = {"master-addr", "master-port", "nnodes"};

    p->master_addr = p->options.master_addr;
    p->master_port = (uint16_t)p->options.master_port;
    if (p->master_addr[0] == '\0')
        return error_set(err, STATUS_INVALID, "--master-addr is empty");
    if (p->options.standalone) {
        for (size_t i = 0; i < sizeof(rivals) / sizeof(rivals[0]); i++)
            if (strncmp(option_origin_text(&set, r, rivals[i]), "--", 2) == 0 &&
                (i < 2 || p->nodes > 1))
                return error_set(err, STATUS_INVALID, "--standalone excludes --%s", rivals[i]);
        p->nodes = 1;
        p->node_rank = 0;
        p->master_addr = "127.0.0.1";
        p->master_port = 0;
    }
    if (p->master_port == 0 && p->nodes > 1)
        return error_set(err, STATUS_INVALID, "%s is 0, but several nodes must know the port",
                         option_origin_text(&set, r, "master-port"));
    return STATUS_OK;
}

static enum status read_binding(struct plan *p, struct error *err)
{
    cpu_set_t allowed;

    if (strcmp(p->options.bind, "none") == 0)
        return STATUS_OK;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return error_set_errno(err, errno, "--bind: cannot read this process's processors");
    binding_read("/sys/devices/system/cpu", &allowed, &p->topology);
    return STATUS_OK;
}

/* Refuse options that mpirun cannot honour. */
static enum status check_backend(struct plan *p, struct error *err)
{
    p->with_mpirun = strcmp(p->options.backend, "mpi") == 0;
    p->has_one_child = p->with_mpirun;
    if (!p->with_mpirun)
        return STATUS_OK;
    if (p->nodes > 1)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--backend mpi starts the ranks of one node; for several, run mpirun "
                         "itself with its --host, and sparring-worker --backend mpi under it");
    if (p->options.pass_local_rank)
        return error_set(
            err, STATUS_UNSUPPORTED,
            "--backend mpi excludes --pass-local-rank: mpirun gives all ranks the same "
            "words");
    if (p->topology.count > 0 || strchr(p->options.interface, ','))
        return error_set(err, STATUS_UNSUPPORTED,
                         "--backend mpi excludes --bind and a list of --interface: mpirun starts "
                         "all ranks alike");
    if (geteuid() == 0 &&
        (!getenv("OMPI_ALLOW_RUN_AS_ROOT") || !getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")))
        return error_set(err, STATUS_CONFIG,
                         "mpirun refuses to run as root unless OMPI_ALLOW_RUN_AS_ROOT=1 and "
                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 are set (--backend mpi)");
    return STATUS_OK;
}

/* What one host's network namespaces cannot do. */
static enum status check_emulation(const struct plan *p, const struct option_result *r,
                                   struct error *err)
{
    const struct plan_options *o = &p->options;
    const char *rival = p->nodes > 1                               ? "--nnodes"
                        : p->with_mpirun                           ? "--backend mpi"
                        : strcmp(o->server_transport, "unix") == 0 ? "--server-transport unix"
                        : o->server_addresses[0] != '\0'           ? "--server-addresses"
                        : o->interface[0] != '\0'                  ? "--interface"
                        : option_given(&set, r, "master-addr")     ? "--master-addr"
                                                                   : NULL;

    return !rival ? STATUS_OK
                  : error_set(err, STATUS_UNSUPPORTED,
                              "%s and an emulated network (--network-...) exclude each other: its "
                              "hosts reach nothing but each other",
                              rival);
}

static enum status read_emulation(struct plan *p, const struct option_result *r, struct error *err)
{
    struct hosts *h = &p->hosts;
    enum status status;

    if (h->count == 0 || h->engine)
        return STATUS_OK;
    status = check_emulation(p, r, err);
    if (status == STATUS_OK)
        status = network_options_read(&p->options.network, h->count, h->workers,
                                      NETWORK_DELAY_MIN_MS, h->links, err);
    network_address(0, h->master_addr, sizeof(h->master_addr));
    p->master_addr = h->master_addr;
    if (p->master_port == 0)
        p->master_port = EMULATED_PORT;
    return status;
}

static enum status print_config(struct plan *p, const struct option_result *r, struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    enum status status = STATUS_OK;

    p->exit_now = true;
    option_print_config(&set, &p->options, r, &out);
    if (!strbuf_ok(&out))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for --print-config");
    else if (fputs(out.text, stdout) == EOF || fflush(stdout) != 0)
        status = error_set_errno(err, errno, "cannot write standard output");
    strbuf_release(&out);
    return status;
}

/* Does the word begin with the option, in which '-' and '_' are the same? */
static bool begins_with_option(const char *word, const char *option)
{
    while (*option && (*word == '_' ? '-' : *word) == *option) {
        word++;
        option++;
    }
    return *option == '\0';
}

/* True when the program's words hold this option with this value, or with any where it is NULL. */
static bool words_have_option(char *const *words, const char *option, const char *value)
{
    size_t length = strlen(option);

    for (; *words; words++) {
        const char *found = NULL;

        if (!begins_with_option(*words, option))
            continue;
        if ((*words)[length] == '=')
            found = *words + length + 1;
        else if ((*words)[length] == '\0')
            found = words[1];
        if (found && (!value || strcmp(found, value) == 0))
            return true;
    }
    return false;
}

static bool is_on_rank_loss(const struct plan *p, const char *value)
{
    return strcmp(p->options.on_rank_loss, value) == 0 ||
           words_have_option(p->program, "--on-rank-loss", value) ||
           words_have_option(p->program, "--on-worker-loss", value); /* its earlier name */
}

/* Whether the ranks train with servers, as far as launch can see; a configuration file of the
 * program it does not read. */
static bool has_servers(const struct plan *p)
{
    const char *sync = getenv("SPARRING_SYNC");

    return p->placement.colocated + p->placement.dedicated + p->placement.given > 0 ||
           getenv("SPARRING_SERVERS") || words_have_option(p->program, "--servers", NULL) ||
           words_have_option(p->program, "--sync", "ps") || (sync && strcmp(sync, "ps") == 0);
}

static enum status resolve_plan(struct plan *p, const struct option_result *r, int argc,
                                char **argv, struct error *err)
{
    enum status status = read_ranks(p, option_origin_text(&set, r, "nproc-per-node"), err);

    if (status == STATUS_OK)
        status = read_nodes(p, option_origin_text(&set, r, "nnodes"), err);
    if (status == STATUS_OK)
        status = read_master(p, r, err);
    if (status == STATUS_OK)
        status = engine_hosts_read(p, err);
    if (status == STATUS_OK)
        status = placement_read(p, err);
    if (status == STATUS_OK)
        status = read_binding(p, err);
    if (status == STATUS_OK)
        status = check_backend(p, err);
    if (status == STATUS_OK)
        status = read_emulation(p, r, err);
    if (status != STATUS_OK)
        return status;
    if (r->print_config)
        return print_config(p, r, err);
    if (r->first_positional >= argc)
        return error_set(err, STATUS_INVALID,
                         "no program to start; 'sparring launch [OPTION]... -- PROGRAM [ARG]...'");
    p->program = argv + r->first_positional;
    p->sets_on_rank_loss = option_given(&set, r, "on-rank-loss");
    p->elastic = is_on_rank_loss(p, "wait") || (is_on_rank_loss(p, "shrink") && has_servers(p));
    p->tolerates_rank_loss = p->elastic || is_on_rank_loss(p, "shrink");
    return engine_hosts_check(p, err);
}

enum status plan_read(struct plan *p, int argc, char **argv, struct error *err)
{
    struct option_result result = {0};
    struct error why;
    enum status status, role_status;

    *p = (struct plan){0};
    role_status = role_read(&p->role, &why); /* first: it sets variables of options */
    status = option_parse(&set, argc, argv, &p->options, &result, err);
    if (status == STATUS_OK && result.exit_now)
        p->exit_now = true;
    else if (status == STATUS_OK && role_status != STATUS_OK)
        status = error_set(err, role_status, "%s", why.text);
    else if (status == STATUS_OK && p->role.kind == ROLE_NONE) /* others start no ranks */
        status = resolve_plan(p, &result, argc, argv, err);
    else if (status == STATUS_OK && result.print_config)
        status = print_config(p, &result, err);
    option_result_release(&result);
    return status;
}
