/*
 * The threads of a block.
 *
 * One fiber runs threads of a block one after the other as long as none of them waits; a thread
 * that waits keeps its fiber and the next one starts on another.  After each pass over the block
 * the barriers that are complete open.  Passes go up or down in the block at random, and so do
 * blocks in the grid: code that works in one order only gives varying results.  The first entry
 * into a fiber is swapcontext, later ones are _setjmp and _longjmp, which need no system call (with
 * AddressSanitizer, which follows only the former, all of them are).
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
constexpr size_t VALUE_BYTES = 64; /* largest exchanged: operands of a product */

enum state { UNSTARTED, READY, AT_BARRIER, AT_WARP, DONE };

struct fiber {
    ucontext_t context;
    jmp_buf resume;
    void *stack;
    bool started; /* in this block */
};

struct thread {
    enum state state;
    uint3 index;
    struct fiber *fiber;
    const char *file; /* where it waits */
    int line;
    unsigned mask;
    unsigned turn;                                       /* exchanges so far */
    std::vector<std::pair<void *, const void *>> copies; /* started: to, from */
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
    struct thread *now;
    struct fiber *running;
    bool upwards;
    size_t cursor; /* next thread of this pass that may start */
    ucontext_t scheduler;
    jmp_buf back;
};

block the_block;
unsigned char *shared_memory;
uint64_t chance = 88172645463325252u;

bool coin()
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return chance >> 40 & 1;
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
    struct fiber *f = the_block.running;

#ifdef __SANITIZE_ADDRESS__
    (void)swapcontext(&f->context, &the_block.scheduler);
#else
    if (_setjmp(f->resume) == 0)
        _longjmp(the_block.back, 1);
#endif
}

struct thread *next_unstarted()
{
    block &b = the_block;

    for (; b.cursor < b.threads.size(); b.cursor++) {
        size_t at = b.upwards ? b.cursor : b.threads.size() - 1 - b.cursor;

        if (b.threads[at].state == UNSTARTED)
            return &b.threads[at];
    }
    return nullptr;
}

/* Runs threads until one of them waits, or none is left to start. */
void fiber_main()
{
    block &b = the_block;

    for (;;) {
        (*b.body)();
        if (!b.now->copies.empty())
            fail("a thread ends and has not waited for its copies", *b.now);
        b.now->state = DONE;
        struct thread *next = next_unstarted();
        if (!next) {
            leave_fiber();
            abort(); /* a fiber is given to a thread of the next block, from its start */
        }
        next->fiber = b.running;
        next->state = READY;
        b.now->fiber = nullptr;
        b.now = next;
        thread_index = next->index;
    }
}

struct fiber *take_fiber()
{
    block &b = the_block;

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
    b.busy.back()->started = false;
    return b.busy.back().get();
}

void enter(struct thread *t)
{
    block &b = the_block;

    if (!t->fiber)
        t->fiber = take_fiber();
    t->state = READY;
    b.now = t;
    b.running = t->fiber;
    thread_index = t->index;
#ifndef __SANITIZE_ADDRESS__
    if (_setjmp(b.back) != 0)
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

void wait(enum state state, unsigned mask, const char *file, int line)
{
    struct thread *t = the_block.now;

    t->state = state;
    t->mask = mask;
    t->file = file;
    t->line = line;
    leave_fiber();
}

void check_together(const struct thread &a, const struct thread &b, const char *what)
{
    if (a.file != b.file || a.line != b.line) {
        (void)fprintf(stderr, "cuda emulator: at the same time at %s:%d\n", a.file, a.line);
        fail(what, b);
    }
}

/* All of the block wait at one barrier: go on. */
bool open_block_barrier()
{
    block &b = the_block;
    const struct thread *first = nullptr;
    size_t waiting = 0;

    for (const struct thread &t : b.threads)
        waiting += t.state == AT_BARRIER;
    if (waiting < b.threads.size())
        return false;
    for (struct thread &t : b.threads) {
        if (first)
            check_together(*first, t, "threads of a block at different barriers");
        first = &t;
    }
    for (struct thread &t : b.threads)
        t.state = READY;
    return true;
}

bool open_warp(size_t begin, size_t end)
{
    block &b = the_block;

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
            check_together(b.threads[i], b.threads[j], "lanes of a warp at different exchanges");
            b.threads[j].state = READY;
        }
        return true;
    }
    return false;
}

bool run_pass()
{
    block &b = the_block;
    size_t count = b.threads.size();
    bool progressed = false;

    b.upwards = coin();
    b.cursor = 0;
    for (size_t i = 0; i < count; i++) {
        struct thread *t = &b.threads[b.upwards ? i : count - 1 - i];

        if (t->state == READY || t->state == UNSTARTED) {
            enter(t);
            progressed = true;
        }
    }
    for (size_t begin = 0; begin < count; begin += WARP)
        while (open_warp(begin, begin + WARP < count ? begin + WARP : count))
            progressed = true;
    return open_block_barrier() || progressed;
}

void run_block()
{
    block &b = the_block;

    for (;;) {
        const struct thread *left = nullptr;
        bool progressed = run_pass();

        for (const struct thread &t : b.threads)
            if (t.state != DONE)
                left = &t;
        if (!left)
            break;
        if (!progressed)
            fail("a thread waits for others that do not come", *left);
    }
    while (!b.busy.empty()) {
        b.idle.push_back(std::move(b.busy.back()));
        b.busy.pop_back();
    }
}

void lay_out_block(dim3 size)
{
    block &b = the_block;
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
    bool upwards = coin();

    if (posix_memalign(reinterpret_cast<void **>(&shared_memory), 256, shared_bytes + 1) != 0)
        abort();
    grid_size = grid;
    block_size = block;
    the_block.body = &thread;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t at = upwards ? i : blocks - 1 - i;

        block_index = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                       (unsigned)(at / grid.x / grid.y)};
        memset(shared_memory, 0xff, shared_bytes); /* NaNs: nothing is there before it is written */
        lay_out_block(block);
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
    wait(AT_BARRIER, 0, file, line);
}

void warp_barrier(unsigned mask, const char *file, int line)
{
    char nothing = 0;

    (void)exchange(mask, &nothing, sizeof(nothing), file, line);
}

void *const *exchange(unsigned mask, const void *value, size_t size, const char *file, int line)
{
    struct thread *t = the_block.now;
    struct warp *w = the_block.warps[linear_index() / WARP].get();
    unsigned mine = lane();
    unsigned turn = t->turn++ % 2;

    t->file = file;
    t->line = line;
    if (size > VALUE_BYTES)
        fail("too large a value for a warp", *t);
    memcpy(w->values[turn][mine], value, size);
    w->at[turn][mine] = w->values[turn][mine];
    wait(AT_WARP, mask, file, line);
    return w->at[turn];
}

void copy_later(void *shared, const void *from)
{
    the_block.now->copies.push_back({shared, from});
}

void copies_arrive()
{
    static const unsigned char zeros[16] = {};

    for (const auto &copy : the_block.now->copies)
        memcpy(copy.first, copy.second ? copy.second : zeros, sizeof(zeros));
    the_block.now->copies.clear();
}

} // namespace cuda_emulator
