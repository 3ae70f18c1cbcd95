// Prices of ops and collectives on one kind of device.
#pragma once

#include <utility>
#include <vector>

#include "cost_models/collectives.h"
#include "cost_models/device_profile.h"
#include "cost_models/work.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::cost {

struct CostOptions {
  /// Every precision that will be priced; `Make` refuses what the device cannot do.
  std::vector<Precision> precisions;
  bool graphs = false;  ///< ops are launched in CUDA graphs
  /// Time of attention and large products on GPUs over what the profile says, StretchOf a step.
  double stretch = 1.0;
};

/// What an op's time is made of: time = max(arithmetic, memory) + overhead.
struct OpPrice {
  Seconds arithmetic;
  Seconds memory;
  Seconds overhead;
  Nanoseconds time;  ///< rounded up
  /// Bandwidth that the op takes while it runs, in thousandths of the whole device's: the demand on
  /// a memory resource of capacity 1000 that ranks of one CPU share.
  int32_t memory_milli = 0;
};

/// A collective's time = overhead + the slower of the two transfers, which overlap in a pipeline.
struct CollectivePrice {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;  ///< the fastest that applies
  WireCost wire;
  Seconds overhead;  ///< latency of the steps
  Seconds local;     ///< transfer inside the hosts
  Seconds network;   ///< transfer between hosts
  /// Rate of products while it runs / alone, on GPUs; 0: nobody measured it.
  double beside = 0.0;
  Nanoseconds time;  ///< rounded up; 0 for one rank
};

/// Immutable; all methods are const and may be called from many threads. Prices are never negative.
class CostModel {
 public:
  /// Errors: what `Validate` says of the profile; kUnsupported for a precision that it lacks.
  static Result<CostModel> Make(DeviceProfile profile, CostOptions options);

  /// The same prices with another CostOptions::stretch.
  CostModel WithStretch(double stretch) const {
    CostModel other = *this;
    other.options_.stretch = stretch;
    return other;
  }

  const DeviceProfile& profile() const { return profile_; }
  const CostOptions& options() const { return options_; }

  /// Time of an op alone on its device (a CPU rank: on one core). Aborts for collectives, negative
  /// sizes, and products or attention in a precision that `options` does not list.
  Nanoseconds PriceOp(const Work& work) const { return ExplainOp(work).time; }
  OpPrice ExplainOp(const Work& work) const;

  /// Time from the last member's arrival to the end. Aborts when `Validate(path)` is not ok.
  Nanoseconds PriceCollective(const CollectiveWork& work, const PathFacts& path) const {
    return ExplainCollective(work, path).time;
  }
  CollectivePrice ExplainCollective(const CollectiveWork& work, const PathFacts& path) const;

 private:
  CostModel(DeviceProfile profile, CostOptions options)
      : profile_(std::move(profile)), options_(std::move(options)) {}

  Seconds ArithmeticTime(const Work& work) const;
  Seconds CpuArithmeticTime(const Work& work) const;
  Seconds MemoryTime(const Work& work) const;
  CollectivePrice PriceGpu(CollectiveAlgorithm algorithm, const CollectiveWork& work,
                           const PathFacts& path) const;
  CollectivePrice PriceTraffic(const TrafficFit& fit, const CollectiveWork& work,
                               const PathFacts& path) const;
  CollectivePrice PriceCpu(const CollectiveWork& work, const PathFacts& path) const;

  DeviceProfile profile_;
  CostOptions options_;
};

}  // namespace meshwright::cost
