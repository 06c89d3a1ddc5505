/* The list of messages. See net_messages.h. It lives as long as the process. */
#include "config.h"

#include "replay/net_messages.h"

#include "replay/net.h"
#include "runtime/env.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct crystal_messages {
    pthread_mutex_t lock; /* whole lines */
    FILE *file;
};

struct crystal_messages *crystal_messages_create(const char *path, uint32_t lrank,
                                                 struct crystal_error *err)
{
    struct crystal_messages *messages = calloc(1, sizeof *messages);
    char name[4096];

    if (!messages) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a list of messages");
        return NULL;
    }
    if (snprintf(name, sizeof name, "%s.%u", path, lrank) >= (int)sizeof name) {
        (void)crystal_error_set(err, ENAMETOOLONG,
                                CRYSTAL_ENV_MESSAGES ": the path is too long");
        goto err_messages;
    }
    messages->file = fopen(name, "we");
    if (!messages->file) {
        (void)crystal_error_set(err, errno, CRYSTAL_ENV_MESSAGES ": '%s': %s", name,
                                strerror(errno));
        goto err_messages;
    }
    (void)pthread_mutex_init(&messages->lock, NULL); /* cannot fail on Linux */
    return messages;

err_messages:
    free(messages);
    return NULL;
}

void crystal_messages_add(struct crystal_messages *messages,
                          const struct crystal_net_end *end,
                          const struct crystal_net_request *request)
{
    const struct crystal_operation *op = request->id.operation;

    (void)pthread_mutex_lock(&messages->lock);
    (void)fprintf(messages->file, "%s %u %u %u %u %llu %u %llu\n",
                  end->is_send ? "send" : "receive", end->comm->index, end->peer_crank,
                  request->id.channel, op ? op->func : 0U,
                  op ? (unsigned long long)op->seq : 0, request->id.step,
                  (unsigned long long)request->bytes);
    (void)pthread_mutex_unlock(&messages->lock);
}

void crystal_messages_flush(struct crystal_messages *messages)
{
    if (!messages)
        return;
    (void)pthread_mutex_lock(&messages->lock);
    (void)fflush(messages->file); /* a list that is cut tells at its comparison */
    (void)pthread_mutex_unlock(&messages->lock);
}
