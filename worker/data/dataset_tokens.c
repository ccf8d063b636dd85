/*
 * text:FILE, the bytes of a file as tokens, and tokens:FILE, 16-bit ids written by a tokenizer
 * (nanoGPT's train.bin).  The file is read into memory rather than mapped: a mapped file that
 * shrinks would end the process with SIGBUS.
 */
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "worker/data/dataset_ops.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_PREFIX       "text:"
#define TOKENS_PREFIX     "tokens:"
#define TEXT_VOCABULARY   256
#define TOKENS_VOCABULARY 50257 /* GPT-2's */

static bool accepts_text(const char *spec)
{
    return strncmp(spec, TEXT_PREFIX, strlen(TEXT_PREFIX)) == 0;
}

static bool accepts_tokens(const char *spec)
{
    return strncmp(spec, TOKENS_PREFIX, strlen(TOKENS_PREFIX)) == 0;
}

static enum status read_bytes(int fd, const char *path, unsigned char *bytes, size_t size,
                              struct error *err)
{
    size_t done = 0;

    while (done < size) {
        ssize_t got = pread(fd, bytes + done, size - done, (off_t)done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(err, errno, "cannot read '%s'", path);
        if (got == 0)
            return error_set(err, STATUS_DATA, "'%s' became shorter: %zu of %zu bytes", path, done,
                             size);
        done += (size_t)got;
    }
    return STATUS_OK;
}

static enum status read_open_file(int fd, const char *path, struct dataset *d, size_t *ret_size,
                                  struct error *err)
{
    struct stat info;
    enum status status;

    if (fstat(fd, &info) != 0)
        return error_set_errno(err, errno, "cannot look at '%s'", path);
    if (!S_ISREG(info.st_mode))
        return error_set(err, STATUS_DATA, "'%s' is not a file of tokens", path);
    if (info.st_size == 0)
        return error_set(err, STATUS_DATA, "'%s' is empty: no tokens", path);
    if ((uintmax_t)info.st_size > SIZE_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "'%s' has %jd bytes", path,
                         (intmax_t)info.st_size);
    status = mem_calloc((size_t)info.st_size, 1, path, &d->ids, err);
    if (status != STATUS_OK)
        return status;
    *ret_size = (size_t)info.st_size;
    return read_bytes(fd, path, d->ids, *ret_size, err);
}

/* O_NONBLOCK, so that open does not wait for the writer of a pipe, which is then refused. */
static enum status read_file(const char *path, struct dataset *d, size_t *ret_size,
                             struct error *err)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    enum status status;

    if (fd < 0)
        return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO,
                         "cannot open '%s': %s", path, strerror(errno));
    status = read_open_file(fd, path, d, ret_size, err);
    (void)close(fd);
    return status;
}

static enum status open_stream(const struct dataset_config *config, const char *path,
                               unsigned width, size_t vocabulary, struct dataset *d,
                               struct error *err)
{
    struct tokens *t = &d->tokens;
    size_t size = 0;
    size_t first;
    enum status status;

    if (config->positions == 0)
        return error_set(err, STATUS_CONFIG,
                         "data '%s' is a sequence of tokens: it needs a model that reads "
                         "sequences, as gpt:4,4,128,64",
                         config->spec);
    status = read_file(path, d, &size, err);
    if (status == STATUS_OK)
        status = tokens_init(t, path, d->ids, size, width, vocabulary, err);
    if (status != STATUS_OK)
        return status;
    tokens_split(t, config->split, &first);
    if (tokens_samples(t, config->positions) == 0)
        return error_set(err, STATUS_DATA,
                         "data '%s' has %zu tokens for %s: too few for one sample of %zu and the "
                         "token behind it",
                         config->spec, t->count,
                         config->split == SPLIT_TRAIN ? "training" : "testing", config->positions);
    status = dataset_samples(config, tokens_samples(t, config->positions), &d->count, err);
    if (status != STATUS_OK)
        return status;
    d->features = config->positions;
    d->positions = config->positions;
    d->classes = vocabulary;
    return tokens_check(t, path, first, err);
}

static enum status open_text(const struct dataset_config *config, struct dataset *d,
                             struct error *err)
{
    return open_stream(config, config->spec + strlen(TEXT_PREFIX), 1, TEXT_VOCABULARY, d, err);
}

/* "FILE" or "FILE,V"; a comma not followed by a number belongs to the name. */
static enum status open_tokens(const struct dataset_config *config, struct dataset *d,
                               struct error *err)
{
    const char *name = config->spec + strlen(TOKENS_PREFIX);
    const char *comma = strrchr(name, ',');
    uint64_t vocabulary = TOKENS_VOCABULARY;
    char path[4096];
    size_t length = strlen(name);

    if (comma && parse_uint64(comma + 1, &vocabulary)) {
        length = (size_t)(comma - name);
        if (vocabulary < 1 || vocabulary > TOKENS_VOCABULARY_MAX)
            return error_set(err, STATUS_CONFIG,
                             "data '%s': a vocabulary has 1 to %d tokens, not %ju", config->spec,
                             TOKENS_VOCABULARY_MAX, (uintmax_t)vocabulary);
    }
    if (length >= sizeof(path))
        return error_set(err, STATUS_CONFIG, "data '%s': its path is too long", config->spec);
    memcpy(path, name, length);
    path[length] = '\0';
    return open_stream(config, path, 2, (size_t)vocabulary, d, err);
}

const struct dataset_ops dataset_text_ops = {
    .usage = TEXT_PREFIX "FILE",
    .accepts = accepts_text,
    .open = open_text,
};

const struct dataset_ops dataset_tokens_ops = {
    .usage = TOKENS_PREFIX "FILE[,V]",
    .accepts = accepts_tokens,
    .open = open_tokens,
};
