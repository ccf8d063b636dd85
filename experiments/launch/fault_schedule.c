/*
 * fault_schedule: every rule draws its time, then its target, so that a rule's draws depend only on
 * those before it.
 */
#include "experiments/launch/fault_schedule.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/random.h"
#include "common/base/rule_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORM                                                                                       \
    "AT[-AT] pause|kill RANK|SERVER, AT[-AT] cut HOST or AT[-AT] slow HOST RATE, and [for "        \
    "SECONDS]; rank1, server0, host2, or rank* for one that is drawn"
#define SECONDS_MAX 1e6

static const char *const actions[] = {"pause", "kill", "cut", "slow"};

struct reading {
    struct fault_schedule schedule;
    const struct fault_targets *targets;
    struct random random;
};

const char *fault_action_name(enum fault_action action)
{
    return actions[action];
}

static bool is_of_link(enum fault_action action)
{
    return action == FAULT_CUT || action == FAULT_SLOW;
}

/* Uniform in [0, 1). */
static double draw(struct random *r)
{
    return (double)(random_u64(r) >> 11) * 0x1p-53;
}

static bool read_seconds(const char *text, double *ret)
{
    return parse_double(text, ret) && *ret >= 0 && *ret <= SECONDS_MAX;
}

/* "2.5", or "2-3" for a time between. */
static bool read_time(struct random *random, char *text, int64_t *ret_ns)
{
    char *dash = strchr(text, '-');
    double first, last;

    if (dash)
        *dash = '\0';
    if (!read_seconds(text, &first))
        return false;
    last = first;
    if (dash && (!read_seconds(dash + 1, &last) || last < first))
        return false;
    *ret_ns = (int64_t)((dash ? first + draw(random) * (last - first) : first) * 1e9);
    return true;
}

/* "rank1" of `count` ranks, or "rank*", one of the first `drawn`. */
static bool read_index(struct random *random, const char *text, const char *kind, size_t count,
                       size_t drawn, size_t *ret)
{
    const size_t length = strlen(kind);
    uint64_t number;

    if (strncmp(text, kind, length) != 0 || count == 0)
        return false;
    if (strcmp(text + length, "*") == 0) {
        *ret = (size_t)(draw(random) * (double)drawn);
        return true;
    }
    if (!parse_uint64(text + length, &number) || number >= count)
        return false;
    *ret = (size_t)number;
    return true;
}

static bool read_target(struct reading *r, const char *text, struct scheduled_fault *f)
{
    const struct fault_targets *t = r->targets;
    const bool link = is_of_link(f->action);
    const struct {
        const char *name;
        size_t first, count, drawn;
    } kinds[] = {{"host", 0, link ? t->hosts : 0, t->worker_hosts},
                 {"server", 0, link ? 0 : t->servers, t->servers},
                 {"rank", t->servers, link ? 0 : t->ranks, t->ranks}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t number;

        if (!read_index(&r->random, text, kinds[i].name, kinds[i].count, kinds[i].drawn, &number))
            continue;
        f->index = kinds[i].first + number;
        (void)snprintf(f->target, sizeof(f->target), "%s%zu", kinds[i].name, number);
        return true;
    }
    return false;
}

static bool read_action(const char *text, enum fault_action *ret)
{
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(text, actions[i]) == 0) {
            *ret = (enum fault_action)i;
            return true;
        }
    return false;
}

static const char *no_target(const struct fault_targets *t, enum fault_action action)
{
    if (!is_of_link(action))
        return "no such process";
    return t->hosts > 0 ? "no such host"
                        : "there is no emulated network (--network-rate, --network-delay)";
}

/* Why a fault of a target that is there is not possible; NULL: it is. */
static const char *obstacle(const struct fault_targets *t, const struct scheduled_fault *f)
{
    if (f->action == FAULT_SLOW && t->links[f->index].rate == 0)
        return "a link without a --network-rate has no rate to return to";
    if (f->action != FAULT_KILL || f->length_ns == INT64_MAX)
        return NULL;
    if (f->index < t->servers && !t->servers_restart)
        return "no server is started again here (--max-restarts, --state-dir)";
    if (f->index >= t->servers && !t->ranks_restart)
        return "no rank is started again here (--max-restarts, --on-rank-loss)";
    return NULL;
}

static enum status read_length(const struct rule *rule, size_t at, struct scheduled_fault *f,
                               struct error *err)
{
    double seconds;

    f->length_ns = INT64_MAX;
    if (rule->length == at)
        return STATUS_OK;
    if (rule->length != at + 2 || strcmp(rule->words[at], "for") != 0)
        return rule_reject(rule, "a rule of another length", err);
    if (!read_seconds(rule->words[at + 1], &seconds))
        return rule_reject(rule, "no such duration (seconds, at most 1000000)", err);
    f->length_ns = (int64_t)(seconds * 1e9);
    return STATUS_OK;
}

static enum status read_rule(void *user, const struct rule *rule, struct error *err)
{
    struct reading *r = user;
    struct fault_schedule *s = &r->schedule;
    struct scheduled_fault f = {.rate = 0};
    size_t needed;
    enum status status;

    if (rule->length < 3)
        return rule_reject(rule, "a rule of another length", err);
    if (!read_time(&r->random, rule->words[0], &f.begin_ns))
        return rule_reject(rule, "no such time (seconds, at most 1000000)", err);
    if (!read_action(rule->words[1], &f.action))
        return rule_reject(rule, "no such fault", err);
    needed = f.action == FAULT_SLOW ? 4 : 3;
    if (needed > rule->length)
        return rule_reject(rule, "a rule of another length", err);
    status = read_length(rule, needed, &f, err);
    if (status == STATUS_OK && !read_target(r, rule->words[2], &f))
        return rule_reject(rule, no_target(r->targets, f.action), err);
    if (status == STATUS_OK && obstacle(r->targets, &f))
        return rule_reject(rule, obstacle(r->targets, &f), err);
    if (status == STATUS_OK && f.action == FAULT_SLOW &&
        (!parse_rate(rule->words[3], &f.rate) || f.rate < 1e6 || f.rate > 1e12))
        return rule_reject(rule, "no such rate (1mbit to 1000gbit)", err);
    if (status == STATUS_OK)
        status = mem_grow(s->length, &s->capacity, sizeof(f), "faults", &s->faults, err);
    if (status != STATUS_OK)
        return status;
    s->changes_links = s->changes_links || is_of_link(f.action);
    s->faults[s->length++] = f;
    return STATUS_OK;
}

enum status fault_schedule_read(const char *path, uint64_t seed,
                                const struct fault_targets *targets, struct fault_schedule *ret,
                                struct error *err)
{
    struct reading r = {.targets = targets};
    enum status status;

    *ret = (struct fault_schedule){0};
    if (path[0] == '\0')
        return STATUS_OK;
    random_seed(&r.random, seed);
    status = rule_file_read(path, FORM, read_rule, &r, err);
    if (status != STATUS_OK)
        fault_schedule_release(&r.schedule);
    else
        *ret = r.schedule;
    return status;
}

void fault_schedule_release(struct fault_schedule *s)
{
    free(s->faults);
    *s = (struct fault_schedule){0};
}
