import pytest

from specmesh.router.arms import ArmStats
from specmesh.router.block import ArrivingBlock, DraftWork, MalformedAnswer
from specmesh.router.health import Cooldown, ReplicaHealth
from specmesh.router.presence import Presence
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
    replica = ReplicaHealth(Cooldown(first=1.0, longest=8.0, reconnect=2.0, late_blocks=3))
    replica.recover(0.0)
    return replica


def test_pauses_double_up_to_the_longest_and_start_over_after_a_block_in_time() -> None:
    replica, pauses = health(), []
    for _ in range(6):
        replica.fail(100.0, "nothing came")
        pauses.append(replica.retry_at - 100.0)
        replica.probe()
        replica.recover(100.0)
    assert pauses == [1, 2, 4, 8, 8, 8]
    replica.on_time()
    replica.fail(100.0, "nothing came")
    assert replica.retry_at == 101.0


def test_failures_of_many_sessions_at_once_are_one_failure() -> None:
    replica = health()
    for _ in range(100):
        replica.fail(50.0, "nothing came")
    assert (replica.state, replica.retry_at) == (ArmState.COOLING, 51.0)


def test_one_silent_block_is_a_probe_and_two_in_a_row_are_a_failure() -> None:
    """A busy machine is not a broken draft; a draft that answers probes only is one (C23)."""
    replica = health()
    for asked in (1.0, 2.0, 3.0):
        replica.silent(4.0, asked)
    assert (replica.state, replica.reason) == (ArmState.PROBING, "nothing arrived by the deadline")
    replica.recover(5.0)
    replica.silent(5.1, 4.9)
    assert replica.ready, "asked for before the probe that went well"
    replica.on_time()
    replica.silent(7.0, 6.0)
    assert replica.state is ArmState.PROBING
    replica.recover(8.0)
    replica.silent(10.0, 9.0)
    assert (replica.state, replica.retry_at) == (ArmState.COOLING, 11.0)


def test_a_process_that_was_away_for_long_is_found_soon_and_starts_with_a_clean_record() -> None:
    """C23: back soon after it is well, however long that took and whatever it did before."""
    replica, pauses = health(), []
    for _ in range(5):
        replica.fail(0.0, "the probe was not answered in time")
        replica.probe()
    replica.fail(0.0, "the probe was not answered in time")
    assert replica.retry_at == 8.0
    for _ in range(20):
        replica.disconnected(100.0, "gone")
        pauses.append(replica.retry_at - 100.0)
        replica.probe()
    assert pauses == [1.0, *[2.0] * 19]
    replica.introduced()
    assert replica.num_failures == 0
    replica.recover(200.0)
    replica.disconnected(200.0, "gone")
    assert replica.retry_at == 202.0, "one that dies whenever it has been reached is not tried more often"


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


def test_the_log_tells_each_change_of_a_replica_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    presence = Presence("draft", pool="prose", address="h:1")
    for happens in ("out", "out", "ready", "ready", "out", "out", "ready"):
        if happens == "out":
            presence.out("connection lost: UNAVAILABLE")
        else:
            presence.ready()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("INFO", "draft not there yet"), ("INFO", "draft ready"), ("WARNING", "draft lost"), ("INFO", "draft ready"),
    ]  # fmt: skip
    assert vars(caplog.records[2])["reason"] == "connection lost: UNAVAILABLE"
    assert {vars(record)["pool"] for record in caplog.records} == {"prose"}


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
