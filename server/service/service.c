/*
 * The life cycle of a service: open, wire its modules together, close.
 *
 * The job table does not depend on replication or persistence.  It calls the hooks set here when
 * the membership of a job changes and when a job ends; each hook calls the modules in the order
 * that correctness requires.
 *
 * Locking: hooks run with or without the table's lock as job_hooks specifies.
 */
#include "server/service/service.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "server/observe/metrics_text.h"
#include "server/observe/stats.h"
#include "server/service/exchange.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CLOSE_GRACE_MS    2000 /* for ended calls to close */
#define REQUEST_BYTES_MAX 4096 /* of a Leave or Stats */

static enum status open_rpc(struct service *s, const struct service_config *config,
                            struct error *err)
{
    struct rpc_method methods[] = {
        {.path = SERVICE_JOIN,
         .handler = &join_handler,
         .user = s,
         .max_head_bytes = WIRE_CONTROL_MAX,
         .max_payload_bytes = RPC_NO_PAYLOAD},
        {.path = SERVICE_EXCHANGE,
         .handler = &exchange_handler,
         .user = s,
         .max_head_bytes = WIRE_CHUNK_HEAD_MAX,
         .max_payload_bytes = PARTITION_BYTES_MAX},
        {.path = SERVICE_ATTEND,
         .handler = &heartbeat_handler,
         .user = s,
         .max_head_bytes = WIRE_HEARTBEAT_MAX,
         .max_payload_bytes = RPC_NO_PAYLOAD},
        {.path = SERVICE_STATE,
         .handler = &state_handler,
         .user = s,
         .max_head_bytes = WIRE_CHUNK_HEAD_MAX,
         .max_payload_bytes = RPC_NO_PAYLOAD},
        {.path = SERVICE_REPLICATE,
         .handler = &replicate_handler,
         .user = &s->replication,
         .max_head_bytes = WIRE_CONTROL_MAX,
         .max_payload_bytes = PARTITION_BYTES_MAX},
        {.path = SERVICE_LEAVE,
         .handler = &leave_handler,
         .user = s,
         .max_head_bytes = REQUEST_BYTES_MAX,
         .max_payload_bytes = RPC_NO_PAYLOAD,
         .while_draining = true},
        {.path = SERVICE_STATS,
         .handler = &stats_handler,
         .user = s,
         .max_head_bytes = REQUEST_BYTES_MAX,
         .max_payload_bytes = RPC_NO_PAYLOAD,
         .while_draining = true},
    };
    struct rpc_server_config rpc = {
        .listen = config->listen,
        .listen_origin = config->listen_origin,
        .security = config->security,
        .threads = config->threads,
        .methods = methods,
        .method_count = sizeof(methods) / sizeof(methods[0]),
    };
    struct rpc_server *server;
    enum status status;

    status = rpc_server_open(&rpc, &server, err);
    (void)pthread_mutex_lock(&s->table.lock);
    s->rpc = status == STATUS_OK ? server : NULL;
    (void)pthread_mutex_unlock(&s->table.lock);
    return status;
}

/* A random base for the connection numbers of this process, so that they differ from those of
 * another process that the ranks were connected to. */
static uint64_t random_connection_base(void)
{
    uint32_t random_bits = 0;

    if (getrandom(&random_bits, sizeof(random_bits), 0) != (ssize_t)sizeof(random_bits))
        random_bits = (uint32_t)clock_now_ns();
    return (uint64_t)(random_bits | 1) << 32;
}

static bool is_given(const char *text)
{
    return text && text[0] != '\0';
}

static enum status check_rank_binding(const struct service_config *config, struct error *err)
{
    if (config->bind_ranks && !is_given(config->security.cert_file))
        return error_set(err, STATUS_INVALID,
                         "--bind-ranks reads ranks from the workers' certificates: give --tls-ca, "
                         "--tls-cert and --tls-key, too");
    return STATUS_OK;
}

static enum status write_metrics(void *user, struct strbuf *out, struct error *err)
{
    struct server_stats *stats;
    enum status status = service_stats(user, &stats, err);

    if (status != STATUS_OK)
        return status;
    metrics_text(stats, out);
    free(stats);
    return strbuf_ok(out) ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "no memory for a page");
}

static enum status open_metrics_page(struct service *s, const struct service_config *config,
                                     struct error *err)
{
    struct metrics_page_config page = {
        .listen = config->metrics_listen,
        .origin = config->metrics_listen_origin,
        .insecure = config->security.insecure,
        .type = METRICS_TEXT_TYPE,
        .write = write_metrics,
        .user = s,
    };

    return config->show_metrics ? metrics_page_open(&page, &s->page, err) : STATUS_OK;
}

/* ------------------------------------------------------------------ hooks */

/* The order matters: the role is updated first, because the membership file stores it. */
static enum status persist_members(void *user, struct job *j, struct error *err)
{
    (void)user;
    replication_update_role(j);
    return persistence_write_membership(j, err);
}

static void notify_job_end(void *user, struct job *j, const struct error *failure)
{
    struct service *s = user;

    replication_end(&s->replication, j, failure);
}

static void release_job(void *user, struct job *j)
{
    (void)user;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        worker_memory_unref(j->ranks[rank].memory);
    replication_release(j);
    persistence_release(j);
}

static void fill_job_figures(void *user, const struct job *j, struct job_figures *ret)
{
    (void)user;
    persistence_count(j, &ret->counters);
    replication_count(j, ret);
}

static enum status authorize_replication(void *user, const struct rpc_call *call, struct error *err)
{
    return authorize_server(user, call, err);
}

static void send_held_reply(void *user, struct job *j, const struct held_reply *reply)
{
    reply_send(user, j, reply);
}

static void init_modules(struct service *s, const struct service_config *config)
{
    s->table = (struct job_table){.timeout_ms = config->timeout_ms,
                                  .hooks = {.persist_members = persist_members,
                                            .ended = notify_job_end,
                                            .release = release_job,
                                            .count = fill_job_figures,
                                            .user = s}};
    job_table_init(&s->table);
    s->replication = (struct replication){.table = &s->table,
                                          .security = config->security,
                                          .authorize = authorize_replication,
                                          .reply = send_held_reply,
                                          .user = s};
    s->persistence.snapshot_every = config->snapshot_every;
    s->persistence.journal_bytes = config->journal_bytes;
}

/* ------------------------------------------------------------------ open and close */

enum status service_open(const struct service_config *config, struct service **ret_service,
                         struct error *err)
{
    struct service *s;
    enum status status = check_rank_binding(config, err);

    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*s), "service", &s, err);
    if (status != STATUS_OK)
        return status;
    init_modules(s, config);
    s->bind_ranks = config->bind_ranks;
    s->start_time_seconds = clock_wall_seconds();
    s->connection_base = random_connection_base();
    run_log_init(&s->run_log, config->run_dir,
                 &(struct run_log_settings){
                     .threads = config->threads,
                     .shares_memory = config->share_memory,
                     .has_tls = is_given(config->security.cert_file),
                     .has_token = is_given(config->security.token_file),
                     .is_durable = is_given(config->state_dir),
                 });
    if (config->share_memory)
        memory_sharing_open(s, config->threads);
    status = restore_open(s, config->state_dir, err);
    if (status == STATUS_OK)
        status = supervisor_start(s, err);
    if (status == STATUS_OK)
        status = open_rpc(s, config, err);
    if (status == STATUS_OK)
        status = open_metrics_page(s, config, err);
    if (status != STATUS_OK) {
        service_close(s);
        return status;
    }
    *ret_service = s;
    return STATUS_OK;
}

uint16_t service_port(const struct service *s)
{
    return rpc_server_port(s->rpc);
}

uint16_t service_metrics_port(const struct service *s)
{
    return s->page ? metrics_page_port(s->page) : 0;
}

void service_close(struct service *s)
{
    if (!s)
        return;
    if (s->rpc && s->supervisor_started)
        rpc_server_drain(s->rpc);
    if (s->supervisor_started)
        job_table_drain(&s->table);
    metrics_page_close(s->page); /* it shows the drain and reads s->rpc: close it first */
    rpc_server_close(s->rpc, CLOSE_GRACE_MS);
    fd_listener_close(s->fd_listener);
    channel_threads_close(s->channel_threads);
    supervisor_stop(s);
    run_log_close(&s->run_log);
    persistence_close(&s->persistence);
    job_table_release(&s->table);
    free(s);
}
