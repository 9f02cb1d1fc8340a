// SPDX-License-Identifier: Apache-2.0
// gpool/limits.h: every bound of the pool, with its reason. Constants only.
#ifndef CONSORT_GPOOL_LIMITS_H_
#define CONSORT_GPOOL_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace consort::gpool {

// One call of a store. etcd's own time for a request without a majority is 7 s; who asks can go on
// with what it knows long before.
inline constexpr Nanos kStoreCallTimeout = 2 * kSecond;
// Of it, the time for one member of a cluster to take a connection: so that all of three can be
// tried.
inline constexpr Nanos kStoreConnectTimeout = 600 * kMillisecond;
// A watch that was silent so long is made anew from a whole reading: a member that is cut off from
// its cluster, or has lost the watch, says nothing.
inline constexpr Nanos kWatchSilence = 10 * kSecond;
// Between tries of what failed.
inline constexpr Nanos kStoreRetry = 500 * kMillisecond;
// An answer of a store: a thousand nodes of eight GPUs take some MiB.
inline constexpr size_t kStoreAnswerBytesMax = 64 * kMiB;

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_LIMITS_H_
