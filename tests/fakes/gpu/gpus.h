/* The fake GPUs of a test: which programs compute on them at the moment, how fast each then is, and how active that
 * keeps the GPU. One mapped file, shared by the programs, the fake NVML and the test.
 *
 * Nothing samples or ticks. Every change (a lock, an unlock, a read) first carries the account forward to the present,
 * so it is exact however late a process of a loaded machine runs. */
#ifndef FAKE_GPUS_H
#define FAKE_GPUS_H

#include <pthread.h>
#include <stdint.h>

#define GPUS 16
#define JOBS 256
#define PHASES 16
#define PAIRS 32
/* GPM's counters move every 100 ms. So many of their values are kept: a second of them, for utilisation. */
#define MARK_S 0.1
#define MARKS 16
#define SECOND 10

/* Seconds for which each was active. BUSY: with any kernel, as NVML's utilisation has it. */
enum { SM, TENSOR, DRAM, GRAPHICS, ACTIVITIES, BUSY = ACTIVITIES, COUNTERS };

struct phase {
    int32_t computes;  /* or it does not use the GPU: it loads data */
    int32_t pad;
    double length_s;   /* of idling: by the clock. Of computing: of work, as long as that takes alone. */
    double activity[ACTIVITIES];
};

struct job {
    int32_t pid;       /* 0: has not begun */
    int32_t gpu;
    int32_t may_run;   /* not paused; an nvshare client: holds the lock */
    int32_t ended;
    int32_t stopped;   /* by a signal, a debugger or the freezer: it submits nothing */
    int32_t pad;
    int32_t phase_count, phase;
    double left_s;     /* of the phase */
    uint64_t memory_bytes;
    double progress_s; /* work done, in seconds that it takes alone */
    double running_s;  /* computed, alone or with others */
    double computing_s;/* computed or would have, had it not been paused */
    double slices_s;   /* its part of the time slices, for utilisation */
    double slice_marks[MARKS];
    struct phase phases[PHASES];
};

/* Two programs that were measured together, known by their SM activity alone. */
struct pair { double sm[2], progress[2], device[ACTIVITIES]; };

struct gpus {
    pthread_mutex_t mutex;
    double now_s;      /* monotonic; the account is carried forward to here */
    int64_t mark;      /* now_s / MARK_S, rounded down */
    int32_t job_count, pair_count;
    double checked_s;  /* when was looked for programs that have ended or are stopped */
    struct gpu { double counters[COUNTERS], marks[MARKS][COUNTERS]; } gpu[GPUS];
    struct job jobs[JOBS];
    struct pair pairs[PAIRS];
};

struct gpus *gpus_open(const char *path, int create);
/* Carries the account forward; the caller has the file to itself until it leaves. */
void gpus_enter(struct gpus *gpus);
void gpus_leave(struct gpus *gpus);

/* -- the test */
void gpus_add_pair(struct gpus *gpus, const struct pair *pair);
int gpus_add_job(struct gpus *gpus, int gpu, uint64_t memory_bytes);
void gpus_add_phase(struct gpus *gpus, int job, const struct phase *phase);
struct account { double progress_s, running_s, computing_s; };
double gpus_accounts(struct gpus *gpus, struct account *accounts);

/* -- the programs */
void gpus_begin(struct gpus *gpus, int job, int pid, int may_run);
void gpus_set_may_run(struct gpus *gpus, int job, int may_run);
void gpus_set_memory(struct gpus *gpus, int job, uint64_t bytes);
void gpus_end(struct gpus *gpus, int job);

/* -- the fake NVML, between enter and leave */
int gpus_is_alive(const struct job *job);
/* The counters as GPM has them now, and the time that they are of. */
double gpus_counters(const struct gpus *gpus, int gpu, double counters[COUNTERS]);
/* Of the last second, in percent. */
unsigned gpus_busy_percent(const struct gpus *gpus, int gpu);
unsigned gpus_job_percent(const struct gpus *gpus, const struct job *job);

#endif
