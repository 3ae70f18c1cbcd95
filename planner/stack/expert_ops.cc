// Mixture of experts: router, dispatch by all-to-all over the expert group, grouped products,
// combine (Megatron core's all-to-all dispatcher; tokens over expert-tensor ranks are gathered).
#include <algorithm>
#include <cmath>

#include "planner/stack/op_list.h"

namespace meshwright::planner::stack::internal {

void AddExperts(OpList& list, const MlpSpec& mlp, const MoeSpec& moe, ItemOps* item) {
  const ItemContext& c = list.context();
  const Split& split = c.split;
  const double e = c.element_bytes();
  const int64_t h = c.module.hidden;
  const auto tokens = static_cast<double>(c.dispatched_tokens());
  const double copies = tokens * static_cast<double>(moe.top_k);
  const int64_t local_experts = std::max<int64_t>(moe.experts / split.ep, 1);
  const int64_t width = std::max<int64_t>(moe.expert_ffn / split.expert_tp, 1);
  const int64_t first = mlp.gated ? 2 * width : width;

  // Router: a small product in fp32, top-k, permutation.
  list.AddLinear({static_cast<int64_t>(tokens), moe.experts, h, 1, false, false});
  list.AddParameters(static_cast<double>(h * moe.experts));
  list.AddPointwise(Phase::kForward, 12 * tokens * static_cast<double>(moe.experts), 6);
  list.AddPointwise(Phase::kBackwardInput, 12 * tokens * static_cast<double>(moe.experts), 6);
  const double moved = copies * static_cast<double>(h);
  const double wire = e * moved;
  // Permute before dispatch and sort by expert after it; the reverse at the end.
  for (int pass = 0; pass < 2; ++pass) {
    list.AddPointwise(Phase::kForward, 2 * e * moved, 2);
    list.AddPointwise(Phase::kBackwardInput, 2 * e * moved, 2);
    if (split.ep > 1) {
      list.AddCollective(Phase::kForward, cost::CollectiveKind::kAllToAll, wire, Group::kExpert,
                         false);
      list.AddCollective(Phase::kBackwardInput, cost::CollectiveKind::kAllToAll, wire,
                         Group::kExpert, false);
    }
    if (split.expert_tp > 1) {
      const double gathered = wire * static_cast<double>(split.expert_tp);
      const bool before = pass == 0;
      list.AddCollective(
          Phase::kForward,
          before ? cost::CollectiveKind::kAllGather : cost::CollectiveKind::kReduceScatter,
          gathered, Group::kExpertTensor, false);
      list.AddCollective(
          Phase::kBackwardInput,
          before ? cost::CollectiveKind::kReduceScatter : cost::CollectiveKind::kAllGather,
          gathered, Group::kExpertTensor, false);
    }
  }
  const double routed =
      copies * static_cast<double>(split.expert_tp) * (split.ep > 1 ? c.expert_imbalance : 1.0);
  const auto per_expert =
      static_cast<int64_t>(std::ceil(std::max(1.0, routed / static_cast<double>(local_experts))));
  list.AddLinear({per_expert, first, h, local_experts, false, true});
  list.AddPointwise(Phase::kForward, e * routed * static_cast<double>(first + width));
  list.AddPointwise(Phase::kBackwardInput, e * routed * static_cast<double>(2 * first + width));
  list.AddLinear({per_expert, h, width, local_experts, false, true});
  const double saved_input = BitsOf(split.format) < 16 ? 1.0 : e;
  list.Save(saved_input * routed * static_cast<double>(h + width) +
            e * routed * static_cast<double>(first + h));
  item->parameters.expert +=
      static_cast<double>(local_experts) * static_cast<double>(h * (first + width));
  list.Transient(2 * wire * static_cast<double>(split.expert_tp));
}

void AddSharedExperts(OpList& list, const MlpSpec& mlp, const MoeSpec& moe) {
  const ItemContext& c = list.context();
  if (moe.shared_experts == 0) return;
  AddDenseMlp(list, mlp, moe.shared_ffn);
  if (!moe.shared_gate) return;
  const auto h = static_cast<double>(c.module.hidden);
  list.AddParameters(h);
  list.AddPointwise(Phase::kForward,
                    2 * c.element_bytes() * static_cast<double>(c.dispatched_tokens()) * h);
}

}  // namespace meshwright::planner::stack::internal
