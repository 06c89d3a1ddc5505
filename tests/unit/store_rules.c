/* The store's rules: what each form of key means, and who sets an id. */
#include "config.h"

#include "runtime/store_rules.h"

#include "tests/check.h"

static void keys_match_their_rows(void)
{
    static const struct {
        const char *key;
        enum crystal_store_effect effect;
        const char *group;
        uint32_t number;
    } rows[] = {
        {"init/", CRYSTAL_STORE_COUNT_WORLD, NULL, 0},
        {"/init/", CRYSTAL_STORE_PLAIN, NULL, 0},
        {"/default_pg/store_based_barrier_key:12", CRYSTAL_STORE_COUNT_WORLD, NULL, 0},
        /* as PyTorch 2.11 writes them */
        {"/default_pg/0//store_based_barrier_key:1", CRYSTAL_STORE_COUNT_WORLD, NULL,
         0},
        {"/default_pg/0//e1//store_based_barrier_key:e1", CRYSTAL_STORE_COUNT_GROUP,
         "e1", 0},
        {"/default_pg/0//1//cpu//0", CRYSTAL_STORE_ID, "1", 0},
        {"/default_pg/0//e1//cuda//2", CRYSTAL_STORE_ID, "e1", 2},
        {"/default_pg/0//12//cuda//2:5", CRYSTAL_STORE_ID_OF_CRANK, "12", 2},
        {"/default_pg/0//12//cuda//UniqueNCCLID:3", CRYSTAL_STORE_ID_OF_ROOT, "12", 3},
        {"/default_pg/0//12//cpu//0/5", CRYSTAL_STORE_PLAIN, NULL, 0}, /* gloo's */
        {"/default_pg/0//cpu//0", CRYSTAL_STORE_ID, "0", 0},
        {"/default_pg/17//cuda//3", CRYSTAL_STORE_ID, "17", 3},
        {"/default_pg/a1b2//cuda//3", CRYSTAL_STORE_ID, "a1b2", 3},
        {"/default_pg/17//cuda//2:5", CRYSTAL_STORE_ID_OF_CRANK, "17", 2},
        {"/default_pg/0//cuda//UniqueNCCLID:63", CRYSTAL_STORE_ID_OF_ROOT, "0", 63},
        {"/default_pg/0//cpu//0/5", CRYSTAL_STORE_PLAIN, NULL, 0}, /* gloo's */
        {"/default_pg/0//cpu//", CRYSTAL_STORE_PLAIN, NULL, 0},
        {"/default_pg/0//cpu//12345678901", CRYSTAL_STORE_PLAIN, NULL, 0},
        {"/default_pg/0//cpu//1:2:3", CRYSTAL_STORE_PLAIN, NULL, 0},
        {"/default_pg/0/cpu/0", CRYSTAL_STORE_PLAIN, NULL, 0},
        {"/crystal/group/12", CRYSTAL_STORE_MEMBERS, "12", 0},
        {"/crystal/group/", CRYSTAL_STORE_PLAIN, NULL, 0},
        {"/exception_dump", CRYSTAL_STORE_NEVER, NULL, 0},
        {"/exception_dump2", CRYSTAL_STORE_PLAIN, NULL, 0},
        {"", CRYSTAL_STORE_PLAIN, NULL, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_store_match m;

        crystal_store_rules_match(rows[i].key, strlen(rows[i].key), &m);
        if (m.effect != rows[i].effect)
            printf("# key '%s'\n", rows[i].key);
        CHECK_EQ(m.effect, rows[i].effect);
        CHECK_EQ(m.group_bytes, rows[i].group ? strlen(rows[i].group) : 0);
        if (rows[i].group && m.group)
            CHECK(memcmp(m.group, rows[i].group, m.group_bytes) == 0);
        if (m.effect != CRYSTAL_STORE_PLAIN)
            CHECK_EQ(m.number, rows[i].number);
    }
}

static void setter_of_an_id(void)
{
    struct crystal_store_match m = {.effect = CRYSTAL_STORE_ID, .number = 7};

    CHECK_EQ(crystal_store_rules_setter(&m, 16), 0);
    m.effect = CRYSTAL_STORE_ID_OF_CRANK;
    CHECK_EQ(crystal_store_rules_setter(&m, 16), 7);
    CHECK_EQ(crystal_store_rules_setter(&m, 7), 7); /* no such crank */
    m.effect = CRYSTAL_STORE_ID_OF_ROOT;
    /* 300 ranks, 3 roots: 100 each. 257 ranks, 3 roots: 86, 86, 85. */
    m.number = 0;
    CHECK_EQ(crystal_store_rules_setter(&m, 300), 0);
    m.number = 2;
    CHECK_EQ(crystal_store_rules_setter(&m, 300), 200);
    CHECK_EQ(crystal_store_rules_setter(&m, 257), 172);
    m.number = 3;
    CHECK_EQ(crystal_store_rules_setter(&m, 300), 300);
    m.number = 63;
    CHECK_EQ(crystal_store_rules_setter(&m, 8192), 63 * 128);
}

int main(void)
{
    check_begin();
    CHECK_RUN(keys_match_their_rows);
    CHECK_RUN(setter_of_an_id);
    return check_end();
}
