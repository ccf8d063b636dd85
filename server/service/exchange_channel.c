/*
 * The channel of a rank on this host: its pushes and requests for the final values come without a
 * payload, by reference, so a header in shared memory is all that travels.  Everything else comes
 * over the streams, whose end is also the channel's.
 *
 * The channel belongs to lane 0's stream and is read while that is open, so the stream's binding,
 * which a reader uses, outlives it.  Chunks of all lanes come through the one channel.
 *
 * Locking: the table's lock for the session's pointer to the channel.
 */
#include "server/service/exchange.h"

static enum status take_chunk(const struct exchange_stream *st, const uint8_t *bytes, size_t size,
                              struct error *err)
{
    /* every partition is of lane 0 of 1 */
    struct exchange_stream of_channel = {.binding = st->binding, .lanes = 1, .by_channel = true};
    struct chunk_header header;
    enum status status = wire_unpack_chunk(bytes, size, &header, err);

    if (status != STATUS_OK)
        return status;
    if ((header.kind != CHUNK_PUSH && header.kind != CHUNK_FINAL) ||
        !(header.flags & CHUNK_BY_REFERENCE))
        return error_set(err, STATUS_PROTOCOL,
                         "rank %u sent a chunk of kind %d and flags %#x through its channel",
                         st->binding.rank, (int)header.kind, header.flags);
    return exchange_take_chunk(&of_channel, &header, NULL, err);
}

/* On the channel's thread. */
static bool take_message(void *user, const uint8_t *bytes, size_t size, const struct error *why)
{
    struct exchange_stream *st = user;
    struct error err = {0};
    enum status status;

    if (why)
        status = error_set(&err, why->status, "rank %u, channel: %s", st->binding.rank, why->text);
    else
        status = take_chunk(st, bytes, size, &err);
    if (status != STATUS_OK)
        exchange_reject_chunk(st, status, &err);
    return status == STATUS_OK;
}

void exchange_take_channel(struct exchange_stream *st)
{
    struct job_rank *r = &st->binding.job->ranks[st->binding.rank];

    if (!r->memory || !r->memory->channel || r->memory->session != r->session.id)
        return;
    st->reader = (struct channel_reader){.channel = r->memory->channel,
                                         .rank = st->binding.rank,
                                         .message = take_message,
                                         .user = st};
    r->memory->channel = NULL; /* once: another connection must not read its messages */
    r->session.channel = st->reader.channel;
}

void exchange_open_channel(struct exchange_stream *st)
{
    if (st->reader.channel)
        channel_threads_add(st->binding.service->channel_threads, &st->reader);
}

void exchange_close_channel(struct exchange_stream *st)
{
    struct service *s = st->binding.service;
    struct rank_session *session = &st->binding.job->ranks[st->binding.rank].session;

    if (!st->reader.channel)
        return;
    channel_threads_remove(s->channel_threads, &st->reader);
    (void)pthread_mutex_lock(&s->table.lock);
    session->channel = NULL;
    (void)pthread_mutex_unlock(&s->table.lock);
    channel_unref(st->reader.channel);
}
