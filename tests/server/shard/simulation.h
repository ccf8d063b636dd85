/*
 * simulation: a complete job in one thread: workers, servers (each with a journal or a replica) and
 * a network, all driven by one random number generator.  Nothing blocks or reads a clock, so a seed
 * determines a run.
 *
 *   sim_worker.c       a worker's requests, resends and use of replies
 *   sim_server.c       a shard, its pending replies, and the states of the ranks
 *   sim_log.c          journal, snapshots and replica
 *   sim_check.c        checks of each reply and of the final values
 *   test_simulation.c  the choice of the next event
 *
 * Values.  In exact runs (bsp, sums in rank order) gradients depend on rank, round and parameters,
 * and every reply must have the bits of the run without faults.  In counted runs every pair of rank
 * and round has an element of its own, which its contribution lowers by 1: the values then show
 * which contributions were applied, and how often.
 *
 * Compressed replies are decoded into the worker's copy, which must then equal the server's record
 * of that copy.  Values of lossy codecs are checked only in replies that are not coded.
 */
#ifndef SPARRING_TESTS_SERVER_SHARD_SIMULATION_H
#define SPARRING_TESTS_SERVER_SHARD_SIMULATION_H

#include "server/shard/shard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_RANKS      4u
#define SIM_ROUNDS     8u
#define SIM_PARTITIONS 4u
#define SIM_SERVERS    2u
#define SIM_LANES      2u
#define SIM_QUEUE      32u
#define SIM_RECORDS    4096u
#define SIM_FULL       (PARTITION_BYTES_MIN / sizeof(float))
#define SIM_LAST       (SIM_RANKS * (SIM_ROUNDS + 1)) /* elements of the last partition */
#define SIM_ELEMENTS   ((SIM_PARTITIONS - 1) * SIM_FULL + SIM_LAST)

enum sim_kind { SIM_NOTHING, SIM_INIT, SIM_PULL, SIM_PUSH, SIM_FINAL };
enum sim_loss { SIM_FAIL, SIM_SHRINK, SIM_WAIT };
enum sim_durability { SIM_VOLATILE, SIM_JOURNAL, SIM_REPLICA };

/* What a seed decides before the run. */
struct sim_plan {
    struct consistency consistency;
    struct compression compression; /* of replies */
    unsigned ranks, servers, partitions, lanes;
    uint64_t rounds;
    bool update, exact;
    enum sim_loss on_loss;
    enum sim_durability durability;
    unsigned faults; /* at most this many */
    unsigned calm;   /* mean number of events between two faults */
};

/* A chunk in transit.  Its data is read on arrival, because gRPC sends without a copy. */
struct sim_message {
    enum sim_kind kind; /* down: the kind of the request */
    uint32_t partition;
    uint64_t round;
    bool again;
    const float *data;
    size_t count;
    const uint8_t *coded; /* instead of data; NULL: not so */
    size_t bytes;
    uint32_t sum;   /* checksum of data or coded, when it was sent */
    uint32_t holds; /* down, values: checksum of the rank's copy afterwards, by the server */
};

struct sim_queue {
    struct sim_message messages[SIM_QUEUE];
    size_t first, length;
};

enum sim_life {
    SIM_ALIVE,
    SIM_DONE, /* all its requests are answered */
    SIM_LOST  /* its process is dead; with `succeeded` a newcomer joins or will join */
};

/* The state of a rank at one server. */
enum sim_rank_state {
    SIM_HELD,
    SIM_VACATING, /* partitions are vacated one after the other */
    SIM_VACANT,
    SIM_JOINING, /* partitions are occupied by a newcomer one after the other */
    SIM_JOINED   /* the newcomer waits for the other servers */
};

struct sim_rank {
    enum sim_rank_state state;
    unsigned next; /* of the server's partitions */
};

/* Between one worker and one server. */
struct sim_link {
    bool connected;
    struct sim_queue up[SIM_LANES], down[SIM_LANES];
};

enum sim_phase { SIM_PULLING, SIM_PUSHING, SIM_FINISHING };

struct sim_worker {
    enum sim_life life;
    bool newcomer, killed;
    bool succeeded;
    struct sim_link links[SIM_SERVERS];
    enum sim_phase phase;
    uint64_t round;  /* under way */
    uint64_t newest; /* newcomer: the last round that the rank may have contributed to */
    enum sim_kind asked[SIM_PARTITIONS];   /* not answered yet */
    uint64_t pull_round[SIM_PARTITIONS];   /* round field of the pull */
    uint64_t answered[SIM_PARTITIONS];     /* round of the last reply */
    bool keeps_initial[SIM_PARTITIONS];    /* rank 0: until the pull is answered */
    uint64_t acknowledged[SIM_PARTITIONS]; /* bit r: round r was answered to the first session */
    float params[SIM_ELEMENTS], grads[SIM_ELEMENTS];
    float mean[SIM_FULL]; /* decoded */
};

/* A record of the journal, or one that is sent to the replica. */
struct sim_record {
    struct mutation record;
    uint64_t clocks[SIM_RANKS];
    uint8_t flags[SIM_RANKS];
    float payload[SIM_FULL];
};

/* A reply that waits until the replica has acknowledged what it includes. */
struct sim_held {
    enum sim_kind kind; /* NOTHING: none */
    struct shard_reply reply;
};

struct sim_state {
    struct shard_state state;
    uint64_t clocks[SIM_RANKS], seen[SIM_RANKS];
    uint8_t flags[SIM_RANKS];
    float slabs[5][SIM_FULL];
};

struct sim_server {
    struct sim *sim;
    unsigned index;
    const uint32_t *partitions; /* (count) that it holds */
    unsigned count;
    struct shard shard, replica;
    struct sim_rank ranks[SIM_RANKS];
    enum sim_durability durability; /* at present: a replica that took over has none */
    struct sim_record *records;     /* owned; the journal, or what is sent to the replica */
    size_t record_count;
    size_t replicated, acknowledged;          /* of the records */
    uint64_t acknowledged_to[SIM_PARTITIONS]; /* sequences */
    struct sim_held held[SIM_RANKS][SIM_PARTITIONS];
    bool has_snapshot;
    struct sim_state snapshot[SIM_PARTITIONS], taking[SIM_PARTITIONS];
    unsigned taken;       /* partitions of the snapshot under way; 0: none */
    size_t snapshot_from; /* the record that the snapshot under way begins with */
    bool dying;           /* the sink has crashed the server, before or after its record */
    unsigned die_in;      /* records until the crash; 0: none is due */
};

struct sim {
    struct sim_plan plan;
    uint64_t random;
    struct shard_map map;
    struct sim_server servers[SIM_SERVERS];
    struct sim_worker workers[SIM_RANKS];
    float *history; /* exact: (rounds + 1, SIM_ELEMENTS), of the run without faults */
    bool writes_history;
    size_t crashes, failovers, kills, newcomers, breaks, repeats, coded;
};

/* ---- random numbers */
uint64_t sim_random(struct sim *s);
unsigned sim_below(struct sim *s, unsigned bound);

/* ---- queues */
void sim_enqueue(struct sim *s, struct sim_queue *q, struct sim_message m);
struct sim_message sim_dequeue(struct sim_queue *q);
uint32_t sim_sum(const float *data, size_t count);
uint32_t sim_sum_of(const struct sim_message *m); /* of its data or coded */
bool sim_is_lossy(const struct sim_plan *p);      /* coded replies omit a residual */
size_t sim_offset(uint32_t partition);
size_t sim_count(const struct sim *s, uint32_t partition);

/* Print the text with the plan and its seed, and abort the test. */
_Noreturn void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- sim_worker.c */
void sim_worker_start(struct sim *s, unsigned rank, bool newcomer);
void sim_worker_reconnect(struct sim *s, unsigned rank, unsigned server);
void sim_worker_decode(struct sim *s, unsigned rank, struct sim_message *m); /* sets m->data */
void sim_worker_take_reply(struct sim *s, unsigned rank, const struct sim_message *m);
void sim_initial(const struct sim *s, uint32_t partition, float *ret);

/* ---- sim_server.c */
void sim_server_open(struct sim *s, unsigned index, struct sim_record *records);
void sim_server_close(struct sim_server *v);
void sim_server_take(struct sim_server *v, unsigned rank, const struct sim_message *m);
void sim_server_lose(struct sim_server *v, unsigned rank);  /* one partition further */
void sim_server_admit(struct sim_server *v, unsigned rank); /* the same */
void sim_server_release(struct sim_server *v, uint32_t partition, uint64_t sequence);
void sim_break(struct sim_server *v, unsigned rank); /* its connection with a rank */
void sim_require_ok(enum status status, const char *what, const struct error *err);

/* ---- sim_log.c */
struct shard_config sim_shard_config(const struct sim_server *v);
void sim_watch(struct sim_server *v); /* store the shard's mutations as records */
void sim_server_crash(struct sim_server *v);
void sim_server_snapshot(struct sim_server *v);  /* one partition further */
void sim_server_replicate(struct sim_server *v); /* one record further */
void sim_server_acknowledge(struct sim_server *v);

/* ---- sim_check.c */
void sim_check_arrival(const struct sim *s, unsigned rank, const struct sim_message *m);
void sim_check_reply(struct sim *s, unsigned rank, const struct sim_message *m);
void sim_check_end(const struct sim *s);

#endif
