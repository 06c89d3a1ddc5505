/* Communicators and the operations in flight on them.
 *
 * A process group has one communicator for collectives and grouped point-to-point
 * calls, made by all members at the first of them: a thousand groups that are never
 * used cost nothing. A send or receive on its own goes over a communicator of two, one
 * for each direction, as programs written for gloo post receives before the sends that
 * these wait for, and the calls on one communicator run one after the other. It is made
 * by a thread of its own, since a receive must not wait for the peer.
 *
 * Each communicator has a stream; operations end in the order of their calls. Time
 * limits of PyTorch do not apply to them: a stage stretches time, and the coordinator
 * knows better who is dead.
 */
#ifndef CRYSTAL_TORCH_COMMUNICATOR_H
#define CRYSTAL_TORCH_COMMUNICATOR_H

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
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
    std::string name;                /* for messages: "all_reduce" */
    const char *site = nullptr;      /* where it was called, if that is asked for */
    std::vector<at::Tensor> tensors; /* kept alive until done */
    std::vector<at::Tensor> outputs; /* what a Future holds */
    std::vector<std::function<void()>> finishers; /* copies to do at the end */
    bool is_open = false; /* a coalescing block, not ended yet */
    /* The rest under the communicator's queue lock; done is written last. */
    std::unique_ptr<Event> event; /* the end of its calls, once they are made */
    std::exception_ptr error;
    std::atomic<bool> done{false};
};

/* PyTorch writes a group's name and members into its backend's options: into fields
 * that all backends have, or, before 2.9, into fields of gloo's own. */
struct NamedOptions : c10d::Backend::Options {
    using c10d::Backend::Options::Options;
    std::vector<uint64_t> global_ranks_in_group;
    std::string group_name;
};
template <typename Base, typename = void> struct OptionsOf {
    using type = NamedOptions;
};
template <typename Base>
struct OptionsOf<Base, std::void_t<decltype(Base::group_name)>> {
    using type = Base;
};
using GroupOptions = OptionsOf<c10d::Backend::Options>::type;

/* What a group's communicators have in common. */
struct Group {
    const c10::intrusive_ptr<c10d::Store> store; /* with the group's prefix */
    const int crank;
    const int size;
    const c10::intrusive_ptr<GroupOptions> options; /* name, members */
    /* Which time the program makes its groups, from 1: a program that ended them all
     * makes new ones of the same names, but not ids: those are under other names. */
    const int life;
    const bool is_split; /* made by split_group, its store is for no device */

    std::string place() const;
    /* Logical ranks by crank. */
    std::vector<uint64_t> members() const;
    /* Puts the members into the store; any number of times. */
    void publish_members(c10d::Store &store) const;
    /* A unique id, known as KEY within the group; get waits for it. */
    void set_id(c10d::Store &store, const std::string &key,
                const ncclUniqueId &id) const;
    ncclUniqueId get_id(c10d::Store &store, const std::string &key) const;

  private:
    bool is_at_root() const
    {
        return life > 1 || is_split;
    }
    std::string name() const;
    std::string id_key(const std::string &key) const;
};

class Communicator : public std::enable_shared_from_this<Communicator>
{
  public:
    using Call = std::function<ncclResult_t(ncclComm_t, ncclStream_t)>;

    /* KEY: where the unique id stands, put there by crank 0 of this communicator. */
    Communicator(std::shared_ptr<const Group> group, std::string key, int crank,
                 int size);
    ~Communicator();
    Communicator(const Communicator &) = delete;
    Communicator &operator=(const Communicator &) = delete;

    /* The handle; the first call makes it and waits for all members. */
    ncclComm_t get();
    ncclStream_t stream(); /* after get */
    /* OPERATION's calls were made on the stream: marks its end. */
    void append(const std::shared_ptr<Operation> &operation);
    /* Makes CALL and appends OPERATION, as soon as the communicator is there; never
     * waits for that. */
    void issue(const std::shared_ptr<Operation> &operation, Call call);
    /* Blocks until OPERATION is done; its error is in it. */
    void wait(const std::shared_ptr<Operation> &operation);
    bool is_done(const std::shared_ptr<Operation> &operation);
    void reap(); /* finishes what is complete */
    /* The calling thread's next calls are of OPERATION. */
    static void tell_site(const Operation &operation);

    /* Marks FUTURE complete when OPERATION is, from a thread of this communicator. */
    void complete_later(const std::shared_ptr<Operation> &operation,
                        c10::intrusive_ptr<c10::ivalue::Future> future);
    /* Ends it; an operation after that is refused. Idempotent. */
    void shutdown(bool abort);

  private:
    using Promise =
        std::pair<std::shared_ptr<Operation>, c10::intrusive_ptr<c10::ivalue::Future>>;

    ncclComm_t make(c10d::Store &store);
    void make_and_issue();
    void settle(Operation &operation);
    void settle_until(const Operation *last);
    void keep_promises();

    const std::shared_ptr<const Group> group_;
    const std::string key_;
    const int crank_;
    const int size_;
    std::mutex make_lock_; /* held while it is being made or ended; taken first */
    std::mutex lock_;      /* the rest */
    std::condition_variable changed_;
    ncclComm_t comm_ = nullptr;
    ncclStream_t stream_ = nullptr;
    bool is_closed_ = false;
    bool is_making_ = false;                                      /* by a thread */
    std::deque<std::pair<std::shared_ptr<Operation>, Call>> due_; /* to be issued */
    std::deque<std::shared_ptr<Operation>> queue_;                /* in stream order */
    std::deque<Promise> promises_;
    bool has_keeper_ = false; /* a thread keeps the promises */
};

/* Group members as text: ranges "0-7" and single ranks, in the order of their cranks.
 */
std::string members_text(const std::vector<uint64_t> &lranks);

} // namespace crystal

#endif
