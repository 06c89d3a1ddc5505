/* Loads the library that stands for NCCL; see library.h. */
#include "library.h"

#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <stdexcept>

#include "runtime/env.h"

namespace crystal
{

static std::atomic<const Library *> the_library{nullptr};

template <typename Function>
static void find(void *handle, const char *path, const char *name, Function &function)
{
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (!function) {
        throw std::runtime_error(std::string("crystal: pytorch: '") + path +
                                 "' has no function " + name + "; " +
                                 CRYSTAL_ENV_NCCL_LIBRARY +
                                 " must name libcrystal-hostccl.so or "
                                 "libcrystal-nccl.so of this version");
    }
}

static const Library *load()
{
    const char *path = getenv(CRYSTAL_ENV_NCCL_LIBRARY);
    if (!path || !*path) {
        throw std::runtime_error("crystal: pytorch: " CRYSTAL_ENV_NCCL_LIBRARY
                                 " is not set; start the program through scrystal or "
                                 "srun --crystal-logical-ranks");
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        throw std::runtime_error(std::string("crystal: pytorch: " //
                                             CRYSTAL_ENV_NCCL_LIBRARY
                                             " cannot be loaded: ") +
                                 dlerror());
    }
    decltype(&crystal_stream_abi_version) abi_version;
    find(handle, path, "crystal_stream_abi_version", abi_version);
    if (abi_version() != CRYSTAL_STREAM_ABI) {
        throw std::runtime_error(
            std::string("crystal: pytorch: '") + path + "' speaks stream ABI " +
            std::to_string(abi_version()) + " and crystal-torch " +
            std::to_string(CRYSTAL_STREAM_ABI) +
            "; build both from one version (contrib/pytorch/install)");
    }
    auto library = new Library();
#define NCCL_API(result, name, parameters, arguments) \
    find(handle, path, "nccl" #name, library->name);
#include "runtime/nccl_api.def"
#undef NCCL_API
    find(handle, path, "crystal_stream_create", library->stream_create);
    find(handle, path, "crystal_stream_destroy", library->stream_destroy);
    find(handle, path, "crystal_stream_synchronize", library->stream_synchronize);
    find(handle, path, "crystal_event_create", library->event_create);
    find(handle, path, "crystal_event_destroy", library->event_destroy);
    find(handle, path, "crystal_event_record", library->event_record);
    find(handle, path, "crystal_event_synchronize", library->event_synchronize);
    find(handle, path, "crystal_event_query", library->event_query);
    find(handle, path, "crystal_iteration_hint", library->iteration_hint);
    library->call_site =
        reinterpret_cast<crystal_call_site_fn>(dlsym(handle, "crystal_call_site"));
    if (library->call_site && !library->call_site(nullptr)) {
        library->call_site = nullptr;
    }
    the_library.store(library, std::memory_order_release);
    return library;
}

const Library &Library::get()
{
    static const Library *library = load();
    return *library;
}

const Library *Library::loaded()
{
    return the_library.load(std::memory_order_acquire);
}

std::string Library::text(ncclResult_t result, ncclComm_t comm) const
{
    const char *last = GetLastError(comm);
    if (last && *last) {
        return last;
    }
    const char *name = GetErrorString(result);
    return name ? name : "error " + std::to_string(result);
}

} // namespace crystal
