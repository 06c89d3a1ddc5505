/* The real wire between the plugin's end and an assistant: requests and answers, times,
 * bytes that are none of this version, a connection that is cut, a wrong token.
 */
#include "config.h"

#include "replay/assist_message.h"
#include "replay/assist_server.h"
#include "replay/assistant.h"
#include "replay/net.h"
#include "replay/net_assist.h"
#include "replay/net_wait.h"
#include "replay/node_links.h"
#include "runtime/clock.h"

#include "tests/check.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLOCK_NS INT64_C(1000000000000000) /* the job's clock is so far ahead */
#define MS       UINT64_C(1000000)

static uint8_t token[CRYSTAL_TOKEN_BYTES] = "a token of thirty-two bytes ...";

static int64_t clock_of(void *context)
{
    (void)context;
    return CLOCK_NS;
}

static uint64_t job_ns(void)
{
    return crystal_now_ns() + (uint64_t)CLOCK_NS;
}

/* --- the server alone --- */

static struct crystal_assist_server *server;
static int end_fd;

static void server_begin(void)
{
    struct crystal_error err = {0};
    int fds[2];

    server = crystal_assist_server_create(clock_of, NULL, NULL, &err);
    CHECK_STR(err.text, "");
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    crystal_assist_server_add(server, fds[0]);
    end_fd = fds[1];
}

static void server_end(void)
{
    crystal_assist_server_destroy(server);
    (void)close(end_fd);
}

/* A request, of what `what` says. */
static void ask_for(uint32_t type, uint64_t number, uint64_t bytes, uint64_t time_ns,
                    const struct crystal_assist_source *what)
{
    struct {
        struct crystal_assist_message message;
        struct crystal_assist_source source;
    } request = {{CRYSTAL_ASSIST_MAGIC, type, number, bytes, time_ns}, *what};

    CHECK_EQ(send(end_fd, &request, sizeof request, MSG_NOSIGNAL), sizeof request);
}

static void ask(uint32_t type, uint64_t number, uint64_t bytes, uint64_t time_ns)
{
    ask_for(type, number, bytes, time_ns,
            &(const struct crystal_assist_source){.nranks = 1});
}

/* Reads so many bytes; whether they were all there. */
static int read_all(void *to, size_t bytes)
{
    return recv(end_fd, to, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static uint64_t answer(uint32_t type, uint64_t number, uint64_t bytes)
{
    struct crystal_assist_message message = {0};

    CHECK(read_all(&message, sizeof message));
    CHECK_EQ(message.magic, CRYSTAL_ASSIST_MAGIC);
    CHECK_EQ(message.type, type);
    CHECK_EQ(message.number, number);
    CHECK_EQ(message.bytes, bytes);
    return message.time_ns;
}

static void bytes_are_sent_when_it_is_time(void)
{
    static unsigned char payload[700000];
    const uint64_t asked_ns = job_ns();
    struct crystal_assist_counts counts;
    uint64_t sent_ns;

    server_begin();
    ask(CRYSTAL_ASSIST_SEND, 0, sizeof payload, asked_ns + 50 * MS);
    ask(CRYSTAL_ASSIST_SEND, 1, 0, 0);
    sent_ns = answer(CRYSTAL_ASSIST_SENT, 0, sizeof payload);
    CHECK(sent_ns >= asked_ns + 50 * MS && sent_ns <= job_ns());
    CHECK(read_all(payload, sizeof payload));
    sent_ns = answer(CRYSTAL_ASSIST_SENT, 1, 0);
    CHECK(sent_ns <= job_ns());
    crystal_assist_server_counts(server, &counts);
    CHECK_EQ(counts.sent_bytes, sizeof payload);
    CHECK_EQ(counts.taken_bytes, 0);
    server_end();
}

static void bytes_are_taken(void)
{
    static unsigned char payload[700001];
    const uint64_t begun_ns = job_ns();
    struct crystal_assist_counts counts;
    uint64_t taken_ns;

    server_begin();
    ask(CRYSTAL_ASSIST_TAKE, 0, sizeof payload, 0);
    CHECK_EQ(send(end_fd, payload, sizeof payload - 1, MSG_NOSIGNAL),
             sizeof payload - 1);
    CHECK_EQ(poll(&(struct pollfd){.fd = end_fd, .events = POLLIN}, 1, 20), 0);
    CHECK_EQ(send(end_fd, payload, 1, MSG_NOSIGNAL), 1);
    ask(CRYSTAL_ASSIST_TAKE, 1, 0, 0);
    taken_ns = answer(CRYSTAL_ASSIST_TAKEN, 0, sizeof payload);
    CHECK(taken_ns >= begun_ns + 20 * MS && taken_ns <= job_ns());
    (void)answer(CRYSTAL_ASSIST_TAKEN, 1, 0);
    crystal_assist_server_counts(server, &counts);
    CHECK_EQ(counts.sent_bytes, 0);
    CHECK_EQ(counts.taken_bytes, sizeof payload);
    server_end();
}

/* Whether the server has closed the connection. */
static void is_closed(void)
{
    char byte;

    CHECK(recv(end_fd, &byte, 1, 0) <= 0);
    server_end();
}

/* A real rank's message is passed on as it was; then it is there no more. */
static void what_was_taken_is_passed_on(void)
{
    static const struct crystal_assist_key key = {7, 8, 9, 1, 2};
    const struct crystal_assist_source kept = {
        .data_bytes = 300000, .flags = CRYSTAL_ASSIST_KEPT, .nranks = 1, .key = key};
    static unsigned char data[300000], got[300000];
    struct crystal_assist_counts counts;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + i / 256);
    server_begin();
    ask_for(CRYSTAL_ASSIST_TAKE, 0, sizeof data, 0, &kept);
    CHECK_EQ(send(end_fd, data, sizeof data, MSG_NOSIGNAL), sizeof data);
    (void)answer(CRYSTAL_ASSIST_TAKEN, 0, sizeof data);
    ask_for(CRYSTAL_ASSIST_SEND, 1, sizeof data, 0, &kept);
    (void)answer(CRYSTAL_ASSIST_SENT, 1, sizeof data);
    CHECK(read_all(got, sizeof got) && memcmp(got, data, sizeof data) == 0);
    crystal_assist_server_counts(server, &counts);
    CHECK_EQ(counts.given_bytes, 0);
    ask_for(CRYSTAL_ASSIST_SEND, 2, sizeof data, 0, &kept);
    is_closed();
}

static void what_was_given_is_sent(void)
{
    const struct crystal_assist_source given = {.flags = CRYSTAL_ASSIST_GIVEN,
                                                .nranks = 1};
    static unsigned char data[300000], got[300000];
    struct crystal_assist_counts counts;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 11 + i / 256);
    server_begin();
    ask_for(CRYSTAL_ASSIST_SEND, 0, sizeof data, job_ns() + 20 * MS, &given);
    CHECK_EQ(send(end_fd, data, sizeof data, MSG_NOSIGNAL), sizeof data);
    (void)answer(CRYSTAL_ASSIST_SENT, 0, sizeof data);
    CHECK(read_all(got, sizeof got) && memcmp(got, data, sizeof data) == 0);
    crystal_assist_server_counts(server, &counts);
    CHECK_EQ(counts.given_bytes, sizeof data);
    server_end();
}

static void what_is_no_source_ends_the_connection(void)
{
    static const struct crystal_assist_source bad[] = {
        {.nranks = 0},
        {.nranks = 1, .flags = 8},
        {.nranks = 1, .data_bytes = 101},
        {.nranks = 1, .proto = 1, .data_bytes = 51}, /* LL: 104 bytes */
        {.nranks = 1, .proto = 3},
        {.nranks = 1, .dtype = 12},
        {.nranks = 1, .redop = 6},
        {.nranks = 1, .term_count = CRYSTAL_ASSIST_TERMS_MAX + 1},
        {.nranks = 1, .term_count = 1, .dtype = 4, .data_bytes = 12},
        {.nranks = 1, .flags = CRYSTAL_ASSIST_GIVEN | CRYSTAL_ASSIST_KEPT},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        server_begin();
        ask_for(CRYSTAL_ASSIST_SEND, 0, 100, 0, &bad[i]);
        is_closed();
    }
    server_begin();
    ask_for(CRYSTAL_ASSIST_TAKE, 0, 100, 0,
            &(const struct crystal_assist_source){.nranks = 1,
                                                  .flags = CRYSTAL_ASSIST_GIVEN});
    is_closed();
}

static void what_is_no_request_ends_the_connection(void)
{
    struct crystal_assist_message message = {CRYSTAL_ASSIST_MAGIC + 1,
                                             CRYSTAL_ASSIST_SEND, 0, 1, 0};

    server_begin();
    CHECK_EQ(send(end_fd, &message, sizeof message, MSG_NOSIGNAL), sizeof message);
    is_closed();
    server_begin();
    ask(CRYSTAL_ASSIST_SENT, 0, 1, 0);
    is_closed();
    server_begin();
    ask(0, 0, 1, 0);
    is_closed();
    server_begin();
    ask(CRYSTAL_ASSIST_SEND, 1, 1, 0);
    is_closed();
    server_begin();
    ask(CRYSTAL_ASSIST_TAKE, 0, CRYSTAL_ASSIST_BYTES_MAX + 1, 0);
    is_closed();
    server_begin();
    for (unsigned i = 0; i <= CRYSTAL_ASSIST_OPEN_MAX; i++)
        ask(CRYSTAL_ASSIST_SEND, i, 1, job_ns() + 3600000 * MS);
    is_closed();
}

/* --- the plugin's end and an assistant --- */

static struct crystal_assistant *assistant;
static struct crystal_net_module module;
static struct crystal_assist *end;

static void assistant_begin(const uint8_t its_token[CRYSTAL_TOKEN_BYTES])
{
    struct crystal_error err = {0};
    struct crystal_links *links =
        crystal_links_create(its_token, &(struct crystal_ports){0, 0}, &err);
    struct crystal_msg_node node = {.node = 0, .node_count = 1};
    const struct crystal_assistant_config config = {
        .links = links, .node_count = 1, .nodes = &node};

    CHECK_STR(err.text, "");
    if (!links)
        return;
    node.port = crystal_links_port(links);
    memcpy(node.address, (const uint8_t[16]){[10] = 0xff, 0xff, 127, 0, 0, 1}, 16);
    module.assistant = node;
    memcpy(module.assistant_token, token, sizeof token);
    assistant = crystal_assistant_create(&config, &err);
    CHECK_STR(err.text, "");
    end = crystal_assist_open(&module, &err);
    CHECK_STR(err.text, "");
}

static void assistant_end(void)
{
    crystal_assist_close(end);
    crystal_assistant_destroy(assistant);
}

/* Asks for zeros. */
static int ask_end(uint64_t bytes, uint64_t begin_ns, struct crystal_error *err)
{
    return crystal_assist_ask(
        end, &(const struct crystal_assist_ask){.bytes = bytes, .begin_ns = begin_ns},
        err);
}

/* The next answer, or the error. */
static int wait_answer(uint64_t *ret_ns, struct crystal_error *err)
{
    int code;

    while ((code = crystal_assist_answer(end, ret_ns, err)) == 0)
        (void)crystal_net_wait(10 * MS);
    return code;
}

static void give(const void *data, uint64_t bytes)
{
    struct crystal_error err = {0};
    int code;

    while ((code = crystal_assist_give(end, data, bytes, NULL, &err)) == 0)
        (void)crystal_net_wait(10 * MS);
    CHECK_EQ(code, 1);
}

/* What an end gives comes back to where it wants it. */
static void an_end_and_its_bytes(void)
{
    static unsigned char given[2][900000], got[2][900000];
    struct crystal_error err = {0};
    uint64_t at_ns;

    assistant_begin(token);
    for (unsigned i = 0; i < 2 && end; i++) {
        for (size_t k = 0; k < sizeof given[0]; k++)
            given[i][k] = (unsigned char)(k * 13 + k / 256 + i);
        CHECK_EQ(crystal_assist_ask(
                     end,
                     &(const struct crystal_assist_ask){
                         .bytes = sizeof given[0] - i, .given = given[i], .to = got[i]},
                     &err),
                 0);
    }
    for (unsigned i = 0; i < 2 && end; i++) {
        CHECK_EQ(wait_answer(&at_ns, &err), 1);
        CHECK(memcmp(got[i], given[i], sizeof given[0] - i) == 0);
    }
    CHECK_EQ(got[1][sizeof given[0] - 1], 0);
    assistant_end();
}

static void an_end_and_its_assistant(void)
{
    static unsigned char payload[5000000];
    struct crystal_error err = {0};
    struct crystal_assist_counts counts;
    uint64_t begun_ns, at_ns = 0;

    assistant_begin(token);
    CHECK(assistant && end);
    if (!assistant || !end)
        return;
    CHECK_EQ(crystal_assist_answer(end, &at_ns, &err), 0); /* nothing was asked */
    begun_ns = crystal_now_ns();
    for (unsigned i = 0; i < CRYSTAL_ASSIST_OPEN_MAX; i++)
        CHECK_EQ(ask_end(1000 * i, begun_ns + i * MS, &err), 0);
    for (unsigned i = 0; i < CRYSTAL_ASSIST_OPEN_MAX; i++) {
        CHECK_EQ(wait_answer(&at_ns, &err), 1);
        CHECK(at_ns >= begun_ns + i * MS && at_ns <= crystal_now_ns());
    }
    for (unsigned i = 0; i < 3; i++) {
        begun_ns = crystal_now_ns();
        give(payload, sizeof payload - i);
        CHECK_EQ(wait_answer(&at_ns, &err), 1);
        CHECK(at_ns >= begun_ns && at_ns <= crystal_now_ns());
    }
    give(payload, 0);
    CHECK_EQ(wait_answer(&at_ns, &err), 1);
    crystal_assistant_counts(assistant, &counts);
    CHECK_EQ(counts.sent_bytes, 1000 * 31 * 32 / 2);
    CHECK_EQ(counts.taken_bytes, 3 * sizeof payload - 3);
    CHECK_EQ(ask_end(CRYSTAL_ASSIST_BYTES_MAX + 1, 0, &err), -EMSGSIZE);
    CHECK_HAS(err.text, "the real wire takes 1 GiB, use --crystal-wire=modelled");
    CHECK_EQ(crystal_assistant_status(assistant, NULL), 0);
    CHECK_EQ(crystal_assistant_is_done(assistant), 1); /* there is no other node */
    assistant_end();
}

/* Says that it is cut, some seconds later. */
static void says_cut(void)
{
    struct crystal_error err = {0};
    uint64_t begun_ns = crystal_now_ns(), at_ns;

    CHECK_EQ(wait_answer(&at_ns, &err), -ECONNRESET);
    CHECK_HAS(err.text, "the connection to the assistant, node 0, is cut (");
    CHECK_HAS(err.text, "); see log/ in the job directory");
    CHECK(crystal_now_ns() - begun_ns >= 3000 * MS);
}

static void a_wrong_token(void)
{
    static const uint8_t other[CRYSTAL_TOKEN_BYTES] = "a token of another job's ......";
    struct crystal_error err = {0};

    assistant_begin(other);
    if (end) {
        (void)ask_end(10, 0, &err); /* it may know already */
        says_cut();
    }
    assistant_end();
}

static void an_assistant_that_goes(void)
{
    struct crystal_error err = {0};

    assistant_begin(token);
    if (end) {
        CHECK_EQ(ask_end(10, crystal_now_ns() + 3600000 * MS, &err), 0);
        crystal_assistant_destroy(assistant);
        assistant = NULL;
        says_cut();
        crystal_assist_close(end);
        end = crystal_assist_open(&module, &err);
        CHECK(end);
        CHECK_EQ(ask_end(10, 0, &err), 0);
        says_cut();
    }
    assistant_end();
}

/* An assistant of another version. */
static void answers_that_were_not_asked(void)
{
    static const struct crystal_assist_message bad[] = {
        {CRYSTAL_ASSIST_MAGIC, CRYSTAL_ASSIST_SENT, 0, 11, 0},
        {CRYSTAL_ASSIST_MAGIC, CRYSTAL_ASSIST_TAKEN, 0, 10, 0},
        {CRYSTAL_ASSIST_MAGIC, CRYSTAL_ASSIST_SENT, 1, 10, 0},
        {CRYSTAL_ASSIST_MAGIC, CRYSTAL_ASSIST_SEND, 0, 10, 0},
        {0, CRYSTAL_ASSIST_SENT, 0, 10, 0}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct crystal_error err = {0};
        struct crystal_ports any = {0, 0};
        uint64_t at_ns;
        uint16_t port = 0;
        int listen_fd = -1, fd;

        CHECK_EQ(crystal_listen_within(&any, &listen_fd, &port, &err), 0);
        module.assistant.port = port;
        end = crystal_assist_open(&module, &err);
        fd = accept(listen_fd, NULL, NULL);
        CHECK(end && fd >= 0);
        CHECK_EQ(ask_end(10, 0, &err), 0);
        CHECK_EQ(send(fd, &bad[i], sizeof bad[i], MSG_NOSIGNAL), sizeof bad[i]);
        CHECK_EQ(wait_answer(&at_ns, &err), -EBADMSG);
        CHECK_HAS(err.text, "let one installation run everywhere");
        crystal_assist_close(end);
        (void)close(fd);
        (void)close(listen_fd);
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(bytes_are_sent_when_it_is_time);
    CHECK_RUN(bytes_are_taken);
    CHECK_RUN(what_was_taken_is_passed_on);
    CHECK_RUN(what_was_given_is_sent);
    CHECK_RUN(what_is_no_request_ends_the_connection);
    CHECK_RUN(what_is_no_source_ends_the_connection);
    CHECK_RUN(an_end_and_its_assistant);
    CHECK_RUN(an_end_and_its_bytes);
    CHECK_RUN(a_wrong_token);
    CHECK_RUN(an_assistant_that_goes);
    CHECK_RUN(answers_that_were_not_asked);
    return check_end();
}
