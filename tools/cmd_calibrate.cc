// meshwright calibrate: measures what this machine's CPU ranks or GPUs cost.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/cpu_profile.h"
#include "tools/gpu_calibration.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

struct CalibrateArguments {
  std::string device = "cpu";
  GpuCalibrationArguments gpu;  ///< its output is that of the CPU too
};

Status Calibrate(const CalibrateArguments& a, Output& output) {
  if (a.device == "cuda") return CalibrateGpu(a.gpu, output);
  const std::string& file = a.gpu.output;
  MW_ASSIGN_OR_RETURN(const CpuMachine cpu, MeasureThisCpu(output));
  const cost::DeviceProfile& profile = cpu.profile;
  if (!file.empty()) {
    MW_RETURN_IF_ERROR(WriteFileAtomically(file, cost::ToYaml(profile)));
    output.Progress(fmt::format("profile: {}", file));
  }
  nlohmann::json& document = output.document();
  document = {
      {"name", profile.name},
      {"description", profile.description},
      {"cores", cpu.host.cores},
      {"memory_bytes", cpu.host.memory.value()},
      {"core_memory_bandwidth_bytes_per_s", profile.cpu->core_memory_bandwidth.value.value()},
      {"memory_bandwidth_bytes_per_s", profile.memory_bandwidth.value.value()},
      {"launch_overhead_s", profile.launch_overhead.value.value()},
      {"collective_latency_s", profile.cpu->collective_latency.value.value()},
      {"profile", file.empty() ? cpu.profile_path : file},
      {"errors", nlohmann::json::array()}};
  Table table({"", ""});
  table.Row({"processor", fmt::format("{}, {} cores, {}", profile.description, cpu.host.cores,
                                      BytesText(cpu.host.memory.value()))});
  for (const cost::PeakRate& peak : profile.peaks) {
    const std::string precision(cost::ToString(peak.precision));
    document["peak_flops_per_s"][precision] = peak.rate.value.value();
    table.Row({"fastest product, " + precision,
               fmt::format("{} GFLOP/s a core", NumberText(peak.rate.value.value() / 1e9))});
  }
  table.Row(
      {"memory", fmt::format("{} GB/s one core, {} GB/s all cores",
                             NumberText(profile.cpu->core_memory_bandwidth.value.value() / 1e9),
                             NumberText(profile.memory_bandwidth.value.value() / 1e9))});
  table.Row({"start of an op", SecondsText(profile.launch_overhead.value.value())});
  table.Row({"collective of two", SecondsText(profile.cpu->collective_latency.value.value())});
  table.Row({"kept in", cpu.profile_path.empty() ? "(nowhere)" : cpu.profile_path});
  output.Text(HeadingText("this machine's CPU", output.style()) + table.ToText(output.style()));
  return Status::Ok();
}

}  // namespace

Command CalibrateCommand() {
  auto arguments = std::make_shared<CalibrateArguments>();
  return {"calibrate", "measure this machine; later predictions for --cluster cpu use it",
          [arguments](OptionSet& options) {
            options.Choice("--device", &arguments->device, {"cpu", "cuda"}, "what to measure");
            options.Text("-o,--output", &arguments->gpu.output, "FILE",
                         "write the profile here too");
            options.Heading("GPUs");
            options.Int("--gpu", &arguments->gpu.gpu, {0, 1023}, "which one computes");
            options.Choice("--communication", &arguments->gpu.communication, {"on", "off"},
                           "where several are visible, measure what goes between them, too");
            options.Text("--base", &arguments->gpu.base, "PROFILE",
                         "profile that peaks and links come from; default: by the GPU's name");
            options.Text("--name", &arguments->gpu.name, "NAME",
                         "of the new profile; default: that of the base");
            options.Text("--samples", &arguments->gpu.samples, "FILE",
                         "write the measurements here, for --from");
            options.Text("--from", &arguments->gpu.from, "FILE",
                         "fit to these measurements instead of measuring; needs no GPU");
          },
          [arguments](Output& output) { return Calibrate(*arguments, output); }};
}

}  // namespace meshwright::tools
