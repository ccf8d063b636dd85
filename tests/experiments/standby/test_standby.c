/*
 * What a standby daemon runs, and what it refuses; the command line that it makes; the files that
 * it sends.
 */
#include "experiments/standby/job.h"
#include "experiments/standby/task.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct standby_request request;
static struct text_list folders;

static void setup(void)
{
    char folder[PATH_MAX];

    request = (struct standby_request){.holder = "alice@lab (pid 7)", .program = "sparring-worker"};
    (void)support_write("data", "x", 1);
    ck_assert_int_eq(mkdir(support_path("folder"), 0700), 0);
    ck_assert_int_eq(symlink("/etc", support_path("link")), 0);
    ck_assert_ptr_nonnull(realpath(support_path("."), folder));
    text_list_addf(&folders, "%s", folder);
}

static void teardown(void)
{
    wire_release_standby_request(&request);
    text_list_release(&folders);
}

/* A word or a variable ("V NAME=value"); %s is the allowed folder.  NULL: accepted. */
static const struct {
    const char *text, *refusal;
} values[] = {
    {"--model=mlp:784-64-10", NULL},
    {"mnist:%s", NULL},
    {"--data=mnist:%s/folder", NULL},
    {"--data=%s/data", NULL},
    {"%s/new", NULL},
    {"tcp://n1:29500", NULL},
    {"--run-dir=.", NULL},
    {"--learning-rate=1e-3", NULL},
    {"/etc/passwd", "is not in a folder"},
    {"text:/etc/passwd", "is not in a folder"},
    {"--data=text:/etc/passwd", "is not in a folder"},
    {"%s-beside", "is not in a folder"},
    {"%s/link/passwd", "is not in a folder"},
    {"%s/folder/none/new", "is not in a folder"},
    {"file://%s/data", NULL},
    {"file:///etc/passwd", "is not in a folder"},
    {"tcp://n1/etc", "is not in a folder"},
    {"%s/../x", "a value with '..'"},
    {"..", "a value with '..'"},
    {"folder/data", "a relative path"},
    {"unix:%s/a,unix:/etc/b", "is not in a folder"},
    {"--tls-key", "has the daemon's keys"},
    {"--tls_ca=x", "has the daemon's keys"},
    {"--token-file=x", "has the daemon's keys"},
    {"--config=%s/x.yaml", "have to be in its words"},
    {"--config", "have to be in its words"},
    {"V RANK=1", NULL},
    {"V SPARRING_LR=0.1", NULL},
    {"V SPARRING_RUN_DIR=.", NULL},
    {"V SPARRING_CUDA_MODULE=/tmp/x.so", "is not in a folder"},
    {"V SPARRING_CUDA_MODULE=%s/x.so", "is not a job's"},
    {"V SPARRING_MPI_MODULE=%s/x.so", "is not a job's"},
    {"V OMP_TOOL_LIBRARIES=%s/x.so", "must not hold a path"},
    {"V NCCL_NET_PLUGIN=/etc/x.so", "is not in a folder"},
    {"V SPARRING_TLS_CA=x", "is not a job's"},
    {"V SPARRING_TOKEN_FILE=x", "is not a job's"},
    {"V SPARRING_PROGRAMS=x", "is not a job's"},
    {"V LD_PRELOAD=x.so", "is not a job's"},
    {"V LD_LIBRARY_PATH=x", "is not a job's"},
    {"V PATH=x", "is not a job's"},
    {"V RANKS=1", "is not a job's"},
    {"V MASTER_", "is not a job's"},
};

START_TEST(test_value)
{
    const bool is_variable = strncmp(values[_i].text, "V ", 2) == 0;
    const char *text = values[_i].text + (is_variable ? 2 : 0);
    char value[PATH_MAX + 100];
    struct error err = {0};
    enum status status;

    (void)snprintf(value, sizeof(value), "%s", text);
    if (strstr(value, "%s"))
        (void)snprintf(value, sizeof(value), "%.*s%s%s", (int)(strstr(text, "%s") - text), text,
                       folders.texts[0], strstr(text, "%s") + 2);
    text_list_addf(is_variable ? &request.variables : &request.words, "%s", value);
    status = job_check(&request, &folders, &err);
    if (!values[_i].refusal) {
        ck_assert_msg(status == STATUS_OK, "%s: %s", value, err.text);
        return;
    }
    ck_assert_msg(status == STATUS_DENIED, "%s", value);
    ck_assert_msg(strstr(err.text, values[_i].refusal) != NULL, "%s: %s", value, err.text);
}
END_TEST

START_TEST(test_program)
{
    static const struct {
        const char *program;
        enum status status;
    } programs[] = {{"sparring-worker", STATUS_OK},
                    {"sparring-server", STATUS_OK},
                    {"probe", STATUS_OK},
                    {"", STATUS_OK},
                    {"sh", STATUS_DENIED},
                    {"sparring", STATUS_DENIED},
                    {"sparring-worker2", STATUS_DENIED}};
    struct error err = {0};

    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        (void)snprintf(request.program, sizeof(request.program), "%s", programs[i].program);
        ck_assert_msg(job_check(&request, &folders, &err) == programs[i].status, "%s",
                      programs[i].program);
    }
    request.program[0] = request.holder[0] = '\0';
    ck_assert_int_eq(job_check(&request, &folders, &err), STATUS_DENIED);
}
END_TEST

static void assert_words(const struct text_list *words, const char *const *wanted)
{
    for (size_t i = 0; i < words->length; i++)
        ck_assert_str_eq(words->texts[i], wanted[i]);
    ck_assert_ptr_null(wanted[words->length]);
}

START_TEST(test_command)
{
    static const char *const wanted[] = {
        "env",  "--chdir=/task", "RANK=1", "SPARRING_TLS_CA=/ca", "/bin/sparring-worker",
        "--lr", "0.1",           NULL};
    struct text_list own = {0}, words = {0};

    text_list_addf(&request.variables, "RANK=1");
    text_list_addf(&request.words, "--lr");
    text_list_addf(&request.words, "0.1");
    text_list_addf(&own, "SPARRING_TLS_CA=/ca");
    job_command(&request, "/bin", "/task", &own, &words);
    assert_words(&words, wanted);
    text_list_release(&own);
    text_list_release(&words);
}
END_TEST

/* One that is larger than a piece, one that is empty, one in a folder; no links, no pipes. */
START_TEST(test_files)
{
    static char large[WIRE_STANDBY_DATA_MAX + 1000];
    struct file_sender *f = NULL;
    struct standby_reply reply;
    size_t files = 0, bytes = 0;
    enum status status;

    (void)support_write("large", large, sizeof(large));
    (void)support_write("empty", "", 0);
    (void)support_write("folder/inner", "inner", 5);
    ck_assert_int_eq(mkfifo(support_path("pipe"), 0600), 0);
    ck_assert_int_eq(file_sender_open(support_path("."), &f, NULL), STATUS_OK);
    while ((status = file_sender_next(f, &reply, NULL)) == STATUS_OK && reply.kind != 0) {
        ck_assert_int_eq(reply.kind, STANDBY_FILE);
        files += reply.offset == 0;
        bytes += reply.size;
        ck_assert(reply.offset == 0 || strcmp(reply.name, "large") == 0);
        ck_assert(strcmp(reply.name, "folder/inner") != 0 || memcmp(reply.data, "inner", 5) == 0);
        ck_assert(!strstr(reply.name, "passwd") && strcmp(reply.name, "pipe") != 0);
    }
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_uint_eq(files, 4); /* with "data" */
    ck_assert_uint_eq(bytes, sizeof(large) + 5 + 1);
    file_sender_close(f);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("standby", 60, CHECKED_FIXTURE(setup, teardown),
                       LOOP_TEST(test_value, 0, sizeof(values) / sizeof(values[0])),
                       TEST(test_program), TEST(test_command), TEST(test_files));
}
