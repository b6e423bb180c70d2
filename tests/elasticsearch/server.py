"""A real Elasticsearch or OpenSearch for the tests, from Maven Central alone.

The server's minimal distribution is downloaded by Maven, once for each machine. It lacks the analyzers `english` and
`cjk`, so a plugin that provides Lucene's own is compiled into it. A server needs a JDK 17 (Elasticsearch 9, OpenSearch
3: 21) or newer, Maven and 1 GB of memory, and starts in about ten seconds.

`start` and `stop` may also be called by hand, for instance to try the examples.

`ZOO_TEST_CACHE` is the folder of the unpacked distributions, and `ZOO_TEST_ES_VERSION` chooses another version of the
server (`make elasticsearch9`), `ZOO_TEST_OPENSEARCH_VERSION` one of OpenSearch.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from base64 import b64encode
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

#: The servers refuse to run as root; Python changes to this user when it starts the process.
UNPRIVILEGED = "nobody"
AS_ROOT = hasattr(os, "getuid") and os.getuid() == 0


class Product(NamedTuple):
    """A kind of server, its version, and how its environment variables begin."""

    name: str
    version: str
    prefix: str

    @property
    def java(self) -> range:
        # OpenSearch 2 needs a security manager, which Java 24 has not.
        oldest = 17 if self.version.startswith(("8.", "2.")) else 21
        return range(oldest, 24 if self.version.startswith("2.") else 99)


ELASTICSEARCH = Product("elasticsearch", os.environ.get("ZOO_TEST_ES_VERSION", "8.19.21"), "ES")
OPENSEARCH = Product("opensearch", os.environ.get("ZOO_TEST_OPENSEARCH_VERSION", "2.19.6"), "OPENSEARCH")


class NoServerError(Exception):
    """This machine can't run the server; the message names in one line what is missing."""


@dataclass(frozen=True)
class Server:
    """A running server: its address and, where it is secured, what a client needs."""

    url: str
    process: int
    username: str | None = None
    password: str | None = None
    ca_certs: str | None = None


def start(folder: Path, secured: bool = False, heap: str = "1g", product: Product = ELASTICSEARCH) -> Server:
    """Start a server with its data in `folder`, unless one is running there.

    Processes that call this at the same time (pytest's workers) get the same server.

    Args:
        folder: for data, logs, configuration and the note `server.json` on how to reach it.
        secured: https with a self-signed certificate, and a password; for Elasticsearch only.
        heap: memory of the Java machine.

    Raises:
        NoServerError: there is no suitable Java or no Maven, or the server didn't start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        server = running(folder)
        if server is None:
            (server,) = _launch([folder], secured, heap, product)
        return server


def start_cluster(folder: Path, nodes: int = 3, heap: str = "400m") -> list[Server]:
    """Start servers that form one cluster, with their data in the folders `node-0`, `node-1` ...

    Raises:
        NoServerError: as `start`.
    """
    folders = [folder / f"node-{number}" for number in range(nodes)]
    for node_folder in folders:
        node_folder.mkdir(parents=True)
    return _launch(folders, False, heap, ELASTICSEARCH)


def running(folder: Path) -> Server | None:
    """Return the server that runs in `folder`; None if there is none."""
    try:
        server = Server(**json.loads((folder / "server.json").read_text()))
        os.killpg(server.process, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return server


def kill(server: Server) -> None:
    """Kill a server, as a power cut would, and wait for its end."""
    os.killpg(server.process, signal.SIGKILL)
    _wait_for_end(server.process, seconds=20)


def stop(folder: Path) -> None:
    """Stop the server that runs in `folder`, if there is one, and wait for its end."""
    server = running(folder)
    if server is None:
        return
    os.killpg(server.process, signal.SIGTERM)
    try:
        _wait_for_end(server.process, seconds=20)
    except TimeoutError:
        os.killpg(server.process, signal.SIGKILL)
        _wait_for_end(server.process, seconds=20)
    (folder / "server.json").unlink()


def _wait_for_end(process: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # Only the parent process can (and must) collect the exit status.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
        try:
            os.killpg(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise TimeoutError


def _launch(folders: list[Path], secured: bool, heap: str, product: Product) -> list[Server]:
    """Start a cluster of one or more servers, and wait until all have joined it."""
    ports, transports = ([_free_port() for _ in folders] for _ in range(2))
    names = [f"memory-zoo-{secrets.token_hex(8)}" for _ in folders]
    settings: dict[str, object] = {"cluster.name": f"memory-zoo-tests-{ports[0]}"}
    if len(folders) == 1:
        settings["discovery.type"] = "single-node"
    else:
        settings["discovery.seed_hosts"] = ",".join(f"127.0.0.1:{transport}" for transport in transports)
        settings["cluster.initial_master_nodes"] = ",".join(names)
    started = []
    for folder, name, port, transport in zip(folders, names, ports, transports, strict=True):
        own = {**settings, "node.name": name, "http.port": port, "transport.port": transport}
        started.append(_start_process(folder, own, secured, heap, product))
    try:
        for folder, (server, process) in zip(folders, started, strict=True):
            _wait_for_health(server, set(names), process, folder / "output.txt")
            (folder / "server.json").write_text(json.dumps(asdict(server)))
            (folder / "server.json").chmod(0o600)
    except NoServerError:
        for _, process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        raise
    return [server for server, _ in started]


def _start_process(
    folder: Path, settings: dict[str, object], secured: bool, heap: str, product: Product
) -> tuple[Server, subprocess.Popen[bytes]]:
    """Start a server, which may not accept requests yet."""
    java_home = _java_home(product)
    distribution = _distribution(product, java_home)
    config = folder / "config"
    shutil.rmtree(config, ignore_errors=True)
    shutil.copytree(distribution / "config", config)
    # Java's own logs would be in the distribution, where the server's user must not write.
    java_options = (config / "jvm.options").read_text().splitlines(keepends=True)
    (config / "jvm.options").write_text("".join(line for line in java_options if "logs/" not in line))
    environment = {
        "PATH": os.environ["PATH"],
        f"{product.prefix}_JAVA_HOME": str(java_home),
        f"{product.prefix}_PATH_CONF": str(config),
        f"{product.prefix}_JAVA_OPTS": f"-Xms{heap} -Xmx{heap}",
        f"{product.prefix}_TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
    }
    settings |= {
        "network.host": "127.0.0.1",
        "path.data": folder / "data",
        "path.logs": folder / "logs",
        "cluster.routing.allocation.disk.threshold_enabled": "false",
    }
    if product is ELASTICSEARCH:
        # Otherwise a merge waits for free space on a disk that is nearly full.
        settings["indices.merge.disk.check_interval"] = "0s"
        settings["xpack.security.enabled"] = str(secured).lower()
    for name in ("data", "logs", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    username = password = ca_certs = None
    if secured:
        username, password, ca_certs = "elastic", secrets.token_urlsafe(12), str(config / "http.crt")
        _certificate(config)
        settings |= {
            "xpack.security.http.ssl.enabled": "true",
            "xpack.security.http.ssl.key": "http.key",
            "xpack.security.http.ssl.certificate": "http.crt",
        }
    account: dict[str, object] = {}
    if AS_ROOT:
        account = {"user": UNPRIVILEGED, "group": _group(), "extra_groups": []}
        for path in (folder, *folder.rglob("*")):
            if path.name not in ("lock", "server.json"):
                shutil.chown(path, UNPRIVILEGED, _group())
        _must_be_reachable(folder)
    if password is not None:
        subprocess.run(
            [distribution / "bin/elasticsearch-keystore", "add", "-f", "-x", "bootstrap.password"],
            input=password.encode(),
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            **account,
        )
    options = [argument for name, value in settings.items() for argument in ("-E", f"{name}={value}")]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [distribution / "bin" / product.name, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
            **account,
        )
    scheme = "https" if secured else "http"
    url = f"{scheme}://127.0.0.1:{settings['http.port']}"
    return Server(url, process.pid, username, password, ca_certs), process


def _wait_for_health(
    server: Server, nodes: set[str], process: subprocess.Popen[bytes], output: Path, seconds: float = 300
) -> None:
    """Wait until the started nodes are one cluster; the server's port may belong to another program."""
    context = ssl.create_default_context(cafile=server.ca_certs) if server.ca_certs else None

    def ask(path: str) -> str:
        request = urllib.request.Request(f"{server.url}{path}")
        if server.password is not None:
            user = b64encode(f"{server.username}:{server.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {user}")
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return str(answer.read().decode(errors="replace"))

    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            ask(f"/_cluster/health?wait_for_status=yellow&wait_for_nodes={len(nodes)}")
            if set(ask("/_cat/nodes?h=name").split()) == nodes:
                return
            break  # another server
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    tail = " | ".join(output.read_text(errors="replace").splitlines()[-5:])
    raise NoServerError(
        f"the server did not come up at {server.url}, or another one is there; its last lines: {tail}"
    )


def _java_home(product: Product) -> Path:
    """Return the home of a JDK (not only a runtime: the plugin is compiled) that is new enough."""
    tried = []
    variables = (f"{product.prefix}_JAVA_HOME", "JAVA_HOME")
    named = (*map(os.environ.get, variables), shutil.which("javac"))
    for candidate in (*named, *sorted(Path("/usr/lib/jvm").glob("*/bin/javac"))):
        if not candidate:
            continue
        home = Path(candidate).resolve()
        home = home.parent.parent if home.is_file() else home
        if not (home / "bin/javac").is_file():
            tried.append(f"{home} has no javac")
            continue
        answer = subprocess.run([home / "bin/javac", "-version"], capture_output=True, text=True).stdout
        version = re.match(r"javac (\d+)", answer)
        if version and int(version[1]) in product.java:
            return home
        tried.append(f"{home} is {answer.strip()}")
    raise NoServerError(
        f"javac of Java {product.java.start} to {product.java[-1]} is needed ({'; '.join(tried) or 'none was found'})"
    )


def _distribution(product: Product, java_home: Path) -> Path:
    """Return the unpacked distribution with the plugin, which is made once."""
    # The user of the server can't read root's home.
    default = Path("/var/cache/memory-zoo-tests") if AS_ROOT else Path.home() / ".cache/memory-zoo-tests"
    cache = Path(os.environ.get("ZOO_TEST_CACHE") or default).absolute()
    cache.mkdir(parents=True, exist_ok=True)
    distribution = cache / f"{product.name}-{product.version}-with-plugin"
    with FileLock(cache / "lock"):
        if not distribution.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                archive = _download(product, Path(scratch))
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(scratch)
                archive.unlink()
                unpacked = Path(scratch) / f"{product.name}-{product.version}"
                for program in (unpacked / "bin").iterdir():
                    program.chmod(0o755)
                _add_plugin(product, unpacked, java_home)
                unpacked.rename(distribution)
    if AS_ROOT:
        _must_be_reachable(distribution)
    return distribution


def _download(product: Product, folder: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoServerError("Maven (mvn), which downloads the server, was not found")
    name, version = product[:2]
    artifact = f"org.{name}.distribution.integ-test-zip:{name}:{version}:zip"
    done = subprocess.run(
        [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    archive = folder / f"{name}-{version}.zip"
    if done.returncode != 0 or not archive.is_file():
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise NoServerError(f"Maven could not download {artifact}: {lines[0] if lines else 'no output'}")
    return archive


def _add_plugin(product: Product, distribution: Path, java_home: Path) -> None:
    if (distribution / "modules/analysis-common").is_dir():
        return
    target = distribution / "plugins/analyzers"
    classes = distribution / "plugins/classes"
    target.mkdir(parents=True)
    sources = sorted((Path(__file__).parent / "plugin" / product.name).glob("*.java"))
    subprocess.run(
        [java_home / "bin/javac", "-cp", f"{distribution}/lib/*", "-d", classes, *sources], check=True
    )
    with zipfile.ZipFile(target / "analyzers.jar", "w") as jar:
        for file in sorted(classes.rglob("*.class")):
            jar.write(file, file.relative_to(classes))
    shutil.rmtree(classes)
    descriptor = (
        "name=analyzers\ndescription=The analyzers that the minimal distribution lacks\nversion=1\n"
        f"{product.name}.version={product.version}\njava.version={product.java.start}\n"
    )
    if product is OPENSEARCH:
        (target / "plugin-descriptor.properties").write_text(f"{descriptor}classname=memoryzoo.Analyzers\n")
        return
    factories = {source.stem.lower(): f"memoryzoo.{source.stem}" for source in sources}
    (target / "named_components.json").write_text(
        json.dumps({"org.elasticsearch.plugin.analysis.AnalyzerFactory": factories})
    )
    (target / "stable-plugin-descriptor.properties").write_text(descriptor)


def _certificate(folder: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise NoServerError("openssl, which makes the certificate of a secured server, was not found")
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=memory-zoo-tests"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", folder / "http.key", "-out", folder / "http.crt"]
    subprocess.run([openssl, "req", *kind, *names, *files], check=True, capture_output=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _group() -> int:
    import pwd

    return pwd.getpwnam(UNPRIVILEGED).pw_gid


def _must_be_reachable(path: Path) -> None:
    for folder in (path, *path.parents):
        if not folder.stat().st_mode & 0o001 and folder.owner() != UNPRIVILEGED:
            raise NoServerError(
                f"the server runs as {UNPRIVILEGED}, who may not read {folder}; "
                "choose other folders with TMPDIR and ZOO_TEST_CACHE"
            )
