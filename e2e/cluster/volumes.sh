# Storage for `hermetic`: local volumes, plain folders of the machine, each tied to one node.
#
# The class `standard` provisions nothing itself; this loop keeps SPARE_VOLUMES free volumes on every
# node and throws used ones away. A claim that is deleted and made again therefore gets a fresh, empty
# volume, on whichever node its pod is put; a claim that is kept ties its pod to its node, as a local
# disk does. Sizes are not enforced.
# shellcheck shell=bash

# Free volumes a node: more than the claims that one test makes at a time on one node.
SPARE_VOLUMES=4

volume_class() {
  cat <<E2
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
E2
}

volume() { # NODE NAME
  cat <<E2
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: $2, labels: {hermetic/node: node$1}}
spec:
  storageClassName: standard
  capacity: {storage: 100Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: $STATE/n$1/volumes/$2}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node$1]}]
E2
}

volumes_available() { [ "$(kubectl get pv --no-headers -o custom-columns=P:.status.phase | grep -c Available)" -ge $((SPARE_VOLUMES * $1)) ]; }

volumes_unused() { ! kubectl get pv --no-headers -o custom-columns=P:.status.phase | grep -v Available; }

# Brings the volumes to what they should be, once.
volumes_settle() {
  local n name phase next missing folder known
  # Without a list nothing is known to be unused.
  known=$(kubectl get pv -l hermetic/node --no-headers -o custom-columns=N:.metadata.name,P:.status.phase) || return
  while read -r name phase; do
    case $phase in Released | Failed) kubectl delete pv "$name" --wait=false ;; esac
  done <<<"$known"
  for n in $(nodes); do
    for folder in "$STATE/n$n"/volumes/*/; do
      name=$(basename "$folder")
      # A pod that was deleted by force on a node out of reach may still write here.
      if [ -d "$folder" ] && ! grep -q "^$name " <<<"$known" && ! grep -q "/n$n/volumes/$name " "/proc/$(unit_pid "node$n")/mountinfo"; then
        rm -rf "$folder"
      fi
    done
    missing=$((SPARE_VOLUMES - $(grep -cE "^node$n-v[0-9]+ +(Available|Pending)" <<<"$known" || true)))
    next=$(cat "$STATE/n$n/volumes.next" 2>/dev/null || echo 1)
    while [ $missing -gt 0 ]; do
      name=node$n-v$next
      install -d -m 0777 "$STATE/n$n/volumes/$name"
      volume "$n" "$name"
      next=$((next + 1)) missing=$((missing - 1))
    done
    echo "$next" >"$STATE/n$n/volumes.next"
  done >"$STATE/volumes.yaml"
  [ ! -s "$STATE/volumes.yaml" ] || kubectl apply -f "$STATE/volumes.yaml"
}

# Runs until it is ended: settles whenever a volume changed. The watch ends with the API server, and
# now and then by itself.
volumes_loop() {
  while true; do
    volumes_settle || true
    kubectl get pv -w --no-headers -o custom-columns=N:.metadata.name,P:.status.phase | while read -r _; do
      while read -r -t 0.1 _; do :; done # what comes together is settled together
      volumes_settle || true
    done || true
    sleep 1
  done
}
