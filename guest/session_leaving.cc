// SPDX-License-Identifier: Apache-2.0
// A session that leaves its connection with this machine, and goes on over another one.
//
//   kStays ──SessionLeaves──▶ kAsked ──ReadyToLeave──▶ kReady ──the stream's end──▶ kAway
//      ▲                         └────── SessionStays ────┘                           │
//      └──────────────────────────── connected by the token ◄───────────────────────┘
//
// The standby thread does all of it, as the program may be in no call for hours. Before it says
// ReadyToLeave it makes threads that would send wait (but the service thread: the host waits for
// what it runs), so that the frames before are all there are; the stream's end comes after
// everything that the host had to say. So nothing is sent twice and nothing is lost. While it is
// away the standby thread holds the leader's role, and who waits for a reply goes on waiting.
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "guest/log.h"
#include "guest/session.h"
#include "vmsock/deadline.h"

namespace consort::guest {
namespace {

// The standby thread sleeps until something arrives, and leaves that to threads that wait for it.
// It looks again by itself, since one of these may have taken the notice that it waits for.
constexpr Nanos kStandbyWait = 250 * kMillisecond;
constexpr Nanos kStandbyPause = 20 * kMillisecond;
// Between two attempts to connect again.
constexpr Nanos kResumePauseFirst = 50 * kMillisecond;
constexpr Nanos kResumePauseLast = 500 * kMillisecond;
// For the answer to an attempt. Giving up one that a busy host has taken would be the end of the
// session there.
constexpr Nanos kResumeAnswer = 60 * kSecond;

void Pause(Nanos span) {
  const timespec time = {static_cast<time_t>(span / kSecond), static_cast<long>(span % kSecond)};
  nanosleep(&time, nullptr);
}

}  // namespace

bool Session::StartStandby() {
  // The program's signals are not for it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  standby_ = StartThread(&Session::StandbyMain);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return standby_;
}

void* Session::StandbyMain(void* session) {
  static_cast<Session*>(session)->RunStandby();
  return nullptr;
}

void Session::RunStandby() {
  while (!lost_.load(std::memory_order_relaxed)) {
    channel_->Wait(Channel::kReadable, 0, kStandbyWait);
    Pause(kStandbyPause);
    HelpReceive();
    while (leaving() == Leaving::kAsked) Leave();
  }
  LetSend();
}

Session::Leaving Session::leaving() {
  MutexLock lock(&receive_mutex_);
  return leaving_;
}

void Session::HandleSessionLeaves(uint64_t number) {
  MutexLock lock(&receive_mutex_);
  leaving_ = Leaving::kAsked;
  leaving_number_ = number;
}

void Session::HandleSessionStays() {
  MutexLock lock(&receive_mutex_);
  leaving_ = Leaving::kStays;
}

void Session::AwaitMaySend() {
  while (!may_send_ && !OnServiceThread()) sendable_.Wait(&send_mutex_);
}

void Session::LetSend() {
  MutexLock lock(&send_mutex_);
  may_send_ = true;
  sendable_.Broadcast();
}

bool Session::MayEnd() {
  MutexLock lock(&receive_mutex_);
  return leaving_ == Leaving::kReady || leaving_ == Leaving::kAway;
}

void Session::StreamEnded() {
  if (leaving_ == Leaving::kReady && !lost_.load(std::memory_order_relaxed)) {
    leaving_ = Leaving::kAway;
  } else {
    Lost();
  }
}

void Session::Leave() {
  {
    MutexLock sending(&send_mutex_);
    may_send_ = false;
    wire::ReadyToLeaveRequest ready;
    {
      // Before it is said: the stream may end at once.
      MutexLock lock(&receive_mutex_);
      if (leaving_ == Leaving::kAsked) leaving_ = Leaving::kReady;
      ready.number = leaving_number_;
    }
    Send(0, 0, ready);
  }
  while (leaving() == Leaving::kReady && !lost_.load(std::memory_order_relaxed)) {
    channel_->Wait(Channel::kReadable, 0, kStandbyPause);
    HelpReceive();
  }
  if (leaving() == Leaving::kAsked) return;  // once more
  if (leaving() == Leaving::kAway) Return();
  LetSend();
}

void Session::Return() {
  receive_mutex_.Lock();
  while (leader_) received_.Wait(&receive_mutex_);
  leader_ = true;
  receive_mutex_.Unlock();
  bool back = false;
  {
    MutexLock sending(&send_mutex_);
    back = channel_->Part();
  }
  if (back) {
    LogLine("this machine is being saved or moved: CUDA calls wait up to %u s for a host",
            resume_seconds_);
    back = Reconnect();
  }
  MutexLock lock(&receive_mutex_);
  leaving_ = Leaving::kStays;
  leader_ = false;
  if (back) {
    LogLine("CUDA calls go on");
  } else {
    Lost();
  }
  received_.Broadcast();
}

bool Session::Reconnect() {
  const Deadline deadline(resume_seconds_ * kSecond);
  DialOptions options = dial_;
  options.handshake_timeout = kResumeAnswer;
  Nanos pause = kResumePauseFirst;
  while (true) {
    DialResult dialled;
    UniqueFd socket = ResumeSession(options, welcome_.resume_token, &dialled);
    if (socket.valid()) {
      MutexLock sending(&send_mutex_);
      return channel_->Rejoin(static_cast<UniqueFd&&>(socket));
    }
    if (deadline.Left() == 0 || dialled.error == DialError::kVersionMismatch) {
      LogLine("no host goes on with this session: %s", dialled.text);
      return false;
    }
    Pause(pause);
    pause = pause * 2 < kResumePauseLast ? pause * 2 : kResumePauseLast;
  }
}

}  // namespace consort::guest
