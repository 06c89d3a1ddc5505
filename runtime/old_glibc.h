/* Included before everything but config.h (Makefile.am): lets objects that were built
 * with a newer glibc load where an older one, from 2.28 on, is: in users' containers.
 * Functions that glibc 2.29 and later have under a new version, without another meaning
 * for us, are bound to their first one, which every glibc still has; stat(), fstat()
 * and lstat(), functions since 2.33, go where the headers of older ones led.
 * tests/t/glibc.t looks.
 */
#ifndef CRYSTAL_OLD_GLIBC_H
#define CRYSTAL_OLD_GLIBC_H

#include <sys/stat.h>

#if defined(__x86_64__)
#define CRYSTAL_GLIBC_FIRST "GLIBC_2.2.5"
#define CRYSTAL_STAT_KIND   1 /* _STAT_VER_LINUX */
#elif defined(__aarch64__)
#define CRYSTAL_GLIBC_FIRST "GLIBC_2.17"
#define CRYSTAL_STAT_KIND   0
#endif

#if defined(CRYSTAL_GLIBC_FIRST) && defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 33)
#define CRYSTAL_FIRST(name) __asm__(".symver " #name "," #name "@" CRYSTAL_GLIBC_FIRST)

CRYSTAL_FIRST(dladdr);
CRYSTAL_FIRST(dlclose);
CRYSTAL_FIRST(dlerror);
CRYSTAL_FIRST(dlopen);
CRYSTAL_FIRST(dlsym);
CRYSTAL_FIRST(pow);
CRYSTAL_FIRST(pthread_create);
CRYSTAL_FIRST(pthread_detach);
CRYSTAL_FIRST(pthread_join);
CRYSTAL_FIRST(pthread_mutex_trylock);
CRYSTAL_FIRST(pthread_once);
CRYSTAL_FIRST(pthread_sigmask);
CRYSTAL_FIRST(sem_destroy);
CRYSTAL_FIRST(sem_init);
CRYSTAL_FIRST(sem_post);
CRYSTAL_FIRST(sem_wait);
#ifdef __x86_64__
__asm__(".symver pthread_condattr_setclock,pthread_condattr_setclock@GLIBC_2.3.3");
#else
CRYSTAL_FIRST(pthread_condattr_setclock);
#endif

extern int __xstat(int kind, const char *path, struct stat *out);
extern int __fxstat(int kind, int fd, struct stat *out);
extern int __lxstat(int kind, const char *path, struct stat *out);
CRYSTAL_FIRST(__xstat);
CRYSTAL_FIRST(__fxstat);
CRYSTAL_FIRST(__lxstat);
#define stat(path, out)  __xstat(CRYSTAL_STAT_KIND, path, out)
#define fstat(fd, out)   __fxstat(CRYSTAL_STAT_KIND, fd, out)
#define lstat(path, out) __lxstat(CRYSTAL_STAT_KIND, path, out)
#endif

#endif
