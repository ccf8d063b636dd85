/*
 * allocation: the command line of this process, given to the engine.
 */
#include "experiments/compare/allocation.h"

#include "common/base/stop.h"
#include "common/option/option.h"
#include "experiments/subprocess/subprocess.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* ---- at once */

/* The words of a program on this host that waits for the hosts, then runs this command. */
static enum status find_command(const struct allocation_request *r, struct text_list *ret,
                                struct error *err)
{
    struct text_list words = {0};
    char folder[4096] = "";
    enum status status = subprocess_program_folder(folder, sizeof(folder), err);

    text_list_addf(&words, "%s/sparring", folder);
    for (char *const *word = r->arguments; *word; word++)
        text_list_addf(&words, "%s", *word);
    if (r->out)
        text_list_addf(&words, "--out=%s", r->out);
    if (status == STATUS_OK && !text_list_words(&words))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    if (status == STATUS_OK)
        status = r->engine->add_allocation(r->on, r->hosts, text_list_words(&words), ret, err);
    if (status == STATUS_OK && !text_list_words(ret))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    text_list_release(&words);
    return status;
}

enum status allocation_enter(const struct allocation_request *r, struct error *err)
{
    struct text_list words = {0};
    enum status status = find_command(r, &words, err);

    if (status == STATUS_OK)
        return engine_exec(&words, err);
    text_list_release(&words);
    return status;
}

/* ---- block by block */

static enum status run_once(struct text_list *words, int *ret_exit_code, struct error *err)
{
    struct subprocess_child child;
    struct pollfd fds[2] = {{.events = POLLIN}, {.fd = stop_fd(), .events = POLLIN}};
    enum status status = subprocess_start((const char *const *)text_list_words(words), &child, err);

    if (status != STATUS_OK)
        return status;
    fds[0].fd = child.fd;
    while (!subprocess_has_ended(&child, ret_exit_code))
        if (poll(fds, 2, -1) > 0 && fds[1].revents != 0) {
            subprocess_pass_on(&child, stop_requested());
            fds[1].fd = -1;
        }
    return STATUS_OK;
}

enum status allocation_repeat(const struct allocation_request *r, int *ret_exit_code,
                              struct error *err)
{
    struct text_list words = {0};
    enum status status = find_command(r, &words, err);

    *ret_exit_code = ALLOCATION_MORE;
    while (status == STATUS_OK && *ret_exit_code == ALLOCATION_MORE)
        status = stop_requested()
                     ? error_set(err, STATUS_CANCELLED, "stopped before the next block")
                     : run_once(&words, ret_exit_code, err);
    text_list_release(&words);
    return status;
}

/* ---- later */

/* Is this word the option, alone or with a value? */
static bool is_option(const char *word, const char *name)
{
    size_t k = 0;

    if (strncmp(word, "--", 2) != 0)
        return false;
    for (word += 2; name[k] && (word[k] == '_' ? '-' : word[k]) == name[k];)
        k++;
    return name[k] == '\0' && (word[k] == '\0' || word[k] == '=');
}

/* How many words from here on are not for the command in a script: 0, 1, or 2 with a value. */
static size_t count_left_out(char *const *word)
{
    bool is_left_out = is_option(*word, "on") || is_option(*word, "out");

    for (const struct option_spec *spec = kubernetes_option_specs; spec->help; spec++)
        is_left_out = is_left_out || (spec->name && is_option(*word, spec->name));
    if (is_option(*word, "dry-run"))
        return 1;
    return !is_left_out ? 0 : strchr(*word, '=') || !word[1] ? 1 : 2;
}

enum status allocation_print_script(const struct allocation_request *r, const char *job,
                                    struct error *err)
{
    struct text_list words = {0};
    struct strbuf text = STRBUF_INIT;
    struct engine_script script = {
        .on = r->on, .hosts = r->hosts, .job = job, .kubernetes = r->kubernetes};
    enum status status;

    text_list_addf(&words, "sparring");
    for (char *const *word = r->arguments; *word;) {
        const size_t left_out = count_left_out(word);

        if (left_out == 0)
            text_list_addf(&words, "%s", *word);
        word += left_out > 0 ? left_out : 1;
    }
    text_list_addf(&words, "--out=%s", r->out);
    script.program = (const char *const *)text_list_words(&words);
    status = script.program ? r->engine->add_script(&script, &text, err)
                            : error_set(err, STATUS_NO_MEMORY, "no memory for a script");
    if (status == STATUS_OK)
        (void)printf("%s", text.text);
    strbuf_release(&text);
    text_list_release(&words);
    return status;
}
