/* How NCCL 2.28.9 deals a tensor to channels: in cells of 16 KiB of traffic, which fill
 * the channels in order; first, middle and last channel get their own count. For an
 * operation alone in its launch. */
#include "config.h"

#include "runtime/channel_part.h"

#define MIN_CHANNEL_TRAFFIC (16U << 10) /* bytes that are worth a channel */
#define LL_WEIGHT           4U          /* LL counts its traffic four times */

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* Deals the cells of the tensor to the channels: `low` cells for the first, `each` for
 * every one of `mid` middle channels, `high` for the last. */
static void deal_cells(uint64_t cells, uint64_t per_channel, uint32_t channel_count,
                       uint64_t *ret_low, uint64_t *ret_mid, uint64_t *ret_each,
                       uint64_t *ret_high)
{
    uint64_t each = cells < per_channel ? cells : per_channel;
    uint64_t low = channel_count == 1 ? cells : each;
    uint64_t mid = (cells - low) / each, high = (cells - low) % each;

    if (channel_count < 1 + mid + (high != 0)) { /* the last channels take more */
        mid = channel_count - 2;
        each = (cells - low) / (mid + 1);
        high = each + (cells - low) % (mid + 1);
    }
    if (high == 0 && mid != 0) {
        high = each;
        mid--;
    }
    *ret_low = low;
    *ret_mid = mid;
    *ret_each = each;
    *ret_high = high;
}

struct crystal_channel_part
crystal_channel_part(uint64_t count, uint32_t unit_bytes, uint64_t traffic_per_byte,
                     enum crystal_proto proto, uint32_t channel_count, uint32_t channel)
{
    struct crystal_channel_part part = {0};
    uint64_t weight = traffic_per_byte * (proto == CRYSTAL_PROTO_LL ? LL_WEIGHT : 1);
    uint64_t cell_bytes = div_up(div_up(MIN_CHANNEL_TRAFFIC, weight), 16) * 16;
    uint64_t cell_units = cell_bytes / unit_bytes;
    uint64_t cells = div_up(count * unit_bytes, cell_bytes);
    uint64_t traffic = count * unit_bytes * weight / channel_count;
    uint64_t low, mid, each, high, spare = cells * cell_units - count;

    if (!count)
        return part;
    if (traffic < MIN_CHANNEL_TRAFFIC)
        traffic = MIN_CHANNEL_TRAFFIC;
    deal_cells(cells, div_up(traffic, cell_bytes * weight), channel_count, &low, &mid,
               &each, &high);
    if (channel == 0) {
        part.units = low * cell_units - (high == 0 ? spare : 0);
    } else if (channel <= mid) {
        part.offset = (low + (channel - 1) * each) * cell_units;
        part.units = each * cell_units;
    } else if (channel == mid + 1 && high != 0) {
        part.offset = (low + mid * each) * cell_units;
        part.units = high * cell_units - spare;
    }
    return part;
}
