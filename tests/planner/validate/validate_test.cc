// Reading measured rows, what is assumed of them, and the statistics of their errors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "planner/validate/fit.h"
#include "planner/validate/summary.h"

namespace meshwright::planner::validate {
namespace {

constexpr const char* kHeader =
    "id,model,layers,hidden,heads,seq,gpu,gpus,tp,pp,micro_batch,global_batch,recompute,"
    "measured_step_s\n";

std::vector<MeasuredRow> Rows(const std::string& lines) {
  const auto rows = ReadMeasuredRows(kHeader + lines, "rows.csv");
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  return *rows;
}

TEST(Csv, QuotesLineBreaksAndCarriageReturns) {
  const auto table = ParseCsv("a,b\r\n\"x, \"\"y\"\"\",2\r\n\"two\nlines\",\r\n\n3,4", "t");
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_EQ(table->rows.size(), 3u);
  EXPECT_EQ(table->rows[0], (std::vector<std::string>{"x, \"y\"", "2"}));
  EXPECT_EQ(table->rows[1], (std::vector<std::string>{"two\nlines", ""}));
  EXPECT_EQ(table->rows[2], (std::vector<std::string>{"3", "4"}));
  EXPECT_EQ(table->lines, (std::vector<int64_t>{2, 3, 6}));
}

TEST(Csv, BadTablesNameTheLine) {
  const struct {
    const char *text, *expected;
  } cases[] = {{"", "empty"},
               {"a,a\n", "repeated"},
               {"a,\n", "is empty"},
               {"a,b\n1\n", "line 2: found 1 cells, the header has 2"},
               {"a\n\"x", "line 2: a quoted cell never ends"},
               {"a\n\"x\"y\n", "line 2: found text behind a closing quote"},
               {"a\n\xff\n", "not UTF-8"}};
  for (const auto& c : cases) {
    const auto table = ParseCsv(c.text, "t.csv");
    ASSERT_FALSE(table.ok()) << c.expected;
    EXPECT_NE(table.status().message().find(c.expected), std::string::npos)
        << table.status().message();
  }
}

TEST(MeasuredRows, ColumnsAndIdsAreChecked) {
  EXPECT_NE(ReadMeasuredRows("id,model\n", "t").status().message().find("'gpu' is missing"),
            std::string::npos);
  const std::string row = "X-1,m,2,64,4,32,A100,1,1,1,1,1,none,1\n";
  EXPECT_NE(ReadMeasuredRows(kHeader + row + row, "t").status().message().find("'X-1' again"),
            std::string::npos);
  const auto bad = Rows("X-1,m,two,64,4,32,A100,1,1,1,1,1,none,1\n");
  EXPECT_NE(bad[0].Count("layers").status().message().find("layers: found 'two'"),
            std::string::npos);
}

RowResult Predict(const std::string& line) {
  CaseMaker maker({}, {});
  const auto result = PredictRow(maker, Rows(line).front());
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *result;
}

TEST(PredictRow, StatesWhatItAssumes) {
  const RowResult r = Predict("X-1,GPT,24,1024,16,1024,A100-80GB,8,2,2,4,64,full,1.5\n");
  ASSERT_TRUE(r.predicted_step_s) << r.reason;
  EXPECT_GT(*r.predicted_step_s, 0);
  EXPECT_LT(r.low_s, *r.predicted_step_s);
  EXPECT_GT(r.high_s, *r.predicted_step_s);
  std::string all;
  for (const std::string& a : r.assumptions) all += a + "\n";
  for (const char* part : {"vocab = 51200", "ffn_hidden = 4096", "GPT layers", "precision ="}) {
    EXPECT_NE(all.find(part), std::string::npos) << all;
  }
}

TEST(PredictRow, RowsThatSayTooLittleGetTheField) {
  const struct {
    const char *line, *reason;
  } cases[] = {
      {"X-1,GPT,,1024,16,1024,A100,8,2,2,4,64,full,1\n", "'layers' is blank"},
      {"X-1,GPT,24,1024,16,,A100,8,2,2,4,64,full,1\n", "'seq' is blank"},
      {"X-1,GPT,24,1024,16,1024,TPUv4,8,2,2,4,64,full,1\n", "gpu: found 'TPUv4'"},
      {"X-1,GPT,24,1024,16,1024,A100,8,3,1,4,64,full,1\n", "not a multiple of tp x cp x pp"},
      {"X-1,GPT,24,1024,16,1024,A100,8,2,2,4,63,full,1\n", "not a multiple of micro_batch x dp"},
      {"X-1,GPT,24,1024,15,1024,A100,8,2,2,4,64,full,1\n", "heads = 15"},
      {"X-1,GPT,3,1024,16,1024,A100,8,1,4,4,64,full,1\n", "pp 4"},
      {"X-1,GPT,24,1024,16,1024,A100,8,2,2,4,64,sometimes,1\n", "recompute: found 'sometimes'"},
  };
  for (const auto& c : cases) {
    const RowResult r = Predict(c.line);
    EXPECT_FALSE(r.predicted_step_s);
    EXPECT_NE(r.reason.find(c.reason), std::string::npos) << r.reason;
  }
}

TEST(PredictRow, MeasurementsMustBePositive) {
  CaseMaker maker({}, {});
  const auto rows = Rows("X-1,GPT,24,1024,16,1024,A100,8,2,2,4,64,full,-1\n");
  EXPECT_FALSE(PredictRow(maker, rows[0]).ok());
}

RowResult Result(const std::string& group, double measured, double predicted) {
  RowResult r;
  r.id = group + "-1";
  r.group = group;
  r.measured_step_s = measured;
  r.predicted_step_s = predicted;
  return r;
}

std::vector<const RowResult*> Pointers(const std::vector<RowResult>& rows) {
  std::vector<const RowResult*> out;
  for (const RowResult& row : rows) out.push_back(&row);
  return out;
}

TEST(Summary, ErrorsAreRelativeToTheMeasurement) {
  std::vector<RowResult> rows = {Result("a", 1, 1.1), Result("a", 2, 1.6), Result("a", 4, 4)};
  rows.push_back(Result("a", 1, 1));
  rows.back().predicted_step_s.reset();
  const ErrorSummary s = SummarizeSteps("x", Pointers(rows));
  EXPECT_EQ(s.rows, 4);
  EXPECT_EQ(s.predicted, 3);
  EXPECT_NEAR(s.mape, 0.1, 1e-12);
  EXPECT_NEAR(s.median, 0.1, 1e-12);
  EXPECT_NEAR(s.max, 0.2, 1e-12);
  EXPECT_NEAR(s.bias, -0.1 / 3, 1e-12);
}

TEST(Summary, RegretAndRankCorrelation) {
  // Predicted best is the measured second: 10 % of regret. Ranks 2 1 3 against 1 2 3.
  const std::vector<RowResult> rows = {Result("a", 1.1, 0.5), Result("a", 1.0, 0.7),
                                       Result("a", 3.0, 2.0), Result("b", 1, 1)};
  const ChoiceSummary s = SummarizeChoice("x", Pointers(rows));
  EXPECT_EQ(s.groups, 1);  // b has one row
  EXPECT_NEAR(s.mean_regret, 0.1, 1e-12);
  EXPECT_NEAR(s.mean_spearman, 0.5, 1e-12);
}

TEST(Fit, FindsPlantedFactors) {
  // Rows whose times the stack itself makes with other factors.
  std::string lines;
  int id = 0;
  for (const char* shape : {"24,1024,16,1024", "24,4096,32,2048", "12,2048,16,1024"}) {
    for (const char* axes : {"8,1,1,1,64", "8,2,1,4,64", "8,1,2,2,64", "8,4,2,8,64"}) {
      lines += "P-" + std::to_string(id++) + ",GPT," + shape + ",A100-80GB," + axes + ",full,1\n";
    }
  }
  std::vector<MeasuredRow> rows = Rows(lines);
  stack::StackSpec planted = stack::LoadStack("deepspeed").value();
  const stack::StackCostFactors truth = [&] {
    stack::StackCostFactors f = planted.factors;
    f.gemm *= 1.2;
    f.launch_backward_s *= 1.5;
    return f;
  }();
  CaseMaker maker({}, {"deepspeed", ""});
  for (MeasuredRow& row : rows) {
    RowCase made = maker.Make(row).value();
    made.inputs.stack.factors = truth;
    const auto costs = stack::StackStageCosts::Make(made.inputs).value();
    const auto stages = stack::EvenStages(costs->module(), made.split, made.mode).value();
    row.cells["measured_step_s"] =
        std::to_string(stack::PredictStep(*costs, made.split, stages).parts.total);
  }
  FitOptions options;
  options.factors = {"gemm", "launch_backward_s"};
  options.evaluations = 400;
  const auto fit = FitStack(planted, maker, rows, options);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  EXPECT_EQ(fit->rows, 12);
  EXPECT_LT(fit->after, 0.2 * fit->before);
  EXPECT_NEAR(fit->stack.factors.gemm, truth.gemm, 0.02 * truth.gemm);
  options.factors = {"speed"};
  EXPECT_NE(FitStack(planted, maker, rows, options).status().message().find("found 'speed'"),
            std::string::npos);
}

TEST(PredictRow, PeaksBeyondStatesAreThoseOfTheRanksStage) {
  const std::string header =
      "id,source_table,model,layers,hidden,heads,seq,gpu,gpus,tp,pp,micro_batch,global_batch,"
      "zero_dist_optimizer,measured_peak_mem_gib,mem_metric\n";
  const std::string rest = ",llama-2-7b,4,4096,32,2048,A100,8,1,4,4,8,FSDP FULL_SHARD,3,";
  const auto rows = ReadMeasuredRows(
      header + "GALVAMEM-1,rank0_act" + rest + "activation peak\nGALVAMEM-2,rank7_act" + rest +
          "activation peak\nGALVAMEM-3,rank1_act" + rest + "activation peak\nGALVAMEM-4,all" +
          rest + "activation peak\n",
      "rows.csv");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  CaseMaker maker(LoadSourceFacts().value(), {});
  std::vector<double> peaks;
  for (const MeasuredRow& row : *rows) {
    const auto result = PredictRow(maker, row);
    ASSERT_TRUE(result.ok() && result->predicted_peak_gib) << result->reason;
    peaks.push_back(*result->predicted_peak_gib);
  }
  EXPECT_GT(peaks[1], peaks[0]);  // the last stage has the logits
  EXPECT_EQ(peaks[2], peaks[0]);  // two ranks a stage
  EXPECT_EQ(peaks[3], peaks[1]);
}

TEST(Fit, FragmentationIsTheMedianOfWhatTensorsDoNotExplain) {
  const std::string header =
      "id,model,layers,hidden,heads,seq,gpu,gpus,tp,pp,micro_batch,global_batch,recompute,"
      "zero_dist_optimizer,measured_peak_mem_gib,mem_metric\n";
  std::string lines;
  for (const char* gib : {"30", "20", "70"}) {
    lines += fmt::format("X-{},llama-3-8b,32,4096,32,4096,H100,8,1,1,1,8,full,FSDP2,{},reserved\n",
                         gib, gib);
  }
  lines += "X-9,llama-3-8b,32,4096,32,4096,H100,8,1,1,1,8,full,FSDP2,90,allocated\n";
  const auto rows = ReadMeasuredRows(header + lines, "rows.csv");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  CaseMaker maker({}, {});
  stack::StackSpec start = stack::LoadStack("fsdp2").value();
  start.allocator.fragmentation = 0;
  const RowResult bare = PredictRow(maker, rows->front()).value();
  const auto fit = FitFragmentation(start, maker, *rows);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  EXPECT_EQ(fit->rows, 3);
  const double allocated =
      *bare.predicted_peak_gib / (1 + stack::LoadStack("fsdp2").value().allocator.fragmentation);
  EXPECT_NEAR(allocated * (1 + fit->stack.allocator.fragmentation), 30, 1e-9);
  EXPECT_LT(fit->after, fit->before);
  EXPECT_FALSE(FitFragmentation(stack::LoadStack("megatron").value(), maker, *rows).ok());
}

TEST(SourceFacts, EntriesOfAYearAreForItsRowsAlone) {
  const auto facts = ParseSourceFacts(
      "sources:\n  - {prefix: X-, stack: megatron}\n  - {prefix: X-, year: 2021, stack: "
      "megatron-2022}\n",
      "facts.yaml");
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  CaseMaker maker(*facts, {});
  MeasuredRow row = Rows("X-1,m,2,64,4,32,A100,1,1,1,1,1,none,1\n").front();
  EXPECT_EQ(maker.Make(row)->stack, "megatron");
  row.cells["year"] = "2021";
  EXPECT_EQ(maker.Make(row)->stack, "megatron-2022");
}

TEST(SourceFacts, ShippedFileReadsAndErrorsNameTheLine) {
  const auto facts = LoadSourceFacts();
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_GE(facts->size(), 5u);
  for (const SourceFacts& f : *facts) EXPECT_TRUE(stack::LoadStack(f.stack).ok()) << f.prefix;
  EXPECT_NE(ParseSourceFacts("sources:\n  - {prefix: A-, colour: red}\n", "f")
                .status()
                .message()
                .find("line 2"),
            std::string::npos);
}

}  // namespace
}  // namespace meshwright::planner::validate
