/* The Python module crystal_torch._backend: the backend's class, with the constructor
 * of torch.distributed.ProcessGroupGloo, and the end of an iteration. */
#include <chrono>

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend.h"
#include "site.h"

PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

namespace py = pybind11;

/* How often the default group has been made, where STORE is a new group's. */
static int count_lives(const c10::intrusive_ptr<c10d::Store> &store)
{
    /* Under the GIL. The default group has a backend for each device over one store. */
    static int lives;
    static c10::weak_intrusive_ptr<c10d::Store> last =
        c10::weak_intrusive_ptr<c10d::Store>(c10::intrusive_ptr<c10d::Store>());

    auto *prefixed = dynamic_cast<c10d::PrefixStore *>(store.get());
    if (!prefixed) {
        return 1;
    }
    auto group_store = prefixed->getUnderlyingStore();
    py::object is_initialized =
        py::module_::import("torch.distributed").attr("is_initialized");
    if (!is_initialized().cast<bool>() && last.lock() != group_store) {
        lives++;
        last = c10::weak_intrusive_ptr<c10d::Store>(group_store);
    }
    return lives;
}

static c10::intrusive_ptr<crystal::Backend>
make(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
     std::chrono::milliseconds timeout, bool enable_reconfigure)
{
    TORCH_CHECK(!enable_reconfigure, "crystal: pytorch: groups that change their "
                                     "members (enable_reconfigure) are not possible");
    int life = count_lives(store);
    py::gil_scoped_release released;
    crystal::Library::get(); /* a missing library is said here, not later */
    return c10::make_intrusive<crystal::Backend>(store, rank, size, timeout, life);
}

/* ns of finding a call's place, for the benchmark: the mean of COUNT times, each with
 * the GIL released before, as when operations are called. */
static double time_sites(int count)
{
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < count; i++) {
        TORCH_CHECK(crystal::site_here(), "crystal: pytorch: nothing called this");
    }
    std::chrono::duration<double, std::nano> spent =
        std::chrono::steady_clock::now() - begin;
    return count > 0 ? spent.count() / count : 0;
}

static void iteration_hint()
{
    const crystal::Library *library = crystal::Library::loaded();
    if (library) {
        library->iteration_hint();
    }
}

PYBIND11_MODULE(_backend, module)
{
    for (const char *package : {"torch", "crystal_torch"}) {
        py::object path = py::module_::import(package).attr("__path__");
        crystal::site_ignore((path[py::int_(0)].cast<std::string>() + "/").c_str());
    }
    py::module_ c10d = py::module_::import("torch._C._distributed_c10d");
    py::class_<crystal::NamedOptions, c10::intrusive_ptr<crystal::NamedOptions>>(
        module, "Options", c10d.attr("Backend").attr("Options"))
        .def_readwrite("global_ranks_in_group",
                       &crystal::NamedOptions::global_ranks_in_group)
        .def_readwrite("group_name", &crystal::NamedOptions::group_name);
    py::class_<crystal::Backend, c10::intrusive_ptr<crystal::Backend>>(
        module, "ProcessGroupCrystal", c10d.attr("Backend"))
        .def(py::init(&make), py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout") = kBackendDefaultTimeout,
             py::arg("enable_reconfigure") = false)
        /* torch.distributed writes the group's name and members here. */
        .def_property_readonly("options", &crystal::Backend::options);
    module.def("time_sites", &time_sites, py::call_guard<py::gil_scoped_release>(),
               "ns of finding where the caller is, the mean of so many times.");
    module.def("iteration_hint", &iteration_hint,
               py::call_guard<py::gil_scoped_release>(),
               "Tells the library that an iteration of the training ended.");
}
