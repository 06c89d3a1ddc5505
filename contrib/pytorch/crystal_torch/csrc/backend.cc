/* The operations; see backend.h. Each method checks its tensors, opens an Issue, makes
 * the library calls on its stream, and closes it into a Work. */
#include "backend.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "site.h"
#include "wire.h"

namespace crystal
{

Work::Work(int crank, c10d::OpType type, std::shared_ptr<Communicator> communicator,
           std::shared_ptr<Operation> operation)
    : c10d::Work(crank, type), communicator_(std::move(communicator)),
      operation_(std::move(operation))
{
}

bool Work::isCompleted()
{
    return communicator_->is_done(operation_);
}

bool Work::isSuccess() const
{
    return operation_->done.load(std::memory_order_acquire) && !operation_->error;
}

std::exception_ptr Work::exception() const
{
    return operation_->done.load(std::memory_order_acquire) ? operation_->error
                                                            : nullptr;
}

void Work::synchronize()
{
    communicator_->wait(operation_);
    if (operation_->error) {
        std::rethrow_exception(operation_->error);
    }
}

bool Work::wait(std::chrono::milliseconds)
{
    synchronize();
    return true;
}

std::vector<at::Tensor> Work::result()
{
    return operation_->outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture()
{
    std::lock_guard<std::mutex> guard(mutex_);
    if (!future_) {
        future_ = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()));
        communicator_->complete_later(operation_, future_);
    }
    return future_;
}

/* One operation on its way. Inside a coalescing block it becomes a part of the block's
 * operation; else it is one of its own, in its own ncclGroup where it has several
 * calls. A call that fails throws, and the destructor closes the group. */
class Backend::Issue
{
  public:
    enum Calls { SINGLE, GROUP };

    Issue(Backend &backend, c10d::OpType type, const char *name, Calls calls)
        : backend_(backend), type_(type), name_(name),
          communicator_(backend.communicator_), comm_(communicator_->get()),
          is_part_(backend.block_ != nullptr), operation_(backend.block_)
    {
        if (!is_part_) {
            communicator_->reap();
            operation_ = std::make_shared<Operation>();
            operation_->name = name;
        }
        find_site();
        Communicator::tell_site(*operation_);
        if (calls == GROUP) {
            check(Library::get().GroupStart(), comm_, name_);
            is_grouped_ = true;
        }
        backend.sequence_++;
    }

    /* One that is made later, by finish_later: communicator may not be there yet. */
    Issue(Backend &backend, c10d::OpType type, const char *name,
          std::shared_ptr<Communicator> communicator)
        : backend_(backend), type_(type), name_(name),
          communicator_(std::move(communicator)), is_part_(false),
          operation_(std::make_shared<Operation>())
    {
        operation_->name = name;
        find_site();
        backend.sequence_++;
    }

    ~Issue()
    {
        if (is_grouped_) {
            (void)Library::get().GroupEnd(); /* the first error is on its way already */
        }
    }

    Issue(const Issue &) = delete;
    Issue &operator=(const Issue &) = delete;

    const Library &library() const
    {
        return Library::get();
    }
    ncclComm_t comm() const
    {
        return comm_;
    }
    ncclStream_t stream() const
    {
        return communicator_->stream();
    }
    void called(ncclResult_t result)
    {
        check(result, comm_, name_);
    }

    /* Contiguous memory with the value of TENSOR, alive until the operation is done. */
    at::Tensor input(const at::Tensor &tensor)
    {
        accept(tensor);
        return keep(tensor.contiguous());
    }

    /* Contiguous memory whose content is TENSOR's when the operation is done. */
    at::Tensor output(at::Tensor &tensor)
    {
        accept(tensor);
        operation_->outputs.push_back(tensor);
        if (tensor.is_contiguous()) {
            return keep(tensor);
        }
        at::Tensor flat = at::empty_like(tensor, at::MemoryFormat::Contiguous);
        copy_at_end(tensor, flat);
        return keep(flat);
    }

    /* The same for a tensor that is read and written. */
    at::Tensor in_place(at::Tensor &tensor)
    {
        at::Tensor flat = output(tensor);
        if (!flat.is_same(tensor)) {
            flat.copy_(tensor);
        }
        return flat;
    }

    /* Memory for COUNT tensors like TENSOR one behind the other. */
    at::Tensor scratch(const at::Tensor &tensor, int64_t count)
    {
        accept(tensor);
        return keep(at::empty({count, tensor.numel()}, tensor.options()));
    }

    void copy_at_end(at::Tensor target, at::Tensor source)
    {
        operation_->finishers.push_back(
            [target, source]() mutable { target.copy_(source.view(target.sizes())); });
    }

    void produces(const at::Tensor &tensor)
    {
        operation_->outputs.push_back(tensor);
    }

    void all_reduce(at::Tensor &tensor, const c10d::ReduceOp &reduce_op)
    {
        at::Tensor flat = as_real(in_place(tensor), reduce_op);
        called(library().AllReduce(flat.data_ptr(), flat.data_ptr(), flat.numel(),
                                   wire_reduce_type(flat.scalar_type()),
                                   wire_reduce_op(reduce_op, flat.scalar_type()), comm_,
                                   stream()));
    }

    void send(const at::Tensor &flat, int64_t offset, int64_t count, int peer)
    {
        WireType wire = wire_type(flat.scalar_type());
        called(library().Send(address(flat, offset), count * wire.factor, wire.type,
                              peer, comm_, stream()));
    }

    void receive(const at::Tensor &flat, int64_t offset, int64_t count, int peer)
    {
        WireType wire = wire_type(flat.scalar_type());
        called(library().Recv(address(flat, offset), count * wire.factor, wire.type,
                              peer, comm_, stream()));
    }

    /* A complex sum is the sum of both parts. */
    at::Tensor as_real(const at::Tensor &flat, const c10d::ReduceOp &reduce_op)
    {
        if (!flat.is_complex()) {
            return flat;
        }
        TORCH_CHECK(reduce_op == c10d::ReduceOp::SUM ||
                        reduce_op == c10d::ReduceOp::AVG,
                    "crystal: pytorch: ", name_,
                    ": complex numbers can be summed and averaged only");
        return flat.view(c10::toRealValueType(flat.scalar_type()));
    }

    WorkPtr close()
    {
        if (is_grouped_) {
            is_grouped_ = false;
            called(library().GroupEnd());
        }
        if (!is_part_) {
            communicator_->append(operation_);
        }
        return c10::make_intrusive<Work>(backend_.getRank(), type_, communicator_,
                                         operation_);
    }

    WorkPtr finish_later(Communicator::Call call)
    {
        communicator_->issue(operation_, std::move(call));
        return c10::make_intrusive<Work>(backend_.getRank(), type_, communicator_,
                                         operation_);
    }

  private:
    void find_site()
    {
        if (Library::get().call_site) {
            operation_->site = site_here();
        }
    }

    void accept(const at::Tensor &tensor) const
    {
        TORCH_CHECK(tensor.device().is_cpu() && tensor.layout() == at::kStrided,
                    "crystal: pytorch: ", name_,
                    ": takes dense tensors on the CPU, got ", tensor.layout(), " on ",
                    tensor.device());
    }

    at::Tensor keep(const at::Tensor &tensor)
    {
        operation_->tensors.push_back(tensor);
        return tensor;
    }

    static char *address(const at::Tensor &flat, int64_t offset)
    {
        return static_cast<char *>(flat.data_ptr()) + offset * flat.element_size();
    }

    Backend &backend_;
    const c10d::OpType type_;
    const char *const name_;
    at::NoGradGuard no_grad_;
    const std::shared_ptr<Communicator> communicator_;
    ncclComm_t comm_ = nullptr;
    const bool is_part_;
    bool is_grouped_ = false;
    std::shared_ptr<Operation> operation_;
};

static at::Tensor &only(std::vector<at::Tensor> &tensors, const char *name)
{
    TORCH_CHECK(tensors.size() == 1, "crystal: pytorch: ", name,
                ": takes one tensor, got ", tensors.size());
    return tensors[0];
}

static void same_count(size_t got, size_t want, const char *name, const char *what)
{
    TORCH_CHECK(got == want, "crystal: pytorch: ", name, ": ", what, " is ", got,
                ", want ", want);
}

Backend::Backend(const c10::intrusive_ptr<c10d::Store> &store, int crank, int size,
                 std::chrono::milliseconds timeout, int life, bool is_split)
    : c10d::Backend(crank, size),
      options_(c10::make_intrusive<GroupOptions>("gloo", timeout)),
      group_(new Group{store, crank, size, options_, life, is_split}),
      communicator_(std::make_shared<Communicator>(group_, "0", crank, size))
{
}

c10::intrusive_ptr<c10d::Backend>
Backend::split(const c10::intrusive_ptr<c10d::Store> &store,
               const std::vector<int> &cranks, const c10::intrusive_ptr<Options> &opts)
{
    auto own = std::find(cranks.begin(), cranks.end(), getRank());
    if (own == cranks.end()) {
        return nullptr;
    }
    auto part = c10::make_intrusive<Backend>(
        store->clone(), static_cast<int>(own - cranks.begin()),
        static_cast<int>(cranks.size()), opts ? opts->timeout : options_->timeout,
        group_->life, true);
    auto named = c10::dynamic_intrusive_pointer_cast<GroupOptions>(opts);
    TORCH_CHECK(named && !named->group_name.empty(),
                "crystal: pytorch: split_group: the new group has no name");
    part->options_->group_name = named->group_name;
    std::vector<uint64_t> lranks = group_->members();
    for (int crank : cranks) {
        TORCH_CHECK(crank >= 0 && crank < getSize(),
                    "crystal: pytorch: split_group: ", crank,
                    " is no rank of a group of ", getSize());
        part->options_->global_ranks_in_group.push_back(lranks[crank]);
    }
    return part;
}

std::shared_ptr<Communicator> Backend::pair(int sender, int receiver)
{
    std::lock_guard<std::mutex> guard(lock_);
    auto &slot = pairs_[{sender, receiver}];
    if (!slot) {
        slot = std::make_shared<Communicator>(
            group_, std::to_string(sender) + ":" + std::to_string(receiver),
            getRank() == sender ? 0 : 1, 2);
    }
    return slot;
}

void Backend::end(bool abort)
{
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (auto &entry : pairs_) {
            entry.second->shutdown(abort);
        }
    }
    communicator_->shutdown(abort);
}

void Backend::setTimeout(std::chrono::milliseconds timeout)
{
    options_->timeout = timeout;
}

void Backend::startCoalescing()
{
    TORCH_CHECK(!block_, "crystal: pytorch: a coalescing block is open already");
    ncclComm_t comm = communicator_->get();
    auto block = std::make_shared<Operation>();
    block->name = "coalesced operations";
    block->is_open = true;
    check(Library::get().GroupStart(), comm, block->name);
    block_ = block;
}

Backend::WorkPtr Backend::endCoalescing()
{
    TORCH_CHECK(block_, "crystal: pytorch: no coalescing block is open");
    auto block = std::move(block_);
    block_ = nullptr;
    block->is_open = false;
    check(Library::get().GroupEnd(), communicator_->get(), block->name);
    communicator_->append(block);
    return c10::make_intrusive<Work>(getRank(), c10d::OpType::COALESCED, communicator_,
                                     block);
}

Backend::WorkPtr Backend::broadcast(Tensors &tensors,
                                    const c10d::BroadcastOptions &opts)
{
    at::Tensor &tensor = only(tensors, "broadcast");
    Issue issue(*this, c10d::OpType::BROADCAST, "broadcast", Issue::SINGLE);
    at::Tensor flat = issue.in_place(tensor);
    WireType wire = wire_type(flat.scalar_type());
    issue.called(issue.library().Broadcast(
        flat.data_ptr(), flat.data_ptr(), flat.numel() * wire.factor, wire.type,
        static_cast<int>(opts.rootRank), issue.comm(), issue.stream()));
    return issue.close();
}

Backend::WorkPtr Backend::allreduce(Tensors &tensors,
                                    const c10d::AllreduceOptions &opts)
{
    at::Tensor &tensor = only(tensors, "all_reduce");
    Issue issue(*this, c10d::OpType::ALLREDUCE, "all_reduce", Issue::SINGLE);
    issue.all_reduce(tensor, opts.reduceOp);
    return issue.close();
}

Backend::WorkPtr
Backend::allreduce_coalesced(Tensors &tensors,
                             const c10d::AllreduceCoalescedOptions &opts)
{
    Issue issue(*this, c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced",
                Issue::GROUP);
    for (at::Tensor &tensor : tensors) {
        issue.all_reduce(tensor, opts.reduceOp);
    }
    return issue.close();
}

Backend::WorkPtr Backend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts)
{
    at::Tensor &tensor = only(tensors, "reduce");
    Issue issue(*this, c10d::OpType::REDUCE, "reduce", Issue::SINGLE);
    at::Tensor flat = issue.as_real(issue.in_place(tensor), opts.reduceOp);
    issue.called(issue.library().Reduce(
        flat.data_ptr(), flat.data_ptr(), flat.numel(),
        wire_reduce_type(flat.scalar_type()),
        wire_reduce_op(opts.reduceOp, flat.scalar_type()),
        static_cast<int>(opts.rootRank), issue.comm(), issue.stream()));
    return issue.close();
}

void Backend::all_gather_flat(Issue &issue, at::Tensor &output, at::Tensor &input)
{
    same_count(output.numel(), input.numel() * getSize(), "all_gather",
               "the output's number of elements");
    at::Tensor to = issue.output(output), from = issue.input(input);
    WireType wire = wire_type(from.scalar_type());
    issue.called(issue.library().AllGather(from.data_ptr(), to.data_ptr(),
                                           from.numel() * wire.factor, wire.type,
                                           issue.comm(), issue.stream()));
}

/* Outputs of one size are gathered into one buffer; of several sizes, each is broadcast
 * by its owner. */
void Backend::all_gather_one(Issue &issue, Tensors &outputs, at::Tensor &input)
{
    same_count(outputs.size(), getSize(), "all_gather", "the number of outputs");
    bool is_even = true;
    for (at::Tensor &output : outputs) {
        is_even = is_even && output.numel() == input.numel();
    }
    at::Tensor from = issue.input(input);
    WireType wire = wire_type(from.scalar_type());
    if (is_even) {
        at::Tensor to = issue.scratch(from, getSize());
        for (int i = 0; i < getSize(); i++) {
            issue.produces(outputs[i]);
            issue.copy_at_end(outputs[i], to[i]);
        }
        issue.called(issue.library().AllGather(from.data_ptr(), to.data_ptr(),
                                               from.numel() * wire.factor, wire.type,
                                               issue.comm(), issue.stream()));
        return;
    }
    same_count(outputs[getRank()].numel(), input.numel(), "all_gather",
               "the own output's number of elements");
    for (int i = 0; i < getSize(); i++) {
        at::Tensor to = issue.output(outputs[i]);
        const void *own = i == getRank() ? from.data_ptr() : to.data_ptr();
        issue.called(issue.library().Broadcast(own, to.data_ptr(),
                                               to.numel() * wire.factor, wire.type, i,
                                               issue.comm(), issue.stream()));
    }
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                    const c10d::AllgatherOptions &)
{
    at::Tensor &input = only(inputs, "all_gather");
    same_count(outputs.size(), 1, "all_gather", "the number of output lists");
    Issue issue(*this, c10d::OpType::ALLGATHER, "all_gather", Issue::GROUP);
    all_gather_one(issue, outputs[0], input);
    return issue.close();
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor &output, at::Tensor &input,
                                          const c10d::AllgatherOptions &)
{
    Issue issue(*this, c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor",
                Issue::SINGLE);
    all_gather_flat(issue, output, input);
    return issue.close();
}

Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors> &outputs,
                                              Tensors &inputs,
                                              const c10d::AllgatherOptions &)
{
    Issue issue(*this, c10d::OpType::ALLGATHER_COALESCED, "all_gather_coalesced",
                Issue::GROUP);
    same_count(outputs.size(), inputs.size(), "all_gather_coalesced",
               "the number of output lists");
    for (size_t i = 0; i < inputs.size(); i++) {
        all_gather_one(issue, outputs[i], inputs[i]);
    }
    return issue.close();
}

Backend::WorkPtr
Backend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                         const c10d::AllgatherOptions &)
{
    Issue issue(*this, c10d::OpType::COALESCED, "all_gather_into_tensor_coalesced",
                Issue::GROUP);
    same_count(outputs.size(), inputs.size(), "all_gather_into_tensor_coalesced",
               "the number of outputs");
    for (size_t i = 0; i < inputs.size(); i++) {
        all_gather_flat(issue, outputs[i], inputs[i]);
    }
    return issue.close();
}

Backend::WorkPtr Backend::gather(std::vector<Tensors> &outputs, Tensors &inputs,
                                 const c10d::GatherOptions &opts)
{
    at::Tensor &input = only(inputs, "gather");
    int root = static_cast<int>(opts.rootRank);
    Issue issue(*this, c10d::OpType::GATHER, "gather", Issue::GROUP);
    if (getRank() == root) {
        same_count(outputs.size(), 1, "gather", "the number of output lists");
        same_count(outputs[0].size(), getSize(), "gather", "the number of outputs");
        for (int i = 0; i < getSize(); i++) {
            at::Tensor to = issue.output(outputs[0][i]);
            if (i == root) {
                to.copy_(input.view(to.sizes()));
            } else {
                issue.receive(to, 0, to.numel(), i);
            }
        }
    } else {
        at::Tensor from = issue.input(input);
        issue.send(from, 0, from.numel(), root);
    }
    return issue.close();
}

Backend::WorkPtr Backend::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                  const c10d::ScatterOptions &opts)
{
    at::Tensor &output = only(outputs, "scatter");
    int root = static_cast<int>(opts.rootRank);
    Issue issue(*this, c10d::OpType::SCATTER, "scatter", Issue::GROUP);
    at::Tensor to = issue.output(output);
    if (getRank() == root) {
        same_count(inputs.size(), 1, "scatter", "the number of input lists");
        same_count(inputs[0].size(), getSize(), "scatter", "the number of inputs");
        for (int i = 0; i < getSize(); i++) {
            at::Tensor from = issue.input(inputs[0][i]);
            if (i == root) {
                to.copy_(from.view(to.sizes()));
            } else {
                issue.send(from, 0, from.numel(), i);
            }
        }
    } else {
        issue.receive(to, 0, to.numel(), root);
    }
    return issue.close();
}

void Backend::reduce_scatter_flat(Issue &issue, at::Tensor &output, at::Tensor &input,
                                  const c10d::ReduceOp &reduce_op)
{
    same_count(input.numel(), output.numel() * getSize(), "reduce_scatter",
               "the input's number of elements");
    at::Tensor from = issue.as_real(issue.input(input), reduce_op);
    at::Tensor to = issue.as_real(issue.output(output), reduce_op);
    issue.called(issue.library().ReduceScatter(
        from.data_ptr(), to.data_ptr(), to.numel(), wire_reduce_type(to.scalar_type()),
        wire_reduce_op(reduce_op, to.scalar_type()), issue.comm(), issue.stream()));
}

Backend::WorkPtr Backend::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                         const c10d::ReduceScatterOptions &opts)
{
    at::Tensor &output = only(outputs, "reduce_scatter");
    same_count(inputs.size(), 1, "reduce_scatter", "the number of input lists");
    same_count(inputs[0].size(), getSize(), "reduce_scatter", "the number of inputs");
    Issue issue(*this, c10d::OpType::REDUCE_SCATTER, "reduce_scatter", Issue::SINGLE);
    at::Tensor flat = issue.scratch(output, getSize());
    for (int i = 0; i < getSize(); i++) {
        same_count(inputs[0][i].numel(), output.numel(), "reduce_scatter",
                   "an input's number of elements");
        flat[i].copy_(inputs[0][i].reshape(-1));
    }
    reduce_scatter_flat(issue, output, flat, opts.reduceOp);
    return issue.close();
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                               const c10d::ReduceScatterOptions &opts)
{
    Issue issue(*this, c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor",
                Issue::SINGLE);
    reduce_scatter_flat(issue, output, input, opts.reduceOp);
    return issue.close();
}

Backend::WorkPtr
Backend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                         const c10d::ReduceScatterOptions &opts)
{
    Issue issue(*this, c10d::OpType::COALESCED, "reduce_scatter_tensor_coalesced",
                Issue::GROUP);
    same_count(outputs.size(), inputs.size(), "reduce_scatter_tensor_coalesced",
               "the number of outputs");
    for (size_t i = 0; i < inputs.size(); i++) {
        reduce_scatter_flat(issue, outputs[i], inputs[i], opts.reduceOp);
    }
    return issue.close();
}

/* An all-to-all has a call to and from every rank, for nothing too: which shares are
 * empty depends on the data, but not the calls that a recording has. */
Backend::WorkPtr Backend::alltoall(Tensors &outputs, Tensors &inputs,
                                   const c10d::AllToAllOptions &)
{
    same_count(outputs.size(), getSize(), "all_to_all", "the number of outputs");
    same_count(inputs.size(), getSize(), "all_to_all", "the number of inputs");
    Issue issue(*this, c10d::OpType::ALLTOALL, "all_to_all", Issue::GROUP);
    for (int i = 0; i < getSize(); i++) {
        at::Tensor from = issue.input(inputs[i]), to = issue.output(outputs[i]);
        issue.send(from, 0, from.numel(), i);
        issue.receive(to, 0, to.numel(), i);
    }
    return issue.close();
}

/* Elements for each peer: SPLITS rows of TENSOR, or equal shares where it is empty. */
static std::vector<int64_t> shares(const at::Tensor &tensor,
                                   const std::vector<int64_t> &splits, int size,
                                   const char *what)
{
    int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    int64_t row = rows > 0 ? tensor.numel() / rows : 0;
    if (splits.empty()) {
        TORCH_CHECK(rows % size == 0, "crystal: pytorch: all_to_all_single: ", rows,
                    " rows of the ", what, " cannot be shared equally by ", size,
                    " ranks; give split sizes");
        return std::vector<int64_t>(size, rows / size * row);
    }
    same_count(splits.size(), size, "all_to_all_single", "the number of splits");
    std::vector<int64_t> counts;
    int64_t sum = 0;
    for (int64_t split : splits) {
        TORCH_CHECK(
            split >= 0 && split <= rows - sum,
            "crystal: pytorch: all_to_all_single: the split sizes do not add up to "
            "the ",
            rows, " rows of the ", what);
        sum += split;
        counts.push_back(split * row);
    }
    same_count(sum, rows, "all_to_all_single", "the sum of the splits");
    return counts;
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor &output, at::Tensor &input,
                                        std::vector<int64_t> &output_splits,
                                        std::vector<int64_t> &input_splits,
                                        const c10d::AllToAllOptions &)
{
    auto sent = shares(input, input_splits, getSize(), "input");
    auto received = shares(output, output_splits, getSize(), "output");
    Issue issue(*this, c10d::OpType::ALLTOALL_BASE, "all_to_all_single", Issue::GROUP);
    at::Tensor from = issue.input(input), to = issue.output(output);
    int64_t sent_sum = 0, received_sum = 0;
    for (int i = 0; i < getSize(); i++) {
        issue.send(from, sent_sum, sent[i], i);
        issue.receive(to, received_sum, received[i], i);
        sent_sum += sent[i];
        received_sum += received[i];
    }
    return issue.close();
}

/* A message of its own, or a part of the open block: a block is for all members, a
 * message of its own for two. */
Backend::WorkPtr Backend::point_to_point(c10d::OpType type, const char *name,
                                         at::Tensor &tensor, int peer)
{
    bool is_send = type == c10d::OpType::SEND;
    TORCH_CHECK(peer >= 0 && peer < getSize() && peer != getRank(),
                "crystal: pytorch: ", name, ": rank ", peer,
                " is not another rank of the group");
    if (block_) {
        Issue issue(*this, type, name, Issue::SINGLE);
        at::Tensor flat = is_send ? issue.input(tensor) : issue.output(tensor);
        if (is_send) {
            issue.send(flat, 0, flat.numel(), peer);
        } else {
            issue.receive(flat, 0, flat.numel(), peer);
        }
        return issue.close();
    }
    Issue issue(*this, type, name,
                is_send ? pair(getRank(), peer) : pair(peer, getRank()));
    at::Tensor flat = is_send ? issue.input(tensor) : issue.output(tensor);
    WireType wire = wire_type(flat.scalar_type());
    int64_t count = flat.numel() * wire.factor;
    void *data = flat.data_ptr(); /* kept alive by the operation */
    return issue.finish_later([=](ncclComm_t comm, ncclStream_t stream) {
        return is_send ? Library::get().Send(data, count, wire.type, 1, comm, stream)
                       : Library::get().Recv(data, count, wire.type, 0, comm, stream);
    });
}

Backend::WorkPtr Backend::send(Tensors &tensors, int peer, int)
{
    return point_to_point(c10d::OpType::SEND, "send", only(tensors, "send"), peer);
}

Backend::WorkPtr Backend::recv(Tensors &tensors, int peer, int)
{
    return point_to_point(c10d::OpType::RECV, "recv", only(tensors, "recv"), peer);
}

Backend::WorkPtr Backend::recvAnysource(Tensors &, int)
{
    TORCH_CHECK(false, "crystal: pytorch: recv from any source is not possible here, "
                       "because NCCL has none; name the source rank");
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions &)
{
    Issue issue(*this, c10d::OpType::BARRIER, "barrier", Issue::SINGLE);
    at::Tensor one = at::zeros({1}, at::kFloat);
    issue.all_reduce(one, c10d::ReduceOp::SUM);
    return issue.close();
}

void Backend::monitoredBarrier(const c10d::BarrierOptions &opts, bool)
{
    barrier(opts)->wait();
}

} // namespace crystal
