#include "topologies/gpu_catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "topologies/cluster_io.h"
#include "topologies/text.h"

namespace meshwright::topologies {
namespace {

constexpr Bytes GB(int64_t count) {
  return Bytes(count * 1'000'000'000);
}
constexpr BytesPerSecond GBps(double count) {
  return BytesPerSecond(count * 1e9);
}
constexpr BytesPerSecond Gbps(double count) {
  return BytesPerSecond(count * 1e9 / 8);
}

// 16 lanes, 128b/130b coding: 8, 16 and 32 GT/s a lane (PCI Express base
// specifications 3.0, 4.0, 5.0).
constexpr BytesPerSecond kPcie3 = GBps(15.75);
constexpr BytesPerSecond kPcie4 = GBps(31.5);
constexpr BytesPerSecond kPcie5 = GBps(63.0);

}  // namespace

const std::vector<GpuModel>& GpuModels() {
  // Models with more marks stand before those whose marks they contain.
  static const std::vector<GpuModel> models = {
      {"GB300",
       "gb300",
       {"GB300"},
       GB(279),
       18,
       GBps(50),
       kPcie5,
       Gbps(800),
       "NVIDIA GB300 NVL72 datasheet: 20 TB HBM3e for 72 GPUs, NVLink 5 with 1.8 TB/s a GPU (18 "
       "links, both ways), one ConnectX-8 a GPU"},
      {"GB200",
       "gb200",
       {"GB200"},
       GB(186),
       18,
       GBps(50),
       kPcie5,
       Gbps(400),
       "NVIDIA GB200 NVL72 datasheet: 186 GB HBM3e a GPU, NVLink 5 with 1.8 TB/s a GPU (18 links, "
       "both ways)"},
      {"B200",
       "b200",
       {"B200"},
       GB(180),
       18,
       GBps(50),
       kPcie5,
       Gbps(400),
       "NVIDIA DGX B200 datasheet: 1440 GB for 8 GPUs, NVLink 5 with 1.8 TB/s a GPU (18 links, "
       "both ways)"},
      {"H200",
       "h200-sxm",
       {"H200"},
       GB(141),
       18,
       GBps(25),
       kPcie5,
       Gbps(400),
       "NVIDIA H200 datasheet: 141 GB HBM3e, NVLink 4 with 900 GB/s a GPU (18 links, both ways), "
       "PCIe 5"},
      {"H20",
       "h20",
       {"H20"},
       GB(96),
       18,
       GBps(25),
       kPcie5,
       Gbps(400),
       "NVIDIA H20: 96 GB HBM3, NVLink 4 with 900 GB/s (18 links, both ways), PCIe 5"},
      {"H800-SXM",
       "h800",
       {"H800"},
       GB(80),
       8,
       GBps(25),
       kPcie5,
       Gbps(400),
       "NVIDIA H800 SXM: 80 GB, NVLink 4 cut to 400 GB/s (8 links, both ways), PCIe 5"},
      {"H100-PCIe",
       "h100-pcie",
       {"H100", "PCIe"},
       GB(80),
       12,
       GBps(25),
       kPcie5,
       Gbps(400),
       "NVIDIA H100 datasheet, PCIe form: 80 GB, NVLink bridge 600 GB/s (12 links, both ways), "
       "PCIe 5"},
      {"H100-NVL",
       "h100-nvl",
       {"H100", "NVL"},
       GB(94),
       12,
       GBps(25),
       kPcie5,
       Gbps(400),
       "NVIDIA H100 NVL datasheet: 94 GB, NVLink bridge 600 GB/s (12 links, both ways), PCIe 5"},
      {"H100-SXM",
       "h100-sxm",
       {"H100"},
       GB(80),
       18,
       GBps(25),
       kPcie5,
       Gbps(400),
       "NVIDIA H100 datasheet, SXM form: 80 GB HBM3, NVLink 4 with 900 GB/s (18 links, both ways), "
       "PCIe 5"},
      {"A800-SXM-80",
       "a800-80",
       {"A800"},
       GB(80),
       8,
       GBps(25),
       kPcie4,
       Gbps(200),
       "NVIDIA A800: A100 80 GB with NVLink 3 cut to 400 GB/s (8 links, both ways), PCIe 4"},
      {"A100-PCIe-80",
       "a100-pcie-80",
       {"A100", "PCI", "80GB"},
       GB(80),
       12,
       GBps(25),
       kPcie4,
       Gbps(200),
       "NVIDIA A100 80 GB PCIe datasheet: NVLink bridge 600 GB/s for two GPUs (12 links, both "
       "ways), PCIe 4"},
      {"A100-PCIe-40",
       "a100-40",
       {"A100", "PCI"},
       GB(40),
       12,
       GBps(25),
       kPcie4,
       Gbps(200),
       "NVIDIA A100 PCIe datasheet: 40 GB, NVLink bridge 600 GB/s for two GPUs (12 links, both "
       "ways), PCIe 4"},
      {"A100-SXM-80",
       "a100-80",
       {"A100", "80GB"},
       GB(80),
       12,
       GBps(25),
       kPcie4,
       Gbps(200),
       "NVIDIA A100 80 GB datasheet, SXM form: NVLink 3 with 600 GB/s (12 links, both ways), PCIe "
       "4"},
      {"A100-SXM-40",
       "a100-40",
       {"A100"},
       GB(40),
       12,
       GBps(25),
       kPcie4,
       Gbps(200),
       "NVIDIA A100 datasheet, SXM form: 40 GB, NVLink 3 with 600 GB/s (12 links, both ways), PCIe "
       "4"},
      {"V100-SXM2-32",
       "v100-32",
       {"V100", "SXM2", "32GB"},
       GB(32),
       6,
       GBps(25),
       kPcie3,
       Gbps(100),
       "NVIDIA V100 datasheet: 32 GB, NVLink 2 with 300 GB/s (6 links, both ways), PCIe 3"},
      {"V100-SXM2-16",
       "v100-16",
       {"V100", "SXM2"},
       GB(16),
       6,
       GBps(25),
       kPcie3,
       Gbps(100),
       "NVIDIA V100 datasheet: 16 GB, NVLink 2 with 300 GB/s (6 links, both ways), PCIe 3"},
      {"L40S",
       "l40s",
       {"L40S"},
       GB(48),
       0,
       {},
       kPcie4,
       Gbps(200),
       "NVIDIA L40S datasheet: 48 GB GDDR6, no NVLink, PCIe 4 x16 (64 GB/s both ways)"},
      {"RTX-PRO-6000",
       "rtx-pro-6000",
       {"RTX PRO 6000"},
       GB(96),
       0,
       {},
       kPcie5,
       Gbps(200),
       "NVIDIA RTX PRO 6000 Blackwell datasheet: 96 GB GDDR7, no NVLink, PCIe 5 x16"},
      {"RTX-4090",
       "rtx-4090",
       {"RTX 4090"},
       GB(24),
       0,
       {},
       kPcie4,
       Gbps(100),
       "NVIDIA GeForce RTX 4090 specifications: 24 GB GDDR6X, no NVLink, PCIe 4 x16"},
      {"RTX-3090",
       "rtx-3090",
       {"RTX 3090"},
       GB(24),
       4,
       GBps(14.0625),
       kPcie4,
       Gbps(100),
       "NVIDIA GA102 whitepaper: NVLink 3 bridge with 4 links of 14.0625 GB/s each way (112.5 GB/s "
       "both ways)"},
      {"RTX-2080-Ti",
       "rtx-2080-ti",
       {"RTX 2080 Ti"},
       GB(11),
       2,
       GBps(25),
       kPcie3,
       Gbps(100),
       "NVIDIA Turing whitepaper: two NVLink 2 links of 25 GB/s each way (100 GB/s both ways), "
       "PCIe 3"},
      {"P40",
       "p40",
       {"P40"},
       GB(24),
       0,
       {},
       kPcie3,
       Gbps(100),
       "NVIDIA Tesla P40 datasheet: 24 GB GDDR5, no NVLink, PCIe 3 x16"}};
  return models;
}

std::vector<std::string> GpuModelNames() {
  std::vector<std::string> names;
  for (const GpuModel& model : GpuModels()) names.emplace_back(model.name);
  return names;
}

Result<GpuModel> FindGpuModel(std::string_view name) {
  for (const GpuModel& model : GpuModels()) {
    if (Lower(model.name) == Lower(name)) return model;
  }
  const std::vector<std::string> names = GpuModelNames();
  const auto close = ClosestNames(name, names);
  return NotFound(
      fmt::format("GPU model '{}' is not known{}; known are {}", Quoted(name),
                  close.empty() ? "" : fmt::format(", did you mean {}?", fmt::join(close, " or ")),
                  fmt::join(names, ", ")));
}

std::optional<GpuModel> GpuModelOfSmiName(std::string_view smi_name) {
  for (const GpuModel& model : GpuModels()) {
    const bool all =
        std::all_of(model.marks.begin(), model.marks.end(), [&](std::string_view mark) {
          return Lower(smi_name).find(Lower(mark)) != std::string::npos;
        });
    if (all) return model;
  }
  return std::nullopt;
}

}  // namespace meshwright::topologies
