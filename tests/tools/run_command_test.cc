// run: short trainings on CPU ranks by threads, and by mpirun where it is.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/cli.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

using RunTest = CliTest;

constexpr const char* kMpiAsRoot =
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
    "OMPI_MCA_mpi_yield_when_idle=1 ";

/// A line a step and the object at the end.
void ExpectRunLines(const CliResult& result, int64_t steps) {
  ASSERT_EQ(result.exit, 0) << result.err;
  const std::vector<std::string> lines = result.OutLines();
  ASSERT_EQ(lines.size(), static_cast<size_t>(steps) + 1) << result.out;
  const json last = json::parse(lines.back());
  for (const char* field :
       {"losses", "grad_norms", "step_time_s", "planned_bytes", "arena_bytes", "trace_rows"}) {
    EXPECT_TRUE(last.contains(field)) << field;
  }
  ASSERT_EQ(last["losses"].size(), static_cast<size_t>(steps));
  ASSERT_EQ(last["grad_norms"].size(), static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const json line = json::parse(lines[static_cast<size_t>(i)]);
    EXPECT_EQ(line["step"], i + 1);
    EXPECT_EQ(line["loss"], last["losses"][static_cast<size_t>(i)]);
    EXPECT_EQ(line["grad_norm"], last["grad_norms"][static_cast<size_t>(i)]);
    EXPECT_GT(line["tokens_per_s"].get<double>(), 0);
    EXPECT_TRUE(line["times_s"].contains("Forward")) << line;
  }
  EXPECT_EQ(last["planned_bytes"], last["arena_bytes"]);
  EXPECT_GT(last["step_time_s"].get<double>(), 0);
}

json LastLine(const CliResult& result) {
  const std::vector<std::string> lines = result.OutLines();
  return lines.empty() ? json() : json::parse(lines.back(), nullptr, false);
}

TEST_F(RunTest, TwoThreadsTrainOnText) {
  const std::string plan = TinyPlan("--gpus 2 --tp 1 --pp 2");
  const CliResult run = Meshwright("run " + plan + " --data " + kCorpus +
                                   " --steps 3 --json --trace " + Path("t.json"));
  ExpectRunLines(run, 3);
  EXPECT_THAT(run.err, AllOf(HasSubstr("step 3 of 3"), HasSubstr("tokens/s")));
  const json last = LastLine(run);
  EXPECT_NEAR(last["losses"][0].get<double>(), 5.545, 0.2)
      << "ln 256: an untrained model knows nothing";
  const json trace = json::parse(ReadFile(Path("t.json")), nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  // Ops lie beside their tasks, within the time of the steps.
  std::map<std::string, int> ops;
  double end = 0.0, ops_end = 0.0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const bool op = event["cat"] == "op";
    if (op) ++ops[event["name"].get<std::string>()];
    double& latest = op ? ops_end : end;
    latest = std::max(latest, event["ts"].get<double>() + event["dur"].get<double>());
  }
  EXPECT_GT(ops_end, 0.5 * end);
  EXPECT_LT(ops_end, 1.5 * end);
  EXPECT_GT(ops["attention"], 0);
  EXPECT_EQ(ops["send"], ops["recv"]);
  ASSERT_EQ(last["communication"].size(), 2U) << last;
  EXPECT_EQ(last["communication"][0]["class"], "data") << "the sum of the statistics";
  EXPECT_EQ(last["communication"][1]["class"], "pipeline");
  for (const json& traffic : last["communication"]) {
    const double busy_s = traffic["busy_s"].get<double>();
    const double hidden_s = traffic["hidden_s"].get<double>();
    EXPECT_GT(busy_s, 0.0) << traffic;
    EXPECT_GE(hidden_s, 0.0) << traffic;
    EXPECT_LE(hidden_s, busy_s) << traffic;
    EXPECT_NEAR(traffic["hidden_share"].get<double>(), hidden_s / busy_s, 1e-9) << traffic;
  }
  // The recorded trace has the rows that simulation has.
  const json simulated = Meshwright("simulate " + plan + " --json --steps 3").Json();
  EXPECT_EQ(simulated["simulated"]["trace_rows"], last["trace_rows"]);
}

TEST_F(RunTest, TracesCanBeDrawn) {
  if (Shell("python3 --version").exit != 0) GTEST_SKIP() << "no python3 here";
  const std::string plan = TinyPlan("--gpus 2 --tp 1 --pp 2");
  ASSERT_EQ(Meshwright("run " + plan + " --data mock --steps 2 --trace " + Path("t.json")).exit, 0);
  const std::string draw = std::string("python3 ") + MESHWRIGHT_SOURCE_DIR +
                           "/tools/trace_svg.py " + Path("t.json") + " --title 'a < b' -o " +
                           Path("p.svg");
  ASSERT_EQ(Shell(draw).exit, 0);
  const std::string tasks = ReadFile(Path("p.svg"));
  EXPECT_THAT(tasks,
              AllOf(HasSubstr("a &lt; b"), HasSubstr("Forward(0,0)"), HasSubstr("rank 1, ")));
  ASSERT_EQ(Shell(draw + " --rows ops --ranks 1").exit, 0);
  const std::string ops = ReadFile(Path("p.svg"));
  EXPECT_THAT(ops, AllOf(HasSubstr("attention"), Not(HasSubstr("rank 0")), EndsWith("</svg>\n")));
  const CliResult none = Shell(draw + " --ranks 7");
  EXPECT_NE(none.exit, 0);
  EXPECT_THAT(none.err, HasSubstr("no tasks of ranks [7]"));
}

TEST_F(RunTest, LossesDoNotDependOnTheSplitAndRepeatExactly) {
  const std::string two = TinyPlan("--gpus 2 --tp 2", "two.json");
  const std::string one = TinyPlan("--gpus 1", "one.json");
  const std::string options =
      " --data " + kCorpus +
      " --steps 3 --json --dtype fp64 --optimizer sgd --lr 0.1 --seed 7 "
      "--warmup 1 --decay cosine --min-lr 0.01 --weight-decay 0 --clip 0.5 --deterministic";
  const json a = LastLine(Meshwright("run " + two + options));
  const json b = LastLine(Meshwright("run " + one + options));
  ASSERT_EQ(a["losses"].size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(a["losses"][i].get<double>(), b["losses"][i].get<double>(), 1e-11) << i;
    EXPECT_NEAR(a["grad_norms"][i].get<double>(), b["grad_norms"][i].get<double>(), 1e-10) << i;
  }
  EXPECT_EQ(a["losses"], LastLine(Meshwright("run " + two + options))["losses"])
      << "bit-identical again";
  EXPECT_NE(a["losses"][0], LastLine(Meshwright("run " + two + options + " --seed 8"))["losses"])
      << "the last --seed";
}

TEST_F(RunTest, TextAtTheEndShowsPredictedBesideMeasured) {
  const std::string plan = TinyPlan("--gpus 2");
  const CliResult run = Meshwright(
      "run " + plan + " --data mock --steps 2 --nproc 2 --comm threads --trace " + Path("t.json"));
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("on the wire"), HasSubstr("hidden")));
  EXPECT_THAT(run.out, AllOf(HasSubstr("predicted"), HasSubstr("measured"), HasSubstr("step time"),
                             HasSubstr("memory")));
}

TEST_F(RunTest, Refusals) {
  const std::string plan = TinyPlan("--gpus 2");
  const auto expect = [&](const std::string& arguments, int exit, const std::string& part) {
    const CliResult result = Meshwright("run " + plan + " --steps 1 " + arguments);
    EXPECT_EQ(result.exit, exit) << arguments << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(part)) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  };
  // 1: built without CUDA; 3: ranks that find no driver.
  const CliResult no_gpu = Meshwright("run " + plan + " --steps 1 --data mock --device cuda");
  if (no_gpu.exit != 0) {
    EXPECT_THAT(no_gpu.exit, AnyOf(1, 3));
    EXPECT_THAT(no_gpu.err, HasSubstr("--device cpu"));
  }
  expect("--data mock --dtype bf16", 1, "--dtype fp32");
  expect("--data mock --comm mpi", 2, "mpirun -n 2");
  expect("--data " + Path("none.txt"), 2, "none.txt");
  expect("--data mock --decay cosine --warmup 5", 2, "warm");
  // Bug report B33: the world that the configuration was written for beside the actual one.
  expect("--data mock --nproc 1", 2, "the plan has 2 ranks");
  WriteFile(Path("short.txt"), "ten bytes.");
  expect("--data " + Path("short.txt"), 2, "short.txt");
}

TEST_F(RunTest, BadTokensAreFoundWhenTheyAreRead) {
  const std::string plan = TinyPlan("--gpus 2 --tp 1 --pp 2");
  WriteFile(Path("ids.u16"), std::string(4000, '\xFF'));  // ids of 65535, the vocabulary has 256
  const CliResult result =
      Meshwright("run " + plan + " --data " + Path("ids.u16") + " --steps 1 --json");
  EXPECT_EQ(result.exit, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("ids.u16"), HasSubstr("65535")));
  EXPECT_FALSE(result.Json()["errors"].empty());
}

TEST_F(RunTest, Bf16PlansRunInFp32WhenAskedTo) {
  const CliResult made =
      Meshwright("plan --model gpt-tiny --cluster dgx-h100 --gpus 2 --global-batch 4 --seq 32 -o " +
                 Path("gpu.json"));
  ASSERT_EQ(made.exit, 0) << made.err;
  const CliResult refused = Meshwright("run " + Path("gpu.json") + " --data mock --steps 1");
  EXPECT_EQ(refused.exit, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("bf16"), HasSubstr("--dtype fp32")));
  const CliResult run =
      Meshwright("run " + Path("gpu.json") + " --data mock --steps 1 --dtype fp32 --json");
  ExpectRunLines(run, 1);
  EXPECT_TRUE(LastLine(run)["predicted_step_time_s"].is_null())
      << "an H100's time says nothing of this CPU";
}

class MpiRunTest : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    if (std::string(MESHWRIGHT_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  }
  CliResult Mpirun(int processes, const std::string& arguments) const {
    return Shell(kMpiAsRoot + std::string(MESHWRIGHT_MPIEXEC) + " -n " + std::to_string(processes) +
                 " " + Binary() + " " + arguments);
  }
};

TEST_F(MpiRunTest, ProcessesGetTheLossesOfThreads) {
  const std::string plan = TinyPlan("--gpus 2 --tp 1 --pp 2");
  const std::string options = "run " + plan + " --data " + kCorpus + " --steps 3 --json";
  const CliResult mpi = Mpirun(2, options + " --comm mpi --trace " + Path("t.json"));
  ExpectRunLines(mpi, 3);
  EXPECT_THAT(mpi.err, HasSubstr("OMPI_COMM_WORLD_SIZE"));
  const json threads = LastLine(Meshwright(options));
  const json last = LastLine(mpi);
  EXPECT_EQ(last["losses"], threads["losses"]);
  EXPECT_EQ(last["grad_norms"], threads["grad_norms"]);
  EXPECT_EQ(last["arena_bytes"], threads["arena_bytes"]);
  EXPECT_EQ(last["trace_rows"], threads["trace_rows"]);
  EXPECT_FALSE(threads.contains("communication")) << "ops are timed for --trace alone";
  ASSERT_EQ(last["communication"].size(), 2U) << last;
  EXPECT_GT(last["communication"][1]["busy_s"].get<double>(), 0.0);
  EXPECT_FALSE(json::parse(ReadFile(Path("t.json")), nullptr, false).is_discarded());
}

TEST_F(MpiRunTest, UnlikePlansOfTheRanksAreNamed) {
  const std::string a = TinyPlan("--gpus 2 --tp 1 --pp 2 --vpp 1 --micro-batch 1", "a.json");
  const std::string b = TinyPlan("--gpus 2 --tp 1 --pp 2 --vpp 1 --micro-batch 2", "b.json");
  const auto run = [&](const std::string& plan) {
    return Binary() + " run " + plan + " --data mock --steps 1 --deadline 20";
  };
  const CliResult result =
      Shell(kMpiAsRoot + std::string(MESHWRIGHT_MPIEXEC) + " -n 1 " + run(a) + " : -n 1 " + run(b));
  EXPECT_EQ(result.exit, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 has program"), HasSubstr("the same plan")));
}

// Bug report B60: processes that each run the whole job are not one job.
TEST_F(MpiRunTest, ThreadsUnderALauncherAreWarnedOf) {
  const std::string plan = TinyPlan("--gpus 2");
  const CliResult result = Mpirun(2, "run " + plan + " --data mock --steps 1 --comm threads");
  EXPECT_EQ(result.exit, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("each of the 2 processes runs all 2 ranks"));
}

TEST_F(MpiRunTest, LauncherIsFoundAndCountsMustMatch) {
  const std::string plan = TinyPlan("--gpus 2");
  const CliResult found = Mpirun(2, "run " + plan + " --data mock --steps 1 --json");
  ExpectRunLines(found, 1);
  EXPECT_THAT(found.err, HasSubstr("MPI processes"));
  const CliResult wrong = Mpirun(1, "run " + plan + " --data mock --steps 1 --comm mpi");
  EXPECT_NE(wrong.exit, 0);
  EXPECT_THAT(wrong.err, HasSubstr("mpirun -n 2"));
}

}  // namespace
}  // namespace meshwright::tools
