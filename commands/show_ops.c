/* Operations as lines of text: time, kind, what. See show.h. */
#include "config.h"

#include "commands/show.h"

#include <inttypes.h>

void crystal_show_way(FILE *out, uint8_t way)
{
    static const char *const algos[] = {"", " by ring", " by tree", " by PAT"};
    static const char *const protos[] = {"", " with Simple", " with LL", " with LL128"};

    fputs(algos[CRYSTAL_OP_ALGO(way)], out);
    fputs(protos[CRYSTAL_OP_PROTO(way)], out);
}

static void print_coll(FILE *out, const struct crystal_op *op)
{
    fprintf(out, "%-13s comm %u stream %u %s x %" PRIu64, crystal_func_name(op->func),
            op->comm, op->stream, crystal_dtype_name(op->dtype), op->value);
    if (crystal_func_reduces(op->func))
        fprintf(out, " %s", crystal_redop_name(op->aux));
    if (crystal_func_has_root(op->func))
        fprintf(out, " root %u", op->peer);
    if (op->flags & CRYSTAL_OP_FLAG_IN_PLACE)
        fprintf(out, " in place");
    if (op->flags & CRYSTAL_OP_FLAG_BARRIER)
        fprintf(out, " barrier");
    crystal_show_way(out, op->flags);
}

static void print_name(FILE *out, const struct crystal_op *ops, uint64_t at,
                       uint64_t end)
{
    for (at++; at < end && ops[at].kind == CRYSTAL_OP_EXT; at++) {
        const unsigned char *text = (const unsigned char *)&ops[at] + 1;

        for (size_t i = 0; i < 31 && text[i]; i++)
            putc(text[i] >= ' ' && text[i] < 127 ? text[i] : '?', out);
    }
}

static void print_op(FILE *out, const struct crystal_op *ops, uint64_t at, uint64_t end)
{
    static const char *const works[CRYSTAL_WORK_COUNT] = {
        "kernels", "copies", "memsets", "the recorder's copies"};
    const struct crystal_op *op = &ops[at];
    uint64_t value = op->value;

    switch (op->kind) {
    case CRYSTAL_OP_START:
        fprintf(out, "start         clock %" PRIu64 " ns, process %u", value, op->aux);
        break;
    case CRYSTAL_OP_COMM:
        fprintf(out, "communicator  comm %u, crank %u of %" PRIu64 ", '", op->comm,
                op->peer, value);
        print_name(out, ops, at, end);
        putc('\'', out);
        break;
    case CRYSTAL_OP_COLL:
        print_coll(out, op);
        break;
    case CRYSTAL_OP_SEND:
    case CRYSTAL_OP_RECV:
        fprintf(out, "%-13s comm %u stream %u %s x %" PRIu64 " %s %u",
                crystal_func_name(op->func), op->comm, op->stream,
                crystal_dtype_name(op->dtype), value,
                op->kind == CRYSTAL_OP_SEND ? "to" : "from", op->peer);
        break;
    case CRYSTAL_OP_KERNEL:
        fprintf(out, "kernel        stream %u for %" PRIu64 " ns", op->stream, value);
        break;
    case CRYSTAL_OP_WORK:
        fprintf(out, "work          stream %u behind record %u, %u of %s, %.3f us",
                op->stream, op->peer, op->aux,
                op->func < CRYSTAL_WORK_COUNT ? works[op->func] : "another kind",
                (double)value / 1e3);
        break;
    case CRYSTAL_OP_GROUP:
        fprintf(out, "group %s", op->aux ? "start" : "end");
        break;
    case CRYSTAL_OP_RECORD:
        fprintf(out, "event         %u recorded on stream %u", op->peer, op->stream);
        break;
    case CRYSTAL_OP_WAIT:
        fprintf(out, "wait          host for event %u until %.3f us", op->peer,
                (double)value / 1e3);
        break;
    case CRYSTAL_OP_SWAIT:
        fprintf(out, "wait          stream %u for event %u", op->stream, op->peer);
        break;
    case CRYSTAL_OP_SYNC:
        fprintf(out, "wait          host for stream %u until %.3f us", op->stream,
                (double)value / 1e3);
        break;
    case CRYSTAL_OP_HINT:
        if (op->aux == CRYSTAL_HINT_HIDDEN)
            fprintf(out, "iteration     NVTX ranges are another tool's");
        else
            fprintf(out, "iteration     %" PRIu64 " ended%s", value,
                    op->aux == CRYSTAL_HINT_RANGE ? ", the range begins" : "");
        break;
    case CRYSTAL_OP_PAYLOAD:
        fprintf(out, "payload       %u bytes at %" PRIu64, op->peer, value);
        break;
    case CRYSTAL_OP_DONE:
        fprintf(out, "done          record %u, began at %.3f us", op->peer,
                (double)value / 1e3);
        break;
    case CRYSTAL_OP_FREE:
        fprintf(out, "communicator  comm %u freed", op->comm);
        break;
    case CRYSTAL_OP_ALLOC:
        fprintf(out, "%-13s %" PRIu64 " bytes", op->aux ? "free" : "allocation", value);
        break;
    case CRYSTAL_OP_LOST:
        fprintf(out, "lost          %" PRIu64 " records", value);
        break;
    case CRYSTAL_OP_END:
        fprintf(out, "end           %s, peak memory %" PRIu64 " bytes",
                op->aux ? "stopped at its iterations" : "program ended", value);
        break;
    default:
        fprintf(out, "unknown kind  %u", op->kind);
    }
}

void crystal_show_ops(FILE *out, const struct crystal_op *ops, uint64_t first,
                      uint64_t end)
{
    for (uint64_t i = first; i < end; i++) {
        if (ops[i].kind == CRYSTAL_OP_EXT)
            continue;
        fprintf(out, "%8" PRIu64 " %14.3f  ", i, (double)ops[i].t_ns / 1e3);
        print_op(out, ops, i, end);
        putc('\n', out);
    }
}
