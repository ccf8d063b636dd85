/*
 * Rolling hashes of a group's collectives.  Entries are sequence locks of one writer: a reader that
 * finds the same sequence number before and after has read what belongs to it, because no number
 * comes twice.
 */
#include "common/collective/trail.h"

/* splitmix64's finaliser (Steele, Lea and Flood 2014): every bit reaches every other. */
static uint64_t mix_hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t pack_kind(const struct signature *s)
{
    return (uint64_t)s->call | (uint64_t)s->dtype << 8 | (uint64_t)s->op << 16 |
           (uint64_t)s->order << 24 | (uint64_t)s->root << 32;
}

static void unpack_kind(uint64_t kind, struct signature *ret)
{
    ret->call = (enum collective_call)(kind & 0xff);
    ret->dtype = (enum dtype)(kind >> 8 & 0xff);
    ret->op = (enum reduce_op)(kind >> 16 & 0xff);
    ret->order = (enum reduce_order)(kind >> 24 & 0xff);
    ret->root = (uint32_t)(kind >> 32);
}

/* How often 2 divides it, up to the last level. */
static unsigned level_of(uint64_t sequence)
{
    unsigned level = (unsigned)__builtin_ctzll(sequence);

    return level < TRAIL_LEVELS ? level : TRAIL_LEVELS - 1;
}

/* Position in its level.  Numbers of one level are 2^(level + 1) apart; of the last one, 2^level.
 */
static size_t checkpoint_index(uint64_t sequence, unsigned level)
{
    return sequence >> (level < TRAIL_LEVELS - 1 ? level + 1 : level) & (TRAIL_CHECKPOINTS - 1);
}

_Static_assert((TRAIL_CHECKPOINTS & (TRAIL_CHECKPOINTS - 1)) == 0, "a mask chooses the checkpoint");

void trail_add(struct trail *t, const struct signature *s)
{
    struct trail_entry *e = &t->entries[s->sequence % TRAIL_LENGTH];
    const struct trail_entry *last = &t->entries[(s->sequence - 1) % TRAIL_LENGTH];
    unsigned level = level_of(s->sequence);
    struct trail_checkpoint *m = &t->checkpoints[level][checkpoint_index(s->sequence, level)];
    uint64_t hash =
        mix_hash(atomic_load_explicit(&last->hash, memory_order_relaxed) ^ pack_kind(s));

    hash = mix_hash(hash ^ s->count);
    atomic_store_explicit(&e->sequence, 0, memory_order_relaxed);
    atomic_store_explicit(&e->hash, hash, memory_order_release); /* none before that 0 */
    atomic_store_explicit(&e->kind, pack_kind(s), memory_order_release);
    atomic_store_explicit(&e->count, s->count, memory_order_release);
    atomic_store_explicit(&e->sequence, s->sequence, memory_order_release);
    atomic_store_explicit(&m->sequence, 0, memory_order_relaxed);
    atomic_store_explicit(&m->hash, hash, memory_order_release);
    atomic_store_explicit(&m->sequence, s->sequence, memory_order_release);
    atomic_store_explicit(&t->newest, s->sequence, memory_order_release);
}

uint64_t trail_newest(const struct trail *t)
{
    return atomic_load_explicit(&t->newest, memory_order_acquire);
}

uint64_t trail_oldest(const struct trail *t)
{
    uint64_t newest = trail_newest(t);

    return newest > TRAIL_LENGTH ? newest - TRAIL_LENGTH + 1 : 1;
}

bool trail_find(const struct trail *t, uint64_t sequence, struct signature *ret, uint64_t *ret_hash)
{
    const struct trail_entry *e = &t->entries[sequence % TRAIL_LENGTH];
    uint64_t hash;
    uint64_t kind;
    uint64_t count;

    if (sequence == 0 || atomic_load_explicit(&e->sequence, memory_order_acquire) != sequence)
        return false;
    hash = atomic_load_explicit(&e->hash, memory_order_acquire);
    kind = atomic_load_explicit(&e->kind, memory_order_acquire);
    count = atomic_load_explicit(&e->count, memory_order_acquire);
    if (atomic_load_explicit(&e->sequence, memory_order_relaxed) != sequence)
        return false;
    *ret = (struct signature){.sequence = sequence, .count = count};
    unpack_kind(kind, ret);
    *ret_hash = hash;
    return true;
}

bool trail_hash(const struct trail *t, uint64_t sequence, uint64_t *ret_hash)
{
    struct signature unused;
    const struct trail_checkpoint *m;
    uint64_t hash;
    unsigned level;

    if (sequence == 0) {
        *ret_hash = 0;
        return true;
    }
    if (trail_find(t, sequence, &unused, ret_hash))
        return true;
    level = level_of(sequence);
    m = &t->checkpoints[level][checkpoint_index(sequence, level)];
    if (atomic_load_explicit(&m->sequence, memory_order_acquire) != sequence)
        return false;
    hash = atomic_load_explicit(&m->hash, memory_order_acquire);
    if (atomic_load_explicit(&m->sequence, memory_order_relaxed) != sequence)
        return false;
    *ret_hash = hash;
    return true;
}

uint64_t trail_checkpoint_sequence(const struct trail *t, uint64_t before)
{
    uint64_t newest = trail_newest(t);
    uint64_t spacing = 1;

    if (newest - before < TRAIL_LENGTH / 4)
        return newest;
    while (2 * spacing <= newest - before)
        spacing *= 2;
    return newest / spacing * spacing;
}
