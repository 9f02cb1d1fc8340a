// SPDX-License-Identifier: Apache-2.0
// host/ctl/json_fields.h: fields of consortd's answers that may be missing, for tables. Pure
// functions.
#ifndef CONSORT_HOST_CTL_JSON_FIELDS_H_
#define CONSORT_HOST_CTL_JSON_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace consort::host {

// "-" where there is none. Throws nlohmann::json::type_error: it is no text.
inline std::string TextOf(const nlohmann::ordered_json& object, const char* key) {
  return object.value(key, std::string("-"));
}

// 0 where there is none. Throws nlohmann::json::type_error: it is no number.
inline uint64_t NumberOf(const nlohmann::ordered_json& object, const char* key) {
  return object.value(key, uint64_t{0});
}

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_JSON_FIELDS_H_
