/* The memory that two real ranks share, by itself: its ring of places, its messages and
 * answers, and who wakes whom. What goes through it is in net_tcp.c.
 */
#include "config.h"

#include "replay/net_share.h"

#include "tests/check.h"

#include <errno.h>
#include <string.h>

static void keeps_room_in_the_ring(void)
{
    const uint64_t third = CRYSTAL_SHARE_BYTES / 3;
    char name[CRYSTAL_SHARE_NAME] = "";
    struct crystal_error err = {0};
    struct crystal_share *sender = crystal_share_create(name, &err), *receiver;
    unsigned char *place;
    uint64_t at[4] = {0};

    CHECK(sender != NULL && strlen(name) < sizeof name);
    receiver = crystal_share_open(name, &err);
    CHECK(receiver != NULL);
    if (!sender || !receiver)
        return;
    for (int i = 0; i < 3; i++) {
        place = crystal_share_place(sender, third, &at[i]);
        CHECK(place != NULL);
        memset(place, 'a' + i, third);
    }
    CHECK_EQ(at[2], 2 * third);
    CHECK_EQ(crystal_share_at(receiver, at[1], third)[third - 1], 'b');
    CHECK(!crystal_share_place(sender, third, &at[3])); /* one byte is left */
    CHECK(!crystal_share_at(receiver, at[2], third + 2));
    crystal_share_taken(receiver, at[0], third);
    CHECK(crystal_share_place(sender, third, &at[3]) != NULL);
    CHECK_EQ(at[3], CRYSTAL_SHARE_BYTES); /* behind the byte that is left out */
    crystal_share_taken(receiver, at[3], third);
    CHECK(crystal_share_place(sender, 100, &at[0]) != NULL);
    CHECK_EQ(at[0], 2 * CRYSTAL_SHARE_BYTES); /* an empty ring begins again */
    CHECK(!crystal_share_open(name, &err));   /* it is gone from the file system */
    CHECK_EQ(err.code, ENOENT);
    memcpy(name, "crystal-/../x", sizeof "crystal-/../x");
    CHECK(!crystal_share_open(name, &err));
    CHECK_EQ(err.code, EPROTO);
    memset(name, 'a', sizeof name); /* without an end */
    CHECK(!crystal_share_open(name, &err));
    CHECK_EQ(err.code, EPROTO);
    crystal_share_destroy(sender, 1);
    crystal_share_destroy(receiver, 1);
}

/* Messages, pieces and answers, and what a broken peer may have written. */
static void keeps_messages_in_order(void)
{
    struct crystal_share_message m = {.bytes = 5, .number = 7, .piece = 5, .at = 11};
    char name[CRYSTAL_SHARE_NAME] = "";
    struct crystal_share *sender = crystal_share_create(name, NULL), *receiver;
    struct crystal_share_message got;
    uint64_t ns = 0, sent = 0;

    receiver = sender ? crystal_share_open(name, NULL) : NULL;
    CHECK(receiver != NULL);
    if (!receiver)
        return;
    CHECK_EQ(crystal_share_receive(receiver, &got), 0);
    for (int round = 0; round < 3; round++) {
        for (m.number = sent; crystal_share_send(sender, &m); m.number = ++sent)
            ;
        CHECK_EQ(sent, 64 * (uint64_t)(round + 1));
        for (uint64_t i = sent - 64; i < sent; i++) {
            CHECK_EQ(crystal_share_receive(receiver, &got), 1);
            CHECK(got.number == i && got.bytes == 5 && got.piece == 5 && got.at == 11);
        }
        CHECK_EQ(crystal_share_receive(receiver, &got), 0);
    }
    CHECK_EQ(crystal_share_answered(sender, &ns), 0);
    for (uint64_t i = 1; i <= 200; i++) {
        crystal_share_answer(receiver, i);
        CHECK(crystal_share_answered(sender, &ns) && ns == i);
    }
    CHECK_EQ(crystal_share_answered(sender, &ns), 0);
    CHECK_EQ(crystal_share_wakes(sender), 0);
    crystal_share_sleep(receiver);
    CHECK_EQ(crystal_share_wakes(receiver), 0); /* its own */
    CHECK_EQ(crystal_share_wakes(sender), 1);
    CHECK_EQ(crystal_share_wakes(sender), 0);
    crystal_share_sleep(sender);
    CHECK_EQ(crystal_share_wakes(receiver), 1);
    crystal_share_destroy(sender, 1);
    crystal_share_destroy(receiver, 1);
}

int main(void)
{
    check_begin();
    CHECK_RUN(keeps_room_in_the_ring);
    CHECK_RUN(keeps_messages_in_order);
    return check_end();
}
