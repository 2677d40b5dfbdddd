/* A stand-in for libnvidia-ml.so.1 at the driver's ABI, scripted by the file of scenario.h. */
#include "scenario.h"

#define MIB (1024ull * 1024ull)
enum { OK = 0, INVALID = 2, NO_SUPPORT = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };

typedef void *device_t;
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
} pci_t;

/* A handle is a number: GPU times 64, plus 1 for the GPU itself or 2 + n for its n-th instance. */
static device_t handle_of(int gpu, int instance) { return (device_t)(long)(gpu * 64 + 2 + instance); }
static int gpu_of(device_t h) { return (int)((long)h / 64); }
static int instance_of(device_t h) { return (int)((long)h % 64) - 2; }
static line_t *line_of(device_t h) {
    int instance = instance_of(h);
    return instance < 0 ? find_line("gpu", gpu_of(h), 0) : find_line("instance", gpu_of(h), instance);
}

static int enter_device(const char *call, device_t h) {
    int code = enter(call, gpu_of(h));
    if (code) return code;
    if (number_of(find_line("gpu", gpu_of(h), 0), "lost", 0)) return LOST;
    return line_of(h) ? OK : INVALID;
}
#define ENTER(call) { int code = enter(call, -1); if (code) return code; }
#define ENTER_DEVICE(call, h) { int code = enter_device(call, h); if (code) return code; }
/* A value that is there only if the scenario has its key. */
#define OPTIONAL(h, key, result, scale) { \
    long long value = number_of(line_of(h), key, -1); \
    if (value < 0) return NO_SUPPORT; \
    *(result) = (unsigned)(value * (scale)); \
    return OK; }

int nvmlInit_v2(void) { ENTER("nvmlInit"); return OK; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER("nvmlInit"); return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    static __thread char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER("nvmlSystemGetDriverVersion");
    copy_text(text, value_of(find_line("driver", -1, 0), "version", "570.86"), size);
    return OK;
}
int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    ENTER("nvmlSystemGetNVMLVersion");
    copy_text(text, value_of(find_line("driver", -1, 0), "nvml", "12.570.86"), size);
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER("nvmlSystemGetCudaDriverVersion");
    *version = (int)number_of(find_line("driver", -1, 0), "cuda", 12080);
    return OK;
}
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER("nvmlDeviceGetCount");
    *count = (unsigned)count_lines("gpu", -1);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *h) {
    ENTER_DEVICE("nvmlDeviceGetHandleByIndex", handle_of((int)index, -1));
    *h = handle_of((int)index, -1);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *h) {
    ENTER("nvmlDeviceGetHandleByUUID");
    for (int gpu = 0; gpu < MOST; gpu++)
        for (int instance = -1; instance < MOST; instance++) {
            device_t candidate = handle_of(gpu, instance);
            line_t *line = line_of(candidate);
            if (!line || strcmp(value_of(line, "uuid", ""), uuid)) continue;
            ENTER_DEVICE("nvmlDeviceGetHandleByUUID", candidate);
            *h = candidate;
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(device_t h, char *text, unsigned size) {
    ENTER_DEVICE("nvmlDeviceGetName", h);
    const char *name = value_of(find_line("gpu", gpu_of(h), 0), "name", "NVIDIA_Stub");
    copy_text(text, value_of(line_of(h), "name", name), size);
    return OK;
}
int nvmlDeviceGetUUID(device_t h, char *text, unsigned size) {
    ENTER_DEVICE("nvmlDeviceGetUUID", h);
    snprintf(text, size, "%s", value_of(line_of(h), "uuid", ""));
    return OK;
}
int nvmlDeviceGetIndex(device_t h, unsigned *index) {
    ENTER_DEVICE("nvmlDeviceGetIndex", h);
    if (instance_of(h) >= 0) return INVALID;
    *index = (unsigned)gpu_of(h);
    return OK;
}
int nvmlDeviceGetMinorNumber(device_t h, unsigned *minor) {
    ENTER_DEVICE("nvmlDeviceGetMinorNumber", h);
    *minor = (unsigned)gpu_of(h);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(device_t h, pci_t *pci) {
    ENTER_DEVICE("nvmlDeviceGetPciInfo", h);
    memset(pci, 0, sizeof *pci);
    const char *bus = value_of(find_line("gpu", gpu_of(h), 0), "bus", "00000000:00:00.0");
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", bus);
    sscanf(bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(device_t h, int *major, int *minor) {
    ENTER_DEVICE("nvmlDeviceGetCudaComputeCapability", h);
    const char *text = value_of(find_line("gpu", gpu_of(h), 0), "cc", "9.0");
    return sscanf(text, "%d.%d", major, minor) == 2 ? OK : NO_SUPPORT;
}

int nvmlDeviceGetMigMode(device_t h, unsigned *current, unsigned *pending) {
    ENTER_DEVICE("nvmlDeviceGetMigMode", h);
    long long mode = number_of(line_of(h), "mig", -1);
    if (mode < 0) return NO_SUPPORT;
    *current = *pending = (unsigned)mode;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device_t h, unsigned *count) {
    ENTER_DEVICE("nvmlDeviceGetMaxMigDeviceCount", h);
    *count = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device_t h, unsigned index, device_t *instance) {
    ENTER_DEVICE("nvmlDeviceGetMigDeviceHandleByIndex", h);
    if (!find_line("instance", gpu_of(h), (int)index)) return NOT_FOUND;
    *instance = handle_of(gpu_of(h), (int)index);
    return OK;
}
int nvmlDeviceGetGpuInstanceId(device_t h, unsigned *id) {
    ENTER_DEVICE("nvmlDeviceGetGpuInstanceId", h);
    OPTIONAL(h, "gi", id, 1);
}
int nvmlDeviceGetComputeInstanceId(device_t h, unsigned *id) {
    ENTER_DEVICE("nvmlDeviceGetComputeInstanceId", h);
    OPTIONAL(h, "ci", id, 1);
}

int nvmlDeviceGetMemoryInfo_v2(device_t h, memory_v2_t *memory) {
    ENTER_DEVICE("nvmlDeviceGetMemoryInfo_v2", h);
    line_t *line = line_of(h);
    memory->total = (u64)number_of(line, "memory", 0) * MIB;
    memory->used = (u64)number_of(line, "used", 0) * MIB;
    memory->reserved = (u64)number_of(line, "reserved", 0) * MIB;
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}
int nvmlDeviceGetMemoryInfo(device_t h, memory_t *memory) {
    ENTER_DEVICE("nvmlDeviceGetMemoryInfo", h);
    line_t *line = line_of(h);
    memory->total = (u64)number_of(line, "memory", 0) * MIB;
    memory->used = (u64)(number_of(line, "used", 0) + number_of(line, "reserved", 0)) * MIB;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(device_t h, utilization_t *utilization) {
    ENTER_DEVICE("nvmlDeviceGetUtilizationRates", h);
    if (instance_of(h) >= 0) return NO_SUPPORT;
    utilization->memory = 0;
    OPTIONAL(h, "util", &utilization->gpu, 1);
}
int nvmlDeviceGetTemperature(device_t h, int sensor, unsigned *celsius) {
    (void)sensor;
    ENTER_DEVICE("nvmlDeviceGetTemperature", h);
    OPTIONAL(h, "temperature", celsius, 1);
}
int nvmlDeviceGetPowerUsage(device_t h, unsigned *milliwatts) {
    ENTER_DEVICE("nvmlDeviceGetPowerUsage", h);
    OPTIONAL(h, "power", milliwatts, 1000);
}
int nvmlDeviceGetEnforcedPowerLimit(device_t h, unsigned *milliwatts) {
    ENTER_DEVICE("nvmlDeviceGetEnforcedPowerLimit", h);
    OPTIONAL(h, "power_limit", milliwatts, 1000);
}

static int list_processes(device_t h, int mps, unsigned *count, process_t *processes) {
    unsigned found = 0, room = processes ? *count : 0;
    line_t *line;
    for (int n = 0; (line = find_line("process", gpu_of(h), n)); n++) {
        int instance = (int)number_of(line, "instance", -1);
        if (number_of(line, "mps", 0) != mps) continue;
        if (instance_of(h) >= 0 && instance != instance_of(h)) continue;
        if (found < room) {
            long long memory = number_of(line, "memory", 0);
            processes[found].pid = (unsigned)number_of(line, "pid", 0);
            processes[found].used = memory < 0 ? ~0ull : (u64)memory * MIB;
            processes[found].gi = processes[found].ci = ~0u;
        }
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device_t h, unsigned *count, process_t *processes) {
    ENTER_DEVICE("nvmlDeviceGetComputeRunningProcesses", h);
    return list_processes(h, 0, count, processes);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t h, unsigned *count, process_t *processes) {
    ENTER_DEVICE("nvmlDeviceGetMPSComputeRunningProcesses", h);
    return list_processes(h, 1, count, processes);
}

int nvmlDeviceGetComputeMode(device_t h, unsigned *mode) {
    ENTER_DEVICE("nvmlDeviceGetComputeMode", h);
    *mode = (unsigned)number_of(line_of(h), "compute_mode", 0);
    return OK;
}
int nvmlDeviceGetPersistenceMode(device_t h, unsigned *mode) {
    ENTER_DEVICE("nvmlDeviceGetPersistenceMode", h);
    OPTIONAL(h, "persistence", mode, 1);
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t h, u64 *reasons) {
    ENTER_DEVICE("nvmlDeviceGetCurrentClocksEventReasons", h);
    *reasons = (u64)number_of(line_of(h), "throttle", 0);
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t h, u64 *reasons) {
    ENTER_DEVICE("nvmlDeviceGetCurrentClocksThrottleReasons", h);
    *reasons = (u64)number_of(line_of(h), "throttle", 0);
    return OK;
}
int nvmlDeviceGetEccMode(device_t h, unsigned *current, unsigned *pending) {
    ENTER_DEVICE("nvmlDeviceGetEccMode", h);
    *pending = (unsigned)number_of(line_of(h), "ecc", 0);
    OPTIONAL(h, "ecc", current, 1);
}
int nvmlDeviceGetTotalEccErrors(device_t h, int type, int counter, u64 *errors) {
    (void)counter;
    ENTER_DEVICE("nvmlDeviceGetTotalEccErrors", h);
    *errors = type == 1 ? (u64)number_of(line_of(h), "ecc_errors", 0) : 0; /* 1: uncorrected */
    return OK;
}
int nvmlDeviceGetRemappedRows(device_t h, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    ENTER_DEVICE("nvmlDeviceGetRemappedRows", h);
    *corrected = *uncorrected = 0;
    *pending = (unsigned)number_of(line_of(h), "remap_pending", 0);
    *failed = (unsigned)number_of(line_of(h), "remap_failed", 0);
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(device_t h, unsigned *pending) {
    ENTER_DEVICE("nvmlDeviceGetRetiredPagesPendingStatus", h);
    OPTIONAL(h, "retired_pending", pending, 1);
}
int nvmlDeviceGetP2PStatus(device_t a, device_t b, int index, unsigned *status) {
    (void)index;
    line_t *line;
    ENTER_DEVICE("nvmlDeviceGetP2PStatus", a);
    *status = 0;
    for (int n = 0; (line = find_line("p2p", -1, n)); n++) {
        int first = atoi(line->words[0]), second = atoi(line->words[1]);
        if ((first == gpu_of(a) && second == gpu_of(b)) || (second == gpu_of(a) && first == gpu_of(b)))
            *status = (unsigned)number_of(line, "status", 0);
    }
    return OK;
}
