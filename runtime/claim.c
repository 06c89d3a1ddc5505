/* See claim.h. */
#include "config.h"

#include "runtime/claim.h"

#include "runtime/coord_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void crystal_claim_own(char text[CRYSTAL_CLAIM_BYTES])
{
    const char *job = getenv("SLURM_JOB_ID");
    char host[65] = "";

    (void)gethostname(host, sizeof host - 1); /* cut short it serves as well */
    (void)snprintf(text, CRYSTAL_CLAIM_BYTES, "%.20s.%s.%d", job ? job : "", host,
                   (int)getpid());
}

bool crystal_claim_has(const char *coord_file, const char *text)
{
    char words[CRYSTAL_CLAIM_BYTES];

    return crystal_coord_file_value(coord_file, "claim", words, sizeof words, NULL) ==
               0 &&
           strcmp(words, text) == 0;
}
