/* The answers that a client expects, by their number. See coord_client_state.h. */
#include "config.h"

#include "runtime/coord_client_state.h"

#include <stdlib.h>

struct pending *crystal_pending_find(struct crystal_client *c, uint32_t request)
{
    struct pending *p = c->chains[request % CRYSTAL_PENDING_CHAINS];

    while (p && p->request != request)
        p = p->next;
    return p;
}

void crystal_pending_unlink(struct crystal_client *c, struct pending *gone)
{
    struct pending **at = &c->chains[gone->request % CRYSTAL_PENDING_CHAINS];

    while (*at && *at != gone)
        at = &(*at)->next;
    if (*at)
        *at = gone->next;
}

void crystal_pending_free(struct pending *p)
{
    if (!p)
        return;
    free(p->recvs);
    free(p->answer);
    free(p);
}

int crystal_pending_add(struct crystal_client *c, struct pending *p,
                        struct crystal_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&c->lock);
    if (c->stopped) {
        rc = crystal_client_stopped(c, err);
    } else {
        do
            p->request = c->next_request++;
        while (p->request == 0 || crystal_pending_find(c, p->request));
        p->next = c->chains[p->request % CRYSTAL_PENDING_CHAINS];
        c->chains[p->request % CRYSTAL_PENDING_CHAINS] = p;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}
