/*
 * The journal: records are read as they were appended; a file truncated anywhere gives the records
 * before that; a flipped bit anywhere is detected; a full disk leaves the earlier records.
 */
#include "common/base/file.h"
#include "server/persistence/journal.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define WORLD       3u
#define RECORDS     6u
#define PAYLOAD_MAX 100u

static struct error err;
static const struct journal_head head = {.world_size = WORLD, .digest = 0x1234, .generation = 7};

/* Record i of every test: without clocks, or without a payload, or with odd sizes. */
struct sample {
    uint64_t clocks[WORLD];
    uint8_t flags[WORLD];
    unsigned char payload[PAYLOAD_MAX];
    struct journal_record record;
};

static void make_sample(struct sample *s, unsigned i)
{
    for (unsigned k = 0; k < WORLD; k++) {
        s->clocks[k] = 1000u * i + k;
        s->flags[k] = (uint8_t)(i + k);
    }
    for (unsigned k = 0; k < PAYLOAD_MAX; k++)
        s->payload[k] = (unsigned char)(i * 31 + k);
    s->record = (struct journal_record){.kind = 1 + i % 3,
                                        .partition = i * 5,
                                        .step = (uint64_t)i << 33,
                                        .rate = 0.1 * i,
                                        .clocks = i % 3 == 2 ? NULL : s->clocks,
                                        .flags = i % 3 == 2 ? NULL : s->flags,
                                        .payload = i % 4 == 1 ? NULL : s->payload,
                                        .size = i % 4 == 1 ? 0 : 13 * i % PAYLOAD_MAX + 1};
}

static void append_samples(struct journal *j, unsigned from, unsigned to)
{
    struct sample s;

    for (unsigned i = from; i < to; i++) {
        make_sample(&s, i);
        assert_ok(journal_append(j, &s.record, &err));
    }
}

static const char *write_samples(const char *name, unsigned count)
{
    const char *path = support_path(name);
    struct journal j;

    assert_ok(journal_create(&j, path, &head, &err));
    append_samples(&j, 0, count);
    ck_assert_uint_eq(j.records, count);
    ck_assert_uint_eq(j.bytes + JOURNAL_HEAD, j.size);
    journal_close(&j);
    return path;
}

/* A journal_record_fn: the records must be samples *user, *user + 1, ... */
static enum status check_sample(void *user, const struct journal_record *r, struct error *e)
{
    unsigned *next = user;
    struct sample s;

    make_sample(&s, (*next)++);
    if (r->kind != s.record.kind || r->partition != s.record.partition ||
        r->step != s.record.step || r->rate < s.record.rate || r->rate > s.record.rate ||
        r->size != s.record.size || !r->clocks != !s.record.clocks || !r->flags != !r->clocks)
        return error_set(e, STATUS_INTERNAL, "another record than sample %u", *next - 1);
    if (r->clocks && r->flags &&
        (memcmp(r->clocks, s.clocks, sizeof(s.clocks)) != 0 ||
         memcmp(r->flags, s.flags, sizeof(s.flags)) != 0))
        return error_set(e, STATUS_INTERNAL, "other clocks than sample %u", *next - 1);
    if (r->payload && memcmp(r->payload, s.payload, r->size) != 0)
        return error_set(e, STATUS_INTERNAL, "another payload than sample %u", *next - 1);
    return STATUS_OK;
}

static enum status read_samples(const char *path, const struct journal_head *wanted, unsigned first,
                                struct journal_read_result *ret)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    unsigned next = first;
    enum status status;

    ck_assert_int_ge(fd, 0);
    status = journal_read(fd, path, wanted, check_sample, &next, ret, &err);
    (void)close(fd);
    if (status == STATUS_OK && ret)
        ck_assert_uint_eq(next - first, ret->records);
    return status;
}

static uint64_t sample_bytes(unsigned i)
{
    struct sample s;

    make_sample(&s, i);
    return journal_record_bytes(s.record.clocks ? WORLD : 0, s.record.size);
}

START_TEST(test_what_is_written_is_read)
{
    struct journal_read_result out;
    const char *path = write_samples("j", 100);

    assert_ok(read_samples(path, &head, 0, &out));
    ck_assert_uint_eq(out.records, 100);
    ck_assert_uint_eq(out.torn_bytes, 0);
}
END_TEST

START_TEST(test_a_file_that_is_there_is_not_overwritten)
{
    const char *path = write_samples("j", 1);
    struct journal j;

    assert_fails(journal_create(&j, path, &head, &err), STATUS_EXISTS, path);
    assert_fails(journal_create(&j, "/nowhere/j", &head, &err), STATUS_NOT_FOUND, "/nowhere/j");
    journal_close(&j);
}
END_TEST

/* Truncated at every byte: the whole records before it are read, the other bytes are counted, and
 * appending continues after the last whole record. */
START_TEST(test_torn_tail)
{
    const char *path = support_path("cut");
    char *data;
    size_t size, whole = JOURNAL_HEAD;
    unsigned records = 0;

    assert_ok(file_read(write_samples("whole", RECORDS), 1 << 20, &data, &size, &err));
    for (size_t length = 0; length <= size; length++) {
        struct journal_read_result out;
        struct journal j;

        assert_ok(file_publish(path, data, length, &err));
        if (records < RECORDS && length == whole + sample_bytes(records))
            whole += sample_bytes(records++);
        assert_ok(read_samples(path, &head, 0, &out));
        if (length < JOURNAL_HEAD) {
            ck_assert_uint_eq(out.size, 0);
            continue;
        }
        ck_assert_uint_eq(out.records, records);
        ck_assert_uint_eq(out.size, whole);
        ck_assert_uint_eq(out.torn_bytes, length - whole);
        assert_ok(journal_reopen(&j, path, &head, out.size, &err));
        append_samples(&j, records, RECORDS);
        journal_close(&j);
        assert_ok(read_samples(path, &head, 0, &out));
        ck_assert_uint_eq(out.records, RECORDS);
        ck_assert_uint_eq(out.size, size);
    }
    ck_assert_uint_eq(records, RECORDS);
    free(data);
}
END_TEST

/* Flip a bit of every byte: no changed record is delivered.  Damage before the last record is an
 * error with file and offset, the damaged last record is torn, and padding has no effect. */
START_TEST(test_a_flipped_bit_is_found)
{
    const char *path = support_path("flipped");
    size_t size, last;
    char *data;

    assert_ok(file_read(write_samples("whole", RECORDS), 1 << 20, &data, &size, &err));
    last = size - sample_bytes(RECORDS - 1);
    for (size_t at = 0; at < size; at++) {
        struct journal_read_result out;
        enum status status;

        data[at] = (char)(data[at] ^ (1 << at % 8));
        assert_ok(file_publish(path, data, size, &err));
        data[at] = (char)(data[at] ^ (1 << at % 8));
        status = read_samples(path, &head, 0, &out);
        if (status == STATUS_OK && out.torn_bytes == 0)
            ck_assert_int_eq(data[at], 0); /* padding is not read */
        else if (status == STATUS_OK)
            ck_assert_msg(at >= last && out.records == RECORDS - 1, "byte %zu", at);
        else
            ck_assert_msg(status == STATUS_DATA && at < last && strstr(err.text, path),
                          "byte %zu: %s", at, err.text);
        if (status != STATUS_OK && at >= JOURNAL_HEAD)
            ck_assert_msg(strstr(err.text, "damaged at byte ") != NULL, "%s", err.text);
    }
    free(data);
}
END_TEST

/* A record's head is overwritten, and the next head follows after 200 KiB of other bytes. */
START_TEST(test_damage_far_before_the_next_record)
{
    size_t hole = 200u << 10, size, first = sample_bytes(0);
    char *data, *wide;

    assert_ok(file_read(write_samples("whole", 2), 1 << 20, &data, &size, &err));
    wide = calloc(size + hole, 1);
    ck_assert_ptr_nonnull(wide);
    memcpy(wide, data, JOURNAL_HEAD + first);
    memset(wide + JOURNAL_HEAD + first, 'x', hole);
    memcpy(wide + JOURNAL_HEAD + first + hole, data + JOURNAL_HEAD + first,
           size - JOURNAL_HEAD - first);
    assert_fails(read_samples(support_write("wide", wide, size + hole), &head, 0, NULL),
                 STATUS_DATA, "damaged at byte ");
    assert_ok(read_samples(support_write("wide", wide, JOURNAL_HEAD + first + hole), &head, 0,
                           &(struct journal_read_result){0}));
    free(wide);
    free(data);
}
END_TEST

START_TEST(test_another_job)
{
    const char *path = write_samples("j", 1);
    struct journal_head other = head;
    char *data;
    size_t size;

    other.digest++;
    assert_fails(read_samples(path, &other, 0, NULL), STATUS_DATA, "belongs to another job");
    other = head;
    other.generation++;
    assert_fails(read_samples(path, &other, 0, NULL), STATUS_DATA, "generation 7");
    other = head;
    other.world_size++;
    assert_fails(read_samples(path, &other, 0, NULL), STATUS_DATA, path);
    assert_ok(file_read(path, 1 << 20, &data, &size, &err));
    data[0] = 'x';
    assert_fails(read_samples(support_write("t", data, size), &head, 0, NULL), STATUS_DATA,
                 "is not a journal");
    data[0] = 's';
    data[16] = 2;
    assert_fails(read_samples(support_write("t", data, size), &head, 0, NULL), STATUS_DATA,
                 "version 2");
    free(data);
}
END_TEST

START_TEST(test_rotate)
{
    const char *old = support_path("old"), *new = support_path("new");
    struct journal_head next = head;
    struct journal_read_result out;
    struct journal j;

    next.generation++;
    assert_ok(journal_create(&j, old, &head, &err));
    append_samples(&j, 0, 3);
    assert_ok(journal_rotate(&j, new, &err));
    append_samples(&j, 3, 5);
    assert_fails(journal_rotate(&j, old, &err), STATUS_EXISTS, old);
    append_samples(&j, 5, 6);
    ck_assert_uint_eq(j.records, 6);
    journal_close(&j);
    assert_ok(read_samples(old, &head, 0, &out));
    ck_assert_uint_eq(out.records, 3);
    assert_ok(read_samples(new, &next, 3, &out));
    ck_assert_uint_eq(out.records, 3);
}
END_TEST

static enum status refuse_second(void *user, const struct journal_record *r, struct error *e)
{
    unsigned *count = user;

    (void)r;
    return (*count)++ == 1 ? error_set(e, STATUS_MISMATCH, "no") : STATUS_OK;
}

START_TEST(test_callback_failure)
{
    const char *path = write_samples("j", 3);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    unsigned count = 0;
    char where[64];

    (void)snprintf(where, sizeof(where), "record at byte %d: no",
                   (int)(JOURNAL_HEAD + sample_bytes(0)));
    assert_fails(journal_read(fd, path, &head, refuse_second, &count, NULL, &err), STATUS_MISMATCH,
                 where);
    ck_assert_uint_eq(count, 2);
    (void)close(fd);
}
END_TEST

/* The file size limit acts as the full disk, at every byte of a record. */
START_TEST(test_a_full_disk)
{
    uint64_t three = JOURNAL_HEAD + sample_bytes(0) + sample_bytes(1) + sample_bytes(2);
    struct rlimit limit, old;
    struct sample s;

    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    make_sample(&s, 3);
    for (uint64_t room = 0; room < sample_bytes(3); room++) {
        const char *path = support_path("full");
        struct journal_read_result out;
        struct journal j;

        assert_ok(journal_create(&j, path, &head, &err));
        append_samples(&j, 0, 3);
        limit = old;
        limit.rlim_cur = three + room;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_fails(journal_append(&j, &s.record, &err), STATUS_NO_SPACE, path);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_fails(journal_append(&j, &s.record, &err), STATUS_NO_SPACE, path);
        ck_assert_uint_eq(j.records, 3);
        journal_close(&j);
        assert_ok(read_samples(path, &head, 0, &out));
        ck_assert_uint_eq(out.records, 3);
        ck_assert_uint_eq(out.torn_bytes, 0);
        ck_assert_int_eq(unlink(path), 0);
    }
}
END_TEST

#define THREADS    4u
#define PER_THREAD 200u

struct appender {
    struct journal *journal;
    unsigned index;
    unsigned failed;
    pthread_t thread;
};

static void *append_many(void *user)
{
    struct appender *a = user;
    float payload[1000];

    for (unsigned i = 0; i < 1000; i++)
        payload[i] = (float)a->index;
    for (unsigned i = 1; i <= PER_THREAD; i++) {
        struct journal_record r = {
            .partition = a->index, .step = i, .payload = payload, .size = sizeof(payload)};

        a->failed += journal_append(a->journal, &r, NULL) != STATUS_OK;
    }
    return NULL;
}

static enum status check_order(void *user, const struct journal_record *r, struct error *e)
{
    uint64_t *steps = user;
    float first;

    memcpy(&first, r->payload, sizeof(first));
    if (r->step != ++steps[r->partition] || (unsigned)first != r->partition)
        return error_set(e, STATUS_INTERNAL, "out of order");
    return STATUS_OK;
}

/* Threads append while another rotates the file; no record is lost, repeated or out of order. */
START_TEST(test_threads)
{
    struct appender appenders[THREADS];
    uint64_t steps[THREADS] = {0}, total = 0;
    struct journal j;
    char name[32];

    assert_ok(journal_create(&j, support_path("t7"), &head, &err));
    for (unsigned i = 0; i < THREADS; i++) {
        appenders[i] = (struct appender){.journal = &j, .index = i};
        ck_assert_int_eq(pthread_create(&appenders[i].thread, NULL, append_many, &appenders[i]), 0);
    }
    for (unsigned generation = 8; generation < 12; generation++) {
        (void)snprintf(name, sizeof(name), "t%u", generation);
        assert_ok(journal_rotate(&j, support_path(name), &err));
    }
    for (unsigned i = 0; i < THREADS; i++) {
        (void)pthread_join(appenders[i].thread, NULL);
        ck_assert_uint_eq(appenders[i].failed, 0);
    }
    journal_close(&j);
    for (unsigned generation = 7; generation < 12; generation++) {
        struct journal_head wanted = {WORLD, head.digest, generation};
        struct journal_read_result out;
        int fd;

        (void)snprintf(name, sizeof(name), "t%u", generation);
        fd = open(support_path(name), O_RDONLY | O_CLOEXEC);
        assert_ok(journal_read(fd, name, &wanted, check_order, steps, &out, &err));
        ck_assert_uint_eq(out.torn_bytes, 0);
        total += out.records;
        (void)close(fd);
    }
    ck_assert_uint_eq(total, THREADS * PER_THREAD);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("journal", 0, TEST(test_what_is_written_is_read),
                       TEST(test_a_file_that_is_there_is_not_overwritten), TEST(test_torn_tail),
                       TEST(test_a_flipped_bit_is_found),
                       TEST(test_damage_far_before_the_next_record), TEST(test_another_job),
                       TEST(test_rotate), TEST(test_callback_failure), TEST(test_a_full_disk),
                       TEST(test_threads));
}
