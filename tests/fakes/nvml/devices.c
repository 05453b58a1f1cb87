/* The calls about the library and about whole GPUs. GPU 0 answers as recorded; each next one is a little warmer,
 * draws a little more and has its own UUID, PCI address and serial, so that a mix-up shows. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE(index, call, flavour) fake_value(r, call, flavour, h ? h->gpu : NO_GPU, index)

/* --- the library ------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags)
{
    static struct site site = {-1, {{0}}};
    struct handle *h = NULL;
    const struct record *r = NULL;
    (void)flags;
    if (!page || page->references <= 0)
        fake_start();
    page->inits++;
    page->references++;
    int code = fake_enter(&site, "nvmlInit", NULL, 0, NULL, &h, &r);
    if (code)
        page->references--;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    ENTER("nvmlShutdown", NULL, 0, NULL);
    page->references--;
    page->shutdowns++;
    if (page->references == 0)
        fake_released();
    return OK;
}

const char *nvmlErrorString(int code)
{
    /* The driver's own words for what a session may be refused with. */
    static char text[32];
    switch (code) {
    case 4:
        return "Insufficient Permissions";
    case 9:
        return "Driver Not Loaded";
    case 18:
        return "Driver/library version mismatch";
    }
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

static int text(char *out, unsigned length, const char *value)
{
    if (strlen(value) + 1 > length)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    ENTER("nvmlSystemGetDriverVersion", NULL, 0, NULL);
    return text(out, length, control.driver[0] ? control.driver : r->text);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned length)
{
    ENTER("nvmlSystemGetNVMLVersion", NULL, 0, NULL);
#ifdef NVML_VERSION
    return text(out, length, NVML_VERSION);
#endif
    return text(out, length, r->text);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER("nvmlSystemGetCudaDriverVersion_v2", NULL, 0, NULL);
    *version = (int)VALUE(0, "nvmlSystemGetCudaDriverVersion_v2", NULL);
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER("nvmlDeviceGetCount_v2", NULL, 0, NULL);
    *count = enumerated_count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index >= (unsigned)enumerated_count)
        return INVALID_ARGUMENT;
    ENTER("nvmlDeviceGetHandleByIndex_v2", NULL, 0, &gpu_handles[enumerated[index]]);
    *device = h;
    return OK;
}

/* --- what does not change ---------------------------------------------------------------------------------- */

int nvmlDeviceGetIndex(void *device, unsigned *index)
{
    ENTER("nvmlDeviceGetIndex", NULL, 0, device);
    for (int i = 0; i < enumerated_count; i++)
        if (enumerated[i] == h->gpu) {
            *index = i;
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *device, char *out, unsigned length)
{
    ENTER("nvmlDeviceGetName", NULL, 0, device);
    const struct setting *s = fake_setting("nvmlDeviceGetName", NULL, h->gpu);
    char name[160];
    snprintf(name, sizeof name, "%s%s%s", s ? s->text : r->text, h->mig >= 0 ? " MIG " : "",
             h->mig >= 0 ? control.mig[h->gpu][h->mig].profile : "");
    return text(out, length, name);
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned length)
{
    ENTER("nvmlDeviceGetUUID", NULL, 0, device);
    char uuid[96];
    if (h->mig >= 0)
        return text(out, length, control.mig[h->gpu][h->mig].uuid);
    snprintf(uuid, sizeof uuid, "%s", r->text);
    uuid[strlen(uuid) - 1] = "0123456789abcdef"[h->gpu % 16];
    if (h->gpu >= 16)
        uuid[strlen(uuid) - 2] = "0123456789abcdef"[h->gpu / 16];
    return text(out, length, uuid);
}

int nvmlDeviceGetSerial(void *device, char *out, unsigned length)
{
    ENTER("nvmlDeviceGetSerial", NULL, 0, device);
    char serial[32];
    snprintf(serial, sizeof serial, "%lld", atoll(r->text) + h->gpu);
    return text(out, length, serial);
}

int nvmlDeviceGetVbiosVersion(void *device, char *out, unsigned length)
{
    ENTER("nvmlDeviceGetVbiosVersion", NULL, 0, device);
    return text(out, length, r->text);
}

int nvmlDeviceGetInforomImageVersion(void *device, char *out, unsigned length)
{
    ENTER("nvmlDeviceGetInforomImageVersion", NULL, 0, device);
    return text(out, length, r->text);
}

/* Not recorded, since the recorded machine has one GPU: 0 (working), or what is set for the first GPU. */
int nvmlDeviceGetP2PStatus(void *device, void *peer, int capability, int *status)
{
    const struct handle *h = device;
    const struct setting *s = fake_setting("nvmlDeviceGetP2PStatus", NULL, h->gpu);
    (void)peer, (void)capability;
    *status = s ? (int)s->value[0] : 0;
    return OK;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    ENTER("nvmlDeviceGetPciInfo_v3", NULL, 0, device);
    memset(pci, 0, sizeof *pci);
    pci->device = 6 + h->gpu, pci->id = 0x233510de, pci->subsystem = 0x18be10de;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:00:%02X.0", pci->device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:00:%02X.0", pci->device);
    return OK;
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
    ENTER("nvmlDeviceGetMinorNumber", NULL, 0, device);
    *minor = h->gpu;
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    ENTER("nvmlDeviceGetCudaComputeCapability", NULL, 0, device);
    *major = (int)r->value[0], *minor = (int)r->value[1];
    return OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *low, unsigned *high)
{
    ENTER("nvmlDeviceGetPowerManagementLimitConstraints", NULL, 0, device);
    *low = (unsigned)r->value[0], *high = (unsigned)r->value[1];
    return OK;
}

int nvmlDeviceGetTemperatureThreshold(void *device, int kind, unsigned *celsius)
{
    const char *flavour = kind == 1 ? "SLOWDOWN" : "SHUTDOWN";
    ENTER("nvmlDeviceGetTemperatureThreshold", flavour, kind == 1, device);
    *celsius = (unsigned)VALUE(0, "nvmlDeviceGetTemperatureThreshold", flavour);
    return OK;
}

int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *mhz)
{
    /* The graphics clock is the SM clock. */
    const char *flavour = kind <= 1 ? "SM" : "MEM";
    ENTER("nvmlDeviceGetMaxClockInfo", flavour, kind <= 1, device);
    *mhz = (unsigned)r->value[0];
    return OK;
}

/* --- what is one unsigned number --------------------------------------------------------------------------- */

#define NUMBER(call, type, step) \
    int call(void *device, type *out) \
    { \
        ENTER(#call, NULL, 0, device); \
        *out = (type)(VALUE(0, #call, NULL) + (step) * (double)h->gpu); \
        return OK; \
    }

NUMBER(nvmlDeviceGetArchitecture, unsigned, 0)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, 0)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 0)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 0)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 0)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, 0)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, 0)
NUMBER(nvmlDeviceGetBrand, int, 0)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, 1000)
NUMBER(nvmlDeviceGetPerformanceState, int, 0)
NUMBER(nvmlDeviceGetFanSpeed, unsigned, 0)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 1000)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
NUMBER(nvmlDeviceGetPersistenceMode, int, 0)
NUMBER(nvmlDeviceGetComputeMode, int, 0)
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, 0)

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    (void)sensor;
    ENTER("nvmlDeviceGetTemperature", "GPU", 0, device);
    *celsius = (unsigned)(VALUE(0, "nvmlDeviceGetTemperature", "GPU") + h->gpu);
    return OK;
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz)
{
    static const char *const names[] = {"GRAPHICS", "SM", "MEM", "VIDEO"};
    const char *flavour = names[kind & 3];
    ENTER("nvmlDeviceGetClockInfo", flavour, kind & 3, device);
    *mhz = (unsigned)VALUE(0, "nvmlDeviceGetClockInfo", flavour);
    return OK;
}

#define ENGINE(call) \
    int call(void *device, unsigned *percent, unsigned *period_us) \
    { \
        ENTER(#call, NULL, 0, device); \
        *percent = (unsigned)VALUE(0, #call, NULL), *period_us = (unsigned)VALUE(1, #call, NULL); \
        return OK; \
    }

ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

int nvmlDeviceGetUtilizationRates(void *device, unsigned out[2])
{
    ENTER("nvmlDeviceGetUtilizationRates", NULL, 0, device);
    if (h->mig >= 0 || control.mig_mode[h->gpu])
        return NOT_SUPPORTED;
    if (programs) {
        gpus_enter(programs);
        out[0] = gpus_busy_percent(programs, h->gpu), out[1] = 0;
        gpus_leave(programs);
        return OK;
    }
    out[0] = (unsigned)VALUE(0, "nvmlDeviceGetUtilizationRates", NULL);
    out[1] = (unsigned)VALUE(1, "nvmlDeviceGetUtilizationRates", NULL);
    return OK;
}

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *m)
{
    ENTER("nvmlDeviceGetMemoryInfo_v2", NULL, 0, device);
    if (m->version != 0x02000028u)
        return VERSION_MISMATCH;
    if (h->mig >= 0) {
        const struct mig_device *mig = &control.mig[h->gpu][h->mig];
        m->total = mig->memory_mb << 20, m->used = mig->used_mb << 20, m->reserved = 0;
        m->free = m->total - m->used;
        return OK;
    }
    m->total = (unsigned long long)VALUE(1, "nvmlDeviceGetMemoryInfo_v2", NULL);
    m->reserved = (unsigned long long)VALUE(2, "nvmlDeviceGetMemoryInfo_v2", NULL);
    m->free = (unsigned long long)VALUE(3, "nvmlDeviceGetMemoryInfo_v2", NULL) - ((unsigned long long)h->gpu << 20);
    m->used = (unsigned long long)VALUE(4, "nvmlDeviceGetMemoryInfo_v2", NULL) + ((unsigned long long)h->gpu << 20);
    if (programs) {
        gpus_enter(programs);
        m->used = 0;
        for (int j = 0; j < programs->job_count; j++)
            if (programs->jobs[j].gpu == h->gpu && gpus_is_alive(&programs->jobs[j]))
                m->used += programs->jobs[j].memory_bytes;
        m->free = m->total - m->reserved - m->used;
        gpus_leave(programs);
    }
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long m[3])
{
    ENTER("nvmlDeviceGetMemoryInfo", NULL, 0, device);
    for (int i = 0; i < 3; i++)
        m[i] = (unsigned long long)VALUE(i, "nvmlDeviceGetMemoryInfo", NULL);
    return OK;
}

int nvmlDeviceGetPcieThroughput(void *device, int counter, unsigned *kilobytes)
{
    const char *flavour = counter ? "RX" : "TX";
    ENTER("nvmlDeviceGetPcieThroughput", flavour, counter, device);
    *kilobytes = (unsigned)VALUE(0, "nvmlDeviceGetPcieThroughput", flavour);
    return OK;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count)
{
    static const char *const names[] = {"SBE_VOL", "SBE_AGG", "DBE_VOL", "DBE_AGG"};
    int which = (kind & 1) * 2 + (counter & 1);
    ENTER("nvmlDeviceGetTotalEccErrors", names[which], which, device);
    *count = (unsigned long long)VALUE(0, "nvmlDeviceGetTotalEccErrors", names[which]);
    return OK;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    ENTER("nvmlDeviceGetRemappedRows", NULL, 0, device);
    *corrected = (unsigned)VALUE(0, "nvmlDeviceGetRemappedRows", NULL);
    *uncorrected = (unsigned)VALUE(1, "nvmlDeviceGetRemappedRows", NULL);
    *pending = (unsigned)VALUE(2, "nvmlDeviceGetRemappedRows", NULL);
    *failed = (unsigned)VALUE(3, "nvmlDeviceGetRemappedRows", NULL);
    return OK;
}

int nvmlDeviceGetViolationStatus(void *device, int policy, unsigned long long out[2])
{
    const char *flavour = policy == 0 ? "POWER" : "THERMAL";
    ENTER("nvmlDeviceGetViolationStatus", flavour, policy != 0, device);
    out[0] = fake_now_us();
    out[1] = (unsigned long long)VALUE(1, "nvmlDeviceGetViolationStatus", flavour);
    return OK;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active)
{
    ENTER("nvmlDeviceGetNvLinkState", "0", 0, device);
    /* `set nvmlDeviceGetNvLinkState GPU LINKS ACTIVE`: a GPU with that many links. */
    if (link >= VALUE(0, "nvmlDeviceGetNvLinkState", "0"))
        return INVALID_ARGUMENT;
    *active = link < VALUE(1, "nvmlDeviceGetNvLinkState", "0");
    return OK;
}

struct licence {
    int supported;
    unsigned count;
    struct { unsigned code, state; char info[128], product[128]; unsigned enabled; unsigned char expiry[16]; } feature[3];
};
_Static_assert(sizeof(struct licence) == 860, "as nvidia-ml-py has it");

int nvmlDeviceGetGridLicensableFeatures_v4(void *device, struct licence *out)
{
    ENTER("nvmlDeviceGetGridLicensableFeatures_v4", NULL, 0, device);
    memset(out, 0, sizeof *out);
    out->supported = (int)VALUE(0, "nvmlDeviceGetGridLicensableFeatures_v4", NULL);
    out->count = (unsigned)VALUE(1, "nvmlDeviceGetGridLicensableFeatures_v4", NULL);
    if (out->count)
        out->feature[0].state = out->feature[0].enabled = 1;
    return OK;
}

struct field { unsigned id, scope; long long timestamp, latency; int type, code; union { double d; unsigned ui; unsigned long long ull; } value; };

/* `set nvmlDeviceGetFieldValues.ID GPU VALUE` sets a field, with .all or .LINK after the ID one of NVLink traffic. */
static int is_nvlink_traffic(unsigned id) { return id >= 138 && id <= 141; }

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    for (int i = 0; i < count; i++) {
        char flavour[32];
        int length = snprintf(flavour, sizeof flavour, "%u", fields[i].id);
        if (is_nvlink_traffic(fields[i].id) && fields[i].scope == 0xFFFFFFFFu)
            snprintf(flavour + length, sizeof flavour - length, ".all");
        else if (is_nvlink_traffic(fields[i].id))
            snprintf(flavour + length, sizeof flavour - length, ".%u", fields[i].scope);
        ENTER("nvmlDeviceGetFieldValues", flavour, 11, device);
        const struct record *recorded = fake_record_by_id("field", fields[i].id);
        const struct setting *s = fake_setting("nvmlDeviceGetFieldValues", flavour, h->gpu);
        fields[i].timestamp = (long long)fake_now_us();
        fields[i].code = s ? OK : recorded ? recorded->code : NOT_SUPPORTED;
        fields[i].type = recorded && recorded->count > 1 && !s ? (int)recorded->value[1] : 3;
        fields[i].value.ull = 0;
        if (fields[i].code)
            continue;
        double number = s ? s->value[0] : (double)recorded->value[0];
        if (fields[i].type == 0) fields[i].value.d = number;
        else if (fields[i].type == 1) fields[i].value.ui = (unsigned)number;
        else fields[i].value.ull = (unsigned long long)number;
    }
    return OK;
}
