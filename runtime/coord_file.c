/* See coord_file.h. */
#include "config.h"

#include "runtime/coord_file.h"

#include "runtime/infile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int crystal_coord_file_value(const char *path, const char *key, char *value,
                             size_t value_bytes, struct crystal_error *err)
{
    char line[512];
    size_t key_len = strlen(key);
    struct crystal_error why = {0};
    FILE *f = crystal_infile_stream(path, &why);
    int rc;

    if (!f)
        return crystal_error_set(err, why.code, "coordinator: %s",
                                 crystal_error_text(&why));
    rc = crystal_error_set(err, ENOENT, "coordinator: %s has no line '%s='", path, key);
    while (rc < 0 && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, key, key_len) != 0 || line[key_len] != '=')
            continue;
        if (strlen(line + key_len + 1) >= value_bytes)
            break;
        strcpy(value, line + key_len + 1);
        rc = 0;
    }
    (void)fclose(f);
    return rc;
}
