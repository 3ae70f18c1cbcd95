// A step of a split's pipeline, simulated at the grain of stage, chunk and micro-batch: what the
// closed objective of stage_costs.h leaves out is where unlike stages and messages wait for one
// another.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stack/split.h"
#include "planner/stack/stage_costs.h"
#include "topologies/status.h"

namespace meshwright::planner::stack {

/// Seconds of one chunk for one micro-batch, half of its exposed messages in each pass.
struct ChunkPasses {
  double forward_s = 0.0;
  double backward_s = 0.0;  ///< without the weight part
  double weight_s = 0.0;
};

struct StagePasses {
  std::vector<ChunkPasses> chunks;  ///< by virtual stage
  double end_s = 0.0;               ///< after the stage's last pass
};

/// Layers dealt evenly over the chunks; the embedding in the first chunk, the head in the last one.
StagePasses PassesOf(const Split& split, const ItemTable& table, const StageContent& content,
                     double end_s);

enum class PassKind : uint8_t { kForward, kBackward, kWeight };  ///< kWeight: ZB-H1 only
struct Pass {
  PassKind kind = PassKind::kForward;
  int32_t chunk = 0;
  int32_t micro_batch = 0;
  friend bool operator==(const Pass&, const Pass&) = default;
};

/// Passes of a stage in order. 1F1B and interleaved: lower/schedule.h; layers compute their weight
/// gradients within the backward pass, which kBackward then holds. ZB-H1 (Qi et al. 2023): forward
/// and backward as in 1F1B, and stage p runs the weight gradients of a micro-batch p backward
/// passes later, so that every stage keeps what the first one keeps, and what is left in the
/// cool-down.
std::vector<Pass> PassOrder(const Split& split, int64_t stage);

struct PipelineTimeline {
  double step_s = 0.0;
  std::vector<double> busy_s;  ///< of each stage, ends included
  int64_t nodes = 0;
};

/// Messages take `message_s` on a link for each direction between neighbours. Errors:
/// kInvalidInput: stages or chunks that are not those of the split, times that are not finite and
/// >= 0, more passes than can be numbered.
Result<PipelineTimeline> SimulatePipeline(const Split& split,
                                          const std::vector<StagePasses>& stages, double message_s);

}  // namespace meshwright::planner::stack
