/*
 * One rank's streams, with the test in the place of both neighbours: bytes arrive in odd pieces,
 * neighbours differ, fall silent, leave or die.  Also the wire layouts.
 */
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/collective/ring_stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT 1000
#define HALF  (COUNT / 2)

/* Rank 1 of 2 in one all-reduce; the test is rank 0 on both sides. */
static struct fixture {
    struct ring_stream stream;
    struct ring_plan plan;
    struct ring_run run;
    unsigned char header[RING_HEADER_BYTES];
    float data[COUNT];
    int right; /* the test's ends */
    int left;
    enum ring_outcome outcome;
    pthread_t thread;
} f;

static const struct ring_operation operation = {
    .call = RING_CALL_ALL_REDUCE, .group = 77, .sequence = 5, .count = COUNT};

static void setup(void)
{
    struct error err = {0};
    int right[2];
    int left[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, right), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, left), 0);
    assert_ok(ring_stream_init(&f.stream, &err));
    f.stream.right_fd = right[0];
    f.right = right[1];
    f.stream.left_fd = left[0];
    f.left = left[1];
    for (int i = 0; i < COUNT; i++)
        f.data[i] = (float)i;
    f.plan = ring_plan_all_reduce(1, 2, COUNT, REDUCE_FAST);
    ring_operation_encode(&operation, f.header);
    ring_run_init(&f.run, &f.plan, f.data, f.header);
}

static void teardown(void)
{
    ring_stream_release(&f.stream);
    (void)close(f.right);
    (void)close(f.left);
}

static void *run_thread(void *unused)
{
    (void)unused;
    f.outcome = ring_stream_run(&f.stream, &f.run, clock_deadline_ns(30000));
    return NULL;
}

static void start(void)
{
    ck_assert_int_eq(pthread_create(&f.thread, NULL, run_thread, NULL), 0);
}

static void join_and_expect(enum ring_outcome wanted)
{
    ck_assert_int_eq(pthread_join(f.thread, NULL), 0);
    ck_assert_int_eq(f.outcome, wanted);
}

/* Run without a thread until nothing moves. */
static enum ring_outcome run_a_little(void)
{
    return ring_stream_run(&f.stream, &f.run, clock_now_ns());
}

static void put(int fd, const void *bytes, size_t size)
{
    struct error err = {0};

    assert_ok(net_send_all(fd, bytes, size, clock_deadline_ns(10000), &err));
}

static void get(int fd, void *bytes, size_t size)
{
    struct error err = {0};

    assert_ok(net_recv_all(fd, bytes, size, clock_deadline_ns(10000), &err));
}

/* Rank 0's stream: the header, its first half (i + 1000), and the sum of the second half. */
static size_t make_stream(unsigned char *bytes)
{
    float values[COUNT];

    memcpy(bytes, f.header, RING_HEADER_BYTES);
    for (int i = 0; i < COUNT; i++)
        values[i] = i < HALF ? (float)(i + 1000) : (float)(-i);
    memcpy(bytes + RING_HEADER_BYTES, values, sizeof(values));
    return RING_HEADER_BYTES + sizeof(values);
}

START_TEST(odd_pieces_are_put_together)
{
    static const size_t pieces[] = {1, 2, 3, 5, 7, 11, 1, 1, 64, 129};
    unsigned char bytes[RING_HEADER_BYTES + sizeof(f.data)];
    float sent[COUNT];
    size_t size = make_stream(bytes);
    size_t done = 0;

    for (size_t i = 0; done < size; i++) {
        size_t piece = pieces[i % 10] < size - done ? pieces[i % 10] : size - done;

        put(f.left, bytes + done, piece);
        done += piece;
        ck_assert_int_eq(run_a_little(), done < size ? RING_PAUSED : RING_DONE);
    }
    for (int i = 0; i < HALF; i++) {
        ck_assert_int_eq((int)f.data[i], 2 * i + 1000);
        ck_assert_int_eq((int)f.data[i + HALF], -(i + HALF));
    }
    get(f.right, bytes, RING_HEADER_BYTES);
    ck_assert_mem_eq(bytes, f.header, RING_HEADER_BYTES);
    get(f.right, sent, sizeof(sent));
    for (int i = 0; i < HALF; i++) {
        ck_assert_int_eq((int)sent[i], i + HALF);            /* its own second half */
        ck_assert_int_eq((int)sent[i + HALF], 2 * i + 1000); /* the sum of the first */
    }
}
END_TEST

START_TEST(pauses_and_goes_on)
{
    unsigned char bytes[RING_HEADER_BYTES + sizeof(f.data)];
    size_t size = make_stream(bytes);

    ck_assert_int_eq(run_a_little(), RING_PAUSED);
    put(f.left, bytes, size);
    ck_assert_int_eq(ring_stream_run(&f.stream, &f.run, clock_deadline_ns(30000)), RING_DONE);
    ck_assert_uint_eq(f.run.sent.done, sizeof(f.data));
    ck_assert_uint_eq(f.run.received.done, sizeof(f.data));
}
END_TEST

START_TEST(left_dies)
{
    unsigned char bytes[RING_HEADER_BYTES + sizeof(f.data)];

    start();
    put(f.left, bytes, make_stream(bytes) > 0 ? RING_HEADER_BYTES + 10 : 0);
    (void)shutdown(f.left, SHUT_RDWR);
    join_and_expect(RING_LEFT_LOST);
}
END_TEST

START_TEST(right_dies_without_a_goodbye)
{
    start();
    (void)shutdown(f.right, SHUT_RDWR);
    join_and_expect(RING_RIGHT_LOST);
}
END_TEST

START_TEST(left_is_in_another_operation)
{
    struct ring_operation other = operation;
    unsigned char bytes[RING_HEADER_BYTES];

    start();
    other.count++;
    ring_operation_encode(&other, bytes);
    put(f.left, bytes, sizeof(bytes));
    join_and_expect(RING_LEFT_DIFFERS);
    ck_assert(ring_operation_decode(f.run.left_header, &other));
    ck_assert_uint_eq(other.count, COUNT + 1);
}
END_TEST

static void put_note(enum ring_note_kind kind, uint32_t rank, uint64_t sequence)
{
    struct ring_note note = {.kind = kind, .rank = rank, .sequence = sequence};
    unsigned char bytes[RING_NOTE_BYTES];

    ring_note_encode(&note, bytes);
    put(f.right, bytes, 3); /* in two pieces */
    put(f.right, bytes + 3, sizeof(bytes) - 3);
}

/* Rank 0 closes the group while rank 1 has bytes for it. */
START_TEST(right_leaves_in_order_too_early)
{
    start();
    put_note(RING_NOTE_GOODBYE, 0, 0);
    (void)shutdown(f.right, SHUT_RDWR);
    join_and_expect(RING_RIGHT_CLOSED);
}
END_TEST

/* The last operation: rank 0 has all it needs and closes, its bytes are still on the way. */
START_TEST(right_leaves_in_order_when_it_may)
{
    unsigned char bytes[RING_HEADER_BYTES + sizeof(f.data)];
    size_t size = make_stream(bytes);
    size_t half = RING_HEADER_BYTES + sizeof(f.data) / 2;
    static unsigned char sent[RING_HEADER_BYTES + sizeof(f.data)];

    start();
    put(f.left, bytes, half);
    get(f.right, sent, sizeof(sent));
    put_note(RING_NOTE_GOODBYE, 0, 0);
    (void)shutdown(f.right, SHUT_RDWR);
    put(f.left, bytes + half, size - half);
    join_and_expect(RING_DONE);
    ck_assert(f.data[COUNT - 1] < 0);
}
END_TEST

START_TEST(notes_are_kept_and_blame_is_passed_on)
{
    unsigned char bytes[RING_NOTE_BYTES];
    struct ring_note note;

    put_note(RING_NOTE_ALIVE, 0, 5);
    put_note(RING_NOTE_BLAME, 3, 5);
    put_note(RING_NOTE_BLAME, 3, 5);
    ck_assert_int_eq(run_a_little(), RING_PAUSED);
    ck_assert_uint_eq(f.stream.alive_sequence, 5);
    ck_assert_uint_eq(f.stream.blamed_sequence, 5);
    ck_assert_uint_eq(f.stream.blamed_rank, 3);
    get(f.left, bytes, sizeof(bytes));
    ck_assert(ring_note_decode(bytes, &note));
    ck_assert_int_eq(note.kind, RING_NOTE_BLAME);
    ck_assert_uint_eq(note.rank, 3);
    ck_assert_int_lt(recv(f.left, bytes, sizeof(bytes), MSG_DONTWAIT), 0); /* once */
}
END_TEST

START_TEST(noise_from_the_right_is_a_lost_neighbour)
{
    unsigned char noise[RING_NOTE_BYTES] = "GET / HTTP/1.1\r";

    start();
    put(f.right, noise, sizeof(noise));
    join_and_expect(RING_RIGHT_LOST);
}
END_TEST

START_TEST(leaving_is_said_on_both_sides)
{
    struct ring_operation leave = {.call = RING_CALL_CLOSE, .group = 77, .sequence = 6};
    struct ring_note goodbye = {.kind = RING_NOTE_GOODBYE, .rank = 1};
    unsigned char bytes[RING_HEADER_BYTES];

    ring_operation_encode(&leave, bytes);
    ring_stream_leave(&f.stream, bytes, &goodbye);
    get(f.right, bytes, RING_HEADER_BYTES);
    ck_assert(ring_operation_decode(bytes, &leave));
    ck_assert_int_eq(leave.call, RING_CALL_CLOSE);
    get(f.left, bytes, RING_NOTE_BYTES);
    ck_assert(ring_note_decode(bytes, &goodbye));
    ck_assert_int_eq(goodbye.kind, RING_NOTE_GOODBYE);
}
END_TEST

START_TEST(layouts_come_back)
{
    unsigned char bytes[RING_HEADER_BYTES];
    struct ring_operation wide = {.call = RING_CALL_BROADCAST,
                                  .order = REDUCE_REPRODUCIBLE,
                                  .group = 0x8000000000000001,
                                  .sequence = 0x0123456789abcdef,
                                  .count = UINT64_MAX,
                                  .root = 0xdeadbeef};
    struct ring_operation back = {.call = RING_CALL_CLOSE};
    struct ring_hello hello = {.group = UINT64_MAX - 1, .rank = 1, .world_size = 0x10002};
    struct ring_hello hello_back;

    ring_operation_encode(&wide, bytes);
    ck_assert(ring_operation_decode(bytes, &back));
    ck_assert(back.call == wide.call && back.order == wide.order && back.group == wide.group &&
              back.sequence == wide.sequence && back.count == wide.count && back.root == wide.root);
    ring_hello_encode(&hello, bytes);
    ck_assert(ring_hello_decode(bytes, &hello_back));
    ck_assert(hello_back.group == hello.group && hello_back.rank == 1 &&
              hello_back.world_size == 0x10002);
}
END_TEST

START_TEST(layouts_refuse_other_bytes)
{
    unsigned char bytes[RING_HEADER_BYTES];
    struct ring_operation back;
    struct ring_hello hello;
    struct ring_note note = {.kind = RING_NOTE_ALIVE};

    ring_operation_encode(&operation, bytes);
    bytes[4] = RING_CALL_CLOSE + 1;
    ck_assert(!ring_operation_decode(bytes, &back));
    bytes[4] = 0;
    ck_assert(!ring_operation_decode(bytes, &back));
    ring_operation_encode(&operation, bytes);
    bytes[5] = 2;
    ck_assert(!ring_operation_decode(bytes, &back));
    ck_assert(!ring_hello_decode(bytes, &hello));
    ring_note_encode(&note, bytes);
    bytes[3] = 1;
    ck_assert(!ring_note_decode(bytes, &note));
}
END_TEST

START_TEST(texts_say_what_an_operation_is)
{
    char text[RING_TEXT_SIZE];
    struct ring_operation o = operation;

    ring_operation_text(&o, text);
    ck_assert_str_eq(text, "all_reduce #5 of 1000 float32");
    o.order = REDUCE_REPRODUCIBLE;
    ring_operation_text(&o, text);
    ck_assert_str_eq(text, "all_reduce #5 of 1000 float32 in rank order");
    o.call = RING_CALL_BROADCAST;
    o.root = 2;
    ring_operation_text(&o, text);
    ck_assert_str_eq(text, "broadcast #5 of 1000 bytes from rank 2");
    o.sequence = o.count = UINT64_MAX;
    o.root = UINT32_MAX;
    ring_operation_text(&o, text);
    ck_assert_uint_lt(strlen(text), RING_TEXT_SIZE - 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ring_stream");
    TCase *streams = tcase_create("stream");
    TCase *wire = tcase_create("wire");

    tcase_set_timeout(streams, 60);
    tcase_add_checked_fixture(streams, setup, teardown);
    tcase_add_test(streams, odd_pieces_are_put_together);
    tcase_add_test(streams, pauses_and_goes_on);
    tcase_add_test(streams, left_dies);
    tcase_add_test(streams, right_dies_without_a_goodbye);
    tcase_add_test(streams, left_is_in_another_operation);
    tcase_add_test(streams, right_leaves_in_order_too_early);
    tcase_add_test(streams, right_leaves_in_order_when_it_may);
    tcase_add_test(streams, notes_are_kept_and_blame_is_passed_on);
    tcase_add_test(streams, noise_from_the_right_is_a_lost_neighbour);
    tcase_add_test(streams, leaving_is_said_on_both_sides);
    suite_add_tcase(suite, streams);
    tcase_add_test(wire, layouts_come_back);
    tcase_add_test(wire, layouts_refuse_other_bytes);
    tcase_add_test(wire, texts_say_what_an_operation_is);
    suite_add_tcase(suite, wire);
    return support_run(suite);
}
