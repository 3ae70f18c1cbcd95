// Fits the traffic of a GPU's profile to measurements of communication inside a host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost_models/collectives.h"
#include "cost_models/device_profile.h"
#include "cost_models/fit_lines.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::cost {

/// "all_reduce of 2, tensor, nccl".
std::string ToString(const TrafficKey& key);

/// One operation of many in a row, in bf16.
struct TrafficSample {
  TrafficKey key;
  Bytes bytes;  ///< as CollectiveWork::bytes
  Seconds time;
  bool held_out = false;  ///< counts in the residuals only
};

/// A product alone and while the operation runs all the time.
struct ProductBeside {
  TrafficKey key;
  Seconds alone, beside;
};

struct CommunicationSamples {
  std::string library;  ///< "NCCL 2.28.9", for the source of the numbers
  int64_t gpus = 0;     ///< of the host
  BytesPerSecond link;  ///< wired, one GPU, each way
  std::vector<TrafficSample> times;
  std::vector<ProductBeside> beside;
};

struct FittedCommunication {
  std::vector<TrafficFit> traffic;  ///< one a key, in their order
  /// Median over NCCL's operations; value 0 when there are none.
  Sourced<double> beside_communication;
  std::vector<FitLine> lines;  ///< one a key, then all that were held out
};

/// A latency and a curve a key. kInvalidInput, naming the key, for a time or rate that is not above
/// 0, fewer than three sizes that are not held out, or one size twice.
Result<FittedCommunication> FitCommunication(const CommunicationSamples& samples,
                                             const std::string& origin);

}  // namespace meshwright::cost
