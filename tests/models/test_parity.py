"""Each model agrees with an independent implementation of it, within the tolerances of models/PARITY.md.

The other side's answers are the files in golden/; a few inputs a model here, all of them in the page.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bargein.models import parity
from bargein.models.parity import Row, golden

CASES: dict[str, Callable[[], list[Row]]] = {
    "silero": lambda: parity.check_silero(golden("silero")),
    "smart-turn": lambda: parity.check_smart_turn(golden("smart_turn")),
    "whisper-tiny.en": lambda: parity.check_whisper(
        golden("whisper-tiny.en"), "Whisper tiny.en", "whisper-tiny-en", ("austen-0880", "austen-0930")
    ),
    "whisper-base": lambda: parity.check_whisper(golden("whisper-base"), "Whisper base", "whisper-base", ("austen-0880",)),
    "smollm2": lambda: parity.check_chat(golden("chat-smollm2"), "SmolLM2 135M", "smollm2-135m", (0, 3)),
    "gemma3": lambda: parity.check_chat(golden("chat-gemma3"), "Gemma 3 270M", "gemma-3-270m", (0,)),
    "smollm2-served": lambda: parity.check_served_chat(
        golden("chat-smollm2"), golden("chat-served-smollm2"), "SmolLM2 135M", "smollm2-135m", (0, 1)
    ),
    "gemma3-served": lambda: parity.check_served_chat(
        golden("chat-gemma3"), golden("chat-served-gemma3"), "Gemma 3 270M", "gemma-3-270m", (0,)
    ),
    "hibari": lambda: parity.check_hibari(golden("hibari")),
}


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_an_independent_implementation(case: str) -> None:
    rows = CASES[case]()
    failed = [row for row in rows if not row.passed]
    assert not failed, "\n" + parity.table(failed)
