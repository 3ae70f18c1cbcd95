#include "runtime/cuda/op_timer.h"

#include <algorithm>
#include <map>

#include "planner/ir/op_schema.h"
#include "runtime/cuda/gemm.h"

namespace meshwright::runtime::cuda {

OpTimer::~OpTimer() {
  for (cudaEvent_t event : events_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

Status OpTimer::Create(const RankSetup& setup, const CudaDevice& device) {
  device_ = &device;
  for (const IssuedOp& op : setup.order.ops) {
    std::string name = planner::ToString(op.op->kind);
    if (planner::RowOf(op.op->kind).work == planner::WorkKind::kMatrixProduct) {
      const OpCall call{setup.context, *op.block, *op.op, *op.instance, *op.task_ptr, nullptr};
      MW_ASSIGN_OR_RETURN(const GemmKey key, GemmEngine::KeyOf(call));
      name += " " + ToString(key);
    }
    names_.push_back(std::move(name));
  }
  events_.resize(2 * names_.size(), nullptr);
  for (cudaEvent_t& event : events_) MW_CUDA_CALL(cudaEventCreate(&event));
  return Status::Ok();
}

Status OpTimer::Before(const IssuedOp& op) {
  MW_CUDA_CALL(
      cudaEventRecord(events_[2 * static_cast<size_t>(op.index)], device_->stream(op.op->stream)));
  return Status::Ok();
}

Status OpTimer::After(const IssuedOp& op) {
  MW_CUDA_CALL(cudaEventRecord(events_[2 * static_cast<size_t>(op.index) + 1],
                               device_->stream(op.op->stream)));
  return Status::Ok();
}

Result<std::vector<OpTime>> OpTimer::Report() const {
  std::map<std::string, OpTime> sums;
  for (size_t i = 0; i < names_.size(); ++i) {
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events_[2 * i], events_[2 * i + 1]));
    OpTime& sum = sums[names_[i]];
    sum.name = names_[i];
    ++sum.count;
    sum.seconds += static_cast<double>(milliseconds) * 1e-3;
  }
  std::vector<OpTime> times;
  for (auto& [name, sum] : sums) times.push_back(std::move(sum));
  std::stable_sort(times.begin(), times.end(),
                   [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace meshwright::runtime::cuda
