// Wrong usage: exit code 2, and a message that says what to do.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/cli.h"

namespace meshwright::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using UsageTest = CliTest;

TEST_F(UsageTest, HelpListsCommandsAndDefaults) {
  const CliResult help = Meshwright("--help");
  EXPECT_EQ(help.exit, 0);
  for (const char* command :
       {"topo", "plan", "estimate", "simulate", "verify", "run", "calibrate"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const CliResult own = Meshwright(std::string(command) + " --help");
    EXPECT_EQ(own.exit, 0);
    EXPECT_THAT(own.out, HasSubstr("--json")) << command;
  }
  const std::string run = Meshwright("run --help").out;
  for (const char* option :
       {"--optimizer", "--lr", "--min-lr", "--warmup", "--decay", "--weight-decay", "--clip",
        "--seed", "--dtype", "--deterministic", "--data", "--comm", "--nproc"}) {
    EXPECT_THAT(run, HasSubstr(option));
  }
  EXPECT_THAT(run, AllOf(HasSubstr("constant"), HasSubstr("=0.1"))) << "defaults are shown";
}

TEST_F(UsageTest, NothingAtAllShowsHelpOnStandardError) {
  const CliResult result = Meshwright("");
  EXPECT_EQ(result.exit, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("estimate"));
}

TEST_F(UsageTest, UnknownCommandsAndOptionsNameTheNearest) {
  EXPECT_THAT(Meshwright("estimat").err, HasSubstr("did you mean estimate"));
  EXPECT_EQ(Meshwright("estimat").exit, 2);
  const CliResult option = Meshwright("plan --model gpt2 --cluster dgx-h100 --global-bach 8");
  EXPECT_EQ(option.exit, 2);
  EXPECT_THAT(option.err, HasSubstr("--global-batch"));
  EXPECT_EQ(Meshwright("topo dgx-h100 ''").exit, 2);
  const CliResult near = Meshwright("topo --locl x");
  EXPECT_EQ(near.exit, 2);
  EXPECT_THAT(near.err, AllOf(HasSubstr("--locl"), HasSubstr("did you mean --local")));
}

TEST_F(UsageTest, NumbersOutOfRangeSayWhatIsAllowed) {
  const std::string base = "estimate --model gpt2 --cluster dgx-h100 --global-batch 8 ";
  for (const char* bad :
       {"--tp 0", "--tp -1", "--tp 1.5", "--tp 9999999999999999999999", "--tp two", "--tp ''"}) {
    const CliResult result = Meshwright(base + bad);
    EXPECT_EQ(result.exit, 2) << bad;
    EXPECT_THAT(result.err, AllOf(HasSubstr("--tp"), HasSubstr("whole numbers from 1 to"))) << bad;
  }
  const CliResult choice = Meshwright(base + "--recompute selectiv");
  EXPECT_EQ(choice.exit, 2);
  EXPECT_THAT(choice.err,
              AllOf(HasSubstr("none, selective, full"), HasSubstr("did you mean selective")));
  const CliResult list = Meshwright(base + "--layers 3,,4");
  EXPECT_EQ(list.exit, 2);
  EXPECT_THAT(list.err, HasSubstr("--layers"));
}

TEST_F(UsageTest, MissingOptionsAreNamed) {
  const CliResult result = Meshwright("estimate --model gpt2 --cluster dgx-h100");
  EXPECT_EQ(result.exit, 2);
  EXPECT_THAT(result.err, HasSubstr("--global-batch"));
  EXPECT_EQ(Meshwright("simulate").exit, 2);
  EXPECT_EQ(Meshwright("topo").exit, 2);
}

TEST_F(UsageTest, UnknownNamesListWhatThereIs) {
  const CliResult model =
      Meshwright("estimate --model lama-3-8b --cluster dgx-h100 --global-batch 8");
  EXPECT_EQ(model.exit, 2);
  EXPECT_THAT(model.err, HasSubstr("llama-3-8b"));
  const CliResult cluster =
      Meshwright("estimate --model gpt2 --cluster dgx-h1000 --global-batch 8");
  EXPECT_EQ(cluster.exit, 2);
  EXPECT_THAT(cluster.err, HasSubstr("dgx-h100"));
}

TEST_F(UsageTest, BadFilesGiveExitCode2) {
  WriteFile(Path("latin1.txt"), "GPU0\tX\xE9\xFF\n");
  WriteFile(Path("empty.json"), "");
  WriteFile(Path("truncated.json"), "{\"schema_version\": 1, \"model\": {");
  WriteFile(Path("deep.json"), std::string(200000, '['));
  ASSERT_EQ(Shell("truncate -s 3G " + Path("huge.json")).exit, 0);
  for (const char* file : {"latin1.txt", "empty.json", "truncated.json", "deep.json", "huge.json",
                           "missing.json", ""}) {
    for (const char* command : {"topo", "simulate", "verify", "run --data mock --steps 1"}) {
      const CliResult result = Meshwright(std::string(command) + " " + Path(file));
      EXPECT_EQ(result.exit, 2) << command << " " << file << "\n" << result.err;
      EXPECT_THAT(result.err, HasSubstr("error:")) << command << " " << file;
      EXPECT_THAT(result.out, IsEmpty());
    }
    const CliResult model =
        Meshwright("estimate --cluster dgx-h100 --global-batch 8 --model " + Path(file));
    EXPECT_EQ(model.exit, 2) << file << "\n" << model.err;
    const CliResult cluster =
        Meshwright("estimate --model gpt2 --global-batch 8 --cluster " + Path(file));
    EXPECT_EQ(cluster.exit, 2) << file << "\n" << cluster.err;
  }
}

TEST_F(UsageTest, JsonIsTheOnlyThingOnStandardOutputAlsoWhenItFails) {
  const std::vector<std::string> failing = {
      "topo --json " + Path("missing.txt"),
      "plan --json --model x --cluster y --global-batch 1",
      "estimate --json --tp 0",
      "verify --json",
      "nonsense --json",
      "run --json --data mock --steps 1 " + Path("missing.json"),
      "simulate --json " + Path("missing.json")};
  for (const std::string& arguments : failing) {
    const CliResult result = Meshwright(arguments);
    EXPECT_EQ(result.exit, 2) << arguments;
    const nlohmann::json document = result.Json();
    ASSERT_TRUE(document.contains("errors")) << arguments;
    EXPECT_GE(document["errors"].size(), 1U) << arguments;
    EXPECT_THAT(result.err, HasSubstr("error:")) << arguments;
  }
}

TEST_F(UsageTest, NoColourWithoutATerminal) {
  const CliResult result = Meshwright("topo dgx-h100; " + Binary() + " topo nowhere");
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
  EXPECT_THAT(result.err, Not(HasSubstr("\033")));
}

TEST_F(UsageTest, CalibrationOfAGpuThatIsNotThereIsRefused) {
  const CliResult result = Meshwright("calibrate --device cuda --gpu 1000");
  EXPECT_NE(result.exit, 0);
  EXPECT_THAT(result.err, HasSubstr("CUDA"));
}

TEST_F(UsageTest, AProfileIsFittedToKeptMeasurementsAndPlannedWith) {
  const std::string profile = Path("mine.yaml");
  const CliResult fitted = Meshwright("calibrate --device cuda --from " MESHWRIGHT_H200_SAMPLES
                                      " --name mine --json -o " +
                                      profile);
  ASSERT_EQ(fitted.exit, 0) << fitted.err;
  EXPECT_THAT(fitted.err, Not(HasSubstr("communication is not in")));
  std::ifstream kept(MESHWRIGHT_H200_SAMPLES);
  nlohmann::json alone = nlohmann::json::parse(kept);
  alone.erase("communication");
  WriteFile(Path("alone.json"), alone.dump());
  const CliResult one = Meshwright("calibrate --device cuda --from " + Path("alone.json") +
                                   " --name one -o " + Path("one.yaml"));
  ASSERT_EQ(one.exit, 0) << one.err;
  EXPECT_THAT(one.err, HasSubstr("communication is not in"));
  EXPECT_EQ(fitted.Json()["name"], "mine");
  EXPECT_GE(fitted.Json()["fits"].size(), 20u);
  const std::string plan =
      "plan --model gpt2 --cluster h200-x2 --gpus 1 --global-batch 8 --micro-batch 8 --json";
  const CliResult planned = Meshwright(plan + " --profile " + profile);
  ASSERT_EQ(planned.exit, 0) << planned.err;
  EXPECT_EQ(Meshwright(plan + " --profile " + Path("none.yaml")).exit, 2);
  const CliResult wrong = Meshwright("calibrate --device cuda --from " + profile);
  EXPECT_EQ(wrong.exit, 2);
  EXPECT_THAT(wrong.err, HasSubstr("no GPU samples"));
}

}  // namespace
}  // namespace meshwright::tools
