#include "tools/gpu_calibration.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "cost_models/fit_gpu.h"
#include "runtime/gpu_run.h"
#include "tools/gpu_samples.h"
#include "tools/table.h"
#include "topologies/gpu_catalog.h"
#include "topologies/text.h"

namespace meshwright::tools {
namespace {

constexpr size_t kMaxSampleBytes = size_t{64} << 20;

Result<cost::GpuSamples> Samples(const GpuCalibrationArguments& a, Output& output) {
  if (!a.from.empty()) {
    MW_ASSIGN_OR_RETURN(const std::string text, topologies::ReadTextFile(a.from, kMaxSampleBytes));
    return ParseGpuSamples(text, a.from);
  }
  MW_RETURN_IF_ERROR(runtime::CheckGpuBuild());
  MW_ASSIGN_OR_RETURN(const int gpus, runtime::VisibleGpus());
  if (gpus > 1) {
    output.Warn(fmt::format(
        "{} GPUs are visible, GPU {} is measured: communication keeps the numbers of the base "
        "profile",
        gpus, a.gpu));
  }
  runtime::MeasureGpuOptions options;
  options.device = static_cast<int>(a.gpu);
  options.progress = [&output](const std::string& text) { output.Progress(text); };
  MW_ASSIGN_OR_RETURN(const runtime::GpuMeasurement measured, runtime::MeasureGpu(options));
  output.Progress(fmt::format("measured in {}", SecondsText(measured.elapsed_s)));
  const cost::GpuSamples samples = ToGpuSamples(measured);
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

void Show(const cost::FittedGpu& fitted, const cost::GpuSamples& samples, Output& output) {
  const cost::DeviceProfile& p = fitted.profile;
  const cost::GemmFit& gemm = p.gpu->gemm;
  Table facts({"", ""});
  facts.Row({"GPU", fmt::format("{}, {}", samples.device, samples.software)});
  facts.Row({"copy", fmt::format("{} TB/s read and written ({} of the datasheet's)",
                                 NumberText(samples.copy_rate.value() / 1e12),
                                 PercentText(p.memory_efficiency.value))});
  facts.Row({"kernel that does nothing", SecondsText(p.launch_overhead.value.value())});
  facts.Row({"host, to issue", fmt::format("kernel {}, product {}, attention {}",
                                           SecondsText(samples.issue_kernel.value()),
                                           SecondsText(samples.issue_product.value()),
                                           SecondsText(samples.issue_attention.value()))});
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
  output.Text(HeadingText("this machine's GPU", output.style()) + facts.ToText(output.style()) +
              lines.ToText(output.style()));
}

}  // namespace

Status CalibrateGpu(const GpuCalibrationArguments& a, Output& output) {
  MW_ASSIGN_OR_RETURN(const cost::GpuSamples samples, Samples(a, output));
  MW_ASSIGN_OR_RETURN(cost::DeviceProfile base, BaseOf(a, samples.device));
  const std::time_t now = std::time(nullptr);
  const std::string origin =
      fmt::format("meshwright calibrate --device cuda on {} ({}), fitted {:%Y-%m-%d}",
                  samples.device, samples.software, fmt::gmtime(now));
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
