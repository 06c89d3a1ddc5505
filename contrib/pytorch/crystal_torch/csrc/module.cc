/* The Python module crystal_torch._backend: the backend's class, with the constructor
 * of torch.distributed.ProcessGroupGloo, and the end of an iteration. */
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>

#include "backend.h"

PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

namespace py = pybind11;

static c10::intrusive_ptr<crystal::Backend>
make(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
     std::chrono::milliseconds timeout)
{
    crystal::Library::get(); /* a missing library is said here, not later */
    return c10::make_intrusive<crystal::Backend>(store, rank, size, timeout);
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
    py::module_ c10d = py::module_::import("torch._C._distributed_c10d");
    py::class_<crystal::Backend, c10::intrusive_ptr<crystal::Backend>>(
        module, "ProcessGroupCrystal", c10d.attr("Backend"))
        .def(py::init(&make), py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout") = kBackendDefaultTimeout,
             py::call_guard<py::gil_scoped_release>())
        /* torch.distributed writes the group's name and members here. */
        .def_property_readonly("options", &crystal::Backend::getBackendOptions);
    module.def("iteration_hint", &iteration_hint,
               py::call_guard<py::gil_scoped_release>(),
               "Tells the library that an iteration of the training ended.");
}
