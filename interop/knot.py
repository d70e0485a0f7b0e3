"""Knot DNS, which serves one zone."""

from pathlib import Path

CONFIGURATION = """
server:
    rundir: "{folder}"
    listen: {address}@53
database:
    storage: "{folder}"
log:
  - target: stderr
    any: info
zone:
  - domain: "{zone}"
    storage: "{folder}"
    file: zone
"""
HEAD = """$ORIGIN {zone}
$TTL 60
@ SOA ns admin 1 3600 600 86400 60
@ NS ns
"""


def configure(folder: Path, address: str, zone: str, records: str) -> tuple:
    """Writes the files of a server at this address. `zone` ends with a dot. Returns the command that runs it."""
    (folder / "zone").write_text(HEAD.format(zone=zone) + records + "\n")
    configuration = folder / "knot.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, address=address, zone=zone))
    return ("knotd", "-c", configuration)
