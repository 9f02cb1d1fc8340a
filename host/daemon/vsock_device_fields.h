// SPDX-License-Identifier: Apache-2.0
// host/daemon/vsock_device_fields.h: the fields of a vhost-user vsock device's state, in the order
// in which consortd hands them over to its next binary. Part of daemon_state.cc's description, and
// of its version. See host/control/field_coder.h.
#ifndef CONSORT_HOST_DAEMON_VSOCK_DEVICE_FIELDS_H_
#define CONSORT_HOST_DAEMON_VSOCK_DEVICE_FIELDS_H_

namespace consort::host {

template <class Coder, class Layout>
void DescribeLayout(Coder& coder, Layout& layout) {
  coder.Number(layout.entries);
  coder.Number(layout.descriptors_user_addr);
  coder.Number(layout.available_user_addr);
  coder.Number(layout.used_user_addr);
}

template <class Coder, class Control>
void DescribeControl(Coder& coder, Control& control) {
  coder.Number(control.socket);
  coder.Bytes(control.bytes);
  coder.Each(control.descriptors, [&](auto& descriptor) { coder.Number(descriptor); });
}

template <class Coder, class Backend>
void DescribeBackend(Coder& coder, Backend& backend) {
  coder.Number(backend.features);
  coder.Number(backend.breaks);
  coder.Each(backend.regions, [&](auto& region) {
    coder.Number(region.spec.guest_addr);
    coder.Number(region.spec.bytes);
    coder.Number(region.spec.user_addr);
    coder.Number(region.spec.mmap_offset);
    coder.Number(region.file);
  });
  coder.Each(backend.queues, [&](auto& queue) {
    DescribeLayout(coder, queue.layout);
    coder.Number(queue.has_address);
    coder.Number(queue.base);
    coder.Number(queue.enabled);
    coder.Number(queue.broken);
    coder.Number(queue.started);
    coder.Number(queue.next_available);
    coder.Each(queue.stopped, [&](auto& stopped) {
      DescribeLayout(coder, stopped.layout);
      coder.Number(stopped.next_available);
      coder.Number(stopped.used_index);
    });
    coder.Number(queue.kick);
    coder.Number(queue.call);
    coder.Number(queue.err);
  });
}

template <class Coder, class Connection>
void DescribeConnection(Coder& coder, Connection& connection) {
  coder.Number(connection.guest_port);
  coder.Number(connection.host_port);
  coder.Number(connection.window_bytes);
  coder.Number(connection.host);
  coder.Each(connection.conduit, [&](auto& conduit) {
    coder.Number(conduit.memory);
    coder.Number(conduit.begun);
    coder.Number(conduit.begin);
    coder.Number(conduit.head);
    coder.Number(conduit.tail);
    coder.Number(conduit.credited);
    coder.Number(conduit.next_piece);
    coder.Number(conduit.piece_offset);
    coder.Number(conduit.taken);
  });
  coder.Bytes(connection.backlog);
  coder.Number(connection.forwarded);
  coder.Number(connection.forwarded_reported);
  coder.Number(connection.writable);
  coder.Number(connection.write_ended);
  coder.Number(connection.host_refuses);
  coder.Number(connection.peer_window);
  coder.Number(connection.peer_forwarded);
  coder.Number(connection.sent);
  coder.Each(connection.unread_ends, [&](auto& end) { coder.Number(end); });
  coder.Number(connection.readable);
  coder.Number(connection.host_ended);
  coder.Number(connection.guest_shutdown);
  coder.Number(connection.told_shutdown);
  coder.Number(connection.response_pending);
  coder.Number(connection.credit_update_pending);
  coder.Number(connection.credit_request_pending);
  coder.Number(connection.credit_requested);
  coder.Number(connection.stalled);
  coder.Number(connection.detached);
  coder.Number(connection.read_chains);
}

template <class Coder, class Device>
void DescribeVsockDevice(Coder& coder, Device& device) {
  coder.Number(device.listener);
  coder.Each(device.frontends, [&](auto& frontend) {
    DescribeControl(coder, frontend.control);
    DescribeBackend(coder, frontend.backend);
    coder.Each(frontend.muxer.connections,
               [&](auto& connection) { DescribeConnection(coder, connection); });
    coder.Each(frontend.muxer.resets, [&](auto& reset) {
      coder.Number(reset.src_cid);
      coder.Number(reset.guest_port);
      coder.Number(reset.host_port);
      coder.Number(reset.type);
    });
  });
}

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_VSOCK_DEVICE_FIELDS_H_
