/* Communicators, lanes and operations; see communicator.h. Membership and the unique id
 * go through the program's own store: "crystal/group/<name>" at its root, so that
 * whoever serves the store knows who makes the id, then the id under key "0" of the
 * group's prefix, put there by crank 0.
 */
#include "communicator.h"

#include <cstring>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace crystal
{

void check(ncclResult_t result, ncclComm_t comm, const std::string &what)
{
    if (result != ncclSuccess) {
        TORCH_CHECK_WITH(DistBackendError, false, "crystal: pytorch: ", what, ": ",
                         Library::get().text(result, comm));
    }
}

Event::Event()
{
    check(Library::get().event_create(&handle_), nullptr, "making an event");
}

Event::~Event()
{
    (void)Library::get().event_destroy(handle_); /* nothing can be done about it */
}

Lane::Lane()
{
    check(Library::get().stream_create(&stream_), nullptr, "making a stream");
}

Lane::~Lane()
{
    (void)Library::get().stream_destroy(stream_); /* nothing can be done about it */
}

void Lane::append(const std::shared_ptr<Operation> &operation)
{
    operation->event = std::make_unique<Event>();
    check(Library::get().event_record(operation->event->handle(), stream_),
          operation->comm, operation->name);
    std::lock_guard<std::mutex> guard(lock_);
    queue_.push_back(operation);
}

void Lane::settle(Operation &operation)
{
    const Library &library = Library::get();
    ncclResult_t result = library.event_query(operation.event->handle());
    if (result == ncclInProgress) {
        result = library.event_synchronize(operation.event->handle());
    }
    try {
        check(result, operation.comm, operation.name);
        at::NoGradGuard no_grad;
        for (auto &finisher : operation.finishers) {
            finisher();
        }
    } catch (...) {
        operation.error = std::current_exception();
    }
    operation.finishers.clear();
    operation.tensors.clear();
    operation.done.store(true, std::memory_order_release);
}

void Lane::wait(const std::shared_ptr<Operation> &operation)
{
    if (operation->done.load(std::memory_order_acquire)) {
        return;
    }
    TORCH_CHECK(operation->event, "crystal: pytorch: ", operation->name,
                ": waiting inside the coalescing block that it belongs to");
    /* The answer is read again by settle. */
    (void)Library::get().event_synchronize(operation->event->handle());
    std::lock_guard<std::mutex> guard(lock_);
    while (!operation->done.load(std::memory_order_relaxed)) {
        auto front = queue_.front();
        queue_.pop_front();
        settle(*front);
    }
}

bool Lane::is_done(const std::shared_ptr<Operation> &operation)
{
    reap(false);
    return operation->done.load(std::memory_order_acquire);
}

void Lane::reap(bool all)
{
    std::lock_guard<std::mutex> guard(lock_);
    while (!queue_.empty()) {
        auto front = queue_.front();
        if (!all &&
            Library::get().event_query(front->event->handle()) == ncclInProgress) {
            return;
        }
        queue_.pop_front();
        settle(*front);
    }
}

Communicator::Communicator(c10::intrusive_ptr<c10d::Store> store, int crank, int size,
                           c10::intrusive_ptr<c10d::Backend::Options> options)
    : store_(std::move(store)), crank_(crank), size_(size), options_(std::move(options))
{
}

std::string members_text(const std::vector<uint64_t> &lranks)
{
    std::string text;
    for (size_t i = 0; i < lranks.size();) {
        size_t end = i + 1;
        while (end < lranks.size() && lranks[end] == lranks[end - 1] + 1) {
            end++;
        }
        text += (i ? "," : "") + std::to_string(lranks[i]);
        if (end - i > 1) {
            text += "-" + std::to_string(lranks[end - 1]);
        }
        i = end;
    }
    return text;
}

std::string Communicator::place() const
{
    return "group '" + options_->group_name + "', rank " + std::to_string(crank_) +
           " of " + std::to_string(size_);
}

void Communicator::publish_members()
{
    if (options_->group_name.empty()) {
        return; /* made past torch.distributed: nobody knows it by name */
    }
    std::vector<uint64_t> lranks = options_->global_ranks_in_group;
    if (lranks.empty()) { /* the default group */
        for (int i = 0; i < size_; i++) {
            lranks.push_back(i);
        }
    }
    c10::intrusive_ptr<c10d::Store> root = store_;
    if (auto *prefixed = dynamic_cast<c10d::PrefixStore *>(store_.get())) {
        root = prefixed->getUnderlyingNonPrefixStore();
    }
    root->set("crystal/group/" + options_->group_name, members_text(lranks));
}

ncclComm_t Communicator::get()
{
    std::lock_guard<std::mutex> guard(lock_);
    TORCH_CHECK(!closed_, "crystal: pytorch: ", place(),
                " was shut down; nothing can be sent any more");
    if (comm_) {
        return comm_;
    }
    const Library &library = Library::get();
    ncclUniqueId id;
    publish_members();
    if (crank_ == 0) {
        check(library.GetUniqueId(&id), nullptr, place() + ": making its id");
        auto bytes = reinterpret_cast<const uint8_t *>(&id);
        store_->set("0", std::vector<uint8_t>(bytes, bytes + sizeof(id)));
    } else {
        std::vector<uint8_t> bytes = store_->get("0");
        TORCH_CHECK_WITH(DistBackendError, bytes.size() == sizeof(id),
                         "crystal: pytorch: ", place(), ": the store has an id of ",
                         bytes.size(), " bytes, want ", sizeof(id),
                         "; do all ranks run with the same backend?");
        memcpy(&id, bytes.data(), sizeof(id));
    }
    ncclComm_t comm = nullptr;
    check(library.CommInitRank(&comm, size_, id, crank_), nullptr,
          place() + ": making its communicator");
    comm_ = comm;
    return comm_;
}

Lane &Communicator::lane(int peer, int direction)
{
    std::lock_guard<std::mutex> guard(lock_);
    auto &slot = lanes_[{peer, direction}];
    if (!slot) {
        slot = std::make_unique<Lane>();
    }
    return *slot;
}

Lane &Communicator::collectives()
{
    return lane(-1, 0);
}

Lane &Communicator::sends(int peer)
{
    return lane(peer, 1);
}

Lane &Communicator::receives(int peer)
{
    return lane(peer, 2);
}

static void keep_promise(c10::ivalue::Future &future, const Operation &operation)
{
    if (operation.error) {
        future.setError(operation.error);
    } else {
        future.markCompleted(at::IValue(operation.outputs));
    }
}

void Communicator::complete_later(Lane &lane, std::shared_ptr<Operation> operation,
                                  c10::intrusive_ptr<c10::ivalue::Future> future)
{
    std::lock_guard<std::mutex> guard(lock_);
    if (!promises_) {
        promises_ = std::make_shared<Promises>();
        /* The thread lives as long as the process; the lanes do, too, while it has
         * promises to keep, because each holds this object. */
        std::thread([promises = promises_, self = shared_from_this()] {
            std::unique_lock<std::mutex> held(promises->lock);
            for (;;) {
                promises->changed.wait(held, [&] { return !promises->queue.empty(); });
                Promise promise = std::move(promises->queue.front());
                promises->queue.pop_front();
                held.unlock();
                promise.lane->wait(promise.operation);
                keep_promise(*promise.future, *promise.operation);
                held.lock();
            }
        }).detach();
    }
    {
        std::lock_guard<std::mutex> held(promises_->lock);
        promises_->queue.push_back({&lane, std::move(operation), std::move(future)});
    }
    promises_->changed.notify_one();
}

void Communicator::shutdown(bool abort)
{
    std::lock_guard<std::mutex> guard(lock_);
    closed_ = true;
    if (!comm_) {
        return;
    }
    const Library &library = Library::get();
    ncclResult_t result;
    if (abort) {
        result = library.CommAbort(comm_);
    }
    for (auto &entry : lanes_) {
        entry.second->reap(true);
    }
    if (!abort) {
        result = library.CommDestroy(comm_);
    }
    comm_ = nullptr;
    check(result, nullptr, place() + ": ending its communicator");
}

} // namespace crystal
