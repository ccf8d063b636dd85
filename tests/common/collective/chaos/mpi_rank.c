/*
 * A rank under mpirun.  The group is the one thing that may fail in it: whatever else does ends the
 * process with a text, and the test does not find what it waits for.
 */
#include "tests/common/collective/chaos/mpi_rank.h"

#include "common/base/log.h"
#include "common/collective/collective.h"
#include "common/launch_env/launch_env.h"
#include "common/store/store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT        ((size_t)1000)
#define CONNECT_MS   60000
#define HEARTBEAT_MS 1500

struct rank {
    struct launch_env launch;
    const char *init_method;
    int64_t timeout_ms;
    const char *role;
    struct store *store;
    struct collective *group;
};

static const char *lookup(const char *name)
{
    return getenv(name);
}

static void say(const char *text)
{
    printf("%s\n", text);
    (void)fflush(stdout);
}

static enum status open_group(struct rank *r, struct error *err)
{
    struct store_config store = {
        .init_method = r->init_method, .launch = &r->launch, .group = "", .timeout_ms = CONNECT_MS};
    struct collective_config config = {.backend = "mpi",
                                       .name = "group",
                                       .rank = r->launch.rank,
                                       .world_size = r->launch.world_size,
                                       .timeout_ms = r->timeout_ms,
                                       .heartbeat_timeout_ms = HEARTBEAT_MS};
    enum status status = store_open(&store, &r->store, err);

    config.store = r->store;
    return status == STATUS_OK ? collective_open(&config, &r->group, err) : status;
}

static enum status work(struct rank *r, struct error *err)
{
    static float data[COUNT + 1];
    enum status status = STATUS_OK;

    for (unsigned number = 1; status == STATUS_OK; number++) {
        size_t count = COUNT;

        if (number == MPI_RANK_AT) {
            char text[128];

            (void)snprintf(text, sizeof(text), "rank %u is process %ld: %s", r->launch.rank,
                           (long)getpid(), r->role);
            say(text);
            if (strcmp(r->role, "leave") == 0)
                return STATUS_OK;
            while (strcmp(r->role, "hold") == 0)
                (void)pause();
            count += strcmp(r->role, "count") == 0;
        }
        status = collective_all_reduce(r->group, data, count, REDUCE_FAST, err);
    }
    return status;
}

static int run_role(struct rank *r)
{
    struct error err = {0};
    enum status status = open_group(r, &err);
    int code = EXIT_SUCCESS;

    if (status == STATUS_OK)
        status = work(r, &err);
    if (status != STATUS_OK)
        code = log_failure(&err);
    collective_close(r->group);
    store_close(r->store, 0);
    return code;
}

/* Run as a child, and say how that ended. */
static int watch(struct rank *r)
{
    pid_t pid = fork();
    char text[64];
    int status;

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        exit(run_role(r)); /* MPI ends at exit */
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return EXIT_FAILURE;
    (void)snprintf(text, sizeof(text), "rank %u ended with %d", r->launch.rank,
                   WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    say(text);
    return EXIT_SUCCESS;
}

int mpi_rank_main(int argc, char **argv)
{
    const struct launch_flags flags = {.rank = -1, .world_size = -1, .local_rank = -1};
    struct rank r = {0};
    struct error err = {0};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* mpirun's death is the test's end */
    if (argc != 5 || launch_env_read(&flags, lookup, &r.launch, &err) != STATUS_OK) {
        (void)fprintf(stderr, "no rank: %s\n", err.text);
        return EXIT_FAILURE;
    }
    log_open("chaos", (int)r.launch.rank);
    r.init_method = argv[0];
    r.timeout_ms = strtoll(argv[1], NULL, 10);
    r.role = r.launch.rank == strtoul(argv[2], NULL, 10) ? argv[3] : "work";
    return strcmp(argv[4], "1") == 0 ? watch(&r) : run_role(&r);
}
