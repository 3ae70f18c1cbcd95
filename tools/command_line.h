// The command line without CLI11 in sight: commands declare options, RunCommandLine does the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/output.h"
#include "topologies/status.h"

namespace CLI {
class App;
}

namespace meshwright::tools {

/// What a number on the command line may be, both ends included.
struct IntRange {
  int64_t least = 1;
  int64_t most = int64_t{1} << 40;
};
struct RealRange {
  double least = 0.0;
  double most = 1e30;
};

/// Options of one command. Targets must outlive the parse; what they hold before is the default and
/// stands in --help. Values out of range are usage errors that name flag, value and what is
/// allowed.
class OptionSet {
 public:
  explicit OptionSet(CLI::App* app) : app_(app) {}

  void Positional(const std::string& name, std::string* out, const std::string& help);
  void Text(const std::string& flag, std::string* out, const std::string& value,
            const std::string& help);
  void Int(const std::string& flag, int64_t* out, IntRange range, const std::string& help);
  void Int(const std::string& flag, std::optional<int64_t>* out, IntRange range,
           const std::string& help);
  void Ints(const std::string& flag, std::vector<int64_t>* out, IntRange range,
            const std::string& help);
  void Real(const std::string& flag, double* out, RealRange range, const std::string& help);
  /// One of `allowed`; an empty default means "not given".
  void Choice(const std::string& flag, std::string* out, std::vector<std::string> allowed,
              const std::string& help);
  void Flag(const std::string& flag, bool* out, const std::string& help);
  void Require(const std::string& name);
  /// Heading in --help for the options that follow.
  void Heading(const std::string& text) { heading_ = text; }

 private:
  using Parser = std::function<std::string(const std::string&)>;  ///< returns what is wrong, or ""
  void Add(const std::string& flag, const std::string& value, const std::string& help,
           const std::string& shown_default, Parser parse);

  CLI::App* app_;
  std::string heading_;
};

/// One command. Every command has --json besides what `declare` adds.
struct Command {
  std::string name;
  std::string summary;
  std::function<void(OptionSet&)> declare;
  /// Text and documents go through `Output`; the status becomes message, `errors` and exit code.
  std::function<Status(Output&)> run;
};

/// Parses, runs one command and returns the exit code of the process.
int RunCommandLine(int argc, char** argv, const std::vector<Command>& commands);

/// Whole text as a number: no spaces, no rest, no overflow.
std::optional<int64_t> ParseInt(const std::string& text);
std::optional<double> ParseReal(const std::string& text);

}  // namespace meshwright::tools
