/*
 * cuda_loader: find sparring_cuda.so and open a GPU through it.
 *
 * Looked for in $SPARRING_CUDA_MODULE, beside the executable, and in the installation's library
 * folder, in this order; the first that exists is used, and one named by the variable must work.
 * The driver library is tried first: without it the module cannot load either, and its absence is
 * what the user has to know.  A module is never unloaded, because CUDA's libraries do not survive
 * it; the loader keeps no state, dlopen counts references itself.
 */
#include "worker/compute/cuda_module.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "sparring_cuda.so"
#define DRIVER_NAME "libcuda.so.1"

/* "<folder of this executable>/sparring_cuda.so"; empty when that is not known. */
static void path_beside_executable(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    char *slash;

    path[length > 0 ? length : 0] = '\0';
    slash = strrchr(path, '/');
    if (!slash || (size_t)(slash + 1 - path) + sizeof(MODULE_NAME) > size) {
        path[0] = '\0';
        return;
    }
    memcpy(slash + 1, MODULE_NAME, sizeof(MODULE_NAME));
}

static enum status find_module(char *path, size_t size, struct error *err)
{
    const char *named = getenv("SPARRING_CUDA_MODULE");
    char beside[4096];

    if (named && named[0] != '\0') {
        char *whole = realpath(named, NULL); /* dlopen looks elsewhere for a name without '/' */

        if (!whole)
            return error_set_errno(err, errno, "SPARRING_CUDA_MODULE: cannot find '%s'", named);
        (void)snprintf(path, size, "%s", whole);
        free(whole);
        return STATUS_OK;
    }
    path_beside_executable(beside, sizeof(beside));
    (void)snprintf(path, size, "%s", beside);
    if (access(path, R_OK) == 0)
        return STATUS_OK;
    (void)snprintf(path, size, "%s/%s", SPARRING_MODULE_DIR, MODULE_NAME);
    if (access(path, R_OK) == 0)
        return STATUS_OK;
    return error_set(err, STATUS_NOT_FOUND,
                     "the CUDA module is not built or not installed: neither '%s' nor '%s' is "
                     "there (SPARRING_CUDA_MODULE may name it)",
                     beside, path);
}

/* dlopen's text without line ends: an error is one line. */
static const char *load_problem(char *text, size_t size)
{
    const char *problem = dlerror();

    (void)snprintf(text, size, "%s", problem ? problem : "no reason given");
    text[strcspn(text, "\r\n")] = '\0';
    return text;
}

static enum status load_and_open(const char *path, int index, unsigned local_rank,
                                 struct compute **ret_compute, struct error *err)
{
    union {
        void *object;
        cuda_module_open_fn *function; /* POSIX allows it, ISO C has no cast for it */
    } symbol;
    char problem[512];
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!module)
        return error_set(err, STATUS_UNAVAILABLE, "cannot load the CUDA module '%s': %s", path,
                         load_problem(problem, sizeof(problem)));
    symbol.object = dlsym(module, CUDA_MODULE_SYMBOL);
    if (!symbol.object) {
        (void)dlclose(module); /* not one of ours, so it holds no CUDA state of ours */
        return error_set(err, STATUS_CONFIG, "'%s' is not a CUDA module of Sparring: no '%s' in it",
                         path, CUDA_MODULE_SYMBOL);
    }
    return symbol.function(CUDA_MODULE_VERSION, index, local_rank, ret_compute, err);
}

enum status compute_cuda_open(int index, unsigned local_rank, struct compute **ret_compute,
                              struct error *err)
{
    char path[4096 + sizeof(MODULE_NAME)];
    char problem[512];
    void *driver;
    enum status status = find_module(path, sizeof(path), err);

    if (status != STATUS_OK)
        return status;
    driver = dlopen(DRIVER_NAME, RTLD_LAZY | RTLD_LOCAL);
    if (!driver)
        return error_set(err, STATUS_UNAVAILABLE, "no NVIDIA driver on this host: %s",
                         load_problem(problem, sizeof(problem)));
    (void)dlclose(driver);
    return load_and_open(path, index, local_rank, ret_compute, err);
}
