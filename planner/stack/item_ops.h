// The work of one item (embedding, layer, head) of a split under a stack, as a list of ops: what
// runs on one rank for one micro-batch, and which tensors backward needs. No prices here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cost_models/collectives.h"
#include "cost_models/device_profile.h"
#include "cost_models/work.h"
#include "planner/ir/model_spec.h"
#include "planner/stack/split.h"
#include "planner/stack/stack_spec.h"
#include "planner/stack/stage_costs.h"

namespace meshwright::planner::stack {

enum class Phase : uint8_t { kForward, kBackwardInput, kBackwardWeight };
/// Ranks that a collective joins.
enum class Group : uint8_t { kTensor, kContext, kExpert, kExpertTensor, kData };

/// One kernel (or `launches` small ones), or a collective.
struct StackOp {
  Phase phase = Phase::kForward;
  cost::Work work;  ///< kCollective: see `collective`
  cost::CollectiveWork collective;
  Group group = Group::kTensor;
  bool hidden = false;     ///< may run behind the compute of its phase
  bool core = false;       ///< of the attention core, which selective recomputation re-runs
  bool scores = false;     ///< softmax or dropout of attention scores
  bool pointwise = false;  ///< neither product nor attention nor collective
  bool cast = false;       ///< quantises an operand
  int launches = 1;
  double result_bytes = 0.0;  ///< attention: its result with the statistics of the softmax
};

struct ItemOps {
  std::vector<StackOp> ops;
  /// Bytes kept by mode, before the allocator's factor.
  std::array<double, kLayerModes> saved{};
  double transient = 0.0;     ///< bytes: largest temporary of its passes
  double working = 0.0;       ///< bytes: gradients of activations beside all that is kept
  double last_product = 0.0;  ///< parameters whose gradients are made while `working` lives
  ItemParameters parameters;
};

/// What every builder reads.
struct ItemContext {
  const StackSpec& stack;
  const ModuleSpec& module;
  const Split& split;
  int64_t sequence = 0;
  double expert_imbalance = 1.0;  ///< tokens of the busiest expert rank / the mean

  /// Tokens that the rank's context share of a micro-batch has.
  int64_t tokens() const { return split.micro_batch * sequence / split.cp; }
  /// Tokens of the regions outside tensor-parallel products: 1/tp of them under sequence
  /// parallelism.
  int64_t outer_tokens() const { return split.sequence_parallel ? tokens() / split.tp : tokens(); }
  /// Tokens of a kept input of a tensor-parallel product.
  int64_t input_tokens() const {
    return stack.lowering.keeps_gathered_inputs ? tokens() : outer_tokens();
  }
  /// Tokens of the rank that experts' dispatcher works on: the sequence-parallel share.
  int64_t dispatched_tokens() const { return std::max<int64_t>(tokens() / split.tp, 1); }
  double element_bytes() const { return split.format == LinearFormat::kFp32 ? 4.0 : 2.0; }
  /// Of the vocabulary, padded as Megatron pads: to a multiple of 128 times its parts.
  int64_t padded_vocab() const;
};

/// A layer; attention and MLP of `layer`, which may be a mixture of experts.
ItemOps LayerOps(const ItemContext& context, const LayerSpec& layer);
/// Parts of a layer, by what of a split their ops depend on beside the format.
enum class LayerPart : uint8_t {
  kCore,     ///< on micro-batch, tp, cp: attention and the exchange of keys and values
  kExperts,  ///< on dispatched_tokens, ep, expert_tp, where their groups lie: router to combination
  kRest      ///< on tokens, tp, sequence_parallel; embedding and head do so too
};
/// LayerOps' ops of that part; those of all parts are LayerOps' ops, in another order.
std::vector<StackOp> OpsOf(const ItemContext& context, const LayerSpec& layer, LayerPart part);
/// Token (and position) embedding.
ItemOps EmbeddingOps(const ItemContext& context);
/// Final norm, logits, loss; multi-token prediction layers too, which are layers with a product
/// more.
ItemOps HeadOps(const ItemContext& context);

/// Bits of a linear layer's operands: 16 (bf16, fp16), 8, 4, 32.
int BitsOf(LinearFormat format);
cost::Precision PrecisionOf(LinearFormat format);
/// Whether the device multiplies in that format.
bool HasFormat(const cost::DeviceProfile& profile, LinearFormat format);

}  // namespace meshwright::planner::stack
