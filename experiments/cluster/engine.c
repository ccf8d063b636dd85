/*
 * engine: the engines by name.  No state.
 */
#include "experiments/cluster/engine.h"

#include <string.h>

enum status engine_find(const char *on, const struct engine **ret, struct error *err)
{
    static const struct engine *const engines[] = {&engine_slurm, &engine_ssh};
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
