// SPDX-License-Identifier: Apache-2.0
// guest/own_stream.h: a stream of our own, beside those of the program, for a scope.
#ifndef CONSORT_GUEST_OWN_STREAM_H_
#define CONSORT_GUEST_OWN_STREAM_H_

#include "guest/call.h"
#include "guest/runtime.h"

namespace consort::guest {

class OwnStream {
 public:
  explicit OwnStream(Context* context) {
    ref_.context = context;
    ref_.id = GetRuntime()->streams.Create([&](Stream* made, uint64_t id) {
      made->id = id;
      made->context_id = context->id;
    });
    wire::StreamCreateRequest request;
    request.stream = ref_.id;
    request.flags = CU_STREAM_NON_BLOCKING;
    Post(context, request);
  }
  ~OwnStream() {
    wire::StreamDestroyRequest request;
    request.stream = ref_.id;
    Post(ref_.context, request);
    GetRuntime()->streams.Destroy(ref_.id);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  const StreamRef& ref() const { return ref_; }

 private:
  StreamRef ref_;
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_OWN_STREAM_H_
