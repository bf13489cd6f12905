#!/usr/bin/env bash
# Make a small Debian root file system with Python, to import as a template. It uses the apt sources and
# the release of this host.
#
#   sudo docs/recipes/python-template.sh ./python
#   sudo axern template add python --from ./python
#   sudo axern run --template python -- python3 -c 'print(1+1)'
set -euo pipefail

(($# == 1)) || { echo "usage: ${0##*/} DIR" >&2; exit 2; }
target=$1
((EUID == 0)) || { echo "${0##*/}: ids and modes need root: sudo $0 $*" >&2; exit 1; }
[[ ! -e $target ]] || { echo "${0##*/}: $target exists already" >&2; exit 1; }
command -v mmdebstrap >/dev/null || { echo "${0##*/}: apt install mmdebstrap" >&2; exit 1; }
release=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")

options=(--variant=essential --mode=root --include=python3,ca-certificates)
# Documents and translations would double it.
for path in doc man info locale; do
    options+=(--dpkgopt="path-exclude=/usr/share/$path/*")
done
# What is half written after a power failure is made anew; flushing each file takes longer than all else.
options+=(--dpkgopt=force-unsafe-io)
# From standard input or the host's own files: mmdebstrap reads what apt here reads.
exec mmdebstrap --quiet "${options[@]}" "$release" "$target"
