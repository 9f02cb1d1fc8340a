// SPDX-License-Identifier: Apache-2.0
#include "guest/thread_state.h"

#include <pthread.h>

#include "guest/call.h"
#include "guest/runtime.h"
#include "guest/session.h"

namespace consort::guest {
namespace {

pthread_key_t key;
pthread_once_t key_once = PTHREAD_ONCE_INIT;
// The key's value again, without the call.
thread_local ThreadState* current = nullptr;

void End(void* value) {
  auto* thread = static_cast<ThreadState*>(value);
  current = thread;  // the requests below need it
  Runtime* runtime = GetRuntime();
  for (const ThreadState::PerThreadStream& stream : thread->streams) {
    Context* context = runtime->contexts.Find(stream.context_id);
    if (runtime->streams.Destroy(stream.stream_id) && context != nullptr) {
      wire::StreamDestroyRequest request;
      request.stream = stream.stream_id;
      Post(context, request);
    }
  }
  for (const ThreadState::Slot& slot : thread->slots) slot.session->ReturnSlot(slot.slot);
  current = nullptr;
  delete thread;
}

void MakeKey() { pthread_key_create(&key, End); }

}  // namespace

ThreadState& CurrentThread() {
  if (current == nullptr) {
    pthread_once(&key_once, MakeKey);
    current = new ThreadState;
    pthread_setspecific(key, current);
  }
  return *current;
}

}  // namespace consort::guest
