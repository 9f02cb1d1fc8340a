// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/command_docs.h"

#include <CLI/CLI.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace consort::host {
namespace {

struct Command {
  const CLI::App* app;
  std::vector<std::string> words;  // "vm", "attach"; none for the program itself
};

// The program and all commands below it, in the order in which they were described.
void Collect(const CLI::App& app, const std::vector<std::string>& words,
             std::vector<Command>* commands) {
  commands->push_back({&app, words});
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    std::vector<std::string> below = words;
    below.push_back(child->get_name());
    Collect(*child, below, commands);
  }
}

std::vector<Command> Commands(const CLI::App& app) {
  std::vector<Command> commands;
  Collect(app, {}, &commands);
  return commands;
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app, bool positional) {
  return app.get_options(
      [positional](const CLI::Option* option) { return option->get_positional() == positional; });
}

// "-o", "--output".
std::vector<std::string> Flags(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  return flags;
}

// The flags of a command and of those above it, which it takes too.
std::vector<const CLI::Option*> FlagsInReach(const std::vector<Command>& commands,
                                             const Command& command) {
  std::vector<const CLI::Option*> found;
  for (const Command& other : commands) {
    if (other.words.size() > command.words.size() ||
        !std::equal(other.words.begin(), other.words.end(), command.words.begin())) {
      continue;
    }
    for (const CLI::Option* option : OptionsOf(*other.app, false)) {
      // --help is everybody's own.
      if (other.app == command.app || option != other.app->get_help_ptr()) found.push_back(option);
    }
  }
  return found;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() != 0; }

// The words between the braces of CLI::IsMember's description: "ENUM", "{table,json}".
std::vector<std::string> Choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

std::string ZshQuoted(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string Roff(const std::string& text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}});
  if (!out.empty() && out[0] == '.') out = "\\&" + out;
  return absl::StrReplaceAll(out, {{"\n.", "\n\\&."}});
}

std::string Value(const CLI::Option& option) {
  const std::vector<std::string> choices = Choices(option);
  if (!choices.empty()) return absl::StrJoin(choices, "|");
  return option.get_lnames().empty() ? "VALUE" : absl::AsciiStrToUpper(option.get_lnames()[0]);
}

void ManualOptions(const CLI::App& app, std::string* page) {
  for (const bool positional : {true, false}) {
    for (const CLI::Option* option : OptionsOf(app, positional)) {
      absl::StrAppend(page, ".TP\n");
      if (positional) {
        absl::StrAppend(page, "\\fI", Roff(absl::AsciiStrToUpper(option->get_name(true))),
                        "\\fR\n");
      } else {
        std::vector<std::string> flags;
        for (const std::string& flag : Flags(*option))
          flags.push_back("\\fB" + Roff(flag) + "\\fR");
        absl::StrAppend(page, absl::StrJoin(flags, ", "));
        if (TakesValue(*option)) absl::StrAppend(page, " \\fI", Roff(Value(*option)), "\\fR");
        absl::StrAppend(page, "\n");
      }
      absl::StrAppend(page, Roff(option->get_description()));
      if (!option->get_default_str().empty()) {
        absl::StrAppend(page, " (default ", Roff(option->get_default_str()), ")");
      }
      absl::StrAppend(page, "\n");
    }
  }
}

std::string Synopsis(const Command& command) {
  std::string out;
  for (const CLI::Option* option : OptionsOf(*command.app, false)) {
    if (!option->get_required()) continue;
    absl::StrAppend(&out, " \\fB", Roff(Flags(*option).back()), "\\fR \\fI", Roff(Value(*option)),
                    "\\fR");
  }
  for (const CLI::Option* option : OptionsOf(*command.app, true)) {
    const std::string name = Roff(absl::AsciiStrToUpper(option->get_name(true)));
    absl::StrAppend(&out, option->get_required() ? absl::StrCat(" \\fI", name, "\\fR")
                                                 : absl::StrCat(" [\\fI", name, "\\fR]"));
  }
  return out;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const std::string name = app.get_name();
  const std::vector<Command> commands = Commands(app);
  std::string out = absl::StrCat(
      "# bash completion of ", name, ", made by ", name, " completion bash\n_", name,
      "() {\n  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local at='' word words=''\n  COMPREPLY=()\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \"$at/$word\" in\n");
  for (const Command& command : commands) {
    if (command.words.empty()) continue;
    const std::vector<std::string> above(command.words.begin(), command.words.end() - 1);
    absl::StrAppend(&out, "      '", absl::StrJoin(above, " "), "/", command.words.back(),
                    "') at='", absl::StrJoin(command.words, " "), "' ;;\n");
  }
  absl::StrAppend(&out, "    esac\n  done\n  case \"$previous\" in\n");
  std::vector<std::string> said;
  for (const Command& command : commands) {
    for (const CLI::Option* option : OptionsOf(*command.app, false)) {
      if (!TakesValue(*option)) continue;
      const std::string flags = absl::StrJoin(Flags(*option), "|");
      if (std::find(said.begin(), said.end(), flags) != said.end()) continue;
      said.push_back(flags);
      const std::vector<std::string> choices = Choices(*option);
      absl::StrAppend(&out, "    ", flags, ") COMPREPLY=($(compgen ",
                      choices.empty() ? std::string("-f")
                                      : absl::StrCat("-W '", absl::StrJoin(choices, " "), "'"),
                      " -- \"$current\")); return ;;\n");
    }
  }
  absl::StrAppend(&out, "  esac\n  case \"$at\" in\n");
  for (const Command& command : commands) {
    std::vector<std::string> words;
    for (const CLI::App* child :
         command.app->get_subcommands([](const CLI::App*) { return true; })) {
      words.push_back(child->get_name());
    }
    for (const CLI::Option* option : OptionsOf(*command.app, true)) {
      for (const std::string& choice : Choices(*option)) words.push_back(choice);
    }
    for (const CLI::Option* option : FlagsInReach(commands, command)) {
      for (const std::string& flag : Flags(*option)) words.push_back(flag);
    }
    absl::StrAppend(&out, "    '", absl::StrJoin(command.words, " "), "') words='",
                    absl::StrJoin(words, " "), "' ;;\n");
  }
  absl::StrAppend(&out, "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n}\n",
                  "complete -F _", name, " ", name, "\n");
  return out;
}

std::string ZshCompletion(const CLI::App& app) {
  const std::string name = app.get_name();
  const std::vector<Command> commands = Commands(app);
  std::string out = absl::StrCat("#compdef ", name, "\n# zsh completion of ", name, ", made by ",
                                 name, " completion zsh\n");
  const auto function = [&name](const Command& command) {
    return absl::StrCat("_", name, command.words.empty() ? "" : "_",
                        absl::StrJoin(command.words, "_"));
  };
  // The program's own function last: it is what the file defines.
  for (auto command = commands.rbegin(); command != commands.rend(); ++command) {
    absl::StrAppend(&out, "\n", function(*command), "() {\n  local line state\n  _arguments -C");
    for (const CLI::Option* option : FlagsInReach(commands, *command)) {
      for (const std::string& flag : Flags(*option)) {
        absl::StrAppend(&out, " \\\n    '", flag, "[", ZshQuoted(option->get_description()), "]");
        if (TakesValue(*option)) {
          const std::vector<std::string> choices = Choices(*option);
          absl::StrAppend(&out, ":value:",
                          choices.empty() ? std::string("_files")
                                          : absl::StrCat("(", absl::StrJoin(choices, " "), ")"));
        }
        absl::StrAppend(&out, "'");
      }
    }
    const auto children = command->app->get_subcommands([](const CLI::App*) { return true; });
    if (children.empty()) {
      for (const CLI::Option* option : OptionsOf(*command->app, true)) {
        absl::StrAppend(&out, " \\\n    '::", option->get_name(true), ":(",
                        absl::StrJoin(Choices(*option), " "), ")'");
      }
      absl::StrAppend(&out, "\n}\n");
      continue;
    }
    absl::StrAppend(&out, " \\\n    '1: :->command' '*::argument:->argument'\n  case $state in\n",
                    "    command) local -a commands=(");
    for (const CLI::App* child : children) {
      absl::StrAppend(&out, "\n      '", child->get_name(), ":",
                      ZshQuoted(child->get_description()), "'");
    }
    absl::StrAppend(&out,
                    "\n      ); _describe command commands ;;\n    argument) case $line[1] in");
    for (const CLI::App* child : children) {
      Command below = *command;
      below.words.push_back(child->get_name());
      absl::StrAppend(&out, "\n      ", child->get_name(), ") ", function(below), " ;;");
    }
    absl::StrAppend(&out, "\n      esac ;;\n  esac\n}\n");
  }
  // Loaded by compinit, the file's text is the function; sourced, it only defines it.
  absl::StrAppend(&out, "\nif [ \"$funcstack[1]\" = \"_", name, "\" ]; then\n  _", name,
                  " \"$@\"\nelse\n  compdef _", name, " ", name, "\nfi\n");
  return out;
}

std::string ManualPage(const CLI::App& app, const std::string& version, const std::string& more) {
  const std::string name = app.get_name();
  std::string page = absl::StrCat(".TH ", absl::AsciiStrToUpper(name), " 1 \"\" \"Consort ",
                                  Roff(version), "\" \"User Commands\"\n.SH NAME\n", Roff(name),
                                  " \\- ", Roff(app.get_description()), "\n.SH SYNOPSIS\n");
  const std::vector<Command> commands = Commands(app);
  for (const Command& command : commands) {
    // Those above others do nothing by themselves.
    if (!command.app->get_subcommands([](const CLI::App*) { return true; }).empty()) continue;
    absl::StrAppend(&page, "\\fB", Roff(absl::StrCat(name, " ", absl::StrJoin(command.words, " "))),
                    "\\fR", Synopsis(command), "\n.br\n");
  }
  absl::StrAppend(&page, ".SH OPTIONS\nOf all commands:\n");
  ManualOptions(app, &page);
  absl::StrAppend(&page, ".SH COMMANDS\n");
  for (const Command& command : commands) {
    if (command.words.empty()) continue;
    absl::StrAppend(&page, ".SS ", Roff(absl::StrJoin(command.words, " ")), "\n",
                    Roff(command.app->get_description()), "\n");
    ManualOptions(*command.app, &page);
  }
  return page + more;
}

}  // namespace consort::host
