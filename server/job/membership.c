/*
 * membership: checks join requests and compares the ranks.
 *
 * A rank's terms are stored as fields in front of its manifest and compared like it, so one list
 * names every difference.  The manifests of all ranks together have a limit, because they come from
 * the network.  The caller holds the table's lock.
 */
#include "server/job/membership.h"

#include "common/base/memory.h"
#include "common/codec/compression.h"
#include "common/manifest/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LISTED_MAX 16u

static enum status check_terms(const struct join_request *r, struct error *err)
{
    struct compression compression = compression_make(r->dtype_up, r->dtype_down, r->top_k_ppm);
    enum status status;

    if (r->world_size == 0 || r->world_size > MEMBERSHIP_RANKS_MAX)
        return error_set(err, STATUS_INVALID, "join of job '%s': world size %u (allowed: 1 to %u)",
                         r->job, r->world_size, MEMBERSHIP_RANKS_MAX);
    if (r->rank >= r->world_size)
        return error_set(err, STATUS_INVALID, "join of job '%s': rank %u in a world of %u", r->job,
                         r->rank, r->world_size);
    if (r->server_index >= r->server_count)
        return error_set(err, STATUS_INVALID, "join of job '%s': server %u of %u", r->job,
                         r->server_index, r->server_count);
    if (r->weight_count > 0 && r->weight_count != r->server_count)
        return error_set(err, STATUS_INVALID, "join of job '%s': %zu weights for %u servers",
                         r->job, r->weight_count, r->server_count);
    if (r->update > 1 || r->order > 1)
        return error_set(err, STATUS_INVALID, "join of job '%s': update %u, order %u (0 or 1)",
                         r->job, r->update, r->order);
    if (r->rule_count > 0 && !consistency_steps_per_push(&r->consistency))
        return error_set(err, STATUS_INVALID,
                         "join of job '%s': rules of staleness need asp, or ssp with a bound above "
                         "0, where each push is a step",
                         r->job);
    if (r->rule_count > 0 && r->on_loss != WORKER_LOSS_FAIL)
        return error_set(err, STATUS_INVALID,
                         "join of job '%s': under rules of staleness contributions are held for "
                         "their turn, so no session can replace a lost rank (on loss: fail)",
                         r->job);
    if (r->on_loss == WORKER_LOSS_WAIT && r->update != 0)
        return error_set(err, STATUS_INVALID,
                         "join of job '%s': to wait for the replacement of a lost rank the "
                         "parameters must lie here, but the optimizer runs on the workers",
                         r->job);
    status = consistency_check(&r->consistency, r->world_size, r->update == 0, r->order == 1, err);
    if (status == STATUS_OK)
        status = compression_check(&compression, err);
    if (status == STATUS_OK)
        status =
            compression_check_row_selection(&compression, &r->consistency, r->update == 0, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "join of job '%s': ", r->job);
    return status;
}

enum status membership_init(struct membership *m, const struct join_request *request,
                            struct error *err)
{
    enum status status = check_terms(request, err);

    memset(m, 0, sizeof(*m));
    if (status != STATUS_OK)
        return status;
    status = mem_calloc(request->world_size, sizeof(*m->members), "members", &m->members, err);
    if (status != STATUS_OK)
        return status;
    memcpy(m->job, request->job, sizeof(m->job));
    m->world_size = request->world_size;
    for (unsigned rank = 0; rank < m->world_size; rank++)
        m->members[rank].manifest = (struct strbuf)STRBUF_INIT;
    return STATUS_OK;
}

void membership_release(struct membership *m)
{
    for (unsigned rank = 0; m->members && rank < m->world_size; rank++)
        strbuf_release(&m->members[rank].manifest);
    free(m->members);
    memset(m, 0, sizeof(*m));
}

static void add_terms(struct strbuf *text, const struct join_request *r)
{
    const struct optimizer_config *o = &r->optimizer;

    manifest_add(text, "parameter server", "%u of %u", r->server_index, r->server_count);
    for (size_t i = 0; i < r->weight_count; i++)
        manifest_add(text, "weight of a server", "%zu: %" PRIu32, i, r->weights[i]);
    manifest_add(text, "elements of the slab", "%" PRIu64, r->element_count);
    manifest_add(text, "partition bytes", "%" PRIu64, r->partition_bytes);
    manifest_add(text, "optimizer runs on", "%s", r->update == 0 ? "the server" : "the worker");
    manifest_add(text, "order of sums", "%s", r->order == 0 ? "arrival" : "rank");
    manifest_add(text, "consistency",
                 "%s, staleness bound %" PRIu32 ", %" PRIu32 " backup workers, lr %s, delay "
                 "compensation %.17g",
                 consistency_name(r->consistency.mode), r->consistency.staleness,
                 r->consistency.backup,
                 r->consistency.lr_by_staleness ? "by staleness" : "constant",
                 r->consistency.delay_compensation);
    manifest_add(text, "compression", "%s, down %s, %" PRIu32 " ppm",
                 codec_name((enum codec_kind)r->dtype_up),
                 codec_name((enum codec_kind)r->dtype_down), r->top_k_ppm);
    manifest_add(text, "on rank loss", "%s, %" PRIu32 " ms to reconnect",
                 r->on_loss == WORKER_LOSS_FAIL     ? "fail"
                 : r->on_loss == WORKER_LOSS_SHRINK ? "shrink"
                                                    : "wait",
                 r->reconnect_ms);
    if (r->steps_before > 0)
        manifest_add(text, "steps before", "%" PRIu64, r->steps_before);
    if (r->replica[0])
        manifest_add(text, "replica", "%s", r->replica);
    for (size_t i = 0; i < r->rule_count; i++)
        manifest_add(text, "rule of staleness",
                     "rank %" PRIu32 " rounds %" PRIu64 "-%" PRIu64 ": %" PRIu32, r->rules[i].rank,
                     r->rules[i].first, r->rules[i].last, r->rules[i].steps);
    if (r->update == 0)
        manifest_add(text, "server optimizer",
                     "%s lr %.17g momentum %.17g dampening %.17g nesterov %d weight decay %.17g "
                     "betas %.17g %.17g eps %.17g",
                     optimizer_name(o->kind), o->learning_rate, o->momentum, o->dampening,
                     o->nesterov, o->weight_decay, o->beta1, o->beta2, o->epsilon);
}

/* May this request join the job?  Changes nothing. */
static enum status check_join(const struct membership *m, const struct join_request *r,
                              const char *peer, struct error *err)
{
    enum status status = check_terms(r, err);

    if (status != STATUS_OK)
        return status;
    if (strcmp(m->job, r->job) != 0)
        return error_set(err, STATUS_UNAVAILABLE,
                         "job '%s' is refused: this server serves job '%s' (%u of %u ranks)",
                         r->job, m->job, m->joined, m->world_size);
    if (m->world_size != r->world_size)
        return error_set(err, STATUS_MISMATCH,
                         "job '%s': rank %u has world size %u, the ranks before it have %u", r->job,
                         r->rank, r->world_size, m->world_size);
    if (m->members[r->rank].state != MEMBER_ABSENT)
        return error_set(err, STATUS_EXISTS, "job '%s': rank %u has %s from %s; %s is a second one",
                         r->job, r->rank,
                         m->members[r->rank].state == MEMBER_LEFT ? "joined and left" : "joined",
                         m->members[r->rank].peer, peer);
    return STATUS_OK;
}

enum status membership_join(struct membership *m, const struct join_request *request,
                            const char *peer, struct error *err)
{
    struct member *member;
    enum status status = check_join(m, request, peer, err);

    if (status != STATUS_OK)
        return status;
    member = &m->members[request->rank];
    m->manifest_bytes -= member->manifest.length; /* of an earlier join that was cancelled */
    strbuf_reset(&member->manifest);
    add_terms(&member->manifest, request);
    member->terms_bytes = member->manifest.length;
    strbuf_add(&member->manifest, request->manifest ? request->manifest : "");
    if (!strbuf_ok(&member->manifest)) {
        strbuf_release(&member->manifest);
        return error_set(err, STATUS_NO_MEMORY, "cannot keep the manifest of rank %u",
                         request->rank);
    }
    if (member->manifest.length > MEMBERSHIP_MANIFESTS_MAX - m->manifest_bytes) {
        strbuf_release(&member->manifest);
        return error_set(err, STATUS_NO_SPACE,
                         "job '%s': the manifest of rank %u and those of the other ranks have more "
                         "than %zu bytes",
                         request->job, request->rank, MEMBERSHIP_MANIFESTS_MAX);
    }
    m->manifest_bytes += member->manifest.length;
    (void)snprintf(member->peer, sizeof(member->peer), "%s", peer);
    member->state = MEMBER_JOINED;
    m->joined++;
    return STATUS_OK;
}

enum status membership_check_size(const struct membership *m, const struct join_request *request,
                                  struct error *err)
{
    enum status status = check_terms(request, err);

    if (status == STATUS_OK && request->world_size != m->world_size)
        return error_set(err, STATUS_MISMATCH,
                         "job '%s': rank %u has world size %u, the ranks before it have %u", m->job,
                         request->rank, request->world_size, m->world_size);
    return status;
}

enum status membership_check_rejoin(const struct membership *m, const struct join_request *request,
                                    struct error *err)
{
    struct strbuf text = STRBUF_INIT, report = STRBUF_INIT;
    enum status status = STATUS_OK;

    add_terms(&text, request);
    strbuf_add(&text, request->manifest ? request->manifest : "");
    if (!strbuf_ok(&text))
        status = error_set(err, STATUS_NO_MEMORY, "cannot compare the manifest of rank %u",
                           request->rank);
    else if (manifest_compare(m->members[request->rank].manifest.text, request->rank, text.text,
                              request->rank, &report) > 0)
        status = error_set(err, STATUS_MISMATCH,
                           "rank %u joins job '%s', which runs, with other terms than before:\n%s",
                           request->rank, m->job, report.text);
    strbuf_release(&text);
    strbuf_release(&report);
    return status;
}

void membership_remove(struct membership *m, unsigned rank)
{
    m->members[rank].state = MEMBER_LEFT;
    m->joined--;
    m->left++;
}

void membership_rejoin(struct membership *m, unsigned rank, const char *peer)
{
    struct member *member = &m->members[rank];

    if (member->state == MEMBER_LEFT) {
        member->state = MEMBER_JOINED;
        m->left--;
        m->joined++;
    }
    (void)snprintf(member->peer, sizeof(member->peer), "%s", peer);
}

char *membership_manifest(const struct membership *m)
{
    return m->members[0].manifest.text + m->members[0].terms_bytes;
}

bool membership_is_complete(const struct membership *m)
{
    return m->joined == m->world_size;
}

enum status membership_compare(const struct membership *m, struct error *err)
{
    struct strbuf report = STRBUF_INIT;
    enum status status = STATUS_OK;
    size_t differences = 0;

    for (unsigned rank = 1; rank < m->world_size; rank++)
        differences += manifest_compare(m->members[0].manifest.text, 0,
                                        m->members[rank].manifest.text, rank, &report);
    if (differences > 0)
        status = error_set(err, STATUS_MISMATCH, "the ranks of job '%s' do not run the same:\n%s",
                           m->job, report.text);
    strbuf_release(&report);
    return status;
}

void membership_forget(struct membership *m, unsigned rank)
{
    if (m->members[rank].state != MEMBER_JOINED)
        return;
    m->members[rank].state = MEMBER_ABSENT;
    m->joined--;
}

enum status membership_check_leave(const struct membership *m, const char *job, unsigned rank,
                                   struct error *err)
{
    if (strcmp(m->job, job) != 0)
        return error_set(err, STATUS_UNAVAILABLE, "job '%s' is not served here, job '%s' is", job,
                         m->job);
    if (rank >= m->world_size || m->members[rank].state != MEMBER_JOINED)
        return error_set(err, STATUS_NOT_FOUND, "job '%s': rank %u is not a member", job, rank);
    return STATUS_OK;
}

unsigned membership_format_ranks(const struct membership *m,
                                 bool (*selected)(const void *user, unsigned rank),
                                 const void *user, struct strbuf *out)
{
    unsigned found = 0;

    for (unsigned rank = 0; rank < m->world_size; rank++) {
        if (!selected(user, rank))
            continue;
        if (found < LISTED_MAX)
            strbuf_addf(out, "%s%u", found ? ", " : "", rank);
        found++;
    }
    if (found > LISTED_MAX)
        strbuf_addf(out, " and %u more", found - LISTED_MAX);
    return found;
}

static bool is_absent(const void *user, unsigned rank)
{
    const struct membership *m = user;

    return m->members[rank].state == MEMBER_ABSENT;
}

void membership_format_missing(const struct membership *m, struct strbuf *out)
{
    struct strbuf ranks = STRBUF_INIT;
    unsigned missing = membership_format_ranks(m, is_absent, m, &ranks);

    strbuf_addf(out, "%u of %u ranks: %s %s missing", missing, m->world_size, ranks.text,
                missing == 1 ? "is" : "are");
    strbuf_release(&ranks);
}
