// StackSpec: how a training stack turns a model into kernels, collectives, host work and kept
// tensors. Data, not code: one YAML file a stack under cost_models/stacks/.
//
// Constants of stacks are fitted apart from those of machines: a device profile says how fast a
// kernel runs alone, the stack which kernels run, how much of each collective it hides, and what
// the framework around them costs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "planner/stack/split.h"
#include "topologies/status.h"

namespace meshwright::planner::stack {

/// What the stack's kernels and passes are. Every member is a field of the file.
struct StackLowering {
  bool fused_attention =
      true;  ///< one kernel that never writes the scores; else products and softmax
  bool flash_attention = false;  ///< FlashAttention 2 instead of the device's best kernel
  bool library_norms =
      false;  ///< eager norms of PyTorch: their backward reaches a third of the bandwidth
  bool compiled_norms = false;  ///< norms of torch.compile
  bool dropout = false;         ///< kernels and masks of attention and residual dropout run
  bool fused_weight_accumulation = true;  ///< weight gradients accumulate inside the product
  bool hides_tensor_gradients = true;     ///< reductions of input gradients behind weight gradients
  bool overlaps_tensor_exchange = false;  ///< gathers and scatters of sequence parallelism in
                                          ///< chunks behind the products beside them
  bool hides_gradient_reduction = true;   ///< data-parallel reduction behind the last backward pass
  bool hides_parameter_gather = true;     ///< gather of updated parameters behind forward
  bool hides_messages = true;  ///< pipeline messages of interleaved schedules behind compute
  bool hides_context_exchange = true;  ///< ring exchange of keys and values behind attention
  bool fused_loss = true;              ///< cross-entropy without fp32 copies of the logits
  bool selective_keeps_products =
      false;                           ///< kSelective re-runs every other product and the pointwise
                                       ///< kernels (per-op checkpointing), not the attention core
  bool keeps_gathered_inputs = false;  ///< inputs of products stay gathered under sequence
                                       ///< parallelism; else backward gathers them again
  bool keeps_stage_outputs = false;    ///< what a stage has sent stays until its backward pass
  bool reshards_in_pipelines = false;  ///< kZero3 frees gathered parameters behind each pass of a
                                       ///< pipeline too; else they stay whole for all micro-batches
  bool ends_stay_gathered = false;     ///< kZero3 keeps embedding and head (the root module's), and
                                       ///< at the loss the last layer, gathered
  bool vocabulary_parallel = true;     ///< embedding and head are cut over tensor ranks; else each
                                       ///< has them whole, for its share of the tokens
};

/// Ratios and seconds that the framework adds; 1.0 (0.0) would be kernels alone.
struct StackCostFactors {
  double gemm = 1.0;  ///< time of products / time alone (power limit, cold caches)
  double attention = 1.0;
  double pointwise = 1.0;  ///< traffic of norms, activations, additions / least traffic
  double scores =
      1.0;  ///< likewise of softmax and dropout of attention scores that are written out
  double collective = 1.0;    ///< time of tensor, context and expert collectives / time alone
  double reduction = 1.0;     ///< time of data-parallel collectives / time alone
  double hidden_share = 0.9;  ///< of a collective that can be hidden, what really is
  double loss_bytes_per_logit = 10.0;           ///< read and written, forward and backward together
  double optimizer_bytes_per_parameter = 30.0;  ///< read and written by clip, step and copy
  double launch_forward_s = 5e-6;               ///< host time of a kernel launch in forward
  double launch_backward_s = 5e-6;              ///< host time of a kernel launch in backward
  double collective_launch_s = 1e-5;            ///< host time of issuing a collective
  double collective_skew_s = 0.0;  ///< wait of a collective in a layer, times log2 of its ranks
  double micro_batch_s = 0.0;      ///< host time of a micro-batch beside its launches
  double message_s = 0.0;          ///< of a pipeline message beside its transfer
  double step_s = 0.0;             ///< of a step: data, logging, loss scale
  double cast_bytes_per_element = 3.0;  ///< fp8 and fp4: traffic of quantising an operand element
};

/// What lies in memory, bytes per parameter of the rank.
struct StackState {
  double weights = 2.0;
  double gradients = 4.0;
  double optimizer = 12.0;     ///< master weights and moments
  double gathered = 2.0;       ///< of a parameter that kZero3 gathers for use, and its gradient
  double pending = 4.0;        ///< kZero3: of a gradient in reduction beside the next backward pass
  double gradient_wire = 4.0;  ///< of a gradient element in data-parallel reductions
};

/// The caching allocator and what lies outside it.
struct StackAllocator {
  double saved = 1.0;          ///< kept activations / their tensors' sizes
  double stream = 1.0;         ///< likewise of layers' inputs and of gradients of activations
  double fragmentation = 0.0;  ///< reserved = allocated x (1 + this) + reserve_bytes
  double reserve_bytes = 0.0;
  double workspace_bytes = 0.0;     ///< of library handles inside the allocator
  double logit_copies = 3.0;        ///< copies of the logits alive at the loss, in fp32 elements
  double split_logit_copies = 3.0;  ///< likewise where tensor ranks share the loss
};

/// How far its predictions were off on the rows that the fit has seen, and which.
struct StackResiduals {
  int64_t rows = 0;
  double log_bias = 0.0;        ///< mean of ln(predicted / measured)
  double log_deviation = 0.15;  ///< standard deviation of it: the interval is exp(+-2 x this)
};

struct StackSpec {
  std::string name;
  std::string description;
  bool executable = false;  ///< only our own
  StackLowering lowering;
  StackCostFactors factors;
  StackState state;
  StackAllocator allocator;
  StackResiduals residuals;
  std::vector<ShardingLevel> sharding;  ///< that it offers
  std::vector<Schedule> schedules;
  std::vector<LinearFormat> formats;
  std::vector<LayerMode> modes;
  bool uneven_layers = true;
  int64_t max_virtual_stages = 1;
  std::map<std::string, std::string> sources;  ///< by section: where its values come from
};

/// One number of a stack: for readers, writers and programs that fit.
template <typename Section>
struct NumberField {
  const char* name;  ///< with its unit: "_s", "_bytes", "_per_..."; ratios have none
  double Section::*member;
  double low, high;     ///< allowed, both ends included
  double least_fitted;  ///< fits stay above: nothing runs faster in training than alone
};
const std::vector<NumberField<StackCostFactors>>& FactorFields();
const std::vector<NumberField<StackState>>& StateFields();
const std::vector<NumberField<StackAllocator>>& AllocatorFields();

/// kInvalidInput with file, line and field.
Result<StackSpec> ParseStack(std::string_view text, std::string_view source_name);
/// A name of `ShippedStackNames()` or a path (with '/' or ending in ".yaml").
Result<StackSpec> LoadStack(const std::string& name_or_path);
std::vector<std::string> ShippedStackNames();
std::string ToYaml(const StackSpec& stack);  ///< parses back to an equal spec

}  // namespace meshwright::planner::stack
