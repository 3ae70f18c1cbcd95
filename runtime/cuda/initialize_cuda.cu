#include <cuda_bf16.h>

#include <algorithm>

#include "planner/ir/hash.h"
#include "runtime/counter_random.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/initialize_cuda.h"
#include "runtime/cuda/step_tables.h"
#include "runtime/parameter_layout.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::InitKind;
using planner::ParameterEntry;

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;

/// One segment of a parameter: element (o, k) of [outer, run] lies at local + o * local_stride + k
/// here and at global + o * global_stride + k in the whole parameter.
struct Segment {
  int64_t outer, run;
  int64_t local, local_stride;
  int64_t global, global_stride;
  int64_t valid;  ///< elements from here on are padding
  InitKind kind;
  double std;
  uint64_t seed, stream;
};

template <typename T>
__global__ void Fill(Segment s, T* area) {
  const int64_t n = s.outer * s.run;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    const int64_t o = i / s.run;
    const int64_t k = i - o * s.run;
    const int64_t global = s.global + o * s.global_stride + k;
    double value = 0.0;
    if (global < s.valid) {
      if (s.kind == InitKind::kOnes) value = 1.0;
      if (s.kind == InitKind::kNormal) {
        value = s.std * StandardNormal(s.seed, s.stream, static_cast<uint64_t>(global));
      }
    }
    area[s.local + o * s.local_stride + k] = static_cast<T>(static_cast<float>(value));
  }
}

__global__ void Widen(const __nv_bfloat16* parameter, float* master, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    master[i] = __bfloat162float(parameter[i]);
  }
}

unsigned Blocks(int64_t n) {
  return static_cast<unsigned>(std::clamp<int64_t>((n + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

int64_t ValidElements(const ParameterEntry& entry) {
  if (entry.valid_rows <= 0) return INT64_MAX;
  int64_t n = entry.valid_rows;
  for (size_t d = 1; d < entry.global_shape.size(); ++d) n *= entry.global_shape[d];
  return n;
}

Status FillOne(const RankContext& rank, const ParameterEntry& entry, uint64_t seed, std::byte* area,
               cudaStream_t stream) {
  const AxisSplit split = SplitAtCutAxis(entry);
  for (const planner::ShardSegment& segment :
       planner::SegmentsOf(entry, rank.binding->tp_index, rank.grid.tp)) {
    const Segment s = {split.outer,
                       segment.length * split.inner,
                       entry.offset + segment.local_begin * split.inner,
                       split.local * split.inner,
                       segment.global_begin * split.inner,
                       split.global * split.inner,
                       ValidElements(entry),
                       entry.init,
                       entry.init_std,
                       seed,
                       planner::Hasher().Add(entry.name).value()};
    if (s.outer * s.run == 0) continue;
    const unsigned blocks = Blocks(s.outer * s.run);
    if (rank.facts.dtypes.compute == DType::kBf16) {
      Fill<<<blocks, kThreads, 0, stream>>>(s, reinterpret_cast<__nv_bfloat16*>(area));
    } else {
      Fill<<<blocks, kThreads, 0, stream>>>(s, reinterpret_cast<float*>(area));
    }
    MW_CUDA_CALL(cudaGetLastError());
  }
  return Status::Ok();
}

/// Master weights follow the moments in the state of a bucket.
Status FillMaster(const RankContext& rank, int32_t bucket, std::byte* arena, cudaStream_t stream) {
  const planner::ArenaLayout& layout = rank.program->arena;
  const planner::Bucket& b = rank.program->buckets[static_cast<size_t>(bucket)];
  const OwnRange own = OwnRangeOf(rank, bucket);
  if (own.size == 0) return Status::Ok();
  const int64_t moments = rank.facts.optimizer == planner::OptimizerKind::kAdamW ? 2 : 0;
  const auto* parameter =
      reinterpret_cast<const __nv_bfloat16*>(arena + layout.parameters) + b.offset + own.begin;
  auto* master =
      reinterpret_cast<float*>(arena + layout.optimizer + b.optimizer_offset) + moments * own.size;
  Widen<<<Blocks(own.size), kThreads, 0, stream>>>(parameter, master, own.size);
  MW_CUDA_CALL(cudaGetLastError());
  return Status::Ok();
}

}  // namespace

Status InitializeOnGpu(const RankContext& rank, uint64_t seed, std::byte* arena,
                       cudaStream_t stream) {
  const planner::ArenaLayout& layout = rank.program->arena;
  // Areas are disjoint and in order: parameters, gradients, optimizer, io.
  MW_CUDA_CALL(cudaMemsetAsync(arena + layout.parameters, 0,
                               static_cast<size_t>(layout.io - layout.parameters), stream));
  for (const ParameterEntry& entry : rank.program->parameters) {
    MW_RETURN_IF_ERROR(FillOne(rank, entry, seed, arena + layout.parameters, stream));
  }
  if (!rank.facts.dtypes.master) return Status::Ok();
  for (size_t b = 0; b < rank.program->buckets.size(); ++b) {
    MW_RETURN_IF_ERROR(FillMaster(rank, static_cast<int32_t>(b), arena, stream));
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
