"""The names of the package, and its import without other packages."""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
import time
from pathlib import Path

import mscclpp
import pytest
from mscclpp import Error, ErrorCode, pack
from world import Spawn

# Names of the specification in `mscclpp`, old and new.
NAMES = """
ErrorCode DataType Device DeviceType EndpointConfig Semaphore PacketType ReduceOp Fifo Host2DeviceSemaphore Host2HostSemaphore
MemoryDevice2DeviceSemaphore SmDevice2DeviceSemaphore ProxyService TcpBootstrap Transport TransportFlags CommGroup GpuBuffer
RawGpuBuffer ExecutionPlan Executor npkit is_nvls_supported env Communicator Connection RegisteredMemory MemoryChannel PortChannel
SmChannel ProxyChannel KernelBuilder Kernel pack BaseError Error SysError CudaError CuError IbError HostBuffer UniqueId
""".split()
GROUP = """
my_rank nranks nranks_per_node bootstrap communicator barrier send recv my_ib_device make_connection
register_tensor_with_connections register_local_memory make_semaphores make_semaphore make_memory_channels
make_memory_channels_with_scratch make_port_channels make_port_channels_with_scratch make_proxy_channels
make_proxy_channels_with_scratch make_sm_channels make_sm_channels_with_scratch register_semaphore_with_proxy
register_memory_with_proxy
""".split()

LEAN = """
import sys, time
for name in ("cupy", "torch", "numpy", "mpi4py"):
    sys.modules[name] = None
began = time.monotonic()
import mscclpp, mscclpp.comm, mscclpp.utils
print("took", time.monotonic() - began)
assert mscclpp.is_nvls_supported() is False
buffer = mscclpp.RawHostBuffer(64)
assert bytes(buffer.buffer) == bytes(64)
for call, words in (
    (lambda: mscclpp.GpuBuffer(0), "not above 0"),
    (lambda: mscclpp.utils.GpuBuffer((4, -1)), "not above 0"),
    (lambda: mscclpp.GpuBuffer(4), "cupy, which is not installed"),
    (lambda: mscclpp.HostBuffer(4), "numpy, which is not installed"),
):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        assert words in str(error), error
        assert isinstance(error, ValueError) == ("above" in words)
    else:
        raise AssertionError(words)
print("all right")
"""


def test_everything_that_is_named_is_there() -> None:
    assert [name for name in NAMES if not hasattr(mscclpp, name)] == []
    assert [name for name in NAMES if name not in mscclpp.__all__] == []
    assert [name for name in mscclpp.__all__ if not hasattr(mscclpp, name) and name != "Collectives"] == []
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    at = bootstrap.create_unique_id()
    group = mscclpp.CommGroup(
        mpi_comm=type("Alone", (), {"rank": 0, "size": 1, "bcast": lambda _, made, root: made})()
    )
    assert at and [name for name in GROUP if not hasattr(group, name)] == []
    for module, name in (
        ("comm", "CommGroup"),
        ("utils", "GpuBuffer"),
        ("utils", "KernelBuilder"),
        ("utils", "pack"),
    ):
        assert getattr(getattr(mscclpp, module), name) is getattr(mscclpp, name)
    assert {code.name for code in ErrorCode} == {
        *(
            "SystemError",
            "InternalError",
            "RemoteError",
            "InvalidUsage",
            "Timeout",
            "Aborted",
            "ExecutorError",
        )
    }
    types = "int32 uint32 uint8 float16 float32 bfloat16 float8_e4m3fn float8_e5m2"
    assert all(hasattr(mscclpp.DataType, name) for name in types.split())
    with pytest.raises(AttributeError):
        mscclpp.no_such_name  # noqa: B018


def test_it_is_imported_quickly_without_cupy_torch_numpy_or_mpi(spawn: Spawn) -> None:
    output = spawn(LEAN).succeed(60)
    assert "all right" in output
    assert float(output.split()[1]) < 5


def test_names_without_an_implementation_raise() -> None:
    assert mscclpp.is_nvls_supported() is False
    for later in (mscclpp.ExecutionPlan, mscclpp.Executor):
        with pytest.raises(Error, match="not executed yet") as caught:
            later("plan.json")
        assert caught.value.code is ErrorCode.ExecutorError
    mscclpp.npkit.init(0)
    mscclpp.npkit.dump("nowhere")
    mscclpp.npkit.shutdown()


def test_errors_carry_code_and_message_and_pickle() -> None:
    for kind in (mscclpp.SysError, mscclpp.CudaError, mscclpp.CuError, mscclpp.IbError):
        error = kind(3, "why")
        assert error.args == (3, "why") and str(error) == "why" and isinstance(error, mscclpp.BaseError)
        assert pickle.loads(pickle.dumps(error)).args == (3, "why")
    error = Error(ErrorCode.Timeout, "late")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is Error and again.code is ErrorCode.Timeout and again.args == (4, "late")


ENVIRONMENT = """
import dataclasses, mscclpp
one = mscclpp.env()
assert one is mscclpp.env()
assert one.cuda_ipc_use_default_stream is True and one.ib_gid_index == 3 and one.cache_dir == "/x" and one.debug == "INFO"
assert one.cuda_ipc_through_host is True
assert one.hostid == one.comm_id == one.socket_ifname == one.hca_devices == ""
try:
    one.debug = "other"
except AttributeError:
    print("read-only")
"""


def test_the_environment_is_one_object_that_can_only_be_read(spawn: Spawn) -> None:
    settings = {
        "MSCCLPP_CUDA_IPC_USE_DEFAULT_STREAM": "1",
        "MSCCLPP_CUDA_IPC_THROUGH_HOST": "on",
        "MSCCLPP_IB_GID_INDEX": "3",
        "MSCCLPP_CACHE_DIR": "/x",
        "MSCCLPP_DEBUG": "INFO",
    }
    assert "read-only" in spawn(ENVIRONMENT, env=settings).succeed(60)


def test_parameters_are_packed_one_after_the_other() -> None:
    assert pack(1, -1, True) == b"\1\0\0\0\xff\xff\xff\xff\1\0\0\0"
    assert pack(ctypes.c_size_t(1 << 40)) == (1 << 40).to_bytes(8, "little")
    assert pack(b"abc", bytearray(b"d")) == b"abcd" and pack() == b""
    assert pack(0xFFFF_FFFF) == b"\xff" * 4
    for bad in (1.5, None, "text", object(), [1], 1 << 32, -(1 << 31) - 1):
        with pytest.raises(RuntimeError):
            pack(bad)


def test_arrays_are_packed_as_their_addresses() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(10)
    assert pack(array, 1) == array.ctypes.data.to_bytes(8, "little") + b"\1\0\0\0"
    assert pack(array[2:]) == (array.ctypes.data + 16).to_bytes(8, "little")
    with pytest.raises(RuntimeError):
        pack(numpy.float32(1))


def test_tensors_of_torch_are_packed_as_their_addresses() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4)
    assert pack(tensor) == tensor.data_ptr().to_bytes(8, "little")


def test_host_buffers_are_zeroed_arrays_that_outlive_their_makers() -> None:
    numpy = pytest.importorskip("numpy")
    array = mscclpp.HostBuffer((3, 5), dtype=numpy.float32)
    assert array.shape == (3, 5) and array.dtype == numpy.float32 and not array.any()
    view = array[1]
    del array
    view += 1
    assert view.sum() == 5
    assert mscclpp.HostBuffer(4).dtype == numpy.float64
    for shape in (0, -1, (2, 0), ()):
        if shape != ():
            with pytest.raises(ValueError, match="not above 0"):
                mscclpp.HostBuffer(shape)


def test_devices_and_ends_of_connections_are_plain_values() -> None:
    gpu = mscclpp.Device(mscclpp.DeviceType.GPU, 2)
    assert gpu.id == 2 and mscclpp.Device(mscclpp.DeviceType.CPU).id == -1
    config = mscclpp.EndpointConfig(mscclpp.Transport.CudaIpc, gpu, max_write_queue_size=7)
    assert (
        config.transport is mscclpp.Transport.CudaIpc
        and config.device is gpu
        and config.max_write_queue_size == 7
    )
    assert mscclpp.EndpointConfig(mscclpp.Transport.Ethernet).max_write_queue_size == -1
    assert config.through_host is None and mscclpp.EndpointConfig(through_host=True).through_host is True


def test_transports_and_their_sets_pickle() -> None:
    for one in (mscclpp.Transport.IB3, mscclpp.Transport.CudaIpc | mscclpp.Transport.Ethernet):
        assert pickle.loads(pickle.dumps(one)) == one


def test_the_environment_has_all_settings_with_their_types() -> None:
    texts = """debug debug_subsys debug_file hca_devices hostid socket_family socket_ifname comm_id ibv_mode cache_dir
        npkit_dump_dir"""
    one = mscclpp.env()
    assert all(type(getattr(one, name)) is str for name in texts.split())
    assert type(one.cuda_ipc_use_default_stream) is bool and type(one.ib_gid_index) is int
    for name in ("debug", "something_new"):
        with pytest.raises(AttributeError):
            setattr(one, name, "other")


def test_members_of_enumerations_are_there() -> None:
    assert {member.name for member in mscclpp.DeviceType} == {"Unknown", "CPU", "GPU"}
    assert {f"IB{n}" for n in range(8)} < {member.name for member in mscclpp.Transport}
    assert {"SUM", "MIN", "MAX"} <= {member.name for member in mscclpp.ReduceOp}
    assert {"LL8", "LL16"} <= {member.name for member in mscclpp.PacketType}


def test_the_headers_can_be_written_to_files(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mscclpp", "--include"]
    environment = {"MSCCLPP_CACHE_DIR": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    began = time.monotonic()
    running = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    folders = {one.communicate(timeout=60)[0].strip() for one in running}
    assert len(folders) == 1 and time.monotonic() - began < 60
    folder = Path(folders.pop())
    names = """port_channel_device proxy_channel_device memory_channel_device sm_channel_device packet_device semaphore_device
        fifo_device concurrency_device copy_device poll_device device assert_device switch_channel_device nvls_device"""
    assert folder.is_relative_to(tmp_path)
    assert [name for name in names.split() if not (folder / "mscclpp" / f"{name}.hpp").is_file()] == []
