/*
 * wire_join: conversions between a join request and its protobuf message, for messages that embed
 * one.  Internal to wire.
 */
#ifndef SPARRING_COMMON_WIRE_WIRE_JOIN_H
#define SPARRING_COMMON_WIRE_WIRE_JOIN_H

#include "common/wire/wire_internal.h"

#include "parameter_server.pb-c.h"

/* The messages of a repeated field and protobuf-c's list of pointers to them, in one block. */
struct wire_join_rules {
    Sparring__V1__ExactStaleness messages[CONSISTENCY_RULES_MAX];
    Sparring__V1__ExactStaleness *list[CONSISTENCY_RULES_MAX];
};

/* Copies of the texts, because protobuf-c's pointers are not const. */
struct wire_join_texts {
    char job[WIRE_JOB_MAX];
    char replica[WIRE_ADDRESS_MAX];
    char host_id[WIRE_MEMORY_ADDRESS_MAX];
};

/* A message and all that it points at, except what is borrowed from the request.  Contains pointers
 * into itself: do not move it. */
struct wire_join {
    Sparring__V1__JoinRequest message;
    Sparring__V1__Optimizer optimizer;
    Sparring__V1__Consistency consistency;
    struct wire_join_texts texts;
    struct wire_join_rules *rules; /* owned; NULL: none */
};

/* The caller releases *w, also on failure. */
enum status wire_join_to_message(struct wire_join *w, const struct join_request *m,
                                 struct error *err);
void wire_join_release(struct wire_join *w);

/* Check and copy into a zeroed struct, which needs no release on failure. */
enum status wire_join_from_message(const Sparring__V1__JoinRequest *m, struct join_request *ret,
                                   struct error *err);

#endif
