// meshwright validate: predictions beside measured training steps.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "planner/validate/fit.h"
#include "planner/validate/summary.h"
#include "tools/commands.h"
#include "tools/table.h"
#include "tools/validate_own.h"

namespace meshwright::tools {
namespace {

using planner::validate::ChoiceSummary;
using planner::validate::ErrorSummary;
using planner::validate::MeasuredRow;
using planner::validate::RowResult;
using planner::validate::SourceFacts;

struct ValidateArguments {
  std::string rows, stack, cluster, profile, by = "source", fit, output, page;
  bool complete = false, show_rows = false, all_rows = false, below_alone = false;
};

constexpr const char* kHeader =
    "id,source,source_table,year,model,layers,hidden,ffn_hidden,heads,kv_heads,head_dim,vocab,seq,"
    "params_b,moe_experts,moe_topk,gpu,gpus,gpus_per_node,tp,cp,pp,vpp,ep,dp,micro_batch,"
    "global_batch,precision,sequence_parallel,recompute,zero_dist_optimizer,interconnect,"
    "measured_step_s,measured_tflops_per_gpu,measured_tokens_per_gpu_s,measured_mfu,"
    "measured_peak_mem_gib,notes";

Result<std::string> ReadTable(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return InvalidInput(fmt::format("--rows: {} is a folder; give a CSV file", path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return NotFound(
        fmt::format("--rows: cannot read {}; give a CSV file whose header is\n{}", path, kHeader));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json Optional(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

nlohmann::json RowJson(const RowResult& row) {
  nlohmann::json interval = nullptr;
  if (row.predicted_step_s) interval = {row.low_s, row.high_s};
  return {{"id", row.id},
          {"source", row.source},
          {"group", row.group},
          {"stack", row.stack},
          {"split", row.split},
          {"measured_step_s", Optional(row.measured_step_s)},
          {"predicted_step_s", Optional(row.predicted_step_s)},
          {"interval", interval},
          {"measured_peak_gib", Optional(row.measured_peak_gib)},
          {"predicted_peak_gib", Optional(row.predicted_peak_gib)},
          {"held_out", row.held_out},
          {"assumptions", row.assumptions},
          {"reason", row.reason.empty() ? nlohmann::json(nullptr) : nlohmann::json(row.reason)}};
}

nlohmann::json ErrorJson(const ErrorSummary& s) {
  return {{"name", s.name}, {"rows", s.rows},     {"predicted", s.predicted},
          {"mape", s.mape}, {"median", s.median}, {"p90", s.p90},
          {"max", s.max},   {"bias", s.bias},     {"worst", s.worst}};
}

std::vector<std::string> ErrorCells(const ErrorSummary& s) {
  if (s.predicted == 0) return {s.name, fmt::format("0/{}", s.rows)};
  return {s.name,
          fmt::format("{}/{}", s.predicted, s.rows),
          PercentText(s.mape),
          PercentText(s.median),
          PercentText(s.p90),
          PercentText(s.max),
          PercentText(s.bias),
          s.worst};
}

/// What is summed up, and how it is shown.
struct Groups {
  std::map<std::string, std::vector<const RowResult*>> by_name;
};

Groups GroupRows(const std::vector<RowResult>& results, const std::string& by) {
  Groups groups;
  for (const RowResult& row : results) {
    const std::string half = row.held_out ? " (held out)" : " (fitted half)";
    const std::string name = by == "stack"  ? row.stack.empty() ? "(no stack)" : row.stack
                             : by == "half" ? row.source + half
                                            : row.source;
    groups.by_name[name].push_back(&row);
  }
  return groups;
}

void ShowRows(const std::vector<RowResult>& results, Output& output) {
  Table table({"row", "split", "measured", "predicted", "error", "GiB", "predicted"});
  for (const RowResult& row : results) {
    if (!row.predicted_step_s) continue;
    const auto seconds = [](const std::optional<double>& s) { return s ? SecondsText(*s) : ""; };
    const std::string error =
        row.measured_step_s ? PercentText(*row.predicted_step_s / *row.measured_step_s - 1) : "";
    table.Row({row.id, row.split, seconds(row.measured_step_s), seconds(row.predicted_step_s),
               error, row.measured_peak_gib ? NumberText(*row.measured_peak_gib) : "",
               NumberText(*row.predicted_peak_gib)});
  }
  output.Text(HeadingText("rows", output.style()) + table.ToText(output.style()));
}

/// A table of Markdown from rows of cells.
std::string Markdown(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (const std::string& cell : rows[r]) text += "| " + cell + " ";
    text += "|\n";
    if (r > 0) continue;
    for (size_t c = 0; c < rows[r].size(); ++c) text += "| --- ";
    text += "|\n";
  }
  return text;
}

/// What is known of rows that do not fit, of the sources that have rows in the table.
std::string OutliersText(const std::vector<SourceFacts>& facts, const Groups& groups) {
  std::string text;
  for (const SourceFacts& f : facts) {
    const bool shown =
        std::any_of(groups.by_name.begin(), groups.by_name.end(), [&](const auto& group) {
          return group.first.starts_with(f.prefix.substr(0, f.prefix.find_last_not_of('-') + 1));
        });
    if (!f.outliers.empty() && shown) text += fmt::format("- {}.\n", f.outliers);
  }
  return text.empty() ? "" : "\nRows that do not fit, kept in the tables:\n\n" + text;
}

/// The page of cost_models/validation: what is off by how much, by source and half.
std::string PageText(const Groups& groups, const ValidateArguments& a,
                     const std::vector<SourceFacts>& facts) {
  const std::vector<std::string> errors = {"source", "rows", "MAPE", "median",
                                           "p90",    "max",  "bias", "worst row"};
  std::vector<std::vector<std::string>> steps = {errors}, memory = {errors};
  std::vector<std::vector<std::string>> choice = {
      {"source", "groups", "mean regret", "max regret", "Spearman"}};
  for (const auto& [name, members] : groups.by_name) {
    const ErrorSummary step = SummarizeSteps(name, members);
    if (step.predicted > 0) steps.push_back(ErrorCells(step));
    const ErrorSummary bytes = SummarizeMemory(name, members);
    if (bytes.predicted > 0) memory.push_back(ErrorCells(bytes));
    const ChoiceSummary chosen = SummarizeChoice(name, members);
    if (chosen.groups > 0) {
      choice.push_back({name, std::to_string(chosen.groups), PercentText(chosen.mean_regret),
                        PercentText(chosen.max_regret),
                        fmt::format("{:.2f}", chosen.mean_spearman)});
    }
  }
  std::string text = fmt::format(
      "# Predictions of published training {}\n\nMade by `meshwright validate --rows {} --by "
      "half{} --page FILE`. Models of a source are fitted or held out whole, by a hash of their "
      "name.\n\n",
      steps.size() > 1 ? "steps" : "memory", a.rows, a.complete ? " --complete" : "");
  if (steps.size() > 1) text += Markdown(steps);
  if (choice.size() > 1) {
    text +=
        "\nChoice among the measured rows of one model, batch and number of GPUs (three rows or "
        "more): how much slower than the fastest measured row the row is that is predicted "
        "fastest, and the rank correlation.\n\n" +
        Markdown(choice);
  }
  if (memory.size() > 1) {
    text += steps.size() > 1 ? "\nPeak memory of a GPU, as each source counts it.\n\n" : "";
    text += Markdown(memory);
  }
  return text + OutliersText(facts, groups);
}

void ShowSummaries(const Groups& groups, Output& output) {
  nlohmann::json& document = output.document();
  Table steps({"step time", "rows", "MAPE", "median", "p90", "max", "bias", "worst"});
  Table memory({"peak memory", "rows", "MAPE", "median", "p90", "max", "bias", "worst"});
  Table choice({"choice", "groups", "mean regret", "max regret", "Spearman"});
  document["summaries"] = nlohmann::json::array();
  document["memory_summaries"] = nlohmann::json::array();
  document["choice"] = nlohmann::json::array();
  for (const auto& [name, rows] : groups.by_name) {
    const ErrorSummary step = SummarizeSteps(name, rows);
    const ErrorSummary bytes = SummarizeMemory(name, rows);
    const ChoiceSummary chosen = SummarizeChoice(name, rows);
    if (step.rows > 0) {
      steps.Row(ErrorCells(step));
      document["summaries"].push_back(ErrorJson(step));
    }
    if (bytes.rows > 0) {
      memory.Row(ErrorCells(bytes));
      document["memory_summaries"].push_back(ErrorJson(bytes));
    }
    if (chosen.groups > 0) {
      choice.Row({name, std::to_string(chosen.groups), PercentText(chosen.mean_regret),
                  PercentText(chosen.max_regret), fmt::format("{:.2f}", chosen.mean_spearman)});
      document["choice"].push_back({{"name", name},
                                    {"groups", chosen.groups},
                                    {"mean_regret", chosen.mean_regret},
                                    {"max_regret", chosen.max_regret},
                                    {"mean_spearman", chosen.mean_spearman}});
    }
  }
  for (const Table* table : {&steps, &memory, &choice}) {
    if (!table->empty()) output.Text(table->ToText(output.style()) + "\n");
  }
}

void ShowUnpredicted(const std::vector<RowResult>& results, Output& output) {
  std::map<std::string, std::pair<int64_t, std::string>> reasons;  // count, first id
  for (const RowResult& row : results) {
    if (row.reason.empty()) continue;
    auto& [count, id] = reasons[row.reason];
    if (count++ == 0) id = row.id;
  }
  if (reasons.empty()) return;
  Table table({"not predicted", "rows", "first"});
  for (const auto& [reason, entry] : reasons) {
    table.Row({reason, std::to_string(entry.first), entry.second});
  }
  output.Text(table.ToText(output.style()));
}

void ShowAssumptions(const std::vector<RowResult>& results, Output& output) {
  std::map<std::string, int64_t> counts;
  for (const RowResult& row : results) {
    for (const std::string& assumption : row.assumptions) ++counts[assumption];
  }
  if (counts.empty()) return;
  Table table({"assumed where the rows are blank", "rows"});
  for (const auto& [text, count] : counts) table.Row({text, std::to_string(count)});
  output.Text(table.ToText(output.style()) + "\n");
}

/// Factors that `--fit` names, fitted to the half of the groups that is not held out.
Status Fit(const ValidateArguments& a, const std::vector<MeasuredRow>& rows,
           planner::validate::CaseMaker& maker, Output& output) {
  if (a.stack.empty()) return InvalidInput("--fit: which stack? Give --stack NAME too");
  MW_ASSIGN_OR_RETURN(const planner::stack::StackSpec start, planner::stack::LoadStack(a.stack));
  planner::validate::FitOptions options;
  options.below_alone = a.below_alone;
  std::istringstream names(a.fit);
  for (std::string name; std::getline(names, name, ',');) options.factors.push_back(name);
  std::vector<MeasuredRow> seen;
  for (const MeasuredRow& row : rows) {
    if (a.all_rows ||
        !planner::validate::IsHeldOut(row.Source(), planner::validate::ModelGroupOf(row)))
      seen.push_back(row);
  }
  const bool memory = a.fit == "fragmentation";
  MW_ASSIGN_OR_RETURN(
      const planner::validate::FitResult fit,
      memory ? FitFragmentation(start, maker, seen) : FitStack(start, maker, seen, options));
  Table table({"factor", "before", "after"});
  if (memory) {
    const double after = fit.stack.allocator.fragmentation;
    output.document()["allocator"]["fragmentation"] = after;
    table.Row({"fragmentation", fmt::format("{:.4g}", start.allocator.fragmentation),
               fmt::format("{:.4g}", after)});
  }
  for (const auto& field : planner::stack::FactorFields()) {
    if (memory) break;
    const double before = start.factors.*field.member;
    const double after = fit.stack.factors.*field.member;
    output.document()["factors"][field.name] = after;
    table.Row({field.name, fmt::format("{:.4g}", before), fmt::format("{:.4g}", after)});
  }
  output.Text(table.ToText(output.style()) +
              fmt::format("  {} rows: mean |ln(predicted / measured)| {:.4f} -> {:.4f}\n", fit.rows,
                          fit.before, fit.after));
  if (a.output.empty()) return Status::Ok();
  MW_RETURN_IF_ERROR(WriteFileAtomically(a.output, ToYaml(fit.stack)));
  output.Progress("stack: " + a.output);
  return Status::Ok();
}

Status Validate(const ValidateArguments& a, Output& output) {
  nlohmann::json& document = output.document();
  document = {{"rows", nlohmann::json::array()}, {"errors", nlohmann::json::array()}};
  const bool own = a.stack == "meshwright";
  if (!own && !a.cluster.empty()) {
    return InvalidInput("--cluster: only with --stack meshwright; others go by the gpu column");
  }
  if (own && !a.fit.empty()) {
    return InvalidInput(
        "--fit: stack meshwright has no factors to fit; its prices come from 'meshwright "
        "calibrate'; allowed: --stack with one of cost_models/stacks");
  }
  MW_ASSIGN_OR_RETURN(const std::string text, ReadTable(a.rows));
  MW_ASSIGN_OR_RETURN(const std::vector<MeasuredRow> rows,
                      planner::validate::ReadMeasuredRows(text, a.rows));
  MW_ASSIGN_OR_RETURN(std::vector<SourceFacts> facts, planner::validate::LoadSourceFacts());
  if (!a.fit.empty()) {
    planner::validate::CaseMaker by_source(std::move(facts), {"", a.profile});
    return Fit(a, rows, by_source, output);
  }
  planner::validate::CaseMaker maker(facts, {a.stack, a.profile});
  OwnRows own_rows(facts, a.cluster, a.profile);
  std::vector<RowResult> results;
  for (const MeasuredRow& row : rows) {
    if (a.complete && row.Text("step_complete") != "1") continue;
    MW_ASSIGN_OR_RETURN(RowResult result,
                        own ? own_rows.Predict(row, output) : PredictRow(maker, row));
    document["rows"].push_back(RowJson(result));
    results.push_back(std::move(result));
  }
  ShowAssumptions(results, output);
  if (a.show_rows) ShowRows(results, output);
  const Groups groups = GroupRows(results, a.by);
  ShowSummaries(groups, output);
  if (!a.page.empty()) MW_RETURN_IF_ERROR(WriteFileAtomically(a.page, PageText(groups, a, facts)));
  ShowUnpredicted(results, output);
  return Status::Ok();
}

}  // namespace

Command ValidateCommand() {
  auto arguments = std::make_shared<ValidateArguments>();
  return {"validate", "predictions beside measured training steps, yours or published ones",
          [arguments](OptionSet& options) {
            options.Text("--rows", &arguments->rows, "FILE", "table of measured steps (CSV)");
            options.Require("--rows");
            options.Text("--stack", &arguments->stack, "NAME",
                         "training stack of all rows (meshwright: our own runs); default: by "
                         "source, else by their "
                         "fields");
            options.Text("--cluster", &arguments->cluster, "NAME",
                         "with --stack meshwright: where the rows ran; default: by the gpu column");
            options.Text("--profile", &arguments->profile, "NAME",
                         "device profile of all rows; default: by the gpu column");
            options.Choice(
                "--by", &arguments->by, {"source", "stack", "half"},
                "what summaries are over; half: by source, fitted and held-out groups apart");
            options.Text("--fit", &arguments->fit, "FACTORS",
                         "fit these factors of --stack to the rows (comma-separated), or "
                         "fragmentation to their reserved memory");
            options.Flag("--all-rows", &arguments->all_rows, "with --fit: hold no groups out");
            options.Flag("--below-alone", &arguments->below_alone,
                         "with --fit: ratios below 1 too, to correct a device profile");
            options.Text("-o,--output", &arguments->output, "FILE",
                         "with --fit: the stack so made");
            options.Flag("--complete", &arguments->complete,
                         "only rows whose column step_complete is 1");
            options.Text("--page", &arguments->page, "FILE", "the summaries as a page (Markdown)");
            options.Flag("--each", &arguments->show_rows, "show every row");
          },
          [arguments](Output& output) { return Validate(*arguments, output); }};
}

}  // namespace meshwright::tools
