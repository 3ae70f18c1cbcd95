// What a device can do: the numbers behind every price, each with its unit and source.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost_models/collectives.h"
#include "cost_models/work.h"
#include "topologies/host.h"
#include "topologies/status.h"
#include "topologies/units.h"

namespace meshwright::cost {

/// A number and where it comes from. Origin kAssumed marks what nobody measured.
template <typename T>
struct Sourced {
  T value{};
  topologies::Source source;
  friend bool operator==(const Sourced&, const Sourced&) = default;
};

/// Dense peak of one precision; never the figure for structured sparsity.
struct PeakRate {
  Precision precision = Precision::kFp32;
  Sourced<FlopsPerSecond> rate;
  friend bool operator==(const PeakRate&, const PeakRate&) = default;
};

/// Share of its rate that a product keeps when rows of its operands start at multiples of `bytes`
/// (a power of two) and of no more.
struct AlignmentLoss {
  int64_t bytes = 1;
  Sourced<double> sums;     ///< rows along k, the length of the sums; ratio
  Sourced<double> columns;  ///< rows along n, the columns of the result; ratio
  friend bool operator==(const AlignmentLoss&, const AlignmentLoss&) = default;
};

/// Constants of the tile model of matrix products (op_time.h), and how well they fit.
struct GemmFit {
  Sourced<double> max_efficiency;  ///< of the dense peak, for endless tiles; ratio
  Sourced<double> edge;   ///< elements: what the edges of a tile cost, as 1 + edge (1/tm + 1/tn)
  Sourced<double> depth;  ///< elements of k that filling and emptying the pipeline costs
  Sourced<double> quantisation;  ///< 1: whole waves of tiles; 0: waves of any fraction; ratio
  Sourced<Seconds> fixed;        ///< of any product
  Sourced<int64_t> fit_rows;     ///< measurements behind the fit; 0: none for this device
  Sourced<double> fit_median;    ///< median of |predicted / measured - 1|; ratio
  Sourced<double> fit_p90;       ///< its 90th percentile; ratio
  /// Of the traffic of a sum in an fp32 buffer (read and written), the share that the arithmetic
  /// does not hide; ratio. Optional: 0.
  Sourced<double> accumulation;
  std::vector<AlignmentLoss> alignment;  ///< bytes rise; none beyond the last. Optional
  friend bool operator==(const GemmFit&, const GemmFit&) = default;
};

/// Constants for products of one precision, where they were fitted apart.
struct PrecisionGemmFit {
  Precision precision = Precision::kFp8;
  GemmFit fit;
  friend bool operator==(const PrecisionGemmFit&, const PrecisionGemmFit&) = default;
};

/// Products of one kernel with constants of their own: gradients of weights add to fp32 results,
/// and libraries have other algorithms by which operands are transposed.
struct KernelGemm {
  std::string kernel;  ///< as Work::kernel: "linear_weight_grad"
  GemmFit fit;
  friend bool operator==(const KernelGemm&, const KernelGemm&) = default;
};

/// Rate of fused attention: `rate` * L / (L + half_length) for L keys (causal) or 2 L (full mask),
/// and `tail` times one block of 128 queries on one multiprocessor: few heads leave units idle at
/// the end.
struct AttentionRate {
  int64_t head_dim = 0;  ///< of queries and keys
  bool backward = false;
  bool deterministic = false;              ///< optional: false
  Precision precision = Precision::kBf16;  ///< optional: bf16, which stands for fp16 too
  Sourced<FlopsPerSecond> rate;            ///< for endless sequences; causal work counted as half
  Sourced<double> half_length;             ///< tokens
  Sourced<double> tail;                    ///< blocks; optional: 0
  Sourced<double> clock;                   ///< as PowerClock::products; optional: as products
  friend bool operator==(const AttentionRate&, const AttentionRate&) = default;
};

/// The clock that a GPU's power limit leaves it, as shares of the highest: what draws more power
/// runs slower, and all of a step at one clock (clock.h).
struct PowerClock {
  Sourced<double> reference;  ///< when products and attention were timed
  Sourced<double> products;   ///< of large products and nothing else for seconds
  /// Power of memory-bound kernels at the highest clock over that of the limit, both less what an
  /// idle GPU at that clock draws.
  Sourced<double> memory_power;
  friend bool operator==(const PowerClock&, const PowerClock&) = default;
};

/// Share of the wired bandwidth that a collective gets when each rank sends `bytes`.
struct EfficiencyPoint {
  int64_t bytes = 0;
  Sourced<double> efficiency;  ///< ratio; above 1 for reductions in the switch
  friend bool operator==(const EfficiencyPoint&, const EfficiencyPoint&) = default;
};

struct CollectiveFit {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  bool in_switch = false;              ///< NVLink SHARP
  Sourced<Seconds> latency;            ///< of the smallest message
  Sourced<Seconds> step;               ///< more for every step after the first two
  std::vector<EfficiencyPoint> curve;  ///< bytes and bytes / efficiency rise
  /// Few ranks reach less: the curve times 1 - rank_loss / ranks on a host; ratio. Optional: 0.
  Sourced<double> rank_loss;
  friend bool operator==(const CollectiveFit&, const CollectiveFit&) = default;
};

/// What an operation of our own runtime's traffic inside a host is, but for its size.
struct TrafficKey {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Traffic traffic = Traffic::kTensor;
  Carrier carrier = Carrier::kNccl;
  int64_t ranks = 2;
  int64_t ctas = 0;  ///< most thread blocks; 0: copy engines
  friend auto operator<=>(const TrafficKey&, const TrafficKey&) = default;
};

/// A class of our own runtime's traffic as measured inside a host: time = latency + bytes that a
/// rank sends / (link bandwidth x efficiency). Groups of fewer ranks than measured take the next
/// larger entry, others `CollectiveFit`.
struct TrafficFit : TrafficKey {
  Sourced<Seconds> latency;            ///< of the smallest message
  std::vector<EfficiencyPoint> curve;  ///< bytes and bytes / efficiency rise
  /// Rate of products while it runs / alone; optional: GpuModel::beside_communication.
  Sourced<double> beside;
  /// Of all sizes. The curve goes through most of those that it was fitted to, so that p90 is
  /// mostly that of the sizes held out.
  Sourced<int64_t> fit_rows;   ///< measurements
  Sourced<double> fit_median;  ///< median of |predicted / measured - 1|; ratio
  Sourced<double> fit_p90;     ///< its 90th percentile; ratio
  friend bool operator==(const TrafficFit&, const TrafficFit&) = default;
};

/// How one kernel, or the kernels whose names begin so, use the device memory:
/// time = bytes / (bandwidth efficiency) + fixed.
struct KernelFit {
  std::string kernel;          ///< prefix of Work::kernel
  Sourced<double> efficiency;  ///< ratio; above 1 where fewer bytes move than are counted
  Sourced<Seconds> fixed;      ///< of every call, beside the launch
  friend bool operator==(const KernelFit&, const KernelFit&) = default;
};

/// Device memory of a rank of our own runtime beside context and libraries.
struct RunMemory {
  Sourced<Bytes> communicators;  ///< of a rank that has any, with what kernels load as they run
  Sourced<Bytes> cta;            ///< of each thread block of each communicator for collectives
  Sourced<Bytes> edge;           ///< of each communicator for messages
  Sourced<Bytes> idle;           ///< of each tensor pair's that nothing goes by
  friend bool operator==(const RunMemory&, const RunMemory&) = default;
};

/// Host time to issue an op.
struct IssueCost {
  Sourced<Seconds> kernel;
  Sourced<Seconds> product;
  Sourced<Seconds> attention;
  friend bool operator==(const IssueCost&, const IssueCost&) = default;
};

/// How collectives use a network.
struct NetworkFit {
  Fabric fabric = Fabric::kEfa;
  Sourced<double> efficiency;  ///< share of the NICs' bandwidth, for endless messages; ratio
  Sourced<Seconds> overhead;   ///< of the library for every step over the network
  Sourced<Seconds> ramp;  ///< more for long messages: ramp T / (T + ramp_half) for a transfer T
  Sourced<Seconds> ramp_half;
  friend bool operator==(const NetworkFit&, const NetworkFit&) = default;
};

struct GpuModel {
  Sourced<int64_t> multiprocessors;
  GemmFit gemm;
  std::vector<PrecisionGemmFit> gemm_precisions;  ///< others use `gemm`; optional
  std::vector<KernelGemm> kernel_gemm;            ///< before `gemm`, by name; optional
  std::vector<AttentionRate> attention;           ///< by head size, forward and backward of each
  /// Rate of FlashAttention 2 / that of the kernels in `attention`; optional: 1 (it is they).
  Sourced<double> flash_share;
  std::vector<CollectiveFit>
      collectives;                  ///< every kind once; all-reduce also in the switch or not
  std::vector<TrafficFit> traffic;  ///< before `collectives` for our own runtime; optional
  std::vector<KernelFit> kernels;   ///< the longest name counts; optional
  std::optional<PowerClock> power_clock;  ///< not set: one clock for all steps
  std::optional<IssueCost> issue;   ///< not set: issuing is taken to be free
  Sourced<Seconds> graph_launch;  ///< launch_overhead in a CUDA graph, as our own runtime launches;
                                  ///< optional: launch_overhead
  /// What an op takes more in a run of several GPUs; optional: nothing.
  Sourced<Seconds> partnered_launch;
  /// Rate of products while a communication kernel runs / alone; optional: not slower.
  Sourced<double> beside_communication;
  Sourced<double>
      network_efficiency;  ///< share of the NICs' bandwidth that a collective gets; ratio
  Sourced<Seconds> network_overhead;     ///< of the library for every step over the network
  std::vector<NetworkFit> networks;      ///< others use the two fields above; optional
  Sourced<Bytes> context_memory;         ///< of a process that has the device open
  Sourced<Bytes> library_memory;         ///< handles of the matrix libraries
  Sourced<Bytes> communicator_memory;    ///< of the first communicator at initialisation
  Sourced<Bytes> cta_collective_memory;  ///< of each communicator and CTA at its first collective
  Sourced<Bytes> cta_message_memory;  ///< of each communicator and CTA at its first send or receive
  Sourced<int64_t> default_ctas;      ///< of a communicator whose CTAs are not limited
  std::optional<RunMemory> run_memory;  ///< before the four above for our own runtime
  friend bool operator==(const GpuModel&, const GpuModel&) = default;
};

/// Whether two GPUs of a host reach each other's memory: not where what goes between them was
/// measured and nothing went past NCCL.
bool PeersReach(const GpuModel& gpu);

/// A measured product C[m, n] += A[m, k] B[k, n] on one core.
struct CpuGemmRate {
  Precision precision = Precision::kFp32;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Sourced<FlopsPerSecond> rate;
  friend bool operator==(const CpuGemmRate&, const CpuGemmRate&) = default;
};

/// A measured kernel on one core: bytes that it reads and writes a second.
struct CpuKernelRate {
  std::string kernel;
  Precision precision = Precision::kFp32;
  Sourced<BytesPerSecond> rate;
  friend bool operator==(const CpuKernelRate&, const CpuKernelRate&) = default;
};

/// A measured kernel on one core: operations a second, for kernels that count them (attention).
struct CpuArithmeticRate {
  std::string kernel;
  Precision precision = Precision::kFp32;
  Sourced<FlopsPerSecond> rate;
  friend bool operator==(const CpuArithmeticRate&, const CpuArithmeticRate&) = default;
};

/// One core prices an op; the simulator shares cores and memory between ranks.
struct CpuModel {
  Sourced<int64_t> cores;
  Sourced<BytesPerSecond> core_memory_bandwidth;  ///< one core alone, read + write
  std::vector<CpuGemmRate> gemm;                  ///< at least one for fp32 and one for fp64
  std::vector<CpuKernelRate> kernels;             ///< others: bounded by `core_memory_bandwidth`
  std::vector<CpuArithmeticRate> arithmetic;      ///< others: none; attention: as a product
  Sourced<double> shared_core_efficiency;         ///< speed of ops where ranks share a core; ratio
  Sourced<Seconds> collective_latency;            ///< core time of a meeting of two on shared cores
  Sourced<Seconds> collective_step;               ///< core time of each further member
  Sourced<BytesPerSecond> collective_bandwidth;   ///< of the bytes that a rank sends
  friend bool operator==(const CpuModel&, const CpuModel&) = default;
};

/// A GPU or a CPU; exactly the model of its kind is set.
struct DeviceProfile {
  std::string name;
  std::string description;
  topologies::DeviceKind kind = topologies::DeviceKind::kGpu;
  Sourced<Bytes> memory;                     ///< as the driver reports it
  Sourced<BytesPerSecond> memory_bandwidth;  ///< of the whole device
  Sourced<double> memory_efficiency;         ///< share of it that good kernels reach; ratio
  Sourced<Seconds> memory_fixed;             ///< of kernels bounded by memory; optional: 0
  Sourced<Seconds> launch_overhead;          ///< of every op
  std::vector<PeakRate> peaks;  ///< GPUs: at least one; CPUs: of one core, may be empty
  std::optional<GpuModel> gpu;
  std::optional<CpuModel> cpu;
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

/// Peak of a precision; kUnsupported names the precisions that the device has.
Result<FlopsPerSecond> PeakOf(const DeviceProfile& profile, Precision precision);

/// Every rule that a loaded profile keeps, for profiles made in code (a measured CPU).
Status Validate(const DeviceProfile& profile);

/// "field: text of the source" of every number that nobody measured or printed.
std::vector<std::string> Assumptions(const DeviceProfile& profile);

/// `source_name` stands in messages. kInvalidInput with line and field.
Result<DeviceProfile> ParseDeviceProfile(std::string_view text, std::string_view source_name);
std::string ToYaml(const DeviceProfile& profile);  ///< parses back to an equal profile

/// A path (with '/' or ending in ".yaml"), or the name of a profile in `ProfileDir()`.
/// kNotFound lists the names there are; for "cpu" it says how to measure one.
Result<DeviceProfile> LoadDeviceProfile(const std::string& name_or_path);

/// $MESHWRIGHT_DATA_DIR/profiles when the variable is set, else the folder of the sources.
std::string ProfileDir();
/// Names of the profiles in `ProfileDir()`, sorted.
std::vector<std::string> ShippedProfileNames();

}  // namespace meshwright::cost
