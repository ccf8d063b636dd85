/*
 * Finds a module's file and loads it with dlopen.  A missing driver is reported before dlopen would
 * fail with an obscure text.  No state and no locks: dlopen counts references itself.
 */
#include "common/base/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct module_spec module_cuda = {
    .file = "sparring_cuda.so",
    .variable = "SPARRING_CUDA_MODULE",
    .what = "the CUDA module",
    .driver = "libcuda.so.1",
    .driver_what = "no NVIDIA driver on this host",
};

/* "<folder of this executable>/<relative><file>"; empty when the folder is unknown. */
static void path_beside_executable(const char *relative, const char *file, char path[PATH_MAX])
{
    char own[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    char *slash;

    path[0] = '\0';
    own[length > 0 ? length : 0] = '\0';
    slash = strrchr(own, '/');
    if (!slash)
        return;
    slash[1] = '\0';
    if (snprintf(path, PATH_MAX, "%s%s%s", own, relative, file) >= PATH_MAX)
        path[0] = '\0';
}

static enum status find_module_file(const struct module_spec *place, char path[PATH_MAX],
                                    struct error *err)
{
    static const char *const folders[] = {"", "../bin/", "../" SPARRING_MODULE_FOLDER "/"};
    const char *named = getenv(place->variable);
    char beside[PATH_MAX];

    if (named && named[0] != '\0') {
        char *whole = realpath(named, NULL); /* dlopen searches elsewhere for a bare name */

        if (!whole)
            return error_set_errno(err, errno, "%s: cannot find '%s'", place->variable, named);
        (void)snprintf(path, PATH_MAX, "%s", whole);
        free(whole);
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        path_beside_executable(folders[i], place->file, path);
        if (access(path, R_OK) == 0)
            return STATUS_OK;
    }
    (void)snprintf(path, PATH_MAX, "%s/%s", SPARRING_MODULE_DIR, place->file);
    if (access(path, R_OK) == 0)
        return STATUS_OK;
    path_beside_executable("", place->file, beside);
    return error_set(err, STATUS_NOT_FOUND,
                     "%s is not built or not installed: neither '%s' nor '%s' is there (%s may "
                     "name it)",
                     place->what, beside, path, place->variable);
}

/* dlopen's error text up to its first line end: an error is one line. */
static const char *dlerror_line(char *text, size_t size)
{
    const char *problem = dlerror();

    (void)snprintf(text, size, "%s", problem ? problem : "no reason given");
    text[strcspn(text, "\r\n")] = '\0';
    return text;
}

enum status module_open(const struct module_spec *place, void **ret, struct error *err)
{
    char path[PATH_MAX];
    char problem[512];
    enum status status = find_module_file(place, path, err);
    void *driver;
    void *module;

    if (status != STATUS_OK)
        return status;
    if (place->driver) {
        driver = dlopen(place->driver, RTLD_LAZY | RTLD_LOCAL);
        if (!driver)
            return error_set(err, STATUS_UNAVAILABLE, "%s: %s", place->driver_what,
                             dlerror_line(problem, sizeof(problem)));
        (void)dlclose(driver);
    }
    module = dlopen(path, RTLD_NOW | (place->global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!module)
        return error_set(err, STATUS_UNAVAILABLE, "cannot load %s '%s': %s", place->what, path,
                         dlerror_line(problem, sizeof(problem)));
    *ret = module;
    return STATUS_OK;
}

enum status module_symbol(const struct module_spec *place, void *module, const char *symbol,
                          void **ret, struct error *err)
{
    char problem[512];

    *ret = dlsym(module, symbol);
    if (!*ret)
        return error_set(err, STATUS_CONFIG, "%s lacks '%s', so it is of another build: %s",
                         place->what, symbol, dlerror_line(problem, sizeof(problem)));
    return STATUS_OK;
}
