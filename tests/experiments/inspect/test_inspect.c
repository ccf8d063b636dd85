/*
 * Run directories with real flight recorders, written here operation by operation, so that every
 * line of the output is known: a good run, a killed rank, a stopped rank, a mismatch, a straggler,
 * damage.  Runs of real jobs: tests/integration/test_recovery.c.
 */
#include "tests/experiments/report/synthetic.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "experiments/inspect/inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 4

static struct error err;

/* A good run's files, and an open recorder for each rank. */
struct run_fixture {
    const char *path;
    struct flight *flights[RANKS];
};

static struct flight *open_flight(const char *path, unsigned rank)
{
    char name[4200];
    struct flight_config config = {.path = name, .rank = rank, .world_size = RANKS};
    struct flight *f;

    (void)snprintf(name, sizeof(name), "%s/flight-rank%u.bin", path, rank);
    assert_ok(flight_open(&config, &f, &err));
    return f;
}

static void open_fixture(struct run_fixture *s)
{
    struct synthetic_run run = synthetic_ring("run");

    run.ranks = RANKS;
    run.mode = NULL;
    s->path = synthetic_write(&run);
    for (unsigned r = 0; r < RANKS; r++)
        s->flights[r] = open_flight(s->path, r);
}

static void close_fixture(struct run_fixture *s)
{
    for (unsigned r = 0; r < RANKS; r++)
        flight_close(s->flights[r]);
}

static struct flight_entry all_reduce(uint64_t sequence)
{
    return (struct flight_entry){.signature = {.call = COLLECTIVE_ALL_REDUCE,
                                               .group = signature_group_id("ddp"),
                                               .generation = 1,
                                               .sequence = sequence,
                                               .count = 1000},
                                 .group = "ddp",
                                 .queued_ns = clock_now_ns(),
                                 .step = sequence - 1,
                                 .bucket = 2,
                                 .buckets = 5};
}

static size_t begin_operation(struct flight *f, const struct flight_entry *entry)
{
    size_t entry_index = flight_queue(f, entry);

    flight_start(f, entry_index, clock_now_ns());
    return entry_index;
}

/* Ranks [0, ranks) begin, then end, operation n. */
static void end_operation(struct run_fixture *s, unsigned ranks, uint32_t generation, uint64_t n)
{
    struct flight_entry entry = all_reduce(n);
    size_t entries[RANKS];

    entry.signature.generation = generation;
    for (unsigned r = 0; r < ranks; r++)
        entries[r] = begin_operation(s->flights[r], &entry);
    for (unsigned r = 0; r < ranks; r++)
        flight_end(s->flights[r], entries[r], true, 6000, 6000, clock_now_ns());
}

/* All ranks run operations [1, count]. */
static void end_operations(struct run_fixture *s, uint64_t count)
{
    for (uint64_t n = 1; n <= count; n++)
        end_operation(s, RANKS, 1, n);
}

static void inspect_run(const char *path, struct strbuf *text)
{
    struct evidence evidence;
    struct diagnosis diagnosis;
    struct inspect_view view = {
        .evidence = &evidence, .diagnosis = &diagnosis, .operations = 3, .rank = -1};

    assert_ok(evidence_read(path, &evidence, &err));
    assert_ok(diagnosis_make(&evidence, &diagnosis, &err));
    inspect_text(&view, text);
    strbuf_add(text, "\n");
    inspect_json(&view, text);
    diagnosis_release(&diagnosis);
    evidence_release(&evidence);
}

static void expect_text(const struct strbuf *text, const char *part)
{
    ck_assert_msg(strstr(text->text, part) != NULL, "no '%s' in:\n%.3000s", part, text->text);
}

static void expect_width(const struct strbuf *text)
{
    const char *json = strstr(text->text, "\n{");

    for (const char *line = text->text; line && line < json;) {
        const char *end = strchr(line, '\n');

        ck_assert_msg(end - line <= 80, "wide: %.*s", (int)(end - line), line);
        line = end + 1;
    }
}

START_TEST(test_good_run)
{
    struct strbuf text = STRBUF_INIT;
    struct run_fixture s;

    open_fixture(&s);
    end_operations(&s, 12);
    close_fixture(&s);
    inspect_run(s.path, &text);
    expect_text(&text, "mlp:784-128-10");
    expect_text(&text, "ok: all 4 ranks ended well");
    expect_text(&text, "newest 12 operations that all ranks ended");
    expect_text(&text, "all_reduce #10");
    expect_text(&text, "2/5");
    expect_text(&text, "\"ending\": \"ok\"");
    expect_text(&text,
                "Critical path of a step: 70 % computation, 21 % communication, 6 % optimizer");
    expect_text(&text, "\"computation\": {");
    ck_assert_ptr_null(strstr(text.text, "Missing"));
    ck_assert_ptr_null(strstr(text.text, "all_reduce #9"));
    ck_assert_ptr_null(strstr(text.text, "differ"));
    expect_width(&text);
    strbuf_release(&text);
}
END_TEST

/* The records of a rank that failed, or (reason NULL) left no end record. */
static void write_end(const struct run_fixture *s, unsigned rank, const char *reason)
{
    char name[32];
    char line[512];

    (void)snprintf(name, sizeof(name), "rank%u.jsonl", rank);
    (void)snprintf(line, sizeof(line), "{\"kind\":\"start\",\"rank\":%u,\"host\":\"elsewhere\"}\n",
                   rank);
    synthetic_replace(s->path, name, line);
    (void)snprintf(line, sizeof(line),
                   "{\"kind\":\"end\",\"status\":\"PEER_LOST\",\"error\":\"%s\"}\n",
                   reason ? reason : "");
    if (reason)
        synthetic_append(s->path, name, line);
}

/* The records of a failed run: no end record of the victim, an error in those of the others. */
static void write_ends(const struct run_fixture *s, unsigned victim, const char *reason)
{
    synthetic_remove(s->path, "summary.json");
    for (unsigned r = 0; r < RANKS; r++)
        write_end(s, r, r == victim ? NULL : reason);
}

static void fail_rank(struct run_fixture *s, unsigned rank, const struct flight_entry *entry,
                      enum fault fault, int culprit, const char *reason)
{
    size_t entry_index = begin_operation(s->flights[rank], entry);

    flight_end(s->flights[rank], entry_index, false, 1000, 6000, clock_now_ns());
    flight_fail(s->flights[rank], fault, culprit, reason);
}

START_TEST(test_killed_rank)
{
    struct strbuf text = STRBUF_INIT;
    struct flight_entry entry = all_reduce(8);
    struct run_fixture s;

    open_fixture(&s);
    end_operations(&s, 7);
    flight_progress(s.flights[2], begin_operation(s.flights[2], &entry), 1200000, 26200000);
    for (unsigned r = 0; r < RANKS; r++)
        if (r != 2)
            fail_rank(&s, r, &entry, FAULT_DEAD, 2, "rank 2 is dead: its connection closed");
    close_fixture(&s);
    write_ends(&s, 2, "rank 2 is dead");
    inspect_run(s.path, &text);
    expect_text(&text,
                "FAILED: rank 2 died in all_reduce #8 (bucket 2 of 5, 1.2 of 26.2 MB); ranks 0, 1\n"
                "and 3 waited 0.0");
    expect_text(&text, "rank 0: rank 2 is dead: its connection closed");
    expect_text(&text, "\"culprit\": 2");
    expect_text(&text, "\"fault\": \"dead\"");
    expect_width(&text);
    strbuf_release(&text);
}
END_TEST

/* Without rank 2 the others went on to the end, and (_i 1) rank 3 failed later. */
START_TEST(test_lost_rank)
{
    static const char recovery[] = "{\"kind\":\"recovery\",\"lost_ranks\":\"2\"}\n";
    struct strbuf text = STRBUF_INIT;
    struct flight_entry entry = all_reduce(8);
    struct run_fixture s;

    open_fixture(&s);
    end_operations(&s, 7);
    fail_rank(&s, 0, &entry, FAULT_DEAD, 2, "rank 2 is dead");
    fail_rank(&s, 2, &entry, FAULT_EXCLUDED, 2, "the others went on");
    end_operation(&s, 2, 2, 1); /* of the group without it */
    close_fixture(&s);
    write_end(&s, 2, NULL);
    synthetic_append(s.path, "rank0.jsonl", recovery);
    if (_i == 1)
        write_end(&s, 3, "disk full");
    inspect_run(s.path, &text);
    expect_text(&text, _i == 0 ? "ok after a loss: without rank 2" : "rank 3: disk full");
    ck_assert_ptr_null(strstr(text.text, "FAILED: rank 2"));
    ck_assert_ptr_null(strstr(text.text, " waited 0."));
    strbuf_release(&text);
}
END_TEST

START_TEST(test_stopped_rank)
{
    struct strbuf text = STRBUF_INIT;
    struct flight_entry entry = all_reduce(8);
    struct run_fixture s;

    open_fixture(&s);
    end_operations(&s, 7);
    for (unsigned r = 0; r < 3; r++)
        fail_rank(&s, r, &entry, FAULT_STOPPED, 3, "rank 3 is stopped");
    close_fixture(&s);
    write_ends(&s, 3, "rank 3 is stopped");
    inspect_run(s.path, &text);
    expect_text(&text,
                "FAILED: rank 3 was stopped before all_reduce #8 (bucket 2 of 5, 1.0 of 6.0 kB)");
    strbuf_release(&text);
}
END_TEST

START_TEST(test_mismatch)
{
    struct strbuf text = STRBUF_INIT;
    struct flight_entry entry = all_reduce(8);
    struct flight_entry other = entry;
    struct run_fixture s;

    other.signature.call = COLLECTIVE_BROADCAST;
    other.signature.root = 1;
    open_fixture(&s);
    end_operations(&s, 7);
    for (unsigned r = 0; r < RANKS; r++)
        fail_rank(&s, r, r == 3 ? &other : &entry, FAULT_DESYNC, 3, "rank 3 runs a broadcast");
    close_fixture(&s);
    write_ends(&s, RANKS, "rank 3 runs a broadcast");
    inspect_run(s.path, &text);
    expect_text(&text, "rank 3 was in another operation in broadcast #8");
    expect_text(&text, "First operation in which ranks differ (group 'ddp')");
    expect_text(&text, "rank 0: all_reduce #8 of 1000 float32 (sum), step 7");
    expect_text(&text, "rank 3: broadcast #8 of 1000 float32 from rank 1, step 7");
    expect_width(&text);
    strbuf_release(&text);
}
END_TEST

/* Rank 1 begins each operation when the clock has moved after the others began theirs. */
START_TEST(test_straggler)
{
    struct strbuf text = STRBUF_INIT;
    struct run_fixture s;

    open_fixture(&s);
    for (uint64_t n = 1; n <= 20; n++) {
        static const unsigned order[RANKS] = {0, 2, 3, 1};
        struct flight_entry entry = all_reduce(n);
        size_t entry_indexes[RANKS];

        for (unsigned i = 0; i < RANKS; i++)
            entry_indexes[order[i]] = begin_operation(s.flights[order[i]], &entry);
        for (unsigned r = 0; r < RANKS; r++)
            flight_end(s.flights[r], entry_indexes[r], true, 6000, 6000, clock_now_ns());
    }
    close_fixture(&s);
    inspect_run(s.path, &text);
    expect_text(&text, "\"caused_ms\"");
    expect_text(&text, "   1       0.00           20");
    expect_text(&text, "Most of the waiting is for rank 1.");
    strbuf_release(&text);
}
END_TEST

START_TEST(test_missing_and_damaged)
{
    struct strbuf text = STRBUF_INIT;
    struct run_fixture s;
    char path[4200];

    open_fixture(&s);
    end_operations(&s, 3);
    close_fixture(&s);
    synthetic_remove(s.path, "manifest.json");
    synthetic_remove(s.path, "rank1.jsonl");
    synthetic_append(s.path, "rank2.jsonl", "{\"kind\": nonsense}\n");
    (void)snprintf(path, sizeof(path), "%s/flight-rank3.bin", s.path);
    ck_assert_int_eq(truncate(path, 5000), 0);
    inspect_run(s.path, &text);
    expect_text(&text, "no readable manifest.json");
    expect_text(&text, "rank 1 left no records (no rank1.jsonl)");
    expect_text(&text, "rank2.jsonl:");
    expect_text(&text, "is cut off: 5000 bytes of");
    expect_text(&text, "rank 3 has no readable flight recorder");
    expect_text(&text, "newest 3 operations"); /* of the others */
    expect_text(&text, "rank 1 is gone without a word after all_reduce #3");
    strbuf_release(&text);
}
END_TEST

START_TEST(test_not_a_run)
{
    struct evidence e;

    assert_fails(evidence_read(support_folder(), &e, &err), STATUS_NOT_FOUND, "holds no run");
    assert_fails(evidence_read(support_path("none"), &e, &err), STATUS_NOT_FOUND, "none");
}
END_TEST

static int run_command(const char *const *words)
{
    char *words_given[8];
    char *argv[8] = {0};
    int argc = 0;
    int code;

    for (; words[argc]; argc++)
        argv[argc] = strdup(words[argc]);
    memcpy(words_given, argv, sizeof(argv)); /* the command may move them */
    code = inspect_main(argc, argv);
    for (int i = 0; i < argc; i++)
        free(words_given[i]);
    return code;
}

/* The events of the trace of a run; the caller releases them. */
static json_t *trace_of(const char *run)
{
    const char *trace = support_path("trace.json");
    char *bytes;
    size_t size;
    json_t *root, *events;

    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
    ck_assert_int_eq(run_command(ARGS("inspect", run, "--trace", trace)), 0);
    assert_ok(file_read(trace, 1 << 22, &bytes, &size, &err));
    root = json_loadb(bytes, size, 0, NULL);
    ck_assert_ptr_nonnull(root);
    events = json_incref(json_object_get(root, "traceEvents"));
    json_decref(root);
    free(bytes);
    return events;
}

static bool has_text(const json_t *event, const char *member, const char *wanted)
{
    const char *text = json_string_value(json_object_get(event, member));

    return text && strcmp(text, wanted) == 0;
}

static size_t count_events(const json_t *events, const char *member, const char *wanted)
{
    size_t index, count = 0;
    json_t *event;

    json_array_foreach(events, index, event)
    {
        count += has_text(event, member, wanted);
    }
    return count;
}

static double number(const json_t *event, const char *member)
{
    return json_number_value(json_object_get(event, member));
}

/* Every arrow has two ends, the first not later than the second, with the same name; returns how
 * many of that name there are. */
static size_t check_arrows(const json_t *events, const char *name)
{
    size_t index, count = 0;
    json_t *event;
    const json_t *from = NULL;

    json_array_foreach(events, index, event)
    {
        if (has_text(event, "ph", "s")) {
            ck_assert_ptr_null(from);
            from = event;
        } else if (has_text(event, "ph", "f")) {
            ck_assert_ptr_nonnull(from);
            ck_assert(number(from, "id") == number(event, "id"));
            ck_assert(number(from, "ts") <= number(event, "ts"));
            count += has_text(from, "name", name) && has_text(event, "name", name);
            from = NULL;
        }
    }
    ck_assert_ptr_null(from);
    return count;
}

/* After a loss the group counts its operations from 1 again: no rank waits in those of before. */
START_TEST(test_trace_of_generations)
{
    struct run_fixture s;
    json_t *events;

    open_fixture(&s);
    end_operation(&s, RANKS, 1, 1);
    end_operation(&s, RANKS - 1, 2, 1);
    close_fixture(&s);
    events = trace_of(s.path);
    ck_assert_uint_eq(count_events(events, "cat", "all_reduce"), RANKS + RANKS - 1);
    ck_assert_uint_eq(check_arrows(events, "all wait for the last"), RANKS - 1 + RANKS - 2);
    json_decref(events);
}
END_TEST

/* Steps of 10 ms: 1 of input, 2 forward, 3 backward, 3 waiting for the server, whose round is
 * complete 8 ms after the step began, and 0.5 optimizer. */
START_TEST(test_trace_of_servers)
{
    const unsigned steps = 60;
    struct synthetic_run run = synthetic_ring("ps");
    struct strbuf text = STRBUF_INIT;
    const char *path;
    json_t *events;

    run.sync = "ps";
    run.mode = NULL;
    run.servers = 1;
    run.ranks = 2;
    run.steps = steps;
    path = synthetic_write(&run);
    for (unsigned r = 0; r < 2; r++) {
        for (unsigned s = 0; s < steps; s++)
            strbuf_addf(&text,
                        "{\"kind\":\"step\",\"step\":%u,\"epoch\":0,\"loss\":1,\"samples\":4,"
                        "\"begin_wall\":%.6f,\"step_ns\":9500000,\"input_ns\":1000000,"
                        "\"compute_ns\":5000000,\"forward_ns\":2000000,"
                        "\"exposed_comm_ns\":3000000,\"optimizer_ns\":500000,"
                        "\"tx_payload_bytes\":8,\"rx_payload_bytes\":8}\n",
                        s, 1.8e9 + s * 0.01);
        strbuf_addf(&text, "{\"kind\":\"end\",\"status\":\"ok\",\"steps\":%u}\n", steps);
        synthetic_replace(path, r == 0 ? "rank0.jsonl" : "rank1.jsonl", text.text);
        strbuf_reset(&text);
    }
    strbuf_add(&text, "{\"kind\":\"start\",\"server\":0,\"host\":\"a\",\"partitions\":1}\n");
    for (unsigned s = 0; s < steps; s++)
        strbuf_addf(&text,
                    "{\"kind\":\"round\",\"round\":%u,\"begin_wall\":%.6f,"
                    "\"round_ns\":2000000,\"sum_ns\":1000000,\"wait_ns\":1000000}\n",
                    s + 1, 1.8e9 + s * 0.01 + 0.006);
    strbuf_add(&text, "{\"kind\":\"end\",\"status\":\"ok\",\"error\":\"\"}\n");
    synthetic_replace(path, "server0.jsonl", text.text);
    strbuf_release(&text);

    events = trace_of(path);
    ck_assert_uint_eq(count_events(events, "cat", "step"), 2 * steps);
    ck_assert_uint_eq(count_events(events, "cat", "part"), 2 * steps * 5);
    ck_assert_uint_eq(count_events(events, "cat", "round"), steps);
    ck_assert_uint_eq(check_arrows(events, "push"), 2 * steps);
    ck_assert_uint_eq(check_arrows(events, "pull"), 2 * steps);
    json_decref(events);
}
END_TEST

START_TEST(test_command)
{
    struct run_fixture s;
    json_t *events;

    open_fixture(&s);
    end_operations(&s, 5);
    close_fixture(&s);
    events = trace_of(s.path);
    ck_assert_uint_eq(count_events(events, "cat", "all_reduce"), 5 * RANKS);
    ck_assert_uint_eq(check_arrows(events, "all wait for the last"), 5 * (RANKS - 1));
    json_decref(events);
    ck_assert_int_eq(run_command(ARGS("inspect")), 2);
    ck_assert_int_eq(run_command(ARGS("inspect", s.path, "--rank", "4")), 2);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("inspect", 60, TEST(test_good_run), TEST(test_killed_rank),
                       LOOP_TEST(test_lost_rank, 0, 2), TEST(test_stopped_rank),
                       TEST(test_mismatch), TEST(test_straggler), TEST(test_missing_and_damaged),
                       TEST(test_not_a_run), TEST(test_trace_of_servers),
                       TEST(test_trace_of_generations), TEST(test_command));
}
