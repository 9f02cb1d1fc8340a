// SPDX-License-Identifier: Apache-2.0
#ifndef CONSORT_GUEST_EXPORT_TABLES_H_
#define CONSORT_GUEST_EXPORT_TABLES_H_

#include <cstdint>

namespace consort::guest {

// The private table named `uuid`, valid for the process's life; null if it is none that we answer.
const void* FindExportTable(const uint8_t uuid[16]);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_EXPORT_TABLES_H_
