/*
 * state_dir: where a server keeps the jobs that it has not finished, one folder for each:
 *
 *   DIR/lock                          held by the server that uses DIR; its process id
 *   DIR/<job>.<index>/terms.json      what the job's first join asked for
 *                    /snapshot-<n>.safetensors, /journal-<n>   server/persistence/job_log.h
 *   DIR/<job>.<index>.failed/         of a job that failed: nobody reads it until it is renamed
 *                    .new, .old       being made, being removed
 *
 * <index> is the server's in the job.  Characters of a job's name that do not belong into a file's
 * stand as %XX.  A folder goes when its job ends in order.
 * Threads: one.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_STATE_DIR_H
#define SPARRING_SERVER_PERSISTENCE_STATE_DIR_H

#include "common/base/error.h"
#include "common/wire/wire.h"

#include <stdint.h>

#define STATE_PATH_MAX 4096

struct state_dir {
    char path[STATE_PATH_MAX];
    int lock; /* -1: not open */
};

/* Make the folder if need be and take it.  STATUS_EXISTS: another server uses it; the text has its
 * process id. */
enum status state_dir_open(struct state_dir *d, const char *path, struct error *err);
void state_dir_close(struct state_dir *d); /* NULL, zeroed and closed ones are allowed */

/*
 * The folder of the job that was not finished, if there is one, else *ret_folder is "".
 *   ret_folder  STATE_PATH_MAX bytes
 *   ret_terms   what its first join asked for (wire_release_join_request)
 *   ret_digest  of the terms
 * STATUS_EXISTS: there are two, which one server cannot serve at once.  STATUS_DATA names a file of
 * terms that is damaged.
 */
enum status state_dir_find(const struct state_dir *d, char *ret_folder,
                           struct join_request *ret_terms, uint64_t *ret_digest, struct error *err);

/* Make the folder of a new job, with its terms.  STATUS_EXISTS: there is one. */
enum status state_dir_add(const struct state_dir *d, const struct join_request *terms,
                          char *ret_folder, uint64_t *ret_digest, struct error *err);

/* Remove the folder of a job and its files; a file that is not ours stays, and is an error. */
enum status state_dir_remove(const char *folder, struct error *err);

/* Put it aside as `<folder>.failed`, in place of an older one.  ret_path: STATE_PATH_MAX bytes. */
enum status state_dir_put_aside(const char *folder, char *ret_path, struct error *err);

#endif
