#include "runtime/cuda/op_timer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "planner/ir/op_schema.h"
#include "runtime/cuda/gemm.h"

namespace meshwright::runtime::cuda {

OpTimer::~OpTimer() {
  for (cudaEvent_t event : events_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

Status OpTimer::Create(const RankSetup& setup, const CudaDevice& device, int64_t first_step,
                       int64_t steps) {
  device_ = &device;
  first_step_ = first_step;
  steps_ = steps;
  for (const IssuedOp& op : setup.order.ops) {
    std::string name = planner::ToString(op.op->kind);
    if (planner::RowOf(op.op->kind).work == planner::WorkKind::kMatrixProduct) {
      const OpCall call{setup.context, *op.block, *op.op, *op.instance, *op.task_ptr, nullptr};
      MW_ASSIGN_OR_RETURN(const GemmKey key, GemmEngine::KeyOf(call));
      name += " " + ToString(key);
    }
    names_.push_back(std::move(name));
  }
  events_.resize(At(0, steps), nullptr);
  for (cudaEvent_t& event : events_) MW_CUDA_CALL(cudaEventCreate(&event));
  return Status::Ok();
}

Status OpTimer::Before(const IssuedOp& op, int64_t step) {
  if (!times(step)) return Status::Ok();
  MW_CUDA_CALL(cudaEventRecord(events_[At(static_cast<size_t>(op.index), step)],
                               device_->stream(op.op->stream)));
  return Status::Ok();
}

Status OpTimer::After(const IssuedOp& op, int64_t step) {
  if (!times(step)) return Status::Ok();
  MW_CUDA_CALL(cudaEventRecord(events_[At(static_cast<size_t>(op.index), step) + 1],
                               device_->stream(op.op->stream)));
  return Status::Ok();
}

Status OpTimer::ReportTimes(StepRecorder& recorder) const {
  const auto since_first = [&](size_t event, int64_t* ns) -> Status {
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events_.front(), events_[event]));
    *ns = std::llround(static_cast<double>(milliseconds) * 1e6);
    return Status::Ok();
  };
  for (int64_t step = first_step_; step < steps_; ++step) {
    for (size_t i = 0; i < names_.size(); ++i) {
      int64_t start_ns = 0;
      int64_t end_ns = 0;
      MW_RETURN_IF_ERROR(since_first(At(i, step), &start_ns));
      MW_RETURN_IF_ERROR(since_first(At(i, step) + 1, &end_ns));
      recorder.SetOpTimes(static_cast<int32_t>(i), step, start_ns, end_ns);
    }
  }
  return Status::Ok();
}

Result<std::vector<OpTime>> OpTimer::Report() const {
  std::map<std::string, OpTime> sums;
  for (size_t i = 0; i < names_.size(); ++i) {
    const size_t event = At(i, steps_ - 1);
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events_[event], events_[event + 1]));
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
