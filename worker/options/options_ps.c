/*
 * The worker's options for parameter servers: their addresses, the job's consistency and loss
 * handling, and compression and transport.  Data only; in the order of --help.
 */
#include "worker/options/options_tables.h"

#include "common/shard_map/shard_map.h"
#include "common/wire/wire.h"

const struct option_spec worker_ps_specs[] = {
    {.help = "Parameter servers (--sync ps):"},
    {.name = "servers",
     .env = "SPARRING_SERVERS",
     .kind = OPTION_TEXT,
     .offset = AT(servers),
     .metavar = "H:P,...",
     .help = "Parameter servers, host:port or unix:/path each; sparring launch --servers K sets "
             "them."},
    {.name = "replicas",
     .env = "SPARRING_REPLICAS",
     .kind = OPTION_TEXT,
     .offset = AT(replicas),
     .metavar = "H:P,...",
     .help = "For each of the --servers another one that keeps a copy of its shard, in the same "
             "order: when the first is lost the second continues with every value that the workers "
             "have received, and when the second is lost the first continues.  sparring launch "
             "--replicas sets them."},
    {.name = "server-weights",
     .env = "SPARRING_SERVER_WEIGHTS",
     .kind = OPTION_TEXT,
     .offset = AT(server_weights),
     .metavar = "W,...",
     .help =
         "Share of the parameters that each of --servers holds, in proportion; 0: none.  Without "
         "it all hold the same; sparring launch --server-placement mixed sets it."},
    {.name = "server-placement",
     .env = "SPARRING_SERVER_PLACEMENT",
     .kind = OPTION_CHOICE,
     .offset = AT(server_placement),
     .default_text = "dedicated",
     .choices = "dedicated|colocated|mixed",
     .help = "Where the servers run, for the records; sparring launch sets it."},
    {.name = "consistency",
     .env = "SPARRING_CONSISTENCY",
     .kind = OPTION_CHOICE,
     .offset = AT(consistency),
     .default_text = "bsp",
     .choices = "bsp|ssp|asp",
     .help =
         "Of ps: bsp, every worker waits for every other in each step; ssp, for those more than "
         "--staleness behind; asp, for none."},
    {.name = "staleness",
     .env = "SPARRING_STALENESS",
     .kind = OPTION_INT,
     .offset = AT(staleness),
     .default_text = "0",
     .min = 0,
     .max = CONSISTENCY_STALENESS_MAX,
     .metavar = "S",
     .help =
         "Of ssp: a worker that has pushed C times reads once all have pushed C - S times; 0 is "
         "bsp."},
    {.name = "backup-workers",
     .env = "SPARRING_BACKUP_WORKERS",
     .kind = OPTION_INT,
     .offset = AT(backup_workers),
     .default_text = "0",
     .min = 0,
     .max = 1023,
     .metavar = "B",
     .help = "Of bsp: a step takes the gradients of all workers but the B slowest, whose own come "
             "late and are dropped."},
    {.name = "asp-lr",
     .env = "SPARRING_ASP_LR",
     .kind = OPTION_CHOICE,
     .offset = AT(asp_lr),
     .default_text = "constant",
     .choices = "constant|staleness",
     .help = "Of asp: with staleness, the learning rate of a push is divided by the updates that "
             "others made since its worker read."},
    {.name = "delay-compensation",
     .env = "SPARRING_DELAY_COMPENSATION",
     .kind = OPTION_DOUBLE,
     .offset = AT(delay_compensation),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .metavar = "LAMBDA",
     .help = "Of asp: correct a gradient g by LAMBDA g g (w - the w that it was made from) "
             "(DC-ASGD)."},
    {.name = "ps-update",
     .env = "SPARRING_PS_UPDATE",
     .kind = OPTION_CHOICE,
     .offset = AT(ps_update),
     .default_text = "server",
     .choices = "server|worker",
     .help = "Where the optimizer runs; with worker the servers only sum."},
    {.name = "reconnect-ms",
     .env = "SPARRING_RECONNECT_MS",
     .kind = OPTION_INT,
     .offset = AT(reconnect_ms),
     .default_text = "2000",
     .min = 0,
     .max = 86400000,
     .metavar = "N",
     .help = "Of ps: how long a worker and a server that have lost their connection try to come "
             "together again, as if nothing had happened; then the server, or the worker, counts "
             "as lost.  0: at once."},
    {.name = "compression",
     .env = "SPARRING_COMPRESSION",
     .kind = OPTION_CHOICE,
     .offset = AT(compression),
     .default_text = "none",
     .choices = "none|fp16|bf16|topk|onebit|rows",
     .help = "How gradients of ps go up: as they are, in 16 bits, the --top-k largest of them, "
             "their signs and two means, or only rows that are not zero; what topk and onebit "
             "leave out is added to the next step's."},
    {.name = "compression-down",
     .env = "SPARRING_COMPRESSION_DOWN",
     .kind = OPTION_CHOICE,
     .offset = AT(compression_down),
     .default_text = "none",
     .choices = "none|fp16|bf16|topk|onebit|rows|named",
     .help = "How answers of ps come down; with --ps-update server topk and onebit say how the "
             "parameters have changed, rows which of them.  In bsp they are coded once for all "
             "workers, else for each (one more copy of its answer on the server).  named: each "
             "worker asks for the rows that its next batch reads, which are few where most "
             "features are 0."},
    {.name = "top-k",
     .env = "SPARRING_TOP_K",
     .kind = OPTION_DOUBLE,
     .offset = AT(top_k),
     .default_text = "1",
     .min = 0.0001,
     .max = 100,
     .metavar = "PERCENT",
     .help = "Elements of each partition that topk sends."},
    {.name = "ps-transport",
     .env = "SPARRING_PS_TRANSPORT",
     .kind = OPTION_CHOICE,
     .offset = AT(ps_transport),
     .default_text = "auto",
     .choices = "auto|grpc|shm",
     .help = "Of ps, how gradients reach a server of the same host: shm leaves them in shared "
             "memory, where the server adds them, and reads the results from the server's; grpc "
             "sends them through its socket; auto: shm where it can be, which is between "
             "processes of one user, on the CPU, uncompressed."},
    {.name = "connections",
     .env = "SPARRING_CONNECTIONS",
     .kind = OPTION_INT,
     .offset = AT(connections),
     .default_text = "1",
     .min = 1,
     .max = WIRE_LANES_MAX,
     .metavar = "N",
     .help = "Of ps: connections to each server, which share its partitions."},
    {.name = "priority",
     .env = "SPARRING_PRIORITY",
     .kind = OPTION_CHOICE,
     .offset = AT(priority),
     .default_text = "on",
     .choices = "on|off",
     .help = "Of ps: on sends what the next forward needs first ahead of whatever waits (P3), both "
             "ways; off in order of readiness."},
    {.name = "overlap-forward",
     .env = "SPARRING_OVERLAP_FORWARD",
     .kind = OPTION_BOOL,
     .offset = AT(overlap_forward),
     .default_text = "true",
     .help = "Of ps in bsp with --ps-update server, on a processor: parameters come back while the "
             "next step's forward goes on, each layer waiting for its own."},
    {.name = "partition-bytes",
     .env = "SPARRING_PARTITION_BYTES",
     .kind = OPTION_BYTES,
     .offset = AT(partition_bytes),
     .default_text = "0",
     .min = 0,
     .max = PARTITION_BYTES_MAX,
     .metavar = "BYTES",
     .help =
         "Piece of the parameters that one message of ps carries, 4K to 4M; 0: equal pieces for "
         "all servers, of what the network carries in 0.7 ms, 64K to 512K."},
    {0},
};
