// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/instruction_table.h"

#include <algorithm>

#include "device/cpu/codegen/emit.h"
#include "device/cpu/codegen/emit_mbarrier.h"

namespace consort::cpu {
namespace {

using std::string_view;

constexpr string_view kNoModifiers = "";
constexpr string_view kNoTypes = "";
constexpr string_view kInts = "u16 u32 u64 s16 s32 s64";
constexpr string_view kPackedInts = "u16x2 s16x2";
constexpr string_view kInts32 = "u32 s32";
constexpr string_view kBits = "b16 b32 b64";
constexpr string_view kBitsAndPred = "pred b16 b32 b64";
constexpr string_view kBits32 = "b32 b64";
constexpr string_view kFields = "u32 u64 s32 s64";
constexpr string_view kFloats = "f32 f64";
constexpr string_view kAllFloats = "f16 f16x2 bf16 bf16x2 f32 f64";
constexpr string_view kMemoryTypes =
    "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64";
constexpr string_view kRegisterTypes =
    "pred b16 b32 b64 b128 u16 u32 u64 s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64";
constexpr string_view kCompareTypes = "b16 b32 b64 u16 u32 u64 s16 s32 s64 f16 bf16 f32 f64";
constexpr string_view kSetTypes =
    "b16 b32 b64 u16 u32 u64 s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64";
constexpr string_view kConvertTypes = "u8 u16 u32 u64 s8 s16 s32 s64 f16 bf16 f32 f64 f16x2 bf16x2";
constexpr string_view kCompares =
    "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz";
constexpr string_view kLoadModifiers =
    "global shared local const param generic weak volatile relaxed acquire mmio nc cta cluster gpu "
    "sys "
    "entry func ca cg cs lu cv v2 v4 L1::evict_normal L1::evict_unchanged L1::evict_first "
    "L1::evict_last L1::no_allocate L2::64B L2::128B L2::256B shared::cta unified param::entry "
    "param::func L2::evict_last L2::evict_normal L2::evict_first L2::cache_hint";
constexpr string_view kStoreModifiers =
    "global shared local param generic weak volatile relaxed release mmio cta cluster gpu sys func "
    "wb "
    "cg cs wt v2 v4 L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last "
    "L1::no_allocate shared::cta param::func L2::evict_last L2::evict_normal L2::evict_first "
    "L2::cache_hint";
constexpr string_view kAtomicModifiers =
    "global shared generic shared::cta relaxed acquire release acq_rel cta cluster gpu sys add min "
    "max inc dec exch cas and or xor noftz v2 v4 v8 L2::cache_hint";
constexpr string_view kAtomicTypes =
    "b16 b32 b64 b128 u32 u64 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64";

constexpr string_view kVideoModifiers = "sat add min max";
constexpr string_view kVideoPartModifiers = "sat add";
constexpr string_view kVideoCompares = "eq ne lt le gt ge add min max";
constexpr string_view kMatrixModifiers =
    "sync aligned load store mma a b c d row col satfinite tf32 s4 u4 b1 and xor popc rn global "
    "shared shared::cta generic m8n8k4 m8n8k16 m8n8k32 m8n8k128 m16n8k4 m16n8k8 m16n8k16 m16n8k32 "
    "m16n8k64 m16n8k128 m16n8k256 m16n16k16 m32n8k16 m8n32k16 m16n16k8";
constexpr string_view kMatrixTypes = "f16 bf16 f32 f64 s8 u8 s32";

// Sorted by chapter of the ISA. An opcode may have several rows: the first that takes all modifiers
// and types is used.
constexpr InstructionRow kRows[] = {
    // 9.7.1 Integer arithmetic
    {"add", "sat cc", kInts, 1, 3, 3, EmitIntegerAdd},
    {"sub", "sat cc", kInts, 1, 3, 3, EmitIntegerAdd},
    {"add", kNoModifiers, kPackedInts, 1, 3, 3, EmitPackedAdd},
    {"addc", "cc", kFields, 1, 3, 3, EmitIntegerAdd},
    {"subc", "cc", kFields, 1, 3, 3, EmitIntegerAdd},
    {"mul", "hi lo wide", kInts, 1, 3, 3, EmitIntegerMultiply},
    {"mad", "hi lo wide sat cc", kInts, 1, 4, 4, EmitIntegerMad},
    {"madc", "hi lo cc", kFields, 1, 4, 4, EmitIntegerMad},
    {"mul24", "hi lo", kInts32, 1, 3, 3, EmitIntegerMultiply},
    {"mad24", "hi lo sat", kInts32, 1, 4, 4, EmitIntegerMad},
    {"sad", kNoModifiers, kInts, 1, 4, 4, EmitSad},
    {"div", kNoModifiers, kInts, 1, 3, 3, EmitIntegerDivide},
    {"rem", kNoModifiers, kInts, 1, 3, 3, EmitIntegerDivide},
    {"abs", kNoModifiers, "s16 s32 s64", 1, 2, 2, EmitIntegerAbsNeg},
    {"neg", kNoModifiers, "s16 s32 s64", 1, 2, 2, EmitIntegerAbsNeg},
    {"min", "relu", kInts, 1, 3, 3, EmitIntegerMinMax},
    {"max", "relu", kInts, 1, 3, 3, EmitIntegerMinMax},
    {"min", "relu", kPackedInts, 1, 3, 3, EmitIntegerMinMax},
    {"max", "relu", kPackedInts, 1, 3, 3, EmitIntegerMinMax},
    {"popc", kNoModifiers, kBits32, 1, 2, 2, EmitBitCount},
    {"clz", kNoModifiers, kBits32, 1, 2, 2, EmitBitCount},
    {"bfind", "shiftamt", kFields, 1, 2, 2, EmitFindHighBit},
    {"fns", kNoModifiers, "b32", 1, 4, 4, EmitFindNthSet},
    {"brev", kNoModifiers, kBits32, 1, 2, 2, EmitBitReverse},
    {"bfe", kNoModifiers, kFields, 1, 4, 4, EmitBitFieldExtract},
    {"bfi", kNoModifiers, kBits32, 1, 5, 5, EmitBitFieldInsert},
    {"bmsk", "clamp wrap", "b32", 1, 3, 3, EmitBitMask},
    {"szext", "clamp wrap", kInts32, 1, 3, 3, EmitBitFieldExtract},
    {"dp4a", kNoModifiers, kInts32, 2, 4, 4, EmitDotProduct},
    {"dp2a", "lo hi", kInts32, 2, 4, 4, EmitDotProduct},
    // 9.7.3 to 9.7.5 Floating point
    {"testp", "finite infinite number notanumber normal subnormal", kFloats, 1, 2, 2, EmitTestp},
    {"copysign", kNoModifiers, kFloats, 1, 3, 3, EmitCopysign},
    {"add", "rn rz rm rp ftz sat", kAllFloats, 1, 3, 3, EmitFloatAdd},
    {"sub", "rn rz rm rp ftz sat", kAllFloats, 1, 3, 3, EmitFloatAdd},
    {"mul", "rn rz rm rp ftz sat", kAllFloats, 1, 3, 3, EmitFloatAdd},
    {"fma", "rn rz rm rp ftz sat relu", kAllFloats, 1, 4, 4, EmitFma},
    {"mad", "rn rz rm rp ftz sat", kFloats, 1, 4, 4, EmitFma},
    {"div", "approx full rn rz rm rp ftz", kFloats, 1, 3, 3, EmitFloatDivide},
    {"abs", "ftz", kAllFloats, 1, 2, 2, EmitFloatAbsNeg},
    {"neg", "ftz", kAllFloats, 1, 2, 2, EmitFloatAbsNeg},
    {"min", "ftz NaN xorsign abs", kAllFloats, 1, 3, 3, EmitFloatMinMax},
    {"max", "ftz NaN xorsign abs", kAllFloats, 1, 3, 3, EmitFloatMinMax},
    {"rcp", "approx rn rz rm rp ftz", kFloats, 1, 2, 2, EmitReciprocal},
    {"sqrt", "approx rn rz rm rp ftz", kFloats, 1, 2, 2, EmitSquareRoot},
    {"rsqrt", "approx ftz", kFloats, 1, 2, 2, EmitReciprocal},
    {"sin", "approx ftz", "f32", 1, 2, 2, EmitTranscendental},
    {"cos", "approx ftz", "f32", 1, 2, 2, EmitTranscendental},
    {"lg2", "approx ftz", "f32", 1, 2, 2, EmitTranscendental},
    {"ex2", "approx ftz", "f32 f16 f16x2 bf16 bf16x2", 1, 2, 2, EmitTranscendental},
    {"tanh", "approx", "f32 f16 f16x2 bf16 bf16x2", 1, 2, 2, EmitTranscendental},
    // 9.7.6, 9.7.7 Comparison and selection
    {"setp", kCompares, kSetTypes, 1, 3, 4, EmitSetp},
    {"set", kCompares, kSetTypes, 2, 3, 4, EmitSet},
    {"selp", kNoModifiers, kCompareTypes, 1, 4, 4, EmitSelp},
    {"slct", "ftz", "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", 2, 4, 4, EmitSlct},
    // 9.7.8 Logic and shift
    {"and", kNoModifiers, kBitsAndPred, 1, 3, 3, EmitLogic},
    {"or", kNoModifiers, kBitsAndPred, 1, 3, 3, EmitLogic},
    {"xor", kNoModifiers, kBitsAndPred, 1, 3, 3, EmitLogic},
    {"not", kNoModifiers, kBitsAndPred, 1, 2, 2, EmitLogic},
    {"cnot", kNoModifiers, kBits, 1, 2, 2, EmitLogic},
    {"lop3", kNoModifiers, "b32", 1, 5, 5, EmitLogic3},
    {"shf", "l r clamp wrap", "b32", 1, 4, 4, EmitFunnelShift},
    {"shl", kNoModifiers, kBits, 1, 3, 3, EmitShift},
    {"shr", kNoModifiers, "b16 b32 b64 u16 u32 u64 s16 s32 s64", 1, 3, 3, EmitShift},
    // 9.7.9 Data movement and conversion
    {"mov", kNoModifiers, kRegisterTypes, 1, 2, 2, EmitMove},
    {"prmt", "f4e b4e rc8 ecl ecr rc16", "b32", 1, 4, 4, EmitPermute},
    {"ld", kLoadModifiers, kMemoryTypes, 1, 2, 2, EmitLoad},
    {"ldu", "global v2 v4", kMemoryTypes, 1, 2, 2, EmitLoad},
    {"st", kStoreModifiers, kMemoryTypes, 1, 2, 2, EmitStore},
    {"cvta", "to const global local shared param shared::cta param::entry", "u32 u64", 1, 2, 2,
     EmitCvta},
    {"isspacep", "const global local shared param shared::cta param::entry", kNoTypes, 0, 2, 2,
     EmitIsSpace},
    {"cvt", "rni rzi rmi rpi rn rz rm rp rna ftz sat relu satfinite", kConvertTypes, 2, 2, 3,
     EmitCvt},
    {"cvt", "rna rn rz relu satfinite tf32", "f32", 1, 2, 2, EmitCvtTf32},
    {"cvt", "rn relu satfinite e4m3x2 e5m2x2", "f32 f16x2", 1, 2, 3, EmitCvtFp8},
    {"cvt", "pack sat u4 s4 u2 s2", "u16 s16 u8 s8 s32 b32", 1, 3, 4, EmitCvtPack},
    {"prefetch", "global local L1 L2 L2::evict_last L2::evict_normal", kNoTypes, 0, 1, 1,
     EmitPrefetch},
    {"prefetchu", "L1", kNoTypes, 0, 1, 1, EmitPrefetch},
    {"createpolicy",
     "fractional range cvt L2 global L2::evict_last L2::evict_normal L2::evict_first "
     "L2::evict_unchanged",
     "b64", 1, 1, 4, EmitCreatePolicy},
    {"cp", "async ca cg shared shared::cta global L2::64B L2::128B L2::256B L2::cache_hint",
     kNoTypes, 0, 3, 4, EmitCopyAsync},
    {"cp", "async commit_group wait_group wait_all", kNoTypes, 0, 0, 1, EmitCopyAsyncWait},
    // 9.7.10, 9.7.11 Video
    {"vadd", kVideoModifiers, kInts32, 3, 3, 4, EmitVideo},
    {"vsub", kVideoModifiers, kInts32, 3, 3, 4, EmitVideo},
    {"vabsdiff", kVideoModifiers, kInts32, 3, 3, 4, EmitVideo},
    {"vmin", kVideoModifiers, kInts32, 3, 3, 4, EmitVideo},
    {"vmax", kVideoModifiers, kInts32, 3, 3, 4, EmitVideo},
    {"vshl", "sat clamp wrap add min max", kInts32, 3, 3, 4, EmitVideo},
    {"vshr", "sat clamp wrap add min max", kInts32, 3, 3, 4, EmitVideo},
    {"vset", kVideoCompares, kInts32, 2, 3, 4, EmitVideo},
    {"vmad", "sat shr7 shr15 po", kInts32, 3, 4, 4, EmitVideoMad},
    {"vadd2", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vsub2", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vavrg2", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vabsdiff2", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vmin2", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vmax2", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vset2", kVideoCompares, kInts32, 2, 4, 4, EmitVideoParts},
    {"vadd4", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vsub4", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vavrg4", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vabsdiff4", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vmin4", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vmax4", kVideoPartModifiers, kInts32, 3, 4, 4, EmitVideoParts},
    {"vset4", kVideoCompares, kInts32, 2, 4, 4, EmitVideoParts},
    {"cp", "async mbarrier arrive noinc shared shared::cta", "b64", 1, 1, 1, EmitCopyAsyncArrive},
    // Textures and surfaces
    {"tex", "1d 2d 3d a1d a2d cube acube v2 v4 level grad base", "u32 s32 f32 f16 f16x2", 2, 2, 4,
     EmitTexture},
    {"tld4", "r g b a 2d a2d cube acube v4", "u32 s32 f32", 2, 2, 2, EmitTextureGather},
    {"txq", "width height depth", "b32", 1, 2, 2, EmitTextureQuery},
    {"suq", "width height depth", "b32", 1, 2, 2, EmitTextureQuery},
    {"suld", "b 1d 2d 3d a1d a2d v2 v4 trap clamp zero ca cg cs cv", "b8 b16 b32 b64", 1, 2, 2,
     EmitSurfaceLoad},
    {"sust", "b 1d 2d 3d a1d a2d v2 v4 trap clamp zero wb cg cs wt", "b8 b16 b32 b64", 1, 2, 2,
     EmitSurfaceStore},
    {"sured", "b add min max and or 1d 2d 3d a1d a2d trap clamp zero", "b32 u32 s32 u64 s64", 1, 2,
     2, EmitSurfaceReduce},
    // 9.7.12 Control flow
    {"bra", "uni", kNoTypes, 0, 1, 1, EmitBranch},
    {"brx", "idx uni", kNoTypes, 0, 2, 2, EmitBranchIndexed},
    {"call", "uni", kNoTypes, 0, 1, 4, EmitCall},
    {"ret", "uni", kNoTypes, 0, 0, 0, EmitRet},
    {"exit", kNoModifiers, kNoTypes, 0, 0, 0, EmitExit},
    // 9.7.13 Parallel synchronisation
    {"bar", "cta warp sync arrive red popc and or", "u32 pred", 0, 1, 4, EmitBarrier},
    {"barrier", "cta sync arrive red popc and or aligned", "u32 pred", 0, 1, 4, EmitBarrier},
    {"membar", "cta gl sys", kNoTypes, 0, 0, 0, EmitFence},
    {"fence",
     "sc acq_rel acquire release cta cluster gpu sys proxy async alias mbarrier_init generic "
     "global "
     "shared::cta",
     kNoTypes, 0, 0, 0, EmitFence},
    {"mbarrier",
     "init inval arrive arrive_drop test_wait try_wait pending_count expect_tx complete_tx "
     "noComplete parity relaxed acquire release cta cluster shared shared::cta shared::cluster",
     "b64", 0, 1, 4, EmitMbarrier},
    {"atom", kAtomicModifiers, kAtomicTypes, 1, 3, 4, EmitAtomic},
    {"red", kAtomicModifiers, kAtomicTypes, 1, 2, 2, EmitReduction},
    {"shfl", "sync up down bfly idx", "b32", 1, 4, 5, EmitShuffle},
    {"vote", "sync all any uni ballot", "pred b32", 1, 2, 3, EmitVote},
    {"match", "sync any all", kBits32, 1, 3, 3, EmitMatch},
    {"activemask", kNoModifiers, "b32", 1, 1, 1, EmitActiveMask},
    {"redux", "sync add min max and or xor", "u32 s32 b32", 1, 3, 3, EmitWarpReduce},
    {"elect", "sync", kNoTypes, 0, 2, 2, EmitElect},
    // 9.7.14 Matrices
    {"mma", kMatrixModifiers, kMatrixTypes, 2, 4, 4, EmitMma},
    {"wmma", kMatrixModifiers, kMatrixTypes, 0, 2, 4, EmitWmma},
    {"ldmatrix", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta", "b16", 1, 2, 2,
     EmitMatrixMove},
    {"stmatrix", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta", "b16", 1, 2, 2,
     EmitMatrixMove},
    {"movmatrix", "sync aligned m8n8 trans", "b16", 1, 2, 2, EmitMatrixTranspose},
    // 9.7.19 Miscellaneous
    {"trap", kNoModifiers, kNoTypes, 0, 0, 0, EmitTrap},
    {"brkpt", kNoModifiers, kNoTypes, 0, 0, 0, EmitTrap},
    {"alloca", kNoModifiers, "u64", 1, 2, 3, EmitAlloca},
    {"stacksave", kNoModifiers, "u64", 1, 1, 1, EmitStackSave},
    {"stackrestore", kNoModifiers, "u64", 1, 1, 1, EmitStackRestore},
    {"nanosleep", kNoModifiers, "u32", 1, 1, 1, EmitNanosleep},
    {"pmevent", "mask", kNoTypes, 0, 1, 1, EmitNothing},
    {"griddepcontrol", "launch_dependents wait", kNoTypes, 0, 0, 0, EmitNothing},
    {"discard", "global L2", kNoTypes, 0, 2, 2, EmitNothing},
    {"applypriority", "global L2::evict_normal", kNoTypes, 0, 2, 2, EmitNothing},
};

// True if `word` is one of the space-separated `words`.
bool Contains(string_view words, string_view word) {
  for (size_t at = words.find(word); at != string_view::npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
}

bool Takes(const InstructionRow& row, const ptx::Instruction& instruction) {
  if (row.opcode != instruction.opcode) return false;
  return std::all_of(
      instruction.modifiers.begin(), instruction.modifiers.end(), [&row](string_view modifier) {
        return Contains(ptx::TypeFromName(modifier) ? row.types : row.modifiers, modifier);
      });
}

}  // namespace

Step::Step(FunctionEmitter& emitter, const ptx::Instruction& instruction)
    : f(emitter), instruction(instruction) {
  for (const string_view modifier : instruction.modifiers) {
    if (const auto type = ptx::TypeFromName(modifier)) types.push_back(*type);
  }
}

bool Step::Has(string_view modifier) const {
  return std::find(instruction.modifiers.begin(), instruction.modifiers.end(), modifier) !=
         instruction.modifiers.end();
}

string_view Step::OneOf(string_view names) const {
  for (const string_view modifier : instruction.modifiers) {
    if (Contains(names, modifier)) return modifier;
  }
  return {};
}

void Step::Unsupported() {
  f.Fail(absl::StatusCode::kUnimplemented,
         "instruction `" + InstructionText(instruction) + "` is not supported");
}

ptx::Space Step::space() const {
  if (Has("global")) return ptx::Space::kGlobal;
  if (Has("shared") || Has("shared::cta")) return ptx::Space::kShared;
  if (Has("local")) return ptx::Space::kLocal;
  if (Has("const")) return ptx::Space::kConst;
  if (Has("param") || Has("param::entry") || Has("param::func")) return ptx::Space::kParam;
  return ptx::Space::kRegister;
}

const InstructionRow* FindInstruction(const ptx::Instruction& instruction) {
  for (const InstructionRow& row : kRows) {
    if (Takes(row, instruction)) return &row;
  }
  return nullptr;
}

std::string InstructionText(const ptx::Instruction& instruction) {
  std::string text(instruction.opcode);
  for (const string_view modifier : instruction.modifiers) {
    text += '.';
    text += modifier;
  }
  return text;
}

}  // namespace consort::cpu
