/*
 * bench_folder: the temporary folder of one benchmark, in $TMPDIR or /tmp.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_FOLDER_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_FOLDER_H

#include "common/base/error.h"

#include <stddef.h>

/* Make a folder with access for this user only; its path goes into `path`, which is "" on failure.
 * STATUS_CONFIG when it does not fit into `size` bytes. */
enum status bench_folder_make(char *path, size_t size, struct error *err);

/* Remove the folder with its contents, ignoring errors; "" is allowed. */
void bench_folder_remove(const char *path);

#endif
