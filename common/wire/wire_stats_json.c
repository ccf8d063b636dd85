/*
 * wire_stats_json: converts a reply of the Stats call to JSON.
 *
 * The members are the fields of proto/stats.proto, in its order, read from the descriptor that
 * protobuf-c generates, so no field can be missed.  The server may be newer than this program, or
 * not ours: unknown fields are omitted, malformed bytes are an error.  The depth is bounded by the
 * descriptor (three), not by the bytes.  No state, no locks.
 */
#include "common/wire/wire_internal.h"
#include "common/wire/wire_stats.h"

#include "stats.pb-c.h"

#include <inttypes.h>
#include <math.h>

#define INDENT 2

static void add_message(struct strbuf *out, const ProtobufCMessage *message, int depth);

static void add_line(struct strbuf *out, int depth)
{
    strbuf_addf(out, "\n%*s", depth * INDENT, "");
}

static void add_double(struct strbuf *out, double value)
{
    if (isfinite(value))
        strbuf_add_double(out, value);
    else
        strbuf_add(out, "null");
}

/* One value at `at`. */
static void add_value(struct strbuf *out, ProtobufCType type, const void *at, int depth)
{
    switch (type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        add_message(out, *(ProtobufCMessage *const *)at, depth);
        break;
    case PROTOBUF_C_TYPE_STRING:
        strbuf_add_json(out, *(char *const *)at);
        break;
    case PROTOBUF_C_TYPE_UINT32:
        strbuf_addf(out, "%" PRIu32, *(const uint32_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        strbuf_addf(out, "%" PRIu64, *(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        strbuf_add(out, *(const protobuf_c_boolean *)at ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        add_double(out, *(const double *)at);
        break;
    default: /* stats.proto has no others */
        strbuf_add(out, "null");
        break;
    }
}

static void add_list(struct strbuf *out, ProtobufCType type, const void *values, size_t count,
                     int depth)
{
    bool lines = type == PROTOBUF_C_TYPE_MESSAGE;
    size_t size = lines ? sizeof(ProtobufCMessage *) : sizeof(uint64_t);

    strbuf_add(out, "[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            strbuf_add(out, lines ? "," : ", ");
        if (lines)
            add_line(out, depth + 1);
        add_value(out, type, (const char *)values + i * size, depth + 1);
    }
    if (lines && count > 0)
        add_line(out, depth);
    strbuf_add(out, "]");
}

static void add_message(struct strbuf *out, const ProtobufCMessage *message, int depth)
{
    const ProtobufCMessageDescriptor *d = message->descriptor;
    bool first = true;

    strbuf_add(out, "{");
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const char *at = (const char *)message + f->offset;

        if (f->type == PROTOBUF_C_TYPE_MESSAGE && f->label != PROTOBUF_C_LABEL_REPEATED &&
            !*(ProtobufCMessage *const *)at)
            continue; /* absent */
        strbuf_add(out, first ? "" : ",");
        add_line(out, depth + 1);
        strbuf_addf(out, "\"%s\": ", f->name);
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
            add_list(out, f->type, *(const void *const *)at,
                     *(const size_t *)((const char *)message + f->quantifier_offset), depth + 1);
        else
            add_value(out, f->type, at, depth + 1);
        first = false;
    }
    if (!first)
        add_line(out, depth);
    strbuf_add(out, "}");
}

enum status wire_stats_to_json(const uint8_t *bytes, size_t size, struct strbuf *out,
                               struct error *err)
{
    struct arena arena;
    ProtobufCMessage *message = NULL;
    enum status status = unpack_message(&sparring__v1__stats_reply__descriptor, bytes, size,
                                        WIRE_CONTROL_MAX, &arena, &message, err);

    if (status == STATUS_OK) {
        add_message(out, message, 0);
        strbuf_add(out, "\n");
    }
    arena_release(&arena);
    if (status == STATUS_OK && !strbuf_ok(out))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the statistics as JSON");
    return status;
}
