// The plan's memory as sums over its items, computed apart from the allocator that lays out the
// arena (planner/lower/program_builder.cc): the two must agree to the byte, and tests compare them.
//
//   parameters     padded elements of all buckets x size of the compute type
//   gradients      the same elements x size of the gradient type
//   optimizer      per bucket: owned elements x states x size of the moment type
//   saved          slots x largest sum of saved bytes of a chunk; slots = micro-batches x chunks in
//                  flight
//   scratch        largest block, the carried residual stream included
//   communication  buffers of the pipeline edges x residual stream
//   io             step scalars; on the head's stage the labels of all micro-batches
// each rounded up to 256 B.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/ir/plan.h"
#include "planner/lower/item.h"
#include "planner/search/item_blocks.h"

namespace meshwright::planner::search {

/// Chunk passes whose saved tensors a stage holds at the same time (parallelism.md 9.4).
int64_t PassesInFlight(int64_t pp, int64_t virtual_stages, int64_t micro_batches, int64_t stage);

/// How a stage cuts its parameters into buckets.
struct BucketRules {
  int64_t dp = 1;
  bool sharded = false;  ///< ZeRO-1 with dp > 1
  int64_t target_elements = 1;
  bool tied_here = false;
  bool tied_across = false;
  int64_t states = 0;       ///< optimizer states an element, master weight included
  int64_t state_bytes = 0;  ///< bytes of one state of one element
  friend bool operator==(const BucketRules&, const BucketRules&) = default;
};
BucketRules BucketRulesOf(const Plan& plan, const ModulePlan& module,
                          const lower::SplitFacts& split);

/// An item as the bucket walk sees it, in forward order.
struct BucketItem {
  lower::ItemKind kind = lower::ItemKind::kLayer;
  int64_t main_elements = 0;
  int64_t late_elements = 0;
};

struct BucketSums {
  std::vector<int64_t> buckets;         ///< padded elements, in order
  std::vector<int32_t> bucket_of_item;  ///< by position in forward order; -1: no main parameters
  int32_t late_bucket = -1;
  int32_t tied_bucket = -1;
  int64_t elements = 0;
  int64_t optimizer_bytes = 0;
};
BucketSums SumBuckets(const BucketRules& rules, const std::vector<BucketItem>& items);

/// Bytes of receive and send buffers of a stage.
int64_t CommunicationBytes(int64_t pp, int64_t virtual_stages, int64_t micro_batches, int64_t stage,
                           int64_t residual_bytes);
/// Bytes of labels and scalars.
int64_t IoBytes(bool has_head, int64_t sequence, int64_t micro_batch, int64_t micro_batches);

/// Memory of one rank of stage `stage` of module `module`; `outside` and below are left 0. The plan
/// must pass CheckPlan and CheckSupported.
MemoryBreakdown PlannedMemory(const Plan& plan, size_t module, int64_t stage);

}  // namespace meshwright::planner::search
