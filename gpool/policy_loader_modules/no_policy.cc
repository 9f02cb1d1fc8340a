// SPDX-License-Identifier: Apache-2.0
// A shared object that is no policy.
extern "C" int consort_no_policy() { return 1; }
