// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/upgrade_command.h"

#include <time.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "host/ctl/admin_client.h"
#include "host/ctl/json_fields.h"
#include "host/limits.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPath[] = "/api/v1/upgrade";
// Between two questions how it goes.
constexpr timespec kUpgradeAskEvery = {0, 20'000'000};
// The rehearsal's bound, and as long again for what comes before and after it.
constexpr int kAsksMax = static_cast<int>(2 * kRehearsalMax / (20 * kMillisecond));

}  // namespace

absl::Status UpgradeDaemon(const std::string& admin_socket, std::ostream& out) {
  ASSIGN_OR_RETURN(const Json before, AdminGetJson(admin_socket, kPath));
  RETURN_IF_ERROR(AdminPut(admin_socket, kPath, Json::object()));
  absl::Status last = absl::UnavailableError("consortd does not say how it went");
  for (int i = 0; i < kAsksMax; ++i) {
    nanosleep(&kUpgradeAskEvery, nullptr);
    // One of them may be asked while the one that it is asked of goes.
    const auto upgrade = AdminGetJson(admin_socket, kPath);
    if (!upgrade.ok()) {
      last = upgrade.status();
      continue;
    }
    if (NumberOf(*upgrade, "number") <= NumberOf(before, "number")) continue;
    const std::string state = TextOf(*upgrade, "state");
    if (state == "refused") {
      return absl::FailedPreconditionError(
          absl::StrCat("consortd goes on as it was: ", TextOf(*upgrade, "text")));
    }
    if (state == "done") {
      out << "consortd " << TextOf(before, "version") << " went on as "
          << TextOf(*upgrade, "version") << "\n";
      return absl::OkStatus();
    }
  }
  return last;
}

}  // namespace consort::host
