/*
 * Handling of each kind of message.  Called by the mesh's thread with the lock held.
 */
#include "common/base/clock.h"
#include "common/collective/mesh/mesh_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void receive_item(struct mesh *m, unsigned rank, const struct mesh_item *item)
{
    struct mesh_peer *p = &m->peers[rank];
    struct mesh_stored *stored;

    if (p->item_count >= MESH_ITEMS_MAX) {
        mesh_connection_ended(m, rank, EPROTO);
        return;
    }
    stored = malloc(sizeof(*stored));
    if (!stored)
        return; /* the exchange runs into its time-out and names this rank */
    stored->item = *item;
    stored->next = p->items;
    p->items = stored;
    p->item_count++;
}

static void send_reply(struct mesh *m, unsigned rank, const struct mesh_message *question)
{
    struct mesh_message message = {.kind = MESH_REPLY};
    struct mesh_reply *a = &message.reply;
    const struct mesh_group_state *state = mesh_find_group_state(m, question->group);

    a->question = question->number;
    a->status.group = question->group;
    a->known = state != NULL;
    if (state) {
        mesh_read_status(state, &a->status);
        if (state->left)
            a->status.phase = MESH_LEFT;
        a->status.since_ns = clock_now_ns() - a->status.since_ns;
    }
    if (question->trail_sequence > 0)
        mesh_read_trail(m, question->group, question->generation, question->trail_sequence,
                        &a->trail);
    mesh_send(m, rank, &message);
}

/* A late reply finds no question and is dropped. */
static void receive_reply(struct mesh *m, unsigned rank, const struct mesh_reply *a)
{
    struct mesh_question *q = m->questions;

    while (q && q->number != a->question)
        q = q->next;
    for (unsigned i = 0; q && i < q->count; i++) {
        if (q->ranks[i] != rank)
            continue;
        q->views[i].replied = true;
        if (!a->known || a->status.group != q->group)
            continue;
        q->views[i].status = a->status;
        q->views[i].status.since_ns = clock_now_ns() - a->status.since_ns;
        q->views[i].trail = a->trail;
    }
}

static void receive_leave(struct mesh *m, unsigned rank, const struct mesh_message *message)
{
    const size_t length = sizeof(m->leaves) / sizeof(m->leaves[0]);

    m->leaves[m->leave_count++ % length] = (struct mesh_leave){.group = message->group,
                                                               .generation = message->generation,
                                                               .rank = rank,
                                                               .sequence = message->number,
                                                               .hash = message->hash,
                                                               .at_ns = clock_now_ns()};
}

void mesh_receive(struct mesh *m, unsigned rank, const struct mesh_message *message)
{
    switch (message->kind) {
    case MESH_ALIVE:
        return; /* heard_ns is updated already */
    case MESH_GOODBYE:
        mesh_lose(m, rank, FAULT_FINISHED, "it has left the job in order");
        mesh_connection_ended(m, rank, 0); /* closing confirms the goodbye */
        break;
    case MESH_ITEM:
        receive_item(m, rank, &message->item);
        break;
    case MESH_ASK:
        send_reply(m, rank, message);
        return;
    case MESH_REPLY:
        receive_reply(m, rank, &message->reply);
        break;
    case MESH_LEAVE:
        receive_leave(m, rank, message);
        mesh_receive_trail(m, rank, message);
        mesh_monitor_groups(m, clock_now_ns());
        break;
    case MESH_TRAIL:
        mesh_receive_trail(m, rank, message);
        return; /* waiting operations get an alarm */
    case MESH_VERDICT:
        mesh_receive_verdict(m, rank, &message->verdict);
        break;
    case MESH_ACCEPT:
        mesh_receive_accept(m, rank, message);
        break;
    case MESH_SETTLE:
        mesh_receive_settle(m, message);
        break;
    case MESH_AGREE:
        mesh_receive_agree(m, rank, &message->agree);
        break;
    default:
        mesh_connection_ended(m, rank, EPROTO);
        break;
    }
    mesh_note_event(m);
}
