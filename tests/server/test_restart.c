/*
 * The real sparring-server with a state folder, killed and stopped at random moments, from the
 * first join to the last reply, and restarted; the workers are threads that follow the protocol's
 * rules for broken connections.  Every rank must end with the same bits as in an undisturbed run:
 * no acknowledged round is lost, no push is applied twice.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/file.h"
#include "tests/server/service/raw_worker.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_MS 60000
#define WORLD   2u
#define ROUNDS  200u
#define FAULTS  7u

struct mode {
    const char *name;
    bool update_on_worker; /* the optimizer runs on the worker: replies are sums */
    struct consistency consistency;
    enum optimizer_kind kind;
    double momentum, rate;
    enum worker_loss on_loss;
};

/* Where each push is a step the order of arrival is not fixed, so all values are exactly
 * representable. */
static const struct mode modes[] = {
    {.name = "sums", .update_on_worker = true, .rate = 1},
    {.name = "sgd", .rate = 0.25},
    {.name = "momentum", .rate = 0.1, .momentum = 0.9},
    {.name = "adamw", .rate = 0.01, .kind = OPTIMIZER_ADAMW},
    {.name = "wait", .rate = 0.01, .kind = OPTIMIZER_ADAMW, .on_loss = WORKER_LOSS_WAIT},
    {.name = "ssp", .rate = WORLD, .consistency = {.mode = CONSISTENCY_SSP, .staleness = 2}},
    {.name = "asp", .rate = WORLD, .consistency = {.mode = CONSISTENCY_ASP}},
};
#define MODES ((int)(sizeof(modes) / sizeof(modes[0])))

/* ------------------------------------------------------------------ the server */

struct fixture {
    const struct mode *mode;
    struct process server;
    uint16_t port;
    char listen[64], folder[512];
    atomic_uint round;  /* of rank 0 */
    atomic_uint faults; /* that were injected or may be injected now: rank 0 waits for the next */
};

static void start_server(struct fixture *b)
{
    process_start(&b->server, NULL,
                  ARGS(support_program("sparring-server"), "--listen", b->listen, "--state-dir",
                       b->folder, "--snapshot-every", "7", "--timeout-ms", "60000"));
    process_wait_output(&b->server, "serving on 127.0.0.1:", WAIT_MS);
}

static void open_fixture(struct fixture *b, const struct mode *mode)
{
    static unsigned opened;
    char name[32];

    *b = (struct fixture){.mode = mode, .port = support_port()};
    (void)snprintf(b->listen, sizeof(b->listen), "127.0.0.1:%u", (unsigned)b->port);
    (void)snprintf(name, sizeof(name), "state-%u", opened++);
    (void)snprintf(b->folder, sizeof(b->folder), "%s", support_path(name));
    start_server(b);
}

static void pause_us(unsigned us)
{
    struct timespec time = {.tv_nsec = (long)us * 1000};

    (void)nanosleep(&time, NULL);
}

/* ------------------------------------------------------------------ a rank */

struct rank {
    struct fixture *fixture;
    struct raw_worker worker;
    unsigned rank;
    pthread_t thread;
    bool open, joined, initialised, finishing;
    uint64_t round;                /* current; 0: initial values */
    bool answered[RAW_PARTITIONS]; /* of the current round */
    float values[RAW_PARTITIONS];  /* from the last replies */
    unsigned connections;
};

/* Small multiples of 1/4: sums of all of them are exact. */
static float gradient(unsigned rank, uint64_t round, uint32_t partition)
{
    return (float)(rank + 1) * 0.25f * (float)((int)((round * 3 + partition) % 5) - 2);
}

static struct join_request terms_of(const struct rank *r)
{
    const struct mode *mode = r->fixture->mode;
    struct join_request t = raw_terms(r->rank);

    t.update = mode->update_on_worker;
    t.order = 0;
    t.optimizer = optimizer_defaults(mode->kind);
    t.optimizer.learning_rate = mode->rate;
    t.optimizer.momentum = mode->momentum;
    t.consistency = mode->consistency;
    t.session = 0xabc0 + r->rank;
    t.lanes = 1;
    t.resume = r->joined;
    t.round = r->round > 0 ? r->round - 1 : 0;
    t.on_loss = mode->on_loss;
    t.reconnect_ms = WAIT_MS;
    return t;
}

/* A status that a dying or absent server may cause; any other is an error. */
static bool is_transient(enum status status)
{
    return status == STATUS_UNREACHABLE || status == STATUS_UNAVAILABLE ||
           status == STATUS_PEER_LOST || status == STATUS_CANCELLED || status == STATUS_TIMEOUT;
}

/* Join or resume until a server accepts it; then open the stream. */
static void connect_rank(struct rank *r)
{
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    struct rpc_result result = {.status = STATUS_UNREACHABLE};

    while (result.status != STATUS_OK) {
        struct join_request terms = terms_of(r);

        if (r->open)
            raw_close(&r->worker);
        raw_open(&r->worker, r->fixture->port, r->rank);
        r->worker.session = terms.session;
        r->open = true;
        raw_begin_join(&r->worker, &terms);
        result = raw_end_join(&r->worker);
        ck_assert_msg(result.status == STATUS_OK || is_transient(result.status), "rank %u: %s: %s",
                      r->rank, status_name(result.status), result.text);
        ck_assert_msg(clock_now_ns() < deadline_ns, "rank %u: no server: %s", r->rank, result.text);
        if (result.status != STATUS_OK)
            pause_us(5000);
    }
    r->joined = true;
    r->connections++;
    raw_start_stream(&r->worker);
}

static void send_part(struct rank *r, uint32_t partition, bool again)
{
    enum chunk_kind kind = r->round == 0 ? CHUNK_PULL : r->finishing ? CHUNK_FINAL : CHUNK_PUSH;
    struct chunk_header header = raw_chunk(&r->worker, CHUNK_INIT, partition, 0);

    header.flags = again ? CHUNK_AGAIN : 0;
    if (r->round == 0 && r->rank == 0)
        raw_send(&r->worker, &header, header.length, 1.0f);
    header = raw_chunk(&r->worker, kind, partition, r->round);
    header.flags = again ? CHUNK_AGAIN : 0;
    raw_send(&r->worker, &header, header.length, gradient(r->rank, r->round, partition));
}

static void send_unanswered(struct rank *r, bool again)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        if (!r->answered[p])
            send_part(r, p, again);
}

/* Take the next chunk; false: the stream has ended. */
static bool take_chunk(struct rank *r, struct chunk_header *ret, float *ret_first)
{
    struct raw_call *c = &r->worker.stream;
    struct timespec until = condition_until(clock_deadline_ns(WAIT_MS));
    bool found;

    (void)pthread_mutex_lock(&c->lock);
    while (c->taken == c->length && !c->closed)
        ck_assert_msg(pthread_cond_timedwait(&c->changed, &c->lock, &until) == 0,
                      "rank %u: nothing comes in round %d", r->rank, (int)r->round);
    found = c->taken < c->length;
    if (found) {
        *ret = c->chunks[c->taken];
        *ret_first = c->first[c->taken++];
    }
    if (c->taken == c->length)
        c->taken = c->length = 0;
    if (!found)
        ck_assert_msg(c->result.status == STATUS_OK || is_transient(c->result.status),
                      "rank %u, round %d: %s: %s", r->rank, (int)r->round,
                      status_name(c->result.status), c->result.text);
    (void)pthread_mutex_unlock(&c->lock);
    return found;
}

static void check_sum(const struct rank *r, uint32_t partition, float value)
{
    float wanted = gradient(0, r->round, partition) + gradient(1, r->round, partition);

    ck_assert_msg(!r->fixture->mode->update_on_worker || r->round == 0 || value == wanted,
                  "rank %u, round %d, partition %u: sum %g, not %g", r->rank, (int)r->round,
                  partition, (double)value, (double)wanted);
}

/* Finish the round: send every partition that has no reply yet, again after each reconnect. */
static void finish_round(struct rank *r)
{
    unsigned missing = RAW_PARTITIONS;

    memset(r->answered, 0, sizeof(r->answered));
    send_unanswered(r, false);
    while (missing > 0) {
        struct chunk_header h = {0};
        float value = 0;

        if (!take_chunk(r, &h, &value)) {
            connect_rank(r);
            send_unanswered(r, true);
            continue;
        }
        ck_assert_uint_lt(h.partition, RAW_PARTITIONS);
        if (h.round != r->round || r->answered[h.partition])
            continue; /* a second reply to a repeated request */
        check_sum(r, h.partition, value);
        r->answered[h.partition] = true;
        r->values[h.partition] = value;
        missing--;
    }
}

/* The server may die between processing the leave and replying to it. */
static void leave(struct rank *r)
{
    struct rpc_result result = raw_leave(&r->worker, "raw", "");
    uint64_t session = r->worker.session;

    while (result.status != STATUS_OK && result.status != STATUS_NOT_FOUND) {
        ck_assert_msg(is_transient(result.status), "%s: %s", status_name(result.status),
                      result.text);
        pause_us(5000);
        raw_close(&r->worker);
        raw_open(&r->worker, r->fixture->port, r->rank);
        r->worker.session = session;
        result = raw_leave(&r->worker, "raw", "");
    }
}

/* The round before which fault i is injected: the first, the last, and some in between. */
static unsigned fault_round(unsigned i)
{
    return i == FAULTS - 1 ? ROUNDS : i * ROUNDS / FAULTS;
}

/* Let rank 0 wait at the round of a fault until it may be injected. */
static void wait_for_fault(struct fixture *b, unsigned round)
{
    atomic_store(&b->round, round);
    for (unsigned i = 1; i < FAULTS; i++)
        while (fault_round(i) == round && atomic_load(&b->faults) <= i)
            pause_us(50);
}

static void *rank_thread(void *user)
{
    struct rank *r = user;

    connect_rank(r);
    for (r->round = 0; r->round <= ROUNDS; r->round++) {
        if (r->rank == 0)
            wait_for_fault(r->fixture, (unsigned)r->round);
        finish_round(r);
    }
    if (!consistency_is_lockstep(&r->fixture->mode->consistency)) {
        r->round = ROUNDS;
        r->finishing = true;
        finish_round(r);
    }
    leave(r);
    raw_close(&r->worker);
    return NULL;
}

/* ------------------------------------------------------------------ faults */

static unsigned random_below(unsigned n)
{
    return (unsigned)(support_random() * n);
}

/* Kill or stop the server soon after rank 0 has begun that round; start another one. */
static void inject_fault(struct fixture *b, unsigned i)
{
    bool stop = i % 3 == 2;

    atomic_store(&b->faults, i + 1);
    while (atomic_load(&b->round) < fault_round(i))
        pause_us(50);
    pause_us(random_below(random_below(2) ? 300 : 5000));
    process_signal(&b->server, stop ? SIGTERM : SIGKILL);
    ck_assert_int_eq(process_wait(&b->server, WAIT_MS), stop ? 0 : 128 + SIGKILL);
    start_server(b);
}

static void run_job_with_faults(const struct mode *mode, unsigned faults, struct rank ranks[WORLD])
{
    static struct fixture b;

    open_fixture(&b, mode);
    atomic_store(&b.faults, faults ? 0 : FAULTS);
    for (unsigned i = 0; i < WORLD; i++) {
        ranks[i] = (struct rank){.fixture = &b, .rank = i};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, rank_thread, &ranks[i]), 0);
    }
    for (unsigned i = 0; i < faults; i++)
        inject_fault(&b, i);
    for (unsigned i = 0; i < WORLD; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    process_signal(&b.server, SIGTERM);
    ck_assert_int_eq(process_wait(&b.server, WAIT_MS), 0);
}

/* Check that only the lock file is left. */
static void check_empty(const char *folder)
{
    DIR *entries = opendir(folder);

    ck_assert_ptr_nonnull(entries);
    for (const struct dirent *e = readdir(entries); e; e = readdir(entries))
        ck_assert_msg(e->d_name[0] == '.' || strcmp(e->d_name, "lock") == 0, "%s is left",
                      e->d_name);
    (void)closedir(entries);
}

START_TEST(test_killed_and_stopped)
{
    static struct rank undisturbed[WORLD], disturbed[WORLD];

    run_job_with_faults(&modes[_i], 0, undisturbed);
    run_job_with_faults(&modes[_i], FAULTS, disturbed);
    for (unsigned i = 0; i < WORLD; i++)
        ck_assert_mem_eq(undisturbed[i].values, disturbed[i].values, sizeof(undisturbed[i].values));
    ck_assert_uint_eq(undisturbed[0].connections, 1);
    ck_assert_uint_ge(disturbed[0].connections, FAULTS / 2); /* some faults fall between two
                                                                rounds */
    check_empty(disturbed[0].fixture->folder);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("restart", 120, LOOP_TEST(test_killed_and_stopped, 0, MODES));
}
