/*
 * task: the process is a child as launch has it: a session of its own that ends with the daemon.
 * The daemon has threads of gRPC's, so whatever the child needs (folder, variables) is set by `env`
 * after exec.
 */
#include "experiments/standby/task.h"

#include "common/base/log.h"
#include "experiments/standby/job.h"
#include "experiments/standby/standby.h"
#include "experiments/subprocess/temporary_folder.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECES_AT_ONCE 16 /* before the call's queue is looked at again */

void task_send(struct task *t, const struct standby_reply *reply)
{
    struct error err = {0};
    uint8_t *bytes = NULL;
    size_t size;

    if (wire_pack_standby_reply(reply, &bytes, &size, &err) != STATUS_OK)
        task_refuse(t, &err);
    else
        (void)rpc_call_send(t->call, bytes, size, NULL); /* fails once the call has ended */
    free(bytes);
}

void task_refuse(struct task *t, const struct error *why)
{
    t->state = TASK_OVER; /* before the client knows */
    log_warning("task %u of %s: %s", t->number, t->holder, why->text);
    rpc_call_finish(t->call, why->status, why->text);
}

enum status task_start(struct task *t, const struct task_settings *s,
                       const struct standby_request *request, struct error *err)
{
    char *const no_variables[] = {NULL};
    struct text_list words = {0};
    struct child_request child = {.kind = "task",
                                  .index = t->number,
                                  .variables = no_variables,
                                  .prefix = "",
                                  .mask = &s->mask,
                                  .orphan_reaper = &s->orphan_reaper};
    enum status status = temporary_folder_make("task", t->folder, sizeof(t->folder), err);

    if (status != STATUS_OK)
        return status;
    job_command(request, s->programs, t->folder, &s->keys, &words);
    child.argv = text_list_words(&words);
    if (!child.argv)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    else
        child.file = child.argv[0];
    if (status == STATUS_OK)
        status = child_start(&t->child, &child, err);
    text_list_release(&words);
    if (status != STATUS_OK)
        return status;
    t->state = TASK_RUNS;
    log_info("task %u of %s: %s, pid %ld", t->number, t->holder, request->program,
             (long)t->child.pid);
    return STATUS_OK;
}

static void close_output(struct output *o)
{
    if (o->fd >= 0)
        (void)close(o->fd);
    o->fd = -1;
}

/* What a pipe holds; true when that was all. */
static bool send_output(struct task *t, size_t index)
{
    struct output *o = &t->child.outputs[index];
    uint8_t data[WIRE_STANDBY_DATA_MAX];
    struct standby_reply reply = {.kind = index == 0 ? STANDBY_OUTPUT : STANDBY_ERRORS,
                                  .data = data};

    for (int i = 0; i < PIECES_AT_ONCE && o->fd >= 0; i++) {
        const ssize_t got = read(o->fd, data, sizeof(data));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return true;
        if (got <= 0)
            close_output(o);
        if (got <= 0)
            break;
        reply.size = (size_t)got;
        if (t->state == TASK_RUNS)
            task_send(t, &reply);
    }
    return o->fd < 0;
}

static void end_task(struct task *t)
{
    const struct standby_reply reply = {.kind = STANDBY_END, .code = (uint32_t)t->code};

    task_send(t, &reply);
    t->state = TASK_OVER;
    log_info("task %u of %s: ended, code %d", t->number, t->holder, t->code);
    rpc_call_finish(t->call, STATUS_OK, "");
}

static void send_files(struct task *t)
{
    struct standby_reply reply = {.kind = STANDBY_FILE};
    struct error err = {0};

    for (int i = 0; i < PIECES_AT_ONCE && t->state == TASK_SENDS; i++) {
        if (file_sender_next(t->sender, &reply, &err) != STATUS_OK)
            task_refuse(t, &err);
        else if (reply.kind == STANDBY_FILE)
            task_send(t, &reply);
        else
            end_task(t);
    }
}

/* No process is left. */
static void begin_to_send(struct task *t, const struct task_settings *s)
{
    struct error err = {0};

    orphan_reaper_forget(&s->orphan_reaper, t->child.pid);
    t->child.state = CHILD_GONE;
    t->code = child_exit_code(&t->child);
    if (t->state != TASK_RUNS)
        return;
    t->state = TASK_SENDS;
    if (file_sender_open(t->folder, &t->sender, &err) != STATUS_OK)
        task_refuse(t, &err);
}

/* Is the process itself at its end?  Then what it has started is killed. */
static void reap(struct task *t)
{
    siginfo_t info = {0};

    if (waitid(P_PID, (id_t)t->child.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
        return;
    child_reap(&t->child);
    child_signal(&t->child, SIGKILL);
}

void task_step(struct task *t, const struct task_settings *s)
{
    bool is_gone, is_drained;

    if (t->state != TASK_OVER && rpc_call_has_unsent(t->call))
        return; /* the client is slow: so is the task */
    if (t->child.state == CHILD_RUNNING)
        reap(t);
    if (child_is_active(&t->child)) {
        is_gone = t->child.state == CHILD_LEADER_ENDED && child_group_is_empty(&t->child);
        is_drained = send_output(t, 0);
        is_drained = send_output(t, 1) && is_drained;
        if (is_gone && is_drained)
            begin_to_send(t, s);
    }
    if (t->state == TASK_SENDS)
        send_files(t);
}

void task_stop(struct task *t)
{
    if (!t->is_stopped && t->state == TASK_RUNS)
        child_signal(&t->child, SIGTERM);
    t->is_stopped = true;
}

void task_kill(struct task *t)
{
    t->state = TASK_OVER;
    if (!t->is_killed)
        child_signal(&t->child, SIGKILL);
    t->is_killed = true;
}

void task_release(struct task *t)
{
    close_output(&t->child.outputs[0]);
    close_output(&t->child.outputs[1]);
    file_sender_close(t->sender);
    temporary_folder_remove(t->folder);
    wire_release_standby_request(&t->mailbox.request);
    rpc_call_unref(t->call);
}
