// SPDX-License-Identifier: Apache-2.0
// base/status_macros.h: passing absl::Status up. The names are those of later Abseil releases.
#ifndef CONSORT_BASE_STATUS_MACROS_H_
#define CONSORT_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function if `expr`, an absl::Status, is not OK.
#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    absl::Status consort_status_ = (expr);             \
    if (!consort_status_.ok()) return consort_status_; \
  } while (false)

#define CONSORT_CONCAT_INNER_(a, b) a##b
#define CONSORT_CONCAT_(a, b) CONSORT_CONCAT_INNER_(a, b)

// Assigns the value of `expr`, an absl::StatusOr, to `lhs` (may declare); returns its status if not
// OK.
#define ASSIGN_OR_RETURN(lhs, expr) \
  CONSORT_ASSIGN_OR_RETURN_(CONSORT_CONCAT_(consort_statusor_, __LINE__), lhs, expr)
#define CONSORT_ASSIGN_OR_RETURN_(temp, lhs, expr) \
  auto temp = (expr);                              \
  if (!temp.ok()) return std::move(temp).status(); \
  lhs = *std::move(temp)

#endif  // CONSORT_BASE_STATUS_MACROS_H_
