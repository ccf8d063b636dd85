/*
 * wire_join: a join request as the message that it is, for those that carry one inside theirs.
 * Internal to rpc.
 */
#ifndef SPARRING_COMMON_WIRE_WIRE_JOIN_H
#define SPARRING_COMMON_WIRE_WIRE_JOIN_H

#include "common/wire/wire_internal.h"

#include "parameter_server.pb-c.h"

/* The messages of a repeated field, and the list of pointers that protobuf-c wants, in one. */
struct wire_join_rules {
    Sparring__V1__ExactStaleness messages[CONSISTENCY_RULES_MAX];
    Sparring__V1__ExactStaleness *list[CONSISTENCY_RULES_MAX];
};

/* Copies of the texts, because protobuf-c wants plain pointers. */
struct wire_join_texts {
    char job[WIRE_JOB_MAX];
    char replica[WIRE_ADDRESS_MAX];
    char arena[WIRE_ARENA_MAX];
};

/* A message and all that it points at, but for what is borrowed from the request.  Points at
 * itself: do not move it. */
struct wire_join {
    Sparring__V1__JoinRequest message;
    Sparring__V1__Optimizer optimizer;
    Sparring__V1__Consistency consistency;
    struct wire_join_texts texts;
    struct wire_join_rules *rules; /* owned; NULL: none */
};

/* Release it whatever comes back. */
enum status wire_join_fill(struct wire_join *w, const struct join_request *m, struct error *err);
void wire_join_release(struct wire_join *w);

/* Check and copy into a zeroed struct; of one that was refused nothing is left to release. */
enum status wire_join_take(const Sparring__V1__JoinRequest *m, struct join_request *ret,
                           struct error *err);

#endif
