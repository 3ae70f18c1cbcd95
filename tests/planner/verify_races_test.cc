// The order of accesses to memory: streams, event registers, steps; and the fast check against the
// slow one on random programs.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/planner/verify_common.h"

namespace meshwright::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Events of an op.
struct Ends {
  std::vector<EventId> waits;
  EventId signal = -1;
};
struct Bytes {
  int64_t begin = 0, end = 0;
};

/// One rank whose arena is all parameters, which live from step to step: only order matters.
class TinyProgram {
 public:
  explicit TinyProgram(int streams, int32_t events = 4) {
    RankProgram p;
    for (int i = 0; i < streams; ++i)
      p.streams.push_back({fmt::format("s{}", i), StreamKind::kCompute});
    p.events = events;
    p.arena.memory.parameters = 1 << 20;
    p.arena.gradients = p.arena.optimizer = p.arena.io = p.arena.saved = p.arena.scratch =
        p.arena.communication = p.arena.size = 1 << 20;
    programs_.programs.push_back(p);
    programs_.modules.emplace_back().module = "toy";
    programs_.ranks.emplace_back();
    programs_.facts.micro_batches = 1;
  }

  /// A task of one op that reads and writes these bytes.
  TinyProgram& Add(const std::string& name, int stream, Bytes reads, Bytes writes, Ends ends = {}) {
    Block block;
    block.name = name;
    Op op;
    op.kind = OpKind::kCopy;
    op.stream = static_cast<StreamId>(stream);
    op.waits = ends.waits;
    op.signal = ends.signal;
    for (const auto& [bytes, access] :
         {std::pair{reads, Access::kRead}, {writes, Access::kWrite}}) {
      if (bytes.begin == bytes.end) {
        op.operands.push_back({-1, access});
        continue;
      }
      op.operands.push_back({static_cast<int32_t>(block.tensors.size()), access});
      block.tensors.push_back(
          {name, DType::kI32, {(bytes.end - bytes.begin) / 4}, Region::kParameter, bytes.begin});
    }
    block.ops.push_back(std::move(op));
    Task task;
    task.kind = TaskKind::kStep;
    task.instances.emplace_back().block = static_cast<int32_t>(program().blocks.size());
    program().blocks.push_back(std::move(block));
    program().tasks.push_back(std::move(task));
    return *this;
  }

  RankProgram& program() { return programs_.programs.front(); }
  Programs& programs() { return programs_; }
  Status Check() const {
    const Status fast = CheckRaces(programs_);
    EXPECT_EQ(fast.ok(), CheckRaces(programs_, false).ok()) << fast.message();
    return fast;
  }

 private:
  Programs programs_;
};

constexpr Bytes kNone{0, 0};
constexpr Bytes kA{0, 8};
constexpr Bytes kB{8, 16};

TEST(Races, StreamsKeepOrder) {
  EXPECT_TRUE(TinyProgram(1).Add("w", 0, kNone, kA).Add("r", 0, kA, kB).Check().ok());
}

TEST(Races, OtherStreamsNeedAnEvent) {
  // In the next step the write must also wait for the read.
  TinyProgram ordered(2);
  ordered.Add("w", 0, kNone, kA, {{1}, 0}).Add("r", 1, kA, kB, {{0}, 1});
  EXPECT_TRUE(ordered.Check().ok());
  TinyProgram unordered(2);
  unordered.Add("w", 0, kNone, kA, {{1}, 0}).Add("r", 1, kA, kB, {{}, 1});
  EXPECT_THAT(unordered.Check().message(), AllOf(HasSubstr("rank 0"), HasSubstr("block w"),
                                                 HasSubstr("block r"), HasSubstr("stream s1")));
}

TEST(Races, TheNextStepCounts) {
  TinyProgram p(2);
  p.Add("w", 0, kNone, kA, {{}, 0}).Add("r", 1, kA, kB, {{0}, -1});
  EXPECT_THAT(p.Check().message(),
              AllOf(HasSubstr("block r"), HasSubstr("in the next step"), HasSubstr("block w")));
}

TEST(Races, ReadersNeedNoOrderAmongThemselves) {
  EXPECT_TRUE(TinyProgram(3)
                  .Add("r0", 0, kA, kNone)
                  .Add("r1", 1, kA, kNone)
                  .Add("r2", 2, kA, kB)
                  .Check()
                  .ok());
}

TEST(Races, DisjointBytesNeedNoOrderOneSharedElementDoes) {
  EXPECT_TRUE(TinyProgram(2).Add("a", 0, kNone, kA).Add("b", 1, kNone, kB).Check().ok());
  EXPECT_FALSE(TinyProgram(2).Add("a", 0, kNone, {0, 12}).Add("b", 1, kNone, kB).Check().ok());
}

TEST(Races, EventsPassOnWhatTheirStreamKnows) {
  // w -> (event 0) stream 1 -> (event 1) stream 2: the reader knows of w through the middle.
  TinyProgram p(3);
  p.Add("w", 0, kNone, kA, {{2}, 0})
      .Add("middle", 1, kNone, kB, {{0}, 1})
      .Add("r", 2, kA, kNone, {{1}, 2});
  EXPECT_TRUE(p.Check().ok());
}

TEST(Races, AWaitIsForTheLatestRecordBeforeIt) {
  // Event 0 is recorded again by an op that knows nothing of w.
  TinyProgram p(3);
  p.Add("w", 0, kNone, kA, {{1}, 0})
      .Add("other", 2, kNone, kNone, {{}, 0})
      .Add("r", 1, kA, kNone, {{0}, 1});
  EXPECT_THAT(p.Check().message(), AllOf(HasSubstr("block w"), HasSubstr("block r")));
  // Recorded only after the wait: in the first step the wait is for nothing.
  TinyProgram late(2);
  late.Add("r", 1, kA, kNone, {{0}, 1}).Add("w", 0, kNone, kA, {{1}, 0});
  EXPECT_TRUE(late.Check().ok());  // r of the next step waits for w of this one
}

TEST(Races, InstanceEventsGateTheFirstOpAndFollowTheLast) {
  TinyProgram p(2);
  p.Add("w", 0, kNone, kA).Add("r", 1, kA, kNone);
  EXPECT_FALSE(p.Check().ok());
  p.program().tasks[0].instances[0].signals = {0};
  p.program().tasks[0].instances[0].waits = {1};
  p.program().tasks[1].instances[0].waits = {0};
  p.program().tasks[1].instances[0].signals = {1};
  EXPECT_TRUE(p.Check().ok());
}

TEST(Races, InstanceWaitsGateEveryStream) {
  TinyProgram p(3);
  p.Add("w", 0, kNone, kA).Add("other", 1, kNone, kNone).Add("r", 2, kA, kNone);
  // The reader's block begins on another stream.
  Block& block = p.program().blocks[2];
  block.ops.insert(block.ops.begin(), p.program().blocks[1].ops.front());
  EXPECT_FALSE(p.Check().ok());
  p.program().tasks[0].instances[0].signals = {0};
  p.program().tasks[0].instances[0].waits = {1};
  p.program().tasks[2].instances[0].waits = {0};
  p.program().tasks[2].instances[0].signals = {1};
  EXPECT_TRUE(p.Check().ok());
}

TEST(Races, OneOpMayReadWhatItWrites) {
  EXPECT_TRUE(TinyProgram(1).Add("in place", 0, kA, kA).Check().ok());
}

TEST(Races, BadIndicesAreRefusedAndNotFollowed) {
  const auto broken = [](const std::function<void(RankProgram&)>& change) {
    TinyProgram p(2);
    p.Add("w", 0, kNone, kA, {{1}, 0}).Add("r", 1, kA, kB, {{0}, 1});
    change(p.program());
    return CheckRaces(p.programs());
  };
  EXPECT_FALSE(broken([](RankProgram& p) { p.blocks[0].ops[0].stream = 2; }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.blocks[0].ops[0].signal = 4; }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.blocks[0].ops[0].waits = {-1}; }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.blocks[0].ops[0].operands[1].tensor = 1; }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) {
                 p.blocks[0].tensors[0].shape = {int64_t{1} << 62, 4};
               }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.blocks[0].ops.clear(); }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.tasks[0].instances[0].block = 2; }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.tasks[0].instances[0].base[0] = -1; }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.events = -1; }).ok());
  EXPECT_FALSE(broken([](RankProgram& p) { p.module = 1; }).ok());
}

/// A few blocks of a few ops over few bytes, bound at random and ordered by random events.
Programs RandomProgram(std::mt19937& random) {
  const auto below = [&](size_t n) { return static_cast<int64_t>(random() % n); };
  const int streams = 1 + static_cast<int>(below(3));
  TinyProgram tiny(streams, 5);
  RankProgram& p = tiny.program();
  if (random() % 3 == 0) {  // the same bytes as scratch: stale reads count too
    p.arena.memory.parameters = 0;
    p.arena.memory.scratch = 1 << 20;
    p.arena.scratch = 0;
  }
  const auto events = [&](std::vector<EventId>& list, uint32_t odds) {
    while (random() % odds == 0) list.push_back(static_cast<EventId>(below(5)));
  };
  const std::array<Region, 4> regions = {Region::kIn0, Region::kOut0, Region::kScratch,
                                         Region::kSaved};
  for (int64_t b = 0, blocks = 1 + below(3); b < blocks; ++b) {
    Block block;
    block.name = fmt::format("b{}", b);
    for (int64_t t = 0, tensors = 2 + below(3); t < tensors; ++t) {
      block.tensors.push_back({fmt::format("t{}", t),
                               DType::kI32,
                               {1 + below(3)},
                               regions[static_cast<size_t>(below(4))],
                               4 * below(4)});
    }
    for (int64_t o = 0, ops = 1 + below(4); o < ops; ++o) {
      Op op;
      op.kind = OpKind::kCopy;
      op.stream = static_cast<StreamId>(below(static_cast<size_t>(streams)));
      events(op.waits, 2);
      if (random() % 2 == 0) op.signal = static_cast<EventId>(below(5));
      for (int64_t k = 0, operands = 1 + below(2); k < operands; ++k) {
        op.operands.push_back({static_cast<int32_t>(below(block.tensors.size())),
                               random() % 3 == 0   ? Access::kWrite
                               : random() % 4 == 0 ? Access::kAccumulate
                                                   : Access::kRead});
      }
      block.ops.push_back(std::move(op));
    }
    p.blocks.push_back(std::move(block));
  }
  for (int64_t t = 0, tasks = 1 + below(4); t < tasks; ++t) {
    Task task;
    task.kind = TaskKind::kForward;
    task.micro_batch = static_cast<int32_t>(below(3)) - 1;
    for (int64_t i = 0, instances = 1 + below(2); i < instances; ++i) {
      Instance instance;
      instance.block = static_cast<int32_t>(below(p.blocks.size()));
      instance.layer = below(2);
      for (int64_t& base : instance.base) base = 16 * below(5) + 4 * below(2);
      events(instance.waits, 2);
      events(instance.signals, 3);
      task.instances.push_back(std::move(instance));
    }
    p.tasks.push_back(std::move(task));
  }
  return tiny.programs();
}

TEST(Races, BlockByBlockAgreesWithOpByOp) {
  std::mt19937 random(3);
  const int rounds = testing::LongForm() ? 1'000'000 : 30'000;
  std::map<bool, int> verdicts;
  for (int i = 0; i < rounds; ++i) {
    const Programs programs = RandomProgram(random);
    const Status fast = CheckRaces(programs);
    const Status slow = CheckRaces(programs, false);
    ASSERT_EQ(fast.ok(), slow.ok()) << "round " << i << "\n"
                                    << fast.message() << "\n"
                                    << slow.message() << "\n"
                                    << DumpProgram(programs.programs.front());
    ++verdicts[fast.ok()];
  }
  EXPECT_GE(verdicts[true], rounds / 20);
  EXPECT_GE(verdicts[false], rounds / 20);
}

TEST(Races, BlockByBlockAgreesOnLoweredProgramsWithoutSomeWaits) {
  std::mt19937 random(5);
  const int wanted = testing::LongForm() ? 1000 : 60;
  std::map<bool, int> verdicts;
  for (int made = 0; made < wanted;) {
    const testing::RandomSplit split = testing::Draw(random, 16);
    const Result<Plan> plan = MakePlan(split.model, split.request);
    if (!plan.ok()) continue;
    ++made;
    Programs programs = Lower(*plan).value();
    for (RankProgram& p : programs.programs) {
      Task& task = p.tasks[random() % p.tasks.size()];
      Instance& instance = task.instances[random() % task.instances.size()];
      if (random() % 2 == 0) instance.waits.clear();
      Block& block = testing::OwnBlock(p, instance);
      Op& op = block.ops[random() % block.ops.size()];
      if (random() % 2 == 0) op.waits.clear();
    }
    const Status fast = CheckRaces(programs);
    const Status slow = CheckRaces(programs, false);
    EXPECT_EQ(fast.ok(), slow.ok()) << fast.message() << "\n" << slow.message();
    ++verdicts[fast.ok()];
  }
  EXPECT_GE(verdicts[true], wanted / 20);
  EXPECT_GE(verdicts[false], wanted / 20);
}

}  // namespace
}  // namespace meshwright::planner
