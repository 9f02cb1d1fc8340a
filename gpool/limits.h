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

// A node that does not keep its lease alive is out of the pool after so long. Below five seconds a
// change of etcd's own leader looks like the death of a node.
inline constexpr int kNodeLeaseSeconds = 5;
// A change of a tenant that others were faster than is tried again so often; people make them.
inline constexpr int kTenantChangeTries = 8;

// How long an application waits for its place while the pool changes its mapper; a guest waits
// longer than that for its first answer.
inline constexpr Nanos kPlaceTimeout = 4 * kSecond;
// A new mapper waits so long for all nodes to tell what they use before it decides.
inline constexpr Nanos kGatherTime = 1500 * kMillisecond;
// How often what waits for the mapper is tried again, and how often it is asked and told what is
// not urgent.
inline constexpr Nanos kRpcTick = 50 * kMillisecond;
inline constexpr Nanos kLoadsEvery = 1 * kSecond;
// One message of a node: a thousand applications of sixteen GPUs take some hundred kilobytes.
inline constexpr size_t kRpcMessageBytesMax = 16 * kMiB;
// GPUs whose measured weights differ by less count as equal: two of a kind in a host, or one at two
// temperatures, differ by a few hundredths; from one generation to the next it is half as much
// again or more.
inline constexpr double kEqualWeights = 1.25;
// Measurements that the pool keeps, and that a node keeps while there is no mapper: a value in etcd
// has at most 1.5 MiB.
inline constexpr size_t kFeedbackKept = 512;

// Links between nodes (link.h), a thread each: sessions of other nodes' applications, and a few for
// requests.
inline constexpr uint32_t kLinksMax = 16 * 64 + 64;
// Of them, those that have not said who they are. More wait in the kernel's queue.
inline constexpr uint32_t kLinkGreetingsMax = 64;
// To connect, and for the greetings after that. A round trip over the widest network takes 0.3 s.
inline constexpr Nanos kLinkConnectTimeout = 3 * kSecond;
inline constexpr Nanos kLinkGreetingTimeout = 5 * kSecond;
// A peer that does not acknowledge is gone: after so long with bytes under way; asked so often, so
// many times, with none. A network that is cut ends its sessions within this time.
inline constexpr Nanos kLinkSilence = 10 * kSecond;
inline constexpr int kLinkProbeSeconds = 2;
inline constexpr int kLinkProbes = 4;
// Each direction of a relay: two of the largest frames, so that one is written while the next is
// read.
inline constexpr size_t kRelayBufferBytes = 2 * 513 * kKiB;
// Of each direction of a link: what goes to its socket, or comes from it, at a time. A record has
// 16 KiB; with a system call for each relays took a third more of a processor's time
// (gpool_link_bench).
inline constexpr size_t kLinkBufferBytes = 256 * kKiB;
// How long a relay looks for more before it sleeps: longer than a busy program is silent between
// two launches, and than a short kernel takes.
inline constexpr Nanos kRelaySpin = 100 * kMicrosecond;
// What the other node gets to take the last bytes of a session.
inline constexpr Nanos kRelayLinger = 10 * kSecond;

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_LIMITS_H_
