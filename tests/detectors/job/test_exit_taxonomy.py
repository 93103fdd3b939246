"""Last words as PyTorch, NCCL, CUDA, gloo and Python write them, and what they mean."""

# ruff: noqa: E501 - lines stand as their libraries write them

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.finding import Cause
from mainstay.detectors.job.exit_taxonomy import ExitContext, ExitSeverity, classify, signal_of
from mainstay.probes.core_types import RecommendedAction

LINES: list[tuple[str, str, ExitSeverity, Cause]] = [
    # Hardware and driver
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_ecc", ExitSeverity.SEV1, Cause.GPU_MEMORY),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu_lost", ExitSeverity.SEV1, Cause.FAULTY_GPU),
    ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU", "gpu_lost", ExitSeverity.SEV1, Cause.FAULTY_GPU),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink", ExitSeverity.SEV1, Cause.GPU_LINK),
    ("RuntimeError: CUDA error: hardware stack error", "hardware_stack", ExitSeverity.SEV1, Cause.GPU_SRAM),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "gpu_firmware", ExitSeverity.SEV1, Cause.GPU_SYSTEM_PROCESSOR),
    ("RuntimeError: The NVIDIA driver on your system is too old; CUDA driver version is insufficient for CUDA runtime version", "driver", ExitSeverity.SEV1, Cause.DEPENDENCY),
    # The process
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal_access", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("RuntimeError: CUDA error: device-side assert triggered", "device_assert", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("../aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectLargeIndex: block: [12,0,0], thread: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed.", "device_assert", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("RuntimeError: CUDA error: unspecified launch failure", "cuda_launch", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", "cuda_launch", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB", "gpu_out_of_memory", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "gpu_out_of_memory", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)", "host_out_of_memory", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "shared_memory", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("OSError: [Errno 28] No space left on device: '/ckpt/step_4000/__0_0.distcp'", "disk_full", ExitSeverity.SEV2, Cause.STORAGE),
    ("OSError: [Errno 116] Stale file handle", "storage", ExitSeverity.SEV2, Cause.STORAGE),
    ("OSError: [Errno 5] Input/output error", "storage", ExitSeverity.SEV2, Cause.STORAGE),
    ("ModuleNotFoundError: No module named 'flash_attn'", "missing_dependency", ExitSeverity.SEV2, Cause.DEPENDENCY),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "missing_dependency", ExitSeverity.SEV2, Cause.DEPENDENCY),
    ("AssertionError: found NaN in local grad norm in backward pass before data-parallel communication collective", "not_finite", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE", "collective_mismatch", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("ValueError: bad shape.", "exception", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("KeyError: 'input_ids'", "exception", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x16 and 32x4)", "exception", ExitSeverity.SEV2, Cause.SOFTWARE),
    ("[rank3]: TypeError: forward() missing 1 required positional argument: 'mask'", "exception", ExitSeverity.SEV2, Cause.SOFTWARE),
    # The network between
    ("node-7:812:1190 [3] transport/net_ib.cc:1298 NCCL WARN NET/IB : Got completion from peer 10.0.3.7<45321> with status=12 opcode=0 len=0 vendor err 129 (Recv)", "link_flap", ExitSeverity.SEV3, Cause.NETWORK),
    ("node-7:812:1184 [3] NCCL WARN NET/IB : mlx5_2:1 Got async event : port error", "nic", ExitSeverity.SEV3, Cause.NIC),
    ("OSError: [Errno 113] No route to host", "link_flap", ExitSeverity.SEV3, Cause.NETWORK),
    ("RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: true, code: -98, name: EADDRINUSE, message: address already in use", "address_in_use", ExitSeverity.SEV3, Cause.SOFTWARE),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "name_resolution", ExitSeverity.SEV3, Cause.NETWORK),
]  # fmt: skip

FOLLOWS = [
    "[rank3]:[E1121 06:10:21.123456789 ProcessGroupNCCL.cpp:683] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=421, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2027, remote process exited or there was a network error, NCCL version 2.21.5",
    "node-3:77:912 [5] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.2.3<4021> failed : Connection refused",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.7]:41213",
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 29500).",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
]  # fmt: skip


@pytest.mark.parametrize(("line", "error_class", "severity", "cause"), LINES, ids=[row[1] for row in LINES])
@pytest.mark.parametrize("where", ["error", "traceback", "stderr", "tail"])
def test_real_last_words(line: str, error_class: str, severity: ExitSeverity, cause: Cause, where: str) -> None:
    text: Any = ["step 1200 loss 2.31", line] if where in {"stderr", "tail"} else line
    said = classify({"exit_code": 1, where: text})
    assert (said.error_class, said.severity, said.cause, said.consequence) == (error_class, severity, cause, False)
    assert said.line == line


@pytest.mark.parametrize("line", FOLLOWS, ids=lambda line: line[:40])
def test_what_only_tells_of_a_lost_peer_is_a_consequence(line: str) -> None:
    said = classify({"exit_code": -6, "tail": [line]})
    assert said.consequence
    assert (said.severity, said.cause) == (ExitSeverity.SEV3, Cause.COLLECTIVE_TIMEOUT)


def test_the_first_failure_is_told_before_what_follows_from_it() -> None:
    tail = [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "[rank0]:[W] Warning: WARNING: destroy_process_group() was not called before program exit",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited",
    ]
    assert classify({"exit_code": 1, "tail": tail}).error_class == "gpu_ecc"


def test_a_plain_exception_yields_to_the_lost_peer_that_raised_it_and_to_nothing_else() -> None:
    lost = "RuntimeError: [pair.cc:534] Connection closed by peer [10.1.0.7]:41213"
    assert classify({"exit_code": 1, "error": lost}).consequence
    assert not classify({"exit_code": 1, "error": "ValueError: bad", "tail": ["INFO all fine"]}).consequence


@pytest.mark.parametrize(
    ("code", "severity", "cause", "evicts"),
    [
        (79, ExitSeverity.SEV1, Cause.FAULTY_GPU, True),
        (48, ExitSeverity.SEV1, Cause.GPU_MEMORY, True),
        (95, ExitSeverity.SEV1, Cause.GPU_MEMORY, True),
        (119, ExitSeverity.SEV1, Cause.GPU_SYSTEM_PROCESSOR, True),
        (94, ExitSeverity.SEV2, Cause.GPU_MEMORY, False),
        (13, ExitSeverity.SEV2, Cause.SOFTWARE, False),
        (31, ExitSeverity.SEV2, Cause.SOFTWARE, False),
    ],
)
def test_the_drivers_code_says_why_whatever_the_library_says(
    code: int, severity: ExitSeverity, cause: Cause, *, evicts: bool
) -> None:
    said = classify({"exit_code": 1, "error": "RuntimeError: Connection closed by peer"}, ExitContext(xids=(code,)))
    assert (said.severity, said.cause, said.recommended_action.evicts) == (severity, cause, evicts)
    assert f"XID {code}" in said.reason


def test_the_programs_own_word_is_more_exact_than_a_mild_code() -> None:
    illegal = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert classify({"exit_code": 1, "error": illegal}, ExitContext(xids=(31,))).error_class == "illegal_access"
    assert classify({"exit_code": 1, "error": illegal}, ExitContext(xids=(79,))).error_class == "xid_79"


def test_a_lost_node_and_memory_are_facts() -> None:
    assert classify({"signal": 9}, ExitContext(gpu_lost=True)).cause is Cause.FAULTY_GPU
    for told in (
        classify({"signal": 9}, ExitContext(out_of_memory=True)),
        classify({"signal": 9, "out_of_memory": True}),
    ):
        assert (told.error_class, told.recommended_action) == ("host_out_of_memory", RecommendedAction.RESTART_JOB)


@pytest.mark.parametrize(
    ("data", "error_class", "cause"),
    [
        ({"signal": 11}, "crash", Cause.SOFTWARE),
        ({"exit_code": -6}, "crash", Cause.SOFTWARE),
        ({"exit_code": 139}, "crash", Cause.SOFTWARE),
        ({"signal": "SIGSEGV"}, "crash", Cause.SOFTWARE),
        ({"signal": 15}, "asked_to_end", Cause.OPERATOR),
        ({"signal": 9}, "killed", None),
        ({"signal": 64}, "signal", None),
        ({"exit_code": 1}, "exit", None),
        ({}, "exit", None),
        ({"exit_code": True, "tail": 3, "error": ["x", 4]}, "exit", None),
    ],
)
def test_where_nothing_tells_why_the_exit_speaks_for_itself(
    data: dict[str, Any], error_class: str, cause: Cause | None
) -> None:
    said = classify(data)
    assert (said.error_class, said.cause, said.explained) == (error_class, cause, False)
    assert said.recommended_action is RecommendedAction.RESTART_JOB


def test_ordinary_output_means_nothing() -> None:
    tail = ["step 10 loss 2.1 grad norm 0.9", "INFO:root:saved checkpoint", "epoch 3 | lr 1e-4 | 812 tokens/s"] * 50
    assert classify({"exit_code": 3, "tail": tail}).error_class == "exit"


def test_a_hostile_tail_costs_little() -> None:
    assert classify({"exit_code": 1, "tail": ["a" * 10_000_000, "Error" * 100_000]}).error_class in {
        "exit",
        "exception",
    }


@pytest.mark.parametrize(
    ("data", "number"),
    [
        *(({"signal": name}, n) for name, n in (("SIGHUP", 1), ("SIGINT", 2), ("SIGKILL", 9), ("SIGTERM", 15))),
        ({"signal": "SIGSEGV"}, 11), ({"signal": "odd"}, None), ({"signal": "odd", "exit_code": -9}, 9),
        ({"signal": 7, "exit_code": -9}, 7), ({"signal": True, "exit_code": -9}, 9), ({"exit_code": True}, None),
        *(({"exit_code": code}, n) for code, n in ((-1, 1), (0, None), (3, None), (128, None), (129, 1), (192, 64),
                                                   (193, None), (255, None))),
    ],
)  # fmt: skip
def test_signals_by_name_and_number(data: dict[str, Any], number: int | None) -> None:
    assert signal_of(data) == number


@pytest.mark.parametrize(
    ("codes", "error_class"),
    [((31, 79), "xid_79"), ((79, 48), "xid_79"), ((48, 79), "xid_79"), ((13, 31), "xid_13"), ((4711,), "exit")],
)
def test_of_several_codes_the_gravest_speaks(codes: tuple[int, ...], error_class: str) -> None:
    assert classify({"exit_code": 1}, ExitContext(xids=codes)).error_class == error_class
