// What gpu_run.h, measure_gpu.h and measure_communication.h say in a build without CUDA.
#include "runtime/gpu_run.h"
#include "runtime/measure_communication.h"
#include "runtime/measure_gpu.h"

namespace meshwright::runtime {
namespace {

Status NoCuda() {
  return Unsupported(
      "this build has no CUDA; install the toolkit with cuDNN and NCCL and build again, or use CPU "
      "ranks (--device cpu)");
}

}  // namespace

Status CheckGpuBuild() {
  return NoCuda();
}

Result<int> VisibleGpus() {
  return NoCuda();
}

Result<RunSummary> ExecuteOnGpu(const planner::Programs&, Store&, Communicator&, DataSource&,
                                const RunOptions&, const GpuOptions&) {
  return NoCuda();
}

Result<GpuMeasurement> MeasureGpu(const MeasureGpuOptions&) {
  return NoCuda();
}

Result<CommunicationMeasurement> MeasureCommunication(const LaunchFacts&,
                                                      const MeasureCommunicationOptions&) {
  return NoCuda();
}

}  // namespace meshwright::runtime
