/*
 * Names, predicates and validity checks of the consistency modes.  Pure, no state, no locks.
 */
#include "common/consistency/consistency.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static const char *const names[] = {
    [CONSISTENCY_BSP] = "bsp", [CONSISTENCY_SSP] = "ssp", [CONSISTENCY_ASP] = "asp"};

const char *consistency_name(enum consistency_mode mode)
{
    return names[mode];
}

bool consistency_parse(const char *name, enum consistency_mode *ret)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum consistency_mode)i;
            return true;
        }
    }
    return false;
}

bool consistency_is_lockstep(const struct consistency *c)
{
    return c->mode != CONSISTENCY_ASP && c->staleness == 0 && c->backup == 0;
}

bool consistency_steps_per_push(const struct consistency *c)
{
    return c->mode == CONSISTENCY_ASP || c->staleness > 0;
}

unsigned consistency_divisor(const struct consistency *c, unsigned world_size)
{
    return consistency_steps_per_push(c) ? 1 : world_size - c->backup;
}

/* Bounds that belong to another mode, or are out of range. */
static enum status check_bounds(const struct consistency *c, unsigned world_size, struct error *err)
{
    if (c->mode != CONSISTENCY_SSP && c->staleness > 0)
        return error_set(err, STATUS_INVALID, "a staleness bound of %" PRIu32 " needs ssp, not %s",
                         c->staleness, names[c->mode]);
    if (c->staleness > CONSISTENCY_STALENESS_MAX)
        return error_set(err, STATUS_INVALID, "a staleness bound of %" PRIu32 " (at most %u)",
                         c->staleness, CONSISTENCY_STALENESS_MAX);
    if (c->mode != CONSISTENCY_BSP && c->backup > 0)
        return error_set(err, STATUS_INVALID, "%" PRIu32 " backup workers need bsp, not %s",
                         c->backup, names[c->mode]);
    if (c->backup > 0 && c->backup >= world_size)
        return error_set(err, STATUS_INVALID,
                         "%" PRIu32 " backup workers among %u ranks leave nobody to wait for",
                         c->backup, world_size);
    return STATUS_OK;
}

static enum status check_asp_options(const struct consistency *c, struct error *err)
{
    if (c->mode != CONSISTENCY_ASP && c->lr_by_staleness)
        return error_set(err, STATUS_INVALID,
                         "a learning rate divided by the staleness needs asp, not %s",
                         names[c->mode]);
    if (!isfinite(c->delay_compensation) || c->delay_compensation < 0)
        return error_set(err, STATUS_INVALID, "a delay compensation of %g (a number from 0 up)",
                         c->delay_compensation);
    if (c->mode != CONSISTENCY_ASP && c->delay_compensation > 0)
        return error_set(err, STATUS_INVALID, "delay compensation needs asp, not %s",
                         names[c->mode]);
    return STATUS_OK;
}

enum status consistency_check(const struct consistency *c, unsigned world_size,
                              bool update_on_server, bool rank_order, struct error *err)
{
    bool plain = c->mode == CONSISTENCY_BSP && c->backup == 0;
    enum status status = check_bounds(c, world_size, err);

    if (status == STATUS_OK)
        status = check_asp_options(c, err);
    if (status != STATUS_OK || plain)
        return status;
    if (!update_on_server)
        return error_set(err, STATUS_INVALID, "%s%s needs the optimizer on the server",
                         names[c->mode], c->backup ? " with backup workers" : "");
    if (rank_order && !consistency_is_lockstep(c))
        return error_set(err, STATUS_INVALID,
                         "%s%s takes what comes first: it has no reproducible order of sums",
                         names[c->mode],
                         c->backup          ? " with backup workers"
                         : c->staleness > 0 ? " with a staleness bound"
                                            : "");
    return STATUS_OK;
}
