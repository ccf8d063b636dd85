/*
 * What bash, zsh and fish complete, and the manual pages: both come from --help, so that a command
 * or an option that is added needs nothing more.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 60000

#define OUR_PROGRAMS "PATH=$(dirname \"$(realpath \"$1\")\"):$PATH; cd /; "

/* A script that prints what a shell offers for the last of the words $3, one per line, with blanks
 * around each; $1 is our program, $2 the completion. */
static const struct {
    const char *shell, *completion, *script;
} shells[] = {
    {"bash", "experiments/shell/completion.bash",
     OUR_PROGRAMS "source \"$2\"; COMP_WORDS=($3); "
                  "[[ $3 == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
                  "_sparring; printf ' %s \\n' \"${COMPREPLY[@]}\""},
    {"zsh", "experiments/shell/completion.zsh",
     OUR_PROGRAMS "words=(${(s: :)3}); [[ $3 == *' ' ]] && words+=(''); CURRENT=$#words; "
                  "compadd() { shift; print -rl -- \" \"${^${(M)@:#$words[CURRENT]*}}\" \" }; "
                  "_files() { print -rl -- \" \"${^$(print -rl -- $words[CURRENT]*(N))}\" \" }; "
                  "source $2"},
    {"fish", "experiments/shell/completion.fish",
     "set -x PATH (dirname (realpath $argv[1])) $PATH; cd /; source $argv[2]; "
     "complete -C $argv[3] | string replace -r '/?(\\t.*)?$' ' ' | string replace -r '^' ' '"},
};

static const char *complete(int shell, const char *words)
{
    const bool is_fish = strcmp(shells[shell].shell, "fish") == 0;

    return process_run(
        0, TIMEOUT_MS, NULL,
        is_fish
            ? ARGS("fish", "--no-config", "-c", shells[shell].script, support_program("sparring"),
                   support_source(shells[shell].completion), words)
            : ARGS(shells[shell].shell, "-c", shells[shell].script, "sh",
                   support_program("sparring"), support_source(shells[shell].completion), words));
}

static const struct {
    const char *words;
    const char *offered, *not_offered;
} completions[] = {
    {"sparring co", " compare ", " launch "},
    {"sparring ", " doctor ", " --out "},
    {"sparring report --h", " --help ", " --out "},
    {"sparring bench t", " train ", " ps "},
    {"sparring launch --nproc", " --nproc-per-node ", " --nnodes "},
    {"sparring compare stragglers --dry", " --dry-run ", " --out "},
    {"sparring-worker --sync ps --serv", " --servers ", " --sync "},
    {"sparring launch --servers 1 -- sparring-worker --mod", " --model ", " --nproc-per-node "},
    {"sparring-server --listen /bo", " /boot ", " --listen "},
};

START_TEST(test_completion)
{
    for (int s = 0; s < (int)(sizeof(shells) / sizeof(shells[0])); s++) {
        const char *offered;

        if (!process_shell("command -v %s >/dev/null", shells[s].shell)) {
            support_skip_package(shells[s].shell);
            continue;
        }
        offered = complete(s, completions[_i].words);
        assert_contains(offered, completions[_i].offered);
        ck_assert_msg(strstr(offered, completions[_i].not_offered) == NULL, "%s: %s",
                      shells[s].shell, offered);
    }
}
END_TEST

/* groff warns of nothing, and every option of --help has its place. */
START_TEST(test_manuals)
{
    const char *listed, *page;

    if (!process_shell("command -v groff >/dev/null")) {
        support_skip_package("groff-base");
        return;
    }
    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS("sh", "-c", "exec \"$1\" \"$(dirname \"$0\")\" \"$2\"",
                           support_program("sparring"),
                           support_source("experiments/shell/make-manuals"), support_path("man")));
    page = process_run(0, TIMEOUT_MS, NULL,
                       ARGS("sh", "-c",
                            "for page in \"$0\"/*.1; do groff -man -ww -z -Tascii $page; done",
                            support_path("man")));
    ck_assert_str_eq(page, "");
    listed = process_run(0, TIMEOUT_MS, NULL, ARGS(support_program("sparring-worker"), "--help"));
    page = process_run(0, TIMEOUT_MS, NULL,
                       ARGS("sh", "-c", "cat \"$0\"/sparring-worker.1", support_path("man")));
    for (const char *line = listed; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char option[100], entry[300] = ".B ";
        size_t length = strlen(entry);

        if (sscanf(line, "  --%99[a-z0-9-]", option) != 1 || line[2] != '-')
            continue;
        for (const char *c = "--"; *c; c++)
            length += (size_t)snprintf(entry + length, sizeof(entry) - length, "\\%c", *c);
        for (const char *c = option; *c; c++)
            length += (size_t)snprintf(entry + length, sizeof(entry) - length, "%s%c",
                                       *c == '-' ? "\\" : "", *c);
        ck_assert_msg(strstr(page, entry) != NULL, "no %s", entry);
    }
    ck_assert(process_shell("[ -s %s/sparring-bench-train.1 ] && [ -s %s/sparring-doctor.1 ]",
                            support_path("man"), support_path("man")));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("shell", 60,
                       LOOP_TEST(test_completion, 0, sizeof(completions) / sizeof(completions[0])),
                       TEST(test_manuals));
}
