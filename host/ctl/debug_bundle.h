// SPDX-License-Identifier: Apache-2.0
// host/ctl/debug_bundle.h: one file with what somebody who looks for a fault asks for first.
//
// A tar archive (POSIX ustar) of state, metrics, configuration, host and log. What could not be had
// is named in missing.txt; nothing of a guest's memory or data is in it, but names are.
#ifndef CONSORT_HOST_CTL_DEBUG_BUNDLE_H_
#define CONSORT_HOST_CTL_DEBUG_BUNDLE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace consort::host {

struct BundleSources {
  std::string admin_socket;
  std::string configuration = "/etc/consort";
  std::string options_file = "/etc/default/consortd";
  std::string version;
};

// A file of a tar archive: header, bytes, padding. `name` has at most 100 bytes.
std::string TarFile(const std::string& name, std::string_view bytes, uint64_t unix_seconds);
// What ends an archive.
std::string TarEnd();

// Writes the archive to `path`, for its owner only. kAlreadyExists: there is such a file.
absl::Status WriteDebugBundle(const BundleSources& sources, const std::string& path,
                              uint64_t unix_seconds);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_DEBUG_BUNDLE_H_
