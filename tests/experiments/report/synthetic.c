/*
 * synthetic: writes the files of a run directory with printf; every step of a run has equal times
 * and the bytes of its formula.
 */
#include "tests/experiments/report/synthetic.h"

#include "common/base/file.h"
#include "common/base/strbuf.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define INPUT_NS     20000
#define OPTIMIZER_NS 60000
#define OTHER_NS     10000

static double bytes_per_step(const struct synthetic_run *run)
{
    if (strcmp(run->sync, "allreduce") == 0)
        return 2.0 * (run->ranks - 1) / run->ranks * SYNTHETIC_PARAMETER_BYTES;
    return strcmp(run->sync, "ps") == 0 ? SYNTHETIC_PARAMETER_BYTES : 0;
}

static void write_file(const char *path, const char *name, const struct strbuf *text)
{
    char file[4096];
    struct error err = {0};

    assert_ok(file_join(file, sizeof(file), path, name, &err));
    ck_assert(strbuf_ok(text));
    assert_ok(file_write_atomic(file, text->text, text->length, &err));
}

static void write_attempt(const struct synthetic_run *run, const char *path)
{
    struct strbuf text = STRBUF_INIT;

    strbuf_add(&text, "{\"schema\":1,\"title\":");
    strbuf_add_json(&text, run->title);
    strbuf_add(&text, ",\"mode\":");
    strbuf_add_json(&text, run->mode);
    strbuf_add(&text, ",\"label\":");
    strbuf_add_json(&text, run->label);
    strbuf_addf(&text, ",\"mode_index\":%u,\"repeat\":%u,\"order\":0,\"seed\":%u,\"outcome\":",
                run->mode_index, run->repeat, run->seed);
    strbuf_add_json(&text, run->outcome);
    strbuf_add(&text, ",\"command\":\"sparring launch\"}\n");
    write_file(path, "attempt.json", &text);
    strbuf_release(&text);
}

static void write_manifest(const struct synthetic_run *run, const char *path)
{
    struct strbuf text = STRBUF_INIT;

    strbuf_addf(&text,
                "{\"schema\":1,\"run\":\"r\",\"start\":\"2026-11-20T18:04:05Z\","
                "\"program\":\"sparring-worker 0.1.0\",\"git\":\"%s\",\"options\":{"
                "\"optimizer\":{\"value\":\"sgd\",\"origin\":\"default\"},"
                "\"threads\":{\"value\":1,\"origin\":\"--threads\"},"
                "\"batch-size\":{\"value\":%u,\"origin\":\"--batch-size\"},"
                "\"run-dir\":{\"value\":",
                run->commit, run->batch);
    strbuf_add_json(&text, path);
    strbuf_add(&text, ",\"origin\":\"--run-dir\"}");
    if (run->transport)
        strbuf_addf(&text, ",\"transport\":{\"value\":\"%s\",\"origin\":\"--transport\"}",
                    run->transport);
    if (run->checkpoint_every)
        strbuf_addf(&text,
                    ",\"checkpoint-dir\":{\"value\":\"c\",\"origin\":\"--checkpoint-dir\"},"
                    "\"checkpoint-every\":{\"value\":\"%s\",\"origin\":\"--checkpoint-every\"}",
                    run->checkpoint_every);
    strbuf_add(&text, "},\"host\":{\"name\":");
    strbuf_add_json(&text, run->host);
    if (run->network)
        strbuf_addf(&text, ",\"network\":\"%s\"", run->network);
    strbuf_addf(&text,
                ",\"cpu\":\"A processor\",\"cores\":8,\"load\":%u.25,"
                "\"kernel\":\"Linux 6.1\"},\"world_size\":%u,\"parameters\":101770,"
                "\"parameter_bytes\":%.0f,\"versions\":{}}\n",
                run->repeat, run->ranks, SYNTHETIC_PARAMETER_BYTES);
    write_file(path, "manifest.json", &text);
    strbuf_release(&text);
}

/* JSON has no NaN: null, as common/metrics writes it. */
static const char *loss_text(const struct synthetic_run *run, unsigned step, char text[32])
{
    double loss = run->loss * (1 - 0.5 * step / run->steps);

    if (!isfinite(loss))
        return "null";
    (void)snprintf(text, 32, "%.9g", loss);
    return text;
}

static void write_rank(const struct synthetic_run *run, const char *path, unsigned rank)
{
    struct strbuf text = STRBUF_INIT;
    char name[32];
    char loss[32];
    double bytes = bytes_per_step(run);

    strbuf_addf(&text, "{\"kind\":\"start\",\"rank\":%u,\"pid\":%u,\"host\":", rank, 100 + rank);
    strbuf_add_json(&text, run->host);
    strbuf_add(&text, "}\n");
    for (unsigned s = 0; s < run->steps; s++) {
        const bool is_shadowed = rank + 1 == run->ranks && s + run->shadowed >= run->steps;

        strbuf_addf(&text,
                    "{\"kind\":\"step\",\"step\":%u,\"epoch\":0,\"loss\":%s,\"samples\":%u,"
                    "\"step_ns\":%.0f,\"input_ns\":%d,\"compute_ns\":%.0f,\"exposed_comm_ns\":%.0f,"
                    "\"optimizer_ns\":%d,\"tx_payload_bytes\":%.0f,\"rx_payload_bytes\":%.0f}\n",
                    s, is_shadowed ? "null" : loss_text(run, s, loss), is_shadowed ? 0 : run->batch,
                    (run->compute_ms + run->comm_ms) * 1e6 + INPUT_NS + OPTIMIZER_NS + OTHER_NS,
                    INPUT_NS, run->compute_ms * 1e6, run->comm_ms * 1e6, OPTIMIZER_NS, bytes,
                    bytes);
        if (rank == 0 && (s + 1 == run->steps / 2 || s + 1 == run->steps))
            strbuf_addf(&text,
                        "{\"kind\":\"evaluation\",\"epoch\":%u,\"test_loss\":0.125,"
                        "\"test_accuracy\":%.9g}\n",
                        s + 1 == run->steps ? 2 : 1,
                        run->accuracy - (s + 1 == run->steps ? 0 : 0.05));
    }
    strbuf_addf(&text,
                "{\"kind\":\"end\",\"status\":\"ok\",\"steps\":%u,\"tx_wire_bytes\":%.0f,"
                "\"rx_wire_bytes\":%.0f,\"expected_tx_payload_bytes\":%.0f,"
                "\"expected_rx_payload_bytes\":%.0f,\"peak_rss_bytes\":%u,\"cpu_seconds\":0.5}\n",
                run->steps, (bytes + 100) * run->steps, (bytes + 100) * run->steps, bytes, bytes,
                41943040 + rank);
    (void)snprintf(name, sizeof(name), "rank%u.jsonl", rank);
    write_file(path, name, &text);
    strbuf_release(&text);
}

static void write_servers(const struct synthetic_run *run, const char *path)
{
    for (unsigned k = 0; k < run->servers; k++) {
        struct strbuf text = STRBUF_INIT;
        char name[32];
        double bytes = SYNTHETIC_PARAMETER_BYTES * run->ranks / run->servers * run->steps;

        strbuf_addf(&text,
                    "{\"kind\":\"start\",\"server\":%u,\"host\":\"node1\"}\n"
                    "{\"kind\":\"end\",\"status\":\"ok\",\"error\":\"\",\"rounds\":%u,"
                    "\"rx_payload_bytes\":%.0f,\"tx_payload_bytes\":%.0f,"
                    "\"peak_rss_bytes\":1000000,\"cpu_seconds\":0.25}\n",
                    k, run->steps, bytes, bytes);
        (void)snprintf(name, sizeof(name), "server%u.jsonl", k);
        write_file(path, name, &text);
        strbuf_release(&text);
    }
}

static void write_summary(const struct synthetic_run *run, const char *path)
{
    struct strbuf text = STRBUF_INIT;

    strbuf_addf(&text,
                "{\"schema\":1,\"status\":\"ok\",\"error\":\"\",\"test_accuracy\":%.9g,"
                "\"test_loss\":0.125,\"steps\":%u,\"epochs\":1,\"world_size\":%u,"
                "\"wall_seconds\":1.5,\"configuration\":{\"model\":\"%s\",\"data\":\"digits\","
                "\"sync\":\"%s\",\"backend\":\"%s\",\"servers\":%u,\"batch_size\":%u,\"lr\":0.05,"
                "\"seed\":%u,\"reduce\":\"fast\",\"ps_update\":\"server\",\"device\":\"cpu\"",
                run->accuracy, run->steps, run->ranks, run->model, run->sync, run->backend,
                run->servers, run->batch, run->seed);
    if (run->placement)
        strbuf_addf(&text, ",\"server_placement\":\"%s\"", run->placement);
    if (run->consistency)
        strbuf_addf(&text, ",\"consistency\":\"%s\"", run->consistency);
    strbuf_add(&text, "}}\n");
    write_file(path, "summary.json", &text);
    strbuf_release(&text);
}

const char *synthetic_write(const struct synthetic_run *run)
{
    const char *path = support_path(run->folder);
    struct error err = {0};

    assert_ok(file_make_folder(path, &err));
    if (run->mode)
        write_attempt(run, path);
    write_manifest(run, path);
    for (unsigned rank = 0; rank < run->ranks; rank++)
        write_rank(run, path, rank);
    write_servers(run, path);
    write_summary(run, path);
    return path;
}

struct synthetic_run synthetic_ring(const char *folder)
{
    return (struct synthetic_run){.folder = folder,
                                  .mode = "ring",
                                  .label = "ring all-reduce",
                                  .title = "A match",
                                  .outcome = "ok",
                                  .sync = "allreduce",
                                  .backend = "ring",
                                  .ranks = 2,
                                  .steps = 60,
                                  .compute_ms = 0.7,
                                  .comm_ms = 0.21,
                                  .loss = 2.3,
                                  .accuracy = 0.9625,
                                  .seed = 1,
                                  .batch = 64,
                                  .host = "node1",
                                  .commit = "abc1234",
                                  .model = "mlp:784-128-10"};
}

static struct synthetic_run synthetic_mode(unsigned mode)
{
    struct synthetic_run run = synthetic_ring(NULL);

    run.mode_index = mode;
    if (mode == 0)
        return run;
    run.mode = mode == 1 ? "ps-1" : mode == 2 ? "control" : "single";
    run.label = mode == 1   ? "parameter server (1 server)"
                : mode == 2 ? "no communication (control)"
                            : "one process";
    run.sync = mode == 1 ? "ps" : "local";
    run.backend = mode == 1 ? "grpc" : "none";
    run.servers = mode == 1;
    run.comm_ms = mode == 1 ? 0.63 : 0;
    if (mode == 3) {
        run.ranks = 1;
        run.steps = 120;
        run.compute_ms = 0.6;
    }
    return run;
}

const char *synthetic_experiment(const char *folder, unsigned repeats)
{
    for (unsigned m = 0; m < 4; m++) {
        for (unsigned r = 0; r < repeats; r++) {
            struct synthetic_run run = synthetic_mode(m);
            char path[256];

            (void)snprintf(path, sizeof(path), "%s/runs/%s-%u", folder, run.mode, r);
            run.folder = path;
            run.repeat = r;
            run.seed = 1 + r;
            run.compute_ms *= 1 + r / 100.0;
            run.comm_ms *= 1 + r / 100.0;
            (void)synthetic_write(&run);
        }
    }
    return support_path(folder);
}

void synthetic_replace(const char *path, const char *name, const char *text)
{
    struct strbuf content = STRBUF_INIT;

    strbuf_add(&content, text);
    write_file(path, name, &content);
    strbuf_release(&content);
}

void synthetic_append(const char *path, const char *name, const char *text)
{
    char file[4096];
    FILE *stream;
    struct error err = {0};

    assert_ok(file_join(file, sizeof(file), path, name, &err));
    stream = fopen(file, "ae");
    ck_assert_ptr_nonnull(stream);
    ck_assert_int_ge(fputs(text, stream), 0);
    ck_assert_int_eq(fclose(stream), 0);
}

void synthetic_remove(const char *path, const char *name)
{
    char file[4096];
    struct error err = {0};

    assert_ok(file_join(file, sizeof(file), path, name, &err));
    ck_assert_int_eq(unlink(file), 0);
}
