"""Fetches a URL with libcurl as a file for `curl -K` says: config.py CONFIG http3|http1.1 CA URL OUTPUT

No curl program with HTTP/3 can be installed here, so that this program reads the file. It knows only the options that
`tandem generate profile curl` writes."""

import re
import sys
from pathlib import Path

from curl_cffi import Curl, CurlHttpVersion, CurlInfo, CurlOpt
from curl_cffi.const import CurlProxyType

VERSIONS = {"http3": CurlHttpVersion.V3ONLY, "http1.1": CurlHttpVersion.V1_1}
OPTIONS = {
    "proxy": CurlOpt.PROXY,
    "proxy-cacert": CurlOpt.PROXY_CAINFO,
    "noproxy": CurlOpt.NOPROXY,
}
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "v": "\v"}


def options(text: str):
    """The names and values of a configuration file."""
    for line in text.splitlines():
        if match := re.fullmatch(r'([a-z0-9-]+) = "((?:[^"\\]|\\.)*)"', line):
            name, value = match.groups()
            yield name, re.sub(r"\\(.)", lambda it: ESCAPES.get(it[1], it[1]), value)
        else:
            yield line, None


def main(config: str, http: str, ca: str, url: str, output: str) -> None:
    curl = Curl()
    print(curl.version().decode(), file=sys.stderr)
    curl.setopt(CurlOpt.PROXY_CAINFO, ca)  # what the file says comes later
    for name, value in options(Path(config).read_text()):
        if (name, value) == ("proxy-http3", None):
            curl.setopt(CurlOpt.PROXYTYPE, CurlProxyType.HTTPS3)
        elif name == "proxy-header":
            curl.setopt(CurlOpt.PROXYHEADER, [value.encode()])
            curl.setopt(CurlOpt.HEADEROPT, 1)  # CURLHEADER_SEPARATE, as the program curl has it
        else:
            curl.setopt(OPTIONS[name], value)
    curl.setopt(CurlOpt.URL, url)
    curl.setopt(CurlOpt.CAINFO, ca)
    curl.setopt(CurlOpt.HTTP_VERSION, VERSIONS[http])
    curl.setopt(CurlOpt.VERBOSE, 1)
    with open(output, "wb") as file:
        curl.setopt(CurlOpt.WRITEDATA, file)
        curl.perform()
    if curl.getinfo(CurlInfo.RESPONSE_CODE) != 200:
        sys.exit(1)


main(*sys.argv[1:])
