/*
 * payload_codec: compressed contributions, decoded from the received slices on the way into the
 * sum; and names of rows, on the way into their set.
 */
#ifndef SPARRING_SERVER_SERVICE_PAYLOAD_CODEC_H
#define SPARRING_SERVER_SERVICE_PAYLOAD_CODEC_H

#include "common/codec/codec.h"
#include "common/codec/codec_row_selection.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "server/shard/shard.h"

/* How a push of that header is coded by these terms: where they say rows, those or all elements.
 * *ret_bytes of its payload: what the codec makes, or with rows fewer, as the header says. */
struct codec payload_codec(const struct codec *terms, const struct chunk_header *h, size_t count,
                           size_t *ret_bytes);

/* dst = or += the payload, which is coded so.  STATUS_DATA. */
enum status payload_decode(struct rpc_message *message, const struct codec *codec, float *dst,
                           size_t count, bool add, struct error *err);

/* Names of rows: what the header says against what came and the `count` elements of the partition.
 * STATUS_PROTOCOL. */
enum status payload_check_names(const struct chunk_header *h, struct rpc_message *message,
                                size_t count, struct error *err);

/* Read them; a row_reader's, whose user is the message.  STATUS_DATA. */
enum status payload_read_names(void *message, struct codec_selection_decoder *names,
                               struct error *err);

/* Keep a payload beyond its handler's return; *ret copies and drops it. */
enum status payload_keep_coded(struct rpc_message *message, const struct codec *codec,
                               struct shard_source *ret, struct error *err);

#endif
