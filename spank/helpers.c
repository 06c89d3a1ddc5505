/* See helpers.h, and the end of steps.h: what is left to do behind the program. */
#include "config.h"

#include "spank/helpers.h"

#include "runtime/claim.h"
#include "runtime/standins.h"
#include "spank/ask.h"
#include "spank/process.h"
#include "spank/step_line.h"
#include "spank/steps.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { FINISH_TIMEOUT_MS = 30000 };

int crystal_helpers_codes(const char *job_dir, bool *ret_own)
{
    int found = 0;

    *ret_own = false;
    for (unsigned node = 0; !*ret_own; node++) {
        char path[PATH_MAX];
        int code = 0, own = 0;
        FILE *file;

        if (snprintf(path, sizeof path, "%s/agent.%u.code", job_dir, node) >=
                (int)sizeof path ||
            !(file = fopen(path, "re")))
            break; /* the last node's was the one before */
        if (fscanf(file, "%d %d", &code, &own) == 2 && code > 0 && code < 256) {
            found = found && !own ? found : code;
            *ret_own = own == 1;
        }
        fclose(file); /* read-only */
    }
    return found;
}

int crystal_helpers_finish(const char *scrystal, const char *job_dir,
                           struct crystal_helpers *helpers)
{
    uint64_t deadline_ms = crystal_process_now_ms() + FINISH_TIMEOUT_MS;
    struct crystal_argv line = {0};
    struct crystal_process_spec spec = {.path = scrystal, .argv = &line};
    pid_t *pids[] = {&helpers->agent, &helpers->assist, &helpers->coord}, teller = 0;
    char claim[CRYSTAL_CLAIM_BYTES];
    int code, codes[3] = {0, 0, 0};

    if (helpers->coord && !crystal_process_wait(helpers->coord, 0, &code)) {
        crystal_step_scrystal(scrystal, "coord", job_dir, &line);
        crystal_claim_own(claim);
        crystal_argv_add(&line, "--finish");
        crystal_argv_add(&line, "--if-any"); /* it may just have ended with the job */
        crystal_argv_add(&line, "--claim=%s", claim);
        if (crystal_process_start(&spec, &teller, NULL) == 0 &&
            !crystal_process_wait(teller, FINISH_TIMEOUT_MS, &code))
            crystal_process_end(teller);
        crystal_argv_fini(&line);
    } else {
        helpers->coord = 0;
        deadline_ms = 0; /* nobody tells the agents */
    }
    for (size_t i = 0; i < sizeof pids / sizeof pids[0]; i++) {
        uint64_t now_ms = crystal_process_now_ms();

        if (*pids[i] &&
            !crystal_process_wait(
                *pids[i], deadline_ms > now_ms ? deadline_ms - now_ms : 0, &codes[i])) {
            codes[i] = 0;
            crystal_process_end(*pids[i]);
        }
    }
    return codes[0];
}

struct crystal_steps_pids crystal_steps_pids_parse(const char *text)
{
    struct crystal_steps_pids pids = {0};

    if (text &&
        (sscanf(text, "%d,%d,%d,%d", &pids.coord, &pids.agent, &pids.assist,
                &pids.salloc) != 4 ||
         pids.coord < 0 || pids.agent < 0 || pids.assist < 0 || pids.salloc < 0))
        memset(&pids, 0, sizeof pids);
    return pids;
}

/* The exit code of a helper step that has ended before the program, -1 = it runs. */
static int early_code(pid_t pid)
{
    siginfo_t info = {0};

    if (!pid || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
        info.si_pid != pid)
        return -1;
    return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

/* An agent that has ended before the program: its numbers are missing. It has said why
 * unless a signal ended it, with the whole job, which srun has told. */
static void tell_dead(const struct crystal_helpers *helpers, const char *job_dir)
{
    int code = early_code(helpers->agent);

    if (code > 0 && code < 128 && code != CRYSTAL_STEPS_FAILED)
        dprintf(2,
                "crystal: the agent ended before the program, with exit code %d; see "
                "%s/log\n",
                code, job_dir);
}

int crystal_steps_finish(const char *scrystal, const char *job_dir,
                         const struct crystal_steps_pids *pids, time_t start_time,
                         bool *ret_always)
{
    struct crystal_helpers helpers = {
        .coord = pids->coord, .agent = pids->agent, .assist = pids->assist};
    char path[PATH_MAX], text[256], *found = crystal_ask_scrystal_path(scrystal, NULL);
    struct stat st;
    int code, told;

    tell_dead(&helpers, job_dir);
    code = crystal_helpers_finish(found ? found : "scrystal", job_dir, &helpers);
    free(found);
    snprintf(path, sizeof path, "%s/report.txt", job_dir);
    if (stat(path, &st) == 0 && st.st_mtime >= start_time) {
        dprintf(2, "crystal: report: %s\n", path);
        if (crystal_standins_text(job_dir, "crystal-", text, sizeof text))
            dprintf(2, "crystal: %s\n", text);
    }
    told = crystal_helpers_codes(job_dir, ret_always);
    return told ? told : code < 128 ? code : 0; /* a signal's is no news */
}
