"""A replica that spans two hosts: two launchers, each in a network namespace of its own, that share
nothing but a wire. The tokens are those of one host, also when the other one dies meanwhile.

Network namespaces need root; without it the test is skipped, with exit status 77.
"""

import concurrent.futures
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

import pytest
from cluster import BIN, MODEL, SANITIZED, Cluster, children_of, wait_until

CLONE_NEWNET = 0x40000000
PIDFD_GETFD = 438
HEAD, OTHER = "10.77.0.1", "10.77.0.2"
PORT = 29500  # the namespace has nothing else
FLAGS = ["--tp", "2", "--kv-cache-memory", "64MiB", "--context-length", "1024"]
REQUESTS = [
    {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "logprobs": 2},
    {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0.8, "seed": 7, "logprobs": 1},
    {"prompt": "def fibonacci(n):\n" * 40, "max_tokens": 16, "temperature": 0, "logprobs": 0},
]


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


def enter(descriptor):
    """This thread, and what it starts from now on, lives in that network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def may_make_namespaces():
    name = f"flotilla-try-{os.getpid()}"
    if os.geteuid() != 0 or subprocess.run(["which", "ip"], capture_output=True).returncode != 0:
        return False
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        run("ip", "netns", "delete", name)
    return made


if not may_make_namespaces():
    pytest.exit("skipped: network namespaces need root", returncode=77)


class Joined:
    """`flotilla join` in the other namespace."""

    def __init__(self, namespace, secret, rank=1, flags=FLAGS):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, os.path.join(BIN, "flotilla"), "join", "--model", MODEL,
             "--head", f"{HEAD}:{PORT}", "--rank", str(rank), "--link-secret-file", secret, "--metrics-port",
             "0", *flags], stdout=subprocess.PIPE, stderr=self.log, text=True)

    def worker(self):
        """The worker's pid, once there is one."""
        pids = [pid for pid, name in children_of(self.process.pid).items() if name == "flotilla-worker"]
        return pids[0] if pids else None

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(60)
        self.process.stdout.close()
        return status

    def text(self):
        descriptor = self.log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Names of two namespaces with a wire between them, and a file with a secret."""
    names = [f"flotilla-{side}-{os.getpid()}" for side in ("head", "other")]
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_text("a secret of sixteen and more\n")
    secret.chmod(0o600)
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns",
            names[1])
        for name, address in zip(names, (HEAD, OTHER)):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
        with open(f"/run/netns/{names[0]}", "rb") as namespace:
            enter(namespace.fileno())
        yield *names, str(secret)
    finally:
        enter(back)
        os.close(back)
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def head(secret, address=HEAD, flags=FLAGS):
    return Cluster(*flags, "--remote-ranks", "1", "--join-address", f"{address}:{PORT}", "--link-secret-file", secret,
                   disturbed=True)


def answers(cluster):
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS)) as pool:
        bodies = list(pool.map(lambda body: cluster.complete(**body), REQUESTS))
    return [(body["choices"][0]["text"], body["choices"][0]["logprobs"]) for body in bodies]


@pytest.fixture(scope="module")
def expected(hosts):
    """What one host answers."""
    with Cluster(*FLAGS) as cluster:
        return answers(cluster)


def shared_kernel_objects(pid):
    """(device, inode) of what a process could share memory or bytes by: memfds, sockets, pipes."""
    found = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target, stat = os.readlink(entry), entry.stat()
        except OSError:
            continue  # closed meanwhile
        if target.startswith(("/memfd:", "socket:", "pipe:")):
            found.add((stat.st_dev, stat.st_ino))
    return found


def all_objects(root):
    pids = [root]
    for pid in pids:
        pids += children_of(pid)
    return set().union(*(shared_kernel_objects(pid) for pid in pids))


def test_tokens_are_those_of_one_host(hosts, expected):
    _, other, secret = hosts
    joined = Joined(other, secret)
    try:
        with head(secret) as cluster:
            assert joined.process.stdout.readline().startswith(f"ready rank=1 head={HEAD}:{PORT} metrics=")
            assert len(cluster.pids("worker")) == 1 and len(cluster.pids("rank-proxy")) == 1
            assert os.readlink(f"/proc/{joined.worker()}/ns/net") != os.readlink("/proc/thread-self/ns/net")
            ours, theirs = all_objects(cluster.process.pid), all_objects(joined.process.pid)
            assert len(ours) > 10 and len(theirs) > 5
            assert not ours & theirs, "the two hosts share descriptors"
            assert answers(cluster) == expected
            assert cluster.metric("flotilla_worker_plan_link_connected") == 1
            assert cluster.metric("flotilla_worker_plan_link_plans_total") > 24
            assert cluster.metric("flotilla_worker_plan_link_bytes_total") > 24 * 64
    finally:
        status = joined.stop()
    assert status == 0, joined.text()


def test_a_head_of_two_ranks_listens_everywhere(hosts, expected):
    _, other, secret = hosts
    flags = ["--tp", "3", *FLAGS[2:]]
    joined = Joined(other, secret, 2, flags)
    try:
        with head(secret, "0.0.0.0", flags) as cluster:
            assert answers(cluster) == expected
    finally:
        joined.stop()


@pytest.mark.skipif(SANITIZED, reason="recovery loads the model again, many times slower")
def test_the_other_host_dies_and_comes_back(hosts, expected):
    _, other, secret = hosts
    joined = Joined(other, secret)
    try:
        with head(secret) as cluster:
            assert answers(cluster) == expected
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                # Its worker alone: the launcher there starts it again.
                first = joined.worker()
                running = pool.submit(answers, cluster)
                os.kill(first, signal.SIGKILL)
                assert running.result() == expected
                assert wait_until(joined.worker, 60, "a new worker") != first
                # The whole host, without a word: another takes its place.
                running = pool.submit(answers, cluster)
                for pid in [*children_of(joined.process.pid), joined.process.pid]:
                    os.kill(pid, signal.SIGKILL)
                joined.stop()
                joined = Joined(other, secret)
                assert running.result() == expected
                assert cluster.metric("flotilla_worker_restarts_total") >= 2
    finally:
        joined.stop()


def break_connections(pid, address):
    """Shuts down the process's TCP connections with that host; returns how many."""
    broken = 0
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=libc.syscall(PIDFD_GETFD, process, int(entry.name), 0)) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and not copy.getsockopt(
                        socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and address in copy.getpeername()[0]:
                    copy.shutdown(socket.SHUT_RDWR)
                    broken += 1
        except (OSError, ValueError):
            pass  # closed meanwhile, or connected with nobody
    os.close(process)
    return broken


@pytest.mark.skipif(SANITIZED, reason="a recovery takes many times as long, and its time is what counts")
def test_a_connection_of_the_ranks_breaks_and_nobody_dies(hosts, expected):
    _, other, secret = hosts
    joined = Joined(other, secret)
    try:
        with head(secret) as cluster:
            assert answers(cluster) == expected
            ours, theirs = cluster.pids("worker")[0], joined.worker()
            # While nothing runs: the next request notices. Then under requests.
            assert break_connections(ours, OTHER) == 1
            began = time.monotonic()
            assert answers(cluster) == expected
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                running = pool.submit(answers, cluster)
                assert break_connections(ours, OTHER) == 1
                assert running.result() == expected
            assert time.monotonic() - began < 60, "somebody waited for --step-timeout-ms"
            assert cluster.pids("worker")[0] == ours and joined.worker() == theirs
            assert cluster.metric("flotilla_worker_restarts_total") == 0
    finally:
        joined.stop()


def test_join_says_what_it_waits_for(hosts):
    _, other, secret = hosts
    joined = Joined(other, secret)
    try:
        said = f'can\'t reach it yet, trying on address={HEAD}:{PORT + 1} reason="Connection refused"'
        wait_until(lambda: said in joined.text(), 60, said)
    finally:
        joined.stop()


def test_a_host_with_other_flags_is_refused(hosts):
    _, other, secret = hosts
    launcher = subprocess.Popen(
        [os.path.join(BIN, "flotilla"), "serve", "--model", MODEL, "--port", "0", "--grpc-port", "0",
         "--metrics-port", "0", "--remote-ranks", "1", "--join-address", f"{HEAD}:{PORT}",
         "--link-secret-file", secret, *FLAGS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for change, said in ((["--page-size", "32"], "--page-size is 16 on the head and 32 here"),
                             (["--tp", "3"], "--tp is 2 on the head and 3 here")):
            done = subprocess.run(
                ["ip", "netns", "exec", other, os.path.join(BIN, "flotilla"), "join", "--model", MODEL, "--head",
                 f"{HEAD}:{PORT}", "--rank", "1", "--link-secret-file", secret, "--metrics-port", "0",
                 *(FLAGS[2:] if "--tp" in change else FLAGS), *change],
                capture_output=True, text=True, timeout=120)
            assert done.returncode == 2, done.stderr
            assert said in done.stderr
    finally:
        launcher.terminate()
        launcher.wait(60)
