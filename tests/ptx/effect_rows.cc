// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/effect_rows.h"

namespace consort::ptx_suite {
namespace {

using std::string_view;

struct List {
  string_view name;
  string_view words;
};

// What stands between an instruction's name and its type.
constexpr List kLists[] = {
    {"global_loads",
     "global|global.ca|global.cg|global.cs|global.lu|global.cv|weak.global|weak.global.cg|"
     "volatile.global|relaxed.cta.global|relaxed.cluster.global|relaxed.gpu.global|"
     "relaxed.sys.global|acquire.cta.global|acquire.cluster.global|acquire.gpu.global|"
     "acquire.sys.global|mmio.relaxed.sys.global|global.L1::evict_normal|"
     "global.L1::evict_unchanged|global.L1::evict_first|global.L1::evict_last|"
     "global.L1::no_allocate|global.L2::64B|global.L2::128B|global.L2::256B"},
    {"global_vector_loads",
     "global|global.ca|global.cg|global.cs|global.lu|global.cv|weak.global|volatile.global|"
     "relaxed.cta.global|relaxed.sys.global|acquire.gpu.global|global.L1::evict_normal|"
     "global.L1::evict_unchanged|global.L1::evict_first|global.L1::evict_last|"
     "global.L1::no_allocate|global.L2::64B|global.L2::128B|global.L2::256B"},
    {"read_only_loads",
     "ld.global.nc|ld.global.ca.nc|ld.global.cg.nc|ld.global.cs.nc|ld.global.nc.L1::evict_normal|"
     "ld.global.nc.L1::evict_unchanged|ld.global.nc.L1::evict_first|ld.global.nc.L1::evict_last|"
     "ld.global.nc.L1::no_allocate|ld.global.nc.L2::64B|ld.global.nc.L2::128B|"
     "ld.global.nc.L2::256B|ldu.global"},
    {"shared_loads",
     "shared|shared::cta|weak.shared|volatile.shared|volatile.shared::cta|relaxed.cta.shared|"
     "relaxed.gpu.shared::cta|relaxed.cluster.shared|relaxed.sys.shared|acquire.cta.shared|"
     "acquire.gpu.shared|acquire.cluster.shared|acquire.sys.shared::cta"},
    {"global_stores",
     "global|global.wb|global.cg|global.cs|global.wt|weak.global|weak.global.wt|volatile.global|"
     "relaxed.cta.global|relaxed.cluster.global|relaxed.gpu.global|relaxed.sys.global|"
     "release.cta.global|release.cluster.global|release.gpu.global|release.sys.global|"
     "mmio.relaxed.sys.global|global.L1::evict_normal|global.L1::evict_unchanged|"
     "global.L1::evict_first|global.L1::evict_last|global.L1::no_allocate"},
    {"global_vector_stores",
     "global|global.wb|global.cg|global.cs|global.wt|weak.global|volatile.global|"
     "relaxed.cta.global|relaxed.sys.global|release.gpu.global|global.L1::evict_normal|"
     "global.L1::evict_unchanged|global.L1::evict_first|global.L1::evict_last|"
     "global.L1::no_allocate"},
    {"shared_stores",
     "shared|shared::cta|weak.shared|volatile.shared|volatile.shared::cta|relaxed.cta.shared|"
     "relaxed.gpu.shared::cta|relaxed.cluster.shared|relaxed.sys.shared|release.cta.shared|"
     "release.gpu.shared|release.cluster.shared|release.sys.shared::cta"},
    {"generic_loads",
     "ld|ld.ca|ld.cg|ld.cs|ld.lu|ld.cv|ld.weak|ld.volatile|ld.relaxed.cta|ld.relaxed.cluster|"
     "ld.relaxed.gpu|ld.relaxed.sys|ld.acquire.cta|ld.acquire.cluster|ld.acquire.gpu|"
     "ld.acquire.sys|ld.L1::evict_first|ld.L2::128B"},
    {"generic_stores",
     "st|st.wb|st.cg|st.cs|st.wt|st.weak|st.volatile|st.relaxed.cta|st.relaxed.cluster|"
     "st.relaxed.gpu|st.relaxed.sys|st.release.cta|st.release.cluster|st.release.gpu|"
     "st.release.sys|st.L1::evict_last"},
    {"orders",
     "relaxed.cta|relaxed.cluster|relaxed.gpu|relaxed.sys|acquire.cta|acquire.cluster|acquire.gpu|"
     "acquire.sys|release.cta|release.cluster|release.gpu|release.sys|acq_rel.cta|"
     "acq_rel.cluster|acq_rel.gpu|acq_rel.sys"},
    {"reduction_orders",
     "relaxed.cta|relaxed.cluster|relaxed.gpu|relaxed.sys|release.cta|release.cluster|release.gpu|"
     "release.sys"},
    {"fences",
     "membar.cta|membar.gl|membar.sys|fence.sc.cta|fence.sc.cluster|fence.sc.gpu|fence.sc.sys|"
     "fence.acq_rel.cta|fence.acq_rel.cluster|fence.acq_rel.gpu|fence.acq_rel.sys|fence.cta|"
     "fence.gpu|fence.proxy.alias|fence.proxy.async|fence.proxy.async.global|"
     "fence.proxy.async.shared::cta|fence.mbarrier_init.release.cluster"},
    {"barriers",
     "bar.sync 0|bar.sync 1|bar.sync 15, 128|bar.cta.sync 2|bar.cta.sync 3, 128|barrier.sync 4|"
     "barrier.sync 5, 128|barrier.sync.aligned 6|barrier.sync.aligned 7, 128|barrier.cta.sync 8|"
     "barrier.cta.sync.aligned 9|barrier.cta.sync.aligned 10, 128"},
    {"comparisons", "eq|ne|lt|le|gt|ge"},
    {"unsigned_comparisons", "eq|ne|lt|le|gt|ge|lo|ls|hi|hs"},
    {"float_comparisons", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"},
};

// Words of codes that stand for more.
constexpr List kTexts[] = {
    // Mixes what is in a scratch register, or in two, into the result.
    {"MIX", "mad.lo.u32 %d, %d, 3, %t;"},
    {"MIX_PAIR", "mad.lo.u32 %d, %d, 3, %t; mad.lo.u32 %d, %d, 5, %u;"},
    {"MIX_WIDE", "mad.lo.u64 %d, %d, 3, %x;"},
    {"MIX_WIDE_PAIR", "mad.lo.u64 %d, %d, 3, %x; mad.lo.u64 %d, %d, 5, %y;"},
    {"MIX_PREDICATES",
     "selp.b32 %t, 1, 0, %p; selp.b32 %u, 2, 0, %q; or.b32 %t, %t, %u; mad.lo.u32 %d, %d, 3, %t;"},
    {"QUAD", "{%d0, %d1, %d2, %d3}"},
    // Where a thread has a texel of its own: in %t and %u, to be multiplied by a texel's bytes.
    {"OWN", "and.b32 %t, %tuple, 63; shr.u32 %u, %tuple, 6; mul.lo.u32 %t, %t,"},
    // Of wmma: sixteen bytes a lane, and again in other orders, fill the warp's part of shared
    // memory, 2 KiB with a, 2 with b and 4 with c. Each line of a matrix takes 32 elements.
    {"FILL_FACTORS",
     "{{0], {%a0, %a1, %a2, %a3}|512], {%a1, %a2, %a3, %a0}|1024], {%a2, %a3, %a0, %a1}|"
     "1536], {%a3, %a0, %a1, %a2}|2048], {%b0, %b1, %b2, %b3}|2560], {%b1, %b2, %b3, %b0}|"
     "3072], {%b2, %b3, %b0, %b1}|3584], {%b3, %b0, %b1, %b2}=>st.shared.v4.b32 [%rs+#; }}"},
    {"FILL_SUMS",
     "{{4096], {%c0, %c1, %c2, %c3}|4608], {%c1, %c2, %c3, %c0}|5120], {%c2, %c3, %c0, %c1}|"
     "5632], {%c3, %c0, %c1, %c2}|6144], {%c0, %c2, %c1, %c3}|6656], {%c1, %c3, %c2, %c0}|"
     "7168], {%c2, %c0, %c3, %c1}|7680], {%c3, %c1, %c0, %c2}=>st.shared.v4.b32 [%rs+#; }}"},
    {"FILL_DOUBLES",
     "{{0], {%a0, %a1}|512], {%a1, %a0}|1024], {%a0, %b1}|1536], {%a1, %b0}|2048], {%b0, %b1}|"
     "2560], {%b1, %b0}|3072], {%b0, %a1}|3584], {%b1, %a0}|4096], {%c0, %c1}|4608], {%c1, %c0}|"
     "5120], {%c0, %a1}|5632], {%c1, %b0}|6144], {%a0, %c1}|6656], {%b0, %c1}|7168], {%c1, %c1}|"
     "7680], {%c0, %c0}=>st.shared.v2.b64 [%rs+#; }}"},
    {"READ_SUMS",
     "{{0|1|2|3=>.reg .b32 %m#; mov.b32 %d#, 0; }}"
     "{{4096|4608|5120|5632|6144|6656|7168|7680=>ld.shared.v4.b32 {%m0, %m1, %m2, %m3}, [%rs+#]; "
     "mad.lo.u32 %d0, %d0, 3, %m0; mad.lo.u32 %d1, %d1, 3, %m1; mad.lo.u32 %d2, %d2, 3, %m2; "
     "mad.lo.u32 %d3, %d3, 3, %m3; }}bar.warp.sync -1;"},
    {"REGISTERS", "{{0|1|2|3|4|5|6|7=>.reg .b32 %f#, %v#, %r#; }}bar.warp.sync -1;"},
    {"F1", "{%f0}"},
    {"F2", "{%f0, %f1}"},
    {"F4", "{%f0, %f1, %f2, %f3}"},
    {"F8", "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}"},
    {"V1", "{%v0}"},
    {"V2", "{%v0, %v1}"},
    {"V4", "{%v0, %v1, %v2, %v3}"},
    {"V8", "{%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}"},
    {"R2", "{%r0, %r1}"},
    {"R4", "{%r0, %r1, %r2, %r3}"},
    {"R8", "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}"},
};

constexpr Row kEffectRows[] = {
    // --- 9.7.9.8 to 9.7.9.12 Loads and stores: each cache operator, order, scope and priority ---
    {"mov.b32 %d, 0; st.global.b32 [%g], %a; "
     "{{global_loads=>ld.#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> %t, [%g]; MIX }}",
     "b32 b32"},
    {"mov.b32 %d, 0; st.global.v4.b32 [%g], {%a, %b, %b, %a}; "
     "{{global_vector_loads=>ld.#.v2.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> {%t, %u}, [%g]; "
     "MIX_PAIR ld.#.v4.$1 {%t, %u, %t, %u}, [%g]; MIX_PAIR }}",
     "b32 b32 b32"},
    {"mov.b64 %d, 0; st.global.v2.b64 [%g], {%a, %b}; "
     "{{global_loads=>ld.#.<b64|u64|s64|f64> %x, [%g]; MIX_WIDE }}"
     "{{global_vector_loads=>ld.#.v2.$1 {%x, %y}, [%g]; MIX_WIDE_PAIR }}",
     "b64 b64 b64"},
    {"mov.b64 %d, 0; st.global.v2.b64 [%g], {%a, %b}; "
     "{{global|volatile.global|relaxed.cta.global|relaxed.sys.global|acquire.gpu.global=>"
     "ld.#.b128 %z, [%g]; mov.b128 {%x, %y}, %z; MIX_WIDE_PAIR }}"
     "{{global|volatile.global|relaxed.cta.global|relaxed.sys.global|release.gpu.global=>"
     "mov.b128 %z, {%d, %a}; st.#.b128 [%g], %z; ld.global.v2.b64 {%x, %y}, [%g]; MIX_WIDE_PAIR }}",
     "b64 b64 b64"},
    {"mov.b32 %d, 0; {{read_only_loads=>#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> %t, [%i]; MIX "
     "#.v2.$1 {%t, %u}, [%i]; MIX_PAIR }}",
     "b32 b32"},
    {"mov.b32 %d, 0; {{read_only_loads=>#.v4.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> "
     "{%t, %u, %t, %u}, [%i]; MIX_PAIR }}",
     "b32 b64*2"},
    {"mov.b64 %d, 0; {{read_only_loads=>#.<b64|u64|s64|f64> %x, [%i]; MIX_WIDE #.v2.$1 {%x, %y}, "
     "[%i]; MIX_WIDE_PAIR }}",
     "b64 b64*2"},
    {"mov.b32 %d, 0; st.shared.b32 [%s], %a; "
     "{{shared_loads=>ld.#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> %t, [%s]; MIX }}",
     "b32 b32"},
    {"mov.b32 %d, 0; st.shared.v4.b32 [%s], {%a, %b, %b, %a}; "
     "{{shared|weak.shared|volatile.shared|shared::cta=>"
     "ld.#.v2.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> {%t, %u}, [%s]; MIX_PAIR ld.#.v4.$1 {%t, %u, "
     "%t, %u}, [%s]; MIX_PAIR }}",
     "b32 b32 b32"},
    {"mov.b64 %d, 0; st.shared.v2.b64 [%s], {%a, %b}; "
     "{{shared_loads=>ld.#.<b64|u64|s64|f64> %x, [%s]; MIX_WIDE ld.#.v2.$1 {%x, %y}, [%s]; "
     "MIX_WIDE_PAIR }}",
     "b64 b64 b64"},
    {"mov.b32 %d, 0; mov.b32 %u, %b; st.global.b32 [%g], %b; "
     "{{global_stores=>st.#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> [%g], %u; "
     "ld.global.b32 %t, [%g]; MIX mad.lo.u32 %u, %u, 5, %a; st.global.b32 [%g], %u; }}",
     "b32 b32 b32"},
    {"mov.b32 %d, 0; mov.b32 %u, %b; st.global.v4.b32 [%g], {%a, %b, %b, %a}; "
     "{{global_vector_stores=>st.#.v2.<b32> [%g], {%u, %d}; st.#.v4.$1 [%g], {%t, %d, %a, %u}; "
     "ld.global.v4.u32 {%t, %u, %t, %u}, [%g]; MIX_PAIR }}",
     "b32 b32 b32"},
    {"mov.b32 %d, 0; mov.b32 %u, %b; st.global.v4.b32 [%g], {%a, %b, %b, %a}; "
     "{{global|volatile.global|release.gpu.global=>"
     "st.#.v2.<b8|u8|s8|b16|u16|s16|u32|s32|f32> [%g], {%u, %d}; "
     "ld.global.v2.u32 {%t, %u}, [%g]; MIX_PAIR st.#.v4.$1 [%g], {%t, %d, %a, %u}; "
     "ld.global.v4.u32 {%t, %u, %t, %u}, [%g]; MIX_PAIR }}",
     "b32 b32 b32"},
    {"mov.b64 %d, 0; {{global_stores=>st.#.<b64|u64|s64|f64> [%g], %a; ld.global.b64 %x, [%g]; "
     "MIX_WIDE }}{{global_vector_stores=>st.#.v2.$1 [%g], {%d, %b}; "
     "ld.global.v2.b64 {%x, %y}, [%g]; MIX_WIDE_PAIR }}",
     "b64 b64 b64"},
    {"mov.b32 %d, 0; mov.b32 %u, %b; st.shared.b32 [%s], %a; "
     "{{shared_stores=>st.#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> [%s], %u; "
     "ld.shared.b32 %t, [%s]; MIX mad.lo.u32 %u, %u, 5, %a; }}",
     "b32 b32 b32"},
    {"mov.b32 %d, 0; mov.b32 %u, %b; st.shared.v4.b32 [%s], {%a, %b, %b, %a}; "
     "{{shared|weak.shared|volatile.shared|shared::cta=>"
     "st.#.v2.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> [%s], {%u, %d}; "
     "ld.shared.v2.u32 {%t, %u}, [%s]; MIX_PAIR st.#.v4.$1 [%s], {%t, %d, %a, %u}; "
     "ld.shared.v4.u32 {%t, %u, %t, %u}, [%s]; MIX_PAIR }}",
     "b32 b32 b32"},
    {"mov.b64 %d, 0; {{shared_stores=>st.#.<b64|u64|s64|f64> [%s], %a; ld.shared.b64 %x, [%s]; "
     "MIX_WIDE st.#.v2.$1 [%s], {%d, %b}; ld.shared.v2.b64 {%x, %y}, [%s]; MIX_WIDE_PAIR }}",
     "b64 b64 b64"},
    // Of constant memory at places that differ between threads.
    {"mov.b32 %d, 0; and.b32 %t, %a, 240; mov.u64 %y, constants; cvt.u64.u32 %x, %t; "
     "add.u64 %y, %y, %x; {{const|weak.const=>ld.#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> %t, "
     "[%y]; MIX ld.#.v2.$1 {%t, %u}, [%y+8]; MIX_PAIR ld.#.v4.$1 {%t, %u, %t, %u}, [%y]; MIX_PAIR "
     "}} ld.const.$1 %t, [constants+4]; MIX",
     "b32 b32"},
    {"mov.b64 %d, 0; and.b32 %t, %a, 240; mov.u64 %y, constants; cvt.u64.u32 %x, %t; "
     "add.u64 %y, %y, %x; ld.const.<b64|u64|s64|f64> %x, [%y]; MIX_WIDE ld.const.v2.$1 {%x, %y}, "
     "[%y]; MIX_WIDE_PAIR",
     "b64 b32"},
    {"mov.b32 %d, 0; st.local.v4.b32 [%l], {%a, %b, %b, %a}; "
     "{{local|local.ca|local.cg|local.cs|local.lu|local.cv|weak.local=>"
     "ld.#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> %t, [%l+4]; MIX ld.#.v2.$1 {%t, %u}, [%l+8]; "
     "MIX_PAIR ld.#.v4.$1 {%t, %u, %t, %u}, [%l]; MIX_PAIR }}",
     "b32 b32 b32"},
    {"mov.b64 %d, 0; st.local.v2.b64 [%l], {%a, %b}; "
     "{{local|local.ca|local.cg|local.cs|local.lu|local.cv|weak.local=>"
     "ld.#.<b64|u64|s64|f64> %x, [%l]; MIX_WIDE ld.#.v2.$1 {%x, %y}, [%l]; MIX_WIDE_PAIR }}",
     "b64 b64 b64"},
    {"mov.b32 %d, 0; mov.b32 %u, %b; st.local.v4.b32 [%l], {%a, %b, %b, %a}; "
     "{{local|local.wb|local.cg|local.cs|local.wt|weak.local=>"
     "st.#.<b8|u8|s8|b16|u16|s16|b32|u32|s32|f32> [%l+4], %u; "
     "st.#.v2.$1 [%l+8], {%u, %d}; ld.local.v4.u32 {%t, %u, %t, %u}, [%l]; MIX_PAIR st.#.v4.$1 "
     "[%l], {%t, %d, %a, %u}; ld.local.v4.u32 {%t, %u, %t, %u}, [%l]; MIX_PAIR }}",
     "b32 b32 b32"},
    {"mov.b64 %d, 0; {{local|local.wb|local.cg|local.cs|local.wt|weak.local=>"
     "st.#.<b64|u64|s64|f64> [%l], %a; ld.local.b64 %x, [%l]; MIX_WIDE st.#.v2.$1 [%l], {%d, %b}; "
     "ld.local.v2.b64 {%x, %y}, [%l]; MIX_WIDE_PAIR }}",
     "b64 b64 b64"},
    // Through generic addresses of each space.
    {"mov.b32 %d, 0; st.<global|shared|local>.b32 [<%g|%s|%l>], %a; cvta.$1.u64 %x, $2; "
     "{{generic_loads=>#.<b8|s16|b32|f32> %t, [%x]; MIX }} mov.b32 %u, %b; "
     "{{generic_stores=>#.$3 [%x], %u; ld.$1.b32 %t, [$2]; MIX mad.lo.u32 %u, %u, 5, %a; }}",
     "b32 b32 b32"},
    {"mov.b64 %d, 0; st.<global|shared|local>.v2.b64 [<%g|%s|%l>], {%a, %b}; cvta.$1.u64 %y, $2; "
     "ld.v2.u64 {%x, %d}, [%y]; mad.lo.u64 %d, %d, 3, %x; st.v2.u64 [%y], {%d, %b}; "
     "st.<u64|f64> [%y+16], %d; ld.$1.v2.b64 {%x, %b}, [$2]; MIX_WIDE ld.$3 %x, [%y+16]; MIX_WIDE",
     "b64 b64 b64"},
    // cvta there and back, and what the address then is of.
    {"cvta.<global|shared|local|shared::cta>.u64 %x, <%g|%s|%l|%s>; "
     "cvta.to.$1.u64 %y, %x; sub.u64 %y, %y, $2; cvt.u32.u64 %d, %y; "
     "{{global|shared|shared::cta|local|const|param|param::entry=>isspacep.# %p, %x; "
     "selp.b32 %t, 1, 0, %p; mad.lo.u32 %d, %d, 2, %t; }} xor.b32 %d, %d, %a;",
     "b32 b32"},
    {"mov.u64 %x, constants; cvta.const.u64 %x, %x; ld.u32 %d, [%x+12]; "
     "cvta.to.const.u64 %y, %x; ld.const.u32 %t, [%y+8]; MIX "
     "{{global|shared|local|const|param=>isspacep.# %p, %x; "
     "selp.b32 %t, 1, 0, %p; mad.lo.u32 %d, %d, 2, %t; }} xor.b32 %d, %d, %a;",
     "b32 b32"},
    // Hints: memory is as it was.
    {"st.global.b32 [%g], %a; st.local.b32 [%l], %a; cvta.global.u64 %x, %g; "
     "{{.global.L1 [%g]|.global.L2 [%g]|.local.L1 [%l]|.local.L2 [%l]|.L1 [%x]|.L2 [%x]|"
     ".global.L2::evict_last [%g]|.global.L2::evict_normal [%g]|u.L1 [%x]=>prefetch#; }} "
     "ld.global.b32 %d, [%g]; ld.local.b32 %t, [%l]; add.u32 %d, %d, %t;",
     "b32 b32"},
    {"st.global.b32 [%g], %a; applypriority.global.L2::evict_normal [%g], 128; "
     "cvta.global.u64 %x, %g; applypriority.L2::evict_normal [%x], 128; ld.global.b32 %d, [%g];",
     "b32 b32"},
    {"st.global.b32 [%g], %a; discard.global.L2 [%g], 128; st.global.b32 [%g], %b; "
     "ld.global.b32 %d, [%g];",
     "b32 b32 b32"},

    // Policies of caches, copies of less, parts of registers, special registers.
    {"createpolicy.fractional.L2::<evict_last|evict_normal|evict_first|evict_unchanged>.b64 %x, "
     "0.5; st.global.L2::cache_hint.b32 [%g], %a, %x; ld.global.L2::cache_hint.b32 %d, [%g], %x;",
     "b32 b32"},
    {"createpolicy.range.global.L2::<evict_last|evict_normal|evict_first|evict_unchanged>.b64 %x, "
     "[%g], 128, 256; st.global.L2::cache_hint.b32 [%g], %a, %x; "
     "atom.global.add.L2::cache_hint.u32 %t, [%g], %b, %x; red.global.xor.L2::cache_hint.b32 [%g], "
     "%b, %x; ld.global.L1::no_allocate.L2::cache_hint.L2::128B.b32 %d, [%g], %x; MIX",
     "b32 b32 b32"},
    {"createpolicy.cvt.L2.b64 %x, 0x16f0000000000000; st.global.L1::evict_first.L2::cache_hint.b32 "
     "[%g], %a, %x; ld.global.relaxed.gpu.b32 %d, [%g];",
     "b32 b32"},
    {"createpolicy.fractional.L2::evict_first.b64 %x; mov.b32 %d, 0; "
     "cp.async.ca.shared.global.L2::cache_hint [%s], [%i], 8, %x; "
     "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%s+16], [%i], 16, 16, %x; "
     "cp.async.wait_all; ld.shared.v2.b32 {%t, %u}, [%s]; MIX_PAIR ld.shared.v2.b32 {%t, %u}, "
     "[%s+16]; MIX_PAIR",
     "b32 b64*2"},
    {"mov.b32 %d, 0; setp.lt.s32 %p, %b, 0; st.shared.v4.b32 [%s], {%b, %b, %b, %b}; "
     "cp.async.ca.shared.global [%s], [%i], <4|8|16>, %p; cp.async.wait_all; ld.shared.v4.b32 {%t, "
     "%u, %t, %u}, [%s]; MIX_PAIR",
     "b32 b64*2 b32"},
    {".reg .b8 %e0, %e1, %e2, %e3; mov.b32 {%e0, %e1, %e2, %e3}, %a; mov.b32 %d, {%e3, %e1, %e0, "
     "%e2};",
     "b32 b32"},
    {".reg .b8 %e0, %e1, %e2, %e3; mov.b16 {%e0, %e1}, %a; mov.b16 %d, {%e1, %e0};", "b16 b16"},
    {".reg .b16 %e0, %e1, %e2, %e3; mov.b64 {%e0, %e1, %e2, %e3}, %a; mov.b64 %d, {%e3, %e1, %e0, "
     "%e2};",
     "b64 b64"},
    {"mov.b64 {_, %d}, %a;", "b32 b64"},
    {"mov.u32 %d, "
     "<%tid.x|%tid.y|%tid.z|%ntid.x|%ntid.y|%ntid.z|%ctaid.x|%ctaid.y|%ctaid.z|%nctaid.x|%nctaid.y|"
     "%nctaid.z|%laneid|%lanemask_eq|%lanemask_le|%lanemask_lt|%lanemask_ge|%lanemask_gt|%dynamic_"
     "smem_size>; add.u32 %d, %d, %a;",
     "b32 b32"},
    {"mov.u64 %x, %<clock64|globaltimer>; mov.u64 %y, %$1; setp.ge.u64 %p, %y, %x; selp.b32 %d, 1, "
     "0, %p; mov.u32 %t, "
     "%<clock|clock_hi|globaltimer_lo|globaltimer_hi|warpid|nwarpid|smid|nsmid>; add.u32 %d, %d, "
     "%a;",
     "b32 b32"},
    {"mov.u64 %x, %gridid; mov.u32 %t, %total_smem_size; mov.u32 %u, %aggr_smem_size; setp.ge.u32 "
     "%p, %u, %t; selp.b32 %d, 1, 0, %p; add.u32 %d, %d, %a;",
     "b32 b32"},
    {"st.shared.v4.b32 [%s], {%a, %b, %a, %b}; mov.u32 %t, %nsmid; mov.u32 %u, %smid; setp.lt.u32 "
     "%p, %u, %t; selp.b32 %d, 1, 0, %p; mov.u32 %t, %nwarpid; mov.u32 %u, %warpid; setp.lt.u32 "
     "%p, %u, %t; selp.b32 %t, 1, 0, %p; MIX",
     "b32 b32 b32"},
    {"stmatrix.sync.aligned.m8n8.x2<|.trans>.shared.b16 [%rs], {%a0, %a1}; bar.warp.sync -1; "
     "mov.u32 %t, %laneid; setp.lt.u32 %p, %t, 16; @!%p mov.b32 %d0, 0; @!%p mov.b32 %d1, 0; @!%p "
     "mov.b32 %d2, 0; @!%p mov.b32 %d3, 0; @%p ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%rs]; "
     "bar.warp.sync -1;",
     "b32*4 b32*4"},
    {"stmatrix.sync.aligned.m8n8.x1<|.trans>.shared.b16 [%rs], {%a2}; bar.warp.sync -1; mov.u32 "
     "%t, %laneid; setp.lt.u32 %p, %t, 8; @!%p mov.b32 %d0, 0; @!%p mov.b32 %d1, 0; @!%p mov.b32 "
     "%d2, 0; @!%p mov.b32 %d3, 0; @%p ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%rs]; bar.warp.sync "
     "-1;",
     "b32*4 b32*4"},
    {"ldmatrix.sync.aligned.x4.m8n8.shared::cta.b16 {%d0, %d1, %d2, %d3}, [%rw]; bar.warp.sync -1;",
     "b32*4 b32*4"},
    {"isspacep.param::entry %p, %x; selp.b32 %d, 1, 0, %p; add.u32 %d, %d, %a;", "b32 b32"},
    {"mov.b32 %d, 0; cvta.param.u64 %x, memory; "
     "{{param|param::entry|const|global|shared|local=>isspacep.# %p, %x; selp.b32 %t, 1, 0, %p; "
     "MIX }} ld.u64 %y, [%x]; ld.param.u64 %x, [memory]; sub.u64 %x, %x, %y; cvt.u32.u64 %t, %x; "
     "MIX add.u32 %d, %d, %a;",
     "b32 b32"},

    // --- 9.7.9.25 Copies that wait for nothing ---
    {"mov.b32 %d, 0; {{ca.shared.global|ca.shared::cta.global|ca.shared.global.L2::64B|"
     "ca.shared.global.L2::128B|ca.shared.global.L2::256B=>"
     "st.shared.v4.b32 [%s], {%b, %b, %b, %b}; cp.async.# [%s], [%i], <4|8|16>; "
     "cp.async.<wait_all|commit_group; cp.async.wait_group 0>; "
     "ld.shared.v4.b32 {%t, %u, %t, %u}, [%s]; MIX_PAIR ld.shared.v2.b32 {%t, %u}, [%s]; MIX_PAIR "
     "}}",
     "b32 b64*2 b32"},
    {"mov.b32 %d, 0; cp.async.cg.<shared|shared::cta>.global<|.L2::64B|.L2::128B|.L2::256B> [%s], "
     "[%i], 16; cp.async.commit_group; cp.async.ca.shared.global [%s+16], [%i+8], 8; "
     "cp.async.commit_group; cp.async.wait_group 1; ld.shared.v4.b32 {%t, %u, %t, %u}, [%s]; "
     "MIX_PAIR cp.async.wait_group 0; ld.shared.v2.b32 {%t, %u}, [%s+16]; MIX_PAIR",
     "b32 b64*2"},
    {"mov.b32 %d, 0; {{5; cp.async.ca.shared.global [%s], [%i], 4|"
     "9; cp.async.ca.shared.global [%s], [%i], 8|17; cp.async.ca.shared.global [%s], [%i], 16|"
     "17; cp.async.cg.shared.global [%s], [%i], 16=>"
     "st.shared.v4.b32 [%s], {%b, %b, %b, %b}; rem.u32 %t, %b, #, %t; cp.async.wait_all; "
     "ld.shared.v4.b32 {%t, %u, %t, %u}, [%s]; MIX_PAIR ld.shared.v2.b32 {%t, %u}, [%s]; MIX_PAIR "
     "}}",
     "b32 b64*2 b32"},

    // --- 9.7.13 Atomics: each operation, in each order and scope ---
    {"st.<global|shared>.b32 [<%g|%s>], %a; mov.b32 %d, 0; {{orders=>atom.#.$1."
     "<add.u32|add.s32|min.u32|min.s32|max.u32|max.s32|inc.u32|dec.u32|exch.b32|and.b32|or.b32|"
     "xor.b32> %t, [$2], %b; MIX }}ld.$1.b32 %t, [$2]; MIX",
     "b32 b32 b32"},
    {"st.<global|shared>.b64 [<%g|%s>], %a; mov.b64 %d, 0; {{orders=>atom.#.$1."
     "<add.u64|min.u64|min.s64|max.u64|max.s64|exch.b64|and.b64|or.b64|xor.b64> %x, [$2], %b; "
     "MIX_WIDE }}ld.$1.b64 %x, [$2]; MIX_WIDE",
     "b64 b64 b64"},
    {"st.<global|shared>.b32 [<%g|%s>], %a; mov.b32 %d, 0; {{orders=>"
     "atom.#.$1.cas.b32 %t, [$2], %b, %c; MIX }}ld.$1.b32 %t, [$2]; MIX",
     "b32 b32 same:b32 b32"},
    {"st.<global|shared>.b64 [<%g|%s>], %a; mov.b64 %d, 0; {{orders=>"
     "atom.#.$1.cas.b64 %x, [$2], %b, %c; MIX_WIDE }}ld.$1.b64 %x, [$2]; MIX_WIDE",
     "b64 b64 same:b64 b64"},
    {"st.<global|shared>.b16 [<%g|%s>], %a; mov.b32 %d, 0; {{orders=>"
     "atom.#.$1.cas.b16 %h, [$2], %b, %c; cvt.u32.u16 %t, %h; MIX }}ld.$1.u16 %t, [$2]; MIX",
     "b32 b16 same:b16 b16"},
    {"st.<global|shared>.f32 [<%g|%s>], %a; {{orders=>atom.#.$1.add.f32 %t, [$2], %b; }}"
     "ld.$1.f32 %d, [$2];",
     "f32 f32 f32"},
    {"st.<global|shared>.f64 [<%g|%s>], %a; {{orders=>atom.#.$1.add.f64 %x, [$2], %b; }}"
     "ld.$1.f64 %d, [$2];",
     "f64 f64 f64"},
    {"st.<global|shared>.b16 [<%g|%s>], %a; "
     "{{orders=>atom.#.$1.add.noftz.<f16|bf16> %h, [$2], %b; }}ld.$1.b16 %d, [$2];",
     "f16 f16 f16"},
    {"st.global.b32 [%g], %a; {{orders=>atom.#.global.add.noftz.f16x2 %t, [%g], %b; }}"
     "mov.b32 %d, %t;",
     "f16x2 f16x2 f16x2"},
    {"st.global.b32 [%g], %a; {{orders=>atom.#.global.add.noftz.bf16x2 %t, [%g], %b; }}"
     "mov.b32 %d, %t;",
     "bf16x2 bf16x2 bf16x2"},
    {"st.<global|shared>.b32 [<%g|%s>], %a; cvta.$1.u64 %x, $2; mov.b32 %d, 0; {{orders=>atom.#."
     "<add.u32|add.s32|min.u32|min.s32|max.u32|max.s32|inc.u32|dec.u32|exch.b32|and.b32|or.b32|"
     "xor.b32> %t, [%x], %b; MIX }}ld.$1.b32 %t, [$2]; MIX",
     "b32 b32 b32"},
    {"st.<global|shared>.b64 [<%g|%s>], %a; cvta.$1.u64 %y, $2; mov.b64 %d, 0; {{orders=>atom.#."
     "<add.u64|min.u64|min.s64|max.u64|max.s64|exch.b64|and.b64|or.b64|xor.b64> %x, [%y], %b; "
     "MIX_WIDE }}ld.$1.b64 %x, [$2]; MIX_WIDE",
     "b64 b64 b64"},
    {"st.<global|shared>.v2.b64 [<%g|%s>], {%a, %b}; cvta.$1.u64 %x, $2; "
     "atom.cas.b32 %t, [%x], %t, %t; atom.add.f32 %t, [%x+4], %t; red.add.f64 [%x+8], %b; "
     "red.add.u32 [%x], 5; ld.$1.b32 %d, [$2];",
     "b32 b64 f64"},
    {"st.<global|shared>.b32 [<%g|%s>], %a; mov.b32 %d, 0; {{reduction_orders=>red.#.$1."
     "<add.u32|add.s32|min.u32|min.s32|max.u32|max.s32|inc.u32|dec.u32|and.b32|or.b32|"
     "xor.b32> [$2], %b; ld.$1.b32 %t, [$2]; MIX }}",
     "b32 b32 b32"},
    {"st.<global|shared>.b64 [<%g|%s>], %a; mov.b64 %d, 0; {{reduction_orders=>red.#.$1."
     "<add.u64|min.u64|min.s64|max.u64|max.s64|and.b64|or.b64|xor.b64> [$2], %b; "
     "ld.$1.b64 %x, [$2]; MIX_WIDE }}",
     "b64 b64 b64"},
    {"st.<global|shared>.f32 [<%g|%s>], %a; {{reduction_orders=>red.#.$1.add.f32 [$2], %b; }}"
     "ld.$1.f32 %d, [$2];",
     "f32 f32 f32"},
    {"st.<global|shared>.f64 [<%g|%s>], %a; {{reduction_orders=>red.#.$1.add.f64 [$2], %b; }}"
     "ld.$1.f64 %d, [$2];",
     "f64 f64 f64"},
    {"st.<global|shared>.b16 [<%g|%s>], %a; {{reduction_orders=>"
     "red.#.$1.add.noftz.<f16|bf16> [$2], %b; }}ld.$1.b16 %d, [$2];",
     "f16 f16 f16"},
    {"st.global.b32 [%g], %a; {{reduction_orders=>red.#.global.add.noftz.f16x2 [%g], %b; }}"
     "ld.global.b32 %d, [%g];",
     "f16x2 f16x2 f16x2"},
    {"st.global.b32 [%g], %a; {{reduction_orders=>red.#.global.add.noftz.bf16x2 [%g], %b; }}"
     "ld.global.b32 %d, [%g];",
     "bf16x2 bf16x2 bf16x2"},
    {"st.shared.b32 [%s], %a; mov.b32 %d, 0; {{orders=>atom.#.shared::cta.add.u32 %t, [%s], %b; "
     "MIX }}{{reduction_orders=>red.#.shared::cta.xor.b32 [%s], %b; ld.shared.b32 %t, [%s]; MIX }}",
     "b32 b32 b32"},
    // Of vectors; the result is one of the elements, before or after.
    {"st.global.v4.f32 [%g], {%a, %b, %b, %a}; "
     "{{|.relaxed.gpu|.acq_rel.sys=>atom#.global.add.v2.f32 {%t, %u}, [%g], {%b, %a}; }}"
     "mov.b32 %d, <%t|%u>; ",
     "f32 f32 f32"},
    {"st.global.v4.f32 [%g], {%a, %b, %b, %a}; "
     "atom.global.add.v4.f32 {%t, %u, %d, %t}, [%g], {%b, %a, %b, %b}; "
     "{{|.relaxed.cta|.release.sys=>red#.global.add.v4.f32 [%g], {%b, %a, %b, %b}; }}"
     "ld.global.f32 %d, [%g+<0|4|8|12>];",
     "f32 f32 f32"},
    {"st.global.v4.b16 [%g], {%a, %b, %b, %a}; st.global.v4.b16 [%g+8], {%b, %b, %a, %a}; "
     "atom.global.add.noftz.v2.<f16|bf16> {%h, %k}, [%g], {%b, %a}; "
     "atom.global.add.noftz.v4.$1 {%h, %k, %h, %k}, [%g], {%b, %a, %k, %b}; "
     "red.global.add.noftz.v2.$1 [%g], {%b, %b}; "
     "red.global.add.noftz.v4.$1 [%g+8], {%b, %b, %a, %b}; "
     "red.global.add.noftz.v8.$1 [%g], {%b, %b, %a, %b, %b, %a, %b, %a}; "
     "atom.global.add.noftz.v8.$1 {%h, %k, %h, %k, %h, %k, %h, %k}, [%g], "
     "{%b, %b, %a, %b, %b, %a, %b, %a}; ld.global.b16 %d, [%g+<0|2|4|6|8|10|12|14>];",
     "$1 $1 $1"},
    {"st.global.v4.b32 [%g], {%a, %b, %b, %a}; "
     "atom.global.add.noftz.v2.<f16x2|bf16x2> {%t, %u}, [%g], {%b, %a}; "
     "atom.global.add.noftz.v4.$1 {%t, %u, %t, %u}, [%g], {%b, %a, %a, %b}; "
     "red.global.add.noftz.v2.$1 [%g+8], {%b, %b}; red.global.add.noftz.v4.$1 [%g], "
     "{%b, %b, %a, %a}; ld.global.b32 %d, [%g+<0|4|8|12>];",
     "$1 $1 $1"},
    // All threads of a block at one place, which is theirs in shared or thread 0's in global
    // memory.
    {"mov.u64 %y, places; mov.b64 %x, 0; bar.sync 0; st.shared.b64 [%y], %x; bar.sync 0; "
     "red.shared.<add.u32|max.s32|min.s32|and.b32|or.b32|xor.b32> [%y], %a; "
     "atom.shared.add.u32 %t, [%y+4], 1; bar.sync 0; ld.shared.v2.b32 {%d, %t}, [%y]; MIX bar.sync "
     "0;",
     "b32 b32"},
    {"mov.u32 %t, %tid.x; mul.wide.u32 %x, %t, 256; sub.u64 %y, %g, %x; mov.b64 %x, 0; bar.sync 0; "
     "st.global.b64 [%y], %x; bar.sync 0; "
     "red.global.<add.u64|max.s64|min.s64|and.b64|or.b64|xor.b64> [%y], %a; bar.sync 0; "
     "ld.global.b64 %d, [%y]; bar.sync 0;",
     "b64 b64"},

    // --- 9.7.12 Control ---
    {"mov.b32 %d, %a; setp.lt.s32 %p, %a, %b; @%p bra<|.uni> OVER; add.u32 %d, %d, 5; OVER: "
     "mad.lo.u32 %d, %d, 3, 1;",
     "b32 same:b32 b32"},
    {"mov.b32 %d, %a; and.b32 %u, %b, 15; mov.b32 %t, 0; NEXT: setp.ge.u32 %p, %t, %u; "
     "@%p bra DONE; mad.lo.u32 %d, %d, 5, %t; and.b32 %narrow, %d, 256; "
     "setp.ne.u32 %q, %narrow, 0; @%q bra EVEN; add.u32 %t, %t, 1; xor.b32 %d, %d, %b; bra NEXT; "
     "EVEN: add.u32 %t, %t, 2; bra.uni NEXT; DONE: not.b32 %d, %d;",
     "b32 b32 b32"},
    {"rem.u32 %t, %a, 5; PLACES: .branchtargets L0, L1, L2, L3, L1; brx.idx %t, PLACES; "
     "L0: mov.b32 %d, 1000; bra END; L1: add.u32 %d, %b, 1; bra END; L2: mul.lo.u32 %d, %a, %b; "
     "L3: xor.b32 %d, %a, %b; END: mad.lo.u32 %d, %d, 3, %t;",
     "b32 b32 b32"},
    {"mov.u32 %t, %ctaid.x; rem.u32 %t, %t, 3; PLACES: .branchtargets L0, L1, L2; "
     "brx.idx.uni %t, PLACES; L0: mov.b32 %d, 1000; bra.uni END; L1: add.u32 %d, %a, 1; "
     "bra.uni END; L2: xor.b32 %d, %a, 77; END: mad.lo.u32 %d, %d, 3, %t;",
     "b32 b32"},
    {".param .<b32|u32|s32|f32|b64|u64|s64|f64> p; .param .$1 r; st.param.$1 [p], %a; "
     "call<|.uni> (r), echo_$1, (p); ld.param.$1 %d, [r];",
     "$1 $1"},
    {".param .align 16 .b8 p[32]; .param .align 16 .b8 r[32]; .param .b32 n; "
     "st.param.v4.b32 [p], {%a, %b, %c, %a}; st.param.v2.b32 [p+16], {%b, %c}; "
     "st.param.b64 [p+24], %e; st.param.b32 [n], %a; call (r), turn_bytes, (p, n); "
     "ld.param.<u8|s8|u16|s16> %d, [r+<0|4|18|26>]; ld.param.v2.b32 {%t, %u}, [r+16]; MIX_PAIR "
     "ld.param.v4.b32 {%t, %u, %t, %u}, [r]; MIX_PAIR",
     "b32 b32 b32 b32 b64"},
    {".param .b32 p; .param .b32 r; st.param::func.b32 [p], %a; call (r), echo_b32, (p); "
     "ld.param::func.b32 %d, [r];",
     "b32 b32"},
    {"mov.b64 %x, {%a, %b}; call (%d), add_registers, (%a, %x, %c);", "b32 b32 b32 b32"},
    {"setp.lt.s32 %p, %a, %b; mov.b32 %d, %b; .param .b32 p; .param .b32 r; "
     "st.param.b32 [p], %a; call (r), <return_early|return_early_together|descend>, (p); "
     "ld.param.b32 %d, [r];",
     "b32 b32 b32"},
    {"mov.b32 %d, %b; setp.lt.s32 %p, %a, %b; @!%p bra OVER; { .param .b32 p; .param .b32 r; "
     "st.param.b32 [p], %a; call (r), <twice|thrice|descend>, (p); ld.param.b32 %d, [r]; } "
     "OVER: add.u32 %d, %d, 1;",
     "b32 b32 b32"},
    {"and.b32 %t, %a, 1; cvt.u64.u32 %x, %t; shl.b64 %x, %x, 3; mov.u64 %y, operations; "
     "add.u64 %y, %y, %x; ld.global.u64 %x, [%y]; .param .b32 p; .param .b32 r; "
     "st.param.b32 [p], %b; <KIND: .callprototype (.param .b32 _) _ (.param .b32 _); |"
     "KIND: .calltargets twice, thrice; >call (r), %x, (p), KIND; ld.param.b32 %d, [r];",
     "b32 b32 b32"},
    {"mov.u64 %x, <twice|thrice>; .param .b32 p; .param .b32 r; st.param.b32 [p], %a; "
     "KIND: .callprototype (.param .b32 _) _ (.param .b32 _); call.uni (r), %x, (p), KIND; "
     "ld.param.b32 %d, [r];",
     "b32 b32"},
    // A kernel's parameter is found in each width.
    {"ld.param.b64 %x, [out]; mov.b64 {%t, %u}, %x; cvta.param.u64 %y, memory; "
     "ld.param::entry.<u8|b8> %d, [out+0]; and.b32 %narrow, %t, 255; sub.u32 %d, %d, %narrow; "
     "ld.param.v2.u32 {%narrow, %d}, [out]; sub.u32 %d, %d, %u; xor.b32 %narrow, %narrow, %t; "
     "or.b32 %d, %d, %narrow; add.u32 %d, %d, %a; ld.param.u16 %h, [out+2]; cvt.u32.u16 %u, %h; "
     "shr.u32 %t, %t, 16; sub.u32 %t, %t, %u; add.u32 %d, %d, %t;",
     "b32 b32"},
    // Threads that are gone leave the result that was there before.
    {"mov.b32 %d, %a; setp.lt.s32 %p, %a, 0; @%p exit;", "b32 b32"},
    // No thread gets there.
    {"setp.ne.u32 %p, %a, %a; @%p <trap|brkpt>; mov.b32 %d, %a;", "b32 b32"},
    // --- 9.7.15 The stack ---
    {"alloca.u64 %x, 32; cvta.local.u64 %y, %x; st.local.b32 [%x+4], %a; st.b32 [%y+28], %b; "
     "ld.b32 %t, [%y+4]; ld.local.b32 %d, [%x+28]; MIX",
     "b32 b32 b32"},
    {"stacksave.u64 %y; alloca.u64 %x, 64, 64; st.local.b32 [%x+60], %a; "
     "ld.local.b32 %d, [%x+60]; cvt.u32.u64 %t, %x; and.b32 %t, %t, 63; MIX stackrestore.u64 %y;",
     "b32 b32"},
    {"mov.b32 %d, %a; .param .b32 p; st.param.b32 [p], %a; call leave_if_odd, (p);", "b32 b32"},
    {"mov.b32 %d, %a; and.b32 %t, %a, 63; nanosleep.u32 %t; nanosleep.u32 20; pmevent 3; "
     "pmevent.mask 5; griddepcontrol.launch_dependents; griddepcontrol.wait;",
     "b32 b32"},

    // --- 9.7.13 Waiting ---
    {"mov.b32 %d, 0; mov.b32 %u, %a; {{barriers=>st.shared.b32 [%s], %u; #; "
     "ld.shared.b32 %t, [%n]; MIX #; mad.lo.u32 %u, %u, 5, %d; }}",
     "b32 b32"},
    {"mov.b32 %d, 0; mov.b32 %narrow, 6; mov.b32 %u, 128; "
     "{{bar.sync %narrow|bar.sync %narrow, %u|barrier.sync %narrow, %u|bar.sync 5, %u=>"
     "st.shared.b32 [%s], %a; #; ld.shared.b32 %t, [%n]; MIX #; }}",
     "b32 b32"},
    {"mov.b32 %d, 0; {{bar.red.popc.u32 %t, 0|bar.red.popc.u32 %t, 1, 128|"
     "bar.cta.red.popc.u32 %t, 2|barrier.red.popc.u32 %t, 3|barrier.red.popc.aligned.u32 %t, 4|"
     "barrier.cta.red.popc.u32 %t, 5, 128|barrier.cta.red.popc.aligned.u32 %t, 6=>"
     "#, %a; MIX #, !%a; MIX }}",
     "b32 pred"},
    {"mov.b32 %d, 0; setp.lt.u32 %q, %a, %b; {{bar.red.<and|or>.pred %p, 0|"
     "bar.red.$1.pred %p, 1, 128|bar.cta.red.$1.pred %p, 2|barrier.red.$1.pred %p, 3|"
     "barrier.red.$1.aligned.pred %p, 4|barrier.cta.red.$1.pred %p, 5, 128|"
     "barrier.cta.red.$1.aligned.pred %p, 6=>#, %q; selp.b32 %t, 1, 0, %p; MIX #, !%q; selp.b32 "
     "%t, 1, 0, %p; MIX }}",
     "b32 few:b32 few:b32"},
    {"mov.b32 %d, 0; mov.u32 %u, %tid.x; setp.lt.u32 %p, %u, 64; "
     "{{bar.arrive|bar.cta.arrive|barrier.arrive|barrier.cta.arrive|barrier.arrive.aligned|"
     "barrier.cta.arrive.aligned=>@%p st.shared.b32 [%s], %a; @%p # 1, 128; "
     "@!%p bar.sync 1, 128; @!%p ld.shared.b32 %t, [%n]; @%p mov.b32 %t, 7; MIX bar.sync 0; @!%p "
     "st.shared.b32 [%s], %d; @!%p # 2, 128; @%p bar.sync 2, 128; "
     "@%p ld.shared.b32 %t, [%n]; MIX bar.sync 0; }}",
     "b32 b32"},
    // Threads of a warp wait at places that differ.
    {"setp.lt.s32 %p, %a, 0; st.shared.b32 [%s], %a; @%p bra LESS; barrier.sync 0; "
     "ld.shared.b32 %d, [%n]; bra END; LESS: barrier.sync 0; ld.shared.b32 %d, [%n]; "
     "not.b32 %d, %d; END: bar.warp.sync -1; bar.sync 0;",
     "b32 b32"},
    {"mov.b32 %d, 0; mov.b32 %u, %a; {{fences=>st.shared.b32 [%s], %u; st.global.b32 [%g], %u; #; "
     "bar.sync 0; ld.shared.b32 %t, [%n]; MIX ld.global.b32 %t, [%g]; MIX bar.sync 0; mad.lo.u32 "
     "%u, %u, 5, %d; }}",
     "b32 b32"},
    {"mov.b32 %d, 0; mov.b32 %u, %a; {{fence.acquire.cta|fence.acquire.cluster|fence.acquire.gpu|"
     "fence.acquire.sys|fence.release.cta|fence.release.cluster|fence.release.gpu|fence.release."
     "sys=>"
     "st.shared.b32 [%s], %u; #; bar.sync 0; ld.shared.b32 %t, [%n]; MIX bar.sync 0; mad.lo.u32 "
     "%u, %u, 5, %d; }}",
     "b32 b32"},
    // All threads of the block arrive at a barrier in shared memory; phase by phase.
    {"mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0; mov.u64 %y, gates; "
     "@%p mbarrier.init.<shared|shared::cta>.b64 [%y], 128; bar.sync 0; mov.b32 %d, 0; "
     "mov.b32 %u, %a; "
     "{{.shared.b64 %x, [%y]|.shared::cta.b64 %x, [%y], 1|.release.cta.shared.b64 %x, [%y]|"
     ".release.cluster.shared.b64 %x, [%y]|.expect_tx.shared.b64 %x, [%y], 0|"
     ".expect_tx.release.cta.shared::cta.b64 %x, [%y], 0=>"
     "st.shared.b32 [%s], %u; mbarrier.arrive#; { WAIT: "
     "<mbarrier.test_wait.$1.b64 %q, [%y], %x|mbarrier.test_wait.acquire.cta.$1.b64 %q, [%y], %x|"
     "mbarrier.try_wait.$1.b64 %q, [%y], %x|mbarrier.try_wait.$1.b64 %q, [%y], %x, 1000|"
     "mbarrier.try_wait.acquire.cluster.$1.b64 %q, [%y], %x>; @!%q bra WAIT; } "
     "ld.shared.b32 %t, [%n]; MIX bar.sync 0; mad.lo.u32 %u, %u, 5, %d; }} "
     "@%p mbarrier.inval.$1.b64 [%y]; bar.sync 0;",
     "b32 b32"},
    {"mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0; mov.u64 %y, gates; "
     "@%p mbarrier.init.shared.b64 [%y], 128; bar.sync 0; mov.b32 %d, 0; mov.b32 %u, %a; "
     "{{0|1|0|1=>st.shared.b32 [%s], %u; mbarrier.arrive.shared.b64 %x, [%y]; { WAIT: "
     "<mbarrier.test_wait.parity.shared.b64|mbarrier.test_wait.parity.acquire.cta.shared::cta.b64|"
     "mbarrier.try_wait.parity.shared.b64|mbarrier.try_wait.parity.acquire.cluster.shared.b64> "
     "%q, [%y], #; @!%q bra WAIT; } ld.shared.b32 %t, [%n]; MIX bar.sync 0; mad.lo.u32 %u, %u, 5, "
     "%d; }} @%p mbarrier.inval.shared.b64 [%y]; bar.sync 0;",
     "b32 b32"},
    // A barrier of each thread's own: what is pending, and which phases are over.
    {"mov.b32 %d, 0; and.b32 %u, %a, 7; add.u32 %u, %u, 4; mbarrier.init.shared.b64 [%s], %u; "
     "{{.shared.b64 %x, [%s]|.shared.b64 %x, [%s], 2|.noComplete.shared.b64 %x, [%s], 1|"
     "_drop.shared.b64 %x, [%s]|.expect_tx.shared.b64 %x, [%s], 24=>mbarrier.arrive#; "
     "mbarrier.pending_count.b64 %t, %x; MIX mbarrier.test_wait.shared.b64 %p, [%s], %x; selp.b32 "
     "%t, 1, 0, %p; MIX mbarrier.test_wait.parity.shared.b64 %p, [%s], 1; selp.b32 %t, 1, 0, %p; "
     "MIX bar.warp.sync -1; }}",
     "b32 few:b32"},
    {"mov.b32 %d, 0; mbarrier.init.shared.b64 [%s], 1; and.b32 %u, %a, 1023; "
     "mbarrier.expect_tx.relaxed.<cta|cluster>.<shared|shared::cta>.b64 [%s], %u; "
     "mbarrier.arrive<|_drop>.shared.b64 %x, [%s]; mbarrier.test_wait.shared.b64 %p, [%s], %x; "
     "selp.b32 %t, 1, 0, %p; MIX mbarrier.complete_tx.relaxed.$1.$2.b64 [%s], %u; "
     "mbarrier.test_wait.shared.b64 %p, [%s], %x; selp.b32 %t, 1, 0, %p; MIX "
     "mbarrier.inval.shared.b64 [%s];",
     "b32 b32"},
    // A block is a cluster of its own: its addresses are the cluster's, too.
    {"mov.b32 %d, 0; mbarrier.init.shared.b64 [%s], 3; and.b32 %u, %a, 1023; "
     "mbarrier.arrive<|.release.cluster>.shared::cluster.b64 _, [%s]; "
     "mbarrier.arrive.shared.b64 %x, [%s]; mbarrier.pending_count.b64 %t, %x; MIX "
     "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%s], %u; "
     "mbarrier.arrive<|_drop>.release.cluster.shared::cluster.b64 _, [%s]; "
     "mbarrier.test_wait.shared.b64 %p, [%s], %x; selp.b32 %t, 1, 0, %p; MIX "
     "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%s], %u; "
     "mbarrier.test_wait.shared.b64 %p, [%s], %x; selp.b32 %t, 1, 0, %p; MIX "
     "mbarrier.inval.shared.b64 [%s];",
     "b32 b32"},
    {"mov.b32 %d, 0; cp.async.ca.shared.global [%s+16], [%i], 8; mbarrier.init.shared.b64 [%s], "
     "<2; cp.async.mbarrier.arrive.noinc|1; cp.async.mbarrier.arrive>.<shared|shared::cta>.b64 "
     "[%s]; "
     "mbarrier.arrive.shared.b64 %x, [%s]; { WAIT: mbarrier.try_wait.parity.shared.b64 %p, [%s], "
     "0; "
     "@!%p bra WAIT; } ld.shared.v2.b32 {%t, %u}, [%s+16]; MIX_PAIR mbarrier.inval.shared.b64 "
     "[%s];",
     "b32 b64"},
    // Parts of a warp.
    {"bar.warp.sync -1; activemask.b32 %d; add.u32 %d, %d, %a;", "b32 b32"},
    {"bar.warp.sync -1; elect.sync %t|%p, -1; selp.b32 %d, 100, %a, %p; MIX setp.lt.s32 %q, %a, 0; "
     "vote.sync.ballot.b32 %u, %q, -1; @!%q bra END; "
     "elect.sync %t|%p, %u; selp.b32 %d, 77, %d, %p; MIX END: bar.warp.sync -1;",
     "b32 b32"},
    {"setp.lt.s32 %q, %a, 0; vote.sync.ballot.b32 %u, %q, -1; mov.b32 %d, %u; @!%q bra END; "
     "<shfl.sync.bfly.b32 %t, %b, 3, 0x1F, %u; activemask.b32 %d; mov.b32 %t, 0|"
     "vote.sync.ballot.b32 %t, %q, %u|redux.sync.add.s32 %t, %b, %u|redux.sync.min.u32 %t, %b, %u|"
     "match.any.sync.b32 %t, %b, %u>; MIX END: bar.warp.sync -1;",
     "b32 b32 same:b32"},

    // --- 9.7.14 Matrices by wmma: what is loaded, multiplied and stored, whatever lane has it ---
    // The layout of a is that of d, and that of b is c's.
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row>.<m16n16k16|m32n8k16|m8n32k16>.shared.f16 F8, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.f32 R8, F8, V8, R8; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<col>.<m16n16k16>.shared.f16 F8, [%rw], 32; "
     "wmma.load.b.sync.aligned.<row>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f16.f16 R4, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<col>.<m16n16k16>.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.f16 R8, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row>.<m16n16k16>.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f16.f32 R4, F8, V8, R8; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.<m16n16k16>.shared.bf16 "
     "F4, [%rw], 32; wmma.load.b.sync.aligned.<row>.$2.shared.bf16 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.bf16.bf16.f32 R8, F4, V4, R8; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<col>.<m32n8k16>.shared.bf16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row>.$2.shared.bf16 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.bf16.bf16.f32 R8, F8, V2, R8; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<col>.<m8n32k16>.shared.bf16 F2, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row>.$2.shared.bf16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.bf16.bf16.f32 R8, F2, V8, R8; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.<m16n16k8>.shared.tf32 "
     "F4, [%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.tf32 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.tf32.tf32.f32 R8, F4, V4, R8; "
     "wmma.store.d.sync.aligned.$1.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 f32i*4 f32i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row>.<m16n16k16>.shared.<s8|u8> "
     "F2, [%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.$3 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$4.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "{{|.satfinite=>wmma.mma.sync.aligned.$1.$4.$2.s32.$3.$3.s32# R8, F2, V2, R8; "
     "}}wmma.store.d.sync.aligned.$1.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<col>.<m32n8k16>.shared.<s8|u8> "
     "F4, [%rw], 32; wmma.load.b.sync.aligned.<row>.$2.shared.$3 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$4.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "{{|.satfinite=>wmma.mma.sync.aligned.$1.$4.$2.s32.$3.$3.s32# R8, F4, V1, R8; "
     "}}wmma.store.d.sync.aligned.$1.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<col>.<m8n32k16>.shared.<s8|u8> "
     "F1, [%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.$3 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$4.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "{{|.satfinite=>wmma.mma.sync.aligned.$1.$4.$2.s32.$3.$3.s32# R8, F1, V4, R8; "
     "}}wmma.store.d.sync.aligned.$1.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_DOUBLES .reg .b64 %f0, %v0, %r0, %r1; bar.warp.sync -1; "
     "wmma.load.a.sync.aligned.<row|col>.<m8n8k4>.shared.f64 F1, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.f64 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$3.$2.shared.f64 R2, [%rw+4096], 32; bar.warp.sync -1; "
     "{{|.rn=>wmma.mma.sync.aligned.$1.$3.$2#.f64.f64.f64.f64 R2, F1, V1, R2; "
     "}}wmma.store.d.sync.aligned.$1.$2.shared.f64 [%rw+4096], R2, 32; bar.warp.sync -1; READ_SUMS",
     "b32*4 f64i*2 f64i*2 f64i*2"},
    // All layouts of one shape, and two more of each type and shape.
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k16|m32n8k16|m8n32k16>.shared.f16 F8, [%rw], "
     "32; wmma.load.b.sync.aligned.<row|col>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row|col>.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.f32 R8, F8, V8, R8; "
     "wmma.store.d.sync.aligned.<row|col>.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k16|m32n8k16|m8n32k16>.shared.f16 F8, [%rw], "
     "32; wmma.load.b.sync.aligned.<col>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f16.f32 R4, F8, V8, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k16|m32n8k16|m8n32k16>.shared.f16 F8, [%rw], "
     "32; wmma.load.b.sync.aligned.<col>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.f16 R8, F8, V8, R4; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k16|m32n8k16|m8n32k16>.shared.f16 F8, [%rw], "
     "32; wmma.load.b.sync.aligned.<col>.$2.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f16.f16 R4, F8, V8, R4; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k16>.shared.bf16 F4, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.bf16 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.bf16.bf16.f32 R8, F4, V4, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m32n8k16>.shared.bf16 F8, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.bf16 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.bf16.bf16.f32 R8, F8, V2, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m8n32k16>.shared.bf16 F2, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.bf16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.bf16.bf16.f32 R8, F2, V8, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k8>.shared.tf32 F4, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.tf32 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f32.tf32.tf32.f32 R8, F4, V4, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f32i*4 f32i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k16>.shared.s8 F2, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.s8 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.s32.s8.s8.s32 R8, F2, V2, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "wmma.load.a.sync.aligned.<row|col>.<m16n16k16>.shared.u8 F2, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.u8 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.s32.u8.u8.s32 R8, F2, V2, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.<m32n8k16>.shared.s8 "
     "F4, [%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.s8 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.s32.s8.s8.s32 R8, F4, V1, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.<m32n8k16>.shared.u8 "
     "F4, [%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.u8 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.s32.u8.u8.s32 R8, F4, V1, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.<m8n32k16>.shared.s8 "
     "F1, [%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.s8 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.s32.s8.s8.s32 R8, F1, V4, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.<m8n32k16>.shared.u8 "
     "F1, [%rw], 32; wmma.load.b.sync.aligned.<col>.$2.shared.u8 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.s32.u8.u8.s32 R8, F1, V4, R8; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_DOUBLES .reg .b64 %f0, %v0, %r0, %r1; bar.warp.sync -1; "
     "wmma.load.a.sync.aligned.<row|col>.<m8n8k4>.shared.f64 F1, [%rw], 32; "
     "wmma.load.b.sync.aligned.<col>.$2.shared.f64 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.<row>.$2.shared.f64 R2, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$3.$2.f64.f64.f64.f64 R2, F1, V1, R2; "
     "wmma.store.d.sync.aligned.<col>.$2.shared.f64 [%rw+4096], R2, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f64i*2 f64i*2 f64i*2"},
    // The rest of the layouts.
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m16n16k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m16n16k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m16n16k16.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m16n16k16.f16.f16 R4, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$2.m16n16k16.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m16n16k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m16n16k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m16n16k16.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m16n16k16.f32.f16 R8, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$2.m16n16k16.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m16n16k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m16n16k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m16n16k16.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m16n16k16.f16.f32 R4, F8, V8, R8; "
     "wmma.store.d.sync.aligned.$2.m16n16k16.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m16n16k16.shared.bf16 "
     "F4, [%rw], 32; wmma.load.b.sync.aligned.<row|col>.m16n16k16.shared.bf16 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m16n16k16.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m16n16k16.f32.bf16.bf16.f32 R8, F4, V4, R8; "
     "wmma.store.d.sync.aligned.$2.m16n16k16.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m16n16k16.shared.s8 F2, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m16n16k16.shared.s8 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m16n16k16.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m16n16k16.s32.s8.s8.s32 R8, F2, V2, R8; "
     "wmma.store.d.sync.aligned.$2.m16n16k16.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m16n16k16.shared.u8 F2, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m16n16k16.shared.u8 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m16n16k16.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m16n16k16.s32.u8.u8.s32 R8, F2, V2, R8; "
     "wmma.store.d.sync.aligned.$2.m16n16k16.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m32n8k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m32n8k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m32n8k16.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m32n8k16.f16.f16 R4, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$2.m32n8k16.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m32n8k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m32n8k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m32n8k16.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m32n8k16.f32.f16 R8, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$2.m32n8k16.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m32n8k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m32n8k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m32n8k16.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m32n8k16.f16.f32 R4, F8, V8, R8; "
     "wmma.store.d.sync.aligned.$2.m32n8k16.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m32n8k16.shared.bf16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m32n8k16.shared.bf16 V2, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m32n8k16.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m32n8k16.f32.bf16.bf16.f32 R8, F8, V2, R8; "
     "wmma.store.d.sync.aligned.$2.m32n8k16.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m32n8k16.shared.s8 F4, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m32n8k16.shared.s8 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m32n8k16.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m32n8k16.s32.s8.s8.s32 R8, F4, V1, R8; "
     "wmma.store.d.sync.aligned.$2.m32n8k16.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m32n8k16.shared.u8 F4, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m32n8k16.shared.u8 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m32n8k16.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m32n8k16.s32.u8.u8.s32 R8, F4, V1, R8; "
     "wmma.store.d.sync.aligned.$2.m32n8k16.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m8n32k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m8n32k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m8n32k16.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m8n32k16.f16.f16 R4, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$2.m8n32k16.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m8n32k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m8n32k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m8n32k16.shared.f16 R4, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m8n32k16.f32.f16 R8, F8, V8, R4; "
     "wmma.store.d.sync.aligned.$2.m8n32k16.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f16x2i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m8n32k16.shared.f16 F8, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m8n32k16.shared.f16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m8n32k16.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m8n32k16.f16.f32 R4, F8, V8, R8; "
     "wmma.store.d.sync.aligned.$2.m8n32k16.shared.f16 [%rw+4096], R4, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m8n32k16.shared.bf16 F2, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m8n32k16.shared.bf16 V8, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m8n32k16.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m8n32k16.f32.bf16.bf16.f32 R8, F2, V8, R8; "
     "wmma.store.d.sync.aligned.$2.m8n32k16.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 bf16x2i*4 bf16x2i*4 f32i*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m8n32k16.shared.s8 F1, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m8n32k16.shared.s8 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m8n32k16.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m8n32k16.s32.s8.s8.s32 R8, F1, V4, R8; "
     "wmma.store.d.sync.aligned.$2.m8n32k16.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m8n32k16.shared.u8 F1, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m8n32k16.shared.u8 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m8n32k16.shared.s32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m8n32k16.s32.u8.u8.s32 R8, F1, V4, R8; "
     "wmma.store.d.sync.aligned.$2.m8n32k16.shared.s32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 b32*4 b32*4 b32*4"},
    {"FILL_FACTORS FILL_SUMS REGISTERS wmma.load.a.sync.aligned.<row|col>.m16n16k8.shared.tf32 F4, "
     "[%rw], 32; wmma.load.b.sync.aligned.<row|col>.m16n16k8.shared.tf32 V4, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m16n16k8.shared.f32 R8, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m16n16k8.f32.tf32.tf32.f32 R8, F4, V4, R8; "
     "wmma.store.d.sync.aligned.$2.m16n16k8.shared.f32 [%rw+4096], R8, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f32i*4 f32i*4 f32i*4"},
    {"FILL_DOUBLES .reg .b64 %f0, %v0, %r0, %r1; bar.warp.sync -1; "
     "wmma.load.a.sync.aligned.<row|col>.m8n8k4.shared.f64 F1, [%rw], 32; "
     "wmma.load.b.sync.aligned.<row|col>.m8n8k4.shared.f64 V1, [%rw+2048], 32; "
     "wmma.load.c.sync.aligned.$1.m8n8k4.shared.f64 R2, [%rw+4096], 32; bar.warp.sync -1; "
     "wmma.mma.sync.aligned.$1.$2.m8n8k4.f64.f64.f64.f64 R2, F1, V1, R2; "
     "wmma.store.d.sync.aligned.$2.m8n8k4.shared.f64 [%rw+4096], R2, 32; bar.warp.sync -1; "
     "READ_SUMS",
     "b32*4 f64i*2 f64i*2 f64i*2"},
    // Through generic addresses, and into global memory.
    {"FILL_FACTORS FILL_SUMS REGISTERS "
     "cvta.shared.u64 %x, %rw; add.u64 %y, %x, 2048; "
     "wmma.load.a.sync.aligned.row.m16n16k16.f16 F8, [%x]; "
     "wmma.load.b.sync.aligned.col.m16n16k16.shared::cta.f16 V8, [%rw+2048]; "
     "wmma.load.c.sync.aligned.row.m16n16k16.f32 R8, [%x+4096]; "
     "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 R8, F8, V8, R8; mov.u32 %t, %laneid; "
     "mul.wide.u32 %x, %t, 256; sub.u64 %x, %g, %x; "
     "bar.warp.sync -1; wmma.store.d.sync.aligned.row.m16n16k16<.global|>.f32 [%x], R8; "
     "bar.warp.sync -1; mad.wide.u32 %y, %t, 16, %x; "
     "ld.global.v4.b32 {%d0, %d1, %d2, %d3}, [%y+<0|512>]; bar.warp.sync -1;",
     "b32*4 f16x2i*4 f16x2i*4 f32i*4"},
    // --- mma of parts of bytes, and of mixed signs ---
    {"mma.sync.aligned.m8n8k32.row.col<|.satfinite>.s32.<u4|s4>.<u4|s4>.s32 {%d0, %d1}, {%a}, "
     "{%b}, {%c0, %c1};",
     "s32*2 b32 b32 s32*2"},
    {"mma.sync.aligned.m16n8k32.row.col<|.satfinite>.s32.<u4|s4>.<u4|s4>.s32 "
     "{%d0, %d1, %d2, %d3}, {%a0, %a1}, {%b}, {%c0, %c1, %c2, %c3};",
     "s32*4 b32*2 b32 s32*4"},
    {"mma.sync.aligned.m16n8k64.row.col<|.satfinite>.s32.<u4|s4>.<u4|s4>.s32 "
     "{%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "s32*4 b32*4 b32*2 s32*4"},
    {"mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.<xor|and>.popc {%d0, %d1}, {%a}, {%b}, "
     "{%c0, %c1};",
     "s32*2 b32 b32 s32*2"},
    {"mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.<xor|and>.popc {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1}, {%b}, {%c0, %c1, %c2, %c3};",
     "s32*4 b32*2 b32 s32*4"},
    {"mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.<xor|and>.popc {%d0, %d1, %d2, %d3}, "
     "{%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
     "s32*4 b32*4 b32*2 s32*4"},
};

string_view Lookup(std::span<const List> lists, string_view name) {
  for (const List& list : lists) {
    if (list.name == name) return list.words;
  }
  return name;
}

}  // namespace

std::span<const Row> EffectRows() { return kEffectRows; }

string_view NamedList(string_view name) { return Lookup(kLists, name); }

string_view NamedText(string_view word) { return Lookup(kTexts, word); }

}  // namespace consort::ptx_suite
