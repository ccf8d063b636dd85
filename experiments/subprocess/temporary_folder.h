/*
 * temporary_folder: a folder of its own for a benchmark or a task, in $TMPDIR or /tmp.
 */
#ifndef SPARRING_EXPERIMENTS_SUBPROCESS_TEMPORARY_FOLDER_H
#define SPARRING_EXPERIMENTS_SUBPROCESS_TEMPORARY_FOLDER_H

#include "common/base/error.h"

#include <stddef.h>

/* Make a folder with access for this user only, whose name begins with "sparring-" and `purpose`;
 * its path goes into `path`, which is "" on failure.
 * STATUS_CONFIG when it does not fit into `size` bytes. */
enum status temporary_folder_make(const char *purpose, char *path, size_t size, struct error *err);

/* Remove the folder with its contents, ignoring errors; "" is allowed. */
void temporary_folder_remove(const char *path);

#endif
