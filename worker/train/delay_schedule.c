/*
 * Parses the file line by line, in place, into two arrays sized by the number of lines.  Lookups
 * are linear in the number of rules.  The FNV-1a hash over the words lets the ranks compare their
 * schedules.  Immutable after delay_schedule_read, so no locking.
 */
#include "worker/train/delay_schedule.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define DELAY_MS_MAX   3600000u
#define PERCENT_MAX    100000u
#define WORDS_MAX      5

/* The line being parsed. */
struct line {
    const char *path;
    unsigned number;
    char *words[WORDS_MAX];
    size_t count;
};

static enum status reject_line(const struct line *l, const char *what, struct error *err)
{
    return error_set(err, STATUS_CONFIG,
                     "%s:%u: %s (a rule is RANK STEP[-STEP] MS or P%%, or staleness "
                     "RANK STEP[-STEP] K)",
                     l->path, l->number, what);
}

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

static enum status add_staleness(struct delay_schedule *s, const struct line *l, unsigned rank,
                                 uint64_t first, uint64_t last, struct error *err)
{
    uint64_t steps;

    if (!read_number(l->words[3], CONSISTENCY_STALENESS_MAX, &steps))
        return reject_line(l, "no such staleness (at most 1000000)", err);
    if (s->staleness_count == CONSISTENCY_RULES_MAX)
        return reject_line(l, "more than 1024 rules of staleness", err);
    s->staleness[s->staleness_count++] = (struct exact_staleness){
        .rank = rank, .first = first + 1, .last = last + 1, .steps = (uint32_t)steps};
    return STATUS_OK;
}

static enum status add_delay(struct delay_schedule *s, const struct line *l, unsigned rank,
                             uint64_t first, uint64_t last, struct error *err)
{
    struct delay_rule rule = {.rank = rank, .first = first, .last = last};
    char *percent = strchr(l->words[2], '%');
    bool is_share = percent && percent[1] == '\0';
    uint64_t value;

    if (is_share)
        *percent = '\0';
    if (!read_number(l->words[2], is_share ? PERCENT_MAX : DELAY_MS_MAX, &value))
        return reject_line(l,
                           is_share ? "no such share (whole percent, at most 100000)"
                                    : "no such delay (whole milliseconds, at most an hour)",
                           err);
    rule.share = is_share ? (double)value / 100 : 0;
    rule.delay_ns = is_share ? 0 : (int64_t)value * 1000000;
    s->delays[s->delay_count++] = rule;
    return STATUS_OK;
}

static enum status read_rule(struct delay_schedule *s, const struct line *l, unsigned world_size,
                             struct error *err)
{
    bool exact = strcmp(l->words[0], "staleness") == 0;
    uint64_t rank, first, last;

    if (l->count != 3u + exact)
        return reject_line(l, "a rule of another length", err);
    if (!read_number(l->words[exact], world_size - 1, &rank))
        return reject_line(l, "no such rank", err);
    if (!read_steps(l->words[1 + exact], &first, &last))
        return reject_line(l, "no such steps", err);
    if (exact)
        return add_staleness(s, l, (unsigned)rank, first, last, err);
    return add_delay(s, l, (unsigned)rank, first, last, err);
}

static void add_hash(uint64_t *hash, const void *data, size_t size)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < size; i++)
        *hash = (*hash ^ bytes[i]) * 0x100000001b3u;
}

/* Hashes words and line ends only, so that comments and spaces have no effect. */
static void hash_line(uint64_t *hash, const struct line *l)
{
    for (size_t i = 0; i < l->count; i++)
        add_hash(hash, l->words[i], strlen(l->words[i]) + 1);
    add_hash(hash, "\n", 1);
}

static enum status read_line(struct delay_schedule *s, struct line *l, char *text,
                             unsigned world_size, struct error *err)
{
    char *rest = NULL;

    text[strcspn(text, "#\r")] = '\0';
    l->count = 0;
    for (char *word = strtok_r(text, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        if (l->count == WORDS_MAX)
            return reject_line(l, "a rule of another length", err);
        l->words[l->count++] = word;
    }
    if (l->count == 0)
        return STATUS_OK;
    hash_line(&s->hash, l);
    return read_rule(s, l, world_size, err);
}

static enum status alloc_rules(struct delay_schedule *s, const char *text, struct error *err)
{
    size_t lines = 1;
    enum status status;

    for (const char *p = text; *p; p++)
        lines += *p == '\n';
    status = mem_calloc(lines, sizeof(*s->delays), "delay rules", &s->delays, err);
    if (status == STATUS_OK)
        status = mem_calloc(lines < CONSISTENCY_RULES_MAX ? lines : CONSISTENCY_RULES_MAX,
                            sizeof(*s->staleness), "staleness rules", &s->staleness, err);
    return status;
}

enum status delay_schedule_read(const char *path, unsigned world_size, struct delay_schedule *ret,
                                struct error *err)
{
    struct delay_schedule s = {.hash = 0xcbf29ce484222325u};
    struct line line = {.path = path};
    char *text = NULL;
    size_t size = 0;
    enum status status;

    *ret = (struct delay_schedule){0};
    if (path[0] == '\0')
        return STATUS_OK;
    status = file_read(path, FILE_BYTES_MAX, &text, &size, err);
    if (status == STATUS_OK && strlen(text) != size)
        status = error_set(err, STATUS_CONFIG, "'%s' is no text: it holds a NUL byte", path);
    if (status == STATUS_OK)
        status = alloc_rules(&s, text, err);
    for (char *at = text; status == STATUS_OK && *at != '\0';) {
        char *next = at + strcspn(at, "\n");

        next += *next == '\n' ? (*next = '\0', 1) : 0;
        line.number++;
        status = read_line(&s, &line, at, world_size, err);
        at = next;
    }
    free(text);
    if (status != STATUS_OK)
        delay_schedule_release(&s);
    else
        *ret = s;
    return status;
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
