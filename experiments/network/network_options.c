/*
 * network_options: every quantity is a list: a value for all hosts, then values for some of them.
 */
#include "experiments/network/network_options.h"

#include "common/base/parse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_HELP "; a list gives some hosts another: 'VALUE,server:VALUE,worker:VALUE,host2:VALUE'"

#define AT(field) offsetof(struct network_options, field)

const struct option_spec network_option_specs[] = {
    {.help = "Emulated network:"},
    {.name = "network-rate",
     .kind = OPTION_TEXT,
     .offset = AT(rate),
     .metavar = "RATE",
     .help = "Rate of each host's link in each direction, as 1gbit or 500mbit" LIST_HELP "."},
    {.name = "network-delay",
     .kind = OPTION_TEXT,
     .offset = AT(delay),
     .metavar = "MS",
     .help = "Delay one way between two hosts, 1 ms or more; between two with different ones the "
             "longer" LIST_HELP "."},
    {.name = "network-jitter",
     .kind = OPTION_TEXT,
     .offset = AT(jitter),
     .metavar = "MS",
     .help = "The delay varies evenly by up to as much in both directions; the order of packets "
             "stays."},
    {.name = "network-loss",
     .kind = OPTION_TEXT,
     .offset = AT(loss),
     .metavar = "PERCENT",
     .help = "Share of packets that are lost between two hosts, independently; needs a delay."},
    {.name = "network-seed",
     .kind = OPTION_INT,
     .offset = AT(seed),
     .default_text = "1",
     .min = 0,
     .max = 4294967295,
     .metavar = "N",
     .help = "Of jitter and loss."},
    {.name = "network-check",
     .kind = OPTION_CHOICE,
     .offset = AT(check),
     .default_text = "fail",
     .choices = "fail|warn",
     .help = "What follows where this machine does not keep to the network: rates and round trips, "
             "measured first, off by more than 10 %, a round trip also by more than 1 ms and twice "
             "the jitter, a rate only where no packets are lost; half of the packets later than a "
             "tenth of the delay, or one in 100 later than that and than 0.3 ms.  fail: exit code "
             "8."},
    {0},
};

struct quantity {
    const char *option;
    const char *form; /* of a value, for messages */
    bool (*parse)(const char *text, double *ret);
    double min, max; /* besides 0 */
};

/* Does "server", "worker", "host2" or "" (all) name that host? */
static bool names_host(const char *who, size_t host, size_t first_server)
{
    uint64_t number;

    if (strncmp(who, "host", 4) == 0)
        return parse_uint64(who + 4, &number) && number == host;
    return who[0] == '\0' || (strcmp(who, "server") == 0 && host >= first_server) ||
           (strcmp(who, "worker") == 0 && host < first_server);
}

/* One entry, "VALUE" or "WHO:VALUE". */
static enum status read_entry(const struct quantity *q, const char *entry, size_t hosts,
                              size_t first_server, double *values, struct error *err)
{
    const char *colon = strchr(entry, ':');
    char who[32] = "";
    double value;
    size_t found = 0;

    if (colon)
        (void)snprintf(who, sizeof(who), "%.*s", (int)(colon - entry), entry);
    if (!q->parse(colon ? colon + 1 : entry, &value) ||
        !(value == 0 || (value >= q->min && value <= q->max)))
        return error_set(err, STATUS_INVALID, "%s: '%s' is not %s", q->option, entry, q->form);
    for (size_t h = 0; h < hosts; h++)
        if (names_host(who, h, first_server)) {
            values[h] = value;
            found++;
        }
    if (found > 0 || strcmp(who, "server") == 0) /* which not every mode of an experiment has */
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "%s: '%s' names none of the %zu hosts: server (those of dedicated servers), "
                     "worker (the others), host0 to host%zu",
                     q->option, entry, hosts, hosts - 1);
}

static enum status read_list(const struct quantity *q, const char *list, size_t hosts,
                             size_t first_server, double *values, struct error *err)
{
    char text[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = STATUS_OK;

    for (size_t h = 0; h < hosts; h++)
        values[h] = 0;
    (void)snprintf(text, sizeof(text), "%s", list);
    for (char *entry = strtok_r(text, ", ", &rest); entry && status == STATUS_OK;
         entry = strtok_r(NULL, ", ", &rest))
        status = read_entry(q, entry, hosts, first_server, values, err);
    return status;
}

bool network_options_given(const struct network_options *o)
{
    return o->rate[0] || o->delay[0] || o->jitter[0] || o->loss[0];
}

void network_options_text(const struct network_options *o, char *text, size_t size)
{
    const struct {
        const char *name, *value, *unit;
    } parts[] = {{"rate", o->rate, ""},
                 {"delay", o->delay, " ms"},
                 {"jitter", o->jitter, " ms"},
                 {"loss", o->loss, " %"}};
    const char *separator = ": ";
    size_t length;

    (void)snprintf(text, size, "emulated");
    for (size_t i = 0; i < 4; i++)
        if (parts[i].value[0] != '\0' && (length = strlen(text)) < size) {
            (void)snprintf(text + length, size - length, "%s%s %s%s", separator, parts[i].name,
                           parts[i].value, parts[i].unit);
            separator = ", ";
        }
}

static enum status check_link(const struct network_link *link, size_t host, struct error *err)
{
    if (link->jitter_ns > link->delay_ns)
        return error_set(err, STATUS_INVALID,
                         "--network-jitter: host %zu varies by more than its delay", host);
    if (link->loss > 0 && link->delay_ns == 0)
        return error_set(err, STATUS_INVALID,
                         "--network-loss needs a --network-delay, host %zu "
                         "has none",
                         host);
    return STATUS_OK;
}

enum status network_options_read(const struct network_options *o, size_t hosts, size_t first_server,
                                 double min_delay_ms, struct network_link *ret_links,
                                 struct error *err)
{
    const struct quantity quantities[] = {
        {"--network-rate", "a rate from 1mbit to 1000gbit", parse_rate, 1e6, 1e12},
        {"--network-delay",
         min_delay_ms > 0 ? "a delay of 1 to 10000 ms (a process cannot forward packets more "
                            "exactly than that)"
                          : "a delay of 0 to 10000 ms",
         parse_double, min_delay_ms, 1e4},
        {"--network-jitter", "a time of up to 10000 ms", parse_double, 0, 1e4},
        {"--network-loss", "a share of up to 50 percent", parse_double, 0, 50},
    };
    const char *const lists[] = {o->rate, o->delay, o->jitter, o->loss};
    double values[4][NETWORK_HOSTS_MAX];
    enum status status = STATUS_OK;

    if (hosts > NETWORK_HOSTS_MAX)
        return error_set(err, STATUS_INVALID, "%zu emulated hosts, allowed are %d", hosts,
                         NETWORK_HOSTS_MAX);
    for (size_t q = 0; q < 4 && status == STATUS_OK; q++)
        status = read_list(&quantities[q], lists[q], hosts, first_server, values[q], err);
    for (size_t h = 0; h < hosts && status == STATUS_OK; h++) {
        ret_links[h] = (struct network_link){.rate = values[0][h],
                                             .delay_ns = (int64_t)(values[1][h] * 1e6),
                                             .jitter_ns = (int64_t)(values[2][h] * 1e6),
                                             .loss = values[3][h] / 100};
        status = check_link(&ret_links[h], h, err);
    }
    return status;
}

struct network_link network_link_join(const struct network_link *a, const struct network_link *b)
{
    const struct network_link *slow = a->rate > 0 && (b->rate == 0 || a->rate < b->rate) ? a : b;

    return (struct network_link){.rate = slow->rate,
                                 .delay_ns = a->delay_ns > b->delay_ns ? a->delay_ns : b->delay_ns,
                                 .jitter_ns =
                                     a->jitter_ns > b->jitter_ns ? a->jitter_ns : b->jitter_ns,
                                 .loss = a->loss > b->loss ? a->loss : b->loss};
}
