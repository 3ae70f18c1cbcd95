#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/predict/predict.h"
#include "runtime/run.h"
#include "tools/measured_cpu.h"

namespace meshwright::tools {
namespace {

constexpr double kLargestCorrection = 4.0;

/// A GPT of the size of the smallest models that CPU ranks train, where meetings of ranks matter
/// most; no shipped model.
planner::ModelSpec ReferenceModel() {
  planner::ModuleSpec module;
  module.name = "language";
  module.kind = planner::ModuleKind::kLanguage;
  module.hidden = 64;
  module.norm = planner::NormKind::kLayerNorm;
  module.norm_eps = 1e-5;
  module.positions = planner::PositionKind::kLearned;
  module.max_positions = 128;
  module.vocab = 256;
  module.tied_embeddings = true;
  module.init_std = 0.02;
  planner::LayerSpec layer;
  layer.attention.heads = layer.attention.kv_heads = 4;
  layer.attention.head_dim = 16;
  layer.mlp.ffn = 256;
  layer.mlp.activation = planner::Activation::kGeluTanh;
  module.layer_kinds = {layer};
  module.layers = {0, 0, 0};
  planner::ModelSpec model;
  model.name = "reference";
  model.family = "gpt2";
  model.modules = {module};
  return model;
}

/// A program of the reference model and the seconds that a step of it takes here.
struct Reference {
  planner::Plan plan;
  planner::Programs programs;
  double measured_s = 0.0;
};

Result<double> MeasureStep(const Reference& reference) {
  constexpr int64_t kSkipped = 2;  // first touch of the arena
  constexpr int64_t kSteps = 32;
  constexpr int kRounds = 3;  // other work comes in bursts longer than a round
  runtime::DataOptions options;
  options.vocab = 256;
  options.sequence = reference.plan.sequence;
  options.global_batch = reference.plan.global_batch;
  MW_ASSIGN_OR_RETURN(const auto data, runtime::OpenDataSource(options));
  runtime::RunOptions run;
  run.steps = kSkipped + kSteps;
  double least = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    MW_ASSIGN_OR_RETURN(const auto summaries,
                        runtime::RunOnThreads(reference.programs, *data, run));
    std::vector<double> times = summaries.front().step_times_s;
    // The median of a round is what steps take, not the luckiest; noise of others only adds rounds.
    std::sort(times.begin() + kSkipped, times.end());
    const double time = times[kSkipped + kSteps / 2];
    least = round == 0 ? time : std::min(least, time);
  }
  return least;
}

Result<Reference> RunReference(int64_t tp, int64_t dp) {
  planner::SplitRequest request;
  request.tp = tp;
  request.dp = dp;
  request.micro_batch = 1;
  request.global_batch = 4 * dp;
  request.sequence = 128;
  request.dtype = planner::DType::kF32;
  Reference reference;
  MW_ASSIGN_OR_RETURN(reference.plan, planner::MakePlan(ReferenceModel(), request));
  MW_ASSIGN_OR_RETURN(reference.programs, planner::Lower(reference.plan));
  MW_ASSIGN_OR_RETURN(reference.measured_s, MeasureStep(reference));
  return reference;
}

Result<double> Simulate(const Reference& reference, const topologies::LocalMachine& machine,
                        const runtime::CpuMeasurement& measured) {
  MW_ASSIGN_OR_RETURN(MeasuredCpu cpu, ToMeasuredCpu(measured, machine, "reference"));
  cpu.host.ranks = static_cast<int>(reference.plan.world_size());
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster, topologies::CpuCluster(cpu.host));
  MW_ASSIGN_OR_RETURN(const cost::CostModel costs,
                      cost::CostModel::Make(cpu.profile, {{cost::Precision::kFp32}}));
  MW_ASSIGN_OR_RETURN(const planner::Prices prices,
                      planner::MakePrices(reference.plan, cluster, costs));
  MW_ASSIGN_OR_RETURN(const auto step,
                      planner::Predict(reference.plan, reference.programs, prices));
  return step.prediction.step_time_s;
}

/// Moves `value` until the simulated step is the measured one. The step grows with the value in
/// straight pieces, so a few secants do.
Status Match(const char* what, const Reference& reference, const topologies::LocalMachine& machine,
             double* value, runtime::CpuMeasurement* measured) {
  constexpr int kRounds = 4;
  constexpr double kLeast = 1e-6, kMost = 1e-3;  // s; beyond it the machine did something else
  for (int round = 0; round < kRounds; ++round) {
    const double here = *value = std::max(*value, kLeast);
    MW_ASSIGN_OR_RETURN(const double at, Simulate(reference, machine, *measured));
    *value = 1.25 * here;
    MW_ASSIGN_OR_RETURN(const double above, Simulate(reference, machine, *measured));
    const double slope = (above - at) / (0.25 * here);
    *value = here;
    if (slope <= 0) break;
    *value = std::max(here + (reference.measured_s - at) / slope, kLeast);
  }
  if (*value > kMost) {
    return RunFailed(
        fmt::format("measuring the CPU: the {} in a program is {:.3g} s, allowed: up to {:.3g} s; "
                    "measure again "
                    "while the machine is less busy",
                    what, *value, kMost));
  }
  return Status::Ok();
}

void ScaleKernels(double slower, runtime::CpuMeasurement* measured) {
  for (runtime::CpuProductSample& s : measured->products) s.flops_per_s /= slower;
  for (runtime::CpuKernelSample& s : measured->kernels) {
    if (planner::IsCollective(s.kind) || planner::IsMessage(s.kind)) continue;
    s.bytes_per_s /= slower;
    s.flops_per_s /= slower;
    s.score_bytes_per_s /= slower;
  }
}

}  // namespace

Status FitToPrograms(const topologies::LocalMachine& machine, runtime::CpuMeasurement* measured) {
  MW_ASSIGN_OR_RETURN(const Reference one, RunReference(1, 1));
  MW_ASSIGN_OR_RETURN(const double alone, Simulate(one, machine, *measured));
  const double slower = one.measured_s / alone;
  if (!(slower < kLargestCorrection && slower > 1 / kLargestCorrection)) {
    return RunFailed(fmt::format(
        "measuring the CPU: a step of a small program took {:.3g} s, its kernels alone {:.3g} s; "
        "measure again while the machine is less busy",
        one.measured_s, alone));
  }
  ScaleKernels(slower, measured);
  // Four ranks a core: alone but for their gradients, in groups of two, and of four.
  MW_ASSIGN_OR_RETURN(const Reference many, RunReference(1, 4 * measured->cores));
  MW_ASSIGN_OR_RETURN(const double undisturbed, Simulate(many, machine, *measured));
  measured->shared_core_efficiency = std::clamp(undisturbed / many.measured_s, 0.5, 1.0);
  MW_ASSIGN_OR_RETURN(const Reference crowd, RunReference(2, 2 * measured->cores));
  MW_ASSIGN_OR_RETURN(const Reference wide, RunReference(4, measured->cores));
  MW_RETURN_IF_ERROR(Match("time of a core for a rendezvous", crowd, machine,
                           &measured->rendezvous_core_s, measured));
  MW_RETURN_IF_ERROR(Match("time of a core for a further member of a rendezvous", wide, machine,
                           &measured->member_core_s, measured));
  if (measured->cores < 2) return Status::Ok();
  MW_ASSIGN_OR_RETURN(const Reference pairs, RunReference(2, measured->cores / 2));
  return Match("latency of a rendezvous", pairs, machine, &measured->rendezvous_latency_s,
               measured);
}

}  // namespace meshwright::tools
