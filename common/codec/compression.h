/*
 * compression: how a job's tensors travel between workers and parameter servers; the part of its
 * terms that both sides have to read alike.
 *
 *   up    gradients.  A worker adds what it has not said (the residual) to its next gradient of the
 *         same partition.
 *   down  answers.  fp16 and bf16 are casts of what is answered.  topk and onebit of mean
 *         gradients: the server keeps the residual.  Of parameters (optimizer on the server): what
 *         comes down is the difference between them and what the workers hold (in lockstep all the
 *         same, else each its own), which the server keeps book of; the workers add it.  What was
 *         not said stays in that difference.
 *
 * rows is exact both ways: gradients without their rows of zeros, means likewise, parameters
 * without the rows that the last step has not changed.
 *
 * named, values: each rank names the rows that it wants to be told, before it asks for the values;
 * the others stay with it as it has them until it names them, though steps go on changing them
 * (momentum, weight decay and AdamW change rows without a gradient, and other ranks' gradients do).
 * Who names none is told all.  What is said are the values themselves, so nothing is kept of what a
 * rank holds, and ranks need be in step neither with each other nor with the server.
 *
 * Whoever asks again, or comes late, is answered with the whole where a change would not do.
 * Initial values, unless their rows are named, and final ones are never compressed.
 */
#ifndef SPARRING_COMMON_CODEC_COMPRESSION_H
#define SPARRING_COMMON_CODEC_COMPRESSION_H

#include "common/codec/codec.h"
#include "common/consistency/consistency.h"

struct compression {
    struct codec up, down;
};

/* The kinds as numbers from a wire, or as chosen; one share for both ways. */
struct compression compression_make(uint32_t up, uint32_t down, uint32_t top_k_ppm);

/* What becomes of what is there when an answer comes down. */
enum codec_mode compression_mode(const struct compression *c, bool update_on_server);

/* Is there such a job?  STATUS_INVALID: a kind or share that is none. */
enum status compression_check(const struct compression *c, struct error *err);

/* Where rows are named: STATUS_INVALID unless answers are values, of which no rank need have read
 * more than it named (delay compensation), nor be sent on to another step than it named them for
 * (backup workers). */
enum status compression_check_names(const struct compression *c,
                                    const struct consistency *consistency, bool update_on_server,
                                    struct error *err);

#endif
