/*
 * The beginning and the end of a replica stream.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/memory.h"
#include "server/replication/replica_stream_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define END_MS 1000 /* for the replica to hear that the job is over */

static enum status allocate(struct replica_stream *c, struct error *err)
{
    size_t length = c->shard->length, pairs = length * c->world_size;
    enum status status = mem_calloc(length, sizeof(*c->slots), "replica stream", &c->slots, err);

    if (status == STATUS_OK)
        status = mem_calloc(length, sizeof(*c->loans), "replica stream", &c->loans, err);
    if (status == STATUS_OK)
        status = mem_calloc(pairs, sizeof(*c->waiting), "answers that wait", &c->waiting, err);
    if (status == STATUS_OK)
        status = mem_calloc(c->world_size, sizeof(*c->settled), "votes", &c->settled, err);
    if (status == STATUS_OK)
        status = mem_calloc(c->world_size, sizeof(*c->clocks), "clocks", &c->clocks, err);
    if (status == STATUS_OK)
        status = mem_calloc(c->world_size, sizeof(*c->flags), "flags", &c->flags, err);
    if (status == STATUS_OK)
        status = mem_calloc(c->world_size, sizeof(*c->sessions), "sessions", &c->sessions, err);
    if (status == STATUS_OK && c->copies)
        status = mem_calloc_aligned(c->world_size * c->shard->count, sizeof(float),
                                    "copies of records", &c->copy, err);
    if (status == STATUS_OK && c->copies)
        status = mem_calloc(pairs, sizeof(*c->copied), "copies of records", &c->copied, err);
    for (size_t i = 0; status == STATUS_OK && i < length; i++)
        c->loans[i].outstanding = c->outstanding;
    for (size_t i = 0; status == STATUS_OK && c->copies && i < pairs; i++)
        c->copied[i].outstanding = c->outstanding;
    return status;
}

/* Allocates *ret_bytes (free). */
static enum status pack_terms(const struct replica_stream_config *config, enum record_kind kind,
                              uint8_t **ret_bytes, size_t *ret_size, struct error *err)
{
    size_t count = config->terms->world_size;
    struct wire_record m = {.kind = kind, .epoch = config->epoch, .session_count = count};
    struct join_request terms = *config->terms;
    enum status status = mem_calloc(count, sizeof(*m.sessions), "sessions", &m.sessions, err);

    m.terms = &terms;
    if (status == STATUS_OK) {
        memcpy(m.sessions, config->sessions, count * sizeof(*m.sessions));
        status = wire_pack_terms(&m, ret_bytes, ret_size, err);
    }
    free(m.sessions);
    return status;
}

static enum status make(const struct replica_stream_config *config, struct replica_stream **ret,
                        struct error *err)
{
    const struct shard_config *shard = &config->shard->config;
    const struct join_request *t = config->terms;
    struct replica_stream *c;
    enum status status = mem_calloc(1, sizeof(*c), "replica stream", &c, err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(c->name, sizeof(c->name), "replica %s", t->replica);
    c->shard = config->shard;
    c->world_size = shard->world_size;
    c->copies = consistency_steps_per_push(&shard->consistency);
    c->beat_ns = t->heartbeat_ms * INT64_C(1000000);
    c->silence_ns = t->heartbeat_timeout_ms * INT64_C(1000000);
    c->outstanding = config->outstanding;
    c->send = config->send;
    c->lost = config->lost;
    c->knows = config->knows;
    c->owner = config->owner;
    c->job = config->job;
    (void)pthread_mutex_init(&c->lock, NULL);
    condition_init(&c->changed);
    status = allocate(c, err);
    if (status == STATUS_OK)
        status = pack_terms(config, RECORD_TAKEOVER_QUERY, &c->question, &c->question_size, err);
    if (status != STATUS_OK) {
        replica_stream_close(c);
        return status;
    }
    succession_primary_init(&c->succession, config->epoch, c->world_size, c->settled);
    c->epoch = config->epoch;
    memcpy(c->sessions, config->sessions, c->world_size * sizeof(*c->sessions));
    *ret = c;
    return STATUS_OK;
}

static enum status open_client(struct replica_stream *c, const struct replica_stream_config *config,
                               struct error *err)
{
    struct rpc_client_config client = {.security = config->security};
    enum status status = endpoint_parse(config->terms->replica, "replica", &client.target, err);

    return status == STATUS_OK ? rpc_client_open(&client, &c->client, err) : status;
}

static enum status connect_replica(struct replica_stream *c,
                                   const struct replica_stream_config *config, struct error *err)
{
    enum status status = open_client(c, config, err);

    if (status == STATUS_OK)
        status = rpc_client_call(c->client, REPLICA_STREAM_PATH, INT64_MAX, &replica_stream_handler,
                                 c, &c->call, err);
    if (status == STATUS_OK)
        rpc_call_receive(c->call);
    return status;
}

static enum status send_terms(struct replica_stream *c, const struct replica_stream_config *config,
                              struct error *err)
{
    uint8_t *bytes = NULL;
    size_t size;
    enum status status = pack_terms(config, RECORD_TERMS, &bytes, &size, err);

    if (status == STATUS_OK)
        (void)rpc_call_send(c->call, bytes, size, NULL); /* or the stream is over, and says why */
    free(bytes);
    return status;
}

/* Until the replica has taken the terms. */
static enum status wait_until_taken(struct replica_stream *c, int64_t deadline_ns,
                                    struct error *err)
{
    struct timespec until = condition_until(deadline_ns);
    enum status status = STATUS_OK;
    int late = 0;

    (void)pthread_mutex_lock(&c->lock);
    while (!c->taken && !c->ended && late == 0)
        late = pthread_cond_timedwait(&c->changed, &c->lock, &until);
    if (c->ended)
        status = error_set(err, c->why.status, "%s", c->why.text);
    else if (!c->taken)
        status = error_set(err, STATUS_TIMEOUT, "it has not taken the job's terms in time");
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

enum status replica_stream_open(const struct replica_stream_config *config, int64_t deadline_ns,
                                struct replica_stream **ret_stream, struct error *err)
{
    struct shard_sink sink = {.put = replica_stream_put};
    struct replica_stream *c = NULL;
    enum status status = shard_check_recorded(&config->shard->config, err);

    if (status == STATUS_OK)
        status = make(config, &c, err);
    if (status == STATUS_OK)
        status = connect_replica(c, config, err);
    if (status == STATUS_OK)
        status = send_terms(c, config, err);
    if (status == STATUS_OK)
        status = wait_until_taken(c, deadline_ns, err);
    if (status != STATUS_OK) {
        (void)error_prefix(err, "replica %s: ", config->terms->replica);
        replica_stream_close(c);
        return status;
    }
    sink.user = c;
    shard_set_sink(c->shard, SHARD_SINK_REPLICA, &sink);
    *ret_stream = c;
    return STATUS_OK;
}

enum status replica_stream_restore(const struct replica_stream_config *config, const bool *settled,
                                   struct replica_stream **ret_stream, struct error *err)
{
    struct replica_stream *c = NULL;
    enum status status = make(config, &c, err);

    if (status == STATUS_OK)
        status = open_client(c, config, err);
    if (status != STATUS_OK) {
        (void)error_prefix(err, "replica %s: ", config->terms->replica);
        replica_stream_close(c);
        return status;
    }
    c->restored = c->taken = c->ended = true;
    c->counts.lost_ns = clock_now_ns();
    memcpy(c->settled, settled, c->world_size * sizeof(*settled));
    succession_primary_restore(&c->succession, config->epoch, c->world_size, c->settled);
    *ret_stream = c;
    return STATUS_OK;
}

void replica_stream_close(struct replica_stream *c)
{
    struct timespec until = condition_until(clock_deadline_ns(END_MS));
    int late = 0;

    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    c->over = true;
    while (c->end_sent && !c->ended && late == 0) /* it is to arrive */
        late = pthread_cond_timedwait(&c->changed, &c->lock, &until);
    (void)pthread_mutex_unlock(&c->lock);
    rpc_client_close(c->client);
    if (c->call)
        rpc_call_unref(c->call);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    free(c->question);
    free(c->copied);
    free(c->copy);
    free(c->flags);
    free(c->sessions);
    free(c->clocks);
    free(c->settled);
    free(c->waiting);
    free(c->loans);
    free(c->slots);
    free(c);
}
