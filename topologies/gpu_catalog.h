// What is known of GPU models beyond a topology capture: links, memory, profile name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::topologies {

/// Data of a GPU model; all figures from the text in `source`.
struct GpuModel {
  std::string_view name;                ///< "H100-SXM": what users type
  std::string_view profile;             ///< device profile
  std::vector<std::string_view> marks;  ///< parts of nvidia-smi's name that all must be there
  Bytes memory;
  int nvlinks = 0;                 ///< of one GPU; 0: none
  BytesPerSecond nvlink_each_way;  ///< of one link
  BytesPerSecond pcie_each_way;    ///< of the slot, 16 lanes
  BytesPerSecond nic_each_way;     ///< NIC usually installed per GPU or pair of GPUs; an assumption
  std::string_view source;
};

const std::vector<GpuModel>& GpuModels();

/// By name as users type it (case does not matter). NotFound lists near names or all.
Result<GpuModel> FindGpuModel(std::string_view name);

/// From what nvidia-smi prints ("NVIDIA H100 80GB HBM3"); none if unknown.
std::optional<GpuModel> GpuModelOfSmiName(std::string_view smi_name);

}  // namespace meshwright::topologies
