/*
 * A service with a state folder: what each kind of end does to the folder of a job, and what a
 * service that starts does with it.
 */
#include "common/base/file.h"
#include "common/base/log.h"
#include "server/service/service_internal.h"
#include "tests/server/service/session_job.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct error err;
static uint16_t port;
static const char *folder, *job_folder, *failed_folder;

static struct service_config make_config(void)
{
    return (struct service_config){.listen = {.host = "127.0.0.1", .port = port},
                                   .listen_origin = "test",
                                   .threads = 2,
                                   .timeout_ms = LONG_MS,
                                   .run_dir = support_path("run"),
                                   .state_dir = folder,
                                   .snapshot_every = 2};
}

static enum status try_open(void)
{
    struct service_config config = make_config();

    return service_open(&config, &service, &err);
}

static void open_state(void)
{
    assert_ok(try_open());
    for (unsigned i = 0; i < 3; i++) {
        uint64_t session = workers[i].session;
        unsigned lanes = workers[i].lanes;

        raw_open(&workers[i], port, i);
        workers[i].session = session;
        workers[i].lanes = lanes;
    }
}

static void setup(void)
{
    log_set_level(LOG_QUIET);
    port = support_port();
    folder = support_path("state");
    job_folder = support_path("state/raw.0");
    failed_folder = support_path("state/raw.0.failed");
    open_state();
}

static void teardown(void)
{
    close_service();
}

/* Restart the server after the workers' streams have ended. */
static void restart(void)
{
    service_close(service);
    for (unsigned i = 0; i < session_terms.world_size; i++) {
        struct rpc_result ended;

        if (!workers[i].stream.call)
            continue;
        /* A stream that the server had not received yet is not ended by it: gRPC would keep it for
         * the next server. */
        rpc_call_cancel(workers[i].stream.call);
        ended = raw_wait_closed(&workers[i].stream);
        /* Without a status of the server: the stream was cancelled, or its connection lost. */
        ck_assert_msg(ended.status == STATUS_UNAVAILABLE || !ended.by_peer, "rank %u: %s (%s)", i,
                      ended.text, status_name(ended.status));
    }
    close_workers();
    open_state();
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void wait_removed(const char *path)
{
    while (exists(path))
        (void)sched_yield();
}

static void wait_exists(const char *path)
{
    while (!exists(path))
        (void)sched_yield();
}

/* The service accepts a job of other sessions. */
static void check_serves_another_job(void)
{
    for (unsigned i = 0; i < session_terms.world_size; i++)
        workers[i].session = 0;
    check_still_serves();
    wait_removed(job_folder);
}

/* Occurrences of the text in the run log. */
static unsigned count_in_run_log(const char *text)
{
    const char *path = support_path("run/server0.jsonl");
    unsigned count = 0;
    char *data;
    size_t size;

    assert_ok(file_read(path, 1 << 20, &data, &size, &err));
    for (const char *at = data; (at = strstr(at, text)); at++)
        count++;
    free(data);
    return count;
}

START_TEST(test_stop_and_resume)
{
    session_start(0.5f);
    for (uint64_t round = 1; round <= 3; round++)
        session_round(round);
    ck_assert(exists(job_folder));
    restart();
    session_resume(1);
    session_resume(0);
    session_round(4);
    restart();
    session_resume(0);
    session_resume(1);
    ck_assert_uint_eq(session_counters(NULL).restored_jobs, 1);
    session_push_all(0, 5);
    session_wait_taken(RAW_PARTITIONS); /* only in memory: lost, and sent again */
    restart();
    session_resume(0);
    session_resume(1);
    session_repeat_all(0, 5);
    session_push_all(1, 5);
    session_expect_all(0, 5, session_sum(5));
    session_expect_all(1, 5, session_sum(5));
    ck_assert_uint_gt(session_counters(NULL).journal_bytes, RAW_COUNT * sizeof(float));
    ck_assert_uint_eq(session_counters(NULL).journal_records, RAW_PARTITIONS);
    session_end();
    wait_removed(job_folder);
    check_serves_another_job();
    service_close(service);
    ck_assert_uint_eq(count_in_run_log("\"state\""), 5);
    ck_assert_uint_eq(count_in_run_log("\"restored\":1"), 3);
    assert_ok(try_open());
}
END_TEST

/* A reply that was sent before the server stopped is sent again. */
START_TEST(test_lost_replies)
{
    session_start(0.5f);
    session_round(1);
    restart();
    session_resume(0);
    session_resume(1);
    session_repeat_all(1, 1);
    session_expect_all(1, 1, session_sum(1));
    session_repeat_all(0, 1);
    session_expect_all(0, 1, session_sum(1));
    session_round(2);
    session_end();
}
END_TEST

/* A rank that leaves while the server stops is told to come back: the folder knows it as a member.
 */
START_TEST(test_leave_while_stopping)
{
    session_start(0.5f);
    session_round(1);
    job_table_drain(&service->table);
    for (unsigned i = 0; i < session_terms.world_size; i++)
        check_result("leave", raw_leave(&workers[i], "raw", ""), STATUS_UNAVAILABLE, "is stopping");
    restart();
    session_resume(0);
    session_resume(1);
    session_end();
    wait_removed(job_folder);
    check_serves_another_job();
}
END_TEST

START_TEST(test_no_rank_reconnects)
{
    session_terms.reconnect_ms = 300;
    session_start(0.5f);
    session_round(1);
    restart();
    wait_exists(failed_folder);
    ck_assert(!exists(job_folder));
    check_serves_another_job();
    service_close(service);
    assert_ok(try_open()); /* a folder put aside is ignored */
    for (unsigned i = 0; i < 3; i++)
        raw_close(&workers[i]);
    for (unsigned i = 0; i < 3; i++)
        raw_open(&workers[i], port, i);
    check_serves_another_job();
}
END_TEST

/* A replacement joins as the rank and pulls. */
static void join_as_replacement(unsigned rank, float value)
{
    struct join_request request;

    workers[rank].session = 200 + rank;
    request = session_request(rank);
    check_result("take", session_join(&workers[rank], &request), STATUS_OK, "");
    raw_start_lanes(&workers[rank]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[rank], CHUNK_PULL, p, 0, 0);
    session_expect_all(rank, 1, value);
}

/* All ranks are lost and the job fails; its folder is renamed back, and replacements join. */
START_TEST(test_failed_job_is_resumed)
{
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    session_terms.update = 0;
    session_terms.reconnect_ms = 4000;
    session_start(100);
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 1);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 1, 100 - session_sum(1));
    for (unsigned i = 0; i < 2; i++)
        raw_disconnect(&workers[i]);
    wait_exists(failed_folder);
    close_service();
    ck_assert_int_eq(rename(failed_folder, job_folder), 0);
    open_state();
    for (unsigned i = 0; i < 2; i++)
        join_as_replacement(i, 100 - session_sum(1));
    for (unsigned i = 0; i < 2; i++)
        session_repeat_all(i, 2);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 2, 100 - session_sum(1) - session_sum(2));
    session_end();
    wait_removed(job_folder);
}
END_TEST

/* Rounds continue without the lost rank, also after a restart. */
START_TEST(test_a_lost_rank_stays_lost)
{
    struct stats_job job;

    session_terms.on_loss = WORKER_LOSS_SHRINK;
    session_terms.update = 0;
    session_terms.reconnect_ms = 4000;
    session_start(100);
    raw_disconnect(&workers[1]);
    session_wait_lost(1);
    session_push_all(0, 1);
    session_expect_all(0, 1, 100 - 2 * session_push(0, 1)); /* the mean of one */
    service_close(service);
    close_workers();
    open_state();
    (void)session_counters(&job);
    ck_assert_uint_eq(job.epoch, 2);
    ck_assert_uint_eq(job.joined, 1);
    session_resume(0);
    session_push_all(0, 2);
    session_expect_all(0, 2, 100 - 2 * session_push(0, 1) - 2 * session_push(0, 2));
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    wait_removed(job_folder);
}
END_TEST

START_TEST(test_leave_is_persistent)
{
    session_start(0.5f);
    session_round(1);
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    service_close(service);
    close_workers();
    open_state();
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_NOT_FOUND, "rank 0");
    ck_assert(exists(job_folder));
    check_result("leave", raw_leave(&workers[1], "raw", ""), STATUS_OK, "");
    wait_removed(job_folder);
}
END_TEST

START_TEST(test_foreign_joins)
{
    struct join_request request;

    session_start(0.5f);
    session_round(1);
    restart();
    request = session_request(0);
    memcpy(request.job, "other", 6);
    check_result("another job", session_join(&workers[0], &request), STATUS_UNAVAILABLE, "'raw'");
    request = session_request(0);
    request.session = 77;
    check_result("another session", session_join(&workers[0], &request), STATUS_EXISTS, "rank 0");
    request = session_request(0);
    request.resume = true;
    request.partition_bytes = 8192;
    check_result("other terms", session_join(&workers[0], &request), STATUS_MISMATCH,
                 "partition bytes");
    request = session_request(0);
    request.resume = true;
    request.round = 2;
    check_result("ahead", session_join(&workers[0], &request), STATUS_DATA, "round 2");
    wait_exists(failed_folder);
}
END_TEST

START_TEST(test_one_service_at_a_time)
{
    struct service *first = service;
    char pid[32];

    port = 0;
    (void)snprintf(pid, sizeof(pid), "(pid %ld)", (long)getpid());
    assert_fails(try_open(), STATUS_EXISTS, pid);
    service = first;
}
END_TEST

/* A service that fails to start does not change the state folder. */
START_TEST(test_a_port_that_is_taken)
{
    struct service_config config = make_config();
    struct service *other;

    session_start(0.5f);
    session_round(1);
    service_close(service);
    config.state_dir = NULL;
    assert_ok(service_open(&config, &other, &err));
    assert_fails(try_open(), STATUS_IO, "127.0.0.1");
    service_close(other);
    ck_assert(exists(job_folder));
    close_workers();
    open_state();
    session_resume(0);
    session_resume(1);
    session_round(2);
    session_end();
}
END_TEST

static void flip_bit(const char *path, off_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char byte;

    ck_assert_msg(fd >= 0, "%s", path);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte = (char)(byte ^ 4);
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    ck_assert_int_eq(close(fd), 0);
}

/* Each file in turn: the service fails to start and names it, and starts when it is repaired. */
START_TEST(test_damaged_files)
{
    static const struct {
        const char *name;
        off_t at;
    } files[] = {{"state/raw.0/terms.json", 300},
                 {"state/raw.0/snapshot-1.safetensors", 6000},
                 {"state/raw.0/journal-1", 20}};

    session_start(0.5f);
    session_round(1);
    service_close(service);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        const char *path = support_path(files[i].name);

        flip_bit(path, files[i].at);
        assert_fails(try_open(), STATUS_DATA, files[i].name);
        flip_bit(path, files[i].at);
    }
    close_workers();
    open_state();
    session_resume(0);
    session_resume(1);
    session_round(2);
    session_end();
}
END_TEST

START_TEST(test_a_full_disk)
{
    struct rlimit limit, old;

    (void)signal(SIGXFSZ, SIG_IGN);
    session_start(0.5f);
    session_round(1);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 100;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    session_push_all(0, 2);
    session_push_all(1, 2);
    for (unsigned i = 0; i < 2; i++)
        check_result("stream", raw_wait_closed(&workers[i].stream), STATUS_NO_SPACE,
                     "state/raw.0/journal-");
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    wait_exists(failed_folder);
    check_serves_another_job();
}
END_TEST

START_TEST(test_unsupported_configuration)
{
    struct join_request request;

    for (unsigned i = 0; i < 2; i++) {
        request = session_request(i);
        request.update = 0;
        request.order = 0;
        request.consistency =
            (struct consistency){.mode = CONSISTENCY_ASP, .delay_compensation = 0.5};
        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_UNSUPPORTED, "delay compensation");
    ck_assert(!exists(job_folder));
    check_serves_another_job();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "persistence", 60, CHECKED_FIXTURE(setup, teardown), TEST(test_stop_and_resume),
        TEST(test_leave_while_stopping), TEST(test_lost_replies), TEST(test_no_rank_reconnects),
        TEST(test_failed_job_is_resumed), TEST(test_a_lost_rank_stays_lost),
        TEST(test_leave_is_persistent), TEST(test_foreign_joins), TEST(test_one_service_at_a_time),
        TEST(test_a_port_that_is_taken), TEST(test_damaged_files), TEST(test_a_full_disk),
        TEST(test_unsupported_configuration));
}
