/*
 * export: the work is done by tar, sha256sum and `sparring report`, in one script for each
 * direction.
 */
#include "experiments/export/export.h"

#include "common/base/file.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/export/tensorboard.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX     ".tar.gz"
#define TIMEOUT_MS 3600000

struct export_options {
    char out[OPTION_TEXT_MAX];
    bool check, tensorboard;
};

#define AT(field) offsetof(struct export_options, field)

static const struct option_spec specs[] = {
    {.name = "out",
     .kind = OPTION_TEXT,
     .offset = AT(out),
     .metavar = "PATH",
     .help = "The archive, by default FOLDER.tar.gz; with --check the new folder that it is "
             "unpacked into, by default its name without .tar.gz."},
    {.name = "check",
     .kind = OPTION_BOOL,
     .offset = AT(check),
     .help = "Unpack an archive, check every file against its sum, and make the reports again: "
             "their figures must be those that were packed."},
    {.name = "tensorboard",
     .kind = OPTION_BOOL,
     .offset = AT(tensorboard),
     .help = "Write event files for TensorBoard instead, of a run or of all runs of an experiment, "
             "into a folder for each below --out (by default FOLDER/tensorboard)."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring export",
    .summary = "Pack plan, records, reports and hashes of the programs of an experiment into one "
               "archive, which another machine can check.",
    .usage = "FOLDER|ARCHIVE [OPTION]...",
    .tables = {{specs, 0}},
};

/* $1 the folder, $2 a temporary one, $3 the archive; absolute. */
static const char pack_script[] =
    "trap 'rm -f \"$3.partial\"' EXIT\n"
    "trap 'exit 1' TERM\n" /* dash runs the other trap only then */
    "cd \"$1\"\n"
    "find . -type f ! -path ./SHA256SUMS -print0 > \"$2/found\"\n"
    "LC_ALL=C sort -z \"$2/found\" > \"$2/sorted\"\n"
    "xargs -0 -r -a \"$2/sorted\" sha256sum -- > \"$2/SHA256SUMS\"\n"
    "tar --sort=name --owner=0 --group=0 --numeric-owner --exclude=./SHA256SUMS \\\n"
    "    -czf \"$3.partial\" -C \"$2\" SHA256SUMS -C \"$1\" .\n"
    "mv -T \"$3.partial\" \"$3\"\n"
    "wc -l < \"$2/SHA256SUMS\"\n";

/* $1 the archive, $2 a temporary folder, $3 the new folder, $4 this program.  The reports are made
 * of a copy; their tables in CSV have neither paths nor dates. */
static const char check_script[] =
    "trap 'rm -rf \"$2/again\"' EXIT\n"
    "trap 'exit 1' TERM\n"
    "fail() { echo \"$1\"; exit 1; }\n"
    "tar --no-same-owner --no-same-permissions -xzf \"$1\" -C \"$3\" ||\n"
    "    fail 'it is no whole archive'\n"
    "cd \"$3\"\n"
    "[ -f SHA256SUMS ] || fail 'there is no SHA256SUMS in it'\n"
    "odd=$(find . ! -type f ! -type d | head -n 1)\n"
    "[ -z \"$odd\" ] || fail \"$odd is neither file nor folder\"\n"
    "! grep -Eqv '^\\\\?[0-9a-f]{64}  [.]/' SHA256SUMS && ! grep -q '/[.][.]/' SHA256SUMS ||\n"
    "    fail 'SHA256SUMS names a file outside the archive'\n"
    "sha256sum --check --quiet --strict SHA256SUMS || fail 'a file is not what was packed'\n"
    "[ $(find . -type f | wc -l) = $(($(wc -l < SHA256SUMS) + 1)) ] ||\n"
    "    fail 'it has files without a sum'\n"
    "grep '[.]csv$' SHA256SUMS > \"$2/tables\" || fail 'there is no report in it'\n"
    "cp -R . \"$2/again\"\n"
    "cd \"$2/again\"\n"
    "\"$4\" report . || fail 'no report can be made of it'\n"
    "sha256sum --check --quiet --strict \"$2/tables\" ||\n"
    "    fail 'the report that is made here has other figures'\n"
    "wc -l < SHA256SUMS\n";

/* words: those after the script's name, NULL-terminated. */
static enum status run_script(const char *script, const char *const *words, const char *folder,
                              char *line, size_t size, struct error *err)
{
    char log_path[4096], how[96];
    const char *argv[16] = {"sh", "-eu", "-c", script, "export"};
    struct subprocess_request request = {
        .argv = argv, .log_path = log_path, .timeout_ms = TIMEOUT_MS};
    struct subprocess_result result;
    enum status status = file_join(log_path, sizeof(log_path), folder, "log", err);

    for (size_t i = 0; words[i]; i++)
        argv[5 + i] = words[i];
    if (status == STATUS_OK)
        status = subprocess_run(&request, &result, err);
    if (status != STATUS_OK)
        return status;
    if (result.outcome == SUBPROCESS_STOPPED)
        return error_set(err, STATUS_CANCELLED, "stopped");
    /* the number of files, or what went wrong */
    status = subprocess_last_line(log_path, line, size, err);
    subprocess_result_text(&result, how, sizeof(how));
    if (status == STATUS_OK && (result.outcome != SUBPROCESS_EXITED || result.code != 0))
        status = error_set(err, STATUS_DATA, "%s", line[0] != '\0' ? line : how);
    return status;
}

/* The absolute path of a file or folder that need not exist. */
static enum status make_absolute(const char *path, char *text, size_t size, struct error *err)
{
    char folder[4096] = "";

    if (path[0] != '/' && !getcwd(folder, sizeof(folder)))
        return error_set_errno(err, errno, "the current folder");
    if ((size_t)snprintf(text, size, "%s%s%s", folder, path[0] == '/' ? "" : "/", path) >= size)
        return error_set(err, STATUS_INVALID, "the path '%.100s...' is too long", path);
    return STATUS_OK;
}

static enum status pack(const char *folder, const char *archive, const char *work,
                        struct error *err)
{
    char plan[8192], files[256] = "";
    enum status status = file_join(plan, sizeof(plan), folder, "plan.json", err);

    if (status == STATUS_OK && access(plan, R_OK) != 0)
        status = error_set_errno(err, errno, "'%s' is not the folder of 'sparring compare': '%s'",
                                 folder, plan);
    if (status == STATUS_OK)
        status = run_script(pack_script, (const char *const[]){folder, work, archive, NULL}, work,
                            files, sizeof(files), err);
    if (status != STATUS_OK)
        return error_prefix(err, "cannot pack '%s': ", folder);
    (void)printf("%s: %s files\n", archive, files);
    return STATUS_OK;
}

static enum status check(const char *archive, const char *folder, const char *work,
                         struct error *err)
{
    char program[4096], files[256] = "";
    enum status status = subprocess_program_folder(program, sizeof(program), err);

    if (status == STATUS_OK && access(archive, R_OK) != 0)
        status = error_set_errno(err, errno, "cannot read '%s'", archive);
    if (status == STATUS_OK && mkdir(folder, 0777) != 0)
        status = error_set_errno(err, errno, "cannot make '%s'", folder);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(program + strlen(program), sizeof(program) - strlen(program), "/sparring");
    status = run_script(check_script, (const char *const[]){archive, work, folder, program, NULL},
                        work, files, sizeof(files), err);
    if (status != STATUS_OK)
        return error_prefix(err, "'%s' is not good (it is unpacked in '%s'): ", archive, folder);
    (void)printf("%s: %s files as they were packed; the reports have the same figures\n", folder,
                 files);
    return STATUS_OK;
}

/* What goes from `path`: to --out, else beside it. */
static enum status find_target(const struct export_options *o, const char *path, char *text,
                               size_t size, struct error *err)
{
    size_t length = strlen(path);
    enum status status = make_absolute(o->out[0] != '\0' ? o->out : path, text, size, err);

    if (status != STATUS_OK || o->out[0] != '\0')
        return status;
    if (!o->check) {
        length = strlen(text);
        (void)snprintf(text + length, size - length, "%s", SUFFIX);
    } else if (length > strlen(SUFFIX) && strcmp(path + length - strlen(SUFFIX), SUFFIX) == 0) {
        text[strlen(text) - strlen(SUFFIX)] = '\0';
    } else {
        status = error_set(err, STATUS_INVALID,
                           "'%s' does not end in " SUFFIX ": name the new folder by --out", path);
    }
    return status;
}

static void remove_work(const char *work)
{
    static const char *const names[] = {"found", "sorted", "SHA256SUMS", "tables", "log"};
    char path[4096];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (file_join(path, sizeof(path), work, names[i], NULL) == STATUS_OK)
            (void)unlink(path);
    (void)rmdir(work);
}

static enum status run_export(const void *parsed, const char *const *words, size_t count,
                              int *ret_exit_code, struct error *err)
{
    const struct export_options *o = parsed;
    const char *base = getenv("TMPDIR");
    char work[512], from[4096], target[4096];
    enum status status = stop_install(err);

    (void)ret_exit_code;
    if (status == STATUS_OK && count != 1)
        status = error_set(err, STATUS_INVALID,
                           "name one folder or archive; 'sparring export --help' explains");
    if (status == STATUS_OK && o->check && o->tensorboard)
        status = error_set(err, STATUS_INVALID, "--check and --tensorboard exclude each other");
    if (status == STATUS_OK && !realpath(words[0], from))
        status = error_set_errno(err, errno, "'%s'", words[0]);
    if (status == STATUS_OK && o->tensorboard && o->out[0] == '\0')
        status = file_join(target, sizeof(target), from, "tensorboard", err);
    if (status == STATUS_OK && o->tensorboard)
        return tensorboard_export(from, o->out[0] != '\0' ? o->out : target, err);
    if (status == STATUS_OK)
        status = find_target(o, from, target, sizeof(target), err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(work, sizeof(work), "%.400s/sparring-export-XXXXXX",
                   base && base[0] != '\0' ? base : "/tmp");
    if (!mkdtemp(work))
        return error_set_errno(err, errno, "cannot make a temporary folder '%s'", work);
    status = o->check ? check(from, target, work, err) : pack(from, target, work, err);
    remove_work(work);
    return status;
}

int export_main(int argc, char **argv)
{
    static const struct program program = {.set = &options_set,
                                           .options_size = sizeof(struct export_options),
                                           .run_words = run_export};

    return program_main(&program, argc, argv);
}
