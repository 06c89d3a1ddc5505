/* Calls that a test needs before it can begin: where one fails the program ends with
 * "Bail out!", the place and the sentence.
 */
#ifndef CRYSTAL_TESTS_MUST_H
#define CRYSTAL_TESTS_MUST_H

#include "runtime/error.h"

#include <stdio.h>
#include <stdlib.h>

/* call is 0 where it succeeds; why: the struct crystal_error that it sets. */
#define MUST_OF(call, why)                                                 \
    do {                                                                   \
        if (call) {                                                        \
            printf("Bail out! %s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   crystal_error_text(&(why)));                            \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

/* With the err of the file. */
#define MUST(call) MUST_OF(call, err)

#endif
