/*
 * Whole jobs whose two servers get SIGKILL or SIGTERM at random steps and are restarted: the
 * workers reconnect, and the job ends with the checkpoint of an undisturbed one.  Over shared
 * memory and sockets, with every optimizer, updates on servers and on workers.  For faults in each
 * phase of a round see test_ps_loss_policy.c.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 60000
#define TIMEOUT "20000" /* a stalled round must report before the test times out */
#define RANKS   2u
#define SERVERS 2u
#define STEPS   300
#define FAULTS  6
#define PROOF   20 /* steps that no rank makes without both servers */

struct job_options {
    const char *const *worker; /* options */
    bool exact;                /* must have the bits of an undisturbed run */
};

struct run {
    const struct job_options *job_options;
    const char *folder, *store;
    uint16_t ports[SERVERS];
    struct process servers[SERVERS], workers[RANKS];
};

static const char *path_in_folder(const struct run *r, const char *name)
{
    static char path[700];

    (void)snprintf(path, sizeof(path), "%s/%s", r->folder, name);
    return path;
}

static void start_server(struct run *r, unsigned k)
{
    char listen[64], state[32];

    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", (unsigned)r->ports[k]);
    (void)snprintf(state, sizeof(state), "state-%u", k);
    process_start(&r->servers[k], NULL,
                  ARGS(support_program("sparring-server"), "--listen", listen, "--run-dir",
                       r->folder, "--state-dir", path_in_folder(r, state), "--snapshot-every", "11",
                       "--timeout-ms", TIMEOUT));
    process_wait_output(&r->servers[k], "serving on", WAIT_MS);
}

static void start_worker(struct run *r, unsigned rank)
{
    char servers[64], url[700], own[16], save[700];
    const char *arguments[64] = {support_program("sparring-worker")};
    size_t count = 1;

    (void)snprintf(servers, sizeof(servers), "127.0.0.1:%u,127.0.0.1:%u", (unsigned)r->ports[0],
                   (unsigned)r->ports[1]);
    (void)snprintf(url, sizeof(url), "file://%s", r->store);
    (void)snprintf(own, sizeof(own), "%u", rank);
    (void)snprintf(save, sizeof(save), "%s", path_in_folder(r, "end.safetensors"));
    for (const char *const *w =
             ARGS("--model", "mlp:64-96-64-8", "--data", "random:4096,64,8", "--batch-size", "8",
                  "--lr", "0.01", "--reduce", "reproducible", "--threads", "1", "--device", "cpu",
                  "--seed", "7", "--partition-bytes", "4096", "--sync", "ps", "--world-size", "2",
                  "--reconnect-ms", "60000", "--steps", "300", "--rank", own, "--servers", servers,
                  "--init-method", url, "--run-dir", r->folder, "--timeout-ms", TIMEOUT);
         *w; w++)
        arguments[count++] = *w;
    for (const char *const *w = r->job_options->worker; *w; w++)
        arguments[count++] = *w;
    if (rank == 0) {
        arguments[count++] = "--save";
        arguments[count++] = save;
    }
    process_start(&r->workers[rank], NULL, arguments);
}

static void start_job(struct run *r, const struct job_options *job_options)
{
    static unsigned serial;
    char name[32];

    *r = (struct run){.job_options = job_options};
    (void)snprintf(name, sizeof(name), "run-%u", serial);
    r->folder = support_path(name);
    (void)snprintf(name, sizeof(name), "store-%u", serial++);
    r->store = support_path(name);
    for (unsigned k = 0; k < SERVERS; k++) {
        r->ports[k] = support_port();
        start_server(r, k);
    }
    for (unsigned rank = 0; rank < RANKS; rank++)
        start_worker(r, rank);
}

/* At a random time after `step`, end one server (SIGKILL or SIGTERM) or both, and restart them.
 * True if rank 0 has reconnected: it is PROOF steps further than at the fault. */
static bool restart_random_servers(struct run *r, int64_t step)
{
    unsigned k = support_random() < 0.5;
    bool is_sigterm = support_random() < 0.3;
    int64_t reached;

    job_await_step(r->folder, 0, step);
    (void)poll(NULL, 0, (int)(support_random() * 10));
    process_signal(&r->servers[k], is_sigterm ? SIGTERM : SIGKILL);
    ck_assert_int_eq(process_wait(&r->servers[k], WAIT_MS), is_sigterm ? 0 : 128 + SIGKILL);
    if (support_random() < 0.3) { /* both are down at once */
        process_signal(&r->servers[1 - k], SIGKILL);
        ck_assert_int_eq(process_wait(&r->servers[1 - k], WAIT_MS), 128 + SIGKILL);
        start_server(r, 1 - k);
    }
    reached = job_newest_int(r->folder, 0, "step", "step");
    start_server(r, k);
    if (reached + PROOF >= STEPS)
        return false;
    job_await_step(r->folder, 0, reached + PROOF);
    return true;
}

/* All workers must succeed, and the servers must leave no state. */
static void check_end(struct run *r)
{
    for (unsigned rank = 0; rank < RANKS; rank++) {
        int code = process_wait(&r->workers[rank], WAIT_MS);

        ck_assert_msg(code == 0, "rank %u ended with %d:\n%s", rank, code,
                      process_output(&r->workers[rank]));
    }
    for (unsigned k = 0; k < SERVERS; k++) {
        char state_folder[64];

        process_signal(&r->servers[k], SIGTERM);
        ck_assert_int_eq(process_wait(&r->servers[k], WAIT_MS), 0);
        (void)snprintf(state_folder, sizeof(state_folder), "state-%u/default.%u", k, k);
        ck_assert_int_ne(access(path_in_folder(r, state_folder), F_OK), 0);
    }
}

static const char *const grpc_momentum[] = {"--ps-transport", "grpc", "--momentum", "0.9", NULL};
static const char *const auto_adamw[] = {"--optimizer", "adamw", NULL};
static const char *const on_worker[] = {"--ps-update", "worker", "--optimizer", "adam", NULL};
static const char *const three_connections[] = {
    "--connections", "3", "--ps-transport", "grpc", "--compression", "fp16", NULL};
static const char *const ssp[] = {"--consistency", "ssp",  "--staleness", "2",
                                  "--reduce",      "fast", NULL};
static const char *const asp[] = {"--consistency", "asp",  "--momentum", "0.9",
                                  "--reduce",      "fast", NULL};

static const struct job_options job_variants[] = {
    {grpc_momentum, true},     {auto_adamw, true}, {on_worker, true},
    {three_connections, true}, {ssp, false},       {asp, false},
};
#define JOB_VARIANTS ((int)(sizeof(job_variants) / sizeof(job_variants[0])))

START_TEST(test_servers_restart_repeatedly)
{
    const struct job_options *job_options = &job_variants[_i];
    struct run undisturbed, disturbed;
    char wanted[700];
    int reconnects = 0;

    start_job(&disturbed, job_options);
    for (int i = 0; i < FAULTS; i++)
        reconnects += restart_random_servers(&disturbed, i * STEPS / FAULTS);
    check_end(&disturbed);
    ck_assert_int_ge(job_record_int(disturbed.folder, 0, "end", "reconnects"), reconnects);
    ck_assert_int_eq(job_newest_int(disturbed.folder, 1, "step", "step"), STEPS - 1);
    if (!job_options->exact)
        return;
    start_job(&undisturbed, job_options);
    check_end(&undisturbed);
    (void)snprintf(wanted, sizeof(wanted), "%s", path_in_folder(&undisturbed, "end.safetensors"));
    ck_assert(job_same_tensors(wanted, path_in_folder(&disturbed, "end.safetensors")));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("ps_restart", 120,
                       LOOP_TEST(test_servers_restart_repeatedly, 0, JOB_VARIANTS));
}
