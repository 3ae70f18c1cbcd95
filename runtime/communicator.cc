#include "runtime/communicator.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshwright::runtime {
namespace {

template <typename T>
void Add(std::byte* acc, const std::byte* add, int64_t count) {
  T* a = reinterpret_cast<T*>(acc);
  const T* b = reinterpret_cast<const T*>(add);
  for (int64_t i = 0; i < count; ++i) a[i] += b[i];
}

Status CheckGroup(const planner::Group& group, size_t index, int world_size) {
  std::vector<int32_t> sorted = group.ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool repeated = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (sorted.empty() || sorted.front() < 0 || sorted.back() >= world_size || repeated) {
    return InvalidInput(
        fmt::format("group {} ({}): ranks [{}] must be distinct and in 0..{}; lower the plan again",
                    index, group.name, fmt::join(group.ranks, ","), world_size - 1));
  }
  return Status::Ok();
}

}  // namespace

const char* ToString(CommOp op) {
  switch (op) {
    case CommOp::kAllReduce:
      return "all_reduce";
    case CommOp::kAllGather:
      return "all_gather";
    case CommOp::kReduceScatter:
      return "reduce_scatter";
    case CommOp::kBroadcast:
      return "broadcast";
    case CommOp::kAllToAll:
      return "all_to_all";
    case CommOp::kShift:
      return "shift";
    case CommOp::kBarrier:
      return "barrier";
    case CommOp::kSplit:
      return "split";
    case CommOp::kSend:
      return "send";
    case CommOp::kRecv:
      return "recv";
  }
  return "?";
}

Result<std::vector<std::unique_ptr<Communicator>>> CreateGroups(
    Communicator& world, const std::vector<planner::Group>& groups) {
  std::vector<std::unique_ptr<Communicator>> out;
  out.reserve(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    const planner::Group& group = groups[i];
    MW_RETURN_IF_ERROR(CheckGroup(group, i, world.size()));
    const auto at = std::find(group.ranks.begin(), group.ranks.end(), world.rank());
    const bool member = at != group.ranks.end();
    const int key = static_cast<int>(at - group.ranks.begin());
    MW_ASSIGN_OR_RETURN(auto made, world.Split(member ? 0 : -1, key, group.name));
    out.push_back(std::move(made));
  }
  return out;
}

void AddElements(std::byte* acc, const std::byte* add, int64_t count, planner::DType dtype) {
  switch (dtype) {
    case planner::DType::kF32:
      return Add<float>(acc, add, count);
    case planner::DType::kF64:
      return Add<double>(acc, add, count);
    case planner::DType::kI64:
      return Add<uint64_t>(acc, add, count);  // the same bits, and overflow is defined
    case planner::DType::kBf16:
    case planner::DType::kI32:
      break;
  }
  MW_CHECK(false && "dtype is checked before");
}

Status CheckSummable(planner::DType dtype, const std::string& communicator) {
  if (dtype == planner::DType::kF32 || dtype == planner::DType::kF64 ||
      dtype == planner::DType::kI64) {
    return Status::Ok();
  }
  return Unsupported(
      fmt::format("{}: sums of {} are not supported on CPU ranks; use fp32, fp64 or int64",
                  communicator, planner::ToString(dtype)));
}

}  // namespace meshwright::runtime
