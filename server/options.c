/*
 * options: the server's option table, and its conversion to struct service_config.
 *
 * The settings of a job (model size, optimizer, order of sums) are not options of the server: they
 * arrive with the joins of its workers.
 */
#include "server/options.h"

#include <stddef.h>

#define AT(field) offsetof(struct server_options, field)

static const struct option_spec service_specs[] = {
    {.help = "The service:"},
    {.name = "listen",
     .env = "SPARRING_LISTEN",
     .kind = OPTION_TEXT,
     .offset = AT(listen),
     .default_text = "127.0.0.1:5757",
     .metavar = "H:P",
     .help = "Address and port to serve on; port 0 takes any free one (see --port-file).  Or "
             "unix:/path for workers of this host: a socket for this user alone, in a folder that "
             "nobody else may write to."},
    {.name = "port-file",
     .env = "SPARRING_PORT_FILE",
     .kind = OPTION_TEXT,
     .offset = AT(port_file),
     .metavar = "FILE",
     .help = "Write the port (or unix:/path) here once the server answers."},
    {.name = "timeout-ms",
     .env = "SPARRING_TIMEOUT_MS",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "60000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "How long the ranks of a job wait for a silent one, when they join and in every "
             "round; also how long a round may take to end after SIGTERM."},
    {.name = "threads",
     .env = "SPARRING_SERVER_THREADS",
     .kind = OPTION_INT,
     .offset = AT(threads),
     .default_text = "0",
     .min = 0,
     .max = 64,
     .metavar = "N",
     .help =
         "Threads that serve connections, and as many for shared memory, at most 4; 0 takes one "
         "per core, or per two cores for workers of this host, which need the others."},
    {.name = "share-memory",
     .env = "SPARRING_SHARE_MEMORY",
     .kind = OPTION_BOOL,
     .offset = AT(share_memory),
     .default_text = "true",
     .help = "Let workers of this host and user hand their gradients over in shared memory, and "
             "read the results there."},
    {.name = "metrics-listen",
     .env = "SPARRING_METRICS_LISTEN",
     .kind = OPTION_TEXT,
     .offset = AT(metrics_listen),
     .metavar = "H:P",
     .help = "Show metrics in the format of Prometheus at http://H:P/metrics, in plaintext; "
             "without it there is no such page."},
    {.help = "State:"},
    {.name = "state-dir",
     .env = "SPARRING_STATE_DIR",
     .kind = OPTION_TEXT,
     .offset = AT(state_dir),
     .metavar = "DIR",
     .help =
         "Keep the state of the job here: what a reply contains is in a file before a worker gets "
         "it.  A server that died or was stopped goes on with it when it is started again, and the "
         "workers come back by themselves (--reconnect-ms of theirs).  For one server alone (a "
         "replica keeps its own); without it a job ends with its server."},
    {.name = "snapshot-every",
     .env = "SPARRING_SNAPSHOT_EVERY",
     .kind = OPTION_INT,
     .offset = AT(snapshot_every),
     .default_text = "100",
     .min = 0,
     .max = 1000000000,
     .metavar = "K",
     .help = "Rounds between two snapshots of the state; in between each round adds its gradients "
             "to a journal.  0: only for --journal-mib, and when the server is stopped."},
    {.name = "journal-mib",
     .env = "SPARRING_JOURNAL_MIB",
     .kind = OPTION_INT,
     .offset = AT(journal_mib),
     .default_text = "0",
     .min = 0,
     .max = 1 << 30,
     .metavar = "N",
     .help = "Also begin a snapshot when the journal is longer than N MiB; the older files are "
             "then removed.  0: eight times the size of a snapshot, at least 64 MiB."},
    {.help = "Security:"},
    {0},
};

static const struct option_spec process_specs[] = {
    {.name = "bind-ranks",
     .env = "SPARRING_BIND_RANKS",
     .kind = OPTION_BOOL,
     .offset = AT(bind_ranks),
     .default_text = "false",
     .help = "Let a worker speak only for the ranks that its certificate names "
             "(subjectAltName=URI:sparring:rank/0,...)."},
    {.name = "insecure",
     .env = "SPARRING_INSECURE",
     .kind = OPTION_BOOL,
     .offset = AT(insecure),
     .default_text = "false",
     .help = "Serve in plaintext on an address that is not loopback."},
    {.help = "Results:"},
    {.name = "run-dir",
     .env = "SPARRING_RUN_DIR",
     .kind = OPTION_TEXT,
     .offset = AT(run_dir),
     .metavar = "DIR",
     .help = "Folder for server<k>.jsonl, k being this server's index in the job."},
    {.name = "log-level",
     .env = "SPARRING_LOG_LEVEL",
     .kind = OPTION_CHOICE,
     .offset = AT(log_level),
     .default_text = "info",
     .choices = "debug|info|warning|error|quiet",
     .help = "Least severe line on stderr."},
    {0},
};

const struct option_set server_option_set = {
    .program = "sparring-server",
    .summary = "Serve one shard of a parameter server, one job after the other.  SIGTERM ends it "
               "after the round under way.",
    .usage = "[OPTION]...",
    .tables = {{service_specs, 0}, {security_specs, .base = AT(security)}, {process_specs, 0}},
};

enum status server_options_service(const struct server_options *o,
                                   const struct option_result *origins, struct service_config *ret,
                                   struct error *err)
{
    const char *origin = option_origin_text(&server_option_set, origins, "listen");
    enum status status;

    *ret = (struct service_config){
        .listen_origin = origin,
        .security = security_options_read(&o->security, o->insecure),
        .bind_ranks = o->bind_ranks,
        .threads = (unsigned)o->threads,
        .timeout_ms = o->timeout_ms,
        .share_memory = o->share_memory,
        .run_dir = o->run_dir[0] ? o->run_dir : NULL,
        .state_dir = o->state_dir[0] ? o->state_dir : NULL,
        .snapshot_every = (uint64_t)o->snapshot_every,
        .journal_bytes = (uint64_t)o->journal_mib << 20,
    };
    status = endpoint_parse(o->listen, origin, &ret->listen, err);
    if (status != STATUS_OK || !o->metrics_listen[0])
        return status;
    ret->show_metrics = true;
    ret->metrics_listen_origin = option_origin_text(&server_option_set, origins, "metrics-listen");
    return endpoint_parse(o->metrics_listen, ret->metrics_listen_origin, &ret->metrics_listen, err);
}
