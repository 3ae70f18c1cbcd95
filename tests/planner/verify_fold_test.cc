// Folded and unfolded verdicts agree, also when one rank differs, and both agree with an execution.
#include <gmock/gmock.h>

#include <map>

#include "planner/ir/op_schema.h"
#include "tests/planner/verify_common.h"

namespace meshwright::planner {
namespace {

using testing::Describe;
using testing::Draw;
using testing::LongForm;
using testing::Lowered;
using testing::Own;
using testing::ProgramOf;
using testing::RandomSplit;
using testing::TinyModel;

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

/// Two steps of all ranks, op by op as program.h says: streams in order, the latest record of an
/// event, partners together. True when all ops complete.
class Execution {
 public:
  explicit Execution(const Programs& programs) : programs_(programs) {
    for (size_t r = 0; r < programs.ranks.size(); ++r) Issue(static_cast<int32_t>(r));
  }

  bool Completes() {
    size_t left = ops_.size();
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& queue : streams_) {
        while (queue.next < queue.ops.size() && Finish(queue.ops[queue.next])) {
          ++queue.next;
          --left;
          moved = true;
        }
      }
    }
    return left == 0;
  }

 private:
  struct Issued {
    std::vector<size_t> waits;
    int32_t group = -1;  ///< of a collective or message
    size_t number = 0;   ///< which op of this rank on the group
    bool started = false, done = false;
  };
  struct Queue {
    std::vector<size_t> ops;
    size_t next = 0;
  };

  void Issue(int32_t rank) {
    const RankBinding& binding = programs_.ranks[static_cast<size_t>(rank)];
    const RankProgram& program = programs_.programs[static_cast<size_t>(binding.program)];
    const size_t first_stream = streams_.size();
    streams_.resize(first_stream + program.streams.size());
    std::map<EventId, size_t> records;
    for (int step = 0; step < 2; ++step) {
      for (const Task& task : program.tasks) {
        for (const Instance& instance : task.instances) {
          const Block& block = program.blocks[static_cast<size_t>(instance.block)];
          for (size_t i = 0; i < block.ops.size(); ++i) {
            const Op& op = block.ops[i];
            Issued issued;
            const auto wait = [&](EventId e) {
              if (records.count(e) != 0) issued.waits.push_back(records[e]);
            };
            for (EventId e : op.waits) wait(e);
            if (i == 0) {
              for (EventId e : instance.waits) wait(e);
            }
            const size_t id = ops_.size();
            if (IsCollective(op.kind) || IsMessage(op.kind)) {
              issued.group = binding.groups[static_cast<size_t>(op.attributes.communicator)];
              auto& posted = posted_[{issued.group, rank}];
              issued.number = posted.size();
              posted.push_back(id);
            }
            ops_.push_back(std::move(issued));
            streams_[first_stream + static_cast<size_t>(op.stream)].ops.push_back(id);
            if (op.signal >= 0) records[op.signal] = id;
            if (i + 1 == block.ops.size()) {
              for (EventId e : instance.signals) records[e] = id;
            }
          }
        }
      }
    }
  }

  bool Finish(size_t id) {
    Issued& op = ops_[id];
    if (op.done) return true;
    for (size_t w : op.waits) {
      if (!ops_[w].done) return false;
    }
    op.started = true;
    if (op.group >= 0) {
      std::vector<size_t> partners;
      for (int32_t rank : programs_.groups[static_cast<size_t>(op.group)].ranks) {
        const auto it = posted_.find({op.group, rank});
        if (it == posted_.end() || op.number >= it->second.size()) return false;
        partners.push_back(it->second[op.number]);
        if (!ops_[partners.back()].started) return false;
      }
      for (size_t p : partners) ops_[p].done = true;
    }
    op.done = true;
    return true;
  }

  const Programs& programs_;
  std::vector<Issued> ops_;
  std::vector<Queue> streams_;
  std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> posted_;  ///< group, rank -> ops
};

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
    if (programs.ranks.size() <= 16) {
      EXPECT_EQ(deadlock.ok(), Execution(programs).Completes())
          << Describe(split) << ": " << deadlock.message();
    }
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
  RankProgram& own = Own(programs, 1);
  own.blocks.front().tensors.front().offset += 64;
  EXPECT_EQ(FoldRanks(programs).members, classes.members) << "other rows, the same at the same time";
  std::swap(own.tasks[0], own.tasks[1]);
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
