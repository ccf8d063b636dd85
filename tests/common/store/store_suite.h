/*
 * store_suite: what every implementation of the store must do, run once against each.
 * A job is a set of store handles that meet at one place; each test has a place of its own.
 */
#ifndef SPARRING_TESTS_STORE_STORE_SUITE_H
#define SPARRING_TESTS_STORE_STORE_SUITE_H

#include "common/store/store.h"
#include "tests/support/support.h"

#include <stdint.h>

/* How rank 0 opens the store: an unused init method.  The others then use the address
 * that rank 0 reports. */
struct store_kind {
    const char *name;
    const char *(*fresh_url)(void);
};

/* The kind under test; set before the suite runs. */
extern const struct store_kind *store_kind;

enum { suite_ranks_max = 16 };

struct job {
    unsigned size;
    struct store *stores[suite_ranks_max];
    char url[512];
};

/* Open one handle; fails the test when it cannot. */
struct store *open_rank(const char *url, const char *group, unsigned rank, unsigned size,
                        int64_t timeout_ms);

/* The same, giving the result back. */
enum status try_open(const char *url, const char *group, unsigned rank, unsigned size,
                     int64_t timeout_ms, struct store **ret_store, struct error *err);

void open_job(struct job *job, unsigned size, int64_t timeout_ms);
void close_job(struct job *job);

/* The time since start_ns is at least least_ms, and not much more. */
void check_waited(int64_t start_ns, int64_t least_ms);

/* The text holds "waited X s", with X about least_ms, and not much more. */
void check_says_waited(const char *text, int64_t least_ms);

/* The value of a key that must be there, compared with `wanted`. */
void check_value(struct store *store, const char *key, const char *wanted);

/* compare_set, and check the value that it returns. */
void check_compare_set(struct store *store, const char *key, const char *expected,
                       const char *desired, const char *wanted);

/* Fork `size` ranks of one job; each opens the store, runs body and closes it.  All must succeed.
 */
void run_processes(unsigned size, void (*body)(struct store *store, unsigned rank));

/* The same, but one rank must end by SIGKILL.  `departure_timeout_ms` of every store_close. */
void run_processes_but(unsigned size, unsigned killed, int64_t departure_timeout_ms,
                       void (*body)(struct store *store, unsigned rank));

TCase *store_cases(void);      /* operations, one after the other */
TCase *model_cases(void);      /* random operations against an array */
TCase *rendezvous_cases(void); /* who is missing, who differs, who failed, who stays to the end */
TCase *concurrent_cases(void); /* many threads, many processes */

/* Add the cases above for `kind`. */
void add_store_cases(Suite *suite, const struct store_kind *kind);

#endif
