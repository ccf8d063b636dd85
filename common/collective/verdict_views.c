/*
 * The members of a group are put in the order of how far they have come: rank r is at 2s while it
 * runs collective s and at 2s + 1 after it.  The member furthest behind is the culprit, but
 * one that has left goes first: it never starts the operation, and one that is behind may.
 * When all are in the same operation, the slow one is the one that started it late, or waits less
 * than the others, or has moved less of its bytes; where none stands out, no rank is named.  Sends
 * and receives concern one peer only.
 */
#include "common/collective/verdict.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LONG_NS 250000000 /* of waiting: more than what a busy host makes of nothing */

/* Does this member run a collective with the generation and sequence of `mine`? */
static bool at_same_place(const struct mesh_view *view, const struct signature *mine)
{
    const struct signature *s = &view->status.signature;

    return view->replied && view->status.phase == MESH_RUNNING && s->call != 0 &&
           !collective_call_is_pair(s->call) && s->generation == mine->generation &&
           s->sequence == mine->sequence;
}

/* Which of these signatures of one moment is the odd one: the culprit's; *ret_other is a rank of
 * the majority.  False when all are equal. */
static bool find_odd_signature(const struct mesh_view *views, unsigned count,
                               const struct signature *mine, unsigned *ret_culprit,
                               unsigned *ret_other)
{
    unsigned least = 0;
    unsigned most = 0;
    unsigned odd = 0;
    unsigned other = 0;

    for (unsigned a = 0; a < count; a++) {
        unsigned equal = 0;

        if (!at_same_place(&views[a], mine))
            continue;
        for (unsigned b = 0; b < count; b++)
            equal += at_same_place(&views[b], mine) &&
                     signature_equal(&views[a].status.signature, &views[b].status.signature);
        if (most == 0 || equal > most) {
            most = equal;
            other = a;
        }
        if (least == 0 || equal < least ||
            (equal == least &&
             signature_equal(&views[odd].status.signature, &views[other].status.signature))) {
            least = equal;
            odd = a;
        }
    }
    if (most == 0 || signature_equal(&views[odd].status.signature, &views[other].status.signature))
        return false;
    *ret_culprit = odd;
    *ret_other = other;
    return true;
}

/* It lives, and may still start the operation. */
static bool is_awaited(const struct mesh_view *view, const struct signature *mine)
{
    const struct signature *s = &view->status.signature;

    if (view->fault != FAULT_NONE)
        return false;
    if (!view->replied || s->call == 0)
        return true;
    if (collective_call_is_pair(s->call))
        return view->status.phase != MESH_RUNNING;
    return s->generation == mine->generation && s->sequence < mine->sequence;
}

bool verdict_is_open(const struct mesh_view *views, const uint64_t *left, unsigned count,
                     const struct signature *mine)
{
    unsigned awaited = 0;
    unsigned here = 0;
    unsigned most = 0;

    for (unsigned a = 0; a < count; a++) {
        unsigned equal = 0;

        if (left[a] < mine->sequence || collective_call_is_pair(mine->call))
            return false;
        awaited += left[a] == UINT64_MAX && is_awaited(&views[a], mine);
        for (unsigned b = 0; b < count && at_same_place(&views[a], mine); b++)
            equal += at_same_place(&views[b], mine) &&
                     signature_equal(&views[a].status.signature, &views[b].status.signature);
        here += equal > 0;
        most = equal > most ? equal : most;
    }
    return awaited > 0 && (most == here || most <= here - most + awaited);
}

static uint64_t position(const struct mesh_view *view)
{
    const struct mesh_status *s = &view->status;

    if (s->signature.call == 0)
        return 1;
    return 2 * s->signature.sequence + (s->phase == MESH_RUNNING ? 0 : 1);
}

/* What a member that is not in our operation does instead. */
static enum fault describe_behind(const struct mesh_view *view, bool left, char *text, size_t size)
{
    const struct mesh_status *s = &view->status;
    char operation[COLLECTIVE_TEXT_SIZE];

    signature_text(&s->signature, operation);
    if (left) {
        (void)snprintf(text, size, "it has left the group in order");
        return FAULT_FINISHED;
    }
    if (s->signature.call == 0)
        (void)snprintf(text, size, "it runs, and has not begun any operation");
    else if (s->phase == MESH_RUNNING)
        (void)snprintf(text, size, "it runs, and is still in %s (%" PRIu64 " of %" PRIu64 " bytes)",
                       operation, s->done_bytes, s->total_bytes);
    else
        (void)snprintf(text, size, "it runs, and has begun nothing since it ended %s", operation);
    return FAULT_STALLED;
}

static enum fault judge_pair(const struct mesh_view *view, bool left, const struct signature *mine,
                             unsigned self, char *text, size_t size)
{
    const struct signature *s = &view->status.signature;
    char operation[COLLECTIVE_TEXT_SIZE];

    if (!left && view->status.phase == MESH_RUNNING && s->call != 0) {
        signature_text(s, operation);
        if (collective_call_is_pair(s->call) && s->root == self && s->call != mine->call) {
            (void)snprintf(text, size, "it is in %s, too, and too slow", operation);
            return FAULT_SLOW;
        }
        (void)snprintf(text, size, "it is in %s instead", operation);
        return FAULT_DESYNC;
    }
    return describe_behind(view, left, text, size);
}

/* All are in one operation: did one come to it when the others had spent half of their time? */
static enum fault find_latecomer(const struct mesh_view *views, unsigned count,
                                 const struct signature *mine, int64_t now_ns,
                                 unsigned *ret_culprit, char *text, size_t size)
{
    int64_t last = INT64_MIN;
    int64_t before = INT64_MIN;
    unsigned late = count;

    for (unsigned r = 0; r < count; r++) {
        int64_t since_ns = views[r].status.since_ns;

        if (!at_same_place(&views[r], mine))
            continue;
        if (since_ns > last) {
            before = last;
            last = since_ns;
            late = r;
        } else if (since_ns > before) {
            before = since_ns;
        }
    }
    if (before == INT64_MIN || last - before < LONG_NS || last - before < (now_ns - before) / 2)
        return FAULT_NONE;
    *ret_culprit = late;
    (void)snprintf(text, size, "it is in the operation, and came to it %.2f s after all others",
                   (double)(last - before) * 1e-9);
    return FAULT_SLOW;
}

/* "moved 7 of its 100 bytes and ", or nothing where that is not known. */
static void describe_moved(const struct mesh_status *s, char *text, size_t size)
{
    text[0] = '\0';
    if (s->total_bytes > 0)
        (void)snprintf(text, size, "moved %" PRIu64 " of its %" PRIu64 " bytes and ", s->done_bytes,
                       s->total_bytes);
}

/* All are in one operation: who has waited least for the others?  A rank that is waited for does
 * not wait.  None unless it stands out. */
static enum fault find_busiest(const struct mesh_view *views, unsigned count,
                               const struct signature *mine, unsigned *ret_culprit, char *text,
                               size_t size)
{
    int64_t least = INT64_MAX;
    int64_t next = INT64_MAX;
    unsigned busiest = count;
    char moved[64];

    for (unsigned r = 0; r < count; r++) {
        int64_t waited_ns = views[r].status.waited_ns;

        if (!at_same_place(&views[r], mine))
            continue;
        if (waited_ns < least) {
            next = least;
            least = waited_ns;
            busiest = r;
        } else if (waited_ns < next) {
            next = waited_ns;
        }
    }
    if (next == INT64_MAX || least >= next / 2 || next - least < LONG_NS)
        return FAULT_NONE;
    *ret_culprit = busiest;
    describe_moved(&views[busiest].status, moved, sizeof(moved));
    (void)snprintf(text, size,
                   "it is in the operation, and the others wait: it has %swaited for %.2f s, no "
                   "other for less than %.2f s",
                   moved, (double)least * 1e-9, (double)next * 1e-9);
    return FAULT_SLOW;
}

/* All are in one operation: who has moved the least of its bytes, less than any other? */
static enum fault find_slowest(const struct mesh_view *views, unsigned count,
                               const struct signature *mine, unsigned *ret_culprit, char *text,
                               size_t size)
{
    double least = 2;
    double next = 2;

    for (unsigned r = 0; r < count; r++) {
        const struct mesh_status *s = &views[r].status;
        double part = s->total_bytes == 0 ? 0 : (double)s->done_bytes / (double)s->total_bytes;

        if (!at_same_place(&views[r], mine))
            continue;
        if (part < least) {
            next = least;
            least = part;
            *ret_culprit = r;
        } else if (part < next) {
            next = part;
        }
    }
    if (least >= next || next > 1) /* none, or none to compare with */
        return FAULT_NONE;
    (void)snprintf(text, size,
                   "it is in the operation, and has moved %" PRIu64 " of its %" PRIu64
                   " bytes, less than the others",
                   views[*ret_culprit].status.done_bytes, views[*ret_culprit].status.total_bytes);
    return FAULT_SLOW;
}

/* All that reply are in the operation, and none differs from the others. */
static enum fault report_unknown_culprit(const struct mesh_view *views, unsigned count,
                                         const struct signature *mine, unsigned *ret_culprit,
                                         char *text, size_t size)
{
    bool is_seen = false;
    unsigned here = 0;

    for (unsigned r = 0; r < count; r++) {
        here += at_same_place(&views[r], mine);
        is_seen = is_seen || views[r].status.waited_ns > 0 || views[r].status.total_bytes > 0;
    }
    if (here == 0)
        return FAULT_NONE;
    *ret_culprit = VERDICT_RANK_UNKNOWN;
    (void)snprintf(text, size, "all ranks that answer are in it, %s",
                   is_seen ? "and none waits or moves much less than the others"
                           : "and nothing shows how far each is inside the library");
    return FAULT_SLOW;
}

static enum fault find_slow(const struct mesh_view *views, unsigned count,
                            const struct signature *mine, unsigned *ret_culprit, char *text,
                            size_t size)
{
    enum fault fault = find_latecomer(views, count, mine, clock_now_ns(), ret_culprit, text, size);

    if (fault == FAULT_NONE)
        fault = find_busiest(views, count, mine, ret_culprit, text, size);
    if (fault == FAULT_NONE)
        fault = find_slowest(views, count, mine, ret_culprit, text, size);
    return fault != FAULT_NONE
               ? fault
               : report_unknown_culprit(views, count, mine, ret_culprit, text, size);
}

static enum fault describe_mismatch(const struct mesh_view *views, const unsigned *members,
                                    unsigned culprit, unsigned other, char *text, size_t size)
{
    char odd[COLLECTIVE_TEXT_SIZE];
    char rest[COLLECTIVE_TEXT_SIZE];

    signature_text(&views[culprit].status.signature, odd);
    signature_text(&views[other].status.signature, rest);
    (void)snprintf(text, size, "it is in %.100s, rank %u is in %.100s", odd, members[other], rest);
    return FAULT_DESYNC;
}

/* The member that left the group the furthest before `mine`; count: none did. */
static unsigned find_leaver(const uint64_t *left, unsigned count, unsigned self,
                            const struct signature *mine)
{
    uint64_t lowest = mine->sequence;
    unsigned leaver = count;

    for (unsigned r = 0; r < count; r++) {
        if (r == self || left[r] >= lowest) /* UINT64_MAX: it has not left */
            continue;
        lowest = left[r];
        leaver = r;
    }
    return leaver;
}

/* The member that is the furthest behind `mine`, of those that are known to be; count: none is. */
static unsigned find_behind(const struct mesh_view *views, const uint64_t *left, unsigned count,
                            unsigned self, const struct signature *mine)
{
    uint64_t lowest = 2 * mine->sequence;
    unsigned behind = count;

    for (unsigned r = 0; r < count; r++) {
        const struct signature *s = &views[r].status.signature;

        if (r == self || left[r] != UINT64_MAX || !views[r].replied)
            continue;
        if (collective_call_is_pair(s->call)) { /* its collectives are not known */
            if (views[r].status.phase == MESH_RUNNING && behind == count) {
                lowest = 0;
                behind = r;
            }
        } else if (position(&views[r]) < lowest) {
            lowest = position(&views[r]);
            behind = r;
        }
    }
    return behind;
}

enum fault verdict_from_views(const struct mesh_view *views, const uint64_t *left,
                              const unsigned *members, unsigned count, unsigned self,
                              const struct signature *mine, unsigned *ret_culprit, char *ret_text,
                              size_t size)
{
    unsigned behind;
    unsigned other;

    if (collective_call_is_pair(mine->call)) {
        *ret_culprit = mine->root;
        return views[mine->root].replied || left[mine->root] != UINT64_MAX
                   ? judge_pair(&views[mine->root], left[mine->root] != UINT64_MAX, mine, self,
                                ret_text, size)
                   : FAULT_NONE;
    }
    if (find_odd_signature(views, count, mine, ret_culprit, &other))
        return describe_mismatch(views, members, *ret_culprit, other, ret_text, size);
    behind = find_leaver(left, count, self, mine);
    if (behind == count)
        behind = find_behind(views, left, count, self, mine);
    if (behind == count)
        return find_slow(views, count, mine, ret_culprit, ret_text, size);
    *ret_culprit = behind;
    return describe_behind(&views[behind], left[behind] != UINT64_MAX, ret_text, size);
}
