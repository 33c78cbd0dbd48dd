"""The decode loop as a whole, step by step and without a thread."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.tiny import VOCAB, tiny_model

from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import EngineError, GenerateRequest, Refusal, Sampling
from etude.model import Cache
from etude.recipe.acting import EngineRecipe
from etude.weights.torch_bridge import from_state_dict


def engine_of(model=None, **changes):
    recipe = EngineRecipe(**{"slots": 8, "context": 96, "cache_slots": 8, **changes})
    return BuiltinEngine(model or tiny_model(), recipe)


def run(engine, requests):
    for request in requests:
        engine.submit(request)
    answers = {}
    while engine.busy:
        answers |= {answer.id: answer for answer in engine.step()}
    return [answers[request.id] for request in requests]


def requests_of(count, tokens=24, prompt=None, **sampling):
    draw = np.random.default_rng(1)
    return [
        GenerateRequest(
            f"r{i}",
            draw.integers(0, VOCAB, 5 + i).astype(np.int32) if prompt is None else prompt,
            Sampling(tokens, (), **{"seed": i, **sampling}),
        )
        for i in range(count)
    ]


ARRIVALS = st.tuples(
    st.integers(0, 4),  # steps after the one before
    st.sampled_from([0, 1, 8, 20, 45]),  # tokens shared with others
    st.integers(1, 30),  # tokens of its own
    st.integers(1, 9),  # tokens to sample
)


@pytest.mark.parametrize("speculate", ["never", "always"])
@settings(max_examples=7, deadline=None)
@given(arrivals=st.lists(ARRIVALS, min_size=2, max_size=6))
def test_any_mix_of_prompts_and_decoding_in_a_step_equals_each_row_alone(speculate, arrivals):
    """Prompts that are read, copied or continued and rows that decode share passes; nobody notices the others."""
    draw, requests = np.random.default_rng(5), []
    shared = draw.integers(0, VOCAB, 60)
    for number, (_, common, own, sampled) in enumerate(arrivals):
        prompt = np.concatenate((shared[:common], draw.integers(0, VOCAB, own))).astype(np.int32)
        requests.append(GenerateRequest(f"r{number}", prompt, Sampling(sampled, (), seed=number), f"c{number}"))
    model = tiny_model()
    engine, answers = engine_of(model, slots=4, cache_slots=3, speculate=speculate), {}

    def go_on(answer):
        """Every second conversation has one more turn."""
        answers[answer.id] = answer
        number = int(answer.id[1:])
        if number % 2 == 0 and number < 100:
            prompt = np.concatenate((requests[number].prompt, answer.tokens, shared[:3])).astype(np.int32)
            again = GenerateRequest(f"r{number + 100}", prompt, Sampling(4, (), seed=number), f"c{number}")
            requests.append(again)
            engine.submit(again)

    for request, (pause, *_) in zip(list(requests), arrivals, strict=True):
        for _ in range(pause):
            for answer in engine.step():
                go_on(answer)
        engine.submit(request)
    while engine.busy:
        for answer in engine.step():
            go_on(answer)
    for request in requests:
        (alone,) = run(engine_of(model, slots=1, cache_slots=0, speculate=speculate), [request])
        answer = answers[request.id]
        np.testing.assert_array_equal(answer.tokens, alone.tokens)
        np.testing.assert_allclose(answer.logprobs, alone.logprobs, atol=2e-5, rtol=0)
        np.testing.assert_array_equal(np.sort(answer.experts, -1), np.sort(alone.experts, -1))
        tokens = np.concatenate((request.prompt, answer.tokens))
        with torch.no_grad():
            whole = model(torch.from_numpy(tokens).long()[None])
        expected = whole.logits_btv[0, request.prompt.size - 1 : -1].log_softmax(-1).numpy()
        np.testing.assert_allclose(answer.logprobs, expected[np.arange(answer.tokens.size), answer.tokens], atol=1e-4)
        routed = whole.experts_btlk[0, :-1].numpy()
        np.testing.assert_array_equal(np.sort(answer.experts[:-1], -1), np.sort(routed, -1))


def test_drafts_are_those_of_the_head_after_any_prompt_copy_turn_and_refusal():
    """Nothing that comes out shows a draft head that reads wrong tokens or latents: its drafts would only hold less."""
    model, shared = tiny_model(), np.random.default_rng(3).integers(0, VOCAB, 30)
    engine, compared = engine_of(model, slots=4, cache_slots=4, speculate="always"), 0

    def ask(turn, member, prompt):
        conversation = f"c{member}"
        sampling = Sampling(5 + member, (), seed=10 * turn + member)
        engine.submit(GenerateRequest(f"{turn}/{member}", prompt.astype(np.int32), sampling, conversation))

    for member in range(6):
        ask(0, member, np.concatenate((shared, [member] * (member % 3))))
    while engine.busy:
        for answer in engine.step():
            turn, member = map(int, answer.id.split("/"))
            row = next(r for r in range(8) if np.array_equal(engine._rows.sampled_since(r, 0)[0], answer.tokens))
            length = int(engine._rows.position[row]) + 1
            if turn < 2:
                ask(turn + 1, member, np.concatenate((engine._rows.tokens[row, :length], shared[: 2 + 9 * turn])))
        assert bool(engine._draft.valid_b.all())
        for place, row in enumerate(engine._active.tolist()):
            tokens = torch.from_numpy(engine._rows.tokens[None, row, : engine._rows.position[row] + 1])
            with torch.no_grad():
                logits = model.mtp_logits(model(tokens), tokens).logits[0][0, -1]
            torch.testing.assert_close(engine._draft.probabilities_bv[place], logits.softmax(-1), rtol=1e-3, atol=1e-5)
            compared += 1
    assert compared > 60
    assert 0 < engine.counters.accepted < engine.counters.drafted


@pytest.mark.parametrize("speculate", ["never", "always"])
def test_sequences_have_the_distribution_of_the_model(speculate):
    """Thousands of seeds, three tokens each, against the exact probability of every sequence."""
    vocab, samples = 7, 5_000
    model = tiny_model(vocab_size=vocab)
    prompt = np.array([1, 2, 3], np.int32)
    engine = engine_of(model, slots=512, context=32, speculate=speculate)
    answers = run(engine, requests_of(samples, 3, prompt))
    sequences = np.stack(np.meshgrid(*[np.arange(vocab)] * 3, indexing="ij"), -1).reshape(-1, 3)
    whole = np.concatenate((np.tile(prompt, (len(sequences), 1)), sequences), 1)
    with torch.no_grad():
        logprobs = model(torch.from_numpy(whole)).logits_btv.double().log_softmax(-1).numpy()
    steps = [logprobs[np.arange(len(sequences)), 2 + i, sequences[:, i]] for i in range(3)]
    expected = np.exp(sum(steps)) * samples
    numbers = np.stack([answer.tokens for answer in answers]) @ np.array([vocab * vocab, vocab, 1])
    observed = np.bincount(numbers, minlength=vocab**3)
    common = expected >= 5
    expected = np.append(expected[common], expected[~common].sum())
    observed = np.append(observed[common], observed[~common].sum())
    degrees = len(expected) - 1
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert degrees > 30
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
    if speculate == "always":
        assert 0 < engine.counters.accepted < engine.counters.drafted


def decided_by(models, versions, prompt, sequences):
    """Log-probability of every token of each sequence if token i is decided by the weights of versions[i]: these feed
    the token before it, and what older weights left of the tokens before that stays as it is."""
    rows = torch.arange(len(sequences))
    fed = torch.from_numpy(np.concatenate((np.tile(prompt, (len(sequences), 1)), sequences), 1)).long()
    cache = Cache(models[0].config, len(sequences), fed.shape[1], torch.float32)

    def feed(model, begin, end):
        lengths = torch.full_like(rows, end - begin)
        step = cache.step(rows, torch.full_like(rows, begin), lengths)
        listed = fed[step.rows_t, step.positions_t.clamp(max=fed.shape[1] - 1)]
        return model.extend(listed, step, step.first_b + lengths - 1).logits_rv

    first = len(prompt)
    feed(models[0], 0, first - 1)
    steps = []
    for place, version in enumerate(versions, first):
        logprobs = feed(models[version], place - 1, place).double().log_softmax(-1)
        steps.append(logprobs.gather(1, fed[:, place, None])[:, 0])
    return torch.stack(steps, 1).numpy()


@pytest.mark.parametrize("steps_before", [1, 2])
@pytest.mark.parametrize("speculate", ["never", "always"])
def test_what_is_decided_after_a_swap_has_the_distribution_of_the_new_weights(speculate, steps_before):
    """A draft that the old head made before the swap is a proposal to the new weights and nothing more. Thousands of
    seeds, four tokens each, with a swap to wholly other weights before the second or the third step."""
    vocab, length, at_once, batches = 5, 4, 1024, 4
    old, new = models = tiny_model(0, vocab), tiny_model(1, vocab)
    prompt = np.array([1, 2, 3], np.int32)
    engine = engine_of(tiny_model(0, vocab), slots=at_once, cache_slots=0, context=32, speculate=speculate)
    requests, answers = requests_of(at_once * batches, length, prompt), []
    for batch in range(batches):
        engine.swap(0, from_state_dict(old.state_dict()), delta=False)
        for request in requests[batch * at_once : (batch + 1) * at_once]:
            engine.submit(request)
        for _ in range(steps_before):
            assert engine.step() == []
        engine.swap(1, from_state_dict(new.state_dict()), delta=False)
        while engine.busy:
            answers += engine.step()
    patterns = {(0, 1, 1, 1)} if steps_before == 1 else {(0, 0, 1, 1)}
    if speculate == "always":
        assert 0 < engine.counters.accepted < engine.counters.drafted
        # Where the draft held, the step before the swap decided two tokens.
        patterns |= {(0, 0, 0, 1)} if steps_before == 2 else set()
    assert {tuple(answer.versions.tolist()) for answer in answers} == patterns
    sequences = np.stack(np.meshgrid(*[np.arange(vocab)] * length, indexing="ij"), -1).reshape(-1, length)
    for versions in patterns:
        kind = [answer for answer in answers if tuple(answer.versions.tolist()) == versions]
        numbers = np.stack([answer.tokens for answer in kind]) @ vocab ** np.arange(length)[::-1]
        logprobs = decided_by(models, versions, prompt, sequences)
        np.testing.assert_allclose(np.stack([answer.logprobs for answer in kind]), logprobs[numbers], atol=1e-4, rtol=0)
        # Whether a draft held, and so the kind, depends on the tokens before the swap: these are taken as given.
        given = 0 if steps_before == 1 else 2
        chi_square, degrees = off_by(numbers, logprobs, given)
        assert degrees > 30
        assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
        chi_square, degrees = off_by(numbers, decided_by(models, (0,) * length, prompt, sequences), given)
        assert chi_square > 10 * degrees, "the old weights would have given something else"


def off_by(numbers, logprobs, given):
    """Chi-square of sequences against their probabilities after the first `given` tokens, and what to expect of it."""
    observed = np.bincount(numbers, minlength=len(logprobs))
    share = np.exp(logprobs[:, given:].sum(1))
    begun = observed.reshape(round(len(observed) ** (given / logprobs.shape[1])), -1).sum(1)
    expected = np.repeat(begun, len(share) // len(begun)) * share
    common = expected >= 5
    return float(((observed - expected)[common] ** 2 / expected[common]).sum()), float((1 - share)[common].sum())


def test_speculation_counts_and_saves_steps_when_drafts_are_good():
    """With next to no weights the draft and the main head agree, so nearly all drafts hold."""
    flat = tiny_model(initializer_range=0.001)
    engine = engine_of(flat, speculate="always")
    answers = run(engine, requests_of(8, 40))
    assert engine.counters.accepted == sum(a.usage.accepted for a in answers) > 0.9 * engine.counters.drafted
    assert engine.counters.decode_steps < 8 + 40 * 0.6


def test_a_model_without_mtp_layer_refuses_to_speculate():
    plain = tiny_model(num_nextn_predict_layers=0)
    with pytest.raises(EngineError, match="MTP"):
        engine_of(plain, speculate="always")
    assert len(run(engine_of(plain, speculate="never"), requests_of(3))) == 3


def test_a_context_beyond_the_model_is_refused():
    with pytest.raises(EngineError, match="128 positions"):
        engine_of(context=512)


def test_a_dense_model_has_no_experts():
    dense = tiny_model(first_k_dense_replace=3)
    (answer,) = run(engine_of(dense, speculate="never"), requests_of(1))
    assert answer.experts is None


def test_weights_out_of_order_fail_their_requests_and_leave_nothing_behind():
    model = tiny_model()
    good = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_of(model, speculate="always")
    (before,) = run(engine, requests_of(1))
    with torch.no_grad():
        model.layers[0].mlp.down_proj.weight.fill_(float("nan"))
    engine._scheduler.swapped(0)
    failures = run(engine, requests_of(8))
    assert all(isinstance(failure, Refusal) and "not finite" in str(failure.error) for failure in failures)
    model.load_state_dict(good)
    engine._scheduler.swapped(0)
    (after, *_) = run(engine, requests_of(8))
    np.testing.assert_array_equal(before.tokens, after.tokens)
    assert engine._scheduler.running == 0


def test_the_cost_of_a_step_follows_the_live_rows():
    engine = engine_of(speculate="never")
    fed = []
    extend = engine._model.extend
    engine._model.extend = lambda tokens, step, read: fed.append(len(read)) or extend(tokens, step, read)
    requests = [GenerateRequest(f"r{i}", np.array([1], np.int32), Sampling(4 * (i + 1), ())) for i in range(8)]
    run(engine, requests)
    assert fed == [8 - step // 4 for step in range(32)]
