/*
 * option_check: every program gets its part of a run's command line and --print-config, because
 * those of --programs may be of another commit than this one.
 */
#include "experiments/compare/option_check.h"

#include "common/base/stop.h"
#include "common/base/text_list.h"
#include "experiments/subprocess/subprocess.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TIMEOUT_MS 60000

struct option_check {
    const struct experiment *experiment; /* of the cell */
    const struct experiment_mode *mode;
    const char *cell, *programs;
    char log_path[64];
    char why[1024]; /* what the program says; "": nothing */
};

/* Where the message names the option, or SIZE_MAX. */
static size_t place_in(const char *message, const char *name)
{
    const size_t length = strlen(name);

    for (const char *p = message; (p = strstr(p, "--")) != NULL; p += 2)
        if (strncmp(p + 2, name, length) == 0 && !isalnum((unsigned char)p[2 + length]) &&
            p[2 + length] != '-')
            return (size_t)(p - message);
    return SIZE_MAX;
}

/* The line of the option that the message names first; 0: of none. */
static unsigned find_line(const struct option_check *c)
{
    const struct experiment_options *both[] = {&c->mode->options, &c->experiment->options};
    size_t first = SIZE_MAX;
    unsigned line = 0;

    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < both[k]->length; i++) {
            const size_t place = place_in(c->why, both[k]->items[i].name);

            if (place < first) {
                first = place;
                line = both[k]->items[i].line;
            }
        }
    return line;
}

static enum status refuse(const struct option_check *c, struct error *err)
{
    const unsigned line = find_line(c);

    if (line > 0)
        return error_set(err, STATUS_CONFIG, "%s:%u: %s", c->experiment->name, line, c->why);
    return error_set(err, STATUS_CONFIG, "%s: mode '%s'%s%s: %s", c->experiment->name,
                     c->mode->name, c->cell[0] ? " of " : "", c->cell, c->why);
}

static enum status run_program(struct option_check *c, const char *const *argv, struct error *err)
{
    const struct subprocess_request request = {
        .argv = argv, .log_path = c->log_path, .timeout_ms = TIMEOUT_MS};
    struct subprocess_result result;
    const char *message;
    char line[sizeof(c->why)] = "";
    enum status status = subprocess_run(&request, &result, err);

    c->why[0] = '\0';
    if (status != STATUS_OK || (result.outcome == SUBPROCESS_EXITED && result.code == 0))
        return status;
    if (result.outcome == SUBPROCESS_STOPPED)
        return error_set(err, STATUS_CANCELLED, "%s: no run is started",
                         strsignal(stop_requested()));
    subprocess_result_text(&result, c->why, sizeof(c->why));
    if (result.outcome == SUBPROCESS_EXITED)
        status = subprocess_last_line(c->log_path, line, sizeof(line), err);
    message = strstr(line, "error: ");
    if (line[0] != '\0')
        (void)snprintf(c->why, sizeof(c->why), "%s", message ? message + strlen("error: ") : line);
    return status;
}

/* `words` from `first` up to `end`: a program and its options. */
static enum status ask(struct option_check *c, const struct text_list *words, size_t first,
                       size_t end, struct error *err)
{
    struct text_list command = {0};
    enum status status;

    for (size_t i = first; i < end; i++)
        text_list_addf(&command, "%s", words->texts[i]);
    text_list_addf(&command, "--print-config");
    if (text_list_words(&command))
        status = run_program(c, (const char *const *)text_list_words(&command), err);
    else
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    text_list_release(&command);
    return status == STATUS_OK && c->why[0] != '\0' ? refuse(c, err) : status;
}

static enum status check_mode(struct option_check *c, struct error *err)
{
    struct text_list words = {0};
    size_t end;
    enum status status = STATUS_OK;

    experiment_run_words(c->experiment, c->mode, c->programs, NULL, NULL, &words);
    end = text_list_find(&words, "--"); /* of launch's part */
    if (words.failed)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    if (status == STATUS_OK && !c->experiment->engine)
        status = ask(c, &words, 0, end, err);
    if (status == STATUS_OK)
        status = ask(c, &words, end + 1, words.length, err);
    text_list_release(&words);
    return status;
}

/* Has the cell a value that no cell before it has? */
static bool is_new(const struct axes *axes, const struct cell *cell,
                   bool seen[AXES_MAX][AXIS_VALUES_MAX])
{
    bool found = axes->length == 0;

    for (size_t i = 0; i < axes->length; i++) {
        found = found || !seen[i][cell->values[i]];
        seen[i][cell->values[i]] = true;
    }
    return found;
}

enum status option_check(struct compare_sweep *s, struct error *err)
{
    struct option_check check = {.programs = s->programs};
    bool seen[AXES_MAX][AXIS_VALUES_MAX] = {{false}};
    const int log_fd = memfd_create("option-check", MFD_CLOEXEC);
    enum status status = experiment_run_check_programs(s->programs, err);

    if (log_fd < 0)
        return error_set_errno(err, errno, "cannot make a file in memory");
    (void)snprintf(check.log_path, sizeof(check.log_path), "/proc/self/fd/%d", log_fd);
    for (size_t i = 0; i < s->count && status == STATUS_OK; i++) {
        if (!is_new(&s->experiment->axes, &s->cells[i].cell, seen))
            continue;
        check.experiment = compare_sweep_experiment(s, i);
        check.cell = s->cells[i].cell.name;
        for (size_t m = 0; m < check.experiment->mode_count && status == STATUS_OK; m++) {
            check.mode = &check.experiment->modes[m];
            status = check_mode(&check, err);
        }
    }
    (void)close(log_fd);
    return status;
}
