/* See claim.h. */
#include "config.h"

#include "runtime/claim.h"

#include "runtime/infile.h"

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
    static const char key[] = "claim=";
    FILE *file = crystal_infile_stream(coord_file, NULL);
    char line[512];
    bool found = false;

    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        found |= strncmp(line, key, sizeof key - 1) == 0 &&
                 strcmp(line + sizeof key - 1, text) == 0;
    }
    if (file)
        (void)fclose(file); /* read-only */
    return found;
}
