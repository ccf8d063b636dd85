/*
 * The memory is two queues of equal size; the side that created it sends on the first one.  A queue
 * has two counters that only grow: messages written and messages read.  Each is stored by one side,
 * which keeps its own copy and never reads the shared one back.
 *
 * A sender publishes `written` and then reads the bell; a receiver sets the bell asleep and then
 * reads `written`.  Both orders are sequentially consistent, so one of the two sees the other.
 */
#include "common/base/channel.h"

#include "common/base/futex.h"
#include "common/base/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS_MIN 64u

struct slot {
    atomic_uint size;
    unsigned char bytes[CHANNEL_MESSAGE_MAX];
};

struct queue {
    _Alignas(64) atomic_uint written;
    _Alignas(64) atomic_uint read;
    _Alignas(64) struct slot slots[];
};

struct channel {
    atomic_uint refs;
    struct shared_memory memory;
    size_t size; /* of both queues; memory.size is rounded up to pages */
    struct queue *out, *in;
    uint32_t slots; /* a power of two */
    uint32_t read;  /* of `in` */
    pthread_mutex_t lock;
    uint32_t written;          /* (lock) of `out` */
    struct shared_memory bell; /* of the peer; fd -1: none */
};

struct bell {
    atomic_uint asleep; /* 0 or 1 */
};

static size_t queue_bytes(uint32_t slots)
{
    return sizeof(struct queue) + slots * sizeof(struct slot);
}

/* ---- bells ---- */

static struct bell *bell_of(const struct shared_memory *bell)
{
    return (struct bell *)bell->base;
}

enum status channel_bell_open(struct shared_memory *ret_bell, struct error *err)
{
    return shared_memory_open(sizeof(struct bell), "bell", ret_bell, err);
}

enum status channel_bell_map(int fd, struct shared_memory *ret_bell, struct error *err)
{
    return shared_memory_map(fd, sizeof(struct bell), ret_bell, err);
}

void channel_bell_set_asleep(const struct shared_memory *bell, bool asleep)
{
    atomic_store(&bell_of(bell)->asleep, asleep);
}

void channel_bell_sleep(const struct shared_memory *bell, int64_t timeout_ns)
{
    futex_wait(&bell_of(bell)->asleep, 1, timeout_ns);
}

void channel_bell_ring(const struct shared_memory *bell)
{
    atomic_uint *asleep = &bell_of(bell)->asleep;

    if (atomic_load(asleep) != 0 && atomic_exchange(asleep, 0) != 0)
        futex_wake(asleep);
}

/* ---- polling ---- */

int64_t polling_until_ns(const struct polling *p, int64_t now_ns)
{
    return now_ns + (CHANNEL_POLL_NS >> p->halvings);
}

void polling_ended(struct polling *p, bool found)
{
    if (found || ++p->in_vain % 16 == 0)
        p->halvings = 0;
    else if (p->halvings < 4)
        p->halvings++;
}

/* ---- opening ---- */

/* Consumes the memory, also on failure. */
static enum status make_channel(struct shared_memory *memory, size_t size, uint32_t slots,
                                bool is_creator, struct channel **ret_channel, struct error *err)
{
    struct channel *c = NULL;
    enum status status = mem_calloc(1, sizeof(*c), "channel", &c, err);
    struct queue *queues[2];

    if (status != STATUS_OK) {
        shared_memory_release(memory);
        return status;
    }
    queues[0] = memory->base;
    queues[1] = (struct queue *)((unsigned char *)memory->base + queue_bytes(slots));
    atomic_init(&c->refs, 1);
    c->memory = *memory;
    c->size = size;
    c->out = queues[!is_creator];
    c->in = queues[is_creator];
    c->slots = slots;
    c->bell = SHARED_MEMORY_NONE;
    (void)pthread_mutex_init(&c->lock, NULL);
    *ret_channel = c;
    return STATUS_OK;
}

enum status channel_create(size_t messages, struct channel **ret_channel, struct error *err)
{
    struct shared_memory memory = SHARED_MEMORY_NONE;
    uint32_t slots = SLOTS_MIN;
    enum status status;

    while (slots < messages && slots < CHANNEL_SLOTS_MAX)
        slots *= 2;
    status = shared_memory_open(2 * queue_bytes(slots), "channel", &memory, err);
    if (status != STATUS_OK)
        return status;
    return make_channel(&memory, 2 * queue_bytes(slots), slots, true, ret_channel, err);
}

enum status channel_attach(int memory_fd, size_t size, struct channel **ret_channel,
                           struct error *err)
{
    struct shared_memory memory = SHARED_MEMORY_NONE;
    uint32_t slots = SLOTS_MIN;
    enum status status;

    while (slots < CHANNEL_SLOTS_MAX && 2 * queue_bytes(slots) < size)
        slots *= 2;
    if (2 * queue_bytes(slots) != size) {
        (void)close(memory_fd);
        return error_set(err, STATUS_PROTOCOL, "%zu bytes are no channel", size);
    }
    status = shared_memory_map(memory_fd, size, &memory, err);
    return status == STATUS_OK ? make_channel(&memory, size, slots, false, ret_channel, err)
                               : status;
}

void channel_handover(const struct channel *c, int *ret_fd, size_t *ret_size)
{
    *ret_fd = c->memory.fd;
    *ret_size = c->size;
}

void channel_set_bell(struct channel *c, struct shared_memory bell)
{
    c->bell = bell;
}

struct channel *channel_ref(struct channel *c)
{
    (void)atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void channel_unref(struct channel *c)
{
    if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    shared_memory_release(&c->memory);
    shared_memory_release(&c->bell);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- messages ---- */

bool channel_send(struct channel *c, const void *bytes, size_t size)
{
    struct queue *q = c->out;
    bool fits;

    if (size == 0 || size > CHANNEL_MESSAGE_MAX)
        return false;
    (void)pthread_mutex_lock(&c->lock);
    fits = c->written - atomic_load_explicit(&q->read, memory_order_acquire) < c->slots;
    if (fits) {
        struct slot *slot = &q->slots[c->written % c->slots];

        memcpy(slot->bytes, bytes, size);
        atomic_store_explicit(&slot->size, (uint32_t)size, memory_order_relaxed);
        atomic_store(&q->written, ++c->written);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (fits && c->bell.base)
        channel_bell_ring(&c->bell);
    return fits;
}

bool channel_has_message(const struct channel *c)
{
    return atomic_load(&c->in->written) != c->read;
}

enum status channel_receive(struct channel *c, void *bytes, size_t *ret_size, struct error *err)
{
    struct queue *q = c->in;
    uint32_t waiting = atomic_load_explicit(&q->written, memory_order_acquire) - c->read;
    struct slot *slot = &q->slots[c->read % c->slots];
    uint32_t size;

    *ret_size = 0;
    if (waiting == 0)
        return STATUS_OK;
    size = atomic_load_explicit(&slot->size, memory_order_relaxed); /* once: it may change */
    if (waiting > c->slots || size == 0 || size > CHANNEL_MESSAGE_MAX)
        return error_set(err, STATUS_PROTOCOL,
                         "its queue is garbled: %u messages of %u, the next has %u bytes", waiting,
                         c->slots, size);
    memcpy(bytes, slot->bytes, size);
    atomic_store_explicit(&q->read, ++c->read, memory_order_release);
    *ret_size = size;
    return STATUS_OK;
}
