/*
 * Any bytes as what a ring's neighbours may send: the first byte chooses the operation and whether
 * its right header comes first, the second how many bytes are notes from the right; the rest comes
 * from the left.  Nothing may be touched outside the operation's buffer, and no count may exceed
 * the plan.  Also the decoders of fixed layouts: what they accept encodes to the same again.
 */
#include "common/base/clock.h"
#include "common/collective/ring_stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT 37

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static struct ring_plan make_plan(unsigned choice)
{
    switch (choice % 4) {
    case 0:
        return ring_plan_all_reduce(1, 3, COUNT, REDUCE_FAST);
    case 1:
        return ring_plan_all_reduce(1, 3, COUNT, REDUCE_REPRODUCIBLE);
    case 2:
        return ring_plan_broadcast(1, 3, COUNT * sizeof(float), 0);
    default:
        return ring_plan_all_gather(1, 2, COUNT * sizeof(float) / 2);
    }
}

/* Bytes that do not fit into the socket are left out: the sizes of inputs are bounded anyway. */
static void put(int fd, const void *bytes, size_t size)
{
    if (size > 0)
        (void)!send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void fuzz_stream(unsigned choice, const uint8_t *notes, size_t note_bytes,
                        const uint8_t *left, size_t left_bytes)
{
    const struct ring_operation operation = {.call = RING_CALL_ALL_REDUCE, .count = COUNT};
    struct ring_plan plan = make_plan(choice);
    unsigned char header[RING_HEADER_BYTES];
    float *buffer = calloc(COUNT, sizeof(float)); /* ends where the sanitizer sees it */
    struct ring_stream s;
    struct ring_run run;
    int right[2];
    int from_left[2];

    require(buffer && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, right) == 0 &&
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, from_left) == 0);
    require(ring_stream_init(&s, NULL) == STATUS_OK);
    s.right_fd = right[0];
    s.left_fd = from_left[0];
    ring_operation_encode(&operation, header);
    ring_run_init(&run, &plan, buffer, header);
    if (choice & 4)
        put(from_left[1], header, sizeof(header));
    put(from_left[1], left, left_bytes);
    put(right[1], notes, note_bytes);
    (void)ring_stream_run(&s, &run, clock_now_ns());
    require(run.sent.done <= plan.send_bytes && run.received.done <= plan.receive_bytes);
    require(run.sent.done <= plan.lag_bytes + run.received.done);
    ring_stream_release(&s);
    (void)close(right[1]);
    (void)close(from_left[1]);
    free(buffer);
}

static void fuzz_layouts(const uint8_t *data, size_t size)
{
    unsigned char in[RING_HEADER_BYTES] = {0};
    unsigned char out[RING_HEADER_BYTES];
    char text[RING_TEXT_SIZE];
    struct ring_operation operation, operation_again;
    struct ring_hello hello;
    struct ring_note note;

    memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
    if (ring_operation_decode(in, &operation)) {
        ring_operation_text(&operation, text);
        ring_operation_encode(&operation, out);
        require(ring_operation_decode(out, &operation_again));
        require(operation_again.count == operation.count && strlen(text) < sizeof(text) - 1);
    }
    if (ring_hello_decode(in, &hello)) {
        ring_hello_encode(&hello, out);
        require(memcmp(out + 8, in + 8, RING_HELLO_BYTES - 8) == 0);
    }
    if (ring_note_decode(in, &note)) {
        ring_note_encode(&note, out);
        require(memcmp(out, in, RING_NOTE_BYTES) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t note_bytes;

    if (size < 2)
        return 0;
    fuzz_layouts(data + 2, size - 2);
    note_bytes = data[1] < size - 2 ? data[1] : size - 2;
    fuzz_stream(data[0], data + 2, note_bytes, data + 2 + note_bytes, size - 2 - note_bytes);
    return 0;
}
