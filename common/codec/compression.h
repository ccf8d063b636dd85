/*
 * compression: how a job's tensors are compressed between workers and parameter servers; workers
 * and servers must interpret these settings identically.
 *
 *   up    gradients.  A worker adds the part that was not sent (the residual) to its next gradient
 *         of the same partition.
 *   down  replies.  fp16 and bf16 are casts of the reply.  topk and onebit of mean gradients: the
 *         server keeps the residual.  Of parameters (optimizer on the server): the reply is the
 *         difference between the parameters and the workers' copies (in lockstep one for all, else
 *         one per worker), which the server tracks; the workers add it.  The part that was not sent
 *         remains in that difference.
 *
 * rows is exact both ways: gradients and means without rows of zeros, parameters without the rows
 * that the last step has not changed.
 *
 * named, parameters only: each rank selects the rows that it needs before it requests the values;
 * its copies of other rows stay as they are until it selects them, although steps change them
 * (momentum, weight decay and AdamW change rows without a gradient, and other ranks' gradients do).
 * A rank without a selection receives all rows.  The reply has the values themselves, so the server
 * does not track a rank's copy, and ranks may be at different steps.
 *
 * A repeated or late request is answered with the whole array when a difference would be wrong.
 * Initial values, unless their rows are selected, and final ones are never compressed.
 */
#ifndef SPARRING_COMMON_CODEC_COMPRESSION_H
#define SPARRING_COMMON_CODEC_COMPRESSION_H

#include "common/codec/codec.h"
#include "common/consistency/consistency.h"

struct compression {
    struct codec up, down;
};

/* From numbers of enum codec_kind, unchecked; one top-k share for both directions. */
struct compression compression_make(uint32_t up, uint32_t down, uint32_t top_k_ppm);

/* How a reply changes the worker's array. */
enum codec_mode compression_mode(const struct compression *c, bool update_on_server);

/* STATUS_INVALID: an unknown kind, an invalid share, or `named` for gradients. */
enum status compression_check(const struct compression *c, struct error *err);

/* With row selection: STATUS_INVALID unless replies are parameters, without delay compensation
 * (which compares with all that a rank has read) and without backup workers (which move a late rank
 * on to another step than its selection was for). */
enum status compression_check_row_selection(const struct compression *c,
                                            const struct consistency *consistency,
                                            bool update_on_server, struct error *err);

#endif
