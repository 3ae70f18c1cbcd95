// The splits that the equivalence tests run: every (tp, pp, dp) with product up to 8 under all
// options.
#pragma once

#include <string>
#include <vector>

#include "planner/ir/hash.h"
#include "planner/lower/make_plan.h"
#include "tests/runtime/small_models.h"

namespace meshwright::testing {

struct Combination {
  std::string
      model;  ///< "gpt", "gpt-untied", "llama", "llama-kv2" (copies under tp 4 and 8), "llama-tied"
  planner::SplitRequest split;
};

inline planner::ModelSpec ModelOf(const std::string& name) {
  if (name == "gpt") return SmallGpt(true);
  if (name == "gpt-untied") return SmallGpt(false);
  if (name == "llama-kv2") return SmallLlama(2);
  if (name == "llama-tied") return SmallLlama(4, true);
  return SmallLlama(4);
}

/// All combinations, legal or not, in a fixed order.
inline std::vector<Combination> AllCombinations(planner::DType dtype, int64_t sequence) {
  std::vector<Combination> all;
  const planner::Recompute modes[] = {planner::Recompute::kNone, planner::Recompute::kSelective,
                                      planner::Recompute::kFull};
  for (const char* model : {"gpt", "gpt-untied", "llama", "llama-kv2", "llama-tied"}) {
    for (int64_t tp = 1; tp <= 8; ++tp) {
      for (int64_t pp = 1; tp * pp <= 8; ++pp) {
        for (int64_t dp = 1; tp * pp * dp <= 8; ++dp) {
          for (int option = 0; option < 72; ++option) {
            Combination c;
            c.model = model;
            planner::SplitRequest& r = c.split;
            r.tp = tp;
            r.pp = pp;
            r.dp = dp;
            r.sequence_parallel = option % 2 == 1;
            if (tp > 1) {
              const int64_t some = *r.sequence_parallel ? tp : 2;
              const int64_t chunks[] = {1, some, 2 * some};
              r.tensor_chunks = chunks[(tp + pp + dp + option / 8) % 3];
            }
            r.virtual_stages = 1 + option / 2 % 2;
            r.sharding = option / 4 % 2 == 1 ? planner::Sharding::kZero1 : planner::Sharding::kNone;
            r.recompute = {modes[option / 8 % 3]};
            const int64_t micro_batches[] = {1, 3, 8};
            r.micro_batch = option / 24 == 0 ? 2 : 1;
            r.global_batch = micro_batches[option / 24] * r.micro_batch * dp;
            r.sequence = sequence;
            r.dtype = dtype;
            r.bucket_elements = 6000;                         // several buckets a stage
            if (option % 5 < 2) r.logits_chunk_bytes = 4096;  // 2 or 4 chunks of the head
            all.push_back(c);
          }
        }
      }
    }
  }
  return all;
}

/// A deterministic sample of the legal ones: about `wanted`, spread over everything.
inline std::vector<Combination> LegalSample(const std::vector<Combination>& all, size_t wanted) {
  std::vector<Combination> legal;
  for (const Combination& c : all) {
    if (planner::MakePlan(ModelOf(c.model), c.split).ok()) legal.push_back(c);
  }
  if (legal.size() <= wanted) return legal;
  std::vector<Combination> sample;
  for (size_t i = 0; i < legal.size(); ++i) {
    planner::Hasher h;
    if (h.Add(static_cast<int64_t>(i)).value() % legal.size() < wanted) sample.push_back(legal[i]);
  }
  return sample;
}

}  // namespace meshwright::testing
