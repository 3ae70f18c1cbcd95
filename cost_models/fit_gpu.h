// Fits a GPU's profile to measurements: the constants that op_time.h and CostModel price with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost_models/device_profile.h"
#include "cost_models/fit_communication.h"
#include "cost_models/fit_lines.h"
#include "cost_models/op_time.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::cost {

/// A product between other ops, its launch included.
struct ProductTime {
  GemmShape shape;   ///< bf16; `accumulate` for gradients of weights
  std::string kind;  ///< "linear_weight_grad"; residuals are told by kind
  Seconds time;
};

/// Fused attention between other ops, its launch included.
struct AttentionTime {
  int64_t head_dim = 0;
  int64_t length = 0;  ///< keys
  bool causal = true;
  bool backward = false;
  Flops flops;  ///< causal: half of the square
  Seconds time;
};

/// A memory-bound kernel, one of many in a row.
struct KernelTime {
  std::string kernel;  ///< as Work::kernel
  Bytes bytes;         ///< read + written
  Seconds time;
};

/// What a calibration measured of one GPU, and of the traffic between those of its host. Products
/// and attention in bf16.
struct GpuSamples {
  std::string device;    ///< name that the driver gives
  std::string software;  ///< versions, for the source of the numbers
  int64_t multiprocessors = 0;
  BytesPerSecond copy_rate;  ///< device-to-device copy, read + written
  Seconds launch;            ///< GPU time of an op that does nothing, launched by itself
  Seconds graph_launch;      ///< the same in a CUDA graph, as the ops below were timed
  double mix_clock = 0.0;    ///< PowerClock::reference; 0: not known
  Seconds issue_kernel, issue_product, issue_attention;
  Bytes context_memory, library_memory;
  std::vector<ProductTime> products;
  std::vector<AttentionTime> attention;
  std::vector<KernelTime> kernels;
  std::optional<CommunicationSamples> communication;  ///< two or more GPUs
};

struct FittedGpu {
  DeviceProfile profile;
  std::vector<FitLine> lines;
};

/// `base` with every number that the samples tell: products, attention by head size, memory-bound
/// kernels, launch, issue, memory of context and libraries, and with samples of communication
/// traffic and products beside it. `origin` is the source that they get. What they cannot tell
/// (collectives of libraries without our limits, network, peaks) stays. kInvalidInput for a base
/// that is no GPU or lacks a bf16 peak, too few samples, or samples that are not positive.
Result<FittedGpu> FitGpu(const DeviceProfile& base, const GpuSamples& samples,
                         const std::string& origin);

}  // namespace meshwright::cost
