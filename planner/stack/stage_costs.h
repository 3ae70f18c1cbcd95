// StageCosts: what the layers and stages of a split cost under one stack. The search and the step
// predictor add these up and know no formula of a model.
//
// A micro-batch takes f + b on a stage, the sums of its items' forward and backward seconds
// (collectives that nothing hides, and host time where it binds, included). With P stages, v
// virtual stages and m micro-batches the objective of the search is
//
//   T = sum_p z(p) + 2 (P v - 1) c + max_p [ m t(p) - z(p) + e(p) ]
//
//   t = f + b + v x exposed messages      of one micro-batch on the stage
//   z = t / v                             1F1B and interleaved
//   z = max(0, t - 2 w)                   ZB-H1; w: weight-gradient part of b
//   c                                     one message to the next stage
//   e                                     end of the step that nothing hides
//
// (m + (P-1)/v) t + e for equal stages; ZB-H1: m t + (P-1) (f + b - 2w) + e (Qi et al. 2023, table
// 1).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/ir/model_spec.h"
#include "planner/stack/split.h"

namespace meshwright::planner::stack {

/// One layer (or embedding, or head) for one micro-batch on one rank.
struct ItemCost {
  double forward_s = 0.0;
  double backward_s = 0.0;       ///< recomputation included
  double weight_s = 0.0;         ///< part of backward_s that computes weight gradients
  double saved_bytes = 0.0;      ///< kept from forward to backward of a micro-batch
  double transient_bytes = 0.0;  ///< most that lives within its passes beyond what is saved
};

/// Parameters that one rank holds, before any sharding over data-parallel ranks.
struct ItemParameters {
  double dense = 0.0;   ///< replicated on cp dp ranks
  double expert = 0.0;  ///< replicated on expert_dp ranks
};

/// All items of a split. What of the split it depends on is CostKey's members.
struct ItemTable {
  std::vector<std::array<ItemCost, kLayerModes>> layers;  ///< by layer kind
  std::vector<ItemParameters> layer_parameters;           ///< by layer kind
  ItemCost embedding, head;
  ItemParameters embedding_parameters, head_parameters;
  double output_bytes = 0.0;  ///< kept of what a stage sends, of one micro-batch over all chunks
  double message_s = 0.0;     ///< c: an activation to the next stage
  double exposed_message_s =
      0.0;  ///< of it, by chunk and micro-batch, both ways, what nothing hides
};

/// Seconds that items take for one micro-batch, forward and backward.
struct LeastSeconds {
  std::vector<double> layer_s;  ///< by layer kind
  double embedding_s = 0.0;
  double head_s = 0.0;
};

/// Which splits a bound holds for.
enum class BoundOver : uint8_t { kShape, kAnyExperts };

/// Sums over a stage's items.
struct StageSums {
  double forward_s = 0.0, backward_s = 0.0, weight_s = 0.0;
  double saved_bytes = 0.0;      ///< of one micro-batch over all chunks
  double transient_bytes = 0.0;  ///< the largest
  ItemParameters parameters;
};

/// Bytes of a stage's rank by use.
struct StageMemory {
  double parameters = 0.0, gradients = 0.0, optimizer = 0.0;
  double activations = 0.0;  ///< saved x in flight
  double transient = 0.0;    ///< largest working set within a pass, collective and gather buffers
  double reserve = 0.0;      ///< what the caching allocator holds beyond its live tensors
  double outside = 0.0;      ///< context, libraries, communicators
  double allocated() const { return parameters + gradients + optimizer + activations + transient; }
  double reserved() const { return allocated() + reserve; }
  double total() const { return reserved() + outside; }
};

/// Costs of one model on one cluster under one stack. Implementations are deterministic; values are
/// finite and >= 0. Not thread-safe (memoised).
class StageCosts {
 public:
  virtual ~StageCosts() = default;

  virtual const ModuleSpec& module() const = 0;
  virtual int64_t sequence() const = 0;

  /// Depends on tp, cp, ep, expert_tp, sequence_parallel, micro_batch, format, order, pp > 1,
  /// whether a stage has two layers, on virtual_stages where stages keep their outputs and, under
  /// kZero3, on dp: with equal values the same table comes back. The reference stays valid.
  virtual const ItemTable& Items(const Split& split) = 0;
  /// Lower bound of tables, for cutting many splits at once: no number in it is above the same
  /// number of Items for any split with the same tp, cp, ep, expert_tp, sequence_parallel,
  /// micro_batch and format. Null: none is known, every table is priced.
  /// The table stays valid.
  virtual const ItemTable* LeastItems(const Split& split) {
    static_cast<void>(split);
    return nullptr;
  }
  /// Lower bound of the seconds in the tables of all splits with the same members as for LeastItems
  /// (kAnyExperts: but for ep and expert_tp, which may be any), of layers in any of `modes`. It
  /// cuts most splits of a large space without a table for each. False: none is known. Sums may be
  /// rounded. Without an override, that of kShape is read off LeastItems.
  virtual bool LeastPasses(const Split& split, BoundOver over,
                           const std::array<bool, kLayerModes>& modes, LeastSeconds* least);
  /// e: gradient reduction, norm, optimizer, parameter gather that nothing hides, seconds. Rises
  /// with parameters; does not rise with the pass times that may hide it, and falls by no more than
  /// they rise (a second of pass hides at most a second).
  virtual double EndOfStep(const Split& split, const StageSums& sums) = 0;
  /// Lower bound of EndOfStep for any stage with these parameters.
  virtual double EndOfStepBound(const Split& split, const ItemParameters& parameters) = 0;
  /// Memory of stage `stage` that keeps `in_flight` micro-batches (fractions for chunks). Rises
  /// with sums and in_flight.
  virtual StageMemory Memory(const Split& split, const StageSums& sums, double in_flight) = 0;
};

/// Micro-batches whose saved tensors stage `stage` holds at its fullest: 1F1B and ZB-H1 min(pp -
/// stage, m); interleaved min(v m, 2 (pp - stage - 1) + (v - 1) pp + 1) / v (Narayanan et al.
/// 2021).
double InFlight(const Split& split, int64_t stage);

/// Messages that a filling and a draining pipeline wait for, 2 (P v - 1): one to each next chunk,
/// as the simulation of equal stages gives (pipeline.h).
double FillMessages(const Split& split);

/// Adds up a stage.
StageSums SumOf(const StageContent& content, const ItemTable& table);

/// t, z and w of the objective for one stage.
struct StageTimes {
  double t = 0.0, z = 0.0;
};
StageTimes TimesOf(const Split& split, const ItemTable& table, const StageSums& sums);

}  // namespace meshwright::planner::stack
