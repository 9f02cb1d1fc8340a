// SPDX-License-Identifier: Apache-2.0
// host/ctl/command_docs.h: shell completion and manual page of a command line, made from the same
// description that parses it and prints its help. Pure functions.
#ifndef CONSORT_HOST_CTL_COMMAND_DOCS_H_
#define CONSORT_HOST_CTL_COMMAND_DOCS_H_

#include <string>

namespace CLI {
class App;
}

namespace consort::host {

// A script for bash-completion's folder (usr/share/bash-completion/completions).
std::string BashCompletion(const CLI::App& app);
// A function for zsh's folder (usr/share/zsh/vendor-completions), named _ and the program's name.
std::string ZshCompletion(const CLI::App& app);
// A page for man(1): synopsis, each command with its options, and `more`, in roff.
std::string ManualPage(const CLI::App& app, const std::string& version, const std::string& more);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_COMMAND_DOCS_H_
