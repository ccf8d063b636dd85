/*
 * compression: pure functions on a job's compression settings.  No state, no locks.
 */
#include "common/codec/compression.h"

struct compression compression_make(uint32_t up, uint32_t down, uint32_t top_k_ppm)
{
    return (struct compression){
        .up = {.kind = (enum codec_kind)up, .top_k_ppm = top_k_ppm},
        .down = {.kind = (enum codec_kind)down, .top_k_ppm = top_k_ppm},
    };
}

enum codec_mode compression_mode(const struct compression *c, bool update_on_server)
{
    if (update_on_server && codec_has_residual(&c->down))
        return CODEC_ADD;
    return update_on_server && codec_has_variable_size(&c->down) ? CODEC_PATCH : CODEC_REPLACE;
}

enum status compression_check(const struct compression *c, struct error *err)
{
    struct error why = {0};

    if (codec_check(&c->up, &why) != STATUS_OK || codec_check(&c->down, &why) != STATUS_OK)
        return error_set(err, STATUS_INVALID, "%s", why.text);
    if (c->up.kind == CODEC_SELECTED_ROWS)
        return error_set(
            err, STATUS_INVALID,
            "'named' is for replies only; gradients with few rows that are not zero use "
            "'rows'");
    return STATUS_OK;
}

enum status compression_check_row_selection(const struct compression *c,
                                            const struct consistency *consistency,
                                            bool update_on_server, struct error *err)
{
    if (c->down.kind != CODEC_SELECTED_ROWS)
        return STATUS_OK;
    if (!update_on_server)
        return error_set(
            err, STATUS_INVALID,
            "'named' selects rows of parameters, but the optimizer runs on the workers, "
            "which need the whole mean gradient");
    if (consistency->backup > 0)
        return error_set(err, STATUS_INVALID,
                         "a late rank continues at a later step, whose rows differ from its "
                         "selection: 'named' allows no backup workers");
    if (consistency->delay_compensation > 0)
        return error_set(
            err, STATUS_INVALID,
            "delay compensation compares with all that a rank has read, which excludes "
            "'named'");
    return STATUS_OK;
}
