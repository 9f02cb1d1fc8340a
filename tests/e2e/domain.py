# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/domain.py: a domain of libvirt whose programs are run, emulated, from a kernel and an initramfs: its definition, and its end."""

import re

from initramfs import kernel_words

_DEFINITION = """
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>768</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{folder}/kernel</kernel>
    <initrd>{folder}/initramfs</initrd>
    <cmdline>{words}</cmdline>
  </os>
  <cpu mode='maximum'>
    <feature name='erms' policy='disable'/>
    <feature name='fsrm' policy='disable'/>
  </cpu>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <devices>
    <serial type='file'><source path='{serial}'/></serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""


def definition(name, folder, serial, token):
    """folder: has the files kernel and initramfs. serial: where the guest's console is written. token: as vm.py has it."""
    return _DEFINITION.format(name=name, folder=folder, serial=serial, words=kernel_words(token))


def has_ended(serial, token):
    """Whether the guest has said how its programs ended. serial: what its console says so far, which may break off anywhere."""
    return re.search(rf"@consort {token} exit \d+\n", serial) is not None
