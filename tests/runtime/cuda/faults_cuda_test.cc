// Faults in whole runs of two and eight ranks: within the deadline every rank that lives names the
// culprit and all processes end. MESHWRIGHT_LONG=1 repeats each fault ten times;
// MESHWRIGHT_FAULT_DEADLINE_S gives ranks more time where their start takes longer.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <regex>

#include "tests/runtime/cuda/gpu_splits.h"

namespace meshwright {
namespace {

using planner::Programs;
using testing::GpuJob;
using testing::GpuJobOptions;

// s; also of the start, a rank's part of which takes 2 to 4 s where it has a GPU of its own.
constexpr double kDeadline = 6.0;
constexpr double kSharedDeadline = 60.0;
constexpr double kExit = 4.0;  // s; for a process to leave CUDA once its rank is done
constexpr int kCulprit = 1;

double DeadlineSeconds(const Programs& programs) {
  const char* value = std::getenv("MESHWRIGHT_FAULT_DEADLINE_S");
  if (value != nullptr) return std::atof(value);
  const bool shared = static_cast<size_t>(runtime::CountGpus()) < programs.ranks.size();
  return shared ? kSharedDeadline : kDeadline;
}

int Rounds() {
  return planner::testing::LongForm() ? 10 : 1;
}

/// A tiny model on `ranks`: data parallel or, with `tensor`, tensor parallel in slices; eight are
/// split in all three dimensions.
Programs TinyOn(int ranks, bool tensor) {
  const bool cube = ranks == 8;
  const int64_t tp = cube || tensor ? 2 : 1;
  planner::SplitRequest r =
      testing::SmallRequest(tp, cube ? 2 : 1, cube ? 2 : 2 / tp, planner::DType::kF32);
  if (tp == 2) r.sequence_parallel = true;
  if (tensor) r.tensor_chunks = 2;
  return planner::testing::Lowered(planner::testing::TinyModel("gpt-tiny"), r);
}

struct Fault {
  const char* name;
  Programs programs;
  GpuJobOptions options;
  std::regex named;   ///< the rank that an error blames is its first group
  bool dies = false;  ///< the culprit's process, so that it says nothing itself
};

/// When the culprit died, or ranks began the first step, in which it leaves something out.
double HappenedAt(const Fault& fault, const GpuJob& job) {
  if (fault.dies) return job.ranks[kCulprit].last_step_s;
  double began_s = 0.0;
  for (const testing::RankNote& note : job.ranks) began_s = std::max(began_s, note.began_s);
  return began_s;
}

/// One round; true when it went as it should.
bool RunRound(const Fault& fault, int round) {
  const double begin_s = testing::SteadySeconds();
  const GpuJob job = testing::RunOnGpus(fault.programs, fault.options);
  const double end_s = testing::SteadySeconds();
  const double fault_s = job.ranks.empty() ? 0.0 : HappenedAt(fault, job);
  if (fault_s == 0.0) {
    ADD_FAILURE() << fault.name << ": the ranks never came to the fault: " << job.what << "; "
                  << (job.ranks.empty() ? "" : job.ranks[0].error);
    return false;
  }
  bool good = job.exit_code == 3;
  double named_s = 0.0;
  std::string blamed;
  for (size_t r = 0; r < job.ranks.size(); ++r) {
    const testing::RankNote& note = job.ranks[r];
    if (fault.dies && r == kCulprit) continue;
    std::cmatch match;
    const bool names = note.ended && std::regex_search(note.error, match, fault.named);
    const std::string rank = names ? match[1].str() : "nobody";
    blamed += (blamed.empty() ? "" : ", ") + fmt::format("rank {} names {}", r, rank);
    named_s = std::max(named_s, note.ended_s - fault_s);
    good = good && rank == std::to_string(kCulprit);
  }
  good = good && named_s <= fault.options.deadline_s && end_s - fault_s <= named_s + kExit;
  fmt::print(
      "{}, round {} of {}: {} after {:.2f} s, all processes ended after {:.2f} s ({:.1f} s with "
      "their start): \"{}\"\n",
      fault.name, round + 1, Rounds(), blamed, named_s, end_s - fault_s, end_s - begin_s,
      job.ranks[0].error);
  EXPECT_TRUE(good) << fault.name << ": exit code " << job.exit_code << " (" << job.what
                    << "); every living rank must name rank " << kCulprit << " within "
                    << fault.options.deadline_s << " s and all processes end " << kExit
                    << " s later";
  return good;
}

void RunRounds(const Fault& fault) {
  int good = 0;
  for (int round = 0; round < Rounds(); ++round) good += RunRound(fault, round) ? 1 : 0;
  fmt::print("{}: named within {} s in {} of {} rounds\n", fault.name, fault.options.deadline_s,
             good, Rounds());
  std::fflush(stdout);
}

Fault KilledRank(const char* name, Programs programs) {
  Fault fault{name,
              std::move(programs),
              {},
              std::regex("rank ([0-9]+) (is gone|has given no sign of life)"),
              true};
  fault.options.steps = 100000;
  fault.options.deadline_s = DeadlineSeconds(fault.programs);
  fault.options.after_step = [](int rank, int64_t step) {
    if (rank == kCulprit && step == 3) raise(SIGKILL);
  };
  return fault;
}

class GpuFaults : public ::testing::TestWithParam<int> {};

TEST_P(GpuFaults, KilledRankIsNamedByTheOthers) {
  SKIP_WITHOUT_GPU();
  RunRounds(KilledRank("killed rank", TinyOn(GetParam(), false)));
}

/// Streams of others wait for a counter that nobody will write.
TEST_P(GpuFaults, KilledRankOfPeerCopiesIsNamedByTheOthers) {
  SKIP_WITHOUT_GPU();
  Fault fault = KilledRank("killed rank of peer copies", TinyOn(GetParam(), true));
  fault.options.peer_copies.moves = planner::PeerCarrier::kCopyEngines;
  RunRounds(fault);
}

/// Rank 1 leaves out a reduction of its gradients.
TEST_P(GpuFaults, CollectiveThatARankLeavesOutIsNamed) {
  SKIP_WITHOUT_GPU();
  Fault fault{"collective left out",
              TinyOn(GetParam(), false),
              {},
              std::regex("rank ([0-9]+) has (left out|not come there)"),
              false};
  planner::testing::EraseTask(planner::testing::Own(fault.programs, kCulprit), "ReduceGrads(0)");
  fault.options.steps = 3;
  fault.options.deadline_s = DeadlineSeconds(fault.programs);
  RunRounds(fault);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuFaults, ::testing::Values(2, 8));

}  // namespace
}  // namespace meshwright
