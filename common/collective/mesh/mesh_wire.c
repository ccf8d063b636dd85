/*
 * Encoding of the control messages.  One writer and one reader of each body, side by side.  The
 * reader keeps a `broken` flag instead of a result after every field: what does not fit reads as
 * zero and fails at the end.
 */
#include "common/collective/mesh/mesh_wire.h"

#include <string.h>

#define MAGIC   0x6d725053u /* "SPrm" */
#define VERSION 2

struct writer {
    unsigned char *at;
};

struct reader {
    const unsigned char *at, *end;
    bool broken;
};

static void put(struct writer *w, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *w->at++ = (unsigned char)(value >> (8 * i));
}

static void put_bytes(struct writer *w, const void *bytes, size_t size)
{
    memcpy(w->at, bytes, size);
    w->at += size;
}

static uint64_t get(struct reader *r, unsigned bytes)
{
    uint64_t value = 0;

    if ((size_t)(r->end - r->at) < bytes) {
        r->broken = true;
        return 0;
    }
    for (unsigned i = bytes; i > 0; i--)
        value = (value << 8) | r->at[i - 1];
    r->at += bytes;
    return value;
}

static void get_bytes(struct reader *r, void *bytes, size_t size)
{
    if ((size_t)(r->end - r->at) < size) {
        r->broken = true;
        return;
    }
    memcpy(bytes, r->at, size);
    r->at += size;
}

/* A value below `end`, or broken. */
static unsigned get_enum(struct reader *r, unsigned end)
{
    unsigned value = (unsigned)get(r, 1);

    if (value >= end)
        r->broken = true;
    return value < end ? value : 0;
}

static unsigned get_rank(struct reader *r)
{
    uint32_t rank = (uint32_t)get(r, 4);

    if (rank >= MESH_RANKS_MAX)
        r->broken = true;
    return rank < MESH_RANKS_MAX ? rank : 0;
}

/* Length 1, then the characters without a NUL; unprintable ones become '?'. */
static void put_text(struct writer *w, const char *text, size_t size)
{
    size_t length = strnlen(text, size - 1);

    put(w, length, 1);
    put_bytes(w, text, length);
}

static void get_text(struct reader *r, char *text, size_t size)
{
    size_t length = (size_t)get(r, 1);

    if (length >= size) {
        r->broken = true;
        length = 0;
    }
    get_bytes(r, text, length);
    text[length] = '\0';
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '?';
}

/* ---- bodies ---- */

static void put_hello(struct writer *w, const struct mesh_hello *h)
{
    put_bytes(w, h->token, sizeof(h->token));
    put(w, h->rank, 4);
    put(w, h->world_size, 4);
    put(w, h->pid, 8);
    put(w, h->host, 8);
}

static void get_hello(struct reader *r, struct mesh_hello *h)
{
    get_bytes(r, h->token, sizeof(h->token));
    h->rank = get_rank(r);
    h->world_size = (uint32_t)get(r, 4);
    h->pid = get(r, 8);
    h->host = get(r, 8);
}

static void put_item(struct writer *w, const struct mesh_item *i)
{
    put_text(w, i->tag, sizeof(i->tag));
    put(w, i->size, 2);
    put_bytes(w, i->bytes, i->size);
}

static void get_item(struct reader *r, struct mesh_item *i)
{
    get_text(r, i->tag, sizeof(i->tag));
    i->size = (uint16_t)get(r, 2);
    if (i->size > MESH_EXCHANGE_MAX)
        r->broken = true;
    else
        get_bytes(r, i->bytes, i->size);
}

/* A signature, and whether there is one. */
static void put_signature(struct writer *w, bool is_there, const struct signature *s)
{
    unsigned char bytes[SIGNATURE_BYTES] = {0};

    if (is_there)
        signature_encode(s, bytes);
    put(w, is_there, 1);
    put_bytes(w, bytes, sizeof(bytes));
}

static bool get_signature(struct reader *r, struct signature *ret)
{
    unsigned char bytes[SIGNATURE_BYTES] = {0};
    bool is_there = get_enum(r, 2);

    get_bytes(r, bytes, sizeof(bytes));
    if (is_there && !r->broken && !signature_decode(bytes, ret))
        r->broken = true;
    return is_there;
}

static void put_reply(struct writer *w, const struct mesh_reply *a)
{
    put(w, a->question, 8);
    put(w, a->known, 1);
    put(w, a->status.group, 8);
    put(w, a->status.phase, 1);
    put_signature(w, a->status.signature.call != 0, &a->status.signature);
    put(w, a->status.done_bytes, 8);
    put(w, a->status.total_bytes, 8);
    put(w, (uint64_t)a->status.since_ns, 8);
    put(w, (uint64_t)a->status.waited_ns, 8);
    put(w, a->trail.oldest, 8);
    put(w, a->trail.newest, 8);
    put_signature(w, a->trail.kept, &a->trail.signature);
    put(w, a->trail.hash, 8);
}

static void get_reply(struct reader *r, struct mesh_reply *a)
{
    a->question = get(r, 8);
    a->known = get_enum(r, 2);
    a->status.group = get(r, 8);
    a->status.phase = (enum mesh_phase)get_enum(r, MESH_LEFT + 1);
    (void)get_signature(r, &a->status.signature);
    a->status.done_bytes = get(r, 8);
    a->status.total_bytes = get(r, 8);
    a->status.since_ns = (int64_t)(get(r, 8) & INT64_MAX);
    a->status.waited_ns = (int64_t)(get(r, 8) & INT64_MAX);
    a->trail.oldest = get(r, 8);
    a->trail.newest = get(r, 8);
    a->trail.kept = get_signature(r, &a->trail.signature);
    a->trail.hash = get(r, 8);
}

static void put_verdict(struct writer *w, const struct mesh_verdict *v)
{
    put(w, v->fault, 1);
    put(w, v->culprit, 4);
    put(w, v->judge, 4);
    put_text(w, v->text, sizeof(v->text));
}

static void get_verdict(struct reader *r, struct mesh_verdict *v)
{
    v->fault = (enum fault)get_enum(r, FAULT_COUNT);
    v->culprit = (uint32_t)get(r, 4);
    if (v->culprit > MESH_RANK_UNKNOWN)
        r->broken = true;
    v->judge = get_rank(r);
    get_text(r, v->text, sizeof(v->text));
}

static void put_agree(struct writer *w, const struct mesh_agree_message *a)
{
    put(w, a->tag, 8);
    put(w, a->round, 4);
    put(w, a->step, 1);
    put(w, a->held, 1);
    put_bytes(w, a->lost.bits, sizeof(a->lost.bits));
    put_bytes(w, a->ranks.bits, sizeof(a->ranks.bits));
}

static void get_agree(struct reader *r, struct mesh_agree_message *a)
{
    a->tag = get(r, 8);
    a->round = (uint32_t)get(r, 4);
    a->step = (enum mesh_agree_step)get_enum(r, MESH_AGREE_STEP_COUNT);
    if (a->step == 0)
        r->broken = true;
    a->held = get_enum(r, 2);
    get_bytes(r, a->lost.bits, sizeof(a->lost.bits));
    get_bytes(r, a->ranks.bits, sizeof(a->ranks.bits));
}

static bool has_group(enum mesh_kind kind)
{
    return kind == MESH_ASK || kind == MESH_LEAVE || kind == MESH_VERDICT || kind == MESH_ACCEPT ||
           kind == MESH_SETTLE || kind == MESH_TRAIL;
}

/* ---- messages ---- */

size_t mesh_message_encode(const struct mesh_message *message, unsigned char *bytes)
{
    struct writer w = {.at = bytes + MESH_HEADER_BYTES};
    struct writer header = {.at = bytes};
    size_t length;

    if (has_group(message->kind)) {
        put(&w, message->group, 8);
        put(&w, message->generation, 4);
        put(&w, message->number, 8);
    }
    if (message->kind == MESH_ASK)
        put(&w, message->trail_sequence, 8);
    else if (message->kind == MESH_LEAVE || message->kind == MESH_TRAIL)
        put(&w, message->hash, 8);
    else if (message->kind == MESH_HELLO)
        put_hello(&w, &message->hello);
    else if (message->kind == MESH_ITEM)
        put_item(&w, &message->item);
    else if (message->kind == MESH_REPLY)
        put_reply(&w, &message->reply);
    else if (message->kind == MESH_VERDICT)
        put_verdict(&w, &message->verdict);
    else if (message->kind == MESH_AGREE)
        put_agree(&w, &message->agree);
    length = (size_t)(w.at - bytes);
    put(&header, MAGIC, 4);
    put(&header, VERSION, 1);
    put(&header, message->kind, 1);
    put(&header, length - MESH_HEADER_BYTES, 2);
    return length;
}

size_t mesh_message_length(const unsigned char *header)
{
    struct reader r = {.at = header, .end = header + MESH_HEADER_BYTES};
    size_t length;

    if (get(&r, 4) != MAGIC || get(&r, 1) != VERSION || get_enum(&r, MESH_KIND_COUNT) < MESH_HELLO)
        return 0;
    length = (size_t)get(&r, 2) + MESH_HEADER_BYTES;
    return length <= MESH_MESSAGE_MAX ? length : 0;
}

bool mesh_message_decode(const unsigned char *bytes, size_t length, struct mesh_message *ret)
{
    struct reader r = {.at = bytes + MESH_HEADER_BYTES, .end = bytes + length};

    if (length < MESH_HEADER_BYTES || mesh_message_length(bytes) != length)
        return false;
    memset(ret, 0, sizeof(*ret));
    ret->kind = (enum mesh_kind)bytes[5];
    if (has_group(ret->kind)) {
        ret->group = get(&r, 8);
        ret->generation = (uint32_t)get(&r, 4);
        ret->number = get(&r, 8);
    }
    if (ret->kind == MESH_ASK)
        ret->trail_sequence = get(&r, 8);
    else if (ret->kind == MESH_LEAVE || ret->kind == MESH_TRAIL)
        ret->hash = get(&r, 8);
    else if (ret->kind == MESH_HELLO)
        get_hello(&r, &ret->hello);
    else if (ret->kind == MESH_ITEM)
        get_item(&r, &ret->item);
    else if (ret->kind == MESH_REPLY)
        get_reply(&r, &ret->reply);
    else if (ret->kind == MESH_VERDICT)
        get_verdict(&r, &ret->verdict);
    else if (ret->kind == MESH_AGREE)
        get_agree(&r, &ret->agree);
    if (ret->kind == MESH_VERDICT) {
        ret->verdict.group = ret->group;
        ret->verdict.generation = ret->generation;
    }
    return !r.broken && r.at == r.end;
}
