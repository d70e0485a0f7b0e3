"""Fetches a URL through a CONNECT-UDP proxy with libcurl, or sends a file to it with POST:
get.py CA-FILE PROXY URL OUTPUT [UPLOAD]"""

import sys

from curl_cffi import Curl, CurlHttpVersion, CurlInfo, CurlOpt
from curl_cffi.const import CurlProxyType


def main(ca: str, proxy: str, url: str, output: str, upload: str | None = None) -> None:
    curl = Curl()
    print(curl.version().decode(), file=sys.stderr)
    curl.setopt(CurlOpt.URL, url)
    curl.setopt(CurlOpt.CAINFO, ca)
    curl.setopt(CurlOpt.HTTP_VERSION, CurlHttpVersion.V3ONLY)
    curl.setopt(CurlOpt.PROXY, proxy)
    curl.setopt(CurlOpt.PROXYTYPE, CurlProxyType.HTTPS3)
    curl.setopt(CurlOpt.PROXY_CAINFO, ca)
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
    if (status, version) != (200, CurlHttpVersion.V3):
        sys.exit(1)


main(*sys.argv[1:])
