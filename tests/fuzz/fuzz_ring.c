/*
 * Fuzzes the ring and pairs operations with random bytes from the peers.  The first byte selects
 * the operation and whether a valid header comes first, the second how many bytes come from the
 * first of two peers; the rest comes from the other.  No memory outside the buffers of the
 * operation may be accessed, and no count may exceed the plan.  Also fuzzes the decoders of fixed
 * layouts: accepted input must encode to the same bytes.
 */
#include "common/collective/ring/ring_pairs.h"
#include "common/collective/ring/ring_stream.h"
#include "tests/common/collective/ring/memory_transport.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define COUNT   37
#define SEGMENT 64

/* Rank 1 of 3. */
struct ring_fixture {
    struct memory_world *world;
    struct ring_io io;
    struct ring_operation operation;
    unsigned char *input, *output; /* of exact size: the sanitizer finds an overrun */
};

static void run_ring(struct ring_fixture *s, enum ring_kind kind)
{
    struct ring_plan plan = ring_plan(kind, 1, 3, COUNT, sizeof(float), 0, SEGMENT);
    struct ring_scratch scratch;
    struct ring_run run;

    require(ring_scratch_init(&scratch, SEGMENT, NULL) == STATUS_OK);
    ring_run_init(&run, &plan, &s->operation, &scratch);
    (void)ring_stream_run(&s->io, &run, 0);
    require(run.right.done <= plan.send_bytes && run.left.done <= plan.receive_bytes);
    require(run.right.done <= plan.lag_bytes + run.left.done);
    ring_scratch_release(&scratch);
}

static void run_pairs(struct ring_fixture *s, enum pairs_kind kind)
{
    struct pairs_plan plan = {
        .kind = kind, .rank = 1, .world_size = 3, .count = COUNT, .size = sizeof(float)};
    struct pairs_scratch scratch;
    struct pairs_run run;
    uint64_t sent, received, sent_most, received_most;

    require(pairs_scratch_init(&scratch, 3, SEGMENT, NULL) == STATUS_OK);
    scratch.buffer_bytes = SEGMENT;
    pairs_run_init(&run, &plan, &s->operation, &scratch);
    (void)pairs_run(&s->io, &run, 0);
    pairs_run_done(&run, &sent, &received);
    pairs_plan_bytes(&plan, &sent_most, &received_most);
    require(sent <= sent_most && received <= received_most && run.reduced <= run.result.bytes);
    pairs_scratch_release(&scratch);
}

static void run_operation(unsigned choice, struct ring_fixture *s)
{
    static const enum ring_kind rings[] = {RING_ALL_REDUCE, RING_REDUCE_SCATTER, RING_ALL_GATHER,
                                           RING_BROADCAST, RING_REDUCE};
    static const enum pairs_kind pairs[] = {
        PAIRS_ALL_REDUCE_WHOLE, PAIRS_ALL_REDUCE_CHUNKS, PAIRS_REDUCE_SCATTER, PAIRS_ALL_GATHER,
        PAIRS_SCATTER,          PAIRS_ALL_TO_ALL,        PAIRS_BARRIER};

    choice %= 12;
    if (choice < 5)
        run_ring(s, rings[choice]);
    else
        run_pairs(s, pairs[choice - 5]);
}

static void fuzz_peers(unsigned choice, const uint8_t *first, size_t first_bytes,
                       const uint8_t *other, size_t other_bytes)
{
    const struct signature signature = {.call = COLLECTIVE_ALL_REDUCE, .count = COUNT};
    struct ring_fixture s = {.operation = {.factor = 1.0}};
    size_t bytes = 3 * COUNT * sizeof(float);

    s.world = memory_world_open(3, 1 << 14, choice * 2654435761u);
    require(s.world != NULL);
    s.input = allocate(bytes);
    s.output = allocate(bytes);
    s.operation.input = s.input;
    s.operation.output = s.output;
    s.io = (struct ring_io){
        .transport = memory_world_transport(s.world, 1), .alarm_fd = -1, .segment_bytes = SEGMENT};
    ring_header_encode(&signature, 1.0, s.operation.header);
    memcpy(s.operation.expected, s.operation.header, SIGNATURE_BYTES);
    for (unsigned peer = 0; peer < 3 && (choice & 128); peer++)
        (void)memory_put(s.world, peer, 1, s.operation.header, RING_HEADER_BYTES);
    (void)memory_put(s.world, 0, 1, first, first_bytes);
    (void)memory_put(s.world, 2, 1, other, other_bytes);
    run_operation(choice & 127, &s);
    memory_world_close(s.world);
    free(s.input);
    free(s.output);
}

static void fuzz_layouts(const uint8_t *data, size_t size)
{
    unsigned char in[RING_HEADER_BYTES] = {0};
    unsigned char out[RING_HEADER_BYTES];
    char text[COLLECTIVE_TEXT_SIZE];
    struct signature signature, again;
    struct ring_hello hello;

    memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
    if (signature_decode(in, &signature)) {
        signature_text(&signature, text);
        ring_header_encode(&signature, ring_header_factor(in), out);
        require(signature_decode(out, &again) && signature_equal(&signature, &again));
        require(memcmp(in + SIGNATURE_BYTES, out + SIGNATURE_BYTES, 8) == 0);
        require(strlen(text) < sizeof(text) - 1);
    }
    if (ring_hello_decode(in, &hello)) {
        ring_hello_encode(&hello, out);
        require(memcmp(out, in, RING_HELLO_BYTES - 4) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t first;

    if (size < 2)
        return 0;
    fuzz_layouts(data + 2, size - 2);
    first = data[1] < size - 2 ? data[1] : size - 2;
    fuzz_peers(data[0], data + 2, first, data + 2 + first, size - 2 - first);
    return 0;
}
