/* The NCCL API on host memory that CRYSTAL_NCCL_LIBRARY names: nccl.h's functions and
 * those of runtime/crystal_stream.h, as pointers. Loaded once, at the first group that
 * a program makes, and never unloaded. Thread-safe.
 */
#ifndef CRYSTAL_TORCH_LIBRARY_H
#define CRYSTAL_TORCH_LIBRARY_H

#include <string>

#include "runtime/crystal_site.h"
#include "runtime/crystal_stream.h"
#include "runtime/nccl_abi.h"

namespace crystal
{

struct Library {
#define NCCL_API(result, name, parameters, arguments) result(*name) parameters;
#include "runtime/nccl_api.def"
#undef NCCL_API
    decltype(&crystal_stream_create) stream_create;
    decltype(&crystal_stream_destroy) stream_destroy;
    decltype(&crystal_stream_synchronize) stream_synchronize;
    decltype(&crystal_event_create) event_create;
    decltype(&crystal_event_destroy) event_destroy;
    decltype(&crystal_event_record) event_record;
    decltype(&crystal_event_synchronize) event_synchronize;
    decltype(&crystal_event_query) event_query;
    decltype(&crystal_iteration_hint) iteration_hint;
    crystal_call_site_fn call_site; /* NULL where nobody asks for it */

    /* Loads the library at the first call; throws std::runtime_error, a sentence. */
    static const Library &get();
    /* The loaded library, or NULL where no group was made yet. */
    static const Library *loaded();
    /* The sentence for a failed call of COMM, which may be NULL. */
    std::string text(ncclResult_t result, ncclComm_t comm) const;
};

} // namespace crystal

#endif
