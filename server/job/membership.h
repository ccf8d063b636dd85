/*
 * membership: the members of a job.  Every rank joins once with its terms (its settings for the
 * server) and its manifest; the job runs once all ranks have joined and agree on every field.  Each
 * leaves once.  No locks, no I/O: the job table's lock guards it.
 */
#ifndef SPARRING_SERVER_JOB_MEMBERSHIP_H
#define SPARRING_SERVER_JOB_MEMBERSHIP_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "common/wire/wire.h"

#include <stdbool.h>

#define MEMBERSHIP_RANKS_MAX     1024u
#define MEMBERSHIP_MANIFESTS_MAX ((size_t)64 << 20) /* bytes of all ranks' manifests */

enum member_state { MEMBER_ABSENT, MEMBER_JOINED, MEMBER_LEFT };

struct member {
    enum member_state state;
    struct strbuf manifest; /* its terms and its manifest, as lines "field<TAB>value" */
    size_t terms_bytes;     /* length of the terms in it */
    char peer[64];          /* address, for error texts */
};

struct membership {
    char job[WIRE_JOB_MAX];
    unsigned world_size;
    struct member *members; /* owned, world_size of them */
    unsigned joined;        /* ranks in MEMBER_JOINED */
    unsigned left;          /* ranks in MEMBER_LEFT */
    size_t manifest_bytes;  /* of all members */
};

/* Start the membership of a job from its first join request.  STATUS_INVALID names a number that is
 * out of range. */
enum status membership_init(struct membership *m, const struct join_request *request,
                            struct error *err);
void membership_release(struct membership *m); /* a zeroed one is allowed */

/*
 * Add a rank.  On an error the membership does not change:
 *   STATUS_UNAVAILABLE  another job is served
 *   STATUS_MISMATCH     another world size, or a rank outside it
 *   STATUS_EXISTS       the rank has joined already; the text has both addresses
 *   STATUS_NO_SPACE     the manifests of all ranks would be too large to keep
 */
enum status membership_join(struct membership *m, const struct join_request *request,
                            const char *peer, struct error *err);

/* The manifest that rank 0 has joined with, without its terms; borrowed from the membership. */
char *membership_manifest(const struct membership *m);

/* Have all ranks joined, and has none left? */
bool membership_is_complete(const struct membership *m);

/* After completion: STATUS_MISMATCH with every differing field, each with both ranks. */
enum status membership_compare(const struct membership *m, struct error *err);

/* Remove a rank whose join call ended before the job began: it may join again. */
void membership_forget(struct membership *m, unsigned rank);

/* For a running job: are the numbers of this request valid for it?  STATUS_INVALID names a number
 * that is out of range; STATUS_MISMATCH: another world size. */
enum status membership_check_size(const struct membership *m, const struct join_request *request,
                                  struct error *err);

/* After membership_check_size: do the terms and the manifest equal those that the rank has joined
 * with?  STATUS_MISMATCH with every differing field. */
enum status membership_check_rejoin(const struct membership *m, const struct join_request *request,
                                    struct error *err);

/* Remove a rank that has left or is lost; add it again for a session at `peer`. */
void membership_remove(struct membership *m, unsigned rank);
void membership_rejoin(struct membership *m, unsigned rank, const char *peer);

/* May this rank leave?  STATUS_UNAVAILABLE: another job; STATUS_NOT_FOUND: the rank is not a
 * member.  membership_remove then removes it. */
enum status membership_check_leave(const struct membership *m, const char *job, unsigned rank,
                                   struct error *err);

/* Append "1 of 3 ranks: 2 is missing", of the ranks that have not joined. */
void membership_format_missing(const struct membership *m, struct strbuf *out);

/* Append "2", "0, 3" ... for the ranks that `selected` accepts; returns their number. */
unsigned membership_format_ranks(const struct membership *m,
                                 bool (*selected)(const void *user, unsigned rank),
                                 const void *user, struct strbuf *out);

#endif
