"""The samples of an epoch are used once each, however the world changes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from ringfold.torch.elastic.agreement import Claim, Standing, agree
from ringfold.torch.elastic.batches import Batches
from ringfold.torch.elastic.ledger import SampleLedger
from ringfold.torch.elastic.sampler import Sampler
from ringfold.torch.elastic.world import World
from torch.utils.data import BatchSampler, DataLoader


@pytest.mark.parametrize("seed", range(50))
def test_every_sample_is_used_once_per_epoch_over_random_worlds(seed: int) -> None:
    chance = random.Random(seed)
    length, size = chance.randint(1, 400), chance.randint(1, 16)
    ledgers = [SampleLedger(length, shuffle=chance.random() < 0.8, seed=seed)]
    used: Counter[int] = Counter()
    epochs = 0
    while epochs < 3:
        world = chance.randint(1, 6)
        # Newcomers continue with the state of a member; those that died are gone.
        while len(ledgers) < world:
            newcomer = SampleLedger(length)
            newcomer.load_state_dict(ledgers[0].state_dict())
            ledgers.append(newcomer)
        del ledgers[world:]
        assigned = ledgers[0].assign([size] * world)
        assert all(ledger.assign([size] * world) == assigned for ledger in ledgers)
        if chance.random() < 0.1:
            continue  # The step was not committed, and is made again.
        contributed = [chance.random() < 0.8 for _ in range(world)]
        contributed[chance.randrange(world)] = True
        epoch = ledgers[0].epoch
        for ledger in ledgers:
            ledger.commit(assigned, contributed)
        for samples, counts in zip(assigned, contributed, strict=True):
            used.update(samples if counts else ())
        assert max(used.values(), default=1) == 1
        if ledgers[0].epoch != epoch:
            assert used == Counter(range(length))
            used.clear()
            epochs += 1


def test_samples_of_a_replica_that_did_not_contribute_come_first() -> None:
    ledger = SampleLedger(10, shuffle=False)
    assigned = ledger.assign([2, 2, 2])
    assert assigned == [[0, 1], [2, 3], [4, 5]]
    ledger.commit(assigned, [True, False, True])
    assert ledger.assign([2, 3]) == [[2, 3], [6, 7, 8]]
    assert ledger.left == 6


def test_samples_that_are_given_back_later_belong_to_the_same_epoch() -> None:
    ledger = SampleLedger(6, shuffle=False)
    for _ in range(2):
        assigned = ledger.assign([2, 2])
        ledger.draw(assigned)
    assert assigned == [[4, 5], []]
    assert (ledger.left, ledger.epoch) == (0, 0)
    ledger.give_back([2, 3])
    ledger.end_epoch()
    assert (ledger.left, ledger.epoch) == (2, 0)
    assert ledger.assign([1, 2]) == [[2], [3]]
    ledger.draw([[2], [3]])
    ledger.end_epoch()
    assert (ledger.left, ledger.epoch) == (6, 1)


@pytest.mark.parametrize("seed", range(20))
def test_every_sample_is_used_once_if_losses_are_known_at_boundaries_only(seed: int) -> None:
    chance = random.Random(seed)
    length = chance.randint(1, 300)
    ledger, used, open_samples = SampleLedger(length, seed=seed), Counter[int](), [[] for _ in range(3)]
    epochs = 0
    while epochs < 3:
        assigned = ledger.assign([chance.randint(1, 8) for _ in range(3)])
        ledger.draw(assigned)
        for samples, more in zip(open_samples, assigned, strict=True):
            samples.extend(more)
        if ledger.left and chance.random() < 0.8:
            continue
        for samples in open_samples:
            if chance.random() < 0.2:
                ledger.give_back(samples)
            else:
                used.update(samples)
            samples.clear()
        ledger.end_epoch()
        assert max(used.values(), default=1) == 1
        if ledger.epoch > epochs:
            assert used == Counter(range(length))
            used.clear()
            epochs += 1


def test_the_order_depends_on_the_seed_and_the_epoch() -> None:
    orders = [SampleLedger(100, seed=seed).assign([100])[0] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    ledger = SampleLedger(100)
    ledger.commit(ledger.assign([100]), [True])
    assert ledger.epoch == 1
    assert ledger.assign([100])[0] != orders[0]


def test_datasets_of_other_lengths_are_refused() -> None:
    state = SampleLedger(10).state_dict()
    with pytest.raises(ValueError, match="the run uses one of 10 samples"):
        SampleLedger(11).load_state_dict(state)
    with pytest.raises(ValueError, match="at least 1"):
        SampleLedger(0)


@pytest.mark.parametrize("has_batch_sampler", [False, True])
def test_a_loader_with_a_batch_sampler_draws_the_samples_of_the_elastic_one(has_batch_sampler: bool) -> None:
    data = range(10)
    sampler = Sampler(data, cast(Any, None), shuffle=False, part=(0, 1))
    options: dict[str, Any] = {"batch_size": 3, "sampler": sampler}
    if has_batch_sampler:
        options = {"batch_sampler": BatchSampler(sampler, 3, drop_last=False)}
    batches = Batches(DataLoader(cast(Any, data), **options))
    assert batches.sampler is sampler and batches.size == 3
    # The second of two replicas.
    for mine in ([3, 4, 5], [9]):
        drawn = batches.next(World((1, 2), ("a", "b"), (3, 3), slot=1))
        assert drawn.batch.tolist() == mine and drawn.weight == len(mine)
        sampler.ledger.commit(drawn.assigned, [True, True])
    assert sampler.epoch == 1


def test_a_batch_sampler_that_drops_samples_is_refused() -> None:
    data = range(10)
    sampler = Sampler(data, cast(Any, None), part=(0, 1))
    loader = DataLoader(cast(Any, data), batch_sampler=BatchSampler(sampler, 3, drop_last=True))
    with pytest.raises(ValueError, match="drop_last=False"):
        Batches(loader)


def test_the_state_of_the_run_wins_over_newer_checkpoints() -> None:
    def claim(replica: int, standing: Standing, step: int, batch_size: int = 4) -> Claim:
        return Claim(replica, standing, step, 0, batch_size, 10)

    new, restored, member = Standing.NEW, Standing.RESTORED, Standing.MEMBER
    agreement = agree([claim(1, restored, 90), claim(2, member, 50), claim(3, member, 50), claim(4, new, 0)])
    assert (agreement.source, agreement.step) == (1, 50)
    assert agreement.behind == (True, False, False, True)
    # Checkpoints of one step may be of different runs.
    assert agree([claim(1, restored, 90), claim(2, restored, 90)]).behind == (False, True)
    with pytest.raises(ValueError, match="replica 1: step 5, batches of 0 samples"):
        agree([claim(1, member, 5), claim(2, member, 5, batch_size=0)])
