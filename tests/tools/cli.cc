#include "tests/tools/cli.h"

#include <nlohmann/json.hpp>

namespace meshwright::tools {

nlohmann::json CliResult::Json() const {
  const nlohmann::json json = nlohmann::json::parse(out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << "not one JSON document:\n" << out << "\n" << err;
  return json;
}

}  // namespace meshwright::tools
