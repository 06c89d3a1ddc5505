/* Room for messages: sizes, reuse, and that pieces do not touch. */
#include "config.h"

#include "replay/net_room.h"

#include "tests/check.h"

static void sizes(void)
{
    static const struct {
        uint64_t asked, size;
    } rows[] = {{0, 1024},          {1, 1024},         {1024, 1024},
                {1025, 1280},       {1281, 1536},      {1793, 2048},
                {2048, 2048},       {2049, 2560},      {524288, 524288},
                {524289, 655360},   {614400, 655360},  {1048576, 1048576},
                {5242881, 6291456}, {8388608, 8388608}};
    struct crystal_rooms *rooms = crystal_rooms_create(NULL, NULL);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_room *room = crystal_room_take(rooms, rows[i].asked);

        CHECK(room != NULL);
        CHECK_EQ(room->bytes, rows[i].size);
        CHECK_EQ((uintptr_t)room->data % 64, 0);
        memset(room->data, 1, room->bytes);
        crystal_room_give(room);
    }
    CHECK(crystal_room_take(rooms, UINT64_MAX) == NULL);
    crystal_rooms_destroy(rooms);
}

/* What was given back is taken again, and memory grows only by what is out at once. */
static void reuse(void)
{
    struct crystal_rooms *rooms = crystal_rooms_create(NULL, NULL);
    struct crystal_room *out[64], *again;
    uint64_t bytes;

    for (unsigned i = 0; i < 64; i++) {
        out[i] = crystal_room_take(rooms, 100000);
        memset(out[i]->data, (int)i, out[i]->bytes);
    }
    for (unsigned i = 0; i < 64; i++) {
        CHECK_EQ(out[i]->data[0], i);
        CHECK_EQ(out[i]->data[out[i]->bytes - 1], i);
    }
    bytes = crystal_rooms_bytes(rooms);
    CHECK_EQ(bytes, UINT64_C(4) << 21); /* 18 pieces of 112 KiB in 2 MiB */
    crystal_room_give(out[5]);
    again = crystal_room_take(rooms, 110000);
    CHECK(again == out[5]);
    for (unsigned i = 0; i < 64; i++)
        crystal_room_give(out[i]);
    crystal_room_give(NULL);
    for (unsigned i = 0; i < 64; i++)
        out[i] = crystal_room_take(rooms, 100000);
    CHECK_EQ(crystal_rooms_bytes(rooms), bytes);
    crystal_rooms_destroy(rooms);
}

/* A shared room is taken again when its last owner has given it back. */
static void shared(void)
{
    struct crystal_rooms *rooms = crystal_rooms_create(NULL, NULL);
    struct crystal_room *room = crystal_room_take(rooms, 3000), *other;

    CHECK(crystal_room_share(room) == room);
    crystal_room_give(room);
    other = crystal_room_take(rooms, 3000);
    CHECK(other != room);
    crystal_room_give(room);
    CHECK(crystal_room_take(rooms, 3000) == room);
    crystal_rooms_destroy(rooms);
}

static uint64_t told_bytes;

static void on_memory(void *user, void *memory, uint64_t bytes)
{
    told_bytes += bytes;
    CHECK(user == &told_bytes && memory);
}

static void told(void)
{
    struct crystal_rooms *rooms = crystal_rooms_create(on_memory, &told_bytes);

    crystal_room_give(crystal_room_take(rooms, 1 << 20));
    CHECK_EQ(told_bytes, 4 << 20);
    crystal_rooms_destroy(rooms);
}

int main(void)
{
    check_begin();
    CHECK_RUN(sizes);
    CHECK_RUN(reuse);
    CHECK_RUN(shared);
    CHECK_RUN(told);
    return check_end();
}
