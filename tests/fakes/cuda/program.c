/* A fake CUDA program: makes steps while it is not locked, and carries out what the fake driver asks of it.
 *
 * program DIRECTORY [GPU_BYTES [GPUS JOB]]    GPUS is the file of the fake GPUs (../gpu/gpus.h), on which it is that job.
 * SIGUSR1 makes it fork a child that has no CUDA, also while it is locked. SIGUSR2 makes it share memory with another
 * process: it maps the file by which the driver does so, and a restore fails as with driver r580.
 *
 * With FAKE_DEVICE_FILES, a directory of device files, it starts as a real program does: it opens them, can be locked
 * 20 ms later, and has initialised CUDA after 100 ms of CPU time. Then it makes a context, in 150 ms of CPU time: in the
 * middle of these it opens the file of its GPU more often, and a lock holds at their end. Then it allocates its memory. It
 * ends with the status OUT_OF_MEMORY_STATUS if the GPU does not have that much, or has no room for the context. While the
 * file that FAKE_PREPARES names is there, it does not begin its context. */
#define _GNU_SOURCE
#include "../gpu/gpus.h"
#include "program.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static struct program *self;
static const char *directory;
static char *parked;
static struct gpus *gpus;
static int job, parent;
static volatile sig_atomic_t forks, shares;

static void on_fork(int number) { (void)number; forks++; }
static void on_share(int number) { (void)number; shares++; }

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + t.tv_nsec / 1000;
}

static struct program *map(const char *name, int flags)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | flags, 0600);
    if (fd < 0 || (flags && ftruncate(fd, sizeof(struct program))))
        return NULL;
    void *found = mmap(NULL, sizeof(struct program), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return found == MAP_FAILED ? NULL : found;
}

static uint64_t gpu_total(void)
{
    char path[600];
    unsigned long long total = UINT64_MAX;
    snprintf(path, sizeof path, "%s/gpu", directory);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%llu", &total) != 1)
            total = UINT64_MAX;
        fclose(f);
    }
    return total;
}

/* What all programs that live hold on the GPU. */
static uint64_t gpu_used(void)
{
    uint64_t used = 0;
    struct dirent *entry;
    DIR *d = opendir(directory);
    while (d && (entry = readdir(d))) {
        int pid = atoi(entry->d_name);
        if (pid <= 0 || kill(pid, 0))
            continue;
        struct program *p = map(entry->d_name, 0);
        if (p) {
            used += p->gpu_bytes;
            munmap(p, sizeof *p);
        }
    }
    if (d)
        closedir(d);
    return used;
}

/* What it does to its GPU. */
static void may_run(int may) { if (gpus) gpus_set_may_run(gpus, job, may); }
static void holds(uint64_t bytes) { if (gpus) gpus_set_memory(gpus, job, bytes); }

/* The time that moving takes. The rate may change meanwhile. */
static void take_time(uint64_t bytes)
{
    double left = (double)bytes;
    uint64_t rate, before = now_us();
    while ((rate = self->move_bytes_per_s) && left > 0) {
        double needed_us = left * 1e6 / (double)rate;
        usleep(needed_us < 10000 ? (useconds_t)needed_us + 1 : 10000);
        uint64_t now = now_us();
        left -= (double)rate * (double)(now - before) / 1e6;
        before = now;
    }
}

/* Submitted work drains; then the lock holds. Work that takes longer than the timeout leaves it running. */
static uint32_t lock(void)
{
    self->locks++;
    if (self->state != RUNNING)
        return ILLEGAL_STATE;
    uint64_t drain = self->drain_us, most = (uint64_t)self->timeout_ms * 1000, begun = now_us();
    uint64_t wait = most && drain > most ? most : drain;
    while (now_us() - begun < wait)
        usleep(200);
    if (most && drain > most)
        return TIMED_OUT;
    may_run(0);
    self->state = LOCKED;
    return SUCCESS;
}

static uint32_t checkpoint(void)
{
    if (self->state != LOCKED)
        return ILLEGAL_STATE;
    if (self->managed)
        return NOT_SUPPORTED;
    uint64_t bytes = self->gpu_bytes;
    take_time(bytes);
    if (bytes) {
        parked = malloc(bytes);
        memset(parked, 0x5a, bytes); /* so that it is resident */
    }
    self->host_bytes = bytes;
    self->gpu_bytes = 0;
    holds(0);
    self->state = CHECKPOINTED;
    return SUCCESS;
}

static uint32_t restore(void)
{
    if (self->state != CHECKPOINTED)
        return ILLEGAL_STATE;
    if (shares)
        return INVALID_VALUE;
    uint64_t bytes = self->host_bytes;
    take_time(bytes);
    /* Taken first and counted then: of two that race for one room at least one sees that it is too small. */
    self->gpu_bytes = bytes;
    if (gpu_used() > gpu_total()) {
        self->gpu_bytes = 0;
        self->state = FAILED;
        return OUT_OF_MEMORY;
    }
    holds(bytes);
    free(parked);
    parked = NULL;
    self->host_bytes = 0;
    self->state = LOCKED;
    return SUCCESS;
}

static void share_memory(void)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/cuda.shm.%d.%x.1", getuid(), getpid());
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) || mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED)
        exit(7);
    close(fd);
    unlink(path);
}

static uint32_t unlock(void)
{
    if (self->state != LOCKED)
        return ILLEGAL_STATE;
    self->state = RUNNING;
    may_run(1);
    return SUCCESS;
}

static void carry_out(void);

#define OUT_OF_MEMORY_STATUS 42
#define INITIALISING_US 20000
#define INITIAL_US 100000
#define CONTEXT_US 150000
#define CONTEXT_BYTES (4 << 20)
/* How often CUDA opens the file of a GPU as it is initialised, and for a context. */
#define INITIAL_FILES 4
#define CONTEXT_FILES 16

static void open_device_file(const char *files, const char *name, int times)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", files, name);
    while (times--)
        if (open(path, O_RDWR) < 0)
            exit(6);
}

static void open_device_files(const char *files)
{
    char path[600];
    open_device_file(files, "nvidiactl", 1);
    open_device_file(files, "nvidia-uvm", 2);
    open_device_file(files, "nvidia0", INITIAL_FILES);
    /* Shows as the driver's library among its mappings. */
    snprintf(path, sizeof path, "%s/libcuda.so.1", files);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
        exit(6);
    usleep(INITIALISING_US);
}

/* Of CPU time, as the driver's calls take it: on a busy machine it then takes longer, as the agent does. */
static void compute(long us)
{
    struct timespec now, begun;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000 < us);
}

static void allocate(const char *files, uint64_t bytes)
{
    const char *prepares = getenv("FAKE_PREPARES");
    for (int left = INITIAL_US; left > 0 || self->state != RUNNING || (prepares && !access(prepares, F_OK));) {
        carry_out();
        if (self->state == RUNNING && left > 0) {
            compute(1000);
            left -= 1000;
        } else {
            usleep(1000);
        }
    }
    if (gpu_used() + CONTEXT_BYTES > gpu_total())
        exit(OUT_OF_MEMORY_STATUS);
    compute(CONTEXT_US / 2);
    open_device_file(files, "nvidia0", CONTEXT_FILES);
    compute(CONTEXT_US / 2);
    do {
        carry_out();
        usleep(self->state == RUNNING ? 0 : 1000);
    } while (self->state != RUNNING);
    self->gpu_bytes = bytes;
    if (gpu_used() > gpu_total()) {
        self->gpu_bytes = 0;
        exit(OUT_OF_MEMORY_STATUS);
    }
}

static void carry_out(void)
{
    uint32_t asked = self->asked;
    if (asked == ASK_NOTHING)
        return;
    self->result = asked == ASK_LOCK ? lock() : asked == ASK_CHECKPOINT ? checkpoint() : asked == ASK_RESTORE ? restore() : unlock();
    self->asked = ASK_NOTHING;
}

static uint64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000u + t.tv_nsec / 1000;
}

/* Its user runs a cell: some work on the CPU, then a CUDA call. */
static int calls;

static void run_cell(void)
{
    uint64_t burn = self->burn_us;
    if (burn) {
        uint64_t until = cpu_us() + burn;
        while (cpu_us() < until)
            ;
        self->burn_us = 0;
        calls = 1;
    }
    if (calls && self->state == RUNNING) {
        self->calls++;
        calls = 0;
    }
}

/* The driver's thread in a real program: nothing but a thread of its own. */
static void *idle(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

int main(int argc, char **argv)
{
    char name[32];
    pthread_t thread;
    if (argc < 2)
        return 2;
    directory = argv[1];
    signal(SIGUSR1, on_fork);
    signal(SIGUSR2, on_share);
    const char *files = getenv("FAKE_DEVICE_FILES");
    if (files)
        open_device_files(files);
    snprintf(name, sizeof name, "%d", getpid());
    self = map(name, O_CREAT | O_TRUNC);
    if (!self)
        return 3;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&self->calling, &attributes);
    uint64_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    if (files)
        allocate(files, bytes);
    else
        self->gpu_bytes = bytes;
    if (argc > 4) {
        gpus = gpus_open(argv[3], 0);
        if (!gpus)
            return 4;
        job = atoi(argv[4]);
        gpus_begin(gpus, job, getpid(), 1);
        parent = getppid();
    }
    if (pthread_create(&thread, NULL, idle, NULL))
        return 5;
    self->ready = 1;
    for (int i = 0;; i++) {
        carry_out();
        if (forks) {
            forks--;
            if (fork() == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                signal(SIGUSR1, SIG_DFL);
                pause();
                _exit(0);
            }
        }
        if (shares == 1) {
            share_memory();
            shares++;
        }
        run_cell();
        if (self->state == RUNNING)
            self->steps++;
        if (gpus && i % 64 == 0) { /* finds others that were killed, and a test that has ended */
            if (getppid() != parent)
                return 0;
            gpus_enter(gpus);
            gpus_leave(gpus);
        }
        if (calls)
            poll(NULL, 0, 1); /* inside the call it sleeps elsewhere */
        else
            usleep(self->quiet ? 50000 : 300);
    }
}
