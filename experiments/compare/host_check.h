/*
 * host_check: what must hold of an engine's hosts before a block runs on them.  They see the same
 * files and have the same programs as this host, their clocks agree, nobody else uses their
 * processors, and their links are as fast as at first.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_HOST_CHECK_H
#define SPARRING_EXPERIMENTS_COMPARE_HOST_CHECK_H

#include "common/base/text_list.h"
#include "experiments/compare/experiment.h"

#include <stdint.h>

struct host_check {
    const struct experiment *experiment; /* borrowed, as the texts below */
    const char *programs, *out;
    struct text_list hosts; /* owned */
    char expected[64];      /* what stands for the programs of this host */
    int64_t next_ns;        /* not before: the last check is recent */
    double link_gbit;       /* of the first check; 0: none yet */
};

/* The names of the engine's hosts; nothing is checked yet.  The caller closes *ret, also after an
 * error. */
enum status host_check_open(const struct experiment *e, const char *programs, const char *out,
                            struct host_check *ret, struct error *err);
void host_check_close(struct host_check *c);

/*
 * Look at all hosts, unless that was within the last minute, and append what was found to
 * `out`/hosts.jsonl (METRICS.md); what they said last is in `out`/hosts.log.
 * STATUS_CONFIG, with the host, when one does not answer, does not see `out`/plan.json, or has
 * other programs than this host.  Where it is slow, busy or late: a warning, or, if the experiment
 * says so, wait up to a minute, then STATUS_DISTURBED.  STATUS_CANCELLED when the allocation has
 * ended.
 */
enum status host_check_block(struct host_check *c, struct error *err);

/* STATUS_CANCELLED, with the reason, when the allocation has ended or a host does not answer.
 * Blocks for up to a minute. */
enum status host_check_present(struct host_check *c, struct error *err);

#endif
