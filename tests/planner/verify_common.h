// What the verifier's tests share: lowered programs, single-rank copies, random legal plans.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "planner/ir/load_model.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/verify/checks.h"

namespace meshwright::planner::testing {

/// MESHWRIGHT_LONG=1 asks for the long forms.
inline bool LongForm() {
  const char* value = std::getenv("MESHWRIGHT_LONG");
  return value != nullptr && std::string(value) == "1";
}

inline ModelSpec TinyModel(const std::string& name) {
  return LoadModel(std::string(MESHWRIGHT_SOURCE_DIR) + "/planner/models/" + name + ".yaml")
      .value();
}

inline Programs Lowered(const ModelSpec& model, const SplitRequest& request) {
  const Result<Plan> plan = MakePlan(model, request);
  MW_CHECK(plan.ok());
  return Lower(*plan).value();
}

inline RankProgram& ProgramOf(Programs& programs, int32_t rank) {
  return programs.programs[static_cast<size_t>(programs.ranks[static_cast<size_t>(rank)].program)];
}

/// Gives the rank a copy of its program, so that a change concerns this rank alone.
inline RankProgram& Own(Programs& programs, int32_t rank) {
  programs.programs.push_back(RankProgram(ProgramOf(programs, rank)));
  programs.ranks[static_cast<size_t>(rank)].program =
      static_cast<int32_t>(programs.programs.size()) - 1;
  return programs.programs.back();
}

/// Index of the task with this label; fails the test when there is none.
inline size_t TaskAt(const RankProgram& program, const std::string& label) {
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (Label(program.tasks[i]) == label) return i;
  }
  ADD_FAILURE() << "no task " << label;
  return 0;
}
inline Task& TaskOf(RankProgram& program, const std::string& label) {
  return program.tasks[TaskAt(program, label)];
}
inline void EraseTask(RankProgram& program, const std::string& label) {
  program.tasks.erase(program.tasks.begin() + static_cast<std::ptrdiff_t>(TaskAt(program, label)));
}

/// Gives an instance a copy of its block, so that a change concerns this instance alone.
inline Block& OwnBlock(RankProgram& program, Instance& instance) {
  program.blocks.push_back(Block(program.blocks[static_cast<size_t>(instance.block)]));
  instance.block = static_cast<int32_t>(program.blocks.size()) - 1;
  return program.blocks.back();
}

inline Op& OpOfKind(Block& block, OpKind kind) {
  for (Op& op : block.ops) {
    if (op.kind == kind) return op;
  }
  ADD_FAILURE() << "block " << block.name << " has no op " << ToString(kind);
  return block.ops.front();
}

/// A random split of a random small model; most are legal.
struct RandomSplit {
  ModelSpec model;
  SplitRequest request;
};

inline RandomSplit Draw(std::mt19937& random, int64_t max_ranks) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
  };
  RandomSplit split;
  split.model = TinyModel(random() % 2 == 0 ? "gpt-tiny" : "llama-tiny");
  ModuleSpec& module = split.model.modules.front();
  module.layers.assign(static_cast<size_t>(pick({2, 3, 4, 5, 6, 8, 11})), 0);
  module.tied_embeddings = random() % 2 == 0;
  if (module.layer_kinds.front().attention.kv_heads < module.layer_kinds.front().attention.heads) {
    module.layer_kinds.front().attention.kv_heads = pick({1, 2, 4});
  }
  SplitRequest& r = split.request;
  do {
    r.tp = pick({1, 1, 2, 4, 8});
    r.pp = pick({1, 1, 2, 3, 4});
    r.dp = pick({1, 1, 2, 3, 4});
  } while (r.tp * r.pp * r.dp > max_ranks);
  r.virtual_stages = r.pp > 1 ? pick({1, 1, 2, 3}) : 1;
  r.micro_batch = pick({1, 2});
  r.global_batch = r.dp * r.micro_batch * pick({1, 2, 3, 4, 5, 6, 8, 12});
  r.sequence = pick({16, 24, 32});
  if (random() % 3 == 0) r.sequence_parallel = false;
  r.sharding = random() % 2 == 0 ? Sharding::kNone : Sharding::kZero1;
  r.recompute.clear();
  for (int64_t i = 0; i < r.pp; ++i) {
    r.recompute.push_back(static_cast<Recompute>(random() % 3));
  }
  const int64_t chunks = r.pp * r.virtual_stages;
  const int64_t layers = module.layer_count();
  if (layers >= chunks && random() % 2 == 0) {  // uneven
    r.layers.assign(static_cast<size_t>(chunks), 1);
    for (int64_t i = chunks; i < layers; ++i) ++r.layers[random() % r.layers.size()];
  }
  r.dtype = static_cast<DType>(random() % 3);
  r.optimizer = random() % 4 == 0 ? OptimizerKind::kSgd : OptimizerKind::kAdamW;
  r.bucket_elements = pick({0, 1000, 20000, 100000});
  if (r.bucket_elements == 1000) r.logits_chunk_bytes = 1;
  if (r.bucket_elements == 20000) r.logits_chunk_bytes = 2048;
  return split;
}

inline std::string Describe(const RandomSplit& s) {
  const SplitRequest& r = s.request;
  return fmt::format("{} layers {} tp{} pp{} dp{} v{} mb{} gb{} seq{} sharding {} bucket {}",
                     s.model.name, s.model.modules.front().layer_count(), r.tp, r.pp, r.dp,
                     r.virtual_stages, r.micro_batch, r.global_batch, r.sequence,
                     ToString(r.sharding), r.bucket_elements);
}

}  // namespace meshwright::planner::testing
