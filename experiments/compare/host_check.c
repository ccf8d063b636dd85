/*
 * host_check: a shell on every host prints what stands for its programs, its time and the ticks of
 * its processors; then a short job of one rank on each sends 4 MiB around a ring.
 */
#include "experiments/compare/host_check.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/base/strbuf.h"
#include "common/metrics/metrics.h"
#include "experiments/cluster/host_load.h"
#include "experiments/report/run.h"
#include "experiments/subprocess/subprocess.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND_MS    60000 /* longest step on the hosts */
#define PERIOD_MS     60000 /* from one check to the next */
#define PATIENCE_MS   60000 /* while something is wrong */
#define PAUSE_MS      2000  /* meanwhile */
#define LOG_BYTES_MAX ((size_t)1 << 20)

#define BUSY_MAX     0.2 /* of the processors, by others */
#define CLOCK_MAX_S  1.0
#define LINK_MIN     0.75 /* of the first check's */
#define LINK_STEPS   12
#define LINK_SKIPPED 4 /* of these: connections warm up */

/* Its arguments: the folder of the programs, and a file to see. */
static const char script[] =
    "test -e \"$1\" || { echo \"does not see $1\"; exit 1; }; " ENGINE_PROBE_SCRIPT;

/* What one check found. */
struct found {
    double busy;       /* the largest share of a host's processors */
    double clock_s;    /* the largest lead of a host's clock over ours, or lag; at least so much */
    double link_gbit;  /* NaN: there is only one host */
    char problem[256]; /* "": none */
};

/* ---- commands */

/* Run a command; *ret is what it printed, owned, and also in a file of the folder `out`. */
static enum status run_command(const struct host_check *c, struct text_list *words,
                               const char *file, char **ret, struct error *err)
{
    char path[4096];
    struct subprocess_request request = {.log_path = path, .timeout_ms = COMMAND_MS};
    struct subprocess_result result = {.outcome = SUBPROCESS_EXITED};
    size_t size;
    enum status status = file_join(path, sizeof(path), c->out, file, err);

    *ret = NULL;
    request.argv = (const char *const *)text_list_words(words);
    if (status == STATUS_OK && !request.argv)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    if (status == STATUS_OK)
        status = subprocess_run(&request, &result, err);
    if (status == STATUS_OK && result.outcome == SUBPROCESS_STOPPED)
        return error_set(err, STATUS_CANCELLED, "stopped before the next run");
    if (status == STATUS_OK && result.outcome == SUBPROCESS_TIMED_OUT)
        return error_set(err, STATUS_TIMEOUT, "the hosts have not answered after %d s, see '%s'",
                         COMMAND_MS / 1000, path);
    return status == STATUS_OK ? file_read(path, LOG_BYTES_MAX, ret, &size, err) : status;
}

/* The line of task `index` ("3: ..."), without its number; "": it printed none. */
static void line_of(const char *text, size_t index, char *line, size_t size)
{
    char *end;

    line[0] = '\0';
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') {
        if (strtoul(text, &end, 10) != index || end == text || *end != ':')
            continue;
        end += strspn(end, ": ");
        (void)snprintf(line, size, "%.*s", (int)strcspn(end, "\n"), end);
    }
}

/* ---- programs, clocks, load */

/* The first two numbers of a line. */
static void read_programs(const char *line, char *text, size_t size)
{
    const size_t first = strcspn(line, " \n");
    const size_t second = line[first] == ' ' ? 1 + strcspn(line + first + 1, " \n") : 0;

    (void)snprintf(text, size, "%.*s", (int)(first + second), line);
}

/* ": " and the first line that is no host's answer; "": there is none. */
static void complaint_of(const char *text, char *complaint, size_t size)
{
    complaint[0] = '\0';
    for (; *text && complaint[0] == '\0'; text += strcspn(text, "\n"), text += *text == '\n') {
        const char *label = text + strspn(text, "0123456789");
        const char *line = label > text && *label == ':' ? label + strspn(label, ": ") : text;

        if (strspn(line, "0123456789\n") == 0)
            (void)snprintf(complaint, size, ": %.*s", (int)strcspn(line, "\n"), line);
    }
}

static enum status check_programs(const struct host_check *c, const char *host, const char *line,
                                  const char *printed, struct error *err)
{
    char programs[sizeof(c->expected)], complaint[256];

    read_programs(line, programs, sizeof(programs));
    if (strncmp(line, "does not see", 12) == 0)
        return error_set(err, STATUS_CONFIG,
                         "host %s %s: --out must be a folder that all hosts share", host, line);
    if (strspn(line, "0123456789") == 0) {
        complaint_of(printed, complaint, sizeof(complaint));
        return error_set(err, STATUS_CONFIG, "host %s did not answer%s ('%s/hosts.log')", host,
                         complaint, c->out);
    }
    if (strcmp(programs, c->expected) != 0)
        return error_set(err, STATUS_CONFIG,
                         "host %s has other programs than this one, or none: see '%s/hosts.log'",
                         host, c->out);
    return STATUS_OK;
}

/* The rest of the line, which was printed between two moments of this host's clock. */
static void read_state(const struct host_check *c, const char *host, const char *line, double began,
                       double ended, struct found *found)
{
    const char *before = strstr(line, " cpu ");
    const char *after = before ? strstr(before + 1, " cpu ") : NULL;
    const double now = strtod(line + strlen(c->expected), NULL);
    const double lead = now < began ? now - began : now > ended ? now - ended : 0;
    struct host_load load = {.busy = 0};

    if (after)
        (void)host_load_read(before + 1, after + 1, &load);
    if (load.busy > found->busy)
        found->busy = load.busy;
    if (fabs(lead) > fabs(found->clock_s))
        found->clock_s = lead;
    if (load.busy > BUSY_MAX)
        (void)snprintf(found->problem, sizeof(found->problem),
                       "others use %.0f %% of the processors of host %s", 100 * load.busy, host);
    if (fabs(lead) > CLOCK_MAX_S)
        (void)snprintf(found->problem, sizeof(found->problem),
                       "the clock of host %s is %.1f s %s this host's (NTP)", host, fabs(lead),
                       lead > 0 ? "ahead of" : "behind");
}

/* Run the script on some of the hosts, in one step. */
static enum status probe_some(const struct host_check *c, const struct engine_step *step,
                              struct found *found, struct error *err)
{
    const double began = clock_wall_seconds();
    struct text_list words = {0};
    char *printed = NULL;
    double ended;
    enum status status;

    c->experiment->engine->add_command(step, &words);
    status = run_command(c, &words, "hosts.log", &printed, err);
    ended = clock_wall_seconds();
    for (size_t i = 0; i < step->length && status == STATUS_OK && printed; i++) {
        char line[4200];

        (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(printed, "\n"), printed);
        if (step->is_labelled)
            line_of(printed, i, line, sizeof(line));
        status = check_programs(c, step->hosts[i], line, printed, err);
        if (status == STATUS_OK)
            read_state(c, step->hosts[i], line, began, ended, found);
    }
    free(printed);
    text_list_release(&words);
    return status;
}

static enum status probe(struct host_check *c, struct found *found, struct error *err)
{
    const struct engine *engine = c->experiment->engine;
    struct engine_step step = {.is_labelled = !engine->has_single_tasks};
    struct text_list program = {0};
    char seen[4096], *printed = NULL;
    enum status status = file_join(seen, sizeof(seen), c->out, "plan.json", err);

    *found = (struct found){.link_gbit = (double)NAN};
    text_list_addf(&program, "sh");
    text_list_addf(&program, "-c");
    text_list_addf(&program, "%s", script);
    text_list_addf(&program, "%s", c->programs);
    text_list_addf(&program, "%s", seen);
    if (status == STATUS_OK && c->expected[0] == '\0') {
        status = run_command(c, &program, "hosts.log", &printed, err);
        read_programs(printed ? printed : "", c->expected, sizeof(c->expected));
        free(printed);
    }
    if (engine->has_own_folders) {
        text_list_release(&program);
        text_list_addf(&program, "%s", ENGINE_PROBE);
    }
    step.program = (const char *const *)text_list_words(&program);
    step.length = step.is_labelled ? c->hosts.length : 1;
    for (size_t i = 0; i < c->hosts.length && status == STATUS_OK && step.program;
         i += step.length) {
        step.hosts = (const char *const *)c->hosts.texts + i;
        status = probe_some(c, &step, found, err);
    }
    text_list_release(&program);
    return status;
}

/* ---- links */

/* How the ranks of the experiment reach each other. */
static void add_connection_options(const struct experiment *e, struct text_list *words)
{
    static const char *const names[] = {"insecure", "interface", "tls-ca",
                                        "tls-cert", "tls-key",   "token-file"};

    for (size_t i = 0; i < e->options.length; i++)
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
            if (strcmp(e->options.items[i].name, names[k]) == 0)
                text_list_addf(words, "--%s=%s", names[k], e->options.items[i].value);
}

/* One rank on each host; 4 MiB of gradients, and next to no computation. */
static void add_link_job(const struct host_check *c, const char *folder, struct text_list *words)
{
    static const char *const options[] = {"--sync=allreduce", "--backend=ring",
                                          "--device=cpu",     "--model=linear:1024-1024",
                                          "--batch-size=1",   "--data=random:64,1024,1024",
                                          "--evaluate=never", "--threads=1",
                                          "--lr=0",           "--log-level=warning"};
    struct strbuf hosts = STRBUF_INIT;

    for (size_t i = 0; i < c->hosts.length; i++)
        strbuf_addf(&hosts, "%s%s", i > 0 ? "," : "", c->hosts.texts[i]);
    words->failed = words->failed || !strbuf_ok(&hosts);
    text_list_addf(words, "%s/sparring", c->programs);
    text_list_addf(words, "launch");
    text_list_addf(words, "--on=%s", c->experiment->engine->name);
    text_list_addf(words, "--hosts=%s", strbuf_ok(&hosts) ? hosts.text : "");
    text_list_addf(words, "--nproc-per-node=%zu", c->hosts.length);
    text_list_addf(words, "--run-dir=%s", folder);
    text_list_addf(words, "--");
    text_list_addf(words, "%s/sparring-worker", c->programs);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        text_list_addf(words, "%s", options[i]);
    text_list_addf(words, "--steps=%d", LINK_STEPS);
    text_list_addf(words, "--run-dir=%s", folder);
    add_connection_options(c->experiment, words);
    strbuf_release(&hosts);
}

/* Bits that rank 0 sent per second of communication, in its fastest step.  There is one bucket, so
 * that no computation hides any. */
static double link_gbit(const struct run *run)
{
    const struct records *r = run->rank_count > 0 ? &run->ranks[0] : NULL;
    double best = 0;

    for (size_t i = LINK_SKIPPED; r && i < r->length; i++) {
        const struct step_record *step = &r->steps[i];
        const double gbit = 8 * (double)step->tx_payload_bytes / (double)step->exposed_comm_ns;

        if (step->exposed_comm_ns > 0 && gbit > best)
            best = gbit;
    }
    return best;
}

static enum status measure_links(const struct host_check *c, struct found *found, struct error *err)
{
    struct text_list words = {0}, removal = {0};
    struct run run = {0};
    char folder[4096], *printed = NULL;
    enum status status = file_join(folder, sizeof(folder), c->out, "links", err);

    if (status != STATUS_OK)
        return status;
    text_list_addf(&removal, "rm");
    text_list_addf(&removal, "-rf");
    text_list_addf(&removal, "%s", folder);
    add_link_job(c, folder, &words);
    status = run_command(c, &removal, "links.log", &printed, err);
    free(printed);
    printed = NULL;
    if (status == STATUS_OK)
        status = run_command(c, &words, "links.log", &printed, err);
    free(printed);
    if (status == STATUS_OK && run_is_folder(folder))
        status = run_open(folder, &run, err);
    if (status == STATUS_OK && (!run.path || run.state != RUN_OK))
        status = error_set(err, STATUS_CONFIG, "the job that measures links failed: '%s/links.log'",
                           c->out);
    if (status == STATUS_OK)
        found->link_gbit = link_gbit(&run);
    run_release(&run);
    text_list_release(&words);
    text_list_release(&removal);
    return status;
}

static void judge_links(struct host_check *c, struct found *found)
{
    if (c->link_gbit == 0)
        c->link_gbit = found->link_gbit;
    if (found->problem[0] == '\0' && found->link_gbit < LINK_MIN * c->link_gbit)
        (void)snprintf(found->problem, sizeof(found->problem),
                       "the links between the hosts carry %.3g Gbit/s, and %.3g at first",
                       found->link_gbit, c->link_gbit);
}

/* ---- checks */

static enum status record(const struct host_check *c, const struct found *found, struct error *err)
{
    struct metrics file;
    char path[4096];
    enum status status = file_join(path, sizeof(path), c->out, "hosts.jsonl", err);

    if (status == STATUS_OK)
        status = metrics_open(&file, path, err);
    if (status != STATUS_OK)
        return status;
    metrics_begin(&file, "hosts");
    metrics_add_double(&file, "wall", clock_wall_seconds());
    metrics_add_double(&file, "busy", found->busy);
    metrics_add_double(&file, "clock_s", found->clock_s);
    metrics_add_double(&file, "link_gbit", found->link_gbit);
    metrics_add_text(&file, "problem", found->problem);
    status = metrics_end(&file, err);
    metrics_close(&file);
    return status;
}

enum status host_check_present(struct host_check *c, struct error *err)
{
    struct found found;
    struct error why = {0};

    if (!c->experiment->engine->is_running())
        return error_set(err, STATUS_CANCELLED, "the allocation has ended");
    return probe(c, &found, &why) == STATUS_OK ? STATUS_OK
                                               : error_set(err, STATUS_CANCELLED, "%s", why.text);
}

static enum status look(struct host_check *c, struct found *found, struct error *err)
{
    enum status status = probe(c, found, err);

    if (status == STATUS_OK && c->hosts.length > 1 &&
        (found->problem[0] == '\0' || !c->experiment->needs_quiet_hosts)) {
        struct error why = {0};

        status = measure_links(c, found, err);
        if (status == STATUS_OK)
            judge_links(c, found);
        else if (host_check_present(c, &why) != STATUS_OK)
            status = error_set(err, STATUS_CANCELLED, "%s; started again, compare goes on here",
                               why.text);
    }
    return status == STATUS_OK ? record(c, found, err) : status;
}

/* Until the hosts are as they should be. */
static enum status look_and_wait(struct host_check *c, struct found *found, struct error *err)
{
    const int64_t deadline_ns = clock_deadline_ns(PATIENCE_MS);
    struct pollfd stop = {.fd = stop_fd(), .events = POLLIN};
    enum status status = look(c, found, err);

    while (status == STATUS_OK && found->problem[0] != '\0' && c->experiment->needs_quiet_hosts) {
        if (clock_left_ms(deadline_ns) == 0)
            return error_set(err, STATUS_DISTURBED,
                             "%s, for %d s now: no further block is started (--host-check); "
                             "started again, compare goes on here",
                             found->problem, PATIENCE_MS / 1000);
        log_info("waiting: %s", found->problem);
        if (poll(&stop, 1, PAUSE_MS) > 0)
            return error_set(err, STATUS_CANCELLED, "stopped before the next run");
        status = look(c, found, err);
    }
    return status;
}

enum status host_check_block(struct host_check *c, struct error *err)
{
    struct found found;
    enum status status;

    if (clock_now_ns() < c->next_ns)
        return STATUS_OK;
    status = look_and_wait(c, &found, err);
    if (status != STATUS_OK && !c->experiment->engine->is_running())
        return error_set(err, STATUS_CANCELLED,
                         "the allocation has ended between two runs; started again in another one, "
                         "compare goes on here");
    if (status == STATUS_OK && found.problem[0] != '\0')
        log_warning("%s", found.problem);
    c->next_ns = clock_deadline_ns(PERIOD_MS);
    return status;
}

enum status host_check_open(const struct experiment *e, const char *programs, const char *out,
                            struct host_check *ret, struct error *err)
{
    *ret = (struct host_check){.experiment = e, .programs = programs, .out = out};
    return e->engine->read_hosts(e->on, &ret->hosts, err);
}

void host_check_close(struct host_check *c)
{
    text_list_release(&c->hosts);
}
