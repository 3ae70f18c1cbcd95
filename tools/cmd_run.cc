// meshwright run: trains by a plan on CPU or GPU ranks.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "planner/lower/lower.h"
#include "planner/lower/make_plan.h"
#include "planner/verify/verify.h"
#include "runtime/gpu_run.h"
#include "runtime/launch.h"
#include "runtime/mpi_communicator.h"
#include "runtime/self_start.h"
#include "tools/commands.h"
#include "tools/cpu_profile.h"
#include "tools/evaluate.h"
#include "tools/resolve.h"
#include "tools/run_job.h"
#include "tools/run_view.h"
#include "tools/table.h"
#include "topologies/cluster_io.h"

namespace meshwright::tools {
namespace {

// Rows that `run` keeps in memory, of a few hundred bytes each.
constexpr int64_t kMaxTraceRows = 4'000'000;

struct RunArguments {
  std::string plan, data, trace, device = "cpu", comm, dtype, optimizer, decay = "constant";
  int64_t steps = 1, warmup = 0, seed = 1;
  std::optional<int64_t> nproc;
  runtime::LrOptions lr = {.peak = 1e-3};  // of the small models that CPU ranks train
  runtime::OptimizerOptions optimizer_options;
  double deadline_s = 60.0;
  bool deterministic = false;
  bool no_tune = false;
  std::string peer_copies = "on", graphs = "on";
  bool op_times = false;
  bool share_gpus = false;
  std::string flight_record;
  int64_t tensor_ctas = runtime::GpuOptions{}.tensor_ctas;
  int64_t data_ctas = runtime::GpuOptions{}.data_ctas;
  int64_t edge_ctas = runtime::GpuOptions{}.edge_ctas;
};

void Declare(RunArguments* a, OptionSet& options) {
  options.Positional("plan", &a->plan, "plan.json");
  options.Require("plan");
  options.Text("--data", &a->data, "FILE|mock",
               "text (a byte is a token), token ids (.bin, .u16, .u32), or 'mock'");
  options.Require("--data");
  options.Int("--steps", &a->steps, {1, 1'000'000'000}, "optimizer steps");
  options.Require("--steps");
  options.Choice("--device", &a->device, {"cpu", "cuda"}, "where the ranks compute");
  options.Choice("--comm", &a->comm, {"threads", "mpi"},
                 "how ranks talk; default: mpi under an MPI launcher, else threads");
  options.Int("--nproc", &a->nproc, {1, 1024}, "ranks; must be what the plan has");
  options.Text("--trace", &a->trace, "FILE",
               "write what ran when in Chrome's trace format, and tell how much communication is "
               "hidden");
  options.Real("--deadline", &a->deadline_s, {1.0, 1e6},
               "seconds after which a missing partner is an error");
  options.Heading("Training");
  options.Choice("--optimizer", &a->optimizer, {"adamw", "sgd"}, "default: the plan's");
  options.Real("--lr", &a->lr.peak, {0.0, 1e6}, "learning rate after the warm-up");
  options.Real("--min-lr", &a->lr.floor, {0.0, 1e6}, "learning rate at the end of the decay");
  options.Int("--warmup", &a->warmup, {0, 1'000'000'000}, "steps of linear rise");
  options.Choice("--decay", &a->decay, {"constant", "cosine", "linear"},
                 "of the learning rate, down to --min-lr at the last step");
  options.Real("--weight-decay", &a->optimizer_options.weight_decay, {0.0, 1e3},
               "decoupled; of matrices only");
  options.Real("--clip", &a->optimizer_options.clip, {0.0, 1e9},
               "largest global gradient norm; 0: no clipping");
  options.Int("--seed", &a->seed, {0, INT64_MAX}, "of initial weights and the order of samples");
  options.Choice("--dtype", &a->dtype, {"fp32", "fp64", "bf16"}, "default: the plan's");
  options.Flag("--deterministic", &a->deterministic,
               "bit-identical from run to run, as if the plan said so; CPU ranks always are");
  options.Heading("GPUs");
  options.Flag("--no-tune", &a->no_tune,
               "take cuBLASLt's first proposal instead of timing several before the first step");
  options.Choice("--peer-copies", &a->peer_copies, {"on", "off", "tensor", "data", "edges"},
                 "traffic of two ranks of a host straight between their memories instead of by "
                 "NCCL, or only that of a kind of groups");
  options.Choice("--graphs", &a->graphs, {"on", "off"}, "launch runs of kernels as CUDA graphs");
  options.Flag(
      "--share-gpus", &a->share_gpus,
      "let several ranks use a GPU: to try a plan on fewer GPUs than it has ranks, slowly");
  options.Flag("--op-times", &a->op_times, "measure every op of the last step, which that slows");
  options.Int("--tensor-ctas", &a->tensor_ctas, {1, 64},
              "thread blocks of tensor-parallel traffic");
  options.Int("--data-ctas", &a->data_ctas, {1, 64}, "the same of gradients and parameters");
  options.Int("--edge-ctas", &a->edge_ctas, {1, 64}, "the same of pipeline messages");
  options.Text("--flight-record", &a->flight_record, "FILE",
               "where each rank's last operations go on failure, with .rankN behind the name");
}

/// The plan with what the command line changes; whether a prediction in it still holds.
Result<planner::Plan> PlanToRun(const RunArguments& a, bool* changed) {
  MW_ASSIGN_OR_RETURN(planner::Plan plan, LoadPlan(a.plan));
  const planner::Plan as_read = plan;
  if (!a.dtype.empty()) plan.dtype = planner::ParseDType(a.dtype).value();
  if (!a.optimizer.empty()) plan.optimizer = planner::ParseOptimizerKind(a.optimizer).value();
  *changed = plan.dtype != as_read.dtype || plan.optimizer != as_read.optimizer;
  const bool gpu = a.device == "cuda";
  if (gpu && plan.dtype == planner::DType::kF64) {
    return Unsupported(
        fmt::format("{}: GPU ranks compute in bf16 and fp32; pass --dtype fp32", a.plan));
  }
  // Workspaces follow the device: a plan for CPU ranks runs on GPUs and the other way round.
  plan.device = gpu ? topologies::DeviceKind::kGpu : topologies::DeviceKind::kCpu;
  plan.workspace_bytes = planner::WorkspaceBytes(plan.device);
  // Scratch that deterministic kernels need is in the arena that the changed plan lowers to.
  plan.deterministic = gpu && (plan.deterministic || a.deterministic);
  *changed =
      *changed || plan.device != as_read.device || plan.deterministic != as_read.deterministic;
  if (!gpu && plan.dtype == planner::DType::kBf16) {
    return Unsupported(fmt::format(
        "{}: the plan computes in bf16, CPU ranks compute in fp32 and fp64; pass --dtype "
        "fp32",
        a.plan));
  }
  if (a.nproc && *a.nproc != plan.world_size()) {
    return InvalidInput(fmt::format(
        "--nproc {}: the plan has {} ranks; pass --nproc {} or make a plan with --gpus {}",
        *a.nproc, plan.world_size(), plan.world_size(), *a.nproc));
  }
  return plan;
}

Status CheckMemory(const planner::Programs& programs, const Launcher& launcher, bool mpi) {
  MW_ASSIGN_OR_RETURN(const topologies::LocalMachine machine, topologies::ProbeLocalMachine());
  const auto arena = [&](size_t r) {
    return programs.programs[static_cast<size_t>(programs.ranks[r].program)].arena.size;
  };
  int64_t bytes = 0;
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    if (!mpi || static_cast<int64_t>(r) == launcher.rank) bytes += arena(r);
    if (bytes > machine.memory.value()) break;
  }
  if (bytes <= machine.memory.value()) return Status::Ok();
  return Infeasible(fmt::format(
      "the ranks here need {} or more, this machine has {}; use a smaller model, batch or "
      "--seq, or recomputation",
      BytesText(bytes), BytesText(machine.memory.value())));
}

Result<std::unique_ptr<runtime::DataSource>> OpenData(const RunArguments& a,
                                                      const planner::Plan& plan) {
  runtime::DataOptions data;
  data.path = a.data;
  data.seed = static_cast<uint64_t>(a.seed);
  for (const planner::ModuleSpec& module : plan.model.modules)
    data.vocab = std::max(data.vocab, module.vocab);
  data.sequence = plan.sequence;
  data.global_batch = plan.global_batch;
  return runtime::OpenDataSource(data);
}

Result<runtime::RunOptions> ToRunOptions(const RunArguments& a, int64_t trace_rows,
                                         Output& output) {
  runtime::RunOptions options;
  options.steps = a.steps;
  options.seed = static_cast<uint64_t>(a.seed);
  options.lr = a.lr;
  options.lr.warmup_steps = a.warmup;
  MW_ASSIGN_OR_RETURN(options.lr.decay, runtime::ParseLrDecay(a.decay));
  options.lr.decay_steps = options.lr.decay == runtime::LrDecay::kConstant ? 0 : a.steps;
  MW_RETURN_IF_ERROR(runtime::CheckLrOptions(options.lr));
  options.optimizer = a.optimizer_options;
  options.deadline_s = a.deadline_s;
  if (!a.trace.empty() && trace_rows > kMaxTraceRows) {
    return InvalidInput(fmt::format("--trace: {} rows; at most {}: run fewer --steps",
                                    Thousands(trace_rows), Thousands(kMaxTraceRows)));
  }
  options.trace = !a.trace.empty() || (output.json() && trace_rows <= kMaxTraceRows);
  options.trace_ops = !a.trace.empty();
  return options;
}

/// Lines of rank 0: all of them as JSON, about twenty and at least one every two seconds for
/// people.
std::function<void(const runtime::StepReport&)> StepPrinter(int64_t steps, Output& output) {
  using Clock = std::chrono::steady_clock;
  auto last = std::make_shared<Clock::time_point>(Clock::now());
  const int64_t every = std::max<int64_t>(1, steps / 20);
  return [steps, every, last, &output](const runtime::StepReport& report) {
    if (report.rank != 0) return;
    if (output.json()) output.JsonLine(StepJson(report));
    const auto now = Clock::now();
    const int64_t step = report.step + 1;
    if (step != 1 && step != steps && step % every != 0 && now - *last < std::chrono::seconds(2))
      return;
    *last = now;
    output.Progress(StepText(report, steps));
  };
}

/// What the plan says of such devices; simulated anew when the command line changed it.
Result<planner::Prediction> PredictionFor(const planner::Plan& plan, bool changed, Output& output) {
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster, ClusterOfPlan(plan));
  if (cluster.Device(0).kind != plan.device) return planner::Prediction();
  if (!changed) return plan.prediction;
  MW_ASSIGN_OR_RETURN(const cost::DeviceProfile profile, ProfileOf(cluster, output));
  MW_ASSIGN_OR_RETURN(const cost::CostModel costs, CostsFor(profile, plan, cluster));
  MW_ASSIGN_OR_RETURN(Evaluation evaluation, Evaluate(plan, cluster, costs, {}));
  return std::move(evaluation.simulated.prediction);
}

/// --comm, or what the launcher suggests.
Result<bool> UseMpi(const RunArguments& a, const Launcher& launcher, int64_t ranks,
                    Output& output) {
  if (!launcher.name.empty()) {
    output.Progress(fmt::format("found {} ({} = {}): rank {} of a job", launcher.name,
                                launcher.variable, launcher.size, launcher.rank));
  }
  const bool mpi =
      a.comm.empty() ? launcher.mpi && runtime::MpiSession::Available() : a.comm == "mpi";
  if (!mpi) {
    if (launcher.size > 1) {
      output.Warn(fmt::format(
          "--comm threads: each of the {} processes runs all {} ranks; pass --comm mpi to share "
          "them",
          launcher.size, ranks));
    }
    return false;
  }
  if (!runtime::MpiSession::Available()) {
    return Unsupported(
        "--comm mpi: this build has no MPI; install Open MPI and build again, or pass --comm "
        "threads");
  }
  if (!runtime::MpiSession::Launched() && ranks > 1) {
    return InvalidInput(fmt::format(
        "--comm mpi: no MPI launcher started this process; use 'mpirun -n {} meshwright "
        "run ...', or --comm threads",
        ranks));
  }
  return true;
}

Status ShowJob(const RunArguments& a, const planner::Plan& plan, bool changed,
               const JobSummary& job, Output& output) {
  MW_ASSIGN_OR_RETURN(planner::Prediction predicted, PredictionFor(plan, changed, output));
  if (a.share_gpus) predicted.step_time_s = 0.0;  // of a GPU a rank
  output.document() = JobJson(job, predicted);
  output.Text(JobText(job, plan, predicted, output.style()));
  if (a.trace.empty()) return Status::Ok();
  MW_RETURN_IF_ERROR(
      WriteFileAtomically(a.trace, planner::WriteChromeTrace(job.trace, job.op_trace)));
  output.Progress(
      fmt::format("trace of {} rows: {} (open it in chrome://tracing or ui.perfetto.dev)",
                  Thousands(job.trace_rows), a.trace));
  return Status::Ok();
}

/// What CPU and GPU ranks have in common: a plan that was read, lowered and proven.
struct Job {
  planner::Plan plan;
  bool changed = false;
  planner::Programs programs;
  std::unique_ptr<runtime::DataSource> data;
  runtime::RunOptions options;
};

Result<Job> Prepare(const RunArguments& a, Output& output) {
  Job job;
  MW_ASSIGN_OR_RETURN(job.plan, PlanToRun(a, &job.changed));
  MW_ASSIGN_OR_RETURN(job.programs, planner::Lower(job.plan));
  MW_RETURN_IF_ERROR(planner::Verify(job.programs, {}));
  MW_ASSIGN_OR_RETURN(job.data, OpenData(a, job.plan));
  MW_ASSIGN_OR_RETURN(job.options, ToRunOptions(a, TraceRowsOf(job.programs, a.steps), output));
  job.options.on_step = StepPrinter(a.steps, output);
  return job;
}

Status RunGpuRank(const RunArguments& a, const Job& job, const runtime::LaunchFacts& facts,
                  Output& output) {
  runtime::GpuOptions gpu;
  gpu.deterministic = job.plan.deterministic;
  // Algorithms timed while other ranks compute on the same GPU would be chance.
  gpu.tune = !a.no_tune && !a.share_gpus;
  gpu.share_devices = a.share_gpus;
  gpu.time_ops = a.op_times;
  if (a.peer_copies != "on") {
    gpu.peer_copies = {a.peer_copies == "tensor", a.peer_copies == "data", a.peer_copies == "edges",
                       std::nullopt};
  }
  gpu.graphs = a.graphs == "on";
  gpu.tensor_ctas = static_cast<int>(a.tensor_ctas);
  gpu.data_ctas = static_cast<int>(a.data_ctas);
  gpu.edge_ctas = static_cast<int>(a.edge_ctas);
  if (const std::string cache = CacheDir(); !cache.empty()) gpu.tuning_file = cache + "/gemm.jsonl";
  if (!a.flight_record.empty()) {
    gpu.flight_record = fmt::format("{}.rank{}", a.flight_record, facts.rank);
  }
  output.Progress(fmt::format("{} on {} GPUs, {}; {}", planner::ShortName(job.plan),
                              job.plan.world_size(), planner::ToString(job.plan.dtype),
                              runtime::Describe(facts)));
  MW_ASSIGN_OR_RETURN(const JobSummary summary,
                      RunGpuJob(facts, job.programs, *job.data, job.options, gpu));
  if (facts.rank > 0) return Status::Ok();
  return ShowJob(a, job.plan, job.changed, summary, output);
}

/// One rank of a launcher's job, or all ranks as processes of our own.
Status RunOnGpus(const RunArguments& a, Output& output) {
  MW_RETURN_IF_ERROR(runtime::CheckGpuBuild());
  MW_ASSIGN_OR_RETURN(const runtime::LaunchFacts facts,
                      runtime::DetectLaunch(runtime::ProcessEnvironment()));
  if (facts.rank > 0) output.Mute();
  MW_ASSIGN_OR_RETURN(const Job job, Prepare(a, output));
  const int64_t ranks = job.plan.world_size();
  if (facts.launcher != runtime::Launcher::kNone || ranks == 1) {
    return RunGpuRank(a, job, facts, output);
  }
  runtime::SelfStartOptions start;
  start.ranks = static_cast<int>(ranks);
  MW_ASSIGN_OR_RETURN(const runtime::SelfStartOutcome outcome,
                      runtime::StartRanks(start, [&](const runtime::LaunchFacts& own) {
                        if (own.rank > 0) output.Mute();
                        return output.Finish(RunGpuRank(a, job, own, output));
                      }));
  output.Mute();  // the ranks have said everything
  switch (outcome.exit_code) {
    case 0:
      return Status::Ok();
    case 1:
      return Infeasible(outcome.what);
    case 2:
      return InvalidInput(outcome.what);
    default:
      return RunFailed(outcome.what);
  }
}

Status RunPlan(const RunArguments& a, Output& output) {
  if (a.device == "cuda") return RunOnGpus(a, output);
  const Launcher launcher = FindLauncher();
  if (launcher.mpi && launcher.rank > 0 && a.comm != "threads") output.Mute();
  MW_ASSIGN_OR_RETURN(const Job job, Prepare(a, output));
  MW_ASSIGN_OR_RETURN(const bool mpi, UseMpi(a, launcher, job.plan.world_size(), output));
  MW_RETURN_IF_ERROR(CheckMemory(job.programs, launcher, mpi));
  output.Progress(fmt::format("{} on {} ranks as {}, {}", planner::ShortName(job.plan),
                              job.plan.world_size(), mpi ? "MPI processes" : "threads",
                              planner::ToString(job.plan.dtype)));
  MW_ASSIGN_OR_RETURN(const JobSummary summary,
                      mpi ? RunMpiJob(job.programs, *job.data, job.options)
                          : RunThreadsJob(job.programs, *job.data, job.options));
  if (launcher.mpi && mpi && launcher.rank > 0) return Status::Ok();
  return ShowJob(a, job.plan, job.changed, summary, output);
}

}  // namespace

Command RunCommand() {
  auto arguments = std::make_shared<RunArguments>();
  return {"run", "trains by a plan; predicted beside measured at the end",
          [arguments](OptionSet& options) { Declare(arguments.get(), options); },
          [arguments](Output& output) { return RunPlan(*arguments, output); }};
}

}  // namespace meshwright::tools
