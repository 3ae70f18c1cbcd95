// Which headers were compiled alone into the test program.
#pragma once

#include <set>
#include <string>

namespace meshwright::structure {

/// Paths from the root of the repository.
std::set<std::string>& CompiledHeaders();

/// One per generated translation unit; constructed before main.
struct CompiledHeader {
  explicit CompiledHeader(const char* path) { CompiledHeaders().insert(path); }
};

}  // namespace meshwright::structure
