/* NCCL's hash of a unique id, from which communicators get the number by which its
 * plugins know them. Facts of NCCL 2.28.9 (src/include/bitops.h). */
#include "config.h"

#include "replay/board.h"

#include <string.h>

/* Two 64-bit accumulators that are stirred before each word of input. */
struct hash {
    uint64_t a, b;
};

static void stir(struct hash *h)
{
    h->a += h->b;
    h->b ^= h->a;
    h->a = (h->a ^ (h->a >> 31)) * UINT64_C(0x9de62bbc8cef3ce3);
    h->b = (h->b ^ (h->b >> 32)) * UINT64_C(0x485cd6311b599e79);
}

static void eat(struct hash *h, const void *bytes, size_t count)
{
    const unsigned char *next = bytes;

    h->a ^= count;
    while (count) {
        size_t part = count < sizeof(uint64_t) ? count : sizeof(uint64_t);
        uint64_t word = 0;

        stir(h);
        memcpy(&word, next, part);
        h->a += word;
        next += part;
        count -= part;
    }
}

static uint64_t digest_of(const struct hash *h)
{
    uint64_t digest = (h->a ^ (h->a >> 31)) * UINT64_C(0xbac3bd562846de6b) + h->b;

    return (digest ^ (digest >> 32)) * UINT64_C(0x995a187a14e7b445);
}

uint64_t crystal_nccl_hash(const void *bytes, size_t count)
{
    struct hash h = {1, 1};

    eat(&h, bytes, count);
    return digest_of(&h);
}

uint64_t crystal_nccl_hash_split(uint64_t parent, int32_t split_count, int32_t color)
{
    struct hash h = {1, 1};

    eat(&h, &parent, sizeof parent);
    eat(&h, &split_count, sizeof split_count);
    eat(&h, &color, sizeof color);
    return digest_of(&h);
}
