/*
 * --bind and --interface: how processors are divided, on descriptions of hosts that are written
 * here, and what ranks and servers get on this one.
 */
#include "experiments/launch/binding.h"

#include "common/base/host.h"
#include "tests/experiments/launch/launch_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct binding_topology topology;

/* "0-1,4" as the kernel writes it. */
static const char *list_of(const cpu_set_t *set)
{
    static char text[4096];
    size_t length = 0;

    text[0] = '\0';
    for (unsigned first = 0, end; first < CPU_SETSIZE; first = end + 1) {
        for (end = first; end < CPU_SETSIZE && CPU_ISSET(end, set); end++)
            ;
        if (end > first)
            length += (size_t)snprintf(text + length, sizeof(text) - length,
                                       end - first > 1 ? "%s%u-%u" : "%s%u", length > 0 ? "," : "",
                                       first, end - 1);
    }
    return text;
}

/* Two hardware threads per core: processors i and i + 6; cores with even numbers are on node 0. */
static void describe_host(void)
{
    for (unsigned i = 0; i < 12; i++) {
        char name[64];
        FILE *file;

        (void)snprintf(name, sizeof(name), "cpu%u", i);
        ck_assert_int_eq(mkdir(support_path(name), 0700), 0);
        (void)snprintf(name, sizeof(name), "cpu%u/node%u", i, i % 2);
        ck_assert_int_eq(mkdir(support_path(name), 0700), 0);
        (void)snprintf(name, sizeof(name), "cpu%u/topology", i);
        ck_assert_int_eq(mkdir(support_path(name), 0700), 0);
        (void)snprintf(name, sizeof(name), "cpu%u/topology/thread_siblings_list", i);
        file = fopen(support_path(name), "we");
        ck_assert_ptr_nonnull(file);
        (void)fprintf(file, "%u,%u\n", i % 6, i % 6 + 6);
        ck_assert_int_eq(fclose(file), 0);
    }
}

static void read_host(unsigned long without)
{
    cpu_set_t allowed;

    CPU_ZERO(&allowed);
    for (unsigned i = 0; i < 12; i++)
        if ((without >> i & 1) == 0)
            CPU_SET(i, &allowed);
    binding_read(support_path(""), &allowed, &topology);
}

static void expect(void (*bind)(const struct binding_topology *, unsigned, unsigned, cpu_set_t *),
                   unsigned count, const char *const *wanted)
{
    for (unsigned i = 0; i < count; i++) {
        cpu_set_t set;

        bind(&topology, i, count, &set);
        ck_assert_msg(strcmp(list_of(&set), wanted[i]) == 0, "%u of %u: %s, wanted %s", i, count,
                      list_of(&set), wanted[i]);
    }
}

START_TEST(shares_of_a_host)
{
    describe_host();
    read_host(0);
    ck_assert_uint_eq(binding_cores(&topology), 6);
    expect(binding_by_core, 1, ARGS("0-11"));
    expect(binding_by_core, 2, ARGS("0,2,4,6,8,10", "1,3,5,7,9,11"));
    expect(binding_by_core, 3, ARGS("0,2,6,8", "1,4,7,10", "3,5,9,11"));
    expect(binding_by_core, 4, ARGS("0,6", "2,8", "4,10", "1,7")); /* two cores are left */
    expect(binding_by_core, 7, ARGS("0,6", "2,8", "4,10", "1,7", "3,9", "5,11", "0,6"));
    expect(binding_by_node, 1, ARGS("0,2,4,6,8,10"));
    expect(binding_by_node, 2, ARGS("0,2,4,6,8,10", "1,3,5,7,9,11"));
    expect(binding_by_node, 3, ARGS("0,2,4,6,8,10", "0,2,4,6,8,10", "1,3,5,7,9,11"));
    read_host(1 << 0 | 1 << 2 | 1 << 8); /* half of core 0, all of core 2 */
    ck_assert_uint_eq(binding_cores(&topology), 5);
    expect(binding_by_core, 5, ARGS("6", "4,10", "1,7", "3,9", "5,11"));
    read_host(0x555); /* node 0 */
    expect(binding_by_node, 2, ARGS("1,3,5,7,9,11", "1,3,5,7,9,11"));
}
END_TEST

/* Up to as many processes as cores: no core is used twice, and all get as many. */
START_TEST(random_hosts)
{
    for (unsigned trial = 0; trial < 200; trial++) {
        unsigned cores, count, each = 0;
        cpu_set_t used;

        topology.count = 0;
        for (unsigned node = 0, core = 0; node < 1 + support_random() * 4; node++)
            for (unsigned k = 0; k < 1 + support_random() * 8; k++, core++)
                topology.processors[topology.count++] =
                    (struct binding_processor){.number = core, .core = core, .node = node};
        cores = binding_cores(&topology);
        ck_assert_uint_eq(cores, topology.count);
        count = 1 + (unsigned)(support_random() * cores);
        CPU_ZERO(&used);
        for (unsigned i = 0; i < count; i++) {
            cpu_set_t set, both;

            binding_by_core(&topology, i, count, &set);
            CPU_AND(&both, &set, &used);
            ck_assert_int_eq(CPU_COUNT(&both), 0);
            CPU_OR(&used, &set, &used);
            ck_assert_int_ge(CPU_COUNT(&set), 1);
            ck_assert(i == 0 || CPU_COUNT(&set) == (int)each);
            each = (unsigned)CPU_COUNT(&set);
            binding_by_node(&topology, i, count, &set);
            ck_assert_int_ge(CPU_COUNT(&set), 1);
        }
    }
}
END_TEST

#define SHOW_PROCESSORS                                                                            \
    "echo $SPARRING_BIND of $SPARRING_HOST_CORES: $(grep Cpus_allowed_list /proc/self/status)"

/* Ranks and servers, and a rank that is started again. */
START_TEST(processes_are_bound)
{
    const char *program =
        launch_install_server("trap 'exit 0' TERM\n" SHOW_PROCESSORS " | sed s/^/server:/\n"
                              "echo 7001 > \"$file\"\n"
                              "mkfifo \"$0.$$\"\nread x < \"$0.$$\"\n");
    const char script[] = "case $RANK$SPARRING_RESTARTS in\n"
                          "00) read x < \"$go\";; 10) kill -9 $$;; 11) echo > \"$go\";;\n"
                          "esac; " SHOW_PROCESSORS " | sed \"s/^/rank $RANK:/\"";
    char go[600];
    const char *out;
    const char *const extra[] = {go, NULL};
    static const char *const names[] = {"rank 0", "rank 1", "server"};
    char wanted[8192];
    cpu_set_t own, set;

    (void)snprintf(go, sizeof(go), "go=%.500s", launch_fifo("go"));
    out = launch_with(program, 0, extra,
                      ARGS("--nproc-per-node=2", "--servers=1", "--bind=core",
                           "--on-rank-loss=wait", "--max-restarts=1", "--", "sh", "-c", script));
    ck_assert_int_eq(sched_getaffinity(0, sizeof(own), &own), 0);
    binding_read("/sys/devices/system/cpu", &own, &topology);
    for (unsigned i = 0; i < 3; i++) {
        binding_by_core(&topology, i, 3, &set);
        (void)snprintf(wanted, sizeof(wanted), "%s:core of %u: Cpus_allowed_list: %s\n", names[i],
                       host_cores(), list_of(&set));
        assert_holds(out, wanted);
    }
}
END_TEST

START_TEST(unbound_by_default)
{
    cpu_set_t own;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(own), &own), 0);
    assert_holds(launch_with(LAUNCH_PROGRAM, 0,
                             ARGS("SPARRING_BIND=core", "SPARRING_HOST_CORES=99"),
                             ARGS("sh", "-c", SHOW_PROCESSORS)),
                 "of : Cpus");
    assert_holds(LAUNCH(0, "sh", "-c", SHOW_PROCESSORS), list_of(&own));
}
END_TEST

START_TEST(interfaces_in_turn)
{
    const char *out = LAUNCH(0, "--nproc-per-node=3", "--interface=eth0,[::1]", "sh", "-c",
                             "echo \"rank $RANK: $SPARRING_INTERFACE\"");

    assert_holds(out, "rank 0: eth0\n");
    assert_holds(out, "rank 1: ::1\n");
    assert_holds(out, "rank 2: eth0\n");
}
END_TEST

TCase *launch_binding_cases(void)
{
    TCase *cases = tcase_create("binding");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, shares_of_a_host);
    tcase_add_test(cases, random_hosts);
    tcase_add_test(cases, processes_are_bound);
    tcase_add_test(cases, unbound_by_default);
    tcase_add_test(cases, interfaces_in_turn);
    return cases;
}
