"""The processor in /proc/cpuinfo, as recorded on some."""

import pytest

from persia_cli.observe.processor import UNKNOWN, read_processor

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
    assert said is not None
    assert "2 to 3 times slower than float32 on Intel(R) Xeon(R) Platinum" in said
    for each in (old, new):
        assert "10 times slower" in (each.slow_precision("float16") or "")
