/*
 * wire_record: the messages between a primary and its replica, with the rules of wire.c.
 *
 * A record without terms is packed into and unpacked into the caller's memory: one per partition
 * and step is sent, and none of them allocates here (except that unpacking allocates for the clocks
 * of more than a hundred ranks).  No state, no locks.
 */
#include "common/base/memory.h"
#include "common/wire/wire_join.h"

#include <stdlib.h>
#include <string.h>

static void record_to_message(const struct wire_record *m, Sparring__V1__Record *p)
{
    sparring__v1__record__init(p);
    p->kind = (uint32_t)m->kind;
    p->partition = m->partition;
    p->sequence = m->sequence;
    p->step = m->step;
    p->rate = m->rate;
    p->epoch = m->epoch;
    p->n_clocks = m->clock_count;
    p->clocks = m->clocks;
    p->flags = (ProtobufCBinaryData){.len = m->flag_count, .data = m->flags};
    p->n_sessions = m->session_count;
    p->sessions = m->sessions;
    p->length = m->length;
}

size_t wire_pack_record(const struct wire_record *m, uint8_t *head)
{
    Sparring__V1__Record p;

    record_to_message(m, &p);
    /* At most 10 bytes for each of 1024 clocks, 8 for each session, 1 for each flag. */
    return sparring__v1__record__pack(&p, head);
}

enum status wire_pack_terms(const struct wire_record *m, uint8_t **ret_bytes, size_t *ret_size,
                            struct error *err)
{
    struct wire_join join;
    Sparring__V1__Record p;
    enum status status = wire_join_to_message(&join, m->terms, err);

    record_to_message(m, &p);
    p.terms = &join.message;
    if (status == STATUS_OK)
        status = wire_pack(&p.base, WIRE_CONTROL_MAX, ret_bytes, ret_size, err);
    wire_join_release(&join);
    return status;
}

static enum status check_record(const Sparring__V1__Record *m, const struct wire_record *capacity,
                                struct error *err)
{
    if (m->kind < RECORD_TERMS || m->kind > RECORD_STATE)
        return error_set(err, STATUS_DATA, "record of unknown kind %u", m->kind);
    if ((m->terms != NULL) != (m->kind == RECORD_TERMS || m->kind == RECORD_TAKEOVER_QUERY))
        return error_set(err, STATUS_DATA, "record of kind %u %s terms", m->kind,
                         m->terms ? "with" : "without");
    if (m->n_clocks > capacity->clock_count || m->n_sessions > capacity->session_count ||
        m->flags.len > capacity->flag_count)
        return error_set(err, STATUS_DATA,
                         "record with %zu clocks, %zu flags and %zu sessions, the limits are %zu, "
                         "%zu and %zu",
                         m->n_clocks, m->flags.len, m->n_sessions, capacity->clock_count,
                         capacity->flag_count, capacity->session_count);
    return STATUS_OK;
}

static enum status unpack_terms(const Sparring__V1__Record *m, struct join_request **ret,
                                struct error *err)
{
    enum status status = mem_calloc(1, sizeof(**ret), "terms", ret, err);

    if (status == STATUS_OK)
        status = wire_join_from_message(m->terms, *ret, err);
    return status;
}

enum status wire_unpack_record(const uint8_t *bytes, size_t size, struct wire_record *ret,
                               struct error *err)
{
    struct arena arena;
    Sparring__V1__Record *m;
    struct join_request *terms = NULL;
    enum status status = wire_unpack(&sparring__v1__record__descriptor, bytes, size,
                                     WIRE_CONTROL_MAX, &arena, &m, err);

    if (status == STATUS_OK)
        status = check_record(m, ret, err);
    if (status == STATUS_OK && m->terms)
        status = unpack_terms(m, &terms, err);
    if (status != STATUS_OK) {
        free(terms);
        goto out;
    }
    ret->kind = (enum record_kind)m->kind;
    ret->partition = m->partition;
    ret->sequence = m->sequence;
    ret->step = m->step;
    ret->rate = m->rate;
    ret->epoch = m->epoch;
    ret->length = m->length;
    ret->terms = terms;
    ret->clock_count = m->n_clocks;
    ret->session_count = m->n_sessions;
    ret->flag_count = m->flags.len;
    if (m->n_clocks > 0)
        memcpy(ret->clocks, m->clocks, m->n_clocks * sizeof(*ret->clocks));
    if (m->flags.len > 0)
        memcpy(ret->flags, m->flags.data, m->flags.len);
    if (m->n_sessions > 0)
        memcpy(ret->sessions, m->sessions, m->n_sessions * sizeof(*ret->sessions));
out:
    arena_release(&arena);
    return status;
}

void wire_release_record(struct wire_record *m)
{
    if (m->terms)
        wire_release_join_request(m->terms);
    free(m->terms);
    m->terms = NULL;
}

size_t wire_pack_record_reply(const struct record_reply *m, uint8_t *bytes)
{
    Sparring__V1__RecordReply p;

    sparring__v1__record_reply__init(&p);
    p.partition = m->partition;
    p.sequence = m->sequence;
    p.epoch = m->epoch;
    p.superseded = m->superseded != 0;
    p.records = m->records;
    p.bytes = m->bytes;
    return sparring__v1__record_reply__pack(&p, bytes); /* at most 52 bytes */
}

enum status wire_unpack_record_reply(const uint8_t *bytes, size_t size, struct record_reply *ret,
                                     struct error *err)
{
    struct arena arena;
    Sparring__V1__RecordReply *m;
    enum status status = wire_unpack(&sparring__v1__record_reply__descriptor, bytes, size,
                                     WIRE_REPLY_MAX, &arena, &m, err);

    if (status == STATUS_OK)
        *ret = (struct record_reply){.partition = m->partition,
                                     .sequence = m->sequence,
                                     .epoch = m->epoch,
                                     .superseded = m->superseded != 0,
                                     .records = m->records,
                                     .bytes = m->bytes};
    arena_release(&arena);
    return status;
}
