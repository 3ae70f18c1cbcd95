// Prices: what every op of a plan's programs costs on the devices that its ranks are placed on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cost_models/collectives.h"
#include "cost_models/cost_model.h"
#include "cost_models/work.h"
#include "planner/ir/core_places.h"
#include "planner/ir/peer_traffic.h"
#include "planner/ir/plan.h"
#include "planner/ir/program.h"
#include "topologies/cluster.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::planner {

/// Time of an op when nothing slows it down, and what it takes of what others use too.
struct NodePrice {
  Nanoseconds time;
  int32_t core_milli = 0;     ///< CPU ranks: thousandths of one core of the host
  int32_t memory_milli = 0;   ///< CPU ranks: thousandths of the host's memory bandwidth
  int32_t device_milli = 0;   ///< GPUs: thousandths of the device
  int32_t local_milli = 0;    ///< GPUs: thousandths of the group's bandwidth inside a host
  int32_t network_milli = 0;  ///< GPUs: thousandths of the group's bandwidth between hosts
  friend bool operator==(const NodePrice&, const NodePrice&) = default;
};

/// Immutable but for a cache of paths; methods may be called from many threads.
class Prices {
 public:
  const cost::CostModel& model() const { return *model_; }
  const topologies::Cluster& cluster() const { return *cluster_; }
  bool on_cpu() const { return model_->profile().cpu.has_value(); }
  /// Global device of a rank.
  int DeviceOf(int32_t rank) const { return device_of_rank_[static_cast<size_t>(rank)]; }

  /// A compute or host op of one rank, alone on its device (a CPU rank: on one core; attention
  /// there is the sum of bytes, products and scores at the rates of "attention" and
  /// "attention.scores").
  NodePrice PriceOp(const RankProgram& program, const Block& block, const Op& op) const;

  /// PriceOp of every op of every block; communication stays 0.
  std::vector<std::vector<NodePrice>> PriceBlocks(const RankProgram& program) const;

  /// A collective or message on a communicator of `kind` from the arrival of the last member on.
  ///
  /// GPUs: cost::CostModel::ExplainCollective for the class of traffic, by copy engines where the
  /// runtime uses them (peer_traffic.h). CPU ranks that are threads of one host: the member
  /// that arrives last moves all bytes and wakes the others, so with n members
  ///   time = bytes moved / rate of the kernel "all_reduce", "all_gather", "reduce_scatter", "send"
  ///          + what the meeting takes (CorePlacesOf): collective_latency of a core where the ranks
  ///            share one, else the latency of the path
  ///          + (n - 2) collective_step
  /// where S bytes are moved 2 n times by an all-reduce or all-gather, n + 1 times by a
  /// reduce-scatter (a member keeps 1/n of it) and twice by a message.
  NodePrice PriceCommunication(const RankProgram& program, CommunicatorKind kind,
                               const Block& block, const Op& op, const cost::PathFacts& path) const;

  /// What the ranks of a group have between them. Memoised by the shape of the group on the
  /// hosts, so that thousands of equal groups cost one query. Errors: those of Cluster::Group.
  Result<cost::PathFacts> PathOf(std::span<const int32_t> ranks) const;

  /// Queries that PathOf could not answer from memory.
  int64_t path_queries() const;

 private:
  friend Result<Prices> MakePrices(const Plan&, const topologies::Cluster&, const cost::CostModel&);
  struct PathCache;
  Prices() = default;

  NodePrice PriceThreads(const RankProgram& program, const Block& block, const Op& op,
                         const cost::PathFacts& path) const;
  CorePlaces PlacesOf(const RankProgram& program) const {
    return places_[static_cast<size_t>(program.module)];
  }
  double OwnedShare(const RankProgram& program) const;

  std::shared_ptr<const cost::CostModel> model_;
  std::shared_ptr<const topologies::Cluster> cluster_;
  std::vector<int> device_of_rank_;
  /// Of every op of a GPU rank that has partners.
  Nanoseconds partnered_;
  std::vector<CorePlaces> places_;   ///< by module; CPU ranks
  std::vector<double> owned_share_;  ///< by module: part of a bucket that a rank's optimizer owns
  std::shared_ptr<PathCache> paths_;
};

/// Work of an op as the cost models count it; `owned_share` is the part of a gradient bucket that
/// the rank's optimizer owns (1 / dp under ZeRO-1).
cost::Work CostWork(const RankProgram& program, const Block& block, const Op& op,
                    double owned_share);

/// What a collective or message is priced as.
cost::CollectiveKind CollectiveKindOf(OpKind kind);
/// Class of the traffic on a communicator; nullopt where the runtime has none of its own.
std::optional<cost::Traffic> TrafficOf(CommunicatorKind kind);
cost::Carrier CarrierOf(PeerCarrier carrier);

/// Name of an op's kernel in CPU profiles: that of the kind, with the variant where it matters:
/// "copy", "norm.rms_norm", "activation.silu.gated".
std::string KernelName(OpKind kind, const OpAttributes& attributes);

/// Behind the name of an attention kernel: the part that goes with the bytes of its scores.
inline constexpr const char* kScoresSuffix = ".scores";

/// Number format of the arithmetic on `dtype`; integers count as fp32 (their ops only move memory).
cost::Precision PrecisionOf(DType dtype);

/// Prices for the plan's placement; with tensor traffic CostOptions::stretch is at least 1.
/// kInvalidInput when the placement does not fit the cluster, or
/// the cost model lacks the plan's precision or is of another kind of device than the cluster has.
Result<Prices> MakePrices(const Plan& plan, const topologies::Cluster& cluster,
                          const cost::CostModel& model);

}  // namespace meshwright::planner
