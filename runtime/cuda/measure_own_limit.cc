#include "runtime/cuda/measure_own_limit.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "planner/ir/op_schema.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/step_tables.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;
using planner::WorkKind;

/// Seconds of one of several runs in a row on the compute stream.
Result<double> TimeInPlace(const CudaDevice& device, const std::function<Status()>& run) {
  constexpr int kWarmUps = 2;
  constexpr int kRuns = 8;
  const cudaStream_t stream = device.stream(planner::kComputeStream);
  cudaEvent_t events[2] = {};
  for (cudaEvent_t& event : events) MW_CUDA_CALL(cudaEventCreate(&event));
  const auto measure = [&]() -> Result<double> {
    for (int i = 0; i < kWarmUps; ++i) MW_RETURN_IF_ERROR(run());
    MW_CUDA_CALL(cudaEventRecord(events[0], stream));
    for (int i = 0; i < kRuns; ++i) MW_RETURN_IF_ERROR(run());
    MW_CUDA_CALL(cudaEventRecord(events[1], stream));
    MW_CUDA_CALL(cudaEventSynchronize(events[1]));
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events[0], events[1]));
    return static_cast<double>(milliseconds) * 1e-3 / kRuns;
  };
  Result<double> seconds = measure();
  for (cudaEvent_t event : events) static_cast<void>(cudaEventDestroy(event));
  return seconds;
}

/// Bytes a second, read and written, of copies inside the arena.
Result<double> CopyRate(const CudaDevice& device, std::byte* arena, int64_t arena_bytes) {
  const int64_t bytes = std::min(arena_bytes / 2, int64_t{1} << 30) / 256 * 256;
  MW_ASSIGN_OR_RETURN(const double seconds, TimeInPlace(device, [&]() -> Status {
                        MW_CUDA_CALL(cudaMemcpyAsync(
                            arena + bytes, arena, static_cast<size_t>(bytes),
                            cudaMemcpyDeviceToDevice, device.stream(planner::kComputeStream)));
                        return Status::Ok();
                      }));
  return 2.0 * static_cast<double>(bytes) / seconds;
}

/// Bytes that the op moves; of a bucket those of the part that the rank owns.
double BytesOf(const RankContext& context, const IssuedOp& op, const planner::OpWork& work) {
  const auto bytes = static_cast<double>(work.bytes_read + work.bytes_written);
  const OpKind kind = op.op->kind;
  if (kind != OpKind::kOptimizerStep && kind != OpKind::kSquaredNorm) return bytes;
  const int32_t bucket = op.op->attributes.bucket;
  const auto whole =
      static_cast<double>(context.program->buckets[static_cast<size_t>(bucket)].elements);
  const double share = static_cast<double>(OwnRangeOf(context, bucket).size) / whole;
  const planner::TensorView* state =
      kind == OpKind::kOptimizerStep ? planner::Find(*op.block, *op.op, "state") : nullptr;
  // The states have the owned part alone; they are read and written.
  const double owned = state == nullptr ? 0.0 : 2.0 * static_cast<double>(state->bytes());
  return (bytes - owned) * share + owned;
}

}  // namespace

Result<OwnLimit> MeasureOwnLimit(const RankSetup& setup, CudaDevice& device, std::byte* arena) {
  const RankContext& context = setup.context;
  const planner::RankProgram& program = *context.program;
  const GemmChoices& choices = device.gemm().choices();
  MW_ASSIGN_OR_RETURN(const double copy_rate, CopyRate(device, arena, program.arena.size));
  std::map<const planner::Op*, double> attention;
  OwnLimit limit;
  for (const IssuedOp& op : setup.order.ops) {
    const OpCall call{context, *op.block, *op.op, *op.instance, *op.task_ptr, arena};
    const planner::OpWork work = planner::WorkOf(*op.block, *op.op, program);
    switch (work.kind) {
      case WorkKind::kMatrixProduct: {
        MW_ASSIGN_OR_RETURN(const GemmKey key, GemmEngine::KeyOf(call));
        const auto known = choices.find(key);
        if (known == choices.end() || known->second.seconds <= 0) {
          return NotFound("product " + ToString(key) + " was never timed; run with tuning");
        }
        limit.products_s += known->second.seconds;
        break;
      }
      case WorkKind::kAttention: {
        auto known = attention.find(op.op);
        if (known == attention.end()) {
          const Kernel kernel = CudaKernels().kernels[static_cast<size_t>(op.op->kind)];
          MW_ASSIGN_OR_RETURN(const double seconds,
                              TimeInPlace(device, [&] { return kernel(call); }));
          known = attention.emplace(op.op, seconds).first;
        }
        limit.attention_s += known->second;
        break;
      }
      case WorkKind::kElementwise:
        limit.memory_s += BytesOf(context, op, work) / copy_rate;
        break;
      case WorkKind::kCollective:
      case WorkKind::kMessage:
      case WorkKind::kHost:
        break;
    }
  }
  return limit;
}

}  // namespace meshwright::runtime::cuda
