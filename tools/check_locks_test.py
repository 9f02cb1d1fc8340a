# SPDX-License-Identifier: Apache-2.0
"""Tests of check_locks.py with the real clang and the real Abseil on small sources."""

import pathlib
import shutil
import tempfile
import unittest

import check_locks

HEADER = """
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
struct Counter {
  int Read();
  absl::Mutex mutex;
  int value ABSL_GUARDED_BY(mutex) = 0;
};
"""
UNLOCKED = '#include "base/counter.h"\nint Counter::Read() { return value; }\n'
LOCKED = '#include "base/counter.h"\nint Counter::Read() { absl::MutexLock lock(&mutex); return value; }\n'


@unittest.skipUnless(shutil.which(check_locks.CLANG), f"{check_locks.CLANG} is not installed")
class LockTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "base").mkdir()
        (self.root / "base/counter.h").write_text(HEADER)

    def check(self, *texts):
        entries = []
        for number, text in enumerate(texts):
            source = self.root / f"base/counter{number}.cc"
            source.write_text(text)
            command = f"g++ -I{self.root} -std=c++20 -O1 -Werror -o x.o -c {source}"
            entries.append({"file": str(source), "command": command})
        return check_locks.check(self.root, entries, 1)

    def test_guarded_member_read_without_the_lock_is_found(self):
        count, findings = self.check(UNLOCKED)
        self.assertEqual(count, 1)
        self.assertEqual(len(findings), 1)
        self.assertIn("reading variable 'value' requires holding mutex 'mutex'", findings[0])

    def test_guarded_member_read_under_the_lock_is_right(self):
        self.assertEqual(self.check(LOCKED), (1, []))

    def test_source_that_does_not_parse_is_a_finding(self):
        self.assertEqual(len(self.check(UNLOCKED + "int broken(")[1]), 1)

    def test_one_of_several_is_found_and_named(self):
        count, findings = self.check(LOCKED, "#include \"base/counter.h\"\nint Other() { return Counter().value; }\n",
                                     "#include \"base/counter.h\"\n")
        self.assertEqual((count, len(findings)), (3, 1))
        self.assertIn("counter1.cc", findings[0])

    def test_sources_that_use_one_name_are_parsed_alone(self):
        helper = "static int Helper() { return 1; }\n"
        other = '#include "base/counter.h"\n' + helper + "int Other() { return Helper(); }\n"
        self.assertEqual(self.check(LOCKED + helper, other), (2, []))
        self.assertEqual(len(self.check(UNLOCKED + helper, other)[1]), 1)

    def test_sources_of_a_unity_build_are_parsed(self):
        included = self.root / "base/counter.cc"
        included.write_text(UNLOCKED)
        source = self.root / "build/unity_0_cxx.cxx"
        source.parent.mkdir()
        source.write_text(f'#include "{included}"\n')
        entry = {"file": str(source), "command": f"g++ -I{self.root} -std=c++20 -c {source}"}
        count, findings = check_locks.check(self.root, [entry], 1)
        self.assertEqual((count, len(findings)), (1, 1))
        self.assertIn("counter.cc", findings[0])

    def test_source_without_annotations_is_not_parsed(self):
        self.assertEqual(self.check("int broken("), (0, []))


if __name__ == "__main__":
    unittest.main()
