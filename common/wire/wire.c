/*
 * wire: protobuf-c messages to plain structs and back.
 *
 * Each unpack uses unpack_message (bounded memory, checked strings), copies the fields and checks
 * the ranges of enums and fixed buffers; the receiver checks ranks and partitions.  Each pack
 * measures first, so the result fits exactly.
 * No state, no locks.
 */
#include "common/base/memory.h"
#include "common/wire/wire_internal.h"

#include "parameter_server.pb-c.h"

#include <stdio.h>
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

enum status wire_copy_text(const char *text, const char *what, char *buffer, size_t size,
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
    m.flags = chunk->flags;
    m.session = chunk->session;
    m.lane = chunk->lane;
    m.place = chunk->offset;
    m.connection = chunk->connection;
    return sparring__v1__chunk__pack(&m, head); /* at most 87 bytes */
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
    if (m->kind < CHUNK_PUSH || m->kind > CHUNK_STATE) {
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
        .flags = m->flags,
        .session = m->session,
        .lane = m->lane,
        .offset = m->place,
        .connection = m->connection,
    };
out:
    arena_release(&arena);
    return status;
}

/* ------------------------------------------------------------------ heartbeat */

size_t wire_pack_heartbeat(const struct heartbeat *heartbeat, uint8_t *bytes)
{
    struct heartbeat copy = *heartbeat; /* protobuf-c's pointers are not const */
    Sparring__V1__Beat m;

    sparring__v1__beat__init(&m);
    copy.reason[text_valid_length((const uint8_t *)copy.reason, strlen(copy.reason))] = '\0';
    m.session = copy.session;
    m.rank = copy.rank;
    m.job = copy.job;
    m.count = copy.count;
    m.epoch = copy.epoch;
    m.propose_epoch = copy.propose_epoch;
    m.vote_epoch = copy.vote_epoch;
    m.waiting_ms = copy.waiting_ms;
    m.reason = copy.reason;
    m.connection = copy.connection;
    m.lane = copy.lane;
    return sparring__v1__beat__pack(&m, bytes); /* at most 468 bytes */
}

enum status wire_unpack_heartbeat(const uint8_t *bytes, size_t size, struct heartbeat *ret,
                                  struct error *err)
{
    struct arena arena;
    Sparring__V1__Beat *m;
    enum status status = wire_unpack(&sparring__v1__beat__descriptor, bytes, size,
                                     WIRE_HEARTBEAT_MAX, &arena, &m, err);

    if (status != STATUS_OK)
        goto out;
    *ret = (struct heartbeat){
        .session = m->session,
        .rank = m->rank,
        .count = m->count,
        .epoch = m->epoch,
        .propose_epoch = m->propose_epoch,
        .vote_epoch = m->vote_epoch,
        .waiting_ms = m->waiting_ms,
        .connection = m->connection,
        .lane = m->lane,
    };
    status = wire_copy_text(m->job, "job name", ret->job, sizeof(ret->job), err);
    if (status == STATUS_OK)
        status = wire_copy_text(m->reason, "reason", ret->reason, sizeof(ret->reason), err);
out:
    arena_release(&arena);
    return status;
}

/* ------------------------------------------------------------------ leave */

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
    /* A reason is an error text that may be cut inside a character: shorten it, do not fail. */
    reason[text_valid_length((const uint8_t *)reason, strlen(reason))] = '\0';
    p.job = job;
    p.rank = m->rank;
    p.session = m->session;
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
        ret->session = m->session;
        status = wire_copy_text(m->job, "job name", ret->job, sizeof(ret->job), err);
    }
    if (status == STATUS_OK)
        status = wire_copy_text(m->reason, "reason", ret->reason, sizeof(ret->reason), err);
    for (char *c = ret->reason; *c; c++) /* it becomes part of one-line messages */
        *c = (unsigned char)*c < ' ' ? ' ' : *c;
    arena_release(&arena);
    return status;
}

bool wire_find_lost_rank(const char *text, unsigned *ret_rank)
{
    for (const char *p = strstr(text, "rank "); p; p = strstr(p + 1, "rank ")) {
        int length = 0;

        if (sscanf(p, WIRE_RANK_LOST "%n", ret_rank, &length) == 1 && length > 0)
            return true;
    }
    return false;
}
