/*
 * temporary_folder: mkdtemp and a recursive removal by nftw that does not follow symbolic links.
 */
#include "experiments/subprocess/temporary_folder.h"

#include "common/base/file.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#define DESCRIPTORS 16 /* for folders in folders */

enum status temporary_folder_make(const char *purpose, char *path, size_t size, struct error *err)
{
    const char *base = getenv("TMPDIR");
    char name[64];
    enum status status;

    (void)snprintf(name, sizeof(name), "sparring-%s-XXXXXX", purpose);
    status = file_join(path, size, base && base[0] ? base : "/tmp", name, err);
    if (status == STATUS_OK && !mkdtemp(path))
        status = error_set_errno(err, errno, "cannot make a temporary folder '%s'", path);
    if (status != STATUS_OK)
        path[0] = '\0';
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void temporary_folder_remove(const char *path)
{
    if (path[0] != '\0')
        (void)nftw(path, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}
