#include "worker_proc/cuda/gpu/nccl_communicator.h"

// The CUDA toolkit does not bring it.
#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace flotilla::cuda {
namespace {

// What is begun in a step is there at once, mostly; joining takes seconds.
constexpr std::chrono::microseconds kSpin{200};
constexpr useconds_t kLookEveryUs = 100;

// The functions of the library that are used; all or none.
struct Nccl {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  std::string name;
};

StatusOr<Nccl> LoadNccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnimplementedError(dlerror());
  Nccl nccl;
  std::string missing;
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  find(&nccl.get_version, "ncclGetVersion");
  find(&nccl.get_error_string, "ncclGetErrorString");
  find(&nccl.get_unique_id, "ncclGetUniqueId");
  find(&nccl.init_rank, "ncclCommInitRankConfig");
  find(&nccl.get_async_error, "ncclCommGetAsyncError");
  find(&nccl.abort, "ncclCommAbort");
  find(&nccl.group_start, "ncclGroupStart");
  find(&nccl.group_end, "ncclGroupEnd");
  find(&nccl.all_gather, "ncclAllGather");
  find(&nccl.broadcast, "ncclBroadcast");
  if (!missing.empty()) return absl::UnimplementedError(StrCat("libnccl.so.2 has no ", missing));
  int version = 0;
  nccl.get_version(&version);
  nccl.name = StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  return nccl;
}

const StatusOr<Nccl>& Library() {
  static const StatusOr<Nccl> nccl = LoadNccl();
  return nccl;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Nccl& nccl, GiveUp give_up, cudaStream_t stream)
      : nccl_(nccl), give_up_(std::move(give_up)), stream_(stream) {}
  ~NcclCommunicator() override { Abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Calls return at once and are asked for: so a rank that is gone holds nobody up.
  Status Join(const CommunicatorId& id, uint32_t rank, uint32_t ranks) {
    ncclUniqueId unique;
    static_assert(sizeof(unique) == sizeof(id));
    std::memcpy(&unique, id.data(), sizeof(unique));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun = nccl_.init_rank(&communicator_, static_cast<int>(ranks), unique,
                                               static_cast<int>(rank), &config);
    return Settle(begun, "ncclCommInitRankConfig");
  }

  const char* name() const override { return nccl_.name.c_str(); }

  Status AllGather(const void* from, std::span<const size_t> bytes, std::byte* to) override {
    if (communicator_ == nullptr) return absl::AbortedError("the communicator has ended");
    if (std::all_of(bytes.begin(), bytes.end(), [&](size_t n) { return n == bytes[0]; })) {
      return Settle(nccl_.all_gather(from, to, bytes[0], ncclUint8, communicator_, stream_),
                    "ncclAllGather");
    }
    // Each rank's share by a broadcast, all of them as one operation.
    RETURN_IF_ERROR(ToStatus(nccl_.group_start(), "ncclGroupStart"));
    ncclResult_t first = ncclSuccess;
    for (size_t r = 0; r < bytes.size(); ++r) {
      const ncclResult_t result = nccl_.broadcast(from, to, bytes[r], ncclUint8,
                                                  static_cast<int>(r), communicator_, stream_);
      if (first == ncclSuccess && result != ncclInProgress) first = result;
      to += bytes[r];
    }
    const ncclResult_t ended = nccl_.group_end();
    RETURN_IF_ERROR(ToStatus(first, "ncclBroadcast"));
    return Settle(ended, "ncclGroupEnd");
  }

  Status Error() override {
    if (communicator_ == nullptr) return OkStatus();  // whoever aborted it knows why
    ncclResult_t state = ncclSuccess;
    RETURN_IF_ERROR(ToStatus(nccl_.get_async_error(communicator_, &state), "NCCL"));
    return state == ncclInProgress ? OkStatus() : ToStatus(state, "NCCL");
  }

  void Abort() override {
    if (communicator_ != nullptr) nccl_.abort(std::exchange(communicator_, nullptr));
  }

 private:
  Status ToStatus(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return OkStatus();
    const std::string text = StrCat(what, ": ", nccl_.get_error_string(result));
    if (result == ncclInvalidUsage) return absl::UnimplementedError(text);
    return absl::InternalError(text);
  }
  // Until the call that returned this is done.
  Status Settle(ncclResult_t result, const char* what) {
    const auto begin = std::chrono::steady_clock::now();
    while (result == ncclInProgress) {
      RETURN_IF_ERROR(ToStatus(nccl_.get_async_error(communicator_, &result), what));
      if (result != ncclInProgress) break;
      if (give_up_()) return absl::AbortedError(StrCat(what, ": other ranks did not come"));
      if (std::chrono::steady_clock::now() - begin > kSpin) usleep(kLookEveryUs);
    }
    return ToStatus(result, what);
  }

  const Nccl& nccl_;
  const GiveUp give_up_;
  const cudaStream_t stream_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace

StatusOr<CommunicatorId> NewNcclId() {
  RETURN_IF_ERROR(Library().status());
  ncclUniqueId unique;
  if (const ncclResult_t result = Library()->get_unique_id(&unique); result != ncclSuccess) {
    return absl::UnimplementedError(
        StrCat("ncclGetUniqueId: ", Library()->get_error_string(result)));
  }
  CommunicatorId id;
  std::memcpy(id.data(), &unique, sizeof(unique));
  return id;
}

StatusOr<std::unique_ptr<Communicator>> JoinNccl(const CommunicatorId& id, uint32_t rank,
                                                 uint32_t ranks, GiveUp give_up,
                                                 cudaStream_t stream) {
  RETURN_IF_ERROR(Library().status());
  auto communicator = std::make_unique<NcclCommunicator>(*Library(), std::move(give_up), stream);
  RETURN_IF_ERROR(communicator->Join(id, rank, ranks));
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace flotilla::cuda

#else

namespace flotilla::cuda {

StatusOr<CommunicatorId> NewNcclId() {
  return absl::UnimplementedError("this was built without nccl.h (package libnccl-dev)");
}
StatusOr<std::unique_ptr<Communicator>> JoinNccl(const CommunicatorId& /*id*/, uint32_t /*rank*/,
                                                 uint32_t /*ranks*/, GiveUp /*give_up*/,
                                                 cudaStream_t /*stream*/) {
  return NewNcclId().status();
}

}  // namespace flotilla::cuda
#endif
