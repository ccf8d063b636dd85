/*
 * payload_codec: compressed contributions, decoded from the received slices on the way into the
 * sum.
 */
#ifndef SPARRING_SERVER_PAYLOAD_CODEC_H
#define SPARRING_SERVER_PAYLOAD_CODEC_H

#include "common/codec/codec.h"
#include "common/rpc/rpc.h"
#include "server/shard.h"

/* dst = or += the payload, which is coded so.  STATUS_DATA. */
enum status payload_decode(struct rpc_message *message, const struct codec *codec, float *dst,
                           size_t count, bool add, struct error *err);

/* Keep a payload beyond its handler's return; *ret copies and drops it. */
enum status payload_keep_coded(struct rpc_message *message, const struct codec *codec,
                               struct shard_source *ret, struct error *err);

#endif
