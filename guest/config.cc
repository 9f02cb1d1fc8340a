// SPDX-License-Identifier: Apache-2.0
#include "guest/config.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace consort::guest {
namespace {

constexpr const char* kFile = "/etc/consort/guest.toml";
constexpr const char* kLocalSocket = "/run/consort/consortd.sock";
constexpr const char* kHostVsock = "vsock:2:7000";
constexpr uint32_t kConnectTimeoutMsMax = 600'000;
constexpr uint32_t kResumeSecondsMax = 86'400;
constexpr uint64_t kFileBytesMax = 16 * 1024;  // four short lines are expected

Config config;
pthread_once_t read_once = PTHREAD_ONCE_INIT;

void SetEndpoint(const char* text, Config* to) {
  snprintf(to->endpoint, sizeof to->endpoint, "%s", text);
}

bool SetRings(const char* text, Config* to) {
  if (strcmp(text, "auto") == 0) {
    to->rings = RingsWish::kWherePossible;
  } else if (strcmp(text, "rings") == 0) {
    to->rings = RingsWish::kOnly;
  } else if (strcmp(text, "stream") == 0) {
    to->rings = RingsWish::kNever;
  } else {
    return false;
  }
  return true;
}

// "off" and "false", "errors", or else the default.
void SetLog(const char* text, Config* to) {
  to->log = strcmp(text, "off") != 0 && strcmp(text, "false") != 0;
  to->log_errors = strcmp(text, "errors") == 0;
}

// A whole number from 1 to `most`. False if it is none.
bool SetNumber(const char* text, uint32_t most, uint32_t* to) {
  char* end = nullptr;
  const unsigned long parsed = strtoul(text, &end, 10);
  if (end == text || *end != '\0' || parsed == 0 || parsed > most) return false;
  *to = static_cast<uint32_t>(parsed);
  return true;
}

// One `key = value` line without its comment. False if it is none.
bool ApplyLine(char* line, Config* to) {
  char* equals = strchr(line, '=');
  if (equals == nullptr) return false;
  char* key_end = equals;
  while (key_end > line && (key_end[-1] == ' ' || key_end[-1] == '\t')) --key_end;
  *key_end = '\0';
  char* value = equals + 1;
  value += strspn(value, " \t");
  const size_t length = strlen(value);
  if (length >= 2 && value[0] == '"' && value[length - 1] == '"') {
    value[length - 1] = '\0';
    ++value;
  }
  if (strcmp(line, "endpoint") == 0) {
    SetEndpoint(value, to);
  } else if (strcmp(line, "connect_timeout_ms") == 0) {
    return SetNumber(value, kConnectTimeoutMsMax, &to->connect_timeout_ms);
  } else if (strcmp(line, "resume_seconds") == 0) {
    return SetNumber(value, kResumeSecondsMax, &to->resume_seconds);
  } else if (strcmp(line, "channel") == 0) {
    return SetRings(value, to);
  } else if (strcmp(line, "log") == 0) {
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0 && strcmp(value, "errors") != 0)
      return false;
    SetLog(value, to);
  } else {
    return false;
  }
  return true;
}

void ReadFile(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  static char text[kFileBytesMax];
  uint64_t bytes = 0;
  for (ssize_t got; bytes < sizeof text && (got = read(fd, text + bytes, sizeof text - bytes)) > 0;)
    bytes += got;
  close(fd);
  ParseConfig(text, bytes, &config);
}

void Read() {
  const char* path = getenv("CONSORT_GUEST_CONFIG");
  ReadFile(path != nullptr ? path : kFile);
  if (const char* value = getenv("CONSORT_ENDPOINT")) SetEndpoint(value, &config);
  if (const char* value = getenv("CONSORT_CONNECT_TIMEOUT_MS")) {
    SetNumber(value, kConnectTimeoutMsMax, &config.connect_timeout_ms);
  }
  if (const char* value = getenv("CONSORT_RESUME_SECONDS")) {
    SetNumber(value, kResumeSecondsMax, &config.resume_seconds);
  }
  if (const char* value = getenv("CONSORT_CHANNEL");
      value != nullptr && !SetRings(value, &config) && config.problem[0] == '\0') {
    snprintf(config.problem, sizeof config.problem,
             "CONSORT_CHANNEL is \"%.64s\", not auto, rings or stream", value);
  }
  if (const char* value = getenv("CONSORT_LOG")) SetLog(value, &config);
  if (config.endpoint[0] == '\0') {
    if (access(kLocalSocket, F_OK) == 0) {
      snprintf(config.endpoint, sizeof config.endpoint, "unix:%s", kLocalSocket);
    } else {
      SetEndpoint(kHostVsock, &config);
    }
  }
  const char* loading = getenv("CUDA_MODULE_LOADING");
  config.eager_loading = loading != nullptr && strcmp(loading, "EAGER") == 0;
  const char* blocking = getenv("CUDA_LAUNCH_BLOCKING");
  config.launch_blocking = blocking != nullptr && strtol(blocking, nullptr, 10) != 0;
  if (const char* visible = getenv("CUDA_VISIBLE_DEVICES")) {
    config.visible_set = true;
    snprintf(config.visible, sizeof config.visible, "%s", visible);
  }
}

}  // namespace

void ParseConfig(const char* text, uint64_t bytes, Config* to) {
  uint32_t number = 0;
  for (uint64_t at = 0; at < bytes;) {
    ++number;
    char line[512];
    uint64_t length = 0;
    bool comment = false;
    bool quoted = false;
    for (; at < bytes && text[at] != '\n'; ++at) {
      if (text[at] == '"') quoted = !quoted;
      comment |= text[at] == '#' && !quoted;
      if (!comment && length < sizeof line - 1) line[length++] = text[at];
    }
    ++at;
    while (length > 0 &&
           (line[length - 1] == ' ' || line[length - 1] == '\t' || line[length - 1] == '\r'))
      --length;
    line[length] = '\0';
    char* start = line + strspn(line, " \t");
    if (*start == '\0') continue;
    char copy[128];
    snprintf(copy, sizeof copy, "%s", start);
    if (!ApplyLine(start, to) && to->problem[0] == '\0') {
      snprintf(to->problem, sizeof to->problem,
               "guest.toml line %u: \"%s\" is not endpoint = \"...\", connect_timeout_ms = NUMBER, "
               "resume_seconds = NUMBER, channel = \"auto|rings|stream\" or log = true|false",
               number, copy);
    }
  }
}

const Config& GetConfig() {
  pthread_once(&read_once, Read);
  return config;
}

}  // namespace consort::guest
