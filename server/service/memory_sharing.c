/*
 * What the service does with workers that hand their memory over: a rank of the running job, known
 * by the session of its join, gets the shard's memory for its own.
 */
#include "common/base/log.h"
#include "server/service/service_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* Lock held.  *ret_old is the caller's to let go. */
static enum status place(struct service *s, unsigned rank, struct worker_memory *memory,
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
    copy.fd = fcntl(copy.fd, F_DUPFD_CLOEXEC, 0); /* the job may end while it is on its way */
    if (copy.fd < 0)
        return error_set_errno(err, errno, "cannot give the shard's memory away");
    *ret_old = j->ranks[rank].memory;
    j->ranks[rank].memory = memory;
    *ret_memory = copy;
    return STATUS_OK;
}

static enum status take(void *user, unsigned rank, struct worker_memory *memory,
                        struct shared_memory *ret_memory, struct error *err)
{
    struct service *s = user;
    struct worker_memory *old = NULL;
    enum status status;

    (void)pthread_mutex_lock(&s->table.lock);
    status = place(s, rank, memory, &old, ret_memory, err);
    (void)pthread_mutex_unlock(&s->table.lock);
    worker_memory_unref(old);
    return status;
}

void memory_sharing_open(struct service *s)
{
    const struct fd_listener_config config = {.take = take, .user = s};
    struct error why = {0};

    host_id_find(NULL, s->host_id);
    if (fd_listener_open(&config, &s->fd_listener, &why) != STATUS_OK)
        log_warning("no memory is shared with workers of this host: %s", why.text);
}

bool memory_sharing_serves(const struct service *s, const struct join_request *request)
{
    return s->fd_listener && s->host_id[0] != '\0' && strcmp(request->arena, s->host_id) == 0;
}
