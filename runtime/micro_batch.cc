#include "runtime/micro_batch.h"

#include <fmt/format.h>

namespace meshwright::runtime {

Status ReadMicroBatch(const OpCall& call, int64_t step, DataSource& data, const RunOptions& options,
                      std::vector<int32_t>* ids, int32_t* out) {
  constexpr int32_t kMasked = -100;  // label that does not count
  const bool labels = call.op.kind == planner::OpKind::kLoadLabels;
  const planner::StepFacts& facts = call.rank.facts;
  const int64_t rows = facts.micro_batch;
  const planner::TensorView& view = *call.View(0);
  const int64_t micro_batch = call.task.micro_batch;
  if (view.dtype != planner::DType::kI32 || view.elements() != facts.sequence * rows ||
      micro_batch < 0) {
    return Infeasible(fmt::format(
        "micro-batch {} into {} {}; expected int32 [{}, {}] and a micro-batch >= 0", micro_batch,
        view.elements(), planner::ToString(view.dtype), facts.sequence, rows));
  }
  ids->resize(static_cast<size_t>(facts.sequence) + 1);
  const int64_t lane = micro_batch * call.rank.grid.dp + call.rank.binding->dp_index;
  for (int64_t j = 0; j < rows; ++j) {
    const int64_t sample = lane * rows + j;
    MW_RETURN_IF_ERROR(data.Read(step, sample, facts.sequence, ids->data()));
    for (int64_t s = 0; s < facts.sequence; ++s) {
      int32_t id = (*ids)[static_cast<size_t>(labels ? s + 1 : s)];
      if (labels && options.label_counts && !options.label_counts(step, sample, s)) id = kMasked;
      out[s * rows + j] = id;
    }
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime
