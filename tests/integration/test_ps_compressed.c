/*
 * Compressed jobs that lose servers and workers: what a rank was told, and what was left out of it,
 * is not lost with whoever said it.  Where the job promises the bits of an undisturbed run they are
 * those; elsewhere all ranks end well, and with the same parameters.
 */
#include "tests/integration/job.h"
#include "tests/integration/room.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define STEPS "300" /* a strike is far from the last one */

/* A server comes back, or its replica takes over, as soon as a busy host lets it. */
#define PATIENT "--reconnect-ms", "20000"

/* Who is hit; a worker, and a server without a replica, is started again. */
enum victim { NOBODY, PRIMARY, REPLICA, SERVER, WORKER, BOTH };

static const struct scene {
    const char *name;
    const char *const *worker; /* options */
    const char *update;
    enum victim victim;
    bool exact;
} scenes[] = {
    {"a server that is started again, changes of values",
     ARGS("--compression", "topk", "--compression-down", "onebit", PATIENT), "server", SERVER,
     true},
    {"a server that is started again, sums",
     ARGS("--compression", "onebit", "--compression-down", "topk", PATIENT), "worker", SERVER,
     true},
    {"a replica that takes over, changes of values",
     ARGS("--compression", "fp16", "--compression-down", "topk", PATIENT), "server", PRIMARY, true},
    {"a replica that is lost", ARGS("--compression", "rows", "--compression-down", "rows", PATIENT),
     "server", REPLICA, true},
    {"a server and a worker",
     ARGS("--compression", "fp16", "--compression-down", "onebit", "--on-worker-loss", "wait",
          "--reconnect-ms", "5000"),
     "server", BOTH, true},
    {"a worker, rounded values",
     ARGS("--compression", "bf16", "--compression-down", "fp16", "--on-worker-loss", "wait",
          "--reconnect-ms", "500"),
     "server", WORKER, true},
    {"a server of ranks that are told on their own",
     ARGS("--compression", "onebit", "--compression-down", "topk", "--consistency", "ssp",
          "--staleness", "2", "--reduce", "fast", PATIENT),
     "server", SERVER, false},
    {"a replica that takes over, ranks that are told on their own",
     ARGS("--compression-down", "onebit", "--consistency", "asp", "--reduce", "fast", PATIENT),
     "server", PRIMARY, false},
    {"a worker, whose residual is lost, among others that go on",
     ARGS("--compression", "topk", "--compression-down", "rows", "--consistency", "asp", "--reduce",
          "fast", "--on-worker-loss", "wait", "--reconnect-ms", "500"),
     "server", WORKER, false},
};

static struct room room_of(const struct scene *scene, enum victim victim)
{
    return (struct room){.ranks = 2,
                         .servers = 1,
                         .worker = scene->worker,
                         .update = scene->update,
                         .steps = STEPS,
                         .replicas = victim == PRIMARY || victim == REPLICA,
                         .with_state = victim == SERVER || victim == BOTH};
}

static void strike(struct room *r, enum victim victim)
{
    bool server = victim == PRIMARY || victim == SERVER || victim == BOTH;

    job_await_step(r->run_dir, 0, 3 + (int64_t)(support_random() * 100));
    room_mark(r, 0);
    if (victim == WORKER || victim == BOTH)
        room_hit_worker(r, 1, SIGKILL);
    if (server || victim == REPLICA)
        room_hit_server(r, victim == REPLICA ? 1 : 0, SIGKILL);
    if (victim == SERVER || victim == BOTH)
        room_start_server(r, 0);
    if (victim == WORKER || victim == BOTH)
        room_start_worker(r, 1);
}

/* What the strike must have left behind, or it hit nothing. */
static void check_struck(const struct room *r, enum victim victim)
{
    if (victim == PRIMARY)
        ck_assert_int_eq(job_record_int(r->run_dir, 0, "end", "takeovers"), 1);
    if (victim == SERVER || victim == BOTH)
        ck_assert_int_ge(job_record_int(r->run_dir, 0, "end", "reconnects"), 1);
}

/* All end well, with the same parameters, whose hash is left in ret. */
static void end(struct room *r, enum victim victim, char ret[32])
{
    room_expect_success(r, ROOM_NOBODY, false);
    check_struck(r, victim);
    (void)snprintf(ret, 32, "%s", job_record_text(r->run_dir, 0, "end", "parameters_hash"));
    ck_assert_str_eq(ret, job_record_text(r->run_dir, 1, "end", "parameters_hash"));
    room_close(r);
}

START_TEST(test_nothing_said_is_lost)
{
    const struct scene *scene = &scenes[_i];
    struct room quiet = room_of(scene, NOBODY), struck = room_of(scene, scene->victim);
    char wanted[32], got[32];

    printf("%s\n", scene->name);
    room_open(&struck);
    room_start_workers(&struck);
    strike(&struck, scene->victim);
    end(&struck, scene->victim, got);
    if (!scene->exact)
        return;
    room_open(&quiet);
    room_start_workers(&quiet);
    end(&quiet, NOBODY, wanted);
    ck_assert_str_eq(got, wanted);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ps_compressed");
    TCase *tests = tcase_create("ps_compressed");

    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, test_nothing_said_is_lost, 0,
                        (int)(sizeof(scenes) / sizeof(scenes[0])));
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
