// Layer items: embedding, layers, head. What a stage is made of, with the parameters of each item.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/plan.h"
#include "planner/ir/program.h"

namespace meshwright::planner::lower {

enum class ItemKind : uint8_t { kEmbedding, kLayer, kHead };

/// One parameter of an item before a stage places it.
struct ItemParameter {
  std::string name;  ///< without the item's prefix, e.g. "attention.qkv.weight"
  std::vector<int64_t> global_shape;
  std::vector<int64_t> local_shape;
  int32_t axis = -1;
  std::vector<ParameterPart> parts;
  LateReduction late = LateReduction::kNone;
  bool decay = true;
  InitKind init = InitKind::kNormal;
  double init_std = 0.0;
  int64_t valid_rows = 0;
  bool late_area = false;  ///< lies in the late bucket (replicated, partial over tensor ranks)
  int64_t offset = 0;      ///< elements from the item's base in its area

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : local_shape) n *= d;
    return n;
  }
};

/// The facts of a module's split that shape its blocks.
struct SplitFacts {
  const ModuleSpec* module = nullptr;
  int64_t tp = 1;
  bool sequence_parallel = false;
  int64_t tensor_chunks = 1;    ///< see ModulePlan
  int64_t tensor_position = 0;  ///< rank in the tensor group, where programs differ by it
  int64_t kv_copies = 1;
  int64_t padded_vocab = 0;
  int64_t logits_chunk_bytes = kLogitsChunkBytes;  ///< see ModulePlan
  int64_t sequence = 0;
  int64_t micro_batch = 0;
  DTypePolicy dtypes;
  topologies::DeviceKind device = topologies::DeviceKind::kCpu;
  bool deterministic = false;   ///< see Plan::deterministic
  bool tied_here = false;       ///< head and embedding are on the same stage and share the weight
  bool tied_across = false;     ///< the tied weight lives on first and last stage
  int64_t residual_layers = 1;  ///< all layers of the module; scales output projections at init

  int64_t local_sequence() const { return sequence_parallel ? sequence / tp : sequence; }
  /// Bytes of the residual stream of one micro-batch on one rank.
  int64_t residual_bytes() const {
    return local_sequence() * micro_batch * module->hidden * SizeOf(dtypes.compute);
  }
};

/// Parameters of an item, in order; offsets within the item's two areas set.
struct ItemParameters {
  std::vector<ItemParameter> list;
  int64_t main_elements = 0;  ///< padded extent in the main area
  int64_t late_elements = 0;  ///< padded extent in the late area

  /// Index by name; -1: the item has no such parameter.
  int Find(const std::string& name) const {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].name == name) return static_cast<int>(i);
    }
    return -1;
  }
};

/// Elements to which parameters, items and buckets are aligned (256 B in fp32, 128 B in bf16).
inline constexpr int64_t kElementAlignment = 64;
/// Bytes to which tensors and areas are aligned.
inline constexpr int64_t kByteAlignment = 256;

constexpr int64_t RoundUp(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

/// `kind_index` indexes ModuleSpec::layer_kinds for layer items.
ItemParameters ParametersOf(ItemKind kind, int kind_index, const SplitFacts& split);

}  // namespace meshwright::planner::lower
