"""The processor, as /proc/cpuinfo describes it, and the usage of processes, against other sources."""

import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from persia_cli.observe.machine import (
    UNKNOWN,
    cpu_seconds,
    cpu_seconds_of,
    read_processor,
    resident_bytes,
    resident_bytes_of,
)

X86 = "processor\t: 0\nvendor_id\t: some\nmodel name\t: {model}\nflags\t\t: fpu sse2 fma avx2 {flags}\n\n"
GRAVITON = (
    "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd crc32 sve {features}\nCPU implementer\t: 0x41\n"
    "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 1\n\n"
)
TURIN = X86.format(model="AMD EPYC 9755", flags="avx512f avx512_vnni avx512_bf16 avx_vnni")
CASCADE_LAKE = X86.format(model="Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", flags="avx512f avx512_vnni")


@pytest.mark.parametrize(
    ("text", "model", "features", "bfloat16"),
    [
        (TURIN * 2, "AMD EPYC 9755", ("avx2", "avx512f", "avx512_vnni", "avx512_bf16"), True),
        (GRAVITON.format(features="bf16", part="0xd40"), "ARM Neoverse V1 (Graviton3)", ("asimd", "sve", "bf16"), True),
        (GRAVITON.format(features="", part="0xd0c"), "ARM Neoverse N1 (Graviton2)", ("asimd", "sve"), False),
        (GRAVITON.format(features="bf16", part="0xfff"), "ARM core 0xfff", ("asimd", "sve", "bf16"), True),
        ("no colon\n:\n", UNKNOWN, (), True),
    ],
)
def test_a_processor_is_identified_by_name_and_features(
    text: str, model: str, features: tuple[str, ...], bfloat16: bool
) -> None:
    found = read_processor(text)
    assert (found.model, found.features, found.has_bfloat16) == (model, features, bfloat16)


def test_a_slow_choice_is_named_with_a_better_one() -> None:
    old, new = read_processor(CASCADE_LAKE), read_processor(TURIN)
    assert old.slow_precision("float32") is None
    assert new.slow_precision("bfloat16") is None
    said = old.slow_precision("bfloat16")
    assert "2 to 3 times slower than float32 on Intel(R) Xeon(R) Platinum" in said


TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def test_cpu_time_grows_with_work_and_is_the_same_both_ways() -> None:
    start = cpu_seconds()
    deadline = time.monotonic() + 30.0
    while cpu_seconds() < start + 0.05:
        assert time.monotonic() < deadline
    least, found, most = cpu_seconds(), cpu_seconds_of(os.getpid()), cpu_seconds()
    assert least - 3 * TICK_S <= found <= most + TICK_S


def test_memory_is_what_is_in_ram_now() -> None:
    before = resident_bytes()
    taken = np.ones(2**26, np.uint8)
    grown = resident_bytes() - before
    assert taken.nbytes * 0.9 < grown < taken.nbytes * 2
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)


def test_a_process_of_any_name_can_be_read() -> None:
    program = "open('/proc/self/comm', 'w').write('a) 1 (2 b'); sum(range(10**7)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        times = psutil.Process(child.pid).cpu_times()
        assert 0.0 < cpu_seconds_of(child.pid) == pytest.approx(times.user + times.system, abs=3 * TICK_S)
        assert resident_bytes_of(child.pid) > 2**20
        child.communicate("\n")
    assert child.returncode == 0
    assert (cpu_seconds_of(child.pid), resident_bytes_of(child.pid)) == (0.0, 0)
