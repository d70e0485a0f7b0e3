#!/usr/bin/env bash
# Checks `tandem origin` before nginx and an application: ranges, forms, uploads, WebSockets over HTTP/3 and HTTP/1.1, mode
# tecc through a proxy, and nginx that stops and starts. It needs root only to install programs.
#   interop/nginx.sh                  uses a new build
#   TANDEM=FILE interop/nginx.sh      uses this program
# The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
. ./setup.sh

need python3
install_packages nginx=nginx-light curl=curl
install_python_packages python3 "$cache/nginx-venv" nginx/requirements.txt
build_tandem

exec timeout --signal TERM 120 "$cache/nginx-venv/bin/python" nginx/check.py
