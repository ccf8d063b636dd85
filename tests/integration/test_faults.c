/*
 * Bad input and lost peers from the command line: the message names the cause, the exit code is not
 * 0, no process hangs and no data is lost.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/file.h"
#include "common/base/net.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 40000   /* limit of each wait for an expected event */
#define LONG_MS "60000" /* --timeout-ms: longer than WAIT_MS */

#define SMALL "--model", "mlp:16-8-4", "--data", "random:512,16,4", "--batch-size", "8"
#define ENDLESS                                                                                    \
    "--model", "mlp:64-64-8", "--data", "random:512,64,8", "--batch-size", "8", "--steps",         \
        "100000000"

static void expect_text(const char *output, const char *text)
{
    ck_assert_msg(strstr(output, text) != NULL, "no '%s' in:\n%s", text, output);
}

/* Start `count` endless workers with a file as their store, and wait until all of them train. */
static void start_workers(struct process *workers, unsigned count, const char *sync,
                          const char *servers, const char *timeout_ms)
{
    static unsigned serial;
    char url[600];
    char name[32];
    char world[16];

    (void)snprintf(name, sizeof(name), "store-%u", serial++);
    (void)snprintf(url, sizeof(url), "file://%s", support_path(name));
    (void)snprintf(world, sizeof(world), "%u", count);
    for (unsigned rank = 0; rank < count; rank++) {
        char rank_text[16];

        (void)snprintf(rank_text, sizeof(rank_text), "%u", rank);
        process_start(&workers[rank], NULL,
                      ARGS(support_program("sparring-worker"), ENDLESS, "--sync", sync, "--servers",
                           servers, "--init-method", url, "--world-size", world, "--rank",
                           rank_text, "--timeout-ms", timeout_ms, "--device", "cpu", "--threads",
                           "1", "--log-level", "debug"));
    }
    for (unsigned rank = 0; rank < count; rank++)
        process_wait_output(&workers[rank], "training starts", WAIT_MS);
}

static void expect_survivor_errors(struct process *workers, unsigned count, unsigned victim,
                                   const char *text, int timeout_ms)
{
    for (unsigned rank = 0; rank < count; rank++) {
        int code;

        if (rank == victim)
            continue;
        code = process_wait(&workers[rank], timeout_ms);
        ck_assert_msg(code > 0, "rank %u ended with %d:\n%s", rank, code,
                      process_output(&workers[rank]));
        expect_text(process_output(&workers[rank]), text);
    }
}

START_TEST(test_killed_rank_is_named_by_all)
{
    struct process workers[4];

    start_workers(workers, 4, "allreduce", "", LONG_MS);
    process_signal(&workers[2], SIGKILL);
    ck_assert_int_eq(process_wait(&workers[2], WAIT_MS), 128 + SIGKILL);
    expect_survivor_errors(workers, 4, 2, "rank 2 was lost, it is dead", WAIT_MS);
}
END_TEST

START_TEST(test_stopped_rank_is_named_within_the_timeout)
{
    struct process workers[3];

    start_workers(workers, 3, "allreduce", "", "10000");
    process_signal(&workers[1], SIGSTOP);
    expect_survivor_errors(workers, 3, 1, "rank 1", WAIT_MS);
    process_signal(&workers[1], SIGKILL);
    (void)process_wait(&workers[1], WAIT_MS);
}
END_TEST

static void start_server(struct process *server, char *address, size_t size)
{
    const char *port_file = support_path("port");
    struct error err = {0};
    char *text;
    size_t length;

    process_start(server, NULL,
                  ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0", "--port-file",
                       port_file));
    process_wait_output(server, "serving on", WAIT_MS);
    assert_ok(file_read(port_file, 64, &text, &length, &err));
    (void)snprintf(address, size, "127.0.0.1:%.*s", (int)strcspn(text, "\n"), text);
    free(text);
}

START_TEST(test_killed_worker_of_a_server)
{
    struct process server;
    struct process workers[3];
    char address[64];

    start_server(&server, address, sizeof(address));
    start_workers(workers, 3, "ps", address, LONG_MS);
    process_signal(&workers[1], SIGKILL);
    (void)process_wait(&workers[1], WAIT_MS);
    expect_survivor_errors(workers, 3, 1, "rank 1", WAIT_MS);
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, WAIT_MS), 0);
}
END_TEST

START_TEST(test_killed_server_is_named)
{
    struct process server;
    struct process workers[2];
    char address[64];

    start_server(&server, address, sizeof(address));
    start_workers(workers, 2, "ps", address, LONG_MS);
    process_signal(&server, SIGKILL);
    (void)process_wait(&server, WAIT_MS);
    expect_survivor_errors(workers, 2, 2, address, WAIT_MS);
}
END_TEST

START_TEST(test_terminated_ranks_report_the_signal)
{
    struct process workers[2];

    start_workers(workers, 2, "allreduce", "", LONG_MS);
    for (unsigned rank = 0; rank < 2; rank++)
        process_signal(&workers[rank], SIGTERM);
    for (unsigned rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(process_wait(&workers[rank], WAIT_MS), 6);
        expect_text(process_output(&workers[rank]), "stopped by signal 15");
    }
}
END_TEST

/* A process that waits for a missing rank or server ends at once on SIGTERM. */
START_TEST(test_terminated_while_waiting_for_peers)
{
    static const char *const schemes[] = {"unix", "file"};
    const struct timespec poll_interval = {.tv_nsec = 10000000};
    bool waits_for_rank = _i < 2; /* otherwise for a server that does not exist */
    const char *ready_path = support_path(waits_for_rank ? "store" : "records");
    struct process worker;
    char url[600];
    char server[600];

    (void)snprintf(url, sizeof(url), "%s://%s", schemes[waits_for_rank ? _i : 0],
                   support_path("store"));
    (void)snprintf(server, sizeof(server), "unix:%s", support_path("server"));
    process_start(&worker, NULL,
                  ARGS(support_program("sparring-worker"), SMALL, "--steps", "1", "--init-method",
                       url, "--world-size", waits_for_rank ? "2" : "1", "--rank", "0", "--sync",
                       waits_for_rank ? "allreduce" : "ps", "--servers", server, "--run-dir",
                       waits_for_rank ? "" : ready_path));
    while (access(ready_path, F_OK) != 0)
        (void)nanosleep(&poll_interval, NULL);
    process_signal(&worker, SIGTERM);
    ck_assert_int_eq(process_wait(&worker, WAIT_MS), 6);
    expect_text(process_output(&worker), "stopped by signal 15");
}
END_TEST

START_TEST(test_missing_rank_is_named)
{
    const char *output = process_run(4, WAIT_MS, NULL,
                                     ARGS(support_program("sparring-worker"), SMALL, "--steps", "1",
                                          "--init-method", "tcp://127.0.0.1:0", "--world-size", "2",
                                          "--rank", "0", "--timeout-ms", "4000"));

    expect_text(output, "rank 1");
    output = process_run(4, WAIT_MS, NULL,
                         ARGS(support_program("sparring-worker"), SMALL, "--steps", "1",
                              "--init-method", "tcp://127.0.0.1:1", "--world-size", "2", "--rank",
                              "1", "--timeout-ms", "4000"));
    expect_text(output, "127.0.0.1:1");
    expect_text(output, "rank 0");
}
END_TEST

START_TEST(test_port_in_use_names_holder_and_origin)
{
    struct endpoint any = {.host = "127.0.0.1", .port = 0};
    struct error err = {0};
    char port[32];
    char holder_text[32];
    uint16_t port_number;
    const char *output;
    int fd;

    assert_ok(net_listen(&any, "test", &fd, &port_number, &err));
    (void)snprintf(port, sizeof(port), "MASTER_PORT=%u", port_number);
    output = process_run(1, WAIT_MS, ARGS("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port),
                         ARGS(support_program("sparring-worker"), SMALL, "--steps", "1"));
    expect_text(output, "MASTER_PORT");
    (void)snprintf(holder_text, sizeof(holder_text), "pid %d", getpid());
    expect_text(output, holder_text);
    (void)close(fd);
}
END_TEST

static void run_pair(const char *const *first, const char *const *second, const char *const *texts)
{
    struct process a;
    struct process b;

    process_start(&a, NULL, first);
    process_start(&b, NULL, second);
    ck_assert_int_gt(process_wait(&a, WAIT_MS), 0);
    ck_assert_int_gt(process_wait(&b, WAIT_MS), 0);
    for (; *texts; texts++) {
        expect_text(process_output(&a), *texts);
        expect_text(process_output(&b), *texts);
    }
}

START_TEST(test_every_difference_is_listed)
{
    char url[600];
    const char *worker = support_program("sparring-worker");

    (void)snprintf(url, sizeof(url), "file://%s", support_path("differ"));
    run_pair(ARGS(worker, "--model", "mlp:16-8-4", "--data", "random:512,16,4", "--batch-size", "8",
                  "--steps", "5", "--init-method", url, "--world-size", "2", "--rank", "0",
                  "--timeout-ms", LONG_MS),
             ARGS(worker, "--model", "mlp:16-9-4", "--data", "random:512,16,4", "--batch-size",
                  "16", "--steps", "5", "--init-method", url, "--world-size", "2", "--rank", "1",
                  "--timeout-ms", LONG_MS),
             ARGS("fc1.weight", "fc2.weight", "batch size", "(8, 16)", "(9, 16)"));
}
END_TEST

START_TEST(test_world_size_mismatch)
{
    char url[600];
    const char *worker = support_program("sparring-worker");

    (void)snprintf(url, sizeof(url), "file://%s", support_path("sizes"));
    run_pair(ARGS(worker, SMALL, "--steps", "5", "--init-method", url, "--world-size", "2",
                  "--rank", "0", "--timeout-ms", LONG_MS),
             ARGS(worker, SMALL, "--steps", "5", "--init-method", url, "--world-size", "3",
                  "--rank", "1", "--timeout-ms", LONG_MS),
             ARGS("world size", "3", "2"));
}
END_TEST

/* `layers` layers of one unit: many tensors of few elements, so that the checkpoint, mostly header,
 * is larger than the model in memory. */
static const char *thin_model(unsigned layers)
{
    static char text[2048];
    size_t used = (size_t)snprintf(text, sizeof(text), "mlp:16");

    for (unsigned i = 1; i < layers; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "-1");
    (void)snprintf(text + used, sizeof(text) - used, "-4");
    return text;
}

/* ulimit -f (in blocks of 512 or 1024 bytes) simulates a full disk: the write fails half-way, also
 * for root.  The limit applies to shared memory, too. */
START_TEST(test_full_disk)
{
    const char *worker = support_program("sparring-worker");
    const char *save = support_write("old.safetensors", "old", 3);
    const char *run_dir = support_path("full");
    struct error err = {0};
    char *text;
    size_t size;

    expect_text(process_run(1, WAIT_MS, NULL,
                            ARGS("/bin/sh", "-c", "ulimit -f 40; exec \"$@\"", "sh", worker, SMALL,
                                 "--steps", "200", "--run-dir", run_dir)),
                "rank0.jsonl");
    expect_text(process_run(1, WAIT_MS, NULL,
                            ARGS("/bin/sh", "-c", "ulimit -f 8; exec \"$@\"", "sh", worker,
                                 "--model", thin_model(63), "--data", "random:512,16,4",
                                 "--batch-size", "8", "--steps", "3", "--save", save)),
                "old.safetensors");
    assert_ok(file_read(save, 64, &text, &size, &err)); /* the old file is unchanged */
    ck_assert_str_eq(text, "old");
    free(text);
    expect_text(process_run(1, WAIT_MS, NULL,
                            ARGS("/bin/sh", "-c", "ulimit -f 1; exec \"$@\"", "sh", worker, SMALL,
                                 "--steps", "3")),
                "sparring-model' to 4096 bytes: the limit on the size of files (ulimit -f)");
}
END_TEST

START_TEST(test_bad_files)
{
    const char *folder = support_folder();
    const char *worker = support_program("sparring-worker");
    char data[600];

    (void)support_write("train-images-idx3-ubyte", "\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c?",
                        17);
    (void)support_write("train-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x02\1\2", 10);
    (void)snprintf(data, sizeof(data), "mnist:%s", folder);
    expect_text(process_run(3, WAIT_MS, NULL,
                            ARGS(worker, "--model", "mlp:784-10", "--data", data, "--steps", "1")),
                "train-images-idx3-ubyte");
    (void)snprintf(data, sizeof(data), "%s",
                   support_write("x.safetensors", "\x03\0\0\0\0\0\0\0{}", 10));
    expect_text(process_run(3, WAIT_MS, NULL,
                            ARGS(worker, "--model", "mlp:784-10", "--data", data, "--steps", "1")),
                "x.safetensors");
}
END_TEST

START_TEST(test_usage)
{
    const char *worker = support_program("sparring-worker");

    expect_text(process_run(2, WAIT_MS, NULL, ARGS(worker, "--batchsize", "3")), "batch-size");
    expect_text(process_run(2, WAIT_MS, NULL, ARGS(worker, SMALL)), "--epochs");
    expect_text(process_run(3, WAIT_MS, ARGS("RANK=1"), ARGS(worker, SMALL, "--steps", "1")),
                "WORLD_SIZE");
    expect_text(process_run(3, WAIT_MS, NULL,
                            ARGS(worker, "--model", "mlp:16-x-4", "--data", "random:9,16,4",
                                 "--steps", "1")),
                "mlp:16-x-4");
    /* A single rank does not communicate, but invalid options are still refused. */
    expect_text(process_run(3, WAIT_MS, ARGS("CUDA_VISIBLE_DEVICES="),
                            ARGS(worker, SMALL, "--steps", "1", "--backend", "nccl")),
                "the nccl backend cannot run here: ");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "faults", 240, TEST(test_killed_rank_is_named_by_all),
        TEST(test_stopped_rank_is_named_within_the_timeout), TEST(test_killed_worker_of_a_server),
        TEST(test_killed_server_is_named), TEST(test_terminated_ranks_report_the_signal),
        LOOP_TEST(test_terminated_while_waiting_for_peers, 0, 3), TEST(test_missing_rank_is_named),
        TEST(test_port_in_use_names_holder_and_origin), TEST(test_every_difference_is_listed),
        TEST(test_world_size_mismatch), TEST(test_full_disk), TEST(test_bad_files),
        TEST(test_usage));
}
