// What kernels look up in device memory and what is the same in every step: which elements of a
// bucket a rank counts and updates, and the angles of rotary embeddings. Made once at set-up.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Consecutive elements of a bucket; the work of one thread block.
struct WorkChunk {
  int64_t begin = 0;   ///< element of the bucket
  int32_t length = 0;  ///< elements, 1 .. kChunkElements
  int32_t decay = 0;   ///< 1: weight decay applies
  friend bool operator==(const WorkChunk&, const WorkChunk&) = default;
};
/// Chunks end at multiples of this, so that all but the first of a run start aligned.
inline constexpr int32_t kChunkElements = 8192;

/// What the rank updates of a bucket: its data-parallel shard under ZeRO, else everything.
struct OwnRange {
  int64_t begin = 0;
  int64_t size = 0;
};
OwnRange OwnRangeOf(const RankContext& rank, int32_t bucket);

/// Elements whose squares this rank adds to the gradient norm (kSquaredNorm): those of which it is
/// the owner, without tied copies, within its own range.
std::vector<WorkChunk> CountedChunks(const RankContext& rank, int32_t bucket);

/// Parameters in the rank's own range (kOptimizerStep), with their decay flags; gaps between
/// parameters are left out.
std::vector<WorkChunk> UpdatedChunks(const RankContext& rank, int32_t bucket);

/// A list of chunks in device memory.
struct ChunkList {
  const WorkChunk* chunks = nullptr;
  int32_t count = 0;
};

/// cos and sin of position * theta^(-2i / head_dim), each [sequence, head_dim / 2] fp32 in device
/// memory.
struct RotaryTable {
  double theta = 0.0;
  int64_t head_dim = 0;
  int64_t sequence = 0;
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

/// The tables of one rank.
class StepTables {
 public:
  StepTables() = default;
  ~StepTables();
  StepTables(const StepTables&) = delete;
  StepTables& operator=(const StepTables&) = delete;

  /// Makes the tables of all buckets and rotary ops of the rank's program on the current device,
  /// in place of those from an earlier call. Synchronises. Errors: kRunFailed from CUDA.
  Status Build(const RankContext& rank);

  /// kRunFailed when Build did not see the bucket or the angles.
  Result<ChunkList> counted(int32_t bucket) const;
  Result<ChunkList> updated(int32_t bucket) const;
  Result<RotaryTable> rotary(double theta, int64_t head_dim, int64_t sequence) const;

  /// Device memory that the tables hold. Bytes.
  int64_t device_bytes() const { return device_bytes_; }

 private:
  struct BucketLists {
    ChunkList counted;
    ChunkList updated;
  };

  void Clear();
  Result<const void*> Upload(const void* data, int64_t bytes);
  Result<ChunkList> UploadChunks(const std::vector<WorkChunk>& chunks);
  Status AddRotary(double theta, int64_t head_dim, int64_t sequence);

  std::vector<BucketLists> buckets_;
  std::vector<RotaryTable> rotary_;
  std::vector<void*> allocations_;
  int64_t device_bytes_ = 0;
};

}  // namespace meshwright::runtime::cuda
