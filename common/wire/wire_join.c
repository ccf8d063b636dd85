/*
 * wire_join: packs and unpacks the messages of a join, with the rules of wire.c.  No state, no
 * locks.
 */
#include "common/wire/wire_join.h"
#include "common/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum status pack_rules(const struct join_request *m, struct wire_join_rules **ret,
                              struct error *err)
{
    enum status status;

    if (m->rule_count > CONSISTENCY_RULES_MAX)
        return error_set(err, STATUS_INVALID, "%zu rules of staleness, the limit is %u",
                         m->rule_count, CONSISTENCY_RULES_MAX);
    if (m->rule_count == 0)
        return STATUS_OK;
    status = mem_calloc(1, sizeof(**ret), "rules of staleness", ret, err);
    for (size_t i = 0; status == STATUS_OK && i < m->rule_count; i++) {
        Sparring__V1__ExactStaleness *rule = &(*ret)->messages[i];

        sparring__v1__exact_staleness__init(rule);
        rule->rank = m->rules[i].rank;
        rule->steps = m->rules[i].steps;
        rule->first = m->rules[i].first;
        rule->last = m->rules[i].last;
        (*ret)->list[i] = rule;
    }
    return status;
}

/* The worker's session, its behaviour after a loss, and its compression. */
static void pack_session(const struct join_request *m, Sparring__V1__JoinRequest *p,
                         struct wire_join_texts *texts)
{
    memcpy(texts->job, m->job, sizeof(texts->job));
    memcpy(texts->replica, m->replica, sizeof(texts->replica));
    memcpy(texts->host_id, m->host_id, sizeof(texts->host_id));
    p->job = texts->job;
    p->replica = texts->replica;
    p->arena = texts->host_id;
    p->session = m->session;
    p->lanes = m->lanes;
    p->in_order = m->in_order;
    p->resume = m->resume;
    p->follows = m->follows;
    p->round = m->round;
    p->attempt = m->attempt;
    p->on_loss = m->on_loss;
    p->reconnect_ms = m->reconnect_ms;
    p->heartbeat_ms = m->heartbeat_ms;
    p->heartbeat_timeout_ms = m->heartbeat_timeout_ms;
    p->dtype_up = m->dtype_up;
    p->dtype_down = m->dtype_down;
    p->top_k_ppm = m->top_k_ppm;
    p->steps_before = m->steps_before;
    p->n_weights = m->weight_count;
    p->weights = m->weights;
}

static void pack_optimizer(const struct optimizer_config *o, Sparring__V1__Optimizer *p)
{
    sparring__v1__optimizer__init(p);
    p->kind = (uint32_t)o->kind;
    p->learning_rate = o->learning_rate;
    p->momentum = o->momentum;
    p->dampening = o->dampening;
    p->weight_decay = o->weight_decay;
    p->nesterov = o->nesterov;
    p->beta1 = o->beta1;
    p->beta2 = o->beta2;
    p->epsilon = o->epsilon;
}

static void pack_consistency(const struct consistency *c, Sparring__V1__Consistency *p)
{
    sparring__v1__consistency__init(p);
    p->mode = (uint32_t)c->mode;
    p->staleness = c->staleness;
    p->backup = c->backup;
    p->lr_by_staleness = c->lr_by_staleness;
    p->delay_compensation = c->delay_compensation;
}

enum status wire_join_to_message(struct wire_join *w, const struct join_request *m,
                                 struct error *err)
{
    Sparring__V1__JoinRequest *p = &w->message;
    enum status status;

    w->rules = NULL;
    sparring__v1__join_request__init(p);
    p->rank = m->rank;
    p->world_size = m->world_size;
    p->server_index = m->server_index;
    p->server_count = m->server_count;
    p->manifest = wire_text_or_empty(m->manifest);
    p->element_count = m->element_count;
    p->partition_bytes = m->partition_bytes;
    p->update = m->update;
    p->order = m->order;
    p->optimizer = &w->optimizer;
    pack_optimizer(&m->optimizer, &w->optimizer);
    p->consistency = &w->consistency;
    pack_consistency(&m->consistency, &w->consistency);
    pack_session(m, p, &w->texts);
    status = wire_check_text(w->texts.job, "the job name", err);
    if (status == STATUS_OK)
        status = wire_check_text(w->texts.replica, "the replica's address", err);
    if (status == STATUS_OK)
        status = wire_check_text(w->texts.host_id, "the host id", err);
    if (status == STATUS_OK)
        status = wire_check_text(p->manifest, "the manifest", err);
    if (status == STATUS_OK)
        status = pack_rules(m, &w->rules, err);
    if (w->rules) {
        p->n_rules = m->rule_count;
        p->rules = w->rules->list;
    }
    return status;
}

void wire_join_release(struct wire_join *w)
{
    free(w->rules);
}

enum status wire_pack_join_request(const struct join_request *m, uint8_t **ret_bytes,
                                   size_t *ret_size, struct error *err)
{
    struct wire_join join;
    enum status status = wire_join_to_message(&join, m, err);

    if (status == STATUS_OK)
        status = wire_pack(&join.message.base, WIRE_CONTROL_MAX, ret_bytes, ret_size, err);
    wire_join_release(&join);
    return status;
}

static enum status unpack_optimizer(const Sparring__V1__Optimizer *o, struct optimizer_config *ret,
                                    struct error *err)
{
    const double values[] = {o->learning_rate, o->momentum, o->dampening, o->weight_decay,
                             o->beta1,         o->beta2,    o->epsilon};

    if (o->kind > OPTIMIZER_ADAMW)
        return error_set(err, STATUS_DATA, "join request with unknown optimizer %u", o->kind);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (!isfinite(values[i]))
            return error_set(err, STATUS_DATA,
                             "join request with an optimizer value that is not finite");
    *ret = (struct optimizer_config){
        .kind = (enum optimizer_kind)o->kind,
        .learning_rate = o->learning_rate,
        .momentum = o->momentum,
        .dampening = o->dampening,
        .nesterov = o->nesterov != 0,
        .weight_decay = o->weight_decay,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .epsilon = o->epsilon,
    };
    return STATUS_OK;
}

/* The server checks whether the values are consistent. */
static enum status unpack_consistency(const Sparring__V1__Consistency *c, struct consistency *ret,
                                      struct error *err)
{
    if (!c)
        return STATUS_OK;
    if (c->mode > CONSISTENCY_ASP)
        return error_set(err, STATUS_DATA, "join request with unknown consistency %u", c->mode);
    *ret = (struct consistency){
        .mode = (enum consistency_mode)c->mode,
        .staleness = c->staleness,
        .backup = c->backup,
        .lr_by_staleness = c->lr_by_staleness != 0,
        .delay_compensation = c->delay_compensation,
    };
    return STATUS_OK;
}

/* A job's name appears in one-line logs and metrics. */
static enum status check_job_name(const char *name, struct error *err)
{
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return error_set(err, STATUS_DATA,
                             "join request with a control character in its job's name");
    return STATUS_OK;
}

static enum status unpack_rules(const Sparring__V1__JoinRequest *m, struct join_request *ret,
                                struct error *err)
{
    enum status status;

    if (m->n_rules > CONSISTENCY_RULES_MAX)
        return error_set(err, STATUS_DATA,
                         "join request with %zu rules of staleness, the limit is %u", m->n_rules,
                         CONSISTENCY_RULES_MAX);
    status = mem_calloc(m->n_rules, sizeof(*ret->rules), "rules of staleness", &ret->rules, err);
    if (status != STATUS_OK)
        return status;
    ret->rule_count = m->n_rules;
    for (size_t i = 0; i < m->n_rules; i++)
        ret->rules[i] = (struct exact_staleness){.rank = m->rules[i]->rank,
                                                 .steps = m->rules[i]->steps,
                                                 .first = m->rules[i]->first,
                                                 .last = m->rules[i]->last};
    return STATUS_OK;
}

static enum status unpack_weights(const Sparring__V1__JoinRequest *m, struct join_request *ret,
                                  struct error *err)
{
    enum status status;

    if (m->n_weights > WIRE_WEIGHTS_MAX)
        return error_set(err, STATUS_DATA, "join request with %zu weights, the limit is %u",
                         m->n_weights, WIRE_WEIGHTS_MAX);
    status =
        mem_calloc(m->n_weights, sizeof(*ret->weights), "weights of servers", &ret->weights, err);
    if (status != STATUS_OK)
        return status;
    ret->weight_count = m->n_weights;
    if (m->n_weights > 0)
        memcpy(ret->weights, m->weights, m->n_weights * sizeof(*ret->weights));
    return STATUS_OK;
}

static enum status unpack_session(const Sparring__V1__JoinRequest *m, struct join_request *ret,
                                  struct error *err)
{
    enum status status;

    if (m->steps_before > WIRE_STEPS_MAX)
        return error_set(err, STATUS_DATA, "join request behind %" PRIu64 " steps",
                         m->steps_before);
    if (m->lanes > WIRE_LANES_MAX || m->on_loss >= WORKER_LOSS_COUNT ||
        m->dtype_up >= CODEC_KINDS || m->dtype_down >= CODEC_KINDS || m->top_k_ppm > CODEC_PPM)
        return error_set(err, STATUS_DATA,
                         "join request with %u lanes, loss policy %u, dtypes %u and %u, top-k of "
                         "%u in a million",
                         m->lanes, m->on_loss, m->dtype_up, m->dtype_down, m->top_k_ppm);
    ret->session = m->session;
    ret->lanes = m->lanes;
    ret->in_order = m->in_order != 0;
    ret->resume = m->resume != 0;
    ret->follows = m->follows != 0;
    ret->round = m->round;
    ret->attempt = m->attempt;
    ret->on_loss = m->on_loss;
    ret->reconnect_ms = m->reconnect_ms;
    ret->heartbeat_ms = m->heartbeat_ms;
    ret->heartbeat_timeout_ms = m->heartbeat_timeout_ms;
    ret->dtype_up = m->dtype_up;
    ret->dtype_down = m->dtype_down;
    ret->top_k_ppm = m->top_k_ppm;
    ret->steps_before = m->steps_before;
    status = wire_copy_text(m->replica, "replica address", ret->replica, sizeof(ret->replica), err);
    if (status == STATUS_OK)
        status = wire_copy_text(m->arena, "host id", ret->host_id, sizeof(ret->host_id), err);
    return status == STATUS_OK ? unpack_weights(m, ret, err) : status;
}

enum status wire_join_from_message(const Sparring__V1__JoinRequest *m, struct join_request *ret,
                                   struct error *err)
{
    enum status status;

    if (m->update > 1 || m->order > 1 || !m->optimizer)
        return error_set(err, STATUS_DATA, "join request with update %u, order %u and %s optimizer",
                         m->update, m->order, m->optimizer ? "an" : "no");
    ret->rank = m->rank;
    ret->world_size = m->world_size;
    ret->server_index = m->server_index;
    ret->server_count = m->server_count;
    ret->element_count = m->element_count;
    ret->partition_bytes = m->partition_bytes;
    ret->update = m->update;
    ret->order = m->order;
    status = unpack_optimizer(m->optimizer, &ret->optimizer, err);
    if (status == STATUS_OK)
        status = unpack_session(m, ret, err);
    if (status == STATUS_OK)
        status = unpack_consistency(m->consistency, &ret->consistency, err);
    if (status == STATUS_OK)
        status = unpack_rules(m, ret, err);
    if (status == STATUS_OK)
        status = wire_copy_text(m->job, "job name", ret->job, sizeof(ret->job), err);
    if (status == STATUS_OK)
        status = check_job_name(ret->job, err);
    if (status == STATUS_OK)
        status = mem_strdup(m->manifest, &ret->manifest, err);
    if (status != STATUS_OK)
        wire_release_join_request(ret);
    return status;
}

enum status wire_unpack_join_request(const uint8_t *bytes, size_t size, struct join_request *ret,
                                     struct error *err)
{
    struct arena arena;
    Sparring__V1__JoinRequest *m;
    enum status status = wire_unpack(&sparring__v1__join_request__descriptor, bytes, size,
                                     WIRE_CONTROL_MAX, &arena, &m, err);

    if (status == STATUS_OK)
        status = wire_join_from_message(m, ret, err);
    arena_release(&arena);
    return status;
}

void wire_release_join_request(struct join_request *m)
{
    free(m->manifest);
    free(m->rules);
    free(m->weights);
    m->manifest = NULL;
    m->rules = NULL;
    m->weights = NULL;
}

enum status wire_pack_join_reply(const struct join_reply *m, uint8_t **ret_bytes, size_t *ret_size,
                                 struct error *err)
{
    char version[sizeof(m->version)];
    char memory_address[sizeof(m->memory_address)];
    Sparring__V1__JoinReply p;

    sparring__v1__join_reply__init(&p);
    memcpy(version, m->version, sizeof(version));
    memcpy(memory_address, m->memory_address, sizeof(memory_address));
    p.partition_count = m->partition_count;
    p.n_partitions = m->held;
    p.partitions = m->partitions;
    p.element_count = m->element_count;
    p.version = version;
    p.epoch = m->epoch;
    p.round = m->round;
    p.role = m->role;
    p.connection = m->connection;
    p.arena = memory_address;
    return wire_pack(&p.base, WIRE_CONTROL_MAX, ret_bytes, ret_size, err);
}

enum status wire_unpack_join_reply(const uint8_t *bytes, size_t size, struct join_reply *ret,
                                   struct error *err)
{
    struct arena arena;
    Sparring__V1__JoinReply *m;
    enum status status = wire_unpack(&sparring__v1__join_reply__descriptor, bytes, size,
                                     WIRE_CONTROL_MAX, &arena, &m, err);

    if (status != STATUS_OK)
        goto out;
    if (m->role >= SERVER_ROLE_COUNT) {
        status = error_set(err, STATUS_DATA, "join reply with unknown role %u", m->role);
        goto out;
    }
    ret->partition_count = m->partition_count;
    ret->element_count = m->element_count;
    ret->epoch = m->epoch;
    ret->round = m->round;
    ret->role = m->role;
    ret->connection = m->connection;
    status = wire_copy_text(m->version, "version", ret->version, sizeof(ret->version), err);
    if (status == STATUS_OK)
        status = wire_copy_text(m->arena, "memory address", ret->memory_address,
                                sizeof(ret->memory_address), err);
    if (status == STATUS_OK)
        status = mem_calloc(m->n_partitions, sizeof(*ret->partitions), "partitions",
                            &ret->partitions, err);
    if (status != STATUS_OK)
        goto out;
    ret->held = m->n_partitions;
    if (ret->held > 0)
        memcpy(ret->partitions, m->partitions, ret->held * sizeof(*ret->partitions));
out:
    arena_release(&arena);
    return status;
}

void wire_release_join_reply(struct join_reply *m)
{
    free(m->partitions);
    m->partitions = NULL;
    m->held = 0;
}
