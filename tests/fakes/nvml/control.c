/* The part of the fake that is steered: the shared page, the control file, and how each call begins. */
#define _GNU_SOURCE
#include "fake.h"
#include "recording.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x6e766d6cu

struct control control;
struct page *page;
struct gpus *programs;
int enumerated[MAX_GPUS], enumerated_count;
struct handle gpu_handles[MAX_GPUS];

static struct page no_page;
static char directory[512];
static uint64_t seen_generation;
static int activated[MAX_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t fake_now_us(void)
{
    if (page->clock_us)
        return page->clock_us;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + t.tv_nsec / 1000;
}

static void spend_us(double us)
{
    struct timespec start, now;
    /* CPU time, so that a busy machine does not make a call cheaper; but reading it costs too much for a short one. */
    clockid_t clock = us < 20 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock, &start);
    if (us > 5000) {
        usleep((useconds_t)us);
        return;
    }
    do {
        clock_gettime(clock, &now);
    } while ((now.tv_sec - start.tv_sec) * 1e6 + (now.tv_nsec - start.tv_nsec) / 1e3 < us);
}

const struct record *fake_record(const char *name)
{
    const struct record *table = control.busy ? busy_records : idle_records;
    for (; table->name; table++)
        if (!strcmp(table->name, name))
            return table;
    return NULL;
}

const struct record *fake_record_by_id(const char *prefix, int id)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", prefix, id);
    return fake_record(name);
}

static int optional_gpu(const char *rest)
{
    int gpu;
    return sscanf(rest, "%d", &gpu) == 1 ? gpu : -1;
}

static void add_rule(struct control *c, int kind, const char *call, long long arg, int gpu)
{
    struct rule *r = &c->rules[c->rule_count];
    if (c->rule_count == 64)
        return;
    c->rule_count++;
    r->kind = kind, r->arg = arg, r->gpu = gpu;
    snprintf(r->call, sizeof r->call, "%s", call);
}

static void read_setting(struct control *c, const char *line)
{
    struct setting *s = &c->settings[c->setting_count];
    int used = 0, more = 0;
    if (c->setting_count == 128 || sscanf(line, "set %63s %d%n", s->call, &s->gpu, &used) < 2)
        return;
    c->setting_count++;
    const char *rest = line + used;
    while (s->count < 8 && sscanf(rest, "%lf%n", &s->value[s->count], &more) == 1)
        s->count++, rest += more;
    if (s->count == 0)
        sscanf(rest, " %95[^\n]", s->text);
}

static void read_mig(struct control *c, const char *line)
{
    struct mig_device m;
    int gpu;
    memset(&m, 0, sizeof m);
    if (sscanf(line, "mig_device %d %d %d %31s %d %d %lld %lld %d %d %63s", &gpu, &m.gi, &m.ci, m.profile,
               &m.gi_slices, &m.ci_slices, &m.memory_mb, &m.used_mb, &m.start, &m.size, m.uuid) == 11 &&
        gpu >= 0 && gpu < MAX_GPUS && c->mig_count[gpu] < MAX_MIG)
        c->mig[gpu][c->mig_count[gpu]++] = m;
}

static void add_process(struct control *c, struct process p)
{
    if (p.gpu < 0 || p.gpu >= MAX_GPUS || c->process_count == MAX_PROCESSES)
        return;
    p.next = 0;
    c->processes[++c->process_count] = p;
    if (c->last_process[p.gpu])
        c->processes[c->last_process[p.gpu]].next = c->process_count;
    else
        c->first_process[p.gpu] = c->process_count;
    c->last_process[p.gpu] = c->process_count;
}

static void add_usage(struct control *c, struct usage u)
{
    if (u.gpu < 0 || u.gpu >= MAX_GPUS || c->usage_count == MAX_PROCESSES)
        return;
    u.next = 0;
    c->usages[++c->usage_count] = u;
    if (c->last_usage[u.gpu])
        c->usages[c->last_usage[u.gpu]].next = c->usage_count;
    else
        c->first_usage[u.gpu] = c->usage_count;
    c->last_usage[u.gpu] = c->usage_count;
}

static void read_line(struct control *c, const char *line)
{
    char word[64];
    int gpu, a, b, used = 0;
    long long n;
    struct process p;
    struct usage u;
    struct event e;

    if (sscanf(line, "gpus %d", &a) == 1) c->gpus = a;
    else if (sscanf(line, "absent %d", &gpu) == 1) c->absent[gpu & (MAX_GPUS - 1)] = 1;
    else if (!strncmp(line, "recording busy", 14)) c->busy = 1;
    else if (!strncmp(line, "replay_cost", 11)) c->replay_cost = 1;
    else if (!strncmp(line, "vary", 4)) c->vary = 1; /* the use of each busy process changes every second */
    else if (!strncmp(line, "held", 4)) c->held = 1; /* another process has the GPU open */
    else if (!strncmp(line, "unprivileged", 12)) c->unprivileged = 1;
    else if (sscanf(line, "driver %63s", c->driver) == 1) return;
    else if (sscanf(line, "fail %63s %lld%n", word, &n, &used) == 2) add_rule(c, RULE_FAIL, word, n, optional_gpu(line + used));
    else if (sscanf(line, "hang %63s%n", word, &used) == 1) add_rule(c, RULE_HANG, word, 0, optional_gpu(line + used));
    else if (sscanf(line, "slow %63s %lld%n", word, &n, &used) == 2) add_rule(c, RULE_SLOW, word, n, optional_gpu(line + used));
    else if (sscanf(line, "lose %d", &gpu) == 1) add_rule(c, RULE_LOST, "*", 0, gpu);
    else if (!strncmp(line, "set ", 4)) read_setting(c, line);
    else if (sscanf(line, "mig_mode %d %d %d", &gpu, &a, &b) == 3) c->mig_mode[gpu & (MAX_GPUS - 1)] = a, c->mig_pending[gpu & (MAX_GPUS - 1)] = b;
    else if (!strncmp(line, "mig_device ", 11)) read_mig(c, line);
    else if (!strncmp(line, "no_processes", 12)) c->processes_set = c->usages_set = 1;
    else if (sscanf(line, "process %d %d %u %llu %u %u", &p.gpu, &p.list, &p.pid, &p.bytes, &p.gi, &p.ci) == 6) {
        c->processes_set = 1;
        add_process(c, p);
    } else if (sscanf(line, "usage %d %u %lld %u %u %u %u", &u.gpu, &u.pid, &u.age_us, &u.sm, &u.mem, &u.enc, &u.dec) == 7) {
        c->usages_set = 1;
        add_usage(c, u);
    } else if (sscanf(line, "event %lu %d %llu %llu", &e.seq, &e.gpu, &e.type, &e.data) == 4) {
        if (c->event_count < 1024) c->events[c->event_count++] = e;
    }
}

static void read_control(void)
{
    /* Not static: it is large, and the memory of the process that loads this library is measured. */
    struct control *read = calloc(1, sizeof *read);
    char path[600], line[512];
    if (!read)
        abort();
    read->gpus = 1;
    snprintf(path, sizeof path, "%s/control", directory);
    FILE *f = fopen(path, "r");
    if (f) {
        while (fgets(line, sizeof line, f))
            read_line(read, line);
        fclose(f);
    }
    if (read->gpus > MAX_GPUS)
        read->gpus = MAX_GPUS;
    for (int g = 0; g < MAX_GPUS; g++) {
        int same = read->mig_mode[g] == control.mig_mode[g] && read->mig_count[g] == control.mig_count[g] &&
                   !memcmp(read->mig[g], control.mig[g], sizeof read->mig[g]);
        read->layout[g] = control.layout[g] + !same;
        if (activated[g])
            read->mig_mode[g] = read->mig_pending[g];
    }
    control = *read;
    free(read);
}

/* A MIG mode that waits for the GPU to be free becomes the mode now. */
void fake_released(void)
{
    for (int g = 0; g < MAX_GPUS && !control.held; g++)
        if (control.mig_pending[g] != control.mig_mode[g])
            activated[g] = 1;
}

void fake_refresh(void)
{
    uint64_t generation = __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE);
    if (generation == seen_generation)
        return;
    pthread_mutex_lock(&lock);
    if (generation != seen_generation) {
        read_control();
        seen_generation = generation;
    }
    pthread_mutex_unlock(&lock);
}

/* At each first nvmlInit: find the page of this test, and freeze which GPUs there are, as the driver does. */
int fake_start(void)
{
    const char *where = getenv("FAKE_NVML_DIR");
    char path[600];
    if (page && page != &no_page)
        munmap(page, sizeof *page);
    page = &no_page;
    memset(&no_page, 0, sizeof no_page);
    if (strcmp(directory, where ? where : ""))
        memset(activated, 0, sizeof activated);
    snprintf(directory, sizeof directory, "%s", where ? where : "");
    snprintf(path, sizeof path, "%s/page", directory);
    int fd = open(path, O_RDWR);
    if (fd >= 0) {
        void *shared = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (shared != MAP_FAILED)
            page = shared;
    }
    if (programs)
        munmap(programs, sizeof *programs);
    snprintf(path, sizeof path, "%s/gpus", directory);
    programs = gpus_open(path, 0);
    seen_generation = page->generation;
    read_control();
    enumerated_count = 0;
    for (int g = 0; g < control.gpus; g++) {
        gpu_handles[g] = (struct handle){MAGIC, g, -1, 0};
        if (!control.absent[g])
            enumerated[enumerated_count++] = g;
    }
    return 0;
}

static int slot_of(const char *call)
{
    for (int i = 0; i < MAX_SITES; i++) {
        if (!page->sites[i].name[0])
            snprintf(page->sites[i].name, sizeof page->sites[i].name, "%s", call);
        if (!strcmp(page->sites[i].name, call))
            return i;
    }
    return MAX_SITES - 1;
}

static int matches(const char *pattern, const char *call, const char *flavour)
{
    size_t n = strlen(call);
    if (!strcmp(pattern, "*"))
        return strcmp(call, "nvmlInit") && strcmp(call, "nvmlShutdown") && !strstr(call, "Free");
    if (!strcmp(pattern, call))
        return 1;
    return flavour && !strncmp(pattern, call, n) && pattern[n] == '.' && !strcmp(pattern + n + 1, flavour);
}

/* A hang ends when the control file no longer asks for it. */
static int hangs(const char *call, const char *flavour, int gpu)
{
    for (int i = 0; i < control.rule_count; i++)
        if (control.rules[i].kind == RULE_HANG && matches(control.rules[i].call, call, flavour) &&
            (control.rules[i].gpu < 0 || control.rules[i].gpu == gpu))
            return 1;
    return 0;
}

static int obey(const char *call, const char *flavour, int gpu)
{
    while (hangs(call, flavour, gpu)) {
        usleep(2000);
        fake_refresh();
    }
    for (int i = 0; i < control.rule_count; i++) {
        struct rule *r = &control.rules[i];
        if (!matches(r->call, call, flavour) || (r->gpu >= 0 && r->gpu != gpu))
            continue;
        if (r->kind == RULE_SLOW) spend_us((double)r->arg);
        else if (r->kind == RULE_FAIL) return (int)r->arg;
        else if (r->kind == RULE_LOST && gpu != NO_GPU) return GPU_IS_LOST;
    }
    return OK;
}

const struct setting *fake_setting(const char *call, const char *flavour, int gpu)
{
    for (int i = 0; i < control.setting_count; i++)
        if (matches(control.settings[i].call, call, flavour) &&
            (control.settings[i].gpu < 0 || control.settings[i].gpu == gpu))
            return &control.settings[i];
    return NULL;
}

int fake_enter(struct site *site, const char *call, const char *flavour, int variant, void *device,
               struct handle **handle, const struct record **record)
{
    static const struct record answer = {"", OK, 0, {0}, NULL, 0};
    int gpu = NO_GPU;

    if (!page)
        return UNINITIALIZED;
    fake_refresh();
    if (device) {
        *handle = device;
        if ((*handle)->magic != MAGIC)
            return INVALID_ARGUMENT;
        gpu = (*handle)->gpu;
    }
    if (site->slot < 0 || strcmp(page->sites[site->slot].name, call))
        site->slot = slot_of(call);
    __atomic_add_fetch(&page->sites[site->slot].calls[gpu], 1, __ATOMIC_RELAXED);
    if (page->references <= 0)
        return UNINITIALIZED;
    if (device && (*handle)->mig >= 0 && (*handle)->layout != control.layout[gpu]) {
        page->stale_mig_uses++;
        return INVALID_ARGUMENT;
    }
    if (control.rule_count) {
        int code = obey(call, flavour, gpu);
        if (code)
            return code;
    }
    const struct record **known = &site->record[control.busy][variant];
    if (!*known) {
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", call, flavour ? "." : "", flavour ? flavour : "");
        *known = fake_record(name);
        if (!*known)
            *known = &answer;
    }
    *record = *known;
    if (control.replay_cost && (*record)->cost_us > 0)
        spend_us((*record)->cost_us);
    /* Recorded errors are those of a whole GPU. */
    if ((*record)->code && !(device && (*handle)->mig >= 0) && !(control.setting_count && fake_setting(call, flavour, gpu)))
        return (*record)->code;
    return OK;
}

double fake_value(const struct record *record, const char *call, const char *flavour, int gpu, int index)
{
    if (control.setting_count) {
        const struct setting *s = fake_setting(call, flavour, gpu);
        if (s && index < s->count)
            return s->value[index];
    }
    return record ? (double)record->value[index] : 0;
}
