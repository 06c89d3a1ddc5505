/* PAT's patterns: exact ones for small numbers of ranks (they were compared with those
 * of NCCL 2.28.9's own generator for 2 to 8192 ranks when this was written), and what
 * holds for all: every distance is one piece over its lowest bit's dimension.
 */
#include "config.h"

#include "runtime/pat_schedule.h"

#include "tests/check.h"

static void text_of(const struct crystal_pat *pat, char *text, size_t room)
{
    size_t at = 0;

    for (uint32_t d = 0; d < pat->dims; d++) {
        at += (size_t)snprintf(text + at, room - at, "%s%u:", d ? " " : "", d);
        for (uint32_t m = 0; m < pat->messages[d]; m++) {
            uint32_t count;
            const struct crystal_pat_piece *p = crystal_pat_pieces(pat, d, m, &count);

            at += (size_t)snprintf(text + at, room - at, "%s", m ? "," : "");
            for (uint32_t i = 0; i < count; i++)
                at += (size_t)snprintf(text + at, room - at, "%s%u", i ? "+" : "",
                                       p[i].rank);
        }
    }
}

static void exact_patterns(void)
{
    static const struct {
        enum crystal_func func;
        uint32_t nranks, aggregate;
        const char *want;
    } rows[] = {
        {CRYSTAL_FUNC_REDUCESCATTER, 2, 1, "0:1"},
        {CRYSTAL_FUNC_REDUCESCATTER, 4, 1, "0:3,1 1:2"},
        {CRYSTAL_FUNC_REDUCESCATTER, 4, 2, "0:3+1 1:2"},
        {CRYSTAL_FUNC_REDUCESCATTER, 7, 2, "0:3,5+1 1:6+2 2:4"},
        {CRYSTAL_FUNC_REDUCESCATTER, 8, 1, "0:7,3,5,1 1:6,2 2:4"},
        {CRYSTAL_FUNC_REDUCESCATTER, 11, 4, "0:7+3,5+9+1 1:6+10+2 2:4 3:8"},
        {CRYSTAL_FUNC_REDUCESCATTER, 13, 1, "0:7,11,3,5,9,1 1:6,10,2 2:12,4 3:8"},
        {CRYSTAL_FUNC_ALLGATHER, 2, 1, "0:1"},
        {CRYSTAL_FUNC_ALLGATHER, 5, 2, "0:3,1 1:2 2:4"},
        {CRYSTAL_FUNC_ALLGATHER, 8, 4, "0:1+3+5+7 1:2+6 2:4"},
        {CRYSTAL_FUNC_ALLGATHER, 9, 2, "0:3+7,1+5 1:2+6 2:4 3:8"},
        {CRYSTAL_FUNC_ALLGATHER, 13, 1, "0:1,3,5,7,9,11 1:2,6,10 2:4,12 3:8"},
    };
    char text[256];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_pat pat;

        CHECK_EQ(
            crystal_pat_init(&pat, rows[i].func, rows[i].nranks, rows[i].aggregate), 0);
        text_of(&pat, text, sizeof text);
        CHECK_STR(text, rows[i].want);
        crystal_pat_fini(&pat);
    }
}

static void every_distance_once(void)
{
    static const uint32_t sizes[] = {2, 3, 31, 64, 100, 129, 1000, 1024, 8192};
    static uint8_t seen[8192];

    for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t n = sizes[i / 2];

        for (uint32_t aggregate = 1; aggregate == 1 || aggregate <= n / 2;
             aggregate *= 2) {
            struct crystal_pat pat;

            CHECK_EQ(crystal_pat_init(&pat,
                                      i % 2 ? CRYSTAL_FUNC_ALLGATHER
                                            : CRYSTAL_FUNC_REDUCESCATTER,
                                      n, aggregate),
                     0);
            memset(seen, 0, sizeof seen);
            CHECK_EQ(pat.piece_count, n - 1);
            for (uint32_t p = 0; p < pat.piece_count; p++) {
                const struct crystal_pat_piece *piece = &pat.pieces[p];

                CHECK(piece->rank > 0 && piece->rank < n && !seen[piece->rank]++);
                CHECK_EQ(piece->dim, __builtin_ctz(piece->rank));
                CHECK(piece->place < aggregate);
                CHECK(piece->message < pat.messages[piece->dim]);
            }
            crystal_pat_fini(&pat);
        }
    }
}

static void cuts(void)
{
    static const struct {
        struct crystal_pat_op op;
        uint64_t offset, bytes, chunk;
        uint32_t aggregate;
    } rows[] = {
        /* 4 ranks of 1000 floats: a chunk holds two blocks of 4000 bytes at most */
        {{CRYSTAL_FUNC_REDUCESCATTER, 4, 1000, 4, 1, 0}, 0, 4000, 65536, 2},
        {{CRYSTAL_FUNC_REDUCESCATTER, 64, 1000, 4, 1, 0}, 0, 4000, 65536, 16},
        {{CRYSTAL_FUNC_ALLGATHER, 8, 1 << 20, 4, 1, 0}, 0, 4 << 20, 524288, 1},
        {{CRYSTAL_FUNC_REDUCESCATTER, 8, 3 << 20, 1, 2, 1},
         1572864,
         1572864,
         524288,
         1},
        {{CRYSTAL_FUNC_ALLGATHER, 4, 40000, 1, 1, 0}, 0, 40000, 65536, 1},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_pat_cut cut;

        crystal_pat_cut(&rows[i].op, &cut);
        CHECK_EQ(cut.offset_bytes, rows[i].offset);
        CHECK_EQ(cut.bytes, rows[i].bytes);
        CHECK_EQ(cut.chunk_bytes, rows[i].chunk);
        CHECK_EQ(cut.aggregate, rows[i].aggregate);
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(exact_patterns);
    CHECK_RUN(every_distance_once);
    CHECK_RUN(cuts);
    return check_end();
}
