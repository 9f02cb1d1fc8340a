// SPDX-License-Identifier: Apache-2.0
// host/daemon/status_json.h: a DaemonStatus as JSON, for consortctl and other programs.
//
//   {"schema":1,"version":"0.1.0","started":1772366400,
//    "devices":[{"index":0,"model":"NVIDIA H200","uuid":"GPU-...","state":"ready",
//                "memory_total_bytes":150754820096,"sessions":1,...}],
//    "tenants":[{"tenant":"web-1","sessions":1,"calls":4100,...}],
//    "sessions":[{"id":7,"tenant":"web-1","application":"python3","pid":812,"device":0,...}],
//    "vms":[{"name":"web-1","socket":"/run/consort/web-1.sock","shared_memory_bytes":268435456,
//            "shared_memory_lent_bytes":8388608}],
//    "pool":{"pool":"default","node":"a","joined":true,"mapper":"b","nodes":[...],"gpus":[...],
//            "assemblies":[...]}}
// Bytes are whole numbers, times are seconds. What is not known is left out.
#ifndef CONSORT_HOST_DAEMON_STATUS_JSON_H_
#define CONSORT_HOST_DAEMON_STATUS_JSON_H_

#include <string>

#include "host/daemon/status.h"

namespace consort::host {

// One line, newline included.
std::string StatusJson(const DaemonStatus& status);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_STATUS_JSON_H_
