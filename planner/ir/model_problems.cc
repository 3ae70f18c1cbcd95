#include "planner/ir/model_problems.h"

#include <fmt/format.h>

namespace meshwright::planner {
namespace {
constexpr size_t kKept = 100;
constexpr size_t kQuotedBytes = 60;
}  // namespace

void Problems::Add(size_t line, const std::string& field, const std::string& found,
                   const std::string& allowed, const std::string& fix) {
  ++count_;
  fields_.insert(field);
  if (lines_.size() >= kKept) return;
  const std::string where =
      line > 0 ? fmt::format("line {}, field {}", line, field) : fmt::format("field {}", field);
  lines_.push_back(fmt::format("{}: found {}; allowed: {}; {}", where, found, allowed, fix));
}

bool Problems::Has(const std::string& field) const {
  if (fields_.count(field) > 0) return true;
  for (size_t at = field.find_first_of(".["); at != std::string::npos;
       at = field.find_first_of(".[", at + 1)) {
    if (fields_.count(field.substr(0, at)) > 0) return true;
  }
  return false;
}

bool Problems::HasElement(const std::string& field) const {
  const std::string start = field + "[";
  const auto next = fields_.lower_bound(start);
  return next != fields_.end() && next->compare(0, start.size(), start) == 0;
}

Status Problems::ToStatus() const {
  if (count_ == 0) return Status::Ok();
  if (count_ == 1) return InvalidInput(fmt::format("{}: {}", source_, lines_[0]));
  std::string message = fmt::format("{}: {} problems", source_, count_);
  for (const std::string& line : lines_) message += "\n  " + line;
  if (count_ > lines_.size()) message += fmt::format("\n  and {} more", count_ - lines_.size());
  return InvalidInput(std::move(message));
}

std::string Quoted(const std::string& text) {
  std::string shown = "\"";
  for (const char c : text.substr(0, kQuotedBytes)) {
    shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  }
  // Cutting may split a UTF-8 sequence: drop its continuation bytes and its head.
  if (text.size() > kQuotedBytes) {
    while ((static_cast<unsigned char>(shown.back()) & 0xC0) == 0x80) shown.pop_back();
    if ((static_cast<unsigned char>(shown.back()) & 0x80) != 0) shown.pop_back();
    shown += "...";
  }
  return shown + "\"";
}

}  // namespace meshwright::planner
