/* The plugin in Slurm. See doctor.h.
 *
 * slurm.conf names plugstack.conf (PlugStackConfig, by default beside it) and the
 * directories of plugins (PluginDir); plugstack.conf has lines "optional|required
 * OBJECT [ARGUMENT...]" and "include PATTERN" (plugstack.conf(5), slurm.conf(5)). A
 * plugin is loaded where major and minor version are Slurm's own: a SPANK object says
 * in its variable plugin_version, by <slurm/spank.h>, with which it was compiled, as
 * major << 16 | minor << 8 | micro.
 */
#include "config.h"

#include "commands/doctor.h"

#include "runtime/infile.h"
#include "runtime/library.h"

#include <ctype.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define INCLUDES_MAX 8 /* of each other */

struct line { /* the plugin's, of plugstack.conf */
    char file[PATH_MAX], object[PATH_MAX], config[PATH_MAX];
    int is_found, is_required;
};

/* See doctor_slurm_conf. */
static int conf_value(const char *path, const char *key, char *out, size_t out_bytes)
{
    FILE *file = crystal_infile_stream(path, NULL);
    size_t key_bytes = strlen(key);
    char text[PATH_MAX + 64];
    int found = 0;

    while (file && fgets(text, sizeof text, file)) {
        char *at = text + strspn(text, " \t");

        if (strncasecmp(at, key, key_bytes) != 0 || at[key_bytes] != '=')
            continue;
        at += key_bytes + 1;
        at[strcspn(at, " \t\r\n#")] = 0;
        (void)snprintf(out, out_bytes, "%s", at);
        found = 1;
    }
    if (file)
        (void)fclose(file); /* only read */
    return found;
}

static void plugstack_read(const char *path, int depth, struct line *ret);

static void include(const char *pattern, const char *beside, int depth,
                    struct line *ret)
{
    char whole[PATH_MAX];
    glob_t found;
    const char *slash = strrchr(beside, '/');

    if (depth >= INCLUDES_MAX)
        return;
    (void)snprintf(whole, sizeof whole, "%.*s%s",
                   pattern[0] == '/' || !slash ? 0 : (int)(slash - beside + 1), beside,
                   pattern);
    if (glob(whole, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        plugstack_read(found.gl_pathv[i], depth + 1, ret);
    globfree(&found);
}

static void plugstack_read(const char *path, int depth, struct line *ret)
{
    FILE *file = crystal_infile_stream(path, NULL);
    char text[PATH_MAX + 512];

    while (file && !ret->is_found && fgets(text, sizeof text, file)) {
        char *rest = NULL, *word = strtok_r(text, " \t\r\n", &rest);
        char *object = word ? strtok_r(NULL, " \t\r\n", &rest) : NULL;
        const char *name = object ? strrchr(object, '/') : NULL;

        if (!object || word[0] == '#')
            continue;
        if (strcmp(word, "include") == 0) {
            include(object, path, depth, ret);
            continue;
        }
        if (strcmp(name ? name + 1 : object, "crystal.so") != 0)
            continue;
        ret->is_found = 1;
        ret->is_required = strcmp(word, "required") == 0;
        (void)snprintf(ret->file, sizeof ret->file, "%s", path);
        (void)snprintf(ret->object, sizeof ret->object, "%s", object);
        while ((word = strtok_r(NULL, " \t\r\n", &rest)))
            if (strncmp(word, "config=", 7) == 0)
                (void)snprintf(ret->config, sizeof ret->config, "%s", word + 7);
    }
    if (file)
        (void)fclose(file); /* only read */
}

/* Where Slurm would find the object that the line names. */
static int object_find(const struct line *line, const char *slurm_conf, char *out,
                       size_t out_bytes)
{
    char dirs[PATH_MAX] = "", *rest = dirs, *dir;

    (void)snprintf(out, out_bytes, "%s", line->object);
    if (line->object[0] == '/')
        return access(out, R_OK) == 0;
    if (!conf_value(slurm_conf, "PluginDir", dirs, sizeof dirs) &&
        doctor_ask("scontrol show config | sed -n 's/^PluginDir *= //p'", dirs,
                   sizeof dirs) != 0)
        return 0;
    while ((dir = strsep(&rest, ":")))
        if (snprintf(out, out_bytes, "%s/%s", dir, line->object) < (int)out_bytes &&
            access(out, R_OK) == 0)
            return 1;
    (void)snprintf(out, out_bytes, "%s", line->object);
    return 0;
}

/* "slurm 22.05.8" -> major << 16 | minor << 8; 0: unknown. */
static unsigned slurm_version(char *text, size_t text_bytes)
{
    unsigned major = 0, minor = 0;
    const char *digit = text;

    if (doctor_ask("srun --version", text, text_bytes) != 0 &&
        doctor_ask("scontrol --version", text, text_bytes) != 0)
        return 0;
    while (*digit && !isdigit((unsigned char)*digit))
        digit++;
    return sscanf(digit, "%u.%u", &major, &minor) == 2 ? major << 16 | minor << 8 : 0;
}

static void check_object(const char *path)
{
    char why[512], version[64];
    unsigned built = 0, ours = slurm_version(version, sizeof version);

    if (doctor_load(path, "plugin_version", &built, why, sizeof why))
        doctor_line(DOCTOR_PROBLEM, "crystal.so", "%s cannot be loaded: %s", path, why);
    else if (!ours)
        doctor_line(DOCTOR_NOTE, "crystal.so",
                    "%s, for Slurm %u.%02u; neither srun nor scontrol tells its "
                    "version, so it is not compared",
                    path, built >> 16, built >> 8 & 255);
    else if (ours != (built & 0xffff00))
        doctor_line(DOCTOR_PROBLEM, "crystal.so",
                    "%s is for Slurm %u.%02u, but this is %s; build it with this "
                    "Slurm's headers (configure --with-slurm=PREFIX)",
                    path, built >> 16, built >> 8 & 255, version);
    else
        doctor_line(DOCTOR_OK, "crystal.so", "%s, for this Slurm (%s)", path, version);
}

static void check_line(const struct line *line, const char *plugstack,
                       const char *slurm_conf)
{
    struct crystal_error err = {0};
    char path[PATH_MAX];

    if (!line->is_found) {
        int is_here = !crystal_library_path("crystal.so", path, sizeof path, &err);

        doctor_line(DOCTOR_PROBLEM, "plugstack.conf",
                    "no line of %s and what it includes names crystal.so, so srun has "
                    "no --crystal- options; add 'optional %s'",
                    plugstack, is_here ? path : "crystal.so");
        if (is_here)
            check_object(path);
        else
            doctor_line(DOCTOR_PROBLEM, "crystal.so", "%s", crystal_error_text(&err));
        return;
    }
    doctor_line(line->is_required ? DOCTOR_NOTE : DOCTOR_OK, "plugstack.conf", "%s: %s",
                line->file,
                line->is_required
                    ? "'required' stops every job where the plugin is missing; use "
                      "'optional'"
                    : line->object);
    if (object_find(line, slurm_conf, path, sizeof path))
        check_object(path);
    else
        doctor_line(DOCTOR_PROBLEM, "crystal.so",
                    "%s: Slurm does not find it; give its whole path in %s", path,
                    line->file);
}

static const char *slurm_conf_path(void)
{
    const char *path = getenv("SLURM_CONF");

    return path ? path : "/etc/slurm/slurm.conf";
}

int doctor_slurm_conf(const char *key, char *out, size_t out_bytes)
{
    return conf_value(slurm_conf_path(), key, out, out_bytes);
}

void doctor_slurm(char *ret_config, size_t config_bytes)
{
    const char *conf = slurm_conf_path(), *slash;
    char plugstack[PATH_MAX] = "";
    struct line line;

    ret_config[0] = 0;
    if (access(conf, R_OK) < 0) {
        doctor_line(getenv("SLURM_CONF") ? DOCTOR_PROBLEM : DOCTOR_NOTE, "Slurm",
                    "%s cannot be read: stages run by hand (scrystal capture, plan, "
                    "emulate), the plugin is not looked at; set SLURM_CONF where Slurm "
                    "is elsewhere",
                    conf);
        return;
    }
    doctor_line(DOCTOR_OK, "Slurm", "%s", conf);
    slash = strrchr(conf, '/');
    if (!conf_value(conf, "PlugStackConfig", plugstack, sizeof plugstack))
        (void)snprintf(plugstack, sizeof plugstack, "%.*splugstack.conf",
                       slash ? (int)(slash - conf + 1) : 0, conf);
    memset(&line, 0, sizeof line);
    plugstack_read(plugstack, 0, &line);
    check_line(&line, plugstack, conf);
    (void)snprintf(ret_config, config_bytes, "%s", line.config);
}
