/*
 * The mesh alone: ranks are threads, each with a mesh of its own, or processes where one must die.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/collective/mesh/mesh.h"
#include "common/collective/mesh/mesh_internal.h"
#include "common/collective/mesh/mesh_wire.h"
#include "common/store/store.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS      4u
#define TIMEOUT_MS 20000

static const unsigned everyone[RANKS] = {0, 1, 2, 3};

static struct mesh *open_mesh(const char *name, unsigned rank, unsigned size, int64_t timeout_ms,
                              int64_t heartbeat_ms, struct error *err)
{
    struct store *store = world_store(rank, size, err);
    struct mesh_config config = {.rank = rank,
                                 .world_size = size,
                                 .store = store,
                                 .name = name,
                                 .timeout_ms = timeout_ms,
                                 .heartbeat_timeout_ms = heartbeat_ms};
    struct mesh *m = NULL;

    if (!store)
        return NULL;
    if (mesh_open(&config, &m, err) != STATUS_OK)
        m = NULL;
    store_close(store, 0);
    return m;
}

/* ---- ranks as threads ---- */

typedef void mesh_body(struct mesh *m, unsigned rank);

struct rank_thread {
    pthread_t thread;
    unsigned rank;
    const char *name;
    mesh_body *body;
};

static void *run_thread(void *argument)
{
    struct rank_thread *t = argument;
    struct error err = {0};
    struct mesh *m = open_mesh(t->name, t->rank, RANKS, TIMEOUT_MS, 0, &err);

    ck_assert_msg(m != NULL, "%s", err.text);
    t->body(m, t->rank);
    mesh_close(m);
    return NULL;
}

static void run_threads(const char *name, mesh_body *body)
{
    struct rank_thread threads[RANKS];

    (void)support_folder();
    for (unsigned r = 0; r < RANKS; r++) {
        threads[r] = (struct rank_thread){.rank = r, .name = name, .body = body};
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL, run_thread, &threads[r]), 0);
    }
    for (unsigned r = 0; r < RANKS; r++)
        (void)pthread_join(threads[r].thread, NULL);
}

static void exchange_body(struct mesh *m, unsigned rank)
{
    static const unsigned pair[] = {1, 3};
    unsigned char mine[MESH_EXCHANGE_MAX];
    unsigned char all[RANKS * MESH_EXCHANGE_MAX];
    struct error err = {0};

    for (unsigned n = 0; n < 200; n++) {
        size_t size = (size_t)n * 7 % (MESH_EXCHANGE_MAX + 1);
        char tag[32];

        (void)snprintf(tag, sizeof(tag), "round %u", n);
        memset(mine, (int)(rank + n), sizeof(mine));
        assert_ok(mesh_exchange(m, everyone, RANKS, tag, mine, size, all, NULL,
                                clock_deadline_ns(TIMEOUT_MS), &err));
        for (unsigned r = 0; r < RANKS && size > 0; r++)
            ck_assert(all[r * size] == (unsigned char)(r + n) &&
                      all[r * size + size - 1] == (unsigned char)(r + n));
        if (rank == 1 || rank == 3) {
            assert_ok(mesh_exchange(m, pair, 2, "pair", &rank, sizeof(rank), all, NULL,
                                    clock_deadline_ns(TIMEOUT_MS), &err));
            ck_assert(memcmp(all + (rank == 1 ? 0 : sizeof(rank)), &rank, sizeof(rank)) == 0);
        }
    }
}

START_TEST(exchanges_of_all_sizes)
{
    run_threads("exchange", exchange_body);
}
END_TEST

static void missing_body(struct mesh *m, unsigned rank)
{
    struct error err = {0};
    unsigned char all[RANKS];

    /* The three begin together, so that each of them is there in time. */
    assert_ok(mesh_exchange(m, everyone, RANKS, "begin", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
    if (rank != 2)
        assert_fails(mesh_exchange(m, everyone, RANKS, "late", "x", 1, all, NULL,
                                   clock_deadline_ns(5000), &err),
                     STATUS_TIMEOUT, "rank 2 did not come to 'late'");
    /* Rank 2 stays until the others have seen that it does not come. */
    assert_ok(mesh_exchange(m, everyone, RANKS, "end", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
}

START_TEST(a_rank_that_does_not_come_is_named)
{
    run_threads("missing", missing_body);
}
END_TEST

static void ask_body(struct mesh *m, unsigned rank)
{
    struct mesh_status status = {.group = 77,
                                 .phase = rank % 2 == 0 ? MESH_RUNNING : MESH_IDLE,
                                 .signature = {.call = COLLECTIVE_ALL_REDUCE,
                                               .group = 77,
                                               .generation = 1,
                                               .sequence = 10 + rank,
                                               .count = 5},
                                 .total_bytes = 100,
                                 .since_ns = clock_now_ns()};
    struct mesh_view views[RANKS];
    struct error err = {0};
    unsigned char all[RANKS];
    size_t group_index;

    assert_ok(mesh_add_group(m, 77, &group_index, &err));
    mesh_publish(m, group_index, &status);
    mesh_progress(m, group_index, 20 + rank);
    ck_assert(mesh_watch(m, group_index, 1, everyone, RANKS) != NULL);
    assert_ok(mesh_exchange(m, everyone, RANKS, "published", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
    mesh_ask_all(m, everyone, RANKS, 77, clock_deadline_ns(TIMEOUT_MS), views);
    for (unsigned r = 0; r < RANKS; r++) {
        ck_assert(views[r].replied && views[r].fault == FAULT_NONE);
        ck_assert(views[r].status.phase == (r % 2 == 0 ? MESH_RUNNING : MESH_IDLE));
        ck_assert_uint_eq(views[r].status.signature.sequence, 10 + r);
        ck_assert_uint_eq(views[r].status.done_bytes, 20 + r);
        ck_assert_uint_eq(views[r].status.total_bytes, 100);
    }
    mesh_ask(m, (rank + 1) % RANKS, 78, clock_deadline_ns(TIMEOUT_MS), &views[0]);
    ck_assert(views[0].replied && views[0].status.signature.call == 0);
    assert_ok(mesh_exchange(m, everyone, RANKS, "asked", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
}

START_TEST(questions_are_answered)
{
    run_threads("ask", ask_body);
}
END_TEST

/* Threads of one rank ask about different groups at the same time: each gets its own answers. */
#define ASKERS 4u

struct asker {
    struct mesh *mesh;
    uint64_t group;
    unsigned rank; /* the one asked */
};

static void *ask_often(void *argument)
{
    const struct asker *a = argument;

    for (unsigned i = 0; i < 200; i++) {
        struct mesh_view view;

        mesh_ask(a->mesh, a->rank, a->group, clock_deadline_ns(TIMEOUT_MS), &view);
        ck_assert(view.replied && view.status.group == a->group);
        ck_assert_uint_eq(view.status.total_bytes, a->group);
    }
    return NULL;
}

static void askers_body(struct mesh *m, unsigned rank)
{
    struct asker askers[ASKERS];
    pthread_t threads[ASKERS];
    struct error err = {0};
    unsigned char all[RANKS];
    size_t group_index;

    for (unsigned i = 0; i < ASKERS; i++) {
        struct mesh_status status = {.group = 100 + i, .total_bytes = 100 + i};

        assert_ok(mesh_add_group(m, 100 + i, &group_index, &err));
        mesh_publish(m, group_index, &status);
        askers[i] = (struct asker){.mesh = m, .group = 100 + i, .rank = (rank + 1) % RANKS};
    }
    assert_ok(mesh_exchange(m, everyone, RANKS, "published", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
    for (unsigned i = 0; i < ASKERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_often, &askers[i]), 0);
    for (unsigned i = 0; i < ASKERS; i++)
        (void)pthread_join(threads[i], NULL);
    assert_ok(mesh_exchange(m, everyone, RANKS, "asked", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
}

START_TEST(threads_get_their_own_answers)
{
    run_threads("askers", askers_body);
}
END_TEST

/* A verdict that was settled before this rank came to the group still raises its alarm. */
static void early_body(struct mesh *m, unsigned rank)
{
    const struct mesh_verdict mine = {.group = 6, .generation = 1, .fault = FAULT_SLOW};
    const struct mesh_alarm *alarm;
    struct mesh_verdict verdict;
    struct error err = {0};
    unsigned char all[RANKS];
    size_t group_index;

    if (rank == 0)
        mesh_send_verdict(m, &mine);
    assert_ok(mesh_exchange(m, everyone, RANKS, "told", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
    ck_assert(mesh_await_verdict(m, 6, 1, &verdict));
    assert_ok(mesh_add_group(m, 6, &group_index, &err));
    alarm = mesh_watch(m, group_index, 1, everyone, RANKS);
    ck_assert(alarm && atomic_load(&alarm->raised));
    assert_ok(mesh_add_group(m, 7, &group_index, &err));
    alarm = mesh_watch(m, group_index, 1, everyone, RANKS);
    ck_assert(alarm && !atomic_load(&alarm->raised));
    assert_ok(mesh_exchange(m, everyone, RANKS, "seen", "x", 1, all, NULL,
                            clock_deadline_ns(TIMEOUT_MS), &err));
}

START_TEST(verdicts_older_than_the_group_raise_its_alarm)
{
    run_threads("early", early_body);
}
END_TEST

/* All ranks judge at once, each another culprit: all end with one verdict. */
static void verdict_body(struct mesh *m, unsigned rank)
{
    for (uint32_t generation = 1; generation <= 50; generation++) {
        struct mesh_verdict mine = {.group = 5,
                                    .generation = generation,
                                    .fault = FAULT_SLOW,
                                    .culprit = (rank + 1) % RANKS};
        struct mesh_verdict verdict;
        struct error err = {0};
        unsigned all[RANKS];
        char tag[32];

        (void)snprintf(mine.text, sizeof(mine.text), "said by %u", rank);
        mesh_send_verdict(m, &mine);
        ck_assert(mesh_await_verdict(m, 5, generation, &verdict));
        (void)snprintf(tag, sizeof(tag), "verdict %u", generation);
        assert_ok(mesh_exchange(m, everyone, RANKS, tag, &verdict.culprit, sizeof(unsigned), all,
                                NULL, clock_deadline_ns(TIMEOUT_MS), &err));
        for (unsigned r = 0; r < RANKS; r++)
            ck_assert_msg(all[r] == verdict.culprit, "rank %u blames %u, rank %u blames %u", rank,
                          verdict.culprit, r, all[r]);
        ck_assert_uint_eq(verdict.culprit, (verdict.judge + 1) % RANKS);
    }
}

START_TEST(verdicts_that_cross_become_one)
{
    run_threads("verdict", verdict_body);
}
END_TEST

static void agree_body(struct mesh *m, unsigned rank)
{
    unsigned left[RANKS];
    unsigned count = 0;
    struct error err = {0};

    (void)rank;
    assert_ok(
        mesh_agree(m, everyone, RANKS, "all", clock_deadline_ns(TIMEOUT_MS), left, &count, &err));
    ck_assert_uint_eq(count, RANKS);
}

START_TEST(all_agree_when_nobody_is_lost)
{
    run_threads("agree", agree_body);
}
END_TEST

/* ---- a rank that gets no core ---- */

#define QUIET_MS 500 /* the heartbeat's time-out */

static struct {
    pthread_barrier_t silent, seen;
} starved;

static void *run_starved(void *argument)
{
    struct error err = {0};
    struct mesh *m =
        open_mesh("starved", *(const unsigned *)argument, 2, TIMEOUT_MS, QUIET_MS, &err);

    ck_assert_msg(m != NULL, "%s", err.text);
    (void)pthread_mutex_lock(&m->lock); /* its own thread now stands still, the process lives */
    (void)pthread_barrier_wait(&starved.silent);
    (void)pthread_barrier_wait(&starved.seen);
    (void)pthread_mutex_unlock(&m->lock);
    mesh_close(m);
    return NULL;
}

static bool is_silent(struct mesh *m, unsigned rank, int64_t ms)
{
    int64_t heard_ns;

    (void)pthread_mutex_lock(&m->lock);
    heard_ns = m->peers[rank].heard_ns;
    (void)pthread_mutex_unlock(&m->lock);
    return clock_now_ns() - heard_ns > ms * 1000000;
}

/* Silence of a process of this host that is neither stopped nor gone is not a loss. */
START_TEST(a_rank_without_a_core_is_not_lost)
{
    unsigned rank = 1;
    pthread_t thread;
    struct error err = {0};
    struct store *store = world_store(0, 2, &err); /* so that the thread is at a known point */
    struct mesh *m;
    char text[256] = "";

    ck_assert_msg(store != NULL, "%s", err.text);
    (void)pthread_barrier_init(&starved.silent, NULL, 2);
    (void)pthread_barrier_init(&starved.seen, NULL, 2);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_starved, &rank), 0);
    m = open_mesh("starved", 0, 2, TIMEOUT_MS, QUIET_MS, &err);
    ck_assert_msg(m != NULL, "%s", err.text);
    (void)pthread_barrier_wait(&starved.silent);
    while (!is_silent(m, 1, 3 * QUIET_MS) && mesh_fault(m, 1, NULL, 0) == FAULT_NONE)
        mesh_await_event(m, mesh_event_count(m), clock_deadline_ns(QUIET_MS));
    ck_assert_msg(mesh_fault(m, 1, text, sizeof(text)) == FAULT_NONE, "%s", text);
    ck_assert_msg(mesh_suspect(m, 1, text, sizeof(text)) == FAULT_NONE, "%s", text);
    (void)pthread_barrier_wait(&starved.seen);
    mesh_close(m);
    (void)pthread_join(thread, NULL);
    store_close(store, 0);
}
END_TEST

/* ---- ranks as processes ---- */

/* Every rank agrees over and over with those that are left; ranks that die do so at any moment of
 * it.  Writes the lists into `fd`: round, count, members. */
struct agree_line {
    unsigned rank, round, count, members[RANKS];
    enum status status;
    char text[200];
};

static void agree_child(unsigned rank, int fd)
{
    struct error err = {0};
    struct mesh *m = open_mesh("mortal", rank, RANKS, TIMEOUT_MS, 0, &err);
    unsigned members[RANKS] = {0, 1, 2, 3};
    unsigned count = RANKS;

    for (unsigned round = 0; round < 2000 && m; round++) {
        struct agree_line line = {.rank = rank, .round = round};
        char tag[32];

        (void)snprintf(tag, sizeof(tag), "agree %u", round);
        line.status = mesh_agree(m, members, count, tag, clock_deadline_ns(TIMEOUT_MS),
                                 line.members, &line.count, &err);
        (void)snprintf(line.text, sizeof(line.text), "%.190s", err.text);
        (void)!write(fd, &line, sizeof(line));
        if (line.status != STATUS_OK)
            break;
        memcpy(members, line.members, sizeof(members));
        count = line.count;
    }
    mesh_close(m);
    _exit(0);
}

/* One rank dies after the parent has read a number of lines, drawn at random, another later. */
START_TEST(survivors_agree_whoever_dies)
{
    struct agree_line *lines[2000] = {NULL};
    pid_t pids[RANKS];
    int fds[2];
    unsigned victims[] = {(unsigned)_i % RANKS, ((unsigned)_i + 1 + (unsigned)_i / RANKS) % RANKS};
    size_t strike[] = {(size_t)(support_random() * 400), 400 + (size_t)(support_random() * 400)};
    size_t count = 0;
    struct agree_line line;
    struct error err = {0};
    struct store *store;

    store = world_store(0, RANKS, &err); /* so that the children know where it is */
    ck_assert_msg(store != NULL, "%s", err.text);
    ck_assert_int_eq(pipe(fds), 0);
    for (unsigned r = 0; r < RANKS; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            (void)close(fds[0]);
            agree_child(r, fds[1]);
        }
    }
    (void)close(fds[1]);
    while (read(fds[0], &line, sizeof(line)) == (ssize_t)sizeof(line)) {
        for (size_t k = 0; k < 2; k++)
            if (count == strike[k])
                (void)kill(pids[victims[k]], SIGKILL);
        count++;
        ck_assert_msg(line.status == STATUS_OK, "rank %u: %s", line.rank, line.text);
        if (!lines[line.round]) {
            lines[line.round] = malloc(sizeof(line));
            *lines[line.round] = line;
            continue;
        }
        ck_assert_msg(lines[line.round]->count == line.count &&
                          memcmp(lines[line.round]->members, line.members,
                                 line.count * sizeof(unsigned)) == 0,
                      "round %u: ranks %u and %u disagree", line.round, line.rank,
                      lines[line.round]->rank);
    }
    for (unsigned r = 0; r < RANKS; r++)
        (void)waitpid(pids[r], NULL, 0);
    ck_assert_msg(lines[1999] != NULL, "nobody came to the end");
    ck_assert_uint_eq(lines[1999]->count, victims[0] == victims[1] ? RANKS - 1 : RANKS - 2);
    for (size_t i = 0; i < 2000; i++)
        free(lines[i]);
    (void)close(fds[0]);
    store_close(store, 0);
}
END_TEST

/* ---- other clients ---- */

static void *open_late(void *argument)
{
    struct error err = {0};
    struct mesh *m = open_mesh("busy", *(const unsigned *)argument, 2, TIMEOUT_MS, 0, &err);

    ck_assert_msg(m != NULL, "%s", err.text);
    mesh_close(m);
    return NULL;
}

/* Other clients connect to rank 0 before rank 1 does: silent ones, HTTP, a hello without the token.
 */
START_TEST(strangers_are_turned_away)
{
    struct mesh_message hello = {.kind = MESH_HELLO, .hello = {.rank = 1, .world_size = 2}};
    unsigned char bytes[MESH_MESSAGE_MAX];
    size_t length = mesh_message_encode(&hello, bytes);
    unsigned ranks[] = {0, 1};
    struct error err = {0};
    struct store *store = world_store(0, 2, &err);
    struct endpoint e = {.port = 0};
    pthread_t threads[2];
    char *text = NULL;
    size_t size;
    int fds[80];

    ck_assert_int_eq(pthread_create(&threads[0], NULL, open_late, &ranks[0]), 0);
    assert_ok(store_get(store, "busy/mesh/address/0", 10000, &text, &size, &err));
    assert_ok(endpoint_parse(text, "address", &e, &err));
    free(text);
    for (size_t i = 0; i < 80; i++)
        assert_ok(net_connect(&e, clock_deadline_ns(10000), &fds[i], &err));
    assert_ok(net_send_all(fds[0], "GET / HTTP/1.1\r\n\r\n", 18, clock_deadline_ns(1000), &err));
    assert_ok(net_send_all(fds[1], bytes, length, clock_deadline_ns(1000), &err));
    assert_ok(net_send_all(fds[2], bytes, length / 2, clock_deadline_ns(1000), &err));
    (void)close(fds[3]);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, open_late, &ranks[1]), 0);
    (void)pthread_join(threads[0], NULL);
    (void)pthread_join(threads[1], NULL);
    for (size_t i = 0; i < 80; i++)
        if (i != 3)
            (void)close(fds[i]);
    store_close(store, 0);
}
END_TEST

/* ---- the wire ---- */

START_TEST(messages_survive_the_wire)
{
    struct mesh_message in = {.kind = MESH_VERDICT,
                              .group = 1234567890123u,
                              .generation = 9,
                              .number = 3,
                              .verdict = {.fault = FAULT_STOPPED, .culprit = 5, .judge = 3}};
    struct mesh_message out;
    unsigned char bytes[MESH_MESSAGE_MAX];
    size_t length;

    (void)snprintf(in.verdict.text, sizeof(in.verdict.text), "tab\there");
    length = mesh_message_encode(&in, bytes);
    ck_assert_uint_eq(mesh_message_length(bytes), length);
    ck_assert(mesh_message_decode(bytes, length, &out));
    ck_assert(out.verdict.group == in.group && out.verdict.generation == 9 &&
              out.verdict.fault == FAULT_STOPPED && out.verdict.culprit == 5);
    ck_assert_str_eq(out.verdict.text, "tab?here");
    for (size_t cut = 0; cut < length; cut++)
        ck_assert(!mesh_message_decode(bytes, cut, &out));
    bytes[length - 3] = '\0'; /* inside the text */
    ck_assert(mesh_message_decode(bytes, length, &out));
    ck_assert_str_eq(out.verdict.text, "tab?h?re"); /* what encodes to as many bytes again */
    bytes[MESH_HEADER_BYTES + 20] = FAULT_COUNT;
    ck_assert(!mesh_message_decode(bytes, length, &out));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "mesh", 240, TEST(exchanges_of_all_sizes), TEST(a_rank_that_does_not_come_is_named),
        TEST(questions_are_answered), TEST(threads_get_their_own_answers),
        TEST(verdicts_older_than_the_group_raise_its_alarm), TEST(verdicts_that_cross_become_one),
        TEST(all_agree_when_nobody_is_lost), TEST(a_rank_without_a_core_is_not_lost),
        LOOP_TEST(survivors_agree_whoever_dies, 0, 8), TEST(strangers_are_turned_away),
        TEST(messages_survive_the_wire));
}
