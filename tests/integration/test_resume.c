/*
 * Runs resumed from a checkpoint, from the command line.
 *
 * What must hold: with reproducible sums a run that was saved in the middle of an epoch and resumed
 * in other processes, with the same synchronisation or another, ends with the bits of an
 * uninterrupted run; so does one that was killed at a random step; and a checkpoint that cannot be
 * resumed is refused with a reason.
 */
#include "common/checkpoint/checkpoint.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORDS_MAX 64

/* 256 samples: 16 updates of 2 x 8 an epoch. */
#define JOB                                                                                        \
    "--data", "random:256,24,8", "--batch-size", "8", "--lr", "0.02", "--seed", "5", "--threads",  \
        "1", "--device", job_device(), "--reduce", "reproducible", "--evaluate", "never",          \
        "--timeout-ms", "60000"

struct mode {
    const char *name;
    const char *backend;
    unsigned servers;
    const char *words[6];
};

static const struct mode modes[] = {
    {"shm", "shm", 0, {"--sync", "allreduce"}},
    {"ring", "ring", 0, {"--sync", "allreduce"}},
    {"server", NULL, 2, {"--sync", "ps", "--partition-bytes", "4K"}},
    {"worker", NULL, 2, {"--sync", "ps", "--ps-update", "worker"}},
};
#define MODES (sizeof(modes) / sizeof(modes[0]))

/* With running statistics, and with a state that depends on the number of steps. */
static const char *const optimizers[][6] = {
    {"--model", "mlp-bn:24-64-64-8", "--momentum", "0.9", "--nesterov"},
    {"--model", "mlp:24-96-8", "--optimizer", "adamw", "--weight-decay", "0.1"},
};
#define OPTIMIZERS (sizeof(optimizers) / sizeof(optimizers[0]))

static const char *run_job(const struct mode *mode, unsigned ranks, const char *const *optimizer,
                           const char *const *more, int wanted)
{
    const char *words[WORDS_MAX] = {JOB};
    struct job job = {
        .backend = mode->backend, .ranks = ranks, .servers = mode->servers, .worker = words};
    size_t count = 0;

    while (words[count])
        count++;
    for (size_t i = 0; i < 6 && mode->words[i]; i++)
        words[count++] = mode->words[i];
    for (size_t i = 0; i < 6 && optimizer[i]; i++)
        words[count++] = optimizer[i];
    for (; *more; more++) {
        ck_assert_uint_lt(count, WORDS_MAX - 1);
        words[count++] = *more;
    }
    words[count] = NULL;
    return job_run(&job, wanted);
}

/* Of the parameters of all ranks, which are the same. */
static const char *hash_of(const char *run_dir, unsigned ranks)
{
    static char texts[8][32];
    static unsigned turn;
    char *text = texts[turn++ % 8];

    (void)snprintf(text, sizeof(texts[0]), "%s",
                   job_record_text(run_dir, 0, "end", "parameters_hash"));
    ck_assert_uint_eq(strlen(text), 16);
    for (unsigned rank = 1; rank < ranks; rank++)
        ck_assert_str_eq(job_record_text(run_dir, rank, "end", "parameters_hash"), text);
    return text;
}

static void read_facts(const char *path, struct checkpoint_facts *ret)
{
    char file[CHECKPOINT_PATH_MAX];
    struct safetensors s;
    struct error err;

    assert_ok(checkpoint_find(path, file, &err));
    assert_ok(safetensors_read(file, 1 << 24, &s, &err));
    assert_ok(checkpoint_read_facts(&s, ret, &err));
    safetensors_release(&s);
}

static const char *name_folder(const char *stem)
{
    static unsigned serial;
    char name[64];

    (void)snprintf(name, sizeof(name), "%s-%u", stem, serial++);
    return support_path(name);
}

static const char *name_in(const char *folder, const char *name)
{
    static char texts[4][4096];
    static unsigned turn;
    char *text = texts[turn++ % 4];

    (void)snprintf(text, sizeof(texts[0]), "%s/%s", folder, name);
    return text;
}

/* One undisturbed run per optimizer, of two ranks and five epochs: all modes have its bits. */
static char undisturbed[OPTIMIZERS][32];

static void run_undisturbed(void)
{
    for (size_t i = 0; i < OPTIMIZERS; i++) {
        const char *run_dir = run_job(&modes[0], 2, optimizers[i], ARGS("--epochs", "5"), 0);

        (void)snprintf(undisturbed[i], sizeof(undisturbed[i]), "%s", hash_of(run_dir, 2));
    }
}

/* Each mode runs into the middle of an epoch; the next mode resumes from there. */
START_TEST(test_goes_on_in_another_mode)
{
    const struct mode *from = &modes[(size_t)_i % MODES];
    size_t optimizer = (size_t)_i / MODES;
    const struct mode *to = &modes[((size_t)_i + 1 + optimizer) % MODES];
    const char *folder = name_folder("cross");
    const char *run_dir;

    (void)run_job(from, 2, optimizers[optimizer],
                  ARGS("--steps", "22", "--checkpoint-dir", folder, "--checkpoint-every", "9"), 0);
    ck_assert_int_eq(access(name_in(folder, "step-000009.safetensors"), R_OK), 0);
    ck_assert_int_eq(access(name_in(folder, "step-000018.safetensors"), R_OK), 0);
    run_dir = run_job(to, 2, optimizers[optimizer],
                      ARGS("--epochs", "5", "--resume", folder, "--checkpoint-dir", folder), 0);
    ck_assert_msg(strcmp(hash_of(run_dir, 2), undisturbed[optimizer]) == 0,
                  "from %s to %s: other parameters", from->name, to->name);
    ck_assert_int_eq(job_record_int(run_dir, 0, "step", "step"), 22);
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "steps"), 5 * 16 - 22);
    ck_assert_int_eq(job_record_int(run_dir, 0, "checkpoint", "step"), 5 * 16);
    ck_assert_int_gt(job_record_int(run_dir, 0, "checkpoint", "bytes"), 1000);
    ck_assert_int_eq(access(name_in(folder, "step-000080.safetensors"), R_OK), 0);
    ck_assert_int_ne(access(name_in(folder, "step-000009.safetensors"), R_OK), 0);
}
END_TEST

static void compare_with_undisturbed(const struct mode *mode, unsigned ranks,
                                     const char *const *optimizer, const char *const *save,
                                     const char *const *more, const char *folder)
{
    char wanted[32];
    const char *run_dir = run_job(mode, ranks, optimizer, more, 0);

    (void)snprintf(wanted, sizeof(wanted), "%s", hash_of(run_dir, ranks));
    (void)run_job(mode, ranks, optimizer, save, 0);
    {
        const char *words[16] = {"--resume", folder};
        size_t count = 2;

        while (*more)
            words[count++] = *more++;
        words[count] = NULL;
        run_dir = run_job(mode, ranks, optimizer, words, 0);
    }
    ck_assert_str_eq(hash_of(run_dir, ranks), wanted);
}

/* One process, and LayerDrop, whose generator goes on, too; with uneven parts of an epoch that two
 * batches make one update of. */
START_TEST(test_alone_and_with_generators)
{
    static const struct mode local = {"local", NULL, 0, {"--sync", "local"}};
    static const struct mode join = {"join", "shm", 0, {"--sync", "allreduce", "--uneven", "join"}};
    static const char *const drop[6] = {"--model", "mlp:24-20-20-20-8", "--layer-drop", "0.5",
                                        "--find-unused-parameters"};
    static const struct mode devices = {
        "devices", NULL, 0, {"--sync", "dataparallel", "--devices", "3"}};
    const char *folder = name_folder("alone");

    compare_with_undisturbed(&local, 1, drop, ARGS("--steps", "41", "--checkpoint-dir", folder),
                             ARGS("--epochs", "2"), folder);
    folder = name_folder("devices");
    compare_with_undisturbed(&devices, 1, optimizers[0],
                             ARGS("--steps", "41", "--checkpoint-dir", folder),
                             ARGS("--epochs", "2"), folder);
    folder = name_folder("drop");
    compare_with_undisturbed(&modes[0], 2, drop, ARGS("--steps", "20", "--checkpoint-dir", folder),
                             ARGS("--steps", "40"), folder);
    folder = name_folder("join");
    compare_with_undisturbed(&join, 2, optimizers[1],
                             ARGS("--steps", "7", "--checkpoint-dir", folder, "--samples", "77",
                                  "--accumulate-steps", "2"),
                             ARGS("--epochs", "5", "--samples", "77", "--accumulate-steps", "2"),
                             folder);
}
END_TEST

/* Several devices of one process make the steps of one device, and resume its checkpoint. */
START_TEST(test_several_devices)
{
    static const struct mode local = {"local", NULL, 0, {"--sync", "local"}};
    static const struct mode devices = {
        "devices", NULL, 0, {"--sync", "dataparallel", "--devices", "3"}};
    const char *folder = name_folder("several");
    const char *one = name_in(support_folder(), "one.safetensors");
    const char *several = name_in(support_folder(), "several.safetensors");

    (void)run_job(&local, 1, optimizers[1], ARGS("--steps", "40", "--save", one), 0);
    (void)run_job(&devices, 1, optimizers[1], ARGS("--steps", "40", "--save", several), 0);
    ck_assert_double_le(job_checkpoint_distance(one, several), 1e-5);
    (void)run_job(&local, 1, optimizers[1], ARGS("--steps", "20", "--checkpoint-dir", folder), 0);
    (void)run_job(&devices, 1, optimizers[1],
                  ARGS("--steps", "40", "--resume", folder, "--save", several), 0);
    ck_assert_double_le(job_checkpoint_distance(one, several), 1e-5);
    (void)run_job(&devices, 2, optimizers[1], ARGS("--steps", "4"), PROCESS_FAILS);
    ck_assert_ptr_nonnull(strstr(job_output(), "one process with several --devices"));
}
END_TEST

/* Ranks that are not in step: the checkpoint has the servers' state, each partition by itself, and
 * rank 0's position.  Any other run can resume it. */
START_TEST(test_ranks_that_are_not_in_step)
{
    static const struct mode asp = {
        "asp", NULL, 2, {"--sync", "ps", "--consistency", "asp", "--reduce", "fast"}};
    const char *folder = name_folder("asp");
    struct checkpoint_facts facts;
    const char *run_dir;

    (void)run_job(&asp, 2, optimizers[1],
                  ARGS("--steps", "22", "--checkpoint-dir", folder, "--checkpoint-every", "7"), 0);
    read_facts(name_in(folder, "step-000014.safetensors"), &facts);
    ck_assert_uint_eq(facts.step, 14);
    ck_assert_uint_ge(facts.optimizer_step, 14);
    ck_assert_uint_le(facts.optimizer_step, 14 + 22);
    read_facts(folder, &facts);
    ck_assert_uint_eq(facts.step, 22);
    ck_assert_uint_eq(facts.optimizer_step, 2 * 22);
    (void)run_job(&asp, 2, optimizers[1], ARGS("--steps", "30", "--resume", folder), 0);
    run_dir = run_job(&modes[1], 2, optimizers[1], ARGS("--steps", "30", "--resume", folder), 0);
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "steps"), 8);
}
END_TEST

/* A new run refuses another run's folder before it trains, also where processes are replaced. */
START_TEST(test_folder_of_another_run_is_refused)
{
    static const struct mode modes_of_loss[] = {
        {"wait", NULL, 2, {"--sync", "ps", "--on-rank-loss", "wait"}},
        {"shrink", NULL, 2, {"--sync", "ps", "--on-rank-loss", "shrink"}},
        {"fail", NULL, 2, {"--sync", "ps"}},
    };
    const struct mode *mode = &modes_of_loss[_i];
    const char *folder = name_folder("taken");
    const char *first = name_in(folder, "step-000030.safetensors");
    const char *text;

    (void)run_job(mode, 2, optimizers[1], ARGS("--steps", "30", "--checkpoint-dir", folder), 0);
    (void)run_job(mode, 2, optimizers[1],
                  ARGS("--steps", "9", "--checkpoint-dir", folder, "--checkpoint-every", "1"),
                  PROCESS_FAILS);
    text = job_output();
    ck_assert_msg(strstr(text, "holds another run's checkpoints") != NULL, "%s", text);
    ck_assert_msg(_i == 2 || strstr(text, first) != NULL, "%s", text); /* what to resume from */
    ck_assert_int_eq(access(first, R_OK), 0);
    ck_assert_int_ne(access(name_in(folder, "step-000001.safetensors"), F_OK), 0);
    (void)run_job(mode, 2, optimizers[1],
                  ARGS("--steps", "33", "--checkpoint-dir", folder, "--resume", first), 0);
    ck_assert_int_eq(access(name_in(folder, "step-000033.safetensors"), R_OK), 0);
    ck_assert_int_eq(strstr(job_output(), "checkpoints are rank 0's task") != NULL, _i == 1);
}
END_TEST

/* What cannot be written is noticed before the first of very many steps. */
START_TEST(test_targets_are_tried_first)
{
    const char *file = support_write("file", "x", 1);
    const struct {
        const char *option, *value, *wanted;
    } targets[] = {{"--save", support_path("none/w.safetensors"), "cannot create '"},
                   {"--checkpoint-dir", "/proc/none", "cannot make folder '/proc/none'"},
                   {"--checkpoint-dir", file, "' is no folder"}};

    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        (void)run_job(&modes[0], 2, optimizers[1],
                      ARGS("--steps", "100000000", targets[i].option, targets[i].value),
                      PROCESS_FAILS);
        ck_assert_msg(strstr(job_output(), targets[i].wanted) != NULL, "%s", job_output());
    }
}
END_TEST

static int64_t epochs_of(const char *run_dir)
{
    json_t *summary = job_summary(run_dir);
    int64_t epochs = (int64_t)json_integer_value(json_object_get(summary, "epochs"));

    json_decref(summary);
    return epochs;
}

/* A run that had ended makes no more steps and keeps its length: with even and uneven parts. */
START_TEST(test_ended_run_makes_no_steps)
{
    static const struct mode even = {"even", "shm", 0, {"--sync", "allreduce"}};
    static const struct mode join = {"join", "shm", 0, {"--sync", "allreduce", "--uneven", "join"}};
    const struct mode *mode = _i == 0 ? &even : &join;
    const char *folder = name_folder("ended");
    char wanted[32];
    const char *run_dir =
        run_job(mode, 2, optimizers[1],
                ARGS("--epochs", "2", "--samples", "77", "--checkpoint-dir", folder), 0);

    (void)snprintf(wanted, sizeof(wanted), "%s", hash_of(run_dir, 2));
    ck_assert_int_eq(epochs_of(run_dir), 2);
    run_dir = run_job(mode, 2, optimizers[1],
                      ARGS("--epochs", "2", "--samples", "77", "--resume", folder), 0);
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "steps"), 0);
    ck_assert_str_eq(hash_of(run_dir, 2), wanted);
    ck_assert_int_eq(epochs_of(run_dir), 2);
    run_dir = run_job(mode, 2, optimizers[1],
                      ARGS("--epochs", "3", "--samples", "77", "--resume", folder), 0);
    ck_assert_int_eq(epochs_of(run_dir), 3);
}
END_TEST

/* A stop that is requested costs no update. */
START_TEST(test_stopped)
{
    const char *folder = name_folder("stopped");
    const char *run_dir = support_path("stopped-run");
    struct process worker;
    struct checkpoint_facts facts;

    process_start(&worker, NULL,
                  ARGS(support_program("sparring-worker"), "--standalone", "--run-dir", run_dir,
                       JOB, "--model", "mlp:24-96-8", "--sync", "local", "--steps", "100000000",
                       "--checkpoint-dir", folder));
    job_await_step(run_dir, 0, 30);
    ck_assert_int_eq(kill((pid_t)job_record_int(run_dir, 0, "start", "pid"), SIGTERM), 0);
    ck_assert_int_eq(process_wait(&worker, JOB_TIMEOUT_MS), 6);
    read_facts(folder, &facts);
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "steps"), (int64_t)facts.step);
}
END_TEST

/* The same with several ranks, whichever gets the signal first: all end after the same update,
 * which rank 0 has saved; where ranks are not in step, rank 0 has at least saved. */
START_TEST(test_stopped_together)
{
    static const struct mode asp = {
        "asp", NULL, 2, {"--sync", "ps", "--consistency", "asp", "--reduce", "fast"}};
    const struct mode *mode = _i < (int)MODES ? &modes[_i] : &asp;
    const char *folder = name_folder("together");
    const char *run_dir = support_path("together-run");
    const char *words[WORDS_MAX] = {support_program("sparring"),
                                    "launch",
                                    "--standalone",
                                    "--nproc-per-node",
                                    "3",
                                    "--servers",
                                    mode->servers ? "2" : "0",
                                    "--run-dir",
                                    run_dir,
                                    "--",
                                    support_program("sparring-worker"),
                                    JOB,
                                    "--model",
                                    "mlp-bn:24-64-64-8",
                                    "--backend",
                                    mode->backend ? mode->backend : "auto",
                                    "--steps",
                                    "100000000",
                                    "--checkpoint-dir",
                                    folder};
    size_t count = 0;
    struct process launch;
    struct checkpoint_facts facts;
    int code;

    while (words[count])
        count++;
    for (size_t i = 0; i < 6 && mode->words[i]; i++)
        words[count++] = mode->words[i];
    process_start(&launch, NULL, words);
    for (unsigned rank = 0; rank < 3; rank++)
        job_await_step(run_dir, rank, 5 + (int64_t)(support_random() * 50));
    process_signal(&launch, SIGTERM);
    code = process_wait(&launch, JOB_TIMEOUT_MS);
    ck_assert_msg(code == 6 && !strstr(process_output(&launch), "no checkpoint of the stop"),
                  "exit code %d:\n%.9000s", code, process_output(&launch));
    read_facts(folder, &facts);
    for (unsigned rank = 0; rank < 3; rank++)
        if (rank == 0 || mode != &asp)
            ck_assert_int_eq(job_record_int(run_dir, rank, "end", "steps"), (int64_t)facts.step);
}
END_TEST

/* Later ranks may have ended already: on a loaded machine launch sees the exit of the first, and
 * ends the others, before this process runs again. */
static void signal_rank(const char *run_dir, unsigned rank, int number)
{
    ck_assert(kill((pid_t)job_record_int(run_dir, rank, "start", "pid"), number) == 0 ||
              (rank > 0 && errno == ESRCH));
}

/* Rank 0 receives the signal first and has saved, or is about to, when the others receive it.
 * Those may have sent one update more, which is never applied: they end without it.  launch is
 * stopped meanwhile, since it would end the other ranks at the first exit, and a second SIGTERM
 * ends a rank without its record.  The sleeps are the delay between the ranks' signals, up to
 * several steps. */
START_TEST(test_stopped_after_rank_0)
{
    const char *folder = name_folder("after");
    const char *run_dir = support_path("after-run");
    struct process launch;
    struct checkpoint_facts facts;

    process_start(&launch, NULL,
                  ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node",
                       "3", "--servers", "1", "--run-dir", run_dir, "--",
                       support_program("sparring-worker"), JOB, "--model", "mlp:24-600-600-8",
                       "--sync", "ps", "--delay-schedule", job_pace(3), "--steps", "100000000",
                       "--checkpoint-dir", folder));
    for (unsigned rank = 0; rank < 3; rank++)
        job_await_step(run_dir, rank, 5 + (int64_t)(support_random() * 50));
    process_signal(&launch, SIGSTOP);
    for (unsigned rank = 0; rank < 3; rank++) {
        struct timespec later = {.tv_nsec = (long)(support_random() * 6e6)};

        signal_rank(run_dir, rank, SIGTERM);
        (void)nanosleep(&later, NULL);
    }
    for (unsigned rank = 0; rank < 3; rank++)
        job_await_end(run_dir, rank);
    process_signal(&launch, SIGCONT);
    (void)process_wait(&launch, JOB_TIMEOUT_MS);
    read_facts(folder, &facts);
    for (unsigned rank = 0; rank < 3; rank++)
        ck_assert_int_eq(job_record_int(run_dir, rank, "end", "steps"), (int64_t)facts.step);
}
END_TEST

/* All processes are killed; `auto` finds the last checkpoint, or none. */
START_TEST(test_killed_and_started_again)
{
    const char *folder = name_folder("killed");
    const char *run_dir = support_path("killed-run");
    struct process launch;
    int64_t at = 5 + (int64_t)(support_random() * 60);
    struct checkpoint_facts facts;
    char steps[32];
    const char *resumed;

    process_start(&launch, NULL,
                  ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node",
                       "2", "--run-dir", run_dir, "--", support_program("sparring-worker"), JOB,
                       "--model", "mlp-bn:24-64-64-8", "--momentum", "0.9", "--nesterov",
                       "--backend", "shm", "--steps", "1000000", "--resume", "auto",
                       "--checkpoint-dir", folder, "--checkpoint-every", "3"));
    job_await_step(run_dir, 0, at);
    for (unsigned rank = 0; rank < 2; rank++)
        signal_rank(run_dir, rank, SIGKILL);
    (void)process_wait(&launch, JOB_TIMEOUT_MS);
    read_facts(folder, &facts);
    (void)snprintf(steps, sizeof(steps), "%ju", (uintmax_t)facts.step + 40);
    run_dir = run_job(&modes[1], 2, optimizers[0],
                      ARGS("--steps", steps, "--resume", "auto", "--checkpoint-dir", folder), 0);
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "steps"), 40);
    resumed = hash_of(run_dir, 2);
    run_dir = run_job(&modes[0], 2, optimizers[0], ARGS("--steps", steps), 0);
    ck_assert_str_eq(hash_of(run_dir, 2), resumed);
}
END_TEST

/* Other numbers of ranks resume where the samples done divide among them, and at an epoch's end. */
START_TEST(test_other_numbers_of_ranks)
{
    const char *folder = name_folder("ranks");
    const char *run_dir;

    (void)run_job(&modes[0], 2, optimizers[1],
                  ARGS("--epochs", "1", "--checkpoint-dir", folder, "--checkpoint-every", "10"), 0);
    run_dir = run_job(&modes[0], 3, optimizers[1], ARGS("--epochs", "2", "--resume", folder), 0);
    ck_assert_int_eq(job_record_int(run_dir, 0, "step", "step"), 16);
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "steps"), 11); /* of 86 samples */
    run_dir =
        run_job(&modes[0], 1, optimizers[1],
                ARGS("--epochs", "1", "--resume", name_in(folder, "step-000010.safetensors")), 0);
    ck_assert_int_eq(job_record_int(run_dir, 0, "end", "steps"), 12); /* of 96 samples */
    (void)run_job(&modes[0], 3, optimizers[1],
                  ARGS("--epochs", "1", "--resume", name_in(folder, "step-000010.safetensors")), 3);
    ck_assert_ptr_nonnull(strstr(job_output(), "which 3 ranks cannot go on with"));
    ck_assert_ptr_nonnull(strstr(job_output(), "step-000010.safetensors"));
}
END_TEST

START_TEST(test_other_models_and_settings)
{
    static const char *const wide[6] = {"--model", "mlp:24-97-8", "--optimizer", "adamw"};
    static const char *const sgd[6] = {"--model", "mlp:24-96-8", "--optimizer", "sgd"};
    static const char *const rate[6] = {"--model", "mlp:24-96-8",    "--optimizer",
                                        "adamw",   "--weight-decay", "0.2"};
    static const struct mode local = {"local", NULL, 0, {"--sync", "local"}};
    const char *folder = name_folder("other");

    (void)run_job(&local, 1, optimizers[1], ARGS("--steps", "3", "--checkpoint-dir", folder), 0);
    (void)run_job(&local, 1, wide, ARGS("--steps", "5", "--resume", folder), 3);
    ck_assert_ptr_nonnull(strstr(job_output(), "step-000003.safetensors' does not fit the model"));
    ck_assert_ptr_nonnull(strstr(job_output(), "is (96, 24), the model has (97, 24)"));
    (void)run_job(&local, 1, wide,
                  ARGS("--steps", "5", "--init", name_in(folder, "step-000003.safetensors")), 3);
    ck_assert_ptr_nonnull(strstr(job_output(), "is (96, 24), the model has (97, 24)"));
    (void)run_job(&local, 1, sgd, ARGS("--steps", "5", "--resume", folder), 3);
    ck_assert_ptr_nonnull(strstr(job_output(), "optimizer is sgd (was adamw)"));
    (void)run_job(&local, 1, rate, ARGS("--steps", "5", "--resume", folder), 0);
    ck_assert_ptr_nonnull(strstr(job_output(), "weight_decay is 0.2 (was 0.1)"));
    (void)run_job(&local, 1, rate, ARGS("--steps", "5", "--resume", folder, "--seed", "6"), 3);
    ck_assert_ptr_nonnull(strstr(job_output(), "in the middle of epoch 0"));
}
END_TEST

/* A loss that is not finite ends the run with an error that names the step, and leaves the last
 * good checkpoint. */
START_TEST(test_loss_not_finite)
{
    static const char *const explodes[6] = {"--model", "mlp:24-96-8", "--lr", "1e6"};
    const char *folder = name_folder("nan");
    const char *run_dir;
    char file[CHECKPOINT_PATH_MAX];
    struct safetensors s;
    struct checkpoint_facts facts;
    struct error err;

    run_dir = run_job(&modes[_i], 2, explodes,
                      ARGS("--steps", "500", "--checkpoint-dir", folder, "--checkpoint-every", "1"),
                      PROCESS_FAILS);
    for (unsigned rank = 0; rank < 2; rank++) {
        const char *text = job_record_text(run_dir, rank, "end", "error");

        ck_assert_msg(strstr(text, "the loss of rank") || strstr(text, "no checkpoint is made") ||
                          strstr(text, "stopped by signal"), /* launch was first */
                      "rank %u: %s", rank, text);
    }
    ck_assert_msg(strstr(job_output(), "error: step ") ||
                      strstr(job_output(), "error: after update "),
                  "%s", job_output());
    assert_ok(checkpoint_find(folder, file, &err));
    assert_ok(safetensors_read(file, 1 << 20, &s, &err));
    assert_ok(checkpoint_read_facts(&s, &facts, &err));
    ck_assert_uint_ge(facts.step, 1);
    ck_assert_uint_lt(facts.step, 500);
    for (size_t i = 0; i < s.length; i++) {
        static float values[8000];

        if (strcmp(s.entries[i].dtype, "I64") == 0)
            continue;
        ck_assert_uint_le(s.entries[i].count, 8000);
        assert_ok(safetensors_copy_floats(&s, &s.entries[i], values, &err)); /* all finite */
    }
    safetensors_release(&s);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "resume", 300, UNCHECKED_FIXTURE(run_undisturbed, NULL),
        LOOP_TEST(test_goes_on_in_another_mode, 0, MODES * OPTIMIZERS),
        TEST(test_alone_and_with_generators), TEST(test_several_devices),
        TEST(test_ranks_that_are_not_in_step),
        LOOP_TEST(test_folder_of_another_run_is_refused, 0, 3), TEST(test_targets_are_tried_first),
        LOOP_TEST(test_ended_run_makes_no_steps, 0, 2), TEST(test_stopped),
        LOOP_TEST(test_stopped_after_rank_0, 0, 6), LOOP_TEST(test_stopped_together, 0, MODES + 1),
        TEST(test_killed_and_started_again), TEST(test_other_numbers_of_ranks),
        TEST(test_other_models_and_settings), LOOP_TEST(test_loss_not_finite, 0, MODES));
}
