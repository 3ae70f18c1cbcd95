#include "runtime/measure_cpu.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <system_error>
#include <thread>
#include <tuple>

#include "runtime/kernel_bench.h"
#include "runtime/measure_cpu_programs.h"
#include "runtime/run.h"
#include "topologies/cluster_io.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::OpAttributes;
using planner::OpKind;

// Sizes of the small models that CPU ranks train.
constexpr int64_t kSequence = 64;
constexpr int64_t kBatch = 2;
constexpr int64_t kRows = kSequence * kBatch;
constexpr int64_t kHidden = 128;
constexpr int64_t kWide = 512;
constexpr int64_t kVocab = 256;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 32;

double BytesOf(const planner::OpWork& work) {
  return static_cast<double>(work.bytes_read + work.bytes_written);
}

OpAttributes AttentionAttributes(int64_t sequence, int64_t head_dim = kHeadDim) {
  OpAttributes a;
  a.sequence = sequence;
  a.batch = kBatch;
  a.heads = a.kv_heads = kHeads;
  a.head_dim = head_dim;
  a.scale = 0.2;
  a.rope_theta = 10000.0;
  return a;
}

BenchCase Attention(OpKind kind, int64_t sequence, int64_t head_dim, DType t) {
  const int64_t rows = sequence * kBatch;
  const int64_t width = kHeads * head_dim;
  const int64_t scores = std::min<int64_t>(sequence, 64) * sequence;  // as the lowering asks for
  const bool grad = kind == OpKind::kAttentionGrad;
  BenchCase c{kind,
              AttentionAttributes(sequence, head_dim),
              {{"qkv", {rows, 3 * width}, t},
               {"o", {rows, width}, t},
               {"lse", {kBatch, kHeads, sequence}, t},
               {"workspace", {grad ? 2 * scores : scores}, t}}};
  if (grad) {
    c.operands.push_back({"do", {rows, width}, t});
    c.operands.push_back({"dqkv", {rows, 3 * width}, t});
  }
  return c;
}

std::vector<BenchCase> NormCases(DType t) {
  std::vector<BenchCase> cases;
  for (const auto norm : {planner::NormKind::kRmsNorm, planner::NormKind::kLayerNorm}) {
    const bool layer = norm == planner::NormKind::kLayerNorm;
    OpAttributes a;
    a.norm = norm;
    a.eps = 1e-5;
    const std::vector<int64_t> x = {kRows, kHidden};
    const BenchOperand stat = {"stat", {layer ? 2 * kRows : kRows}, t};
    const BenchOperand gamma = {"gamma", {kHidden}, t};
    std::vector<BenchOperand> beta;
    std::vector<BenchOperand> beta_grad;
    if (layer) beta = {{"beta", {kHidden}, t}};
    if (layer) beta_grad = {{"beta_grad", {kHidden}, t}};
    const auto add = [&](OpKind kind, std::vector<BenchOperand> operands,
                         const std::vector<BenchOperand>& more) {
      operands.push_back(stat);
      operands.push_back(gamma);
      operands.insert(operands.end(), more.begin(), more.end());
      cases.push_back({kind, a, std::move(operands)});
    };
    add(OpKind::kNorm, {{"r", x, t}, {"delta", x, t}, {"r1", x, t}, {"n", x, t}}, beta);
    add(OpKind::kNormApply, {{"r1", x, t}, {"n", x, t}}, beta);
    add(OpKind::kNormGrad,
        {{"dn", x, t},
         {"r1", x, t},
         {"dr_in", x, t},
         {"dr_out", x, t},
         {"gamma_grad", {kHidden}, t}},
        beta_grad);
  }
  return cases;
}

std::vector<BenchCase> ActivationCases(DType t) {
  using planner::Activation;
  std::vector<BenchCase> cases;
  for (const auto activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
                                Activation::kRelu, Activation::kQuickGelu}) {
    for (const bool gated : {false, true}) {
      OpAttributes a;
      a.activation = activation;
      a.gated = gated;
      const std::vector<int64_t> u = {kRows, gated ? 2 * kWide : kWide};
      const std::vector<int64_t> s = {kRows, kWide};
      cases.push_back({OpKind::kActivation, a, {{"u", u, t}, {"s", s, t}}});
      cases.push_back({OpKind::kActivationGrad, a, {{"u", u, t}, {"ds", s, t}, {"du", u, t}}});
    }
  }
  return cases;
}

std::vector<BenchCase> OtherCases(DType t) {
  const std::vector<int64_t> x = {kRows, kHidden};
  const BenchOperand tokens = {"tokens", {kSequence, kBatch}, DType::kI32};
  OpAttributes rows;
  rows.sequence = kSequence;
  rows.batch = kBatch;
  OpAttributes head = rows;
  head.vocab = kVocab;
  const BenchOperand labels = {"labels", {kSequence, kBatch}, DType::kI32};
  const BenchOperand logits = {"logits", {kRows, kVocab}, t};
  const BenchOperand stats = {"stats", {kRows, 3}, t};
  const int64_t n = kHidden * kWide;
  const std::vector<int64_t> y = {kSequence, kBatch, kHidden};
  return {
      {OpKind::kEmbed, rows, {{"weight", {kVocab, kHidden}, t}, tokens, {"y", y, t}}},
      {OpKind::kEmbedGrad, rows, {{"dy", y, t}, tokens, {"weight_grad", {kVocab, kHidden}, t}}},
      {OpKind::kAddPositions, rows, {{"positions", {kSequence, kHidden}, t}, {"y", y, t}}},
      {OpKind::kPositionsGrad, rows, {{"dy", y, t}, {"positions_grad", {kSequence, kHidden}, t}}},
      {OpKind::kBiasAdd, {}, {{"bias", {kHidden}, t}, {"y", x, t}}},
      {OpKind::kBiasGrad, {}, {{"dy", x, t}, {"bias_grad", {kHidden}, t}}},
      {OpKind::kRotary,
       AttentionAttributes(kSequence),
       {{"qkv", {kSequence, kBatch, 3 * kHidden}, t}}},
      {OpKind::kAdd, {}, {{"a", x, t}, {"b", x, t}, {"out", x, t}}},
      {OpKind::kCopy, {}, {{"a", x, t}, {"out", x, t}}},
      {OpKind::kSoftmaxStats, head, {logits, labels, stats}},
      {OpKind::kCrossEntropyGrad,
       head,
       {logits, stats, labels, {"loss", {1}, DType::kF64}, {"inverse", {1}, DType::kF64}}},
      {OpKind::kSquaredNorm, {}, {{"gradient", {n}, t}, {"norm", {1}, DType::kF64}}},
      {OpKind::kOptimizerStep,
       {},
       {{"parameter", {n}, t},
        {"gradient", {n}, t},
        {"state", {2, n}, t},
        {"clip", {1}, DType::kF64},
        {"learning_rate", {1}, DType::kF64},
        {"step", {1}, DType::kI64}}},
  };
}

Status MeasureKernels(DType dtype, double seconds, CpuMeasurement* out) {
  for (const auto& list : {NormCases(dtype), ActivationCases(dtype), OtherCases(dtype)}) {
    for (const BenchCase& bench : list) {
      MW_ASSIGN_OR_RETURN(const BenchResult result, TimeKernel(bench, seconds));
      out->kernels.push_back(
          {bench.kind, bench.attributes, dtype, BytesOf(result.work) / result.seconds});
    }
  }
  return Status::Ok();
}

/// Wide and narrow heads at a length where the scores are most of the work tell products from
/// scores; a short sequence leaves what grows with the bytes.
Status MeasureAttention(DType dtype, double seconds, CpuMeasurement* out) {
  constexpr int64_t kLong = 256, kShort = 32, kWideHead = 64, kNarrowHead = 8;
  const auto scores = [dtype](int64_t sequence) {
    const int64_t pairs = sequence * sequence / 2;
    return static_cast<double>(pairs * kHeads * kBatch * planner::SizeOf(dtype));
  };
  for (const OpKind kind : {OpKind::kAttention, OpKind::kAttentionGrad}) {
    const auto time = [&](int64_t sequence, int64_t head_dim) {
      return TimeKernel(Attention(kind, sequence, head_dim, dtype), seconds);
    };
    MW_ASSIGN_OR_RETURN(const BenchResult wide, time(kLong, kWideHead));
    MW_ASSIGN_OR_RETURN(const BenchResult narrow, time(kLong, kNarrowHead));
    MW_ASSIGN_OR_RETURN(const BenchResult brief, time(kShort, kHeadDim));
    // Noise may leave nothing to a part; it then counts for a thousandth of its case.
    const auto part = [](double rest, double whole) { return std::max(rest, 1e-3 * whole); };
    const double per_flop =
        part(wide.seconds - narrow.seconds, wide.seconds) / (wide.work.flops - narrow.work.flops);
    const double per_score =
        part(narrow.seconds - per_flop * narrow.work.flops, narrow.seconds) / scores(kLong);
    const double rest = brief.seconds - per_flop * brief.work.flops - per_score * scores(kShort);
    const double per_byte = part(rest, brief.seconds) / BytesOf(brief.work);
    out->kernels.push_back(
        {kind, AttentionAttributes(kLong), dtype, 1.0 / per_byte, 1.0 / per_flop, 1.0 / per_score});
  }
  return Status::Ok();
}

Status MeasureProducts(DType t, double seconds, CpuMeasurement* out) {
  constexpr std::array<int64_t, 4> kSizes = {16, 64, 256, 1024};
  constexpr int64_t kMostWork = int64_t{1} << 26;
  struct Sum {
    double flops = 0.0;
    double seconds = 0.0;
  };
  std::map<std::tuple<int64_t, int64_t, int64_t>, Sum> sums;
  for (const int64_t rows : kSizes) {
    for (const int64_t in : kSizes) {
      for (const int64_t width : kSizes) {
        if (rows * in * width > kMostWork) continue;
        const std::vector<int64_t> x = {rows, in}, w = {width, in}, y = {rows, width};
        const BenchCase cases[] = {
            {OpKind::kLinear, {}, {{"x", x, t}, {"weight", w, t}, {"y", y, t}}},
            {OpKind::kLinearInputGrad, {}, {{"dy", y, t}, {"weight", w, t}, {"dx", x, t}}},
            {OpKind::kLinearWeightGrad, {}, {{"dy", y, t}, {"x", x, t}, {"weight_grad", w, t}}}};
        for (const BenchCase& bench : cases) {
          MW_ASSIGN_OR_RETURN(const BenchResult r, TimeKernel(bench, seconds / 2));
          Sum& sum = sums[{r.work.m, r.work.n, r.work.k}];
          sum.flops += r.work.flops;
          sum.seconds += r.seconds;
        }
      }
    }
  }
  for (const auto& [shape, sum] : sums) {
    const auto& [m, n, k] = shape;
    out->products.push_back({t, m, n, k, sum.flops / sum.seconds});
  }
  return Status::Ok();
}

/// Copies of 32 MiB, beyond the caches that a core has for itself, on `threads` threads at once.
Result<double> MeasureMemory(int threads) {
  constexpr int64_t kElements = int64_t{8} << 20;
  const BenchCase copy{
      OpKind::kCopy, {}, {{"a", {kElements}, DType::kF32}, {"out", {kElements}, DType::kF32}}};
  std::vector<double> rates(static_cast<size_t>(threads), 0.0);
  std::vector<std::thread> workers;
  workers.reserve(rates.size());
  try {
    for (double& rate : rates) {
      workers.emplace_back([&rate, &copy] {
        const Result<BenchResult> r = TimeKernel(copy, 0.1);
        if (r.ok()) rate = BytesOf(r->work) / r->seconds;
      });
    }
  } catch (const std::system_error&) {
    // The rates of the threads that did not start stay 0, which is reported below.
  }
  for (std::thread& worker : workers) worker.join();
  double sum = 0.0;
  for (const double rate : rates) {
    if (!(rate > 0))
      return RunFailed("memory bandwidth: no thread or no 64 MiB of memory for every core");
    sum += rate;
  }
  return sum;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct StepCost {
  double core_s = 0.0;  ///< of all ranks
  double wall_s = 0.0;  ///< best step
};

/// Cost of one step: the difference of runs of many and few steps leaves out the set-up. Noise only
/// adds to a run, so the least of several repetitions counts.
Result<StepCost> MeasureStep(const planner::Programs& programs) {
  constexpr std::array<int64_t, 2> kSteps = {2, 10};
  constexpr int kRepetitions = 3;
  MW_ASSIGN_OR_RETURN(auto data, OpenDataSource({"mock", DataFormat::kMock, Sampling::kRandom, 1,
                                                 64, programs.facts.sequence, 1}));
  StepCost cost;
  cost.wall_s = std::numeric_limits<double>::infinity();
  std::array<double, 2> spent;
  spent.fill(std::numeric_limits<double>::infinity());
  for (int r = 0; r < kRepetitions; ++r) {
    for (size_t i = 0; i < kSteps.size(); ++i) {
      RunOptions options;
      options.steps = kSteps[i];
      const double before = CpuSeconds();
      MW_ASSIGN_OR_RETURN(const auto summaries, RunOnThreads(programs, *data, options));
      spent[i] = std::min(spent[i], CpuSeconds() - before);
      for (const double wall : summaries.front().step_times_s) {
        if (wall > 0) cost.wall_s = std::min(cost.wall_s, wall);
      }
    }
  }
  cost.core_s = std::max(spent[1] - spent[0], 0.0) / static_cast<double>(kSteps[1] - kSteps[0]);
  return cost;
}

Status MeasureExecutor(CpuMeasurement* out) {
  constexpr int kOps = 4000;
  constexpr int kRounds = 200;
  constexpr int64_t kFew = 16;
  const int crowd = 2 * out->cores;
  MW_ASSIGN_OR_RETURN(const StepCost ops, MeasureStep(OpProgram(crowd, kOps, kFew)));
  out->op_core_s = ops.core_s / (crowd * kOps);
  MW_ASSIGN_OR_RETURN(const StepCost copies, MeasureStep(OpProgram(crowd, kRounds, kRoundCopy)));
  const double copy_s = copies.core_s / (crowd * kRounds);
  // A round is a copy and a collective on another stream, on every rank. More ranks than cores,
  // since what counts in time of cores is what such runs are bound by.
  const auto core_of = [&](const StepCost& cost, int size, int groups) {
    return std::max(cost.core_s / (groups * kRounds) - size * copy_s, 0.0);
  };
  const int pairs = 2 * out->cores;
  MW_ASSIGN_OR_RETURN(const StepCost two, MeasureStep(RoundProgram(2, pairs, kRounds, kFew)));
  out->rendezvous_core_s = core_of(two, 2, pairs);
  constexpr int kLarge = 4;
  MW_ASSIGN_OR_RETURN(const StepCost large,
                      MeasureStep(RoundProgram(kLarge, out->cores, kRounds, kFew)));
  out->member_core_s =
      std::max(core_of(large, kLarge, out->cores) - out->rendezvous_core_s, 0.0) / (kLarge - 2);
  MW_ASSIGN_OR_RETURN(const StepCost lone, MeasureStep(RoundProgram(2, 1, kRounds, kFew)));
  out->rendezvous_latency_s = std::max(lone.wall_s / kRounds - copy_s, 0.0);
  return Status::Ok();
}

/// Time of cores that a large message of two takes beyond a small one.
Result<double> MeasureMove(OpKind kind, DType dtype, int64_t elements) {
  constexpr int kAttempts = 3;
  int rounds = 20;
  for (int attempt = 0; attempt < kAttempts; ++attempt, rounds *= 2) {
    MW_ASSIGN_OR_RETURN(const StepCost small,
                        MeasureStep(RoundProgram(2, 1, rounds, 16, kind, dtype)));
    MW_ASSIGN_OR_RETURN(const StepCost large,
                        MeasureStep(RoundProgram(2, 1, rounds, elements, kind, dtype)));
    if (large.core_s > small.core_s) return (large.core_s - small.core_s) / rounds;
  }
  return RunFailed(
      fmt::format("{}: messages of {} elements took no more time than those of 16; measure "
                  "again while the machine is less busy",
                  planner::ToString(kind), elements));
}

/// Bytes a second that the member which moves the data reads and writes.
Status MeasureMoves(DType dtype, CpuMeasurement* out) {
  // Large against what a small message takes when the machine is busy.
  constexpr int64_t kElements = 1 << 19;
  for (const OpKind kind :
       {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kSend}) {
    MW_ASSIGN_OR_RETURN(const double seconds, MeasureMove(kind, dtype, kElements));
    const auto payload = static_cast<double>(kElements * planner::SizeOf(dtype));
    // With n members 2 n, n + 1 (a member keeps 1 / n) or, for a message, 2 times the payload.
    const double times = kind == OpKind::kSend ? 2 : kind == OpKind::kReduceScatter ? 3 : 4;
    out->kernels.push_back({kind, {}, dtype, times * payload / seconds});
  }
  return Status::Ok();
}

}  // namespace

Result<CpuMeasurement> MeasureCpu(const MeasureCpuOptions& options) {
  if (!(options.seconds_per_sample > 0) || options.seconds_per_sample > 10 || options.cores < 0 ||
      options.cores > 1024) {
    return InvalidInput(
        fmt::format("measurement: {} s a sample on {} cores; allowed: above 0 to 10 s, "
                    "0 (all) to 1024 cores",
                    options.seconds_per_sample, options.cores));
  }
  CpuMeasurement out;
  out.cores = options.cores;
  if (out.cores == 0) {
    MW_ASSIGN_OR_RETURN(const topologies::LocalMachine machine, topologies::ProbeLocalMachine());
    out.cores = machine.cores;
  }
  std::vector<DType> dtypes = {DType::kF32};
  if (options.fp64) dtypes.push_back(DType::kF64);
  for (const DType dtype : dtypes) {
    MW_RETURN_IF_ERROR(MeasureProducts(dtype, options.seconds_per_sample, &out));
    MW_RETURN_IF_ERROR(MeasureKernels(dtype, options.seconds_per_sample, &out));
    MW_RETURN_IF_ERROR(MeasureAttention(dtype, options.seconds_per_sample, &out));
    MW_RETURN_IF_ERROR(MeasureMoves(dtype, &out));
  }
  MW_ASSIGN_OR_RETURN(out.core_bytes_per_s, MeasureMemory(1));
  MW_ASSIGN_OR_RETURN(const double together, MeasureMemory(out.cores));
  out.machine_bytes_per_s = std::max(together, out.core_bytes_per_s);
  MW_RETURN_IF_ERROR(MeasureExecutor(&out));
  return out;
}

}  // namespace meshwright::runtime
