# One node of `hermetic`: a network namespace with an address, a mount namespace, a control group, and in
# them containerd, kubelet and kube-proxy. The mount namespace keeps from the machine what these write to
# fixed places and each volume they mount: when the node's last process ends, all that is gone.
# shellcheck shell=bash

# Folders that containerd and kubelet use without asking, private to each node.
PRIVATE_FOLDERS=(/run/netns /run/containerd /var/lib/cni /var/lib/kubelet /var/log/containers)

node_ip() { echo "$SUBNET.$((10 + $1))"; }
pod_net() { echo "10.244.$1.0/24"; }

# Runs in the new namespaces as the node's first process, and keeps them open.
node_hold() {
  local folder
  for folder in "${PRIVATE_FOLDERS[@]}"; do mount -t tmpfs -o mode=0755 hermetic "$folder"; done
  mount --make-rshared /
  touch "$STATE/n$1/held"
  exec sleep infinity
}

node_containerd_config() {
  cat <<E2
version = 2
root = "$STATE/n$1/containerd"
state = "$RUN/n$1/containerd"
[grpc]
address = "$RUN/n$1/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "$STATE/n$1/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/understudy/pause:1"
# Root of a container may not be allowed to lower an OOM score.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$CNI_BIN"
conf_dir = "$STATE/n$1/cni"
E2
}

node_cni_config() {
  cat <<E2
{"cniVersion": "1.0.0", "name": "pod", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$STATE/n$1/ipam",
            "ranges": [[{"subnet": "$(pod_net "$1")"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
E2
}

node_kubelet_config() {
  cat <<E2
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_ip "$1")
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/node$1.crt
tlsPrivateKeyFile: $PKI/node$1.key
cgroupDriver: cgroupfs
cgroupRoot: /$CLUSTER/n$1
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
resolvConf: ""
containerRuntimeEndpoint: unix://$RUN/n$1/containerd.sock
podLogsDir: $STATE/n$1/pod-logs
volumePluginDir: $STATE/n$1/volume-plugins
healthzPort: 0
# The machine's disk and memory are shared by all nodes, so a node's own measure of them means little.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
kubeAPIQPS: 100
kubeAPIBurst: 200
E2
}

# For node N, and for the control plane's own namespace, where tests and clients run: that one takes node 1's
# name, since it has to have one. A node needs not be alive for its name to be known.
proxy_config() { # NODE
  cat <<E2
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
# Services follow an EndpointSlice at once, not in the default's one-second steps.
iptables: {minSyncPeriod: 10ms, syncPeriod: 30s}
clusterCIDR: 10.244.0.0/16
clientConnection: {kubeconfig: $PKI/admin.kubeconfig}
hostnameOverride: node$1
conntrack: {maxPerCore: 0, min: 0}
E2
}

node_prepare() { # NODE: everything that needs no API server
  local n=$1 dir=$STATE/n$1
  mkdir -p "$dir"/{cni,kubelet,containerd,volumes,volume-plugins} "$RUN/n$n"
  certificate "node$n" "system:node:node$n" system:nodes "DNS:node$n,IP:$(node_ip "$n")"
  kubeconfig_file "node$n"
  group_make "n$n"
  node_containerd_config "$n" >"$dir/containerd.toml"
  node_cni_config "$n" >"$dir/cni/10-pod.conflist"
  node_kubelet_config "$n" >"$dir/kubelet.yaml"
  proxy_config "$n" >"$dir/kube-proxy.yaml"
  unit "node$n" "n$n" nsenter --net="/run/netns/$CLUSTER-n$n" unshare --mount --propagation private "$HERE/hermetic" __hold "$n"
  await 80 test -f "$dir/held" || failed "node$n" "node $n's namespaces were not made"
  unit "containerd$n" "n$n" nsenter --target "$(unit_pid "node$n")" --net --mount containerd -c "$dir/containerd.toml"
  await 120 ctr -a "$RUN/n$n/containerd.sock" version || failed "containerd$n" "containerd of node $n does not answer"
  ctr -a "$RUN/n$n/containerd.sock" -n k8s.io images import "$CACHE/images/pause.tar" >/dev/null ||
    failed "containerd$n" "containerd of node $n does not take the pause image"
}

node_start() { # NODE
  local n=$1 dir=$STATE/n$1 holder
  holder=$(unit_pid "node$n")
  unit "kubelet$n" "n$n" nsenter --target "$holder" --net --mount "$BIN/kubelet" --config "$dir/kubelet.yaml" \
    --kubeconfig "$PKI/node$n.kubeconfig" --root-dir "$dir/kubelet" --cert-dir "$dir/kubelet-pki" \
    --hostname-override "node$n" --node-labels "topology.kubernetes.io/zone=zone$n" --node-ip "$(node_ip "$n")"
  unit "proxy$n" "n$n" nsenter --target "$holder" --net --mount "$BIN/kube-proxy" --config "$dir/kube-proxy.yaml"
}
