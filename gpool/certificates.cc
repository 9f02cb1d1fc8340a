// SPDX-License-Identifier: Apache-2.0
#include "gpool/certificates.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace consort::gpool {
namespace {

using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
using Certificate = std::unique_ptr<X509, void (*)(X509*)>;
using File = std::unique_ptr<FILE, int (*)(FILE*)>;

constexpr size_t kNodeNameBytesMax = 63;
constexpr int kSerialBits = 127;
constexpr long kDaySeconds = 24 * 60 * 60;
constexpr long kAuthoritySeconds = 3650 * kDaySeconds;
constexpr long kNodeSeconds = 730 * kDaySeconds;
// There is no list of revoked ones, so they end soon.
constexpr long kOperatorSeconds = 90 * kDaySeconds;
// Clocks of nodes differ.
constexpr long kBackSeconds = 60 * 60;

std::string AuthorityCertificate(const std::string& folder) { return folder + "/authority.crt"; }
std::string AuthorityKey(const std::string& folder) { return folder + "/authority.key"; }

absl::Status FileError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
}

// Writes by `write` a file of `mode` that replaces `path`.
template <typename Write>
absl::Status WriteFile(const std::string& path, mode_t mode, Write write) {
  const std::string fresh = path + ".new";
  UniqueFd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd.valid() || fchmod(fd.get(), mode) != 0) return FileError(fresh);
  const File file(fdopen(fd.Release(), "w"), &fclose);
  if (file == nullptr || write(file.get()) != 1 || fflush(file.get()) != 0 ||
      rename(fresh.c_str(), path.c_str()) != 0) {
    return FileError(path);
  }
  return absl::OkStatus();
}

absl::Status Write(const std::string& certificate_path, X509* certificate,
                   const std::string& key_path, EVP_PKEY* key) {
  RETURN_IF_ERROR(WriteFile(key_path, 0600, [key](FILE* file) {
    return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  }));
  return WriteFile(certificate_path, 0644,
                   [certificate](FILE* file) { return PEM_write_X509(file, certificate); });
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  CHECK(extension != nullptr) << value;
  CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

// A certificate of `name` for `key`, without extensions and signature.
Certificate Blank(const std::string& name, long seconds, EVP_PKEY* key) {
  Certificate certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  BIGNUM* serial = BN_new();
  CHECK(BN_rand(serial, kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1);
  BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(certificate.get()));
  BN_free(serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kBackSeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), seconds);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  CHECK(X509_set_pubkey(certificate.get(), key) == 1);
  return certificate;
}

absl::Status Sign(X509* certificate, EVP_PKEY* key) {
  return X509_sign(certificate, key, EVP_sha256()) > 0
             ? absl::OkStatus()
             : absl::InternalError("OpenSSL cannot sign with that key");
}

}  // namespace

bool IsNodeName(const std::string& name) {
  return !name.empty() && name.size() <= kNodeNameBytesMax && absl::ascii_isalnum(name.front()) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '.';
         });
}

absl::Status MakeAuthority(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  for (const std::string& path : {AuthorityCertificate(folder), AuthorityKey(folder)}) {
    if (std::filesystem::exists(path, error)) {
      return absl::AlreadyExistsError(
          absl::StrCat(path,
                       " is there already: with another authority no node would know its "
                       "pool any more"));
    }
  }
  const Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  CHECK(key != nullptr);
  const Certificate certificate = Blank("Consort pool", kAuthoritySeconds, key.get());
  X509* raw = certificate.get();
  X509_set_issuer_name(raw, X509_get_subject_name(raw));
  AddExtension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(raw, raw, NID_subject_key_identifier, "hash");
  RETURN_IF_ERROR(Sign(raw, key.get()));
  return Write(AuthorityCertificate(folder), raw, AuthorityKey(folder), key.get());
}

namespace {

// What a certificate of the authority in `folder` is for.
struct Subject {
  std::string name;
  std::string alternative;  // "DNS:a"
  std::string usage;        // extended
  long seconds;
};

absl::Status MakeCertificate(const std::string& folder, const Subject& subject) {
  const File certificate_file(fopen(AuthorityCertificate(folder).c_str(), "re"), &fclose);
  const File key_file(fopen(AuthorityKey(folder).c_str(), "re"), &fclose);
  if (certificate_file == nullptr || key_file == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no authority in ", folder, ": ",
                                            strerror(errno), "; consortctl pool init makes one"));
  }
  const Certificate authority(PEM_read_X509(certificate_file.get(), nullptr, nullptr, nullptr),
                              &X509_free);
  const Key authority_key(PEM_read_PrivateKey(key_file.get(), nullptr, nullptr, nullptr),
                          &EVP_PKEY_free);
  if (authority == nullptr || authority_key == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(AuthorityCertificate(folder), " or its key is not in PEM form"));
  }
  const Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  CHECK(key != nullptr);
  const Certificate certificate = Blank(subject.name, subject.seconds, key.get());
  X509* raw = certificate.get();
  X509_set_issuer_name(raw, X509_get_subject_name(authority.get()));
  AddExtension(raw, authority.get(), NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(raw, authority.get(), NID_key_usage, "critical,digitalSignature");
  AddExtension(raw, authority.get(), NID_ext_key_usage, subject.usage);
  AddExtension(raw, authority.get(), NID_authority_key_identifier, "keyid");
  AddExtension(raw, authority.get(), NID_subject_alt_name, subject.alternative);
  RETURN_IF_ERROR(Sign(raw, authority_key.get()));
  const TlsFiles files = NodeFiles(folder, subject.name);
  return Write(files.certificate, raw, files.key, key.get());
}

// Names of operators too are files' names.
absl::Status CheckName(const std::string& name, absl::string_view what) {
  if (IsNodeName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " cannot name ", what, ": letters, digits, '-' and '.', at most ", kNodeNameBytesMax));
}

}  // namespace

absl::Status MakeNodeCertificate(const std::string& folder, const std::string& node) {
  RETURN_IF_ERROR(CheckName(node, "a node"));
  return MakeCertificate(folder, {node, "DNS:" + node, "serverAuth,clientAuth", kNodeSeconds});
}

absl::Status MakeOperatorCertificate(const std::string& folder, const std::string& name,
                                     Role role) {
  CHECK(role != Role::kNode);
  RETURN_IF_ERROR(CheckName(name, "an operator"));
  const auto there = TlsContext::Load(NodeFiles(folder, name));
  if (there.ok() && (*there)->own().role == Role::kNode) {
    return absl::AlreadyExistsError(absl::StrCat(NodeFiles(folder, name).certificate,
                                                 " is a node's; give the operator another name"));
  }
  return MakeCertificate(folder, {name, absl::StrCat("URI:consort:", RoleName(role), ":", name),
                                  "clientAuth", kOperatorSeconds});
}

TlsFiles NodeFiles(const std::string& folder, const std::string& node) {
  return {AuthorityCertificate(folder), absl::StrCat(folder, "/", node, ".crt"),
          absl::StrCat(folder, "/", node, ".key")};
}

}  // namespace consort::gpool
