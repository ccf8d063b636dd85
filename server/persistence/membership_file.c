/*
 * Writing and parsing of a membership text.
 *
 * The parser formats each parsed line again and compares, so it accepts exactly the texts that the
 * writer can produce.  No state, no locks.
 */
#include "server/persistence/membership_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const roles[] = {[JOB_ALONE] = "alone",
                                    [JOB_PAIR] = "pair",
                                    [JOB_CHANGING] = "changing",
                                    [JOB_REPLICA] = "copy",
                                    [JOB_PROMOTED] = "promoted"};

void membership_file_write(struct strbuf *out, const struct membership_file *r)
{
    strbuf_addf(out, "epoch %" PRIu64 "\nrole %s\n", r->epoch, roles[r->role]);
    for (unsigned rank = 0; rank < r->world_size; rank++)
        strbuf_addf(out, "rank %u %s %016" PRIx64 "\n", rank,
                    r->ranks[rank].is_joined ? "in" : "out", r->ranks[rank].session);
}

/* If *text begins with `line`, advance *text past it. */
static bool match_line(const char **text, const char *line)
{
    size_t length = strlen(line);

    if (strncmp(*text, line, length) != 0)
        return false;
    *text += length;
    return true;
}

static enum status parse_error(const char *text, const char *next, struct error *err)
{
    return error_set(err, STATUS_DATA, "the membership cannot be read (byte %zu)",
                     (size_t)(next - text));
}

static bool match_role(const char **text, enum job_role *ret)
{
    char line[32];

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        (void)snprintf(line, sizeof(line), "role %s\n", roles[i]);
        *ret = (enum job_role)i;
        if (match_line(text, line))
            return true;
    }
    return false;
}

enum status membership_file_parse(const char *text, unsigned world_size,
                                  struct membership_file *ret,
                                  struct membership_file_rank *ret_ranks, struct error *err)
{
    const char *next = text;
    enum job_role role;
    uint64_t epoch;
    char line[64];

    if (sscanf(next, "epoch %" SCNu64, &epoch) != 1)
        return parse_error(text, next, err);
    (void)snprintf(line, sizeof(line), "epoch %" PRIu64 "\n", epoch);
    if (!match_line(&next, line) || !match_role(&next, &role))
        return parse_error(text, next, err);
    for (unsigned rank = 0; rank < world_size; rank++) {
        struct membership_file_rank *r = &ret_ranks[rank];
        unsigned number;
        char state[4];

        if (sscanf(next, "rank %u %3s %" SCNx64, &number, state, &r->session) != 3)
            return parse_error(text, next, err);
        r->is_joined = strcmp(state, "in") == 0;
        (void)snprintf(line, sizeof(line), "rank %u %s %016" PRIx64 "\n", rank,
                       r->is_joined ? "in" : "out", r->session);
        if (!match_line(&next, line))
            return parse_error(text, next, err);
    }
    if (*next != '\0' || epoch == 0)
        return parse_error(text, next, err);
    *ret = (struct membership_file){
        .epoch = epoch, .role = role, .ranks = ret_ranks, .world_size = world_size};
    return STATUS_OK;
}
