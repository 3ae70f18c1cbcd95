#include "runtime/data_source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

namespace meshwright::runtime {
namespace {

namespace fs = std::filesystem;

class DataSourceTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) /
                 ("data_source_" + std::to_string(::getpid()) + "_" +
                  testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = (directory_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  /// Token ids as little-endian integers of `width` bytes.
  std::string WriteIds(const std::string& name, const std::vector<uint32_t>& ids, int width) {
    std::string bytes;
    for (uint32_t id : ids) {
      for (int i = 0; i < width; ++i) bytes += static_cast<char>(id >> (8 * i) & 0xFF);
    }
    return Write(name, bytes);
  }
  static DataOptions Options(const std::string& path, int64_t sequence, int64_t global_batch) {
    DataOptions o;
    o.path = path;
    o.vocab = 256;
    o.sequence = sequence;
    o.global_batch = global_batch;
    return o;
  }
  static std::vector<int32_t> Read(DataSource& source, int64_t step, int64_t sample,
                                   int64_t sequence) {
    std::vector<int32_t> tokens(static_cast<size_t>(sequence + 1), -1);
    const Status status = source.Read(step, sample, sequence, tokens.data());
    EXPECT_TRUE(status.ok()) << status.message();
    return tokens;
  }
  static void ExpectRefused(const DataOptions& options, StatusCode code, const std::string& text) {
    const auto source = OpenDataSource(options);
    ASSERT_FALSE(source.ok());
    EXPECT_EQ(source.status().code(), code) << source.status().message();
    EXPECT_NE(source.status().message().find(text), std::string::npos) << source.status().message();
    EXPECT_NE(source.status().message().find(options.path), std::string::npos) << "names the file";
  }
  fs::path directory_;
};

std::string Ramp(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 251);
  return bytes;
}

TEST_F(DataSourceTest, RandomWindowsAreRunsOfTheFileAndCoverIt) {
  auto source = OpenDataSource(Options(Write("text.txt", Ramp(40)), 7, 4));
  ASSERT_TRUE(source.ok()) << source.status().message();
  std::set<int32_t> starts;
  for (int64_t step = 0; step < 200; ++step) {
    for (int64_t i = 0; i < 4; ++i) {
      const auto tokens = Read(**source, step, i, 7);
      starts.insert(tokens[0]);
      for (size_t k = 1; k < tokens.size(); ++k) EXPECT_EQ(tokens[k], tokens[k - 1] + 1);
    }
  }
  EXPECT_EQ(starts.size(), 33U) << "every legal start: 40 - 7";
  EXPECT_EQ(*starts.rbegin(), 32);
}

TEST_F(DataSourceTest, SamplesDependOnTheGlobalIndexAlone) {
  for (const std::string& path : {std::string("mock"), Write("text.txt", Ramp(1000))}) {
    auto batch8 = OpenDataSource(Options(path, 16, 8));
    auto batch4 = OpenDataSource(Options(path, 16, 4));
    auto again = OpenDataSource(Options(path, 16, 8));
    ASSERT_TRUE(batch8.ok() && batch4.ok() && again.ok());
    // Sample 13 = step 1, sample 5 of 8 = step 3, sample 1 of 4.
    EXPECT_EQ(Read(**batch8, 1, 5, 16), Read(**batch4, 3, 1, 16));
    EXPECT_EQ(Read(**batch8, 1, 5, 16), Read(**again, 1, 5, 16));
    EXPECT_NE(Read(**batch8, 1, 5, 16), Read(**batch8, 1, 6, 16));
    EXPECT_NE(Read(**batch8, 1, 5, 16), Read(**batch8, 2, 5, 16));
    DataOptions other = Options(path, 16, 8);
    other.seed = 2;
    auto reseeded = OpenDataSource(other);
    ASSERT_TRUE(reseeded.ok());
    EXPECT_NE(Read(**batch8, 1, 5, 16), Read(**reseeded, 1, 5, 16));
  }
}

TEST_F(DataSourceTest, SequentialWindowsTileTheFileAndWrapAround) {
  DataOptions o = Options(Write("text.txt", Ramp(23)), 5, 2);
  o.sampling = Sampling::kSequential;
  auto source = OpenDataSource(o);
  ASSERT_TRUE(source.ok());
  // Inputs 0-4, 5-9, 10-14, 15-19 with their labels; a fifth window would need token 25.
  for (int64_t sample = 0; sample < 10; ++sample) {
    const auto tokens = Read(**source, sample / 2, sample % 2, 5);
    EXPECT_EQ(tokens.front(), sample % 4 * 5);
    EXPECT_EQ(tokens.back(), sample % 4 * 5 + 5);
  }
}

TEST_F(DataSourceTest, LongSamplesSpanReadBuffers) {
  DataOptions o = Options(Write("text.txt", Ramp(9001)), 9000, 1);
  o.sampling = Sampling::kSequential;
  auto source = OpenDataSource(o);
  ASSERT_TRUE(source.ok());
  const auto tokens = Read(**source, 0, 0, 9000);
  for (size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], static_cast<int32_t>(i % 251));
}

TEST_F(DataSourceTest, TokenFilesAreLittleEndianOfEitherWidth) {
  const std::vector<uint32_t> ids = {300, 2, 65535, 4, 513};
  DataOptions o = Options(WriteIds("ids.bin", ids, 2), 4, 1);
  o.vocab = 65536;
  auto narrow = OpenDataSource(o);
  ASSERT_TRUE(narrow.ok()) << narrow.status().message();
  EXPECT_EQ(Read(**narrow, 0, 0, 4), (std::vector<int32_t>{300, 2, 65535, 4, 513}));

  const std::vector<uint32_t> wide_ids = {300, 70000, 100000, 4, 513};
  o.path = WriteIds("wide.bin", wide_ids, 4);  // the vocabulary does not fit 16 bits
  o.vocab = 128256;
  auto wide = OpenDataSource(o);
  ASSERT_TRUE(wide.ok()) << wide.status().message();
  EXPECT_EQ(Read(**wide, 0, 0, 4), (std::vector<int32_t>{300, 70000, 100000, 4, 513}));

  // The ending and the option each decide the width.
  o.vocab = 1000;
  for (const auto& [name, format, width] : {std::tuple{"a.u16", DataFormat::kAuto, 2},
                                            {"a.u32", DataFormat::kAuto, 4},
                                            {"b.bin", DataFormat::kTokens32, 4},
                                            {"b.txt", DataFormat::kTokens16, 2}}) {
    o.path = WriteIds(name, {1, 2, 3, 4, 999}, width);
    o.format = format;
    auto source = OpenDataSource(o);
    ASSERT_TRUE(source.ok()) << source.status().message();
    EXPECT_EQ(Read(**source, 0, 0, 4), (std::vector<int32_t>{1, 2, 3, 4, 999})) << name;
  }
}

TEST_F(DataSourceTest, TokenIdBeyondTheVocabularyNamesFileAndOffset) {
  DataOptions o = Options(WriteIds("ids.bin", {1, 2, 999, 4, 5}, 2), 4, 1);
  auto source = OpenDataSource(o);
  ASSERT_TRUE(source.ok());
  int32_t tokens[5];
  const Status status = (*source)->Read(0, 0, 4, tokens);
  EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
  EXPECT_NE(status.message().find("token id 999 at byte 4"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(o.path), std::string::npos) << status.message();
}

TEST_F(DataSourceTest, MockTokensUseTheWholeVocabulary) {
  DataOptions o = Options("mock", 500, 2);
  o.vocab = 10;
  auto source = OpenDataSource(o);
  ASSERT_TRUE(source.ok());
  const auto tokens = Read(**source, 3, 1, 500);
  EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()),
            (std::set<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_F(DataSourceTest, UnusableFilesAreRefused) {
  const auto at = [&](const char* name) { return (directory_ / name).string(); };
  ExpectRefused(Options(at("missing.txt"), 4, 1), StatusCode::kNotFound, "No such file");
  ExpectRefused(Options(directory_.string(), 4, 1), StatusCode::kInvalidInput, "is a directory");
  ExpectRefused(Options(Write("empty.txt", ""), 4, 1), StatusCode::kInvalidInput, "is empty");
  ExpectRefused(Options(Write("short.txt", "1234"), 4, 1), StatusCode::kInvalidInput,
                "holds 4 tokens, a sample needs 5");
  ExpectRefused(Options(Write("odd.bin", "12345"), 1, 1), StatusCode::kInvalidInput, "5 bytes");
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  ExpectRefused(Options(at("pipe"), 4, 1), StatusCode::kInvalidInput, "is not a file");
  ExpectRefused(Options("/dev/zero", 4, 1), StatusCode::kInvalidInput, "is not a file");
  DataOptions small = Options(Write("text.txt", Ramp(20)), 4, 1);
  small.vocab = 100;
  ExpectRefused(small, StatusCode::kInvalidInput, "at least 256, the model has 100");
  if (::geteuid() != 0) {  // root reads everything
    const std::string secret = Write("secret.txt", Ramp(20));
    fs::permissions(secret, fs::perms::none);
    ExpectRefused(Options(secret, 4, 1), StatusCode::kNotFound, "Permission denied");
  }
}

TEST_F(DataSourceTest, OptionsAreChecked) {
  for (auto change : {+[](DataOptions& o) { o.vocab = 0; }, +[](DataOptions& o) { o.sequence = 0; },
                      +[](DataOptions& o) { o.global_batch = -1; },
                      +[](DataOptions& o) { o.vocab = int64_t{1} << 40; }}) {
    DataOptions o = Options("mock", 4, 1);
    change(o);
    EXPECT_EQ(OpenDataSource(o).status().code(), StatusCode::kInvalidInput);
  }
}

TEST_F(DataSourceTest, FileThatShrinksDuringTheRunIsAnError) {
  DataOptions o = Options(Write("text.txt", Ramp(20)), 19, 1);
  auto source = OpenDataSource(o);
  ASSERT_TRUE(source.ok());
  fs::resize_file(o.path, 10);
  int32_t tokens[20];
  const Status status = (*source)->Read(0, 0, 19, tokens);
  EXPECT_EQ(status.code(), StatusCode::kRunFailed);
  EXPECT_NE(status.message().find("shorter"), std::string::npos) << status.message();
}

TEST_F(DataSourceTest, FormatNamesRoundTrip) {
  for (auto f : {DataFormat::kAuto, DataFormat::kBytes, DataFormat::kTokens16,
                 DataFormat::kTokens32, DataFormat::kMock}) {
    EXPECT_EQ(*ParseDataFormat(ToString(f)), f);
  }
  EXPECT_FALSE(ParseDataFormat("parquet").ok());
}

TEST_F(DataSourceTest, UnigramEntropy) {
  EXPECT_NEAR(*UnigramEntropyNats(Write("a", "aaaa")), 0.0, 1e-15);
  EXPECT_NEAR(*UnigramEntropyNats(Write("ab", "abab")), std::log(2.0), 1e-15);
  EXPECT_NEAR(*UnigramEntropyNats(Write("aab", "aaab")),
              0.75 * std::log(4.0 / 3.0) + 0.25 * std::log(4.0), 1e-15);
  EXPECT_EQ(UnigramEntropyNats((directory_ / "missing").string()).status().code(),
            StatusCode::kNotFound);
}

}  // namespace
}  // namespace meshwright::runtime
