#include "server/roster.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void roster_write(struct strbuf *out, uint64_t epoch, const struct roster_rank *ranks,
                  unsigned world_size)
{
    strbuf_addf(out, "epoch %" PRIu64 "\n", epoch);
    for (unsigned rank = 0; rank < world_size; rank++)
        strbuf_addf(out, "rank %u %s %016" PRIx64 "\n", rank, ranks[rank].in ? "in" : "out",
                    ranks[rank].session);
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

/* What was read is written again and compared: so there is one way to write it. */
enum status roster_parse(const char *text, unsigned world_size, uint64_t *ret_epoch,
                         struct roster_rank *ret_ranks, struct error *err)
{
    const char *at = text;
    uint64_t epoch;
    char line[64];

    if (sscanf(at, "epoch %" SCNu64, &epoch) != 1)
        return refuse(text, at, err);
    (void)snprintf(line, sizeof(line), "epoch %" PRIu64 "\n", epoch);
    if (!take_line(&at, line))
        return refuse(text, at, err);
    for (unsigned rank = 0; rank < world_size; rank++) {
        struct roster_rank *r = &ret_ranks[rank];
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
    *ret_epoch = epoch;
    return STATUS_OK;
}
