/*
 * verdict: why an operation did not end, and because of which rank; private to the core.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_VERDICT_H
#define SPARRING_COMMON_COLLECTIVE_VERDICT_H

#include "common/collective/collective_ops.h"

#include <limits.h>

enum verdict_cause {
    VERDICT_ALARM,   /* the group's alarm was raised */
    VERDICT_FAILED,  /* the backend returned RUN_FAILED */
    VERDICT_TIMEOUT, /* the operation's time is up */
};

/* Find the culprit, agree with the peers on it, and fill the group's fault and culprit and
 * *err, which holds the backend's own error for VERDICT_FAILED.  Blocks for at most 3 s; after a
 * mismatch until the members that decide which side is the odd one have come, but no longer than
 * 30 s or an operation's time-out. */
void verdict_reach(struct collective *g, const struct collective_work *w, enum verdict_cause cause,
                   struct error *err);

/* After this time in one operation of a library, compare the ranks' operations; again after twice
 * the time, until all have started it. */
#define COLLECTIVE_COMPARE_NS 500000000

#define COLLECTIVE_WARNINGS_PART 4 /* a warning after each of so many parts of the time-out ... */

/* ... but for the first two only.  The operation goes on: its progress is published to peers and
 * the recorder, and warnings are logged.  Called by the thread that waits, or by its watchdog. */
void collective_report(struct collective_work *w, int64_t now_ns);

/* Log the rank that the operation waits for, `seconds` into it; on a mismatch as verdict_compare.
 */
void verdict_warn(struct collective *g, const struct collective_work *w, double seconds);

/* Compare the operations of the members that have started it.  On a mismatch send the verdict,
 * which raises the alarm; never for a send or receive, which may have its turn later.  False: too
 * few have started to decide. */
bool verdict_compare(struct collective *g, const struct collective_work *w);

/* Repeat `ask` until it returns true (the members it waits for have arrived), but no longer than
 * the limit of verdict_reach.  False: a peer has sent a verdict. */
bool verdict_await_members(struct collective *g,
                           bool (*ask)(struct collective *g, const void *what), const void *what);

/* ---- the members' trails; verdict_trail.c ---- */

/* Members differ, at the latest by `sequence`, as this rank and `peer` (of the job) have seen: fill
 * the verdict.  False: a peer has sent one. */
bool verdict_explain_trail(struct collective *g, uint64_t sequence, unsigned peer,
                           struct mesh_verdict *ret);

/* Has the mesh found that a member ran other operations than this rank?  Then ret names the odd one
 * of all members and, where it is still kept, the first operation that differs; FAULT_NONE: a peer
 * has sent a verdict.  Blocks as verdict_reach does. */
bool verdict_find_difference(struct collective *g, struct mesh_verdict *ret);

/* Ask all members whether they have run the same, and on a difference reach and send the verdict:
 * STATUS_MISMATCH, with the group's fault and culprit. */
enum status verdict_check_trails(struct collective *g, struct error *err);

/* Pure: of the members that keep the requested sequence, which has the odd hash?  *ret_other is a
 * rank of the majority.  False when all are equal. */
bool verdict_odd_trail(const struct mesh_view *views, unsigned count, unsigned *ret_culprit,
                       unsigned *ret_other);

/* ---- pure: evaluation of the peers' replies; verdict_views.c ---- */

/* All are in the operation and none stands out, or their progress is unknown. */
#define VERDICT_RANK_UNKNOWN UINT_MAX

/* The culprit (rank in the group, or VERDICT_RANK_UNKNOWN with FAULT_SLOW) and its fault by the
 * members' views, seen from `self`, which runs `mine`; FAULT_NONE when they explain nothing.
 * left[r] is the last collective of a member that left the group, UINT64_MAX: it did not.  ret_text
 * (size bytes) says how it is known, with ranks of the job, members[r]; the root of an operation is
 * a rank of the group. */
enum fault verdict_from_views(const struct mesh_view *views, const uint64_t *left,
                              const unsigned *members, unsigned count, unsigned self,
                              const struct signature *mine, unsigned *ret_culprit, char *ret_text,
                              size_t size);

/* Can members that have not started `mine` still show which side is the larger one, or that
 * there are two?  Not once one has left the group, nor for a send or receive. */
bool verdict_is_open(const struct mesh_view *views, const uint64_t *left, unsigned count,
                     const struct signature *mine);

#endif
