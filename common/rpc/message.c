/*
 * message: splits a received message into header and payload, and reads the payload in place.
 *
 * The header (every field before number 15) is small and is copied; the payload is visited in
 * place, run by run: adding directly from the received slices is twice as fast as copying first.
 * Runs are unaligned and cut floats anywhere; up to 3 bytes are carried from run to run.
 * float32 in a payload is little-endian, as protobuf's fixed32 is; so is every host we build for.
 * A message belongs to one thread at a time; no locks.
 */
#include "common/rpc/message.h"

#include "common/base/memory.h"
#include "common/rpc/rpc.h"
#include "common/tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are little-endian and are read without conversion"
#endif

static enum status reserve_head(struct rpc_message *m, size_t size, struct error *err)
{
    uint8_t *larger;
    enum status status;

    if (size <= m->large_capacity)
        return STATUS_OK;
    status = mem_calloc(size, 1, "message header", &larger, err);
    if (status != STATUS_OK)
        return status;
    free(m->large);
    m->large = larger;
    m->large_capacity = size;
    return STATUS_OK;
}

static enum status copy_head(struct rpc_message *m, const struct byte_run *runs, size_t size,
                             struct error *err)
{
    uint8_t *head = m->small;
    struct cursor c = {.runs = runs, .left = size};
    enum status status;

    if (size > sizeof(m->small)) {
        status = reserve_head(m, size, err);
        if (status != STATUS_OK)
            return status;
        head = m->large;
    }
    m->head = head;
    m->head_size = size;
    while (c.left > 0) {
        size_t step = 0;
        const uint8_t *data = cursor_take(&c, c.left, &step);

        memcpy(head, data, step);
        head += step;
    }
    return STATUS_OK;
}

/* Check the sizes against the receiver's limits before any byte is copied. */
static enum status check_limits(const struct rpc_message *m, size_t head_size, struct error *err)
{
    size_t most = m->max_head_bytes ? m->max_head_bytes : RPC_HEAD_MAX;

    if (head_size > most)
        return error_set(err, STATUS_DATA, "message header of %zu bytes, the limit is %zu",
                         head_size, most);
    most = m->max_payload_bytes == RPC_NO_PAYLOAD ? 0 : m->max_payload_bytes;
    if (m->payload_size > most && m->max_payload_bytes != 0)
        return error_set(err, STATUS_DATA, "message payload of %zu bytes, the limit is %zu",
                         m->payload_size, most);
    return STATUS_OK;
}

enum status rpc_message_parse(struct rpc_message *message, const struct byte_run *runs,
                              size_t count, struct error *err)
{
    struct cursor c;
    size_t total;
    size_t head_size;
    enum status status;

    cursor_init(&c, runs, count);
    total = c.left;
    head_size = total;
    message->payload_size = 0;
    while (c.left > 0) {
        struct field field;
        size_t at = total - c.left;

        if (!cursor_field(&c, &field))
            return error_set(err, STATUS_DATA, "malformed message: field at byte %zu of %zu", at,
                             total);
        if (field.number == RPC_PAYLOAD_FIELD) {
            if (field.type != FIELD_BYTES || field.size != c.left)
                return error_set(err, STATUS_DATA,
                                 "malformed message: the payload (field %d) of %zu bytes must be "
                                 "the last field, %zu bytes are left",
                                 RPC_PAYLOAD_FIELD, field.size, c.left);
            head_size = at;
            message->payload_size = field.size;
            break;
        }
        (void)cursor_skip(&c, field.size); /* cursor_field checked the size */
    }
    status = check_limits(message, head_size, err);
    if (status != STATUS_OK)
        return status;
    message->payload = c;
    return copy_head(message, runs, head_size, err);
}

void rpc_message_release(struct rpc_message *message)
{
    free(message->large);
    message->large = NULL;
    message->large_capacity = 0;
}

size_t rpc_payload_prefix(size_t size, uint8_t *prefix)
{
    size_t used = 0;

    if (size == 0)
        return 0;
    prefix[used++] = RPC_PAYLOAD_FIELD << 3 | FIELD_BYTES;
    for (; size >= 0x80; size >>= 7)
        prefix[used++] = (uint8_t)(size | 0x80);
    prefix[used++] = (uint8_t)size;
    return used;
}

size_t rpc_message_payload_size(const struct rpc_message *message)
{
    return message->payload_size;
}

const uint8_t *rpc_message_head(const struct rpc_message *message, size_t *ret_size)
{
    *ret_size = message->head_size;
    return message->head;
}

enum status rpc_message_copy(struct rpc_message *message, void *dst, size_t size, struct error *err)
{
    struct cursor c = message->payload;
    uint8_t *at = dst;

    if (size != message->payload_size)
        return error_set(err, STATUS_DATA, "payload of %zu bytes where %zu belong",
                         message->payload_size, size);
    while (c.left > 0) {
        size_t step = 0;
        const uint8_t *data = cursor_take(&c, c.left, &step);

        memcpy(at, data, step);
        at += step;
    }
    return STATUS_OK;
}

enum status rpc_message_read(struct rpc_message *message, rpc_consume_fn *consume, void *user,
                             struct error *err)
{
    struct cursor c = message->payload;
    enum status status = STATUS_OK;

    while (c.left > 0 && status == STATUS_OK) {
        size_t step = 0;
        const uint8_t *data = cursor_take(&c, c.left, &step);

        if (step > 0)
            status = consume(user, data, step, err);
    }
    return status;
}

/* Combine `count` unaligned floats of a run with dst. */
typedef void combine_run_fn(float *dst, const unsigned char *bytes, float factor, size_t count);

static void add_run(float *dst, const unsigned char *bytes, float factor, size_t count)
{
    (void)factor;
    vector_add_bytes(dst, bytes, count);
}

static enum status combine_payload(struct rpc_message *message, combine_run_fn *with, float factor,
                                   float *dst, size_t count, struct error *err)
{
    struct cursor c = message->payload;
    uint8_t carry[sizeof(float)];
    size_t carried = 0;
    size_t bytes;

    if (!size_multiply(count, sizeof(float), &bytes) || bytes != message->payload_size)
        return error_set(err, STATUS_DATA, "payload of %zu bytes where %zu float32 belong",
                         message->payload_size, count);
    while (c.left > 0) {
        size_t step = 0;
        const uint8_t *data = cursor_take(&c, c.left, &step);

        for (; carried > 0 && carried < sizeof(carry) && step > 0; step--)
            carry[carried++] = *data++;
        if (carried == sizeof(carry)) {
            with(dst++, carry, factor, 1);
            carried = 0;
        }
        if (step == 0)
            continue; /* the run ended inside the carried float, or with it */
        with(dst, data, factor, step / sizeof(float));
        dst += step / sizeof(float);
        carried = step % sizeof(float);
        memcpy(carry, data + step - carried, carried);
    }
    return STATUS_OK;
}

enum status rpc_message_add_f32(struct rpc_message *message, float *dst, size_t count,
                                struct error *err)
{
    return combine_payload(message, add_run, 1, dst, count, err);
}

enum status rpc_message_scale_f32(struct rpc_message *message, float factor, float *dst,
                                  size_t count, struct error *err)
{
    return combine_payload(message, vector_scale_bytes, factor, dst, count, err);
}

enum status rpc_message_add_scaled_f32(struct rpc_message *message, float factor, float *dst,
                                       size_t count, struct error *err)
{
    return combine_payload(message, vector_add_scaled_bytes, factor, dst, count, err);
}
