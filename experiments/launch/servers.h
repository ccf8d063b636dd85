/*
 * servers: start parameter servers and collect the addresses on which they listen.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_SERVERS_H
#define SPARRING_EXPERIMENTS_LAUNCH_SERVERS_H

#include "common/base/strbuf.h"
#include "common/base/text_list.h"
#include "experiments/launch/child_set.h"
#include "experiments/launch/plan.h"

#define SERVERS_FOLDER_SIZE 512

/*
 * Start this node's servers as the first children of the child_set and wait until each has written
 * its port file, --start-timeout-ms at most; with one node their addresses ("127.0.0.1:4711,..." or
 * "unix:/tmp/.../0,...") go to `addresses`, those of their replicas to `replicas`.
 * Returns early, with STATUS_OK, when a server ended or a stop signal came: see first_failed and
 * stopping of the child set.
 *   program   path of sparring-server
 *   folder    SERVERS_FOLDER_SIZE bytes: where Unix sockets are; "" when there is none
 */
enum status servers_start(struct child_set *child_set, const struct plan *plan, const char *program,
                          struct strbuf *addresses, struct strbuf *replicas, char *folder,
                          struct error *err);

/*
 * Start children[index] again, which is GONE, on its former address from servers_start; does not
 * wait until it listens.
 */
enum status servers_restart(struct child_set *child_set, const struct plan *plan,
                            const char *program, const char *addresses, const char *replicas,
                            const char *folder, size_t index, struct error *err);

/* Append the words of a server that others address; run_dir: "" for none. */
void servers_add_words(const char *program, const char *listen, const char *run_dir,
                       struct text_list *words);

/* Remove what killed servers left in the folder, and the folder; "" is allowed. */
void servers_remove_folder(const struct plan *plan, const char *folder);

/* Append the addresses that are known without port files: of servers on given ports of several
 * nodes, then of those that run already. */
void servers_addresses(const struct plan *plan, struct strbuf *addresses);

#endif
