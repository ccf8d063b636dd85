/*
 * wire: protobuf-c messages to plain structs and back.
 *
 * Each unpack goes through unpack_message (bounded memory, checked strings), copies what it keeps
 * and checks ranges of what becomes an enum or a fixed buffer; whether a rank or a partition makes
 * sense is the receiver's business.  Each pack measures first, so the result fits exactly.
 * No state, no locks.
 */
#include "common/base/memory.h"
#include "common/rpc/wire_internal.h"

#include "parameter_server.pb-c.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ helpers */

enum status wire_pack(const ProtobufCMessage *message, size_t limit, uint8_t **ret_bytes,
                      size_t *ret_size, struct error *err)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes;
    enum status status;

    if (size > limit)
        return error_set(err, STATUS_INVALID, "%s of %zu bytes, the limit is %zu",
                         message->descriptor->short_name, size, limit);
    status = mem_calloc(size, 1, message->descriptor->short_name, &bytes, err);
    if (status != STATUS_OK)
        return status;
    (void)protobuf_c_message_pack(message, bytes);
    *ret_bytes = bytes;
    *ret_size = size;
    return STATUS_OK;
}

enum status wire_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                        size_t size, size_t limit, struct arena *arena, void *ret_message,
                        struct error *err)
{
    ProtobufCMessage *message = NULL;
    enum status status = unpack_message(descriptor, bytes, size, limit, arena, &message, err);
    void *pointer = message;

    if (status == STATUS_OK)
        memcpy(ret_message, &pointer, sizeof(pointer)); /* the caller's pointer has its own type */
    return status;
}

/* `text` into a buffer of `size` bytes. */
static enum status take_text(const char *text, const char *what, char *buffer, size_t size,
                             struct error *err)
{
    size_t length = strlen(text);

    if (length >= size)
        return error_set(err, STATUS_DATA, "%s of %zu bytes, the limit is %zu", what, length,
                         size - 1);
    memcpy(buffer, text, length + 1);
    return STATUS_OK;
}

enum status wire_check_text(const char *text, const char *what, struct error *err)
{
    if (text_is_valid((const uint8_t *)text, strlen(text)))
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "%s is not valid UTF-8", what);
}

char *wire_text_or_empty(char *text)
{
    static char empty[1];

    return text ? text : empty;
}

/* ------------------------------------------------------------------ chunk */

size_t wire_pack_chunk(const struct chunk_header *chunk, uint8_t *head)
{
    Sparring__V1__Chunk m = SPARRING__V1__CHUNK__INIT;

    m.kind = (uint32_t)chunk->kind;
    m.rank = chunk->rank;
    m.round = chunk->round;
    m.partition = chunk->partition;
    m.dtype = chunk->dtype;
    m.length = chunk->length;
    return sparring__v1__chunk__pack(&m, head); /* at most 46 bytes */
}

enum status wire_unpack_chunk(const uint8_t *head, size_t size, struct chunk_header *ret,
                              struct error *err)
{
    struct arena arena;
    ProtobufCMessage *message = NULL;
    const Sparring__V1__Chunk *m;
    enum status status = unpack_message(&sparring__v1__chunk__descriptor, head, size,
                                        WIRE_CHUNK_HEAD_MAX, &arena, &message, err);

    if (status != STATUS_OK)
        goto out;
    m = (const Sparring__V1__Chunk *)message;
    if (m->kind < CHUNK_PUSH || m->kind > CHUNK_FINAL) {
        status = error_set(err, STATUS_DATA, "chunk of unknown kind %u", m->kind);
        goto out;
    }
    *ret = (struct chunk_header){
        .kind = (enum chunk_kind)m->kind,
        .rank = m->rank,
        .round = m->round,
        .partition = m->partition,
        .dtype = m->dtype,
        .length = m->length,
    };
out:
    arena_release(&arena);
    return status;
}

/* ------------------------------------------------------------------ join and leave */

/* The messages of a repeated field, and the list of pointers that protobuf-c wants, in one. */
struct packed_rules {
    Sparring__V1__ExactStaleness messages[CONSISTENCY_RULES_MAX];
    Sparring__V1__ExactStaleness *list[CONSISTENCY_RULES_MAX];
};

static enum status pack_rules(const struct join_request *m, struct packed_rules **ret,
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

enum status wire_pack_join_request(const struct join_request *m, uint8_t **ret_bytes,
                                   size_t *ret_size, struct error *err)
{
    char job[sizeof(m->job)];
    Sparring__V1__Optimizer optimizer = SPARRING__V1__OPTIMIZER__INIT;
    Sparring__V1__Consistency consistency = SPARRING__V1__CONSISTENCY__INIT;
    Sparring__V1__JoinRequest p;
    struct packed_rules *rules = NULL;
    enum status status;

    sparring__v1__join_request__init(&p);
    memcpy(job, m->job, sizeof(job));
    p.job = job;
    p.rank = m->rank;
    p.world_size = m->world_size;
    p.server_index = m->server_index;
    p.server_count = m->server_count;
    p.manifest = wire_text_or_empty(m->manifest);
    p.element_count = m->element_count;
    p.partition_bytes = m->partition_bytes;
    p.update = m->update;
    p.order = m->order;
    p.optimizer = &optimizer;
    optimizer.kind = (uint32_t)m->optimizer.kind;
    optimizer.learning_rate = m->optimizer.learning_rate;
    optimizer.momentum = m->optimizer.momentum;
    optimizer.dampening = m->optimizer.dampening;
    optimizer.weight_decay = m->optimizer.weight_decay;
    optimizer.nesterov = m->optimizer.nesterov;
    optimizer.beta1 = m->optimizer.beta1;
    optimizer.beta2 = m->optimizer.beta2;
    optimizer.epsilon = m->optimizer.epsilon;
    p.consistency = &consistency;
    consistency.mode = (uint32_t)m->consistency.mode;
    consistency.staleness = m->consistency.staleness;
    consistency.backup = m->consistency.backup;
    consistency.lr_by_staleness = m->consistency.lr_by_staleness;
    consistency.delay_compensation = m->consistency.delay_compensation;
    status = wire_check_text(job, "the job name", err);
    if (status == STATUS_OK)
        status = wire_check_text(p.manifest, "the manifest", err);
    if (status == STATUS_OK)
        status = pack_rules(m, &rules, err);
    if (rules) {
        p.n_rules = m->rule_count;
        p.rules = rules->list;
    }
    if (status == STATUS_OK)
        status = wire_pack(&p.base, WIRE_CONTROL_MAX, ret_bytes, ret_size, err);
    free(rules);
    return status;
}

static enum status take_optimizer(const Sparring__V1__Optimizer *o, struct optimizer_config *ret,
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

/* Whether they make sense together is the server's business. */
static enum status take_consistency(const Sparring__V1__Consistency *c, struct consistency *ret,
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

/* A job's name stands in one line of logs and records. */
static enum status check_name(const char *name, struct error *err)
{
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return error_set(err, STATUS_DATA,
                             "join request with a control character in its job's name");
    return STATUS_OK;
}

static enum status take_rules(const Sparring__V1__JoinRequest *m, struct join_request *ret,
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

enum status wire_unpack_join_request(const uint8_t *bytes, size_t size, struct join_request *ret,
                                     struct error *err)
{
    struct arena arena;
    Sparring__V1__JoinRequest *m;
    enum status status = wire_unpack(&sparring__v1__join_request__descriptor, bytes, size,
                                     WIRE_CONTROL_MAX, &arena, &m, err);

    if (status != STATUS_OK)
        goto out;
    if (m->update > 1 || m->order > 1 || !m->optimizer) {
        status =
            error_set(err, STATUS_DATA, "join request with update %u, order %u and %s optimizer",
                      m->update, m->order, m->optimizer ? "an" : "no");
        goto out;
    }
    ret->rank = m->rank;
    ret->world_size = m->world_size;
    ret->server_index = m->server_index;
    ret->server_count = m->server_count;
    ret->element_count = m->element_count;
    ret->partition_bytes = m->partition_bytes;
    ret->update = m->update;
    ret->order = m->order;
    status = take_optimizer(m->optimizer, &ret->optimizer, err);
    if (status == STATUS_OK)
        status = take_consistency(m->consistency, &ret->consistency, err);
    if (status == STATUS_OK)
        status = take_rules(m, ret, err);
    if (status == STATUS_OK)
        status = take_text(m->job, "job name", ret->job, sizeof(ret->job), err);
    if (status == STATUS_OK)
        status = check_name(ret->job, err);
    if (status == STATUS_OK)
        status = mem_strdup(m->manifest, &ret->manifest, err);
out:
    arena_release(&arena);
    if (status != STATUS_OK)
        wire_release_join_request(ret);
    return status;
}

void wire_release_join_request(struct join_request *m)
{
    free(m->manifest);
    free(m->rules);
    m->manifest = NULL;
    m->rules = NULL;
}

enum status wire_pack_join_reply(const struct join_reply *m, uint8_t **ret_bytes, size_t *ret_size,
                                 struct error *err)
{
    char version[sizeof(m->version)];
    Sparring__V1__JoinReply p;

    sparring__v1__join_reply__init(&p);
    memcpy(version, m->version, sizeof(version));
    p.partition_count = m->partition_count;
    p.n_partitions = m->held;
    p.partitions = m->partitions;
    p.element_count = m->element_count;
    p.version = version;
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
    ret->partition_count = m->partition_count;
    ret->element_count = m->element_count;
    status = take_text(m->version, "version", ret->version, sizeof(ret->version), err);
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

enum status wire_pack_leave_request(const struct leave_request *m, uint8_t **ret_bytes,
                                    size_t *ret_size, struct error *err)
{
    char job[sizeof(m->job)];
    char reason[sizeof(m->reason)];
    Sparring__V1__LeaveRequest p;
    enum status status = wire_check_text(m->job, "the job name", err);

    sparring__v1__leave_request__init(&p);
    if (status != STATUS_OK)
        return status;
    memcpy(job, m->job, sizeof(job));
    memcpy(reason, m->reason, sizeof(reason));
    /* A reason is an error text, cut at any byte: never refuse to tell it. */
    reason[text_valid_length((const uint8_t *)reason, strlen(reason))] = '\0';
    p.job = job;
    p.rank = m->rank;
    p.reason = reason;
    return wire_pack(&p.base, WIRE_CONTROL_MAX, ret_bytes, ret_size, err);
}

enum status wire_unpack_leave_request(const uint8_t *bytes, size_t size, struct leave_request *ret,
                                      struct error *err)
{
    struct arena arena;
    Sparring__V1__LeaveRequest *m;
    enum status status = wire_unpack(&sparring__v1__leave_request__descriptor, bytes, size,
                                     WIRE_CONTROL_MAX, &arena, &m, err);

    if (status == STATUS_OK) {
        ret->rank = m->rank;
        status = take_text(m->job, "job name", ret->job, sizeof(ret->job), err);
    }
    if (status == STATUS_OK)
        status = take_text(m->reason, "reason", ret->reason, sizeof(ret->reason), err);
    arena_release(&arena);
    return status;
}
