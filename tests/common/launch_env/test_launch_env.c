/*
 * Each launcher's environment: complete, incomplete and malformed; and the priority of the sources.
 * The environments of torchrun, mpirun and srun are those that these programs set.
 */
#include "common/launch_env/launch_env.h"
#include "tests/common/launch_env/test_node_list.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

/* "NAME=value" entries that `lookup` reads, up to a NULL. */
static const char *const *environment;

static const char *lookup(const char *name)
{
    const size_t length = strlen(name);

    for (const char *const *entry = environment; *entry; entry++)
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
            return *entry + length + 1;
    return NULL;
}

#define ENVIRONMENT(...)                                                                           \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static const struct launch_flags no_flags = {-1, -1, -1, false};
static const char *const empty[] = {NULL};

/* Read `entries` without flags; must succeed. */
static struct launch_env read_env(const char *const *entries)
{
    struct error err = {0};
    struct launch_env env = {0};

    environment = entries;
    assert_ok(launch_env_read(&no_flags, lookup, &env, &err));
    ck_assert_str_eq(err.text, "");
    return env;
}

/* Read `entries` with `flags`; must fail with `status` and every part in the text. */
static void check_fails(const struct launch_flags *flags, const char *const *entries,
                        enum status status, const char *part, const char *part_2)
{
    struct error err = {0};
    struct launch_env env = {.rank = 4711};

    environment = entries;
    assert_fails(launch_env_read(flags, lookup, &env, &err), status, part);
    ck_assert_msg(strstr(err.text, part_2) != NULL, "'%s' lacks '%s'", err.text, part_2);
    ck_assert_uint_eq(env.rank, 4711);
    ck_assert_int_eq(launch_env_read(flags, lookup, &env, NULL), status);
}

static void check_env(const struct launch_env *env, const char *source, unsigned rank,
                      unsigned size, unsigned local_rank, unsigned local_size)
{
    ck_assert_str_eq(env->source, source);
    ck_assert_uint_eq(env->rank, rank);
    ck_assert_uint_eq(env->world_size, size);
    ck_assert_uint_eq(env->local_rank, local_rank);
    ck_assert_uint_eq(env->local_world_size, local_size);
}

static void check_master(const struct launch_env *env, const char *addr, const char *addr_origin,
                         unsigned port, const char *port_origin)
{
    ck_assert_str_eq(env->master_addr, addr);
    ck_assert_str_eq(env->master_addr_origin, addr_origin);
    ck_assert_uint_eq(env->master_port, port);
    ck_assert_str_eq(env->master_port_origin, port_origin);
}

START_TEST(no_launcher)
{
    struct launch_env env = read_env(empty);

    check_env(&env, "alone", 0, 1, 0, 0);
    check_master(&env, "127.0.0.1", "default", 29500, "default");
    ck_assert(!env.agent_store);
}
END_TEST

START_TEST(torchrun)
{
    struct launch_env env = read_env(
        ENVIRONMENT("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",
                    "MASTER_ADDR=node0", "MASTER_PORT=29511", "TORCHELASTIC_USE_AGENT_STORE=True"));

    check_env(&env, "RANK", 5, 8, 1, 4);
    check_master(&env, "node0", "MASTER_ADDR", 29511, "MASTER_PORT");
    ck_assert(env.agent_store);
    env = read_env(ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "TORCHELASTIC_USE_AGENT_STORE=False"));
    check_env(&env, "RANK", 0, 2, 0, 0);
    check_master(&env, "127.0.0.1", "default", 29500, "default");
    ck_assert(!env.agent_store);
}
END_TEST

START_TEST(open_mpi_wins_over_slurm)
{
    /* mpirun inside a Slurm step: SLURM_PROCID is the daemon's. */
    struct launch_env env = read_env(ENVIRONMENT(
        "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2",
        "SLURM_STEP_NODELIST=n[1-2]", "SLURM_LOCALID=0"));

    check_env(&env, "OMPI_COMM_WORLD_RANK", 3, 4, 1, 2);
    check_master(&env, "127.0.0.1", "default", 29500, "default");
}
END_TEST

START_TEST(torchrun_wins_over_open_mpi)
{
    struct launch_env env = read_env(ENVIRONMENT("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1",
                                                 "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1"));

    check_env(&env, "RANK", 1, 2, 1, 0);
}
END_TEST

START_TEST(hydra)
{
    struct launch_env env =
        read_env(ENVIRONMENT("PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALRANKID=2", "MPI_LOCALNRANKS=3"));

    check_env(&env, "PMI_RANK", 2, 3, 2, 3);
    env = read_env(ENVIRONMENT("PMI_ID=1", "PMI_SIZE=2"));
    check_env(&env, "PMI_ID", 1, 2, 0, 0);
}
END_TEST

START_TEST(slurm_step)
{
    struct launch_env env = read_env(ENVIRONMENT(
        "SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=5", "SLURM_NTASKS=16", "SLURM_LOCALID=0",
        "SLURM_STEP_NODELIST=gnode[10,20,25]", "SLURM_STEP_TASKS_PER_NODE=2(x2),1",
        "SLURM_NODEID=2", "SLURM_LAUNCH_NODE_IPADDR=10.9.9.9"));

    check_env(&env, "SLURM_PROCID", 4, 5, 0, 1);
    check_master(&env, "gnode10", "SLURM_STEP_NODELIST", 29500, "default");
    env = read_env(ENVIRONMENT("SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_NODELIST=a,b",
                               "MASTER_ADDR=c", "MASTER_PORT=1"));
    check_env(&env, "SLURM_PROCID", 1, 2, 0, 0);
    check_master(&env, "c", "MASTER_ADDR", 1, "MASTER_PORT");
}
END_TEST

/* srun --mpi=pmi2 sets PMI_RANK and no address; the step's own variables have the same rank. */
START_TEST(slurm_step_behind_pmi)
{
    struct launch_env env =
        read_env(ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=2", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
                             "SLURM_STEP_NODELIST=gnode[10-11]"));

    check_env(&env, "PMI_RANK", 1, 2, 0, 0);
    check_master(&env, "gnode10", "SLURM_STEP_NODELIST", 29500, "default");
}
END_TEST

START_TEST(one_task_needs_no_address)
{
    struct launch_env env = read_env(
        ENVIRONMENT("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NODELIST=gnode3"));

    check_env(&env, "SLURM_PROCID", 0, 1, 0, 0);
    check_master(&env, "127.0.0.1", "default", 29500, "default");
}
END_TEST

/* The script of a batch job is not a step: it has no peers. */
START_TEST(batch_script_is_alone)
{
    struct launch_env env = read_env(ENVIRONMENT(
        "SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_NODEID=0",
        "SLURM_JOB_NODELIST=n[1-2]", "SLURM_NODELIST=n[1-2]", "SLURM_TASKS_PER_NODE=2(x2)"));

    check_env(&env, "alone", 0, 1, 0, 0);
    check_master(&env, "127.0.0.1", "default", 29500, "default");
}
END_TEST

START_TEST(empty_variables_are_not_set)
{
    struct launch_env env =
        read_env(ENVIRONMENT("RANK=", "WORLD_SIZE=", "PMI_RANK=0", "PMI_SIZE=2", "MASTER_PORT="));

    check_env(&env, "PMI_RANK", 0, 2, 0, 0);
    check_master(&env, "127.0.0.1", "default", 29500, "default");
}
END_TEST

START_TEST(incomplete_source_names_both_variables)
{
    check_fails(&no_flags, ENVIRONMENT("RANK=0"), STATUS_CONFIG, "RANK is set",
                "WORLD_SIZE is not");
    check_fails(&no_flags, ENVIRONMENT("WORLD_SIZE=2", "PMI_RANK=0", "PMI_SIZE=2"), STATUS_CONFIG,
                "WORLD_SIZE is set", "RANK is not");
    check_fails(&no_flags, ENVIRONMENT("OMPI_COMM_WORLD_RANK=0"), STATUS_CONFIG,
                "OMPI_COMM_WORLD_RANK is set", "OMPI_COMM_WORLD_SIZE is not");
    check_fails(&no_flags, ENVIRONMENT("PMI_SIZE=2"), STATUS_CONFIG, "PMI_SIZE is set",
                "PMI_RANK is not");
    check_fails(&no_flags, ENVIRONMENT("SLURM_STEP_NUM_TASKS=2"), STATUS_CONFIG,
                "SLURM_STEP_NUM_TASKS is set", "SLURM_PROCID is not");
    check_fails(&no_flags, ENVIRONMENT("SLURM_STEP_NODELIST=n1"), STATUS_CONFIG,
                "SLURM_STEP_NODELIST is set", "SLURM_PROCID is not");
    check_fails(&no_flags, ENVIRONMENT("SLURM_STEP_NODELIST=n1", "SLURM_PROCID=0"), STATUS_CONFIG,
                "SLURM_PROCID is set", "SLURM_STEP_NUM_TASKS is not");
    check_fails(&no_flags, ENVIRONMENT("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"), STATUS_CONFIG,
                "SLURM_STEP_NODELIST", "where rank 0 is");
}
END_TEST

static const char *const bad_numbers[] = {
    "x", "-1", "+1", " 1", "1 ", "1.0", "0x1", "1e0", "2147483648", "99999999999999999999"};

START_TEST(numbers_are_whole)
{
    char rank[64];
    char size[64];
    char local[64];
    char port[64];

    (void)snprintf(rank, sizeof(rank), "RANK=%s", bad_numbers[_i]);
    (void)snprintf(size, sizeof(size), "WORLD_SIZE=%s", bad_numbers[_i]);
    (void)snprintf(local, sizeof(local), "LOCAL_RANK=%s", bad_numbers[_i]);
    (void)snprintf(port, sizeof(port), "MASTER_PORT=%s", bad_numbers[_i]);
    check_fails(&no_flags, ENVIRONMENT(rank, "WORLD_SIZE=2"), STATUS_CONFIG, "RANK is '",
                bad_numbers[_i]);
    check_fails(&no_flags, ENVIRONMENT("RANK=0", size), STATUS_CONFIG, "WORLD_SIZE is '",
                bad_numbers[_i]);
    check_fails(&no_flags, ENVIRONMENT("RANK=0", "WORLD_SIZE=2", local), STATUS_CONFIG,
                "LOCAL_RANK is '", bad_numbers[_i]);
    check_fails(&no_flags, ENVIRONMENT("RANK=0", "WORLD_SIZE=2", port), STATUS_CONFIG,
                "MASTER_PORT is '", bad_numbers[_i]);
}
END_TEST

START_TEST(ranks_and_sizes_are_consistent)
{
    check_fails(&no_flags, ENVIRONMENT("RANK=2", "WORLD_SIZE=2"), STATUS_CONFIG, "RANK is 2",
                "WORLD_SIZE is 2");
    check_fails(&no_flags, ENVIRONMENT("RANK=0", "WORLD_SIZE=0"), STATUS_CONFIG, "WORLD_SIZE is 0",
                "");
    check_fails(&no_flags,
                ENVIRONMENT("RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"),
                STATUS_CONFIG, "LOCAL_RANK is 2", "2 ranks");
    check_fails(&no_flags, ENVIRONMENT("RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=4"), STATUS_CONFIG,
                "LOCAL_RANK is 4", "4 ranks");
    check_fails(&no_flags, ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=0"), STATUS_CONFIG,
                "MASTER_PORT is '0'", "from 1 to 65535");
    check_fails(&no_flags, ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=65536"),
                STATUS_CONFIG, "MASTER_PORT is '65536'", "from 1 to 65535");
    check_fails(&no_flags,
                ENVIRONMENT("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=n[1-"),
                STATUS_CONFIG, "SLURM_STEP_NODELIST: ", "n[1-");
    check_fails(&no_flags,
                ENVIRONMENT("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=n1",
                            "SLURM_STEP_TASKS_PER_NODE=2(", "SLURM_NODEID=0"),
                STATUS_CONFIG, "SLURM_STEP_TASKS_PER_NODE: ", "2(");
    environment = ENVIRONMENT("MASTER_PORT=0");
    ck_assert_uint_eq(read_env(environment).master_port, 0);
}
END_TEST

START_TEST(long_master_addr)
{
    char entry[400] = "MASTER_ADDR=";

    memset(entry + strlen(entry), 'h', 300);
    check_fails(&no_flags, ENVIRONMENT(entry), STATUS_CONFIG, "MASTER_ADDR has 300", "255 allowed");
}
END_TEST

START_TEST(flags_have_priority)
{
    const struct launch_flags flags = {1, 3, 1, false};
    struct error err = {0};
    struct launch_env env;

    environment =
        ENVIRONMENT("RANK=0", "MASTER_PORT=4711", "LOCAL_RANK=0"); /* incomplete, but not read */
    assert_ok(launch_env_read(&flags, lookup, &env, &err));
    check_env(&env, "flags", 1, 3, 1, 0);
    check_master(&env, "127.0.0.1", "default", 4711, "MASTER_PORT");
}
END_TEST

START_TEST(local_flag_overrides)
{
    const struct launch_flags flags = {-1, -1, 1, false};
    struct error err = {0};
    struct launch_env env;

    environment = ENVIRONMENT("RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2");
    assert_ok(launch_env_read(&flags, lookup, &env, &err));
    check_env(&env, "RANK", 2, 4, 1, 2);
    check_fails(&(struct launch_flags){-1, -1, 2, false}, environment, STATUS_INVALID,
                "--local-rank is 2", "2 ranks");
}
END_TEST

START_TEST(broken_flags)
{
    check_fails(&(struct launch_flags){1, -1, -1, false}, ENVIRONMENT("WORLD_SIZE=2"),
                STATUS_INVALID, "--rank is given", "--world-size is missing");
    check_fails(&(struct launch_flags){-1, 2, -1, false}, ENVIRONMENT("RANK=1"), STATUS_INVALID,
                "--world-size is given", "--rank is missing");
    check_fails(&(struct launch_flags){2, 2, -1, false}, empty, STATUS_INVALID, "--rank is 2",
                "--world-size is 2");
    check_fails(&(struct launch_flags){0, 0, -1, false}, empty, STATUS_INVALID, "--world-size is 0",
                "");
    check_fails(&(struct launch_flags){0, INT64_MAX, -1, false}, empty, STATUS_INVALID,
                "--world-size is 9223372036854775807", "more than");
    check_fails(&(struct launch_flags){0, 2, 2, false}, empty, STATUS_INVALID, "--local-rank is 2",
                "2 ranks");
    check_fails(&(struct launch_flags){0, 2, -1, true}, empty, STATUS_INVALID, "--standalone",
                "--rank");
}
END_TEST

START_TEST(standalone_ignores_every_launcher)
{
    const struct launch_flags flags = {-1, -1, -1, true};
    struct error err = {0};
    struct launch_env env;

    environment = ENVIRONMENT("RANK=1", "PMI_SIZE=3", "SLURM_STEP_NODELIST=[", "MASTER_PORT=9",
                              "MASTER_ADDR=x", "TORCHELASTIC_USE_AGENT_STORE=True");
    assert_ok(launch_env_read(&flags, lookup, &env, &err));
    check_env(&env, "alone", 0, 1, 0, 0);
    check_master(&env, "127.0.0.1", "default", 29500, "default");
    ck_assert(!env.agent_store);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("launch_env");
    TCase *cases = tcase_create("launch_env");

    tcase_add_test(cases, no_launcher);
    tcase_add_test(cases, torchrun);
    tcase_add_test(cases, open_mpi_wins_over_slurm);
    tcase_add_test(cases, torchrun_wins_over_open_mpi);
    tcase_add_test(cases, hydra);
    tcase_add_test(cases, slurm_step);
    tcase_add_test(cases, slurm_step_behind_pmi);
    tcase_add_test(cases, one_task_needs_no_address);
    tcase_add_test(cases, batch_script_is_alone);
    tcase_add_test(cases, empty_variables_are_not_set);
    tcase_add_test(cases, incomplete_source_names_both_variables);
    tcase_add_loop_test(cases, numbers_are_whole, 0, sizeof(bad_numbers) / sizeof(*bad_numbers));
    tcase_add_test(cases, ranks_and_sizes_are_consistent);
    tcase_add_test(cases, long_master_addr);
    tcase_add_test(cases, flags_have_priority);
    tcase_add_test(cases, local_flag_overrides);
    tcase_add_test(cases, broken_flags);
    tcase_add_test(cases, standalone_ignores_every_launcher);
    suite_add_tcase(suite, cases);
    suite_add_tcase(suite, node_list_cases());
    return support_run(suite);
}
