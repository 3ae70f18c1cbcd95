// The fields of a device profile, listed once for reader, writer and checks.
//
// An archive `A` has: Text, Choice, Flag, Integer, Value (one overload a unit), Section, Optional,
// List. Each returns a Status; `Profile` may be const. `Absent(key, is_default)` says whether an
// optional field is left out: read from the file, or written only when it is not the default.
#pragma once

#include "cost_models/device_profile.h"

namespace meshwright::cost::internal {

inline constexpr size_t kMaxListItems = 4096;
inline constexpr double kMostBytes = 1e15;
inline constexpr double kMostRate = 1e18;  // bytes or operations a second

/// Allowed values, in SI units; the ends are allowed.
struct Range {
  double low = 0;
  double high = 0;
};

inline constexpr Range kRate{1, kMostRate};
inline constexpr Range kSize{0, kMostBytes};
inline constexpr Range kTime{0, 1};  // seconds
inline constexpr Range kRatio{0, 1};
inline constexpr Range kCount{1, 1e6};
inline constexpr Range kLength{0, 1e6};

template <typename A, typename T>
Status VisitAlignment(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Integer("bytes", item.bytes, 1, 4096));
  MW_RETURN_IF_ERROR(archive.Value("sums", item.sums, Range{0.01, 1}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("columns", item.columns, Range{0.01, 1}, "ratio"));
  return Status::Ok();
}

template <typename A, typename T>
Status VisitGemm(A& archive, T& gemm) {
  MW_RETURN_IF_ERROR(archive.Value("max_efficiency", gemm.max_efficiency, Range{0.01, 1}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("edge", gemm.edge, kLength, "elements"));
  MW_RETURN_IF_ERROR(archive.Value("depth", gemm.depth, kLength, "elements"));
  MW_RETURN_IF_ERROR(archive.Value("quantisation", gemm.quantisation, kRatio, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("fixed", gemm.fixed, kTime));
  MW_RETURN_IF_ERROR(archive.Value("fit_rows", gemm.fit_rows, Range{0, 1e9}));
  MW_RETURN_IF_ERROR(archive.Value("fit_median", gemm.fit_median, Range{0, 100}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("fit_p90", gemm.fit_p90, Range{0, 100}, "ratio"));
  if (!archive.Absent("accumulation", gemm.accumulation == Sourced<double>())) {
    MW_RETURN_IF_ERROR(archive.Value("accumulation", gemm.accumulation, Range{0, 10}, "ratio"));
  }
  if (!archive.Absent("alignment", gemm.alignment.empty())) {
    MW_RETURN_IF_ERROR(archive.List("alignment", gemm.alignment,
                                    [](auto& a, auto& x) { return VisitAlignment(a, x); }));
  }
  return Status::Ok();
}

template <typename A, typename T>
Status VisitPrecisionGemm(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Choice("precision", item.precision, ParsePrecision));
  return VisitGemm(archive, item.fit);
}

template <typename A, typename T>
Status VisitKernelGemm(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Text("kernel", item.kernel));
  return archive.Section("gemm", item.fit, [](auto& a, auto& x) { return VisitGemm(a, x); });
}

template <typename A, typename T>
Status VisitAttention(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Integer("head_dim", item.head_dim, 1, 65536));
  MW_RETURN_IF_ERROR(archive.Flag("backward", item.backward));
  if (!archive.Absent("deterministic", !item.deterministic)) {
    MW_RETURN_IF_ERROR(archive.Flag("deterministic", item.deterministic));
  }
  if (!archive.Absent("precision", item.precision == Precision::kBf16)) {
    MW_RETURN_IF_ERROR(archive.Choice("precision", item.precision, ParsePrecision));
  }
  MW_RETURN_IF_ERROR(archive.Value("rate", item.rate, kRate));
  MW_RETURN_IF_ERROR(archive.Value("half_length", item.half_length, kLength, "tokens"));
  if (!archive.Absent("tail", item.tail == Sourced<double>())) {
    MW_RETURN_IF_ERROR(archive.Value("tail", item.tail, Range{0, 1000}, "blocks"));
  }
  if (!archive.Absent("clock", item.clock == Sourced<double>())) {
    MW_RETURN_IF_ERROR(archive.Value("clock", item.clock, Range{0.1, 1}, "ratio"));
  }
  return Status::Ok();
}

template <typename A, typename T>
Status VisitKernelFit(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Text("kernel", item.kernel));
  MW_RETURN_IF_ERROR(archive.Value("efficiency", item.efficiency, Range{0.001, 2}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("fixed", item.fixed, kTime));
  return Status::Ok();
}

template <typename A, typename T>
Status VisitRunMemory(A& archive, T& memory) {
  MW_RETURN_IF_ERROR(archive.Value("communicators", memory.communicators, kSize));
  MW_RETURN_IF_ERROR(archive.Value("cta", memory.cta, kSize));
  MW_RETURN_IF_ERROR(archive.Value("edge", memory.edge, kSize));
  return archive.Value("idle", memory.idle, kSize);
}

template <typename A, typename T>
Status VisitPowerClock(A& archive, T& clock) {
  MW_RETURN_IF_ERROR(archive.Value("reference", clock.reference, Range{0.1, 1}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("products", clock.products, Range{0.1, 1}, "ratio"));
  return archive.Value("memory_power", clock.memory_power, Range{0, 1}, "ratio");
}

template <typename A, typename T>
Status VisitIssue(A& archive, T& issue) {
  MW_RETURN_IF_ERROR(archive.Value("kernel", issue.kernel, kTime));
  MW_RETURN_IF_ERROR(archive.Value("product", issue.product, kTime));
  MW_RETURN_IF_ERROR(archive.Value("attention", issue.attention, kTime));
  return Status::Ok();
}

template <typename A, typename T>
Status VisitNetwork(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Choice("fabric", item.fabric, ParseFabric));
  MW_RETURN_IF_ERROR(archive.Value("efficiency", item.efficiency, Range{0.01, 1}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("overhead", item.overhead, kTime));
  MW_RETURN_IF_ERROR(archive.Value("ramp", item.ramp, kTime));
  MW_RETURN_IF_ERROR(archive.Value("ramp_half", item.ramp_half, kTime));
  return Status::Ok();
}

template <typename A, typename T>
Status VisitPoint(A& archive, T& point) {
  MW_RETURN_IF_ERROR(archive.Integer("bytes", point.bytes, 1, int64_t{1} << 50));
  MW_RETURN_IF_ERROR(archive.Value("efficiency", point.efficiency, Range{1e-4, 2}, "ratio"));
  return Status::Ok();
}

template <typename A, typename T>
Status VisitCollective(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Choice("kind", item.kind, ParseCollectiveKind));
  MW_RETURN_IF_ERROR(archive.Flag("in_switch", item.in_switch));
  MW_RETURN_IF_ERROR(archive.Value("latency", item.latency, kTime));
  MW_RETURN_IF_ERROR(archive.Value("step", item.step, kTime));
  MW_RETURN_IF_ERROR(
      archive.List("curve", item.curve, [](auto& a, auto& x) { return VisitPoint(a, x); }));
  if (!archive.Absent("rank_loss", item.rank_loss == Sourced<double>())) {
    MW_RETURN_IF_ERROR(archive.Value("rank_loss", item.rank_loss, Range{0, 0.99}, "ratio"));
  }
  return Status::Ok();
}

template <typename A, typename T>
Status VisitTraffic(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Choice("kind", item.kind, ParseCollectiveKind));
  MW_RETURN_IF_ERROR(archive.Choice("traffic", item.traffic, ParseTraffic));
  MW_RETURN_IF_ERROR(archive.Choice("carrier", item.carrier, ParseCarrier));
  MW_RETURN_IF_ERROR(archive.Integer("ranks", item.ranks, 2, 1024));
  MW_RETURN_IF_ERROR(archive.Integer("ctas", item.ctas, 0, 1024));
  MW_RETURN_IF_ERROR(archive.Value("latency", item.latency, kTime));
  MW_RETURN_IF_ERROR(
      archive.List("curve", item.curve, [](auto& a, auto& x) { return VisitPoint(a, x); }));
  if (!archive.Absent("beside", item.beside == Sourced<double>())) {
    MW_RETURN_IF_ERROR(archive.Value("beside", item.beside, Range{0.1, 1}, "ratio"));
  }
  MW_RETURN_IF_ERROR(archive.Value("fit_rows", item.fit_rows, Range{0, 1e9}));
  MW_RETURN_IF_ERROR(archive.Value("fit_median", item.fit_median, Range{0, 100}, "ratio"));
  return archive.Value("fit_p90", item.fit_p90, Range{0, 100}, "ratio");
}

template <typename A, typename T>
Status VisitGpu(A& archive, T& gpu) {
  MW_RETURN_IF_ERROR(archive.Value("multiprocessors", gpu.multiprocessors, kCount));
  MW_RETURN_IF_ERROR(
      archive.Section("gemm", gpu.gemm, [](auto& a, auto& x) { return VisitGemm(a, x); }));
  if (!archive.Absent("gemm_precisions", gpu.gemm_precisions.empty())) {
    MW_RETURN_IF_ERROR(archive.List("gemm_precisions", gpu.gemm_precisions,
                                    [](auto& a, auto& x) { return VisitPrecisionGemm(a, x); }));
  }
  if (!archive.Absent("kernel_gemm", gpu.kernel_gemm.empty())) {
    MW_RETURN_IF_ERROR(archive.List("kernel_gemm", gpu.kernel_gemm,
                                    [](auto& a, auto& x) { return VisitKernelGemm(a, x); }));
  }
  MW_RETURN_IF_ERROR(archive.List("attention", gpu.attention,
                                  [](auto& a, auto& x) { return VisitAttention(a, x); }));
  if (!archive.Absent("flash_share", gpu.flash_share == Sourced<double>())) {
    MW_RETURN_IF_ERROR(archive.Value("flash_share", gpu.flash_share, Range{0.05, 2}, "ratio"));
  }
  MW_RETURN_IF_ERROR(archive.List("collectives", gpu.collectives,
                                  [](auto& a, auto& x) { return VisitCollective(a, x); }));
  if (!archive.Absent("traffic", gpu.traffic.empty())) {
    MW_RETURN_IF_ERROR(
        archive.List("traffic", gpu.traffic, [](auto& a, auto& x) { return VisitTraffic(a, x); }));
  }
  if (!archive.Absent("kernels", gpu.kernels.empty())) {
    MW_RETURN_IF_ERROR(archive.List("kernels", gpu.kernels,
                                    [](auto& a, auto& x) { return VisitKernelFit(a, x); }));
  }
  MW_RETURN_IF_ERROR(archive.Optional("power_clock", gpu.power_clock,
                                      [](auto& a, auto& x) { return VisitPowerClock(a, x); }));
  MW_RETURN_IF_ERROR(
      archive.Optional("issue", gpu.issue, [](auto& a, auto& x) { return VisitIssue(a, x); }));
  if (!archive.Absent("graph_launch", gpu.graph_launch == Sourced<Seconds>())) {
    MW_RETURN_IF_ERROR(archive.Value("graph_launch", gpu.graph_launch, kTime));
  }
  if (!archive.Absent("partnered_launch", gpu.partnered_launch == Sourced<Seconds>())) {
    MW_RETURN_IF_ERROR(archive.Value("partnered_launch", gpu.partnered_launch, kTime));
  }
  if (!archive.Absent("beside_communication", gpu.beside_communication == Sourced<double>())) {
    MW_RETURN_IF_ERROR(
        archive.Value("beside_communication", gpu.beside_communication, Range{0.1, 1}, "ratio"));
  }
  MW_RETURN_IF_ERROR(
      archive.Value("network_efficiency", gpu.network_efficiency, Range{0.01, 1}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("network_overhead", gpu.network_overhead, kTime));
  if (!archive.Absent("networks", gpu.networks.empty())) {
    MW_RETURN_IF_ERROR(archive.List("networks", gpu.networks,
                                    [](auto& a, auto& x) { return VisitNetwork(a, x); }));
  }
  MW_RETURN_IF_ERROR(archive.Value("context_memory", gpu.context_memory, kSize));
  MW_RETURN_IF_ERROR(archive.Value("library_memory", gpu.library_memory, kSize));
  MW_RETURN_IF_ERROR(archive.Value("communicator_memory", gpu.communicator_memory, kSize));
  MW_RETURN_IF_ERROR(archive.Value("cta_collective_memory", gpu.cta_collective_memory, kSize));
  MW_RETURN_IF_ERROR(archive.Value("cta_message_memory", gpu.cta_message_memory, kSize));
  MW_RETURN_IF_ERROR(archive.Value("default_ctas", gpu.default_ctas, kCount));
  return archive.Optional("run_memory", gpu.run_memory,
                          [](auto& a, auto& x) { return VisitRunMemory(a, x); });
}

template <typename A, typename T>
Status VisitCpuGemm(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Choice("precision", item.precision, ParsePrecision));
  MW_RETURN_IF_ERROR(archive.Integer("m", item.m, 1, 1 << 30));
  MW_RETURN_IF_ERROR(archive.Integer("n", item.n, 1, 1 << 30));
  MW_RETURN_IF_ERROR(archive.Integer("k", item.k, 1, 1 << 30));
  MW_RETURN_IF_ERROR(archive.Value("rate", item.rate, kRate));
  return Status::Ok();
}

/// A rate of bytes or of operations.
template <typename A, typename T>
Status VisitCpuKernel(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Text("kernel", item.kernel));
  MW_RETURN_IF_ERROR(archive.Choice("precision", item.precision, ParsePrecision));
  MW_RETURN_IF_ERROR(archive.Value("rate", item.rate, kRate));
  return Status::Ok();
}

template <typename A, typename T>
Status VisitCpu(A& archive, T& cpu) {
  MW_RETURN_IF_ERROR(archive.Value("cores", cpu.cores, kCount));
  MW_RETURN_IF_ERROR(archive.Value("core_memory_bandwidth", cpu.core_memory_bandwidth, kRate));
  MW_RETURN_IF_ERROR(
      archive.List("gemm", cpu.gemm, [](auto& a, auto& x) { return VisitCpuGemm(a, x); }));
  MW_RETURN_IF_ERROR(
      archive.List("kernels", cpu.kernels, [](auto& a, auto& x) { return VisitCpuKernel(a, x); }));
  MW_RETURN_IF_ERROR(archive.List("arithmetic", cpu.arithmetic,
                                  [](auto& a, auto& x) { return VisitCpuKernel(a, x); }));
  MW_RETURN_IF_ERROR(
      archive.Value("shared_core_efficiency", cpu.shared_core_efficiency, Range{0.1, 1}, "ratio"));
  MW_RETURN_IF_ERROR(archive.Value("collective_latency", cpu.collective_latency, kTime));
  MW_RETURN_IF_ERROR(archive.Value("collective_step", cpu.collective_step, kTime));
  MW_RETURN_IF_ERROR(archive.Value("collective_bandwidth", cpu.collective_bandwidth, kRate));
  return Status::Ok();
}

template <typename A, typename T>
Status VisitPeak(A& archive, T& item) {
  MW_RETURN_IF_ERROR(archive.Choice("precision", item.precision, ParsePrecision));
  MW_RETURN_IF_ERROR(archive.Value("rate", item.rate, kRate));
  return Status::Ok();
}

template <typename A, typename Profile>
Status VisitProfile(A& archive, Profile& profile) {
  MW_RETURN_IF_ERROR(archive.Text("name", profile.name));
  MW_RETURN_IF_ERROR(archive.Text("description", profile.description));
  MW_RETURN_IF_ERROR(archive.Choice("kind", profile.kind, topologies::ParseDeviceKind));
  MW_RETURN_IF_ERROR(archive.Value("memory", profile.memory, Range{1, kMostBytes}));
  MW_RETURN_IF_ERROR(archive.Value("memory_bandwidth", profile.memory_bandwidth, kRate));
  MW_RETURN_IF_ERROR(
      archive.Value("memory_efficiency", profile.memory_efficiency, Range{0.01, 1}, "ratio"));
  if (!archive.Absent("memory_fixed", profile.memory_fixed == Sourced<Seconds>())) {
    MW_RETURN_IF_ERROR(archive.Value("memory_fixed", profile.memory_fixed, kTime));
  }
  MW_RETURN_IF_ERROR(archive.Value("launch_overhead", profile.launch_overhead, kTime));
  MW_RETURN_IF_ERROR(
      archive.List("peaks", profile.peaks, [](auto& a, auto& x) { return VisitPeak(a, x); }));
  MW_RETURN_IF_ERROR(
      archive.Optional("gpu", profile.gpu, [](auto& a, auto& x) { return VisitGpu(a, x); }));
  MW_RETURN_IF_ERROR(
      archive.Optional("cpu", profile.cpu, [](auto& a, auto& x) { return VisitCpu(a, x); }));
  return Status::Ok();
}

}  // namespace meshwright::cost::internal
