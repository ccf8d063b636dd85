/*
 * watch: both look at the folder twice a second, until a signal comes.
 */
#include "experiments/watch/watch.h"

#include "common/base/net.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/watch/watch_page.h"
#include "experiments/watch/watch_text.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PERIOD_MS     500
#define WIDTH_DEFAULT 80

struct watch_options {
    char listen[OPTION_TEXT_MAX];
};

static const struct option_spec watch_specs[] = {
    {.name = "listen",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct watch_options, listen),
     .default_text = "127.0.0.1:8080",
     .metavar = "H:P",
     .help = "Where the page is, on loopback only; port 0: any.  From another host: "
             "ssh -L 8080:127.0.0.1:8080 HOST."},
    {0},
};

static const struct option_set watch_set = {
    .program = "sparring watch",
    .summary = "Serve a page that shows what the runs of a folder are doing: progress and time "
               "left, loss and throughput live, what failed, and the reports.",
    .usage = "RUN-DIR|OUT-OF-COMPARE [OPTION]...",
    .tables = {{watch_specs, 0}},
};

struct status_options {
    bool watch;
};

static const struct option_spec status_specs[] = {
    {.name = "watch",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct status_options, watch),
     .help = "Draw it again twice a second, until all runs have ended."},
    {0},
};

static const struct option_set status_set = {
    .program = "sparring status",
    .summary = "Print what the runs of a folder are doing: progress and time left, loss and "
               "throughput, what failed.",
    .usage = "RUN-DIR|OUT-OF-COMPARE [OPTION]...",
    .tables = {{status_specs, 0}},
};

static enum status open_folder(const char *const *words, size_t count, const char *program,
                               struct watched *ret, struct error *err)
{
    enum status status = stop_install(err);

    if (status == STATUS_OK && count != 1)
        status =
            error_set(err, STATUS_INVALID,
                      "name one run directory or folder of compare; '%s --help' explains", program);
    return status == STATUS_OK ? watched_open(words[0], ret, err) : status;
}

/* Wait for the next look; false: a signal came. */
static bool await_next(void)
{
    struct pollfd signal = {.fd = stop_fd(), .events = POLLIN};

    (void)poll(&signal, 1, PERIOD_MS);
    return stop_requested() == 0;
}

/* ---- watch */

static enum status serve_page(struct watched *w, const struct endpoint *listen, const char *origin,
                              struct error *err)
{
    struct endpoint shown = *listen;
    struct watch_page *page = NULL;
    char address[sizeof(listen->host) + 16];
    enum status status = watched_scan(w, err);

    if (status == STATUS_OK)
        status = watch_page_open(listen, origin, w, &page, err);
    if (status != STATUS_OK)
        return status;
    shown.port = watch_page_port(page);
    endpoint_format(&shown, address, sizeof(address));
    (void)printf("http://%s/\n", address);
    (void)fflush(stdout);
    while (status == STATUS_OK && await_next()) {
        watch_page_lock(page);
        status = watched_scan(w, err);
        watch_page_unlock(page);
    }
    watch_page_close(page);
    return status;
}

static enum status run_watch(const void *parsed, const char *const *words, size_t count,
                             int *ret_exit_code, struct error *err)
{
    const struct watch_options *o = parsed;
    struct watched w = {.version = 0};
    struct endpoint listen;
    enum status status = open_folder(words, count, watch_set.program, &w, err);

    (void)ret_exit_code;
    if (status == STATUS_OK)
        status = endpoint_parse(o->listen, "--listen", &listen, err);
    if (status == STATUS_OK)
        status = serve_page(&w, &listen, "--listen", err);
    watched_release(&w);
    return status;
}

int watch_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &watch_set, .options_size = sizeof(struct watch_options), .run_words = run_watch};

    return program_main(&program, argc, argv);
}

/* ---- status */

static bool has_ended(const struct watched *w)
{
    const struct watched_totals t = watched_totals(w);

    return t.running == 0 && t.ok + t.failed >= t.planned;
}

static void print_status(const struct watched *w, bool redraw)
{
    struct winsize size = {.ws_col = WIDTH_DEFAULT};
    struct strbuf text = STRBUF_INIT;
    const bool is_terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;

    /* The last row stays free: a line end there would scroll. */
    watch_text(w, is_terminal ? size.ws_col : WIDTH_DEFAULT,
               redraw && is_terminal && size.ws_row > 1 ? size.ws_row - 1u : 0, &text);
    (void)printf("%s%s", redraw && is_terminal ? "\033[H\033[2J" : "", text.text);
    (void)fflush(stdout);
    strbuf_release(&text);
}

static enum status run_status(const void *parsed, const char *const *words, size_t count,
                              int *ret_exit_code, struct error *err)
{
    const struct status_options *o = parsed;
    struct watched w = {.version = 0};
    uint64_t shown = 0;
    enum status status = open_folder(words, count, status_set.program, &w, err);

    if (status == STATUS_OK)
        status = watched_scan(&w, err);
    while (status == STATUS_OK) {
        if (w.version != shown || isatty(STDOUT_FILENO)) /* there times go on */
            print_status(&w, o->watch);
        shown = w.version;
        if (!o->watch || has_ended(&w) || !await_next())
            break;
        status = watched_scan(&w, err);
    }
    *ret_exit_code = status == STATUS_OK && watched_totals(&w).failed > 0 ? 1 : 0;
    watched_release(&w);
    return status;
}

int status_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &status_set, .options_size = sizeof(struct status_options), .run_words = run_status};

    return program_main(&program, argc, argv);
}
