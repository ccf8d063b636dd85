#include "server/job/rank_session.h"

#include <stdio.h>
#include <string.h>

void slot_hold(struct slot *s, uint64_t session, unsigned lanes, int64_t now_ns)
{
    s->state = SLOT_HELD;
    s->is_new = s->connection == 0 || session != s->session;
    if (s->is_new) { /* those were another one's */
        s->until_ns = 0;
        s->partial_renewal = false;
    }
    s->session = session;
    s->lanes = lanes > 0 ? lanes : 1;
    s->connection++;
    memset(s->streams, 0, sizeof(s->streams));
    memset(s->attends, 0, sizeof(s->attends));
    s->opened = 0;
    s->has_chunks = false;
    s->retries = 0;
    s->held_ns = now_ns;
    for (unsigned lane = 0; lane < WIRE_LANES_MAX; lane++)
        s->alive_ns[lane] = now_ns;
}

/* The lane whose last sign of life is the oldest: of those that are attended, where any is.  Of the
 * others the newest counts, because they may be silent for long. */
static unsigned find_oldest(const struct slot *s)
{
    unsigned oldest = 0;
    bool found = false;

    for (unsigned lane = 0; lane < s->lanes; lane++) {
        if (s->attends[lane] && (!found || s->alive_ns[lane] < s->alive_ns[oldest]))
            oldest = lane;
        found = found || s->attends[lane];
    }
    for (unsigned lane = 0; !found && lane < s->lanes; lane++)
        if (s->alive_ns[lane] > s->alive_ns[oldest])
            oldest = lane;
    return oldest;
}

void slot_cut(struct slot *s, const char *how, int64_t reconnect_ms, int64_t now_ns)
{
    int64_t reconnect_ns = s->session == 0 ? 0 : reconnect_ms * 1000000;
    bool whole = slot_is_open(s);
    bool useful = s->has_chunks || now_ns - s->held_ns >= reconnect_ns;

    s->state = SLOT_AWAY;
    s->cut_ns = now_ns;
    s->silent_ns = now_ns - s->alive_ns[find_oldest(s)];
    if (s->until_ns == 0) {
        s->until_ns = now_ns + reconnect_ns;
    } else if (useful && (whole || !s->partial_renewal)) {
        s->until_ns = now_ns + reconnect_ns;
        s->partial_renewal = !whole;
    }
    (void)snprintf(s->how, sizeof(s->how), "%s", how);
}

void slot_send_away(struct slot *s, const char *how, int64_t until_ns, int64_t now_ns)
{
    slot_cut(s, how, 0, now_ns);
    s->until_ns = until_ns;
    s->partial_renewal = false; /* there was no connection that could have lacked a lane */
}

bool slot_is_overdue(const struct slot *s, int64_t now_ns)
{
    return (s->state == SLOT_AWAY || s->state == SLOT_LOST) && now_ns >= s->until_ns;
}

bool slot_is_quiet(const struct slot *s)
{
    return s->calls == 0;
}

bool slot_is_attended(const struct slot *s)
{
    return s->attends[find_oldest(s)] != NULL;
}

bool slot_is_silent(const struct slot *s, int64_t timeout_ms, int64_t now_ns, unsigned *ret_lane)
{
    unsigned lane = find_oldest(s);

    if (s->state != SLOT_HELD || !s->attends[lane] || timeout_ms <= 0 ||
        now_ns - s->alive_ns[lane] <= timeout_ms * 1000000)
        return false;
    *ret_lane = lane;
    return true;
}

void slot_forgive(struct slot *s, int64_t since_ns, int64_t now_ns)
{
    for (unsigned lane = 0; lane < WIRE_LANES_MAX; lane++)
        if (s->state == SLOT_HELD && s->alive_ns[lane] <= since_ns)
            s->alive_ns[lane] += now_ns - since_ns;
}

bool slot_is_open(const struct slot *s)
{
    return s->opened == (UINT32_C(1) << s->lanes) - 1;
}

bool slot_is_unopened(const struct slot *s, int64_t timeout_ms, int64_t now_ns)
{
    return s->state == SLOT_HELD && s->session != 0 && !slot_is_open(s) &&
           now_ns - s->held_ns > timeout_ms * 1000000;
}

size_t slot_take_calls(const struct slot *s, struct rpc_call **ret)
{
    size_t count = 0;

    for (unsigned lane = 0; lane < WIRE_LANES_MAX; lane++) {
        if (s->streams[lane])
            ret[count++] = s->streams[lane];
        if (s->attends[lane])
            ret[count++] = s->attends[lane];
    }
    for (size_t i = 0; i < count; i++)
        rpc_call_ref(ret[i]);
    return count;
}

const char *slot_state_name(enum slot_state state)
{
    static const char *const names[] = {
        [SLOT_HELD] = "held", [SLOT_AWAY] = "away", [SLOT_LOST] = "lost", [SLOT_VACANT] = "vacant"};

    return names[state];
}
