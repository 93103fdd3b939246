"""What lines mean: every pattern on its own line and on no other's, every form of an XID, and any bytes at all."""

# ruff: noqa: E501 - lines of a log are as long as they are

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainstay.probes.core_types import EventKind
from mainstay.probes.kernel_log.parse import MAX_LINE, details, parse, patterns

NVRM = "NVRM: Xid (PCI:0000:3b:00): "


@pytest.mark.parametrize("pattern", patterns(), ids=lambda p: p.id)
def test_every_pattern_meets_its_own_line_and_no_other_pattern_does(pattern: Any) -> None:
    meets = [
        other.id for other in patterns() if other.needle in pattern.example and other.regex.search(pattern.example)
    ]
    assert meets == [pattern.id]
    fact = parse(pattern.example)
    assert fact is not None
    assert (fact.pattern, fact.kind) == (pattern.id, pattern.event)
    assert fact.data["source"] == "kernel"
    if pattern.event is EventKind.KERNEL_FAULT:
        assert fact.data["fault"] == pattern.fault != ""
        assert fact.data["severity"] in ("info", "warning", "critical")
        assert fact.data["text"] == pattern.example[:400]


@pytest.mark.parametrize("detail", details(), ids=lambda d: str(min(d.codes)))
def test_every_detail_adds_to_an_xid_of_its_code(detail: Any) -> None:
    for code in detail.codes:
        fact = parse(f"{NVRM}{code}, pid=77, name=python3, {detail.example}")
        assert fact is not None
        assert fact.data["code"] == code
        assert len(fact.data) > 6, "more than number, address, process and text"


def test_patterns_are_well_formed() -> None:
    assert len({p.id for p in patterns()}) == len(patterns()) >= 50
    for pattern in patterns():
        assert pattern.needle in pattern.example
        assert re.fullmatch(r"[a-z0-9_]+", pattern.id)
        assert bool(pattern.fault) == (pattern.event is EventKind.KERNEL_FAULT)


XIDS = [
    ("NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
     {"code": 79, "pci": "0000:0a:00", "text": "GPU has fallen off the bus."}),
    ("NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.", {"code": 79}),
    ("NVRM: Xid (PCI:0018:01:00): 45, pid=1234, name=pt_main_thread, Ch 00000008", {"code": 45, "pid": 1234, "process": "pt_main_thread"}),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=9, name=a b, Contained: SM (0x1). RST: No, D-RST: No",
     {"code": 94, "gi": 5, "process": "a b", "containment": "Contained", "unit": "SM", "location": "0x1"}),
    ("NVRM: Xid (PCI:0000:3b:00): 95, pid='<unknown>', name='<unknown>', Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
     {"code": 95, "containment": "Uncontained", "unit": "LTC TAG"}),
    ("NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 6, SM 0): Illegal Instruction Parameter",
     {"code": 13, "gpc": 7, "tpc": 6, "sm": 0, "reason": "Illegal Instruction Parameter"}),
    ("NVRM: Xid (PCI:0000:cb:00): 13, pid=3, name=x, Graphics Exception: ESR 0x53e730=0x1000e 0x53e734=0x20", {"code": 13}),
    (NVRM + "31, pid=36340, name=python3, channel 0x01000020, intr 00000000. MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted @ "
     "0x792c_58000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
     {"engine": "CE2", "client": "HUBCLIENT_CE0", "address": "0x792c_58000000", "fault_type": "FAULT_PDE", "access": "ACCESS_TYPE_VIRT_WRITE"}),
    (NVRM + "31, pid=1, name=a, Ch 00000010, intr 10000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_1 faulted @ 0x7f7c_0. "
     "Fault is of type FAULT_PTE ACCESS_TYPE_VIRT_READ", {"gpc": 3, "engine": "GRAPHICS"}),
    (NVRM + "48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the "
     "framebuffer at partition 6, subpartition 0.", {"code": 48, "partition": 6, "subpartition": 0}),
    (NVRM + "63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.", {"code": 63, "pid": 1896, "scheme": "Row Remapper"}),
    (NVRM + "63, Dynamic Page Retirement: New page retired, reboot to activate (0x00000000000012ab).",
     {"scheme": "Dynamic Page Retirement", "address": "0x00000000000012ab"}),
    (NVRM + "64, Row Remapper Error: (0x0000000000abcdef) - Row Remapping table is full", {"code": 64, "address": "0x0000000000abcdef"}),
    (NVRM + "64, DRAM Retirement failed due to no spare for retirement at 0x0000000000001234", {"address": "0x0000000000001234"}),
    (NVRM + "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
     {"code": 74, "link": 6, "registers": "0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0"}),
    (NVRM + "92, pid=5, name=x, High single-bit ECC error rate", {"code": 92}),
    (NVRM + "119, pid=44, name=nvidia-smi, Timeout after 45s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL) (0x0 0x0).",
     {"code": 119, "seconds": 45, "function": 76}),
    (NVRM + "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)",
     {"unit": "NETIR_LINK_EVT", "fatal": True, "cross": 0, "injected": 0, "link": 9, "intrinfo": "0x025525c6", "status": "0x00000000"}),
    (NVRM + "145, pid=4, name=<unknown>, RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 (0x00000001 0x00000002)",
     {"unit": "RLW_SRC_TRACK", "fatal": False, "cross": 1, "link": -1, "status": "0x00000002"}),
    (NVRM + "149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", {"cross": 1, "injected": 2, "intrinfo": "0x0000000a"}),
    (NVRM + "148, NVLPW_CTRL Fatal XC0 i0 Link 05", {"unit": "NVLPW_CTRL", "link": 5}),
    (NVRM + "154, pid=77, name=python3, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)",
     {"before": "GPU Reset Required", "recovery": "Node Reboot Required", "recovery_code": "0x2"}),
    (NVRM + "157, Unable to retire TPC 7 from GPC 3 as there are no spare TPCs available.", {"tpc": 7, "gpc": 3}),
    (NVRM + "161, Repairing LTS failed as there are no more spare L2 slices.", {"unit": "LTS"}),
    (NVRM + "162", {"code": 162, "pci": "0000:3b:00"}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "wanted"), XIDS)
def test_the_forms_of_an_xid(line: str, wanted: dict[str, Any]) -> None:
    fact = parse(line)
    assert fact is not None
    assert fact.kind is EventKind.XID
    assert {key: fact.data.get(key) for key in wanted} == wanted
    assert "<unknown>" not in {str(value) for value in fact.data.values()}


@pytest.mark.parametrize(("line", "pattern", "wanted"), [
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)", "sxid",
     {"code": 28006, "fatal": False, "switch": 3, "link": 46, "pci": "0000:c1:00.0", "text": "MC TS crumbstore MCTO (First)"}),
    ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11001, Fatal, ingress invalid command", "sxid", {"fatal": True}),
    ("NVRM: GPU at 0000:4f:00.0 has fallen off the bus.", "gpu_lost", {"pci": "0000:4f:00.0"}),
    ("NVRM: fallen off the bus and is not responding to commands.", "gpu_lost", {}),
    ("GPU reset executed: GPU-455d8f70-2051-db6c-0430-ffc457bff834", "gpu_reset", {"uuid": "GPU-455d8f70-2051-db6c-0430-ffc457bff834"}),
    ("mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count.", "nic_health", {"pci": "0000:d2:00.0"}),
    ("mlx5_core 0000:61:00.0: poll_health:840:(pid 0): Fatal error 3 detected", "nic_health", {}),
    ("mlx5_core 0000:61:00.0: Port module event[error]: module 1, Cable error, High Temperature", "nic_temperature", {}),
    ("mlx5_core 0000:61:00.0: Port module event[error]: module 1, Cable error, Bus stuck (I2C or data shorted)", "nic_cable", {}),
    ("mlx5_core 0000:61:00.1: wait_func:1158:(pid 1): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource", "nic_command", {}),
    ("XFS (dm-0): Corruption of in-memory data detected.  Shutting down filesystem", "xfs_shutdown", {}),
    ("XFS (sdb1): log I/O error -5", "xfs_error", {}),
    ("BTRFS info (device sdb1): forced readonly", "read_only", {}),
    ("BTRFS: error (device sdb1) in btrfs_commit_transaction:2124: errno=-5 IO failure", "btrfs_error", {}),
    ("EXT4-fs error (device sda1) in ext4_reserve_inode_write:5764: Journal has aborted", "ext_error", {}),
    ("nvme nvme0: I/O 832 QID 5 timeout, reset controller", "nvme_timeout", {}),
    ("nvme nvme1: Removing after probe failure status: -19", "nvme_down", {}),
    ("nvme nvme1: Disabling device after reset failure: -19", "nvme_down", {}),
    ("I/O error, dev nvme0n1, sector 998877 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2", "block_error", {}),
    ("Buffer I/O error on device dm-3, logical block 7", "buffer_error", {}),
    ("md/raid10:md127: Disk failure on sdc1, disabling device.", "raid_failed", {}),
    ("nfs: server 10.0.0.7 not responding, timed out", "nfs_silent", {}),
    ("Out of memory: Kill process 4242 (java) score 912 or sacrifice child", "oom_kill", {}),
    ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice,task=a,pid=5,uid=0",
     "oom_summary", {}),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "rcu_stall", {}),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "hard_lockup", {}),
    ("kernel BUG at mm/slub.c:4023!", "bug", {}),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "bug", {}),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", "oops", {}),
    ("CPU3: Core temperature is above threshold, cpu clock is throttled (total events = 12)", "cpu_throttled", {}),
    ("pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)", "aer_corrected", {}),
    ("nvidia 0000:9a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)",
     "aer_uncorrected", {"pci": "0000:9a:00.0"}),
    ("DMAR: [DMA Read] Request device [0a:00.0] fault addr dceff000 [fault reason 06] PTE Read access is not set", "dmar_fault", {"pci": "0a:00.0"}),
    ("AMD-Vi: Event logged [IO_PAGE_FAULT device=0a:00.0 domain=0x001b address=0xfffe flags=0x0020]", "amd_iommu_fault", {"pci": "0a:00.0"}),
    ("traps: python3[991] general protection fault ip:7f1c sp:7f1d error:0 in libnccl.so.2.18[7f1c000+200]", "segfault_nccl", {}),
    ("vfio-pci 0000:3b:00.0: reset done", "pci_reset", {"what": "reset", "pci": "0000:3b:00.0"}),
])  # fmt: skip
def test_other_spellings(line: str, pattern: str, wanted: dict[str, Any]) -> None:
    fact = parse(line)
    assert fact is not None
    assert fact.pattern == pattern
    assert {key: fact.data.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("line", [
    "", "Linux version 6.8.0", "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00000000, 0x00000000, 0x00000000}",
    "NVRM: GPU at PCI:0000:0a:00: GPU-455d8f70-2051-db6c-0430-ffc457bff834", "NVRM: Xid error: xyz, invalid data",
    "mlx5_core 0000:5c:00.0: firmware version: 28.39.1002", "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:305:(pid 1): PCIe slot advertised sufficient power (75W).",
    "XFS (md0): Mounting V5 Filesystem", "nvme nvme0: 12/0/0 default/read/poll queues", "monitor: saw NVRM: Xid (PCI:0000:0a:00): 79",
    "python3[991]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6[7f+1]", "systemd[1]: Out of memory handling set up",
    "mce: CPU0 supports 32 MCE banks", "AER: enabled with IRQ 122", "usb 1-1: reset high-speed USB device number 2",
])  # fmt: skip
def test_ordinary_lines_mean_nothing(line: str) -> None:
    assert parse(line) is None


def test_what_holds_until_the_next_boot_is_told_later_too() -> None:
    def lasts(line: str) -> bool:
        fact = parse(line)
        assert fact is not None
        return fact.catch_up

    assert lasts(NVRM + "79, GPU has fallen off the bus.")
    assert lasts("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    assert lasts(NVRM + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert not lasts(NVRM + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert lasts("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11001, Fatal, ingress invalid command")
    assert not lasts("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11004, Non-fatal, Link 1 x")
    assert not lasts(NVRM + "31, pid=1, name=a, MMU Fault")
    assert not lasts(NVRM + "149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 01 (0x1)")
    assert lasts(NVRM + "149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x1)")


NEEDLES = st.sampled_from([p.needle for p in patterns()] + [p.example for p in patterns()])


@given(st.lists(st.one_of(NEEDLES, st.text(max_size=80)), max_size=12).map("".join))
@example("NVRM: Xid (PCI:0000:0a:00): 9" + "9" * 3000)
def test_no_text_ever_raises(text: str) -> None:
    fact = parse(text)
    assert fact is None or isinstance(fact.data, dict)


@given(st.binary(max_size=4096))
def test_no_bytes_ever_raise(line: bytes) -> None:
    parse(line)
    parse(b"NVRM: Xid (PCI:" + line)


@given(st.sampled_from(patterns()), st.integers(0, 200), st.text(max_size=10))
def test_a_mangled_line_never_raises(pattern: Any, at: int, junk: str) -> None:
    parse(pattern.example[:at] + junk + pattern.example[at:])
    parse(pattern.example[:at])


@pytest.mark.parametrize("pattern", patterns(), ids=lambda p: p.id)
def test_no_line_costs_more_than_a_moment(pattern: Any) -> None:
    """The worst that a pattern can be given: its own words over and over, cut in the middle, and long runs."""
    words = pattern.example.split()
    worst = [
        (pattern.example[: len(pattern.example) * 2 // 3] + " ") * 100,
        pattern.needle + " " + "a" * 5000, pattern.needle + " (" * 2000, pattern.needle + " 0x0, " * 800,
        " ".join(words[:-1]) + " " + (words[-1][:3] + " ") * 1000, pattern.needle * 400,
        pattern.needle + ": " * 2000, "0000:" * 500 + pattern.needle, pattern.needle + ("mlx5_core 0000:5c:00.0: ") * 90,
    ]  # fmt: skip
    for line in worst:
        best = min(
            _seconds(line[:MAX_LINE]) for _ in range(3)
        )  # of processor time: a pattern that blows up takes seconds
        assert best < 0.05, f"{best:.3f} s for {line[:80]!r}"


def _seconds(line: str) -> float:
    started = time.thread_time()
    parse(line)
    return time.thread_time() - started


def test_an_ordinary_line_costs_microseconds() -> None:
    line = 'audit: type=1400 audit(1700000000.0:1): apparmor="ALLOWED" operation="open" profile="x" pid=991'
    parse(line)
    started = time.thread_time()
    for _ in range(2000):
        parse(line)
    assert (time.thread_time() - started) / 2000 < 100e-6
