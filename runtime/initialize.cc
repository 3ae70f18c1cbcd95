#include "runtime/initialize.h"

#include <cstring>

#include "planner/ir/hash.h"
#include "runtime/counter_random.h"
#include "runtime/parameter_layout.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::InitKind;
using planner::ParameterEntry;

/// Upper half of the fp32 bits, rounded to nearest, ties to even.
uint16_t ToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

void Store(DType dtype, double value, std::byte* area, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      reinterpret_cast<float*>(area)[index] = static_cast<float>(value);
      return;
    case DType::kF64:
      reinterpret_cast<double*>(area)[index] = value;
      return;
    case DType::kBf16:
      reinterpret_cast<uint16_t*>(area)[index] = ToBf16(static_cast<float>(value));
      return;
    case DType::kI32:
    case DType::kI64:
      break;
  }
  MW_CHECK(false && "parameters are floating point");
}

/// Draws elements of one parameter by their global index.
class Generator {
 public:
  Generator(const ParameterEntry& entry, uint64_t seed)
      : entry_(entry), seed_(seed), stream_(planner::Hasher().Add(entry.name).value()) {
    if (entry.valid_rows <= 0) return;
    valid_elements_ = entry.valid_rows;
    for (size_t d = 1; d < entry.global_shape.size(); ++d) valid_elements_ *= entry.global_shape[d];
  }

  double At(int64_t global_index) const {
    if (valid_elements_ >= 0 && global_index >= valid_elements_) return 0.0;
    switch (entry_.init) {
      case InitKind::kZeros:
        return 0.0;
      case InitKind::kOnes:
        return 1.0;
      case InitKind::kNormal:
        return entry_.init_std *
               StandardNormal(seed_, stream_, static_cast<uint64_t>(global_index));
    }
    return 0.0;
  }

 private:
  const ParameterEntry& entry_;
  uint64_t seed_;
  uint64_t stream_;
  int64_t valid_elements_ = -1;  ///< -1: no padding
};

void InitializeOne(const RankContext& rank, const ParameterEntry& entry, uint64_t seed,
                   std::byte* area) {
  const DType dtype = rank.facts.dtypes.compute;
  const AxisSplit split = SplitAtCutAxis(entry);
  const Generator generator(entry, seed);
  for (const planner::ShardSegment& segment :
       planner::SegmentsOf(entry, rank.binding->tp_index, rank.grid.tp)) {
    const int64_t run = segment.length * split.inner;  // contiguous on both sides
    for (int64_t o = 0; o < split.outer; ++o) {
      const int64_t local = entry.offset + (o * split.local + segment.local_begin) * split.inner;
      const int64_t global = (o * split.global + segment.global_begin) * split.inner;
      for (int64_t i = 0; i < run; ++i) Store(dtype, generator.At(global + i), area, local + i);
    }
  }
}

void Zero(std::byte* begin, std::byte* end) {
  MW_CHECK(end >= begin);
  std::memset(begin, 0, static_cast<size_t>(end - begin));
}

}  // namespace

void InitializeParameters(const RankContext& rank, uint64_t seed, std::byte* arena) {
  const planner::ArenaLayout& layout = rank.program->arena;
  // Areas are disjoint and in order: parameters, gradients, optimizer, io.
  Zero(arena + layout.parameters, arena + layout.io);
  for (const ParameterEntry& entry : rank.program->parameters) {
    InitializeOne(rank, entry, seed, arena + layout.parameters);
  }
}

}  // namespace meshwright::runtime
