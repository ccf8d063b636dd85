/*
 * session_cut: ends a rank's connection: its calls are cancelled and the session is AWAY.  Needs
 * job_table.  Called by service when a call breaks, a session is silent, its rank reports a
 * failure, or it joins again.
 */
#ifndef SPARRING_SERVER_JOB_SESSION_CUT_H
#define SPARRING_SERVER_JOB_SESSION_CUT_H

#include "server/job/job_table.h"

/* The given connection of a rank broke: end all of its calls.  Any thread, no lock; the caller has
 * a use of the job.  No effect if the session has a newer connection or is not HELD. */
void session_cut(struct job_table *t, struct job *j, unsigned rank, uint64_t connection,
                 const char *how);

/* The same in two steps.  session_cut_locked: the HELD session becomes AWAY; returns references to
 * its calls, at most RANK_SESSION_CALLS_MAX.  Lock held.  session_end_calls: cancel them.  No
 * lock. */
size_t session_cut_locked(struct job_table *t, struct job *j, unsigned rank, const char *how,
                          struct rpc_call **ret_calls);
void session_end_calls(struct rpc_call **calls, size_t count);

/* The longest time from the reply to a join until all streams of the session are open, for a
 * session that reconnects or that another join is to replace.  Lock held. */
int64_t session_open_ms(const struct job *j);

#endif
