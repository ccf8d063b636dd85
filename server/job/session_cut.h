/*
 * session_cut: a connection of a rank breaks.
 */
#ifndef SPARRING_SERVER_JOB_SESSION_CUT_H
#define SPARRING_SERVER_JOB_SESSION_CUT_H

#include "server/job/job_table.h"

/* The given connection of a rank broke: end all of its calls.  Any thread, no lock, with a use of
 * the job.  Nothing happens when the session has moved on from that connection already. */
void session_cut(struct job_table *t, struct job *j, unsigned rank, uint64_t connection,
                 const char *how);

/* Its parts: the session, which is HELD, becomes AWAY (lock held), with references to its calls, at
 * most RANK_SESSION_CALLS_MAX, which session_end_calls then ends (no lock). */
size_t session_cut_locked(struct job_table *t, struct job *j, unsigned rank, const char *how,
                          struct rpc_call **ret_calls);
void session_end_calls(struct rpc_call **calls, size_t count);

/* How long a session that is wanted elsewhere, or comes back, may take from the reply to its join
 * to its first stream.  Lock held. */
int64_t session_open_ms(const struct job *j);

#endif
