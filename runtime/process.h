/* What /proc says of a rank's process on this host. Linux only, as the rest. */
#ifndef CRYSTAL_PROCESS_H
#define CRYSTAL_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crystal_process_look {
    char state;         /* of the main thread: 'R', 'S', 'D', 'T', 't', 'Z', ... */
    uint64_t cpu_ticks; /* of the whole process, user and system */
    uint64_t main_cpu_ticks;
};
/* Stopped by a signal, or held by a debugger. */
static inline bool crystal_process_is_stopped(const struct crystal_process_look *look)
{
    return look->state == 'T' || look->state == 't';
}
/* What a process does that uses no CPU while others wait for it, as users are told. */
static inline const char *crystal_process_idle_text(bool is_stopped)
{
    return is_stopped ? "is stopped by a signal or debugger"
                      : "uses no CPU and keeps others waiting";
}
/* 0, or -ESRCH where there is no such process here. */
int crystal_process_look(uint32_t pid, struct crystal_process_look *ret);

/* 1 where the environment that the process began with has this "NAME=value". */
int crystal_process_has(uint32_t pid, const char *setting);
/* 1 where the process runs as this logical rank (CRYSTAL_LRANK of its environment). */
int crystal_process_is_rank(uint32_t pid, uint32_t lrank);

/* What the processes do that run as this logical rank and began with this "NAME=value",
 * a wrapper and what it has started, as one: their CPU time together; pid and state of
 * a stopped one, else of the first. ret->state is 0 where there is none here. */
void crystal_process_find(const char *setting, uint32_t lrank, uint32_t *ret_pid,
                          struct crystal_process_look *ret);

/* 1 where the main thread of this process is in a futex: it waits for another thread.
 * *main_cpu_ticks is set in any case. */
int crystal_process_main_waits(uint64_t *main_cpu_ticks);

/* The executable mappings of a process, lines as in /proc/PID/maps; the caller frees
 * them. NULL where there is no such process here. */
char *crystal_process_maps(uint32_t pid);
/* "libtorch.so+0x1234" for an address; 0, or -ENOENT where nothing is mapped there. */
int crystal_process_site(const char *maps, uint64_t address, char *text,
                         size_t text_bytes);

#endif
