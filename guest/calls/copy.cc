// SPDX-License-Identifier: Apache-2.0
// guest/calls/copy.cc: every copy is rows of bytes between two sides, each of which is either
// reached by the worker at its address (device memory, shared host memory) or is this process's own
// memory, which crosses the channel. Source: CUDA Driver API, Memory Management; API
// synchronization behavior.
#include <string.h>

#include <bit>

#include "gen/guest/calls.h"
#include "guest/bulk_copy.h"
#include "guest/call.h"
#include "guest/copy.h"
#include "guest/host_reach.h"
#include "guest/own_stream.h"
#include "guest/peers.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

struct Side {
  uint64_t address = 0;
  uint64_t pitch = 0;        // bytes between rows
  bool addressable = false;  // by the worker
  bool host = false;         // host memory, shared or not
  bool pageable = false;     // host memory that CUDA does not know
  // Of several devices, the one whose worker reaches it; null: there is one device, or no worker
  // does. To the others it is the program's memory at `program_address`, if it is host memory.
  Device* device = nullptr;
  uint64_t mapped_for = 0;  // devices, by ordinal, whose workers reach it besides
  bool shared = false;      // pinned memory, which they can be made to reach (host_reach.h)
  uint64_t program_address = 0;
  bool lent = false;             // device memory that peers of that device can reach
  bool own = false;              // device memory that is not offered to other processes
  bool readable = false;         // host memory of the program's, at program_address
  const Array* array = nullptr;  // instead of an address
};

struct Rows {
  uint64_t width = 0;  // bytes
  uint64_t count = 0;
};

uint64_t Extent(const Side& side, const Rows& rows) {
  return side.pitch * (rows.count - 1) + rows.width;
}

// Completes `side` from what is known of its address, which becomes the worker's where the worker
// reaches it. `must_be_device`: the caller said so.
CUresult Classify(Side* side, const Rows& rows, bool must_be_device) {
  Allocation range;
  if (GetRuntime()->allocations.Find(side->address, &range)) {
    if (!GetRuntime()->allocations.Covers(range, side->address, Extent(*side, rows)))
      return CUDA_ERROR_INVALID_VALUE;
    side->addressable = Addressable(range.kind);
    side->host = !OnDevice(range.kind);
    side->lent = range.kind == MemoryKind::kDevice;
    // Memory of a pool is offered by other means.
    side->own = range.kind == MemoryKind::kGlobal ||
                (range.kind == MemoryKind::kDevice && !range.shared && range.pool_id == 0);
    side->readable =
        range.kind == MemoryKind::kSharedHost || range.kind == MemoryKind::kRegisteredHost;
    side->program_address = side->address;
    if (range.kind == MemoryKind::kRegisteredHost && range.other_start != 0) {
      side->address = range.other_start + (side->address - range.start);
      side->addressable = true;
    }
    // Where the device reaches registered memory there need be nothing of the program's.
    if (range.kind == MemoryKind::kRegisteredView)
      side->program_address = range.other_start + (side->address - range.start);
    if (side->addressable && GetRuntime()->device_count > 1) {
      side->device = DeviceOfAddress(side->address);
      // Variables of modules lie outside.
      const Context* context = GetRuntime()->contexts.Find(range.context_id);
      if (side->device == nullptr && context != nullptr) side->device = context->device;
      if (range.kind == MemoryKind::kSharedHost || range.kind == MemoryKind::kManaged)
        side->mapped_for = range.mapped_by;
      side->shared = range.kind == MemoryKind::kSharedHost;
      if (range.kind == MemoryKind::kVirtual && range.readable_by != 0) {
        side->mapped_for = range.readable_by;
        if (range.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
          side->device = &GetRuntime()->devices[std::countr_zero(range.readable_by)];
      }
    }
    if (must_be_device && !side->addressable) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
  }
  if (must_be_device || side->address == 0) return CUDA_ERROR_INVALID_VALUE;
  side->host = true;
  side->pageable = true;
  side->program_address = side->address;
  return CUDA_SUCCESS;
}

CUresult Synchronise(const StreamRef& stream) {
  wire::StreamSynchronizeRequest request;
  wire::EmptyReply reply;
  request.stream = stream.id;
  return Ask(stream.context, request, &reply);
}

// The bytes of `rows` if they are one run on both sides, and `least` or more; else 0.
uint64_t BulkBytes(const Side& to, const Side& from, const Rows& rows, uint64_t least) {
  const bool one_run = rows.count == 1 || (to.pitch == rows.width && from.pitch == rows.width);
  const uint64_t bytes = rows.width * rows.count;
  return one_run && bytes >= least ? bytes : 0;
}

// Whether a synchronous copy to `to` may precede what comes later instead of being waited for: only
// work of this session reaches where it goes, and no text has to come before the call returns.
bool MayGoAhead(const Context* context, const Side& to) {
  return to.own && context->device->reached_by.load(std::memory_order_relaxed) == 0 &&
         !MayHavePrinted(context);
}

// Sends rows of this process's memory to the device, in pieces. Runs on the calling thread. With
// *ahead each piece precedes what comes later as long as its stream is quiet; afterwards: whether
// all do.
CUresult SendRows(Context* context, uint64_t stream, const Side& to, const Side& from, Rows rows,
                  bool* ahead) {
  // Contiguous on both sides: one long row.
  if (to.pitch == rows.width && from.pitch == rows.width) rows = {rows.width * rows.count, 1};
  const auto* source = reinterpret_cast<const std::byte*>(from.address);
  wire::CopyToDeviceRequest request;
  request.stream = stream;
  request.dst_pitch = to.pitch;
  const auto send = [&] {
    if (*ahead) {
      request.precedes = 1;
      const CUresult result = context->device->session->PostAhead(context->wire_id, request, ahead);
      if (*ahead || result != CUDA_SUCCESS) return result;
      request.precedes = 0;
    }
    return Post(context, request);
  };
  if (rows.width > wire::kBulkBytesMax || rows.count == 1) {
    for (uint64_t row = 0; row < rows.count; ++row) {
      for (uint64_t column = 0; column < rows.width; column += wire::kBulkBytesMax) {
        const uint64_t left = rows.width - column;
        request.width = left < wire::kBulkBytesMax ? left : wire::kBulkBytesMax;
        request.rows = 1;
        request.dst = to.address + row * to.pitch + column;
        request.data = {source + row * from.pitch + column, request.width};
        if (CUresult result = send(); result != CUDA_SUCCESS) return result;
      }
    }
    return CUDA_SUCCESS;
  }
  const uint64_t rows_a_piece = wire::kBulkBytesMax / rows.width;
  std::vector<std::byte> packed;
  request.width = rows.width;
  for (uint64_t row = 0; row < rows.count; row += rows_a_piece) {
    const uint64_t left = rows.count - row;
    request.rows = left < rows_a_piece ? left : rows_a_piece;
    packed.resize(request.rows * rows.width);
    for (uint64_t i = 0; i < request.rows; ++i) {
      memcpy(&packed[i * rows.width], source + (row + i) * from.pitch, rows.width);
    }
    request.dst = to.address + row * to.pitch;
    request.data = packed;
    if (CUresult result = send(); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// A copy from pinned memory that must be read when the stream gets there, not now.
struct DeferredCopy {
  Context* context;
  Side to;
  Side from;
  Rows rows;
};

void RunDeferredCopy(void* argument) {
  auto* copy = static_cast<DeferredCopy*>(argument);
  {
    // The program's stream is held until this returns, so another one carries the data.
    const OwnStream stream(copy->context);
    bool ahead = false;
    SendRows(copy->context, stream.ref().id, copy->to, copy->from, copy->rows, &ahead);
    Synchronise(stream.ref());
  }
  delete copy;
}

CUresult ToDevice(const StreamRef& stream, const Side& to, const Side& from, const Rows& rows,
                  bool synchronous) {
  Session* session = stream.context->device->session;
  if (!from.pageable && !synchronous && session->HostFunctionsOutstanding()) {
    auto* copy = new DeferredCopy{stream.context, to, from, rows};
    // After a failure it copies nothing and frees itself.
    const CUresult result =
        EnqueueHostFunction(stream, RunDeferredCopy, copy, Session::AfterFailure::kRun);
    if (result != CUDA_SUCCESS) delete copy;
    return result;
  }
  if (session->TransferOverlaps(reinterpret_cast<void*>(from.address), Extent(from, rows))) {
    // An earlier copy, of any stream, is still to write what this one reads.
    wire::ContextSynchronizeRequest request;
    wire::EmptyReply reply;
    if (CUresult result = Ask(stream.context, request, &reply); result != CUDA_SUCCESS)
      return result;
  } else if (synchronous && session->HostFunctionsOutstanding()) {
    // What they write before this point in the stream must be there to be read. Nothing else
    // writes to memory that the device does not reach.
    if (CUresult result = Synchronise(stream); result != CUDA_SUCCESS) return result;
  }
  CUresult result = CUDA_SUCCESS;
  const uint64_t bulk = BulkBytes(to, from, rows, kBulkToDeviceBytesMin);
  if (bulk != 0 &&
      BulkCopy::ToDevice(stream, to.address, reinterpret_cast<const std::byte*>(from.address), bulk,
                         &result)) {
    return result == CUDA_SUCCESS && synchronous ? Synchronise(stream) : result;
  }
  // "The function will return once the pageable buffer has been copied to the staging memory", but
  // not before what the stream had to do (API synchronization behavior). Programs take the data for
  // written then, whatever stream they go on with, so the copy precedes that.
  bool ahead = synchronous && from.pageable && MayGoAhead(stream.context, to);
  result = SendRows(stream.context, stream.id, to, from, rows, &ahead);
  return result != CUDA_SUCCESS || !synchronous || ahead ? result : Synchronise(stream);
}

CUresult ToHost(const StreamRef& stream, const Side& to, const Side& from, const Rows& rows,
                bool synchronous) {
  // "For transfers from device memory to pageable host memory, the function will return only once
  // the copy has completed" (API synchronization behavior), asynchronous or not.
  const bool waits = synchronous || to.pageable;
  if (const uint64_t bulk = waits ? BulkBytes(to, from, rows, 1) : 0; bulk != 0) {
    CUresult result = CUDA_SUCCESS;
    if (BulkCopy::ToHost(stream, reinterpret_cast<std::byte*>(to.address), from.address, bulk,
                         &result)) {
      return result;
    }
  }
  Session* session = stream.context->device->session;
  wire::CopyToHostRequest request;
  request.stream = stream.id;
  request.src = from.address;
  request.src_pitch = from.pitch;
  request.width = rows.width;
  request.rows = rows.count;
  Transfer transfer;
  transfer.destination = reinterpret_cast<std::byte*>(to.address);
  transfer.pitch = to.pitch;
  transfer.width = rows.width;
  transfer.rows = rows.count;
  request.transfer = session->BeginTransfer(transfer);
  if (CUresult result = Post(stream.context, request); result != CUDA_SUCCESS) return result;
  if (!waits) return CUDA_SUCCESS;
  const CUresult result = Synchronise(stream);
  if (result != CUDA_SUCCESS) session->CancelTransfer(request.transfer);
  return result;
}

// What a copy between two devices passes through at once.
constexpr uint64_t kStagingBytes = uint64_t{16} << 20;

// The context through which the other device reaches `side`.
Context* ContextOf(const Side& side) {
  return GetRuntime()->contexts.Find(side.device->primary_id);
}

// Copies rows of which at least one side is another device's than the stream's, through this
// process. Returns when they are there, after all that was in the stream: the devices' workers know
// nothing of each other.
CUresult CopyAcross(const StreamRef& stream, const Side& to, const Side& from, const Rows& rows) {
  if (CUresult result = Synchronise(stream); result != CUDA_SUCCESS) return result;
  if (to.host) {
    const OwnStream reading(ContextOf(from));
    return ToHost(reading.ref(), to, from, rows, true);
  }
  const OwnStream writing(ContextOf(to));
  if (from.host) {
    const CUresult result = ToDevice(writing.ref(), to, from, rows, true);
    return result == CUDA_SUCCESS ? Synchronise(writing.ref()) : result;
  }
  const OwnStream reading(ContextOf(from));
  const uint64_t piece = rows.width < kStagingBytes ? rows.width : kStagingBytes;
  const uint64_t rows_a_piece = kStagingBytes / piece;
  std::vector<std::byte> staging(piece * (rows.count < rows_a_piece ? rows.count : rows_a_piece));
  Side between;
  between.address = reinterpret_cast<uint64_t>(staging.data());
  between.pitch = piece;
  between.host = true;
  between.pageable = true;
  for (uint64_t row = 0; row < rows.count; row += rows_a_piece) {
    const uint64_t rows_left = rows.count - row;
    for (uint64_t column = 0; column < rows.width; column += piece) {
      const uint64_t left = rows.width - column;
      const Rows part{left < piece ? left : piece,
                      rows_left < rows_a_piece ? rows_left : rows_a_piece};
      Side source = from;
      source.address += row * from.pitch + column;
      Side target = to;
      target.address += row * to.pitch + column;
      if (CUresult result = ToHost(reading.ref(), between, source, part, true);
          result != CUDA_SUCCESS) {
        return result;
      }
      if (CUresult result = ToDevice(writing.ref(), target, between, part, true);
          result != CUDA_SUCCESS) {
        return result;
      }
    }
  }
  return Synchronise(writing.ref());
}

bool IsMappedFor(const Side& side, const Device* device) {
  return (side.mapped_for >> device->ordinal & 1) != 0;
}

// Whether the stream's worker reaches memory of the side's device by the side's address.
bool ReachesSide(const StreamRef& stream, const Side& side) {
  Device* own = stream.context->device;
  if (side.device == own) return !side.host;
  // Variables of modules are no memory that is lent.
  return side.device != nullptr && !side.host && DeviceOfAddress(side.address) == side.device &&
         side.lent && CopiesReachPeer(own, side.device);
}

CUresult PostRows(const StreamRef& stream, const Side& to, const Side& from, const Rows& rows) {
  wire::CopyRowsRequest request;
  request.stream = stream.id;
  request.dst = to.address;
  request.dst_pitch = to.pitch;
  request.src = from.address;
  request.src_pitch = from.pitch;
  request.width = rows.width;
  request.rows = rows.count;
  return Post(stream.context, request);
}

// Copies between device memories of which at least one is another device's than the stream's, and
// which its worker reaches.
CUresult CopyBetweenPeers(const StreamRef& stream, const Side& to, const Side& from,
                          const Rows& rows) {
  // "A copy (in the implicit NULL stream) between the memories of two different devices does not
  // start until all commands previously issued to either device have completed and runs to
  // completion before any commands issued after the copy to either device can start" (CUDA C++
  // Programming Guide, Peer-to-Peer Memory Copy).
  const bool legacy = stream.id == kLegacyStreamId;
  if (legacy) {
    for (const Side* side : {&to, &from}) {
      if (CUresult result = SynchroniseDevice(side->device); result != CUDA_SUCCESS) return result;
    }
  }
  if (CUresult result = PostRows(stream, to, from, rows); result != CUDA_SUCCESS) return result;
  return legacy ? Synchronise(stream) : CUDA_SUCCESS;
}

// One after the other, copies of 16 KiB take half as long with their data as without, and those of
// 64 KiB longer (an H200, docs/PERFORMANCE.md).
constexpr uint64_t kAheadBytesMax = uint64_t{16} << 10;

// Sends a synchronous copy from pinned memory with its data, so that its call returns at once. "For
// transfers from pinned host memory to device memory, the function is synchronous with respect to
// the host" (API synchronization behavior): no program can tell, if the stream had nothing else to
// do and only work of this session reaches where it goes, all of which the copy precedes. False: it
// has to go another way.
bool GoesAhead(const StreamRef& stream, const Side& to, const Side& from, const Rows& rows,
               CUresult* result) {
  if (!from.readable || !MayGoAhead(stream.context, to)) return false;
  const auto* source = reinterpret_cast<const std::byte*>(from.program_address);
  const uint64_t bytes = BulkBytes(to, from, rows, 1);
  Session* session = stream.context->device->session;
  if (bytes == 0 || bytes > kAheadBytesMax ||
      // It may be mapped such that a processor is slow to read it.
      session->in_vm_memory() || session->TransferOverlaps(source, bytes)) {
    return false;
  }
  wire::CopyToDeviceRequest request;
  request.stream = stream.id;
  request.dst = to.address;
  request.width = request.dst_pitch = bytes;
  request.rows = 1;
  request.precedes = 1;
  request.data = {source, bytes};
  bool sent = false;
  *result = session->PostAhead(stream.context->wire_id, request, &sent);
  return sent || *result != CUDA_SUCCESS;
}

CUresult Copy(const StreamRef& stream, Side to, Side from, const Rows& rows, bool synchronous) {
  Device* own = stream.context->device;
  // Else it would keep the calling thread until the stream gets there.
  const bool large = BulkBytes(to, from, rows, kBulkToDeviceBytesMin) != 0;
  for (Side* side : {&to, &from}) {
    if (side->device == nullptr || side->device == own) continue;
    const Side& other = side == &to ? from : to;
    const bool worth_it = large && side->shared && other.device == own;
    if (IsMappedFor(*side, own) ||
        (worth_it && ReachHostMemory(own, side->address) == CUDA_SUCCESS)) {
      side->device = own;
    }
  }
  const bool foreign_to = to.device != nullptr && to.device != own;
  const bool foreign_from = from.device != nullptr && from.device != own;
  if ((foreign_to && !to.host) || (foreign_from && !from.host)) {
    if (ReachesSide(stream, to) && ReachesSide(stream, from))
      return CopyBetweenPeers(stream, to, from, rows);
    // The other side may be what its own worker would reach.
    for (Side* side : {&to, &from}) {
      if (!side->host) continue;
      side->address = side->program_address;
      side->addressable = false;
    }
    return CopyAcross(stream, to, from, rows);
  }
  for (Side* side : {&to, &from}) {
    if (side->device == nullptr || side->device == own) continue;
    side->address = side->program_address;
    side->addressable = false;
  }
  if (CUresult result; synchronous && GoesAhead(stream, to, from, rows, &result)) return result;
  if (to.addressable && from.addressable) {
    if (CUresult result = PostRows(stream, to, from, rows); result != CUDA_SUCCESS) return result;
    // Between device memories the call does not wait, synchronous or not.
    return synchronous && (to.host || from.host) ? Synchronise(stream) : CUDA_SUCCESS;
  }
  if (to.addressable) return ToDevice(stream, to, from, rows, synchronous);
  if (from.addressable) return ToHost(stream, to, from, rows, synchronous);
  // Host to host: in stream order, which only waiting can give.
  if (CUresult result = Synchronise(stream); result != CUDA_SUCCESS) return result;
  for (uint64_t row = 0; row < rows.count; ++row) {
    memmove(reinterpret_cast<void*>(to.address + row * to.pitch),
            reinterpret_cast<void*>(from.address + row * from.pitch), rows.width);
  }
  return CUDA_SUCCESS;
}

// Makes the copy a node if its stream is captured. One that waits cannot be.
CUresult CaptureCopy(const StreamRef& stream, const CUDA_MEMCPY3D& copy, bool synchronous,
                     bool* captured) {
  if (synchronous) return RefuseInCapture(stream.context, stream.id);
  GraphWork work;
  work.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  work.context_id = stream.context->id;
  work.copy = copy;
  return CaptureWork(stream.context, stream.id, &work, captured);
}

// Linear copies. `*_device`: the function's name says that side is device memory.
CUresult Linear(uint64_t dst, bool dst_device, uint64_t src, bool src_device, uint64_t bytes,
                CUstream handle, DefaultStream default_stream, bool synchronous) {
  StreamRef stream;
  if (CUresult result = FindStream(handle, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (bytes == 0) return CUDA_SUCCESS;
  const Rows rows{bytes, 1};
  Side to, from;
  to.address = dst, to.pitch = bytes;
  from.address = src, from.pitch = bytes;
  if (CUresult result = Classify(&to, rows, dst_device); result != CUDA_SUCCESS) return result;
  if (CUresult result = Classify(&from, rows, src_device); result != CUDA_SUCCESS) return result;
  if (MaybeCapturing()) {
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = from.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    copy.srcHost = from.host ? reinterpret_cast<const void*>(src) : nullptr;
    copy.srcDevice = from.host ? 0 : src;
    copy.dstMemoryType = to.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    copy.dstHost = to.host ? reinterpret_cast<void*>(dst) : nullptr;
    copy.dstDevice = to.host ? 0 : dst;
    copy.srcPitch = copy.dstPitch = bytes;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    bool captured = false;
    const CUresult result = CaptureCopy(stream, copy, synchronous, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  return Copy(stream, to, from, rows, synchronous);
}

// One side of a 2D or 3D copy descriptor.
struct Box {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  uint64_t x, y, z;
  uint64_t pitch;   // 0: rows are packed
  uint64_t height;  // rows of a slice; 0: as many as are copied
};

bool Inside(uint64_t first, uint64_t count, uint64_t end) {
  return first <= end && count <= end - first;
}

CUresult PrepareArrayBox(const Box& box, uint64_t width, uint64_t height, uint64_t depth,
                         Side* side) {
  side->array = GetRuntime()->arrays.Find(reinterpret_cast<uint64_t>(box.array));
  if (side->array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUDA_ARRAY3D_DESCRIPTOR& shape = side->array->descriptor;
  const uint64_t channel = ChannelBytes(shape.Format);
  const uint64_t rows = shape.Height == 0 ? 1 : shape.Height;
  const uint64_t slices = shape.Depth == 0 ? 1 : shape.Depth;
  // The host checks the width of formats that are not of plain channels.
  if (!Inside(box.y, height, rows) || !Inside(box.z, depth, slices) ||
      (channel != 0 && !Inside(box.x, width, shape.Width * shape.NumChannels * channel))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult PrepareBox(const Box& box, uint64_t width, uint64_t height, uint64_t depth, Side* side,
                    uint64_t* slice_bytes) {
  if (box.type == CU_MEMORYTYPE_ARRAY) return PrepareArrayBox(box, width, height, depth, side);
  if (box.type != CU_MEMORYTYPE_HOST && box.type != CU_MEMORYTYPE_DEVICE &&
      box.type != CU_MEMORYTYPE_UNIFIED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t pitch = box.pitch != 0 ? box.pitch : box.x + width;
  const uint64_t slice_rows = box.height != 0 ? box.height : box.y + height;
  if (pitch < box.x + width || (depth > 1 && slice_rows < box.y + height))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t base =
      box.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(box.host) : box.device;
  if (base == 0) return CUDA_ERROR_INVALID_VALUE;
  side->pitch = pitch;
  *slice_bytes = pitch * slice_rows;
  side->address = base + box.z * *slice_bytes + box.y * pitch + box.x;
  // The whole box must lie in one range, so check all its slices as one run of rows.
  Side whole = *side;
  const Rows rows{width, slice_rows * (depth - 1) + height};
  if (CUresult result = Classify(&whole, rows, box.type == CU_MEMORYTYPE_DEVICE);
      result != CUDA_SUCCESS)
    return result;
  *side = whole;  // Classify leaves the pitch
  return CUDA_SUCCESS;
}

Box Destination(const CUDA_MEMCPY3D& copy) {
  return {copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, copy.dstXInBytes,
          copy.dstY,          copy.dstZ,    copy.dstPitch,  copy.dstHeight};
}

Box Source(const CUDA_MEMCPY3D& copy) {
  return {copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcXInBytes,
          copy.srcY,          copy.srcZ,    copy.srcPitch,  copy.srcHeight};
}

// Both sides of a copy of boxes, checked.
struct Boxes {
  Side to, from;
  uint64_t to_slice = 0, from_slice = 0;
};

CUresult PrepareBoxes(const CUDA_MEMCPY3D& copy, Boxes* boxes) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = PrepareBox(Destination(copy), copy.WidthInBytes, copy.Height, copy.Depth,
                                   &boxes->to, &boxes->to_slice);
      result != CUDA_SUCCESS) {
    return result;
  }
  return PrepareBox(Source(copy), copy.WidthInBytes, copy.Height, copy.Depth, &boxes->from,
                    &boxes->from_slice);
}

bool Empty(const CUDA_MEMCPY3D& copy) {
  return copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0;
}

// What fits the memory on the device through which guest memory gets into an array.
constexpr uint64_t kArrayPieceBytesMax = uint64_t{16} << 20;

// One copy on the host, of `height` rows from row `y` on and `depth` slices from slice `z` on of
// the box. Sides that are no arrays are `to` and `from`, at their addresses.
struct ArrayPiece {
  Side to, from;
  uint64_t to_slice = 0, from_slice = 0;
  uint64_t y = 0, z = 0, height = 0, depth = 0;
};

// The rows of a slice do not matter, and may be any, where there is one slice.
uint64_t SliceRows(const Side& side, uint64_t slice_bytes, const ArrayPiece& piece) {
  return piece.depth == 1 ? piece.height : slice_bytes / side.pitch;
}

CUresult PostArrayPiece(const StreamRef& stream, const CUDA_MEMCPY3D& copy,
                        const ArrayPiece& piece) {
  wire::ArrayCopyRequest request;
  request.stream = stream.id;
  if (piece.to.array != nullptr) {
    request.dst_array = piece.to.array->id;
    request.dst_x = copy.dstXInBytes;
    request.dst_y = copy.dstY + piece.y;
    request.dst_z = copy.dstZ + piece.z;
  } else {
    request.dst = piece.to.address;
    request.dst_pitch = piece.to.pitch;
    request.dst_rows = SliceRows(piece.to, piece.to_slice, piece);
  }
  if (piece.from.array != nullptr) {
    request.src_array = piece.from.array->id;
    request.src_x = copy.srcXInBytes;
    request.src_y = copy.srcY + piece.y;
    request.src_z = copy.srcZ + piece.z;
  } else {
    request.src = piece.from.address;
    request.src_pitch = piece.from.pitch;
    request.src_rows = SliceRows(piece.from, piece.from_slice, piece);
  }
  request.width = copy.WidthInBytes;
  request.height = piece.height;
  request.depth = piece.depth;
  return Post(stream.context, request);
}

// A copy between an array and memory of this process alone: by way of device memory, piece by
// piece, in the order of the stream.
CUresult SendThroughDevice(const StreamRef& stream, const CUDA_MEMCPY3D& copy, const Boxes& boxes,
                           bool synchronous) {
  const bool to_array = boxes.to.array != nullptr;
  const uint64_t rows_max = kArrayPieceBytesMax / copy.WidthInBytes;
  const uint64_t piece_rows = rows_max < copy.Height ? rows_max : copy.Height;
  if (piece_rows == 0) return CUDA_ERROR_INVALID_VALUE;  // no array has such rows
  GiveBackFreed(stream.context->device);
  wire::MemAllocRequest allocate;
  wire::MemAllocReply allocated;
  allocate.bytes = piece_rows * copy.WidthInBytes;
  if (CUresult result = Ask(stream.context, allocate, &allocated); result != CUDA_SUCCESS)
    return result;
  Side bridge;
  bridge.address = allocated.address;
  bridge.pitch = copy.WidthInBytes;
  bridge.addressable = true;
  CUresult result = CUDA_SUCCESS;
  for (uint64_t z = 0; z < copy.Depth && result == CUDA_SUCCESS; ++z) {
    for (uint64_t y = 0; y < copy.Height && result == CUDA_SUCCESS; y += piece_rows) {
      const uint64_t left = copy.Height - y;
      const Rows rows{copy.WidthInBytes, left < piece_rows ? left : piece_rows};
      ArrayPiece piece;
      piece.y = y, piece.z = z, piece.height = rows.count, piece.depth = 1;
      Side memory = to_array ? boxes.from : boxes.to;
      memory.address += z * (to_array ? boxes.from_slice : boxes.to_slice) + y * memory.pitch;
      if (to_array) {
        piece.to = boxes.to, piece.from = bridge, piece.from_slice = allocate.bytes;
        result = ToDevice(stream, bridge, memory, rows, /*synchronous=*/false);
        if (result == CUDA_SUCCESS) result = PostArrayPiece(stream, copy, piece);
      } else {
        piece.from = boxes.from, piece.to = bridge, piece.to_slice = allocate.bytes;
        result = PostArrayPiece(stream, copy, piece);
        if (result == CUDA_SUCCESS) result = ToHost(stream, memory, bridge, rows, synchronous);
      }
    }
  }
  // Once all of that is done.
  wire::MemFreeRequest free;
  free.address = allocated.address;
  const CUresult freed = Post(stream.context, free);
  if (result == CUDA_SUCCESS) result = freed;
  return result == CUDA_SUCCESS && synchronous ? Synchronise(stream) : result;
}

CUresult SendArrayBoxes(const StreamRef& stream, const CUDA_MEMCPY3D& copy, const Boxes& boxes,
                        bool synchronous) {
  for (const Side* side : {&boxes.to, &boxes.from}) {
    if (side->array == nullptr) continue;
    const Context* context = GetRuntime()->contexts.Find(side->array->context_id);
    if (context == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (!SameSession(context, stream.context)) return AcrossDevices("a copy of an array");
  }
  const bool by_address = (boxes.to.array != nullptr || boxes.to.addressable) &&
                          (boxes.from.array != nullptr || boxes.from.addressable);
  if (!by_address) return SendThroughDevice(stream, copy, boxes, synchronous);
  ArrayPiece whole;
  whole.to = boxes.to, whole.from = boxes.from;
  whole.to_slice = boxes.to_slice, whole.from_slice = boxes.from_slice;
  whole.height = copy.Height, whole.depth = copy.Depth;
  if (CUresult result = PostArrayPiece(stream, copy, whole); result != CUDA_SUCCESS) return result;
  const bool host = boxes.to.host || boxes.from.host;
  return synchronous && host ? Synchronise(stream) : CUDA_SUCCESS;
}

CUresult SendBoxes(const StreamRef& stream, const CUDA_MEMCPY3D& copy, Boxes boxes,
                   bool synchronous) {
  if (boxes.to.array != nullptr || boxes.from.array != nullptr)
    return SendArrayBoxes(stream, copy, boxes, synchronous);
  const Rows rows{copy.WidthInBytes, copy.Height};
  for (uint64_t z = 0; z < copy.Depth; ++z) {
    if (CUresult result = Copy(stream, boxes.to, boxes.from, rows, synchronous);
        result != CUDA_SUCCESS) {
      return result;
    }
    boxes.to.address += boxes.to_slice;
    boxes.to.program_address += boxes.to_slice;
    boxes.from.address += boxes.from_slice;
    boxes.from.program_address += boxes.from_slice;
  }
  return CUDA_SUCCESS;
}

CUresult Copy3D(const CUDA_MEMCPY3D* copy, CUstream handle, DefaultStream default_stream,
                bool synchronous) {
  if (copy == nullptr || copy->srcLOD != 0 || copy->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(handle, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (Empty(*copy)) return CUDA_SUCCESS;
  Boxes boxes;
  if (CUresult result = PrepareBoxes(*copy, &boxes); result != CUDA_SUCCESS) return result;
  if (MaybeCapturing()) {
    bool captured = false;
    const CUresult result = CaptureCopy(stream, *copy, synchronous, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  return SendBoxes(stream, *copy, boxes, synchronous);
}

CUresult Copy2D(const CUDA_MEMCPY2D* copy, CUstream stream, DefaultStream default_stream,
                bool synchronous) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D deep = {};
  deep.srcXInBytes = copy->srcXInBytes, deep.srcY = copy->srcY;
  deep.srcMemoryType = copy->srcMemoryType;
  deep.srcHost = copy->srcHost, deep.srcDevice = copy->srcDevice, deep.srcArray = copy->srcArray;
  deep.srcPitch = copy->srcPitch;
  deep.dstXInBytes = copy->dstXInBytes, deep.dstY = copy->dstY;
  deep.dstMemoryType = copy->dstMemoryType;
  deep.dstHost = copy->dstHost, deep.dstDevice = copy->dstDevice, deep.dstArray = copy->dstArray;
  deep.dstPitch = copy->dstPitch;
  deep.WidthInBytes = copy->WidthInBytes, deep.Height = copy->Height;
  deep.Depth = 1;
  return Copy3D(&deep, stream, default_stream, synchronous);
}

uint64_t Address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Copies of a run of bytes in an array of one dimension.
CUDA_MEMCPY3D LinearBox(size_t bytes) {
  CUDA_MEMCPY3D copy = {};
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

void ToArray(CUarray array, size_t offset, CUDA_MEMCPY3D* copy) {
  copy->dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy->dstArray = array;
  copy->dstXInBytes = offset;
}

void FromArray(CUarray array, size_t offset, CUDA_MEMCPY3D* copy) {
  copy->srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy->srcArray = array;
  copy->srcXInBytes = offset;
}

CUresult ArrayToHost(void* host, CUarray array, size_t offset, size_t bytes, CUstream stream,
                     DefaultStream default_stream, bool synchronous) {
  CUDA_MEMCPY3D copy = LinearBox(bytes);
  FromArray(array, offset, &copy);
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host;
  return Copy3D(&copy, stream, default_stream, synchronous);
}

CUresult HostToArray(CUarray array, size_t offset, const void* host, size_t bytes, CUstream stream,
                     DefaultStream default_stream, bool synchronous) {
  CUDA_MEMCPY3D copy = LinearBox(bytes);
  ToArray(array, offset, &copy);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  return Copy3D(&copy, stream, default_stream, synchronous);
}

}  // namespace

uint64_t ChannelBytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

CUresult PrepareCopy(const CUDA_MEMCPY3D& copy) {
  Boxes boxes;
  return Empty(copy) ? CUDA_ERROR_INVALID_VALUE : PrepareBoxes(copy, &boxes);
}

bool IsCopyByAddress(const Context* context, const GraphWork& work) {
  Boxes boxes;
  if (PrepareBoxes(work.copy, &boxes) != CUDA_SUCCESS) return false;
  const auto by_address = [&](const Side& side) {
    return side.array == nullptr && side.addressable &&
           (side.device == nullptr || side.device == context->device ||
            IsMappedFor(side, context->device));
  };
  return by_address(boxes.to) && by_address(boxes.from);
}

CUresult SendCopy(const StreamRef& stream, const GraphWork& work) {
  Boxes boxes;
  if (CUresult result = PrepareBoxes(work.copy, &boxes); result != CUDA_SUCCESS) return result;
  // A launch does not wait, whatever memory its nodes copy to.
  boxes.to.pageable = false;
  return SendBoxes(stream, work.copy, boxes, false);
}

CUresult EnqueueCopy(const StreamRef& stream, const CUDA_MEMCPY3D& copy,
                     CUmemcpySrcAccessOrder order) {
  Boxes boxes;
  if (CUresult result = PrepareBoxes(copy, &boxes); result != CUDA_SUCCESS) return result;
  const bool during_call = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  if (MaybeCapturing()) {
    bool captured = false;
    const CUresult result = CaptureCopy(stream, copy, during_call, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  if (!boxes.from.host || order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
    const CUresult result = SendBoxes(stream, copy, boxes, false);
    return result == CUDA_SUCCESS && during_call ? Synchronise(stream) : result;
  }
  if (during_call) {
    // Read here, whoever else could read it later.
    boxes.from.address = boxes.from.program_address;
    boxes.from.addressable = false;
  }
  // What counts as pageable is read at once; what does not waits for host functions before it.
  boxes.from.pageable = during_call;
  return SendBoxes(stream, copy, boxes, false);
}

namespace calls {

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                  DefaultStream default_stream) {
  return Linear(dst, false, src, false, ByteCount, nullptr, default_stream, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream,
                       DefaultStream default_stream) {
  return Linear(dst, false, src, false, ByteCount, hStream, default_stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                         DefaultStream default_stream) {
  return Linear(dstDevice, true, Address(srcHost), false, ByteCount, nullptr, default_stream, true);
}

CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                         DefaultStream default_stream) {
  return Linear(Address(dstHost), false, srcDevice, true, ByteCount, nullptr, default_stream, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                         DefaultStream default_stream) {
  return Linear(dstDevice, true, srcDevice, true, ByteCount, nullptr, default_stream, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                              CUstream hStream, DefaultStream default_stream) {
  return Linear(dstDevice, true, Address(srcHost), false, ByteCount, hStream, default_stream,
                false);
}

CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream, DefaultStream default_stream) {
  return Linear(Address(dstHost), false, srcDevice, true, ByteCount, hStream, default_stream,
                false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream, DefaultStream default_stream) {
  return Linear(dstDevice, true, srcDevice, true, ByteCount, hStream, default_stream, false);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* pCopy, DefaultStream default_stream) {
  return Copy2D(pCopy, nullptr, default_stream, true);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* pCopy, DefaultStream default_stream) {
  return Copy2D(pCopy, nullptr, default_stream, true);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream,
                            DefaultStream default_stream) {
  return Copy2D(pCopy, hStream, default_stream, false);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* pCopy, DefaultStream default_stream) {
  return Copy3D(pCopy, nullptr, default_stream, true);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream,
                            DefaultStream default_stream) {
  return Copy3D(pCopy, hStream, default_stream, false);
}

CUresult cuMemcpyAtoH_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                         DefaultStream default_stream) {
  return ArrayToHost(dstHost, srcArray, srcOffset, ByteCount, nullptr, default_stream, true);
}

CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                              CUstream hStream, DefaultStream default_stream) {
  return ArrayToHost(dstHost, srcArray, srcOffset, ByteCount, hStream, default_stream, false);
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount,
                         DefaultStream default_stream) {
  return HostToArray(dstArray, dstOffset, srcHost, ByteCount, nullptr, default_stream, true);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void* srcHost,
                              size_t ByteCount, CUstream hStream, DefaultStream default_stream) {
  return HostToArray(dstArray, dstOffset, srcHost, ByteCount, hStream, default_stream, false);
}

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
                         size_t ByteCount, DefaultStream default_stream) {
  CUDA_MEMCPY3D copy = LinearBox(ByteCount);
  ToArray(dstArray, dstOffset, &copy);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = srcDevice;
  return Copy3D(&copy, nullptr, default_stream, true);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
                         size_t ByteCount, DefaultStream default_stream) {
  CUDA_MEMCPY3D copy = LinearBox(ByteCount);
  FromArray(srcArray, srcOffset, &copy);
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = dstDevice;
  return Copy3D(&copy, nullptr, default_stream, true);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                         size_t ByteCount, DefaultStream default_stream) {
  CUDA_MEMCPY3D copy = LinearBox(ByteCount);
  ToArray(dstArray, dstOffset, &copy);
  FromArray(srcArray, srcOffset, &copy);
  return Copy3D(&copy, nullptr, default_stream, true);
}

}  // namespace calls
}  // namespace consort::guest
