"""Checks of a release and its install.sh, on a machine that has nothing but Debian's smallest system and curl."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import made
from checks import expect
from machines import Machine, machine, output, running, wait_for
from made import ARCHIVE, NAME, NEW, RELEASE, URL, WEB

sys.path.append(str(made.PROJECT / "deploy/package"))
import licences  # noqa: E402

BARE = Path(os.environ["BARE_DEBIAN"])
INSTALLED = "usr/local/bin/tandem"


@contextmanager
def bare():
    """A machine with Debian's smallest system, curl, wget and CA certificates. A proxy of the caller is not for it."""
    with machine(BARE) as host:
        yield host


def install(host: Machine, *before: str, script: str = f"curl -fsSL {URL}/release/install.sh", code: int = 0) -> str:
    """Runs the script as README says. `before` is a program that changes the environment or the user."""
    clean = ("env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root")
    return host.run(*clean, *before, "sh", "-c", f"{script} | sh", code=code)


def the_script_installs_a_program_that_carries_a_file() -> None:
    with bare() as host:
        said = install(host)
        expect(said == f"tandem {NEW} is installed: /usr/local/bin/tandem\n", f"it said {said!r}")
        left = {name for name in host.changes() if not name.startswith("var/")}
        expect(left == {INSTALLED}, f"it has written other files: {left}")
        expect(host.path(INSTALLED).read_bytes() == made.PROGRAM.read_bytes(), "it is another program")
        expect(host.run("tandem", "--version") == f"tandem {NEW}\n", "another version")
        carry_a_file(host, "/usr/local/bin/tandem")
        # An installation over an older one replaces it.
        host.path(INSTALLED).write_text("old")
        install(host)
        expect(host.run("tandem", "--version") == f"tandem {NEW}\n", "the old program stayed")


def carry_a_file(host: Machine, program: str) -> None:
    """A file goes from an origin through a proxy to `get`."""
    host.run(program, "generate", "certificate", "/tmp/dev")
    host.path("/tmp/www").mkdir()
    host.path("/tmp/www/file").write_bytes(bytes(range(256)) * 4000)
    certificate = ("--cert", "/tmp/dev/cert.pem", "--key", "/tmp/dev/key.pem")
    proxy = ("proxy", "--listen", "127.0.0.1:8443", "--allow-target", "127.0.0.0/8", *certificate)
    origin = ("origin", "--listen", "127.0.0.1:4433", "--root", "/tmp/www", *certificate)
    with running(host, program, *proxy), running(host, program, *origin):
        via = ("--via", "https://localhost:8443", "--ca", "/tmp/dev/ca.pem", "--retry", "10s")
        host.run(program, "get", "https://localhost:4433/file", *via, "-o", "/tmp/file")
    expect(host.path("/tmp/file").read_bytes() == host.path("/tmp/www/file").read_bytes(), "another file came")


def a_user_without_root_gets_it_in_the_home_folder_by_wget() -> None:
    with bare() as host:
        host.path("/home/alice").mkdir()
        os.chown(host.path("/home/alice"), 1000, 1000)
        host.path("/usr/bin/curl").unlink()
        alice = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "env", "HOME=/home/alice")
        said = install(host, *alice, script=f"wget -qO- {URL}/release/install.sh")
        expect("/home/alice/.local/bin is not in PATH" in said, f"it does not say how to run it: {said}")
        expect(host.run("/home/alice/.local/bin/tandem", "--version") == f"tandem {NEW}\n", "another version")
        expect(not host.has(INSTALLED), "it is also in /usr/local")
        refused = install(host, *alice, "TANDEM_FOLDER=/usr/bin", script=f"wget -qO- {URL}/release/install.sh", code=1)
        expect("/usr/bin cannot be written" in refused and "nothing was installed" in refused, refused)


def flip(file: Path) -> None:
    """Changes one byte in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def change_the_program(folder: Path) -> None:
    flip(folder / ARCHIVE)


def change_the_program_and_its_checksum(folder: Path) -> None:
    flip(folder / ARCHIVE)
    digest = output("sha256sum", ARCHIVE, cwd=folder)
    lines = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    (folder / "SHA256SUMS").write_text("".join(digest if ARCHIVE in line else line for line in lines))


def sign_with_another_key(folder: Path) -> None:
    made.new_key(folder / "other.pem")
    made.sign(folder, folder / "other.pem")


def sign_nothing(folder: Path) -> None:
    (folder / "SHA256SUMS.sig").write_bytes(b"")


def remove_the_signature(folder: Path) -> None:
    (folder / "SHA256SUMS.sig").unlink()


def offer_another_version(folder: Path) -> None:
    text = (folder / "SHA256SUMS").read_text().replace(NEW, "0.0.1")
    (folder / "SHA256SUMS").write_text(text)
    made.sign(folder)


def break_the_download(folder: Path) -> None:
    whole = (folder / ARCHIVE).rename(folder / f"{ARCHIVE}.cut")
    (folder / ARCHIVE).write_bytes(whole.read_bytes()[:100_000])


def cut_the_file(folder: Path) -> None:
    os.truncate(folder / ARCHIVE, 100_000)


# What is wrong, and what the script says about it.
WRONG: dict[Callable[[Path], None], str] = {
    change_the_program: "is not the file that was signed",
    change_the_program_and_its_checksum: "SHA256SUMS is wrong",
    sign_with_another_key: "SHA256SUMS is wrong",
    sign_nothing: "SHA256SUMS is wrong",
    remove_the_signature: "SHA256SUMS.sig could not be downloaded",
    offer_another_version: "they are of another version",
    break_the_download: f"{ARCHIVE} could not be downloaded completely",
    cut_the_file: "is not the file that was signed",
}


def what_was_not_signed_is_refused_and_leaves_nothing() -> None:
    for wrong, reason in WRONG.items():
        folder = WEB / wrong.__name__
        shutil.copytree(RELEASE, folder)
        wrong(folder)
        with bare() as host:
            host.path(INSTALLED).write_text("the program of before")
            before = host.changes()
            said = install(host, "env", f"TANDEM_URL={URL}/{wrong.__name__}", code=1)
            expect(reason in said and said.endswith("nothing was installed\n"), f"{wrong.__name__}: it said {said!r}")
            expect(host.changes() == before, f"{wrong.__name__} has changed {set(host.changes()) ^ set(before)}")
        shutil.rmtree(folder)


def without_openssl_nothing_is_verified_and_nothing_installed() -> None:
    with bare() as host:
        host.path("/usr/bin/openssl").unlink()
        before = host.changes()
        said = install(host, code=1)
        expect("openssl is missing" in said and "nothing was installed" in said, f"it said {said!r}")
        expect(host.changes() == before, f"it has changed {set(host.changes()) ^ set(before)}")


def a_part_of_the_script_does_nothing() -> None:
    script = (RELEASE / "install.sh").read_text()
    whole = script.rindex("main")
    with bare() as host:
        for length in [whole * part // 20 for part in range(1, 20)] + [whole - 2, whole]:
            host.path("/part").write_text(script[:length])
            before, asked = host.changes(), len(made.Handler.asked)
            host.run("sh", "-c", "sh /part 2>&1 || true")
            expect(len(made.Handler.asked) == asked, f"{length} bytes of the script have downloaded something")
            expect(host.changes() == before, f"{length} bytes of the script have changed files")


def all_files_are_in_the_signed_checksums() -> None:
    names = {file.name for file in RELEASE.iterdir()}
    listed = {line.split("  ")[1] for line in (RELEASE / "SHA256SUMS").read_text().splitlines()}
    expect(names - listed == {"SHA256SUMS", "SHA256SUMS.sig"}, f"not in the checksums: {names - listed}")
    output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=RELEASE)
    public = made.FOLDER / "public.pem"
    public.write_text((RELEASE / "install.sh").read_text().split("key='")[1].split("'")[0])
    signature = ("-verify", public, "-signature", RELEASE / "SHA256SUMS.sig")
    output("openssl", "dgst", "-sha256", *signature, RELEASE / "SHA256SUMS")
    listing = output("tar", "-tzf", RELEASE / ARCHIVE)
    expected = ("bin/tandem", "share/man/man1/tandem-get.1.gz", "share/doc/tandem/LICENCES.gz")
    for name in expected:
        expect(f"{NAME}/{name}\n" in listing, f"{ARCHIVE} has no {name}")
    expect((RELEASE / "NOTES.md").read_text().startswith(f"# Tandem {NEW} - "), "the notes are of another version")


def the_sbom_has_the_crates_that_cargo_links() -> None:
    sbom = json.loads((RELEASE / f"tandem-{NEW}-sbom.cdx.json").read_text())
    expect(sbom["bomFormat"] == "CycloneDX", "it is not CycloneDX")
    listed = {(part["name"], part["version"]) for part in sbom["components"]} | {("tandem", NEW)}
    linked = {(crate["name"], crate["version"]) for crate in licences.crates()}
    expect(listed == linked, f"they differ: {listed ^ linked}")


def the_image_is_a_proxy_without_root() -> None:
    with made.temporary() as folder:
        image = f"docker-archive:{RELEASE / f'tandem-{NEW}-x86_64-image.tar'}"
        output("skopeo", "--insecure-policy", "copy", image, f"oci:{folder}/layout:it")
        output("umoci", "unpack", "--image", f"{folder}/layout:it", folder / "bundle")
        config = json.loads(output("skopeo", "inspect", "--config", image))["config"]
        expect(config["User"] == "65532:65532" and config["Entrypoint"] == ["/tandem"], f"it is {config}")
        inside = folder / "bundle/rootfs"
        files = {str(path.relative_to(inside)) for path in inside.rglob("*") if not path.is_dir()}
        expect(files == {"tandem", "etc/ssl/certs/ca-certificates.crt"}, f"it has {files}")
        # A program that tests have built needs the C library of a system; that of a release has to do without.
        static = "INTERP" not in output("readelf", "--program-headers", inside / "tandem")
        with machine(inside) if static else machine(inside, BARE) as host:
            start = [*config["Entrypoint"], *config["Cmd"]]
            mounted = host.path("/etc/tandem")
            mounted.mkdir(mode=0o755)
            output(made.PROGRAM, "generate", "certificate", mounted / "dev")
            mounted.joinpath("proxy.toml").write_text(
                'listen = "127.0.0.1:8443"\ncert = "dev/cert.pem"\nkey = "dev/key.pem"\nadmin = "127.0.0.1:9439"\n'
            )
            output("chown", "-R", config["User"], mounted)
            as_user = ("--userspec", config["User"])
            with running(host, *start, options=as_user):
                ready = "/tandem top 127.0.0.1:9439 --ready".split()
                wait_for("chroot", *as_user, host.root, *ready)


def a_release_says_what_is_missing_and_makes_nothing() -> None:
    with made.temporary() as folder:
        rsa = folder / "rsa.pem"
        output("openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-out", rsa)
        good = {"TANDEM_RELEASE_KEY": str(made.KEY), "TANDEM_RELEASE_URL": f"{URL}/release"}
        cases = (
            ({}, "TANDEM_RELEASE_KEY"),
            ({"TANDEM_RELEASE_KEY": str(made.KEY)}, "TANDEM_RELEASE_URL"),
            (good | {"TANDEM_RELEASE_KEY": str(folder / "none")}, "has no private key"),
            (good | {"TANDEM_RELEASE_KEY": str(rsa)}, "is not an ECDSA key for P-256"),
            (good | {"TANDEM_RELEASE_URL": "https://tandem.example/$(id)"}, "is not a plain URL"),
        )
        for environment, reason in cases:
            said = made.release("--program", made.PROGRAM, folder / "made", environment=environment, code=1)
            expect(reason in said, f"{reason}: it said {said!r}")
            expect(not (folder / "made").exists(), f"{reason}: it has made a folder")
        said = made.release("--program", made.PROGRAM, RELEASE, environment=good, code=1)
        expect("exists already" in said, said)
        notes = ("python3", made.PROJECT / "deploy/package/notes.py", made.PROJECT / "CHANGELOG.md", "0.0.1")
        expect("0 sections with the heading '## 0.0.1 - YYYY-MM-DD'" in output(*notes, code=1), "it has notes")


CHECKS = [
    the_script_installs_a_program_that_carries_a_file,
    a_user_without_root_gets_it_in_the_home_folder_by_wget,
    what_was_not_signed_is_refused_and_leaves_nothing,
    without_openssl_nothing_is_verified_and_nothing_installed,
    a_part_of_the_script_does_nothing,
    all_files_are_in_the_signed_checksums,
    the_sbom_has_the_crates_that_cargo_links,
    the_image_is_a_proxy_without_root,
    a_release_says_what_is_missing_and_makes_nothing,
]
