/*
 * A job ends with the same parameters in every synchronisation mode: with the same bits under
 * --reduce reproducible, and equal up to float tolerance to one process with an n times larger
 * batch.  Payload bytes must equal the textbook formula, which is computed here independently.
 */
#include "common/collective/collective.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL      "mlp:40-64-48-7" /* six partitions of 4 KiB, so both servers hold some */
#define PARAMETERS (40 * 64 + 64 + 64 * 48 + 48 + 48 * 7 + 7)
#define BYTES      ((int64_t)PARAMETERS * 4)

static const char *run_over_transport(const char *transport, unsigned ranks, unsigned servers,
                                      const char *sync, const char *update, const char *reduce,
                                      const char *batch, const char *save)
{
    bool on_gpu = strcmp(job_device(), "cpu") != 0; /* no shared memory */
    struct job job = {
        .ranks = ranks,
        .servers = servers,
        .worker = ARGS("--model", MODEL, "--data", "random:960,40,7", "--batch-size", batch,
                       "--epochs", "2", "--lr", "0.05", "--momentum", "0.9", "--nesterov",
                       "--weight-decay", "0.01", "--seed", "3", "--sync", sync, "--ps-update",
                       update, "--ps-transport", on_gpu ? "auto" : transport, "--connections",
                       strcmp(update, "server") == 0 ? "1" : "3", "--reduce", reduce,
                       "--partition-bytes", "4K", "--threads", "1", "--device", job_device(),
                       "--evaluate", "never", "--save", save),
    };

    return job_run(&job, 0);
}

static const char *run_sync_job(unsigned ranks, unsigned servers, const char *sync,
                                const char *update, const char *reduce, const char *batch,
                                const char *save)
{
    return run_over_transport("auto", ranks, servers, sync, update, reduce, batch, save);
}

START_TEST(test_reproducible_is_bit_identical)
{
    unsigned ranks = (unsigned)_i;
    const char *ring = support_path("ring.safetensors");
    const char *other = support_path("other.safetensors");

    (void)run_sync_job(ranks, 0, "allreduce", "server", "reproducible", "16", ring);
    for (unsigned bits = 0; bits < 8; bits++) {
        const char *transport = bits & 1 ? "shm" : "grpc", *update = bits & 2 ? "worker" : "server";
        unsigned servers = bits & 4 ? 2 : 1;

        (void)run_over_transport(transport, ranks, servers, "ps", update, "reproducible", "16",
                                 other);
        ck_assert_msg(job_same_tensors(ring, other), "%u ranks, %u servers, update on the %s, %s",
                      ranks, servers, update, transport);
    }
}
END_TEST

/* Every backend of the build sums in rank order, with the bits of the parameter server. */
START_TEST(test_backends_agree)
{
    const char *servers = support_path("servers.safetensors");
    const char *other = support_path("other.safetensors");
    struct job job = {.ranks = 3};

    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1); /* in a container the tests may be root */
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    (void)run_sync_job(3, 1, "ps", "server", "reproducible", "16", servers);
    job.worker =
        ARGS("--model", MODEL, "--data", "random:960,40,7", "--batch-size", "16", "--epochs", "2",
             "--lr", "0.05", "--momentum", "0.9", "--nesterov", "--weight-decay", "0.01", "--seed",
             "3", "--reduce", "reproducible", "--threads", "1", "--device", job_device(),
             "--evaluate", "never", "--save", other);
    for (const char *const *name = collective_backends(); *name; name++) {
        if (strcmp(*name, "nccl") == 0) /* sums in its own order only */
            continue;
        job.backend = *name;
        (void)job_run(&job, 0);
        ck_assert_msg(job_same_tensors(servers, other), "%s", *name);
    }
}
END_TEST

START_TEST(test_large_batch_agrees)
{
    const char *alone = support_path("alone.safetensors");
    const char *ring = support_path("ring.safetensors");
    const char *servers = support_path("servers.safetensors");
    double distance;

    (void)run_sync_job(1, 0, "local", "server", "fast", "48", alone);
    (void)run_sync_job(3, 0, "allreduce", "server", "fast", "16", ring);
    (void)run_sync_job(3, 2, "ps", "server", "fast", "16", servers);
    distance = job_checkpoint_distance(alone, ring);
    ck_assert_msg(distance < 1e-4, "ring: %g", distance);
    distance = job_checkpoint_distance(alone, servers);
    ck_assert_msg(distance < 1e-4, "servers: %g", distance);
}
END_TEST

/* Bytes that the rank sends in one ring all-reduce of `count` floats.  Each of the two phases has
 * n - 1 steps and sends all chunks but one: rank + 1 in the first phase, rank + 2 in the second. */
static int64_t ring_tx(int64_t count, unsigned n, unsigned rank)
{
    int64_t sent = 0;

    for (unsigned chunk = 0; chunk < n; chunk++) {
        int64_t size = count / n + (chunk < count % n);

        sent += chunk != (rank + 1) % n ? size : 0;
        sent += chunk != (rank + 2) % n ? size : 0;
    }
    return sent * 4;
}

/* One bucket, and large enough that no backend trades more bytes for fewer rounds. */
#define LARGE_MODEL "mlp:512-1024-512-7"
#define LARGE_COUNT (512 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 7 + 7)

static const char *run_large(unsigned ranks, const char *backend)
{
    struct job job = {
        .ranks = ranks,
        .worker = ARGS("--model", LARGE_MODEL, "--data", "random:64,512,7", "--batch-size", "2",
                       "--steps", "2", "--backend", backend, "--bucket-cap-mb", "25", "--threads",
                       "1", "--device", job_device(), "--evaluate", "never"),
    };

    return job_run(&job, 0);
}

/* Every step transfers all parameters once per direction; shared memory is not wire. */
static void check_ps_bytes(const char *run_dir, unsigned rank, const char *transport)
{
    int64_t steps = job_record_int(run_dir, rank, "end", "steps");
    bool shared = strcmp(transport, "shm") == 0 && strcmp(job_device(), "cpu") == 0;
    int64_t wanted[] = {BYTES * (steps + (rank == 0)), BYTES * (steps + 1)}; /* + initial values */

    for (int rx = 0; rx < 2; rx++) {
        const char *payload = rx ? "rx_payload_bytes" : "tx_payload_bytes";
        const char *reference = rx ? "rx_reference_bytes" : "tx_reference_bytes";
        const char *wire = rx ? "rx_wire_bytes" : "tx_wire_bytes";
        int64_t on_wire = shared ? 0 : wanted[rx];
        int64_t extra = job_record_int(run_dir, rank, "end", wire) - on_wire;

        ck_assert_int_eq(job_record_int(run_dir, rank, "step", payload), BYTES);
        ck_assert_int_eq(job_record_int(run_dir, rank, "end", reference), shared ? wanted[rx] : 0);
        ck_assert_msg(extra > 0 && extra < (steps + 2) * 6 * 48, "%s: %jd bytes of overhead", wire,
                      (intmax_t)extra);
    }
}

START_TEST(test_bytes_reconcile)
{
    const char *save = support_path("x.safetensors");
    unsigned ranks = (unsigned)_i;
    const char *run_dir;

    for (const char *const *backend = ARGS("ring", "shm"); *backend; backend++) {
        int64_t total = 0;

        run_dir = run_large(ranks, *backend);
        for (unsigned rank = 0; rank < ranks; rank++) {
            int64_t tx = job_record_int(run_dir, rank, "step", "tx_payload_bytes");

            ck_assert_int_eq(tx, job_record_int(run_dir, rank, "end", "expected_tx_payload_bytes"));
            if (strcmp(*backend, "ring") == 0)
                ck_assert_int_eq(tx, ring_tx(LARGE_COUNT, ranks, rank));
            total += tx;
        }
        ck_assert_int_eq(total, 2 * (ranks - 1) * (int64_t)LARGE_COUNT * 4);
    }
    for (const char *const *transport = ARGS("grpc", "shm"); *transport; transport++) {
        run_dir = run_over_transport(*transport, ranks, 2, "ps", "worker", "fast", "16", save);
        for (unsigned rank = 0; rank < ranks; rank++)
            check_ps_bytes(run_dir, rank, *transport);
    }
}
END_TEST

START_TEST(test_accumulation_is_a_larger_batch)
{
    const char *once = support_path("once.safetensors");
    const char *twice = support_path("twice.safetensors");
    struct job job = {
        .ranks = 2,
        .worker =
            ARGS("--model", MODEL, "--data", "random:960,40,7", "--batch-size", "16",
                 "--accumulate-steps", "2", "--epochs", "2", "--lr", "0.025", "--shuffle=false",
                 "--device", job_device(), "--evaluate", "never", "--save", twice),
    };
    double distance;

    /* As in no_sync, the gradients of the two batches are summed: half the learning rate. */
    (void)job_run(&job, 0);
    job.worker = ARGS("--model", MODEL, "--data", "random:960,40,7", "--batch-size", "32",
                      "--epochs", "2", "--lr", "0.05", "--shuffle=false", "--device", job_device(),
                      "--evaluate", "never", "--save", once);
    (void)job_run(&job, 0);
    distance = job_checkpoint_distance(once, twice);
    ck_assert_msg(distance < 1e-4, "accumulated: %g", distance);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("sync_equivalence", 200, LOOP_TEST(test_reproducible_is_bit_identical, 2, 5),
                       TEST(test_backends_agree), TEST(test_large_batch_agrees),
                       LOOP_TEST(test_bytes_reconcile, 2, 5),
                       TEST(test_accumulation_is_a_larger_batch));
}
