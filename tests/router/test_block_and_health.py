import pytest

from specmesh.router.arms import ArmStats
from specmesh.router.block import ArrivingBlock, DraftWork, MalformedAnswer
from specmesh.router.health import Cooldown, ReplicaHealth
from specmesh.router.timing import Stopwatch, split_time
from specmesh.runtime.types import ArmState, VerifyTiming

ROW = b"r"


def test_a_block_can_be_cut_at_any_moment() -> None:
    block = ArrivingBlock(7, 4)
    assert block.cut().token_ids == ()
    block.add(0, [1], [ROW])
    block.add(1, [2, 3], [ROW, ROW])
    assert (block.cut().position, block.cut().token_ids, block.cut().rows) == (7, (1, 2, 3), (ROW,) * 3)


@pytest.mark.parametrize(
    ("offset", "token_ids", "rows"),
    [(0, [2], [ROW]), (2, [2], [ROW]), (1, [], []), (1, [2, 3, 4], [ROW] * 3), (1, [2], []), (1, [2, 3], [ROW])],
)
def test_a_malformed_piece_leaves_what_came_before(offset: int, token_ids: list[int], rows: list[bytes]) -> None:
    block = ArrivingBlock(7, 3)
    block.add(0, [1], [ROW])
    with pytest.raises(MalformedAnswer):
        block.add(offset, token_ids, rows)
    assert block.cut().token_ids == (1,)


def health() -> ReplicaHealth:
    replica = ReplicaHealth(Cooldown(first=1.0, longest=8.0, late_blocks=3))
    replica.recover()
    return replica


def test_pauses_double_up_to_the_longest_and_start_over_after_a_block_in_time() -> None:
    replica, pauses = health(), []
    for _ in range(6):
        replica.fail(100.0, "nothing came")
        pauses.append(replica.retry_at - 100.0)
        replica.probe()
        replica.recover()
    assert pauses == [1, 2, 4, 8, 8, 8]
    replica.on_time()
    replica.fail(100.0, "nothing came")
    assert replica.retry_at == 101.0


def test_failures_of_many_sessions_at_once_are_one_failure() -> None:
    replica = health()
    for _ in range(100):
        replica.fail(50.0, "nothing came")
    assert (replica.state, replica.retry_at) == (ArmState.COOLING, 51.0)


def test_only_late_blocks_in_a_row_are_a_failure() -> None:
    replica = health()
    for _ in range(5):
        replica.late(1.0)
        replica.late(1.0)
        replica.on_time()
    assert replica.ready
    for _ in range(3):
        replica.late(1.0)
    assert replica.state is ArmState.COOLING


def test_quarantine_and_incompatibility_are_not_cooled_away() -> None:
    replica = health()
    replica.quarantine(1.0, "lied")
    replica.fail(1.0, "nothing came")
    replica.disconnected(1.0, "gone")
    assert replica.state is ArmState.QUARANTINED
    other = health()
    other.incompatible(1.0, "another tokenizer")
    other.disconnected(1.0, "gone")
    assert (other.state, other.reason, other.retry_at) == (ArmState.INCOMPATIBLE, "another tokenizer", 9.0)


def test_a_replica_that_drained_away_is_tried_again() -> None:
    replica = health()
    replica.drain()
    assert replica.state is ArmState.DRAINING
    replica.disconnected(1.0, "gone")
    assert replica.state is ArmState.COOLING


def test_parts_of_a_step_add_up_whatever_the_peers_say() -> None:
    for timing in (VerifyTiming(), VerifyTiming(10, 50, 20, 90), VerifyTiming(10**9, 10**9, 10**9, 10**9)):
        for work in (DraftWork(), DraftWork(5, 20, 2), DraftWork(10**9, 10**9, 1)):
            spent = split_time(total=1000, draft_wait=300, work=work, round_trip=500, timing=timing)
            parts = (spent.draft, spent.network, spent.queue, spent.forward, spent.verify, spent.router)
            assert sum(parts) == spent.total == 1000
            assert min(parts) >= 0
    spent = split_time(
        total=1000, draft_wait=300, work=DraftWork(5, 20, 2), round_trip=500, timing=VerifyTiming(10, 50, 20, 90)
    )
    assert (spent.draft, spent.network, spent.queue, spent.forward, spent.verify, spent.router) == (
        25, 275 + 410, 20, 50, 20, 200,
    )  # fmt: skip


def test_the_stopwatch_measures_the_step_and_its_round_trip() -> None:
    ticks = iter([0, 300, 800, 1000])
    watch = Stopwatch(lambda: next(ticks))
    with watch.round_trip:
        pass
    spent = watch.split(200, DraftWork(0, 150, 1), VerifyTiming(0, 400, 50, 450))
    assert (spent.total, spent.draft, spent.network, spent.forward, spent.router) == (1000, 150, 100, 400, 300)
    assert spent.seconds().total == 1e-6


def test_the_time_to_expect_follows_the_length() -> None:
    stats = ArmStats()
    assert stats.expected_seconds(4) is None
    for _ in range(30):
        stats.record_time(0.010, 4)
    assert stats.expected_seconds(4) == pytest.approx(0.010)
    assert stats.expected_seconds(8) == pytest.approx(0.020)
    assert stats.expected_seconds(1) == pytest.approx(0.010)
    assert stats.median_seconds == 0.010


def test_acceptance_and_share_are_of_lately() -> None:
    stats = ArmStats()
    for second in range(600):
        stats.record_step(0, 4, float(second))
    for second in range(600, 1200):
        stats.record_step(3, 4, float(second))
    assert stats.acceptance == pytest.approx(0.75, abs=0.01)
    assert stats.steps_lately(1199.0) == 60
    assert stats.steps_lately(5000.0) == 0
