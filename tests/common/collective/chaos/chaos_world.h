/*
 * chaos_world: processes as ranks of one group that work until something goes wrong, and report
 * the errors they got.  The parent kills, stops, holds back and cuts off; it waits on events of the
 * ranks, never on time.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_CHAOS_WORLD_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_CHAOS_WORLD_H

#include "tests/support/support.h"

#include "common/collective/collective.h"

#include <stdbool.h>
#include <sys/types.h>

#define CHAOS_RANKS_MAX 8
#define CHAOS_AT_ONCE   3 /* worlds: each keeps all cores busy until it loses a rank */

/* What one rank does at its operation number `at` (from 1). */
enum chaos_role {
    CHAOS_WORK,            /* nothing special */
    CHAOS_HOLD,            /* reports this, and waits for a signal that ends it */
    CHAOS_LEAVE,           /* closes the group in order */
    CHAOS_OTHER_COUNT,     /* one element more than the others */
    CHAOS_OTHER_TYPE,      /* float64 instead of float32 */
    CHAOS_OTHER_OP,        /* a maximum instead of a sum */
    CHAOS_OTHER_CALL,      /* a broadcast instead of an all-reduce */
    CHAOS_SKIP,            /* leaves one operation out */
    CHAOS_SLOW,            /* begins it, and its working thread hardly runs until the time-out */
    CHAOS_OTHER_GENERATION /* opens a second group in another generation */
};

struct chaos_config {
    const char *backend;
    const char *transport; /* NULL: the backend's own */
    unsigned size;
    size_t count; /* float32 per operation */
    int64_t timeout_ms;
    int64_t heartbeat_timeout_ms;
    unsigned victim;
    enum chaos_role role; /* of the victim */
    unsigned at;
    unsigned close_after; /* others close in order after so many operations; 0: never */
    int64_t late_ms;      /* rank `late_rank` comes to that operation so much later; 0: none */
    unsigned late_rank;
    unsigned second_victim; /* holds, too, if it is below size and not the victim */
    bool stays;             /* each rank, after its report, until the world ends: /proc shows it */
    bool shrink;            /* after a failure: shrink, work on for 3 operations, close */
    bool has_deserter;      /* then this rank agrees to go on with the others, and is gone: */
    unsigned deserter;
    unsigned desert_us; /* so long after the agreement, while it opens the group; 0: before */
    const char *const *namespaces; /* network namespace of each rank; NULL: this one */
    const char *const *addresses;  /* in them */
};

/* What a rank has to say when it ends. */
struct chaos_report {
    enum status status; /* of the first call that failed */
    enum fault fault;
    int culprit; /* -1: none */
    int64_t ended_ns;
    double resume_seconds; /* shrink: until the first operation after it had ended */
    enum status shrink_status;
    unsigned shrunk_size; /* after shrink; 0: it failed */
    unsigned generation;
    char text[2048];
    char shrink_text[512];
};

struct chaos_process {
    pid_t pid;
    int ready_fd;  /* a byte per operation that ended well; 'h' when it holds */
    int report_fd; /* a struct chaos_report */
};

struct chaos_world {
    struct chaos_config config;
    struct chaos_process ranks[CHAOS_RANKS_MAX];
};

/* Stores of this test are gRPC from now on, with rank 0 as the host. */
void chaos_use_grpc(void);

/* Run `body` for every backend that can serve such a world here (prints which cannot, and why; mpi
 * has test_chaos_mpi.c), each in a process of its own and `at_once` of them at a time, because most
 * of a loss is waiting for its detection.  SPARRING_TEST_BACKENDS names the backends wanted. */
void chaos_each_backend(unsigned size, unsigned at_once,
                        void (*body)(const char *backend, const void *argument),
                        const void *argument);

void chaos_start(struct chaos_world *w, const struct chaos_config *config);

/* Wait until this rank has ended `operations` more operations. */
void chaos_await(struct chaos_world *w, unsigned rank, unsigned operations);

/* Wait until this rank holds. */
void chaos_await_hold(struct chaos_world *w, unsigned rank);

/* Returns the time of the signal. */
int64_t chaos_signal(struct chaos_world *w, unsigned rank, int number);

/* Wait for its report; fails the test when none comes within wait_ms. */
struct chaos_report chaos_report_of(struct chaos_world *w, unsigned rank, int64_t wait_ms);

/* Kill what is left and wait for it. */
void chaos_end(struct chaos_world *w);

#endif
