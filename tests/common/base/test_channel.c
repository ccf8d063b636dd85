/*
 * Channels: messages arrive whole and in order in both directions, a full queue refuses, no wake-up
 * is lost, and what a peer writes into the memory is an error or a message, never an access outside
 * it.
 */
#include "common/base/channel.h"
#include "common/base/clock.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SLOTS   64 /* the fewest */
#define WAIT_NS INT64_C(30000000000)

/* The two ends of one channel, in one process. */
struct ends {
    struct channel *creator, *other;
};

static struct ends open_ends(size_t messages)
{
    struct error err = {0};
    struct ends e;
    size_t size;
    int fd;

    assert_ok(channel_create(messages, &e.creator, &err));
    channel_handover(e.creator, &fd, &size);
    assert_ok(channel_attach(dup(fd), size, &e.other, &err));
    return e;
}

static void close_ends(struct ends *e)
{
    channel_unref(e->creator);
    channel_unref(e->other);
}

/* Message number i: its length and every byte depend on i. */
static size_t make_message(unsigned i, unsigned char *bytes)
{
    size_t size = 1 + i % CHANNEL_MESSAGE_MAX;

    for (size_t k = 0; k < size; k++)
        bytes[k] = (unsigned char)(i * 7 + k);
    return size;
}

static bool send_number(struct channel *c, unsigned i)
{
    unsigned char bytes[CHANNEL_MESSAGE_MAX];
    size_t size = make_message(i, bytes);

    return channel_send(c, bytes, size);
}

/* False: there is none. */
static bool receive_number(struct channel *c, unsigned i)
{
    unsigned char bytes[CHANNEL_MESSAGE_MAX], wanted[CHANNEL_MESSAGE_MAX];
    struct error err = {0};
    size_t size = make_message(i, wanted), got;

    assert_ok(channel_receive(c, bytes, &got, &err));
    if (got == 0)
        return false;
    ck_assert_uint_eq(got, size);
    ck_assert_mem_eq(bytes, wanted, size);
    return true;
}

/* Random batches, so that the counters meet every slot and a full and an empty queue. */
static void run_one_way(struct channel *from, struct channel *to, unsigned slots)
{
    unsigned sent = 0, received = 0;

    while (received < 10 * slots) {
        for (unsigned n = (unsigned)(support_random() * 2 * slots); n > 0; n--) {
            bool fits = sent - received < slots;

            ck_assert(send_number(from, sent) == fits);
            sent += fits;
        }
        for (unsigned n = (unsigned)(support_random() * 2 * slots); n > 0; n--) {
            ck_assert(channel_has_message(to) == (received < sent));
            ck_assert(receive_number(to, received) == (received < sent));
            received += received < sent;
        }
    }
}

START_TEST(arrive_in_order)
{
    struct ends e = open_ends(1);

    run_one_way(e.creator, e.other, SLOTS);
    run_one_way(e.other, e.creator, SLOTS);
    close_ends(&e);
    e = open_ends(SLOTS + 1);
    run_one_way(e.creator, e.other, 2 * SLOTS);
    close_ends(&e);
}
END_TEST

START_TEST(lengths)
{
    unsigned char bytes[CHANNEL_MESSAGE_MAX + 1] = {0};
    struct ends e = open_ends(1);

    ck_assert(!channel_send(e.creator, bytes, 0));
    ck_assert(!channel_send(e.creator, bytes, sizeof(bytes)));
    ck_assert(!channel_has_message(e.other));
    close_ends(&e);
}
END_TEST

/* ---- a hostile peer ---- */

/* The creator's queue as its peer maps it: two counters and the slots, each with a size first. */
static struct shared_memory map_queue(const struct ends *e, atomic_uint **ret_written,
                                      atomic_uint **ret_read, atomic_uint **ret_size)
{
    struct shared_memory m = SHARED_MEMORY_NONE;
    struct error err = {0};
    size_t size;
    int fd;

    channel_handover(e->creator, &fd, &size);
    assert_ok(shared_memory_map(dup(fd), size, &m, &err));
    *ret_written = (atomic_uint *)m.base;
    *ret_read = (atomic_uint *)((unsigned char *)m.base + 64);
    *ret_size = (atomic_uint *)((unsigned char *)m.base + 128);
    return m;
}

static void expect_garbled(struct channel *c)
{
    unsigned char bytes[CHANNEL_MESSAGE_MAX];
    struct error err = {0};
    size_t size;

    assert_fails(channel_receive(c, bytes, &size, &err), STATUS_PROTOCOL, "garbled");
    ck_assert_uint_eq(size, 0);
}

START_TEST(garbled_queues)
{
    struct ends e = open_ends(1);
    atomic_uint *written, *read, *size;
    struct shared_memory m = map_queue(&e, &written, &read, &size);

    ck_assert(send_number(e.creator, 0));
    atomic_store(written, SLOTS + 1);
    expect_garbled(e.other);
    atomic_store(written, UINT32_MAX);
    expect_garbled(e.other);
    atomic_store(written, 1);
    atomic_store(size, 0);
    expect_garbled(e.other);
    atomic_store(size, CHANNEL_MESSAGE_MAX + 1);
    expect_garbled(e.other);
    atomic_store(size, UINT32_MAX);
    expect_garbled(e.other);
    atomic_store(size, 1);
    ck_assert(receive_number(e.other, 0));
    atomic_store(read, 2); /* more than was written */
    ck_assert(!send_number(e.creator, 1));
    atomic_store(read, 1);
    ck_assert(send_number(e.creator, 1));
    shared_memory_release(&m);
    close_ends(&e);
}
END_TEST

START_TEST(no_channel)
{
    struct ends e = open_ends(1);
    struct channel *c = NULL;
    struct error err = {0};
    int ends[2], fd;
    size_t size;

    channel_handover(e.creator, &fd, &size);
    assert_fails(channel_attach(dup(fd), size - 1, &c, &err), STATUS_PROTOCOL, "no channel");
    assert_fails(channel_attach(dup(fd), 0, &c, &err), STATUS_PROTOCOL, "no channel");
    assert_fails(channel_attach(dup(fd), SIZE_MAX, &c, &err), STATUS_PROTOCOL, "no channel");
    assert_fails(channel_attach(dup(fd), 2 * size - 256, &c, &err), STATUS_PROTOCOL, "sealed");
    ck_assert_int_eq(pipe(ends), 0);
    assert_fails(channel_attach(ends[0], size, &c, &err), STATUS_PROTOCOL, "sealed");
    assert_fails(channel_bell_map(ends[1], &(struct shared_memory){.fd = -1}, &err),
                 STATUS_PROTOCOL, "sealed");
    ck_assert_ptr_null(c);
    close_ends(&e);
}
END_TEST

/* ---- bells ---- */

struct sleeper {
    struct channel *channel;
    struct shared_memory bell;
    atomic_uint *count; /* of messages, once all are sent; UINT32_MAX before */
};

/* Receive all messages, and sleep whenever there is none. */
static void *receive_all(void *user)
{
    struct sleeper *s = user;

    for (unsigned i = 0; i < atomic_load(s->count);) {
        int64_t start_ns = clock_now_ns();

        channel_bell_set_asleep(&s->bell, true);
        if (!channel_has_message(s->channel) && i < atomic_load(s->count))
            channel_bell_sleep(&s->bell, WAIT_NS);
        channel_bell_set_asleep(&s->bell, false);
        ck_assert_msg(clock_now_ns() - start_ns < WAIT_NS, "nobody rang for message %u", i);
        while (receive_number(s->channel, i))
            i++;
    }
    return NULL;
}

/* For a second, however slow a wake-up is on a busy machine. */
static void *send_messages(void *user)
{
    struct sleeper *s = user;
    int64_t end_ns = clock_deadline_ns(1000);
    unsigned i = 0;

    for (; clock_now_ns() < end_ns; i++) {
        for (unsigned n = (unsigned)(i * 2654435761u) % 8; n > 0; n--)
            (void)sched_yield();
        while (!send_number(s->channel, i))
            (void)sched_yield();
    }
    atomic_store(s->count, i);
    channel_bell_ring(&s->bell);
    return NULL;
}

START_TEST(no_wake_up_is_lost)
{
    struct ends e = open_ends(1);
    atomic_uint count = UINT32_MAX;
    struct sleeper sleeper = {.channel = e.other, .count = &count};
    struct sleeper sender = {.channel = e.creator, .count = &count};
    struct shared_memory bell = SHARED_MEMORY_NONE;
    struct error err = {0};
    pthread_t receiving, sending;

    assert_ok(channel_bell_open(&sleeper.bell, &err));
    assert_ok(channel_bell_map(dup(sleeper.bell.fd), &bell, &err));
    channel_set_bell(e.creator, bell);
    sender.bell = bell;
    ck_assert_int_eq(pthread_create(&receiving, NULL, receive_all, &sleeper), 0);
    ck_assert_int_eq(pthread_create(&sending, NULL, send_messages, &sender), 0);
    ck_assert_int_eq(pthread_join(sending, NULL), 0);
    ck_assert_int_eq(pthread_join(receiving, NULL), 0);
    (void)printf("%u messages\n", atomic_load(&count));
    shared_memory_release(&sleeper.bell);
    close_ends(&e);
}
END_TEST

START_TEST(polling_adapts)
{
    struct polling p = {0};
    unsigned full = 0;

    ck_assert_int_eq(polling_until_ns(&p, 5), 5 + CHANNEL_POLL_NS);
    for (unsigned i = 1; i < 16; i++) {
        polling_ended(&p, false);
        ck_assert_int_ge(polling_until_ns(&p, 0), CHANNEL_POLL_NS / 16);
        ck_assert_int_le(polling_until_ns(&p, 0),
                         i < 4 ? CHANNEL_POLL_NS >> i : CHANNEL_POLL_NS / 16);
    }
    for (unsigned i = 0; i < 160; i++) {
        polling_ended(&p, false);
        full += polling_until_ns(&p, 0) == CHANNEL_POLL_NS;
    }
    ck_assert_uint_eq(full, 10);
    polling_ended(&p, true);
    ck_assert_int_eq(polling_until_ns(&p, 0), CHANNEL_POLL_NS);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("channel", 60, TEST(arrive_in_order), TEST(lengths), TEST(garbled_queues),
                       TEST(no_channel), TEST(no_wake_up_is_lost), TEST(polling_adapts));
}
