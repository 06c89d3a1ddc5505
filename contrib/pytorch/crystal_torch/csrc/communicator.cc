/* Communicators and operations; see communicator.h. Membership and the unique id go
 * through the program's own store: "crystal/group/<name>" at its root, so that whoever
 * serves the store knows who makes the id, then the id within the group's prefix: under
 * key "0" that of the group's communicator, put there by rank 0 of the group; under
 * "<sender>:<receiver>" that of two, put there by the sender.
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

std::string Group::place() const
{
    return "group '" + options->group_name + "', rank " + std::to_string(crank) +
           " of " + std::to_string(size);
}

std::vector<uint64_t> Group::members() const
{
    std::vector<uint64_t> lranks = options->global_ranks_in_group;
    if (lranks.empty()) { /* the default group */
        for (int i = 0; i < size; i++) {
            lranks.push_back(i);
        }
    }
    return lranks;
}

static c10d::Store &root_of(c10d::Store &any)
{
    auto *prefixed = dynamic_cast<c10d::PrefixStore *>(&any);
    return prefixed ? *prefixed->getUnderlyingNonPrefixStore() : any;
}

void Group::publish_members(c10d::Store &any) const
{
    if (options->group_name.empty()) {
        return; /* made past torch.distributed: nobody knows it by name */
    }
    root_of(any).set("crystal/group/" + name(), members_text(members()));
}

std::string Group::name() const
{
    return life > 1 ? "life" + std::to_string(life) + "." + options->group_name
                    : options->group_name;
}

/* From the root: in the words of groups of the first life. */
std::string Group::id_key(const std::string &key) const
{
    return is_at_root() ? "default_pg/0//" + name() + "//cpu//" + key : key;
}

void Group::set_id(c10d::Store &any, const std::string &key,
                   const ncclUniqueId &id) const
{
    auto bytes = reinterpret_cast<const uint8_t *>(&id);
    (is_at_root() ? root_of(any) : any)
        .set(id_key(key), std::vector<uint8_t>(bytes, bytes + sizeof(id)));
}

ncclUniqueId Group::get_id(c10d::Store &any, const std::string &key) const
{
    ncclUniqueId id;
    std::vector<uint8_t> bytes = (is_at_root() ? root_of(any) : any).get(id_key(key));
    TORCH_CHECK_WITH(DistBackendError, bytes.size() == sizeof(id),
                     "crystal: pytorch: ", place(), ": the store has an id of ",
                     bytes.size(), " bytes, want ", sizeof(id),
                     "; do all ranks run with the same backend?");
    memcpy(&id, bytes.data(), sizeof(id));
    return id;
}

Communicator::Communicator(std::shared_ptr<const Group> group, std::string key,
                           int crank, int size)
    : group_(std::move(group)), key_(std::move(key)), crank_(crank), size_(size)
{
}

/* A communicator that was not shut down is left to the end of the process: its peers
 * may be using it. */
Communicator::~Communicator()
{
    if (stream_) {
        (void)Library::get().stream_destroy(stream_); /* nothing can be done about it */
    }
}

ncclComm_t Communicator::make(c10d::Store &store)
{
    const Library &library = Library::get();
    ncclUniqueId id;
    group_->publish_members(store);
    if (crank_ == 0) {
        check(library.GetUniqueId(&id), nullptr, group_->place() + ": making its id");
        group_->set_id(store, key_, id);
    } else {
        id = group_->get_id(store, key_);
    }
    ncclComm_t comm = nullptr;
    check(library.CommInitRank(&comm, size_, id, crank_), nullptr,
          group_->place() + ": making a communicator of " + std::to_string(size_));
    ncclStream_t stream = nullptr;
    check(library.stream_create(&stream), comm, "making a stream");
    std::lock_guard<std::mutex> guard(lock_);
    stream_ = stream;
    comm_ = comm;
    return comm;
}

ncclComm_t Communicator::get()
{
    std::lock_guard<std::mutex> making(make_lock_);
    {
        std::lock_guard<std::mutex> guard(lock_);
        TORCH_CHECK(!is_closed_, "crystal: pytorch: ", group_->place(),
                    " was shut down; nothing can be sent any more");
        if (comm_) {
            return comm_;
        }
    }
    return make(*group_->store);
}

ncclStream_t Communicator::stream()
{
    std::lock_guard<std::mutex> guard(lock_);
    return stream_;
}

void Communicator::append(const std::shared_ptr<Operation> &operation)
{
    auto event = std::make_unique<Event>();
    check(Library::get().event_record(event->handle(), stream_), comm_,
          operation->name);
    std::lock_guard<std::mutex> guard(lock_);
    operation->event = std::move(event);
    queue_.push_back(operation);
    changed_.notify_all();
}

void Communicator::tell_site(const Operation &operation)
{
    if (Library::get().call_site) {
        (void)Library::get().call_site(operation.site);
    }
}

/* A thread: makes the communicator, then what was asked for meanwhile. */
void Communicator::make_and_issue()
{
    std::exception_ptr error;
    try {
        /* A store's client serves one request at a time, and this one may take long. */
        auto store = group_->store->clone();
        std::lock_guard<std::mutex> making(make_lock_);
        make(*store);
    } catch (...) {
        error = std::current_exception();
    }
    std::unique_lock<std::mutex> guard(lock_);
    while (!due_.empty()) {
        auto [operation, call] = std::move(due_.front());
        due_.pop_front();
        if (!error) {
            guard.unlock();
            try {
                tell_site(*operation);
                check(call(comm_, stream_), comm_, operation->name);
                append(operation);
            } catch (...) {
                error = std::current_exception();
            }
            guard.lock();
        }
        if (error) {
            operation->error = error;
            operation->tensors.clear();
            operation->done.store(true, std::memory_order_release);
        }
    }
    is_making_ = false;
    changed_.notify_all();
}

void Communicator::issue(const std::shared_ptr<Operation> &operation, Call call)
{
    {
        std::lock_guard<std::mutex> guard(lock_);
        TORCH_CHECK(!is_closed_, "crystal: pytorch: ", group_->place(),
                    " was shut down; nothing can be sent any more");
        if (!comm_ || is_making_) {
            due_.emplace_back(operation, std::move(call));
            if (!is_making_) {
                is_making_ = true;
                std::thread([self = shared_from_this()] {
                    self->make_and_issue();
                }).detach();
            }
            return;
        }
    }
    reap();
    tell_site(*operation);
    check(call(comm_, stream_), comm_, operation->name);
    append(operation);
}

/* Lock held. The operation's end was reached, or all before it. */
void Communicator::settle(Operation &operation)
{
    const Library &library = Library::get();
    ncclResult_t result = library.event_query(operation.event->handle());
    if (result == ncclInProgress) {
        result = library.event_synchronize(operation.event->handle());
    }
    try {
        check(result, comm_, operation.name);
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

void Communicator::wait(const std::shared_ptr<Operation> &operation)
{
    if (operation->done.load(std::memory_order_acquire)) {
        return;
    }
    TORCH_CHECK(!operation->is_open, "crystal: pytorch: ", operation->name,
                ": waiting inside the coalescing block that it belongs to");
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return operation->event || operation->done.load(); });
    if (operation->done.load(std::memory_order_relaxed)) {
        return;
    }
    crystal_event_t event = operation->event->handle(); /* ours until destroyed */
    guard.unlock();
    /* The answer is read again by settle. */
    (void)Library::get().event_synchronize(event);
    guard.lock();
    while (!operation->done.load(std::memory_order_relaxed)) {
        auto front = queue_.front();
        queue_.pop_front();
        settle(*front);
    }
}

bool Communicator::is_done(const std::shared_ptr<Operation> &operation)
{
    reap();
    return operation->done.load(std::memory_order_acquire);
}

void Communicator::reap()
{
    std::lock_guard<std::mutex> guard(lock_);
    while (!queue_.empty()) {
        auto front = queue_.front();
        if (Library::get().event_query(front->event->handle()) == ncclInProgress) {
            return;
        }
        queue_.pop_front();
        settle(*front);
    }
}

/* A thread, for the rest of the process. */
void Communicator::keep_promises()
{
    std::unique_lock<std::mutex> guard(lock_);
    for (;;) {
        changed_.wait(guard, [&] { return !promises_.empty(); });
        auto [operation, future] = std::move(promises_.front());
        promises_.pop_front();
        guard.unlock();
        wait(operation);
        if (operation->error) {
            future->setError(operation->error);
        } else {
            future->markCompleted(at::IValue(operation->outputs));
        }
        guard.lock();
    }
}

void Communicator::complete_later(const std::shared_ptr<Operation> &operation,
                                  c10::intrusive_ptr<c10::ivalue::Future> future)
{
    std::lock_guard<std::mutex> guard(lock_);
    promises_.emplace_back(operation, std::move(future));
    if (!has_keeper_) {
        has_keeper_ = true;
        std::thread([self = shared_from_this()] { self->keep_promises(); }).detach();
    }
    changed_.notify_all();
}

void Communicator::shutdown(bool abort)
{
    const Library &library = Library::get();
    {
        std::unique_lock<std::mutex> guard(lock_);
        is_closed_ = true;
        if (!abort) {
            changed_.wait(guard, [&] { return !is_making_; });
        }
    }
    std::lock_guard<std::mutex> making(make_lock_);
    std::lock_guard<std::mutex> guard(lock_);
    if (!comm_) {
        return;
    }
    ncclResult_t result = abort ? library.CommAbort(comm_) : ncclSuccess;
    while (!queue_.empty()) {
        auto front = queue_.front();
        queue_.pop_front();
        settle(*front);
    }
    if (!abort) {
        result = library.CommDestroy(comm_);
    }
    comm_ = nullptr;
    check(result, nullptr, group_->place() + ": ending a communicator");
}

} // namespace crystal
