/*
 * bench_folder: mkdtemp and a recursive removal by nftw that does not follow symbolic links.
 */
#include "experiments/bench/bench_folder.h"

#include "common/base/file.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#define DESCRIPTORS 16 /* for folders in folders */

enum status bench_folder_make(char *path, size_t size, struct error *err)
{
    const char *base = getenv("TMPDIR");
    enum status status =
        file_join(path, size, base && base[0] ? base : "/tmp", "sparring-bench-XXXXXX", err);

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

void bench_folder_remove(const char *path)
{
    if (path[0] != '\0')
        (void)nftw(path, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}
