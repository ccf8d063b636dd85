/*
 * Decoding of payloads: the received slices are fed to the decoder one by one and never joined into
 * one buffer.  Held contributions stay compressed until their turn.  No state, no locks.
 */
#include "server/service/payload_codec.h"

#include "common/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>

struct kept_payload {
    struct rpc_message *message; /* owned */
    struct codec codec;
};

struct codec payload_codec(const struct codec *terms, const struct chunk_header *h, size_t count,
                           size_t *ret_bytes)
{
    bool plain =
        h->kind != CHUNK_PUSH || (codec_has_variable_size(terms) && h->dtype == CODEC_NONE);
    struct codec codec = plain ? (struct codec){.kind = CODEC_NONE} : *terms;

    *ret_bytes = codec_bytes(&codec, count);
    if (codec_has_variable_size(&codec) && h->length < *ret_bytes)
        *ret_bytes = h->length;
    return codec;
}

static enum status feed_decoder(void *user, const void *bytes, size_t size, struct error *err)
{
    return codec_decode_feed(user, bytes, size, err);
}

enum status payload_decode(struct rpc_message *message, const struct codec *codec, float *dst,
                           size_t count, bool add, struct error *err)
{
    struct codec_decoder decoder;
    enum status status;

    codec_decode_start(&decoder, codec, dst, count, add ? CODEC_ADD : CODEC_REPLACE);
    status = rpc_message_read(message, feed_decoder, &decoder, err);
    return status == STATUS_OK ? codec_decode_end(&decoder, err) : status;
}

enum status payload_check_row_selection(const struct chunk_header *h, struct rpc_message *message,
                                        size_t count, struct error *err)
{
    size_t size = rpc_message_payload_size(message),
           limit = codec_row_count(count) * CODEC_ROW_NUMBER_BYTES;

    if (h->dtype != CODEC_SELECTED_ROWS || (h->flags & CHUNK_BY_REFERENCE))
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " selected rows of partition %" PRIu32
                         " with dtype %" PRIu32 " and flags %" PRIu32
                         " (wanted: %u, %s, and no reference)",
                         h->rank, h->partition, h->dtype, h->flags, (unsigned)CODEC_SELECTED_ROWS,
                         codec_name(CODEC_SELECTED_ROWS));
    if (size != h->length || size > limit || size % CODEC_ROW_NUMBER_BYTES != 0)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " selected rows of partition %" PRIu32
                         " in %zu bytes (its header says %" PRIu64 "; %u each, %zu at most)",
                         h->rank, h->partition, size, h->length, CODEC_ROW_NUMBER_BYTES, limit);
    return STATUS_OK;
}

static enum status feed_row_selection(void *user, const void *bytes, size_t size, struct error *err)
{
    return codec_selection_decode_feed(user, bytes, size, err);
}

enum status payload_read_row_selection(void *message, struct codec_selection_decoder *decoder,
                                       struct error *err)
{
    return rpc_message_read(message, feed_row_selection, decoder, err);
}

static enum status kept_payload_copy(void *user, float *dst, size_t count, struct error *err)
{
    const struct kept_payload *kept = user;

    return payload_decode(kept->message, &kept->codec, dst, count, false, err);
}

static void kept_payload_drop(void *user)
{
    struct kept_payload *kept = user;

    rpc_message_drop(kept->message);
    free(kept);
}

enum status payload_keep_coded(struct rpc_message *message, const struct codec *codec,
                               struct shard_source *ret, struct error *err)
{
    struct kept_payload *kept = NULL;
    enum status status = mem_calloc(1, sizeof(*kept), "kept contribution", &kept, err);

    if (status != STATUS_OK)
        return status;
    kept->codec = *codec;
    status = rpc_message_keep(message, &kept->message, err);
    if (status != STATUS_OK) {
        free(kept);
        return status;
    }
    *ret =
        (struct shard_source){.copy = kept_payload_copy, .drop = kept_payload_drop, .user = kept};
    return STATUS_OK;
}
