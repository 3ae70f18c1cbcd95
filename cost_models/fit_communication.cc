#include "cost_models/fit_communication.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cost_models/op_time.h"

namespace meshwright::cost {
namespace {

using topologies::Origin;
using topologies::Source;

constexpr size_t kLeastSizes = 3;        // latency, rate, and one to tell
constexpr double kTransferShows = 1.25;  // times the least time: below, starts are all that counts
constexpr double kLongest = 1e3;         // seconds

/// Bytes that a rank sends.
Bytes SentOf(const TrafficKey& key, Bytes bytes) {
  PathFacts path;
  path.ranks = path.ranks_per_host = key.ranks;
  return CountWire(CollectiveAlgorithm::kRing, {key.kind, bytes}, path).local_bytes;
}

bool Sane(Seconds time) {
  return time.value() > 0 && time.value() < kLongest;
}

/// Of one key, by rising size.
Status CheckSizes(const std::vector<TrafficSample>& samples) {
  size_t fitted = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const TrafficSample& s = samples[i];
    if (!Sane(s.time) || s.bytes.value() < 1) {
      return InvalidInput(
          fmt::format("found {} bytes in {} s; allowed: times and sizes above 0; "
                      "measure again",
                      s.bytes.value(), s.time.value()));
    }
    if (i > 0 && samples[i - 1].bytes == s.bytes) {
      return InvalidInput(
          fmt::format("found {} bytes twice; remove one or measure again", s.bytes.value()));
    }
    if (!s.held_out) ++fitted;
  }
  if (fitted < kLeastSizes) {
    return InvalidInput(
        fmt::format("found {} sizes to fit to, needed: {}; measure again", fitted, kLeastSizes));
  }
  return Status::Ok();
}

/// Whether longer messages take longer: else there is nothing to fit.
Status CheckRise(const std::vector<TrafficSample>& sizes) {
  const Seconds least = sizes.front().time;
  for (const TrafficSample& s : sizes) {
    if (s.time.value() > kTransferShows * least.value()) return Status::Ok();
  }
  return InvalidInput(fmt::format(
      "found {} s for {} bytes and {} s for {} bytes; allowed: times that rise with the size; "
      "measure again, or larger messages",
      least.value(), sizes.front().bytes.value(), sizes.back().time.value(),
      sizes.back().bytes.value()));
}

/// For sizes that rise (CheckRise). The line through the least size and the first whose transfer
/// shows gives the latency; from there on the curve goes through every measurement.
TrafficFit FitOf(const TrafficKey& key, const std::vector<TrafficSample>& sizes,
                 BytesPerSecond link, const Source& source) {
  TrafficFit fit{key};
  const TrafficSample& least = sizes.front();
  const auto first = std::find_if(sizes.begin(), sizes.end(), [&](const TrafficSample& s) {
    return s.time.value() > kTransferShows * least.time.value();
  });
  const double share =
      static_cast<double>(least.bytes.value()) / static_cast<double>(first->bytes.value());
  const double latency =
      std::max(0.0, (least.time.value() - share * first->time.value()) / (1 - share));
  fit.latency = {Seconds(Significant(latency)), source};
  double longest = 0.0;
  for (auto at = first; at != sizes.end(); ++at) {
    const double transfer = at->time.value() - fit.latency.value.value();
    if (transfer <= longest) continue;  // noise: more bytes never take less
    const Bytes sent = SentOf(key, at->bytes);
    const double efficiency =
        Significant(static_cast<double>(sent.value()) / (link.value() * transfer));
    const double effective = static_cast<double>(sent.value()) / efficiency;
    if (!fit.curve.empty() && effective < static_cast<double>(fit.curve.back().bytes) /
                                              fit.curve.back().efficiency.value) {
      continue;  // equal but for rounding
    }
    longest = transfer;
    fit.curve.push_back({sent.value(), {efficiency, source}});
  }
  return fit;
}

class Fitter {
 public:
  Fitter(const CommunicationSamples& samples, const std::string& origin)
      : samples_(samples), source_{Origin::kMeasured, origin} {}

  Status Run() {
    if (!(samples_.link.value() > 0)) {
      return InvalidInput(fmt::format("found links of {} bytes/s; allowed: above 0; measure again",
                                      samples_.link.value()));
    }
    std::map<TrafficKey, std::vector<TrafficSample>> groups;
    for (const TrafficSample& s : samples_.times) groups[s.key].push_back(s);
    for (auto& [key, samples] : groups) {
      MW_RETURN_IF_ERROR(Fit(key, samples).WithContext(ToString(key)));
    }
    out_.lines.push_back(held_out_.Line("communication, sizes that were held out"));
    return Beside();
  }
  FittedCommunication Take() { return std::move(out_); }

 private:
  Status Fit(const TrafficKey& key, std::vector<TrafficSample>& samples) {
    std::sort(samples.begin(), samples.end(),
              [](const TrafficSample& a, const TrafficSample& b) { return a.bytes < b.bytes; });
    MW_RETURN_IF_ERROR(CheckSizes(samples));
    std::vector<TrafficSample> sizes = samples;
    std::erase_if(sizes, [](const TrafficSample& s) { return s.held_out; });
    MW_RETURN_IF_ERROR(CheckRise(sizes));
    TrafficFit fit = FitOf(key, sizes, samples_.link, source_);
    Residuals residuals;
    for (const TrafficSample& s : samples) {
      const double predicted = TrafficTime(fit, SentOf(key, s.bytes), samples_.link).value();
      residuals.Add(predicted, s.time.value());
      if (s.held_out) held_out_.Add(predicted, s.time.value());
    }
    FitLine line = residuals.Line(ToString(key));
    fit.fit_rows = {line.rows, source_};
    fit.fit_median = {Significant(line.median), source_};
    fit.fit_p90 = {Significant(line.p90), source_};
    out_.lines.push_back(std::move(line));
    out_.traffic.push_back(std::move(fit));
    return Status::Ok();
  }

  Status Beside() {
    std::vector<double> of_nccl;
    for (const ProductBeside& p : samples_.beside) {
      const auto fit = std::find_if(out_.traffic.begin(), out_.traffic.end(),
                                    [&](const TrafficKey& key) { return key == p.key; });
      if (fit == out_.traffic.end() || !Sane(p.alone) || !Sane(p.beside)) {
        return InvalidInput(fmt::format(
            "products beside {}: found {} s alone and {} s beside it; allowed: times above 0, of "
            "an operation that was measured alone too; measure again",
            ToString(p.key), p.alone.value(), p.beside.value()));
      }
      // Noise may make a product faster in company, which no profile can say.
      const double rate = std::min(1.0, p.alone / p.beside);
      fit->beside = {Significant(rate), source_};
      if (p.key.carrier == Carrier::kNccl) of_nccl.push_back(rate);
    }
    if (of_nccl.empty()) return Status::Ok();
    out_.beside_communication = {Significant(Median(std::move(of_nccl))), source_};
    return Status::Ok();
  }

  const CommunicationSamples& samples_;
  const Source source_;
  Residuals held_out_;
  FittedCommunication out_;
};

}  // namespace

std::string ToString(const TrafficKey& key) {
  return fmt::format("{} of {}, {}, {}", ToString(key.kind), key.ranks, ToString(key.traffic),
                     ToString(key.carrier));
}

Result<FittedCommunication> FitCommunication(const CommunicationSamples& samples,
                                             const std::string& origin) {
  Fitter fitter(samples, origin);
  MW_RETURN_IF_ERROR(fitter.Run().WithContext("communication samples"));
  return fitter.Take();
}

}  // namespace meshwright::cost
