/*
 * findings: what the checks say, one line each.
 */
#ifndef SPARRING_EXPERIMENTS_DOCTOR_FINDINGS_H
#define SPARRING_EXPERIMENTS_DOCTOR_FINDINGS_H

#include "common/base/strbuf.h"

enum finding {
    FINDING_OK,
    FINDING_NOTE,    /* jobs run, but figures are worse, or some jobs do not */
    FINDING_MISSING, /* a part is not there; all else works */
    FINDING_BROKEN,  /* no job can run */
};

struct findings {
    struct strbuf text;
    unsigned counts[FINDING_BROKEN + 1];
};

__attribute__((format(printf, 4, 5))) void findings_add(struct findings *f, enum finding kind,
                                                        const char *topic, const char *format, ...);

/* Processors, neighbours, memory, clock, network interfaces, TCP: what the kernel says.  Blocks for
 * half a second. */
void doctor_check_host(struct findings *f);

#endif
