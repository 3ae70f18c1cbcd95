#include "tools/gpu_calibration.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cost_models/fit_gpu.h"
#include "runtime/gpu_run.h"
#include "runtime/measure_communication.h"
#include "runtime/ranks_text.h"
#include "tools/command_line.h"
#include "tools/communication_samples.h"
#include "tools/gpu_samples.h"
#include "tools/table.h"
#include "topologies/gpu_catalog.h"
#include "topologies/text.h"

namespace meshwright::tools {
namespace {

constexpr size_t kMaxSampleBytes = size_t{64} << 20;

/// GPUs that a process sees; this one must not ask yet.
Result<int64_t> CountGpus() {
  MW_ASSIGN_OR_RETURN(
      const std::string text,
      runtime::TextOfRanks({}, [](const runtime::LaunchFacts&) -> Result<std::string> {
        MW_ASSIGN_OR_RETURN(const int gpus, runtime::VisibleGpus());
        return std::to_string(gpus);
      }));
  const std::optional<int64_t> gpus = ParseInt(text);
  if (!gpus) return RunFailed("a process that was to count the GPUs left no number");
  return *gpus;
}

/// What rank 0 leaves: CommunicationJson.
Result<std::string> MeasureAsRank(const runtime::LaunchFacts& facts, Output& output) {
  if (facts.rank > 0) output.Mute();
  runtime::MeasureCommunicationOptions options;
  options.progress = [&](const std::string& text) { output.Progress(text); };
  MW_ASSIGN_OR_RETURN(const runtime::CommunicationMeasurement measured,
                      runtime::MeasureCommunication(facts, options));
  const auto model = topologies::GpuModelOfSmiName(measured.device);
  if (!model) {
    return NotFound(fmt::format(
        "GPU '{}' is none of the known models, so the bandwidth of its links is not known; pass "
        "--communication off",
        measured.device));
  }
  MW_ASSIGN_OR_RETURN(const cost::CommunicationSamples samples,
                      ToCommunicationSamples(measured, *model));
  return CommunicationJson(samples).dump();
}

/// By a process a GPU; none, with the reason in one line, where there is nothing to measure.
Result<std::optional<cost::CommunicationSamples>> MeasureBetweenGpus(
    const GpuCalibrationArguments& a, Output& output) {
  MW_ASSIGN_OR_RETURN(const int64_t gpus, CountGpus());
  if (a.gpu >= gpus) {
    return InvalidInput(
        fmt::format("--gpu {}: found {} CUDA devices; allowed: 0 to {}", a.gpu, gpus, gpus - 1));
  }
  const bool off = a.communication == "off";
  if (off || gpus < 2) {
    output.Progress(
        fmt::format("communication was not measured: {}; the profile keeps the numbers of its base",
                    off ? "--communication off" : "1 GPU is visible, it needs two"));
    return std::optional<cost::CommunicationSamples>();
  }
  runtime::SelfStartOptions start;
  start.ranks = static_cast<int>(gpus);
  MW_ASSIGN_OR_RETURN(const std::string text,
                      runtime::TextOfRanks(start, [&](const runtime::LaunchFacts& facts) {
                        return MeasureAsRank(facts, output);
                      }));
  const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  MW_ASSIGN_OR_RETURN(cost::CommunicationSamples samples,
                      ParseCommunication(parsed, "answer of rank 0"));
  return std::optional<cost::CommunicationSamples>(std::move(samples));
}

Result<cost::GpuSamples> Samples(const GpuCalibrationArguments& a, Output& output) {
  if (!a.from.empty()) {
    MW_ASSIGN_OR_RETURN(const std::string text, topologies::ReadTextFile(a.from, kMaxSampleBytes));
    MW_ASSIGN_OR_RETURN(cost::GpuSamples samples, ParseGpuSamples(text, a.from));
    if (!samples.communication) {
      output.Progress(fmt::format(
          "communication is not in {}: the profile keeps the numbers of its base", a.from));
    }
    return samples;
  }
  MW_RETURN_IF_ERROR(runtime::CheckGpuBuild());
  // First, because it forks.
  MW_ASSIGN_OR_RETURN(std::optional<cost::CommunicationSamples> communication,
                      MeasureBetweenGpus(a, output));
  runtime::MeasureGpuOptions options;
  options.device = static_cast<int>(a.gpu);
  options.progress = [&output](const std::string& text) { output.Progress(text); };
  MW_ASSIGN_OR_RETURN(const runtime::GpuMeasurement measured, runtime::MeasureGpu(options));
  output.Progress(fmt::format("measured in {}", SecondsText(measured.elapsed_s)));
  cost::GpuSamples samples = ToGpuSamples(measured);
  samples.communication = std::move(communication);
  if (!a.samples.empty()) {
    MW_RETURN_IF_ERROR(WriteFileAtomically(a.samples, GpuSamplesJson(samples).dump(1) + "\n"));
    output.Progress(fmt::format("measurements: {}", a.samples));
  }
  return samples;
}

Result<cost::DeviceProfile> BaseOf(const GpuCalibrationArguments& a, const std::string& device) {
  if (!a.base.empty()) return cost::LoadDeviceProfile(a.base);
  const auto known = topologies::GpuModelOfSmiName(device);
  if (!known) {
    return NotFound(fmt::format(
        "GPU '{}' is none of the known models, so its peaks and links are not known; pass --base "
        "with a profile of such a GPU",
        device));
  }
  return cost::LoadDeviceProfile(std::string(known->profile));
}

/// What goes between GPUs, one row an operation, class, carrier and size of the group.
Table TrafficTable(const cost::CommunicationSamples& samples,
                   const std::vector<cost::TrafficFit>& traffic, nlohmann::json* rows) {
  Table table({"between GPUs", "start", "long messages", "products beside"});
  *rows = nlohmann::json::array();
  for (const cost::TrafficFit& fit : traffic) {
    const double rate = samples.link.value() * fit.curve.back().efficiency.value;
    const std::string name = cost::ToString(fit);
    table.Row({name, SecondsText(fit.latency.value.value()),
               fmt::format("{} GB/s sent a GPU", NumberText(rate / 1e9)),
               fit.beside.value > 0 ? fmt::format("{} of their rate", PercentText(fit.beside.value))
                                    : "not measured"});
    rows->push_back({{"what", name},
                     {"latency_s", fit.latency.value.value()},
                     {"bytes_per_s", rate},
                     {"products_beside", fit.beside.value},
                     {"median", fit.fit_median.value},
                     {"p90", fit.fit_p90.value}});
  }
  return table;
}

void Show(const cost::FittedGpu& fitted, const cost::GpuSamples& samples, Output& output) {
  const cost::DeviceProfile& p = fitted.profile;
  const cost::GemmFit& gemm = p.gpu->gemm;
  Table facts({"", ""});
  facts.Row({"GPU", fmt::format("{}, {}", samples.device, samples.software)});
  facts.Row({"copy", fmt::format("{} TB/s read and written ({} of the datasheet's)",
                                 NumberText(samples.copy_rate.value() / 1e12),
                                 PercentText(p.memory_efficiency.value))});
  facts.Row({"kernel that does nothing",
             fmt::format("{}, in a graph {}", SecondsText(p.launch_overhead.value.value()),
                         SecondsText(p.gpu->graph_launch.value.value()))});
  facts.Row({"host, to issue", fmt::format("kernel {}, product {}, attention {}",
                                           SecondsText(samples.issue_kernel.value()),
                                           SecondsText(samples.issue_product.value()),
                                           SecondsText(samples.issue_attention.value()))});
  if (samples.mix_clock > 0) {
    facts.Row({"clock of products and attention",
               fmt::format("{} of the highest", PercentText(samples.mix_clock))});
  }
  facts.Row({"products", fmt::format("at most {} of the peak, edge {}, depth {}, quantisation {}",
                                     PercentText(gemm.max_efficiency.value), gemm.edge.value,
                                     gemm.depth.value, gemm.quantisation.value)});
  facts.Row(
      {"context and libraries", fmt::format("{} and {}", BytesText(samples.context_memory.value()),
                                            BytesText(samples.library_memory.value()))});
  Table lines({"fit", "measurements", "median error", "p90"});
  nlohmann::json fits = nlohmann::json::array();
  for (const cost::FitLine& line : fitted.lines) {
    lines.Row({line.what, Thousands(line.rows), PercentText(line.median), PercentText(line.p90)});
    fits.push_back(
        {{"what", line.what}, {"rows", line.rows}, {"median", line.median}, {"p90", line.p90}});
  }
  output.document() = {{"name", p.name},
                       {"device", samples.device},
                       {"fits", std::move(fits)},
                       {"errors", nlohmann::json::array()}};
  std::string text =
      HeadingText("this machine's GPU", output.style()) + facts.ToText(output.style());
  if (samples.communication) {
    text += TrafficTable(*samples.communication, p.gpu->traffic, &output.document()["traffic"])
                .ToText(output.style());
  }
  output.Text(text + lines.ToText(output.style()));
}

}  // namespace

Status CalibrateGpu(const GpuCalibrationArguments& a, Output& output) {
  MW_ASSIGN_OR_RETURN(const cost::GpuSamples samples, Samples(a, output));
  MW_ASSIGN_OR_RETURN(cost::DeviceProfile base, BaseOf(a, samples.device));
  const std::time_t now = std::time(nullptr);
  std::string software = samples.software;
  if (samples.communication) software += ", " + samples.communication->library;
  const std::string origin =
      fmt::format("meshwright calibrate --device cuda on {} ({}), fitted {:%Y-%m-%d}",
                  samples.device, software, fmt::gmtime(now));
  MW_ASSIGN_OR_RETURN(cost::FittedGpu fitted, cost::FitGpu(base, samples, origin));
  if (!a.name.empty()) fitted.profile.name = a.name;
  if (!a.output.empty()) {
    MW_RETURN_IF_ERROR(WriteFileAtomically(a.output, cost::ToYaml(fitted.profile)));
    output.Progress(fmt::format("profile: {}", a.output));
  }
  Show(fitted, samples, output);
  return Status::Ok();
}

}  // namespace meshwright::tools
