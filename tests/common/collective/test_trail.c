/*
 * Trails of operations: against a model that keeps everything, under a writer that runs, and over
 * the mesh's heartbeats.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/collective/mesh/mesh.h"
#include "common/collective/trail.h"
#include "common/collective/verdict.h"
#include "common/store/store.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS      4u
#define TIMEOUT_MS 20000

static struct signature operation(uint64_t sequence, uint64_t count)
{
    return (struct signature){.call = COLLECTIVE_ALL_REDUCE,
                              .group = 9,
                              .generation = 1,
                              .sequence = sequence,
                              .count = count};
}

static struct trail *new_trail(void)
{
    struct trail *t = calloc(1, sizeof(*t));

    ck_assert_ptr_nonnull(t);
    return t;
}

/* Whatever a signature is made of changes the hash there and ever after. */
START_TEST(every_field_counts)
{
    struct signature others[6];

    for (size_t i = 0; i < 6; i++)
        others[i] = operation(5, 100);
    others[0].call = COLLECTIVE_BROADCAST;
    others[1].dtype = DTYPE_INT32;
    others[2].op = REDUCE_MAX;
    others[3].order = REDUCE_REPRODUCIBLE;
    others[4].root = 1;
    others[5].count = 101;
    for (size_t i = 0; i < 6; i++) {
        struct trail *a = new_trail();
        struct trail *b = new_trail();

        for (uint64_t n = 1; n <= 3000; n++) {
            struct signature s = operation(n, 100);
            uint64_t hash_a;
            uint64_t hash_b;

            trail_add(a, &s);
            trail_add(b, n == 5 ? &others[i] : &s);
            ck_assert(trail_hash(a, n, &hash_a) && trail_hash(b, n, &hash_b));
            ck_assert_msg((hash_a == hash_b) == (n < 5), "field %zu at #%zu", i, (size_t)n);
        }
        free(a);
        free(b);
    }
}
END_TEST

/* What is found is what was added; the last ones are, with their operations. */
START_TEST(the_last_ones_are_kept)
{
    struct trail *t = new_trail();
    uint64_t *hashes = calloc(5001, sizeof(*hashes));
    uint64_t hash;
    struct signature s;

    ck_assert_ptr_nonnull(hashes);
    ck_assert(trail_hash(t, 0, &hash) && hash == 0);
    ck_assert(!trail_find(t, 1, &s, &hash));
    for (uint64_t n = 1; n <= 5000; n++) {
        s = operation(n, n * 3);
        trail_add(t, &s);
        ck_assert(trail_hash(t, n, &hashes[n]));
        ck_assert(!trail_hash(t, n + 1, &hash));
    }
    ck_assert_uint_eq(trail_newest(t), 5000);
    ck_assert_uint_eq(trail_oldest(t), 5000 - TRAIL_LENGTH + 1);
    for (uint64_t n = 1; n <= 5000; n++) {
        bool found = trail_find(t, n, &s, &hash);

        ck_assert(found == (n >= trail_oldest(t)));
        ck_assert(!found || (hash == hashes[n] && s.sequence == n && s.count == n * 3 &&
                             s.call == COLLECTIVE_ALL_REDUCE));
        if (trail_hash(t, n, &hash))
            ck_assert_uint_eq(hash, hashes[n]);
    }
    free(hashes);
    free(t);
}
END_TEST

/* A rank hears of a checkpoint three heartbeats late, in which it ran at any rate. */
START_TEST(landmarks_outlast_three_beats)
{
    struct trail *t = new_trail();
    uint64_t sent[4][2] = {{0}};
    uint64_t before = 0;
    uint64_t n = 0;

    for (unsigned beat = 0; beat < 60; beat++) {
        uint64_t rate = (uint64_t)1 << (unsigned)(support_random() * 18);
        uint64_t hash;

        for (unsigned k = 0; k < 4; k++) { /* the rate changes now and then only */
            uint64_t checkpoint;

            for (uint64_t i = 0; i < rate; i++) {
                struct signature s = operation(n + 1, n);

                trail_add(t, &s);
                n++;
            }
            checkpoint = trail_checkpoint_sequence(t, before);
            before = trail_newest(t);
            ck_assert(checkpoint > 0 && checkpoint <= n && trail_hash(t, checkpoint, &hash));
            sent[k][0] = checkpoint;
            sent[k][1] = hash;
        }
        for (unsigned k = 0; k < 4; k++)
            ck_assert_msg(trail_hash(t, sent[k][0], &hash) && hash == sent[k][1],
                          "rate %zu: checkpoint %zu of %zu is gone", (size_t)rate,
                          (size_t)sent[k][0], (size_t)n);
    }
    free(t);
}
END_TEST

struct busy_trail {
    struct trail *trail;
    atomic_bool stop;
};

static void *add_many(void *argument)
{
    struct busy_trail *b = argument;

    for (uint64_t n = 1; !atomic_load(&b->stop); n++) {
        struct signature s = operation(n, n * 7);

        trail_add(b->trail, &s);
    }
    return NULL;
}

/* Beside the writer, what a reader finds is whole. */
START_TEST(readers_find_whole_entries)
{
    struct busy_trail b = {.trail = new_trail()};
    pthread_t writer;
    uint64_t found = 0;

    ck_assert_int_eq(pthread_create(&writer, NULL, add_many, &b), 0);
    while (found < 20000) {
        uint64_t newest = trail_newest(b.trail);
        uint64_t back = (uint64_t)(support_random() * (TRAIL_LENGTH + 10));
        struct signature s;
        uint64_t hash;

        if (newest <= back || !trail_find(b.trail, newest - back, &s, &hash))
            continue;
        ck_assert(s.sequence == newest - back && s.count == s.sequence * 7);
        found++;
    }
    atomic_store(&b.stop, true);
    (void)pthread_join(writer, NULL);
    free(b.trail);
}
END_TEST

/* The minority is odd; of two, the later one; who keeps nothing has no voice. */
START_TEST(the_odd_one_is_in_the_minority)
{
    struct mesh_view views[RANKS] = {{.replied = true}};
    unsigned culprit = RANKS;
    unsigned other = RANKS;

    ck_assert(!verdict_odd_trail(views, RANKS, &culprit, &other));
    for (unsigned r = 0; r < RANKS; r++)
        views[r].trail = (struct mesh_trail){.kept = true, .hash = 5};
    ck_assert(!verdict_odd_trail(views, RANKS, &culprit, &other));
    for (unsigned odd = 0; odd < RANKS; odd++) {
        views[odd].trail.hash = 6;
        ck_assert(verdict_odd_trail(views, RANKS, &culprit, &other));
        ck_assert(culprit == odd && other != odd);
        views[odd].trail.hash = 5;
    }
    views[0].trail.hash = views[1].trail.hash = 6; /* two and two */
    ck_assert(verdict_odd_trail(views, RANKS, &culprit, &other));
    ck_assert(culprit == 2 && other == 0);
    views[0].trail.kept = false;
    ck_assert(verdict_odd_trail(views, RANKS, &culprit, &other));
    ck_assert(culprit == 1 && other == 2);
}
END_TEST

/* ---- over the mesh ---- */

struct mesh_rank {
    pthread_t thread;
    unsigned rank;
};

static const unsigned everyone[RANKS] = {0, 1, 2, 3};

static struct mesh *open_mesh(unsigned rank)
{
    struct error err = {0};
    struct store *store = world_store(rank, RANKS, &err);
    struct mesh_config config = {.rank = rank,
                                 .world_size = RANKS,
                                 .store = store,
                                 .name = "trails",
                                 .timeout_ms = TIMEOUT_MS};
    struct mesh *m = NULL;

    ck_assert_msg(store != NULL, "%s", err.text);
    assert_ok(mesh_open(&config, &m, &err));
    store_close(store, 0);
    return m;
}

static void exchange_tag(struct mesh *m, const char *tag)
{
    struct error err = {0};
    unsigned char all[RANKS];

    assert_ok(mesh_exchange(m, everyone, RANKS, tag, "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
}

static const struct mesh_alarm *add_watched_group(struct mesh *m, uint64_t group, size_t *ret_index)
{
    struct error err = {0};
    const struct mesh_alarm *alarm;

    assert_ok(mesh_add_group(m, group, ret_index, &err));
    alarm = mesh_watch(m, *ret_index, 1, everyone, RANKS);
    ck_assert_ptr_nonnull(alarm);
    assert_ok(mesh_keep_trail(m, *ret_index, &err));
    return alarm;
}

/* Two groups share the mesh; in the second, rank 2's seventh operation is another one. */
static void *run_mesh_rank(void *argument)
{
    unsigned rank = *(const unsigned *)argument;
    struct mesh *m = open_mesh(rank);
    struct mesh_view views[RANKS];
    const struct mesh_alarm *calm;
    const struct mesh_alarm *alarm;
    struct pollfd raised = {.events = POLLIN};
    size_t group_indices[2];
    unsigned other;
    uint64_t sequence;

    calm = add_watched_group(m, 1, &group_indices[0]);
    alarm = add_watched_group(m, 2, &group_indices[1]);
    exchange_tag(m, "joined");
    for (uint64_t n = 1; n <= 10; n++) {
        struct signature s = operation(n, 100);

        mesh_note(m, group_indices[0], &s);
        s.op = rank == 2 && n == 7 ? REDUCE_MAX : REDUCE_SUM;
        mesh_note(m, group_indices[1], &s);
    }
    raised.fd = alarm->fd;
    ck_assert_int_eq(poll(&raised, 1, TIMEOUT_MS), 1);
    ck_assert(mesh_find_difference(m, group_indices[1], &other, &sequence));
    ck_assert(rank == 2 ? other != 2 : other == 2);
    ck_assert(sequence >= 7 && sequence <= 10);
    for (uint64_t n = 6; n <= 7; n++) {
        mesh_ask_trail(m, everyone, RANKS, 2, 1, n, clock_deadline_ns(TIMEOUT_MS), views);
        for (unsigned r = 0; r < RANKS; r++) {
            ck_assert(views[r].replied && views[r].trail.kept && views[r].trail.oldest == 1);
            ck_assert(views[r].trail.newest == 10 && views[r].trail.signature.count == 100);
            ck_assert((views[r].trail.hash == views[0].trail.hash) == (r != 2 || n < 7));
            ck_assert((views[r].trail.signature.op == REDUCE_MAX) == (r == 2 && n == 7));
        }
    }
    mesh_ask_trail(m, everyone, RANKS, 2, 2, 7, clock_deadline_ns(TIMEOUT_MS), views);
    ck_assert(views[1].replied && !views[1].trail.kept); /* no such generation */
    ck_assert(!mesh_find_difference(m, group_indices[0], &other, &sequence));
    ck_assert(!atomic_load(&calm->raised));
    exchange_tag(m, "seen");
    mesh_remove_group(m, group_indices[0]);
    mesh_remove_group(m, group_indices[1]);
    exchange_tag(m, "left");
    mesh_ask_trail(m, everyone, RANKS, 1, 1, 10, clock_deadline_ns(TIMEOUT_MS), views);
    for (unsigned r = 0; r < RANKS; r++) {
        uint64_t last = 0;
        uint64_t hash = 0;

        ck_assert(views[r].trail.kept && views[r].trail.hash == views[0].trail.hash);
        if (r != rank)
            ck_assert(mesh_left(m, r, 1, 1, &last, &hash));
    }
    exchange_tag(m, "asked");
    mesh_close(m);
    return NULL;
}

START_TEST(heartbeats_find_the_difference)
{
    struct mesh_rank ranks[RANKS];

    (void)support_folder();
    for (unsigned r = 0; r < RANKS; r++) {
        ranks[r].rank = r;
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, run_mesh_rank, &ranks[r].rank), 0);
    }
    for (unsigned r = 0; r < RANKS; r++)
        (void)pthread_join(ranks[r].thread, NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("trail", 60, TEST(every_field_counts), TEST(the_last_ones_are_kept),
                       TEST(landmarks_outlast_three_beats), TEST(readers_find_whole_entries),
                       TEST(the_odd_one_is_in_the_minority), TEST(heartbeats_find_the_difference));
}
