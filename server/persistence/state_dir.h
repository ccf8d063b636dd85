/*
 * state_dir: the folder in which a server keeps its unfinished jobs, one subfolder for each:
 *
 *   DIR/lock                          locked by the server that uses DIR; contains its process id
 *   DIR/<job>.<index>/terms.json      the request of the job's first join
 *                    /snapshot-<n>.safetensors, /journal-<n>   server/persistence/job_log.h
 *   DIR/<job>.<index>.failed/         of a job that failed: ignored until it is renamed
 *                    .new, .old       being created, being removed
 *
 * <index> is the server's in the job.  Characters of a job's name that are not allowed in a file's
 * name become %XX.  The folder of a job is removed when the job ends in order.
 * Threads: one.  Called by: persistence.c.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_STATE_DIR_H
#define SPARRING_SERVER_PERSISTENCE_STATE_DIR_H

#include "common/base/error.h"
#include "common/wire/wire.h"

#include <stdint.h>

#define STATE_PATH_MAX 4096

struct state_dir {
    char path[STATE_PATH_MAX];
    int lock_fd; /* -1: not open */
};

/* Create the folder if it is missing, and lock it.  STATUS_EXISTS: another server uses it; the text
 * has its process id. */
enum status state_dir_open(struct state_dir *d, const char *path, struct error *err);
void state_dir_close(struct state_dir *d); /* NULL, zeroed and closed ones are allowed */

/*
 * Find the folder of the unfinished job; without one *ret_folder is "".
 *   ret_folder  STATE_PATH_MAX bytes
 *   ret_terms   the request of its first join (wire_release_join_request)
 *   ret_digest  of the terms
 * STATUS_EXISTS: there are two, and a server serves one job at a time.  STATUS_DATA names a file of
 * terms that is damaged.
 */
enum status state_dir_find(const struct state_dir *d, char *ret_folder,
                           struct join_request *ret_terms, uint64_t *ret_digest, struct error *err);

/* Create the folder of a new job, with its terms.  STATUS_EXISTS: it exists. */
enum status state_dir_add(const struct state_dir *d, const struct join_request *terms,
                          char *ret_folder, uint64_t *ret_digest, struct error *err);

/* Remove the folder of a job with its files.  A file that no job writes stays and is an error. */
enum status state_dir_remove(const char *folder, struct error *err);

/* Rename it to `<folder>.failed`, replacing an older one.  ret_path: STATE_PATH_MAX bytes. */
enum status state_dir_put_aside(const char *folder, char *ret_path, struct error *err);

#endif
