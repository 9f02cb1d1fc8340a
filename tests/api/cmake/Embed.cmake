# SPDX-License-Identifier: Apache-2.0
# cmake -DINPUT=file -DNAME=kName -DOUTPUT=out.cc -P Embed.cmake
#
# Writes OUTPUT: the bytes of INPUT as `const Image NAME` (tests/api/images.h). A zero byte that Image::bytes does not count
# follows them, because the driver takes PTX text without a length (CUDA Driver API, cuModuleLoadData).
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," list "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" list "${list}")
file(WRITE ${OUTPUT} "// Generated from ${NAME} by Embed.cmake; do not edit.
#include \"tests/api/images.h\"
namespace consort::tests::api {
namespace {
alignas(64) constexpr unsigned char ${NAME}Bytes[] = {
${list}0x00};
}  // namespace
const Image ${NAME} = {${NAME}Bytes, ${bytes}};
}  // namespace consort::tests::api
")
