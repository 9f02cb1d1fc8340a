# SPDX-License-Identifier: Apache-2.0
"""tests/compat/cuda_samples.py: reads a checkout of NVIDIA's cuda-samples and builds its programs with plain nvcc.

What a program is made of is read from its CMakeLists.txt (sources, libraries, extra images, data files);
CMake itself is not run, so that one set of options holds for all programs and each can be named in a report.
Kernels are built as PTX (one architecture), which every device takes: a GPU's driver compiles it at load.

The functions are pure but for build(), which starts compilers. Nothing of the checkout is changed.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import typing

# Libraries of CUDA's CMake package: how the linker knows them. Static ones have "_static" in the name there.
_NOT_LIBRARIES = {"cudart", "cudart_static", "toolkit", "cuda_driver"}
# find_package() of what a machine without a display or with other hardware lacks: the reason to give.
_FOREIGN_PACKAGES = {
    "OpenGL": "graphics", "GLUT": "graphics", "GLEW": "graphics", "Vulkan": "graphics", "EGL": "graphics",
    "GLFW": "graphics", "GLFW3": "graphics", "glfw3": "graphics", "X11": "graphics",
    "FreeImage": "absent-library", "NvSci": "other-hardware",
}
# What a library needs that the programs leave to CMake's package.
_IMPLIED = {"cusolver": ["cusparse"]}
# Folders whose programs are made for something else than Linux on a PC with an NVIDIA GPU.
_FOREIGN_NAMES = re.compile(r"D3D|NvSci|nvSci|EGL|Vulkan|vulkan|NvMedia|nvmedia|Tegra|cuDLA")
# Libraries that come with CUDA and give no PTX that a device of compute capability 9.0 could take: their kernels are
# machine code, and NVRTC is asked for machine code by the samples that use it (Common/nvrtc_helper.h).
MACHINE_CODE_LIBRARIES = {
    "nvrtc", "nvJitLink",
    "cublas", "cublasLt", "cufft", "cufftw", "curand", "cusolver", "cusolverMg", "cusparse", "cudnn", "nvjpeg",
    "nppc", "nppial", "nppicc", "nppidei", "nppif", "nppig", "nppim", "nppist", "nppisu", "nppitc", "npps",
}


@dataclasses.dataclass
class Sample:
    """One program of the checkout."""
    name: str
    folder: pathlib.Path
    group: str  # the folder that it lies in, such as 0_Introduction
    sources: typing.List[str]
    libraries: typing.List[str]
    images: typing.List[typing.Tuple[str, str]]  # (source, file to make: .fatbin or .ptx)
    separable: bool = False  # device code of several units that must be linked
    openmp: bool = False
    includes: typing.List[pathlib.Path] = dataclasses.field(default_factory=list)  # beside the checkout's own
    cuda_language: bool = False  # every source is CUDA C++, whatever its name says
    why_not: str = ""  # why it cannot be built anywhere like here; see report.REASONS
    detail: str = ""


def _statements(text):
    """Yields (command, arguments) of a CMakeLists.txt; a command without nested parentheses in its arguments."""
    text = re.sub(r"#[^\n]*", "", text)
    for match in re.finditer(r"(\w+)\s*\(((?:[^()]|\([^()]*\))*)\)", text):
        yield match.group(1).lower(), re.findall(r'"[^"]*"|[^\s"]+', match.group(2))


def _device_code_crosses_units(folder, sources):
    """True if device code is linked from several units: only then -rdc=true is needed, which costs start-up time."""
    text = "".join((folder / source).read_text(errors="replace") for source in sources if source.endswith(".cu"))
    return bool(re.search(r"cudaStreamFireAndForget|cudaStreamTailLaunch|cudaStreamGraph\w+", text)) or bool(
        re.search(r"cdp[A-Z]", folder.name)) or bool(re.search(r"extern\s+__device__", text))


def read_sample(folder):
    """The Samples of `folder`, none if its CMakeLists.txt makes no program."""
    folder = pathlib.Path(folder)
    text = (folder / "CMakeLists.txt").read_text(errors="replace")
    executables, libraries, packages, kernels, fatbins, openmp = {}, [], [], [], [], False
    for command, arguments in _statements(text):
        if command == "add_executable":
            sources = [a for a in arguments[1:] if re.search(r"\.(cu|cpp|c|cc|cxx)$", a) and "$" not in a]
            if sources:
                executables[arguments[0]] = sources
        elif command == "target_link_libraries":
            for argument in arguments[1:]:
                if argument.startswith("CUDA::"):
                    name = argument[6:].replace("_static", "")
                    if name not in _NOT_LIBRARIES:
                        libraries.append(name)
                elif argument == "${NVJITLINK_LIB}":
                    libraries.append("nvJitLink")
                elif argument.startswith("OpenMP::"):
                    openmp = True
                elif argument in ("pthread", "dl", "rt"):
                    libraries.append(argument)
                elif argument.startswith("MPI::") or "MPI" in argument:
                    packages.append("MPI")
        elif command == "find_package" and arguments:
            packages.append(arguments[0])
        elif command == "set" and len(arguments) > 1:
            value = arguments[1].strip('"').rsplit("/", 1)[-1]
            if arguments[0].startswith("CUDA_KERNEL_SOURCE"):
                kernels.append(value)
            elif arguments[0].startswith(("CUDA_FATBIN_FILE", "CUDA_PTX_FILE")):
                fatbins.append(value)
    samples = []
    for name, sources in executables.items():
        sample = Sample(name, folder, folder.parent.name, sources, list(dict.fromkeys(libraries)),
                        list(zip(kernels, fatbins)), openmp=openmp)
        sample.sources = [s for s in sources if (folder / s).exists()]
        foreign = [p for p in packages if p in _FOREIGN_PACKAGES]
        if _FOREIGN_NAMES.search(str(folder.relative_to(folder.parent.parent))):
            sample.why_not, sample.detail = "other-platform", folder.name
        elif foreign:
            sample.why_not, sample.detail = _FOREIGN_PACKAGES[foreign[0]], foreign[0]
        elif "MPI" in packages:
            sample.why_not, sample.detail = "absent-library", "MPI"
        elif len(sample.sources) != len(sources):
            sample.why_not, sample.detail = "broken-checkout", "a source file is missing"
        else:
            sample.separable = _device_code_crosses_units(folder, sample.sources)
        samples.append(sample)
    return samples


def find_samples(checkout, groups=()):
    """All programs of a checkout, by folder and name; `groups` limits the folders ("0", "1_Utilities")."""
    samples = []
    for makefile in sorted(pathlib.Path(checkout).glob("Samples/*/*/CMakeLists.txt")):
        group = makefile.parent.parent.name
        if groups and not any(group == g or group.split("_")[0] == g for g in groups):
            continue
        samples += read_sample(makefile.parent)
    return samples


def build_commands(sample, common, out, nvcc="nvcc", arch="80"):
    """The compiler calls that make `sample` in folder `out`, in order."""
    gencode = f"-gencode=arch=compute_{arch},code=compute_{arch}"
    basic = [nvcc, "-O2", "-std=c++17", "-Wno-deprecated-gpu-targets", "-w", gencode, f"-I{common}",
             f"-I{sample.folder}", "--extended-lambda"]
    inner = [sample.folder / name for name in ("inc", "include") if (sample.folder / name).is_dir()]
    basic += [f"-I{folder}" for folder in inner + sample.includes]
    commands = []
    for source, image in sample.images:
        kind = "-ptx" if image.endswith(".ptx") else "-fatbin"
        commands.append(basic + [kind, "-o", str(out / image), str(sample.folder / source)])
    program = basic + ["-o", str(out / sample.name)] + [str(sample.folder / s) for s in sample.sources]
    if sample.separable:
        program += ["-rdc=true", "-lcudadevrt"]
    if sample.cuda_language:
        program += ["-x", "cu"]
    if sample.openmp:
        program += ["-Xcompiler", "-fopenmp"]
    libraries = [name for library in sample.libraries for name in [library] + _IMPLIED.get(library, [])]
    program += [f"-l{library}" for library in libraries] + ["-lcuda"]
    program += [f"-L{_toolkit(nvcc)}/lib64/stubs"]
    commands.append(program)
    return commands


def copy_data(sample, out, toolkit):
    """Puts what the program reads beside it: its data folder and the sources that it compiles at run time."""
    for item in sorted(sample.folder.iterdir()):
        if item.is_dir() and item.name in ("data", "images"):
            shutil.copytree(item, out / item.name, dirs_exist_ok=True)
            for file in item.iterdir():
                if file.is_file():
                    shutil.copy(file, out)
        elif item.suffix in (".cu", ".cuh", ".h", ".pgm", ".ppm", ".bmp", ".ptx", ".mtx") and item.is_file():
            shutil.copy(item, out)
    if "nvrtc" in sample.libraries:  # they look for headers beside themselves
        shutil.copy(toolkit / "include/cooperative_groups.h", out)
        shutil.copytree(toolkit / "include/cooperative_groups", out / "cooperative_groups", dirs_exist_ok=True)


def _toolkit(nvcc):
    return pathlib.Path(shutil.which(nvcc) or nvcc).resolve().parent.parent


def build(sample, checkout, out_root, nvcc="nvcc", arch="80", timeout_s=900):
    """Builds `sample` below `out_root`, unless it is there; returns (its folder, "" or what went wrong)."""
    out = pathlib.Path(out_root) / sample.group / sample.name
    if (out / sample.name).exists():
        return out, ""
    out.mkdir(parents=True, exist_ok=True)
    copy_data(sample, out, _toolkit(nvcc))
    for command in build_commands(sample, pathlib.Path(checkout) / "Common", out, nvcc, arch):
        try:
            run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s,
                                 check=False, preexec_fn=lambda: os.nice(10))
        except subprocess.TimeoutExpired:
            return out, f"building took more than {timeout_s} s"
        if run.returncode != 0:
            (out / "build.log").write_text(" ".join(command) + "\n" + run.stdout + run.stderr)
            lines = [line for line in (run.stderr + run.stdout).splitlines() if "error" in line or "undefined" in line]
            return out, (lines or ["the compiler failed"])[0][:200]
    return out, ""
