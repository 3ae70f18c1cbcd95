// Prints what our communicators reach on the GPUs of this host beside a plain loop over NCCL: the
// collectives of tensor and data traffic and the message of a pipeline edge, in bf16, each as the
// executor issues it. Not a test.
//
//   communication_rates [--json] [--gpus N]
//
// A process a GPU. "ours" has everything that the executor puts around an operation on its stream
// (event waits and records, timer of tasks, flight tracker), and goes as in a run: for two GPUs
// straight between their memories, else by NCCL with the CTA limit of its class. "no limit" is NCCL
// without that limit, "plain" a loop over a communicator with NCCL's defaults.
// The three take turns; each time is the median over rounds of the slowest rank. The way from
// the compute stream to the communication stream and back is in none of them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/launch.h"
#include "runtime/self_start.h"
#include "tests/runtime/cuda/communication_bench.h"
#include "tests/runtime/processes.h"
#include "tests/runtime/shared_memory.h"

namespace meshwright::runtime::cuda {
namespace {

using nlohmann::json;
using planner::CommunicatorKind;

constexpr int64_t kLeastBytes = 4 << 10;
constexpr int64_t kMostBytes = 256 << 20;
constexpr int kRounds = 7;
constexpr size_t kMostCases = 96;

enum Variant : size_t { kOurs, kNoLimit, kPlain, kVariants };
constexpr size_t kIssueCount = std::size(kIssues);

/// What a rank measured; in memory that the processes share.
struct RankTimes {
  char device[256];
  double us[kMostCases][kIssueCount][kVariants][kRounds];
};

const char* ClassName(CommunicatorKind traffic) {
  return traffic == CommunicatorKind::kTensor ? "tensor"
         : traffic == CommunicatorKind::kData ? "data"
                                              : "edge";
}

/// Rounds of a case; what comes first in a round changes.
Status MeasureCase(const RateCase& c, size_t index, RankBench& bench, RankTimes* times) {
  if (!bench.TakesPart(c)) return Status::Ok();
  std::unique_ptr<Path> paths[kVariants];
  MW_ASSIGN_OR_RETURN(paths[kOurs], bench.Ours(c, true));
  MW_ASSIGN_OR_RETURN(paths[kNoLimit], bench.Ours(c, false));
  paths[kPlain] = bench.Plain(c);
  for (int round = -1; round < kRounds; ++round) {  // the first is a warm-up
    for (size_t issue = 0; issue < kIssueCount; ++issue) {
      for (size_t turn = 0; turn < kVariants; ++turn) {
        const size_t v = (turn + static_cast<size_t>(round + 1)) % kVariants;
        MW_ASSIGN_OR_RETURN(const double us, bench.Time(*paths[v], c, kIssues[issue]));
        if (round >= 0) times->us[index][issue][v][round] = us;
      }
    }
  }
  return Status::Ok();
}

Status RunRank(const LaunchFacts& facts, const std::vector<RateCase>& cases, RankTimes* times) {
  MW_ASSIGN_OR_RETURN(const auto store, OpenStore(facts));
  RankBench bench;
  MW_RETURN_IF_ERROR(bench.SetUp(*store, facts.local_rank, kMostBytes));
  cudaDeviceProp properties;
  MW_CUDA_CALL(cudaGetDeviceProperties(&properties, facts.local_rank));
  std::memcpy(times->device, properties.name, sizeof(times->device));
  for (size_t i = 0; i < cases.size(); ++i) {
    const RateCase& c = cases[i];
    MW_RETURN_IF_ERROR(MeasureCase(c, i, bench, times)
                           .WithContext(fmt::format("{}, {}, {} bytes", planner::ToString(c.kind),
                                                    ClassName(c.traffic), c.bytes)));
  }
  MW_RETURN_IF_ERROR(store->Barrier("communication_rates/done", 60.0));
  return bench.Close();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Microseconds of a case, by variant.
struct Times {
  double us[kVariants];
  double ratio(Variant v) const { return us[kPlain] / us[v]; }
};

Times TimesOf(const RankTimes* ranks, int gpus, size_t index, size_t issue) {
  Times times{};
  for (size_t v = 0; v < kVariants; ++v) {
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      double slowest = 0.0;
      for (int r = 0; r < gpus; ++r) {
        slowest = std::max(slowest, ranks[r].us[index][issue][v][round]);
      }
      rounds.push_back(slowest);
    }
    times.us[v] = Median(rounds);
  }
  return times;
}

std::string SizeText(int64_t bytes) {
  return bytes < (1 << 20) ? fmt::format("{} KiB", bytes >> 10)
                           : fmt::format("{} MiB", bytes >> 20);
}

constexpr const char* kIssueNames[] = {"back_to_back", "queued"};
constexpr CommunicatorKind kClasses[] = {CommunicatorKind::kTensor, CommunicatorKind::kData,
                                         CommunicatorKind::kEdge};

/// Of the ratios of a class over its operations and sizes.
struct ClassRatios {
  std::vector<double> ours, no_limit;
};
ClassRatios RatiosOf(CommunicatorKind traffic, const std::vector<RateCase>& cases,
                     const RankTimes* ranks, int gpus, size_t issue) {
  ClassRatios ratios;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].traffic != traffic) continue;
    const Times t = TimesOf(ranks, gpus, i, issue);
    ratios.ours.push_back(t.ratio(kOurs));
    ratios.no_limit.push_back(t.ratio(kNoLimit));
  }
  return ratios;
}

void PrintTable(const std::vector<RateCase>& cases, const RankTimes* ranks, int gpus) {
  const NcclOptions limits;
  fmt::print("{} x {}, {}, bf16, CTA limits: tensor {}, data {}, edge {}\n", gpus, ranks[0].device,
             NcclVersionText(), limits.tensor_ctas, limits.data_ctas, limits.edge_ctas);
  for (size_t issue = 0; issue < kIssueCount; ++issue) {
    fmt::print("\n{}\n{:<15} {:<7} {:>8} {:>10} {:>10} {:>9} {:>11} {:>9} {:>10} {:>10}\n",
               issue == 0 ? "back to back (small ones wait for the host)"
                          : "queued (the host is ahead, as in a step)",
               "op", "class", "bytes", "ours, us", "plain, us", "plain/our", "no limit,us",
               "plain/nl", "our GB/s", "plain GB/s");
    for (size_t i = 0; i < cases.size(); ++i) {
      const RateCase& c = cases[i];
      const Times t = TimesOf(ranks, gpus, i, issue);
      fmt::print(
          "{:<15} {:<7} {:>8} {:>10.2f} {:>10.2f} {:>9.3f} {:>11.2f} {:>9.3f} {:>10.2f} "
          "{:>10.2f}\n",
          c.message() ? "send, recv" : planner::ToString(c.kind), ClassName(c.traffic),
          SizeText(c.bytes), t.us[kOurs], t.us[kPlain], t.ratio(kOurs), t.us[kNoLimit],
          t.ratio(kNoLimit), BusBandwidth(c, gpus, t.us[kOurs]),
          BusBandwidth(c, gpus, t.us[kPlain]));
    }
    for (const CommunicatorKind traffic : kClasses) {
      const ClassRatios r = RatiosOf(traffic, cases, ranks, gpus, issue);
      fmt::print(
          "{}: plain/ours median {:.3f}, least {:.3f}; without the CTA limit {:.3f}, {:.3f}\n",
          ClassName(traffic), Median(r.ours), *std::min_element(r.ours.begin(), r.ours.end()),
          Median(r.no_limit), *std::min_element(r.no_limit.begin(), r.no_limit.end()));
    }
  }
}

json TimesJson(const RateCase& c, const Times& t, int gpus) {
  return {{"ours_us", t.us[kOurs]},
          {"no_limit_us", t.us[kNoLimit]},
          {"plain_us", t.us[kPlain]},
          {"ratio", t.ratio(kOurs)},
          {"no_limit_ratio", t.ratio(kNoLimit)},
          {"ours_bus_gb_s", BusBandwidth(c, gpus, t.us[kOurs])},
          {"plain_bus_gb_s", BusBandwidth(c, gpus, t.us[kPlain])}};
}

void PrintJson(const std::vector<RateCase>& cases, const RankTimes* ranks, int gpus) {
  const NcclOptions limits;
  json d = {
      {"gpus", gpus},
      {"device", ranks[0].device},
      {"nccl", NcclVersionText()},
      {"dtype", "bf16"},
      {"rounds", kRounds},
      {"ctas",
       {{"tensor", limits.tensor_ctas}, {"data", limits.data_ctas}, {"edge", limits.edge_ctas}}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    json row = {{"op", planner::ToString(cases[i].kind)},
                {"class", ClassName(cases[i].traffic)},
                {"bytes", cases[i].bytes},
                {"calls", cases[i].calls}};
    for (size_t issue = 0; issue < kIssueCount; ++issue) {
      row[kIssueNames[issue]] = TimesJson(cases[i], TimesOf(ranks, gpus, i, issue), gpus);
    }
    d["rows"].push_back(std::move(row));
  }
  for (const CommunicatorKind traffic : kClasses) {
    json row = {{"class", ClassName(traffic)}};
    for (size_t issue = 0; issue < kIssueCount; ++issue) {
      const ClassRatios r = RatiosOf(traffic, cases, ranks, gpus, issue);
      row[kIssueNames[issue]] = {
          {"median_ratio", Median(r.ours)},
          {"least_ratio", *std::min_element(r.ours.begin(), r.ours.end())},
          {"no_limit_median_ratio", Median(r.no_limit)},
          {"no_limit_least_ratio", *std::min_element(r.no_limit.begin(), r.no_limit.end())}};
    }
    d["classes"].push_back(std::move(row));
  }
  fmt::print("{}\n", d.dump());
}

int Usage(const std::string& why) {
  fmt::print(stderr, "communication_rates: {}; usage: communication_rates [--json] [--gpus N]\n",
             why);
  return 2;
}

int Main(int argc, char** argv) {
  bool as_json = false;
  int gpus = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      as_json = true;
    } else if (argument == "--gpus" && i + 1 < argc) {
      gpus = std::atoi(argv[++i]);
      if (gpus < 2) return Usage(fmt::format("--gpus {}: must be a number >= 2", argv[i]));
    } else {
      return Usage(fmt::format("unknown argument '{}'", argument));
    }
  }
  // This process forks, so it asks nothing of CUDA.
  const int visible = Child([] {
                        int count = 0;
                        return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
                      }).Wait();
  if (gpus == 0) gpus = visible;
  if (visible < 2 || gpus > visible) {
    return Usage(fmt::format("{} GPUs wanted (at least 2), {} visible", gpus, visible));
  }
  const std::vector<RateCase> cases = RateCases(kLeastBytes, kMostBytes);
  MW_CHECK(cases.size() <= kMostCases);
  const testing::SharedMemory shared(static_cast<size_t>(gpus) * sizeof(RankTimes));
  auto* const ranks = reinterpret_cast<RankTimes*>(shared.data());
  const auto outcome = StartRanks({gpus, 5.0, 5.0}, [&](const LaunchFacts& facts) {
    const Status status = RunRank(facts, cases, ranks + facts.rank);
    if (!status.ok()) {
      fmt::print(stderr, "communication_rates: rank {}: {}\n", facts.rank, status.message());
    }
    return ExitCode(status);
  });
  if (!outcome.ok() || outcome->exit_code != 0) {
    fmt::print(stderr, "communication_rates: {}\n",
               outcome.ok() ? outcome->what : outcome.status().message());
    return outcome.ok() ? outcome->exit_code : ExitCode(outcome.status());
  }
  as_json ? PrintJson(cases, ranks, gpus) : PrintTable(cases, ranks, gpus);
  return 0;
}

}  // namespace
}  // namespace meshwright::runtime::cuda

int main(int argc, char** argv) {
  return meshwright::runtime::cuda::Main(argc, argv);
}
