#include "runtime/file_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "runtime/deadline.h"
#include "runtime/store_values.h"
#include "runtime/tcp_socket.h"

namespace meshwright::runtime {
namespace {

namespace fs = std::filesystem;

constexpr double kFirstLookS = 0.0005;
constexpr double kLastLookS = 0.01;
constexpr char kValuePrefix[] = "v-";  // of names of values; others are temporary, or the lock
constexpr char kMemberKey[] = "store/member/";
constexpr char kLeftKey[] = "store/left/";

/// A name of a file for any text: letters, digits, '.', '-' and '_' stay, others become %xx.
std::string FileName(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || (c == '.' && !out.empty());
    out += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string TextOf(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '%' || i + 2 >= name.size()) {
      out += name[i];
      continue;
    }
    out += static_cast<char>(std::strtol(name.substr(i + 1, 2).c_str(), nullptr, 16));
    i += 2;
  }
  return out;
}

/// Which process this is, on which host.
std::string ProcessName() {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return fmt::format("{}-{}", FileName(host).substr(0, 64), getpid());
}

class FileStore final : public Store {
 public:
  FileStore(const StoreOptions& options, const std::string& directory)
      : options_(options),
        folder_(fs::path(directory) / ("meshwright-" + FileName(options.run_id))),
        process_(ProcessName()) {}
  ~FileStore() override;

  Status Open();

  std::string where() const override { return fmt::format("file store {}", folder_.string()); }
  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }

  Status Set(const std::string& key, std::string_view value) override;
  Result<std::string> SetOnce(const std::string& key, std::string_view value) override;
  Result<int64_t> Add(const std::string& key, int64_t delta) override;
  Status Remove(const std::string& key) override;
  Result<std::map<std::string, std::string>> List(const std::string& prefix) override;
  Result<std::optional<Found>> WaitAny(const std::vector<std::string>& keys,
                                       double deadline_s) override;

 private:
  std::string PathOf(const std::string& key) const {
    return (folder_ / (kValuePrefix + FileName(key))).string();
  }
  Status Failed(const std::string& call, const std::string& path) const {
    return RunFailed(fmt::format("{}: {} {}: {}", where(), call, path, ErrnoText(errno)));
  }
  /// Writes a new file and returns its path.
  Result<std::string> WriteTemporary(std::string_view value);
  Result<std::optional<std::string>> ReadValue(const std::string& key) const;

  const StoreOptions options_;
  const fs::path folder_;
  const std::string process_;
  std::atomic<int64_t> temporaries_{0};
  std::mutex add_mutex_;
  bool joined_ = false;
};

Status FileStore::Open() {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    return RunFailed(
        fmt::format("{}: cannot be made: {}; give a directory that all ranks can "
                    "write",
                    where(), error.message()));
  }
  const std::string world = std::to_string(options_.world);
  MW_ASSIGN_OR_RETURN(const std::string agreed, SetOnce("store/world", world));
  if (agreed != world) {
    return InvalidInput(
        fmt::format("{}: it serves a run of {} ranks, this is rank {} of {}; start "
                    "all ranks with the same world size",
                    where(), agreed, options_.rank, world));
  }
  const std::string mine = fmt::format("{}-{}", process_, static_cast<const void*>(this));
  MW_ASSIGN_OR_RETURN(const std::string member,
                      SetOnce(kMemberKey + std::to_string(options_.rank), mine));
  if (member != mine) {
    return InvalidInput(
        fmt::format("{}: rank {} is there already ({}); give each process a rank "
                    "and each run an id of its own, or remove what an earlier run "
                    "has left",
                    where(), options_.rank, member));
  }
  joined_ = true;
  return Status::Ok();
}

FileStore::~FileStore() {
  if (!joined_) return;
  const Status said = Set(kLeftKey + std::to_string(options_.rank), "");
  if (options_.rank != 0 || !said.ok()) return;
  const Deadline deadline(options_.linger_s);
  while (true) {
    const auto left = List(kLeftKey);
    if (!left.ok() || left->size() >= static_cast<size_t>(options_.world) || deadline.passed()) {
      break;
    }
    deadline.Sleep(kLastLookS);
  }
  std::error_code ignored;  // the file system may be gone
  fs::remove_all(folder_, ignored);
}

Result<std::string> FileStore::WriteTemporary(std::string_view value) {
  const std::string path =
      (folder_ / fmt::format("t-{}-{}-{}", options_.rank, process_, temporaries_++)).string();
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return Failed("open", path);
  while (!value.empty()) {
    const ssize_t n = write(file.get(), value.data(), value.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("write", path);
    value.remove_prefix(static_cast<size_t>(n));
  }
  if (fsync(file.get()) != 0) return Failed("fsync", path);
  return path;
}

Status FileStore::Set(const std::string& key, std::string_view value) {
  MW_RETURN_IF_ERROR(CheckStoreValue(key, value));
  MW_ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(value));
  if (rename(temporary.c_str(), PathOf(key).c_str()) != 0) return Failed("rename", temporary);
  return Status::Ok();
}

Result<std::string> FileStore::SetOnce(const std::string& key, std::string_view value) {
  MW_RETURN_IF_ERROR(CheckStoreValue(key, value));
  MW_ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(value));
  const bool set = link(temporary.c_str(), PathOf(key).c_str()) == 0;
  const Status failed = set || errno == EEXIST ? Status::Ok() : Failed("link", temporary);
  unlink(temporary.c_str());
  MW_RETURN_IF_ERROR(failed);
  if (set) return std::string(value);
  MW_ASSIGN_OR_RETURN(auto stands, ReadValue(key));
  return stands ? std::move(*stands) : std::string(value);  // removed since
}

Result<int64_t> FileStore::Add(const std::string& key, int64_t delta) {
  MW_RETURN_IF_ERROR(CheckStoreKey(key));
  const std::lock_guard guard(add_mutex_);
  const std::string path = (folder_ / "lock").string();
  const FileDescriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return Failed("open", path);
  const Deadline deadline(options_.call_deadline_s);
  // The lock of a process ends with it.
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Failed("flock", path);
    if (deadline.passed()) {
      return RunFailed(fmt::format("{}: another process has held {} for {} s", where(), path,
                                   options_.call_deadline_s));
    }
    deadline.Sleep(kFirstLookS);
  }
  MW_ASSIGN_OR_RETURN(const auto old, ReadValue(key));
  MW_ASSIGN_OR_RETURN(const int64_t sum, AddToCounter(key, old ? *old : "", delta));
  MW_RETURN_IF_ERROR(Set(key, std::to_string(sum)));
  return sum;
}

Status FileStore::Remove(const std::string& key) {
  MW_RETURN_IF_ERROR(CheckStoreKey(key));
  const std::string path = PathOf(key);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return Failed("unlink", path);
  return Status::Ok();
}

Result<std::optional<std::string>> FileStore::ReadValue(const std::string& key) const {
  const std::string path = PathOf(key);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) return std::optional<std::string>();
    return Failed("open", path);
  }
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return Failed("fstat", path);
  if (!S_ISREG(facts.st_mode) || static_cast<uint64_t>(facts.st_size) > kMaxStoreValueBytes) {
    return RunFailed(fmt::format("{}: {} is no value of a store", where(), path));
  }
  std::string value(static_cast<size_t>(facts.st_size), '\0');
  size_t done = 0;
  while (done < value.size()) {
    const ssize_t n = read(file.get(), value.data() + done, value.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("read", path);
    done += static_cast<size_t>(n);
  }
  return std::optional<std::string>(std::move(value));
}

Result<std::map<std::string, std::string>> FileStore::List(const std::string& prefix) {
  MW_RETURN_IF_ERROR(CheckStoreKey(prefix));
  std::map<std::string, std::string> out;
  std::error_code error;
  fs::directory_iterator at(folder_, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.rfind(kValuePrefix, 0) != 0) continue;
    std::string key = TextOf(name.substr(sizeof(kValuePrefix) - 1));
    if (key.rfind(prefix, 0) != 0) continue;
    MW_ASSIGN_OR_RETURN(auto value, ReadValue(key));
    if (value) out.emplace(std::move(key), std::move(*value));
  }
  if (error) return RunFailed(fmt::format("{}: {}", where(), error.message()));
  return out;
}

Result<std::optional<Store::Found>> FileStore::WaitAny(const std::vector<std::string>& keys,
                                                       double deadline_s) {
  if (keys.empty() || keys.size() > kMaxStoreWaitKeys) {
    return InvalidInput(
        fmt::format("{} keys to wait for; 1..{} are allowed", keys.size(), kMaxStoreWaitKeys));
  }
  for (const std::string& key : keys) MW_RETURN_IF_ERROR(CheckStoreKey(key));
  const Deadline deadline(deadline_s);
  double pause_s = kFirstLookS;
  while (true) {
    for (size_t i = 0; i < keys.size(); ++i) {
      MW_ASSIGN_OR_RETURN(auto value, ReadValue(keys[i]));
      if (value) return std::optional<Found>(Found{i, std::move(*value)});
    }
    if (deadline.passed()) return std::optional<Found>();
    deadline.Sleep(pause_s);
    pause_s = std::min(pause_s * 1.5, kLastLookS);
  }
}

}  // namespace

Result<std::unique_ptr<Store>> OpenFileStore(const StoreOptions& options,
                                             const std::string& directory) {
  MW_RETURN_IF_ERROR(CheckStoreOptions(options));
  if (directory.empty()) return InvalidInput("file store: a directory is needed");
  auto store = std::make_unique<FileStore>(options, directory);
  MW_RETURN_IF_ERROR(store->Open());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace meshwright::runtime
