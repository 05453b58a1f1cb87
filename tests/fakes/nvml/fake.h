/* A stand-in for libnvidia-ml.so.1: replays recordings of a real GPU for up to 64 GPUs and obeys a control file.
 * This header holds what the parts share. Only what the agent calls is here; anything else is a missing symbol. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "../gpu/gpus.h"

#include <stddef.h>
#include <stdint.h>

#define MAX_GPUS 64
#define MAX_PROCESSES 32000
#define MAX_ON_GPU 512
#define MAX_MIG 8
#define NO_GPU MAX_GPUS
#define MAX_SITES 160
#define NOT_AVAILABLE 0xFFFFFFFFu

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999
};

/* One recorded call: its error code, or its numbers (or text), and what it cost. */
struct record {
    const char *name;
    int code;
    int count;
    long long value[8];
    const char *text;
    double cost_us;
};

/* The page that the tests and the library share: the test writes the first two, the library the rest. */
struct page {
    uint64_t generation;     /* grows when the control file was rewritten */
    uint64_t clock_us;       /* the time for samples; 0: the real clock */
    uint64_t inits, shutdowns;
    int64_t references;      /* nvmlInit minus nvmlShutdown */
    int64_t gpm_samples;     /* allocated and not freed */
    int64_t event_sets;
    uint64_t stale_mig_uses; /* a MIG handle used after the layout changed */
    uint64_t misuses;        /* calls the real library would not forgive */
    uint64_t loads;          /* how often a library was loaded and initialised on this page */
    uint64_t pad[22];
    struct site_count {
        char name[64];
        uint64_t calls[MAX_GPUS + 1];
    } sites[MAX_SITES];
};

/* What stands behind an nvmlDevice_t: a GPU, or a MIG device of one layout. */
struct handle {
    uint32_t magic;
    int gpu;          /* the physical GPU */
    int mig;          /* index into the GPU's MIG devices, or -1 */
    uint64_t layout;  /* the layout this MIG handle was made for */
};

struct mig_device {
    int gi, ci, gi_slices, ci_slices, start, size;
    long long memory_mb, used_mb;
    char profile[32];
    char uuid[64];
};

struct process { int gpu, list, next; unsigned pid, gi, ci; unsigned long long bytes; };
struct usage { int gpu, next; unsigned pid; long long age_us; unsigned sm, mem, enc, dec; };
struct event { uint64_t seq; int gpu; unsigned long long type, data; };
struct rule { char call[64]; int kind, gpu; long long arg; };
struct setting { char call[64]; int gpu, count; double value[8]; char text[96]; };

enum { RULE_FAIL, RULE_HANG, RULE_SLOW, RULE_LOST };
enum { LIST_COMPUTE, LIST_GRAPHICS, LIST_MPS };

struct control {
    int gpus, absent[MAX_GPUS], busy, replay_cost, vary, unprivileged, held;
    char driver[64];
    int mig_mode[MAX_GPUS], mig_pending[MAX_GPUS], mig_count[MAX_GPUS];
    struct mig_device mig[MAX_GPUS][MAX_MIG];
    uint64_t layout[MAX_GPUS];
    struct rule rules[64]; int rule_count;
    struct setting settings[128]; int setting_count;
    /* Lists by GPU: the index of the first, and in each entry that of the next; 0 is the end. */
    struct process processes[MAX_PROCESSES + 1]; int process_count; int processes_set;
    int first_process[MAX_GPUS], last_process[MAX_GPUS];
    struct usage usages[MAX_PROCESSES + 1]; int usage_count; int usages_set;
    int first_usage[MAX_GPUS], last_usage[MAX_GPUS];
    struct event events[1024]; int event_count;
};

/* One place in the library that is a call: remembers its counter and its records. */
struct site {
    int slot;
    const struct record *record[2][12];
};

extern struct control control;
extern struct page *page;
extern struct gpus *programs; /* the fake programs' GPUs, where the test has some: what they do is reported */
extern int enumerated[MAX_GPUS], enumerated_count;
extern struct handle gpu_handles[MAX_GPUS];

int fake_start(void);
void fake_released(void);
void fake_refresh(void);
uint64_t fake_now_us(void);
const struct record *fake_record(const char *name);
const struct record *fake_record_by_id(const char *prefix, int id);

/* Every call begins here: counts it, obeys the control file, checks the handle. `variant` distinguishes the
 * recorded flavours of one call (SM and MEM of a clock). Gives the record to answer from, or an error code. */
int fake_enter(struct site *site, const char *call, const char *flavour, int variant, void *device,
               struct handle **handle, const struct record **record);
/* The number at `index`: a setting of the control file for this GPU, or the recorded one. */
double fake_value(const struct record *record, const char *call, const char *flavour, int gpu, int index);
const struct setting *fake_setting(const char *call, const char *flavour, int gpu);

#define ENTER(call, flavour, variant, device) \
    static struct site site = {-1, {{0}}}; \
    struct handle *h = NULL; const struct record *r = NULL; \
    { int code = fake_enter(&site, call, flavour, variant, device, &h, &r); if (code) return code; } \
    (void)h; (void)r

#endif
