#include "runtime/cuda/nccl_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/nccl_communicator.h"
#include "runtime/launch.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr char kIdKey[] = "nccl/id";

std::string DeviceKey(int rank) {
  return fmt::format("nccl/device/{}", rank);
}

/// Waits for a key of another rank or the reason for which the run ended.
Result<std::string> GetUnlessAborted(Store& store, const std::string& key, double deadline_s,
                                     const std::string& what) {
  MW_ASSIGN_OR_RETURN(auto found, store.WaitAny({kAbortKey, key}, deadline_s));
  if (!found) {
    return RunFailed(fmt::format("start of NCCL: {} has not come within {} s", what, deadline_s));
  }
  if (found->index == 0) return DecodeStatus(found->value);
  return std::move(found->value);
}

/// Which GPU of the world the current device is.
Result<std::string> DeviceName(int device) {
  cudaDeviceProp properties;
  MW_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  std::string name;
  for (const char byte : properties.uuid.bytes) {
    name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

/// Rank 0 looks at all GPUs before it gives out the id, so that all ranks get the same error.
Result<std::string> IdOrRefusal(Store& store, double deadline_s, bool share) {
  std::vector<std::string> devices;
  for (int r = 0; r < store.world(); ++r) {
    MW_ASSIGN_OR_RETURN(devices.emplace_back(), GetUnlessAborted(store, DeviceKey(r), deadline_s,
                                                                 fmt::format("rank {}", r)));
    const auto same = std::find(devices.begin(), devices.end(), devices.back()) - devices.begin();
    if (same == r || share) continue;
    return EncodeStatus(InvalidInput(
        fmt::format("rank {} and rank {} use the same GPU ({}); start at most one rank a GPU, "
                    "make more GPUs visible, or pass --share-gpus to try the plan out",
                    same, r, devices.back())));
  }
  ncclUniqueId id;
  MW_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId", "start of NCCL", nullptr));
  return EncodeStatus(Status(StatusCode::kOk, std::string(id.internal, sizeof(id.internal))));
}

}  // namespace

Result<ncclUniqueId> ExchangeNcclId(Store& store, double deadline_s, int device, bool share) {
  if (share && setenv("NCCL_HOSTID", fmt::format("rank{}", store.rank()).c_str(), 1) != 0) {
    return RunFailed("start of NCCL: NCCL_HOSTID cannot be set; run without --share-gpus");
  }
  MW_ASSIGN_OR_RETURN(const std::string mine, DeviceName(device));
  MW_RETURN_IF_ERROR(store.Set(DeviceKey(store.rank()), mine));
  if (store.rank() == 0) {
    MW_ASSIGN_OR_RETURN(const std::string text, IdOrRefusal(store, deadline_s, share));
    MW_RETURN_IF_ERROR(store.Set(kIdKey, text));
  }
  MW_ASSIGN_OR_RETURN(const std::string text,
                      GetUnlessAborted(store, kIdKey, deadline_s, "the id of rank 0"));
  const Status answer = DecodeStatus(text);
  if (!answer.ok()) return answer;
  ncclUniqueId id;
  if (answer.message().size() != sizeof(id.internal)) {
    return RunFailed(
        fmt::format("start of NCCL: an id of {} bytes, this NCCL has {}; start all "
                    "ranks with the same version",
                    answer.message().size(), sizeof(id.internal)));
  }
  std::memcpy(id.internal, answer.message().data(), sizeof(id.internal));
  return id;
}

Status CheckNcclEnvironment(int world) {
  const auto blocking = ProcessEnvironment()("CUDA_LAUNCH_BLOCKING");
  if (world == 1 || !blocking || *blocking == "0" || blocking->empty()) return Status::Ok();
  return InvalidInput(
      fmt::format("CUDA_LAUNCH_BLOCKING={} with {} ranks: operations of several ranks would wait "
                  "for each other "
                  "for ever; unset it",
                  *blocking, world));
}

}  // namespace meshwright::runtime::cuda
