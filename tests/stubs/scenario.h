/* The machine that the stubs of libnvidia-ml and libcuda pretend to be.
 *
 * MGPU_STUB_SCENARIO names a text file that is read again whenever it was written, so that a test can
 * change the machine while processes run. One fact per line, `key=value` in any order, `_` for a blank:
 *
 *   driver version=570.86 cuda=12080
 *   gpu 0 uuid=GPU-... name=NVIDIA_H200 bus=00000000:01:00.0 cc=9.0 memory=144384 used=0 util=0
 *         (one line; memory in MiB; more keys: reserved, speed, temperature, power, power_limit in
 *         watts, throttle and compute_mode as numbers, persistence, ecc, ecc_errors, remap_pending,
 *         remap_failed, retired_pending, mig=1 for a divided GPU, lost=1)
 *   instance 0 uuid=MIG-... gi=1 ci=0 memory=10240 used=0    an instance of GPU 0
 *   process 0 pid=4242 memory=1024          on GPU 0; `instance=1` puts it on that instance,
 *                                           `mps=1` into the list of MPS clients, memory=-1 unknown
 *   context 0 pid=4242                      that process has a CUDA context on GPU 0
 *   p2p 0 1 status=3                        nvmlGpuP2PStatus_t of the pair; 0 (fine) by default
 *   fail nvmlDeviceGetName 3                the call returns 3; a third word limits it to one GPU
 *   hang nvmlDeviceGetName                  the call blocks while this line is there
 */
#ifndef SCENARIO_H
#define SCENARIO_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 16
#define MOST_LINES 256

typedef struct {
    char kind[16];
    char words[3][64];
    int num_words;
    char keys[24][24];
    char values[24][96];
    int num_keys;
} line_t;

static __thread line_t lines[MOST_LINES];
static __thread int num_lines;

static void parse_line(char *text, line_t *line) {
    char *rest = NULL;
    memset(line, 0, sizeof *line);
    for (char *word = strtok_r(text, " \t\r\n", &rest); word; word = strtok_r(NULL, " \t\r\n", &rest)) {
        char *equals = strchr(word, '=');
        if (!line->kind[0]) {
            snprintf(line->kind, sizeof line->kind, "%s", word);
        } else if (equals && line->num_keys < 24) {
            *equals = 0;
            snprintf(line->keys[line->num_keys], 24, "%s", word);
            snprintf(line->values[line->num_keys++], 96, "%s", equals + 1);
        } else if (line->num_words < 3) {
            snprintf(line->words[line->num_words++], 64, "%s", word);
        }
    }
}

static void read_scenario(void) {
    static __thread struct stat seen;
    struct stat now;
    char buffer[1024];
    const char *path = getenv("MGPU_STUB_SCENARIO");
    if (!path || stat(path, &now)) {
        num_lines = 0;
        return;
    }
    if (seen.st_ino == now.st_ino && seen.st_size == now.st_size &&
        seen.st_mtim.tv_sec == now.st_mtim.tv_sec && seen.st_mtim.tv_nsec == now.st_mtim.tv_nsec)
        return; /* not written since */
    FILE *file = fopen(path, "re");
    num_lines = 0;
    if (!file) return;
    seen = now;
    while (num_lines < MOST_LINES && fgets(buffer, sizeof buffer, file)) {
        parse_line(buffer, &lines[num_lines]);
        if (lines[num_lines].kind[0] && lines[num_lines].kind[0] != '#') num_lines++;
    }
    fclose(file);
}

static const char *value_of(const line_t *line, const char *key, const char *otherwise) {
    for (int k = 0; line && k < line->num_keys; k++)
        if (!strcmp(line->keys[k], key)) return line->values[k];
    return otherwise;
}

static long long number_of(const line_t *line, const char *key, long long otherwise) {
    const char *text = value_of(line, key, NULL);
    return text ? strtoll(text, NULL, 0) : otherwise;
}

/* The n-th line of a kind; with gpu >= 0 only those whose first word is that number. */
static line_t *find_line(const char *kind, int gpu, int n) {
    for (int i = 0; i < num_lines; i++) {
        if (strcmp(lines[i].kind, kind)) continue;
        if (gpu >= 0 && atoi(lines[i].words[0]) != gpu) continue;
        if (n-- == 0) return &lines[i];
    }
    return NULL;
}

static int count_lines(const char *kind, int gpu) {
    int n = 0;
    while (find_line(kind, gpu, n)) n++;
    return n;
}

static int is_scripted(const line_t *line, const char *call, int gpu, int gpu_word) {
    if (strcmp(line->words[0], call)) return 0;
    return line->num_words <= gpu_word || gpu < 0 || atoi(line->words[gpu_word]) == gpu;
}

static int hangs(const char *call, int gpu) {
    for (int i = 0; i < num_lines; i++)
        if (!strcmp(lines[i].kind, "hang") && is_scripted(&lines[i], call, gpu, 1)) return 1;
    return 0;
}

/* Read the scenario, block or fail as it says; 0 goes on with the call. */
static int enter(const char *call, int gpu) {
    read_scenario();
    while (hangs(call, gpu)) {
        usleep(20000);
        read_scenario();
    }
    for (int i = 0; i < num_lines; i++)
        if (!strcmp(lines[i].kind, "fail") && is_scripted(&lines[i], call, gpu, 2))
            return atoi(lines[i].words[1]);
    return 0;
}

static void copy_text(char *to, const char *from, unsigned size) {
    snprintf(to, size, "%s", from);
    for (char *c = to; *c; c++)
        if (*c == '_') *c = ' ';
}

#endif
