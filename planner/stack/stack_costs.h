// StackCosts of a model on a cluster: ops priced by the device profile, collectives on the paths
// that their groups take, host time where launches bind.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/stack/fabric.h"
#include "planner/stack/item_ops.h"
#include "planner/stack/item_times.h"
#include "planner/stack/stack_spec.h"
#include "planner/stack/stage_costs.h"
#include "topologies/status.h"

namespace meshwright::planner::stack {

/// What `StackStageCosts` is made of; values, so that a program may fit the stack's factors.
struct CostInputs {
  ModuleSpec module;
  StackSpec stack;
  Fabric fabric;
  cost::DeviceProfile profile;
  int64_t sequence = 0;
  /// Expert loads: tokens of the busiest expert rank / the mean.
  double expert_imbalance = 1.0;
  bool frozen = false;  ///< no weight gradients and no optimizer (adapters on a frozen base)
};

class StackStageCosts final : public StageCosts {
 public:
  /// kUnsupported: the device lacks a format of the stack; kInvalidInput: a profile of a CPU.
  static Result<std::unique_ptr<StackStageCosts>> Make(CostInputs inputs);

  const ModuleSpec& module() const override { return inputs_.module; }
  int64_t sequence() const override { return inputs_.sequence; }
  const CostInputs& inputs() const { return inputs_; }
  bool Supports(LinearFormat format) const;
  /// For programs that fit: other factors; tables given out before are gone.
  void SetFactors(const StackCostFactors& factors) {
    inputs_.stack.factors = factors;
    tables_.clear();
    priced_.clear();
    parts_.clear();
  }

  const ItemTable& Items(const Split& split) override;
  /// Items with nothing further apart than it must be: one replica and stage, nothing gathered.
  const ItemTable* LeastItems(const Split& split) override;
  /// LeastItems' own passes, from parts of items that many splits share; of kAnyExperts without
  /// the experts' part.
  bool LeastPasses(const Split& split, BoundOver over, const std::array<bool, kLayerModes>& modes,
                   LeastSeconds* least) override;
  double EndOfStep(const Split& split, const StageSums& sums) override;
  double EndOfStepBound(const Split& split, const ItemParameters& parameters) override;
  StageMemory Memory(const Split& split, const StageSums& sums, double in_flight) override;

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, int64_t, LinearFormat, RankOrder,
                         bool, int64_t, int>;
  StackStageCosts(CostInputs inputs, cost::CostModel prices)
      : inputs_(std::move(inputs)), prices_(std::move(prices)) {}

  /// The split with one replica and stage, nothing gathered.
  static Split LeastOf(const Split& split);
  OpSums SumsOf(const Split& split, const std::vector<StackOp>& ops) const;
  ItemTimes TimesOf(const OpSums& sums) const;

  /// An item priced by itself, its ops forgotten: what many tables share.
  struct PricedItem {
    ItemOps item;
    ItemTimes times;
    bool end = false;  ///< embedding or head
  };
  struct PricedItems {
    std::vector<PricedItem> layers;  ///< by kind
    PricedItem embedding, head;
  };
  /// Depends on tp, cp, ep, expert_tp, sequence_parallel, micro_batch, format, where experts'
  /// groups lie, and (tied embeddings) on pp > 1.
  const PricedItems& Priced(const Split& split);
  PricedItem Price(const Split& split, ItemOps item) const;

  /// Ops of a part of the layers, by kind; of kRest of embedding and head too.
  const std::vector<OpSums>& PartOf(const Split& split, LayerPart part);
  ItemTable Build(const Split& split);
  /// `next_bytes`: gathered parameters of the item that backward passes next.
  std::array<ItemCost, kLayerModes> Modes(const Split& split, const PricedItem& priced,
                                          double next_bytes) const;
  ItemCost HeadCost(const Split& split, const PricedItems& priced,
                    ItemParameters* parameters) const;
  /// Ranks of a group and the stride between them.
  static std::pair<int64_t, int64_t> SizeAndStride(const Split& split, Group group);
  double CollectiveTime(const Split& split, cost::CollectiveKind kind, double bytes,
                        Group group) const;
  /// No stage has two layers.
  bool LoneLayers(const Split& split) const { return inputs_.module.layer_count() <= split.pp; }
  double OpTime(const StackOp& op) const;
  /// Gathers and scatters of a layer's parameters under kZero3 that compute does not hide.
  void AddSharded(const Split& split, const PricedItem& priced, double next_bytes,
                  ItemCost* cost) const;
  /// Of an item that kZero3 gathers.
  double GatheredBytes(const Split& split, const PricedItem& priced) const;
  double ReductionTime(const Split& split, double parameters, bool experts) const;
  double GatherTime(const Split& split, double parameters, bool experts) const;
  double OptimizerTime(const Split& split, const ItemParameters& parameters) const;

  CostInputs inputs_;
  cost::CostModel prices_;
  std::map<Key, std::unique_ptr<ItemTable>> tables_;
  std::map<Key, PricedItems> priced_;
  /// Products priced before: splits share most of theirs.
  struct Product {
    cost::Precision precision;
    bool accumulate;
    int64_t m, n, k, batch, read, written;
    friend bool operator==(const Product&, const Product&) = default;
  };
  struct ProductHash {
    size_t operator()(const Product& p) const;
  };
  mutable std::unordered_map<Product, double, ProductHash> products_;  ///< seconds alone
  /// What the ops of a part depend on (LayerPart).
  struct PartKey {
    int64_t size, ranks, other_ranks;
    LayerPart part;
    LinearFormat format;
    bool sequence_parallel;
    friend bool operator==(const PartKey&, const PartKey&) = default;
  };
  struct PartHash {
    size_t operator()(const PartKey& key) const;
  };
  std::unordered_map<PartKey, std::vector<OpSums>, PartHash> parts_;
};

}  // namespace meshwright::planner::stack
