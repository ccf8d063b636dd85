/*
 * bench_folder: a temporary folder of one benchmark's run, in $TMPDIR or /tmp.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_FOLDER_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_FOLDER_H

#include "common/base/error.h"

#include <stddef.h>

/* Make one that is this user's alone; its path goes into `path`, which is "" on failure.
 * STATUS_CONFIG when it does not fit into `size` bytes. */
enum status bench_folder_make(char *path, size_t size, struct error *err);

/* With all that is in it, as far as this user may; "" is allowed. */
void bench_folder_remove(const char *path);

#endif
