/*
 * payload_codec: decodes compressed contributions from the received slices into the sum, and row
 * selections into their set.
 *
 * Needs: codec, rpc, shard.  Called by payload.c and exchange_chunk.c.  No state, no locks.
 */
#ifndef SPARRING_SERVER_SERVICE_PAYLOAD_CODEC_H
#define SPARRING_SERVER_SERVICE_PAYLOAD_CODEC_H

#include "common/codec/codec.h"
#include "common/codec/codec_row_selection.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "server/shard/shard.h"

/* The codec of a push with this header, given the job's terms.  With the rows codec a push may also
 * come uncompressed (dtype none).  *ret_bytes: payload bytes that the codec produces; with a
 * variable size the header's length, if that is smaller. */
struct codec payload_codec(const struct codec *terms, const struct chunk_header *h, size_t count,
                           size_t *ret_bytes);

/* Decode the payload: dst = or (add) dst += its elements.  STATUS_DATA. */
enum status payload_decode(struct rpc_message *message, const struct codec *codec, float *dst,
                           size_t count, bool add, struct error *err);

/* Check the header of a row selection against the payload that came and against the `count`
 * elements of the partition.  STATUS_PROTOCOL. */
enum status payload_check_row_selection(const struct chunk_header *h, struct rpc_message *message,
                                        size_t count, struct error *err);

/* Decode a row selection; the read function of a row_reader, whose user is the message.
 * STATUS_DATA. */
enum status payload_read_row_selection(void *message, struct codec_selection_decoder *decoder,
                                       struct error *err);

/* Keep a payload beyond the return of its handler; *ret decodes and releases it. */
enum status payload_keep_coded(struct rpc_message *message, const struct codec *codec,
                               struct shard_source *ret, struct error *err);

#endif
