/* What the fake driver and the fake CUDA programs share: one mapped file per program, named by its pid.
 *
 * As with the real driver, the program itself carries out what is asked of it, so a lock outlives the process that
 * asked for it, and one that was asked for by a process that died still happens. */
#ifndef FAKE_CUDA_PROGRAM_H
#define FAKE_CUDA_PROGRAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2, FAILED = 3 };
enum { ASK_NOTHING = 0, ASK_LOCK, ASK_CHECKPOINT, ASK_RESTORE, ASK_UNLOCK };
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401,
       TIMED_OUT = 600, NOT_SUPPORTED = 801 };

struct program {
    pthread_mutex_t calling;       /* robust and shared: one caller at a time, and a dead one lets go */
    _Atomic uint32_t state;
    _Atomic uint32_t asked;        /* set last by the caller, cleared by the program once it is done */
    _Atomic uint32_t result;
    _Atomic uint32_t timeout_ms;
    _Atomic uint64_t steps;        /* progress: grows only while the program runs */
    _Atomic uint64_t gpu_bytes;    /* what NVML would show for it */
    _Atomic uint64_t host_bytes;   /* its GPU memory, while that is in host memory */
    _Atomic uint64_t drain_us;     /* how long submitted work takes to finish: set by the test */
    _Atomic uint64_t move_bytes_per_s; /* rate of checkpoint and restore; 0: at once */
    _Atomic uint32_t managed;      /* uses managed memory: a checkpoint gives 801 */
    _Atomic uint32_t ready;
    _Atomic uint32_t locks;        /* how many were asked for */
    _Atomic uint32_t quiet;        /* waits for its user: it hardly uses the CPU */
    _Atomic uint64_t burn_us;      /* CPU time that it uses next, and then calls CUDA; set by the test */
    _Atomic uint64_t calls;        /* of these, how many have returned: a call blocks while it is locked */
};

#endif
