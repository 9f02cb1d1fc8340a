// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/image_rows.h"

namespace consort::ptx_suite {
namespace {

constexpr Row kImageRows[] = {
    // --- 9.7.11, 9.7.12 Textures and surfaces ---
    {"tex.1d.v4.f32.f32 QUAD, [@1d.<f32x1|f32x2|f32x4|f16x1|f16x2|f16x4>.<clamp|border>, {%a}];",
     "f32*4 at:texels"},
    {"tex.1d.v4.u32.f32 QUAD, "
     "[@1d.<u8x1|u8x2|u8x4|u16x1|u16x2|u16x4|u32x1|u32x2|u32x4>.<clamp|border>, {%a}];",
     "b32*4 at:texels"},
    {"tex.1d.v4.s32.f32 QUAD, "
     "[@1d.<s8x1|s8x2|s8x4|s16x1|s16x2|s16x4|s32x1|s32x2|s32x4>.<clamp|border>, {%a}];",
     "b32*4 at:texels"},
    {"tex.1d.v4.f32.f32 QUAD, [@1d.<u8x1|u8x4|u16x2|s8x2|s16x4>.unorm.<clamp|border>, {%a}];",
     "f32*4 at:texels"},
    {"tex.1d.v4.f32.f32 QUAD, [@1d.<f32x1|f32x4>.<nearest>.<clamp|wrap|mirror|border>.norm, {%a}];",
     "f32*4 at:parts"},
    {"tex.1d.v4.u32.f32 QUAD, [@1d.<u8x4|u32x1>.<clamp|wrap|mirror|border>.norm, {%a}];",
     "b32*4 at:parts"},
    {"tex.2d.v4.f32.f32 QUAD, [@2d.<f32x1|f32x2|f32x4|f16x1|f16x2|f16x4>.<clamp|border>, {%a, "
     "%b}];",
     "f32*4 at:texels at:texels"},
    {"tex.2d.v4.u32.f32 QUAD, [@2d.<u8x4|u16x2|u32x1|u32x4>.<clamp|border>, {%a, %b}];",
     "b32*4 at:texels at:texels"},
    {"tex.2d.v4.s32.f32 QUAD, [@2d.<s8x1|s16x4|s32x2>.<clamp|border>, {%a, %b}];",
     "b32*4 at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@2d.<u8x1|u8x4|u16x2|s8x2|s16x4>.unorm.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@2d.<f32x1|f32x4>.<nearest>.<clamp|wrap|mirror|border>.norm, {%a, "
     "%b}];",
     "f32*4 at:parts at:parts"},
    {"tex.2d.v4.u32.f32 QUAD, [@2d.<u8x4|u32x1>.<clamp|wrap|mirror|border>.norm, {%a, %b}];",
     "b32*4 at:parts at:parts"},
    {"tex.2d.v4.f32.s32 QUAD, [@2d.<f32x1|f32x4>.<clamp|border>, {%a, %b}];",
     "f32*4 at:index at:index"},
    {"tex.2d.v4.u32.s32 QUAD, [@2d.<u8x4|u16x2>.<clamp|border>, {%a, %b}];",
     "b32*4 at:index at:index"},
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<f32x1|f32x4|f16x2>.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:texels at:texels at:texels"},
    {"tex.3d.v4.u32.f32 QUAD, [@3d.<u8x4|u32x1>.<clamp|border>, {%a, %b, %c, %c}];",
     "b32*4 at:texels at:texels at:texels"},
    {"tex.3d.v4.s32.f32 QUAD, [@3d.<s16x2>.<clamp|border>, {%a, %b, %c, %c}];",
     "b32*4 at:texels at:texels at:texels"},
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<u8x1|u8x4|u16x2|s8x2|s16x4>.unorm.<clamp|border>, {%a, %b, %c, "
     "%c}];",
     "f32*4 at:texels at:texels at:texels"},
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<f32x1|f32x4>.<nearest>.<clamp|wrap|mirror|border>.norm, {%a, "
     "%b, %c, %c}];",
     "f32*4 at:parts at:parts at:parts"},
    {"tex.3d.v4.u32.f32 QUAD, [@3d.<u8x4|u32x1>.<clamp|wrap|mirror|border>.norm, {%a, %b, %c, "
     "%c}];",
     "b32*4 at:parts at:parts at:parts"},
    {"tex.3d.v4.f32.s32 QUAD, [@3d.<f32x1|f32x4>.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:index at:index at:index"},
    {"tex.3d.v4.u32.s32 QUAD, [@3d.<u8x4|u16x2>.<clamp|border>, {%a, %b, %c, %c}];",
     "b32*4 at:index at:index at:index"},
    {"tex.a1d.v4.f32.f32 QUAD, [@a1d.<f32x1|f32x4|f16x4>.<clamp|border>, {%a, %b}];",
     "f32*4 at:layer at:texels"},
    {"tex.a1d.v4.u32.f32 QUAD, [@a1d.<u8x4|u32x2>.<clamp|border>, {%a, %b}];",
     "b32*4 at:layer at:texels"},
    {"tex.a1d.v4.s32.f32 QUAD, [@a1d.<s16x1>.<clamp|border>, {%a, %b}];",
     "b32*4 at:layer at:texels"},
    {"tex.a2d.v4.f32.f32 QUAD, [@a2d.<f32x1|f32x4|f16x4>.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:layer at:texels at:texels"},
    {"tex.a2d.v4.u32.f32 QUAD, [@a2d.<u8x4|u32x2>.<clamp|border>, {%a, %b, %c, %c}];",
     "b32*4 at:layer at:texels at:texels"},
    {"tex.a2d.v4.s32.f32 QUAD, [@a2d.<s16x1>.<clamp|border>, {%a, %b, %c, %c}];",
     "b32*4 at:layer at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@pitch.<f32x1|f32x4>.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tex.2d.v4.u32.f32 QUAD, [@pitch.<u8x4>.<clamp|border>, {%a, %b}];",
     "b32*4 at:texels at:texels"},
    {"tex.2d.v4.s32.f32 QUAD, [@pitch.<s16x2>.<clamp|border>, {%a, %b}];",
     "b32*4 at:texels at:texels"},
    {"tex.1d.v4.f32.s32 QUAD, [@line.<f32x1|f32x2|f32x4|f16x4>, {%a}];", "f32*4 at:index"},
    {"tex.1d.v4.<u32|s32>.s32 QUAD, [@line.<u8x4|u16x1|u32x4>, {%a}];", "b32*4 at:index"},
    {"tex.cube.v4.f32.f32 QUAD, [@cube.<f32x1|f32x4>.nearest, {%a, %b, %c, %c}];",
     "f32*4 at:direction at:direction at:direction"},
    {"tex.cube.v4.u32.f32 QUAD, [@cube.u8x4, {%a, %b, %c, %c}];",
     "b32*4 at:direction at:direction at:direction"},
    {"tex.acube.v4.f32.f32 QUAD, [@acube.<f32x1|f32x4>.nearest, {%a, %b, %c, %e}];",
     "f32*4 at:layer at:direction at:direction at:direction"},
    {"tex.level.<1d>.v4.f32.f32 QUAD, [@$1.f32x4.<nearest|linear>, {%a}], 0f00000000;",
     "f32*4 at:texels"},
    {"tex.level.<2d>.v4.f32.f32 QUAD, [@$1.f32x4.<nearest>, {%a, %b}], 0f00000000;",
     "f32*4 at:texels at:texels"},
    {"tex.level.<3d>.v4.f32.f32 QUAD, [@$1.f32x4.<nearest>, {%a, %b, %c, %c}], 0f00000000;",
     "f32*4 at:texels at:texels at:texels"},
    {"mov.b32 %t, 0; tex.grad.2d.v4.f32.f32 QUAD, [@2d.f32x4.<nearest>, {%a, %b}], {%t, %t}, {%t, "
     "%t};",
     "f32*4 at:texels at:texels"},
    {"tld4.<r|g|b|a>.2d.v4.f32.f32 QUAD, [@2d.<f32x1|f32x4>.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tld4.<r|a>.2d.v4.<u32|s32>.f32 QUAD, [@2d.<u8x4>.<clamp|border>, {%a, %b}];",
     "b32*4 at:texels at:texels"},
    {"tld4.<r|b>.2d.v4.f32.f32 QUAD, [@2d.f32x4.<wrap|mirror>.norm, {%a, %b}];",
     "f32*4 at:parts at:parts"},
    {"tld4.<r|g>.a2d.v4.f32.f32 QUAD, [@a2d.f32x4.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:layer at:texels at:texels"},
    {"txq.<width>.b32 %d, [@<1d|2d|3d|a1d|a2d|cube>.f32x1]; add.u32 %d, %d, %a;", "b32 b32"},
    {"txq.<height>.b32 %d, [@<2d|3d|a2d|cube>.f32x1]; add.u32 %d, %d, %a;", "b32 b32"},
    {"txq.<depth>.b32 %d, [@3d.f32x1]; add.u32 %d, %d, %a;", "b32 b32"},
    {"suq.<width>.b32 %d, [@surf.<1d|2d|3d|a2d>.u32x1]; add.u32 %d, %d, %a;", "b32 b32"},
    {"suq.<height>.b32 %d, [@surf.<2d|3d>.u32x1]; add.u32 %d, %d, %a;", "b32 b32"},
    {"suq.depth.b32 %d, [@surf.3d.u32x1]; add.u32 %d, %d, %a;", "b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 1; rem.u32 %u, %b, 10; suld.b.2d.b8.<trap|clamp|zero> "
     "%h, [@surf.2d.<u8x1|s8x1>, {%t, %u}]; cvt.u32.u16 %d, %h;",
     "b32 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 2; rem.u32 %u, %b, 10; "
     "suld.b.2d.b16.<trap|clamp|zero> %h, [@surf.2d.<u16x1|f16x1|u8x2>, {%t, %u}]; cvt.u32.u16 %d, "
     "%h;",
     "b32 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 4; rem.u32 %u, %b, 10; "
     "suld.b.2d.b32.<trap|clamp|zero> %d, [@surf.2d.<u32x1|u8x4|f32x1|u16x2>, {%t, %u}];",
     "b32 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 8; rem.u32 %u, %b, 10; "
     "suld.b.2d.b64.<trap|clamp|zero> %d, [@surf.2d.<u32x2|u16x4>, {%t, %u}];",
     "b64 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 2; rem.u32 %u, %b, 10; "
     "suld.b.2d.v2.b8.<trap|clamp|zero> {%h, %k}, [@surf.2d.<u8x2>, {%t, %u}]; mov.b32 %d, {%h, "
     "%k};",
     "b32 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 4; rem.u32 %u, %b, 10; "
     "suld.b.2d.v2.b16.<trap|clamp|zero> {%h, %k}, [@surf.2d.<u16x2|f16x2>, {%t, %u}]; mov.b32 %d, "
     "{%h, %k};",
     "b32 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 8; rem.u32 %u, %b, 10; "
     "suld.b.2d.v2.b32.<trap|clamp|zero> {%d0, %d1}, [@surf.2d.<u32x2|f32x2|s16x4>, {%t, %u}];",
     "b32*2 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 16; rem.u32 %u, %b, 10; "
     "suld.b.2d.v4.b32.<trap|clamp|zero> QUAD, [@surf.2d.<u32x4|f32x4>, {%t, %u}];",
     "b32*4 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 16; rem.u32 %u, %b, 10; "
     "suld.b.2d.v2.b64.<trap|clamp|zero> {%d0, %d1}, [@surf.2d.<u32x4>, {%t, %u}];",
     "b64*2 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 4; suld.b.1d.b32.<trap|clamp|zero> %d, "
     "[@surf.1d.u32x1, {%t}];",
     "b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 4; rem.u32 %u, %b, 10; rem.u32 %narrow, %c, 5; "
     "suld.b.3d.b32.<trap|clamp|zero> %d, [@surf.3d.<u32x1|u8x4>, {%t, %u, %narrow, %narrow}];",
     "b32 b32 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 4; rem.u32 %u, %b, 3; "
     "suld.b.a1d.b32.<trap|clamp|zero> %d, [@surf.a1d.u32x1, {%u, %t}];",
     "b32 b32 b32"},
    {"rem.u32 %t, %a, 12; mul.lo.u32 %t, %t, 4; rem.u32 %u, %b, 10; rem.u32 %narrow, %c, 3; "
     "suld.b.a2d.b32.<trap|clamp|zero> %d, [@surf.a2d.<u32x1|u8x4>, {%narrow, %t, %u, %u}];",
     "b32 b32 b32 b32"},
    {"mul.lo.u32 %t, %a, 4; suld.b.1d.b32.<clamp|zero> %d, [@surf.1d.u32x1, {%t}];",
     "b32 at:index"},
    {"mul.lo.u32 %t, %a, <4>; suld.b.2d.b32.<clamp|zero> %d, [@surf.2d.<u32x1|u8x4>, {%t, %b}];",
     "b32 at:index at:index"},
    {"mul.lo.u32 %t, %a, 8; suld.b.2d.v2.b32.<clamp|zero> {%d0, %d1}, [@surf.2d.u32x2, {%t, %b}];",
     "b32*2 at:index at:index"},
    {"mul.lo.u32 %t, %a, 4; suld.b.3d.b32.<clamp|zero> %d, [@surf.3d.u32x1, {%t, %b, %c, %c}];",
     "b32 at:index at:index at:index"},
    {"mul.lo.u32 %t, %b, 4; suld.b.a2d.b32.<clamp|zero> %d, [@surf.a2d.u32x1, {%a, %t, %c, %c}];",
     "b32 at:layer at:index at:index"},
    {"OWN 4; sust.b.2d.b32.<trap|clamp|zero> [@surf.own.<u32x1|u8x4|f32x1>, {%t, %u}], %a; "
     "suld.b.2d.b32.trap %d, [@surf.own.$2, {%t, %u}];",
     "b32 b32"},
    {"OWN 8; sust.b.2d.b64.<trap|clamp|zero> [@surf.own.<u32x2|u16x4>, {%t, %u}], %a; "
     "suld.b.2d.b64.trap %d, [@surf.own.$2, {%t, %u}];",
     "b64 b64"},
    {"OWN 8; sust.b.2d.v2.b32.<trap|clamp|zero> [@surf.own.<u32x2|f32x2>, {%t, %u}], {%a, %b}; "
     "suld.b.2d.v2.b32.trap {%d0, %d1}, [@surf.own.$2, {%t, %u}];",
     "b32*2 b32 b32"},
    {"OWN 16; sust.b.2d.v4.b32.<trap|clamp|zero> [@surf.own.<u32x4|f32x4>, {%t, %u}], {%a, %b, %c, "
     "%e}; suld.b.2d.v4.b32.trap QUAD, [@surf.own.$2, {%t, %u}];",
     "b32*4 b32 b32 b32 b32"},
    {"OWN 16; sust.b.2d.v2.b64.<trap|clamp|zero> [@surf.own.<u32x4>, {%t, %u}], {%a, %b}; "
     "suld.b.2d.v2.b64.trap {%d0, %d1}, [@surf.own.$2, {%t, %u}];",
     "b64*2 b64 b64"},
    {"OWN 2; sust.b.2d.b16.<trap|clamp|zero> [@surf.own.<u16x1|f16x1|u8x2>, {%t, %u}], %a; "
     "suld.b.2d.b16.trap %d, [@surf.own.$2, {%t, %u}];",
     "b16 b16"},
    {"OWN 4; sust.b.2d.v2.b16.<trap|clamp|zero> [@surf.own.<u16x2|f16x2>, {%t, %u}], {%a, %b}; "
     "suld.b.2d.b32.trap %d, [@surf.own.$2, {%t, %u}];",
     "b32 b16 b16"},
    {"OWN 1; cvt.u16.u32 %h, %a; sust.b.2d.b8.<trap|clamp|zero> [@surf.own.<u8x1|s8x1>, {%t, %u}], "
     "%h; suld.b.2d.b8.trap %k, [@surf.own.$2, {%t, %u}]; cvt.u32.u16 %d, %k;",
     "b32 b32"},
    {"OWN 4; add.u32 %t, %t, 256; mov.b32 %d, %a; sust.b.2d.b32.zero [@surf.own.u32x1, {%t, %u}], "
     "%b;",
     "b32 b32 b32"},
    {"OWN 4; sust.b.2d.b32.trap [@surf.own.u32x1, {%t, %u}], %a; "
     "sured.b.<add>.2d.<u32|s32>.<trap|clamp|zero> [@surf.own.u32x1, {%t, %u}], %b; "
     "suld.b.2d.b32.trap %d, [@surf.own.u32x1, {%t, %u}];",
     "b32 b32 b32"},
    {"OWN 4; sust.b.2d.b32.trap [@surf.own.u32x1, {%t, %u}], %a; "
     "sured.b.<min|max>.2d.<u32|s32>.<trap|clamp|zero> [@surf.own.u32x1, {%t, %u}], %b; "
     "suld.b.2d.b32.trap %d, [@surf.own.u32x1, {%t, %u}];",
     "b32 b32 b32"},
    {"OWN 4; sust.b.2d.b32.trap [@surf.own.u32x1, {%t, %u}], %a; "
     "sured.b.<and|or>.2d.<b32>.<trap|clamp|zero> [@surf.own.u32x1, {%t, %u}], %b; "
     "suld.b.2d.b32.trap %d, [@surf.own.u32x1, {%t, %u}];",
     "b32 b32 b32"},
    {"OWN 8; sust.b.2d.b64.trap [@surf.own.u32x2, {%t, %u}], %a; "
     "sured.b.add.2d.u64.<trap|clamp|zero> [@surf.own.u32x2, {%t, %u}], %b; suld.b.2d.b64.trap %d, "
     "[@surf.own.u32x2, {%t, %u}];",
     "b64 b64 b64"},
    // Mixed as an H200 does, of numbers whose sums are exact.
    {"tex.1d.v4.f32.f32 QUAD, [@1d.<f32x1|f32x4|f16x2>.linear.<clamp|border>, {%a}];",
     "f32*4 at:texels"},
    {"tex.1d.v4.f32.f32 QUAD, [@1d.<u8x4|u16x2|s8x2>.unorm.linear.<clamp|border>, {%a}];",
     "f32*4 at:texels"},
    {"tex.1d.v4.f32.f32 QUAD, [@1d.<f32x1|f32x4>.<linear>.<clamp|wrap|mirror|border>.norm, {%a}];",
     "f32*4 at:parts"},
    {"tex.1d.v4.f32.s32 QUAD, [@1d.<f32x1|f32x4>.<clamp|border>, {%a}];", "f32*4 at:index"},
    {"tex.1d.v4.u32.s32 QUAD, [@1d.<u8x4|u16x2>.<clamp|border>, {%a}];", "b32*4 at:index"},
    {"tex.2d.v4.f32.f32 QUAD, [@2d.<f32x1|f32x4|f16x2>.linear.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@2d.<u8x4|u16x2|s8x2>.unorm.linear.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@2d.<f32x1|f32x4>.<linear>.<clamp|wrap|mirror|border>.norm, {%a, "
     "%b}];",
     "f32*4 at:parts at:parts"},
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<f32x1|f32x4|f16x2>.linear.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:texels at:texels at:texels"},
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<u8x4|u16x2>.unorm.linear.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:texels at:texels at:texels"},
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<f32x1|f32x4>.<linear>.<clamp|wrap|mirror|border>.norm, {%a, "
     "%b, %c, %c}];",
     "f32*4 at:parts at:parts at:parts"},
    {"tex.a1d.v4.f32.f32 QUAD, [@a1d.<f32x1|f32x4|f16x2>.linear.<clamp|border>, {%a, %b}];",
     "f32*4 at:layer at:texels"},
    {"tex.a1d.v4.f32.s32 QUAD, [@a1d.<f32x1|f32x4>.<clamp|border>, {%a, %b}];",
     "f32*4 at:layer at:index"},
    {"tex.a1d.v4.u32.s32 QUAD, [@a1d.<u8x4|u16x2>.<clamp|border>, {%a, %b}];",
     "b32*4 at:layer at:index"},
    {"tex.a2d.v4.f32.f32 QUAD, [@a2d.<f32x1|f32x4|f16x2>.linear.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:layer at:texels at:texels"},
    {"tex.a2d.v4.f32.s32 QUAD, [@a2d.<f32x1|f32x4>.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:layer at:index at:index"},
    {"tex.a2d.v4.u32.s32 QUAD, [@a2d.<u8x4|u16x2>.<clamp|border>, {%a, %b, %c, %c}];",
     "b32*4 at:layer at:index at:index"},
    {"tex.2d.v4.f32.f32 QUAD, [@pitch.<f32x1|f32x4|f16x2>.linear.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tex.level.<2d>.v4.f32.f32 QUAD, [@$1.f32x4.<linear>, {%a, %b}], 0f00000000;",
     "f32*4 at:texels at:texels"},
    {"tex.level.<3d>.v4.f32.f32 QUAD, [@$1.f32x4.<linear>, {%a, %b, %c, %c}], 0f00000000;",
     "f32*4 at:texels at:texels at:texels"},
    {"mov.b32 %t, 0; tex.grad.2d.v4.f32.f32 QUAD, [@2d.f32x4.<linear>, {%a, %b}], {%t, %t}, {%t, "
     "%t};",
     "f32*4 at:texels at:texels"},
    {"tex.2d.v2.f16x2.f32 {%d0, %d1}, [@2d.<f16x2|f16x4|f32x4>.<clamp|border>, {%a, %b}];",
     "b32*2 at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD|%p, [@2d.f32x4.<clamp|border>, {%a, %b}]; @!%p mov.b32 %d0, 0;",
     "f32*4 at:texels at:texels"},
    {"tex.<a1d>.v4.f32.f32 QUAD, [@$1.<u8x4|u16x2|s8x2|s16x4>.unorm.linear.<clamp|border>, {%a, "
     "%b}];",
     "f32*4 at:layer at:texels"},
    {"tex.<a2d>.v4.f32.f32 QUAD, [@$1.<u8x4|u16x2|s8x2|s16x4>.unorm.linear.<clamp|border>, {%a, "
     "%b, %c, %c}];",
     "f32*4 at:layer at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@pitch.<u8x4|u16x2|s8x2>.unorm.linear.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tex.<a1d>.v4.f32.f32 QUAD, [@$1.<f32x4>.linear.<wrap|mirror>.norm, {%a, %b}];",
     "f32*4 at:layer at:parts"},
    {"tex.<a2d>.v4.f32.f32 QUAD, [@$1.<f32x4>.linear.<wrap|mirror>.norm, {%a, %b, %c, %c}];",
     "f32*4 at:layer at:parts at:parts"},
    {"tex.2d.v4.f32.s32 QUAD, [@pitch.<f32x1|f32x4>.<clamp|border>, {%a, %b}];",
     "f32*4 at:index at:index"},
    {"tex.level.a2d.v4.f32.f32 QUAD, [@a2d.f32x4.<nearest|linear>, {%a, %b, %c, %c}], 0f00000000;",
     "f32*4 at:layer at:texels at:texels"},
    {"mov.b32 %t, 0; tex.grad.1d.v4.f32.f32 QUAD, [@1d.f32x4.<nearest|linear>, {%a}], {%t}, {%t};",
     "f32*4 at:texels"},
    {"mov.b32 %t, 0; tex.grad.3d.v4.f32.f32 QUAD, [@3d.f32x4.<nearest|linear>, {%a, %b, %c, %c}], "
     "{%t, %t, %t, %t}, {%t, %t, %t, %t};",
     "f32*4 at:texels at:texels at:texels"},
    // Cubes: each face, with its edges.
    {"mov.b32 %t, <0f40000000|0fC0000000>; tex.cube.v4.f32.f32 QUAD, "
     "[@cube.<f32x1|f32x4|f16x2>.linear, <{%t, %a, %b, %b}|{%a, %t, %b, %b}|{%a, %b, %t, %t}>];",
     "f32*4 at:face at:face"},
    {"mov.b32 %t, <0f40000000|0fC0000000>; tex.cube.v4.f32.f32 QUAD, "
     "[@cube.<u8x4|u16x2|s8x2>.unorm.linear, <{%t, %a, %b, %b}|{%a, %t, %b, %b}|{%a, %b, %t, "
     "%t}>];",
     "f32*4 at:face at:face"},
    {"mov.b32 %t, <0f40000000|0fC0000000>; tex.acube.v4.f32.f32 QUAD, "
     "[@acube.<f32x4>.linear, <{%c, %t, %a, %b}|{%c, %a, %t, %b}|{%c, %a, %b, %t}>];",
     "f32*4 at:face at:face at:layer"},
    {"mov.b32 %t, <0f40000000|0fC0000000>; tex.acube.v4.f32.f32 QUAD, "
     "[@acube.<u8x4>.unorm.linear, <{%c, %t, %a, %b}|{%c, %a, %t, %b}|{%c, %a, %b, %t}>];",
     "f32*4 at:face at:face at:layer"},
    {"mov.b32 %t, <0f40000000|0fC0000000>; tld4.<r|g>.cube.v4.f32.f32 QUAD, "
     "[@cube.<f32x4>, <{%t, %a, %b, %b}|{%a, %t, %b, %b}|{%a, %b, %t, %t}>];",
     "f32*4 at:face at:face"},
    // sRGB.
    {"tex.1d.v4.f32.f32 QUAD, [@1d.<u8x4>.unorm.srgb.<nearest|linear>.<clamp|border>, {%a}];",
     "f32*4 at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@2d.<u8x4>.unorm.srgb.<nearest|linear>.<clamp|border>, {%a, %b}];",
     "f32*4 at:texels at:texels"},
    {"tex.2d.v4.f32.f32 QUAD, [@pitch.<u8x4>.unorm.srgb.<nearest|linear>.<clamp|border>, {%a, "
     "%b}];",
     "f32*4 at:texels at:texels"},
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<u8x4>.unorm.srgb.<nearest|linear>.<clamp|border>, {%a, %b, %c, "
     "%c}];",
     "f32*4 at:texels at:texels at:texels"},
    {"tex.a2d.v4.f32.f32 QUAD, [@a2d.<u8x4>.unorm.srgb.<nearest|linear>.<clamp|border>, {%a, %b, "
     "%c, %c}];",
     "f32*4 at:layer at:texels at:texels"},
    // Signed bytes in three dimensions.
    {"tex.3d.v4.f32.f32 QUAD, [@3d.<s8x2>.unorm.linear.<clamp|border>, {%a, %b, %c, %c}];",
     "f32*4 at:texels at:texels at:texels"},
};

}  // namespace

std::span<const Row> ImageRows() { return kImageRows; }

}  // namespace consort::ptx_suite
