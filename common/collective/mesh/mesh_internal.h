/*
 * mesh_internal: what the files of the mesh share.
 *
 *   mesh.c           lifetime
 *   mesh_group.c     the groups of this rank: published status, alarms
 *   mesh_connect.c   opening: addresses through the store, connections, hellos
 *   mesh_thread.c    the thread: reads all connections, sends heartbeats, finds silent ranks
 *   mesh_send.c      output buffers
 *   mesh_receive.c   handling of each kind of message
 *   mesh_loss.c      losses: classified by the kernel's counters and /proc
 *   mesh_exchange.c  small exchanges, waiting
 *   mesh_ask.c       queries
 *   mesh_trail.c     trails: sent with heartbeats, compared
 *   mesh_verdict.c   verdicts: sent, accepted, settled
 *   mesh_agree.c     agreement on the remaining ranks
 *
 * One lock guards everything but the groups' statuses, which are sequence locks.  `changed` is
 * broadcast whenever a message or a loss may end a wait.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_MESH_INTERNAL_H
#define SPARRING_COMMON_COLLECTIVE_MESH_INTERNAL_H

#include "common/collective/mesh/mesh.h"
#include "common/collective/mesh/mesh_wire.h"

#include <pthread.h>

#define MESH_HEARTBEAT_MS  250
#define MESH_ITEMS_MAX     1024 /* of one peer, not yet fetched */
#define MESH_VERDICTS_MAX  MESH_GROUPS_MAX
#define MESH_STATUS_WORDS  13
#define MESH_OUT_MAX_BYTES ((size_t)1 << 20)

enum mesh_peer_state {
    MESH_PEER_UP,
    MESH_PEER_LEFT, /* it sent MESH_GOODBYE */
    MESH_PEER_LOST, /* and stays so */
};

/* Part of an exchange that has come. */
struct mesh_stored {
    struct mesh_stored *next;
    struct mesh_item item;
};

struct mesh_peer {
    int fd; /* -1: this rank itself, or closed */
    enum mesh_peer_state state;
    enum fault fault; /* of LEFT and LOST */
    char how[160];    /* how the fault is known */
    int64_t heard_ns; /* last sign of life */
    int64_t gone_ns;  /* LEFT, LOST */
    uint64_t pid;     /* 0: not visible from here */
    size_t in_bytes;
    unsigned char in[MESH_MESSAGE_MAX];
    unsigned char *out; /* owned; out[out_start..out_end) waits to be sent */
    size_t out_start, out_end, out_capacity;
    bool waits_to_send; /* EPOLLOUT is on */
    struct mesh_stored *items;
    size_t item_count;
};

/* A thread that waits for replies; on its stack. */
struct mesh_question {
    struct mesh_question *next;
    uint64_t number, group;
    uint32_t generation;     /* 0: the newest */
    uint64_t trail_sequence; /* on the trail */
    const unsigned *ranks;
    unsigned count;
    struct mesh_view *views; /* views[i] is about ranks[i] */
};

/* A group of this rank. */
struct mesh_group_state {
    bool used;
    uint64_t group;
    uint64_t added;      /* 1, 2, ...: newer states of one group hide older ones */
    atomic_uint version; /* odd: being written */
    _Atomic uint64_t words[MESH_STATUS_WORDS];
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t last_sequence; /* of its collectives */
    uint32_t generation;            /* watched */
    struct mesh_rank_set members;
    unsigned *order; /* owned: the list of mesh_watch */
    unsigned count;  /* 0: not watched */
    bool left;
    struct mesh_alarm alarm;
    struct trail *trail;         /* owned until the state is reused; NULL: none is kept */
    uint64_t sent_sequence;      /* of the trail: the last sequence sent ... */
    uint64_t heartbeat_sequence; /* ... and the newest at the last heartbeat */
    bool differs;                /* from that of other_rank, at the latest by other_sequence */
    unsigned other_rank;
    uint64_t other_sequence;
};

/* The MESH_LEAVE of a peer. */
struct mesh_leave {
    uint64_t group;
    uint32_t generation;
    unsigned rank;
    uint64_t sequence; /* of its last collective */
    uint64_t hash;     /* of its trail up to there */
    int64_t at_ns;
};

/* A verdict as this rank holds it. */
struct mesh_verdict_state {
    bool used;
    bool settled;
    struct mesh_verdict verdict;
    int64_t since_ns;
    struct mesh_rank_set accepted; /* if this rank is the judge */
};

struct mesh {
    unsigned rank, world_size;
    int64_t timeout_ms, heartbeat_timeout_ms;
    uint64_t host;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t event_count; /* broadcasts of `changed` */
    pthread_t thread;
    bool has_thread;
    bool stop;
    bool closing; /* connections may end now */
    int epoll_fd;
    int wake_fd;             /* eventfd: stop, or a new earliest deadline */
    struct mesh_peer *peers; /* owned, world_size */
    struct mesh_group_state groups[MESH_GROUPS_MAX];
    uint64_t groups_added;
    struct mesh_leave leaves[MESH_VERDICTS_MAX * 4]; /* the newest, a ring */
    size_t leave_count;
    struct mesh_verdict_state verdicts[MESH_VERDICTS_MAX];
    uint64_t question_count;           /* asked so far */
    struct mesh_question *questions;   /* a list, each of a thread that waits */
    struct mesh_agreement *agreements; /* owned, a list */
};

/* mesh_connect.c: connect peers[..].fd; every descriptor is non-blocking. */
enum status mesh_connect(struct mesh *m, const struct mesh_config *config, int64_t deadline_ns,
                         struct error *err);

/* mesh_send.c; the lock is held.  Never blocks; what the kernel does not take is buffered. */
void mesh_send(struct mesh *m, unsigned rank, const struct mesh_message *message);
void mesh_send_all(struct mesh *m, const struct mesh_message *message);
void mesh_flush(struct mesh *m, unsigned rank);

/* mesh_receive.c; the lock is held. */
void mesh_receive(struct mesh *m, unsigned rank, const struct mesh_message *message);

/* mesh_thread.c */
void *mesh_thread_run(void *mesh);

/* mesh_loss.c; the lock is held.  The connection ended with this errno, 0: end of file. */
void mesh_connection_ended(struct mesh *m, unsigned rank, int error_number);
void mesh_lose(struct mesh *m, unsigned rank, enum fault fault, const char *how);
/* Lose those that were silent for too long; when to look again. */
int64_t mesh_find_silent(struct mesh *m, int64_t now_ns);

/* mesh_group.c; the lock is held. */
void mesh_group_state_release(struct mesh_group_state *state);
void mesh_read_status(const struct mesh_group_state *state, struct mesh_status *ret);
struct mesh_group_state *mesh_find_group_state(struct mesh *m,
                                               uint64_t group); /* the newest; NULL: none */
/* Raise the alarm of groups that wait for a member that left them. */
void mesh_monitor_groups(struct mesh *m, int64_t now_ns);

/* mesh_trail.c; the lock is held. */
void mesh_send_trails(struct mesh *m);
void mesh_receive_trail(struct mesh *m, unsigned rank, const struct mesh_message *message);
void mesh_read_trail(struct mesh *m, uint64_t group, uint32_t generation, uint64_t trail_sequence,
                     struct mesh_trail *ret);

/* mesh_verdict.c; the lock is held. */
void mesh_receive_verdict(struct mesh *m, unsigned rank, const struct mesh_verdict *verdict);
void mesh_receive_accept(struct mesh *m, unsigned rank, const struct mesh_message *message);
void mesh_receive_settle(struct mesh *m, const struct mesh_message *message);
int64_t mesh_monitor_verdicts(struct mesh *m, int64_t now_ns); /* when to look again */
bool mesh_has_settled(struct mesh *m, uint64_t group, uint32_t generation);

/* mesh_agree.c; the lock is held. */
void mesh_receive_agree(struct mesh *m, unsigned rank, const struct mesh_agree_message *message);
void mesh_agreements_release(struct mesh *m);

/* mesh_notify.c; the lock is held, but for the first. */
void mesh_wake(struct mesh *m);                                 /* the thread */
void mesh_raise(struct mesh_group_state *state, int lost_rank); /* -1: nobody is lost */
void mesh_raise_member(struct mesh *m, unsigned rank);          /* in all groups that watch it */
void mesh_note_event(struct mesh *m);                           /* that may end a wait */

/* mesh_exchange.c: wait until `changed` or deadline_ns; the lock is held. */
void mesh_wait(struct mesh *m, int64_t deadline_ns);

#endif
