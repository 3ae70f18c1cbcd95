#include "runtime/cuda/host_lanes.h"

#include <cstring>

#include "planner/ir/op_schema.h"

namespace meshwright::runtime::cuda {
namespace {

// Layout of a lane.
constexpr int64_t kScalarsAt = 0;  // learning rate [f64], step [i64]
constexpr int64_t kScalarsBytes = 16;
constexpr int64_t kStatisticsAt = kScalarsAt + kScalarsBytes;  // 3 x f64
constexpr int64_t kIdsAt = 256;
static_assert(sizeof(StepResult) == 3 * sizeof(double));

}  // namespace

Status HostLanes::Create(const RankSetup& setup, int64_t steps_in_flight) {
  ids_at_.assign(setup.order.ops.size(), -1);
  lane_bytes_ = kIdsAt;
  for (const IssuedOp& op : setup.order.ops) {
    const planner::OpKind kind = op.op->kind;
    if (kind != planner::OpKind::kLoadTokens && kind != planner::OpKind::kLoadLabels) continue;
    ids_at_[static_cast<size_t>(op.index)] = lane_bytes_;
    const auto tensor = static_cast<size_t>(op.op->operands[0].tensor);
    lane_bytes_ += op.block->tensors[tensor].bytes();
  }
  read_back_.assign(static_cast<size_t>(steps_in_flight), false);
  return memory_.Allocate(steps_in_flight * lane_bytes_);
}

Status HostLanes::WriteScalars(int64_t step, double rate, std::byte* to, cudaStream_t stream) {
  std::byte* from = Lane(step) + kScalarsAt;
  const int64_t number = step + 1;
  std::memcpy(from, &rate, sizeof(rate));
  std::memcpy(from + sizeof(rate), &number, sizeof(number));
  MW_CUDA_CALL(cudaMemcpyAsync(to, from, kScalarsBytes, cudaMemcpyHostToDevice, stream));
  return Status::Ok();
}

int32_t* HostLanes::Ids(int32_t op, int64_t step) const {
  return reinterpret_cast<int32_t*>(Lane(step) + ids_at_[static_cast<size_t>(op)]);
}

Status HostLanes::ReadBack(int64_t step, const std::byte* from, cudaStream_t stream) {
  MW_CUDA_CALL(cudaMemcpyAsync(Lane(step) + kStatisticsAt, from, sizeof(StepResult),
                               cudaMemcpyDeviceToHost, stream));
  read_back_[static_cast<size_t>(step) % read_back_.size()] = true;
  return Status::Ok();
}

std::optional<StepResult> HostLanes::TakeStatistics(int64_t step) {
  const size_t lane = static_cast<size_t>(step) % read_back_.size();
  if (!read_back_[lane]) return std::nullopt;
  read_back_[lane] = false;
  StepResult statistics;
  std::memcpy(&statistics, Lane(step) + kStatisticsAt, sizeof(statistics));
  return statistics;
}

}  // namespace meshwright::runtime::cuda
