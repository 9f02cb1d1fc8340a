// SPDX-License-Identifier: Apache-2.0
// host/ctl/status_table.h: tables for people. Pure functions.
#ifndef CONSORT_HOST_CTL_STATUS_TABLE_H_
#define CONSORT_HOST_CTL_STATUS_TABLE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace consort::host {

// Rows under a heading, columns aligned, numbers to the right where a heading ends with a space.
std::string Table(const std::vector<std::string>& headings,
                  const std::vector<std::vector<std::string>>& rows);

// "512 B", "1.5 MiB": three significant digits.
std::string HumanBytes(uint64_t bytes);

// consortd's state (host/daemon/status_json.h): devices, tenants and open sessions. `now` in
// seconds since 1970.
std::string StatusTables(const nlohmann::ordered_json& status, uint64_t now);

// How devices are shared: tenants with share and target, applications with what they do.
std::string TopTables(const nlohmann::ordered_json& status);

// Of the same state, what TopTables shows.
nlohmann::ordered_json TopJson(const nlohmann::ordered_json& status);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_STATUS_TABLE_H_
