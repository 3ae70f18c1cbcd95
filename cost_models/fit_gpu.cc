#include "cost_models/fit_gpu.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "cost_models/coordinate_descent.h"

namespace meshwright::cost {
namespace {

using topologies::Origin;
using topologies::Source;

constexpr size_t kLeastProducts = 20;  // the model has five constants
constexpr size_t kLeastLengths = 2;    // rate and half length
constexpr size_t kLeastSizes = 2;      // efficiency and what is fixed

/// Mean of |log(predicted / measured)|: outliers pull less than with squares.
template <typename Samples, typename Predict>
double MeanLogError(const Samples& samples, const Predict& predict) {
  double sum = 0;
  for (const auto& s : samples) sum += std::fabs(std::log(predict(s) / s.time.value()));
  return sum / static_cast<double>(samples.size());
}

class Fitter {
 public:
  Fitter(const DeviceProfile& base, const GpuSamples& samples, const std::string& origin)
      : samples_(samples), source_{Origin::kMeasured, origin}, out_{base, {}} {}

  Status Run() {
    MW_RETURN_IF_ERROR(Check());
    GpuModel& gpu = *out_.profile.gpu;
    gpu.multiprocessors = {samples_.multiprocessors, source_};
    gpu.context_memory = {samples_.context_memory, source_};
    gpu.library_memory = {samples_.library_memory, source_};
    out_.profile.launch_overhead = Time(samples_.launch.value());
    gpu.graph_launch = Time(samples_.graph_launch.value());
    if (gpu.power_clock && samples_.mix_clock > 0) {
      gpu.power_clock->reference = {Significant(samples_.mix_clock), source_};
    }
    out_.profile.memory_efficiency = Number(samples_.copy_rate / bandwidth());
    gpu.issue = IssueCost{Time(samples_.issue_kernel.value()), Time(samples_.issue_product.value()),
                          Time(samples_.issue_attention.value())};
    MW_RETURN_IF_ERROR(Products());
    MW_RETURN_IF_ERROR(Attention());
    MW_RETURN_IF_ERROR(Kernels());
    if (samples_.communication) MW_RETURN_IF_ERROR(Communication());
    return Validate(out_.profile).WithContext("the fitted profile");
  }
  FittedGpu Take() { return std::move(out_); }

 private:
  BytesPerSecond bandwidth() const { return out_.profile.memory_bandwidth.value; }
  Sourced<double> Number(double value) const { return {Significant(value), source_}; }
  Sourced<Seconds> Time(double value) const { return {Seconds(Significant(value)), source_}; }

  Status Check() const;
  Result<FitLine> FitGemm(const std::string& what, const std::vector<ProductTime>& samples,
                          GemmFit* fit);
  Result<std::vector<AlignmentLoss>> Alignment(const std::vector<ProductTime>& samples,
                                               const GemmFit& fit) const;
  Status Products();
  Status Attention();
  Status Kernels();
  Status Communication();

  const GpuSamples& samples_;
  const Source source_;
  FittedGpu out_;
};

Status Fitter::Check() const {
  if (!out_.profile.gpu) {
    return InvalidInput(
        fmt::format("profile '{}': found no GPU; fit to the profile of a GPU", out_.profile.name));
  }
  const auto positive = [](const auto& list) {
    return std::all_of(list.begin(), list.end(),
                       [](const auto& s) { return s.time.value() > 0 && s.time.value() < 1e3; });
  };
  const bool times = positive(samples_.products) && positive(samples_.attention) &&
                     positive(samples_.kernels) && samples_.launch.value() > 0 &&
                     samples_.graph_launch.value() > 0 && samples_.copy_rate.value() > 0;
  if (!times || samples_.multiprocessors < 1) {
    return InvalidInput(
        "GPU samples: found a time, rate or number of multiprocessors that is not above 0; measure "
        "again");
  }
  if (!(samples_.mix_clock >= 0 && samples_.mix_clock <= 1)) {
    return InvalidInput(
        fmt::format("GPU samples: found mix_clock {}, allowed: 0 (not known) to 1; measure again",
                    samples_.mix_clock));
  }
  if (samples_.products.size() < kLeastProducts) {
    return InvalidInput(fmt::format("GPU samples: found {} products, needed: {}; measure again",
                                    samples_.products.size(), kLeastProducts));
  }
  return PeakOf(out_.profile, Precision::kBf16).status();
}

Result<FitLine> Fitter::FitGemm(const std::string& what, const std::vector<ProductTime>& samples,
                                GemmFit* fit) {
  MW_ASSIGN_OR_RETURN(const FlopsPerSecond peak, PeakOf(out_.profile, Precision::kBf16));
  GemmFit model = *fit;
  const auto set = [&](const std::vector<double>& p) {
    model.max_efficiency = Number(p[0]);
    model.edge = Number(p[1]);
    model.depth = Number(p[2]);
    model.quantisation = Number(p[3]);
    model.fixed = Time(p[4]);
  };
  const double launch = samples_.graph_launch.value();
  const auto predict = [&](const ProductTime& s) {
    return launch +
           GpuGemmTime(s.shape, model, samples_.multiprocessors, peak, bandwidth()).value();
  };
  const auto loss = [&](const std::vector<double>& p) {
    set(p);
    return MeanLogError(samples, predict);
  };
  std::vector<double> best;
  for (const double quantisation : {0.0, 0.5, 1.0}) {  // from several starts: there are valleys
    for (const double edge : {2.0, 10.0, 30.0}) {
      const std::vector<double> found = CoordinateDescent({{0.75, 0.2, 1.0, 0.1},
                                                           {edge, 0.0, 200.0, 8.0},
                                                           {100.0, 0.0, 1000.0, 60.0},
                                                           {quantisation, 0.0, 1.0, 0.25},
                                                           {3e-6, 0.0, 30e-6, 2e-6}},
                                                          loss);
      if (best.empty() || loss(found) < loss(best)) best = found;
    }
  }
  set(best);
  Residuals residuals;
  for (const ProductTime& s : samples) residuals.Add(predict(s), s.time.value());
  FitLine line = residuals.Line(what);
  model.fit_rows = {line.rows, source_};
  model.fit_median = Number(line.median);
  model.fit_p90 = Number(line.p90);
  *fit = model;
  return line;
}

/// Rates of products with rows of an odd length, or even, ... elements / rates of those that are
/// aligned, which `fit` knows. Classes that lack a sample along either side are left out.
Result<std::vector<AlignmentLoss>> Fitter::Alignment(const std::vector<ProductTime>& samples,
                                                     const GemmFit& fit) const {
  MW_ASSIGN_OR_RETURN(const FlopsPerSecond peak, PeakOf(out_.profile, Precision::kBf16));
  GemmFit aligned = fit;
  aligned.alignment.clear();
  struct Shares {
    std::vector<double> sums, columns;
  };
  std::map<int64_t, Shares> classes;
  for (const ProductTime& s : samples) {
    const int64_t sums = AlignmentOf(SumsOf(s.shape), s.shape.precision);
    const int64_t columns = AlignmentOf(s.shape.n, s.shape.precision);
    const double fixed = samples_.graph_launch.value() + fit.fixed.value.value();
    const double best =
        GpuGemmTime(s.shape, aligned, samples_.multiprocessors, peak, bandwidth()).value() -
        fit.fixed.value.value();
    const double share = std::clamp(best / std::max(s.time.value() - fixed, best), 0.01, 1.0);
    if (columns > sums) classes[sums].sums.push_back(share);
    if (sums > columns) classes[columns].columns.push_back(share);
  }
  std::vector<AlignmentLoss> losses;
  for (auto& [bytes, shares] : classes) {
    if (shares.sums.empty() || shares.columns.empty()) continue;
    losses.push_back({bytes, Number(Median(shares.sums)), Number(Median(shares.columns))});
  }
  return losses;
}

Status Fitter::Products() {
  GpuModel& gpu = *out_.profile.gpu;
  std::vector<ProductTime> aligned;
  std::map<std::string, std::vector<ProductTime>> groups, misaligned;
  for (const ProductTime& s : samples_.products) {
    (AlignedRows(s.shape) ? groups : misaligned)[s.kind].push_back(s);
    if (AlignedRows(s.shape)) aligned.push_back(s);
  }
  MW_ASSIGN_OR_RETURN(FitLine all, FitGemm("products", aligned, &gpu.gemm));
  out_.lines.push_back(std::move(all));
  gpu.kernel_gemm.clear();
  for (const auto& [kind, samples] : groups) {
    if (samples.size() < kLeastProducts) continue;
    KernelGemm own{kind, {}};
    MW_ASSIGN_OR_RETURN(FitLine line, FitGemm("products of " + kind, samples, &own.fit));
    out_.lines.push_back(std::move(line));
    MW_ASSIGN_OR_RETURN(own.fit.alignment, Alignment(misaligned[kind], own.fit));
    if (own.fit.alignment.empty()) own.fit.alignment = gpu.gemm.alignment;
    gpu.kernel_gemm.push_back(std::move(own));
  }
  return Status::Ok();
}

Status Fitter::Attention() {
  std::map<std::pair<int64_t, bool>, std::vector<AttentionTime>> groups;
  for (const AttentionTime& s : samples_.attention) {
    groups[{s.head_dim, s.backward}].push_back(s);
  }
  std::vector<AttentionRate>& rates = out_.profile.gpu->attention;
  const double launch = samples_.graph_launch.value();
  for (const auto& group : groups) {
    const std::vector<AttentionTime>& samples = group.second;
    if (samples.size() < kLeastLengths) continue;
    const int64_t head_dim = group.first.first;
    const bool backward = group.first.second;
    const auto predict_with = [&](double rate, double half, const AttentionTime& s) {
      const double length = static_cast<double>(s.length) * (s.causal ? 1 : 2);
      return launch + s.flops.value() / (rate * length / (length + half));
    };
    const auto loss = [&](const std::vector<double>& p) {
      return MeanLogError(
          samples, [&](const AttentionTime& s) { return predict_with(p[0] * 1e12, p[1], s); });
    };
    const std::vector<double> p =
        CoordinateDescent({{400.0, 1.0, 1e5, 200.0}, {500.0, 0.0, 1e5, 400.0}}, loss, 20);
    const double rate = Significant(p[0]) * 1e12;
    const double half = Significant(p[1]);
    Residuals residuals;
    for (const AttentionTime& s : samples)
      residuals.Add(predict_with(rate, half, s), s.time.value());
    out_.lines.push_back(residuals.Line(
        fmt::format("attention d {} {}", head_dim, backward ? "backward" : "forward")));
    AttentionRate fitted;
    std::erase_if(rates, [&](const AttentionRate& r) {
      const bool same = r.head_dim == head_dim && r.backward == backward && !r.deterministic &&
                        r.precision == Precision::kBf16;
      if (same) fitted.clock = r.clock;  // calibrate does not measure it
      return same;
    });
    fitted.head_dim = head_dim;
    fitted.backward = backward;
    fitted.rate = {FlopsPerSecond(rate), source_};
    fitted.half_length = {half, source_};
    rates.push_back(fitted);
  }
  std::sort(rates.begin(), rates.end(), [](const AttentionRate& a, const AttentionRate& b) {
    return std::tuple(a.precision, a.deterministic, a.head_dim, a.backward) <
           std::tuple(b.precision, b.deterministic, b.head_dim, b.backward);
  });
  return Status::Ok();
}

Status Fitter::Kernels() {
  std::map<std::string, std::vector<KernelTime>> groups;
  for (const KernelTime& s : samples_.kernels) groups[s.kernel].push_back(s);
  std::vector<KernelFit>& kernels = out_.profile.gpu->kernels;
  const double launch = samples_.graph_launch.value();
  for (const auto& group : groups) {
    const std::string& name = group.first;
    const std::vector<KernelTime>& samples = group.second;
    if (samples.size() < kLeastSizes) continue;
    const auto predict_with = [&](double efficiency, double fixed, const KernelTime& s) {
      return launch + fixed +
             static_cast<double>(s.bytes.value()) / (bandwidth().value() * efficiency);
    };
    const auto loss = [&](const std::vector<double>& p) {
      return MeanLogError(samples,
                          [&](const KernelTime& s) { return predict_with(p[0], p[1], s); });
    };
    const std::vector<double> p =
        CoordinateDescent({{0.8, 0.001, 2.0, 0.2}, {1e-6, 0.0, 1e-3, 1e-6}}, loss, 20);
    const double efficiency = Significant(p[0]);
    const double fixed = Significant(p[1]);
    Residuals residuals;
    for (const KernelTime& s : samples) {
      residuals.Add(predict_with(efficiency, fixed, s), s.time.value());
    }
    out_.lines.push_back(residuals.Line("kernel " + name));
    std::erase_if(kernels, [&](const KernelFit& k) { return k.kernel == name; });
    kernels.push_back({name, {efficiency, source_}, {Seconds(fixed), source_}});
  }
  std::sort(kernels.begin(), kernels.end(),
            [](const KernelFit& a, const KernelFit& b) { return a.kernel < b.kernel; });
  return Status::Ok();
}

Status Fitter::Communication() {
  MW_ASSIGN_OR_RETURN(FittedCommunication fitted,
                      FitCommunication(*samples_.communication, source_.text));
  GpuModel& gpu = *out_.profile.gpu;
  gpu.traffic = std::move(fitted.traffic);
  if (fitted.beside_communication.value > 0) {
    gpu.beside_communication = std::move(fitted.beside_communication);
  }
  out_.lines.insert(out_.lines.end(), fitted.lines.begin(), fitted.lines.end());
  return Status::Ok();
}

}  // namespace

Result<FittedGpu> FitGpu(const DeviceProfile& base, const GpuSamples& samples,
                         const std::string& origin) {
  Fitter fitter(base, samples, origin);
  MW_RETURN_IF_ERROR(fitter.Run());
  return fitter.Take();
}

}  // namespace meshwright::cost
