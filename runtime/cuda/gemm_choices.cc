#include "runtime/cuda/gemm_choices.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace meshwright::runtime::cuda {
namespace {

using Json = nlohmann::ordered_json;

constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;

Json ToJson(const GemmMachine& machine, const GemmKey& key, const GemmChoice& choice) {
  Json words = Json::array();
  for (uint64_t word : choice.algorithm) words.push_back(fmt::format("{:016x}", word));
  return {{"device", machine.device},
          {"cublaslt", machine.library},
          {"deterministic", machine.deterministic},
          {"m", key.m},
          {"n", key.n},
          {"k", key.k},
          {"transpose_a", key.transpose_a},
          {"transpose_b", key.transpose_b},
          {"input", planner::ToString(key.input)},
          {"output", planner::ToString(key.output)},
          {"lda", key.lda},
          {"ldb", key.ldb},
          {"ldd", key.ldd},
          {"bias", key.bias},
          {"accumulate", key.accumulate},
          {"alignment_bytes", key.alignment},
          {"sm_target", key.sm_target},
          {"algorithm", words},
          {"workspace_bytes", choice.workspace_bytes},
          {"seconds", choice.seconds},
          {"first_seconds", choice.first_seconds},
          {"candidates", choice.candidates}};
}

/// Throws nlohmann's exceptions for missing fields and wrong types.
GemmMachine MachineFrom(const Json& json) {
  GemmMachine machine;
  machine.device = json.at("device").get<std::string>();
  machine.library = json.at("cublaslt").get<int64_t>();
  machine.deterministic = json.at("deterministic").get<bool>();
  return machine;
}

Result<GemmKey> KeyFrom(const Json& json) {
  GemmKey key;
  key.m = json.at("m").get<int64_t>();
  key.n = json.at("n").get<int64_t>();
  key.k = json.at("k").get<int64_t>();
  key.transpose_a = json.at("transpose_a").get<bool>();
  key.transpose_b = json.at("transpose_b").get<bool>();
  MW_ASSIGN_OR_RETURN(key.input, planner::ParseDType(json.at("input").get<std::string>()));
  MW_ASSIGN_OR_RETURN(key.output, planner::ParseDType(json.at("output").get<std::string>()));
  key.lda = json.at("lda").get<int64_t>();
  key.ldb = json.at("ldb").get<int64_t>();
  key.ldd = json.at("ldd").get<int64_t>();
  key.bias = json.at("bias").get<bool>();
  key.accumulate = json.at("accumulate").get<bool>();
  key.alignment = json.at("alignment_bytes").get<int32_t>();
  key.sm_target = json.at("sm_target").get<int32_t>();
  return key;
}

Result<GemmChoice> ChoiceFrom(const Json& json) {
  GemmChoice choice;
  const Json& words = json.at("algorithm");
  if (!words.is_array() || words.size() != choice.algorithm.size()) {
    return InvalidInput(
        fmt::format("algorithm must be a list of {} words", choice.algorithm.size()));
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const auto text = words[i].get<std::string>();
    size_t used = 0;
    const bool hex =
        text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (hex) choice.algorithm[i] = std::stoull(text, &used, 16);
    if (!hex || used != text.size()) {
      return InvalidInput(
          fmt::format("algorithm word {} is \"{}\", must be 16 hexadecimal digits", i, text));
    }
  }
  choice.workspace_bytes = json.at("workspace_bytes").get<int64_t>();
  choice.seconds = json.at("seconds").get<double>();
  choice.first_seconds = json.at("first_seconds").get<double>();
  choice.candidates = json.at("candidates").get<int32_t>();
  if (choice.workspace_bytes < 0) return InvalidInput("workspace_bytes must be at least 0");
  return choice;
}

/// Puts one line where it belongs.
Status AddLine(const std::string& line, const GemmMachine& machine, GemmChoicesFile* file) {
  try {
    const Json json = Json::parse(line);
    if (MachineFrom(json) != machine) {
      file->others.push_back(line);
      return Status::Ok();
    }
    MW_ASSIGN_OR_RETURN(const GemmKey key, KeyFrom(json));
    MW_ASSIGN_OR_RETURN(const GemmChoice choice, ChoiceFrom(json));
    file->own[key] = choice;
    return Status::Ok();
  } catch (const nlohmann::json::exception& e) {
    return InvalidInput(e.what());
  }
}

}  // namespace

std::string ToString(const GemmKey& key) {
  std::string text = fmt::format("{}x{}x{} {}{} {}->{}", key.m, key.n, key.k,
                                 key.transpose_a ? 't' : 'n', key.transpose_b ? 't' : 'n',
                                 planner::ToString(key.input), planner::ToString(key.output));
  if (key.bias) text += " bias";
  if (key.accumulate) text += " accumulate";
  if (key.alignment != kFullAlignment) text += fmt::format(" {}-byte aligned", key.alignment);
  if (key.sm_target != 0) text += fmt::format(" for {} SMs", key.sm_target);
  return text;
}

int32_t AlignmentClass(uintptr_t address) {
  if (address % kFullAlignment == 0) return kFullAlignment;
  for (int32_t bytes : {16, 8, 4}) {
    if (address % static_cast<uintptr_t>(bytes) == 0) return bytes;
  }
  return 2;
}

std::string GemmChoicesText(const GemmMachine& machine, const GemmChoices& choices) {
  std::string text;
  for (const auto& [key, choice] : choices) text += ToJson(machine, key, choice).dump() + "\n";
  return text;
}

Result<GemmChoicesFile> ParseGemmChoices(const std::string& text, const std::string& origin,
                                         const GemmMachine& machine) {
  GemmChoicesFile file;
  std::istringstream in(text);
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    const Status status = AddLine(line, machine, &file);
    if (status.ok()) continue;
    return status.WithContext(fmt::format(
        "{}:{}: not a choice of a GEMM algorithm; delete the line, or the file to tune again",
        origin, number));
  }
  return file;
}

Result<GemmChoicesFile> LoadGemmChoices(const std::string& path, const GemmMachine& machine) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return GemmChoicesFile{};
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return InvalidInput(path + ": " + error.message());
  if (size > kMaxFileBytes) {
    return InvalidInput(fmt::format("{}: {} bytes, a file of GEMM choices has at most {}", path,
                                    size, kMaxFileBytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return InvalidInput(path + ": cannot be read");
  return ParseGemmChoices(text.str(), path, machine);
}

Status SaveGemmChoices(const std::string& path, const GemmMachine& machine,
                       const GemmChoices& choices) {
  MW_ASSIGN_OR_RETURN(GemmChoicesFile file, LoadGemmChoices(path, machine));
  for (const auto& [key, choice] : choices) file.own[key] = choice;
  std::error_code ignored;  // the open below tells
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty()) {
    std::filesystem::create_directories(folder, ignored);
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    for (const std::string& line : file.others) out << line << '\n';
    out << GemmChoicesText(machine, file.own);
    out.flush();
    if (!out) {
      return RunFailed(fmt::format("{}: cannot be written ({}); name a file in a writable folder",
                                   temporary, std::strerror(errno)));
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!error) return Status::Ok();
  std::filesystem::remove(temporary, ignored);
  return RunFailed(fmt::format("{}: cannot be replaced: {}", path, error.message()));
}

}  // namespace meshwright::runtime::cuda
