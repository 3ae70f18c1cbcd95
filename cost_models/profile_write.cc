#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cost_models/device_profile.h"
#include "cost_models/profile_fields.h"
#include "cost_models/profile_units.h"

namespace meshwright::cost {
namespace {

using internal::Range;
using topologies::Source;

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 32 || byte == 127) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// Archive of VisitProfile that appends lines; sources get names in the order of first use.
class Writer {
 public:
  bool Absent(const char*, bool is_default) const { return is_default; }

  Status Text(const char* key, const std::string& text) { return Line(key, Quote(text)); }

  template <typename T, typename Parse>
  Status Choice(const char* key, const T& value, Parse) {
    return Line(key, std::string(ToString(value)));
  }

  Status Flag(const char* key, bool value) { return Line(key, value ? "true" : "false"); }

  Status Integer(const char* key, int64_t value, int64_t, int64_t) {
    return Line(key, fmt::format("{}", value));
  }

  template <typename T>
  Status Value(const char* key, const Sourced<T>& field, Range) {
    double si = 0;
    if constexpr (std::is_same_v<T, int64_t>) {
      si = static_cast<double>(field.value);
    } else {
      si = static_cast<double>(field.value.value());
    }
    return Triple(key, internal::Format(si, internal::UnitsOf(T{})), field.source);
  }

  Status Value(const char* key, const Sourced<double>& field, Range, const char* unit) {
    return Triple(key, fmt::format("value: {}, unit: {}", field.value, unit), field.source);
  }

  template <typename T, typename F>
  Status Section(const char* key, const T& value, F visit) {
    MW_RETURN_IF_ERROR(Line(key, ""));
    indent_ += 2;
    MW_RETURN_IF_ERROR(visit(*this, value));
    indent_ -= 2;
    return Status::Ok();
  }

  template <typename T, typename F>
  Status Optional(const char* key, const std::optional<T>& value, F visit) {
    return value ? Section(key, *value, visit) : Status::Ok();
  }

  template <typename T, typename F>
  Status List(const char* key, const std::vector<T>& items, F visit) {
    MW_RETURN_IF_ERROR(Line(key, items.empty() ? "[]" : ""));
    indent_ += 4;
    for (const T& item : items) {
      dash_ = true;
      MW_RETURN_IF_ERROR(visit(*this, item));
    }
    indent_ -= 4;
    return Status::Ok();
  }

  std::string Finish() const {
    std::string text = "format: meshwright-device-profile\nversion: 1\nsources:\n";
    if (sources_.empty()) text = "format: meshwright-device-profile\nversion: 1\nsources: {}\n";
    for (size_t i = 0; i < sources_.size(); ++i) {
      text += fmt::format("  s{}: {{origin: {}, text: {}}}\n", i + 1, ToString(sources_[i].origin),
                          Quote(sources_[i].text));
    }
    return text + lines_;
  }

 private:
  Status Line(const char* key, const std::string& value) {
    const std::string margin =
        dash_ ? std::string(indent_ - 2, ' ') + "- " : std::string(indent_, ' ');
    dash_ = false;
    lines_ += margin + key + ":" + (value.empty() ? "" : " " + value) + "\n";
    return Status::Ok();
  }

  Status Triple(const char* key, const std::string& value, const Source& source) {
    auto found = std::find(sources_.begin(), sources_.end(), source);
    if (found == sources_.end()) found = sources_.insert(found, source);
    return Line(key, fmt::format("{{{}, source: s{}}}", value, found - sources_.begin() + 1));
  }

  std::string lines_;
  std::vector<Source> sources_;
  size_t indent_ = 0;
  bool dash_ = false;  // the next line begins a list item
};

}  // namespace

std::string ToYaml(const DeviceProfile& profile) {
  Writer writer;
  const Status status = internal::VisitProfile(writer, profile);
  MW_CHECK(status.ok());
  return writer.Finish();
}

}  // namespace meshwright::cost
