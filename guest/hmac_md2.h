// SPDX-License-Identifier: Apache-2.0
// guest/hmac_md2.h: HMAC (RFC 2104) over MD2 (RFC 1319), which the CUDA runtime's hand-shake with
// its driver uses (guest/export_tables.cc). No library has MD2 any more; for nothing else.
#ifndef CONSORT_GUEST_HMAC_MD2_H_
#define CONSORT_GUEST_HMAC_MD2_H_

#include <cstddef>
#include <cstdint>

namespace consort::guest {

// `mac` = HMAC-MD2 of `bytes` of `message` under a key of one block.
void HmacMd2(const uint8_t key[16], const void* message, size_t bytes, uint8_t mac[16]);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_HMAC_MD2_H_
