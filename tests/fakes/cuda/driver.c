/* A stand-in for libcuda.so.1 with the calls of the pauser. Which programs there are is in the directory that
 * FAKE_CUDA_DIR names: a file for each, by pid (program.h), and `control`, whose lines are obeyed at every call:
 *
 *   fail CALL CODE [PID]     the call gives this code and does nothing
 *   hang CALL [PID]          the call does not return while the line is there, and then does its work
 *   slow CALL USEC [PID]     the call takes that much longer
 *
 * As with the real driver (580), the program itself carries out what is asked of it: calls for a stopped program, also
 * one of which a debugger holds a single thread, do not return, whatever their timeout, and succeed when it is continued.
 *
 * CALL is init, state, lock, checkpoint, restore, unlock or *. As the real driver refuses the programs of others to
 * all but root, so does this one. Compiled with -DOLD_DRIVER it lacks the calls, as drivers before r570 do. */
#define _GNU_SOURCE
#include "program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct lock_arguments { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; };

static int initialised;

static const char *directory(void)
{
    const char *found = getenv("FAKE_CUDA_DIR");
    return found ? found : "/nonexistent";
}

/* The first line of this kind that is about this call and pid: its number, or -1. */
static long rule(const char *kind, const char *call, int pid)
{
    char path[600], line[256], word[32], name[32];
    long found = -1;
    snprintf(path, sizeof path, "%s/control", directory());
    FILE *f = fopen(path, "r");
    while (f && found < 0 && fgets(line, sizeof line, f)) {
        long number = 0;
        int about = 0, used = 0;
        if (sscanf(line, "%31s %31s%n", word, name, &used) != 2 || strcmp(word, kind))
            continue;
        if (strcmp(name, "*") && strcmp(name, call))
            continue;
        if (!strcmp(kind, "hang"))
            sscanf(line + used, "%d", &about);
        else if (sscanf(line + used, "%ld %d", &number, &about) < 1)
            continue;
        if (!about || about == pid)
            found = number;
    }
    if (f)
        fclose(f);
    return found;
}

static int obey(const char *call, int pid)
{
    while (rule("hang", call, pid) >= 0)
        usleep(2000);
    long slow = rule("slow", call, pid), code = rule("fail", call, pid);
    if (slow > 0)
        usleep((useconds_t)slow);
    return code > 0 ? (int)code : SUCCESS;
}

int cuInit(unsigned flags)
{
    (void)flags;
    int code = obey("init", 0);
    initialised = !code;
    return code;
}

#ifndef OLD_DRIVER

static int open_program(const char *call, int pid, struct program **found)
{
    char path[600];
    struct stat owner;
    *found = NULL;
    if (!initialised)
        return NOT_INITIALIZED;
    int code = obey(call, pid);
    if (code)
        return code;
    snprintf(path, sizeof path, "/proc/%d", pid);
    if (stat(path, &owner))
        return OPERATING_SYSTEM;
    if (geteuid() && owner.st_uid != geteuid())
        return OPERATING_SYSTEM;
    snprintf(path, sizeof path, "%s/%d", directory(), pid);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NOT_INITIALIZED;
    void *mapped = mmap(NULL, sizeof(struct program), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        return OPERATING_SYSTEM;
    *found = mapped;
    return SUCCESS;
}

/* Whether a signal or a debugger holds one of its threads. */
static int is_stopped(int pid)
{
    char path[600], line[512];
    int found = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *d = opendir(path);
    while (d && !found && (entry = readdir(d))) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", pid, entry->d_name);
        FILE *f = fopen(path, "r");
        const char *end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        found = end && end[1] && (end[2] == 'T' || end[2] == 't');
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return found;
}

static int gone(int pid) { return kill(pid, 0) && errno == ESRCH; }

static int wait_for(struct program *p, int pid)
{
    char path[64], stat_line[512];
    for (int i = 0; p->asked != ASK_NOTHING; i++) {
        usleep(100);
        if (gone(pid))
            return OPERATING_SYSTEM;
        if (i % 100 == 99) { /* a zombie answers nothing either */
            snprintf(path, sizeof path, "/proc/%d/stat", pid);
            FILE *f = fopen(path, "r");
            int zombie = f && fgets(stat_line, sizeof stat_line, f) && strstr(stat_line, ") Z ");
            if (f)
                fclose(f);
            if (zombie)
                return OPERATING_SYSTEM;
        }
    }
    return SUCCESS;
}

static int ask(const char *call, int pid, uint32_t what, unsigned timeout_ms)
{
    struct program *p;
    int code = open_program(call, pid, &p);
    if (code)
        return code;
    if (pthread_mutex_lock(&p->calling) == EOWNERDEAD)
        pthread_mutex_consistent(&p->calling);
    while (is_stopped(pid))
        usleep(2000);
    /* What a caller that died had asked for is carried out first. */
    code = wait_for(p, pid);
    if (!code) {
        p->timeout_ms = timeout_ms;
        p->asked = what;
        code = wait_for(p, pid);
    }
    if (!code)
        code = (int)p->result;
    pthread_mutex_unlock(&p->calling);
    munmap(p, sizeof *p);
    return code;
}

int cuCheckpointProcessGetState(int pid, int *state)
{
    struct program *p;
    int code = open_program("state", pid, &p);
    if (code)
        return code;
    *state = (int)p->state;
    munmap(p, sizeof *p);
    return SUCCESS;
}

int cuCheckpointProcessLock(int pid, struct lock_arguments *arguments)
{
    return ask("lock", pid, ASK_LOCK, arguments ? arguments->timeout_ms : 0);
}

int cuCheckpointProcessCheckpoint(int pid, void *arguments)
{
    (void)arguments;
    return ask("checkpoint", pid, ASK_CHECKPOINT, 0);
}

int cuCheckpointProcessRestore(int pid, void *arguments)
{
    (void)arguments;
    return ask("restore", pid, ASK_RESTORE, 0);
}

int cuCheckpointProcessUnlock(int pid, void *arguments)
{
    (void)arguments;
    return ask("unlock", pid, ASK_UNLOCK, 0);
}

#endif
