/*
 * crew_internal: what the sources of crew share.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_CREW_INTERNAL_H
#define SPARRING_EXPERIMENTS_LAUNCH_CREW_INTERNAL_H

#include "experiments/launch/crew.h"

/* A child has ended (LINGERING): note what that means, and have it started again where another
 * process can take its place. */
void crew_note_end(struct crew *c, struct child *child);

/* Declare who failed first, once its time has come, and stop the ranks for it. */
void crew_pass_verdict(struct crew *c);

/* The job is to end: tell the ranks. */
void crew_stop_ranks(struct crew *c, int number);

bool crew_any_active(const struct crew *c, size_t first, size_t end);

#endif
