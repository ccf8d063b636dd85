/*
 * The bell is set awake while the training thread polls: servers then send without a system call.
 * The reader's thread sleeps meanwhile, or waits for the lock.
 *
 * Locking: the reader's lock, then sync_ps.lock; a link's channel is replaced under both, so that
 * one is enough to use it.
 */
#include "worker/sync/ps_channel.h"

#include "common/base/clock.h"
#include "common/base/handover.h"
#include "common/base/thread.h"
#include "worker/sync/ps.h"

#include <string.h>

#define BATCH    16         /* replies of one channel before the next channel's turn */
#define SLEEP_NS 200000000L /* a server that garbles the bell costs at most this */

/* ------------------------------------------------------------------ receiving */

/* One reply.  Reader's lock held. */
static enum status take_reply(struct sync_ps *s, struct ps_link *l, const uint8_t *bytes,
                              size_t size, struct error *err)
{
    struct chunk_header header;
    enum status status = wire_unpack_chunk(bytes, size, &header, err);

    if (status == STATUS_OK && !(header.flags & CHUNK_BY_REFERENCE))
        return error_set(err, STATUS_PROTOCOL, "it sent a chunk of kind %d without its payload",
                         (int)header.kind);
    return status == STATUS_OK ? ps_take_chunk(s, l, &header, NULL, err) : status;
}

/* False: nothing has come.  Reader's lock held. */
static bool receive_from(struct sync_ps *s, struct ps_link *l)
{
    uint8_t bytes[CHANNEL_MESSAGE_MAX];
    struct error err = {0};
    unsigned count = 0;

    while (l->channel && !l->channel_failed && count < BATCH) {
        size_t size = 0;
        enum status status = channel_receive(l->channel, bytes, &size, &err);

        if (status == STATUS_OK && size == 0)
            break;
        if (status == STATUS_OK)
            status = take_reply(s, l, bytes, size, &err);
        if (status != STATUS_OK) {
            l->channel_failed = true;
            ps_link_reject(l, 0, &err);
        }
        count++;
    }
    return count > 0;
}

bool ps_channel_receive(struct sync_ps *s)
{
    bool found = false;

    for (unsigned k = 0; k < s->link_count; k++)
        found = receive_from(s, &s->links[k]) || found;
    return found;
}

void ps_channel_expect_wait(struct sync_ps *s)
{
    if (s->reader.bell.base)
        channel_bell_set_asleep(&s->reader.bell, false);
}

bool ps_channel_begin(struct sync_ps *s)
{
    if (!s->reader.bell.base || pthread_mutex_trylock(&s->reader.lock) != 0)
        return false;
    channel_bell_set_asleep(&s->reader.bell, false);
    return true;
}

void ps_channel_end(struct sync_ps *s)
{
    channel_bell_set_asleep(&s->reader.bell, true);
    while (ps_channel_receive(s)) /* what came before servers could see the bell asleep */
        ;
    (void)pthread_mutex_unlock(&s->reader.lock);
}

static void *run_reader(void *user)
{
    struct sync_ps *s = user;

    while (!atomic_load(&s->reader.stop)) {
        (void)pthread_mutex_lock(&s->reader.lock);
        ps_channel_end(s);
        channel_bell_sleep(&s->reader.bell, SLEEP_NS);
    }
    return NULL;
}

/* ------------------------------------------------------------------ opening and closing */

void ps_channel_init(struct sync_ps *s)
{
    s->reader.bell = SHARED_MEMORY_NONE;
    (void)pthread_mutex_init(&s->reader.lock, NULL);
}

static enum status start_reader(struct sync_ps *s, struct error *err)
{
    struct shared_memory bell = SHARED_MEMORY_NONE;
    int failed;
    enum status status = channel_bell_open(&bell, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    s->reader.bell = bell;
    (void)pthread_mutex_unlock(&s->lock);
    failed = thread_start(&s->reader.thread, run_reader, s);
    if (!failed)
        return STATUS_OK;
    (void)pthread_mutex_lock(&s->lock);
    s->reader.bell = SHARED_MEMORY_NONE;
    (void)pthread_mutex_unlock(&s->lock);
    shared_memory_release(&bell);
    return error_set_errno(err, failed, "cannot start the thread that receives replies");
}

/* Hand over one piece of memory. */
static enum status send_memory(const struct sync_ps *s, int fd, const unsigned char *token,
                               int memory_fd, size_t size, int64_t deadline_ns, struct error *err)
{
    struct handover_message message = {
        .sender = s->rank, .has_memory = 1, .size = size, .session = s->terms.session};

    memcpy(message.token, token, sizeof(message.token));
    return handover_send(fd, &message, memory_fd, deadline_ns, err);
}

static enum status exchange_bells(struct sync_ps *s, struct channel *channel, int fd,
                                  const unsigned char *token, int64_t deadline_ns,
                                  struct error *err)
{
    struct handover_message message;
    struct shared_memory bell = SHARED_MEMORY_NONE;
    int channel_fd, bell_fd = -1;
    size_t size;
    enum status status;

    channel_handover(channel, &channel_fd, &size);
    status = send_memory(s, fd, token, channel_fd, size, deadline_ns, err);
    if (status == STATUS_OK)
        status =
            send_memory(s, fd, token, s->reader.bell.fd, s->reader.bell.size, deadline_ns, err);
    if (status == STATUS_OK)
        status = handover_receive(fd, token, deadline_ns, &message, &bell_fd, err);
    if (status == STATUS_OK && bell_fd < 0)
        status = error_set(err, STATUS_PROTOCOL, "the server's message has no bell");
    if (status == STATUS_OK)
        status = channel_bell_map(bell_fd, &bell, err);
    if (status == STATUS_OK)
        channel_set_bell(channel, bell);
    return status;
}

enum status ps_channel_exchange(struct sync_ps *s, struct ps_link *l, int fd,
                                const unsigned char *token, int64_t deadline_ns, struct error *err)
{
    const uint32_t *held;
    struct channel *channel = NULL;
    enum status status = s->reader.bell.base ? STATUS_OK : start_reader(s, err);

    if (status == STATUS_OK) /* a request of this round and its repetition */
        status = channel_create(2 * shard_map_held(&s->map, l->index, &held), &channel, err);
    if (status == STATUS_OK)
        status = exchange_bells(s, channel, fd, token, deadline_ns, err);
    if (status != STATUS_OK) {
        channel_unref(channel);
        return status;
    }
    (void)pthread_mutex_lock(&s->reader.lock);
    (void)pthread_mutex_lock(&s->lock);
    l->channel = channel;
    l->channel_failed = false;
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_mutex_unlock(&s->reader.lock);
    return STATUS_OK;
}

void ps_channel_drop(struct sync_ps *s, struct ps_link *l)
{
    struct channel *channel;

    (void)pthread_mutex_lock(&s->reader.lock);
    (void)pthread_mutex_lock(&s->lock);
    channel = l->channel;
    l->channel = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_mutex_unlock(&s->reader.lock);
    channel_unref(channel);
}

void ps_channel_close(struct sync_ps *s)
{
    if (s->reader.bell.base) {
        atomic_store(&s->reader.stop, true);
        channel_bell_set_asleep(&s->reader.bell, true); /* after a failure it may be set awake */
        channel_bell_ring(&s->reader.bell);
        (void)pthread_join(s->reader.thread, NULL);
    }
    shared_memory_release(&s->reader.bell);
    (void)pthread_mutex_destroy(&s->reader.lock);
}

bool ps_channel_send(struct channel *channel, const struct chunk_header *header)
{
    uint8_t head[WIRE_CHUNK_HEAD_MAX];

    if (!channel || (header->kind != CHUNK_PUSH && header->kind != CHUNK_FINAL) ||
        !(header->flags & CHUNK_BY_REFERENCE))
        return false;
    return channel_send(channel, head, wire_pack_chunk(header, head));
}
