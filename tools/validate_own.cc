#include "tools/validate_own.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "tools/evaluate.h"
#include "tools/resolve.h"
#include "tools/split_options.h"

namespace meshwright::tools {
namespace {

using planner::stack::LayerMode;
using planner::stack::LinearFormat;
using planner::stack::ShardingLevel;
using planner::validate::MeasuredRow;
using planner::validate::RowCase;
using planner::validate::RowResult;

constexpr int64_t kVocabQuantum = 128;
// Beyond these, programs of all ranks take minutes to lower and simulate.
constexpr int64_t kMostRanks = 4096;
constexpr int64_t kMostPasses = 100'000;  // micro-batches x chunks
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// Whole numbers from 1 on with spaces between them; blank: none.
Result<std::vector<int64_t>> Numbers(const MeasuredRow& row, const std::string& column) {
  std::vector<int64_t> numbers;
  std::istringstream text(row.Text(column));
  for (std::string word; text >> word;) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
    if (error != std::errc() || end != word.data() + word.size() || n < 1) {
      return InvalidInput(
          fmt::format("row {} (line {}), column {}: found '{}'; allowed: whole numbers from 1 on "
                      "with spaces between them",
                      row.id, row.line, column, row.Text(column)));
    }
    numbers.push_back(n);
  }
  return numbers;
}

/// At most one such number, up to `most`; blank: none.
Result<std::optional<int64_t>> Number(const MeasuredRow& row, const std::string& column,
                                      int64_t most) {
  MW_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, Numbers(row, column));
  if (numbers.empty()) return std::optional<int64_t>();
  if (numbers.size() == 1 && numbers.front() <= most) return std::optional(numbers.front());
  return InvalidInput(fmt::format(
      "row {} (line {}), column {}: found {}; allowed: one whole number from 1 to {}, or nothing",
      row.id, row.line, column, row.Text(column), most));
}

Result<planner::SplitRequest> RequestOf(const RowCase& row) {
  const planner::stack::Split& split = row.split;
  planner::SplitRequest request;
  request.tp = split.tp;
  request.cp = split.cp;
  request.ep = split.ep;
  request.pp = split.pp;
  request.dp = split.dp;
  request.virtual_stages = split.virtual_stages;
  request.micro_batch = split.micro_batch;
  request.global_batch = split.micro_batch * split.micro_batches * split.dp;
  request.sequence = row.inputs.sequence;
  request.sequence_parallel = split.sequence_parallel;
  request.device = topologies::DeviceKind::kGpu;
  request.vocab_quantum = kVocabQuantum;
  if (split.ranks() > kMostRanks) {
    return Unsupported(fmt::format("gpus = {}; allowed with stack meshwright: at most {}",
                                   split.ranks(), kMostRanks));
  }
  const int64_t passes = split.micro_batches * split.virtual_stages * split.pp;
  if (passes > kMostPasses) {
    return Unsupported(
        fmt::format("micro-batches x pp x vpp = {}; allowed with stack meshwright: "
                    "at most {}",
                    passes, kMostPasses));
  }
  if (split.sharding > ShardingLevel::kZero1) {
    return Unsupported("zero_dist_optimizer: stack meshwright has none and ZeRO-1");
  }
  if (split.sharding == ShardingLevel::kZero1) request.sharding = planner::Sharding::kZero1;
  if (split.format != LinearFormat::kBf16 && split.format != LinearFormat::kFp32) {
    return Unsupported("precision: stack meshwright has bf16 and fp32");
  }
  if (split.format == LinearFormat::kFp32) request.dtype = planner::DType::kF32;
  if (row.mode == LayerMode::kSelective) request.recompute = {planner::Recompute::kSelective};
  if (row.mode == LayerMode::kFull) request.recompute = {planner::Recompute::kFull};
  return request;
}

Result<Evaluation> EvaluateRow(const MeasuredRow& row, const RowCase& made,
                               const ClusterOptions& where, Output& output) {
  MW_ASSIGN_OR_RETURN(planner::SplitRequest request, RequestOf(made));
  MW_ASSIGN_OR_RETURN(request.layers, Numbers(row, "stage_layers"));
  MW_ASSIGN_OR_RETURN(const auto chunks, Number(row, "tensor_chunks", kMostTensorChunks));
  request.tensor_chunks = chunks.value_or(1);
  MW_ASSIGN_OR_RETURN(const auto logits, Number(row, "logits_chunk_mib", kMostLogitsChunkMib));
  if (logits) request.logits_chunk_bytes = *logits << 20;
  planner::ModelSpec model;
  model.name = row.Text("model");
  model.modules = {made.inputs.module};
  MW_ASSIGN_OR_RETURN(planner::Plan plan, planner::MakePlan(model, request));
  MW_RETURN_IF_ERROR(planner::CheckSupported(plan));
  MW_ASSIGN_OR_RETURN(const Machine machine, ResolveMachine(where, 0, output));
  MW_RETURN_IF_ERROR(PlaceOn(machine.cluster, &plan));
  MW_ASSIGN_OR_RETURN(const cost::CostModel costs, CostsFor(machine.profile, plan, machine.cluster));
  return Evaluate(plan, machine.cluster, costs, {});
}

}  // namespace

OwnRows::OwnRows(std::vector<planner::validate::SourceFacts> facts, std::string cluster,
                 std::string profile)
    : cluster_(std::move(cluster)),
      profile_(std::move(profile)),
      // Reads cells alone; its prices are not used.
      maker_(std::move(facts), {"megatron", profile_}) {}

Result<RowResult> OwnRows::Predict(const MeasuredRow& row, Output& output) {
  MW_ASSIGN_OR_RETURN(RowResult result, planner::validate::MeasuredPart(row));
  const Result<RowCase> made = maker_.Make(row);
  if (!made.ok()) {
    if (made.status().code() == StatusCode::kInvalidInput) return made.status();
    result.reason = made.status().message();
    return result;
  }
  result.stack = "meshwright";
  result.split = ShortName(made->split);
  result.assumptions = made->assumptions;
  if (!cluster_.empty()) result.assumptions.push_back("run on cluster " + cluster_);
  result.assumptions.push_back(
      fmt::format("vocabulary padded to a multiple of {} x tp", kVocabQuantum));
  ClusterOptions where;
  where.cluster = cluster_.empty() ? made->cluster : cluster_;
  where.profile = profile_;
  where.gpus = made->split.ranks();
  const Result<Evaluation> evaluated = EvaluateRow(row, *made, where, output);
  if (!evaluated.ok()) {
    if (evaluated.status().code() == StatusCode::kInvalidInput) return evaluated.status();
    result.reason = evaluated.status().message();
    return result;
  }
  const planner::Prediction& prediction = evaluated->simulated.prediction;
  const double step = prediction.step_time_s;
  result.predicted_step_s = step;
  result.low_s = step * (1 - 2 * kOwnStepDeviation);
  result.high_s = step * (1 + 2 * kOwnStepDeviation);
  int64_t peak = 0;
  for (const planner::MemoryBreakdown& m : prediction.memory) peak = std::max(peak, m.total());
  result.predicted_peak_gib = static_cast<double>(peak) / kGiB;
  return result;
}

}  // namespace meshwright::tools
