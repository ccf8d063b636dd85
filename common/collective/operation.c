/*
 * Names of operations and faults, and the factor from algorithm to bus bandwidth.
 */
#include "common/collective/operation.h"

const char *collective_call_name(enum collective_call call)
{
    static const char *const names[COLLECTIVE_CALL_COUNT] = {
        [COLLECTIVE_ALL_REDUCE] = "all_reduce",
        [COLLECTIVE_BROADCAST] = "broadcast",
        [COLLECTIVE_REDUCE] = "reduce",
        [COLLECTIVE_ALL_GATHER] = "all_gather",
        [COLLECTIVE_GATHER] = "gather",
        [COLLECTIVE_SCATTER] = "scatter",
        [COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
        [COLLECTIVE_ALL_TO_ALL] = "all_to_all",
        [COLLECTIVE_SEND] = "send",
        [COLLECTIVE_RECV] = "recv",
        [COLLECTIVE_BARRIER] = "barrier",
        [COLLECTIVE_CLOSE] = "close",
    };

    return (unsigned)call < COLLECTIVE_CALL_COUNT && names[call] ? names[call] : "?";
}

const char *fault_name(enum fault fault)
{
    static const char *const names[FAULT_COUNT] = {
        [FAULT_NONE] = "none",         [FAULT_DEAD] = "dead",
        [FAULT_STOPPED] = "stopped",   [FAULT_STALLED] = "stalled",
        [FAULT_SLOW] = "slow",         [FAULT_DESYNC] = "desynchronised",
        [FAULT_NETWORK] = "network",   [FAULT_FINISHED] = "finished",
        [FAULT_EXCLUDED] = "excluded", [FAULT_FAILED] = "failed",
    };

    return (unsigned)fault < FAULT_COUNT ? names[fault] : "?";
}

bool fault_is_loss(enum fault fault)
{
    return fault == FAULT_DEAD || fault == FAULT_STOPPED || fault == FAULT_NETWORK;
}

double collective_bus_factor(enum collective_call call, unsigned world_size)
{
    double others = world_size == 0 ? 0 : (double)(world_size - 1) / world_size;

    switch (call) {
    case COLLECTIVE_ALL_REDUCE:
        return 2.0 * others;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
        return others;
    default:
        return 1.0;
    }
}
