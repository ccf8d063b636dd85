/*
 * One operation as a test sees it: buffers between guards, inputs from conformance_values.c, and
 * what must be in every byte afterwards.
 */
#include "tests/common/collective/conformance/conformance.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 64
#define GUARD       0xa5
#define GARBAGE     0x5e /* in outputs before */

bool case_has_root(enum collective_call call)
{
    return call == COLLECTIVE_BROADCAST || call == COLLECTIVE_REDUCE || call == COLLECTIVE_GATHER ||
           call == COLLECTIVE_SCATTER || call == COLLECTIVE_SEND || call == COLLECTIVE_RECV;
}

const char *case_text(const struct conformance *c, const struct conformance_case *what,
                      char text[256])
{
    static const char *const places[] = {"", ", registered", ", input registered"};
    bool reduction = collective_call_reduces(what->call);

    (void)snprintf(text, 256, "%s, rank %u of %u: %s of %zu %s%s%s%s%s, root %u, shift %zu%s%s",
                   c->backend, c->rank, c->size, collective_call_name(what->call), what->count,
                   dtype_name(what->dtype), reduction ? ", " : "",
                   reduction ? reduce_op_name(what->op) : "",
                   reduction && what->order == REDUCE_REPRODUCIBLE ? ", reproducible" : "",
                   what->kind == VALUES_EXACT ? ", exact" : "", what->root, what->shift,
                   what->in_place ? ", in place" : "", places[what->placement]);
    return text;
}

/* ---- sizes: the table of enum collective_call, once more ---- */

static size_t input_elements(const struct conformance *c, const struct conformance_case *what)
{
    bool root = c->rank == what->root;

    switch (what->call) {
    case COLLECTIVE_BROADCAST:
        return root ? what->count : 0;
    case COLLECTIVE_SCATTER:
        return root ? what->count * c->size : 0;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return what->count * c->size;
    case COLLECTIVE_RECV:
    case COLLECTIVE_BARRIER:
        return 0;
    default:
        return what->count;
    }
}

static size_t output_elements(const struct conformance *c, const struct conformance_case *what)
{
    bool root = c->rank == what->root;

    switch (what->call) {
    case COLLECTIVE_REDUCE:
        return root ? what->count : 0;
    case COLLECTIVE_GATHER:
        return root ? what->count * c->size : 0;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        return what->count * c->size;
    case COLLECTIVE_SEND:
    case COLLECTIVE_BARRIER:
        return 0;
    default:
        return what->count;
    }
}

/* ---- buffers ---- */

static size_t block_bytes(const struct conformance_case *what, size_t elements)
{
    return 2 * GUARD_BYTES + (elements + what->shift) * dtype_size(what->dtype);
}

static unsigned char *data_of(const struct conformance_case *what, unsigned char *block)
{
    return block + GUARD_BYTES + what->shift * dtype_size(what->dtype);
}

/* Guards around and garbage inside; from the registered arena as long as that has room. */
static unsigned char *new_block(struct conformance *c, const struct conformance_case *what,
                                size_t elements, bool registered)
{
    size_t bytes = block_bytes(what, elements);
    size_t room = (bytes + 63) / 64 * 64;
    unsigned char *block;

    if (registered && c->arena.base && c->arena_used + room <= c->arena.size) {
        block = (unsigned char *)c->arena.base + c->arena_used;
        c->arena_used += room;
        c->arena_users++;
    } else {
        block = aligned_alloc(64, room);
    }
    ck_assert_ptr_nonnull(block);
    memset(block, GUARD, bytes);
    memset(data_of(what, block), GARBAGE, elements * dtype_size(what->dtype));
    return block;
}

static void free_block(struct conformance *c, unsigned char *block)
{
    const unsigned char *base = c->arena.base;

    if (!block || !base || block < base || block >= base + c->arena.size) {
        free(block);
        return;
    }
    if (--c->arena_users == 0)
        c->arena_used = 0;
}

/* Where output and input lie within one block; see struct collective_args. */
static void place_together(struct conformance *c, struct conformance_pending *p)
{
    const struct conformance_case *what = &p->what;
    size_t own = (size_t)c->rank * what->count * dtype_size(what->dtype);
    bool in_output = what->call == COLLECTIVE_ALL_GATHER || what->call == COLLECTIVE_GATHER;
    bool in_input = what->call == COLLECTIVE_REDUCE_SCATTER || what->call == COLLECTIVE_SCATTER;
    size_t elements = p->input_count > p->output_count ? p->input_count : p->output_count;
    unsigned char *data;

    p->input_block = p->output_block = new_block(c, what, elements, what->placement != PLACE_HEAP);
    data = data_of(what, p->input_block);
    p->input = data + (in_output ? own : 0);
    p->output = data + (in_input ? own : 0);
}

static void place_apart(struct conformance *c, struct conformance_pending *p)
{
    const struct conformance_case *what = &p->what;

    if (what->call == COLLECTIVE_BARRIER)
        return;
    if (p->input_count > 0 || what->count == 0) {
        p->input_block = new_block(c, what, p->input_count, what->placement != PLACE_HEAP);
        p->input = data_of(what, p->input_block);
    }
    if (p->output_count > 0 || what->count == 0) {
        p->output_block = new_block(c, what, p->output_count, what->placement == PLACE_ARENA);
        p->output = data_of(what, p->output_block);
    }
}

/* Both buffers exist on this rank, so they can be one. */
static bool can_be_in_place(const struct conformance_pending *p)
{
    return p->what.in_place && p->input_count > 0 && p->output_count > 0 &&
           p->what.call != COLLECTIVE_SEND && p->what.call != COLLECTIVE_RECV;
}

static uint64_t case_seed(const struct conformance *c, const struct conformance_case *what)
{
    enum collective_call call =
        what->call == COLLECTIVE_RECV ? COLLECTIVE_SEND : what->call; /* one message */

    return c->seed + (uint64_t)call * 1000003 + (uint64_t)what->dtype * 10007 +
           (uint64_t)what->count * 7919 + (uint64_t)what->op * 101;
}

static void fill_buffers(struct conformance *c, struct conformance_pending *p)
{
    const struct conformance_case *what = &p->what;

    p->values = (struct values){.seed = case_seed(c, what),
                                .kind = what->kind,
                                .dtype = what->dtype,
                                .op = collective_call_reduces(what->call) ? what->op : REDUCE_SUM};
    if (can_be_in_place(p))
        place_together(c, p);
    else
        place_apart(c, p);
    if (p->input_count > 0)
        values_fill(&p->values, c->rank, 0, p->input_count, p->input);
    p->args = (struct collective_args){
        .call = what->call,
        .dtype = what->dtype,
        .op = what->op,
        .order = what->order,
        .input = p->input,
        .output = p->output,
        .count = what->count,
        .root = case_has_root(what->call) ? what->root : 0,
        .factor = what->op == REDUCE_PREMUL_SUM ? values_factor(&p->values, c->rank) : 0,
    };
}

static void release(struct conformance *c, struct conformance_pending *p)
{
    if (p->output_block != p->input_block)
        free_block(c, p->output_block);
    free_block(c, p->input_block);
}

static size_t new_result(struct conformance *c, const struct conformance_case *what)
{
    if (c->result_count == c->result_room) {
        c->result_room = c->result_room * 2 + 1024;
        c->results = realloc(c->results, c->result_room * sizeof(*c->results));
        ck_assert_ptr_nonnull(c->results);
    }
    c->results[c->result_count] = (struct conformance_result){.what = *what};
    return c->result_count++;
}

bool case_start(struct conformance *c, const struct conformance_case *what,
                struct conformance_pending *ret)
{
    struct error err = {0};
    char text[256];
    enum status status;

    *ret = (struct conformance_pending){.what = *what,
                                        .input_count = input_elements(c, what),
                                        .output_count = output_elements(c, what)};
    fill_buffers(c, ret);
    status = collective_start(c->group, &ret->args, &ret->work, &err);
    if (collective_supports(c->group, &ret->args)) {
        if (status != STATUS_OK)
            ck_abort_msg("%s: %s", case_text(c, what, text), err.text);
        if (what->call == COLLECTIVE_ALL_REDUCE)
            ret->result = new_result(c, what);
        return true;
    }
    if (status != STATUS_UNSUPPORTED || !strstr(err.text, collective_backend(c->group)) ||
        !strstr(err.text, collective_call_name(what->call)) ||
        !strstr(err.text, dtype_name(what->dtype)))
        ck_abort_msg("%s is not supported, and the error is '%s'", case_text(c, what, text),
                     err.text);
    release(c, ret);
    return false;
}

/* ---- checking ---- */

static void fail_at(const struct conformance *c, const struct conformance_pending *p,
                    const char *what, size_t index, const void *got, const void *wanted)
{
    char text[256];
    char bytes[64] = "";
    size_t size = dtype_size(p->what.dtype);

    for (size_t i = 0; i < size && got; i++)
        (void)snprintf(bytes + strlen(bytes), 8, "%02x",
                       ((const unsigned char *)got)[index * size + i]);
    if (wanted)
        (void)snprintf(bytes + strlen(bytes), 8, ", not ");
    for (size_t i = 0; i < size && wanted; i++)
        (void)snprintf(bytes + strlen(bytes), 8, "%02x",
                       ((const unsigned char *)wanted)[index * size + i]);
    ck_abort_msg("%s: %s, element %zu: %s", case_text(c, &p->what, text), what, index, bytes);
}

/* Nothing before the data and nothing behind it. */
static void check_guards(const struct conformance *c, const struct conformance_pending *p,
                         const unsigned char *block, size_t elements)
{
    size_t before = GUARD_BYTES + p->what.shift * dtype_size(p->what.dtype);
    size_t end = before + elements * dtype_size(p->what.dtype);

    if (!block)
        return;
    for (size_t i = 0; i < before; i++)
        if (block[i] != GUARD)
            fail_at(c, p, "written before the buffer", 0, NULL, NULL);
    for (size_t i = end; i < end + GUARD_BYTES; i++)
        if (block[i] != GUARD)
            fail_at(c, p, "written behind the buffer", 0, NULL, NULL);
}

/* The bytes that a copying call must put into the output. */
static void expect_copies(const struct conformance *c, const struct conformance_pending *p,
                          unsigned char *ret)
{
    const struct conformance_case *what = &p->what;
    size_t bytes = what->count * dtype_size(what->dtype);

    switch (what->call) {
    case COLLECTIVE_SCATTER:
        values_fill(&p->values, what->root, c->rank * what->count, what->count, ret);
        break;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_RECV:
        values_fill(&p->values, what->root, 0, what->count, ret);
        break;
    default: /* all_gather, gather, all_to_all */
        for (unsigned r = 0; r < c->size; r++)
            values_fill(&p->values, r,
                        what->call == COLLECTIVE_ALL_TO_ALL ? c->rank * what->count : 0,
                        what->count, ret + r * bytes);
        break;
    }
}

static void check_output(struct conformance *c, struct conformance_pending *p)
{
    const struct conformance_case *what = &p->what;
    size_t first = what->call == COLLECTIVE_REDUCE_SCATTER ? c->rank * what->count : 0;
    unsigned char *wanted = malloc(p->output_count * dtype_size(what->dtype) + 1);
    size_t at = p->output_count;

    ck_assert_ptr_nonnull(wanted);
    if (!collective_call_reduces(what->call)) {
        expect_copies(c, p, wanted);
        at = values_differ(what->dtype, p->output, wanted, p->output_count);
    } else if (what->order == REDUCE_REPRODUCIBLE || /* a factor may be rounded, too */
               (c->size == 1 && what->op != REDUCE_PREMUL_SUM) ||
               values_have_one_result(&p->values, c->size)) {
        values_reduce(&p->values, c->size, first, what->count, wanted);
        at = values_differ(what->dtype, p->output, wanted, p->output_count);
    } else {
        at = values_far(&p->values, c->size, first, what->count, p->output);
        if (at < p->output_count)
            fail_at(c, p, "not a sum of these", at, p->output, NULL);
    }
    if (at < p->output_count)
        fail_at(c, p, "wrong", at, p->output, wanted);
    free(wanted);
}

static void check_input(const struct conformance *c, const struct conformance_pending *p)
{
    unsigned char *wanted = malloc(p->input_count * dtype_size(p->what.dtype) + 1);
    size_t at;

    ck_assert_ptr_nonnull(wanted);
    values_fill(&p->values, c->rank, 0, p->input_count, wanted);
    at = values_differ(p->what.dtype, p->input, wanted, p->input_count);
    if (at < p->input_count)
        fail_at(c, p, "the input was changed", at, p->input, wanted);
    free(wanted);
}

/* FNV-1a over words of an all_reduce's result, to be compared with the other ranks'. */
static void keep_result(struct conformance *c, const struct conformance_pending *p)
{
    size_t bytes = p->output_count * dtype_size(p->what.dtype);
    uint64_t hash = 0xcbf29ce484222325;

    if (p->what.call != COLLECTIVE_ALL_REDUCE || p->what.kind == VALUES_SPECIAL)
        return;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;

        memcpy(&word, p->output + i, bytes - i < sizeof(word) ? bytes - i : sizeof(word));
        hash = (hash ^ word) * 0x100000001b3;
    }
    c->results[p->result].hash = hash;
}

void case_check(struct conformance *c, struct conformance_pending *p)
{
    bool together = p->input_block == p->output_block;
    size_t both = p->input_count > p->output_count ? p->input_count : p->output_count;

    check_guards(c, p, p->input_block, together ? both : p->input_count);
    check_guards(c, p, p->output_block, together ? both : p->output_count);
    if (p->output_count > 0)
        check_output(c, p);
    if (p->input_count > 0 && !together)
        check_input(c, p);
    keep_result(c, p);
    release(c, p);
}

/* Wire bytes are payload and headers where a network carries all of it. */
static void check_counters(const struct conformance *c, const struct conformance_pending *p,
                           const struct collective_stats *before)
{
    struct collective_stats after = collective_get_stats(c->group);
    uint64_t tx, rx;
    char text[256];

    collective_expected_bytes(c->group, &p->args, &tx, &rx);
    if (after.operations - before->operations != 1 ||
        after.tx_payload_bytes - before->tx_payload_bytes != tx ||
        after.rx_payload_bytes - before->rx_payload_bytes != rx)
        ck_abort_msg("%s: %" PRIu64 " operations, payload %" PRIu64 " sent and %" PRIu64
                     " received, where the formula says %" PRIu64 " and %" PRIu64,
                     case_text(c, &p->what, text), after.operations - before->operations,
                     after.tx_payload_bytes - before->tx_payload_bytes,
                     after.rx_payload_bytes - before->rx_payload_bytes, tx, rx);
    if (after.tx_wire_bytes == before->tx_wire_bytes &&
        after.rx_wire_bytes == before->rx_wire_bytes)
        return; /* nothing went over a network that we see */
    if (strcmp(c->backend, "hier") != 0 && (after.tx_wire_bytes - before->tx_wire_bytes < tx ||
                                            after.rx_wire_bytes - before->rx_wire_bytes < rx))
        ck_abort_msg("%s: fewer bytes on the wire than payload", case_text(c, &p->what, text));
}

void case_run(struct conformance *c, const struct conformance_case *what)
{
    struct collective_stats before = collective_get_stats(c->group);
    struct conformance_pending p;
    struct error err = {0};
    char text[256];

    if (!case_start(c, what, &p))
        return;
    if (collective_wait(p.work, INT64_MAX, &err) != STATUS_OK)
        ck_abort_msg("%s: %s", case_text(c, what, text), err.text);
    check_counters(c, &p, &before);
    case_check(c, &p);
}
