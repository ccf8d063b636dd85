/*
 * Slurm's compressed texts.  One pass over the characters, no allocation: only the first host is
 * needed (rank 0 runs there), but the whole text is checked, so a truncated list is an error and
 * not a wrong host name.  `scontrol show hostnames` is the reference for the grammar: names of
 * letters, digits, '-', '.', '_', with any number of bracketed numeric ranges, whose leading zeros
 * are significant ("n[08-10]" is n08, n09, n10).  No state, no locks.
 */
#include "common/launch_env/node_list.h"

#include "common/launch_env/launch_env.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* Output of the first host name; once `complete`, the rest of the list is only checked. */
struct host_text {
    char *text;
    size_t size;
    size_t length;
    bool complete;
};

static bool append_host_text(struct host_text *host, const char *bytes, size_t count)
{
    if (host->complete)
        return true;
    if (count >= host->size - host->length)
        return false;
    memcpy(host->text + host->length, bytes, count);
    host->length += count;
    host->text[host->length] = '\0';
    return true;
}

static size_t count_digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* a <= b for two runs of digits, without a limit on their length. */
static bool number_not_above(const char *a, size_t a_length, const char *b, size_t b_length)
{
    while (a_length > 1 && *a == '0') {
        a++;
        a_length--;
    }
    while (b_length > 1 && *b == '0') {
        b++;
        b_length--;
    }
    if (a_length != b_length)
        return a_length < b_length;
    return memcmp(a, b, a_length) <= 0;
}

/* Check "10,20-25]" at `text` (after the opening bracket) and append its first number; NULL when
 * malformed, else the position after the closing bracket. */
static const char *read_brackets(const char *text, struct host_text *host)
{
    for (bool first = true;; first = false) {
        const size_t from = count_digits(text);
        const char *start = text;

        if (from == 0 || (first && !append_host_text(host, text, from)))
            return NULL;
        text += from;
        if (*text == '-') {
            const size_t to = count_digits(text + 1);

            if (to == 0 || !number_not_above(start, from, text + 1, to))
                return NULL;
            text += 1 + to;
        }
        if (*text == ']')
            return text + 1;
        if (*text++ != ',')
            return NULL;
    }
}

static bool is_name_character(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '.' || c == '_';
}

/* Check one entry of the list; NULL when malformed, else its end (a comma or the NUL). */
static const char *read_entry(const char *text, struct host_text *host)
{
    const char *start = text;

    while (text && *text != ',' && *text != '\0') {
        if (*text == '[') {
            text = read_brackets(text + 1, host);
        } else {
            if (!is_name_character(*text) || !append_host_text(host, text, 1))
                return NULL;
            text++;
        }
    }
    return text == start ? NULL : text;
}

enum status launch_env_first_host(const char *nodelist, char *text, size_t size, struct error *err)
{
    char first[256] = "";
    struct host_text host = {.text = first, .size = sizeof(first)};
    const char *next = nodelist;

    for (;;) {
        next = read_entry(next, &host);
        if (!next)
            return error_set(err, STATUS_CONFIG, "'%.200s' is not a Slurm node list", nodelist);
        host.complete = true;
        if (*next == '\0')
            break;
        next++;
    }
    if (host.length >= size)
        return error_set(err, STATUS_CONFIG, "host name '%s' of %zu characters does not fit", first,
                         host.length);
    memcpy(text, first, host.length + 1);
    return STATUS_OK;
}

/* A decimal number of at most 9 digits at *text, which is moved past it. */
static bool parse_number(const char **text, unsigned *ret)
{
    const size_t digits = count_digits(*text);
    unsigned value = 0;

    if (digits == 0 || digits > 9)
        return false;
    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (unsigned)((*text)[i] - '0');
    *text += digits;
    *ret = value;
    return true;
}

/* "2(x2)" or "1" at *text, which is moved past it. */
static bool parse_tasks(const char **text, unsigned *ret_tasks, unsigned *ret_nodes)
{
    *ret_nodes = 1;
    if (!parse_number(text, ret_tasks))
        return false;
    if (**text != '(')
        return true;
    if ((*text)[1] != 'x')
        return false;
    *text += 2;
    if (!parse_number(text, ret_nodes) || **text != ')')
        return false;
    (*text)++;
    return true;
}

enum status node_list_tasks(const char *text, unsigned node, unsigned *ret_tasks, struct error *err)
{
    const char *next = text;
    unsigned tasks = 0;
    unsigned nodes = 0;

    for (;;) {
        if (!parse_tasks(&next, &tasks, &nodes))
            return error_set(err, STATUS_CONFIG, "'%.200s' is not a Slurm task list", text);
        if (node < nodes)
            break;
        node -= nodes;
        if (*next == '\0')
            return error_set(err, STATUS_CONFIG, "task list '%.200s' ends before node %u", text,
                             node);
        if (*next++ != ',')
            return error_set(err, STATUS_CONFIG, "'%.200s' is not a Slurm task list", text);
    }
    *ret_tasks = tasks;
    return STATUS_OK;
}
