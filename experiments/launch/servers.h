/*
 * servers: start parameter servers and learn where they listen.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_SERVERS_H
#define SPARRING_EXPERIMENTS_LAUNCH_SERVERS_H

#include "common/base/strbuf.h"
#include "experiments/launch/crew.h"
#include "experiments/launch/plan.h"

#define SERVERS_FOLDER_SIZE 512

/*
 * Start this node's servers as the first children of the crew and wait until each has written its
 * port file, --start-timeout-ms at most; with one node their addresses ("127.0.0.1:4711,..." or
 * "unix:/tmp/.../0,...") go to `addresses`, those of their replicas to `replicas`.
 * Returns early, with STATUS_OK, when a server ended or a signal asks to stop: the crew tells.
 *   program   path of sparring-server
 *   folder    SERVERS_FOLDER_SIZE bytes: where Unix sockets are; "" when there is none
 */
enum status servers_start(struct crew *crew, const struct plan *plan, const char *program,
                          struct strbuf *addresses, struct strbuf *replicas, char *folder,
                          struct error *err);

/*
 * Start children[place] again, which is GONE, where it listened before; what it listens on is what
 * servers_start has said, and nothing waits for it.
 */
enum status servers_restart(struct crew *crew, const struct plan *plan, const char *program,
                            const char *addresses, const char *folder, size_t place,
                            struct error *err);

/* Remove what killed servers left in the folder, and the folder; "" is allowed. */
void servers_remove_folder(const struct plan *plan, const char *folder);

/* Those that need not be asked for: of servers on given ports of several nodes, then of those that
 * run already. */
void servers_addresses(const struct plan *plan, struct strbuf *addresses);

#endif
