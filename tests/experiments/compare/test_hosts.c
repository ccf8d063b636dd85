/*
 * hosts: how many a mode takes, and what hosts are told that are not fit.  The engine of this test
 * is a shell that stands for two hosts.
 */
#include "common/base/file.h"
#include "experiments/compare/hosts.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct error err;
static const char *second; /* shell code: what the second host does in place of the command */

static enum status read_hosts(const char *on, struct text_list *ret, struct error *e)
{
    (void)on;
    (void)e;
    text_list_addf(ret, "a");
    text_list_addf(ret, "b");
    return STATUS_OK;
}

/* The command's output behind the number of the host, as srun --label prints it. */
static void add_command(const struct engine_step *step, struct text_list *words)
{
    ck_assert_uint_eq(step->length, 2);
    ck_assert(step->is_labelled);
    text_list_addf(words, "sh");
    text_list_addf(words, "-c");
    text_list_addf(words, "echo \"0: $(\"$@\")\"; echo \"1: $(%s)\"", second);
    text_list_addf(words, "sh");
    for (const char *const *word = step->program; *word; word++)
        text_list_addf(words, "%s", *word);
}

static const struct engine shell = {
    .name = "shell", .read_hosts = read_hosts, .add_command = add_command};

static const struct experiment *on_shell(void)
{
    static struct experiment e;

    e.engine = &shell;
    return &e;
}

static void write_files(void)
{
    static const char *const names[] = {"sparring", "sparring-worker", "sparring-server"};

    for (size_t i = 0; i < 3; i++)
        (void)support_write(names[i], names[i], strlen(names[i]));
    (void)support_write("plan.json", "{}", 2);
}

static const struct {
    const char *second;
    const char *text; /* of the error; NULL: none */
} answers[] = {
    {"\"$@\"", NULL},
    {"echo 17 4", "host b has other programs than this one"},
    {"echo does not see /x/plan.json", "host b does not see /x/plan.json: --out must be a folder"},
    {"", "host b did not answer: "},
};

START_TEST(test_answers)
{
    struct text_list hosts = {0};

    write_files();
    second = answers[_i].second;
    if (!answers[_i].text)
        assert_ok(hosts_open(on_shell(), support_folder(), support_folder(), &hosts, &err));
    else
        assert_fails(hosts_open(on_shell(), support_folder(), support_folder(), &hosts, &err),
                     STATUS_CONFIG, answers[_i].text);
    ck_assert_uint_eq(hosts.length, 2);
    text_list_release(&hosts);
}
END_TEST

/* This host does not see the folder either. */
START_TEST(test_no_plan)
{
    struct text_list hosts = {0};

    write_files();
    ck_assert_int_eq(unlink(support_path("plan.json")), 0);
    second = "\"$@\"";
    assert_fails(hosts_open(on_shell(), support_folder(), support_folder(), &hosts, &err),
                 STATUS_CONFIG, "host a does not see ");
    text_list_release(&hosts);
}
END_TEST

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
    return SUPPORT_RUN(
        "compare_hosts", 60, LOOP_TEST(test_answers, 0, sizeof(answers) / sizeof(answers[0])),
        TEST(test_no_plan), LOOP_TEST(test_hosts_of_modes, 0, sizeof(sizes) / sizeof(sizes[0])),
        TEST(test_draw));
}
