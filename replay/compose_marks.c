/* Where the iterations of plan's traces begin. See compose_internal.h. */
#include "config.h"

#include "replay/compose_internal.h"

#include "runtime/iteration.h"
#include "runtime/iteration_range.h"

#include <errno.h>

int cp_marks_find(const struct compose *c, uint32_t rep, const struct crystal_trace *t,
                  uint64_t **ret, uint32_t *ret_count, struct crystal_error *err)
{
    uint32_t mark_count;
    uint64_t op_count;
    const uint64_t *marks = crystal_graph_marks(c->graph, rep, &mark_count);
    const struct crystal_op *ops = crystal_graph_ops(c->graph, rep, &op_count);
    bool is_by_range = mark_count && crystal_range_is_begin(&ops[marks[0]]);
    struct crystal_range_marks m = {0};
    int code = 0;

    if (is_by_range !=
        (crystal_range_look(t->ops, t->op_count) == CRYSTAL_RANGE_BEGINS))
        return crystal_error_set(
            err, ESTALE,
            "the NVTX range of capture.iteration_range was seen in %s only; run "
            "capture "
            "and graph again under the layout and NVTX_INJECTION64_PATH of plan",
            is_by_range ? "capture" : "plan");
    if (is_by_range) {
        code = crystal_range_find(t->ops, t->op_count, &m, err);
        *ret = m.marks;
        *ret_count = m.count;
    } else if (crystal_iteration_find(t->ops, t->op_count, ret, ret_count)) {
        code = cp_no_memory(err);
    }
    return code;
}
