/*
 * step: the engine says with which words.
 */
#include "experiments/launch/step.h"

#include "common/base/memory.h"
#include "experiments/launch/placement.h"

#include <stdlib.h>

/* The host of each task, as text of its own. */
static enum status add_hosts(const struct plan *p, unsigned host, unsigned tasks,
                             struct text_list *hosts, struct error *err)
{
    for (unsigned i = 0; i < tasks; i++) {
        char name[HOST_NAME_SIZE];

        placement_host_name(p, host + i / (unsigned)p->options.ranks_per_host, name, sizeof(name));
        text_list_addf(hosts, "%s", name);
    }
    return hosts->failed ? error_set(err, STATUS_NO_MEMORY, "no memory for names of hosts")
                         : STATUS_OK;
}

enum status step_start(struct child_set *c, const struct plan *p, size_t index, unsigned host,
                       unsigned tasks, struct child_request *request, struct error *err)
{
    struct text_list hosts = {0}, program = {0}, words = {0};
    struct engine_step step = {.variables = (const char *const *)request->variables,
                               .is_labelled = p->options.tee && !request->prefix,
                               .is_stopped = true};
    enum status status = add_hosts(p, host, tasks, &hosts, err);

    text_list_addf(&program, "%s", request->file);
    for (char *const *word = request->argv + 1; *word; word++)
        text_list_addf(&program, "%s", *word);
    step.hosts = (const char *const *)hosts.texts;
    step.length = hosts.length;
    step.program = (const char *const *)text_list_words(&program);
    if (status == STATUS_OK && step.program)
        p->hosts.engine->add_command(&step, &words);
    request->engine = p->hosts.engine;
    request->argv = step.program ? text_list_words(&words) : NULL;
    if (status == STATUS_OK && !request->argv)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    if (status == STATUS_OK && request->argv) {
        request->file = request->argv[0];
        status = child_set_start(c, index, request, err);
    }
    text_list_release(&hosts);
    text_list_release(&program);
    text_list_release(&words);
    return status;
}
