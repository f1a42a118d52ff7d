"""Fetches the suites that `sources.toml` names into the cache, from their package registries, by the registries' own clients.

What is in the cache was verified when it came, and is used again while its checksum in `sources.toml` is the same.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ["CONFORMANCE_CACHE"]
# A download that takes longer has failed.
FETCH_SECONDS = 600

with open(os.path.join(HERE, "sources.toml"), "rb") as pinned:
    PINNED = tomllib.load(pinned)


class SourceError(Exception):
    pass


def amqp091_go():
    """The directory of the module, and the Go to build it with."""
    source = PINNED["amqp091-go"]
    go = go_tool(source)

    def fill(directory, downloads):
        module = go_module(go, source["module"], source["version"])
        if module["Sum"] != source["sum"]:
            raise SourceError(f"{source['module']} {source['version']} is {module['Sum']}, not {source['sum']}")
        copy(module["Dir"], directory)
        # goleak, which its tests import; its go.sum pins it.
        run([go, "mod", "download"], cwd=directory, env=go_environment())

    return once("amqp091-go", source["version"], source["sum"], fill), go


def go_tool(source):
    installed = output(["go", "env", "GOVERSION"], env=go_environment()).strip()
    if version(installed) >= version(source["needs_go"]):
        return "go"
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    wanted = source["toolchain"].format(arch=arch)

    def fill(directory, downloads):
        # Verified by Go against its checksum database, as every module is.
        copy(go_module("go", "golang.org/toolchain", wanted)["Dir"], directory)
        for tools in ("bin", os.path.join("pkg", "tool", f"linux_{arch}")):
            for tool in os.scandir(os.path.join(directory, tools)):
                os.chmod(tool.path, 0o755)

    return os.path.join(once("go", wanted, wanted, fill), "bin", "go")


def go_environment():
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""}


def go_module(go, path, wanted):
    with tempfile.TemporaryDirectory() as nowhere:
        return json.loads(output([go, "mod", "download", "-json", f"{path}@{wanted}"], cwd=nowhere, env=go_environment()))


def amqplib():
    source = PINNED["amqplib"]
    node = output(["node", "--version"]).strip()
    if version(node) < version(source["needs_node"]):
        raise SourceError(f"node is {node}, and amqplib's tests need {source['needs_node']} or later")

    def fill(directory, downloads):
        unpack(npm_package("amqplib", source, downloads), directory)
        for name, module in source["modules"].items():
            unpack(npm_package(name, module, downloads), os.path.join(directory, "node_modules", name))

    return once("amqplib", source["version"], source["sha256"] + str(source["modules"]), fill)


def npm_package(name, source, downloads):
    file = output(["npm", "pack", "--silent", f"{name}@{source['version']}"], cwd=downloads).strip()
    return verified(os.path.join(downloads, file), source)


def lapin():
    source = PINNED["lapin"]
    name = f"lapin-{source['version']}"

    def fill(directory, downloads):
        # Cargo has no command that fetches one crate and not its dependencies, except that it does so to show it.
        output(["cargo", "info", "--quiet", f"lapin@{source['version']}"], cwd=downloads)
        registries = os.path.join(os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo")), "registry", "cache")
        found = [os.path.join(registries, registry, name + ".crate") for registry in os.listdir(registries)]
        found = [crate for crate in found if os.path.exists(crate)]
        if not found:
            raise SourceError(f"cargo left no {name}.crate in {registries}")
        unpack(verified(found[0], source), directory)

    return once("lapin", source["version"], source["sha256"], fill)


def python_package(name):
    source = PINNED[name]

    def fill(directory, downloads):
        wanted = os.path.join(downloads, "requirements.txt")
        with open(wanted, "w") as file:
            file.write(requirement(source["package"], source))
        # pip looks into an archive of sources by that archive's own setup.py, for which setuptools is in the environment.
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "--requirement", wanted]
        run([sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", downloads])
        unpack(verified(os.path.join(downloads, f"{source['package']}-{source['version']}.tar.gz"), source), directory)

    return once(name, source["version"], source["sha256"], fill)


def requirement(name, source):
    return f"{name}=={source['version']} --hash=sha256:{source['sha256']}\n"


def once(name, wanted, checksum, fill):
    """The directory of that name and version in the cache; `fill` makes it if it is not there."""
    mark = hashlib.sha256(checksum.encode()).hexdigest()[:12]
    directory = os.path.join(CACHE, f"{name}-{wanted}-{mark}")
    if not os.path.isdir(directory):
        print(f"fetching {name} {wanted}", file=sys.stderr, flush=True)
        # What is half made has another name, so that an interrupted run leaves nothing that is taken for whole.
        half = tempfile.mkdtemp(dir=CACHE)
        with tempfile.TemporaryDirectory() as downloads:
            fill(half, downloads)
        os.chmod(half, 0o755)
        os.rename(half, directory)
    return directory


def verified(archive, source):
    with open(archive, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source["sha256"]:
        raise SourceError(f"{os.path.basename(archive)} has the sha256 {found}, not {source['sha256']}")
    return archive


def unpack(archive, directory):
    """Without the one directory that everything in such an archive is in."""
    with tempfile.TemporaryDirectory(dir=CACHE) as whole:
        with tarfile.open(archive) as tar:
            tar.extractall(whole, filter="data")
        [inner] = os.listdir(whole)
        shutil.copytree(os.path.join(whole, inner), directory, dirs_exist_ok=True)


def copy(source, directory):
    """A copy that may be written to; a module in Go's cache may not."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
    for parent, _, files in os.walk(directory):
        for path in [parent] + [os.path.join(parent, file) for file in files]:
            os.chmod(path, os.stat(path).st_mode | 0o200)


def version(text):
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def run(command, **options):
    output(command, **options)


def output(command, **options):
    """A network that stumbles once is no failed run; one that is down is, with the client's own words."""
    for attempt in (1, 2):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS, **options)
        if done.returncode == 0:
            return done.stdout
        if attempt == 1:
            print("once more:", *command, file=sys.stderr)
    raise SourceError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-2000:]}")
