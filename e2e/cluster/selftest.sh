# What `hermetic` promises, tried: each line printed is one promise that held, with its time.
#
# The subject is `probe` (images/probe), three pods of it, one a node, with a volume each. Not a test of
# Understudy.
# shellcheck shell=bash

SPACE=hermetic-selftest

selftest_objects() {
  cat <<E2
apiVersion: v1
kind: Service
metadata: {name: probe, namespace: $SPACE}
spec: {clusterIP: None, selector: {app: probe}, publishNotReadyAddresses: true}
---
apiVersion: v1
kind: Service
metadata: {name: chosen, namespace: $SPACE}
spec: {ports: [{name: probe, port: 5672}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: probe, namespace: $SPACE}
spec:
  serviceName: probe
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: 65532, runAsNonRoot: true, fsGroup: 65532}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {labelSelector: {matchLabels: {app: probe}}, topologyKey: kubernetes.io/hostname}
      containers:
      - name: probe
        image: understudy/probe:1
        imagePullPolicy: Never
        args: [serve, "5672"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
E2
}

slice_for() { # POD: what a failover service's owner writes
  cat <<E2
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: chosen, namespace: $SPACE, labels: {kubernetes.io/service-name: chosen}}
addressType: IPv4
endpoints: [{addresses: ["$(of "$1" .status.podIP)"], conditions: {ready: true}}]
ports: [{name: probe, port: 5672, protocol: TCP}]
E2
}

of() { kubectl -n $SPACE get pod "$1" -o "jsonpath={$2}"; }
reaches() { "${INSIDE[@]}" "$BIN/probe" until "$1" "$2"; } # ADDRESS NAME
reaches_not() { ! "${INSIDE[@]}" timeout 2 bash -c 'exec 3<>"/dev/tcp/$0/5672" && read -r -t 1 -u 3' "$1"; } # IP
node_of() { of "$1" .spec.nodeName | sed s/node//; }
held() { printf '%6d ms  %s\n' $((($(date +%s%N) - begun) / 1000000)) "$*"; begun=$(date +%s%N); }
restarted() { [ "$(of "$1" '.status.containerStatuses[0].restartCount')" = "$2" ]; }
reaches_once() { "${INSIDE[@]}" timeout 1 "$BIN/probe" until "$(of "$1" .status.podIP):5672" "$1"; } # POD
answers_starts() { reaches_once probe-0 | grep -q "probe-0 $1\$"; }

selftest() {
  local pod n m ip other begun round=0
  [ "$(nodes | wc -l)" -ge 3 ] || die "selftest needs 3 nodes"
  begun=$(date +%s%N)
  # A selftest that failed leaves what it did to the nodes.
  for n in 1 2 3; do group_thaw "n$n"; in_cp ip link set "$CLUSTER-v$n" up; done
  kubectl delete namespace $SPACE --ignore-not-found --force --grace-period=0 >/dev/null 2>&1
  load "$CACHE/images/probe.tar"
  held "an image is loaded into every node"

  kubectl create namespace $SPACE >/dev/null
  selftest_objects | kubectl apply -f - >/dev/null
  kubectl -n $SPACE rollout status statefulset probe --timeout=60s >/dev/null || die "the probes do not start"
  held "three pods with volumes run, one a node"
  for pod in probe-0 probe-1 probe-2; do reaches "$pod.probe.$SPACE.svc.cluster.local:5672" $pod >/dev/null || die "no answer from $pod by its name"; done
  held "each answers by its name, as a user that is not root"

  for pod in probe-0 probe-1 probe-2 probe-0 probe-1 probe-2; do
    slice_for $pod | kubectl apply -f - >/dev/null
    begun=$(date +%s%N)
    reaches "chosen.$SPACE:5672" $pod >/dev/null || die "the service does not lead to $pod"
    held "new connections to the service reach $pod (from the return of the write, name lookup included)"
  done
  for pod in probe-2 probe-0; do # its own node's pod, and another's
    kubectl -n $SPACE exec $pod -- /bin/probe until "chosen:5672" probe-2 >/dev/null || die "the service does not work in $pod"
  done
  kubectl -n $SPACE exec probe-0 -- /bin/probe reach kubernetes.default.svc:443 || die "a pod does not reach the API server"
  held "pods reach the service, of their own node or another, and the API server"

  n=$(node_of probe-0)
  kubectl -n $SPACE delete pod probe-0 >/dev/null
  await 120 answers_starts 2 || die "probe-0 did not find its volume again"
  [ "$(node_of probe-0)" = "$n" ] || die "probe-0 moved away from its volume"
  held "a deleted pod comes back on its node, with its volume"
  kubectl -n $SPACE delete pvc data-probe-0 --wait=false >/dev/null
  kubectl -n $SPACE delete pod probe-0 >/dev/null
  await 120 answers_starts 1 || die "probe-0 did not get a fresh volume"
  await 40 volumes_available 3 || die "the used volume was not replaced"
  held "a deleted claim comes back as an empty volume"

  round=$(of probe-0 '.status.containerStatuses[0].restartCount')
  kill -9 "$(container_pid $SPACE probe-0)"
  await 40 restarted probe-0 $((round + 1)) || die "probe-0 was not restarted"
  held "a killed process is started again"

  n=$(node_of probe-1) ip=$(of probe-1 .status.podIP) other=$(of probe-2 .status.podIP) m=$(node_of probe-2)
  group_freeze "n$n"
  reaches_not "$ip" || die "a frozen node answers"
  group_thaw "n$n"
  reaches "$ip:5672" probe-1 >/dev/null || die "a thawed node does not answer"
  held "a frozen node is silent, and answers once thawed"

  partition add "$n" "$m"
  kubectl -n $SPACE exec probe-2 -- /bin/probe reach "$ip:5672" 2>/dev/null && die "a parted node is reached"
  reaches "$ip:5672" probe-1 >/dev/null && reaches "$other:5672" probe-2 >/dev/null || die "a parted node is out of the control plane's reach"
  partition del "$n" "$m"
  kubectl -n $SPACE exec probe-2 -- /bin/probe reach "$ip:5672" || die "a joined node is not reached"
  held "parted nodes do not reach each other, and do once joined"

  "$HERE/hermetic" stop apiserver
  reaches "$ip:5672" probe-1 >/dev/null || die "pods do not run on without the API server"
  held "the API server is killed, and pods run on"
  "$HERE/hermetic" start apiserver
  held "and is back"

  in_cp ip link set "$CLUSTER-v$n" down
  reaches_not "$ip" || die "a lost node answers"
  kubectl -n $SPACE delete pod probe-1 --force --grace-period=0 >/dev/null 2>&1
  held "a lost node is silent; its pod can be deleted by force"
  node_not_ready() { [ "$(kubectl get node "node$n" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = Unknown ]; }
  await 400 node_not_ready || die "node $n does not become NotReady"
  held "Kubernetes calls it NotReady"
  in_cp ip link set "$CLUSTER-v$n" up
  await 240 node_ready "$n" || die "node $n does not come back"
  kubectl -n $SPACE rollout status statefulset probe --timeout=60s >/dev/null || die "probe-1 does not come back"
  held "healed, it is Ready again and its pod is back"

  n=$(node_of probe-2)
  crash "$n"
  boot "$n"
  await 120 node_ready "$n" || die "node $n does not boot"
  answered() { [ "$(of probe-2 '.status.containerStatuses[0].ready')" = true ] && reaches_once probe-2; }
  await 240 answered || die "probe-2 does not come back after its node crashed"
  held "a node that crashed boots again, and its pod is back"

  kubectl delete namespace $SPACE >/dev/null
  await 80 volumes_unused || die "used volumes are left over"
  held "everything is deleted, no used volume is left"
  say "selftest passed"
}
