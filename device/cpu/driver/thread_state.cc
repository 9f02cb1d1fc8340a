// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/thread_state.h"

#include <algorithm>

namespace consort::cpu {

ThreadState::~ThreadState() {
  for (const std::shared_ptr<Stream>& stream : default_streams_) stream->Close();
}

void ThreadState::SetCurrent(CUcontext context) {
  if (!stack_.empty()) stack_.pop_back();
  if (context != nullptr) stack_.push_back(context);
}

CUcontext ThreadState::Pop() {
  if (stack_.empty()) return nullptr;
  const CUcontext context = stack_.back();
  stack_.pop_back();
  return context;
}

std::shared_ptr<Stream> ThreadState::DefaultStream(const std::shared_ptr<Context>& context) {
  std::erase_if(default_streams_,
                [](const auto& stream) { return stream->context()->destroyed(); });
  for (const std::shared_ptr<Stream>& stream : default_streams_) {
    if (stream->context() == context) return stream;
  }
  default_streams_.push_back(context->NewStream(CU_STREAM_DEFAULT, 0));
  return default_streams_.back();
}

ThreadState& ThisThread() {
  thread_local ThreadState state;
  return state;
}

}  // namespace consort::cpu
