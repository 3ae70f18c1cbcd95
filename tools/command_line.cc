#include "tools/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

#include "topologies/text.h"

namespace meshwright::tools {
namespace {

constexpr const char* kVersion = "meshwright 0.1.0";

template <typename T>
std::optional<T> ParseNumber(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || at != end) return std::nullopt;
  return value;
}

std::string IntProblem(const std::string& text, IntRange range, int64_t* out) {
  const std::optional<int64_t> value = ParseInt(text);
  if (value && *value >= range.least && *value <= range.most) {
    *out = *value;
    return "";
  }
  return fmt::format("found '{}'; allowed are whole numbers from {} to {}",
                     topologies::Quoted(text), range.least, range.most);
}

std::vector<std::string> CommandNames(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  return names;
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& known) {
  const auto close = topologies::ClosestNames(word, known);
  return close.empty() ? "" : fmt::format(" (did you mean {}?)", fmt::join(close, " or "));
}

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

/// What is wrong with the arguments, for people.
std::string UsageProblem(const CLI::ParseError& error, const CLI::App& sub) {
  const std::vector<std::string> rest = sub.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !rest.empty()) {
    const std::string word = topologies::Quoted(rest.front(), 80);
    if (!word.empty() && word.front() == '-') {
      return fmt::format("unknown option '{}'{}", word, DidYouMean(word, FlagsOf(sub)));
    }
    return fmt::format("unexpected argument '{}'", word);
  }
  return error.what();
}

/// Reports a failure before any command runs.
int UsageError(const std::string& command, const std::string& problem, bool json) {
  Output output(command, json);
  const Status status = InvalidInput(fmt::format("{}; 'meshwright{} --help' lists what there is",
                                                 problem, command.empty() ? "" : " " + command));
  return output.Finish(status);
}

int Run(const Command& command, bool json) {
  Output output(command.name, json);
  Status status;
  try {
    status = command.run(output);
  } catch (const std::bad_alloc&) {
    status = RunFailed("out of memory; use a smaller model, batch or number of steps");
  } catch (const std::exception& e) {
    status = RunFailed(
        fmt::format("unexpected failure: {}; please report it with the command", e.what()));
  }
  return output.Finish(status);
}

}  // namespace

std::optional<int64_t> ParseInt(const std::string& text) {
  return ParseNumber<int64_t>(text);
}

std::optional<double> ParseReal(const std::string& text) {
  const std::optional<double> value = ParseNumber<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

void OptionSet::Add(const std::string& flag, const std::string& value, const std::string& help,
                    const std::string& shown_default, Parser parse) {
  CLI::Option* option = app_->add_option_function<std::string>(
      flag,
      [flag, parse = std::move(parse)](const std::string& text) {
        const std::string problem = parse(text);
        if (!problem.empty()) throw CLI::ValidationError(flag, problem);
      },
      help);
  option->type_name(value);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  if (!shown_default.empty()) option->default_str(shown_default);
  if (!heading_.empty()) option->group(heading_);
}

void OptionSet::Positional(const std::string& name, std::string* out, const std::string& help) {
  app_->add_option(name, *out, help)->type_name("");
}

void OptionSet::Text(const std::string& flag, std::string* out, const std::string& value,
                     const std::string& help) {
  Add(flag, value, help, *out, [out](const std::string& text) {
    *out = text;
    return text.empty() ? std::string("is empty; leave the option out or give a value") : "";
  });
}

void OptionSet::Int(const std::string& flag, int64_t* out, IntRange range,
                    const std::string& help) {
  Add(flag, "N", help, std::to_string(*out),
      [out, range](const std::string& text) { return IntProblem(text, range, out); });
}

void OptionSet::Int(const std::string& flag, std::optional<int64_t>* out, IntRange range,
                    const std::string& help) {
  Add(flag, "N", help, *out ? std::to_string(**out) : "", [out, range](const std::string& text) {
    int64_t value = 0;
    std::string problem = IntProblem(text, range, &value);
    if (problem.empty()) *out = value;
    return problem;
  });
}

void OptionSet::Ints(const std::string& flag, std::vector<int64_t>* out, IntRange range,
                     const std::string& help) {
  Add(flag, "N,N,...", help, "", [out, range](const std::string& text) {
    out->clear();
    for (const std::string_view part : topologies::SplitAt(text, ',')) {
      int64_t value = 0;
      std::string problem = IntProblem(std::string(part), range, &value);
      if (!problem.empty()) return problem;
      out->push_back(value);
    }
    return std::string();
  });
}

void OptionSet::Real(const std::string& flag, double* out, RealRange range,
                     const std::string& help) {
  Add(flag, "X", help, fmt::format("{}", *out), [out, range](const std::string& text) {
    const std::optional<double> value = ParseReal(text);
    if (!value || *value < range.least || *value > range.most) {
      return fmt::format("found '{}'; allowed are numbers from {} to {}", topologies::Quoted(text),
                         range.least, range.most);
    }
    *out = *value;
    return std::string();
  });
}

void OptionSet::Choice(const std::string& flag, std::string* out, std::vector<std::string> allowed,
                       const std::string& help) {
  const std::string names = fmt::format("{}", fmt::join(allowed, "|"));
  Add(flag, names, help, *out, [out, allowed = std::move(allowed)](const std::string& text) {
    for (const std::string& name : allowed) {
      if (text != name) continue;
      *out = text;
      return std::string();
    }
    return fmt::format("found '{}'; allowed are {}{}", topologies::Quoted(text),
                       fmt::join(allowed, ", "), DidYouMean(text, allowed));
  });
}

void OptionSet::Flag(const std::string& flag, bool* out, const std::string& help) {
  CLI::Option* option = app_->add_flag(flag, *out, help);
  if (!heading_.empty()) option->group(heading_);
}

void OptionSet::Require(const std::string& name) {
  app_->get_option(name)->required();
}

int RunCommandLine(int argc, char** argv, const std::vector<Command>& commands) {
  CLI::App app("Plans, predicts, proves and runs distributed training of transformers.",
               "meshwright");
  app.set_version_flag("--version", kVersion);
  app.footer("Exit codes: 0 done, 1 the answer is no, 2 bad usage or input, 3 the run failed.");
  app.require_subcommand(1);
  bool json = false;
  std::vector<CLI::App*> subs;
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    OptionSet options(sub);
    command.declare(options);
    options.Heading("");
    options.Flag("--json", &json, "machine-readable: JSON and nothing else on standard output");
    subs.push_back(sub);
  }
  bool wants_json = false;  // known before the parse, which may fail
  for (int i = 1; i < argc; ++i) wants_json = wants_json || std::string(argv[i]) == "--json";
  if (argc < 2) {
    fmt::print(stderr, "{}", app.help());
    return 2;
  }
  const std::string first = argv[1];
  const std::vector<std::string> names = CommandNames(commands);
  if (!first.empty() && first[0] != '-' &&
      std::find(names.begin(), names.end(), first) == names.end()) {
    return UsageError(
        "",
        fmt::format("unknown command '{}'{}; commands are {}", topologies::Quoted(first),
                    DidYouMean(first, names), fmt::join(names, ", ")),
        wants_json);
  }
  const CLI::App* used = &app;
  std::string used_name;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    for (size_t i = 0; i < subs.size(); ++i) {
      if (subs[i]->parsed() || first == commands[i].name)
        used = subs[i], used_name = commands[i].name;
    }
    return UsageError(used_name, UsageProblem(e, *used), wants_json);
  }
  for (size_t i = 0; i < subs.size(); ++i) {
    if (subs[i]->parsed()) return Run(commands[i], json);
  }
  return 2;
}

}  // namespace meshwright::tools
