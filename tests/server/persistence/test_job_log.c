/*
 * A shard that is released at any moment and restored from its files continues bit for bit like one
 * that was never interrupted, in every mode and with every optimizer: no step lost or repeated.
 */
#include "common/base/memory.h"
#include "server/persistence/job_log_internal.h"
#include "server/persistence/state_dir.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FULL   (PARTITION_BYTES_MIN / sizeof(float))
#define COUNT  (5 * FULL + 77) /* six partitions, three of them here */
#define ROUNDS 12u
#define WORLD  3u
#define HELD   3u

static struct error err;

struct mode {
    const char *name;
    bool update, previous;
    struct consistency consistency;
    enum optimizer_kind kind;
    double momentum;
};

static const struct mode modes[] = {
    {.name = "sgd", .update = true},
    {.name = "momentum", .update = true, .momentum = 0.9},
    {.name = "adamw", .update = true, .kind = OPTIMIZER_ADAMW},
    {.name = "wait", .update = true, .previous = true, .momentum = 0.5},
    {.name = "sums"},
    {.name = "backup", .update = true, .momentum = 0.9, .consistency = {.backup = 1}},
    {.name = "ssp",
     .update = true,
     .kind = OPTIMIZER_ADAM,
     .consistency = {.mode = CONSISTENCY_SSP, .staleness = 2}},
    {.name = "asp", .update = true, .momentum = 0.9, .consistency = {.mode = CONSISTENCY_ASP}},
};
#define MODES ((int)(sizeof(modes) / sizeof(modes[0])))

struct fixture {
    const struct mode *mode;
    struct shard_map map;
    struct shard shard;
    struct job_log *log; /* NULL: never restarted */
    char folder[STATE_PATH_MAX];
    uint64_t every, journal_bytes;
};

/* ------------------------------------------------------------------ shards */

static enum status copy_floats(void *user, float *dst, size_t count, struct error *error)
{
    (void)error;
    memcpy(dst, user, count * sizeof(float));
    return STATUS_OK;
}

static enum status add_floats(void *user, float *dst, size_t count, struct error *error)
{
    const float *values = user;

    (void)error;
    for (size_t i = 0; i < count; i++)
        dst[i] += values[i];
    return STATUS_OK;
}

/* A rank's contribution in a round; 0: the initial values. */
static struct shard_source payload(unsigned rank, uint64_t round, uint32_t partition)
{
    static float values[FULL];

    for (size_t i = 0; i < FULL; i++)
        values[i] =
            (float)((i * 7 + rank * 131 + round * 37 + partition * 17) % 1000) / 999.0f - 0.5f;
    return (struct shard_source){.copy = copy_floats, .add = add_floats, .user = values};
}

static void open_shard(struct fixture *b)
{
    struct shard_config config = {.map = &b->map,
                                  .index = 1,
                                  .world_size = WORLD,
                                  .update = b->mode->update,
                                  .previous = b->mode->previous,
                                  .optimizer = optimizer_defaults(b->mode->kind),
                                  .consistency = b->mode->consistency};

    config.optimizer.momentum = b->mode->momentum;
    assert_ok(shard_init(&b->shard, &config, &err));
    ck_assert_uint_eq(b->shard.length, HELD);
}

static struct job_log_config make_log_config(struct fixture *b)
{
    return (struct job_log_config){.folder = b->folder,
                                   .digest = 99,
                                   .snapshot_every = b->every,
                                   .journal_bytes = b->journal_bytes,
                                   .job = b->mode->name,
                                   .shard = &b->shard};
}

static void attach_sink(struct fixture *b)
{
    struct shard_sink sink = {.on_mutation = job_log_append, .user = b->log};

    shard_set_sink(&b->shard, SHARD_SINK_DISK, &sink);
}

static void open_fixture_with_limit(struct fixture *b, const struct mode *mode, uint64_t every,
                                    uint64_t journal_bytes, bool log)
{
    static unsigned opened;
    struct job_log_config config;
    char name[64];

    *b = (struct fixture){.mode = mode, .every = every, .journal_bytes = journal_bytes};
    assert_ok(shard_map_make(COUNT, PARTITION_BYTES_MIN, 2, &b->map, &err));
    open_shard(b);
    if (!log)
        return;
    (void)snprintf(name, sizeof(name), "%s-%u", mode->name, opened++);
    (void)snprintf(b->folder, sizeof(b->folder), "%s", support_path(name));
    ck_assert_int_eq(mkdir(b->folder, 0777), 0);
    config = make_log_config(b);
    assert_ok(job_log_create(&config, &b->log, &err));
    assert_ok(job_log_set_membership(b->log, "all of them", &err));
    attach_sink(b);
}

static void open_fixture(struct fixture *b, const struct mode *mode, uint64_t every, bool log)
{
    open_fixture_with_limit(b, mode, every, 0, log);
}

static void close_fixture(struct fixture *b)
{
    job_log_close(b->log);
    shard_release(&b->shard);
    shard_map_release(&b->map);
}

/* ------------------------------------------------------------------ comparing */

struct partition_copy {
    struct shard_state state;
    uint64_t clocks[WORLD], seen[WORLD];
    uint8_t flags[WORLD];
    float values[FULL], moments[2][FULL], previous[FULL];
};

static void copy_partition(struct fixture *b, uint32_t partition, struct partition_copy *d)
{
    memset(d, 0, sizeof(*d));
    d->state = (struct shard_state){.clocks = d->clocks,
                                    .seen = d->seen,
                                    .flags = d->flags,
                                    .values = d->values,
                                    .moments = {d->moments[0], d->moments[1]},
                                    .previous = d->previous};
    assert_ok(shard_export(&b->shard, partition, &d->state, &err));
    if (!d->state.initialised)
        memset(d->values, 0, sizeof(d->values)); /* undefined */
    memset(d->seen, 0, sizeof(d->seen));         /* not in the journal */
    memset(&d->state, 0, offsetof(struct shard_state, steps));
    d->state = (struct shard_state){.steps = d->state.steps};
}

static void assert_same(struct fixture *a, struct fixture *b)
{
    static struct partition_copy x, y;

    for (uint32_t p = 1; p < a->map.length; p += 2) {
        copy_partition(a, p, &x);
        copy_partition(b, p, &y);
        ck_assert_msg(x.state.steps == y.state.steps, "%s, partition %u: step %d, not %d",
                      a->mode->name, p, (int)y.state.steps, (int)x.state.steps);
        if (a->mode->consistency.backup == 0) /* late pushes are not logged: no effect */
            ck_assert_mem_eq(x.clocks, y.clocks, sizeof(x.clocks));
        ck_assert_mem_eq(x.flags, y.flags, sizeof(x.flags));
        ck_assert_mem_eq(x.values, y.values, sizeof(x.values));
        ck_assert_mem_eq(x.moments, y.moments, sizeof(x.moments));
        ck_assert_mem_eq(x.previous, y.previous, sizeof(x.previous));
    }
}

/* ------------------------------------------------------------------ running rounds */

/* Take every reply that may be sent. */
static void take_all_replies(struct fixture *b, uint32_t partition)
{
    struct shard_reply reply;

    for (unsigned rank = 0; shard_next_reply(&b->shard, partition, &rank, &reply); rank++)
        ck_assert_ptr_nonnull(reply.data);
}

static void initialise(struct fixture *b, bool again)
{
    for (uint32_t p = 1; p < b->map.length; p += 2) {
        struct shard_source source = payload(0, 0, p);
        struct shard_reply reply;
        bool known;

        assert_ok(shard_set(&b->shard, p, &source, again, &known, &err));
        for (unsigned rank = 0; rank < WORLD; rank++) {
            assert_ok(shard_pull(&b->shard, p, rank, 0, again, &reply, &err));
            ck_assert_ptr_nonnull(reply.data);
        }
    }
}

/* One contribution; `again`: it may have been sent before. */
static void push(struct fixture *b, unsigned rank, uint64_t round, uint32_t partition, bool again)
{
    struct shard_source source = payload(rank, round, partition);
    struct shard_reply reply;

    if (again && shard_has_contributed(&b->shard, partition, rank, round) &&
        b->shard.parts[partition / 2].policy.steps == 0)
        return;
    assert_ok(shard_push(&b->shard, partition, rank, round, again, &source, &reply, &err));
    take_all_replies(b, partition);
}

/* The i-th contribution of a run: rounds, partitions, ranks. */
#define PUSHES (ROUNDS * HELD * WORLD)
static void push_nth(struct fixture *b, unsigned i, bool again)
{
    push(b, i % WORLD, 1 + i / (HELD * WORLD), 1 + 2 * (i / WORLD % HELD), again);
}

/* Repeat the contributions of the unfinished round, in which `next` is the next one. */
static void push_again(struct fixture *b, unsigned next)
{
    for (unsigned i = next / (HELD * WORLD) * (HELD * WORLD); i < next; i++)
        push_nth(b, i, true);
}

/* Release everything in memory and restore it from the files. */
static void restart(struct fixture *b, uint64_t *ret_torn_bytes)
{
    struct strbuf members = STRBUF_INIT;
    struct job_log_restored found;
    struct job_log_config config;

    job_log_close(b->log);
    shard_release(&b->shard);
    open_shard(b);
    config = make_log_config(b);
    assert_ok(job_log_restore(&config, &members, &found, &b->log, &err));
    ck_assert_str_eq(members.text, "all of them");
    strbuf_release(&members);
    attach_sink(b);
    if (ret_torn_bytes)
        *ret_torn_bytes = found.torn_bytes;
}

/* As a process leaves it that was killed in the middle of a record; `rotates`: with another thread
 * in the middle of a rotation. */
static void append_torn_record(const struct fixture *b, bool rotates)
{
    static const char torn[] = "SPRJ\2\0\0\0 and no more than this";
    uint64_t newest = 0;
    char path[STATE_PATH_MAX + 64];
    FILE *file;

    job_log_stop(b->log); /* so that the newest journal stays the newest */
    for (uint64_t i = 0; i < 200; i++) {
        (void)snprintf(path, sizeof(path), "%s/journal-%d", b->folder, (int)i);
        if (access(path, F_OK) == 0)
            newest = i;
    }
    (void)snprintf(path, sizeof(path), "%s/journal-%d", b->folder, (int)newest);
    file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    (void)fwrite(torn, 1, sizeof(torn), file);
    ck_assert_int_eq(fclose(file), 0);
    if (!rotates)
        return;
    (void)snprintf(path, sizeof(path), "%s/journal-%d", b->folder, (int)newest + 1);
    file = fopen(path, "wx");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fclose(file), 0);
}

static unsigned random_below(unsigned n)
{
    return (unsigned)(support_random() * n);
}

/* ------------------------------------------------------------------ tests */

/* Restart after any contribution with some probability, with occasional snapshots. */
START_TEST(test_restarts)
{
    const struct mode *mode = &modes[_i];
    struct fixture restarted, expected;
    unsigned restarts = 0;

    open_fixture(&expected, mode, 0, false);
    initialise(&expected, false);
    for (unsigned i = 0; i < PUSHES; i++)
        push_nth(&expected, i, false);
    open_fixture(&restarted, mode, 3, true);
    restart(&restarted, NULL); /* before the initial values */
    initialise(&restarted, false);
    restart(&restarted, NULL);
    initialise(&restarted, true);
    for (unsigned i = 0; i < PUSHES; i++) {
        push_nth(&restarted, i, false);
        if (random_below(8) == 0)
            assert_ok(job_log_snapshot(restarted.log, &err));
        if (random_below(6) != 0)
            continue;
        restarts++;
        restart(&restarted, NULL);
        push_again(&restarted, i + 1);
    }
    assert_same(&expected, &restarted);
    restart(&restarted, NULL);
    assert_same(&expected, &restarted);
    ck_assert_uint_gt(restarts, 0);
    close_fixture(&restarted);
    close_fixture(&expected);
}
END_TEST

/* The restored state equals the state before, also after a torn record. */
START_TEST(test_restored_state_is_equal)
{
    struct fixture live, dead;
    uint64_t torn_bytes;

    open_fixture(&live, &modes[_i], 0, false);
    open_fixture(&dead, &modes[_i], 2, true);
    initialise(&live, false);
    initialise(&dead, false);
    for (unsigned i = 0; i < PUSHES; i++) {
        push_nth(&live, i, false);
        push_nth(&dead, i, i % WORLD != 0 && i % 7 == 0);
        if ((i + 1) % (HELD * WORLD) != 0)
            continue;
        assert_same(&live, &dead);
        append_torn_record(&dead, i / (HELD * WORLD) % 2 == 1);
        restart(&dead, &torn_bytes);
        ck_assert_uint_gt(torn_bytes, 0);
        assert_same(&live, &dead);
    }
    close_fixture(&live);
    close_fixture(&dead);
}
END_TEST

/* Several journals are read in order when snapshots could not be written. */
START_TEST(test_failed_snapshots)
{
    struct rlimit limit, old;
    struct fixture expected, b;
    struct stats_counters figures;

    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    open_fixture(&expected, &modes[2], 0, false);
    open_fixture(&b, &modes[2], 0, true);
    initialise(&expected, false);
    initialise(&b, false);
    for (unsigned i = 0; i < PUSHES; i++) {
        push_nth(&expected, i, false);
        push_nth(&b, i, false);
        if (i % 11 == 0) {
            limit.rlim_cur = 10000; /* a journal's head fits, a snapshot does not */
            ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
            assert_fails(job_log_snapshot(b.log, &err), STATUS_NO_SPACE, b.folder);
            ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
        }
        if (i == 50)
            assert_ok(job_log_snapshot(b.log, &err));
    }
    job_log_count(b.log, &figures);
    ck_assert_uint_eq(figures.snapshots, 1);
    ck_assert_uint_eq(figures.snapshots_failed, (PUSHES + 10) / 11);
    ck_assert_uint_gt(figures.snapshot_bytes, 3 * (2 * FULL + 77) * sizeof(float));
    restart(&b, NULL);
    assert_same(&expected, &b);
    close_fixture(&expected);
    close_fixture(&b);
}
END_TEST

/* A full disk: the push fails and names the file, and earlier pushes are restored. */
START_TEST(test_a_full_disk)
{
    struct shard_source source = payload(2, 1, 1);
    struct rlimit limit, old;
    struct shard_reply reply;
    struct fixture expected, b;

    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 10000; /* only a part of the next record fits */
    open_fixture(&expected, &modes[1], 0, false);
    open_fixture(&b, &modes[1], 0, true);
    initialise(&expected, false);
    initialise(&b, false);
    push_nth(&b, 0, false);
    push_nth(&b, 1, false);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_fails(shard_push(&b.shard, 1, 2, 1, false, &source, &reply, &err), STATUS_NO_SPACE,
                 b.folder);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    restart(&b, NULL);
    assert_same(&expected, &b);
    close_fixture(&expected);
    close_fixture(&b);
}
END_TEST

static enum status try_restore(struct fixture *b)
{
    struct job_log_config config;
    struct strbuf members = STRBUF_INIT;
    struct job_log_restored found;
    enum status status;

    shard_release(&b->shard);
    open_shard(b);
    config = make_log_config(b);
    status = job_log_restore(&config, &members, &found, &b->log, &err);
    if (status != STATUS_OK)
        b->log = NULL;
    strbuf_release(&members);
    return status;
}

static void flip_bit(const struct fixture *b, const char *name, off_t at)
{
    char path[STATE_PATH_MAX + 64], byte;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", b->folder, name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte = (char)(byte ^ 0x10);
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    ck_assert_int_eq(close(fd), 0);
}

/* Damage is an error that names the file, and a failed restore changes nothing. */
START_TEST(test_damaged_files)
{
    struct fixture b;
    char path[STATE_PATH_MAX + 64];

    open_fixture(&b, &modes[1], 0, true);
    initialise(&b, false);
    for (unsigned i = 0; i < 2 * HELD * WORLD; i++)
        push_nth(&b, i, false);
    assert_ok(job_log_snapshot(b.log, &err));
    for (unsigned i = 2 * HELD * WORLD; i < 4 * HELD * WORLD; i++)
        push_nth(&b, i, false);
    job_log_close(b.log);
    flip_bit(&b, "journal-1", 3000);
    assert_fails(try_restore(&b), STATUS_DATA, "journal-1' is damaged at byte 48");
    flip_bit(&b, "journal-1", 3000);
    flip_bit(&b, "snapshot-1.safetensors", 10000);
    assert_fails(try_restore(&b), STATUS_DATA, "snapshot-1.safetensors'");
    flip_bit(&b, "snapshot-1.safetensors", 10000);
    assert_ok(try_restore(&b));
    job_log_close(b.log);
    (void)snprintf(path, sizeof(path), "%s/journal-1", b.folder);
    ck_assert_int_eq(unlink(path), 0);
    assert_fails(try_restore(&b), STATUS_DATA, "journal-1 is missing");
    close_fixture(&b);
}
END_TEST

/* Without snapshots by rounds, each journal above the limit causes one snapshot. */
START_TEST(test_a_long_journal)
{
    const uint64_t longest = 2 * (2 * FULL + 77) * sizeof(float); /* about two rounds */
    struct stats_counters figures = {0};
    struct fixture expected, b;
    uint64_t generation, size;

    open_fixture(&expected, &modes[_i], 0, false);
    open_fixture_with_limit(&b, &modes[_i], 0, longest, true);
    ck_assert_uint_eq(b.log->journal_bytes_max, longest);
    initialise(&expected, false);
    initialise(&b, false);
    for (unsigned i = 0; i < PUSHES; i++) {
        uint64_t before = figures.snapshots;
        bool is_long;

        push_nth(&expected, i, false);
        journal_length(&b.log->journal, &generation, &size);
        push_nth(&b, i, false);
        (void)pthread_mutex_lock(&b.log->lock);
        is_long = b.log->long_generation == generation;
        (void)pthread_mutex_unlock(&b.log->lock);
        do
            job_log_count(b.log, &figures);
        while (is_long && figures.snapshots == before);
        ck_assert_uint_eq(figures.snapshots, before + is_long);
        journal_length(&b.log->journal, &generation, &size);
        ck_assert_uint_le(size, longest);
    }
    ck_assert_uint_ge(figures.snapshots, ROUNDS / 4);
    ck_assert_uint_eq(figures.snapshots_failed, 0);
    restart(&b, NULL);
    assert_same(&expected, &b);
    close_fixture(&expected);
    close_fixture(&b);
    open_fixture(&b, &modes[_i], 0, true);
    ck_assert_uint_eq(b.log->journal_bytes_max, JOB_LOG_JOURNAL_BYTES_MIN);
    close_fixture(&b);
}
END_TEST

/* The thread writes snapshots while the shard is in use, and removes old files. */
START_TEST(test_snapshot_thread)
{
    struct stats_counters figures = {0};
    struct fixture expected, b;
    unsigned files = 0;
    DIR *entries;

    open_fixture(&expected, &modes[2], 0, false);
    open_fixture(&b, &modes[2], 2, true);
    initialise(&expected, false);
    initialise(&b, false);
    for (unsigned i = 0; i < PUSHES; i++) {
        push_nth(&expected, i, false);
        push_nth(&b, i, false);
    }
    while (figures.snapshots == 0) /* the last one is due by now */
        job_log_count(b.log, &figures);
    job_log_stop(b.log);
    job_log_count(b.log, &figures);
    ck_assert_uint_le(figures.snapshots, ROUNDS / 2);
    ck_assert_uint_eq(figures.snapshots_failed, 0);
    ck_assert_uint_eq(figures.journal_records, 1 + HELD + HELD * ROUNDS);
    entries = opendir(b.folder);
    ck_assert_ptr_nonnull(entries);
    for (const struct dirent *e = readdir(entries); e; e = readdir(entries))
        files += e->d_name[0] != '.';
    (void)closedir(entries);
    ck_assert_uint_eq(files, 2); /* a snapshot and its journal */
    restart(&b, NULL);
    assert_same(&expected, &b);
    close_fixture(&expected);
    close_fixture(&b);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("job_log", 0, LOOP_TEST(test_restarts, 0, MODES),
                       LOOP_TEST(test_restored_state_is_equal, 0, MODES),
                       TEST(test_failed_snapshots), TEST(test_a_full_disk),
                       TEST(test_damaged_files), LOOP_TEST(test_a_long_journal, 0, MODES),
                       TEST(test_snapshot_thread));
}
