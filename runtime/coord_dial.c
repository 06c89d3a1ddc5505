/* Finding the coordinator, connecting, HELLO. See coord_dial.h. */
#include "config.h"

#include "runtime/coord_dial.h"

#include "runtime/coord_file.h"
#include "runtime/infile.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OPEN_WAIT_MS  30000 /* for a coordinator that is still starting */
#define OPEN_RETRY_MS 50

static int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool crystal_token_is(const uint8_t token[CRYSTAL_TOKEN_BYTES],
                      const uint8_t other[CRYSTAL_TOKEN_BYTES])
{
    unsigned different = 0;

    for (size_t i = 0; i < CRYSTAL_TOKEN_BYTES; i++)
        different |= (unsigned)(token[i] ^ other[i]);
    return different == 0;
}

int crystal_token_read(const char *path, uint8_t token[CRYSTAL_TOKEN_BYTES],
                       struct crystal_error *err)
{
    char hex[2 * CRYSTAL_TOKEN_BYTES];
    struct crystal_error why = {0};
    FILE *f = crystal_infile_stream(path, &why);
    size_t n;

    if (!f)
        return crystal_error_set(err, why.code, "coordinator: %s",
                                 crystal_error_text(&why));
    n = fread(hex, 1, sizeof hex, f);
    (void)fclose(f);
    for (size_t i = 0; n == sizeof hex && i < CRYSTAL_TOKEN_BYTES; i++) {
        int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);

        if (high < 0 || low < 0)
            n = 0;
        token[i] = (uint8_t)((unsigned)high << 4 | (unsigned)low);
    }
    if (n != sizeof hex)
        return crystal_error_set(
            err, EBADMSG, "coordinator: %s does not hold 64 hexadecimal digits", path);
    return 0;
}

static int connect_once(const char *coord_file, int *ret_fd, struct crystal_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
    struct timeval ten_seconds = {10, 0}, no_limit = {0, 0};
    char host[256], port[16];
    int fd = -1, rc, cause = 0;

    rc = crystal_coord_file_value(coord_file, "host", host, sizeof host, err);
    if (rc == 0)
        rc = crystal_coord_file_value(coord_file, "port", port, sizeof port, err);
    if (rc < 0)
        return rc;
    rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0)
        return crystal_error_set(err, EHOSTUNREACH, "coordinator: host '%s': %s", host,
                                 gai_strerror(rc));
    for (a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            cause = errno;
            continue;
        }
        crystal_message_socket(fd);
        /* limits connect, too */
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &ten_seconds, sizeof ten_seconds);
        if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
            cause = errno;
            (void)close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return crystal_error_set(err, cause, "coordinator: cannot connect to %s:%s: %s",
                                 host, port, strerror(cause));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &no_limit, sizeof no_limit);
    *ret_fd = fd;
    return 0;
}

static int connect_wait(const char *coord_file, int *ret_fd, struct crystal_error *err)
{
    const struct timespec pause = {0, OPEN_RETRY_MS * 1000000L};
    struct timespec start, now;
    int rc;

    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        rc = connect_once(coord_file, ret_fd, err);
        if (rc == 0)
            return 0;
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 >= OPEN_WAIT_MS)
            break;
        (void)nanosleep(&pause, NULL);
    }
    crystal_error_prefix(err, "no coordinator after %d s", OPEN_WAIT_MS / 1000);
    return rc;
}

static int greet(int fd, const uint8_t *token, enum crystal_role role, uint32_t lrank,
                 struct crystal_msg_welcome *welcome, struct crystal_error *err)
{
    struct crystal_msg_hello hello = {
        .role = role, .lrank = lrank, .pid = (uint32_t)getpid()};
    struct iovec body = {&hello, sizeof hello};
    struct crystal_message_head head;
    struct crystal_msg_stop stop;
    char text[CRYSTAL_ERROR_TEXT_BYTES];
    int rc;

    memcpy(hello.token, token, sizeof hello.token);
    rc = crystal_message_send(fd, CRYSTAL_MSG_HELLO, 0, &body, 1, err);
    memset(&hello, 0, sizeof hello);
    if (rc == 0)
        rc = crystal_message_receive(fd, &head, sizeof head, err);
    if (rc == -ECONNRESET)
        return crystal_error_set(err, EACCES,
                                 "coordinator: it does not accept this process; is the "
                                 "token file that of the running job?");
    if (rc == 0)
        rc = crystal_message_head_check(&head, err);
    if (rc < 0)
        return rc;
    if (head.type == CRYSTAL_MSG_WELCOME && head.body_bytes == sizeof *welcome)
        return crystal_message_receive(fd, welcome, sizeof *welcome, err);
    if (head.type != CRYSTAL_MSG_ERROR && head.type != CRYSTAL_MSG_STOP)
        return crystal_error_set(err, EBADMSG,
                                 "coordinator: it answers HELLO with message type %u",
                                 head.type);
    rc = crystal_message_stop(fd, &head, &stop, err);
    if (rc < 0)
        return rc;
    if (head.body_bytes >= sizeof text)
        head.body_bytes = sizeof text - 1;
    rc = crystal_message_receive(fd, text, head.body_bytes, err);
    if (rc < 0)
        return rc;
    text[head.body_bytes] = '\0';
    return crystal_error_set(err, ECANCELED, "%s", text);
}

int crystal_coord_dial(const char *coord_file, const char *token_file,
                       enum crystal_role role, uint32_t lrank,
                       struct crystal_msg_welcome *ret_welcome, int *ret_fd,
                       struct crystal_error *err)
{
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    struct crystal_msg_welcome welcome;
    int fd = -1, rc;

    rc = connect_wait(coord_file, &fd, err);
    if (rc < 0)
        return rc;
    rc = crystal_token_read(token_file, token, err);
    if (rc == 0)
        rc = greet(fd, token, role, lrank, &welcome, err);
    memset(token, 0, sizeof token);
    if (rc < 0) {
        (void)close(fd);
        return rc;
    }
    if (ret_welcome)
        *ret_welcome = welcome;
    *ret_fd = fd;
    return 0;
}
