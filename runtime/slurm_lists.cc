#include "runtime/slurm_lists.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace meshwright::runtime {
namespace {

/// Reads a number from the front of `text`; false when there is none.
bool TakeNumber(std::string_view& text, int64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || *number < 0 || *number > (1 << 20)) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool Take(std::string_view& text, std::string_view token) {
  if (text.substr(0, token.size()) != token) return false;
  text.remove_prefix(token.size());
  return true;
}

}  // namespace

Result<std::string> FirstSlurmHost(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = list.find(']', i);
    const size_t end = list.find_first_of("-,]", i);
    if (close == std::string::npos) {
      return InvalidInput(
          fmt::format("Slurm's list of hosts '{}': ']' is missing", list.substr(0, 200)));
    }
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  if (host.empty()) return InvalidInput("Slurm's list of hosts is empty");
  return host;
}

Result<int> SlurmTasksOfNode(const std::string& list, int node) {
  std::string_view left = list;
  int64_t first_node = 0;
  int64_t value = -1;
  do {
    int64_t tasks = 0;
    int64_t nodes = 1;
    bool good = TakeNumber(left, &tasks) && tasks >= 1;
    if (good && Take(left, "(x")) good = TakeNumber(left, &nodes) && Take(left, ")");
    if (!good || (!left.empty() && left.front() != ',')) {
      return InvalidInput(
          fmt::format("'{}': must be numbers of tasks like 4(x2),3", list.substr(0, 200)));
    }
    const bool here = node < 0 || (node >= first_node && node < first_node + nodes);
    if (here && value >= 0 && value != tasks) {
      return InvalidInput(
          fmt::format("'{}': hosts differ and SLURM_NODEID is not set", list.substr(0, 200)));
    }
    if (here) value = tasks;
    first_node += nodes;
  } while (Take(left, ","));
  if (value >= 0) return static_cast<int>(value);
  return InvalidInput(
      fmt::format("'{}': has {} hosts, this is host {}", list.substr(0, 200), first_node, node));
}

}  // namespace meshwright::runtime
