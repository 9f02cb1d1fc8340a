// SPDX-License-Identifier: Apache-2.0
#include "gpool/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gpool/limits.h"

namespace consort::gpool {
namespace {

// The library's errors of this thread, which are taken away.
std::string Errors() {
  std::string text;
  while (const unsigned long error = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(error);
    absl::StrAppend(&text, text.empty() ? "" : "; ", reason != nullptr ? reason : "unknown error");
  }
  return text.empty() ? "the connection broke" : text;
}

constexpr absl::string_view kOperatorScheme = "consort:";

// "admin:alice"; no name: not of that form.
Identity OperatorOf(absl::string_view text) {
  for (const Role role : {Role::kAdmin, Role::kViewer}) {
    absl::string_view name = text;
    if (absl::ConsumePrefix(&name, RoleName(role)) && absl::ConsumePrefix(&name, ":")) {
      return {std::string(name), role};
    }
  }
  return {};
}

// The first name of a certificate that says who it is of.
Identity IdentityOf(const X509* certificate) {
  Identity identity;
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names) && identity.name.empty(); ++i) {
    const GENERAL_NAME* entry = sk_GENERAL_NAME_value(names, i);
    if (entry->type != GEN_DNS && entry->type != GEN_URI) continue;
    const ASN1_IA5STRING* string =
        entry->type == GEN_DNS ? entry->d.dNSName : entry->d.uniformResourceIdentifier;
    absl::string_view text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
                           static_cast<size_t>(ASN1_STRING_length(string)));
    if (entry->type == GEN_DNS) {
      identity = {std::string(text), Role::kNode};
    } else if (absl::ConsumePrefix(&text, kOperatorScheme)) {
      identity = OperatorOf(text);
    }
  }
  GENERAL_NAMES_free(names);
  return identity;
}

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kNode:
      return "node";
    case Role::kAdmin:
      return "admin";
    case Role::kViewer:
      return "viewer";
  }
  return "";
}

Nanos MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

TlsStream::Result TlsStream::After(int returned) {
  switch (SSL_get_error(ssl_, returned)) {
    case SSL_ERROR_WANT_READ:
      return Result::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Result::kWantsWrite;
    default:
      return Result::kEnded;
  }
}

TlsStream::Result TlsStream::Read(std::span<std::byte> to, size_t* count) {
  ERR_clear_error();
  const int returned = SSL_read_ex(ssl_, to.data(), to.size(), count);
  return returned == 1 ? Result::kDone : After(returned);
}

TlsStream::Result TlsStream::Write(std::span<const std::byte> from, size_t* count) {
  ERR_clear_error();
  const int returned = SSL_write_ex(ssl_, from.data(), from.size(), count);
  return returned == 1 ? Result::kDone : After(returned);
}

TlsStream::Result TlsStream::Flush() {
  ERR_clear_error();
  BIO* const writing = SSL_get_wbio(ssl_);
  if (BIO_flush(writing) > 0) return Result::kDone;
  return BIO_should_retry(writing) ? Result::kWantsWrite : Result::kEnded;
}

void TlsStream::EndWriting() {
  ERR_clear_error();
  SSL_shutdown(ssl_);  // one message; where there is no room for it the peer sees the end anyway
  shutdown(fd_.get(), SHUT_WR);
}

absl::Status TlsStream::Shake(bool connect, const std::string& node, Nanos deadline) {
  // By alternative names alone: a subject is what people are called, too.
  SSL_set_hostflags(ssl_, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  if (connect && node != kAnyNode) SSL_set1_host(ssl_, node.c_str());
  while (true) {
    ERR_clear_error();
    const int returned = connect ? SSL_connect(ssl_) : SSL_accept(ssl_);
    if (returned == 1) break;
    const Result result = After(returned);
    if (result == Result::kEnded) {
      const long verified = SSL_get_verify_result(ssl_);
      const std::string text =
          verified != X509_V_OK ? X509_verify_cert_error_string(verified) : Errors();
      ERR_clear_error();
      return absl::UnauthenticatedError(text);
    }
    pollfd polled = {fd_.get(), static_cast<short>(result == Result::kWantsRead ? POLLIN : POLLOUT),
                     0};
    const Nanos left = deadline - MonotonicNow();
    if (left <= 0) return absl::DeadlineExceededError("no TLS greeting in time");
    poll(&polled, 1, static_cast<int>(left / kMillisecond) + 1);
  }
  X509* certificate = SSL_get1_peer_certificate(ssl_);
  if (certificate == nullptr) return absl::UnauthenticatedError("no certificate");
  peer_ = IdentityOf(certificate);
  X509_free(certificate);
  if (connect && node != kAnyNode) peer_ = {node, Role::kNode};
  if (peer_.name.empty()) {
    return absl::UnauthenticatedError("a certificate of neither a node nor an operator");
  }
  if (connect && peer_.role != Role::kNode) {
    return absl::UnauthenticatedError("its certificate is not a node's");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files) {
  std::unique_ptr<TlsContext> context(new TlsContext(SSL_CTX_new(TLS_method())));
  SSL_CTX* raw = context->context_;
  CHECK(raw != nullptr) << Errors();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Each connection is authenticated by itself.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_read_ahead(raw, 1);
  SSL_CTX_set_default_read_buffer_len(raw, kLinkBufferBytes);
  ERR_clear_error();
  if (SSL_CTX_load_verify_file(raw, files.authority.c_str()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.authority, ": ", Errors()));
  }
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.certificate, ": ", Errors()));
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.key, ": ", Errors()));
  }
  return context;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

bool TlsContext::Names(const std::string& node) const {
  return X509_check_host(SSL_CTX_get0_certificate(context_), node.data(), node.size(),
                         X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, nullptr) == 1;
}

Identity TlsContext::own() const { return IdentityOf(SSL_CTX_get0_certificate(context_)); }

absl::StatusOr<std::unique_ptr<TlsStream>> TlsContext::Start(UniqueFd fd) const {
  SSL* ssl = SSL_new(context_);
  if (ssl == nullptr) return absl::ResourceExhaustedError(Errors());
  std::unique_ptr<TlsStream> stream(new TlsStream(std::move(fd), ssl));
  BIO* const socket = BIO_new_socket(stream->fd(), BIO_NOCLOSE);
  BIO* const buffer = BIO_new(BIO_f_buffer());
  if (socket == nullptr || buffer == nullptr ||
      BIO_set_write_buffer_size(buffer, kLinkBufferBytes) != 1 || BIO_up_ref(socket) != 1) {
    BIO_free(socket);
    BIO_free(buffer);
    return absl::ResourceExhaustedError(Errors());
  }
  SSL_set0_rbio(ssl, socket);
  SSL_set0_wbio(ssl, BIO_push(buffer, socket));
  return stream;
}

absl::StatusOr<std::unique_ptr<TlsStream>> TlsContext::Connect(UniqueFd fd, const std::string& node,
                                                               Nanos deadline) const {
  ASSIGN_OR_RETURN(std::unique_ptr<TlsStream> stream, Start(std::move(fd)));
  RETURN_IF_ERROR(stream->Shake(/*connect=*/true, node, deadline));
  return stream;
}

absl::StatusOr<std::unique_ptr<TlsStream>> TlsContext::Accept(UniqueFd fd, Nanos deadline) const {
  ASSIGN_OR_RETURN(std::unique_ptr<TlsStream> stream, Start(std::move(fd)));
  RETURN_IF_ERROR(stream->Shake(/*connect=*/false, "", deadline));
  return stream;
}

}  // namespace consort::gpool
