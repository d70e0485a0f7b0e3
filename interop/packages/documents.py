"""Runs the commands of the documents as they are written, on fresh machines with a world around them (world.py).

A page whose commands do not run, and each single command that does not, is listed here with its reason. A new one that
is neither run nor listed is a failure.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import made
import pages
from checks import Failure, expect
from machines import Machine, machine, mount, output
from namespaces import Host
from pages import Command
from world import HERE, INTERNET, World, end_programs, world

FRESH = Path(os.environ["FRESH_DEBIAN"])
SECONDS_MAX = 120  # for a command
EXPORTED = "~/.exported"  # the variables of the last command
WORDS_END = "exit $status"  # the last words of all that a shell is given, which a message of an error need not repeat

# The pages whose commands are run here. Their machines are: builder, which has Rust, musl and Go; server, where proxies
# run; ubuntu, a server with ufw; and laptop, from where people use them.
PAGES = ("operating.md", "services.md", "deploy.md", "install.md")

# Pages of the guide whose commands are not run here.
OTHER_PAGES = {
    "chains.md": "needs several proxies; interop/chains.sh runs such chains",
    "clients.md": "needs programs of others; interop/run.sh runs them with their profiles",
    "figures.md": "the figures take minutes; the tests of the lab compute them",
    "fleet.md": "needs several machines behind a router; interop/fleet.sh has them",
    "gateway.md": "needs a web server; interop/nginx.sh has one",
    "lab.md": "experiments without a machine; the lab's own tests run them",
    "monitoring.md": "interop/admin.sh checks what operators see",
    "pep.md": "needs a router and its kernel; interop/pep.sh has one",
    "site.md": "needs a site with a name; interop/up.sh and crates/cli/tests/site have proxies that are sites",
    "tasks.md": "recipes with placeholders; crates/cli/tests/documents.rs runs those that need nothing else",
    "tecc.md": "needs links with rates; the lab's own tests have them",
    "../../README.md": "installs as install.md does, and builds from the sources, which .ci/run does too",
    "up.md": "interop/up.sh sets up a fresh user's client, and crates/cli/tests/up.rs has the errors and the rules",
    "users.md": "servers with a login service, which crates/cli/tests/users.rs has",
}

# Single commands that are not run here.
FEDORA = "Debian's dnf has no packages; another check installs this rpm"
CONTAINERS = "podman needs the control groups of a whole machine; another check runs this image"
DOWNLOAD = f"curl -fsSLO https://tandem.example/{made.NEW}"
NOT_RUN = {
    ("deploy.md", "tandem up"): "without a systemd for users it goes on until it is ended; interop/up.sh runs it",
    ("install.md", f"{DOWNLOAD}/tandem-{made.NEW}-1.x86_64.rpm"): FEDORA,
    ("install.md", "sudo dnf install"): FEDORA,
    ("install.md", f"{DOWNLOAD}/tandem-{made.NEW}-x86_64-image.tar"): CONTAINERS,
    ("install.md", "podman load"): CONTAINERS,
    ("install.md", "podman run --rm -p"): CONTAINERS,
    ("install.md", "podman run --rm tandem"): CONTAINERS,
}

# Commands that need a terminal, with what a person types there.
TYPED = {"tandem top": "\x03"}

# Commands that go on until they are ended, with what then shows that they work.
ENDLESS = {"tandem connect": ("curl", "-fsS", "--retry", "20", "--retry-connrefused", "http://127.0.0.1:5432/")}

# What a command must have printed.
SAYS = {
    "tandem proxy --config": "acme-domain",
    "tandem top": "refused: nothing",
    "systemctl status": "active (running)",
    "journalctl -u tandem-proxy": "listening on",
    "ss -uanm": ":443",
    "curl --proxy": "It came",
    "openssl dgst -sha256 -verify": "Verified OK",
    "sha256sum --check": "tandem_",
}

# Settings of the kernel that a machine may set.
SETTINGS = (
    "net/core/rmem_max",
    "net/core/wmem_max",
    "kernel/pid_max",
    "fs/protected_fifos",
    "fs/protected_hardlinks",
    "fs/protected_regular",
    "fs/protected_symlinks",
)


@dataclass
class Site:
    """A machine on a host, and who types there in which folder."""

    machine: Machine
    user: str
    folder: str
    host: Host | None = None  # of the network; a machine without one is this machine's
    variables: dict[str, str] = field(default_factory=dict)

    def words(self, text: str) -> list[str]:
        """The program that runs a command as a shell of the user would."""
        home = "/root" if self.user == "root" else f"/home/{self.user}"
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = {"HOME": home, "USER": self.user, "PATH": path, "TERM": "xterm", "LANG": "C.UTF-8"} | self.variables
        become = ("setpriv", "--reuid", self.user, "--regid", self.user, "--init-groups", "env", "-i")
        # What one command exports is there for the next one.
        before, after = f"cd {self.folder}; test ! -e {EXPORTED} || . {EXPORTED}", f"status=$?; export -p >{EXPORTED}"
        script = f"{before}\n{text}\n{after}; {WORDS_END}"
        settings = [f"{name}={value}" for name, value in variables.items()]
        inside = ("chroot", self.machine.root, *become, *settings, "bash", "-c", script)
        return [str(word) for word in (self.host.inside(*inside) if self.host else inside)]

    def run(self, text: str) -> str:
        for word, typed in TYPED.items():
            if text.startswith(word):
                return self.type(text, typed)
        for word, probe in ENDLESS.items():
            if text.startswith(word):
                return self.run_beside(text, probe)
        # A person says yes to apt.
        read_end, write_end = os.pipe()
        os.write(write_end, b"y\n" * 10)
        os.close(write_end)
        with os.fdopen(read_end) as answers:
            return output(*self.words(text), stdin=answers, timeout=SECONDS_MAX)

    def type(self, text: str, typed: str) -> str:
        """Runs a command in a terminal, types something until it ends, and returns what the terminal has shown."""
        mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        words = ["setsid", "--ctty", *self.words(text)]
        process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown, began = b"", time.monotonic()
        try:
            while time.monotonic() < began + SECONDS_MAX / 6:
                if select.select([mine], [], [], 1)[0]:
                    shown += os.read(mine, 65536)
                if time.monotonic() > began + 2:
                    os.write(mine, typed.encode())
        except OSError:  # the other end is closed
            pass
        finally:
            process.terminate()
            os.close(mine)
        ended_by_control_c = typed == "\x03" and process.wait(20) in (130, -2)
        expect(ended_by_control_c or process.wait(20) == 0, f"exit code {process.returncode}: {shown[-600:]!r}")
        return shown.decode(errors="replace")

    def run_beside(self, text: str, probe: tuple[str, ...]) -> str:
        """Runs a command that goes on until it is ended, and returns what the probe has printed meanwhile."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(self.words(text), start_new_session=True, **quiet)
        try:
            return self.run(" ".join(probe))
        finally:
            os.killpg(process.pid, 15)
            process.wait(20)


def replace_programs(host: Machine) -> None:
    """Puts what stands in for systemd and ssh into a machine."""
    host.path("/usr/bin/systemctl").rename(host.path("/usr/bin/systemctl.real"))
    for name in ("systemctl", "journalctl", "scp"):
        output("install", "-m", "755", HERE / "stand-ins" / name, host.path("/usr/bin"))
    host.path("/run/systemd/system").mkdir(parents=True, exist_ok=True)


@contextmanager
def fresh(around: World, name: str):
    """A fresh Debian on a host of the network. The user `admin` may call sudo, as in the images of providers."""
    with machine(FRESH) as host, ExitStack() as stack:
        stack.callback(end_programs, getattr(around.network, name))
        replace_programs(host)
        hostname = Path("/proc/sys/kernel/hostname").read_text().strip()
        host.path("/etc/hosts").write_text(f"127.0.0.1 localhost {hostname}\n::1 localhost\n")
        host.path("/etc/resolv.conf").unlink(missing_ok=True)
        host.path("/etc/resolv.conf").write_text(f"nameserver {INTERNET}\n")
        for number, certificate in enumerate(around.trusted):
            host.path(f"/usr/local/share/ca-certificates/{number}.crt").write_text(certificate)
        with host.path("/etc/ssl/certs/ca-certificates.crt").open("a") as bundle:
            bundle.write("".join(around.trusted))
        host.run("useradd", "--create-home", "--shell", "/bin/bash", "admin")
        host.path("/etc/sudoers.d/admin").write_text("admin ALL=(ALL) NOPASSWD: ALL\n")
        # No name leads to Debian's servers. apt would ask again for seconds before it takes what it has.
        host.path("/etc/apt/apt.conf.d/99-once").write_text('Acquire::Retries "0";\n')
        keep_settings_of_the_kernel(host, stack)
        yield host


def keep_settings_of_the_kernel(host: Machine, stack: ExitStack) -> None:
    """The settings of a kernel are those of all its machines. This one writes to copies of those that it sets."""
    kept = {name: (Path("/proc/sys") / name).read_text() for name in SETTINGS if (Path("/proc/sys") / name).exists()}
    mount(stack, host.path("/proc/sys"), "-t", "tmpfs", "tmpfs")
    for name, text in kept.items():
        file = host.path("/proc/sys") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def copy_the_repository(host: Machine) -> None:
    """Puts the files of the repository into the folder `tandem` of root, as git clone does."""
    host.path("/root/tandem").mkdir()
    for name in ("deploy", "Cargo.toml"):
        output("cp", "-r", made.PROJECT / name, host.path("/root/tandem"))
    host.path("/root/tandem/crates/cli").mkdir(parents=True)
    output("cp", made.PROJECT / "crates/cli/Cargo.toml", host.path("/root/tandem/crates/cli"))
    # What stands in for the compiler takes this.
    output("install", "-D", "-m", "755", made.PROGRAM, host.path("/stand-ins/tandem"))


@contextmanager
def reached(host: Machine, home: str, *others: Machine, user: str = ""):
    """Lets the others copy files to and from a user's home on a host, under the names of the host."""
    with ExitStack() as stack:
        for other in others:
            for name in ("proxy.example", "server.example"):
                mount(stack, other.path(f"/run/hosts/{user}{name}"), "--bind", host.path(home))
        yield


@contextmanager
def builder():
    """A copy of this machine, with a copy of the repository, where the program is not compiled again."""
    with machine("/") as host, ExitStack() as stack:
        replace_programs(host)
        checkout = host.path("/root/tandem")
        upper, work = (host.written.parent / name for name in ("repository", "repository-work"))
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir={made.PROJECT},upperdir={upper},workdir={work}"
        mount(stack, checkout, "-t", "overlay", "-o", options, "overlay")
        output("install", "-m", "755", made.PROGRAM, host.path("/usr/bin/compiled-before"))
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "GOPATH", "CARGO_HOME") if name in os.environ}
        # The modules that the release needed stand in for the Internet's.
        modules = output("go", "env", "GOMODCACHE").strip()
        proxy = {"GOPROXY": f"file://{modules}/cache/download", "GOSUMDB": "off"}
        variables = kept | proxy | {"TANDEM": "/usr/bin/compiled-before"}
        yield Site(host, "root", "/root/tandem", variables=variables)


def has_certificate(host: Machine, service: str) -> None:
    """Waits until a server has its certificate from Let's Encrypt, which takes some seconds, as the pages say."""
    log = host.path(f"/var/log/{service}.log")
    for _ in range(300):
        if "renewed: " in log.read_text():
            return
        time.sleep(0.1)
    raise Failure(f"there is no certificate: {log.read_text()[-1000:]}")


def run_page(page: str, sites: dict[str, Site], replaced: dict[str, str] | None = None) -> None:
    """Runs the commands of a page in their order."""
    run = []
    commands = pages.commands(page, pages.read(page))
    for command in commands:
        if reason(command):
            print(f"       not run: {command}: {reason(command)}")
            continue
        expect(command.machine in sites, f"{command}: there is no machine {command.machine!r}")
        text = command.text
        for word, by in (replaced or {}).items():
            text = text.replace(word, by)
        try:
            said = sites[command.machine].run(text)
        except Exception as error:
            raise type(error)(f"{command}: {str(error).rpartition(WORDS_END)[2]}") from None
        expect("tandem" not in text or "warning:" not in said, f"{command}: it warns: {said[-600:]}")
        for service in ("tandem-proxy", "tandem-origin"):
            if f"enable --now {service}" in text:
                has_certificate(sites[command.machine].machine, service)
        for words, expected in SAYS.items():
            expect(words not in text or expected in said, f"{command}: no {expected!r} in {said[-600:]!r}")
        run.append(command)
    print(f"       {page}: {len(run)} of {len(commands)} commands were run")


def reason(command: Command) -> str | None:
    """Why a command is not run, if it is not."""
    for (page, words), why in NOT_RUN.items():
        if page == command.page and command.text.startswith(words):
            return why
    return None


def every_command_of_the_documents_is_run_or_listed_with_a_reason() -> None:
    names = ["../../README.md", *(file.name for file in pages.GUIDE.glob("*.md"))]
    with_commands = {name for name in names if pages.count(pages.read(name))}
    known = {*PAGES, *OTHER_PAGES}
    expect(with_commands <= known, f"pages that are neither run nor listed: {with_commands - known}")
    expect(known <= with_commands, f"pages without commands are listed: {known - with_commands}")
    found = []
    for page in PAGES:
        text = pages.read(page)
        commands = pages.commands(page, text)
        lines = pages.count(text)
        expect(len(commands) == lines, f"{page}: {len(commands)} commands, {lines} lines with $")
        found += commands
    for page, words in NOT_RUN:
        matching = [command for command in found if command.page == page and command.text.startswith(words)]
        expect(len(matching) == 1, f"{page}: {len(matching)} commands begin with {words!r}, which is listed")
    for page, why in OTHER_PAGES.items():
        print(f"       not run: {page}: {pages.count(pages.read(page))} commands: {why}")


def the_guide_names_the_versions_of_rust_and_go() -> None:
    (rust,) = re.findall(r'^rust-version = "(.*)"$', (made.PROJECT / "Cargo.toml").read_text(), re.MULTILINE)
    (nfpm,) = re.findall(r"^NFPM=(.*)/cmd/nfpm(@\S+)", (made.PROJECT / "deploy/package.sh").read_text(), re.MULTILINE)
    go = output("go", "list", "-m", "-f", "{{.GoVersion}}", "".join(nfpm)).strip()
    for page, version in (("operating.md", rust), ("deploy.md", rust), ("../../README.md", rust)):
        expect(f"Rust {version} or newer" in " ".join(pages.read(page).split()), f"{page} names no Rust {version}")
    for page in ("operating.md", "../../CONTRIBUTING.md"):
        text = " ".join(pages.read(page).split())
        expect(f"[Go](https://go.dev/dl) {go} or newer" in text, f"{page} names no Go {go}")


def a_command_without_a_machine_is_found() -> None:
    for fence in ("text", "console", "sh", ""):
        try:
            pages.commands("page", f"```{fence}\n$ true\n```\n")
        except Failure:
            continue
        raise Failure(f"a command in a block {fence!r} is not found")
    text = "Text\n\n```console server\n$ echo a \\\n    b\nprinted\n$ true  # 2\n```\n"
    texts = [command.text for command in pages.commands("page", text)]
    expect(texts == ["echo a \\\n    b", "true  # 2"], f"it finds {texts}")


def the_commands_of_operating_and_services_work() -> None:
    with world() as around, fresh(around, "server") as server, fresh(around, "home") as laptop:
        at_server = Site(server, "admin", "~", around.network.server)
        at_laptop = Site(laptop, "admin", "~", around.network.home)
        with builder() as at_builder, reached(server, "/home/admin", at_builder.machine, laptop):
            run_page("operating.md", {"builder": at_builder, "server": at_server, "laptop": at_laptop})
            # What the documents do not install: the service that others want to reach.
            around.serve_files_on_the_server(5432)
            token = server.path("/home/admin/token.txt").read_text().strip()
            replaced = {"YOUR.PROXY": "proxy.example", "YOUR-TOKEN": token}
            run_page("services.md", {"server": at_server, "laptop": at_laptop}, replaced)


def the_commands_of_deploy_work() -> None:
    with world() as around, fresh(around, "server") as server, fresh(around, "home") as laptop:
        copy_the_repository(server)
        output("install", "-m", "755", made.PROGRAM, laptop.path("/usr/local/bin/tandem"))
        laptop.run("apt-get", "install", "-qy", "ufw")
        sites = {
            "ubuntu": Site(laptop, "root", "~", around.network.home),
            "server": Site(server, "root", "~/tandem", around.network.server),
            "laptop": Site(laptop, "admin", "~", around.network.home),
        }
        with reached(server, "/root", laptop, user="root@"):
            run_page("deploy.md", sites)
        for block in pages.blocks("deploy.md", pages.read("deploy.md")):
            if block.words[:1] == ("toml",):
                text = server.path(block.words[1]).read_text()
                expect(block.text in text, f"deploy.md:{block.line}: not in {block.words[1]}: {text}")
        for name, mode in (("chain.pem", 0o644), ("key.pem", 0o600)):
            file = server.path(f"/etc/tandem/{name}")
            expect(file.stat().st_mode & 0o777 == mode, f"{name} has another mode")


def the_commands_of_install_work() -> None:
    with world() as around, fresh(around, "home") as laptop:
        run_page("install.md", {"laptop": Site(laptop, "admin", "~", around.network.home)})


CHECKS = [
    every_command_of_the_documents_is_run_or_listed_with_a_reason,
    the_guide_names_the_versions_of_rust_and_go,
    a_command_without_a_machine_is_found,
    the_commands_of_operating_and_services_work,
    the_commands_of_deploy_work,
    the_commands_of_install_work,
]
