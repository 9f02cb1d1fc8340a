// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/debug_bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/unique_fd.h"
#include "host/ctl/admin_client.h"

namespace consort::host {
namespace {

constexpr size_t kTarBlock = 512;
// Of the log: some hours of a busy host.
constexpr char kLogCommand[] = "journalctl --unit=consortd --lines=5000 --no-pager 2>&1";

struct Collected {
  std::string archive;
  std::string missing;
  uint64_t now = 0;

  void Add(const std::string& name, std::string_view bytes) {
    archive += TarFile("consort-debug/" + name, bytes, now);
  }
  void Miss(const std::string& name, const std::string& why) {
    absl::StrAppend(&missing, name, ": ", why, "\n");
  }
};

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void AddFile(const std::string& name, const std::string& path, Collected* to) {
  const auto bytes = ReadFile(path);
  if (bytes.has_value()) {
    to->Add(name, *bytes);
  } else {
    to->Miss(name, absl::StrCat(path, ": ", strerror(errno)));
  }
}

void AddAnswer(const BundleSources& sources, const std::string& name, const std::string& path,
               Collected* to) {
  const absl::StatusOr<std::string> body = AdminGet(sources.admin_socket, path);
  if (body.ok()) {
    to->Add(name, *body);
  } else {
    to->Miss(name, std::string(body.status().message()));
  }
}

void AddLog(Collected* to) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(kLogCommand, "r"), &pclose);
  std::string text;
  char bytes[65536];
  size_t got;
  while (pipe != nullptr && (got = fread(bytes, 1, sizeof(bytes), pipe.get())) > 0) {
    text.append(bytes, got);
  }
  if (text.empty()) {
    to->Miss("log.txt", "journalctl said nothing");
  } else {
    to->Add("log.txt", text);
  }
}

std::string HostText() {
  std::string text;
  utsname name = {};
  if (uname(&name) == 0) {
    absl::StrAppend(&text, "kernel ", name.sysname, " ", name.release, " ", name.version, " ",
                    name.machine, "\n");
  }
  for (const char* path : {"/dev/kvm", "/dev/vhost-vsock", "/dev/vsock", "/dev/nvidiactl",
                           "/dev/nvidia0", "/dev/nvidia-uvm"}) {
    struct stat file;
    absl::StrAppend(&text, path, " ",
                    stat(path, &file) == 0
                        ? absl::StrFormat("mode %o uid %d gid %d", file.st_mode & 07777,
                                          file.st_uid, file.st_gid)
                        : std::string(strerror(errno)),
                    "\n");
  }
  return text;
}

void AddConfiguration(const std::string& folder, Collected* to) {
  std::error_code error;
  std::vector<std::string> paths;
  for (auto it = std::filesystem::recursive_directory_iterator(folder, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    // Keys and certificates of a pool stay where they are.
    if (it->is_regular_file(error) && it->path().extension() == ".toml") {
      paths.push_back(it->path());
    }
  }
  if (error) to->Miss("configuration", absl::StrCat(folder, ": ", error.message()));
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    AddFile("configuration/" + std::filesystem::relative(path, folder).string(), path, to);
  }
}

}  // namespace

std::string TarFile(const std::string& name, std::string_view bytes, uint64_t unix_seconds) {
  // Source: POSIX.1-2017, pax, "ustar Interchange Format".
  std::string header(kTarBlock, '\0');
  const auto put = [&header](size_t at, std::string_view text) {
    std::copy(text.begin(), text.end(), header.begin() + static_cast<ptrdiff_t>(at));
  };
  put(0, name.substr(0, 100));
  put(100, "0000600");
  put(108, "0000000");
  put(116, "0000000");
  put(124, absl::StrFormat("%011o", bytes.size()));
  put(136, absl::StrFormat("%011o", unix_seconds));
  put(148, "        ");  // the checksum counts as blanks
  put(156, "0");
  put(257, std::string("ustar\0", 6) + "00");
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  put(148, absl::StrFormat("%06o", sum) + std::string("\0 ", 2));
  std::string out = header + std::string(bytes);
  out.resize((out.size() + kTarBlock - 1) / kTarBlock * kTarBlock, '\0');
  return out;
}

std::string TarEnd() { return std::string(2 * kTarBlock, '\0'); }

absl::Status WriteDebugBundle(const BundleSources& sources, const std::string& path,
                              uint64_t unix_seconds) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    const std::string text = absl::StrCat(path, ": ", strerror(errno));
    return errno == EEXIST ? absl::AlreadyExistsError(text + "; name another file")
                           : absl::InternalError(text);
  }
  Collected all;
  all.now = unix_seconds;
  all.Add("version.txt", "consortctl " + sources.version + "\n");
  AddAnswer(sources, "status.json", "/api/v1/status", &all);
  AddAnswer(sources, "page.json", "/api/v1/page", &all);
  AddAnswer(sources, "metrics.txt", "/metrics", &all);
  AddConfiguration(sources.configuration, &all);
  AddFile("configuration/consortd.default", sources.options_file, &all);
  AddFile("host/os-release", "/etc/os-release", &all);
  AddFile("host/meminfo", "/proc/meminfo", &all);
  AddFile("host/cmdline", "/proc/cmdline", &all);
  AddFile("host/nvidia-driver", "/proc/driver/nvidia/version", &all);
  all.Add("host/host.txt", HostText());
  AddLog(&all);
  all.Add("missing.txt", all.missing);
  all.archive += TarEnd();
  size_t written = 0;
  while (written < all.archive.size()) {
    const ssize_t wrote =
        write(fd.get(), all.archive.data() + written, all.archive.size() - written);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const std::string why = strerror(errno);
      unlink(path.c_str());
      return absl::InternalError(absl::StrCat(path, ": ", why, "; name a file elsewhere"));
    }
    written += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

}  // namespace consort::host
