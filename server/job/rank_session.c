/*
 * rank_session: state changes and deadlines of a rank's session.
 *
 * Each lane has its own last sign of life.  Silence is judged by the lane that has been silent
 * longest, among those with an Attend call.  The caller holds the table's lock and passes the time,
 * so that tests need no clock.
 */
#include "server/job/rank_session.h"

#include <stdio.h>
#include <string.h>

void rank_session_hold(struct rank_session *s, uint64_t session, unsigned lanes, int64_t now_ns)
{
    s->state = RANK_HELD;
    s->is_new = s->connection == 0 || session != s->id;
    if (s->is_new) { /* the deadline was that of another session */
        s->until_ns = 0;
        s->partial_renewal = false;
    }
    s->id = session;
    s->lanes = lanes > 0 ? lanes : 1;
    s->connection++;
    memset(s->streams, 0, sizeof(s->streams));
    memset(s->heartbeats, 0, sizeof(s->heartbeats));
    s->opened = 0;
    s->has_chunks = false;
    s->retries = 0;
    s->held_ns = now_ns;
    for (unsigned lane = 0; lane < WIRE_LANES_MAX; lane++)
        s->alive_ns[lane] = now_ns;
}

/* Of the lanes with an Attend call, the one with the oldest sign of life.  If there is none, the
 * lane with the newest one: lanes without heartbeats may be silent for long. */
static unsigned find_silent_lane(const struct rank_session *s)
{
    unsigned oldest = 0;
    bool found = false;

    for (unsigned lane = 0; lane < s->lanes; lane++) {
        if (s->heartbeats[lane] && (!found || s->alive_ns[lane] < s->alive_ns[oldest]))
            oldest = lane;
        found = found || s->heartbeats[lane];
    }
    for (unsigned lane = 0; !found && lane < s->lanes; lane++)
        if (s->alive_ns[lane] > s->alive_ns[oldest])
            oldest = lane;
    return oldest;
}

void rank_session_cut(struct rank_session *s, const char *how, int64_t reconnect_ms, int64_t now_ns)
{
    int64_t reconnect_ns = s->id == 0 ? 0 : reconnect_ms * 1000000;
    bool all_open = rank_session_is_open(s);
    bool useful = s->has_chunks || now_ns - s->held_ns >= reconnect_ns;

    s->state = RANK_AWAY;
    s->cut_ns = now_ns;
    s->silent_ns = now_ns - s->alive_ns[find_silent_lane(s)];
    if (s->until_ns == 0) {
        s->until_ns = now_ns + reconnect_ns;
    } else if (useful && (all_open || !s->partial_renewal)) {
        s->until_ns = now_ns + reconnect_ns;
        s->partial_renewal = !all_open;
    }
    (void)snprintf(s->how, sizeof(s->how), "%s", how);
}

void rank_session_mark_away(struct rank_session *s, const char *how, int64_t until_ns,
                            int64_t now_ns)
{
    rank_session_cut(s, how, 0, now_ns);
    s->until_ns = until_ns;
    s->partial_renewal = false; /* there was no connection */
}

bool rank_session_is_overdue(const struct rank_session *s, int64_t now_ns)
{
    return (s->state == RANK_AWAY || s->state == RANK_LOST) && now_ns >= s->until_ns;
}

bool rank_session_is_quiet(const struct rank_session *s)
{
    return s->calls == 0;
}

bool rank_session_has_heartbeat(const struct rank_session *s)
{
    return s->heartbeats[find_silent_lane(s)] != NULL;
}

bool rank_session_is_silent(const struct rank_session *s, int64_t timeout_ms, int64_t now_ns,
                            unsigned *ret_lane)
{
    unsigned lane = find_silent_lane(s);

    if (s->state != RANK_HELD || !s->heartbeats[lane] || timeout_ms <= 0 ||
        now_ns - s->alive_ns[lane] <= timeout_ms * 1000000)
        return false;
    *ret_lane = lane;
    return true;
}

void rank_session_exclude_pause(struct rank_session *s, int64_t since_ns, int64_t now_ns)
{
    for (unsigned lane = 0; lane < WIRE_LANES_MAX; lane++)
        if (s->state == RANK_HELD && s->alive_ns[lane] <= since_ns)
            s->alive_ns[lane] += now_ns - since_ns;
}

bool rank_session_is_open(const struct rank_session *s)
{
    return s->opened == (UINT32_C(1) << s->lanes) - 1;
}

bool rank_session_is_unopened(const struct rank_session *s, int64_t timeout_ms, int64_t now_ns)
{
    return s->state == RANK_HELD && s->id != 0 && !rank_session_is_open(s) &&
           now_ns - s->held_ns > timeout_ms * 1000000;
}

size_t rank_session_ref_calls(const struct rank_session *s, struct rpc_call **ret)
{
    size_t count = 0;

    for (unsigned lane = 0; lane < WIRE_LANES_MAX; lane++) {
        if (s->streams[lane])
            ret[count++] = s->streams[lane];
        if (s->heartbeats[lane])
            ret[count++] = s->heartbeats[lane];
    }
    for (size_t i = 0; i < count; i++)
        rpc_call_ref(ret[i]);
    return count;
}

const char *rank_session_state_name(enum rank_state state)
{
    static const char *const names[] = {
        [RANK_HELD] = "held", [RANK_AWAY] = "away", [RANK_LOST] = "lost", [RANK_VACANT] = "vacant"};

    return names[state];
}
