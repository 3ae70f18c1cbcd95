#include "runtime/cuda/gpu_streams.h"

namespace meshwright::runtime::cuda {

GpuStreams::~GpuStreams() {
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

Status GpuStreams::Create(int events) {
  for (int i = 0; i < events; ++i) {
    cudaEvent_t event = nullptr;
    MW_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    events_.push_back(event);
  }
  return Status::Ok();
}

void GpuStreams::Note(cudaError_t error, const char* call) {
  if (status_.ok() && error != cudaSuccess) status_ = CudaStatus(error, call);
}

void GpuStreams::Wait(planner::StreamId stream, planner::EventId event) {
  if (!status_.ok() || device_.stream(stream) == nullptr) return;
  Note(cudaStreamWaitEvent(device_.stream(stream), events_[static_cast<size_t>(event)]),
       "cudaStreamWaitEvent");
}

void GpuStreams::Launch(planner::StreamId stream, const StreamWork& work) {
  if (status_.ok()) status_ = enqueue_(stream, work);
}

void GpuStreams::Record(planner::StreamId stream, planner::EventId event) {
  if (!status_.ok()) return;
  Note(cudaEventRecord(events_[static_cast<size_t>(event)], device_.stream(stream)),
       "cudaEventRecord");
}

}  // namespace meshwright::runtime::cuda
