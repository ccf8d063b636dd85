#include "tests/common/wire/wire_example.h"

static char manifest[] = "model\tmlp:784-128-10\nseed\t1\n";
static uint32_t weights[] = {6, 6, 14, 0};

struct join_request example_join(void)
{
    return (struct join_request){
        .job = "run-7",
        .rank = 2,
        .world_size = 4,
        .server_index = 1,
        .server_count = 2,
        .manifest = manifest,
        .element_count = 1ull << 40,
        .partition_bytes = 1 << 20,
        .update = 1,
        .order = 1,
        .optimizer = {.kind = OPTIMIZER_ADAMW,
                      .learning_rate = 1e-3,
                      .momentum = 0.9,
                      .dampening = 0.1,
                      .nesterov = true,
                      .weight_decay = 1e-2,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .epsilon = 1e-8},
        .session = UINT64_MAX - 1,
        .lanes = 4,
        .in_order = 1,
        .resume = 1,
        .follows = 1,
        .round = 1ull << 33,
        .attempt = 1ull << 34,
        .on_loss = WORKER_LOSS_WAIT,
        .reconnect_ms = 2000,
        .heartbeat_ms = 500,
        .heartbeat_timeout_ms = 3000,
        .replica = "[::1]:5758",
        .dtype_up = CODEC_ONE_BIT,
        .dtype_down = CODEC_BF16,
        .top_k_ppm = 10000,
        .steps_before = WIRE_STEPS_MAX,
        .weights = weights,
        .weight_count = 4,
        .host_id = "sparring-1-2",
    };
}

static uint64_t some_clocks[WIRE_RANKS_MAX], some_sessions[WIRE_RANKS_MAX];
static uint8_t some_flags[WIRE_RANKS_MAX];

struct wire_record record_room(void)
{
    return (struct wire_record){.clocks = some_clocks,
                                .clock_count = WIRE_RANKS_MAX,
                                .flags = some_flags,
                                .flag_count = WIRE_RANKS_MAX,
                                .sessions = some_sessions,
                                .session_count = WIRE_RANKS_MAX};
}
