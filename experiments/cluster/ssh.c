/*
 * ssh: a client for each task.  What it starts over there is a shell that starts the program in a
 * session of its own, sends it the signals whose names it reads on its standard input, and kills it
 * at the end of that, which is also the end of the connection; so nothing stays behind a client
 * that is killed.
 */
#include "experiments/cluster/engine.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "-$task" is its group, which is there once setsid has run. */
#define GUARD                                                                                      \
    "cd \"$1\" || exit 1; shift; exec 3<&0 </dev/null; setsid \"$@\" & task=$!; "                  \
    "tell() { kill -s $1 -- -$task || kill -s $1 $task; }; "                                       \
    "(while read -r name <&3; do tell $name; done; tell KILL) >/dev/null 2>&1 & reader=$!; "       \
    "wait $task; code=$?; kill $reader 2>/dev/null; exit $code"
#define NO_GUARD "cd \"$1\" || exit 1; shift; exec \"$@\""

extern char **environ;

static bool is_always(void)
{
    return true;
}

static enum status read_hosts(const char *on, struct text_list *ret, struct error *err)
{
    return engine_list_hosts(on, "ssh:HOST,... (a user of another name is for ~/.ssh/config)", ret,
                             err);
}

/* What configures our programs and the libraries that they use. */
static bool is_passed_on(const char *variable)
{
    static const char *const beginnings[] = {
        "SPARRING_",     "MASTER_", "NCCL_", "GLOO_",   "OMP_",
        "GOMP_",         "KMP_",    "DNNL_", "ONEDNN_", "GRPC_",
        "CUDA_VISIBLE_", "ASAN_",   "TSAN_", "UBSAN_",  "LD_LIBRARY_PATH="};

    for (size_t i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++)
        if (strncmp(variable, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

static void add_word(struct strbuf *line, const char *word)
{
    strbuf_add(line, " ");
    strbuf_add_shell_word(line, word);
}

/* One line for the login shell over there, whichever that is. */
static void add_line(const struct engine_step *step, struct strbuf *line)
{
    char *folder = getcwd(NULL, 0);

    strbuf_add(line, "exec sh -c");
    add_word(line, step->is_stopped ? GUARD : NO_GUARD);
    add_word(line, "sh");
    add_word(line, folder ? folder : ".");
    add_word(line, "env");
    for (char *const *variable = environ; *variable; variable++)
        if (is_passed_on(*variable))
            add_word(line, *variable);
    for (const char *const *v = step->variables; v && *v; v++)
        if (strchr(*v, '='))
            add_word(line, *v);
    for (const char *const *word = step->program; *word; word++)
        add_word(line, *word);
    free(folder);
}

static void add_command(const struct engine_step *step, struct text_list *words)
{
    static const char *const options[] = {"BatchMode=yes", "ConnectTimeout=10",
                                          "ServerAliveInterval=5", "ServerAliveCountMax=3"};
    struct strbuf line = STRBUF_INIT;

    add_line(step, &line);
    words->failed = words->failed || !strbuf_ok(&line);
    text_list_addf(words, "ssh");
    text_list_addf(words, "-T");
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        text_list_addf(words, "-o%s", options[i]);
    text_list_addf(words, "%s", step->hosts[0]);
    text_list_addf(words, "%s", line.text);
    strbuf_release(&line);
}

const struct engine engine_ssh = {.name = "ssh",
                                  .is_allocated = is_always,
                                  .is_running = is_always,
                                  .read_hosts = read_hosts,
                                  .add_command = add_command,
                                  .has_single_tasks = true,
                                  .reads_signals = true,
                                  .stop_signal = SIGTERM,
                                  .kill_signal = SIGKILL};
