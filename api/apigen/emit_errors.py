# SPDX-License-Identifier: Apache-2.0
"""gen/errors/: names and texts of the driver's results, from cuda.h's CUresult and api/errors.toml."""

import re

from description import DescriptionError
from emit_wire import BANNER


def results(cuda_h):
    """{name: number} of CUresult, ascending."""
    body = re.search(r"typedef enum cudaError_enum \{(.*?)\} CUresult;", cuda_h, re.S)
    if not body:
        raise DescriptionError("cuda.h: no enum CUresult")
    code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.S)
    numbers = {name: int(number) for name, number in re.findall(r"(CUDA_\w+)\s*=\s*(\d+)", code)}
    return dict(sorted(numbers.items(), key=lambda item: item[1]))


def check(texts, numbers):
    for name in numbers:
        if name not in texts:
            raise DescriptionError(f"errors.toml: {name} of cuda.h has no text")
    for name in texts:
        if name not in numbers:
            raise DescriptionError(f"errors.toml: {name}: cuda.h does not have it")


def table(texts, numbers):
    check(texts, numbers)
    lines = [BANNER.replace("api/cuda/*.toml", "api/errors.toml and cuda.h"),
             "#ifndef CONSORT_GEN_ERRORS_ERROR_TABLE_H_\n#define CONSORT_GEN_ERRORS_ERROR_TABLE_H_\n",
             "#include <cuda.h>\n", "namespace consort {\n",
             "struct ErrorText {", "  CUresult result;", "  const char* name;", "  const char* text;", "};\n",
             "// Ascending by result.", "inline constexpr ErrorText kErrorTexts[] = {"]
    for name in numbers:
        text = texts[name].replace("\\", "\\\\").replace("\"", "\\\"")
        lines.append(f"    {{{name}, \"{name}\", \"{text}\"}},")
    lines += ["};\n", "// The entry of `result`, which lives for ever; null for a code that cuda.h does not have.",
              "constexpr const ErrorText* FindErrorText(CUresult result) {",
              "  for (const ErrorText& entry : kErrorTexts) {", "    if (entry.result == result) return &entry;", "  }",
              "  return nullptr;", "}\n", "}  // namespace consort\n", "#endif  // CONSORT_GEN_ERRORS_ERROR_TABLE_H_"]
    return "\n".join(lines) + "\n"
