#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every #include of our C++ sources against tools/layering.toml.

Prints one line a violation, `file:line: rule: because`, and exits 1; exits 0 when there is none. Reads the files
that git knows or would add. With --gen DIR (a build folder's gen/) generated sources are checked as well.
"""

import argparse
import dataclasses
import fnmatch
import pathlib
import re
import sys
import tomllib

from source_files import list_files

SOURCE_SUFFIXES = (".h", ".cc", ".c", ".cu", ".inc")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


@dataclasses.dataclass(frozen=True)
class Violation:
    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


def starts_with_any(name, prefixes):
    """True if `name` is one of `prefixes`, or lies under one that ends in a slash."""
    return any(name == prefix or (prefix.endswith("/") and name.startswith(prefix)) for prefix in prefixes)


def matches_any(path, patterns):
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def strip_comments(text):
    """C++ text with comments blanked, line numbers kept. String literals are left alone."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

    def blank(match):
        found = match.group(0)
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return pattern.sub(blank, text)


class Layering:
    """The rules of one layering.toml."""

    def __init__(self, config):
        self.layers = config["layer"]
        self.libraries = config["libraries"]
        self.tests = config["tests"]
        self.rules = config.get("rule", [])
        self.our_prefixes = tuple(path for layer in self.layers.values() for path in layer["paths"])
        for name, layer in self.layers.items():
            for other in (*layer["may"], *layer.get("only_from", {})):
                if other not in self.layers:
                    raise ValueError(f"layering.toml: layer {name} names the unknown layer {other}")
            for library in layer["libraries"]:
                if library not in self.libraries:
                    raise ValueError(f"layering.toml: layer {name} names the unknown library {library}")

    def layer_of(self, path):
        """Name of the layer with the longest prefix of `path`, or None."""
        best = max((prefix for prefix in self.our_prefixes if path.startswith(prefix)), key=len, default=None)
        if best is None:
            return None
        return next(name for name, layer in self.layers.items() if best in layer["paths"])

    def library_of(self, header):
        """Name of the third-party group of `header`; None for standard and system headers."""
        return next((name for name, group in self.libraries.items() if starts_with_any(header, group)), None)

    def is_test(self, path):
        return path.endswith(tuple(self.tests["suffixes"]))

    def check_include(self, path, header, quoted):
        """The reasons why `path` may not include `header`: none if it may."""
        own = self.layer_of(path)
        if own is None:
            return ["this file is in no layer of tools/layering.toml"]
        layer = self.layers[own]
        because = layer["because"]
        target = self.layer_of(header)
        reasons = []
        if target is not None:
            if target != own and target not in layer["may"]:
                reasons.append(f'{own} may not include {target} ("{header}"): {because}')
            elif starts_with_any(header, layer.get("not_headers", [])):
                reasons.append(f'{own} may not include "{header}": {because}')
            elif target in layer.get("only_from", {}) and not self.is_test(path):
                if header not in layer["only_from"][target]:
                    reasons.append(f'{own} may include only {", ".join(layer["only_from"][target])} of {target}, '
                                   f'not "{header}": {because}')
        else:
            library = self.library_of(header)
            if library is not None:
                allowed = set(layer["libraries"])
                if self.is_test(path):
                    allowed.update(self.tests["libraries"])
                if library not in allowed:
                    reasons.append(f"{own} may not include {library} (<{header}>): {because}")
            elif starts_with_any(header, layer.get("not_system", [])) and not self.is_test(path):
                reasons.append(f"{own} may not include <{header}>: {because}")
            elif quoted and not layer.get("siblings"):
                reasons.append(f'"{header}" belongs to no layer (is it the path from the root?)')
        for rule in self.rules:
            if starts_with_any(header, rule.get("include", [])) and not matches_any(path, rule["only"]):
                reasons.append(f'<{header}> only in {", ".join(rule["only"])}: {rule["because"]}')
        return reasons

    def check_text(self, path, text):
        """Violations of the `text` rules in `text`, which has no comments."""
        for rule in self.rules:
            if "text" not in rule or not matches_any(path, rule["within"]) or matches_any(path, rule["only"]):
                continue
            for match in re.finditer(rule["text"], text):
                line = text.count("\n", 0, match.start()) + 1
                yield Violation(path, line, f"{match.group(0).strip()} only in {', '.join(rule['only'])}: "
                                            f"{rule['because']}")

    def check_reach(self, includes):
        """Violations of `never_reach`. `includes`: path -> list of (line, header)."""
        for path in sorted(includes):
            own = self.layer_of(path)
            banned = self.layers[own].get("never_reach", []) if own else []
            if not banned or self.is_test(path):
                continue
            # Direct includes are judged by check_include; here, what comes in behind a header of ours.
            for line, first in includes[path]:
                way = find_way(includes, first, banned)
                if way is not None and len(way) > 1:
                    yield Violation(path, line, f"{own} reaches {way[-1]} through {' -> '.join(way[:-1])}: "
                                                f"{self.layers[own]['because']}")


def find_way(includes, start, banned):
    """Shortest way of includes from header `start` to a banned one, or None."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop(0)
        if starts_with_any(way[-1], banned):
            return way
        for _, header in includes.get(way[-1], []):
            if header not in seen:
                seen.add(header)
                ways.append([*way, header])
    return None


def check(sources, config):
    """All violations in `sources`, a dict of repository path -> text, in order of path and line."""
    layering = Layering(config)
    violations = []
    includes = {}
    for path in sorted(sources):
        text = strip_comments(sources[path])
        includes[path] = []
        for number, line in enumerate(text.split("\n"), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            header = match.group(1) or match.group(2)
            includes[path].append((number, header))
            for reason in layering.check_include(path, header, quoted=match.group(1) is not None):
                violations.append(Violation(path, number, reason))
        violations.extend(layering.check_text(path, text))
    violations.extend(layering.check_reach(includes))
    return sorted(violations, key=lambda violation: (violation.path, violation.line, violation.message))


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=root, help="repository to check")
    parser.add_argument("--gen", type=pathlib.Path, help="folder of generated sources to check too")
    args = parser.parse_args()

    sources = {path: (args.root / path).read_text(errors="replace")
               for path in list_files(args.root) if path.endswith(SOURCE_SUFFIXES)}
    if args.gen:
        for file in sorted(args.gen.rglob("*")):
            if file.suffix in SOURCE_SUFFIXES:
                sources[f"gen/{file.relative_to(args.gen)}"] = file.read_text(errors="replace")
    if not sources:
        print(f"check_layering: no source under {args.root}", file=sys.stderr)
        return 1
    config = tomllib.loads((args.root / "tools/layering.toml").read_text())
    violations = check(sources, config)
    for violation in violations:
        print(violation)
    print(f"check_layering: {len(sources)} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
