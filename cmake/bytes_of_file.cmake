# SPDX-License-Identifier: Apache-2.0
# cmake -DFROM=FILE -DTO=FILE -P bytes_of_file.cmake: writes the bytes of FROM as a list for a C array.
file(READ "${FROM}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE ",$" "" bytes "${bytes}")
string(REGEX REPLACE "((0x..,){32})" "\\1\n" bytes "${bytes}")
file(WRITE "${TO}" "${bytes}\n")
