# Sourced by up, down and run: the same few verbs on either kind of cluster.
#
# kind is chosen where a Docker engine answers, the hermetic cluster elsewhere; UNDERSTUDY_CLUSTER decides otherwise.
# shellcheck shell=bash disable=SC2034 # some are for those who source this

E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$E2E/.." && pwd)
KIND_NAME=understudy
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }
say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

if [ -z "${UNDERSTUDY_CLUSTER:-}" ]; then
  UNDERSTUDY_CLUSTER=hermetic
  if command -v docker >/dev/null && docker info >/dev/null 2>&1; then UNDERSTUDY_CLUSTER=kind; fi
fi

case $UNDERSTUDY_CLUSTER in
  hermetic)
    HERMETIC=$E2E/cluster/hermetic
    [ "$EUID" = 0 ] || die "a cluster of network namespaces needs root, and no Docker engine answers: run it with sudo --preserve-env=HOME,PATH"
    KUBECTL_WORDS="e2e/cluster/hermetic kubectl"
    EXEC_WORDS="e2e/cluster/hermetic exec"
    cluster_up() { "$HERMETIC" up 3; }
    cluster_load() { "$HERMETIC" load "$@"; }
    cluster_kubectl() { "$HERMETIC" kubectl "$@"; }
    cluster_exec() { "$HERMETIC" exec "$@"; }
    cluster_down() { "$HERMETIC" down; }
    ;;
  kind)
    command -v kind >/dev/null || die "a Docker engine runs, but there is no kind: install it (https://kind.sigs.k8s.io), or set UNDERSTUDY_CLUSTER=hermetic"
    KUBECTL_WORDS="kubectl --context kind-$KIND_NAME"
    EXEC_WORDS="$KUBECTL_WORDS run client -it --rm --image=IMAGE --"
    cluster_up() {
      kind get clusters 2>/dev/null | grep -qx "$KIND_NAME" && return
      printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes: [{role: control-plane}, {role: worker}, {role: worker}, {role: worker}]\n' |
        kind create cluster --name "$KIND_NAME" --config - --wait 180s
    }
    cluster_load() { local archive; for archive in "$@"; do kind load image-archive "$archive" --name "$KIND_NAME"; done; }
    cluster_kubectl() { kubectl --context "kind-$KIND_NAME" "$@"; }
    # In the control plane's network, where addresses of services work; needs root for the namespace.
    cluster_exec() {
      local pid config
      pid=$(docker inspect -f '{{.State.Pid}}' "$KIND_NAME-control-plane")
      config=$(mktemp)
      kind get kubeconfig --internal --name "$KIND_NAME" >"$config"
      printf 'nameserver %s\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5 timeout:1\n' \
        "$(cluster_kubectl -n kube-system get service kube-dns -o 'jsonpath={.spec.clusterIP}')" >"$config.resolv"
      # shellcheck disable=SC2016 # the inner shell expands them
      KUBECONFIG=$config nsenter --net="/proc/$pid/ns/net" unshare --mount --propagation slave \
        bash -c 'mount --bind "$0" "$(realpath /etc/resolv.conf)" && exec "$@"' "$config.resolv" "$@"
    }
    cluster_down() { kind delete cluster --name "$KIND_NAME"; }
    ;;
  *) die "UNDERSTUDY_CLUSTER is '$UNDERSTUDY_CLUSTER': it must be kind or hermetic" ;;
esac
