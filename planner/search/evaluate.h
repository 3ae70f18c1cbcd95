// One configuration: lower bounds, the exact choice of layer ranges and recomputation, and the
// split that needs least memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "planner/search/context.h"

namespace meshwright::planner::search {

/// What a stage was given.
struct StageChoice {
  std::vector<int64_t> chunk_layers;  ///< layers of each of its chunks
  Recompute recompute = Recompute::kNone;
  friend bool operator==(const StageChoice&, const StageChoice&) = default;
};

/// The objective's parts in seconds; they add up to `total`.
struct ObjectiveParts {
  double total = 0.0;
  double work = 0.0;       ///< m x mean stage time: what cannot be saved by a better schedule
  double imbalance = 0.0;  ///< m x (slowest - mean) of the stage that decides
  double bubble = 0.0;     ///< filling and draining the pipeline
  double messages = 0.0;   ///< p2p that nothing hides
  double end = 0.0;        ///< reductions, norm, optimizer, gathers
};

struct Solution {
  std::vector<StageChoice> stages;
  std::vector<MemoryBreakdown> memory;  ///< per stage, `outside` included
  std::vector<int64_t> limits;          ///< bytes that each stage's devices have
  ObjectiveParts parts;

  int64_t peak() const;
};

/// Evaluates one configuration; not thread-safe.
class Evaluator {
 public:
  Evaluator(Context& context, const Configuration& configuration,
            std::shared_ptr<const Placed> placed);

  /// No split of the configuration is faster (seconds).
  double TimeBound();
  /// No split of the configuration fits its fullest stage in fewer bytes, `outside` included. From
  /// parameters alone (cheap), and with templates.
  int64_t ParameterBound() const;
  int64_t MemoryBound();

  /// The fastest split that fits; nullopt when none does. Splits slower than `worse_than` seconds
  /// may be given up early.
  std::optional<Solution> Fastest(double worse_than);
  /// The split whose fullest stage takes the least memory, fit or not; nullopt: held layers do not
  /// go with the model.
  std::optional<Solution> LeastMemory();
  /// Some split fits.
  bool Fits();

 private:
  /// A stage with n layers from `begin` on (uniform models and virtual stages: begin is 0).
  struct StageFacts {
    double first_ns = 0.0;
    double later_ns = 0.0;
    double end_ns = 0.0;
    MemoryBreakdown memory;  ///< parameters, gradients, optimizer, scratch
    int64_t slot_bytes = 0;
    std::vector<int64_t> chunk_layers;
  };
  struct Ends {
    bool first = false;
    bool last = false;
  };

  Ends EndsOf(int64_t stage) const { return {stage == 0, stage == c_.pp - 1}; }
  const ItemCost& Layer(int64_t layer, bool first_of_chunk, Recompute mode) const;
  /// Chunks of a stage with n layers: one range, or dealt so that the largest slot is smallest.
  std::vector<LayerRange> ChunksOf(int64_t stage, int64_t begin, int64_t n, Recompute mode) const;
  std::vector<LayerRange> DealtChunks(int64_t stage, int64_t n, Recompute mode) const;
  StageFacts Compute(int64_t stage, int64_t begin, int64_t n, Recompute mode);
  const StageFacts& Facts(int64_t stage, int64_t begin, int64_t n, Recompute mode);
  MemoryBreakdown MemoryOf(int64_t stage, const StageFacts& facts) const;

  /// Layer counts that a stage may have after `used` layers: [low, high].
  std::pair<int64_t, int64_t> CountRange(int64_t stage, int64_t used) const;
  /// What a stage adds to the maximum of the objective, times virtual stages, in ns.
  double Maximised(int64_t stage, const StageFacts& f) const;
  /// k of the objective.
  double Rounds() const;
  /// Messages that fill and drain the pipeline, in ns.
  double Filling() const;
  /// h of the objective in ns.
  double Waiting(int64_t stage) const;

  /// Fits, and may be part of a split that is not slower than `give_up` (scaled). Falls as layers
  /// rise.
  bool Possible(int64_t stage, const StageFacts& f, double give_up) const;
  /// Most layers that every stage can take by `Possible`; 0: none.
  std::vector<int64_t> MostLayers(double give_up);

  struct Step {
    double sum = 0.0;
    double max = 0.0;
    int64_t layers = 0;
    Recompute recompute = Recompute::kNone;
    int32_t previous = -1;  ///< index in the front of the state before
  };
  using Front = std::vector<Step>;
  static void Insert(Front& front, const Step& step);
  Solution Assemble(const std::vector<std::pair<int64_t, Recompute>>& stages);
  void NeedTemplates();

  Context& context_;
  const Configuration c_;
  const std::shared_ptr<const Placed> placed_;
  std::shared_ptr<const ItemCosts> costs_;
  lower::SplitFacts split_;
  BucketRules rules_;
  std::optional<StepPrices> step_prices_;
  int64_t group_ = 1;  ///< micro-batches that pass a chunk in turn; 1 without interleaving
  double message_ns_ = 0.0;
  double least_first_ns_ = 0.0;        ///< of all stages together
  std::vector<int64_t> fixed_layers_;  ///< per chunk (c x pp + p) where they are not searched
  std::vector<int64_t> shared_bytes_;  ///< per stage: communication and io
  int64_t workspace_bytes_ = 0;
  std::vector<int64_t> outside_, limit_, passes_;
  std::map<std::tuple<int, int64_t, int64_t, Recompute>, StageFacts> facts_;
};

}  // namespace meshwright::planner::search
