#include "runtime/cuda/nccl_world.h"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/nccl_communicator.h"
#include "runtime/cuda/nccl_start.h"
#include "runtime/cuda/nccl_warm_up.h"
#include "runtime/deadline.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr double kAbortS = 10.0;        ///< for an abort in an error path of ours
constexpr double kLookForAbortS = 0.1;  ///< between looks at the store while we wait for NCCL

/// Runs `body` on a thread of its own and waits for it; nullopt when it takes too long. The thread
/// then runs on, so `body` owns what it uses.
std::optional<Status> RunWithin(double seconds, std::function<Status()> body) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Status> result;
  };
  const auto shared = std::make_shared<Shared>();
  try {
    std::thread([shared, body = std::move(body)] {
      Status status = body();
      const std::lock_guard lock(shared->mutex);
      shared->result = std::move(status);
      shared->changed.notify_all();
    }).detach();
  } catch (const std::system_error& e) {
    return RunFailed(fmt::format("no thread for a call of NCCL: {}", e.what()));
  }
  std::unique_lock lock(shared->mutex);
  shared->changed.wait_until(lock, Deadline(seconds).end(),
                             [&] { return shared->result.has_value(); });
  return shared->result;
}

}  // namespace

class NcclWorld::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Store& store, const NcclOptions& options, int device)
      : store_(store), options_(options), device_(device) {}

  Status Start();
  Status MakeGroups(const std::vector<planner::Group>& groups,
                    const std::vector<std::vector<GroupUse>>& uses);
  Status CheckAsync();
  bool Abort(double deadline_s);
  Status Close();
  DeviceCommunicator* group(size_t index) const {
    return index < groups_.size() ? groups_[index].get() : nullptr;
  }

 private:
  using Communicators = std::vector<std::shared_ptr<NcclCommunicator>>;

  Communicators All() {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  std::shared_ptr<NcclCommunicator> Add(NcclFacts facts) {
    auto made = std::make_shared<NcclCommunicator>(std::move(facts));
    const std::lock_guard lock(mutex_);
    all_.push_back(made);
    return made;
  }
  Status Await(NcclCommunicator& communicator, const char* call, const std::string& what);
  Status Split(const std::vector<planner::Group>& groups, const std::vector<size_t>& batch);
  Status WarmUpGroup(const std::shared_ptr<NcclCommunicator>& c, const std::vector<GroupUse>& uses);

  Store& store_;
  const NcclOptions options_;
  const int device_;
  std::shared_ptr<NcclCommunicator> world_;
  Communicators groups_;  ///< by group; nullptr where this rank is no member
  std::mutex mutex_;
  Communicators all_;  ///< guarded by mutex_; in the order in which they were made
  std::atomic<bool> ended_{false};
};

/// Polls a communicator that does not block until its last call is done.
Status NcclWorld::Impl::Await(NcclCommunicator& communicator, const char* call,
                              const std::string& what) {
  const Deadline deadline(options_.deadline_s);
  double next_look_s = options_.deadline_s - kLookForAbortS;
  while (true) {
    ncclResult_t state = ncclInProgress;
    ncclComm_t handle = nullptr;
    const ncclResult_t asked = communicator.With(1.0, [&](ncclComm_t c) {
      handle = c;
      return ncclCommGetAsyncError(c, &state);
    });
    const ncclResult_t result = asked == ncclSuccess ? state : asked;
    if (result != ncclInProgress) return NcclStatus(result, call, what, handle);
    if (communicator.aborted()) return RunFailed(fmt::format("{}: {}: aborted", what, call));
    if (deadline.left_s() <= next_look_s) {
      next_look_s = deadline.left_s() - kLookForAbortS;
      MW_ASSIGN_OR_RETURN(const auto reason, ReadAbort(store_));
      if (reason) return *reason;
    }
    if (deadline.passed()) {
      return RunFailed(fmt::format("{}: {}: not done within {} s; another rank does not take part",
                                   what, call, options_.deadline_s));
    }
    deadline.Sleep(5e-4);
  }
}

Status NcclWorld::Impl::Start() {
  MW_RETURN_IF_ERROR(CheckNcclEnvironment(store_.world()));
  MW_CUDA_CALL(cudaSetDevice(device_));
  if (store_.world() == 1) return Status::Ok();
  MW_ASSIGN_OR_RETURN(const ncclUniqueId id,
                      ExchangeNcclId(store_, options_.deadline_s, device_, options_.share_devices));
  // Calls of a communicator that does not block take a thread each, so this one serves only for
  // splitting, by a deadline; those that are split block, which costs nothing on a stream.
  world_ = Add({"all ranks", planner::CommunicatorKind::kWorld, -1, store_.world(), store_.rank(),
                options_.other_ctas, nullptr});
  ncclConfig_t config = world_->Config(false);
  const std::string what =
      fmt::format("start of NCCL, rank {} of {}", store_.rank(), store_.world());
  const ncclResult_t begun =
      ncclCommInitRankConfig(world_->slot(), store_.world(), id, store_.rank(), &config);
  if (begun != ncclSuccess && begun != ncclInProgress) {
    return NcclStatus(begun, "ncclCommInitRankConfig", what, nullptr);
  }
  world_->SetReady();  // NCCL aborts one that it is making, too
  return Await(*world_, "ncclCommInitRankConfig", what);
}

/// One split for groups that share no rank: the color is the index of the group.
Status NcclWorld::Impl::Split(const std::vector<planner::Group>& groups,
                              const std::vector<size_t>& batch) {
  int color = NCCL_SPLIT_NOCOLOR;
  int position = 0;
  for (const size_t g : batch) {
    const auto& ranks = groups[g].ranks;
    const auto at = std::find(ranks.begin(), ranks.end(), store_.rank());
    if (at == ranks.end()) continue;
    color = static_cast<int>(g);
    position = static_cast<int>(at - ranks.begin());
    groups_[g] = Add({groups[g].name, groups[g].kind, static_cast<int32_t>(g),
                      static_cast<int>(ranks.size()), position, CtasOf(options_, groups[g].kind),
                      options_.observer});
  }
  const std::string what =
      color < 0 ? fmt::format("split for group '{}' and its like", groups[batch.front()].name)
                : fmt::format("split for group '{}'", groups[static_cast<size_t>(color)].name);
  NcclCommunicator* made = color < 0 ? nullptr : groups_[static_cast<size_t>(color)].get();
  // NCCL may write to it after we have given up.
  auto none = std::make_unique<ncclComm_t>(nullptr);
  ncclConfig_t config = made != nullptr ? made->Config(true) : world_->Config(true);
  const ncclResult_t begun = world_->With(1.0, [&](ncclComm_t world) {
    return ncclCommSplit(world, color, position, made != nullptr ? made->slot() : none.get(),
                         &config);
  });
  Status status = begun == ncclSuccess || begun == ncclInProgress
                      ? Await(*world_, "ncclCommSplit", what)
                      : NcclStatus(begun, "ncclCommSplit", what, nullptr);
  if (status.ok() && made != nullptr) status = Await(*made, "ncclCommSplit", what);
  if (status.ok() && made != nullptr) made->SetReady();
  if (!status.ok()) none.release();  // NOLINT(bugprone-unused-return-value)
  return status;
}

Status NcclWorld::Impl::WarmUpGroup(const std::shared_ptr<NcclCommunicator>& c,
                                    const std::vector<GroupUse>& uses) {
  // Its calls block in NCCL when another rank is gone.
  const double deadline_s = options_.deadline_s;
  const auto done =
      RunWithin(deadline_s + 5.0, [c, uses, deadline_s, device = device_]() -> Status {
        MW_CUDA_CALL(cudaSetDevice(device));
        return WarmUp(*c, uses, deadline_s);
      });
  if (done) return *done;
  return RunFailed(
      fmt::format("warm-up of {}: NCCL has not returned within {} s; another rank does "
                  "not take part",
                  c->Describe(), deadline_s));
}

Status NcclWorld::Impl::MakeGroups(const std::vector<planner::Group>& groups,
                                   const std::vector<std::vector<GroupUse>>& uses) {
  if (!groups_.empty() || uses.size() != groups.size()) {
    return InvalidInput(
        fmt::format("NCCL groups: {} groups with {} lists of uses, {} made before; "
                    "make them once, with a list for each",
                    groups.size(), uses.size(), groups_.size()));
  }
  groups_.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& ranks = groups[g].ranks;
    for (const int32_t r : ranks) {
      if (r >= 0 && r < store_.world() && std::count(ranks.begin(), ranks.end(), r) == 1) continue;
      return InvalidInput(
          fmt::format("group '{}': rank {} must be once in it and in 0..{}; lower "
                      "the plan again",
                      groups[g].name, r, store_.world() - 1));
    }
    if (ranks.size() != 1 || ranks[0] != store_.rank()) continue;
    groups_[g] = std::make_shared<NcclCommunicator>(
        NcclFacts{groups[g].name, groups[g].kind, static_cast<int32_t>(g), 1, 0, 0, nullptr});
  }
  const auto batches = SplitBatches(groups);
  for (const auto& batch : batches) MW_RETURN_IF_ERROR(Split(groups, batch));
  for (const auto& batch : batches) {
    for (const size_t g : batch) {
      if (groups_[g] == nullptr) continue;
      MW_RETURN_IF_ERROR(WarmUpGroup(groups_[g], uses[g]));
      groups_[g]->StartCounting();
    }
  }
  return Status::Ok();
}

Status NcclWorld::Impl::CheckAsync() {
  for (const auto& communicator : All()) MW_RETURN_IF_ERROR(communicator->CheckAsync());
  return Status::Ok();
}

bool NcclWorld::Impl::Abort(double deadline_s) {
  ended_ = true;
  const Communicators all = All();
  for (const auto& communicator : all) communicator->Forbid();
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    size_t done = 0;
  };
  const auto shared = std::make_shared<Shared>();
  // At once: one that waits for another's kernel must not keep it from being aborted.
  for (const auto& communicator : all) {
    try {
      std::thread([communicator, shared, device = device_] {
        (void)cudaSetDevice(device);  // NCCL sets it, too
        communicator->Abort();
        const std::lock_guard lock(shared->mutex);
        ++shared->done;
        shared->changed.notify_all();
      }).detach();
    } catch (const std::system_error&) {
      return false;
    }
  }
  std::unique_lock lock(shared->mutex);
  return shared->changed.wait_until(lock, Deadline(deadline_s).end(),
                                    [&] { return shared->done == all.size(); });
}

Status NcclWorld::Impl::Close() {
  if (ended_.exchange(true)) return Status::Ok();
  const auto done = RunWithin(options_.deadline_s, [all = All(), device = device_]() -> Status {
    MW_CUDA_CALL(cudaSetDevice(device));
    Status first;
    for (auto at = all.rbegin(); at != all.rend(); ++at) {
      const Status status = (*at)->Close();
      if (first.ok()) first = status;
    }
    return first;
  });
  if (done) return *done;
  return RunFailed(
      fmt::format("end of NCCL: not done within {} s; another rank has not come to its "
                  "end",
                  options_.deadline_s));
}

int CtasOf(const NcclOptions& options, planner::CommunicatorKind kind) {
  switch (kind) {
    case planner::CommunicatorKind::kTensor:
      return options.tensor_ctas;
    case planner::CommunicatorKind::kData:
    case planner::CommunicatorKind::kTied:
      return options.data_ctas;
    case planner::CommunicatorKind::kEdge:
      return options.edge_ctas;
    case planner::CommunicatorKind::kWorld:
    case planner::CommunicatorKind::kKeyValueCopies:
      break;
  }
  return options.other_ctas;
}

NcclWorld::NcclWorld(std::shared_ptr<Impl> impl, int rank, int size)
    : impl_(std::move(impl)), rank_(rank), size_(size) {}

Result<std::unique_ptr<NcclWorld>> NcclWorld::Create(Store& store, const NcclOptions& options,
                                                     int device) {
  if (!(options.deadline_s > 0) || options.deadline_s > kMaxDeadlineS) {
    return InvalidInput(fmt::format("NCCL option deadline_s: {} s; must be in 0..{} s",
                                    options.deadline_s, kMaxDeadlineS));
  }
  for (const int ctas :
       {options.tensor_ctas, options.data_ctas, options.edge_ctas, options.other_ctas}) {
    if (ctas >= 0 && ctas <= 32) continue;
    return InvalidInput(
        fmt::format("NCCL options: {} CTAs; must be in 1..32, or 0 to let NCCL choose", ctas));
  }
  auto impl = std::make_shared<Impl>(store, options, device);
  if (Status status = impl->Start(); !status.ok()) {
    impl->Abort(kAbortS);
    return status;
  }
  return std::unique_ptr<NcclWorld>(new NcclWorld(std::move(impl), store.rank(), store.world()));
}

NcclWorld::~NcclWorld() {
  [[maybe_unused]] const Status status = impl_->Close();
}

Status NcclWorld::MakeGroups(const std::vector<planner::Group>& groups,
                             const std::vector<std::vector<GroupUse>>& uses) {
  Status status = impl_->MakeGroups(groups, uses);
  if (!status.ok()) impl_->Abort(kAbortS);
  return status;
}

DeviceCommunicator* NcclWorld::group(size_t index) const {
  return impl_->group(index);
}
Status NcclWorld::CheckAsync() {
  return impl_->CheckAsync();
}
bool NcclWorld::Abort(double deadline_s) {
  return impl_->Abort(deadline_s);
}
Status NcclWorld::Close() {
  return impl_->Close();
}

std::string NcclVersionText() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL of unknown version";
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace meshwright::runtime::cuda
