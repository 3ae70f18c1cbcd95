#include "runtime/cuda/gemm_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using testing::HasSubstr;

GemmMachine Here() {
  return {"NVIDIA H200", 130100, false};
}

GemmChoices Some() {
  GemmChoices choices;
  GemmKey key;
  key.m = 4096, key.n = 2048, key.k = 8192;
  key.lda = 8192, key.ldb = 8192, key.ldd = 2048;
  key.transpose_b = true;
  choices[key] = {{1, 2, 3, 0xFFFFFFFFFFFFFFFF, 5, 6, 7, 8}, 4096, 1.5e-4, 1.75e-4, 24};
  key.output = DType::kF32;
  key.accumulate = true;
  key.alignment = 2;
  key.sm_target = 116;
  choices[key] = {{}, 0, 2e-4, 2e-4, 1};
  return choices;
}

TEST(GemmChoices, SurviveTheirText) {
  const GemmChoices choices = Some();
  const auto file = ParseGemmChoices(GemmChoicesText(Here(), choices), "text", Here());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->own, choices);
  EXPECT_TRUE(file->others.empty());
}

TEST(GemmChoices, OfOtherMachinesAreKeptApart) {
  const std::string text = GemmChoicesText(Here(), Some());
  for (GemmMachine other :
       {GemmMachine{"NVIDIA H100", 130100, false}, GemmMachine{"NVIDIA H200", 130200, false},
        GemmMachine{"NVIDIA H200", 130100, true}}) {
    const auto file = ParseGemmChoices(text, "text", other);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_TRUE(file->own.empty());
    EXPECT_EQ(file->others.size(), 2U);
  }
}

TEST(GemmChoices, BadLinesAreNamed) {
  const std::string good = GemmChoicesText(Here(), Some());
  const std::string no_hex = [&] {
    std::string line = good.substr(0, good.find('\n'));
    return line.replace(line.find("ffffffffffffffff"), 16, "gfffffffffffffff");
  }();
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string("{\"device\":\"NVIDIA H200\"}"), no_hex}) {
    const auto file = ParseGemmChoices(good + bad + "\n", "choices.jsonl", Here());
    ASSERT_FALSE(file.ok()) << bad;
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidInput);
    EXPECT_THAT(file.status().message(), HasSubstr("choices.jsonl:3"));
    EXPECT_THAT(file.status().message(), HasSubstr("tune again"));
  }
}

TEST(GemmChoices, SavingMergesAndKeepsOthers) {
  const std::string path = testing::TempDir() + "/gemm_choices_test.jsonl";
  std::filesystem::remove(path);
  const GemmMachine other = {"NVIDIA H100", 130100, false};
  GemmChoices choices = Some();
  GemmChoices first = {*choices.begin()};
  ASSERT_TRUE(SaveGemmChoices(path, other, choices).ok());
  ASSERT_TRUE(SaveGemmChoices(path, Here(), first).ok());
  GemmChoices second = {*std::next(choices.begin())};
  ASSERT_TRUE(SaveGemmChoices(path, Here(), second).ok());
  for (const GemmMachine& machine : {Here(), other}) {
    const auto file = LoadGemmChoices(path, machine);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->own, choices);
    EXPECT_EQ(file->others.size(), 2U);
  }
  std::filesystem::remove(path);
}

TEST(GemmChoices, FilesThatCannotBeUsed) {
  const std::string blocker = testing::TempDir() + "/gemm_choices_test.blocker";
  const auto none = LoadGemmChoices(blocker + "/choices.jsonl", Here());
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->own.empty());
  std::ofstream(blocker) << "a file where a folder would have to be";
  const Status status = SaveGemmChoices(blocker + "/choices.jsonl", Here(), Some());
  EXPECT_EQ(status.code(), StatusCode::kRunFailed);
  EXPECT_THAT(status.message(), HasSubstr("writable"));
  std::filesystem::remove(blocker);
}

TEST(GemmChoices, AlignmentClasses) {
  EXPECT_EQ(AlignmentClass(0), 128);
  EXPECT_EQ(AlignmentClass(512), 128);
  EXPECT_EQ(AlignmentClass(128), 128);
  EXPECT_EQ(AlignmentClass(64), 16);
  EXPECT_EQ(AlignmentClass(24), 8);
  EXPECT_EQ(AlignmentClass(12), 4);
  EXPECT_EQ(AlignmentClass(6), 2);
}

}  // namespace
}  // namespace meshwright::runtime::cuda
