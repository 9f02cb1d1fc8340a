// SPDX-License-Identifier: Apache-2.0
// What the shells make of the scripts, by the shells themselves.
#include "host/ctl/command_docs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <string>

namespace consort::host {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CommandDocsTest : public ::testing::Test {
 protected:
  CommandDocsTest() : app_("does things; isn't big", "tool") {
    app_.fallthrough();
    app_.add_option("-o,--output", output_, "for whom")->check(CLI::IsMember({"table", "json"}));
    CLI::App* vm = app_.add_subcommand("vm", "machines");
    vm->fallthrough();
    CLI::App* attach = vm->add_subcommand("attach", "gives [one]: more");
    attach->add_option("--tenant", text_, "who pays")->required();
    attach->add_option("domain", text_, "its name")->required();
    vm->add_subcommand("detach", "takes");
    CLI::App* completion = app_.add_subcommand("completion", "prints a script");
    completion->add_option("shell", text_, "which")->check(CLI::IsMember({"bash", "zsh"}));
  }

  // The last line of what the shell says of a script.
  static std::string ShellOutput(const std::string& shell, const std::string& script) {
    const std::string path = ::testing::TempDir() + "/command_docs_script";
    std::ofstream(path) << script;
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
        popen((shell + " " + path + " 2>&1").c_str(), "r"), &pclose);
    std::string out;
    char bytes[4096];
    size_t got;
    while ((got = fread(bytes, 1, sizeof(bytes), pipe.get())) > 0) out.append(bytes, got);
    return out;
  }
  // What bash offers for a line that ends in the last word.
  std::string Offered(const std::string& words, int last) {
    return ShellOutput("bash --norc --noprofile", "complete() { :; }\n" + BashCompletion(app_) +
                                                      "COMP_WORDS=(" + words +
                                                      ")\nCOMP_CWORD=" + std::to_string(last) +
                                                      "\n_tool\necho \"${COMPREPLY[*]}\"\n");
  }

  std::string output_;
  std::string text_;
  CLI::App app_;
};

TEST_F(CommandDocsTest, BashOffersWhatFits) {
  EXPECT_EQ(Offered("tool ''", 1), "vm completion -h --help -o --output\n");
  EXPECT_EQ(Offered("tool v", 1), "vm\n");
  EXPECT_EQ(Offered("tool vm ''", 2), "attach detach -o --output -h --help\n");
  EXPECT_EQ(Offered("tool vm att", 2), "attach\n");
  EXPECT_EQ(Offered("tool vm attach --t", 3), "--tenant\n");
  EXPECT_EQ(Offered("tool vm attach --out", 3), "--output\n");
  EXPECT_EQ(Offered("tool -o ''", 2), "table json\n");
  EXPECT_EQ(Offered("tool -o json vm d", 4), "detach\n");
  EXPECT_EQ(Offered("tool completion z", 2), "zsh\n");
  EXPECT_EQ(Offered("tool nonsense", 1), "\n");
}

TEST_F(CommandDocsTest, ZshTakesTheScript) {
  if (system("command -v zsh >/dev/null 2>&1") != 0) GTEST_SKIP() << "no zsh on this machine";
  EXPECT_EQ(ShellOutput("zsh -f", "autoload -U compinit; compinit -D -u\n" + ZshCompletion(app_) +
                                      "whence -w _tool_vm_attach _tool\n"),
            "_tool_vm_attach: function\n_tool: function\n");
}

TEST_F(CommandDocsTest, ZshsScriptHasEveryCommand) {
  const std::string script = ZshCompletion(app_);
  EXPECT_THAT(script, testing::StartsWith("#compdef tool\n"));
  EXPECT_THAT(script, HasSubstr("'attach:gives \\[one\\]\\: more'"));
  EXPECT_THAT(script, HasSubstr("'--output[for whom]:value:(table json)'"));
  EXPECT_THAT(script, HasSubstr("_tool_vm_attach() {"));
}

TEST_F(CommandDocsTest, TheManualHasEveryCommandAndOption) {
  const std::string page = ManualPage(app_, "1.2", ".SH EXIT STATUS\n0\n");
  EXPECT_THAT(page, testing::StartsWith(".TH TOOL 1 \"\" \"Consort 1.2\""));
  EXPECT_THAT(page, HasSubstr("does things; isn\\(aqt big"));
  EXPECT_THAT(
      page, HasSubstr("\\fBtool vm attach\\fR \\fB\\-\\-tenant\\fR \\fITENANT\\fR \\fIDOMAIN\\fR"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fItable|json\\fR\nfor whom"));
  EXPECT_THAT(page, HasSubstr(".SS vm detach\ntakes\n"));
  EXPECT_THAT(page, testing::EndsWith(".SH EXIT STATUS\n0\n"));
  // A command that only groups others is not run.
  EXPECT_THAT(page, Not(HasSubstr("\\fBtool vm\\fR\n")));
}

}  // namespace
}  // namespace consort::host
