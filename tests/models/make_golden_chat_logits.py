"""Writes golden/chat-<name>.npz by llama.cpp (test-only; llama-cpp-python).

    python tests/models/make_golden_chat_logits.py NAME FILE.gguf

Token ids of a few texts, and for one text of about 150 tokens the 20 best next tokens at each position with their
log-probabilities. llama.cpp rounds activations to 8 bits for its quantized products, so it is near, not equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import Llama

HERE = Path(__file__).parent
PROSE = (
    "It was a bright cold day, and the clocks were striking noon. The man walked slowly down the street, "
    'looking at the shop windows. "Can you help me find the station?" he asked the woman at the corner. "Of '
    'course," she said. "Go straight ahead and turn left at the bank. It takes about five minutes." He thanked '
    "her and walked on. The train to London was due at half past nine, and he did not want to miss it again. "
    "When he arrived, the platform was full of people waiting in the rain, and nobody knew when the next train "
    "would come."
)
TEXTS = [
    "Hello there! How are you?",
    "It's 5:30 pm, isn't it?\nYes — it is.",
    "naïve café 🙂 日本語 tabs\tand  two spaces",
    "  leading spaces and 12345 numbers, 3.14%",
    "Caller: What's up?\n\nAssistant:",
    "\n\n\nhttps://example.com/a?b=c&d=1",
    'She said "don\'t" – and left…',
    "ﬁ ligature ½ Ⅳ",
]


def main() -> None:
    name, path = sys.argv[1:3]
    model = Llama(path, n_ctx=1024, logits_all=True, verbose=False)
    add_bos = model.metadata.get("tokenizer.ggml.add_bos_token") == "true"
    ids = model.tokenize(PROSE.encode(), add_bos=add_bos, special=False)
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)], np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    best = np.argsort(-logits, axis=1)[:, :20]
    tokens = [model.tokenize(text.encode(), add_bos=False, special=False) for text in TEXTS]
    np.savez_compressed(
        HERE / "golden" / f"chat-{name}.npz",
        ids=np.array(ids, np.int32),
        best=best.astype(np.int32),
        logprobs=np.take_along_axis(logits, best, 1).astype(np.float32),
        tokenized=np.array(json.dumps([list(pair) for pair in zip(TEXTS, tokens, strict=True)])),
    )


if __name__ == "__main__":
    main()
