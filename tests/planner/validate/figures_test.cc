// The figures of the page of predictions, made again: none may get worse by more than a tenth.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "planner/validate/summary.h"

namespace meshwright::planner::validate {
namespace {

std::string ReadFolderFile(const std::string& name) {
  std::ifstream file(std::string(MESHWRIGHT_SOURCE_DIR) + "/cost_models/validation/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// "source (half)" -> MAPE of the page, ratio.
std::map<std::string, double> PageFigures(const std::string& name_of_page) {
  std::map<std::string, double> figures;
  std::istringstream page(ReadFolderFile(name_of_page));
  for (std::string line; std::getline(page, line);) {
    if (line.empty()) continue;
    if (line.find("mean regret") != std::string::npos) break;  // the next table
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(cell);
    if (cells.size() < 4 || cells[3].find('%') == std::string::npos) continue;
    const std::string name = cells[1].substr(1, cells[1].size() - 2);
    figures[name] = std::stod(cells[3]) / 100;
  }
  return figures;
}

TEST(Figures, NoSourceIsPredictedWorseThanThePageSays) {
  const auto rows = ReadMeasuredRows(ReadFolderFile("training.csv"), "training.csv");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  CaseMaker maker(LoadSourceFacts().value(), {});
  std::vector<RowResult> results;
  int64_t predicted = 0;
  for (const MeasuredRow& row : *rows) {
    const auto result = PredictRow(maker, row);
    ASSERT_TRUE(result.ok()) << result.status().message();
    if (result->predicted_step_s) ++predicted;
    results.push_back(*result);
  }
  EXPECT_GE(static_cast<double>(predicted), 0.9 * static_cast<double>(rows->size()));
  std::map<std::string, std::vector<const RowResult*>> halves;
  for (const RowResult& r : results) {
    halves[r.source + (r.held_out ? " (held out)" : " (fitted half)")].push_back(&r);
  }
  const std::map<std::string, double> page = PageFigures("README.md");
  ASSERT_GE(page.size(), 15u);
  for (const auto& [name, members] : halves) {
    ASSERT_TRUE(page.contains(name)) << name << ": make the page again";
    const double mape = SummarizeSteps(name, members).mape;
    EXPECT_LE(mape, 1.1 * page.at(name) + 0.001) << name;
  }
}

TEST(Figures, NoSourcesMemoryIsPredictedWorseThanThePageSays) {
  const auto rows = ReadMeasuredRows(ReadFolderFile("memory.csv"), "memory.csv");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  CaseMaker maker(LoadSourceFacts().value(), {});
  std::vector<RowResult> results;
  for (const MeasuredRow& row : *rows) results.push_back(PredictRow(maker, row).value());
  std::map<std::string, std::vector<const RowResult*>> groups;
  for (const RowResult& r : results) {
    ASSERT_TRUE(r.predicted_peak_gib) << r.id << ": " << r.reason;
    groups[r.source + (r.held_out ? " (held out)" : " (fitted half)")].push_back(&r);
    groups[r.source].push_back(&r);
  }
  const std::map<std::string, double> page = PageFigures("memory.md");
  ASSERT_EQ(page.size(), 4u);
  for (const auto& [name, mape] : page) {
    ASSERT_TRUE(groups.contains(name)) << name << ": make the page again";
    EXPECT_LE(SummarizeMemory(name, groups[name]).mape, 1.1 * mape + 0.001) << name;
  }
  EXPECT_LE(SummarizeMemory("TITAN", groups["TITAN"]).mape, 0.08);
  EXPECT_LE(SummarizeMemory("GALVAMEM", groups["GALVAMEM"]).mape, 0.06);
}

TEST(Figures, StacksKnowTheErrorsOfTheirFit) {
  for (const std::string& name : stack::ShippedStackNames()) {
    const stack::StackSpec stack = stack::LoadStack(name).value();
    EXPECT_GT(stack.residuals.rows, 10) << name;
    EXPECT_GT(stack.residuals.log_deviation, 0.005) << name;
    EXPECT_LT(stack.residuals.log_deviation, 0.3) << name;
  }
}

}  // namespace
}  // namespace meshwright::planner::validate
