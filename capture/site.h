/* Where the program calls from, as the number that goes to the coordinator with an
 * operation: the return address of the call; or, where the program's language has told
 * its own place (runtime/crystal_site.h), CRYSTAL_SITE_TOLD and the number of a line in
 * ranks/LRANK.sites, which has both: the address in hexadecimal, a blank, the text.
 */
#ifndef CRYSTAL_CAPTURE_SITE_H
#define CRYSTAL_CAPTURE_SITE_H

#include <stdint.h>

/* Of the calling thread's present call, whose return address is given. Thread-safe. */
uint64_t site_number(uint64_t address);

#endif
