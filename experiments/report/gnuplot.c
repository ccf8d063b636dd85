/*
 * gnuplot: a temporary folder holds the script and the SVG and is removed before gnuplot_draw
 * returns.  The SVG is copied from its canvas group on: the head is written here (role, title,
 * description), identifiers get the picture's prefix so that a page can hold several pictures,
 * gnuplot's plot titles become tool tips, and "@k@" becomes the k-th text.
 */
#include "experiments/report/gnuplot.h"

#include "common/base/file.h"
#include "common/base/stop.h"
#include "experiments/subprocess/subprocess.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS    60000
#define SVG_BYTES_MAX ((size_t)64 << 20)
#define CANVAS        "<g id=\"gnuplot_canvas\">"

struct work_folder {
    char path[512];
    char script[600], svg[600], log[600];
};

static enum status open_folder(struct work_folder *f, struct error *err)
{
    const char *base = getenv("TMPDIR");

    (void)snprintf(f->path, sizeof(f->path), "%.400s/sparring-report-XXXXXX",
                   base && base[0] ? base : "/tmp");
    if (!mkdtemp(f->path))
        return error_set(err, STATUS_IO, "cannot make a temporary folder '%s'", f->path);
    (void)snprintf(f->script, sizeof(f->script), "%s/picture.gp", f->path);
    (void)snprintf(f->svg, sizeof(f->svg), "%s/picture.svg", f->path);
    (void)snprintf(f->log, sizeof(f->log), "%s/log.txt", f->path);
    return STATUS_OK;
}

static void close_folder(const struct work_folder *f)
{
    (void)unlink(f->script);
    (void)unlink(f->svg);
    (void)unlink(f->log);
    (void)rmdir(f->path);
}

/* A single-quoted gnuplot string: only the quote is special inside, and it is doubled. */
static void add_quoted(struct strbuf *out, const char *text)
{
    strbuf_add(out, "'");
    for (; *text; text++)
        strbuf_add(out, *text == '\'' ? "''" : (char[]){*text, '\0'});
    strbuf_add(out, "'");
}

static enum status write_script(const struct gnuplot_picture *picture, const struct work_folder *f,
                                struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    enum status status;

    strbuf_addf(&text,
                "set terminal svg size %d,%u fixed font 'sans-serif,13' name '%s' noenhanced\n",
                GNUPLOT_WIDTH, picture->height, picture->name);
    strbuf_add(&text, "set output ");
    add_quoted(&text, f->svg);
    strbuf_add(&text, "\n");
    strbuf_add(&text, picture->script->text);
    if (!strbuf_ok(&text) || !strbuf_ok(picture->script))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the figure '%s'", picture->name);
    else
        status = file_write_atomic(f->script, text.text, text.length, err);
    strbuf_release(&text);
    return status;
}

/* Report the first line of gnuplot's error output with a message. */
static enum status explain_failure(const struct gnuplot_picture *picture, const char *how,
                                   const char *log_path, struct error *err)
{
    char *text = NULL;
    size_t size = 0;
    const char *line = "";

    if (file_read(log_path, SVG_BYTES_MAX, &text, &size, NULL) == STATUS_OK)
        line = text + strspn(text, " \t\n^");
    (void)error_set(err, STATUS_INTERNAL, "gnuplot could not draw '%s' (%s): %.*s", picture->name,
                    how, (int)strcspn(line, "\n"), line);
    free(text);
    return STATUS_INTERNAL;
}

static enum status run_gnuplot(const struct gnuplot_picture *picture, const struct work_folder *f,
                               struct error *err)
{
    const char *argv[] = {"gnuplot", "-d", f->script, NULL};
    struct subprocess_request request = {
        .argv = argv,
        .log_path = f->log,
        .timeout_ms = TIMEOUT_MS,
        .ignores_stop = stop_requested()}; /* a report of what ran until then */
    struct subprocess_result result;
    char how[96];
    enum status status = subprocess_run(&request, &result, err);

    if (status != STATUS_OK)
        return status;
    if (result.outcome == SUBPROCESS_STOPPED)
        return error_set(err, STATUS_CANCELLED, "stopped while drawing '%s'", picture->name);
    subprocess_result_text(&result, how, sizeof(how));
    if (result.outcome != SUBPROCESS_EXITED || result.code != 0)
        return explain_failure(picture, how, f->log, err);
    return STATUS_OK;
}

enum status gnuplot_draw(const struct gnuplot_picture *picture, struct strbuf *out,
                         struct error *err)
{
    struct work_folder folder;
    char *svg = NULL;
    size_t size = 0;
    enum status status = open_folder(&folder, err);

    if (status != STATUS_OK)
        return status;
    status = write_script(picture, &folder, err);
    if (status == STATUS_OK)
        status = run_gnuplot(picture, &folder, err);
    if (status == STATUS_OK)
        status = file_read(folder.svg, SVG_BYTES_MAX, &svg, &size, err);
    if (status == STATUS_OK)
        status = gnuplot_embed(picture, svg, out, err);
    free(svg);
    close_folder(&folder);
    return status;
}

static void add_head(const struct gnuplot_picture *picture, struct strbuf *out)
{
    strbuf_addf(out,
                "<svg class=\"plot\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\" "
                "xmlns:xlink=\"http://www.w3.org/1999/xlink\" viewBox=\"0 0 %d %u\" "
                "aria-labelledby=\"%s-title %s-description\">\n<title id=\"%s-title\">",
                GNUPLOT_WIDTH, picture->height, picture->name, picture->name, picture->name);
    strbuf_add_html(out, picture->title);
    strbuf_addf(out, "</title>\n<desc id=\"%s-description\">", picture->name);
    strbuf_add_html(out, picture->description);
    strbuf_add(out, "</desc>\n");
}

/* "@12@" at p: append the text, return the bytes consumed; 0 when it is none. */
static size_t add_text(const struct gnuplot_picture *picture, const char *p, struct strbuf *out)
{
    char *end = NULL;
    unsigned long index;

    if (p[0] != '@' || p[1] < '0' || p[1] > '9')
        return 0;
    index = strtoul(p + 1, &end, 10);
    if (*end != '@' || !picture->texts || index >= picture->texts->length)
        return 0;
    strbuf_add_html(out, picture->texts->texts[index]);
    return (size_t)(end + 1 - p);
}

/* A <title> at p: replaced by the tool tip of the `*plot`-th element, or left out. */
static size_t add_tool_tip(const struct gnuplot_picture *picture, const char *p, size_t *plot,
                           struct strbuf *out)
{
    const char *end;

    if (strncmp(p, "<title>", 7) != 0)
        return 0;
    end = strstr(p, "</title>");
    if (!end)
        return 0;
    if (picture->titles && *plot < picture->titles->length) {
        strbuf_add(out, "<title>");
        strbuf_add_html(out, picture->titles->texts[*plot]);
        strbuf_add(out, "</title>");
    }
    (*plot)++;
    return (size_t)(end + 8 - p);
}

/* gnuplot's own identifiers, and references to them, get the picture's prefix. */
static size_t add_identifier(const struct gnuplot_picture *picture, const char *p,
                             struct strbuf *out)
{
    static const char *const openings[] = {"id='", "href='#", "id=\"gnuplot_canvas"};

    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
        size_t length = strlen(openings[i]);

        if (strncmp(p, openings[i], length) != 0)
            continue;
        if (i == 2)
            strbuf_addf(out, "id=\"%s-canvas", picture->name);
        else
            strbuf_addf(out, "%s%s-", openings[i], picture->name);
        return length;
    }
    return 0;
}

/* Bytes of a group without content at p, which gnuplot writes by the hundred; 0 for others. */
static size_t empty_group(const char *p)
{
    const char *end;

    if (strncmp(p, "<g fill=", 8) != 0)
        return 0;
    end = strchr(p, '>');
    return end && strncmp(end, ">\n</g>\n", 7) == 0 ? (size_t)(end + 7 - p) : 0;
}

enum status gnuplot_embed(const struct gnuplot_picture *picture, const char *text,
                          struct strbuf *out, struct error *err)
{
    const char *p = strstr(text, CANVAS);
    const char *end = p ? strstr(p, "</svg>") : NULL;
    size_t plot = 0;

    if (!end)
        return error_set(err, STATUS_DATA, "gnuplot's SVG of '%s' has no canvas", picture->name);
    add_head(picture, out);
    while (p < end) {
        size_t used = empty_group(p);

        if (used == 0)
            used = add_text(picture, p, out);
        if (used == 0)
            used = add_tool_tip(picture, p, &plot, out);
        if (used == 0)
            used = add_identifier(picture, p, out);
        if (used == 0) {
            strbuf_add_bytes(out, p, 1);
            used = 1;
        }
        p += used;
    }
    strbuf_add(out, "</svg>\n");
    return STATUS_OK;
}
