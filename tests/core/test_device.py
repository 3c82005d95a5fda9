import pytest
import torch

from worldrl.core import device
from worldrl.core.device import peak_device_mb, peak_rss_mb, resolve_device, resolve_dtype, set_threads
from worldrl.core.errors import SettingError


def fake_cuda(monkeypatch, count, bf16=True):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)


def test_without_a_gpu_cuda_is_an_error_and_auto_the_cpu(monkeypatch):
    fake_cuda(monkeypatch, 0)
    assert resolve_device("cpu") == resolve_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(SettingError, match=rf"'{name}' was asked for, but torch .*; use device=cpu"):
            resolve_device(name)


def test_with_two_gpus(monkeypatch):
    fake_cuda(monkeypatch, 2)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(SettingError, match=r"there are 2 CUDA devices; use cuda:0..1"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "", "cuda:0 "])
def test_unknown_device_names(name):
    with pytest.raises(SettingError, match=f"device: unknown name '{name}'"):
        resolve_device(name)


def test_dtypes(monkeypatch):
    assert resolve_dtype("float32") == torch.float32
    assert resolve_dtype("float16", torch.device("cpu")) == torch.float16
    assert resolve_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    with pytest.raises(SettingError, match="unknown name 'float23'; did you mean 'float32'"):
        resolve_dtype("float23")
    fake_cuda(monkeypatch, 1, bf16=False)
    with pytest.raises(SettingError, match="'bfloat16' is not supported by this GPU"):
        resolve_dtype("bfloat16", torch.device("cuda"))
    fake_cuda(monkeypatch, 1, bf16=True)
    assert resolve_dtype("bfloat16", torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(("has", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_takes_bfloat16_only_where_the_device_computes_in_it(monkeypatch, has, dtype):
    fake_cuda(monkeypatch, 1, bf16=has)
    assert resolve_dtype("auto", torch.device("cuda")) == dtype
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: has)
    assert resolve_dtype("auto", torch.device("cpu")) == resolve_dtype("auto") == dtype


def test_threads():
    before = torch.get_num_threads()
    try:
        set_threads(1)
        assert torch.get_num_threads() == 1
        with pytest.raises(SettingError, match="at least 1, got 0"):
            set_threads(0)
    finally:
        set_threads(before)


def test_peak_memory_sees_an_allocation_and_keeps_it(child):
    code = """
from worldrl.core.device import peak_device_mb, peak_rss_mb
before = peak_rss_mb()
block = bytearray(200 * 2**20)
del block
print(peak_rss_mb() - before)
"""
    assert 190 < float(child(code).stdout) < 230
    assert peak_rss_mb() > 10


def test_light_modules_do_not_import_torch(child):
    code = """
import sys
import worldrl.core.storage.run, worldrl.core.storage.log, worldrl.core.device, worldrl.core.storage.jsonfile
print("torch" in sys.modules)
"""
    assert child(code).stdout == "False\n"


def test_a_device_tells_its_own_peak_and_the_cpu_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20 if device.index == 1 else 0)
    assert peak_device_mb(torch.device("cuda:1")) == 3
    assert peak_device_mb(torch.device("cpu")) is None


def test_the_driver_is_read_from_the_system_and_missing_without_one(monkeypatch, tmp_path):
    told = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
    (tmp_path / "version").write_text(told)
    monkeypatch.setattr(device, "Path", lambda name: tmp_path / "version")
    assert device.driver() == "550.54.15"
    monkeypatch.setattr(device, "Path", lambda name: tmp_path / "none")
    assert device.driver() == ""


def test_the_attention_kernel_is_named(monkeypatch):
    assert device.attention_kernel("cpu") == "matrix products"
    torch_has = torch.backends.cuda
    monkeypatch.setattr(torch_has, "flash_sdp_enabled", lambda: False)
    monkeypatch.setattr(torch_has, "math_sdp_enabled", lambda: True)
    assert "flash" not in device.attention_kernel("cuda:0")
    assert device.attention_kernel("cuda:0").endswith("math")


def test_hardware_names_the_gpu_and_not_only_its_kind(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"H100 number {torch.device(device).index}")
    assert device.hardware("cuda:1") == "H100 number 1"
    assert device.hardware("cpu") not in ("", "cpu")
