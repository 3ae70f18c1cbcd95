#include "runtime/ranks_text.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "runtime/store.h"
#include "runtime/tcp_socket.h"

namespace meshwright::runtime {
namespace {

constexpr char kDone = '+', kFailed = '-';  // first byte of what a rank leaves

/// A file without a name, which forked processes share.
class Leaflet {
 public:
  Status Open() {
    file_ = FileDescriptor(memfd_create("meshwright", MFD_CLOEXEC));
    if (file_.valid()) return Status::Ok();
    return RunFailed("cannot make a file in memory: " + ErrnoText(errno));
  }
  bool Write(const std::string& text) const {
    size_t at = 0;
    while (at < text.size()) {
      const ssize_t wrote =
          pwrite(file_.get(), text.data() + at, text.size() - at, static_cast<off_t>(at));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return false;
      at += static_cast<size_t>(wrote);
    }
    return true;
  }
  std::string Read() const {
    std::string text;
    char piece[4096];
    while (true) {
      const ssize_t got = pread(file_.get(), piece, sizeof(piece), static_cast<off_t>(text.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return text;
      text.append(piece, static_cast<size_t>(got));
    }
  }

 private:
  FileDescriptor file_;
};

}  // namespace

Result<std::string> TextOfRanks(
    const SelfStartOptions& options,
    const std::function<Result<std::string>(const LaunchFacts&)>& body) {
  std::vector<Leaflet> leaflets(static_cast<size_t>(std::clamp(options.ranks, 1, 1024)));
  for (Leaflet& leaflet : leaflets) MW_RETURN_IF_ERROR(leaflet.Open());
  MW_ASSIGN_OR_RETURN(
      const SelfStartOutcome outcome, StartRanks(options, [&](const LaunchFacts& facts) {
        const Result<std::string> text = body(facts);
        const std::string left = text.ok() ? kDone + *text : kFailed + EncodeStatus(text.status());
        const bool wrote = leaflets[static_cast<size_t>(facts.rank)].Write(left);
        return ExitCode(text.ok() && !wrote ? RunFailed("no memory") : text.status());
      }));
  const int teller = outcome.exit_code == 0 ? 0 : std::max(outcome.rank, 0);
  const std::string left = leaflets[static_cast<size_t>(teller)].Read();
  if (outcome.exit_code == 0 && left.starts_with(kDone)) return left.substr(1);
  if (left.starts_with(kFailed)) return DecodeStatus(left.substr(1));
  return RunFailed(outcome.what.empty() ? fmt::format("rank {} left no answer", teller)
                                        : outcome.what);
}

}  // namespace meshwright::runtime
