// SPDX-License-Identifier: Apache-2.0
// gpool/certificates.h: makes a pool's authority and the certificates of its nodes. Blocks;
// stateless.
//
//   FOLDER/authority.crt   given to every node
//   FOLDER/authority.key   stays with the operator: who has it can make nodes
//   FOLDER/NODE.crt, NODE.key   given to that node
//   FOLDER/NAME.crt, NAME.key   given to that operator, with authority.crt
//
// Keys are EC P-256, files in PEM form, keys readable by their owner only.
#ifndef CONSORT_GPOOL_CERTIFICATES_H_
#define CONSORT_GPOOL_CERTIFICATES_H_

#include <string>

#include "absl/status/status.h"
#include "gpool/tls.h"

namespace consort::gpool {

// True for what may name a node: letters, digits, '-' and '.', at most 63, no dot or dash first.
bool IsNodeName(const std::string& name);

// Makes the authority, for ten years. kAlreadyExists: there is one in `folder`.
absl::Status MakeAuthority(const std::string& folder);

// Makes a certificate for `node` of the authority in `folder`, for two years, and its key; replaces
// older ones. kNotFound: no authority there. kInvalidArgument: no name of a node.
absl::Status MakeNodeCertificate(const std::string& folder, const std::string& node);

// The same for an operator, who is no node, for 90 days. `role`: kAdmin or kViewer. kAlreadyExists:
// the name is a node's there.
absl::Status MakeOperatorCertificate(const std::string& folder, const std::string& name, Role role);

// The files' names that these make.
TlsFiles NodeFiles(const std::string& folder, const std::string& node);

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_CERTIFICATES_H_
