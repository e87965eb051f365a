"""Hosts with home links on one machine: a network namespace each, and the internet between them in user space.

Every host has one TUN device. The kernel's token bucket (tc tbf) on it is the uplink's rate; the other ends of all TUN
devices are held by one router process, which hands each packet to its destination after the delay. TCP runs unmodified
through both, so hosts feel the rate, the queue and the round trip. Not here: what runs on the hosts.
Invariants: everything lives in an unshared mount, network and process sandbox whose first process has a time limit;
when it goes, however it goes, the kernel ends every process, namespace, device and qdisc in it. The burst is two
frames, so that small messages are not free. All hosts get the same settings of TCP.
Source: netem is not in every kernel, and tbf alone has no constant delay; hence the router.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

INSIDE = "LIQUID_WAN_SANDBOX"  # environment variable inside the sandbox: a folder for what a bench writes
NETNS_DIR = Path("/var/run/netns")
MTU = 1500
BURST_BYTES = 2 * MTU
QUEUE_MS = 200  # drop-tail buffer of an uplink; at 50 ms each way twice the bandwidth-delay product
CONGESTION_CONTROL = "cubic"  # Linux' default, whatever this machine's is
SYSCTLS = ("net.ipv4.tcp_slow_start_after_idle=0",)  # the default of 1 costs dense boundaries a third at 50 ms
STOP_S = 5.0
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
CLONE_NEWNET = 0x40000000  # linux/sched.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class CannotShape(Exception):
    """This machine does not let us make the hosts."""


def enter(time_limit_s: float) -> int | None:
    """None inside the sandbox; outside, run this program again inside and return its exit code."""
    if os.environ.get(INSIDE):
        return None
    probe = ["unshare", "-mnpf", "--mount-proc", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=30.0, check=False)
    except FileNotFoundError:
        raise CannotShape("the program unshare (util-linux) is missing") from None
    if done.returncode:
        raise CannotShape(f"namespaces cannot be made here: {done.stderr.strip()}")
    command = ["unshare", "-mnpf", "--kill-child=KILL", "--mount-proc"]
    command += ["timeout", "-k", "5", str(time_limit_s), sys.executable, *sys.argv]
    with tempfile.TemporaryDirectory(prefix="liquid-wan-") as folder:  # goes even when the sandbox is killed
        # unshare blocks TERM and INT while it waits: they become KILL here, and its death ends the whole sandbox.
        child = subprocess.Popen(command, env={**os.environ, INSIDE: folder}, preexec_fn=_die_with_parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: child.kill())
        code = child.wait()
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _sh(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30.0, check=False)
    except FileNotFoundError:
        raise CannotShape(f"the program {command[0]} (iproute2) is missing") from None
    if done.returncode:
        raise CannotShape(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def address(host: int) -> str:
    """A host's IPv4 address."""
    return f"10.77.{host}.2"


@dataclass
class Internet:
    """``num_hosts`` hosts; the first ``num_shaped`` have an uplink of ``rate_bits_per_s``, the others no limit."""

    program: list[str]  # starts the router: the descriptors of the TUN devices are appended
    num_hosts: int
    num_shaped: int
    rate_bits_per_s: float
    children: list[subprocess.Popen[str]] = field(default_factory=list)
    _router: subprocess.Popen[str] | None = None

    def __enter__(self) -> Internet:
        NETNS_DIR.mkdir(parents=True, exist_ok=True)
        _sh("mount", "-t", "tmpfs", "tmpfs", str(NETNS_DIR))  # private: hides other namespaces, cannot touch them
        _sh("ip", "link", "set", "lo", "up")
        devices = [self._make_host(host) for host in range(self.num_hosts)]
        command = [*self.program, *map(str, devices)]
        self._router = subprocess.Popen(
            command, pass_fds=devices, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for device in devices:
            os.close(device)
        self._ask({"delay_ms": 0.0})
        return self

    def _make_host(self, host: int) -> int:
        name = f"s{host}"
        _sh("ip", "netns", "add", name)
        device = _tun_in(name)
        inside = ("ip", "-n", name)
        _sh(*inside, "link", "set", "lo", "up")
        _sh(*inside, "link", "set", "eth0", "mtu", str(MTU), "up")
        _sh(*inside, "addr", "add", f"{address(host)}/32", "dev", "eth0")
        # By route: a namespace may not choose congestion control by sysctl.
        _sh(*inside, "route", "add", "10.77.0.0/16", "dev", "eth0", "congctl", CONGESTION_CONTROL)
        for setting in SYSCTLS:
            _sh("ip", "netns", "exec", name, "sysctl", "-qw", setting)
        if host < self.num_shaped:
            rate, queue = f"{self.rate_bits_per_s:.0f}bit", f"{QUEUE_MS}ms"
            shape = ("rate", rate, "burst", str(BURST_BYTES), "latency", queue)
            _sh("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *shape)
        return device

    def _ask(self, question: dict[str, float]) -> dict[str, float]:
        router = self._router
        assert router is not None
        assert router.stdin is not None
        assert router.stdout is not None
        router.stdin.write(json.dumps(question) + "\n")
        router.stdin.flush()
        if not select.select([router.stdout], [], [], STOP_S)[0]:
            raise CannotShape("the router does not answer")
        answer: dict[str, float] = json.loads(router.stdout.readline())
        return answer

    def set_delay(self, delay_ms: float) -> dict[str, float]:
        """Change the one-way delay; returns the router's counts since the last change."""
        return self._ask({"delay_ms": delay_ms})

    def start(self, host: int, command: list[str], log: IO[str]) -> subprocess.Popen[str]:
        """Start a program on a host; its standard output is piped, its errors go to ``log``."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        child = subprocess.Popen(
            ["ip", "netns", "exec", f"s{host}", *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        self.children.append(child)
        return child

    def stop(self) -> None:
        """End the programs on all hosts, and wait for them."""
        for child in self.children:
            if child.poll() is None:
                child.terminate()
        deadline_s = time.monotonic() + STOP_S
        for child in self.children:
            try:
                child.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.children.clear()

    def sent(self) -> list[dict[str, int]]:
        """Bytes, packets and drops of the shaped uplinks so far."""
        found = []
        for host in range(self.num_shaped):
            shown = json.loads(_sh("tc", "-n", f"s{host}", "-s", "-j", "qdisc", "show", "dev", "eth0"))[0]
            found.append({key: int(shown.get(key, 0)) for key in ("bytes", "packets", "drops")})
        return found

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._router is not None:
            self._router.kill()
            self._router.wait()


def _tun_in(namespace: str) -> int:
    """Make the host's TUN device inside its namespace; the descriptor is this side of it."""
    libc, home = ctypes.CDLL(None, use_errno=True), os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(NETNS_DIR / namespace, os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise CannotShape(f"setns: {os.strerror(ctypes.get_errno())}")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", b"eth0", IFF_TUN | IFF_NO_PI))
    except OSError as error:
        raise CannotShape(f"/dev/net/tun: {error}") from None
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(there)
        os.close(home)
    return device


def cpu_seconds() -> float:
    """Processor time of all processes that now live in the sandbox."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_busy_s() -> float:
    """Processor time that anything on this machine has used, all cores together."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


# --- the router's program


@dataclass
class _Router:
    devices: list[int]
    delay_s: float = 0.0
    packets: int = 0
    lost: int = 0
    worst_late_s: float = 0.0
    queue: deque[tuple[float, int, bytes]] = field(default_factory=deque)  # one delay for all: it stays in order

    def take(self, device: int) -> None:
        """Read what a host has sent."""
        for _ in range(64):
            try:
                packet = os.read(device, MTU)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4 and packet[18] < len(self.devices):  # IPv4 to 10.77.HOST.2
                self.queue.append((time.monotonic() + self.delay_s, packet[18], packet))

    def hand_out(self) -> float:
        """Deliver what is due; returns the seconds until more is, or a second."""
        while self.queue:
            due_s, host, packet = self.queue[0]
            late_s = time.monotonic() - due_s
            if late_s < 0:
                return -late_s
            self.queue.popleft()
            self.packets += 1
            self.worst_late_s = max(self.worst_late_s, late_s)
            try:
                os.write(self.devices[host], packet)
            except OSError:
                self.lost += 1
        return 1.0

    def answer(self, line: str) -> None:
        """Set the delay, report and forget the counts."""
        counts = {"packets": self.packets, "lost": self.lost, "worst_late_ms": 1e3 * self.worst_late_s}
        self.delay_s = json.loads(line)["delay_ms"] / 1e3
        self.packets, self.lost, self.worst_late_s = 0, 0, 0.0
        print(json.dumps(counts), flush=True)


def route(devices: list[int]) -> None:
    """Hand packets from host to host until standard input closes."""
    router, poll = _Router(devices), select.epoll()
    for descriptor in (*devices, sys.stdin.fileno()):
        poll.register(descriptor, select.EPOLLIN)
    with contextlib.suppress(OSError):  # where it is not allowed, the lateness is reported anyhow
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))  # keeps lateness low beside busy programs
    gc.disable()  # makes no cycles, and a collection would hold packets up
    wait_s = 1.0
    while True:
        for descriptor, _ in poll.poll(wait_s):
            if descriptor in devices:
                router.take(descriptor)
                continue
            line = sys.stdin.readline()
            if not line:
                return
            router.answer(line)
        wait_s = router.hand_out()
