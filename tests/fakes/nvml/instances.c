/* The calls about processes, GPM samples, MIG instances and events. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- processes --------------------------------------------------------------------------------------------- */

struct process_v1 { unsigned pid; unsigned long long bytes; };
struct process_v2 { unsigned pid; unsigned long long bytes; unsigned gi, ci; };

static int list(struct handle *h, const struct record *r, int kind, unsigned *count, void *out, int old)
{
    struct process found[MAX_ON_GPU + JOBS];
    unsigned n = 0;
    int mig = control.mig_mode[h->gpu];

    if (mig && h->mig < 0 && control.unprivileged)
        return NO_PERMISSION;
    if (programs && kind == LIST_COMPUTE) {
        gpus_enter(programs);
        for (int j = 0; j < programs->job_count; j++) {
            const struct job *job = &programs->jobs[j];
            if (job->gpu == h->gpu && gpus_is_alive(job))
                found[n++] = (struct process){h->gpu, kind, 0, (unsigned)job->pid, NOT_AVAILABLE, NOT_AVAILABLE, job->memory_bytes};
        }
        gpus_leave(programs);
    } else if (!programs && !control.processes_set) {
        /* As recorded: pid, bytes, GPU instance, compute instance. */
        if (r->count >= 4)
            found[n++] = (struct process){h->gpu, kind, 0, (unsigned)r->value[0] + h->gpu, NOT_AVAILABLE, NOT_AVAILABLE,
                                          (unsigned long long)r->value[1]};
    }
    for (int i = control.first_process[h->gpu]; i && n < MAX_ON_GPU; i = control.processes[i].next) {
        struct process *p = &control.processes[i];
        if (p->list != kind)
            continue;
        if (h->mig >= 0 && (p->gi != (unsigned)control.mig[h->gpu][h->mig].gi || p->ci != (unsigned)control.mig[h->gpu][h->mig].ci))
            continue;
        found[n++] = *p;
    }
    unsigned room = *count;
    *count = n;
    if (room < n)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        if (old)
            ((struct process_v1 *)out)[i] = (struct process_v1){found[i].pid, found[i].bytes};
        else
            ((struct process_v2 *)out)[i] = (struct process_v2){found[i].pid, found[i].bytes, found[i].gi, found[i].ci};
    return OK;
}

#define LIST(call, kind, recorded, old) \
    int call(void *device, unsigned *count, void *out) \
    { \
        ENTER(#call, NULL, 0, device); \
        const struct record *as = fake_record(recorded); \
        return list(h, as ? as : r, kind, count, out, old); \
    }

LIST(nvmlDeviceGetComputeRunningProcesses_v3, LIST_COMPUTE, "nvmlDeviceGetComputeRunningProcesses_v3", 0)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, LIST_COMPUTE, "nvmlDeviceGetComputeRunningProcesses_v3", 0)
LIST(nvmlDeviceGetComputeRunningProcesses, LIST_COMPUTE, "nvmlDeviceGetComputeRunningProcesses_v3", 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, LIST_GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses_v3", 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, LIST_GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses_v3", 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses, LIST_GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses_v3", 1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, LIST_MPS, "nvmlDeviceGetMPSComputeRunningProcesses_v3", 0)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, LIST_MPS, "nvmlDeviceGetMPSComputeRunningProcesses_v3", 0)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, LIST_MPS, "nvmlDeviceGetMPSComputeRunningProcesses_v3", 1)

struct sample { unsigned pid; unsigned long long timestamp; unsigned sm, mem, enc, dec; };

int nvmlDeviceGetProcessUtilization(void *device, struct sample *out, unsigned *count, unsigned long long last_seen)
{
    /* "Not Found" was recorded on an idle GPU; samples of the control file are not idle. */
    int set = control.usages_set || programs;
    ENTER("nvmlDeviceGetProcessUtilization", set ? "set" : NULL, set, device);
    struct sample found[MAX_ON_GPU + JOBS];
    unsigned n = 0;
    uint64_t now = fake_now_us();

    if (control.mig_mode[h->gpu])
        return NOT_SUPPORTED;
    if (programs) {
        gpus_enter(programs);
        uint64_t age = (uint64_t)((programs->now_s - programs->mark * MARK_S) * 1e6);
        for (int j = 0; j < programs->job_count; j++) {
            /* From its first use of the GPU on a process is sampled, also while it is idle. */
            const struct job *job = &programs->jobs[j];
            if (job->gpu == h->gpu && gpus_is_alive(job) && job->slices_s > 0)
                found[n++] = (struct sample){(unsigned)job->pid, now - age, gpus_job_percent(programs, job), 0, 0, 0};
        }
        gpus_leave(programs);
    } else if (!control.usages_set && r->count >= 6)
        found[n++] = (struct sample){(unsigned)r->value[0] + h->gpu, now - 200000, (unsigned)r->value[2],
                                     (unsigned)r->value[3], (unsigned)r->value[4], (unsigned)r->value[5]};
    for (int i = control.first_usage[h->gpu]; i && n < MAX_ON_GPU; i = control.usages[i].next) {
        struct usage *u = &control.usages[i];
        unsigned sm = control.vary && u->sm ? u->sm + (unsigned)((now / 1000000 + u->pid) % 3) : u->sm;
        found[n++] = (struct sample){u->pid, now - u->age_us, sm, u->mem, u->enc, u->dec};
    }
    unsigned kept = 0;
    for (unsigned i = 0; i < n; i++)
        if (found[i].timestamp > last_seen)
            found[kept++] = found[i];
    if (!kept)
        return NOT_FOUND;
    unsigned room = *count;
    *count = kept;
    if (room < kept || !out)
        return INSUFFICIENT_SIZE;
    memcpy(out, found, kept * sizeof *out);
    return OK;
}

/* --- GPM --------------------------------------------------------------------------------------------------- */

struct gpm_sample { int taken, gpu, gi; uint64_t order; double at_s, counters[COUNTERS]; };
struct gpm_metric { unsigned id; int code; double value; const char *info[3]; };
struct gpm_get { unsigned version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };

int nvmlGpmQueryDeviceSupport(void *device, unsigned support[2])
{
    ENTER("nvmlGpmQueryDeviceSupport", NULL, 0, device);
    if (support[0] != 1)
        return VERSION_MISMATCH;
    const struct setting *s = fake_setting("nvmlGpmQueryDeviceSupport", NULL, h->gpu);
    support[1] = s ? (unsigned)s->value[0] : 1;
    return OK;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    ENTER("nvmlGpmSampleAlloc", NULL, 0, NULL);
    *sample = calloc(1, 4096);
    page->gpm_samples++;
    return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    ENTER("nvmlGpmSampleFree", NULL, 0, NULL);
    free(sample);
    page->gpm_samples--;
    return OK;
}

static void take(struct gpm_sample *sample, int gpu, int gi)
{
    static uint64_t order;
    *sample = (struct gpm_sample){.taken = 1, .gpu = gpu, .gi = gi};
    sample->order = __atomic_add_fetch(&order, 1, __ATOMIC_RELAXED);
    if (programs) {
        gpus_enter(programs);
        sample->at_s = gpus_counters(programs, gpu, sample->counters);
        gpus_leave(programs);
    }
}

int nvmlGpmSampleGet(void *device, struct gpm_sample *sample)
{
    ENTER("nvmlGpmSampleGet", NULL, 0, device);
    take(sample, h->gpu, -1);
    return OK;
}

int nvmlGpmMigSampleGet(void *device, unsigned gi, struct gpm_sample *sample)
{
    ENTER("nvmlGpmMigSampleGet", NULL, 0, device);
    for (int i = 0; i < control.mig_count[h->gpu]; i++)
        if ((unsigned)control.mig[h->gpu][i].gi == gi) {
            take(sample, h->gpu, (int)gi);
            return OK;
        }
    return NOT_FOUND;
}

/* The counter of a metric that the programs determine; -1 for any other. */
static int counter_of(unsigned metric)
{
    return metric == 1 ? GRAPHICS : metric == 2 ? SM : metric == 5 ? TENSOR : metric == 10 ? DRAM : -1;
}

int nvmlGpmMetricsGet(struct gpm_get *get)
{
    ENTER("nvmlGpmMetricsGet", NULL, 0, NULL);
    const struct gpm_sample *a = get->first, *b = get->second;
    if (get->version != 1)
        return VERSION_MISMATCH;
    if (!a || !b || !a->taken || !b->taken || a->gpu != b->gpu || a->gi != b->gi || a->order >= b->order) {
        page->misuses++;
        return INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < get->count; i++) {
        struct gpm_metric *m = &get->metrics[i];
        char flavour[16];
        snprintf(flavour, sizeof flavour, "%u", m->id);
        const struct setting *s = fake_setting("gpm", flavour, a->gpu);
        const struct record *recorded = fake_record_by_id("gpm", (int)m->id);
        m->code = s ? OK : recorded ? recorded->code : NOT_SUPPORTED;
        /* Recorded in millionths: records hold whole numbers. */
        m->value = s ? s->value[0] : recorded ? (double)recorded->value[0] / 1e6 : 0;
        int counter = counter_of(m->id);
        if (programs && !s && counter >= 0) /* not a number if the counters have not moved */
            m->value = 100 * (b->counters[counter] - a->counters[counter]) / (b->at_s - a->at_s);
    }
    return OK;
}

/* --- MIG --------------------------------------------------------------------------------------------------- */

static struct handle mig_handles[MAX_GPUS][MAX_MIG][4];

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    ENTER("nvmlDeviceGetMigMode", NULL, 0, device);
    *current = (unsigned)control.mig_mode[h->gpu], *pending = (unsigned)control.mig_pending[h->gpu];
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
    ENTER("nvmlDeviceGetMaxMigDeviceCount", NULL, 0, device);
    *count = control.mig_mode[h->gpu] ? 7 : 0;
    return OK;
}

static struct handle *mig_handle(int gpu, int index)
{
    struct handle *made = &mig_handles[gpu][index][control.layout[gpu] & 3];
    *made = gpu_handles[gpu];
    made->mig = index, made->layout = control.layout[gpu];
    return made;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out)
{
    ENTER("nvmlDeviceGetMigDeviceHandleByIndex", NULL, 0, device);
    if (!control.mig_mode[h->gpu] || index >= (unsigned)control.mig_count[h->gpu])
        return NOT_FOUND;
    *out = mig_handle(h->gpu, (int)index);
    return OK;
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned length);

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
    ENTER("nvmlDeviceGetHandleByUUID", NULL, 0, NULL);
    char own[96];
    for (int g = 0; g < control.gpus; g++)
        if (nvmlDeviceGetUUID(&gpu_handles[g], own, sizeof own) == OK && !strcmp(own, uuid)) {
            *out = &gpu_handles[g];
            return OK;
        }
    for (int g = 0; g < control.gpus; g++)
        for (int i = 0; control.mig_mode[g] && i < control.mig_count[g]; i++)
            if (!strcmp(control.mig[g][i].uuid, uuid)) {
                *out = mig_handle(g, i);
                return OK;
            }
    return NOT_FOUND;
}

#define OF_MIG(call, field) \
    int call(void *device, unsigned *out) \
    { \
        ENTER(#call, NULL, 1, device); \
        if (h->mig < 0) \
            return INVALID_ARGUMENT; \
        *out = (unsigned)control.mig[h->gpu][h->mig].field; \
        return OK; \
    }

OF_MIG(nvmlDeviceGetGpuInstanceId, gi)
OF_MIG(nvmlDeviceGetComputeInstanceId, ci)

struct attributes { unsigned sms, ce, dec, enc, jpeg, ofa, gi_slices, ci_slices; unsigned long long memory_mb; };

int nvmlDeviceGetAttributes_v2(void *device, struct attributes *out)
{
    ENTER("nvmlDeviceGetAttributes_v2", NULL, 1, device);
    if (h->mig < 0)
        return NOT_SUPPORTED;
    const struct mig_device *m = &control.mig[h->gpu][h->mig];
    memset(out, 0, sizeof *out);
    out->gi_slices = m->gi_slices, out->ci_slices = m->ci_slices, out->memory_mb = m->memory_mb;
    out->sms = 16u * m->ci_slices;
    return OK;
}

struct instance { struct handle *device; int gi; };
struct instance_info { void *device; unsigned id, profile, start, size; };

int nvmlDeviceGetGpuInstanceById(void *device, unsigned id, struct instance **out)
{
    static struct instance pool[MAX_GPUS][16];
    ENTER("nvmlDeviceGetGpuInstanceById", NULL, 0, device);
    if (control.unprivileged)
        return NO_PERMISSION;
    for (int i = 0; i < control.mig_count[h->gpu]; i++)
        if ((unsigned)control.mig[h->gpu][i].gi == id) {
            pool[h->gpu][id & 15] = (struct instance){h, (int)id};
            *out = &pool[h->gpu][id & 15];
            return OK;
        }
    return NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(struct instance *instance, struct instance_info *info)
{
    ENTER("nvmlGpuInstanceGetInfo", NULL, 0, instance->device);
    for (int i = 0; i < control.mig_count[h->gpu]; i++) {
        const struct mig_device *m = &control.mig[h->gpu][i];
        if (m->gi == instance->gi) {
            *info = (struct instance_info){instance->device, (unsigned)m->gi, 0, (unsigned)m->start, (unsigned)m->size};
            return OK;
        }
    }
    return NOT_FOUND;
}

/* --- events ------------------------------------------------------------------------------------------------ */

struct event_set { unsigned long long types[MAX_GPUS]; };
struct event_data { void *device; unsigned long long type, data; unsigned gi, ci; };
static uint64_t delivered;

int nvmlEventSetCreate(struct event_set **set)
{
    ENTER("nvmlEventSetCreate", NULL, 0, NULL);
    *set = calloc(1, sizeof **set);
    page->event_sets++;
    return OK;
}

int nvmlEventSetFree(struct event_set *set)
{
    ENTER("nvmlEventSetFree", NULL, 0, NULL);
    free(set);
    page->event_sets--;
    return OK;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, struct event_set *set)
{
    ENTER("nvmlDeviceRegisterEvents", NULL, 0, device);
    const struct record *supported = fake_record("nvmlDeviceGetSupportedEventTypes");
    if (types & ~(unsigned long long)supported->value[0])
        return NOT_SUPPORTED;
    set->types[h->gpu] |= types;
    return OK;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    ENTER("nvmlEventSetWait_v2", NULL, 0, NULL);
    if (timeout_ms)
        page->misuses++; /* the agent must never wait here */
    if (page->loads == 0)
        page->loads = 1, delivered = 0;
    for (int i = 0; i < control.event_count; i++) {
        struct event *e = &control.events[i];
        if (e->seq <= delivered)
            continue;
        delivered = e->seq;
        if (!(set->types[e->gpu & (MAX_GPUS - 1)] & e->type))
            continue;
        *data = (struct event_data){&gpu_handles[e->gpu & (MAX_GPUS - 1)], e->type, e->data, NOT_AVAILABLE, NOT_AVAILABLE};
        return OK;
    }
    return TIMEOUT;
}
