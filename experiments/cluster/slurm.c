/*
 * slurm: salloc, srun and scontrol.  srun itself ends at SIGTERM, and kills its tasks; SIGUSR1 it
 * passes on.
 *
 * Servers and ranks are steps that overlap, not the components of one step: servers are to listen
 * before ranks start, and to end after them.
 */
#include "experiments/cluster/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STOP_SECONDS 60 /* before the time limit */

static bool is_allocated(void)
{
    const char *job = getenv("SLURM_JOB_ID");

    return job && *job;
}

/* salloc waits for nodes also where the cluster does not have so many. */
static enum status check_nodes(size_t hosts, struct error *err)
{
    FILE *pipe = popen("sinfo --Node --noheader --format=%N 2>/dev/null | sort -u | wc -l", "re");
    char answer[64] = "";
    size_t nodes = 0;

    if (pipe) {
        (void)!fgets(answer, sizeof(answer), pipe);
        nodes = strtoul(answer, NULL, 10);
        (void)pclose(pipe);
    }
    if (nodes == 0 || nodes >= hosts)
        return STATUS_OK; /* 0: salloc will say what is wrong */
    return error_set(err, STATUS_CONFIG, "the experiment takes %zu nodes, and sinfo lists %zu",
                     hosts, nodes);
}

static enum status add_allocation(const char *on, size_t hosts, char *const *argv,
                                  struct text_list *words, struct error *err)
{
    (void)on;
    text_list_addf(words, "salloc");
    text_list_addf(words, "--job-name=sparring");
    text_list_addf(words, "--nodes=%zu", hosts);
    text_list_addf(words, "--exclusive");
    for (; *argv; argv++)
        text_list_addf(words, "%s", *argv);
    return check_nodes(hosts, err);
}

/* False once the job was cancelled, is out of time or has lost a node. */
static bool is_running(void)
{
    char command[128], answer[64] = "";
    FILE *pipe;

    (void)snprintf(command, sizeof(command),
                   "squeue --noheader --job=%.20s --states=RUNNING --format=%%i 2>&1",
                   getenv("SLURM_JOB_ID"));
    pipe = popen(command, "re");
    if (!pipe)
        return true;
    (void)!fgets(answer, sizeof(answer), pipe);
    return pclose(pipe) != 0 ? strstr(answer, "Invalid job id") == NULL : answer[0] != '\0';
}

static enum status read_hosts(const char *on, struct text_list *ret, struct error *err)
{
    char line[256];
    FILE *pipe;
    int code;

    (void)on;
    *ret = (struct text_list){0};
    if (!is_allocated())
        return error_set(err, STATUS_CONFIG,
                         "no Slurm allocation here: SLURM_JOB_ID is not set (salloc, sbatch)");
    pipe = popen("exec scontrol show hostnames", "re");
    if (!pipe)
        return error_set_errno(err, errno, "cannot run 'scontrol show hostnames'");
    while (fgets(line, sizeof(line), pipe)) {
        line[strcspn(line, "\n")] = '\0';
        text_list_addf(ret, "%s", line);
    }
    code = pclose(pipe);
    if (code != 0)
        return error_set(err, STATUS_CONFIG, "'scontrol show hostnames' failed (status %d)", code);
    return ret->failed ? error_set(err, STATUS_NO_MEMORY, "no memory for names of hosts")
                       : STATUS_OK;
}

static size_t count_hosts(const struct engine_step *step)
{
    size_t count = 0;

    for (size_t i = 0; i < step->length; i++) {
        size_t k = 0;

        while (strcmp(step->hosts[k], step->hosts[i]) != 0)
            k++;
        count += k == i;
    }
    return count;
}

static void add_command(const struct engine_step *step, struct text_list *words)
{
    struct strbuf list = STRBUF_INIT;

    for (size_t i = 0; i < step->length; i++)
        strbuf_addf(&list, "%s%s", i > 0 ? "," : "", step->hosts[i]);
    words->failed = words->failed || !strbuf_ok(&list);
    text_list_addf(words, "srun");
    text_list_addf(words, "--overlap");
    text_list_addf(words, "--mpi=none");
    text_list_addf(words, "--kill-on-bad-exit=1");
    if (step->is_labelled)
        text_list_addf(words, "--label");
    text_list_addf(words, "--nodes=%zu", count_hosts(step));
    text_list_addf(words, "--ntasks=%zu", step->length);
    text_list_addf(words, "--distribution=arbitrary");
    text_list_addf(words, "--nodelist=%s", strbuf_ok(&list) ? list.text : "");
    for (const char *const *word = step->program; *word; word++)
        text_list_addf(words, "%s", *word);
    strbuf_release(&list);
}

static enum status add_script(const struct engine_script *script, struct strbuf *text,
                              struct error *err)
{
    char *folder = getcwd(NULL, 0);

    strbuf_add(text, "#!/bin/sh\n#SBATCH --job-name=");
    strbuf_add_shell_word(text, script->job);
    strbuf_addf(text,
                "\n#SBATCH --nodes=%zu\n"
                "#SBATCH --exclusive\n"
                "#SBATCH --requeue\n"
                "#SBATCH --open-mode=append\n"
                "#SBATCH --signal=B:TERM@%d\n"
                "cd ",
                script->hosts, STOP_SECONDS);
    strbuf_add_shell_word(text, folder ? folder : ".");
    strbuf_add(text, "\n# Started again, it goes on where it was.\nexec");
    for (const char *const *word = script->program; *word; word++) {
        strbuf_add(text, " ");
        strbuf_add_shell_word(text, *word);
    }
    strbuf_add(text, " --on slurm\n");
    free(folder);
    return strbuf_ok(text) ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "no memory for a script");
}

const struct engine engine_slurm = {.name = "slurm",
                                    .is_allocated = is_allocated,
                                    .add_allocation = add_allocation,
                                    .is_running = is_running,
                                    .read_hosts = read_hosts,
                                    .add_command = add_command,
                                    .add_script = add_script,
                                    .stop_signal = SIGUSR1,
                                    .kill_signal = SIGTERM};
