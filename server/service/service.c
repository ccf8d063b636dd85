/*
 * The service's life, and how a job ends.
 */
#include "server/service/service.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "server/observe/metrics_text.h"
#include "server/persistence/persistence.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CLOSE_GRACE_MS    2000 /* for calls that have been told to end */
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
         .max_head_bytes = WIRE_BEAT_MAX,
         .max_payload_bytes = RPC_NO_PAYLOAD},
        {.path = SERVICE_STATE,
         .handler = &state_handler,
         .user = s,
         .max_head_bytes = WIRE_CHUNK_HEAD_MAX,
         .max_payload_bytes = RPC_NO_PAYLOAD},
        {.path = SERVICE_REPLICATE,
         .handler = &replicate_handler,
         .user = s,
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
    (void)pthread_mutex_lock(&s->lock);
    s->rpc = status == STATUS_OK ? server : NULL;
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

/* Where the numbers of this process's connections begin: nowhere near those of another one that its
 * ranks have been connected to. */
static uint64_t draw_number(void)
{
    uint32_t drawn = 0;

    if (getrandom(&drawn, sizeof(drawn), 0) != (ssize_t)sizeof(drawn))
        drawn = (uint32_t)clock_now_ns();
    return (uint64_t)(drawn | 1) << 32;
}

static bool is_given(const char *text)
{
    return text && text[0] != '\0';
}

static enum status check_identity(const struct service_config *config, struct error *err)
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

static enum status open_page(struct service *s, const struct service_config *config,
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

enum status service_open(const struct service_config *config, struct service **ret_service,
                         struct error *err)
{
    struct service *s;
    enum status status = check_identity(config, err);

    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*s), "service", &s, err);
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_init(&s->lock, NULL);
    condition_init(&s->changed);
    s->timeout_ms = config->timeout_ms;
    s->bind_ranks = config->bind_ranks;
    s->security = config->security;
    s->start_time_seconds = clock_wall_seconds();
    s->connections_from = draw_number();
    run_log_init(&s->run_log, config->run_dir,
                 &(struct run_log_settings){
                     .threads = config->threads,
                     .shares_memory = config->share_memory,
                     .has_tls = is_given(config->security.cert_file),
                     .has_token = is_given(config->security.token_file),
                     .is_durable = is_given(config->state_dir),
                 });
    if (config->share_memory)
        memory_sharing_open(s);
    status = persistence_open(s, config, err);
    if (status == STATUS_OK)
        status = supervisor_start(s, err);
    if (status == STATUS_OK)
        status = open_rpc(s, config, err);
    if (status == STATUS_OK)
        status = open_page(s, config, err);
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

/* Let the round under way end; the supervisor then ends the job. */
static void drain(struct service *s)
{
    if (s->rpc)
        rpc_server_drain(s->rpc);
    (void)pthread_mutex_lock(&s->lock);
    s->draining = true;
    s->drain_begin_ns = clock_now_ns();
    s->drain_deadline_ns = clock_deadline_ns(s->timeout_ms);
    (void)pthread_cond_broadcast(&s->changed);
    while (s->current)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
}

void service_close(struct service *s)
{
    if (!s)
        return;
    if (s->supervisor_started)
        drain(s);
    metrics_page_close(s->page); /* shows the drain; reads s->rpc */
    rpc_server_close(s->rpc, CLOSE_GRACE_MS);
    fd_listener_close(s->fd_listener);
    supervisor_stop(s);
    run_log_close(&s->run_log);
    persistence_close(s);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Out of service, into the list of those that are over, at its end.  Lock held. */
static void retire(struct service *s, struct job *j)
{
    struct job **link = &s->over;

    if (s->current == j)
        s->current = NULL;
    while (*link)
        link = &(*link)->next;
    *link = j;
    (void)pthread_cond_broadcast(&s->changed);
}

/* References to a rank's open calls; their number. */
static size_t take_calls(struct service *s, struct job *j, unsigned rank,
                         struct rpc_call *ret[RANK_SESSION_CALLS_MAX + 2])
{
    const struct job_rank *r = &j->ranks[rank];
    size_t count;

    (void)pthread_mutex_lock(&s->lock);
    count = rank_session_take_calls(&r->session, ret);
    if (r->join) {
        rpc_call_ref(r->join);
        ret[count++] = r->join;
    }
    if (r->pending_join_reply) {
        rpc_call_ref(r->pending_join_reply);
        ret[count++] = r->pending_join_reply;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return count;
}

bool service_begin_end(struct service *s, struct job *j, const struct error *failure)
{
    bool first = job_end(j, failure, clock_now_ns());

    if (first) {
        j->users++; /* ours: the supervisor must not free it yet */
        stats_add_job(j, &s->past);
        s->jobs_ok += failure == NULL;
        s->jobs_failed += failure != NULL;
        memcpy(s->last_job, j->members.job, sizeof(s->last_job));
        s->last_failure = j->failure;
        retire(s, j);
    }
    return first;
}

void service_finish_end(struct service *s, struct job *j, const struct error *failure)
{
    if (failure)
        log_warning("job '%s' ended: %s", j->members.job, failure->text);
    else
        log_info("job '%s' is done", j->members.job);
    primary_end(j, failure);
    if (failure)
        replica_end(s, j, failure);
    for (unsigned rank = 0; failure && rank < j->members.world_size; rank++) {
        struct rpc_call *calls[RANK_SESSION_CALLS_MAX + 2];
        size_t count = take_calls(s, j, rank, calls);

        for (size_t i = 0; i < count; i++) {
            rpc_call_finish(calls[i], failure->status, failure->text);
            rpc_call_unref(calls[i]);
        }
    }
    service_drop_job(s, j);
}

void service_end_job(struct service *s, struct job *j, const struct error *failure)
{
    bool first;

    (void)pthread_mutex_lock(&s->lock);
    first = service_begin_end(s, j, failure);
    (void)pthread_mutex_unlock(&s->lock);
    if (first)
        service_finish_end(s, j, failure);
}

void service_end_deserted(struct service *s, struct job *j, const struct error *failure)
{
    bool first;

    (void)pthread_mutex_lock(&s->lock);
    first =
        !(j->state == JOB_GATHERING && j->members.joined > 0) && service_begin_end(s, j, failure);
    (void)pthread_mutex_unlock(&s->lock);
    if (first)
        service_finish_end(s, j, failure);
}

void service_drop_job(struct service *s, struct job *j)
{
    (void)pthread_mutex_lock(&s->lock);
    j->users--;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}
