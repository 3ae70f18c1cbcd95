#include "runtime/cuda/task_timer.h"

#include <cmath>
#include <map>
#include <utility>

namespace meshwright::runtime::cuda {
namespace {

Result<int64_t> ElapsedNs(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0.0F;
  MW_CUDA_CALL(cudaEventElapsedTime(&ms, from, to));
  return std::llround(static_cast<double>(ms) * 1e6);
}

}  // namespace

TaskTimer::~TaskTimer() {
  for (cudaEvent_t event : all_) static_cast<void>(cudaEventDestroy(event));
}

Status TaskTimer::Create(const RankSetup& setup, const CudaDevice& device, bool traffic) {
  device_ = &device;
  const size_t tasks = setup.context.program->tasks.size();
  const size_t ops = setup.order.ops.size();
  std::vector<bool> timed(tasks, traffic);
  for (const IssuedOp& op : setup.order.ops) {
    if (op.op->stream == planner::kComputeStream) timed[static_cast<size_t>(op.task)] = true;
  }
  begins_task_.assign(ops, false);
  ending_of_.assign(ops, -1);
  std::vector<bool> begun(tasks, false);
  std::map<std::pair<int32_t, size_t>, int32_t> last;  // (task, stream) -> op
  for (const IssuedOp& op : setup.order.ops) {
    if (!timed[static_cast<size_t>(op.task)]) continue;
    const auto index = static_cast<size_t>(op.index);
    begins_task_[index] = !begun[static_cast<size_t>(op.task)];
    begun[static_cast<size_t>(op.task)] = true;
    last[{op.task, static_cast<size_t>(op.op->stream)}] = op.index;
  }
  for (const auto& [key, op] : last) {
    ending_of_[static_cast<size_t>(op)] = static_cast<int32_t>(endings_.size());
    endings_.push_back({key.first, key.second});
  }
  const auto make = [&](cudaEvent_t* event) -> Status {
    MW_CUDA_CALL(cudaEventCreate(event));
    all_.push_back(*event);
    return Status::Ok();
  };
  MW_RETURN_IF_ERROR(make(&origin_));
  lanes_.resize(StepRecorder::kStepsInFlight + 1);  // the base of a step is the one before it
  for (Lane& lane : lanes_) {
    lane.begins.assign(tasks, nullptr);
    lane.ends.assign(endings_.size(), nullptr);
    lane.streams.assign(setup.order.streams_used.size(), nullptr);
    for (size_t t = 0; t < tasks; ++t) {
      if (begun[t]) MW_RETURN_IF_ERROR(make(&lane.begins[t]));
    }
    for (cudaEvent_t& e : lane.ends) MW_RETURN_IF_ERROR(make(&e));
    for (size_t s = 0; s < lane.streams.size(); ++s) {
      if (setup.order.streams_used[s]) MW_RETURN_IF_ERROR(make(&lane.streams[s]));
    }
  }
  return Status::Ok();
}

Status TaskTimer::SetOrigin(int64_t now_ns) {
  MW_CUDA_CALL(cudaEventRecord(origin_, device_->stream(planner::kComputeStream)));
  MW_CUDA_CALL(cudaEventSynchronize(origin_));
  base_ = origin_;
  base_ns_ = now_ns;
  return Status::Ok();
}

Status TaskTimer::Before(const IssuedOp& op, int64_t step) {
  if (!begins_task_[static_cast<size_t>(op.index)]) return Status::Ok();
  MW_CUDA_CALL(cudaEventRecord(At(step).begins[static_cast<size_t>(op.task)],
                               device_->stream(op.op->stream)));
  return Status::Ok();
}

Status TaskTimer::After(const IssuedOp& op, int64_t step) {
  const int32_t ending = ending_of_[static_cast<size_t>(op.index)];
  if (ending < 0) return Status::Ok();
  MW_CUDA_CALL(
      cudaEventRecord(At(step).ends[static_cast<size_t>(ending)], device_->stream(op.op->stream)));
  return Status::Ok();
}

Status TaskTimer::EndStep(int64_t step) {
  Lane& lane = At(step);
  for (size_t s = 0; s < lane.streams.size(); ++s) {
    if (lane.streams[s] == nullptr) continue;
    MW_CUDA_CALL(
        cudaEventRecord(lane.streams[s], device_->stream(static_cast<planner::StreamId>(s))));
  }
  return Status::Ok();
}

Result<bool> TaskTimer::Done(int64_t step) const {
  for (cudaEvent_t event : At(step).streams) {
    if (event == nullptr) continue;
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaErrorNotReady) return false;
    if (state != cudaSuccess) return CudaStatus(state, "cudaEventQuery", "the device failed");
  }
  return true;
}

Status TaskTimer::Report(int64_t step, StepRecorder& recorder) {
  const Lane& lane = At(step);
  // Milliseconds as float lose microseconds over minutes, so a step counts from the one before.
  cudaEvent_t first = nullptr;
  for (size_t t = 0; t < lane.begins.size() && first == nullptr; ++t) first = lane.begins[t];
  if (first == nullptr) return Status::Ok();
  MW_ASSIGN_OR_RETURN(const int64_t shift, ElapsedNs(base_, first));
  base_ = first;
  base_ns_ += shift;
  std::vector<int64_t> begins(lane.begins.size(), 0);
  for (size_t t = 0; t < lane.begins.size(); ++t) {
    if (lane.begins[t] == nullptr) continue;
    MW_ASSIGN_OR_RETURN(const int64_t at, ElapsedNs(base_, lane.begins[t]));
    begins[t] = base_ns_ + at;
  }
  std::vector<int64_t> ends(begins);
  for (size_t i = 0; i < endings_.size(); ++i) {
    MW_ASSIGN_OR_RETURN(const int64_t at, ElapsedNs(base_, lane.ends[i]));
    int64_t& end = ends[static_cast<size_t>(endings_[i].task)];
    end = std::max(end, base_ns_ + at);
  }
  for (size_t t = 0; t < begins.size(); ++t) {
    if (lane.begins[t] == nullptr) continue;
    recorder.OnTask(static_cast<int32_t>(t), step, begins[t], ends[t]);
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
