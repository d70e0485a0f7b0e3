"""Fetches a URL through an HTTP/3 proxy with libcurl, or sends a file to it with POST:
get.py http3|http1.1 CA-FILE PROXY URL OUTPUT [UPLOAD]

libcurl asks the proxy with CONNECT-UDP for HTTP/3, and with CONNECT for HTTP/1.1. LOGIN may be the user and the
password for the proxy, NAME:PASSWORD."""

import os
import sys

from curl_cffi import Curl, CurlHttpVersion, CurlInfo, CurlOpt
from curl_cffi.const import CurlProxyType

VERSIONS = {"http3": CurlHttpVersion.V3ONLY, "http1.1": CurlHttpVersion.V1_1}
USED = {"http3": CurlHttpVersion.V3, "http1.1": CurlHttpVersion.V1_1}


def main(
    http: str, ca: str, proxy: str, url: str, output: str, upload: str | None = None
) -> None:
    curl = Curl()
    print(curl.version().decode(), file=sys.stderr)
    curl.setopt(CurlOpt.URL, url)
    curl.setopt(CurlOpt.CAINFO, ca)
    curl.setopt(CurlOpt.HTTP_VERSION, VERSIONS[http])
    curl.setopt(CurlOpt.PROXY, proxy)
    curl.setopt(CurlOpt.PROXYTYPE, CurlProxyType.HTTPS3)
    curl.setopt(CurlOpt.PROXY_CAINFO, ca)
    if login := os.environ.get("LOGIN"):
        curl.setopt(CurlOpt.PROXYUSERPWD, login)
    curl.setopt(CurlOpt.VERBOSE, 1)
    if upload:
        with open(upload, "rb") as file:
            curl.setopt(CurlOpt.POSTFIELDS, body := file.read())
        curl.setopt(CurlOpt.POSTFIELDSIZE_LARGE, len(body))
    with open(output, "wb") as file:
        curl.setopt(CurlOpt.WRITEDATA, file)
        curl.perform()
    status, version = curl.getinfo(CurlInfo.RESPONSE_CODE), curl.getinfo(CurlInfo.HTTP_VERSION)
    print(f"status {status}, HTTP version {version}", file=sys.stderr)
    if (status, version) != (200, USED[http]):
        sys.exit(1)


main(*sys.argv[1:])
