#include "server/persistence/membership_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const roles[] = {[JOB_ALONE] = "alone",
                                    [JOB_PAIR] = "pair",
                                    [JOB_CHANGING] = "changing",
                                    [JOB_COPY] = "copy",
                                    [JOB_PROMOTED] = "promoted"};

void membership_file_write(struct strbuf *out, const struct membership_file *r)
{
    strbuf_addf(out, "epoch %" PRIu64 "\nrole %s\n", r->epoch, roles[r->role]);
    for (unsigned rank = 0; rank < r->world_size; rank++)
        strbuf_addf(out, "rank %u %s %016" PRIx64 "\n", rank, r->ranks[rank].in ? "in" : "out",
                    r->ranks[rank].session);
}

/* The line at *text, which `line` must be; moves *text behind it. */
static bool take_line(const char **text, const char *line)
{
    size_t length = strlen(line);

    if (strncmp(*text, line, length) != 0)
        return false;
    *text += length;
    return true;
}

static enum status refuse(const char *text, const char *at, struct error *err)
{
    return error_set(err, STATUS_DATA, "who is in the job cannot be read (byte %zu)",
                     (size_t)(at - text));
}

static bool take_role(const char **text, enum job_role *ret)
{
    char line[32];

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        (void)snprintf(line, sizeof(line), "role %s\n", roles[i]);
        *ret = (enum job_role)i;
        if (take_line(text, line))
            return true;
    }
    return false;
}

/* What was read is written again and compared: so there is one way to write it. */
enum status membership_file_parse(const char *text, unsigned world_size,
                                  struct membership_file *ret,
                                  struct membership_file_rank *ret_ranks, struct error *err)
{
    const char *at = text;
    enum job_role role;
    uint64_t epoch;
    char line[64];

    if (sscanf(at, "epoch %" SCNu64, &epoch) != 1)
        return refuse(text, at, err);
    (void)snprintf(line, sizeof(line), "epoch %" PRIu64 "\n", epoch);
    if (!take_line(&at, line) || !take_role(&at, &role))
        return refuse(text, at, err);
    for (unsigned rank = 0; rank < world_size; rank++) {
        struct membership_file_rank *r = &ret_ranks[rank];
        unsigned number;
        char state[4];

        if (sscanf(at, "rank %u %3s %" SCNx64, &number, state, &r->session) != 3)
            return refuse(text, at, err);
        r->in = strcmp(state, "in") == 0;
        (void)snprintf(line, sizeof(line), "rank %u %s %016" PRIx64 "\n", rank,
                       r->in ? "in" : "out", r->session);
        if (!take_line(&at, line))
            return refuse(text, at, err);
    }
    if (*at != '\0' || epoch == 0)
        return refuse(text, at, err);
    *ret = (struct membership_file){
        .epoch = epoch, .role = role, .ranks = ret_ranks, .world_size = world_size};
    return STATUS_OK;
}
