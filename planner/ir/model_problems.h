// Collects what is wrong with one input, so that a user sees every problem at once.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "topologies/status.h"

namespace meshwright::planner {

class Problems {
 public:
  explicit Problems(std::string source) : source_(std::move(source)) {}

  /// `line` 0: not known. Keeps the first hundred; the rest is counted.
  void Add(size_t line, const std::string& field, const std::string& found,
           const std::string& allowed, const std::string& fix);
  /// True when `field` or something that it is part of ("a.b" for "a.b.c" and "a.b[2]") was added.
  bool Has(const std::string& field) const;
  /// True when an element of the list `field` ("a.b[2]" for "a.b") was added.
  bool HasElement(const std::string& field) const;
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  const std::string& source() const { return source_; }

  /// Ok without problems; else InvalidInput: "source: line 3, field x: found ...; allowed: ...;
  /// fix", one line per problem under a heading when there are several.
  Status ToStatus() const;

 private:
  std::string source_;
  std::vector<std::string> lines_;
  std::set<std::string> fields_;
  size_t count_ = 0;
};

/// `text` in quotes, shortened to 60 bytes and without control characters: for error messages.
std::string Quoted(const std::string& text);

}  // namespace meshwright::planner
