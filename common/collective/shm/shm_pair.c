/*
 * send and recv: a channel per ordered pair of ranks, in the sender's arena, with a few fragments
 * underway.  A message is a row of fragments, the first with the signature; a short one is complete
 * for the sender when it lies in the channel.  A long one in a registered region is a single
 * fragment that says where, and the sender waits until it has been read.
 *
 * Messages of a pair go one after the other: a work whose turn has not come stays pending.
 */
#include "common/base/clock.h"
#include "common/collective/shm/shm.h"

#include <string.h>

struct pair_work {
    bool begun;
    bool referred; /* the message is one fragment with a location; else pieces */
    uint32_t last; /* sender, referred: the fragment that must be read */
    size_t moved;  /* bytes */
};
_Static_assert(sizeof(struct pair_work) <= COLLECTIVE_WORK_STATE, "fits into a work");

static void add_progress(struct collective_work *work, size_t bytes)
{
    struct pair_work *w = (void *)work->backend;

    w->moved += bytes;
    collective_progress(work, w->moved);
}

static size_t next_piece(const struct collective_work *work, size_t total)
{
    const struct pair_work *w = (const void *)work->backend;

    return total - w->moved < SHM_FRAGMENT_BYTES ? total - w->moved : SHM_FRAGMENT_BYTES;
}

/* ---- sending ---- */

/* A free fragment of the channel to `peer`. */
static enum run_outcome await_space(struct shm_group *g, struct collective_work *work,
                                    struct shm_channel *channel, int64_t until_ns,
                                    struct error *err)
{
    unsigned peer = work->args.root;

    return shm_wait(g, work, peer, &channel->read, g->peers[peer].written + 1 - SHM_FRAGMENTS,
                    until_ns, err);
}

/* Write the fragment behind the newest one. */
static void write_fragment(struct shm_group *g, struct collective_work *work,
                           struct shm_channel *channel, size_t total)
{
    const struct shared_memory *arena = &g->peers[g->base.rank].arena;
    struct pair_work *w = (void *)work->backend;
    unsigned peer = work->args.root;
    uint32_t number = g->peers[peer].written;
    struct shm_fragment *fragment = &channel->fragments[number % SHM_FRAGMENTS];
    size_t piece = next_piece(work, total);

    if (!w->begun) {
        w->begun = true;
        signature_encode(&work->signature, fragment->signature);
        fragment->location = (struct shm_location){.region = SHM_NO_REGION};
        if (total > SHM_FRAGMENT_BYTES)
            fragment->location = shm_find_location(g, work->args.input, total);
        w->referred = fragment->location.region != SHM_NO_REGION;
    }
    if (w->referred)
        piece = total;
    else if (piece > 0)
        memcpy(shm_fragment_bytes(arena, peer, number),
               (const unsigned char *)work->args.input + w->moved, piece);
    g->peers[peer].written = w->last = number + 1;
    shm_flag_raise(arena, &channel->written, number + 1);
    add_progress(work, piece);
}

static enum run_outcome run_send(struct shm_group *g, struct collective_work *work,
                                 int64_t until_ns, struct error *err)
{
    struct pair_work *w = (void *)work->backend;
    unsigned peer = work->args.root;
    struct shm_channel *channel = shm_channel_of(&g->peers[g->base.rank].arena, peer);
    size_t total = collective_input_bytes(&g->base, &work->args);

    while (!w->begun || w->moved < total) {
        enum run_outcome outcome = await_space(g, work, channel, until_ns, err);

        if (outcome != RUN_DONE)
            return outcome;
        write_fragment(g, work, channel, total);
    }
    if (!w->referred)
        return RUN_DONE;
    return shm_wait(g, work, peer, &channel->read, w->last, until_ns, err);
}

/* ---- receiving ---- */

/* A send to this rank of what this rank receives; the group's own sequence counts per pair. */
static enum run_outcome check_fragment(struct shm_group *g, const struct collective_work *work,
                                       const struct shm_fragment *fragment, struct error *err)
{
    struct signature wanted = work->signature;
    struct signature theirs;

    wanted.call = COLLECTIVE_SEND;
    wanted.root = g->base.rank;
    if (!signature_decode(fragment->signature, &theirs)) {
        (void)error_set(err, STATUS_PROTOCOL, "rank %u sent no signature",
                        g->base.members[work->args.root]);
        return RUN_FAILED;
    }
    if (!signature_equal(&wanted, &theirs))
        return collective_mismatch(&g->base, work, work->args.root, &theirs, err);
    return RUN_DONE;
}

/* The oldest fragment that is there. */
static enum run_outcome read_fragment(struct shm_group *g, struct collective_work *work,
                                      const struct shm_channel *channel, size_t total,
                                      struct error *err)
{
    struct pair_work *w = (void *)work->backend;
    unsigned peer = work->args.root;
    uint32_t number = g->peers[peer].read;
    const struct shm_fragment *fragment = &channel->fragments[number % SHM_FRAGMENTS];
    const unsigned char *from = shm_fragment_bytes(&g->peers[peer].arena, g->base.rank, number);
    size_t piece = next_piece(work, total);

    if (!w->begun) {
        enum run_outcome outcome = check_fragment(g, work, fragment, err);

        if (outcome != RUN_DONE)
            return outcome;
        w->begun = true;
        if (fragment->location.region != SHM_NO_REGION) {
            from = shm_resolve(g, peer, fragment->location, total);
            piece = total;
        }
        if (!from) {
            (void)error_set(err, STATUS_PROTOCOL, "rank %u named bytes outside its region",
                            g->base.members[peer]);
            return RUN_FAILED;
        }
    }
    if (piece > 0)
        memcpy((unsigned char *)work->args.output + w->moved, from, piece);
    add_progress(work, piece);
    return RUN_DONE;
}

static enum run_outcome run_recv(struct shm_group *g, struct collective_work *work,
                                 int64_t until_ns, struct error *err)
{
    struct pair_work *w = (void *)work->backend;
    unsigned peer = work->args.root;
    struct shm_channel *channel = shm_channel_of(&g->peers[peer].arena, g->base.rank);
    size_t total = collective_output_bytes(&g->base, &work->args);

    while (!w->begun || w->moved < total) {
        uint32_t next = g->peers[peer].read + 1;
        enum run_outcome outcome = shm_wait(g, work, peer, &channel->written, next, until_ns, err);

        if (outcome == RUN_DONE)
            outcome = read_fragment(g, work, channel, total, err);
        if (outcome != RUN_DONE)
            return outcome;
        g->peers[peer].read = next;
        shm_flag_raise(&g->peers[g->base.rank].arena, &channel->read, next);
    }
    return RUN_DONE;
}

enum run_outcome shm_run_pair(struct shm_group *g, struct collective_work *work, int64_t until_ns,
                              struct error *err)
{
    bool sends = work->args.call == COLLECTIVE_SEND;
    struct shm_peer *peer = &g->peers[work->args.root];
    uint64_t *done = sends ? &peer->sent : &peer->received;
    uint64_t bytes = work->args.count * dtype_size(work->args.dtype);
    enum run_outcome outcome;

    if (work->signature.sequence != *done + 1)
        return RUN_PENDING;
    work->total_bytes = bytes;
    outcome = sends ? run_send(g, work, until_ns, err) : run_recv(g, work, until_ns, err);
    if (outcome != RUN_DONE)
        return outcome;
    ++*done;
    g->base.stats.operations++;
    if (sends)
        g->base.stats.tx_payload_bytes += bytes;
    else
        g->base.stats.rx_payload_bytes += bytes;
    return RUN_DONE;
}
