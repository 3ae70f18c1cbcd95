// The arrows between the boxes, as rules on #include lines.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::structure {

/// What is wrong with the includes of one file, each as "path:line: what, what is allowed".
/// `path` is relative to the root of the repository and decides the box; `text` is the content.
std::vector<std::string> CheckIncludes(std::string_view path, std::string_view text);

/// Files that use fixed-width integers and get <cstdint> neither themselves nor through our
/// headers. GCC 12 brings it in through <string> and the like, GCC 13 (Ubuntu 24.04) does not.
/// `texts`: content by path from the root of the repository.
std::vector<std::string> CheckFixedWidth(const std::map<std::string, std::string>& texts);

}  // namespace meshwright::structure
