/* One process group's communicator, its streams, and the operations in flight.
 *
 * An operation is given to a lane: a stream of the library with the operations that
 * were put on it, first come, first done. Collectives and grouped point-to-point calls
 * share one lane, as PyTorch's NCCL backend has one stream for them. A send or receive
 * on its own gets a lane per peer and direction: programs written for gloo post
 * receives before the sends that they depend on, and one queue would stand still.
 *
 * The communicator is made at the first operation: a thousand groups that are never
 * used cost nothing. Time limits of PyTorch do not apply to operations: a stage
 * stretches time, and the coordinator knows better who is dead.
 */
#ifndef CRYSTAL_TORCH_COMMUNICATOR_H
#define CRYSTAL_TORCH_COMMUNICATOR_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "library.h"

namespace crystal
{

/* Throws c10::DistBackendError "crystal: pytorch: WHAT: text" unless RESULT is success.
 */
void check(ncclResult_t result, ncclComm_t comm, const std::string &what);

class Event
{
  public:
    Event();
    ~Event();
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;
    crystal_event_t handle() const
    {
        return handle_;
    }

  private:
    crystal_event_t handle_ = nullptr;
};

/* One operation, from its call until its results stand where the program wants them. */
struct Operation {
    std::string name;                             /* for messages: "all_reduce" */
    std::vector<at::Tensor> tensors;              /* kept alive until done */
    std::vector<at::Tensor> outputs;              /* what a Future holds */
    std::vector<std::function<void()>> finishers; /* copies to do at the end */
    std::unique_ptr<Event> event;                 /* set by Lane::append */
    ncclComm_t comm = nullptr;                    /* for the text of an error */
    /* Written once under the lane's lock; done last, with release order. */
    std::exception_ptr error;
    std::atomic<bool> done{false};
};

class Lane
{
  public:
    Lane();
    ~Lane();
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;
    ncclStream_t stream() const
    {
        return stream_;
    }
    /* OPERATION's calls are on the stream: marks its end. */
    void append(const std::shared_ptr<Operation> &operation);
    /* Blocks until OPERATION is done; its error is in it. */
    void wait(const std::shared_ptr<Operation> &operation);
    bool is_done(const std::shared_ptr<Operation> &operation);
    /* Finishes what is complete; blocks for all of it where told to. */
    void reap(bool all);

  private:
    void settle(Operation &operation); /* lock held */
    ncclStream_t stream_ = nullptr;
    std::mutex lock_;
    std::deque<std::shared_ptr<Operation>> queue_; /* under lock_, in stream order */
};

class Communicator : public std::enable_shared_from_this<Communicator>
{
  public:
    Communicator(c10::intrusive_ptr<c10d::Store> store, int crank, int size,
                 c10::intrusive_ptr<c10d::Backend::Options> options);
    /* The handle; made by the first call, which all members must make. */
    ncclComm_t get();
    Lane &collectives();
    Lane &sends(int peer);
    Lane &receives(int peer);
    /* Marks FUTURE complete when OPERATION is, from a thread of this communicator. */
    void complete_later(Lane &lane, std::shared_ptr<Operation> operation,
                        c10::intrusive_ptr<c10::ivalue::Future> future);
    /* Ends it; an operation after that is refused. Idempotent. */
    void shutdown(bool abort);

  private:
    struct Promise {
        Lane *lane;
        std::shared_ptr<Operation> operation;
        c10::intrusive_ptr<c10::ivalue::Future> future;
    };
    struct Promises {
        std::mutex lock;
        std::condition_variable changed;
        std::deque<Promise> queue; /* under lock */
    };
    Lane &lane(int peer, int direction);
    void publish_members();
    std::string place() const;
    const c10::intrusive_ptr<c10d::Store> store_;
    const int crank_;
    const int size_;
    const c10::intrusive_ptr<c10d::Backend::Options> options_;
    std::mutex lock_;
    ncclComm_t comm_ = nullptr;                                  /* under lock_ */
    bool closed_ = false;                                        /* under lock_ */
    std::map<std::pair<int, int>, std::unique_ptr<Lane>> lanes_; /* under lock_ */
    std::shared_ptr<Promises> promises_;                         /* under lock_ */
};

/* Group members as text: ranges "0-7" and single ranks, in the order of their cranks.
 */
std::string members_text(const std::vector<uint64_t> &lranks);

} // namespace crystal

#endif
