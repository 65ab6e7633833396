"""Hosts of one machine: a network namespace each, made with iproute2, and one cable between all.

Each host has the kernel's own TCP and a network card of its own (TAP). The cable is a thread of
this process that takes every frame from one card and gives it to another; so it can cut, delay,
lose and reorder packets by pair and by direction, on any kernel that has TUN. (The kernel's own way
is the netem of `tc`; not every kernel has it, and those of small virtual machines often have not.)

Addresses of neighbours are written down beforehand: a cut is silent, as that of a network is, and
not "no route to host".
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, permutations
from pathlib import Path

from agentstate.cli.output import CommandFailure

PREFIX = "agentstate-networks"
NETWORK = "10.77.0"
CARD = "cable"
FRAME_BYTES = 65_536
LONGEST_SLEEP_SECONDS = 0.05
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_MANY = 1  # of a frame's first octet: for all who are there


@dataclass(frozen=True, slots=True)
class Way:
    """What happens to a frame from one host to another. lost: the share of them."""

    cut: bool = False
    lost: float = 0.0
    delay_seconds: float = 0.0
    spread_seconds: float = 0.0


CLEAR = Way()


@dataclass(slots=True)
class Counts:
    """Of all frames so far."""

    passed: int = 0
    kept_back: int = 0  # cut off or lost
    delayed: int = 0


class Hosts:
    """Use it as a context manager: at its end no namespace is left. Raises CommandFailure with what
    is missing here."""

    def __init__(self, names: Sequence[str], *, seed: str) -> None:
        self.names = list(names)
        self.ways: dict[tuple[str, str], Way] = dict.fromkeys(permutations(names, 2), CLEAR)
        self.counts = Counts()
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, name="cable", daemon=True)
        self._cards: dict[str, int] = {}
        self._spaces: dict[str, int] = {}
        self._home = -1

    def __enter__(self) -> Hosts:
        check_what_is_needed()
        remove_left_over()
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name in self.names:
                self._make(name)
            for name, other in permutations(self.names, 2):
                ip("-n", space_of(name), "neigh", "replace", self.address(other), "lladdr",
                   self._mac(other), "nud", "permanent", "dev", CARD)  # fmt: skip
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        self._remove()

    def address(self, name: str) -> str:
        return f"{NETWORK}.{self.names.index(name) + 1}"

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """This thread is on that host: sockets that it opens, and processes that it starts."""
        os.setns(self._spaces[name], os.CLONE_NEWNET)
        try:
            yield
        finally:
            os.setns(self._home, os.CLONE_NEWNET)

    def between(self, one: str, other: str, way: Way, back: Way | None = None) -> None:
        """From now on frames go like this: to the other, and back."""
        self.ways[one, other] = way
        self.ways[other, one] = way if back is None else back

    # --- hosts ------------------------------------------------------------------------------------

    def _mac(self, name: str) -> str:
        return f"02:77:00:00:00:{self.names.index(name) + 1:02x}"

    def _make(self, name: str) -> None:
        space = space_of(name)
        ip("netns", "add", space)
        self._spaces[name] = os.open(f"/run/netns/{space}", os.O_RDONLY | os.O_CLOEXEC)
        with self.inside(name):
            card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._cards[name] = card
            fcntl.ioctl(
                card, _TUNSETIFF, struct.pack("16sH22x", CARD.encode(), _IFF_TAP | _IFF_NO_PI)
            )
        ip("-n", space, "link", "set", CARD, "address", self._mac(name))
        ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", CARD)
        for link in ("lo", CARD):
            ip("-n", space, "link", "set", link, "up")

    def _remove(self) -> None:
        for held in (*self._cards.values(), *self._spaces.values(), self._home):
            with contextlib.suppress(OSError):
                os.close(held)
        for name in self._spaces:
            with contextlib.suppress(CommandFailure):
                ip("netns", "delete", space_of(name))
        self._cards, self._spaces = {}, {}

    # --- the cable --------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        owners = {card: name for name, card in self._cards.items()}
        macs = {bytes.fromhex(self._mac(name).replace(":", "")): name for name in self.names}
        looked = select.poll()
        for card in owners:
            looked.register(card, select.POLLIN)
        due: list[tuple[float, int, int, bytes]] = []
        numbers = count()
        while not self._stop.is_set():
            sleep = LONGEST_SLEEP_SECONDS
            if due:
                sleep = min(sleep, max(0.0, due[0][0] - time.monotonic()))
            for card, _ in looked.poll(sleep * 1000):
                frame = read(card)
                name = owners[card]
                many = bool(frame) and bool(frame[0] & _MANY)
                for other in self.names if many else [macs.get(frame[:6], name)]:
                    if frame and other != name:
                        at = self._when(name, other)
                        if at is not None:
                            heapq.heappush(due, (at, next(numbers), self._cards[other], frame))
            now = time.monotonic()
            while due and due[0][0] <= now:
                write(heapq.heappop(due)[2:])

    def _when(self, name: str, other: str) -> float | None:
        """When a frame arrives, by the monotonic clock; None: never."""
        way = self.ways[name, other]
        if way.cut or (way.lost and self._random.random() < way.lost):
            self.counts.kept_back += 1
            return None
        self.counts.passed += 1
        if not way.delay_seconds:
            return 0.0
        self.counts.delayed += 1
        spread = self._random.uniform(-way.spread_seconds, way.spread_seconds)
        return time.monotonic() + max(0.0, way.delay_seconds + spread)


def read(card: int) -> bytes:
    try:
        return os.read(card, FRAME_BYTES)
    except BlockingIOError:
        return b""


def write(what: tuple[int, bytes]) -> None:
    with contextlib.suppress(OSError):  # the card's queue is full: a frame is lost, as on any cable
        os.write(*what)


# --- iproute2 -------------------------------------------------------------------------------------


def space_of(name: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{name}"


def ip(*arguments: str) -> str:
    """What `ip` says. Raises CommandFailure with its words."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CommandFailure(f"ip {' '.join(arguments)}: {said[0] if said else done.returncode}")
    return done.stdout


def check_what_is_needed() -> None:
    """Raises CommandFailure: who must run it, or what is not installed."""
    if os.geteuid() != 0:
        raise CommandFailure("network namespaces are made by root: run this as root", code=2)
    if shutil.which("ip") is None:
        raise CommandFailure("there is no `ip` here: apt-get install iproute2", code=2)
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise CommandFailure("there is no /dev/net/tun here: the kernel needs TUN", code=2)


def remove_left_over() -> None:
    """Namespaces of a run that was killed; those of one that still goes on stay."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        pid = name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if name.startswith(f"{PREFIX}-") and not Path(f"/proc/{pid}").exists():
            ip("netns", "delete", name)
