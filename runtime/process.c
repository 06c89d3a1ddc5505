/* Reading /proc. See process.h. */
#include "config.h"

#include "runtime/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static ssize_t read_file(const char *path, char *text, size_t text_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, text_bytes - 1);

    if (fd >= 0)
        (void)close(fd); /* read-only */
    if (got >= 0)
        text[got] = 0;
    return got;
}

/* Fields 3, 14 and 15 of a stat file; the name before may hold anything. */
static int stat_read(const char *path, char *ret_state, uint64_t *ret_ticks)
{
    unsigned long long user, system;
    char text[1024], *at;

    if (read_file(path, text, sizeof text) < 0 || !(at = strrchr(text, ')')) ||
        sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
               ret_state, &user, &system) != 3)
        return -ESRCH;
    *ret_ticks = user + system;
    return 0;
}

int crystal_process_look(uint32_t pid, struct crystal_process_look *ret)
{
    char path[64], state;
    int code;

    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
    code = stat_read(path, &state, &ret->cpu_ticks);
    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/task/%" PRIu32 "/stat", pid,
                   pid);
    return code ? code : stat_read(path, &ret->state, &ret->main_cpu_ticks);
}

int crystal_process_has(uint32_t pid, const char *setting)
{
    char path[64], *one = NULL;
    size_t length = 0;
    int has = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/environ", pid);
    file = fopen(path, "re");
    while (file && !has && getdelim(&one, &length, 0, file) > 0)
        has = strcmp(one, setting) == 0;
    if (file)
        (void)fclose(file); /* read-only */
    free(one);
    return has;
}

int crystal_process_is_rank(uint32_t pid, uint32_t lrank)
{
    char setting[40];

    (void)snprintf(setting, sizeof setting, "CRYSTAL_LRANK=%" PRIu32, lrank);
    return crystal_process_has(pid, setting);
}

void crystal_process_find(const char *setting, uint32_t lrank, uint32_t *ret_pid,
                          struct crystal_process_look *ret)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;

    *ret = (struct crystal_process_look){0};
    while (proc && (entry = readdir(proc)) != NULL) {
        struct crystal_process_look process;
        uint32_t pid = (uint32_t)strtoul(entry->d_name, NULL, 10);

        if (!pid || !crystal_process_is_rank(pid, lrank) ||
            !crystal_process_has(pid, setting) || crystal_process_look(pid, &process))
            continue;
        if (!ret->state || process.state == 'T') {
            *ret_pid = pid;
            ret->state = process.state;
        }
        ret->cpu_ticks += process.cpu_ticks;
    }
    if (proc)
        (void)closedir(proc); /* read-only */
}

int crystal_process_main_waits(uint64_t *main_cpu_ticks)
{
    char path[64], text[256], state = 0;
    const int pid = (int)getpid();

    *main_cpu_ticks = 0;
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/stat", pid);
    if (stat_read(path, &state, main_cpu_ticks))
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/syscall", pid);
    return state == 'S' && read_file(path, text, sizeof text) > 0 &&
           atol(text) == SYS_futex;
}

/* One line of maps: 1 and its file where address lies in it. */
static int map_parse(const char *line, uint64_t address, uint64_t *ret_offset,
                     const char **ret_file)
{
    unsigned long long begin, end, offset;
    int path = 0;

    if (sscanf(line, "%llx-%llx %*s %llx %*s %*s %n", &begin, &end, &offset, &path) <
            3 ||
        address < begin || address >= end || !path)
        return 0;
    *ret_offset = address - begin + offset;
    *ret_file = line + path;
    return 1;
}

char *crystal_process_maps(uint32_t pid)
{
    char path[64], *line = NULL, *all = NULL;
    size_t capacity = 0, used = 0, room = 0;
    ssize_t length;
    FILE *maps;

    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/maps", pid);
    maps = fopen(path, "re");
    while (maps && (length = getline(&line, &capacity, maps)) > 0) {
        if (!strstr(line, " r-xp ") || !strchr(line, '/'))
            continue;
        if (room - used <= (size_t)length) {
            char *more = realloc(all, room = 2 * room + (size_t)length + 4096);

            if (!more)
                break;
            all = more;
        }
        memcpy(all + used, line, (size_t)length + 1);
        used += (size_t)length;
    }
    if (maps)
        (void)fclose(maps); /* read-only */
    free(line);
    return all;
}

int crystal_process_site(const char *maps, uint64_t address, char *text,
                         size_t text_bytes)
{
    const char *file, *base, *end;
    uint64_t offset;

    for (; *maps; maps = end + (*end != 0)) {
        end = maps + strcspn(maps, "\n");
        if (!map_parse(maps, address, &offset, &file) || *file != '/')
            continue;
        for (base = end; base > file && base[-1] != '/';)
            base--;
        (void)snprintf(text, text_bytes, "%.*s+0x%" PRIx64, (int)(end - base), base,
                       offset);
        return 0;
    }
    return -ENOENT;
}
