/*
 * The mpi backend: finds sparring_mpi.so, which holds MPI, and checks that mpirun started the
 * ranks.  Looked for in $SPARRING_MPI_MODULE, beside the executable and in the folder above it
 * (tests), and in the installation's library folder; the first that exists is used.  Never
 * unloaded: MPI does not survive it.
 *
 * MPI cannot cancel anything: `interrupt` is absent, so a process whose group has lost a rank, or
 * is past its time-out, ends with the error's text and exit code (collective_blocking.h), and
 * mpirun ends the job.
 */
#include "common/collective/library/library_backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "sparring_mpi.so"

/* "<folder of this executable>/<relative>" + module; empty when it is not there. */
static void find_beside(const char *relative, char *path, size_t size)
{
    char own[4096];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    char *slash;

    own[length > 0 ? length : 0] = '\0';
    slash = strrchr(own, '/');
    if (slash)
        slash[1] = '\0';
    if (snprintf(path, size, "%s%s" MODULE_NAME, own, relative) >= (int)size ||
        access(path, R_OK) != 0)
        path[0] = '\0';
}

static enum status find_module(char *path, size_t size, struct error *err)
{
    const char *named = getenv("SPARRING_MPI_MODULE");

    path[0] = '\0';
    if (named && named[0] != '\0') {
        (void)snprintf(path, size, "%s", named);
        return STATUS_OK;
    }
    find_beside("", path, size);
    if (path[0] == '\0')
        find_beside("../bin/", path, size);
    if (path[0] == '\0')
        (void)snprintf(path, size, "%s/%s", SPARRING_MODULE_DIR, MODULE_NAME);
    if (access(path, R_OK) != 0)
        return error_set(err, STATUS_CONFIG,
                         "the mpi backend's module is not installed: '%s' is neither beside the "
                         "program nor at '%s' (SPARRING_MPI_MODULE may name it)",
                         MODULE_NAME, path);
    return STATUS_OK;
}

static enum status load(const struct library_ops **ret, struct error *err)
{
    union {
        void *object;
        library_module_fn *function; /* POSIX allows it, ISO C has no cast for it */
    } symbol;
    char path[4400];
    const char *problem;
    void *module;
    enum status status = find_module(path, sizeof(path), err);

    if (status != STATUS_OK)
        return status;
    module = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE); /* MPI's own modules need it */
    if (!module) {
        problem = dlerror();
        return error_set(err, STATUS_CONFIG, "cannot load the mpi backend's module '%s': %s", path,
                         problem ? problem : "no reason given");
    }
    symbol.object = dlsym(module, LIBRARY_MODULE_SYMBOL);
    (void)dlclose(module); /* it stays */
    if (!symbol.object)
        return error_set(err, STATUS_CONFIG, "'%s' is no module of Sparring: no '%s' in it", path,
                         LIBRARY_MODULE_SYMBOL);
    *ret = symbol.function();
    if ((*ret)->version != LIBRARY_VERSION)
        return error_set(err, STATUS_CONFIG, "'%s' is of another build: version %u, not %u", path,
                         (*ret)->version, LIBRARY_VERSION);
    return STATUS_OK;
}

static enum status mpi_group_check(const struct collective_config *config, struct error *err)
{
    const struct library_ops *library;
    enum status status = load(&library, err);

    return status == STATUS_OK ? library->check(config->rank, config->world_size, err) : status;
}

static enum status mpi_group_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    const struct library_ops *library;
    enum status status = load(&library, err);

    (void)deadline_ns;
    return status == STATUS_OK ? library_group_open(group, library, err) : status;
}

const struct collective_ops collective_mpi_ops = {
    .name = "mpi",
    .size = sizeof(struct library_group),
    .blocking = true,
    .check = mpi_group_check,
    .open = mpi_group_open,
    .supports = library_group_supports,
    .run = library_group_run,
    .expected_bytes = library_group_expected_bytes,
    .close = library_group_close,
};
