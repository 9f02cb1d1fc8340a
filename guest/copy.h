// SPDX-License-Identifier: Apache-2.0
// guest/copy.h: what a batch of copies (guest/calls/copy_batch.cc) takes of what sends all copies
// (guest/calls/copy.cc). PrepareCopy in guest/graph.h checks one without sending it.
#ifndef CONSORT_GUEST_COPY_H_
#define CONSORT_GUEST_COPY_H_

#include <cuda.h>

#include <cstdint>

namespace consort::guest {

struct StreamRef;

// Copies in the order of the stream, or makes the copy a node if that is captured. `order`, one of
// STREAM, DURING_API_CALL and ANY, says when the source may be read: pageable memory, too, waits
// for earlier host functions of the stream with the first, and everything has been read at return
// with the second, for which a source that only the device reads costs waiting for the stream. A
// destination in pageable memory is written at return.
// Errors: PrepareCopy's; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: DURING_API_CALL in a capture, which
// it invalidates; of the session. Any thread.
// Source: CUDA Driver API, Memory Management, cuMemcpyBatchAsync.
CUresult EnqueueCopy(const StreamRef& stream, const CUDA_MEMCPY3D& copy,
                     CUmemcpySrcAccessOrder order);

// Bytes of a channel in an array of that format; 0: one that is not of plain channels.
uint64_t ChannelBytes(CUarray_format format);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_COPY_H_
