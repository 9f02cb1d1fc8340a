# SPDX-License-Identifier: Apache-2.0
"""The files of the repository: those that git tracks, and new ones that it would add."""

import subprocess


def list_files(root):
    """Sorted paths, relative to `root`, a pathlib.Path in a git work tree. Deleted files and links are left out."""
    output = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout
    paths = sorted(set(output.split("\0")) - {""})
    return [path for path in paths if (root / path).is_file() and not (root / path).is_symlink()]
