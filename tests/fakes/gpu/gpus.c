#define _GNU_SOURCE
#include "gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHECK_EVERY_S 0.02
/* Above the steps of a double that counts the seconds since boot. */
#define TINY_S 1e-7

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + t.tv_nsec / 1e9;
}

struct gpus *gpus_open(const char *path, int create)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0666);
    if (fd < 0)
        return NULL;
    if (create && (fchmod(fd, 0666) || ftruncate(fd, sizeof(struct gpus)))) {
        close(fd);
        return NULL;
    }
    struct gpus *gpus = mmap(NULL, sizeof *gpus, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (gpus == MAP_FAILED)
        return NULL;
    if (create) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&gpus->mutex, &attributes);
        gpus->now_s = clock_s();
        gpus->mark = (int64_t)(gpus->now_s / MARK_S);
    }
    return gpus;
}

/* --- how fast ---------------------------------------------------------------------------------------------- */

int gpus_is_alive(const struct job *job) { return job->pid && !job->ended; }

static const struct phase *phase_of(const struct job *job) { return &job->phases[job->phase]; }

static int computes(const struct job *job)
{
    return gpus_is_alive(job) && job->phase < job->phase_count && phase_of(job)->computes;
}

static const struct pair *measured(const struct gpus *gpus, double first, double second, int *swapped)
{
    for (int i = 0; i < gpus->pair_count; i++)
        for (*swapped = 0; *swapped < 2; ++*swapped) {
            const double *sm = gpus->pairs[i].sm;
            if (fabs(sm[*swapped] - first) < 1e-6 && fabs(sm[!*swapped] - second) < 1e-6)
                return &gpus->pairs[i];
        }
    return NULL;
}

/* Several programs in time slices: one that fills the GPU gets its part of 0.72 of it, a light one fits into the gaps
 * of the others. Close to what was measured for pairs. */
static double estimated(double sm, int count)
{
    double heavy = sm < 0.5 ? sm / 0.5 : 1.0;
    return 1.0 - pow(heavy, 1.5) * (1.0 - 0.72 / count);
}

/* Each job's progress per second, and each GPU's activity. */
static void rates(const struct gpus *gpus, double progress[JOBS], double device[GPUS][COUNTERS], int running[GPUS])
{
    memset(progress, 0, JOBS * sizeof *progress);
    memset(device, 0, GPUS * sizeof *device);
    for (int g = 0; g < GPUS; g++) {
        int found[JOBS], count = 0, swapped = 0;
        for (int j = 0; j < gpus->job_count; j++)
            if (gpus->jobs[j].gpu == g && gpus->jobs[j].may_run && !gpus->jobs[j].stopped && computes(&gpus->jobs[j]))
                found[count++] = j;
        running[g] = count;
        if (!count)
            continue;
        const double *first = phase_of(&gpus->jobs[found[0]])->activity;
        const struct pair *pair = NULL;
        if (count == 2)
            pair = measured(gpus, first[SM], phase_of(&gpus->jobs[found[1]])->activity[SM], &swapped);
        for (int i = 0; i < count; i++) {
            const double *solo = phase_of(&gpus->jobs[found[i]])->activity;
            double p = count == 1 ? 1.0 : pair ? pair->progress[i ^ swapped] : estimated(solo[SM], count);
            progress[found[i]] = p;
            for (int a = SM; a <= DRAM; a++)
                device[g][a] += solo[a] * p;
        }
        for (int a = SM; a <= DRAM; a++) {
            if (pair)
                device[g][a] = pair->device[a];
            device[g][a] = fmin(device[g][a], 1.0);
        }
        device[g][GRAPHICS] = count == 1 ? first[GRAPHICS] : 0.99;
        device[g][BUSY] = 1.0;
    }
}

/* --- the account ------------------------------------------------------------------------------------------- */

static void begin_phase(struct job *job, int phase)
{
    job->phase = phase;
    job->left_s = job->phases[phase].length_s;
}

static void keep_mark(struct gpus *gpus)
{
    int at = (int)(++gpus->mark % MARKS);
    for (int g = 0; g < GPUS; g++)
        memcpy(gpus->gpu[g].marks[at], gpus->gpu[g].counters, sizeof gpus->gpu[g].counters);
    for (int j = 0; j < gpus->job_count; j++)
        gpus->jobs[j].slice_marks[at] = gpus->jobs[j].slices_s;
}

/* Until the next change of anything: the time asked for, a mark, or the end of a phase. */
static void step(struct gpus *gpus, double until_s)
{
    double progress[JOBS], device[GPUS][COUNTERS];
    int running[GPUS];
    double next_mark_s = (double)(gpus->mark + 1) * MARK_S, to_s = fmin(until_s, next_mark_s);
    rates(gpus, progress, device, running);
    for (int j = 0; j < gpus->job_count; j++) {
        const struct job *job = &gpus->jobs[j];
        if (gpus_is_alive(job) && job->phase_count) {
            double speed = computes(job) ? progress[j] : 1.0;
            if (speed > 0)
                to_s = fmin(to_s, gpus->now_s + job->left_s / speed);
        }
    }
    double dt = fmax(to_s - gpus->now_s, 0);
    for (int g = 0; g < GPUS; g++)
        for (int c = 0; c < COUNTERS; c++)
            gpus->gpu[g].counters[c] += device[g][c] * dt;
    for (int j = 0; j < gpus->job_count; j++) {
        struct job *job = &gpus->jobs[j];
        if (!gpus_is_alive(job) || !job->phase_count)
            continue;
        if (!computes(job)) {
            job->left_s -= dt;
        } else {
            job->computing_s += dt;
            job->left_s -= progress[j] * dt;
            job->progress_s += progress[j] * dt;
            if (progress[j] > 0) {
                job->running_s += dt;
                job->slices_s += dt / running[job->gpu];
            }
        }
        if (job->left_s <= TINY_S)
            begin_phase(job, (job->phase + 1) % job->phase_count);
    }
    gpus->now_s = to_s;
    if (to_s >= next_mark_s)
        keep_mark(gpus);
}

/* The letter of /proc/PID/stat: a program that was killed or stopped does not say so. Z where it is gone. */
static char state_of(int pid)
{
    char path[64], line[512];
    if (kill(pid, 0) && errno == ESRCH)
        return 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    const char *end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    char letter = end && end[1] ? end[2] : 'R';
    if (f)
        fclose(f);
    return letter;
}

static int file_has(const char *path, const char *word)
{
    char text[4096];
    FILE *f = fopen(path, "r");
    size_t size = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[size] = 0;
    return strstr(text, word) != NULL;
}

/* In a frozen cgroup v2, which no letter shows: that of a test, below the root of either place where it is mounted. */
static int is_frozen(int pid)
{
    char path[600], line[512], group[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f))
        if (sscanf(line, "0::/gpucommons-test-%200s", group) == 1)
            for (int i = 0; i < 2; i++) {
                snprintf(path, sizeof path, "/sys/fs/cgroup/%sgpucommons-test-%s/cgroup.events", i ? "unified/" : "", group);
                found = found || file_has(path, "frozen 1");
            }
    if (f)
        fclose(f);
    return found;
}

void gpus_enter(struct gpus *gpus)
{
    if (pthread_mutex_lock(&gpus->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&gpus->mutex);
    double now_s = clock_s();
    while (gpus->now_s < now_s)
        step(gpus, now_s);
    if (now_s - gpus->checked_s < CHECK_EVERY_S)
        return;
    gpus->checked_s = now_s;
    for (int j = 0; j < gpus->job_count; j++)
        if (gpus_is_alive(&gpus->jobs[j])) {
            char state = state_of(gpus->jobs[j].pid);
            gpus->jobs[j].ended = state == 'Z';
            /* D: these programs never wait for a disk; the freezer of cgroup v1 shows as that. */
            gpus->jobs[j].stopped = state == 'T' || state == 't' || state == 'D' || is_frozen(gpus->jobs[j].pid);
        }
}

void gpus_leave(struct gpus *gpus) { pthread_mutex_unlock(&gpus->mutex); }

/* --- the test ---------------------------------------------------------------------------------------------- */

void gpus_add_pair(struct gpus *gpus, const struct pair *pair)
{
    gpus_enter(gpus);
    if (gpus->pair_count < PAIRS)
        gpus->pairs[gpus->pair_count++] = *pair;
    gpus_leave(gpus);
}

int gpus_add_job(struct gpus *gpus, int gpu, uint64_t memory_bytes)
{
    gpus_enter(gpus);
    int job = gpus->job_count < JOBS && gpu >= 0 && gpu < GPUS ? gpus->job_count++ : -1;
    if (job >= 0)
        gpus->jobs[job] = (struct job){.gpu = gpu, .memory_bytes = memory_bytes};
    gpus_leave(gpus);
    return job;
}

void gpus_add_phase(struct gpus *gpus, int number, const struct phase *phase)
{
    gpus_enter(gpus);
    struct job *job = &gpus->jobs[number];
    if (job->phase_count < PHASES)
        job->phases[job->phase_count++] = *phase;
    gpus_leave(gpus);
}

double gpus_accounts(struct gpus *gpus, struct account *accounts)
{
    gpus_enter(gpus);
    for (int j = 0; j < gpus->job_count; j++) {
        const struct job *job = &gpus->jobs[j];
        accounts[j] = (struct account){job->progress_s, job->running_s, job->computing_s};
    }
    double now_s = gpus->now_s;
    gpus_leave(gpus);
    return now_s;
}

/* --- the programs ------------------------------------------------------------------------------------------ */

void gpus_begin(struct gpus *gpus, int number, int pid, int may_run)
{
    gpus_enter(gpus);
    struct job *job = &gpus->jobs[number];
    begin_phase(job, 0);
    job->pid = pid, job->may_run = may_run;
    gpus_leave(gpus);
}

void gpus_set_may_run(struct gpus *gpus, int job, int may_run)
{
    gpus_enter(gpus);
    gpus->jobs[job].may_run = may_run;
    gpus_leave(gpus);
}

void gpus_set_memory(struct gpus *gpus, int job, uint64_t bytes)
{
    gpus_enter(gpus);
    gpus->jobs[job].memory_bytes = bytes;
    gpus_leave(gpus);
}

void gpus_end(struct gpus *gpus, int job)
{
    gpus_enter(gpus);
    gpus->jobs[job].ended = 1;
    gpus_leave(gpus);
}

/* --- the fake NVML ----------------------------------------------------------------------------------------- */

static int mark_before(const struct gpus *gpus, int marks) { return (int)((gpus->mark - marks) % MARKS); }

double gpus_counters(const struct gpus *gpus, int gpu, double counters[COUNTERS])
{
    memcpy(counters, gpus->gpu[gpu].marks[mark_before(gpus, 0)], sizeof gpus->gpu[gpu].counters);
    return (double)gpus->mark * MARK_S;
}

static unsigned percent_of(double seconds) { return (unsigned)ceil(fmin(seconds / (SECOND * MARK_S), 1.0) * 100 - 1e-6); }

unsigned gpus_busy_percent(const struct gpus *gpus, int gpu)
{
    const struct gpu *g = &gpus->gpu[gpu];
    return percent_of(g->marks[mark_before(gpus, 0)][BUSY] - g->marks[mark_before(gpus, SECOND)][BUSY]);
}

unsigned gpus_job_percent(const struct gpus *gpus, const struct job *job)
{
    return percent_of(job->slice_marks[mark_before(gpus, 0)] - job->slice_marks[mark_before(gpus, SECOND)]);
}
