/*
 * emulator_threads: the threads of a block.
 *
 * One fiber runs the threads of a block one after the other while none of them waits; a waiting
 * thread keeps its fiber, and the next thread starts on another one.  After each pass over the
 * block the complete barriers are released.  A pass runs the threads in ascending or descending
 * order at random, and so run the blocks of a grid: code that depends on the order gives varying
 * results.  The first entry into a fiber uses swapcontext, later ones _setjmp and _longjmp, which
 * need no system call; with AddressSanitizer, which supports only the former, all entries use it.
 */
#include "tests/support/cuda_emulator/cuda_emulator.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

namespace cuda_emulator
{

uint3 thread_index, block_index;
dim3 block_size, grid_size;

namespace
{

constexpr unsigned WARP = 32;
constexpr size_t STACK_BYTES = 256 * 1024;
constexpr size_t VALUE_BYTES = 64; /* maximum of an exchange: operands of a product */

enum state { UNSTARTED, READY, AT_BARRIER, AT_WARP, DONE };

struct fiber {
    ucontext_t context;
    jmp_buf resume;
    void *stack;
    bool started;
};

struct thread {
    enum state state;
    uint3 index;
    struct fiber *fiber;
    const char *file; /* where it waits */
    int line;
    unsigned mask;
    /* so far; its parity selects the buffer */
    unsigned exchange_count;
    std::vector<std::pair<void *, const void *>> copies; /* started, not made yet: to, from */
};

struct warp {
    alignas(16) unsigned char values[2][WARP][VALUE_BYTES];
    void *at[2][WARP];
};

struct block {
    std::vector<thread> threads;
    std::vector<std::unique_ptr<warp>> warps;
    std::vector<std::unique_ptr<fiber>> idle;
    std::vector<std::unique_ptr<fiber>> busy;
    const std::function<void()> *body;
    struct thread *current;
    struct fiber *running;
    bool is_ascending;
    size_t cursor; /* next thread of this pass that may start */
    ucontext_t scheduler;
    jmp_buf scheduler_resume;
};

block current_block;
unsigned char *shared_memory;
uint64_t random_state = 88172645463325252u;

bool random_bit()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 40 & 1;
}

[[noreturn]] void fail(const char *what, const struct thread &t)
{
    (void)fprintf(
        stderr,
        "cuda emulator: %s: block (%u, %u, %u) of %u x %u x %u, thread (%u, %u, %u), %s:%d\n", what,
        block_index.x, block_index.y, block_index.z, grid_size.x, grid_size.y, grid_size.z,
        t.index.x, t.index.y, t.index.z, t.file ? t.file : "not waiting", t.line);
    abort();
}

void leave_fiber()
{
    struct fiber *f = current_block.running;

#ifdef __SANITIZE_ADDRESS__
    (void)swapcontext(&f->context, &current_block.scheduler);
#else
    if (_setjmp(f->resume) == 0)
        _longjmp(current_block.scheduler_resume, 1);
#endif
}

struct thread *next_unstarted()
{
    block &b = current_block;

    for (; b.cursor < b.threads.size(); b.cursor++) {
        size_t at = b.is_ascending ? b.cursor : b.threads.size() - 1 - b.cursor;

        if (b.threads[at].state == UNSTARTED)
            return &b.threads[at];
    }
    return nullptr;
}

/* Run threads until one of them waits, or all have started. */
void fiber_main()
{
    block &b = current_block;

    for (;;) {
        (*b.body)();
        if (!b.current->copies.empty())
            fail("a thread ended without waiting for its copies", *b.current);
        b.current->state = DONE;
        struct thread *next = next_unstarted();
        if (!next) {
            leave_fiber(); /* until a later block gives it a thread */
            continue;
        }
        next->fiber = b.running;
        next->state = READY;
        b.current->fiber = nullptr;
        b.current = next;
        thread_index = next->index;
    }
}

struct fiber *acquire_fiber()
{
    block &b = current_block;

    if (b.idle.empty()) {
        std::unique_ptr<fiber> made(new fiber());

        made->stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made->stack == MAP_FAILED || mprotect(made->stack, 4096, PROT_NONE) != 0)
            abort();
        b.idle.push_back(std::move(made));
    }
    b.busy.push_back(std::move(b.idle.back()));
    b.idle.pop_back();
    return b.busy.back().get();
}

void resume_thread(struct thread *t)
{
    block &b = current_block;

    if (!t->fiber)
        t->fiber = acquire_fiber();
    t->state = READY;
    b.current = t;
    b.running = t->fiber;
    thread_index = t->index;
#ifndef __SANITIZE_ADDRESS__
    if (_setjmp(b.scheduler_resume) != 0)
        return;
    if (b.running->started)
        _longjmp(b.running->resume, 1);
#endif
    if (!b.running->started) {
        b.running->started = true;
        (void)getcontext(&b.running->context);
        b.running->context.uc_stack.ss_sp = b.running->stack;
        b.running->context.uc_stack.ss_size = STACK_BYTES;
        b.running->context.uc_link = nullptr;
        makecontext(&b.running->context, fiber_main, 0);
    }
    (void)swapcontext(&b.scheduler, &b.running->context);
}

void suspend_thread(enum state state, unsigned mask, const char *file, int line)
{
    struct thread *t = current_block.current;

    t->state = state;
    t->mask = mask;
    t->file = file;
    t->line = line;
    leave_fiber();
}

void check_same_call_site(const struct thread &a, const struct thread &b, const char *what)
{
    if (a.file != b.file || a.line != b.line) {
        (void)fprintf(stderr, "cuda emulator: at the same time at %s:%d\n", a.file, a.line);
        fail(what, b);
    }
}

/* Release the block barrier if all threads of the block wait at it. */
bool release_block_barrier()
{
    block &b = current_block;
    const struct thread *first = nullptr;
    size_t waiting = 0;

    for (const struct thread &t : b.threads)
        waiting += t.state == AT_BARRIER;
    if (waiting < b.threads.size())
        return false;
    for (struct thread &t : b.threads) {
        if (first)
            check_same_call_site(*first, t, "threads of a block at different barriers");
        first = &t;
    }
    for (struct thread &t : b.threads)
        t.state = READY;
    return true;
}

bool release_warp(size_t begin, size_t end)
{
    block &b = current_block;

    for (size_t i = begin; i < end; i++) {
        unsigned mask = b.threads[i].mask;
        bool complete = b.threads[i].state == AT_WARP;

        if (complete && !(mask >> (i - begin) & 1))
            fail("a lane that is not in its own mask", b.threads[i]);
        for (size_t j = begin; j < end && complete; j++)
            if (mask >> (j - begin) & 1)
                complete = b.threads[j].state == AT_WARP && b.threads[j].mask == mask;
        if (!complete)
            continue;
        for (size_t j = begin; j < end; j++) {
            if (!(mask >> (j - begin) & 1))
                continue;
            check_same_call_site(b.threads[i], b.threads[j],
                                 "lanes of a warp at different exchanges");
            b.threads[j].state = READY;
        }
        return true;
    }
    return false;
}

bool run_pass()
{
    block &b = current_block;
    size_t count = b.threads.size();
    bool progressed = false;

    b.is_ascending = random_bit();
    b.cursor = 0;
    for (size_t i = 0; i < count; i++) {
        struct thread *t = &b.threads[b.is_ascending ? i : count - 1 - i];

        if (t->state == READY || t->state == UNSTARTED) {
            resume_thread(t);
            progressed = true;
        }
    }
    for (size_t begin = 0; begin < count; begin += WARP)
        while (release_warp(begin, begin + WARP < count ? begin + WARP : count))
            progressed = true;
    return release_block_barrier() || progressed;
}

void run_block()
{
    block &b = current_block;

    for (;;) {
        const struct thread *unfinished = nullptr;
        bool progressed = run_pass();

        for (const struct thread &t : b.threads)
            if (t.state != DONE)
                unfinished = &t;
        if (!unfinished)
            break;
        if (!progressed)
            fail("a thread waits for others that do not arrive", *unfinished);
    }
    while (!b.busy.empty()) {
        b.idle.push_back(std::move(b.busy.back()));
        b.busy.pop_back();
    }
}

void init_block(dim3 size)
{
    block &b = current_block;
    size_t count = (size_t)size.x * size.y * size.z;

    b.threads.assign(count, {});
    for (size_t i = 0; i < count; i++)
        b.threads[i].index = {(unsigned)(i % size.x), (unsigned)(i / size.x % size.y),
                              (unsigned)(i / size.x / size.y)};
    while (b.warps.size() < (count + WARP - 1) / WARP)
        b.warps.push_back(std::unique_ptr<warp>(new warp()));
}

size_t linear_index()
{
    return ((size_t)thread_index.z * block_size.y + thread_index.y) * block_size.x + thread_index.x;
}

} // namespace

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    bool is_ascending = random_bit();

    if (posix_memalign(reinterpret_cast<void **>(&shared_memory), 256, shared_bytes + 1) != 0)
        abort();
    grid_size = grid;
    block_size = block;
    current_block.body = &thread;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t at = is_ascending ? i : blocks - 1 - i;

        block_index = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                       (unsigned)(at / grid.x / grid.y)};
        memset(shared_memory, 0xff, shared_bytes); /* NaNs */
        init_block(block);
        run_block();
    }
    free(shared_memory);
}

unsigned char *dynamic_shared()
{
    return shared_memory;
}

unsigned lane()
{
    return (unsigned)(linear_index() % WARP);
}

void block_barrier(const char *file, int line)
{
    suspend_thread(AT_BARRIER, 0, file, line);
}

void warp_barrier(unsigned mask, const char *file, int line)
{
    char nothing = 0;

    (void)exchange(mask, &nothing, sizeof(nothing), file, line);
}

void *const *exchange(unsigned mask, const void *value, size_t size, const char *file, int line)
{
    struct thread *t = current_block.current;
    struct warp *w = current_block.warps[linear_index() / WARP].get();
    unsigned own_lane = lane();
    unsigned buffer = t->exchange_count++ % 2;

    t->file = file;
    t->line = line;
    if (size > VALUE_BYTES)
        fail("too large a value for a warp", *t);
    memcpy(w->values[buffer][own_lane], value, size);
    w->at[buffer][own_lane] = w->values[buffer][own_lane];
    suspend_thread(AT_WARP, mask, file, line);
    return w->at[buffer];
}

void defer_copy(void *shared, const void *from)
{
    current_block.current->copies.push_back({shared, from});
}

void complete_deferred_copies()
{
    static const unsigned char zeros[16] = {};

    for (const auto &copy : current_block.current->copies)
        memcpy(copy.first, copy.second ? copy.second : zeros, sizeof(zeros));
    current_block.current->copies.clear();
}

} // namespace cuda_emulator
