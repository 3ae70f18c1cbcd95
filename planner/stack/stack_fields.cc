#include "planner/stack/stack_fields.h"

namespace meshwright::planner::stack {

const std::vector<NumberField<StackCostFactors>>& FactorFields() {
  using F = StackCostFactors;
  static const std::vector<NumberField<F>> fields = {
      {"gemm", &F::gemm, 0.3, 4, 1},
      {"attention", &F::attention, 0.3, 8, 1},
      {"pointwise", &F::pointwise, 0.3, 8, 1},
      {"scores", &F::scores, 0.3, 8, 1},
      {"collective", &F::collective, 0.2, 10, 1},
      {"reduction", &F::reduction, 0.2, 10, 1},
      {"hidden_share", &F::hidden_share, 0, 1, 0},
      {"loss_bytes_per_logit", &F::loss_bytes_per_logit, 0, 200, 4},
      {"optimizer_bytes_per_parameter", &F::optimizer_bytes_per_parameter, 0, 500, 16},
      {"launch_forward_s", &F::launch_forward_s, 0, 1e-2, 0},
      {"launch_backward_s", &F::launch_backward_s, 0, 1e-2, 0},
      {"collective_launch_s", &F::collective_launch_s, 0, 1e-2, 0},
      {"collective_skew_s", &F::collective_skew_s, 0, 1e-2, 0},
      {"micro_batch_s", &F::micro_batch_s, 0, 1, 0},
      {"message_s", &F::message_s, 0, 1, 0},
      {"step_s", &F::step_s, 0, 60, 0},
      {"cast_bytes_per_element", &F::cast_bytes_per_element, 0, 100, 0},
  };
  return fields;
}

const std::vector<NumberField<StackState>>& StateFields() {
  using S = StackState;
  static const std::vector<NumberField<S>> fields = {
      {"weights_bytes_per_parameter", &S::weights, 0, 64, 0},
      {"gradients_bytes_per_parameter", &S::gradients, 0, 64, 0},
      {"optimizer_bytes_per_parameter", &S::optimizer, 0, 64, 0},
      {"gathered_bytes_per_parameter", &S::gathered, 0, 64, 0},
      {"pending_bytes_per_parameter", &S::pending, 0, 64, 0},
      {"gradient_wire_bytes_per_parameter", &S::gradient_wire, 0, 64, 0},
  };
  return fields;
}

const std::vector<NumberField<StackAllocator>>& AllocatorFields() {
  using A = StackAllocator;
  static const std::vector<NumberField<A>> fields = {
      {"saved", &A::saved, 0.1, 10, 0.1},
      {"stream", &A::stream, 0.1, 10, 0.1},
      {"fragmentation", &A::fragmentation, 0, 2, 0},
      {"reserve_bytes", &A::reserve_bytes, 0, 1e11, 0},
      {"workspace_bytes", &A::workspace_bytes, 0, 1e11, 0},
      {"logit_copies", &A::logit_copies, 0, 20, 0},
      {"split_logit_copies", &A::split_logit_copies, 0, 20, 0},
  };
  return fields;
}

namespace internal {

const std::vector<FlagField>& FlagFields() {
  using L = StackLowering;
  static const std::vector<FlagField> fields = {
      {"fused_attention", &L::fused_attention},
      {"flash_attention", &L::flash_attention},
      {"library_norms", &L::library_norms},
      {"compiled_norms", &L::compiled_norms},
      {"dropout", &L::dropout},
      {"fused_weight_accumulation", &L::fused_weight_accumulation},
      {"hides_tensor_gradients", &L::hides_tensor_gradients},
      {"overlaps_tensor_exchange", &L::overlaps_tensor_exchange},
      {"hides_gradient_reduction", &L::hides_gradient_reduction},
      {"hides_parameter_gather", &L::hides_parameter_gather},
      {"hides_messages", &L::hides_messages},
      {"hides_context_exchange", &L::hides_context_exchange},
      {"fused_loss", &L::fused_loss},
      {"selective_keeps_products", &L::selective_keeps_products},
      {"keeps_gathered_inputs", &L::keeps_gathered_inputs},
      {"keeps_stage_outputs", &L::keeps_stage_outputs},
      {"reshards_in_pipelines", &L::reshards_in_pipelines},
      {"ends_stay_gathered", &L::ends_stay_gathered},
      {"vocabulary_parallel", &L::vocabulary_parallel},
  };
  return fields;
}

}  // namespace internal
}  // namespace meshwright::planner::stack
