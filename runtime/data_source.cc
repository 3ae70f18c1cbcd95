#include "runtime/data_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/counter_random.h"

namespace meshwright::runtime {
namespace {

constexpr std::array<const char*, 5> kFormatNames = {"auto", "bytes", "uint16", "uint32", "mock"};
constexpr int64_t kByteVocab = 256;
constexpr int64_t kLargestSixteenBitVocab = 65536;
/// Streams of the generator, so that windows and mock tokens are unrelated.
constexpr uint64_t kWindowStream = 1;
constexpr uint64_t kMockStream = 2;

/// Global sample index; checks what a caller may get wrong.
Result<int64_t> GlobalIndex(const DataOptions& options, int64_t step, int64_t sample,
                            int64_t sequence) {
  MW_CHECK(sequence > 0 && sequence <= options.sequence);
  MW_CHECK(step >= 0 && sample >= 0 && sample < options.global_batch);
  if (step > std::numeric_limits<int64_t>::max() / options.global_batch - 1) {
    return InvalidInput(fmt::format("step {} with {} samples a step: too many samples to count",
                                    step, options.global_batch));
  }
  return step * options.global_batch + sample;
}

class MockSource : public DataSource {
 public:
  explicit MockSource(const DataOptions& options) : options_(options) {}

  Status Read(int64_t step, int64_t sample, int64_t sequence, int32_t* tokens) override {
    MW_ASSIGN_OR_RETURN(const int64_t index, GlobalIndex(options_, step, sample, sequence));
    // One key a sample: its tokens are counters 0, 1, ...
    const uint64_t key = Philox(options_.seed, kMockStream, static_cast<uint64_t>(index))[0];
    for (int64_t i = 0; i <= sequence; ++i) {
      const uint64_t word = Philox(key, kMockStream, static_cast<uint64_t>(i))[0];
      tokens[i] = static_cast<int32_t>(UniformBelow(word, options_.vocab));
    }
    return Status::Ok();
  }

 private:
  DataOptions options_;
};

/// A regular file open for reading. Move-only.
class File {
 public:
  static Result<File> Open(const std::string& path) {
    // Not blocking: opening a pipe must not wait for a writer.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
      return NotFound(
          fmt::format("data file {}: cannot be opened: {}; give a readable file or \"mock\"", path,
                      std::strerror(errno)));
    }
    File file(path, descriptor);
    struct stat info = {};
    if (::fstat(descriptor, &info) != 0) {
      return InvalidInput(fmt::format("data file {}: {}", path, std::strerror(errno)));
    }
    if (!S_ISREG(info.st_mode)) {
      return InvalidInput(fmt::format("data file {}: {}, must be a regular file", path,
                                      S_ISDIR(info.st_mode) ? "is a directory" : "is not a file"));
    }
    file.bytes_ = static_cast<int64_t>(info.st_size);
    if (file.bytes_ == 0) return InvalidInput(fmt::format("data file {}: is empty", path));
    return file;
  }
  File(File&& other) noexcept
      : path_(std::move(other.path_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        bytes_(other.bytes_) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File& operator=(File&&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }

  /// Reads exactly `count` bytes at `offset`.
  Status ReadAt(int64_t offset, int64_t count, uint8_t* out) const {
    while (count > 0) {
      const ssize_t got = ::pread(descriptor_, out, static_cast<size_t>(count), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        return RunFailed(fmt::format(
            "data file {}: at byte {}: {}", path_, offset,
            got == 0 ? "the file has become shorter during the run" : std::strerror(errno)));
      }
      out += got;
      offset += got;
      count -= got;
    }
    return Status::Ok();
  }

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

class FileSource : public DataSource {
 public:
  FileSource(const DataOptions& options, File file, int64_t width)
      : options_(options), file_(std::move(file)), width_(width) {}

  Status Read(int64_t step, int64_t sample, int64_t sequence, int32_t* tokens) override {
    MW_ASSIGN_OR_RETURN(const int64_t index, GlobalIndex(options_, step, sample, sequence));
    const int64_t first = Start(index);
    std::array<uint8_t, 4096> buffer;
    const int64_t buffer_tokens = static_cast<int64_t>(buffer.size()) / width_;
    for (int64_t done = 0; done <= sequence;) {
      const int64_t count = std::min(buffer_tokens, sequence + 1 - done);
      MW_RETURN_IF_ERROR(file_.ReadAt((first + done) * width_, count * width_, buffer.data()));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t id = Decode(buffer.data() + i * width_);
        if (id >= options_.vocab) return BadId(id, first + done + i);
        tokens[done + i] = static_cast<int32_t>(id);
      }
      done += count;
    }
    return Status::Ok();
  }

 private:
  /// First token of a sample's window of sequence + 1 tokens.
  int64_t Start(int64_t index) const {
    const int64_t starts = file_.bytes() / width_ - options_.sequence;  // at least 1
    if (options_.sampling == Sampling::kRandom) {
      const uint64_t word = Philox(options_.seed, kWindowStream, static_cast<uint64_t>(index))[0];
      return UniformBelow(word, starts);
    }
    // Disjoint inputs: the last token of a window is the first of the next one.
    const int64_t windows = (starts - 1) / options_.sequence + 1;
    return index % windows * options_.sequence;
  }

  int64_t Decode(const uint8_t* at) const {
    int64_t id = 0;
    for (int64_t i = width_ - 1; i >= 0; --i) id = id << 8 | at[i];
    return id;
  }

  Status BadId(int64_t id, int64_t token) const {
    return InvalidInput(
        fmt::format("data file {}: token id {} at byte {} is outside the vocabulary of {}; the "
                    "file was made with "
                    "another tokenizer or holds ids of another width ({} bits read)",
                    file_.path(), id, token * width_, options_.vocab, 8 * width_));
  }

  DataOptions options_;
  File file_;
  int64_t width_;  ///< bytes of a token
};

DataFormat FormatOf(const DataOptions& options) {
  if (options.format != DataFormat::kAuto) return options.format;
  const std::string& path = options.path;
  if (path == "mock") return DataFormat::kMock;
  if (path.ends_with(".u16")) return DataFormat::kTokens16;
  if (path.ends_with(".u32")) return DataFormat::kTokens32;
  if (path.ends_with(".bin")) {
    return options.vocab <= kLargestSixteenBitVocab ? DataFormat::kTokens16 : DataFormat::kTokens32;
  }
  return DataFormat::kBytes;
}

}  // namespace

std::string ToString(DataFormat format) {
  return kFormatNames[static_cast<size_t>(format)];
}

Result<DataFormat> ParseDataFormat(const std::string& text) {
  for (size_t i = 0; i < kFormatNames.size(); ++i) {
    if (text == kFormatNames[i]) return static_cast<DataFormat>(i);
  }
  return InvalidInput(
      fmt::format("data format \"{}\" is unknown; use {}", text, fmt::join(kFormatNames, ", ")));
}

Result<std::unique_ptr<DataSource>> OpenDataSource(const DataOptions& options) {
  if (options.vocab < 1 || options.vocab > std::numeric_limits<int32_t>::max()) {
    return InvalidInput(
        fmt::format("vocabulary of {}: must lie between 1 and 2^31 - 1", options.vocab));
  }
  if (options.sequence < 1 || options.global_batch < 1) {
    return InvalidInput(fmt::format("sequence of {} tokens, global batch of {}: both must be >= 1",
                                    options.sequence, options.global_batch));
  }
  const DataFormat format = FormatOf(options);
  if (format == DataFormat::kMock) {
    return std::unique_ptr<DataSource>(std::make_unique<MockSource>(options));
  }
  if (format == DataFormat::kBytes && options.vocab < kByteVocab) {
    return InvalidInput(
        fmt::format("data file {}: bytes need a vocabulary of at least {}, the model has {}; use a "
                    "larger vocabulary "
                    "or a file of token ids (.bin)",
                    options.path, kByteVocab, options.vocab));
  }
  const int64_t width = format == DataFormat::kBytes ? 1 : format == DataFormat::kTokens16 ? 2 : 4;
  MW_ASSIGN_OR_RETURN(File file, File::Open(options.path));
  if (file.bytes() % width != 0) {
    return InvalidInput(
        fmt::format("data file {}: {} bytes are no whole number of {}-bit token ids; "
                    "the file is cut off or of another format",
                    options.path, file.bytes(), 8 * width));
  }
  const int64_t tokens = file.bytes() / width;
  if (tokens <= options.sequence) {
    return InvalidInput(
        fmt::format("data file {}: holds {} tokens, a sample needs {} (sequence + 1); use a longer "
                    "file or a shorter "
                    "sequence",
                    options.path, tokens, options.sequence + 1));
  }
  return std::unique_ptr<DataSource>(std::make_unique<FileSource>(options, std::move(file), width));
}

Result<double> UnigramEntropyNats(const std::string& path) {
  MW_ASSIGN_OR_RETURN(const File file, File::Open(path));
  std::array<int64_t, 256> counts = {};
  std::array<uint8_t, 65536> buffer;
  for (int64_t at = 0; at < file.bytes();) {
    const int64_t count = std::min(static_cast<int64_t>(buffer.size()), file.bytes() - at);
    MW_RETURN_IF_ERROR(file.ReadAt(at, count, buffer.data()));
    for (int64_t i = 0; i < count; ++i) ++counts[buffer[static_cast<size_t>(i)]];
    at += count;
  }
  double entropy = 0.0;
  for (int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(file.bytes());
    entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace meshwright::runtime
