// Measurements of communication as a host with known constants would give them.
#pragma once

#include <cstdint>

#include "cost_models/fit_communication.h"

namespace meshwright::cost {

/// time = latency + bytes / rate of every key; products beside it keep `beside` of their rate.
struct CommunicationTruth {
  double latency_s = 12e-6;
  double bytes_per_s = 200e9;  ///< of the bytes that a rank sends
  double beside = 0.8;
};

inline void AddTruth(const TrafficKey& key, const CommunicationTruth& truth,
                     CommunicationSamples* samples) {
  const double n = static_cast<double>(key.ranks);
  const double share = key.kind == CollectiveKind::kSend        ? 1.0
                       : key.kind == CollectiveKind::kAllReduce ? 2 * (n - 1) / n
                                                                : (n - 1) / n;
  const auto add = [&](int64_t bytes, bool held_out) {
    samples->times.push_back(
        {key, Bytes(bytes),
         Seconds(truth.latency_s + share * static_cast<double>(bytes) / truth.bytes_per_s),
         held_out});
  };
  for (int64_t bytes = 64 << 10; bytes <= (256 << 20); bytes *= 4) add(bytes, false);
  add(32 << 20, true);
  samples->beside.push_back({key, Seconds(1.5e-3), Seconds(1.5e-3 / truth.beside)});
}

inline CommunicationSamples TwoGpus() {
  CommunicationSamples samples;
  samples.library = "NCCL 2.28.9";
  samples.gpus = 2;
  samples.link = BytesPerSecond(450e9);
  AddTruth({CollectiveKind::kAllReduce, Traffic::kTensor, Carrier::kNccl, 2, 32}, {}, &samples);
  AddTruth({CollectiveKind::kAllReduce, Traffic::kTensor, Carrier::kCopyEngines, 2, 0},
           {20e-6, 380e9, 0.96}, &samples);
  AddTruth({CollectiveKind::kReduceScatter, Traffic::kData, Carrier::kNccl, 2, 8},
           {12e-6, 80e9, 0.9}, &samples);
  AddTruth({CollectiveKind::kSend, Traffic::kEdge, Carrier::kNccl, 2, 1}, {10e-6, 20e9, 0.99},
           &samples);
  return samples;
}

}  // namespace meshwright::cost
