// SPDX-License-Identifier: Apache-2.0
// guest/calls/stream_extras.cc: attributes of streams, and batches of memory operations. Source:
// CUDA Driver API, Stream Management, Stream Memory Operations.
#include <string.h>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

// "Maximum number of operations" of a batch: cuStreamBatchMemOp, count.
constexpr unsigned kBatchMax = 256;

// Attributes are hints to the device, or to how a thread waits, which we decide ourselves: they are
// kept, so that a program reads what it wrote, and have no effect.
constexpr CUstreamAttrID kKept[kStreamAttributesKept] = {
    CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY,
    CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN};

int IndexOf(CUstreamAttrID attribute) {
  for (int i = 0; i < kStreamAttributesKept; ++i) {
    if (kKept[i] == attribute) return i;
  }
  return -1;
}

// The stream's attributes, as they begin if it had none yet. stream_mutex held.
StreamAttributes* AttributesOf(const StreamRef& stream) {
  Runtime* runtime = GetRuntime();
  for (StreamAttributes& attributes : runtime->stream_attributes) {
    if (attributes.context_id == stream.context->id && attributes.stream_id == stream.id)
      return &attributes;
  }
  StreamAttributes attributes;
  attributes.context_id = stream.context->id;
  attributes.stream_id = stream.id;
  attributes.values[1].syncPolicy = CU_SYNC_POLICY_AUTO;
  attributes.values[2].memSyncDomainMap = {0, 1};
  runtime->stream_attributes.push_back(attributes);
  return &runtime->stream_attributes.back();
}

bool Valid(CUstreamAttrID attribute, const CUstreamAttrValue& value) {
  switch (attribute) {
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      return value.accessPolicyWindow.hitRatio >= 0 && value.accessPolicyWindow.hitRatio <= 1;
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return value.syncPolicy >= CU_SYNC_POLICY_AUTO &&
             value.syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC;
    default:
      return true;
  }
}

}  // namespace

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue* value_out,
                              DefaultStream default_stream) {
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (attr == CU_STREAM_ATTRIBUTE_PRIORITY) {
    value_out->priority = stream.priority;
    return CUDA_SUCCESS;
  }
  const int index = IndexOf(attr);
  if (index < 0) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->stream_mutex);
  *value_out = AttributesOf(stream)->values[index];
  return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue* value,
                              DefaultStream default_stream) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (attr == CU_STREAM_ATTRIBUTE_PRIORITY) {
    if (value->priority == stream.priority) return CUDA_SUCCESS;
    NoteUnsupported("cuStreamSetAttribute", "another priority for a stream that is there");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const int index = IndexOf(attr);
  if (index < 0 || !Valid(attr, *value)) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->stream_mutex);
  AttributesOf(stream)->values[index] = *value;
  return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src, DefaultStream default_stream) {
  StreamRef to, from;
  if (CUresult result = FindStream(dst, default_stream, &to); result != CUDA_SUCCESS) return result;
  if (CUresult result = FindStream(src, default_stream, &from); result != CUDA_SUCCESS)
    return result;
  if (to.context != from.context) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->stream_mutex);
  const StreamAttributes values = *AttributesOf(from);
  memcpy(AttributesOf(to)->values, values.values, sizeof(values.values));
  return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* paramArray, unsigned int flags,
                               DefaultStream default_stream) {
  if (count > kBatchMax || flags != 0 || (paramArray == nullptr && count != 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  StreamRef found;
  if (CUresult result = FindStream(stream, default_stream, &found); result != CUDA_SUCCESS)
    return result;
  // All is checked before anything is sent.
  bool barriers = false;
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& operation = paramArray[i];
    uint64_t width = 8;
    switch (operation.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        width = 4;
        [[fallthrough]];
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        if ((operation.waitValue.flags & ~3u) != 0) return CUDA_ERROR_INVALID_VALUE;
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        width = 4;
        [[fallthrough]];
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        if ((operation.writeValue.flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) != 0)
          return CUDA_ERROR_INVALID_VALUE;
        break;
      case CU_STREAM_MEM_OP_BARRIER:
        barriers = true;
        continue;
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;  // CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (CUresult result =
            CheckDeviceRange(found.context, operation.waitValue.address, width, width);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& operation = paramArray[i];
    const auto& wait = operation.waitValue;
    const auto& write = operation.writeValue;
    // A barrier is each write's own: those have one unless they ask for none.
    const unsigned write_flags = barriers ? 0 : write.flags;
    CUresult result = CUDA_SUCCESS;
    switch (operation.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        result =
            cuStreamWaitValue32_v2(stream, wait.address, wait.value, wait.flags, default_stream);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        result =
            cuStreamWaitValue64_v2(stream, wait.address, wait.value64, wait.flags, default_stream);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        result = cuStreamWriteValue32_v2(stream, write.address, write.value, write_flags,
                                         default_stream);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        result = cuStreamWriteValue64_v2(stream, write.address, write.value64, write_flags,
                                         default_stream);
        break;
      default:
        break;
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace consort::guest::calls
