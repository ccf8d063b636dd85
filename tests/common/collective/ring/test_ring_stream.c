/*
 * One rank's streams, with the test in the place of all other ranks: bytes arrive in odd pieces,
 * peers differ, fall silent, leave or die.  Also the wire layouts, and unknown clients on the port.
 */
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/collective/ring/ring_accept.h"
#include "common/collective/ring/ring_pairs.h"
#include "common/collective/ring/ring_stream.h"
#include "tests/common/collective/ring/memory_transport.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#define COUNT 1000
#define HALF  (COUNT / 2)

/* Rank 1 of 2 in one all-reduce; the test is rank 0 on both sides. */
static struct fixture {
    struct memory_world *world;
    struct ring_io io;
    struct ring_scratch scratch;
    struct pairs_scratch pairs_scratch;
    struct ring_run run;
    struct pairs_run pairs;
    struct ring_operation operation;
    float data[COUNT];
} f;

static const struct signature signature = {
    .call = COLLECTIVE_ALL_REDUCE, .group = 77, .generation = 1, .sequence = 5, .count = COUNT};

static void setup(void)
{
    struct ring_plan plan = ring_plan(RING_ALL_REDUCE, 1, 2, COUNT, sizeof(float), 0, 4096);
    struct pairs_plan pairs = {.kind = PAIRS_ALL_REDUCE_WHOLE,
                               .rank = 1,
                               .world_size = 2,
                               .count = COUNT,
                               .size = sizeof(float)};
    struct error err = {0};

    f.world = memory_world_open(2, 1 << 16, 0);
    ck_assert_ptr_nonnull(f.world);
    f.io = (struct ring_io){
        .transport = memory_world_transport(f.world, 1), .alarm_fd = -1, .segment_bytes = 4096};
    assert_ok(ring_scratch_init(&f.scratch, 4096, &err));
    assert_ok(pairs_scratch_init(&f.pairs_scratch, 2, 4096, &err));
    for (int i = 0; i < COUNT; i++)
        f.data[i] = (float)i;
    f.operation = (struct ring_operation){
        .input = (unsigned char *)f.data, .output = (unsigned char *)f.data, .factor = 1.0};
    ring_header_encode(&signature, 1.0, f.operation.header);
    memcpy(f.operation.expected, f.operation.header, SIGNATURE_BYTES);
    ring_run_init(&f.run, &plan, &f.operation, &f.scratch);
    pairs_run_init(&f.pairs, &pairs, &f.operation, &f.pairs_scratch);
}

static void teardown(void)
{
    ring_scratch_release(&f.scratch);
    pairs_scratch_release(&f.pairs_scratch);
    memory_world_close(f.world);
}

/* Run until nothing moves. */
static enum ring_outcome run_a_little(void)
{
    return ring_stream_run(&f.io, &f.run, 0);
}

static enum ring_outcome run_pairs_a_little(void)
{
    return pairs_run(&f.io, &f.pairs, 0);
}

static void feed_bytes(const void *bytes, size_t size)
{
    ck_assert_uint_eq(memory_put(f.world, 0, 1, bytes, size), size);
}

static void drain_bytes(void *bytes, size_t size)
{
    ck_assert_uint_eq(memory_take(f.world, 1, 0, bytes, size), size);
}

/* Rank 0's stream: the header, its first half (i + 1000), and the sum of the second half. */
static size_t make_stream(unsigned char *bytes)
{
    float values[COUNT];

    memcpy(bytes, f.operation.header, RING_HEADER_BYTES);
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

        feed_bytes(bytes + done, piece);
        done += piece;
        ck_assert_int_eq(run_a_little(), done < size ? RING_PAUSED : RING_DONE);
    }
    for (int i = 0; i < HALF; i++) {
        ck_assert_int_eq((int)f.data[i], 2 * i + 1000);
        ck_assert_int_eq((int)f.data[i + HALF], -(i + HALF));
    }
    drain_bytes(bytes, RING_HEADER_BYTES);
    ck_assert_mem_eq(bytes, f.operation.header, RING_HEADER_BYTES);
    drain_bytes(sent, sizeof(sent));
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
    feed_bytes(bytes, size);
    ck_assert_int_eq(ring_stream_run(&f.io, &f.run, clock_deadline_ns(30000)), RING_DONE);
    ck_assert_uint_eq(f.run.right.done, sizeof(f.data));
    ck_assert_uint_eq(f.run.left.done, sizeof(f.data));
}
END_TEST

/* A neighbour whose next bytes come when the wait for them is over. */
static struct trickle {
    struct transport_ops ops; /* those of the memory transport, but for the wait */
    bool (*wait)(struct transport *head, struct transport_interest *interests, size_t count,
                 int alarm_fd, int64_t until_ns);
    unsigned waits;
} trickle;

static bool wait_to_the_end(struct transport *head, struct transport_interest *interests,
                            size_t count, int alarm_fd, int64_t until_ns)
{
    if (clock_now_ns() < until_ns)
        feed_bytes(f.operation.header, 8);
    while (clock_now_ns() < until_ns)
        (void)sched_yield();
    trickle.waits++;
    return trickle.wait(head, interests, count, alarm_fd, until_ns);
}

START_TEST(a_trickle_does_not_outlast_the_time)
{
    trickle = (struct trickle){.ops = *f.io.transport->ops, .wait = f.io.transport->ops->wait};
    trickle.ops.wait = wait_to_the_end;
    f.io.transport->ops = &trickle.ops;
    ck_assert_int_eq(ring_stream_run(&f.io, &f.run, clock_deadline_ns(5)), RING_PAUSED);
    ck_assert_uint_eq(trickle.waits, 1);
}
END_TEST

START_TEST(an_alarm_pauses)
{
    atomic_bool raised = true;

    f.io.alarm = &raised;
    ck_assert_int_eq(ring_stream_run(&f.io, &f.run, clock_deadline_ns(30000)), RING_PAUSED);
    ck_assert_int_eq(pairs_run(&f.io, &f.pairs, clock_deadline_ns(30000)), RING_PAUSED);
}
END_TEST

START_TEST(a_dead_peer_is_lost)
{
    unsigned char bytes[RING_HEADER_BYTES + sizeof(f.data)];

    feed_bytes(bytes, make_stream(bytes) > 0 ? RING_HEADER_BYTES + 10 : 0);
    if (_i == 0)
        ck_assert_int_eq(run_a_little(), RING_PAUSED);
    memory_end(f.world, 0, 1);
    ck_assert_int_eq(run_a_little(), RING_LOST);
    ck_assert_uint_eq(f.io.trouble.peer, 0);
}
END_TEST

START_TEST(a_dead_peer_is_lost_to_pairs)
{
    ck_assert_int_eq(run_pairs_a_little(), RING_PAUSED);
    memory_end(f.world, 0, 1);
    ck_assert_int_eq(run_pairs_a_little(), RING_LOST);
    ck_assert_uint_eq(f.io.trouble.peer, 0);
}
END_TEST

/* Every field of a header counts; what the other said is kept. */
START_TEST(a_peer_in_another_operation_differs)
{
    struct signature others[] = {signature, signature, signature, signature, signature, signature};
    unsigned char bytes[RING_HEADER_BYTES];
    struct signature seen;

    others[0].count++;
    others[1].sequence++;
    others[2].call = COLLECTIVE_CLOSE;
    others[3].dtype = DTYPE_INT32;
    others[4].op = REDUCE_MAX;
    others[5].generation++;
    ring_header_encode(&others[_i], 1.0, bytes);
    feed_bytes(bytes, 7);
    ck_assert_int_eq(_i % 2 ? run_a_little() : run_pairs_a_little(), RING_PAUSED);
    feed_bytes(bytes + 7, sizeof(bytes) - 7);
    ck_assert_int_eq(_i % 2 ? run_a_little() : run_pairs_a_little(), RING_DIFFERS);
    ck_assert(signature_decode(f.io.trouble.header, &seen));
    ck_assert(signature_equal(&seen, &others[_i]));
}
END_TEST

START_TEST(layouts_come_back)
{
    unsigned char bytes[RING_HEADER_BYTES];
    struct signature back;
    struct ring_hello hello = {.group = UINT64_MAX - 1,
                               .cookie = 0x0123456789abcdef,
                               .generation = 7,
                               .rank = 1,
                               .world_size = 0x10002,
                               .stream = 3};
    struct ring_hello hello_back;

    ring_header_encode(&signature, -0.125, bytes);
    ck_assert(signature_decode(bytes, &back));
    ck_assert(signature_equal(&back, &signature));
    ck_assert_double_eq(ring_header_factor(bytes), -0.125);
    ring_hello_encode(&hello, bytes);
    ck_assert(ring_hello_decode(bytes, &hello_back));
    ck_assert(hello_back.group == hello.group && hello_back.cookie == hello.cookie &&
              hello_back.generation == 7 && hello_back.rank == 1 &&
              hello_back.world_size == 0x10002 && hello_back.stream == 3);
    bytes[0]++;
    ck_assert(!ring_hello_decode(bytes, &hello_back));
}
END_TEST

/* ---- unknown clients ---- */

#define COOKIE  99
#define STREAMS 2

/* Rank 1 of 3 that waits for rank 2. */
static struct acceptor_fixture {
    struct endpoint endpoint;
    int listen_fd;
    int fds[3 * STREAMS];
    int64_t timeout_ms;
    enum status status;
    struct error err;
    pthread_t thread;
} acceptor_fixture;

static const struct ring_hello acceptor_hello = {
    .group = 5, .cookie = COOKIE, .generation = 2, .rank = 1, .world_size = 3};

static void *accept_thread(void *unused)
{
    static const uint64_t cookies[] = {0, COOKIE, 1234};
    static const unsigned members[] = {0, 3, 5};

    unsigned counts[] = {1, 0, STREAMS};
    struct ring_connections connections = {
        .stride = STREAMS, .counts = counts, .fds = acceptor_fixture.fds, .members = members};

    acceptor_fixture.status = ring_accept(acceptor_fixture.listen_fd, &acceptor_hello, cookies,
                                          NULL, clock_deadline_ns(acceptor_fixture.timeout_ms),
                                          &connections, &acceptor_fixture.err);
    return unused;
}

static void open_door(int64_t timeout_ms)
{
    struct error err = {0};

    acceptor_fixture =
        (struct acceptor_fixture){.endpoint = {.host = "127.0.0.1"}, .timeout_ms = timeout_ms};
    for (size_t i = 0; i < sizeof(acceptor_fixture.fds) / sizeof(acceptor_fixture.fds[0]); i++)
        acceptor_fixture.fds[i] = -1;
    assert_ok(net_listen(&acceptor_fixture.endpoint, "test", &acceptor_fixture.listen_fd,
                         &acceptor_fixture.endpoint.port, &err));
    ck_assert_int_eq(pthread_create(&acceptor_fixture.thread, NULL, accept_thread, NULL), 0);
}

static int connect_with_hello(const struct ring_hello *hello)
{
    unsigned char bytes[RING_HELLO_BYTES];
    struct error err = {0};
    int fd;

    assert_ok(net_connect(&acceptor_fixture.endpoint, clock_deadline_ns(10000), &fd, &err));
    if (hello) {
        ring_hello_encode(hello, bytes);
        assert_ok(net_send_all(fd, bytes, sizeof(bytes), clock_deadline_ns(10000), &err));
    }
    return fd;
}

static struct ring_hello right_hello(unsigned stream)
{
    struct ring_hello hello = acceptor_hello;

    hello.rank = 2;
    hello.stream = stream;
    return hello;
}

/* More silent ones than are kept, one that hangs up, one that speaks HTTP, and hellos that are
 * wrong in one thing; then the right ones. */
START_TEST(strangers_do_no_harm)
{
    static const char http[] = "GET /index.html HTTP/1.1\r\nHost: stranger\r\n\r\n";
    struct ring_hello wrong[8];
    unsigned char answer[RING_HELLO_BYTES];
    struct ring_hello got;
    struct error err = {0};
    int fds[32];

    for (size_t i = 0; i < 8; i++)
        wrong[i] = right_hello(0);
    wrong[0].group++;
    wrong[1].cookie++;
    wrong[2].generation++;
    wrong[3].rank = 0;
    wrong[4].rank = 3;
    wrong[5].world_size = 4;
    wrong[6].stream = STREAMS;
    wrong[7].rank = UINT32_MAX;
    open_door(30000);
    for (size_t i = 0; i < 22; i++)
        fds[i] = connect_with_hello(NULL);
    assert_ok(net_send_all(fds[20], http, sizeof(http), clock_deadline_ns(10000), &err));
    (void)close(fds[21]);
    for (size_t i = 0; i < 8; i++)
        fds[22 + i] = connect_with_hello(&wrong[i]);
    for (unsigned s = STREAMS; s > 0; s--) {
        struct ring_hello hello = right_hello(s - 1);

        fds[29 + s] = connect_with_hello(&hello);
    }
    (void)pthread_join(acceptor_fixture.thread, NULL);
    ck_assert_msg(acceptor_fixture.status == STATUS_OK, "%s", acceptor_fixture.err.text);
    assert_ok(net_recv_all(fds[30], answer, sizeof(answer), clock_deadline_ns(10000), &err));
    ck_assert(ring_hello_decode(answer, &got));
    ck_assert(got.rank == 1 && got.cookie == 1234 && got.stream == 0);
    ck_assert(acceptor_fixture.fds[2 * STREAMS] >= 0 && acceptor_fixture.fds[2 * STREAMS + 1] >= 0);
    ck_assert(acceptor_fixture.fds[0] < 0 && acceptor_fixture.fds[STREAMS] < 0);
}
END_TEST

START_TEST(the_missing_rank_is_named)
{
    struct ring_hello hello = right_hello(0);
    struct ring_hello stranger = right_hello(1);

    stranger.cookie++;
    open_door(3000); /* for the two to be heard */
    (void)connect_with_hello(&hello);
    (void)connect_with_hello(&stranger);
    (void)pthread_join(acceptor_fixture.thread, NULL);
    ck_assert_int_eq(acceptor_fixture.status, STATUS_TIMEOUT);
    ck_assert_str_eq(acceptor_fixture.err.text,
                     "rank 5 did not connect (1 others were turned away; the last: "
                     "it did not know the cookie)");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "ring_stream", 240, CHECKED_FIXTURE(setup, teardown), TEST(odd_pieces_are_put_together),
        TEST(pauses_and_goes_on), TEST(a_trickle_does_not_outlast_the_time), TEST(an_alarm_pauses),
        LOOP_TEST(a_dead_peer_is_lost, 0, 2), TEST(a_dead_peer_is_lost_to_pairs),
        LOOP_TEST(a_peer_in_another_operation_differs, 0, 6), TEST(layouts_come_back),
        TEST_CASE("strangers", 240), TEST(strangers_do_no_harm), TEST(the_missing_rank_is_named));
}
