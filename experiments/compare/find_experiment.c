/*
 * find_experiment: resolves the name of an experiment: a path as it is, a bare name in the list of
 * folders relative to the programs' folder.
 */
#include "experiments/compare/find_experiment.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_path(const char *name)
{
    size_t length = strlen(name);

    return strchr(name, '/') || (length > 5 && strcmp(name + length - 5, ".yaml") == 0);
}

static bool is_file(const char *name)
{
    struct stat info;

    return stat(name, &info) == 0 && S_ISREG(info.st_mode);
}

enum status find_experiment(const char *name, const char *folder, char *ret_path, size_t size,
                            struct error *err)
{
    static const char *const folders[] = {"", "/../share/sparring/experiments",
                                          "/../../../experiments"};

    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && !is_path(name); i++) {
        int written = snprintf(ret_path, size, "%s%s/%s.yaml", folder, folders[i], name);

        if (written > 0 && (size_t)written < size && access(ret_path, R_OK) == 0)
            return STATUS_OK;
    }
    if (is_path(name) || is_file(name)) {
        if (strlen(name) >= size)
            return error_set(err, STATUS_INVALID, "the path '%s' is too long", name);
        (void)snprintf(ret_path, size, "%s", name);
        return STATUS_OK;
    }
    return error_set(err, STATUS_NOT_FOUND,
                     "no experiment '%s': there is no such file, nor %s.yaml in '%s', "
                     "'%s/../share/sparring/experiments' or '%s/../../../experiments'",
                     name, name, folder, folder, folder);
}
