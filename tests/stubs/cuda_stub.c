/* A stand-in for libcuda.so.1: which GPUs CUDA shows under this environment, as documented. */
#include <ctype.h>
#include <strings.h>

#include "scenario.h"

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };

typedef struct { char uuid[96]; int gpu; int is_instance; } shown_t;

static shown_t shown[MOST];
static int num_shown = -1; /* fixed by cuInit, as in the real library */

/* The GPUs in CUDA's order: by bus, or the fastest first. */
static int in_order(int order[MOST]) {
    const char *wish = getenv("CUDA_DEVICE_ORDER");
    int by_bus = wish && !strcmp(wish, "PCI_BUS_ID"), count = 0;
    for (int gpu = 0; gpu < MOST; gpu++) {
        line_t *line = find_line("gpu", gpu, 0);
        if (!line || number_of(line, "lost", 0)) continue;
        int place = count++;
        while (place > 0) {
            line_t *before = find_line("gpu", order[place - 1], 0);
            int later = by_bus ? strcmp(value_of(before, "bus", ""), value_of(line, "bus", "")) > 0
                               : number_of(before, "speed", 0) < number_of(line, "speed", 0);
            if (!later) break;
            order[place] = order[place - 1];
            place--;
        }
        order[place] = gpu;
    }
    return count;
}

static int show(line_t *line, int gpu, int is_instance) {
    if (!line) return 0;
    for (int n = 0; n < num_shown; n++)
        if (!strcmp(shown[n].uuid, value_of(line, "uuid", ""))) return -1; /* a duplicate */
    snprintf(shown[num_shown].uuid, 96, "%s", value_of(line, "uuid", ""));
    shown[num_shown].gpu = gpu;
    shown[num_shown++].is_instance = is_instance;
    return 1;
}

/* A divided GPU stands for its first instance. */
static int show_gpu(int gpu) {
    line_t *line = find_line("gpu", gpu, 0);
    if (number_of(line, "mig", 0) > 0) return show(find_line("instance", gpu, 0), gpu, 1);
    return show(line, gpu, 0);
}

static int show_uuid(const char *entry) {
    line_t *found = NULL;
    int gpu = 0, is_instance = 0, fitting = 0;
    for (int i = 0; i < num_lines; i++) {
        int instance = !strcmp(lines[i].kind, "instance");
        if (!instance && strcmp(lines[i].kind, "gpu")) continue;
        if (strncasecmp(value_of(&lines[i], "uuid", ""), entry, strlen(entry))) continue;
        found = &lines[i], gpu = atoi(lines[i].words[0]), is_instance = instance, fitting++;
    }
    return fitting == 1 ? show(found, gpu, is_instance) : 0;
}

/* 1: shown, 0: an invalid entry, which hides itself and all after it, -1: a duplicate. */
static int show_entry(const char *entry, const int order[MOST], int count) {
    char *end;
    if (!strncmp(entry, "GPU-", 4) || !strncmp(entry, "MIG-", 4)) return show_uuid(entry);
    long number = strtol(entry, &end, 10);
    if (end == entry || *end || number < 0 || number >= count) return 0;
    return show_gpu(order[number]);
}

static void apply_mask(void) {
    int order[MOST], count = in_order(order);
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    char copy[2048], *rest = NULL;
    num_shown = 0;
    if (!mask) {
        for (int n = 0; n < count; n++)
            if (number_of(find_line("gpu", order[n], 0), "mig", 0) <= 0) show_gpu(order[n]);
        if (!num_shown && count) show_gpu(order[0]); /* one instance per process */
        return;
    }
    snprintf(copy, sizeof copy, "%s", mask);
    for (char *entry = strtok_r(copy, ",", &rest); entry; entry = strtok_r(NULL, ",", &rest)) {
        while (isspace((unsigned char)*entry)) entry++;
        int result = show_entry(entry, order, count);
        if (result < 0) num_shown = 0;
        if (result <= 0 || shown[num_shown - 1].is_instance) return;
    }
}

int cuInit(unsigned flags) {
    (void)flags;
    int code = enter("cuInit", -1);
    if (code) return code;
    apply_mask();
    return num_shown ? OK : NO_DEVICE;
}
int cuDeviceGetCount(int *count) {
    if (num_shown < 0) return NOT_INITIALIZED;
    *count = num_shown;
    return enter("cuDeviceGetCount", -1);
}
int cuDeviceGet(int *device, int ordinal) {
    if (num_shown < 0) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= num_shown) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

static int write_uuid(unsigned char raw[16], int device) {
    if (device < 0 || device >= num_shown) return INVALID_DEVICE;
    const char *digits = shown[device].uuid + 4;
    for (int n = 0; n < 16; n++) {
        unsigned byte;
        while (*digits == '-') digits++;
        if (sscanf(digits, "%2x", &byte) != 1) return INVALID_VALUE;
        raw[n] = (unsigned char)byte;
        digits += 2;
    }
    return OK;
}
int cuDeviceGetUuid_v2(unsigned char raw[16], int device) { return write_uuid(raw, device); }
int cuDeviceGetUuid(unsigned char raw[16], int device) { return write_uuid(raw, device); }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (device < 0 || device >= num_shown) return INVALID_DEVICE;
    read_scenario();
    *flags = 0;
    *active = 0;
    line_t *line;
    for (int n = 0; (line = find_line("context", shown[device].gpu, n)); n++)
        if (number_of(line, "pid", 0) == getpid()) *active = 1;
    return OK;
}
