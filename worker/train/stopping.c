#include "worker/train/stopping.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "worker/train/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_END          "end"   /* updates of the whole run, as decimal text */
#define KEY_SAVED        "saved" /* rank 0 has no more need of the others */
#define NOBODY           "none"  /* what is no number */
#define PATIENCE_NS      INT64_C(1000000000)
#define PATIENCE_UPDATES 3
#define LOOK_MS          1000 /* between looks whether rank 0 is still there */
#define KEY_SIZE         48

static bool is_agreed_on(const struct trainer *t)
{
    return t->store && t->options->checkpoint_dir[0] != '\0';
}

/* Nobody completes an update without rank 0. */
static bool is_lockstep(const struct trainer *t)
{
    return strcmp(t->options->sync, "allreduce") == 0 ||
           (strcmp(t->options->sync, "ps") == 0 && consistency_is_lockstep(&t->consistency));
}

/* Of the ranks that are left: what a lost rank 0 has told is no word of the next one. */
static void make_key(const struct trainer *t, const char *what, char key[KEY_SIZE])
{
    (void)snprintf(key, KEY_SIZE, "stop/%ju/%s", (uintmax_t)t->recovery.count, what);
}

/* What cannot be told cannot be waited for, either: then this rank ends now, as alone. */
static void decide(struct trainer *t, uint64_t completed)
{
    struct stopping *s = &t->stopping;
    struct error why = {0};
    char key[KEY_SIZE];
    char text[32];

    make_key(t, KEY_END, key);
    s->agreed = true;
    s->end = is_lockstep(t) ? completed + 1 : completed;
    (void)snprintf(text, sizeof(text), "%" PRIu64, s->end);
    if (store_set(t->store, key, text, strlen(text), &why) != STATUS_OK) {
        log_debug("the others are not told of the stop: %s", why.text);
        s->end = completed;
    }
}

/* Has rank 0 told?  Does not wait: nothing is stored where nothing is there. */
static void look(struct trainer *t)
{
    struct stopping *s = &t->stopping;
    struct error why = {0};
    char key[KEY_SIZE];
    char *text = NULL;

    make_key(t, KEY_END, key);
    if (store_compare_set(t->store, key, NOBODY, NOBODY, &text, &why) != STATUS_OK)
        return;
    s->agreed = parse_uint64(text, &s->end);
    free(text);
}

bool stopping_is_due(struct trainer *t, uint64_t completed)
{
    struct stopping *s = &t->stopping;

    if (!stop_requested())
        return false;
    if (!s->asked) {
        s->asked = true;
        s->when = clock_now_ns();
        s->completed = completed;
    }
    if (!is_agreed_on(t))
        return true;
    if (!s->agreed && t->rank == 0)
        decide(t, completed);
    else if (!s->agreed)
        look(t);
    if (s->agreed) /* who is not in step may be far from rank 0, which needs nobody */
        return !is_lockstep(t) || completed >= s->end;
    return completed - s->completed >= PATIENCE_UPDATES && clock_now_ns() - s->when >= PATIENCE_NS;
}

uint64_t stopping_settle(struct trainer *t, uint64_t completed)
{
    const struct stopping *s = &t->stopping;
    struct error why = {0};

    if (!s->agreed || !is_lockstep(t))
        return completed;
    if (completed > s->end)
        return s->end;
    if (overlap_wait(t, &why) != STATUS_OK)
        log_debug("the last update may not have been made: %s", why.text);
    return completed;
}

void stopping_tell_saved(struct trainer *t)
{
    struct error why = {0};
    char key[KEY_SIZE];

    make_key(t, KEY_SAVED, key);
    if (t->stopping.agreed && store_set(t->store, key, "1", 1, &why) != STATUS_OK)
        log_debug("the others are not told that the run is saved: %s", why.text);
}

void stopping_await_saved(struct trainer *t)
{
    int64_t deadline_ns = clock_deadline_ns(t->options->timeout_ms);
    struct error why = {0};
    char key[KEY_SIZE];
    char *text = NULL;
    size_t size;
    enum status status;

    if (!t->stopping.agreed)
        return;
    make_key(t, KEY_SAVED, key);
    do
        status = store_get(t->store, key, LOOK_MS, &text, &size, &why);
    while (status == STATUS_TIMEOUT && clock_now_ns() < deadline_ns &&
           !store_find_failure(t->store, 0, &why));
    if (status != STATUS_OK)
        log_debug("rank 0 has not told that the run is saved: %s", why.text);
    free(text);
}
