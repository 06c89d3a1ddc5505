/* Where a test program finds the files of the tree and what is built: the folders that
 * `make check` and `make bench` name in the environment.
 */
#ifndef CRYSTAL_TESTS_FOLDERS_H
#define CRYSTAL_TESTS_FOLDERS_H

#include <stdio.h>
#include <stdlib.h>

/* Borrowed. Ends the program where it was started without the variable. */
static inline const char *folder_of(const char *variable)
{
    const char *folder = getenv(variable);

    if (!folder || !*folder) {
        printf("Bail out! %s is not set; run `make check TESTS=...`, or set it\n",
               variable);
        exit(1);
    }
    return folder;
}

static inline const char *source_folder(void)
{
    return folder_of("CRYSTAL_SRCDIR");
}

static inline const char *build_folder(void)
{
    return folder_of("CRYSTAL_BUILDDIR");
}

#endif
