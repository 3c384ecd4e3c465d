from __future__ import annotations

import numpy as np
import pytest

from bargein.models.sampling import Sampling, choose, init_state

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32))


def draws(params: Sampling, count: int = 4000) -> np.ndarray:
    state = init_state(params)
    tokens = [choose(LOGITS, params, state).token for _ in range(count)]
    return np.bincount(tokens, minlength=5) / count


def test_greedy_takes_the_best() -> None:
    params = Sampling()
    assert choose(LOGITS, params, init_state(params)).token == 0


def test_temperature_one_draws_the_distribution() -> None:
    np.testing.assert_allclose(draws(Sampling(temperature=1, seed=0)), np.exp(LOGITS), atol=0.03)


def test_cuts() -> None:
    assert np.flatnonzero(draws(Sampling(temperature=1, seed=1, top_k=2), 500)).tolist() == [0, 1]
    assert np.flatnonzero(draws(Sampling(temperature=1, seed=1, top_p=0.8), 500)).tolist() == [0, 1, 2]
    assert np.flatnonzero(draws(Sampling(temperature=1, seed=1, min_p=0.2), 500)).tolist() == [0, 1, 2]


def test_same_seed_same_tokens() -> None:
    params = Sampling(temperature=1, seed=9)
    first, second = init_state(params), init_state(params)
    assert [choose(LOGITS, params, first).token for _ in range(50)] == [choose(LOGITS, params, second).token for _ in range(50)]


def test_penalties_count_what_was_said() -> None:
    params = Sampling(frequency_penalty=0.5)
    state = init_state(params)
    assert [choose(LOGITS, params, state).token for _ in range(4)] == [0, 0, 1, 0]
    params = Sampling(repetition_penalty=1.5)
    assert choose(np.abs(LOGITS[::-1]), params, init_state(params, prompt=[0])).token == 1
    params = Sampling(presence_penalty=2)
    state = init_state(params)
    assert [choose(LOGITS, params, state).token for _ in range(3)] == [0, 1, 2]


def test_bias_forbids_and_forces() -> None:
    params = Sampling(logit_bias={0: -100.0, 4: 50.0})
    assert choose(LOGITS, params, init_state(params)).token == 4


def test_logprobs_are_the_models_own() -> None:
    params = Sampling(temperature=0, logit_bias={1: 10.0}, logprobs=2)
    choice = choose(LOGITS, params, init_state(params))
    assert choice.token == 1
    assert choice.logprob == pytest.approx(np.log(0.25), abs=1e-5)
    assert [token for token, _ in choice.top] == [0, 1]


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"min_p": 1}, {"top_k": -1}, {"logprobs": 21}])
def test_out_of_range_values_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampling(**bad)  # type: ignore[arg-type]
