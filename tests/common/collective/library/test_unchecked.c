/*
 * Backends that do not compare every operation: all ranks run two kinds of the same size until both
 * are known to be the same everywhere; then one rank runs the one while the others run the other.
 * No rank may go on as if nothing had happened.  Gloo's ranks are threads; MPI's are processes of
 * this program (`test_unchecked rank WHEN`) under mpirun, which print the error they got.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/launch_env/launch_env.h"
#include "common/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define RANKS      3u
#define VICTIM     1u
#define ODD        9u /* the operation */
#define FAST_COUNT 20000u
#define TIMEOUT_MS 20000
#define BOTH_SIDES "rank 1 is desynchronised: it ran all_reduce #9 of"

/* When the odd operation comes. */
enum when {
    AMIDST,  /* among many large ones */
    AT_LAST, /* at the end of a short job */
    LONG_AGO /* before many small ones: more than a trail keeps */
};

static const char *const when_names[] = {"amidst", "at_last", "long_ago"};

/* Kinds of one size: a sum and a maximum, or two types. */
static struct collective_args choose(void *data, size_t count, bool other, bool of_type)
{
    return (struct collective_args){.call = COLLECTIVE_ALL_REDUCE,
                                    .dtype = other && of_type ? DTYPE_INT32 : DTYPE_FLOAT32,
                                    .op = other && !of_type ? REDUCE_MAX : REDUCE_SUM,
                                    .input = data,
                                    .output = data,
                                    .count = count};
}

/* Work until a call fails or the job is over; the first failure, or what the end finds. */
static enum status work(struct collective *group, unsigned rank, enum when when, bool of_type,
                        struct error *err)
{
    size_t count = when == AMIDST ? (size_t)1 << 22 : 1;
    uint64_t last = when == AT_LAST ? ODD : when == LONG_AGO ? FAST_COUNT : UINT64_MAX;
    int64_t deadline_ns = clock_deadline_ns(TIMEOUT_MS);
    float *data = calloc(count, sizeof(*data));
    enum status status = STATUS_OK;

    for (uint64_t n = 1; n <= last && status == STATUS_OK && clock_now_ns() < deadline_ns; n++) {
        bool other = n < ODD ? n % 2 == 0 : n == ODD && rank == VICTIM;
        struct collective_args args = choose(data, count, other, of_type);

        status = collective_run(group, &args, err);
    }
    if (status == STATUS_OK)
        status = collective_finish(group, err);
    free(data);
    return status;
}

static void check_text(const char *backend, enum when when, enum status status, const char *text)
{
    ck_assert_msg(status == STATUS_MISMATCH, "%s, %s: status %d: %s", backend, when_names[when],
                  (int)status, text);
    ck_assert_msg(strstr(text, "rank 1") && strstr(text, "rank 0") &&
                      (when == LONG_AGO || (strstr(text, "(max)") && strstr(text, "(sum)")) ||
                       (strstr(text, "int32") && strstr(text, "float32"))),
                  "%s, %s: %s", backend, when_names[when], text);
}

/* ---- on threads ---- */

struct thread_case {
    enum when when;
    bool of_type;
};

static void thread_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    const struct thread_case *c = argument;
    struct error err = {0};
    unsigned culprit = RANKS;
    enum status status = work(group, rank, c->when, c->of_type, &err);

    (void)size;
    check_text("gloo", c->when, status, err.text);
    ck_assert(collective_fault(group, &culprit) == FAULT_DESYNC && culprit == VICTIM);
}

static bool has_backend(const char *name)
{
    for (const char *const *known = collective_backends(); *known; known++)
        if (strcmp(*known, name) == 0)
            return true;
    return false;
}

/* Gloo's bytes of different operations cannot meet, so that only AMIDST's way to fail exists. */
START_TEST(gloo_names_both_sides)
{
    struct thread_case c = {.when = AMIDST, .of_type = _i == 1};

    if (!has_backend("gloo") || !world_on_threads("gloo"))
        (void)printf("skipped: no gloo on threads here\n");
    else
        world_run("gloo", RANKS, thread_body, &c);
}
END_TEST

/* ---- under mpirun ---- */

static const char *lookup(const char *name)
{
    return getenv(name);
}

/* One rank's life; prints "told: TEXT" or "told nothing". */
static int rank_main(const char *when_name)
{
    const struct launch_flags flags = {.rank = -1, .world_size = -1, .local_rank = -1};
    struct launch_env launch;
    struct error err = {0};
    struct collective *group = NULL;
    struct store *store = NULL;
    struct store_config config = {.init_method = getenv("SPARRING_TEST_STORE"),
                                  .launch = &launch,
                                  .group = "",
                                  .timeout_ms = TIMEOUT_MS};
    enum when when = AMIDST;
    enum status status = launch_env_read(&flags, lookup, &launch, &err);

    while (strcmp(when_names[when], when_name) != 0)
        when++;
    log_open("unchecked", (int)launch.rank);
    if (status == STATUS_OK)
        status = store_open(&config, &store, &err);
    if (status == STATUS_OK)
        status = world_open("mpi", "unchecked", launch.rank, launch.world_size, store, TIMEOUT_MS,
                            &group, &err);
    if (status != STATUS_OK) {
        (void)printf("cannot start: %s\n", err.text);
        return EXIT_FAILURE;
    }
    status = work(group, launch.rank, when, false, &err);
    if (status == STATUS_OK)
        (void)printf("told nothing\n");
    else
        (void)printf("told: %s\n", err.text);
    (void)fflush(stdout);
    collective_close(group);
    store_close(store, 0);
    return EXIT_SUCCESS;
}

static char *run_ranks(const char *launcher, const char *when_name)
{
    char command[2048];
    char self[512];
    static char output[65536];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    size_t size;
    FILE *pipe;

    ck_assert_int_gt(length, 0);
    self[length] = '\0';
    (void)snprintf(command, sizeof(command),
                   "SPARRING_TEST_STORE=file://%s/%s '%s' --oversubscribe --bind-to none -n %u "
                   "'%s' rank %s 2>&1",
                   support_folder(), when_name, launcher, RANKS, self, when_name);
    pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    size = fread(output, 1, sizeof(output) - 1, pipe);
    output[size] = '\0';
    (void)pclose(pipe); /* a rank inside MPI cannot but end its process */
    return output;
}

START_TEST(mpi_names_both_sides)
{
    const char *launcher = getenv("SPARRING_TEST_MPIEXEC");
    const char *output;

    if (!has_backend("mpi") || !launcher) {
        support_skip_package("openmpi-bin (or no MPI in this build)");
        return;
    }
    output = run_ranks(launcher, when_names[_i]);
    (void)printf("%s: %s\n", when_names[_i], output);
    ck_assert_msg(!strstr(output, "told nothing"), "%s: %s", when_names[_i], output);
    ck_assert_msg(!strstr(output, "cannot start"), "%s: %s", when_names[_i], output);
    if (_i == LONG_AGO)
        ck_assert_msg(strstr(output, "rank 1 is desynchronised"), "%s", output);
    else
        ck_assert_msg(strstr(output, BOTH_SIDES) && strstr(output, "(max), rank 0 ran") &&
                          strstr(output, "(sum)"),
                      "%s: %s", when_names[_i], output);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "rank") == 0)
        return rank_main(argv[2]);
    return SUPPORT_RUN("unchecked", 100, LOOP_TEST(gloo_names_both_sides, 0, 2),
                       LOOP_TEST(mpi_names_both_sides, 0, 3));
}
