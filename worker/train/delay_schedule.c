/*
 * Lookups are linear in the number of rules.  The FNV-1a hash over the words lets the ranks compare
 * their schedules.  Immutable after delay_schedule_read, so no locking.
 */
#include "worker/train/delay_schedule.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/rule_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DELAY_MS_MAX 3600000u
#define PERCENT_MAX  100000u
#define FORM         "RANK STEP[-STEP] MS or P%, or staleness RANK STEP[-STEP] K"

/* What a file's rules are read into. */
struct reading {
    struct delay_schedule schedule;
    size_t delay_capacity, staleness_capacity;
    unsigned world_size;
};

static bool read_number(const char *text, uint64_t max, uint64_t *ret)
{
    return parse_uint64(text, ret) && *ret <= max;
}

/* "3", "3-7" or "3-". */
static bool read_steps(char *text, uint64_t *ret_first, uint64_t *ret_last)
{
    char *dash = strchr(text, '-');
    bool good;

    if (dash)
        *dash = '\0';
    good = read_number(text, UINT32_MAX, ret_first);
    *ret_last = *ret_first;
    if (good && dash && dash[1] == '\0')
        *ret_last = UINT32_MAX;
    else if (good && dash)
        good = read_number(dash + 1, UINT32_MAX, ret_last);
    return good && *ret_first <= *ret_last;
}

static enum status add_staleness(struct reading *r, const struct rule *line, unsigned rank,
                                 uint64_t first, uint64_t last, struct error *err)
{
    struct delay_schedule *s = &r->schedule;
    uint64_t steps;
    enum status status;

    if (!read_number(line->words[3], CONSISTENCY_STALENESS_MAX, &steps))
        return rule_reject(line, "no such staleness (at most 1000000)", err);
    if (s->staleness_count == CONSISTENCY_RULES_MAX)
        return rule_reject(line, "more than 1024 rules of staleness", err);
    status = mem_grow(s->staleness_count, &r->staleness_capacity, sizeof(*s->staleness),
                      "staleness rules", &s->staleness, err);
    if (status != STATUS_OK)
        return status;
    s->staleness[s->staleness_count++] = (struct exact_staleness){
        .rank = rank, .first = first + 1, .last = last + 1, .steps = (uint32_t)steps};
    return STATUS_OK;
}

static enum status add_delay(struct reading *r, const struct rule *line, unsigned rank,
                             uint64_t first, uint64_t last, struct error *err)
{
    struct delay_schedule *s = &r->schedule;
    struct delay_rule rule = {.rank = rank, .first = first, .last = last};
    char *percent = strchr(line->words[2], '%');
    bool is_share = percent && percent[1] == '\0';
    uint64_t value;
    enum status status;

    if (is_share)
        *percent = '\0';
    if (!read_number(line->words[2], is_share ? PERCENT_MAX : DELAY_MS_MAX, &value))
        return rule_reject(line,
                           is_share ? "no such share (whole percent, at most 100000)"
                                    : "no such delay (whole milliseconds, at most an hour)",
                           err);
    rule.share = is_share ? (double)value / 100 : 0;
    rule.delay_ns = is_share ? 0 : (int64_t)value * 1000000;
    status = mem_grow(s->delay_count, &r->delay_capacity, sizeof(*s->delays), "delay rules",
                      &s->delays, err);
    if (status == STATUS_OK)
        s->delays[s->delay_count++] = rule;
    return status;
}

static void add_hash(uint64_t *hash, const void *data, size_t size)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < size; i++)
        *hash = (*hash ^ bytes[i]) * 0x100000001b3u;
}

/* Hashes words and line ends only, so that comments and spaces have no effect. */
static void hash_rule(uint64_t *hash, const struct rule *line)
{
    for (size_t i = 0; i < line->length; i++)
        add_hash(hash, line->words[i], strlen(line->words[i]) + 1);
    add_hash(hash, "\n", 1);
}

static enum status read_rule(void *user, const struct rule *line, struct error *err)
{
    struct reading *r = user;
    bool exact = strcmp(line->words[0], "staleness") == 0;
    uint64_t rank, first, last;

    hash_rule(&r->schedule.hash, line);
    if (line->length != 3u + exact)
        return rule_reject(line, "a rule of another length", err);
    if (!read_number(line->words[exact], r->world_size - 1, &rank))
        return rule_reject(line, "no such rank", err);
    if (!read_steps(line->words[1 + exact], &first, &last))
        return rule_reject(line, "no such steps", err);
    if (exact)
        return add_staleness(r, line, (unsigned)rank, first, last, err);
    return add_delay(r, line, (unsigned)rank, first, last, err);
}

enum status delay_schedule_read(const char *path, unsigned world_size, struct delay_schedule *ret,
                                struct error *err)
{
    struct reading r = {.schedule.hash = 0xcbf29ce484222325u, .world_size = world_size};
    enum status status;

    *ret = (struct delay_schedule){0};
    if (path[0] == '\0')
        return STATUS_OK;
    status = rule_file_read(path, FORM, read_rule, &r, err);
    if (status != STATUS_OK)
        delay_schedule_release(&r.schedule);
    else
        *ret = r.schedule;
    return status;
}

void delay_schedule_resume(struct delay_schedule *s, uint64_t steps)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->staleness_count; i++) {
        struct exact_staleness rule = s->staleness[i];

        if (rule.last <= steps)
            continue;
        rule.first = rule.first > steps ? rule.first - steps : 1;
        rule.last -= steps;
        s->staleness[kept++] = rule;
    }
    s->staleness_count = kept;
}

void delay_schedule_release(struct delay_schedule *s)
{
    free(s->delays);
    free(s->staleness);
    *s = (struct delay_schedule){0};
}

static bool rule_applies(const struct delay_rule *r, unsigned rank, uint64_t step)
{
    return r->rank == rank && r->first <= step && step <= r->last;
}

int64_t delay_schedule_ns(const struct delay_schedule *s, unsigned rank, uint64_t step)
{
    int64_t sum_ns = 0;

    for (size_t i = 0; i < s->delay_count; i++)
        sum_ns += rule_applies(&s->delays[i], rank, step) ? s->delays[i].delay_ns : 0;
    return sum_ns;
}

double delay_schedule_share(const struct delay_schedule *s, unsigned rank, uint64_t step)
{
    double sum = 0;

    for (size_t i = 0; i < s->delay_count; i++)
        sum += rule_applies(&s->delays[i], rank, step) ? s->delays[i].share : 0;
    return sum;
}
