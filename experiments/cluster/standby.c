/*
 * standby: our own daemons on a lab's hosts; `sparring standby run` is the client of a task, and
 * `sparring standby hold` of an allocation.
 */
#include "experiments/cluster/engine.h"

#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOLDER "SPARRING_STANDBY_HOLDER"

static bool is_allocated(void)
{
    const char *holder = getenv(HOLDER);

    return holder && *holder;
}

static bool is_always(void)
{
    return true;
}

static enum status read_hosts(const char *on, struct text_list *ret, struct error *err)
{
    return engine_list_hosts(on, "standby:HOST[:PORT],...", ret, err);
}

/* Who uses the hosts: that of the allocation, or this process, which starts all steps of a job. */
static void name_holder(char *text, size_t size)
{
    const struct passwd *user = getpwuid(geteuid());
    char host[64] = "?";

    (void)gethostname(host, sizeof(host) - 1);
    if (is_allocated())
        (void)snprintf(text, size, "%s", getenv(HOLDER));
    else
        (void)snprintf(text, size, "%.40s@%s (pid %ld)", user ? user->pw_name : "?", host,
                       (long)getpid());
}

static void add_client(const char *command, struct text_list *words)
{
    char folder[4096], holder[128];

    words->failed =
        words->failed || subprocess_program_folder(folder, sizeof(folder), NULL) != STATUS_OK;
    name_holder(holder, sizeof(holder));
    text_list_addf(words, "%s/sparring", words->failed ? "" : folder);
    text_list_addf(words, "standby");
    text_list_addf(words, "%s", command);
    text_list_addf(words, "--holder=%s", holder);
}

static enum status add_allocation(const char *on, size_t hosts, char *const *argv,
                                  struct text_list *words, struct error *err)
{
    const char *list = strchr(on, ':');

    (void)hosts;
    if (!list)
        return error_set(err, STATUS_INVALID, "--on: '%s' is not standby:HOST[:PORT],...", on);
    add_client("hold", words);
    text_list_addf(words, "--hosts=%s", list + 1);
    text_list_addf(words, "--");
    for (; *argv; argv++)
        text_list_addf(words, "%s", *argv);
    return STATUS_OK;
}

/* The client takes the variables of a job from its environment. */
static void add_command(const struct engine_step *step, struct text_list *words)
{
    add_client("run", words);
    text_list_addf(words, "--host=%s", step->hosts[0]);
    text_list_addf(words, "--");
    for (const char *const *word = step->program; *word; word++)
        text_list_addf(words, "%s", *word);
}

const struct engine engine_standby = {.name = "standby",
                                      .is_allocated = is_allocated,
                                      .add_allocation = add_allocation,
                                      .is_running = is_always,
                                      .read_hosts = read_hosts,
                                      .add_command = add_command,
                                      .has_own_folders = true,
                                      .has_single_tasks = true,
                                      .stop_signal = SIGTERM,
                                      .kill_signal = SIGKILL};
