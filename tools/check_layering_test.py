# SPDX-License-Identifier: Apache-2.0
"""Tests of check_layering.py: the real rules on small made-up sources. Each refusal has a neighbour that passes."""

import pathlib
import tomllib
import unittest

import check_layering

RULES = tomllib.loads((pathlib.Path(__file__).resolve().parent / "layering.toml").read_text())


def messages(sources):
    return [str(violation) for violation in check_layering.check(sources, RULES)]


class LayerTest(unittest.TestCase):
    def assert_refused(self, path, text, fragment):
        found = messages({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(fragment, found[0])

    def assert_allowed(self, path, text):
        self.assertEqual(messages({path: text}), [])

    def test_include_of_a_lower_layer_is_allowed(self):
        self.assert_allowed("host/session.cc", '#include "device/driver.h"\n#include "base/log.h"\n')

    def test_include_of_a_higher_layer_names_file_line_and_rule(self):
        self.assert_refused("device/driver.cc", '#include <vector>\n\n#include "host/session.h"\n',
                            "device/driver.cc:3: device may not include host")

    def test_host_may_not_include_guest_or_simulator(self):
        self.assert_refused("host/a.cc", '#include "guest/runtime.h"\n', "host may not include guest")
        self.assert_refused("host/a.cc", '#include "policies/sim/simulator.h"\n', "host may not include sim")

    def test_wire_may_not_see_cuda(self):
        self.assert_refused("vmsock/wire/frame.h", "#include <cuda.h>\n", "wire may not include cuda")
        self.assert_allowed("device/driver.h", "#include <cuda.h>\n")

    def test_longest_prefix_decides_the_layer(self):
        self.assert_allowed("device/cpu/jit.cc", "#include <llvm/IR/Module.h>\n")
        self.assert_refused("device/driver.cc", "#include <llvm/IR/Module.h>\n", "device may not include llvm")

    def test_transport_may_not_know_calls(self):
        self.assert_refused("vmsock/ring.cc", '#include "gen/wire/memory.h"\n', 'vmsock may not include "gen/wire')
        self.assert_allowed("guest/memory.cc", '#include "gen/wire/memory.h"\n')

    def test_guest_takes_only_freestanding_headers_of_base(self):
        self.assert_allowed("guest/runtime.cc", '#include "base/units.h"\n')
        self.assert_refused("guest/runtime.cc", '#include "base/status_macros.h"\n', "guest may include only")
        self.assert_allowed("guest/runtime_test.cc", '#include "base/status_macros.h"\n')

    def test_guest_may_not_reach_logging_through_another_header(self):
        found = messages({
            "base/log.h": "",
            "vmsock/channel.h": '#include "base/log.h"\n',
            "guest/runtime.cc": '\n#include "vmsock/channel.h"\n',
        })
        self.assertEqual(found, ["guest/runtime.cc:2: guest reaches base/log.h through vmsock/channel.h: "
                                 "the guest library is loaded into strangers' processes"])

    def test_include_cycle_ends(self):
        self.assertEqual(messages({
            "vmsock/a.h": '#include "vmsock/b.h"\n',
            "vmsock/b.h": '#include "vmsock/a.h"\n',
            "guest/runtime.cc": '#include "vmsock/a.h"\n',
        }), [])

    def test_policies_have_no_clock(self):
        self.assert_refused("policies/fair.cc", "#include <chrono>\n", "policies may not include <chrono>")
        self.assert_allowed("policies/fair.cc", "#include <algorithm>\n")

    def test_kj_only_at_its_edge(self):
        self.assert_refused("host/session.cc", "#include <kj/async.h>\n", "only in gpool/*")
        self.assert_allowed("host/trace_capnp.cc", "#include <kj/async.h>\n")

    def test_glog_only_behind_base_log(self):
        self.assert_refused("host/session.cc", "#include <glog/logging.h>\n", "only in base/log.h")
        self.assert_allowed("base/log.h", "#include <glog/logging.h>\n")

    def test_vendor_library_is_opened_in_one_place(self):
        opens = 'void* p = dlopen("libcuda.so.1", 0);\n'
        self.assert_refused("host/main.cc", "\n" + opens, "host/main.cc:2: dlopen( only in device/driver/*")
        self.assert_allowed("device/driver/driver_loader.cc", opens)
        self.assert_allowed("host/main.cc", "// dlopen(3) is elsewhere, see dlopen().\n")

    def test_gtest_is_for_tests(self):
        self.assert_refused("host/session.cc", "#include <gtest/gtest.h>\n", "host may not include gtest")
        self.assert_allowed("host/session_test.cc", "#include <gtest/gtest.h>\n")

    def test_include_in_a_comment_is_none(self):
        self.assert_allowed("device/driver.cc", '/*\n#include "host/session.h"\n*/\n// #include "host/session.h"\n')

    def test_relative_include_is_refused(self):
        self.assert_refused("host/session.cc", '#include "session.h"\n', "belongs to no layer")

    def test_test_programs_are_users_programs(self):
        self.assert_allowed("tests/programs/vector_add.cu", '#include <cuda_runtime.h>\n#include "check.h"\n')
        self.assert_refused("tests/programs/vector_add.cu", '#include "base/units.h"\n', "may not include base")

    def test_source_outside_every_layer_is_refused(self):
        self.assert_refused("lost/a.cc", "#include <vector>\n", "in no layer")


class ConfigTest(unittest.TestCase):
    def test_unknown_layer_is_an_error(self):
        config = {"layer": {"a": {"paths": ["a/"], "may": ["b"], "libraries": []}}, "libraries": {}, "tests": {}}
        with self.assertRaisesRegex(ValueError, "unknown layer b"):
            check_layering.Layering(config)

    def test_unknown_library_is_an_error(self):
        config = {"layer": {"a": {"paths": ["a/"], "may": [], "libraries": ["x"]}}, "libraries": {}, "tests": {}}
        with self.assertRaisesRegex(ValueError, "unknown library x"):
            check_layering.Layering(config)


if __name__ == "__main__":
    unittest.main()
