// SPDX-License-Identifier: Apache-2.0
// policies/sim/pool_main.h: `consort-sim pool` and `consort-sim replay`.
#ifndef CONSORT_POLICIES_SIM_POOL_MAIN_H_
#define CONSORT_POLICIES_SIM_POOL_MAIN_H_

namespace consort::sim {

inline constexpr char kPoolUsage[] =
    R"(consort-sim pool SCENARIO.toml [--policy NAME]
                 [--applications CSV] [--gpus CSV] [--trace FILE]
    applications on the GPUs of many nodes; docs/SIMULATOR.md describes model and scenarios.
    --policy decides alone, instead of the scenario's policies; --trace writes what the mapper did.

consort-sim replay TRACE
    takes the decisions of a trace again, one of the daemon or of the simulator; 1 if any differ.
)";

// Arguments after the word; exit status.
int PoolMain(int argc, char** argv);
int ReplayMain(int argc, char** argv);

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_POOL_MAIN_H_
