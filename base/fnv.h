// SPDX-License-Identifier: Apache-2.0
// base/fnv.h: FNV-1a, a hash that is the same in every process and build, which absl::Hash and
// std::hash need not be. It tells apart what differs by chance, not what was made to be alike.
// Source: Fowler, Noll, Vo, Eastlake, "The FNV Non-Cryptographic Hash Algorithm"
// (draft-eastlake-fnv).
#ifndef CONSORT_BASE_FNV_H_
#define CONSORT_BASE_FNV_H_

#include <cstdint>

namespace consort {

inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;

// `hash`: of what came before; kFnvBasis: nothing. `part` is a byte; where whole numbers are parts
// it is FNV's step on them, for places that want no more than that.
constexpr uint64_t FnvStep(uint64_t hash, uint64_t part) { return (hash ^ part) * 0x100000001b3; }

}  // namespace consort

#endif  // CONSORT_BASE_FNV_H_
