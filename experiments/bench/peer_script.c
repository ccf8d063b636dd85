/*
 * peer_script: relative to the folder of this program, as experiments are found
 * (compare/find_experiment).
 */
#include "experiments/bench/peer_script.h"

#include "experiments/subprocess/subprocess.h"

#include <stdio.h>
#include <unistd.h>

enum status peer_script_find(const char *given, const char *name, char *ret_path, size_t size,
                             struct error *err)
{
    static const char *const folders[] = {"/../share/sparring/experiments/peers",
                                          "/../../../experiments/peers"};
    char bin[1024];
    enum status status;

    (void)snprintf(ret_path, size, "%s", given);
    if (given[0])
        return STATUS_OK;
    status = subprocess_program_folder(bin, sizeof(bin), err);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && status == STATUS_OK; i++) {
        (void)snprintf(ret_path, size, "%s%s/%s", bin, folders[i], name);
        if (access(ret_path, R_OK) == 0)
            return STATUS_OK;
    }
    return status != STATUS_OK
               ? status
               : error_set(err, STATUS_NOT_FOUND, "no %s: neither '%s%s' nor '%s%s' has it", name,
                           bin, folders[0], bin, folders[1]);
}
