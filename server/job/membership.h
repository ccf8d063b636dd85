/*
 * membership: who belongs to a job.  Every rank joins once with its terms (what it wants the server
 * to do) and its manifest; the job runs once all ranks are there and agree on every field.  Each
 * leaves once.  No locks, no I/O: the caller's lock guards it.
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
    size_t terms_bytes;     /* of which so many are its terms */
    char peer[64];          /* address, for messages */
};

struct membership {
    char job[WIRE_JOB_MAX];
    unsigned world_size;
    struct member *members; /* owned, world_size of them */
    unsigned joined;        /* ranks in MEMBER_JOINED */
    unsigned left;          /* ranks in MEMBER_LEFT */
    size_t manifest_bytes;  /* of all members */
};

/* A job named by its first join request.  STATUS_INVALID names a number out of range. */
enum status membership_init(struct membership *m, const struct join_request *request,
                            struct error *err);
void membership_release(struct membership *m); /* a zeroed one is allowed */

/*
 * Take a rank in.  Refusals leave the others as they are:
 *   STATUS_UNAVAILABLE  another job is served
 *   STATUS_MISMATCH     another world size, or a rank outside it
 *   STATUS_EXISTS       the rank has joined already; the text has both addresses
 *   STATUS_NO_SPACE     the manifests of all ranks would be too large to keep
 */
enum status membership_join(struct membership *m, const struct join_request *request,
                            const char *peer, struct error *err);

/* The manifest that rank 0 has joined with, without its terms; the membership's. */
char *membership_manifest(const struct membership *m);

/* All ranks have joined, and none has left yet. */
bool membership_is_complete(const struct membership *m);

/* After completion: STATUS_MISMATCH with every differing field, each with both ranks. */
enum status membership_compare(const struct membership *m, struct error *err);

/* A rank whose join call ended before the job began: it may join again. */
void membership_forget(struct membership *m, unsigned rank);

/* Of a job that runs: can this request be one of its ranks' at all?  STATUS_INVALID names a number
 * out of range; STATUS_MISMATCH: another world size. */
enum status membership_check_size(const struct membership *m, const struct join_request *request,
                                  struct error *err);

/* Then: does it ask for what its rank was taken in with?  STATUS_MISMATCH with every differing
 * field. */
enum status membership_check_again(const struct membership *m, const struct join_request *request,
                                   struct error *err);

/* A rank has left or is lost.  And: somebody at `peer` has its place now. */
void membership_lose(struct membership *m, unsigned rank);
void membership_return(struct membership *m, unsigned rank, const char *peer);

/* May this rank leave?  STATUS_UNAVAILABLE: another job; STATUS_NOT_FOUND: the rank is not in, or
 * has left.  membership_lose then takes it out. */
enum status membership_check_leave(const struct membership *m, const char *job, unsigned rank,
                                   struct error *err);

/* "1 of 3 ranks: 2 is missing" of those that never joined. */
void membership_list_missing(const struct membership *m, struct strbuf *out);

/* Append "2", "0, 3" ... for the ranks chosen by `wanted`; the number of them is returned. */
unsigned membership_list(const struct membership *m,
                         bool (*wanted)(const void *user, unsigned rank), const void *user,
                         struct strbuf *out);

#endif
