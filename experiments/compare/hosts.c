/*
 * hosts: a shell on every host prints the checksum of the programs there, as one does here.
 */
#include "experiments/compare/hosts.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/random.h"
#include "experiments/subprocess/subprocess.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_MS      60000
#define LOG_BYTES_MAX ((size_t)1 << 20)

/* Its arguments: the folder of the programs, and a file to see. */
static const char script[] =
    "test -e \"$1\" || { echo \"does not see $1\"; exit 1; }; " ENGINE_CKSUM_SCRIPT;

size_t hosts_of_mode(const struct experiment *e, const struct experiment_mode *mode)
{
    const char *placement = experiment_option(e, mode, "server-placement");
    uint64_t per_host = 1;
    size_t workers, servers = strcmp(placement, "colocated") == 0 ? 0 : (size_t)mode->servers;

    if (!parse_uint64(experiment_option(e, mode, "ranks-per-host"), &per_host) || per_host == 0)
        per_host = 1;
    workers = ((size_t)mode->nproc + per_host - 1) / per_host;
    if (strcmp(experiment_option(e, mode, "replicas"), "true") == 0)
        servers += strcmp(placement, "dedicated") == 0 || placement[0] == '\0' ? servers
                                                                               : servers + workers;
    return workers + servers;
}

size_t hosts_needed(const struct experiment *e)
{
    size_t most = 0;

    for (size_t m = 0; m < e->mode_count; m++) {
        const size_t count = hosts_of_mode(e, &e->modes[m]);

        most = count > most ? count : most;
    }
    return most;
}

/* Run a command; *ret is what it printed, owned. */
static enum status run_command(struct text_list *words, const char *out, char **ret,
                               struct error *err)
{
    char log[4096];
    struct subprocess_request request = {.log_path = log, .timeout_ms = CHECK_MS};
    struct subprocess_result result = {.outcome = SUBPROCESS_EXITED};
    size_t size;
    enum status status = file_join(log, sizeof(log), out, "hosts.log", err);

    *ret = NULL;
    request.argv = (const char *const *)text_list_words(words);
    if (status == STATUS_OK && !request.argv)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    if (status == STATUS_OK)
        status = subprocess_run(&request, &result, err);
    if (status == STATUS_OK && result.outcome == SUBPROCESS_STOPPED)
        return error_set(err, STATUS_CANCELLED, "stopped before the first run");
    if (status == STATUS_OK && result.outcome == SUBPROCESS_TIMED_OUT)
        return error_set(err, STATUS_TIMEOUT, "the hosts have not answered after %d s, see '%s'",
                         CHECK_MS / 1000, log);
    return status == STATUS_OK ? file_read(log, LOG_BYTES_MAX, ret, &size, err) : status;
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

static enum status check_host(const char *host, const char *line, const char *expected,
                              const char *printed, const char *out, struct error *err)
{
    if (strncmp(line, "does not see", 12) == 0)
        return error_set(err, STATUS_CONFIG,
                         "host %s %s: --out must be a folder that all hosts share", host, line);
    if (strspn(line, "0123456789") == 0)
        return error_set(err, STATUS_CONFIG, "host %s did not answer: %.*s ('%s/hosts.log')", host,
                         (int)strcspn(printed, "\n"), printed, out);
    if (strcspn(expected, "\n") != strlen(line) || strncmp(line, expected, strlen(line)) != 0)
        return error_set(err, STATUS_CONFIG,
                         "host %s has other programs than this one, or none: see '%s/hosts.log'",
                         host, out);
    return STATUS_OK;
}

/* Run the script on some of the hosts, in one step. */
static enum status check_hosts(const struct engine *engine, const struct engine_step *step,
                               const char *expected, const char *out, struct error *err)
{
    struct text_list words = {0};
    char *printed = NULL;
    enum status status;

    engine->add_command(step, &words);
    status = run_command(&words, out, &printed, err);
    for (size_t i = 0; i < step->length && status == STATUS_OK && printed; i++) {
        char line[4200];

        (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(printed, "\n"), printed);
        if (step->is_labelled)
            line_of(printed, i, line, sizeof(line));
        status = check_host(step->hosts[i], line, expected, printed, out, err);
    }
    free(printed);
    text_list_release(&words);
    return status;
}

enum status hosts_open(const struct experiment *e, const char *programs, const char *out,
                       struct text_list *ret, struct error *err)
{
    struct text_list program = {0};
    struct engine_step step = {.is_labelled = !e->engine->has_single_tasks};
    char seen[4096], *expected = NULL;
    enum status status = e->engine->read_hosts(e->on, ret, err);

    if (status == STATUS_OK)
        status = file_join(seen, sizeof(seen), out, "plan.json", err);
    if (status != STATUS_OK)
        return status;
    text_list_addf(&program, "sh");
    text_list_addf(&program, "-c");
    text_list_addf(&program, "%s", script);
    text_list_addf(&program, "%s", programs);
    text_list_addf(&program, "%s", seen);
    status = run_command(&program, out, &expected, err);
    if (e->engine->has_own_folders) {
        text_list_release(&program);
        text_list_addf(&program, "%s", ENGINE_CKSUM);
    }
    step.program = (const char *const *)text_list_words(&program);
    step.length = step.is_labelled ? ret->length : 1;
    for (size_t i = 0; i < ret->length && status == STATUS_OK && expected; i += step.length) {
        step.hosts = (const char *const *)ret->texts + i;
        status = check_hosts(e->engine, &step, expected, out, err);
    }
    free(expected);
    text_list_release(&program);
    return status;
}

void hosts_draw(const struct experiment *e, const struct text_list *hosts, size_t block,
                size_t count, struct strbuf *text)
{
    struct random random;
    int64_t *order = NULL;

    if (mem_calloc(hosts->length, sizeof(*order), "an order", &order, NULL) != STATUS_OK) {
        text->failed = true;
        return;
    }
    random_seed(&random, (uint64_t)e->seed * 1000211 + block);
    random_permutation(&random, order, hosts->length);
    for (size_t i = 0; i < count && i < hosts->length; i++)
        strbuf_addf(text, "%s%s", i > 0 ? "," : "", hosts->texts[order[i]]);
    free(order);
}
