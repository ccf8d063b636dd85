/*
 * sweep_nccl_names: translates nccl-tests' names of options, types and operations into ours, and
 * holds the properties of each call.
 */
#include "common/base/memory.h"
#include "experiments/bench/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct translation {
    char letter;
    const char *name; /* nccl-tests' long name; NULL: none but the letter */
    const char *ours; /* NULL: refused */
    const char *why;  /* the reason of the refusal */
};

static const struct translation translations[] = {
    {'b', "minbytes", "min-bytes", NULL},
    {'e', "maxbytes", "max-bytes", NULL},
    {'i', "stepbytes", "step-bytes", NULL},
    {'f', "stepfactor", "factor", NULL},
    {'n', "iters", "iterations", NULL},
    {'w', "warmup_iters", "warmup", NULL},
    {'m', "agg_iters", "aggregate", NULL},
    {'N', "run_cycles", "cycles", NULL},
    {'c', NULL, "check", NULL},
    {'o', NULL, "op", NULL},
    {'d', NULL, "datatype", NULL},
    {'r', NULL, "root", NULL},
    {'a', NULL, "average", NULL},
    {'u', "unalign", "misalign", NULL},
    {'g', "ngpus", "nproc", NULL},
    {'T', "timeout", "timeout-ms", NULL},
    {'J', "output_file", "json", NULL},
    {'I', NULL, "per-iteration", NULL},
    {'t', "nthreads", NULL, "a rank is a process here: use --nproc"},
    {'p', "parallel_init", NULL, "it initialises GPUs"},
    {'z', "blocking", NULL, "every operation here is waited for"},
    {'G', "cudagraph", NULL, "it is for GPUs"},
    {'y', "stream_null", NULL, "it is for GPUs"},
    {'R', "local_register", NULL, "use --registered"},
    {'C', "report_cputime", NULL, "times are the processor's always"},
};

static const struct translation *find_letter(const char *word)
{
    for (size_t i = 0; i < sizeof(translations) / sizeof(translations[0]); i++)
        if (word[0] == '-' && word[1] == translations[i].letter)
            return &translations[i];
    return NULL;
}

static const struct translation *find_name(const char *word, size_t length)
{
    for (size_t i = 0; i < sizeof(translations) / sizeof(translations[0]); i++) {
        const char *name = translations[i].name;

        if (name && strlen(name) == length && strncmp(word, name, length) == 0)
            return &translations[i];
    }
    return NULL;
}

/* The translation of an option of nccl-tests, and its value in the same word; NULL: not one. */
static const struct translation *find_option(const char *word, const char **ret_value)
{
    *ret_value = NULL;
    if (word[0] != '-' || word[1] == '\0')
        return NULL;
    if (word[1] != '-') {
        if (word[2] != '\0')
            *ret_value = word + 2 + (word[2] == '=');
        return find_letter(word);
    }
    if (strchr(word, '='))
        *ret_value = strchr(word, '=') + 1;
    return find_name(word + 2, strcspn(word + 2, "="));
}

static bool is_flag_value(const char *text)
{
    return text && (strcmp(text, "0") == 0 || strcmp(text, "1") == 0);
}

/* Write "--ours=value" to *text, of which *left bytes are free. */
static char *write_word(const struct translation *t, const char *value, char **text, size_t *left)
{
    char *word = *text;
    bool seconds = strcmp(t->ours, "timeout-ms") == 0;
    bool flag = strcmp(t->ours, "per-iteration") == 0;
    int length;

    if (flag)
        length =
            snprintf(word, *left, "--%s=%s", t->ours, value && value[0] == '0' ? "false" : "true");
    else
        length = snprintf(word, *left, "--%s=%s%s", t->ours, value, seconds ? "000" : "");
    *text += length + 1;
    *left -= (size_t)length + 1;
    return word;
}

static enum status translate_words(int argc, char *const *argv, char **words, int *ret_argc,
                                   char *text, size_t left, struct error *err)
{
    int count = 0;

    for (int i = 0; i < argc; i++) {
        const char *value = NULL;
        const struct translation *t = i == 0 ? NULL : find_option(argv[i], &value);
        bool flag;

        if (!t) {
            words[count++] = argv[i];
            continue;
        }
        if (!t->ours)
            return error_set(err, STATUS_INVALID, "option '%s' of nccl-tests is not taken: %s",
                             argv[i], t->why);
        flag = strcmp(t->ours, "per-iteration") == 0;
        if (!value && (!flag || is_flag_value(argv[i + 1])) && i + 1 < argc)
            value = argv[++i];
        if (!value && !flag)
            return error_set(err, STATUS_INVALID, "option '%s' needs a value", argv[i]);
        words[count++] = write_word(t, value, &text, &left);
    }
    words[count] = NULL;
    *ret_argc = count;
    return STATUS_OK;
}

enum status sweep_translate_options(int argc, char *const *argv, int *ret_argc, char ***ret_argv,
                                    struct error *err)
{
    size_t text_bytes = 0;
    size_t list_bytes = ((size_t)argc + 1) * sizeof(char *);
    char *memory;
    enum status status;

    for (int i = 0; i < argc; i++)
        text_bytes += strlen(argv[i]) + 32;
    status = mem_calloc(list_bytes + text_bytes, 1, "command line", &memory, err);
    if (status != STATUS_OK)
        return status;
    status = translate_words(argc, argv, (char **)(void *)memory, ret_argc, memory + list_bytes,
                             text_bytes, err);
    if (status == STATUS_OK)
        *ret_argv = (char **)(void *)memory;
    else
        free(memory);
    return status;
}

/* ---- types and operations ---- */

static const struct {
    enum dtype dtype;
    const char *name;
} dtypes[] = {
    {DTYPE_FLOAT32, "float"},  {DTYPE_BFLOAT16, "bfloat16"}, {DTYPE_FLOAT16, "half"},
    {DTYPE_FLOAT64, "double"}, {DTYPE_INT32, "int32"},       {DTYPE_INT64, "int64"},
    {DTYPE_BYTE, "uint8"},
};

bool sweep_parse_dtype(const char *text, enum dtype *ret)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(text, dtypes[i].name) == 0) {
            *ret = dtypes[i].dtype;
            return true;
        }
    return dtype_parse(text, ret);
}

const char *sweep_dtype_name(enum dtype dtype)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return "?";
}

bool sweep_parse_op(const char *text, enum reduce_op *ret)
{
    if (strcmp(text, "mulsum") == 0) {
        *ret = REDUCE_PREMUL_SUM;
        return true;
    }
    return reduce_op_parse(text, ret);
}

const char *sweep_op_name(enum reduce_op op)
{
    return op == REDUCE_PREMUL_SUM ? "mulsum" : reduce_op_name(op);
}

/* ---- calls ---- */

const char *sweep_call_name(enum collective_call call)
{
    return call == SWEEP_SENDRECV ? "sendrecv" : collective_call_name(call);
}

bool sweep_call_has_root(enum collective_call call)
{
    return call == COLLECTIVE_BROADCAST || call == COLLECTIVE_REDUCE || call == COLLECTIVE_GATHER ||
           call == COLLECTIVE_SCATTER;
}

bool sweep_call_spreads(enum collective_call call)
{
    return call == COLLECTIVE_SCATTER || call == COLLECTIVE_REDUCE_SCATTER;
}

bool sweep_call_has_blocks(enum collective_call call)
{
    return sweep_call_spreads(call) || call == COLLECTIVE_ALL_GATHER || call == COLLECTIVE_GATHER ||
           call == COLLECTIVE_ALL_TO_ALL;
}

/* A buffer cannot be sent while another one is received into it. */
bool sweep_call_in_place(enum collective_call call)
{
    return call != SWEEP_SENDRECV && call != COLLECTIVE_BARRIER;
}

double sweep_bus_factor(enum collective_call call, unsigned ranks)
{
    return call == SWEEP_SENDRECV ? 1 : collective_bus_factor(call, ranks);
}
