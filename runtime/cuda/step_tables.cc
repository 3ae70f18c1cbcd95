#include "runtime/cuda/step_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/cuda/cuda_device.h"
#include "runtime/parameter_layout.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::ParameterEntry;

const planner::Bucket& BucketOf(const RankContext& rank, int32_t bucket) {
  const auto& buckets = rank.program->buckets;
  MW_CHECK(bucket >= 0 && static_cast<size_t>(bucket) < buckets.size());
  return buckets[static_cast<size_t>(bucket)];
}

/// Collects runs of elements: clipped to the own range, joined where they touch, cut into chunks.
class Chunker {
 public:
  explicit Chunker(OwnRange own) : own_(own) {}

  void Add(int64_t begin, int64_t end, bool decay) {
    begin = std::max(begin, own_.begin);
    end = std::min(end, own_.begin + own_.size);
    if (begin >= end) return;
    if (end_ > begin_ && begin == end_ && decay == decay_) {
      end_ = end;
      return;
    }
    Flush();
    begin_ = begin, end_ = end, decay_ = decay;
  }

  std::vector<WorkChunk> Take() {
    Flush();
    return std::move(chunks_);
  }

 private:
  void Flush() {
    while (begin_ < end_) {
      const int64_t stop = std::min(end_, (begin_ / kChunkElements + 1) * kChunkElements);
      chunks_.push_back({begin_, static_cast<int32_t>(stop - begin_), decay_ ? 1 : 0});
      begin_ = stop;
    }
  }

  OwnRange own_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  bool decay_ = false;
  std::vector<WorkChunk> chunks_;
};

template <typename F>
void ForEachEntry(const RankContext& rank, int32_t bucket, F f) {
  const planner::Bucket& b = BucketOf(rank, bucket);
  for (const ParameterEntry& entry : rank.program->parameters) {
    if (entry.bucket != bucket) continue;
    const int64_t at = entry.offset - b.offset;
    MW_CHECK(at >= 0 && at + entry.elements() <= b.elements);
    f(entry, at);
  }
}

}  // namespace

OwnRange OwnRangeOf(const RankContext& rank, int32_t bucket) {
  const planner::Bucket& b = BucketOf(rank, bucket);
  if (rank.grid.sharding == planner::Sharding::kNone) return {0, b.elements};
  MW_CHECK(b.elements % rank.grid.dp == 0);
  const int64_t shard = b.elements / rank.grid.dp;
  return {rank.binding->dp_index * shard, shard};
}

std::vector<WorkChunk> CountedChunks(const RankContext& rank, int32_t bucket) {
  // Without sharding all data-parallel ranks hold the same gradient: the first one counts it.
  const bool counts = rank.grid.sharding != planner::Sharding::kNone || rank.binding->dp_index == 0;
  Chunker chunker(counts ? OwnRangeOf(rank, bucket) : OwnRange{});
  ForEachEntry(rank, bucket, [&](const ParameterEntry& entry, int64_t at) {
    if (entry.tied_copy) return;
    const AxisSplit split = SplitAtCutAxis(entry);
    const auto segments = planner::SegmentsOf(entry, rank.binding->tp_index, rank.grid.tp);
    for (int64_t o = 0; o < split.outer; ++o) {
      for (const planner::ShardSegment& segment : segments) {
        if (!segment.owner) continue;
        const int64_t begin = at + (o * split.local + segment.local_begin) * split.inner;
        chunker.Add(begin, begin + segment.length * split.inner, false);
      }
    }
  });
  return chunker.Take();
}

std::vector<WorkChunk> UpdatedChunks(const RankContext& rank, int32_t bucket) {
  Chunker chunker(OwnRangeOf(rank, bucket));
  ForEachEntry(rank, bucket, [&](const ParameterEntry& entry, int64_t at) {
    chunker.Add(at, at + entry.elements(), entry.decay);
  });
  return chunker.Take();
}

StepTables::~StepTables() {
  Clear();
}

void StepTables::Clear() {
  for (void* memory : allocations_) static_cast<void>(cudaFree(memory));
  allocations_.clear();
  buckets_.clear();
  rotary_.clear();
  device_bytes_ = 0;
}

Result<const void*> StepTables::Upload(const void* data, int64_t bytes) {
  void* memory = nullptr;
  MW_CUDA_CALL(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  allocations_.push_back(memory);
  device_bytes_ += bytes;
  MW_CUDA_CALL(cudaMemcpy(memory, data, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  return static_cast<const void*>(memory);
}

Result<ChunkList> StepTables::UploadChunks(const std::vector<WorkChunk>& chunks) {
  if (chunks.empty()) return ChunkList{};
  MW_ASSIGN_OR_RETURN(
      const void* memory,
      Upload(chunks.data(), static_cast<int64_t>(chunks.size() * sizeof(WorkChunk))));
  return ChunkList{static_cast<const WorkChunk*>(memory), static_cast<int32_t>(chunks.size())};
}

Status StepTables::AddRotary(double theta, int64_t head_dim, int64_t sequence) {
  if (rotary(theta, head_dim, sequence).ok()) return Status::Ok();
  MW_CHECK(theta > 0 && head_dim > 0 && head_dim % 2 == 0 && sequence > 0);
  const int64_t pairs = head_dim / 2;
  std::vector<float> values(static_cast<size_t>(2 * sequence * pairs));
  float* cosine = values.data();
  float* sine = cosine + sequence * pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs));
    for (int64_t position = 0; position < sequence; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cosine[position * pairs + i] = static_cast<float>(std::cos(angle));
      sine[position * pairs + i] = static_cast<float>(std::sin(angle));
    }
  }
  MW_ASSIGN_OR_RETURN(const void* memory,
                      Upload(values.data(), static_cast<int64_t>(values.size() * sizeof(float))));
  const auto* device = static_cast<const float*>(memory);
  rotary_.push_back({theta, head_dim, sequence, device, device + sequence * pairs});
  return Status::Ok();
}

Status StepTables::Build(const RankContext& rank) {
  Clear();
  for (size_t b = 0; b < rank.program->buckets.size(); ++b) {
    const auto bucket = static_cast<int32_t>(b);
    BucketLists lists;
    MW_ASSIGN_OR_RETURN(lists.counted, UploadChunks(CountedChunks(rank, bucket)));
    MW_ASSIGN_OR_RETURN(lists.updated, UploadChunks(UpdatedChunks(rank, bucket)));
    buckets_.push_back(lists);
  }
  for (const planner::Block& block : rank.program->blocks) {
    for (const planner::Op& op : block.ops) {
      if (op.kind != planner::OpKind::kRotary) continue;
      const planner::OpAttributes& a = op.attributes;
      MW_RETURN_IF_ERROR(AddRotary(a.rope_theta, a.head_dim, a.sequence));
    }
  }
  // Copies from pageable memory may still be under way; the kernels' streams do not wait for them.
  MW_CUDA_CALL(cudaDeviceSynchronize());
  return Status::Ok();
}

Result<ChunkList> StepTables::counted(int32_t bucket) const {
  if (bucket >= 0 && static_cast<size_t>(bucket) < buckets_.size()) {
    return buckets_[static_cast<size_t>(bucket)].counted;
  }
  return RunFailed(
      fmt::format("no tables of bucket {}; StepTables::Build saw {}", bucket, buckets_.size()));
}

Result<ChunkList> StepTables::updated(int32_t bucket) const {
  if (bucket >= 0 && static_cast<size_t>(bucket) < buckets_.size()) {
    return buckets_[static_cast<size_t>(bucket)].updated;
  }
  return RunFailed(
      fmt::format("no tables of bucket {}; StepTables::Build saw {}", bucket, buckets_.size()));
}

Result<RotaryTable> StepTables::rotary(double theta, int64_t head_dim, int64_t sequence) const {
  for (const RotaryTable& table : rotary_) {
    if (table.theta == theta && table.head_dim == head_dim && table.sequence == sequence) {
      return table;
    }
  }
  return RunFailed(
      fmt::format("no rotary angles of theta {}, head dim {}, sequence {}; StepTables::Build saw "
                  "no such op",
                  theta, head_dim, sequence));
}

}  // namespace meshwright::runtime::cuda
