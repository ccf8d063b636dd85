/*
 * mesh_wire: the messages of the control connections.  All integers little-endian.  A message is a
 * header (magic 4, version 1, kind 1, length of what follows 2) and a body whose layout its kind
 * decides; decoding checks every enumeration and length, because any program may connect.  Pure.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_MESH_WIRE_H
#define SPARRING_COMMON_COLLECTIVE_MESH_WIRE_H

#include "common/collective/mesh/mesh.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MESH_HEADER_BYTES  8
#define MESH_MESSAGE_MAX   1280 /* header and body */
#define MESH_TOKEN_BYTES   16
#define MESH_RANK_SET_SIZE (MESH_RANKS_MAX / 8)

enum mesh_kind {
    MESH_HELLO = 1, /* the first one, each way: rank and job */
    MESH_ALIVE,     /* heartbeat without data */
    MESH_GOODBYE,   /* the rank left the job in order; nothing follows */
    MESH_ITEM,      /* its part of an exchange */
    MESH_ASK,       /* query: the receiver's status in this group */
    MESH_REPLY,
    MESH_LEAVE,   /* the rank left a group in order */
    MESH_VERDICT, /* see struct mesh_verdict */
    MESH_ACCEPT,  /* the sender holds this verdict, or one with precedence, which it sent */
    MESH_SETTLE,  /* all hold this verdict */
    MESH_AGREE,   /* a step of mesh_agree */
    MESH_TRAIL,   /* the group's hash of the sender at a sequence number; with heartbeats */
    MESH_KIND_COUNT
};

/* Which step of an agreement; see mesh_agree.c. */
enum mesh_agree_step {
    MESH_AGREE_REPORT = 1, /* to the coordinator: the losses found */
    MESH_AGREE_PROPOSE,    /* from it: the remaining ranks */
    MESH_AGREE_ACCEPT,     /* to it: the sender holds this list */
    MESH_AGREE_COMMIT,     /* from it: all hold this list */
    MESH_AGREE_EXCLUDE,    /* from any rank: the receiver is excluded */
    MESH_AGREE_STEP_COUNT
};

/* Ranks of the job, a bit each. */
struct mesh_rank_set {
    unsigned char bits[MESH_RANK_SET_SIZE];
};

struct mesh_hello {
    unsigned char token[MESH_TOKEN_BYTES]; /* of the job, through the store */
    uint32_t rank, world_size;
    uint64_t pid, host; /* host: a number for the kernel and process namespace it runs under */
};

struct mesh_item {
    char tag[MESH_TAG_MAX]; /* NUL-terminated */
    uint16_t size;
    unsigned char bytes[MESH_EXCHANGE_MAX];
};

struct mesh_reply {
    uint64_t question;
    bool known; /* the group; without it the rest is zero */
    struct mesh_status status;
    struct mesh_trail trail;
};

struct mesh_agree_message {
    uint64_t tag;
    uint32_t round;
    enum mesh_agree_step step;
    bool held;                 /* of a REPORT: `ranks` is the list it has accepted */
    struct mesh_rank_set lost; /* of a REPORT */
    struct mesh_rank_set ranks;
};

struct mesh_message {
    enum mesh_kind kind;
    uint64_t group;      /* ASK, LEAVE, VERDICT, ACCEPT, SETTLE, TRAIL */
    uint32_t generation; /* the same; ASK: 0: the newest */
    uint64_t number;     /* ASK: of the question; LEAVE: last sequence; ACCEPT, SETTLE: the judge;
                            TRAIL:     the sequence */
    uint64_t trail_sequence; /* ASK: the trail's entry to return; 0: none */
    uint64_t hash;           /* LEAVE, TRAIL: of the trail up to `number` */
    union {
        struct mesh_hello hello;
        struct mesh_item item;
        struct mesh_reply reply;
        struct mesh_verdict verdict;
        struct mesh_agree_message agree;
    };
};

/* Write the message; its length in bytes (at most MESH_MESSAGE_MAX).  The status of a reply is
 * sent unchanged: since_ns is an age there. */
size_t mesh_message_encode(const struct mesh_message *message, unsigned char *bytes);

/* The length of the message that begins with this header; 0: invalid. */
size_t mesh_message_length(const unsigned char *header);

/* Decode one whole message; false when it is invalid. */
bool mesh_message_decode(const unsigned char *bytes, size_t length, struct mesh_message *ret);

static inline bool mesh_rank_set_has(const struct mesh_rank_set *set, unsigned rank)
{
    return (set->bits[rank / 8] >> (rank % 8)) & 1;
}

static inline void mesh_rank_set_add(struct mesh_rank_set *set, unsigned rank)
{
    set->bits[rank / 8] = (unsigned char)(set->bits[rank / 8] | (1u << (rank % 8)));
}

#endif
