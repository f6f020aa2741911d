"""The filter of system calls for a box, as a program for the kernel; installs nothing.

It forbids what a subject could use to leave its namespaces or to reach code of the kernel that no agent needs. Sockets
are left for the families that agents speak, since some others, such as vsock, know no network namespace.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from pytest_proteus.core.errors import ConfigurationError

# classic BPF: load a word at an offset of the call's data; jump if equal; jump if any bit is set; return; and
_LOAD, _EQUAL, _ANY, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

#: The AF_ of UNIX, INET, INET6 and NETLINK.
_FAMILIES = (1, 2, 10, 16)
_MOST_FAMILIES = 64  # there are some 46
_SOCK_RAW, _SOCK_PACKET, _SOCK_TYPE = 3, 10, 0xF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

#: CLONE_NEW*: mount, cgroup, uts, ipc, user, pid, net.
_NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000

#: Calls of one number on both machines.
_NEW = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "open_tree_attr": 467,
}  # fmt: skip

_X86_64 = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chroot": 161, "clock_adjtime": 305,
    "clock_settime": 227, "delete_module": 176, "fanotify_init": 300, "finit_module": 313, "init_module": 175,
    "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "lookup_dcookie": 212, "migrate_pages": 256, "modify_ldt": 154, "mount": 165, "move_pages": 279,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "perf_event_open": 298, "pivot_root": 155,
    "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179, "reboot": 169,
    "request_key": 249, "setdomainname": 171, "sethostname": 170, "setns": 308, "settimeofday": 164, "swapoff": 168,
    "swapon": 167, "sysfs": 139, "syslog": 103, "umount2": 166, "unshare": 272, "userfaultfd": 323, "uselib": 134,
    "vhangup": 153,
}  # fmt: skip

_AARCH64 = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "chroot": 51, "clock_adjtime": 266,
    "clock_settime": 112, "delete_module": 106, "fanotify_init": 262, "finit_module": 273, "init_module": 105,
    "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "lookup_dcookie": 18,
    "migrate_pages": 238, "mount": 40, "move_pages": 239, "name_to_handle_at": 264, "open_by_handle_at": 265,
    "perf_event_open": 241, "pivot_root": 41, "process_vm_readv": 270, "process_vm_writev": 271, "ptrace": 117,
    "quotactl": 60, "reboot": 142, "request_key": 218, "setdomainname": 162, "sethostname": 161, "setns": 268,
    "settimeofday": 170, "swapoff": 225, "swapon": 224, "syslog": 116, "umount2": 39, "unshare": 97,
    "userfaultfd": 282, "vhangup": 58,
}  # fmt: skip

#: Machine → (the kernel's number of it, forbidden calls, the calls that are looked into).
_MACHINES = MappingProxyType(
    {
        "x86_64": (0xC000003E, _X86_64 | _NEW, {"clone": 56, "clone3": 435, "socket": 41, "ioctl": 16}),
        "aarch64": (0xC00000B7, _AARCH64 | _NEW, {"clone": 220, "clone3": 435, "socket": 198, "ioctl": 29}),
    }
)

_Instruction = tuple[int, int, int, int]


def program(machine: str | None = None) -> bytes:
    """The filter for a machine, this one by default: an array of the kernel's ``struct sock_filter``.

    Raises:
        ConfigurationError: there is no table of system calls for that machine.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ConfigurationError(
            f"sandbox bwrap knows no filter of system calls for {machine}; it runs on {' and '.join(_MACHINES)}"
        )
    number, forbidden, looked_into = _MACHINES[machine]
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _MACHINE),
        *((_EQUAL, 1, 0, number), (_RETURN, 0, 0, _KILL)),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":  # the calls of x32 are the same machine's, with numbers of their own
        code += [(_ANY, 0, 1, 0x40000000), _refuse(errno.ENOSYS)]
    for call in sorted(forbidden.values()):
        code += [(_EQUAL, 0, 1, call), _refuse(errno.EPERM)]
    # what clone3 is asked lies in memory, where a filter cannot look; libraries fall back to clone
    code += [(_EQUAL, 0, 1, looked_into["clone3"]), _refuse(errno.ENOSYS)]
    code += _block(looked_into["clone"], [_argument(0), (_ANY, 0, 1, _NAMESPACES), _refuse(errno.EPERM)])
    code += _block(looked_into["socket"], _socket())
    orders = [(_EQUAL, 0, 1, _TIOCSTI), _refuse(errno.EPERM), (_EQUAL, 0, 1, _TIOCLINUX), _refuse(errno.EPERM)]
    code += _block(looked_into["ioctl"], [_argument(1), *orders])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def profile() -> dict[str, Any]:
    """The same filter as a profile for container engines, whose own ones leave vsock open.

    Raises:
        ConfigurationError: as ``program``.
    """
    program()
    machine = platform.machine()
    word = 0xFFFFFFFF  # the kernel reads no more of these arguments

    def rule(names: Sequence[str], error: int, *argument: int) -> dict[str, Any]:
        found: dict[str, Any] = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": error}
        if argument:
            index, mask, value = argument
            found["args"] = [{"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}]
        return found

    families = [number for number in range(_MOST_FAMILIES) if number not in _FAMILIES]
    others = {
        **rule(["socket"], errno.EAFNOSUPPORT),
        "args": [{"index": 0, "value": _MOST_FAMILIES, "op": "SCMP_CMP_GE"}],
    }
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [f"SCMP_ARCH_{machine.upper()}"],
        "syscalls": [
            rule(sorted(_MACHINES[machine][1]), errno.EPERM),
            rule(["clone3"], errno.ENOSYS),
            *(rule(["clone"], errno.EPERM, 0, 1 << bit, 1 << bit) for bit in range(32) if _NAMESPACES >> bit & 1),
            *(rule(["socket"], errno.EAFNOSUPPORT, 0, word, family) for family in families),
            others,
            *(rule(["ioctl"], errno.EPERM, 1, word, order) for order in (_TIOCSTI, _TIOCLINUX)),
        ],
    }


def _socket() -> list[_Instruction]:
    """Families that agents need, and no raw packets."""
    code: list[_Instruction] = [_argument(0)]
    for count, family in enumerate(_FAMILIES):
        code.append((_EQUAL, len(_FAMILIES) - count, 0, family))
    code.append(_refuse(errno.EAFNOSUPPORT))
    code += [_argument(1), (_AND, 0, 0, _SOCK_TYPE)]
    code += [(_EQUAL, 0, 1, _SOCK_RAW), _refuse(errno.EPERM), (_EQUAL, 0, 1, _SOCK_PACKET), _refuse(errno.EPERM)]
    return code


def _block(call: int, code: Sequence[_Instruction]) -> list[_Instruction]:
    """``code`` for one call, which is allowed when it comes to its end."""
    return [(_EQUAL, 0, len(code) + 1, call), *code, (_RETURN, 0, 0, _ALLOW)]


def _argument(number: int) -> _Instruction:
    """Load the low half of an argument; of all arguments that are looked at, the kernel itself reads no more."""
    return _LOAD, 0, 0, _ARGUMENTS + 8 * number


def _refuse(error: int) -> _Instruction:
    return _RETURN, 0, 0, _ERRNO | error
