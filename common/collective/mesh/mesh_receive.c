/*
 * What each kind of message does.  Called by the mesh's thread with the lock held.
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

static void answer(struct mesh *m, unsigned rank, const struct mesh_message *question)
{
    struct mesh_message message = {.kind = MESH_ANSWER};
    struct mesh_answer *a = &message.answer;
    const struct mesh_slot *slot = mesh_find_slot(m, question->group);

    a->question = question->number;
    a->status.group = question->group;
    a->known = slot != NULL;
    if (slot) {
        mesh_read_status(slot, &a->status);
        if (slot->left)
            a->status.phase = MESH_LEFT;
        a->status.since_ns = clock_now_ns() - a->status.since_ns;
    }
    if (question->place > 0)
        mesh_read_trail(m, question->group, question->generation, question->place, &a->trail);
    mesh_send(m, rank, &message);
}

/* A late answer finds nobody who waits for it. */
static void receive_answer(struct mesh *m, unsigned rank, const struct mesh_answer *a)
{
    struct mesh_question *q = m->questions;

    while (q && q->number != a->question)
        q = q->next;
    for (unsigned i = 0; q && i < q->count; i++) {
        if (q->ranks[i] != rank)
            continue;
        q->views[i].answered = true;
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
        return; /* that it came is all it says */
    case MESH_GOODBYE:
        mesh_lose(m, rank, FAULT_FINISHED, "it has left the job in order");
        mesh_connection_ended(m, rank, 0); /* so that it knows that the goodbye came */
        break;
    case MESH_ITEM:
        receive_item(m, rank, &message->item);
        break;
    case MESH_ASK:
        answer(m, rank, message);
        return;
    case MESH_ANSWER:
        receive_answer(m, rank, &message->answer);
        break;
    case MESH_LEAVE:
        receive_leave(m, rank, message);
        mesh_receive_trail(m, rank, message);
        mesh_tend_groups(m, clock_now_ns());
        break;
    case MESH_TRAIL:
        mesh_receive_trail(m, rank, message);
        return; /* whoever waits is told by an alarm */
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
