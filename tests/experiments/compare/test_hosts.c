/*
 * hosts: how many a mode takes, and which a block has.
 */
#include "experiments/compare/hosts.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set(struct experiment_options *o, const char *name, const char *value)
{
    struct experiment_option *item = &o->items[o->length++];

    (void)snprintf(item->name, sizeof(item->name), "%s", name);
    (void)snprintf(item->value, sizeof(item->value), "%s", value);
}

static const struct {
    int64_t nproc, servers;
    const char *per_host, *placement, *replicas;
    size_t hosts;
} sizes[] = {
    {1, 0, "1", "dedicated", "false", 1}, {4, 0, "1", "dedicated", "false", 4},
    {4, 2, "1", "dedicated", "false", 6}, {5, 2, "2", "dedicated", "false", 5},
    {4, 0, "2", "colocated", "false", 2}, {4, 3, "1", "colocated", "false", 4},
    {4, 1, "1", "mixed", "false", 5},     {4, 2, "1", "dedicated", "true", 8},
    {4, 0, "2", "colocated", "true", 4},  {3, 1, "0", "dedicated", "false", 4},
    {2, 3, "1", "colocated", "true", 5},  {4, 1, "1", "colocated", "yes", 5},
    {2, 2, "1", "mixed", "on", 6},        {4, 1, "1", "mixed", "true", 10},
};

START_TEST(test_hosts_of_modes)
{
    struct experiment *e = calloc(1, sizeof(*e));

    ck_assert_ptr_nonnull(e);
    e->mode_count = 2;
    e->modes[0] = (struct experiment_mode){.nproc = 1};
    e->modes[1].nproc = sizes[_i].nproc;
    e->modes[1].servers = sizes[_i].servers;
    set(&e->options, "ranks-per-host", sizes[_i].per_host);
    set(&e->modes[1].options, "server-placement", sizes[_i].placement);
    set(&e->modes[1].options, "replicas", sizes[_i].replicas);
    ck_assert_uint_eq(hosts_of_mode(e, &e->modes[1]), sizes[_i].hosts);
    ck_assert_uint_eq(hosts_needed(e), sizes[_i].hosts);
    free(e);
}
END_TEST

/* The same for a block, others for another one; every host comes first at some time. */
START_TEST(test_draw)
{
    struct text_list hosts = {0};
    struct experiment *e = calloc(1, sizeof(*e));
    unsigned first[3] = {0};

    ck_assert_ptr_nonnull(e);
    e->seed = 7;
    for (int i = 0; i < 3; i++)
        text_list_addf(&hosts, "h%d", i);
    for (size_t block = 0; block < 60; block++) {
        struct strbuf all = STRBUF_INIT, two = STRBUF_INIT;

        hosts_draw(e, &hosts, block, 3, &all);
        hosts_draw(e, &hosts, block, 2, &two);
        ck_assert_uint_eq(all.length, 8);
        ck_assert_uint_eq(two.length, 5);
        ck_assert(strncmp(all.text, two.text, two.length) == 0);
        first[all.text[1] - '0']++;
        strbuf_release(&all);
        strbuf_release(&two);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_uint_ge(first[i], 5);
    text_list_release(&hosts);
    free(e);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compare_hosts", 60,
                       LOOP_TEST(test_hosts_of_modes, 0, sizeof(sizes) / sizeof(sizes[0])),
                       TEST(test_draw));
}
