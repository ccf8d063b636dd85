/*
 * doctor: programs and libraries that are found or not; what may change this process is tried in a
 * child.
 */
#include "experiments/doctor/doctor.h"

#include "common/base/host.h"
#include "common/base/module.h"
#include "common/base/version.h"
#include "common/option/program.h"
#include "experiments/doctor/findings.h"
#include "experiments/network/network.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOPIC_WIDTH 17

struct doctor_options {
    bool quiet;
};

static const struct option_spec specs[] = {
    {.name = "quiet",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct doctor_options, quiet),
     .help = "Leave out what is as it should be."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring doctor",
    .summary = "Say what this host has of what Sparring uses, what is missing and how to get it, "
               "and what makes measurements on it worse.  Changes nothing.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}},
};

void findings_add(struct findings *f, enum finding kind, const char *topic, const char *format, ...)
{
    static const char *const names[] = {"ok", "note", "missing", "BROKEN"};
    va_list args;

    f->counts[kind]++;
    strbuf_addf(&f->text, "%-*s %-7s ", TOPIC_WIDTH, topic, names[kind]);
    va_start(args, format);
    strbuf_vaddf(&f->text, format, args);
    va_end(args);
    strbuf_add(&f->text, "\n");
}

/* ---- programs */

/* The first line that a command prints; "" when it prints none. */
static void read_output(const char *command, char *text, size_t size)
{
    FILE *pipe = popen(command, "re");

    text[0] = '\0';
    if (!pipe)
        return;
    if (!fgets(text, (int)size, pipe))
        text[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    (void)pclose(pipe);
}

static void check_programs(struct findings *f)
{
    static const char *const names[] = {"sparring-worker", "sparring-server"};
    char folder[4096];
    struct error err = {0};

    if (subprocess_program_folder(folder, sizeof(folder), &err) != STATUS_OK) {
        findings_add(f, FINDING_BROKEN, "programs", "%s", err.text);
        return;
    }
    findings_add(f, FINDING_OK, "programs", "sparring " SPARRING_VERSION "%s%s in %s",
                 version_git()[0] != '\0' ? " of commit " : "", version_git(), folder);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char command[4400], line[256], expected[64];

        (void)snprintf(command, sizeof(command), "'%s/%s' --version 2>&1", folder, names[i]);
        (void)snprintf(expected, sizeof(expected), "%s " SPARRING_VERSION, names[i]);
        read_output(command, line, sizeof(line));
        if (strcmp(line, expected) != 0)
            findings_add(f, FINDING_BROKEN, "programs", "%s beside it: %s", names[i],
                         line[0] != '\0' ? line : "it prints no version");
    }
}

static bool is_on_path(const char *program)
{
    const char *path = getenv("PATH");

    while (path && *path) {
        const size_t length = strcspn(path, ":");
        char file[4096];

        (void)snprintf(file, sizeof(file), "%.*s/%s", (int)length, path, program);
        if (length > 0 && access(file, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static void check_tools(struct findings *f)
{
    static const struct {
        const char *program, *topic, *use, *package;
    } tools[] = {
        {"gnuplot", "figures", "reports have figures", "gnuplot-nox"},
        {"mpirun", "MPI", "--backend mpi, and jobs of mpirun", "openmpi-bin"},
        {"srun", "Slurm", "--on slurm", "slurm-client, where there is a cluster"},
    };

    for (size_t i = 0; i < sizeof(tools) / sizeof(tools[0]); i++)
        if (is_on_path(tools[i].program))
            findings_add(f, FINDING_OK, tools[i].topic, "%s: %s", tools[i].program, tools[i].use);
        else
            findings_add(f, FINDING_MISSING, tools[i].topic, "%s is not there (Debian: %s): %s",
                         tools[i].program, tools[i].package, tools[i].use);
}

/* ---- what is tried in a child */

/* Run `try` in a child; its error text, or "", comes back. */
static void try_in_child(enum status (*try)(struct error *err), char *text, size_t size)
{
    int ends[2];
    ssize_t got;
    pid_t child;
    int end = 0;

    (void)snprintf(text, size, "cannot start a process: %s", strerror(errno));
    if (pipe(ends) != 0)
        return;
    child = fork();
    if (child == 0) {
        struct error err = {0};
        const bool failed = try(&err) != STATUS_OK;

        if (failed)
            (void)!write(ends[1], err.text, strlen(err.text));
        _exit(0);
    }
    (void)close(ends[1]);
    got = child > 0 ? read(ends[0], text, size - 1) : -1;
    (void)close(ends[0]);
    if (child > 0) {
        text[got > 0 ? got : 0] = '\0';
        if (waitpid(child, &end, 0) == child && WIFSIGNALED(end))
            (void)snprintf(text, size, "the try was ended by signal %d", WTERMSIG(end));
    }
}

static enum status try_network(struct error *err)
{
    struct network network = NETWORK_CLOSED;
    struct network_options options = {.rate = "1gbit", .check = "warn"};
    struct network_link links[2];
    enum status status = network_options_read(&options, 2, 2, 0, links, err);

    if (status == STATUS_OK)
        status = network_open(&network, links, 2, &options, false, err);
    network_close(&network);
    return status;
}

static enum status try_cuda(struct error *err)
{
    void *module;

    return module_open(&module_cuda, &module, err);
}

static void check_network(struct findings *f)
{
    char text[2048];

    try_in_child(try_network, text, sizeof(text));
    if (text[0] == '\0')
        findings_add(f, FINDING_OK, "emulated network", "two hosts with a link of 1 Gbit/s, tried");
    else
        findings_add(f, FINDING_MISSING, "emulated network", "%s", text);
}

static void check_gpu(struct findings *f)
{
    char text[2048];
    glob_t found = {0};
    const size_t count = glob("/dev/nvidia[0-9]*", 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    const unsigned visible = host_gpus();

    globfree(&found);
    try_in_child(try_cuda, text, sizeof(text));
    if (text[0] == '\0' && count > 0 && visible > 0)
        findings_add(f, FINDING_OK, "GPU", "%u, and the CUDA module loads", visible);
    else
        findings_add(f, FINDING_MISSING, "GPU", "%zu: %s", count,
                     text[0] != '\0' ? text
                     : count == 0    ? "there is no /dev/nvidia0"
                                     : "CUDA_VISIBLE_DEVICES hides them");
}

/* ---- the subcommand */

static void print_findings(const struct findings *f, bool quiet)
{
    for (const char *line = f->text.text; *line; line += strcspn(line, "\n") + 1)
        if (!quiet || strncmp(line + TOPIC_WIDTH + 1, "ok ", 3) != 0)
            (void)printf("%.*s\n", (int)strcspn(line, "\n"), line);
    (void)printf("%u as it should be, %u to note, %u missing, %u broken\n", f->counts[FINDING_OK],
                 f->counts[FINDING_NOTE], f->counts[FINDING_MISSING], f->counts[FINDING_BROKEN]);
}

static enum status run_doctor(const void *parsed, const char *const *words, size_t count,
                              int *ret_exit_code, struct error *err)
{
    const struct doctor_options *o = parsed;
    struct findings f = {.text = STRBUF_INIT};
    enum status status = STATUS_OK;

    if (count > 0)
        return error_set(err, STATUS_INVALID, "unexpected argument '%s'", words[0]);
    check_programs(&f);
    doctor_check_host(&f);
    check_network(&f);
    check_gpu(&f);
    check_tools(&f);
    if (strbuf_ok(&f.text))
        print_findings(&f, o->quiet);
    else
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the findings");
    *ret_exit_code = f.counts[FINDING_BROKEN] > 0 ? 1 : 0;
    strbuf_release(&f.text);
    return status;
}

int doctor_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct doctor_options),
        .run_words = run_doctor,
    };

    return program_main(&program, argc, argv);
}
