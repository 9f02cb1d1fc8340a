// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/runtime.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "device/cpu/engine/access_checker.h"
#include "device/cpu/engine/block_runner.h"
#include "device/cpu/engine/device_printf.h"
#include "device/cpu/engine/half.h"
#include "device/cpu/engine/matrix.h"
#include "device/cpu/engine/mbarrier.h"
#include "device/cpu/engine/narrow.h"
#include "device/cpu/engine/thread_context.h"
#include "device/cpu/engine/warp_results.h"
#include "device/cpu/texture.h"

namespace consort::cpu {
namespace {

// --- Waiting and leaving ---

void Barrier(ThreadContext* context, uint32_t barrier, uint32_t count) {
  context->runner->Barrier(context, barrier, count);
}

void BarrierArrive(ThreadContext* context, uint32_t barrier, uint32_t count) {
  context->runner->BarrierArrive(context, barrier, count);
}

uint32_t BarrierReduction(ThreadContext* context, uint32_t barrier, uint32_t count, uint32_t op,
                          uint32_t predicate) {
  return context->runner->BarrierReduction(context, barrier, count, static_cast<BarrierReduce>(op),
                                           predicate != 0);
}

void WarpSync(ThreadContext* context, uint32_t mask) { context->runner->WarpSync(context, mask); }

uint64_t Shuffle(ThreadContext* context, uint32_t mode, uint32_t value, uint32_t b, uint32_t c,
                 uint32_t mask) {
  return context->runner->Shuffle(context, static_cast<ShuffleMode>(mode), value, b, c, mask);
}

uint32_t Vote(ThreadContext* context, uint32_t mode, uint32_t predicate, uint32_t mask) {
  return context->runner->Vote(context, static_cast<VoteMode>(mode), predicate != 0, mask);
}

uint64_t Match(ThreadContext* context, uint32_t all, uint64_t value, uint32_t mask) {
  return context->runner->Match(context, all != 0, value, mask);
}

uint32_t Reduce(ThreadContext* context, uint32_t op, uint32_t value, uint32_t mask) {
  return context->runner->Reduce(context, static_cast<WarpReduce>(op), value, mask);
}

void Matrix(ThreadContext* context, uint32_t operation, MatrixSlots* slots) {
  context->runner->Matrix(context, operation, slots);
}

uint32_t ActiveMask(ThreadContext* context, uint32_t place) {
  return context->runner->ActiveMask(context, place);
}

void Yield(ThreadContext* context) { context->runner->Yield(context); }

void* Frame(ThreadContext* context, uint32_t bytes) {
  return context->runner->CoroutineFrame(context, bytes);
}

void Done(ThreadContext* context) { context->runner->CoroutineDone(context); }

void Exit(ThreadContext* context) { context->runner->ExitThread(context); }

void Trap(ThreadContext* context) { context->runner->Abandon(LaunchFault::kTrap); }

// A call or branch through a value that names no target.
void BadCall(ThreadContext* context) { context->runner->Abandon(LaunchFault::kIllegalAddress); }

void StackOverflow(ThreadContext* context) {
  context->runner->Abandon(LaunchFault::kStackOverflow);
}

void WatchTime(ThreadContext* context) { context->runner->WatchTime(); }

// --- Checked code ---

void CheckAccess(ThreadContext* context, uint64_t address, uint32_t access, uint64_t site) {
  context->runner->EndOn(context->runner->checker().Check(*context, address, access, site));
}

void CheckObject(ThreadContext* context, uint64_t handle, uint32_t is_surface, uint64_t site) {
  context->runner->EndOn(
      context->runner->checker().CheckObject(*context, handle, is_surface != 0, site));
}

uint64_t CheckedMalloc(uint64_t bytes) { return DeviceHeap::Get().Allocate(bytes); }

void CheckedFree(ThreadContext* context, uint64_t address, uint64_t site) {
  if (address == 0 || DeviceHeap::Get().Free(address)) return;
  context->runner->checker().ReportFree(*context, address, site);
  context->runner->Abandon(LaunchFault::kIllegalAddress);
}

// --- Groups of threads in step ---

uint32_t GroupBarrierReduction(ThreadContext* context, uint32_t barrier, uint32_t count,
                               uint32_t op, uint32_t popc, uint32_t votes) {
  return context->runner->GroupBarrierReduction(context, barrier, count,
                                                static_cast<BarrierReduce>(op), popc, votes);
}

void SelectLane(ThreadContext* context, uint32_t lane) { BlockRunner::SelectLane(context, lane); }

// Arrays have an element for each lane of a warp; `here` has the lanes that take part, which is all
// that any of them names. A mask without the lane itself is undefined behaviour; the lane then
// counts as named.

void GroupShuffle(uint64_t* results, uint32_t mode, const uint64_t* values, const uint32_t* b,
                  const uint32_t* c, const uint32_t* masks, uint32_t here) {
  for (uint32_t rest = here; rest != 0; rest &= rest - 1) {
    const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    results[lane] = ShuffleResult(static_cast<ShuffleMode>(mode), values, lane, b[lane], c[lane],
                                  (masks[lane] | 1u << lane) & here);
  }
}

void GroupMatch(uint64_t* results, uint32_t all, const uint64_t* values, const uint32_t* masks,
                uint32_t here) {
  for (uint32_t rest = here; rest != 0; rest &= rest - 1) {
    const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    results[lane] = MatchResult(all != 0, values, lane, (masks[lane] | 1u << lane) & here);
  }
}

void GroupReduce(uint64_t* results, uint32_t op, const uint64_t* values, const uint32_t* masks,
                 uint32_t here) {
  for (uint32_t rest = here; rest != 0; rest &= rest - 1) {
    const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    results[lane] =
        ReduceResult(static_cast<WarpReduce>(op), values, (masks[lane] | 1u << lane) & here);
  }
}

void GroupLoadQuads(uint8_t* to, const uint8_t* const* from, uint32_t here) {
  for (uint32_t rest = here; rest != 0; rest &= rest - 1) {
    const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    std::memcpy(to + lane * kQuadBytes, from[lane], kQuadBytes);
  }
}

void GroupStoreQuads(const uint8_t* from, uint8_t* const* to, uint32_t here) {
  for (uint32_t rest = here; rest != 0; rest &= rest - 1) {
    const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    std::memcpy(to[lane], from + lane * kQuadBytes, kQuadBytes);
  }
}

void GroupMatrix(uint32_t operation, WarpMatrices* warp, uint32_t here) {
  RunMatrix(MatrixOperation::Unpack(operation), *warp, here);
}

void Fragment(ThreadContext* context, uint32_t operation, uint8_t* memory, uint64_t pitch,
              MatrixSlots* slots) {
  MoveFragment(MatrixOperation::Unpack(operation), memory, pitch, context->lane, *slots);
}

void GroupFragment(uint32_t operation, uint8_t* memory, uint64_t pitch, WarpMatrices* warp) {
  MoveFragment(MatrixOperation::Unpack(operation), memory, pitch, *warp);
}

// --- mbarrier objects ---

// The object before the arrivals. `drop` of them are not waited for in later phases either.
uint64_t MbarrierArrive(uint64_t* at, uint32_t count, uint32_t drop, uint32_t bytes) {
  const uint64_t before = *at;
  Mbarrier barrier = Mbarrier::Unpack(before);
  barrier.bytes += static_cast<int32_t>(bytes);
  barrier.expected -= drop;
  barrier.pending -= count;
  barrier.Complete();
  *at = barrier.Pack();
  return before;
}

void MbarrierBytes(uint64_t* at, int32_t change) {
  Mbarrier barrier = Mbarrier::Unpack(*at);
  barrier.bytes += change;
  barrier.Complete();
  *at = barrier.Pack();
}

void MbarrierInit(uint64_t* at, uint32_t count) {
  Mbarrier barrier;
  barrier.pending = barrier.expected = count;
  *at = barrier.Pack();
}

// Whether the phase with that parity, the present or the last one, is over.
uint32_t MbarrierTest(const uint64_t* at, uint32_t parity) {
  return Mbarrier::Unpack(*at).parity != ((parity & 1) != 0) ? 1 : 0;
}

// --- Textures and surfaces ---

// The object, of the kind wanted; ends the block without one.
const TextureObject& ObjectOf(ThreadContext* context, uint64_t handle, bool is_surface) {
  const TextureObject* const object = FindTexture(handle);
  if (object == nullptr || (is_surface && !object->is_surface)) {
    context->runner->Abandon(LaunchFault::kIllegalAddress);
  }
  return *object;
}

// As generated code has vectors of four words.
using FourWords = __m128i;

FourWords Texture(ThreadContext* context, uint32_t what, uint64_t handle, uint32_t c0, uint32_t c1,
                  uint32_t c2, uint32_t c3) {
  const TextureObject& object = ObjectOf(context, handle, /*is_surface=*/false);
  TextureQuery query;
  query.geometry = static_cast<Geometry>(what & kTextureGeometryMask);
  query.integers = (what & kTextureIntegers) != 0;
  query.bits = {c0, c1, c2, c3};
  return std::bit_cast<FourWords>(
      (what & kTextureGather) != 0 ? GatherTexture(object, query, what >> kTextureChannelShift & 3)
                                   : SampleTexture(object, query));
}

// The same, but for tld4, for a group of `lanes` threads with one object. Coordinates, null where
// they are zeros, by arrays with an element a lane, and so the four channels of results.
void GroupTexture(ThreadContext* context, uint32_t* results, uint32_t what, uint64_t handle,
                  const uint32_t* c0, const uint32_t* c1, const uint32_t* c2, const uint32_t* c3,
                  uint32_t lanes, uint32_t here) {
  if (here == 0) return;
  TextureQueries queries;
  queries.geometry = static_cast<Geometry>(what & kTextureGeometryMask);
  queries.integers = (what & kTextureIntegers) != 0;
  queries.bits = {c0, c1, c2, c3};
  SampleTextures(ObjectOf(context, handle, /*is_surface=*/false), queries, here, results, lanes);
}

uint32_t TextureSize(ThreadContext* context, uint64_t handle, uint32_t dimension) {
  const TexelGrid& grid = ObjectOf(context, handle, /*is_surface=*/false).grid;
  return static_cast<uint32_t>(dimension == 0   ? grid.width
                               : dimension == 1 ? grid.height
                                                : grid.slices);
}

// The address of an access to a surface, 0 where it is outside and that is no fault.
uintptr_t SurfacePlace(ThreadContext* context, uint32_t what, uint64_t handle,
                       const int32_t (&c)[3]) {
  const TextureObject& object = ObjectOf(context, handle, /*is_surface=*/true);
  const auto bounds = static_cast<SurfaceBounds>(what >> kSurfaceBoundsShift & 3);
  int64_t x = c[0], y = 0, z = 0;
  switch (static_cast<Geometry>(what & kTextureGeometryMask)) {
    case Geometry::k2D:
      y = c[1];
      break;
    case Geometry::k3D:
      y = c[1], z = c[2];
      break;
    case Geometry::kLayered1D:
      z = static_cast<uint32_t>(c[0]), x = c[1];
      break;
    case Geometry::kLayered2D:
      z = static_cast<uint32_t>(c[0]), x = c[1], y = c[2];
      break;
    default:
      break;
  }
  const uintptr_t address =
      SurfaceAddress(object, x, y, z, what >> kSurfaceBytesShift, bounds == SurfaceBounds::kClamp);
  if (address == 0 && bounds == SurfaceBounds::kTrap) {
    if (context->runner->is_checked()) context->runner->checker().ReportSurface(*context);
    context->runner->Abandon(LaunchFault::kIllegalAddress);
  }
  return address;
}

void SurfaceLoad(ThreadContext* context, void* results, uint32_t what, uint64_t handle, int32_t c0,
                 int32_t c1, int32_t c2, int32_t) {
  const uintptr_t address = SurfacePlace(context, what, handle, {c0, c1, c2});
  const size_t bytes = what >> kSurfaceBytesShift;
  if (address == 0) {
    std::memset(results, 0, bytes);
  } else {
    std::memcpy(results, reinterpret_cast<const void*>(address), bytes);
  }
}

void SurfaceStore(ThreadContext* context, const void* values, uint32_t what, uint64_t handle,
                  int32_t c0, int32_t c1, int32_t c2, int32_t) {
  const uintptr_t address = SurfacePlace(context, what, handle, {c0, c1, c2});
  if (address != 0) {
    std::memcpy(reinterpret_cast<void*>(address), values, what >> kSurfaceBytesShift);
  }
}

template <typename Word>
void ReduceAt(uintptr_t address, WarpReduce operation, const void* value) {
  Word operand = 0;
  std::memcpy(&operand, value, sizeof(operand));
  std::atomic_ref<Word> word(*reinterpret_cast<Word*>(address));
  Word before = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(before, Reduced(operation, before, operand),
                                     std::memory_order_relaxed)) {
  }
}

void SurfaceReduce(ThreadContext* context, const void* value, uint32_t what, uint64_t handle,
                   int32_t c0, int32_t c1, int32_t c2, int32_t, uint32_t operation) {
  const uintptr_t address = SurfacePlace(context, what, handle, {c0, c1, c2});
  if (address == 0) return;
  if (what >> kSurfaceBytesShift == sizeof(uint64_t)) {
    ReduceAt<uint64_t>(address, static_cast<WarpReduce>(operation), value);
  } else {
    ReduceAt<uint32_t>(address, static_cast<WarpReduce>(operation), value);
  }
}

// --- Device library ---

void AssertFail(ThreadContext* context, uint64_t message, uint64_t file, uint32_t line,
                uint64_t function) {
  PrintAssertFailure(*context, reinterpret_cast<const char*>(message),
                     reinterpret_cast<const char*>(file), line,
                     reinterpret_cast<const char*>(function));
  context->runner->Abandon(LaunchFault::kAssert);
}

uint32_t Vprintf(uint64_t format, uint64_t arguments) {
  return static_cast<uint32_t>(DevicePrintf(BlockRunner::Running()->output(),
                                            reinterpret_cast<const char*>(format),
                                            reinterpret_cast<const uint8_t*>(arguments)));
}

uint64_t Malloc(uint64_t bytes) { return reinterpret_cast<uint64_t>(std::malloc(bytes)); }
void Free(uint64_t address) { std::free(reinterpret_cast<void*>(address)); }

uint64_t Clock() { return __rdtsc(); }

uint64_t GlobalTimer() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

void CopyPadded(uint8_t* to, const uint8_t* from, uint32_t source_bytes, uint32_t bytes) {
  std::memcpy(to, from, source_bytes);
  std::memset(to + source_bytes, 0, bytes - source_bytes);
}

// --- Arithmetic under another rounding mode ---

// Computes `operation` with MXCSR set to `mode`. Operands and result pass through volatile objects
// in the callers, so that the compiler computes nothing before or after.
template <typename Operation>
auto WithRounding(uint32_t mode, Operation operation) {
  constexpr unsigned kModes[] = {_MM_ROUND_TOWARD_ZERO, _MM_ROUND_DOWN, _MM_ROUND_UP};
  const unsigned saved = _mm_getcsr();
  _mm_setcsr((saved & ~static_cast<unsigned>(_MM_ROUND_MASK)) | kModes[mode]);
  const volatile auto result = operation();
  _mm_setcsr(saved);
  return result;
}

template <typename T>
T Add(T a, T b, uint32_t mode) {
  const volatile T x = a, y = b;
  return WithRounding(mode, [&] { return x + y; });
}

template <typename T>
T Subtract(T a, T b, uint32_t mode) {
  const volatile T x = a, y = b;
  return WithRounding(mode, [&] { return x - y; });
}

template <typename T>
T Multiply(T a, T b, uint32_t mode) {
  const volatile T x = a, y = b;
  return WithRounding(mode, [&] { return x * y; });
}

template <typename T>
T Divide(T a, T b, uint32_t mode) {
  const volatile T x = a, y = b;
  return WithRounding(mode, [&] { return x / y; });
}

template <typename T>
T SquareRoot(T a, uint32_t mode) {
  const volatile T x = a;
  return WithRounding(mode, [&] { return std::sqrt(T{x}); });
}

template <typename T>
T FusedMultiplyAdd(T a, T b, T c, uint32_t mode) {
  const volatile T x = a, y = b, z = c;
  return WithRounding(mode, [&] { return std::fma(T{x}, T{y}, T{z}); });
}

template <typename T, typename Integer>
T FromInteger(Integer a, uint32_t mode) {
  const volatile Integer x = a;
  return WithRounding(mode, [&] { return static_cast<T>(x); });
}

float FromDouble(double a, uint32_t mode) {
  const volatile double x = a;
  return WithRounding(mode, [&] { return static_cast<float>(x); });
}

// What LLVM calls to convert 16-bit floats where the CPU has no instruction. They travel in the low
// part of the first vector register, as the ABI passes a _Float16 or __bf16.
__m128i NarrowToBfloat(float value) { return _mm_cvtsi32_si128(NarrowToBfloatBits(value)); }
__m128i NarrowToHalf(float value) { return _mm_cvtsi32_si128(NarrowToHalfBits(value)); }
float WidenHalfRegister(__m128i value) {
  return WidenHalf(static_cast<uint16_t>(_mm_cvtsi128_si32(value)));
}

uint32_t NarrowDouble(double value, uint32_t format, uint32_t rounding, uint32_t saturates) {
  return NarrowBits(value, static_cast<NarrowFormat>(format), static_cast<NarrowRounding>(rounding),
                    saturates != 0);
}

uint32_t NarrowInteger(uint64_t value, uint32_t is_signed, uint32_t format, uint32_t rounding) {
  return NarrowBits(IntegerToRound(value, is_signed != 0), static_cast<NarrowFormat>(format),
                    static_cast<NarrowRounding>(rounding), false);
}

// A pair of 8-bit floats to a pair of halves.
uint32_t WidenFp8(uint32_t pair, uint32_t format) {
  const auto of = static_cast<NarrowFormat>(format);
  return HalfOfFp8(static_cast<uint8_t>(pair), of) |
         uint32_t{HalfOfFp8(static_cast<uint8_t>(pair >> 8), of)} << 16;
}

// --- Atomics of 16-bit floats ---

// Adding in float and rounding once more gives the nearest 16-bit float to the exact sum: float has
// more than twice the bits of either.
uint16_t AddHalfBits(uint16_t a, uint16_t b, uint32_t is_bfloat) {
  return is_bfloat != 0 ? NarrowToBfloatBits(WidenBfloat(a) + WidenBfloat(b))
                        : NarrowToHalfBits(WidenHalf(a) + WidenHalf(b));
}

float Flushed(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

// Global memory's sums make zeros of subnormals, unlike shared memory's. Source: PTX
// ISA 9.0, 9.7.13.5 "atom".
float AtomicAddFlushed(uint32_t* at, float value) {
  std::atomic_ref<uint32_t> memory(*at);
  uint32_t old = memory.load(std::memory_order_relaxed);
  uint32_t sum = 0;
  do {
    sum = std::bit_cast<uint32_t>(Flushed(Flushed(std::bit_cast<float>(old)) + Flushed(value)));
  } while (!memory.compare_exchange_weak(old, sum, std::memory_order_acq_rel,
                                         std::memory_order_relaxed));
  return std::bit_cast<float>(old);
}

uint32_t AtomicAddHalf(uint16_t* at, uint32_t value, uint32_t is_bfloat) {
  std::atomic_ref<uint16_t> memory(*at);
  uint16_t old = memory.load(std::memory_order_relaxed);
  while (!memory.compare_exchange_weak(old,
                                       AddHalfBits(old, static_cast<uint16_t>(value), is_bfloat),
                                       std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
  return old;
}

uint32_t AtomicAddHalves(uint32_t* at, uint32_t value, uint32_t is_bfloat) {
  std::atomic_ref<uint32_t> memory(*at);
  uint32_t old = memory.load(std::memory_order_relaxed);
  uint32_t sum = 0;
  do {
    const auto low =
        AddHalfBits(static_cast<uint16_t>(old), static_cast<uint16_t>(value), is_bfloat);
    const auto high = AddHalfBits(static_cast<uint16_t>(old >> 16),
                                  static_cast<uint16_t>(value >> 16), is_bfloat);
    sum = low | uint32_t{high} << 16;
  } while (!memory.compare_exchange_weak(old, sum, std::memory_order_acq_rel,
                                         std::memory_order_relaxed));
  return old;
}

template <typename Function>
RuntimeSymbol Row(const char* name, Function* function) {
  return {name, reinterpret_cast<void*>(function)};
}

}  // namespace

std::span<const RuntimeSymbol> RuntimeSymbols() {
  using F = float (*)(float);
  static const RuntimeSymbol kSymbols[] = {
      Row("consort_rt_barrier", &Barrier),
      Row("consort_rt_barrier_arrive", &BarrierArrive),
      Row("consort_rt_barrier_reduce", &BarrierReduction),
      Row("consort_rt_warp_sync", &WarpSync),
      Row("consort_rt_shuffle", &Shuffle),
      Row("consort_rt_vote", &Vote),
      Row("consort_rt_match", &Match),
      Row("consort_rt_warp_reduce", &Reduce),
      Row("consort_rt_group_barrier_reduce", &GroupBarrierReduction),
      Row("consort_rt_group_shuffle", &GroupShuffle),
      Row("consort_rt_group_match", &GroupMatch),
      Row("consort_rt_group_reduce", &GroupReduce),
      Row("consort_rt_group_load_quads", &GroupLoadQuads),
      Row("consort_rt_group_store_quads", &GroupStoreQuads),
      Row("consort_rt_matrix", &Matrix),
      Row("consort_rt_mbarrier_init", &MbarrierInit),
      Row("consort_rt_mbarrier_arrive", &MbarrierArrive),
      Row("consort_rt_mbarrier_bytes", &MbarrierBytes),
      Row("consort_rt_mbarrier_test", &MbarrierTest),
      Row("consort_rt_group_matrix", &GroupMatrix),
      Row("consort_rt_fragment", &Fragment),
      Row("consort_rt_group_fragment", &GroupFragment),
      Row("consort_rt_select_lane", &SelectLane),
      Row("consort_rt_active_mask", &ActiveMask),
      Row("consort_rt_yield", &Yield),
      Row("consort_rt_frame", &Frame),
      Row("consort_rt_done", &Done),
      Row("consort_rt_exit", &Exit),
      Row("consort_rt_trap", &Trap),
      Row("consort_rt_bad_call", &BadCall),
      Row("consort_rt_stack_overflow", &StackOverflow),
      Row("consort_rt_watch_time", &WatchTime),
      Row("consort_rt_check_access", &CheckAccess),
      Row("consort_rt_check_object", &CheckObject),
      Row("consort_rt_checked_malloc", &CheckedMalloc),
      Row("consort_rt_checked_free", &CheckedFree),
      Row("consort_rt_texture", &Texture),
      Row("consort_rt_group_texture", &GroupTexture),
      Row("consort_rt_texture_size", &TextureSize),
      Row("consort_rt_surface_load", &SurfaceLoad),
      Row("consort_rt_surface_store", &SurfaceStore),
      Row("consort_rt_surface_reduce", &SurfaceReduce),
      Row("consort_rt_assertfail", &AssertFail),
      Row("consort_rt_vprintf", &Vprintf),
      Row("consort_rt_malloc", &Malloc),
      Row("consort_rt_free", &Free),
      Row("consort_rt_clock", &Clock),
      Row("consort_rt_global_timer", &GlobalTimer),
      Row("consort_rt_copy_padded", &CopyPadded),
      Row("consort_rt_add_f32", &Add<float>),
      Row("consort_rt_add_f64", &Add<double>),
      Row("consort_rt_sub_f32", &Subtract<float>),
      Row("consort_rt_sub_f64", &Subtract<double>),
      Row("consort_rt_mul_f32", &Multiply<float>),
      Row("consort_rt_mul_f64", &Multiply<double>),
      Row("consort_rt_div_f32", &Divide<float>),
      Row("consort_rt_div_f64", &Divide<double>),
      Row("consort_rt_sqrt_f32", &SquareRoot<float>),
      Row("consort_rt_sqrt_f64", &SquareRoot<double>),
      Row("consort_rt_fma_f32", &FusedMultiplyAdd<float>),
      Row("consort_rt_fma_f64", &FusedMultiplyAdd<double>),
      Row("consort_rt_from_s64_f32", &FromInteger<float, int64_t>),
      Row("consort_rt_from_s64_f64", &FromInteger<double, int64_t>),
      Row("consort_rt_from_u64_f32", &FromInteger<float, uint64_t>),
      Row("consort_rt_from_u64_f64", &FromInteger<double, uint64_t>),
      Row("consort_rt_from_double_f32", &FromDouble),
      Row("consort_rt_atomic_add_flushed", &AtomicAddFlushed),
      Row("consort_rt_atomic_add_half", &AtomicAddHalf),
      Row("consort_rt_atomic_add_halves", &AtomicAddHalves),
      Row("consort_rt_narrow", &NarrowDouble),
      Row("consort_rt_narrow_integer", &NarrowInteger),
      Row("consort_rt_widen_fp8", &WidenFp8),
      Row("__truncsfbf2", &NarrowToBfloat),
      Row("__truncsfhf2", &NarrowToHalf),
      Row("__extendhfsf2", &WidenHalfRegister),
      // The C library, for intrinsics that LLVM lowers to calls.
      Row("memcpy", &std::memcpy),
      Row("memmove", &std::memmove),
      Row("memset", &std::memset),
      Row("sinf", &::sinf),
      Row("cosf", &::cosf),
      Row("tanhf", &::tanhf),
      Row("fma", static_cast<double (*)(double, double, double)>(&std::fma)),
      Row("fmaf", static_cast<float (*)(float, float, float)>(&std::fma)),
      Row("fmin", static_cast<double (*)(double, double)>(&std::fmin)),
      Row("fminf", static_cast<float (*)(float, float)>(&std::fmin)),
      Row("fmax", static_cast<double (*)(double, double)>(&std::fmax)),
      Row("fmaxf", static_cast<float (*)(float, float)>(&std::fmax)),
      Row("trunc", static_cast<double (*)(double)>(&std::trunc)),
      Row("truncf", static_cast<F>(&std::trunc)),
      Row("floor", static_cast<double (*)(double)>(&std::floor)),
      Row("floorf", static_cast<F>(&std::floor)),
      Row("ceil", static_cast<double (*)(double)>(&std::ceil)),
      Row("ceilf", static_cast<F>(&std::ceil)),
      // In the default rounding mode, to nearest even, rint is roundeven.
      Row("roundeven", static_cast<double (*)(double)>(&std::nearbyint)),
      Row("roundevenf", static_cast<F>(&std::nearbyint)),
  };
  return kSymbols;
}

}  // namespace consort::cpu
