/*
 * engine: the engines by name.  No state.
 */
#include "experiments/cluster/engine.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum status engine_find(const char *on, const struct engine **ret, struct error *err)
{
    static const struct engine *const engines[] = {&engine_slurm, &engine_ssh, &engine_standby,
                                                   &engine_kubernetes};
    const size_t length = strcspn(on, ":");

    *ret = NULL;
    if (strcmp(on, "local") == 0)
        return STATUS_OK;
    for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++)
        if (strlen(engines[i]->name) == length && strncmp(on, engines[i]->name, length) == 0)
            *ret = engines[i];
    return *ret ? STATUS_OK
                : error_set(err, STATUS_INVALID, "--on: '%s' is none of " ENGINE_METAVAR, on);
}

enum status engine_exec(struct text_list *words, struct error *err)
{
    char *const *argv = text_list_words(words);
    enum status status;

    if (!argv) {
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    } else {
        (void)execvp(argv[0], argv);
        status = error_set_errno(err, errno, "cannot run '%s'", argv[0]);
    }
    text_list_release(words);
    return status;
}

enum status engine_list_hosts(const char *on, const char *form, struct text_list *ret,
                              struct error *err)
{
    const char *list = strchr(on, ':');

    *ret = (struct text_list){0};
    for (const char *name = list ? list + 1 : ""; *name;) {
        const size_t length = strcspn(name, ",");

        if (length == 0 || name[0] == '-' || memchr(name, '@', length))
            return error_set(err, STATUS_INVALID, "--on: '%s' is not %s", on, form);
        text_list_addf(ret, "%.*s", (int)length, name);
        name += length + (name[length] == ',');
    }
    if (ret->length == 0)
        return error_set(err, STATUS_INVALID, "--on: '%s' names no host: %s", on, form);
    return ret->failed ? error_set(err, STATUS_NO_MEMORY, "no memory for names of hosts")
                       : STATUS_OK;
}
