/*
 * inspect: the subcommand: reads the evidence, makes the diagnosis, writes the trace, prints text
 * or JSON.
 */
#include "experiments/inspect/inspect.h"

#include "common/base/file.h"
#include "common/option/program.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct inspect_options {
    int64_t ops;
    int64_t rank;
    bool json;
    char trace[OPTION_TEXT_MAX];
};

static const struct option_spec specs[] = {
    {.name = "ops",
     .kind = OPTION_INT,
     .offset = offsetof(struct inspect_options, ops),
     .default_text = "4",
     .min = 0,
     .max = 1e6,
     .metavar = "N",
     .help = "Show the last N operations of each rank."},
    {.name = "rank",
     .kind = OPTION_INT,
     .offset = offsetof(struct inspect_options, rank),
     .default_text = "-1",
     .min = -1,
     .max = 1e6,
     .metavar = "R",
     .help = "Show the operations of rank R only; -1: of all."},
    {.name = "json",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct inspect_options, json),
     .default_text = "false",
     .help = "Print one JSON object instead of text."},
    {.name = "trace",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct inspect_options, trace),
     .metavar = "FILE",
     .help = "Also write the operations of all ranks as a Chrome trace, for chrome://tracing or "
             "Perfetto."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring inspect",
    .summary = "Say what a run was, how it ended, which rank is to blame and what all ranks did "
               "last.  Reads the run directory alone: of a run that ended, failed, was killed or "
               "still goes on.",
    .usage = "RUN [OPTION]...",
    .tables = {{specs, 0}},
};

static enum status write_trace(const struct evidence *e, const char *path, struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    enum status status;

    inspect_trace(e, &out);
    status = file_write_text(path, &out, err);
    strbuf_release(&out);
    return status;
}

static enum status print_view(const struct inspect_view *view, bool json, struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    enum status status = STATUS_OK;

    if (json)
        inspect_json(view, &out);
    else
        inspect_text(view, &out);
    if (!strbuf_ok(&out))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the text");
    else if (fputs(out.text, stdout) == EOF || fflush(stdout) != 0)
        status = error_set_errno(err, errno, "cannot write standard output");
    strbuf_release(&out);
    return status;
}

static enum status inspect_run(const char *path, const struct inspect_options *o, struct error *err)
{
    struct evidence evidence;
    struct diagnosis diagnosis = {0};
    struct inspect_view view = {.evidence = &evidence,
                                .diagnosis = &diagnosis,
                                .operations = (size_t)o->ops,
                                .rank = o->rank};
    enum status status = evidence_read(path, &evidence, err);

    if (status != STATUS_OK)
        return status;
    if (o->rank >= (int64_t)evidence.rank_count)
        status = error_set(err, STATUS_INVALID, "--rank %jd: the run has ranks 0 to %zu",
                           (intmax_t)o->rank, evidence.rank_count - 1);
    if (status == STATUS_OK)
        status = diagnosis_make(&evidence, &diagnosis, err);
    if (status == STATUS_OK && o->trace[0] != '\0')
        status = write_trace(&evidence, o->trace, err);
    if (status == STATUS_OK)
        status = print_view(&view, o->json, err);
    diagnosis_release(&diagnosis);
    evidence_release(&evidence);
    return status;
}

static enum status run_inspect(const void *options, const char *const *words, size_t count,
                               int *ret_exit_code, struct error *err)
{
    (void)ret_exit_code;
    return count == 1 ? inspect_run(words[0], options, err)
                      : error_set(err, STATUS_INVALID,
                                  "give one run directory; 'sparring inspect --help' explains");
}

int inspect_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct inspect_options),
        .run_words = run_inspect,
    };

    return program_main(&program, argc, argv);
}
