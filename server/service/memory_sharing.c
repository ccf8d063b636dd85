/*
 * Shared memory between the running job and its workers on this host: a worker, identified by the
 * session of its join, sends the descriptor of its memory and gets the shard's in return.
 *
 * Locking: accept_memory runs on the listener's thread and takes the table's lock; the previous
 * memory of the rank is released after unlock.
 */
#include "common/base/log.h"
#include "server/service/service_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* Lock held.  The caller releases *ret_old. */
static enum status attach_memory(struct service *s, unsigned rank, struct worker_memory *memory,
                                 struct worker_memory **ret_old, struct shared_memory *ret_memory,
                                 struct error *err)
{
    struct job *j = s->table.current;
    struct shared_memory copy;

    if (!j || j->state != JOB_RUNNING || !j->shard.reply_memory.base ||
        rank >= j->members.world_size || memory->session == 0 ||
        j->ranks[rank].session.id != memory->session)
        return error_set(err, STATUS_NOT_FOUND, "rank %u is not here", rank);
    copy = j->shard.reply_memory;
    copy.fd = fcntl(copy.fd, F_DUPFD_CLOEXEC, 0); /* a copy: the job may end before it is sent */
    if (copy.fd < 0)
        return error_set_errno(err, errno, "cannot give the shard's memory away");
    *ret_old = j->ranks[rank].memory;
    j->ranks[rank].memory = worker_memory_ref(memory);
    *ret_memory = copy;
    return STATUS_OK;
}

static enum status accept_memory(void *user, unsigned rank, struct worker_memory *memory,
                                 struct shared_memory *ret_memory, struct error *err)
{
    struct service *s = user;
    struct worker_memory *old = NULL;
    enum status status;

    (void)pthread_mutex_lock(&s->table.lock);
    status = attach_memory(s, rank, memory, &old, ret_memory, err);
    (void)pthread_mutex_unlock(&s->table.lock);
    worker_memory_unref(old);
    return status;
}

/* Is the memory the rank's newest, without a channel, and not used by a stream yet, which would
 * have taken the channel?  Lock held. */
static bool is_before_streams(const struct service *s, unsigned rank,
                              const struct worker_memory *memory)
{
    const struct job *j = s->table.current;

    return j && rank < j->members.world_size && j->ranks[rank].memory == memory &&
           !memory->channel && !j->ranks[rank].session.streams[0];
}

static enum status accept_channel(void *user, unsigned rank, struct worker_memory *memory,
                                  struct channel *channel, int *ret_bell_fd, struct error *err)
{
    struct service *s = user;
    enum status status = channel_threads_start(s->channel_threads, rank, ret_bell_fd, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->table.lock);
    if (!is_before_streams(s, rank, memory))
        status = error_set(err, STATUS_NOT_FOUND, "rank %u cannot send a channel now", rank);
    else
        memory->channel = channel;
    (void)pthread_mutex_unlock(&s->table.lock);
    return status;
}

void memory_sharing_open(struct service *s, unsigned threads)
{
    const struct fd_listener_config config = {
        .accept_memory = accept_memory, .accept_channel = accept_channel, .user = s};
    struct error why = {0};

    host_id_find(NULL, s->host_id);
    if (channel_threads_open(threads, &s->channel_threads, &why) != STATUS_OK)
        log_warning("%s", why.text);
    else if (fd_listener_open(&config, &s->fd_listener, &why) != STATUS_OK)
        log_warning("no memory is shared with workers of this host: %s", why.text);
}

bool memory_sharing_is_possible(const struct service *s, const struct join_request *request)
{
    return s->fd_listener && s->host_id[0] != '\0' && strcmp(request->host_id, s->host_id) == 0;
}
