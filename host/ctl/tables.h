// SPDX-License-Identifier: Apache-2.0
// host/ctl/tables.h: parts of consortd's state that have a command of their own. Pure functions.
#ifndef CONSORT_HOST_CTL_TABLES_H_
#define CONSORT_HOST_CTL_TABLES_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace consort::host {

// Open sessions, of one tenant or (empty) of all, in consortd's form.
nlohmann::ordered_json ApplicationsOf(const nlohmann::ordered_json& status,
                                      const std::string& tenant);
std::string ApplicationTable(const nlohmann::ordered_json& applications, uint64_t now);

// Machines that have a socket, each with the number of its open sessions.
nlohmann::ordered_json MachinesOf(const nlohmann::ordered_json& status);
std::string MachineTable(const nlohmann::ordered_json& machines);

// "events" of /api/v1/page.
std::string EventTable(const nlohmann::ordered_json& events);

// How schedulers' traces stand: GET /api/v1/trace.
std::string TraceTable(const nlohmann::ordered_json& trace);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_TABLES_H_
