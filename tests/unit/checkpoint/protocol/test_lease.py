"""The lease, in virtual time: whatever hiccups the storage has, a run pauses before another may take its job over."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from dataclasses import dataclass, replace
from functools import partial

import pytest

from dagster_ckpt.checkpoint.control.epochs import Claim, Epochs
from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.lease import Lease
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.clock import iso
from dagster_ckpt.errors import StorageError
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.virtual_time import VirtualTime

LEASES = [Lease(), Lease(1, 5), Lease(0.5, 3), Lease(10, 50)]
#: The guard of the query looks so often within a lease; that of a run looks every tenth of a second.
LOOKS = 50
#: Worlds of each test.
SEEDS = int(os.environ.get("DAGSTER_CKPT_TEST_SEEDS", "4"))
_VIEWS = itertools.count()


class Hiccups(MemoryFileSystem):
    """A storage as one process sees it: requests arrive late, are carried out, and are answered late, or refused."""

    def __init__(
        self, shared: MemoryFileSystem, time: VirtualTime, chance: random.Random, longest: float, outage: float
    ) -> None:
        super().__init__()
        self.files = shared.files
        self._time = time
        self._chance = chance
        self._longest = longest
        self._outage = outage
        self._away = (0.0, 0.0)
        self.asked = 0.0
        self._url = f"view-{next(_VIEWS)}"

    @property
    def url(self) -> str:
        """Of its own: what a process has seen, and for how long, is remembered by the URL."""
        return self._url

    def read(self, path: str) -> bytes:
        if path.endswith("/heartbeat"):
            self.asked = self._time.now
        self._delay()
        found = super().read(path)
        self._delay()
        return found

    def replace(self, path: str, data: bytes) -> None:
        self._delay()
        super().replace(path, data)
        self._delay()

    def _delay(self) -> None:
        now = self._time.now
        if self._outage and now > self._away[1] and self._chance.random() < 0.03:
            self._away = (now, now + self._chance.uniform(0, self._outage))
        if self._away[0] <= now < self._away[1]:
            if self._chance.random() < 0.2:
                raise StorageError("the storage is away")
            self._time.sleep(self._away[1] - now)
        hiccups = self._chance.random() < 0.15
        self._time.sleep(self._chance.uniform(0, self._longest if hiccups else 0.02))


@dataclass
class Writer:
    """A run with its query, which commits as long as it is not paused."""

    heart: Heart
    time: VirtualTime
    commits: list[float]
    pauses: int = 0
    stops_at: float = float("inf")

    @property
    def look(self) -> float:
        return min(self.heart.lease.timeout / LOOKS, self.heart.lease.interval / 2)

    def beat(self) -> None:
        """As the heart's own thread does, in virtual time."""
        number = 0
        under_way: list[list[bool]] = []
        while self.time.now < self.stops_at:
            under_way = [done for done in under_way if not done]
            if len(under_way) < self.heart.lease.at_once:
                number += 1
                done: list[bool] = []
                under_way.append(done)
                self.time.spawn(partial(self._one, number, done))
                asked = self.time.now
                while not done and self.time.now - asked < self.heart.lease.patience:
                    self.time.sleep(self.look)
            self.time.sleep(self.heart.lease.interval)

    def _one(self, number: int, done: list[bool]) -> None:
        try:
            self.heart._make(number)
        except StorageError:
            pass
        finally:
            done.append(True)

    def commit(self) -> None:
        while self.time.now < self.stops_at:
            if self.heart.left > 0:
                self.commits.append(self.time.now)
            else:
                self.pauses += 1
            self.time.sleep(self.look)


@dataclass
class World:
    time: VirtualTime
    chance: random.Random
    storage: MemoryFileSystem
    job: str

    @classmethod
    def of(cls, seed: int) -> World:
        return cls(VirtualTime(), random.Random(seed), MemoryFileSystem(), f"leased-{seed}-{random.random()}")

    def view(self, longest: float, outage: float = 0.0) -> Hiccups:
        return Hiccups(self.storage, self.time, self.chance, longest, outage)

    def writer(
        self, lease: Lease, longest: float, outage: float = 0.0, *, here: bool = False, epoch: int = 1
    ) -> Writer:
        file = HeartbeatFile(self.view(longest, outage), self.job)
        heart = Heart(file, self.time, epoch=epoch, run_id=f"run-{epoch}", lease=lease)
        me = ProcessIdentity.current() if here else ProcessIdentity("elsewhere/1", 1, 1.0)
        heart._beat = replace(heart._beat, processes=(me,))
        writer = Writer(heart, self.time, [])
        self.time.spawn(writer.beat)
        self.time.spawn(writer.commit)
        return writer

    def standby(self, longest: float, taken: list[float]) -> None:
        """Watch until the holder is dead; says when it has asked for what shows that."""
        view = self.view(longest)
        file = HeartbeatFile(view, self.job)
        self.time.sleep(self.chance.uniform(0, 10))
        while not taken:
            try:
                heartbeat, dead = file.watched(self.time, self.time.sleep)
            except StorageError:
                continue
            if heartbeat is not None and dead is not None:
                taken.append(view.asked)
            self.time.sleep(0.5)

    def sensor(self, longest: float, taken: list[float]) -> None:
        """Look again and again until the holder is dead; says when it has asked for what shows that."""
        view, pause = self.view(longest), self.chance.uniform(0.2, 12)
        file = HeartbeatFile(view, self.job)
        claim = Claim(1, "token", 1, "run-1", "elsewhere", 1, iso(self.time.time()))
        while not taken:
            try:
                dead, _ = file.judged(claim, None, self.time)
            except StorageError:
                dead = None
            if dead is not None:
                taken.append(view.asked)
            self.time.sleep(pause)

    def followed(self, longest: float, taken: list[float], told: list[str]) -> None:
        """A sensor that tells of silence, and the run that it launches, which is another process and believes that."""
        view, pause = self.view(longest), self.chance.uniform(0.2, 1) * Lease(1, 5).interval
        file = HeartbeatFile(view, self.job)
        epochs = Epochs(self.storage, self.job)
        claim = epochs.claim(token="token", series=None, run_id="run-1", host="elsewhere", pid=1, now="2026-01-01")
        while not taken:
            self.time.sleep(pause)
            try:
                dead, _ = file.judged(claim, None, self.time)
            except StorageError:
                continue
            if dead is None:
                continue
            file.tell_silent(self.time)
            self.time.sleep(self.chance.choice([0, 1, 5, 30]) * self.chance.random())
            seen_by_run = self.view(longest)
            run = HeartbeatFile(seen_by_run, self.job)
            run.url += f" as process {len(told)} of {id(taken)} sees it"  # what the sensor has seen, it has not
            with contextlib.suppress(StorageError):
                heartbeat, dead = run.watched(self.time, self.time.sleep)
                if heartbeat is not None and dead is not None:
                    taken.append(seen_by_run.asked)
                    told.append(dead)


@pytest.mark.parametrize("lease", [*LEASES, Lease(2, 3600), Lease(1200, 3600)], ids=str)
def test_nobody_waits_for_a_beat_that_hangs_longer_than_a_few_seconds(lease: Lease) -> None:
    """Whoever starts, holds or stops a heart waits for a beat; and the next beat is tried then."""
    assert lease.patience <= 5
    assert lease.settled <= lease.interval + 5
    assert lease.at_once * (lease.interval + lease.patience) >= lease.timeout, "there is a next beat all the time"
    assert (Lease().patience, Lease().settled, Lease().at_once) == (5, 7, 6)


@pytest.mark.parametrize("here", [False, True], ids=["of another host", "of this host"])
@pytest.mark.parametrize("lease", LEASES, ids=str)
def test_nobody_takes_over_before_the_run_has_paused(lease: Lease, *, here: bool) -> None:
    overtaken = 0
    for seed in range(10):
        world, taken = World.of(seed), list[float]()
        longest = lease.timeout * world.chance.choice([0.1, 0.5, 1])
        writer = world.writer(lease, longest, 3 * lease.timeout, here=here)
        reader = world.standby if seed % 2 else world.sensor
        world.time.spawn(partial(reader, longest, taken))
        world.time.pass_by(12 * lease.timeout + 60)
        if taken:
            overtaken += 1
            # While the answer is on its way the run may go on, until it sees the newer epoch: the epochs are for that.
            just_before = [moment for moment in writer.commits if taken[0] - lease.grace < moment <= taken[0]]
            assert not just_before, f"seed {seed}: it was overtaken while its query was not paused"
    assert overtaken, "no outage was long enough"


@pytest.mark.parametrize("here", [False, True], ids=["of another host", "of this host"])
@pytest.mark.parametrize("lease", LEASES, ids=str)
def test_nobody_is_believed_to_be_silent_before_the_run_has_paused(lease: Lease, *, here: bool) -> None:
    """The run that the sensor launches waits for no lease of its own where the sensor has told of one."""
    told: list[str] = []
    for seed in range(SEEDS):
        world, taken = World.of(seed), list[float]()
        longest = lease.timeout * world.chance.choice([0.02, 0.1, 0.5])
        writer = world.writer(lease, longest, 3 * lease.timeout, here=here)
        world.time.spawn(partial(world.followed, longest / 10, taken, told))
        world.time.pass_by(12 * lease.timeout + 60)
        if taken:
            just_before = [moment for moment in writer.commits if taken[0] - lease.grace < moment <= taken[0]]
            assert not just_before, f"seed {seed}: it was overtaken while its query was not paused"
    assert any("another process" in reason for reason in told), "no silence was told and believed"


@pytest.mark.parametrize("lease", [*LEASES, Lease(10, 600)], ids=str)
def test_hiccups_of_half_a_lease_cost_nothing(lease: Lease) -> None:
    for seed in range(6):
        world, taken = World.of(seed), list[float]()
        # A beat asks twice; each hiccup comes before or after it is carried out.
        longest = (lease.own - lease.interval - lease.patience) / 4
        writer = world.writer(lease, longest)
        world.time.spawn(partial(world.standby, longest, taken))
        world.time.spawn(partial(world.sensor, longest, taken))
        world.time.pass_by(10 * lease.timeout)
        assert (taken, writer.pauses) == ([], 0), f"seed {seed}"


@pytest.mark.parametrize("lease", LEASES, ids=str)
def test_a_run_that_died_elsewhere_is_overtaken_soon_after_its_own_lease(lease: Lease) -> None:
    world, taken = World.of(1), list[float]()
    writer = world.writer(lease, 0.02)
    writer.stops_at = world.time.now + 20 + world.chance.uniform(0, lease.interval)
    world.time.spawn(lambda: world.standby(0.02, taken))
    world.time.pass_by(20 + 3 * lease.timeout)
    assert taken
    assert lease.timeout - lease.interval <= taken[0] - writer.stops_at <= lease.timeout + lease.interval + 1


def test_a_run_that_finds_a_newer_one_never_goes_on() -> None:
    world = World.of(3)
    older = world.writer(Lease(1, 5), 0.02)

    def overtake() -> None:
        world.time.sleep(8)
        world.writer(Lease(), 0.02, epoch=2)

    world.time.spawn(overtake)
    world.time.pass_by(60)
    assert older.heart.is_fenced
    assert max(older.commits) < 1000 + 8 + 2, "it has paused within two intervals"
