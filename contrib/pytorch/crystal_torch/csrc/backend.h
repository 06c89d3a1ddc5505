/* The c10d backend that stands where a program asks for gloo: every operation becomes
 * calls of the NCCL API on the group's communicator (communicator.h). Tensors are on
 * the CPU and of any layout; sums of small integers, tags and receiving from any source
 * are what NCCL does not have (the first and last are refused, tags are ignored as
 * PyTorch's NCCL backend does). Thread-safe as far as PyTorch's backends are.
 */
#ifndef CRYSTAL_TORCH_BACKEND_H
#define CRYSTAL_TORCH_BACKEND_H

#include <map>

#include "communicator.h"

namespace crystal
{

class Work : public c10d::Work
{
  public:
    Work(int crank, c10d::OpType type, std::shared_ptr<Communicator> communicator,
         std::shared_ptr<Operation> operation);
    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    void synchronize() override;
    bool wait(std::chrono::milliseconds timeout) override;
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  private:
    const std::shared_ptr<Communicator> communicator_;
    const std::shared_ptr<Operation> operation_;
    c10::intrusive_ptr<c10::ivalue::Future> future_; /* under mutex_ of the base */
};

class Backend : public c10d::Backend
{
  public:
    using Tensors = std::vector<at::Tensor>;
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;

    /* LIFE, IS_SPLIT: see Group. */
    Backend(const c10::intrusive_ptr<c10d::Store> &store, int crank, int size,
            std::chrono::milliseconds timeout, int life, bool is_split = false);

    const std::string getBackendName() const override
    {
        return "gloo";
    }
    /* What is not marked as overriding is not in every version's base. */
    c10::intrusive_ptr<Options> getBackendOptions() // NOLINT(*-override)
    {
        return options_;
    }
    c10::intrusive_ptr<GroupOptions> options() const
    {
        return options_;
    }
    bool supportsSplitting() const // NOLINT(*-override)
    {
        return true;
    }
    /* A group of those cranks, in that order; NULL where this one is not among them. */
    c10::intrusive_ptr<c10d::Backend>
    split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &cranks,
          const c10::intrusive_ptr<Options> &opts); // NOLINT(*-override)
    bool supportsCoalescing() const override
    {
        return true;
    }
    void setTimeout(std::chrono::milliseconds timeout); // NOLINT(*-override)
    void setSequenceNumberForGroup() override
    {
    }
    uint64_t getSequenceNumberForGroup() override
    {
        return sequence_;
    }
    void startCoalescing() override;
    WorkPtr endCoalescing() override;
    void abort() override
    {
        end(true);
    }
    void shutdown() override
    {
        end(false);
    }

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &opts) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &opts) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &opts) override;
    WorkPtr
    allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                    const c10d::AllgatherOptions &opts) override;
    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &opts) override;
    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &opts) override;
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &opts) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &opts) override;
    WorkPtr
    reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                    const c10d::ReduceScatterOptions &opts) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs,
                     const c10d::AllToAllOptions &opts) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input,
                          std::vector<int64_t> &output_splits,
                          std::vector<int64_t> &input_splits,
                          const c10d::AllToAllOptions &opts) override;
    WorkPtr send(Tensors &tensors, int peer, int tag) override;
    WorkPtr recv(Tensors &tensors, int peer, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;
    WorkPtr barrier(const c10d::BarrierOptions &opts) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all) override;

  private:
    class Issue; /* one operation on its way to the library */
    void all_gather_one(Issue &issue, Tensors &outputs, at::Tensor &input);
    void all_gather_flat(Issue &issue, at::Tensor &output, at::Tensor &input);
    void reduce_scatter_flat(Issue &issue, at::Tensor &output, at::Tensor &input,
                             const c10d::ReduceOp &reduce_op);

    std::shared_ptr<Communicator> pair(int sender, int receiver);
    WorkPtr point_to_point(c10d::OpType type, const char *name, at::Tensor &tensor,
                           int peer);
    void end(bool abort);

    const c10::intrusive_ptr<GroupOptions> options_;
    const std::shared_ptr<const Group> group_;
    const std::shared_ptr<Communicator> communicator_; /* of all members */
    std::mutex lock_;
    /* Of two members, sender first; under lock_. */
    std::map<std::pair<int, int>, std::shared_ptr<Communicator>> pairs_;
    std::atomic<uint64_t> sequence_{0}; /* operations so far */
    /* The open coalescing block, else NULL; used by the one thread that opened it. */
    std::shared_ptr<Operation> block_;
};

} // namespace crystal

#endif
