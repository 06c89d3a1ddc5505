/* The plugin between two real ranks: contents, pacing, errors, waiting. */
#include "config.h"

#include "runtime/clock.h"
#include "tests/net_harness.h"

#include "replay/net_address.h"
#include "replay/net_handle.h"
#include "replay/net_share.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/resource.h>

#define COMM UINT64_C(0x1234)

static const size_t sizes[] = {0,     1,     31,    32,      33,      4096, 16352,
                               16384, 16385, 65536, 1048576, 5000000, 0,    7};
#define SIZES (sizeof sizes / sizeof sizes[0])

static unsigned char byte_at(size_t message, size_t i)
{
    return (unsigned char)(message * 31 + i * 7 + (i >> 8));
}

/* Whether this process has memory that it shares with a peer. */
static int has_shared_memory(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;

    while (maps && !found && fgets(line, sizeof line, maps))
        found = strstr(line, " /dev/shm/crystal-") != NULL;
    if (maps)
        (void)fclose(maps);
    return found;
}

/* --- every size, several in flight, receives posted larger than what comes --- */

static void content_sender(int to_peer)
{
    unsigned char *data[SIZES];
    void *requests[SIZES], *end;
    struct rank r;
    int bytes;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    CHECK(end != NULL);
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < SIZES; i++) {
            data[i] = malloc(sizes[i] + 1);
            for (size_t k = 0; k < sizes[i]; k++)
                data[i][k] = byte_at(i + round, k);
            requests[i] = post_send(end, data[i], sizes[i], NULL);
            CHECK(requests[i] != NULL);
        }
        for (size_t i = 0; i < SIZES; i++) {
            CHECK_EQ(finish(requests[i], &bytes), ncclSuccess);
            CHECK_EQ(bytes, sizes[i]);
            free(data[i]);
        }
    }
    (void)NET->closeSend(end);
    rank_fini(&r);
}

static void content_receiver(int to_peer)
{
    const size_t room = 5000000;
    unsigned char *data = malloc(SIZES * room);
    void *requests[SIZES], *end;
    struct rank r;
    int bytes;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    CHECK(end != NULL && data != NULL);
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < SIZES; i++)
            requests[i] = post_recv(end, data + i * room, room, NULL);
        for (size_t i = 0; i < SIZES; i++) {
            size_t k = 0;

            CHECK_EQ(finish(requests[i], &bytes), ncclSuccess);
            CHECK_EQ(bytes, sizes[i]);
            while (k < sizes[i] && data[i * room + k] == byte_at(i + round, k))
                k++;
            CHECK_EQ(k, sizes[i]);
        }
    }
    CHECK_EQ(has_shared_memory(), getenv("CRYSTAL_SHARE") != NULL);
    free(data);
    (void)NET->closeRecv(end);
    rank_fini(&r);
}

static void moves_every_size(void)
{
    run_two(content_sender, content_receiver);
}

/* --- pacing: 1 GB/s and 2 ms, so 1,000,000 bytes take 1 ms --- */

#define PACED_BYTES    1000000
#define PACED_MESSAGES 5

static void paced_sender(int to_peer)
{
    unsigned char *data = calloc(1, PACED_BYTES);
    void *requests[PACED_MESSAGES], *end;
    uint64_t start;
    struct rank r;
    char go;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    CHECK_EQ(read(to_peer, &go, 1), 1);
    start = crystal_now_ns();
    CHECK_EQ(write(to_peer, &start, sizeof start), sizeof start);
    for (int i = 0; i < PACED_MESSAGES; i++)
        requests[i] = post_send(end, data, PACED_BYTES, NULL);
    for (int i = 0; i < PACED_MESSAGES; i++) {
        CHECK_EQ(finish(requests[i], NULL), ncclSuccess);
        CHECK(crystal_now_ns() >= start + (uint64_t)(i + 1) * 1000000);
    }
    CHECK(crystal_now_ns() < start + 50000000);
    CHECK_EQ(read(to_peer, &go, 1), 1);
    free(data);
}

static void paced_receiver(int to_peer)
{
    unsigned char *data = calloc(PACED_MESSAGES, PACED_BYTES);
    void *requests[PACED_MESSAGES], *end;
    uint64_t start, worst = 0;
    struct rank r;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    for (int i = 0; i < PACED_MESSAGES; i++)
        requests[i] = post_recv(end, data + (size_t)i * PACED_BYTES, PACED_BYTES, NULL);
    CHECK_EQ(write(to_peer, "g", 1), 1);
    CHECK_EQ(read(to_peer, &start, sizeof start), sizeof start);
    for (int i = 0; i < PACED_MESSAGES; i++) {
        uint64_t due = start + (uint64_t)(i + 1) * 1000000 + 2000000, now;

        CHECK_EQ(finish(requests[i], NULL), ncclSuccess);
        now = crystal_now_ns();
        CHECK(now >= due);
        if (now - due > worst)
            worst = now - due;
    }
    printf("# paced: at most %" PRIu64 " us after the arithmetic\n", worst / 1000);
    CHECK(worst < 100000000); /* a busy machine's */
    CHECK_EQ(write(to_peer, "g", 1), 1);
    free(data);
}

static void keeps_the_wires_time(void)
{
    (void)setenv("CRYSTAL_WIRE", "1000000000,2000000", 1);
    run_two(paced_sender, paced_receiver);
    (void)unsetenv("CRYSTAL_WIRE");
}

/* --- rendezvous: a p2p send ends when the receiver has come --- */

#define LATE_NS 900000000U /* more than a busy machine takes */

static void late_sender(int to_peer)
{
    unsigned char *data = calloc(1, PACED_BYTES);
    void *end, *op, *proxy, *request;
    uint64_t posted, now;
    struct step_handle h;
    struct rank r;
    char go;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    op = p2p_start(&r, "Send", "ncclInt8", PACED_BYTES, 1);
    proxy = proxy_start(&r, op, 0, 1, 1, 1);
    h = step_start(&r, proxy, 0);
    CHECK(op && proxy && h.step);
    CHECK_EQ(read(to_peer, &go, 1), 1);
    request = post_send(end, data, PACED_BYTES, &h);
    CHECK_EQ(finish(request, NULL), ncclSuccess);
    now = crystal_now_ns();
    CHECK_EQ(read(to_peer, &posted, sizeof posted), sizeof posted);
    CHECK(now >= posted + 1000000);
    CHECK(now < posted + LATE_NS); /* which is not counted twice */
    CHECK_EQ(write(to_peer, "g", 1), 1);
    free(data);
}

static void late_receiver(int to_peer)
{
    unsigned char *data = calloc(1, PACED_BYTES);
    struct timespec late = {0, LATE_NS};
    void *end, *request;
    uint64_t posted;
    struct rank r;
    char go;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    CHECK_EQ(write(to_peer, "g", 1), 1);
    (void)nanosleep(&late, NULL);
    posted = crystal_now_ns();
    CHECK_EQ(write(to_peer, &posted, sizeof posted), sizeof posted);
    request = post_recv(end, data, PACED_BYTES, NULL);
    CHECK_EQ(finish(request, NULL), ncclSuccess);
    CHECK(crystal_now_ns() >= posted + 3000000); /* 1 ms on the NIC, 2 ms away */
    CHECK_EQ(read(to_peer, &go, 1), 1);
    free(data);
}

static void waits_for_a_late_receiver(void)
{
    (void)setenv("CRYSTAL_WIRE", "1000000000,2000000", 1);
    run_two(late_sender, late_receiver);
    (void)unsetenv("CRYSTAL_WIRE");
}

/* --- errors --- */

static void dying_peer(int to_peer)
{
    struct rank r;
    void *end;
    char go;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    CHECK(end != NULL);
    CHECK_EQ(read(to_peer, &go, 1), 1);
    _exit(0);
}

static void survivor(int to_peer)
{
    unsigned char data[64];
    void *end, *request;
    struct rank r;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    request = post_recv(end, data, sizeof data, NULL);
    CHECK_EQ(write(to_peer, "g", 1), 1);
    CHECK_EQ(finish(request, NULL), ncclRemoteError);
    CHECK_EQ(finish(request, NULL), ncclRemoteError); /* it stays an error */
}

static void reports_a_dead_peer(void)
{
    run_two(dying_peer, survivor);
}

static void large_sender(int to_peer)
{
    unsigned char data[100] = {0};
    void *end;
    struct rank r;
    char go;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    CHECK_EQ(finish(post_send(end, data, sizeof data, NULL), NULL), ncclSuccess);
    CHECK_EQ(read(to_peer, &go, 1), 1);
}

static void small_receiver(int to_peer)
{
    unsigned char data[99];
    void *end, *request;
    struct rank r;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    request = post_recv(end, data, sizeof data, NULL);
    if (request)
        CHECK_EQ(finish(request, NULL), ncclSystemError);
    CHECK_EQ(write(to_peer, "g", 1), 1);
}

static void refuses_what_does_not_fit(void)
{
    run_two(large_sender, small_receiver);
}

/* --- shared memory --- */

/* Files of shared memory that are there. Other programs come and go beside this one,
 * and make theirs. */
struct shared_files {
    char names[1000][32];
    unsigned count;
};

static void shared_files(struct shared_files *ret)
{
    DIR *directory = opendir("/dev/shm");
    struct dirent *entry;

    CHECK(directory != NULL);
    ret->count = 0;
    while (directory && (entry = readdir(directory)) && ret->count < 1000)
        if (strlen(entry->d_name) == 22 && memcmp(entry->d_name, "crystal-", 8) == 0)
            strcpy(ret->names[ret->count++], entry->d_name);
    if (directory)
        (void)closedir(directory);
}

static bool has_file(const struct shared_files *files, const char *name)
{
    for (unsigned i = 0; i < files->count; i++)
        if (strcmp(files->names[i], name) == 0)
            return true;
    return false;
}

/* None that was not there before stays. */
static void no_file_is_left(const struct shared_files *before)
{
    static struct shared_files after;

    shared_files(&after);
    for (unsigned i = 0; i < after.count; i++) {
        char path[64];

        if (has_file(before, after.names[i]))
            continue;
        (void)snprintf(path, sizeof path, "/dev/shm/%s", after.names[i]);
        for (int k = 0; k < 30000 && access(path, F_OK) == 0; k++)
            (void)usleep(1000);
        CHECK_EQ(access(path, F_OK), -1);
    }
}

/* Sends, and is through before the other has looked. */
static void brief_sender(int to_peer)
{
    static unsigned char data[100000];
    struct rank r;
    void *end;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    CHECK(end != NULL);
    memset(data, 'x', sizeof data);
    CHECK_EQ(finish(post_send(end, data, sizeof data, NULL), NULL), ncclSuccess);
    (void)NET->closeSend(end);
    CHECK_EQ(write(to_peer, "g", 1), 1);
    rank_fini(&r);
}

static void late_opener(int to_peer)
{
    static unsigned char data[100000];
    struct rank r;
    void *end;
    char go;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    CHECK_EQ(read(to_peer, &go, 1), 1);
    CHECK_EQ(finish(post_recv(end, data, sizeof data, NULL), NULL), ncclSuccess);
    CHECK(data[0] == 'x' && data[sizeof data - 1] == 'x');
    (void)NET->closeRecv(end);
    rank_fini(&r);
}

/* Offers memory to one that dies before it looks. */
static void idle_offer(int to_peer)
{
    struct rank r;
    void *end;
    char go;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    CHECK(end != NULL);
    CHECK_EQ(read(to_peer, &go, 1), 0); /* it is gone */
    (void)NET->closeSend(end);
    rank_fini(&r);
}

static void gone_receiver(int to_peer)
{
    struct rank r;

    CHECK(rank_init(&r, COMM, 2, 1));
    CHECK(harness_accept(&r, to_peer) != NULL);
    _exit(0);
}

static void slow_sender(int to_peer)
{
    struct timespec late = {0, 100000000};
    char word[] = "x";
    void *end;
    struct rank r;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    (void)nanosleep(&late, NULL);
    CHECK_EQ(finish(post_send(end, word, 1, NULL), NULL), ncclSuccess);
}

/* The thread sleeps for the first time with a receive posted that it has asked after
 * before. */
static void first_sleeper(int to_peer)
{
    unsigned char data[8];
    void *end, *request;
    uint64_t start;
    struct rank r;
    int done = 0;

    harness_spins = true;
    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    request = post_recv(end, data, sizeof data, NULL);
    start = crystal_now_ns();
    while (request && crystal_now_ns() < start + 20000000)
        CHECK_EQ(NET->test(request, &done, NULL), ncclSuccess);
    harness_spins = false;
    start = crystal_now_ns();
    CHECK_EQ(finish(request, NULL), ncclSuccess); /* looks again after a second */
    CHECK(crystal_now_ns() < start + 900000000);
}

/* More than the memory holds, before the receiver takes any. */
#define FULL_BYTES    (CRYSTAL_SHARE_BYTES / 16)
#define FULL_MESSAGES 40U

static void filling_sender(int to_peer)
{
    unsigned char *data = malloc(FULL_BYTES);
    void *end, *request = NULL;
    unsigned sent = 0;
    struct rank r;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    for (; sent < FULL_MESSAGES; sent++) {
        memset(data, (int)sent, FULL_BYTES);
        if (sent <= 16)
            CHECK_EQ(
                NET->isend(end, data, FULL_BYTES, 0, harness_memory, NULL, &request),
                ncclSuccess);
        CHECK_EQ(request == NULL, sent >= 16);
        if (sent == 16)
            CHECK_EQ(write(to_peer, "g", 1), 1);
        if (sent >= 16) /* sleeps until the receiver has taken some */
            request = post_send(end, data, FULL_BYTES, NULL);
        CHECK_EQ(finish(request, NULL), ncclSuccess);
        request = NULL;
    }
    CHECK_EQ(read(to_peer, data, 1), 1);
    free(data);
    (void)NET->closeSend(end);
    rank_fini(&r);
}

static void late_taker(int to_peer)
{
    unsigned char *data = calloc(1, FULL_BYTES);
    struct rank r;
    void *end;
    char go;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    CHECK_EQ(read(to_peer, &go, 1), 1);
    for (unsigned i = 0; i < FULL_MESSAGES; i++) {
        CHECK_EQ(finish(post_recv(end, data, FULL_BYTES, NULL), NULL), ncclSuccess);
        CHECK_EQ(data[0], i);
        CHECK_EQ(data[FULL_BYTES - 1], i);
    }
    CHECK_EQ(write(to_peer, "g", 1), 1);
    free(data);
    (void)NET->closeRecv(end);
    rank_fini(&r);
}

static void shares_memory(void)
{
    static struct shared_files before;

    shared_files(&before);
    (void)setenv("CRYSTAL_SHARE", "1", 1);
    run_two(content_sender, content_receiver);
    harness_spins = true; /* and so threads may copy */
    (void)setenv("CRYSTAL_COPIERS", "2", 1);
    run_two(content_sender, content_receiver);
    (void)unsetenv("CRYSTAL_COPIERS");
    run_two(content_sender, content_receiver);
    run_two(dying_peer, survivor);
    harness_spins = false;
    run_two(large_sender, small_receiver);
    run_two(slow_sender, first_sleeper);
    run_two(filling_sender, late_taker);
    run_two(dying_peer, survivor);
    run_two(brief_sender, late_opener);
    run_two(idle_offer, gone_receiver);
    (void)setenv("CRYSTAL_WIRE", "1000000000,2000000", 1);
    if (!getenv("CRYSTAL_BUFFERS")) /* its copies take time of their own */
        run_two(paced_sender, paced_receiver);
    run_two(late_sender, late_receiver);
    (void)unsetenv("CRYSTAL_WIRE");
    (void)unsetenv("CRYSTAL_SHARE");
    no_file_is_left(&before);
}

/* Strangers on the listener: garbage, silence, the hello of another listener. */
static void with_strangers(int to_peer)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE], wire[NCCL_NET_HANDLE_MAXSIZE];
    struct crystal_net_hello hello = {.kind = CRYSTAL_NET_REAL};
    struct crystal_net_handle *h = (void *)handle;
    struct sockaddr_in address;
    void *listener, *end = NULL, *device;
    int fds[3], bytes;
    unsigned char data[8] = {0};
    struct rank r;
    void *request;

    CHECK(rank_init(&r, COMM, 2, 1));
    CHECK_EQ(NET->listen(r.net, 0, handle, &listener), ncclSuccess);
    memcpy(&address, h->addr, sizeof address);
    CHECK_EQ(address.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    for (int i = 0; i < 3; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK_EQ(connect(fds[i], (struct sockaddr *)&address, sizeof address), 0);
    }
    CHECK_EQ(write(fds[0],
                   "GET / HTTP/1.1\r\nHost: a-name-that-makes-it-longer-than-a-"
                   "hello\r\n\r\n",
                   66),
             66);
    memcpy(hello.magic, CRYSTAL_NET_HELLO_MAGIC, 8);
    hello.id = h->id + 1;
    CHECK_EQ(write(fds[1], &hello, sizeof hello), sizeof hello);
    CHECK_EQ(NET->accept(listener, &end, &device), ncclSuccess);
    CHECK(end == NULL);
    memcpy(wire, handle, sizeof wire);
    CHECK_EQ(write(to_peer, wire, sizeof wire), sizeof wire);
    end = harness_accept_from(listener);
    request = post_recv(end, data, sizeof data, NULL);
    CHECK_EQ(finish(request, &bytes), ncclSuccess);
    CHECK_EQ(bytes, 3);
    CHECK(memcmp(data, "yes", 3) == 0);
}

static void right_one(int to_peer)
{
    char word[] = "yes";
    void *end;
    struct rank r;

    CHECK(rank_init(&r, COMM, 2, 0));
    end = harness_connect(&r, to_peer);
    CHECK_EQ(finish(post_send(end, word, 3, NULL), NULL), ncclSuccess);
}

static void drops_strangers(void)
{
    run_two(with_strangers, right_one);
}

static void handle_and_environment(int unused)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    struct crystal_net_handle made = {.kind = CRYSTAL_NET_REAL};
    ncclNetProperties_v11_t props;
    void *end, *device;
    struct rank r;

    (void)unused;
    CHECK(rank_init(&r, COMM, 2, 0));
    CHECK(NET->connect(r.net, 0, handle, &end, &device) != ncclSuccess);
    memcpy(made.magic, CRYSTAL_NET_HANDLE_MAGIC, 8);
    made.addr[0] = 99;
    memcpy(handle, &made, sizeof made);
    CHECK(NET->connect(r.net, 0, handle, &end, &device) != ncclSuccess);
    made.kind = CRYSTAL_NET_VIRTUAL; /* without a board */
    memcpy(handle, &made, sizeof made);
    CHECK(NET->connect(r.net, 0, handle, &end, &device) != ncclSuccess);
    CHECK_EQ(NET->getProperties(0, &props), ncclSuccess);
    CHECK_STR(props.name, "crystal0");
    CHECK_EQ(props.speed, 400000); /* 50 GB/s */
    CHECK_EQ(props.ptrSupport, NCCL_PTR_HOST);
    CHECK_EQ(props.maxRecvs, 1);
}

static void bad_wire(int unused)
{
    struct rank r;

    (void)unused;
    CHECK(!rank_init(&r, COMM, 2, 0));
}

static void checks_what_it_is_given(void)
{
    (void)setenv("CRYSTAL_WIRE", "50000000000,1000", 1);
    run_one(handle_and_environment);
    (void)setenv("CRYSTAL_WIRE", "fast", 1);
    run_one(bad_wire);
    (void)unsetenv("CRYSTAL_WIRE");
}

/* --- waiting --- */

static void idle_receiver(int to_peer)
{
    struct rusage before, after;
    unsigned char data[8];
    void *end, *request;
    struct rank r;
    int64_t cpu_us;

    CHECK(rank_init(&r, COMM, 2, 1));
    end = harness_accept(&r, to_peer);
    request = post_recv(end, data, sizeof data, NULL);
    (void)getrusage(RUSAGE_SELF, &before);
    CHECK_EQ(finish(request, NULL), ncclSuccess);
    (void)getrusage(RUSAGE_SELF, &after);
    cpu_us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec -
              before.ru_stime.tv_sec) *
                 1000000 +
             after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
             before.ru_stime.tv_usec;
    CHECK(cpu_us < 20000); /* of 100 ms */
}

static void wakes(int unused)
{
    uint64_t start = crystal_now_ns();

    (void)unused;
    crystal_net_wake();
    CHECK_EQ(crystal_net_wait(2000000000), 0); /* the wake before it counts */
    CHECK(crystal_now_ns() - start < 1000000000);
    start = crystal_now_ns();
    CHECK_EQ(crystal_net_wait(20000000), 0); /* but only once */
    CHECK(crystal_now_ns() - start >= 20000000);
}

static void sleeps_while_it_waits(void)
{
    run_two(idle_receiver, slow_sender);
    run_one(wakes);
}

static void interface_names(void)
{
    CHECK(crystal_net_ifname_match("eth", "eth0"));
    CHECK(!crystal_net_ifname_match("=eth", "eth0"));
    CHECK(crystal_net_ifname_match("=ib0,eth0", "eth0"));
    CHECK(!crystal_net_ifname_match("^lo,docker", "docker0"));
    CHECK(crystal_net_ifname_match("^lo,docker", "eth0"));
    CHECK(!crystal_net_ifname_match("^=eth0", "eth0"));
    CHECK(crystal_net_ifname_match("^=eth0", "eth01"));
    CHECK(!crystal_net_ifname_match(",", "eth0"));
}

/* "shared": only what goes through shared memory, for buffers on a GPU
 * (tests/t/gpu_buffers.t). */
int main(int argc, char **argv)
{
    check_begin();
    if (argc > 1 && strcmp(argv[1], "shared") == 0) {
        CHECK_RUN(shares_memory);
        return check_end();
    }
    CHECK_RUN(moves_every_size);
    CHECK_RUN(keeps_the_wires_time);
    CHECK_RUN(waits_for_a_late_receiver);
    CHECK_RUN(reports_a_dead_peer);
    CHECK_RUN(refuses_what_does_not_fit);
    CHECK_RUN(drops_strangers);
    CHECK_RUN(checks_what_it_is_given);
    CHECK_RUN(shares_memory);
    CHECK_RUN(sleeps_while_it_waits);
    CHECK_RUN(interface_names);
    return check_end();
}
