/*
 * probe: finds out why a server could not be reached.
 *
 * A call that waits for its connection ends with only "deadline exceeded".  A second call on the
 * same channel that does not wait fails at once with core's last connection error ("connection
 * refused", a failed handshake), which the user needs.  It runs on the queue's thread like every
 * operation of its call, and delays `closed` by at most PROBE_MS.
 */
#include "common/rpc/call.h"

#include <grpc/slice.h>
#include <stdlib.h>

#define PROBE_MS 50

struct rpc_probe {
    struct rpc_tag tag;
    struct rpc_call *call; /* stays open until the probe ends: in_flight counts it */
    grpc_call *grpc;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
};

static void probe_done(struct rpc_tag *tag, bool ok)
{
    struct rpc_probe *probe = tag->owner;
    struct rpc_call *call = probe->call;

    (void)ok; /* always true: the status has the outcome */
    if (probe->code == GRPC_STATUS_UNAVAILABLE) {
        grpc_slice_unref(call->details);
        call->details = grpc_slice_ref(probe->details);
    }
    grpc_slice_unref(probe->details);
    grpc_metadata_array_destroy(&probe->initial);
    grpc_metadata_array_destroy(&probe->trailing);
    grpc_call_unref(probe->grpc);
    free(probe);
    (void)pthread_mutex_lock(&call->batch_lock);
    call->in_flight--;
    (void)pthread_mutex_unlock(&call->batch_lock);
    rpc_call_advance_or_close(call);
}

void rpc_probe_start(struct rpc_call *call)
{
    grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                      {.op = GRPC_OP_RECV_INITIAL_METADATA},
                      {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(PROBE_MS, GPR_TIMESPAN));
    struct rpc_probe *probe = calloc(1, sizeof(*probe));

    if (!probe)
        return; /* the error text then lacks the reason */
    probe->tag = (struct rpc_tag){probe_done, probe};
    probe->call = call;
    probe->grpc = grpc_channel_create_call(
        call->channel, NULL, GRPC_PROPAGATE_DEFAULTS, call->queue->grpc,
        grpc_slice_from_static_string(RPC_HEALTH_CHECK), NULL, deadline, NULL);
    grpc_metadata_array_init(&probe->initial);
    grpc_metadata_array_init(&probe->trailing);
    probe->details = grpc_empty_slice();
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &probe->initial;
    ops[2].data.recv_status_on_client.trailing_metadata = &probe->trailing;
    ops[2].data.recv_status_on_client.status = &probe->code;
    ops[2].data.recv_status_on_client.status_details = &probe->details;
    if (grpc_call_start_batch(probe->grpc, ops, 3, &probe->tag, NULL) == GRPC_CALL_OK) {
        call->in_flight++;
    } else {
        grpc_call_unref(probe->grpc);
        free(probe);
    }
}
