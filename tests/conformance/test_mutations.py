"""The list of mutations fits the source; `python -m bargein.conformance.mutate` tries them (it takes minutes)."""

from __future__ import annotations

from bargein.conformance.mutate import MUTATIONS, ROOT, mutated


def test_every_mutation_fits_the_source_and_is_python() -> None:
    assert len(MUTATIONS) >= 25 and len({m.name for m in MUTATIONS}) == len(MUTATIONS)
    for m in MUTATIONS:
        text = (ROOT / "realtime" / m.file).read_text()
        compile(mutated(m, text), m.file, "exec")
