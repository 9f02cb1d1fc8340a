// SPDX-License-Identifier: Apache-2.0
// Batches of copies. Source: CUDA Driver API reference 13.0, "Memory Management"
// (cuMemcpyBatchAsync, cuMemcpy3DBatchAsync: a batch is ordered by its stream, its copies not by
// one another; attributes; what is refused); of 12.8 for failIdx of their first versions.
#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

constexpr CUmemcpySrcAccessOrder kStreamOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
constexpr CUmemcpySrcAccessOrder kDuringCall = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
constexpr CUmemcpySrcAccessOrder kAnyOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUmemcpyAttributes Attributes(CUmemcpySrcAccessOrder order) {
  CUmemcpyAttributes attributes = {};
  attributes.srcAccessOrder = order;
  return attributes;
}

// Copies for one call, with the same attributes for all unless more are added.
struct Batch {
  std::vector<CUdeviceptr> dsts, srcs;
  std::vector<size_t> sizes;
  std::vector<CUmemcpyAttributes> attributes;
  std::vector<size_t> firsts;

  explicit Batch(CUmemcpySrcAccessOrder order = kStreamOrder)
      : attributes{Attributes(order)}, firsts{0} {}
  void Add(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
    dsts.push_back(dst);
    srcs.push_back(src);
    sizes.push_back(bytes);
  }
  CUresult Copy(CUstream stream) {
    return Drv().cuMemcpyBatchAsync_v2(dsts.data(), srcs.data(), sizes.data(), sizes.size(),
                                       attributes.data(), firsts.data(), firsts.size(), stream);
  }
  // The first version.
  CUresult Copy(CUstream stream, size_t* failed) {
    return Drv().cuMemcpyBatchAsync(dsts.data(), srcs.data(), sizes.data(), sizes.size(),
                                    attributes.data(), firsts.data(), firsts.size(), failed,
                                    stream);
  }
};

enum class Place { kDevice, kPinned, kPageable };
constexpr Place kPlaces[] = {Place::kDevice, Place::kPinned, Place::kPageable};

// Memory of some place, and its bytes as the host sees them.
class Region {
 public:
  Region(Place place, size_t bytes) : bytes_(bytes) {
    if (place == Place::kDevice) device_ = std::make_unique<DeviceBuffer>(bytes);
    if (place == Place::kPinned) pinned_ = std::make_unique<PinnedBuffer>(bytes);
    if (place == Place::kPageable) pageable_.resize(bytes);
  }
  CUdeviceptr address() const {
    if (device_ != nullptr) return device_->get();
    return pinned_ != nullptr ? Address(pinned_->get()) : Address(pageable_.data());
  }
  void Set(const std::vector<unsigned char>& values) {
    if (device_ != nullptr) {
      device_->Write(values);
    } else {
      std::memcpy(reinterpret_cast<void*>(address()), values.data(), bytes_);
    }
  }
  std::vector<unsigned char> Get() const {
    if (device_ != nullptr) return device_->Read<unsigned char>(bytes_);
    const auto* first = reinterpret_cast<const unsigned char*>(address());
    return {first, first + bytes_};
  }

 private:
  size_t bytes_;
  std::unique_ptr<DeviceBuffer> device_;
  std::unique_ptr<PinnedBuffer> pinned_;
  std::vector<unsigned char> pageable_;
};

std::vector<unsigned char> RandomBytes(size_t count, std::mt19937* random) {
  std::vector<unsigned char> bytes(count);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>((*random)());
  return bytes;
}

// One region of each place, random, and the bytes that it is to have.
struct RandomRegions {
  std::vector<Region> regions;
  std::vector<std::vector<unsigned char>> bytes;

  RandomRegions(size_t count, std::mt19937* random) {
    for (Place place : kPlaces) {
      regions.emplace_back(place, count);
      bytes.push_back(RandomBytes(count, random));
      regions.back().Set(bytes.back());
    }
  }
  CUdeviceptr address(size_t place) const { return regions[place].address(); }
  void Check() const {
    for (size_t place = 0; place < std::size(kPlaces); ++place)
      EXPECT_TRUE(regions[place].Get() == bytes[place]) << place;
  }
};

class BatchTest : public ContextTest {
 protected:
  // Copies hundreds of pieces of random places and lengths, which do not touch where they go,
  // between memory of all places at once; the access order changes from piece to piece as `orders`
  // do. Checks every byte.
  static void CheckRandomPieces(unsigned seed, const std::vector<CUmemcpySrcAccessOrder>& orders) {
    SCOPED_TRACE(seed);
    constexpr size_t kBytes = 300'000;
    std::mt19937 random(seed);
    RandomRegions from(kBytes, &random), to(kBytes, &random);
    Batch batch;
    batch.attributes.clear();
    batch.firsts.clear();
    for (size_t target = 0; target < std::size(kPlaces); ++target) {
      for (size_t at = random() % 100; at < kBytes;) {
        const size_t bytes = std::min<size_t>(kBytes - at, 1 + random() % 5000);
        const size_t source = random() % std::size(kPlaces);
        const size_t offset = random() % (kBytes - bytes + 1);
        const size_t index = batch.sizes.size();
        if (index == 0 || random() % 4 == 0) {
          batch.firsts.push_back(index);
          batch.attributes.push_back(Attributes(orders[random() % orders.size()]));
        }
        batch.Add(to.address(target) + at, from.address(source) + offset, bytes);
        std::copy_n(from.bytes[source].begin() + offset, bytes, to.bytes[target].begin() + at);
        at += bytes + random() % 100;
      }
    }
    ASSERT_GT(batch.sizes.size(), 200u);
    Stream stream;
    ASSERT_OK(batch.Copy(stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    to.Check();
    from.Check();
  }
};

API_TEST(BatchTest, RandomPiecesArriveInStreamOrder) {
  for (unsigned seed : {1, 2, 3}) CheckRandomPieces(seed, {kStreamOrder});
}

API_TEST(BatchTest, RandomPiecesArriveInEveryAccessOrder) {
  for (unsigned seed : {4, 5, 6}) CheckRandomPieces(seed, {kStreamOrder, kDuringCall, kAnyOrder});
}

API_TEST(BatchTest, LargePiecesArriveWhole) {
  constexpr size_t kBytes = size_t{9} << 20;
  std::mt19937 random(7);
  const auto bytes = RandomBytes(kBytes, &random);
  for (CUmemcpySrcAccessOrder order : {kStreamOrder, kDuringCall, kAnyOrder}) {
    Region pageable(Place::kPageable, kBytes), device(Place::kDevice, kBytes);
    Region pinned(Place::kPinned, kBytes), back(Place::kPageable, kBytes);
    pageable.Set(bytes);
    Stream stream;
    for (const auto& [to, from] :
         {std::pair(&device, &pageable), {&pinned, &device}, {&back, &pinned}}) {
      Batch batch(order);
      batch.Add(to->address(), from->address(), kBytes / 2);
      batch.Add(to->address() + kBytes / 2, from->address() + kBytes / 2, kBytes - kBytes / 2);
      ASSERT_OK(batch.Copy(stream));
    }
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_TRUE(back.Get() == bytes) << order;
  }
}

API_TEST(BatchTest, IsOrderedByItsStream) {
  constexpr size_t kWords = 10'000;
  const DeviceBuffer from(kWords * 4), to(kWords * 4);
  const PinnedBuffer pinned(kWords * 4);
  Stream stream;
  for (unsigned round = 1; round <= 20; ++round) {
    ASSERT_OK(Drv().cuMemsetD32Async(from, round, kWords, stream));
    Batch batch;
    for (size_t piece = 0; piece < 10; ++piece) {
      batch.Add(to.get() + piece * kWords / 10 * 4, from.get() + piece * kWords / 10 * 4,
                kWords / 10 * 4);
    }
    ASSERT_OK(batch.Copy(stream));
    ASSERT_OK(Drv().cuMemsetD32Async(from, 1000 + round, kWords, stream));
    Batch back;
    back.Add(Address(pinned.get()), to, kWords * 4);
    ASSERT_OK(back.Copy(stream));
    ASSERT_OK(Drv().cuMemsetD32Async(to, 2000 + round, kWords, stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    for (size_t i = 0; i < kWords; ++i) ASSERT_EQ(pinned.as<unsigned>()[i], round) << i;
  }
}

struct Writer {
  unsigned* words;
  size_t count;
  unsigned value;
  static void CUDA_CB Write(void* self) {
    const auto* writer = static_cast<Writer*>(self);
    std::fill_n(writer->words, writer->count, writer->value);
  }
};

// Pageable memory too, which a single cuMemcpyAsync would read at once.
API_TEST(BatchTest, StreamOrderReadsWhatEarlierHostFunctionsWrote) {
  constexpr size_t kWords = 5000;
  Region pinned(Place::kPinned, kWords * 4), pageable(Place::kPageable, kWords * 4);
  for (const Region* source : {&pinned, &pageable}) {
    auto* const words = reinterpret_cast<unsigned*>(source->address());
    const DeviceBuffer first(kWords * 4), second(kWords * 4);
    std::fill_n(words, kWords, 1u);
    Writer two{words, kWords, 2}, three{words, kWords, 3};
    Stream stream;
    {
      StreamGate gate(stream);
      ASSERT_OK(Drv().cuLaunchHostFunc(stream, Writer::Write, &two));
      Batch batch;
      batch.Add(first, source->address(), kWords * 4);
      ASSERT_OK(batch.Copy(stream));
      ASSERT_OK(Drv().cuLaunchHostFunc(stream, Writer::Write, &three));
      batch.dsts = {second};
      ASSERT_OK(batch.Copy(stream));
    }
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(first.Read<unsigned>(kWords), std::vector<unsigned>(kWords, 2));
    EXPECT_EQ(second.Read<unsigned>(kWords), std::vector<unsigned>(kWords, 3));
  }
}

API_TEST(BatchTest, SourcesMayChangeAtReturnIfReadDuringTheCall) {
  constexpr size_t kBytes = size_t{1} << 20;
  const DeviceBuffer busy(size_t{64} << 20);
  Stream stream;
  for (Place place : kPlaces) {
    Region source(place, kBytes);
    const DeviceBuffer to(kBytes);
    source.Set(std::vector<unsigned char>(kBytes, 1));
    for (int i = 0; i < 4; ++i) {
      ASSERT_OK(Drv().cuMemsetD8Async(busy, static_cast<unsigned char>(i), busy.bytes(), stream));
    }
    Batch batch(kDuringCall);
    batch.Add(to, source.address(), kBytes / 2);
    batch.Add(to.get() + kBytes / 2, source.address() + kBytes / 2, kBytes / 2);
    ASSERT_OK(batch.Copy(stream));
    if (place == Place::kDevice) {
      // Another stream, which waits for nothing.
      Stream other;
      ASSERT_OK(Drv().cuMemsetD8Async(source.address(), 2, kBytes, other));
      ASSERT_OK(Drv().cuStreamSynchronize(other));
    } else {
      std::memset(reinterpret_cast<void*>(source.address()), 2, kBytes);
    }
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(to.Read<unsigned char>(kBytes), std::vector<unsigned char>(kBytes, 1));
  }
}

API_TEST(BatchTest, HostMemoryIsReadDuringTheCallWithoutWaitingForTheStream) {
  SKIP_ON_ORACLE("whether the call waits for the stream is left open");
  constexpr size_t kWords = 5000;
  Region pinned(Place::kPinned, kWords * 4), pageable(Place::kPageable, kWords * 4);
  for (const Region* source : {&pinned, &pageable}) {
    auto* const words = reinterpret_cast<unsigned*>(source->address());
    const DeviceBuffer to(kWords * 4);
    std::iota(words, words + kWords, 1u);
    Stream stream;
    {
      StreamGate gate(stream);
      Batch batch(kDuringCall);
      batch.Add(to, source->address(), kWords * 4);
      ASSERT_OK(batch.Copy(stream));
      std::fill_n(words, kWords, 0u);
      EXPECT_FALSE(gate.timed_out());
    }
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(to.Read<unsigned>(kWords), Iota(kWords, 1));
  }
}

API_TEST(BatchTest, HintsAndOverlapChangeNothing) {
  const DeviceBuffer from(64), to(64);
  from.Write(Iota(16));
  Batch batch(kAnyOrder);
  batch.attributes[0].srcLocHint = {CU_MEM_LOCATION_TYPE_DEVICE, {device()}};
  batch.attributes[0].dstLocHint = {CU_MEM_LOCATION_TYPE_HOST, {0}};
  batch.attributes[0].flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  batch.Add(to, from, 64);
  Stream stream;
  ASSERT_OK(batch.Copy(stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(to.Read<unsigned>(16), Iota(16));
}

API_TEST(BatchTest, AttributesMustBeForEveryCopyInOrder) {
  const DeviceBuffer from(64), to(64);
  to.Fill(1);
  Stream stream;
  const auto expect_refused = [&](const char* what, const std::function<void(Batch*)>& change) {
    Batch batch;
    for (size_t i = 0; i < 4; ++i) batch.Add(to.get() + i * 16, from.get() + i * 16, 16);
    change(&batch);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, batch.Copy(stream)) << what;
    size_t failed = 1;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, batch.Copy(stream, &failed)) << what;
  };
  const auto set_firsts = [](std::vector<size_t> firsts) {
    return [firsts](Batch* batch) {
      batch->firsts = firsts;
      batch->attributes.assign(firsts.size(), Attributes(kStreamOrder));
    };
  };
  expect_refused("first is not 0", set_firsts({1}));
  expect_refused("equal", set_firsts({0, 2, 2}));
  expect_refused("falling", set_firsts({0, 3, 2}));
  expect_refused("past the last copy", set_firsts({0, 4}));
  expect_refused("more than copies", set_firsts({0, 1, 2, 3, 4}));
  expect_refused("no order", [](Batch* batch) {
    batch->attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  });
  expect_refused("unknown order of the last", [&](Batch* batch) {
    set_firsts({0, 3})(batch);
    batch->attributes[1].srcAccessOrder = static_cast<CUmemcpySrcAccessOrder>(4);
  });
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(to.ReadWord(), 0x01010101u);
}

API_TEST_ALONE(BatchTest, NullArraysAreRefused) {
  const DeviceBuffer from(64), to(64);
  Stream stream;
  CUdeviceptr dst = to, src = from;
  size_t bytes = 64, first = 0;
  CUmemcpyAttributes attributes = Attributes(kStreamOrder);
  const auto copy = [&](CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes,
                        CUmemcpyAttributes* attrs, size_t* firsts, size_t count) {
    return Drv().cuMemcpyBatchAsync_v2(dsts, srcs, sizes, 1, attrs, firsts, count, stream);
  };
  EXPECT_OK(copy(&dst, &src, &bytes, &attributes, &first, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, copy(nullptr, &src, &bytes, &attributes, &first, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, copy(&dst, nullptr, &bytes, &attributes, &first, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, copy(&dst, &src, nullptr, &attributes, &first, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, copy(&dst, &src, &bytes, nullptr, &first, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, copy(&dst, &src, &bytes, &attributes, nullptr, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, copy(&dst, &src, &bytes, &attributes, &first, 0));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST_ALONE(BatchTest, TheFirstVersionTellsWhichCopyIsWrong) {
  const DeviceBuffer from(64), to(64);
  from.Fill(2);
  to.Fill(1);
  Stream stream;
  Batch batch;
  for (size_t i = 0; i < 4; ++i) batch.Add(to.get() + i * 16, from.get() + i * 16, 16);
  size_t failed = 77;
  ASSERT_OK(batch.Copy(stream, &failed));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(to.ReadWord(), 0x02020202u);
  batch.srcs[2] = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, batch.Copy(stream, &failed));
  EXPECT_EQ(failed, 2u);
  batch.firsts[0] = 1;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, batch.Copy(stream, &failed));
  EXPECT_EQ(failed, SIZE_MAX);
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST(BatchTest, TheLegacyStreamIsRefused) {
  const DeviceBuffer from(64), to(64);
  from.Write(Iota(16));
  Batch batch;
  batch.Add(to, from, 64);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, batch.Copy(nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, batch.Copy(CU_STREAM_LEGACY));
  ASSERT_OK(batch.Copy(CU_STREAM_PER_THREAD));
  ASSERT_OK(Drv().cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(to.Read<unsigned>(16), Iota(16));
}

// As a program sees it that was built for per-thread default streams.
API_TEST(BatchTest, TheThreadsOwnDefaultStreamIsTaken) {
  const DeviceBuffer from(64), to(64);
  from.Write(Iota(16));
  const auto copy = reinterpret_cast<PFN_cuMemcpyBatchAsync_v13000_ptsz>(
      DriverSymbol("cuMemcpyBatchAsync_v2_ptsz"));
  if (copy == nullptr) throw MissingFunction{"cuMemcpyBatchAsync_v2_ptsz"};
  CUdeviceptr dst = to, src = from;
  size_t bytes = 64, first = 0;
  CUmemcpyAttributes attributes = Attributes(kStreamOrder);
  ASSERT_OK(copy(&dst, &src, &bytes, 1, &attributes, &first, 1, nullptr));
  ASSERT_OK(Drv().cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(to.Read<unsigned>(16), Iota(16));
}

API_TEST(BatchTest, BecomesNodesOfACapture) {
  SKIP_ON_ORACLE("the reference does not say whether a batch can be captured");
  constexpr size_t kWords = 1000;
  const DeviceBuffer device_memory(kWords * 4);
  const PinnedBuffer from(kWords * 4), to(kWords * 4);
  Stream stream;
  Batch there, back;
  there.Add(device_memory, Address(from.get()), kWords * 2);
  there.Add(device_memory.get() + kWords * 2, Address(from.get()) + kWords * 2, kWords * 2);
  back.Add(Address(to.get()), device_memory, kWords * 4);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(there.Copy(stream));
  EXPECT_OK(back.Copy(stream));
  CUgraph graph = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  EXPECT_OK(Drv().cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  CUgraphExec executable = nullptr;
  ASSERT_OK(Drv().cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (unsigned round = 0; round < 3; ++round) {
    std::iota(from.as<unsigned>(), from.as<unsigned>() + kWords, round);
    ASSERT_OK(Drv().cuGraphLaunch(executable, stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(std::vector<unsigned>(to.as<unsigned>(), to.as<unsigned>() + kWords),
              Iota(kWords, round));
  }
  EXPECT_OK(Drv().cuGraphExecDestroy(executable));
  EXPECT_OK(Drv().cuGraphDestroy(graph));
}

API_TEST(BatchTest, WhatIsReadDuringTheCallCannotBeCaptured) {
  SKIP_ON_ORACLE("the reference does not say whether a batch can be captured");
  const DeviceBuffer to(64);
  const PinnedBuffer from(64);
  Stream stream;
  Batch batch(kDuringCall);
  batch.Add(to, Address(from.get()), 64);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, batch.Copy(stream));
  CUgraph graph = nullptr;
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, Drv().cuStreamEndCapture(stream, &graph));
}

// ---- Boxes ----

constexpr size_t kElement = 4;  // bytes: two channels of 16 bits

class BatchArray {
 public:
  BatchArray(size_t width, size_t height, size_t depth, CUarray_format format = CU_AD_FORMAT_HALF) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {};
    shape.Width = width, shape.Height = height, shape.Depth = depth;
    shape.Format = format;
    shape.NumChannels = 2;
    Require(Drv().cuArray3DCreate_v2(&array_, &shape), "cuArray3DCreate");
  }
  ~BatchArray() { Drv().cuArrayDestroy(array_); }
  BatchArray(const BatchArray&) = delete;
  BatchArray& operator=(const BatchArray&) = delete;
  CUarray get() const { return array_; }

 private:
  CUarray array_ = nullptr;
};

CUmemcpy3DOperand Pointer(CUdeviceptr address, size_t row_length = 0, size_t layer_height = 0) {
  CUmemcpy3DOperand operand = {};
  operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operand.op.ptr.ptr = address;
  operand.op.ptr.rowLength = row_length;
  operand.op.ptr.layerHeight = layer_height;
  return operand;
}

CUmemcpy3DOperand ArrayAt(CUarray array, size_t x = 0, size_t y = 0, size_t z = 0) {
  CUmemcpy3DOperand operand = {};
  operand.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  operand.op.array.array = array;
  operand.op.array.offset = {x, y, z};
  return operand;
}

CUDA_MEMCPY3D_BATCH_OP Operation(const CUmemcpy3DOperand& dst, const CUmemcpy3DOperand& src,
                                 const CUextent3D& extent,
                                 CUmemcpySrcAccessOrder order = kStreamOrder) {
  CUDA_MEMCPY3D_BATCH_OP operation = {};
  operation.dst = dst;
  operation.src = src;
  operation.extent = extent;
  operation.srcAccessOrder = order;
  return operation;
}

CUresult CopyBoxes(std::vector<CUDA_MEMCPY3D_BATCH_OP> operations, CUstream stream) {
  return Drv().cuMemcpy3DBatchAsync_v2(operations.size(), operations.data(), 0, stream);
}

using BoxBatchTest = ContextTest;

// Boxes between volumes with rows and layers of their own lengths, in memory of all places; each
// goes to a layer range of its own.
API_TEST(BoxBatchTest, RandomBoxesBetweenPointersKeepTheirNeighbours) {
  constexpr size_t kWidth = 61, kRows = 23, kLayers = 120;
  constexpr size_t kBytes = kWidth * kRows * kLayers;
  for (unsigned seed : {11, 12, 13}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    RandomRegions from(kBytes, &random), to(kBytes, &random);
    const auto below = [&](size_t bound) { return random() % bound; };
    std::vector<CUDA_MEMCPY3D_BATCH_OP> operations;
    for (size_t target = 0; target < std::size(kPlaces); ++target) {
      for (size_t layer = 0; layer < kLayers;) {
        const CUextent3D extent = {1 + below(kWidth), 1 + below(kRows),
                                   std::min<size_t>(kLayers - layer, 1 + below(4))};
        const size_t x = below(kWidth - extent.width + 1), y = below(kRows - extent.height + 1);
        const size_t source = below(std::size(kPlaces));
        const size_t from_x = below(kWidth - extent.width + 1);
        const size_t from_y = below(kRows - extent.height + 1);
        const size_t from_layer = below(kLayers - extent.depth + 1);
        const auto at = [](size_t column, size_t row, size_t slice) {
          return (slice * kRows + row) * kWidth + column;
        };
        const CUmemcpySrcAccessOrder orders[] = {kStreamOrder, kDuringCall, kAnyOrder};
        operations.push_back(
            Operation(Pointer(to.address(target) + at(x, y, layer), kWidth, kRows),
                      Pointer(from.address(source) + at(from_x, from_y, from_layer), kWidth, kRows),
                      extent, orders[below(3)]));
        for (size_t z = 0; z < extent.depth; ++z) {
          for (size_t row = 0; row < extent.height; ++row) {
            std::copy_n(&from.bytes[source][at(from_x, from_y + row, from_layer + z)], extent.width,
                        &to.bytes[target][at(x, y + row, layer + z)]);
          }
        }
        layer += extent.depth;
      }
    }
    Stream stream;
    ASSERT_OK(CopyBoxes(operations, stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    to.Check();
    from.Check();
  }
}

// Lengths and offsets are in elements of the array.
API_TEST(BoxBatchTest, CopiesBetweenArraysAndMemory) {
  constexpr size_t kWidth = 20, kHeight = 12, kDepth = 5;
  const BatchArray first(kWidth, kHeight, kDepth), second(kWidth, kHeight, kDepth);
  std::vector<unsigned> volume = Iota(kWidth * kHeight * kDepth);
  for (Place place : kPlaces) {
    Region from(place, volume.size() * kElement), to(place, volume.size() * kElement);
    Region box(place, 64 * kElement);
    std::vector<unsigned char> bytes(volume.size() * kElement);
    std::memcpy(bytes.data(), volume.data(), bytes.size());
    from.Set(bytes);
    to.Set(std::vector<unsigned char>(bytes.size(), 0));
    box.Set(std::vector<unsigned char>(64 * kElement, 0xee));
    Stream stream;
    // Each batch reads what the one before has written.
    ASSERT_OK(CopyBoxes(
        {Operation(ArrayAt(first.get()), Pointer(from.address()), {kWidth, kHeight, kDepth}),
         Operation(ArrayAt(second.get()), Pointer(to.address()), {kWidth, kHeight, kDepth})},
        stream));
    ASSERT_OK(CopyBoxes(
        {Operation(ArrayAt(second.get(), 3, 2, 1), ArrayAt(first.get(), 5, 4, 2), {7, 6, 2})},
        stream));
    // Rows of 5 elements, layers of 4 rows, for a box of 3 x 2 x 2.
    ASSERT_OK(CopyBoxes(
        {Operation(Pointer(to.address()), ArrayAt(second.get()), {kWidth, kHeight, kDepth}),
         Operation(Pointer(box.address(), 5, 4), ArrayAt(first.get(), 1, 2, 3), {3, 2, 2})},
        stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    const auto word = [](const Region& region, size_t index) {
      const auto all = region.Get();
      unsigned value = 0;
      std::memcpy(&value, &all[index * kElement], kElement);
      return value;
    };
    const auto at = [](size_t x, size_t y, size_t z) { return (z * kHeight + y) * kWidth + x; };
    std::vector<unsigned> expected(volume.size(), 0);
    for (size_t z = 0; z < 2; ++z) {
      for (size_t y = 0; y < 6; ++y) {
        for (size_t x = 0; x < 7; ++x)
          expected[at(3 + x, 2 + y, 1 + z)] = volume[at(5 + x, 4 + y, 2 + z)];
      }
    }
    const auto got = to.Get();
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0);
    for (size_t z = 0; z < 2; ++z) {
      for (size_t y = 0; y < 2; ++y) {
        for (size_t x = 0; x < 3; ++x)
          EXPECT_EQ(word(box, (z * 4 + y) * 5 + x), volume[at(1 + x, 2 + y, 3 + z)]);
      }
    }
    EXPECT_EQ(word(box, 3), 0xeeeeeeeeu);
    EXPECT_EQ(word(box, 10), 0xeeeeeeeeu);
  }
}

API_TEST(BoxBatchTest, WhatIsDocumentedAsWrongIsRefused) {
  const DeviceBuffer from(4096), to(4096);
  const BatchArray array(8, 8, 2), other(8, 8, 2, CU_AD_FORMAT_FLOAT);
  to.Fill(1);
  Stream stream;
  const CUextent3D extent = {8, 4, 2};
  const auto expect_refused = [&](const char* what, const CUDA_MEMCPY3D_BATCH_OP& wrong) {
    const CUDA_MEMCPY3D_BATCH_OP right = Operation(Pointer(to), Pointer(from), extent);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, CopyBoxes({right, wrong}, stream)) << what;
    CUDA_MEMCPY3D_BATCH_OP both[] = {right, wrong};
    size_t failed = 77;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy3DBatchAsync(2, both, &failed, 0, stream))
        << what;
    EXPECT_EQ(failed, 1u) << what;
  };
  expect_refused("no width", Operation(Pointer(to), Pointer(from), {0, 4, 2}));
  expect_refused("no height", Operation(Pointer(to), Pointer(from), {8, 0, 2}));
  expect_refused("no depth", Operation(Pointer(to), Pointer(from), {8, 4, 0}));
  expect_refused("row of the source", Operation(Pointer(to), Pointer(from, 7), extent));
  expect_refused("row of the target", Operation(Pointer(to, 7), Pointer(from), extent));
  expect_refused("layer of the source", Operation(Pointer(to), Pointer(from, 8, 3), extent));
  expect_refused("layer of the target", Operation(Pointer(to, 8, 3), Pointer(from), extent));
  expect_refused("elements", Operation(ArrayAt(array.get()), ArrayAt(other.get()), extent));
  expect_refused("past the array", Operation(ArrayAt(array.get(), 1), Pointer(from), extent));
  expect_refused("no order",
                 Operation(Pointer(to), Pointer(from), extent, CU_MEMCPY_SRC_ACCESS_ORDER_INVALID));
  CUDA_MEMCPY3D_BATCH_OP unknown = Operation(Pointer(to), Pointer(from), extent);
  unknown.src.type = static_cast<CUmemcpy3DOperandType>(3);
  expect_refused("type", unknown);
  CUDA_MEMCPY3D_BATCH_OP right = Operation(Pointer(to), Pointer(from), extent);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy3DBatchAsync_v2(1, &right, 1, stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy3DBatchAsync_v2(1, &right, 0, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy3DBatchAsync_v2(1, nullptr, 0, stream));
}

}  // namespace
}  // namespace consort::tests::api
