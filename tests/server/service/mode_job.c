/*
 * Scripted workers for the consistency modes.  The learning rate is the world size where each push
 * is a step, else 1, so a push of 1 changes each value by an integer.  Failures end the test.
 */
#include "tests/server/service/mode_job.h"

#include "tests/support/support.h"

#include <sched.h>
#include <stdlib.h>

static struct error err;

struct join_request terms_of(const struct consistency *c, unsigned rank, unsigned world_size)
{
    struct join_request terms = raw_terms(rank);

    terms.world_size = world_size;
    terms.element_count = ELEMENTS;
    terms.update = 0;
    terms.order = 0;
    terms.consistency = *c;
    terms.optimizer.learning_rate = consistency_steps_per_push(c) ? world_size : 1;
    return terms;
}

void send_chunk(unsigned rank, enum chunk_kind kind, uint64_t round, float value)
{
    bool carries = kind == CHUNK_PUSH || kind == CHUNK_INIT;
    struct chunk_header header = {.kind = kind,
                                  .rank = rank,
                                  .round = round,
                                  .length = carries ? ELEMENTS * sizeof(float) : 0};

    raw_send(&workers[rank], &header, header.length, value);
}

void push(unsigned rank, uint64_t round, float value)
{
    send_chunk(rank, CHUNK_PUSH, round, value);
}

void expect(unsigned rank, uint64_t round, float value)
{
    float first;
    struct chunk_header h = raw_take(&workers[rank], &first);

    ck_assert_int_eq(h.kind, CHUNK_VALUES);
    ck_assert_uint_eq(h.rank, rank);
    ck_assert_msg(h.round == round && first == value,
                  "rank %u: got round %d, value %g; wanted round %d, value %g", rank, (int)h.round,
                  (double)first, (int)round, (double)value);
}

struct exact_staleness rules[4];
size_t rule_count;

void join_all(const struct consistency *c, unsigned world_size)
{
    for (unsigned i = 0; i < world_size; i++) {
        struct join_request terms = terms_of(c, i, world_size);

        terms.rules = rules;
        terms.rule_count = rule_count;
        raw_begin_join(&workers[i], &terms);
    }
    for (unsigned i = 0; i < world_size; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
}

void start_mode(const struct consistency *c, unsigned world_size)
{
    join_all(c, world_size);
    for (unsigned i = 0; i < world_size; i++) {
        raw_start_stream(&workers[i]);
        if (i == 0)
            send_chunk(0, CHUNK_INIT, 0, INITIAL);
        send_chunk(i, CHUNK_PULL, 0, 0);
    }
    for (unsigned i = 0; i < world_size; i++)
        expect(i, 0, INITIAL);
}

void leave(unsigned rank)
{
    check_result("leave", raw_leave(&workers[rank], "raw", ""), STATUS_OK, "");
    rpc_call_send_done(workers[rank].stream.call);
}

void wait_pushes(uint64_t pushes)
{
    uint64_t seen = 0;

    while (seen < pushes) {
        struct server_stats *stats = NULL;

        assert_ok(service_stats(service, &stats, &err));
        seen = stats->counters.pushes;
        free(stats);
        (void)sched_yield();
    }
}

json_t *end_record(void)
{
    FILE *file = fopen(support_path("server0.jsonl"), "r");
    char line[8192];
    json_t *last = NULL;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file)) {
        json_decref(last);
        last = json_loads(line, 0, NULL);
        ck_assert_ptr_nonnull(last);
    }
    (void)fclose(file);
    return last;
}

json_int_t number(const json_t *record, const char *key)
{
    const json_t *value = json_object_get(record, key);

    ck_assert_msg(json_is_integer(value), "no number '%s'", key);
    return json_integer_value(value);
}

json_int_t bucket(const json_t *record, size_t i)
{
    const json_t *pushes = json_object_get(record, "staleness_pushes");
    const json_t *bounds = json_object_get(record, "staleness_bounds");

    ck_assert_uint_eq(json_array_size(pushes), json_array_size(bounds) + 1);
    return json_integer_value(json_array_get(pushes, i));
}
