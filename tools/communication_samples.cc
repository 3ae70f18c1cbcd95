#include "tools/communication_samples.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/predict/prices.h"

namespace meshwright::tools {
namespace {

using cost::TrafficKey;
using nlohmann::json;

constexpr int64_t kMostRanks = 1024;

TrafficKey KeyOf(const runtime::CommunicationCase& c) {
  const auto traffic = planner::TrafficOf(c.traffic);
  MW_CHECK(traffic.has_value());  // nothing else is measured
  return {planner::CollectiveKindOf(c.kind), *traffic, planner::CarrierOf(c.carrier), c.ranks,
          c.ctas};
}

json KeyJson(const TrafficKey& key) {
  return {{"kind", cost::ToString(key.kind)},
          {"traffic", cost::ToString(key.traffic)},
          {"carrier", cost::ToString(key.carrier)},
          {"ranks", key.ranks},
          {"ctas", key.ctas}};
}

/// Reads one row; the first thing that is wrong stays.
class Row {
 public:
  explicit Row(const json& from) : from_(from) {}

  TrafficKey Key() {
    TrafficKey key;
    Name("kind", &key.kind, cost::ParseCollectiveKind);
    Name("traffic", &key.traffic, cost::ParseTraffic);
    Name("carrier", &key.carrier, cost::ParseCarrier);
    key.ranks = Whole("ranks", 2, kMostRanks);
    key.ctas = Whole("ctas", 0, kMostRanks);
    return key;
  }
  int64_t Whole(const char* field, int64_t low, int64_t high) {
    const json& value = from_.at(field);
    const int64_t number = value.is_number_integer() ? value.get<int64_t>() : low - 1;
    if (number < low || number > high) {
      Refuse(field, fmt::format("a whole number from {} to {}", low, high));
    }
    return number;
  }
  double Positive(const char* field) {
    const json& value = from_.at(field);
    const double number = value.is_number() ? value.get<double>() : 0.0;
    if (!(number > 0) || !std::isfinite(number)) Refuse(field, "a number above 0");
    return number;
  }
  bool Flag(const char* field) { return from_.at(field).get<bool>(); }
  const std::string& wrong() const { return wrong_; }

 private:
  template <typename T, typename Parse>
  void Name(const char* field, T* to, Parse parse) {
    const auto parsed = parse(from_.at(field).get<std::string>());
    if (parsed) {
      *to = *parsed;
    } else {
      Refuse(field, "a name that 'meshwright calibrate' writes");
    }
  }
  void Refuse(const char* field, const std::string& allowed) {
    if (!wrong_.empty()) return;
    wrong_ = fmt::format("{}: found {}; allowed: {}", field, from_.at(field).dump(), allowed);
  }

  const json& from_;
  std::string wrong_;
};

Status Wrong(const std::string& source, const std::string& where, const std::string& what) {
  return InvalidInput(fmt::format(
      "{}: communication{}: {}; measure again with 'meshwright calibrate --device cuda --samples "
      "FILE'",
      source, where, what));
}

/// Every row of a list by `read`, which gets a Row.
template <typename T, typename Read>
Status Rows(const json& list, const char* name, const std::string& source, std::vector<T>* to,
            Read read) {
  if (!list.is_array()) return Wrong(source, fmt::format(".{}", name), "found no list");
  for (size_t i = 0; i < list.size(); ++i) {
    Row row(list[i]);
    to->push_back(read(row));
    if (!row.wrong().empty()) return Wrong(source, fmt::format(".{}[{}]", name, i), row.wrong());
  }
  return Status::Ok();
}

}  // namespace

Result<cost::CommunicationSamples> ToCommunicationSamples(
    const runtime::CommunicationMeasurement& measured, const topologies::GpuModel& model) {
  if (measured.nvlink && model.nvlinks == 0) {
    return InvalidInput(fmt::format(
        "GPU '{}' is joined by NVLink, but a {} is known to have none, so its wired bandwidth is "
        "not known; pass --communication off",
        measured.device, model.name));
  }
  cost::CommunicationSamples out;
  out.library = measured.library;
  out.gpus = measured.gpus;
  out.link = measured.nvlink ? model.nvlink_each_way * static_cast<double>(model.nvlinks)
                             : model.pcie_each_way;
  for (const runtime::CommunicationSample& s : measured.samples) {
    out.times.push_back({KeyOf(s.what), Bytes(s.what.bytes), Seconds(s.seconds), s.what.held_out});
  }
  for (const runtime::BesideSample& s : measured.beside) {
    out.beside.push_back({KeyOf(s.what), Seconds(s.alone_s), Seconds(s.beside_s)});
  }
  return out;
}

json CommunicationJson(const cost::CommunicationSamples& s) {
  json times = json::array();
  for (const cost::TrafficSample& t : s.times) {
    json row = KeyJson(t.key);
    row["bytes"] = t.bytes.value();
    row["seconds"] = t.time.value();
    row["held_out"] = t.held_out;
    times.push_back(std::move(row));
  }
  json beside = json::array();
  for (const cost::ProductBeside& p : s.beside) {
    json row = KeyJson(p.key);
    row["alone_s"] = p.alone.value();
    row["beside_s"] = p.beside.value();
    beside.push_back(std::move(row));
  }
  return {{"library", s.library},
          {"gpus", s.gpus},
          {"link_bytes_per_s", s.link.value()},
          {"times", std::move(times)},
          {"products_beside", std::move(beside)}};
}

Result<cost::CommunicationSamples> ParseCommunication(const json& from, const std::string& source) {
  cost::CommunicationSamples s;
  try {
    Row head(from);
    s.library = from.at("library").get<std::string>();
    s.gpus = head.Whole("gpus", 2, kMostRanks);
    s.link = BytesPerSecond(head.Positive("link_bytes_per_s"));
    if (!head.wrong().empty()) return Wrong(source, "", head.wrong());
    MW_RETURN_IF_ERROR(Rows(from.at("times"), "times", source, &s.times, [](Row& row) {
      return cost::TrafficSample{row.Key(), Bytes(row.Whole("bytes", 1, int64_t{1} << 50)),
                                 Seconds(row.Positive("seconds")), row.Flag("held_out")};
    }));
    MW_RETURN_IF_ERROR(
        Rows(from.at("products_beside"), "products_beside", source, &s.beside, [](Row& row) {
          return cost::ProductBeside{row.Key(), Seconds(row.Positive("alone_s")),
                                     Seconds(row.Positive("beside_s"))};
        }));
  } catch (const json::exception& e) {
    return Wrong(source, "", fmt::format("found another form ({})", e.what()));
  }
  return s;
}

}  // namespace meshwright::tools
