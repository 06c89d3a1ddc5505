/* All sources as one: PyTorch's headers cost more to read than these to compile. */
#include "backend.cc"
#include "communicator.cc"
#include "library.cc"
#include "module.cc"
#include "site.cc"
#include "wire.cc"
