/*
 * network_options: the options of emulated networks, for launch, net and bench alike.
 */
#ifndef SPARRING_EXPERIMENTS_NETWORK_NETWORK_OPTIONS_H
#define SPARRING_EXPERIMENTS_NETWORK_NETWORK_OPTIONS_H

#include "common/option/option.h"

#include <stdbool.h>
#include <stdint.h>

#define NETWORK_HOSTS_MAX    64
#define NETWORK_DELAY_MIN_MS 1.0 /* that a relay can keep to */

struct network_options {
    char rate[OPTION_TEXT_MAX]; /* "1gbit,server:10gbit,host2:100mbit"; "": no limit */
    char delay[OPTION_TEXT_MAX];
    char jitter[OPTION_TEXT_MAX];
    char loss[OPTION_TEXT_MAX];
    int64_t seed;
    char check[OPTION_TEXT_MAX]; /* "fail" or "warn" */
};

extern const struct option_spec network_option_specs[];

/* The link of one host, or what two of them give together. */
struct network_link {
    double rate;                 /* bit/s in each direction; 0: no limit */
    int64_t delay_ns, jitter_ns; /* one way between two hosts: delay +- jitter */
    double loss;                 /* probability of a packet between two hosts */
};

/* Is an emulated network asked for? */
bool network_options_given(const struct network_options *o);

/* "emulated: rate 1gbit,host2:100mbit, delay 5 ms" */
void network_options_text(const struct network_options *o, char *text, size_t size);

/* The links of `hosts` hosts, of which those from `first_server` on are of servers alone.  A delay
 * is at least min_delay_ms, or 0. */
enum status network_options_read(const struct network_options *o, size_t hosts, size_t first_server,
                                 double min_delay_ms, struct network_link *ret_links,
                                 struct error *err);

/* Between two hosts: the lower rate, the larger delay, jitter and loss. */
struct network_link network_link_join(const struct network_link *a, const struct network_link *b);

#endif
