// Random legal plans are proven; folded and unfolded agree, also when one rank differs.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/planner/verify_common.h"

namespace meshwright::planner {
namespace {

using testing::Draw;
using testing::LongForm;
using testing::Lowered;
using testing::Own;
using testing::ProgramOf;
using testing::RandomSplit;
using testing::TinyModel;

std::string Describe(const RandomSplit& s) {
  const SplitRequest& r = s.request;
  return fmt::format("{} layers {} tp{} pp{} dp{} v{} mb{} gb{} seq{} sharding {} bucket {}",
                     s.model.name, s.model.modules.front().layer_count(), r.tp, r.pp, r.dp,
                     r.virtual_stages, r.micro_batch, r.global_batch, r.sequence,
                     ToString(r.sharding), r.bucket_elements);
}

TEST(VerifyPlans, RandomLegalPlansAreProven) {
  const int wanted = LongForm() ? 1000 : 100;
  std::mt19937 random(7);
  int legal = 0;
  std::map<std::string, int> seen;
  for (int drawn = 0; legal < wanted; ++drawn) {
    ASSERT_LT(drawn, 40 * wanted) << "the generator hardly draws legal plans";
    const RandomSplit split = Draw(random, 64);
    const Result<Plan> plan = MakePlan(split.model, split.request);
    if (!plan.ok()) continue;
    const Result<Programs> programs = Lower(*plan);
    ASSERT_TRUE(programs.ok()) << Describe(split) << ": " << programs.status().message();
    ++legal;
    ++seen[split.request.virtual_stages > 1 ? "interleaved" : "plain"];
    if (split.request.tp > 1) ++seen["tensor"];
    if (split.request.dp > 1 && split.request.sharding == Sharding::kZero1) ++seen["zero1"];
    const Status status = Verify(*programs, {});
    EXPECT_TRUE(status.ok()) << Describe(split) << ": " << status.message();
    VerifyLimits unfolded;
    unfolded.fold = false;
    if (programs->ranks.size() <= 16) {
      EXPECT_TRUE(Verify(*programs, unfolded).ok()) << Describe(split);
    }
  }
  for (const char* kind : {"plain", "interleaved", "tensor", "zero1"}) {
    EXPECT_GE(seen[kind], wanted / 20) << kind;
  }
}

/// Changes that keep all indices in range, on one program.
void MutateRandomly(RankProgram& program, std::mt19937& random) {
  const auto any = [&](size_t n) { return static_cast<size_t>(random() % n); };
  auto& tasks = program.tasks;
  const size_t t = any(tasks.size());
  switch (random() % 6) {
    case 0:
      tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(t));
      break;
    case 1:
      std::swap(tasks[t], tasks[any(tasks.size())]);
      break;
    case 2:
      tasks.insert(tasks.begin() + static_cast<std::ptrdiff_t>(any(tasks.size())), Task(tasks[t]));
      break;
    case 3:
      if (program.events > 0) {
        const auto event = static_cast<EventId>(any(static_cast<size_t>(program.events)));
        tasks[t].instances.front().waits.push_back(event);
      }
      break;
    case 4: {
      const size_t to = any(tasks.size());
      const Task moved = tasks[t];
      tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(t));
      tasks.insert(tasks.begin() + static_cast<std::ptrdiff_t>(std::min(to, tasks.size())), moved);
      break;
    }
    default: {
      Instance& i = tasks[t].instances[any(tasks[t].instances.size())];
      Block& block = testing::OwnBlock(program, i);
      Op& op = block.ops[any(block.ops.size())];
      if (op.attributes.communicator >= 0) {
        op.attributes.communicator = static_cast<int32_t>(any(program.communicators.size()));
      } else {
        op.waits.clear();
      }
    }
  }
}

TEST(VerifyFold, SameVerdictsAsUnfoldedWithSingleRankMutants) {
  std::mt19937 random(11);
  const int wanted = LongForm() ? 2000 : 300;
  std::map<std::string, int> seen;
  for (int made = 0; made < wanted;) {
    const RandomSplit split = Draw(random, random() % 8 == 0 ? 64 : 16);
    const Result<Plan> plan = MakePlan(split.model, split.request);
    if (!plan.ok()) continue;
    Programs programs = Lower(*plan).value();
    ++made;
    for (uint32_t i = 0, n = 1 + random() % 2; i < n; ++i) {
      const auto rank = static_cast<int32_t>(random() % programs.ranks.size());
      MutateRandomly(random() % 2 == 0 ? Own(programs, rank) : ProgramOf(programs, rank), random);
    }
    const RankClasses folded = FoldRanks(programs);
    const RankClasses separate = SeparateRanks(programs);
    ASSERT_LE(folded.size(), separate.size());
    const Status messages = CheckMessages(programs, folded);
    const Status deadlock = CheckDeadlock(programs, folded);
    EXPECT_EQ(messages.ok(), CheckMessages(programs, separate).ok())
        << Describe(split) << ": " << messages.message();
    EXPECT_EQ(deadlock.ok(), CheckDeadlock(programs, separate).ok())
        << Describe(split) << ": " << deadlock.message();
    VerifyLimits unfolded;
    unfolded.fold = false;
    EXPECT_EQ(Verify(programs, {}).ok(), Verify(programs, unfolded).ok()) << Describe(split);
    ++seen[messages.ok() ? "messages ok" : "messages refused"];
    ++seen[deadlock.ok() ? "deadlock ok" : "deadlock refused"];
    if (messages.ok() && !deadlock.ok()) ++seen["deadlock alone"];
    if (folded.size() < separate.size()) ++seen["folded"];
  }
  for (const char* kind :
       {"messages ok", "messages refused", "deadlock ok", "deadlock refused", "folded"}) {
    EXPECT_GE(seen[kind], wanted / 10) << kind;
  }
  EXPECT_GE(seen["deadlock alone"], wanted / 100);
}

TEST(VerifyFold, ClassesOfAGrid) {
  SplitRequest r;
  r.tp = 2;
  r.pp = 2;
  r.dp = 2;
  r.global_batch = 8;
  r.sequence = 32;
  Programs programs = Lowered(TinyModel("gpt-tiny"), r);
  const RankClasses classes = FoldRanks(programs);
  EXPECT_THAT(classes.members, ::testing::ElementsAre(::testing::ElementsAre(0, 1, 2, 3),
                                                      ::testing::ElementsAre(4, 5, 6, 7)));
  EXPECT_EQ(classes.multiplicity(1), 4);
  EXPECT_EQ(classes.representative(1), 4);

  // Rank 1 on its own: its tensor partner 0, its data partner 3 and its stage partner 5 differ from
  // the others by their partner, and their partners in turn.
  Own(programs, 1);
  const RankClasses split = FoldRanks(programs);
  EXPECT_EQ(split.size(), 8);
}

TEST(VerifyFold, ChannelsJoinParallelEdges) {
  SplitRequest r;
  r.tp = 2;
  r.pp = 2;
  r.global_batch = 4;
  r.sequence = 32;
  const Programs programs = Lowered(TinyModel("llama-tiny"), r);
  const RankClasses classes = FoldRanks(programs);
  const Channels channels = ChannelsOf(programs, classes);
  const RankProgram& first = programs.programs[0];
  int edges = 0;
  for (size_t c = 0; c < first.communicators.size(); ++c) {
    const Channel& channel = channels.At(0, static_cast<int32_t>(c));
    switch (first.communicators[c].kind) {
      case CommunicatorKind::kTensor:
        EXPECT_EQ(channel.participants.size(), 1U);
        break;
      case CommunicatorKind::kEdge:
      case CommunicatorKind::kWorld:
        EXPECT_EQ(channel.participants.size(), 2U);
        EXPECT_EQ(channel.participants[1].rank_class, 1);
        ++edges;
        break;
      default:
        break;
    }
  }
  EXPECT_EQ(edges, 3);  // activations out, gradients in, world
}

}  // namespace
}  // namespace meshwright::planner
