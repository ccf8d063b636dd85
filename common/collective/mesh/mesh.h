/*
 * mesh: the control connections between all ranks of a job, and the thread that serves them.
 *
 * Every pair of ranks has one TCP connection.  Over it go heartbeats (every 250 ms), queries and
 * replies about operations, verdicts, goodbyes, and small exchanges (addresses, ids) that make
 * groups without a store.  The death of a process closes its connections, so all others detect it
 * within milliseconds; silence with a living kernel behind it (data is acknowledged) is a stopped
 * process, unless it is one of this host that /proc shows not to be (it gets no core: not lost);
 * silence without is the network.  Nothing here is on the path of tensor bytes.
 *
 * Ranks are ranks of the job and never change: shrinking removes some and renumbers none.
 * Threads: every function may be called from any thread; the mesh's own thread never calls back.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_MESH_H
#define SPARRING_COMMON_COLLECTIVE_MESH_H

#include "common/base/error.h"
#include "common/collective/operation.h"
#include "common/collective/signature.h"
#include "common/collective/trail.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MESH_EXCHANGE_MAX 1024 /* bytes per rank */
#define MESH_TAG_MAX      96
#define MESH_GROUPS_MAX   64
#define MESH_RANKS_MAX    1024
#define MESH_RANK_UNKNOWN MESH_RANKS_MAX /* as a culprit: unknown */

struct mesh;
struct store;

struct mesh_config {
    unsigned rank, world_size;
    struct store *store; /* borrowed; used while opening only */
    const char *name;    /* key prefix in the store */
    const char *interface_host;
    int64_t timeout_ms;           /* of the connection phase */
    int64_t heartbeat_timeout_ms; /* <= 0: 1500 */
};

/* Blocks until every rank is connected to every other; names those that did not come.
 * world_size 1 is allowed and starts no thread. */
enum status mesh_open(const struct mesh_config *config, struct mesh **ret, struct error *err);

/* Send goodbye to all peers, then free.  NULL allowed. */
void mesh_close(struct mesh *m);

unsigned mesh_rank(const struct mesh *m);

/* ---- small exchanges ---- */

struct mesh_alarm;

/* An all-gather of `size` <= MESH_EXCHANGE_MAX bytes among `members` (ranks of the job, ascending,
 * this one included): all[i * size] comes from members[i].  `tag` must be fresh for these members.
 * STATUS_TIMEOUT names the missing ranks.  STATUS_PEER_LOST: a missing member is lost, or the alarm
 * (NULL: none) is raised, since then a living member may have given up. */
enum status mesh_exchange(struct mesh *m, const unsigned *members, unsigned count, const char *tag,
                          const void *mine, size_t size, void *all, const struct mesh_alarm *alarm,
                          int64_t deadline_ns, struct error *err);

/* An exchange without data: which members have arrived?  ret_here[i] is 1 for those of `members`
 * that have. */
enum status mesh_gather(struct mesh *m, const unsigned *members, unsigned count, const char *tag,
                        int64_t deadline_ns, unsigned char *ret_here, struct error *err);

/* ---- what a rank is doing ---- */

enum mesh_phase { MESH_IDLE, MESH_RUNNING, MESH_LEFT };

/* One group's state on one rank, as its peers see it when they ask. */
struct mesh_status {
    uint64_t group; /* signature_group_id */
    enum mesh_phase phase;
    struct signature signature; /* of the operation that runs, or of the last one */
    uint64_t done_bytes, total_bytes;
    int64_t since_ns;  /* of this phase; the asker sees an age in its own clock */
    int64_t waited_ns; /* of it, blocked until a peer did something; 0: unknown */
};

/* The index stands for the group in the calls below; publishing costs a few stores. */
enum status mesh_add_group(struct mesh *m, uint64_t group, size_t *ret_index, struct error *err);
void mesh_publish(struct mesh *m, size_t index, const struct mesh_status *status);
void mesh_progress(struct mesh *m, size_t index,
                   uint64_t done_bytes);              /* of the running operation */
void mesh_remove_group(struct mesh *m, size_t index); /* peers see MESH_LEFT from then on */

/* What a member keeps of its trail, and the operation at the requested sequence. */
struct mesh_trail {
    uint64_t oldest, newest; /* sequences; newest is 0 where there is no trail or nothing on it */
    bool kept;               /* the requested sequence; without it the rest is zero */
    struct signature signature;
    uint64_t hash; /* up to and with it */
};

struct mesh_view {
    enum fault fault;      /* DEAD, STOPPED, NETWORK, FINISHED (the whole job), FAILED, or NONE */
    double silent_seconds; /* since its last sign of life */
    bool replied;
    struct mesh_status status; /* if replied; all zero when the rank has not opened the group */
    struct mesh_trail trail;   /* likewise; of mesh_ask_trail */
};

/* Query one rank about a group and wait for the reply until deadline_ns. */
void mesh_ask(struct mesh *m, unsigned rank, uint64_t group, int64_t deadline_ns,
              struct mesh_view *ret);

/* The same of several ranks at once (this one may be among them): ret[i] is about ranks[i]. */
void mesh_ask_all(struct mesh *m, const unsigned *ranks, unsigned count, uint64_t group,
                  int64_t deadline_ns, struct mesh_view *ret);

/* ---- trails ---- */

/* Compare this group's collectives with the members' from now on: heartbeats carry the hash of its
 * trail.  Before its first operation, after mesh_watch. */
enum status mesh_keep_trail(struct mesh *m, size_t index, struct error *err);

/* The group begins a collective; the caller's thread. */
void mesh_note(struct mesh *m, size_t index, const struct signature *signature);

/* Has a member run other collectives than this rank, up to *ret_sequence?  The alarm was raised
 * then.  *ret_rank is of the job. */
bool mesh_find_difference(struct mesh *m, size_t index, unsigned *ret_rank, uint64_t *ret_sequence);

/* This rank's own hash; false: it is not there yet, or not kept any more. */
bool mesh_own_hash(struct mesh *m, size_t index, uint64_t sequence, uint64_t *ret_hash);
uint64_t mesh_own_newest(struct mesh *m, size_t index);

/* mesh_ask_all about a group of this generation, and the entry `sequence` of its trail. */
void mesh_ask_trail(struct mesh *m, const unsigned *ranks, unsigned count, uint64_t group,
                    uint32_t generation, uint64_t sequence, int64_t deadline_ns,
                    struct mesh_view *ret);

/* ---- losses ---- */

/* The fault of a rank as known now, without asking (FINISHED: it has left the job in order);
 * *ret_text (size bytes, may be NULL) says how it is known ("its connection closed 0.01 s ago",
 * "silent for 1.5 s, its kernel answers"). */
enum fault mesh_fault(struct mesh *m, unsigned rank, char *ret_text, size_t size);

/* Wait until one of these ranks is lost, until deadline_ns; false: none is. */
bool mesh_await_loss(struct mesh *m, const unsigned *ranks, unsigned count, int64_t deadline_ns);

/* The most likely fault of a rank that did not reply (STOPPED, NETWORK, DEAD), before its silence
 * has lasted long enough to count as lost; NONE for a process of this host that only gets no core.
 */
enum fault mesh_suspect(struct mesh *m, unsigned rank, char *text, size_t size);

/* Send all peers why a group failed, so that all name the same culprit.  The first verdict of a
 * group and generation stays; of verdicts that cross, the one of the lowest rank does. */
struct mesh_verdict {
    uint64_t group;
    uint32_t generation;
    enum fault fault;
    unsigned culprit; /* rank of the job, or MESH_RANK_UNKNOWN */
    unsigned judge;   /* the rank that reached it */
    char text[256];
};
void mesh_send_verdict(struct mesh *m, const struct mesh_verdict *verdict);
/* A verdict that is settled, so that no other can come; waits for a pending one to settle (at most
 * 0.3 s); false when there is none. */
bool mesh_await_verdict(struct mesh *m, uint64_t group, uint32_t generation,
                        struct mesh_verdict *ret);
/* The number of events so far (losses, replies, verdicts).  Read it before reading the state that
 * mesh_await_event waits on. */
uint64_t mesh_event_count(struct mesh *m);
/* Wait until there are more than `seen`, or deadline_ns. */
void mesh_await_event(struct mesh *m, uint64_t seen, int64_t deadline_ns);
/* Has this rank left the group in order?  *ret_sequence: after which collective; *ret_hash (may be
 * NULL): of its trail up to there, where it kept one. */
bool mesh_left(struct mesh *m, unsigned rank, uint64_t group, uint32_t generation,
               uint64_t *ret_sequence, uint64_t *ret_hash);

/* What a blocked operation watches: `raised` becomes true, and `fd` readable, when a member of the
 * group is lost or a verdict about the group has come.  Both stay so. */
struct mesh_alarm {
    atomic_bool raised;
    atomic_int lost_rank; /* or one that left too early; -1: a verdict has come */
    int fd;               /* eventfd */
};
/* The error of what a raised alarm has ended: STATUS_PEER_LOST, names the lost rank. */
enum status mesh_alarm_error(const struct mesh_alarm *alarm, struct error *err);
/* Borrowed until mesh_remove_group. */
struct mesh_alarm *mesh_watch(struct mesh *m, size_t index, uint32_t generation,
                              const unsigned *members, unsigned count);

/* ---- agreement ---- */

/* Agree with the survivors of `members` on the remaining ranks: all that return STATUS_OK return
 * the same list (ret_members holds `count`), and it has none that this rank has found lost.  Ranks
 * left out, should they live (a stopped one that was continued), get STATUS_PEER_LOST: excluded. */
enum status mesh_agree(struct mesh *m, const unsigned *members, unsigned count, const char *tag,
                       int64_t deadline_ns, unsigned *ret_members, unsigned *ret_count,
                       struct error *err);

#endif
