# SPDX-License-Identifier: Apache-2.0
"""tests/compat/library_samples.py: reads a checkout of NVIDIA's CUDALibrarySamples.

A folder with a CMakeLists.txt is one program for each of its sources that has a main(); its other sources belong to
each of them. The libraries are those of the folder's library; cuda_samples.build() builds the programs. Pure functions.
"""

import pathlib
import re

import cuda_samples

# The folders of libraries that come with the CUDA toolkit: what their programs are linked with.
LIBRARIES = {
    "cuBLAS": ["cublas", "cublasLt"],
    "cuBLASLt": ["cublasLt", "cublas"],
    "cuFFT": ["cufft", "nvJitLink", "nvrtc"],
    "cuRAND": ["curand"],
    "cuSOLVER": ["cusolver", "cusolverMg", "cusparse", "cublas"],
    "cuSPARSE": ["cusparse", "cublas", "nvrtc", "nvJitLink"],
    "nvJPEG": ["nvjpeg", "nppig", "nppif", "nppial", "nppicc", "nppidei", "nppc"],
    "NPP": ["nppif", "nppig", "nppial", "nppim", "nppitc", "nppidei", "nppist", "nppicc", "nppc"],
}
_SOURCES = (".cu", ".cpp", ".c")
_MAIN = re.compile(r"^\s*(?:int|auto|void)\s+main\s*\(", re.M)


def read_samples(folder, checkout):
    """The Samples of one folder."""
    folder, checkout = pathlib.Path(folder), pathlib.Path(checkout)
    library = folder.relative_to(checkout).parts[0]
    sources = sorted(item.name for item in folder.iterdir() if item.suffix in _SOURCES and item.is_file())
    mains = [source for source in sources if _MAIN.search((folder / source).read_text(errors="replace"))]
    shared = [source for source in sources if source not in mains]
    programs = {folder.name if len(mains) == 1 else pathlib.Path(main).stem: [main] + shared for main in mains}
    # Headers that the programs share lie in a folder beside theirs, or beside one above it.
    includes = [parent / name for parent in folder.parents if checkout in (parent, *parent.parents)
                for name in ("utils", "Common") if (parent / name).is_dir()]
    return [cuda_samples.Sample(name, folder, library, files, list(LIBRARIES[library]), [], includes=includes,
                                cuda_language=True)
            for name, files in programs.items()]


def find_samples(checkout, groups=()):
    """All programs for the toolkit's libraries; `groups` limits the folders ("cuBLAS", "cuFFT")."""
    checkout = pathlib.Path(checkout)
    samples = []
    for library in LIBRARIES:
        if groups and library not in groups:
            continue
        for makefile in sorted((checkout / library).rglob("CMakeLists.txt")):
            samples += read_samples(makefile.parent, checkout)
    return samples
