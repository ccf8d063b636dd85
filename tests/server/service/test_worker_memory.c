/*
 * The listener that receives the memory of workers: which workers are served, which are
 * disconnected, and that nothing is leaked (checked by LeakSanitizer).
 */
#include "common/base/clock.h"
#include "common/base/handover.h"
#include "server/service/worker_memory.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WAIT_MS 20000
#define BYTES   ((size_t)8192)

/* The server's side. */
static struct {
    struct fd_listener *listener;
    struct shared_memory shard;
    pthread_mutex_t lock;
    /* under lock */
    struct worker_memory *memory; /* of the last worker */
    unsigned rank;
    bool refuses;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct error err;

static enum status accept_memory(void *user, unsigned rank, struct worker_memory *memory,
                                 struct shared_memory *ret_memory, struct error *error)
{
    enum status status = STATUS_OK;

    (void)user;
    (void)pthread_mutex_lock(&server.lock);
    if (server.refuses) {
        status = error_set(error, STATUS_NOT_FOUND, "no job runs here");
    } else {
        worker_memory_unref(server.memory);
        server.memory = worker_memory_ref(memory);
        server.rank = rank;
    }
    (void)pthread_mutex_unlock(&server.lock);
    if (status != STATUS_OK)
        return status;
    *ret_memory = server.shard;
    ret_memory->fd = fcntl(server.shard.fd, F_DUPFD_CLOEXEC, 0);
    return STATUS_OK;
}

static struct worker_memory *current_memory(void)
{
    struct worker_memory *memory;

    (void)pthread_mutex_lock(&server.lock);
    memory = server.memory;
    (void)pthread_mutex_unlock(&server.lock);
    return memory;
}

static void set_refusing(bool closed)
{
    (void)pthread_mutex_lock(&server.lock);
    server.refuses = closed;
    (void)pthread_mutex_unlock(&server.lock);
}

static void open_server(void)
{
    struct fd_listener_config config = {.accept_memory = accept_memory};

    assert_ok(shared_memory_open(BYTES, "test-shard", &server.shard, &err));
    assert_ok(fd_listener_open(&config, &server.listener, &err));
}

static void close_server(void)
{
    fd_listener_close(server.listener);
    worker_memory_unref(server.memory);
    shared_memory_release(&server.shard);
}

/* Connect to the listener; returns its token. */
static int connect_to_listener(unsigned char token[HANDOVER_TOKEN_BYTES])
{
    char name[HANDOVER_NAME_SIZE];
    int fd = -1;

    ck_assert(handover_parse(fd_listener_address(server.listener), name, token));
    assert_ok(handover_connect(name, clock_deadline_ns(WAIT_MS), &fd, &err));
    return fd;
}

/* Send `memory_fd` and map the memory that comes back; the status of the reply. */
static enum status hand_over(struct handover_message message, int memory_fd, bool with_token,
                             struct shared_memory *ret_shard)
{
    unsigned char token[HANDOVER_TOKEN_BYTES];
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    int fd = connect_to_listener(token), shard_fd = -1;
    enum status status;

    message.has_memory = memory_fd >= 0;
    if (with_token)
        memcpy(message.token, token, sizeof(token));
    assert_ok(handover_send(fd, &message, memory_fd, deadline_ns, &err));
    status = handover_receive(fd, token, deadline_ns, &message, &shard_fd, &err);
    if (status == STATUS_OK)
        assert_ok(shared_memory_map_read_only(shard_fd, message.size, ret_shard, &err));
    (void)close(fd);
    return status;
}

START_TEST(both_processes_share_memory)
{
    struct shared_memory mine = SHARED_MEMORY_NONE, theirs = SHARED_MEMORY_NONE;
    const float *seen;

    open_server();
    assert_ok(shared_memory_open(BYTES, "test-worker", &mine, &err));
    ((float *)mine.base)[5] = 1.5f;
    ((float *)server.shard.base)[7] = 2.5f;
    assert_ok(hand_over((struct handover_message){.sender = 3, .session = 9, .size = mine.size},
                        mine.fd, true, &theirs));
    ck_assert_uint_eq(current_memory()->session, 9);
    ck_assert_uint_eq(server.rank, 3);
    ck_assert(((const float *)theirs.base)[7] == 2.5f);
    seen = worker_memory_at(current_memory(), 5 * sizeof(float), 1);
    ck_assert(seen && *seen == 1.5f);
    ((float *)mine.base)[5] = 3.5f; /* shared, not copied */
    ck_assert(*seen == 3.5f);
    shared_memory_release(&mine);
    ck_assert(*seen == 3.5f); /* the mapping outlives the worker's */
    shared_memory_release(&theirs);
    close_server();
}
END_TEST

START_TEST(offsets_out_of_range_are_refused)
{
    struct shared_memory mine = SHARED_MEMORY_NONE, theirs = SHARED_MEMORY_NONE;
    size_t count = BYTES / sizeof(float);

    open_server();
    assert_ok(shared_memory_open(BYTES, "test-worker", &mine, &err));
    assert_ok(hand_over((struct handover_message){.size = mine.size}, mine.fd, true, &theirs));
    ck_assert_ptr_nonnull(worker_memory_at(current_memory(), 0, count));
    ck_assert_ptr_nonnull(worker_memory_at(current_memory(), BYTES - 4, 1));
    ck_assert_ptr_null(worker_memory_at(current_memory(), 0, count + 1));
    ck_assert_ptr_null(worker_memory_at(current_memory(), 4, count));
    ck_assert_ptr_null(worker_memory_at(current_memory(), 2, 1));
    ck_assert_ptr_null(worker_memory_at(current_memory(), BYTES, 1));
    ck_assert_ptr_null(worker_memory_at(current_memory(), UINT64_MAX - 3, 1));
    ck_assert_ptr_null(worker_memory_at(current_memory(), 8, SIZE_MAX / 4));
    shared_memory_release(&mine);
    shared_memory_release(&theirs);
    close_server();
}
END_TEST

START_TEST(unauthenticated_workers_are_refused)
{
    struct shared_memory mine = SHARED_MEMORY_NONE, theirs = SHARED_MEMORY_NONE;
    struct handover_message message;
    int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    open_server();
    assert_ok(shared_memory_open(BYTES, "test-worker", &mine, &err));
    message = (struct handover_message){.size = mine.size};
    ck_assert_int_eq(hand_over(message, mine.fd, false, &theirs), STATUS_PEER_LOST); /* no token */
    ck_assert_int_eq(hand_over(message, -1, true, &theirs), STATUS_PEER_LOST);       /* no memory */
    ck_assert_int_eq(ftruncate(plain, (off_t)BYTES), 0);
    ck_assert_int_eq(hand_over(message, plain, true, &theirs),
                     STATUS_PEER_LOST); /* it could shrink */
    message.size = 2 * BYTES;
    ck_assert_int_eq(hand_over(message, mine.fd, true, &theirs),
                     STATUS_PEER_LOST); /* it is smaller */
    ck_assert_ptr_null(current_memory());
    set_refusing(true);
    message.size = BYTES;
    ck_assert_int_eq(hand_over(message, mine.fd, true, &theirs), STATUS_PEER_LOST);
    set_refusing(false);
    assert_ok(hand_over(message, mine.fd, true, &theirs));
    (void)close(plain);
    shared_memory_release(&mine);
    shared_memory_release(&theirs);
    close_server();
}
END_TEST

/* A worker that connects and sends nothing delays the next one for a limited time. */
START_TEST(a_silent_worker_does_not_block_the_listener)
{
    struct shared_memory mine = SHARED_MEMORY_NONE, theirs = SHARED_MEMORY_NONE;
    unsigned char token[HANDOVER_TOKEN_BYTES];
    int silent;

    open_server();
    silent = connect_to_listener(token);
    assert_ok(shared_memory_open(BYTES, "test-worker", &mine, &err));
    assert_ok(hand_over((struct handover_message){.size = mine.size}, mine.fd, true, &theirs));
    (void)close(silent);
    silent = connect_to_listener(token); /* closing has a limited delay, too */
    close_server();
    (void)close(silent);
    shared_memory_release(&mine);
    shared_memory_release(&theirs);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("worker_memory", 60, TEST(both_processes_share_memory),
                       TEST(offsets_out_of_range_are_refused),
                       TEST(unauthenticated_workers_are_refused),
                       TEST(a_silent_worker_does_not_block_the_listener));
}
