// The search on the costs of real stacks: they keep the promises that its bounds rest on, and no
// bound changes the answer.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "cost_models/device_profile.h"
#include "planner/ir/load_model.h"
#include "planner/space/bounds.h"
#include "planner/space/finalists.h"
#include "planner/space/find_splits.h"
#include "planner/space/shapes.h"
#include "planner/stack/stack_costs.h"
#include "tests/planner/search_cases.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner::space {
namespace {

std::unique_ptr<stack::StackStageCosts> CostsOf(const std::string& model, int64_t gpus,
                                                const std::string& stack_name = "megatron") {
  const std::string root = MESHWRIGHT_SOURCE_DIR;
  const auto spec = LoadModel(root + "/planner/models/" + model + ".yaml").value();
  const auto cluster = topologies::LoadCluster(root + "/topologies/clusters/dgx-h100.yaml")
                           .value()
                           .WithDevices(gpus)
                           .value();
  auto profile = cost::LoadDeviceProfile(root + "/cost_models/profiles/h100-sxm.yaml").value();
  auto stack = stack::LoadStack(root + "/cost_models/stacks/" + stack_name + ".yaml").value();
  stack::CostInputs inputs;
  inputs.module = spec.modules.front();
  inputs.stack = std::move(stack);
  inputs.fabric = stack::FabricOf(cluster).value();
  inputs.profile = std::move(profile);
  inputs.sequence = 2048;
  return stack::StackStageCosts::Make(std::move(inputs)).value();
}

struct Scene {
  std::unique_ptr<stack::StackStageCosts> costs;
  std::vector<DeviceGroup> groups;
  SpaceOptions options;
};

Scene SceneOf(const std::string& model, int64_t gpus) {
  Scene s;
  s.costs = CostsOf(model, gpus);
  s.groups = {{"h100-sxm", s.costs.get(), 80e9, 0}};
  s.options.gpus = {gpus};
  s.options.global_batch = 64;
  s.options.most_cp = 4;
  s.options.most_micro_batch = 4;
  s.options.formats = {stack::LinearFormat::kBf16, stack::LinearFormat::kFp8};
  return s;
}

void ExpectLeast(const stack::ItemCost& least, const stack::ItemCost& item, const char* what,
                 const stack::Split& s) {
  const double more = 1 + 1e-12;
  EXPECT_LE(least.forward_s, item.forward_s * more) << what << " of " << ShortName(s);
  EXPECT_LE(least.backward_s, item.backward_s * more) << what << " of " << ShortName(s);
  EXPECT_LE(least.weight_s, item.weight_s * more) << what << " of " << ShortName(s);
  EXPECT_LE(least.saved_bytes, item.saved_bytes * more) << what << " of " << ShortName(s);
  EXPECT_LE(least.transient_bytes, item.transient_bytes * more) << what << " of " << ShortName(s);
}

double PassesOf(const stack::ItemCost& item) {
  return item.forward_s + item.backward_s;
}

std::array<bool, stack::kLayerModes> SomeModes(Dice& dice) {
  std::array<bool, stack::kLayerModes> modes{};
  for (bool& mode : modes) mode = dice.Coin();
  modes[static_cast<size_t>(dice.Between(0, 3))] = true;
  return modes;
}

void ExpectLeastPasses(stack::StackStageCosts& costs, const stack::Split& s, Dice& dice) {
  const double more = 1 + 1e-12;
  const stack::ItemTable& item = costs.Items(s);
  const auto modes = SomeModes(dice);
  stack::LeastSeconds shape, any;
  ASSERT_TRUE(costs.LeastPasses(s, stack::BoundOver::kShape, modes, &shape));
  ASSERT_TRUE(costs.LeastPasses(s, stack::BoundOver::kAnyExperts, modes, &any));
  for (size_t kind = 0; kind < item.layers.size(); ++kind) {
    for (size_t mode = 0; mode < stack::kLayerModes; ++mode) {
      if (!modes[mode]) continue;
      EXPECT_LE(shape.layer_s[kind], PassesOf(item.layers[kind][mode]) * more) << ShortName(s);
    }
    EXPECT_LE(any.layer_s[kind], shape.layer_s[kind] * more) << ShortName(s);
  }
  EXPECT_LE(shape.embedding_s, PassesOf(item.embedding) * more) << ShortName(s);
  EXPECT_LE(shape.head_s, PassesOf(item.head) * more) << ShortName(s);
  EXPECT_LE(any.embedding_s, shape.embedding_s * more) << ShortName(s);
  EXPECT_LE(any.head_s, shape.head_s * more) << ShortName(s);
  // Of any experts: whatever the split's own are.
  stack::Split other = s;
  other.ep = other.expert_tp = 1;
  stack::LeastSeconds same;
  ASSERT_TRUE(costs.LeastPasses(other, stack::BoundOver::kAnyExperts, modes, &same));
  EXPECT_EQ(same.layer_s, any.layer_s);
}

void ExpectPromises(stack::StackStageCosts& costs, const stack::Split& s, Dice& dice) {
  const stack::ItemTable& item = costs.Items(s);
  const stack::ItemTable* least = costs.LeastItems(s);
  ASSERT_NE(least, nullptr);
  for (size_t kind = 0; kind < item.layers.size(); ++kind) {
    for (size_t mode = 0; mode < stack::kLayerModes; ++mode) {
      ExpectLeast(least->layers[kind][mode], item.layers[kind][mode], "layer", s);
    }
    EXPECT_LE(least->layer_parameters[kind].dense, item.layer_parameters[kind].dense);
    EXPECT_LE(least->layer_parameters[kind].expert, item.layer_parameters[kind].expert);
  }
  ExpectLeastPasses(costs, s, dice);
  ExpectLeast(least->embedding, item.embedding, "embedding", s);
  ExpectLeast(least->head, item.head, "head", s);
  EXPECT_LE(least->message_s, item.message_s);
  EXPECT_LE(least->exposed_message_s, item.exposed_message_s * (1 + 1e-12));
  stack::StageSums a;
  a.forward_s = 1e-3 * static_cast<double>(dice.Between(0, 200));
  a.backward_s = 1e-3 * static_cast<double>(dice.Between(0, 400));
  a.saved_bytes = 1e6 * static_cast<double>(dice.Between(0, 1000));
  a.transient_bytes = 1e6 * static_cast<double>(dice.Between(0, 1000));
  a.parameters = {1e6 * static_cast<double>(dice.Between(1, 1000)),
                  1e6 * static_cast<double>(dice.Between(0, 1000))};
  stack::StageSums b = a;
  b.forward_s += 1e-3 * static_cast<double>(dice.Between(0, 100));
  b.backward_s += 1e-3 * static_cast<double>(dice.Between(0, 100));
  const double end_a = costs.EndOfStep(s, a), end_b = costs.EndOfStep(s, b);
  EXPECT_GE(end_a, costs.EndOfStepBound(s, a.parameters) * (1 - 1e-12));
  EXPECT_LE(end_b, end_a + 1e-12);
  EXPECT_LE(end_a + a.forward_s + a.backward_s, end_b + b.forward_s + b.backward_s + 1e-12);
  stack::StageSums more = a;
  more.parameters.dense *= 1.1;
  more.parameters.expert *= 1.1;
  more.saved_bytes *= 1.1;
  more.transient_bytes *= 1.1;
  EXPECT_GE(costs.EndOfStep(s, more), end_a);
  EXPECT_GE(costs.Memory(s, more, 2.0).total(), costs.Memory(s, a, 2.0).total());
  EXPECT_GE(costs.Memory(s, a, 3.0).total(), costs.Memory(s, a, 2.0).total());
}

class SpaceOnStack : public testing::TestWithParam<const char*> {};

TEST_P(SpaceOnStack, CostsKeepThePromisesOfStageCosts) {
  Scene scene = SceneOf(GetParam(), 32);
  Dice dice(5);
  int64_t seen = 0, checked = 0;
  for (const Shape& shape : ShapesOf(scene.groups, scene.options, 32)) {
    ForEachSplit(scene.groups, scene.options, 32, shape, [&](const stack::Split& s) {
      if (++seen % 37 != 0 || testing::Test::HasFailure()) return;
      ++checked;
      ExpectPromises(*scene.costs, s, dice);
    });
  }
  EXPECT_GT(checked, 100);
}

/// Parts that splits share leave nothing out of what tables say, whatever the stack runs.
TEST_P(SpaceOnStack, LeastPassesAreThoseOfLeastItems) {
  for (const std::string& name : stack::ShippedStackNames()) {
    Scene scene = SceneOf(GetParam(), 32);
    scene.costs = CostsOf(GetParam(), 32, name);
    scene.groups.front().costs = scene.costs.get();
    scene.options.most_micro_batch = 0;
    Dice dice(6);
    int64_t seen = 0;
    for (const Shape& shape : ShapesOf(scene.groups, scene.options, 32)) {
      if (++seen % 3 != 0) continue;
      stack::Split s;
      s.tp = shape.tp;
      s.cp = shape.cp;
      s.ep = shape.ep;
      s.expert_tp = shape.expert_tp;
      s.micro_batch = shape.micro_batch;
      s.sequence_parallel = shape.sequence_parallel;
      s.format = shape.format;
      const stack::ItemTable& table = *scene.costs->LeastItems(s);
      std::array<bool, stack::kLayerModes> modes{};
      const size_t mode = static_cast<size_t>(dice.Between(0, 2));  // not offloading
      modes[mode] = true;
      stack::LeastSeconds least;
      ASSERT_TRUE(scene.costs->LeastPasses(s, stack::BoundOver::kShape, modes, &least));
      for (size_t kind = 0; kind < table.layers.size(); ++kind) {
        const double passes = PassesOf(table.layers[kind][mode]);
        EXPECT_NEAR(least.layer_s[kind], passes, 1e-12 * passes) << name << " " << ShortName(s);
      }
      const double embedding = PassesOf(table.embedding), head = PassesOf(table.head);
      EXPECT_NEAR(least.embedding_s, embedding, 1e-12 * embedding) << name << " " << ShortName(s);
      EXPECT_NEAR(least.head_s, head, 1e-12 * head) << name << " " << ShortName(s);
      stack::LeastSeconds any;
      ASSERT_TRUE(scene.costs->LeastPasses(s, stack::BoundOver::kAnyExperts, modes, &any));
      for (size_t kind = 0; kind < table.layers.size(); ++kind) {
        EXPECT_LE(any.layer_s[kind], least.layer_s[kind] * (1 + 1e-12))
            << name << " " << ShortName(s);
      }
      EXPECT_LE(any.head_s, least.head_s * (1 + 1e-12)) << name << " " << ShortName(s);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(seen, 30);
  }
}

TEST_P(SpaceOnStack, BoundsDoNotChangeTheAnswer) {
  Scene scene = SceneOf(GetParam(), 16);
  scene.options.most_virtual_stages = 2;
  scene.options.formats = {stack::LinearFormat::kBf16};
  const auto found = FindSplits(scene.groups, scene.options);
  const Inner inner(scene.groups, scene.options);
  double best = std::numeric_limits<double>::infinity();
  int64_t tuples = 0;
  for (const Shape& shape : ShapesOf(scene.groups, scene.options, 16)) {
    ForEachSplit(scene.groups, scene.options, 16, shape, [&](const stack::Split& s) {
      ++tuples;  // solved without a limit
      const auto outcome = inner.Fastest({s, 0}, std::numeric_limits<double>::infinity());
      if (!outcome.solution) return;
      EXPECT_LE(inner.TimeBound({s, 0}, std::numeric_limits<double>::infinity()),
                outcome.solution->objective_s * (1 + 1e-9))
          << ShortName(s);
      best = std::min(best, outcome.solution->objective_s);
    });
  }
  ASSERT_EQ(found.ok(), best < std::numeric_limits<double>::infinity());
  if (!found.ok()) return;
  EXPECT_NEAR(found->best.front().objective_s, best, 1e-9 * best);
  EXPECT_EQ(found->certificate.configurations, tuples);
}

TEST_P(SpaceOnStack, FinalistsAreSimulatedAndTheObjectiveIsNear) {
  Scene scene = SceneOf(GetParam(), 64);
  scene.options.top = 10;
  const auto found = FindSplits(scene.groups, scene.options);
  if (!found.ok()) {
    EXPECT_EQ(found.status().code(), StatusCode::kInfeasible);
    return;
  }
  const auto finalists = SimulateFinalists(scene.groups, found->best);
  ASSERT_TRUE(finalists.ok()) << finalists.status().message();
  ASSERT_EQ(finalists->size(), found->best.size());
  for (size_t i = 0; i < finalists->size(); ++i) {
    const Finalist& f = (*finalists)[i];
    // Many chunks and few micro-batches leave the most out of the closed form.
    EXPECT_NEAR(f.gap, 0.0, 0.2) << ShortName(f.solution.tuple.split);
    if (i > 0) {
      EXPECT_GE(f.simulated_s, (*finalists)[i - 1].simulated_s);
    }
    if (f.solution.tuple.split.pp == 1) {
      EXPECT_NEAR(f.gap, 0.0, 1e-6);
    }
  }
  const auto best = BestFinalists(scene.groups, found->best, 1);
  ASSERT_TRUE(best.ok());
  ASSERT_EQ(best->size(), 1U);
  // Only solutions whose objective is not below the winner's time may have been left out.
  for (const Finalist& f : *finalists) {
    if (f.solution.objective_s < best->front().simulated_s) {
      EXPECT_LE(best->front().simulated_s, f.simulated_s) << ShortName(f.solution.tuple.split);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SpaceOnStack,
                         testing::Values("gpt2-xl", "llama-3-8b", "gemma-2-9b", "mixtral-8x7b",
                                         "deepseek-v3"));

}  // namespace
}  // namespace meshwright::planner::space
