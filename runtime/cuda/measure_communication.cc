#include "runtime/measure_communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/cuda/communication_rank.h"
#include "runtime/store_communicator.h"

namespace meshwright::runtime {
namespace cuda {
namespace {

constexpr int kRounds = 5;
constexpr int kBesideRounds = 3;
constexpr int kBesideAttempts = 4;  // with twice as many operations each
constexpr int kMostCalls = 800;
constexpr double kDeadlineS = 120.0;  // for ranks that wait while a pair is measured

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Element by element the most of all ranks, the same on all.
Result<std::vector<double>> MostOf(Communicator& world, const std::vector<double>& own) {
  std::vector<double> all(own.size() * static_cast<size_t>(world.size()));
  MW_RETURN_IF_ERROR(world.AllGather(reinterpret_cast<const std::byte*>(own.data()),
                                     reinterpret_cast<std::byte*>(all.data()),
                                     static_cast<int64_t>(own.size()), planner::DType::kF64));
  std::vector<double> most = own;
  for (size_t i = 0; i < all.size(); ++i) {
    most[i % own.size()] = std::max(most[i % own.size()], all[i]);
  }
  return most;
}

std::string NameOf(const CommunicationCase& c) {
  const char* by = c.carrier == planner::PeerCarrier::kKernels       ? ", by kernels"
                   : c.carrier == planner::PeerCarrier::kCopyEngines ? ", by copy engines"
                                                                     : "";
  return fmt::format("{} of {} ranks, {} bytes{}", planner::ToString(c.kind), c.ranks, c.bytes, by);
}

/// The measurement as this rank sees it; what all ranks agree on is in `out`.
class Meter {
 public:
  Meter(CommunicationRank& rank, Communicator& world, CommunicationMeasurement* out)
      : rank_(rank), world_(world), out_(*out) {}

  /// Whether the pair reaches each other's memory: both of its ranks know.
  Status AskForPeers() {
    MW_ASSIGN_OR_RETURN(const auto most, MostOf(world_, {rank_.peers() ? 1.0 : 0.0}));
    out_.peers = most[0] > 0;
    return Status::Ok();
  }

  Status Operations() {
    std::vector<double> rounds;
    int ranks = 2;
    const std::vector<CommunicationCase> grid = CommunicationGrid(world_.size(), out_.peers);
    for (const CommunicationCase& c : grid) {
      // Those that had no part in the smaller group wait here and not inside NCCL.
      if (c.ranks != ranks) MW_RETURN_IF_ERROR(world_.Barrier());
      ranks = c.ranks;
      const auto times = rank_.Time(c, kRounds);
      if (!times.ok()) return times.status().WithContext(NameOf(c));
      rounds.insert(rounds.end(), times->begin(), times->end());
    }
    MW_ASSIGN_OR_RETURN(const std::vector<double> slowest, MostOf(world_, rounds));
    for (size_t i = 0; i < grid.size(); ++i) {
      const auto begin = slowest.begin() + static_cast<std::ptrdiff_t>(i) * kRounds;
      out_.samples.push_back({grid[i], Median({begin, begin + kRounds})});
    }
    return Status::Ok();
  }

  Status Beside() {
    for (const CommunicationCase& c : BesideGrid(world_.size(), out_.peers)) {
      MW_RETURN_IF_ERROR(BesideOne(c).WithContext("products beside " + NameOf(c)));
    }
    return Status::Ok();
  }

 private:
  /// Of the time of an operation alone: beside products it takes longer.
  Result<int> CallsToCover(const CommunicationCase& c) {
    double seconds = 0.0;
    for (const CommunicationSample& s : out_.samples) {
      CommunicationCase same = s.what;
      same.held_out = c.held_out;
      if (same == c) seconds = s.seconds;
    }
    MW_CHECK(seconds > 0);
    if (product_s_ == 0) {  // one call, for the time of a product alone
      MW_ASSIGN_OR_RETURN(const auto first, rank_.TimeBeside(c, 1));
      MW_ASSIGN_OR_RETURN(const auto most, MostOf(world_, {first.alone_s}));
      product_s_ = most[0];
    }
    const double calls = 1.6 * ProductLoad::kProducts * product_s_ / seconds;
    return static_cast<int>(std::clamp(std::ceil(calls) + 2, 2.0, double{kMostCalls}));
  }

  Status BesideOne(const CommunicationCase& c) {
    MW_ASSIGN_OR_RETURN(int calls, CallsToCover(c));
    for (int attempt = 0; attempt < kBesideAttempts; ++attempt, calls *= 2) {
      std::vector<double> alone, beside;
      bool covered = true;
      for (int round = 0; round < kBesideRounds; ++round) {
        MW_ASSIGN_OR_RETURN(const auto own, rank_.TimeBeside(c, calls));
        MW_ASSIGN_OR_RETURN(const auto most,
                            MostOf(world_, {own.alone_s, own.beside_s, own.covered ? 0.0 : 1.0}));
        alone.push_back(most[0]);
        beside.push_back(most[1]);
        covered = covered && most[2] == 0;
      }
      if (!covered) continue;
      out_.beside.push_back({c, Median(alone), Median(beside)});
      return Status::Ok();
    }
    return RunFailed(
        fmt::format("{} operations ended before {} products did; is another program on these GPUs?",
                    calls / 2, ProductLoad::kProducts));
  }

  CommunicationRank& rank_;
  Communicator& world_;
  CommunicationMeasurement& out_;
  double product_s_ = 0.0;  ///< alone, of the slowest rank
};

/// What the driver says of the devices, the same for all ranks of a host of equal GPUs.
Status Facts(int ordinal, CommunicationMeasurement* out) {
  cudaDeviceProp properties{};
  MW_CUDA_CALL(cudaGetDeviceProperties(&properties, ordinal));
  out->device = properties.name;
  out->library = NcclVersionText();
  int atomics = 0;  // of the pair: over NVLink, not over PCIe
  MW_CUDA_CALL(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, 0, 1));
  out->nvlink = atomics != 0;
  return Status::Ok();
}

Status Measure(const LaunchFacts& facts, const MeasureCommunicationOptions& options,
               CommunicationMeasurement* out) {
  if (facts.world < 2) {
    return InvalidInput(fmt::format(
        "found {} rank; communication needs two or more, a GPU each; start more", facts.world));
  }
  const double start = Now();
  const auto say = [&](const std::string& what) {
    if (options.progress) options.progress(fmt::format("{:5.1f} s  {}", Now() - start, what));
  };
  say(fmt::format("communicators of {} GPUs", facts.world));
  MW_ASSIGN_OR_RETURN(const auto store, OpenStore(facts));
  const auto world = MakeStoreWorld(*store, {kDeadlineS});
  out->gpus = facts.world;
  int64_t most_bytes = 0;
  for (const CommunicationCase& c : CommunicationGrid(facts.world, false)) {
    most_bytes = std::max(most_bytes, c.bytes);
  }
  {
    CommunicationRank rank;
    MW_RETURN_IF_ERROR(rank.SetUp(*store, *world, facts.local_rank, most_bytes));
    MW_RETURN_IF_ERROR(Facts(facts.local_rank, out));
    Meter meter(rank, *world, out);
    MW_RETURN_IF_ERROR(meter.AskForPeers());
    say(fmt::format("{} operations and sizes", CommunicationGrid(facts.world, out->peers).size()));
    MW_RETURN_IF_ERROR(meter.Operations());
    say(fmt::format("products beside {} operations", BesideGrid(facts.world, out->peers).size()));
    MW_RETURN_IF_ERROR(meter.Beside());
    MW_RETURN_IF_ERROR(rank.Close(*world));
    out->elapsed_s = Now() - start;
    say("done");
  }
  return world->Barrier();  // rank 0 keeps the store until all are done
}

}  // namespace
}  // namespace cuda

Result<CommunicationMeasurement> MeasureCommunication(const LaunchFacts& facts,
                                                      const MeasureCommunicationOptions& options) {
  CommunicationMeasurement measured;
  MW_RETURN_IF_ERROR(cuda::Measure(facts, options, &measured)
                         .WithContext(fmt::format("measuring communication, rank {}", facts.rank)));
  return measured;
}

}  // namespace meshwright::runtime
