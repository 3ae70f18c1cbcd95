#include "cost_models/device_profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "cost_models/profile_fields.h"
#include "topologies/yaml_guard.h"

namespace meshwright::cost {
namespace {

namespace fs = std::filesystem;
using internal::Range;
using topologies::DeviceKind;

// Archive of VisitProfile that looks at every number: its range, and whether it is an assumption.
class Inspector {
 public:
  // Fields left out have no source and are no assumptions.
  bool Absent(const char*, bool is_default) const { return is_default; }
  Status Text(const char*, const std::string&) { return Status::Ok(); }
  template <typename T, typename Parse>
  Status Choice(const char*, const T&, Parse) {
    return Status::Ok();
  }
  Status Flag(const char*, bool) { return Status::Ok(); }
  Status Integer(const char* key, int64_t value, int64_t low, int64_t high) const {
    return InRange(key, static_cast<double>(value),
                   {static_cast<double>(low), static_cast<double>(high)});
  }
  template <typename T>
  Status Value(const char* key, const Sourced<T>& field, Range range) {
    Note(key, field.source);
    if constexpr (std::is_same_v<T, int64_t>) {
      return InRange(key, static_cast<double>(field.value), range);
    } else {
      return InRange(key, static_cast<double>(field.value.value()), range);
    }
  }
  Status Value(const char* key, const Sourced<double>& field, Range range, const char*) {
    Note(key, field.source);
    return InRange(key, field.value, range);
  }
  template <typename T, typename F>
  Status Section(const char* key, const T& value, F visit) {
    return Inside(path_ + key + ".", value, visit);
  }
  template <typename T, typename F>
  Status Optional(const char* key, const std::optional<T>& value, F visit) {
    return value ? Section(key, *value, visit) : Status::Ok();
  }
  template <typename T, typename F>
  Status List(const char* key, const std::vector<T>& items, F visit) {
    if (items.size() > internal::kMaxListItems) {
      return InvalidInput(fmt::format("{}{}: found {} items; allowed: up to {}", path_, key,
                                      items.size(), internal::kMaxListItems));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      MW_RETURN_IF_ERROR(Inside(fmt::format("{}{}[{}].", path_, key, i), items[i], visit));
    }
    return Status::Ok();
  }

  std::vector<std::string> assumptions;

 private:
  template <typename T, typename F>
  Status Inside(const std::string& path, const T& value, F visit) {
    const std::string outer = std::exchange(path_, path);
    Status status = visit(*this, value);
    path_ = outer;
    return status;
  }
  Status InRange(const char* key, double value, Range range) const {
    if (value >= range.low && value <= range.high) return Status::Ok();
    return InvalidInput(fmt::format("{}{}: found {}; allowed: {} to {} (SI units)", path_, key,
                                    value, range.low, range.high));
  }
  void Note(const char* key, const topologies::Source& source) {
    if (source.origin == topologies::Origin::kAssumed) {
      assumptions.push_back(path_ + key + ": " + source.text);
    }
  }

  std::string path_;
};

// Bytes at full efficiency that take as long.
double Effective(const EfficiencyPoint& point) {
  return static_cast<double>(point.bytes) / point.efficiency.value;
}

// Whether there is a point, and more bytes never take less.
bool IsCurve(const std::vector<EfficiencyPoint>& curve) {
  return !curve.empty() &&
         std::adjacent_find(curve.begin(), curve.end(),
                            [](const EfficiencyPoint& a, const EfficiencyPoint& b) {
                              return a.bytes >= b.bytes || Effective(a) > Effective(b);
                            }) == curve.end();
}

template <typename Items, typename Key>
bool AllDifferent(const Items& items, Key key) {
  std::set<decltype(key(items.front()))> seen;
  return std::all_of(items.begin(), items.end(),
                     [&](const auto& item) { return seen.insert(key(item)).second; });
}

Status CheckAlignment(const GemmFit& fit, const char* where) {
  for (size_t i = 0; i < fit.alignment.size(); ++i) {
    const int64_t bytes = fit.alignment[i].bytes;
    if (!std::has_single_bit(static_cast<uint64_t>(bytes)) ||
        (i > 0 && fit.alignment[i - 1].bytes >= bytes)) {
      return InvalidInput(
          fmt::format("{}.alignment: found {} bytes in place {}; allowed: powers of two that rise",
                      where, bytes, i + 1));
    }
  }
  return Status::Ok();
}

Status CheckTraffic(const std::vector<TrafficFit>& traffic) {
  if (!AllDifferent(traffic, [](const TrafficFit& t) {
        return std::make_tuple(t.kind, t.traffic, t.carrier, t.ranks);
      })) {
    return InvalidInput(
        "gpu.traffic: found one kind, class, carrier and number of ranks twice; remove one");
  }
  for (size_t i = 0; i < traffic.size(); ++i) {
    const TrafficFit& t = traffic[i];
    const auto refuse = [&](const std::string& what) {
      return InvalidInput(fmt::format("gpu.traffic[{}], {} of {} traffic: {}", i, ToString(t.kind),
                                      ToString(t.traffic), what));
    };
    if ((t.kind == CollectiveKind::kSend) != (t.traffic == Traffic::kEdge) ||
        (t.kind == CollectiveKind::kSend && t.ranks != 2)) {
      return refuse(fmt::format(
          "found {} ranks; allowed: send of 2 ranks for edge, collectives for tensor and data",
          t.ranks));
    }
    const bool copies = t.carrier == Carrier::kCopyEngines;
    if (t.carrier != Carrier::kNccl && (t.ranks != 2 || (t.ctas == 0) != copies)) {
      return refuse(fmt::format(
          "found {} with {} ranks and {} ctas; allowed: 2 ranks, and 0 ctas for copy_engines alone",
          ToString(t.carrier), t.ranks, t.ctas));
    }
    if (!IsCurve(t.curve)) {
      return refuse(
          "the curve is empty or its bytes or times do not rise; allowed: at least one point, in "
          "the order of bytes; measure again with meshwright calibrate --device cuda");
    }
  }
  return Status::Ok();
}

Status CheckCollectives(const GpuModel& gpu) {
  if (!AllDifferent(gpu.collectives,
                    [](const CollectiveFit& c) { return std::make_tuple(c.kind, c.in_switch); })) {
    return InvalidInput("gpu.collectives: found one kind twice; remove one");
  }
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll, CollectiveKind::kBroadcast, CollectiveKind::kSend}) {
    if (std::none_of(gpu.collectives.begin(), gpu.collectives.end(),
                     [&](const CollectiveFit& c) { return c.kind == kind && !c.in_switch; })) {
      return InvalidInput(fmt::format(
          "gpu.collectives: found none of kind {} with in_switch: false; add it", ToString(kind)));
    }
  }
  for (const CollectiveFit& fit : gpu.collectives) {
    if (!IsCurve(fit.curve)) {
      return InvalidInput(
          fmt::format("gpu.collectives: the curve of {} is empty or its bytes or times do not "
                      "rise; allowed: at least one point, in the order of bytes",
                      ToString(fit.kind)));
    }
    if (fit.in_switch && fit.kind != CollectiveKind::kAllReduce) {
      return InvalidInput(
          fmt::format("gpu.collectives: found in_switch: true for {}; allowed: for "
                      "all_reduce only",
                      ToString(fit.kind)));
    }
  }
  return Status::Ok();
}

Status CheckGpu(const DeviceProfile& profile) {
  const GpuModel& gpu = *profile.gpu;
  if (profile.peaks.empty()) return InvalidInput("peaks: found none; a GPU needs at least one");
  for (const bool backward : {false, true}) {
    if (std::none_of(gpu.attention.begin(), gpu.attention.end(), [&](const AttentionRate& a) {
          return a.backward == backward && !a.deterministic && a.precision == Precision::kBf16;
        })) {
      return InvalidInput(
          fmt::format("gpu.attention: found no rate with backward: {}; needed: one "
                      "at least",
                      backward));
    }
  }
  if (!AllDifferent(gpu.attention, [](const AttentionRate& a) {
        return std::make_tuple(a.head_dim, a.backward, a.deterministic, a.precision);
      })) {
    return InvalidInput("gpu.attention: found one head size and pass twice; remove one");
  }
  if (!AllDifferent(gpu.gemm_precisions, [](const PrecisionGemmFit& f) { return f.precision; }) ||
      !AllDifferent(gpu.kernels, [](const KernelFit& k) { return k.kernel; }) ||
      !AllDifferent(gpu.networks, [](const NetworkFit& n) { return n.fabric; })) {
    return InvalidInput(
        "gpu.gemm_precisions, gpu.kernels or gpu.networks: found one precision, kernel or fabric "
        "twice; remove one");
  }
  if (!AllDifferent(gpu.kernel_gemm, [](const KernelGemm& k) { return k.kernel; })) {
    return InvalidInput("gpu.kernel_gemm: found one kernel twice; remove one");
  }
  MW_RETURN_IF_ERROR(CheckAlignment(gpu.gemm, "gpu.gemm"));
  for (const KernelGemm& item : gpu.kernel_gemm) {
    MW_RETURN_IF_ERROR(CheckAlignment(item.fit, "gpu.kernel_gemm"));
  }
  for (const PrecisionGemmFit& item : gpu.gemm_precisions) {
    MW_RETURN_IF_ERROR(CheckAlignment(item.fit, "gpu.gemm_precisions"));
  }
  MW_RETURN_IF_ERROR(CheckTraffic(gpu.traffic));
  return CheckCollectives(gpu);
}

Status CheckCpu(const CpuModel& cpu) {
  for (const Precision precision : {Precision::kFp32, Precision::kFp64}) {
    if (std::none_of(cpu.gemm.begin(), cpu.gemm.end(),
                     [&](const CpuGemmRate& rate) { return rate.precision == precision; })) {
      return InvalidInput(
          fmt::format("cpu.gemm: found no rate for {}; needed: one at least", ToString(precision)));
    }
  }
  if (!AllDifferent(cpu.gemm, [](const CpuGemmRate& r) {
        return std::make_tuple(r.precision, r.m, r.n, r.k);
      })) {
    return InvalidInput("cpu.gemm: found one precision and shape twice; remove one");
  }
  auto by_name = [](const auto& r) { return std::make_tuple(r.kernel, r.precision); };
  if (!AllDifferent(cpu.kernels, by_name) || !AllDifferent(cpu.arithmetic, by_name)) {
    return InvalidInput(
        "cpu.kernels or cpu.arithmetic: found one kernel and precision twice; remove one");
  }
  return Status::Ok();
}

std::string MissingProfile(const std::string& name) {
  std::string names;
  for (const std::string& known : ShippedProfileNames())
    names += (names.empty() ? "" : ", ") + known;
  const char* advice =
      name == "cpu" ? "a CPU is never guessed: measure this machine with `meshwright calibrate`, "
                      "which set-up runs"
                    : "pass one of these names, or the path of a profile";
  return fmt::format("device profile '{}': there is no file {}; known in {}: {}; {}", name,
                     ProfileDir() + "/" + name + ".yaml", ProfileDir(),
                     names.empty() ? "none" : names, advice);
}

}  // namespace

bool PeersReach(const GpuModel& gpu) {
  return gpu.traffic.empty() ||
         std::any_of(gpu.traffic.begin(), gpu.traffic.end(),
                     [](const TrafficFit& fit) { return fit.carrier != Carrier::kNccl; });
}

Result<FlopsPerSecond> PeakOf(const DeviceProfile& profile, Precision precision) {
  std::string known;
  for (const PeakRate& peak : profile.peaks) {
    if (peak.precision == precision) return peak.rate.value;
    known += (known.empty() ? "" : ", ") + std::string(ToString(peak.precision));
  }
  return Unsupported(
      fmt::format("device profile '{}': it has no peak rate for {}; it has: {}; choose "
                  "one of these precisions or another device",
                  profile.name, ToString(precision), known.empty() ? "none" : known));
}

Status Validate(const DeviceProfile& profile) {
  if (profile.name.empty() || profile.name.size() > 80) {
    return InvalidInput("name: found no name or one longer than 80 bytes");
  }
  const bool is_gpu = profile.kind == DeviceKind::kGpu;
  if (profile.gpu.has_value() != is_gpu || profile.cpu.has_value() == is_gpu) {
    return InvalidInput(
        fmt::format("kind: found {} with{} a 'gpu' and with{} a 'cpu' section; needed: "
                    "the section of its kind and no other",
                    ToString(profile.kind), profile.gpu ? "" : "out", profile.cpu ? "" : "out"));
  }
  Inspector inspector;
  MW_RETURN_IF_ERROR(internal::VisitProfile(inspector, profile));
  if (!AllDifferent(profile.peaks, [](const PeakRate& p) { return p.precision; })) {
    return InvalidInput("peaks: found one precision twice; remove one");
  }
  return is_gpu ? CheckGpu(profile) : CheckCpu(*profile.cpu);
}

std::vector<std::string> Assumptions(const DeviceProfile& profile) {
  Inspector inspector;
  const Status status = internal::VisitProfile(inspector, profile);
  MW_CHECK(status.ok());
  return std::move(inspector.assumptions);
}

std::string ProfileDir() {
  const char* data = std::getenv("MESHWRIGHT_DATA_DIR");
  if (data != nullptr && *data != '\0') return std::string(data) + "/profiles";
  return MESHWRIGHT_PROFILE_DIR;
}

std::vector<std::string> ShippedProfileNames() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(ProfileDir(), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".yaml") names.push_back(it->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<DeviceProfile> LoadDeviceProfile(const std::string& name_or_path) {
  const bool is_path =
      name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".yaml");
  const std::string path = is_path ? name_or_path : ProfileDir() + "/" + name_or_path + ".yaml";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return NotFound(is_path ? fmt::format("device profile: there is no file {}", path)
                            : MissingProfile(name_or_path));
  }
  const auto size = fs::file_size(path, error);
  if (error || size > kMaxTextBytes) {
    return InvalidInput(
        fmt::format("{}: found a file that is unreadable or larger than {} bytes; is "
                    "this a device profile?",
                    path, kMaxTextBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return InvalidInput(fmt::format("{}: cannot be read; check its permissions", path));
  return ParseDeviceProfile(text.str(), path);
}

}  // namespace meshwright::cost
